"""Measure how long the workers take to meet between two kernels: `python -m benchmarks.barrier`. Out: JSON, in seconds.

The command list has as many tasks per command as there are workers. A task waits until all the tasks of its command
have begun, so every worker takes part in every command, and nothing else is done: the time of a command is one barrier,
from the last task of one kernel to the first of the next on every worker. The result is the median over lists; workers
spin meanwhile, as they do between the kernels of a step.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import time

__all__ = ["measure_barrier"]

COMMANDS, LISTS = 2_000, 25

# args: a count of all arrivals so far, and how many tasks a command has
MEET = """
define void @meet(ptr %args, i64 %task, ptr %scratch) nounwind {
entry:
  %count = load ptr, ptr %args
  %second = getelementptr ptr, ptr %args, i64 1
  %cell = load ptr, ptr %second
  %tasks = load i64, ptr %cell
  %before = atomicrmw add ptr %count, i64 1 seq_cst
  %round = udiv i64 %before, %tasks
  %next = add i64 %round, 1
  %all = mul i64 %next, %tasks
  br label %loop
loop:
  %here = load atomic i64, ptr %count acquire, align 8
  %met = icmp uge i64 %here, %all
  br i1 %met, label %out, label %loop
out:
  ret void
}
"""


def measure_barrier(commands: int = COMMANDS, lists: int = LISTS) -> dict[str, float]:
    """Seconds per barrier, and among how many workers."""
    from glassgrad.runtime.cpu import llvm_compiler as llvm
    from glassgrad.runtime.cpu.elf_loader import Image
    from glassgrad.runtime.cpu.worker_pool import Command, worker_pool
    pool = worker_pool()
    if pool.threads == 1:
        return {"workers": 1, "seconds": 0.0}       # one worker has none to wait for
    image = Image(llvm.compile_ir(MEET))
    count, tasks = ctypes.c_int64(0), ctypes.c_int64(pool.threads)
    arguments = (ctypes.c_void_p * 2)(ctypes.addressof(count), ctypes.addressof(tasks))
    launch = Command(image.address("meet"), ctypes.addressof(arguments), pool.threads, 0)
    work = (Command * commands)(*[launch] * commands)
    times = []
    for _ in range(lists + 1):
        began = time.perf_counter()
        pool.run(ctypes.addressof(work), commands)
        times.append((time.perf_counter() - began) / commands)
    assert count.value == (lists + 1) * commands * pool.threads, "every task ran once"
    return {"workers": pool.threads, "seconds": statistics.median(times[1:])}


if __name__ == "__main__":
    print(json.dumps(measure_barrier()))
