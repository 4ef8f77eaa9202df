"""Explain where the time goes. In: a lazy tensor, a function, or a recording. Out: `Explanation`.

    print(explain(loss))                a tensor that is not computed yet: it is computed, and stays lazy
    print(explain(step, x, y))          a function, jitted or not: it is called, and what it runs is measured

In a notebook the last expression of a cell shows the same as a table with bars. `save` writes the visualizer's page.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.compiler.graph.rules.rewrite import note_rules
from glassgrad.engine.observer import observed_by
from glassgrad.engine.realize import forgotten_schedules, realize
from glassgrad.tensor.tensor import Tensor
from glassgrad.viz.page_data import page_data
from glassgrad.viz.program_recording import recording
from glassgrad.viz.recorder import Recorder

WARM_CALLS = 3                  # calls of a function before it is measured: by then a jitted one is captured
MEASURED_CALLS = 3
MOST_ROWS = 12
BOUND = {"memory": "moving data", "arithmetic": "arithmetic", "launch": "starting it", "copy": "a copy between devices"}


def explain(what: Tensor | Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """The kernels of a tensor or function, by cost: for each the user's line, what bounds it, its share of peak, and
    what to try.

    A tensor is computed, and stays as lazy as it was; a function is called with the arguments, several times.

    >>> x = Tensor.ones(64, 64).contiguous().realize()
    >>> found = explain((x @ x).relu())
    >>> len(found.kernels), found.kernels[0]["bound"] in BOUND
    (1, True)
    """
    if isinstance(what, Tensor):
        if args or kwargs:
            raise InputError("a tensor is explained without arguments",
                             given=f"explain(tensor, ...) with {len(args) + len(kwargs)} more",
                             expected="explain(tensor), or explain(function, *arguments)", fix="leave the others away")
        if what.uop.base.op.name == "BUFFER":
            raise InputError("the tensor is in memory already: nothing is left to run", given=f"{what!r}",
                             expected="a tensor that is not realized yet, or a function",
                             fix="explain it before .realize(), .numpy() or .item(), or the function that makes it")
        node = what.uop
        with explained() as found, forgotten_schedules():
            for _ in range(MEASURED_CALLS):
                realize([node], what.device, recompute=True)
        return found
    if not callable(what):
        raise InputError("explain takes a tensor or a function", given=type(what).__name__,
                         expected="a Tensor that is not realized, or a callable",
                         fix="pass the function, not its result")
    with explained() as found, forgotten_schedules():
        for _ in range(WARM_CALLS + MEASURED_CALLS):
            _finish(what(*args, **kwargs))
    return found


def _finish(result: Any) -> None:
    """Realize the lazy tensors that a function returned."""
    if isinstance(result, Tensor):
        result.realize()
    elif isinstance(result, (list, tuple)):
        for one in result:
            _finish(one)


@contextmanager
def explained() -> Iterator[Explanation]:
    """Record what runs inside the block, for an `Explanation`.

    >>> with explained() as found:
    ...     _ = (Tensor([1.0, 2.0]) * 3).realize()
    >>> len(found.kernels)
    1
    """
    recorder, found, outer = Recorder(), Explanation(), recording()
    if outer is None:                    # otherwise the whole program is recorded, and calls are noted already
        recorder.watch_calls()
        note_rules(recorder.applied)
    else:
        recorder.calls = outer.calls
    try:
        with observed_by(recorder):
            yield found
    finally:
        if outer is None:
            recorder.stop()
            note_rules(None)
        found.recorder = recorder


class Explanation:
    """The kernels that ran, by cost. Prints as text; a notebook shows it as a table."""

    def __init__(self, recorder: Recorder | None = None):
        self.recorder = recorder
        self._data: dict[str, Any] | None = None

    @property
    def data(self) -> dict[str, Any]:
        """The page's data (page_data.py)."""
        if self._data is None:
            self._data = page_data(self.recorder or Recorder(), texts=False)
        return self._data

    @property
    def kernels(self) -> list[dict[str, Any]]:
        """The kernels that ran, the slowest first."""
        return sorted((k for k in self.data["kernels"] if k["runs"]), key=lambda k: -k["ns"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the visualizer's page of this recording: one HTML file."""
        from glassgrad.viz.html_file import write_page
        write_page(page_data(self.recorder or Recorder()), path)

    def line(self, number: int) -> tuple[str, str]:
        """Return the file and number of a line, and its text, by its index in the data."""
        if number < 0:
            return "", ""
        file, at = self.data["lines"][number]
        text = self.data["files"][file]["text"]
        rows = [] if text is None else text.split("\n")
        return f"{self.data['files'][file]['name']}:{at}", rows[at - 1].strip() if at <= len(rows) else ""

    def call(self, number: int) -> str:
        """The layers and functions around a kernel."""
        names = []
        while number >= 0:
            number, name, _ = self.data["calls"][number]
            names.append(name)
        return " > ".join(reversed(names))

    def __str__(self) -> str:
        kernels = self.kernels
        if not kernels:
            return "no kernel ran"
        total = sum(k["ns"] for k in kernels) or 1
        rows = [f"{len(kernels)} kernel{'s' * (len(kernels) > 1)}, {_time(total)} in all runs together", *[
            f"{name} at best, measured: {d['gflops']:.0f} GFLOPS, {d['gigabytes']:.1f} GB/s"
            for name, d in self.data["devices"].items()]]
        for number, k in enumerate(kernels[:MOST_ROWS], 1):
            line, text = self.line(k["line"])
            each = _time(k["ns"] / k["runs"])
            rows += ["", f"{number:2d}. {k['ns'] / total:4.0%}  {k['name']}  {k['runs']} x {each}",
                     f"    line    {line}  {text}" if line else "    line    none of yours"]
            where = self.call(k["call"])
            if where:
                rows.append(f"    call    {where}{' (its gradient)' if k['backward'] else ''}")
            rows.append(f"    why     bound by {BOUND[k['bound']]}: {k['why']}")
            rows += [f"    try     {words}" for words in k["tries"]]
            rows.append(f"    stored  {'; '.join(dict.fromkeys(k['reasons']))}")
        if len(kernels) > MOST_ROWS:
            rest = kernels[MOST_ROWS:]
            rows += ["", f"and {len(rest)} more kernels, {sum(k['ns'] for k in rest) / total:.0%} of the time"]
        return "\n".join(rows)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return a table with bars, for notebooks."""
        kernels = self.kernels
        total = sum(k["ns"] for k in kernels) or 1
        rows = "".join(self._html_row(k, total) for k in kernels[:MOST_ROWS])
        style = ("border-collapse:collapse;font:12px sans-serif", "text-align:left;padding:3px 8px")
        head = "".join(f'<th style="{style[1]}">{name}</th>' for name in
                       ("share", "kernel", "each", "line", "bound by", "of peak", "why"))
        return f'<table style="{style[0]}"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'

    def _html_row(self, k: dict[str, Any], total: int) -> str:
        line, text = self.line(k["line"])
        bar = lambda part, color: (
            f'<div style="width:70px;background:#8883;border-radius:3px"><div style="width:{min(100, 100 * part):.0f}%;'
            f'height:7px;border-radius:3px;background:{color}"></div></div>')
        color = {"memory": "#1f7a8c", "arithmetic": "#7a4fd0"}.get(k["bound"], "#b0661a")
        cells = [bar(k["ns"] / total, "#2460d8") + f"{k['ns'] / total:.0%}", f"<code>{escape(k['name'])}</code>",
                 f"{k['runs']} &times; {_time(k['ns'] / k['runs'])}",
                 f"<b>{escape(line)}</b><br><code>{escape(text)}</code>", escape(k["bound"]),
                 bar(k["share"], color) + f"{k['share']:.0%}",
                 escape(k["why"]) + "".join(f"<br><i>try: {escape(words)}</i>" for words in k["tries"])
                 + f"<br>stored: {escape('; '.join(dict.fromkeys(k['reasons'])))}"]
        return "<tr>" + "".join(f'<td style="text-align:left;vertical-align:top;padding:3px 8px">{c}</td>'
                                for c in cells) + "</tr>"


def _time(nanoseconds: float) -> str:
    for unit, name in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if nanoseconds >= unit:
            return f"{nanoseconds / unit:.{2 if unit == 1e9 else 1}f} {name}"
    return f"{nanoseconds:.0f} ns"
