"""Capture what a function launches, then replay it as one native call. In: a function of tensors. Out: `TinyJit`.

A JIT that cannot lie:
- The first calls run as they are and are traced; two traces must launch the same work, or the function is refused with
  the line that differs. Only then are calls replayed.
- A call is replayed only if its arguments' shapes, types, devices and plain values, the numbers it sees in its closure,
  its globals and its objects, and the settings are those of the trace; otherwise it is traced anew.
- Tensors it reads without being handed them (weights) are looked up at each call; tensors it leaves changed (weights,
  gradients, running means) are changed by a replay in the same way. Results are the caller's to keep.
- Random numbers are new at each call. Reading values inside is refused.
- Gradients left lazy on tensors that did not ask for one (requires_grad is not True) are dropped, not computed.
"""

from __future__ import annotations

import ctypes
import dis
import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from glassgrad.base.errors import JitError
from glassgrad.base.lines import line_of
from glassgrad.base.settings import settings
from glassgrad.engine.buffer import Buffer
from glassgrad.engine.capture import Record, record, recording
from glassgrad.engine.normal import scalar_bytes
from glassgrad.engine.replay import Replay
from glassgrad.graph import ops as o
from glassgrad.graph.ops import Kind
from glassgrad.graph.uop import UOp
from glassgrad.tensor import precision
from glassgrad.tensor.leaves import hold
from glassgrad.tensor.random import _streams
from glassgrad.tensor.tensor import Tensor

__all__ = ["TinyJit", "jit"]


class _Module(ModuleType):
    """`glassgrad.jit` is this file and, called, the decorator: `@glassgrad.jit`."""

    def __call__(self, function: Callable[..., Any]) -> TinyJit:
        return TinyJit(function)


sys.modules[__name__].__class__ = _Module

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_MOST_TRACES = 3           # of one combination of arguments before a function that keeps changing is refused
_MOST_WATCHED = 512        # numbers in the function's surroundings that are compared at each call


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
        self._known: dict[Any, _Captured] = {}
        self._methods: weakref.WeakKeyDictionary[Any, TinyJit] = weakref.WeakKeyDictionary()

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
        return any(c.replay is not None for c in self._known.values())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if recording() is not None:
            return self.function(*args, **kwargs)          # inside another capture: part of it
        tensors: list[Tensor] = []
        key = (_shape_of(args, tensors), _shape_of(kwargs, tensors), settings.NOOPT, Tensor.training,
               precision.current())
        captured = self._known.get(key)
        if captured is not None and captured.replay is not None:
            result = captured.call(tensors)
            if result is not _STALE:
                return result
            if settings.DEBUG >= 1:
                print(f"jit: {self.__name__} is captured anew: {captured.why}")
        elif captured is None and self._known and settings.DEBUG >= 1:
            print(f"jit: {self.__name__} is captured for a new combination of arguments")
        if captured is None or captured.replay is not None:
            captured = self._known[key] = _Captured(self.function)
        return captured.trace(args, kwargs)


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


def _shape_of(value: Any, tensors: list[Tensor]) -> Any:
    """What a call is recognised by: tensors by shape, type and device, plain values by value, objects by identity."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return (Tensor, value.shape, value.dtype, value.device)
    if isinstance(value, _PLAIN):
        return (type(value), repr(value) if isinstance(value, float) else value)
    if isinstance(value, (list, tuple)):
        return (type(value), *[_shape_of(v, tensors) for v in value])
    if isinstance(value, dict):
        return (dict, *[(k, _shape_of(v, tensors)) for k, v in value.items()])
    return (type(value), id(value))


def _mapped(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """A nest of lists, tuples and dicts with every tensor exchanged."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[_mapped(v, change) for v in value])
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(v, change) for v in value)
    if isinstance(value, dict):
        return {k: _mapped(v, change) for k, v in value.items()}
    return value


_STALE = object()


class _Captured:
    """One combination of arguments: its traces, and the replay once two of them agree."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.last: _Traced | None = None
        self.traces = 0
        self.replay: Replay | None = None
        self.why = ""

    # -- tracing ---------------------------------------------------------------------------------------------
    def trace(self, args: Any, kwargs: Any) -> Any:
        traced = _Traced(self.function, args, kwargs)
        self.traces += 1
        difference = traced.differs(self.last) if self.last is not None else ""
        if self.last is not None and not difference:
            self.build(traced)
            self.last = None
        elif self.traces >= _MOST_TRACES:
            raise JitError("this function launches other work at each call", given=difference,
                           expected="the same kernels on the same constants whenever the arguments look the same",
                           mend="make what changes an argument or a tensor, or leave the jit off this function")
        else:
            self.last = traced
        return traced.result

    def build(self, traced: _Traced) -> None:
        """Turn a trace into a replay: what to look up before it, what to rebind after it."""
        self.watched = list(_watch(self.function))
        made = {r for rec in traced.trace.records for r in rec.results}
        self.inputs = traced.argument_nodes
        self.outside: list[tuple[UOp, weakref.ref[Tensor]]] = []     # a buffer, and the tensor that brings it
        self.seen: list[UOp] = []                                    # that tensor's node at the last call
        for node in traced.read_from_outside():
            holder = traced.holder(node)
            if holder is not None:
                self.outside.append((node, weakref.ref(holder)))
                self.seen.append(traced.before[id(holder)][1])
        follow = traced.left_behind()
        self.after: list[tuple[weakref.ref[Tensor], UOp]] = [(weakref.ref(t), t.uop) for t in follow
                                                             if not any(t is a for a in traced.arguments)]
        self.argument_updates = [(i, a.uop) for i, (a, node) in enumerate(zip(traced.arguments, traced.argument_nodes))
                                 if a.uop is not node]
        self.grads = [(weakref.ref(t), t.grad) for t in traced.live()
                      if t.grad is not None and any(t.grad is f for f in follow)]
        self.returned = traced.result
        self.returned_nodes: list[UOp] = []       # of the trace: a returned tensor may itself be changed by replays
        _mapped(traced.result, lambda t: self.returned_nodes.append(t.uop))
        kept = {t.uop.base for t in follow} | {a.uop.base for a in traced.arguments}
        _mapped(traced.result, lambda t: kept.add(t.uop.base))
        self.fresh = [b for b in kept if b in made]                       # results that outlive the call
        symbols = [*self.inputs, *[n for n, _ in self.outside], *self.fresh]
        self.streams = traced.streams
        self.replay = Replay(traced.trace, list(dict.fromkeys(symbols)))
        self.random_cells = [(cell.value - traced.streams[0], address, dtype) for cell, dtype, address, stream
                             in self.replay.cells if stream and cell.value > traced.streams[0]]
        self.other_cells = [(cell, address, dtype) for cell, dtype, address, stream in self.replay.cells
                            if not (stream and cell.value > traced.streams[0])]
        self.writes = [(self.replay.pointers(b), b) for b in self.fresh]
        self.frame: _Frame | None = None          # holds the results of the last call
        self.other: _Frame | None = None          # held those of the call before: free once nobody else does

    # -- replaying -------------------------------------------------------------------------------------------
    def call(self, tensors: list[Tensor]) -> Any:
        replay = self.replay
        assert replay is not None
        for place, name, value in self.watched:
            if _lookup(place, name) != value:
                self.why = f"{name} is no longer {value!r}"
                return _STALE
        for i, (symbol, reference) in enumerate(self.outside):
            tensor = reference()
            if tensor is None:
                self.why = "a tensor it uses is gone"
                return _STALE
            now = tensor.uop
            if now is not self.seen[i]:
                if not _same_view(now, self.seen[i]):
                    self.why = f"a tensor of shape {now.shape} it uses was replaced by something else"
                    return _STALE
                self.seen[i] = now
                replay.bind(symbol, now.base.arg.address)
        handed = [_as_buffer(t) for t in tensors]
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
        inputs = set(captured.inputs)
        self.after = [(reference, None if node.base in inputs else _moved(node, self.made), node)
                      for reference, node in captured.after]
        self.returned: list[UOp | None] = [None if node.base in inputs else _moved(node, self.made)
                                           for node in captured.returned_nodes]
        self.held = False
        nodes = [*self.made.values(), *[n for _, n, _ in self.after if n is not None], *filter(None, self.returned)]
        self.views = {view for node in nodes for view in node.toposort() if view.op is not o.BUFFER}
        self.things: list[Any] = list(dict.fromkeys(nodes)) + [n.arg for n in self.made.values()]
        self.counted: list[int] = []

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
        for i, node in captured.argument_updates:
            tensors[i].uop = _moved(node, {**self.made, **given})
            hold(tensors[i])
        for reference, grad in captured.grads:
            tensor = reference()
            if tensor is not None:
                tensor.grad = grad
        results = iter(zip(self.returned, captured.returned_nodes))

        def fresh(_: Tensor) -> Tensor:
            node, then = next(results)
            return Tensor(node if node is not None else _moved(then, given))

        return _mapped(captured.returned, fresh)


def _write(address: int, data: bytes) -> None:
    ctypes.memmove(address, data, 8)


def _as_buffer(tensor: Tensor) -> UOp:
    """A tensor's value as one BUFFER of its shape."""
    node = tensor.uop
    if node.op is o.BUFFER:
        return node
    if node.base.op is o.BUFFER:
        while node.op in (o.RESHAPE, o.DETACH):
            node = node.src[0]
        if node.op is o.BUFFER:
            return node
    out = Tensor(tensor.uop.contiguous()).realize().uop
    return out.base


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


# -- one traced call -----------------------------------------------------------------------------------------
class _Traced:
    """A call that ran as it is, with everything that is needed to run it again."""

    def __init__(self, function: Callable[..., Any], args: Any, kwargs: Any):
        self.name = getattr(function, "__name__", "function")
        originals: list[Tensor] = []
        self.arguments: list[Tensor] = []
        self.argument_nodes: list[UOp] = []

        def stand_in(tensor: Tensor) -> Tensor:
            """The argument under a buffer node of its own, so that its uses are told apart from everybody else's."""
            source = _as_buffer(tensor)
            buffer = Buffer.from_host(source.arg, source.arg.address, tensor.shape, tensor.dtype, source.arg.device)
            made = Tensor(UOp(o.BUFFER, tensor.dtype, (), buffer), requires_grad=tensor.requires_grad)
            originals.append(tensor)
            self.arguments.append(made)
            self.argument_nodes.append(made.uop)
            return made

        args, kwargs = _mapped(args, stand_in), _mapped(kwargs, stand_in)
        self.before = {id(t): (weakref.ref(t), t.uop) for t in _live_tensors()}
        first = _streams.count
        with record() as self.trace:
            result = function(*args, **kwargs)
            returned: list[Tensor] = []
            _mapped(result, returned.append)
            _drop_unread_gradients()
            changed = [t for t in _live_tensors() if self._changed(t)]
            waiting = [t for t in dict.fromkeys([*returned, *changed]) if t.uop.base.op is not o.BUFFER
                       and self._concerns(t, returned)]
            if waiting:
                Tensor.realize(*waiting)
        self.streams = (first, _streams.count)
        self.result = result
        for original, argument, node in zip(originals, self.arguments, self.argument_nodes):
            if argument.uop is not node:
                original.uop = argument.uop
                hold(original)
            if argument.grad is not None:
                original.grad = argument.grad

    def _changed(self, tensor: Tensor) -> bool:
        known = self.before.get(id(tensor))
        return known is None or known[0]() is not tensor or known[1] is not tensor.uop

    def _was_there(self, tensor: Tensor) -> bool:
        """Whether a tensor lived before the call; a new one may have the id of one that died."""
        known = self.before.get(id(tensor))
        return known is not None and known[0]() is tensor

    def _concerns(self, tensor: Tensor, returned: list[Tensor]) -> bool:
        """Lazy values that hang on this call: left unrealized they would follow the wrong call for ever."""
        if any(tensor is r for r in returned):
            return True
        made = {r for rec in self.trace.records for r in rec.results} | set(self.argument_nodes)
        return any(n in made for n in tensor.uop.toposort())

    def live(self) -> Iterator[Tensor]:
        return _live_tensors()

    def left_behind(self) -> list[Tensor]:
        """Live tensors that this call made or changed, other than what it returns."""
        made = {r for rec in self.trace.records for r in rec.results} | set(self.argument_nodes)
        returned: list[Tensor] = []
        _mapped(self.result, returned.append)
        return [t for t in _live_tensors() if self._changed(t) and t.uop.base in made
                and (self._was_there(t) or not any(t is r for r in returned))]

    def read_from_outside(self) -> list[UOp]:
        """Buffers read that the call neither made nor was handed, in order."""
        known = set(self.argument_nodes)
        out: dict[UOp, None] = {}
        for rec in self.trace.records:
            for n in rec.normal.buffers:
                if n.base not in known:
                    out[n.base] = None
            known |= set(rec.results)
        return list(out)

    def holder(self, node: UOp) -> Tensor | None:
        """A tensor that held this buffer before the call: a weight. None: the call made it from plain data."""
        found = None
        for reference, uop in self.before.values():
            if uop.base is node:
                tensor = reference()
                if tensor is not None and (found is None or self._changed(tensor)):
                    found = tensor
        return found

    def differs(self, other: _Traced) -> str:
        """Why two traces are not the same work; empty when they are."""
        mine, theirs = self.trace.records, other.trace.records
        if len(mine) != len(theirs):
            return f"{len(theirs)} realizes in one call, {len(mine)} in the next"
        for a, b in zip(mine, theirs):
            if a.normal.key != b.normal.key:
                return f"another graph is computed{_first_difference(a, b)}"
            for x, y in zip(a.normal.constants, b.normal.constants):
                if scalar_bytes(x.arg, x.dtype) != scalar_bytes(y.arg, y.dtype):
                    return f"the number {y.arg} became {x.arg}, written at {_line_using(a, x)}"
        for mine_, theirs_ in zip(self._data(), other._data()):
            if mine_[1] != theirs_[1]:
                return f"a tensor made inside from plain data changed its values, made at {mine_[0]}"
        return ""

    def _data(self) -> list[tuple[str, bytes]]:
        """What the call made from plain Python or NumPy data."""
        return [(str(line_of(n.arg.place)), bytes(n.arg.copy_out())) for n in self.read_from_outside()
                if self.holder(n) is None]


def _line_using(record: Record, constant: UOp) -> str:
    user = next((n for n in record.normal.order if constant in n.src), constant)
    return str(user.line or "an unknown line")


def _first_difference(a: Record, b: Record) -> str:
    for x, y in zip(a.normal.order, b.normal.order):
        if (x.op, x.shape, x.dtype) != (y.op, y.shape, y.dtype):
            return f", first at {x.line}"
    return ""


def _drop_unread_gradients() -> None:
    """Gradients that `backward` offers to every leaf cost nothing while they are lazy; a replay would have to compute
    them. Those the function left lazy are dropped, except for tensors that ask for theirs (requires_grad=True)."""
    for tensor in _live_tensors():
        grad = tensor.grad
        if grad is not None and grad.uop.base.op is not o.BUFFER and tensor.requires_grad is not True:
            tensor.grad = None


def _live_tensors() -> Iterator[Tensor]:
    # type(t), not isinstance: other libraries' objects run code when asked for their class
    return (t for t in gc.get_objects() if issubclass(type(t), Tensor) and hasattr(t, "uop"))


# -- numbers in the function's surroundings ------------------------------------------------------------------
def _watch(function: Callable[..., Any]) -> Iterator[tuple[Any, str, Any]]:
    """Plain values a function can see without being handed them: (where, name, value), to be compared at each call."""
    instance = function.instance() if isinstance(function, _Bound) else getattr(function, "__self__", None)
    plain = function.function if isinstance(function, _Bound) else getattr(function, "__func__", function)
    code = getattr(plain, "__code__", None)
    roots: list[tuple[Any, str]] = []
    if code is not None:
        roots += [(cell, "cell_contents") for cell in plain.__closure__ or ()]
        module = plain.__globals__
        roots += [(module, name) for name in _names_used(code) if name in module]
    seen: set[int] = set()
    count = 0
    objects: list[Any] = [] if instance is None else [instance]
    for place, name in roots:
        value = _lookup(place, name)
        if isinstance(value, _PLAIN):
            yield (place, name, value)
            count += 1
        else:
            objects.append(value)
    while objects and count < _MOST_WATCHED:
        thing = objects.pop()
        if id(thing) in seen or isinstance(thing, (Tensor, type, Callable)) and not hasattr(thing, "__dict__"):  # type: ignore[arg-type]
            continue
        seen.add(id(thing))
        if isinstance(thing, (Tensor, type, TinyJit)) or type(thing).__module__ in ("builtins", "numpy") and not \
                isinstance(thing, (list, tuple, dict)) or type(thing).__name__ in ("module", "function", "method"):
            continue
        if isinstance(thing, (list, tuple)):
            objects += list(thing)[:64]
        elif isinstance(thing, dict):
            objects += list(thing.values())[:64]
        else:
            for name, value in list(getattr(thing, "__dict__", {}).items()):
                if isinstance(value, _PLAIN):
                    yield (thing, name, value)
                    count += 1
                else:
                    objects.append(value)


def _names_used(code: Any) -> set[str]:
    """Global names a function reads. `co_names` has attributes too: `opt.step` would look like the global `step`."""
    names = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for inner in code.co_consts:
        if hasattr(inner, "co_code"):
            names |= _names_used(inner)
    return names


def _lookup(place: Any, name: str) -> Any:
    if isinstance(place, dict):
        return place.get(name)
    try:
        return getattr(place, name, None)
    except ValueError:           # a closure cell that was never filled
        return None


