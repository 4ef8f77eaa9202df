"""Lower SCATTER and SCAN, which always have a kernel of their own. In: such a node, and where its result is stored.
Out: phases. Values that they read are computed at their counters, as in any kernel (element_expressions.py).
"""

from __future__ import annotations

import math

from glassgrad.compiler.graph import UOp, identity, ops as o
from glassgrad.compiler.graph.index_algebra import add, bounds, build, exact, index, linear, multiply, operation
from glassgrad.compiler.lower.element_expressions import Block, Values, flatten
from glassgrad.compiler.lower.loops import LOOP, TASK, Accumulate, Assign, For, Phase, Statement, Store, load, register

_COMBINED = {"add": o.ADD, "max": o.MAX}     # modes of a SCATTER


class ScatterAndScan(Values):
    """`Values`, plus the loops of the two ops that write their result in an order of their own."""

    def scatter(self, target: UOp, node: UOp) -> list[Phase]:
        """Copy the base, then store the values: in sequence along the index; in parallel along the other axes, and
        along axes of the index that write disjoint elements (rows of a batch). A permutation writes each element
        exactly once: in parallel, and without copying the base. A fourth source gives the starts of bins of the index,
        which write disjoint elements; if there are as many bins as rows, each belongs to a row, which is summed before
        it is stored."""
        base, where, values, *starts = node.src
        first = self.copy(target, base)
        rest = tuple(self.counter(f"j{a}", n) for a, n in enumerate(base.shape[1:]))
        at = steps = tuple(self.counter(f"s{a}", n) for a, n in enumerate(where.shape))
        outer = [Block(c) for c in rest]
        inner = [Block(c) for c in steps]
        stop = None
        if starts:
            number = self.counter("b", starts[0].shape[0] - 1)
            outer = [Block(number), *outer]
            self.open_blocks = [Block(None), *outer]
            start, end = (self.clamped(self.value_at(starts[0], (b,), None), where.shape[0] + 1)
                          for b in (number, add(number, index(1))))
            at = (self.clamped(add(start, steps[0]), where.shape[0]),)
            stop = operation(o.MAX, add(end, multiply(start, -1)), index(0))
        self.open_blocks = [Block(None), *outer, *inner]
        combine = _COMBINED.get(node.arg.mode)
        if starts and rest and number.arg.size == base.shape[0] and combine is not None:
            total, here = register("acc", node.dtype.accumulator), (number, *rest)
            added = self.value_at(values, at + rest, None).cast(total.dtype)
            along = [*inner[0].statements, Accumulate(total, combine, added)]
            return [Phase(self.closed(outer, TASK, [
                Assign(total, self.value_at(base, here, None).cast(total.dtype)), For(steps[0], LOOP, along, stop),
                Store(target, flatten(here, base.shape, self.size), total.cast(node.dtype))]))]
        row = self.clamped(self.value_at(where, at, None), base.shape[0])
        spot = flatten((row, *rest), base.shape, self.size)
        if not any(block.statements for block in inner):
            outer = [*[b for b in inner if _writes_disjoint(spot, b.counter)], *outer]
            inner = [b for b in inner if b not in outer]
            self.open_blocks = [Block(None), *outer, *inner]
        stores: list[Statement] = [_update(target, spot, self.value_at(values, at + rest, None), combine, not inner)]
        if node.arg.mode == "permute":
            return [Phase(self.closed([*outer, *inner], TASK, stores))]
        if stop is None:
            return [first, Phase(self.closed(outer, TASK, self.closed(inner, LOOP, stores)))]
        return [first, Phase(self.closed(outer, TASK, [For(steps[0], LOOP, stores, stop)]))]

    def copy(self, target: UOp, source: UOp) -> Phase:
        """Store every element of a source."""
        at = tuple(self.counter(f"i{a}", n) for a, n in enumerate(source.shape))
        self.open_blocks += [Block(c) for c in at]
        copied = self.value_at(source, at, None)
        self.open_blocks[-1].statements.append(Store(target, flatten(at, source.shape, self.size), copied))
        phase = Phase(self.nested(self.open_blocks))
        self.open_blocks = [Block(None)]
        return phase

    def scan(self, target: UOp, node: UOp) -> list[Phase]:
        """Combine along one axis step by step, one row per task."""
        source, axis, combine = node.src[0], node.arg.axis, node.arg.combine
        at = tuple(self.counter(f"i{a}" if a != axis else "k0", n) for a, n in enumerate(source.shape))
        outer = [Block(c) for a, c in enumerate(at) if a != axis]
        along = Block(at[axis])
        self.open_blocks = [Block(None), *outer, along]
        total = register("acc", node.dtype.accumulator)
        value = self.value_at(source, at, None).cast(total.dtype)
        along.statements += [Accumulate(total, combine, value),
                             Store(target, flatten(at, source.shape, self.size), total.cast(node.dtype))]
        body: list[Statement] = [Assign(total, identity(combine, total.dtype)), *self.closed([along], LOOP, [])]
        return [Phase(self.closed(outer, TASK, body))]


def _update(target: UOp, spot: UOp, value: UOp, combine: o.Op | None, disjoint: bool) -> Store:
    """Combine a value with an element. Reduced-precision floats are combined in float32; disjoint elements are updated
    by a plain load and store."""
    wide = target.dtype.accumulator
    if combine is None or wide is target.dtype and not disjoint:
        return Store(target, spot, value, combine)
    return Store(target, spot, UOp(combine, wide, (load(target, spot).cast(wide), value.cast(wide))).cast(target.dtype))


def _writes_disjoint(spot: UOp, counter: UOp | None) -> bool:
    """Whether iterations of a counter write disjoint elements: it is a separate digit of the index."""
    terms = {atom: k for atom, k in linear(spot)[1].items() if bounds(atom)[0] < bounds(atom)[1]}
    unit = terms.get(counter, 0) if counter is not None else 0
    if counter is None or unit <= 0 or not exact(spot):
        return False
    low, high = bounds(build(0, {atom: k for atom, k in terms.items() if abs(k) < unit}))
    above = math.gcd(*[k for atom, k in terms.items() if abs(k) >= unit and atom is not counter])
    return high - low < unit and (above == 0 or unit * (counter.arg.size - 1) + high - low < above)
