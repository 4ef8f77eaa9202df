"""Element types and how they meet. In: nothing. Out: `DType`, `dtypes`, `promote`. Knows nothing of graphs or NumPy."""

from __future__ import annotations

from typing import Any

from glassgrad.base.errors import DTypeError


class DType:
    """One element type, compared by identity. `kind` is one of b(ool) i(nt) u(int) f(loat)."""
    __slots__ = ("name", "itemsize", "kind", "rank", "format", "bits", "exponent", "mantissa")

    def __init__(self, name: str, itemsize: int, kind: str, rank: int, format: str, exponent: int = 0, mantissa: int = 0):
        self.name, self.itemsize, self.kind, self.rank, self.format = name, itemsize, kind, rank, format
        self.bits, self.exponent, self.mantissa = itemsize * 8, exponent, mantissa

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
    def min(self) -> int | float | bool:
        if self.kind == "f":
            return -float("inf")
        return False if self.kind == "b" else (-(1 << (self.bits - 1)) if self.kind == "i" else 0)

    @property
    def max(self) -> int | float | bool:
        if self.kind == "f":
            return float("inf")
        return True if self.kind == "b" else ((1 << (self.bits - 1)) - 1 if self.kind == "i" else (1 << self.bits) - 1)

    @property
    def accumulator(self) -> DType:
        """The type a sum of this type is carried in: narrow floats in float32."""
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
    fp8e4m3 = float8_e4m3fn = DType("fp8e4m3", 1, "f", 9, "B", 4, 3)
    fp8e5m2 = float8_e5m2 = DType("fp8e5m2", 1, "f", 10, "B", 5, 2)
    float16 = half = DType("float16", 2, "f", 11, "e", 5, 10)
    bfloat16 = DType("bfloat16", 2, "f", 12, "H", 8, 7)
    float32 = float = DType("float32", 4, "f", 13, "f", 8, 23)
    float64 = double = DType("float64", 8, "f", 14, "d", 11, 52)

    default_float: DType = float32
    default_int: DType = int32
    index: DType = int64  # what addresses are computed in

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
    def from_py(value: Any) -> DType:
        """The type a plain Python value takes: bool, default int or default float."""
        if value is True or value is False:
            return dtypes.bool
        return dtypes.default_int if isinstance(value, int_type) else dtypes.default_float


int_type = type(0)

ALL: tuple[DType, ...] = tuple(sorted({id(d): d for d in vars(dtypes).values() if isinstance(d, DType)}.values(),
                                      key=lambda d: d.rank))
_by_name = {name: d for name, d in vars(dtypes).items() if isinstance(d, DType) and not name.startswith("default_")}

# Each type and the narrowest types that hold all of it, as JAX and tinygrad have it. A type meets another at the
# lowest-ranked type that both reach.
_WIDER: dict[DType, tuple[DType, ...]] = {
    dtypes.bool: (dtypes.int8, dtypes.uint8), dtypes.int8: (dtypes.int16,), dtypes.int16: (dtypes.int32,),
    dtypes.int32: (dtypes.int64,), dtypes.int64: (dtypes.fp8e4m3, dtypes.fp8e5m2),
    dtypes.uint8: (dtypes.int16, dtypes.uint16), dtypes.uint16: (dtypes.int32, dtypes.uint32),
    dtypes.uint32: (dtypes.int64, dtypes.uint64), dtypes.uint64: (dtypes.fp8e4m3, dtypes.fp8e5m2),
    dtypes.fp8e4m3: (dtypes.float16, dtypes.bfloat16), dtypes.fp8e5m2: (dtypes.float16, dtypes.bfloat16),
    dtypes.float16: (dtypes.float32,), dtypes.bfloat16: (dtypes.float32,), dtypes.float32: (dtypes.float64,),
    dtypes.float64: (),
}
_meets: dict[tuple[DType, DType], DType] = {}


def _reach(dtype: DType) -> set[DType]:
    return {dtype}.union(*(_reach(w) for w in _WIDER[dtype]))


def promote(a: DType, b: DType) -> DType:
    """The type of an operation between two tensors.

    >>> promote(dtypes.int32, dtypes.float16), promote(dtypes.uint8, dtypes.int8)
    (dtypes.float16, dtypes.int16)
    """
    if a is b:
        return a
    meet = _meets.get((a, b))
    if meet is None:
        meet = _meets[a, b] = min(_reach(a) & _reach(b), key=lambda d: d.rank)
    return meet


def dtype_by_name(name: Any) -> DType:
    """A type from its name ("float32", "half") or itself; wrong names raise at the user's line."""
    if isinstance(name, DType):
        return name
    found = _by_name.get(name) if isinstance(name, str) else None
    if found is None:
        raise DTypeError("there is no such element type", given=repr(name),
                         expected=f"one of {', '.join(d.name for d in ALL)}", mend="write dtypes.float32, for example")
    return found
