"""Small kernels, as LLVM IR, that count what a worker pool runs, and lists of launches: for the tests of the pool."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence

from glassgrad.runtime.cpu.worker_pool import Command


class CommandList:
    """A command list and the argument arrays it points to. `arguments[i][j] = address` redirects a launch."""

    def __init__(self, launches: Sequence[tuple[int, Sequence[int], int, bool]]):
        self.arguments = [(ctypes.c_void_p * max(len(args), 1))(*args) for _, args, _, _ in launches]
        self.commands = (Command * len(launches))(*[
            Command(function, ctypes.addressof(array), tasks, int(serial))
            for (function, _, tasks, serial), array in zip(launches, self.arguments)])
        self.address = ctypes.addressof(self.commands)

    def __len__(self) -> int:
        return len(self.commands)


DELAY = """typedef int64_t i64;
static void delay(void) {          // mostly nothing; else a few pauses, many, or a call that gives the core away
  unsigned low, high;
  __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
  const unsigned long chance = (low ^ (unsigned long)&low) * 0x9E3779B97F4A7C15ul >> 50;
  if (chance < 100) { long yield = 24; __asm__ volatile("syscall" : "+a"(yield) :: "rcx", "r11", "memory"); }
  else if (chance < 2000) for (int i = 0; i < (chance < 110 ? 3000 : 40); i++) __builtin_ia32_pause();
}
"""


def with_delays(text: str) -> str:
    """The pool's C text with a random delay before every atomic operation (Linux on x86-64)."""
    return re.sub(r"static i64 (?:load|store|set|add|exchange|exchange_if)\([^)]*\) \{", r"\g<0> delay();",
                  text.replace("typedef int64_t i64;\n", DELAY))


KERNELS = """
; out[task] = in[(7 task + 3) mod n] + 1, where in is what the command before wrote
define void @follow(ptr %args, i64 %task, ptr %scratch) nounwind {
  %out.at = getelementptr ptr, ptr %args, i64 1
  %n.at = getelementptr ptr, ptr %args, i64 2
  %in = load ptr, ptr %args
  %out = load ptr, ptr %out.at
  %n.cell = load ptr, ptr %n.at
  %n = load i64, ptr %n.cell
  %a = mul i64 %task, 7
  %b = add i64 %a, 3
  %c = urem i64 %b, %n
  %p = getelementptr i64, ptr %in, i64 %c
  %v = load i64, ptr %p
  %w = add i64 %v, 1
  %q = getelementptr i64, ptr %out, i64 %task
  store i64 %w, ptr %q
  ret void
}
; counts[task] += 1, not atomically: two runs of one task at once would lose a count
define void @count(ptr %args, i64 %task, ptr %scratch) nounwind {
  %counts = load ptr, ptr %args
  %p = getelementptr i64, ptr %counts, i64 %task
  %v = load i64, ptr %p
  %w = add i64 %v, 1
  store i64 %w, ptr %p
  ret void
}
; seen[task] = scratch; scratch[0] = task, and after some work scratch[0] must still be task
define void @arena(ptr %args, i64 %task, ptr %scratch) nounwind {
entry:
  %seen = load ptr, ptr %args
  %p = getelementptr i64, ptr %seen, i64 %task
  store volatile i64 %task, ptr %scratch
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  %j = add i64 %i, 1
  %now = load volatile i64, ptr %scratch
  %more = icmp ult i64 %j, 200
  br i1 %more, label %loop, label %out
out:
  %ok = icmp eq i64 %now, %task
  %address = ptrtoint ptr %scratch to i64
  %result = select i1 %ok, i64 %address, i64 0
  store i64 %result, ptr %p
  ret void
}
; meets the other tasks: waits until all have arrived, or gives up after a long while; met[0] counts arrivals,
; met[1] the tasks that saw everybody, met[2] is how many there are, met[3 + task] becomes the task's arena
define void @meet(ptr %args, i64 %task, ptr %scratch) nounwind {
entry:
  %met = load ptr, ptr %args
  %happy = getelementptr i64, ptr %met, i64 1
  %all.at = getelementptr i64, ptr %met, i64 2
  %all = load i64, ptr %all.at
  %slot = add i64 %task, 3
  %arena.at = getelementptr i64, ptr %met, i64 %slot
  store ptr %scratch, ptr %arena.at
  atomicrmw add ptr %met, i64 1 seq_cst
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %wait ]
  %here = load atomic i64, ptr %met seq_cst, align 8
  %everybody = icmp sge i64 %here, %all
  br i1 %everybody, label %good, label %wait
wait:
  %j = add i64 %i, 1
  %patient = icmp ult i64 %j, 3000000000
  br i1 %patient, label %loop, label %out
good:
  atomicrmw add ptr %happy, i64 1 seq_cst
  br label %out
out:
  ret void
}
; spins for as many rounds as the cell says
define void @busy(ptr %args, i64 %task, ptr %scratch) nounwind {
entry:
  %cell = load ptr, ptr %args
  %rounds = load i64, ptr %cell
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  store volatile i64 %i, ptr %scratch
  %j = add i64 %i, 1
  %more = icmp ult i64 %j, %rounds
  br i1 %more, label %loop, label %out
out:
  ret void
}
"""
