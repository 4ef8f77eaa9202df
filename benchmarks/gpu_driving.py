"""Measure how a GPU is driven, beside PyTorch: launches, graphs, copies, training steps, first steps, a search. Takes
about 6 minutes, and needs only numpy and torch.

    python -m benchmarks.gpu_driving                       on CUDA: a table, and JSON to the file that --json names
    python -m benchmarks.gpu_driving --only launch,steps   parts: smoke, launch, copies, steps, first, beam, hang
    python -m benchmarks.gpu_driving --device CPU --quick  to try the script itself without a GPU

Each part is a process of its own with a time limit, so that a part that fails or hangs does not affect the others.
Times are medians of rounds in which both libraries take turns. `host` is the time until the call returns, `whole` the
time until the device is done.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.gpu_parts import PARTS, Row

__all__ = ["main"]

LIMIT = 150.0                # seconds for a part


def show(row: Row) -> str:
    """A row as a line of text."""
    number = row.ours if isinstance(row.ours, str) else f"{row.ours:.3g}" if row.ours < 1000 else f"{row.ours:.0f}"
    theirs = "" if row.torch is None else f"{row.torch:.1f}"
    ratio = "" if row.torch is None or isinstance(row.ours, str) or not row.ours else f"{row.torch / row.ours:.2f}"
    return f"| {row.name} | {number} {row.unit} | {theirs} | {ratio} | {row.expected} |"


def run_part(part: str, device: str, rounds: int, limit: float, module: str) -> list[Row]:
    """A part in a process of its own; what it found until its end."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows"
        command = [sys.executable, "-m", module, "--part", part, "--device", device,
                   "--rows", str(out), "--rounds", str(rounds)]
        began = time.perf_counter()
        try:
            done = subprocess.run(command, timeout=limit, capture_output=True, text=True)
            failed = "" if not done.returncode else "\n".join(done.stderr.splitlines()[-12:])
        except subprocess.TimeoutExpired:
            failed = f"no end after {limit:.0f} s"
        rows = [Row(*json.loads(line)) for line in out.read_text().splitlines()] if out.exists() else []
        for row in rows:
            print(show(row), flush=True)
        print(f"| *{part}: {time.perf_counter() - began:.0f} s* |  |  |  |  |", flush=True)
        if failed:
            rows.append(Row(f"{part} failed", failed, ""))
            print(f"{part} failed:\n{failed}", flush=True)
    return rows


def main(arguments: Sequence[str] | None = None, parts: Mapping[str, Callable[[str, int], Iterator[Row]]] = PARTS,
         usual: Sequence[str] = tuple(PARTS), module: str = "benchmarks.gpu_driving", limit: float = LIMIT) -> None:
    """Run parts, and print what they find; `module` is the one that calls this, `usual` are the parts it runs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="CUDA")
    parser.add_argument("--only", default=",".join(usual), help=f"parts, split by commas: {', '.join(parts)}")
    parser.add_argument("--quick", action="store_true", help="two rounds")
    parser.add_argument("--json", default="")
    parser.add_argument("--limit", type=float, default=limit, help="seconds for a part")
    parser.add_argument("--part", default="", help=argparse.SUPPRESS)
    parser.add_argument("--rows", default="", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=0, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    rounds = chosen.rounds or (2 if chosen.quick else 9)
    if chosen.part:
        with open(chosen.rows, "w", encoding="utf-8") as file:
            for row in parts[chosen.part](chosen.device, rounds):
                print(json.dumps(row), file=file, flush=True)
        return
    print("| what | ours | torch | ratio | expected |\n|---|---|---|---|---|")
    rows = []
    for part in chosen.only.split(","):
        rows += run_part(part, chosen.device, rounds, chosen.limit, module)
        if chosen.json:                                  # what is cut off leaves the parts before it
            Path(chosen.json).write_text(json.dumps([row._asdict() for row in rows], indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
