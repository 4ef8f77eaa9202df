"""A graph without its buffers: the key by which schedules are found again. In: sinks. Out: `NormalizedGraph`.

Buffers, scalar cells and float constants are lifted out, in the order a walk meets them; what is left is structure.
Two training steps on new batches have the same structure, so the second needs no scheduling. A slice that is one piece
of its buffer (`X[i:i + 64]`) counts as a buffer of its own, so that the next batch is the same graph too.
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
    """Structure and what was lifted out of it."""
    key: tuple[Any, ...]
    order: Collection[UOp]
    sinks: Sequence[UOp]
    buffers: list[UOp]           # BUFFER nodes, or slices that are one piece of one
    addresses: list[int]         # where each of them begins
    cells: list[UOp]             # SCALAR nodes
    symbols: Collection[Symbol]  # variables in shapes
    constants: list[UOp]         # CONST nodes of float type

    def with_sinks(self, rows: Sequence[int]) -> NormalizedGraph:
        """The same graph, with the values of these rows as sinks too."""
        order = list(self.order)
        return NormalizedGraph((*self.key, *rows), self.order, [*self.sinks, *[order[row] for row in rows]],
                               self.buffers, self.addresses, self.cells, self.symbols, self.constants)

    @property
    def values(self) -> tuple[int, ...]:
        """What the variables are now."""
        return tuple(map(value_of, self.symbols))


_BUFFER, _CONST, _DETACH = o.BUFFER, o.CONST, o.DETACH
_NONE: Any = ()
_NOTHING: dict[Any, Any] = {}
_DEEP = 200                 # nested calls; Python allows 1000
_IN_ORDER = -1              # each node comes after those under it already
_SPECIAL = frozenset((o.DETACH, o.GRADIENT, o.SHRINK))       # ops whose row is not just their fields and sources


def normalize(sinks: Sequence[UOp]) -> NormalizedGraph:
    """Take a graph apart into structure and leaves."""
    found = _Walk(sinks)
    if found.targets and any([piece.src[0] in found.targets for piece in found.pieces]):
        found = _Walk(sinks, found.targets)      # gradients go to the whole, not to a piece of it
    return found


class _Walk(NormalizedGraph):
    """One walk over a graph, depth first: a node's row comes after those of its sources, which it refers to by number.
    Slices of the nodes in `whole` are not taken for buffers."""

    def __init__(self, sinks: Sequence[UOp], whole: Collection[UOp] = _NONE):
        self.sinks, self.whole, self.special = sinks, whole, _SPECIAL
        self.rows: list[tuple[Any, ...]] = []
        self.order: dict[UOp, int] = {}          # the number of each node's row
        self.buffers, self.addresses, self.constants = [], [], []
        # most graphs have none of these: they are empty until `special_row` finds one
        self.cells = _NONE
        self.symbols: dict[Symbol, Symbol] = _NOTHING      # variables, renamed by the order in which they occur
        self.pieces: dict[UOp, int] = _NOTHING   # slices that are one piece, and where each begins
        self.targets: set[UOp] = _NONE           # of gradients
        self.add(sinks, _DEEP)
        self.key = (*self.rows, *map(self.order.__getitem__, sinks))

    def add(self, nodes: Sequence[UOp], depth: int) -> None:
        """Add the nodes that are not there yet, each after those under it; `depth` is how many more calls may nest,
        or `_IN_ORDER`."""
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
                elif len(src) == 2:                  # most have one or two; to go over all sources of a node costs more
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
        """The same without recursion, for a graph of any depth."""
        self.add(toposort(nodes, lambda n: [s for s in n.src if s not in self.order]), _IN_ORDER)

    def special_row(self, node: UOp) -> tuple[Any, ...]:
        """The row of a node whose row is not just its fields."""
        op, dtype, arg, src = node.op, node.dtype, node.arg, node.src
        if op is _CONST:
            return (op, dtype, type(arg), struct.pack("d", arg) if dtype.kind == "f" else arg)
        if op is o.SCALAR:
            self.cells = [*self.cells, node]
            return (op, dtype)
        if op is _DETACH:             # of its argument (a token, a gradient) only a formula's name is structure
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
    """An argument with its variables numbered as they occur: neither a name nor a value is structure."""
    return replaced(arg, lambda symbol: symbols.setdefault(
        symbol, Symbol(f"v{len(symbols)}", symbol.low, symbol.high)))


def _piece(node: UOp, pieces: dict[UOp, int]) -> int | None:
    """The address at which a SHRINK (or a reshape of one) begins that takes one contiguous piece of a buffer."""
    source = node.src[0]
    begin = source.arg.address if source.op is o.BUFFER and node.op is o.SHRINK else pieces.get(source)
    if begin is None or node.op is o.RESHAPE:
        return begin
    start = start_of_piece(node)
    return None if start is None else begin + start * node.dtype.itemsize


def with_params(normal: NormalizedGraph, scalars: Sequence[int]) -> tuple[list[UOp], list[UOp]]:
    """The sinks with PARAMs as leaves, and the list of these PARAMs by slot: those of buffers, cells, variables, and of
    the constants numbered in `scalars`."""
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
    """A scalar as the eight bytes of its cell."""
    if dtype.kind == "f":
        code = {"float64": "d"}.get(dtype.name, "f")
        return array(code, [value]).tobytes().ljust(8, b"\0")     # beyond float32 is infinity, where struct refuses
    return (int(value) & ((1 << dtype.bits) - 1)).to_bytes(8, "little")


def name_on_disk(normal: NormalizedGraph, scalars: Sequence[int], parts: tuple[Any, ...]) -> str:
    """The name of a graph's schedule in the disk cache. The constants numbered in `scalars` are arguments, `parts` are
    what else it depends on."""
    constants = [c.arg for i, c in enumerate(normal.constants) if i not in scalars]
    bounds = [(s.low, s.high) for s in normal.symbols]             # a variable in the key shows only its name
    bits = struct.pack(f"{len(constants)}d", *constants).hex()
    return schedule_name(repr(parts), repr(bounds), bits, repr(normal.key))
