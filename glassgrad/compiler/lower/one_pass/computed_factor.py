"""A sum of products whose factor is computed from sums of products. In: a kernel's graph that holds one. Out: loops.

    task batch, heads, blocks of rows:
      queries[d][q], gradients[d][q] = ..                   the rows' factors of the products, once
      loop blocks of keys:
        tile[k][q], tile1[k][q] = ..                        the sums of products
        tile[k][q] = the factor, of both                    for a softmax's gradient: exp(tile - top) / sums * (..)
        out[d][q] = out[d][q] + sum over k of values[k][d] * tile[k][q]

"Rows" are those of the result: of the gradient of the keys, these are keys, and the loop is over blocks of queries. A
causal mask then leaves the last blocks, which are done from the last to the first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.index_algebra import add, both, multiply, substitute_index
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.uop import UOp, const, identity
from glassgrad.compiler.lower.loops import Assign, Statement, Store, load, local, register
from glassgrad.compiler.lower.movement import Index, source_index
from glassgrad.compiler.lower.one_pass.block_loops import BlockLoops, ScoreBlocks
from glassgrad.compiler.lower.one_pass.scores import in_full_precision
from glassgrad.compiler.lower.values import Computation
from glassgrad.compiler.schedule.computed_factors import FactorProduct


class ComputedFactor(BlockLoops):
    """The loops of one kernel."""
    any_order = True

    def __init__(self, sink: UOp, chain: FactorProduct, blocks: ScoreBlocks):
        rows, keys = (chain.weights.shape[a] for a in (chain.row_axis, chain.axis))
        super().__init__(sink, chain, chain.total.dtype.accumulator, blocks, blocks.rows_of(rows),
                         blocks._replace(keys=blocks.factor_keys).keys_of(keys))
        self.tiles = [local(f"tile{i or ''}", self.dtype, self.keys * self.rows) for i in range(len(chain.products))]
        self.factor = in_full_precision(chain.weights, chain.inside, self.dtype)
        self.rounded = min([n.dtype for n in chain.inside if n.dtype.is_float], key=lambda dtype: dtype.itemsize)
        for n in toposort([self.factor]):
            if n not in self.nesting:
                self.nesting[n] = max([self.nesting[s] for s in n.src], default=0)

    def computation(self, node: UOp, at: Index, gate: UOp | None) -> Computation:
        if node.op is o.EXP2 and self.even and node.dtype is self.dtype and node not in self.known:
            argument = yield (node.src[0], at, gate)
            return UOp(o.EXP2, node.dtype, (argument,))
        return (yield from super().computation(node, at, gate))

    def over_keys(self, first: UOp, size: int) -> tuple[list[Statement], UOp]:
        chain, key = self.chain, self.key(size)
        at, spot = self.at_key("k_at", first, key), add(multiply(key, self.rows), self.row)
        edge = both(self.row_gate, self.key_gate)
        tiles = {p: load(tile, spot) for p, tile in zip(chain.products, self.tiles)}
        value, out = register("e", self.dtype), list[Statement]()

        def loaded(tile: UOp) -> Callable[[Index], UOp]:
            return lambda at: tile

        def factor() -> list[Statement]:
            made = self.value_at(self.factor, at, edge)
            small = value.cast(self.rounded).cast(self.dtype) if self.even else value
            return [Assign(value, made), Store(self.tiles[0], spot, small)]

        self.known = {p: loaded(tile) for p, tile in tiles.items()}
        last = self.nest([key, self.row], factor)
        kept = self.in_sight(self.factor, at)
        self.known = self.rows_known()
        for p, tile in zip(chain.products, self.tiles):
            out += self.nest([key, self.row], partial(self.product, p, tile, spot, edge))
        return [*out, *last, *self.times_values(first, size, self.tiles[0])], \
            substitute_index(kept, self.stands_for, {})

    def product(self, node: UOp, tile: UOp, spot: UOp, gate: UOp | None) -> list[Statement]:
        """A sum of products, into its tile."""
        return [Store(tile, spot, self.value_at(node, self.asked[node], gate).cast(self.dtype))]

    def finish(self) -> list[Statement]:
        self.known = {}
        return self.result(load(self.out, self.out_at()))

    def in_sight(self, node: UOp, at: Index) -> UOp:
        """-inf where a mask makes the factor 0, else something else."""
        least, out = identity(o.MAX, self.dtype), const(0, self.dtype)
        self.nest([self.row], list)
        for condition in self.conditions(node, at, 0):
            out = condition.where(out, least)
        return out

    def conditions(self, node: UOp, at: Index, gone: float) -> list[UOp]:
        """Conditions, outside each of which a node has the value `gone`: 0, or -inf for what is exponentiated."""
        if node.op in (o.RESHAPE, o.PERMUTE, o.EXPAND):
            return self.conditions(node.src[0], source_index(node, at)[0], gone)
        if node.op is o.WHERE and node.src[2].op is o.CONST and node.src[2].arg == gone:
            condition = self.value_at(node.src[0], at if node.src[0].shape else (), None)
            return [condition, *self.conditions(node.src[1], at, gone)]
        if node.op is o.EXP2 and gone == 0:
            return self.conditions(node.src[0], at, -float("inf"))
        if node.op is o.MUL and gone == 0:
            return [found for s in node.src for found in self.conditions(s, at if s.shape else (), gone)]
        scaled = node.op is o.MUL and node.src[1].op is o.CONST and node.src[1].arg > 0
        if node.op is o.CAST or scaled or node.op is o.SUB and gone < 0:
            return self.conditions(node.src[0], at, gone)
        return []
