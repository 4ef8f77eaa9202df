"""Everything that is measured on a GPU, one script after another, as one page. In: options. Out: tables with date, commit.

    ./dev bench --gpu            kernels, tiles, how it is driven, training steps: about half an hour
    ./dev bench --gpu --quick    fewer rounds

Each script is a process of its own with a limit of time; what one has written until its end is shown. The page goes to
docs/benchmarks.md by hand, beside the machine it was measured on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

__all__ = ["SCRIPTS", "main", "page"]

SCRIPTS = {"benchmarks.gpu": 900.0, "benchmarks.gpu_tiles": 900.0, "benchmarks.gpu_driving": 1500.0,
           "benchmarks.gpu_models": 1500.0}              # and the seconds that each may take


def commit() -> str:
    """The commit that is measured, marked where files were changed since."""
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True)
    return done.stdout.strip() or "no commit"


def device() -> str:
    """The GPU and PyTorch's version."""
    import torch
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"


def run(script: str, limit: float, quick: bool) -> list[dict[str, Any]]:
    """A script's rows; what it prints is shown meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        command = [sys.executable, "-m", script, "--json", str(out), *["--quick"] * quick]
        try:
            subprocess.run(command, timeout=limit, check=False)
        except subprocess.TimeoutExpired:
            print(f"{script}: no end after {limit:.0f} s", flush=True)
        found: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8")) if out.exists() else []
        return found


def page(results: dict[str, list[dict[str, Any]]], title: str) -> str:
    """All rows as tables of Markdown: kernels have microseconds of both, other rows a number and its unit."""
    lines = [title]
    for script, rows in results.items():
        lines += ["", f"`{script}`", ""]
        kernels = [row for row in rows if "case" in row]
        if kernels:
            lines += ["| case | ours, us | torch, us | ratio | TFLOP/s | error |", "|---|---|---|---|---|---|"]
        for row in kernels:
            if "failed" in row:
                lines.append(f"| {row['case']} | failed: {row['failed'].splitlines()[0][:80]} | | | | |")
                continue
            rate = f"{row['tflops']:.0f}" if row["tflops"] else ""
            lines.append(f"| {row['case']} | {row['ours_us']:.1f} | {row['theirs_us']:.1f} | {row['ratio']:.2f} | {rate} | "
                         f"{row['error']:.1e} |")
        others = [row for row in rows if "case" not in row]
        if others:
            lines += ["| what | ours | torch | ratio |", "|---|---|---|---|"]
        for row in others:
            ours, theirs = row["ours"], row["torch"]
            known = theirs is not None and isinstance(ours, (int, float)) and ours
            shown = f"{ours:.4g}" if isinstance(ours, (int, float)) else str(ours).splitlines()[0]
            lines.append(f"| {row['name']} | {shown} {row['unit']} | {'' if theirs is None else f'{theirs:.4g}'} | "
                         f"{f'{theirs / ours:.2f}' if known else ''} |")
    return "\n".join(lines)


def main(quick: bool = False) -> int:
    """Run all scripts, and print the page; 1 where there is no GPU."""
    try:
        about = device()
    except Exception as problem:
        print(f"these are measured beside PyTorch on an NVIDIA GPU: {problem}", file=sys.stderr)
        return 1
    results = {script: run(script, limit, quick) for script, limit in SCRIPTS.items()}
    print("\n" + page(results, f"{about}, {date.today().isoformat()}, commit {commit()}"))
    return 0
