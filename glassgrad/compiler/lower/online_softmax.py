"""softmax(scores) times values as loops over blocks. In: a kernel's graph that holds one. Out: its loop tree.

    task batch, heads, blocks of rows (queries):
      queries[d][q] = ..                                    the rows' factor of the scores, once
      top, sums, out = -inf, 0, 0                           of the keys read so far, for each row
      loop blocks of keys:                                  as far as the mask lets any row of the block look
        tile[k][q] = scores                                 a sum of products, scaled and masked
        fresh[q] = max(top[q], max over k of tile[k][q])
        shrink[q] = exp(top[q] - fresh[q]);  top[q] = fresh[q]
        tile[k][q] = exp(tile[k][q] - top[q]);  sums[q] = sums[q] * shrink[q] + sum over k of tile[k][q]
        out[d][q] = out[d][q] * shrink[q] + sum over k of values[k][d] * tile[k][q]
      result = out / sums

Each line is a loop nest over LOCAL memory, which the optimizer cuts like any other: the two products into register
tiles, the rest into vectors. Rows lie innermost in all of them, so that every number that belongs to a row is a lane,
and no line adds across lanes. The sums of a row are those of one task, block by block in order: the same bits on any
number of threads. Which row and key a block begins with is all that differs between blocks, but for the last keys.

For groups of threads all blocks are as large (`ScoreBlocks.even`): rows and keys past the end are read as zeros, such
scores are -inf, and nothing is stored of such rows. Weights are rounded where the graph rounds them, so that a matrix
unit can take them, and their exponential stays one op, which GPUs have an instruction for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.index_algebra import add, both, bounds, index, less, multiply, substitute_index
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.uop import UOp, const, identity
from glassgrad.compiler.lower.loops import (LOOP, TASK, Accumulate, Assign, For, If, Kernel, Phase, Statement, Store,
                                            counter, load, local, register, walk)
from glassgrad.compiler.lower.movement import Index, flatten, reshape_index, source_index
from glassgrad.compiler.lower.scores import blocks_in_sight, in_full_precision, kept_below, without_factor
from glassgrad.compiler.lower.transcendental import expand
from glassgrad.compiler.lower.values import Block, Computation, Values
from glassgrad.compiler.schedule.online_softmax import SoftmaxProduct


class ScoreBlocks(NamedTuple):
    """How large blocks are at most. All are as large, but for the last keys; the last rows overlap those before."""
    rows: int = 64
    keys: int = 64
    lanes: int = 16                # blocks have a multiple of so many rows
    even: bool = False             # all blocks are as large, past the end too: for groups of threads
    again: int = 8                 # what it costs to read the keys once more, in rows
    narrow_rows: int = 0           # instead of `rows` where registers suffice for them: values are narrow,
    narrow: int = 64               # of at most so many numbers, and scores read no memory besides keys

    def rows_of(self, size: int, width: int = 0, reads: bool = True) -> int:
        """Rows of a block: few are computed twice or past the end, and few blocks read the keys again.

        >>> [ScoreBlocks().rows_of(size) for size in (512, 65, 20, 5)]
        [64, 48, 20, 5]
        >>> [GROUP_BLOCKS.rows_of(size) for size in (512, 65, 20, 5)]
        [128, 128, 64, 64]
        >>> [BOX_BLOCKS.rows_of(size, width=64, reads=False) for size in (4096, 1024, 130)]
        [192, 128, 192]
        """
        most = self.narrow_rows if self.narrow_rows and width <= self.narrow and not reads else self.rows
        steps = range(self.lanes, most + 1, self.lanes)
        rows = min(steps, key=lambda rows: (-(-size // rows) * (rows + self.again), -rows))
        return rows if self.even else min(size, rows)

    def keys_of(self, size: int) -> int:
        """Keys of a block: all blocks have nearly as many.

        >>> [ScoreBlocks().keys_of(size) for size in (512, 197, 80)]
        [64, 66, 80]
        """
        if self.even:
            return self.keys
        return -(-size // max(1, round(size / self.keys)))


SCORE_BLOCKS = ScoreBlocks()
GROUP_BLOCKS = ScoreBlocks(rows=128, keys=64, lanes=64, even=True, again=48)
BOX_BLOCKS = ScoreBlocks(rows=128, keys=128, lanes=64, even=True, again=48, narrow_rows=192)


class OnlineSoftmax(Values):
    """The loops of one kernel."""

    def __init__(self, sink: UOp, chain: SoftmaxProduct, blocks: ScoreBlocks):
        super().__init__(sink, {})
        self.chain, self.even = chain, blocks.even
        self.scores, self.rate = chain.scores, chain.rate
        self.stands_for: dict[UOp, UOp] = {}              # counters in place of indices that gates keep inside
        self.shape = chain.weights.shape                  # of the product that is summed: rows, columns and keys
        self.dtype = chain.exps.dtype
        if self.even:
            self.in_full_precision()
        size = self.shape[chain.row_axis]
        width = math.prod(self.shape[a] for a in chain.columns)
        self.rows = blocks.rows_of(size, width, self.scores_read_memory())
        self.keys = blocks.keys_of(self.shape[chain.axis])
        self.row, self.block = counter("q", self.rows), counter("qb", -(-size // self.rows))
        begin = multiply(self.block, self.rows) if self.block.arg.size > 1 else index(0)
        ragged = size % self.rows > 0
        self.first_row = begin.minimum(size - self.rows) if ragged and not self.even else begin
        at_row = add(self.first_row, self.row)
        self.gate: UOp | None = None                  # what is stored: not rows that the block before has done,
        self.row_gate: UOp | None = None              # nor rows past the end, which are not read either
        self.key_gate: UOp | None = None              # keys that are read in the block that is being written
        if ragged and self.even:
            self.gate = self.row_gate = less(at_row, index(size))
        elif ragged:
            self.gate = less(begin, add(at_row, index(1)))
        self.wide = [counter(f"d{a}", self.shape[a]) for a in chain.columns]
        self.counters = [counter(f"i{a}", n) for a, n in enumerate(self.shape)
                         if n > 1 and a not in (chain.row_axis, chain.axis, *chain.columns)]
        outer = {int(c.arg.name[1:]): c for c in self.counters}
        self.place = [outer.get(a, index(0)) for a in range(len(self.shape))]
        self.place[chain.row_axis] = self.kept_inside("q_at", at_row, size)
        for a, c in zip(chain.columns, self.wide):
            self.place[a] = c
        [self.depth_axis] = chain.products.arg.axes
        self.length = chain.products.src[0].shape[self.depth_axis]
        self.queries = local("queries", chain.rows.dtype, self.length * self.rows)
        self.tile = local("tile", self.dtype, self.keys * self.rows)
        self.top, self.sums, self.shrink, self.scale = (
            local(name, self.dtype, self.rows) for name in ("top", "sums", "shrink", "scale"))
        self.out = local("out", self.dtype, width * self.rows)
        self.known: dict[UOp, Callable[[Index], UOp]] = {}      # nodes whose elements lie in LOCAL memory
        self.asked: dict[UOp, Index] = {}                       # and where they were asked for

    def in_full_precision(self) -> None:
        """Scores that are rounded nowhere, a constant factor of theirs left to the exponential."""
        full = in_full_precision(self.chain.scores, self.chain.inside, self.dtype)
        self.scores, factor = without_factor(full)
        rate = factor * (1 if self.rate is None else self.rate.arg)
        self.rate = None if rate == 1 else const(rate, self.dtype)
        for n in toposort([self.scores]):
            if n not in self.nesting:
                self.nesting[n] = max([self.nesting[s] for s in n.src], default=0)

    def scores_read_memory(self) -> bool:
        """Whether scores are made of more than the product of rows and keys, and positions."""
        products = self.chain.products
        return any(n.op is o.PARAM for n in toposort([self.scores], lambda n: () if n is products else n.src))

    def kept_inside(self, name: str, at: UOp, size: int) -> UOp:
        """An index that is not used past the end, as one that cannot be there: views need no remainders of it."""
        if not self.even or bounds(at)[1] < size:
            return at
        stand_in = counter(name, size)
        self.stands_for[stand_in] = at
        return stand_in

    # -- the kernel ------------------------------------------------------------------------------------------
    def kernel(self) -> Kernel:
        size = self.shape[self.chain.axis]
        whole, rest = (-(-size // self.keys), 0) if self.even else divmod(size, self.keys)
        block = counter("kb", whole)
        first = multiply(block, self.keys) if whole > 1 else index(0)
        step, kept = self.over_keys(first, self.keys)
        body = step
        if whole > 1:
            body = [For(block, LOOP, step, blocks_in_sight(kept, block, self.inner(self.keys)))]
        if rest:
            last, kept = self.over_keys(index(size - rest), rest)
            seen = kept_below(kept, self.inner(rest))
            body += last if seen is None else [If(seen, last)]
        done: list[Statement] = [*self.begin(), *body, *self.finish()]
        self.put_indices(done)
        if self.block.arg.size > 1:
            done = [For(self.block, TASK, done)]
        for c in reversed(self.counters):
            done = [For(c, TASK, done)]
        stores = [s for s in self.sink.src if s.op is o.STORE]
        sizes = "_".join(map(str, [n for a, n in enumerate(self.shape) if n > 1 and a != self.chain.axis]))
        return Kernel(f"online_{sizes}_r{self.length}_r{size}", self.params, [Phase(done)],
                      tuple(s.src[0].base.arg.slot for s in stores))

    def put_indices(self, body: list[Statement]) -> None:
        """The indices that counters stand for, in their place."""
        memo: dict[UOp, UOp] = {}
        for s in walk(body) if self.stands_for else ():
            if isinstance(s, (Assign, Accumulate, Store)):
                s.value = substitute_index(s.value, self.stands_for, memo)
            if isinstance(s, Store):
                s.index = substitute_index(s.index, self.stands_for, memo)

    def inner(self, keys: int) -> list[UOp]:
        return [self.row, self.key(keys)]

    def key(self, keys: int) -> UOp:
        return counter("k", keys)

    def nest(self, counters: Iterable[UOp], body: Callable[[], list[Statement]]) -> list[Statement]:
        """TASK loops over these counters around statements, and the loops that their values need."""
        blocks = [Block(c) for c in counters]
        self.path, self.memo = [Block(None), *blocks], {}
        inner = body()
        return self.path[0].statements + self.closed(blocks, TASK, inner)

    # -- values ----------------------------------------------------------------------------------------------
    def computation(self, node: UOp, at: Index, gate: UOp | None) -> Computation:
        if node in self.known:
            self.asked[node] = at
            return self.known[node](at)
        if node is self.chain.keys:       # keys are the same for all rows
            gate = self.key_gate
        return (yield from super().computation(node, at, gate))

    def at(self, key: UOp) -> Index:
        """An index of the product that is summed."""
        return tuple([key if a == self.chain.axis else i for a, i in enumerate(self.place)])

    def at_key(self, name: str, first: UOp, key: UOp) -> Index:
        """An index of the product that is summed, at a key of a block; `key_gate` says where there is one."""
        size, whole = self.shape[self.chain.axis], add(first, key)
        inside = self.kept_inside(name, whole, size)
        self.key_gate = None if inside is whole else less(whole, index(size))
        return self.at(inside)

    def weigh(self, node: UOp, at: Index, value: UOp) -> UOp:
        """A factor of the total, given its exponential; factors that all keys share are left to the end (1 here)."""
        if node is self.chain.exps or any(node is n for n, _ in self.chain.shared):
            self.asked[node] = at
            return value if node is self.chain.exps else const(1, self.dtype)
        if node.op in o.MOVEMENT:
            return self.weigh(node.src[0], source_index(node, at)[0], value)
        if node.op is o.CAST and node.src[0].dtype.is_float:
            weight = self.weigh(node.src[0], at, value)
            rounds = self.even and node.dtype.itemsize < self.dtype.itemsize and weight.op is not o.CONST
            return weight.cast(node.dtype).cast(self.dtype) if rounds else weight
        edge = both(self.row_gate, self.key_gate)
        if node not in self.chain.inside:
            return self.value_at(node, at if node.shape else (), edge).cast(self.dtype)
        if node.op is o.WHERE:
            chosen = self.value_at(node.src[0], at if node.src[0].shape else (), edge)
            return chosen.where(self.weigh(node.src[1], at, value), const(0, self.dtype))
        left, right = (self.weigh(s, at, value) for s in node.src)           # MUL, or DIV by what all keys share
        if left.op is o.CONST or right.op is o.CONST:
            left, right = (left, right) if right.op is o.CONST else (right, left)
            return left if right.arg == 1 else left * right
        return left * right

    def exponential(self, score: UOp, top: UOp) -> UOp:
        """exp2((score - top) * rate), and 0 for a score of -inf, whatever the top is: a row may have seen nothing else
        yet. (Nor is the exponential of a number far below 0 computed for it: results that underflow are slow.)"""
        zero, least, rate = const(0, self.dtype), identity(o.MAX, self.dtype), self.rate
        if self.even:                     # exp2(-inf) is 0, and cheap
            seen = top.eq(least).where(zero, top)
            below = score - seen if rate is None else UOp(o.MULACC, self.dtype, (score, rate, seen * -rate.arg))
            return UOp(o.EXP2, self.dtype, (below,))
        masked = score.eq(least)
        below = masked.where(zero, score - top)
        return masked.where(zero, expand(UOp(o.EXP2, self.dtype, (below if rate is None else below * rate,))))

    # -- the nests -------------------------------------------------------------------------------------------
    def begin(self) -> list[Statement]:
        """Nothing is summed yet; the rows' factor of the scores, transposed."""
        step, zero = counter("r", self.length), const(0, self.dtype)
        at = tuple([step if a == self.depth_axis else i for a, i in enumerate(self.asked[self.chain.rows])])
        self.known = {}
        return [*self.nest([self.row], lambda: [Store(self.top, self.row, identity(o.MAX, self.dtype)),
                                                Store(self.sums, self.row, zero)]),
                *self.nest([*self.wide, self.row], lambda: [Store(self.out, self.out_at(), zero)]),
                *self.nest([step, self.row], lambda: [Store(
                    self.queries, add(multiply(step, self.rows), self.row),
                    self.value_at(self.chain.rows, at, self.row_gate).cast(self.queries.dtype))])]

    def out_at(self) -> UOp:
        return add(multiply(flatten(tuple(self.wide), tuple(c.arg.size for c in self.wide)), self.rows), self.row)

    def over_keys(self, first: UOp, size: int) -> tuple[list[Statement], UOp]:
        """One block of keys, and the scores' expression."""
        chain, key = self.chain, self.key(size)
        at = self.at_key("k_at", first, key)
        self.weigh(chain.weights, at, register("e", self.dtype))
        scores_at, spot = self.asked[chain.exps], add(multiply(key, self.rows), self.row)
        found: list[UOp] = []
        self.known = {chain.rows: lambda at: load(
            self.queries, add(multiply(at[self.depth_axis], self.rows), self.row))}

        def scores() -> list[Statement]:
            found.append(self.value_at(self.scores, scores_at, both(self.row_gate, self.key_gate)))
            value, least, gate = found[-1], identity(o.MAX, self.dtype), self.key_gate
            if gate is not None and value.op is o.WHERE and value.src[2] is least:         # one mask
                gate, value = gate & value.src[0], value.src[1]
            return [Store(self.tile, spot, value if gate is None else gate.where(value, least))]

        loops = self.nest([key, self.row], scores)
        step = counter("j", size)
        there = load(self.tile, add(multiply(step, self.rows), self.row))
        fresh, total, value = (register(name, self.dtype) for name in ("fresh", "total", "e"))
        top, shrink = load(self.top, self.row), load(self.shrink, self.row)
        higher = top.maximum(fresh)

        def weights() -> list[Statement]:
            at = self.at_key("j_at", first, step)
            each: list[Statement] = [
                Assign(value, self.exponential(there, load(self.top, self.row))), Accumulate(total, o.ADD, value),
                Store(self.tile, there.src[1], self.weigh(chain.weights, at, value))]
            return [Assign(total, const(0, self.dtype)), For(step, LOOP, each),
                    Store(self.sums, self.row, load(self.sums, self.row) * shrink + total)]

        return [*loops,
                *self.nest([self.row], lambda: [
                    Assign(fresh, identity(o.MAX, self.dtype)), For(step, LOOP, [Accumulate(fresh, o.MAX, there)]),
                    Store(self.shrink, self.row, self.exponential(top, higher)), Store(self.top, self.row, higher)]),
                *self.nest([self.row], weights), *self.times_values(first, size)], \
            substitute_index(found[-1], self.stands_for, {})

    def times_values(self, first: UOp, size: int) -> list[Statement]:
        """The weights of a block times its values, added to what was there."""
        key, total, spot = self.key(size), register("acc", self.dtype), self.out_at()
        at = self.at_key("k_at", first, key)
        weight = load(self.tile, add(multiply(key, self.rows), self.row))

        def product() -> list[Statement]:
            value = self.value_at(self.chain.values, at, self.key_gate).cast(self.dtype)
            return [Assign(total, const(0, self.dtype)), For(key, LOOP, [Accumulate(total, o.ADD, value * weight)]),
                    Store(self.out, spot, load(self.out, spot) * load(self.shrink, self.row) + total)]

        return self.nest([*self.wide, self.row], product)

    def finish(self) -> list[Statement]:
        """What all keys share, then the result."""
        chain = self.chain
        self.known = {n: lambda at: load(self.sums, self.row).cast(chain.row_sums[0].dtype) for n in chain.row_sums}
        out: list[Statement] = []
        scaled = load(self.out, self.out_at())
        if chain.shared:
            def scale() -> list[Statement]:
                factor = const(1, self.dtype)
                for node, op in chain.shared:
                    value = self.value_at(node, self.asked[node], self.row_gate).cast(self.dtype)
                    factor = factor * value if op is o.MUL else factor / value
                return [Store(self.scale, self.row, factor)]
            out += self.nest([self.row], scale)
            scaled = scaled * load(self.scale, self.row)
        if self.gate is not None and not self.even:         # by rows, so that a row is stored or not as a whole
            by_rows, spot = local("result", self.dtype, self.out.arg.size), self.result_spot()
            out += self.nest([self.row, *self.wide], lambda: [Store(by_rows, spot, scaled)])
            self.known[chain.total] = lambda at: load(by_rows, spot).cast(chain.total.dtype)
        else:
            self.known[chain.total] = lambda at: scaled.cast(chain.total.dtype)
        [store] = [s for s in self.sink.src if s.op is o.STORE]
        target, value = store.src
        at = self.result_at(value)

        def result() -> list[Statement]:
            place = source_index(target, at)[0] if target.op is o.SHRINK else at
            whole = flatten(place, target.base.shape)
            return [Store(target.base, whole, self.value_at(value, at, None), None, self.gate)]

        return out + self.nest([self.row, *self.wide], result)

    def result_spot(self) -> UOp:
        counters = (self.row, *self.wide)
        return flatten(counters, tuple(c.arg.size for c in counters))

    def result_at(self, value: UOp) -> Index:
        """Where an element of the total lies in what is stored."""
        way: list[UOp] = []
        while value is not self.chain.total:
            way.append(value)
            value = next(s for s in value.src if s in self.chain.above)
        at = tuple([index(0) if a == self.chain.axis else i for a, i in enumerate(self.place)])
        for node in reversed(way):
            if node.op is o.RESHAPE:
                at = reshape_index(at, node.src[0].shape, node.shape)
            elif node.op is o.PERMUTE:
                at = tuple([at[a] for a in node.arg.order])
            elif node.op in o.MOVEMENT:
                raise Bug(f"{node.op.name} between a softmax's product and its memory")
        return at

