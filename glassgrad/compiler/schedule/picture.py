"""Draw a schedule as SVG: kernels in execution order, what each reads, why its result is stored. Out: SVG text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassgrad.base.svg import DrawnBox, graph
from glassgrad.compiler.graph.picture import KINDS

LEGEND = {"input": KINDS["memory"], "kernel, and why its result is stored": KINDS["reduce"]}


def schedule_svg(items: Sequence[Any]) -> str:
    """Draw the kernels of a schedule (`Item`s), each below the kernels that it reads from."""
    boxes: dict[object, DrawnBox] = {}
    sources: dict[object, Sequence[object]] = {}
    written = {slot for item in items for slot in item.slots[:item.results]}
    for number, item in enumerate(items):
        params = sorted((n for n in item.ast.toposort() if n.op.name == "PARAM"), key=lambda p: p.arg.slot)
        for slot, param in zip(item.slots, params):
            if slot not in boxes and slot not in written:
                boxes[slot] = DrawnBox([f"input {slot}", str(list(param.shape))], KINDS["memory"])
                sources[slot] = ()
        key = item.slots[0]
        boxes[key] = DrawnBox([f"kernel {number}: {list(item.ast.src[0].shape)}", *item.reasons], KINDS["reduce"])
        sources[key] = [slot for slot in item.slots[item.results:] if slot in boxes]
    return graph(boxes, sources, LEGEND)
