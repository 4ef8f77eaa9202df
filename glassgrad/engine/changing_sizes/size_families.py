"""Serve graphs that differ only in their sizes by one graph with variables. In: `NormalizedGraph`s. Out: a graph with
variables, and the guard that decides which graphs it serves.

A loop over sentences, or a model that writes one token after another, computes the same graph again and again with
other sizes. The skeleton of a graph is its key without sizes. Once three graphs of one skeleton were seen, or two of
which one is longer by one, a graph with a variable is made that serves them all (symbolic_graph.py). Guard: it computes
a new graph only if all sizes of that graph are what the formulas give for its value of the variable. See
docs/design/changing_lengths.md.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, product
from operator import itemgetter, le, ne
from typing import Any, NamedTuple

from glassgrad.base.errors import Bug, GlassgradError, ShapeError
from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.graph.symbolic import Length, Size, Symbol, replaced
from glassgrad.compiler.optimize.tiling_families import FAMILIES
from glassgrad.compiler.schedule.attention_backward import in_kernel
from glassgrad.compiler.schedule.kernels import Item
from glassgrad.engine.changing_sizes.key_without_sizes import (SizesOf, argument_at, some_ops, split, with_sizes,
                                                               with_sources)
from glassgrad.engine.changing_sizes.size_formulas import (BEYOND, MOST_VARIABLES, Fitted, Formula, Point, Polynomial,
                                                           Rounded, Values, fit, fit_rounded, fit_several,
                                                           grown_from_one, variables_of)
from glassgrad.engine.changing_sizes.symbolic_graph import SymbolicGraph, with_variables
from glassgrad.engine.compiled_schedule import CompiledSchedule
from glassgrad.engine.debug_report import report_sizes
from glassgrad.engine.schedule_key import NormalizedGraph

SEEN = 3                  # different sizes before a variable is made: two are often a batch and its remainder
SEEN_GROWING = 2          # the same if one is longer by one than the other: a text that grows
LEAST_HIGH = 1024         # smallest upper bound of a variable
GROWTH = 4                # upper bound of a variable, as a multiple of the largest size seen
MOST_SEEN = 24            # sizes before a skeleton is given up; as many more for each variable that served other sizes
MOST_SERVED = 128         # graphs for which it is remembered what serves them
FIXED_AFTER = 50          # runs of one size before that size gets kernels of its own; the next size needs twice as many
MOST_COUNTED = 4096       # sizes whose runs are counted: those that ran last

# Sizes of a product above which a kernel for just this size is so much faster that compiling it pays:
UNTILED = 1 << 24         # multiply-adds, in plain loops
IN_GROUPS = {"held": 1 << 28, "warps": 1 << 26}     # multiply-adds, in families with blocks for groups of threads on a
# GPU, because kernels for one size have asynchronous copies
COPIED_AHEAD = 1 << 33    # multiply-adds, in attention kernels that have these copies too, but smaller blocks
READ_IN_PLACE = 1 << 17   # elements of a right factor that is neither packed nor streamed, in a sum in blocks of terms
AT_ONCE = 1 << 10         # (there is a version without blocks for sums of up to this many terms)


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
        return all([_at(size, values) <= most for size, most in self.slow_above])

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
        return _bits([c.arg for i, c in enumerate(normal.constants) if i not in self.scalars])


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
            self.constants.setdefault(i, set()).add(_bits([c.arg]))

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
        bounds = _variable_bounds(formulas, least, points)
        if len(last) == SEEN_GROWING and bounds[0][1] == max(values):     # no larger size is possible: a chance fit
            return None
        return SizeFormulas(bases, tuple(formulas), scalars, bounds, points)


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
        return _last(lambda n: all(_at(margin, {number: n}) >= 0 for margin in own),
                     max([point[number] for point in self.seen]), symbol.high)


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


def _leaves_and_sinks(key: tuple[Any, ...]) -> tuple[list[int], list[int]]:
    """Return the indices of the rows of leaves, which two nodes may share (buffers, cells, floats), and those of the
    sinks."""
    leaves = [i for i, row in enumerate(key) if type(row) is tuple and (row[0] is o.BUFFER or len(row) == 2)]
    return leaves, [row for row in key if type(row) is int]


def _named(values: Point) -> str:
    return " x ".join(map(str, values))


def _bits(values: Sequence[float]) -> bytes:
    return struct.pack(f"{len(values)}d", *values)


def _variable_bounds(formulas: Sequence[Formula], least: Sequence[int | None],
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


def _at(length: Size, values: Values) -> int:
    """Return the value of a length for these values of the variables."""
    return int(replaced(length, lambda symbol: values[int(symbol.name[1:])]))


def _variable(variables: Mapping[int, Symbol], slots: Sequence[int], symbol: Symbol) -> Symbol:
    """Return the variable that a kernel calls n and its position among the kernel's slots."""
    return variables[slots[int(symbol.name[1:])]]


def slow_above(items: Sequence[Item], programs: Sequence[Any],
               variables: Mapping[int, Symbol]) -> list[tuple[Length, int]]:
    """Return pairs (length, limit): kernels with variables are about as fast as kernels for these sizes alone while no
    length exceeds its limit. Slow are products that no tiling takes, products in blocks for groups of threads, and
    those that sum to a run-time bound and read a factor in place without streaming it. `variables` are given by their
    slots."""
    limits: dict[tuple[Size, int], None] = {}
    uses = {(item.ast, tuple([slot for slot in item.slots if slot in variables])): (item.slots, program)
            for item, program in zip(items, programs)}                      # equal kernels once: layers repeat
    for (ast, _), (slots, program) in uses.items():
        moves = getattr(program, "moves", ())
        families = FAMILIES.keys() & {move.split("(")[0] for move in moves}
        in_place = any("right=in_place" in move and "k_blocks=" in move for move in moves)
        ahead = any(move.startswith("held(") and "stages=" in move for move in moves)
        found: list[tuple[Size, int]] = []
        of_groups = [COPIED_AHEAD if ahead else IN_GROUPS[family] for family in families if family in IN_GROUPS]
        for n in ast.toposort():
            if n.op is o.SUM and n.src[0].op is o.MUL:
                depth = math.prod([n.src[0].shape[axis] for axis in n.arg.axes])
                columns = next((size for size in reversed(n.shape) if size != 1), 1)
                if of_groups or not families:
                    found.append((n.src[0].elements, min(of_groups, default=UNTILED)))
                elif in_place and isinstance(depth, Length) and not in_kernel(ast):    # blocks of keys stay in a cache
                    at_once = AT_ONCE * columns if isinstance(columns, int) else 0
                    found.append((depth * columns, max(READ_IN_PLACE, at_once)))
        named = partial(_variable, variables, slots)
        limits.update({(replaced(size, named), most): None for size, most in found})
    return [(size, most) for size, most in limits if isinstance(size, Length)]
