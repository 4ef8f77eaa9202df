"""The drawings of the documentation, from real graphs, schedules and loop trees. Out: docs/img/*.svg.

    python docs/tools/diagrams.py        draw them anew; tests/project/test_site.py compares them with what is committed
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

import guide_diagrams  # noqa: E402 - runs as a script, from any folder
import stage_diagrams  # noqa: E402
from draw_steps import grids  # noqa: E402

from benchmarks.matmul_steps import steps  # noqa: E402
from glassgrad import Tensor  # noqa: E402
from glassgrad.base.svg import graph, nests  # noqa: E402
from glassgrad.compiler.graph.gradient import written_out  # noqa: E402
from glassgrad.compiler.graph.picture import KINDS, graph_svg, node_box  # noqa: E402
from glassgrad.compiler.lower.expression_text import LOOPS, loop_boxes  # noqa: E402
from glassgrad.compiler.optimize.targets.target import Target  # noqa: E402
from glassgrad.compiler.schedule.picture import schedule_svg  # noqa: E402

IMAGES = ROOT / "docs" / "img"
AVX2 = Target("x86_64", vector_bytes=32, vector_registers=16, features=frozenset({"avx2", "fma"}))


def ones(*shape: int) -> Tensor:
    return Tensor.ones(*shape).contiguous().realize()


# -- the drawings --------------------------------------------------------------------------------------------
def layer_graph() -> str:
    """The graph of one layer, `(x @ w + b).relu()`."""
    return graph_svg([(ones(12, 32) @ ones(32, 16) + ones(16)).relu().uop])


def gradient_graph() -> str:
    """Forward and backward of `(x * w).relu().sum()`: what the gradient of w adds is drawn with a red border."""
    x, w = ones(3), ones(3)
    loss = (x * w).relu().sum()
    [slope] = written_out([loss.gradient(w)[0].uop])
    forward = loss.uop.toposort()
    nodes = list(dict.fromkeys([*forward, *slope.toposort()]))
    boxes = {n: node_box(n, "#222222" if n in forward else "#c0392b") for n in nodes}
    return graph(boxes, {n: n.src for n in nodes}, KINDS)


def attention_schedule() -> str:
    """The kernels of attention, with the reason why each result got memory."""
    items = ones(2, 4, 64, 32).scaled_dot_product_attention(ones(2, 4, 64, 32), ones(2, 4, 64, 32)).schedule()
    return schedule_svg(items)


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
    columns = {step.name: loop_boxes(step.kernel) for step in steps(384, 384, 384, AVX2)}
    return nests(columns, {kind: color for kind, color in LOOPS.items() if kind != "unit"})


DRAWINGS: dict[str, Callable[[], str]] = {
    "graph_layer.svg": layer_graph, "graph_gradient.svg": gradient_graph, "schedule_attention.svg": attention_schedule,
    "views.svg": views, "loops_matmul.svg": matmul_loops, **stage_diagrams.DRAWINGS,
    **guide_diagrams.DRAWINGS}


def main() -> None:
    for name, make in DRAWINGS.items():
        (IMAGES / name).write_text(make())
        print(f"drawn: docs/img/{name}")


if __name__ == "__main__":
    main()
