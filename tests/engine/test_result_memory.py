"""Memory of results: values that never change under their readers, where intermediate values lie, and its limit."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import example, given, settings as hypothesis_settings, strategies as st
from scripts import run_script

from glassgrad import Context, Device, GlobalCounters, MemoryLimitError, Tensor
from glassgrad.compiler.graph import ops as o
from glassgrad.engine.memory_plan import ALIGNMENT, Lifetime, assign_offsets, stack_of, stacked
from glassgrad.engine.realize import forgotten_schedules


@pytest.fixture(autouse=True)
def _only_schedules_of_this_test() -> Iterator[None]:
    """What other tests computed, in other sizes too, is not found again here."""
    with forgotten_schedules():
        yield


# -- buffers are values --------------------------------------------------------------------------------------
def test_assign_does_not_reach_back() -> None:
    w = Tensor([1.0, 2.0])
    y = w * 2
    w.assign(w * 0).realize()
    assert y.tolist() == [2.0, 4.0] and w.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("order", range(6))
def test_assigns_and_readers_in_every_order(order: int) -> None:
    w = Tensor([1.0, 2.0, 3.0]).realize()
    before, view = w * 10, w[1:]
    w.assign(w + 1)
    middle = w * 10
    w.assign(w.flip(0))
    after = w * 10
    named = [before, middle, after]
    expected = [[10.0, 20.0, 30.0], [20.0, 30.0, 40.0], [40.0, 30.0, 20.0]]
    for i in ([0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0])[order]:
        named[i].realize()
        assert named[i].tolist() == expected[i]
    assert view.tolist() == [3.0, 2.0] and w.tolist() == [4.0, 3.0, 2.0], "a view shows the present value"


def test_swapping_two_tensors() -> None:
    a, b = Tensor([1.0]).realize(), Tensor([2.0]).realize()
    old_a = a + 0
    a.assign(b + 0)
    b.assign(old_a)
    a.realize(b)
    assert (a.item(), b.item()) == (2.0, 1.0)


def test_an_assigned_value_that_was_computed_on_the_way_is_not_computed_again() -> None:
    w, cache = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize(), Tensor.zeros(3, 2).contiguous().realize()
    cache[1:2] = Tensor([[1.0, 1.0]]).realize() @ w
    other = Tensor([1.0]).realize()
    other.assign(other + 1)
    total = (cache * 2).sum()
    total.realize()
    GlobalCounters.reset()
    assert cache.tolist() == [[0.0, 0.0], [4.0, 6.0], [0.0, 0.0]] and total.item() == 20.0
    assert GlobalCounters.kernel_count == 0
    assert other.tolist() == [2.0] and GlobalCounters.kernel_count == 1, "it was no part of what was asked for"
    cache.sum().backward()
    assert w.grad is not None and w.grad.tolist() == [[1.0, 1.0], [1.0, 1.0]], "it was read, not cut off"


def test_in_place_arithmetic_changes_the_tensor_not_what_came_of_it() -> None:
    x = Tensor([1.0, 2.0])
    same, y = x, x * 3
    x += 1
    assert x is same and x.tolist() == [2.0, 3.0] and y.tolist() == [3.0, 6.0]


def test_an_exported_array_does_not_change() -> None:
    w = Tensor([1.0, 2.0]).realize()
    array = w.numpy()
    w.assign(w * 5).realize()
    w.assign(w * 5).realize()
    assert array.tolist() == [1.0, 2.0]
    computed = (w + 1).numpy()
    computed[:] = 0
    assert (w + 1).tolist() == [26.0, 51.0], "an array that is handed out is the caller's"


@pytest.mark.parametrize("shape, axis", [((4, 6), 1), ((3, 5, 7), 1), ((3, 5, 7), 2)])
def test_elements_looked_up_are_stored_in_the_order_of_the_axes(shape: tuple[int, ...], axis: int) -> None:
    x, chosen = np.arange(math.prod(shape)).reshape(shape), [3, 0, 4, 4]
    taken = Tensor(x).index_select(axis, Tensor(chosen)).realize()
    np.testing.assert_array_equal(taken.numpy(), x.take(chosen, axis))
    assert taken.uop.op is o.BUFFER and taken.uop.shape == taken.shape
    np.testing.assert_array_equal(taken.transpose(0, axis).realize().numpy(), x.take(chosen, axis).swapaxes(0, axis))


def test_many_steps_take_no_more_memory() -> None:
    w = Tensor.rand(256, 256).realize()
    gc.collect()
    before = Device[w.device].memory.stats().live
    for _ in range(20):
        w.grad = None
        (w * w).mean().backward()
        w.assign(w - w.grad * 0.1)
        Tensor.realize(w, w.grad)
    w.grad = None
    gc.collect()
    assert Device[w.device].memory.stats().live <= before + (64 << 10)


# -- where intermediate values lie ---------------------------------------------------------------------------
lives = st.lists(st.builds(lambda first, length, nbytes: Lifetime(first, first + length, nbytes), st.integers(0, 30),
                           st.integers(0, 10), st.integers(0, 5000)), max_size=40)


@hypothesis_settings(max_examples=200, deadline=None, derandomize=True)
@given(lives)
def test_values_alive_together_never_overlap(rows: list[Lifetime]) -> None:
    offsets, total = assign_offsets(rows)
    _check_apart(rows, offsets, total)
    padded = [-(-r.nbytes // ALIGNMENT) * ALIGNMENT for r in rows]
    needed = max(sum(size for size, r in zip(padded, rows) if r.first <= t <= r.last) for t in range(45))
    assert needed <= total <= sum(padded)


@hypothesis_settings(max_examples=200, deadline=None, derandomize=True)
@given(lives, st.lists(st.integers(0, 5000), min_size=40, max_size=40))
@example([Lifetime(1, 1, 1), Lifetime(0, 1, 0), Lifetime(0, 0, 1)], [0] * 40)        # an empty value between others
def test_what_lies_upon_what_holds_for_other_sizes(rows: list[Lifetime], others: list[int]) -> None:
    offsets, total = assign_offsets(rows)
    stack = stack_of(rows, offsets)
    _check_apart(rows, *stacked(stack, [row.nbytes for row in rows]))
    assert stacked(stack, [row.nbytes for row in rows])[1] <= total
    changed = [row._replace(nbytes=nbytes) for row, nbytes in zip(rows, others)]
    _check_apart(changed, *stacked(stack, [row.nbytes for row in changed]))


def _check_apart(rows: list[Lifetime], offsets: list[int], total: int) -> None:
    for i, (a, at_a) in enumerate(zip(rows, offsets)):
        assert at_a % ALIGNMENT == 0 and 0 <= at_a <= at_a + a.nbytes <= total
        for b, at_b in zip(rows[:i], offsets):
            together = a.first <= b.last and b.first <= a.last
            apart = at_a + a.nbytes <= at_b or at_b + b.nbytes <= at_a
            assert apart or not together or not (a.nbytes and b.nbytes)


def test_a_chain_of_kernels_reuses_memory() -> None:
    """Ten matmuls in a row need two places for what lies between them, not nine."""
    w = Tensor.rand(256, 256).realize()
    x = w
    for _ in range(10):
        x = x @ w
    memory = Device[w.device].memory
    gc.collect()
    memory.reset_peak()
    before = memory.stats().peak
    x.realize()
    assert memory.stats().peak - before <= 6 * 256 * 256 * 4, "the result, two between, and packed panels"


def test_full_memory_names_the_largest_live_buffers_and_their_lines() -> None:
    script = """
        from glassgrad import Tensor
        small = Tensor.ones(100, 100).contiguous().realize()
        large = Tensor.ones(2048, 1024).contiguous()                   # line 4
        large.realize()
        middle = Tensor.full((512, 1024), 2.0).contiguous().realize()  # line 6
        more = Tensor.ones(4096, 1024).contiguous().realize()          # line 7
    """
    path, error = "script.py", run_script(script, fails=True, MEMORY_MB="16", DEV="CPU")[1]
    lines = error[error.index("there is not enough memory"):].splitlines()
    assert lines[0] == "there is not enough memory for this tensor"
    assert lines[1] == "  given:    16.0 MiB more, with 10.0 MiB in use:"
    assert lines[2].split()[:4] == ["8.0", "MiB", "float32[2048,", "1024]"] and lines[2].endswith(f"{path}:4")
    assert lines[3].split()[:4] == ["2.0", "MiB", "float32[512,", "1024]"] and lines[3].endswith(f"{path}:6")
    assert lines[4].split()[:4] == ["39.1", "KiB", "float32[100,", "100]"] and lines[4].endswith(f"{path}:3")
    assert lines[5] == "  expected: at most 16.0 MiB in use (MEMORY_MB=16)"
    assert lines[6] == "  fix:      use smaller tensors or batches, or raise MEMORY_MB"
    assert lines[7].startswith("  at: ") and lines[7].endswith(f"{path}:7")


def test_the_limit_lets_through_what_fits_and_recovers() -> None:
    gc.collect()
    live = Device["CPU"].memory.stats().live >> 20
    with Context(MEMORY_MB=live + 10):
        with pytest.raises(MemoryLimitError):
            Tensor.ones(16 << 20, device="CPU").contiguous().realize()
        assert Tensor.ones(1 << 20, device="CPU").contiguous().realize().sum().item() == 1 << 20
    assert Tensor.ones(4 << 20, device="CPU").contiguous().realize().sum().item() == 4 << 20
