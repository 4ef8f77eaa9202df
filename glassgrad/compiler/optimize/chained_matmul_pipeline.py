"""Pipeline chained matmuls on an asynchronous matrix unit, with bulk copies of their factors. In: tasks of products and
the nests between them, a block at a time. Out: the same for one thread group, or None.

    nests, for each block j (chained_matmuls.py)     software-pipelined: the unit works while threads compute
    tile = left right[j]                         copies of the first blocks; tile = left right[0]; weights = f(tile)
    weights = f(tile)                            for j: tile = left right[j + 1]        both products are asynchronous
    out = out * shrink + weights values[j]              out += weights values[j]        steps: they overlap f
                                                        wait for tile; copy right[j + 3]; f(tile)
                                                        wait for out; copy values[j + 2]; weights; out *= shrink
                                                 out += weights values[last]

If a block has many products, threads take turns on the unit: some start their steps while others compute f.

The weights may be computed from several products, and several products may use them. All right factors, and the left
ones of the first products, are copied from matrices in memory; copies fill in zeros past their edges. The weights stay
in registers, from which the unit reads its left factor; so do the left factors of the first products, if there are
registers for them. The results go through shared memory, so that consecutive threads store consecutive pieces of a
line. Does not know what nests compute, nor which unit it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import (add, below_limit, both, bounds, divide, index, less, modulo,
                                                    multiply, operation, substitute_index)
from glassgrad.compiler.lower.group_statements import AwaitCopies, AwaitSteps, Barrier, Box, CopyBoxes, Turn
from glassgrad.compiler.lower.loops import (LANE, LOOP, TILE, Accumulate, Assign, For, If, Statement, Store, counter,
                                            current, expressions, load, local, nested, ranges_of, register, task_loops,
                                            walk)
from glassgrad.compiler.optimize.bulk_copies import BoxedTile, PlacedTile
from glassgrad.compiler.optimize.chained_matmuls import FactorTile, HeldNests, HeldPlan, ProductSteps, matrices_in
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.gates import below
from glassgrad.compiler.optimize.product.flat_axes import FlatAxis
from glassgrad.compiler.optimize.product.gpu_warp_tile import CopiedLines
from glassgrad.compiler.optimize.product.matrix_unit.unit_choice import narrowed
from glassgrad.compiler.optimize.product.recognize import Product, stride_along
from glassgrad.compiler.optimize.product.tiling_parameters import Tiling
from glassgrad.compiler.optimize.targets import gpu_costs as gpu
from glassgrad.compiler.optimize.targets.target import Target

BLOCKS = 2           # blocks whose factors are in memory or in flight; one more if a factor is used twice
TURN_PRODUCTS = 4    # products per block from which threads take turns on the unit: its steps take as long as the rest;
TURN_THREADS = 384   # or threads per group from which they do: others compute meanwhile


@dataclass
class BlockParts:
    """The nests of a task, in order."""
    before: list[Statement]
    firsts: list[Product]        # with copied left factors: sums within one block (scores)
    between: list[Statement]     # the statements that compute the weights from them
    seconds: list[Product]       # with weights as left factors: sums over all blocks
    after: list[Statement]
    block: UOp | None            # the counter of blocks, if there are several
    count: UOp                   # and their number

    @staticmethod
    def of(plan: HeldPlan, body: list[Statement]) -> BlockParts | None:
        loops = [s for s in body if isinstance(s, For) and s.kind == LOOP]
        if len(loops) > 1:
            return None
        inner, at = (loops[0].body, body.index(loops[0])) if loops else (body, 0)
        products = [i for i, s in enumerate(inner) if id(s) in plan.products]
        if len(products) < 2 or loops and (products[0] != 0 or products[-1] != len(inner) - 1):
            return None
        begin, end = products[0], products[-1]
        before, after = (body[:at], body[at + 1:]) if loops else (body[:begin], body[end + 1:])
        every = [plan.products[id(inner[i])] for i in products]
        firsts = [p for p in every if p.left.src[0] in plan.copied]
        seconds = every[len(firsts):]
        middle = begin + len(firsts), end + 1 - len(seconds)
        if not firsts or not seconds or any(p.left.src[0] not in plan.matrices for p in seconds) or \
                products != [*range(begin, middle[0]), *range(middle[1], end + 1)]:
            return None
        count = index(1)
        if loops:
            size, stop = loops[0].range.arg.size, loops[0].stop
            count = index(size) if stop is None else stop
            count = count if bounds(count)[1] <= size else count.minimum(size)
            count = count if bounds(count)[0] >= 1 else count.maximum(1)  # a block that is masked entirely adds nothing
        between = inner[slice(*middle)]
        return BlockParts(before, firsts, between, seconds, after, loops[0].range if loops else None, count)


class BoxedNests(HeldNests):
    """Builds the nests of a task for a group of threads."""

    def __init__(self, plan: HeldPlan, parts: BlockParts, tasks: list[UOp]):
        super().__init__(plan, ahead=False)
        self.parts, self.outer = parts, [*tasks, *([] if parts.block is None else [parts.block])]
        self.first = index(0)                         # the number of a task's first block in its group
        self.next_task: NextTask | None = None        # the task whose copies begin at the end of this one
        self.backwards: list[BoxedTile] = []          # tiles whose blocks run from the last to the first
        self.holds = False                            # whether left factors are in registers
        self.box_factors()
        self.choose_registers()

    def box_factors(self) -> None:
        """Choose the boxes in which factors are copied to shared memory."""
        plan, parts = self.plan, self.parts
        self.left: list[BoxedTile] = []
        self.right: list[BoxedTile] = []
        # LOCAL memory that stands for a left factor -> where that begins in shared memory
        self.left_begin: dict[UOp, int] = {}
        for number, product in enumerate(parts.firsts):
            memory = product.left.src[0]
            store = plan.copied[memory]
            steps = [r for r in ranges_of(store.index) if r is not plan.row]
            self.left_begin[memory] = self.left_size
            self.left.append(self.boxed(f"left{number or ''}", store.value, [plan.row], steps, is_left=True))
        for number, product in enumerate(parts.firsts):
            self.right.append(self.boxed(f"right{number}", product.right, product.n, product.k))
        self.lasts: list[tuple[int, BoxedTile]] = []  # the right factors of the second products: they may be the same
        firsts = len(self.right)                      # as those of the first ones, whose stages then have two readers
        for last in parts.seconds:
            again = self.boxed(f"right{len(self.right)}", last.right, last.n, last.k)
            same = [i for i, tile in enumerate(self.right) if again.has_same_boxes(tile)]
            self.lasts.append((same[0] if same else len(self.right), again))
            self.right += [] if same else [again]
        twice = any(which < firsts for which, _ in self.lasts)
        self.blocks = BLOCKS + twice
        self.factors = len(self.right)
        # other operands of the scores, such as masks: which of the boxed
        self.other_loads: dict[UOp, tuple[int, UOp]] = {}
        for product in parts.firsts:                       # tiles has them, and the columns of their matrix
            self.bring(product)
        # factors copied as one round; all of them if one is used twice, since its stage is free only after the sums
        self.of_sums = [i for i in range(len(self.right)) if twice or i in dict(self.lasts)]
        self.of_scores = [i for i in range(len(self.right)) if i not in self.of_sums]
        self.rounds = [part for part in (self.of_scores, self.of_sums) if part]

    def choose_registers(self) -> None:
        """Decide whether threads hold the left factors in registers between blocks."""
        plan, parts = self.plan, self.parts
        depths = [self.right[i].depth for i in range(len(parts.firsts))]
        self.most = min(gpu.MOST_REGISTERS, gpu.REGISTERS // plan.threads) - gpu.STEP_REGISTERS
        self.takes_turns = len(plan.products) >= TURN_PRODUCTS or plan.threads >= TURN_THREADS
        pays = not self.takes_turns and self.most_blocks * max(depths) >= gpu.HELD_WORK and all(
            FlatAxis.of(p.n).size <= gpu.NARROW_STEP for p in parts.firsts)
        self.holds = pays and self.registers(sum(depths)) <= self.most and not any(t.before for t in self.left)
        self.held_left = {memory: register(f"{memory.arg.name}_held", self.unit.left, (self.row, counter("k", depth)))
                          for memory, depth in zip(self.left_begin, depths)} if self.holds else {}

    def bring(self, product: Product) -> None:
        """Copy the scores' other operands (such as masks) as boxes too: matrices of the unit's type, along rows."""
        for n in toposort([product.store.value]):
            found = BoxedTile.of(n, FlatAxis.of([self.plan.row]), FlatAxis.of(product.n), self.unit)
            if found is not None and found.along_k and n.dtype is self.unit.left and self.plan.row in ranges_of(n):
                self.right.append(found)
                if self.memory_bytes <= gpu.SHARED_BYTES:
                    self.other_loads[n] = len(self.right) - 1, self.column[product.store.memory]
                else:
                    self.right.pop()

    def new(self, value: UOp, replace: dict[UOp, UOp]) -> UOp:
        block = self.block.get(self.parts.block, index(0)) if self.parts.block is not None else index(0)
        there = {n: self.tile(which, block).at(self.row, column) for n, (which, column) in self.other_loads.items()}
        return super().new(value, {**replace, **there})

    def registers(self, more: int) -> int:
        """Registers that a thread needs for all matrices and `more` columns in the unit's type. If threads take turns,
        the scores' registers are free again when the weights are computed and the columns are read."""
        small = self.unit.total.itemsize // self.unit.left.itemsize
        sums = {s.memory for p in self.parts.seconds for s in p.epilogue if isinstance(s, Store)}
        every, of_sums, weights = (sum(self.column[m].arg.size for m in ms)
                                   for ms in (self.plan.matrices, sums, self.rounded))
        more += weights
        columns = max(every * small, of_sums * small + more) if self.takes_turns else every * small + more
        return columns * self.unit.rows // (self.unit.threads * small)

    def boxed(self, name: str, value: UOp, axis: list[UOp], k: list[UOp], is_left: bool = False) -> BoxedTile:
        """A factor as boxes of the memory it is in, if possible, otherwise stored first; a left one has lines along k.
        If blocks run from the last to the first, boxes count them from the first."""
        small, block = narrowed(value, self.unit.left), self.parts.block
        assert small is not None
        found = BoxedTile.of(small, FlatAxis.of(axis), FlatAxis.of(k), self.unit)
        if found is None and block is not None:
            backwards = substitute_index(small, {block: backward(block)}, {})
            found = BoxedTile.of(backwards, FlatAxis.of(axis), FlatAxis.of(k), self.unit)
            if found is not None:
                self.backwards.append(found)
        if found is not None and (found.along_k or not is_left):
            return found
        return BoxedTile.stored(name, small, FlatAxis.of(axis), FlatAxis.of(k), self.outer, self.unit, is_left)

    def fits(self, target: Target) -> bool:
        """Whether the stages fit the memory of a group, and units have these columns."""
        known = {u.columns for u in target.units if u.text is not None and u.text.held and u.left is self.unit.left}
        columns = [self.column[m].arg.size in known for m in self.plan.matrices]
        return self.memory_bytes <= gpu.SHARED_BYTES and all(columns)

    def right_tiles(self) -> dict[int, CopiedLines]:
        return {}

    def tiling(self) -> Tiling:
        left, right = ("packed" if any(t.before for t in tiles) else "shared" for tiles in (self.left, self.right))
        left = "in_place" if self.holds else left
        return Tiling("held", self.row.arg.size // self.unit.rows, 1, lanes=self.plan.threads, unit=self.unit.name,
                      left=left, right=right, stages=self.stages)

    def results_bytes(self) -> int:
        """Bytes of shared memory that results go through."""
        stores = [s for s in walk(self.parts.after) if isinstance(s, Store) and s.memory.op is o.PARAM]
        tiles = {self.result_tile(s, m)[0] for s in stores for m in matrices_in([s], self.plan.matrices)}
        return sum(int(m.arg.size) * m.dtype.itemsize for m in tiles)

    # -- memory --------------------------------------------------------------------------------------------------
    @property
    def stages(self) -> int:
        return self.blocks * len(self.rounds)

    @property
    def left_size(self) -> int:
        return sum(tile.size for tile in self.left)

    @property
    def memory(self) -> UOp:
        return local("stages", self.unit.left, self.left_size + self.blocks * sum(self.stage_sizes))

    @property
    def stage_sizes(self) -> list[int]:
        """Elements in each stage of a block: the same for all factors; then those of other operands."""
        factors = self.right[:self.factors]
        return [max(tile.size for tile in factors)] * len(factors) + [tile.size for tile in self.right[self.factors:]]

    @property
    def memory_bytes(self) -> int:
        return int(self.memory.arg.size) * self.unit.left.itemsize

    def stage_at(self, which: int, block: UOp) -> UOp:
        """The offset in shared memory of a block of a right factor."""
        before, whole = (sum(sizes) for sizes in (self.stage_sizes[:which], self.stage_sizes))
        return add(index(self.left_size + before), multiply(modulo(add(self.first, block), self.blocks), whole))

    def copies(self, factors: list[int], block: UOp, by_last: bool = False) -> CopyBoxes:
        """Start to copy a block of the right factors of a round; with the first block, the left factors too."""
        boxes: list[Box] = []
        for which in factors:
            tile = self.right[which]
            if which < len(self.left) and block.op is o.CONST and block.arg == 0:
                begin = sum(left.size for left in self.left[:which])
                boxes += self.left[which].boxes(index(begin), {})
            replace = self.at_block(backward(self.parts.block, block) if tile in self.backwards else block)
            boxes += tile.boxes(self.stage_at(which, block), replace)
        return CopyBoxes(self.memory, self.round(factors, block), tuple(boxes), by_last)

    def round(self, factors: list[int], block: UOp) -> UOp:
        return add(multiply(add(self.first, block), len(self.rounds)), index(self.rounds.index(factors)))

    def await_copies(self, rounds: list[list[int]], block: UOp) -> list[Statement]:
        """Wait for a block's rounds of copies: the scores need the first round, only the sums need the second."""
        return [AwaitCopies(self.memory, self.round(factors, block), self.stages) for factors in rounds]

    def tile(self, which: int, block: UOp, tile: BoxedTile | None = None) -> FactorTile:
        return PlacedTile(tile or self.right[which], self.memory, self.stage_at(which, block))

    def held_factors(self) -> list[Statement]:
        """Load the left factors of the first products into registers, if they fit: then steps read less memory."""
        return [s for memory, to in self.held_left.items()
                for s in self.over(list(to.src), Assign(to, self.left_tile(memory).at(to.src[0], to.src[1])))]

    def left_at(self, memory: UOp, depth: UOp) -> UOp:
        held = self.held_left.get(memory)
        return super().left_at(memory, depth) if held is None else held

    def left_tile(self, memory: UOp) -> FactorTile:
        number = list(self.left_begin).index(memory)
        return PlacedTile(self.left[number], self.memory, index(self.left_begin[memory]))

    def at_block(self, block: UOp) -> dict[UOp, UOp]:
        return {} if self.parts.block is None else {self.parts.block: block}

    # -- statements ----------------------------------------------------------------------------------------------
    def statements_of_task(self) -> list[Statement]:
        """The copies of the first blocks, unless the previous task has started them; all blocks; the results."""
        out = [] if self.next_task else self.first_copies()
        out += [s for nest in self.parts.before for s in self.nest(nest)]
        out += self.in_order() if self.takes_turns else self.overlapped()
        out += [] if self.next_task else [Barrier()]              # results overlay the stages
        self.block = {}
        return out + [s for nest in self.parts.after for s in self.nest(nest)]

    def in_order(self) -> list[Statement]:
        """for blocks: in turn, the steps of scores; weights; the next block's column values; the second products

        Steps wait for the initial values of their sums: column values are loaded a block ahead if there are enough
        registers. The scores inside exponentials come last: otherwise a compiler would move exponentials into the turn,
        between the steps."""
        loop, count = counter("kn", self.most_blocks), self.parts.count
        block = current(loop)
        # past the last block, the last one again
        following = operation(o.MIN, add(block, index(1)), add(count, index(-1)))
        first, ahead = (self.column_numbers(self.scores(b).begins)[0] for b in (index(0), following))
        scores, reads, made, early, late = self.weighted(block)
        _, begins = self.column_numbers(scores.begins)
        sums, after = self.sums(block), add(block, index(self.blocks))
        body: list[Statement] = [
            *begins, *self.await_copies(self.rounds[:1], block), Turn(), *scores.steps[::-1], Turn(ends=True), *reads,
            AwaitSteps(0, scores.registers), *made, *self.refill(self.of_scores, after), *early, *late,
            *sums.begins, *self.await_copies(self.rounds[1:], block), *ahead, *sums.steps,
            AwaitSteps(0, sums.registers), *self.refill(self.of_sums, after)]
        early_copies, late_copies = self.next_copies()
        return [*first, For(loop, LOOP, body, None if count.op is o.CONST else count), *early_copies, *late_copies]

    def overlapped(self) -> list[Statement]:
        """The first block up to its weights, the loop over the others, and the last block's second products."""
        zero = index(0)
        scores, reads, made, early, late = self.weighted(zero)
        out = [*self.await_copies(self.rounds[:1], zero), *self.held_factors(), *scores.begins, *scores.steps, *reads,
               AwaitSteps(0, scores.registers), *made, *early, *late, *self.sums(zero).begins,
               *self.await_copies(self.rounds[1:], zero)]
        if self.most_blocks > 1:
            out += [*self.refill(self.of_scores, index(self.blocks)), self.other_blocks()]
        last = self.sums(add(self.parts.count, index(-1)))
        early_copies, late_copies = self.next_copies()
        return [*out, *last.steps, *early_copies, AwaitSteps(0, last.registers), *late_copies]

    def first_copies(self) -> list[Statement]:
        """The copies of the first blocks of a task."""
        out: list[Statement] = []
        for block in range(self.blocks):
            out += self.where_there(index(block), [self.copies(factors, index(block)) for factors in self.rounds])
        return out

    def next_copies(self) -> tuple[list[Statement], list[Statement]]:
        """The copies of the next task's first blocks: those that may start while the last steps of this one run, and
        those into stages that these steps read."""
        following, early, late = self.next_task, list[Statement](), list[Statement]()
        if following is None:
            return early, late
        mine, self.first = self.first, following.first
        for block in range(self.blocks):
            for factors in self.rounds:
                to = late if block == self.blocks - 1 and factors is self.of_sums else early
                to += moves.rebuild([self.copies(factors, index(block), by_last=True)], following.tasks)
        self.first = mine
        return [If(following.there, early)], [If(following.there, late)]

    def other_blocks(self) -> For:
        """for blocks: the next block's scores and this block's second products, overlapped with the next weights

        Steps wait for the initial values of their sums, which are loaded before threads wait for copies."""
        loop, blocks = counter("kn", self.most_blocks - 1), self.blocks
        block = current(loop)
        next_block = add(block, index(1))
        sums = self.sums(block)
        scores, reads, made, early, late = self.weighted(next_block)
        assigned = dict.fromkeys(s.register for s in walk(early) if isinstance(s, (Assign, Accumulate)))
        read = {n for s in walk([*late, *sums.begins]) for e in expressions(s) for n in toposort([e])}
        used_later = tuple([r for r in assigned if r in read and r.dtype is self.unit.total])
        body: list[Statement] = [
            *scores.begins, *self.await_copies(self.rounds[:1], next_block), *scores.steps, *sums.steps, *reads,
            AwaitSteps(len(self.lasts), scores.registers), *made,
            *self.refill(self.of_scores, add(next_block, index(blocks))), *early,
            *self.await_copies(self.rounds[1:], next_block),     # a loop that waits: compilers move no code across it
            AwaitSteps(0, sums.registers, used_later), *self.refill(self.of_sums, add(block, index(blocks))),
            *late, *sums.begins]
        count = self.parts.count
        return For(loop, LOOP, body, None if count.op is o.CONST else add(count, index(-1)))

    def column_numbers(self, begins: list[Statement]) -> tuple[list[Statement], list[Statement]]:
        """The initial values of sums, in two parts: loads of column values into registers during the previous block, if
        there are enough registers; and the assignments. The next steps wait for them."""
        values = [s.value for s in walk(begins) if isinstance(s, Assign)]
        wide = {n: c for n in toposort(values) if n.op is o.LOAD and n.src[0].op is o.PARAM
                for c in self.column.values() if c in ranges_of(n) and self.row not in ranges_of(n)}
        if self.registers(sum(c.arg.size for c in wide.values())) > self.most:
            return [], begins
        held = {n: register(f"begin{i}", n.dtype, (self.row, c)) for i, (n, c) in enumerate(wide.items())}
        reads = [s for n, to in held.items() for s in self.over(list(to.src), Assign(to, n))]
        return reads, moves.rebuild(begins, held)

    @property
    def most_blocks(self) -> int:
        return bounds(self.parts.count)[1]

    def refill(self, factors: list[int], block: UOp) -> list[Statement]:
        """Copy a block, if it exists, as soon as all threads are done with the previous one in its stage."""
        return self.where_there(block, [self.copies(factors, block, by_last=True)]) if factors else []

    def where_there(self, block: UOp, body: list[Statement]) -> list[Statement]:
        """Statements about a block, run only if the block exists."""
        condition = less(block, self.parts.count)
        if condition.op is o.CONST:
            return body if condition.arg else []
        return [If(condition, body)]

    def scores(self, block: UOp) -> ProductSteps:
        self.block = self.at_block(block)
        firsts = enumerate(self.parts.firsts)
        return ProductSteps.joined([self.product(p, self.tile(which, block)) for which, p in firsts])

    def sums(self, block: UOp) -> ProductSteps:
        self.block = self.at_block(block)
        return ProductSteps.joined([self.product(p, self.tile(which, block, tile))
                                    for p, (which, tile) in zip(self.parts.seconds, self.lasts)])

    def weighted(self, block: UOp) -> WeightedBlock:
        """The statements of a block up to its weights."""
        scores = self.scores(block)
        made = [s for nest in self.parts.between for s in self.nest(nest)]
        held = set(self.rounded.values())
        first = next(i for i, s in enumerate(made) if any(isinstance(a, Assign) and a.register in held
                                                          for a in walk([s])))
        reads, finished = read_first(scores.made)
        more, early = read_first(made[:first])
        return WeightedBlock(scores, [*reads, *more], finished, early, made[first:])

    def nest(self, nest: Statement) -> list[Statement]:
        _, body = task_loops([nest])
        copies = isinstance(body[0], Store) and body[0].memory in self.plan.copied
        return [] if copies else super().nest(nest)

    def stored(self, s: Store, wide: list[UOp], replace: dict[UOp, UOp], matrices: list[UOp]) -> list[Statement]:
        """A store to a result, through shared memory."""
        if not matrices:
            return super().stored(s, wide, replace, matrices)
        [matrix] = matrices
        columns, size = self.plan.matrices[matrix], s.memory.dtype.itemsize
        tile, across, lines, inside = self.result_tile(s, matrix)
        even = self.even_rows(s.gate) if across else columns.size
        piece = next(n for n in (gpu.COPY_BYTES // size, 4, 2, 1) if even % n == 0)
        pitch = inside + gpu.COPY_BYTES // size
        line, inner = (self.column[matrix], self.row) if across else (self.row, self.column[matrix])
        keep = Store(tile, add(multiply(line, pitch), inner), self.new(s.value, replace))
        along = inside // piece
        each, lane = counter("e", piece), counter("l", self.plan.threads)
        times = counter("i", lines * along // self.plan.threads)
        at = add(multiply(current(times), self.plan.threads), lane)
        line, begin = divide(at, along), multiply(modulo(at, along), piece)
        inner = add(begin, current(each))
        row, column, edge = (inner, line, line) if across else (line, inner, begin)
        there = {self.plan.row: row, **columns.indices(column)}
        kept = {**there, self.plan.row: begin} if across else there          # all rows of a piece are stored, or none
        gate = both(None if s.gate is None else substitute_index(s.gate, kept, {}), below(edge, columns.size))
        store = Store(s.memory, substitute_index(s.index, there, {}), load(tile, add(multiply(line, pitch), inner)),
                      None, gate)
        return [*self.over(wide, keep), *nested([times], nested([each], [For(lane, LANE, [store])], TILE))]

    def even_rows(self, gate: UOp | None) -> int:
        """A number of rows such that, in any piece of so many rows that begins at a multiple of it, the gate keeps all
        rows or none."""
        rows = int(self.row.arg.size)
        if gate is None:
            return rows
        inside, limit = below_limit(gate) or ({}, 1)
        return math.gcd(rows, limit, *[k for atom, k in inside.items() if atom is not self.plan.row]) \
            if inside.get(self.plan.row) == 1 else 1

    def result_tile(self, s: Store, matrix: UOp) -> tuple[UOp, bool, int, int]:
        """The shared memory for a result; whether the result is contiguous along rows; its lines, and their length."""
        rows, width = self.row.arg.size, self.column[matrix].arg.size
        across = stride_along(s.index, self.plan.row) == 1
        lines, inside = (width, rows) if across else (rows, width)
        pitch = inside + gpu.COPY_BYTES // s.memory.dtype.itemsize
        over = "" if self.next_task else "stages"
        return local("result", s.memory.dtype, lines * pitch, over=over), across, lines, inside


class WeightedBlock(NamedTuple):
    """The scores of a block, and what is computed from them."""
    scores: ProductSteps
    reads: list[Statement]       # loads that may run during the steps
    made: list[Statement]        # the epilogue of the scores
    early: list[Statement]       # statements that may run during the steps that read the previous weights
    late: list[Statement]        # the weights


class NextTask(NamedTuple):
    """The task after this one in its group."""
    first: UOp               # the number of its first block
    tasks: dict[UOp, UOp]    # counter of tasks -> its value for that task
    there: UOp               # whether that task exists


def backward(block: UOp | None, at: UOp | None = None) -> UOp:
    """The number of a block, counted from the last one."""
    assert block is not None
    return add(index(block.arg.size - 1), multiply(block if at is None else at, -1))


def read_first(made: list[Statement]) -> tuple[list[Statement], list[Statement]]:
    """Split an epilogue into its loads from memory to registers, which may run during the steps, and the rest."""
    if len(made) != 1 or not isinstance(made[0], For):
        return [], made
    [assign] = [s for s in walk(made) if isinstance(s, Assign)]
    row, column = assign.register.src
    loads = [n for n in toposort([assign.value]) if n.op is o.LOAD and not ranges_of(n).isdisjoint((row, column))]
    held = {n: register(f"read{i}", n.dtype, (row, column) if column in ranges_of(n) else (row,))
            for i, n in enumerate(loads)}
    reads = [s for n, to in held.items() for s in HeldNests.over(list(to.src), Assign(to, n))]
    return reads, moves.rebuild(made, held)
