"""Which moves make a kernel fast on a CPU. In: a plain loop tree and a `Target`. Out: the optimized tree.

Three recipes cover everything: contractions (optimize/contraction.py), and for the rest lanes along the rows or along
the columns, whichever reads memory in order; then tasks. Few rows with a long reduction are grouped into partial
results first. Choices depend on shapes, dtypes and the target alone, never on threads or timing.
"""

from __future__ import annotations

import math

from glassgrad.graph import ops as o
from glassgrad.graph.index import linear
from glassgrad.graph.uop import UOp, toposort
from glassgrad.lower.loops import LOOP, TASK, For, If, Kernel, Phase, Statement, Store, expressions, ranges_of, walk
from glassgrad.optimize import moves, rare
from glassgrad.optimize.contraction import contraction
from glassgrad.optimize.target import Target

GRAIN = 32 * 1024       # element steps that are worth handing to a worker
MOST_TASKS = 256
ADDS = 128              # adds per lane before a partial sum is folded: equal values round one way, so float32 wants few
FOLD_COST = 8.0         # of one horizontal fold, in vector instructions


def optimize(kernel: Kernel, target: Target, contract: bool = True) -> Kernel:
    """The kernel with the recipe's moves applied; what it computes stays the same up to the order of sums."""
    phases: list[Phase] = []
    log: list[str] = []
    for phase in kernel.phases:
        body = moves.merge_all(phase.body)
        contracted = contraction(body, target, log) if contract else None
        if contracted is not None:
            phases += [Phase(b) for b in contracted]
        else:
            phases += [Phase(b) for b in plain(body, target, log)]
    phases = [Phase(rare.branch(phase.body)) for phase in phases]
    return Kernel(kernel.name, kernel.params, phases, kernel.written, log)


def unoptimized(kernel: Kernel) -> Kernel:
    """NOOPT: the plain loops, as one task each phase."""
    def serial(body: list[Statement]) -> list[Statement]:
        return [For(s.range, LOOP, serial(s.body), s.stop) if isinstance(s, For) else
                If(s.condition, serial(s.body)) if isinstance(s, If) else s for s in body]
    return Kernel(kernel.name, kernel.params, [Phase(serial(p.body)) for p in kernel.phases], kernel.written)


# -- everything that is not a contraction --------------------------------------------------------------------
def plain(body: list[Statement], target: Target, log: list[str]) -> list[list[Statement]]:
    loops, inner = chain(body)
    total = work(body)
    lanes = target.lanes(_itemsize(body))
    if _stores_in_order(inner):
        lane = loops[-1].range if loops else None
        if lane is not None and access_cost(inner, lane, lanes) < access_cost(inner, lane, 1):
            log.append(f"lanes({lane.arg.name}, 1 x {lanes})")
            return [nest(loops[:-1], moves.wide(For(lane, LOOP, inner), 1, lanes), total)]
        return [nest(loops, inner, total)]
    columns = bool(loops) and columns_cost(loops, inner, lanes) <= rows_cost(inner, lanes)
    tile = _tile(inner)
    apart = math.prod(f.range.arg.size for f in loops)
    if columns:
        across = loops[_lane_loop(loops, inner)].range.arg.size
        apart = apart // across * -(-across // (tile * lanes))
    if total >= 4 * GRAIN and apart < 8:
        parts = grouped(loops, inner, total, log)
        if parts is not None:
            return [b for part in parts for b in plain(part, target, log)]
    if columns:
        loop = loops.pop(_lane_loop(loops, inner))
        log.append(f"lanes({loop.range.arg.name}, {tile} x {lanes})")
        return [nest(loops, moves.wide(For(loop.range, LOOP, moves.chunks(inner, ADDS)), tile, lanes), total)]
    return [nest(loops, along_rows(inner, lanes, log), total)]


def chain(body: list[Statement]) -> tuple[list[For], list[Statement]]:
    """The perfectly nested independent loops around the rest."""
    loops: list[For] = []
    while len(body) == 1 and isinstance(body[0], For) and body[0].kind == TASK:
        loops.append(body[0])
        body = body[0].body
    return loops, body


def grouped(loops: list[For], inner: list[Statement], total: int, log: list[str]) \
        -> tuple[list[Statement], list[Statement]] | None:
    """Partial results over chunks of the reduced axis, then their combination; the chunks are fixed by the shape."""
    reduced = next((s for s in inner if isinstance(s, For)), None)
    if reduced is None or reduced.kind != LOOP or reduced.stop is not None:
        return None
    n = reduced.range.arg.size
    chunk = _chunk(n, max(16, GRAIN * n // max(total, 1)), most=64)
    parts = moves.group(inner, [f.range for f in loops], chunk) if chunk < n else None
    if parts is None:
        return None
    log.append(f"group({reduced.range.arg.name}, {chunk})")
    first, second = parts
    for f in reversed(loops):
        second = [For(f.range, TASK, second)]
    return first, second


def _chunk(n: int, least: int, most: int) -> int:
    """A chunk of at least `least`, at most `most` chunks, dividing n where a nearby size does."""
    chunk = max(least, -(-n // most))
    return next((c for c in range(chunk, min(2 * chunk, n) + 1) if n % c == 0), chunk)


def along_rows(body: list[Statement], lanes: int, log: list[str]) -> list[Statement]:
    """Lanes along the innermost loops of a row: reductions with several partial vectors, stores with vectors."""
    out: list[Statement] = []
    for s in body:
        if not isinstance(s, For):
            out.append(s)
        elif any(isinstance(x, For) for x in s.body):
            out.append(For(s.range, LOOP, along_rows(s.body, lanes, log), s.stop))
        elif s.kind == TASK:
            tile = _tile(s.body)
            log.append(f"lanes({s.range.arg.name}, {tile} x {lanes})")
            out += moves.wide(For(s.range, LOOP, s.body), tile, lanes)
        else:
            tile = min(4, _tile(s.body))
            wide = moves.wide_reduce(s, tile, lanes, chunk=ADDS * tile * lanes)
            if wide is not None:
                log.append(f"fold({s.range.arg.name}, {tile} x {lanes})")
            out += wide or [s]
    return out


def nest(loops: list[For], body: list[Statement], total: int) -> list[Statement]:
    """Put the outer loops back around the body, the outermost of them as tasks of a worthwhile size."""
    wanted = min(MOST_TASKS, total // GRAIN)
    rows = math.prod(f.range.arg.size for f in loops)
    if wanted > 1 and rows < 16 and len(body) > 0:
        body = moves.spread(body, max(1, wanted // max(rows, 1)))
    done = 1
    shaped: list[tuple[For, int]] = []       # each loop with the number of tasks it becomes; 0 stays a loop
    for f in loops:
        size = f.range.arg.size
        take = min(size, -(-wanted // done)) if wanted > 1 and done < wanted else 0
        shaped.append((f, take))
        done *= max(take, 1) if take == size else max(take, 1) * wanted
    for f, take in reversed(shaped):
        loop = For(f.range, LOOP, body)
        body = [moves.tasks(loop, take) if take > 1 else loop]
    return body


# -- how memory is walked ------------------------------------------------------------------------------------
def columns_cost(loops: list[For], inner: list[Statement], lanes: int) -> float:
    lane = loops[_lane_loop(loops, inner)].range
    n = lane.arg.size
    return access_cost(inner, lane, lanes) / (n / (-(-n // lanes) * lanes))


def rows_cost(body: list[Statement], lanes: int, times: float = 1.0) -> float:
    """Cost with lanes along the innermost loops; infinite when there is none."""
    loops = [s for s in body if isinstance(s, For)]
    if not loops:
        return math.inf
    cost = 0.0
    for f in loops:
        n = f.range.arg.size
        if any(isinstance(s, For) for s in f.body):
            cost += rows_cost(f.body, lanes, times * n)
        else:
            used = n / (-(-n // lanes) * lanes)
            folds = FOLD_COST if moves.accumulated(f.body) else 0.0
            cost += times * (n * access_cost(f.body, f.range, lanes) / used + folds)
    return cost


def access_cost(body: list[Statement], lane: UOp, lanes: int) -> float:
    """Vector instructions per lane step to run the body with lanes along this counter: strided access costs whole."""
    cost = 0.0
    for s, times in weighed(body):
        for memory_index in _accesses(s):
            cost += times * (1 / lanes if _contiguous(memory_index, lane) else 1.0)
    return cost


def weighed(body: list[Statement], times: float = 1.0) -> list[tuple[Statement, float]]:
    out: list[tuple[Statement, float]] = []
    for s in body:
        if isinstance(s, For):
            out += weighed(s.body, times * s.range.arg.size)
        elif isinstance(s, If):
            out += weighed(s.body, times)
        else:
            out.append((s, times))
    return out


def _accesses(statement: Statement) -> list[UOp]:
    found = [n.src[1] for e in expressions(statement) for n in toposort([e]) if n.op is o.LOAD]
    return [*found, statement.index] if isinstance(statement, Store) else found


def _contiguous(at: UOp, lane: UOp) -> bool:
    _, terms = linear(at)
    return all(k in (1, -1) if atom is lane else lane not in ranges_of(atom) for atom, k in terms.items())


def _lane_loop(loops: list[For], inner: list[Statement]) -> int:
    """Which of the outer loops is contiguous in what is stored: its position."""
    for s in walk(inner):
        if isinstance(s, Store) and s.memory.op is not o.LOCAL:
            _, terms = linear(s.index)
            for at in reversed(range(len(loops))):
                if terms.get(loops[at].range) == 1 and loops[at].range.arg.size >= 4:
                    return at
    return len(loops) - 1


def _stores_in_order(body: list[Statement]) -> bool:
    """A loop that stores inside (a scan, a scatter) must keep its order: lanes only around it."""
    return any(isinstance(s, Store) and s.memory.op is not o.LOCAL for f in walk(body)
               if isinstance(f, For) and f.kind == LOOP for s in walk(f.body))


def work(body: list[Statement]) -> int:
    """Element steps in all, an expensive one counting more."""
    total = 0.0
    for s, times in weighed(body):
        cost = 1.0
        for e in expressions(s):
            cost += 0.1 * len(rare.usual_nodes(e))
        total += times * cost
    return int(total)


def _tile(body: list[Statement]) -> int:
    """How many vectors to keep in flight: fewer where a statement needs many registers."""
    nodes = max((len(toposort(expressions(s))) for s in walk(body) if not isinstance(s, (For, If))), default=1)
    return 4 if nodes <= 24 else 2 if nodes <= 60 else 1


def _itemsize(body: list[Statement]) -> int:
    """The size that decides how many lanes fit a register: of what is stored or summed, and of the widest float on the
    way. Wide integers in between (random bits, addresses) take two registers; fewer lanes would cost the rest more."""
    values = [s.value for s in walk(body) if not isinstance(s, (For, If))]
    floats = [n.dtype.itemsize for e in values for n in rare.usual_nodes(e) if n.dtype.is_float and n.op is not o.CONST]
    return max([4, *floats, *[e.dtype.itemsize for e in values]])
