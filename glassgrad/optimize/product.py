"""Sums of products, recognised. In: a plain loop tree. Out: `Product`, its factors and loops taken apart."""

from __future__ import annotations

from dataclasses import dataclass

from glassgrad.graph import ops as o
from glassgrad.graph.index import linear
from glassgrad.graph.uop import UOp
from glassgrad.lower.loops import TASK, Accumulate, Assign, For, Statement, Store, ranges_of
from glassgrad.optimize.packing import stride_along


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

    def swapped(self) -> Product:
        """The same with the factors exchanged."""
        return Product(self.right, self.left, self.n, self.m, self.batch, self.k, self.total, self.epilogue)


def recognise(body: list[Statement]) -> Product | None:
    """The body as a sum of products, or None."""
    loops: list[UOp] = []
    while len(body) == 1 and isinstance(body[0], For) and body[0].kind == TASK:
        loops.append(body[0].range)
        body = body[0].body
    if len(body) < 3 or not isinstance(body[0], Assign) or not isinstance(body[1], For):
        return None
    if not all(isinstance(s, Store) for s in body[2:]):
        return None
    total, inner, k = body[0].register, body[1], [body[1].range]
    while len(inner.body) == 1 and isinstance(inner.body[0], For):
        inner = inner.body[0]
        k.append(inner.range)
    if len(inner.body) != 1 or not isinstance(inner.body[0], Accumulate):
        return None
    step = inner.body[0]
    if step.register is not total or step.combine is not o.ADD or step.value.op is not o.MUL:
        return None
    left, right = step.value.src
    in_left, in_right = ranges_of(left), ranges_of(right)
    if not all(r in in_left and r in in_right for r in k):
        return None
    m = [r for r in loops if r in in_left and r not in in_right]
    n = [r for r in loops if r in in_right and r not in in_left]
    batch = [r for r in loops if (r in in_left) == (r in in_right)]
    return Product(left, right, m, n, batch, k, total, body[2:]) if m and n else None


def lanes_on_the_right(p: Product) -> Product:
    """Exchange the factors where the axis that is contiguous in the output belongs to the left one."""
    store = p.epilogue[-1]
    assert isinstance(store, Store)
    _, terms = linear(store.index)
    return p.swapped() if any(terms.get(r) == 1 for r in p.m) else p


def footprint(factor: UOp, loops: list[UOp]) -> int:
    """How many elements of memory a factor touches at most while these loops run."""
    steps = [(abs(stride_along(factor.src[1], r) or 0), r.arg.size) for r in loops]
    return 1 + sum(step * (size - 1) for step, size in steps)
