"""What DEBUG and CHECK show. In: kernels that ran. Out: lines of text, or a `Bug` that names the kernel."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from glassgrad.base.errors import Bug
from glassgrad.base.settings import settings
from glassgrad.compiler.check.graph_interpreter import array_type, from_storage, interpret
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.node import concrete
from glassgrad.compiler.graph.symbolic import Symbol, memory_size, replaced
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.pipeline import Pass, watched
from glassgrad.compiler.schedule.kernels import Item, describe
from glassgrad.engine.counters import GlobalCounters
from glassgrad.engine.memory_plan import MemoryUse
from glassgrad.runtime.backend import DevicePlan
from glassgrad.runtime.devices import Device

TOLERANCE = {"float16": 2e-2, "bfloat16": 6e-2, "fp8e4m3": 0.3, "fp8e5m2": 0.5, "float32": 2e-4, "float64": 1e-9}


def report_kernel(number: int, item: Item, program: Any, nanoseconds: int) -> None:
    """DEBUG=2: name, time, speed, the user's line, shapes and moves of one kernel."""
    shapes = " ".join(f"{n.dtype.name}{list(n.shape)}" for n in sorted(
        (n for n in item.ast.toposort() if n.op is o.PARAM), key=lambda n: n.arg.slot))
    line = item.lines[0].short if item.lines else ""
    operations, nbytes = program.operations / max(nanoseconds, 1), program.bytes / max(nanoseconds, 1)
    print(f"*** {item.device:<6} {number:4d} {program.name:<36} {nanoseconds / 1000:10.1f} us {operations:8.1f} GFLOPS "
          f"{nbytes:7.1f} GB/s  {line}  {shapes}  {_how(program)}".rstrip())


def _how(program: Any) -> str:
    """A kernel's moves, and whether a search chose them; devices without moves have none."""
    speedup = getattr(program, "speedup", 0.0)
    searched = "" if not speedup else f" tuned: {speedup:.2f}x" if speedup != 1 else " tuned: the recipe"
    return " ".join(getattr(program, "moves", ())) + searched


def show_source(item: Item) -> None:
    """DEBUG=3: the kernel's source, readable."""
    if item.ast.op not in (o.COPY, o.CALL):
        print(Device[item.device or ""].source(item.ast))


def run_reported(plan: DevicePlan, position: int, number: int, item: Item, program: Any, debug: int) -> int:
    """Launch one kernel of a plan by itself, for what DEBUG shows; it is the run's `number`-th. Its nanoseconds."""
    nanoseconds = plan.run_one(position)
    if debug >= 2:
        report_kernel(GlobalCounters.kernel_count + number, item, program, nanoseconds)
    if debug >= 3:
        show_source(item)
    return nanoseconds


def report_run(kernels: int, seconds: float, memory: MemoryUse) -> None:
    """DEBUG=1: how much ran, how long, and in how much memory."""
    print(f"{kernels} kernel{'' if kernels == 1 else 's'}, {seconds * 1000:.1f} ms, {memory}")


def report_sizes(what: str) -> None:
    """DEBUG=1: what is done about sizes that change."""
    if settings.DEBUG >= 1:
        print(f"DYNAMIC: {what}")


def check_kernel(item: Item, before: list[bytes], after: list[bytes]) -> None:
    """CHECK=1: compare a kernel's results with the interpreter's; a difference names the pass, the kernel, the line."""
    import numpy as np
    sizes = {n.arg.symbol: struct.unpack_from("<q", before[n.arg.slot])[0] for n in item.ast.src if n.op is o.PARAM}
    plain = concrete([item.ast], sizes.__getitem__)
    stores = [(s, plain[s]) for s in item.ast.src if s.op is o.STORE]
    given = {plain[n]: _part(array, plain[n].shape) for n, array in _inputs(item, before, sizes).items()}
    wanted = [np.broadcast_to(want, now.shape) for want, (_, now)
              in zip(interpret([now.src[1] for _, now in stores], given), stores)]
    places = [tuple(slice(start, stop) for start, stop in now.src[0].arg.bounds) if now.src[0].op is o.SHRINK
              else tuple(slice(n) for n in now.shape) for _, now in stores]
    checked = [_Checked(store, _memory_shape(store.src[0].base, sizes), place, want)
               for (store, _), place, want in zip(stores, places, wanted)]
    for number, (row, raw) in enumerate(zip(checked, after)):
        where, got, expected = _difference(row, raw)
        if where is not None and not row.store.dtype.is_float:      # a comparison of sums: rounding may have decided it
            sure = _sure(stores[number][1].src[1], given, row.want)
            checked[number] = row = row._replace(want=np.where(sure, row.want, _written(row, raw)))
            where, got, expected = _difference(row, raw)
        if where is not None:
            raise Bug(f"CHECK: {_guilty(item, before, checked)}: a kernel differs from the interpreter at {where} "
                      f"of result {number}: got {got}, expected {expected}\n"
                      f"  at: {', '.join(map(str, item.lines)) or 'unknown'}\n{describe(item)}")


class _Checked(NamedTuple):
    """A result of a kernel: its STORE, the shape of its memory, where in it was written, and what should be there."""
    store: UOp
    memory: tuple[int, ...]
    place: Any
    want: Any


def _inputs(item: Item, before: list[bytes], sizes: Mapping[Symbol, int]) -> dict[Any, Any]:
    """What a kernel was given, as arrays by its PARAMs."""
    import numpy as np
    values: dict[Any, Any] = {}
    for n in item.ast.toposort():
        if n.op is o.PARAM:
            raw = before[n.arg.slot]
            if n.arg.scalar:
                code = {"float32": "f", "float64": "d", "float16": "e"}.get(n.dtype.name, n.dtype.format)
                values[n] = np.array(struct.unpack_from("<" + code, raw)[0], array_type(n.dtype))
            else:
                values[n] = from_storage(raw, n.dtype).reshape(_memory_shape(n, sizes))
    return values


def _memory_shape(node: UOp, sizes: Mapping[Symbol, int]) -> tuple[int, ...]:
    """The shape of a node's memory: it is large enough for the longest of symbolic sizes, or for exact ones."""
    shape: tuple[int, ...] = replaced(tuple([memory_size(n) for n in node.shape]), sizes.__getitem__)
    return shape


def _part(array: Any, shape: tuple[int, ...]) -> Any:
    """What of an array a node of this shape uses."""
    return array[tuple(slice(n) for n in shape)]


def _written(row: _Checked, raw: bytes) -> Any:
    """What a kernel wrote at a place of a result."""
    return from_storage(raw, row.store.dtype).reshape(row.memory)[row.place]


def _sure(node: UOp, given: dict[UOp, Any], want: Any) -> Any:
    """Where an integer or a truth value stays what it is when the floats it follows from are a little different."""
    import numpy as np
    sure = np.ones(np.shape(want), bool)
    for turn in (1, -1):
        near = {n: array * (1 + turn * TOLERANCE[n.dtype.name] / 100) if n.dtype.is_float else array
                for n, array in given.items()}
        with np.errstate(all="ignore"):
            sure &= np.broadcast_to(interpret([node], near)[0], np.shape(want)) == want
    return sure


def _tolerance(store: UOp) -> float:
    """As coarse as the coarsest float that was rounded on the way."""
    return max(TOLERANCE[n.dtype.name] for n in store.toposort() if n.dtype.is_float)


def _difference(row: _Checked, raw: bytes) -> tuple[Any, Any, Any]:
    """Where a result differs first, what it is there and what it should be; or None three times."""
    import numpy as np
    got, store, want = _written(row, raw), row.store, row.want
    if store.dtype.is_float:
        with np.errstate(all="ignore"):
            scale = np.max(np.abs(want[np.isfinite(want)]), initial=1.0)
            near = np.abs(got - want) <= _tolerance(store) * scale
            same = (got == want) | (np.isnan(got) & np.isnan(want)) | near
    else:
        same = got == want
    if np.all(same):
        return None, None, None
    where = tuple(int(i) for i in np.argwhere(~np.atleast_1d(same))[0])
    return where, np.atleast_1d(got)[where], np.atleast_1d(want)[where]


def _guilty(item: Item, before: list[bytes], checked: list[_Checked]) -> str:
    """The first pass after which the kernel is wrong, found by interpreting its loop tree."""
    import numpy as np

    from glassgrad.compiler.check.loop_interpreter import run_kernel
    found: list[str] = []

    def interpret_after(each: Pass, work: Any) -> None:
        kernel = work.kernel
        arguments: list[Any] = [None] * len(item.slots)
        for n in kernel.params:
            raw = before[n.arg.slot]
            arguments[n.arg.slot] = struct.unpack_from("<" + n.dtype.format, raw)[0] if n.arg.scalar else \
                np.frombuffer(bytearray(raw), np.dtype(n.dtype.format))
        try:
            run_kernel(kernel, arguments)
        except Bug as wrong:
            found.append(f"the pass {each.name} is wrong ({str(wrong).splitlines()[0]})")
            return
        if any(_difference(row, arguments[i].tobytes())[0] is not None for i, row in enumerate(checked)):
            found.append(f"the pass {each.name} is wrong")

    with watched(interpret_after):
        Device[item.device or ""].loop_tree(item.ast)
    return found[0] if found else "the loop tree is right, so render, the compiler or the launch is wrong"
