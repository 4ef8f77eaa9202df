"""What the compiler's work looks like after a pass, as text. In: a pass's work. Out: text, and the user's line of each.

Any pass on the list of compiler/pipeline.py is shown by the kind of work it does, so one that is added appears.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from glassgrad.base.source_lines import Place
from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.lower.loops import Accumulate, Assign, Store
from glassgrad.compiler.lower.printing import rows_of, show
from glassgrad.compiler.pipeline import GRAPH, GraphWork, KernelWork, Pass

LONGEST = 4_000                 # lines of a text that are kept
OURS: Place = ((lambda: None).__code__, 0)      # the place of what a pass makes of no line of the user's
Links = list[list[Place]]       # for each line of a text, the places in the user's program that it comes from


@dataclass
class PassText:
    """A pass, and what it left: None where that is what the pass before it left."""
    name: str
    stage: str
    does: str
    file: str
    text: str | None
    links: Links
    rules: dict[str, Any] = field(default_factory=dict)        # rule: (times, (why, before, after) of the first)
    steps: list[PassText] = field(default_factory=list)        # what each of its moves left


def graph_text(work: GraphWork) -> tuple[str, Links]:
    """A graph on its way to a schedule: its nodes; then which have memory, and why; then the kernels."""
    if work.schedule.items:
        return _schedule_text(work)
    if work.stored:
        rows = [f"{_node(n):<44} {why}" for n, why in work.stored.items()]
        if work.groups:
            rows = []
            for number, group in enumerate(work.groups):
                rows += [f"kernel {number}: {_node(root):<40} {work.stored.get(root, 'inside its kernel')}"
                         for root in group.roots]
            nodes = [root for group in work.groups for root in group.roots]
        else:
            nodes = list(work.stored)
        return _cut(rows, [[n.place] if n.place else [] for n in nodes])
    return nodes_text(work.sinks)


def nodes_text(sinks: Sequence[UOp]) -> tuple[str, Links]:
    """A graph's nodes, sources first. Numbers are small names that stay the same while a node stays where it is."""
    order = toposort(list(dict.fromkeys(sinks)))
    names: dict[UOp, str] = {}
    counts: dict[str, int] = {}
    rows = []
    for n in order:
        kind = n.op.name.lower()
        counts[kind] = counts.get(kind, -1) + 1
        names[n] = f"{kind}{counts[kind]}"
        arg = "" if n.arg is None else f" {_argument(n)}"
        rows.append(f"{names[n]:<12} {n.dtype.name}{list(n.shape)}{arg}"
                    + (f"  <- {', '.join(names[s] for s in n.src)}" if n.src else ""))
    return _cut(rows, [[n.place] if n.place else [] for n in order])


def _schedule_text(work: GraphWork) -> tuple[str, Links]:
    rows: list[str] = []
    links: Links = []
    for number, item in enumerate(work.schedule.items):
        shapes = ", ".join(f"{list(s.shape)}" for s in item.ast.src if s.op is o.STORE)
        where = f" on {item.device}" if item.device else ""
        rows.append(f"kernel {number}{where}: writes {shapes or 'a copy'} to {list(item.slots[:item.results])}, reads "
                    f"{list(item.slots[item.results:])}: {'; '.join(item.reasons)}")
        root = item.ast.src[0]
        links.append([root.src[1].place] if root.op is o.STORE and root.src[1].place else [])
    return _cut(rows, links)


def _node(n: UOp) -> str:
    return f"{n.op.name} {n.dtype.name}{list(n.shape)}"


def _argument(n: UOp) -> str:
    text = str(n.arg)
    return text if len(text) <= 100 else text[:100] + " ..."


def _cut(rows: list[str], links: Links) -> tuple[str, Links]:
    if len(rows) > LONGEST:
        rows, links = [*rows[:LONGEST], f"... and {len(rows) - LONGEST} more lines"], [*links[:LONGEST], []]
    return "\n".join(rows), links


def kernel_text(each: Pass, work: KernelWork) -> tuple[str, Links]:
    """A kernel on its way to text: its graph, its loop tree, then source."""
    if work.source:
        return _cut(work.source.strip("\n").split("\n"), [])
    if each.stage == GRAPH or work.loops is None:
        return nodes_text([] if work.ast is None else [work.ast])
    return loop_text(work)


def loop_text(work: KernelWork) -> tuple[str, Links]:
    """The loop tree as text; each line with the places whose values it computes. A sum that is made anew, as a tile, is
    of the lines of the kernel's reductions."""
    rows = show(work.kernel).split("\n")
    sums = {id(n.place): n.place for n in toposort([] if work.ast is None else [work.ast])
            if n.op in o.REDUCE and n.place is not None and n.place is not OURS}
    links: Links = [[] for _ in rows]
    for statement, row in rows_of(work.kernel).items():
        links[row] = list({id(n.place): n.place for n in _computed(statement)}.values())
        if not links[row] and isinstance(statement, Accumulate):
            links[row] = list(sums.values())
    return _cut(rows, links)


def row_ops(work: KernelWork) -> list[list[str]]:
    """For each line of the loop tree, the names of the user's ops that it computes: with the user's line, they say
    which nodes of the graph."""
    combined = {op.combine: op.name for op in o.REDUCE}
    found: dict[int, list[str]] = {}
    for statement, row in rows_of(work.kernel).items():
        names = {n.op.name: None for n in _computed(statement)}
        if isinstance(statement, Accumulate):
            names[combined.get(statement.combine, statement.combine.name)] = None
        found[row] = list(names)
    return [found.get(row, []) for row in range(max(found, default=-1) + 1)]


def _computed(statement: Any) -> list[UOp]:
    """The nodes of the user's that a statement computes: not the indices it loads and stores by."""
    value = [statement.value] if isinstance(statement, (Assign, Accumulate, Store)) else []
    return [n for n in toposort(value, lambda n: n.src if n.op is not o.LOAD else ())
            if n.place is not None and n.op in o.ELEMENTWISE and n.place is not OURS]
