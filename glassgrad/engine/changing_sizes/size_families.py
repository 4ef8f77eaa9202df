"""Graphs that differ in sizes alone. In: `NormalizedGraph`s. Out: one graph for all of them, and the guard that fits.

A loop over sentences, or a model that writes one token after another, computes the same graph again and again with
other sizes. Where three of one skeleton were seen, or two of which one is longer by one, a graph with a variable is
made that serves them all (symbolic_graph.py). The guard: a new graph is computed by that one only if all its sizes are
what the formulas give for its value of the variable. See docs/design/changing_lengths.md.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from operator import itemgetter, le, ne
from typing import Any, NamedTuple

from glassgrad.base.errors import Bug, GlassgradError, ShapeError
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.symbolic import Length, Size, Symbol, replaced
from glassgrad.compiler.optimize.tiling_families import FAMILIES
from glassgrad.compiler.schedule.attention_backward import in_kernel
from glassgrad.compiler.schedule.kernels import Item
from glassgrad.engine.changing_sizes.key_without_sizes import (SizesOf, argument_at, some_ops, split, with_sizes,
                                                               with_sources)
from glassgrad.engine.changing_sizes.symbolic_graph import (Formula, Rounded, SymbolicGraph, depends_on_n, fit,
                                                            fit_rounded, grown_from_one, has_rounded, with_variable)
from glassgrad.engine.compiled_schedule import CompiledSchedule
from glassgrad.engine.debug_report import report_sizes
from glassgrad.engine.schedule_key import NormalizedGraph

SEEN = 3                  # different sizes before a variable is compiled for: two are often a batch and its remainder
SEEN_GROWING = 2          # the same, where one is longer by one than the other: a text that grows
LEAST_HIGH = 1024         # the least upper bound of a variable
GROWTH = 4                # the factor by which it exceeds the greatest size seen
MOST_SEEN = 24            # sizes before a skeleton is given up, and as many again for each variable that served others
MOST_SERVED = 128         # graphs of which it is kept what serves them
FIXED_AFTER = 50          # runs of one size before that size gets kernels of its own; the next one needs twice as many

UNTILED = 1 << 24         # multiply-adds of a product in plain loops, above which a kernel for its size pays
IN_GROUPS = {"held": 1 << 28, "warps": 1 << 26}     # the same, for families whose blocks are for
# groups of threads on a GPU: kernels for one size have asynchronous copies;
COPIED_AHEAD = 1 << 33    # the same for attention that has them, too, in smaller blocks
READ_IN_PLACE = 1 << 17   # elements of a right factor that is neither packed nor streamed, of such a sum


class GeneralGraph:
    """A graph with a variable in its sizes: made from a graph's key, in which one size is the variable and each size
    follows from it by a formula."""

    def __init__(self, normal: NormalizedGraph, parts: list[SizesOf], sizes: SizeFormulas, symbol: Symbol,
                 formulas: Sequence[Formula], compiled: CompiledSchedule):
        key, base = normal.key, sizes.base
        self.symbol, self.compiled = symbol, compiled
        self.scalars = sizes.scalars                     # which floats are arguments
        self.constants = self._other_floats(normal)
        self.fast_to = fast_up_to(compiled.items, compiled.programs, symbol)
        self.runs: dict[int, int] = {}                   # how often each value of the variable was computed
        self.left: set[int] = set()                      # values that were computed so often that they left
        rest = iter(formulas)
        by_row = [tuple(islice(rest, len(part.sizes))) for part in parts]
        self._parts, self._formulas = parts, by_row
        self._leaves, self._sinks = _leaves_and_sinks(key)
        changing = [i for i, row in enumerate(by_row) if row and any(map(depends_on_n, row))]
        same = sorted(set(range(len(key))) - set(changing))
        self._changing, self._same = itemgetter(*changing, changing[0]), itemgetter(*same, same[0])
        self._fixed = self._same(key)
        arguments: dict[tuple[o.Op, Any, tuple[Formula, ...]], int] = {}      # layers repeat: each distinct one once
        self._rows: list[tuple[tuple[Any, ...], int, tuple[Any, ...]]] = []      # before, argument, after
        for i in (*changing, changing[0]):
            row, at = key[i], argument_at(key[i][0])
            number = arguments.setdefault((row[0], row[at], by_row[i]), len(arguments))
            self._rows.append((row[:at], number, row[at + 1:]))
        self._arguments = list(arguments)
        first = [at for at, part in enumerate(parts) for _ in part.sizes]
        self._row, self._place = first[base], base - first.index(first[base])

    def value_for(self, normal: NormalizedGraph) -> int | None:
        """The guard: the variable's value in a graph of as many rows; None where it is not one of these graphs."""
        key = normal.key
        sizes = split(key[self._row]).sizes
        n = sizes[self._place] if self._place < len(sizes) else -1
        if not self.symbol.low <= n <= self.symbol.high or self._same(key) != self._fixed or \
                self._changing(key) != self._changed_rows(n):
            return None
        return n if self.has_floats_of(normal) else None

    def _changed_rows(self, n: int) -> tuple[Any, ...]:
        """The rows that depend on the variable, as its value n makes them."""
        new = [with_sizes(op, arg, iter([f.at(n) for f in formulas])) for op, arg, formulas in self._arguments]
        return tuple([before + (new[i],) + after for before, i, after in self._rows])

    def merged_value(self, normal: NormalizedGraph) -> int | None:
        """The guard for a graph of fewer rows: the variable's value where nodes of these graphs that differ by the
        variable are one node there (the counters to n and to 65, where n is 65)."""
        leaves, sinks = _leaves_and_sinks(normal.key)
        if len(normal.key) >= len(self._parts) or len(leaves) != len(self._leaves):
            return None
        rows = [split(row) for row in normal.key]
        for n in {n for i in leaves for n in rows[i].sizes if self.symbol.low <= n <= self.symbol.high}:
            place = self._places_in(rows, dict(zip(self._leaves, leaves)), n)
            if place is not None and [place[i] for i in self._sinks] == sinks:
                return n if self.has_floats_of(normal) else None
        return None

    def has_floats_of(self, normal: NormalizedGraph) -> bool:
        """Whether all floats that are no arguments are those of a graph of the same key."""
        return self._other_floats(normal) == self.constants

    def _places_in(self, rows: Sequence[SizesOf], place: dict[int, int], n: int) -> dict[int, int] | None:
        """The index among `rows` of each row of this graph, for the value n of the variable; `place` has those of the
        leaves. None if a row is not among them."""
        known = {(row.rest, row.sizes): i for i, row in enumerate(rows)}
        for i, (part, formulas) in enumerate(zip(self._parts, self._formulas)):
            if type(part.rest) is not tuple:             # a sink's number
                continue
            without, rest = part.rest
            expected = (with_sources(without, place), rest), tuple([f.at(n) for f in formulas])
            if i not in place and expected in known:
                place[i] = known[expected]
            elif i not in place or expected != rows[place[i]][:2]:
                return None
        return place

    def gets_own_kernels(self, value: int) -> bool:
        """Whether one more graph with this value of the variable gets kernels of its own: they are faster, or the value
        comes so often that they pay."""
        if value in self.left:
            return True
        if value > self.fast_to:
            report_sizes(f"size {value} gets kernels of its own: products of that size are faster so")
            return True
        runs = self.runs[value] = self.runs.get(value, 0) + 1
        if runs <= FIXED_AFTER << len(self.left):
            return False
        self.left.add(value)
        report_sizes(f"size {value} was computed {runs - 1} times: it gets kernels of its own")
        return True

    def _other_floats(self, normal: NormalizedGraph) -> bytes:
        return _bits([c.arg for i, c in enumerate(normal.constants) if i not in self.scalars])


@dataclass(eq=False)
class SizeFamily:
    """All graphs of one skeleton: the sizes that were seen, and the graph that serves them."""
    seen: list[tuple[int, ...]] = field(default_factory=list)
    parts: list[SizesOf] = field(default_factory=list)                 # the rows of the last graph
    constants: dict[int, set[bytes]] = field(default_factory=dict)     # what each float was
    grown: Any = None                        # the row of a leaf that was 1 long in the graph before, and is 2 now
    made: list[GeneralGraph] = field(default_factory=list)
    given_up: str = ""

    def see(self, normal: NormalizedGraph, parts: list[SizesOf]) -> None:
        """One more graph of the skeleton."""
        self.parts, sizes = parts, tuple([n for part in parts for n in part.sizes])
        if any(n.op in (o.COPY, o.CALL) for n in normal.order):
            self.given_up = "values are copied between devices, or passed to a function of the user's"
        elif not self.given_up and len(self.seen) >= MOST_SEEN * (1 + sum([len(g.runs) > 1 for g in self.made])):
            self._give_up(f"no variable fits {len(self.seen)} sizes")
        if self.given_up:
            return
        if sizes in self.seen:
            self.seen.remove(sizes)          # the last one is this graph's: the formulas must fit it
        self.seen.append(sizes)
        for i, c in enumerate(normal.constants):
            self.constants.setdefault(i, set()).add(_bits([c.arg]))

    def refuse(self, sizes: SizeFormulas, why: str) -> None:
        """No graph could be made with these formulas. After three sizes that is final, if no others of the skeleton
        have one; but of formulas that round, others fit when there are more sizes."""
        if len(self.seen) >= SEEN and not self.made and not has_rounded(sizes.formulas):
            self._give_up(why)

    def _give_up(self, why: str) -> None:
        self.given_up = why
        report_sizes(f"a size changes, and each is compiled for itself: {why}")

    def formulas(self, normal: NormalizedGraph) -> SizeFormulas | None:
        """The formulas of the sizes, fitted to the last sizes seen; None where too few were, or no variable fits."""
        found, last = None, self.seen
        if len(last) >= SEEN_GROWING:
            tried: list[Any] = [(fit, sizes[-SEEN:]) for sizes in _alike(last)]
            of_leaves = [part.rest[0][0] is o.BUFFER for part in self.parts for _ in part.sizes]
            rounded = partial(fit_rounded, of_leaves=of_leaves)
            tried += [(rounded, sizes) for sizes in _alike(last, True) if len(sizes) >= SEEN]
            found, last = next(((fitted, sizes) for fits, sizes in tried if (fitted := fits(sizes))), (None, last))
        elif self.grown is not None:
            found = grown_from_one(normal.key, self.parts, self.grown)
        if found is None:
            return None
        base, formulas = found
        values = [sizes[base] for sizes in last]
        if min(values) < 0 or len(last) < SEEN and max(values) - min(values) > 1:
            return None
        scalars = tuple(i for i, floats in self.constants.items() if len(floats) > 1)
        least = [n for part in self.parts for n in part.least]
        low, high = _limits(formulas, least, min(values), max(values))
        if len(last) == SEEN_GROWING and high == max(values):     # none can be larger: they fit by chance
            return None
        return SizeFormulas(base, tuple(formulas), scalars, low, tuple(values), high)


class SizeFormulas(NamedTuple):
    """Every size of a family as a formula of one variable."""
    base: int                                # which size is the variable
    formulas: tuple[Formula, ...]            # of each size
    scalars: tuple[int, ...]                 # which floats are arguments
    low: int                                 # the bounds of the variable, within which all sizes are valid
    seen: tuple[int, ...]                    # its values yet
    high: int

    def graph(self, normal: NormalizedGraph) -> tuple[Symbol, SymbolicGraph]:
        """The variable, and the graph with it in its sizes. Its upper bound is lowered until no slice ends outside of
        its source."""
        symbol = Symbol("v0", self.low, self.high, None, True)
        try:
            graph = with_variable(normal, self.formulas, symbol, self.scalars, self.seen)
        except Bug as misfit:                # of few sizes: what followed the variable in them does not in the graph
            raise ShapeError("its sizes do not follow from one of them", given=str(misfit).splitlines()[0],
                             expected="shapes that fit each other for every value of the variable",
                             fix="nothing: each size is compiled for itself") from misfit
        narrower = _last(lambda n: all(_at(margin, n) >= 0 for margin in graph.margins), max(self.seen), self.high)
        if narrower < self.high:
            symbol = symbol._replace(high=narrower)
            graph = with_variable(normal, self.formulas, symbol, self.scalars, self.seen)
        return symbol, graph


# Makes kernels for all sizes: (graph, formulas, what else a schedule depends on) -> (schedule, (variable, formulas))
CompileForAllSizes = Callable[[NormalizedGraph, SizeFormulas, tuple[Any, ...]],
                              tuple[CompiledSchedule, tuple[Symbol, Sequence[Formula]]]]


class SizeFamilies:
    """All families of a process: graphs with a variable by some of their ops, and what was seen by skeleton."""

    def __init__(self, most: int):
        self._most = most
        self._seen: dict[Any, SizeFamily] = {}
        self._leaves: dict[Any, set[Any]] = {}           # rows of the leaves of the graph that a line made last
        self._general: dict[Any, list[GeneralGraph]] = {}
        self._served: dict[Any, tuple[GeneralGraph, int]] = {}       # by key, graphs that were served last

    def served(self, normal: NormalizedGraph,
               where: tuple[Any, ...]) -> tuple[CompiledSchedule, tuple[int, ...]] | None:
        """The schedule for changing sizes that served the same graph before, and the size; None where there is none, or
        where this size gets its own kernels now."""
        found = self._served.get((where, normal.key))
        if found is None or not found[0].has_floats_of(normal) or found[0].gets_own_kernels(found[1]):
            return None
        general, value = found
        return general.compiled.for_values((value,)), (value,)

    def schedule_for(self, normal: NormalizedGraph, where: tuple[Any, ...],
                     compile: CompileForAllSizes) -> tuple[CompiledSchedule, tuple[int, ...]] | None:
        """The schedule for changing sizes that a graph fits, and the size; None where it is compiled for its own
        sizes: too few sizes were seen yet, no variable fits them, or this size comes so often that its own kernels pay.
        `where` is what else a schedule depends on."""
        found = self._find(normal, where) or self._new(normal, where, compile)
        if found is None:
            return None
        general, value = found
        if general.gets_own_kernels(value):
            return None
        if len(self._served) >= MOST_SERVED:
            self._served.pop(next(iter(self._served)))
        self._served[where, normal.key] = found
        return general.compiled.for_values((value,)), (value,)

    def _find(self, normal: NormalizedGraph, where: tuple[Any, ...]) -> tuple[GeneralGraph, int] | None:
        """The graph with a variable that this graph is one of, and the variable's value."""
        for general in reversed(self._general.get((where, some_ops(normal.key)), ())):
            value = general.value_for(normal)
            if value is not None:
                return general, value
        for (place, _), generals in self._general.items():
            for general in reversed(generals) if place == where else ():
                value = general.merged_value(normal)
                if value is not None:
                    return general, value
        return None

    def _new(self, normal: NormalizedGraph, where: tuple[Any, ...],
             compile: CompileForAllSizes) -> tuple[GeneralGraph, int] | None:
        """A new graph with a variable for one that none fits, and the variable's value; None where that is refused."""
        family = self._family(normal, where)
        sizes = None if family.given_up else family.formulas(normal)
        if sizes is None:
            return None
        try:
            compiled, (symbol, formulas) = compile(normal, sizes, where)
        except GlassgradError as why:
            family.refuse(sizes, str(why).splitlines()[0])
            return None
        general = GeneralGraph(normal, family.parts, sizes, symbol, formulas, compiled)
        family.made.append(general)
        if len(self._general) >= self._most:
            self._general.pop(next(iter(self._general)))
        self._general.setdefault((where, some_ops(normal.key)), []).append(general)
        report_sizes(f"a size changes: kernels for all sizes from {symbol.low} to {symbol.high}, made at "
                     f"{normal.sinks[0].line}")
        value = general.value_for(normal)
        return None if value is None else (general, value)

    def _family(self, normal: NormalizedGraph, where: tuple[Any, ...]) -> SizeFamily:
        """The family of a graph that no graph with a variable fits; the graph is noted in it."""
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
    """The sizes to fit a variable to: all that were seen, if they are few; else the last ones after two or more that
    differ from them in the same places, the fewest places first. (Layers of several widths, each for many lengths, are
    one skeleton.) Sizes that are `rounded` may be equal for other lengths: then in some of these places.

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
    """The row of the one leaf that differs from those of the graph before, if one of its sizes was 1 and is 2."""
    old, new = before - leaves, leaves - before
    if len(old) != 1 or len(new) != 1:
        return None
    [was], [row] = old, new
    pairs = [pair for pair in zip(was[2], row[2]) if pair[0] != pair[1]]
    return row if len(was[2]) == len(row[2]) and pairs == [(1, 2)] and row[2].count(2) == 1 else None


def _leaves_and_sinks(key: tuple[Any, ...]) -> tuple[list[int], list[int]]:
    """The rows of leaves, which may be equal for two nodes (buffers, cells, floats), and the rows of the sinks."""
    leaves = [i for i, row in enumerate(key) if type(row) is tuple and (row[0] is o.BUFFER or len(row) == 2)]
    return leaves, [row for row in key if type(row) is int]


def _bits(values: Sequence[float]) -> bytes:
    return struct.pack(f"{len(values)}d", *values)


def _limits(formulas: Sequence[Formula], least: Sequence[int | None], low: int, high: int) -> tuple[int, int]:
    """The widest bounds of a variable that was seen from `low` to `high` within which all sizes are valid that grow or
    shrink with it; where a remainder is not, the guard refuses the graph."""
    conditions = {(f, n) for f, n in zip(formulas, least) if n is not None and depends_on_n(f) and not (
        isinstance(f, Rounded) and f.linear)}

    def holds(value: int) -> bool:
        return all(formula.at(value) >= n for formula, n in conditions)

    wanted = max(LEAST_HIGH, GROWTH * (1 << (high - 1).bit_length()))
    while low > 2 and holds(low - 1):
        low -= 1
    return low, _last(holds, high, wanted)


def _last(holds: Callable[[int], bool], good: int, wanted: int) -> int:
    """The greatest value up to `wanted` for which a condition holds that holds for `good` and is monotonic."""
    if holds(wanted):
        return wanted
    bad = wanted
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good


def _at(length: Size, value: int) -> int:
    """The value of a length for this value of its variable."""
    return int(replaced(length, lambda _: value))


def fast_up_to(items: Sequence[Item], programs: Sequence[Any], symbol: Symbol) -> int:
    """The greatest value for which kernels with a variable are about as fast as kernels for that size alone: it
    limits products that no tiling takes, those in blocks for groups of threads, and those that sum to a run-time bound
    and read a factor in place without streaming it."""
    limits: list[tuple[Size, int]] = []
    for ast, program in {item.ast: program for item, program in zip(items, programs)}.items():      # layers repeat
        moves = getattr(program, "moves", ())
        families = FAMILIES.keys() & {move.split("(")[0] for move in moves}
        in_place = any("right=in_place" in move and "k_blocks=" in move for move in moves)    # in blocks of many rows
        ahead = any(move.startswith("held(") and "stages=" in move for move in moves)
        of_groups = [COPIED_AHEAD if ahead else IN_GROUPS[family] for family in families if family in IN_GROUPS]
        for n in ast.toposort():
            if n.op is o.SUM and n.src[0].op is o.MUL:
                depth = math.prod([n.src[0].shape[axis] for axis in n.arg.axes])
                columns = next((size for size in reversed(n.shape) if size != 1), 1)
                if of_groups or not families:
                    limits.append((n.src[0].elements, min(of_groups, default=UNTILED)))
                elif in_place and isinstance(depth, Length) and not in_kernel(ast):    # blocks of keys stay in a cache
                    limits.append((depth * columns, READ_IN_PLACE))
    fits = [(size, most) for size, most in limits if isinstance(size, Length)]
    return _last(lambda value: all(_at(size, value) <= most for size, most in fits), symbol.low - 1, symbol.high)
