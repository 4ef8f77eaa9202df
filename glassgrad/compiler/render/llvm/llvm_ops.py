"""Arithmetic in LLVM IR. In: operands as `Value`s. Out: lines of IR, and the `Value` they name.

Every op has the total meaning of the op table: nothing traps, nothing is poison. Booleans are i1 here (a byte in
memory); float16, bfloat16 and fp8 are carried as the integers that hold their bits, so no library is ever called for
them. Knows nothing of loops, memory or where lines go (`line` is the subclass's).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import DType, dtypes
from glassgrad.compiler.graph.ops import Op
from glassgrad.compiler.lower.reduced_precision import bits_of
from glassgrad.compiler.optimize.targets.target import Target


class Value(NamedTuple):
    """An SSA name or literal: `text` without its type, the element `type`, and lanes (0 for a scalar)."""
    text: str
    type: str
    lanes: int = 0

    @property
    def full(self) -> str:
        """The whole type: `<16 x float>`."""
        return f"<{self.lanes} x {self.type}>" if self.lanes else self.type

    @property
    def typed(self) -> str:
        return f"<{self.lanes} x {self.type}> {self.text}" if self.lanes else f"{self.type} {self.text}"


TYPES: dict[DType, str] = {
    dtypes.bool: "i1", dtypes.int8: "i8", dtypes.uint8: "i8", dtypes.int16: "i16", dtypes.uint16: "i16",
    dtypes.int32: "i32", dtypes.uint32: "i32", dtypes.int64: "i64", dtypes.uint64: "i64", dtypes.fp8e4m3: "i8",
    dtypes.fp8e5m2: "i8", dtypes.float16: "i16", dtypes.bfloat16: "i16", dtypes.float32: "float",
    dtypes.float64: "double",
}
SHORT = {"float": "f32", "double": "f64", "half": "f16", "ptr": "p0"}
BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "float": 32, "double": 64}


def literal(value: float | int | bool, dtype: DType, type_: str | None = None) -> Value:
    """A scalar constant; floats are written as the exact bits LLVM wants: those of a double."""
    if dtype.kind == "b":
        return Value("true" if value else "false", "i1")
    if dtype.kind in "iu":
        return Value(str(int(value)), type_ or TYPES[dtype])
    if dtype.bits < 32:
        return Value(str(bits_of(float(value), dtype)), TYPES[dtype])
    number = float(value)
    if dtype is dtypes.float32:
        number = struct.unpack("<f", struct.pack("<I", bits_of(number, dtype)))[0]
    text = "0x7FF8000000000000" if number != number else f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
    return Value(text, TYPES[dtype])


def list_of(values: list[str], type_: str) -> Value:
    """A vector constant, written out."""
    if values[0] in ("0", "0x0000000000000000") and len(set(values)) == 1:
        return Value("zeroinitializer", type_, len(values))
    return Value("<" + ", ".join([f"{type_} {v}" for v in values]) + ">", type_, len(values))


def is_literal(value: Value) -> bool:
    return not value.lanes and value.text[0] != "%"


class Arithmetic:
    """Ops on Values of equal width. `line(text)` writes one line, `declare(text)` an intrinsic."""
    target: Target
    names: int = 0

    def line(self, text: str) -> None:
        raise NotImplementedError

    def declare(self, result: str, name: str, arguments: str) -> None:
        raise NotImplementedError

    def put(self, text: str, type_: str, lanes: int) -> Value:
        """One instruction with a result."""
        self.names += 1
        name = f"%v{self.names}"
        self.line(f"{name} = {text}")
        return Value(name, type_, lanes)

    def call(self, name: str, type_: str, lanes: int, *arguments: Value, extra: str = "") -> Value:
        """An intrinsic overloaded on the type of its first argument."""
        like = arguments[0]
        mangled = f"{'v' + str(like.lanes) if like.lanes else ''}{SHORT.get(like.type, like.type)}"
        result = f"<{lanes} x {type_}>" if lanes else type_
        self.declare(result, f"@{name}.{mangled}", ", ".join([a.full for a in arguments]) + (", i1" if extra else ""))
        given = ", ".join([a.typed for a in arguments]) + extra
        return self.put(f"call {result} @{name}.{mangled}({given})", type_, lanes)

    def constant(self, value: float | int | bool, like: Value, dtype: DType) -> Value:
        """A constant as wide as `like`."""
        return self.wide(literal(value, dtype, like.type if dtype.kind in "iu" else None), like.lanes)

    def wide(self, value: Value, lanes: int) -> Value:
        """A value repeated in all lanes."""
        if value.lanes == lanes:
            return value
        if value.lanes:
            raise Bug(f"a vector of {value.lanes} lanes is used where {lanes or 'a scalar'} is asked for")
        if is_literal(value):
            return list_of([value.text] * lanes, value.type)
        full = f"<{lanes} x {value.type}>"
        first = self.put(f"insertelement {full} poison, {value.typed}, i64 0", value.type, lanes)
        return self.put(f"shufflevector {first.typed}, {full} poison, <{lanes} x i32> zeroinitializer", value.type,
                        lanes)

    def shuffle(self, value: Value, order: list[int], other: Value | None = None) -> Value:
        """Some lanes of a vector, in the given order; the lanes of the other vector are counted on from there."""
        picked = ", ".join([f"i32 {i}" for i in order])
        second = f"{value.full} poison" if other is None else other.typed
        return self.put(f"shufflevector {value.typed}, {second}, <{len(order)} x i32> <{picked}>",
                        value.type, len(order))

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        if yes.lanes:
            condition = self.wide(condition, yes.lanes)
        return self.put(f"select {condition.typed}, {yes.typed}, {no.typed}", yes.type, yes.lanes)

    def instruction(self, name: str, a: Value, b: Value) -> Value:
        return self.put(f"{name} {a.typed}, {b.text}", a.type, a.lanes)

    def compare(self, how: str, a: Value, b: Value) -> Value:
        name = "fcmp" if a.type in ("float", "double") else "icmp"
        return self.put(f"{name} {how} {a.typed}, {b.text}", "i1", a.lanes)

    # -- ops -----------------------------------------------------------------------------------------------------
    def unary(self, op: Op, dtype: DType, x: Value) -> Value:
        kind = dtype.kind
        if op is o.NEG:
            return self.put(f"fneg {x.typed}", x.type, x.lanes) if kind == "f" else \
                self.instruction("sub", self.constant(0, x, dtype), x)
        if op is o.ABS:
            if kind == "f":
                return self.call("llvm.fabs", x.type, x.lanes, x)
            return self.call("llvm.abs", x.type, x.lanes, x, extra=", i1 false") if kind == "i" else x
        if op is o.RECIP:
            return self.instruction("fdiv", self.constant(1.0, x, dtype), x)
        if op is o.SQRT:
            return self.call("llvm.sqrt", x.type, x.lanes, x)
        if op is o.TRUNC:
            return self.call("llvm.trunc", x.type, x.lanes, x) if kind == "f" else x
        if op is o.NOT:
            return self.instruction("xor", x, self.constant(True if kind == "b" else -1, x, dtype))
        raise Bug(f"{op.name} of {dtype.name} reached the LLVM renderer; it must be lowered before")

    def binary(self, op: Op, dtype: DType, x: Value, y: Value, low: int | None = None) -> Value:
        """x op y, both of `dtype`; `low` is the least value x can have, where that is known."""
        kind = dtype.kind
        if kind == "f" and dtype.bits < 32:
            raise Bug(f"{op.name} of {dtype.name} reached the LLVM renderer; it must be computed in float32")
        if op is o.MAX or op is o.MIN:
            return self._extreme(op, dtype, x, y)
        if op in _COMPARES:
            if kind == "b" and op is o.CMPLT:
                return self.instruction("and", self.unary(o.NOT, dtype, x), y)
            return self.compare(_COMPARES[op][0 if kind == "f" else 1 if kind == "i" else 2], x, y)
        if kind == "b":
            name = {o.ADD: "or", o.MUL: "and", o.AND: "and", o.OR: "or", o.XOR: "xor", o.SUB: "xor"}.get(op)
            if name:
                return self.instruction(name, x, y)
        elif kind == "f":
            name = {o.ADD: "fadd", o.SUB: "fsub", o.MUL: "fmul", o.DIV: "fdiv"}.get(op)
            if name:
                return self.instruction(name, x, y)
        else:
            name = {o.ADD: "add", o.SUB: "sub", o.MUL: "mul", o.AND: "and", o.OR: "or", o.XOR: "xor"}.get(op)
            if name:
                return self.instruction(name, x, y)
            if op is o.SHL or op is o.SHR:
                return self._shift("shl" if op is o.SHL else "ashr" if kind == "i" else "lshr", dtype, x, y)
            if op is o.IDIV or op is o.MOD:
                return self._divide(op, dtype, x, y, low)
        raise Bug(f"{op.name} of {dtype.name} reached the LLVM renderer; it must be lowered before")

    def multiply_add(self, dtype: DType, x: Value, y: Value, z: Value) -> Value:
        if dtype.kind == "f" and self.target.has_fma:
            return self.call("llvm.fma", x.type, x.lanes, x, y, z)
        return self.binary(o.ADD, dtype, self.binary(o.MUL, dtype, x, y), z)

    def _extreme(self, op: Op, dtype: DType, x: Value, y: Value) -> Value:
        if dtype.kind == "b":
            return self.instruction("or" if op is o.MAX else "and", x, y)
        if dtype.kind != "f":
            name = ("s" if dtype.kind == "i" else "u") + ("max" if op is o.MAX else "min")
            return self.call(f"llvm.{name}", x.type, x.lanes, x, y)
        # "x > y ? x : y" is one instruction, and gives y where either is NaN; a NaN in x needs a test of its own
        how = "ogt" if op is o.MAX else "olt"
        if _is_number(y):
            x, y = y, x
        best = self.select(self.compare(how, x, y), x, y)
        return best if _is_number(x) else self.select(self.compare("uno", x, x), x, best)

    def _shift(self, name: str, dtype: DType, x: Value, y: Value) -> Value:
        amount = literal_int(y)
        if amount is not None:
            return self.instruction(name, x, y) if 0 <= amount < dtype.bits else self.constant(0, x, dtype)
        inside = self.compare("ult", y, self.constant(dtype.bits, y, dtype))
        safe = self.instruction("and", y, self.constant(dtype.bits - 1, y, dtype))
        return self.select(inside, self.instruction(name, x, safe), self.constant(0, x, dtype))

    def _divide(self, op: Op, dtype: DType, x: Value, y: Value, low: int | None) -> Value:
        by = literal_int(y)
        zero, one = self.constant(0, x, dtype), self.constant(1, x, dtype)
        if by is not None and by > 0:
            shift = by.bit_length() - 1
            if by == 1 << shift:                     # both round down, whatever the sign
                if op is o.MOD:
                    return self.instruction("and", x, self.constant(by - 1, x, dtype))
                return self.instruction("ashr" if dtype.kind == "i" else "lshr", x, self.constant(shift, x, dtype))
            if dtype.kind == "u" or low is not None and low >= 0:
                return self.instruction("udiv" if op is o.IDIV else "urem", x, y)
            if op is o.MOD:
                rest = self.instruction("srem", x, y)
                return self.select(self.compare("slt", rest, zero), self.instruction("add", rest, y), rest)
            quotient = self.instruction("sdiv", x, y)
            over = self.compare("sgt", self.instruction("mul", quotient, y), x)
            return self.select(over, self.instruction("sub", quotient, one), quotient)
        none = self.compare("eq", y, zero)
        if dtype.kind == "u":
            safe = self.select(none, one, y)
            return self.select(none, zero, self.instruction("udiv" if op is o.IDIV else "urem", x, safe))
        minus = self.compare("eq", y, self.constant(-1, y, dtype))    # INT_MIN / -1 traps: x / -1 is -x
        safe = self.select(self.put(f"or {none.typed}, {minus.text}", "i1", none.lanes), one, y)
        quotient = self.instruction("sdiv", x, safe)
        rest = self.instruction("sub", x, self.instruction("mul", quotient, safe))
        mixed = self.compare("slt", self.instruction("xor", rest, safe), zero)
        over = self.instruction("and", mixed, self.compare("ne", rest, zero))
        if op is o.MOD:
            return self.select(over, self.instruction("add", rest, safe), rest)    # by 1 instead of 0 or -1: 0
        floor = self.select(over, self.instruction("sub", quotient, one), quotient)
        return self.select(none, zero, self.select(minus, self.instruction("sub", zero, x), floor))

    def fold(self, combine: Op, dtype: DType, value: Value) -> Value:
        """All lanes combined: upper half with lower half, again and again; an odd lane joins at the end."""
        lanes = value.lanes
        if lanes == 1:
            return self.put(f"extractelement {value.typed}, i64 0", value.type, 0)
        half = lanes // 2
        if half == 1:
            low, high = (self.put(f"extractelement {value.typed}, i64 {i}", value.type, 0) for i in (0, 1))
            result = self.binary(combine, dtype, low, high)
        else:
            low, high = self.shuffle(value, list(range(half))), self.shuffle(value, list(range(half, 2 * half)))
            result = self.fold(combine, dtype, self.binary(combine, dtype, low, high))
        if lanes % 2:
            last = self.put(f"extractelement {value.typed}, i64 {lanes - 1}", value.type, 0)
            result = self.binary(combine, dtype, result, last)
        return result

    # -- conversions ---------------------------------------------------------------------------------------------
    def cast(self, x: Value, source: DType, dtype: DType) -> Value:
        """The value in another type. float -> int as x86 does it: towards zero, the least integer if it cannot fit."""
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
            return self._to_integer(x, source, dtype)
        if BITS[x.type] == BITS[to]:
            return x
        if x.lanes == 3 and x.type == "i64" and to == "i8":     # LLVM 22 aborts on this truncation for AArch64
            return self._low_bytes(x)
        return self.convert("trunc" if BITS[to] < BITS[x.type] else "sext" if a == "i" else "zext", x, to)

    def _low_bytes(self, x: Value) -> Value:
        """The lowest byte of every i64 lane, taken from the vector's bytes (little-endian)."""
        whole = self.put(f"bitcast {x.typed} to <{8 * x.lanes} x i8>", "i8", 8 * x.lanes)
        return self.shuffle(whole, [8 * lane for lane in range(x.lanes)])

    def convert(self, how: str, x: Value, to: str) -> Value:
        full = f"<{x.lanes} x {to}>" if x.lanes else to
        return self.put(f"{how} {x.typed} to {full}", to, x.lanes)

    def bitcast(self, x: Value, to: str) -> Value:
        return x if x.type == to else self.convert("bitcast", x, to)

    def _half(self, x: Value, to: str) -> Value:
        if to == "float":
            return self.convert("fpext", self.convert("bitcast", x, "half"), "float")
        return self.convert("bitcast", self.convert("fptrunc", x, "half"), "i16")

    def _to_integer(self, x: Value, source: DType, dtype: DType) -> Value:
        if dtype is dtypes.uint32 or dtype is dtypes.uint64:        # the upper half of the range is reached by a detour
            half = self.constant(2.0 ** (dtype.bits - 1), x, source)
            beyond = self.compare("oge", x, half)
            low = self._to_signed(self.select(beyond, self.instruction("fsub", x, half), x), source, dtype.bits)
            high = self.instruction("xor", low, self.constant(-1 << (dtype.bits - 1), low, dtypes.int64))
            return self.select(beyond, high, low)
        wide = self._to_signed(x, source, max(32, dtype.bits))
        return self.convert("trunc", wide, TYPES[dtype]) if dtype.bits < 32 else wide

    def _to_signed(self, x: Value, source: DType, bits: int) -> Value:
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
        inside = self.select(fits, x, self.constant(0.0, x, source))    # so that nothing out of range is converted
        result = self.convert("fptosi", inside, f"i{bits}")
        return self.select(fits, result, self.constant(-(1 << (bits - 1)), result, dtypes.int64))


_COMPARES = {o.CMPLT: ("olt", "slt", "ult"), o.CMPNE: ("une", "ne", "ne"), o.CMPEQ: ("oeq", "eq", "eq")}


def literal_int(value: Value) -> int | None:
    """The number an integer literal (or a vector of equal ones) stands for."""
    text = "0" if value.text == "zeroinitializer" else value.text
    if text[0] == "<":
        items = {item.split()[-1] for item in text[1:-1].split(",")}
        text = items.pop() if len(items) == 1 else "%"
    return int(text) if text.lstrip("-").isdigit() else None


def _is_number(value: Value) -> bool:
    """Whether a float is a literal and not a NaN."""
    text = value.text
    if text == "zeroinitializer":
        return True
    return "0x7FF8" not in text and (text[0] == "0" or text.startswith(f"<{value.type} 0x"))
