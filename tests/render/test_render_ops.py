"""Every op and every cast as the renderers write them, checked against the op table's own meaning and by PyTorch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from graph_leaves import conversion_is_defined
from render_kernels import BOOL, F32, HOST, I32, I64, LANGUAGES, NUMPY, apply, at, param, run
from torch_versions import skip_if_large_numbers_become_nan

from glassgrad.compiler.graph import index_algebra as ix, ops as o
from glassgrad.compiler.graph.dtype import bits_of, dtypes
from glassgrad.compiler.graph.uop import UOp, const
from glassgrad.compiler.lower.loops import LANE, LOOP, TILE, For, Kernel, Phase, Store, counter, load
from glassgrad.compiler.optimize.targets.target import Target


@pytest.fixture(params=LANGUAGES)
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def special(dtype) -> np.ndarray:
    """Values at which implementations differ: limits, zeros of both signs, infinities, NaN, ties, large numbers."""
    if dtype is BOOL:
        return np.array([False, True])
    if dtype.is_float:
        tiny = np.finfo(NUMPY[dtype]).smallest_subnormal
        values = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.75, 1e4, -1e4, tiny, -tiny, np.inf, -np.inf,
                  np.nan, 0.1, 8388607.5, -8388609.0, 3e9, -3e9]
        return np.array(values).astype(NUMPY[dtype])
    low, high = int(dtype.min), int(dtype.max)
    values = [0, 1, 2, 3, 5, 7, 8, 31, 100, high, high - 1, high // 2, low, low + 1, -1, -2, -3, -7, -8]
    return np.array([v for v in values if low <= v <= high], NUMPY[dtype])


def pairs(dtype) -> tuple[np.ndarray, np.ndarray]:
    both = np.array(list(itertools.product(special(dtype), special(dtype))), NUMPY[dtype])
    return both[:, 0].copy(), both[:, 1].copy()


def same(found: np.ndarray, expected: np.ndarray, what: object) -> None:
    expected = np.asarray(expected)
    np.testing.assert_array_equal(found, expected.astype(found.dtype), err_msg=str(what))
    assert expected.dtype == found.dtype, f"the op table says {expected.dtype}"


INTEGERS = [d for d in NUMPY if d.is_int]
WIDE_FLOATS = [dtypes.float32, dtypes.float64]
EVERY = [BOOL, *INTEGERS, *WIDE_FLOATS]
LANES = {"llvm": (16, 3), "c": (16,), "wasm": (16, 3)}


def binary_ops(dtype) -> list:
    ops = [o.ADD, o.MUL, o.MAX, o.MIN, o.CMPLT, o.CMPNE, o.CMPEQ]
    ops += [] if dtype is BOOL else [o.SUB]
    ops += [o.DIV] if dtype.is_float else [o.AND, o.OR, o.XOR]
    return ops + ([o.IDIV, o.MOD, o.SHL, o.SHR] if dtype.is_int else [])


def unary_ops(dtype) -> list:
    ops = [] if dtype is BOOL else [o.NEG, o.ABS]
    return ops + ([o.RECIP, o.SQRT, o.TRUNC, o.ROUND] if dtype.is_float else [o.NOT])


def result_of(op, dtype):
    return BOOL if op.compares else dtype


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", EVERY, ids=lambda d: d.name)
def test_binary_ops(how, dtype):
    x, y = pairs(dtype)
    ops = binary_ops(dtype)
    for lanes in LANES[how]:
        found = apply(how, lambda a, b: [UOp(op, result_of(op, dtype), (a, b)) for op in ops], [x, y],
                      [result_of(op, dtype) for op in ops], lanes)
        for op, values in zip(ops, found):
            same(values, op.meaning(np, x, y), op)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", [I32, I64, dtypes.uint8, F32], ids=lambda d: d.name)
def test_binary_ops_with_a_constant(how, dtype):
    x = np.tile(special(dtype), 2)
    numbers = [v.item() for v in special(dtype) if dtype.is_float or abs(int(v)) < 1000 or int(v) == int(dtype.min)]
    for some in (binary_ops(dtype)[::2], binary_ops(dtype)[1::2]):
        cases = list(itertools.product(some, numbers))

        def every(a, cases=cases):
            return [UOp(op, result_of(op, dtype), (a, const(v, dtype))) for op, v in cases]
        found = apply(how, every, [x], [result_of(op, dtype) for op, _ in cases], 8)
        for (op, v), values in zip(cases, found):
            same(values, op.meaning(np, x, np.full_like(x, v)), (op, v))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", EVERY, ids=lambda d: d.name)
def test_unary_ops(how, dtype):
    x, ops = np.tile(special(dtype), 5), unary_ops(dtype)
    without = Target(HOST.arch, HOST.vector_bytes, HOST.vector_registers, HOST.features - {"sse4.1"})
    for lanes, target in itertools.product(LANES[how], (HOST, without) if dtype.is_float else (HOST,)):
        found = apply(how, lambda a: [UOp(op, dtype, (a,)) for op in ops], [x], [dtype] * len(ops), lanes, target)
        for op, values in zip(ops, found):
            expected = op.meaning(np, x)
            same(values, expected, op)
            if dtype.is_float:
                numbers = ~np.isnan(expected)
                np.testing.assert_array_equal(np.signbit(values)[numbers], np.signbit(expected)[numbers])


def test_a_quotient_of_lanes_that_fit_32_bits_may_need_more(how):
    x, y = np.array([-2**31, 2**31 - 1] * 10, np.int32), np.array([-1] * 20, np.int32)
    (found,) = apply(how, lambda a, b: [UOp(o.IDIV, I64, (a.cast(I64), b.cast(I64)))], [x, y], [I64], 16)
    same(found, x.astype(np.int64) // y, "int64 from int32")


def test_ternary_ops(how, rng):
    c, x, y = rng.random(100) < 0.5, rng.standard_normal(100).astype(np.float32), np.resize(special(F32), 100)
    (found,) = apply(how, lambda a, b, z: [UOp(o.WHERE, F32, (a, b, z))], [c, x, y], [F32], 16)
    same(found, np.where(c, x, y), "where")
    z = rng.standard_normal(100).astype(np.float32)
    (found,) = apply(how, lambda a, b, d: [a.mulacc(b, d)], [x, z, x], [F32], 16)
    np.testing.assert_allclose(found, x * z + x, rtol=1e-5, atol=1e-6)


# -- casts, checked against PyTorch on x86
# -----------------------------------------------------------------------------------
NARROW = {dtypes.float16: "float16", dtypes.bfloat16: "bfloat16", dtypes.fp8e4m3: "float8_e4m3fn",
          dtypes.fp8e5m2: "float8_e5m2", dtypes.fp8e4m3fnuz: "float8_e4m3fnuz", dtypes.fp8e5m2fnuz: "float8_e5m2fnuz"}
STORED = {1: np.uint8, 2: np.uint16}


def cast_kernel(source, dtype, n: int, lanes: int) -> Kernel:
    x, y, i, lane = param(0, source, n), param(1, dtype, n), counter("i", n // lanes), counter("l", lanes)
    index = at((i, lanes), lane)
    cast = Store(y, index, load(x, index).cast(dtype))
    return Kernel("cast", [x, y], [Phase([For(i, LOOP, [For(lane, LANE, [cast])])])], (1,))


@pytest.mark.parametrize("source", EVERY, ids=lambda d: d.name)
def test_casts(how, torch, source):
    values = special(source)
    if source.is_float:
        values = np.concatenate([values, np.array([300.0, -300.7, 7e4, 2**31, 2**63, 1.8e19, -2.0**63, 255.9, 128.5])])
    x = np.resize(values.astype(NUMPY[source]), 67)
    others = [d for d in EVERY if d is not source]
    for lanes in LANES[how]:
        for dtype, found in zip(others, apply(how, lambda a: [a.cast(d) for d in others], [x], others, lanes)):
            expected = torch.from_numpy(x).to(getattr(torch, dtype.name)).numpy()
            defined = conversion_is_defined(x, source, dtype)
            np.testing.assert_array_equal(found[defined], expected[defined],
                                          err_msg=f"{source.name} -> {dtype.name}, {lanes} lanes")


@pytest.mark.parametrize("half", [True, False], ids=["f16c", "without"])
@pytest.mark.parametrize("dtype", NARROW, ids=lambda d: d.name)
def test_narrow_floats(how, torch, dtype, half):
    """Every narrow number to float32; float32 at, between and next to all narrow numbers, and beyond them, back."""
    skip_if_large_numbers_become_nan(torch, dtype)
    target = HOST if half else Target(HOST.arch, HOST.vector_bytes, HOST.vector_registers, HOST.features - {"f16c"})
    kind, n = STORED[dtype.itemsize], 1 << dtype.bits
    patterns, wide = np.arange(n).astype(kind), np.zeros(n, np.float32)
    run(cast_kernel(dtype, F32, n, 16), [patterns, wide], how, target)

    def as_torch(bits):
        signed = bits.view(np.int16 if dtype.itemsize == 2 else np.int8)
        return torch.from_numpy(signed).view(getattr(torch, NARROW[dtype]))
    np.testing.assert_array_equal(wide, as_torch(patterns).float().numpy())
    exact = np.unique(wide[np.isfinite(wide)]).astype(np.float64)
    ties = ((exact[1:] + exact[:-1]) / 2).astype(np.float32)
    random = np.random.default_rng(1).integers(0, 2**32, 4096, dtype=np.uint32).view(np.float32)
    x = np.concatenate([exact.astype(np.float32), ties, np.nextafter(ties, np.float32(np.inf)),
                        np.nextafter(ties, np.float32(-np.inf)), random, special(F32)])
    x = np.resize(x, -(-len(x) // 16) * 16)
    y = np.zeros(len(x), kind)
    run(cast_kernel(F32, dtype, len(x), 16), [x, y], how, target)
    expected = torch.from_numpy(x).to(getattr(torch, NARROW[dtype])).float().numpy()
    np.testing.assert_array_equal(as_torch(y).float().numpy(), expected)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(as_torch(y).float().numpy()[numbers]), np.signbit(expected[numbers]))
    constants = np.array([bits_of(v, dtype) for v in x[:: max(1, len(x) // 2000)].tolist()], kind)
    np.testing.assert_array_equal(as_torch(constants).float().numpy(), expected[:: max(1, len(x) // 2000)])


@pytest.mark.parametrize("other", [dtypes.float64, I32, I64, dtypes.uint8, BOOL, dtypes.bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("dtype", NARROW, ids=lambda d: d.name)
def test_narrow_floats_and_other_types(how, torch, dtype, other):
    x = np.resize(np.array([0, 1, 2, 3, 77, 100, 1, 0, 240]), 16)
    store = NUMPY.get(other, np.uint16)
    source = (torch.from_numpy(x).to(torch.bfloat16) if other is dtypes.bfloat16 else torch.from_numpy(x.astype(store)))
    bits = source.view(torch.int16).numpy().view(np.uint16) if other is dtypes.bfloat16 else source.numpy()
    y = np.zeros(16, STORED[dtype.itemsize])
    run(cast_kernel(other, dtype, 16, 8), [bits, y], how)
    narrow = source.to(getattr(torch, NARROW[dtype]))
    integer = torch.int16 if dtype.itemsize == 2 else torch.int8
    np.testing.assert_array_equal(y, narrow.view(integer).numpy().view(y.dtype))
    z = np.zeros(16, store)
    run(cast_kernel(dtype, other, 16, 8), [y, z], how)
    back = narrow.to(getattr(torch, other.name))
    back = back.view(torch.int16).numpy().view(np.uint16) if other is dtypes.bfloat16 else back.numpy()
    np.testing.assert_array_equal(z, back)


def test_bitcasts_and_constants(how):
    x = np.array([0, 1, 0x3F800000, 0x80000000, 0x7F800000, 0x7FC00000, 0xFFFFFFFF, 0x00000001] * 2, np.uint32)
    (found,) = apply(how, lambda a: [a.bitcast(F32)], [x], [F32], 8)
    np.testing.assert_array_equal(found.view(np.uint32), x)
    numbers = [np.inf, -np.inf, np.nan, -0.0, 1e-45, 3.4028235e38, 0.1, 1e300]
    for dtype in (F32, dtypes.float64, dtypes.float16):
        y, lane = param(0, dtype, len(numbers), 8), counter("l", 8)
        out = np.zeros((len(numbers), 8), NUMPY[dtype])
        run(Kernel("constants", [y], [Phase([For(lane, LANE, [
            Store(y, at(lane, row * 8), const(v, dtype)) for row, v in enumerate(numbers)])])], (0,)), [out], how)
        with np.errstate(over="ignore"):
            expected = np.array(numbers, np.float32 if dtype is dtypes.float16 else np.float64).astype(NUMPY[dtype])
        np.testing.assert_array_equal(out, np.repeat(expected[:, None], 8, 1))
        np.testing.assert_array_equal(np.signbit(out[:2]), np.repeat(np.signbit(expected[:2, None]), 8, 1))
        assert np.signbit(out[3, 0])


# -- index arithmetic --------------------------------------------------------------------------------------------------
def test_index_arithmetic(how, rng):
    """Random expressions over a loop, a tile and lanes, stored as numbers: the same in Python's integers."""
    i, t, lane = counter("i", 5), counter("t", 3), counter("l", 8)

    def expression(depth: int) -> UOp:
        kind = rng.integers(0, 7 if depth else 2)
        if kind == 0:
            return (i, t, lane)[rng.integers(0, 3)]
        if kind == 1:
            return ix.index(int(rng.integers(-20, 20)))
        x = expression(depth - 1)
        if kind == 2:
            return ix.add(x, expression(depth - 1))
        if kind == 3:
            return ix.multiply(x, int(rng.choice([-3, -1, 2, 4, 5, 1 << 20, 1 << 33])))
        if kind == 4:
            return UOp(o.IDIV, I64, (x, ix.index(int(rng.choice([2, 3, 7, 8, 30])))))
        if kind == 5:
            return UOp(o.MOD, I64, (x, ix.index(int(rng.choice([2, 3, 7, 16, 100])))))
        return UOp(o.WHERE, I64, (ix.less(x, expression(depth - 1)), expression(depth - 1), x))

    def meaning(node: UOp, env) -> int:
        if node.op is o.CONST:
            return int(node.arg)
        if node.op is o.RANGE:
            return env[node]
        a = [meaning(s, env) for s in node.src]
        return {o.ADD: lambda: a[0] + a[1], o.MUL: lambda: a[0] * a[1], o.IDIV: lambda: a[0] // a[1],
                o.MOD: lambda: a[0] % a[1], o.CMPLT: lambda: a[0] < a[1],
                o.WHERE: lambda: a[1] if a[0] else a[2]}[node.op]()
    many = [expression(4) for _ in range(60)]
    y = param(0, I64, len(many), 5, 3, 8)
    place = at((i, 24), (t, 8), lane)
    kernel = Kernel("indices", [y], [Phase([For(i, LOOP, [For(t, TILE, [For(lane, LANE, [
        Store(y, at(place, n * 120), e) for n, e in enumerate(many)])])])])], (0,))
    found = np.zeros((len(many), 5, 3, 8), np.int64)
    run(kernel, [found], how)
    for n, e in enumerate(many):
        for a, b, c in itertools.product(range(5), range(3), range(8)):
            wrapped = (meaning(e, {i: a, t: b, lane: c}) + (1 << 63)) % (1 << 64) - (1 << 63)
            assert found[n, a, b, c] == wrapped, e
