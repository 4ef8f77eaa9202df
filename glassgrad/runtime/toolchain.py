"""Compile kernels. In: a kernel's graph, a target, a language. Out: machine code, now or soon.

LLVM works outside Python's lock, so it compiles one kernel in a thread while Python lowers the next. This room loads
the whole compiler; devices open it only when a kernel is not in the cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from glassgrad.base.errors import FormatError
from glassgrad.base.settings import settings
from glassgrad.graph.uop import UOp
from glassgrad.optimize.choices import Refused
from glassgrad.optimize.target import Target
from glassgrad.render.c_source import render_c
from glassgrad.render.launch import LaunchInfo
from glassgrad.render.llvm_ir import render_llvm
from glassgrad.runtime import llvm
from glassgrad.runtime.ccompiler import compile_c
from glassgrad.runtime.compile import build, kernel_of

Made = tuple[str, LaunchInfo, bytes, tuple[str, ...]]      # a kernel's name, how to launch it, object file, moves

_compiling: ThreadPoolExecutor


def _open_thread() -> None:
    global _compiling
    _compiling = ThreadPoolExecutor(1, thread_name_prefix="glassgrad-compile")


_open_thread()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open_thread)     # the parent's thread does not exist in the child


def start(ast: UOp, target: Target, language: str, finished: Callable[[Made], None],
          moves: Sequence[str] | None = None) -> Callable[[], Made]:
    """Begin compiling a kernel, by the recipe or by the given moves; call the answer to wait for it. `finished` sees
    the result as soon as it is there."""
    try:
        built = build(ast, target, render_llvm if language == "llvm" else render_c, moves)
    except Refused as why:
        raise FormatError("what a tuning file says of a kernel does not fit it", given=str(why),
                          expected="moves as a search found them",
                          mend="glassgrad tune clear, and search again") from None
    features = settings.CPU_FEATURES      # read here: a Context belongs to the thread that entered it

    def work() -> Made:
        compiled = llvm.compile_ir(built.source, features) if language == "llvm" else compile_c(built.source)
        made = (built.name, built.info, compiled, tuple(built.kernel.moves))
        finished(made)
        return made

    return _compiling.submit(work).result if language == "llvm" else _done(work())


def _done(made: Made) -> Callable[[], Made]:
    return lambda: made


def source(ast: UOp, target: Target, moves: Sequence[str] | None = None) -> str:
    """A kernel as readable C."""
    return render_c(kernel_of(ast, target, moves=moves), target)


def compiled_source(ast: UOp, target: Target, language: str) -> Any:
    """The text that is really compiled: LLVM IR or C."""
    return build(ast, target, render_llvm if language == "llvm" else render_c).source
