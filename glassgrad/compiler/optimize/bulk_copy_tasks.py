"""Split chained matmuls with bulk copies into tasks: one thread group each, or persistent groups. In: tasks of products
and the nests between them, a block at a time. Out: the same for thread groups, or None.

    TASK tasks: first copies; blocks; results         TASK groups: first copies of the first task
                                                        for the tasks of a group:
                                                          blocks; first copies of the next task; results

A persistent group has as many stages as any other, and separate memory for results, which otherwise overlay the stages.
Does not know what nests compute, nor which unit it is.
"""

from __future__ import annotations

from dataclasses import replace

from glassgrad.compiler.graph import UOp, const, dtypes, ops as o
from glassgrad.compiler.graph.index_algebra import (add, bounds, divide, index, less, modulo, multiply, operation,
                                                    substitute_index)
from glassgrad.compiler.lower.loops import (LOOP, TASK, Assign, For, Statement, counter, current, in_loops, nested,
                                            ranges_of, register, task_loops)
from glassgrad.compiler.optimize.chained_matmul_pipeline import BlockParts, BoxedNests, NextTask
from glassgrad.compiler.optimize.chained_matmuls import HeldPlan
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.product.flat_axes import FlatAxis
from glassgrad.compiler.optimize.product.tiling_parameters import Tiling
from glassgrad.compiler.optimize.targets import gpu_costs as gpu
from glassgrad.compiler.optimize.targets.target import Target


def in_boxes(body: list[Statement], target: Target, decisions: Decisions) -> list[list[Statement]] | None:
    """for tasks: nests  ->  phases that store factors; TASK ..: copies, steps and nests      refuses (None): no unit"""
    loops, inner = task_loops(body)
    plan = HeldPlan.of(inner, target, asynchronous=True)
    stops = {f.range: f.stop for f in loops if f.stop is not None}
    if plan is None or any(ranges_of(stop) for stop in stops.values()):
        return None
    parts = BlockParts.of(plan, inner)
    tasks = FlatAxis.of([f.range for f in loops])
    nests = None if parts is None else BoxedNests(plan, parts, tasks.parts)
    if nests is None or not nests.fits(target) or stops and any(t.before for t in (*nests.left, *nests.right)):
        return None
    processors, own = target.few_tasks // 2, nests.tiling()
    stays = replace(own, stay=True)
    pays = tasks.size > processors and refuses(nests, stays, stops) is None
    chosen = decisions.ask(stays if pays else own, lambda c: refuses(nests, c, stops))
    if chosen.stay:
        main = staying(nests, tasks, processors)
    else:
        inner = moves.rebuild(nests.statements_of_task(), longest_first(nests, tasks, stops))
        main = in_loops([For(r, TASK, [], stops.get(r)) for r in tasks.parts], inner)
    return [*[tile.before for tile in (*nests.left, *nests.right) if tile.before], main]


def refuses(nests: BoxedNests, c: Tiling, stops: dict[UOp, UOp]) -> str | None:
    """Why tasks cannot be done with this choice; None if they can."""
    if not c.ahead:
        return "copies run ahead of the steps here"
    if c.stay and stops:
        return "groups stay where the number of tasks is known"
    if c.stay and nests.most_blocks < nests.blocks:
        return "groups stay where a task has as many blocks as are on their way"
    if c.stay and nests.memory_bytes + nests.results_bytes() > gpu.SHARED_BYTES:
        return "the stages and a result do not fit the memory of a group"
    return None


def longest_first(nests: BoxedNests, tasks: FlatAxis, stops: dict[UOp, UOp]) -> dict[UOp, UOp]:
    """Reverse those task counters along which tasks get longer, so that long tasks start first."""
    return {r: add(add(stops.get(r, index(r.arg.size)), index(-1)), multiply(r, -1)) for r in tasks.parts
            if grows(nests.parts.count, r)}


def grows(count: UOp, task: UOp) -> bool:
    """Whether a count is larger for the last task along a counter than for the first."""
    first, last = (bounds(substitute_index(count, {task: index(n)}, {}))[1] for n in (0, task.arg.size - 1))
    return first < last


def staying(nests: BoxedNests, tasks: FlatAxis, processors: int) -> list[Statement]:
    """TASK groups: copies of the first task; for the tasks of a group: the task, and copies of the next one

    If tasks differ in length, every other round of tasks is dealt from the last group to the first. A task has at least
    as many blocks as are in flight: those that are masked entirely add nothing."""
    differ, groups = longest_first(nests, tasks, {}), min(tasks.size, processors)
    group, task = counter("g", groups), counter("t", -(-tasks.size // groups))
    parts = nests.parts
    parts.count = operation(o.MAX, parts.count, index(nests.blocks))
    begun, begins = (register(name, dtypes.int32) for name in ("begun", "begins"))    # of this task, of the next one
    repeat = 2 * nests.blocks                  # blocks after which stages, and the parities of their barriers, repeat

    def place(round_: UOp) -> UOp:
        """The index of this group's task within a round."""
        odd = modulo(round_, 2)
        there = add(current(group), multiply(odd, -groups))
        back = add(add(multiply(odd, groups), multiply(current(group), -1)), index(-1))
        return current(group) if parts.count.op is o.CONST else there.maximum(back).maximum(0)

    def numbered(round_: UOp) -> tuple[UOp, dict[UOp, UOp]]:
        """The number of this group's task in a round, and the values of the task counters for it."""
        number = add(multiply(round_, groups), place(round_))
        apart = tasks.indices(number)
        return number, {r: substitute_index(differ.get(r, r), apart, {}) for r in tasks.parts}

    copies = moves.rebuild(nests.first_copies(), numbered(index(0))[1])
    nests.first = modulo(begun.cast(dtypes.index), repeat)
    following, then = numbered(add(current(task), index(1)))
    nests.next_task = NextTask(modulo(begins.cast(dtypes.index), repeat), then, less(following, index(tasks.size)))
    after = modulo(add(nests.first, parts.count), repeat).cast(dtypes.int32)
    body = [Assign(begins, after), *nests.statements_of_task(), Assign(begun, begins)]
    whole, rest = divmod(tasks.size, groups)
    # 1 if there is one more round
    last = divide(add(index(groups + rest - 1), multiply(place(index(whole)), -1)), groups)
    loop = For(task, LOOP, moves.rebuild(body, numbered(current(task))[1]), add(index(whole), last) if rest else None)
    return nested([group], [Assign(begun, const(0, dtypes.int32)), *copies, loop], TASK)
