"""Element types: promotion, limits, and the conversion of single values."""

from __future__ import annotations

import math
import pickle

import pytest

from glassgrad.base.errors import DTypeError
from glassgrad.compiler.graph.dtype import (ALL, bits_of, convert, dtype_by_name, dtypes, float_of_bits, largest,
                                            promote, round_float)

NARROW = [dtypes.float16, dtypes.bfloat16, *dtypes.fp8s]


@pytest.mark.parametrize("a, b, meet", [
    ("bool", "bool", "bool"), ("bool", "int8", "int8"), ("uint8", "int8", "int16"), ("uint32", "int32", "int64"),
    ("uint64", "int64", "float32"), ("int64", "float16", "float16"), ("float16", "bfloat16", "float32"),
    ("float32", "float64", "float64"), ("int32", "float32", "float32"), ("bool", "float16", "float16"),
    ("fp8e4m3", "fp8e5m2", "float16"), ("fp8e4m3", "fp8e4m3fnuz", "float16"),
    ("int64", "fp8e5m2fnuz", "fp8e5m2fnuz"), ("fp8e4m3fnuz", "bfloat16", "bfloat16"), ("uint16", "int16", "int32")])
def test_promotion(a, b, meet):
    assert promote(dtype_by_name(a), dtype_by_name(b)).name == meet


def test_promotion_is_commutative_associative_and_idempotent():
    for a in ALL:
        assert promote(a, a) is a
        for b in ALL:
            assert promote(a, b) is promote(b, a)
            for c in ALL:
                if dtypes.uint64 in (a, b, c) and any(d.kind == "i" for d in (a, b, c)):
                    continue                            # no integer holds both: float32, before the third has spoken
                if len({a, b, c} & set(dtypes.fp8s)) > 1:
                    continue                            # float16 and bfloat16 both hold these, and not each other
                assert promote(promote(a, b), c) is promote(a, promote(b, c)), (a, b, c)


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_types_are_singletons_with_names(dtype):
    assert dtype_by_name(dtype.name) is dtype and pickle.loads(pickle.dumps(dtype)) is dtype
    assert getattr(dtypes, dtype.name) is dtype and dtype.bits == 8 * dtype.itemsize
    assert dtype.accumulator is (dtypes.float32 if dtype in NARROW else dtype)


def test_a_wrong_name_is_told():
    with pytest.raises(DTypeError) as error:
        dtype_by_name("float31")
    text = str(error.value).splitlines()
    assert text[:2] == ["there is no such element type", "  given:    'float31'"]
    assert text[2].startswith("  expected: one of bool, int8, uint8,") and text[2].endswith("float32, float64")
    assert text[3] == "  fix:      write dtypes.float32, for example" and "test_graph_dtype.py" in text[4]


def test_default_types_of_python_values():
    assert [dtypes.from_py(v) for v in (True, 1, 1.0)] == [dtypes.bool, dtypes.int32, dtypes.float32]


@pytest.mark.parametrize("value, dtype, expected", [
    (300, dtypes.uint8, 44), (-1, dtypes.uint32, 2**32 - 1), (2**31, dtypes.int32, -2**31), (-129, dtypes.int8, 127),
    (2**64 + 5, dtypes.uint64, 5), (-1.9, dtypes.int8, -1), (300.0, dtypes.int8, 44), (3e9, dtypes.int32, -2**31),
    (3e9, dtypes.int16, 0), (math.inf, dtypes.int8, 0), (math.nan, dtypes.int64, -2**63),
    (3e9, dtypes.uint32, 3000000000),
    (-1.0, dtypes.uint32, 2**32 - 1), (1e19, dtypes.uint64, 10**19), (1e20, dtypes.uint64, 0), (2, dtypes.bool, True),
    (math.nan, dtypes.bool, True), (0.0, dtypes.bool, False), (True, dtypes.float32, 1.0)])
def test_conversion(value, dtype, expected):
    got = convert(value, dtype)
    assert got == expected and type(got) is type(expected)


@pytest.mark.parametrize("value, dtype, expected", [
    (0.1, dtypes.float32, 0.10000000149011612), (0.1, dtypes.float64, 0.1), (2**24 + 1, dtypes.float32, 2.0**24),
    (1e39, dtypes.float32, math.inf), (-1e39, dtypes.float16, -math.inf), (65519.0, dtypes.float16, 65504.0),
    (65520.0, dtypes.float16, math.inf), (1e-50, dtypes.float32, 0.0), (464.0, dtypes.fp8e4m3, 448.0),
    (math.inf, dtypes.fp8e4m3, 448.0), (-1e9, dtypes.fp8e4m3, -448.0), (61439.0, dtypes.fp8e5m2, 57344.0),
    (61440.0, dtypes.fp8e5m2, math.inf), (2**62 + 2**38 + 1, dtypes.float32, 2.0**62 + 2.0**39),
    (2.0**-17, dtypes.fp8e5m2, 0.0), (3 * 2.0**-18, dtypes.fp8e5m2, 2.0**-16), (10**400, dtypes.float64, math.inf),
    (-10**400, dtypes.float32, -math.inf), (247.0, dtypes.fp8e4m3fnuz, 240.0), (61439.0, dtypes.fp8e5m2fnuz, 57344.0),
    (3 * 2.0**-12, dtypes.fp8e4m3fnuz, 2.0**-10), (-2.0**-18, dtypes.fp8e5m2fnuz, 0.0)])
def test_rounding(value, dtype, expected):
    assert round_float(value, dtype) == expected


@pytest.mark.parametrize("dtype", [*NARROW, dtypes.float32, dtypes.float64], ids=lambda d: d.name)
def test_rounding_keeps_what_is_already_there(dtype):
    for x in (0.0, 1.0, -1.5, largest(dtype), 2.0 ** (1 - dtype.bias), 2.0 ** (1 - dtype.bias - dtype.mantissa)):
        assert round_float(x, dtype) == x
    sign = -1 if dtype.has_negative_zero else 1
    assert math.copysign(1, round_float(-0.0, dtype)) == sign and math.isnan(round_float(math.nan, dtype))
    assert math.copysign(1, round_float(-1e-300, dtype)) == sign


@pytest.mark.parametrize("dtype, top, infinities, negative_zero", [
    (dtypes.fp8e4m3, 448.0, False, True), (dtypes.fp8e5m2, 57344.0, True, True),
    (dtypes.fp8e4m3fnuz, 240.0, False, False), (dtypes.fp8e5m2fnuz, 57344.0, False, False),
    (dtypes.float16, 65504.0, True, True), (dtypes.bfloat16, 2.0**128 - 2.0**120, True, True),
    (dtypes.float32, 2.0**128 - 2.0**104, True, True), (dtypes.float64, 1.7976931348623157e308, True, True)])
def test_limits_of_floats(dtype, top, infinities, negative_zero):
    assert largest(dtype) == top and dtype.max == -dtype.min == (math.inf if infinities else top)
    assert (dtype.has_infinities, dtype.has_negative_zero) == (infinities, negative_zero)


@pytest.mark.parametrize("dtype", NARROW, ids=lambda d: d.name)
def test_every_code_is_the_code_of_its_value(dtype):
    values = [float_of_bits(code, dtype) for code in range(1 << dtype.bits)]
    assert [code for code, value in enumerate(values) if not math.isnan(value) and bits_of(value, dtype) != code] == []
    assert math.isnan(values[dtype.nan]) and bits_of(math.nan, dtype) == dtype.nan
    assert sum(map(math.isnan, values)) == {"fp8e4m3": 2, "fp8e5m2": 6, "fp8e4m3fnuz": 1, "fp8e5m2fnuz": 1,
                                            "float16": 2046, "bfloat16": 254}[dtype.name]


def test_types_without_infinities_say_what_is_too_large():
    for dtype, first in ((dtypes.fp8e4m3fnuz, 248.0), (dtypes.fp8e5m2fnuz, 61440.0)):
        assert all(math.isnan(round_float(x, dtype)) for x in (first, -first, 1e30, math.inf, -math.inf))
