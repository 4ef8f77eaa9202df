"""Say why a kernel takes as long as it does, and what to try. In: cost, time, the machine's peak. Out: `Verdict`."""

from __future__ import annotations

from typing import NamedTuple

from glassgrad.conformance.peak_rates import Peak

SMALL_NANOSECONDS = 15_000      # the time of shorter kernels is mostly launch overhead
GOOD = 0.6                      # fraction of peak above which there is little to gain
SLOW = 0.25
VECTOR = 16                     # floats in a vector of 512 bits, a multiple of shorter vectors
MEMORY, ARITHMETIC, LAUNCH, COPY = "memory", "arithmetic", "launch", "copy"


class Verdict(NamedTuple):
    """What bounds a kernel, its share of that peak, why, and what to try."""
    bound: str
    share: float                # fraction of the measured peak, from 0 to about 1
    why: str
    tries: tuple[str, ...]


def judge(name: str, operations: int, nbytes: int, nanoseconds: float, peak: Peak, reasons: tuple[str, ...] = (),
          contraction: bool = False, tuned: bool = False, columns: int = 0) -> Verdict:
    """Compare one run of a kernel with the machine's roofline. `columns` is the row length of a result that is a
    matrix.

    >>> judge("k", 10**9, 10**6, 10**8, Peak(100.0, 10.0), contraction=True).bound
    'arithmetic'
    >>> judge("k", 10**6, 4 * 10**8, 5 * 10**7, Peak(100.0, 10.0)).why
    'it moves 400.0 MB for 1.0 million operations, at 8.0 GB/s: 80% of what memory gives here'
    """
    nanoseconds = max(nanoseconds, 1.0)
    memory_time = nbytes / peak.gigabytes_per_second if peak.gigabytes_per_second else 0.0
    arithmetic_time = operations / peak.gflops if peak.gflops else 0.0
    share = max(memory_time, arithmetic_time) / nanoseconds
    gflops, gigabytes = operations / nanoseconds, nbytes / nanoseconds
    if name == "copy":
        return Verdict(COPY, 0.0, f"it moves {_bytes(nbytes)} between two devices, at {gigabytes:.1f} GB/s",
                       ("keep the tensors that meet on one device",))
    if nanoseconds < SMALL_NANOSECONDS and share < GOOD:
        return Verdict(LAUNCH, share,
                       f"it has so little to do ({_count(operations)} operations) that starting it takes longer",
                       ("larger batches, or fewer and larger tensors, so that a kernel has more to do",))
    if arithmetic_time >= memory_time:
        why = f"it does {_count(operations)} operations, at {gflops:.1f} GFLOPS: {share:.0%} of what a matrix " \
              "product reaches here"
        return Verdict(ARITHMETIC, share, why, tuple(_arithmetic(share, contraction, tuned, columns)))
    moved = f"it moves {_bytes(nbytes)} for {_count(operations)} operations, at {gigabytes:.1f} GB/s: "
    why = moved + (f"{share:.0%} of what memory gives here" if share <= 1 else
                   "more than memory gives here, because its data are in the caches")
    return Verdict(MEMORY, share, why, tuple(_memory(share, reasons, tuned)))


def _arithmetic(share: float, contraction: bool, tuned: bool, columns: int) -> list[str]:
    if share >= GOOD:
        return ["it is close to the peak: only fewer operations, or a shorter float type, make it faster"]
    tries = [] if tuned else ["BEAM=2 searches for faster tiles, once, and keeps what it finds"]
    if contraction and columns % VECTOR:
        tries.append(f"its result has {columns} columns: a multiple of {VECTOR} fills the vectors")
    elif not contraction:
        tries.append("exp, log, sin and division take many instructions each: a cheaper formula would help")
    return tries or ["fewer operations, or a shorter float type"]


def _memory(share: float, reasons: tuple[str, ...], tuned: bool) -> list[str]:
    tries = []
    if any(reason not in ("an output",) for reason in reasons):
        tries.append("its result goes to memory because: " + "; ".join(dict.fromkeys(reasons))
                     + ". Where you can avoid that, the next kernel computes it in registers")
    if share >= GOOD:
        tries.append("it is close to what memory gives: move fewer bytes (float16, fewer intermediate results)")
    elif share < SLOW and not tuned:
        tries.append("BEAM=2 searches for a better order of its loops")
    return tries or ["larger rows are read faster than many short ones"]


def _count(number: float) -> str:
    for unit, name in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return f"{number:.0f}"


def _bytes(number: float) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return f"{number:.0f} bytes"
