"""Run the command `./dev bench [options]`. In: arguments. Out: a line per workload, and the page in docs/."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from benchmarks import gpu_all
from benchmarks.checked import check
from benchmarks.frameworks import FRAMEWORKS, OURS, installed
from benchmarks.machine import Peaks, busy, describe, measure_peaks, usable_cores
from benchmarks.measure import measure
from benchmarks.peers import ROOT, Peer, environment
from benchmarks.probes import PROBES
from benchmarks.report import Results, line, start_line, write
from benchmarks.startup import STARTS, alone, measure_start
from benchmarks.workloads import QUICK, TABLE, select

__all__ = ["main"]

KEPT = Path(__file__).resolve().parent / "results.json"     # what docs/benchmarks.md was written from


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="./dev bench", description="Measure glassgrad beside its peers.")
    parser.add_argument("--list", action="store_true", help="show the workloads and end")
    parser.add_argument("--only", metavar="NAME[,NAME]", help="these workloads: names, groups, patterns, or 'start'")
    parser.add_argument("--quick", action="store_true", help="a few workloads, two short rounds; nothing is written")
    parser.add_argument("--check", action="store_true",
                        help="run ours alone under CHECK=1: every kernel against the interpreter; nothing is timed")
    parser.add_argument("--gpu", action="store_true",
                        help="on an NVIDIA GPU, beside PyTorch: kernels, launches, training steps; writes its page")
    parser.add_argument("--peers", metavar="NAMES", default="torch,jax,tinygrad",
                        help="compare with these (torch,jax,tinygrad)")
    parser.add_argument("--rounds", type=int, help="batches of each framework (7)")
    parser.add_argument("--seconds", type=float, help="length of a batch (0.25)")
    parser.add_argument("--limit", type=float, help="seconds a framework may spend on a workload (60; --check 3600)")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="threads of every framework (all cores)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all measurements there, as JSON")
    parser.add_argument("--write", action="store_true", help="bring docs/ up to date with --only or --quick too")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (2 if options.quick else 7)
    options.seconds = options.seconds or (0.05 if options.quick else 0.25)
    options.limit = options.limit or (3600.0 if options.check else 60.0)
    peers = [name for name in options.peers.split(",") if name and name != OURS]
    if unknown := [name for name in peers if name not in FRAMEWORKS]:
        parser.error(f"there is no peer {unknown[0]!r}; there are {', '.join(n for n in FRAMEWORKS if n != OURS)}")
    options.frameworks = [OURS, *peers]
    wishes = options.only.split(",") if options.only else list(QUICK) if options.quick else ["*"]
    options.names = select(wishes, more=tuple(STARTS))
    return options


def show_list(names: list[str]) -> None:
    for name in names:
        group, text = ("start", STARTS[name]) if name in STARTS else (TABLE[name].group, TABLE[name].description)
        print(f"{name:24} {group:10} {text}")


def limit_cores(threads: int) -> None:
    """Keep this process, and those it starts, on as many cores as there are threads to be."""
    if hasattr(os, "sched_setaffinity") and threads < usable_cores():
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def run(options: argparse.Namespace, results: Results, folder: Path) -> None:
    """Measure what the options ask for into `results`, printing as it goes."""
    present = [FRAMEWORKS[name] for name in options.frameworks if installed(FRAMEWORKS[name])]
    for name in options.frameworks:
        if FRAMEWORKS[name] not in present:
            print(f"{FRAMEWORKS[name].title} is not installed: left out", flush=True)
    variables = environment(folder / "caches", options.threads)
    peers = {f.name: Peer(f, variables, folder / f"{f.name}.log") for f in present}
    try:
        timed = [name for name in options.names if name in TABLE]
        if timed and not options.quick:
            best = {name: peers[name] for name in ("torch", OURS) if name in peers}
            results.peaks = measure_peaks(best, folder, seconds=options.seconds, limit=options.limit)
            for kind, rate in results.peaks.rates.items():
                print(f"{'peak ' + kind:24} {rate / 1e9:.4g} G/s, by {results.peaks.who[kind]}", flush=True)
            for name, probe in PROBES.items():
                results.machine[name] = probe.words(alone([probe.module], variables, options.limit))
                print(f"{name:24} {results.machine[name]}", flush=True)
        for name in timed:
            results.rows[name] = measure(name, peers, folder, tolerance=TABLE[name].tolerance, rounds=options.rounds,
                                         seconds=options.seconds, limit=options.limit)
            print(line(results.rows[name]), flush=True)
    finally:
        for peer in peers.values():
            if peer.framework.name == OURS and peer.version:
                results.machine["glassgrad"] = peer.version
            peer.end()
    repeats = 1 if options.quick else 3
    for name in (name for name in options.names if name in STARTS):
        by = results.starts[name] = {}
        for framework in present:
            by[framework.name] = measure_start(name, framework, folder, repeats=repeats, threads=options.threads,
                                               limit=options.limit)
        print(start_line(name, by), flush=True)


def check_all(options: argparse.Namespace) -> int:
    """Run the workloads under CHECK=1, a line each; 1 when one of them failed."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="benchmarks-", ignore_cleanup_errors=True) as folder:
        for name in (name for name in options.names if name in TABLE):
            right, words = check(name, environment(Path(folder), options.threads), options.limit)
            failed += not right
            print(f"{name:24} {words}", flush=True)
    print(f"{failed} failed" if failed else "every kernel agrees with the interpreter", flush=True)
    return 1 if failed else 0


def main(arguments: list[str] | None = None) -> int:
    """Run the command; its exit status."""
    options = parse(arguments)
    if options.gpu:
        return gpu_all.main(["--quick"] * options.quick)
    if options.list:
        show_list(options.names)
        return 0
    limit_cores(options.threads)
    if options.check:
        return check_all(options)
    if busy() > 0.3:
        print(f"the machine is busy (load {busy():.1f}): the numbers will be worse than they should be, and PyTorch's "
              "most, whose threads wait by spinning", file=sys.stderr)
    results, status = Results(describe(options.threads), Peaks()), 0
    with tempfile.TemporaryDirectory(prefix="benchmarks-", ignore_cleanup_errors=True) as folder:
        try:
            run(options, results, Path(folder))
        except KeyboardInterrupt:
            print("interrupted: docs/ is left as it was", file=sys.stderr)
            status = 130
    if options.json:
        options.json.write_text(results.to_json())
    whole = options.only is None and not options.quick
    if status == 0 and (whole or options.write):
        if not whole and KEPT.exists():
            results = Results.from_json(KEPT.read_text()).merged(results)
        KEPT.write_text(results.to_json())
        for path in write(results, ROOT / "docs"):
            print(f"wrote {path.relative_to(ROOT)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
