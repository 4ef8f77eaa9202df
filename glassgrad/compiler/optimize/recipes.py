"""Which moves make a kernel fast. In: a plain loop tree and a `Target`. Out: the optimized tree.

Every loop nest is a contraction (contractions.py), cut into tiles by one of the families of product/tiling.py, or it
gets lanes and tasks (plain/plain_loops.py). Choices depend on shapes, dtypes and the target alone, never on threads or
timing; each is data (decisions.py), so that a search can try others (runtime/search/beam.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from glassgrad.compiler.lower.loops import LOOP, For, If, Kernel, Phase, Statement
from glassgrad.compiler.optimize.contractions import contraction, in_blocks
from glassgrad.compiler.optimize.decisions import Decisions, Refused, read
from glassgrad.compiler.optimize.moves import cold_path, loop_moves as moves
from glassgrad.compiler.optimize.moves.split_by_remainder import residues
from glassgrad.compiler.optimize.moves.streaming_stores import streamed_slots
from glassgrad.compiler.optimize.plain.plain_loops import plain
from glassgrad.compiler.optimize.targets.target import Target

__all__ = ["Refused", "decide", "optimize", "read", "unoptimized"]      # to import this module makes all kinds readable


def optimize(kernel: Kernel, target: Target, contract: bool = True, given: Sequence[str] | None = None) -> Kernel:
    """The kernel with the recipe's moves applied, or the moves `given` (some kernel's `moves`; raises `Refused` where
    they do not fit). What it computes stays the same up to the order of sums, which the recipe alone decides."""
    decisions = Decisions(given)
    optimized = decide(kernel, target, decisions, contract)
    decisions.finish()
    return optimized


def decide(kernel: Kernel, target: Target, decisions: Decisions, contract: bool = True) -> Kernel:
    """`optimize`, with the decisions made through the caller's object."""
    phases: list[Phase] = []
    products = False
    for phase in kernel.phases:
        for body in [b for part in residues(phase.body) for b in in_blocks(moves.merge_all(part))]:
            tiled = contraction(body, target, decisions) if contract or target.groups else None
            done, rest = ([], body) if tiled is None else tiled
            phases += [Phase(b) for b in [*done, *(plain(rest, target, decisions) if rest else [])]]
            products = products or tiled is not None
    streamed = () if products or target.groups else streamed_slots([phase.body for phase in phases], target, decisions)
    phases = [Phase(cold_path.branch(phase.body)) for phase in phases]
    return Kernel(kernel.name, kernel.params, phases, kernel.written, decisions.moves, streamed)


def unoptimized(kernel: Kernel) -> Kernel:
    """NOOPT: the plain loops, as one task each phase."""
    def serial(body: list[Statement]) -> list[Statement]:
        return [For(s.range, LOOP, serial(s.body), s.stop) if isinstance(s, For) else
                If(s.condition, serial(s.body)) if isinstance(s, If) else s for s in body]
    return Kernel(kernel.name, kernel.params, [Phase(serial(p.body)) for p in kernel.phases], kernel.written)
