"""Decide where and in which order values are computed. In: a jammed phase. Out: calls to a renderer's small methods.

Generated text gets no optimization passes, so a good order is chosen here. A value is computed in the outermost open
scope where everything that it reads is fixed: the ranges it depends on are open, and no loop or branch inside that
scope changes a register or memory that it reads. The value is reused until one of those is written. A scope is a list
of lines; while an inner loop is open, the end of the outer scope's list is right before that loop: that is where
hoisted values go. Here the square root is computed in the outer loop, though only the inner loop reads it:

>>> from glassgrad.compiler.lower.printing import show
>>> from glassgrad.compiler.optimize.targets.target import Target
>>> from glassgrad.compiler.pipeline import KERNEL, TEXT, KernelWork, run_passes
>>> [item] = (Tensor([[1.0], [4.0]]).sqrt() + Tensor([5.0, 6.0, 7.0])).schedule()
>>> work = KernelWork(item.ast, Target("x86_64", 16, 16), "c", plain=True)
>>> run_passes(work, KERNEL, TEXT)
>>> print(show(work.kernel))
map_2_3(a0: float32[2, 3], a1: float32[2, 1], a2: float32[3])
  loop i0 in 2
    loop i1 in 3
      a0[((i0 * 3) + i1)] = (sqrt(a1[i0]) + a2[i1])
>>> print(work.source[work.source.index("  for"):].strip())
for (i64 i0 = 0; i0 < 2; i0++) {
    f32 v1 = data1[i0];
    f32 v2 = __builtin_sqrtf(v1);
    for (i64 i1 = 0; i1 < 3; i1++) {
      data0[i0 * 3 + i1] = v2 + data2[i1];
    }
  }
}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import DType, UOp, dtypes, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import Terms, bounds, build, linear
from glassgrad.compiler.lower.group_statements import AwaitCopies, AwaitSteps, Barrier, CopyBoxes, Turn
from glassgrad.compiler.lower.loops import (LANE, UNIT, Accumulate, Assign, For, If, Prefetch, Statement, Store,
                                            expressions, ranges_of, walk)
from glassgrad.compiler.render.unroll_and_jam import Jammed

Vector = TypeVar("Vector")
HAS_LOAD = "has load"     # among a value's reads: it contains a load, which the branches around it may guard
NOTHING: frozenset[Any] = frozenset()
IN_VALUES = (LANE, UNIT)     # loops inside one value or instruction, without control flow
SUMS = (o.ADD, o.SUB, o.MUL)
NOT_COMPUTED = (o.CONST, o.REGISTER, o.RANGE, o.LOCAL)     # ops whose value needs no code


class Scope:
    """An open loop or branch: its lines so far, and the values computed in it."""
    __slots__ = ("block", "dependents", "depth", "depths", "lines", "range", "undo", "values")

    def __init__(self, depth: int, block: str, range_: UOp | None = None):
        self.depth, self.block = depth, block             # block: name of the basic block that the lines end in
        self.range = range_                               # the range, if it is a loop
        self.undo: dict[Any, int] = {}                    # the entries of `Walker.changing` that it replaced
        self.lines: list[Any] = []                        # text, or instructions
        self.values: dict[Any, Any] = {}
        self.dependents: dict[Any, list[Any]] = {}        # register or memory -> keys of values that read it
        self.depths: dict[UOp, int] = {}                  # node -> depth of its scope, while this scope is innermost


class Flow:
    """The effects of a piece of program on registers and memory."""
    __slots__ = ("assigned", "exposed", "loops", "writes")

    def __init__(self) -> None:
        self.writes: dict[UOp, None] = {}      # registers and memories that change (a dict, to keep their order)
        self.exposed: dict[UOp, None] = {}     # registers read before they are assigned
        self.assigned: dict[UOp, None] = {}    # registers assigned on every path
        self.loops = False                     # whether there are loops in it


class Walker:
    """Walks through a jammed phase. Subclasses write each thing, with a Value type of their own."""

    def __init__(self, jammed: Jammed):
        self.lanes = {r: r.arg.size for r in jammed.lanes}
        self.units, self.body = frozenset(jammed.units), jammed.body
        statements = list(walk(jammed.body))
        self.stored = {s.memory for s in statements if isinstance(s, (Store, CopyBoxes))}
        self.reads: dict[UOp, frozenset[Any]] = {}  # node -> registers and written memories that it reads; HAS_LOAD
        self.widths: dict[UOp, int] = {}                  # node -> lanes, 0 for scalars
        self.roots = [e for s in statements for e in expressions(s)]
        self.record_reads([*self.roots, *[s.register for s in statements if isinstance(s, (Assign, Accumulate))]])
        self.flows: dict[Statement, Flow] = {}
        self._flow(jammed.body)
        self.scopes = [Scope(0, "entry")]
        self.open: dict[UOp, int] = dict.fromkeys(self.lanes, 0)     # range -> depth of its scope
        self.open.update(dict.fromkeys((*jammed.tasks, *jammed.units), 0))
        self.changing: dict[Any, int] = {}  # register, memory, HAS_LOAD -> depth of the innermost scope that changes it
        self.scope = self.scopes[0]                       # the scope that lines go to now

    # -- what subclasses provide ---------------------------------------------------------------------------------
    def make(self, node: UOp) -> Any: raise NotImplementedError
    def loop(self, statement: For, flow: Flow) -> None: raise NotImplementedError
    def branch(self, condition: UOp, body: list[Statement], flow: Flow) -> None: raise NotImplementedError
    def store(self, statement: Store) -> None: raise NotImplementedError
    def operand(self, node: UOp, lanes: Any = None) -> Any: raise NotImplementedError
    def apply(self, op: o.Op, dtype: DType, *values: Any) -> Any: raise NotImplementedError
    def load(self, memory: UOp, index: UOp, gate: UOp | None, lanes: int) -> Any: raise NotImplementedError
    def register(self, node: UOp) -> Any: raise NotImplementedError
    def set_register(self, node: UOp, value: Any) -> None: raise NotImplementedError

    def prefetch(self, statement: Prefetch) -> None: raise NotImplementedError

    def asynchronous(self, statement: CopyBoxes | AwaitCopies | AwaitSteps | Barrier | Turn) -> None:
        raise Bug("copies and steps that run beside the program are for groups of threads")

    def before(self, statement: Statement) -> None:
        """Write what must come before a statement; usually nothing."""

    def together(self, body: list[Statement], at: int) -> list[Store]:
        """The stores from body[at] on that are written as one, if there are several; branches become their gates."""
        return []

    def store_together(self, stores: list[Store]) -> None: raise NotImplementedError

    def is_matrix(self, register: UOp) -> bool:
        """Whether a register holds a matrix of a matrix unit."""
        return not self.units.isdisjoint(register.src)

    # -- statements ----------------------------------------------------------------------------------------------
    def assign(self, statement: Assign) -> None:
        """Set a register, for all its lanes."""
        lanes = self.widths[statement.register]
        if self.widths[statement.value] and not lanes:
            raise Bug(f"the register {statement.register.arg} is narrower than the value assigned to it")
        self.set_register(statement.register, self.operand(statement.value, lanes))

    def accumulate(self, statement: Accumulate) -> None:
        """Combine a value into a register, for all its lanes; a product is added without rounding, if possible."""
        register, combine, value = statement.register, statement.combine, statement.value
        lanes, dtype = self.widths[register], register.dtype
        if combine is o.ADD and value.op is o.MUL and dtype.kind == "f":
            x, y = self.operand(value.src[0], lanes), self.operand(value.src[1], lanes)
            result = self.apply(o.MULACC, dtype, x, y, self.register(register))
        else:
            more = self.operand(value, lanes)
            # the fresh value comes first: then its NaN test is not on the dependency chain between iterations
            both = (more, self.register(register)) if combine.commutative else (self.register(register), more)
            result = self.apply(combine, dtype, *both)
        self.set_register(register, result)

    def stored_value(self, statement: Store) -> Any:
        """The value that a store writes, for all its lanes."""
        memory, lanes = statement.memory, self.widths[statement.index]
        if self.widths[statement.value] > lanes or statement.gate is not None and not lanes:
            raise Bug("lanes would overwrite each other in one place")
        value = self.operand(statement.value, lanes)
        if statement.combine is None:
            return value
        if self.index_parts(statement.index)[3] is None:
            raise Bug("lanes may write to one element: they cannot be combined in parallel")
        # an earlier load may be reused here: cached values that read the memory are dropped at this store
        return self.apply(statement.combine, memory.dtype, self.load(memory, statement.index, statement.gate, lanes),
                          value)

    def run(self, body: list[Statement]) -> None:
        """Write every statement of a body, in order, to the innermost scope."""
        done = 0
        for at, statement in enumerate(body):
            self.scope = self.scopes[-1]
            if at < done:
                continue
            self.before(statement)
            if isinstance(statement, For):
                if statement.kind in IN_VALUES:
                    self.run(statement.body)
                else:
                    self.loop(statement, self.flows[statement])
            elif isinstance(statement, (Store, If)) and len(group := self.together(body, at)) > 1:
                self.store_together(group)
                done = at + len(group)
                self.changed(group[0].memory)
            elif isinstance(statement, If):
                self.branch(statement.condition, statement.body, self.flows[statement])
            elif isinstance(statement, Assign):
                self.assign(statement)
                self.changed(statement.register)
            elif isinstance(statement, Accumulate):
                self.accumulate(statement)
                self.changed(statement.register)
            elif isinstance(statement, Prefetch):
                self.prefetch(statement)
            elif isinstance(statement, (CopyBoxes, AwaitCopies, AwaitSteps, Barrier, Turn)):
                self.asynchronous(statement)
                if isinstance(statement, (CopyBoxes, AwaitCopies)):
                    self.changed(statement.memory)
            else:
                self.store(statement)
                self.changed(statement.memory)

    def enter(self, flow: Flow, block: str, range_: UOp | None = None, guard: bool = False) -> Scope:
        """Open a scope; with `guard`, one that may run zero times. Values that it changes become invalid outside it."""
        around = self.scopes[-1]
        scope = Scope(around.depth + 1, block, range_)
        changes: Iterable[Any] = (*flow.writes, HAS_LOAD) if guard else flow.writes
        for what in changes:
            if what is not HAS_LOAD:
                self.changed(what)
            scope.undo[what] = self.changing.get(what, 0)
            self.changing[what] = scope.depth
        if range_ is not None:
            self.open[range_] = scope.depth
        self.scopes.append(scope)
        self.scope = scope
        return scope

    def leave(self) -> None:
        """Closes the innermost scope."""
        scope = self.scopes.pop()
        self.changing.update(scope.undo)
        if scope.range is not None:
            del self.open[scope.range]
        self.scope = self.scopes[-1]

    def changed(self, what: UOp) -> None:
        """Drop cached values that read a register or memory that has been written."""
        scope = self.scopes[-1]
        for key in scope.dependents.pop(what, ()):
            scope.values.pop(key, None)

    # -- values --------------------------------------------------------------------------------------------------
    def scope_of(self, node: UOp) -> Scope:
        """The scope in which a node is computed."""
        depths = self.scopes[-1].depths
        depth = depths.get(node)
        if depth is None:
            try:
                depth = max([self.open[r] for r in ranges_of(node)], default=0)
            except KeyError:
                missing = [r.arg.name for r in ranges_of(node) if r not in self.open]
                raise Bug(f"{node} reads the ranges {missing}, whose loops are not open here") from None
            reads = self.reads[node] if node in self.reads else self.record_reads((node,))
            for what in reads:
                if what is not HAS_LOAD:
                    depth = max(depth, self.changing.get(what, 0))
            if HAS_LOAD in reads and depth < self.changing.get(HAS_LOAD, 0):
                # the branch may be what guards this load; but an earlier load outside of it can be reused
                for scope in self.scopes[depth:self.changing[HAS_LOAD]]:
                    if node in scope.values:
                        return scope
                return self.scopes[self.changing[HAS_LOAD]]
            depths[node] = depth
        return self.scopes[depth]

    def needs(self, node: UOp) -> Iterable[UOp]:
        """The nodes to compute before a node. A sum of indices is computed as a whole, from its atoms."""
        op = node.op
        if op is o.LOAD:
            return [*linear(node.src[1])[1], *node.src[2:]]
        if op in SUMS and node.dtype is dtypes.index:
            atoms = linear(node)[1]
            return node.src if node in atoms else atoms
        if op is o.CMPLT and node.src[0].dtype is dtypes.index and self.widths[node]:
            return [*linear(node.src[0])[1], *linear(node.src[1])[1]]
        return node.src[:1] if op is o.FOLD else node.src

    def value(self, node: UOp) -> Any:
        """A node's value; it is computed if no scope has it."""
        found = self.scope_of(node).values.get(node)
        if found is None:
            self.evaluate(node)
            found = self.scope_of(node).values[node]
        return found

    def index_parts(self, index: UOp) -> tuple[int, Terms, UOp | None, int | None]:
        """Split an index into (constant, scalar terms, the terms of lanes, the step from lane to lane or None)."""
        constant, terms = linear(index)
        same = {a: k for a, k in terms.items() if not self.widths[a]}
        wide = {a: k for a, k in terms.items() if a not in same}
        if not wide:
            return constant, same, None, 0
        if len(wide) == 1 and (lane := next(iter(wide))) in self.lanes:
            return constant, same, lane, wide[lane]
        apart = build(0, wide)
        self.record_reads((apart,))
        return constant, same, apart, None

    def evaluate(self, root: UOp) -> None:
        """Compute a node, and everything below it that no scope has."""
        resume, scope_of = self.scope, self.scope_of

        def missing(node: UOp) -> list[UOp]:
            return [s for s in self.needs(node) if s.op not in NOT_COMPUTED and s not in scope_of(s).values]

        for top in toposort([root], missing):
            scope = self.scope = scope_of(top)
            if top not in scope.values:           # may have been computed with an earlier node
                self.keep(scope, top, self.reads[top], self.make(top))
        self.scope = resume

    def keep(self, scope: Scope, key: Any, reads: frozenset[Any], value: Any) -> Any:
        """Keep a value in its scope, until something that it reads is written."""
        scope.values[key] = value
        for what in reads:
            if what is not HAS_LOAD:
                scope.dependents.setdefault(what, []).append(key)
        return value

    # -- facts ---------------------------------------------------------------------------------------------------
    def record_reads(self, roots: Iterable[UOp]) -> frozenset[Any]:
        """Record what every node under the roots reads, and how wide it is; return the reads of the last node."""
        reads, widths, lanes = self.reads, self.widths, self.lanes
        result = NOTHING
        for node in toposort(roots):
            if node in reads:
                result = reads[node]
                continue
            result = NOTHING
            for s in node.src:
                if reads[s] and reads[s] is not result:
                    result = result | reads[s] if result else reads[s]
            if node.op is o.REGISTER:
                result = frozenset((node,))
            elif node.op is o.LOAD:
                result = result.union([HAS_LOAD, *([node.src[0]] if node.src[0] in self.stored else [])])
            reads[node] = result
            wide = [lanes[r] for r in ranges_of(node) if r in lanes] if lanes else []
            if len(wide) > 1:
                raise Bug(f"{node} depends on two LANE ranges at once")
            widths[node] = wide[0] if wide else 0
        return result

    def _flow(self, body: list[Statement]) -> Flow:
        """The effects of statements on registers and memory; also fills `flows` for the loops and branches inside."""
        flow = Flow()
        for s in body:
            for e in expressions(s):
                for what in sorted((r for r in self.reads[e] if isinstance(r, UOp) and r.op is o.REGISTER),
                                   key=_register_name):
                    if what not in flow.assigned:
                        flow.exposed[what] = None
            if isinstance(s, (For, If)):
                inner = self.flows[s] = self._flow(s.body)
                flow.writes.update(inner.writes)
                flow.loops |= inner.loops or isinstance(s, For) and s.kind not in IN_VALUES
                flow.exposed.update((r, None) for r in inner.exposed if r not in flow.assigned)
                if isinstance(s, For) and (s.stop is None or bounds(s.stop)[0] > 0):
                    flow.assigned.update(inner.assigned)
            elif isinstance(s, (Store, CopyBoxes, AwaitCopies)):
                flow.writes[s.memory] = None
            elif isinstance(s, (Assign, Accumulate)):
                flow.writes[s.register] = None
                if isinstance(s, Assign):
                    flow.assigned[s.register] = None
                elif s.register not in flow.assigned:
                    flow.exposed[s.register] = None
        return flow


def _register_name(register: UOp) -> tuple[str, ...]:
    return (register.arg, *[str(s.arg) for s in register.src])


# -- what tables of ops share: a table has a function of the renderer, the operands' type and the operands for each
_OF_BOOLEANS = {o.ADD: o.OR, o.MUL: o.AND, o.MAX: o.OR, o.MIN: o.AND, o.CMPNE: o.XOR}      # the same ops on booleans


def line_of(table: Mapping[o.Op, Callable[..., Any]], op: o.Op, dtype: DType, language: str) -> Callable[..., Any]:
    """The entry of a renderer's table that writes an op on values of `dtype`."""
    if dtype.kind == "f" and dtype.bits < 32 and op is not o.WHERE:
        raise Bug(f"{op.name} of {dtype.name} reached the {language} renderer; it must be computed in float32")
    if op not in table or dtype.kind not in op.takes:
        raise Bug(f"{op.name} of {dtype.name} reached the {language} renderer; it must be lowered before")
    return table[_OF_BOOLEANS.get(op, op) if dtype.kind == "b" else op]


def fold_lanes(lanes: int, value: Vector, part: Callable[[Vector, int, int], Vector],
               combine: Callable[[Vector, Vector], Vector]) -> Vector:
    """Combine all lanes: the lower half with the upper half, repeatedly; then with the last lane, if their number is
    odd. part(value, first, stop) are some lanes of a value."""
    if lanes == 1:
        return part(value, 0, 1)
    half = lanes // 2
    folded = fold_lanes(half, combine(part(value, 0, half), part(value, half, 2 * half)), part, combine)
    return combine(folded, part(value, lanes - 1, lanes)) if lanes % 2 else folded
