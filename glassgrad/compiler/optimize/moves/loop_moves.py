"""The moves: small edits of the loop tree that preserve its results. In: statements. Out: statements.

Each docstring shows before -> after. `merge` refuses (returns None) where it does not apply; for other moves, the
caller checks this. Recipes and tilings are functions that call moves. Moves that change the order of a sum are in
reduction_moves.py. Imports nothing about processors: sizes are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from glassgrad.compiler.graph import UOp, const, dtypes, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import (add, bounds, divide, divide_up, index, less, linear, modulo,
                                                    multiply, operation, substitute_index, times)
from glassgrad.compiler.lower.loops import (LANE, LOOP, TASK, TILE, WIDE, Accumulate, Assign, For, If, Statement, Store,
                                            counter, current, expressions, fold, load, loads_in, local, nested,
                                            nodes_in, piece_bound, ranges_of, register, rewritten, walk, with_body)
from glassgrad.compiler.lower.transcendental import COLD_PATH
from glassgrad.compiler.optimize.moves.gates import gated
from glassgrad.compiler.optimize.moves.move_decorator import move

Replace = dict[UOp, UOp]
PHASE_TASKS = 4096       # the most tasks per phase: claiming one costs 0.05 us, and more under contention


# -- parts of moves ------------------------------------------------------------------------------------------
def rebuild(body: Iterable[Statement], replace: Replace) -> list[Statement]:
    """Copy statements, replacing counters, registers or other expressions."""
    memo: Replace = {}

    def new(e: UOp) -> UOp:
        return substitute_index(e, replace, memo)

    def copied(s: Statement) -> Statement:
        made = rewritten(s, new)
        if isinstance(made, (For, If)):
            made.body = [copied(inner) for inner in made.body]
        elif isinstance(made, (Assign, Accumulate)):
            made.register = new(made.register)
        return made

    return [copied(s) for s in body]


def initialized(body: Iterable[Statement]) -> list[UOp]:
    """Registers that are initialized (assigned, not only accumulated) in these statements."""
    return list(dict.fromkeys(s.register for s in walk(body) if isinstance(s, Assign)))


def accumulated(body: Iterable[Statement]) -> dict[UOp, o.Op]:
    """Registers that are accumulated here but initialized outside, each with the op that combines them."""
    inside = set(initialized(body))
    return {s.register: s.combine for s in walk(body) if isinstance(s, Accumulate) and s.register not in inside}


def copies_per_iteration(body: list[Statement], copies: int, at: UOp) -> list[Statement]:
    """Give each iteration its own copy of the LOCAL memory written in a loop's body: element e of iteration i is at
    e * copies + i. `at` is the iteration's number."""
    memories = {s.memory: local(s.memory.arg.name, s.memory.dtype, s.memory.arg.size * copies) for s in walk(body)
                if isinstance(s, Store) and s.memory.op is o.LOCAL and s.memory.arg.scope == "worker"}
    if not memories:
        return body
    loads = [n for n in loads_in(body) if n.src[0] in memories]
    body = rebuild(body, {n: load(memories[n.src[0]], add(multiply(n.src[1], copies), at), *n.src[2:]) for n in loads})
    for s in walk(body):
        if isinstance(s, Store) and s.memory in memories:
            s.memory, s.index = memories[s.memory], add(multiply(s.index, copies), at)
    return body


def serial(body: Iterable[Statement]) -> list[Statement]:
    """TASK i: S  ->  for i: S"""
    return [For(s.range, LOOP if s.kind == TASK else s.kind, serial(s.body), s.stop) if isinstance(s, For) else
            If(s.condition, serial(s.body)) if isinstance(s, If) else s for s in body]


def split_length(size: int, piece: int) -> list[tuple[int, int, int]]:
    """Split a length into whole pieces and a remainder: (start, how many, how long).

    >>> split_length(100, 16)
    [(0, 6, 16), (96, 1, 4)]
    """
    whole, rest = divmod(size, piece)
    return [found for found in ((0, whole, piece), (size - rest, 1, rest)) if found[1] and found[2]]


# -- moves ---------------------------------------------------------------------------------------------------
@move(lambda outer: None)
def merge(outer: For) -> For | None:
    """for i in a: for j in b: ..i..j..  ->  for m in a*b: ..m//b..m%b..     refuses: an index not linear in m; b = 0"""
    if len(outer.body) != 1 or not isinstance(outer.body[0], For):
        return None
    inner = outer.body[0]
    a, b = outer.range.arg.size, inner.range.arg.size
    if inner.kind != outer.kind or b == 0:
        return None
    whole = counter(outer.range.arg.name, a * b)
    if inner.stop is not None:
        return _merged_rows(outer, inner, whole)
    body = rebuild(inner.body, {outer.range: divide(whole, b), inner.range: modulo(whole, b)})
    for node in nodes_in(body):
        if node.op in (o.IDIV, o.MOD) and whole in ranges_of(node.src[0]) and node.src[0].dtype.name == "int64":
            return None
    return For(whole, outer.kind, body, None if outer.stop is None else multiply(outer.stop, b))


def _merged_rows(outer: For, inner: For, whole: UOp) -> For | None:
    """for i in a: for j below stop: S[i * stop + j]  ->  for m below a * stop: S[m]      refuses: other uses of i; rows
    of a product that would be copied, since their memory would be sized for the largest stop"""
    stop = inner.stop
    if stop is None or ranges_of(stop):
        return None
    row = add(whole, multiply(times(outer.range, stop), -1))
    body = rebuild(inner.body, {inner.range: row})
    if any(n is outer.range for n in nodes_in(body)) or _copies_rows(body, whole):
        return None
    return For(whole, outer.kind, body, times(outer.stop or index(outer.range.arg.size), stop))


def _copies_rows(body: list[Statement], rows: UOp) -> bool:
    """Whether tiles of a product could copy the whole factor with these rows: a factor that is computed, or that
    neither has its sum contiguous nor has columns of the result in place of rows (of those, a task copies its own)."""
    loops = [s.range for s in walk(body) if isinstance(s, For)]
    if all([linear(s.index)[1].get(rows) == 1 for s in walk(body) if isinstance(s, Store)]):
        loops.append(rows)
    values = [s.value for s in walk(body) if isinstance(s, Accumulate)]
    factors = [f for value in values if any(n.op is o.MUL for n in toposort([value]))
               for f in (value.src if value.op is o.MUL else (value,)) if rows in ranges_of(f)]
    return any(f.op is not o.LOAD or len(f.src) != 2 or not any(linear(f.src[1])[1].get(r) == 1 for r in loops)
               for f in factors)


def merge_all(body: list[Statement]) -> list[Statement]:
    """Merge every pair of nested loops that can be merged, innermost first."""
    out: list[Statement] = []
    for s in body:
        if isinstance(s, (For, If)):
            s = with_body(s, merge_all(s.body))
        out.append(merge(s) or s if isinstance(s, For) else s)
    return out


@move(lambda body: body)
def without_known_gates(body: list[Statement]) -> list[Statement]:
    """for i below stop: S if i < stop  ->  for i below stop: S"""
    ends = [f for f in walk(body) if isinstance(f, For) and f.stop is not None]
    held = {less(f.range, f.stop): const(True, dtypes.bool) for f in ends if f.stop is not None}
    return rebuild(body, {gate: true for gate, true in held.items() if gate.op is o.CMPLT}) if held else body


@move(lambda loop, *_, **__: [loop])
def wide(loop: For, tile: int, lanes: int, copies: bool = True, consecutive: bool = False) -> list[Statement]:
    """for i in n: S  ->  for o in n/(t*v): TILE u in t: LANE l in v: S[i = (o*t + u)*v + l]; and the rest the same way

    For loops of independent iterations. Registers initialized inside become one per (u, l), and so does LOCAL memory
    written inside (without `copies`, it is already indexed by i). With `consecutive`, i = (o*v + l)*t + u: each lane
    has t consecutive iterations, which a GPU thread loads together.
    """
    out: list[Statement] = []
    for step in wide_steps(loop, tile, lanes, consecutive):
        body = step.body_of(loop)
        body = copies_per_iteration(body, step.width, step.number) if copies else body
        out += step.loop(step.tiled(body), loop.kind)
    return out


@dataclass
class WideStep:
    """Iterations of a loop, from `start` on, as `count` (or `stop`) steps of `tile` vectors of `lanes`."""
    name: str                 # the loop's name
    start: UOp
    count: int
    tile: int
    lanes: int
    stop: UOp | None
    consecutive: bool = False      # whether each lane has consecutive iterations, instead of each vector
    end: UOp | None = None    # the loop's end, if some lanes may be past it

    def __post_init__(self) -> None:
        self.outer = counter(self.name + ("o" if self.start.op is o.CONST else "r"), self.count)   # r may be inside o
        self.over, self.lane = counter(self.name + "u", self.tile), counter(self.name + "l", self.lanes)
        self.axes = [r for r in (self.over, self.lane) if r.arg.size > 1]
        self.width = self.tile * self.lanes
        self.number = add(multiply(current(self.over), self.lanes), current(self.lane))      # of the iteration
        place = add(multiply(current(self.lane), self.tile), current(self.over)) if self.consecutive else self.number
        self.at = add(self.start, add(multiply(current(self.outer), self.width), place))

    @property
    def is_inside(self) -> UOp | None:
        """The condition that a lane is not past the loop's end; if possible, the same for all its iterations."""
        if self.end is None:
            return None
        together = self.consecutive and self.end.op is o.CONST and self.end.arg % self.tile == 0
        return less(substitute_index(self.at, {self.over: index(0)}, {}) if together else self.at, self.end)

    def body_of(self, loop: For) -> list[Statement]:
        """The loop's body for one step: registers initialized inside become one per iteration of the step."""
        names: Replace = {r: register(r.arg + f"_{self.name}", r.dtype, (*r.src, *self.axes))
                          for r in initialized(loop.body)}
        body, gate = rebuild(loop.body, {loop.range: self.at, **names}), self.is_inside
        # the first lane is always inside
        return body if gate is None else gated(body, gate, accumulated(body), self.axes)

    def tiled(self, body: list[Statement]) -> list[Statement]:
        """S  ->  TILE u: LANE l: S"""
        return nested([self.over], nested([self.lane], body, LANE), TILE)

    def loop(self, body: list[Statement], kind: str) -> list[Statement]:
        """All steps: S  ->  for o: S"""
        return [For(self.outer, kind, body, self.stop)] if self.count > 1 or self.stop is not None else body


def wide_steps(loop: For, tile: int, lanes: int, consecutive: bool = False) -> list[WideStep]:
    """Cut a loop's iterations into steps: whole tiles, then the remaining vectors, then the remaining lanes.

    With a run-time bound: whole tiles, whole vectors, then one vector whose lanes past the end are masked off.
    """
    name, n, stop = loop.range.arg.name, loop.range.arg.size, loop.stop
    if stop is None:
        return [WideStep(name, index(start), count, t, v, None, consecutive)
                for start, count, t, v in _steps(n, tile, lanes)]
    stop = clamped(stop, n)
    tiles, vectors = divide(stop, tile * lanes), divide(stop, lanes)
    before, rest = multiply(tiles, tile * lanes), divide_up(modulo(stop, lanes), lanes)
    steps = [WideStep(name, index(0), n // (tile * lanes), tile, lanes, tiles, consecutive),
             WideStep(name, before, min(tile - 1, n // lanes), 1, lanes, add(vectors, multiply(tiles, -tile)),
                      consecutive),
             WideStep(name, multiply(vectors, lanes), 1, 1, lanes, rest, consecutive, stop)]
    return [step for step in steps if step.count > 0 and step.stop is not index(0)]


def clamped(stop: UOp, size: int) -> UOp:
    """The stop, clamped to the size."""
    return stop if bounds(stop)[1] <= size else UOp(o.MIN, dtypes.index, (stop, index(size)))


def _steps(n: int, tile: int, lanes: int) -> list[tuple[int, int, int, int]]:
    """Cut n elements into (start, times, vectors, lanes): whole tiles, remaining vectors as one tile, remaining lanes.

    >>> _steps(1000, 4, 16)
    [(0, 15, 4, 16), (960, 1, 2, 16), (992, 1, 1, 8)]
    """
    tiles, rest = divmod(n, tile * lanes)
    vectors, last = divmod(rest, lanes)
    steps = ((0, tiles, tile, lanes), (n - rest, 1, vectors, lanes), (n - last, 1, 1, last))
    return [step for step in steps if math.prod(step[1:])]


@move(lambda body, count, interleaved=True: body)
def spread(body: list[Statement], count: int, interleaved: bool = True) -> list[Statement]:
    """for i in n: S; rest  ->  TASK t in count: { for i in n/count: S; if t is the last: rest }

    With a run-time bound, the first task does the rest: it exists for any length. `interleaved`: as in `tasks`."""
    loop = body[0]
    if not isinstance(loop, For) or count < 2 or loop.range.arg.size < 2 or loop.kind not in (LOOP, TASK):
        return body
    split = tasks(For(loop.range, LOOP, loop.body, loop.stop), count, interleaved)
    if split.kind != TASK:
        return body
    if len(body) > 1:
        does_rest = less(index(split.range.arg.size - 2), split.range)
        if split.stop is not None:
            own = If(less(split.range, split.stop), split.body)
            split = For(split.range, TASK, [own], operation(o.MAX, split.stop, index(1)))
            does_rest = less(split.range, index(1))
        split.body = [*split.body, If(does_rest, body[1:])]
    return [split]


@move(lambda loop, count, interleaved=True: loop)
def tasks(loop: For, count: int, interleaved: bool = True) -> For:
    """for i in n: S  ->  TASK o in count: for i in n/count: S[i = o*n/count + i]      (the last may be shorter)

    With a run-time bound, iterations are `interleaved`, so that all tasks get about equally many, however many there
    are. Otherwise each task gets consecutive ones, for fast memory access, and the last tasks may have nothing to do.
    """
    n, name = loop.range.arg.size, loop.range.arg.name
    if count >= n:
        return For(loop.range, TASK, loop.body, loop.stop)
    step = -(-n // max(count, 1))
    count = -(-n // step)
    if count == 1:
        return For(loop.range, LOOP, loop.body, loop.stop)
    outer, inner = counter(name + "t", count), counter(name, step)
    if loop.stop is not None and interleaved:
        body = rebuild(loop.body, {loop.range: add(multiply(inner, count), outer)})
        left = divide(add(loop.stop, add(index(count - 1), multiply(outer, -1))), count)
        return For(outer, TASK, [For(inner, LOOP, body, left)], loop.stop)
    body = rebuild(loop.body, {loop.range: add(multiply(outer, step), inner)})
    rest = piece_bound(n if loop.stop is None else loop.stop, step, outer)
    return For(outer, TASK, [For(inner, LOOP, body, rest)], loop.stop and divide_up(loop.stop, step))


def loops_as_tasks(loops: list[UOp], body: list[Statement], most: int = PHASE_TASKS,
                   stops: dict[UOp, UOp | None] | None = None, interleaved: bool = True) -> list[Statement]:
    """for a: for b: S  ->  TASK a: TASK b: S      (several iterations per task, if there are more than `most`)

    A loop with one iteration is omitted if S does not read its counter."""
    done, takes = 1, []
    for r in loops:
        takes.append(min(r.arg.size, -(-most // done)) if done < most else 1)
        done *= r.arg.size
    for r, take in zip(reversed(loops), reversed(takes)):
        stop = (stops or {}).get(r)
        if r.arg.size > 1 or stop is not None or r in nodes_in(body):
            body = [tasks(For(r, LOOP, body, stop), take, interleaved)]
    return body


# -- cold paths ----------------------------------------------------------------------------------------------
# A single lane cannot branch, but a vector can: the expensive side is skipped if no lane needs it. For large angles, it
# is three quarters of the work of a sine, and most vectors have no large angle.

@move(lambda body, *_: body)
def branch(body: list[Statement], wide: tuple[For, ...] = (), names: list[UOp] | None = None) -> list[Statement]:
    """S[v < limit ? usual : cold]  ->  r = usual; if max over lanes of v >= limit: r = that WHERE; S[r]

    refuses: a WHERE inside a FOLD, since its lanes are not in scope where it is computed
    """
    names = [] if names is None else names                       # registers made so far
    out: list[Statement] = []
    for s in body:
        if isinstance(s, (For, If)):
            inner = (*wide, s) if isinstance(s, For) and s.kind in WIDE else wide
            out.append(with_body(s, branch(s.body, inner, names)))
        else:
            nodes = toposort(expressions(s))
            branched = [] if any(n.op is o.FOLD for n in nodes) else [n for n in nodes if _has_cold_path(n)]
            replace: dict[UOp, UOp] = {}
            for node in branched:
                condition, usual, cold = (substitute_index(source, replace, {}) for source in node.src)
                axes = [loop.range for loop in wide if loop.range in ranges_of(node)]
                lanes = [loop.range for loop in wide if loop.kind == LANE]
                value = register(f"rare{len(names)}", node.dtype, axes)
                names.append(value)
                measure, limit = condition.src
                needed = const(limit.arg - 1, limit.dtype) < fold(measure, o.MAX, lanes)
                out += [Assign(value, usual), If(needed, [Assign(value, condition.where(usual, cold))])]
                replace[node] = value
            out += rebuild([s], replace) if replace else [s]
    return out


def nodes_off_cold_paths(root: UOp) -> list[UOp]:
    """Every node under the root that is not on a cold path."""
    nodes = toposort([root])
    if not any([_has_cold_path(node) for node in nodes]):
        return nodes
    return toposort([root], lambda node: node.src[:2] if _has_cold_path(node) else node.src)


def _has_cold_path(node: UOp) -> bool:
    return node.op is o.WHERE and node.arg == COLD_PATH
