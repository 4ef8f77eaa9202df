"""The one node type. In: an op, a dtype, sources, an argument. Out: interned, immutable `UOp`s with shapes.

Equal nodes are the same object, so graphs compare with `is` and shared work is shared by construction. A node knows
its shape (sources of shape () mix with any shape), its device, and the user's line that first made it.
"""

from __future__ import annotations

import math
import struct
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from glassgrad.base.errors import Bug, DeviceError, ShapeError
from glassgrad.base.lines import Line, line_of, user_place
from glassgrad.graph import ops as o
from glassgrad.graph.dtype import DType, convert, dtypes
from glassgrad.graph.length import Length, Symbol, lengths_in, most, replaced
from glassgrad.graph.ops import Kind, Op

Dimension = Any    # int | Length: see length.py
Shape = tuple      # of Dimension


# -- arguments: one small named tuple per op (NamedTuples hash in C, which interning lives on) ---------------
class Reshape(NamedTuple):
    shape: Shape


class Permute(NamedTuple):
    order: tuple[int, ...]


class Expand(NamedTuple):
    shape: Shape


class Pad(NamedTuple):
    padding: tuple[tuple[int, int], ...]     # (before, after) per axis


class Shrink(NamedTuple):
    bounds: tuple[tuple[int, int], ...]      # (start, stop) per axis


class Flip(NamedTuple):
    axes: tuple[int, ...]


class Window(NamedTuple):
    axis: int
    size: int
    stride: int
    dilation: int


class Unwindow(NamedTuple):
    axis: int
    stride: int
    dilation: int
    length: int                              # of the axis in the result


class Axes(NamedTuple):
    axes: tuple[int, ...]


class Scatter(NamedTuple):
    mode: str                                # set, add or max


class Scan(NamedTuple):
    axis: int
    combine: Op


class Random(NamedTuple):
    shape: Shape


class Iota(NamedTuple):
    shape: Shape                             # (n,)


class Place(NamedTuple):
    device: str


class OwnGradient(NamedTuple):
    """Of a DETACH with sources (value, *inputs): the gradients of the inputs are what `backward` says."""
    backward: Any                            # (gradient, output, *inputs) -> one UOp or None per input


class Param(NamedTuple):
    slot: int
    shape: Shape
    scalar: bool = False                     # a Cell's value, not memory
    device: str | None = None                # set while scheduling, not inside kernels


class Measure(NamedTuple):
    """Of a PARAM that holds the value of a variable."""
    slot: int
    symbol: Symbol
    shape: Shape = ()
    scalar: bool = True
    device: str | None = None


class Count(NamedTuple):
    length: Dimension


class Range(NamedTuple):
    name: str
    size: int


class Local(NamedTuple):
    name: str
    size: int
    home: str                                # worker: private to a task; shared: seen by all tasks of the launch


class Fold(NamedTuple):
    combine: Op


class Cell:
    """A scalar whose value is read when a kernel runs: random streams, learning rates. Compared by identity."""
    __slots__ = ("value", "__weakref__")

    def __init__(self, value: Any):
        self.value = value

    def __repr__(self) -> str:
        return f"Cell({self.value!r})"


_table: dict[Any, weakref.ref[UOp]] = {}
_lock = threading.RLock()   # re-entrant: a weak reference's callback may run while it is held


class _Entry(weakref.ref):  # type: ignore[type-arg]
    __slots__ = ("key",)
    key: Any


def _forget(entry: _Entry) -> None:
    with _lock:
        if _table.get(entry.key) is entry:
            del _table[entry.key]


class UOp:
    """One node: `op` applied to `src`, with elements of `dtype` and a small `arg`. Build with the methods below.

    >>> x = const(2.0) * 3.0
    >>> x.op, x is const(2.0) * 3.0, x.shape
    (Ops.MUL, True, ())
    """
    __slots__ = ("op", "dtype", "src", "arg", "shape", "device", "symbolic", "place", "_cache", "__weakref__")
    op: Op
    dtype: DType
    src: tuple[UOp, ...]
    arg: Any
    shape: Shape
    device: str | None
    symbolic: bool                       # whether a Length stands in this node or under it
    place: Any
    _cache: dict[str, Any] | None

    def __new__(cls, op: Op, dtype: DType, src: tuple[UOp, ...] = (), arg: Any = None, place: Any = None) -> UOp:
        # constants are keyed by their bits: 1, 1.0 and True differ, and so do 0.0 and -0.0; a NaN equals itself
        key = (op, dtype, src, struct.pack("d", arg) if type(arg) is float else (type(arg), arg)) if op is o.CONST \
            else (op, dtype, src, arg)
        entry = _table.get(key)
        node = entry() if entry is not None else None
        if node is not None:
            return node
        with _lock:
            entry = _table.get(key)
            node = entry() if entry is not None else None
            if node is not None:
                return node
            node = object.__new__(cls)
            node.op, node.dtype, node.src, node.arg = op, dtype, src, arg
            node.shape = _shape(node)
            node.device = _device(node)
            node.symbolic = _symbolic(node)
            node.place = place or user_place()
            node._cache = None
            entry = _Entry(node, _forget)
            entry.key = key
            _table[key] = entry
            return node

    # -- reading ---------------------------------------------------------------------------------------------
    def __repr__(self) -> str:
        arg = "" if self.arg is None else f" {self.arg!r}"
        return f"UOp({self.op.name} {self.dtype.name}{list(self.shape)}{arg})"

    def __reduce__(self) -> Any:
        return (_unflatten, (_flatten(self),))

    @property
    def line(self) -> Line | None:
        """The user's line that first made this node."""
        return line_of(self.place)

    @property
    def size(self) -> int:
        """How many elements it has; at most, where its shape is symbolic."""
        return math.prod(map(most, self.shape)) if self.symbolic else math.prod(self.shape)

    @property
    def elements(self) -> Dimension:
        """How many elements it has: a length, where its shape is symbolic."""
        return math.prod(self.shape)

    @property
    def symbols(self) -> list[Symbol]:
        """The variables in this node's own shape and argument (not in its sources), each once."""
        found: dict[Symbol, None] = {}
        for length in lengths_in((self.shape, self.arg)):
            found.update(dict.fromkeys(length.symbols))
        return list(found)

    @property
    def base(self) -> UOp:
        """The node below all movement ops."""
        node = self
        while node.op.kind == Kind.MOVEMENT or node.op is o.DETACH:
            node = node.src[0]
        return node

    @property
    def st(self) -> Any:
        """Where this node's elements lie in the memory below its movement ops: a `ShapeTracker` (tinygrad's name)."""
        # view.py is built on this file, and few ever ask
        from glassgrad.graph.view import ShapeTracker
        return ShapeTracker.of(self)

    def over(self, src: tuple[UOp, ...]) -> UOp:
        """This node over other sources; it keeps the user's line."""
        return self if src == self.src else UOp(self.op, self.dtype, src, self.arg, self.place)

    def named(self, src: tuple[UOp, ...], new: Callable[[Symbol], Symbol | int]) -> UOp:
        """This node over other sources, with the variables in its argument exchanged, or set to numbers."""
        arg = replaced(self.arg, new) if self.symbolic and self.op in _SIZED else self.arg
        return UOp(self.op, self.dtype, src, arg, self.place)

    def toposort(self) -> list[UOp]:
        return toposort([self])

    def cached(self, what: str, make: Any) -> Any:
        """A value derived from this node alone, kept with it: `node.cached("bounds", compute)`."""
        cache = self._cache
        if cache is None:
            cache = self._cache = {}
        elif what in cache:
            return cache[what]
        value = cache[what] = make(self)
        return value

    # -- elementwise -----------------------------------------------------------------------------------------
    def _wrap(self, value: Any) -> UOp:
        return value if isinstance(value, UOp) else const(value, self.dtype)

    def alu(self, op: Op, *others: UOp) -> UOp:
        return UOp(op, dtypes.bool if op.compares else self.dtype, (self, *others))

    def __add__(self, y: Any) -> UOp: return self.alu(o.ADD, self._wrap(y))
    def __radd__(self, y: Any) -> UOp: return self._wrap(y).alu(o.ADD, self)
    def __sub__(self, y: Any) -> UOp: return self.alu(o.SUB, self._wrap(y))
    def __rsub__(self, y: Any) -> UOp: return self._wrap(y).alu(o.SUB, self)
    def __mul__(self, y: Any) -> UOp: return self.alu(o.MUL, self._wrap(y))
    def __rmul__(self, y: Any) -> UOp: return self._wrap(y).alu(o.MUL, self)
    def __truediv__(self, y: Any) -> UOp: return self.alu(o.DIV, self._wrap(y))
    def __rtruediv__(self, y: Any) -> UOp: return self._wrap(y).alu(o.DIV, self)
    def __floordiv__(self, y: Any) -> UOp: return self.alu(o.IDIV, self._wrap(y))
    def __mod__(self, y: Any) -> UOp: return self.alu(o.MOD, self._wrap(y))
    def __and__(self, y: Any) -> UOp: return self.alu(o.AND, self._wrap(y))
    def __or__(self, y: Any) -> UOp: return self.alu(o.OR, self._wrap(y))
    def __xor__(self, y: Any) -> UOp: return self.alu(o.XOR, self._wrap(y))
    def __lshift__(self, y: Any) -> UOp: return self.alu(o.SHL, self._wrap(y))
    def __rshift__(self, y: Any) -> UOp: return self.alu(o.SHR, self._wrap(y))
    def __lt__(self, y: Any) -> UOp: return self.alu(o.CMPLT, self._wrap(y))
    def __gt__(self, y: Any) -> UOp: return self._wrap(y).alu(o.CMPLT, self)
    def __neg__(self) -> UOp: return self.alu(o.NEG)
    def __invert__(self) -> UOp: return self.alu(o.NOT)
    def eq(self, y: Any) -> UOp: return self.alu(o.CMPEQ, self._wrap(y))
    def ne(self, y: Any) -> UOp: return self.alu(o.CMPNE, self._wrap(y))
    def ge(self, y: Any) -> UOp: return (self > y) | self.eq(y)   # not "not <": NaN is neither
    def maximum(self, y: Any) -> UOp: return self.alu(o.MAX, self._wrap(y))
    def minimum(self, y: Any) -> UOp: return self.alu(o.MIN, self._wrap(y))
    def mulacc(self, y: Any, z: Any) -> UOp: return self.alu(o.MULACC, self._wrap(y), self._wrap(z))
    def logical_not(self) -> UOp: return self.alu(o.NOT)
    def abs(self) -> UOp: return self.alu(o.ABS)
    def recip(self) -> UOp: return self.alu(o.RECIP)
    def sqrt(self) -> UOp: return self.alu(o.SQRT)
    def exp2(self) -> UOp: return self.alu(o.EXP2)
    def log2(self) -> UOp: return self.alu(o.LOG2)
    def sin(self) -> UOp: return self.alu(o.SIN)
    def trunc(self) -> UOp: return self.alu(o.TRUNC)

    def where(self, yes: Any, no: Any) -> UOp:
        """`yes` where this (bool) holds, else `no`; plain numbers take the other side's type."""
        if not isinstance(yes, UOp):
            yes = no._wrap(yes)
        return UOp(o.WHERE, yes.dtype, (self, yes, yes._wrap(no)))

    def cast(self, dtype: DType) -> UOp:
        if dtype is self.dtype:
            return self
        return const(self.arg, dtype) if self.op is o.CONST else UOp(o.CAST, dtype, (self,))

    def bitcast(self, dtype: DType) -> UOp:
        return self if dtype is self.dtype else UOp(o.BITCAST, dtype, (self,))

    # -- reductions ------------------------------------------------------------------------------------------
    def reduce(self, op: Op, axes: Iterable[int]) -> UOp:
        axes = tuple(sorted(a for a in axes if self.shape[a] != 1))
        return UOp(op, self.dtype, (self,), Axes(axes)) if axes else self

    def sum(self, axes: Iterable[int]) -> UOp: return self.reduce(o.SUM, axes)

    # -- movement: these check sizes, and drop what changes nothing ------------------------------------------
    def reshape(self, shape: Sequence[Dimension]) -> UOp:
        shape = tuple(shape)
        if shape == self.shape:
            return self
        source = self.src[0] if self.op is o.RESHAPE else self
        return source if shape == source.shape else UOp(o.RESHAPE, self.dtype, (source,), Reshape(shape))

    def permute(self, order: Sequence[int]) -> UOp:
        order = tuple(order)
        if order == tuple(range(len(order))):
            return self
        return UOp(o.PERMUTE, self.dtype, (self,), Permute(order))

    def expand(self, shape: Sequence[Dimension]) -> UOp:
        shape = tuple(shape)
        return self if shape == self.shape else UOp(o.EXPAND, self.dtype, (self,), Expand(shape))

    def pad(self, padding: Sequence[tuple[int, int]]) -> UOp:
        padding = tuple((before, after) for before, after in padding)
        return self if all(p == (0, 0) for p in padding) else UOp(o.PAD, self.dtype, (self,), Pad(padding))

    def shrink(self, bounds: Sequence[tuple[int, int]]) -> UOp:
        bounds = tuple((start, stop) for start, stop in bounds)
        if all(b == (0, n) for b, n in zip(bounds, self.shape)):
            return self
        return UOp(o.SHRINK, self.dtype, (self,), Shrink(bounds))

    def flip(self, axes: Iterable[int]) -> UOp:
        axes = tuple(sorted(axes))
        return UOp(o.FLIP, self.dtype, (self,), Flip(axes)) if axes else self

    def window(self, axis: int, size: int, stride: int = 1, dilation: int = 1) -> UOp:
        return UOp(o.WINDOW, self.dtype, (self,), Window(axis, size, stride, dilation))

    def unwindow(self, axis: int, stride: int, dilation: int, length: int) -> UOp:
        return UOp(o.UNWINDOW, self.dtype, (self,), Unwindow(axis, stride, dilation, length))

    def broadcast(self, shape: Shape) -> UOp:
        """This node at `shape`, by the usual rule: align right, repeat axes of size 1."""
        if self.shape == shape:
            return self
        return self.reshape((1,) * (len(shape) - len(self.shape)) + self.shape).expand(shape)

    # -- memory ----------------------------------------------------------------------------------------------
    def contiguous(self) -> UOp:
        return self if self.op in (o.BUFFER, o.CONTIGUOUS) else UOp(o.CONTIGUOUS, self.dtype, (self,))

    def detach(self) -> UOp:
        return self if self.op is o.DETACH and self.arg is None else UOp(o.DETACH, self.dtype, (self,))

    def copy_to(self, device: str) -> UOp:
        return UOp(o.COPY, self.dtype, (self,), Place(device))


# -- making leaves -------------------------------------------------------------------------------------------
def const(value: Any, dtype: DType | None = None) -> UOp:
    """A constant of shape (), its value rounded or wrapped into the type as a cast would; or a length as a number."""
    if isinstance(value, Length):
        return number_of(value, dtype or dtypes.default_int)
    if dtype is None:
        dtype = dtypes.from_py(value)
    key = (value, type(value), dtype) if value else (str(value), dtype)     # 0.0 and -0.0 are equal, and differ
    known = _constants.get(key)
    if known is None:
        if len(_constants) >= _MOST_CONSTANTS:
            _constants.clear()
        known = _constants[key] = UOp(o.CONST, dtype, (), convert(value, dtype))
    return known


_constants: dict[Any, UOp] = {}     # the latest constants, kept: they are small and come again with the next line
_MOST_CONSTANTS = 1024


def number_of(length: Length, dtype: DType) -> UOp:
    """A length as a number to compute with: what the variables in it say when a kernel runs."""
    return UOp(o.LENGTH, dtypes.index, (), Count(length)).cast(dtype)


def full(shape: Shape, value: Any, dtype: DType | None = None) -> UOp:
    return const(value, dtype).broadcast(tuple(shape))


def identity(op: Op, dtype: DType) -> UOp:
    """The constant that leaves `op` unchanged: where a reduction starts."""
    value = op.identity
    return const(dtype.min if value == "min" else dtype.max if value == "max" else value, dtype)


# -- shape and device rules ----------------------------------------------------------------------------------
def _shape(node: UOp) -> Shape:
    op, src, arg = node.op, node.src, node.arg
    kind = op.kind
    if kind in (Kind.BINARY, Kind.TERNARY):
        shape: Shape = ()
        for s in src:
            if s.shape != shape and s.shape != ():
                if shape != ():
                    raise Bug(f"{op.name} was built from different shapes: {[s.shape for s in src]}")
                shape = s.shape
        return shape
    if kind == Kind.UNARY or kind == Kind.MEMORY:
        return src[0].shape
    if kind == Kind.REDUCE:
        axes = arg.axes
        return tuple(1 if i in axes else n for i, n in enumerate(src[0].shape))
    if kind == Kind.MOVEMENT:
        return _movement_shape(op, src[0].shape, arg)
    if op in (o.BUFFER, o.PARAM, o.RANDOM, o.IOTA):
        shape = arg.shape
        return shape
    if op is o.GATHER:
        return src[1].shape + src[0].shape[1:]
    if op is o.SCATTER or op is o.SCAN:
        return src[0].shape
    return ()


def _movement_shape(op: Op, shape: Shape, arg: Any) -> Shape:
    if op is o.RESHAPE:
        if math.prod(shape) != math.prod(arg.shape):
            raise ShapeError("cannot reshape: the number of elements changes",
                             given=f"{shape} ({math.prod(shape)} elements) to {arg.shape} "
                                   f"({math.prod(arg.shape)} elements)",
                             expected=f"a shape with {math.prod(shape)} elements",
                             mend="use -1 for the size that should follow from the others")
        return tuple(arg.shape)
    if op is o.PERMUTE:
        return tuple(shape[i] for i in arg.order)
    if op is o.EXPAND:
        if len(arg.shape) != len(shape) or any(n != m and n != 1 for n, m in zip(shape, arg.shape)):
            raise ShapeError("cannot expand to this shape", given=f"{shape} to {arg.shape}",
                             expected="the same number of axes, where only axes of size 1 grow",
                             mend="reshape first, so that the axis to repeat has size 1")
        return tuple(arg.shape)
    if op is o.PAD:
        return tuple(n + before + after for n, (before, after) in zip(shape, arg.padding))
    if op is o.SHRINK:
        return tuple(stop - start for start, stop in arg.bounds)
    if op is o.WINDOW:
        n = (shape[arg.axis] - arg.dilation * (arg.size - 1) - 1) // arg.stride + 1
        if isinstance(n, Length) and n.min < 0:
            raise ShapeError("the window is longer than the axis may be", given=f"a window of {arg.size} over {shape}",
                             expected=f"an axis of at least {arg.dilation * (arg.size - 1) + 1} for every value of its "
                                      "variables", mend="raise the variable's lower bound")
        return shape[:arg.axis] + (n if isinstance(n, Length) else max(n, 0),) + shape[arg.axis + 1:] + (arg.size,)
    if op is o.UNWINDOW:
        return shape[:arg.axis] + (arg.length,) + shape[arg.axis + 1:]
    return shape  # FLIP


_SIZED = frozenset((o.RESHAPE, o.EXPAND, o.PAD, o.SHRINK, o.UNWINDOW, o.PARAM, o.LENGTH))   # arguments that hold sizes


def _symbolic(node: UOp) -> bool:
    for s in node.src:
        if s.symbolic:
            return True
    return node.op in _SIZED and any(True for _ in lengths_in(node.arg))


def concrete(roots: Sequence[UOp], value: Callable[[Symbol], int]) -> dict[UOp, UOp]:
    """Every node under the roots with its sizes as plain numbers, by what `value` says of the variables."""
    new: dict[UOp, UOp] = {}
    for node in toposort(roots):
        new[node] = node.named(tuple([new[s] for s in node.src]), value) if node.symbolic else node
    return new


def _device(node: UOp) -> str | None:
    if node.op is o.BUFFER or node.op is o.PARAM:
        device: str | None = node.arg.device
        return device
    if node.op is o.COPY:
        return str(node.arg.device)
    found: str | None = None
    for s in node.src:
        if s.device is not None and s.device != found:
            if found is not None:
                raise DeviceError("operands live on different devices", given=f"{found} and {s.device}",
                                  expected="one device", mend=f'move one: x.to("{found}")')
            found = s.device
    return found


# -- walking -------------------------------------------------------------------------------------------------
def toposort(roots: Iterable[UOp]) -> list[UOp]:
    """Every node under the roots, sources before users, each once; iterative, so depth is no limit."""
    done: set[UOp] = set()
    order: list[UOp] = []
    stack: list[tuple[UOp, bool]] = [(r, False) for r in reversed(list(roots))]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            order.append(node)
        elif node not in done:
            done.add(node)
            stack.append((node, True))
            for s in reversed(node.src):
                if s not in done:
                    stack.append((s, False))
    return order


def _flatten(root: UOp) -> list[tuple[Op, DType, tuple[int, ...], Any]]:
    order = toposort([root])
    place = {node: i for i, node in enumerate(order)}
    return [(n.op, n.dtype, tuple(place[s] for s in n.src), n.arg) for n in order]


def _unflatten(rows: list[tuple[Op, DType, tuple[int, ...], Any]]) -> UOp:
    nodes: list[UOp] = []
    for op, dtype, src, arg in rows:
        nodes.append(UOp(op, dtype, tuple(nodes[i] for i in src), arg))
    return nodes[-1]


def substitute(roots: Sequence[UOp], replace: dict[UOp, UOp]) -> list[UOp]:
    """The roots with some nodes exchanged (and everything above them rebuilt)."""
    new: dict[UOp, UOp] = dict(replace)
    for node in toposort(roots):
        if node not in new:
            src = tuple([new[s] for s in node.src])
            new[node] = node.over(src)
    return [new[r] for r in roots]
