"""BEAM: a search that improves or keeps the recipe, survives its candidates, and is made once for each kernel."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripts import run_script

from glassgrad import Context, Device, FormatError, InputError, Tensor, Variable
from glassgrad.base.settings import settings
from glassgrad.cli import tune
from glassgrad.compiler.optimize.product.register_tile.register_plan import RegisterPlan
from glassgrad.compiler.optimize.product.tiling_parameters import Tiling
from glassgrad.jit import TinyJit
from glassgrad.runtime.search import beam, tuning_results as tuning
from glassgrad.runtime.search.beam import Lost, Search, Worker

ROOT = Path(__file__).resolve().parents[2]


class Silent:
    """Where a search shows its progress."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def set_postfix_str(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is known, and nothing outside is touched."""
    monkeypatch.setenv("CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tuning, "_known", {})
    return tmp_path


@pytest.fixture
def worker() -> Iterator[Worker]:
    one = Worker()
    yield one
    one.close()


def product(n: int = 96) -> tuple[Tensor, Tensor]:
    return Tensor.rand(n, n).realize(), Tensor.rand(n, n).realize()


def searching(make: Callable[[], Tensor], worker: Worker, **settings: float) -> Search:
    with Context(**{"BEAM": 1, "BEAM_SECONDS": 2.0, **settings}):
        return Search(make().schedule()[-1].ast, Device["CPU"], worker)


def a_poor_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """One accumulator in one lane: everything near it is faster."""
    monkeypatch.setattr(RegisterPlan, "own", lambda self: Tiling("contract", 1, 1, 1, block_m=1, block_n=1))


# -- the search ----------------------------------------------------------------------------------------------
def test_a_search_finds_what_the_recipe_missed(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    a_poor_recipe(monkeypatch)
    a, b = product(192)
    one, bar = searching(lambda: a @ b, worker, BEAM=2, BEAM_SECONDS=8.0), Silent()
    found = one.run(bar)
    assert found.moves and found.speedup > 1.5 and found.tried > 2 and found.recipe != found.moves
    assert "contract(rows=1, vectors=1, lanes=1, block_m=1, block_n=1)" in found.recipe
    assert one.wrong == 0, "no neighbour changes a bit"
    assert any("tried, best" in said for said in bar.said), "somebody who watches sees it"


def test_the_recipe_stays_unless_a_candidate_is_clearly_faster(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    one = searching(lambda: product()[0] + 1, worker)
    one.begin()
    times: list[tuple[int, int]] = []
    monkeypatch.setattr(one, "pairs_of", lambda moves, final: times)
    for pairs, wins in [([(100, 99)] * 20, False),                              # hardly faster
                        ([(100, 90)] * 12 + [(100, 300)] * 8, False),           # faster in 60% of the runs
                        ([(100, 50)] * 3, False),                               # too few runs to tell
                        ([], False), ([(100, 150)] * 20, False), ([(100, 90)] * 20, True)]:
        times = pairs
        assert bool(one.winner([("x",)])[0]) == wins, pairs


def test_the_time_is_kept(worker: Worker) -> None:
    a, b = product(256)
    one = searching(lambda: a @ b, worker, BEAM=64, BEAM_SECONDS=1.5)
    one.begin()
    start = time.monotonic()
    one.run(Silent())
    assert one.tried >= 1 and time.monotonic() - start < 30, "without a limit it takes minutes"


def test_answers_are_the_same_with_and_without(empty: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = (Tensor(rng.standard_normal(shape).astype("float32")) for shape in ((67, 131), (131, 37)))
    cases = [lambda: x @ y, lambda: x.T @ x, lambda: (x[1:, ::2].flip(0) * 2).softmax(1), lambda: x.sum(0),
             lambda: x[:1] @ y, lambda: x[:0] @ y, lambda: (x @ y).relu().sum()]
    for make in cases:
        wanted = make().numpy()
        with Context(BEAM=1, BEAM_SECONDS=0.5):
            for threads in (1, 2):
                with Context(THREADS=threads):
                    np.testing.assert_array_equal(make().numpy(), wanted)


@pytest.mark.parametrize("make", [
    lambda: Tensor.rand(64, 8)[Tensor([3, 1, 2, 63] * 16)] + 1, lambda: (Tensor.rand(4096) > 0.5).sum(),
    lambda: Tensor.rand(1000).cast("bfloat16").realize() * 3, lambda: Tensor.arange(1000) // 7,
    lambda: Tensor.zeros(50, 4).scatter(0, Tensor([[1, 2, 3, 4]]), Tensor.ones(1, 4)),
    lambda: Tensor.rand(3000).log().realize().sqrt(),
    lambda: Tensor.rand(64, 100).realize()[:, :Variable("n", 1, 100).bind(7)].sum(1)],
    ids=["gather", "bool", "bfloat16", "int", "scatter", "nan", "variable"])
def test_all_kinds_of_kernels_can_be_measured(make: Callable[[], Tensor], worker: Worker) -> None:
    one = searching(make, worker)
    one.begin()
    one.deadline = time.monotonic() + 30
    near = one._decided[one.recipe].neighbours()
    if near:
        one.pairs_of(tuple(near[0]))
    assert one.wrong == one.killed == 0


# -- candidates that misbehave -------------------------------------------------------------------------------
def ill(one: Search, body: str, shared: int = 0) -> Callable[..., Any]:
    """Every candidate after the recipe is this instead of a kernel."""
    real = one.built

    def built(moves: Any) -> Any:
        names, source, facts = real(moves)
        if moves is None:
            return names, source, facts
        text = "\n".join(f"define void @{name}(ptr %a, i64 %t, ptr %s) {{\n{body}\n}}" for name, _ in facts.info.phases)
        return names, text, replace(facts, info=replace(facts.info, shared=(shared,) if shared else facts.info.shared))
    return built


@pytest.mark.parametrize("body, shared, outcome", [
    ("entry:\n br label %again\nagain:\n br label %again", 0, "killed"),
    ("entry:\n store volatile i32 1, ptr inttoptr (i64 8 to ptr)\n ret void", 0, "killed"),
    (" ret void", 1 << 46, "refused"), (" ret void", 0, "wrong"), ("this is no code", 0, "refused")],
    ids=["hangs", "crashes", "eats memory", "computes nothing", "does not compile"])
def test_a_bad_candidate_is_out_and_the_search_goes_on(body: str, shared: int, outcome: str, worker: Worker,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = product(64)
    one = searching(lambda: a @ b, worker, BEAM_SECONDS=4.0)
    one.begin()
    one.deadline = time.monotonic() + 60
    near = [tuple(m) for m in one._decided[one.recipe].neighbours()]
    well = one.built
    monkeypatch.setattr(one, "built", ill(one, body, shared))
    assert one.pairs_of(near[0]) == []
    assert (one.killed, one.wrong) == (int(outcome == "killed"), int(outcome == "wrong"))
    monkeypatch.setattr(one, "built", well)
    assert one.pairs_of(near[1]), "the next candidate is measured, by a new process if need be"


def test_a_worker_that_does_not_answer_is_killed() -> None:
    for script, why in [("import time; time.sleep(60)", "no answer"), ("raise SystemExit(3)", "ended with|no answer")]:
        worker = Worker([sys.executable, "-c", script])
        start = time.monotonic()
        with pytest.raises(Lost, match=why):
            worker.ask({"do": "recipe", "source": " " * (1 << 20)}, 1.0)
        assert time.monotonic() - start < 20 and not worker.alive and worker._process is None


def test_a_kernel_too_large_to_copy_is_not_searched(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam, "free_bytes", lambda: 30 << 20)
    one = searching(lambda: Tensor.rand(2000, 1000).realize() + 1, worker)
    with pytest.raises(Lost, match="a copy of its memory takes 15 MiB, and 30 MiB are free"):
        one.begin()
    assert not worker.alive


@pytest.mark.only_on("CPU", "CLANG", reason="an interpreter has nothing to tune")
def test_a_kernel_that_cannot_be_measured_keeps_the_recipe(empty: Path, monkeypatch: pytest.MonkeyPatch,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Search, "measure_recipe", lambda self: self.worker.ask({"do": "nothing"}, 20.0))
    monkeypatch.setattr(beam, "Worker", lambda: Worker([sys.executable, "-c", "pass"]))
    a, b = product(32)
    with Context(BEAM=1):
        np.testing.assert_allclose((a @ b).numpy(), a.numpy() @ b.numpy(), rtol=1e-5)
    assert "BEAM cannot measure reduce_32_32_r32, the recipe is used" in capsys.readouterr().err
    assert tuning.known() == []


# -- what is kept --------------------------------------------------------------------------------------------
SCRIPT = """
    import sys
    from glassgrad import Context, Tensor
    from glassgrad.runtime.search import beam
    searches = []
    real = beam.Search.run
    beam.Search.run = lambda self, bar: (searches.append(1), real(self, bar))[1]
    a, b = Tensor.rand(64, 64).realize(), Tensor.rand(64, 64).realize()
    with Context(BEAM=1, BEAM_SECONDS=1):
        (a @ b).realize()
    print(len(searches))
"""


def test_a_second_process_does_not_search(tmp_path: Path) -> None:
    folder = str(tmp_path / "own")
    assert run_script(SCRIPT, CACHE_DIR=folder)[0] == "1\n"
    assert run_script(SCRIPT, CACHE_DIR=folder)[0] == "0\n"
    assert run_script(SCRIPT, CACHE_DIR=folder, THREADS="1")[0] == "1\n", "another number of threads is another machine"
    assert len(list((tmp_path / "own" / "tuning").glob("??/*"))) == 2


def found(name: str = "reduce_8", **changes: Any) -> tuning.Tuned:
    values = {"structure": "ab" * 32, "compiler": "llvm test", "beam": 2, "seconds": 10.0, "complete": True,
              "tried": 7, "recipe": ("tasks(count=1)",), "recipe_us": 20.0,
              "moves": ("tasks(count=2)",), "tuned_us": 10.0, **changes}
    return tuning.Tuned(name, **values)


def test_only_a_wider_or_longer_search_is_made_again(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def search(kernels: Any, device: Any) -> None:
        asked.append(len(kernels))
        for ast in kernels:
            tuning.keep(found(structure=tuning.digest_of(ast), compiler=device.compiler, moves=(), tuned_us=0.0,
                              beam=settings.BEAM, seconds=settings.BEAM_SECONDS, complete=False))
    monkeypatch.setattr(beam, "search", search)
    a, b = product(31)
    for width, seconds, searches in [(2, 0.0, 0), (2, 1.0, 1), (2, 1.0, 1), (1, 1.0, 1), (3, 1.0, 2), (0, 1.0, 2),
                                     (3, 2.0, 3), (3, 1.5, 3), (3, 0.0, 3)]:
        with Context(BEAM=width, BEAM_SECONDS=seconds):
            Device["CPU"]._programs.clear()
            Device["CPU"].programs([(a @ b).schedule()[0].ast])
        assert len(asked) == searches, (width, seconds)


@pytest.mark.only_on("CPU", reason="a C compiler chooses which products and sums it joins: other moves round otherwise")
def test_a_found_kernel_is_used_and_shown(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = product(61)
    device = Device[Device.DEFAULT]
    ast = (a @ b).schedule()[0].ast
    recipe = device.loop_tree(ast).moves
    moves = (re.sub(r"rows=\d+", "rows=1", recipe[0]),)
    tuning.keep(found(structure=tuning.digest_of(ast), compiler=device.compiler, moves=moves))
    wanted = (a @ b).numpy()

    @TinyJit
    def multiply(x: Tensor, y: Tensor) -> Tensor:
        return (x @ y).realize()

    with Context(BEAM=1, BEAM_SECONDS=0.0):
        assert tuple(device.loop_tree(ast).moves) == moves != tuple(recipe)
        for _ in range(3):
            np.testing.assert_array_equal(multiply(a, b).numpy(), wanted)
    capsys.readouterr()
    with Context(BEAM=1, BEAM_SECONDS=0.0, DEBUG=2):
        np.testing.assert_array_equal(multiply(a, b).numpy(), wanted)
    assert f"{moves[0]} tuned: 2.00x" in capsys.readouterr().out, "a jitted function keeps what it was captured with"
    with Context(DEBUG=2):
        np.testing.assert_array_equal(multiply(a, b).numpy(), wanted)
    assert "tuned" not in capsys.readouterr().out, "without BEAM it is captured without"
    assert tuple(device.loop_tree(ast).moves) == tuple(recipe), "outside, it is the recipe again"


# -- tuning files --------------------------------------------------------------------------------------------
def test_a_tuning_file_comes_back_as_it_was(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = [found("reduce_8"), found("map_9", structure="cd" * 32, moves=(), tuned_us=0.0)]
    for one in both:
        tuning.keep(one)
    path = empty / "mine.json"
    assert tuning.export_tuning(path) == 2
    assert "tasks(count=2)" in path.read_text() and json.loads(path.read_text())["machine"]["threads"] >= 1
    assert tuning.clear_tuning() == 2 and tuning.known() == []
    assert tuning.import_tuning(path) == 2
    monkeypatch.setattr(tuning, "_known", {})
    assert tuning.known() == sorted(both, key=lambda t: t.kernel), "from the folder, as another process would"
    assert [t.speedup for t in tuning.known()] == [1.0, 2.0]


def test_nothing_to_export(empty: Path) -> None:
    with pytest.raises(InputError, match="no search has been made"):
        tuning.export_tuning(empty / "none.json")
    assert not (empty / "none.json").exists()


def changed(data: dict[str, Any], **changes: Any) -> str:
    return json.dumps({**data, **changes})


@pytest.mark.parametrize("change, why", [
    (lambda d: "not json", "it is not JSON"), (lambda d: "[1]", "it is no object"),
    (lambda d: changed(d, format="other 2"), "its format is 'other 2'"),
    (lambda d: changed(d, version="0"), "another version of glassgrad"),
    (lambda d: changed(d, machine={**d["machine"], "processor": "an abacus"}), "made on another machine"),
    (lambda d: changed(d, machine={**d["machine"], "threads": 77}), "or set THREADS=77"),
    (lambda d: changed(d, machine=3), "made on another machine"),
    (lambda d: changed(d, kernels=3), "no list of kernels"), (lambda d: changed(d, kernels=[3]), "have the fields"),
    (lambda d: changed(d, kernels=[{**d["kernels"][0], "beam": "2"}]), "a beam of '2'"),
    (lambda d: changed(d, kernels=[{**d["kernels"][0], "moves": [2]}]), "a moves of"),
    (lambda d: changed(d, kernels=[{**d["kernels"][0], "moves": ["tasks(number=2)"]}]), "not a field of tasks")])
def test_a_file_that_is_wrong_says_so(change: Callable[[Any], str], why: str, empty: Path) -> None:
    tuning.keep(found())
    path = empty / "mine.json"
    tuning.export_tuning(path)
    path.write_text(change(json.loads(path.read_text())))
    with pytest.raises(FormatError) as caught:
        tuning.import_tuning(path)
    assert why in str(caught.value) and "fix:" in str(caught.value)


def test_a_missing_file_says_so(empty: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        tuning.import_tuning(empty / "missing.json")


@pytest.mark.only_on("CPU", "CLANG", reason="an interpreter has nothing to tune")
def test_moves_that_do_not_fit_are_an_error_at_use(empty: Path) -> None:
    a, b = product(59)
    device = Device[Device.DEFAULT]
    ast = (a @ b).schedule()[0].ast
    moves = (device.loop_tree(ast).moves[0].replace("lanes=", "lanes=9"),)
    tuning.keep(found(structure=tuning.digest_of(ast), compiler=device.compiler, moves=moves))
    with Context(BEAM=1, BEAM_SECONDS=0.0), pytest.raises(FormatError, match="does not fit it"):
        (a @ b).realize()


def test_damaged_entries_are_as_if_they_were_not_there(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuning.keep(found())
    [file] = (empty / "tuning").glob("??/*")
    for text in ("", "{", json.dumps({"format": "glassgrad tuning 1"})):
        file.write_text(text)
        monkeypatch.setattr(tuning, "_known", {})
        assert tuning.known() == []


def test_many_writers_leave_one_whole_entry(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda width: tuning.keep(found(beam=width)), range(1, 65)))
    assert len(list((empty / "tuning").iterdir())) == 1, "nothing half-written is left"
    monkeypatch.setattr(tuning, "_known", {})
    [one] = tuning.known()
    assert one == found(beam=one.beam) and 1 <= one.beam <= 64


def test_without_a_cache_a_process_still_remembers(empty: Path) -> None:
    with Context(CACHE=0):
        tuning.keep(found())
        assert [t.kernel for t in tuning.known()] == ["reduce_8"] and not (empty / "tuning").exists()


def test_the_command(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuning.keep(found())
    path = str(empty / "mine.json")
    for arguments, said in [(["show"], "reduce_8 +20.0 us +2.00x  tasks\\(count=2\\)\n1 kernel, 1 of them faster"),
                            (["export", path], "1 kernel written"), (["clear"], "1 kernel forgotten"),
                            (["show"], "0 kernels, 0 of them"), (["import", path], "1 kernel read")]:
        assert tune.main(arguments) == 0
        out = capsys.readouterr().out
        assert re.search(said, out), out
    done = subprocess.run([sys.executable, "-m", "glassgrad", "tune", "import", str(ROOT / "README.md")], cwd=ROOT,
                          capture_output=True, text=True, env={**os.environ, "CACHE_DIR": str(empty)})
    assert done.returncode == 1 and "this is not a tuning file" in done.stderr and "Traceback" not in done.stderr
