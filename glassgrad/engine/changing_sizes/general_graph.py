"""Make a graph with variables in its sizes, and decide which graphs it serves. In: a `NormalizedGraph`, and a formula
for each size. Out: `GeneralGraph`; of other graphs, the values of its variables.

Guard: it computes another graph only if all sizes of that graph are what the formulas give for the values of the
variables in it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import islice, product
from operator import itemgetter
from typing import Any, NamedTuple

from glassgrad.base.errors import Bug, ShapeError
from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.graph.symbolic import Length, Symbol
from glassgrad.engine.changing_sizes.key_without_sizes import (SizesOf, argument_at, float_bits, split, with_sizes,
                                                               with_sources)
from glassgrad.engine.changing_sizes.size_formulas import Formula, Point, Rounded, value_of, variables_of
from glassgrad.engine.changing_sizes.slow_sizes import slow_above
from glassgrad.engine.changing_sizes.symbolic_graph import SymbolicGraph, with_variables
from glassgrad.engine.compiled_schedule import CompiledSchedule
from glassgrad.engine.debug_report import report_sizes
from glassgrad.engine.schedule_key import NormalizedGraph

LEAST_HIGH = 1024         # smallest upper bound of a variable
GROWTH = 4                # upper bound of a variable, as a multiple of the largest size seen
FIXED_AFTER = 50          # runs of one size before that size gets kernels of its own; the next size needs twice as many
MOST_COUNTED = 4096       # sizes whose runs are counted: those that ran last


class SizeFormulas(NamedTuple):
    """Every size of a family as a formula of variables."""
    bases: tuple[int, ...]                   # numbers of the sizes that are the variables
    formulas: tuple[Formula, ...]            # one for each size
    scalars: tuple[int, ...]                 # numbers of the float constants that are arguments
    bounds: tuple[tuple[int, int], ...]      # for each variable: least and greatest value with valid sizes
    seen: tuple[Point, ...]                  # values of the variables in the graphs seen so far

    def graph(self, normal: NormalizedGraph) -> tuple[tuple[Symbol, ...], SymbolicGraph]:
        """Build the graph with variables in its sizes; return the variables and the graph. The upper bounds of the
        variables are lowered until no slice ends outside of its source."""
        symbols = tuple([Symbol(f"v{i}", *bounds, None, True) for i, bounds in enumerate(self.bounds)])
        try:
            graph = with_variables(normal, self.formulas, symbols, self.scalars, self.seen)
        except Bug as misfit:                # the formulas fit by chance, and contradict the graph's shapes
            raise ShapeError("its sizes do not follow from one of them", given=str(misfit).splitlines()[0],
                             expected="shapes that fit each other for every value of the variable",
                             fix="nothing: each size is compiled for itself") from misfit
        narrower = tuple([symbol._replace(high=self._valid_up_to(symbol, i, graph.margins))
                          for i, symbol in enumerate(symbols)])
        if narrower != symbols:
            graph = with_variables(normal, self.formulas, narrower, self.scalars, self.seen)
        return narrower, graph

    def _valid_up_to(self, symbol: Symbol, number: int, margins: Collection[Length]) -> int:
        """Return the greatest value of a variable for which no margin that depends on it alone is negative."""
        own = [margin for margin in margins if margin.symbols == [symbol]]
        return _last(lambda n: all(value_of(margin, {number: n}) >= 0 for margin in own),
                     max([point[number] for point in self.seen]), symbol.high)


def variable_bounds(formulas: Sequence[Formula], least: Sequence[int | None],
                    points: Sequence[Point]) -> tuple[tuple[int, int], ...]:
    """Return the widest bounds of the variables within which the sizes are valid that grow or shrink with just one of
    them. (The bounds ignore remainders and sizes that depend on several variables; where these are invalid, the guard
    refuses a graph.)"""
    return tuple([_bounds_of(i, [(f, n) for f, n in dict.fromkeys(zip(formulas, least)) if n is not None and
                                 variables_of(f) == {i} and not (isinstance(f, Rounded) and f.linear)], min(seen),
                             max(seen)) for i, seen in enumerate(zip(*points))])


def _bounds_of(variable: int, conditions: Sequence[tuple[Formula, int]], low: int, high: int) -> tuple[int, int]:
    """Return the widest bounds of one variable that was seen from `low` to `high`."""
    def holds(value: int) -> bool:
        return all(formula.at({variable: value}) >= n for formula, n in conditions)

    wanted = max(LEAST_HIGH, GROWTH * (1 << (high - 1).bit_length()))
    while low > 2 and holds(low - 1):
        low -= 1
    return low, _last(holds, high, wanted)


def _last(holds: Callable[[int], bool], good: int, wanted: int) -> int:
    """Return the greatest value up to `wanted` that meets a monotonic condition, which `good` is known to meet."""
    if holds(wanted):
        return wanted
    bad = wanted
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good


class GeneralGraph:
    """A graph with variables in its sizes. It is made from the key of one graph: some sizes become the variables, and
    each size follows from them by a formula."""

    def __init__(self, normal: NormalizedGraph, parts: list[SizesOf], sizes: SizeFormulas,
                 symbols: Sequence[Symbol], formulas: Sequence[Formula], compiled: CompiledSchedule):
        key = normal.key
        self.symbols, self.compiled = symbols, compiled
        self.scalars = sizes.scalars                     # numbers of the float constants that are arguments
        self.constants = self._other_floats(normal)
        slots = dict(enumerate(symbols, len(normal.buffers) + len(normal.cells)))
        self.slow_above = slow_above(compiled.items, compiled.programs, slots)
        self.runs: dict[Point, int] = {}                 # number of runs by values of the variables, latest at the end
        self.with_own_kernels: set[Point] = set()        # values that ran so often that compiling for them paid
        distinct = {formula: i for i, formula in enumerate(dict.fromkeys(formulas))}
        rest = iter(formulas)
        by_row = [tuple([distinct[f] for f in islice(rest, len(part.sizes))]) for part in parts]
        self._distinct, self._parts, self._formulas = list(distinct), parts, by_row
        self._leaves, self._sinks = _leaves_and_sinks(key)
        depends = [bool(variables_of(formula)) for formula in distinct]
        changing = [i for i, row in enumerate(by_row) if any([depends[f] for f in row])]
        same = sorted(set(range(len(key))) - set(changing))
        self._changing, self._same = itemgetter(*changing, changing[0]), itemgetter(*same, same[0])
        self._fixed = self._same(key)
        arguments: dict[tuple[o.Op, Any, tuple[int, ...]], int] = {}      # each distinct one once: layers repeat
        self._rows: list[tuple[tuple[Any, ...], int, tuple[Any, ...]]] = []      # a row before, its argument, after
        for i in (*changing, changing[0]):
            row, at = key[i], argument_at(key[i][0])
            number = arguments.setdefault((row[0], row[at], by_row[i]), len(arguments))
            self._rows.append((row[:at], number, row[at + 1:]))
        self._arguments = list(arguments)
        first = [at for at, part in enumerate(parts) for _ in part.sizes]
        self._bases = [(first[base], base - first.index(first[base])) for base in sizes.bases]    # (row, size in it)

    def values_for(self, normal: NormalizedGraph) -> Point | None:
        """Guard for a graph with as many rows: return the values of the variables in it, or None if this graph does not
        serve it."""
        key = normal.key
        values = []
        for symbol, (row, place) in zip(self.symbols, self._bases):
            sizes = split(key[row]).sizes
            if place >= len(sizes) or not symbol.low <= sizes[place] <= symbol.high:
                return None
            values.append(sizes[place])
        if self._same(key) != self._fixed or self._changing(key) != self._changed_rows(values) or \
                not self.has_floats_of(normal):
            return None
        return tuple(values)

    def _changed_rows(self, values: Sequence[int]) -> tuple[Any, ...]:
        """Return the rows that depend on the variables, for these values of them."""
        sizes = [formula.at(values) for formula in self._distinct]
        new = [with_sizes(op, arg, iter([sizes[f] for f in formulas])) for op, arg, formulas in self._arguments]
        return tuple([before + (new[i],) + after for before, i, after in self._rows])

    def merged_values(self, normal: NormalizedGraph) -> Point | None:
        """Guard for a graph with fewer rows, in which nodes that differ only by the variables are one node (the
        counters to n and to 65, if n is 65): return the values of the variables, or None if this graph does not serve
        it."""
        leaves, sinks = _leaves_and_sinks(normal.key)
        if len(normal.key) >= len(self._parts) or len(leaves) != len(self._leaves):
            return None
        rows = [split(row) for row in normal.key]
        known = {(row.rest, row.sizes): i for i, row in enumerate(rows)}
        sizes = {n for i in leaves for n in rows[i].sizes}
        for values in product(*[[n for n in sizes if symbol.low <= n <= symbol.high] for symbol in self.symbols]):
            place = self._places_in(known, rows, dict(zip(self._leaves, leaves)), values)
            if place is not None and [place[i] for i in self._sinks] == sinks:
                return values if self.has_floats_of(normal) else None
        return None

    def has_floats_of(self, normal: NormalizedGraph) -> bool:
        """Return whether a graph with the same key has the same float constants, apart from those that are arguments.
        """
        return self._other_floats(normal) == self.constants

    def _places_in(self, known: dict[Any, int], rows: Sequence[SizesOf], place: dict[int, int],
                   values: Point) -> dict[int, int] | None:
        """Map each row of this graph, for these values of the variables, to its index among `rows`; None if a row is
        not there. `known` maps each of `rows` to its index, `place` has the leaves already."""
        sizes = [formula.at(values) for formula in self._distinct]
        for i, (part, formulas) in enumerate(zip(self._parts, self._formulas)):
            if type(part.rest) is not tuple:             # a sink's number
                continue
            without, rest = part.rest
            expected = (with_sources(without, place), rest), tuple([sizes[f] for f in formulas])
            if i not in place and expected in known:
                place[i] = known[expected]
            elif i not in place or expected != rows[place[i]][:2]:
                return None
        return place

    def is_fast(self, values: Point) -> bool:
        """Return whether these kernels are about as fast for these values of the variables as kernels for these values
        alone."""
        return all([value_of(size, values) <= most for size, most in self.slow_above])

    def gets_own_kernels(self, values: Point) -> bool:
        """Count one more graph with these values of the variables; return whether it gets kernels of its own, because
        these are much faster or because the values come so often that compiling pays."""
        if values in self.with_own_kernels:
            return True
        runs = self.runs.pop(values, 0)
        if not runs and not self.is_fast(values):
            report_sizes(f"size {_named(values)} gets kernels of its own: products of that size are faster so")
            return True
        if len(self.runs) >= MOST_COUNTED:
            self.runs.pop(next(iter(self.runs)))
        self.runs[values] = runs + 1
        if runs < FIXED_AFTER << len(self.with_own_kernels):
            return False
        self.give_own_kernels(values, f"computed {runs}")
        return True

    def give_own_kernels(self, values: Point, how_often: str) -> None:
        """Give these values of the variables kernels of their own from now on."""
        if values not in self.with_own_kernels:
            self.with_own_kernels.add(values)
            report_sizes(f"size {_named(values)} was {how_often} times: it gets kernels of its own")

    def _other_floats(self, normal: NormalizedGraph) -> bytes:
        return float_bits([c.arg for i, c in enumerate(normal.constants) if i not in self.scalars])


@dataclass(eq=False)
class ServedGraph:
    """A graph that a graph with variables serves, with its values of the variables. A graph that comes again is found
    here, and is not compared with the formulas."""
    general: GeneralGraph
    values: Point
    constants: list[UOp]                     # equal numbers are one node, to the bit

    def serves(self, normal: NormalizedGraph) -> bool:
        """Return whether a graph with the same key is served again: not if its float constants differ, or if its sizes
        now get kernels of their own."""
        if normal.constants != self.constants:
            if not self.general.has_floats_of(normal):
                return False
            self.constants = normal.constants
        return not self.general.gets_own_kernels(self.values)


def _leaves_and_sinks(key: tuple[Any, ...]) -> tuple[list[int], list[int]]:
    """Return the indices of the rows of leaves, which two nodes may share (buffers, cells, floats), and those of the
    sinks."""
    leaves = [i for i, row in enumerate(key) if type(row) is tuple and (row[0] is o.BUFFER or len(row) == 2)]
    return leaves, [row for row in key if type(row) is int]


def _named(values: Point) -> str:
    return " x ".join(map(str, values))
