"""Draw a graph as SVG, for notebooks and pages. In: nodes. Out: SVG text. Nodes draw themselves with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassgrad.base.svg import INK, DrawnBox, graph
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.ops import ELEMENTWISE, MOVEMENT, REDUCE

KINDS = {"elementwise": "#cfe8cf", "reduce": "#f6d6c9", "movement": "#d3e1f3", "memory": "#eeeeee"}
MOST_NODES = 160                # a larger graph is drawn up to this many nodes, from its results down


def kind_of(node: Any) -> str:
    """The category of a node that decides its colour."""
    return "elementwise" if node.op in ELEMENTWISE else "reduce" if node.op in REDUCE else \
        "movement" if node.op in MOVEMENT else "memory"


def node_box(node: Any, border: str = INK) -> DrawnBox:
    """A node's box: its op, or a constant's value, and its shape."""
    value = f" {node.arg}" if node.op.name == "CONST" else ""
    return DrawnBox([node.op.name + value, str(list(node.shape))], KINDS[kind_of(node)], border)


def graph_svg(roots: Sequence[Any]) -> str:
    """Draw the graph under some nodes."""
    order = toposort(roots)
    shown = order[-MOST_NODES:]
    inside = set(shown)
    boxes: dict[Any, DrawnBox] = {node: node_box(node) for node in shown}
    sources: dict[Any, list[Any]] = {node: [s for s in node.src if s in inside] for node in shown}
    if len(order) > len(shown):
        boxes = {"rest": DrawnBox([f"{len(order) - len(shown)} more nodes"], "#ffffff"), **boxes}
        sources = {"rest": [], **{n: found if len(found) == len(n.src) else [*found, "rest"]
                                  for n, found in sources.items()}}
    return graph(boxes, sources, KINDS)
