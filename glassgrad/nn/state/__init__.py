"""Save and load models: state dictionaries and their files. In: models, paths. Out: tensors by name; files.

Code in a file is never run, and the sizes in a header are compared with the file's size before anything is allocated.
Tensors of a loaded file are memory-mapped: the system reads them on first use.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from glassgrad.compiler.graph import dtypes
from glassgrad.nn.state.checkpoint import load_checkpoint, save_checkpoint
from glassgrad.nn.state.formats.byte_source import Readable, Source, TensorIO
from glassgrad.nn.state.formats.gguf import read_gguf
from glassgrad.nn.state.formats.safetensors import METADATA, read_header, write_file
from glassgrad.nn.state.formats.torch_files import is_torch_legacy, is_torch_zip, read_torch_legacy, read_torch_zip
from glassgrad.nn.state.state_dict import Loaded, get_parameters, get_state_dict, load_state_dict
from glassgrad.tensor import checks
from glassgrad.tensor.tensor import Tensor

__all__ = ["get_parameters", "get_state_dict", "load_state_dict", "safe_save", "safe_load", "safe_load_metadata",
           "torch_load", "gguf_load", "save_checkpoint", "load_checkpoint", "Loaded", "SafeHeader", "TensorIO"]



# -- safetensors -----------------------------------------------------------------------------------------------------
def safe_save(tensors: Mapping[str, Tensor], path: str | os.PathLike[str],
              metadata: Mapping[str, str] | None = None) -> None:
    """Write named tensors into a safetensors file, atomically: an existing file is replaced when the new one is
    complete, or not at all.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     safe_save({"weight": Tensor([1.0, 2.0])}, folder + "/model.safetensors", metadata={"made": "today"})
    ...     safe_load(folder + "/model.safetensors")["weight"].tolist()
    [1.0, 2.0]
    """
    checks.of_kind("Mapping", "safe_save", tensors=tensors)
    checks.of_kind("PathLike", "safe_save", path=path)
    write_file(tensors, path, metadata)


def safe_load(path: Readable, device: str | None = None) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file (a path, an open file, bytes, or a tensor of bytes) by name, without
    reading them yet.

    >>> header = b'{"weight": {"dtype": "I32", "shape": [1, 2], "data_offsets": [0, 8]}}'
    >>> safe_load(len(header).to_bytes(8, "little") + header + bytes([1, 0, 0, 0, 2, 0, 0, 0]))["weight"].tolist()
    [[1, 2]]
    """
    source = Source(path, "safe_load")
    return {name: source.tensor(*entry, device) for name, entry in read_header(source).entries.items()}


class SafeHeader(NamedTuple):
    """An open safetensors file: its bytes, the offset of the data, and the header's fields."""
    data: Tensor
    start: int
    fields: dict[str, Any]

    @property
    def metadata(self) -> dict[str, str]:
        """The strings saved with the tensors."""
        found: dict[str, str] = self.fields.get(METADATA, {})
        return found


def safe_load_metadata(path: Readable) -> SafeHeader:
    """Return the header of a safetensors file; as in tinygrad, a triple: its bytes, the offset of the data, the header.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     safe_save({"weight": Tensor([1.0])}, folder + "/model.safetensors", metadata={"made": "today"})
    ...     header = safe_load_metadata(folder + "/model.safetensors")
    >>> header.metadata, header.fields["weight"]
    ({'made': 'today'}, {'dtype': 'F32', 'shape': [1], 'data_offsets': [0, 4]})
    """
    source = Source(path, "safe_load_metadata")
    header = read_header(source)
    return SafeHeader(source.tensor(0, (source.size,), dtypes.uint8), header.start, header.fields)


# -- PyTorch ---------------------------------------------------------------------------------------------------------
def torch_load(path: Readable, device: str | None = None) -> Any:
    """Load what `torch.save` wrote, in the present format or that before PyTorch 1.6, with glassgrad's tensors. Nothing
    in the file is run. Of Python objects it may contain only tensors, numbers, strings, lists, dicts and sets, and
    NumPy's numbers and arrays, which become numbers and tensors; any other is refused by name.

    >>> import pickle
    >>> parts = 0x1950a86a20f9469cfc6c, 1001, {"little_endian": True}, {"step": 3}, []     # an old file, no tensors
    >>> torch_load(b"".join(pickle.dumps(part) for part in parts))
    {'step': 3}
    """
    source = Source(path, "torch_load")
    if is_torch_zip(source):
        return read_torch_zip(source, device)
    if is_torch_legacy(source):
        return read_torch_legacy(source, device)
    old = source.size > 262 and bytes(source.part(257, 5)) == b"ustar"
    raise source.wrong("not a file of PyTorch", given="a tar archive, as PyTorch wrote before 0.2" if old else
                       f"{source.size:,} bytes that begin with {bytes(source.data[:8])!r}",
                       expected="a zip archive, or the magic number of the format before PyTorch 1.6",
                       fix="load and save it with PyTorch; safetensors files are read by safe_load")


# -- GGUF ------------------------------------------------------------------------------------------------------------
def gguf_load(path: Readable, device: str | None = None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the metadata and the tensors of a GGUF file. Quantised tensors become float32, computed from the file's
    bytes when they are needed. Kinds: F32 F16 BF16 F64 I8-I64, Q4_0 Q4_1 Q5_0 Q5_1 Q8_0, Q2_K to Q6_K, IQ1_S to IQ4_XS,
    TQ1_0 TQ2_0, MXFP4 NVFP4.

    >>> gguf_load(b"GGUF" + (3).to_bytes(4, "little") + bytes(16))        # a file of version 3 with nothing in it
    ({}, {})
    """
    return read_gguf(Source(path, "gguf_load"), device)
