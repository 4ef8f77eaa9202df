"""Measure candidates in a separate process. In: pickled orders on standard input. Out: a pickled reply for each.

A candidate of a search may hang, crash or exhaust memory; here it ends only this process. Does not know graphs or
moves: it gets source text, compiles it, runs it on generated inputs, compares a digest of the results with that of the
recipe's kernel, and reports times. The runs of the two kernels are interleaved, so that a machine that slows down slows
both. runtime/search/beam.py starts `python -m glassgrad.runtime.search.beam_worker`.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import pickle
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from glassgrad.base.settings import settings
from glassgrad.compiler.check.graph_interpreter import from_storage, to_storage
from glassgrad.compiler.graph.dtype import DType, dtypes
from glassgrad.runtime.devices import Device
from glassgrad.runtime.host_memory import HostMemory
from glassgrad.runtime.memory_pool import MemoryBlock

PATTERN = 65521             # inputs repeat after this many elements: a prime, so that rows differ
SAMPLE_NS = 100_000         # shorter kernels are run several times for one measurement
SLOW_NS = 100_000_000       # the recipe's kernel is sampled once if it takes longer
MOST_RUNS = 64              # most runs per measurement
HOPELESS = 3.0              # a candidate this many times slower than the recipe is measured only once


@dataclass
class LoadedKernel:
    """A plan of one compiled kernel, and the private memory that was allocated for it."""
    plan: Any
    own: list[MemoryBlock]


class Bench:
    """One kernel's memory and the recipe's program, against which candidates are measured."""

    def __init__(self, order: dict[str, Any]):
        self.params, self.written = order["params"], order["written"]
        self.device = Device[order["device"]]
        self.memory, self.cells = self.device.memory, HostMemory()           # scalars are in host memory
        if self.memory.on_host:
            limit_memory(order["memory"])
        self.blocks = [self.memory_of(param).allocate(_bytes(param)) for param in self.params]
        for slot in range(len(self.params)):
            self.fill(slot)
        self.recipe = self.load(order)
        self.runs = 1
        self.digest = self.answer(self.recipe)
        first = self.sample(self.recipe)
        self.runs = max(1, min(MOST_RUNS, SAMPLE_NS // max(first, 1)))
        again = [self.sample(self.recipe) for _ in range(5 if first < SLOW_NS else 0)]
        self.nanoseconds = min([first, *again])

    def memory_of(self, param: dict[str, Any]) -> Any:
        """Return the memory that an argument is allocated in."""
        return self.cells if param["scalar"] else self.memory

    def load(self, order: dict[str, Any]) -> LoadedKernel:
        """Compile a kernel and bind it to the arguments' memory and to the extra memory that it needs."""
        program = self.device.load_program(order["facts"], self.device.compile_source(order["source"]))
        own = [self.memory.allocate(nbytes) for nbytes in program.info.shared]
        addresses = [block.address for block in (*self.blocks, *own)]
        plan = self.device.plan([program], [tuple(range(len(addresses)))])
        plan.bind(addresses)
        return LoadedKernel(plan, own)

    def fill(self, slot: int) -> None:
        """Fill an argument with plausible values: normal floats, or integers within the param's range."""
        import numpy as np
        block, param = self.blocks[slot], self.params[slot]
        dtype: DType = getattr(dtypes, param["dtype"])
        rng = np.random.default_rng(slot)
        count = min(param["size"], PATTERN)
        if dtype.is_float:
            values = to_storage(rng.standard_normal(count), dtype)
        else:
            low, high = (0, 1) if dtype is dtypes.bool else (param["low"], param["high"])
            values = to_storage(rng.integers(low, high + 1, count), dtype)
        raw, nbytes = values.tobytes(), int(param["size"]) * dtype.itemsize
        for at in range(0, nbytes, len(raw)):
            part = raw[:nbytes - at]
            if param["scalar"]:                               # in host memory on every device
                ctypes.memmove(block.address, part, len(part))
            else:
                self.memory.copy_in(block.address + at, part)

    def answer(self, kernel: LoadedKernel) -> str:
        """Run a kernel on freshly filled memory; return a digest of its results, with all NaNs equal."""
        import numpy as np
        for slot in self.written:
            self.fill(slot)
        kernel.plan.run()
        digest = hashlib.sha256()
        for slot in self.written:
            dtype: DType = getattr(dtypes, self.params[slot]["dtype"])
            nbytes, step = int(self.params[slot]["size"]) * dtype.itemsize, PATTERN * dtype.itemsize
            for at in range(0, nbytes, step):
                raw = self.memory.copy_out(self.blocks[slot].address + at, min(step, nbytes - at))
                values = from_storage(bytes(raw), dtype)
                if dtype.is_float:
                    values = np.where(np.isnan(values), values.dtype.type("nan"), values)
                digest.update(values.tobytes())
        return digest.hexdigest()

    def sample(self, kernel: LoadedKernel) -> int:
        """Return nanoseconds per run; with one thread it is CPU time, which other processes do not affect."""
        if not self.memory.on_host:
            return int(self.device.time(kernel.plan.launches[0] * self.runs)) // self.runs
        clock = time.thread_time_ns if settings.THREADS == 1 else time.perf_counter_ns
        start = clock()
        for _ in range(self.runs):
            kernel.plan.run()
        return (clock() - start) // self.runs

    def compare(self, order: dict[str, Any]) -> dict[str, Any]:
        """Check a candidate's results, and time it interleaved with the recipe's kernel."""
        candidate = self.load(order)
        try:
            if self.answer(candidate) != self.digest:
                return {"wrong": True}
            self.sample(candidate)                        # warm up the caches
            pairs: list[tuple[int, int]] = []
            stop = time.perf_counter() + order["seconds"]
            while len(pairs) < order["pairs"] and (len(pairs) < order["least"] or time.perf_counter() < stop):
                if len(pairs) % 2:                       # alternate which one runs first
                    after = self.sample(candidate)
                    pairs.append((self.sample(self.recipe), after))
                else:
                    pairs.append((self.sample(self.recipe), self.sample(candidate)))
                if len(pairs) == 1 and pairs[0][1] > HOPELESS * pairs[0][0] and not order["final"]:
                    break
            return {"pairs": pairs}                      # (the recipe's, the candidate's)
        finally:
            self.release(candidate)

    def release(self, kernel: LoadedKernel) -> None:
        """Release a kernel's private memory."""
        for block in kernel.own:
            self.memory.release(block)

    def close(self) -> None:
        """Release all memory."""
        self.release(self.recipe)
        for block, param in zip(self.blocks, self.params):
            self.memory_of(param).release(block)
        self.memory.empty_cache()


def _bytes(param: dict[str, Any]) -> int:
    return max(8, int(param["size"]) * int(getattr(dtypes, param["dtype"]).itemsize))


def devices_answer() -> bool:
    """Return whether open devices still work: after a fault, a GPU context is unusable."""
    try:
        for device in Device.opened.values():
            device.synchronize()
    except Exception:
        return False
    return True


def limit_memory(nbytes: int) -> None:
    """Limit this process to `nbytes` more than it has now (Linux only)."""
    if sys.platform != "linux":
        return
    import resource
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + nbytes, hard))


def leave_with_parent(parent: int) -> None:
    """Exit when the parent process is gone, even while a kernel hangs (runs in a thread)."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def main() -> None:
    """Answer orders until standard input ends."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())         # keep what libraries print out of the replies
    threading.Thread(target=leave_with_parent, args=(os.getppid(),), daemon=True).start()
    bench: Bench | None = None
    while True:
        try:
            order = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            if order["do"] == "recipe":
                if bench is not None:
                    bench.close()
                bench = Bench(order)
                reply: dict[str, Any] = {"nanoseconds": bench.nanoseconds}
            else:
                assert bench is not None
                reply = bench.compare(order)
        except Exception as wrong:                            # rules out this candidate only
            reply = {"error": f"{type(wrong).__name__}: {' '.join(str(wrong).split())[:300]}"}
            if not devices_answer():
                os._exit(1)                                   # a new process can run the next one
        pickle.dump(reply, replies)
        replies.flush()


if __name__ == "__main__":
    main()
