"""A graph with a variable in its sizes. In: sizes of two or three graphs of one skeleton. Out: formulas, and the graph.

Each size that differs is a polynomial of one of them, n. With a variable in place of n, the graph is built again:
its shapes are checked as it is built, so formulas that fit by chance and mean nothing are refused here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from glassgrad.base.source_lines import one_place
from glassgrad.compiler.graph import dtypes, ops as o
from glassgrad.compiler.graph.op_arguments import Measure, Param
from glassgrad.compiler.graph.symbolic import Length, Size, Symbol, lengths_in, replaced
from glassgrad.compiler.graph.uop import UOp
from glassgrad.engine.changing_sizes.key_without_sizes import SizesOf, node_with_sizes, with_sizes
from glassgrad.engine.schedule_key import NormalizedGraph

MOST_DIVISOR = 64        # of sizes that are quotients, and what such a quotient is multiplied with at most


# -- sizes as formulas ------------------------------------------------------------------------------------------
class Polynomial(NamedTuple):
    """constant + linear * n + square * n * n"""
    constant: int
    linear: int = 0
    square: int = 0

    def at(self, n: Any) -> Any:
        """Its value at n: an integer for an integer, a `Length` for a `Length`."""
        return self.constant + self.linear * n + self.square * (n * n)


class Rounded(NamedTuple):
    """constant + linear * n + times * ((factor * n + offset) // divisor)"""
    constant: int
    linear: int
    times: int
    factor: int
    offset: int
    divisor: int

    def at(self, n: Any) -> Any:
        """Its value at n: an integer for an integer, a `Length` for a `Length`."""
        return self.constant + self.linear * n + self.times * ((self.factor * n + self.offset) // self.divisor)


class Inferred(NamedTuple):
    """What the shapes of a graph say that a size is."""
    length: Length

    def at(self, n: Any) -> Any:
        """Its value at n."""
        return int(replaced(self.length, lambda _: n))


Formula = Polynomial | Rounded | Inferred


def depends_on_n(formula: Formula) -> bool:
    return not isinstance(formula, Polynomial) or bool(formula.linear or formula.square)


def fit(seen: Sequence[tuple[int, ...]]) -> tuple[int, list[Polynomial]] | None:
    """Which of the sizes is n, and each size as a polynomial of it; None where there is no such n. Three lists of sizes
    leave no choice; of the polynomials that fit two lists, it is the one with the fewest terms.

    >>> fit([(7, 3, 4, 9), (7, 4, 5, 16), (7, 8, 9, 64)])
    (1, [Polynomial(constant=7, linear=0, square=0), Polynomial(constant=0, linear=1, square=0), \
Polynomial(constant=1, linear=1, square=0), Polynomial(constant=0, linear=0, square=1)])
    >>> fit([(3, 1), (4, 1), (8, 2)])
    >>> fit([(3, 4, 18), (4, 5, 32)])[1][1:]
    [Polynomial(constant=1, linear=1, square=0), Polynomial(constant=0, linear=0, square=2)]
    """
    each = list(zip(*seen))
    apart = [i for i, values in enumerate(each) if len(set(values)) == len(seen)]
    if not apart:
        return None
    base = min(apart, key=lambda i: abs(each[i][1] - each[i][0]))
    through = _through_two if len(seen) == 2 else _through_three
    known = {values: Polynomial(values[0]) if len(set(values)) == 1 else through(each[base], values)
             for values in set(each)}
    found = [polynomial for values in each if (polynomial := known[values]) is not None]
    return (base, found) if len(found) == len(each) else None


def fit_rounded(seen: Sequence[tuple[int, ...]], of_leaves: Sequence[bool]) -> tuple[int, list[Formula]] | None:
    """As `fit`, where sizes may also be quotients of n that are rounded down, all with one divisor: few sizes fit some
    formula by chance, but not all of them the same divisor. Of the sizes for which that holds, n is one of a leaf, if
    there is one, and the one that differs most.

    >>> fit_rounded([(4, 9), (2, 4), (3, 7)], [False, True])
    (1, [Rounded(constant=0, linear=0, times=1, factor=1, offset=0, divisor=2), \
Polynomial(constant=0, linear=1, square=0)])
    """
    each = list(zip(*seen))
    apart = [i for i, values in enumerate(each) if len(set(values)) == len(seen)]
    bases = {each[i]: i for i in [i for i in apart if of_leaves[i]] or apart}
    for points in sorted(bases, key=lambda values: min(values) - max(values)):
        for divisor in range(2, MOST_DIVISOR + 1):
            known: dict[tuple[int, ...], Formula] = {}
            for values in dict.fromkeys(each):
                formula = _polynomial_or_rounded(points, values, divisor)
                if formula is None:
                    break
                known[values] = formula
            else:
                return bases[points], [known[values] for values in each]
    return None


def has_rounded(formulas: Sequence[Formula]) -> bool:
    return any([isinstance(f, Rounded) for f in formulas])


def _polynomial_or_rounded(points: tuple[int, ...], values: tuple[int, ...], divisor: int) -> Formula | None:
    """A polynomial, or else a quotient with this divisor, through all points."""
    found = Polynomial(values[0]) if len(set(values)) == 1 else _through_three(points[-3:], values[-3:])
    if found is not None and all(found.at(x) == u for x, u in zip(points, values)):
        return found
    low, high = min(range(len(points)), key=points.__getitem__), max(range(len(points)), key=points.__getitem__)
    for linear in (0, -1, 1):                            # with -1, what is missing to a multiple; with 1, a remainder
        rest = [u - linear * x for x, u in zip(points, values)]
        over, up, common = points[high] - points[low], rest[high] - rest[low], math.gcd(*[u - rest[0] for u in rest])
        factors = [n for n in range(min(common, MOST_DIVISOR), 0, -1) if not common % n]
        for times in [sign * n for n in factors for sign in (1, -1)]:
            slope = divisor * up // (times * over)
            for factor in (slope, slope + 1):
                rounded = _rounded(points, rest, times, factor, divisor) if factor > 0 else None
                if rounded is not None:
                    return rounded._replace(linear=linear)
    return None


def _rounded(points: Sequence[int], values: Sequence[int], times: int, factor: int, divisor: int) -> Rounded | None:
    """constant + times * ((factor * n + offset) // divisor) through all points, with the least offset."""
    first = values[0]
    least = [divisor * ((u - first) // times) - factor * x for x, u in zip(points, values)]
    low, high = max(least), min(least) + divisor - 1
    if low > high:
        return None
    offset = max(low, high // divisor * divisor)         # a multiple of the divisor, if there is one
    return Rounded(first + times * (offset // divisor), 0, times, factor, offset % divisor, divisor)


def _through_two(points: tuple[int, ...], values: tuple[int, ...]) -> Polynomial | None:
    """The polynomial with integer coefficients and the fewest terms through two points; None where there is none."""
    (x, y), (u, v) = points, values
    square = u // (x * x) if x else 0
    if square and (u, v) == (square * x * x, square * y * y):
        return Polynomial(0, 0, square)
    linear, over = divmod(v - u, y - x)
    return None if over else Polynomial(u - linear * x, linear)


def _through_three(points: tuple[int, ...], values: tuple[int, ...]) -> Polynomial | None:
    """The polynomial with integer coefficients through three points; None where there is none."""
    (x, y, z), (u, v, w) = points, values
    first, over = divmod(v - u, y - x)
    second, more = divmod(w - v, z - y)
    if over or more:
        return None
    square, rest = divmod(second - first, z - x)
    if rest:
        return None
    linear = first - square * (x + y)
    return Polynomial(u - linear * x - square * x * x, linear, square)


def grown_from_one(rows: Sequence[Any], parts: Sequence[SizesOf], leaf: Any) -> tuple[int, list[Polynomial]] | None:
    """As `fit`, from one graph: the size 2 of the leaf with this row, which was 1 in a graph of other rows, is n.
    Elsewhere 2 is n and 3 is n + 1, unless another leaf has that size; constants and sizes of 1 stay."""
    fixed = {n for row in rows if type(row) is tuple and row[0] is o.BUFFER for n in row[2] if row != leaf or n != 2}
    if 2 in fixed:
        return None
    changing, found = {2, 3} - fixed, list[Polynomial]()
    for row, (_, sizes, _) in zip(rows, parts):
        follows = [n in changing and row[0] is not o.CONST for n in sizes]
        for at in range(0, len(sizes), 2) if any(follows) and row[0] is o.SHRINK else ():
            follows[at] = follows[at] or follows[at + 1] and sizes[at + 1] - sizes[at] == 1
        found += [Polynomial(n - 2, 1) if moves else Polynomial(n) for n, moves in zip(sizes, follows)]
    before = rows.index(leaf)
    return sum([len(part.sizes) for part in parts[:before]]) + parts[before].sizes.index(2), found


# -- the graph with a variable -----------------------------------------------------------------------------------
class SymbolicGraph(NamedTuple):
    """A graph with a variable in its sizes."""
    sinks: list[UOp]                     # over PARAMs
    params: list[UOp]                    # by slot, as `with_params` numbers them
    margins: set[Length]                 # what must not be negative
    formulas: tuple[Formula, ...]        # of each size


class _Lengths:
    """Sizes as lengths of a variable, by formulas that fit at some values of it. Few values fit several formulas that
    round: such a size is taken for a length that the shapes of the graph have, where one fits as well."""

    def __init__(self, formulas: Sequence[Formula], symbol: Symbol, points: Sequence[int]):
        self.variable, self.points = Length({(symbol,): 1}), points if has_rounded(formulas) else ()
        self.inferred: dict[tuple[int, ...], Length] = {}        # by their values
        self.used: dict[Formula, Formula] = {}
        self.lengths: dict[Formula, Size] = {}

    def of(self, formula: Formula) -> Size:
        if formula not in self.lengths:
            found: Size = formula.at(self.variable if depends_on_n(formula) else 0)
            if isinstance(formula, Rounded):
                found = self.inferred.get(tuple([formula.at(x) for x in self.points]), found)
                self.used[formula] = Inferred(found)
            self.lengths[formula] = found
        return self.lengths[formula]

    def note(self, shape: Sequence[Size]) -> None:
        for length in lengths_in(tuple(shape)) if self.points else ():
            self.inferred.setdefault(tuple([Inferred(length).at(x) for x in self.points]), length)


def with_variable(normal: NormalizedGraph, formulas: Sequence[Formula], symbol: Symbol, scalars: Sequence[int],
                  points: Sequence[int]) -> SymbolicGraph:
    """A graph with formulas of a variable as sizes, which fit at these values of the variable."""
    lengths = _Lengths(formulas, symbol, points)
    sizes = map(lengths.of, formulas)
    given = [*normal.buffers, *normal.cells]
    slot_of = {n: slot for slot, n in enumerate(given)}
    slot_of.update({normal.constants[i]: slot for slot, i in enumerate(scalars, len(given) + 1)})
    slots: dict[int, UOp] = {len(given): UOp(o.PARAM, dtypes.index, (), Measure(len(given), symbol))}
    margins: set[Length] = set()
    new: dict[UOp, UOp] = {}
    for n in normal.order:
        slot = slot_of.get(n)
        if slot is None:
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
    """A node over other sources, with the next of the sizes in its argument; a formula is written out."""
    if node.op is o.FORMULA:
        with one_place(node.place):
            return node.arg.written_out(src)  # type: ignore[no-any-return]
    return node_with_sizes(node, src, sizes)
