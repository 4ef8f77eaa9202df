"""Keep schedules between processes. In: a name, a `Schedule` and the graph's nodes. Out: the same schedule, or None.

To find the kernels of a graph takes as long as to build it, many times over; to read them takes a tenth of that. An
entry holds the kernels' graphs and their slots, pickled: the disk cache reads only files of the user's own. A line of
the user's program belongs to the program that runs, not to the one that wrote the entry: so of each line, the entry
holds which node of the graph it is the line of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from glassgrad.base.settings import settings
from glassgrad.base.source_lines import Line, line_of, one_place, user_place
from glassgrad.compiler import pipeline
from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.graph.ops import Ops
from glassgrad.compiler.schedule.kernels import Schedule
from glassgrad.runtime.disk_cache import default_cache, sha256
from glassgrad.runtime.kernel_key import source_digest

LEAST_NODES = 64        # a smaller graph is scheduled about as fast as a file is read; a GRADIENT stands for many
IN_A_FORMULA = 16       # nodes that a FORMULA stands for


def _compiler() -> tuple[Any, ...]:
    """What a program can change of the compiler: it may have ops, rules and passes of its own."""
    return (len(vars(Ops)), *pipeline.ALGEBRA.rules, *pipeline.PASSES)


_OWN_COMPILER = _compiler()


def can_be_kept(order: Sequence[UOp]) -> bool:
    """Whether the schedule of a graph of these nodes is kept: if it is worth it, the compiler is the one whose source
    names the entries, and the passes need not be seen."""
    ops = Counter(n.op for n in order)
    nodes = len(order) + IN_A_FORMULA * ops[o.FORMULA]
    return (nodes >= LEAST_NODES or o.GRADIENT in ops) and bool(settings.CACHE) and settings.DEBUG < 4 and \
        not settings.CHECK and _compiler() == _OWN_COMPILER and ops.keys().isdisjoint((o.COPY, o.CALL))


def schedule_name(*parts: str) -> str:
    """The name of an entry, from all that the schedule depends on."""
    sources = source_digest(), source_digest("engine"), source_digest("tensor/formulas")    # which hold gradients
    return sha256("\n\n".join(("schedule", *sources, *parts)).encode()).hexdigest()


def keep_schedule(name: str, schedule: Schedule, more: Any, order: Sequence[UOp]) -> None:
    """Write a schedule, and what is found with it; `order` are the nodes of its graph."""
    import pickle
    wanted = {line for item in schedule.items for line in item.lines}
    numbers = _first_of(wanted, order)
    lines = [tuple([numbers.get(line, -1) for line in item.lines]) for item in schedule.items]
    items = [replace(item, lines=()) for item in schedule.items]
    default_cache().put(name, pickle.dumps((replace(schedule, items=items, results={}), lines, more)))


def kept_schedule(name: str, order: Sequence[UOp]) -> tuple[Schedule, Any] | None:
    """A schedule that was written, and what was found with it; None where there is none."""
    stored = default_cache().get(name)
    if stored is None:
        return None
    import pickle
    with one_place():
        schedule, lines, more = pickle.loads(stored)
    for item, numbers in zip(schedule.items, lines):
        found = [line_of(order[i].place if i >= 0 else user_place()) for i in numbers]
        item.lines = tuple(dict.fromkeys(line for line in found if line is not None))
    return schedule, more


def _first_of(wanted: set[Line], order: Sequence[UOp]) -> dict[Line, int]:
    """The number of the first node that was made at each of these lines."""
    found: dict[Line, int] = {}
    seen: set[tuple[int, int]] = set()
    for number, node in enumerate(order):
        if node.place is None or (id(node.place[0]), node.place[1]) in seen:
            continue
        seen.add((id(node.place[0]), node.place[1]))
        line = node.line
        if line in wanted:
            found.setdefault(line, number)
            if len(found) == len(wanted):
                break
    return found
