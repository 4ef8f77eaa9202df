"""Lower softmax(scores) times values to loops over blocks. In: a kernel's graph that contains it. Out: its loop tree.

    task batch, heads, blocks of rows (queries):
      queries[d][q] = ..                                    the row factor of the scores, once
      top, sums, out = -inf, 0, 0                           of the keys read so far, for each row
      loop blocks of keys:                                  up to the last key that any row of the block sees
        tile[k][q] = scores                                 a contraction, scaled and masked
        fresh[q] = max(top[q], max over k of tile[k][q])
        shrink[q] = exp(top[q] - fresh[q]);  top[q] = fresh[q]
        tile[k][q] = exp(tile[k][q] - top[q]);  sums[q] = sums[q] * shrink[q] + sum over k of tile[k][q]
        out[d][q] = out[d][q] * shrink[q] + sum over k of values[k][d] * tile[k][q]
      result = out / sums

If heads and rows are few, parts of the keys are tasks too: block b belongs to part b % parts. Each part stores its top,
sums and out, and a second phase joins the parts in order. If the gradient is in the same graph, its passes compute the
scores again, and need the maximum and the sum of each row, which are stored too. For groups of threads, scores of keys
past the end are -inf.
"""

from __future__ import annotations

import math
from functools import partial

from glassgrad.compiler.graph import Length, UOp, const, identity, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import add, both, index, multiply, substitute_index
from glassgrad.compiler.lower.attention.attention_blocks import BlockLoops, ScoreBlocks, batch_elements
from glassgrad.compiler.lower.attention.attention_scores import in_full_precision, without_factor
from glassgrad.compiler.lower.element_expressions import Index, flatten, source_index
from glassgrad.compiler.lower.loops import (LOOP, Accumulate, Assign, For, Phase, Statement, Store, counter, load,
                                            local, ranges_of, register)
from glassgrad.compiler.lower.transcendental import expand
from glassgrad.compiler.schedule.online_softmax import SoftmaxProduct


class OnlineSoftmax(BlockLoops):
    """Builds the loops of one kernel."""
    chain: SoftmaxProduct

    def __init__(self, sink: UOp, chain: SoftmaxProduct, blocks: ScoreBlocks, larger: int = 0, rows: int = 0):
        self.scores, self.factor = chain.scores, 1.0
        if blocks.equal_sizes:                    # not rounded in between; a constant factor is left to the exponential
            self.scores, self.factor = without_factor(in_full_precision(chain.scores, chain.inside, chain.exps.dtype))
        width = math.prod(chain.weights.shape[a] for a in chain.columns)
        rows = rows or blocks.rows_of(chain.weights.shape[chain.row_axis], width, self.scores_read_memory(chain),
                              batch_elements(chain))
        size, keys = (chain.weights.shape[a] for a in (chain.row_axis, chain.axis))
        one_block = not isinstance(size, Length) and size <= rows and sum(s.op is o.STORE for s in sink.src) == 1
        super().__init__(sink, chain, chain.exps.dtype, blocks, rows, blocks.keys_of(keys),
                         blocks.parts_of(keys, batch_elements(chain)) if one_block else 1, larger)
        rate = self.factor * (1 if chain.rate is None else chain.rate.arg)
        self.rate = None if rate == 1 else const(rate, self.dtype)
        for n in toposort([self.scores]):
            if n not in self.nesting:
                self.nesting[n] = max([self.nesting[s] for s in n.src], default=0)
        # condition on the row alone, outside of which its weights are 0 -> its index
        self.row_masks: dict[UOp, Index] = {}
        self.tile = local("tile", self.dtype, self.keys * self.rows)
        self.top, self.sums, self.shrink, self.scale = (
            local(name, self.dtype, self.rows) for name in ("top", "sums", "shrink", "scale"))

    def scores_read_memory(self, chain: SoftmaxProduct) -> bool:
        """Whether scores read memory other than the factors of the product of rows and keys."""
        return any(n.op is o.PARAM for n in toposort([self.scores], lambda n: () if n in chain.products else n.src))

    # -- values ----------------------------------------------------------------------------------------------
    def weigh(self, node: UOp, at: Index, value: UOp) -> UOp:
        """A weight, computed from the value of its exponential; factors shared by all keys are applied at the end."""
        if node is self.chain.exps or any(node is n for n, _ in self.chain.shared):
            self.read_at[node] = at
            return value if node is self.chain.exps else const(1, self.dtype)
        if node.op in o.MOVEMENT:
            return self.weigh(node.src[0], source_index(node, at, self.size)[0], value)
        if node.op is o.CAST and node.src[0].dtype.is_float:
            weight = self.weigh(node.src[0], at, value)
            rounds = self.equal_sizes and node.dtype.itemsize < self.dtype.itemsize and weight.op is not o.CONST
            return weight.cast(node.dtype).cast(self.dtype) if rounds else weight
        edge = both(self.row_gate, self.key_gate)
        if node not in self.chain.inside:
            return self.value_at(node, at if node.shape else (), edge).cast(self.dtype)
        if node.op is o.WHERE:
            if self.is_of_rows(node.src[0], at):             # applied to the result
                self.row_masks[node.src[0]] = at
                return self.weigh(node.src[1], at, value)
            chosen = self.value_at(node.src[0], at if node.src[0].shape else (), edge)
            return chosen.where(self.weigh(node.src[1], at, value), const(0, self.dtype))
        left, right = (self.weigh(s, at, value) for s in node.src)  # MUL, or DIV by a value that all keys share
        if left.op is o.CONST or right.op is o.CONST:
            left, right = (left, right) if right.op is o.CONST else (right, left)
            return left if right.arg == 1 else left * right
        return left * right

    def is_of_rows(self, condition: UOp, at: Index) -> bool:
        """Whether a condition depends on the row alone; only for thread groups, if no per-row value is stored."""
        if not self.equal_sizes or not condition.shape or self.of_rows():
            return False
        keys = {r for r in self.chosen_key if r not in (self.row, self.block)}
        return keys.isdisjoint(ranges_of(self.value_at(condition, at, self.row_gate)))

    def exponential(self, score: UOp, top: UOp) -> UOp:
        """exp2((score - top) * rate); and 0 for a score of -inf, even if the top is -inf because the row has seen no
        key yet. (On CPUs, the exponent of a masked score is set to 0: results that underflow are slow.)"""
        zero, least, rate = const(0, self.dtype), identity(o.MAX, self.dtype), self.rate
        if self.equal_sizes:                     # exp2(-inf) is 0, and cheap
            seen = top.eq(least).where(zero, top)
            below = score - seen if rate is None else UOp(o.MULACC, self.dtype, (score, rate, seen * -rate.arg))
            return UOp(o.EXP2, self.dtype, (below,))
        masked = score.eq(least)
        below = masked.where(zero, score - top)
        return masked.where(zero, expand(UOp(o.EXP2, self.dtype, (below if rate is None else below * rate,))))

    # -- the nests -------------------------------------------------------------------------------------------
    def begin(self) -> list[Statement]:
        zero = const(0, self.dtype)
        return [*self.nest([self.row], lambda: [Store(self.top, self.row, identity(o.MAX, self.dtype)),
                                                Store(self.sums, self.row, zero)]), *super().begin()]

    def over_keys(self, first: UOp, size: int) -> tuple[list[Statement], UOp]:
        """Compute one block of keys; also return the scores' expression."""
        chain, key = self.chain, self.key(size)
        at = self.at_key("k_at", first, key)
        self.chosen_key = ranges_of(at[chain.axis])
        self.weigh(chain.weights, at, register("e", self.dtype))
        scores_at, spot = self.read_at[chain.exps], add(multiply(key, self.rows), self.row)
        found: list[UOp] = []
        self.known = self.rows_known()

        def scores() -> list[Statement]:
            found.append(self.value_at(self.scores, scores_at, both(self.row_gate, self.key_gate)))
            value, least, gate = found[-1], identity(o.MAX, self.dtype), self.key_gate
            if value.op is o.WHERE and any(value.src[0] is self.value_at(condition, mask_at, self.row_gate)
                                           for condition, mask_at in self.row_masks.items()):
                value = value.src[1]                         # the mask is applied to the result instead
            value = fused(value) if self.equal_sizes else value
            if gate is not None and value.op is o.WHERE and value.src[2] is least:         # merge both masks
                gate, value = gate & value.src[0], value.src[1]
            return [Store(self.tile, spot, value if gate is None else gate.where(value, least))]

        loops = self.nest([key, self.row], scores)
        step = counter("j", size)
        there = load(self.tile, add(multiply(step, self.rows), self.row))
        fresh, total, value = (register(name, self.dtype) for name in ("fresh", "total", "e"))
        top, shrink = load(self.top, self.row), load(self.shrink, self.row)
        new_top = top.maximum(fresh)

        def weights() -> list[Statement]:
            at = self.at_key("j_at", first, step)
            self.chosen_key = ranges_of(at[chain.axis])
            each: list[Statement] = [
                Assign(value, self.exponential(there, load(self.top, self.row))), Accumulate(total, o.ADD, value),
                Store(self.tile, there.src[1], self.weigh(chain.weights, at, value))]
            return [Assign(total, const(0, self.dtype)), For(step, LOOP, each),
                    Store(self.sums, self.row, load(self.sums, self.row) * shrink + total)]

        return [*loops,
                *self.nest([self.row], lambda: [
                    Assign(fresh, identity(o.MAX, self.dtype)), For(step, LOOP, [Accumulate(fresh, o.MAX, there)]),
                    Store(self.shrink, self.row, self.exponential(top, new_top)), Store(self.top, self.row, new_top)]),
                *self.nest([self.row], weights), *self.times_values(first, size, self.tile, self.shrink)], \
            substitute_index(found[-1], self.stands_for, {})

    def finish(self) -> list[Statement]:
        """Store the shared factor, per-row values and the result; or, if keys are split, the result of a part."""
        chain = self.chain
        if self.part.arg.size > 1:
            return self.kept_parts()
        self.known = {n: lambda at: load(self.sums, self.row).cast(chain.row_sums[0].dtype) for n in chain.row_sums}
        out: list[Statement] = []
        scaled = load(self.out, self.out_at())
        if chain.shared:
            out += self.nest([self.row], lambda: [Store(self.scale, self.row, self.shared_factor())])
            scaled = scaled * load(self.scale, self.row)
        top = load(self.top, self.row)
        self.known[chain.maximum] = lambda at: top if self.factor == 1 else top * self.factor
        along = tuple([index(0) if a in chain.maximum.arg.axes else i for a, i in enumerate(self.read_at[chain.exps])])
        for store in self.of_rows():
            out += self.nest([self.row], partial(self.stored, store, along))
        self.nest([self.row], list)
        return out + self.result(self.masked(scaled))

    def shared_factor(self) -> UOp:
        """The factor that the weights of all keys of a row share."""
        factor = const(1, self.dtype)
        for node, op in self.chain.shared:
            value = self.value_at(node, self.read_at[node], self.row_gate).cast(self.dtype)
            factor = factor * value if op is o.MUL else factor / value
        return factor

    def masked(self, total: UOp) -> UOp:
        """The total, set to 0 in rows whose weights are all masked."""
        for condition, at in self.row_masks.items():
            total = self.value_at(condition, at, self.row_gate).where(total, const(0, self.dtype))
        return total

    # -- parts of keys, each of which is a task ----------------------------------------------------------------
    def part_memory(self, name: str, row: UOp, wide: list[UOp]) -> UOp:
        """A load of one part's value for one row, from memory shared by all tasks."""
        sizes = [self.shape[self.chain.row_axis], *[c.arg.size for c in wide]]
        outer = [self.part, *[c for c in self.counters if c.arg.size > 1]]
        shape = (*[c.arg.size for c in outer], *sizes)
        return load(local(name, self.dtype, math.prod(shape), "shared"), flatten((*outer, row, *wide), shape))

    def kept_parts(self) -> list[Statement]:
        """Store the results of a part in memory shared by all tasks."""
        def kept(name: str, memory: UOp, at: UOp, wide: list[UOp]) -> Store:
            to = self.part_memory(name, self.row, wide)
            return Store(to.src[0], to.src[1], load(memory, at), None, self.gate)

        return [*self.nest([self.row], lambda: [kept("part_top", self.top, self.row, []),
                                                kept("part_sums", self.sums, self.row, [])]),
                *self.nest([self.row, *self.wide], lambda: [kept("part_out", self.out, self.out_at(), self.wide)])]

    def joined_parts(self) -> list[Phase]:
        """The phase that combines all parts, in order: their maximum, then sums and totals, then the result."""
        chain, axis = self.chain, self.chain.row_axis
        if self.part.arg.size == 1:
            return []
        row = counter("q", self.shape[axis]) if self.shape[axis] > 1 else index(0)
        here = {self.place[axis]: row}
        self.place[axis], self.gate, self.row_gate = row, None, None
        self.read_at, self.row_masks = ({node: tuple([substitute_index(i, here, {}) for i in at])
                                       for node, at in known.items()} for known in (self.read_at, self.row_masks))
        top, sums, total, shrink = (register(name, self.dtype) for name in ("top", "sums", "total", "shrink"))
        part_top, part_sums = (self.part_memory(name, row, []) for name in ("part_top", "part_sums"))
        part_out = self.part_memory("part_out", row, self.wide)
        zero = const(0, self.dtype)
        self.known = {chain.maximum: lambda at: top if self.factor == 1 else top * self.factor,
                      **{n: lambda at: sums.cast(chain.row_sums[0].dtype) for n in chain.row_sums}}
        [store] = [s for s in self.sink.src if s.op is o.STORE]

        def joined() -> list[Statement]:
            whole = self.masked(total * self.shared_factor() if chain.shared else total)
            self.known[chain.total] = lambda at: whole.cast(chain.total.dtype)
            return [Assign(top, identity(o.MAX, self.dtype)), For(self.part, LOOP, [Accumulate(top, o.MAX, part_top)]),
                    Assign(sums, zero), Assign(total, zero),
                    For(self.part, LOOP, [Assign(shrink, self.exponential(part_top, top)),
                                          Accumulate(sums, o.ADD, part_sums * shrink),
                                          Accumulate(total, o.ADD, part_out * shrink)]),
                    *self.stored(store, self.result_at(store.src[1]))]

        rows = [row] if row.op is o.RANGE else []
        return [Phase(self.nest([c for c in (*self.counters, *rows, *self.wide) if c.arg.size > 1], joined))]


def fused(value: UOp) -> UOp:
    """Write x * constant + y as one MULACC; return other values unchanged."""
    if value.op is not o.ADD:
        return value
    product, other = value.src if value.src[0].op is o.MUL else value.src[::-1]
    is_product = product.op is o.MUL and product.src[1].op is o.CONST
    return UOp(o.MULACC, value.dtype, (*product.src, other)) if is_product else value
