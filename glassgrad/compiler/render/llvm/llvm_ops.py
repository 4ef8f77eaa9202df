"""Arithmetic in LLVM IR. In: operands as `LlvmValue`s. Out: lines of IR, and the `LlvmValue` that names the result.

`LLVM_OPS`, at the end, has one line for each op. Every op is defined for all operands, as declared: nothing traps, and
nothing is poison. Booleans are i1 (a byte in memory); float16, bfloat16 and fp8 are held as integers with their bits,
so no library is called for them. Does not know loops, memory or where lines go (the subclass has `line`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import DType, bits_of, dtypes, round_float
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.render.llvm_and_wasm import divide, is_number
from glassgrad.compiler.render.value_placement import fold_lanes, line_of


class LlvmValue(NamedTuple):
    """An SSA name or literal: `text` without its type, the element `type`, lanes (0: a scalar), and facts."""
    text: str
    type: str
    lanes: int = 0
    # the value of a literal, the same in all lanes (for small floats: its bits)
    constant: float | int | bool | None = None
    low: int | None = None                         # a lower bound of the value, if one is known

    @property
    def full(self) -> str:
        """The whole type: `<16 x float>`."""
        return f"<{self.lanes} x {self.type}>" if self.lanes else self.type

    @property
    def typed(self) -> str:
        return f"<{self.lanes} x {self.type}> {self.text}" if self.lanes else f"{self.type} {self.text}"


TYPES: dict[DType, str] = {
    dtypes.bool: "i1", dtypes.int8: "i8", dtypes.uint8: "i8", dtypes.int16: "i16", dtypes.uint16: "i16",
    dtypes.int32: "i32", dtypes.uint32: "i32", dtypes.int64: "i64", dtypes.uint64: "i64",
    **dict.fromkeys(dtypes.fp8s, "i8"), dtypes.float16: "i16", dtypes.bfloat16: "i16", dtypes.float32: "float",
    dtypes.float64: "double",
}
SHORT = {"float": "f32", "double": "f64", "half": "f16", "ptr": "p0"}
BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "float": 32, "double": 64}


def literal(value: float | int | bool, dtype: DType, type_: str | None = None) -> LlvmValue:
    """A scalar constant. LLVM wants the exact bits of floats, as those of a double."""
    if dtype.kind == "b":
        return LlvmValue("true" if value else "false", "i1", constant=bool(value))
    if dtype.kind in "iu":
        return LlvmValue(str(int(value)), type_ or TYPES[dtype], constant=int(value))
    if dtype.bits < 32:
        bits = bits_of(float(value), dtype)
        return LlvmValue(str(bits), TYPES[dtype], constant=bits)
    number = round_float(value, dtype)
    return LlvmValue(f"0x{bits_of(number, dtypes.float64):016X}", TYPES[dtype], constant=number)


def list_of(values: Sequence[int | bool], type_: str) -> LlvmValue:
    """A vector of integers or booleans, written out."""
    texts = [str(v).lower() if type_ == "i1" else str(v) for v in values]
    return _vector(texts, type_, values[0] if len(set(texts)) == 1 else None)


def _vector(texts: list[str], type_: str, constant: float | int | bool | None) -> LlvmValue:
    if constant == 0 and type_ != "i1" and math.copysign(1, constant) > 0:
        return LlvmValue("zeroinitializer", type_, len(texts), constant)
    if constant is not None:
        return LlvmValue(f"splat ({type_} {texts[0]})", type_, len(texts), constant)
    return LlvmValue("<" + ", ".join([f"{type_} {t}" for t in texts]) + ">", type_, len(texts), constant)


class LlvmArithmetic:
    """Ops on LlvmValues of equal width. `line(text)` writes a line, `declare(text)` declares an intrinsic."""
    target: Target
    names: int = 0

    def apply(self, op: o.Op, dtype: DType, *values: LlvmValue) -> LlvmValue:
        """Apply an op to values of `dtype`, by its line in the table."""
        result: LlvmValue = line_of(LLVM_OPS, op, dtype, "LLVM")(self, dtype, *values)
        return result

    def line(self, text: str) -> None:
        raise NotImplementedError

    def declare(self, result: str, name: str, arguments: str) -> None:
        raise NotImplementedError

    def put(self, text: str, type_: str, lanes: int) -> LlvmValue:
        """Write one instruction with a result."""
        self.names += 1
        name = f"%v{self.names}"
        self.line(f"{name} = {text}")
        return LlvmValue(name, type_, lanes)

    def call(self, name: str, type_: str, lanes: int, *arguments: LlvmValue, extra: str = "") -> LlvmValue:
        """Call an intrinsic that is overloaded on the type of its first argument."""
        like = arguments[0]
        mangled = f"{'v' + str(like.lanes) if like.lanes else ''}{SHORT.get(like.type, like.type)}"
        result = f"<{lanes} x {type_}>" if lanes else type_
        self.declare(result, f"@{name}.{mangled}", ", ".join([a.full for a in arguments]) + (", i1" if extra else ""))
        given = ", ".join([a.typed for a in arguments]) + extra
        return self.put(f"call {result} @{name}.{mangled}({given})", type_, lanes)

    def constant(self, value: float | int | bool, like: LlvmValue, dtype: DType) -> LlvmValue:
        """A constant as wide as `like`."""
        return self.wide(literal(value, dtype, like.type if dtype.kind in "iu" else None), like.lanes)

    def wide(self, value: LlvmValue, lanes: int) -> LlvmValue:
        """A value broadcast to all lanes."""
        if value.lanes == lanes:
            return value
        if value.lanes:
            raise Bug(f"a vector of {value.lanes} lanes is used where {lanes or 'a scalar'} is needed")
        if value.constant is not None:
            return _vector([value.text] * lanes, value.type, value.constant)
        full = f"<{lanes} x {value.type}>"
        first = self.put(f"insertelement {full} poison, {value.typed}, i64 0", value.type, lanes)
        return self.put(f"shufflevector {first.typed}, {full} poison, <{lanes} x i32> zeroinitializer", value.type,
                        lanes)

    def shuffle(self, value: LlvmValue, order: list[int], other: LlvmValue | None = None) -> LlvmValue:
        """Some lanes of a vector, in the given order; the lanes of `other` are numbered after those of `value`."""
        picked = ", ".join([f"i32 {i}" for i in order])
        second = f"{value.full} poison" if other is None else other.typed
        return self.put(f"shufflevector {value.typed}, {second}, <{len(order)} x i32> <{picked}>",
                        value.type, len(order))

    def select(self, condition: LlvmValue, yes: LlvmValue, no: LlvmValue) -> LlvmValue:
        if yes.lanes:
            condition = self.wide(condition, yes.lanes)
        return self.put(f"select {condition.typed}, {yes.typed}, {no.typed}", yes.type, yes.lanes)

    def instruction(self, name: str, a: LlvmValue, b: LlvmValue) -> LlvmValue:
        return self.put(f"{name} {a.typed}, {b.text}", a.type, a.lanes)

    def compare(self, how: str, a: LlvmValue, b: LlvmValue) -> LlvmValue:
        name = "fcmp" if a.type in ("float", "double") else "icmp"
        return self.put(f"{name} {how} {a.typed}, {b.text}", "i1", a.lanes)

    # -- ops -----------------------------------------------------------------------------------------------------
    def negate(self, dtype: DType, x: LlvmValue) -> LlvmValue:
        if dtype.kind == "f":
            return self.put(f"fneg {x.typed}", x.type, x.lanes)
        return self.instruction("sub", self.constant(0, x, dtype), x)

    def absolute(self, dtype: DType, x: LlvmValue) -> LlvmValue:
        if dtype.kind == "f":
            return self.call("llvm.fabs", x.type, x.lanes, x)
        return self.call("llvm.abs", x.type, x.lanes, x, extra=", i1 false") if dtype.kind == "i" else x

    def invert(self, dtype: DType, x: LlvmValue) -> LlvmValue:
        return self.instruction("xor", x, self.constant(True if dtype.kind == "b" else -1, x, dtype))

    def less(self, dtype: DType, x: LlvmValue, y: LlvmValue) -> LlvmValue:
        return self.compare({"f": "olt", "i": "slt", "u": "ult"}[dtype.kind], x, y)

    def multiply_add(self, dtype: DType, x: LlvmValue, y: LlvmValue, z: LlvmValue) -> LlvmValue:
        if dtype.kind == "f" and self.target.has_fma:
            return self.call("llvm.fma", x.type, x.lanes, x, y, z)
        return self.apply(o.ADD, dtype, self.apply(o.MUL, dtype, x, y), z)

    def extreme(self, dtype: DType, x: LlvmValue, y: LlvmValue, name: str, how: str) -> LlvmValue:
        """max or min; NaN wins."""
        if dtype.kind != "f":
            return self.call(f"llvm.{'s' if dtype.kind == 'i' else 'u'}{name}", x.type, x.lanes, x, y)
        # "x > y ? x : y" is one instruction, and gives y if either is NaN; NaN in x needs a test of its own
        if is_number(y):
            x, y = y, x
        best = self.select(self.compare(how, x, y), x, y)
        return best if is_number(x) else self.select(self.compare("uno", x, x), x, best)

    def truncated(self, sign: str, dtype: DType, x: LlvmValue, y: LlvmValue, remainder: bool) -> LlvmValue:
        """x / y or its remainder, rounding towards zero, of signed ("s") or unsigned ("u") numbers. There is no vector
        instruction for integers, but for doubles, which are wide enough for the quotient of two int32s."""
        if x.lanes and x.type == "i32" and sign == "s" and y.constant is None and not remainder:
            a, b = (self.convert("sitofp", number, "double") for number in (x, y))
            return self.convert("fptosi", self.instruction("fdiv", a, b), "i32")
        return self.instruction(f"{sign}rem" if remainder else f"{sign}div", x, y)

    def fold(self, combine: o.Op, dtype: DType, value: LlvmValue) -> LlvmValue:
        """Combine all lanes."""
        def part(x: LlvmValue, first: int, stop: int) -> LlvmValue:
            if stop - first > 1:
                return self.shuffle(x, list(range(first, stop)))
            return self.put(f"extractelement {x.typed}, i64 {first}", x.type, 0) if x.lanes else x
        return fold_lanes(value.lanes, value, part, lambda low, high: self.apply(combine, dtype, low, high))

    # -- conversions ---------------------------------------------------------------------------------------------
    def converted(self, x: LlvmValue, source: DType, dtype: DType) -> LlvmValue:
        """Convert a value to another type. float -> int32 or int64 as on x86: the least integer if it does not fit."""
        a, b = source.kind, dtype.kind
        to = TYPES[dtype]
        if source is dtype:
            return x
        if {source, dtype} == {dtypes.float16, dtypes.float32}:
            return self._half(x, to)
        if b == "b":
            return self.compare("une" if a == "f" else "ne", x, self.constant(0, x, source))
        if a == "b":
            return self.select(x, self.wide(literal(1, dtype), x.lanes), self.wide(literal(0, dtype), x.lanes))
        if a == "f" and b == "f":
            return self.convert("fpext" if dtype.bits > source.bits else "fptrunc", x, to)
        if b == "f":
            return self.convert("sitofp" if a == "i" else "uitofp", x, to)
        if a == "f":
            return self._to_signed(x, source, dtype.bits)
        if BITS[x.type] == BITS[to]:
            return x
        if x.lanes == 3 and x.type == "i64" and to == "i8":     # LLVM 22 aborts on this truncation for AArch64
            return self._low_bytes(x)
        return self.convert("trunc" if BITS[to] < BITS[x.type] else "sext" if a == "i" else "zext", x, to)

    def _low_bytes(self, x: LlvmValue) -> LlvmValue:
        """The lowest byte of every i64 lane, taken from the vector's bytes (little-endian)."""
        whole = self.put(f"bitcast {x.typed} to <{8 * x.lanes} x i8>", "i8", 8 * x.lanes)
        return self.shuffle(whole, [8 * lane for lane in range(x.lanes)])

    def convert(self, how: str, x: LlvmValue, to: str) -> LlvmValue:
        full = f"<{x.lanes} x {to}>" if x.lanes else to
        return self.put(f"{how} {x.typed} to {full}", to, x.lanes)

    def bitcast(self, x: LlvmValue, dtype: DType) -> LlvmValue:
        return x if x.type == TYPES[dtype] else self.convert("bitcast", x, TYPES[dtype])

    def _half(self, x: LlvmValue, to: str) -> LlvmValue:
        if to == "float":
            return self.convert("fpext", self.convert("bitcast", x, "half"), "float")
        return self.convert("bitcast", self.convert("fptrunc", x, "half"), "i16")

    def _to_signed(self, x: LlvmValue, source: DType, bits: int) -> LlvmValue:
        name = {4: "llvm.x86.sse2.cvttps2dq", 8: "llvm.x86.avx.cvtt.ps2dq.256"}.get(x.lanes)
        if name and source is dtypes.float32 and bits == 32 and self.target.vector_bytes >= 4 * x.lanes \
                and self.target.arch == "x86_64":
            self.declare(f"<{x.lanes} x i32>", f"@{name}", x.full)
            return self.put(f"call <{x.lanes} x i32> @{name}({x.typed})", "i32", x.lanes)
        if x.lanes == 16 and source is dtypes.float32 and bits == 32 and "avx512f" in self.target.features:
            name = "@llvm.x86.avx512.mask.cvttps2dq.512"
            self.declare("<16 x i32>", name, "<16 x float>, <16 x i32>, i16, i32")
            return self.put(f"call <16 x i32> {name}({x.typed}, <16 x i32> zeroinitializer, i16 -1, i32 4)", "i32", 16)
        limit = self.constant(2.0 ** (bits - 1), x, source)
        low = self.constant(-(2.0 ** (bits - 1)), x, source)
        fits = self.instruction("and", self.compare("oge", x, low), self.compare("olt", x, limit))
        inside = self.select(fits, x, self.constant(0.0, x, source))    # so that no value out of range is converted
        result = self.convert("fptosi", inside, f"i{bits}")
        return self.select(fits, result, self.constant(-(1 << (bits - 1)), result, dtypes.int64))


LlvmOp = Callable[..., LlvmValue]      # (renderer, type of the operands, *operands)


def instruction(f: str = "", i: str = "") -> LlvmOp:
    """One instruction, of floats or of integers and booleans."""
    return lambda ir, dtype, x, y: ir.instruction(f if dtype.kind == "f" else i, x, y)


LLVM_OPS: dict[o.Op, LlvmOp] = {
    o.NEG: LlvmArithmetic.negate,
    o.ABS: LlvmArithmetic.absolute,
    o.RECIP: lambda ir, dtype, x: ir.instruction("fdiv", ir.constant(1.0, x, dtype), x),
    o.SQRT: lambda ir, dtype, x: ir.call("llvm.sqrt", x.type, x.lanes, x),
    o.TRUNC: lambda ir, dtype, x: ir.call("llvm.trunc", x.type, x.lanes, x),
    o.ROUND: lambda ir, dtype, x: ir.call("llvm.roundeven", x.type, x.lanes, x),
    o.NOT: LlvmArithmetic.invert,
    o.ADD: instruction(f="fadd", i="add"),
    o.SUB: instruction(f="fsub", i="sub"),
    o.MUL: instruction(f="fmul", i="mul"),
    o.DIV: instruction(f="fdiv"),
    o.IDIV: lambda ir, dtype, x, y: divide(ir, dtype, x, y, remainder=False),
    o.MOD: lambda ir, dtype, x, y: divide(ir, dtype, x, y, remainder=True),
    o.MAX: lambda ir, dtype, x, y: ir.extreme(dtype, x, y, "max", "ogt"),
    o.MIN: lambda ir, dtype, x, y: ir.extreme(dtype, x, y, "min", "olt"),
    o.CMPLT: LlvmArithmetic.less,
    o.CMPNE: lambda ir, dtype, x, y: ir.compare("une" if dtype.kind == "f" else "ne", x, y),
    o.CMPEQ: lambda ir, dtype, x, y: ir.compare("oeq" if dtype.kind == "f" else "eq", x, y),
    o.AND: instruction(i="and"),
    o.OR: instruction(i="or"),
    o.XOR: instruction(i="xor"),
    o.SHL: instruction(i="shl"),
    o.SHR: lambda ir, dtype, x, y: ir.instruction("ashr" if dtype.kind == "i" else "lshr", x, y),
    o.WHERE: lambda ir, dtype, condition, x, y: ir.select(condition, x, y),
    o.MULACC: LlvmArithmetic.multiply_add,
}
