"""Which results share a kernel on a GPU: small maps side by side, sums of the same columns, reductions of one row."""

from __future__ import annotations

import numpy as np
import pytest

from glassgrad import Context, Tensor, TinyJit, nn
from glassgrad.compiler.optimize.targets.target import GPU
from glassgrad.compiler.pipeline import make_schedule
from glassgrad.compiler.schedule.inlined_values import CPU_LIMITS, FusionLimits
from glassgrad.engine.schedule_key import normalize, with_params


def ready(*shape: int, seed: int = 0) -> Tensor:
    return Tensor(np.random.default_rng(seed).uniform(-1, 1, shape).astype("float32")).realize()


def results(*tensors: Tensor, limits: FusionLimits = GPU.fusion) -> list[int]:
    """How many results each kernel has."""
    planned = make_schedule(*with_params(normalize([t.uop for t in tensors]), ()), "CPU", limits=limits)
    return [item.results for item in planned.items]


def test_small_maps_of_one_shape_share_a_kernel_up_to_its_limit_of_values() -> None:
    maps = [ready(768, seed=n) * 2 for n in range(40)]
    assert results(*maps) == [32, 8], "two values each, 64 at most"
    assert results(*maps, limits=GPU.fusion._replace(side_by_side=31)) == [15, 15, 10]
    assert results(*maps, limits=CPU_LIMITS) == [1] * 40


def test_other_shapes_and_large_maps_have_kernels_of_their_own() -> None:
    assert results(ready(768) * 2, ready(767) * 2, ready(1, 768) * 3) == [2, 1]
    assert results(ready(1 << 15) * 2, ready(1 << 15, seed=1) * 2) == [1, 1]


def test_maps_that_wait_for_each_other_do_not_share_a_kernel() -> None:
    x, w = ready(64), ready(64, 64)
    first = x * 2
    second = (w @ first) + 1                      # waits for the first, by way of a sum
    third = ready(64, seed=3) * 5
    assert results(first, (w @ second) * 3, third) == [2, 1, 1]


def test_long_maps_that_share_a_number_are_equal_kernels_and_compiled_once() -> None:
    with Context(SEED=0):
        items = Tensor.randn(300, 128).schedule(Tensor.randn(300, 128), Tensor.randn(300, 128))
    assert [item.results for item in items] == [1, 1, 1]
    assert len({item.ast for item in items}) == 1


def test_sums_of_the_same_columns_share_a_kernel() -> None:
    g, x = ready(600, 300), ready(600, 300, seed=1)
    assert results(g.sum(0), (g * x).sum(0)) == [2]
    assert results(g.sum(0), x.sum(0)) == [1, 1], "they read nothing that both need"
    assert results(g.sum(0), (g * x).sum(0), limits=CPU_LIMITS) == [1, 1]
    mean = g.mean(0, keepdim=True)
    assert results(mean, (g - mean).square().sum(0)) == [1, 1], "one needs the other's result"


def test_long_columns_are_reduced_before_what_reads_their_sums() -> None:
    """A thread would reduce each column alone, twice, and 300 threads leave a GPU idle."""
    x = ready(600, 300)
    assert results(x.var(0)) == [1, 1] and results(x.softmax(0)) == [1, 1, 1]
    assert results(x.max(0).sum().gradient(x)[0]) == [1, 1, 1]
    assert results(x.var(0), limits=CPU_LIMITS) == [1]
    assert results(ready(100, 300).var(0)) == [1], "short columns: a launch takes longer"
    many = Tensor.zeros(257, 70_000).contiguous().realize()
    assert results(many.var(0)) == [1], "enough columns for all threads"


def test_a_cpu_reduces_the_columns_of_a_large_matrix_before_what_reads_their_sums() -> None:
    """Each pass then goes along the rows of the matrix; down its columns, every element is on another page."""
    large, wide = ready(900, 300), ready(4, 300, 900)
    assert results(large.var(0), limits=CPU_LIMITS) == [1, 1]
    assert results(large.softmax(0), limits=CPU_LIMITS) == [1, 1, 1, 1], "the exponentials are stored once"
    assert results(wide.var(1), limits=CPU_LIMITS) == [1, 1]
    assert results(large.T.contiguous().realize().var(1), limits=CPU_LIMITS) == [1], "rows are read once"
    assert results(ready(40, 300, 90).var(1), limits=CPU_LIMITS) == [1], "each matrix is small"
    assert results(ready(50, 9000).var(0), limits=CPU_LIMITS) == [1], "columns are short"


def test_reductions_of_one_row_share_a_kernel_whatever_shape_it_has_in_memory() -> None:
    scores = ready(8, 64, 500)
    rows = scores.reshape(512, 500)
    most = rows.max(1, keepdim=True)
    assert results(most, (rows - most).exp().sum(1)) == [2]


@pytest.mark.parametrize("device", ["CUDA_SHIM"])
def test_what_shares_a_kernel_is_right(device: str, shims: None) -> None:
    def losses(on: str) -> list[float]:
        rng = np.random.default_rng(0)
        values = [rng.standard_normal(shape).astype("float32") / 4 for shape in
                  ((24, 24), (24,), (24, 24), (24,), (24,), (24,), (24, 7), (7,))]
        tensors = [Tensor(v, device=on) for v in values]
        optimizer = nn.optim.Adam(tensors, lr=0.01)
        w, b, v, c, scale, shift, last, end = tensors

        @TinyJit
        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            inside = ((x @ w + b).relu() @ v + c).layernorm() * scale + shift
            loss = (inside @ last + end).sparse_categorical_crossentropy(y)
            loss.backward()
            return loss.realize(*optimizer.schedule_step())
        x, y = rng.standard_normal((300, 24)).astype("float32"), rng.integers(0, 7, 300).astype("int32")
        with Context(TRAINING=1, DEV=on):
            return [step(Tensor(x, device=on), Tensor(y, device=on)).item() for _ in range(4)]
    np.testing.assert_allclose(losses(device), losses("CPU"), rtol=1e-4)
