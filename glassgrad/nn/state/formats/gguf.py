"""Read the GGUF format of llama.cpp. In: a file. Out: its metadata and its tensors.

A file is a header (magic, version, counts), metadata (name, type, value), descriptions of tensors (name, sizes with the
fastest axis first, type, offset), and, aligned, the tensors. Every count is compared with the remaining bytes before
anything is allocated.
"""

from __future__ import annotations

import math
import struct
from typing import Any, NamedTuple

from glassgrad.base.errors import FormatError
from glassgrad.compiler.graph import DType, dtypes
from glassgrad.nn.state.formats.byte_source import Source
from glassgrad.nn.state.formats.gguf_blocks import BLOCKS as PLAIN_BLOCKS
from glassgrad.nn.state.formats.gguf_codebook_blocks import BOOK_BLOCKS
from glassgrad.tensor.tensor import Tensor

BLOCKS = dict(sorted({**PLAIN_BLOCKS, **BOOK_BLOCKS}.items()))         # every quantised kind, by ggml's number

STRING, ARRAY, BOOL = 8, 9, 7
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", BOOL: "B", 10: "Q", 11: "q", 12: "d"}
_PLAIN: dict[int, DType] = {0: dtypes.float32, 1: dtypes.float16, 24: dtypes.int8, 25: dtypes.int16, 26: dtypes.int32,
                            27: dtypes.int64, 28: dtypes.float64, 30: dtypes.bfloat16}
MOST_NESTING = 8                 # of arrays in arrays
MOST_AXES = 8                    # ggml itself has 4
_LEAST_BYTES = {STRING: 8, ARRAY: 12, **{kind: struct.calcsize(code) for kind, code in _SCALARS.items()}}


class _Described(NamedTuple):
    """A tensor's description: its offset in the file and how to read it."""
    name: str
    kind: int
    shape: tuple[int, ...]       # row-major
    offset: int                  # from the beginning of the data
    nbytes: int


class _Reader:
    """Reads numbers and strings sequentially."""

    def __init__(self, source: Source):
        self.source, self.position = source, 0

    def take(self, count: int) -> memoryview:
        part = self.source.part(self.position, count)
        self.position += count
        return part

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def text(self) -> str:
        data = self.take(self.number("Q"))
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError:
            raise self.wrong("a text is not UTF-8", given=repr(bytes(data[:40])), expected="UTF-8") from None

    def count(self, code: str, least: int) -> int:
        """Read a count of items of at least `least` bytes each, which must fit into the rest of the file."""
        found: int = self.number(code)
        if found * least > self.source.size - self.position:
            raise self.wrong("it announces more than it holds", given=f"{found:,} things of {least} bytes or more",
                             expected=f"things that fit into the {self.source.size - self.position:,} bytes left")
        return found

    def wrong(self, what: str, given: str, expected: str, fix: str = "") -> FormatError:
        return self.source.wrong(what, given=f"{given}, before byte {self.position:,}", expected=expected, fix=fix)

    def value(self, kind: int, depth: int = 0) -> Any:
        """Read a value of metadata."""
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            return self.array(depth + 1)
        if kind not in _SCALARS:
            raise self.wrong("a value of metadata has an unknown type", given=f"type {kind}",
                             expected="a type from 0 to 12")
        found = self.number(_SCALARS[kind])
        return self.truth(found) if kind == BOOL else found

    def truth(self, byte: int) -> bool:
        if byte > 1:
            raise self.wrong("a truth value is neither", given=str(byte), expected="0 or 1")
        return byte == 1

    def array(self, depth: int) -> list[Any]:
        kind = self.number("I")
        if depth > MOST_NESTING or kind not in _LEAST_BYTES:
            raise self.wrong("an array of metadata is wrong", given=f"type {kind}, {depth} deep",
                             expected=f"a type from 0 to 12, at most {MOST_NESTING} deep")
        count = self.count("Q", _LEAST_BYTES[kind])
        if kind not in _SCALARS:
            return [self.value(kind, depth) for _ in range(count)]
        code = f"<{count}{_SCALARS[kind]}"
        row = list(struct.unpack(code, self.take(struct.calcsize(code))))
        return [self.truth(byte) for byte in row] if kind == BOOL else row


def read_gguf(source: Source, device: str | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return metadata and tensors by name; quantised tensors are arithmetic on the file's bytes."""
    reader = _Reader(source)
    if source.size < 24 or bytes(reader.take(4)) != b"GGUF":
        raise source.wrong("not a GGUF file", given=f"{source.size:,} bytes that begin with {bytes(source.data[:4])!r}",
                           expected="b'GGUF' and a header")
    version = reader.number("I")
    if version not in (2, 3):
        big = version in (2 << 24, 3 << 24)
        raise source.wrong("this version of GGUF cannot be read", expected="version 2 or 3, little-endian",
                           given="a big-endian file" if big else f"version {version}",
                           fix="convert the model again with today's llama.cpp")
    tensor_count = reader.count("Q", 8 + 4 + 4 + 8)
    value_count = reader.count("Q", 8 + 4 + 1)
    metadata: dict[str, Any] = {}
    for _ in range(value_count):
        name = _new_name(reader, metadata)
        metadata[name] = reader.value(reader.number("I"))
    described: dict[str, _Described] = {}
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment <= 0 or alignment % 8 or alignment > 1 << 31:
        raise source.wrong("its alignment makes no sense", given=str(alignment)[:40], expected="a multiple of 8")
    for _ in range(tensor_count):
        name = _new_name(reader, described)
        described[name] = _describe(reader, name, alignment)
    start = -(-reader.position // alignment) * alignment
    _check_extents(source, start, described)
    return metadata, {name: _tensor(source, start, found, device) for name, found in described.items()}


def _new_name(reader: _Reader, known: dict[str, Any]) -> str:
    name = reader.text()
    if name in known:
        raise reader.wrong("a name stands twice", given=repr(name[:80]), expected="every name once")
    return name


def _describe(reader: _Reader, name: str, alignment: int) -> _Described:
    axes = reader.number("I")
    if axes > MOST_AXES:
        raise reader.wrong(f"tensor {name[:80]!r} has too many axes", given=f"{axes} axes",
                           expected=f"at most {MOST_AXES}")
    sizes = [reader.number("Q") for _ in range(axes)]
    kind, offset = reader.number("I"), reader.number("Q")
    shape = tuple(reversed(sizes))
    if kind in _PLAIN:
        weights, nbytes = 1, _PLAIN[kind].itemsize
    elif kind in BLOCKS:
        weights, nbytes = BLOCKS[kind].weights, BLOCKS[kind].nbytes
    else:
        names = [*(d.name for d in _PLAIN.values()), *(b.name for b in BLOCKS.values())]
        raise reader.wrong(f"tensor {name[:80]!r} is of a kind that cannot be read", given=f"ggml type {kind}",
                           expected=", ".join(names), fix="convert the model to one of these, for example Q8_0 or F16")
    if weights > 1 and (not sizes or sizes[0] % weights):
        raise reader.wrong(f"the rows of tensor {name[:80]!r} are not made of whole blocks", given=f"shape {shape}",
                           expected=f"rows of a multiple of {weights} values")
    if offset % alignment or any(n >= 1 << 60 for n in sizes):
        raise reader.wrong(f"the place of tensor {name[:80]!r} makes no sense",
                           given=f"shape {shape}, offset {offset:,}",
                           expected=f"an offset that is a multiple of {alignment}")
    return _Described(name, kind, shape, offset, math.prod(shape) // weights * nbytes)


def _check_extents(source: Source, start: int, described: dict[str, _Described]) -> None:
    """Check that every tensor lies in the file, and that no two overlap."""
    end = 0
    for found in sorted(described.values(), key=lambda d: (d.offset, d.nbytes)):
        if found.offset < end:
            raise source.wrong("tensors overlap", given=f"{found.name[:80]!r} at byte {start + found.offset:,}",
                               expected=f"byte {start + end:,} or later")
        end = found.offset + found.nbytes
        if start + end > source.size:
            raise source.wrong("the file ends too early", given=f"{source.size:,} bytes",
                               expected=f"{start + end:,} bytes, where tensor {found.name[:80]!r} ends")


def _tensor(source: Source, start: int, found: _Described, device: str | None) -> Tensor:
    if found.kind in _PLAIN:
        return source.tensor(start + found.offset, found.shape, _PLAIN[found.kind], device)
    blocks = BLOCKS[found.kind]
    if not found.nbytes:
        return Tensor.zeros(*found.shape, dtype=dtypes.float32, device=device)
    raw = source.tensor(start + found.offset, (found.nbytes // blocks.nbytes, blocks.nbytes), dtypes.uint8, device)
    return blocks.unpack(raw).reshape(found.shape)
