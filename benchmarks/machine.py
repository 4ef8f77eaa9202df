"""Describe what the numbers were measured on. In: peers. Out: a description, and the best rates seen on the machine."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measure import measure
from benchmarks.peers import ROOT, Peer
from benchmarks.workloads import PEAKS, Workload

__all__ = ["Peaks", "busy", "describe", "measure_peaks", "usable_cores"]


def usable_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def busy() -> float:
    """How many processes ran or waited to run, on average over the last minute."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _vectors() -> str:
    """The vector and matrix extensions that matter here, as Linux names them."""
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return ""
    known = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8", "asimd", "sve")
    return ", ".join(word for word in known if word in words)


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def describe(threads: int) -> dict[str, str]:
    """The machine and the software, as lines of a table."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30 if hasattr(os, "sysconf") else 0
    clang = _output("clang", "--version").split("\n")[0] if shutil.which("clang") else "not installed"
    commit = _output("git", "rev-parse", "--short", "HEAD") or "unknown"
    changed = " with changes" if _output("git", "status", "--porcelain", "--untracked-files=no") else ""
    return {
        "date": datetime.date.today().isoformat(), "glassgrad commit": commit + changed,
        "processor": f"{_cpu()} ({_vectors()})" if _vectors() else _cpu(), "threads": str(threads),
        "load before": f"{busy():.1f} (processes that ran or waited to, last minute)",
        "memory": f"{memory:.0f} GiB", "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(), "NumPy": _version("numpy"), "llvmlite": _version("llvmlite"),
        "PyTorch": _version("torch"), "JAX": _version("jax"), "tinygrad": _version("tinygrad"),
        "clang (for tinygrad)": clang,
    }


@dataclass
class Peaks:
    """The best rates seen, and who reached them: flops per second by element type, bytes per second by kind."""
    rates: dict[str, float] = field(default_factory=dict)
    who: dict[str, str] = field(default_factory=dict)

    def share(self, workload: Workload, seconds: float) -> float | None:
        """How much of the machine a time is: the larger of the share of arithmetic and the share of memory traffic.

        Work that writes next to nothing is held against reading, the rest against copying.
        """
        dtype = workload.parameters.get("dtype", "float32")
        memory = "read" if workload.writes * 8 < workload.reads else "copy"
        shares = [amount / seconds / self.rates[kind] for amount, kind in
                  ((workload.flops, dtype), (workload.reads + workload.writes, memory)) if self.rates.get(kind)]
        return max(shares) if shares else None


def measure_peaks(peers: dict[str, Peer], folder: Path, *, seconds: float, limit: float) -> Peaks:
    """Large matrix products, a copy and a sum in each of these frameworks; the fastest counts."""
    peaks = Peaks()
    for name, workload in PEAKS.items():
        row = measure(name, peers, folder, tolerance=float("inf"), rounds=2, seconds=seconds, limit=limit)
        kind = name.removeprefix("peak-")
        amount = workload.flops or workload.reads + workload.writes
        for who, timing in row.timings.items():
            if timing.calls and amount / timing.low > peaks.rates.get(kind, 0.0):
                peaks.rates[kind], peaks.who[kind] = amount / timing.low, who
    return peaks
