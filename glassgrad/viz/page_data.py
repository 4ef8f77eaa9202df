"""Collect all data that the page shows, as one dictionary for JSON. In: a `Recorder`. Out: `page_data`.

Rows are lists, and lines, calls and kernels are numbers in tables, because a page may hold a hundred thousand nodes.
The page (viz-ui/src/) reads exactly these names; `FORMAT` is raised when they change.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence, Set
from time import perf_counter_ns, process_time
from typing import Any

from glassgrad.base.call_tree import program_name
from glassgrad.base.source_lines import Line, Place, calls_of, line_of
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.ops import Kind
from glassgrad.compiler.pipeline import PASSES
from glassgrad.compiler.schedule.kernels import Item
from glassgrad.conformance.peak_rates import Peak, measured_peak
from glassgrad.runtime.devices import Device
from glassgrad.viz.advice import judge
from glassgrad.viz.kernel_passes import kernel_texts
from glassgrad.viz.pass_text import OURS, PassText
from glassgrad.viz.recorder import LiveValue, NodeRow, RecordedGraph, Recorder

FORMAT = 1
MOST_TEXTS = 80                 # number of kernels, the slowest, that are shown pass by pass
MOST_SECONDS = 10.0             # CPU time spent on them
MOST_ASSEMBLIES = 8
MOST_SOURCE = 400_000           # characters of a source file that are shown
MOST_PEAK_VALUES = 60
BEYOND_CACHES = 64 << 20        # bytes of a kernel that exceed every cache
KINDS = ("schedule", "compile", "run", "kernel")
_STRUCTURE = (o.PARAM, o.CONST, o.STORE, o.SINK)     # nodes of a kernel's graph made by the scheduler


def page_data(recorder: Recorder, measure: bool = True, texts: bool = True) -> dict[str, Any]:
    """Return the page's data; `measure` also measures the machine's peak, `texts` shows kernels pass by pass."""
    return _Page(recorder, measure).data(texts)


class Tables:
    """Numbers of lines and files."""

    def __init__(self) -> None:
        self.lines: dict[Line, int] = {}
        self.files: dict[str, int] = {}
        self._places: dict[int, tuple[Place, int]] = {}

    def line(self, place: Place | None) -> int:
        """Return the number of a place's line; -1 if it has none."""
        if place is None or place is OURS:
            return -1
        known = self._places.get(id(place))
        if known is None:
            known = self._places[id(place)] = (place, self.number(line_of(place)))    # held, so that ids are unique
        return known[1]

    def number(self, line: Line | None) -> int:
        """Return the number of a line; -1 for None."""
        if line is None:
            return -1
        self.files.setdefault(line.file, len(self.files))
        return self.lines.setdefault(line, len(self.lines))

    def line_rows(self) -> list[list[int]]:
        return [[self.files[line.file], line.number] for line in self.lines]

    def file_rows(self) -> list[dict[str, Any]]:
        return [{"path": os.path.join(*path.replace(os.sep, "/").split("/")[-2:]), "name": os.path.basename(path),
                 "text": source_text(path)} for path in self.files]       # no full paths: a page may be shared


def source_text(path: str) -> str | None:
    """Return a source file's text, or None if the file is gone."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(MOST_SOURCE)
    except (OSError, ValueError):
        return None


class _Page:
    def __init__(self, recorder: Recorder, measure: bool):
        self.recorder, self.measure = recorder, measure
        self.tables = Tables()
        self.items: dict[int, int] = {}              # id(item) -> number of its kernel
        self.kernels: list[dict[str, Any]] = []
        self._asts: list[Item] = []
        self._peaks: dict[str, Peak] = {}

    def data(self, texts: bool) -> dict[str, Any]:
        recorder = self.recorder
        graphs = [self._graph(number, graph) for number, graph in enumerate(recorder.graphs)]
        for group in recorder.groups:
            for item in group.items:
                self._kernel(item, -1)
        self._times()
        self._judge()
        programs = self._programs() if texts else []
        end = recorder.ended or perf_counter_ns()
        spent = sum(k["ns"] for k in self.kernels)
        return {
            "format": FORMAT, "program": program_name(), "kinds": KINDS,
            "devices": {name: self._device(name) for name in sorted({k["device"] for k in self.kernels})},
            "passes": [[p.name, p.stage, p.does, p.file, p.when.words] for p in PASSES],
            "graphs": graphs, "graphs_left_out": recorder.graphs_left_out, "kernels": self.kernels,
            "programs": programs, "groups": self._groups(),
            "calls": [list(call) for call in recorder.calls.calls],
            "timeline": [[KINDS.index(s.kind), (s.start - recorder.started) / 1e3, s.duration / 1e3,
                          -1 if s.item is None else self.items.get(id(s.item), -1), s.kernels] for s in recorder.spans],
            "memory": self._memory(),
            "totals": {"wall": end - recorder.started, "schedule": recorder.scheduling, "compile": recorder.compiling,
                       "run": recorder.running, "kernels": spent, "runs": recorder.run_count},
            "lines": self.tables.line_rows(), "files": self.tables.file_rows(),
        }

    # -- graphs ----------------------------------------------------------------------------------------------
    def _graph(self, number: int, graph: RecordedGraph) -> dict[str, Any]:
        kernels = [self._kernel(k.item, number, k.nodes, k.roots, graph.compiled) for k in graph.kernels]
        return {"written": self._rows(graph.written), "nodes": self._rows(graph.compiled), "sinks": graph.sinks,
                "kernels": kernels, "passes": self._passes(graph.passes), "live": graph.live,
                "line": self.tables.line(graph.compiled[graph.sinks[0]].place) if graph.sinks else -1}

    def _rows(self, rows: Sequence[NodeRow]) -> list[list[Any]]:
        return [[r.op, r.kind, r.dtype, [str(n) if not isinstance(n, int) else n for n in r.shape], r.sources,
                 r.argument, self.tables.line(r.place), *self._noted(r.place)] for r in rows]

    def _passes(self, passes: Sequence[PassText], only: Set[int] | None = None) -> list[dict[str, Any]]:
        """Return the texts of passes, with the user's lines of each text line; `only` restricts those to the given
        ones."""
        def numbers(places: Sequence[Place]) -> list[int]:
            found = {self.tables.line(place) for place in places} - {-1}
            return sorted(found if only is None else found & only)

        return [{"name": p.name, "stage": p.stage, "does": p.does, "file": p.file, "text": p.text,
                 "links": _trimmed([numbers(row) for row in p.links]) if p.text is not None else [],
                 "rules": [[name, times, *first] for name, (times, first) in p.rules.items()],
                 "steps": self._passes(p.steps, only)} for p in passes]

    # -- kernels ---------------------------------------------------------------------------------------------
    def _kernel(self, item: Item, graph: int, nodes: Sequence[int] = (), roots: Sequence[int] = (),
                rows: Sequence[NodeRow] = ()) -> int:
        known = self.items.get(id(item))
        if known is not None:
            return known
        number = self.items[id(item)] = len(self.kernels)
        self._asts.append(item)
        lines = Counter(line for n in nodes if (line := self.tables.line(rows[n].place)) >= 0)
        place = rows[_main_node(rows, nodes, roots)].place if nodes and roots else None
        main = self.tables.line(place)
        if main < 0 and item.lines:
            main = self.tables.number(item.lines[0])
        call, backward = self._noted(place)
        forward = self.tables.line(calls_of(place).forward) if backward else -1
        stores = [s for s in item.ast.src if s.op is o.STORE]
        self.kernels.append({
            "graph": graph, "name": "", "device": item.device or "", "program": -1, "reasons": item.reasons,
            "line": main, "lines": lines.most_common(), "nodes": nodes, "roots": roots, "call": call,
            "backward": backward, "forward": forward,
            "reads": item.slots[item.results:], "writes": item.slots[:item.results],
            "shape": [str(n) for n in stores[0].shape] if stores else [], "operations": 0, "bytes": 0, "runs": 0,
            "ns": 0, "contraction": any(n.op is o.SUM and n.src[0].op is o.MUL for n in item.ast.toposort())})
        return number

    def _times(self) -> None:
        for group in self.recorder.groups:
            rows = zip(group.items, group.programs, group.costs(), group.kernel_nanoseconds())
            for item, program, (operations, nbytes), spent in rows:
                kernel = self.kernels[self.items[id(item)]]
                kernel.update(name=program.name, operations=operations, bytes=nbytes,
                              tuned=getattr(program, "speedup", 0.0))
                kernel["runs"] += group.runs
                kernel["ns"] += round(spent)

    def _judge(self) -> None:
        for kernel in self.kernels:
            each = kernel["ns"] / max(1, kernel["runs"])
            verdict = judge(kernel["name"], kernel["operations"], kernel["bytes"], each, self._peak(kernel["device"]),
                            kernel["reasons"], kernel["contraction"], bool(kernel.get("tuned")),
                            _columns(kernel["shape"]))
            kernel.update(bound=verdict.bound, share=round(verdict.share, 4), why=verdict.why, tries=verdict.tries)

    def _programs(self) -> list[dict[str, Any]]:
        """Return the slowest distinct kernels, pass by pass."""
        found: dict[Any, int] = {}
        programs: list[dict[str, Any]] = []
        start = process_time()
        for number in sorted(range(len(self.kernels)), key=lambda k: -self.kernels[k]["ns"]):
            kernel, item = self.kernels[number], self._asts[number]
            key = (item.ast, kernel["device"])
            if key not in found:
                if len(programs) >= MOST_TEXTS or process_time() - start > MOST_SECONDS:
                    continue
                texts = kernel_texts(item.ast, kernel["device"], len(programs) < MOST_ASSEMBLIES)
                found[key] = len(programs)
                lines = {self.tables.line(n.place) for n in item.ast.toposort() if n.op not in _STRUCTURE} - {-1}
                programs.append({"passes": self._passes(texts.passes, lines), "moves": texts.moves,
                                 "assembly": texts.assembly, "source_links": _trimmed(texts.source_links),
                                 "assembly_links": _trimmed(texts.assembly_links),
                                 "row_ops": texts.row_ops})
            kernel["program"] = found[key]
        return programs

    # -- the rest --------------------------------------------------------------------------------------------
    def _groups(self) -> list[dict[str, Any]]:
        return [{"kernels": [self.items[id(item)] for item in group.items], "runs": group.runs,
                 "ns": group.nanoseconds, "replay": group.replay, "between": group.between}
                for group in self.recorder.groups if group.runs]

    def _memory(self) -> dict[str, Any]:
        memory, start = self.recorder.memory, self.recorder.started
        values = sorted(memory.values, key=lambda v: -v.nbytes)
        rest = values[MOST_PEAK_VALUES:]
        return {"samples": [[(time - start) / 1e3, nbytes] for time, nbytes in memory.samples], "peak": memory.peak,
                "peak_time": (memory.peak_time - start) / 1e3,
                "values": [self._value(v) for v in values[:MOST_PEAK_VALUES]],
                "others": len(rest), "other_bytes": sum(v.nbytes for v in rest)}

    def _value(self, value: LiveValue) -> list[Any]:
        return [value.nbytes, value.dtype, list(value.shape), self.tables.line(value.place), value.between,
                self._noted(value.place)[0]]

    def _noted(self, place: Place | None) -> tuple[int, int]:
        """Return a place's call (-1 if this recorder did not record it), and 1 if it is part of a gradient."""
        noted = calls_of(place)
        return (noted.call, int(noted.backward)) if noted is not None and noted.tree is self.recorder.calls else (-1, 0)

    def _peak(self, device: str) -> Peak:
        """Return the best rates measured, or reached by a recorded kernel."""
        if not self.measure or not device:
            return Peak(0.0, 0.0)
        if device not in self._peaks:
            mine = [k for k in self.kernels if k["device"] == device and k["ns"]]
            peak = measured_peak(device)
            self._peaks[device] = Peak(
                max([peak.gflops, *[k["operations"] * k["runs"] / k["ns"] for k in mine]]),
                max([peak.gigabytes_per_second, *[k["bytes"] * k["runs"] / k["ns"] for k in mine
                                                  if k["bytes"] > BEYOND_CACHES]]))
        return self._peaks[device]

    def _device(self, name: str) -> dict[str, Any]:
        peak = self._peak(name)
        return {"description": Device[name].description if name else "", "gflops": peak.gflops,
                "gigabytes": peak.gigabytes_per_second}


def _main_node(rows: Sequence[NodeRow], nodes: Sequence[int], roots: Sequence[int]) -> int:
    """Return the node that stands for a kernel: its largest reduction, or else its first result."""
    size = lambda n: math.prod(s if isinstance(s, int) else 1 for s in rows[rows[n].sources[0]].shape)
    return max((n for n in nodes if rows[n].kind == Kind.REDUCE), key=size, default=roots[0])


def _columns(shape: Sequence[str]) -> int:
    """Return the row length of a result that is a matrix; 0 if it is not one, or if the length is symbolic."""
    long = [size for size in shape if size != "1"]
    return int(long[-1]) if len(long) == 2 and long[-1].isdigit() else 0


def _trimmed(rows: list[list[int]]) -> list[list[int]]:
    """The rows without empty ones at the end."""
    while rows and not rows[-1]:
        rows.pop()
    return rows
