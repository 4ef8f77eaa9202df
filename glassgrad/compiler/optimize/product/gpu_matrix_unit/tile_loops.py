"""Build the loops of a contraction on a GPU's matrix unit. In: a product, a `Target` with units. Out: phases, or None.

    phases     store a factor that cannot be copied from where it is (computed, masked, with rows not aligned to 16
               bytes): [line][k or position], lines padded
    TASK tiles of M and N:
        start async copies of the first steps of both factors into stages of shared memory
        for steps of K (or of a part of it, if there are few tiles):
            wait for its copies; one step of the unit; wait for the step before it; refill the stage that it read
        store the sums to shared memory, line by line; the epilogue reads them there
    for all results, if columns are not contiguous in memory or K is split: the epilogue of the stored sums

Copies fill in zeros past the edges of M, N and K; stores past those of M and N are masked off. All threads do the same
(no warp specialization). Does not know which unit it is: shapes, layouts and limits come from targets/.
"""

from __future__ import annotations

from glassgrad.compiler.graph import UOp, const, ops as o
from glassgrad.compiler.graph.index_algebra import add, divide, index, less, modulo, multiply
from glassgrad.compiler.lower.group_statements import AwaitCopies, AwaitSteps, Barrier, CopyBoxes
from glassgrad.compiler.lower.loops import (LOOP, TASK, UNIT, Accumulate, Assign, For, If, Statement, counter, current,
                                            load, local, nested, piece_bound, register, task_loops)
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.gates import below
from glassgrad.compiler.optimize.product.flat_axes import FlatAxis
from glassgrad.compiler.optimize.product.gpu_matrix_unit.copied_factors import packed, place_in_lines
from glassgrad.compiler.optimize.product.gpu_matrix_unit.store_tile import rounded_to, tile_to_memory
from glassgrad.compiler.optimize.product.gpu_matrix_unit.tile_choice import GroupUnitPlan
from glassgrad.compiler.optimize.product.recognize import Product
from glassgrad.compiler.optimize.product.split_k import Parts
from glassgrad.compiler.optimize.product.tiling_parameters import Tiling
from glassgrad.compiler.optimize.targets import gpu_costs as gpu
from glassgrad.compiler.optimize.targets.target import Target


def on_gpu_matrix_unit(product: Product, target: Target, decisions: Decisions) \
        -> tuple[list[list[Statement]], list[Statement]] | None:
    """The phases, and the loops that add up parts of K; refuses (None) types without a unit, and products too small to
    gain from one."""
    if not target.units or not product.n:
        return None
    product = product.with_lanes_right()
    plan = GroupUnitPlan.of(product, target)
    if plan is None:
        return None
    if plan.placed()[1] is None and (exchanged := GroupUnitPlan.of(product.swapped(), target)) is not None and \
            None not in exchanged.placed() and exchanged.own().k_parts == 1:
        plan = exchanged                          # as the left factor, the right one need not be stored first
    phases, joined = GroupUnitTile(plan, decisions.ask(plan.own(), plan.refuses, plan.others)).phases()
    return phases, plan.product.set_run_time_bounds([joined])[0]


class GroupUnitTile:
    """A product tiled as chosen: a tile is `rows` matrices of the unit, stacked along M, each computed by one set of
    its threads."""

    def __init__(self, plan: GroupUnitPlan, c: Tiling):
        self.plan, self.product, self.stages, self.unit = plan, plan.product, c.stages, plan.unit(c)
        self.stay = c.stay
        self.m, self.n, self.outer, self.line = plan.m, plan.n, plan.outer, c.k_block
        self.threads = c.rows * self.unit.threads
        self.height, self.width = c.rows * self.unit.rows, self.unit.columns
        self.left, self.right = (factor or packed(name, *of, self.line, not self.unit.across)
                                 for name, of, factor in zip(("left", "right"), plan.factors(), plan.placed()))
        tiles_m = -(-self.m.size // self.height)
        together = -(-tiles_m // -(-tiles_m // gpu.TILES_TOGETHER))
        if c.stay or c.cluster > 1:  # tiles are numbered: bands of them must be of equal size
            together = next(n for n in range(together, 0, -1) if tiles_m % n == 0 and n % c.cluster == 0)
        if self.m.stop is not None and -(-self.n.size // self.width) <= plan.target.few_tasks // 2:
            together = tiles_m                      # all columns run at once: no group starts past the run-time bound
        self.group, self.in_group = counter("mg", -(-tiles_m // together)), counter("mi", together // c.cluster)
        self.cluster = counter("mc", c.cluster)
        self.task_n = counter("nb", -(-self.n.size // self.width))
        in_group = add(multiply(current(self.in_group), c.cluster), current(self.cluster))
        tile = add(multiply(current(self.group), together), in_group)
        self.first_m = multiply(tile, self.height)
        self.first_n = multiply(current(self.task_n), self.width)
        self.part, self.steps = counter("kp", c.k_parts), -(-plan.k.size // (self.line * c.k_parts))
        self.row, self.column = counter("r", self.height), counter("c", self.width)
        self.total = register(self.product.total.arg, self.unit.total, (self.row, self.column))
        self.left_size = self.height * self.line
        self.stage_size = plan.stage_size(c)
        self.memory = local("stages", self.unit.left, self.stages * self.stage_size)
        self.second_phase = plan.stores_in_second_phase(c)
        self.steps_now = plan.k.pieces(self.line) or index(self.steps)
        tiles = self.m.pieces(self.height)
        self.tiles_left = piece_bound(tiles_m, together, self.group) if tiles is None else \
            add(tiles, multiply(current(self.group), -together))
        stops = {self.group: self.m.pieces(self.height * together), self.task_n: self.n.pieces(self.width)}
        self.stops = {r: stop for r, stop in stops.items() if stop is not None}
        small = rounded_to(self.product) if c.k_parts == 1 else None
        self.parts = Parts(small or self.unit.total, c.k_parts, self.outer, self.m, self.n, self.product)

    def phases(self) -> tuple[list[list[Statement]], list[Statement]]:
        """The phases, and the loops that add up the parts of K."""
        body: list[Statement] = [*self.in_unit([Assign(self.total, const(0, self.unit.total))]), *self.sums(),
                                 AwaitSteps(0), Barrier(), *self.epilogue()]
        stop = self.tiles_left if self.cluster.arg.size == 1 else None
        if self.stay:
            tasks = self.staying()
        else:
            body = nested([self.cluster], body, TASK)
            body = [For(self.in_group, TASK, body, stop)] if self.in_group.arg.size > 1 else body
            tasks = nested([*self.outer, self.part, self.group, self.task_n], body, TASK)
            for loop in task_loops(tasks)[0]:
                loop.stop = self.stops.get(loop.range, loop.stop)
        joined = self.parts.joined() if self.second_phase else []
        return [*[f.before for f in (self.left, self.right) if f.before], tasks], joined

    def in_unit(self, body: list[Statement]) -> list[Statement]:
        return nested([self.row, self.column], body, UNIT)

    def sums(self) -> list[Statement]:
        """The steps of K, with copies for the next ones in flight."""
        ahead = max(1, self.stages - 1)
        first, step = counter("ka", ahead), counter("ks", self.steps)
        later = add(current(step), index(ahead))
        body = self.step(current(step))
        if self.steps > ahead:
            body.append(If(less(later, self.steps_now), [self.copies(later, later)]))
        begin: list[Statement] = [self.copies(current(first), current(first))]
        stop = None if self.plan.k.stop is None else self.steps_now
        if stop is not None and ahead > 1:
            begin = [If(less(first, stop), begin)]
        return [*nested([first], begin), *([For(step, LOOP, body, stop)] if self.steps > 1 else body)]

    def step(self, round_: UOp) -> list[Statement]:
        """A step of the unit on the copies of a round; afterwards, the stage of the previous step is free."""
        depth = counter("k", self.line)
        begin = multiply(modulo(round_, self.stages), self.stage_size)
        left, right = (place_in_lines(self.line, self.line, *((depth, at) if factor.along_k else (at, depth)))
                       for factor, at in ((self.left, self.row), (self.right, self.column)))
        a, b = load(self.memory, add(begin, left)), load(self.memory, add(add(begin, index(self.left_size)), right))
        multiplied = Accumulate(self.total, o.ADD, a.cast(self.unit.total) * b.cast(self.unit.total))
        return [AwaitCopies(self.memory, round_, self.stages), *self.in_unit([For(depth, UNIT, [multiplied])]),
                AwaitSteps(1), Barrier()]

    def staying(self) -> list[Statement]:
        """TASK groups: for the tiles of a group: steps; epilogue     (persistent; the next tile's copies are in flight)

        Sums go into the stage of the tile's last step: the only one that no copy has begun to refill."""
        order = FlatAxis.of([*self.outer, self.group, self.task_n, self.in_group])
        groups = min(order.size, self.plan.groups_at_once(self.stages * self.stage_size))
        group, tile, step = counter("g", groups), counter("t", -(-order.size // groups)), counter("ks", self.steps)

        def copies(tile: UOp, later: UOp) -> Statement:
            """The copies of a step, which may belong to the next tile; none past the last tile."""
            number = add(multiply(add(tile, divide(later, self.steps)), groups), current(group))
            round_ = add(multiply(tile, self.steps), later)
            begun = moves.rebuild([self.copies(modulo(later, self.steps), round_)], order.indices(number))
            inside = below(number, order.size)
            return begun[0] if inside is None else If(inside, begun)
        number = add(multiply(current(tile), groups), current(group))
        round_ = add(multiply(current(tile), self.steps), current(step))
        steps = [*self.step(round_), copies(current(tile), add(current(step), index(self.stages - 1)))]
        last = add(multiply(current(tile), self.steps), index(self.steps - 1))
        into = self.memory, multiply(modulo(last, self.stages), self.stage_size)
        body = [*self.in_unit([Assign(self.total, const(0, self.unit.total))]),
                *([For(step, LOOP, steps)] if self.steps > 1 else steps), AwaitSteps(0), Barrier(),
                *moves.rebuild(self.epilogue(into), order.indices(number)), Barrier(copies=True)]
        stop = None if order.size % groups == 0 else \
            add(divide(add(index(order.size - 1), multiply(current(group), -1)), groups), index(1))
        first = counter("ka", self.stages - 1)
        tiles: list[Statement] = [For(tile, LOOP, body, stop)] if tile.arg.size > 1 else body
        return nested([group], [*nested([first], [copies(index(0), current(first))]), *tiles], TASK)

    def copies(self, step: UOp, round_: UOp) -> CopyBoxes:
        """The copies of both factors for a step of K, into the stage of its round."""
        to = multiply(modulo(round_, self.stages), self.stage_size)
        k = multiply(add(multiply(current(self.part), self.steps), step), self.line)
        return CopyBoxes(self.memory, round_, (
            *self.left.boxes(self.line, to, self.first_m, self.height, k),
            *self.right.boxes(self.line, add(to, index(self.left_size)), self.first_n, self.width, k)),
            cluster=self.cluster if self.cluster.arg.size > 1 else None)

    def epilogue(self, into: tuple[UOp, UOp] | None = None) -> list[Statement]:
        parts = (self.parts, current(self.part)) if self.second_phase else None
        return tile_to_memory(self.product, self.total, (self.m, self.first_m), (self.n, self.first_n), self.threads,
                              "stages", parts, into)
