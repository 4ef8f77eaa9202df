"""Sums of products on a matrix unit. In: a plain loop tree, a `Target` with units. Out: phases, or None.

For factors of a type that a unit multiplies (bfloat16 into float32, bytes into int32), whatever float32 or int32 the
loops widen them to first. As the packed recipe (packed.py), with a small matrix in the place of a vector:

    phase 1   lay the left factor out as the unit reads it    [panel of M][step of K][row][k]      unless it lies so
    phase 2   and the right one                               [panel of N][step of K][word of k][column]
    phase 3   TASK blocks of M and N: for blocks of K: for panels of N: for panels of M: a few small matrices of sums,
              UNIT steps over both panels, then to LOCAL memory; the epilogue reads them there, in vectors

Past the end of K both factors are zeros; what lies past the edges of M and N is dropped at the store.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.index_algebra import add, both, index, less, multiply, substitute_index
from glassgrad.compiler.graph.uop import UOp, const
from glassgrad.compiler.lower.loops import (
    LOOP,
    TILE,
    UNIT,
    Accumulate,
    Assign,
    For,
    Statement,
    Store,
    counter,
    load,
    local,
    register,
    walk,
)
from glassgrad.compiler.optimize.decisions import Choice, Decisions, settled
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.padding_copy import with_zeros
from glassgrad.compiler.optimize.product import work_split as shares
from glassgrad.compiler.optimize.product.contraction_axes import FlatProduct, flat_axis, image_axis, one, swells
from glassgrad.compiler.optimize.product.packed import gated
from glassgrad.compiler.optimize.product.recognize import Product, lanes_on_the_right, recognise
from glassgrad.compiler.optimize.product.unit_panels import Panels, UnitRanges, narrowed
from glassgrad.compiler.optimize.targets.matrix_units import MatrixUnit
from glassgrad.compiler.optimize.targets.target import Target

LEAST_WORK = 16 * 1024    # multiply-adds below which vectors do as well
WASTE = 8                 # times the work that may go into edges: a unit is that much faster than vectors, and more
TASK_WORK = 4 << 20       # multiply-adds worth a task of their own
MOST_TASKS = 16
K_BLOCK = 16              # steps of K: a panel of this depth stays in the first-level cache while others go by
LONG_K = 20               # steps of K up to which it is not cut into blocks
FEW_PANELS = 8            # of N: up to so many, reading the left factor in place beats packing it
MOST_RESTING = 1 << 22    # elements of sums that rest in memory, for each worker
APART = 16                # elements between rows of sums: rows of a power of two would share sets of the cache

assert K_BLOCK <= LONG_K, "a sum that is cut has a first block and at least one more"


@dataclass(frozen=True)
class Unit(Choice):
    """tiles_m x tiles_n matrices of sums in a unit's registers; blocks of panels of them, one to a task."""
    name: str                     # the unit's instruction
    tiles_m: int
    tiles_n: int
    block_m: int                  # panels of M in one task
    block_n: int                  # panels of N in one task
    in_place: bool = False        # the left factor is read where it lies, not packed
    k_block: int = 0              # steps of K after which the sums rest in memory; 0: none
    pitch: int = settled(0)       # of the image that N walks over; 0: none


def on_matrix_unit(body: list[Statement], target: Target, decisions: Decisions) -> list[list[Statement]] | None:
    """The phases; refuses what is not a sum of products, has no unit for its types, or is too small to repay it."""
    product = recognise(body) if target.units else None
    recipe = None if product is None or product.stops else UnitRecipe.of(lanes_on_the_right(product), target)
    if recipe is None:
        return None
    phases = UnitTiling(recipe, decisions.ask(recipe.own(), recipe.refuses, recipe.others)).phases()
    stops = recipe.product.stops
    for loop in [s for phase in phases for s in walk(phase) if isinstance(s, For) and s.range in stops]:
        loop.stop = stops[loop.range]
    return [*recipe.before, *phases]


@dataclass
class UnitRecipe(FlatProduct):
    """A product in a unit's types on flat axes, and how it would be cut."""
    unit: MatrixUnit
    before: list[list[Statement]]       # phases that store a padded image with its zeros

    @staticmethod
    def of(p: Product, target: Target) -> UnitRecipe | None:
        for unit in target.units:
            left, right = narrowed(p.left, unit.left), narrowed(p.right, unit.right)
            if p.total.dtype is unit.total and left is not None and right is not None:
                break
        else:
            return None
        p = replace(p, left=left, right=right)
        before, p = with_zeros(p, target.lanes(unit.left.itemsize)) or ([], p)
        if swells(p.right, p.n + p.k) or swells(p.left, p.m + p.k):
            return None
        m, m_out = flat_axis(p.m, p.epilogue, "m")
        n, n_out = flat_axis(p.n, p.epilogue, "n")
        image = None if p.stops else image_axis(p)
        if image is not None and image[0].size * 2 * unit.rows * unit.total.itemsize <= target.l2_bytes // 2:
            n, n_out = image
        recipe = UnitRecipe(p, target, m, n, [*p.batch, *m_out, *n_out], unit, before)
        own = recipe.own()
        padded = recipe.around * recipe.steps * unit.depth
        for size, tiles, wide in ((m.size, own.tiles_m, unit.rows), (n.size, own.tiles_n, unit.columns)):
            padded *= -(-size // (tiles * wide)) * tiles * wide
        return recipe if recipe.work >= LEAST_WORK and padded <= WASTE * recipe.work else None

    @property
    def steps(self) -> int:
        """Of K: instructions that one sum takes."""
        return -(-self.depth // self.unit.depth)

    def own(self) -> Unit:
        """What the recipe does when nobody knows better: the shape that takes the fewest products and reads."""
        def cost(c: Unit) -> int:
            panels_m, panels_n = self.panels(c)
            return panels_m * panels_n * (2 * max(c.tiles_m * c.tiles_n, self.unit.in_flight) + c.tiles_m + c.tiles_n)
        return min(self.others(), key=cost)

    def others(self) -> list[Unit]:
        """Every shape whose sums and operands fit the registers."""
        most = range(1, self.unit.registers)
        return [self.with_tiles(m, n) for m in most for n in most if m * n + m + n <= self.unit.registers]

    def with_tiles(self, tiles_m: int, tiles_n: int) -> Unit:
        """The recipe's blocks for a panel of so many matrices down and across."""
        c = Unit(self.unit.name, tiles_m, tiles_n, 1, 1, False, K_BLOCK if self.steps > LONG_K else 0, self.n.pitch)
        rows, columns = tiles_m * self.unit.rows, tiles_n * self.unit.columns
        panels_m, panels_n = self.panels(c)
        wanted = self.tasks_wanted(TASK_WORK, MOST_TASKS)
        block_m, block_n = -(-panels_m // min(wanted, panels_m)), panels_n      # of an image: whole rows
        if not c.pitch:
            sums = rows * columns * self.unit.total.itemsize                      # that rest between blocks of K
            fit = self.target.l2_bytes // 2 // sums if c.k_block else panels_m * panels_n
            block_m, block_n = shares.blocks(panels_m, panels_n, wanted, shares.square(rows, columns),
                                             lambda m: max(fit // m, int(m == 1)))
        in_place = self.can_stay_in_place(rows) is None and (panels_n <= FEW_PANELS or self.lines_apart(rows, 4))
        return replace(c, block_m=block_m, block_n=block_n, in_place=in_place)

    def panels(self, c: Unit) -> tuple[int, int]:
        """How many panels of M and N there are."""
        return -(-self.m.size // (c.tiles_m * self.unit.rows)), -(-self.n.size // (c.tiles_n * self.unit.columns))

    def refuses(self, c: Unit) -> str | None:
        """Why a way to cut this product would not do."""
        if c.name != self.unit.name:
            return f"the unit is {self.unit.name}"
        if c.tiles_m * c.tiles_n + c.tiles_m + c.tiles_n > self.unit.registers:
            return f"sums and operands take more than {self.unit.registers} registers"
        panels_m, panels_n = self.panels(c)
        if c.block_m > panels_m or c.block_n > panels_n:
            return "a block is larger than the product"
        if c.pitch and c.block_n < panels_n:
            return "one task stores whole rows of an image"
        if c.k_block >= self.steps:
            return f"there are {self.steps} steps of K"
        panel = c.tiles_m * self.unit.rows * c.tiles_n * self.unit.columns
        if panel * c.block_n * (c.block_m if c.k_block else 1) > MOST_RESTING:
            return "a block's sums would not rest in any cache"
        return self.can_stay_in_place(c.tiles_m * self.unit.rows) if c.in_place else None

    def can_stay_in_place(self, rows: int) -> str | None:
        """Why the left factor must be packed; None where the unit can read it where it lies: rows along k in whole
        steps, and whole panels of rows (the last one may start early)."""
        if self.depth % self.unit.depth:
            return "the left factor is not a matrix of whole steps"
        return self.left_off_k(rows)


class UnitTiling:
    """A product cut as chosen: small matrices of sums, panels of them, blocks of panels."""

    def __init__(self, recipe: UnitRecipe, chosen: Unit):
        self.product, self.unit, self.m, self.n, self.outer = \
            recipe.product, recipe.unit, recipe.m, recipe.n, recipe.outer
        self.steps, self.work, self.lanes = recipe.steps, recipe.work, recipe.target.lanes(4)
        self.tiles_m, self.tiles_n, self.block_m, self.block_n = \
            chosen.tiles_m, chosen.tiles_n, chosen.block_m, chosen.block_n
        self.in_place, self.k_block = chosen.in_place, chosen.k_block
        unit, p = self.unit, self.product
        self.rows, self.columns = self.tiles_m * unit.rows, self.tiles_n * unit.columns
        self.panels_m, self.panels_n = recipe.panels(chosen)
        self.task_m = counter("mb", -(-self.panels_m // self.block_m))
        self.task_n = counter("nb", -(-self.panels_n // self.block_n))
        self.in_m, self.in_n = counter("mo", self.block_m), counter("no", self.block_n)
        self.panel_m = add(multiply(one(self.task_m), self.block_m), one(self.in_m))
        self.panel_n = add(multiply(one(self.task_n), self.block_n), one(self.in_n))
        self.tile_m, self.tile_n = counter("um", self.tiles_m), counter("un", self.tiles_n)
        self.inside = UnitRanges.of(unit)
        wide = [r for r in (self.tile_m, self.tile_n) if r.arg.size > 1]
        self.total = register(p.total.arg, unit.total, (*wide, self.inside.row, self.inside.column))
        self.left = Panels("left", p.left, self.m, self.outer, p.k, unit, self.tiles_m, self.panels_m, False)
        self.right = Panels("right", p.right, self.n, self.outer, p.k, unit, self.tiles_n, self.panels_n, True)
        self.width = self.block_n * self.columns + APART
        self.tiles = local("tiles", unit.total, self.rows * self.width * (self.block_m if self.k_block else 1))

    # -- phases ----------------------------------------------------------------------------------------------
    def phases(self) -> list[list[Statement]]:
        packed = [] if self.in_place else [self.left.pack(self.lanes)]
        packed.append(self.right.pack(self.lanes))
        body = self.in_blocks_of_k() if self.k_block else self.panels_of_m(
            [*self.panels_of_n(self.sums(const(0, self.unit.total), index(0), self.steps)), *self.epilogue()])
        return [*packed, shares.hand_out(self.outer, [self.task_m, self.task_n], body, self.work >= TASK_WORK)]

    def in_blocks_of_k(self) -> list[Statement]:
        """Long sums: for a block of K at a time, all tiles of the task; between blocks they rest in LOCAL memory."""
        count = -(-self.steps // self.k_block)
        size = -(-self.steps // count)
        count = -(-self.steps // size)
        block = counter("kb", count - 1)
        first = multiply(add(one(block), index(1)), size)
        rest = load(self.tiles, self.place_in_unit())
        stop = None if self.steps % size == 0 else add(index(self.steps), multiply(first, -1))
        later = self.panels_of_m(self.panels_of_n(self.sums(rest, first, size, stop)))
        return [*self.panels_of_m(self.panels_of_n(self.sums(const(0, self.unit.total), index(0), size))),
                *([For(block, LOOP, later)] if count > 2 else later),
                *self.panels_of_m(self.epilogue())]

    def panels_of_m(self, body: list[Statement]) -> list[Statement]:
        """For all panels of M in a task; one of them stays near while those of N go by."""
        return shares.share(self.in_m, self.task_m, self.panels_m, body)

    def panels_of_n(self, body: list[Statement]) -> list[Statement]:
        return shares.share(self.in_n, self.task_n, self.panels_n, body)

    def place(self, row: UOp, column: UOp) -> UOp:
        """Where LOCAL memory keeps a sum: rows of a panel of M, each with all the task's columns."""
        above = multiply(one(self.in_m), self.rows) if self.k_block else index(0)
        return add(multiply(add(above, row), self.width), column)

    def place_in_unit(self) -> UOp:
        """Where it keeps an element of the matrices that the unit holds."""
        unit, inside = self.unit, self.inside
        column = add(multiply(one(self.in_n), self.columns), multiply(one(self.tile_n), unit.columns))
        return self.place(add(multiply(one(self.tile_m), unit.rows), inside.row), add(column, inside.column))

    def sums(self, begin: UOp, first: UOp, count: int, stop: UOp | None = None) -> list[Statement]:
        """The sums of one panel of M and one of N over some steps of K, to LOCAL memory."""
        step = counter("ks", count)
        a, b = self.factors(add(first, one(step)))
        body: list[Statement] = [Accumulate(self.total, o.ADD, a.cast(self.unit.total) * b.cast(self.unit.total))]
        for r in (self.inside.piece, self.inside.word):
            body = [For(r, UNIT, body)]
        body = [For(step, LOOP, body, stop)] if count > 1 else body
        body = [Assign(self.total, begin), *body, Store(self.tiles, self.place_in_unit(), self.total)]
        for r, kind in ((self.inside.column, UNIT), (self.inside.row, UNIT), (self.tile_n, TILE), (self.tile_m, TILE)):
            body = [For(r, kind, body)] if r.arg.size > 1 else body
        return body

    def factors(self, step: UOp) -> tuple[UOp, UOp]:
        """What the unit multiplies in one step: both as elements of their own type."""
        inside, unit = self.inside, self.unit
        b = self.right.element(self.panel_n, step, one(self.tile_n), inside.column, inside)
        if not self.in_place:
            return self.left.element(self.panel_m, step, one(self.tile_m), inside.row, inside), b
        row = add(multiply(one(self.tile_m), unit.rows), inside.row)
        k = add(add(multiply(step, unit.depth), multiply(inside.word, unit.pieces)), inside.piece)
        at_m = add(self.first_row(), row)
        return substitute_index(self.product.left, {**self.m.apart(at_m), self.product.k[0]: k}, {}), b

    def first_row(self) -> UOp:
        """Of a panel of M. Read in place, the last panel starts early, so that no row lies past the end."""
        first = multiply(self.panel_m, self.rows)
        return first.minimum(self.m.size - self.rows) if self.in_place and self.m.size % self.rows else first

    def epilogue(self) -> list[Statement]:
        """What is stored of a finished panel of M, in vectors along N; nothing past the edges, nothing twice."""
        row = counter("mi", self.rows)
        at_m = add(self.first_row(), row)
        gate = None
        if self.m.size % self.rows:
            gate = less(multiply(self.panel_m, self.rows), add(at_m, index(1))) if self.in_place else \
                moves.below(at_m, self.m.size)
        if self.n.pitch:
            down, along = self.n.parts
            result = load(self.tiles, self.place(row, add(multiply(down, self.n.pitch), along)))
            stores = self.stores(result, self.m.apart(at_m), gate)
            return [For(row, LOOP, [For(down, LOOP, moves.wide(For(along, LOOP, stores), 2, self.lanes))])]
        column = counter("ni", self.columns)
        at_n = add(multiply(self.panel_n, self.columns), column)
        gate = both(gate, moves.below(at_n, self.n.size) if self.n.size % self.columns else None)
        result = load(self.tiles, self.place(row, add(multiply(one(self.in_n), self.columns), column)))
        stores = self.stores(result, {**self.m.apart(at_m), **self.n.apart(at_n)}, gate)
        body = moves.wide(For(column, LOOP, stores), -(-self.columns // self.lanes), self.lanes)
        return [For(row, LOOP, self.panels_of_n(body))]

    def stores(self, result: UOp, places: dict[UOp, UOp], gate: UOp | None) -> list[Statement]:
        """The product's own stores, of a sum at a place inside the gate."""
        out: list[Statement] = []
        for s in moves.rebuild(self.product.epilogue, {self.product.total: result, **places}):
            assert isinstance(s, Store)
            out.append(Store(s.memory, s.index, gated(s.value, gate, result), s.combine, both(gate, s.gate)))
        return out
