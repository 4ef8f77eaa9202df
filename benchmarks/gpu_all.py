"""Run everything that is measured on a GPU, in one run of one tree. In: options. Out: a file of results, a page's
table.

    ./dev bench --gpu                      measures for six minutes; writes benchmarks/gpu_results.json and the table
    python -m benchmarks.gpu_all --page    writes the table of docs/performance-gpu.md again, from that file

First several processes compile all kernels at once, ours and those of torch.compile, and store them on disk; nothing is
timed meanwhile. Then each script runs as a process of its own with a time limit, alone on the machine; what a script
has written until its end is kept. First steps are measured with an empty cache.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

__all__ = ["RESULTS", "main", "measure", "page", "table"]

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "benchmarks" / "gpu_results.json", ROOT / "docs" / "performance-gpu.md"
BEGIN, END = "<!-- written by python -m benchmarks.gpu_all --page -->", "<!-- until here -->"
Rows = list[dict[str, Any]]

# Each script with its parts and its most seconds, in order: what ends early leaves its time to those behind it.
SCRIPTS: list[tuple[list[str], float]] = [
    (["benchmarks.gpu_driving", "--only", "steps,launch,first"], 60), (["benchmarks.gpu"], 130),
    (["benchmarks.gpu_tiles"], 110), (["benchmarks.gpu_models", "--only", "gpt2,resnet50"], 120),
    (["benchmarks.gpu_models", "--only", "resnet50-first,gpt2-first"], 50)]
WARMED = [["benchmarks.gpu_models", "--only", "resnet50-warm"], ["benchmarks.gpu_models", "--only", "gpt2-warm"],
          *[["benchmarks.gpu", "--warm", f"{part}/3"] for part in range(3)],
          *[["benchmarks.gpu_tiles", "--warm", f"{part}/2"] for part in range(2)]]
WARMING = 85.0                                   # seconds for all of them

SECTIONS = {"Products": ("product", "linear", "vector"), "Convolutions": ("conv",), "Attention": ("attention",),
            "Memory": ("",)}                     # by how a case's name begins
STEPS = {"MLP 64 step, graph, whole": "MLP 784-128-10, training step, batch 64, jitted; torch eager",
         "MLP 512 step, graph, whole": "the same, batch 512",
         "CNN 512 step, graph, whole": "MNIST CNN, training step, batch 512, jitted, float32; torch eager",
         "gpt2: step, torch eager": "GPT-2 124M, training step, 8 x 1024 tokens, bf16; torch eager",
         "gpt2: step, torch.compile": "the same; torch.compile",
         "resnet50: step, torch eager": "ResNet-50, training step, 64 images, bf16; torch eager",
         "resnet50: step, torch.compile": "the same; torch.compile",
         "gpt2: the same beside torch's": "GPT-2's losses of 4 steps beside torch's",
         "resnet50: the same beside torch's": "ResNet-50's losses of 4 steps beside torch's",
         "first CNN step, cold": "the CNN's first step, nothing cached",
         "first CNN step, second process": "the same in a second process",
         "gpt2: first step, cold": "GPT-2's first step, nothing cached",
         "resnet50: first step, cold": "ResNet-50's first step, nothing cached",
         "un-jitted x + 1, whole": "un-jitted `x + 1` of 1024 numbers",
         "jitted, 50 kernels, graph, whole": "a jitted call of 50 small kernels"}


def commit() -> str:
    """The commit that is measured, marked where files were changed since; `COMMIT` says it where there is no git."""
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or os.environ.get("COMMIT", "unknown")


def machine() -> str:
    """The GPU and the versions of what compiles for it."""
    import torch

    from glassgrad.runtime.gpu.nvrtc import nvrtc_version
    return f"{torch.cuda.get_device_name()}, {nvrtc_version()}, torch {torch.__version__}"


# ---- measuring

def begun(words: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """A script in a process of its own, and in a group: its parts end with it."""
    return subprocess.Popen([sys.executable, "-m", *words], start_new_session=True, **options)


def awaited(process: subprocess.Popen[bytes], limit: float) -> bool:
    """Wait for a script; whether it came to its end within so many seconds."""
    try:
        process.wait(max(1.0, limit))
        return True
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return False


def warm(seconds: float) -> None:
    """Make all kernels, by several processes at once."""
    began = time.perf_counter()
    running = [begun(words, stdout=subprocess.DEVNULL) for words in WARMED]
    for process in running:
        awaited(process, seconds - (time.perf_counter() - began))
    print(f"kernels are made: {time.perf_counter() - began:.0f} s", flush=True)


def run(words: Sequence[str], limit: float, quick: bool) -> Rows:
    """A script's rows; what it prints is shown meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        if not awaited(begun([*words, "--json", str(out), *["--quick"] * quick]), limit):
            print(f"{' '.join(words)}: no end after {limit:.0f} s", flush=True)
        rows: Rows = json.loads(out.read_text(encoding="utf-8")) if out.exists() else []
        return rows


def measure(results: Path, seconds: float, quick: bool) -> None:
    """Run all scripts; the file is written after each of them."""
    ends = time.perf_counter() + seconds
    about = {"machine": machine(), "date": date.today().isoformat(), "commit": commit()}
    rows: Rows = []
    warm(WARMING)
    for words, limit in SCRIPTS:
        rows += run(words, max(5.0, min(limit, ends - time.perf_counter())), quick)
        results.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
        print(f"{' '.join(words)}: {seconds - (ends - time.perf_counter()):.0f} s of {seconds:.0f}", flush=True)


# ---- the table

def rate(row: dict[str, Any]) -> str:
    """TFLOP/s of a case that computes, TB/s of one that moves numbers."""
    if row["tflops"]:
        return f"{row['tflops']:.0f} TFLOP/s"
    return f"{row['bytes'] / row['ours_us'] / 1e6:.2f} TB/s" if row.get("bytes") else ""


def kernel_line(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"| {row['case']} | failed: {(row['failed'].splitlines() or [''])[0][:80]} | | | | | |"
    return (f"| {row['case']} | {row['ours_us']:.1f} | {row['theirs_us']:.1f} | {row['ratio']:.2f} | {rate(row)} | "
            f"{row['error']:.1e} | {row['their_error']:.1e} |")


def with_backward(cases: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Cases, each that is trained followed by its backward pass alone: what it takes longer than the forward one."""
    out: dict[str, dict[str, Any]] = {}
    for name, both in cases.items():
        out[name] = both
        forward = cases.get(name.replace(" trained", ""), both)
        if forward is not both and "failed" not in (*both, *forward):
            ours, theirs = (both[time] - forward[time] for time in ("ours_us", "theirs_us"))
            work = both["tflops"] * both["ours_us"] - forward["tflops"] * forward["ours_us"]
            alone = name.replace("trained", "backward")
            out[alone] = {**both, "case": alone, "ours_us": ours, "theirs_us": theirs, "ratio": theirs / ours,
                          "tflops": work / ours}
    return out


def step_line(words: str, row: dict[str, Any]) -> str:
    ours, theirs = row["ours"], row["torch"]
    if not isinstance(ours, (int, float)):
        return f"| {words} | failed: {str(ours).splitlines()[0][:80]} | | |"
    shown = f"{ours:.1e}" if row["unit"] == "error" else f"{ours:.4g} {row['unit']}"
    beside = f"{theirs:.4g} {row['unit']} | {theirs / ours:.2f}" if theirs else " | "
    return f"| {words} | {shown} | {beside} |"


def table(results: dict[str, Any]) -> str:
    """All rows as tables of Markdown, a section each."""
    lines = [f"{results['machine']}; {results['date']}, commit {results['commit']}."]
    left = with_backward({row["case"]: row for row in results["rows"] if "case" in row})
    for section, begins in SECTIONS.items():
        mine = [left.pop(name) for name in list(left) if name.startswith(begins)]
        if mine:
            lines += ["", f"### {section}", "", "| case | ours, us | torch, us | ratio | rate | error | torch's |",
                      "|---|---|---|---|---|---|---|", *map(kernel_line, mine)]
    others = {row["name"]: row for row in results["rows"] if "name" in row}
    steps = [step_line(words, others[name]) for name, words in STEPS.items() if name in others]
    steps += [step_line(name, row) for name, row in others.items() if name.endswith(" failed")]
    if steps:
        lines += ["", "### Steps and calls", "", "| what | ours | torch | ratio |", "|---|---|---|---|", *steps]
    return "\n".join(lines)


def page(text: str, results: dict[str, Any]) -> str:
    """A page with the table in its place."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no place for the table: {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n\n{table(results)}\n\n{END}{after}"


def write_page(results: Path, to: Path) -> None:
    made = page(to.read_text(encoding="utf-8"), json.loads(results.read_text(encoding="utf-8")))
    to.write_text(made, encoding="utf-8")


def main(arguments: Sequence[str] = ()) -> int:
    """Measure and write the page, or write it alone; 1 where there is no GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--page", action="store_true", help="write the table alone, from the file")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--seconds", type=float, default=900.0, help="for all of it")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--to", type=Path, default=PAGE, help="the page that has the table")
    chosen = parser.parse_args(arguments)
    if not chosen.page:
        try:
            machine()
        except Exception as problem:
            print(f"these are measured beside PyTorch on an NVIDIA GPU: {problem}", file=sys.stderr)
            return 1
        measure(chosen.results, chosen.seconds, chosen.quick)
    write_page(chosen.results, chosen.to)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
