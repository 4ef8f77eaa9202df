"""What writing functions as polynomials needs: a float's layout, exact constants, Horner's scheme.

In: numbers and UOps. Out: constants and UOps. Does not know any particular function.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import DType, UOp, const, dtypes

# The arg of a WHERE whose last source few elements need, and which costs much. Its condition is an integer below a
# constant, so that one maximum tells whether any lane needs it: compiler/optimize/moves/cold_path.py then branches
# around it.
RARELY = "rarely"


class Layout(NamedTuple):
    """How a float is made of bits: sign, then exponent + bias, then the mantissa without its leading 1."""
    dtype: DType
    unsigned: DType
    signed: DType
    mantissa: int
    bias: int

    def number(self, value: float | Fraction) -> UOp:
        return const(float(value), self.dtype)

    def bits(self, value: int) -> UOp:
        return const(value, self.unsigned)


_LAYOUTS = {dtypes.float32: Layout(dtypes.float32, dtypes.uint32, dtypes.int32, 23, 127),
            dtypes.float64: Layout(dtypes.float64, dtypes.uint64, dtypes.int64, 52, 1023)}


def layout_of(dtype: DType) -> Layout:
    if dtype not in _LAYOUTS:
        raise Bug(f"functions are expanded for float32 and float64, not {dtype.name}: cast to float32 first")
    return _LAYOUTS[dtype]


def pieces(value: Fraction, sizes: Sequence[int], layout: Layout) -> list[UOp]:
    """Constants that sum to `value`: the first ones of so many bits, then one of full width.

    A piece of 24 - k bits times an integer of k bits is exact in float32, so subtracting multiples of `value` piece by
    piece loses nothing, whether or not the target fuses multiply and add.
    """
    found = []
    for size in sizes:
        exponent = math.frexp(float(value))[1]                       # value < 2 ** exponent
        unit = Fraction(2) ** (exponent - size)
        piece = round(value / unit) * unit
        found.append(layout.number(piece))
        value -= piece
    return [*found, layout.number(value)]


def horner(x: UOp, coefficients: Sequence[float], layout: Layout) -> UOp:
    """c[0] + c[1]*x + c[2]*x*x + ..., one multiply-add a step."""
    total = layout.number(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total.mulacc(x, layout.number(c))
    return total
