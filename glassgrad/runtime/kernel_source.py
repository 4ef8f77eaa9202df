"""Make the source text of one kernel. In: its graph (SINK), a target, a language. Out: a loop tree, or `Built`.

The passes are those of compiler/pipeline.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from glassgrad.base.source_lines import one_place
from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.lower.loops import Kernel
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.pipeline import KERNEL, TEXT, KernelWork, run_passes
from glassgrad.compiler.render.launch_info import LaunchInfo, launch_info


class Built(NamedTuple):
    """A kernel as source text, with what a launch must provide."""
    name: str
    source: str
    binary: bytes                        # instead of `source`, for a binary format
    info: LaunchInfo
    kernel: Kernel
    decisions: Decisions | None          # the optimizer's decisions; None under NOOPT=1


def kernel_of(ast: UOp, target: Target, say: bool = False, moves: Sequence[str] | None = None,
              plain: bool = False) -> Kernel:
    """Return the optimized loop tree of a kernel's graph (with `plain` or NOOPT=1 the unoptimized one), by the recipe
    or by the given moves; with `say`, DEBUG=4 prints the passes."""
    work = KernelWork(ast, target, plain=plain, moves=moves)
    run_passes(work, KERNEL, say=say)
    return work.kernel


def build(ast: UOp, target: Target, language: str, moves: Sequence[str] | None = None, say: bool = True,
          rows: bool = False) -> Built:
    """Run all passes for one kernel, by the recipe or by the given moves. With `rows`, each line of LLVM IR ends with
    the row of the loop tree that it belongs to."""
    work = KernelWork(ast, target, language, moves=moves, rows={} if rows else None)
    with one_place():
        run_passes(work, KERNEL, TEXT, say=say)
        return Built(work.kernel.name, work.source, work.binary, launch_info(work.kernel), work.kernel, work.decisions)


def lines_of(ast: UOp) -> str:
    """The lines of the user's program that a kernel computes, for messages; empty where they are not known."""
    stored = [store.src[1] for store in ast.src if store.op is o.STORE]
    return ", ".join(dict.fromkeys(str(node.line) for node in stored if node.line is not None))
