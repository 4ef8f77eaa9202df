"""Bring operands to one dtype and one shape: type promotion and broadcasting. In: UOps and Python numbers. Out: UOps
that an op takes.

Python numbers are weak: they take the tensor's type, and change only its kind (int + 1.5 is a float). Two tensors are
promoted to the narrowest type that holds both. Shapes are aligned at the right; axes of size 1 repeat.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from glassgrad.base.errors import AxisError, InputError, ShapeError
from glassgrad.compiler.graph import DType, Length, Shape, UOp, const, dtypes, ops as o, promote

Axis = int | Sequence[int] | None

VERBS = {o.ADD: ("add", "+"), o.SUB: ("subtract", "-"), o.MUL: ("multiply", "*"), o.DIV: ("divide", "/"),
         o.IDIV: ("divide", "//"), o.MOD: ("take the remainder of", "%"), o.CMPLT: ("compare", "<"),
         o.CMPEQ: ("compare", "=="), o.CMPNE: ("compare", "!="), o.WHERE: ("choose between", "where"),
         o.MAX: ("take the maximum of", "max"), o.MIN: ("take the minimum of", "min"),
         o.AND: ("combine", "&"), o.OR: ("combine", "|"), o.XOR: ("combine", "^"),
         o.SHL: ("shift", "<<"), o.SHR: ("shift", ">>"), o.GATHER: ("index by", "and")}
_WRAPPING = frozenset({o.ADD, o.SUB, o.MUL, o.AND, o.OR, o.XOR})   # ops that are exact modulo 2^bits, signed or not


def broadcast_shape(a: Shape, b: Shape, op: o.Op = o.ADD) -> Shape:
    """Return the shape that two shapes broadcast to.

    >>> broadcast_shape((3, 1), (4,))
    (3, 4)
    """
    if a == b:
        return a
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    lead = len(longer) - len(shorter)
    out = list(longer)
    for i, n in enumerate(shorter):
        m = longer[lead + i]
        if n != m:
            if m == 1:
                out[lead + i] = n
            elif n != 1:
                verb, sign = VERBS.get(op, ("combine", op.name.lower()))
                raise ShapeError(f"cannot {verb} tensors of these shapes", given=f"{a} {sign} {b}",
                                 expected="sizes that are equal, or 1, counted from the last axis; "
                                          f"here {m if longer is a else n} meets {n if longer is a else m}",
                                 fix="reshape or transpose one side, or insert an axis of size 1 with unsqueeze")
    return tuple(out)


def number(value: Any, dtype: DType, op: o.Op = o.ADD) -> UOp:
    """Return a Python number as a node beside a tensor of `dtype`. The number is weak: only its kind can widen the
    tensor's type.

    >>> number(2, dtypes.float16).dtype, number(1.5, dtypes.int64).dtype, number(1, dtypes.bool).dtype
    (dtypes.float16, dtypes.float32, dtypes.int32)
    """
    kind = dtype.kind
    if kind == "f":
        return const(value, dtype)
    if isinstance(value, Length):
        return const(value, dtypes.default_int if kind == "b" else dtype)
    if value is True or value is False:
        return const(value, dtype)
    if isinstance(value, float):
        return const(value, dtypes.default_float)
    if kind == "b":
        dtype = dtypes.default_int
    if not dtype.min <= value <= dtype.max:
        if op.compares:   # 300 is larger than every uint8: compare where both are exact
            if -1 << 63 <= value < 1 << 64:
                return const(value, dtypes.int64 if value < 1 << 63 else dtypes.uint64)
            return const(_as_float(value), dtypes.float64)
        if op is o.MAX or op is o.MIN:   # a number beyond the type's range has the same effect as the type's limit
            return const(dtype.min if value < dtype.min else dtype.max, dtype)
        if op in _WRAPPING and dtype.kind == "u" and -dtype.max // 2 <= value < 0:
            return const(value + dtype.max + 1, dtype)   # x + -1 is x - 1, also where numbers have no sign
        raise InputError(f"a number does not fit into {dtype.name}", given=str(value),
                         expected=f"a number from {dtype.min} to {dtype.max}",
                         fix="cast the tensor to a wider type first: x.cast(dtypes.int64)")
    return const(value, dtype)


def _as_float(value: Any) -> float:
    """Return a Python number as a float; integers beyond all floats become infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def plain_number(value: Any, beside: str, expected: str = "a Tensor or a number",
                 fix: str = "make it a Tensor first: Tensor(value)") -> Any:
    """Return what a user wrote next to a tensor as a Python number; a bool, int, float, NumPy scalar or length is
    accepted."""
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Length):
        return size_from(value)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "item"):
        found = value.item()
        if isinstance(found, (bool, int, float)):
            return found
    raise InputError(f"cannot use this value {beside}", given=f"{value!r} of type {type(value).__name__}",
                     expected=expected, fix=fix)


def in_kind(value: Any, dtype: DType) -> Any:
    """A number as PyTorch's functions take one among elements of `dtype`: without its fraction for integers, as True or
    False for bools.

    >>> in_kind(2.5, dtypes.int64), in_kind(2.5, dtypes.bool), in_kind(2.5, dtypes.float16)
    (2, True, 2.5)
    """
    if dtype.kind == "b" and isinstance(value, (int, float)):
        return bool(value)
    return int(value) if dtype.kind in "iu" and isinstance(value, float) and math.isfinite(value) else value


def broadcast_pair(x: UOp, y: UOp, op: o.Op = o.ADD) -> tuple[UOp, UOp]:
    """Bring two operands to one dtype and one shape (a shape of () is left alone, because it broadcasts to any)."""
    if x.dtype is not y.dtype:
        dtype = promote(x.dtype, y.dtype)
        x, y = x.cast(dtype), y.cast(dtype)
    a, b = x.shape, y.shape
    if a != b and a != () and b != ():
        shape = broadcast_shape(a, b, op)
        return x.broadcast(shape), y.broadcast(shape)
    return x, y


def broadcast_all(operands: list[UOp], op: o.Op) -> list[UOp]:
    """Bring several operands to one shape; the caller promotes their dtypes."""
    shape: Shape = ()
    for x in operands:
        shape = broadcast_shape(shape, x.shape, op)
    return [x if x.shape == () else x.broadcast(shape) for x in operands]


# -- axes and shapes as users write them ---------------------------------------------------------------------
def whole(value: Any) -> int | None:
    """Return an integer from what a user wrote as one (also a NumPy integer or a one-element tensor); None if it is
    none.

    >>> whole(3), whole(1.5), whole(True)
    (3, None, None)
    """
    if type(value) is int:
        return value
    if isinstance(value, (bool, type)) or not hasattr(value, "__index__"):
        return None
    try:
        return value.__index__()  # type: ignore[no-any-return]
    except TypeError:              # an array of several
        return None


def resolve_axis(axis: Any, rank: int, what: str, extra: int = 0) -> int:
    """Return an axis counted from the front; negative axes count from the end. `extra` axes past the last may be
    named."""
    number, reach = whole(axis), rank + extra
    if number is None:
        raise InputError(f"{what} needs an integer as its axis", given=f"{axis!r} of type {type(axis).__name__}",
                         expected="an int", fix="write axis=0, for example")
    axis = number
    if not -max(reach, 1) <= axis < max(reach, 1):
        last = f"an axis from {-reach} to {reach - 1}" if reach else "axis 0 or -1, or none at all"
        raise AxisError(f"{what} was given an axis that the tensor does not have",
                        given=f"axis {axis} of a tensor with {rank} {'axis' if rank == 1 else 'axes'}",
                        expected=last, fix="check the tensor's shape: print(x.shape)")
    return axis + reach if axis < 0 and reach else axis


def working_axis(axis: Any, rank: int, what: str) -> int:
    """Resolve an axis for a method that takes an axis apart; raise for a tensor without axes."""
    if rank == 0:
        raise ShapeError(f"{what} needs an axis to work along", given="shape (), a single number",
                         expected="at least 1 axis", fix="give it one first: x.reshape(1)")
    return resolve_axis(axis, rank, what)


def resolve_axes(axis: Any, rank: int, what: str) -> tuple[int, ...]:
    """Resolve one axis, several, or None for all of them; none may occur twice."""
    if axis is None:
        return tuple(range(rank))
    if not isinstance(axis, (tuple, list)):
        axes: tuple[int, ...] = (resolve_axis(axis, rank, what),)
    else:
        axes = tuple(resolve_axis(a, rank, what) for a in axis)
        if len(set(axes)) != len(axes):
            raise AxisError(f"{what} was given the same axis twice", given=f"axis={tuple(axis)}",
                            expected="each axis at most once", fix="remove the repeated axis")
    return () if rank == 0 else axes


def broadcasts_to(shape: Sequence[Any], wanted: Sequence[Any]) -> bool:
    """Return whether a shape can be broadcast to a wanted one: counted from the last axis, sizes are equal or 1.

    >>> broadcasts_to((3, 1), (2, 3, 4)), broadcasts_to((2, 3, 4), (3, 4))
    (True, False)
    """
    extra = len(wanted) - len(shape)
    return extra >= 0 and all(n in (1, m) for n, m in zip(shape, wanted[extra:]))


def one_row(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of f(2, 3) and of f((2, 3)) in the same form."""
    return tuple(args[0]) if len(args) == 1 and isinstance(args[0], (tuple, list)) else args


def shape_from(args: tuple[Any, ...], what: str) -> tuple[int, ...]:
    """Return a shape written as f(2, 3), f((2, 3)) or f([2, 3]); sizes may be symbolic."""
    sizes = []
    for n in one_row(args):
        size = size_from(n) if isinstance(n, Length) else whole(n)
        if size is None:
            raise InputError(f"{what} needs integers as sizes", given=f"{n!r} of type {type(n).__name__}",
                             expected="ints, such as (2, 3)", fix="write each size as an int")
        sizes.append(size)
    return tuple(sizes)


def size_from(n: Any) -> Any:
    """Return a size as an int, or as a length if it is symbolic; a variable must have its value."""
    if not isinstance(n, Length):
        return n.__index__()
    if not n.is_bound:
        raise InputError("a variable has no value yet", given=f"a size of {n}", expected="a variable with a value",
                         fix=f"bind it: {n}.bind({n.min})")
    return n
