"""A graph without its buffers: the key by which schedules are found again. In: sinks. Out: `Normal`.

Buffers, scalar cells and float constants are lifted out, in the order a walk meets them; what is left is structure.
Two training steps on new batches have the same structure, so the second needs no scheduling.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from glassgrad.graph import ops as o
from glassgrad.graph.dtype import DType
from glassgrad.graph.uop import Param, UOp, toposort


@dataclass(eq=False)
class Normal:
    """Structure and what was lifted out of it."""
    key: tuple[Any, ...]
    order: list[UOp]
    sinks: Sequence[UOp]
    buffers: list[UOp]           # BUFFER nodes
    cells: list[UOp]             # SCALAR nodes
    constants: list[UOp]         # CONST nodes of float type

    def constant_bits(self) -> bytes:
        """The constants' values, exactly."""
        return struct.pack(f"{len(self.constants)}d", *[c.arg for c in self.constants])


def normalise(sinks: Sequence[UOp]) -> Normal:
    """Take a graph apart into structure and leaves."""
    order = toposort(sinks)
    place: dict[UOp, int] = {}
    rows: list[Any] = []
    buffers, cells, constants = [], [], []
    for n in order:
        place[n] = len(rows)
        op = n.op
        if op is o.DETACH:                   # computes nothing: its argument (a leaf's token, a gradient) is not structure
            place[n] = place[n.src[0]]
        elif op is o.BUFFER:
            buffers.append(n)
            rows.append((op, n.dtype, n.shape, n.device))
        elif op is o.CONST and n.dtype.kind == "f":
            constants.append(n)
            rows.append((op, n.dtype))
        elif op is o.SCALAR:
            cells.append(n)
            rows.append((op, n.dtype))
        elif op is o.CONST:
            rows.append((op, n.dtype, type(n.arg), n.arg))
        else:
            rows.append((op, n.dtype, n.arg, *[place[s] for s in n.src]))
    return Normal((*rows, *[place[s] for s in sinks]), order, sinks, buffers, cells, constants)


def with_params(normal: Normal, scalars: Sequence[int]) -> tuple[list[UOp], list[UOp]]:
    """The sinks over PARAMs: slots are buffers, then cells, then the constants numbered in `scalars`."""
    lifted = [*normal.buffers, *normal.cells, *[normal.constants[i] for i in scalars]]
    new: dict[UOp, UOp] = {}
    for slot, node in enumerate(lifted):
        scalar = node.op is not o.BUFFER
        new[node] = UOp(o.PARAM, node.dtype, (), Param(slot, node.shape, scalar, node.device))
    params = [new[n] for n in lifted]
    for n in normal.order:
        if n.op is o.DETACH:
            new[n] = new[n.src[0]]
        elif n not in new:
            src = tuple([new[s] for s in n.src])
            new[n] = n if src == n.src else UOp(n.op, n.dtype, src, n.arg)
    return [new[s] for s in normal.sinks], params


_CODES = {1: "b", 2: "h", 4: "i", 8: "q"}


def scalar_bytes(value: Any, dtype: DType) -> bytes:
    """A scalar as the eight bytes of its cell."""
    if dtype.kind == "f":
        code = {"float64": "d", "float16": "e"}.get(dtype.name, "f")
        return struct.pack("<" + code, value).ljust(8, b"\0")
    return (int(value) & ((1 << dtype.bits) - 1)).to_bytes(8, "little")
