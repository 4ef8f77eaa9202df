"""Bytes in memory, or in a tensor, as an open file. In: a memoryview or a uint8 tensor. Out: a file for parsers."""

from __future__ import annotations

import io
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.tensor.tensor import Tensor


class MemoryIO(io.RawIOBase):
    """Bytes in memory, to be read and sought in like a file's. Read-only."""

    def __init__(self, data: memoryview):
        self._bytes, self._position = data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer as far as the bytes reach; how many they were."""
        part = self._bytes[self._position:self._position + len(buffer)]
        buffer[:len(part)] = part
        self._position += len(part)
        return len(part)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a byte counted from the beginning (0), from here (1) or from the end (2); never outside."""
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._bytes)}[whence]
        self._position = min(max(begin + offset, 0), len(self._bytes))
        return self._position


class TensorIO(MemoryIO):
    """The bytes of a tensor, to be read and sought in like a file's. Read-only.

    >>> file = TensorIO(Tensor(b"glass"))
    >>> file.seek(1), file.read(2), file.tell(), file.read()
    (1, b'la', 3, b'ss')
    """

    def __init__(self, t: Tensor):
        if t.dtype is not dtypes.uint8 or t.ndim != 1:
            raise InputError("TensorIO reads a row of bytes", given=f"{t.dtype.name} of shape {t.shape}",
                             expected="uint8, one axis", fix="t.bitcast(dtypes.uint8).flatten()")
        super().__init__(t.data() if len(t) else memoryview(b""))      # its own memory, where the host can read it

    def write(self, data: Any) -> int:
        """Refused: a tensor's values do not change."""
        raise io.UnsupportedOperation("a tensor's bytes can be read, not written")
