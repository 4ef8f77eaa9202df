"""Store schedules between processes. In: a name, a `Schedule` and the graph's nodes. Out: the same schedule, or None.

Scheduling a graph takes many times as long as building it; reading a stored schedule takes a tenth of that. An entry is
a pickle of the kernels' graphs and slots, which is safe because the disk cache reads only files that the user owns. The
source lines of kernels differ between programs that build the same graph, so instead of a line an entry stores the
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

LEAST_NODES = 64        # smaller graphs, unless they have a GRADIENT node, are scheduled as fast as a file is read
IN_A_FORMULA = 16       # number of nodes that a FORMULA counts as


def _compiler() -> tuple[Any, ...]:
    """Return the parts of the compiler that a program can extend: ops, rules and passes."""
    return (len(vars(Ops)), *pipeline.ALGEBRA.rules, *pipeline.PASSES)


_OWN_COMPILER = _compiler()


def is_cacheable(order: Collection[UOp]) -> bool:
    """Return whether to cache the schedule of a graph of these nodes: the graph must be large enough, the program must
    not have extended the compiler, and no setting (DEBUG=4, CHECK) may need the passes to run."""
    ops = Counter(n.op for n in order)
    nodes = len(order) + IN_A_FORMULA * ops[o.FORMULA]
    return (nodes >= LEAST_NODES or o.GRADIENT in ops) and settings.DEBUG < 4 and \
        not settings.CHECK and _compiler() == _OWN_COMPILER and ops.keys().isdisjoint((o.COPY, o.CALL))


def schedule_name(*parts: str) -> str:
    """Return the cache key of a schedule: a digest of everything that it depends on."""
    sources = source_digest(), source_digest("engine"), source_digest("tensor/formulas")    # formulas have gradients
    return name_of("schedule", *sources, *parts)


def store_schedule(name: str, schedule: Schedule, more: Any, order: Sequence[UOp]) -> None:
    """Store a schedule together with the picklable `more`; `order` has the nodes of its graph."""
    import pickle
    wanted = {line for item in schedule.items for line in item.lines}
    numbers = _first_node_at(wanted, order)
    lines = [tuple([numbers.get(line, -1) for line in item.lines]) for item in schedule.items]
    items = [replace(item, lines=()) for item in schedule.items]
    default_cache().put(name, pickle.dumps((replace(schedule, items=items, results={}), lines, more)))


def load_schedule(name: str, order: Sequence[UOp]) -> tuple[Schedule, Any] | None:
    """Return the (schedule, more) stored under a name, or None."""
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
    """Return, for each of these lines, the index of the first node that was made there."""
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
