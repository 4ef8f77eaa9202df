"""Choose the tile of a product on a matrix unit. In: a product, a `Target` with units. Out: a `Tiling`.

`GroupUnitPlan.of` finds the axes, and where both factors are copied from: their own memory, an image, or memory in
which they are stored first. `own` is the tile with the least estimated time for the product; `others` are those that a
search may try; `refuses` says what does not fit. The loops are in tile_loops.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Union

from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import bounds, value_in
from glassgrad.compiler.lower.loops import ranges_of
from glassgrad.compiler.optimize.product.conv_line_copies import ShiftedFactor, line_rows, line_windows, shifted_rows
from glassgrad.compiler.optimize.product.conv_window_copies import MOST_PADDED, BoxFactor, row_factors, window_factors
from glassgrad.compiler.optimize.product.flat_axes import FlatAxis, flat_axis
from glassgrad.compiler.optimize.product.gpu_matrix_unit.copied_factors import Factor, in_place, line_of
from glassgrad.compiler.optimize.product.gpu_matrix_unit.joined_channel_groups import joined_groups
from glassgrad.compiler.optimize.product.gpu_matrix_unit.store_tile import (epilogue_operations, neighbours_stored,
                                                                            rounded_to)
from glassgrad.compiler.optimize.product.matrix_unit.unit_choice import unit_for
from glassgrad.compiler.optimize.product.packing import swells
from glassgrad.compiler.optimize.product.recognize import Product, count, stride_along
from glassgrad.compiler.optimize.product.tiling_parameters import Tiling
from glassgrad.compiler.optimize.targets import gpu_costs as gpu
from glassgrad.compiler.optimize.targets.matrix_units import MatrixUnit
from glassgrad.compiler.optimize.targets.target import Target

ONE_AXIS = 1.05            # factor on the time if an image is stored with zeros after each row
ImageFactor = Union[BoxFactor, ShiftedFactor]  # noqa: UP007 - it is evaluated, on Python 3.10 too


@dataclass
class GroupUnitPlan:
    """A product in a unit's types on flat axes, and how it would be tiled."""
    product: Product
    target: Target
    units: list[MatrixUnit]               # those for these types, of different shapes
    m: FlatAxis
    n: FlatAxis
    k: FlatAxis
    outer: list[UOp]
    left: UOp
    right: UOp
    images: tuple[BoxFactor | None, ImageFactor | None] = (None, None)     # factors that are read as boxes of an image

    @staticmethod
    def of(p: Product, target: Target) -> GroupUnitPlan | None:
        found = unit_for(p, target, lambda unit: unit.lines is not None)
        if found is None:
            return None
        unit, left, right = found
        m, outside_m = flat_axis(p.m, p.epilogue, "m")
        n, outside_n = flat_axis(p.n, p.epilogue, "n")
        units = [u for u in target.units
                 if (u.left, u.right, u.total, u.lines) == (unit.left, unit.right, unit.total, unit.lines)]
        m, n, k = (axis.with_run_time_bound(p.stops) for axis in (m, n, FlatAxis.of(p.k)))
        plan = GroupUnitPlan(p, target, units, m, n, k, [*p.batch, *outside_m, *outside_n], left, right)
        if p.depth < gpu.UNIT_LIMITS.least_k or p.work < gpu.UNIT_LIMITS.least_work:
            return None
        if p.stops:
            return plan if plan.takes_run_time_bounds() else None
        joined = joined_groups(p, unit.rows)
        of_all = None if joined is None else GroupUnitPlan.of(joined, target)
        if of_all is not None and of_all.images[1]:
            return of_all
        plan = plan.with_images().with_columns_of_all()
        if min(plan.m.size, plan.n.size) < gpu.UNIT_SIDE:
            return None
        if min(plan.m.size, plan.n.size) < gpu.THIN_SIDE and not plan.stores_little():
            return None
        stored = any(image is None and swells(factor, loops + p.k)
                     for image, factor, loops in zip(plan.images, (left, right), (p.m, p.n)))
        return None if stored else plan

    @property
    def bounded(self) -> list[FlatAxis]:
        """The axes with run-time bounds."""
        return [axis for axis in (self.m, self.n, self.k) if axis.stop is not None]

    def takes_run_time_bounds(self) -> bool:
        """Whether tiles can handle the run-time bounds: these must be those of the outermost loops of M, N and K,
        formulas of one value each, and the factors along those axes must be copied from where they are."""
        lie = all(factor or axis.stop is None and self.k.stop is None
                  for factor, axis in zip(self.placed(), (self.m, self.n)))
        some = self.k.stop is None or bounds(self.k.stop)[0] > 0          # an empty sum has no step
        known = all(axis.stop is not None and value_in(axis.stop) for axis in self.bounded)
        return lie and some and known and {*self.product.stops} == {axis.parts[0] for axis in self.bounded} and \
            not self.out_of_order and min(self.m.size, self.n.size) >= gpu.THIN_SIDE

    def stores_little(self) -> bool:
        """Whether each factor is copied from where it is, or is small compared to the other one."""
        sizes = [count([*ranges_of(factor)]) for factor in (self.left, self.right)]
        return all(factor or gpu.SMALL_FACTOR * size <= other
                   for factor, size, other in zip(self.placed(), sizes, reversed(sizes)))

    def with_images(self) -> GroupUnitPlan:
        """The same plan, where a factor that is windows of an image is copied from the image, if there is one."""
        p, line = self.product, line_of(self.units[0])
        left, right = self.placed()
        above = None if left else self.with_windows(above=True)          # for results with channels innermost
        if above is not None:
            return above
        if right is not None:
            return self
        padded = self.with_padded_sum(line)
        if None not in padded.placed():
            return padded
        beside = self.with_windows(above=False)
        if beside is not None:
            return beside
        lines = line_windows(self.right, p.n, p.k, line, MOST_PADDED)
        if lines is not None and self.follows(self.left, self.m, lines.k):
            outer = [r for r in (*p.batch, *p.m, *p.n) if r not in (*self.m.parts, *lines.axis.parts)]
            return replace(self, n=lines.axis, k=lines.k, outer=outer, images=(None, lines))
        both_ = row_factors(self.left, self.right, p.m, p.n, p.k, line) \
            if self.units[0].across else None                             # lines are channels: they go across k
        if both_ is None:
            rows: ImageFactor | None = None
            if not self.outer:
                rows = line_rows(self.right, p.n, padded.k, line) if self.units[0].across else \
                    shifted_rows(self.right, p.n, padded.k)
            if rows is not None:
                return replace(padded, n=rows.axis, images=(None, rows))
            return padded if padded.placed() != [None, None] else self
        return replace(self, m=both_[0].axis, n=both_[1].axis, k=both_[0].k, outer=p.batch, images=both_)

    def with_windows(self, above: bool) -> GroupUnitPlan | None:
        """The same plan, with the left factor (or the right one) as boxes of an image: each within one image, or with
        all images on one axis, whichever takes less time."""
        p, own, of = (self.product, self.left, self.product.m) if above else (self.product, self.right, self.product.n)
        other, axis = (self.right, self.n) if above else (self.left, self.m)
        plans = []
        for found in window_factors("left" if above else "right", own, of, p.k, line_of(self.units[0])):
            outer = [r for r in (*p.batch, *p.m, *p.n) if r not in (*found.axis.parts, *axis.parts)]
            plan = replace(self, k=found.k, outer=outer, images=(found, None) if above else (None, found))
            plans.append(replace(plan, m=found.axis) if above else replace(plan, n=found.axis))
        plans = [plan for plan in plans if self.follows(other, axis, plan.k)]
        if len(plans) < 2:
            return plans[0] if plans else None
        each, all_ = plans
        return all_ if ONE_AXIS * all_.quickest()[0] < each.quickest()[0] else each

    def with_columns_of_all(self) -> GroupUnitPlan:
        """The same plan, with the columns of all images on one axis, if the right factor is stored first anyway: then
        only the last tile is partly empty, not one per image."""
        images = [r for r in self.outer if r in self.product.n]
        if not images or self.placed()[1] is not None:
            return self
        return replace(self, n=FlatAxis.of(self.product.n), outer=[r for r in self.outer if r not in images])

    @staticmethod
    def follows(factor: UOp, axis: FlatAxis, k: FlatAxis) -> bool:
        """Whether storing a factor in this order of K is cheap: it is contiguous that way, or fits the cache."""
        reads = [n.src[1] for n in toposort([factor]) if n.op is o.LOAD and ranges_of(n.src[1]) >= {*k.parts}]
        lies = any(stride_along(at, r) == 1 for at in reads for r in (axis.parts[-1], k.parts[-1]))
        return lies or count((*axis.parts, *k.parts)) * factor.dtype.itemsize <= gpu.CACHE_BYTES

    def with_padded_sum(self, line: int) -> GroupUnitPlan:
        """The same plan, with the last loop of K padded with zeros to whole lines; the loops before it, such as images
        of a batch, become further axes of the boxes."""
        *around, last = self.product.k
        pitch = -(-last.arg.size // line) * line
        if not around or pitch > MOST_PADDED * last.arg.size:
            return self
        return replace(self, k=FlatAxis([*around, last], count(around) * pitch, pitch))

    def placed(self) -> list[Factor | ImageFactor | None]:
        """Both factors as they are copied from where they are; None for one that must be stored first."""
        found = [in_place(*of, line_of(self.units[0])) for of in self.factors()]
        unit = self.units[0]
        across = (unit.across or unit.left_words is not None, unit.across)
        readable = [f if f is not None and (f.along_k or may) else None for f, may in zip(found, across)]
        return [image or factor for image, factor in zip(self.images, readable)]

    def own(self) -> Tiling:
        """The recipe's own choice: the tile with the least time for the whole product."""
        return self.quickest()[-1]

    def quickest(self) -> tuple[float, int, Tiling]:
        """The time of the whole product with the best tile, minus its number of stages, and that tile. If axes have
        run-time bounds, the time is the sum over short, middle and long ones."""
        left, right = self.placed()
        in_two = (left is not None and left.in_two_lines, right is not None and right.in_two_lines)
        narrow = neighbours_stored(self.product, self.n) % 8 > 0         # then stores of few threads take long
        found = [c for c in self.others() if (c.cluster == 1 or in_two[1])
                 and not (c.stay and c.rows == 1 and narrow)]
        if self.bounded == [self.m]:
            numbers = gpu.typical_rows(self.m.size, gpu.UNIT_ROWS)
            chosen = gpu.best_for(found, lambda c, rows: self.shorter(rows / self.m.size).time(c, in_two), numbers)
            return self.time(chosen, in_two), -chosen.stages, chosen
        lengths = [self.shorter(share) for share in gpu.SHARES_OF_LENGTHS] if self.bounded else [self]
        return min([(sum(plan.time(c, in_two) for plan in lengths), -c.stages, c) for c in found],
                   key=lambda way: way[:2])

    def shorter(self, share: float) -> GroupUnitPlan:
        """The same plan, with axes that have run-time bounds at this share of their size."""
        m, n, k = (axis if axis.stop is None else replace(axis, size=math.ceil(axis.size * share))
                   for axis in (self.m, self.n, self.k))
        return replace(self, m=m, n=n, k=k)

    def time(self, c: Tiling, in_two: tuple[bool, bool]) -> float:
        """The estimated time of the product; `in_two`: whether lines of each factor straddle two cache lines."""
        unit = self.unit(c)
        rows, columns = c.rows * unit.rows, unit.columns
        tile = max((rows, columns, n) for n in (1, 2, 4) if n == 1 or (rows, columns, n) in gpu.UNIT_RATES
                   and c.stages <= self.stages(c.rows, unit, n))
        steps = -(-self.k.size // (line_of(unit) * c.k_parts))
        tiles = self.tiles(c.rows, unit) * c.k_parts
        joined = gpu.unit_join_time(tiles * tile[0] * tile[1]) if c.k_parts > 1 else 0.0
        processors = self.target.few_tasks // 2
        operations = epilogue_operations(self.product)
        joined += gpu.unit_epilogue_time(tiles, tile, c.rows * unit.threads, processors, operations)
        if c.stay:
            return gpu.unit_stay_time(tiles, steps, tile[:2], processors, in_two) + joined
        return gpu.unit_tile_time(tiles, steps, tile, processors, in_two, c.cluster) + joined

    def others(self) -> list[Tiling]:
        """Every tile, also with persistent groups, one per processor, and with clusters."""
        found = dict.fromkeys([self.with_tile(rows // unit.rows, unit, at_once) for unit in self.units
                               for rows, columns, at_once in gpu.UNIT_RATES if columns == unit.columns])
        more = [way for c in found for way in (self.staying(c), replace(c, cluster=2))]
        return [*found, *[c for c in dict.fromkeys(more) if self.refuses(c) is None
                          and not (c.stay and c.stages < gpu.LEAST_STAY_STAGES)]]

    def staying(self, c: Tiling) -> Tiling:
        """The same tile in persistent groups, with as many stages as fit one group on a processor."""
        c = replace(c, stay=True)
        fit = gpu.SHARED_BYTES // (self.stage_size(c) * self.unit(c).left.itemsize)
        return replace(c, stages=min(fit, gpu.MOST_STAGES))

    def tiles(self, groups: int, unit: MatrixUnit) -> int:
        return count(self.outer) * -(-self.m.size // (groups * unit.rows)) * -(-self.n.size // unit.columns)

    def parts(self, groups: int, unit: MatrixUnit) -> int:
        """The number of equal parts of K, if tiles alone would leave most processors idle; otherwise 1. Steps past the
        end of K add zeros."""
        steps, processors = -(-self.k.size // line_of(unit)), self.target.few_tasks // 2
        most = min(processors // self.tiles(groups, unit), steps // gpu.UNIT_PART, gpu.MOST_PARTS)
        if most < gpu.UNIT_PARTS or not self.tiles_known(groups * unit.rows):
            return 1
        even = next(p for p in range(most, 0, -1) if steps % p == 0)
        return even if even >= gpu.EVEN_PARTS * most else -(-steps // -(-steps // most))

    def tiles_known(self, rows: int) -> bool:
        """Whether the number of tiles is known at compile time: no axis has a run-time bound, or only M has, and one
        tile has all its rows."""
        return not self.bounded or self.bounded == [self.m] and self.m.size <= rows

    def stages(self, groups: int, unit: MatrixUnit, at_once: int) -> int:
        """How many stages fit if `at_once` groups share a processor's memory; 0 if not even the sums do."""
        line, limit = line_of(unit), gpu.SHARED_BYTES // at_once
        stage = (groups * unit.rows + unit.columns) * line * unit.left.itemsize
        sums = groups * unit.rows * (unit.columns + gpu.UNIT_PAD) * unit.total.itemsize
        steps = -(-self.k.size // line)
        return max(min(2, steps), min(limit // stage, gpu.MOST_STAGES, steps)) if sums <= limit else 0

    def stage_size(self, c: Tiling) -> int:
        """Elements per stage: a step of both factors; in persistent groups, at least a tile of rounded sums."""
        unit = self.unit(c)
        step = (c.rows * unit.rows + unit.columns) * c.k_block
        tile = c.rows * unit.rows * (unit.columns + gpu.UNIT_PAD) if c.stay else 0
        whole = gpu.STAGE_BYTES // unit.left.itemsize
        return -(-max(step, tile) // whole) * whole

    def groups_at_once(self, elements: int) -> int:
        """How many groups run at once if each has this many elements of shared memory."""
        bytes_ = elements * self.units[0].left.itemsize
        return self.target.few_tasks // 2 * (2 if bytes_ <= gpu.SHARED_BYTES // 2 else 1)

    def with_tile(self, groups: int, unit: MatrixUnit, at_once: int) -> Tiling:
        line, stages = line_of(unit), self.stages(groups, unit, at_once)
        left, right = ("shared" if factor else "packed" for factor in self.placed())
        return Tiling("boxes", groups, 1, unit=unit.name, left=left, right=right, k_block=line,
                      k_parts=self.parts(groups, unit), stages=stages)

    def factors(self) -> list[tuple[UOp, FlatAxis, FlatAxis, list[UOp]]]:
        return [(self.left, self.m, self.k, self.outer), (self.right, self.n, self.k, self.outer)]

    def unit(self, c: Tiling) -> MatrixUnit:
        return next(u for u in self.units if u.name == c.unit)

    def refuses(self, c: Tiling) -> str | None:
        """Why this product cannot be tiled like this; None if it can."""
        if c.unit not in [u.name for u in self.units]:
            return "no unit of that name multiplies these types"
        unit = self.unit(c)
        if (c.rows * unit.rows, unit.columns, 1) not in gpu.UNIT_RATES:
            return "no tile has so many matrices of the unit's rows"
        most = gpu.MOST_STAGES if c.stay else self.stages(c.rows, unit, 1)
        if not min(2, -(-self.k.size // line_of(unit))) <= c.stages <= most:
            return "stages do not fit the memory of a group, or are more than the steps of K"
        if self.bounded and (c.cluster > 1 or c.stay or c.k_parts > 1 and not self.tiles_known(c.rows * unit.rows)):
            return "tiles that end at values are a group each, alone"
        if c.cluster > 1:
            return self.refuses_cluster(c)
        if not c.stay:
            return None
        if self.stores_in_second_phase(c) or rounded_to(self.product) is not unit.left or self.images != (None, None):
            return "groups stay where sums are stored in the type of the factors: a stage holds a tile of them"
        if c.stages * self.stage_size(c) * unit.left.itemsize > gpu.SHARED_BYTES:
            return "stages that hold a tile each do not fit the memory of a group"
        return None

    def stores_in_second_phase(self, c: Tiling) -> bool:
        """Whether a second phase stores the results: for split K, or results that are contiguous along neither axis."""
        return c.k_parts > 1 or self.out_of_order

    @property
    def out_of_order(self) -> bool:
        """Whether the result is contiguous along neither columns nor rows."""
        return self.n.parts[-1].arg.size > 1 and \
            neighbours_stored(self.product, self.n) == neighbours_stored(self.product, self.m) == 1

    def refuses_cluster(self, c: Tiling) -> str | None:
        """Why groups cannot share the copies of this product's right factor; None if they can."""
        if c.cluster != 2 or c.stay:
            return "clusters are two groups, of one tile each"
        if -(-self.m.size // (c.rows * self.unit(c).rows)) % c.cluster or self.images != (None, None):
            return "rows of tiles do not come out even, or a factor is an image"
        right = self.placed()[1]
        columns = self.unit(c).columns
        lines = right.lines(c.k_block, columns) if isinstance(right, Factor) else min(columns, self.n.size)
        if lines % (c.cluster * gpu.PERMUTED):
            return "groups cannot bring as many lines each of the right factor"
        return None
