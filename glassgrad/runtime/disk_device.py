"""Treat files as devices, `DISK:/path`. In: a path. Out: a device that stores values and computes nothing.

Files are read and written by tensor/memory/disk.py. This module has only what the engine needs of any device.
"""

from __future__ import annotations

import ctypes
from typing import Any, NoReturn

from glassgrad.base.errors import DeviceError

PREFIX = "DISK:"


def on_disk(device: str | None) -> bool:
    """Whether a device's name is that of a file.

    >>> on_disk("DISK:/tmp/x"), on_disk("CPU")
    (True, False)
    """
    return device is not None and device.startswith(PREFIX)


class FileDevice:
    """The device of one file."""
    in_parts = False
    on_host = False        # bytes are copied for each reader: an array must not write to the file

    def __init__(self, name: str):
        self.name = name
        self.memory: Any = self

    def _refuse(self, *_: Any) -> NoReturn:
        raise DeviceError("a file does not compute", given=f"an expression of a tensor on {self.name}",
                          expected="views of it, which are read, written to or moved",
                          fix='move it to a device first: x.to("CPU")')

    programs = plan = allocate = release = _refuse

    def copy_in(self, address: int, data: Any) -> None:
        """Copy bytes into the file."""
        ctypes.memmove(address, bytes(data), memoryview(data).nbytes)

    def copy_out(self, address: int, nbytes: int) -> bytearray:
        """Copy bytes out of the file."""
        return bytearray((ctypes.c_char * nbytes).from_address(address)) if nbytes else bytearray()

    def synchronize(self) -> None:
        """Do nothing: all accesses are synchronous."""

    def empty_cache(self) -> None:
        """Do nothing: there is no pool."""
