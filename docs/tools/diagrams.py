"""The drawings of the documentation, from real graphs, schedules and loop trees. Out: docs/img/*.svg.

    python docs/tools/diagrams.py        draw them anew; tests/project/test_site.py compares them with what is committed
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

import stage_diagrams  # noqa: E402 - runs as a script, from any folder
from draw import Box, Nest, graph, grids, nests  # noqa: E402

from benchmarks.matmul_steps import steps  # noqa: E402
from glassgrad import Tensor  # noqa: E402
from glassgrad.compiler.graph.ops import ELEMENTWISE, MOVEMENT, REDUCE  # noqa: E402
from glassgrad.compiler.graph.uop import UOp  # noqa: E402
from glassgrad.compiler.lower.loops import For, If, Kernel, Phase, Statement  # noqa: E402
from glassgrad.compiler.lower.printing import show  # noqa: E402
from glassgrad.compiler.optimize.targets.target import Target  # noqa: E402

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


DRAWINGS: dict[str, Callable[[], str]] = {
    "graph_layer.svg": layer_graph, "graph_gradient.svg": gradient_graph, "schedule_attention.svg": attention_schedule,
    "views.svg": views, "loops_matmul.svg": matmul_loops, **stage_diagrams.DRAWINGS}


def main() -> None:
    for name, make in DRAWINGS.items():
        (IMAGES / name).write_text(make())
        print(f"drawn: docs/img/{name}")


if __name__ == "__main__":
    main()
