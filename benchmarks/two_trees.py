"""Compare two states of glassgrad: `python -m benchmarks.two_trees BEFORE AFTER`. In: two checkouts. Out: a table.

    git worktree add /tmp/before COMMIT
    python -m benchmarks.two_trees /tmp/before . --threads 8

Each checkout runs the workloads of `./dev bench` in processes of its own. The results are compared first. Then short
batches alternate, before and after, and a ratio is the median over the rounds of one batch against the next: above 1,
the second checkout is faster. With twice as many cores as threads, the next workload is compiled on the second half
while this one is timed; nothing else runs meanwhile.
"""

from __future__ import annotations

import argparse
import math
import os
import queue
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.frameworks import FRAMEWORKS, OURS
from benchmarks.measure import compare, read_digest
from benchmarks.peers import Peer, PeerFailure, environment
from benchmarks.workloads import TABLE, select

__all__ = ["Compared", "by_group", "main"]


@dataclass
class Compared:
    """One workload: seconds before and after, and before over after in each round; or what went wrong."""
    name: str
    before: float = 0.0
    after: float = 0.0
    ratios: tuple[float, ...] = ()
    problem: str = ""

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    def line(self) -> str:
        """A row of the table."""
        group = TABLE[self.name].group
        if self.problem:
            return f"| {self.name} | {group} | {self.problem} | | | |"
        return (f"| {self.name} | {group} | {self.before * 1e3:.4g} | {self.after * 1e3:.4g} | {self.ratio:.2f} | "
                f"{min(self.ratios):.2f} to {max(self.ratios):.2f} |")


def by_group(rows: Iterable[Compared]) -> dict[str, float]:
    """The geometric mean of the ratios of each group."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        if not row.problem:
            groups.setdefault(TABLE[row.name].group, []).append(math.log(row.ratio))
    return {group: math.exp(statistics.fmean(logs)) for group, logs in groups.items()}


class Lane:
    """Processes of both checkouts on some cores. `timing` is held by the lane that is timed."""

    def __init__(self, trees: list[Path], cores: list[int], folder: Path, timing: threading.Lock,
                 options: argparse.Namespace):
        self.cores, self.folder, self.timing, self.options = cores, folder, timing, options
        folder.mkdir()
        self.peers = [Peer(FRAMEWORKS[OURS], environment(folder / f"caches{i}", options.threads), folder / f"{i}.log",
                           tree) for i, tree in enumerate(trees)]

    def measure(self, name: str) -> Compared:
        """Compile the workload in both checkouts, compare the results, time it."""
        row, limit = Compared(name), self.options.limit
        try:
            for i, peer in enumerate(self.peers):
                peer.ask(limit, do="prepare", workload=name, results=str(self.folder / f"{i}.npz"))
        except PeerFailure as problem:
            row.problem = f"{('before', 'after')[i]}: {problem}"
            return row
        first, second = (read_digest(self.folder / f"{i}.npz") for i in range(2))
        if difference := compare(second, first, TABLE[name].tolerance):
            row.problem = f"other results: {difference}"
            return row
        with self.timing:
            rounds = [[peer.ask(limit, do="batch", seconds=self.options.seconds)["times"] for peer in self.peers]
                      for _ in range(self.options.rounds)]
        row.before, row.after = (statistics.median([t for batch in rounds for t in batch[i]]) for i in range(2))
        row.ratios = tuple(statistics.median(before) / statistics.median(after) for before, after in rounds)
        return row

    def run(self, names: queue.Queue[str], rows: dict[str, Compared]) -> None:
        """Measure workloads until none is left."""
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.cores)         # of this thread, and of the processes that it starts
        try:
            while time.monotonic() < self.options.end:
                try:
                    name = names.get_nowait()
                except queue.Empty:
                    return
                rows[name] = self.measure(name)
                print(rows[name].line(), flush=True)
        finally:
            for peer in self.peers:
                peer.end()


def main(arguments: list[str] | None = None) -> int:
    """Run the command; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.two_trees", description="Compare two checkouts.")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--only", default="*", help="these workloads: names, groups or patterns")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.25, help="length of a batch")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for a workload's compilation")
    parser.add_argument("--budget", type=float, default=math.inf, help="begin no workload after so many seconds")
    options = parser.parse_args(arguments)
    for tree in (options.before, options.after):
        if not (tree / "glassgrad" / "__init__.py").is_file():
            parser.error(f"{tree} is no checkout of glassgrad: git worktree add {tree} COMMIT makes one")
    if not 1 <= options.threads <= len(os.sched_getaffinity(0)):
        parser.error(f"--threads {options.threads}: this process has {len(os.sched_getaffinity(0))} cores")
    options.end = time.monotonic() + options.budget
    cores = sorted(os.sched_getaffinity(0))
    lanes = max(1, min(2, len(cores) // options.threads))
    names: queue.Queue[str] = queue.Queue()
    for name in select(options.only.split(",")):
        names.put(name)
    rows: dict[str, Compared] = {}
    print("| workload | group | before, ms | after, ms | before/after | in the rounds |\n|---|---|---|---|---|---|",
          flush=True)
    with tempfile.TemporaryDirectory(prefix="two-trees-", ignore_cleanup_errors=True) as folder:
        timing = threading.Lock()
        threads = [threading.Thread(target=Lane([options.before.resolve(), options.after.resolve()],
                                                cores[n * options.threads:(n + 1) * options.threads],
                                                Path(folder) / str(n), timing, options).run, args=(names, rows))
                   for n in range(lanes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(f"\n{len(rows)} workloads, {names.qsize()} not begun\n\n| group | before/after |\n|---|---|")
    for group, ratio in by_group(rows.values()).items():
        print(f"| {group} | {ratio:.3f} |")
    stopped = names.qsize() > 0 and time.monotonic() < options.end          # not by its budget
    return int(stopped or any(row.problem for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
