"""Operations and bytes are counted for the sizes of a run, where its kernels serve many."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from changing_programs import data, general_graphs

from glassgrad import Context, GlobalCounters, Tensor, TinyJit, Variable
from glassgrad.engine import realize as engine
from glassgrad.engine.profile import profile
from glassgrad.runtime.cpu.native_device import NativePlan

pytestmark = pytest.mark.usefixtures("fresh_schedules")
Counts = tuple[int, int, int]
Program = Callable[[Tensor], Tensor]
PROGRAMS: dict[str, Program] = {
    "elementwise": lambda x: x * 2 + 1,
    "product": lambda x: x @ Tensor.ones(16, 8).contiguous().realize(),
    "sum of columns": lambda x: x.sum(0),
    "softmax": lambda x: x.T.softmax(-1),
    "two kernels": lambda x: (x.sum(0) * 2).contiguous() + x,
    "pooling of an odd length": lambda x: x.T.reshape(1, 16, -1).max_pool2d((2,)),
}

ON_A_CPU = pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="a GPU has other kernels for rows of any length")
NAMES = [pytest.param(name, marks=ON_A_CPU) if name == "softmax" else name for name in PROGRAMS]


def rows(n: int) -> Tensor:
    return Tensor(data((n, 16))).realize()


def counts_of(work: Callable[[], object]) -> Counts:
    GlobalCounters.reset()
    work()
    return GlobalCounters.kernel_count, GlobalCounters.global_ops, GlobalCounters.global_mem


def fixed_counts(program: Program, n: int) -> Counts:
    """Of kernels for this size alone."""
    with engine.forgotten_schedules(), Context(DYNAMIC=0):
        return counts_of(program(rows(n)).realize)


def served_for_all_sizes(program: Program) -> None:
    for n in (5, 9, 14):
        program(rows(n)).realize()
    assert general_graphs()


@pytest.mark.parametrize("name", NAMES)
def test_a_run_counts_the_work_of_its_sizes(name: str) -> None:
    program = PROGRAMS[name]
    served_for_all_sizes(program)
    for n in (7, 40, 7, 101, 12):
        counts = counts_of(program(rows(n)).realize)
        assert GlobalCounters.schedules == 0, "no kernel is for this size alone"
        assert counts == fixed_counts(program, n), n


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_counts_the_work_of_its_sizes(name: str) -> None:
    program = PROGRAMS[name]
    served_for_all_sizes(program)
    for n in (7, 40):
        result = program(rows(n))
        with profile() as ran:
            result.realize()
        _, operations, nbytes = fixed_counts(program, n)
        assert (sum(r.operations for r in ran.rows), sum(r.bytes for r in ran.rows)) == (operations, nbytes)


@pytest.mark.only_on("CPU", reason="it replaces the time that this device's kernels take")
def test_the_line_of_a_kernel_shows_the_work_of_its_size(monkeypatch: pytest.MonkeyPatch,
                                                         capsys: pytest.CaptureFixture[str]) -> None:
    program = PROGRAMS["product"]
    served_for_all_sizes(program)
    run = NativePlan.run_one
    monkeypatch.setattr(NativePlan, "run_one", lambda plan, number: 10 if run(plan, number) else 10)
    for n in (7, 40):
        result = program(rows(n))
        capsys.readouterr()
        with Context(DEBUG=2):
            result.realize()
        [found] = re.findall(r"([\d.]+) GFLOPS +([\d.]+) GB/s", capsys.readouterr().out)
        assert [float(each) for each in found] == [2 * n * 16 * 8 / 10, (n * 16 + 16 * 8 + n * 8) * 4 / 10]


@pytest.mark.parametrize("is_jitted", [False, True])
def test_work_follows_a_variable(is_jitted: bool) -> None:
    n, x = Variable("n", 1, 300), rows(300)

    def program(x: Tensor) -> Tensor:
        return (x * 2 + 1).sum(0).realize()

    run = TinyJit(program) if is_jitted else program
    for value in (3, 5, 8, 300, 1, 8):
        part = x[:n.bind(value)]
        assert counts_of(lambda: run(part)) == (1, 3 * 16 * value, (value + 1) * 16 * 4)  # noqa: B023 - called at once


@ON_A_CPU
def test_a_jitted_call_counts_the_work_of_its_size() -> None:
    program = PROGRAMS["softmax"]
    jitted = TinyJit(lambda x: program(x).realize())
    inputs = {n: rows(n) for n in range(3, 12)}
    for _ in range(4):
        for n, x in inputs.items():
            counts = counts_of(lambda: jitted(x))  # noqa: B023 - called at once
            assert counts == fixed_counts(program, n)
    assert jitted.captured


def test_the_copy_of_what_a_part_does_not_replace_is_counted_where_it_is_made() -> None:
    def column(is_read: bool) -> Counts:
        x = Tensor(data((160, 128))).realize()
        old = x * 2 if is_read else None
        x[:, 3] = Tensor(data((160,))).realize()
        counts = counts_of(x.realize)
        assert old is None or old.numpy().shape == x.shape
        return counts

    for _ in range(2):
        assert [column(is_read)[2] for is_read in (False, True)] == [2 * 160 * 4, 2 * 160 * 4 + 2 * 160 * 128 * 4]
