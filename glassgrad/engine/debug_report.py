"""What DEBUG shows. In: kernels that ran. Out: lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassgrad.base.settings import settings
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.schedule.kernels import Item
from glassgrad.engine.memory_plan import MemoryUse
from glassgrad.runtime.devices import Device


def report_kernel(number: int, item: Item, program: Any, nanoseconds: int, cost: tuple[int, int]) -> None:
    """DEBUG=2: name, time, speed, the user's line, shapes and moves of one kernel; `cost` are the operations and bytes
    of this run."""
    shapes = " ".join(f"{n.dtype.name}{list(n.shape)}" for n in sorted(
        (n for n in item.ast.toposort() if n.op is o.PARAM), key=lambda n: n.arg.slot))
    line = item.lines[0].short if item.lines else ""
    operations, nbytes = [each / max(nanoseconds, 1) for each in cost]
    print(f"*** {item.device:<6} {number:4d} {program.name:<36} {nanoseconds / 1000:10.1f} us {operations:8.1f} GFLOPS "
          f"{nbytes:7.1f} GB/s  {line}  {shapes}  {_moves_text(program)}".rstrip())


def _moves_text(program: Any) -> str:
    """A kernel's moves, and whether a search chose them; devices without moves have none."""
    speedup = getattr(program, "speedup", 0.0)
    searched = "" if not speedup else f" tuned: {speedup:.2f}x" if speedup != 1 else " tuned: the recipe"
    return " ".join(getattr(program, "moves", ())) + searched


def show_source(item: Item) -> None:
    """DEBUG=3: the kernel's source, readable."""
    if item.ast.op not in (o.COPY, o.CALL):
        print(Device[item.device or ""].source(item.ast))


def report_run(kernels: int, seconds: float, memory: MemoryUse) -> None:
    """DEBUG=1: how much ran, how long, and in how much memory."""
    print(f"{kernels} kernel{'' if kernels == 1 else 's'}, {seconds * 1000:.1f} ms, {memory}")


def report_parts(parts: Sequence[tuple[str, Sequence[Item]]]) -> None:
    """DEBUG=1: a jitted call that is not one list of launches, and what stands between its parts."""
    if len(parts) > 1:
        kinds = {o.COPY: "a copy between devices", o.CALL: "a function of your own"}
        print("jit: a replay is in parts: " + ", ".join(
            kinds.get(items[0].ast.op, f"{len(items)} kernel{'' if len(items) == 1 else 's'} on {device}")
            for device, items in parts))


def report_sizes(what: str) -> None:
    """DEBUG=1: what is done about sizes that change."""
    if settings.DEBUG >= 1:
        print(f"DYNAMIC: {what}")
