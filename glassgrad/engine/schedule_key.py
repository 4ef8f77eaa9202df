"""Separate the structure of a graph from its buffers and numbers. In: sinks. Out: `NormalizedGraph`, whose key is that
of the schedule cache.

Buffers, scalar cells and float constants are lifted out, in the order in which a walk meets them. What is left is
structure: two training steps on new batches have the same structure, so the second needs no scheduling. A slice that is
one contiguous piece of its buffer (`X[i:i + 64]`) counts as a buffer, so that the next batch is the same graph too.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from glassgrad.compiler.graph import DType, UOp, dtypes, ops as o, toposort
from glassgrad.compiler.graph.axis_dependence import start_of_piece
from glassgrad.compiler.graph.op_arguments import Measure, Param
from glassgrad.compiler.graph.symbolic import Symbol, replaced, value_of
from glassgrad.runtime.schedule_cache import schedule_name


@dataclass(eq=False, slots=True)
class NormalizedGraph:
    """The structure of a graph, and what was lifted out of it."""
    key: tuple[Any, ...]
    order: Collection[UOp]
    sinks: Sequence[UOp]
    buffers: list[UOp]           # BUFFER nodes, or slices that are one piece of one
    addresses: list[int]         # where each of them begins
    cells: list[UOp]             # SCALAR nodes
    symbols: Collection[Symbol]  # variables in shapes
    constants: list[UOp]         # CONST nodes of float type

    def with_sinks(self, rows: Sequence[int]) -> NormalizedGraph:
        """Return the same graph with the values of these rows as sinks, too."""
        order = list(self.order)
        return NormalizedGraph((*self.key, *rows), self.order, [*self.sinks, *[order[row] for row in rows]],
                               self.buffers, self.addresses, self.cells, self.symbols, self.constants)

    @property
    def values(self) -> tuple[int, ...]:
        """The present values of the variables."""
        return tuple(map(value_of, self.symbols))


_BUFFER, _CONST, _DETACH = o.BUFFER, o.CONST, o.DETACH
_NONE: Any = ()
_NOTHING: dict[Any, Any] = {}
_DEEP = 200                 # nested calls; Python allows 1000
_IN_ORDER = -1              # the nodes to add are in order: each comes after its sources
_SPECIAL = frozenset((o.DETACH, o.GRADIENT, o.SHRINK))       # ops whose row is more than their fields and sources


def normalize(sinks: Sequence[UOp]) -> NormalizedGraph:
    """Separate a graph into structure and leaves."""
    found = _Walk(sinks)
    if found.targets and any([piece.src[0] in found.targets for piece in found.pieces]):
        found = _Walk(sinks, found.targets)      # a piece of a target stays a view: its gradient goes to the whole
    return found


class _Walk(NormalizedGraph):
    """One depth-first walk over a graph. The row of a node comes after the rows of its sources, to which it refers by
    number. Slices of nodes in `whole` do not count as buffers."""

    def __init__(self, sinks: Sequence[UOp], whole: Collection[UOp] = _NONE):
        self.sinks, self.whole, self.special = sinks, whole, _SPECIAL
        self.rows: list[tuple[Any, ...]] = []
        self.order: dict[UOp, int] = {}          # the number of each node's row
        self.buffers, self.addresses, self.constants = [], [], []
        # most graphs have none of these; `special_row` replaces the empty constants when it finds one
        self.cells = _NONE
        self.symbols: dict[Symbol, Symbol] = _NOTHING      # variables, renamed by the order in which they occur
        self.pieces: dict[UOp, int] = _NOTHING   # {slice that is one contiguous piece: its address}
        self.targets: set[UOp] = _NONE           # nodes that GRADIENT nodes are the gradients of
        self.add(sinks, _DEEP)
        self.key = (*self.rows, *map(self.order.__getitem__, sinks))

    def add(self, nodes: Sequence[UOp], depth: int) -> None:
        """Add the nodes that are not there yet, each after its sources; `depth` is how many more calls may nest, or
        `_IN_ORDER`."""
        places, rows = self.order, self.rows
        for node in nodes:
            if node in places:
                continue
            op, dtype, src = node.op, node.dtype, node.src
            if op is _BUFFER:
                self.buffers.append(node)
                self.addresses.append(node.arg.address)
                row: tuple[Any, ...] = (op, dtype, node.shape, node.device)
            elif src:
                if depth > 0:
                    self.add(src, depth - 1)
                elif depth == 0:
                    self.add_deep(src)
                if op in self.special or node.symbolic:
                    row = self.special_row(node)
                elif len(src) == 2:                  # most nodes have one or two sources: no loop over them
                    row = (op, dtype, node.arg, places[src[0]], places[src[1]])
                elif len(src) == 1:
                    row = (op, dtype, node.arg, places[src[0]])
                else:
                    row = (op, dtype, node.arg, *map(places.__getitem__, src))
            elif op is _CONST and dtype.kind == "f" and dtype.bits >= 32:        # a cell holds no narrower float
                self.constants.append(node)
                row = (op, dtype)
            else:
                row = self.special_row(node)
            places[node] = len(rows)
            rows.append(row)

    def add_deep(self, nodes: Sequence[UOp]) -> None:
        """Add nodes without recursion, for a graph of any depth."""
        self.add(toposort(nodes, lambda n: [s for s in n.src if s not in self.order]), _IN_ORDER)

    def special_row(self, node: UOp) -> tuple[Any, ...]:
        """Return the row of a node that needs more than its fields and sources."""
        op, dtype, arg, src = node.op, node.dtype, node.arg, node.src
        if op is _CONST:
            return (op, dtype, type(arg), struct.pack("d", arg) if dtype.kind == "f" else arg)
        if op is o.SCALAR:
            self.cells = [*self.cells, node]
            return (op, dtype)
        if op is _DETACH:             # its argument (a token, a gradient) is no structure, except for a formula's name
            arg = arg.name if len(src) > 1 else ""
            src = src if arg else src[:1]
        elif op is o.GRADIENT:
            self.targets = self.targets or set()
            self.targets.add(src[0])
        elif op in (o.SHRINK, o.RESHAPE) and src[0] not in self.whole:
            begin = _piece(node, self.pieces)
            if begin is not None:
                self.pieces, self.special = self.pieces or {}, self.special | {o.RESHAPE}
                self.pieces[node] = begin
                self.buffers.append(node)
                self.addresses.append(begin)
                return (_BUFFER, dtype, node.shape, node.device)
        if node.symbolic and op is not _DETACH:
            self.symbols = self.symbols or {}
            arg = _renamed(arg, self.symbols)
        return (op, dtype, arg, *[self.order[s] for s in src])


def _renamed(arg: Any, symbols: dict[Symbol, Symbol]) -> Any:
    """Rename the variables in an argument by the order in which they occur: neither their names nor their values are
    structure."""
    return replaced(arg, lambda symbol: symbols.setdefault(
        symbol, Symbol(f"v{len(symbols)}", symbol.low, symbol.high)))


def _piece(node: UOp, pieces: dict[UOp, int]) -> int | None:
    """Return the address of a SHRINK (or a reshape of one) that takes one contiguous piece of a buffer; None for any
    other."""
    source = node.src[0]
    begin = source.arg.address if source.op is o.BUFFER and node.op is o.SHRINK else pieces.get(source)
    if begin is None or node.op is o.RESHAPE:
        return begin
    start = start_of_piece(node)
    return None if start is None else begin + start * node.dtype.itemsize


def with_params(normal: NormalizedGraph, scalars: Sequence[int]) -> tuple[list[UOp], list[UOp]]:
    """Rebuild the sinks with PARAMs as leaves; return them, and the PARAMs by slot: of buffers, cells and variables,
    and of the constants numbered in `scalars`."""
    leaves, constants = [*normal.buffers, *normal.cells], [normal.constants[i] for i in scalars]
    first = len(leaves)
    names = {s: Symbol(f"v{i}", s.low, s.high) for i, s in enumerate(normal.symbols)}
    sizes = [UOp(o.PARAM, dtypes.index, (), Measure(first + i, name)) for i, name in enumerate(names.values())]
    new: dict[UOp, UOp] = {}
    for slot, node in [*enumerate(leaves), *enumerate(constants, first + len(sizes))]:
        scalar = node.op in (o.SCALAR, o.CONST)
        new[node] = UOp(o.PARAM, node.dtype, (), Param(slot, node.shape, scalar, node.device))
    params = [*[new[n] for n in leaves], *sizes, *[new[n] for n in constants]]
    for n in normal.order:
        if n not in new:
            src = tuple([new[s] for s in n.src])
            new[n] = n.named(src, names.__getitem__) if n.symbolic else n.over(src)
    return [new[s] for s in normal.sinks], params


def scalar_bytes(value: Any, dtype: DType) -> bytes:
    """Return a scalar as the eight bytes of its cell."""
    if dtype.kind == "f":
        code = {"float64": "d"}.get(dtype.name, "f")
        return array(code, [value]).tobytes().ljust(8, b"\0")     # beyond float32 is infinity, where struct refuses
    return (int(value) & ((1 << dtype.bits) - 1)).to_bytes(8, "little")


def name_on_disk(normal: NormalizedGraph, scalars: Sequence[int], parts: tuple[Any, ...]) -> str:
    """Return the name of a graph's schedule in the disk cache. The constants numbered in `scalars` are arguments;
    `parts` are what the schedule depends on besides the graph."""
    constants = [c.arg for i, c in enumerate(normal.constants) if i not in scalars]
    bounds = [(s.low, s.high) for s in normal.symbols]             # a variable in the key shows only its name
    bits = struct.pack(f"{len(constants)}d", *constants).hex()
    return schedule_name(repr(parts), repr(bounds), bits, repr(normal.key))
