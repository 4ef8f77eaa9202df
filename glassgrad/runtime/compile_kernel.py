"""The compiler of one kernel, as a flat list of passes. In: a kernel's graph (SINK) and a target. Out: `Built`.

    lower       views and reductions become loops, index arithmetic and registers     glassgrad/compiler/lower
    optimize    lanes, tiles, packed panels, tasks: by recipe, or as BEAM found         glassgrad/compiler/optimize
    render      the loop tree as LLVM IR or C                                          glassgrad/compiler/render

What is done to the graph before it is cut into kernels (folding, fusion) stands in glassgrad/engine/realize.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from glassgrad.base.settings import settings
from glassgrad.base.source_lines import one_place
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Kernel
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.lower.printing import linear, show
from glassgrad.compiler.optimize.recipes import optimize, unoptimized
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.render.launch import LaunchInfo, launch_info


class Built(NamedTuple):
    """A kernel as source text, with what a launch must provide."""
    name: str
    source: str
    info: LaunchInfo
    kernel: Kernel


def kernel_of(ast: UOp, target: Target, contract: bool = True, say: bool = False,
              moves: Sequence[str] | None = None) -> Kernel:
    """The optimized loop tree of a kernel's graph (the plain one under NOOPT=1, as one task unless tasks are free), by
    the recipe or by the given moves; `say` shows the way at DEBUG=4."""
    plain = lower(ast, keep_bytes=target.row_bytes)
    if settings.NOOPT:
        kernel = plain if target.free_tasks or target.groups else unoptimized(plain)
    else:
        kernel = optimize(plain, target, contract, moves)
    if say and settings.DEBUG >= 4:
        print(f"--- after loop analysis\n{show(plain)}\n--- optimized: {', '.join(kernel.moves) or 'as it was'}\n"
              f"{show(kernel)}\n--- linearized\n{linear(kernel)}")
    return kernel


def build(ast: UOp, target: Target, render: Callable[[Kernel, Target], str],
          moves: Sequence[str] | None = None) -> Built:
    """All passes for one kernel, optimized by the recipe or by the given moves."""
    with one_place():
        kernel = kernel_of(ast, target, say=True, moves=moves)
        return Built(kernel.name, render(kernel, target), launch_info(kernel), kernel)
