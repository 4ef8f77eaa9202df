"""A contraction on a matrix unit of a group of threads. In: a product, a `Target` with units. Out: phases, or None.

    phases     store a factor that no copy can bring as it lies (computed, masked, with rows that do not start at
               multiples of 16 bytes): [line][k or position], lines padded
    TASK tiles of M and N:
        start to copy the first steps of both factors into stages of memory that the group shares
        for steps of K (or of a part of it, where tiles are few):
            wait for its copies; one step of the unit; wait for the step before it; refill the stage that it read
        put the sums into that memory, line by line; the epilogue reads them there

Copies bring zeros for what lies past the edges of M, N and K. What lies past those of M and N is dropped at the store.
All threads do the same: no roles. Does not know which unit it is: shapes, layouts and limits come from targets/.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import DType
from glassgrad.compiler.graph.index_algebra import (add, both, divide, index, less, linear, modulo, multiply,
                                                    substitute_index)
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.uop import UOp, const
from glassgrad.compiler.lower.loops import (LANE, LOOP, TASK, TILE, UNIT, Accumulate, Assign, AwaitCopies, AwaitSteps,
                                            Axis, Barrier, Box, CopyBoxes, For, If, Statement, Store, counter,
                                            expressions, load, local, ranges_of, register, walk)
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.loop_moves import flat_index, left_of, loops_around, nested, one
from glassgrad.compiler.optimize.moves.read_ahead import read_ahead
from glassgrad.compiler.optimize.plain.transposed_copies import CopyAcross
from glassgrad.compiler.optimize.product.packing import narrowed
from glassgrad.compiler.optimize.product.recognize import FlatAxis, Product, count, flat_axis, stride_along, swells
from glassgrad.compiler.optimize.product.split_k import Parts
from glassgrad.compiler.optimize.product.tiling import Tiling
from glassgrad.compiler.optimize.product.window_boxes import MOST_PADDED, BoxFactor, row_factors, window_factor
from glassgrad.compiler.optimize.targets import gpu_costs as gpu
from glassgrad.compiler.optimize.targets.matrix_units import MatrixUnit
from glassgrad.compiler.optimize.targets.target import Target


def on_group_unit(product: Product, target: Target, decisions: Decisions) \
        -> tuple[list[list[Statement]], list[Statement]] | None:
    """The phases, and the loops that add up parts of K; refuses (None) what has no unit for its types, or is too small
    to repay it."""
    if not target.units or product.stops or not product.n:
        return None
    plan = GroupUnitPlan.of(product.with_neighbours_right(), target)
    if plan is None:
        return None
    return GroupUnitTile(plan, decisions.ask(plan.own(), plan.refuses, plan.others)).phases()


@dataclass
class Factor:
    """A factor as a matrix in memory with one contiguous axis: K, or its own axis (M or N)."""
    memory: UOp
    offset: int
    axis: FlatAxis
    k: FlatAxis
    along_k: bool
    pitch: int                            # from line to line
    outer: list[tuple[UOp, int]]          # other loops that it depends on, with its stride along each: those around
                                          # everything, and of a padded K all but the last
    before: list[Statement]               # the loops that store it there, where it did not lie so

    @property
    def in_two_lines(self) -> bool:
        """Whether lines that are copied may lie in two lines of the cache each."""
        return (self.pitch * self.memory.dtype.itemsize) % gpu.CACHE_LINE != 0

    def boxes(self, line: int, to: UOp, position: UOp, size: int, k: UOp) -> list[Box]:
        """The boxes of `size` positions from `position` on, and of one step of K, which is a line long."""
        around = tuple([Axis(r.arg.size, stride) for r, stride in self.outer])
        places = self.k.apart(k) if self.k.pitch else {}
        at = tuple([places.get(r, r) for r, _ in self.outer])
        k, length = places.get(self.k.parts[-1], k), self.k.row
        if self.along_k:
            axes = (Axis(length, 1), Axis(self.axis.size, self.pitch), *around)
            return [Box(self.memory, self.offset, axes, (line, size, *[1] * len(around)), (k, position, *at), to)]
        axes = (Axis(self.axis.size, 1), Axis(length, self.pitch), *around)
        return [Box(self.memory, self.offset, axes, (line, line, *[1] * len(around)),
                    (add(position, index(i)), k, *at), add(to, index(i * line)))
                for i in range(0, size, line)]

    def place(self, line: int, position: UOp, k: UOp) -> UOp:
        """Where the boxes have put a position and a k, both counted from their beginning."""
        if self.along_k:
            return add(multiply(position, line), k)
        column = add(multiply(k, line), modulo(position, line))
        return add(multiply(divide(position, line), line * line), column)


@dataclass
class GroupUnitPlan:
    """A product in a unit's types on flat axes, and how it would be cut."""
    product: Product
    target: Target
    units: list[MatrixUnit]               # for these types, of different shapes
    m: FlatAxis
    n: FlatAxis
    k: FlatAxis
    outer: list[UOp]
    left: UOp
    right: UOp
    images: tuple[BoxFactor | None, BoxFactor | None] = (None, None)       # factors that are read as boxes of an image

    @staticmethod
    def of(p: Product, target: Target) -> GroupUnitPlan | None:
        for unit in target.units:
            left, right = narrowed(p.left, unit.left), narrowed(p.right, unit.right)
            if p.total.dtype is unit.total and left is not None and right is not None and unit.lines is not None:
                break
        else:
            return None
        m, outside_m = flat_axis(p.m, p.epilogue, "m")
        n, outside_n = flat_axis(p.n, p.epilogue, "n")
        units = [u for u in target.units
                 if (u.left, u.right, u.total, u.lines) == (unit.left, unit.right, unit.total, unit.lines)]
        plan = GroupUnitPlan(p, target, units, m, n, FlatAxis.of(p.k), [*p.batch, *outside_m, *outside_n], left, right)
        if p.depth < gpu.UNIT_LIMITS.least_k or p.work < gpu.UNIT_LIMITS.least_work:
            return None
        plan = plan.with_images()
        if min(plan.m.size, plan.n.size) < gpu.LEAST_SIDE:
            return None
        stored = any(image is None and swells(factor, loops + p.k)
                     for image, factor, loops in zip(plan.images, (left, right), (p.m, p.n)))
        return None if stored else plan

    def with_images(self) -> GroupUnitPlan:
        """The same, with windows of an image read from the image, where a factor is that."""
        p, line = self.product, self.line(self.units[0])
        if self.placed()[1] is not None:
            return self
        padded = self.with_padded_sum(line)
        if None not in padded.placed():
            return padded
        found = window_factor(self.right, p.n, p.k, line)
        if found is not None and self.left_follows(found.k):
            outer = [r for r in (*p.batch, *p.m, *p.n) if r not in (*self.m.parts, *found.axis.parts)]
            return replace(self, n=found.axis, k=found.k, outer=outer, images=(None, found))
        both_ = row_factors(self.left, self.right, self.m.parts, self.n.parts, p.k, line) \
            if self.units[0].across and not self.outer else None          # its lines are channels: they lie across k
        if both_ is None:
            return padded if padded.placed() != [None, None] else self
        return replace(self, m=both_[0].axis, n=both_[1].axis, k=both_[0].k, images=both_)

    def left_follows(self, k: FlatAxis) -> bool:
        """Whether the left factor can be stored in this order of K: it lies so, or its memory is in the cache."""
        reads = [n.src[1] for n in toposort([self.left]) if n.op is o.LOAD and ranges_of(n.src[1]) >= {*k.parts}]
        lies = any(stride_along(at, r) == 1 for at in reads for r in (self.m.parts[-1], k.parts[-1]))
        return lies or count((*self.product.m, *self.product.k)) * self.left.dtype.itemsize <= gpu.CACHE_BYTES

    def with_padded_sum(self, line: int) -> GroupUnitPlan:
        """The same, with the last loop of K in whole lines: those before it, such as images of a batch, are further
        axes of the boxes, and what lies past its end is zero."""
        *around, last = self.product.k
        pitch = -(-last.arg.size // line) * line
        if not around or pitch > MOST_PADDED * last.arg.size:
            return self
        return replace(self, k=FlatAxis([*around, last], count(around) * pitch, pitch))

    def placed(self) -> list[Factor | BoxFactor | None]:
        """Both factors where copies can bring them as they lie; None where they are stored first."""
        found = [in_place(*of) for of in self.factors()]
        readable = [f if f is not None and (f.along_k or self.units[0].across) else None for f in found]
        return [image or factor for image, factor in zip(self.images, readable)]

    def own(self) -> Tiling:
        """The recipe's own choice: the tile with which the whole product takes least time."""
        left, right = self.placed()
        in_two = (left is not None and left.in_two_lines, right is not None and right.in_two_lines)

        def time(c: Tiling) -> tuple[float, int]:
            unit = self.unit(c)
            tile = (c.rows * unit.rows, unit.columns, 2 if c.stages <= self.stages(c.rows, unit, 2) else 1)
            tile = tile if tile in gpu.UNIT_RATES else (*tile[:2], 1)
            steps = -(-self.k.size // self.line(unit)) // c.k_parts
            tiles = self.tiles(c.rows, unit) * c.k_parts
            joined = gpu.unit_join_time(tiles * tile[0] * tile[1]) if c.k_parts > 1 else 0.0
            return gpu.unit_tile_time(tiles, steps, tile, self.target.few_tasks // 2, in_two) + joined, -c.stages
        return min(self.others(), key=time)

    def others(self) -> list[Tiling]:
        found = [self.with_tile(rows // unit.rows, unit, at_once) for unit in self.units
                 for rows, columns, at_once in gpu.UNIT_RATES if columns == unit.columns]
        return list(dict.fromkeys(found))

    def tiles(self, groups: int, unit: MatrixUnit) -> int:
        return count(self.outer) * -(-self.m.size // (groups * unit.rows)) * -(-self.n.size // unit.columns)

    def parts(self, groups: int, unit: MatrixUnit) -> int:
        """Parts of K, each of as many steps, where tiles alone would leave most processors idle."""
        steps, processors = -(-self.k.size // self.line(unit)), self.target.few_tasks // 2
        most = min(processors // self.tiles(groups, unit), steps // gpu.UNIT_PART)
        return next((p for p in range(most, 1, -1) if steps % p == 0), 1) if most >= gpu.UNIT_PARTS else 1

    def stages(self, groups: int, unit: MatrixUnit, at_once: int) -> int:
        """How many stages fit, where so many groups share a processor's memory; 0 where not even the sums do."""
        line, limit = self.line(unit), gpu.SHARED_BYTES // at_once
        stage = (groups * unit.rows + unit.columns) * line * unit.left.itemsize
        sums = groups * unit.rows * (unit.columns + gpu.UNIT_PAD) * unit.total.itemsize
        return max(2, min(limit // stage, gpu.MOST_STAGES, -(-self.k.size // line))) if sums <= limit else 0

    def with_tile(self, groups: int, unit: MatrixUnit, at_once: int) -> Tiling:
        line, stages = self.line(unit), self.stages(groups, unit, at_once)
        left, right = ("shared" if factor else "packed" for factor in self.placed())
        return Tiling("boxes", groups, 1, unit=unit.name, left=left, right=right, k_block=line,
                      k_parts=self.parts(groups, unit), stages=stages)

    def factors(self) -> list[tuple[UOp, FlatAxis, FlatAxis, list[UOp]]]:
        return [(self.left, self.m, self.k, self.outer), (self.right, self.n, self.k, self.outer)]

    def unit(self, c: Tiling) -> MatrixUnit:
        return next(u for u in self.units if u.name == c.unit)

    @staticmethod
    def line(unit: MatrixUnit) -> int:
        """Elements of one line of memory that the unit reads: the step of K."""
        assert unit.lines is not None
        return unit.lines.line_bytes // unit.left.itemsize

    def refuses(self, c: Tiling) -> str | None:
        """Why this product cannot be cut so."""
        if c.unit not in [u.name for u in self.units]:
            return "no unit of that name multiplies these types"
        unit = self.unit(c)
        if (c.rows * unit.rows, unit.columns, 1) not in gpu.UNIT_RATES:
            return "no tile has so many matrices of the unit's rows"
        if not 2 <= c.stages <= self.stages(c.rows, unit, 1):
            return "stages do not fit the memory of a group, or are more than the steps of K"
        return None


class GroupUnitTile:
    """A product cut as chosen: a tile of `rows` matrices of the unit below each other, one for each of its groups."""

    def __init__(self, plan: GroupUnitPlan, c: Tiling):
        self.plan, self.product, self.stages, self.unit = plan, plan.product, c.stages, plan.unit(c)
        self.m, self.n, self.outer, self.line = plan.m, plan.n, plan.outer, c.k_block
        self.threads = c.rows * self.unit.threads
        self.height, self.width = c.rows * self.unit.rows, self.unit.columns
        self.left, self.right = (factor or packed(name, *of, self.line, not self.unit.across)
                                 for name, of, factor in zip(("left", "right"), plan.factors(), plan.placed()))
        tiles_m = -(-self.m.size // self.height)
        together = -(-tiles_m // -(-tiles_m // gpu.TILES_TOGETHER))
        self.group, self.in_group = counter("mg", -(-tiles_m // together)), counter("mi", together)
        self.task_n, self.tiles_m = counter("nb", -(-self.n.size // self.width)), tiles_m
        self.first_m = multiply(add(multiply(one(self.group), together), one(self.in_group)), self.height)
        self.first_n = multiply(one(self.task_n), self.width)
        self.part, self.steps = counter("kp", c.k_parts), -(-plan.k.size // self.line) // c.k_parts
        self.row, self.column = counter("r", self.height), counter("c", self.width)
        self.total = register(self.product.total.arg, self.unit.total, (self.row, self.column))
        self.left_size = self.height * self.line
        self.stage_size = self.left_size + self.width * self.line
        self.memory = local("stages", self.unit.left, self.stages * self.stage_size)
        self.parts = Parts(self.unit.total, c.k_parts, self.outer, self.m, self.n)

    def phases(self) -> tuple[list[list[Statement]], list[Statement]]:
        """The phases, and the loops that add up the parts of K."""
        body: list[Statement] = [*self.in_unit([Assign(self.total, const(0, self.unit.total))]), *self.sums(),
                                 AwaitSteps(0), Barrier(), *self.epilogue()]
        stop = left_of(self.tiles_m, self.in_group.arg.size, self.group)
        if self.in_group.arg.size > 1:
            body = [For(self.in_group, TASK, body, stop)]
        tasks = nested([*self.outer, self.part, self.group, self.task_n], body, TASK)
        joined = self.parts.joined(self.product) if self.part.arg.size > 1 else []
        return [*[f.before for f in (self.left, self.right) if f.before], tasks], joined

    def in_unit(self, body: list[Statement]) -> list[Statement]:
        return nested([self.row, self.column], body, UNIT)

    def sums(self) -> list[Statement]:
        """The steps of K, with copies on their way for the next ones."""
        first, step, ahead = counter("ka", self.stages - 1), counter("ks", self.steps), self.stages - 1
        depth = counter("k", self.line)
        begin = multiply(modulo(one(step), self.stages), self.stage_size)
        a = load(self.memory, add(begin, self.left.place(self.line, self.row, depth)))
        b = load(self.memory, add(add(begin, index(self.left_size)), self.right.place(self.line, self.column, depth)))
        multiplied = Accumulate(self.total, o.ADD, a.cast(self.unit.total) * b.cast(self.unit.total))
        later = add(one(step), index(ahead))
        body: list[Statement] = [AwaitCopies(self.memory, one(step), self.stages),
                                 *self.in_unit([For(depth, UNIT, [multiplied])]), AwaitSteps(1), Barrier()]
        if self.steps > ahead:
            body.append(If(less(later, index(self.steps)), [self.copies(later)]))
        return [*nested([first], [self.copies(one(first))]),
                *([For(step, LOOP, body)] if self.steps > 1 else body)]

    def copies(self, step: UOp) -> CopyBoxes:
        """The copies of both factors for a step of K, into its stage."""
        to = multiply(modulo(step, self.stages), self.stage_size)
        k = multiply(add(multiply(one(self.part), self.steps), step), self.line)
        return CopyBoxes(self.memory, step, (
            *self.left.boxes(self.line, to, self.first_m, self.height, k),
            *self.right.boxes(self.line, add(to, index(self.left_size)), self.first_n, self.width, k)))

    def epilogue(self) -> list[Statement]:
        parts = (self.parts, one(self.part)) if self.part.arg.size > 1 else None
        return tile_to_memory(self.product, self.total, (self.m, self.first_m), (self.n, self.first_n), self.threads,
                              "stages", parts)


def tile_to_memory(product: Product, total: UOp, m: tuple[FlatAxis, UOp], n: tuple[FlatAxis, UOp], threads: int,
                   over: str, parts: tuple[Parts, UOp] | None = None) -> list[Statement]:
    """The sums to memory of the group, and what is stored of them: neighbouring threads store neighbouring pieces of a
    line. `m` and `n` are the axes, and where the tile begins along them. Sums that are rounded to a small type before
    anything else are so on their way to that memory. With `parts` they are stored as the sums of that part of K."""
    (axis_m, first_m), (axis_n, first_n) = m, n
    row, column = total.src
    height, width = row.arg.size, column.arg.size
    pitch = width + gpu.UNIT_PAD
    small = rounded_to(product) if parts is None else None
    tile = local("tile", small or total.dtype, height * pitch, over=over)
    value = total if small is None else total.cast(small)
    keep = nested([row, column], [Store(tile, add(multiply(row, pitch), column), value)], UNIT)
    columns = axis_n.parts[-1].arg.size if axis_n.pitch else axis_n.size
    piece = next(v for v in (8, 4, 2, 1) if columns % v == 0)               # neighbours that one thread stores
    along = width // piece
    each, further = counter("e", piece), counter("f", 8 // piece)
    times, lane = counter("i", height * width // (8 * threads)), counter("l", threads)
    at = add(multiply(add(multiply(one(times), 8 // piece), one(further)), threads), lane)
    line, begin = divide(at, along), multiply(modulo(at, along), piece)
    at_m, at_n = add(first_m, line), add(first_n, begin)
    gate = both(moves.below(at_m, axis_m.size) if axis_m.size % height else None,
                moves.below(at_n, axis_n.size) if axis_n.size % width else None)
    gate = both(gate, axis_n.gate(at_n))
    result = load(tile, add(add(multiply(line, pitch), begin), one(each)))
    if small is not None:
        rounded = register(product.total.arg, small)
        epilogue = moves.rebuild(product.epilogue, {product.total.cast(small): rounded})
        product = replace(product, total=rounded, epilogue=epilogue)
    if parts is None:
        stores = product.stores(result, {**axis_m.apart(at_m), **axis_n.apart(add(at_n, one(each)))}, gate)
    else:
        stores = [parts[0].store(parts[1], at_m, add(at_n, one(each)), result, gate)]
    return [*keep, *read_ahead(nested([times], nested([further, each], [For(lane, LANE, stores)], TILE)), most=4)]


def rounded_to(product: Product) -> DType | None:
    """The type of 16 bits that an epilogue rounds the sum to before it does anything else; None: it does not."""
    found: set[DType | None] = set()
    for node in toposort([e for s in walk(product.epilogue) for e in expressions(s)]):
        if product.total in node.src:
            found.add(node.dtype if node.op is o.CAST and node.dtype.itemsize == 2 and node.dtype.kind == "f" else None)
    return found.pop() if len(found) == 1 else None


# -- factors -----------------------------------------------------------------------------------------------------------
def in_place(value: UOp, axis: FlatAxis, k: FlatAxis, outer: Sequence[UOp]) -> Factor | None:
    """A factor that copies can bring as it lies: a matrix with one contiguous axis whose other strides, and whose
    beginning, are multiples of 16 bytes."""
    if value.op is not o.LOAD or len(value.src) != 2 or value.src[0].op is not o.PARAM:
        return None
    position, step = counter("position", axis.size), counter("step", k.row)
    places = {**axis.apart(position), **({k.parts[-1]: step} if k.pitch else k.apart(step))}
    offset, terms = linear(substitute_index(value.src[1], places, {}))
    used = [r for r in (*outer, *(k.parts[:-1] if k.pitch else ())) if r in terms]
    if any(atom not in (position, step, *used) for atom in terms) or len(used) > gpu.COPY_AXES - 2:
        return None
    along_k = terms.get(step) == 1
    if not along_k and terms.get(position) != 1:
        return None
    pitch = terms.get(position if along_k else step, 0)
    whole = gpu.COPY_BYTES // value.dtype.itemsize
    if offset % whole or any(s <= 0 or s % whole for s in (pitch, *[terms[r] for r in used])):
        return None
    return Factor(value.src[0], offset, axis, k, along_k, pitch, [(r, terms[r]) for r in used], [])


def packed(name: str, value: UOp, axis: FlatAxis, k: FlatAxis, outer: Sequence[UOp], line: int, must_follow_k: bool) \
        -> Factor:
    """A factor that is stored first, lines padded: along what is contiguous in memory, or along k where that is asked
    for: then it goes across, in blocks."""
    dtype = value.dtype
    reads = [n.src[1] for n in toposort([value]) if n.op is o.LOAD and n.src[0].op is not o.LOCAL]
    whole = [at for at in reads if not ranges_of(at).isdisjoint(k.parts) and not ranges_of(at).isdisjoint(axis.parts)]
    reads = whole or reads                                        # not what is read for each line, or along one
    along_k = any(stride_along(at, k.parts[-1]) == 1 for at in reads) and \
        not any(stride_along(at, axis.parts[-1]) == 1 for at in reads)
    across = must_follow_k and not along_k                        # it is transposed on its way
    along_k = along_k or must_follow_k
    lines, inner = (axis, k) if along_k else (k, axis)
    used = [r for r in outer if r in ranges_of(value)]
    pitch = -(-inner.size // line) * line
    memory = local(name, dtype, count(used) * lines.size * pitch, "shared")

    def copy(at_line: UOp, at: UOp, gate: UOp | None) -> tuple[UOp, UOp]:
        """Where an element is stored, and the element; zero where the gate is false, and past the end of a padded K."""
        to = add(multiply(add(multiply(flat_index(used), lines.size), at_line), pitch), at)
        inside = both(gate, k.gate(at if along_k else at_line))
        return to, moves.zero_outside(substitute_index(value, {**lines.apart(at_line), **inner.apart(at)}, {}), inside)

    at_line, at = counter("pl", lines.size), counter("pk", inner.size)
    blocks = CopyAcross.of(loops_around([*used, at_line, at], [Store(memory, *copy(at_line, at, None))], TASK))
    strides = [count(used[i + 1:]) * lines.size * pitch for i in range(len(used))]
    stored_k = FlatAxis(k.parts, k.size)                          # a padded one is stored with its padding
    if blocks is not None:
        return Factor(memory, 0, axis, stored_k, along_k, pitch, list(zip(used, strides)), blocks.blocks())
    plain = value.op is o.LOAD and len(value.src) == 2            # what is computed is loaded one by one
    most = 1 if across else gpu.COPY_BYTES // dtype.itemsize if plain else 2
    piece = next(n for n in (8, 4, 2, 1) if n <= most and inner.parts[-1].arg.size % n == 0)
    rows = gpu.SECTOR // dtype.itemsize if across else gpu.PACK_ROWS // max(1, piece // 2)
    before = _in_rows(memory, used, (lines.size, inner.size), rows, piece, copy)
    return Factor(memory, 0, axis, stored_k, along_k, pitch, list(zip(used, strides)), before)


def _in_rows(memory: UOp, used: list[UOp], size: tuple[int, int], rows_at_once: int, piece: int,
             copy: Callable[[UOp, UOp, UOp | None], tuple[UOp, UOp]]) -> list[Statement]:
    """The loops that store lines: a thread stores a piece of each of several, a group several short ones at once."""
    lines, inner = size
    per_line = min(gpu.PACK_LANES, -(-inner // piece))            # threads
    at_once = rows_at_once * (gpu.PACK_LANES // per_line)
    some, block = counter("p", -(-lines // at_once)), counter("pb", -(-inner // (per_line * piece)))
    rows, each, lane = counter("pr", rows_at_once), counter("pe", piece), counter("l", gpu.PACK_LANES)
    in_group = add(multiply(divide(lane, per_line), rows_at_once), rows)
    at_line = add(multiply(one(some), at_once), in_group)
    begin = multiply(add(multiply(one(block), per_line), modulo(lane, per_line)), piece)
    gate = both(moves.below(at_line, lines), moves.below(begin, inner))
    gate = both(gate, moves.below(in_group, at_once))
    to, value = copy(at_line, add(begin, one(each)), gate)
    held = register(f"{memory.arg.name}_next", memory.dtype, tuple([r for r in (rows, each, lane) if r.arg.size > 1]))
    body: list[Statement] = [Assign(held, value), Store(memory, to, held, None, gate)]      # all are read before that
    return nested([*used, some, block], nested([rows, each], [For(lane, LANE, body)], TILE), TASK)
