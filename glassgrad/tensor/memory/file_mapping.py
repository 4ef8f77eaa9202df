"""Files as memory. In: a path. Out: the file's bytes in place, and a node that reads them.

The file is mapped, not read: the system fetches its pages when they are first touched. The map is private: writing into
an array that shares it changes neither the file nor other readers. What it cannot survive is the file being shortened
while it is mapped; replacing the file (as `safe_save` does) is harmless.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
from typing import Any

from glassgrad.base.errors import FormatError
from glassgrad.compiler.graph import DType, UOp
from glassgrad.runtime.devices import Device
from glassgrad.tensor import realize_and_read as running

Path = str | os.PathLike[str]


def mapped(path: Path) -> Any:
    """A file's content as writable memory; FormatError where the path is not a plain file's."""
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise FormatError(f"{os.fspath(path)} cannot be mapped into memory", given="not a plain file",
                              expected="a plain file", fix="copy its content into a file first")
        if status.st_size == 0:
            return bytearray()
        if os.name == "nt":
            return mmap.mmap(file.fileno(), status.st_size, access=mmap.ACCESS_COPY)
        # private pages are only needed once they are written: files larger than the memory can be mapped too
        return mmap.mmap(file.fileno(), status.st_size, prot=mmap.PROT_READ | mmap.PROT_WRITE,
                         flags=mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0))


def exported(memory: Any) -> tuple[Any, int]:
    """An object that keeps memory exported, and so alive, as long as it lives; and the memory's address."""
    if not len(memory):
        return None, 0
    owner = (ctypes.c_char * len(memory)).from_buffer(memory)
    return owner, ctypes.addressof(owner)


def of_file(path: Path, dtype: DType, device: str) -> UOp:
    """A file's content as elements of one type, in file order; trailing bytes that fill no element are left out."""
    owner, address = exported(mapped(path))
    shape = (ctypes.sizeof(owner) // dtype.itemsize if owner is not None else 0,)
    place = device if Device[device].memory.on_host else "CPU"
    return running.over_memory(owner, address, shape, dtype, place)
