"""Provide more of tinygrad.helpers: integers, text and memory. In, out: plain values. Does not depend on tensors."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import sys
import time
from collections.abc import Iterator
from typing import Any, NoReturn

from glassgrad.compat.tinygrad.helpers import colored

__all__ = ["data64", "data64_le", "i2u", "getbits", "floordiv", "floormod", "time_to_str", "size_to_str", "pluralize",
           "to_mv", "from_mv", "mv_address", "flat_mv", "perf_counter_us", "count", "panic", "disable_gc",
           "colorize_float", "is_numpy_ndarray", "profile_marker", "stderr_log"]

count = itertools.count


# -- numbers -------------------------------------------------------------------------------------------------
def data64(data: Any) -> tuple[Any, Any]:
    """A 64-bit number as two of 32 bits, the high one first.

    >>> data64(0x1234567890), data64_le(0x1234567890)
    ((18, 878082192), (878082192, 18))
    """
    return data >> 32, data & 0xFFFFFFFF


def data64_le(data: Any) -> tuple[Any, Any]:
    """A 64-bit number as two of 32 bits, the low one first."""
    return data & 0xFFFFFFFF, data >> 32


def i2u(bits: int, value: int) -> int:
    """The bits of a signed integer, read as unsigned.

    >>> i2u(8, -1), i2u(8, 5)
    (255, 5)
    """
    return value % (1 << bits)


def getbits(value: int, start: int, end: int) -> int:
    """The bits from start to end, both included.

    >>> getbits(0b11010110, 1, 3)
    3
    """
    return (value >> start) % (1 << (end - start + 1))


def floordiv(x: Any, y: Any) -> Any:
    """x // y, rounded down."""
    return x // y


def floormod(x: Any, y: Any) -> Any:
    """x % y, with the sign of y."""
    return x % y


# -- words ---------------------------------------------------------------------------------------------------
def time_to_str(t: float, w: int = 8) -> str:
    """Seconds as text, in milliseconds or microseconds.

    >>> time_to_str(0.012), time_to_str(3e-5)
    ('   12.00ms', '   30.00us')
    """
    return f"{t * 1e3:{w}.2f}ms" if t > 1e-3 else f"{t * 1e6:{w}.2f}us"


def size_to_str(size: float) -> str:
    """Bytes as text, in the largest unit of which there is at least 1.

    >>> size_to_str(10), size_to_str(2000)
    ('10 B', '1.95 KB')
    """
    for step, unit in ((30, "GB"), (20, "MB"), (10, "KB")):
        if size >= 1 << step:
            return f"{size / (1 << step):.2f} {unit}"
    return f"{size} B"


def pluralize(word: str, number: int) -> str:
    """A count and a noun, in the plural unless the count is 1.

    >>> pluralize("cat", 1), pluralize("cat", 2)
    ('1 cat', '2 cats')
    """
    return f"{number} {word}{'' if number == 1 else 's'}"


def colorize_float(x: float) -> str:
    """A ratio of times as colored text: green for a speed-up, red for a slowdown.

    >>> colorize_float(1.0)[5:-4]
    '  1.00x'
    """
    return colored(f"{x:6.2f}x", "green" if x < 0.75 else "red" if x > 1.15 else "yellow")


def stderr_log(msg: str) -> None:
    """Write to standard error and flush, without a newline."""
    print(msg, end="", file=sys.stderr, flush=True)


def profile_marker(name: str, color: str = "gray") -> None:
    """A mark in tinygrad's profile; no effect here."""


# -- memory --------------------------------------------------------------------------------------------------
def to_mv(ptr: int, size: int) -> memoryview:
    """The bytes at an address."""
    return memoryview((ctypes.c_uint8 * size).from_address(ptr)).cast("B")


def from_mv(mv: memoryview, to_type: Any = ctypes.c_char) -> Any:
    """Memory as a ctypes array."""
    return (to_type * (mv.nbytes // ctypes.sizeof(to_type))).from_buffer(mv)


def mv_address(mv: memoryview) -> int:
    """The address of memory.

    >>> kept = bytearray(b"abc")
    >>> bytes(to_mv(mv_address(memoryview(kept)), 3))
    b'abc'
    """
    return ctypes.addressof(from_mv(mv))


def flat_mv(mv: memoryview) -> memoryview:
    """Memory as a flat view of bytes."""
    return mv.cast("B") if mv.nbytes else mv


# -- running -------------------------------------------------------------------------------------------------
def perf_counter_us() -> float:
    """A clock, in microseconds."""
    return time.perf_counter_ns() / 1000


def is_numpy_ndarray(x: Any) -> bool:
    """Whether this is a NumPy array, found out without importing NumPy.

    >>> is_numpy_ndarray([1])
    False
    """
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(x, numpy.ndarray)


def panic(problem: BaseException | None = None) -> NoReturn:
    """Raise, as an expression."""
    raise problem if problem is not None else RuntimeError("panic")


@contextlib.contextmanager
def disable_gc() -> Iterator[None]:
    """Switch garbage collection off inside the block."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
