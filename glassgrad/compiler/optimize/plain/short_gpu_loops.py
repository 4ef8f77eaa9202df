"""Optimize short loops on a GPU. In: a loop nest whose loops are shorter than a group of threads. Out: nests, or None.

A group is a vector of 256 threads, most of which a loop of 20 iterations would leave idle. So loops are flattened into
one, which threads go along, however complicated indices become: consecutive threads need contiguous memory, not a
constant stride.

    for a: for b: y[a, b] = ..                        threads along all (a, b)
    for c: r = 0; for a: for b: r += x[a, c, b]; S    threads along c; or, for few c, along all (a, b), and folded
    for c: r = 0; ..; q = 0; ..; S(r, q)              for few c: r of all c, then q and S of all c

Long sums of few results are split into parts. The choice with the fewest steps is taken: those of the slowest thread,
weighted by the memory transactions of a warp. Does not know any particular GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import add, linear, multiply, substitute_index
from glassgrad.compiler.lower.loops import (LOOP, TASK, Accumulate, Assign, For, Statement, Store, counter, each_loop,
                                            expressions, flat_index, load, loads_in, local, loops_around, ranges_of,
                                            task_loops, walk)
from glassgrad.compiler.optimize.decisions import Choice, Decisions
from glassgrad.compiler.optimize.moves import loop_moves as moves, reduction_moves as sum_moves
from glassgrad.compiler.optimize.plain.access_order import access_width, lanes_used, vectors_in_flight, weighted, work
from glassgrad.compiler.optimize.plain.lanes_and_tasks import ADDS, FoldedLanes, PartialSums, ask_lanes, nest, one_loop
from glassgrad.compiler.optimize.plain.rows_in_registers import Row
from glassgrad.compiler.optimize.plain.short_rows import short_rows
from glassgrad.compiler.optimize.product.flat_axes import FlatAxis
from glassgrad.compiler.optimize.product.recognize import count
from glassgrad.compiler.optimize.targets import gpu_costs as gpu
from glassgrad.compiler.optimize.targets.target import Target

WINDOW, WRITTEN_OUT = 7, 64      # most steps of one loop of a window, and of all of its loops, that are unrolled
LEAST_SHARED = 4         # loads from which a thread takes all results that need them
STRIPS = range(8, 1, -1)         # rows of results that a thread takes, if their windows overlap
FULL = 0.75              # share of a group's threads that have work, from which loops stay as they are
FEW_STORES = 16          # the most stores of one thread for its result
FOLD_STEPS = 12          # cost of a fold, in steps
PHASE_STEPS = 24         # cost of one more phase, in steps
GROUPS = 4               # groups (times `few_tasks`) that run at once, and that the parts of a sum should fill
LEAST_PART = 64          # steps of a thread that are worth a part, if threads go along results
LONG_FOLDED = 32  # steps along a sum from which there are twice as many parts, so that fewer processors idle at the end
LEAST_CONSECUTIVE = 4         # elements that a thread of a long sum loads together, or else one: two were slower


@dataclass(frozen=True)
class Strips(Choice):
    """Rows of results whose windows a thread reads together."""
    loop: str
    rows: int


def in_threads(body: list[Statement], target: Target, decisions: Decisions) -> list[list[Statement]] | None:
    """The phases of a nest with short loops; refuses (None) loops that are long enough, and nests of another form."""
    rows = short_rows(body, target, decisions)
    if rows is not None:
        return [rows]
    found = GroupNest.of(body)
    if found is None:
        return None
    few = bool(found.sums) and found.results < target.few_tasks
    row = Row.of(task_loops(body)[1]) if few and len(found.sums) > 1 else None
    if row is not None and row.lanes(found.results, target) is not None:
        return None                                  # one group per row reads it once
    pixels = any(part.loops and part.consecutive > 1 for part in found.sums)     # rows of several loops, read in pieces
    consecutive = 1 if found.sums or not found.loops else divided(found.inner, found.loops[-1])
    used = 0.0 if few or pixels or shared_loops(found, target) else lanes_used(body, target.lanes(4) * consecutive)
    if used >= FULL or len(found.loops) < 2 and not found.sums:
        return None
    return phases(found, target, decisions)


@dataclass
class Sums:
    """Initialized registers, and the loop that accumulates them: perfectly nested loops are flattened into one."""
    begins: list[Assign]
    loop: For
    consecutive: int = 1                # contiguous elements that a thread loads together
    loops: For | None = None       # the original loops, if there were several

    @staticmethod
    def of(begins: list[Assign], loop: For) -> Sums:
        last = loop
        while len(last.body) == 1 and isinstance(last.body[0], For) and last.body[0].kind == LOOP:
            last = last.body[0]
        return Sums(begins, one_loop(loop), divided(last.body, last.range), loop if last is not loop else None)

    @property
    def depth(self) -> int:
        return int(self.loop.range.arg.size)

    @property
    def is_wide(self) -> bool:
        """Whether a thread loads contiguous elements together, if threads go along the sum."""
        return self.depth % self.consecutive == 0 and self.consecutive >= LEAST_CONSECUTIVE

    @property
    def tile(self) -> int:
        """How many elements a thread adds up per step."""
        return self.consecutive if self.is_wide else min(4, vectors_in_flight(self.loop.body))


@dataclass
class GroupNest:
    """Sums, one after another, and the stores after them, inside loops over all results (and `outer` loops)."""
    loops: list[UOp]
    sums: list[Sums]
    rest: list[Statement]
    outer: list[For] = field(default_factory=list)        # on whose counters the bounds of sums may depend

    @staticmethod
    def of(body: list[Statement]) -> GroupNest | None:
        """Recognize a nest of this form; None for others."""
        loops, inner = task_loops(body)
        every = list(walk(inner))
        if not all(isinstance(s, (For, Assign, Accumulate, Store)) for s in every) or _has_rows(every) or \
                any(f.stop is not None for f in [*loops, *every] if isinstance(f, For)):
            return None
        inner = _stores_last(inner)
        sums: list[Sums] = []
        while True:
            begins = sum_moves.leading(inner)
            loop = inner[len(begins)] if len(begins) < len(inner) else None
            if not begins or not isinstance(loop, For) or loop.kind != LOOP:
                break
            if set(moves.accumulated(loop.body)) != {b.register for b in begins} or _stores([loop]):
                return None
            sums.append(Sums.of(begins, loop))
            inner = inner[len(begins) + 1:]
        steps = sum(times for _, times in weighted(inner))
        if steps > FEW_STORES or len(_stores(inner)) != sum(not isinstance(s, For) for s in walk(inner)) or not inner:
            return None
        return GroupNest([f.range for f in loops], sums, inner)

    @property
    def results(self) -> int:
        return count(self.loops)

    @property
    def inner(self) -> list[Statement]:
        out: list[Statement] = []
        for part in self.sums:
            out += [*part.begins, part.loop]
        return out + self.rest


def phases(found: GroupNest, target: Target, decisions: Decisions) -> list[list[Statement]]:
    """Put threads along results, or along the sums, whichever takes fewer steps."""
    if not found.sums:
        return [along_results(found, target, decisions)]
    by_result = Plan.along_results(found, target)
    by_sum = [Plan.along_sum(found, part, target) for part in found.sums]
    results_first = by_result.steps <= sum(plan.steps for plan in by_sum)
    if not results_first and all(plan.parts == 1 for plan in by_sum):
        return [along_sum(found, target, decisions)]
    if len(found.sums) > 1 and (by_result.parts > 1 or not results_first):
        return [phase for part in split_sums(found) for phase in phases(part, target, decisions)]
    plan, way = (by_result, along_results) if results_first else (by_sum[0], along_sum)
    if plan.parts == 1:
        return [way(found, target, decisions)]
    step = 1 if results_first else target.lanes(4)
    if step > 1 and found.sums[0].depth // (plan.parts * step) >= LONG_FOLDED:
        step *= found.sums[0].tile      # whole steps: a remainder needs a loop and a fold of its own
    first, second = in_parts(found, plan.parts, step, decisions)
    return [way(first, target, decisions), *phases(second, target, decisions)]


# -- costs -------------------------------------------------------------------------------------------------------------
@dataclass
class Plan:
    """How many steps a nest takes, and how many parts its sums are split into."""
    steps: float
    parts: int

    @staticmethod
    def along_results(found: GroupNest, target: Target) -> Plan:
        axis = FlatAxis.of(found.loops)
        lane = counter("lane", axis.size)
        depth = sum(part.depth for part in found.sums)
        each = max(depth, pieces_touched(moves.rebuild(found.inner, axis.indices(lane)), lane))
        return Plan.best(-(-axis.size // target.lanes(4)), lambda parts: each / parts, depth // LEAST_PART, target)

    @staticmethod
    def along_sum(found: GroupNest, part: Sums, target: Target) -> Plan:
        vectors = -(-part.depth // target.lanes(4))
        each = pieces_touched(part.loop.body, part.loop.range)
        plan = Plan.best(found.results, lambda parts: -(-vectors // parts) * each + FOLD_STEPS,
                         vectors // gpu.LEAST_FOLDED, target)
        if plan.parts > 1 and vectors // (2 * plan.parts) >= LONG_FOLDED:
            plan = Plan(plan.steps, 2 * plan.parts)
        return plan if sum_moves.folds(part.loop) else Plan(float("inf"), 1)

    @staticmethod
    def best(groups: int, steps: Callable[[int], float], most: int, target: Target) -> Plan:
        """The better of one part, and of as many parts as keep the processors busy."""
        def plan(parts: int) -> Plan:
            rounds = max(1.0, groups * parts / (GROUPS * target.few_tasks))
            return Plan(rounds * steps(parts) + (PHASE_STEPS if parts > 1 else 0), parts)
        wanted = max(1, min(GROUPS * target.few_tasks // groups, most))
        return min(plan(1), plan(wanted), key=lambda p: p.steps)


def pieces_touched(body: list[Statement], lane: UOp) -> float:
    """The memory transactions of a warp with its threads along a counter, in the whole body, in units of a contiguous
    access."""
    total = 0.0
    for s, times in weighted(body):
        reads = [(n.src[0], n.src[1]) for n in toposort(expressions(s)) if n.op is o.LOAD]
        for memory, at in [*reads, (s.memory, s.index)] if isinstance(s, Store) else reads:
            total += times * pieces(at, lane, memory.dtype.itemsize) / gpu.WARP_PIECES
    return total


def pieces(at: UOp, lane: UOp, itemsize: int) -> int:
    """How many pieces of memory the threads of a warp access at an index; one per thread if the index itself is
    loaded."""
    values: dict[UOp, list[int]] = {}
    for node in toposort([at]):
        if node is lane:
            values[node] = [n % node.arg.size for n in range(gpu.WARP)]
        elif node.op in (o.CONST, o.RANGE):
            values[node] = [int(node.arg) if node.op is o.CONST else 0] * gpu.WARP
        elif node.op in _INTEGERS:
            values[node] = [_INTEGERS[node.op](x, y) for x, y in zip(*[values[s] for s in node.src])]
        else:
            return gpu.WARP
    return len({index * itemsize // gpu.MEMORY_PIECE for index in values[at]})


_INTEGERS: dict[o.Op, Callable[[int, int], int]] = {
    o.ADD: lambda x, y: x + y, o.MUL: lambda x, y: x * y, o.IDIV: lambda x, y: x // y, o.MOD: lambda x, y: x % y}


# -- the loops ---------------------------------------------------------------------------------------------------------
def along_results(found: GroupNest, target: Target, decisions: Decisions) -> list[Statement]:
    """for a: for b: S  ->  TASK: LANE i: S[a = i // n, b = i % n]      (a thread for one or several results)"""
    lanes = target.lanes(4)
    loops, inner = in_strips(found, target, decisions)
    axis = FlatAxis.of(loops)
    flat = counter(loops[0].arg.name if loops else "i", axis.size)
    inner = [wide for s in moves.serial(inner) for wide in _by_neighbours(s)]
    last = loops[-1] if loops and not found.sums else None
    consecutive = divided(inner, last) if last is not None else 1
    most = axis.size // (lanes * target.few_tasks) if axis.size == found.results else 1
    tile = consecutive if consecutive > 1 else max(1, min(vectors_in_flight(inner), most))
    loop = For(flat, LOOP, sum_moves.chunks(moves.rebuild(inner, axis.indices(flat)), ADDS))
    chosen = ask_lanes(decisions, [loop], 0, tile, lanes)
    total = count(f.range for f in found.outer) * axis.size * work(inner)
    body = moves.wide(loop, chosen.tile, chosen.lanes, consecutive=consecutive > 1)
    return nest(found.outer, body, total, target, decisions)


def in_strips(found: GroupNest, target: Target, decisions: Decisions) -> tuple[list[UOp], list[Statement]]:
    """for r: S  ->  for r by 4: TILE u: S[r + u]      where windows of consecutive rows overlap

    The loops of a window are unrolled, so that a thread reads shared elements of its rows' windows once; along a row,
    consecutive threads have consecutive results.
    refuses (leaves it as it is): no index has the same stride along a loop of results as along a loop of a sum"""
    sums: list[Statement] = []
    for part in found.sums:
        sums += [*part.begins, part.loops or part.loop]
    row = next((r for r in found.loops if _has_windows(sums, r)), None)
    if row is None:
        return _shared_in_a_thread(found, target)
    inner, name, size = [*_unrolled(sums), *found.rest], row.arg.name, row.arg.size
    most = found.results // (target.lanes(4) * target.few_tasks) if row is not found.loops[-1] else 1

    def refuses(c: Strips) -> str | None:
        return None if c.loop == name and c.rows and size % c.rows == 0 else f"strips divide {name}, of {size} rows"
    own = Strips(name, next((n for n in STRIPS if n <= most and size % n == 0), 1))
    rows = decisions.ask(own, refuses, lambda: [Strips(name, n) for n in STRIPS]).rows
    strips = moves.wide(For(row, LOOP, inner), rows, 1)
    if rows == size:
        return [r for r in found.loops if r is not row], strips
    [strip] = strips
    assert isinstance(strip, For)
    return [strip.range if r is row else r for r in found.loops], strip.body


def _shared_in_a_thread(found: GroupNest, target: Target) -> tuple[list[UOp], list[Statement]]:
    """for r: S(x[r // 4], r % 4)  ->  for r by 4: TILE u: S(x[r], u)      (shared loads are done once)"""
    loops, inner = list(found.loops), found.inner
    for r, n in reversed(shared_loops(found, target).items()):
        inner, at = moves.wide(For(r, LOOP, inner), n, 1), loops.index(r)
        loops.remove(r)
        if n < r.arg.size:
            [outside] = inner
            assert isinstance(outside, For)
            loops.insert(at, outside.range)
            inner = outside.body
    return loops, inner


def shared_loops(found: GroupNest, target: Target) -> dict[UOp, int]:
    """Loops of results, each with how many consecutive iterations load the same elements. One thread does these, if
    enough threads are left for all processors. For the last loop, pieces that are stored together."""
    places = [n.src[1] for n in loads_in(found.rest)]
    by: dict[UOp, int] = {}
    if found.sums or len(places) < LEAST_SHARED:
        return by
    left = found.results // (target.lanes(4) * target.few_tasks)
    for r in found.loops:
        pieces = range(WINDOW, 1, -1) if r is not found.loops[-1] else (r.arg.size, 4, 2)
        n = next((n for n in pieces if 1 < n <= min(left, WINDOW) and r.arg.size % n == 0 and
                  _is_shared(places, r, n)), 1)
        if n > 1:
            by[r], left = n, left // n
    return by


def _is_shared(places: list[UOp], loop: UOp, count: int) -> bool:
    """Whether `count` consecutive iterations of a loop share most of their loads."""
    if sum(loop in linear(place)[1] for place in places) * LEAST_SHARED > len(places):
        return False
    within = counter("within", count)
    at = {loop: add(multiply(counter("outside", loop.arg.size // count), count), within)}
    memo: dict[UOp, UOp] = {}
    apart = sum(within in ranges_of(substitute_index(place, at, memo)) for place in places)
    return apart * LEAST_SHARED <= len(places)


def _has_windows(body: list[Statement], row: UOp) -> bool:
    """Whether windows along a loop overlap: an index has the same stride along it as along a short loop of a sum, up to
    the sign (which differs in a gradient)."""
    sums = {f.range for f in walk(body) if isinstance(f, For) and 1 < f.range.arg.size <= WINDOW}
    places = [linear(n.src[1])[1] for n in loads_in(body)]
    return any(atom in sums and abs(stride) == terms.get(row) for terms in places for atom, stride in terms.items())


def _unrolled(body: list[Statement]) -> list[Statement]:
    """for k in 3: S  ->  TILE u in 3: S[u]      for short loops"""
    def unrolled(s: For) -> list[Statement]:
        loop, size = For(s.range, s.kind, _unrolled(s.body)), s.range.arg.size
        short = size <= WINDOW and size * max(times for _, times in weighted(s.body)) <= WRITTEN_OUT
        return moves.wide(loop, size, 1) if short else [loop]
    return each_loop(body, unrolled)


def _by_neighbours(s: Statement) -> list[Statement]:
    """for k: r += x[i, k]  ->  for k by 8: TILE u: r += x[i, k + u]      (loads of 16 bytes)"""
    width = access_width(s.body, s.range) if isinstance(s, For) else 0
    return moves.wide(s, width, 1) if isinstance(s, For) and width and s.range.arg.size % width == 0 else [s]


def along_sum(found: GroupNest, target: Target, decisions: Decisions) -> list[Statement]:
    """for c: r = 0; for k: r += ..; S  ->  TASK c: r = fold of LANE k: ..; S      (a group for each result)

    A thread computes the sums of all results of a window, and reads its elements once."""
    lanes, inner = target.lanes(4), list[Statement]()
    for part in found.sums:
        tile = part.tile
        decisions.ask(FoldedLanes(part.loop.range.arg.name, tile, lanes), lambda c: None)
        wide = sum_moves.wide_reduce(part.loop, tile, lanes, chunk=ADDS * tile * lanes, consecutive=part.is_wide)
        inner += [*part.begins, *(wide or [part.loop])]
    inner += moves.serial(found.rest)
    window = next((r for r in reversed(found.loops) if found.results // r.arg.size >= target.few_tasks
                   and len(found.sums) == 1 and _moves_along(found.sums[0].loop, r)), None)
    if window is not None:
        inner = moves.wide(For(window, LOOP, inner), window.arg.size, 1)
    loops = [r for r in found.loops if r is not window]
    return loops_around([*[f.range for f in found.outer], *loops], inner, TASK)


def _moves_along(loop: For, window: UOp) -> bool:
    """Whether a short loop of results shifts what a sum reads by steps of the sum, as taps of a window do."""
    places = [linear(n.src[1])[1] for n in loads_in(loop.body)]
    return 1 < window.arg.size <= WINDOW and any(
        step == terms.get(window) and loop.range in ranges_of(atom) for terms in places for atom, step in terms.items())


def in_parts(found: GroupNest, parts: int, step: int, decisions: Decisions) -> tuple[GroupNest, GroupNest]:
    """r = 0; for k: r += ..; S  ->  TASK parts: r = 0; for k of one: r += ..; part = r     and     sum of parts; S"""
    [sums] = found.sums
    least = -(-sums.depth // (parts * step)) * step
    near = [*range(least, min(2 * least, sums.depth), step), max(sums.depth // parts, step),
            *range(least, min(least * 5 // 4, sums.depth))]
    chunk = next((c for c in near if sums.depth % c == 0 and c % sums.consecutive == 0), least)
    cut = sum_moves.group(found.inner, found.loops, chunk)
    assert cut is not None
    decisions.ask(PartialSums(sums.loop.range.arg.name, chunk), lambda c: None)
    (outer, *_), inner = task_loops(cut[0])
    nests = []
    for body, around in ((inner, [For(outer.range, LOOP, [])]), (cut[1], [])):
        _, loop, *rest = body[len(sums.begins) - 1:]
        assert isinstance(loop, For)
        nests.append(GroupNest(found.loops, [Sums(sums.begins, loop, sums.consecutive if around else 1)], rest, around))
    return nests[0], nests[1]


def split_sums(found: GroupNest) -> list[GroupNest]:
    """r = 0; ..; q = 0; ..; S(r, q)  ->  r = 0; ..; a = r     and     q = 0; ..; S(a, q)"""
    kept: dict[UOp, UOp] = {}
    out: list[GroupNest] = []
    for part in found.sums:
        part = replace(part, loop=For(part.loop.range, LOOP, moves.rebuild(part.loop.body, kept)))
        if len(out) == len(found.sums) - 1:
            return [*out, GroupNest(found.loops, [part], moves.rebuild(found.rest, kept))]
        stores: list[Statement] = []
        for begin in part.begins:
            memory = local(f"sum_{begin.register.arg}", begin.register.dtype, found.results, "shared")
            stores.append(Store(memory, flat_index(found.loops), begin.register))
            kept[begin.register] = load(memory, flat_index(found.loops))
        out.append(GroupNest(found.loops, [part], stores))
    return out


def divided(body: list[Statement], lane: UOp) -> int:
    """How many consecutive iterations of a loop a thread takes: a divisor of its size; 1 if none is found."""
    most = access_width(body, lane)
    return next((n for n in (8, 4, 2) if n <= most and lane.arg.size % n == 0), 1)


# -- recognizing nests -------------------------------------------------------------------------------------------------
def _stores_last(body: list[Statement]) -> list[Statement]:
    """sum a; y = a; sum b; z = b  ->  sum a; sum b; y = a; z = b
    refuses: registers that are assigned twice; reads of memory that is stored to"""
    stores = [s for s in body if isinstance(s, Store)]
    begun = [s.register for s in body if isinstance(s, Assign)]
    read = {n.src[0] for n in loads_in(body)}
    if len(set(begun)) < len(begun) or any(s.memory in read for s in stores):
        return body
    return [*[s for s in body if not isinstance(s, Store)], *stores]


def _stores(body: list[Statement]) -> list[Store]:
    return [s for s in walk(body) if isinstance(s, Store)]


def _has_rows(every: list[Statement]) -> bool:
    """Whether private memory is used, for rows that a task keeps."""
    used = {n for s in every for n in toposort(expressions(s)) if n.op is o.LOCAL} | \
        {s.memory for s in every if isinstance(s, Store) and s.memory.op is o.LOCAL}
    return any(m.arg.scope == "worker" for m in used)
