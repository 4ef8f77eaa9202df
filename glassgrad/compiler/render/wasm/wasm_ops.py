"""Arithmetic in WebAssembly. In: operands as `WasmValue`s. Out: the expressions of the result.

`WASM_OPS`, at the end, has one line for each op. A scalar is one expression; integers below 32 bits are held in 32,
extended as their type says. A vector of n lanes is as many 128-bit vectors ("pieces") as it fills; unused lanes of the
last one have arbitrary values. A boolean is 0 or 1; in vectors it is a mask, all bits of a lane, whose size is that of
the compared values. Floats below float32 are held as integers with their bits. Conversions are in `wasm_casts`. Does
not know loops, memory or where lines go (the subclass has `bind`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import DType, bits_of, dtypes, round_float, wrapped
from glassgrad.compiler.lower.missing_instructions import SMALL_FLOATS, carrier
from glassgrad.compiler.render.llvm_and_wasm import divide, is_number
from glassgrad.compiler.render.value_placement import fold_lanes, line_of
from glassgrad.compiler.render.wasm.instruction_encoding import Code

PIECE = 16                       # bytes per vector
SHAPES = {("i", 1): "i8x16", ("i", 2): "i16x8", ("i", 4): "i32x4", ("i", 8): "i64x2", ("f", 4): "f32x4",
          ("f", 8): "f64x2"}


class WasmValue(NamedTuple):
    """A scalar or a vector."""
    pieces: tuple[Code, ...]
    dtype: DType                                   # the type in which it is held: int32 for an index that fits 32 bits
    lanes: int = 0                                 # 0 for a scalar
    constant: float | int | bool | None = None     # the value, if it is known and the same in all lanes
    low: int | None = None                         # a lower bound of the value, if one is known
    mask: int = 0                                  # for booleans in lanes: bytes per lane

    @property
    def code(self) -> Code:
        """The expression of a scalar."""
        if self.lanes:
            raise Bug(f"a vector of {self.lanes} lanes is used where a scalar is needed")
        return self.pieces[0]

    @property
    def size(self) -> int:
        """Bytes per lane."""
        return self.mask or self.dtype.itemsize


def scalar_type(dtype: DType) -> str:
    """The type of a scalar: i32, i64, f32 or f64."""
    return ("f" if dtype.kind == "f" else "i") + ("64" if dtype.itemsize == 8 else "32")


def shape_of(dtype: DType) -> str:
    """The prefix of instructions on vectors of a type: f32x4."""
    return SHAPES["f" if dtype.kind == "f" else "i", dtype.itemsize]


def integers(size: int) -> str:
    """The prefix of instructions on vectors of integers of `size` bytes: i32x4."""
    return SHAPES["i", size]


def pieces_of(lanes: int, size: int) -> int:
    """The number of 128-bit vectors that `lanes` lanes fill."""
    return -(-lanes * size // PIECE)


def number(value: int, type_: str = "i32") -> Code:
    """An integer constant with the bits of `value`."""
    return Code(f"{type_}.const", (), wrapped(value, dtypes.int32 if type_ == "i32" else dtypes.int64))


def literal(value: float | int | bool, dtype: DType) -> WasmValue:
    """A scalar constant."""
    if dtype in SMALL_FLOATS:
        value, dtype = bits_of(float(value), dtype), carrier(dtype)
    if dtype.kind != "f":
        known = bool(value) if dtype.kind == "b" else int(value)
        return WasmValue((number(int(value), scalar_type(dtype)),), dtype, constant=known)
    exact = round_float(value, dtype)
    return WasmValue((Code(f"{scalar_type(dtype)}.const", (), exact),), dtype, constant=exact)


def lane_bytes(value: float | int | bool, dtype: DType, size: int) -> bytes:
    """The bytes of a constant in one lane."""
    if dtype.kind == "f":
        return bits_of(float(value), dtype).to_bytes(size, "little")
    return ((-int(value) if dtype.kind == "b" else int(value)) & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def vector_of(values: Sequence[int], dtype: DType) -> WasmValue:
    """A vector of different constants."""
    content = b"".join([lane_bytes(v, dtype, dtype.itemsize) for v in values])
    content = content.ljust(pieces_of(len(values), dtype.itemsize) * PIECE, b"\0")
    pieces = tuple([Code("v128.const", (), content[at:at + PIECE]) for at in range(0, len(content), PIECE)])
    return WasmValue(pieces, dtype, len(values))


class WasmArithmetic:
    """Ops on WasmValues of equal width."""

    def bind(self, code: Code) -> Code:
        """Compute an expression that is used more than once, now."""
        raise NotImplementedError

    def bound(self, x: WasmValue) -> WasmValue:
        """Make a value whose pieces can each be used more than once."""
        return x._replace(pieces=tuple([self.bind(piece) for piece in x.pieces]))

    def apply(self, op: o.Op, dtype: DType, *values: WasmValue) -> WasmValue:
        """Apply an op to values of `dtype`, by its line in the table."""
        result: WasmValue = line_of(WASM_OPS, op, dtype, "WASM")(self, dtype, *values)
        return result

    # -- building blocks -----------------------------------------------------------------------------------------
    def each(self, name: str, *values: WasmValue) -> tuple[Code, ...]:
        """Apply one instruction to every piece."""
        return tuple([Code(name, pieces) for pieces in zip(*[v.pieces for v in values])])

    def native(self, name: str, dtype: DType, *values: WasmValue) -> WasmValue:
        """The instruction with the op's name, for scalars and vectors."""
        if values[0].lanes:
            return WasmValue(self.each(f"{shape_of(dtype)}.{name}", *values), dtype, values[0].lanes)
        return self.fit(Code(f"{scalar_type(dtype)}.{name}", tuple([v.code for v in values])), dtype)

    def fit(self, code: Code, dtype: DType) -> WasmValue:
        """Wrap a 32-bit scalar to a smaller integer type: extend it from its low bits."""
        if dtype.kind == "i" and dtype.bits < 32:
            code = Code(f"i32.extend{dtype.bits}_s", (code,))
        elif dtype.kind == "u" and dtype.bits < 32:
            code = Code("i32.and", (code, number((1 << dtype.bits) - 1)))
        return WasmValue((code,), dtype)

    def bitwise(self, name: str, dtype: DType, x: WasmValue, y: WasmValue) -> WasmValue:
        """and, or, xor of integers or booleans."""
        if not x.lanes:
            return WasmValue((Code(f"{scalar_type(dtype)}.{name}", (x.code, y.code)),), dtype)
        x, y = self.masks(x, y)
        return WasmValue(self.each(f"v128.{name}", x, y), dtype, x.lanes, mask=x.mask)

    def constant(self, value: float | int | bool, like: WasmValue, dtype: DType | None = None) -> WasmValue:
        """A constant as wide as `like`."""
        return self.wide(literal(value, dtype or like.dtype), like.lanes)

    def wide(self, x: WasmValue, lanes: int) -> WasmValue:
        """A value broadcast to all lanes."""
        if x.lanes == lanes:
            return x
        if x.lanes:
            raise Bug(f"a vector of {x.lanes} lanes is used where {lanes or 'a scalar'} is needed")
        mask = 4 if x.dtype is dtypes.bool else 0
        size = mask or x.dtype.itemsize
        if x.constant is not None:
            piece = Code("v128.const", (), lane_bytes(x.constant, x.dtype, size) * (PIECE // size))
        elif mask:
            piece = self.bind(Code("i32x4.splat", (Code("i32.sub", (number(0), x.code)),)))
        else:
            piece = self.bind(Code(f"{shape_of(x.dtype)}.splat", (x.code,)))
        return WasmValue((piece,) * pieces_of(lanes, size), x.dtype, lanes, x.constant, mask=mask)

    def extract(self, x: WasmValue, lane: int) -> WasmValue:
        """One lane as a scalar; the vector's pieces must be `bound`."""
        count = PIECE // x.size
        kind = "i" if x.mask else x.dtype.kind
        shape = integers(x.size) if x.mask else shape_of(x.dtype)
        sign = "" if x.size >= 4 or kind == "f" else "_s" if kind == "i" else "_u"
        code = Code(f"{shape}.extract_lane{sign}", (x.pieces[lane // count],), lane % count)
        if x.mask:
            code = Code("i32.wrap_i64", (code,)) if x.mask == 8 else code
            code = Code("i32.and", (code, number(1)))
        return WasmValue((code,), x.dtype)

    def collect(self, scalars: Sequence[WasmValue], dtype: DType) -> WasmValue:
        """A vector of the given scalars, which must not be booleans."""
        count, shape = PIECE // dtype.itemsize, shape_of(dtype)
        pieces = []
        for at in range(0, len(scalars), count):
            piece = Code(f"{shape}.splat", (scalars[at].code,))
            for lane, scalar in enumerate(scalars[at + 1:at + count], 1):
                piece = self.bind(Code(f"{shape}.replace_lane", (piece, scalar.code), lane))
            pieces.append(piece)
        return WasmValue(tuple(pieces), dtype, len(scalars))

    def lanewise(self, compute: Callable[..., WasmValue], dtype: DType, *values: WasmValue) -> WasmValue:
        """Compute lane by lane, where there is no vector instruction."""
        values = tuple([self.bound(v) for v in values])
        lanes = range(values[0].lanes)
        return self.collect([compute(*[self.bound(self.extract(v, lane)) for v in values]) for lane in lanes], dtype)

    # -- masks ---------------------------------------------------------------------------------------------------
    def mask(self, x: WasmValue, size: int) -> WasmValue:
        """A vector of booleans with lanes of another size."""
        if x.mask == size:
            return x
        if x.constant is not None:
            piece = Code("v128.const", (), (b"\xff" if x.constant else b"\0") * PIECE)
            return x._replace(pieces=(piece,) * pieces_of(x.lanes, size), mask=size)
        return x._replace(pieces=self.resized(x.pieces, x.lanes, x.mask, size, "i", is_mask=True), mask=size)

    def masks(self, *values: WasmValue) -> tuple[WasmValue, ...]:
        """Booleans with lanes of one size: that of the first that is not a constant. Others are unchanged."""
        size = next((v.mask for v in values if v.constant is None), values[0].mask)
        return tuple([self.mask(v, size) if v.mask else v for v in values])

    def resized(self, pieces: tuple[Code, ...], lanes: int, size: int, to: int, kind: str,
                is_mask: bool = False) -> tuple[Code, ...]:
        """Convert integers of `size` bytes to lanes of `to` bytes: extended by sign (kind "i") or zeros, or
        truncated."""
        while size < to:
            name, sign = f"{integers(2 * size)}.extend_%s_{integers(size)}_%s", "s" if kind == "i" else "u"
            pieces = tuple([self.bind(piece) for piece in pieces])
            wider = [Code(name % (half, sign), (piece,)) for piece in pieces for half in ("low", "high")]
            size *= 2
            pieces = tuple(wider[:pieces_of(lanes, size)])
        while size > to:
            if is_mask and size in (2, 4):
                name, order = f"{integers(size // 2)}.narrow_{integers(size)}_s", None
            else:
                name, order = "i8x16.shuffle", bytes([i for i in range(2 * PIECE) if i % size < size // 2])
            pieces = tuple([self.bind(piece) for piece in pieces])
            size //= 2
            pieces = tuple([Code(name, (pieces[2 * i], pieces[min(2 * i + 1, len(pieces) - 1)]), order)
                            for i in range(pieces_of(lanes, size))])
        return pieces

    # -- ops -----------------------------------------------------------------------------------------------------
    def select(self, condition: WasmValue, yes: WasmValue, no: WasmValue) -> WasmValue:
        if not condition.lanes:
            yes, no = self.masks(yes, no) if yes.mask else (yes, no)
            pieces = [self.bind(condition.code)] * len(yes.pieces) if len(yes.pieces) > 1 else [condition.code]
            chosen = tuple([Code("select", (y, n, c)) for y, n, c in zip(yes.pieces, no.pieces, pieces)])
            return WasmValue(chosen, yes.dtype, yes.lanes, mask=yes.mask)
        if yes.mask:
            condition, yes, no = self.masks(condition, yes, no)
        condition = self.mask(condition, yes.size)
        return WasmValue(self.each("v128.bitselect", yes, no, condition), yes.dtype, yes.lanes, mask=yes.mask)

    def multiply(self, dtype: DType, x: WasmValue, y: WasmValue) -> WasmValue:
        if not x.lanes or dtype.itemsize > 1:
            return self.native("mul", dtype, x, y)
        x, y = self.bound(x), self.bound(y)         # bytes: 16-bit products, whose lower halves are kept
        low, high = (self.each(f"i16x8.extmul_{half}_i8x16_s", x, y) for half in ("low", "high"))
        order = bytes(range(0, 2 * PIECE, 2))
        return WasmValue(tuple([Code("i8x16.shuffle", both, order) for both in zip(low, high)]), dtype, x.lanes)

    def negate(self, dtype: DType, x: WasmValue) -> WasmValue:
        if x.lanes or dtype.kind == "f":
            return self.native("neg", dtype, x)
        return self.native("sub", dtype, self.constant(0, x), x)

    def absolute(self, dtype: DType, x: WasmValue) -> WasmValue:
        if dtype.kind == "u":
            return x
        if x.lanes or dtype.kind == "f":
            return self.native("abs", dtype, x)
        x = self.bound(x)
        return self.select(self.compare("lt", dtype, x, self.constant(0, x)), self.negate(dtype, x), x)

    def invert(self, dtype: DType, x: WasmValue) -> WasmValue:
        if x.lanes:
            return WasmValue(self.each("v128.not", x), dtype, x.lanes, mask=x.mask)
        if dtype.kind == "b":
            return WasmValue((Code("i32.eqz", (x.code,)),), dtype)
        return self.native("xor", dtype, x, self.constant(-1 if dtype.kind == "i" else int(dtype.max), x))

    def compare(self, how: str, dtype: DType, x: WasmValue, y: WasmValue) -> WasmValue:
        """lt, eq or ne, as booleans."""
        sign = "" if how != "lt" or dtype.kind == "f" else "_s" if dtype.kind == "i" else "_u"
        if not x.lanes:
            return WasmValue((Code(f"{scalar_type(dtype)}.{how}{sign}", (x.code, y.code)),), dtypes.bool)
        if sign == "_u" and dtype.itemsize == 8:  # only signed comparisons exist: shift both operands by half the range
            half, sign = self.constant(-1 << 63, x, dtypes.int64), "_s"
            x, y = (v._replace(pieces=self.each("v128.xor", v, half)) for v in (x, y))
        return WasmValue(self.each(f"{shape_of(dtype)}.{how}{sign}", x, y), dtypes.bool, x.lanes, mask=dtype.itemsize)

    def extreme(self, dtype: DType, x: WasmValue, y: WasmValue, name: str) -> WasmValue:
        """max or min; NaN wins."""
        if dtype.kind == "f" and x.lanes and (is_number(x) or is_number(y)):
            first, second = (y, x) if is_number(x) else (x, y)      # pmax(a, b) is a < b ? b : a, one instruction
            return self.native(f"p{name}", dtype, first, second)
        if dtype.kind == "f":
            return self.native(name, dtype, x, y)
        if x.lanes and dtype.itemsize < 8:
            return self.native(f"{name}_{'s' if dtype.kind == 'i' else 'u'}", dtype, x, y)
        x, y = self.bound(x), self.bound(y)
        return self.select(self.compare("lt", dtype, *((y, x) if name == "max" else (x, y))), x, y)

    def shift(self, name: str, dtype: DType, x: WasmValue, y: WasmValue) -> WasmValue:
        """x shifted by y, which must be less than the number of bits."""
        instruction = name if name == "shl" else "shr_s" if dtype.kind == "i" else "shr_u"
        if x.lanes and y.constant is not None:
            by = number(int(y.constant))
            pieces = tuple([Code(f"{shape_of(dtype)}.{instruction}", (piece, by)) for piece in x.pieces])
            return WasmValue(pieces, dtype, x.lanes)
        if x.lanes:
            return self.lanewise(lambda a, b: self.native(instruction, dtype, a, b), dtype, x, y)
        return self.native(instruction, dtype, x, y)

    def truncated(self, sign: str, dtype: DType, x: WasmValue, y: WasmValue, remainder: bool) -> WasmValue:
        """x / y or its remainder, rounding towards zero, of signed ("s") or unsigned ("u") numbers."""
        if x.lanes:                              # with a constant y, engines make it a multiplication
            by = None if y.constant is None else literal(y.constant, dtype)
            return self.lanewise(lambda a, b: self.truncated(sign, dtype, a, by or b, remainder), dtype, x, y)
        return self.native(f"{'rem' if remainder else 'div'}_{sign}", dtype, x, y)

    def fold(self, combine: o.Op, dtype: DType, x: WasmValue) -> WasmValue:
        """Combine all lanes."""
        while len(x.pieces) % 2 == 0 and x.lanes * x.size == len(x.pieces) * PIECE:       # whole pieces first
            half = len(x.pieces) // 2
            low, high = (x._replace(pieces=part, lanes=x.lanes // 2) for part in (x.pieces[:half], x.pieces[half:]))
            x = self.apply(combine, dtype, low, high)
        x = self.bound(x)

        def pairs(low: list[WasmValue], high: list[WasmValue]) -> list[WasmValue]:
            return [self.bound(self.apply(combine, dtype, a, b)) for a, b in zip(low, high)]
        scalars = [self.bound(self.extract(x, lane)) for lane in range(x.lanes)]
        [result] = fold_lanes(x.lanes, scalars, lambda values, i, stop: values[i:stop], pairs)
        return result


WasmOp = Callable[..., WasmValue]      # (renderer, type of the operands, *operands)


def native(name: str) -> WasmOp:
    """One instruction."""
    return lambda wasm, dtype, *values: wasm.native(name, dtype, *values)


WASM_OPS: dict[o.Op, WasmOp] = {
    o.NEG: WasmArithmetic.negate,
    o.ABS: WasmArithmetic.absolute,
    o.RECIP: lambda wasm, dtype, x: wasm.native("div", dtype, wasm.constant(1.0, x), x),
    o.SQRT: native("sqrt"),
    o.TRUNC: native("trunc"),
    o.ROUND: native("nearest"),
    o.NOT: WasmArithmetic.invert,
    o.ADD: native("add"),
    o.SUB: native("sub"),
    o.MUL: WasmArithmetic.multiply,
    o.DIV: native("div"),
    o.IDIV: lambda wasm, dtype, x, y: divide(wasm, dtype, x, y, remainder=False),
    o.MOD: lambda wasm, dtype, x, y: divide(wasm, dtype, x, y, remainder=True),
    o.MAX: lambda wasm, dtype, x, y: wasm.extreme(dtype, x, y, "max"),
    o.MIN: lambda wasm, dtype, x, y: wasm.extreme(dtype, x, y, "min"),
    o.CMPLT: lambda wasm, dtype, x, y: wasm.compare("lt", dtype, x, y),
    o.CMPNE: lambda wasm, dtype, x, y: wasm.compare("ne", dtype, x, y),
    o.CMPEQ: lambda wasm, dtype, x, y: wasm.compare("eq", dtype, x, y),
    o.AND: lambda wasm, dtype, x, y: wasm.bitwise("and", dtype, x, y),
    o.OR: lambda wasm, dtype, x, y: wasm.bitwise("or", dtype, x, y),
    o.XOR: lambda wasm, dtype, x, y: wasm.bitwise("xor", dtype, x, y),
    o.SHL: lambda wasm, dtype, x, y: wasm.shift("shl", dtype, x, y),
    o.SHR: lambda wasm, dtype, x, y: wasm.shift("shr", dtype, x, y),
    o.WHERE: lambda wasm, dtype, condition, x, y: wasm.select(condition, x, y),
    o.MULACC: lambda wasm, dtype, x, y, z: wasm.apply(o.ADD, dtype, wasm.apply(o.MUL, dtype, x, y), z),
}
