"""Element types and type promotion. In: nothing. Out: `DType`, `dtypes`, `promote`. Does not know graphs or NumPy."""

from __future__ import annotations

import math
import struct
from typing import Any

from glassgrad.base.errors import DTypeError, DTypeNameError


class DType:
    """One element type, compared by identity. `kind` is one of b(ool) i(nt) u(int) f(loat).

    A float type is described by its number of exponent and mantissa bits, the exponent's bias, and the bit patterns of
    NaN and of values that are too large (infinity; in a type without infinities, the largest number or NaN).
    """
    __slots__ = ("name", "itemsize", "kind", "rank", "format", "bits",
                 "exponent", "mantissa", "bias", "nan", "overflow")

    def __init__(self, name: str, itemsize: int, kind: str, rank: int, format: str,
                 exponent: int = 0, mantissa: int = 0, bias: int = 0, nan: int = 0, overflow: int = 0):
        self.name, self.itemsize, self.kind, self.rank, self.format = name, itemsize, kind, rank, format
        self.bits, self.exponent, self.mantissa, self.bias = itemsize * 8, exponent, mantissa, bias
        self.nan, self.overflow = nan, overflow

    def __repr__(self) -> str:
        return f"dtypes.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (dtype_by_name, (self.name,))

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_int(self) -> bool:
        return self.kind in "iu"

    @property
    def is_signed(self) -> bool:
        return self.kind in "if"

    @property
    def in_numpy(self) -> bool:
        """Whether NumPy and Python's struct support the type; for other floats, `format` is that of their bit
        patterns."""
        return self.kind != "f" or self.format in "efd"

    @property
    def has_infinities(self) -> bool:
        """Whether a float type reserves its greatest exponent for infinities and NaN."""
        return self.overflow == ((1 << self.exponent) - 1) << self.mantissa

    @property
    def has_negative_zero(self) -> bool:
        """Whether the sign bit alone means -0.0, as in most float types; in the others it means NaN."""
        return self.nan != 1 << (self.bits - 1)

    @property
    def min(self) -> int | float | bool:
        if self.kind == "f":
            return -self.max
        return False if self.kind == "b" else (-(1 << (self.bits - 1)) if self.kind == "i" else 0)

    @property
    def max(self) -> int | float | bool:
        if self.kind == "f":
            return math.inf if self.has_infinities else largest(self)
        return True if self.kind == "b" else ((1 << (self.bits - 1)) - 1 if self.kind == "i" else (1 << self.bits) - 1)

    @property
    def bitsize(self) -> int:
        """tinygrad's word for `bits`."""
        return self.bits

    @property
    def accumulator(self) -> DType:
        """The type in which a sum of this type is accumulated: float32 for smaller floats."""
        return dtypes.float32 if self.kind == "f" and self.bits < 32 else self


class dtypes:
    """All element types, with the short names that PyTorch and tinygrad use.

    >>> dtypes.float is dtypes.float32, dtypes.half.itemsize
    (True, 2)
    """
    bool = DType("bool", 1, "b", 0, "?")
    int8 = char = DType("int8", 1, "i", 1, "b")
    uint8 = uchar = DType("uint8", 1, "u", 2, "B")
    int16 = short = DType("int16", 2, "i", 3, "h")
    uint16 = ushort = DType("uint16", 2, "u", 4, "H")
    int32 = int = DType("int32", 4, "i", 5, "i")
    uint32 = uint = DType("uint32", 4, "u", 6, "I")
    int64 = long = DType("int64", 8, "i", 7, "q")
    uint64 = ulong = DType("uint64", 8, "u", 8, "Q")
    fp8e4m3 = float8_e4m3fn = DType("fp8e4m3", 1, "f", 9, "B", 4, 3, 7, 0x7F, 0x7E)
    fp8e5m2 = float8_e5m2 = DType("fp8e5m2", 1, "f", 10, "B", 5, 2, 15, 0x7F, 0x7C)
    fp8e4m3fnuz = float8_e4m3fnuz = DType("fp8e4m3fnuz", 1, "f", 11, "B", 4, 3, 8, 0x80, 0x80)
    fp8e5m2fnuz = float8_e5m2fnuz = DType("fp8e5m2fnuz", 1, "f", 12, "B", 5, 2, 16, 0x80, 0x80)
    float16 = half = DType("float16", 2, "f", 13, "e", 5, 10, 15, 0x7E00, 0x7C00)
    bfloat16 = DType("bfloat16", 2, "f", 14, "H", 8, 7, 127, 0x7FC0, 0x7F80)
    float32 = float = DType("float32", 4, "f", 15, "f", 8, 23, 127, 0x7FC00000, 0x7F800000)
    float64 = double = DType("float64", 8, "f", 16, "d", 11, 52, 1023, 0x7FF8 << 48, 0x7FF0 << 48)

    default_float: DType = float32
    default_int: DType = int32
    index: DType = int64  # the type of addresses

    fp8s = (fp8e4m3, fp8e5m2, fp8e4m3fnuz, fp8e5m2fnuz)
    floats = (*fp8s, float16, bfloat16, float32, float64)
    uints = (uint8, uint16, uint32, uint64)
    sints = (int8, int16, int32, int64)
    ints = (*uints, *sints)
    int8s, int16s, int32s, int64s = ((small, large) for small, large in zip(uints, sints))
    all = (*floats, *ints, bool)

    @staticmethod
    def is_float(dtype: DType) -> bool:  # type: ignore[valid-type]
        return dtype.kind == "f"

    @staticmethod
    def is_int(dtype: DType) -> bool:  # type: ignore[valid-type]
        return dtype.kind in "iu"

    @staticmethod
    def is_unsigned(dtype: DType) -> bool:  # type: ignore[valid-type]
        return dtype.kind == "u"

    @staticmethod
    def is_bool(dtype: DType) -> bool:  # type: ignore[valid-type]
        return dtype.kind == "b"

    @staticmethod
    def min(dtype: DType) -> Any:
        """The least value of a type; minus infinity for floats that have it."""
        return dtype.min

    @staticmethod
    def max(dtype: DType) -> Any:
        """The greatest value of a type; infinity for floats that have it."""
        return dtype.max

    @staticmethod
    def finfo(dtype: DType) -> tuple[Any, Any]:
        """How many bits a float type has for the exponent and for the fraction.

        >>> dtypes.finfo(dtypes.float16)
        (5, 10)
        """
        if dtype.kind != "f":
            raise DTypeError("only floats have an exponent", given=repr(dtype), expected="a float type",
                             fix="ask dtypes.is_float(dtype) first")
        return dtype.exponent, dtype.mantissa

    @staticmethod
    def as_const(value: Any, dtype: DType) -> Any:
        """Convert a value to the Python type (bool, int or float) of an element type, unrounded.

        >>> dtypes.as_const(3.7, dtypes.int32), dtypes.as_const(2, dtypes.float32)
        (3, 2.0)
        """
        return {"f": float_type, "b": bool_type}.get(dtype.kind, int_type)(value)

    @staticmethod
    def fields() -> dict[str, DType]:
        """The types by tinygrad's names, including short ones."""
        return {name: dtype for name, dtype in _by_name.items() if not name.startswith("float8") and name != "index"}

    @staticmethod
    def from_py(value: Any) -> DType:
        """The type of a plain Python value: bool, the default int or the default float."""
        if value is True or value is False:
            return dtypes.bool
        return dtypes.default_int if isinstance(value, int_type) else dtypes.default_float


int_type, float_type, bool_type = int, float, bool

ALL: tuple[DType, ...] = tuple(sorted({id(d): d for d in vars(dtypes).values() if isinstance(d, DType)}.values(),
                                      key=lambda d: d.rank))
_by_name = {name: d for name, d in vars(dtypes).items() if isinstance(d, DType) and not name.startswith("default_")}

# Each type with the smallest types that hold all its values, as in JAX and tinygrad. Two types are promoted to the
# lowest-ranked type that both reach.
_WIDER: dict[DType, tuple[DType, ...]] = {
    dtypes.bool: (dtypes.int8, dtypes.uint8), dtypes.int8: (dtypes.int16,), dtypes.int16: (dtypes.int32,),
    dtypes.int32: (dtypes.int64,), dtypes.int64: dtypes.fp8s,
    dtypes.uint8: (dtypes.int16, dtypes.uint16), dtypes.uint16: (dtypes.int32, dtypes.uint32),
    dtypes.uint32: (dtypes.int64, dtypes.uint64), dtypes.uint64: dtypes.fp8s,
    **dict.fromkeys(dtypes.fp8s, (dtypes.float16, dtypes.bfloat16)),
    dtypes.float16: (dtypes.float32,), dtypes.bfloat16: (dtypes.float32,), dtypes.float32: (dtypes.float64,),
    dtypes.float64: (),
}
_common: dict[tuple[DType, DType], DType] = {}


def _reach(dtype: DType) -> set[DType]:
    return {dtype}.union(*(_reach(w) for w in _WIDER[dtype]))


def promote(a: DType, b: DType) -> DType:
    """The result type of an operation between two tensors.

    >>> promote(dtypes.int32, dtypes.float16), promote(dtypes.uint8, dtypes.int8)
    (dtypes.float16, dtypes.int16)
    """
    if a is b:
        return a
    common = _common.get((a, b))
    if common is None:
        common = min(_reach(a) & _reach(b), key=lambda d: d.rank)
        if common.is_float and not (a.is_float or b.is_float):   # uint64 and a signed type: no integer holds both
            common = dtypes.float32
        _common[a, b] = common
    return common


# -- one value's conversion: what CAST means, for constants --------------------------------------------------
def convert(value: Any, dtype: DType) -> bool | int | float:
    """Convert a Python number to `dtype`: floats are rounded to the type's grid, integers wrapped, as CAST does.

    >>> convert(0.1, dtypes.float16), convert(300, dtypes.uint8), convert(3e9, dtypes.int32)
    (0.0999755859375, 44, -2147483648)
    """
    if dtype.kind == "f":
        return round_float(value, dtype)
    if dtype.kind == "b":
        return bool(value)
    if isinstance(value, float):
        value = _truncate(value, dtype)
    value = int(value) & ((1 << dtype.bits) - 1)
    return value - (1 << dtype.bits) if dtype.kind == "i" and value >> (dtype.bits - 1) else value


def _truncate(value: float, dtype: DType) -> int:
    """Convert a float to an integer as x86 and PyTorch do: out of range gives the lowest value of the register used.

    Types up to int32 use a 32-bit register, larger ones 64 bits; the result is then wrapped to `dtype`. uint64 extends
    the range up to 2**64.
    """
    lowest = -(1 << 31) if dtype.bits < 32 or dtype is dtypes.int32 else -(1 << 63)
    if value != value:
        return lowest
    if dtype is dtypes.uint64 and value >= 2.0 ** 63:
        return int(value) if value < 2.0 ** 64 else 0
    return int(value) if lowest - 1 < value < -lowest else lowest


def round_float(value: Any, dtype: DType) -> float:
    """Round a number to the nearest value of a float type, ties to even; types below float32 are rounded via float32.

    A number that is too large becomes infinite; without infinities, it becomes 448 in fp8e4m3 and NaN in the others.
    """
    if isinstance(value, int) and dtype is not dtypes.float64 and abs(value) >> 53:
        spare = abs(value).bit_length() - 40           # keep 40 bits, and whether a lost bit was set: one rounding
        value = ((value >> spare) | ((value & ((1 << spare) - 1)) != 0)) << spare
    try:
        value = float(value)
        if dtype is not dtypes.float64:
            value = _FLOAT32.unpack(_FLOAT32.pack(value))[0]
            if dtype is dtypes.float16:
                value = _FLOAT16.unpack(_FLOAT16.pack(value))[0]
    except OverflowError:
        value = math.inf if value > 0 else -math.inf
    return value if dtype.in_numpy else float_of_bits(bits_of(value, dtype), dtype)  # type: ignore[no-any-return]


def bits_of(value: float, dtype: DType) -> int:
    """The bits of a number in a float type.

    >>> hex(bits_of(1.0, dtypes.bfloat16)), hex(bits_of(1e9, dtypes.fp8e4m3)), hex(bits_of(-0.0, dtypes.float16))
    ('0x3f80', '0x7e', '0x8000')
    """
    if math.isnan(value):
        return dtype.nan
    if dtype is dtypes.float64:
        return int(struct.unpack("<Q", struct.pack("<d", value))[0])
    if dtype is not dtypes.float32:        # via float32, like casts
        value = _FLOAT32.unpack(struct.pack("<I", bits_of(value, dtypes.float32)))[0]
    code = dtype.overflow
    if not math.isinf(value):
        least = 1 - dtype.bias
        exponent = max(math.frexp(value)[1] - 1, least) if value else least
        steps = round(math.ldexp(abs(value), dtype.mantissa - exponent))      # Python rounds ties to even
        code = min(((exponent - least) << dtype.mantissa) + steps, code)
    negative = math.copysign(1.0, value) < 0 and (code or dtype.has_negative_zero)
    return code | (1 << (dtype.bits - 1) if negative else 0)


def float_of_bits(code: int, dtype: DType) -> float:
    """The number that a bit pattern of a float type stands for.

    >>> [float_of_bits(0x80, dtype) for dtype in (dtypes.fp8e5m2, dtypes.fp8e5m2fnuz, dtypes.float16)]
    [-0.0, nan, 7.62939453125e-06]
    """
    sign = 1 << (dtype.bits - 1)
    size = code & (sign - 1)
    if code == dtype.nan or size == dtype.nan or dtype.has_infinities and size > dtype.overflow:
        return math.nan
    if dtype.has_infinities and size == dtype.overflow:
        return -math.inf if code & sign else math.inf
    power, steps = divmod(size, 1 << dtype.mantissa)
    steps += (1 << dtype.mantissa) if power else 0         # subnormal numbers have no leading 1
    return math.copysign(math.ldexp(steps, max(power, 1) - dtype.bias - dtype.mantissa), -1 if code & sign else 1)


def largest(dtype: DType) -> float:
    """The greatest finite value of a float type."""
    top = float_of_bits(dtype.overflow, dtype)
    return top if math.isfinite(top) else float_of_bits(dtype.overflow - 1, dtype)


_FLOAT32, _FLOAT16 = struct.Struct("<f"), struct.Struct("<e")


def wrapped(number: int, dtype: DType) -> int:
    """Wrap an integer to the range of a type: equal modulo 2^bits.

    >>> wrapped(300, dtypes.uint8), wrapped(0xffffffff, dtypes.int32)
    (44, -1)
    """
    least = int(dtype.min)
    return (number - least) % (1 << dtype.bits) + least


def dtype_by_name(name: Any) -> DType:
    """Look up a type by its name ("float32", "half"), or return it; a wrong name raises an error at the user's line."""
    if isinstance(name, DType):
        return name
    found = _by_name.get(name) if isinstance(name, str) else None
    if found is None:
        raise DTypeNameError("there is no such element type", given=repr(name),
                             expected=f"one of {', '.join(d.name for d in ALL)}",
                             fix="write dtypes.float32, for example")
    return found
