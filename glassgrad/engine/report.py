"""What DEBUG and CHECK show. In: kernels that ran. Out: lines on standard output, or a `Bug` that names the kernel."""

from __future__ import annotations

import struct
from typing import Any

from glassgrad.base.errors import Bug
from glassgrad.graph import ops as o
from glassgrad.graph.interpret import array_type, from_storage, interpret
from glassgrad.runtime.device import Device
from glassgrad.schedule.kernels import Item, describe

TOLERANCE = {"float16": 2e-2, "bfloat16": 6e-2, "fp8e4m3": 0.3, "fp8e5m2": 0.5, "float32": 2e-4, "float64": 1e-9}


def report_kernel(number: int, item: Item, program: Any, nanoseconds: int) -> None:
    """DEBUG=2: name, shapes, time, speed and the user's line of one kernel."""
    if program is None:
        name, operations, nbytes = "copy", 0, item.ast.size * item.ast.dtype.itemsize
    else:
        name, operations, nbytes = program.name, program.operations, program.bytes
    us = nanoseconds / 1000
    shapes = " ".join(f"{n.dtype.name}{list(n.shape)}" for n in sorted(
        (n for n in item.ast.toposort() if n.op is o.PARAM), key=lambda n: n.arg.slot))
    line = item.lines[0].short if item.lines else ""
    print(f"*** {item.device:<6} {number:4d} {name:<36} {us:10.1f} us {operations / max(nanoseconds, 1):8.1f} GFLOPS "
          f"{nbytes / max(nanoseconds, 1):7.1f} GB/s  {line}  {shapes}")


def show_source(item: Item) -> None:
    """DEBUG=3: the kernel's source, readable."""
    if item.ast.op is not o.COPY:
        print(Device[item.device or ""].source(item.ast))


def report_run(kernels: int, seconds: float) -> None:
    """DEBUG=1: how much ran, and how long."""
    print(f"{kernels} kernel{'' if kernels == 1 else 's'}, {seconds * 1000:.1f} ms")


def check_kernel(item: Item, before: list[bytes], after: list[bytes]) -> None:
    """CHECK=1: compare a kernel's results with the reference interpreter's; a difference names kernel and line."""
    if item.ast.op is o.COPY:
        return
    import numpy as np
    values: dict[Any, Any] = {}
    for n in item.ast.toposort():
        if n.op is o.PARAM:
            raw = before[n.arg.slot]
            if n.arg.scalar:
                code = {"float32": "f", "float64": "d", "float16": "e"}.get(n.dtype.name, n.dtype.format)
                values[n] = np.array(struct.unpack_from("<" + code, raw)[0], array_type(n.dtype))
            else:
                values[n] = from_storage(raw, n.dtype).reshape(n.shape)
    wanted = interpret([store.src[1] for store in item.ast.src], values)
    for store, want, raw in zip(item.ast.src, wanted, after):
        got = from_storage(raw, store.dtype).reshape(store.shape)
        want = np.broadcast_to(want, store.shape)
        close = TOLERANCE.get(store.dtype.name, 0)
        if store.dtype.is_float:
            with np.errstate(all="ignore"):
                scale = np.max(np.abs(want[np.isfinite(want)]), initial=1.0)
                same = (got == want) | (np.isnan(got) & np.isnan(want)) | (np.abs(got - want) <= close * scale)
        else:
            same = got == want
        if not np.all(same):
            where = tuple(int(i) for i in np.argwhere(~np.atleast_1d(same))[0])
            raise Bug(f"CHECK: a kernel differs from the interpreter at {where}: got {np.atleast_1d(got)[where]}, "
                      f"expected {np.atleast_1d(want)[where]}\n  at: {', '.join(map(str, item.lines)) or 'unknown'}\n"
                      + describe(item))
