"""Run loop trees in tests: a kernel's graph through lower and the moves, in the kernel interpreter, against NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from graph_leaves import Values

from glassgrad.compiler.check.graph_interpreter import from_storage, interpret, to_storage
from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.graph.dtype import DType
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Kernel
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets.matrix_units import units_of
from glassgrad.compiler.optimize.targets.target import GPU, Target
from glassgrad.compiler.pipeline import SCHEDULE, GraphWork, run_passes
from glassgrad.compiler.schedule.inlined_values import CPU_LIMITS, FusionLimits
from glassgrad.engine.schedule_key import normalize, with_params

AVX512 = Target("x86_64", 64, 32, frozenset({"avx512f", "avx512bw", "avx512vl", "avx2", "fma", "f16c", "sse4.1"}))
AVX2 = Target("x86_64", 32, 16, frozenset({"avx2", "fma", "f16c", "sse4.1"}))
NEON = Target("aarch64", 16, 32, frozenset({"neon"}))
SSE = Target("x86_64", 16, 16, frozenset({"sse2"}))
AMX = replace(AVX512, units=units_of({"amx-tile", "amx-bf16", "amx-int8"}))
HOPPER = replace(GPU, features=frozenset({"sm_90a"}), units=units_of({"sm_90a"}))
TARGETS = {"avx512": AVX512, "avx2": AVX2, "neon": NEON, "sse": SSE, "amx": AMX}

SIZES = [1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 33, 64, 67, 97]     # 1, primes, powers of two and their neighbours
TOLERANCE = {"float64": 1e-10, "float32": 2e-5, "float16": 4e-3, "bfloat16": 4e-2}

Leaves = dict[UOp, np.ndarray]
Compile = Callable[[UOp], Kernel]


class Inputs(Values):
    """Leaves that a schedule accepts: each lies at an address of its own."""

    def leaf(self, array: object, dtype: DType | None = None) -> UOp:
        node = super().leaf(array, dtype)
        node.arg.address = 64 * (1 + len(self))
        return node


def run_graph(sinks: Sequence[UOp], leaves: Leaves, compile_kernel: Compile,
              limits: FusionLimits = CPU_LIMITS) -> list[np.ndarray]:
    """The sinks' values by way of loop trees, kernel after kernel."""
    normal = normalize(sinks)
    work = GraphWork(*with_params(normal, ()), "CPU", limits=limits)
    run_passes(work, SCHEDULE)
    planned = work.schedule
    memory: list[np.ndarray] = []
    for slot in planned.slots:
        memory.append(np.zeros(int(np.prod(slot.shape)), np.dtype(slot.dtype.format)))
    for i, node in enumerate(normal.buffers):
        value = interpret([node], leaves)[0]
        memory[i] = np.ascontiguousarray(to_storage(value, node.dtype)).reshape(-1)
    for i, slot in enumerate(planned.slots):
        if slot.whole is not None:                          # a piece of another slot
            begin = slot.offset // slot.dtype.itemsize
            memory[i] = memory[slot.whole][begin:begin + memory[i].size]
    for item in planned.items:
        if planned.runs(item):
            run_kernel(compile_kernel(item.ast), [memory[slot] for slot in item.slots])
    return [from_storage(memory[slot].tobytes(), s.dtype).reshape(s.shape) for slot, s in zip(planned.sinks, sinks)]


def assert_same(got: Sequence[np.ndarray], wanted: Sequence[np.ndarray], sinks: Sequence[UOp], what: str) -> None:
    for g, w, s in zip(got, wanted, sinks):
        if s.dtype.is_float:
            close = TOLERANCE[s.dtype.name]
            scale = max(1.0, float(np.max(np.abs(w[np.isfinite(w)]), initial=0.0)))
            np.testing.assert_allclose(g, w, rtol=close, atol=close * scale, err_msg=what)
        else:
            np.testing.assert_array_equal(g, w, err_msg=what)


def check(sinks: Sequence[UOp], leaves: Leaves, compile_kernel: Compile, what: str = "",
          limits: FusionLimits = CPU_LIMITS) -> None:
    """A way of compiling must give what the graph interpreter gives."""
    assert_same(run_graph(sinks, leaves, compile_kernel, limits), interpret(sinks, leaves), sinks, what)


def compiler(target: Target, log: list[str] | None = None) -> Compile:
    """What compiles a kernel's graph for a target, by the recipe; the moves go to `log`."""
    def compile_kernel(ast: UOp) -> Kernel:
        kernel = optimize(lower(ast), target)
        if log is not None:
            log.extend(kernel.moves)
        return kernel
    return compile_kernel


def matmul(x: UOp, y: UOp) -> UOp:
    """(.., m, k) @ (.., k, n), as expand * multiply * sum."""
    *batch, m, k = x.shape
    n = y.shape[-1]
    order = (*range(len(batch)), len(batch) + 1, len(batch))
    left = x.reshape((*batch, m, 1, k)).expand((*batch, m, n, k))
    right = y.permute(order).reshape((*batch, 1, n, k)).expand((*batch, m, n, k))
    return (left * right).sum([len(batch) + 2]).reshape((*batch, m, n))
