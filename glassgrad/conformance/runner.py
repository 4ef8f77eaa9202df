"""Run the checks of a device. In: a device's name, groups, and the script or module that registers it. Out: a `Report`.

Each group runs in a separate process, which writes a line after each check. If a process ends early, the check that it
had begun crashed; if it writes nothing for too long, that check hangs. The rest of the group then runs in another
process, so that a device whose kernels crash can be graded too.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import IO

from glassgrad.base.errors import DeviceError
from glassgrad.conformance.case import CRASHED, HUNG, NOT_RUN, CheckResult, check
from glassgrad.conformance.check_groups import Grade, chosen
from glassgrad.conformance.child_process import load_devices
from glassgrad.conformance.report import TABLE_HEAD, Report
from glassgrad.runtime.devices import Device
from glassgrad.runtime.disk_device import on_disk

MOST_HANGS = 2           # in one group, because each takes the whole time limit
LONGEST_START = 60.0     # seconds until a process has imported what it needs
MOST_PRINTED, MOST_SHOWN = 200, 10      # lines of a device's output: kept, and shown


def conformance(device: str, only: Sequence[str] = (), *, script: str = "", timeout: float = 60.0,
                isolated: bool = True, show: Callable[[str], None] = lambda line: None) -> Report:
    """Grade a device. `script` registers it: a Python file or a module. A device that this process registered itself is
    graded in this process, with `isolated=False`. `show` gets each line of the table as soon as it is known."""
    groups = chosen(only)
    if script:
        load_devices(script)
    name = Device.canonicalize(device)
    if on_disk(name):
        raise DeviceError("a file does not compute: there is nothing to grade", given=name,
                          expected="a device that runs kernels", fix=f"one of {', '.join(Device.records)}")
    report = Report(name, Device.records[name], script)
    show(TABLE_HEAD)
    for group in groups:
        if report.opens:
            runs = _isolated(name, group, script, timeout) if isolated else _here(name, group)
            report.results.extend(runs)
        else:                                               # all checks would fail in the same way
            report.results.extend(CheckResult(group.name, case.name, NOT_RUN) for case in group.cases())
        show(report.table_row(group.name))
    report.finish()
    return report


def _here(device: str, group: Grade) -> Iterator[CheckResult]:
    for case in group.cases():
        yield check(group.name, case, device)


# -- in a separate process -----------------------------------------------------------------------------------
def _isolated(device: str, group: Grade, script: str, timeout: float) -> Iterator[CheckResult]:
    """Return the results of a group, run in child processes: a new one after each crash or hang."""
    waiting, hangs = [case.name for case in group.cases()], 0
    while waiting and hangs < MOST_HANGS:
        child = _Child(device, group.name, waiting[0], script)
        for line in child.lines(timeout):
            yield CheckResult(**json.loads(line))
            waiting.pop(0)
        if waiting:
            hangs += child.hung
            outcome = HUNG if child.hung else CRASHED
            yield CheckResult(group.name, waiting.pop(0), outcome, "", "a result", child.says(timeout))
    yield from (CheckResult(group.name, name, NOT_RUN, "", "", "two checks before it hang") for name in waiting)


class _Child:
    """A process that runs the checks of a group, starting at a given one."""

    def __init__(self, device: str, group: str, first: str, script: str):
        self.hung = False
        words = [sys.executable, "-m", "glassgrad.conformance.child_process", device, group, first, script]
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, env=_environment())
        self.printed: list[str] = []
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._threads = [threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True),
                         threading.Thread(target=self._drain, args=(self.process.stderr,), daemon=True)]
        for thread in self._threads:
            thread.start()

    def _read(self, pipe: IO[bytes]) -> None:
        with pipe:
            for line in pipe:
                self._lines.put(line)
        self._lines.put(b"")

    def _drain(self, pipe: IO[bytes]) -> None:
        """Keep the last lines that the device prints, for the report of a crash."""
        with pipe:
            for line in pipe:
                self.printed = [*self.printed[-MOST_PRINTED:], line.decode(errors="replace").rstrip()]

    def lines(self, timeout: float) -> Iterator[bytes]:
        """Yield the lines of results, until the process ends or is silent for too long, which sets `hung`."""
        try:
            line = self._lines.get(timeout=max(timeout, LONGEST_START))
            while line and (line := self._lines.get(timeout=timeout)):
                yield line
            self.process.wait(timeout)
        except (queue.Empty, subprocess.TimeoutExpired):
            self.hung = True
            self.process.kill()
            self.process.wait()
        for thread in self._threads:
            thread.join(5)

    def says(self, timeout: float) -> str:
        """Say how the process ended, with its last lines of output or the start of Python's report of a fatal
        signal."""
        code = self.process.returncode
        if self.hung:
            how = f"nothing came for {timeout:g} s"
        elif code < 0:
            how = f"the process was ended by {signal.Signals(-code).name}"
        else:
            how = f"the process ended with status {code}"
        fatal = [number for number, line in enumerate(self.printed) if line.startswith("Fatal Python error")]
        shown = self.printed[fatal[0]:][:MOST_SHOWN] if fatal else self.printed[-MOST_SHOWN:]
        return "\n".join([how, *shown])


def _environment() -> dict[str, str]:
    """Return this process's environment, with the same import path, and with a traceback on fatal signals."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONFAULTHANDLER": "1"}

