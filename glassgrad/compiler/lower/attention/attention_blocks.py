"""Lower contractions whose weights are computed block by block. In: a kernel's graph with one. Out: its loop tree.

The common part of softmax(scores) times values (online_softmax.py) and of its gradients (attention_backward.py):

    task batch, heads, blocks of rows:
      begin                                     row factors of the products, transposed; sums are 0
      loop blocks of keys:                      those that a mask does not hide entirely
        over_keys                               weights[k][q], from products of rows and keys; out[d][q] += .. weights
      finish                                    the result

Each line is a list of loop nests over LOCAL memory, which the optimizer tiles like any other: products into register
tiles, the rest into vectors. Rows are innermost in all of them, so that every per-row value is a lane, and nothing is
summed across lanes. The sums of a row are computed by one task, block by block in order, so the bits do not depend on
the number of threads. Blocks differ only in their first row and key, except for the last keys.

For groups of threads, all blocks have the same size (`ScoreBlocks.equal_sizes`): rows and keys past the end are read as
zeros, and such rows are not stored. On a CPU, a symbolic number of rows is cut into blocks of several sizes, of which
the last goes past the end likewise; loops over a symbolic number of keys end after the last key that any row of the
block sees. For groups of threads, weights are rounded where the graph rounds them, so that a matrix unit can read them,
and their exponential stays one op, for which GPUs have an instruction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import DType, Length, Size, UOp, const, ops as o, toposort, upper_bound
from glassgrad.compiler.graph.index_algebra import (add, bounds, divide, divide_up, index, less, modulo, multiply,
                                                    substitute_index)
from glassgrad.compiler.graph.symbolic import lower_bound
from glassgrad.compiler.lower.attention.attention_scores import blocks_to_run, kept_below
from glassgrad.compiler.lower.element_expressions import (Block, Computation, Index, Values, flatten, reshape_index,
                                                          source_index)
from glassgrad.compiler.lower.loops import (LOOP, TASK, Accumulate, Assign, For, If, Kernel, Phase, Statement, Store,
                                            counter, current, load, local, register, walk)
from glassgrad.compiler.schedule.online_softmax import WeightedSum


class ScoreBlocks(NamedTuple):
    """Sizes of blocks. All blocks have these sizes, except that of the last keys; the last rows overlap earlier
    ones."""
    rows: int = 64
    keys: int = 64
    lanes: int = 16                # the rows of a block are a multiple of this
    equal_sizes: bool = False      # all blocks have the same size, even past the end: for groups of threads
    key_read_cost: int = 8         # the cost of reading the keys once more, in rows
    narrow_rows: int = 0           # used instead of `rows` where registers suffice: values have at most
    narrow_columns: int = 64       # this many columns, scores read no memory except keys, and
    processors: int = 1            # each of this many processors has a block
    factor_keys: int = 64          # used instead of `keys` where a block of several products is in registers at once
    symbolic_rows: tuple[int, ...] = (48, 16)      # sizes of blocks of symbolically many rows: as many blocks
    symbolic_keys: int = 64                        # of the first size as fit, then of the next; and their keys

    def rows_of(self, size: Size, width: int = 0, reads: bool = True, batch: int = 1) -> int:
        """Choose the rows of a block, so that few rows are computed twice or past the end, and few blocks read the keys
        again. `batch`: the number of elements of the batch axes, each of which has these rows.

        >>> [ScoreBlocks().rows_of(size) for size in (512, 65, 20, 5)]
        [64, 48, 20, 5]
        >>> [GROUP_BLOCKS.rows_of(size) for size in (512, 65, 20, 5)]
        [128, 128, 64, 64]
        >>> [BOX_BLOCKS.rows_of(size, width=64, reads=False) for size in (4096, 1024, 130)]
        [256, 256, 64]
        """
        if isinstance(size, Length):
            return self.symbolic_rows[0]
        enough = batch * size >= self.processors * self.narrow_rows > 0
        largest = self.narrow_rows if enough and width <= self.narrow_columns and not reads else self.rows
        steps = range(self.lanes, largest + 1, self.lanes)
        rows = min(steps, key=lambda rows: (-(-size // rows) * (rows + self.key_read_cost), -rows))
        return rows if self.equal_sizes else min(size, rows)

    def keys_of(self, size: Size) -> int:
        """Choose the keys of a block, so that all blocks have nearly the same number.

        >>> [ScoreBlocks().keys_of(size) for size in (512, 197, 80)]
        [64, 66, 80]
        """
        if isinstance(size, Length):
            return self.symbolic_keys
        return self.keys if self.equal_sizes else -(-size // max(1, round(size / self.keys)))

    def parts_of(self, keys: Size, tasks: int) -> int:
        """Choose into how many parts keys are split, each of them a task, if this many tasks leave processors idle.
        Costs are in blocks: a processor runs its tasks in sequence, each task starts and ends, and parts have to be
        joined.

        >>> [BOX_BLOCKS._replace(processors=132).parts_of(4096, tasks) for tasks in (1, 8, 32, 256)]
        [32, 16, 4, 1]
        """
        blocks = -(-upper_bound(keys) // self.keys_of(keys))

        def cost(parts: int) -> int:
            return -(-tasks * parts // self.processors) * (-(-blocks // parts) + TASK_ENDS) + JOINING * (parts > 1)

        best = min(range(1, min(blocks, self.processors) + 1), key=cost)
        return best if 5 * cost(best) < 4 * cost(1) else 1


TASK_ENDS = 1        # the cost of starting and ending a task, in blocks of keys
JOINING = 2          # the cost of joining parts, in blocks of keys
SCORE_BLOCKS = ScoreBlocks()
GROUP_BLOCKS = ScoreBlocks(rows=128, keys=64, lanes=64, equal_sizes=True, key_read_cost=48, symbolic_rows=(64,))
BOX_BLOCKS = GROUP_BLOCKS._replace(keys=128, narrow_rows=256)


def batch_elements(chain: WeightedSum) -> int:
    """The number of elements of a chain's batch axes: those that are not rows, columns or keys."""
    shape, others = chain.weights.shape, (chain.row_axis, chain.axis, *chain.columns)
    return math.prod(lower_bound(n) for a, n in enumerate(shape) if a not in others)


class BlockLoops(Values):
    """Builds the loops of one kernel."""
    keys_in_any_order = False  # whether blocks of keys may run from last to first, if a mask then allows skipping some

    def __init__(self, sink: UOp, chain: WeightedSum, dtype: DType, blocks: ScoreBlocks, rows: int, keys: int,
                 parts: int = 1, larger: int = 0):
        """With a symbolic number of rows, `rows` is one of the sizes of blocks, `larger` the next larger one (0:
        none)."""
        super().__init__(sink, {})
        self.part = counter("kp", parts)                  # block b of keys belongs to part b % parts
        self.chain, self.equal_sizes, self.dtype = chain, blocks.equal_sizes, dtype
        self.rows, self.keys = rows, keys
        self.stands_for: dict[UOp, UOp] = {}              # stand-in counter -> its index, which gates keep in bounds
        self.shape = chain.weights.shape                  # of the summed product: rows, columns and keys
        self.ends: dict[UOp, UOp] = {}                    # counter -> where its loop ends at run time
        # whether loops over keys are among those
        self.ends_with_keys = not self.equal_sizes and isinstance(self.shape[chain.axis], Length)
        size = self.shape[chain.row_axis]
        self.row, self.block = counter("q", self.rows), self.counter("qb", (size + self.rows - 1) // self.rows)
        begin, ragged = multiply(current(self.block), self.rows), size % self.rows != 0
        if isinstance(size, Length) and not self.equal_sizes:
            begin, ragged = self.set_blocks(size, larger, blocks.symbolic_rows[-1]), True
        self.first_row = begin.minimum(size - self.rows) if ragged and not self.runs_past_end(size) else begin
        at_row = add(self.first_row, self.row)
        self.gate: UOp | None = None                  # the rows to store: not those of the block before,
        self.row_gate: UOp | None = None              # nor rows past the end, which are not read either
        self.key_gate: UOp | None = None              # the keys of the current block that exist
        if ragged and self.runs_past_end(size):
            self.gate = self.row_gate = less(at_row, self.size(size))
        elif ragged:
            self.gate = less(begin, add(at_row, index(1)))
        self.wide = [counter(f"d{a}", self.shape[a]) for a in chain.columns]
        self.counters = [self.counter(f"i{a}", n) for a, n in enumerate(self.shape)
                         if n != 1 and a not in (chain.row_axis, chain.axis, *chain.columns)]
        outer = {int(c.arg.name[1:]): c for c in self.counters}
        self.place = [outer.get(a, index(0)) for a in range(len(self.shape))]
        self.place[chain.row_axis] = self.stand_in("q_at", at_row, size)
        for a, c in zip(chain.columns, self.wide):
            self.place[a] = c
        self.lefts = [LeftFactor.of(f"queries{i or ''}", product, rows, self.rows)
                      for i, (product, rows) in enumerate(zip(chain.products, chain.rows))]
        self.out = local("out", self.dtype, math.prod(self.shape[a] for a in chain.columns) * self.rows)
        self.known: dict[UOp, Callable[[Index], UOp]] = {}      # node -> how to load its elements from LOCAL memory
        self.read_at: dict[UOp, Index] = {}                       # and the index at which each was read last

    def set_blocks(self, size: Length, larger: int, least: int) -> UOp:
        """Set the counter of this size's blocks, for a number of rows that blocks of these sizes cover; return where a
        block begins. Only the very last block goes past the end, by less than the least size."""
        pieces, before = divide_up(self.size(size), least), index(0)
        if larger:
            self.block, before = counter("qb", larger // self.rows - 1), divide(pieces, larger // least)
            pieces = modulo(pieces, larger // least)
        self.ends[self.block] = divide(pieces, self.rows // least)
        return add(multiply(before, larger), multiply(current(self.block), self.rows))

    def runs_past_end(self, size: Size) -> bool:
        """Whether the last block along an axis of this size is as large as the others, and goes past the end."""
        return self.equal_sizes or isinstance(size, Length)

    def stand_in(self, name: str, at: UOp, size: Size) -> UOp:
        """A stand-in counter for an index that gates keep in bounds, so that views need no modulo; else `at`."""
        if not self.runs_past_end(size) or bounds(at)[1] < lower_bound(size):
            return at
        stand_in = self.counter(name, size)
        self.stands_for[stand_in] = at
        return stand_in

    # -- the kernel ------------------------------------------------------------------------------------------
    def kernel(self) -> Kernel:
        size = self.shape[self.chain.axis]
        whole, rest = ((size + self.keys - 1) // self.keys, 0) if self.runs_past_end(size) else divmod(size, self.keys)
        parts = self.part.arg.size
        each = (whole + parts - 1) // parts
        block = self.counter("kb", each)
        number = add(multiply(current(block), parts), current(self.part))
        body, kept = self.over_keys(multiply(number, self.keys), self.keys)
        if self.ends_with_keys:
            body = [For(block, LOOP, body, self.until_last_key(number, block, kept))]
        elif upper_bound(each) > 1:
            stop = blocks_to_run(kept, block, self.inner(self.keys))
            if stop is None and self.keys_in_any_order:
                last_first = add(index(whole - 1), multiply(block, -1))
                stop = blocks_to_run(substitute_index(kept, {block: last_first}, {}), block, self.inner(self.keys))
                if stop is not None:
                    body, kept = self.over_keys(multiply(last_first, self.keys), self.keys)
            if isinstance(whole, Length) or whole % parts:
                past = add(self.size(whole + parts - 1), multiply(self.part, -1) if parts > 1 else index(0))
                own = divide(past, parts)
                stop = own if stop is None else stop.minimum(own)
            body = [For(block, LOOP, body, stop)]
        if rest:
            last, kept = self.over_keys(index(size - rest), rest)
            seen = kept_below(kept, self.inner(rest))
            body += last if seen is None else [If(seen, last)]
        done: list[Statement] = [*self.begin(), *body, *self.finish()]
        self.replace_stand_ins(done)
        tasks = [c for c in (*self.counters, self.block, self.part) if c.arg.size > 1 or c in self.ends]
        phases = [Phase(self.closed([Block(c) for c in tasks], TASK, done)), *self.joined_parts()]
        for loop in [s for s in walk(phases[0].body) if isinstance(s, For) and s.range in self.ends]:
            loop.stop = self.ends[loop.range]
        stores = [s for s in self.sink.src if s.op is o.STORE]
        sizes = "_".join([str(upper_bound(n)) for a, n in enumerate(self.shape) if n != 1 and a != self.chain.axis])
        lengths = "".join(f"_r{left.length}" for left in self.lefts)
        return Kernel(f"online_{sizes}{lengths}_r{upper_bound(size)}", self.params, phases,
                      tuple(s.src[0].base.arg.slot for s in stores))

    def until_last_key(self, number: UOp, block: UOp, kept: UOp) -> UOp:
        """How many blocks of keys there are up to the last key that a row sees, if that is known at run time. Loops
        over the keys of a block end there, too."""
        size, key = self.size(self.shape[self.chain.axis]), self.key(self.keys)
        seen = blocks_to_run(substitute_index(kept, {block: index(0)}, {}), key, [self.row])
        end = size if seen is None else size.minimum(seen)
        left = add(end, multiply(number, -self.keys)).minimum(self.keys)
        self.ends[key] = self.ends[counter("j", self.keys)] = left
        return divide_up(end, self.keys)

    def over_keys(self, first: UOp, size: int) -> tuple[list[Statement], UOp]:
        """Compute one block of keys; also return an expression that is -inf where a mask leaves nothing."""
        raise NotImplementedError

    def finish(self) -> list[Statement]:
        """Compute and store the result."""
        raise NotImplementedError

    def joined_parts(self) -> list[Phase]:
        """The phases that combine the results of parts, if keys are split into parts."""
        return []

    def replace_stand_ins(self, body: list[Statement]) -> None:
        """Replace stand-in counters by the indices that they stand for."""
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
        """Build TASK loops over these counters around statements, with the loops that their values need."""
        blocks = [Block(c) for c in counters]
        self.open_blocks, self.memo = [Block(None), *blocks], {}
        inner = body()
        return self.open_blocks[0].statements + self.closed(blocks, TASK, inner)

    # -- values ----------------------------------------------------------------------------------------------
    def computation(self, node: UOp, at: Index, gate: UOp | None) -> Computation:
        if node in self.known:
            self.read_at[node] = at
            return self.known[node](at)
        if node in self.chain.keys:       # keys are the same for all rows
            gate = self.key_gate
        return (yield from super().computation(node, at, gate))

    def depth(self, at: Index, gate: UOp | None) -> int:
        """As for any values; a stand-in counter needs the loops that its index needs."""
        return super().depth(tuple([substitute_index(i, self.stands_for, {}) for i in at]), gate)

    def at(self, key: UOp) -> Index:
        """The index of the summed product at a key."""
        return tuple([key if a == self.chain.axis else i for a, i in enumerate(self.place)])

    def at_key(self, name: str, first: UOp, key: UOp) -> Index:
        """The index of the summed product at a key of a block; sets `key_gate`, the condition that the key exists."""
        size, whole = self.shape[self.chain.axis], add(first, key)
        inside = self.stand_in(name, whole, size)
        self.key_gate = None if inside is whole or self.ends_with_keys else less(whole, self.size(size))
        return self.at(inside)

    # -- the nests -------------------------------------------------------------------------------------------
    def begin(self) -> list[Statement]:
        """Set the sums to 0, and store the row factors of the products, transposed."""
        self.known = {}
        out = self.nest([*self.wide, self.row], lambda: [Store(self.out, self.out_at(), const(0, self.dtype))])
        return out + [s for left in self.lefts for s in self.transposed(left)]

    def transposed(self, left: LeftFactor) -> list[Statement]:
        """Store a row factor, transposed, in LOCAL memory."""
        at = tuple([left.step if a == left.axis else i for a, i in enumerate(self.read_at[left.rows])])
        return self.nest([left.step, self.row], lambda: [Store(
            left.memory, left.at(left.step, self.row),
            self.value_at(left.rows, at, self.row_gate).cast(left.memory.dtype))])

    def rows_known(self) -> dict[UOp, Callable[[Index], UOp]]:
        """Map each row factor to a function that loads its elements from LOCAL memory."""
        def loaded(left: LeftFactor) -> Callable[[Index], UOp]:
            return lambda at: load(left.memory, left.at(at[left.axis], self.row))

        return {left.rows: loaded(left) for left in self.lefts}

    def out_at(self) -> UOp:
        return add(multiply(flatten(tuple(self.wide), tuple(c.arg.size for c in self.wide)), self.rows), self.row)

    def times_values(self, first: UOp, size: int, tile: UOp, shrink: UOp | None = None) -> list[Statement]:
        """Add the weights of a block times its values to `out`, which is first multiplied by `shrink`."""
        key, total, spot = self.key(size), register("acc", self.dtype), self.out_at()
        at = self.at_key("k_at", first, key)
        weight = load(tile, add(multiply(key, self.rows), self.row))
        before = load(self.out, spot)

        def product() -> list[Statement]:
            value = self.value_at(self.chain.values, at, self.key_gate).cast(self.dtype)
            return [Assign(total, const(0, self.dtype)), For(key, LOOP, [Accumulate(total, o.ADD, value * weight)]),
                    Store(self.out, spot, (before if shrink is None else before * load(shrink, self.row)) + total)]

        return self.nest([*self.wide, self.row], product)

    def result(self, total: UOp) -> list[Statement]:
        """Store the results, computed from the total."""
        chain, out = self.chain, list[Statement]()
        if self.gate is not None and not self.equal_sizes:     # row by row, so that a row is stored whole or not at all
            by_rows, spot = local("result", self.dtype, self.out.arg.size), self.result_spot()
            out += self.nest([self.row, *self.wide], lambda: [Store(by_rows, spot, total)])
            self.known[chain.total] = lambda at: load(by_rows, spot).cast(chain.total.dtype)
        else:
            self.known[chain.total] = lambda at: total.cast(chain.total.dtype)
        for store in [s for s in self.sink.src if s.op is o.STORE and s not in self.of_rows()]:
            at = self.result_at(store.src[1])
            out += self.nest([self.row, *self.wide], partial(self.stored, store, at))
        return out

    def stored(self, store: UOp, at: Index) -> list[Statement]:
        """Store a value at an index."""
        target, value = store.src
        place = source_index(target, at, self.size)[0] if target.op is o.SHRINK else at
        spot = flatten(place, target.base.shape, self.size)
        return [Store(target.base, spot, self.value_at(value, at, None), None, self.gate)]

    def of_rows(self) -> list[UOp]:
        """The STOREs of per-row values, which do not depend on the total."""
        return [s for s in self.sink.src if s.op is o.STORE and self.chain.total not in toposort([s.src[1]])]

    def result_spot(self) -> UOp:
        counters = (self.row, *self.wide)
        return flatten(counters, tuple(c.arg.size for c in counters))

    def result_at(self, value: UOp) -> Index:
        """The index in a stored value that corresponds to an element of the total."""
        way: list[UOp] = []
        while value is not self.chain.total:
            way.append(value)
            value = next(s for s in value.src if self.chain.total in toposort([s]))
        at = tuple([index(0) if a == self.chain.axis else i for a, i in enumerate(self.place)])
        for node in reversed(way):
            if node.op is o.RESHAPE:
                at = reshape_index(at, node.src[0].shape, node.shape, self.size)
            elif node.op is o.PERMUTE:
                at = tuple([at[a] for a in node.arg.order])
            elif node.op in o.MOVEMENT:
                raise Bug(f"{node.op.name} between a softmax's product and its memory")
        return at


class LeftFactor(NamedTuple):
    """The row factor of a product, transposed in LOCAL memory."""
    rows: UOp
    axis: int                # the axis along which it is summed
    step: UOp                # the counter of that axis
    memory: UOp
    height: int              # rows per block

    @staticmethod
    def of(name: str, product: UOp, rows: UOp, height: int) -> LeftFactor:
        [axis] = product.arg.axes
        length = product.src[0].shape[axis]
        return LeftFactor(rows, axis, counter("r", length), local(name, rows.dtype, length * height), height)

    @property
    def length(self) -> int:
        return int(self.step.arg.size)

    def at(self, step: UOp, row: UOp) -> UOp:
        return add(multiply(step, self.height), row)
