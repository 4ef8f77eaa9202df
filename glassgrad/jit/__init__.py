"""Capture what a function launches, then replay it as one native call. In: a function of tensors. Out: `TinyJit`.

A JIT that cannot lie:
- The first calls run as they are and are traced; two traces must launch the same work, or the function is refused with
  the line that differs. Only then are calls replayed.
- A call is replayed only if its arguments' shapes, types, devices and plain values, whatever it sees in its closure,
  its globals and its objects (guards.py), and the settings are those of the trace, and whatever it asked of its
  symbolic lengths (`if n > 5`) has the same answer; otherwise it is traced anew.
  A function that is traced anew again and again, because something in sight always changes, says so once.
- Tensors it reads without being handed them (weights) are looked up at each call; tensors it leaves changed (weights,
  gradients, running means) are changed by a replay in the same way. Results are the caller's to keep.
- Where tensors come and go (`self.hidden = cell(x, self.hidden)`, or a user who puts another one there), a replay reads
  what is there when it begins, and puts a new one there as the function does (replaced_state.py).
- A call that fails at a bad index leaves all tensors as they were; only rows of a large cache (`cache[n] = row`) may
  hold what it wrote before it looked.
- A tensor that is handed in twice, or that the function also sees by itself, is one tensor: such a call has a capture
  of its own (of these the 64 used last are kept). Where that is out of sight, and one of the two is changed, the call
  is refused. A result that is returned twice, or also put somewhere, is one tensor too; one that is a view of a weight
  shows what the weight was.
- Random numbers are new at each call. Reading values inside is refused, and so is a function that changes plain values
  which it can see (a counter): a replay runs no Python.
- Gradients left lazy on tensors that did not ask for one (requires_grad is not True) are dropped, not computed.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from glassgrad.base.errors import JitError
from glassgrad.base.settings import State, current_state, kernel_mode, settings
from glassgrad.compiler.graph.dtype import DType
from glassgrad.compiler.graph.symbolic import Symbol
from glassgrad.engine.capture import recording
from glassgrad.engine.memory_plan import MemoryUse
from glassgrad.jit.buffer_substitution import Names
from glassgrad.jit.captured import STALE, Captured
from glassgrad.jit.compare_traces import Work, difference, narrow, refusal
from glassgrad.jit.methods import Bound, Methods
from glassgrad.jit.object_paths import Content, Place
from glassgrad.jit.replaced_state import describe
from glassgrad.jit.tracing import Traced
from glassgrad.runtime.devices import Device
from glassgrad.tensor.autograd import autocast as precision
from glassgrad.tensor.autograd.no_grad import inside
from glassgrad.tensor.tensor import Tensor

__all__ = ["TinyJit", "jit"]


class _Module(ModuleType):
    """`glassgrad.jit` is this package and, called, the decorator: `@glassgrad.jit`."""

    def __call__(self, function: Callable[..., Any]) -> TinyJit:
        return TinyJit(function)


sys.modules[__name__].__class__ = _Module

_MOST_TRACES = 4           # of one combination of arguments before a function that keeps changing is refused
_MOST_VARIANTS = 8         # replays of one combination, for surroundings that change back and forth
_MOST_COMBINATIONS = 64    # a step number among the arguments makes every call a new one; also of one combination, for
                           # tensors that the function sees as well (`for w in weights: step(w)`)
_MANY_CAPTURES = 16        # captures after which a function that is hardly ever replayed says so


class TinyJit:
    """Run a function's kernels again without running its Python.

    >>> @TinyJit
    ... def double(x): return x * 2
    >>> [double(Tensor([float(i)])).item() for i in range(4)]
    [0.0, 2.0, 4.0, 6.0]
    """

    def __new__(cls, function: Callable[..., Any] | None = None, **options: Any) -> Any:
        """@TinyJit, or @TinyJit(prune=True), which is the same: launches that nobody reads are always dropped."""
        return functools.partial(cls, **options) if function is None else super().__new__(cls)

    def __init__(self, function: Callable[..., Any], prune: bool = True, optimize: bool = True):
        if not callable(function):
            raise JitError("TinyJit wraps a function", given=repr(function), expected="something that can be called",
                           fix="write @TinyJit above a def")
        self.function = self.__wrapped__ = function
        self.__name__ = getattr(function, "__name__", "function")
        self.__qualname__ = getattr(function, "__qualname__", self.__name__)
        self.__module__ = getattr(function, "__module__", __name__)
        self.__doc__ = function.__doc__
        self._known: dict[Any, _Combination] = {}
        self._latest: tuple[list[Any], _Combination] | None = None
        self._circumstances = _Circumstances()
        self._methods = Methods()
        self._captured: Callable[[TinyJit], None] | None = None     # told about each capture
        self._lock = threading.RLock()         # a replay's addresses are those of one call at a time
        self._replayed = 0                     # calls since the last notice
        self._captures: dict[str, int] = {}    # how often each reason led to one
        self._told = False

    def __get__(self, instance: Any, owner: Any) -> TinyJit:
        if instance is None:
            return self
        return self._methods.of(instance, self._for_method, self.function)      # type: ignore[no-any-return]

    def _for_method(self, bound: Bound) -> TinyJit:
        made, methods = TinyJit(bound), self._methods
        made._captured = lambda jit: methods.captured(bound.instance(), jit)
        return made

    def __reduce__(self) -> Any:
        """A copy, or a pickle, is a jit of the same function without captures, which hold addresses. One that a module
        knows by its name is that name, as functions are."""
        found: Any = sys.modules.get(self.__module__)
        for name in self.__qualname__.split("."):
            found = getattr(found, name, None)
        return self.__qualname__ if found is self else (TinyJit, (self.function,))

    def reset(self) -> None:
        """Forget every capture."""
        self._known.clear()
        self._latest = None

    @property
    def captured(self) -> bool:
        """Whether any combination of arguments is replayed by now."""
        return any(c.replays for c in self._known.values())

    @property
    def fxn(self) -> Callable[..., Any]:
        """The function itself, by tinygrad's name."""
        return self.function

    @property
    def jit_cache(self) -> list[Any]:
        """The kernels that a replay of the latest capture launches; empty before there is one."""
        found = [replay.replay.items for c in self._known.values() for replay in c.replays[:1]]
        return list(found[-1]) if found else []

    @property
    def memory(self) -> MemoryUse | None:
        """The memory that a replay needs, in bytes: `.peak`, and its parts; the most of those captured, None before."""
        found = [replay.replay.memory for c in self._known.values() for replay in c.replays]
        return max(found, key=lambda use: use.peak, default=None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if recording() is not None:
            return self.function(*args, **kwargs)          # inside another capture: part of it
        tensors: list[Tensor] = []
        objects: list[Any] = []
        symbols: Names = {}
        form: list[Any] = []
        for value in args:
            if isinstance(value, Tensor) and not value.uop.symbolic:    # as `describe`, where it matters most
                node = value.uop
                tensors.append(value)
                form += (value.__class__, node.shape, node.dtype, node.device or value.device, value._requires_grad)
            else:
                describe(value, form, tensors, objects, symbols)
        if kwargs:
            form.append("**")
            describe(kwargs, form, tensors, objects, symbols)
        ids = {*map(id, tensors)}
        if len(ids) < len(tensors):                                     # one tensor, handed in more than once
            first: dict[int, int] = {}
            form += ("again", *[first.setdefault(id(t), i) for i, t in enumerate(tensors)])
            tensors = [tensors[i] for i in first.values()]
        with self._lock:
            circumstances = self._circumstances
            circumstances.look()
            form.append(circumstances.key)
            latest = self._latest
            if latest is not None and latest[0] == form:
                combination = latest[1]
            else:
                combination = self._find(form, objects)
            replays = combination.replays
            if replays and not circumstances.check:        # CHECK references kernel by kernel, in a trace
                number = circumstances.number
                for replay in replays:
                    result = replay.call(tensors, ids, symbols, number)
                    if result is not STALE:
                        if replay is not replays[0]:       # the one that fits is tried first next time
                            replays.remove(replay)
                            replays.insert(0, replay)
                        self._replayed += 1
                        return result
                self._say_why(replays[0].why, circumstances.debug)
            try:
                return combination.trace(args, kwargs, list(symbols))
            finally:
                if self._captured is not None:
                    self._captured(self)

    def _find(self, form: list[Any], objects: list[Any]) -> _Combination:
        """The combination of arguments that looks like this; a new one if there is none."""
        key = tuple(form)
        found = self._known.get(key)
        if found is None:
            if self._known:
                self._say_why("", self._circumstances.debug)
            if len(self._known) >= _MOST_COMBINATIONS:
                self._known.pop(next(iter(self._known)))
            # kept: an array that is handed in may change, and another object must not get the id of one of these
            form = [part.kept() if isinstance(part, Content) else part for part in form]
            found = self._known[tuple(form)] = _Combination(self.function, objects)
        self._latest = (form, found)
        return found

    def _say_why(self, why: str, debug: int) -> None:
        """Why there is another capture: at DEBUG=1 always, and once where captures outnumber replays."""
        if debug >= 1:
            print(f"jit: {self.__name__} is captured anew: {why}" if why else
                  f"jit: {self.__name__} is captured for a new combination of arguments")
        cause = why.split(" is no longer ")[0] if why else "its arguments"
        count = self._captures[cause] = self._captures.get(cause, 0) + 1
        if count >= _MANY_CAPTURES and self._replayed < count and not self._told:
            self._told = True
            print(f"glassgrad: jit: {self.__name__} was captured {count} times and hardly ever replayed: "
                  + (f"{cause} changes between calls; keep it in a tensor, or out of sight of the function" if why else
                     "its plain arguments or shapes change between calls; hand in what changes as a tensor"),
                  file=sys.stderr)


def jit(function: Callable[..., Any]) -> TinyJit:
    """The same as TinyJit."""
    return TinyJit(function)


class _Circumstances:
    """The settings that decide what a call launches, read again only when one of them may have changed."""

    def __init__(self) -> None:
        self._state: State | None = None
        self._devices = -1
        self._precision: DType | None = None
        self._no_grad = False
        self.key: tuple[Any, ...] = ()
        self.check = self.debug = 0
        self.number = 0                   # counts the changes

    def look(self) -> None:
        state, devices, chosen, no_grad = current_state(), Device.version, precision.current(), inside()
        if state is not self._state or devices != self._devices or chosen is not self._precision \
                or no_grad is not self._no_grad:
            self._state, self._devices, self._precision, self._no_grad = state, devices, chosen, no_grad
            self.key = (kernel_mode(), settings.CHECK_INDEX, Tensor.training, chosen, Device.DEFAULT,
                        Device.registered, no_grad)
            self.check, self.debug = settings.CHECK, settings.DEBUG
            self.number += 1


class _Combination:
    """One combination of arguments: its traces, and a replay for each two of them that agree."""

    def __init__(self, function: Callable[..., Any], objects: list[Any]):
        self.function, self.objects = function, objects     # held: another object must not get the id of one of them
        self.traces: dict[tuple[tuple[int, int], ...], list[Work]] = {}      # by arguments that it sees by itself
        self.passing: dict[tuple[int, Any], Place] = {}                      # where tensors come and go
        self.read_only: list[tuple[Place, weakref.ref[Tensor]]] = []         # where it saw tensors it left alone
        self.replays: list[Captured] = []

    def trace(self, args: Any, kwargs: Any, symbols: list[Symbol]) -> Any:
        """Run the function itself; once two runs were the same work, later calls are replays."""
        method = self.function if isinstance(self.function, Bound) else None
        objects = [*self.objects, method.instance()] if method is not None else self.objects
        self.passing.update((place.key, place) for place, was in self.read_only if place.now() is not was())
        traced = Traced(self.function, objects, args, kwargs, symbols, self.passing.keys())
        self.read_only = traced.read_only
        self.passing = {place.key: place for place in traced.surroundings.guests}
        key = tuple((i, id(reference())) for i, reference in traced.itself.items())
        if key not in self.traces and len(self.traces) >= _MOST_COMBINATIONS:
            self.traces.clear()
        traces = self.traces.setdefault(key, [])
        work = Work(traced)
        differences = [difference(traced, work, earlier) for earlier in traces]
        if "" in differences:
            if traced.faults:
                traces.clear()
                raise JitError("a replay of this function would not do what it does", given=traced.faults[0],
                               expected="a function that only computes tensors: later calls replay its kernels, not "
                               "its Python", fix="do that outside, keep it in a tensor, or leave the jit off")
            narrow(work, traces.pop(differences.index("")))
            self._keep(Captured(traced))
        elif len(traces) + 1 >= _MOST_TRACES:
            traces.clear()
            raise refusal("; ".join([differences[-1], *traced.faults[:1]]))
        else:
            traces.append(work)
        return traced.result

    def _keep(self, captured: Captured) -> None:
        """One more replay; of those for the same tensors that the function also sees, and of all, the latest used."""
        self.replays.insert(0, captured)
        alike = [replay for replay in self.replays if replay.handed_of_its_own() == captured.handed_of_its_own()]
        dropped = [*alike[_MOST_VARIANTS:], *[r for r in self.replays[_MOST_COMBINATIONS:] if r not in alike]]
        self.replays = [replay for replay in self.replays if replay not in dropped]
        if dropped and settings.DEBUG >= 1:
            name = getattr(self.function, "__name__", "function")
            print(f"jit: {name} drops a capture that was not used for longest")
