"""Write the results of the benchmarks. In: `Results`. Out: docs/benchmarks.md, the plot, one line per workload.
Measures nothing.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.frameworks import FRAMEWORKS, OURS
from benchmarks.machine import Peaks
from benchmarks.measure import Row, Timing
from benchmarks.plot import plot
from benchmarks.reasons import REASONS
from benchmarks.startup import STARTS, Start
from benchmarks.workloads import TABLE, Workload

__all__ = ["Results", "limited", "line", "page", "start_line", "write"]

GROUPS = {"matmul": "Matrix products", "memory": "Elementwise, rows and sums", "conv": "Convolution and pooling",
          "language": "Parts of language models", "networks": "Whole networks", "order": "Sorting and scans"}
# seconds: the first result here, cold and in a second process; and the import
START_GOALS = {"start-sum": (0.15, 0.05), "start-cnn": (3.0, 0.7)}
IMPORT_GOAL, MEMORY_GOAL = 0.2, 1.1


@dataclass
class Results:
    """All that was measured, and on what."""
    machine: dict[str, str]
    peaks: Peaks
    rows: dict[str, Row] = field(default_factory=dict)
    starts: dict[str, dict[str, Start]] = field(default_factory=dict)

    def merged(self, newer: Results) -> Results:
        """These results with the newer ones in their place."""
        peaks = newer.peaks if newer.peaks.rates else self.peaks
        return Results({**self.machine, **newer.machine}, peaks, {**self.rows, **newer.rows},
                       {**self.starts, **newer.starts})

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> Results:
        raw = json.loads(text)
        rows = {n: Row(n, {f: Timing(**t) for f, t in row["timings"].items()}) for n, row in raw["rows"].items()}
        starts = {n: {f: Start(**s) for f, s in by.items()} for n, by in raw["starts"].items()}
        return Results(raw["machine"], Peaks(**raw["peaks"]), rows, starts)


# ---- words and numbers

def _seconds(value: float) -> str:
    """A time in the unit that suits it: `1.25 ms`."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size or unit == "us":
            return f"{value / size:.3g} {unit}"
    raise AssertionError


def limited(value: float, goal: float | None) -> str:
    """A time, bold and beside its goal where it is longer than that."""
    return f"**{_seconds(value)}** (goal {_seconds(goal)})" if goal is not None and value > goal else _seconds(value)


def _rate(workload: Workload, seconds: float) -> str:
    """GFLOPS where the work is arithmetic, else GB/s."""
    if workload.group in ("memory", "order") or workload.family in ("maxpool", "embedding"):
        return f"{(workload.reads + workload.writes) / seconds / 1e9:.3g} GB/s"
    return f"{workload.flops / seconds / 1e9:.3g} GFLOPS"


def _short(status: str, most: int = 60) -> str:
    """A failure, in a cell of a table: `failed: ...`."""
    status = " ".join(status.replace("|", "\\|").replace("`", "'").split())
    return status if len(status) <= most else status[:most - 3] + "..."


def _spread(timing: Timing) -> str:
    """The middle half's width, as a share of the median."""
    return f"{100 * (timing.high - timing.low) / timing.median:.0f}%"


def _ratio(ratio: float, goal: float | None) -> str:
    text = f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.0f}x"
    return f"**{text}** (goal {goal:g})" if goal is not None and ratio < goal else text


def _peer_cell(timing: Timing | None, goal: float | None) -> str:
    if timing is None:
        return ""
    if timing.status != "ok":
        return _short(timing.status)
    if timing.ratio is None:
        return _seconds(timing.median)
    return f"{_seconds(timing.median)}, {_ratio(timing.ratio, goal)}"


def line(row: Row) -> str:
    """One workload for the terminal, as it is measured. A ratio is that of the times beside it; the page's, which is
    taken round by round, is less disturbed by other programs."""
    words, ours = [], row.timings.get(OURS)
    for name, timing in row.timings.items():
        value = _short(timing.status, 48) if timing.status != "ok" else _seconds(timing.median)
        words.append(f"{name} {value}" + (f" ({timing.median / ours.median:.2f}x)" if timing.ratio and ours else ""))
    return f"{row.name:24} " + "   ".join(words)


def start_line(name: str, by: dict[str, Start]) -> str:
    """Time to the first result for the terminal: cold / in a second process."""
    words = []
    for peer, start in by.items():
        warm = "timed out" if start.warm is None else _seconds(start.warm)
        value = f"{_seconds(start.cold)} / {warm}" if start.status == "ok" else _short(start.status, 48)
        words.append(f"{peer} {value}")
    return f"{name:24} " + "   ".join(words)


# ---- the page

def _table(header: list[str], lines: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, ["---"] * len(header), *lines])


def _peers(results: Results) -> list[str]:
    seen = {name for row in results.rows.values() for name in row.timings}
    seen |= {name for by in results.starts.values() for name in by}
    return [name for name in FRAMEWORKS if name in seen and name != OURS]


def _group(results: Results, group: str) -> str:
    peers, lines = _peers(results), []
    for name, workload in TABLE.items():
        row = results.rows.get(name)
        if workload.group != group or row is None:
            continue
        ours = row.timings.get(OURS, Timing("not measured"))
        if ours.calls:
            share = results.peaks.share(workload, ours.median)
            mine = [_seconds(ours.median), _spread(ours), _rate(workload, ours.median), f"{share:.0%}" if share else ""]
        else:
            mine = [_short(ours.status), "", "", ""]
        lines.append([f"`{name}` {workload.description}", *mine,
                      *(_peer_cell(row.timings.get(peer), workload.goals.get(peer)) for peer in peers)])
    if not lines:
        return ""
    header = ["work", "glassgrad", "spread", "rate", "of peak", *(FRAMEWORKS[peer].title for peer in peers)]
    return f"## {GROUPS[group]}\n\n{_table(header, lines)}\n"


def _import_cell(peer: str, start: Start) -> str:
    if start.status != "ok":
        return _short(start.status)
    return limited(start.imported, IMPORT_GOAL if peer == OURS else None)


def _starts(results: Results) -> str:
    if not results.starts:
        return ""
    who = [name for name in FRAMEWORKS if any(name in by for by in results.starts.values())]
    lines, memory = [], []
    for name, by in results.starts.items():
        goals = START_GOALS.get(name, (None, None))
        cells, sizes = [], []
        for peer in who:
            start = by.get(peer, Start("not measured"))
            goal = goals if peer == OURS else (None, None)
            if start.status != "ok":
                cells.append(_short(start.status))
                sizes.append(_short(start.status))
                continue
            warm = limited(start.warm, goal[1]) if start.warm is not None else "timed out"
            cells.append(f"{limited(start.cold, goal[0])} / {warm}")
            size = f"{start.peak / 2**20:.0f} ({start.before / 2**20:.0f})"
            torch = by.get("torch")
            over = peer == OURS and torch is not None and torch.peak and start.peak > MEMORY_GOAL * torch.peak
            sizes.append(f"**{size}**" if over and name in ("start-cnn", "start-resnet18") else size)
        lines.append([STARTS[name], *cells])
        if name != "start-sum":
            memory.append([STARTS[name].removeprefix("first "), *sizes])
        else:
            lines.insert(0, ["import", *(_import_cell(peer, by.get(peer, Start("not measured"))) for peer in who)])
    header = ["", *(FRAMEWORKS[name].title for name in who)]
    text = ("## Time to the first result\n\nA fresh process each time. The import, then from the import to the first "
            "result: cold (empty caches) / in a second process.\nJAX keeps compiled code on disk only when asked to; "
            "here it is asked to.\n\n" + _table(header, lines) + "\n")
    if memory:
        text += ("\n## Peak memory\n\nLargest resident size of the process after the first five steps, in MiB; in "
                 "brackets what it was after the import.\n\n" + _table(header, memory) + "\n")
    return text


def _short_of_goal(results: Results) -> str:
    lines = []
    for name, workload in TABLE.items():
        row = results.rows.get(name)
        if row is None or OURS not in row.timings:
            continue
        ours = row.timings[OURS]
        if not ours.calls:
            lines.append(f"- `{name}`: {_short(ours.status, 200)}")
            continue
        below = [(peer, row.timings[peer].ratio, goal) for peer, goal in workload.goals.items()
                 if peer in row.timings and (row.timings[peer].ratio or goal) < goal]
        if below:
            share = results.peaks.share(workload, ours.median)
            words = ", ".join(f"{ratio:.2f}x of {FRAMEWORKS[peer].title}, goal {goal:g}" for peer, ratio, goal in below)
            why = f". {REASONS[name]}" if name in REASONS else ""
            lines.append(f"- `{name}`: {words}; {_rate(workload, ours.median)}"
                         + (f", {share:.0%} of the machine's peak" if share else "") + why)
    if not lines:
        return ""
    return "## Short of the goal\n\n" + "\n".join(lines) + "\n"


def _peaks(results: Results) -> str:
    words = {"float32": "float32 matrix product, 2048", "bfloat16": "bfloat16 matrix product, 2048",
             "copy": "copy of 256 MB (bytes read and written)", "read": "sum of 256 MB (bytes read)"}
    lines = [[words[kind], f"{rate / 1e9:.4g} {'GFLOPS' if kind in ('float32', 'bfloat16') else 'GB/s'}",
              FRAMEWORKS[results.peaks.who[kind]].title] for kind, rate in results.peaks.rates.items()]
    return _table(["best seen", "rate", "by"], lines) + "\n" if lines else ""


METHOD = """# Benchmarks

For people who want to know how fast it is, and beside what. This page is written by `./dev bench`. Read ratios, not
milliseconds: machines differ, and the same machine differs from hour to hour.

![How many times faster glassgrad is than each peer](img/benchmarks.svg)

## How it is measured

- Each framework runs in a process of its own, on the same number of threads, with the same inputs. PyTorch runs
  eagerly, JAX under `jit` (with donated buffers for training), tinygrad and glassgrad under `TinyJit`.
- **Right first.** Before anything is timed each framework computes the result three times, and the results are
  compared. For a training step that means the losses of three consecutive steps. A wrong result is not timed.
- **Alternating.** Short batches take turns: glassgrad, a peer, glassgrad, the next peer, and so on, for several
  rounds. A process that is not being timed is stopped (`SIGSTOP`): threads of OpenMP and the like keep spinning after
  their work. Each batch begins with a call that is not counted.
- A time is the median of all calls; *spread* is the width of the middle half of them. A **ratio is the peer's time
  over ours** (above 1: glassgrad is faster): the median over the rounds, each against our batch just before. A ratio
  below its goal is bold.
- *rate* counts the arithmetic or the bytes that the work needs at least; a training step counts as three forward
  passes. *of peak* is the larger share, of arithmetic or of memory traffic, of the best rates in the next section.
- *barrier*, below, is how long our workers take to meet between two kernels of one step: lists of kernels in which
  each task waits for all others to begin, and does nothing else (`python -m benchmarks.barrier`).
- *dispatch* is a call of the jitted MLP step with every size at 2: all of its kernels, guards and checks, next to
  nothing to compute (`python -m benchmarks.dispatch`). *opening* is the time until the tensors of a file are there to
  be used (`python -m benchmarks.opening`).
- A framework has 60 seconds for a workload, compilation included (`--limit`); then it says *timed out*.

## How to run it

    ./dev bench                            everything; writes this page
    ./dev bench --quick                    a few workloads, few rounds; writes nothing
    ./dev bench --only softmax,conv-3x3-*  by name, group or pattern; add --write to bring the page up to date
    ./dev bench --peers torch              compare with some peers only
    ./dev bench --check                    no times: every kernel of every workload against the interpreter (minutes)
    ./dev bench --gpu                      kernels, launches, copies and training steps on an NVIDIA GPU, beside PyTorch
    ./dev bench --list                     what there is
    python -m benchmarks.two_trees A B     two checkouts of glassgrad, in turns: what a change did to each workload
    python -m benchmarks.products          matrix products, in turns with PyTorch's, as a table
    python -m benchmarks.unjitted_peers    small calls and 40 tokens without the jit, beside PyTorch's

The first run installs the peers (the `bench` extra). tinygrad compiles with `clang` (Debian, Ubuntu: `sudo apt install
clang`). A peer that is missing is left out. Nothing else should be running meanwhile.

What an H200 reaches, with date and commit, is on [a page of its own](performance-gpu.md).
"""


def page(results: Results) -> str:
    """The Markdown page."""
    machine = _table(["", ""], [[key, value] for key, value in results.machine.items()])
    groups = [_group(results, group) for group in GROUPS]
    parts = [METHOD, f"## The machine\n\n{machine}\n", _peaks(results), *groups, _starts(results),
             _short_of_goal(results)]
    return "\n".join(part for part in parts if part)


def write(results: Results, docs: Path) -> list[Path]:
    """Write the page and its plot under `docs`; the paths written."""
    ratios: dict[str, dict[str, float]] = {}
    for name in TABLE:
        timings = results.rows[name].timings if name in results.rows else {}
        found: dict[str, Any] = {peer: timing.ratio for peer, timing in timings.items() if timing.ratio}
        if found:
            ratios[name] = found
    (docs / "img").mkdir(parents=True, exist_ok=True)
    picture, text = docs / "img" / "benchmarks.svg", docs / "benchmarks.md"
    picture.write_text(plot(ratios, {name: FRAMEWORKS[name].title for name in _peers(results)}))
    text.write_text(page(results))
    return [text, picture]
