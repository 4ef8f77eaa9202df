"""Tile a contraction for a matrix unit. In: a product, a `Target` with units. Out: phases, or None.

For factors of a type that a unit multiplies (bfloat16 into float32, bytes into int32), even if the loops first widen
them to float32 or int32. As register_tile/, with a small matrix instead of a vector:

    phase 1   pack the left factor as the unit reads it       [panel of M][step of K][row][k]      unless read in place
    phase 2   and the right one                               [panel of N][step of K][word of k][column]
    phase 3   TASK blocks of M and N: for blocks of K: for panels of N: for panels of M: a few small matrices of sums,
              UNIT steps over both panels, then to LOCAL memory; the epilogue reads them there, in vectors

Past the end of K, both factors are zeros; results past the edges of M and N are dropped at the store. Does not know
which unit it is: shapes, types and limits come from targets/matrix_units.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from glassgrad.compiler.graph import UOp, const, ops as o
from glassgrad.compiler.graph.index_algebra import add, both, index, less, multiply, substitute_index
from glassgrad.compiler.lower.loops import (LOOP, TILE, UNIT, Accumulate, Assign, For, Statement, Store, counter,
                                            current, load, local, loops_around, nested, register)
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.gates import below
from glassgrad.compiler.optimize.moves.padding_copy import with_zeros
from glassgrad.compiler.optimize.product.flat_axes import FlatProduct, flat_axis, image_axis
from glassgrad.compiler.optimize.product.matrix_unit.unit_choice import unit_for
from glassgrad.compiler.optimize.product.matrix_unit.unit_panels import UnitPanels, UnitRanges
from glassgrad.compiler.optimize.product.packing import swells
from glassgrad.compiler.optimize.product.recognize import Product
from glassgrad.compiler.optimize.product.tiling_parameters import PanelBlocks, Tiling, blocks, square
from glassgrad.compiler.optimize.targets import cpu_costs as cpu, matrix_units as units
from glassgrad.compiler.optimize.targets.matrix_units import MatrixUnit
from glassgrad.compiler.optimize.targets.target import Target


def on_matrix_unit(product: Product, target: Target, decisions: Decisions) -> list[list[Statement]] | None:
    """The phases; refuses (None) types without a unit, and products too small to gain from one."""
    plan = UnitPlan.of(product.with_lanes_right(), target) if product.n and not product.stops else None
    if plan is None:
        return None
    return [*plan.before, *UnitTile(plan, decisions.ask(plan.own(), plan.refuses, plan.others)).phases()]


@dataclass
class UnitPlan(FlatProduct):
    """A product in a unit's types on flat axes, and how it would be tiled."""
    unit: MatrixUnit
    before: list[list[Statement]]       # phases that copy a padded image with its zeros

    @staticmethod
    def of(p: Product, target: Target) -> UnitPlan | None:
        found = unit_for(p, target)
        if found is None:
            return None
        unit, left, right = found
        p = replace(p, left=left, right=right)
        before, p = with_zeros(p, target.lanes(unit.left.itemsize)) or ([], p)
        if swells(p.right, p.n + p.k) or swells(p.left, p.m + p.k):
            return None
        m, m_out = flat_axis(p.m, p.epilogue, "m")
        n, n_out = flat_axis(p.n, p.epilogue, "n")
        image = image_axis(p)
        if image is not None and image[0].size * 2 * unit.rows * unit.total.itemsize <= target.l2_bytes // 2:
            n, n_out = image
        plan = UnitPlan(p, target, m, n, [*p.batch, *m_out, *n_out], unit, before)
        own = plan.own()
        padded = plan.repetitions * plan.steps * unit.depth
        for size, tiles, wide in ((m.size, own.rows, unit.rows), (n.size, own.vectors, unit.columns)):
            padded *= -(-size // (tiles * wide)) * tiles * wide
        return plan if plan.work >= units.LIMITS.least_work and padded <= units.WASTE * plan.work else None

    @property
    def steps(self) -> int:
        """Steps of K: the instructions of one sum."""
        return -(-self.depth // self.unit.depth)

    def own(self) -> Tiling:
        """The recipe's own choice: the shape with the fewest instructions and reads of both factors."""
        def cost(c: Tiling) -> int:
            return math.prod(self.panels(c)) * (2 * max(c.rows * c.vectors, self.unit.in_flight) + c.rows + c.vectors)
        return min(self.others(), key=cost)

    def others(self) -> list[Tiling]:
        """Every shape whose sums and operands fit the registers."""
        most = range(1, self.unit.registers)
        return [self.with_tiles(m, n) for m in most for n in most if m * n + m + n <= self.unit.registers]

    def with_tiles(self, tiles_m: int, tiles_n: int) -> Tiling:
        """The recipe's blocks for tiles of tiles_m x tiles_n matrices."""
        limits = units.LIMITS
        c = Tiling("unit", tiles_m, tiles_n, unit=self.unit.name, pitch=self.n.pitch,
                   k_block=limits.k_block if self.steps > limits.long_k else 0)
        rows, columns = tiles_m * self.unit.rows, tiles_n * self.unit.columns
        panels_m, panels_n = self.panels(c)
        wanted = self.tasks_wanted(limits)
        block_m, block_n = -(-panels_m // min(wanted, panels_m)), panels_n      # for an image: whole rows
        if not c.pitch:
            sums = rows * columns * self.unit.total.itemsize  # bytes that are kept between blocks of K
            fit = self.target.l2_bytes // 2 // sums if c.k_block else panels_m * panels_n
            block_m, block_n = blocks(panels_m, panels_n, wanted, square(rows, columns),
                                      lambda m: max(fit // m, int(m == 1)))
        in_place = self.can_stay_in_place(rows) is None and (
            panels_n <= units.FEW_PANELS or self.lines_apart(rows, 4))
        return replace(c, block_m=block_m, block_n=block_n, left="in_place" if in_place else "packed")

    def panels(self, c: Tiling) -> tuple[int, int]:
        """How many panels of M and N there are."""
        return -(-self.m.size // (c.rows * self.unit.rows)), -(-self.n.size // (c.vectors * self.unit.columns))

    def refuses(self, c: Tiling) -> str | None:
        """Why this product cannot be tiled like this; None if it can."""
        if c.rows * c.vectors + c.rows + c.vectors > self.unit.registers:
            return f"sums and operands take more than {self.unit.registers} registers"
        panels_m, panels_n = self.panels(c)
        if c.block_m > panels_m or c.block_n > panels_n:
            return "a block is larger than the product"
        if c.pitch and c.block_n < panels_n:
            return "one task stores whole rows of an image"
        if c.k_block >= self.steps:
            return f"there are {self.steps} steps of K"
        panel = c.rows * self.unit.rows * c.vectors * self.unit.columns
        if panel * c.block_n * (c.block_m if c.k_block else 1) > cpu.MOST_WAITING_SUMS:
            return "the sums of a block do not fit a cache"
        if c.left not in ("packed", "in_place"):
            return "a unit reads the left factor in place or from panels"
        return self.can_stay_in_place(c.rows * self.unit.rows) if c.left == "in_place" else None

    def can_stay_in_place(self, rows: int) -> str | None:
        """Why the left factor must be packed; None if the unit can read it in place: rows contiguous along k in whole
        steps, and whole panels of rows (the last one may overlap the one before)."""
        if self.depth % self.unit.depth:
            return "the left factor is not a matrix of whole steps"
        return self.why_left_not_along_k(rows)


class UnitTile(PanelBlocks):
    """A product tiled as chosen: small matrices of sums, panels of them, blocks of panels."""

    def __init__(self, plan: UnitPlan, c: Tiling):
        super().__init__(*plan.panels(c), c.block_m, c.block_n)
        self.product, self.unit, self.m, self.n, self.outer = plan.product, plan.unit, plan.m, plan.n, plan.outer
        self.steps, self.work, self.lanes = plan.steps, plan.work, plan.target.lanes(4)
        self.left_in_place, self.k_block = c.left == "in_place", c.k_block
        unit, p = self.unit, self.product
        self.rows, self.columns = c.rows * unit.rows, c.vectors * unit.columns
        self.tile_m, self.tile_n = counter("um", c.rows), counter("un", c.vectors)
        self.inside = UnitRanges.of(unit)
        wide = [r for r in (self.tile_m, self.tile_n) if r.arg.size > 1]
        self.total = register(p.total.arg, unit.total, (*wide, self.inside.row, self.inside.column))
        self.left = UnitPanels("left", p.left, self.m, self.outer, p.k, unit, c.rows, self.panels_m, False)
        self.right = UnitPanels("right", p.right, self.n, self.outer, p.k, unit, c.vectors, self.panels_n, True)
        self.width = self.block_n * self.columns + units.ROW_GAP
        self.tiles = local("tiles", unit.total, self.rows * self.width * (self.block_m if self.k_block else 1))

    # -- phases ----------------------------------------------------------------------------------------------
    def phases(self) -> list[list[Statement]]:
        packed = [] if self.left_in_place else [self.left.pack(self.lanes)]
        packed.append(self.right.pack(self.lanes))
        body = self.in_blocks_of_k() if self.k_block else self.over_m(
            [*self.over_n(self.sums(const(0, self.unit.total), index(0), self.steps)), *self.epilogue()])
        return [*packed, self.as_tasks(self.outer, body, self.work >= units.LIMITS.task_work)]

    def in_blocks_of_k(self) -> list[Statement]:
        """Long sums: all tiles of the task do one block of K at a time; in between, the sums stay in LOCAL memory."""
        count = -(-self.steps // self.k_block)
        size = -(-self.steps // count)
        count = -(-self.steps // size)
        block = counter("kb", count - 1)
        first = multiply(add(current(block), index(1)), size)
        rest = load(self.tiles, self.place_in_unit())
        stop = None if self.steps % size == 0 else add(index(self.steps), multiply(first, -1))
        later = self.over_m(self.over_n(self.sums(rest, first, size, stop)))
        return [*self.over_m(self.over_n(self.sums(const(0, self.unit.total), index(0), size))),
                *([For(block, LOOP, later)] if count > 2 else later),
                *self.over_m(self.epilogue())]

    def index_of(self, row: UOp, column: UOp) -> UOp:
        """The index of a sum in LOCAL memory: rows of a panel of M, each with all of the task's columns."""
        above = multiply(current(self.in_m), self.rows) if self.k_block else index(0)
        return add(multiply(add(above, row), self.width), column)

    def place_in_unit(self) -> UOp:
        """The index in LOCAL memory of an element of the unit's matrices of sums."""
        unit, inside = self.unit, self.inside
        column = add(multiply(current(self.in_n), self.columns), multiply(current(self.tile_n), unit.columns))
        return self.index_of(add(multiply(current(self.tile_m), unit.rows), inside.row), add(column, inside.column))

    def sums(self, begin: UOp, first: UOp, count: int, stop: UOp | None = None) -> list[Statement]:
        """Compute the sums of one panel of M and one of N over some steps of K, and add them to LOCAL memory."""
        step = counter("ks", count)
        a, b = self.factors(add(first, current(step)))
        product = Accumulate(self.total, o.ADD, a.cast(self.unit.total) * b.cast(self.unit.total))
        body = loops_around([self.inside.word, self.inside.piece], [product], UNIT)
        body = [For(step, LOOP, body, stop)] if count > 1 else body
        body = [Assign(self.total, begin), *body, Store(self.tiles, self.place_in_unit(), self.total)]
        return nested([self.tile_m, self.tile_n], nested([self.inside.row, self.inside.column], body, UNIT), TILE)

    def factors(self, step: UOp) -> tuple[UOp, UOp]:
        """The operands of one step of the unit, in the factors' own types."""
        inside, unit = self.inside, self.unit
        b = self.right.element(self.panel_n, step, current(self.tile_n), inside.column, inside)
        if not self.left_in_place:
            return self.left.element(self.panel_m, step, current(self.tile_m), inside.row, inside), b
        row = add(multiply(current(self.tile_m), unit.rows), inside.row)
        k = add(add(multiply(step, unit.depth), multiply(inside.word, unit.pieces)), inside.piece)
        at_m = add(self.first_row(), row)
        return substitute_index(self.product.left, {**self.m.indices(at_m), self.product.k[0]: k}, {}), b

    def first_row(self) -> UOp:
        """The first row of a panel of M. If rows are read in place, the last panel starts early, so that no row is past
        the end."""
        first = multiply(self.panel_m, self.rows)
        return first.minimum(self.m.size - self.rows) if self.left_in_place and self.m.size % self.rows else first

    def epilogue(self) -> list[Statement]:
        """The stores of a finished panel of M, in vectors along N; nothing past the edges, nothing twice."""
        row = counter("mi", self.rows)
        at_m = add(self.first_row(), row)
        gate = None
        if self.m.size % self.rows:
            gate = less(multiply(self.panel_m, self.rows), add(at_m, index(1))) if self.left_in_place else \
                below(at_m, self.m.size)
        if self.n.pitch:
            down, along = self.n.parts
            result = load(self.tiles, self.index_of(row, add(multiply(down, self.n.pitch), along)))
            stores = self.product.stores(result, self.m.indices(at_m), gate)
            return [For(row, LOOP, [For(down, LOOP, moves.wide(For(along, LOOP, stores), 2, self.lanes))])]
        column = counter("ni", self.columns)
        at_n = add(multiply(self.panel_n, self.columns), column)
        gate = both(gate, below(at_n, self.n.size) if self.n.size % self.columns else None)
        result = load(self.tiles, self.index_of(row, add(multiply(current(self.in_n), self.columns), column)))
        stores = self.product.stores(result, {**self.m.indices(at_m), **self.n.indices(at_n)}, gate)
        body = moves.wide(For(column, LOOP, stores), -(-self.columns // self.lanes), self.lanes)
        return [For(row, LOOP, self.over_n(body))]
