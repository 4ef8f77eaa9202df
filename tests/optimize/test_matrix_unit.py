"""Products on a matrix unit: the loop tree's meaning everywhere, the machine's where it has one; against float64.

The promise: factors of bfloat16 are multiplied exactly and summed in float32, so a sum of n products is off by no more
than n roundings of what it is made of: |got - exact| <= n * 2**-24 * sum |a * b|. Integers are exact.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings as hypothesis_settings, strategies as st
from loop_kernels import AMX, AVX512, SIZES, Inputs, check
from scripts import run_script

from glassgrad import Context, Tensor, Variable, dtypes
from glassgrad.base.errors import Bug
from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.graph.dtype import DType
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import UNIT, Accumulate, For, Kernel, walk
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.lower.printing import show
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.recipes import decide, optimize
from glassgrad.compiler.optimize.targets.matrix_units import AMX as UNITS, units_of
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.pipeline import make_source
from glassgrad.nn.optim import autocast
from glassgrad.runtime.cpu.processor import host_description
from glassgrad.runtime.kernel_key import cache_key

HOST = Target.of(host_description())
has_unit = pytest.mark.skipif(not HOST.units, reason="no matrix unit here (AMX), or the system does not lend it")
both = pytest.mark.parametrize("transposed", ["nn", "nt", "tn", "tt"])


def numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Normal numbers that bfloat16 holds exactly, as float32."""
    return (rng.standard_normal(shape).astype("float32").view("uint32") & 0xFFFF0000).view("float32")


def ast_of(tensor: Tensor) -> UOp:
    return tensor.schedule()[-1].ast


def is_on_unit(kernel: Kernel) -> bool:
    return any(isinstance(s, For) and s.kind == UNIT for p in kernel.phases for s in walk(p.body))


def product(rng: np.random.Generator, m: int, k: int, n: int, transposed: str = "nn", batch: tuple[int, ...] = ()) \
        -> tuple[Tensor, np.ndarray, np.ndarray, list[np.ndarray]]:
    """A product of bfloat16 matrices in float32; its exact value, its bound, and the factors as they lie in memory."""
    a, b = (numbers(rng, *batch, *shape) for shape in ((m, k), (k, n)))
    exact = a.astype("float64") @ b.astype("float64")
    bound = k * 2.0 ** -24 * (abs(a).astype("float64") @ abs(b).astype("float64"))
    lie = [np.ascontiguousarray(x.swapaxes(-1, -2)) if t == "t" else x for x, t in zip((a, b), transposed)]
    factors = [Tensor(x).bfloat16().contiguous().realize() for x in lie]
    left, right = (x.transpose(-1, -2) if t == "t" else x for x, t in zip(factors, transposed))
    return left.matmul(right, dtype=dtypes.float32), exact, bound, lie


def bits(x: np.ndarray) -> np.ndarray:
    return (np.ascontiguousarray(x).view("uint32") >> 16).astype("uint16").ravel()


# -- what a tree means: on every machine ---------------------------------------------------------------------
SHAPES = [(64, 64, 64), (67, 71, 73), (70, 64, 50), (33, 700, 50), (16, 40, 200), (200, 17, 16), (64, 704, 70),
          (31, 96, 32), (5, 256, 300)]


@both
@pytest.mark.parametrize("m, k, n", SHAPES)
def test_the_tree_means_the_product(m: int, k: int, n: int, transposed: str, rng: np.random.Generator) -> None:
    made, exact, bound, lie = product(rng, m, k, n, transposed)
    kernel = optimize(lower(ast_of(made)), AMX)
    assert is_on_unit(kernel) and kernel.moves[0].startswith("unit("), kernel.moves
    assert "unit=tdpbf16ps" in kernel.moves[0]
    got = np.full(m * n, np.nan, "float32")
    run_kernel(kernel, [got, *[bits(x) for x in lie]])
    assert (abs(got.reshape(m, n) - exact) <= bound).all()


TINY = replace(AVX512, units=(replace(UNITS[0], name="tiny", rows=4, columns=8, words=2, registers=5),))


@both
@pytest.mark.parametrize("m, k, n", [(27, 29, 31), (16, 84, 16), (37, 101, 12)])
def test_a_unit_of_another_shape_is_another_row(m: int, k: int, n: int, transposed: str,
                                                rng: np.random.Generator) -> None:
    made, exact, bound, lie = product(rng, m, k, n, transposed)
    kernel = optimize(lower(ast_of(made)), TINY)
    got = np.full(m * n, np.nan, "float32")
    run_kernel(kernel, [got, *[bits(x) for x in lie]])
    assert is_on_unit(kernel)
    assert (abs(got.reshape(m, n) - exact) <= bound).all()


@hypothesis_settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(m=st.sampled_from(SIZES), n=st.sampled_from(SIZES), k=st.sampled_from(SIZES), views=st.integers(0, 63),
       seed=st.integers(0, 99), kind=st.sampled_from(["bfloat16", "int8", "uint8"]))
def test_every_size_and_view(m: int, n: int, k: int, views: int, seed: int, kind: str) -> None:
    """Transposed, flipped and sliced operands, prologues and epilogues, on and off the unit."""
    rng, values, dtype = np.random.default_rng(seed), Inputs(), getattr(dtypes, kind)
    wide = dtypes.float32 if dtype.is_float else dtypes.int32

    def operand(rows: int, columns: int, how: int) -> UOp:
        shape = (columns, rows) if how & 1 else (rows, columns)
        whole = (shape[0] + 2, shape[1] + 2)
        x = values.leaf(numbers(rng, *whole) if dtype.is_float else rng.integers(0, 100, whole).astype(kind), dtype)
        x = x.shrink([(1, shape[0] + 1), (1, shape[1] + 1)])
        x = x.permute((1, 0)) if how & 1 else x
        x = x.flip([1]) if how & 2 else x
        return (x.cast(wide) * 2 + 1).cast(dtype).cast(wide) if how & 4 else x.cast(wide)

    x, y = operand(m, k, views & 7), operand(k, n, views >> 3)
    left = x.reshape((m, 1, k)).expand((m, n, k))
    right = y.permute((1, 0)).reshape((1, n, k)).expand((m, n, k))
    total = (left * right).sum([2]).reshape((m, n))
    bias = values.leaf(rng.integers(-9, 9, (1, n)).astype("float32" if dtype.is_float else "int32")).expand((m, n))
    check([(total + bias).maximum(0)], values, lambda ast: optimize(lower(ast), AMX), f"views {views}, seed {seed}")


@pytest.mark.parametrize("left, right", [(dtypes.int8, dtypes.int8), (dtypes.int8, dtypes.uint8),
                                         (dtypes.uint8, dtypes.int8), (dtypes.uint8, dtypes.uint8)])
def test_integers_are_exact(left: DType, right: DType, rng: np.random.Generator) -> None:
    a, b = (rng.integers(int(dtype.min), int(dtype.max) + 1, shape).astype(dtype.name)
            for dtype, shape in ((left, (67, 131)), (right, (131, 51))))
    made = Tensor(a).contiguous().realize().cast("int32") @ Tensor(b).contiguous().realize().cast("int32")
    kernel = optimize(lower(ast_of(made)), AMX)
    assert is_on_unit(kernel)
    got = np.zeros(67 * 51, "int32")
    run_kernel(kernel, [got, a.ravel(), b.ravel()])
    np.testing.assert_array_equal(got.reshape(67, 51), a.astype("int32") @ b.astype("int32"))
    np.testing.assert_array_equal(made.numpy(), a.astype("int32") @ b.astype("int32"))


@pytest.mark.parametrize("channels, outputs, image, size", [(16, 24, (15, 15), 3), (3, 33, (20, 17), 5),
                                                            (72, 20, (8, 9), 3)])
def test_windows_of_an_image(channels: int, outputs: int, image: tuple[int, int], size: int,
                             rng: np.random.Generator) -> None:
    """N walks over the image as it lies: each tap is packed from neighbours, what lies between rows is dropped."""
    x, w = numbers(rng, 2, channels, *image), numbers(rng, outputs, channels, size, size)
    made = Tensor(x).bfloat16().contiguous().realize().conv2d(Tensor(w).bfloat16().contiguous().realize(),
                                                              dtype=dtypes.float32)
    kernel = optimize(lower(ast_of(made)), AMX)
    assert is_on_unit(kernel) and f"pitch={image[1]}" in kernel.moves[0], kernel.moves
    seen = np.lib.stride_tricks.sliding_window_view(x.astype("float64"), (size, size), (2, 3))
    exact = np.einsum("bchwij,ocij->bohw", seen, w.astype("float64"))
    bound = channels * size * size * 2.0 ** -24 * np.einsum("bchwij,ocij->bohw", abs(seen), abs(w.astype("float64")))
    got = np.full(exact.size, np.nan, "float32")
    run_kernel(kernel, [got, bits(x), bits(w)])
    assert (abs(got.reshape(exact.shape) - exact) <= bound).all()
    assert (abs(made.numpy() - exact) <= bound).all()


@pytest.mark.parametrize("m, k, n", [(1, 64, 64), (64, 64, 1), (1, 1, 1), (3, 5, 7), (0, 64, 64), (64, 0, 64)])
def test_what_is_too_small_stays_with_vectors(m: int, k: int, n: int, rng: np.random.Generator) -> None:
    made, exact, bound, _ = product(rng, m, k, n)
    for item in made.schedule():
        assert not is_on_unit(optimize(lower(item.ast), AMX))
    assert made.shape == (m, n) and (abs(made.numpy() - exact) <= bound).all()


def test_other_types_and_other_machines_do_not_use_it() -> None:
    for dtype, target in ((dtypes.float32, AMX), (dtypes.float16, AMX), (dtypes.bfloat16, AVX512)):
        x = Tensor.zeros(64, 64, dtype=dtype).contiguous().realize()
        assert not is_on_unit(optimize(lower(ast_of(x @ x)), target))
    assert units_of(AVX512.features) == () and len(units_of({"amx-tile", "amx-int8"})) == 4


def test_every_neighbour_gives_the_same_bits(rng: np.random.Generator) -> None:
    made, _, _, lie = product(rng, 22, 101, 30)
    plain = lower(ast_of(made))

    def result(moves: list[str] | None) -> bytes:
        got = np.zeros(22 * 30, "float32")
        run_kernel(optimize(plain, TINY, given=moves), [got, *[bits(x) for x in lie]])
        return got.tobytes()
    decisions = Decisions()
    decide(plain, TINY, decisions)
    assert "k_block=16" in decisions.moves[0]
    own, others = result(None), decisions.neighbours()
    assert len(others) >= 8 and result(decisions.moves) == own
    for other in others:
        assert result(other) == own, other


# -- what is rendered ----------------------------------------------------------------------------------------
def test_the_llvm_of_a_product_names_the_instructions() -> None:
    x = Tensor.zeros(64, 640, dtype=dtypes.int8).contiguous().realize().cast("int32")
    text = make_source(optimize(lower(ast_of(x @ x.T)), AMX), AMX, "llvm")
    for name in ("tilezero", "tileloadd64", "tdpbssd", "tilestored64"):
        assert f"@llvm.x86.{name}.internal(" in text
    assert "phi x86_amx" in text


def test_a_tree_that_no_unit_can_run_is_our_fault(rng: np.random.Generator) -> None:
    kernel = optimize(lower(ast_of(product(rng, 64, 64, 64)[0])), AMX)
    with pytest.raises(Bug, match="no matrix unit multiplies bfloat16 by bfloat16 into float32"):
        make_source(kernel, AVX512, "llvm")
    step = next(s for p in kernel.phases for s in walk(p.body) if isinstance(s, Accumulate))
    step.value = step.value + step.value
    with pytest.raises(Bug, match="a matrix unit adds products of two factors, each widened by a cast"):
        make_source(kernel, AMX, "llvm")


def test_the_tree_reads_as_it_runs(rng: np.random.Generator) -> None:
    text = show(optimize(lower(ast_of(product(rng, 64, 64, 64)[0])), AMX))
    assert re.search(r"unit w in 16\n +unit b in 2\n +acc1\[um,un,r,c\] \+= \(float32\(a1\[.*\]\) \* "
                     r"float32\(bitcast\(uint16\(\(right\[.*\] >> uint32\(\(b \* 16\)\)\)\)\)\)\)", text), text


# -- what the machine computes -------------------------------------------------------------------------------
def uses_unit(tensor: Tensor) -> bool:
    return any(is_on_unit(optimize(lower(item.ast), HOST)) for item in tensor.schedule())


@has_unit
@both
@pytest.mark.parametrize("m, k, n", [*SHAPES, (257, 2100, 129)])
def test_the_machine_computes_the_product(m: int, k: int, n: int, transposed: str, rng: np.random.Generator) -> None:
    made, exact, bound, _ = product(rng, m, k, n, transposed)
    assert uses_unit(made)
    assert (abs(made.numpy() - exact) <= bound).all()


@has_unit
@pytest.mark.parametrize("transposed", ["nn", "tt"])
def test_batches(transposed: str, rng: np.random.Generator) -> None:
    made, exact, bound, _ = product(rng, 40, 33, 50, transposed, (3, 2))
    assert uses_unit(made) and (abs(made.numpy() - exact) <= bound).all()


CASES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "bias and relu": lambda a, b, c: (a @ b + c).relu(),
    "rounded": lambda a, b, c: (a @ b).bfloat16().float() * 2,
    "sliced and flipped": lambda a, b, c: a[3:, 5:].flip(0) @ b[5:, ::2],
    "one stack for all": lambda a, b, c: a.reshape(2, 36, 96) @ b.reshape(1, 96, 80).expand(2, 96, 80),
    "permuted batch": lambda a, b, c: a.reshape(9, 8, 96).permute(1, 0, 2) @ b,
    "two results": lambda a, b, c: (a @ b) + (a @ b).sum(0),
}


@has_unit
@pytest.mark.parametrize("name", CASES)
def test_prologues_epilogues_and_views(name: str, rng: np.random.Generator) -> None:
    a, b, c = numbers(rng, 72, 96), numbers(rng, 96, 80), numbers(rng, 80)
    factors = [Tensor(x).realize() for x in (a, b, c)]
    with autocast(dtype=dtypes.bfloat16):          # casts the factors on their way into the product
        got = CASES[name](*factors).float()
        assert uses_unit(got)
    with Context(MATRIX_UNIT=0), autocast(dtype=dtypes.bfloat16):
        again = CASES[name](*factors).float()
        wanted = again.numpy()
    # both round the same sums to bfloat16: at most one step apart, which a second sum of 72 may add up
    np.testing.assert_allclose(got.numpy(), wanted, rtol=2 ** -7, atol=2 ** -7 * abs(wanted).max())


@has_unit
def test_convolution_and_its_gradients(rng: np.random.Generator) -> None:
    x, w = Tensor(numbers(rng, 2, 16, 15, 15)).realize(), Tensor(numbers(rng, 24, 16, 3, 3)).realize()

    def run() -> list[np.ndarray]:
        a, b = x.detach().requires_grad_(), w.detach().requires_grad_()
        with autocast(dtype=dtypes.bfloat16):
            out = a.conv2d(b, padding=1)
        out.float().square().sum().backward()
        return [t.float().numpy() for t in (out, a.grad, b.grad)]
    got = run()
    with Context(MATRIX_UNIT=0):
        wanted = run()
    for g, v in zip(got, wanted):
        np.testing.assert_allclose(g, v, rtol=2 ** -6, atol=2 ** -6 * abs(v).max())


@has_unit
def test_infinities_and_nan_stay_in_their_rows_and_columns(rng: np.random.Generator) -> None:
    a, b = numbers(rng, 50, 70), numbers(rng, 70, 60)
    a[3, 5], a[7, 2], b[1, 9] = np.nan, np.inf, -np.inf
    made = Tensor(a).bfloat16().realize().matmul(Tensor(b).bfloat16().realize(), dtype=dtypes.float32)
    assert uses_unit(made)
    with np.errstate(invalid="ignore"):
        exact = a.astype("float64") @ b.astype("float64")
    got = made.numpy()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(exact))
    np.testing.assert_array_equal(got[np.isinf(exact)], exact[np.isinf(exact)].astype("float32"))
    assert np.isfinite(got[np.isfinite(exact)]).all()


@pytest.mark.only_on("CPU", reason="only its kernels use the matrix unit")
@has_unit
def test_numbers_below_the_smallest_normal_one_count_as_zero() -> None:
    """As the unit has it, and PyTorch with it; vectors keep them."""
    tiny = np.float32(2.0 ** -130)
    a, b = np.full((64, 64), tiny, "float32"), np.full((64, 64), 2.0 ** 100, "float32")

    def result() -> float:
        made = Tensor(a).bfloat16().realize().matmul(Tensor(b).bfloat16().realize(), dtype=dtypes.float32)
        return float(made.numpy()[0, 0])
    assert result() == 0.0
    with Context(MATRIX_UNIT=0):
        assert result() == 64 * 2.0 ** -30


@has_unit
def test_the_answer_does_not_depend_on_threads_and_every_worker_may_use_it(rng: np.random.Generator) -> None:
    made, exact, bound, lie = product(rng, 320, 700, 330)
    got = []
    for threads in (1, 2, 5):
        with Context(THREADS=threads):
            a, b = (Tensor(x).bfloat16().contiguous().realize() for x in lie)
            got.append(a.matmul(b, dtype=dtypes.float32).numpy())
    assert (abs(got[0] - exact) <= bound).all()
    assert got[0].tobytes() == got[1].tobytes() == got[2].tobytes()


@has_unit
def test_check_checks_it(rng: np.random.Generator) -> None:
    with Context(CHECK=1):
        made, exact, bound, _ = product(rng, 67, 650, 73, "tn")
        assert (abs(made.numpy() - exact) <= bound).all()


@has_unit
def test_a_forked_child_may_use_it() -> None:
    said, _ = run_script("""
        import os
        from glassgrad import Tensor
        x = Tensor.ones(256, 256).bfloat16().contiguous().realize()
        assert (x @ x).numpy()[0, 0] == 256
        child = os.fork()
        if not child:
            os._exit(0 if (x @ x).float().numpy()[0, 0] == 256 else 3)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert said.strip() == "0"


# -- the switch ----------------------------------------------------------------------------------------------
def test_the_setting_takes_the_unit_away() -> None:
    with Context(MATRIX_UNIT=0):
        off = host_description()
        assert Target.of(off).units == () and "amx-bf16" not in off.features
        x = Tensor.zeros(64, 64).bfloat16().contiguous().realize()
        ast = ast_of(x @ x)
        key = cache_key(ast, off.key, "c")
    on = host_description()
    assert (cache_key(ast, on.key, "c") != key) == bool(HOST.units), "compiled kernels of both are kept apart"


@pytest.mark.only_on("CPU", reason="only its kernels use the matrix unit")
@has_unit
def test_the_setting_counts_for_kernels_that_are_already_known() -> None:
    x = Tensor(np.full((64, 64), 2.0 ** -130, "float32")).bfloat16().contiguous().realize()
    y = Tensor(np.full((64, 64), 2.0 ** 100, "float32")).bfloat16().contiguous().realize()
    seen = []
    for unit in (1, 0, 1):
        with Context(MATRIX_UNIT=unit):
            seen.append(float((x @ y).float().numpy()[0, 0]))
    assert seen[0] == seen[2] == 0.0 and seen[1] > 0.0


def test_units_are_data() -> None:
    for unit in UNITS:
        assert unit.rows * unit.words * 4 == unit.words * unit.columns * 4 == 1024, "a tile register holds 1 KiB"
        assert unit.rows * unit.columns * unit.total.itemsize == 1024
        assert unit.depth * unit.left.itemsize == 64


@pytest.mark.parametrize("length", [1, 37, 64])
def test_an_axis_whose_length_is_known_when_it_runs(length: int, rng: np.random.Generator) -> None:
    a, b = numbers(rng, 64, 48, 40), numbers(rng, 64, 40, 56)
    some = Variable("batch", 1, 64).bind(length)
    left, right = (Tensor(x).bfloat16().contiguous().realize()[:some] for x in (a, b))
    made = left.matmul(right, dtype=dtypes.float32)
    with Context(CHECK=1):
        got = made.sum(0).numpy()
    exact = (a[:length].astype("float64") @ b[:length].astype("float64")).sum(0)
    np.testing.assert_allclose(got, exact, atol=1e-3)
