"""What DEBUG shows at each level, what CHECK catches, what NOOPT leaves: read as a learner reads them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scripts import run_script

from glassgrad import Bug, Context, Device, GlobalCounters, Tensor
from glassgrad.compiler import pipeline
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.lower.loops import Store, walk
from glassgrad.compiler.pipeline import Pass
from glassgrad.compiler.schedule.kernels import cost
from glassgrad.engine import realize as engine
from glassgrad.engine.check import compare
from glassgrad.jit import TinyJit

SCRIPT = """
    from glassgrad import Tensor
    x = Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    w = Tensor([[1.0, -1.0], [0.5, 2.0], [-2.0, 1.0]])
    y = (x @ w + 1).relu().softmax()                  # the line
    y.realize()
    (x + 1).realize()
    print("answer", y.tolist())
"""
SIZE = r"\d+(\.\d [KMG]iB| bytes)"
TIME = rf"\d+ kernels?, \d+\.\d ms, {SIZE}:( {SIZE} (read|made|between|scratch),?)+"
KERNEL = re.compile(r"^\*\*\* (\w+) +(\d+) (\w+) +([\d.]+) us +([\d.]+) GFLOPS +([\d.]+) GB/s  (\S+)  (.+)$")
LABELS = ["--- initial", "--- folded", "--- after loop analysis", "--- optimized", "--- linearized"]


def output(level: int, **environment: str) -> list[str]:
    return run_script(SCRIPT, DEBUG=str(level), **environment)[0].splitlines()


def test_level_0_is_silent() -> None:
    lines = output(0)
    assert len(lines) == 1 and lines[0].startswith("answer")


def test_level_1_ends_each_realize_with_kernels_and_time() -> None:
    lines = output(1)
    assert [bool(re.fullmatch(TIME, line)) for line in lines] == [True, True, False]
    assert lines[0].startswith("2 kernels, ") and lines[1].startswith("1 kernel, ")


@pytest.mark.parametrize("device", ["CPU", "CLANG", "PYTHON"])
def test_level_2_adds_a_line_per_kernel(device: str) -> None:
    lines = output(2, DEV=device)
    rows = [m.groups() for line in lines if (m := KERNEL.match(line))]
    assert [(r[0], r[1]) for r in rows] == [(device, "0"), (device, "1"), (device, "2")], "device and running number"
    assert [r[6] for r in rows] == ["script.py:5", "script.py:5", "script.py:7"], "the user's line"
    shapes, _, moves = rows[0][7].partition("  ")
    assert shapes == "float32[2, 2] float32[2, 3] float32[3, 2]", "results first, then what is read"
    assert device == "PYTHON" or "tasks(count=1)" in moves, "and how it was optimized"
    assert sum(bool(re.fullmatch(TIME, line)) for line in lines) == 2, "levels are cumulative"
    assert len(lines) == 3 + 2 + 1


def test_level_3_adds_readable_source() -> None:
    for device in ("CPU", "CLANG"):
        text = "\n".join(output(3, DEV=device))
        assert text.count("void **args") == 3 and len(KERNEL.findall(text)) <= 3 and re.search(TIME, text)
        assert "define void" not in text, "C, also where LLVM compiles"
    loops = "\n".join(output(3, DEV="PYTHON"))
    assert "a0[" in loops and "void" not in loops, "what runs there is the loop tree itself"


@pytest.mark.parametrize("device", ["CPU", "CLANG", "PYTHON"])
def test_level_4_labels_every_pass(device: str) -> None:
    lines = output(4, DEV=device)
    labels = [line for line in lines if line.startswith("---")]
    plain = [label.split(":")[0] for label in labels]
    assert plain == LABELS + LABELS[2:] + LABELS, "two kernels in the first realize, one in the second; each pass once"
    text = "\n".join(lines)
    assert re.search(TIME, text) and any(KERNEL.match(line) for line in lines)
    first, folded = text.index("--- initial"), text.index("--- folded")
    assert all(op in text[first:folded] for op in ("PARAM", "EXPAND", "MUL", "SUM", "FORMULA", "SINK"))
    assert all(op in text[folded:] for op in ("AMAX", "EXP2")), "a formula is written out by the first pass"
    linear = text[text.index("--- linearized"):]
    assert all(word in linear for word in ("FOR", "LOAD", "STORE", "END"))
    assert re.search(r"--- optimized: \S+", text), "the moves are named"


def test_level_4_shows_a_folded_graph_once_where_windows_have_gradients() -> None:
    script = """
        from glassgrad import Tensor
        x = Tensor.ones(1, 2, 8, 8).contiguous().realize()
        x.max_pool2d(2).sum().backward()
        x.grad.realize()
    """
    labels = [line for line in run_script(script, DEBUG="4")[0].splitlines() if line.startswith("--- ")]
    assert [label for label in labels if label in LABELS[:2]][-2:] == LABELS[:2]
    assert labels.count("--- initial") == labels.count("--- folded")


def test_noopt_says_so_and_leaves_the_algebra_out() -> None:
    script = """
        from glassgrad import Tensor
        x = Tensor([1.0, 2.0])
        ((x * 1 + 0) + 2).realize()
    """
    optimized = run_script(script, DEBUG="4")[0]
    plain = run_script(script, DEBUG="4", NOOPT="1")[0]
    assert "--- folded" in optimized and "lane" in optimized
    assert "--- folded" not in plain and "--- optimized: as it was" in plain
    assert "lane" not in plain and "task" not in plain.partition("--- optimized")[2].partition("--- linearized")[0]
    assert " MUL " in plain and " MUL " not in optimized.partition("--- folded")[2].partition("---")[0]


def test_the_same_numbers_on_every_device_and_plain() -> None:
    answers = {name: run_script(SCRIPT, **environment)[0] for name, environment in {
        "CPU": {}, "CLANG": {"CLANG": "1"}, "PYTHON": {"PYTHON": "1"}, "plain": {"NOOPT": "1"},
        "checked": {"CHECK": "1"}, "narrow vectors": {"CPU_FEATURES": "-avx512f"}}.items()}
    values = {name: np.array(eval(text.removeprefix("answer "))) for name, text in answers.items()}
    for name, value in values.items():
        np.testing.assert_allclose(value, values["CPU"], rtol=1e-6, err_msg=name)


def test_settings_in_the_script_count_after_the_import() -> None:
    script = """
        import os
        from glassgrad import Tensor
        (Tensor([1.0]) + 1).realize()
        os.environ["DEBUG"] = "1"
        (Tensor([1.0]) + 2).realize()
        os.environ["DEBUG"] = "0"
        (Tensor([1.0]) + 3).realize()
        print(Tensor([1.0]).device)
        os.environ["PYTHON"] = "1"
        print(Tensor([1.0]).device)
    """
    lines = run_script(script)[0].splitlines()
    assert len(lines) == 3 and re.fullmatch(TIME, lines[0]) and lines[1:] == ["CPU", "PYTHON"]


# -- CHECK ---------------------------------------------------------------------------------------------------
def test_check_passes_what_is_right() -> None:
    with Context(CHECK=1):
        x = Tensor.rand(13, 17)
        assert ((x.softmax() @ x.T).relu() + x.sum(1)).numpy().shape == (13, 13)
        assert Tensor([1, 2, 3]).cumsum(0).tolist() == [1, 3, 6]


def test_check_knows_what_rounding_decides() -> None:
    """Sums in another order differ in the last place: their bits, and float16 made of them, may be their neighbours."""
    numbers = np.random.default_rng(0)
    rows = numbers.uniform(-2, 2, (300, 37))
    with Context(CHECK=1):
        (Tensor(rows).sum(1) / 37).bitcast("uint64").realize()
        x, w = (Tensor(numbers.uniform(-1, 1, (64, 64)), dtype="float16") for _ in range(2))
        ((x.float() @ w.float()).cast("float16") * 0.3).float().realize()


def test_check_still_checks_comparisons_of_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    from glassgrad.engine.check import compare
    wrong = compare._written
    monkeypatch.setattr(compare, "_written", lambda *args: ~wrong(*args))
    with Context(CHECK=1), pytest.raises(Bug, match="a kernel differs from the interpreter"):
        (Tensor(np.arange(12.0).reshape(3, 4)).sum(1) > 7).realize()



def _spoil(phases: list[Any]) -> None:
    """Make every result of a kernel one too large."""
    for phase in phases:
        for s in walk(phase.body):
            if isinstance(s, Store) and s.memory.op is o.PARAM:
                s.value = s.value + 1.0


@pytest.mark.parametrize("spoiled", ["lower", "optimize", "unroll_and_jam"])
def test_check_names_the_guilty_pass(spoiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One pass goes wrong; CHECK names it, the place, both values, the user's line and the graph."""
    def wrong(right: Pass) -> Pass:
        def run(work: pipeline.KernelWork) -> None:
            right.run(work)
            _spoil(work.phases or work.kernel.phases)
        return replace(right, run=run)

    monkeypatch.setattr(pipeline, "PASSES", [wrong(p) if p.name == spoiled else p for p in pipeline.PASSES])
    monkeypatch.setenv("CACHE", "0")
    monkeypatch.setattr(engine._known, "schedules", {})      # keep the spoiled kernel out of later tests
    monkeypatch.setattr(Device["CPU"], "_programs", {})
    x = Tensor([1.0, 2.0, 3.0], device="CPU")
    y = x * 3.0 + 0.125                                                # broken here
    with Context(CHECK=1), pytest.raises(Bug) as caught:
        y.realize()
    message = str(caught.value)
    culprit = f"the pass {spoiled} is wrong" if spoiled != "unroll_and_jam" else \
        "the loop tree is right, so render, the compiler or the launch is wrong"
    assert f"CHECK: {culprit}: a kernel differs from the interpreter at (0,) of result 0: got 4.125, " \
           "expected 3.125" in message
    line = next(i for i, text in enumerate(open(__file__), 1) if text.rstrip().endswith("# broken here"))
    assert f"{__file__}:{line}" in message
    assert "MUL" in message and "STORE" in message
    assert y.tolist() == [4.125, 7.125, 10.125], "without CHECK there is no error"


def test_check_checks_every_call_of_a_jitted_function(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Any] = []
    right = compare.check_kernel
    monkeypatch.setattr(compare, "check_kernel", lambda *args: (checked.append(args[0]), right(*args)))

    @TinyJit
    def double(x: Tensor) -> Tensor:
        return x * 2

    def doubled(first: int) -> list[float]:
        return [double(Tensor([float(first + i)])).item() for i in range(4)]

    assert doubled(0) == [0.0, 2.0, 4.0, 6.0] and double.captured and not checked
    with Context(CHECK=1):
        assert doubled(4) == [8.0, 10.0, 12.0, 14.0] and len(checked) == 4
    assert doubled(8) == [16.0, 18.0, 20.0, 22.0] and len(checked) == 4


# -- counters ------------------------------------------------------------------------------------------------
def test_counters_count_kernels_operations_bytes_and_time() -> None:
    x, y = Tensor.rand(100, 10).realize(), Tensor.rand(100, 10).realize()
    GlobalCounters.reset()
    assert (GlobalCounters.kernel_count, GlobalCounters.global_ops, GlobalCounters.global_mem) == (0, 0, 0)
    assert GlobalCounters.time_sum_s == 0.0 and GlobalCounters.schedules == 0
    (x + y).realize()
    assert GlobalCounters.kernel_count == 1
    assert GlobalCounters.global_ops == 1000
    assert GlobalCounters.global_mem == 3 * 4000
    assert 0 < GlobalCounters.time_sum_s < 10
    (x + y).sum(1).realize()
    assert GlobalCounters.kernel_count == 2
    assert GlobalCounters.global_ops == 3000, "an add and a sum over all elements"


def test_a_matmul_counts_two_operations_per_product() -> None:
    x, y = Tensor.rand(8, 16).realize(), Tensor.rand(16, 4).realize()
    GlobalCounters.reset()
    (x @ y).realize()
    assert GlobalCounters.global_ops == 2 * 8 * 16 * 4


def test_bytes_are_those_that_are_read() -> None:
    """A look-up reads the rows it is asked for, a slice its part; the same memory read twice counts once."""
    table, rows = Tensor.rand(10_000, 16).realize(), Tensor([3, 5, 7]).realize()
    with Context(CHECK_INDEX=0):
        [item] = (table[rows] + 1).schedule()
    assert cost(item.ast)[1] == (3 + 3) * 16 * 4 + 3 * rows.dtype.itemsize
    [item] = (table[::100] * 2).schedule()
    assert cost(item.ast)[1] == 2 * 100 * 16 * 4
    [item] = (table + table.flip(0)).schedule()
    assert cost(item.ast)[1] == 2 * table.numel() * 4
