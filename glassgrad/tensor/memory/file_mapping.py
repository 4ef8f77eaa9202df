"""Map files as memory. In: a path. Out: the file's bytes in place, and a node that reads them.

The file is mapped, not read: the system fetches its pages when they are first touched. The mapping is private: writing
into an array that shares it changes neither the file nor other readers. The file must not be shortened while it is
mapped; replacing it (as `safe_save` does) is harmless.
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
    """Return a file's content as writable memory; raise FormatError if the path is not that of a plain file."""
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise FormatError(f"{os.fspath(path)} cannot be mapped into memory", given="not a plain file",
                              expected="a plain file", fix="copy its content into a file first")
        if status.st_size == 0:
            return bytearray()
        if os.name == "nt":
            return mmap.mmap(file.fileno(), status.st_size, access=mmap.ACCESS_COPY)
        # pages take memory of their own only when they are written, so files larger than the memory can be mapped
        return mmap.mmap(file.fileno(), status.st_size, prot=mmap.PROT_READ | mmap.PROT_WRITE,
                         flags=mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0))


def exported(memory: Any) -> tuple[Any, int]:
    """Return an object that keeps memory alive and exported as long as it lives, and the memory's address."""
    if not len(memory):
        return None, 0
    owner = (ctypes.c_char * len(memory)).from_buffer(memory)
    return owner, ctypes.addressof(owner)


def of_file(path: Path, dtype: DType, device: str) -> UOp:
    """Return a file's content as elements of one type, in file order; trailing bytes that do not fill an element are
    left out."""
    owner, address = exported(mapped(path))
    shape = (ctypes.sizeof(owner) // dtype.itemsize if owner is not None else 0,)
    place = device if Device[device].memory.on_host else "CPU"
    return running.over_memory(owner, address, shape, dtype, place)
