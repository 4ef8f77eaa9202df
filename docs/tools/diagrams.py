"""The drawings of the documentation, from real graphs, schedules and loop trees. Out: docs/img/*.svg.

    python docs/tools/diagrams.py        draw them anew; tests/project/test_site.py compares them with what is committed
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

from draw import (Box, Nest, Rung, Span, arena, graph, grids, ladder,  # noqa: E402 - runs as a script, from any folder
                  nests)

from benchmarks.matmul_steps import steps  # noqa: E402
from glassgrad import Tensor  # noqa: E402
from glassgrad.compiler.graph.ops import ELEMENTWISE, MOVEMENT, REDUCE  # noqa: E402
from glassgrad.compiler.graph.uop import UOp  # noqa: E402
from glassgrad.compiler.lower.loops import For, If, Kernel, Phase, Statement  # noqa: E402
from glassgrad.compiler.lower.printing import show  # noqa: E402
from glassgrad.compiler.optimize.targets.target import Target  # noqa: E402
from glassgrad.compiler.pipeline import KERNEL, TEXT, KernelWork, Pass, run_passes, watched  # noqa: E402
from glassgrad.engine.memory_plan import Life, place  # noqa: E402

IMAGES = ROOT / "docs" / "img"
AVX2 = Target("x86_64", vector_bytes=32, vector_registers=16, features=frozenset({"avx2", "fma"}))
KINDS = {"elementwise": "#cfe8cf", "reduce": "#f6d6c9", "movement": "#d3e1f3", "memory": "#eeeeee"}
LOOPS = {"task": "#f9e4b7", "loop": "#e8eef5", "tile": "#d8efe0", "lane": "#bfe3cf"}


def ones(*shape: int) -> Tensor:
    return Tensor.ones(*shape).contiguous().realize()


def kind(node: UOp) -> str:
    return "elementwise" if node.op in ELEMENTWISE else "reduce" if node.op in REDUCE else \
        "movement" if node.op in MOVEMENT else "memory"


def box(node: UOp, border: str = "#222222") -> Box:
    value = f" {node.arg}" if node.op.name == "CONST" else ""
    return Box([node.op.name + value, str(list(node.shape))], KINDS[kind(node)], border)


# -- the drawings --------------------------------------------------------------------------------------------
def layer_graph() -> str:
    """The graph of one layer, `(x @ w + b).relu()`."""
    nodes = (ones(12, 32) @ ones(32, 16) + ones(16)).relu().uop.toposort()
    return graph({n: box(n) for n in nodes}, {n: n.src for n in nodes}, KINDS)


def gradient_graph() -> str:
    """Forward and backward of `(x * w).relu().sum()`: what the gradient of w adds is drawn with a red border."""
    x, w = ones(3), ones(3)
    loss = (x * w).relu().sum()
    [slope] = loss.gradient(w)
    forward = loss.uop.toposort()
    nodes = list(dict.fromkeys([*forward, *slope.uop.toposort()]))
    boxes = {n: box(n, "#222222" if n in forward else "#c0392b") for n in nodes}
    return graph(boxes, {n: n.src for n in nodes}, KINDS)


def attention_schedule() -> str:
    """The kernels of attention, with the reason why each result got memory."""
    items = ones(2, 4, 64, 32).scaled_dot_product_attention(ones(2, 4, 64, 32), ones(2, 4, 64, 32)).schedule()
    boxes: dict[object, Box] = {}
    sources: dict[object, Sequence[object]] = {}
    written = {slot for item in items for slot in item.slots[:item.results]}
    for number, item in enumerate(items):
        for slot, param in zip(item.slots, sorted(_params(item.ast), key=lambda p: p.arg.slot)):
            if slot not in boxes and slot not in written:
                boxes[slot] = Box([f"input {slot}", str(list(param.shape))], KINDS["memory"])
                sources[slot] = ()
        shape = list(item.ast.src[0].shape)
        key = item.slots[0]
        boxes[key] = Box([f"kernel {number}: {shape}", *item.reasons], KINDS["reduce"])
        sources[key] = item.slots[item.results:]
    return graph(boxes, sources, {"input": KINDS["memory"], "kernel, and why its result is stored": KINDS["reduce"]})


def _params(ast: UOp) -> list[UOp]:
    return [n for n in ast.toposort() if n.op.name == "PARAM"]


def views() -> str:
    """Six views of one memory: each cell shows where in memory the element lies."""
    x = Tensor.arange(12).reshape(3, 4).contiguous().realize()
    named = {"x": x, "x.T": x.T, "x[1:, ::2]": x[1:, ::2], "x.flip(1)": x.flip(1),
             "x[:1].expand(3, 4)": x[:1].expand(3, 4), "x.reshape(2, 6)": x.reshape(2, 6)}
    cells = {name: [[str(v) for v in row] for row in view.tolist()] for name, view in named.items()}
    shade = {str(i): f"hsl({180 + 15 * i},55%,{92 - 2 * i}%)" for i in range(12)}
    return grids(cells, shade)


def matmul_loops() -> str:
    """The loop nests of the five steps in docs/performance.md, without their indices."""
    columns = {}
    for step in steps(384, 384, 384, AVX2):
        body: list[Nest | str] = []
        for phase in step.kernel.phases:
            body += _nested(phase.body)
        columns[step.name] = body
    return nests(columns, LOOPS)


def _nested(body: Sequence[Statement]) -> list[Nest | str]:
    out: list[Nest | str] = []
    for s in body:
        if isinstance(s, For):
            out.append(Nest(f"{s.kind} {s.range.arg.name} in {s.range.arg.size}", LOOPS[s.kind], _nested(s.body)))
        elif isinstance(s, If):
            out.append(Nest("if", "#ffffff", _nested(s.body)))
        else:
            line = show(Kernel("", [], [Phase([s])])).splitlines()[-1].strip()
            out.append(_short(line))
    return out


def _short(line: str) -> str:
    """A statement without its indices: `acc1 += a1[..] * a2[..]`."""
    while re.search(r"\[[^\[\].]+\]", line):
        line = re.sub(r"\[[^\[\].]+\]", "[..]", line)
    return re.sub(r"acc\w*(\[\.\.\])?", "acc", line.partition(" if ")[0]).replace("(", "").replace(")", "")


def training_arena() -> str:
    """The arena of a training step of a small network: values between kernels, placed by lifetimes."""
    x, weights = ones(64, 32), [ones(32, 64), ones(64, 64), ones(64, 64), ones(64, 8)]
    value = x
    for w in weights:
        value = (value @ w).relu()
    loss = value.square().mean()
    items = loss.schedule(*loss.gradient(*weights))
    first, last, size, label = {}, {}, {}, {}
    for number, item in enumerate(items):
        params = {p.arg.slot: p for p in _params(item.ast)}
        for position, slot in enumerate(item.slots):
            last[slot] = number
            if position < item.results and item.reasons[position] != "an output":
                first[slot], label[slot] = number, str(list(params[position].shape))
                size[slot] = params[position].size * params[position].dtype.itemsize
    lives = [Life(first[slot], last[slot], size[slot]) for slot in first]
    offsets, total = place(lives)
    colors = list(KINDS.values())
    spans = [Span(label[slot], life.first, life.last, offset // 1024, life.nbytes // 1024, colors[i % len(colors)])
             for i, (slot, life, offset) in enumerate(zip(first, lives, offsets))]
    return arena(spans, [f"kernel {number}" for number in range(len(items))], total // 1024, "KiB")


def book_kernel(language: str) -> KernelWork:
    """The first kernel of docs/architecture.md: `(a @ b).relu()`, for a processor with AVX2."""
    work = KernelWork((ones(12, 32) @ ones(32, 16)).relu().sum().schedule()[0].ast, AVX2, language)
    run_passes(work, KERNEL, TEXT, say=False)
    return work


def pipeline() -> str:
    """`(a @ b).relu().sum().backward()` to the machine: the passes that ran, and what each stage left."""
    a, b = ones(12, 32), ones(32, 16)
    loss = (a @ b).relu().sum()
    loss.backward()
    assert a.grad is not None and b.grad is not None
    results = [loss, a.grad, b.grad]
    forward = loss.uop.toposort()
    nodes = list(dict.fromkeys(n for result in results for n in result.uop.toposort()))
    ran: dict[str, list[str]] = {}
    trees: dict[str, list[str]] = {}

    def note(each: Pass, work: Any) -> None:
        ran.setdefault(each.stage, []).append(each.name)
        if each.stage == KERNEL:
            trees[each.name] = show(work.kernel).splitlines()

    with watched(note):
        items = loss.schedule(*results[1:])
        work = KernelWork(items[0].ast, AVX2, "llvm")
        run_passes(work, KERNEL, TEXT, say=False)
    multiplied = [line.strip() for line in work.source.splitlines() if "@llvm.fma" in line and "call" in line]
    loss.realize(*results[1:])
    return ladder([
        Rung("tensor", ["nothing runs yet"], ["loss = (a @ b).relu().sum()", "loss.backward()"], "#f4ecd8"),
        Rung("graph", ["gradients add nodes", *ran["graph"]],
             [f"{len(forward)} nodes for the loss, {len(nodes) - len(forward)} more for both gradients:",
              *_wrapped(forward), "  ...", *_wrapped(n for n in nodes if n not in forward)], KINDS["movement"]),
        Rung("schedule", ran["schedule"],
             [f"kernel {number}  {list(item.ast.src[0].shape)}  {', '.join(item.reasons)}"
              for number, item in enumerate(items)], KINDS["reduce"]),
        Rung("lower", ["of kernel 0:", "lower"], trees["lower"], LOOPS["task"]),
        Rung("optimize", ["optimize"], [*work.kernel.moves, *trees["optimize"][1:]], LOOPS["tile"]),
        Rung("render", ran["text"],
             ["LLVM IR, the first of the multiply-adds of the inner loop:", multiplied[0], multiplied[1],
              f"... {len(multiplied)} in all"],
             LOOPS["lane"]),
        Rung("runtime and engine", ["compile, cache, launch"],
             [f"loss {loss.item()}",
              f"a.grad[0, :4] {a.grad[0, :4].tolist()}",
              f"b.grad[0, :4] {b.grad[0, :4].tolist()}"], KINDS["memory"])])


def _wrapped(nodes: Iterable[UOp], width: int = 100) -> list[str]:
    """Nodes as `OP[shape]`, several to a line."""
    lines = [""]
    for word in (f"{n.op.name}{list(n.shape)}" for n in nodes):
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] += f" {word}"
    return [f" {line}" for line in lines]


DRAWINGS: dict[str, Callable[[], str]] = {
    "pipeline.svg": pipeline, "graph_layer.svg": layer_graph, "graph_gradient.svg": gradient_graph,
    "schedule_attention.svg": attention_schedule, "views.svg": views, "loops_matmul.svg": matmul_loops,
    "arena.svg": training_arena}


def main() -> None:
    for name, make in DRAWINGS.items():
        (IMAGES / name).write_text(make())
        print(f"drawn: docs/img/{name}")


if __name__ == "__main__":
    main()
