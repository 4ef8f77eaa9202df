"""Schedules: asking for one runs nothing; the order of kernels, what each reads, and how much memory lies between."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings as hypothesis_settings, strategies as st

from glassgrad import Device, GlobalCounters, Tensor
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.gradient import without_detach, written_out
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.pipeline import make_schedule
from glassgrad.compiler.schedule.fusion import MANY_BUFFERS, fuse
from glassgrad.compiler.schedule.inlined_values import CPU_LIMITS
from glassgrad.compiler.schedule.kernel_groups import group_results
from glassgrad.compiler.schedule.kernels import Schedule, cut_into_kernels
from glassgrad.engine.schedule_key import normalize, with_params


def ready(*shape: int) -> Tensor:
    """A tensor whose values are in memory."""
    return Tensor.rand(*shape).realize()


def kernels(*tensors: Tensor) -> int:
    return len(tensors[0].schedule(*tensors[1:]))


# -- schedule() only looks -----------------------------------------------------------------------------------
def test_a_schedule_holds_nodes_no_longer_than_it_lives() -> None:
    """No circle: what its nodes remember is freed with it, not at the next collection of garbage."""
    x = Tensor([1.0, 2.0]).realize()
    gc.disable()
    try:
        y = x * 3
        node, plan = weakref.ref(y.uop), y.schedule()
        plan[0].run()
        del y, plan
        assert node() is None
        assert len((x * 3).schedule()) == 1, "its value went with it"
    finally:
        gc.enable()


def test_schedule_is_pure() -> None:
    x = ready(8, 8)
    y = (x.softmax() @ x).relu()
    node = y.uop
    GlobalCounters.reset()
    first, second = y.schedule(), y.schedule()
    assert [i.ast for i in first] == [i.ast for i in second]
    assert [i.slots for i in first] == [i.slots for i in second]
    assert GlobalCounters.kernel_count == 0 and y.uop is node, "nothing ran, nothing changed"
    assert [item.ast.op for item in first] == [o.SINK, o.SINK]
    y.realize()
    assert y.schedule() == []
    assert x.schedule() == []


def test_schedule_of_several_tensors_is_one_schedule() -> None:
    x = ready(64, 64)
    costly = x.sin().exp().sin()
    a, b = costly.sum(0), costly.sum(1)
    assert kernels(a, b) == 3 and kernels(a) == 1


@pytest.mark.parametrize("read", [Tensor.numpy, Tensor.tolist, lambda x: x.data(), repr])
def test_reading_adds_no_kernel(read: Callable[[Tensor], Any]) -> None:
    x = ready(64, 64)
    for make in (lambda: x.softmax(), lambda: (x + 1).sum(1), lambda: (x @ x).relu(), lambda: x.softmax().flatten()):
        GlobalCounters.reset()
        read(make())
        assert GlobalCounters.kernel_count == 1
    GlobalCounters.reset()
    (x + x).relu().sum().item()
    assert GlobalCounters.kernel_count == 1


def test_reading_leaves_the_graph_and_remembers_the_value() -> None:
    x = ready(8)
    y = (x + 1).sum()
    GlobalCounters.reset()
    y.item()
    y.item()
    assert GlobalCounters.kernel_count == 1
    assert kernels(y * 2) == 1, "what was read is not computed again"


@pytest.mark.parametrize("buffers", [4, 8, 31])
def test_a_device_that_takes_few_buffers_gets_more_kernels(buffers: int) -> None:
    """A tree and a chain of 40 tensors, and results that would share a kernel."""
    tensors = [ready(5) for _ in range(40)]
    chain, tree = sum(tensors[1:], tensors[0]), tensors
    while len(tree) > 1:
        tree = [x.maximum(y) for x, y in zip(tree[::2], tree[1::2])]
    results = [chain, tree[0], *[(x * tensors[0]).exp() for x in tensors[:9]]]
    limits = CPU_LIMITS._replace(buffers=buffers)
    planned = make_schedule(*with_params(normalize([r.uop for r in results]), ()), "CPU", limits=limits)
    check_schedule(planned)
    assert max(len(item.slots) for item in planned.items) <= buffers
    reasons = [reason for item in planned.items for reason in item.reasons]
    assert MANY_BUFFERS in reasons


@pytest.mark.parametrize("swapped", [False, True])
def test_a_new_value_of_an_input_is_computed_after_the_other_readers_of_the_old_one(swapped: bool) -> None:
    """So that it can be written over the old one, as a jit does with the weights of a step."""
    w, x, rate = ready(6, 6), ready(6, 6), ready(1)
    new, other, third = w - rate * x, w @ x, w.sum(0)
    planned = planned_of(*([third, other, new] if swapped else [new, other, third]))
    check_schedule(planned)
    assert [item.ast.src[0].src[1].op is o.SUB for item in planned.items] == [False, False, True]


def test_two_values_that_replace_each_other_are_computed_in_some_order() -> None:
    a, b = ready(4, 4), ready(4, 4)
    planned = planned_of(a + b.sum(0), b + a.sum(0), a * 2 + (b @ a), b * 2 + (a @ b))
    check_schedule(planned)


# -- what every schedule promises ----------------------------------------------------------------------------
def planned_of(*tensors: Tensor) -> Schedule:
    sinks, params = with_params(normalize([t.uop for t in tensors]), ())
    return scheduled(list(dict.fromkeys(sinks)), params)


def scheduled(sinks: list[UOp], params: list[UOp]) -> Schedule:
    """The kernels of a graph as it is, without algebra and copies."""
    sinks = without_detach(written_out(sinks))
    stored, beside = fuse(sinks)
    return cut_into_kernels(sinks, params, stored, group_results(stored, set(sinks), beside))


def check_schedule(planned: Schedule) -> None:
    """Each slot is written once, before it is read; PARAMs are numbered as the item's slots; sinks are written."""
    written: set[int] = set(range(planned.inputs))
    for item in planned.items:
        params = {n.arg.slot: n for n in toposort([item.ast]) if n.op is o.PARAM}
        results, reads = item.slots[:item.results], item.slots[item.results:]
        wholes = {slot if planned.slots[slot].whole is None else planned.slots[slot].whole for slot in reads}
        assert wholes <= written, "reads what nobody wrote yet"
        assert not set(results) & written, "written twice"
        assert len(set(item.slots)) == len(item.slots)
        written |= set(results)
        for position, slot in enumerate(item.slots):
            if position in params:
                param, memory = params[position], planned.slots[slot]
                sizes = [[n for n in shape if n != 1] for shape in (param.shape, memory.shape)]
                assert sizes[0] == sizes[1] and param.dtype == memory.dtype
                assert param.shape == memory.shape or item.results > 1, "results of one kernel have one shape in it"
        if item.ast.op is o.SINK:
            assert [s.src[0].arg.slot for s in item.ast.src] == list(range(item.results))
    assert set(planned.results.values()) <= written


@hypothesis_settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 20))
def test_random_graphs_are_cut_well(seed: int) -> None:
    from graph_fuzzer import Maker
    maker = Maker(seed)
    sinks, params = with_params(normalize(maker.graph(12)), ())
    sinks = [s for s in dict.fromkeys(sinks) if s.op not in (o.PARAM, o.CONST)]
    if sinks:
        reasons = fuse(sinks).reasons
        assert set(sinks) <= set(reasons), "everything asked for gets memory"
        check_schedule(scheduled(sinks, params))


def test_no_circle_through_a_third_kernel() -> None:
    """b reads a; c reads both a and what comes of b: joining a and c would wait for itself."""
    x = ready(64, 64)
    a = x + 1
    b = a.exp().sum(0, keepdim=True)
    c = a * b
    check_schedule(planned_of(a, b, c))
    a.realize(b, c)
    want = x.numpy() + 1
    np.testing.assert_allclose(c.numpy(), want * np.exp(want).sum(0, keepdims=True), rtol=1e-5)


def test_a_copy_stands_alone_between_devices() -> None:
    x, here = ready(4, 4), Device.DEFAULT
    there = "PYTHON" if here != "PYTHON" else "CPU"
    y = ((x + 1).to(there) * 2).to(here) + 1
    items = y.schedule()
    assert [i.ast.op for i in items] == [o.SINK, o.COPY, o.SINK, o.COPY, o.SINK]
    assert [i.device for i in items] == [here, there, there, here, here]
    np.testing.assert_allclose(y.numpy(), (x.numpy() + 1) * 2 + 1, rtol=1e-6)


def test_empty_results_run_no_kernel() -> None:
    x = ready(3, 0)
    y = (x + 1).relu()
    assert kernels(y) == 0 and y.numpy().shape == (3, 0)
    total = x.sum(1)
    assert kernels(total) == 1 and total.tolist() == [0.0, 0.0, 0.0]


# -- as little memory as will do -----------------------------------------------------------------------------
def peak_of(planned: Schedule) -> int:
    """The most bytes that lie between inputs and results at one time."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, item in enumerate(planned.items):
        for position, slot in enumerate(item.slots):
            if position < item.results:
                first[slot] = at
            last[slot] = at
    asked = set(planned.results.values())
    return max(sum(planned.slots[s].nbytes for s in first if first[s] <= at <= last[s] and s not in asked)
               for at in range(len(planned.items)))


def gradients(loss: Tensor, *weights: Tensor) -> list[Tensor]:
    return list(loss.gradient(*weights))


def test_gradients_of_weights_do_not_wait_for_the_end() -> None:
    """Of a deep network, going back, a layer's input is let go of before the layer below is reached."""
    layers, rows, width = 12, 64, 32
    weights = [ready(width, width) for _ in range(layers)]
    x = ready(rows, width)
    for w in weights:
        x = (x @ w).tanh()
    planned = planned_of(*gradients(x.sum(), *weights))
    check_schedule(planned)
    one = rows * width * 4
    assert peak_of(planned) <= (layers + 4) * one, "one value for each layer, and a few at work"


def test_statistics_are_kept_rather_than_what_they_are_taken_from() -> None:
    """Batch normalization, forward and back: of what is as large as its input only the gradients get memory."""
    x, weight, bias = ready(8, 16, 24, 24), ready(16), ready(16)
    y = x.batchnorm(weight, bias, x.mean((0, 2, 3)), (x.var((0, 2, 3), correction=0) + 1e-5).rsqrt())
    loss = (y.relu() * ready(8, 16, 24, 24)).sum()
    planned = planned_of(*gradients(loss, x, weight, bias))
    large = [s for item in planned.items for s in item.slots[:item.results] if planned.slots[s].nbytes >= 4 * x.numel()]
    asked = set(planned.results.values())
    assert len([s for s in large if s not in asked]) <= 1


def test_a_reduction_that_many_sums_read_gets_memory_once() -> None:
    """A matrix product under several sums: it, and not each of the things that are summed."""
    x, w, z = ready(64, 48), ready(48, 96), ready(64, 96)
    made = (x @ w).relu()
    sums = [(made * z).sum(0), (made * z * z).sum(0), (-made).sum(1)]
    planned = planned_of(*sums)
    large = [s for item in planned.items for s in item.slots[:item.results] if planned.slots[s].nbytes == 64 * 96 * 4]
    assert len(large) == 1 and len(planned.items) == 4
    want = np.maximum(x.numpy() @ w.numpy(), 0)
    np.testing.assert_allclose(sums[1].numpy(), (want * z.numpy() ** 2).sum(0), rtol=1e-4)


def test_what_only_its_own_kernel_reads_gets_no_memory() -> None:
    x = ready(64, 64)
    y = (x + 1).contiguous() * 2
    [item] = planned_of(y).items
    assert item.results == 1 and len(item.slots) == 2
    np.testing.assert_allclose(y.numpy(), (x.numpy() + 1) * 2, rtol=1e-6)


def test_steps_of_a_loop_over_pieces_share_their_kernel() -> None:
    """x[i] of a value in memory is the same kernel for every i: it begins elsewhere."""
    x, z, w = ready(12, 4, 8), ready(4, 8), ready(8, 8)
    want = z.numpy()
    y = (x + 1).contiguous()
    for i in range(12):
        z = ((y[i] + z) @ w).relu() * 0.1
        want = np.maximum((x.numpy()[i] + 1 + want) @ w.numpy(), 0) * np.float32(0.1)
    planned = planned_of(z)
    check_schedule(planned)
    assert len(planned.items) == 13 and len({item.ast for item in planned.items}) <= 4, "the first, the last, the rest"
    np.testing.assert_allclose(z.numpy(), want, rtol=1e-4)


@pytest.mark.parametrize("piece", [lambda y: y[1], lambda y: y[2:5], lambda y: y[3, 1:3], lambda y: y[:, 1],
                                   lambda y: y.reshape(24, 8)[7:9], lambda y: y[1:2, 2:4, :]])
def test_pieces_have_the_right_values(piece: Callable[[Tensor], Tensor]) -> None:
    x = ready(6, 4, 8)
    got = piece((x * 2).contiguous()).sum(-1) + piece((x * 2).contiguous()).exp().sum(-1)
    want = piece(Tensor(x.numpy() * 2)).numpy()
    np.testing.assert_allclose(got.numpy(), want.sum(-1) + np.exp(want).sum(-1), rtol=1e-5)
