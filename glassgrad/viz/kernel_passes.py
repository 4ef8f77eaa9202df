"""Show one kernel after every pass, for the page. In: a kernel's graph and device. Out: texts, links, source, assembly.

The passes are run again, as the device runs them, with a callback after each (compiler/pipeline.py: `watched`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from glassgrad.base.errors import GlassgradError
from glassgrad.base.settings import Context
from glassgrad.base.source_lines import one_place
from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.optimize.decisions import Refused, read
from glassgrad.compiler.optimize.moves.move_decorator import logged_moves
from glassgrad.compiler.pipeline import KernelWork, Pass, watched
from glassgrad.runtime.devices import Device
from glassgrad.viz.assembly_links import linked_assembly
from glassgrad.viz.pass_text import OURS, Links, PassText, kernel_text, loop_text, nodes_text, row_ops

MOST_STEPS = 24                 # moves of a kernel that are shown one by one
INITIAL = "the kernel's graph"


@dataclass(eq=False)
class KernelTexts:
    """The texts and links that the page shows for a distinct kernel."""
    passes: list[PassText] = field(default_factory=list)
    moves: list[tuple[str, str]] = field(default_factory=list)       # (move, what this kind of move does)
    assembly: str = ""
    assembly_links: list[list[int]] = field(default_factory=list)    # for each of its lines, lines of the loop tree
    source_links: list[list[int]] = field(default_factory=list)      # for each line of source, lines of the loop tree
    row_ops: list[list[str]] = field(default_factory=list)           # for each line of the loop tree, the ops in it


def kernel_texts(ast: UOp, device: str, assembly: bool) -> KernelTexts:
    """Run the passes over a kernel again, and keep the text of each result."""
    found = KernelTexts()
    if ast.op is o.COPY:
        return found
    text, links = nodes_text([ast])
    found.passes.append(PassText("schedule", "schedule", INITIAL, "schedule/kernels.py", text, links))
    last = [text]

    def passed(each: Pass, work: Any) -> None:
        if not isinstance(work, KernelWork):
            return
        text, links = kernel_text(each, work)
        found.passes.append(PassText(each.name, each.stage, each.does, each.file, text if text != last[0] else None,
                                     links))
        last[0] = text
        if work.loops is not None:
            found.row_ops = row_ops(work)
            found.moves = [(move, what_it_does(move)) for move in work.loops.moves]

    try:
        with Context(DEBUG=0), one_place(OURS):
            with watched(passed):
                Device[device].source(ast)
            for each in found.passes:
                if each.name == "optimize" and each.text is not None:
                    each.steps = move_steps(ast, device)
        if assembly and device == "CPU":
            found.assembly, found.assembly_links = linked_assembly(ast, device, [move for move, _ in found.moves])
    except GlassgradError as problem:        # a custom device may have no source
        found.passes.append(PassText("source", "text", str(problem), "", None, []))
    loops = [p for p in found.passes if p.stage == "kernel" and p.text]
    sources = [p for p in found.passes if p.stage == "text" and p.text and p.name == "render"]
    if loops and sources:
        found.source_links = link_source(str(sources[-1].text), str(loops[-1].text))
        sources[-1].links = [[place for row in rows for place in _at(loops[-1].links, row)]
                             for rows in found.source_links]
    return found


PRODUCTS = {                     # what the families of optimize/product/tiling_parameters.py do, and why
    "contract": "a sum of products in tiles that stay in registers: each value that is loaded serves a row or a column",
    "direct": "a convolution in tiles that stay in registers; the image is read where it lies, without a copy",
    "unit": "a sum of products on the processor's matrix unit",
    "staged": "a sum of products by groups of threads, which share tiles of both factors",
    "boxes": "a sum of products on tensor cores, while copies of the next tiles are on their way",
    "taps": "a sum of products with the lanes along the sum: few results, long sums",
    "window": "one filter over an image: a vector that is loaded serves all taps it overlaps"}


def what_it_does(move: str) -> str:
    """Say what a kind of move does, and why: the first sentence of its class, or the family of a product.

    >>> what_it_does("lanes(loop=i1, tile=4, lanes=16)") != ""
    True
    """
    try:
        choice = read(move)
    except Refused:                          # a move that only a custom device knows
        return ""
    return PRODUCTS.get(choice.kind) or " ".join((type(choice).__doc__ or "").split()).split(". ")[0].rstrip(".")


def _at(links: Links, row: int) -> list[Any]:
    return links[row] if row < len(links) else []


def move_steps(ast: UOp, device: str) -> list[PassText]:
    """Return the loop tree after each move of `optimize`: after the first, the first two, and so on."""
    opened = Device[device]
    with logged_moves() as log:
        opened.loop_tree(ast)
    steps: list[PassText] = []
    if not 1 < len(log.applied) <= MOST_STEPS:
        return steps
    for count, move in enumerate(log.applied, 1):
        trees: list[tuple[str, Links]] = []

        def passed(each: Pass, work: Any, trees: list[tuple[str, Links]] = trees) -> None:
            if each.name == "optimize":
                trees.append(loop_text(work))

        with logged_moves(count), watched(passed):
            opened.loop_tree(ast)
        if trees:
            steps.append(PassText(f"{count} {move.name}", "kernel", move.does, move.file, *trees[-1]))
    return steps


# -- source and loop tree ------------------------------------------------------------------------------------
_LOOP = re.compile(r"\s*(?:task|loop|tile|lane|unit) (\w+) in")
_FOR = re.compile(r"\s*for \(\w+ (\w+) =")
_NAMES = re.compile(r"\b(acc\d+|kept\d+|panel\w*|a\d+|data\d+)")


def link_source(source: str, loops: str) -> list[list[int]]:
    """Return for each line of source the lines of the loop tree that it implements: the loop of that name, or the
    statements that write the same register or memory, or else that read it.

    >>> source = "for (i64 k = 0; k < 4; k++) {" + chr(10) + "  acc1_0 += data1[k];"
    >>> link_source(source, "f(a0, a1)" + chr(10) + "  loop k in 4" + chr(10) + "    acc1 += a1[k]")
    [[1], [2]]
    """
    heads = {m[1]: i for i, row in enumerate(loops.split("\n")) if (m := _LOOP.match(row))}
    writes: dict[str, list[int]] = {}
    reads: dict[str, list[int]] = {}
    for i, row in enumerate(loops.split("\n")[1:], 1):
        names = _NAMES.findall(row)
        for position, name in enumerate(names):
            (reads if position or "=" not in row else writes).setdefault(name, []).append(i)
    found: list[list[int]] = []
    for row in source.split("\n"):
        loop = _FOR.match(row)
        if loop:
            found.append([heads[loop[1]]] if loop[1] in heads else [])
            continue
        names = [f"a{n[4:]}" if n.startswith("data") else n for n in _NAMES.findall(row)]
        first = names[0] if names else ""
        found.append((writes.get(first) or reads.get(first) or [])[:4] if "=" in row or "store" in row else [])
    return found
