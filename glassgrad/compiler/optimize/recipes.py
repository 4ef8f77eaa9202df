"""Which moves make a kernel fast. In: a plain loop tree and a `Target`. Out: the optimized tree.

Every loop nest is a contraction (contractions.py), cut into tiles by one of the families of product/tiling.py, or it
gets lanes and tasks (plain/plain_loops.py). Choices depend on shapes, dtypes and the target alone, never on threads or
timing; each is data (decisions.py), so that a search can try others (runtime/search/beam.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from glassgrad.compiler.lower.loops import Kernel, Phase, Statement
from glassgrad.compiler.optimize.contractions import contraction, in_blocks
from glassgrad.compiler.optimize.decisions import Decisions, Refused, read
from glassgrad.compiler.optimize.moves import cold_path, loop_moves as moves
from glassgrad.compiler.optimize.moves.split_by_remainder import residues
from glassgrad.compiler.optimize.moves.streaming_stores import streamed_slots
from glassgrad.compiler.optimize.nests import is_nests, nests
from glassgrad.compiler.optimize.plain.group_loops import in_threads
from glassgrad.compiler.optimize.plain.plain_loops import plain
from glassgrad.compiler.optimize.plain.transposed_copies import across_group
from glassgrad.compiler.optimize.targets.target import Target

__all__ = ["Refused", "decide", "optimize", "read", "unoptimized"]      # to import this module makes all kinds readable


def optimize(kernel: Kernel, target: Target, products: bool = True, given: Sequence[str] | None = None) -> Kernel:
    """The kernel with the recipe's moves applied, or the moves `given` (some kernel's `moves`; raises `Refused` where
    they do not fit). What it computes stays the same up to the order of sums, which the recipe alone decides. Without
    `products`, contractions are plain loops, except on a target with groups of threads."""
    decisions = Decisions(given)
    optimized = decide(kernel, target, decisions, products)
    decisions.finish()
    return optimized


def decide(kernel: Kernel, target: Target, decisions: Decisions, products: bool = True) -> Kernel:
    """`optimize`, with the decisions made through the caller's object."""
    phases = [Phase(body) for phase in kernel.phases if is_nests(phase.body)
              for body in nests(phase.body, target, decisions)]
    any_tiled = bool(phases)
    for body in _loop_nests(kernel, target):
        tiled = contraction(body, target, decisions) if products or target.groups else None
        done, rest = ([], body) if tiled is None else tiled
        phases += [Phase(b) for b in [*done, *(_plain(rest, target, decisions) if rest else [])]]
        any_tiled = any_tiled or tiled is not None
    streamed = () if any_tiled or target.groups else streamed_slots([p.body for p in phases], target, decisions)
    phases = [Phase(cold_path.branch(phase.body)) for phase in phases]
    return Kernel(kernel.name, kernel.params, phases, kernel.written, decisions.moves, streamed)


def _plain(body: list[Statement], target: Target, decisions: Decisions) -> list[list[Statement]]:
    """A loop nest that is no contraction."""
    if target.groups:
        across = across_group(body, target, decisions)
        short = in_threads(body, target, decisions) if across is None else [across]
        if short is not None:
            return short
    return plain(body, target, decisions)


def _loop_nests(kernel: Kernel, target: Target) -> Iterator[list[Statement]]:
    """The loop nests that are optimized one by one: of each phase, split by remainders, merged, cut to known sizes."""
    for phase in [p for p in kernel.phases if not is_nests(p.body)]:
        for part in residues(phase.body):
            yield from in_blocks(moves.merge_all(part), target)


def unoptimized(kernel: Kernel) -> Kernel:
    """NOOPT: the plain loops, as one task each phase."""
    return Kernel(kernel.name, kernel.params, [Phase(moves.serial(p.body)) for p in kernel.phases], kernel.written)
