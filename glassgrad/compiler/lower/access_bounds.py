"""Prove that a loop tree stays inside its memory (SANITIZE=1). In: a `Kernel`. Out: nothing, or a `Bug` that names it.

Most indices are inside by their bounds alone (graph/index_algebra.py), including those computed by a program, which are
clamped. For the others, the gate, the conditions and the loop bounds around the access decide: every combination of the
counters in them is tried, with NumPy. No kernel runs for this, and none becomes slower. What this cannot decide
(symbolic sizes in a condition, more than 2**24 combinations) is left to GUARD_PAGES=1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import all_of, bounds, linear, span
from glassgrad.compiler.lower.expression_text import memory_text, text
from glassgrad.compiler.lower.loops import For, If, Kernel, Prefetch, Statement, Store, expressions, ranges_of

MOST_COMBINATIONS = 1 << 24       # of counters


class Access(NamedTuple):
    """A load or store, and the conditions under which it is executed."""
    memory: UOp
    at: UOp                          # the index
    conditions: tuple[UOp, ...]
    stores: bool

    @property
    def size(self) -> int:
        return int(self.memory.arg.size) if self.memory.op is o.LOCAL else self.memory.size


def prove_accesses(kernel: Kernel) -> None:
    """Raise a `Bug` for an access that may be outside its memory."""
    for phase in kernel.phases:
        for access in accesses(phase.body, ()):
            low, high = span(access.at)
            if low < 0 or high >= access.size:
                _try_all(kernel, access)


def accesses(body: Sequence[Statement], around: tuple[UOp, ...]) -> Iterator[Access]:
    """Yield every load and store in some statements, once for each statement that contains it."""
    for s in body:
        if not isinstance(s, Prefetch):                    # a prefetch is a hint, and may be out of bounds
            for n in toposort(expressions(s)):
                if n.op is o.LOAD:
                    yield Access(n.src[0], n.src[1], (*around, *[c for gate in n.src[2:] for c in all_of(gate)]), False)
        if isinstance(s, Store):
            yield Access(s.memory, s.index, (*around, *(all_of(s.gate) if s.gate is not None else ())), True)
        elif isinstance(s, For):
            yield from accesses(s.body, (*around, *([s.range < s.stop] if s.stop is not None else ())))
        elif isinstance(s, If):
            yield from accesses(s.body, (*around, *all_of(s.condition)))


def _try_all(kernel: Kernel, access: Access) -> None:
    """Try all values of the counters in conditions, with bounds for the others; if these do not suffice, of all."""
    mentioned = ranges_of(access.at)
    conditions = [c for c in access.conditions if _is_index(c) and ranges_of(c) & mentioned]
    if len(conditions) < sum(bool(ranges_of(c) & mentioned) for c in access.conditions) or not _is_index(access.at):
        return                               # depends on a symbolic size or a value in memory
    limited = {r for c in conditions for r in ranges_of(c)}
    outside = _outside(access, conditions, limited)
    if outside is not None and not mentioned <= limited:
        outside = _outside(access, conditions, limited | mentioned)
    if outside is not None:
        raise Bug(f"SANITIZE: the kernel {kernel.name} {'stores' if access.stores else 'loads'} "
                  f"{memory_text(access.memory)}[{text(access.at)}], which can be outside its {access.size} elements"
                  f"{' at ' + outside if outside else ''}")


def _outside(access: Access, conditions: Sequence[UOp], tried: set[UOp]) -> str | None:
    """A combination of counters for which an access is outside its memory, as text; None where there is none, or where
    there are too many to try."""
    import numpy as np
    counters = sorted(tried, key=lambda r: str(r.arg.name))
    if math.prod(r.arg.size for r in counters) > MOST_COMBINATIONS:
        return None
    constant, terms = linear(access.at)
    given: dict[UOp, Any] = {r: np.arange(r.arg.size).reshape([-1 if r is other else 1 for other in counters])
                             for r in counters}
    low = high = np.asarray(constant)
    for atom, factor in terms.items():
        if _is_index(atom) and ranges_of(atom) <= given.keys():
            exact = numbers_at(np, atom, given) * factor
            low, high = low + exact, high + exact
        else:
            ends = sorted(end * factor for end in bounds(atom))
            low, high = low + ends[0], high + ends[1]
    active = np.asarray(True)
    for condition in conditions:
        active = active & numbers_at(np, condition, given)
    outside = active & ((low < 0) | (high >= access.size))
    if not outside.any():
        return None
    at = np.unravel_index(int(outside.argmax()), outside.shape) if outside.shape else ()
    return ", ".join(f"{r.arg.name}={int(i)}" for r, i in zip(counters, at))


def _is_index(node: UOp) -> bool:
    """Whether a value consists of counters and constants alone."""
    return all(n.op in (o.RANGE, o.CONST) or n.op in o.ELEMENTWISE and n.op.meaning is not None
               for n in toposort([node]))


def numbers_at(np: Any, node: UOp, given: dict[UOp, Any]) -> Any:
    """The value of an index expression for all combinations of counters."""
    done = dict(given)
    for n in toposort([node]):
        if n not in done:
            meaning = n.op.meaning or (lambda np, value=n.arg: np.asarray(value))      # of a constant
            done[n] = meaning(np, *[done[s] for s in n.src])
    return done[node]
