"""Define every setting, with its type, in one place. In: environment variables and `Context`. Out: `settings.NAME`.

A setting's value is that of the innermost `Context` that names it, else the environment variable of the same name (read
when it is needed, so a script may set `os.environ` after the import), else the default below. `docs/settings.md`
describes each of them, and a test compares the two.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from glassgrad.base.errors import InputError

STARTED = time.time()           # before any file of the compiler and the runtime is loaded


class Setting(NamedTuple):
    """One setting: its type is its default's type; `doc` is one sentence. It is a descriptor, because Python calls
    `__get__` of a class attribute at once, but a `__getattr__` only after it has raised and caught an error."""
    name: str
    default: int | float | str
    doc: str
    or_file: bool = False       # whether the name of a file may be given instead

    def __get__(self, instance: object, owner: type) -> Any:
        """Return the present value."""
        name, overridden = self.name, _overrides.values
        if name in overridden:
            return overridden[name]
        text = os.environ.get(name) if _encoded[name] in _raw else None
        return self.default if text is None else _parse(self, text)


SETTINGS: dict[str, Setting] = {s.name: s for s in [
    Setting("DEBUG", 0, "How much to show: 1 kernels and time, 2 a line per kernel, 3 source, 4 every pass."),
    Setting("NOOPT", 0, "1 switches off algebraic rewriting and kernel optimization: one plain loop per axis."),
    Setting("CHECK", 0, "1 runs every kernel against the NumPy interpreter; names the wrong pass, rule or move."),
    Setting("SANITIZE", 0, "1 reports a NaN or an infinity with the op, line, layer and index where it was made."),
    Setting("BEAM", 0, "Width of the search for faster kernels, made once for each and kept; 0 uses the recipe."),
    Setting("BEAM_SECONDS", 10.0, "Time the search may take per kernel; 0 only uses what is known."),
    Setting("VIZ", 0, "1 shows the program in a browser when it ends; VIZ=out.html writes the same page to a file.",
            or_file=True),
    Setting("TRAINING", 0, "1 switches dropout and batchnorm to their training behaviour."),
    Setting("DEV", "", "Device to use by default, by name."),
    Setting("THREADS", 0, "Worker threads of the CPU devices; 0 takes the cores this process may use."),
    Setting("CACHE", 1, "0 neither reads nor writes the disk cache of compiled kernels and schedules."),
    Setting("CACHE_DIR", "", "Folder of the disk cache; empty takes the user's cache folder."),
    Setting("CACHE_MB", 1024, "Size in MiB above which the oldest entries of the disk cache are removed."),
    Setting("MEMORY_MB", 0, "Most MiB of tensors on a device, else MemoryLimitError; 0 leaves it to the system."),
    Setting("POOL_MB", -1, "Most MiB of freed buffers that each device keeps; -1: 4096 in host memory, all on a GPU."),
    Setting("GUARD_PAGES", 0, "1 puts CPU tensors between forbidden pages, to find stray accesses; 2 to the byte."),
    Setting("DYNAMIC", 1, "0 compiles every new size for itself, even where sizes keep changing."),
    Setting("CHECK_INDEX", 1, "0 stops checking that tensor indices are in range; 2 waits for each check on GPUs too."),
    Setting("DISABLE_RULES", "", "Comma-separated names of rewrite rules to leave out, to bisect a wrong result."),
    Setting("CPU_FEATURES", "", "Changes the CPU's features, as LLVM spells them (`-avx512f,+avx2`), to try others."),
    Setting("MATRIX_UNIT", 1, "0 multiplies bfloat16 and int8 in vectors, even where the CPU has a matrix unit (AMX)."),
    Setting("TF32", 0, "1 lets matrix units of NVIDIA's GPUs multiply float32, rounded to 10 bits of its mantissa."),
    Setting("WINOGRAD", 1, "0 multiplies large convolutions of float32 on GPUs tap by tap, not tile by tile."),
    Setting("GPU_GRAPH", 1, "0 starts the kernels of a jitted call one by one on CUDA and AMD, not as one graph."),
    Setting("ONLINE_SOFTMAX", 1, "softmax(q @ k.T) @ v in one pass: 0 never, 1 where scores are many, 2 of any size."),
    Setting("SEED", -1, "Seed of the random numbers when `manual_seed` was not called; -1 takes one from the system."),
]}

# Minimum of each setting that is an amount; switches have none
LEAST: dict[str, int] = {"BEAM": 0, "BEAM_SECONDS": 0, "THREADS": 0, "CACHE_MB": 0, "MEMORY_MB": 0, "POOL_MB": -1,
                         "SEED": -1}

# Settings that decide which kernels a graph becomes; they are part of the key of every cache of kernels
KERNEL_SETTINGS = ("NOOPT", "DISABLE_RULES", "CPU_FEATURES", "MATRIX_UNIT", "TF32", "WINOGRAD", "ONLINE_SOFTMAX",
                   "BEAM", "SANITIZE", "THREADS")

# Functions that are called with a setting's value when a Context sets it; what they return is called at its exit
on_entering: dict[str, Callable[[Any], Callable[[], Any]]] = {}

_MOST_STATES = 8     # states that are kept, because programs alternate between a few


class State:
    """A snapshot of overrides and environment, which decide every setting. Equal snapshots are one object, so they can
    be compared with `is`."""
    __slots__ = ("overrides", "variables", "changes", "kernel_mode", "debug", "check", "sanitize", "dynamic",
                 "is_watched")

    def __init__(self, overrides: dict[str, Any], variables: dict[Any, Any]):
        self.overrides, self.variables = overrides, variables
        self.changes = -1               # of the environment, when it was last found to be as in this snapshot
        now = {name: getattr(settings, name) for name in SETTINGS}     # read all, to check all values
        self.kernel_mode = tuple([now[name] for name in KERNEL_SETTINGS])
        self.debug, self.check = now["DEBUG"], now["CHECK"]            # every run reads these
        self.sanitize, self.dynamic = now["SANITIZE"], now["DYNAMIC"]
        self.is_watched = bool(self.debug or self.check)               # each kernel of a run is shown or checked


class _Overrides(threading.local):
    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.states: list[State] = []                  # the latest first
        self.latest: State | None = None               # the state with these overrides, if it is known


_overrides = _Overrides()


def _parse(setting: Setting, text: str) -> Any:
    kind = type(setting.default)
    try:
        value = kind(text) if text != "" or kind is str else setting.default
    except ValueError:
        if setting.or_file:
            return text
        raise InputError(f"the setting {setting.name} has a value that cannot be read", given=f"{setting.name}={text}",
                         expected=f"a value of type {kind.__name__}, such as {setting.name}={setting.default}",
                         fix="correct the environment variable") from None
    _check_least(setting, value, given=f"{setting.name}={text}", fix="correct the environment variable")
    return value


def _check_least(setting: Setting, value: Any, given: str, fix: str) -> None:
    least = LEAST.get(setting.name)
    if least is not None and not value >= least:        # "not >=" refuses NaN too
        raise InputError(f"the setting {setting.name} cannot be that small", given=given,
                         expected=f"{least} or more. {setting.doc}", fix=fix)


class Settings:
    """Reads settings: `settings.DEBUG`. See `SETTINGS` for the list.

    >>> with Context(DEBUG=2):
    ...     settings.DEBUG
    2
    """
    vars().update(SETTINGS)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"there is no setting {name!r}; the settings are {', '.join(SETTINGS)}")


class _CountedVariables(dict[Any, Any]):
    """The dict that os.environ wraps, with the number of its changes: each call looks whether a variable has changed,
    and to compare all variables takes up to 4 us for a hundred of them."""
    __slots__ = ("changes",)
    changes: int

    @classmethod
    def of_process(cls) -> _CountedVariables:
        """Return the variables of this process. Their dict is replaced by one that counts, when first asked for."""
        wrappers: list[Any] = [os.environ, *([os.environb] if os.supports_bytes_environ else [])]
        if not isinstance(wrappers[0]._data, cls):
            counted = cls(wrappers[0]._data)
            counted.changes = 0
            for wrapper in wrappers:
                wrapper._data = counted
        found: _CountedVariables = wrappers[0]._data
        return found


def _counting(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of dict that counts its calls, once they are done: who sees the new count sees the new value."""
    @functools.wraps(method)
    def change(self: _CountedVariables, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        finally:
            self.changes += 1
    return change


for _name in ("__setitem__", "__delitem__", "__ior__", "clear", "pop", "popitem", "setdefault", "update"):
    setattr(_CountedVariables, _name, _counting(getattr(dict, _name)))

# with the names encoded in advance: settings are read many times a step
_raw = _CountedVariables.of_process()
_encoded = {name: os.environ.encodekey(name) for name in SETTINGS}
settings = Settings()


def current_state() -> State:
    """Return the snapshot of all settings. It is the same object until a setting changes, so that anything derived from
    settings can be cached with it.

    >>> before = current_state()
    >>> with Context(NOOPT=1, DEBUG=2): current_state() is before, current_state().debug
    (False, 2)
    >>> current_state() is before
    True
    """
    latest = _overrides.latest
    if latest is None or latest.changes != _raw.changes:
        latest = _overrides.latest = _known_state(_overrides.values)
    return latest


def _known_state(values: dict[str, Any]) -> State:
    """Return the state with these overrides and the present variables: one of the latest, or a new one."""
    states, changes, variables = _overrides.states, _raw.changes, dict(_raw)      # changes counted later are seen later
    found = next((known for known in states if known.overrides == values and known.variables == variables), None)
    if found is None:
        found = State(values, variables)
    found.changes = changes
    states[:] = [found, *[known for known in states if known is not found]][:_MOST_STATES]
    return found


def kernel_mode() -> tuple[Any, ...]:
    """Return the present values of `KERNEL_SETTINGS`.

    >>> with Context(NOOPT=1): kernel_mode() != Context(NOOPT=0)(kernel_mode)()
    True
    """
    return current_state().kernel_mode


def under_these_settings(function: Callable[[], Any]) -> Callable[[], Any]:
    """Return the function, for another thread to call, under this thread's settings. (A Context belongs to the thread
    that entered it.)

    >>> with Context(NOOPT=1): later = under_these_settings(lambda: settings.NOOPT)
    >>> later(), settings.NOOPT
    (1, 0)
    """
    values = _overrides.values

    def call() -> Any:
        before = _overrides.values, _overrides.latest
        _overrides.values, _overrides.latest = values, None
        try:
            return function()
        finally:
            _overrides.values, _overrides.latest = before
    return call


class Context:
    """Sets settings for a block or a function: `with Context(DEBUG=2, NOOPT=1): ...`

    >>> @Context(NOOPT=1)
    ... def plain(): return settings.NOOPT
    >>> plain(), settings.NOOPT
    (1, 0)
    """

    def __init__(self, *wrong: Any, **changes: Any):
        if wrong:
            raise InputError("Context sets settings; it does not record operations for backward",
                             given=f"Context({', '.join(type(w).__name__ for w in wrong)})",
                             expected="keyword arguments, such as Context(DEBUG=2)",
                             fix="for a custom gradient write a subclass of glassgrad.Function "
                                  "with forward and backward")
        for name, value in changes.items():
            if name not in SETTINGS:
                raise InputError("Context was given a setting that does not exist", given=f"{name}={value!r}",
                                 expected=f"one of {', '.join(SETTINGS)}", fix="check the spelling")
            setting = SETTINGS[name]
            kind = type(setting.default)
            if setting.or_file and isinstance(value, str):
                continue
            if not (isinstance(value, kind) or (kind is not str and isinstance(value, (bool, int, float)))):
                raise InputError("Context was given a value of the wrong type", given=f"{name}={value!r}",
                                 expected=f"a value of type {kind.__name__}",
                                 fix=f"write {name}={SETTINGS[name].default!r}")
            changes[name] = kind(value)
            _check_least(SETTINGS[name], changes[name], given=f"Context({name}={value!r})",
                         fix=f"write {name}={SETTINGS[name].default!r}, the default, or more")
        self.changes = changes
        self.saved: list[tuple[dict[str, Any], State | None, list[Callable[[], Any]]]] = []

    def __enter__(self) -> Context:
        ends = [on_entering[name](self.changes[name]) for name in self.changes.keys() & on_entering.keys()]
        self.saved.append((_overrides.values, _overrides.latest, ends))
        _overrides.values, _overrides.latest = {**_overrides.values, **self.changes}, None
        return self

    def __exit__(self, *_: object) -> None:
        _overrides.values, _overrides.latest, ends = self.saved.pop()
        for end in ends:
            end()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def within(*args: Any, **kwargs: Any) -> Any:
            with Context(**self.changes):
                return function(*args, **kwargs)
        within.__name__, within.__doc__ = function.__name__, function.__doc__
        return within
