"""EXP2, LOG2, SIN as polynomials and Philox, checked against NumPy's long double and, for large angles, by integer
pi."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from glassgrad.base.errors import Bug
from glassgrad.compiler.check.graph_interpreter import interpret, philox as philox_by_numpy
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import DType, dtypes
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.op_arguments import Param, Range
from glassgrad.compiler.graph.uop import UOp, const
from glassgrad.compiler.lower.philox import philox
from glassgrad.compiler.lower.transcendental import _pi, expand, magnitude

FLOATS = {dtypes.float32: np.float32, dtypes.float64: np.float64}
SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 5e-324, 1e-38, 1.2e-38,
           127.0, 127.99999, 128.0, -126.0, -126.5, -149.0, -149.4, -150.1, -151.0, 1023.0, 1024.0, -1074.0, -1075.1,
           3e38, -3e38, 1e30, -1e30, math.pi, math.pi / 2, 22.0, 355.0, 103993.0]
precise = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="this machine's long double is a double")


def fused_meaning(np_: object, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """x*y + z rounded (almost) once, as a fused multiply-add gives it."""
    if x.dtype == np.float32:
        return (x.astype(np.float64) * y.astype(np.float64) + z.astype(np.float64)).astype(x.dtype)
    product, rest = exact_product(*np.broadcast_arrays(x, y))        # 106 bits: more than a long double may have
    total = (product.astype(np.longdouble) + z.astype(np.longdouble)) + rest.astype(np.longdouble)
    return np.where(np.isfinite(rest), total, x * y + z).astype(x.dtype)


def exact_product(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x*y rounded, and what rounding took away (Dekker's product); NaN where a part overflows."""
    def halves(value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        large = value * (2.0 ** 27 + 1)
        high = large - (large - value)
        return high, value - high
    with np.errstate(all="ignore"):
        product, (a, b), (c, d) = x * y, halves(x), halves(y)
        return product, ((a * c - product) + a * d + b * c) + b * d


@pytest.fixture(params=["fused", "not fused"])
def fused(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "fused":
        monkeypatch.setattr(o.MULACC, "meaning", fused_meaning)
    return request.param == "fused"


def evaluate(function, values: np.ndarray, dtype: DType) -> np.ndarray:
    """function(x) with its EXP2, LOG2 or SIN expanded."""
    x = UOp(o.PARAM, dtype, (), Param(0, values.shape))
    return interpret([expand(function(x))], {x: values})[0]


def ulps(got: np.ndarray, true: np.ndarray) -> float:
    """The largest error in units of the last place of the true value; infinities and NaN must be equal."""
    with np.errstate(all="ignore"):
        rounded = true.astype(got.dtype)
        odd = ~np.isfinite(rounded)
        np.testing.assert_array_equal(got[odd], rounded[odd])
        error = np.abs(got.astype(np.longdouble) - true)[~odd] / np.spacing(np.abs(rounded[~odd])).astype(np.longdouble)
    return float(error.max(initial=0))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_power_of_a_masked_score_is_zero_without_underflow(dtype: DType) -> None:
    """A product that underflows takes processors 100 times as long."""
    lowest = -2.0 * dtype.bias
    values = np.array([-math.inf, -1e30, -1e4, 2 * lowest, lowest], FLOATS[dtype])
    x = UOp(o.PARAM, dtype, (), Param(0, values.shape))
    for source in (x, x * math.log2(math.e)):
        result = expand(source.exp2())
        products = [n for n in toposort([result]) if n.op is o.MUL]
        operands = interpret([result, *[s for n in products for s in n.src]], {x: values})
        assert not operands[0].any()
        for left, right, node in zip(operands[1::2], operands[2::2], products):
            with np.errstate(all="ignore"):
                small = np.abs(left * right) < np.finfo(FLOATS[dtype]).tiny
            assert not (small & (left != 0) & (right != 0)).any(), node


def spread(rng: np.random.Generator, dtype: DType, low: float, high: float, count: int = 200_000) -> np.ndarray:
    near = rng.normal(size=count) * 10.0 ** rng.uniform(-12, 0, count)
    with np.errstate(over="ignore"):
        return np.concatenate([rng.uniform(low, high, count), near, SPECIAL]).astype(FLOATS[dtype])


EXP2_ENDS = {dtypes.float32: (-151.0, 129.0), dtypes.float64: (-1076.0, 1025.0)}


@precise
@pytest.mark.parametrize("dtype", FLOATS)
def test_exp2(rng, dtype, fused):
    values = spread(rng, dtype, *EXP2_ENDS[dtype])
    with np.errstate(all="ignore"):
        true = np.exp2(values.astype(np.longdouble))
    got = evaluate(lambda x: x.exp2(), values, dtype)
    assert ulps(got, true) < {dtypes.float32: 1.3, dtypes.float64: 1.7}[dtype] + (0 if fused else 0.4)
    assert np.all(got[values == 0] == 1.0)
    whole = np.arange(*EXP2_ENDS[dtype]).astype(FLOATS[dtype])
    with np.errstate(all="ignore"):
        powers = np.ldexp(FLOATS[dtype](1), whole.astype(int))
    np.testing.assert_array_equal(evaluate(lambda x: x.exp2(), whole, dtype), powers)


@precise
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name,factor", [("exp", math.log2(math.e)), ("exp(-x)", -math.log2(math.e)),
                                         ("10^x", math.log2(10)), ("other", 0.3), ("other", -200.0),
                                         ("large", 1e6), ("small", 1e-6)])
def test_exp2_of_a_product_with_a_constant(rng, dtype, name, factor, fused):
    low, high = sorted(end / factor for end in EXP2_ENDS[dtype])
    values = spread(rng, dtype, low, high)
    wide = values.astype(np.longdouble)
    held = np.longdouble(const(factor, dtype).arg)
    with np.errstate(all="ignore"):
        if name == "exp":
            true = np.exp(wide)
        elif name == "exp(-x)":
            true = np.exp(-wide)
        elif name == "10^x":
            true = np.exp2(wide * np.log2(np.longdouble(10)))
        elif name == "other":
            true = np.exp2(wide * held)
        else:                                                      # out of the fast range: the rounded product's power
            true = np.exp2((values * FLOATS[dtype](held)).astype(np.longdouble))
    allowed = (1.7 if fused else 2.0) if name == "exp" else 3.0
    assert ulps(evaluate(lambda x: (x * factor).exp2(), values, dtype), true) < allowed
    assert ulps(evaluate(lambda x: (const(factor, dtype) * x).exp2(), values, dtype), true) < allowed


@precise
@pytest.mark.parametrize("dtype", FLOATS)
def test_log2(rng, dtype, fused):
    low, high = {dtypes.float32: (-149, 128), dtypes.float64: (-1074, 1024)}[dtype]
    values = np.concatenate([np.exp2(rng.uniform(low, high, 200_000)), rng.uniform(0.4, 2.2, 200_000),
                             1 + spread(rng, dtypes.float64, -0.01, 0.01), SPECIAL]).astype(FLOATS[dtype])
    with np.errstate(all="ignore"):
        true = np.log2(values.astype(np.longdouble))
    assert ulps(evaluate(lambda x: x.log2(), values, dtype), true) < 1.8
    whole = np.arange(low, high).astype(FLOATS[dtype])
    powers = np.ldexp(FLOATS[dtype](1), whole.astype(int))
    np.testing.assert_array_equal(evaluate(lambda x: x.log2(), powers, dtype), whole)


def true_sine(values: np.ndarray, quarter: bool) -> np.ndarray:
    """sin (or cos) with the angle reduced exactly, by pi as a fraction of integers, then NumPy's long double."""
    half_pi, out = _pi() / 2, []
    for value in values.tolist():
        if not math.isfinite(value):
            out.append(np.longdouble(math.nan))
            continue
        turns = round(Fraction(value) / half_pi)
        rest = Fraction(value) - turns * half_pi
        high = float(rest)
        angle = np.longdouble(high) + np.longdouble(float(rest - Fraction(high)))
        turns += quarter
        part = np.sin(angle) if turns % 2 == 0 else np.cos(angle)
        out.append(-part if turns % 4 >= 2 else part)
    return np.array(out)


@precise
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("function", ["sin(x)", "sin(x + pi/2)", "sin(pi/2 - x)"])
def test_sine_of_every_finite_angle(rng, dtype, function, fused):
    largest = 127.9 if dtype is dtypes.float32 else 1023.9
    magnitudes = np.concatenate([np.exp2(rng.uniform(-30, 25, 800)), np.exp2(rng.uniform(0, largest, 800)),
                                 np.arange(1, 400) * (math.pi / 2), np.abs(SPECIAL), np.exp2(np.arange(largest)),
                                 [float(np.finfo(FLOATS[dtype]).max), 16367173 * 2.0 ** 72]])
    values = (magnitudes * rng.choice([-1.0, 1.0], len(magnitudes))).astype(FLOATS[dtype])
    turned = function != "sin(x)"
    build = {"sin(x)": lambda x: x.sin(), "sin(x + pi/2)": lambda x: (x + math.pi / 2).sin(),
             "sin(pi/2 - x)": lambda x: (math.pi / 2 - x).sin()}[function]
    assert ulps(evaluate(build, values, dtype), true_sine(values, turned)) < (1.8 if fused else 2.5)


def test_sine_keeps_the_sign_of_zero_and_of_the_smallest_numbers():
    values = np.array([0.0, -0.0, 1e-45, -1e-45], np.float32)
    got = evaluate(lambda x: x.sin(), values, dtypes.float32)
    np.testing.assert_array_equal(got.view(np.uint32), values.view(np.uint32))


def test_sine_of_a_small_angle_skips_the_long_reduction():
    bits = UOp(o.PARAM, dtypes.uint32, (), Param(0, (1000,)))
    angle = (bits >> 8).cast(dtypes.float32) * (2 * math.pi / 2 ** 24)
    assert magnitude(angle) < 6.3
    short, full = expand(angle.sin()), expand(X.sin())
    assert len(short.toposort()) * 2 < len(full.toposort())
    values = np.arange(1000, dtype=np.uint32) * 4294967
    true = np.sin(interpret([angle], {bits: values})[0].astype(np.longdouble))
    assert ulps(interpret([short], {bits: values})[0], true) < 2


X = UOp(o.PARAM, dtypes.float32, (), Param(0, ()))


@pytest.mark.parametrize("node,bound", [
    (const(-3.0), 3.0), (UOp(o.RANGE, dtypes.index, (), Range("i", 10)).cast(dtypes.float32), 9.0),
    (const(2.0) * 3.0 - 1.0, 7.0), ((-const(2.0)).abs(), 2.0), (X, math.inf), (X * 0.0, math.inf),
    (X.sin() * 4.0, 4.0)])
def test_magnitude_bounds_what_it_can_see(node, bound):
    assert magnitude(node) == bound


def test_other_types_are_refused():
    with pytest.raises(Bug, match="cast to float32 first"):
        expand(const(1.0, dtypes.float16).exp2())
    with pytest.raises(Bug, match="SQRT has no line in the table POLYNOMIALS"):
        expand(const(1.0).sqrt())


def test_how_many_operations_each_takes():
    """They dominate softmax and gelu: a longer version must be a decision."""
    functions = {"exp2": X.exp2(), "exp": (X * math.log2(math.e)).exp2(), "log2": X.log2(), "sin": X.sin()}
    free = (o.CONST, o.PARAM, o.BITCAST)
    counts = {name: sum(n.op not in free for n in expand(node).toposort()) for name, node in functions.items()}
    assert counts == {"exp2": 15, "exp": 16, "log2": 27, "sin": 88}


# -- random bits ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("element,stream,seed,words", [
    (0, 0, 0, (0xff1dae59, 0x6cd10df2)), (0xffffffff, 0xffffffff, 0xffffffff, (0x2c3f628b, 0xab4fd7ad)),
    (0x243f6a88, 0x85a308d3, 0x13198a2e, (0xdd7ce038, 0xf62a4c12))])
def test_philox_gives_the_known_answers(element, stream, seed, words):
    node = philox(const(seed, dtypes.uint32), const(stream, dtypes.uint32), const(element, dtypes.index))
    assert node.dtype is dtypes.uint64
    assert int(interpret([node], {})[0]) == words[0] | words[1] << 32


def test_philox_of_many_elements_is_the_graph_s_random(rng):
    seed, stream = (int(v) for v in rng.integers(0, 1 << 32, 2))
    elements = np.concatenate([np.arange(1000), [2 ** 32 - 1, 2 ** 32, 2 ** 40 + 5]])     # the low 32 bits count
    index = UOp(o.PARAM, dtypes.index, (), Param(0, elements.shape))
    got = interpret([philox(const(seed, dtypes.uint32), const(stream, dtypes.uint32), index)], {index: elements})[0]
    first, second = philox_by_numpy(elements.astype(np.uint64), np.uint64(stream), np.uint64(seed))
    np.testing.assert_array_equal(got, first | second << np.uint64(32))
