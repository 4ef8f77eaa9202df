"""Work grows with the length of the graph, not faster; no length is a limit. Counted in Python steps, not seconds."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest

from glassgrad import Tensor, TinyJit
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.rules.algebra import ALGEBRA
from glassgrad.compiler.graph.rules.rewrite import rewrite
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.targets.target import GPU
from glassgrad.compiler.pipeline import make_schedule
from glassgrad.compiler.schedule.inlined_values import CPU_LIMITS, FusionLimits
from glassgrad.engine import realize as engine
from glassgrad.engine.memory_plan import Lifetime, assign_offsets
from glassgrad.engine.schedule_key import normalize, with_params
from glassgrad.tensor.autograd.gradient_leaves import take_losses


def steps(function: Callable[[], Any]) -> int:
    """Function calls made while it runs: the same on every machine and under any load, where seconds are not."""
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


def chain(length: int, x: Tensor | None = None) -> Tensor:
    x = Tensor([0.5, 1.0]).realize() if x is None else x
    y = x
    for i in range(length // 4):
        y = ((y * 1.25 + x).relu() - 0.125 * (i % 3))
    return y


def mlp(layers: int) -> Tensor:
    x = Tensor.ones(4, 8).contiguous().realize()
    weights = [Tensor.ones(8, 8).contiguous().realize() for _ in range(layers)]
    for w in weights:
        x = (x @ w + 0.5).relu()
    return x


def loss_of_mlp(layers: int) -> list[Tensor]:
    x = Tensor.ones(4, 8).contiguous().realize()
    weights = [Tensor.ones(8, 8).contiguous().realize() for _ in range(layers)]
    y = x
    for w in weights:
        y = (y @ w * 0.01).relu()
    y.sum().backward()
    return [w.grad for w in weights]


def scheduling(tensors: Tensor | list[Tensor]) -> int:
    """Steps to schedule, rules included (what realize does before it compiles)."""
    first, *others = tensors if isinstance(tensors, list) else [tensors]
    return steps(lambda: first.schedule(*others))


LINEAR = 2.6       # twice the length may take so many times the steps; 2 would be exact, 4 is quadratic


@pytest.mark.parametrize("make, length", [(chain, 2_500), (mlp, 50), (loss_of_mlp, 25)])
def test_scheduling_grows_linearly(make: Callable[[int], Any], length: int) -> None:
    small, large = scheduling(make(length)), scheduling(make(2 * length))
    assert large <= LINEAR * small, f"{small} steps became {large}"


def test_a_chain_of_10_000_and_a_network_of_200_layers_are_scheduled() -> None:
    items = chain(10_000).schedule()
    assert 8 <= len(items) <= 30, "cut where a kernel is long enough"
    network = mlp(200).schedule()
    assert len(network) == 200 and len({i.ast for i in network}) <= 2, "equal layers, one kernel"


@pytest.mark.parametrize("length", [500])
def test_building_and_folding_grow_linearly(length: int) -> None:
    counts = []
    for n in (length, 2 * length):
        made: list[Tensor] = []
        building = steps(lambda n=n, made=made: made.append(chain(n)))  # type: ignore[misc]
        folding = steps(lambda made=made: rewrite([made[0].uop], ALGEBRA))  # type: ignore[misc]
        normal = steps(lambda made=made: normalize([made[0].uop]))  # type: ignore[misc]
        counts.append((building, folding, normal))
    for small, large in zip(*counts):
        assert large <= LINEAR * small, counts


def rows(length: int) -> Tensor:
    """Reductions, each of what the one before it left."""
    y = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()
    for _ in range(length):
        y = y - y.mean(1, keepdim=True) + 1
    return y


@pytest.mark.parametrize("limits", [CPU_LIMITS, GPU.fusion], ids=["cpu", "gpu"])
@pytest.mark.parametrize("make, length", [(chain, 400), (rows, 40)])
def test_lowering_grows_linearly(make: Callable[[int], Tensor], length: int, limits: FusionLimits) -> None:
    def lowering(n: int) -> int:
        items = make_schedule(*with_params(normalize([make(n).uop]), ()), "CPU", limits=limits).items
        return steps(lambda: [lower(item.ast) for item in items])

    assert lowering(2 * length) <= LINEAR * lowering(length)


def test_gradients_grow_linearly() -> None:
    def differentiating(length: int) -> int:
        x = Tensor([0.5, 1.0]).realize()
        y = chain(length, x).sum()
        return steps(y.backward)

    assert differentiating(800) <= LINEAR * differentiating(400)


def test_compiled_kernels_do_not_multiply_with_layers() -> None:
    """What is compiled for a deep network is what is compiled for a shallow one."""
    from glassgrad import Device
    device = Device[Tensor([1.0]).device]
    mlp(3).realize()
    before = len(device._programs)
    mlp(60).realize()
    assert len(device._programs) <= before + 1


def test_finding_a_schedule_again_is_cheap() -> None:
    """A step of known structure costs the walk over its graph, and nothing else. (Both are deeper than calls may nest.)
    """
    def run(layers: int) -> int:
        tensors = mlp(layers)
        mlp(layers).realize()
        return steps(tensors.realize)

    small, large = run(80), run(160)
    assert large <= LINEAR * small


def test_placing_many_values_stays_cheap() -> None:
    def placing(n: int) -> int:
        lives = [Lifetime(i, i + 2, 64 * (1 + i % 7)) for i in range(n)]
        return steps(lambda: assign_offsets(lives))

    assert placing(2400) <= LINEAR * placing(1200)


# -- no recursion ------------------------------------------------------------------------------------------------------
def test_100_000_nodes_are_built_differentiated_and_freed() -> None:
    x = Tensor([1.0]).realize()
    y = x
    for _ in range(100_000):
        y = y + x
    assert len(toposort([y.uop])) == 100_001
    z = y.sum().backward()
    assert x.grad is not None and len(toposort([x.grad.uop])) >= 1
    del y, z
    x.grad = None
    gc.collect()


def test_20_000_nodes_are_scheduled_and_run() -> None:
    x = Tensor([1.0, 2.0]).realize()
    y = x
    for _ in range(20_000):
        y = y + x
    assert y.tolist() == [20_001.0, 40_002.0]


def test_a_long_chain_of_views_runs() -> None:
    x = Tensor([[1.0, 2.0, 3.0]]).realize()
    y = x
    for i in range(3_000):
        y = y.T if i % 2 else y.reshape(1, 3).T
    assert sorted(y.flatten().tolist()) == [1.0, 2.0, 3.0]


def test_the_cache_of_schedules_is_bounded() -> None:
    assert engine._MOST_SCHEDULES <= 4096


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="versions of Python count calls differently")
def test_a_known_small_graph_and_a_jitted_call_make_few_calls() -> None:
    x, w = (Tensor.full((4, 4), value).contiguous().realize() for value in (2.0, 3.0))

    @TinyJit
    def product(x: Tensor) -> Tensor:
        return (x * w).sum()

    for _ in range(4):
        assert (x + 1).realize().tolist()[0][0] == 3 and product(x).item() == 96 and x.sum().realize().item() == 32
    take_losses()                             # losses of other tests, whose gradients would be computed along
    gc.collect()                              # tensors of other tests, whose indices are not checked yet
    assert steps(lambda: (x + 1).realize()) <= 84          # 81 alone, 84 after other tests
    assert steps(lambda: x.sum().realize()) <= 118         # 112 alone
    assert steps(lambda: product(x)) <= 37                 # 35 alone
