"""Serve graphs that differ only in their sizes by one graph with variables. In: `NormalizedGraph`s. Out: a graph with
variables, and the values of these.

A loop over sentences, or a model that writes one token after another, computes the same graph again and again with
other sizes. The skeleton of a graph is its key without sizes. Once three graphs of one skeleton were seen, or two of
which one is longer by one, a graph with a variable is made that serves them all (general_graph.py). See
docs/design/changing_lengths.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import le, ne
from typing import Any

from glassgrad.base.errors import GlassgradError
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.symbolic import Symbol
from glassgrad.engine.changing_sizes.general_graph import GeneralGraph, ServedGraph, SizeFormulas, variable_bounds
from glassgrad.engine.changing_sizes.key_without_sizes import SizesOf, float_bits, some_ops, split
from glassgrad.engine.changing_sizes.size_formulas import (BEYOND, MOST_VARIABLES, Fitted, Formula, Point, Polynomial,
                                                           fit, fit_rounded, fit_several, grown_from_one)
from glassgrad.engine.compiled_schedule import CompiledSchedule
from glassgrad.engine.debug_report import report_sizes
from glassgrad.engine.schedule_key import NormalizedGraph

SEEN = 3                  # different sizes before a variable is made: two are often a batch and its remainder
SEEN_GROWING = 2          # the same if one is longer by one than the other: a text that grows
MOST_SEEN = 24            # sizes before a skeleton is given up; as many more for each variable that served other sizes
MOST_SERVED = 128         # graphs for which it is remembered what serves them


@dataclass(eq=False)
class SizeFamily:
    """All graphs of one skeleton: the sizes that were seen, and the graphs with variables that serve them."""
    seen: list[tuple[int, ...]] = field(default_factory=list)
    parts: list[SizesOf] = field(default_factory=list)                 # the rows of the last graph
    constants: dict[int, set[bytes]] = field(default_factory=dict)     # all values of each float constant
    grown: Any = None                        # the row of a leaf with a size that was 1 in the last graph, and is 2 now
    made: list[GeneralGraph] = field(default_factory=list)
    given_up: str = ""

    def see(self, normal: NormalizedGraph, parts: list[SizesOf]) -> None:
        """Add one more graph of the skeleton."""
        self.parts, sizes = parts, tuple([n for part in parts for n in part.sizes])
        if any(n.op in (o.COPY, o.CALL) for n in normal.order):
            self.given_up = "values are copied between devices, or passed to a function of the user's"
        elif not self.given_up and len(self.seen) >= MOST_SEEN * (1 + sum([len(g.runs) > 1 for g in self.made])):
            self._give_up(f"no variable fits {len(self.seen)} sizes")
        if self.given_up:
            return
        if sizes in self.seen:
            self.seen.remove(sizes)          # this graph's sizes come last: the formulas must fit them
        self.seen.append(sizes)
        for i, c in enumerate(normal.constants):
            self.constants.setdefault(i, set()).add(float_bits([c.arg]))

    def refuse(self, sizes: SizeFormulas, why: str) -> None:
        """Note that no graph could be made with these formulas. After a few sizes the skeleton is given up, if none was
        made before. It is not given up for formulas of several variables, or formulas that round: with more sizes,
        others may fit."""
        if len(self.seen) >= MOST_VARIABLES + BEYOND and not self.made and len(sizes.bases) == 1 and \
                all([isinstance(formula, Polynomial) for formula in sizes.formulas]):
            self._give_up(why)

    def _give_up(self, why: str) -> None:
        self.given_up = why
        report_sizes(f"a size changes, and each is compiled for itself: {why}")

    def formulas(self, normal: NormalizedGraph) -> Iterator[SizeFormulas]:
        """Yield formulas that fit the last sizes seen, those with the fewest variables first; none if too few sizes
        were seen or no variables fit."""
        if len(self.seen) < SEEN_GROWING:
            found = None if self.grown is None else grown_from_one(normal.key, self.parts, self.grown)
            tried = [(lambda _: found, self.seen)]
        else:
            of_leaves = [part.rest[0][0] is o.BUFFER for part in self.parts for _ in part.sizes]
            subsets = _alike(self.seen, True)
            tried = [(fit, sizes[-SEEN:]) for sizes in _alike(self.seen)]
            tried += [(partial(fit_rounded, of_leaves=of_leaves), sizes) for sizes in subsets if len(sizes) >= SEEN]
            tried += [(partial(fit_several, parts=self.parts, variables=variables, rounded=rounded), sizes)
                      for variables in range(2, MOST_VARIABLES + 1) for rounded in (False, True) for sizes in subsets
                      if len(sizes) >= variables + BEYOND]
        for fits, last in tried:
            fitted = fits(last)
            sizes = None if fitted is None else self._bounded(fitted, last)
            if sizes is not None:
                yield sizes

    def _bounded(self, fitted: Fitted, last: Sequence[tuple[int, ...]]) -> SizeFormulas | None:
        """Add bounds of the variables to fitted formulas; return None if they fit by chance."""
        bases, formulas = fitted
        points = tuple([tuple([sizes[base] for base in bases]) for sizes in last])
        values = [n for point in points for n in point]
        if min(values) < 0 or len(last) < SEEN and max(values) - min(values) > 1:
            return None
        scalars = tuple(i for i, floats in self.constants.items() if len(floats) > 1)
        least = [n for part in self.parts for n in part.least]
        bounds = variable_bounds(formulas, least, points)
        if len(last) == SEEN_GROWING and bounds[0][1] == max(values):     # no larger size is possible: a chance fit
            return None
        return SizeFormulas(bases, tuple(formulas), scalars, bounds, points)


# Compiles kernels for all sizes: (graph, formulas, what else a schedule depends on) -> schedule, (variables, formulas)
CompileForAllSizes = Callable[[NormalizedGraph, SizeFormulas, tuple[Any, ...]],
                              tuple[CompiledSchedule, tuple[Sequence[Symbol], Sequence[Formula]]]]


class SizeFamilies:
    """All families of a process: graphs with variables, by some of their ops, and the sizes that were seen, by
    skeleton."""

    def __init__(self, most: int):
        self._most = most
        self._seen: dict[Any, SizeFamily] = {}
        self._leaves: dict[Any, set[Any]] = {}           # by the user's line: rows of the leaves of its last graph
        self._general: dict[Any, list[GeneralGraph]] = {}
        self._served = deque[Any]()                      # keys of the graphs that were served last

    def keep(self, schedules: dict[Any, Any], key: Any, served: ServedGraph) -> None:
        """Store what serves graphs of a key among all schedules, and drop the oldest such entry."""
        self._served.append(key)
        last = self._served.popleft() if len(self._served) > MOST_SERVED else key
        if isinstance(schedules.get(last), ServedGraph):
            del schedules[last]
        schedules[key] = served

    def schedule_for(self, normal: NormalizedGraph, where: tuple[Any, ...],
                     compile: CompileForAllSizes) -> ServedGraph | None:
        """Return the schedule for changing sizes that serves a graph, with the sizes. Return None if the graph is
        compiled for its own sizes: too few sizes were seen so far, no variables fit them, or this size came so often
        that its own kernels pay. `where` is what a schedule depends on besides the graph."""
        found = self._find(normal, where) or self._new(normal, where, compile)
        return None if found is None or found[0].gets_own_kernels(found[1]) else ServedGraph(*found, normal.constants)

    def _find(self, normal: NormalizedGraph, where: tuple[Any, ...]) -> tuple[GeneralGraph, Point] | None:
        """Find the graph with variables that serves this graph, and the values of the variables."""
        for general in reversed(self._general.get((where, some_ops(normal.key)), ())):
            values = general.values_for(normal)
            if values is not None:
                return general, values
        for (place, _), generals in self._general.items():
            for general in reversed(generals) if place == where else ():
                values = general.merged_values(normal)
                if values is not None:
                    return general, values
        return None

    def _new(self, normal: NormalizedGraph, where: tuple[Any, ...],
             compile: CompileForAllSizes) -> tuple[GeneralGraph, Point] | None:
        """Make a graph with variables for a graph that none serves; return it with the values of the variables, or None
        if that is not possible."""
        family = self._family(normal, where)
        for sizes in () if family.given_up else family.formulas(normal):
            try:
                compiled, (symbols, formulas) = compile(normal, sizes, where)
                break
            except GlassgradError as why:
                family.refuse(sizes, str(why).splitlines()[0])
        else:
            return None
        general = GeneralGraph(normal, family.parts, sizes, symbols, formulas, compiled)
        family.made.append(general)
        if len(self._general) >= self._most:
            self._general.pop(next(iter(self._general)))
        generals = self._general.setdefault((where, some_ops(normal.key)), [])
        generals.append(general)
        generals.sort(key=lambda g: -len(g.symbols))     # `_find` starts at the end: with the fewest variables
        bounds = " and ".join([f"from {symbol.low} to {symbol.high}" for symbol in symbols])
        change = "a size changes" if len(symbols) == 1 else f"{len(symbols)} sizes change"
        report_sizes(f"{change}: kernels for all sizes {bounds}, made at {normal.sinks[0].line}")
        values = general.values_for(normal)
        return None if values is None else (general, values)

    def _family(self, normal: NormalizedGraph, where: tuple[Any, ...]) -> SizeFamily:
        """Return the family of a graph that no graph with variables serves, and add the graph to it."""
        parts = [split(row) for row in normal.key]
        for kept in (self._seen, self._leaves):
            if len(kept) >= self._most:
                kept.pop(next(iter(kept)))
        leaves = {row for row in normal.key if type(row) is tuple and row[0] is o.BUFFER}
        place = where, (normal.sinks[0].place or ())[:2]
        grown, self._leaves[place] = _grown(self._leaves.get(place, leaves), leaves), leaves
        family = self._seen.setdefault((where, tuple([part.rest for part in parts])), SizeFamily(grown=grown))
        family.see(normal, parts)
        return family


def _alike(seen: list[tuple[int, ...]], rounded: bool = False) -> list[list[tuple[int, ...]]]:
    """Return lists of sizes to fit variables to: all that were seen, if they are few; else lists of two or more earlier
    sizes that differ from the last ones in the same places, fewest places first, each followed by the last ones.
    (Layers of several widths, each for many lengths, have one skeleton.) With `rounded`, earlier sizes may also differ
    in only some of these places, because rounded sizes may be equal for different lengths.

    >>> _alike([(30, 8), (30, 16), (7, 8), (7, 16), (12, 8)])
    [[(30, 8), (7, 8), (12, 8)], [(30, 16), (7, 16), (12, 8)]]
    """
    if len(seen) < SEEN:
        return [seen]
    *earlier, last = seen
    places = [tuple(map(ne, sizes, last)) for sizes in earlier]
    groups = [[*[sizes for sizes, other in zip(earlier, places)
                 if other == chosen or rounded and all(map(le, other, chosen))], last]
              for chosen in sorted(dict.fromkeys(places), key=sum)]
    return [group for group in groups if len(group) >= SEEN]


def _grown(before: set[Any], leaves: set[Any]) -> Any:
    """Return the row of the only leaf that differs from the leaves of the graph before, if one of its sizes was 1 and
    is 2 now."""
    old, new = before - leaves, leaves - before
    if len(old) != 1 or len(new) != 1:
        return None
    [was], [row] = old, new
    pairs = [pair for pair in zip(was[2], row[2]) if pair[0] != pair[1]]
    return row if len(was[2]) == len(row[2]) and pairs == [(1, 2)] and row[2].count(2) == 1 else None
