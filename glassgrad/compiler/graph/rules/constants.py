"""One op on plain numbers. In: an op, constants. Out: a constant, as the op's meaning has it. Loads no NumPy.

Python's floats are float64, which holds sums, products, quotients and square roots of float32 so exactly that rounding
them once more gives float32's own answer; the narrower types compute in float32 by definition.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import DType, convert, dtypes
from glassgrad.compiler.graph.ops import Op
from glassgrad.compiler.graph.uop import UOp, const


def fold(node: UOp) -> UOp | None:
    """The constant that an elementwise node of constants is, or None where it has no one exact answer.

    >>> fold(const(0.1) + 0.2).arg, fold(const(7, dtypes.int8) * 100).arg, fold(const(1.0) / 0.0).arg
    (0.30000001192092896, -68, inf)
    """
    values = [s.arg for s in node.src]
    if node.op is o.CAST:
        return const(values[0], node.dtype)
    meaning = (_FLOATS if node.src[-1].dtype.kind == "f" else _INTEGERS).get(node.op) or _ANY.get(node.op)
    if meaning is None:
        return None
    if node.op is o.MULACC:                    # rounded after the product too, as the table has it
        working = dtypes.float32 if node.dtype.kind == "f" and node.dtype.bits < 32 else node.dtype
        values = [convert(values[0] * values[1], working), values[2]]
    result = meaning(node.src[0].dtype, *values)
    return None if result is None else const(result, node.dtype)


def _divide(dtype: DType, x: float, y: float) -> float:
    if y != 0:
        return x / y
    return math.nan if x == 0 or x != x else math.copysign(math.inf, x) * math.copysign(1, y)


def _sqrt(dtype: DType, x: float) -> float:
    return math.sqrt(x) if x >= 0 else (x if x == 0 or x != x else math.nan)


def _trunc(dtype: DType, x: float) -> float:
    return math.copysign(math.trunc(x), x) if math.isfinite(x) else x


def _choose(pick: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """max or min: NaN wins; which of 0.0 and -0.0 wins is not defined."""
    def choose(dtype: DType, x: Any, y: Any) -> Any:
        if x != x or y != y:
            return math.nan
        if x == y == 0 and math.copysign(1, x) != math.copysign(1, y):
            return None
        return pick(x, y)
    return choose


def _exp2(dtype: DType, x: float) -> float:
    try:
        return float(2.0 ** x)
    except OverflowError:
        return math.inf


def _log2(dtype: DType, x: float) -> float:
    return math.log2(x) if x > 0 else (-math.inf if x == 0 else math.nan)


def _shift(move: Callable[[int, int], int]) -> Callable[..., int]:
    return lambda dtype, x, y: move(x, y) if 0 <= y < dtype.bits else 0


_ANY: dict[Op, Callable[..., Any]] = {
    o.ADD: lambda dtype, x, y: x + y, o.SUB: lambda dtype, x, y: x - y, o.MUL: lambda dtype, x, y: x * y,
    o.NEG: lambda dtype, x: -x, o.ABS: lambda dtype, x: abs(x), o.MULACC: lambda dtype, xy, z: xy + z,
    o.MAX: _choose(max), o.MIN: _choose(min), o.WHERE: lambda dtype, c, x, y: x if c else y,
    o.CMPLT: lambda dtype, x, y: x < y, o.CMPEQ: lambda dtype, x, y: x == y, o.CMPNE: lambda dtype, x, y: x != y,
}
_FLOATS: dict[Op, Callable[..., Any]] = {
    o.DIV: _divide, o.RECIP: lambda dtype, x: _divide(dtype, 1.0, x), o.SQRT: _sqrt, o.TRUNC: _trunc,
    o.EXP2: _exp2, o.LOG2: _log2, o.SIN: lambda dtype, x: math.sin(x) if math.isfinite(x) else math.nan,
}
_INTEGERS: dict[Op, Callable[..., Any]] = {
    o.IDIV: lambda dtype, x, y: x // y if y else 0, o.MOD: lambda dtype, x, y: x % y if y else 0,
    o.AND: lambda dtype, x, y: x & y, o.OR: lambda dtype, x, y: x | y, o.XOR: lambda dtype, x, y: x ^ y,
    o.NOT: lambda dtype, x: not x if dtype.kind == "b" else ~x,
    o.SHL: _shift(lambda x, y: x << y), o.SHR: _shift(lambda x, y: x >> y),
}
ROUNDED = (o.EXP2, o.LOG2, o.SIN)              # exact answers that every device approximates in its own way
EXACT = tuple(op for op in (*_ANY, *_FLOATS, *_INTEGERS, o.CAST) if op not in ROUNDED)
