"""A recurrence is one node: its values, gradients and batches are those of the steps written out."""

from __future__ import annotations

from collections.abc import Callable

import loop_device
import numpy as np
import pytest
import shim_device

from glassgrad import Context, GlobalCounters, Tensor, dtypes, vmap
from glassgrad.compiler.check.graph_interpreter import interpret
from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.graph.recurrence import steps_of_items
from glassgrad.engine import realize as engine
from glassgrad.tensor.autograd.recurrence import states_of_steps
from glassgrad.tensor.realize_and_read import realize

RANDOM = np.random.default_rng(3)
Step = Callable[..., tuple[Tensor, ...]]


def array(*shape: int) -> Tensor:
    return Tensor(RANDOM.standard_normal(shape).astype(np.float32)).realize()


def written_out(step: Step, start: list[Tensor], sequences: list[Tensor], backwards: bool) -> list[Tensor]:
    states, found = tuple(start), []
    for t in range(sequences[0].shape[0])[::-1 if backwards else 1]:
        states = step(states, *[x[t] for x in sequences])
        found.append(states)
    return [Tensor.stack(*part) for part in zip(*(found[::-1] if backwards else found))]


WEIGHT, GATE = array(4, 4), array(4)
STEPS: dict[str, Step] = {
    "a running sum": lambda state, x: (state[0] + x,),
    "a product": lambda state, x: ((state[0] @ WEIGHT + x).tanh(),),
    "a softmax": lambda state, x: ((state[0] * GATE).softmax(-1) * x,),
    "a shifted state": lambda state, x: (state[0][:, 1:].pad(((0, 0), (0, 1))) + x * GATE,),
    "two states": lambda state, x: (state[1] * x.sigmoid(), (state[0] @ WEIGHT.T).tanh() + state[1] * 0.5),
    "a state that stays": lambda state, x: (state[0] + x * state[1], state[1]),
    "states that are exchanged": lambda state, x: (state[1] + x, state[0]),
    "a state that does not depend on the last": lambda state, x: (x * GATE, state[0]),
    "a state without gradient": lambda state, x: ((state[0] @ WEIGHT).tanh() + x, state[1].detach() * x),
}


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("name", STEPS)
def test_states_and_gradients_are_those_of_the_steps_written_out(name: str, count: int, backwards: bool) -> None:
    step, x = STEPS[name], array(count, 3, 4)
    start = [array(3, 4), array(3, 4)][:2 if "state" in name and name != "a shifted state" else 1]
    found = []
    for way in (states_of_steps, written_out):
        results = list(way(step, start, [x], backwards))
        loss = sum([(s * s * s).sum() for s in results], Tensor(0.0))
        leaves = [t for t in (x, *start, WEIGHT, GATE)]
        for leaf in leaves:
            leaf.grad = None
        loss.backward()
        found.append([*[r.numpy() for r in results], *[None if t.grad is None else t.grad.numpy() for t in leaves]])
    for number, (got, want) in enumerate(zip(*found)):
        assert got is not None or want is None, number
        if got is not None:          # where no gradient passes, it is zeros
            np.testing.assert_allclose(got, np.zeros_like(got) if want is None else want, rtol=2e-4, atol=2e-4)


def test_any_number_of_steps_is_one_node() -> None:
    for count in (2, 50):
        [states] = states_of_steps(STEPS["a product"], [array(3, 4)], [array(count, 3, 4)])
        assert [n.op for n in states.uop.toposort() if n.op is not o.BUFFER] == [o.RECURRENCE]


def test_the_interpreter_and_kernels_agree() -> None:
    x, start = array(6, 3, 4), array(3, 4)
    [states] = states_of_steps(STEPS["a product"], [start], [x], backwards=True)
    [want] = interpret([states.uop], {t.uop: t.numpy() for t in (x, start, WEIGHT)})
    np.testing.assert_allclose(states.numpy(), want, rtol=1e-5, atol=1e-6)


def test_results_that_nothing_reads_get_no_memory() -> None:
    x, start = array(100, 3, 4), [array(3, 4), array(3, 4)]
    _, second = states_of_steps(STEPS["two states"], start, [x])
    assert second.memory_plan().between < 10 * 3 * 4 * 4         # not one for each of 100 steps
    assert len({item.ast for item in second.schedule()}) <= 3


def test_a_gradient_of_a_weight_is_one_product_for_all_steps() -> None:
    x, start, weight = array(20, 3, 4), array(3, 4), array(4, 4)
    [states] = states_of_steps(lambda state, row: ((state[0] @ weight + row).tanh(),), [start], [x])
    states.sum().backward()
    assert weight.grad is not None
    items = weight.grad.schedule()
    assert sum([item.ast.src[0].src[0].shape == (4, 4) for item in items]) == 1


def test_vmap_goes_through() -> None:
    x, start = array(5, 6, 3, 4), array(5, 3, 4)
    for name in ("a product", "a softmax"):
        step = STEPS[name]
        got = vmap(lambda s, v: states_of_steps(step, [s], [v])[0])(start, x).numpy()       # noqa: B023
        want = [states_of_steps(step, [start[i]], [x[i]])[0].numpy() for i in range(5)]
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("step", [lambda state, x: (state[0].cumsum(0) + x,),
                                  lambda state, x: (state[0].cast(dtypes.float64) + x,)],
                         ids=["a scan inside", "another type"])
def test_other_steps_are_written_out(step: Step) -> None:
    x, start = array(4, 3, 4), array(3, 4)
    [states] = states_of_steps(step, [start], [x])
    assert all(n.op is not o.RECURRENCE for n in states.uop.toposort())
    np.testing.assert_allclose(states.numpy(), written_out(step, [start], [x], False)[0].numpy(), rtol=1e-6)


# -- independent items ---------------------------------------------------------------------------------------
def _smoothed(number: UOp, states: list[UOp]) -> tuple[list[UOp], list[UOp]]:
    """Reads other elements of the state, and the number of the step."""
    x, count = states
    x = (x + x.flip((2,)) * 0.25 + x.sum((2,)) * 0.125) * 0.5 + number.cast(x.dtype)
    return [x, count + 1.0], [x.sum((1, 2))]


def _scaled(number: UOp, states: list[UOp]) -> tuple[list[UOp], list[UOp]]:
    """Reads the same element alone."""
    return [states[0] * 0.5 + number.cast(dtypes.float32), states[1]], []


def _halved(number: UOp, states: list[UOp]) -> tuple[list[UOp], list[UOp]]:
    """Ends when all elements are 1; the last state says so."""
    x = (states[0] * 0.5 < 1.0).where(1.0, states[0] * 0.5).contiguous()
    most = x.reduce(o.AMAX, (1, 2))
    return [x, most.eq(1.0).where(1.0, most * 0.0)], []


ITEM_STEPS = {"other elements": (_smoothed, None), "the same element": (_scaled, None), "an end": (_halved, 1)}


@pytest.mark.parametrize("device", ["CPU", "PYTHON", "GPU_LOOPS", "HIP_SHIM"])
@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("name", ITEM_STEPS)
def test_steps_of_items_are_one_kernel(name: str, count: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step, until = ITEM_STEPS[name]
    x = 20 * np.abs(RANDOM.standard_normal((3, 5, 6))).astype(np.float32)
    with loop_device.registered(), shim_device.registered():
        starts = [Tensor(values, device=device).realize().uop for values in (x, np.zeros((3, 1, 1), np.float32))]
        found = []
        for in_one_kernel in (True, False):
            if not in_one_kernel:                        # as where items are large
                none = engine._limits(device)._replace(item_elements=0)
                monkeypatch.setattr(engine, "_limits", {device: none}.__getitem__)
            states, others = steps_of_items(step, starts, count, until=until)
            before = GlobalCounters.kernel_count
            results = realize([states[0], *others] if in_one_kernel else [states[0], *others, states[1]], device)
            kernels = GlobalCounters.kernel_count - before
            assert kernels == 1 if in_one_kernel else kernels >= count
            found.append([Tensor(node).numpy() for node in results])
        expected = interpret([states[0], *others], {n: Tensor(n).numpy() for n in starts})
    for whole, unrolled, want in zip(found[0], found[1], expected):
        np.testing.assert_allclose(whole, want, rtol=1e-5)
        np.testing.assert_allclose(unrolled, want, rtol=1e-5)


def test_no_steps_leave_the_starts() -> None:
    starts = [array(3, 5, 6).uop, array(3, 1, 1).uop]
    states, [other] = steps_of_items(_smoothed, starts, 0)
    assert states == starts and other.shape == (0, 3, 1, 1)


def test_the_same_bits_on_any_number_of_threads() -> None:
    matrices = array(9, 20, 20)
    found = []
    for threads in (1, 2, 5):
        with Context(THREADS=threads):
            found.append([part.numpy() for part in matrices.svd()])
    for other in found[1:]:
        for got, want in zip(other, found[0]):
            np.testing.assert_array_equal(got, want)
