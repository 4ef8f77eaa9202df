"""Nests whose factors come as boxes, for a unit whose steps run beside the threads. In: tasks of two products and the
nests between them, a block at a time. Out: the same for one thread group, or None.

    nests, for each block j (group_nests.py)     written so that the unit works while threads compute
    tile = left right[j]                         copies of the first blocks; tile = left right[0]; weights = f(tile)
    weights = f(tile)                            for j: tile = left right[j + 1]        both products are steps that
    out = out * shrink + weights values[j]              out += weights values[j]        run beside f
                                                        wait for tile; f(tile); wait for out; weights; out *= shrink
                                                        a barrier; copies of later blocks
                                                 out += weights values[last]

Both right factors, and the left one of the first product, are matrices in memory that copies bring as they lie; what
lies past their edges comes as zeros. The weights stay in registers, where the unit takes them as its left factor. The
results go to memory of the group, so that neighbouring threads store neighbouring pieces of a line. Does not know what
nests compute, nor which unit it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.index_algebra import (add, all_of, below_limit, both, bounds, divide, index, less, linear,
                                                    modulo, multiply, substitute_index)
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import (LANE, LOOP, TASK, TILE, Accumulate, Assign, AwaitCopies, AwaitSteps, Axis,
                                            Barrier, Box, CopyBoxes, For, If, Statement, Store, counter, expressions,
                                            load, local, ranges_of, task_loops, walk)
from glassgrad.compiler.lower.masks import something_masked
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.group_nests import CopiedTile, FactorTile, HeldNests, HeldPlan
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.loop_moves import nested, one
from glassgrad.compiler.optimize.product.group_unit import packed
from glassgrad.compiler.optimize.product.packing import narrowed
from glassgrad.compiler.optimize.product.recognize import FlatAxis, Product
from glassgrad.compiler.optimize.product.tiling import Tiling
from glassgrad.compiler.optimize.targets import gpu
from glassgrad.compiler.optimize.targets.matrix_units import MatrixUnit
from glassgrad.compiler.optimize.targets.target import Target

STAGES = 4           # factors of a block that are in memory or on their way: those of two blocks


def in_boxes(body: list[Statement], target: Target, decisions: Decisions) -> list[list[Statement]] | None:
    """for tasks: nests  ->  phases that store factors; TASK ..: copies, steps and nests      refuses (None): no unit"""
    loops, inner = task_loops(body)
    plan = HeldPlan.of(inner, target, beside=True)
    if plan is None or any(f.stop is not None for f in loops):
        return None
    parts, tasks = BlockParts.of(plan, inner), [f.range for f in loops]
    nests = None if parts is None else BoxedNests.of(plan, parts, tasks, target)
    if nests is None:
        return None
    decisions.ask(nests.tiling(), lambda c: None)
    last_first = {r: add(index(r.arg.size - 1), multiply(r, -1)) for r in tasks if r in ranges_of(nests.parts.count)}
    main = moves.rebuild(nests.statements_of_task(), last_first)                # the longest tasks begin first
    return [*[tile.before for tile in nests.tiles_used() if tile.before], nested(tasks, main, TASK)]


@dataclass
class BlockParts:
    """The nests of a task, in order."""
    before: list[Statement]
    first: Product               # its left factor is copied: sums of one block
    between: list[Statement]     # what makes the weights of them
    second: Product              # its left factor are the weights: sums of all blocks
    after: list[Statement]
    block: UOp | None            # the counter of blocks, where there are several
    count: UOp                   # and how many there are

    @staticmethod
    def of(plan: HeldPlan, body: list[Statement]) -> BlockParts | None:
        loops = [s for s in body if isinstance(s, For) and s.kind == LOOP]
        if len(loops) > 1:
            return None
        inner, at = (loops[0].body, body.index(loops[0])) if loops else (body, 0)
        products = [i for i, s in enumerate(inner) if id(s) in plan.products]
        if len(products) != 2 or loops and (products[0] != 0 or products[1] != len(inner) - 1):
            return None
        begin, end = products
        before, after = (body[:at], body[at + 1:]) if loops else (body[:begin], body[end + 1:])
        first, second = (plan.products[id(inner[i])] for i in products)
        if first.left.src[0] not in plan.copied or second.left.src[0] not in plan.matrices:
            return None
        count = index(1)
        if loops:
            size, stop = loops[0].range.arg.size, loops[0].stop
            count = index(size) if stop is None else stop
            count = count if bounds(count)[1] <= size else count.minimum(size)
            count = count if bounds(count)[0] >= 1 else count.maximum(1)      # of no block nothing is kept
        return BlockParts(before, first, inner[begin + 1:end], second, after, loops[0].range if loops else None, count)


class BoxedNests(HeldNests):
    """The nests of a task, for a group of threads."""
    parts: BlockParts
    left: BoxedTile
    right: tuple[BoxedTile, BoxedTile]     # of both products

    @staticmethod
    def of(plan: HeldPlan, parts: BlockParts, tasks: list[UOp], target: Target) -> BoxedNests | None:
        unit, outer = plan.unit, [*tasks, *([] if parts.block is None else [parts.block])]
        store = plan.copied[parts.first.left.src[0]]
        steps = [r for r in ranges_of(store.index) if r is not plan.row]

        def tile(name: str, value: UOp, axis: list[UOp], k: list[UOp]) -> BoxedTile:
            small = narrowed(value, unit.left)
            assert small is not None
            is_left = name == "left"
            found = BoxedTile.of(small, FlatAxis.of(axis), FlatAxis.of(k), unit)
            if found is not None and (found.along_k or not is_left):
                return found
            return BoxedTile.stored(name, small, FlatAxis.of(axis), FlatAxis.of(k), outer, unit, is_left)

        nests = BoxedNests(plan, False)
        nests.parts, nests.left = parts, tile("left", store.value, [plan.row], steps)
        nests.right = (tile("right0", parts.first.right, parts.first.n, parts.first.k),
                       tile("right1", parts.second.right, parts.second.n, parts.second.k))
        widths = [nests.column[m].arg.size for m in plan.matrices]
        known = [u.columns for u in target.units if u.text is not None and u.text.held and u.left is unit.left]
        fits = (nests.left.size + STAGES * nests.stage) * unit.left.itemsize <= gpu.SHARED_BYTES
        return nests if fits and all(w in known for w in widths) else None

    def tiles_used(self) -> list[BoxedTile]:
        return [self.left, *self.right]

    def right_tiles(self) -> dict[int, CopiedTile]:
        return {}

    def tiling(self) -> Tiling:
        left, right = ("packed" if any(t.before for t in tiles) else "shared" for tiles in ([self.left], self.right))
        return Tiling("held", self.row.arg.size // self.unit.rows, 1, lanes=self.plan.threads, unit=self.unit.name,
                      left=left, right=right, stages=STAGES)

    # -- memory --------------------------------------------------------------------------------------------------
    @property
    def stage(self) -> int:
        """Elements of one stage."""
        return max(tile.size for tile in self.right)

    @property
    def memory(self) -> UOp:
        return local("stages", self.unit.left, self.left.size + STAGES * self.stage)

    def stage_at(self, round_: UOp) -> UOp:
        return add(index(self.left.size), multiply(modulo(round_, STAGES), self.stage))

    def copies(self, which: int, block: UOp) -> CopyBoxes:
        """Start to copy a block of the right factor of the first (0) or second (1) product; the left one comes along
        with the first block."""
        round_ = self.round(which, block)
        boxes = self.right[which].boxes(self.stage_at(round_), self.at_block(block))
        if which == 0 and block.op is o.CONST and block.arg == 0:
            boxes = [*self.left.boxes(index(0), {}), *boxes]
        return CopyBoxes(self.memory, round_, tuple(boxes))

    @staticmethod
    def round(which: int, block: UOp) -> UOp:
        return add(multiply(block, 2), index(which))

    def await_copies(self, which: int, block: UOp) -> AwaitCopies:
        return AwaitCopies(self.memory, self.round(which, block), STAGES)

    def tile(self, which: int, block: UOp) -> FactorTile:
        return PlacedTile(self.right[which], self.memory, self.stage_at(self.round(which, block)))

    def left_tile(self, memory: UOp) -> FactorTile:
        return PlacedTile(self.left, self.memory, index(0))

    def at_block(self, block: UOp) -> dict[UOp, UOp]:
        return {} if self.parts.block is None else {self.parts.block: block}

    # -- statements ----------------------------------------------------------------------------------------------
    def statements_of_task(self) -> list[Statement]:
        parts, zero, first = self.parts, index(0), index(1)
        several = self.most_blocks > 1
        last = add(parts.count, index(-1))
        out = [self.copies(0, zero), self.copies(1, zero)]
        if several:
            out += self.where_there(first, [self.copies(0, first), self.copies(1, first)])
        out += [s for nest in parts.before for s in self.nest(nest)]
        begins, steps, made = self.scores(zero)
        early, late = self.weights(zero)
        sums = parts_of(self.second(zero))
        out += [self.await_copies(0, zero), *begins, *steps, AwaitSteps(0, (register_of(steps),)), *made, *early, *late,
                *sums.begins, self.await_copies(1, zero)]
        if several:
            out += [Barrier(), *self.where_there(index(2), [self.copies(0, index(2))])]
            out.append(self.blocks())
        out += [*parts_of(self.second(last)).steps, AwaitSteps(0, (register_of(sums.steps),)), Barrier()]
        self.block = {}
        return out + [s for nest in parts.after for s in self.nest(nest)]

    def blocks(self) -> For:
        """All blocks but the first and the last product: the steps of two products run beside what makes weights."""
        parts = self.parts
        loop = counter("kn", self.most_blocks - 1)
        now = one(loop)
        later, sums = add(now, index(1)), parts_of(self.second(now))
        begins, steps, scaled = self.scores(later)
        early, late = self.weights(later)
        assigned = dict.fromkeys(s.register for s in walk(early) if isinstance(s, (Assign, Accumulate)))
        read = {n for s in walk([*late, *sums.begins]) for e in expressions(s) for n in toposort([e])}
        made = tuple([r for r in assigned if r in read and r.dtype is self.unit.total])
        body: list[Statement] = [
            self.await_copies(0, later), *begins, *steps, *sums.steps, AwaitSteps(1, (register_of(steps),)), *scaled,
            *early, self.await_copies(1, later), AwaitSteps(0, (register_of(sums.steps),), made), *late, *sums.begins,
            Barrier(),
            *self.where_there(add(now, index(2)), [self.copies(1, add(now, index(2)))]),
            *self.where_there(add(now, index(3)), [self.copies(0, add(now, index(3)))])]
        stop = None if parts.count.op is o.CONST else add(parts.count, index(-1))
        return For(loop, LOOP, body, stop)

    @property
    def most_blocks(self) -> int:
        return bounds(self.parts.count)[1]

    def where_there(self, block: UOp, body: list[Statement]) -> list[Statement]:
        """Statements about a block, where there is one."""
        condition = less(block, self.parts.count)
        if condition.op is o.CONST:
            return body if condition.arg else []
        return [If(condition, body)]

    def scores(self, block: UOp) -> tuple[list[Statement], list[Statement], list[Statement]]:
        """The first product. What only masks its sums is left out in blocks where nothing is masked."""
        self.block = self.at_block(block)
        begins, steps, made = self.product(self.parts.first, self.tile(0, block))
        if made:
            [mask] = [s for s in walk(made) if isinstance(s, Assign)]
            condition = something_masked(mask.value, mask.register, list(mask.register.src))
            made = made if condition is None else [If(condition, made)]
        return begins, steps, made

    def second(self, block: UOp) -> tuple[list[Statement], list[Statement], list[Statement]]:
        self.block = self.at_block(block)
        return self.product(self.parts.second, self.tile(1, block))

    def weights(self, block: UOp) -> tuple[list[Statement], list[Statement]]:
        """What is made of a block's sums: what may run beside the steps that read the last weights, and the rest."""
        self.block = self.at_block(block)
        made = [s for nest in self.parts.between for s in self.nest(nest)]
        held = set(self.rounded.values())
        first = next(i for i, s in enumerate(made) if any(isinstance(a, Assign) and a.register in held
                                                          for a in walk([s])))
        return made[:first], made[first:]

    def nest(self, nest: Statement) -> list[Statement]:
        _, body = task_loops([nest])
        copies = isinstance(body[0], Store) and body[0].memory in self.plan.copied
        return [] if copies else super().nest(nest)

    def stored(self, s: Store, wide: list[UOp], replace: dict[UOp, UOp], matrices: list[UOp]) -> list[Statement]:
        """A store to a result, by way of memory of the group."""
        [matrix] = matrices
        columns, width = self.plan.matrices[matrix], self.column[matrix].arg.size
        rows = self.row.arg.size
        size = s.memory.dtype.itemsize
        piece = next(n for n in (gpu.COPY_BYTES // size, 4, 2, 1) if columns.size % n == 0)
        pitch = width + gpu.COPY_BYTES // size
        tile = local("result", s.memory.dtype, rows * pitch, over="stages")
        keep = Store(tile, add(multiply(self.row, pitch), self.column[matrix]), self.new(s.value, replace))
        along = width // piece
        each, lane = counter("e", piece), counter("l", self.plan.threads)
        times = counter("i", rows * along // self.plan.threads)
        at = add(multiply(one(times), self.plan.threads), lane)
        row, begin = divide(at, along), multiply(modulo(at, along), piece)
        there = {self.plan.row: row, **columns.apart(add(begin, one(each)))}
        gate = both(None if s.gate is None else substitute_index(s.gate, there, {}), moves.below(begin, columns.size))
        value = load(tile, add(add(multiply(row, pitch), begin), one(each)))
        store = Store(s.memory, substitute_index(s.index, there, {}), value, None, gate)
        return [*self.over(wide, keep), *nested([times], nested([each], [For(lane, LANE, [store])], TILE))]


@dataclass
class ProductParts:
    begins: list[Statement]
    steps: list[Statement]
    made: list[Statement]


def parts_of(parts: tuple[list[Statement], list[Statement], list[Statement]]) -> ProductParts:
    return ProductParts(*parts)


def register_of(steps: list[Statement]) -> UOp:
    """The sums of a product's steps."""
    [step] = [s for s in walk(steps) if isinstance(s, Accumulate)]
    return step.register


# -- factors -----------------------------------------------------------------------------------------------------------
@dataclass
class BoxedTile:
    """A factor's part of a block as boxes of a matrix in memory: lines along k, or across it."""
    source: UOp
    offset: int
    along_k: bool
    line: int                             # elements of a line in memory of the group
    inside: tuple[int, UOp | None, int]   # along a line: elements of a block, its number where gates count, all elements
    lines: tuple[int, UOp | None, int]    # and across lines
    pitch: int                            # from line to line
    outer: list[tuple[UOp, int]]          # what else the index depends on, with its stride
    depth: int                            # of k, in steps of the unit
    before: list[Statement]               # the loops that store it there, where it did not lie so

    @staticmethod
    def stored(name: str, value: UOp, axis: FlatAxis, k: FlatAxis, outer: list[UOp], unit: MatrixUnit,
               along_k: bool) -> BoxedTile:
        """A factor that is stored first."""
        line, depth = line_of(unit), -(-k.size // unit.depth) * unit.depth
        factor = packed(name, value, axis, k, outer, unit.right, line, along_k)
        inner, other = (k, axis) if factor.along_k else (axis, k)
        return BoxedTile(factor.memory, 0, factor.along_k, line, (inner.size, None, inner.size),
                         (other.size, None, other.size), factor.pitch, factor.outer, depth, factor.before)

    @staticmethod
    def of(value: UOp, axis: FlatAxis, k: FlatAxis, unit: MatrixUnit) -> BoxedTile | None:
        """A factor that boxes can bring; None: it is computed, or does not lie so."""
        if value.op is not o.LOAD or value.src[0].op is not o.PARAM:
            return None
        position, step = counter("position", axis.size), counter("step", k.size)
        apart = {**axis.apart(position), **k.apart(step)}
        offset, terms = linear(substitute_index(value.src[1], apart, {}))
        ends: dict[UOp, tuple[int, UOp | None, int]] = {c: (c.arg.size, None, c.arg.size) for c in (position, step)}
        for gate in all_of(value.src[2]) if len(value.src) > 2 else []:
            found = _end(substitute_index(gate, apart, {}), terms, position, step)
            if found is None:
                return None
            ends[found[0]] = found[1]
        along_k = terms.get(step) == 1
        inner, other = (step, position) if along_k else (position, step)
        joined = {block for _, block, _ in ends.values()}
        outer = [(atom, stride) for atom, stride in terms.items() if atom not in (position, step) and atom not in joined]
        whole = gpu.COPY_BYTES // value.dtype.itemsize
        pitch = terms.get(other, 0)
        strides = [pitch, *[stride for _, stride in outer]]
        if terms.get(inner) != 1 or offset % whole or any(s <= 0 or s % whole for s in strides) or \
                len(outer) > gpu.COPY_AXES - 2 or any(bounds(atom)[0] < 0 for atom, _ in outer):
            return None
        depth = -(-k.size // unit.depth) * unit.depth
        return BoxedTile(value.src[0], offset, along_k, line_of(unit), ends[inner], ends[other], pitch, outer, depth, [])

    @property
    def rows(self) -> int:
        """Lines of one box."""
        return self.lines[0] if self.along_k else self.depth

    @property
    def size(self) -> int:
        """Elements in memory of the group."""
        return -(-self.inside[0] // self.line) * self.line * self.rows

    def boxes(self, to: UOp, block: dict[UOp, UOp]) -> list[Box]:
        """The copies of a block."""
        around = tuple([Axis(bounds(atom)[1] + 1, stride) for atom, stride in self.outer])
        at = tuple([substitute_index(atom, block, {}) for atom, _ in self.outer])
        axes = (Axis(self.inside[2], 1), Axis(self.lines[2], self.pitch), *around)
        along, across = (index(0) if number is None else multiply(substitute_index(number, block, {}), size)
                         for size, number, _ in (self.inside, self.lines))
        counts = (self.line, self.rows, *[1] * len(around))
        return [Box(self.source, self.offset, axes, counts, (add(along, index(i)), across, *at),
                    add(to, index(i * self.rows))) for i in range(0, self.inside[0], self.line)]

    def place(self, position: UOp, k: UOp) -> UOp:
        """Where the boxes have put a position and a k of the block."""
        inner, other = (k, position) if self.along_k else (position, k)
        within = add(multiply(other, self.line), modulo(inner, self.line))
        return add(multiply(divide(inner, self.line), self.line * self.rows), within)


@dataclass
class PlacedTile:
    """A boxed tile at a place in memory."""
    tile: BoxedTile
    memory: UOp
    begin: UOp

    @property
    def depth(self) -> int:
        return self.tile.depth

    def at(self, position: UOp, k: UOp) -> UOp:
        return load(self.memory, add(self.begin, self.tile.place(position, k)))


def line_of(unit: MatrixUnit) -> int:
    """Elements of one line of memory that the unit reads."""
    assert unit.lines is not None
    return unit.lines.line_bytes // unit.left.itemsize


def _end(gate: UOp, terms: dict[UOp, int], position: UOp, step: UOp) -> tuple[UOp, tuple[int, UOp | None, int]] | None:
    """A gate that says where an axis ends: the axis, its elements in a block, the block's number, and all elements."""
    found = below_limit(gate)
    if found is None:
        return None
    inside, limit = found
    [axis] = [c for c in (position, step) if c in inside] or [None]
    others = [atom for atom in inside if atom is not axis]
    if axis is None or inside[axis] != 1 or len(others) > 1:
        return None
    size = axis.arg.size
    if not others:
        return axis, (size, None, limit)
    [block] = others
    even = inside[block] == size and terms.get(block) == terms.get(axis, 0) * size
    return (axis, (size, block, limit)) if even else None
