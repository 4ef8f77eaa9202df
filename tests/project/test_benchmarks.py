"""The harness of ./dev bench: its table, its processes, its comparisons and its page. Nothing here is timed."""

from __future__ import annotations

import doctest
import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks import __main__ as command, gpu_all, machine, models, plot, probes, reasons, report, startup, workloads
from benchmarks.barrier import measure_barrier
from benchmarks.dispatch import measure_dispatch
from benchmarks.frameworks import FRAMEWORKS, OURS, Framework
from benchmarks.measure import Row, Timing, compare, measure, not_yet
from benchmarks.opening import measure_opening
from benchmarks.peers import Peer, PeerFailure, TimedOut, environment
from benchmarks.two_trees import Compared, by_group, main as two_trees
from benchmarks.unjitted import bytecodes, measure_unjitted
from benchmarks.worker import digest, one_line
from benchmarks.workloads_lazy import Lazy
from glassgrad import Context

# ---- the command line

def test_list_shows_every_workload_once(capsys):
    assert command.main(["--list"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == [*workloads.TABLE, *startup.STARTS] and len(set(names)) == len(names)


def test_only_takes_names_groups_and_patterns(capsys):
    options = command.parse(["--only", "order,matmul-25*,start-cnn", "--peers", "jax"])
    assert options.names == ["matmul-256", "sort", "topk", "cumsum", "start-cnn"]
    assert options.frameworks == [OURS, "jax"] and (options.rounds, options.seconds) == (7, 0.25)
    assert command.parse(["--only", "start"]).names == list(startup.STARTS)


def test_quick_is_a_part_with_fewer_rounds():
    options = command.parse(["--quick"])
    assert set(options.names) == set(workloads.QUICK) and options.rounds == 2


@pytest.mark.parametrize("arguments, complaint", [
    (["--only", "matmull"], "no workload is called 'matmull'; --list shows them"),
    (["--peers", "numpy"], "there is no peer 'numpy'; there are torch, jax, tinygrad")])
def test_a_wrong_name_is_refused(arguments, complaint, capsys):
    with pytest.raises(SystemExit) as refused:
        command.parse(arguments)
    assert complaint in str(refused.value) + capsys.readouterr().err


# ---- the table

def test_every_framework_can_be_asked_for_every_family():
    families = {workload.family for workload in workloads.TABLE.values()}
    assert all(hasattr(Lazy, family) for family in families)
    for name in ("torch", "jax"):
        try:
            module = importlib.import_module(FRAMEWORKS[name].module)
        except ImportError:
            continue
        assert families <= set(module.BUILDERS), name


def test_workloads_are_what_they_say():
    table = workloads.TABLE
    assert all(w.flops + w.reads + w.writes > 0 and set(w.goals) <= set(FRAMEWORKS) - {OURS} for w in table.values())
    assert set(workloads.QUICK) <= {*table, *startup.STARTS}
    assert {w.group for w in table.values()} == set(report.GROUPS)
    assert table["matmul-256"].flops == 2 * 256**3
    # 1.81 billion multiply-adds: He et al. 2015, table 1, and the classifier
    assert table["resnet18-inference"].flops == pytest.approx(2 * 1.81e9, rel=0.01)
    assert table["conv-3x3-56"].flops == 2 * 8 * 64 * 56 * 56 * 64 * 9


@pytest.mark.parametrize("model, shape, count", [
    ("mlp", (64, 784), 101_770), ("resnet18", (8, 3, 224, 224), 11_689_512), ("gpt2_block", (4, 256, 768), 7_087_872)])
def test_networks_have_the_parameters_they_should(model, shape, count):
    shapes = models.Shapes()
    models.MODELS[model](shapes, shape)
    assert sum(int(np.prod(size)) for size in shapes.parameters.values()) == count


def test_data_is_the_same_every_time():
    first, second = (workloads.TABLE["conv-3x3-32-dw"].data() for _ in range(2))
    assert list(first) == ["x", "w", "g"] and all((first[name] == second[name]).all() for name in first)
    assert first["x"].shape == (128, 32, 10, 10) and first["g"].shape == (128, 64, 8, 8)
    assert first["x"].dtype == np.float32
    assert len(np.unique(workloads.TABLE["sort"].data()["x"])) == 1_000_000


@pytest.mark.parametrize("module", [workloads, plot, models])
def test_examples_in_docstrings(module):
    assert doctest.testmod(module).failed == 0


def test_both_frameworks_train_the_same_network(torch):
    """The first three losses of an MLP agree: data, initial values, network, gradients and optimizer are the same."""
    losses = {}
    for name in (OURS, "torch"):
        module = importlib.import_module(FRAMEWORKS[name].module)
        step = module.build(workloads.TABLE["mlp-step"], workloads.TABLE["mlp-step"].data())
        losses[name] = [float(module.to_arrays(step())[0]) for _ in range(3)]
    assert losses[OURS] == pytest.approx(losses["torch"], rel=1e-4) and losses[OURS][2] < losses[OURS][0]


# ---- comparing

def test_digests_compare_shape_values_and_places_without_a_value():
    x = np.linspace(-3, 5, 100_000, dtype=np.float32).reshape(100, 1000)
    same = digest([x, np.array(2.0)])
    assert compare(digest([x + np.float32(1e-5), np.array(2.0)]), same, 1e-4) == ""
    assert compare(digest([x * 1.01, np.array(2.0)]), same, 1e-3) == "off by 1.0e-02 of the largest value"
    assert compare(digest([x.T, np.array(2.0)]), same, 1e-3) == "shape (1000, 100) instead of (100, 1000)"
    assert compare(digest([x]), same, 1e-3) == "1 results instead of 2"
    broken = x.copy()
    broken[0, 0] = np.nan
    assert compare(digest([broken, np.array(2.0)]), same, 1e-3) == "nan or infinity in other places"
    assert compare(digest([np.zeros(0)]), digest([np.zeros(0)]), 0.0) == ""


def test_one_wrong_value_between_the_samples_is_noticed():
    x = np.ones(1_000_000, np.float32)
    wrong = x.copy()
    wrong[7] = 1e6
    assert compare(digest([wrong]), digest([x]), 1e-3)


def test_the_first_line_of_an_error_that_says_something():
    assert one_line(ValueError("\n  shapes differ\n  given: 3")) == "ValueError: shapes differ"
    assert one_line(KeyError()) == "KeyError"


# ---- processes

FAKES = {
    "good": "    x = np.arange(6.0)\n    return lambda: x * 2",
    "wrong": "    x = np.arange(6.0)\n    return lambda: x * 3",
    "loud": "    x = np.arange(6.0)\n    return lambda: print('not an answer') or x * 2",
    "missing": "    raise AttributeError(\"'Tensor' object has no attribute 'sort'\\nand more\")",
    "hanging": "    import time\n    time.sleep(1000)",
    "dying": "    import os\n    os.abort()",
}


@pytest.fixture
def fakes(tmp_path):
    """Makes peers whose modules are written here; ends them afterwards."""
    peers: list[Peer] = []

    def make(name: str, kind: str) -> Peer:
        (tmp_path / f"fake_{kind}.py").write_text(
            f"import numpy as np\nVERSION = '{kind} 1.0'\ndef build(workload, data):\n{FAKES[kind]}\n"
            "def to_arrays(result): return [result]\n")
        variables = {**environment(tmp_path / "caches", 1), "PYTHONPATH": str(tmp_path)}
        peers.append(Peer(Framework(name, name, f"fake_{kind}", kind), variables, tmp_path / f"{name}.log"))
        return peers[-1]

    yield make
    for peer in peers:
        peer.end()


def run_fakes(fakes, folder: Path, limit: float = 60.0, **kinds: str) -> Row:
    peers = {name: fakes(name, kind) for name, kind in kinds.items()}
    return measure("cumsum", peers, folder, tolerance=1e-3, rounds=2, seconds=0.001, limit=limit)


def test_two_processes_take_turns_and_agree(fakes, tmp_path):
    row = run_fakes(fakes, tmp_path, glassgrad="good", torch="loud")
    ours, theirs = row.timings["glassgrad"], row.timings["torch"]
    assert ours.status == theirs.status == "ok" and ours.checked and theirs.checked
    assert ours.calls >= 2 and theirs.calls >= 2 and 0 < ours.low <= ours.median <= ours.high
    assert theirs.ratio is not None and theirs.ratio > 0 and ours.ratio is None


def test_one_that_fails_does_not_stop_the_rest(fakes, tmp_path):
    row = run_fakes(fakes, tmp_path, glassgrad="missing", torch="good", jax="wrong", tinygrad="dying")
    status = {name: timing.status for name, timing in row.timings.items()}
    assert status["glassgrad"] == "not yet: AttributeError: 'Tensor' object has no attribute 'sort'"
    assert status["torch"] == "ok" and row.timings["torch"].calls >= 2 and row.timings["torch"].ratio is None
    assert status["jax"] == "wrong result: off by 5.0e-01 of the largest value (against torch)"
    assert status["tinygrad"].startswith("failed: its process ended with SIGABRT")
    assert row.timings["jax"].calls == 0


def test_a_peer_that_lacks_something_failed(fakes, tmp_path):
    row = run_fakes(fakes, tmp_path, torch="missing")
    assert row.timings["torch"].status == "failed: AttributeError: 'Tensor' object has no attribute 'sort'"


def test_a_fault_of_ours_is_a_failure_not_something_to_come():
    assert not_yet(OURS, "AttributeError", "AttributeError: module 'glassgrad' has no attribute 'TinyJit'")
    assert not_yet(OURS, "ModuleNotFoundError", "No module named 'glassgrad.nn'")
    assert not not_yet(OURS, "AttributeError", "AttributeError: 'NoneType' object has no attribute 'shape'")
    assert not not_yet("torch", "ImportError", "no torch")


def test_a_peer_that_takes_too_long_is_ended(fakes, tmp_path):
    peer = fakes("torch", "hanging")
    row = measure("cumsum", {"torch": peer}, tmp_path, tolerance=1e-3, rounds=1, seconds=0.001, limit=2.0)
    assert row.timings["torch"].status == "timed out (2 s)" and peer.process is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads the state of processes from /proc")
def test_a_process_is_stopped_between_requests_and_goes_on_after(fakes, tmp_path):
    peer = fakes("torch", "good")
    for _ in range(2):
        peer.ask(60, do="prepare", workload="cumsum", results=str(tmp_path / "results.npz"))
        state = Path(f"/proc/{peer.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        assert state == "T"
    assert peer.version == "good 1.0" and len(peer.ask(60, do="batch", seconds=0.0)["times"]) == 1


def test_a_module_that_cannot_be_imported_says_why(tmp_path):
    peer = Peer(Framework("x", "x", "no_such_module", "x"), environment(tmp_path, 1), tmp_path / "log")
    with pytest.raises(PeerFailure, match="ModuleNotFoundError: No module named 'no_such_module'") as failure:
        peer.ask(60, do="drop")
    assert failure.value.kind == "ModuleNotFoundError" and not isinstance(failure.value, TimedOut)
    peer.end()


# ---- every kernel against the interpreter

def test_check_checks_every_kernel_of_a_workload_in_a_process_of_its_own(capsys):
    assert command.main(["--check", "--only", "matmul-64x784x128,start-sum"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"matmul-64x784x128 +2 kernels agree with the interpreter \(\d+ s\)", lines[0]), lines
    assert lines[1:] == ["every kernel agrees with the interpreter"]


def test_check_says_what_failed(capsys, monkeypatch):
    monkeypatch.setenv("CPU_FEATURES", "no_such_feature")
    assert command.main(["--check", "--only", "matmul-64x784x128"]) == 1
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("matmul-64x784x128") and "failed: " in first and "CPU_FEATURES" in first
    assert last == "1 failed"


def test_reasons_belong_to_workloads_and_are_shown_only_below_a_goal():
    assert set(reasons.REASONS) <= set(workloads.TABLE)
    name = "matmul-256"
    for ratio, shown in ((12.0, True), (30.0, False)):
        row = Row(name, {OURS: Timing(median=1e-4, calls=3), "tinygrad": Timing(median=1e-3, calls=3, ratio=ratio)})
        assert (reasons.REASONS[name] in report.page(report.Results({}, machine.Peaks(), {name: row}))) is shown


# ---- ours alone

def test_every_worker_takes_part_in_a_barrier():
    """The measurement itself asserts that each task of each command ran once; one worker has nobody to wait for."""
    with Context(THREADS=2):
        measured = measure_barrier(commands=20, lists=3)
    assert measured["workers"] == 2 and measured["seconds"] > 0
    with Context(THREADS=1):
        assert measure_barrier() == {"workers": 1, "seconds": 0.0}
    assert probes.barrier_words({"workers": 2, "seconds": 5e-7}) == "0.5 us until 2 workers have met"
    assert probes.barrier_words({"workers": 4, "seconds": 3e-6}) == "**3 us** (goal 2 us) until 4 workers have met"


def test_a_call_of_a_jitted_step_is_timed_by_itself():
    measured = measure_dispatch(calls=30)
    assert 0 < measured["seconds"] < 1
    assert probes.dispatch_words({"seconds": 2e-5}).startswith("**20 us** (goal 15 us) a call")


def test_calls_without_the_jit_are_counted_in_bytecodes():
    """A loop of ten times as many rounds executes about ten times as many: a count, whatever the machine does."""
    few, many = (bytecodes(lambda rounds=rounds: [0 for _ in range(rounds)]) for rounds in (100, 1000))
    assert 8 * few < many < 12 * few
    measured = measure_unjitted(bursts=1)
    assert 0 < measured["sum"]["bytecodes"] < measured["mlp-step"]["bytecodes"]


def test_opening_a_file_reads_none_of_its_tensors():
    """A tenth of the file's size is far more than its header, and far less than its tensors."""
    measured = measure_opening(tensors=8, times=2)
    assert 0 < measured["opened"] < measured["used"]
    assert measured["grown"] < measured["bytes"] / 10
    assert probes.opening_words({"bytes": 5e8, "opened": 0.01, "grown": 1e5}).startswith("10 ms for a safetensors file")


# ---- first results

def test_time_to_the_first_result_is_taken_in_fresh_processes(tmp_path):
    start = startup.measure_start("start-sum", FRAMEWORKS[OURS], tmp_path, repeats=1, threads=1, limit=120.0)
    assert start.status == "ok" and start.imported > 0 and start.cold > 0 and start.warm is not None
    assert 0 < start.before <= start.peak


def test_a_first_result_that_fails_says_how(tmp_path):
    nothing = Framework("nothing", "Nothing", "nothing", "nothing")
    start = startup.measure_start("start-sum", nothing, tmp_path, repeats=1, threads=1, limit=60.0)
    assert start.status == "failed: KeyError: 'nothing'"


# ---- the page

def results() -> report.Results:
    rows = {
        "matmul-256": Row("matmul-256", {OURS: Timing("ok", 1e-4, 0.9e-4, 1.1e-4, 10, None, True),
                                         "torch": Timing("ok", 2e-4, 1e-4, 3e-4, 10, 2.0, True),
                                         "jax": Timing("ok", 5e-5, 4e-5, 6e-5, 10, 0.5, True),
                                         "tinygrad": Timing("failed: a | b")}),
        "sort": Row("sort", {OURS: Timing("not yet: AttributeError: sort"), "torch": Timing("ok", 0.1, 0.1, 0.1, 3)}),
    }
    starts = {"start-sum": {OURS: startup.Start("ok", 0.1, 0.2, 0.01, 2e8, 1e8)},
              "start-cnn": {OURS: startup.Start("ok", 0.1, 2.0, 0.5, 9e8, 1e8),
                            "torch": startup.Start("ok", 1.0, 1.5, None, 5e8, 2e8)}}
    rates = {"float32": 1e12, "copy": 2e10, "read": 4e10}
    peaks = machine.Peaks(rates, {kind: "torch" for kind in rates})
    return report.Results({"processor": "a test"}, peaks, rows, starts)


def test_the_page_states_times_ratios_goals_and_failures(tmp_path):
    paths = report.write(results(), tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == ["benchmarks.md", "img/benchmarks.svg"]
    text = paths[0].read_text()
    row = next(line for line in text.splitlines() if line.startswith("| `matmul-256`"))
    assert row == ("| `matmul-256` 256x256 @ 256x256 | 100 us | 20% | 336 GFLOPS | 39% | 200 us, 2.00x | "
                   "50 us, **0.50x** (goal 1) | failed: a \\| b |")
    assert "| `sort` sort, values and places, 1M | not yet: AttributeError: sort |" in text
    assert "- `matmul-256`: 0.50x of JAX jit, goal 1; 336 GFLOPS, 39% of the machine's peak" in text
    assert "| (a + b).sum().item() | **200 ms** (goal 150 ms) / 10 ms |" in text and "| import | 100 ms |" in text
    assert "| first MNIST CNN step, batch 128 | 2 s / 500 ms | 1.5 s / timed out |" in text
    assert "| MNIST CNN step, batch 128 | **858 (95)** | 477 (191) |" in text
    picture = ElementTree.fromstring(paths[1].read_text())
    assert len(picture.findall(".//{*}circle")) == 2 and len(picture.findall(".//{*}rect")) == 1 + 1 + 1


def test_results_survive_a_file_and_newer_ones_take_their_place():
    older = report.Results.from_json(results().to_json())
    assert older == results()
    newer = report.Results({"processor": "another"}, machine.Peaks(), {"sort": Row("sort", {})})
    both = older.merged(newer)
    assert both.rows["sort"].timings == {} and set(both.rows) == {"matmul-256", "sort"}
    assert both.machine == newer.machine and both.peaks == older.peaks and both.starts == older.starts
    json.loads(both.to_json())


def test_lines_for_the_terminal():
    assert report.line(results().rows["matmul-256"]).split(maxsplit=1)[1] == (
        "glassgrad 100 us   torch 200 us (2.00x)   jax 50 us (0.50x)   tinygrad failed: a \\| b")
    disturbed = Row("matmul-256", {OURS: Timing(median=1e-4), "torch": Timing(median=2e-4, ratio=70.0)})
    assert report.line(disturbed).split(maxsplit=1)[1] == "glassgrad 100 us   torch 200 us (2.00x)"
    assert report.start_line("start-cnn", results().starts["start-cnn"]).split(maxsplit=1)[1] == (
        "glassgrad 2 s / 500 ms   torch 1.5 s / timed out")


def test_the_machine_is_described():
    described = machine.describe(2)
    assert described["threads"] == "2" and described["processor"] and described["PyTorch"]
    assert all(isinstance(value, str) for value in described.values())


# ---- two checkouts

def test_two_checkouts_are_compared_by_the_median_of_the_rounds():
    rows = [Compared("matmul-256", 2e-3, 1e-3, (2.0, 2.1, 1.9)), Compared("matmul-512", 1e-3, 2e-3, (0.5, 0.4, 0.6)),
            Compared("cumsum", problem="before: timed out")]
    assert rows[0].line() == "| matmul-256 | matmul | 2 | 1 | 2.00 | 1.90 to 2.10 |"
    assert rows[2].line() == "| cumsum | order | before: timed out | | | |"
    assert by_group(rows) == pytest.approx({"matmul": 1.0})


@pytest.mark.parametrize(("arguments", "said"), [(["/nowhere", "."], "/nowhere is no checkout of glassgrad"),
                                                 ([".", ".", "--threads", "0"], "--threads 0: this process has")])
def test_two_trees_refuses_what_it_cannot_compare(arguments: list[str], said: str,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        two_trees(arguments)
    assert said in capsys.readouterr().err


# ---- matrix products

def test_products_are_read_drawn_and_measured() -> None:
    pytest.importorskip("torch")
    from benchmarks.products import Shape, measured, table
    assert Shape.read("8*32x48x64nt") == Shape(32, 48, 64, "nt", 8)
    drawn = [Shape.drawn(np.random.default_rng(seed)) for seed in range(20)]
    assert [Shape.read(str(shape)) for shape in drawn] == drawn
    with pytest.raises(SystemExit, match="expected a product such as"):
        Shape.read("32x48")
    for kernel in (False, True):
        ours, theirs, moves = measured(Shape(20, 30, 40, "tn", 2), "float32", 1, True, kernel)
        assert ours > 0 and theirs > 0 and moves.startswith("contract(")
    assert table([1, 4], {"2x2x2": [0.5, 2.0], "4x4x4": [2.0, 2.0]}) == """\
| M x N x K | 1 thread | 4 threads |
| --- | --- | --- |
| 2x2x2 | 0.50 | 2.00 |
| 4x4x4 | 2.00 | 2.00 |
| geometric mean | 1.00 | 2.00 |"""


# ---- a GPU's page

def test_the_table_of_a_gpu_is_written_into_its_page_from_the_file_of_results(tmp_path):
    kernel = {"theirs_us": 50.0, "ratio": 2.0, "error": 1e-3, "their_error": 2e-3, "bytes": 1e8}
    rows = [{"case": "product 512", "ours_us": 25.0, "tflops": 700.0, **kernel},
            {"case": "add float32", "ours_us": 25.0, "tflops": None, **kernel},
            {"case": "conv 3x3", "failed": "Bug: what it was\nand more"},
            {"case": "attention causal", "ours_us": 20.0, "tflops": 400.0, **kernel},
            {"case": "attention trained causal", "ours_us": 60.0, "tflops": 350.0, **kernel, "theirs_us": 90.0},
            {"name": "un-jitted x + 1, whole", "ours": 40.0, "unit": "us", "torch": 20.0},
            {"name": "a row that the table leaves out", "ours": 1.0, "unit": "us", "torch": None},
            {"name": "first failed", "ours": "no end after 5 s", "unit": "", "torch": None}]
    results, to = tmp_path / "results.json", tmp_path / "page.md"
    results.write_text(json.dumps({"machine": "a GPU", "date": "today", "commit": "abc", "rows": rows}))
    to.write_text(f"before\n{gpu_all.BEGIN}\nold\n{gpu_all.END}\nafter\n")
    for _ in range(2):                                   # again: nothing changes
        assert gpu_all.main(["--page", "--results", str(results), "--to", str(to)]) == 0
        lines = to.read_text().splitlines()
    assert lines[0] == "before" and lines[-1] == "after" and "a GPU; today, commit abc." in lines
    assert "| product 512 | 25.0 | 50.0 | 2.00 | 700 TFLOP/s | 1.0e-03 | 2.0e-03 |" in lines
    assert "| add float32 | 25.0 | 50.0 | 2.00 | 4.00 TB/s | 1.0e-03 | 2.0e-03 |" in lines
    assert "| conv 3x3 | failed: Bug: what it was | | | | | |" in lines
    assert "| attention backward causal | 40.0 | 40.0 | 1.00 | 325 TFLOP/s | 1.0e-03 | 2.0e-03 |" in lines
    assert "| un-jitted `x + 1` of 1024 numbers | 40 us | 20 us | 0.50 |" in lines
    assert "| first failed | failed: no end after 5 s | | |" in lines and "old" not in lines
    assert not any("leaves out" in line for line in lines)
    with pytest.raises(ValueError, match="the page has no place for the table"):
        gpu_all.page("nothing", {})


@pytest.mark.parametrize("only", ["pad by reflect", "gradient: gather"])
def test_an_op_is_measured_beside_pytorch(only: str, torch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.ops import main
    main(["--only", only])
    [_, _, row] = capsys.readouterr().out.splitlines()
    assert row.startswith(f"| {only} | ") and row.endswith(" |  |"), row
