"""Show the state of the compiler after a pass as text. In: a pass's work. Out: text, and the user's lines of each line.

How a pass of compiler/pipeline.py is shown depends only on its kind of work, so new passes are shown without more code.
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
OURS: Place = ((lambda: None).__code__, 0)      # the place of nodes that a pass made
Links = list[list[Place]]       # for each line of a text, its places in the user's program


@dataclass
class PassText:
    """A pass and its result as text; None if the pass changed nothing."""
    name: str
    stage: str
    does: str
    file: str
    text: str | None
    links: Links
    rules: dict[str, Any] = field(default_factory=dict)        # rule: (times, (why, before, after) of the first)
    steps: list[PassText] = field(default_factory=list)        # the text after each of its moves


def graph_text(work: GraphWork) -> tuple[str, Links]:
    """Write a graph as far as it is scheduled: its nodes; then which are stored in memory, and why; then the
    kernels."""
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
    """Write a graph's nodes, sources first, each named by its op and a count, so that texts of two passes can be
    compared."""
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
    """Write a kernel as far as it is compiled: its graph, its loop tree, or its source."""
    if work.source:
        return _cut(work.source.strip("\n").split("\n"), [])
    if each.stage == GRAPH or work.loops is None:
        return nodes_text([] if work.ast is None else [work.ast])
    return loop_text(work)


def loop_text(work: KernelWork) -> tuple[str, Links]:
    """Write the loop tree, with the places of the values that each line computes. An accumulation without such places,
    as in a tile, gets those of the kernel's reductions."""
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
    """Return for each line of the loop tree the names of the user's ops that it computes; together with the user's line
    they identify the nodes of the graph."""
    combined = {op.combine: op.name for op in o.REDUCE}
    found: dict[int, list[str]] = {}
    for statement, row in rows_of(work.kernel).items():
        names = {n.op.name: None for n in _computed(statement)}
        if isinstance(statement, Accumulate):
            names[combined.get(statement.combine, statement.combine.name)] = None
        found[row] = list(names)
    return [found.get(row, []) for row in range(max(found, default=-1) + 1)]


def _computed(statement: Any) -> list[UOp]:
    """Return the user's nodes that a statement computes, without those of indices."""
    value = [statement.value] if isinstance(statement, (Assign, Accumulate, Store)) else []
    return [n for n in toposort(value, lambda n: n.src if n.op is not o.LOAD else ())
            if n.place is not None and n.op in o.ELEMENTWISE and n.place is not OURS]
