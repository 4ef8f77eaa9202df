"""Keep schedules between processes. In: a name, a `Schedule` and the graph's nodes. Out: the same schedule, or None.

Scheduling a graph takes many times as long as building it; reading a stored schedule takes a tenth of that. An entry is
a pickle of the kernels' graphs and slots, which is safe because the disk cache reads only files that the user owns. The
source lines of kernels differ between programs that build the same graph, so an entry stores, instead of a line, the
index of the graph node that was made there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from glassgrad.base.settings import settings
from glassgrad.base.source_lines import Line, line_of, one_place, user_place
from glassgrad.compiler import pipeline
from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.graph.ops import Ops
from glassgrad.compiler.schedule.kernels import Schedule
from glassgrad.runtime.disk_cache import default_cache, name_of
from glassgrad.runtime.kernel_key import source_digest

LEAST_NODES = 64        # a smaller graph is scheduled as fast as a file is read; a GRADIENT node stands for many
IN_A_FORMULA = 16       # nodes that a FORMULA stands for


def _compiler() -> tuple[Any, ...]:
    """The parts of the compiler that a program can extend: ops, rules and passes."""
    return (len(vars(Ops)), *pipeline.ALGEBRA.rules, *pipeline.PASSES)


_OWN_COMPILER = _compiler()


def can_be_kept(order: Collection[UOp]) -> bool:
    """Whether to cache the schedule of a graph of these nodes: the graph is large enough, the program has not extended
    the compiler, and no setting (DEBUG=4, CHECK) needs the passes to run."""
    ops = Counter(n.op for n in order)
    nodes = len(order) + IN_A_FORMULA * ops[o.FORMULA]
    return (nodes >= LEAST_NODES or o.GRADIENT in ops) and settings.DEBUG < 4 and \
        not settings.CHECK and _compiler() == _OWN_COMPILER and ops.keys().isdisjoint((o.COPY, o.CALL))


def schedule_name(*parts: str) -> str:
    """The cache key of a schedule: a digest of everything that it depends on."""
    sources = source_digest(), source_digest("engine"), source_digest("tensor/formulas")    # the last has gradients
    return name_of("schedule", *sources, *parts)


def keep_schedule(name: str, schedule: Schedule, more: Any, order: Sequence[UOp]) -> None:
    """Store a schedule together with the picklable `more`; `order` has the nodes of its graph."""
    import pickle
    wanted = {line for item in schedule.items for line in item.lines}
    numbers = _first_node_at(wanted, order)
    lines = [tuple([numbers.get(line, -1) for line in item.lines]) for item in schedule.items]
    items = [replace(item, lines=()) for item in schedule.items]
    default_cache().put(name, pickle.dumps((replace(schedule, items=items, results={}), lines, more)))


def kept_schedule(name: str, order: Sequence[UOp]) -> tuple[Schedule, Any] | None:
    """Return (schedule, more) as stored under a name, or None."""
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


def _first_node_at(wanted: set[Line], order: Sequence[UOp]) -> dict[Line, int]:
    """For each of these lines, the index of the first node that was made there."""
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
