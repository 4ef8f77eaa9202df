"""Nodes, schedules, kernels and explanations draw themselves in notebooks; errors of explain are whole sentences."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from glassgrad import Device, InputError, Tensor, TinyJit, explain, profile
from glassgrad.conformance.peak_rates import Peak
from glassgrad.viz.advice import judge
from glassgrad.viz.bottlenecks import explained


def texts(svg: str | None) -> list[str]:
    """The words of a drawing, which must be well-formed."""
    assert svg is not None
    root = ElementTree.fromstring(svg)
    return ["".join(e.itertext()) for e in root.iter("{http://www.w3.org/2000/svg}text")]


def test_a_node_draws_its_graph() -> None:
    words = texts((Tensor([1.0, 2.0]) + 3).relu().uop._repr_svg_())
    assert {"ADD", "MAX", "BUFFER", "CONST 3.0"} <= set(words)


def test_a_large_graph_is_drawn_from_its_results_down() -> None:
    x = Tensor.rand(2).realize()
    for number in range(300):
        x = x * (number + 2.5)
    words = texts(x.uop._repr_svg_())
    assert any(word.endswith("more nodes") for word in words) and words.count("MUL") < 160


def test_a_schedule_draws_kernels_with_reasons() -> None:
    x = Tensor.rand(64, 64).realize()
    kernels = (x @ x).softmax().sum().schedule()
    words = texts(kernels._repr_svg_())
    assert "an output" in words and any(word.startswith("kernel 0:") for word in words)
    assert "SUM" in texts(kernels[0]._repr_svg_())
    assert x.schedule()._repr_svg_() is None and x.schedule() == []


@pytest.mark.only_on("CPU", reason="it shows the CPU's loops")
def test_a_kernel_draws_its_loops() -> None:
    [item] = (Tensor.rand(64, 64).realize() @ Tensor.rand(64, 64).realize()).schedule()
    words = texts(Device["CPU"].loop_tree(item.ast)._repr_svg_())
    assert any(word.startswith("loop ") for word in words) and any(word.startswith("tile ") for word in words)


# -- explain -------------------------------------------------------------------------------------------------
@pytest.mark.only_on("CPU", reason="it shows the default device's name")
def test_an_explanation_names_the_line_and_the_reason() -> None:
    x = Tensor.rand(128, 128).realize()
    lazy = (x @ x).relu()           # the line that is named
    found = explain(lazy)
    text = str(found)
    assert text.startswith("1 kernel, ") and "CPU at best, measured: " in text
    assert "(x @ x).relu()           # the line that is named" in text
    assert "why     bound by " in text and "try     " in text and "stored  an output" in text
    assert lazy.uop.op.name != "BUFFER", "it stays lazy"
    assert found._repr_html_().count("<tr>") == 2 and "stored: an output" in found._repr_html_()


def test_a_jitted_function_is_explained_by_calling_it(tmp_path: Path) -> None:
    x = Tensor.rand(32, 32).realize()
    called = []

    @TinyJit
    def step(a: Tensor) -> Tensor:
        return (a @ x).sum()

    def counted(a: Tensor) -> Tensor:
        called.append(1)
        return step(a)

    found = explain(counted, x)
    assert len(called) == 6 and found.kernels and found.kernels[0]["runs"] == 6
    found.save(tmp_path / "step.html")
    assert (tmp_path / "step.html").read_text().startswith("<!doctype html>")


def test_markup_in_an_explanation_is_text() -> None:
    with explained() as found:
        (Tensor.rand(3) + 1).realize()  # <b>bold</b>
    assert "&lt;b&gt;bold&lt;/b&gt;" in found._repr_html_() and "<b>bold" not in found._repr_html_()


@pytest.mark.parametrize("wrong, said", [
    (lambda: explain(3), """\
explain takes a tensor or a function
  given:    int
  expected: a Tensor that is not realized, or a callable
  fix:      pass the function, not its result"""),
    (lambda: explain(Tensor([1.0]) + 1, 2), """\
a tensor is explained without arguments
  given:    explain(tensor, ...) with 1 more
  expected: explain(tensor), or explain(function, *arguments)
  fix:      leave the others away""")])
def test_what_cannot_be_explained(wrong: object, said: str) -> None:
    with pytest.raises(InputError) as error:
        wrong()  # type: ignore[operator]
    assert str(error.value).startswith(said)


def test_a_tensor_in_memory_cannot_be_explained() -> None:
    with pytest.raises(InputError, match="the tensor is in memory already: nothing is left to run"):
        explain(Tensor([1.0, 2.0]).realize())


def test_nothing_ran() -> None:
    with explained() as found:
        pass
    assert str(found) == "no kernel ran" and "<tbody></tbody>" in found._repr_html_()


# -- profile -------------------------------------------------------------------------------------------------
def test_a_profile_has_all_kinds_of_time_and_exports_a_trace(tmp_path: Path) -> None:
    with profile() as ran:
        (Tensor.rand(33, 35).realize() @ Tensor.rand(35, 31).realize()).realize()
    parts = ran.parts()
    assert list(parts) == ["Python", "scheduling", "compiling", "launches", "kernels"]
    assert all(seconds >= 0 for seconds in parts.values()) and ran.kernels == 3
    assert {"Python", "scheduling", "compiling", "launches", "kernels"} <= set(texts(ran._repr_svg_()))
    ran.plot(tmp_path / "time.svg")
    assert (tmp_path / "time.svg").read_text(encoding="utf-8") == ran._repr_svg_()
    ran.export(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    named = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"}
    assert {span["cat"] for span in spans} == {"schedule", "compile", "launch", "kernel"}
    assert all(span["ts"] >= 0 and span["dur"] >= 0 and span["tid"] in named for span in spans)
    for thread in named:                  # on one thread a span ends before the next begins
        ends = sorted((span["ts"], span["ts"] + span["dur"]) for span in spans if span["tid"] == thread)
        assert all(end <= start + 1e-3 for (_, end), (start, _) in zip(ends, ends[1:]))


def test_profiles_can_be_nested() -> None:
    with profile() as outer:
        (Tensor([1.0]) + 1).realize()
        with profile() as inner:
            (Tensor([1.0]) + 2).realize()
    assert outer.kernels == 2 and inner.kernels == 1


def test_a_jitted_replay_is_timed_kernel_by_kernel() -> None:
    x = Tensor.rand(16, 16).realize()
    step = TinyJit(lambda a: (a @ x).softmax().sum().realize())
    for _ in range(3):
        step(x)
    with profile() as ran:
        for _ in range(5):
            step(x)
    assert {row.times for row in ran.rows} == {5} and all(row.nanoseconds > 0 for row in ran.rows)


# -- advice --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("given, tried", [
    ({"contraction": True, "columns": 250}, "its result has 250 columns: a multiple of 16 fills the vectors"),
    ({"contraction": True, "columns": 256}, "BEAM=2 searches for faster tiles, once, and keeps what it finds"),
    ({"contraction": True, "columns": 256, "tuned": True}, "fewer operations, or a shorter float type"),
    ({"columns": 256}, "exp, log, sin and division take many instructions each: a cheaper formula would help")])
def test_what_to_try_fits_the_kernel(given: dict[str, Any], tried: str) -> None:
    slow = judge("k", 10**9, 10**6, 10**8, Peak(100.0, 10.0), **given)
    assert slow.bound == "arithmetic" and slow.share == pytest.approx(0.1) and slow.tries[-1] == tried


def test_what_bounds_a_kernel() -> None:
    peak = Peak(100.0, 10.0)
    assert judge("k", 10**6, 10**9, 2 * 10**8, peak).bound == "memory"
    assert judge("k", 100, 100, 5_000, peak).bound == "launch"
    assert judge("copy", 0, 10**9, 10**9, peak).bound == "copy"
    stored = judge("k", 10**6, 10**9, 2 * 10**8, peak, ("used by several kernels",)).tries[0]
    assert stored.startswith("its result goes to memory because: used by several kernels.")
