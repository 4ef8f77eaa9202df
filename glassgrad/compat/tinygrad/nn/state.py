"""Provide tinygrad.nn.state: model files and state dictionaries as tinygrad loads them. In: files, models. Out: its
tensors.
"""

from __future__ import annotations

import tarfile
from collections.abc import MutableMapping
from io import BytesIO
from typing import Any

import glassgrad.nn.state
from glassgrad.compat.tinygrad.nn import ADAPTER
from glassgrad.compat.tinygrad.tinygrad_tensor import TinygradTensor
from glassgrad.nn.state.formats.byte_source import Source
from glassgrad.nn.state.state_dict import Loaded, load_into

__all__ = ["load_state_dict", "tar_extract"]

_READERS = ("safe_load", "torch_load", "gguf_load", "safe_load_metadata", "load_checkpoint")


def load_state_dict(model: Any, state_dict: MutableMapping[str, Any], strict: bool = True, verbose: bool = False,
                    consume: bool = False, realize: bool = True) -> Loaded:
    """Give a model's tensors the values of a state dictionary, in the types of the state. Names that the model does not
    have are ignored; with `strict`, all names that it has must be there.

    >>> model = {"weight": TinygradTensor([0.0, 0.0])}
    >>> half = TinygradTensor([1.0, 2.0], dtype=dtypes.float16)
    >>> load_state_dict(model, {"weight": half, "more": half}, verbose=False).unexpected_keys
    ['more']
    >>> model["weight"].dtype
    dtypes.float16
    """
    return load_into(model, state_dict, strict, verbose, consume, realize, any_type=True)


def tar_extract(t: Any) -> dict[str, TinygradTensor]:
    """The files of a tar archive, given as bytes, a tensor of bytes or a path: each a tensor of bytes, by name.

    >>> file = BytesIO()
    >>> with tarfile.open(fileobj=file, mode="w") as archive:
    ...     entry = tarfile.TarInfo("a.txt"); entry.size = 2
    ...     archive.addfile(entry, BytesIO(b"hi"))
    >>> {name: bytes(tensor.data()) for name, tensor in tar_extract(file.getvalue()).items()}
    {'a.txt': b'hi'}
    """
    source = Source(t)
    with tarfile.open(fileobj=BytesIO(bytes(source.data))) as archive:
        files = {member.name: archive.extractfile(member) for member in archive if member.isfile()}
        return {name: TinygradTensor(file.read()) for name, file in files.items() if file is not None}


def __getattr__(name: str) -> Any:
    """Return glassgrad's name; functions that read files return tensors of tinygrad's class."""
    found = getattr(glassgrad.nn.state, name)
    return ADAPTER.function(found) if name in _READERS else found


def __dir__() -> list[str]:
    return [*__all__, *glassgrad.nn.state.__all__]
