"""Provide tinygrad.helpers: settings as objects, timing, small functions on tuples. Imports glassgrad where it has the
same.

Settings that glassgrad has are read from it; those that only tinygrad has are read from the environment and have no
effect.
"""

from __future__ import annotations

import contextlib
import cProfile
import functools
import gzip
import hashlib
import itertools
import math
import os
import pathlib
import platform
import pstats
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, TypeVar

from glassgrad.base.settings import SETTINGS as _SETTINGS, Context as _Context, settings

T = TypeVar("T")
OSX, WIN = platform.system() == "Darwin", sys.platform == "win32"


# -- settings ------------------------------------------------------------------------------------------------
@functools.cache
def getenv(key: str, default: Any = 0) -> Any:
    """An environment variable, in the type of its default.

    >>> getenv("SURELY_NOT_SET", 5)
    5
    """
    return type(default)(os.environ.get(key, default))


CI = os.environ.get("CI", "") != ""


@functools.total_ordering
class ContextVar:
    """A setting that compares and counts like its value: DEBUG >= 2."""

    def __init__(self, key: str, default_value: Any = 0):
        self.key, self.default = key, default_value

    @property
    def value(self) -> Any:
        overridden = TinygradContext.own.get(self.key)
        if overridden is not None:
            return overridden
        return getattr(settings, self.key) if self.key in _SETTINGS else \
            type(self.default)(os.environ.get(self.key, self.default))

    @value.setter
    def value(self, value: Any) -> None:
        TinygradContext(**{self.key: value}).__enter__()

    def __bool__(self) -> bool: return bool(self.value)
    def __int__(self) -> int: return int(self.value)
    def __index__(self) -> int: return int(self.value)
    def __eq__(self, other: object) -> bool: return bool(self.value == other)
    def __lt__(self, other: Any) -> bool: return bool(self.value < other)
    def __hash__(self) -> int: return hash(self.key)
    def __repr__(self) -> str: return f"ContextVar({self.key}={self.value})"


class TinygradContext(contextlib.ContextDecorator):
    """with Context(DEBUG=2): ...; settings that only tinygrad has are remembered and have no effect.

    >>> with Context(NOOPT=1, TRACK_MATCH_STATS=0):
    ...     int(NOOPT)
    1
    """
    own: dict[str, Any] = {}

    def __init__(self, *wrong: Any, **settings_: Any):
        self.ours = _Context(*wrong, **{k: v for k, v in settings_.items() if k in _SETTINGS})
        self.theirs = {k: v for k, v in settings_.items() if k not in _SETTINGS}
        self.saved: list[dict[str, Any]] = []

    def __enter__(self) -> TinygradContext:
        self.saved.append(TinygradContext.own)
        TinygradContext.own = {**TinygradContext.own, **self.theirs}
        self.ours.__enter__()
        return self

    def __exit__(self, *problem: object) -> None:
        self.ours.__exit__(*problem)
        TinygradContext.own = self.saved.pop()


Context = TinygradContext
DEBUG, NOOPT, BEAM, VIZ, TRAINING = (ContextVar(n) for n in ("DEBUG", "NOOPT", "BEAM", "VIZ", "TRAINING"))
JIT, IMAGE, WINO, FLOAT16, PROFILE, LRU, RING, TRACEMETA, SPLIT_REDUCEOP = (ContextVar(n, d) for n, d in (
    ("JIT", 1), ("IMAGE", 0), ("WINO", 0), ("FLOAT16", 0), ("PROFILE", 0), ("LRU", 1), ("RING", 1), ("TRACEMETA", 1),
    ("SPLIT_REDUCEOP", 1)))


# -- time ----------------------------------------------------------------------------------------------------
class Timing(contextlib.ContextDecorator):
    """with Timing("loading "): prints how long the block took.

    >>> with Timing(enabled=False) as t: pass
    >>> t.et >= 0
    True
    """

    def __init__(self, prefix: str = "", on_exit: Callable[[int], str] | None = None, enabled: bool = True):
        self.prefix, self.on_exit, self.enabled, self.et = prefix, on_exit, enabled, 0

    def __enter__(self) -> Timing:
        self.start = time.perf_counter_ns()
        return self

    def __exit__(self, *problem: object) -> None:
        self.et = time.perf_counter_ns() - self.start
        if self.enabled:
            print(f"{self.prefix}{self.et * 1e-6:6.2f} ms" + (self.on_exit(self.et) if self.on_exit else ""))


class Profiling(contextlib.ContextDecorator):
    """with Profiling(): prints where the block's Python time went."""

    def __init__(self, enabled: bool = True, sort: str = "cumtime", frac: float = 0.2, fn: str | None = None,
                 ts: float = 1):
        self.enabled, self.sort, self.frac, self.fn = enabled, sort, frac, fn

    def __enter__(self) -> Profiling:
        self.profile = cProfile.Profile()
        if self.enabled:
            self.profile.enable()
        return self

    def __exit__(self, *problem: object) -> None:
        if self.enabled:
            self.profile.disable()
            if self.fn:
                self.profile.dump_stats(self.fn)
            pstats.Stats(self.profile).sort_stats(self.sort).print_stats(self.frac)


def tqdm(iterable: Iterable[Any] | None = None, desc: str = "", **options: Any) -> Any:
    """Show a progress bar: for x in tqdm(list); the tqdm library's."""
    from tqdm import tqdm as bar
    options.pop("rate", None)
    return bar(iterable, desc=desc, **options)


def trange(n: int, **options: Any) -> Any:
    """A range with a progress bar."""
    return tqdm(range(n), **options)


# -- text ----------------------------------------------------------------------------------------------------
_COLORS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"]


def colored(text: str, color: str | None, background: bool = False) -> str:
    """Text in a terminal's color; capital letters are bright.

    >>> colored("x", None)
    'x'
    """
    if color is None:
        return text
    bright, base = color.isupper(), _COLORS.index(color.lower())
    return f"\033[{10 * background + 60 * bright + 30 + base}m{text}\033[0m"


def ansistrip(text: str) -> str: return re.sub("\x1b\\[(K|.*?m)", "", text)
def ansilen(text: str) -> int: return len(ansistrip(text))


# -- small functions -----------------------------------------------------------------------------------------
def prod(values: Iterable[Any]) -> Any: return functools.reduce(lambda x, y: x * y, values, 1)
def dedup(values: Iterable[T]) -> list[T]: return list(dict.fromkeys(values))
def argsort(values: Sequence[Any]) -> list[int]: return sorted(range(len(values)), key=values.__getitem__)
def all_same(values: Sequence[Any]) -> bool: return all(x == values[0] for x in values)
def all_int(values: Sequence[Any]) -> bool: return all(isinstance(x, int) for x in values)
def flatten(values: Iterable[Iterable[T]]) -> list[T]: return list(itertools.chain.from_iterable(values))
def merge_dicts(parts: Iterable[dict[Any, Any]]) -> dict[Any, Any]:
    return {k: v for part in parts for k, v in part.items()}


def make_tuple(value: Any, count: int) -> tuple[Any, ...]:
    return (value,) * count if isinstance(value, int) else tuple(value)


def make_pair(value: Any, count: int = 2) -> tuple[Any, ...]: return make_tuple(value, count)
def round_up(number: int, amount: int) -> int: return -(-number // amount) * amount
def round_down(number: int, amount: int) -> int: return number // amount * amount
def ceildiv(number: Any, amount: Any) -> Any: return -(number // -amount)
def next_power2(number: int) -> int: return 1 if number <= 1 else 1 << (number - 1).bit_length()
def lo32(number: int) -> int: return number & 0xFFFFFFFF
def hi32(number: int) -> int: return number >> 32
def cdiv(x: int, y: int) -> int: return abs(x) // abs(y) * (1 if x * y > 0 else -1) if y else 0
def cmod(x: int, y: int) -> int: return x - cdiv(x, y) * y
def polyN(x: Any, coefficients: Sequence[float]) -> Any:
    return functools.reduce(lambda total, c: total * x + c, coefficients, 0.0)


def temp(name: str, **_: Any) -> str: return (pathlib.Path(tempfile.gettempdir()) / name).as_posix()


def argfix(*values: Any) -> tuple[Any, ...]:
    """Return the same tuple for f(2, 3) and f((2, 3)).

    >>> argfix(2, 3), argfix((2, 3))
    ((2, 3), (2, 3))
    """
    return tuple(values[0]) if values and isinstance(values[0], (tuple, list)) else values


def fully_flatten(value: Any) -> list[Any]:
    """Nested lists as one flat list.

    >>> fully_flatten([1, [2, [3]]])
    [1, 2, 3]
    """
    if not hasattr(value, "__len__") or isinstance(value, str):
        return [value]
    return [x for part in value for x in fully_flatten(part)]


def get_shape(value: Any) -> tuple[int, ...]:
    """The sizes of nested lists.

    >>> get_shape([[1, 2], [3, 4]])
    (2, 2)
    """
    if not isinstance(value, (list, tuple)):
        return ()
    return (len(value), *(get_shape(value[0]) if value else ()))


def partition(values: Iterable[T], test: Callable[[T], bool]) -> tuple[list[T], list[T]]:
    """Return the values that pass a test, and the others."""
    yes: list[T] = []
    no: list[T] = []
    for value in values:
        (yes if test(value) else no).append(value)
    return yes, no


def unwrap(value: T | None) -> T:
    """Return the value, which must not be None."""
    assert value is not None
    return value


def get_single_element(values: Sequence[T]) -> T:
    """The only element of a sequence."""
    assert len(values) == 1, f"there are {len(values)}"
    return values[0]


def strides_for_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The row-major strides of a shape, in elements."""
    return tuple(math.prod(shape[i + 1:]) if n != 1 else 0 for i, n in enumerate(shape))


def fetch(url: str, name: Any = None, subdir: str | None = None, gunzip: bool = False,
          allow_caching: bool = True) -> pathlib.Path:
    """Download a file into the user's cache folder, unless it is there; return its path."""
    if url.startswith(("/", ".")):
        return pathlib.Path(url)
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
    folder = cache / "glassgrad" / "downloads" / (subdir or "")
    target = pathlib.Path(name) if name is not None and ("/" in str(name)) else \
        folder / (name or hashlib.sha256(url.encode()).hexdigest() + (".gunzip" if gunzip else ""))
    if not (allow_caching and target.is_file()):
        target.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(url, timeout=60) as answer:
            data = answer.read()
        part = target.with_name(target.name + f".{os.getpid()}.part")
        part.write_bytes(gzip.decompress(data) if gunzip else data)
        part.replace(target)
    return target


__all__ = [name for name, value in list(globals().items()) if not name.startswith("_") and name != "T"
           and not isinstance(value, ModuleType) and getattr(value, "__module__", __name__) == __name__]
