"""Print what DEBUG shows. In: kernels that ran. Out: lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassgrad.base.settings import settings
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.schedule.kernels import Item
from glassgrad.engine.memory_plan import MemoryUse
from glassgrad.runtime.devices import Device


def report_kernel(number: int, item: Item, program: Any, nanoseconds: int, cost: tuple[int, int]) -> None:
    """DEBUG=2: print name, time, speed, the user's line, shapes and moves of one kernel; `cost` are the operations and
    bytes of this run."""
    shapes = " ".join(f"{n.dtype.name}{list(n.shape)}" for n in sorted(
        (n for n in item.ast.toposort() if n.op is o.PARAM), key=lambda n: n.arg.slot))
    line = item.lines[0].short if item.lines else ""
    operations, nbytes = [each / max(nanoseconds, 1) for each in cost]
    print(f"*** {item.device:<6} {number:4d} {program.name:<36} {nanoseconds / 1000:10.1f} us {operations:8.1f} GFLOPS "
          f"{nbytes:7.1f} GB/s  {line}  {shapes}  {_moves_text(program)}".rstrip())


def _moves_text(program: Any) -> str:
    """Return a kernel's moves, and whether a search chose them; empty on devices without moves."""
    speedup = getattr(program, "speedup", 0.0)
    searched = "" if not speedup else f" tuned: {speedup:.2f}x" if speedup != 1 else " tuned: the recipe"
    return " ".join(getattr(program, "moves", ())) + searched


def show_source(item: Item) -> None:
    """DEBUG=3: print the kernel's source in readable form."""
    if item.ast.op not in (o.COPY, o.CALL):
        print(Device[item.device or ""].source(item.ast))


def report_run(kernels: int, seconds: float, memory: MemoryUse) -> None:
    """DEBUG=1: print how many kernels ran, for how long, and in how much memory."""
    print(f"{kernels} kernel{'' if kernels == 1 else 's'}, {seconds * 1000:.1f} ms, {memory}")


def report_parts(parts: Sequence[tuple[str, Sequence[Item]]]) -> None:
    """DEBUG=1: if a jitted call is not one list of launches, print what it consists of."""
    if len(parts) > 1:
        kinds = {o.COPY: "a copy between devices", o.CALL: "a function of your own"}
        print("jit: a replay is in parts: " + ", ".join(
            kinds.get(items[0].ast.op, f"{len(items)} kernel{'' if len(items) == 1 else 's'} on {device}")
            for device, items in parts))


def report_sizes(what: str) -> None:
    """DEBUG=1: print what is done about sizes that change."""
    if settings.DEBUG >= 1:
        print(f"DYNAMIC: {what}")
