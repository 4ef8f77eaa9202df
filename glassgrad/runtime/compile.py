"""The compiler of one kernel, as a flat list of passes. In: a kernel's graph (SINK) and a target. Out: `Built`.

    lower       views and reductions become loops, index arithmetic and registers     glassgrad/lower
    optimize    lanes, tiles, packed panels, tasks: by recipe                          glassgrad/optimize
    render      the loop tree as LLVM IR or C                                          glassgrad/render

What is done to the graph before it is cut into kernels (folding, fusion) stands in glassgrad/engine/realize.py.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from glassgrad.base.lines import PACKAGE, one_place
from glassgrad.base.settings import settings
from glassgrad.graph import ops as o
from glassgrad.graph.uop import UOp, toposort
from glassgrad.lower.loops import Kernel
from glassgrad.lower.lower import lower
from glassgrad.lower.show import linear, show
from glassgrad.optimize.recipes import optimize, unoptimized
from glassgrad.optimize.target import Target
from glassgrad.render.launch import LaunchInfo, launch_info


class Built(NamedTuple):
    """A kernel as source text, with what a launch must provide."""
    name: str
    source: str
    info: LaunchInfo
    kernel: Kernel


def kernel_of(ast: UOp, target: Target) -> Kernel:
    """The optimized loop tree of a kernel's graph (the plain one under NOOPT=1)."""
    plain = lower(ast)
    kernel = unoptimized(plain) if settings.NOOPT else optimize(plain, target)
    if settings.DEBUG >= 4:
        print(f"--- after loop analysis\n{show(plain)}\n--- optimized: {', '.join(kernel.moves) or 'as it was'}\n"
              f"{show(kernel)}\n--- linearized\n{linear(kernel)}")
    return kernel


def build(ast: UOp, target: Target, render: Callable[[Kernel, Target], str]) -> Built:
    """All passes for one kernel."""
    with one_place():
        kernel = kernel_of(ast, target)
        return Built(kernel.name, render(kernel, target), launch_info(kernel), kernel)


# -- names for caches -----------------------------------------------------------------------------------------------------
@lru_cache(maxsize=1)
def source_digest() -> str:
    """A digest of the compiler's own source: a changed compiler finds nothing in an old cache."""
    digest = hashlib.sha256()
    for folder in ("graph", "lower", "optimize", "render", "runtime"):
        for file in sorted(os.listdir(PACKAGE + folder)):
            if file.endswith(".py"):
                with open(os.path.join(PACKAGE, folder, file), "rb") as f:
                    digest.update(file.encode() + f.read())
    return digest.hexdigest()


def structure(ast: UOp) -> str:
    """A kernel's graph as text: equal for equal kernels, in every process."""
    order = toposort([ast])
    place = {n: i for i, n in enumerate(order)}
    return "\n".join(f"{n.op.name} {n.dtype.name} {[place[s] for s in n.src]} {_arg(n)}" for n in order)


def _arg(node: UOp) -> str:
    if node.op is o.CONST and isinstance(node.arg, float):
        return node.arg.hex()
    return repr(node.arg)


def cache_key(ast: UOp, machine: str, compiler: str) -> str:
    """What a compiled kernel depends on, as one name."""
    parts = ("kernel", source_digest(), machine, compiler, str(settings.NOOPT), structure(ast))
    return hashlib.sha256("\n\n".join(parts).encode()).hexdigest()


def cost(ast: UOp) -> tuple[int, int]:
    """Arithmetic operations and bytes of memory that a kernel must touch."""
    operations = total = 0
    for n in toposort([ast]):
        if n.op in o.ELEMENTWISE and n.op not in (o.CAST, o.BITCAST):
            operations += n.size
        elif n.op in o.REDUCE:
            operations += n.src[0].size
        elif n.op is o.PARAM:
            total += n.size * n.dtype.itemsize
    return operations, total
