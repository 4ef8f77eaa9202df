"""WebAssembly instructions and their encoding. In: nothing. Out: `Code`, an instruction with operands; its bytes, text.

`OPCODES` has every instruction that the renderer writes, by its name in the text format. WebAssembly is a stack
machine: an instruction's operands come before it, and each leaves its value on the stack. Here an expression is a tree,
written as bytes with the operands first, and as text in parentheses:

    Code("f32.add", (get(x), Code("f32.const", (), 1.0)))      ->  20 00 43 00 00 80 3f 92
                                                                   (f32.add (local.get $x) (f32.const 1.0))

Does not know kernels. (WebAssembly Core Specification 2.0, section 5.4.)
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from glassgrad.base.errors import Bug


class CodeLocal(NamedTuple):
    """A variable of a function."""
    name: str
    type: str                     # "i32", "i64", "f32", "f64" or "v128"


class At(NamedTuple):
    """The immediate of a memory access: a constant that is added to the address; and the lane, if there is one."""
    offset: int = 0
    lane: int | None = None


class Code(NamedTuple):
    """An instruction, the instructions that give its operands, and its immediate (a constant, a local, an `At`...)."""
    name: str
    operands: tuple[Code, ...] = ()
    immediate: Any = None


# -- the table -----------------------------------------------------------------------------------------------
_COMPARE = "eq ne lt_s lt_u gt_s gt_u le_s le_u ge_s ge_u"
_INTEGER = "clz ctz popcnt add sub mul div_s div_u rem_s rem_u and or xor shl shr_s shr_u rotl rotr"
_FLOAT = "abs neg ceil floor trunc nearest sqrt add sub mul div min max copysign"


def _numbered(first: int, prefix: str, names: str) -> dict[str, int]:
    """Number names from `first` on; "-" skips a number."""
    return {f"{prefix}.{name}": first + i for i, name in enumerate(names.split()) if name != "-"}


_ONE_BYTE: dict[str, int] = {
    "call": 0x10, "br_if": 0x0d, "select": 0x1b, "local.get": 0x20, "local.set": 0x21,
    "i32.load": 0x28, "i64.load": 0x29, "f32.load": 0x2a, "f64.load": 0x2b,
    **_numbered(0x2c, "i32", "load8_s load8_u load16_s load16_u"),
    "i32.store": 0x36, "i64.store": 0x37, "f32.store": 0x38, "f64.store": 0x39, "i32.store8": 0x3a, "i32.store16": 0x3b,
    "i32.const": 0x41, "i64.const": 0x42, "f32.const": 0x43, "f64.const": 0x44,
    **_numbered(0x45, "i32", "eqz " + _COMPARE), **_numbered(0x50, "i64", "eqz " + _COMPARE),
    **_numbered(0x5b, "f32", "eq ne lt gt le ge"), **_numbered(0x61, "f64", "eq ne lt gt le ge"),
    **_numbered(0x67, "i32", _INTEGER), **_numbered(0x79, "i64", _INTEGER),
    **_numbered(0x8b, "f32", _FLOAT), **_numbered(0x99, "f64", _FLOAT),
    "i32.wrap_i64": 0xa7, "i64.extend_i32_s": 0xac, "i64.extend_i32_u": 0xad,
    **_numbered(0xb2, "f32", "convert_i32_s convert_i32_u convert_i64_s convert_i64_u demote_f64"),
    **_numbered(0xb7, "f64", "convert_i32_s convert_i32_u convert_i64_s convert_i64_u promote_f32"),
    "i32.reinterpret_f32": 0xbc, "i64.reinterpret_f64": 0xbd, "f32.reinterpret_i32": 0xbe, "f64.reinterpret_i64": 0xbf,
    "i32.extend8_s": 0xc0, "i32.extend16_s": 0xc1,
}
_SATURATING = {      # after 0xfc
    **_numbered(0, "i32", "trunc_sat_f32_s trunc_sat_f32_u trunc_sat_f64_s trunc_sat_f64_u"),
    **_numbered(4, "i64", "trunc_sat_f32_s trunc_sat_f32_u trunc_sat_f64_s trunc_sat_f64_u"),
}
_VECTOR = {          # after 0xfd
    "v128.load": 0, **_numbered(7, "v128", "load8_splat load16_splat load32_splat load64_splat store const"),
    "i8x16.shuffle": 13, "i8x16.splat": 15, "i16x8.splat": 16, "i32x4.splat": 17, "i64x2.splat": 18, "f32x4.splat": 19,
    "f64x2.splat": 20, **_numbered(21, "i8x16", "extract_lane_s extract_lane_u replace_lane"),
    **_numbered(24, "i16x8", "extract_lane_s extract_lane_u replace_lane"),
    **_numbered(27, "i32x4", "extract_lane replace_lane"), **_numbered(29, "i64x2", "extract_lane replace_lane"),
    **_numbered(31, "f32x4", "extract_lane replace_lane"), **_numbered(33, "f64x2", "extract_lane replace_lane"),
    **_numbered(35, "i8x16", _COMPARE), **_numbered(45, "i16x8", _COMPARE), **_numbered(55, "i32x4", _COMPARE),
    **_numbered(65, "f32x4", "eq ne lt gt le ge"), **_numbered(71, "f64x2", "eq ne lt gt le ge"),
    **_numbered(77, "v128", "not and andnot or xor bitselect any_true load8_lane load16_lane load32_lane load64_lane "
                            "store8_lane store16_lane store32_lane store64_lane load32_zero load64_zero"),
    "f32x4.demote_f64x2_zero": 94, "f64x2.promote_low_f32x4": 95, "f32x4.trunc": 105, "f64x2.trunc": 122,
    "f32x4.nearest": 106, "f64x2.nearest": 148,
    **_numbered(96, "i8x16", "abs neg - all_true - narrow_i16x8_s"),
    **_numbered(107, "i8x16", "shl shr_s shr_u add - - sub - - - - min_s min_u max_s max_u"),
    **_numbered(128, "i16x8", "abs neg - all_true - narrow_i32x4_s - extend_low_i8x16_s extend_high_i8x16_s "
                              "extend_low_i8x16_u extend_high_i8x16_u shl shr_s shr_u add - - sub - - - mul min_s "
                              "min_u max_s max_u - - extmul_low_i8x16_s extmul_high_i8x16_s"),
    **_numbered(160, "i32x4", "abs neg - all_true - - - extend_low_i16x8_s extend_high_i16x8_s extend_low_i16x8_u "
                              "extend_high_i16x8_u shl shr_s shr_u add - - sub - - - mul min_s min_u max_s max_u"),
    **_numbered(192, "i64x2", "abs neg - all_true - - - extend_low_i32x4_s extend_high_i32x4_s extend_low_i32x4_u "
                              "extend_high_i32x4_u shl shr_s shr_u add - - sub - - - mul eq ne lt_s gt_s le_s ge_s"),
    **_numbered(224, "f32x4", "abs neg - sqrt add sub mul div min max pmin pmax"),
    **_numbered(236, "f64x2", "abs neg - sqrt add sub mul div min max pmin pmax"),
    **_numbered(248, "i32x4", "trunc_sat_f32x4_s trunc_sat_f32x4_u"),
    **_numbered(250, "f32x4", "convert_i32x4_s convert_i32x4_u"), "i32x4.trunc_sat_f64x2_s_zero": 252,
    **_numbered(254, "f64x2", "convert_low_i32x4_s convert_low_i32x4_u"),
}


# -- integers of any length (LEB128: seven bits per byte, lowest first) ---------------------------------------
def unsigned(value: int) -> bytes:
    """Encode a number that is not negative.

    >>> unsigned(624485).hex()
    'e58e26'
    """
    out = bytearray()
    while True:
        value, low = value >> 7, value & 0x7f
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)


def signed(value: int) -> bytes:
    """Encode a number in two's complement.

    >>> signed(-123456).hex(), signed(64).hex()
    ('c0bb78', 'c000')
    """
    out = bytearray()
    while True:
        value, low = value >> 7, value & 0x7f
        done = value == (-1 if low & 0x40 else 0)
        out.append(low | (0 if done else 0x80))
        if done:
            return bytes(out)


OPCODES: dict[str, bytes] = {
    **{name: bytes((number,)) for name, number in _ONE_BYTE.items()},
    **{name: b"\xfc" + unsigned(number) for name, number in _SATURATING.items()},
    **{name: b"\xfd" + unsigned(number) for name, number in _VECTOR.items()},
}
TYPES = {"i32": b"\x7f", "i64": b"\x7e", "f32": b"\x7d", "f64": b"\x7c", "v128": b"\x7b"}
_ALIGNMENT = {"8": 0, "16": 1, "32": 2, "64": 3, "i32": 2, "i64": 3, "f32": 2, "f64": 3, "v128": 4}


def _alignment(name: str) -> int:
    """The default alignment of an access in the text format, as a power of two."""
    kind, _, access = name.partition(".")
    digits = "".join(c for c in access if c.isdigit())
    return _ALIGNMENT[digits or kind]


# -- properties of instructions -------------------------------------------------------------------------------
_TESTS = ("eq", "ne", "lt", "gt", "le", "ge", "eqz")
_OF_LANE = {"i8x16": "i32", "i16x8": "i32", "i32x4": "i32", "i64x2": "i64", "f32x4": "f32", "f64x2": "f64"}


def type_of(code: Code) -> str:
    """The type of an expression's value.

    >>> type_of(Code("f32.lt")), type_of(Code("f32x4.lt")), type_of(Code("i64x2.extract_lane"))
    ('i32', 'v128', 'i64')
    """
    name = code.name
    if name == "local.get":
        return code.immediate.type  # type: ignore[no-any-return]
    if name == "select":
        return type_of(code.operands[0])
    kind, _, operation = name.partition(".")
    if operation.startswith("extract_lane"):
        return _OF_LANE[kind]
    if operation in ("any_true", "all_true") or kind in TYPES and kind != "v128" and operation.split("_")[0] in _TESTS:
        return "i32"
    return kind if kind in TYPES else "v128"


def is_cheap_to_repeat(code: Code) -> bool:
    """Whether an expression costs nothing to repeat: a local or a constant."""
    return code.name == "local.get" or code.name.endswith(".const")


def get(local: CodeLocal) -> Code:
    """The value of a local."""
    return Code("local.get", (), local)


_SPLATS = {"f32.load": 32, "f64.load": 64, "i32.load": 32, "i64.load": 64, "i32.load16_s": 16, "i32.load16_u": 16,
           "i32.load8_s": 8, "i32.load8_u": 8}


def splat_load(code: Code) -> Code:
    """Merge a load and a splat into one instruction; not for a load that also extends: a byte repeated in all bytes is
    not a 32-bit integer.

    >>> load = Code("i32.load8_s", (get(CodeLocal("p", "i32")),), At(0))
    >>> splat_load(Code("i8x16.splat", (load,))).name, splat_load(Code("i32x4.splat", (load,))).name
    ('v128.load8_splat', 'i32x4.splat')
    """
    shape, _, word = code.name.partition(".")
    if word != "splat" or code.operands[0].name not in _SPLATS:
        return code
    load = code.operands[0]
    bits = _SPLATS[load.name]
    if bits != int(shape[1:].partition("x")[0]):
        return code
    return Code(f"v128.load{bits}_splat", load.operands, load.immediate)


# -- encoding ------------------------------------------------------------------------------------------------
class Numbers(NamedTuple):
    """The indices of the locals and functions that instructions refer to."""
    locals: Mapping[CodeLocal, int]
    functions: Mapping[str, int]


def encode(code: Code, numbers: Numbers, out: bytearray) -> None:
    """Write the bytes of an expression, operands first."""
    for operand in code.operands:
        encode(operand, numbers, out)
    out += OPCODES[code.name]
    value = code.immediate
    if value is None:
        return
    if isinstance(value, CodeLocal):
        out += unsigned(numbers.locals[value])
    elif isinstance(value, At):
        out += unsigned(_alignment(code.name)) + unsigned(value.offset)
        if value.lane is not None:
            out.append(value.lane)
    elif code.name in ("i32.const", "i64.const"):
        out += signed(value)
    elif code.name in ("f32.const", "f64.const"):
        out += struct.pack("<f" if code.name == "f32.const" else "<d", value)
    elif isinstance(value, bytes):                       # the immediate of v128.const and i8x16.shuffle
        out += value
    elif code.name == "call":
        out += unsigned(numbers.functions[value])
    elif isinstance(value, int):                         # a lane, or how many blocks a branch leaves
        out += unsigned(value)
    else:
        raise Bug(f"{code.name} has an immediate that cannot be written: {value!r}")


def text_of(code: Code) -> str:
    """An expression in the text format."""
    words = [code.name, *_immediate(code), *[text_of(operand) for operand in code.operands]]
    return f"({' '.join(words)})"


def _immediate(code: Code) -> list[str]:
    value = code.immediate
    if value is None:
        return []
    if isinstance(value, CodeLocal):
        return [f"${value.name}"]
    if isinstance(value, At):
        return ([f"offset={value.offset}"] if value.offset else []) + ([] if value.lane is None else [str(value.lane)])
    if code.name == "v128.const":
        return ["i32x4", *[f"0x{word:08x}" for word in struct.unpack("<4I", value)]]
    if isinstance(value, bytes):
        return [str(byte) for byte in value]
    if code.name == "call":
        return [f"${value}"]
    return [repr(value)]                  # Python prints numbers, inf and nan as the text format does
