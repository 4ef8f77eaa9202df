"""What depends on the sizes alone is found once: a launch at sizes that come again binds addresses and runs."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from changing_programs import data, general_graphs

from glassgrad import Context, Tensor, TinyJit
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.render.launch_info import TasksByValue
from glassgrad.engine import compiled_schedule, memory_plan, realize as engine
from glassgrad.engine.changing_sizes import size_families
from glassgrad.engine.changing_sizes.general_graph import ServedGraph

pytestmark = pytest.mark.usefixtures("fresh_schedules")
WEIGHT = data((16, 8))


def program(x: Tensor, weight: Tensor) -> Tensor:
    """Several kernels, with memory between them and tasks by the number of rows."""
    return ((x @ weight).relu().contiguous() * 2).softmax(0)


def expected(x: np.ndarray) -> np.ndarray:
    found = np.exp(np.maximum(x @ WEIGHT, 0).astype(np.float64) * 2)
    return found / found.sum(0)


def check(n: int, weight: Tensor, keep: list[Tensor] | None = None) -> None:
    x = data((n, 16))
    got = program(Tensor(x).realize(), weight).realize()
    np.testing.assert_allclose(got.numpy(), expected(x), rtol=1e-4, atol=1e-6, err_msg=f"{n}")
    if keep is not None:
        keep.append(got)                             # its memory, and so where the next ones are, is other memory


@pytest.fixture
def weight() -> Tensor:
    """A weight of the program, for which kernels for all sizes were made."""
    weight = Tensor(WEIGHT).realize()
    for n in (5, 9, 14):
        check(n, weight)
    assert general_graphs()
    return weight


@pytest.mark.only_on("CPU", "CLANG", reason="it counts what native launches evaluate")
def test_nothing_is_evaluated_for_sizes_that_come_again(weight: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[int] = []
    at, laid_out = TasksByValue.at, memory_plan.MemoryLayouts._laid_out
    monkeypatch.setattr(TasksByValue, "at", lambda cut, *values: evaluated.append(values[0]) or at(cut, *values))
    monkeypatch.setattr(memory_plan.MemoryLayouts, "_laid_out",
                        lambda layouts, values: evaluated.append(values[0]) or laid_out(layouts, values))
    for n in (300, 7, 40):
        check(n, weight)
    assert {*evaluated} == {300, 7, 40}
    evaluated.clear()
    for n in (7, 300, 40, 40, 7):
        check(n, weight)
    assert not evaluated


@pytest.mark.parametrize("kept", [1, 3, 64])
def test_launches_are_right_where_memory_moves_and_sizes_change(weight: Tensor, monkeypatch: pytest.MonkeyPatch,
                                                              kept: int) -> None:
    for each in (memory_plan, compiled_schedule):
        monkeypatch.setattr(each, "MOST_LAYOUTS", kept)
    alive: list[Tensor] = []
    for n in (7, 300, 7, 8, 41, 300, 7, 2, 41, 8, 300):
        check(n, weight, alive)
        check(n, Tensor(WEIGHT).realize(), alive)


def test_launches_are_right_under_settings_that_change(weight: Tensor) -> None:
    for n in (7, 300, 7, 300):
        for threads in (1, 2, 3):
            with Context(THREADS=threads):
                check(n, weight)
        with Context(DEBUG=1):
            check(n, weight)


def test_launches_are_right_in_several_threads(weight: Tensor) -> None:
    wrong: list[BaseException] = []

    def run(sizes: tuple[int, ...], threads: int) -> None:
        try:
            with Context(THREADS=threads):
                for n in sizes * 4:
                    check(n, weight)
        except BaseException as error:
            wrong.append(error)

    given = [((7, 300, 41), 1), ((41, 7, 90), 2), ((7, 7, 2), 1)]
    workers = [threading.Thread(target=run, args=each) for each in given]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_a_ctrl_c_while_sizes_are_written_leaves_no_wrong_ones(weight: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    [general] = [each for each in general_graphs() if len(each.compiled.items) > 1]
    check(7, weight)
    write = general.compiled.write_scalars

    def interrupted(numbers: list[int]) -> None:
        write(numbers)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(general.compiled, "write_scalars", interrupted)
        with pytest.raises(KeyboardInterrupt):
            check(41, weight)
    check(7, weight)


@pytest.mark.parametrize("view", [lambda x: x.sum(1), lambda x: x.mean(0), lambda x: (x * 2).reshape(-1)])
def test_the_value_of_a_reshape_is_a_buffer_as_of_fixed_sizes(view: Callable[[Tensor], Tensor]) -> None:
    for n in (5, 9, 14, 20, 20):
        x = Tensor(data((n, 4))).realize()
        assert view(x).realize().uop.op is o.BUFFER


def test_only_the_last_graphs_that_were_served_are_remembered(weight: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_families, "MOST_SERVED", 4)
    for n in (*range(20, 40), 21, 38):
        check(n, weight)
    found = [each for each in engine._known.schedules.values() if isinstance(each, ServedGraph)]
    assert len(found) <= 4 and (38,) in [each.values for each in found]


def test_a_graph_that_was_served_gets_its_own_kernels_where_none_for_all_sizes_may_be_used(weight: Tensor) -> None:
    x, (general,) = data((20, 16)), [each for each in general_graphs() if len(each.compiled.items) > 1]
    check(20, weight)
    runs = general.runs[20,]
    with Context(DYNAMIC=0):
        check(20, weight)
    check(20, weight)
    jitted = TinyJit(lambda x: program(x, weight).realize())
    for _ in range(3):
        np.testing.assert_allclose(jitted(Tensor(x).realize()).numpy(), expected(x), rtol=1e-4, atol=1e-6)
    assert general.runs[20,] == runs
