"""`./dev fuzz`: random programs against a reference, until stopped. In: a kind, a first seed. Out: failing programs.

    ./dev fuzz methods                 single methods in corners (empty, NaN, limits of dtypes), against PyTorch
    ./dev fuzz arguments               calls with one wrong argument: a clear error, or PyTorch's result
    ./dev fuzz writes                  views and writes in place, against PyTorch
    ./dev fuzz jit                     jitted functions that write and take views, against the same without the jit
    ./dev fuzz held                    loops that hold lazy values from step to step, against PyTorch
    ./dev fuzz programs                longer programs with their gradients, against PyTorch
    ./dev fuzz training                models, optimizers and schedules, trained for five steps, against PyTorch
    ./dev fuzz loops                   training loops with the jit: own steps, evaluation, averages, against PyTorch
    ./dev fuzz sizes                   programs called with other sizes each time, against the NumPy interpreter
    ./dev fuzz lengths                 products, attention, convolutions of other lengths each time, against PyTorch
    ./dev fuzz graphs                  graphs of nodes on CPU, CLANG and PYTHON, against the NumPy interpreter
    ./dev fuzz graphs --device HIP_SHIM      graphs, lengths or sizes on one device: kernels for GPUs run on the CPU
                                       (shim_device.py); ARM64_SHIM: kernels for ARM64 run in an emulator
                                       (arm64_device.py); HOPPER_LOOPS: loops for others, interpreted (loop_device.py)
    ./dev fuzz writes --seed 7 --count 1000
    GUARD_PAGES=2 ./dev fuzz methods   the same, and a kernel that touches foreign memory ends the process at once

A failure prints its seed and the smallest program found; the command goes on, and ends with status 1. Programs run in
another process: one that ends it (PyTorch's convolutions of float16 do, on some processors) is a failure too.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import graph_fuzzer
import held_value_fuzzer
import jit_fuzzer
import length_fuzzer
import loop_fuzzer
import method_fuzzer
import size_fuzzer
import tensor_fuzzer
import torch
import training_fuzzer
import write_fuzzer
import wrong_argument_fuzzer

from glassgrad import Device

DEVICES = ["CPU", "CLANG", "PYTHON"]


def check_graph(seed: int) -> str:
    """Nothing when the graphs of this seed are right on every device; else the reproduction."""
    try:
        graph_fuzzer.check_seed(seed, tuple(DEVICES))
    except AssertionError as wrong:
        return str(wrong)
    return ""


def check_lengths(seed: int) -> str:
    return length_fuzzer.check(seed, Device.DEFAULT)


KINDS: dict[str, Callable[[int], str]] = {"methods": method_fuzzer.check, "writes": write_fuzzer.check,
                                          "programs": tensor_fuzzer.check, "sizes": size_fuzzer.check,
                                          "lengths": check_lengths, "graphs": check_graph, "jit": jit_fuzzer.check,
                                          "training": training_fuzzer.check, "loops": loop_fuzzer.check,
                                          "held": held_value_fuzzer.check, "arguments": wrong_argument_fuzzer.check}


def watch(command: list[str], first: int, count: int | None) -> int:
    """Run a command over seeds in other processes: a new one after each program that ends its process. The command is
    given a file for a letter for each program done, r for right or w for wrong; return how many were wrong in all."""
    failures = done = 0
    with tempfile.TemporaryDirectory() as folder:
        progress = Path(folder) / "progress"
        while count is None or done < count:
            progress.write_text("")
            left = [] if count is None else ["--count", str(count - done)]
            try:
                status = subprocess.run([*command, "--seed", str(first + done), *left, "--progress", str(progress)],
                                        check=False).returncode
            except KeyboardInterrupt:
                status = 0
            letters = progress.read_text()
            done, failures = done + len(letters), failures + letters.count("w")
            if status in (0, 1):
                break
            print(f"\nseed {first + done}: ended its process, status {status}; what ran then is above\n", flush=True)
            done, failures = done + 1, failures + 1
    print(f"{done} programs, {failures} wrong")
    return failures


def run(check: Callable[[int], str], first: int, count: int | None, progress: Path) -> int:
    """Check the programs of these seeds in this process, and write how far it is; return how many were wrong."""
    faulthandler.enable()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    failures = done = 0
    with progress.open("w") as letters:
        while count is None or done < count:
            report = check(first + done)
            done += 1
            failures += bool(report)
            print("w" if report else "r", end="", file=letters, flush=True)
            if report:
                print(f"\n{report}\n", flush=True)
            if done % 100 == 0:
                print(f"{done} programs, {failures} wrong", flush=True)
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev fuzz", description="Random programs against a reference.")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="the first seed (default: any)")
    parser.add_argument("--count", type=int, default=None, help="how many programs (default: until Ctrl-C)")
    parser.add_argument("--device", help="run graphs, lengths or sizes on this device alone")
    parser.add_argument("--progress", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.progress is None:
        print(f"{options.kind} from seed {options.seed}", flush=True)
        device = [] if options.device is None else ["--device", options.device]
        return int(watch([sys.executable, __file__, options.kind, *device], options.seed, options.count) > 0)
    if options.device:
        DEVICES[:] = [options.device]
        if options.device.endswith("_SHIM"):
            import shim_devices  # noqa: F401
        elif options.device.endswith("_LOOPS"):
            import loop_device
            loop_device.register()
        Device.DEFAULT = options.device
    try:
        return int(run(KINDS[options.kind], options.seed, options.count, options.progress) > 0)
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
