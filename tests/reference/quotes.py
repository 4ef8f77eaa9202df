"""Compare what a page quotes with what a command printed.

A line of dots skips lines, dots inside a line skip characters, and measured numbers may differ.
"""

from __future__ import annotations

import re

MEASURED = re.compile(r"\d[\d.,]*(?= *(ms|us|s|GFLOPS|GB/s)\b)")


def comparable(line: str) -> str:
    return " ".join(MEASURED.sub("#", line).split())


def matches(line: str, wanted: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, comparable(wanted).split("..."))), comparable(line)) is not None


def missing(quote: list[str], printed: list[str]) -> str | None:
    """The first line of a quote that was not printed where it should be; None when all were."""
    at, skipping = 0, True
    for wanted in quote:
        if wanted.strip() == "...":
            skipping = True
            continue
        if skipping:
            at = next((i for i in range(at, len(printed)) if matches(printed[i], wanted)), len(printed))
        if at >= len(printed) or not matches(printed[at], wanted):
            return wanted
        at, skipping = at + 1, False
    return None
