"""A program that fails, with the calls that it needs for that. In: a program of a fuzzer. Out: what is wrong, or ""."""

from __future__ import annotations

from typing import Any


def failure_with_needed_calls(program: Any) -> str:
    """What is wrong with a program, without those of its calls that do not matter for it."""
    wrong: str = program.fails()
    position = 0
    while wrong and position < len(program.calls) > 1:
        before = program.calls
        program.calls = before[:position] + before[position + 1:]
        found = program.fails()
        wrong = found or wrong
        if not found:
            program.calls, position = before, position + 1
    return wrong
