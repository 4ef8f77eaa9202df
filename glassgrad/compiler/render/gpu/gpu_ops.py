"""Arithmetic on a GPU, where it differs from C. In: an op and values. Out: `CValue`s.

Integers wrap around via unsigned types: signed overflow is undefined in these languages. Products that are added to a
value are rounded once. Small floats are rounded and widened by the dialect's conversions.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from typing import Any

from glassgrad.compiler.graph import DType, UOp, dtypes, ops as o
from glassgrad.compiler.lower.missing_instructions import SMALL_FLOATS, carrier
from glassgrad.compiler.render.c.c_ops import C_OPS, CArithmetic, COp, CValue, infix
from glassgrad.compiler.render.gpu.dialects import Dialect
from glassgrad.compiler.render.gpu.skipped_rounding import is_ordinary


class GpuArithmetic(CArithmetic):
    """The arithmetic of a function that every thread of a group runs."""
    dialect: Dialect
    native_floats: frozenset[DType]        # small floats for which the chip has instructions
    operand: Any                           # the function's method that gives the value of a node

    def wrapping(self, dtype: DType, sign: str, x: CValue, y: CValue) -> CValue:
        """x sign y, computed on unsigned integers."""
        kind, bits = self.type(dtype), self.type(carrier(dtype))
        return CValue(f"({kind})(({bits}){x.inside} {sign} ({bits}){y.inside})", dtype)

    def shift(self, sign: str, dtype: DType, x: CValue, y: CValue) -> CValue:
        if sign == "<<" and may_overflow(dtype):
            bits = carrier(dtype)
            shifted = super().shift(sign, bits, CValue(f"({self.type(bits)}){x.inside}", bits), y)
            return CValue(f"({self.type(dtype)}){shifted.inside}", dtype)
        return super().shift(sign, dtype, x, y)

    def rounded_division(self, node: UOp) -> CValue:
        """A division that need not be correctly rounded, because its last bits are not kept."""
        values, d, dtype = [self.operand(s) for s in node.src], self.dialect, node.dtype
        is_quotient, ordinary = node.op is o.DIV, is_ordinary(node.src[-1])
        if is_quotient and not ordinary:
            return self.call(self.define("quotient", "f32", "f32 x, f32 y", *d.quotient), dtype, 0, *values)
        name, body = ("ordinary_reciprocal", d.ordinary_reciprocal) if ordinary else ("reciprocal", d.reciprocal)
        inverse = self.call(self.define(name, "f32", "f32 x", *body), dtype, 0, values[-1])
        return self.apply(o.MUL, dtype, values[0], inverse) if is_quotient else inverse

    def extreme(self, dtype: DType, x: CValue, y: CValue, sign: str, name: str) -> CValue:
        if self.dialect.extreme and dtype is dtypes.float32 and self.native_floats:
            body = [line.format(name=name) for line in self.dialect.extreme]
            return self.call(self.define(f"{name}_{self.type(dtype)}", "f32", "f32 x, f32 y", *body), dtype, 0, x, y)
        return super().extreme(dtype, x, y, sign, name)

    def power_of_two(self, dtype: DType, x: CValue) -> CValue:
        """2 to the power x, if the tree leaves that to the language: within 2 units of the last place."""
        if self.dialect.power_of_two and dtype is dtypes.float32 and self.native_floats:
            return self.call(self.define("power_of_two", "f32", "f32 x", *self.dialect.power_of_two), dtype, 0, x)
        return self.function("exp2", dtype, x)

    @property
    def ops(self) -> Mapping[o.Op, COp]:
        return GPU_OPS

    def cast(self, x: CValue, dtype: DType) -> CValue:
        small = next((d for d in (dtype, x.dtype) if d in SMALL_FLOATS), None)
        if small is None or dtype is x.dtype:
            return super().cast(x, dtype)
        f32, bits, conversion = self.type(dtypes.float32), self.type(small), self.dialect.small_floats[small]
        name = {dtypes.float16: "f16", dtypes.bfloat16: "bf16"}[small]
        if dtype is small:                  # from float32, to which other types are rounded first
            helper = self.define(f"round_{name}", bits, f"{f32} x", *conversion.round)
        else:
            helper = self.define(f"widen_{name}", f32, f"{bits} x", *conversion.widen)
        return self.call(helper, dtype, 0, x)


def may_overflow(dtype: DType) -> bool:
    """Whether overflow of this type is undefined: smaller integers are computed as int."""
    return dtype.kind == "i" and dtype.bits >= 32


def wrapping(sign: str) -> COp:
    """x sign y, where signed integers wrap around."""
    plain = infix(sign)

    def write(c: GpuArithmetic, dtype: DType, x: CValue, y: CValue) -> CValue:
        return c.wrapping(dtype, sign, x, y) if may_overflow(dtype) else plain(c, dtype, x, y)
    return write


# The entries of C_OPS, which call the methods above, and those that are written differently on a GPU.
GPU_OPS: ChainMap[o.Op, COp] = ChainMap({
    o.EXP2: lambda c, dtype, x: c.power_of_two(dtype, x),
    o.ADD: wrapping("+"),
    o.SUB: wrapping("-"),
    o.MUL: wrapping("*"),
}, C_OPS)
