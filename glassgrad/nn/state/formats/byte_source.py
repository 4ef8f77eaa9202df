"""Map a file's bytes. In: a path, an open file, bytes, or a tensor of bytes. Out: `Source`, whose parts become tensors.

The file is memory-mapped, not read: a tensor made here is a view of the mapping (for the consequences see
tensor/memory/file_mapping.py). `MemoryIO` and `TensorIO` present bytes in memory, or in a tensor, as a file to parsers.
"""

from __future__ import annotations

import io
import math
import os
from typing import IO, Any

from glassgrad.base.errors import DTypeError, FormatError, InputError
from glassgrad.compiler.graph import DType, dtypes
from glassgrad.runtime.devices import Device
from glassgrad.tensor import realize_and_read as running
from glassgrad.tensor.checks import cannot_take
from glassgrad.tensor.memory.file_mapping import exported, mapped
from glassgrad.tensor.memory.python_values import HostValue
from glassgrad.tensor.tensor import Tensor

Readable = str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes] | Tensor

MOST_AXES = 64          # the limit of NumPy and PyTorch


def is_size(n: Any, bits: int = 60) -> bool:
    """Return whether a value can be a number of elements or bytes: a non-negative integer of at most the given number
    of bits."""
    return type(n) is int and 0 <= n < 1 << bits


class Source:
    """Bytes with a name for messages. `reader` is the function of nn.state that was called with them.

    >>> source = Source(b"\\x01\\x02\\x03\\x04")
    >>> source.size, bytes(source.part(1, 2)), source.tensor(0, (2,), dtypes.int16).tolist()
    (4, b'\\x02\\x03', [513, 1027])
    """
    __slots__ = ("name", "size", "data", "_memory", "_address")
    _memory: Any

    def __init__(self, given: Readable, reader: str = ""):
        kinds = (str, os.PathLike, bytes, bytearray, memoryview, Tensor)
        if reader and not isinstance(given, kinds) and (isinstance(given, type) or not hasattr(given, "read")):
            raise cannot_take(reader, "path", given, "a path or bytes or an open file or a Tensor",
                              f"see help(nn.state.{reader})")
        self.name, memory = _memory_of(given)
        self.size = len(memory)
        self._memory, self._address = exported(memory)
        self.data = memoryview(memory)

    def wrong(self, what: str, given: str, expected: str, fix: str = "") -> FormatError:
        """Return an error that says what is wrong with this file."""
        return FormatError(f"{self.name}: {what}", given=given, expected=expected,
                           fix=fix or "fetch or write the file again; it may be damaged or not whole")

    def part(self, offset: int, count: int) -> memoryview:
        """Return `count` bytes from `offset` on; raise FormatError if the file is shorter."""
        if not 0 <= offset <= offset + count <= self.size:
            raise self.wrong("the file ends too early", given=f"{self.size:,} bytes",
                             expected=f"{count:,} bytes from byte {offset:,} on")
        return self.data[offset:offset + count]

    def tensor(self, offset: int, shape: tuple[int, ...], dtype: DType, device: str | None = None) -> Tensor:
        """Return the row-major values at `offset`: a view of the file's mapping if the device can read it."""
        if len(shape) > MOST_AXES:
            raise self.wrong("a tensor has too many axes", given=f"{len(shape)} axes", expected=f"at most {MOST_AXES}")
        if math.prod(n or 1 for n in shape) * dtype.itemsize >= 1 << 63:      # refused even if another axis is empty
            raise self.wrong("a tensor's axes are too long", given=f"shape {shape}"[:80],
                             expected="axes that memory could hold")
        nbytes = math.prod(shape) * dtype.itemsize
        part = self.part(offset, nbytes)
        place = running.canonical_device(device) or running.default_device()
        mapped = place if Device[place].memory.on_host else "CPU"
        address = self._address + offset
        if nbytes and address % dtype.itemsize:       # unaligned values cannot be read in place on all processors
            node = running.store(HostValue(part, shape, dtype), mapped)
        else:
            node = running.over_memory(self, address, shape, dtype, mapped)
        return Tensor(node, device=place)


def _memory_of(given: Readable) -> tuple[str, Any]:
    """Return a name to use in messages, and writable memory."""
    if isinstance(given, (bytes, bytearray, memoryview)):
        return "these bytes", bytearray(given)
    if not isinstance(given, (str, os.PathLike, Tensor)):           # an open file is read from its position on
        content: Any = given.read()
        if not isinstance(content, (bytes, bytearray)):
            raise InputError("a model is read from a file of bytes", given="a file that is opened as text",
                             expected="bytes", fix='open it with open(path, "rb"), or give the path')
        return str(getattr(given, "name", "this file")), bytearray(content)
    if isinstance(given, Tensor):
        if given.dtype is not dtypes.uint8:
            raise DTypeError("a file's content is a tensor of bytes", given=f"a tensor of {given.dtype.name}",
                             expected="uint8", fix="give the path of the file")
        data = running.bytes_of(given.uop, given.device)
        return "this tensor of bytes", data if len(data) else bytearray()
    return os.fspath(given), mapped(given)


class MemoryIO(io.RawIOBase):
    """Bytes in memory as a read-only file."""

    def __init__(self, data: memoryview):
        self._bytes, self._position = data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer as far as the bytes reach; return how many were copied."""
        part = self._bytes[self._position:self._position + len(buffer)]
        buffer[:len(part)] = part
        self._position += len(part)
        return len(part)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Seek relative to the beginning (0), the position (1) or the end (2), clamped to the file."""
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._bytes)}[whence]
        self._position = min(max(begin + offset, 0), len(self._bytes))
        return self._position


class TensorIO(MemoryIO):
    """The bytes of a tensor as a read-only file.

    >>> file = TensorIO(Tensor(b"glass"))
    >>> file.seek(1), file.read(2), file.tell(), file.read()
    (1, b'la', 3, b'ss')
    """

    def __init__(self, t: Tensor):
        if t.dtype is not dtypes.uint8 or t.ndim != 1:
            raise InputError("TensorIO reads a row of bytes", given=f"{t.dtype.name} of shape {t.shape}",
                             expected="uint8, one axis", fix="t.bitcast(dtypes.uint8).flatten()")
        super().__init__(t.data() if len(t) else memoryview(b""))      # no copy, where the host can read it

    def write(self, data: Any) -> int:
        """Refuse: the file is read-only."""
        raise io.UnsupportedOperation("a tensor's bytes can be read, not written")
