"""Arithmetic in WGSL. In: operands as `CValue`s. Out: expressions, and the helpers they call.

`C_OPS` calls the methods below. WGSL has bool and i32, u32, f32; adapters may have i64, u64 and f64 too, spelled so by
naga. A value's `dtype` says how it is carried:

    int8, int16              i32, and uint8, uint16 as u32: each result is cut to its bits again
    small floats             the unsigned integers that hold their bits
    int64 that fits 32 bits  i32: counters, and what is cast from smaller integers. Its dtype is int32

What a driver may get wrong is avoided: `x != y` of floats is written `!(x == y)`, because it may be compiled as "both
are numbers and differ"; maximum and minimum are comparisons; a conversion changes the width first, then the sign.
Divisions by 0 are defined: x / 0 is x, and x % 0 is 0.
"""

from __future__ import annotations

import math

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import DType, dtypes, round_float, wrapped
from glassgrad.compiler.graph.index_algebra import fits
from glassgrad.compiler.graph.ops import Op
from glassgrad.compiler.lower.reduced_precision import SMALL_FLOATS, bits_of, carrier
from glassgrad.compiler.render.c.c_ops import NAMES, CArithmetic, CValue, Spelling, kept, number

SUFFIX = {"i32": "", "u32": "u", "i64": "li", "u64": "lu"}
# Of numbers that fit 32 bits, these results fit too.
STAYS_SHORT = (o.CMPLT, o.CMPNE, o.CMPEQ, o.MAX, o.MIN, o.WHERE, o.AND, o.OR, o.XOR, o.NOT)


class WgslArithmetic(CArithmetic):
    """Ops on values of one number; lanes are threads."""
    language, spelling = "WGSL", Spelling("{name}")

    # -- types and literals --------------------------------------------------------------------------------------
    def type(self, dtype: DType, lanes: int = 0) -> str:
        """The WGSL type that a value is carried in."""
        dtype = kept(dtype)
        return "bool" if dtype.kind == "b" else f"{dtype.kind}{max(32, dtype.bits)}"

    def constant(self, value: float | int | bool, dtype: DType) -> CValue:
        return self.literal(value, dtypes.int32 if dtype is dtypes.int64 and fits(int(value), int(value)) else dtype)

    def literal(self, value: float | int | bool, dtype: DType) -> CValue:
        """A constant of this type exactly. Infinity and NaN come from a variable: as constants WGSL takes neither."""
        if dtype in SMALL_FLOATS:
            value, dtype = bits_of(float(value), dtype), kept(dtype)
        kind = self.type(dtype)
        if dtype.kind == "b":
            return CValue("true" if value else "false", dtype, constant=value)
        if dtype.kind != "f":
            value, end, least = int(value), SUFFIX[kind], dtype.kind == "i" and value == dtype.min
            text = f"{value}{end}" if value >= 0 else f"({value + 1}{end} - 1{end})" if least else f"({value}{end})"
        elif math.isfinite(round_float(value, dtype)):
            text = f"f64({number(value, dtype)})" if kind == "f64" else number(value, dtype)
        else:
            bits, whole = bits_of(float(value), dtype), self.type(carrier(dtype))
            self.definitions.types[f"bits_{bits:x}"] = f"var<private> bits_{bits:x}: {whole} = {bits}{SUFFIX[whole]};"
            text = f"bitcast<{kind}>(bits_{bits:x})"
        return CValue(text, dtype, constant=value)

    def opaque(self, x: CValue) -> CValue:
        """A number that no compiler knows to be this one: the last word of an argument is 0."""
        kind, bits = self.type(x.dtype), self.type(carrier(x.dtype))
        body = f"return bitcast<{kind}>(bitcast<{bits}>(x) ^ {bits}(args[0].w));"
        return self.call(self.helper("opaque", x.dtype, body, names="x"), x.dtype, 0, x)

    def define(self, name: str, result: str, arguments: str, *body: str) -> str:
        lines = "\n".join(f"  {line}" for line in body)
        self.definitions.helpers.setdefault(name, f"fn {name}({arguments}) -> {result} {{\n{lines}\n}}")
        return name

    def helper(self, stem: str, dtype: DType, *body: str, names: str = "xy") -> str:
        """A function on values of one type, named after both."""
        kind = self.type(dtype)
        return self.define(f"{stem}_{NAMES[kept(dtype)]}", kind, ", ".join(f"{n}: {kind}" for n in names), *body)

    # -- ops -------------------------------------------------------------------------------------------------------
    def in_bits(self, x: CValue, dtype: DType) -> CValue:
        """An int64, however it is carried, as int32 or int64: its low bits, or all of them."""
        if x.constant is not None:
            return self.literal(wrapped(int(x.constant), dtype), dtype)
        return x if x.dtype is dtype else CValue(f"{self.type(dtype)}({x.text})", dtype)

    def apply(self, op: Op, dtype: DType, *values: CValue) -> CValue:
        if dtype is dtypes.int64:
            first, numbers = values[:op is o.WHERE], values[op is o.WHERE:]
            stays = op in STAYS_SHORT or op in (o.IDIV, o.MOD) and (numbers[1].constant or 0) > 0
            if stays and all(v.dtype is dtypes.int32 for v in numbers):
                dtype = dtypes.int32
            values = (*first, *[self.in_bits(v, dtype) for v in numbers])
        return super().apply(op, dtype, *values)

    def cut(self, dtype: DType, text: str) -> str:
        """A result of 32 bits as a smaller integer type has it."""
        return text if dtype.bits >= 32 or dtype.kind not in "iu" else f"extractBits({text}, 0u, {dtype.bits}u)"

    def infix(self, sign: str, x: CValue, y: CValue, dtype: DType) -> CValue:
        return CValue(self.cut(dtype, f"({x.inside} {sign} {y.inside})"), dtype)

    def negate(self, dtype: DType, x: CValue) -> CValue:
        zero = self.literal(0, dtype).text if dtype.kind == "u" else ""
        return CValue(self.cut(dtype, f"({zero} - {x.inside})" if zero else f"(-{x.inside})"), dtype)

    def invert(self, dtype: DType, x: CValue) -> CValue:
        return CValue(f"!{x.inside}" if dtype.kind == "b" else self.cut(dtype, f"(~{x.inside})"), dtype)

    def absolute(self, dtype: DType, x: CValue) -> CValue:
        return CValue(self.cut(dtype, f"abs({x.text})"), dtype)

    def multiply_add(self, dtype: DType, x: CValue, y: CValue, z: CValue) -> CValue:
        return self.call("fma", dtype, 0, x, y, z) if dtype.kind == "f" else super().multiply_add(dtype, x, y, z)

    def compare(self, sign: str, x: CValue, y: CValue) -> CValue:
        differ = sign == "!=" and x.dtype.kind == "f"
        return CValue(f"!({x.inside} == {y.inside})" if differ else f"({x.inside} {sign} {y.inside})", dtypes.bool)

    def logic(self, sign: str, x: CValue, y: CValue) -> CValue:
        no, sign = ("!", "&") if sign == "<" else ("", "!=" if sign == "^" else sign)
        return CValue(f"({no}{x.inside} {sign} {y.inside})", dtypes.bool)

    def select(self, dtype: DType, condition: CValue, yes: CValue, no: CValue) -> CValue:
        return CValue(f"select({no.text}, {yes.text}, {condition.text})", dtype)

    def extreme(self, dtype: DType, x: CValue, y: CValue, sign: str, name: str) -> CValue:
        """max or min of numbers; a NaN wins: no comparison with it holds."""
        if dtype.kind != "f":
            return self.call(name, dtype, 0, x, y)
        body = f"return select(y, x, x {sign} y || !(x == x));"
        return self.call(self.helper(name, dtype, body), dtype, 0, x, y)

    def shift(self, sign: str, dtype: DType, x: CValue, y: CValue) -> CValue:
        """0 where the distance is not below the number of bits."""
        zero = self.literal(0, dtype)
        if y.constant is not None:
            shifted = CValue(self.cut(dtype, f"({x.inside} {sign} {y.constant}u)"), dtype)
            return shifted if 0 <= y.constant < dtype.bits else zero
        inside = f"y >= {zero.text} && y < {self.literal(dtype.bits, dtype).text}"
        result = self.cut(dtype, f"x {sign} (u32(y) & {max(32, dtype.bits) - 1}u)")
        name = self.helper("left" if sign == "<<" else "right", dtype,
                           f"return select({zero.text}, {result}, {inside});")
        return self.call(name, dtype, 0, x, y)

    def divide(self, dtype: DType, x: CValue, y: CValue, sign: str, name: str) -> CValue:
        """x // y or x % y of integers, rounding down; 0 where y is 0."""
        zero, one = self.literal(0, dtype).text, self.literal(1, dtype).text
        if y.constant is not None and y.constant > 0 and (dtype.kind == "u" or x.low is not None and x.low >= 0):
            return self.infix(sign, x, y, dtype)
        down = f"x % y != {zero} && ((x % y) ^ y) < {zero}" if dtype.kind == "i" else "false"
        lower = f"x / y - {one}" if sign == "/" else "x % y + y"
        result = self.cut(dtype, f"select(x {sign} y, {lower}, {down})")
        return self.call(self.helper(name, dtype, f"return select({result}, {zero}, y == {zero});"), dtype, 0, x, y)

    # -- conversions -----------------------------------------------------------------------------------------------
    def cast(self, x: CValue, dtype: DType) -> CValue:
        """The value in another type. float -> int as on other devices: the least integer where it cannot fit."""
        source = x.dtype
        if source is dtype:
            return x
        if dtype is dtypes.int64 and source.kind != "f" and source.bits < 64 and source is not dtypes.uint32:
            return self.cast(x, dtypes.int32)
        if dtype.kind == "b":
            return self.apply(o.CMPNE, source, x, self.literal(0, source))
        to = self.type(dtype)
        if source.kind == "f" and dtype.kind in "iu":
            limit, least = self.literal(2.0 ** (dtype.bits - 1), source).text, self.literal(dtype.min, dtype).text
            name = self.define(f"{to}_{self.type(source)}", to, f"x: {self.type(source)}",
                               f"return select({least}, {to}(x), x >= -{limit} && x < {limit});")
            return self.call(name, dtype, 0, x)
        if source.kind == "b" or dtype.kind == "f":
            return CValue(f"{to}({x.text})", dtype)
        wide, text = f"{source.kind}{to[1:]}", x.text
        text = text if wide == self.type(source) else f"{wide}({text})"
        text = text if wide == to else f"bitcast<{to}>({text})"
        return CValue(text if wide == to and source.bits <= dtype.bits else self.cut(dtype, text), dtype)

    def bitcast(self, x: CValue, dtype: DType) -> CValue:
        to, source = kept(dtype), kept(x.dtype)
        if "f" in (to.kind, source.kind) and to is not source:
            return CValue(f"bitcast<{self.type(dtype)}>({x.text})", dtype)
        return self.cast(x._replace(dtype=source), to)._replace(dtype=dtype)
