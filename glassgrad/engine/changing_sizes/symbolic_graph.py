"""Build a graph with variables in its sizes. In: a graph, and formulas of its sizes. Out: the graph built again.

Shapes are checked as the graph is built, so formulas that fit only by chance are refused here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from glassgrad.base.errors import Bug
from glassgrad.base.source_lines import one_place
from glassgrad.compiler.graph import dtypes, ops as o
from glassgrad.compiler.graph.op_arguments import Measure, Param
from glassgrad.compiler.graph.symbolic import Length, Size, Symbol, lengths_in
from glassgrad.compiler.graph.uop import UOp
from glassgrad.engine.changing_sizes.key_without_sizes import node_with_sizes, with_sizes
from glassgrad.engine.changing_sizes.size_formulas import (Formula, Inferred, Point, Polynomial, Rounded, Unknown,
                                                           variables_of)
from glassgrad.engine.schedule_key import NormalizedGraph


class SymbolicGraph(NamedTuple):
    """A graph with variables in its sizes."""
    sinks: list[UOp]                     # over PARAMs
    params: list[UOp]                    # by slot, as `with_params` numbers them
    margins: set[Length]                 # lengths that must not be negative
    formulas: tuple[Formula, ...]        # one for each size


class _Lengths:
    """Sizes as lengths of variables, by formulas that fit at some values of the variables. A few values fit several
    formulas that round or that have two variables. If a length that occurs in the shapes of the graph fits such a size
    as well, it is used instead."""

    def __init__(self, formulas: Sequence[Formula], symbols: Sequence[Symbol], points: Sequence[Point]):
        self.variables = [Length({(symbol,): 1}) for symbol in symbols]
        self.points = points if any(map(_is_uncertain, formulas)) else ()
        self.noted: set[Length] = set()
        self.inferred: dict[tuple[int, ...], Length] = {}        # lengths in shapes, by their values at the points
        self.used: dict[Formula, Formula] = {}
        self.lengths: dict[Formula, Size] = {}

    def of(self, formula: Formula) -> Size:
        if formula not in self.lengths:
            self.lengths[formula] = self._inferred(formula) if _is_uncertain(formula) else formula.at(self.variables)
        return self.lengths[formula]

    def _inferred(self, formula: Formula) -> Size:
        own = None if isinstance(formula, Unknown) else formula.at(self.variables)
        values = formula.values if isinstance(formula, Unknown) else tuple(map(formula.at, self.points))
        found = self.inferred.get(values, own)
        if found is None:
            raise Bug(f"no formula fits the sizes {values}, and no shape of the graph has them")
        if found != own and isinstance(found, Length):
            self.used[formula] = Inferred(found)
        return found

    def note(self, shape: Sequence[Size]) -> None:
        for length in lengths_in(tuple(shape)) if self.points else ():
            if length not in self.noted:
                self.noted.add(length)
                self.inferred.setdefault(tuple(map(Inferred(length).at, self.points)), length)

    def note_products(self, shape: Sequence[Size]) -> None:
        """Note the products of adjacent sizes, because a reshape may merge several axes."""
        for first in range(len(shape) if self.points else 0):
            self.note(tuple(accumulate(shape[first:], mul)))


def _is_uncertain(formula: Formula) -> bool:
    return isinstance(formula, (Rounded, Unknown)) or \
        isinstance(formula, Polynomial) and len(formula.terms) > 2 and len(variables_of(formula)) > 1


def with_variables(normal: NormalizedGraph, formulas: Sequence[Formula], symbols: Sequence[Symbol],
                   scalars: Sequence[int], points: Sequence[Point]) -> SymbolicGraph:
    """Rebuild a graph with formulas of variables as sizes; `points` are the values of the variables at which the
    formulas fit."""
    lengths = _Lengths(formulas, symbols, points)
    sizes = map(lengths.of, formulas)
    given = [*normal.buffers, *normal.cells]
    slot_of = {n: slot for slot, n in enumerate(given)}
    slot_of.update({normal.constants[i]: slot for slot, i in enumerate(scalars, len(given) + len(symbols))})
    slots: dict[int, UOp] = {slot: UOp(o.PARAM, dtypes.index, (), Measure(slot, symbol))
                             for slot, symbol in enumerate(symbols, len(given))}
    margins: set[Length] = set()
    new: dict[UOp, UOp] = {}
    for n in normal.order:
        slot = slot_of.get(n)
        if slot is None:
            if n.op is o.RESHAPE:
                lengths.note_products(new[n.src[0]].shape)
            new[n] = _over(n, tuple([new[s] for s in n.src]), sizes)
            if n.op is o.SHRINK:
                spare = [whole - stop for (_, stop), whole in zip(new[n].arg.bounds, new[n].src[0].shape)]
                margins.update(lengths_in(tuple(spare)))
        else:
            scalar = slot >= len(normal.buffers)
            shape = () if scalar else with_sizes(o.BUFFER, n.shape, sizes)
            new[n] = slots[slot] = UOp(o.PARAM, n.dtype, (), Param(slot, shape, scalar, n.device))
        lengths.note(new[n].shape)
    return SymbolicGraph([new[s] for s in normal.sinks], [slots[slot] for slot in sorted(slots)], margins,
                         tuple([lengths.used.get(f, f) for f in formulas]))


def _over(node: UOp, src: tuple[UOp, ...], sizes: Iterator[Size]) -> UOp:
    """Rebuild a node over other sources, with the next sizes in its argument; a FORMULA is written out."""
    if node.op is o.FORMULA:
        with one_place(node.place):
            return node.arg.written_out(src)  # type: ignore[no-any-return]
    return node_with_sizes(node, src, sizes)
