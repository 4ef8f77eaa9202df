"""The one node class, and its operators. In: nodes, numbers. Out: `UOp`s.

`x * 2 + y` on nodes builds a graph; types are promoted and shapes broadcast. On patterns (rules/rewrite.py) the same
operators build a larger pattern. Shapes are checked only in shape_inference.py. A method that would change nothing
returns the node itself. node.py says what a node is, and how equal nodes become one object.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar

from glassgrad.base.errors import InputError
from glassgrad.base.source_lines import Place
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import DType, convert, dtypes, promote
from glassgrad.compiler.graph.node import Node, WeakNodeDict
from glassgrad.compiler.graph.op_arguments import (Axes, Count, Dimension, Expand, Flip, OnDevice, Pad, Permute,
                                                   Reshape, Shape, Shrink, Unwindow, Window)
from glassgrad.compiler.graph.ops import Op
from glassgrad.compiler.graph.symbolic import Length
from glassgrad.compiler.graph.view import ShapeTracker

E = TypeVar("E")       # the type of an expression


class Operators(Generic[E]):
    """Operators shared by nodes and patterns. A subclass defines `alu`, which applies an op to operands, and `_wrap`,
    which turns a plain number into an operand."""
    __slots__ = ()

    def alu(self, op: o.Op, *others: Any) -> E: raise NotImplementedError
    def _wrap(self, value: Any) -> Operators[E]: raise NotImplementedError
    def _binary(self, op: o.Op, x: Operators[E], y: Operators[E]) -> E: return x.alu(op, y)

    def __add__(self, y: Any) -> E: return self._binary(o.ADD, self, self._wrap(y))
    def __radd__(self, y: Any) -> E: return self._binary(o.ADD, self._wrap(y), self)
    def __sub__(self, y: Any) -> E: return self._binary(o.SUB, self, self._wrap(y))
    def __rsub__(self, y: Any) -> E: return self._binary(o.SUB, self._wrap(y), self)
    def __mul__(self, y: Any) -> E: return self._binary(o.MUL, self, self._wrap(y))
    def __rmul__(self, y: Any) -> E: return self._binary(o.MUL, self._wrap(y), self)
    def __truediv__(self, y: Any) -> E: return self._binary(o.DIV, self, self._wrap(y))
    def __rtruediv__(self, y: Any) -> E: return self._binary(o.DIV, self._wrap(y), self)
    def __floordiv__(self, y: Any) -> E: return self._binary(o.IDIV, self, self._wrap(y))
    def __mod__(self, y: Any) -> E: return self._binary(o.MOD, self, self._wrap(y))
    def __and__(self, y: Any) -> E: return self._binary(o.AND, self, self._wrap(y))
    def __or__(self, y: Any) -> E: return self._binary(o.OR, self, self._wrap(y))
    def __xor__(self, y: Any) -> E: return self._binary(o.XOR, self, self._wrap(y))
    def __lshift__(self, y: Any) -> E: return self._binary(o.SHL, self, self._wrap(y))
    def __rshift__(self, y: Any) -> E: return self._binary(o.SHR, self, self._wrap(y))
    def __lt__(self, y: Any) -> E: return self._binary(o.CMPLT, self, self._wrap(y))
    def __gt__(self, y: Any) -> E: return self._binary(o.CMPLT, self._wrap(y), self)
    def __neg__(self) -> E: return self.alu(o.NEG)
    def __invert__(self) -> E: return self.alu(o.NOT)
    def eq(self, y: Any) -> E: return self._binary(o.CMPEQ, self, self._wrap(y))
    def ne(self, y: Any) -> E: return self._binary(o.CMPNE, self, self._wrap(y))
    def maximum(self, y: Any) -> E: return self._binary(o.MAX, self, self._wrap(y))
    def minimum(self, y: Any) -> E: return self._binary(o.MIN, self, self._wrap(y))
    def mulacc(self, y: Any, z: Any) -> E: return self.alu(o.MULACC, self._wrap(y), self._wrap(z))
    def logical_not(self) -> E: return self.alu(o.NOT)
    def abs(self) -> E: return self.alu(o.ABS)
    def recip(self) -> E: return self.alu(o.RECIP)
    def sqrt(self) -> E: return self.alu(o.SQRT)
    def exp2(self) -> E: return self.alu(o.EXP2)
    def log2(self) -> E: return self.alu(o.LOG2)
    def sin(self) -> E: return self.alu(o.SIN)
    def trunc(self) -> E: return self.alu(o.TRUNC)
    def round(self) -> E: return self.alu(o.ROUND)


class UOp(Node, Operators["UOp"]):
    """One node: `op` applied to `src`, with elements of `dtype` and a small `arg`. Build with the methods below.

    >>> x = const(2.0) * 3.0
    >>> x.op, x is const(2.0) * 3.0, x.shape
    (Ops.MUL, True, ())
    """
    __slots__ = ()

    # -- elementwise -----------------------------------------------------------------------------------------
    def _wrap(self, value: Any) -> UOp:
        """A plain number as a constant of this node's type; but a float beside integers stays a float."""
        if isinstance(value, UOp):
            return value
        return const(value, self.dtype if type(value) is not float or self.dtype.kind == "f" else None)

    def alu(self, op: Op, *others: UOp) -> UOp:
        return new_node(UOp, op, dtypes.bool if op.compares else self.dtype, (self, *others))

    def _binary(self, op: Op, x: UOp, y: UOp) -> UOp:  # type: ignore[override]
        """Apply a binary op: promote the types, broadcast the shapes."""
        if x.dtype is not y.dtype:
            x, y = promoted(x, y)
        if x.shape != y.shape and x.shape and y.shape:
            x, y = broadcast_together(x, y)
        return new_node(UOp, op, dtypes.bool if op.compares else x.dtype, (x, y))

    def ge(self, y: Any) -> UOp: return (self > y) | self.eq(y)   # not "not <": NaN is neither
    def le(self, y: Any) -> UOp: return (self < y) | self.eq(y)

    def where(self, yes: Any, no: Any) -> UOp:
        """Select `yes` where this (bool) node holds, else `no`; plain numbers take the other side's type."""
        if not isinstance(yes, UOp):
            yes = no._wrap(yes)
        yes, no = promoted(yes, yes._wrap(no))
        return new_node(UOp, o.WHERE, yes.dtype, broadcast_together(self, yes, no))

    def cast(self, dtype: DType) -> UOp:
        if dtype is self.dtype:
            return self
        return const(self.arg, dtype) if self.op is o.CONST else new_node(UOp, o.CAST, dtype, (self,))

    def bitcast(self, dtype: DType) -> UOp:
        return self if dtype is self.dtype else UOp(o.BITCAST, dtype, (self,))

    # -- reductions ------------------------------------------------------------------------------------------
    def reduce(self, op: Op, axes: Iterable[int], place: Place | None = None) -> UOp:
        axes = tuple(sorted([a for a in axes if self.shape[a] != 1]))
        return new_node(UOp, op, self.dtype, (self,), Axes(axes), place) if axes else self

    def sum(self, axes: Iterable[int]) -> UOp: return self.reduce(o.SUM, axes)

    # -- movement: these check sizes, and return the node itself where nothing changes ------------------------
    def reshape(self, shape: Sequence[Dimension], place: Place | None = None) -> UOp:
        shape = tuple(shape)
        if shape == self.shape:
            return self
        # do not merge with a RESHAPE below: a tensor may refer to that node, and its gradient or value may be needed
        # later; the rules of algebra merge the two when the graph is scheduled
        return new_node(UOp, o.RESHAPE, self.dtype, (self,), Reshape(shape), place)

    def reshaped(self, shape: Sequence[Dimension]) -> UOp:
        """As `reshape`, merged with the RESHAPEs below: for compiler passes, to whose nodes no tensor refers."""
        return self.below((o.RESHAPE,)).reshape(shape)

    def permute(self, order: Sequence[int]) -> UOp:
        order = tuple(order)
        if order == tuple(range(len(order))):
            return self
        return new_node(UOp, o.PERMUTE, self.dtype, (self,), Permute(order))

    def expand(self, shape: Sequence[Dimension]) -> UOp:
        shape = tuple(shape)
        return self if shape == self.shape else new_node(UOp, o.EXPAND, self.dtype, (self,), Expand(shape))

    def pad(self, padding: Sequence[tuple[int, int]]) -> UOp:
        padding = tuple((before, after) for before, after in padding)
        return self if all(p == (0, 0) for p in padding) else UOp(o.PAD, self.dtype, (self,), Pad(padding))

    def shrink(self, bounds: Sequence[tuple[int, int]]) -> UOp:
        bounds = tuple((start, stop) for start, stop in bounds)
        if all(b == (0, n) for b, n in zip(bounds, self.shape)):
            return self
        return new_node(UOp, o.SHRINK, self.dtype, (self,), Shrink(bounds))

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
        return self if self.op in (o.BUFFER, o.CONTIGUOUS) else new_node(UOp, o.CONTIGUOUS, self.dtype, (self,))

    def detach(self) -> UOp:
        return self if self.op is o.DETACH and self.arg is None else new_node(UOp, o.DETACH, self.dtype, (self,))

    def copy_to(self, device: str) -> UOp:
        return UOp(o.COPY, self.dtype, (self,), OnDevice(device))

    @property
    def st(self) -> ShapeTracker:
        """The layout of this node's elements in the memory below its movement ops (tinygrad's `ShapeTracker`)."""
        return ShapeTracker.of(self)

    def _repr_svg_(self) -> str:
        """The graph under this node as SVG, for notebooks."""
        from glassgrad.compiler.graph.picture import graph_svg
        return graph_svg([self])

    @property
    def srcs(self) -> tuple[UOp, ...]:
        """The sources, under tinygrad's older name."""
        return self.src

    @property
    def realized(self) -> Any:
        """The memory that holds this node's value, found through movement ops; None before it is computed. (A tensor
        whose value was read keeps its graph; then `known_values` has its memory.)"""
        node = self
        while node.op is not o.BUFFER:
            value = known_values.get(node)
            if value is not None:
                node = value.base
            elif node.op.kind == o.Kind.MOVEMENT or node.op is o.DETACH:
                node = node.src[0]
            else:
                return None
        return node.arg

    @property
    def is_realized(self) -> bool:
        """Whether the value below the movement ops is in memory."""
        return self.realized is not None

    @property
    def buffer(self) -> Any:
        """The memory that holds this node's value; an error if it has none yet."""
        memory = self.realized
        if memory is None:
            raise InputError("this node has no memory yet", given=f"{self.op.name} of shape {self.shape}",
                             expected="a computed tensor", fix="call realize() on the tensor first")
        return memory


new_node = UOp.__new__       # the same as UOp(..), but faster to call than a class


def promoted(x: UOp, y: UOp) -> tuple[UOp, UOp]:
    """Two nodes in the narrowest type that holds both."""
    dtype = promote(x.dtype, y.dtype)
    return x.cast(dtype), y.cast(dtype)


def broadcast_together(*nodes: UOp) -> tuple[UOp, ...]:
    """Broadcast nodes to one shape: align right, repeat axes of size 1. A scalar stays: it combines with any shape.

    >>> [x.shape for x in broadcast_together(full((2, 1), 0), full((3,), 0), const(0))]
    [(2, 3), (2, 3), ()]
    """
    shapes = {node.shape for node in nodes if node.shape}
    if len(shapes) < 2:
        return nodes
    rank = max(map(len, shapes))
    rows = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    shape = tuple([next((n for n in sizes if n != 1), 1) for sizes in zip(*rows)])
    return tuple([node.broadcast(shape) if node.shape else node for node in nodes])


known_values: WeakNodeDict[UOp] = WeakNodeDict()      # values of computed nodes; maintained by engine/registry.py


# -- making leaves -------------------------------------------------------------------------------------------
def const(value: Any, dtype: DType | None = None) -> UOp:
    """A constant of shape (), its value rounded or wrapped as a cast would; a length becomes a LENGTH node."""
    if isinstance(value, Length):
        return number_of(value, dtype or dtypes.default_int)
    if dtype is None:
        dtype = dtypes.from_py(value)
    return _constant(value, dtype) if value else _constant(value, dtype, str(value))     # tells 0.0 from -0.0


@lru_cache(maxsize=1024, typed=True)        # the same few constants are made again and again
def _constant(value: Any, dtype: DType, _text: str = "") -> UOp:
    node = UOp(o.CONST, dtype, (), convert(value, dtype))
    node.place = None                       # not the line that made it first: it is shared
    return node


def number_of(length: Length, dtype: DType) -> UOp:
    """A symbolic size as a number to compute with; a kernel gets the values of its variables at launch."""
    return UOp(o.LENGTH, dtypes.index, (), Count(length)).cast(dtype)


def full(shape: Shape, value: Any, dtype: DType | None = None) -> UOp:
    return const(value, dtype).broadcast(tuple(shape))


def joined(parts: Sequence[UOp], axis: int) -> UOp:
    """Concatenate nodes of one type along an axis: each is padded to the full length, and WHERE selects by index."""
    parts = [p for p in parts if p.shape[axis]] or parts[:1]
    total, start = sum(p.shape[axis] for p in parts), parts[0].shape[axis]
    out = _padded(parts[0], axis, 0, total)
    for part in parts[1:]:
        out = placed(part, axis, start, out)
        start += part.shape[axis]
    return out


def placed(part: UOp, axis: int, start: int, rest: UOp) -> UOp:
    """`rest` with the elements from `start` on, along an axis, replaced by `part`."""
    total, n = rest.shape[axis], part.shape[axis]
    inside = full((n,), True, dtypes.bool).pad([(start, total - start - n)])
    inside = inside.reshape((1,) * axis + (total,) + (1,) * (len(part.shape) - axis - 1)).expand(rest.shape)
    return UOp(o.WHERE, part.dtype, (inside, _padded(part, axis, start, total), rest))


def _padded(part: UOp, axis: int, start: int, total: int) -> UOp:
    return part.pad([(start, total - start - n) if a == axis else (0, 0) for a, n in enumerate(part.shape)])


def identity(op: Op, dtype: DType) -> UOp:
    """The identity element of `op` as a constant: the initial value of a reduction."""
    value = op.identity
    return const(dtype.min if value == "min" else dtype.max if value == "max" else value, dtype)
