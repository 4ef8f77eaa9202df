"""Record what a function launches, then replay it as one native call. In: a function of tensors. Out: `TinyJit`.

docs/guide/jit.md, "The jit's rules", is the contract: what a replay does, what is guarded, what is refused, and what
the jit cannot see. In short: the first calls run as they are and are traced (trace.py). Once two traces did the same
work, later calls are replays (replay.py), as long as everything that the function can see is unchanged (guards.py).
Builds no kernels. Of devices it reads the default one and which are registered: both are part of a capture's key.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from glassgrad.base.errors import JitError
from glassgrad.base.settings import current_state, settings
from glassgrad.compiler.graph.node import WeakNodeDict
from glassgrad.engine.capture import recording
from glassgrad.engine.memory_plan import MemoryUse
from glassgrad.jit.compare_traces import TraceWork, difference, facts_of, keep_common_holders
from glassgrad.jit.guards import Stale
from glassgrad.jit.plain_values import SymbolNames, describe
from glassgrad.jit.replay import CapturedCall
from glassgrad.jit.trace import TracedCall
from glassgrad.runtime.devices import Device
from glassgrad.tensor.autograd import autocast as precision, no_grad
from glassgrad.tensor.tensor import Tensor

__all__ = ["TinyJit", "jit"]


class _JitModule(ModuleType):
    """`glassgrad.jit` is this package and, called, the decorator: `@glassgrad.jit`."""

    def __call__(self, function: Callable[..., Any]) -> TinyJit:
        return TinyJit(function)


sys.modules[__name__].__class__ = _JitModule

_MOST_TRACES = 4           # of one combination of arguments and one state (which tensors are in memory, which have a
                           # gradient) before a function whose work keeps changing is refused
_MOST_VARIANTS = 8         # captures of one combination, for guarded values that change back and forth
_MOST_COMBINATIONS = 64    # that are kept: with a step number as argument, each call is a new one. Also limits the
                           # traces and captures of one combination: `for w in weights: step(w)` has one for each w
_MANY_CAPTURES = 16        # captures after which a function that is hardly ever replayed prints a notice


class TinyJit:
    """Run a function's kernels again without running its Python.

    >>> @TinyJit
    ... def double(x): return x * 2
    >>> [double(Tensor([float(i)])).item() for i in range(4)]
    [0.0, 2.0, 4.0, 6.0]
    """

    def __new__(cls, function: Callable[..., Any] | None = None, **options: Any) -> Any:
        """Make @TinyJit and @TinyJit(prune=True) the same: launches whose results cannot be read are always dropped."""
        return functools.partial(cls, **options) if function is None else super().__new__(cls)

    def __init__(self, function: Callable[..., Any], prune: bool = True, optimize: bool = True):
        if not callable(function):
            raise JitError("TinyJit wraps a function", given=repr(function), expected="something that can be called",
                           fix="write @TinyJit above a def")
        self.function = function
        self.__name__ = self.__qualname__ = "function"             # if it has no name itself
        functools.update_wrapper(self, function, updated=())
        self._instance: weakref.ref[Any] | None = None         # the `self` of a method, which must not be kept alive
        self._methods: WeakNodeDict[TinyJit] = WeakNodeDict()      # the jit of each object
        self._known: dict[Any, _Combination] = {}
        self._latest: tuple[list[Any], Any] = ([], None)       # the form and the combination of the last call
        self._lock = threading.RLock()         # a replay binds the addresses of one call at a time; see _after_fork
        self._replayed = 0                     # number of calls that were replays
        self._captures: dict[str, int] = {}    # number of captures by their cause
        self._notice_printed = False                     # whether the notice about many captures was printed
        _all_jits.add(self)

    def __get__(self, instance: Any, owner: Any) -> TinyJit:
        """Return the jit of an object's method. Each object has its own, by identity (objects may be equal, or have no
        hash). It holds neither the object nor anything that leads to it, so an object with a jitted method is freed
        like any other."""
        if instance is None:
            return self
        made = self._methods.get(instance)
        if made is None:
            made = TinyJit(self.function)
            try:
                made._instance = weakref.ref(instance)
            except TypeError:
                raise JitError("a jitted method needs an object that can be referred to weakly",
                               given=f"a {type(instance).__name__}", expected="an object with __weakref__",
                               fix='add "__weakref__" to its __slots__, or jit a function instead') from None
            self._methods.set(instance, made)
        return made

    def __reduce__(self) -> Any:
        """Copy or pickle the function without its captures, which hold addresses. A jit that a module has under the
        jit's own name is pickled by name, as functions are."""
        found: Any = sys.modules.get(self.__module__)
        for name in self.__qualname__.split("."):
            found = getattr(found, name, None)
        return self.__qualname__ if found is self else (TinyJit, (self.function,))

    def reset(self) -> None:
        """Forget every capture."""
        self._known.clear()
        self._latest = ([], None)

    @property
    def captured(self) -> bool:
        """Whether a combination of arguments has a capture, so that calls are replayed."""
        return any(c.replays for c in self._known.values())

    @property
    def fxn(self) -> Callable[..., Any]:
        """The function itself (tinygrad's name)."""
        return self.function

    @property
    def jit_cache(self) -> list[Any]:
        """The kernels that a replay of the latest capture launches; empty before there is one."""
        found = [c.replays[0].replay.items for c in self._known.values() if c.replays]
        return list(found[-1]) if found else []

    @property
    def memory(self) -> MemoryUse | None:
        """The bytes that a replay of the largest capture needs (`.peak` and its parts); None before there is a
        capture."""
        found = [captured.replay.memory for c in self._known.values() for captured in c.replays]
        return max(found, key=lambda use: use.peak, default=None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        instance = None if self._instance is None else self._instance()
        blocks = no_grad.open_blocks                       # empty if neither a trace nor a `no_grad` block is open
        if blocks and recording() is not None:             # called inside another trace: part of that
            return self.function(*args, **kwargs) if instance is None else self.function(instance, *args, **kwargs)
        tensors: dict[Tensor, int] = {}
        objects: list[Any] = []
        symbols: SymbolNames = {}
        form: list[Any] = []
        describe(args, form, tensors, objects, symbols)
        if kwargs:
            form += ("**", *kwargs)
            describe(kwargs.values(), form, tensors, objects, symbols)
        with self._lock:
            state = current_state()
            form += (state, Device.version, precision.current(), blocks and no_grad.inside())
            if self._latest[0] != form:
                self._find(form, objects)
            combination = self._latest[1]
            replays = combination.replays
            if replays and not state.check:        # CHECK compares kernel by kernel, in a trace
                why = ""
                for captured in replays:
                    try:
                        result = captured.call(instance, [*tensors], symbols, state)
                    except Stale as stale:
                        why = why or str(stale)
                        continue
                    if captured is not replays[0]:     # the one that fits is tried first next time
                        replays.remove(captured)
                        replays.insert(0, captured)
                    self._replayed += 1
                    return result
                self._report_new_capture(why)
            return combination.trace(self.function, instance, args, kwargs, symbols)

    def _find(self, form: list[Any], objects: list[Any]) -> None:
        """Find the combination of arguments of this form, or make a new one. The form ends with all settings; the key
        of a combination has only those that decide which kernels a call launches."""
        *described, state, _, autocast, without_gradients = form
        key = (*described, state.kernel_mode, settings.CHECK_INDEX, Tensor.training, autocast, without_gradients,
               Device.DEFAULT, Device.registered)
        found = self._known.get(key)
        if found is None:
            if self._known:
                self._report_new_capture("")
            if len(self._known) >= _MOST_COMBINATIONS:
                self._known.pop(next(iter(self._known)))
            found = _Combination(self.__name__, objects, any_size=bool(self._known))
            self._known[key] = found
        self._latest = (form, found)

    def _report_new_capture(self, why: str) -> None:
        """Print why there is another capture: always at DEBUG=1, else once, when there are more captures than
        replays."""
        if settings.DEBUG >= 1:
            print(f"jit: {self.__name__} is captured anew: {why}" if why else
                  f"jit: {self.__name__} is captured for a new combination of arguments")
        cause = why.split(" is no longer ")[0] if why else "its arguments"
        count = self._captures[cause] = self._captures.get(cause, 0) + 1
        if count >= _MANY_CAPTURES and self._replayed < count and not self._notice_printed:
            self._notice_printed = True
            print(f"glassgrad: jit: {self.__name__} was captured {count} times and hardly ever replayed: "
                  + (f"{cause} changes between calls; keep it in a tensor, or where the function cannot reach it"
                     if why else "its plain arguments or shapes change between calls; pass numbers that change as "
                     "tensors, and for lengths that change at each call use a Variable, or leave the jit off"),
                  file=sys.stderr)


_all_jits: weakref.WeakSet[TinyJit] = weakref.WeakSet()


def _after_fork() -> None:
    """Reset, in a forked child, each jit whose lock another thread held. (A fork cannot wait for that thread: it runs
    the user's code while it holds the lock.)"""
    for each in list(_all_jits):
        if each._lock.acquire(blocking=False):
            each._lock.release()
        else:
            each._lock = threading.RLock()
            each.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


jit = TinyJit


class _Combination:
    """One combination of arguments: its traces, and a capture for every two traces that agree."""

    def __init__(self, name: str, objects: list[Any], any_size: bool):
        """With `any_size`, kernels that serve all sizes may run."""
        self.name, self.objects = name, objects          # kept alive: their ids are part of the key
        self.any_size = any_size
        self.traces: list[TraceWork] = []
        self.replays: list[CapturedCall] = []

    def trace(self, function: Callable[..., Any], instance: Any, args: Any, kwargs: Any, symbols: SymbolNames) -> Any:
        """Run and trace the function; make a capture if an earlier trace did the same work."""
        traced = TracedCall(function, self.objects, instance, args, kwargs, symbols, self.any_size)
        facts = list(facts_of(traced))
        work = TraceWork(traced, facts)
        alike = [earlier for earlier in self.traces if earlier.argument_paths == work.argument_paths]
        differences = [difference(facts, earlier) for earlier in alike]
        if "" in differences:
            if traced.faults:
                self._forget(alike)
                raise JitError("a replay of this function would not do what it does", given=traced.faults[0],
                               expected="a function that only computes tensors: later calls replay its kernels, not "
                               "its Python", fix="do that outside, keep it in a tensor, or leave the jit off")
            earlier = alike[differences.index("")]
            self._forget([earlier])
            keep_common_holders(traced, earlier)
            self._keep(CapturedCall(traced))
        elif sum(earlier.state == work.state for earlier in alike) + 1 >= _MOST_TRACES:
            self._forget(alike)
            raise JitError("this function launches other work at each call",
                           given="; ".join([differences[-1], *traced.faults[:1]]),
                           expected="the same kernels on the same constants whenever the arguments look the same",
                           fix="make what changes an argument or a tensor, or leave the jit off this function")
        else:
            self.traces = [*self.traces[1 - _MOST_COMBINATIONS:], work]
        return traced.result

    def _forget(self, traces: list[TraceWork]) -> None:
        self.traces = [trace for trace in self.traces if trace not in traces]

    def _keep(self, captured: CapturedCall) -> None:
        """Add a capture. Drop the least recently used ones: beyond `_MOST_VARIANTS` of those with the same argument
        paths, and beyond `_MOST_COMBINATIONS` of all. Drop those with kernels for all sizes once this size has kernels
        of its own."""
        self.replays = [captured, *[replay for replay in self.replays if captured.served or not replay.served]]
        alike = [replay for replay in self.replays if replay.argument_paths == captured.argument_paths]
        dropped = [*alike[_MOST_VARIANTS:], *[r for r in self.replays[_MOST_COMBINATIONS:] if r not in alike]]
        self.replays = [replay for replay in self.replays if replay not in dropped]
        if dropped and settings.DEBUG >= 1:
            print(f"jit: {self.name} drops a capture that was not used for longest")
