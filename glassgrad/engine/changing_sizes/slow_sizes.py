"""Find sizes for which kernels with variables are slow. In: kernels. Out: the sizes up to which they are fast."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.graph.symbolic import Length, Size, Symbol, replaced
from glassgrad.compiler.optimize.tiling_families import FAMILIES
from glassgrad.compiler.schedule.attention_backward import in_kernel
from glassgrad.compiler.schedule.kernels import Item

# Sizes of a product above which a kernel for just this size is so much faster that compiling it pays:
UNTILED = 1 << 24         # multiply-adds, in plain loops
IN_GROUPS = {"held": 1 << 28, "warps": 1 << 26}     # multiply-adds, in families with blocks for groups of threads on a
# GPU, because kernels for one size have asynchronous copies
COPIED_AHEAD = 1 << 33    # multiply-adds, in attention kernels that have these copies too, but smaller blocks
READ_IN_PLACE = 1 << 17   # elements of a right factor that is neither packed nor streamed, in a sum in blocks of terms
AT_ONCE = 1 << 10         # (there is a version without blocks for sums of up to this many terms)


def slow_above(items: Sequence[Item], programs: Sequence[Any],
               variables: Mapping[int, Symbol]) -> list[tuple[Length, int]]:
    """Return pairs (length, limit): kernels with variables are about as fast as kernels for these sizes alone while no
    length exceeds its limit. Slow are products that no tiling takes, products in blocks for groups of threads, and
    those that sum to a run-time bound and read a factor in place without streaming it. `variables` are given by their
    slots."""
    limits: dict[tuple[Size, int], None] = {}
    uses = {(item.ast, tuple([slot for slot in item.slots if slot in variables])): (item.slots, program)
            for item, program in zip(items, programs)}                      # equal kernels once: layers repeat
    for (ast, _), (slots, program) in uses.items():
        named = partial(_variable, variables, slots)
        for size, most in _limits_of(ast, getattr(program, "moves", ())):
            limits[replaced(size, named), most] = None
    return [(size, most) for size, most in limits if isinstance(size, Length)]


def _limits_of(ast: UOp, moves: Sequence[str]) -> Iterator[tuple[Size, int]]:
    """Yield (length, limit) for each slow product of one kernel, which was optimized by these moves."""
    families = FAMILIES.keys() & {move.split("(")[0] for move in moves}
    in_place = any("right=in_place" in move and "k_blocks=" in move for move in moves)
    ahead = any(move.startswith("held(") and "stages=" in move for move in moves)
    of_groups = [COPIED_AHEAD if ahead else IN_GROUPS[family] for family in families if family in IN_GROUPS]
    for n in ast.toposort():
        if n.op is o.SUM and n.src[0].op is o.MUL:
            depth = math.prod([n.src[0].shape[axis] for axis in n.arg.axes])
            columns = next((size for size in reversed(n.shape) if size != 1), 1)
            if of_groups or not families:
                yield n.src[0].elements, min(of_groups, default=UNTILED)
            elif in_place and isinstance(depth, Length) and not in_kernel(ast):    # blocks of keys stay in a cache
                at_once = AT_ONCE * columns if isinstance(columns, int) else 0
                yield depth * columns, max(READ_IN_PLACE, at_once)


def _variable(variables: Mapping[int, Symbol], slots: Sequence[int], symbol: Symbol) -> Symbol:
    """Return the variable that a kernel calls n and its position among the kernel's slots."""
    return variables[slots[int(symbol.name[1:])]]
