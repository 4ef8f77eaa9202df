"""Capture what a function launches, then replay it as one native call. In: a function of tensors. Out: `TinyJit`.

A JIT that cannot lie:
- The first calls run as they are and are traced; two traces must launch the same work, or the function is refused with
  the line that differs. Only then are calls replayed.
- A call is replayed only if its arguments' shapes, types, devices and plain values, whatever it sees in its closure,
  its globals and its objects (surroundings.py), and the settings are those of the trace; otherwise it is traced anew.
- Tensors it reads without being handed them (weights) are looked up at each call; tensors it leaves changed (weights,
  gradients, running means) are changed by a replay in the same way. Results are the caller's to keep.
- Random numbers are new at each call. Reading values inside is refused, and so is a function that changes plain values
  which it can see (a counter): a replay runs no Python.
- Gradients left lazy on tensors that did not ask for one (requires_grad is not True) are dropped, not computed.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from glassgrad.base.errors import JitError
from glassgrad.base.settings import settings
from glassgrad.engine.buffer import Buffer
from glassgrad.engine.capture import recording
from glassgrad.engine.device import Device
from glassgrad.engine.normal import scalar_bytes
from glassgrad.engine.replay import Replay
from glassgrad.graph import ops as o
from glassgrad.graph.ops import Kind
from glassgrad.graph.uop import UOp
from glassgrad.surroundings import PLAIN, is_array
from glassgrad.tensor import precision
from glassgrad.tensor.leaves import hold
from glassgrad.tensor.random import _streams
from glassgrad.tensor.tensor import Tensor
from glassgrad.tracing import Source, Traced, add_gradient, as_buffer, mapped, refusal

__all__ = ["TinyJit", "jit"]


class _Module(ModuleType):
    """`glassgrad.jit` is this file and, called, the decorator: `@glassgrad.jit`."""

    def __call__(self, function: Callable[..., Any]) -> TinyJit:
        return TinyJit(function)


sys.modules[__name__].__class__ = _Module

_MOST_TRACES = 4           # of one combination of arguments before a function that keeps changing is refused
_MOST_VARIANTS = 8         # replays of one combination, for surroundings that change back and forth
_MOST_COMBINATIONS = 64    # a step number among the arguments makes every call a new one


class TinyJit:
    """Run a function's kernels again without running its Python.

    >>> @TinyJit
    ... def double(x): return x * 2
    >>> [double(Tensor([float(i)])).item() for i in range(4)]
    [0.0, 2.0, 4.0, 6.0]
    """

    def __init__(self, function: Callable[..., Any]):
        if not callable(function):
            raise JitError("TinyJit wraps a function", given=repr(function), expected="something that can be called",
                           mend="write @TinyJit above a def")
        self.function = function
        self.__name__ = getattr(function, "__name__", "function")
        self.__doc__ = function.__doc__
        self._known: dict[Any, _Combination] = {}
        self._methods: weakref.WeakKeyDictionary[Any, TinyJit] = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()         # a replay's addresses are those of one call at a time

    def __get__(self, instance: Any, owner: Any) -> TinyJit:
        if instance is None:
            return self
        bound = self._methods.get(instance)
        if bound is None:
            # the method's own self is found through a weak reference, or an instance would never die
            bound = self._methods[instance] = TinyJit(_Bound(self.function, instance))
        return bound

    def reset(self) -> None:
        """Forget every capture."""
        self._known.clear()

    @property
    def captured(self) -> bool:
        """Whether any combination of arguments is replayed by now."""
        return any(c.replays for c in self._known.values())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if recording() is not None:
            return self.function(*args, **kwargs)          # inside another capture: part of it
        tensors: list[Tensor] = []
        objects: list[Any] = []
        key = (_shape_of(args, tensors, objects), _shape_of(kwargs, tensors, objects), settings.NOOPT, Tensor.training,
               precision.current(), Device.DEFAULT)
        with self._lock:
            combination = self._known.get(key)
            if combination is None:
                if self._known and settings.DEBUG >= 1:
                    print(f"jit: {self.__name__} is captured for a new combination of arguments")
                if len(self._known) >= _MOST_COMBINATIONS:
                    self._known.pop(next(iter(self._known)))
                combination = self._known[key] = _Combination(self.function, objects)
            replays = [] if settings.CHECK else combination.replays     # CHECK judges kernel by kernel, in a trace
            for number, replay in enumerate(replays):
                result = replay.call(tensors)
                if result is not _STALE:
                    if number:                               # the one that fits is tried first next time
                        combination.replays.insert(0, combination.replays.pop(number))
                    return result
            if replays and settings.DEBUG >= 1:
                print(f"jit: {self.__name__} is captured anew: {replays[0].why}")
            return combination.trace(args, kwargs)


def jit(function: Callable[..., Any]) -> TinyJit:
    """The same as TinyJit."""
    return TinyJit(function)


class _Bound:
    """A method that does not keep its object alive."""

    def __init__(self, function: Callable[..., Any], instance: Any):
        self.function, self.instance = function, weakref.ref(instance)
        self.__name__, self.__doc__ = getattr(function, "__name__", "method"), function.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self.instance(), *args, **kwargs)


def _shape_of(value: Any, tensors: list[Tensor], objects: list[Any]) -> Any:
    """What a call is recognised by: tensors by shape, type and device, plain values and arrays by value, objects by
    identity (what is inside them is watched)."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return (Tensor, value.shape, value.dtype, value.device, value.requires_grad)
    if isinstance(value, slice):
        return (slice, repr(value))
    if isinstance(value, PLAIN):
        return (type(value), repr(value) if isinstance(value, float) else value)
    if isinstance(value, (list, tuple)):
        return (type(value), *[_shape_of(v, tensors, objects) for v in value])
    if isinstance(value, dict):
        return (dict, *[(k, _shape_of(v, tensors, objects)) for k, v in value.items()])
    if is_array(value):
        return (type(value), value.shape, str(value.dtype), value.tobytes())
    objects.append(value)
    return (type(value), id(value))


_STALE = object()


class _Combination:
    """One combination of arguments: its traces, and a replay for each two of them that agree."""

    def __init__(self, function: Callable[..., Any], objects: list[Any]):
        self.function, self.objects = function, objects     # held: another object must not get the id of one of them
        self.traces: list[Traced] = []
        self.replays: list[_Captured] = []

    def trace(self, args: Any, kwargs: Any) -> Any:
        bound = isinstance(self.function, _Bound)
        objects = [*self.objects, self.function.instance()] if bound else self.objects      # type: ignore[attr-defined]
        traced = Traced(self.function, objects, args, kwargs)
        differences = [traced.differs(earlier) for earlier in self.traces]
        if "" in differences:
            if traced.faults:
                self.traces.clear()
                raise JitError("a replay of this function would not do what it does", given=traced.faults[0],
                               expected="a function that only computes tensors: later calls replay its kernels, not "
                               "its Python", mend="do that outside, keep it in a tensor, or leave the jit off")
            self.traces.pop(differences.index("")).forget()
            self.replays.insert(0, _Captured(traced))
            del self.replays[_MOST_VARIANTS:]
        elif len(self.traces) + 1 >= _MOST_TRACES:
            self.traces.clear()
            raise refusal(differences[-1])
        else:
            self.traces.append(traced)
        traced.forget()
        return traced.result


class _Captured:
    """A trace as a replay: what to look up before it, what to rebind after it."""

    def __init__(self, traced: Traced):
        self.why = ""
        made = {r for rec in traced.trace.records for r in rec.results}
        self.inputs = traced.argument_nodes
        self.outside: list[tuple[UOp, Source]] = []        # a buffer, and the tensors that bring it
        self.seen: list[UOp] = []                          # their node at the last call
        for node, source in traced.sources.items():
            if isinstance(source, Source):
                self.outside.append((node, source))
                self.seen.append(traced.node_before(source))
        new = {id(p.value): p.value for p in traced.bound}
        grads = {id(g): g for _, g in traced.grads if g is not None}
        rebound = [t for t in traced.left_behind if id(t) not in new and id(t) not in grads]
        self.after = [(weakref.ref(t), t.uop) for t in rebound]
        self.bound = [(p, new[id(p.value)].uop) for p in traced.bound if new[id(p.value)].uop.base.op is o.BUFFER]
        self.grads = [(weakref.ref(t), None if g is None else g.uop) for t, g in traced.grads]
        self.argument_updates, self.argument_grads = traced.argument_updates, traced.argument_grads
        self.returned = traced.form
        self.returned_nodes = [t.uop for t in traced.returned]
        # what the function did not make is returned as itself: an argument by its number, a weight
        self.returned_as = [traced.places.get(id(t), weakref.ref(t) if id(t) in traced.before else None)
                            for t in traced.returned]
        kept = [*[t.uop for t in rebound], *[node for _, node in self.bound], *self.returned_nodes,
                *[node for _, node in self.grads if node is not None], *[node for _, node in self.argument_updates],
                *[node for _, node in self.argument_grads]]
        self.fresh = [b for b in dict.fromkeys(node.base for node in kept) if b in made]     # what outlives the call
        self._watch(traced, {id(t) for t in rebound})
        self.streams, self.seed = traced.streams, traced.seed
        symbols = [*self.inputs, *[n for n, _ in self.outside], *self.fresh]
        self.replay = Replay(traced.trace, list(dict.fromkeys(symbols)))
        self.random_cells = [(cell.value - traced.streams[0], address, dtype) for cell, dtype, address, stream
                             in self.replay.cells if stream and cell.value > traced.streams[0]]
        self.other_cells = [(cell, address, dtype) for cell, dtype, address, stream in self.replay.cells
                            if not (stream and cell.value > traced.streams[0])]
        self.writes = [(self.replay.pointers(b), b) for b in self.fresh]
        self.frame: _Frame | None = None          # holds the results of the last call
        self.other: _Frame | None = None          # held those of the call before: free once nobody else does

    def _watch(self, traced: Traced, rebound: set[int]) -> None:
        """What must be as it was: the surroundings, lazy tensors in them, and which tensors have a gradient already."""
        self.watched = traced.surroundings
        self.watched.without({(id(p.holder), p.name) for p, _ in self.bound})
        self.lazy = [(weakref.ref(t), t.uop) for t in self.watched.tensors
                     if t.uop.base.op is not o.BUFFER and id(t) not in rebound]
        self.has_grad = [(weakref.ref(t), traced.before[id(t)][2] is not None) for t in self.watched.tensors
                         if id(t) in traced.before and (t.requires_grad or traced.before[id(t)][2] is not t.grad)]

    # -- replaying -------------------------------------------------------------------------------------------
    def is_stale(self) -> bool:
        """Whether something that the trace relied on has changed; `why` says what."""
        self.why = self.watched.change()
        if self.why:
            return True
        if self.random_cells and _streams.seed is not self.seed:
            self.why = "there is a new random seed"
            return True
        for reference, node in self.lazy:
            tensor = reference()
            if tensor is not None and tensor.uop is not node:
                self.why = f"a tensor of shape {node.shape} it uses was replaced by something else"
                return True
        for reference, had in self.has_grad:
            tensor = reference()
            if tensor is not None and (tensor.grad is not None) is not had:
                self.why = "a gradient was reset" if had else "a gradient was there already"
                return True
        return False

    def call(self, tensors: list[Tensor]) -> Any:
        replay = self.replay
        if self.is_stale():
            return _STALE
        for i, (symbol, source) in enumerate(self.outside):
            nodes = source.nodes()
            if not nodes:
                self.why = "a tensor it uses is gone"
                return _STALE
            now = nodes[0]
            if now is not self.seen[i] or len(nodes) > 1:
                if not _same_view(now, self.seen[i]) or any(n.base is not now.base for n in nodes):
                    self.why = f"a tensor of shape {now.shape} it uses was replaced by something else"
                    return _STALE
                self.seen[i] = now
                replay.bind(symbol, now.base.arg.address)
        handed = [as_buffer(t) for t in tensors]
        for symbol, buffer in zip(self.inputs, handed):
            replay.bind(symbol, buffer.arg.address)
        frame = self.other
        if frame is None or not frame.is_free():
            frame = _Frame(self)
            frame.counted = frame.counts()
        else:
            frame.forget()
        for (pointers, _), address in zip(self.writes, frame.addresses):
            for array, position, offset in pointers:
                array[position] = address + offset
        for offset, address, dtype in self.random_cells:
            _write(address, scalar_bytes((_streams.count + offset) & 0xFFFFFFFF, dtype))
        _streams.count += self.streams[1] - self.streams[0]
        for cell, address, dtype in self.other_cells:
            _write(address, scalar_bytes(cell.value, dtype))
        replay.run()
        self.other, self.frame = self.frame, frame
        return frame.hand_out(self, tensors, handed)


class _Frame:
    """Memory for the results of one call. Two take turns: a call writes into the one whose results nobody holds."""

    def __init__(self, captured: _Captured):
        self.made: dict[UOp, UOp] = {b: UOp(o.BUFFER, b.dtype, (), Buffer(b.shape, b.dtype, b.arg.device))
                                     for b in captured.fresh}
        self.addresses = [node.arg.address for node in self.made.values()]
        self.inputs = set(captured.inputs)
        self.after = [(reference, self._here(node), node) for reference, node in captured.after]
        self.bound = [(place, self._here(node), node) for place, node in captured.bound]
        self.grads = [(reference, None if node is None else self._here(node), node)
                      for reference, node in captured.grads]
        self.returned = [self._here(node) for node in captured.returned_nodes]
        self.held = False
        nodes = [*self.made.values(), *[n for rows in (self.after, self.bound, self.grads) for _, n, _ in rows
                                        if n is not None], *filter(None, self.returned)]
        self.views = {view for node in nodes for view in node.toposort() if view.op is not o.BUFFER}
        self.things: list[Any] = list(dict.fromkeys(nodes)) + [n.arg for n in self.made.values()]
        self.counted: list[int] = []

    def _here(self, node: UOp) -> UOp | None:
        """A node of the trace over this frame's memory; None for a view of an argument, which each call brings."""
        return None if node.base in self.inputs else _moved(node, self.made)

    def counts(self) -> list[int]:
        """How often each node and buffer of this frame is referred to."""
        return [sys.getrefcount(thing) for thing in self.things]

    def is_free(self) -> bool:
        """Whether nobody but this frame knows its nodes and buffers: counted when it was made, counted again now."""
        return self.counts() == self.counted

    def forget(self) -> None:
        """Views remember the value that was read through them: here, that of an earlier call."""
        for node in self.views:
            if node._cache is not None:
                node._cache.pop("value", None)

    def hand_out(self, captured: _Captured, tensors: list[Tensor], handed: list[UOp]) -> Any:
        """Rebind what the function rebinds, and its results in the form it returned them."""
        given = dict(zip(captured.inputs, handed))
        for reference, node, then in self.after:
            tensor = reference()
            if tensor is not None:
                tensor.uop = node if node is not None else _moved(then, given)
                if not self.held or node is None:
                    hold(tensor)
        self.held = True
        new: dict[UOp, Tensor] = {}                # one tensor may have been put in several places
        for place, node, then in self.bound:
            if then not in new:
                new[then] = Tensor(node if node is not None else _moved(then, given))
            place.put(new[then])
        for reference, node, then_ in self.grads:
            tensor = reference()
            if tensor is not None:
                found = None if then_ is None else node if node is not None else _moved(then_, given)
                tensor.grad = None if found is None else tensor._with(found)
        for i, node_ in captured.argument_updates:
            tensors[i].uop = _moved(node_, {**self.made, **given})
            hold(tensors[i])
        for i, node_ in captured.argument_grads:
            add_gradient(tensors[i], tensors[i]._with(_moved(node_, {**self.made, **given})))
        results = iter(zip(self.returned, captured.returned_nodes, captured.returned_as))

        def fresh(_: Tensor) -> Tensor:
            node, then, itself = next(results)
            if isinstance(itself, int):
                return tensors[itself]
            known = itself() if itself is not None else None
            return known if known is not None else Tensor(node if node is not None else _moved(then, given))

        return mapped(captured.returned, fresh)


def _write(address: int, data: bytes) -> None:
    ctypes.memmove(address, data, 8)


def _same_view(now: UOp, then: UOp) -> bool:
    """Whether two nodes are the same view of buffers that differ only in their values."""
    while now.op is then.op and (now.op is o.DETACH or now.op.kind == Kind.MOVEMENT and now.arg == then.arg):
        now, then = now.src[0], then.src[0]
    return now.op is o.BUFFER and then.op is o.BUFFER and now.shape == then.shape and now.dtype is then.dtype \
        and now.device == then.device


def _moved(node: UOp, made: dict[UOp, UOp]) -> UOp:
    """A view as it was in the trace, over the buffer of this call."""
    if node.op is o.BUFFER:
        return made.get(node, node)
    views = []
    while node.op is not o.BUFFER:
        views.append(node)
        node = node.src[0]
    out = made.get(node, node)
    for view in reversed(views):
        out = view.over((out,))
    return out
