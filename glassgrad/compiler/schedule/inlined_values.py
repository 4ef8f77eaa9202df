"""Track which nodes have memory, and what is inlined in the others. In: a graph in order. Out: `InlinedValues`.

`fusion.py` has the rules; this is the state that they share: for each node the cost, the loads and the reductions
inside it, which nodes got memory and why, and queries about readers, such as whether all of them are contractions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from glassgrad.compiler.graph import DType, UOp, ops as o, toposort, upper_bound
from glassgrad.compiler.graph.axis_dependence import AxisSet, nontrivial, varies

FEWER = 8              # a value this many times smaller than its reader is cheap to store and load
SEEN_THROUGH = (o.WINDOW, o.UNWINDOW, o.PERMUTE, o.RESHAPE, o.EXPAND, o.FLIP, o.SHRINK)
OUT_OF_ORDER = (o.PERMUTE, o.FLIP, o.WINDOW, o.UNWINDOW, o.GATHER)     # their rows are not contiguous in memory
SHIFTS = (o.SHRINK, o.PAD, o.FLIP)                                     # they read elements at other indices
_FEEDS = (*SEEN_THROUGH, o.MUL, o.CAST)
LEAVES = (o.BUFFER, o.PARAM, o.CONST, o.SCALAR)


class FusionLimits(NamedTuple):
    """The limits of fusion on a device. The defaults are a CPU's; see optimize/targets/target.py for others."""
    costly: int = 12               # vector instructions above which a value is stored, not computed twice
    costly_with_rows: int = 0      # the same for values computed from reductions that are stored
    stores_factors: bool = False   # store 16-bit factors of contractions that other kernels read too
    small: int = 16 * 1024         # elements up to which one kernel of chained reductions beats two kernels
    few_rows: int = 0              # a reduction is split into parts if it has fewer rows than this
    long_rows: int = 1 << 17       # and reads at least this many elements, unless a row has at most
    held_row: int = 0              # this many elements: then the registers of a thread group hold it
    few_columns: int = 1 << 40     # a reduction of columns is split if it has fewer columns than this,
    long_column: int = 64          # of at least this many elements each,
    column_elements: int = 1 << 18       # and if its columns span at least this many elements of memory
    buffers: int = 1 << 30         # the most arguments that a kernel can have
    pads_as_read: bool = False     # store the image of a convolution without its padding
    side_by_side: int = 0          # the most values that a kernel of small unrelated maps accesses; 0: no such kernels
    products_per_byte: int = 0     # float32 products in the time to store a byte: limits what saving products may cost
    unit_products: int = 0         # the same for 16-bit products of a matrix unit; 0: there is none
    softmax_rows: int = 32         # from this many rows with the same keys, softmax scores are recomputed, not stored
    masked_keys: int = 256         # from this many keys, a masked softmax's gradient recomputes scores; 0: always

    # up to this many elements in a step's largest value, one task does all steps of an item
    item_elements: int = 1 << 16

    def in_one_kernel(self, node: UOp) -> bool:
        """Whether a RECURRENCE of independent items is one kernel, in which a task does all steps of an item."""
        return bool(node.arg.item) and max([n.size for n in toposort(node.arg.item)]) <= self.item_elements

    def products_of(self, dtype: DType) -> int:
        """How many products of a type the device computes in the time to store a byte."""
        if dtype.itemsize == 2 and self.unit_products:
            return self.unit_products
        return self.products_per_byte or self.unit_products // 2             # tf32 has half the unit's rate


CPU_LIMITS = FusionLimits()


class Inlined(NamedTuple):
    """What is computed inside a node that has no memory."""
    cost: int                              # per element, in vector instructions
    inputs: int                            # values loaded per element
    elements: int = 0                      # the largest iteration space inside
    kept_axes: AxisSet | None = None       # axes of this node kept by the reductions inside; None: no reductions
    contraction: bool = False              # whether one of them is a contraction with reuse
    only_reduction: UOp | None = None      # the reduction inside, if there is exactly one
    depth: int = 0                         # the longest chain of reductions inside


NOTHING = Inlined(0, 1)
CONSTANT = Inlined(0, 0)


def widens(node: UOp) -> bool:
    """Whether a node is a cast to a wider type, whose source is smaller and cheap to cast again."""
    return node.op is o.CAST and node.src[0].dtype.itemsize < node.dtype.itemsize


def sums_products(node: UOp, varies: dict[UOp, AxisSet], least: int) -> bool:
    """Whether a node is a sum of products of two factors that both have the summed axes, where at least `least` factors
    have an axis that the other one lacks."""
    source = node.src[0].below((o.CAST,)) if node.op is o.SUM else node
    if node.op is not o.SUM or source.op is not o.MUL or () in (source.src[0].shape, source.src[1].shape):
        return False
    left, right = varies[source.src[0]], varies[source.src[1]]
    return left & right >= {*node.arg.axes} and bool(left - right) + bool(right - left) >= least


class InlinedValues:
    """The nodes of a graph: which have memory, and what is inlined in each of the others."""

    def __init__(self, order: list[UOp], limits: FusionLimits):
        self.limits = limits
        self.small_reductions: dict[UOp, str] = {}      # stored reductions, much smaller than their source -> reason
        self.start_again()
        self.varies = varies(order)
        self.number = {node: i for i, node in enumerate(order)}
        self.readers: dict[UOp, list[UOp]] = {}
        for node in order:
            for s in node.src:
                self.readers.setdefault(s, []).append(node)

    def start_again(self) -> None:
        """Reset all decisions; but from now on, store the small reductions found so far as soon as they are visited."""
        self.stored_at_once, self.small_reductions = self.small_reductions, {}
        self.inlined: dict[UOp, Inlined] = {}
        self.reasons: dict[UOp, str] = {}

    def store(self, node: UOp, reason: str) -> None:
        """Give memory to a node: to the value below its outermost movement ops and widening casts, unless that is
        larger. So a value rounded to 16 bits is stored in 16 bits, as matrix units read it."""
        base = node
        while base not in self.reasons and (base.op in (o.RESHAPE, o.PERMUTE, o.EXPAND, o.FLIP, o.DETACH) or
                                            widens(base) or self.is_piece(base)):
            base = base.src[0]
        if base.op in LEAVES or reason == "an output":
            base = node
        if base.op not in LEAVES:
            self.mark_stored(base, reason)
            while node is not base:          # readers see the stored value through these views
                self.inlined[node] = NOTHING
                node = node.src[0]
            self.inlined[base] = NOTHING

    def is_piece(self, node: UOp) -> bool:
        """Whether a node is one of several slices of a contraction, which is stored: the slices are views."""
        return node.op is o.SHRINK and self.inlined[node.src[0]].contraction and len(self.readers[node.src[0]]) > 1

    def mark_stored(self, node: UOp, reason: str) -> None:
        """Record that a node gets memory, and whether it is a small reduction."""
        inside = self.inlined[node]
        if inside.kept_axes is not None and not inside.contraction and node.size * FEWER <= inside.elements:
            self.small_reductions.setdefault(node, reason)
        self.reasons.setdefault(node, reason)

    def store_computed(self, node: UOp, reason: str) -> None:
        """Give memory to a source, unless it is in memory already, is a view of memory, or costs nothing."""
        inside = self.inlined[node]
        if inside.kept_axes is not None or inside.cost > 0:
            self.store(node, reason)

    def exact_cost(self, node: UOp) -> int:
        """The cost of what is inlined in a node. (Adding up the costs of sources counts shared operations twice.)"""
        return sum(n.op.cost for n in toposort([node], self.computed_sources))

    def computed_sources(self, node: UOp) -> list[UOp]:
        """The sources of a node that are computed inline."""
        return [s for s in node.src if s not in self.reasons and s.op not in LEAVES]

    def cost_of_views(self, node: UOp) -> int:
        """The cost of what is inlined in a node, each operation counted once per view that reads it: a value and the
        same value shifted are different elements. So the cost of a chain of x + shifted x doubles with each step."""
        costs: dict[UOp, int] = {}
        for top in toposort([node], self.computed_sources):
            if top is node or top.op in SHIFTS:
                inside = toposort([top], lambda n: [] if n in costs else self.computed_sources(n))
                costs[top] = sum(costs.get(n, n.op.cost) for n in inside)
        return costs[node]

    def memory_read(self, node: UOp) -> int:
        """How many values about as large as a node are read from memory to compute it, each counted once."""
        seen = toposort(node.src, lambda n: () if n in self.reasons or n.op in LEAVES else n.src)
        return sum(1 for n in seen if n.size * FEWER > node.size and (n in self.reasons or n.op in (o.BUFFER, o.PARAM)))

    def in_parts(self, node: UOp) -> bool:
        """Whether the reductions inside a node are split into parts, so that each needs a kernel of its own."""
        inside, limits = self.inlined[node], self.limits
        rows = math.prod(upper_bound(node.shape[a]) for a in inside.kept_axes or ())
        if rows >= limits.few_rows:
            is_few = rows < limits.few_columns and inside.elements >= limits.long_column * rows
            return is_few and self.is_of_columns(node)
        return inside.elements >= limits.long_rows and not self.is_held(node)

    def is_of_columns(self, node: UOp) -> bool:
        """Whether a reduction inside a node keeps the last axis of a large matrix, and so runs down its columns."""
        inside = toposort([node], self.computed_sources)
        sources = [(n.src[0].shape, n.arg.axes) for n in inside if n.op in o.REDUCE]
        return any(max(nontrivial(shape), default=0) not in axes and
                   math.prod(map(upper_bound, shape[min(axes):])) >= self.limits.column_elements
                   for shape, axes in sources)

    def is_held(self, node: UOp) -> bool:
        """Whether all reductions inside a node are over contiguous rows that fit the registers of a thread group."""
        inside = toposort([node], lambda n: () if n in self.reasons or n.op in LEAVES else n.src)
        if any(n.op in OUT_OF_ORDER for n in inside):
            return False
        memory = [n for n in inside if n in self.reasons or n.op in (o.BUFFER, o.PARAM)]
        for axes, shape in [(n.arg.axes, n.src[0].shape) for n in inside if n.op in o.REDUCE]:
            row = upper_bound(shape[axes[-1]])
            if axes != (max(nontrivial(shape), default=0),) or \
                    row * sum(upper_bound(n.size) >= row for n in memory) > self.limits.held_row:
                return False
        return True

    def iterations(self, node: UOp, reduced: AxisSet) -> int:
        """The largest iteration space inside a node if its axes `reduced` are summed. If these are the rows of a
        reduction inside it, that reduction is computed again for each index of the loops around them."""
        inside = self.inlined[node]
        if not inside.kept_axes or not reduced & inside.kept_axes:
            return inside.elements
        around = [a for a in nontrivial(node.shape) - inside.kept_axes if a not in reduced or a < max(inside.kept_axes)]
        return inside.elements * math.prod([upper_bound(node.shape[a]) for a in around])

    def weight(self, node: UOp) -> tuple[int, int]:
        """How large the reductions inside a node are: their rows, then the elements read. For comparing nodes."""
        inside = self.inlined[node]
        return math.prod(upper_bound(node.shape[a]) for a in inside.kept_axes or ()), inside.elements

    def reductions_under(self, node: UOp) -> tuple[list[UOp], list[UOp], set[UOp]]:
        """The reductions inlined in a node: small values that it broadcasts; others; and the nodes above these."""
        small_values: list[UOp] = []
        reductions: list[UOp] = []
        between: set[UOp] = set()
        stack, seen = [node], set()
        while stack:
            n = stack.pop()
            if n in seen or n in self.reasons or self.inlined[n].kept_axes is None:
                continue
            seen.add(n)
            if n.op in o.REDUCE:
                reductions.append(n)
                continue
            between.add(n)
            if n.op is o.EXPAND and n.size >= FEWER * n.src[0].size:
                small_values.append(n.src[0])
            else:
                stack.extend(n.src)
        return small_values, reductions, between

    def first_shared(self, reduction: UOp, between: set[UOp]) -> UOp:
        """The first value with several readers, upwards from a reduction; removes nodes below it from `between`."""
        node = reduction
        while len(self.readers[node]) == 1 and self.readers[node][0] in between:
            node = self.readers[node][0]
            between.discard(node)
        return node

    def feeds_contraction(self, node: UOp) -> bool:
        """Whether all readers of a node are contractions, such as those of a layer and its gradient. They pack a
        repeated factor once, so its cost is paid once."""
        return all(self._read_by_contractions(node))

    def chosen_by_position(self, node: UOp) -> bool:
        """Whether all readers of a value are WHEREs with conditions on positions alone, as in a concatenation: then it
        is read less often than it is repeated."""
        return all(reader.op is o.WHERE and not any(n.op in (o.BUFFER, o.PARAM) for n in toposort([reader.src[0]]))
                   for reader in self.readers.get(node, ()))

    def is_factor(self, node: UOp) -> bool:
        """Whether any contraction reads a value."""
        return any(self._read_by_contractions(node))

    def _read_by_contractions(self, node: UOp) -> Iterator[bool]:
        """For each reader of a value, through views, products and casts, yield whether it is a contraction; also yield
        False for a value without readers, and where there are too many readers to look at."""
        waiting, seen = [node], {node}
        while waiting and len(seen) <= 32:
            readers = self.readers.get(waiting.pop(), [])
            if not readers:
                yield False
            for reader in readers:
                if reader.op not in _FEEDS:
                    yield reader.op is o.SUM and self.is_contraction(reader)
                elif reader not in seen:
                    seen.add(reader)
                    waiting.append(reader)
        if waiting:
            yield False

    def is_contraction(self, node: UOp) -> bool:
        """Whether a node is a sum of products, with each factor reused along axes that only the other one has."""
        return sums_products(node, self.varies, 2)
