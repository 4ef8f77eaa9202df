"""Allocate memory of this machine. In: sizes in bytes. Out: pages from the operating system; `HostMemory`, a pool of
them.

Pages come by POSIX calls on Linux and macOS, by Win32 calls on Windows. The pool has three kinds of block:

- up to 64 KiB: carved from 1 MiB slabs, aligned to 64 bytes;
- up to 1 MiB: pages of their own;
- larger: pages of their own, aligned to 2 MiB, with a request for huge pages.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from typing import Any

from glassgrad.runtime.memory_pool import MEBIBYTE, MemoryPool

PAGE = mmap.PAGESIZE
HUGE_PAGE = 2 << 20
SLAB = 1 << 20

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t


def round_up(value: int, multiple: int) -> int:
    """Round up to a multiple of `multiple`, which must be a power of two.

    >>> round_up(65, 64), round_up(64, 64), round_up(0, 64)
    (128, 64, 0)
    """
    return (value + multiple - 1) & -multiple


if sys.platform == "win32":
    _kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
    _kernel32.VirtualAlloc.restype = _POINTER
    _kernel32.VirtualAlloc.argtypes = [_POINTER, _SIZE, ctypes.c_uint32, ctypes.c_uint32]
    _kernel32.VirtualFree.argtypes = [_POINTER, _SIZE, ctypes.c_uint32]
    _kernel32.VirtualProtect.argtypes = [_POINTER, _SIZE, ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint32)]
    _kernel32.FlushInstructionCache.argtypes = [_POINTER, _POINTER, _SIZE]
    _kernel32.GetCurrentProcess.restype = _POINTER
    _RESERVE_COMMIT, _RELEASE, _NO_ACCESS, _READ_WRITE, _READ_EXECUTE = 0x3000, 0x8000, 0x01, 0x04, 0x20

    def map_pages(nbytes: int, alignment: int = PAGE) -> int:
        """Allocate zeroed, writable pages. Windows aligns them to 64 KiB, whatever `alignment` is."""
        address = _kernel32.VirtualAlloc(None, nbytes, _RESERVE_COMMIT, _READ_WRITE)
        if not address:
            raise MemoryError(f"the system refused {nbytes} bytes: error {ctypes.get_last_error()}")
        return int(address)

    def unmap_pages(address: int, nbytes: int) -> None:
        """Release pages of `map_pages`."""
        _kernel32.VirtualFree(address, 0, _RELEASE)

    def _protect(address: int, nbytes: int, rights: int, refused: str) -> None:
        old = ctypes.c_uint32()
        if not _kernel32.VirtualProtect(address, nbytes, rights, ctypes.byref(old)):
            raise OSError(f"the system refused {refused}: error {ctypes.get_last_error()}")

    def make_executable(address: int, nbytes: int) -> None:
        """Change pages from writable to executable, and make the new code visible to the processor."""
        _protect(address, nbytes, _READ_EXECUTE, "executable memory")
        _kernel32.FlushInstructionCache(_kernel32.GetCurrentProcess(), address, nbytes)

    def forbid_access(address: int, nbytes: int) -> None:
        """Make any access to these pages end the process."""
        _protect(address, nbytes, _NO_ACCESS, "to protect memory")

    def advise_huge(address: int, nbytes: int) -> None:
        """Do nothing: Windows requires a privilege for huge pages."""

else:
    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.mmap.restype = _POINTER
    _libc.mmap.argtypes = [_POINTER, _SIZE, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    _libc.munmap.argtypes = [_POINTER, _SIZE]
    _libc.mprotect.argtypes = [_POINTER, _SIZE, ctypes.c_int]
    _libc.madvise.argtypes = [_POINTER, _SIZE, ctypes.c_int]
    _FAILED = 2 ** (8 * ctypes.sizeof(_POINTER)) - 1

    def map_pages(nbytes: int, alignment: int = PAGE) -> int:
        """Allocate zeroed, writable pages at a multiple of `alignment`; raise `MemoryError` if the system refuses."""
        spare = alignment if alignment > PAGE else 0  # map too much, then give back both ends
        nbytes = round_up(nbytes, PAGE)
        start = _libc.mmap(None, nbytes + spare, mmap.PROT_READ | mmap.PROT_WRITE,
                           mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        if start is None or start == _FAILED:
            raise MemoryError(f"the system refused {nbytes} bytes: error {ctypes.get_errno()}")
        address = round_up(start, alignment)
        for at, length in ((start, address - start), (address + nbytes, start + spare - address)):
            if length:
                _libc.munmap(at, length)
        return int(address)

    def unmap_pages(address: int, nbytes: int) -> None:
        """Release pages of `map_pages`."""
        _libc.munmap(address, round_up(nbytes, PAGE))

    def make_executable(address: int, nbytes: int) -> None:
        """Change pages from writable to executable, and make the new code visible to the processor."""
        if _libc.mprotect(address, round_up(nbytes, PAGE), mmap.PROT_READ | mmap.PROT_EXEC):
            raise OSError(ctypes.get_errno(), "the system refused executable memory")
        if sys.platform == "darwin":
            _libc.sys_icache_invalidate.argtypes = [_POINTER, _SIZE]
            _libc.sys_icache_invalidate(address, nbytes)
        # Linux on AArch64 cleans the caches itself when a page becomes executable; x86 keeps them coherent.

    def forbid_access(address: int, nbytes: int) -> None:
        """Make any access to these pages end the process."""
        if _libc.mprotect(address, round_up(nbytes, PAGE), 0):
            raise OSError(ctypes.get_errno(), "the system refused to protect memory")

    def advise_huge(address: int, nbytes: int) -> None:
        """Ask for huge pages: the first touch of 64 MB then takes 8 ms instead of 27."""
        advice = getattr(mmap, "MADV_HUGEPAGE", None)
        if advice is not None:
            _libc.madvise(address, nbytes, advice)


def map_block(nbytes: int) -> int:
    """Allocate pages for a block; a large one begins at a multiple of 2 MiB, with a request for huge pages."""
    large = nbytes >= MEBIBYTE
    address = map_pages(nbytes, HUGE_PAGE if large else PAGE)
    if large:
        advise_huge(address, nbytes)
    return address


_nothing = ctypes.create_string_buffer(128)


class HostMemory(MemoryPool):
    """Memory of this machine, pooled.

    >>> memory = HostMemory()
    >>> block = memory.allocate(1000)
    >>> memory.stats()
    Stats(live=1024, pooled=1047552, peak=1048576)
    >>> memory.release(block)
    >>> memory.empty_cache()
    >>> memory.stats()
    Stats(live=0, pooled=0, peak=1048576)
    """
    on_host = in_parts = True
    most_pooled = 4096 * MEBIBYTE
    small, slab = 64 << 10, SLAB
    nowhere = round_up(ctypes.addressof(_nothing), 64)       # aligned, not null

    def take(self, size: int) -> int | None:
        try:
            return map_block(size)
        except MemoryError:
            return None

    def give_back(self, address: int, size: int) -> None:
        unmap_pages(address, size)

    def copy_in(self, address: int, data: Any) -> None:
        """Copy bytes to an address."""
        view = memoryview(data).cast("B")
        if view.nbytes:
            memoryview((ctypes.c_char * view.nbytes).from_address(address)).cast("B")[:] = view

    def copy_out(self, address: int, nbytes: int) -> bytearray:
        """Copy the bytes at an address."""
        return bytearray((ctypes.c_char * nbytes).from_address(address))

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # not at interpreter exit: module globals may be gone, and the system frees all memory anyway
        if getattr(self, "lock", None) is not None and not finalizing():
            self.empty_cache()
