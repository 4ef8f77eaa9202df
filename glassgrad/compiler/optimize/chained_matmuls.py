"""Chain matmuls, with intermediate matrices in registers of a thread group. In: tasks of loop nests, a unit that reads
factors from registers. Out: the same with one thread group for each task, or None.

    nests over LOCAL memory (lower/attention)                for a group of threads
    task k: task q: tile[k][q] = f(sum over d of ..)        tile[r, c] = 0; steps; tile[r, c] = f(tile[r, c])
    task q: top[q] = max(top[q], max over k of tile[k][q])  top[r] = max(top[r], ..)
    task d: task q: out[d][q] = out[d][q] * shrink[q] + ..  out[r, d] = out[r, d] * shrink[r]; steps add to out[r, d]

LOCAL memory that is indexed by the nests' counters only, with rows innermost, becomes a matrix or a vector in
registers: all of its elements belong to one group, and each to one row. Other memory that a product reads is copied to
shared memory, in its layout, as early as the previous product permits. A computed left factor is rounded to the unit's
type and stays in registers. Does not know what nests compute, nor which unit it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Union

from glassgrad.compiler.graph import DType, UOp, const, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import add, both, index, linear, substitute_index
from glassgrad.compiler.lower.attention.attention_scores import shifted_sum, something_masked
from glassgrad.compiler.lower.loops import (LOOP, TASK, UNIT, Accumulate, Assign, For, If, Statement, Store, counter,
                                            expressions, in_loops, nested, register, task_loops, walk)
from glassgrad.compiler.optimize.bulk_copies import PlacedTile
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.moves.gates import below, edge_gate
from glassgrad.compiler.optimize.product.flat_axes import FlatAxis
from glassgrad.compiler.optimize.product.gpu_warp_tile import CopiedLines
from glassgrad.compiler.optimize.product.matrix_unit.unit_choice import narrowed
from glassgrad.compiler.optimize.product.recognize import Product, count, recognize
from glassgrad.compiler.optimize.product.tiling_parameters import Tiling
from glassgrad.compiler.optimize.targets.matrix_units import MatrixUnit
from glassgrad.compiler.optimize.targets.target import Target

TOGETHER = 16      # columns that a unit's threads fetch at once
FactorTile = Union[CopiedLines, PlacedTile]  # noqa: UP007 - it is evaluated, on Python 3.10 too


def in_registers(body: list[Statement], target: Target, decisions: Decisions) -> list[Statement] | None:
    """for tasks: nests  ->  TASK ..: nests over registers      refuses (None): no unit for it, or other memory"""
    loops, inner = task_loops(body)
    plan = HeldPlan.of(inner, target)
    if plan is None:
        return None
    unit = plan.unit
    own = Tiling("held", plan.row.arg.size // unit.rows, 1, lanes=plan.threads, unit=unit.name, left="shared",
                 right="shared")
    chosen = decisions.ask(own, lambda c: None)
    return in_loops(loops, HeldNests(plan, chosen.ahead).statements(inner))


@dataclass
class HeldPlan:
    """The parts of a task's nests, and how they use memory."""
    unit: MatrixUnit
    row: UOp                               # the counter of rows, which every nest has
    products: dict[int, Product]           # id of a product's nest -> the product, with rows on the left
    matrices: dict[UOp, FlatAxis]          # LOCAL memory that products store to -> its columns
    vectors: set[UOp]                      # LOCAL memory with one element per row
    copied: dict[UOp, Store]               # LOCAL memory that a product reads -> the store that fills it
    alike: dict[UOp, UOp]  # matrix -> the first of those that a nest combines with it element by element

    @property
    def threads(self) -> int:
        """Threads per group: each row of the unit's matrices has threads of its own."""
        return int(self.row.arg.size) // self.unit.rows * self.unit.threads

    @staticmethod
    def of(body: list[Statement], target: Target, asynchronous: bool = False) -> HeldPlan | None:
        """The plan for a unit with `asynchronous` steps, or for one whose threads load both factors."""
        nests = list(_nests(body))
        if any(isinstance(s, If) for s in walk(body)) or not nests:
            return None
        common = set.intersection(*[{f.range for f in task_loops([s])[0]} for s in nests])
        products = {id(s): p for s in nests if (p := _with_rows_left(recognize([s]), common)) is not None}
        if len(common) != 1 or not products:
            return None
        [row] = common
        stores = [s for p in products.values() for s in p.epilogue if isinstance(s, Store)]
        unit = _unit(products.values(), target, asynchronous)
        if unit is None or row.arg.size % unit.rows or len(stores) != len(products):
            return None
        matrices = {s.memory: FlatAxis.of(p.n) for s, p in zip(stores, products.values())}
        used = [(n.src[0], n.src[1]) for s in walk(body) for e in expressions(s) for n in toposort([e])
                if n.op is o.LOAD] + [(s.memory, s.index) for s in walk(body) if isinstance(s, Store)]
        locals_ = {memory for memory, _ in used if is_private(memory)}
        vectors = {m for m in locals_ if m.arg.size == row.arg.size and m not in matrices}
        filled = {m: [s for s in walk(body) if isinstance(s, Store) and s.memory is m] for m in locals_}
        copied = {m: filled[m][0] for m in locals_ if m not in matrices and m not in vectors}
        alike: dict[UOp, UOp] = {}
        for s in nests:
            met = matrices_in([s], matrices) if id(s) not in products else []
            alike.update((m, alike.get(met[0], met[0])) for m in met)
        plan = HeldPlan(unit, row, products, matrices, vectors, copied, alike)
        if any(matrices[m].size != matrices[first].size for m, first in alike.items()):
            return None
        even = all(plan.columns(m, at) is not None for m, at in used if is_private(m))
        once = all(len(filled[m]) == 1 and narrowed(s.value, unit.left) is not None for m, s in copied.items())
        return plan if even and once and all(plan.takes(p, filled) for p in products.values()) else None

    def columns(self, memory: UOp, at: UOp) -> list[UOp] | None:
        """The counters of an index other than the row's, outermost first; None if the index is not [columns][row]."""
        constant, terms = linear(at)
        others = sorted([r for r in terms if r is not self.row], key=lambda r: -terms[r])
        if constant or terms.get(self.row) != 1 or any(r.op is not o.RANGE for r in others):
            return None
        step = self.row.arg.size
        for r in reversed(others):
            if terms[r] != step:
                return None
            step *= r.arg.size
        return others if step == memory.arg.size else None

    def takes(self, product: Product, filled: dict[UOp, list[Store]]) -> bool:
        """Whether a product's left factor is in registers, or can be copied."""
        left = product.left
        if left.op is not o.LOAD or len(left.src) != 2 or left.src[0].op is not o.LOCAL:
            return False
        memory = left.src[0]
        return memory in self.copied or memory in self.matrices and self.matrices[memory].size % TOGETHER == 0 and \
            any(narrowed(s.value, self.unit.left) is not None for s in filled[memory])


class HeldNests:
    """Builds the nests of a task for a group of threads."""

    def __init__(self, plan: HeldPlan, ahead: bool):
        self.plan, self.unit, self.ahead = plan, plan.unit, ahead
        self.row = counter("r", plan.row.arg.size)
        self.column = {m: counter(f"{plan.alike.get(m, m).arg.name}_c", _rounded_up(axis.size, TOGETHER))
                       for m, axis in plan.matrices.items()}
        self.register_of: dict[UOp, UOp] = {}                 # LOCAL memory -> the register with its current contents
        self.block: dict[UOp, UOp] = {}               # counter of blocks -> the block for which code is generated
        lefts = {p.left.src[0] for p in plan.products.values()}
        self.rounded = {m: self.named(m, f"{m.arg.name}_left", self.unit.left) for m in plan.matrices if m in lefts}
        self.tiles = self.right_tiles()
        self.lefts: dict[UOp, CopiedLines] = {}

    def right_tiles(self) -> dict[int, CopiedLines]:
        return {key: self.copied_tile(f"right{number}", p.right, p.n, p.k)
                for number, (key, p) in enumerate(self.plan.products.items())}

    def copied_tile(self, name: str, value: UOp, axis: list[UOp], k: list[UOp],
                    along_k: bool | None = None) -> CopiedLines:
        """A factor's part of a block, copied to shared memory."""
        small = narrowed(value, self.unit.right)
        size = _rounded_up(count(axis), TOGETHER), _rounded_up(count(k), self.unit.depth)
        return CopiedLines(name, value if small is None else small, FlatAxis.of(axis), FlatAxis.of(k), size,
                           self.plan.threads, along_k=along_k)

    def named(self, memory: UOp, name: str, dtype: DType) -> UOp:
        """The register that replaces LOCAL memory."""
        wide = (self.row, self.column[memory]) if memory in self.column else (self.row,)
        return register(name, dtype, wide)

    # -- statements ----------------------------------------------------------------------------------------------
    def statements(self, body: list[Statement], block: UOp | None = None) -> list[Statement]:
        """Build nests one after another; `block` is the counter of the loop around them."""
        out: list[Statement] = []
        steps = [self.tiles[id(s)] for s in body if id(s) in self.plan.products]
        for s in body:
            if isinstance(s, For) and s.kind == LOOP:
                inside = [self.tiles[id(i)] for i in s.body if id(i) in self.plan.products]
                out += inside[0].read(index(0), {s.range: index(0)}) if inside and self.ahead else []
                out.append(For(s.range, LOOP, self.statements(s.body, s.range), s.stop))
            elif id(s) in self.plan.products:
                tile, at = self.tiles[id(s)], steps.index(self.tiles[id(s)])
                if not self.ahead:
                    out += tile.copied()
                else:
                    out += [*([] if at or block is not None else tile.read(index(0))), *tile.kept()]
                    out += self.next_tile(steps, at, block)
                done = self.product(self.plan.products[id(s)], tile)
                out += [*done.begins, *done.steps, *done.made]
            else:
                out += self.nest(s)
        return out

    @staticmethod
    def next_tile(steps: list[CopiedLines], at: int, block: UOp | None) -> list[Statement]:
        """Load what the next product needs, in this iteration or the next. The last iteration loads its own block
        again: a branch would make threads wait for each of its loads."""
        if at + 1 < len(steps):
            return steps[at + 1].read(index(0))
        if block is None:
            return []
        return steps[0].read(index(0), {block: add(block, index(1)).minimum(block.arg.size - 1)})

    def product(self, product: Product, tile: FactorTile) -> ProductSteps:
        """The initial values of a product's sums, the steps of the unit, and the epilogue. An epilogue that only masks
        is skipped in blocks where nothing is masked."""
        memory, value, total = product.store.memory, product.store.value, product.total
        column = self.column[memory]
        sums = self.named(memory, memory.arg.name, memory.dtype)
        replace = self.at_columns([memory], product.n)
        begins, rest, shifted = const(0, sums.dtype), value, shifted_sum(value, total)
        if shifted is not None and shifted.begin is not None and shifted.factor == 1:
            begins = self.new(shifted.begin, replace)            # a value added to the sum becomes its initial value
            rest = shifted._replace(begin=None).over(total)
        left_memory = product.left.src[0]
        if left_memory in self.plan.copied:
            depth = counter("k", tile.depth)
            left = self.left_at(left_memory, depth)
        else:
            depth, left = self.column[left_memory], self.rounded[left_memory]
        step = Accumulate(sums, o.ADD, left.cast(sums.dtype) * tile.at(column, depth).cast(sums.dtype))
        made: list[Statement] = []
        if rest is not total:
            finished = self.new(rest, {**replace, total: sums})
            made = self.over([self.row, column], Assign(sums, finished))
            condition = something_masked(finished, sums, [self.row, column])
            made = made if condition is None else [If(condition, made)]
        self.register_of[memory] = sums
        return ProductSteps(self.over([self.row, column], Assign(sums, begins)),
                            self.over([self.row, column, depth], step), made)

    def left_at(self, memory: UOp, depth: UOp) -> UOp:
        """An element of a copied left factor."""
        return self.left_tile(memory).at(self.row, depth)

    def left_tile(self, memory: UOp) -> FactorTile:
        return self.lefts[memory]

    def nest(self, nest: Statement) -> list[Statement]:
        """A nest that is not a product, as statements over all elements of its registers."""
        loops, body = task_loops([nest])
        counters = [f.range for f in loops]
        first = body[0]
        if isinstance(first, Store) and first.memory in self.plan.copied:
            others = [r for r in counters if r is not self.plan.row]
            tile = self.copied_tile(first.memory.arg.name, first.value, [self.plan.row], others, along_k=True)
            self.lefts[first.memory] = tile
            return tile.copied()
        every = [*counters, *[s.range for s in walk(body) if isinstance(s, For)]]
        matrices = matrices_in(body, self.plan.matrices)
        replace = self.at_columns(matrices, [r for r in every if r is not self.plan.row])
        wide = [self.row] if counters == [self.plan.row] else [self.row, self.column[matrices[0]]]
        return self.elements(body, wide, replace, matrices)

    def elements(self, body: list[Statement], wide: list[UOp], replace: dict[UOp, UOp],
                 matrices: list[UOp]) -> list[Statement]:
        out: list[Statement] = []
        for s in body:
            if isinstance(s, For):                               # over the columns of a row
                out += self.elements(s.body, [self.row, self.column[matrices[0]]], replace, matrices)
            elif isinstance(s, Assign):
                value = self.new(s.value, replace)
                replace[s.register] = register(s.register.arg, s.register.dtype, wide)
                out += self.over(wide, Assign(replace[s.register], value))
            elif isinstance(s, Accumulate):
                out += self.over(wide, Accumulate(replace[s.register], s.combine, self.new(s.value, replace)))
            elif isinstance(s, Store) and is_private(s.memory):
                out += self.over(wide, self.held(s, replace))
            else:
                assert isinstance(s, Store)
                out += self.stored(s, wide, replace, matrices)
        return out

    def held(self, s: Store, replace: dict[UOp, UOp]) -> Assign:
        """A store to LOCAL memory becomes an assignment to its register, in the unit's type if the unit reads it."""
        small = narrowed(s.value, self.unit.left) if s.memory in self.rounded else None
        value = self.new(s.value if small is None else small, replace)
        target = self.named(s.memory, s.memory.arg.name, s.memory.dtype) if small is None else self.rounded[s.memory]
        self.register_of[s.memory] = target
        return Assign(target, value)

    def stored(self, s: Store, wide: list[UOp], replace: dict[UOp, UOp], matrices: list[UOp]) -> list[Statement]:
        """A store to a result, masked where registers hold a matrix padded to more columns."""
        gate = None
        for m in matrices:
            gate = both(gate, below(self.column[m], self.plan.matrices[m].size))
        own = None if s.gate is None else self.new(s.gate, replace)
        value = edge_gate(self.new(s.value, replace), gate)
        return self.over(wide, Store(s.memory, self.new(s.index, replace), value, s.combine, both(own, gate)))

    # -- expressions ---------------------------------------------------------------------------------------------
    def at_columns(self, matrices: Iterable[UOp], counters: list[UOp]) -> dict[UOp, UOp]:
        """The substitution of a nest's counters by those of its registers."""
        out = {**self.block, self.plan.row: self.row}
        for m in matrices:
            axis = FlatAxis.of(counters)
            out.update(axis.indices(self.column[m]))
        return out

    def new(self, value: UOp, replace: dict[UOp, UOp]) -> UOp:
        """A value of a nest, with LOCAL memory replaced by registers."""
        held = {}
        for n in toposort([value]):
            if n.op is o.LOAD and n.src[0].op is o.LOCAL:
                register_ = self.register_of[n.src[0]]
                held[n] = register_ if register_.dtype is n.dtype else register_.cast(n.dtype)
        return substitute_index(value, {**replace, **held}, {})

    @staticmethod
    def over(wide: list[UOp], statement: Statement) -> list[Statement]:
        return nested(wide, [statement], UNIT)


class ProductSteps(NamedTuple):
    """A product as statements about matrices."""
    begins: list[Statement]       # initial values of its sums
    steps: list[Statement]
    made: list[Statement]         # its epilogue

    @staticmethod
    def joined(products: list[ProductSteps]) -> ProductSteps:
        """Join products: all initial values, then all steps, then all epilogues."""
        return ProductSteps(*([s for steps in part for s in steps] for part in zip(*products)))

    @property
    def registers(self) -> tuple[UOp, ...]:
        """The registers that the steps accumulate into."""
        return tuple([s.register for s in walk(self.steps) if isinstance(s, Accumulate)])


# -- analyzing nests ---------------------------------------------------------------------------------------------------
def _nests(body: list[Statement]) -> Iterator[For]:
    """Yield the nests of a task, including those in loops over blocks."""
    for s in body:
        if isinstance(s, For) and s.kind == TASK:
            yield s
        elif isinstance(s, For):
            yield from _nests(s.body)


def matrices_in(body: list[Statement], known: Iterable[UOp]) -> list[UOp]:
    """Those of the known LOCAL memories that statements use."""
    used = {s.memory for s in walk(body) if isinstance(s, Store)}
    used.update(n for s in walk(body) for e in expressions(s) for n in toposort([e]) if n.op is o.LOCAL)
    return [m for m in known if m in used]


def is_private(memory: UOp) -> bool:
    """Whether memory is private to a task."""
    return memory.op is o.LOCAL and memory.arg.scope == "worker"


def _with_rows_left(product: Product | None, rows: set[UOp]) -> Product | None:
    """The product, with its factors exchanged if needed so that the left one's loops are the rows; None if neither's
    are."""
    for p in (() if product is None or product.batch or product.stops else (product, product.swapped())):
        if p.n and set(p.m) == rows:
            return p
    return None


def _unit(products: Iterable[Product], target: Target, asynchronous: bool) -> MatrixUnit | None:
    """A unit that reads factors from registers, for the types of all products."""
    for unit in target.units:
        takes = unit.text is not None and bool(unit.text.held) if asynchronous else unit.loads is not None
        if takes and all(p.total.dtype is unit.total and narrowed(p.right, unit.right) is not None
                                          for p in products):
            return unit
    return None


def _rounded_up(size: int, step: int) -> int:
    return -(-size // step) * step
