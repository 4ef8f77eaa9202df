"""Report a device's grade and results. In: results of checks. Out: `Report`: a table, JSON, a section of a page."""

from __future__ import annotations

import datetime
import platform
import re
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from glassgrad.conformance.case import CRASHED, FAILED, HUNG, NOT_RUN, PASSED, REFUSED, CheckResult
from glassgrad.conformance.check_groups import GROUPS
from glassgrad.runtime.backend import DeviceRecord

WRONG = (FAILED, CRASHED, HUNG, NOT_RUN)
MOST_SHOWN = 12            # failures that are shown in full; the others are only named
TABLE_HEAD = f"{'grade':<6} {'group':<14} {'passed':>6} {'failed':>6} {'refused':>7} {'seconds':>8}"
PAGE = """# Conformance

For readers who want to know which checks each device passes. `glassgrad conformance NAME --write
docs/devices/conformance.md` writes a section, on the machine and at the commit that it names. A section with fewer than
nine groups is from a run with `--only`. [Devices](index.md) without a section were not run.
`MY` is the device of [project 7](../guide/07_custom_backend.md).
[Adding a backend](../extending/backend.md) says what the grades are.
"""


@dataclass
class Report:
    """The results of one run."""
    device: str
    record: DeviceRecord
    script: str = ""
    results: list[CheckResult] = field(default_factory=list)
    date: str = ""
    commit: str = ""

    def finish(self) -> None:
        """Record the date and the commit."""
        self.date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
        self.commit = _commit()

    # -- results ---------------------------------------------------------------------------------------------
    @property
    def opens(self) -> bool:
        """Whether the device could be opened, if that is known."""
        return not any(r.outcome in WRONG for r in self.results if (r.group, r.case) == ("copies", "the device opens"))

    @property
    def groups(self) -> list[str]:
        """The groups that were requested, in order."""
        return list(dict.fromkeys(result.group for result in self.results))

    @property
    def grade(self) -> int:
        """The number of groups, from the first on, in which all checks passed or were refused."""
        for number, group in enumerate(GROUPS):
            found = [r.outcome for r in self.results if r.group == group.name]
            if not found or any(outcome in WRONG for outcome in found):
                return number
        return len(GROUPS)

    @property
    def failures(self) -> list[CheckResult]:
        """The results that are neither passed nor refused."""
        return [result for result in self.results if result.outcome in WRONG]

    @property
    def passed(self) -> bool:
        """Whether nothing that was run failed."""
        return bool(self.results) and not self.failures

    @property
    def missing(self) -> dict[str, list[CheckResult]]:
        """What the device refuses: element types, each with the checks that need it."""
        found: dict[str, list[CheckResult]] = {}
        for result in self.results:
            if result.outcome == REFUSED:
                found.setdefault(result.given, []).append(result)
        return found

    def counts(self, group: str) -> dict[str, int]:
        """Return how many checks of a group passed, failed (or crashed, hung, were not run), and were refused."""
        ended = [result.outcome for result in self.results if result.group == group]
        return {"passed": ended.count(PASSED), "failed": sum(outcome in WRONG for outcome in ended),
                "refused": ended.count(REFUSED)}

    def next_step(self, result: CheckResult) -> str:
        """Say what to try for a check that did not pass."""
        source = f" --from {self.script}" if self.script else ""
        again = f"glassgrad conformance {self.device} --only {result.group}{source}"
        look = next(group.look for group in GROUPS if group.name == result.group)
        if result.case == "the device opens":
            install = self.record.install
            return f"install what it needs: {install}" if install else "correct how it is opened"
        if result.outcome == CRASHED:
            return f"a kernel or a copy touches memory that is not its own; look at {look}"
        if result.outcome == HUNG:
            return f"a launch or a wait does not return; a longer limit: {again} --timeout 600"
        if result.outcome == NOT_RUN:
            return "correct the failures before it"
        return f"CHECK=1 {again}: names the kernel and the pass that is wrong; look at {look}"

    # -- as text ---------------------------------------------------------------------------------------------
    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield TABLE_HEAD
        yield from (self.table_row(group) for group in self.groups)
        yield self.conclusion()

    def table_row(self, group: str) -> str:
        """Return the row of a group, under `TABLE_HEAD`."""
        number = [grade.name for grade in GROUPS].index(group) + 1
        count = self.counts(group)
        seconds = sum(r.seconds for r in self.results if r.group == group)
        return (f"{number:<6} {group:<14} {count['passed']:>6} {count['failed']:>6} {count['refused']:>7} "
                f"{seconds:>8.1f}")

    def conclusion(self) -> str:
        """Return what follows the table: the verdict, what is missing, and the failures in full."""
        return "\n".join(self._conclusion_lines())

    def _conclusion_lines(self) -> Iterator[str]:
        yield f"\n{self.device}: {self._verdict()}"
        for name, refused in self.missing.items():
            yield f"\nmissing: {name}, in {len(refused)} checks\n{_indented(refused[0].got.splitlines()[0], 2)}"
        for result in self.failures[:MOST_SHOWN]:
            yield f"\n{result.outcome}: {result.group}, {result.case}"
            for name, text in self._row(result).items():
                yield f"  {name + ':':<10}{_indented(text, 12).lstrip()}"
        if len(self.failures) > MOST_SHOWN:
            yield f"\nand {len(self.failures) - MOST_SHOWN} more:"
            yield from (f"  {r.outcome}: {r.group}, {r.case}" for r in self.failures[MOST_SHOWN:])

    def _verdict(self) -> str:
        if set(self.groups) < {group.name for group in GROUPS}:
            return "passed" if self.passed else "failed"
        lacks = f"; it refuses {', '.join(self.missing)}" if self.missing else ""
        return f"grade {self.grade} of {len(GROUPS)}{lacks}"

    def _row(self, result: CheckResult) -> dict[str, str]:
        rows = {"given": result.given, "expected": result.expected, "got": result.got, "next": self.next_step(result)}
        return {name: text for name, text in rows.items() if text}

    def as_json(self) -> dict[str, Any]:
        """All results as JSON."""
        return {"device": self.device, "target": self.record.target, "dialect": self.record.dialect, "date": self.date,
                "commit": self.commit, "grade": self.grade, "of": len(GROUPS), "passed": self.passed,
                "groups": {name: self.counts(name) for name in self.groups}, "missing": list(self.missing),
                "results": [{**asdict(result), **({"next": self.next_step(result)} if result.outcome in WRONG else {})}
                            for result in self.results]}

    # -- as a section of a page ------------------------------------------------------------------------------
    def as_markdown(self) -> str:
        """The section of this device on the page of all devices."""
        lines = [f"## {self.device}", "",
                 f"{self._verdict()[0].upper()}{self._verdict()[1:]}. Run {self.date} at {self.commit}, with Python "
                 f"{platform.python_version()} on {platform.system()} {platform.machine()}.", "",
                 "| grade | group | passed | failed | refused |", "|---|---|---|---|---|"]
        for number, group in enumerate(GROUPS, 1):
            if group.name in self.groups:
                lines.append(f"| {number} | {group.name} | " +
                             " | ".join(str(n) for n in self.counts(group.name).values()) + " |")
        for name, refused in self.missing.items():
            lines += ["", f"Missing: {name}. `{refused[0].got.splitlines()[0]}`"]
        for result in self.failures:
            lines += ["", f"{result.outcome.capitalize()}: {result.group}, {result.case}. " +
                      "; ".join(f"{name}: {text.splitlines()[0]}" for name, text in self._row(result).items())]
        return "\n".join(lines) + "\n"

    def write(self, path: Path) -> None:
        """Put this device's section into the page, in the place of an older one or at the end."""
        text = path.read_text() if path.exists() else PAGE
        head, *sections = re.split(r"^(?=## )", text, flags=re.M)
        kept = {re.match(r"## (\S+)", section)[1]: section.rstrip() + "\n" for section in sections}  # type: ignore[index]
        kept[self.device] = self.as_markdown()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(head.rstrip() + "\n\n" + "\n".join(kept.values()))


def _indented(text: str, by: int) -> str:
    return "\n".join(" " * by + line for line in text.splitlines())


def _commit() -> str:
    """Return the commit of a checkout, or the version of the installed package."""
    here = Path(__file__).resolve().parents[2]
    try:
        done = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=here, capture_output=True, text=True,
                              check=True)
        return f"commit {done.stdout.strip()}"
    except (OSError, subprocess.CalledProcessError):
        pass
    try:
        return f"version {version('glassgrad')}"
    except PackageNotFoundError:
        return "an unknown version"
