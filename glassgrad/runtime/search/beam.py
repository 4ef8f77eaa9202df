"""Search for faster kernels, by measurement (beam search). In: kernels' graphs. Out: `Tuned` entries, stored by
runtime/search/tuning_results.py.

The search starts at the recipe's moves (compiler/optimize/decisions.py), measures their neighbours, keeps the BEAM best
and repeats, until no neighbour is better or BEAM_SECONDS are over. Candidates run in another process
(runtime/search/beam_worker.py) on memory of their own. A candidate that hangs, crashes or takes too much memory is
killed and the search goes on, also on a GPU, whose context ends with the process. A candidate counts only if its result
equals the recipe's bit by bit, and wins only if it is clearly faster in interleaved runs.
"""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from glassgrad.base.errors import Bug
from glassgrad.base.settings import settings
from glassgrad.base.source_lines import PACKAGE
from glassgrad.compiler.graph import UOp, ops as o, toposort, upper_bound
from glassgrad.compiler.graph.op_arguments import Measure
from glassgrad.compiler.optimize.decisions import Decisions, Refused
from glassgrad.compiler.pipeline import kernel_of
from glassgrad.compiler.render.launch_info import KernelFacts
from glassgrad.runtime.search.tuning_results import Tuned, digest_of, keep, machine

Moves = tuple[str, ...]

START_SECONDS = 60.0         # time limit for a worker to start and run the recipe's kernel
KILL_SECONDS = 20.0          # time limit for a killed process to end; a driver may take seconds
WORTH_NS = 2_000             # faster kernels are not worth a search
WINNING_TIME = 0.97          # a winner takes at most this fraction of the recipe's median time
WINNING_SHARE = 0.75         # and is faster in at least this fraction of the pairs
FINAL_PAIRS, LEAST_PAIRS = 31, 9
FINAL_SECONDS = 1.0          # reserved for the final comparison, besides its runs
MEMORY_ROOM = 2 << 30        # bytes that a worker may allocate beyond the kernel's buffers


worker_command = [sys.executable, "-m", "glassgrad.runtime.search.beam_worker"]


class Lost(Exception):
    """Raised if the worker died or did not reply in time; it has been killed."""


class Worker:
    """The process that runs candidates. It is restarted after a candidate that killed it."""

    def __init__(self, command: Sequence[str] = ()):
        self._command = list(command or worker_command)
        self._process: subprocess.Popen[bytes] | None = None
        self.alive = False           # whether it was started and not lost since

    def ask(self, order: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send an order and return the worker's reply; raises `Lost` if there is none in time."""
        process = self._process if self.alive and self._process is not None else self._start()
        replies: queue.Queue[dict[str, Any] | None] = queue.Queue()
        # in a thread: a write to a process that does not read would block beyond the time limit
        threading.Thread(target=_converse, args=(process, order, replies), daemon=True).start()
        try:
            reply = replies.get(timeout=max(seconds, 0.01))
        except queue.Empty:
            reply = None
        if reply is None:
            status = process.poll()
            self.close()
            raise Lost(f"no answer in {seconds:.1f} s" if status is None else f"the process ended with {status}")
        return reply

    def _start(self) -> subprocess.Popen[bytes]:
        above = os.path.dirname(os.path.dirname(PACKAGE))
        kept = dict(os.environ)
        kept.update(PYTHONPATH=os.pathsep.join(filter(None, [above, os.environ.get("PYTHONPATH")])),
                    THREADS=str(machine()["threads"]), CPU_FEATURES=settings.CPU_FEATURES,
                    MATRIX_UNIT=str(settings.MATRIX_UNIT), DEV="CPU", BEAM="0", DEBUG="0", CHECK="0", VIZ="0",
                    MEMORY_MB="0", GUARD_PAGES="0")
        process = self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=kept,
            start_new_session=True)       # Ctrl-C does not reach the worker: `close` ends it
        self.alive = True
        return process

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self.alive = False
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            try:
                process.wait(KILL_SECONDS)
            except subprocess.TimeoutExpired:
                print(f"glassgrad: process {process.pid} of a search has not ended: its GPU does not answer",
                      file=sys.stderr)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    try:
                        pipe.close()
                    except OSError:
                        pass         # unsent data is lost


def _converse(process: subprocess.Popen[bytes], order: Any, replies: queue.Queue[dict[str, Any] | None]) -> None:
    """Send an order and put the reply into the queue: None if the process has ended."""
    reply = None
    try:
        assert process.stdin is not None and process.stdout is not None
        pickle.dump(order, process.stdin)
        process.stdin.flush()
        reply = pickle.load(process.stdout)
    except (OSError, ValueError, EOFError, pickle.UnpicklingError):
        pass                         # the process has ended, or its pipe was closed
    replies.put(reply)


class Search:
    """The search for one kernel's moves."""

    def __init__(self, ast: UOp, device: Any, worker: Worker):
        self.ast, self.device, self.worker = ast, device, worker
        self.width, self.seconds = settings.BEAM, settings.BEAM_SECONDS
        self.plain = kernel_of(ast, device.target, plain=True)
        self.sources: set[str] = set()           # sources tried: different moves may give the same kernel
        self.tried = self.killed = self.wrong = self.broken = 0
        self.deadline = 0.0
        self._decided: dict[Moves, Decisions] = {}
        rows = [upper_bound(n.src[0].shape[0]) for n in toposort([ast]) if n.op in (o.GATHER, o.SCATTER)]
        self.params = [_described(p, max([1, *rows]) if rows else 100) for p in self.plain.params]

    # -- candidates ------------------------------------------------------------------------------------------
    def built(self, moves: Moves | None) -> tuple[Moves, str, KernelFacts]:
        """Build a candidate: (moves applied, source, facts for `load_program`); raises `Refused`."""
        facts, built = self.device.write(self.ast, moves, say=False)
        applied = tuple(built.kernel.moves)
        if built.decisions is not None:
            self._decided[applied] = built.decisions
        return applied, built.source, facts

    def begin(self) -> Moves:
        """Send the recipe's kernel, the baseline of all comparisons, to the worker; return the recipe's moves."""
        self.recipe, source, facts = self.built(None)
        self.sources.add(source)
        own = sum(p.size * p.dtype.itemsize for p in self.plain.params if not p.arg.scalar) + sum(facts.info.shared)
        free = free_bytes() if self.device.memory.on_host else None         # a GPU's allocator reports this itself
        if free is not None and own > free // 2:
            raise Lost(f"a copy of its memory takes {own >> 20:,} MiB, and {free >> 20:,} MiB are free")
        self.first = {"source": source, "facts": facts, "do": "recipe", "device": self.device.searched_on,
                      "params": self.params, "written": list(self.plain.written),
                      "memory": 2 * own + machine()["threads"] * (64 << 20) + MEMORY_ROOM}
        self.recipe_ns = 1 << 62                 # minimum over all runs
        self.measure_recipe()
        return self.recipe

    def measure_recipe(self, seconds: float = START_SECONDS) -> None:
        reply = self.worker.ask(self.first, seconds)
        if "error" in reply:
            raise Lost(reply["error"])
        self.recipe_ns = min(self.recipe_ns, reply["nanoseconds"])

    def pairs_of(self, moves: Moves, final: bool = False) -> list[tuple[int, int]]:
        """Measured (recipe's, candidate's) nanoseconds; empty for a candidate that is ruled out."""
        left = self.deadline - time.monotonic()
        try:
            _, source, facts = self.built(moves)
        except Refused:
            return []                            # these moves do not fit together: a decision ruled out a later one
        except Bug:
            self.broken += 1                     # a compiler bug; the program being tuned still runs
            return []
        if left <= 0 or (source in self.sources and not final):
            return []
        self.sources.add(source)
        self.tried += not final
        patience = left if final else min(left, max(2.0, self.seconds / 4))
        wanted = FINAL_PAIRS if final else max(2, min(7, int(self.seconds * 1e9 / 100 / max(2 * self.recipe_ns, 1))))
        order = {"source": source, "facts": facts, "do": "compare", "pairs": wanted, "final": final,
                 "least": 0 if final else min(2, wanted), "seconds": 0.9 * patience}
        try:
            if not self.worker.alive:
                self.measure_recipe(max(left, 1.0))
            reply = self.worker.ask(order, patience + (0.2 * self.seconds if final else 0.0))
        except Lost:
            self.killed += 1
            return []
        self.wrong += "wrong" in reply
        pairs = [(a, b) for a, b in reply.get("pairs", [])]
        self.recipe_ns = min([self.recipe_ns, *[a for a, _ in pairs]])
        return pairs

    # -- the search ------------------------------------------------------------------------------------------
    def climb(self, bar: Any) -> list[Moves]:
        """Search until no neighbour improves the beam or time is up; return the moves in the beam except the recipe's,
        best first."""
        beam = [(self.recipe_ns, self.recipe)]
        final_seconds = FINAL_SECONDS + 2.5 * FINAL_PAIRS * 2 * self.recipe_ns / 1e9
        stop = self.deadline - min(0.4 * self.seconds, final_seconds)
        while time.monotonic() < stop:
            fresh: list[tuple[int, Moves]] = []
            for _, moves in beam:
                for near in self._decided[moves].neighbours():
                    if time.monotonic() >= stop:
                        break
                    pairs = self.pairs_of(tuple(near))
                    if pairs:
                        fresh.append((min(b for _, b in pairs), tuple(near)))
                    best = self.recipe_ns / min([ns for ns, _ in (*beam, *fresh)])
                    bar.set_postfix_str(f"{self.plain.name}: {self.tried} tried, best {best:.2f}x")
            beam = [(self.recipe_ns if moves == self.recipe else ns, moves) for ns, moves in beam]
            kept = sorted([*beam, *fresh])[:self.width]
            if {moves for _, moves in kept} == {moves for _, moves in beam}:
                self.complete = time.monotonic() < stop
                break
            beam = kept
        return [moves for _, moves in beam if moves != self.recipe]

    def winner(self, beam: Sequence[Moves]) -> tuple[Moves, float, float]:
        """Return (moves, recipe's us, their us) of the first in the beam that is clearly faster; without moves if none
        is."""
        for moves in beam:
            pairs = self.pairs_of(moves, final=True)
            if len(pairs) >= LEAST_PAIRS:
                ours, theirs = median(a for a, _ in pairs), median(b for _, b in pairs)
                won = sum(b < a for a, b in pairs)
                if theirs <= WINNING_TIME * ours and won >= WINNING_SHARE * len(pairs):
                    return moves, ours / 1000, theirs / 1000
        return (), self.recipe_ns / 1000, 0.0

    def run(self, bar: Any) -> Tuned:
        """Do the whole search; raises `Lost` if not even the recipe's kernel can be measured."""
        self.begin()
        self.deadline = time.monotonic() + self.seconds
        self.complete = self.recipe_ns < WORTH_NS
        beam = [] if self.complete else self.climb(bar)
        moves, recipe_us, tuned_us = self.winner(beam)
        return Tuned(self.plain.name, digest_of(self.ast), self.device.compiler, self.width, self.seconds,
                     self.complete, self.tried, self.recipe, round(recipe_us, 3), moves, round(tuned_us, 3))


def free_bytes() -> int | None:
    """Return the memory available without swapping; None if the system does not report it."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return None


def _described(param: UOp, high: int) -> dict[str, Any]:
    """Describe a param to the worker: its dtype, its size, and the range of its integers (for a variable, one value
    within its bounds)."""
    if isinstance(param.arg, Measure):
        low, high = param.arg.symbol.low, param.arg.symbol.high
        low = high = low + 2 * (high - low) // 3
    else:
        low, high = 0, (min(high, 100) if param.dtype.itemsize == 1 else high) - 1
    return {"dtype": param.dtype.name, "size": 1 if param.arg.scalar else param.size, "low": low, "high": high,
            "scalar": bool(param.arg.scalar)}


def search(kernels: Sequence[UOp], device: Any) -> None:
    """Search moves for each of these kernels and store what is found; show a progress bar in a terminal. The worker
    opens `device` again, under the name `CompiledKernels.searched_on`."""
    from tqdm import tqdm  # only a search needs it
    worker = Worker()
    try:
        with tqdm(kernels, desc="BEAM", unit="kernel", disable=None) as bar:
            for ast in bar:
                one = Search(ast, device, worker)
                start = time.monotonic()
                try:
                    found = one.run(bar)
                except Lost as why:
                    tqdm.write(f"glassgrad: BEAM cannot measure {one.plain.name}, the recipe is used: {why}",
                               file=sys.stderr)
                    continue
                keep(found)
                if settings.DEBUG >= 1:
                    out = "".join(f", {count} {what}" for what, count in (
                        ("killed", one.killed), ("wrong", one.wrong), ("broken", one.broken)) if count)
                    tqdm.write(f"beam: {found.kernel}: {found.speedup:.2f}x after {found.tried} candidates{out}, "
                               f"{time.monotonic() - start:.1f} s: {', '.join(found.moves) or 'the recipe'}")
    finally:
        worker.close()
