"""Arithmetic in WGSL. In: operands as `CValue`s. Out: expressions, and the helpers they call.

`C_OPS` calls the methods below. WGSL has f32, i32, u32 and bool, so a value's `dtype` says how it is carried:

    int8, int16              i32, and uint8, uint16 as u32: each result is cut to its bits again
    small floats             the unsigned integers that hold their bits
    int64, uint64            vec2<u32>, the low word first; helpers compute (wgsl_int64.py)
    int64 that fits 32 bits  i32: counters, and what is cast from smaller integers. Its dtype is int32
    float64                  refused by the device

A comparison with NaN is written as `!(x == y)`, because `x != y` may be compiled as "both are numbers and differ".
"""

from __future__ import annotations

import math

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import DType, dtypes
from glassgrad.compiler.graph.index_algebra import fits
from glassgrad.compiler.graph.ops import Op
from glassgrad.compiler.lower.reduced_precision import SMALL_FLOATS, bits_of
from glassgrad.compiler.render.c.c_ops import NAMES, CArithmetic, CValue, kept, number
from glassgrad.compiler.render.wgsl.wgsl_int64 import HELPERS

LONG = (dtypes.int64, dtypes.uint64)
PAIR = "vec2<u32>"          # a 64-bit integer, the low word first
# Of numbers that fit 32 bits, these results fit too.
STAYS_SHORT = (o.CMPLT, o.CMPNE, o.CMPEQ, o.MAX, o.MIN, o.WHERE, o.AND, o.OR, o.XOR, o.NOT)
# Ops on pairs of words that are a call; a name with a place for the type differs by it. Others are written as usual.
LONG_OPS = {o.ADD: "add_64", o.SUB: "sub_64", o.MUL: "mul_64", o.NEG: "neg_64", o.CMPLT: "less_{}", o.SHL: "shl_64",
            o.SHR: "shr_{}", o.IDIV: "divide_{}", o.MOD: "modulo_{}"}


class WgslArithmetic(CArithmetic):
    """Ops on values of one number; lanes are threads."""
    language = "WGSL"

    # -- types and literals --------------------------------------------------------------------------------------
    def type(self, dtype: DType, lanes: int = 0) -> str:
        """The WGSL type that a value is carried in."""
        dtype = kept(dtype)
        if dtype is dtypes.float64:
            raise Bug("float64 reached the WGSL renderer, which has no such type")
        return PAIR if dtype in LONG else {"b": "bool", "f": "f32", "i": "i32", "u": "u32"}[dtype.kind]

    def constant(self, value: float | int | bool, dtype: DType) -> CValue:
        if dtype in SMALL_FLOATS:
            value, dtype = bits_of(float(value), dtype), kept(dtype)
        if dtype is dtypes.int64 and fits(int(value), int(value)):
            dtype = dtypes.int32
        if dtype.kind == "b":
            return CValue("true" if value else "false", dtype, constant=value)
        if dtype.kind == "f":
            bits = bits_of(float(value), dtype)
            if math.isfinite(value) and bits & 0x7FFFFFFF < 0x7F800000:
                return CValue(number(value, dtype), dtype, constant=value)
            return CValue(self.hidden(bits), dtype, constant=value)
        if dtype in LONG:
            return self.pair(int(value), dtype)
        text = f"{value}u" if dtype.kind == "u" else f"({value})" if value < 0 else str(value)
        return CValue("i32(-2147483648)" if text == "(-2147483648)" else text, dtype, constant=value)

    def hidden(self, bits: int) -> str:
        """Infinity or NaN, from a variable: as constants WGSL does not take them."""
        name = f"bits_{bits:x}"
        self.definitions.types.setdefault(name, f"var<private> {name}: u32 = 0x{bits:x}u;")
        return f"bitcast<f32>({name})"

    def opaque(self) -> str:
        """A function that returns its argument, which no compiler can tell: the last word of an argument is 0."""
        return self.define("opaque", "f32", "x: f32", "return bitcast<f32>(bitcast<u32>(x) ^ args[0].w);")

    def define(self, name: str, result: str, arguments: str, *body: str) -> str:
        if name not in self.definitions.helpers:
            lines = "\n".join(f"  {line}" for line in body)
            self.definitions.helpers[name] = f"fn {name}({arguments}) -> {result} {{\n{lines}\n}}"
        return name

    def long_helper(self, name: str) -> str:
        """A function of wgsl_int64.py, and those that it calls."""
        if name not in self.definitions.helpers:
            self.definitions.helpers[name] = HELPERS[name]
            for other in HELPERS:
                if other != name and f"{other}(" in HELPERS[name]:
                    self.long_helper(other)
        return name

    def helper(self, stem: str, dtype: DType, *body: str, names: str = "xy") -> str:
        """A function on values of one type, named after both."""
        kind = self.type(dtype)
        takes = ", ".join(f"{n}: {kind}" for n in names)
        return self.define(f"{stem}_{NAMES[kept(dtype)]}", kind, takes, *body)

    # -- 64 bits -------------------------------------------------------------------------------------------------
    def long(self, x: CValue, dtype: DType = dtypes.int64) -> CValue:
        """A 64-bit integer as two words."""
        if x.dtype in LONG:
            return x._replace(dtype=dtype)
        if x.constant is not None:
            return self.pair(int(x.constant), dtype)
        return self.call(self.long_helper("long_64"), dtype, 0, x)

    def pair(self, value: int, dtype: DType) -> CValue:
        """A 64-bit number as two words."""
        return CValue(f"{PAIR}({value & 0xFFFFFFFF}u, {value >> 32 & 0xFFFFFFFF}u)", dtype, constant=value)

    def short(self, x: CValue) -> CValue:
        """The low word of a 64-bit integer, as i32."""
        return CValue(f"i32({x.inside}.x)", dtypes.int32) if x.dtype in LONG else x

    def apply(self, op: Op, dtype: DType, *values: CValue) -> CValue:
        if dtype not in LONG:
            return super().apply(op, dtype, *values)
        numbers = values[1:] if op is o.WHERE else values
        divides = op in (o.IDIV, o.MOD) and (numbers[1].constant or 0) > 0
        if (op in STAYS_SHORT or divides) and all(v.dtype is dtypes.int32 for v in numbers):
            return super().apply(op, dtypes.int32, *values)
        pairs = [self.long(v, dtype) for v in numbers]
        if op in LONG_OPS:
            helper = self.long_helper(LONG_OPS[op].format(NAMES[dtype]))
            return self.call(helper, dtypes.bool if op is o.CMPLT else dtype, 0, *pairs)
        return super().apply(op, dtype, *values[:len(values) - len(pairs)], *pairs)

    # -- ops of up to 32 bits --------------------------------------------------------------------------------------
    def cut(self, dtype: DType, text: str) -> str:
        """A result of 32 bits as a smaller integer type has it."""
        return text if dtype.bits >= 32 or dtype.kind not in "iu" else f"extractBits({text}, 0u, {dtype.bits}u)"

    def infix(self, sign: str, x: CValue, y: CValue, dtype: DType) -> CValue:
        return CValue(self.cut(dtype, f"({x.inside} {sign} {y.inside})"), dtype)

    def negate(self, dtype: DType, x: CValue) -> CValue:
        return CValue(self.cut(dtype, f"(0u - {x.inside})" if dtype.kind == "u" else f"(-{x.inside})"), dtype)

    def invert(self, dtype: DType, x: CValue) -> CValue:
        return CValue(f"!{x.inside}" if dtype.kind == "b" else self.cut(dtype, f"(~{x.inside})"), dtype)

    def absolute(self, dtype: DType, x: CValue) -> CValue:
        name = self.long_helper("abs_64") if dtype is dtypes.int64 else "abs"
        return x if dtype.kind == "u" else CValue(self.cut(dtype, f"{name}({x.text})"), dtype)

    def function(self, name: str, dtype: DType, *arguments: CValue) -> CValue:
        return self.call(name, dtype, 0, *arguments)

    def multiply_add(self, dtype: DType, x: CValue, y: CValue, z: CValue) -> CValue:
        return self.call("fma", dtype, 0, x, y, z) if dtype.kind == "f" else super().multiply_add(dtype, x, y, z)

    def compare(self, sign: str, x: CValue, y: CValue) -> CValue:
        if x.dtype in LONG:
            return CValue(f"{'!' if sign == '!=' else ''}all({x.inside} == {y.inside})", dtypes.bool)
        if sign == "!=" and x.dtype is dtypes.float32:
            return CValue(f"!({x.inside} == {y.inside})", dtypes.bool)
        return CValue(f"({x.inside} {sign} {y.inside})", dtypes.bool)

    def logic(self, sign: str, x: CValue, y: CValue) -> CValue:
        text = f"!{x.inside} & {y.inside}" if sign == "<" else \
            f"{x.inside} {({'^': '!='}).get(sign, sign)} {y.inside}"
        return CValue(f"({text})", dtypes.bool)

    def select(self, dtype: DType, condition: CValue, yes: CValue, no: CValue) -> CValue:
        return CValue(f"select({no.text}, {yes.text}, {condition.text})", dtype)

    def extreme(self, dtype: DType, x: CValue, y: CValue, sign: str, name: str) -> CValue:
        """max or min of numbers; a NaN wins: no comparison with it holds."""
        if dtype in LONG:
            less = self.apply(o.CMPLT, dtype, x, y)
            return self.select(dtype, less, y, x) if name == "max" else self.select(dtype, less, x, y)
        if dtype.kind != "f":
            return self.call(name, dtype, 0, x, y)
        body = f"return select(y, x, x {sign} y || !(x == x));"
        return self.call(self.helper(name, dtype, body), dtype, 0, x, y)

    def shift(self, sign: str, dtype: DType, x: CValue, y: CValue) -> CValue:
        """0 where the distance is not below the number of bits."""
        if y.constant is not None:
            if not 0 <= y.constant < dtype.bits:
                return self.constant(0, dtype)
            return CValue(self.cut(dtype, f"({x.inside} {sign} {y.constant}u)"), dtype)
        zero = self.constant(0, dtype).text
        outside = f"u32(y) >= {dtype.bits}u"
        result = self.cut(dtype, f"x {sign} (u32(y) & 31u)")
        name = self.helper("left" if sign == "<<" else "right", dtype, f"return select({result}, {zero}, {outside});")
        return self.call(name, dtype, 0, x, y)

    def divide(self, dtype: DType, x: CValue, y: CValue, sign: str, name: str) -> CValue:
        """x // y or x % y of integers, rounding down; 0 where y is 0."""
        if y.constant is not None and y.constant > 0 and (dtype.kind == "u" or x.low is not None and x.low >= 0):
            return self.infix(sign, x, y, dtype)
        if dtype.kind == "u":
            body = ["if (y == 0u) { return 0u; }", f"return x {sign} y;"]
        elif sign == "/":          # by -1 nothing is divided: the least integer has no counterpart
            body = ["if (y == 0) { return 0; }", f"if (y == -1) {{ return {self.cut(dtype, '-x')}; }}",
                    "let q = x / y;", "let r = x % y;", "return select(q, q - 1, r != 0 && (r ^ y) < 0);"]
        else:
            body = ["if (y == 0 || y == -1) { return 0; }", "let r = x % y;",
                    "return select(r, r + y, r != 0 && (r ^ y) < 0);"]
        return self.call(self.helper(name, dtype, *body), dtype, 0, x, y)

    # -- conversions -----------------------------------------------------------------------------------------------
    def cast(self, x: CValue, dtype: DType) -> CValue:
        """The value in another type. float -> int as on other devices: the least integer where it cannot fit."""
        source = x.dtype
        if source is dtype:
            return x
        if dtype.kind == "b":
            zero = self.constant(0, source) if source not in LONG else CValue(f"{PAIR}()", source)
            return self.apply(o.CMPNE, source, x, zero)
        if source.kind == "f":
            return self._to_integer(x, dtype)
        if source in LONG:
            if dtype in LONG:
                return x._replace(dtype=dtype)
            if dtype.kind == "f":
                return self.call(self.long_helper(f"float_{NAMES[source]}"), dtype, 0, x)
            low = CValue(f"{x.inside}.x", dtypes.uint32)
            return low if dtype is dtypes.uint32 else self.cast(low, dtype)
        if dtype is dtypes.int64:          # what fits 32 bits stays as it is
            return CValue(f"{PAIR}({x.text}, 0u)", dtype) if source is dtypes.uint32 else self.cast(x, dtypes.int32)
        if dtype is dtypes.uint64:
            return self.long(self.cast(x, dtypes.int64), dtype)
        if self.type(source) == self.type(dtype) and source.bits <= dtype.bits:
            return x._replace(dtype=dtype)
        if self.type(source) == self.type(dtype):
            return CValue(self.cut(dtype, x.text), dtype)
        both_integers = "b" not in source.kind and "f" not in dtype.kind         # as constants, u32(-1) is an error
        convert = f"bitcast<{self.type(dtype)}>" if both_integers else self.type(dtype)
        return CValue(self.cut(dtype, f"{convert}({x.text})"), dtype)

    def _to_integer(self, x: CValue, dtype: DType) -> CValue:
        if dtype is dtypes.int64:
            return self.call(self.long_helper("i64_float"), dtype, 0, x)
        name = self.define("i32_float", "i32", "x: f32",
                           "if (x >= -2147483648.0f && x < 2147483648.0f) { return i32(x); }",
                           "return i32(-2147483648);")
        return self.call(name, dtype, 0, x)

    def bitcast(self, x: CValue, dtype: DType) -> CValue:
        to, source = kept(dtype), kept(x.dtype)
        if to is source or to in LONG or "f" not in (to.kind, source.kind):
            return self.cast(x._replace(dtype=source), to)._replace(dtype=dtype) if to not in LONG \
                else self.long(x, dtype)
        return CValue(f"bitcast<{self.type(dtype)}>({x.text})", dtype)
