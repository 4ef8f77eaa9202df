"""A graph without its buffers: the key by which schedules are found again. In: sinks. Out: `NormalizedGraph`.

Buffers, scalar cells and float constants are lifted out, in the order a walk meets them; what is left is structure.
Two training steps on new batches have the same structure, so the second needs no scheduling. A slice that is one piece
of its buffer (`X[i:i + 64]`) counts as a buffer of its own, so that the next batch is the same graph too.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from glassgrad.compiler.graph import DType, UOp, dtypes, ops as o, toposort
from glassgrad.compiler.graph.axis_dependence import start_of_piece
from glassgrad.compiler.graph.op_arguments import Measure, Param
from glassgrad.compiler.graph.symbolic import Symbol, replaced, value_of
from glassgrad.runtime.schedule_cache import schedule_name


@dataclass(eq=False, slots=True)
class NormalizedGraph:
    """Structure and what was lifted out of it."""
    key: tuple[Any, ...]
    order: list[UOp]
    sinks: Sequence[UOp]
    buffers: list[UOp]           # BUFFER nodes, or slices that are one piece of one
    addresses: list[int]         # where each of them begins
    cells: list[UOp]             # SCALAR nodes
    symbols: list[Symbol]        # variables in shapes
    constants: list[UOp]         # CONST nodes of float type

    @property
    def values(self) -> tuple[int, ...]:
        """What the variables are now."""
        return tuple(map(value_of, self.symbols))


_BUFFER, _SHRINK, _DETACH, _SCALAR = o.BUFFER, o.SHRINK, o.DETACH, o.SCALAR
_SLICING = frozenset((o.SHRINK, o.RESHAPE))
_LIFTED = frozenset((o.BUFFER, o.CONST, o.SCALAR, o.DETACH))


def normalize(sinks: Sequence[UOp], order: list[UOp] | None = None) -> NormalizedGraph:
    """Take a graph apart into structure and leaves; `order` are the nodes under the sinks, where they are at hand."""
    order = order or toposort(sinks)
    place = dict(zip(order, range(len(order))))          # of each node's row
    rows: list[Any] = []
    buffers, addresses, cells, constants = [], [], [], []
    symbols: dict[Symbol, Symbol] = {}
    pieces: dict[UOp, int] = {}
    targets: set[UOp] | None = None          # of gradients: they go to the whole, not to a piece of it
    for n in order:
        op = n.op
        if op in _SLICING and (pieces or op is _SHRINK):
            begin = _piece(n, pieces)
            if begin is not None and n.src[0] not in (targets := _targets(order) if targets is None else targets):
                pieces[n] = begin
                buffers.append(n)
                addresses.append(begin)
                rows.append((o.BUFFER, n.dtype, n.shape, n.device))
                continue
        if op not in _LIFTED:
            src = n.src
            arg = n.arg if not n.symbolic else _renamed(n.arg, symbols)
            if len(src) == 2:                # most have one or two; to go over all sources of a node costs more
                rows.append((op, n.dtype, arg, place[src[0]], place[src[1]]))
            elif len(src) == 1:
                rows.append((op, n.dtype, arg, place[src[0]]))
            else:
                rows.append((op, n.dtype, arg, *[place[s] for s in src]))
        elif op is _BUFFER:
            buffers.append(n)
            addresses.append(n.arg.address)
            rows.append((op, n.dtype, n.shape, n.device))
        elif op is _DETACH:                 # of its argument (a token, a gradient) only a formula's name is structure
            named = n.arg.name if len(n.src) > 1 else ""
            rows.append((op, n.dtype, named, *[place[s] for s in (n.src if named else n.src[:1])]))
        elif op is _SCALAR:
            cells.append(n)
            rows.append((op, n.dtype))
        elif n.dtype.kind == "f" and n.dtype.bits >= 32:         # a cell holds no narrower float
            constants.append(n)
            rows.append((op, n.dtype))
        else:
            rows.append((op, n.dtype, type(n.arg), struct.pack("d", n.arg) if n.dtype.kind == "f" else n.arg))
    rows += map(place.__getitem__, sinks)
    return NormalizedGraph(tuple(rows), order, sinks, buffers, addresses, cells, list(symbols), constants)


def _renamed(arg: Any, symbols: dict[Symbol, Symbol]) -> Any:
    """An argument with its variables by their place among all: neither a name nor a value is structure."""
    return replaced(arg, lambda symbol: symbols.setdefault(
        symbol, Symbol(f"v{len(symbols)}", symbol.low, symbol.high)))


def _targets(order: list[UOp]) -> set[UOp]:
    """What gradients are of."""
    return {g.src[0] for g in order if g.op is o.GRADIENT}


def _piece(node: UOp, pieces: dict[UOp, int]) -> int | None:
    """The address at which a SHRINK (or a reshape of one) begins that takes one contiguous piece of a buffer."""
    source = node.src[0]
    begin = source.arg.address if source.op is o.BUFFER and node.op is o.SHRINK else pieces.get(source)
    if begin is None or node.op is o.RESHAPE:
        return begin
    start = start_of_piece(node)
    return None if start is None else begin + start * node.dtype.itemsize


def with_params(normal: NormalizedGraph, scalars: Sequence[int]) -> tuple[list[UOp], list[UOp]]:
    """The sinks over PARAMs: slots are buffers, cells, variables, and the constants numbered in `scalars`."""
    constants = [normal.constants[i] for i in scalars]
    first = len(normal.buffers) + len(normal.cells)
    names = {s: Symbol(f"v{i}", s.low, s.high) for i, s in enumerate(normal.symbols)}
    sizes = [UOp(o.PARAM, dtypes.index, (), Measure(first + i, name)) for i, name in enumerate(names.values())]
    new: dict[UOp, UOp] = {}
    for slot, node in [*enumerate([*normal.buffers, *normal.cells]), *enumerate(constants, first + len(sizes))]:
        scalar = node.op in (o.SCALAR, o.CONST)
        new[node] = UOp(o.PARAM, node.dtype, (), Param(slot, node.shape, scalar, node.device))
    params = [*[new[n] for n in (*normal.buffers, *normal.cells)], *sizes, *[new[n] for n in constants]]
    for n in normal.order:
        if n not in new:
            src = tuple([new[s] for s in n.src])
            new[n] = n.named(src, names.__getitem__) if n.symbolic else n.over(src)
    return [new[s] for s in normal.sinks], params


_CODES = {1: "b", 2: "h", 4: "i", 8: "q"}


def scalar_bytes(value: Any, dtype: DType) -> bytes:
    """A scalar as the eight bytes of its cell."""
    if dtype.kind == "f":
        code = {"float64": "d"}.get(dtype.name, "f")
        return array(code, [value]).tobytes().ljust(8, b"\0")     # beyond float32 is infinity, where struct refuses
    return (int(value) & ((1 << dtype.bits) - 1)).to_bytes(8, "little")


def name_on_disk(normal: NormalizedGraph, scalars: Sequence[int], parts: tuple[Any, ...]) -> str:
    """The name of a graph's schedule in the disk cache. The constants numbered in `scalars` are arguments, `parts` are
    what it depends on besides."""
    constants = [c.arg for i, c in enumerate(normal.constants) if i not in scalars]
    bounds = [(s.low, s.high) for s in normal.symbols]             # a variable in the key shows only its name
    bits = struct.pack(f"{len(constants)}d", *constants).hex()
    return schedule_name(repr(parts), repr(bounds), bits, repr(normal.key))
