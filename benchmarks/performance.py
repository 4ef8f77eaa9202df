"""Measure the five steps of docs/performance.md, and write the figures into it.

    python -m benchmarks.performance              show loop trees and figures
    python -m benchmarks.performance --write      and put the figures into docs/performance.md and docs/img
    GLASSGRAD_SHORT=1 ...                         small sizes, one round: to see that it works

Each step runs on one worker except the last. A time is the best of several rounds in which all steps take turns: other
programs only ever add time. The peak is measured too: multiply-adds on registers, by the same code generator.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.bars import bars
from benchmarks.machine import busy, describe
from benchmarks.matmul_steps import Step, other_tiles, steps
from glassgrad import Context
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.index_algebra import add, multiply
from glassgrad.compiler.graph.op_arguments import Param
from glassgrad.compiler.graph.uop import UOp, const
from glassgrad.compiler.lower.loops import (LANE, LOOP, TASK, TILE, Assign, For, Kernel, Phase, Store, counter, load,
                                            register)
from glassgrad.compiler.lower.printing import show
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.pipeline import make_source
from glassgrad.compiler.render.launch_info import launch_info
from glassgrad.runtime.cpu.elf_loader import Image
from glassgrad.runtime.cpu.llvm_compiler import compile_ir
from glassgrad.runtime.cpu.native_device import NativePlan, NativeProgram
from glassgrad.runtime.cpu.processor import host_description
from glassgrad.runtime.cpu.worker_pool import worker_pool

PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
PLOT = PAGE.parent / "img" / "matmul_steps.svg"
BEGIN, END = "<!-- measured: written by python -m benchmarks.performance --write -->\n", "<!-- end of measured -->\n"
SIZE, SIZES = 1024, (256, 512, 1024, 2048)
ROUNDS, PATIENCE = 40, 1.0                     # seconds that a step may take over all rounds, beyond its first
SHORT = os.environ.get("GLASSGRAD_SHORT", "0") not in ("", "0")
Call = Callable[[], object]


# -- running a loop tree -------------------------------------------------------------------------------------
def aligned(nbytes: int) -> np.ndarray:
    """Memory that begins at a cache line, as the engine's does."""
    raw = np.zeros(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start:start + nbytes]


def launcher(kernel: Kernel, arrays: Sequence[np.ndarray]) -> Call:
    """A kernel compiled for this machine, ready to run on these arrays."""
    info = launch_info(kernel)
    image = Image(compile_ir(make_source(kernel, Target.of(host_description()), "llvm")))
    memory = [*arrays, *[aligned(n) for n in info.shared]]
    plan = NativePlan([NativeProgram(name=kernel.name, info=info, moves=(), image=image)], [tuple(range(len(memory)))])
    plan.bind([m.ctypes.data for m in memory])

    def run(kept: object = memory) -> None:
        plan.run()
    return run


def answers(step: Step, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What a step computes of a @ b."""
    out = aligned(4 * a.shape[0] * b.shape[1]).view(np.float32)
    launcher(step.kernel, [out, a, b])()
    return out.reshape(a.shape[0], b.shape[1])


# -- the peak ------------------------------------------------------------------------------------------------
def peak_kernel(target: Target, workers: int, times: int) -> Kernel:
    """Nothing but multiply-adds on registers: as many sums as there are registers for, none waiting for another."""
    lanes, sums = target.lanes(4), target.vector_registers - 4
    out, given = (UOp(o.PARAM, dtypes.float32, (), Param(slot, (n,))) for slot, n in ((0, workers * lanes), (1, lanes)))
    task, over, lane, k = counter("t", workers), counter("u", sums), counter("l", lanes), counter("k", times)
    factor, total = register("x", dtypes.float32, (lane,)), register("acc", dtypes.float32, (over, lane))
    step = UOp(o.MULACC, dtypes.float32, (total, factor, factor))
    where = add(multiply(task, lanes), lane)
    body = [For(lane, LANE, [Assign(factor, load(given, lane))]),
            For(over, TILE, [For(lane, LANE, [
                Assign(total, const(0.0, dtypes.float32)), For(k, LOOP, [Assign(total, step)]),
                Store(out, where, total)])])]
    return Kernel("peak", [out, given], [Phase([For(task, TASK, body)])], (0,))


def measured_peak(workers: int) -> float:
    """Float32 operations per second of this many workers, a multiply-add being two."""
    target = Target.of(host_description())
    times = 20_000 if SHORT else 200_000            # about a millisecond: short enough to run undisturbed once
    out, given = aligned(4 * workers * target.lanes(4)), aligned(4 * target.lanes(4))
    given.view(np.float32)[:] = 0.5
    run = launcher(peak_kernel(target, workers, times), [out, given])
    best = min(timed(run) for _ in range(2 if SHORT else 300))
    return workers * 2 * times * target.lanes(4) * (target.vector_registers - 4) / best


# -- measuring -----------------------------------------------------------------------------------------------
def timed(run: Call) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def best_times(runs: dict[str, Call]) -> dict[str, float]:
    """The best time of each, all taking turns; a slow one takes fewer."""
    best = {name: timed(run) for name, run in runs.items()}
    spent = dict.fromkeys(runs, 0.0)
    for _ in range(1 if SHORT else ROUNDS):
        for name, run in runs.items():
            for _ in range(1 if best[name] > 0.01 else 5):
                if spent[name] <= PATIENCE:
                    seconds = timed(run)
                    spent[name] += seconds
                    best[name] = min(best[name], seconds)
    return best


def measured_steps(size: int, taken: Sequence[Step]) -> dict[str, float]:
    """Floating-point operations per second of each step, for square matrices; every answer is checked first."""
    rng = np.random.default_rng(0)
    a, b, out = (aligned(4 * size * size).view(np.float32) for _ in range(3))
    a[:], b[:] = rng.standard_normal(size * size), rng.standard_normal(size * size)
    wanted = a.reshape(size, size).astype(np.float64) @ b.reshape(size, size)
    runs: dict[str, Call] = {}
    for step in taken:
        out[:] = np.nan
        runs[step.name] = launcher(step.kernel, [out, a, b])
        runs[step.name]()
        worst = np.abs(out.reshape(size, size) - wanted).max()
        assert worst < 1e-5 * size, f"{step.name} is wrong by {worst}"
    return {name: 2 * size ** 3 / seconds for name, seconds in best_times(runs).items()}


def torch_rate(size: int, threads: int) -> float | None:
    """PyTorch's rate on the same product, or None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    a, b = torch.rand(size, size), torch.rand(size, size)
    out = torch.empty(size, size)
    seconds = best_times({"torch": lambda: torch.mm(a, b, out=out)})["torch"]
    torch.set_num_threads(before)
    return 2 * size ** 3 / seconds


# -- writing it down -----------------------------------------------------------------------------------------
def figures() -> tuple[str, str]:
    """The measured part of the page, and its plot."""
    size, sizes = (96, (48, 96)) if SHORT else (SIZE, SIZES)
    workers = worker_pool().threads
    machine, load_before = describe(workers), busy()
    with Context(THREADS=1):
        one = measured_peak(1)
    every = measured_peak(workers)
    target = Target.of(host_description())
    made = steps(size, size, size, target)
    rates = measured_steps(size, made)
    lines = [f"Measured on {machine['date']}: {machine['processor'].split(' (')[0]}, {workers} cores, "
             f"glassgrad {machine['glassgrad commit']}, load before {load_before:.1f}. Peak: {one / 1e9:.0f} GFLOPS on "
             f"one core, {every / 1e9:.0f} on all." + crowded(load_before, workers), "",
             f"| step | moves, for {size} x {size} | cores | GFLOPS | of the peak | times the naive |",
             "|---|---|---|---|---|---|"]
    for step in made:
        rate, cores = rates[step.name], workers if step.name == "parallel" else 1
        share = rate / (every if step.name == "parallel" else one)
        lines.append(f"| {step.name} | {step.moves} | {cores} | {rate / 1e9:.3g} | {share:.1%} | "
                     f"{rate / rates['naive']:,.0f} |")
    shown = ("vectorized", "packed", "parallel")
    by_size = {n: measured_steps(n, [s for s in steps(n, n, n, target) if s.name in shown]) for n in sizes}
    tiles = measured_steps(size, other_tiles(size, size, size, target))
    for cores, peak in ((1, one), (workers, every)):      # last: its threads keep spinning
        rate = torch_rate(size, cores)
        if rate is not None:
            lines.append(f"| PyTorch {machine['PyTorch']} | its own library | {cores} | {rate / 1e9:.3g} | "
                         f"{rate / peak:.1%} | {rate / rates['naive']:,.0f} |")
    lines += ["", "The same three steps at other sizes, in GFLOPS:", "",
              f"| step | {' | '.join(map(str, sizes))} |", "|---" * (len(sizes) + 1) + "|"]
    lines += [f"| {name} | " + " | ".join(f"{by_size[n][name] / 1e9:.0f}" for n in sizes) + " |" for name in shown]
    lines += ["", f"The packed step with other register tiles (rows x columns), {size} x {size}, one core:", "",
              f"| tile | {' | '.join(tiles)} |", "|---" * (len(tiles) + 1) + "|",
              "| GFLOPS | " + " | ".join(f"{rate / 1e9:.3g}" for rate in tiles.values()) + " |"]
    plot = bars({n: r / 1e9 for n, r in rates.items()}, f"GFLOPS, {size} x {size}, {machine['date']}",
                {"peak of one core": one / 1e9, f"peak of {workers}": every / 1e9})
    return "\n".join(lines) + "\n", plot


def crowded(load: float, workers: int) -> str:
    """A warning where other programs had the cores.

    >>> crowded(0.3, 2), crowded(9.0, 2)
    ('', ' **Other programs were running: all rates are too low, and not comparable with each other.**')
    """
    if load <= workers / 2:
        return ""
    return " **Other programs were running: all rates are too low, and not comparable with each other.**"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the steps of docs/performance.md.")
    parser.add_argument("--write", action="store_true", help="put the figures into docs/performance.md and docs/img")
    write = parser.parse_args().write
    size = 96 if SHORT else SIZE
    for step in steps(size, size, size, Target.of(host_description())):
        print(f"--- {step.name}: {step.moves}\n{show(step.kernel)}\n")
    text, plot = figures()
    print(text)
    if write:
        page = PAGE.read_text()
        PAGE.write_text(page[:page.index(BEGIN) + len(BEGIN)] + text + page[page.index(END):])
        PLOT.write_text(plot)
        print(f"written: {PAGE.name}, {PLOT.name}")


if __name__ == "__main__":
    main()
