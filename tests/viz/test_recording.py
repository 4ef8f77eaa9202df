"""What is recorded of a program: graphs with lines and calls, kernels with reasons and times, passes, memory."""

from __future__ import annotations

import gc
import json
import re
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from recorded import data_of, page_of, path_of
from scripts import run_script

from glassgrad import Tensor
from glassgrad.compiler.pipeline import PASSES
from glassgrad.engine.observer import observed_by
from glassgrad.engine.realize import forgotten_schedules
from glassgrad.viz.html_file import to_json
from glassgrad.viz.kernel_passes import kernel_texts
from glassgrad.viz.page_data import page_data
from glassgrad.viz.recorder import Recorder

pytestmark = pytest.mark.only_on("CPU", reason="it records kernels and passes of the CPU device")
OP, KIND, DTYPE, SHAPE, SOURCES, ARGUMENT, LINE, CALL, BACKWARD = range(9)


def main_graph(data: dict[str, Any]) -> dict[str, Any]:
    return max(data["graphs"], key=lambda graph: len(graph["nodes"]))


def text_of(data: dict[str, Any], line: int) -> str:
    file, number = data["lines"][line]
    return data["files"][file]["text"].split("\n")[number - 1].strip()


# -- lines and calls -----------------------------------------------------------------------------------------
def test_nodes_have_the_users_line(training: dict[str, Any]) -> None:
    nodes = main_graph(training)["nodes"]
    lines = {text_of(training, n[LINE]) for n in nodes if n[LINE] >= 0}
    assert {"return self.second(self.first(x).relu())", "loss.backward()", "optimizer.step()"} <= lines


def test_nodes_have_the_layer_they_were_made_in(training: dict[str, Any]) -> None:
    paths = {"/".join(path_of(training, n[CALL])) for n in main_graph(training)["nodes"]}
    assert any(path.startswith("step/Net/first: Linear") for path in paths), paths
    assert any(path.startswith("step/SGD.step") for path in paths), paths


def test_a_gradient_belongs_to_the_layer_it_is_of(training: dict[str, Any]) -> None:
    backward = [n for n in main_graph(training)["nodes"] if n[BACKWARD]]
    assert backward and {text_of(training, n[LINE]) for n in backward} == {"loss.backward()"}
    assert any("second: Linear" in path_of(training, n[CALL]) for n in backward)


def test_sources_come_before_their_readers(training: dict[str, Any]) -> None:
    for graph in training["graphs"]:
        for rows in (graph["nodes"], graph["written"]):
            assert all(s < i for i, n in enumerate(rows) for s in n[SOURCES])


def test_calls_are_noted_until_nothing_new_comes() -> None:
    """A loop without the jit makes nodes for ever: when they lead to nothing new, their frames are no longer read."""
    recorder, x = Recorder(), Tensor.rand(2).realize()
    recorder.watch_calls()
    try:
        with forgotten_schedules(), observed_by(recorder):
            (Tensor.rand(3, 1, 7).realize() * 5.5 - 0.5).realize()
            after, limit = recorder.calls.noted, recorder.calls.most_nodes
            recorder.calls.noted = limit
            place = (x * 2.25).uop.place
            assert len(place) == 3 and place[2] is None
            (Tensor.rand(3, 1, 8).realize() * 5.5 - 0.25).realize()          # a schedule that is new
            place = (x * 3.25).uop.place
            assert place[2] is not None and place[2].tree is recorder.calls
            assert after < limit == 30_000
    finally:
        recorder.stop()


# -- kernels -------------------------------------------------------------------------------------------------
def test_every_kernel_has_a_reason_a_verdict_and_nodes(training: dict[str, Any]) -> None:
    for kernel in training["kernels"]:
        assert kernel["reasons"] and kernel["why"] and kernel["tries"] and kernel["nodes"]
        assert kernel["bound"] in ("memory", "arithmetic", "launch") and kernel["share"] >= 0


def test_runs_of_a_jitted_step_are_added_up(training: dict[str, Any]) -> None:
    [step] = [g for g in training["groups"] if g["replay"]]
    graph = main_graph(training)
    first = training["kernels"][graph["kernels"][0]]
    assert step["runs"] >= 3 and first["runs"] == 6 and first["ns"] > 0
    assert sum(k["ns"] for k in training["kernels"]) <= training["totals"]["run"] <= training["totals"]["wall"]


def test_a_kernel_is_listed_with_the_operations_it_fuses() -> None:
    x = Tensor.rand(32, 32).realize()
    recorder = Recorder()
    with observed_by(recorder):
        ((x + 1).relu() * 2).sum().realize()
    [kernel] = page_data(recorder, measure=False)["kernels"]
    graph = page_data(recorder, measure=False)["graphs"][0]
    assert {graph["nodes"][n][OP] for n in kernel["nodes"]} >= {"ADD", "MAX", "MUL", "SUM"}
    assert kernel["reasons"] == ("an output",)


# -- passes --------------------------------------------------------------------------------------------------
def test_every_pass_of_the_pipeline_appears(training: dict[str, Any]) -> None:
    shown = {p["name"] for p in main_graph(training)["passes"]}
    shown |= {p["name"] for program in training["programs"] for p in program["passes"]}
    elsewhere = ("plain_loops", "access_bounds", "loop_iteration_limit", "joined_remainders", "fewer_products",
                 "long_softmax", "flat_scatters", "conv_input_gradient", "recurrent_steps")
    assert {p.name for p in PASSES if p.name not in elsewhere} <= shown


def test_a_pass_that_is_added_appears(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = PASSES[0].__class__("nothing_new", "kernel", "Does nothing.", "here.py", lambda work: None, PASSES[0].when)
    at = [p.name for p in PASSES].index("optimize")
    monkeypatch.setattr("glassgrad.compiler.pipeline.PASSES", [*PASSES[:at], extra, *PASSES[at:]])
    [item] = (Tensor.rand(8).realize() + 1).schedule()
    passes = {p.name: p for p in kernel_texts(item.ast, "CPU", assembly=False).passes}
    assert "nothing_new" in passes and passes["nothing_new"].text is None
    assert passes["optimize"].text


def test_rules_are_listed_with_their_reason() -> None:
    recorder = Recorder()
    from glassgrad.compiler.graph.rules.rewrite import note_rules
    note_rules(recorder.applied)
    try:
        with observed_by(recorder):
            (Tensor.rand(7, 3).realize() * 1 + 0).exp().log().mul(2).realize()
    finally:
        note_rules(None)
    fold = next(p for p in page_data(recorder, measure=False)["graphs"][-1]["passes"] if p["name"] == "fold")
    assert fold["rules"] and all(times >= 1 and why for _, times, why, *_ in fold["rules"])


def test_lines_of_the_loop_tree_lead_to_the_users_line(training: dict[str, Any]) -> None:
    linked = {text_of(training, line) for program in training["programs"] for p in program["passes"]
              if p["name"] == "lower" for row in p["links"] for line in row}
    assert "return self.second(self.first(x).relu())" in linked


def test_source_lines_lead_to_the_loop_tree(training: dict[str, Any]) -> None:
    assert any(rows for program in training["programs"] for rows in program["source_links"])
    assert any("ret" in program["assembly"] for program in training["programs"])


# -- memory --------------------------------------------------------------------------------------------------
def test_the_peak_lists_what_was_alive(training: dict[str, Any]) -> None:
    memory = training["memory"]
    assert memory["peak"] >= sum(v[0] for v in memory["values"] if not v[4]) > 0
    assert [32, 64] in [v[2] for v in memory["values"]]
    assert all(nbytes <= memory["peak"] for _, nbytes in memory["samples"])


def test_recording_keeps_no_tensor_alive() -> None:
    recorder = Recorder()
    from glassgrad import GlobalCounters
    gc.collect()                     # what earlier tests left in cycles is not freed in between
    with observed_by(recorder):
        before = GlobalCounters.mem_used
        x = (Tensor.rand(256, 256) + 1).realize()
        y = (x * 2).realize()
        assert GlobalCounters.mem_used - before == 2 * 4 * 256 * 256
        del x, y
        assert GlobalCounters.mem_used == before


# -- edges ---------------------------------------------------------------------------------------------------
def test_a_program_that_runs_nothing(tmp_path: Path) -> None:
    data = data_of(page_of("import glassgrad", tmp_path / "out.html"))
    assert data["kernels"] == [] and data["graphs"] == [] and data["timeline"] == []


def test_text_cannot_leave_its_script_element(tmp_path: Path) -> None:
    source = 'from glassgrad import Tensor\n(Tensor([1.0]) + 1).realize()  # </script><script>alert(1)</script> ü\n'
    page = page_of(source, tmp_path / "out.html")
    assert "<script>alert" not in page and page.count("</script>") == 2
    assert "</script><script>alert(1)</script> ü" in data_of(page)["files"][0]["text"]
    assert json.loads(to_json({"</script>": "\u2028<!--"})) == {"</script>": "\u2028<!--"}


def test_a_source_file_that_is_gone() -> None:
    scope: dict[str, Any] = {"Tensor": Tensor}
    recorder = Recorder()
    with forgotten_schedules(), observed_by(recorder):        # a schedule that is known has the line of its first use
        exec(compile("(Tensor([1.0, 2.0]) + 3).realize()", "/nowhere/gone.py", "exec"), scope)
    data = page_data(recorder, measure=False)
    assert [f["text"] for f in data["files"] if f["path"] == "nowhere/gone.py"] == [None]


def test_a_file_that_cannot_be_written_is_said_and_the_page_goes_elsewhere(tmp_path: Path) -> None:
    out, said = run_script("from glassgrad import Tensor; print(Tensor([1.0]).add(1).tolist())",
                           VIZ=str(tmp_path / "no" / "out.html"), TMPDIR=str(tmp_path))
    problem = (f"the visualizer's page cannot be written\n  given:    VIZ={tmp_path}/no/out.html: "
               "No such file or directory\n  expected: a file in a folder that exists and can be written to\n"
               "  fix:      choose another path, such as VIZ=out.html\n")
    assert out == "[2.0]\n" and said.startswith(problem)
    found = re.fullmatch(r"VIZ: wrote (\S+) \(.* MB, .* s\): open it in a browser\n", said[len(problem):])
    assert found is not None and len(data_of(Path(found[1]).read_text(encoding="utf-8"))["kernels"]) == 1


def test_viz_set_inside_the_script_counts(tmp_path: Path) -> None:
    out = tmp_path / "late.html"
    run_script(f"""
        import os
        from glassgrad import Tensor
        os.environ["VIZ"] = {str(out)!r}
        (Tensor([1.0]) + 1).realize()
    """)
    assert len(data_of(out.read_text())["kernels"]) == 1


def test_a_long_run_stays_small(tmp_path: Path) -> None:
    page = page_of("""
        from glassgrad import Tensor, TinyJit
        x = Tensor.rand(64, 64).realize()
        step = TinyJit(lambda a: (a @ x).relu().sum().realize())
        for _ in range(10_000):
            step(x)
    """, tmp_path / "out.html")
    data = data_of(page)
    assert len(page) < 10e6 and max(k["runs"] for k in data["kernels"]) == 10_000
    assert len(data["timeline"]) <= 12_000


def test_a_recorded_run_costs_microseconds() -> None:
    """Ten thousand steps of a millisecond become 5% slower if each costs 50 us more."""
    x = Tensor.rand(64, 64).realize()
    recorder = Recorder()
    with observed_by(recorder):
        (x @ x).relu().realize()
    ready = recorder.groups[0]                 # it has the items of what ran
    for _ in range(100):
        recorder.ran(ready, (0, 1000), lambda: [1000])
    taken = []
    for _ in range(10):                                   # the best of a few: other programs run too
        start = process_time()
        for _ in range(1_000):
            recorder.ran(ready, (0, 1000), lambda: [1000])
        taken.append((process_time() - start) / 1_000)
    assert min(taken) < 25e-6
