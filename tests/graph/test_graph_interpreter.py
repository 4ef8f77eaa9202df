"""The reference interpreter against NumPy and PyTorch: every op of the table, every element type."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from graph_leaves import Values, awkward, buffer, conversion_is_defined, same
from torch_versions import skip_if_large_numbers_become_nan

from glassgrad.base.errors import Bug
from glassgrad.compiler.check import graph_interpreter as interpreter
from glassgrad.compiler.check.graph_interpreter import (array_type, cast_array, from_storage, interpret, philox,
                                                        storage_type, to_storage)
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import ALL, DType, convert, dtypes
from glassgrad.compiler.graph.op_arguments import Axes, Cell, RandomBits, Scan, Scatter
from glassgrad.compiler.graph.uop import UOp, const
from glassgrad.tensor.memory.python_values import TORCH_TYPES

TORCH = {d: name for name, d in TORCH_TYPES.items()}
NARROW = [dtypes.float16, dtypes.bfloat16, *dtypes.fp8s]


def scan(x: UOp, axis: int, combine: o.Op) -> UOp:
    return UOp(o.SCAN, x.dtype, (x,), Scan(axis, combine))


def scatter(base: UOp, index: UOp, value: UOp, mode: str) -> UOp:
    return UOp(o.SCATTER, base.dtype, (base, index, value), Scatter(mode))


def gather(rows: UOp, index: UOp) -> UOp:
    return UOp(o.GATHER, rows.dtype, (rows, index))


# -- elementwise ------------------------------------------------------------------------------------------------------
def has(op: o.Op, dtype: DType) -> bool:
    """Whether the op is defined on the type."""
    return dtype.kind in op.takes


@pytest.mark.parametrize("op, dtype", [(op, d) for op in o.Ops if op in o.ELEMENTWISE and op.meaning
                                       for d in ALL if has(op, d)])
def test_elementwise_is_its_meaning_rounded_once(op, dtype, rng):
    """Floats below float32 compute in float32 and round once."""
    values = Values()
    count = {"unary": 1, "binary": 2, "ternary": 3}[op.kind]
    kinds = [dtypes.bool if op is o.WHERE and i == 0 else dtype for i in range(count)]
    leaves = [values.leaf(awkward(rng, (64,), d), d) for d in kinds]
    node = UOp(op, dtypes.bool if op.compares else dtype, tuple(leaves))
    arrays = [values[x].astype(np.float32) if d is dtypes.float16 else values[x] for x, d in zip(leaves, kinds)]
    with np.errstate(all="ignore"):
        expected = cast_array(np.asarray(op.meaning(np, *arrays)), node.dtype)
    assert same(values.of(node), expected)


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_values_without_axes_stay_arrays_without_axes(dtype):
    values = Values()
    x = values.leaf(np.ones(()), dtype)
    for node in (x, x * x, x.maximum(x), x.cast(dtypes.float64), x.eq(x).where(x, x), x.reshape((1, 1)).reshape(())):
        got = values.of(node)
        assert isinstance(got, np.ndarray) and got.shape == () and got == 1


def test_a_source_of_shape_nothing_mixes_with_any_shape(rng):
    values = Values()
    x = values.leaf(rng.standard_normal((2, 3)).astype(np.float32))
    assert same(values.of(x * 2.0 + const(1.0)), values[x] * np.float32(2) + np.float32(1))
    assert same(values.of((const(1.0) < x).where(x, 0.0)), np.where(1 < values[x], values[x], np.float32(0)))


@pytest.mark.parametrize("x, y, quotient, rest", [
    (7, 2, 3, 1), (-7, 2, -4, 1), (7, -2, -4, -1), (-7, -2, 3, -1), (5, 0, 0, 0), (-2**31, -1, -2**31, 0)])
def test_integer_division_is_total_and_rounds_down(x, y, quotient, rest):
    a, b = const(x, dtypes.int32), const(y, dtypes.int32)
    assert [int(v) for v in interpret([a // b, a % b], {})] == [quotient, rest]


@pytest.mark.parametrize("shift", [-1, 0, 7, 8, 9, 31])
def test_shifts_that_are_too_wide_give_zero(shift):
    values = Values()
    x = values.leaf(np.array([-128, -1, 1, 127], np.int8))
    y = const(shift, dtypes.int8)
    wide = not 0 <= shift < 8
    assert values.of(x << y).tolist() == ([0] * 4 if wide else (values[x] << np.int8(shift)).tolist())
    assert values.of(x >> y).tolist() == ([0] * 4 if wide else (values[x] >> np.int8(shift)).tolist())


# -- conversion -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("target", ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("source", ALL, ids=lambda d: d.name)
def test_cast_is_pytorchs(source, target, rng, torch):
    skip_if_large_numbers_become_nan(torch, target)
    x = np.concatenate([awkward(rng, (200,), source), cast_array(np.array(
        [0, 1, 127, 128, 255, 256, -128, -129, 3e4, 4e4, -4e4, 2**31, 2**32 + 2048, 1e10, -1e10, 1e19, -1e19, 1e20]),
        source)])
    reference = torch.tensor(x.astype(np.float64) if source.kind == "f" else x).to(getattr(torch, TORCH[source]))
    # one element at a time: PyTorch's vector loop for uint32 differs from its own scalar conversion
    expected = torch.stack([v.to(getattr(torch, TORCH[target])).to(
        torch.float64 if target.kind == "f" else getattr(torch, TORCH[target])) for v in reference]).numpy()
    values = Values()
    got = values.of(values.leaf(x, source).cast(target))
    assert got.dtype == array_type(target)
    defined = conversion_is_defined(x, source, target)
    assert same(got.astype(expected.dtype)[defined], expected[defined])
    assert same(got, np.array([convert(v.item(), target) for v in x], got.dtype)), "constants convert otherwise"


@pytest.mark.parametrize("dtype", [dtypes.bfloat16, *dtypes.fp8s], ids=lambda d: d.name)
def test_every_code_of_the_narrow_floats_is_pytorchs(dtype, torch):
    codes = np.arange(1 << dtype.bits).astype(storage_type(dtype))
    as_signed = codes.view(np.int16 if dtype.bits == 16 else np.uint8)
    expected = torch.tensor(as_signed).view(getattr(torch, TORCH[dtype])).to(torch.float32).numpy()
    got = from_storage(codes, dtype)
    assert same(got, expected)
    numbers = ~np.isnan(got)
    assert np.array_equal(to_storage(got, dtype)[numbers], codes[numbers])
    assert np.isnan(from_storage(to_storage(got[~numbers], dtype), dtype)).all()
    assert same(from_storage(codes.tobytes(), dtype), got)


@pytest.mark.parametrize("dtype", NARROW, ids=lambda d: d.name)
def test_rounding_to_narrow_floats_is_pytorchs(dtype, torch, rng):
    skip_if_large_numbers_become_nan(torch, dtype)
    x = rng.integers(0, 1 << 32, 20000, dtype=np.uint32).view(np.float32)
    near = cast_array(x, dtype).astype(np.float32)
    with np.errstate(all="ignore"):
        halves = (near + np.nextafter(near, np.float32(np.inf))) / 2
    x = np.concatenate([x, near, halves, rng.standard_normal(2000).astype(np.float32) * 100])
    expected = torch.tensor(x).to(getattr(torch, TORCH[dtype])).to(torch.float32).numpy()
    assert same(cast_array(x, dtype).astype(np.float32), expected)


@pytest.mark.parametrize("source, target", [(a, b) for a in ALL for b in ALL if a.bits == b.bits and a.kind != "b"
                                            and b.kind != "b" and a is not b], ids=lambda d: d.name)
def test_bitcast_keeps_the_bits(source, target, rng):
    values = Values()
    x = values.leaf(awkward(rng, (3, 5), source), source)
    there = x.bitcast(target)
    assert same(to_storage(values.of(there), target).view(np.uint8), to_storage(values[x], source).view(np.uint8)) \
        or np.isnan(values[x].astype(np.float64)).any() or np.isnan(values.of(there).astype(np.float64)).any()
    numbers = ~np.isnan(values.of(there).astype(np.float64)) & ~np.isnan(values[x].astype(np.float64))
    assert np.array_equal(values.of(there.bitcast(source))[numbers], values[x][numbers])


# -- reductions and scans ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("op, reference", [(o.SUM, np.sum), (o.PROD, np.prod), (o.AMAX, np.max), (o.AMIN, np.min)])
@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_reductions_keep_axes_and_types(op, reference, dtype, rng):
    values = Values()
    x = values.leaf(awkward(rng, (3, 2, 5), dtype), dtype)
    wide = values[x].astype(np.float32) if dtype.kind == "f" and dtype.bits < 32 else values[x]
    for axes in ((0,), (0, 2), (0, 1, 2)):
        extra = {"dtype": wide.dtype} if op in (o.SUM, o.PROD) else {}
        with np.errstate(all="ignore"):
            expected = cast_array(np.asarray(reference(wide, axis=axes, keepdims=True, **extra)), dtype)
        assert same(values.of(UOp(op, dtype, (x,), Axes(axes))), expected)


def test_narrow_sums_are_carried_in_float32():
    values = Values()
    x = values.leaf(np.ones(5000), dtypes.float16)
    assert values.of(x.sum((0,))).tolist() == [5000.0]
    x = values.leaf(np.ones(5000), dtypes.bfloat16)
    assert values.of(x.sum((0,))).tolist() == [4992.0], "5000 on bfloat16's grid"


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_the_fold_of_nothing_is_the_identity(dtype):
    values = Values()
    x = values.leaf(np.zeros((2, 0)), dtype)
    for op, expected in ((o.SUM, 0), (o.PROD, 1), (o.AMAX, dtype.min), (o.AMIN, dtype.max)):
        assert values.of(UOp(op, dtype, (x,), Axes((1,)))).tolist() == [[expected]] * 2


@pytest.mark.parametrize("combine, reference", [(o.ADD, np.cumsum), (o.MUL, np.cumprod), (o.MAX, np.maximum.accumulate),
                                            (o.MIN, np.minimum.accumulate)])
def test_scan_is_inclusive(combine, reference, rng):
    values = Values()
    x = values.leaf(rng.standard_normal((3, 4, 5)))
    for axis in range(3):
        assert same(values.of(scan(x, axis, combine)), reference(values[x], axis=axis))
    empty = values.leaf(np.zeros((3, 0)))
    assert values.of(scan(empty, 1, combine)).shape == (3, 0)
    half = values.leaf(np.full(3000, 1.0), dtypes.float16)
    assert values.of(scan(half, 0, combine))[-1] == (3000 if combine is o.ADD else 1)


# -- movement ---------------------------------------------------------------------------------------------------------
def test_movement(rng):
    values = Values()
    x = values.leaf(rng.standard_normal((2, 3, 4)))
    a = values[x]
    assert same(values.of(x.reshape((4, 6))), a.reshape(4, 6))
    assert same(values.of(x.permute((2, 0, 1))), a.transpose(2, 0, 1))
    assert same(values.of(x.reshape((2, 1, 3, 4)).expand((2, 5, 3, 4))), np.repeat(a[:, None], 5, 1))
    assert same(values.of(x.pad(((1, 0), (0, 2), (3, 1)))), np.pad(a, ((1, 0), (0, 2), (3, 1))))
    assert same(values.of(x.shrink(((1, 2), (0, 3), (2, 2)))), a[1:2, 0:3, 2:2])
    assert same(values.of(x.flip((0, 2))), a[::-1, :, ::-1])
    assert values.of(const(1.0).broadcast((2, 0, 3))).shape == (2, 0, 3)


@pytest.mark.parametrize("length, size, stride, dilation", [
    (7, 3, 1, 1), (7, 3, 2, 1), (8, 2, 2, 3), (5, 5, 1, 1), (5, 1, 3, 1), (4, 3, 5, 1), (3, 2, 1, 4), (9, 3, 3, 2)])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_window_and_its_adjoint(length, size, stride, dilation, axis, rng):
    values = Values()
    shape = [2, 3, 2]
    shape[axis] = length
    x = values.leaf(rng.standard_normal(shape))
    windows = x.window(axis, size, stride, dilation)
    a, got = np.moveaxis(values[x], axis, 0), np.moveaxis(values.of(windows), axis, 0)
    assert len(got) == max((length - dilation * (size - 1) - 1) // stride + 1, 0)
    for position in range(len(got)):
        for k in range(size):
            assert np.array_equal(got[position, ..., k], a[position * stride + k * dilation])
    back = values.leaf(rng.standard_normal(windows.shape))
    spread = values.of(back.unwindow(axis, stride, dilation, length))
    assert spread.shape == tuple(shape) + (size,)
    there, here = (values.of(windows) * values[back]).sum(), (spread.sum(-1) * values[x]).sum()
    np.testing.assert_allclose(there, here, atol=1e-12)


def test_unwindow_drops_what_falls_outside():
    values = Values()
    x = values.leaf(np.arange(1.0, 7.0).reshape(3, 2))
    assert values.of(x.unwindow(0, 2, 1, 4)).tolist() == [[1, 0], [0, 2], [3, 0], [0, 4]]
    assert values.of(x.unwindow(0, 1, 5, 2)).tolist() == [[1, 0], [3, 0]]


# -- gather, scatter, random ------------------------------------------------------------------------------------------
def test_gather_clamps(rng):
    values = Values()
    rows = values.leaf(rng.standard_normal((4, 3)))
    index = values.leaf(np.array([[0, 3], [-1, 4], [2, 2**31 - 1]], np.int32))
    assert same(values.of(gather(rows, index)), values[rows][np.array([[0, 3], [0, 3], [2, 3]])])
    assert values.of(gather(values.leaf(np.zeros((0, 2))), index)).tolist() == np.zeros((3, 2, 2)).tolist()


def test_scatter():
    values = Values()
    base = values.leaf(np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]))
    index = values.leaf(np.array([2, 0, 2], np.int32))
    value = values.leaf(np.array([[10.0, -10.0], [20.0, -20.0], [30.0, -30.0]]))
    assert values.of(scatter(base, index, value, "set")).tolist() == [[20, -20], [2, 2], [30, -30]], "last one wins"
    assert values.of(scatter(base, index, value, "add")).tolist() == [[21, -19], [2, 2], [43, -37]]
    assert values.of(scatter(base, index, value, "max")).tolist() == [[20, 1], [2, 2], [30, 3]]
    assert values.of(scatter(base, index, const(5.0, dtypes.float64), "add")).tolist() == [[6, 6], [2, 2], [13, 13]]
    assert values[base].tolist() == [[1, 1], [2, 2], [3, 3]], "the given arrays are not written"


def test_narrow_scatter_add_is_carried_in_float32():
    values = Values()
    base, index = values.leaf(np.zeros(1), dtypes.bfloat16), values.leaf(np.zeros(1000, np.int64))
    assert values.of(scatter(base, index, values.leaf(np.ones(1000), dtypes.bfloat16), "add")).tolist() == [1000.0]


@pytest.mark.parametrize("counter, key, expected", [
    ((0, 0), 0, (0xFF1DAE59, 0x6CD10DF2)),
    ((0xFFFFFFFF, 0xFFFFFFFF), 0xFFFFFFFF, (0x2C3F628B, 0xAB4FD7AD)),
    ((0x243F6A88, 0x85A308D3), 0x13198A2E, (0xDD7CE038, 0xF62A4C12))])
def test_philox_gives_the_known_answers_of_its_authors(counter, key, expected):
    assert tuple(int(word) for word in philox(*counter, key)) == expected


def test_random_counts_elements_in_row_major_order():
    seed, stream = const(7, dtypes.uint32), UOp(o.SCALAR, dtypes.uint32, (), Cell(3))
    bits = interpret([UOp(o.RANDOM, dtypes.uint64, (seed, stream), RandomBits((2, 3)))], {})[0]
    assert bits.shape == (2, 3) and bits.dtype == np.uint64
    for i, word in enumerate(bits.ravel()):
        low, high = philox(i, 3, 7)
        assert int(word) == int(low) | int(high) << 32
    stream.arg.value = 4
    again = interpret([UOp(o.RANDOM, dtypes.uint64, (seed, stream), RandomBits((2, 3)))], {})[0]
    assert not (again == bits).any()


# -- the walk ---------------------------------------------------------------------------------------------------------
def test_a_long_chain_is_no_deeper_than_a_short_one():
    x = node = buffer((2,))
    for i in range(100_000):
        node = node + float(i % 3)
    assert interpret([node], {x: np.zeros(2, np.float32)})[0].tolist() == [99999.0] * 2


def test_any_node_may_be_given():
    x = buffer((2,))
    middle = x * 2.0
    assert interpret([middle + 1.0, middle], {middle: np.array([5.0, 6.0], np.float32)})[0].tolist() == [6, 7]


def test_a_scalar_is_read_when_it_runs_unless_given():
    cell = UOp(o.SCALAR, dtypes.float32, (), Cell(0.5))
    assert interpret([cell * 2.0], {})[0] == 1.0
    cell.arg.value = 4
    assert interpret([cell * 2.0], {})[0] == 8.0
    assert interpret([cell * 2.0], {cell: np.float32(1)})[0] == 2.0


def test_faults_are_bugs():
    x = buffer((2,))
    with pytest.raises(Bug, match="needs a value for"):
        interpret([x], {})
    with pytest.raises(Bug, match=r"has the value of an array of float64\[2\]"):
        interpret([x], {x: np.zeros(2)})
    with pytest.raises(Bug, match="means nothing outside a kernel"):
        interpret([UOp(o.LOAD, dtypes.float32, (x, const(0)))], {x: np.zeros(2, np.float32)})


def test_loading_the_graph_loads_no_numpy():
    names = ", ".join(f"glassgrad.compiler.{name}" for name in (
        "check.graph_interpreter", "graph.gradient", "graph.view", "graph.rules.algebra"))
    path = ":".join(p for p in sys.path if p)
    code = f"import sys, {names}; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": path}).returncode == 0


@pytest.mark.parametrize("large", [1, 7, 100, 5000])
def test_reductions_of_large_sources_are_made_in_pieces(large, rng, monkeypatch):
    """Ragged pieces, sources of shape (), a source that somebody else needs too, and no axis to cut along."""
    values = Values()
    x, y = (values.leaf(rng.standard_normal(shape).astype(np.float32)) for shape in ((1, 13, 37), (11, 1, 37)))
    wide, other = x.expand((11, 13, 37)), y.expand((11, 13, 37))
    shared = wide * other
    roots = [((wide * 2.0) + (other * const(3.0))).sum([2]), shared.reduce(o.AMAX, [0]), shared,
             (wide - other).sum([0, 1, 2])]
    whole = interpret(roots, values)
    pieces = []
    evaluate = interpreter.evaluate
    monkeypatch.setattr(interpreter, "_LARGE", large)
    monkeypatch.setattr(interpreter, "evaluate", lambda np, node, sources: pieces.append(node.op) or evaluate(
        np, node, sources))
    for piecewise, once in zip(interpret(roots, values), whole):
        np.testing.assert_allclose(piecewise, once, rtol=1e-5, atol=1e-5)
    assert pieces.count(o.SUM) == 1 + -(-13 // max(1, 13 * large // (11 * 13 * 37)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("axes", [(3,), (0, 3), (1, 2), (0, 1, 2)])
def test_large_sums_of_products_are_matrix_products(axes, dtype, rng, monkeypatch):
    """Every axis in turn seen by the left factor, the right, both or none; a third factor, functions of factors."""
    full = (3, 2, 5, 7)
    choices = [(a, b) for a in (True, False) for b in (True, False)]
    for _ in range(24):
        picked = [choices[i] for i in rng.integers(0, 4, 4)]
        values = Values()
        x, y = (values.leaf(rng.standard_normal([n if p[side] else 1 for n, p in zip(full, picked)]).astype(dtype))
                for side in (0, 1))
        z = values.leaf(rng.standard_normal([n if p[0] else 1 for n, p in zip(full, picked[:2] + [(0, 0)] * 2)]
                                            ).astype(dtype))
        node = (x.expand(full) * (y.expand(full).maximum(const(0.0, y.dtype))) * z.expand(full)).sum(axes)
        expected = (values[x].astype(np.float64) * np.maximum(values[y], 0) * values[z] * np.ones(full)).sum(
            axes, keepdims=True)
        monkeypatch.setattr(interpreter, "_LARGE", 16)
        np.testing.assert_allclose(values.of(node), expected, rtol=1e-5, atol=1e-6 if dtype is np.float32 else 1e-14)


def test_large_sums_of_products_that_overflow_go_term_by_term(monkeypatch):
    values = Values()
    x = values.leaf(np.array([[[1e30, -1e30, 1.0]]], np.float32))
    y = values.leaf(np.array([[[1e30, 1e30, 2.0]], [[1.0, 1.0, 3.0]], [[np.nan, 0.0, 0.0]]], np.float32))
    node = (x.expand((3, 2, 3)) * y.expand((3, 2, 3))).sum([2])
    monkeypatch.setattr(interpreter, "_LARGE", 4)
    assert same(values.of(node)[:, :, 0], np.array([[np.nan] * 2, [3.0] * 2, [np.nan] * 2], np.float32))


def test_what_repeats_itself_is_made_once(rng):
    """Padding, windows and functions of an array that repeats itself a billion times take the memory of one."""
    values = Values()
    x = values.leaf(rng.standard_normal((1, 4, 1)).astype(np.float32))
    y = x.expand((1 << 15, 4, 1 << 15)).maximum(const(0.5)).pad(((0, 0), (1, 2), (0, 0)))
    y = y.window(1, 2).unwindow(1, 1, 1, 7)
    once = x.maximum(const(0.5)).pad(((0, 0), (1, 2), (0, 0))).window(1, 2).unwindow(1, 1, 1, 7)
    got = values.of(y)
    assert got.shape == (1 << 15, 7, 1 << 15, 2) and same(got[:1, :, :1], values.of(once))
