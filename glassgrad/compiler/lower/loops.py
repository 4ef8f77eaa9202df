"""The loop tree: what a kernel does, in order. In: nothing. Out: the statement types and `Kernel`.

Expressions are interned `UOp`s over RANGE counters, LOADs and REGISTERs. Statements form an explicit ordered tree and
are not interned: two equal loads may see different values if a store is between them. Moves edit it, renderers read it.

The whole grammar:
    Kernel     = name, params, phases                       phases run one after another, each with all its tasks
    Phase      = body                                       a list of statements; its TASK loops are spread over workers
    Statement  = For(range, kind, body, stop) | If(condition, body)
               | Assign(register, value) | Accumulate(register, combine, value)
               | Store(memory, index, value, combine, gate) | Prefetch(memory, index)
               | CopyBoxes(memory, round, boxes) | AwaitCopies(round) | AwaitSteps(pending) | Barrier() | Turn()

The statements of the last line are for groups of GPU threads: group_statements.py.

Kinds of loop:
    TASK    iterations are independent and run in any order; only the perfectly nested, outermost TASK loops of a
            phase are spread over threads
    LOOP    iterations run in order
    TILE    independent iterations, jammed: every statement inside runs for all of them before the next one runs.
            A loop inside a TILE runs once, its body for all iterations. Values that depend on a TILE range live in
            registers, one per iteration. (unroll-and-jam; the register tile of a matrix multiplication)
    LANE    as TILE, but the iterations are the lanes of one vector; at most one LANE range is open at a time
    UNIT    as TILE, but all iterations of the UNIT loops around a statement are one instruction of a matrix unit
            (compiler/optimize/targets/matrix_units.py), which clears, loads or stores a small matrix, or adds the
            product of two others to it. An Accumulate over UNIT ranges that its register does not have is summed in
            the unit's own order. On an asynchronous unit, each Accumulate is one step, which AwaitSteps counts
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Union

from glassgrad.compiler.graph import DType, UOp, dtypes, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import add, index, multiply
from glassgrad.compiler.graph.op_arguments import FoldOver, Local, Range
from glassgrad.compiler.lower.group_statements import AwaitCopies, AwaitSteps, Barrier, CopyBoxes, Turn

TASK, LOOP, TILE, LANE, UNIT = "task", "loop", "tile", "lane", "unit"
WIDE = (TILE, LANE, UNIT)


@dataclass(eq=False)
class For:
    """A loop. `range` counts 0, 1, ... below its size, or below `stop` (an index expression) if that is smaller."""
    range: UOp
    kind: str
    body: list[Statement]
    stop: UOp | None = None


@dataclass(eq=False)
class If:
    """Runs the body if the condition (a scalar, the same for all lanes) holds."""
    condition: UOp
    body: list[Statement]


@dataclass(eq=False)
class Assign:
    """register = value; inside wide loops, for each iteration that the register or the value depends on."""
    register: UOp
    value: UOp


@dataclass(eq=False)
class Accumulate:
    """register = combine(register, value). ADD of a MUL value may be one fused multiply-add."""
    register: UOp
    combine: o.Op
    value: UOp


@dataclass(eq=False)
class Store:
    """memory[index] = value, or combine(memory[index], value); nothing where the gate (a bool, maybe wide) is false."""
    memory: UOp
    index: UOp
    value: UOp
    combine: o.Op | None = None
    gate: UOp | None = None


@dataclass(eq=False)
class Prefetch:
    """A hint that memory[index] is read soon (lanes: that of the first lane). The index may be out of bounds."""
    memory: UOp
    index: UOp


Statement = Union[For, If, Assign, Accumulate, Store, Prefetch, CopyBoxes,  # noqa: UP007 - it is evaluated, on
                  AwaitCopies, AwaitSteps, Barrier, Turn]                   # Python 3.10 too


@dataclass(eq=False)
class Phase:
    body: list[Statement]


@dataclass(eq=False)
class Kernel:
    """A lowered kernel. The param of slot i is args[i] of the launch; shared LOCALs follow the params as slots."""
    name: str
    params: list[UOp]                 # PARAM nodes by slot; one of shape () with a Cell's dtype is a scalar
    phases: list[Phase]
    written: tuple[int, ...] = ()     # slots that it stores to
    moves: list[str] = field(default_factory=list)   # the moves that optimized it, in order, as text
    streamed: tuple[int, ...] = ()    # slots written by non-temporal (streaming) stores, if the renderer has them

    def _repr_svg_(self) -> str:
        """The loops as boxes in SVG, for notebooks."""
        from glassgrad.compiler.lower.expression_text import kernel_svg
        return kernel_svg(self)


# -- expressions in kernels ----------------------------------------------------------------------------------
def counter(name: str, size: int) -> UOp:
    """A loop counter: 0 <= counter < size."""
    return UOp(o.RANGE, dtypes.index, (), Range(name, size))


def load(memory: UOp, index: UOp, gate: UOp | None = None) -> UOp:
    """Load memory[index]; where the gate is false, the result is 0 and nothing is read."""
    return UOp(o.LOAD, memory.dtype, (memory, index) if gate is None else (memory, index, gate))


def register(name: str, dtype: DType, wide: Iterable[UOp] = ()) -> UOp:
    """A mutable value: one for each combination of iterations of the given TILE, LANE and UNIT ranges."""
    return UOp(o.REGISTER, dtype, tuple(wide), name)


def local(name: str, dtype: DType, size: int, scope: str = "worker", over: str = "") -> UOp:
    """Scratch memory for one launch. Scope "worker" is private to the running task, "shared" is visible to all tasks.
    With `over`, it reuses the memory of the LOCAL of that name, which is not used any more by then."""
    return UOp(o.LOCAL, dtype, (), Local(name, size, scope, over))


def fold(value: UOp, combine: o.Op, wide: Iterable[UOp]) -> UOp:
    """Reduce the iterations of the wide ranges to one value, combined in a fixed tree."""
    wide = tuple(r for r in wide if r in ranges_of(value))
    return UOp(o.FOLD, value.dtype, (value, *wide), FoldOver(combine)) if wide else value


_NO_RANGES: frozenset[UOp] = frozenset()


def ranges_of(node: UOp) -> frozenset[UOp]:
    """The RANGEs that a value depends on (a FOLD does not depend on the ranges that it folds)."""
    try:
        return node.ranges
    except AttributeError:
        for top in toposort([node], lambda n: [s for s in n.src if not hasattr(s, "ranges")]):
            first, *others = {s.ranges for s in top.src} or (_NO_RANGES,)        # most sources have the same ranges
            result = frozenset((top,)) if top.op is o.RANGE else first.union(*others) if others else first
            top.ranges = result - frozenset(top.src[1:]) if top.op is o.FOLD else result
        return node.ranges


# -- building loops -------------------------------------------------------------------------------------------
def current(range_: UOp) -> UOp:
    """The counter; the constant 0 if its loop has one iteration."""
    return range_ if range_.arg.size > 1 else index(0)


def register_over(name: str, dtype: DType, ranges: Iterable[UOp]) -> UOp:
    """A register with an element for each iteration of these loops; loops of one iteration are left out."""
    return register(name, dtype, [r for r in ranges if r.arg.size > 1])


ONCE = counter("once", 1)        # counter of a TASK loop with bound 0 or 1, which runs a body conditionally


def flat_index(ranges: Iterable[UOp], at: UOp | None = None) -> UOp:
    """The row-major index of these counters: ((at * size + i) * size + j) .."""
    at = index(0) if at is None else at
    for r in ranges:
        at = add(multiply(at, r.arg.size), r)
    return at


def piece_bound(size: int | UOp, piece: int, number: UOp) -> UOp | None:
    """The bound of a loop over piece `number` of a length: what remains of the length; None if all pieces are whole."""
    if isinstance(size, int) and size % piece == 0:
        return None
    return add(index(size) if isinstance(size, int) else size, multiply(current(number), -piece))


def nested(ranges: Sequence[UOp], body: list[Statement], kind: str = LOOP) -> list[Statement]:
    """S  ->  for a: for b: S      (without loops of one iteration: S uses 0 for their counters, see `one`)"""
    return loops_around([r for r in ranges if r.arg.size > 1], body, kind)


def loops_around(ranges: Sequence[UOp], body: list[Statement], kind: str = LOOP) -> list[Statement]:
    """S  ->  for a: for b: S"""
    return in_loops([For(r, kind, []) for r in ranges], body)


def in_loops(loops: Sequence[For], body: list[Statement]) -> list[Statement]:
    """S  ->  for a: for b: S, with the kinds and stops of these loops"""
    for f in reversed(loops):
        body = [For(f.range, f.kind, body, f.stop)]
    return body


# -- reading loops --------------------------------------------------------------------------------------------
def walk(body: Iterable[Statement]) -> Iterator[Statement]:
    """Yield every statement, outer before inner, in order."""
    for statement in body:
        yield statement
        if isinstance(statement, (For, If)):
            yield from walk(statement.body)


def each_loop(body: Iterable[Statement], change: Callable[[For], Iterable[Statement]]) -> list[Statement]:
    """A body in which each loop, but none inside it, is replaced by what `change` makes of it."""
    return [made for s in body for made in (change(s) if isinstance(s, For) else [s])]


def task_loops(body: list[Statement]) -> tuple[list[For], list[Statement]]:
    """The perfectly nested TASK loops at the top of a body, outermost first, and the body of the innermost one."""
    loops: list[For] = []
    while len(body) == 1 and isinstance(body[0], For) and body[0].kind == TASK:
        loops.append(body[0])
        body = body[0].body
    return loops, body


def version_of(body: list[Statement]) -> tuple[UOp | None, list[Statement]]:
    """The condition under which a version of a nest runs (an index of value 1 or 0; None: always), and the nest."""
    first = body[0]
    return (first.stop, first.body) if isinstance(first, For) and first.range is ONCE else (None, body)


def numbered_loops(body: list[Statement]) -> tuple[list[For], list[Statement]]:
    """As `task_loops`, in the order in which a launch numbers the iterations: loops with a run-time bound first, so
    that tasks beyond the bound are the last ones. (Not loops whose bound depends on another loop's counter.)"""
    loops, inner = task_loops(body)
    return sorted(loops, key=lambda loop: loop.stop is None or bool(ranges_of(loop.stop))), inner


_EXPRESSIONS: dict[type, tuple[str, ...]] = {
    For: ("stop",), If: ("condition",), Assign: ("value",), Accumulate: ("value",), Store: ("index", "value", "gate"),
    Prefetch: ("index",), CopyBoxes: ("round",), AwaitCopies: ("round",), AwaitSteps: (), Barrier: (), Turn: ()}


def expressions(statement: Statement) -> list[UOp]:
    """The expressions that a statement evaluates itself (without those of statements inside it)."""
    found = [getattr(statement, name) for name in _EXPRESSIONS[type(statement)]]
    if isinstance(statement, CopyBoxes):
        found += [e for box in statement.boxes for e in (*box.first, box.to)]
    return [e for e in found if e is not None]


def nodes_in(body: Iterable[Statement]) -> list[UOp]:
    """Every node of the expressions in these statements, nested ones included; sources first, without repetitions."""
    return toposort([e for s in walk(body) for e in expressions(s)])


def loads_in(body: Iterable[Statement]) -> list[UOp]:
    """Every LOAD in these statements, nested ones included."""
    return [n for n in nodes_in(body) if n.op is o.LOAD]


def rewritten(statement: Statement, new: Callable[[UOp], UOp]) -> Statement:
    """Copy a statement, applying `new` to every expression that it evaluates itself."""
    made = copy(statement)
    for name in _EXPRESSIONS[type(statement)]:
        old = getattr(statement, name)
        if old is not None:
            setattr(made, name, new(old))
    if isinstance(made, CopyBoxes):
        made.boxes = tuple([box._replace(first=tuple([new(e) for e in box.first]), to=new(box.to))
                            for box in made.boxes])
    return made


def with_body(statement: For | If, body: list[Statement]) -> For | If:
    """Copy a loop or branch with another body."""
    made = copy(statement)
    made.body = body
    return made


def shared_locals(kernel: Kernel) -> list[UOp]:
    """The shared LOCALs in order of first use; they take the launch's slots after the params."""
    return [m for m in dict.fromkeys(m for p in kernel.phases for m in locals_written(p)) if m.arg.scope == "shared"]


def locals_written(phase: Phase) -> list[UOp]:
    """The LOCALs that a phase writes, once per statement."""
    writes = [s.memory for s in walk(phase.body) if isinstance(s, (Store, CopyBoxes))]
    return [m for m in writes if m.op is o.LOCAL]
