"""Choose and apply the moves that make a kernel fast. In: a plain loop tree and a `Target`. Out: the optimized tree.

Each loop nest is either a contraction (contraction_tilings.py), tiled by one of the families of
product/tiling_parameters.py, or it gets lanes and tasks (plain/plain_loops.py; on a GPU plain/gpu_loops.py). Choices
depend on shapes, dtypes and the target alone, never on threads or timing. Each is data (decisions.py), so that a search
can try others (runtime/search/beam.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.graph.symbolic import lower_bound
from glassgrad.compiler.lower.loops import (For, If, Kernel, Phase, Statement, Store, loads_in, task_loops, version_of,
                                            walk)
from glassgrad.compiler.optimize.contraction_tilings import contraction, contraction_by_groups
from glassgrad.compiler.optimize.decisions import Choice, Decisions, Refused, read
from glassgrad.compiler.optimize.moves import loop_moves as moves, reduction_moves as sum_moves
from glassgrad.compiler.optimize.moves.split_by_remainder import by_remainder, in_one_nest, split_where_divided
from glassgrad.compiler.optimize.plain.access_order import work
from glassgrad.compiler.optimize.plain.gpu_loops import group_loops
from glassgrad.compiler.optimize.plain.plain_loops import plain
from glassgrad.compiler.optimize.plain.rows_in_registers import rows_by_length
from glassgrad.compiler.optimize.redundant_phases import without_redundant_fills
from glassgrad.compiler.optimize.run_time_blocks import by_terms, in_blocks
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.optimize.tasks_of_several_nests import nests
from glassgrad.compiler.optimize.versions_by_size import run_only_if, with_kernel_arguments

# importing this module registers every kind of choice
__all__ = ["STREAM_FROM", "Refused", "decide", "optimize", "read", "unoptimized"]


def optimize(kernel: Kernel, target: Target, given: Sequence[str] | None = None) -> Kernel:
    """Apply the recipe's moves to a kernel, or the `given` ones (some kernel's `moves`; raises `Refused` if they do not
    fit). The results stay the same up to the order of sums, which the recipe alone decides."""
    return decide(kernel, target, Decisions(given))


def decide(kernel: Kernel, target: Target, decisions: Decisions) -> Kernel:
    """As `optimize`, with the caller's `Decisions`; all decisions given to these must be used."""
    if target.narrow_steps and work([s for phase in kernel.phases for s in phase.body]) <= target.narrow_steps:
        target = replace(target, vector_bytes=target.vector_bytes // 2)
    phases = [made for phase in kernel.phases if is_nests(phase.body)
              for made in _several_nests(phase.body, target, decisions)]
    any_tiled = bool(phases)
    for parts in _loop_nests(kernel, target):
        if target.groups:
            phases += _on_groups(parts, target, decisions)
            continue
        for nest in [nest for part in parts for nest in _merged(part, target)]:
            made, is_tiled = _on_cpu(nest, kernel, target, decisions)
            phases += made
            any_tiled = any_tiled or is_tiled
    streamed = () if any_tiled or target.groups else streamed_slots([p.body for p in phases], target, decisions)
    phases = without_redundant_fills(phases) if target.groups else phases
    phases = [Phase(moves.branch(phase.body)) for phase in phases]
    decisions.finish()
    return Kernel(kernel.name, kernel.params, phases, kernel.written, decisions.moves, streamed)


def _several_nests(body: list[Statement], target: Target, decisions: Decisions) -> list[Phase]:
    """The phases of tasks that consist of several loop nests."""
    runs, tasks = version_of(body)
    return [Phase(run_only_if(runs, made)) for made in nests(tasks, target, decisions)]


def _on_cpu(nest: list[Statement], kernel: Kernel, target: Target, decisions: Decisions) -> tuple[list[Phase], bool]:
    """The phases of a loop nest on a CPU, and whether it was tiled as a contraction."""
    runs, nest = version_of(nest)
    tiled = contraction(nest, target, decisions, runs is not None) if target.tiled_products else None
    made = tiled or plain(nest, target, decisions)
    if runs is not None:
        made = [run_only_if(runs, with_kernel_arguments(body, kernel)) for body in made]
    return [Phase(body) for body in made], tiled is not None


def _merged(part: list[Statement], target: Target) -> list[list[Statement]]:
    """Merge the loops of a nest where possible. With a length known only at run time, this may give several nests."""
    body = moves.merge_all(part)
    if any(f.stop is not None for f in task_loops(body)[0]):
        return in_blocks(body, target)
    some_stop = any(isinstance(s, For) and s.stop is not None for s in walk(body))
    return by_terms(body, target) if some_stop else [body]


def _on_groups(parts: list[list[Statement]], target: Target, decisions: Decisions) -> list[Phase]:
    """The phases of loop nests on groups of threads. Nests that are not contractions, or that add up the parts of one,
    are merged if they have the same loops."""
    phases: list[Phase] = []
    waiting: list[list[Statement]] = []
    for part in parts:
        versions = [version_of(nest) for nest in _merged(part, target)]
        tiled = [contraction_by_groups(nest, target, decisions, runs is not None) for runs, nest in versions]
        if tiled == [None] * len(versions):
            waiting.append(part)
            continue
        for (runs, nest), found in zip(versions, tiled):
            made, rest = ([], nest) if found is None else found
            if rest and runs is None:
                waiting.append(rest)
            elif rest:
                made = [*made, *group_loops(moves.merge_all(rest), target, decisions)]
            phases += [Phase(run_only_if(runs, body)) for body in made]
    same_loops: dict[tuple[UOp, ...], list[list[Statement]]] = {}
    for nest in waiting:
        same_loops.setdefault(tuple([f.range for f in task_loops(nest)[0]]), []).append(nest)
    for alike in same_loops.values():
        for nest in in_one_nest(alike):
            for runs, rows in map(version_of, rows_by_length(moves.merge_all(nest))):
                phases += [Phase(run_only_if(runs, body)) for body in group_loops(rows, target, decisions)]
    return phases


def is_nests(body: list[Statement]) -> bool:
    """Whether each task consists of several loop nests."""
    _, inner = task_loops(body)
    return len(inner) > 1 and all(isinstance(s, (For, If)) for s in inner)


def _loop_nests(kernel: Kernel, target: Target) -> Iterator[list[list[Statement]]]:
    """Yield the loop nests of each phase, split by remainders; for thread groups, sums over equal loops are fused."""
    for phase in [p for p in kernel.phases if not is_nests(p.body)]:
        body = moves.without_known_gates(phase.body)
        if target.groups:
            body = split_where_divided(sum_moves.sums_together(body))
        yield by_remainder(body)


def unoptimized(kernel: Kernel) -> Kernel:
    """Keep plain loops and make each phase one task (the setting NOOPT)."""
    return Kernel(kernel.name, kernel.params, [Phase(moves.serial(p.body)) for p in kernel.phases], kernel.written)


# -- streaming (non-temporal) stores of large results --------------------------------------------------------
# An ordinary store first fetches the cache line that it writes to. A streaming store writes full lines straight to
# memory: this saves a third of the traffic of `y = f(x)`, and keeps the contents of the caches. But a result that fits
# a cache is better left there. Measured on a Xeon with 2 MB of second-level cache, y = 1.5 x and a sum of y together
# are faster by 11% for 8 MB, 16% for 16 MB and 27% for 64 MB, but slower by 30% for 4 MB.

STREAM_FROM = 8        # times the second-level cache: so large a result is evicted before it is read


@dataclass(frozen=True)
class Stream(Choice):
    """Whether large results are written by streaming stores."""
    results: bool


def streamed_slots(bodies: Sequence[list[Statement]], target: Target, decisions: Decisions) -> tuple[int, ...]:
    """The slots of large results that these statements write and do not read."""
    statements = [s for body in bodies for s in walk(body)]
    stores = [s for s in statements if isinstance(s, Store) and s.memory.op is o.PARAM]
    large = {s.memory for s in stores if _bytes(s.memory) >= STREAM_FROM * target.l2_bytes}
    if not large:
        return ()
    read = {n.src[0] for body in bodies for n in loads_in(body)}
    changed = {s.memory for s in stores if s.combine is not None}
    slots = sorted(memory.arg.slot for memory in large - read - changed)
    return tuple(slots) if slots and decisions.ask(Stream(True), lambda c: None).results else ()


def _bytes(memory: UOp) -> int:
    """A lower bound of a result's size in bytes."""
    return math.prod(map(lower_bound, memory.shape)) * memory.dtype.itemsize
