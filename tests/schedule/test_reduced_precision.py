"""What mixed precision stores: values in the 16 bits they were rounded to, products for a matrix unit. And what a GPU
computes again rather than store."""

from __future__ import annotations

import numpy as np
import pytest

from glassgrad import Tensor, dtypes
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.optimize.targets.target import GPU
from glassgrad.compiler.pipeline import make_schedule
from glassgrad.compiler.schedule.inlined_values import CPU_LIMITS, FusionLimits
from glassgrad.compiler.schedule.kernels import Schedule
from glassgrad.engine.schedule_key import normalize, with_params
from glassgrad.nn.optim import autocast


def ready(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32)).realize()


def scheduled(*tensors: Tensor, limits: FusionLimits = CPU_LIMITS) -> Schedule:
    """The kernels of results for a device with these limits."""
    normal = normalize([t.uop for t in tensors])
    return make_schedule(*with_params(normal, ()), "CPU", limits=limits)


def between(planned: Schedule) -> list[tuple[tuple[int, ...], str]]:
    """Shapes and types of what kernels leave each other."""
    made = [slot for item in planned.items for slot in item.slots[:item.results] if slot not in planned.sinks]
    return [(tuple(n for n in planned.slots[slot].shape if n != 1), planned.slots[slot].dtype.name)
            for slot in dict.fromkeys(made)]


def two_layers(batch: int = 64) -> tuple[Tensor, list[Tensor]]:
    x, w, v = ready(batch, 96), ready(96, 80), ready(80, 72)
    with autocast(dtype=dtypes.bfloat16):
        loss = ((x @ w).relu() @ v).square().sum()
    return loss, list(loss.gradient(w, v))


def test_what_was_rounded_to_16_bits_is_stored_in_16_bits() -> None:
    loss, gradients = two_layers()
    large = [dtype for shape, dtype in between(scheduled(loss, *gradients, limits=GPU.fusion)) if len(shape) == 2]
    assert large and set(large) == {"bfloat16"}


def test_gradients_of_products_are_sums_of_products_that_are_rounded_once() -> None:
    _, gradients = two_layers()
    for gradient in gradients:
        sums = [n for n in gradient.uop.toposort() if n.op is o.SUM]
        assert sums and all(n.dtype is dtypes.float32 and n.src[0].op is o.MUL for n in sums if len(n.src[0].shape) > 2)


def test_pieces_of_a_product_are_views_of_it() -> None:
    x, w = ready(32, 64), ready(64, 96)
    q, k, v = (x @ w).chunk(3, -1)
    planned = scheduled((q @ k.T) @ v)
    assert between(planned)[0] == ((32, 96), "float32"), "the product is stored whole, its pieces are not"
    assert planned.items[0].results == 1


@pytest.mark.parametrize("limits, stored", [(CPU_LIMITS, [(8, 4096), (8,)]), (GPU.fusion, [(8,), (8,)])])
def test_a_gpu_stores_a_softmaxs_few_values_and_computes_the_rest_again(limits: FusionLimits,
                                                                       stored: list[tuple[int, ...]]) -> None:
    x = ready(8, 4096)
    loss = x.log_softmax(-1).square().sum()
    found = [shape for shape, _ in between(scheduled(loss, loss.gradient(x)[0], limits=limits))]
    assert (8, 4096) in found if (8, 4096) in stored else (8, 4096) not in found[:2]
    assert found.count((8,)) >= stored.count((8,))


def reductions(ast: UOp) -> int:
    return sum(n.op in o.REDUCE for n in ast.toposort())


def test_few_long_rows_have_a_kernel_for_each_reduction() -> None:
    x = ready(4, 1 << 15)
    both = x.sum(1) + x.max(1)
    assert [reductions(item.ast) for item in scheduled(both).items] == [2]
    assert [reductions(item.ast) for item in scheduled(both, limits=GPU.fusion).items] == [1, 1]


def test_a_gpu_stores_a_gradient_that_reads_much() -> None:
    """The gradient of x + f(norm(x)) is needed by several kernels and reads three arrays, so it is stored. Where only
    the sums of its rows are, it becomes a sum of all layers above, which every layer below reads again."""
    scale, x, *weights = ready(512), *[ready(512, 512) for _ in range(7)]
    y = x
    for w in weights:
        y = y + ((y.layernorm() * scale).cast("bfloat16") @ w.cast("bfloat16")).float()
    items = scheduled(*y.square().sum().gradient(x, *weights), limits=GPU.fusion).items
    assert max(len(item.slots) for item in items) <= 9
