"""The list of passes is what runs: a pass taken out does not run, no other code calls a pass, the docs show the list.

    python tests/project/test_pipeline.py      writes the table of docs/pipeline.md anew
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from glassgrad import Bug, Context, Device, Tensor
from glassgrad.compiler import pipeline
from glassgrad.compiler.pipeline import GRAPH, KERNEL, PASSES, SCHEDULE, TEXT, watched
from glassgrad.engine import realize as engine

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "pipeline.md"
BEGIN, END = "<!-- passes: written by tests/project/test_pipeline.py -->\n", "<!-- end of passes -->\n"
NEEDED = {"fusion": KeyError, "kernels": ValueError, "lower": Bug}      # without these there is nothing to run


@pytest.fixture(autouse=True)
def no_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHE", "0")
    monkeypatch.setattr(engine._known, "schedules", {})
    for name in ("CPU", "PYTHON"):
        monkeypatch.setattr(Device[name], "_programs", {})


OF_OTHERS = ("fewer_products", "long_softmax", "loop_iteration_limit",                    # for GPUs
             "conv_input_gradient", "joined_remainders", "flat_scatters", "softmax_log_sums", "recurrent_steps")


def layer(x: Tensor, w: Tensor) -> Tensor:
    """Something that most passes have to do with: a folded 1, a constant axis, a product, a result that is an input."""
    return (x @ w * 1 + Tensor.ones(4, 3).sum(1, keepdim=True)).relu()


def run(device: str = "CPU") -> tuple[list[str], np.ndarray]:
    """The passes that ran, in order, and the value; under SANITIZE=1, when each of them may run."""
    rng = np.random.default_rng(0)
    x, w = (Tensor(rng.random(shape), device=device).realize() for shape in ((4, 5), (5, 6)))
    ran: list[str] = []
    with Context(SANITIZE=1), watched(lambda each, work: ran.append(each.name)):
        y = layer(x, w).realize()
    np.testing.assert_allclose(y.numpy(), x.numpy() @ w.numpy() + 3, rtol=1e-6)
    return list(dict.fromkeys(ran)), y.numpy()


def test_every_pass_runs_in_the_order_of_the_list() -> None:
    ran, _ = run()
    assert ran == [p.name for p in PASSES if p.name not in ("plain_loops", *OF_OTHERS)]
    with Context(NOOPT=1):
        ran, _ = run()
    assert ran == [p.name for p in PASSES
                   if p.name not in ("fold", "invariant_axes", "optimize", *OF_OTHERS)]
    ran = []
    with watched(lambda each, work: ran.append(each.name)):
        Tensor.rand(4, 4).realize()
    assert "optimize" in ran and "access_bounds" not in ran


def test_an_interpreter_needs_no_text() -> None:
    ran, _ = run("PYTHON")
    assert ran == [p.name for p in PASSES if p.stage != TEXT and p.name not in ("plain_loops", *OF_OTHERS)]


def gradient_of_conv(x: Tensor, stride: int) -> Tensor:
    weight = Tensor.rand(2, 1, 3, 3).realize()
    return x.reshape(1, 1, 6, 6).conv2d(weight, stride=stride).square().sum().gradient(x)[0]


CONCERNED = {
    "fold": lambda x: x * 2,
    "invariant_axes": lambda x: x.sum(0),
    "conv_input_gradient": lambda x: gradient_of_conv(x, 1),
    "joined_remainders": lambda x: gradient_of_conv(x, 2),
    "flat_scatters": lambda x: x.scatter_reduce(0, Tensor([[0, 1, 0, 2, 1, 0]]), x[:1], "sum"),
    "softmax_log_sums": lambda x: x.softmax(),
}


@pytest.mark.parametrize("name", CONCERNED)
def test_a_pass_for_some_ops_runs_where_a_graph_has_them_and_nowhere_else(name: str) -> None:
    ran: set[str] = set()
    with watched(lambda each, work: ran.add(each.name)):
        CONCERNED[name](Tensor.rand(6, 6).realize()).schedule()
    assert name in ran
    ran.clear()
    with watched(lambda each, work: ran.add(each.name)), Context(NOOPT=name == "fold"):
        (Tensor.rand(6, 6).realize() * 2 + 1).schedule()
    assert "fusion" in ran and name not in ran


OPTIONAL = ["fold", "invariant_axes", "optimize", "device_placement"]


@pytest.mark.parametrize("name", OPTIONAL)
def test_a_pass_that_is_taken_out_does_not_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "PASSES", [p for p in PASSES if p.name != name])
    if name != "device_placement":
        ran, _ = run()
        assert ran == [p.name for p in PASSES if p.name not in (name, "plain_loops", *OF_OTHERS)]
    else:                    # the schedule says nothing of devices then
        ran = []
        with watched(lambda each, work: ran.append(each.name)):
            items = Tensor.rand(4, 4).schedule()
        assert [item.device for item in items] == [None] and name not in ran


def test_what_a_missing_pass_leaves_undone_is_left_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor.rand(4).realize()
    names = [n.op.name for n in (x * 1 + x).schedule()[0].ast.toposort()]
    assert "MUL" not in names
    monkeypatch.setattr(pipeline, "PASSES", [p for p in PASSES if p.name != "fold"])
    names = [n.op.name for n in (x * 1 + x).schedule()[0].ast.toposort()]
    assert "MUL" in names, "nothing else folds"


@pytest.mark.parametrize("name", NEEDED)
def test_nothing_replaces_a_pass_that_is_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "PASSES", [p for p in PASSES if p.name != name])
    with pytest.raises(NEEDED[name]):
        run()


# -- no other way --------------------------------------------------------------------------------------------
def workers() -> set[str]:
    """The functions that pipeline.py imports to do a pass's work."""
    stages = tuple(f"glassgrad.compiler.{s}." for s in ("graph.rules", "schedule", "lower", "optimize", "render"))
    found: set[str] = set()
    for node in ast.walk(ast.parse(inspect.getsource(pipeline))):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(stages):
            found |= {alias.name for alias in node.names if alias.name.islower()}
    return found - {"show", "linear", "describe_graph"}          # they print


def imports() -> Iterator[tuple[str, str]]:
    """(file, name) for all that files outside the compiler import from it."""
    for path in sorted((ROOT / "glassgrad").rglob("*.py")):
        if "compiler" not in path.relative_to(ROOT / "glassgrad").parts[:1]:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and str(node.module).startswith("glassgrad.compiler"):
                    yield from ((path.relative_to(ROOT).as_posix(), alias.name) for alias in node.names)


def test_only_the_list_calls_the_functions_behind_it() -> None:
    functions = workers()
    assert functions >= {"rewrite", "fuse", "lower", "decide", "jam", "render_llvm", "render_c", "render_gpu"}
    allowed = {("glassgrad/engine/check/one_kernel.py", "rewrite"),         # one rule alone, in a script about a fault
               ("glassgrad/viz/pass_text.py", "rows_of")}                   # rows of the printed tree
    wrong = [f"{file} imports {name}" for file, name in imports() if name in functions and (file, name) not in allowed]
    assert not wrong, "these go round compiler/pipeline.py:\n" + "\n".join(wrong)


# -- what reads the list -------------------------------------------------------------------------------------
def test_debug_labels_come_from_the_list() -> None:
    labels = [view.label for p in PASSES for view in p.views]
    assert list(dict.fromkeys(labels)) == ["folded", "after loop analysis", "optimized", "linearized"]
    assert pipeline.INITIAL.label == "initial"


def test_each_pass_says_what_it_does_and_where() -> None:
    assert [p.stage for p in PASSES] == sorted((p.stage for p in PASSES), key=[GRAPH, SCHEDULE, KERNEL, TEXT].index)
    assert len({p.name for p in PASSES}) == len(PASSES)
    for p in PASSES:
        assert p.does.endswith(".") and len(p.does.split()) > 4, p.name
        assert (ROOT / "glassgrad" / "compiler" / p.file).exists(), p.file


def table() -> str:
    """The list as the page shows it."""
    lines = ["| stage | pass | what it does | when | DEBUG=4 |", "|---|---|---|---|---|"]
    for p in PASSES:
        labels = ", ".join(f"`{view.label}`" for view in p.views)
        path = f"../glassgrad/compiler/{p.file}" + ("/__init__.py" if not p.file.endswith(".py") else "")
        lines.append(f"| {p.stage} | [`{p.name}`]({path}) | {p.does} | {p.when.words} | {labels} |")
    return "\n".join(lines) + "\n"


def test_the_page_shows_the_list() -> None:
    page = PAGE.read_text()
    shown = page[page.index(BEGIN) + len(BEGIN):page.index(END)]
    assert shown == table(), "python tests/project/test_pipeline.py writes it anew"


if __name__ == "__main__":
    text = PAGE.read_text()
    PAGE.write_text(text[:text.index(BEGIN) + len(BEGIN)] + table() + text[text.index(END):])
