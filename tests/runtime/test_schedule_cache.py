"""Schedules on disk: found by the next process, with the same results, and only where nothing else changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_fuzzer import Maker
from scripts import run_script

from glassgrad import Context, Device, GlobalCounters, Tensor, Variable
from glassgrad.compiler import pipeline
from glassgrad.compiler.graph.ops import Ops
from glassgrad.compiler.schedule.inlined_values import CPU_LIMITS
from glassgrad.engine import realize as engine
from glassgrad.engine.changing_sizes.size_families import SizeFamilies
from glassgrad.engine.observer import Observer, observed_by
from glassgrad.runtime import schedule_cache
from glassgrad.runtime.kernel_key import source_digest
from glassgrad.runtime.python.python_device import WIDE, PythonDevice

VALUES = np.random.default_rng(3).standard_normal((6, 8)).astype(np.float32)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path) -> Iterator[None]:
    with Context(CACHE_DIR=str(tmp_path)):
        yield


def new_process(work: Callable[[], Any]) -> tuple[int, Any]:
    """Run work without the schedules of this process: how many were made, and the result of the work."""
    made = []

    def counted(*given: Any, **named: Any) -> Any:
        made.append(given)
        return pipeline.make_schedule(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine._known, "schedules", {})
        patch.setattr(engine._known, "size_families", SizeFamilies(64))
        patch.setattr(engine, "make_schedule", counted)
        result = work()
    return len(made), result


def deep(x: Tensor, factor: float = 0.5) -> Tensor:
    """More nodes than are scheduled as fast as a file is read."""
    for _ in range(schedule_cache.LEAST_NODES // 3):
        x = (x * factor + 0.25).relu()
    return x.softmax(1)


def test_a_second_process_schedules_nothing(tmp_path: Path) -> None:
    script = """
        from glassgrad import Tensor
        from glassgrad.compiler import pipeline
        from glassgrad.engine import realize as engine
        made = []
        def make_schedule(*given, **named):
            made.append(given)
            return pipeline.make_schedule(*given, **named)
        engine.make_schedule = make_schedule
        x = Tensor([[0.5, 2.0, -3.0]])
        for _ in range(30):
            x = (x * 0.5 + 0.25).relu()
        print(x.tolist())
        print(len(made))
    """
    first, second = (run_script(script, CACHE_DIR=str(tmp_path))[0].splitlines() for _ in range(2))
    assert first[0] == second[0]
    assert (first[1], second[1]) == ("1", "0")


def test_a_second_process_loads_no_optimizer_for_lengths_that_change(tmp_path: Path) -> None:
    """Which kernels are tiled is told by their moves alone."""
    script = """
        import sys
        from glassgrad import Tensor, GlobalCounters
        w = Tensor.ones(8, 8).contiguous().realize()
        for n in (3, 4, 5):
            x = Tensor([[1.0] * 8] * n).realize()
            for _ in range(24):
                x = (x @ w * 0.125 + 0.25).relu()
            x.realize()
        print(GlobalCounters.schedules < 6, "glassgrad.compiler.optimize.moves.loop_moves" in sys.modules)
    """
    first, second = (run_script(script, CACHE_DIR=str(tmp_path))[0].splitlines() for _ in range(2))
    assert (first, second) == (["True True"], ["True False"])


def test_random_graphs_have_the_same_results_by_schedules_from_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_cache, "LEAST_NODES", 1)
    for seed in range(20_000, 20_030):
        sinks = Maker(seed).graph(12)

        def bits() -> list[bytes]:
            return [bytes(node.base.arg.copy_out()) for node in engine.realize(sinks)]  # noqa: B023 - called at once

        (_, first), (again, second) = new_process(bits), new_process(bits)
        assert first == second and again == 0, f"seed {seed}"


def test_a_graph_with_other_numbers_has_a_schedule_of_its_own() -> None:
    for factor in (0.0, -0.0, 0.5):
        made, _ = new_process(lambda: deep(Tensor(VALUES), factor).numpy())  # noqa: B023 - called at once
        assert made == 1, factor
    assert new_process(lambda: deep(Tensor(VALUES), -0.0).numpy())[0] == 0


def test_a_variable_with_other_bounds_has_a_schedule_of_its_own() -> None:
    rows = Tensor(np.arange(512, dtype=np.float32).reshape(128, 4) / 512).realize()

    def some(most: int) -> Any:
        return deep(rows[:Variable("n", 1, most).bind(3)]).numpy()

    (made, first), (again, second) = new_process(lambda: some(64)), new_process(lambda: some(128))
    assert (made, again) == (1, 1)
    np.testing.assert_array_equal(first, second)
    assert new_process(lambda: some(64))[0] == 0


def test_changing_lengths_are_found_too() -> None:
    def lengths() -> list[Any]:
        return [deep(Tensor(VALUES[:n])).numpy() for n in (2, 3, 4, 5, 6)]

    before = GlobalCounters.schedules
    made, first = new_process(lengths)
    assert made == GlobalCounters.schedules - before == 2, "one size, and all"
    again, second = new_process(lengths)
    assert again == 0 and GlobalCounters.schedules - before == 4, "what a process needs is counted, found or made"
    for x, y in zip(first, second):
        np.testing.assert_array_equal(x, y)


def test_a_part_that_is_replaced_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_cache, "LEAST_NODES", 1)

    def written() -> Any:
        cache = Tensor.zeros(16, 8).contiguous().realize()
        for n in range(3):
            cache[n:n + 1] = deep(Tensor(VALUES[:2] + n))[:1]
            cache = cache.realize()
        return cache.numpy()

    (made, first), (again, second) = new_process(written), new_process(written)
    assert made > again == 0
    np.testing.assert_array_equal(first, second)


def test_the_lines_of_kernels_are_those_of_the_program_that_runs() -> None:
    def lines() -> set[int]:
        return {line.number for variants in engine._known.schedules.values() for item in variants.first.items
                for line in item.lines if line.file == __file__}

    def first() -> set[int]:
        (deep(Tensor(VALUES)) * 3.0).realize()
        return lines()

    def second() -> set[int]:
        (deep(Tensor(VALUES)) * 3.0).realize()
        return lines()

    (made, of_first), (again, of_second) = new_process(first), new_process(second)
    assert (made, again) == (1, 0)
    apart = second.__code__.co_firstlineno - first.__code__.co_firstlineno
    in_deep = range(deep.__code__.co_firstlineno, deep.__code__.co_firstlineno + 6)
    moved = {n if n in in_deep else n + apart for n in of_first}
    assert of_second == moved and any(n > second.__code__.co_firstlineno for n in of_second)


@pytest.mark.parametrize("setting", [{"CACHE": 0}, {"CHECK": 1}, {"NOOPT": 1}])
def test_settings_that_need_the_passes_or_other_kernels(setting: dict[str, int]) -> None:
    assert new_process(lambda: deep(Tensor(VALUES)).numpy())[0] == 1
    with Context(**setting):
        assert new_process(lambda: deep(Tensor(VALUES)).numpy())[0] == 1


def test_observers_see_the_passes() -> None:
    assert new_process(lambda: deep(Tensor(VALUES)).numpy())[0] == 1
    with observed_by(Observer()):
        assert new_process(lambda: deep(Tensor(VALUES)).numpy())[0] == 1


def test_a_compiler_with_additions_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [Tensor(VALUES).uop] * 1000
    assert schedule_cache.is_cacheable(nodes)
    assert not schedule_cache.is_cacheable(nodes[:schedule_cache.LEAST_NODES - 1])
    with monkeypatch.context() as patch:
        patch.setattr(Ops, "OF_MY_OWN", object(), raising=False)
        assert not schedule_cache.is_cacheable(nodes)
    monkeypatch.setattr(pipeline, "PASSES", pipeline.PASSES[1:])
    assert not schedule_cache.is_cacheable(nodes)


def test_a_device_with_other_matrix_units_is_another_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the scores of attention are stored is asked of the target, whose units decide it."""
    q = Tensor(np.random.default_rng(0).standard_normal((2, 64, 32)).astype(np.float32)).realize()

    def attention() -> Any:
        x = q
        for _ in range(4):
            x = (x @ q.transpose(1, 2) * 0.125).softmax(-1) @ q + x.tanh() * 0.5
        return x.numpy()

    with Context(ONLINE_SOFTMAX=2):                          # however few the keys are
        made, first = new_process(attention)
        monkeypatch.setattr(engine, "_stores_scores", lambda *question: "as a test")
        assert new_process(attention)[0] == 0, "the units are those of before"
        monkeypatch.setattr(engine, "_matrix_units", lambda device: (device, "other units"))
        again, second = new_process(attention)
        assert (made, again) == (1, 1)
        assert new_process(attention)[0] == 0
    np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-5)


def test_the_name_covers_the_formulas_whose_gradients_a_schedule_writes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    before = schedule_cache.schedule_name("graph")
    monkeypatch.setattr(schedule_cache, "source_digest", lambda *stages: "other" if stages == ("tensor/formulas",)
                        else source_digest(*stages))
    assert schedule_cache.schedule_name("graph") != before


def test_a_device_that_is_registered_again_with_other_limits_gets_other_schedules() -> None:
    """Schedules in memory are found by a device's name and by how often names were registered, not by its limits."""
    def kernels(buffers: int) -> int:
        def opened(name: str) -> PythonDevice:
            device = PythonDevice(name)
            device.target = replace(WIDE, fusion=CPU_LIMITS._replace(buffers=buffers))  # type: ignore[attr-defined]
            return device
        Device.register("LIMITED", opened)
        terms = [Tensor([float(i)], device="LIMITED").realize() for i in range(8)]
        GlobalCounters.reset()
        assert sum(terms[1:], terms[0]).item() == 28.0
        return GlobalCounters.kernel_count
    try:
        assert kernels(16) == 1 < kernels(5) and kernels(16) == 1
    finally:
        Device.unregister("LIMITED")
