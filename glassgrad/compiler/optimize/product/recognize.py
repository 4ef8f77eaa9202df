"""Sums of products, recognised. In: a plain loop tree. Out: `Product`, its factors and loops taken apart."""

from __future__ import annotations

from dataclasses import dataclass, field

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.index_algebra import add, linear, multiply
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import (
    Accumulate,
    Assign,
    For,
    Statement,
    Store,
    counter,
    expressions,
    ranges_of,
    task_loops,
    walk,
)
from glassgrad.compiler.optimize.moves import loop_moves as moves


@dataclass
class Product:
    """A sum of products taken apart: out[batch, m, n] = epilogue(sum over k of left[m, k] * right[k, n])."""
    left: UOp
    right: UOp
    m: list[UOp]
    n: list[UOp]
    batch: list[UOp]
    k: list[UOp]
    total: UOp                    # the register that is summed into
    epilogue: list[Statement]
    stops: dict[UOp, UOp] = field(default_factory=dict)   # of loops of the batch, or of K, that end at a value

    @property
    def k_stop(self) -> UOp | None:
        """Where the sum ends, if only the running kernel knows: then it is one loop."""
        return self.stops.get(self.k[0])

    def swapped(self) -> Product:
        """The same with the factors exchanged."""
        return Product(self.right, self.left, self.n, self.m, self.batch, self.k, self.total, self.epilogue, self.stops)


def recognise(body: list[Statement]) -> Product | None:
    """The body as a sum of products, or None. A loop over groups and their members counts as two."""
    found = _recognise(body)
    split = _groups_apart(body) if found is None else None
    return found if split is None else _recognise(split)


def recognise_window(body: list[Statement]) -> Product | None:
    """The body as a sum of products whose right factor has no loop of its own, or None."""
    found = _recognise(body, both_sides=False)
    if found is None or found.m and found.n or not (found.m or found.n):
        return None
    return found if found.m else found.swapped()


def _groups_apart(body: list[Statement]) -> list[Statement] | None:
    """for i in n: ..i // c..  ->  for g in n/c: for i in c: ..g..      refuses: nothing is divided"""
    loops, inner = task_loops(body)
    if any(f.stop is not None for f in loops):
        return None
    around = {f.range: at for at, f in enumerate(loops)}
    for node in toposort(e for s in walk(inner) for e in expressions(s)):
        if node.op is not o.IDIV or node.src[0] not in around or node.src[1].op is not o.CONST:
            continue
        i, members = node.src[0], int(node.src[1].arg)
        if i.arg.size % members:
            continue
        group, member = counter(i.arg.name + "g", i.arg.size // members), counter(i.arg.name, members)
        inner = moves.rebuild(inner, {i: add(multiply(group, members), member)})
        for f in reversed(loops):
            inner = [For(member if f.range is i else f.range, f.kind, inner)]
            inner = [For(group, f.kind, inner)] if f.range is i else inner
        return inner
    return None


def _recognise(body: list[Statement], both_sides: bool = True) -> Product | None:
    around, body = task_loops(body)
    loops = [f.range for f in around]
    stops = {f.range: f.stop for f in around if f.stop is not None}      # tiles are cut to sizes that are known
    if len(body) < 3 or not isinstance(body[0], Assign) or not isinstance(body[1], For):
        return None
    if not all(isinstance(s, Store) for s in body[2:]):
        return None
    total, inner, k = body[0].register, body[1], [body[1].range]
    while len(inner.body) == 1 and isinstance(inner.body[0], For):
        if inner.stop is not None or inner.body[0].stop is not None:
            return None
        inner = inner.body[0]
        k.append(inner.range)
    if inner.stop is not None:
        if ranges_of(inner.stop):
            return None
        stops[inner.range] = inner.stop
    if len(inner.body) != 1 or not isinstance(inner.body[0], Accumulate):
        return None
    step = inner.body[0]
    if step.register is not total or step.combine is not o.ADD or step.value.op is not o.MUL:
        return None
    left, right = step.value.src
    in_left, in_right = ranges_of(left), ranges_of(right)
    if not all(r in in_left and r in in_right for r in k):
        return None
    m = [r for r in loops if r in in_left and r not in in_right and r not in stops]
    n = [r for r in loops if r in in_right and r not in in_left and r not in stops]
    batch = [r for r in loops if r not in m and r not in n]
    return Product(left, right, m, n, batch, k, total, body[2:], stops) if m and n or not both_sides else None


def lanes_on_the_right(p: Product) -> Product:
    """Exchange the factors where the axis that is contiguous in the output belongs to the left one."""
    store = p.epilogue[-1]
    assert isinstance(store, Store)
    _, terms = linear(store.index)
    return p.swapped() if any(terms.get(r) == 1 for r in p.m) else p
