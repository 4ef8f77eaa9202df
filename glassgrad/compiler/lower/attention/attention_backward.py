"""Lower the backward pass of attention: contractions with a factor that is computed from other contractions.

In: a kernel's graph that contains one. Out: its loop tree.

    task batch, heads, blocks of rows:
      queries[d][q], gradients[d][q] = ..                   the row factors of the products, once
      loop blocks of keys:
        tile[k][q], tile1[k][q] = ..                        the inner contractions
        tile[k][q] = the factor, of both                    for a softmax's gradient: exp(tile - top) / sums * (..)
        out[d][q] = out[d][q] + sum over k of values[k][d] * tile[k][q]

"Rows" are those of the result. For the gradient of the keys, rows are keys, and the loop is over blocks of queries; a
causal mask then leaves the last blocks, which are computed from the last to the first. Several results may share the
loops: each has its own factor, values and sums, and all use the same tiles.

For groups of threads, values added to a contraction become the initial value of its accumulator, masks are applied to
its tile, and a constant factor of the weights is applied to the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import UOp, const, identity, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import add, both, multiply, substitute_index
from glassgrad.compiler.lower.attention.attention_blocks import BlockLoops, ScoreBlocks, batch_elements
from glassgrad.compiler.lower.attention.attention_scores import in_full_precision, shifted_sum, without_factor
from glassgrad.compiler.lower.element_expressions import Computation, Index, source_index
from glassgrad.compiler.lower.loops import Assign, Statement, Store, load, local, ranges_of, register
from glassgrad.compiler.schedule.attention_backward import FactorProduct


class ComputedFactor(BlockLoops):
    """Builds one kernel's loops: those of its first chain, which has all products, and of chains that share them."""
    keys_in_any_order = True

    def __init__(self, sink: UOp, chains: list[FactorProduct], blocks: ScoreBlocks, number: int = 0,
                 rows: int | None = None):
        chain, *others = chains
        size, keys = (chain.weights.shape[a] for a in (chain.row_axis, chain.axis))
        width = sum(math.prod(c.weights.shape[a] for a in c.columns) for c in chains)
        rows = rows or blocks.rows_of(size, width, reads=False, batch=batch_elements(chain))
        super().__init__(sink, chain, chain.total.dtype.accumulator, blocks, rows,
                         blocks._replace(keys=blocks.factor_keys).keys_of(keys))
        self.out = local(f"out{number or ''}", self.dtype, self.out.arg.size)
        self.factor, self.scale = in_full_precision(chain.weights, chain.inside, self.dtype), 1.0
        if self.equal_sizes:
            self.factor, self.scale = without_factor(self.factor)
        self.rounded = min([n.dtype for n in chain.inside if n.dtype.is_float],
                           key=lambda dtype: (dtype.itemsize, dtype.mantissa))
        for n in toposort([self.factor]):
            if n not in self.nesting:
                self.nesting[n] = max([self.nesting[s] for s in n.src], default=0)
        self.tiles = {p: local(f"tile{i or ''}", self.dtype, self.keys * self.rows)
                      for i, p in enumerate(chain.products)}
        self.tops = {p: self.top(p) if self.equal_sizes else p for p in chain.products}
        self.factors: dict[UOp, float] = {}           # product -> the constant factor left out of its tile
        self.sharing = [ComputedFactor(sink, [other], blocks, i, self.rows) for i, other in enumerate(others, 1)]
        for other in self.sharing:
            other.tiles, other.factors = self.tiles, self.factors
            self.stands_for.update(other.stands_for)

    def top(self, product: UOp) -> UOp:
        """The last value computed from a product by views, additions, constant factors and masks alone."""
        readers: dict[UOp, list[UOp]] = {}
        for n in toposort([self.factor]):
            for s in set(n.src):
                readers.setdefault(s, []).append(n)
        top = node = product
        while len(readers.get(node, [])) == 1:
            [reader] = readers[node]
            if reader.op in (o.ADD, o.SUB, o.MUL, o.WHERE):
                at = 1 if reader.op is o.WHERE else 0
                others = [s for i, s in enumerate(reader.src) if i != at]
                if reader.src[at] is not node or not _absorbed(reader, others[-1]) or \
                        any(p in toposort([s]) for s in others for p in self.chain.products):
                    break
                top = reader
            elif reader.op not in (o.RESHAPE, o.PERMUTE) and not (reader.op is o.CAST and reader.dtype is node.dtype):
                break
            node = reader
        return top

    def computation(self, node: UOp, at: Index, gate: UOp | None) -> Computation:
        if node in self.known:
            return (yield from super().computation(node, at, gate))
        if node.op is o.EXP2 and self.equal_sizes and node.dtype is self.dtype:
            argument = yield (node.src[0], at, gate)
            return UOp(o.EXP2, node.dtype, (argument,))
        if node.op is o.WHERE and self.equal_sizes and node.src[2].op is o.CONST and node.src[2].arg == 0:
            condition = self.value_at(node.src[0], at if node.src[0].shape else (), None)
            if condition in self.conditions(node.src[1], at, 0):       # already 0 there
                return (yield (node.src[1], at, gate))
        return (yield from super().computation(node, at, gate))

    # -- the nests -------------------------------------------------------------------------------------------
    def begin(self) -> list[Statement]:
        return [*super().begin(), *[s for other in self.sharing for s in other.clear()]]

    def over_keys(self, first: UOp, size: int) -> tuple[list[Statement], UOp]:
        key, out = self.key(size), list[Statement]()
        spot = add(multiply(key, self.rows), self.row)
        parts = [*self.sharing, self]
        for part in parts:                    # a dry run, which records the index at which each product is read
            part.known = {top: part.loaded(p, spot) for p, top in part.tops.items()}
            part.nest([key, self.row], list)
            part.made(first, key)
        edge = both(self.row_gate, self.key_gate)
        wanted = [part.factor_conditions(part.at_key("k_at", first, key)) for part in parts]
        known, self.known = self.known, self.rows_known()
        for p, tile in self.tiles.items():
            out += self.nest([key, self.row], partial(self.product, p, tile, spot, edge))
        self.known = known
        out += self.nest([key, self.row], partial(self.weights, parts, first, key, spot))
        for part, tile in zip(parts, self.tiles.values()):
            out += part.times_values(first, size, tile)
        least, kept = identity(o.MAX, self.dtype), const(0, self.dtype)
        for condition in wanted[0]:
            if all(condition in others for others in wanted):
                kept = condition.where(kept, least)
        return out, substitute_index(kept, self.stands_for, {})

    def loaded(self, product: UOp, spot: UOp) -> Callable[[Index], UOp]:
        """Return a function that loads an element of a product's tile and multiplies it by the product's factor."""
        def value(at: Index) -> UOp:
            tile, factor = load(self.tiles[product], spot), self.factors.get(product, 1.0)
            return tile if factor == 1 else tile * factor

        return value

    def made(self, first: UOp, key: UOp) -> UOp:
        """The value of the factor at a key of a block."""
        at = self.at_key("k_at", first, key)
        return self.value_at(self.factor, at, both(self.row_gate, self.key_gate))

    def weights(self, parts: list[ComputedFactor], first: UOp, key: UOp, spot: UOp) -> list[Statement]:
        """Compute the factors of all parts, each into a tile; shared values are computed once."""
        out, known = list[Statement](), dict[UOp, UOp]()
        for number, part in enumerate(parts):
            part.open_blocks, part.memo = self.open_blocks, {}
            value, made = register(f"e{number or ''}", self.dtype), part.made(first, key)
            out.append(Assign(value, substitute_index(made, known, {})))
            known[made] = value
        for value, part, tile in zip(known.values(), parts, self.tiles.values()):
            out.append(Store(tile, spot, value.cast(part.rounded).cast(self.dtype) if self.equal_sizes else value))
        return out

    def product(self, node: UOp, tile: UOp, spot: UOp, gate: UOp | None) -> list[Statement]:
        """Store a contraction, with the values added to it, in its tile; keys past the end are masked there."""
        top = self.tops[node]
        value = self.value_at(top, self.read_at[top], gate).cast(self.dtype)
        if not self.equal_sizes:
            return [Store(tile, spot, value)]
        [total] = [made for (requested, _, _), made in self.memo.items() if requested is node]
        found = shifted_sum(value, total)
        if found is None:
            raise Bug(f"{top.op.name} is not made of a product by additions, factors and masks alone")
        self.factors[node] = found.factor
        found = found._replace(begin=self.without_other_gates(found.begin, gate))
        if self.key_gate is not None and self.is_exponent(top) and found.factor > 0:
            found = found._replace(mask=both(self.key_gate, found.mask))
        return [Store(tile, spot, found.over(total))]

    def without_other_gates(self, value: UOp | None, gate: UOp | None) -> UOp | None:
        """Keep only those gates of loads that the load's index depends on, rows or keys: results past the other end are
        discarded anyway."""
        if value is None or gate is None:
            return value
        reads = [n for n in toposort([value]) if n.op is o.LOAD and n.src[2:] == (gate,)]
        return substitute_index(value, {n: load(n.src[0], n.src[1], both(*self.gates_of(n.src[1]))) for n in reads}, {})

    def gates_of(self, at: UOp) -> list[UOp | None]:
        """The gate of rows and that of keys, if an index depends on their counters."""
        counters = frozenset[UOp]().union(*[ranges_of(self.stands_for.get(r, r)) for r in ranges_of(at)])
        return [None if gate is None or counters.isdisjoint(ranges_of(gate)) else gate
                for gate in (self.row_gate, self.key_gate)]

    def is_exponent(self, top: UOp) -> bool:
        """Whether a value is read by an exponential only."""
        readers = [n for n in toposort([self.factor]) if top in n.src]
        return len(readers) == 1 and readers[0].op is o.EXP2

    def clear(self) -> list[Statement]:
        """Set the accumulator to 0."""
        return self.nest([*self.wide, self.row], lambda: [Store(self.out, self.out_at(), const(0, self.dtype))])

    def finish(self) -> list[Statement]:
        out: list[Statement] = []
        for part in (*self.sharing, self):
            part.known = {}
            total = load(part.out, part.out_at())
            out += part.result(total if part.scale == 1 else total * part.scale)
        return out

    # -- masks -----------------------------------------------------------------------------------------------
    def factor_conditions(self, at: Index) -> list[UOp]:
        """Conditions for the factor to be nonzero: where any of them is false, it is 0."""
        self.nest([self.row], list)
        return self.conditions(self.factor, at, 0)

    def conditions(self, node: UOp, at: Index, masked_value: float) -> list[UOp]:
        """Conditions such that, where one is false, a node has the value `masked_value` (0; -inf for an exponent)."""
        if node.op in (o.RESHAPE, o.PERMUTE, o.EXPAND):
            return self.conditions(node.src[0], source_index(node, at)[0], masked_value)
        if node.op is o.WHERE and node.src[2].op is o.CONST and node.src[2].arg == masked_value:
            condition = self.value_at(node.src[0], at if node.src[0].shape else (), None)
            return [condition, *self.conditions(node.src[1], at, masked_value)]
        if node.op is o.EXP2 and masked_value == 0:
            return self.conditions(node.src[0], at, -float("inf"))
        if node.op is o.MUL and masked_value == 0:
            return [found for s in node.src for found in self.conditions(s, at if s.shape else (), masked_value)]
        scaled = node.op is o.MUL and node.src[1].op is o.CONST and node.src[1].arg > 0
        if node.op is o.CAST or scaled or node.op is o.SUB and masked_value < 0:
            return self.conditions(node.src[0], at, masked_value)
        return []


def _absorbed(reader: UOp, other: UOp) -> bool:
    """Whether an op can become part of an accumulator's initial value, constant factor or mask."""
    other = other.below((o.CAST, o.EXPAND, o.RESHAPE))
    if reader.op is o.WHERE:
        return other.op is o.CONST and other.arg == -math.inf
    return reader.op is not o.MUL or other.op is o.CONST and 0 < other.arg < math.inf
