"""Read and write the safetensors format. In: named tensors, or a file. Out: a file, or its checked header.

A file is 8 bytes that say how long the header is, a JSON header, and the data:
    {"__metadata__": {text: text}, name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
Offsets count from the end of the header. The tensors fill the data without a gap and without overlap.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

from glassgrad.base.errors import FormatError, InputError
from glassgrad.compiler.graph import DType, UOp, dtypes, ops as o
from glassgrad.nn.state.formats.byte_source import Source, is_size
from glassgrad.tensor import realize_and_read as running
from glassgrad.tensor.tensor import Tensor

MOST_HEADER_BYTES = 100_000_000          # the limit of the format's library
METADATA = "__metadata__"

CODES: dict[str, DType] = {
    "BOOL": dtypes.bool, "U8": dtypes.uint8, "I8": dtypes.int8, "U16": dtypes.uint16, "I16": dtypes.int16,
    "U32": dtypes.uint32, "I32": dtypes.int32, "U64": dtypes.uint64, "I64": dtypes.int64, "F8_E4M3": dtypes.fp8e4m3,
    "F8_E5M2": dtypes.fp8e5m2, "F8_E4M3FNUZ": dtypes.fp8e4m3fnuz, "F8_E5M2FNUZ": dtypes.fp8e5m2fnuz,
    "F16": dtypes.float16, "BF16": dtypes.bfloat16, "F32": dtypes.float32, "F64": dtypes.float64,
}
_CODE_OF = {dtype: code for code, dtype in CODES.items()}


class Entry(NamedTuple):
    """One tensor: its offset from the file's first byte, its shape and type."""
    offset: int
    shape: tuple[int, ...]
    dtype: DType


class Header(NamedTuple):
    """A file's header, checked."""
    start: int                              # offset of the data
    fields: dict[str, Any]                  # the JSON itself
    entries: dict[str, Entry]


# -- reading ---------------------------------------------------------------------------------------------------------
def read_header(source: Source) -> Header:
    """Return the header of a safetensors file, with every claim in it checked against the file's size."""
    if source.size < 8:
        raise source.wrong("not a safetensors file", given=f"{source.size} bytes", expected="at least 8 bytes")
    length = int.from_bytes(source.part(0, 8), "little")
    start = 8 + length
    if length > MOST_HEADER_BYTES or start > source.size:
        raise source.wrong("not a safetensors file, or not whole", given=f"a header of {length:,} bytes",
                           expected=f"at most {min(MOST_HEADER_BYTES, source.size - 8):,} bytes in a file of "
                                    f"{source.size:,} bytes")
    fields = _parse(source, bytes(source.part(8, length)))
    metadata = fields.get(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise source.wrong(f"the header's {METADATA} is wrong", given=_short(metadata), expected="texts by name")
    entries = {name: _entry(source, start, name, said) for name, said in fields.items() if name != METADATA}
    _check_tiling(source, start, entries)
    return Header(start, fields, entries)


def _parse(source: Source, text: bytes) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
            raise source.wrong("a name stands twice in the header", given=_short(twice), expected="every name once")
        return found

    def refuse(constant: str) -> Any:
        raise source.wrong("the header is not JSON", given=constant, expected="numbers that JSON has")

    if not text.startswith(b"{"):
        raise source.wrong("not a safetensors file", given=f"a header that begins with {_short(text[:8])}",
                           expected='a JSON header, which begins with "{"')
    try:
        fields: dict[str, Any] = json.loads(text.decode("utf-8"), object_pairs_hook=once, parse_constant=refuse)
    except FormatError:
        raise
    except (ValueError, RecursionError) as problem:         # not UTF-8, not JSON, a number too long, nested too deep
        raise source.wrong("the header is not JSON", given=f"{type(problem).__name__}: {problem}",
                           expected="a JSON object in UTF-8") from None
    return fields


def _entry(source: Source, start: int, name: str, said: Any) -> Entry:
    def wrong(given: Any, expected: str) -> FormatError:
        return source.wrong(f"the header's entry {_short(name)} is wrong", given=_short(given), expected=expected)

    if not isinstance(said, dict) or set(said) != {"dtype", "shape", "data_offsets"}:
        raise wrong(said, "dtype, shape and data_offsets")
    shape, offsets, code = said["shape"], said["data_offsets"], said["dtype"]
    dtype = CODES.get(code) if isinstance(code, str) else None
    if dtype is None:
        raise wrong(f"dtype {_short(code)}", f"one of {', '.join(CODES)}")
    if not isinstance(shape, list) or not all(is_size(n, 63) for n in shape):
        raise wrong(f"shape {_short(shape)}", "a list of sizes")
    if not (isinstance(offsets, list) and len(offsets) == 2 and all(is_size(n, 63) for n in offsets)):
        raise wrong(f"data_offsets {_short(offsets)}", "[begin, end]")
    begin, end = offsets
    if not begin <= end <= source.size - start:
        raise wrong(f"data_offsets {_short(offsets)}", f"0 <= begin <= end <= {source.size - start}, the bytes of data")
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes != end - begin:
        raise wrong(f"{end - begin} bytes for shape {_short(shape)} of {code}", f"{nbytes} bytes")
    return Entry(start + begin, tuple(shape), dtype)


def _check_tiling(source: Source, start: int, entries: dict[str, Entry]) -> None:
    """Check that tensors lie one after another, without gaps or overlap, as the format demands."""
    end = start
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].offset, _nbytes(item[1]))):
        if entry.offset != end:
            raise source.wrong("tensors overlap" if entry.offset < end else "there is a gap between tensors",
                               given=f"{_short(name)} begins at byte {entry.offset:,}", expected=f"byte {end:,}")
        end += _nbytes(entry)
    if end != source.size:
        raise source.wrong("there are bytes that no tensor claims", given=f"{source.size:,} bytes",
                           expected=f"{end:,}, where the last tensor ends")


def _nbytes(entry: Entry) -> int:
    return math.prod(entry.shape) * entry.dtype.itemsize


def _short(value: Any) -> str:
    """A value from the untrusted file, shortened to one line for a message."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


# -- writing ---------------------------------------------------------------------------------------------------------
def write_file(tensors: Mapping[str, Tensor], path: str | os.PathLike[str], metadata: Mapping[str, str] | None) -> None:
    """Write a safetensors file atomically."""
    rows = list(tensors.items())
    for name, tensor in rows:
        if not isinstance(name, str) or name == METADATA or not isinstance(tensor, Tensor):
            raise InputError("safe_save takes tensors by name", given=f"{_short(name)}: {type(tensor).__name__}",
                             expected=f"a text other than {METADATA!r}, and a Tensor",
                             fix="name every tensor, as get_state_dict(model) does")
    fields: dict[str, Any] = {}
    if metadata:
        odd = [item for item in metadata.items() if not all(isinstance(text, str) for text in item)]
        if odd:
            raise InputError("metadata of a safetensors file are texts by name", given=_short(odd[0]),
                             expected="two texts", fix="write the value as text, for example with json.dumps")
        fields[METADATA] = dict(metadata)
    rows.sort(key=lambda row: (-row[1].dtype.itemsize, row[0]))     # wide types first, so that all are aligned
    begin = 0
    for name, tensor in rows:
        end = begin + tensor.numel() * tensor.dtype.itemsize
        fields[name] = {"dtype": _CODE_OF[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    try:
        header = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as problem:
        raise InputError("a name or a text of metadata cannot be written", given=ascii(problem.object[problem.start]),
                         expected="characters that UTF-8 has", fix="leave out halves of surrogate pairs") from None
    header += b" " * (-len(header) % 8)
    if len(header) > MOST_HEADER_BYTES:
        raise InputError("the header of a safetensors file cannot be so long", given=f"{len(header):,} bytes",
                         expected=f"at most {MOST_HEADER_BYTES:,}", fix="write less metadata, or several files")
    values = _computed([tensor for _, tensor in rows])
    with replacing(path) as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for (_, tensor), node in zip(rows, values):
            file.write(running.bytes_of(node, tensor.device))


def _computed(tensors: list[Tensor]) -> list[UOp]:
    """Realize the tensors in one schedule, so that shared parts are computed once."""
    nodes = [tensor.uop.below((o.DETACH, o.RESHAPE)) for tensor in tensors]          # the same bytes
    waiting = [node.contiguous() for node in dict.fromkeys(nodes) if node.base.op is not o.BUFFER]
    if not waiting:
        return nodes
    done = dict(zip(waiting, running.realize(waiting, tensors[0].device)))
    return [done.get(node.contiguous(), node) for node in nodes]


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a new file that atomically replaces `path` once it is written and synced; on failure nothing changes."""
    target = os.path.realpath(path)                        # follow links, so that they stay links
    if os.path.exists(target) and not os.path.isfile(target):      # never replace a device or a pipe
        raise InputError("only a plain file can be replaced by a new one", given=f"{target}, which is something else",
                         expected="the path of a file, or of nothing yet",
                         fix="write to a file, and copy it from there")
    temporary = f"{target}.{secrets.token_hex(6)}.part"
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if os.path.exists(target):
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
