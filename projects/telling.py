"""What the projects share: headings, stopwatches, kernel counts. In: functions. Out: lines of text, numbers.

GLASSGRAD_SHORT=1 makes the long projects short: the same claims on less data, as the tests run them.
"""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Callable
from typing import Any

from glassgrad import Context, GlobalCounters, Tensor
from glassgrad.compiler.graph.uop import UOp

SHORT = os.environ.get("GLASSGRAD_SHORT", "0") not in ("", "0")
_chapters = 0


def chapter(title: str) -> None:
    """A heading, numbered."""
    global _chapters
    _chapters += 1
    print(f"\n{'' if _chapters == 1 else chr(10)}{_chapters}. {title}\n{'-' * (len(title) + 3)}", flush=True)


def tell(text: str) -> None:
    """A paragraph, whatever its indentation in the script."""
    print(textwrap.fill(" ".join(text.split()), 100), flush=True)


def kernels_of(tensor: Tensor, *others: Tensor) -> int:
    """How many kernels realizing these would run; runs nothing."""
    return len(tensor.schedule(*others))


def kernels(number: int) -> str:
    """A number of kernels, in words.

    >>> kernels(1), kernels(3)
    ('1 kernel', '3 kernels')
    """
    return f"{number} kernel{'' if number == 1 else 's'}"


def kernels_run(function: Callable[[], Any]) -> int:
    """How many kernels a call launches."""
    before = GlobalCounters.kernel_count
    function()
    return GlobalCounters.kernel_count - before


def best_ms(function: Callable[[], Any], times: int = 5) -> float:
    """The shortest of several runs, in milliseconds, after one that warms up: other programs only ever add time.
    Where they take seconds, as interpreted ones may, fewer runs will do."""
    function()
    best, began = float("inf"), time.perf_counter()
    for _ in range(times):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
        if time.perf_counter() - began > 5:
            break
    return best * 1000


def tree(node: UOp, depth: int = 0, seen: set[UOp] | None = None) -> str:
    """A graph as an outline: every node above its sources, shared ones once."""
    seen = set() if seen is None else seen
    known = node in seen
    seen.add(node)
    arg = "" if node.arg is None else f" {node.arg}"
    line = f"{'  ' * depth}{node.op.name} {node.dtype.name}{list(node.shape)}{arg}"
    if known and node.src:
        return line + "  (shown above)"
    return "\n".join([line, *(tree(s, depth + 1, seen) for s in node.src)])


def body_of(source: str) -> str:
    """Generated C without the helpers in front: the kernel itself."""
    lines = source.strip().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("void "))
    return "\n".join(lines[first:])


def plain_source(tensor: Tensor) -> str:
    """The C of the first kernel that a tensor needs, as it is before any optimization: one loop per axis."""
    from glassgrad import Device
    with Context(NOOPT=1):
        item = tensor.schedule()[0]
        return body_of(Device["CPU"].source(item.ast))
