"""What the renderers' tables of ops share. In: an op and its operands. Out: the line that writes it; a quotient.

A table has one line for each op: a function of the renderer, the operands' type and the operands.

IDIV and MOD round down, give 0 for a division by 0, and never trap. Instructions round towards zero, and trap by 0 and
where the least integer is divided by -1. A renderer's arithmetic (LLVM IR, WebAssembly) has `constant`, `apply`,
`select`, `bound` (a value that can be used more than once) and `truncated`, the instruction itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import DType, dtypes, ops as o

_OF_BOOLEANS = {o.ADD: o.OR, o.MUL: o.AND, o.MAX: o.OR, o.MIN: o.AND, o.CMPNE: o.XOR}      # the same on booleans


def line_of(table: Mapping[o.Op, Callable[..., Any]], op: o.Op, dtype: DType, language: str) -> Callable[..., Any]:
    """The line of a renderer's table that writes an op on values of `dtype`."""
    if dtype.kind == "f" and dtype.bits < 32 and op is not o.WHERE:
        raise Bug(f"{op.name} of {dtype.name} reached the {language} renderer; it must be computed in float32")
    if op not in table or dtype.kind not in op.takes:
        raise Bug(f"{op.name} of {dtype.name} reached the {language} renderer; it must be lowered before")
    return table[_OF_BOOLEANS.get(op, op) if dtype.kind == "b" else op]


def is_number(value: Any) -> bool:
    """Whether a float is a literal and not a NaN."""
    return value.constant is not None and bool(value.constant == value.constant)


def divide(to: Any, dtype: DType, x: Any, y: Any, remainder: bool) -> Any:
    """x // y, or x % y where `remainder`."""
    by = None if y.constant is None else int(y.constant)
    zero, one = to.constant(0, x, dtype), to.constant(1, x, dtype)
    if by is not None and by > 0 and by & (by - 1) == 0:          # both round down, whatever the sign
        if remainder:
            return to.apply(o.AND, dtype, x, to.constant(by - 1, x, dtype))
        return to.apply(o.SHR, dtype, x, to.constant(by.bit_length() - 1, x, dtype))
    if by is not None and by > 0 and (dtype.kind == "u" or x.low is not None and x.low >= 0):
        return to.truncated("u", dtype, x, y, remainder)
    x, y = to.bound(x), to.bound(y)
    if by is not None and by > 0:
        result = to.bound(to.truncated("s", dtype, x, y, remainder))
        if remainder:
            return to.select(to.apply(o.CMPLT, dtype, result, zero), to.apply(o.ADD, dtype, result, y), result)
        over = to.apply(o.CMPLT, dtype, x, to.apply(o.MUL, dtype, result, y))
        return to.select(over, to.apply(o.SUB, dtype, result, one), result)
    none = to.bound(to.apply(o.CMPEQ, dtype, y, zero))
    if dtype.kind == "u":
        return to.select(none, zero, to.truncated("u", dtype, x, to.select(none, one, y), remainder))
    minus = to.bound(to.apply(o.CMPEQ, dtype, y, to.constant(-1, y, dtype)))      # x / -1 is -x
    safe = to.bound(to.select(to.apply(o.OR, dtypes.bool, none, minus), one, y))
    quotient = to.bound(to.truncated("s", dtype, x, safe, False))
    rest = to.bound(to.apply(o.SUB, dtype, x, to.apply(o.MUL, dtype, quotient, safe)))
    mixed = to.apply(o.CMPLT, dtype, to.apply(o.XOR, dtype, rest, safe), zero)
    over = to.apply(o.AND, dtypes.bool, mixed, to.apply(o.CMPNE, dtype, rest, zero))
    if remainder:
        return to.select(over, to.apply(o.ADD, dtype, rest, safe), rest)          # by 1 instead of 0 or -1: 0
    floor = to.select(over, to.apply(o.SUB, dtype, quotient, one), quotient)
    return to.select(none, zero, to.select(minus, to.apply(o.SUB, dtype, zero, x), floor))
