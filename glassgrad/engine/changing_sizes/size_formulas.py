"""Fit formulas of variables to sizes. In: sizes of several graphs of one skeleton. Out: which sizes are the variables,
and a formula for each size.

Each size that differs between the graphs is a polynomial of one or more variables, or a rounded quotient of one. A size
that neither fits may be a product of other sizes, which is found when the graph is built (symbolic_graph.py).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations, combinations_with_replacement, pairwise
from typing import Any, NamedTuple

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.symbolic import Length, Size, replaced
from glassgrad.engine.changing_sizes.key_without_sizes import SizesOf

MOST_DIVISOR = 64        # largest divisor of a quotient, and largest factor that a quotient is multiplied by
MOST_TERMS = 4           # of a polynomial: (n + 1) * (m + 1) has four
MOST_VARIABLES = 3
MOST_TRIED = 6           # sizes among which several variables are chosen,
MOST_POINTS = 10         # and number of the last graphs whose sizes the formulas must then fit
BEYOND = 2               # how many more graphs than variables must be seen before formulas are fitted

Point = tuple[int, ...]                                  # a value of each variable
Values = Sequence[Any] | Mapping[int, Any]               # the same; they may be `Length`s


class Polynomial(NamedTuple):
    """A sum of terms, each an integer times variables: 3 + 2 * n * m, with n and m as variables 0 and 1, is ((3, ()),
    (2, (0, 1)))."""
    terms: tuple[tuple[int, tuple[int, ...]], ...]

    def at(self, values: Values) -> Any:
        """Return its value: an integer for integers, a `Length` for `Length`s."""
        total: Any = 0
        for term, variables in self.terms:
            for i in variables:
                term = term * values[i]
            total = total + term
        return total


class Rounded(NamedTuple):
    """The formula constant + linear * n + times * ((factor * n + offset) // divisor), where n is one of the
    variables."""
    constant: int
    linear: int
    times: int
    factor: int
    offset: int
    divisor: int
    variable: int = 0

    def at(self, values: Values) -> Any:
        """Return its value: an integer for integers, a `Length` for `Length`s."""
        n = values[self.variable]
        return self.constant + self.linear * n + self.times * ((self.factor * n + self.offset) // self.divisor)


class Inferred(NamedTuple):
    """A size that follows from the shapes of the graph."""
    length: Length

    def at(self, values: Values) -> int:
        """Return its value."""
        return int(replaced(self.length, lambda symbol: values[int(symbol.name[1:])]))


class Unknown(NamedTuple):
    """A size that no formula fits, so it must follow from the shapes of the graph."""
    values: tuple[int, ...]

    def at(self, values: Values) -> Any:
        """Raise: it has no value."""
        raise Bug(f"no formula fits the sizes {self.values}")


Formula = Polynomial | Rounded | Inferred | Unknown
Fitted = tuple[tuple[int, ...], list[Formula]]           # which sizes are the variables, and a formula for each size


def constant(n: int) -> Polynomial:
    """Return the formula of a size that is always n."""
    return Polynomial(((n, ()),) if n else ())


def variables_of(formula: Formula) -> frozenset[int]:
    """Return the numbers of the variables that a formula depends on."""
    if isinstance(formula, Polynomial):
        return frozenset([i for _, variables in formula.terms for i in variables])
    if isinstance(formula, Rounded):
        return frozenset((formula.variable,))
    if isinstance(formula, Inferred):
        return frozenset([int(symbol.name[1:]) for symbol in formula.length.symbols])
    return frozenset()


OF_SHAPES = frozenset((o.RESHAPE, o.EXPAND, o.IOTA, o.UNWINDOW))       # ops whose sizes are often products of others


# -- fitting ------------------------------------------------------------------------------------------------------
def fit(seen: Sequence[tuple[int, ...]]) -> Fitted | None:
    """Choose one size as the variable, and fit a polynomial of it to each size; None if that is not possible. Three
    lists of sizes leave no choice; among the polynomials that fit two lists, the one with the fewest terms is taken.

    >>> fit([(7, 3, 4, 9), (7, 4, 5, 16), (7, 8, 9, 64)])
    ((1,), [Polynomial(terms=((7, ()),)), Polynomial(terms=((1, (0,)),)), Polynomial(terms=((1, ()), (1, (0,)))), \
Polynomial(terms=((1, (0, 0)),))])
    >>> fit([(3, 1), (4, 1), (8, 2)])
    """
    each = list(zip(*seen))
    bases = sorted(_apart(each, len(seen)), key=lambda i: abs(each[i][1] - each[i][0]))[:1]
    return _fitted(each, [(i,) for i in bases], [0])


def fit_rounded(seen: Sequence[tuple[int, ...]], of_leaves: Sequence[bool]) -> Fitted | None:
    """Like `fit`, but sizes may also be quotients of the variable that are rounded down, all with the same divisor.
    (With few sizes, some formula fits by chance, but not the same divisor for all of them.) Among the sizes that may be
    the variable, one of a leaf is preferred, then the one that differs most.

    >>> fit_rounded([(4, 9), (2, 4), (3, 7)], [False, True])
    ((1,), [Rounded(constant=0, linear=0, times=1, factor=1, offset=0, divisor=2, variable=0), \
Polynomial(terms=((1, (0,)),))])
    """
    each = list(zip(*seen))
    apart = _apart(each, len(seen))
    bases = {each[i]: (i,) for i in [i for i in apart if of_leaves[i]] or apart}
    return _fitted(each, [bases[values] for values in sorted(bases, key=lambda values: min(values) - max(values))],
                   range(2, MOST_DIVISOR + 1))


def fit_several(seen: Sequence[tuple[int, ...]], parts: Sequence[SizesOf], variables: int,
                rounded: bool = False) -> Fitted | None:
    """Like `fit` or `fit_rounded`, but with this number of variables, each of which must have been seen with at least
    `BEYOND` more values than there are variables. Sizes that no formula fits may be left to the shapes of the graph.

    >>> leaf = SizesOf(((o.BUFFER,), None), (0, 0), (2, 2))
    >>> other = SizesOf(((o.CONST,), None), (0,), (None,))
    >>> fit_several([(3, 8, 24), (5, 7, 35), (4, 9, 36), (9, 2, 18)], [leaf, other], 2)
    ((0, 1), [Polynomial(terms=((1, (0,)),)), Polynomial(terms=((1, (1,)),)), Polynomial(terms=((1, (0, 1)),))])
    """
    each = list(zip(*seen[-MOST_POINTS:]))
    ops = [part.rest[0][0] if type(part.rest) is tuple else None for part in parts for _ in part.sizes]
    order = sorted(_apart(each, variables + BEYOND),
                   key=lambda i: (rounded and ops[i] is not o.BUFFER, max(each[i]) - min(each[i])))
    candidates = list(dict.fromkeys([next(j for j in order if each[j] == each[i]) for i in order]))
    free = set(each) - {values for values, op in zip(each, ops) if op not in OF_SHAPES}
    divisors = range(2, MOST_DIVISOR + 1) if rounded else ()
    return _fitted(each, combinations(candidates[:MOST_TRIED], variables), divisors, free)


def _apart(each: Sequence[tuple[int, ...]], values: int) -> list[int]:
    """Return the indices of the sizes that had at least this many different values."""
    return [i for i, seen in enumerate(each) if len(set(seen)) >= values]


def _fitted(each: Sequence[tuple[int, ...]], choices: Iterable[tuple[int, ...]], divisors: Iterable[int],
            free: Collection[tuple[int, ...]] = ()) -> Fitted | None:
    """Return the first choice of variables for which a formula fits each size that is not `free`: polynomials, and
    quotients that all have the same one of the divisors."""
    different = sorted(dict.fromkeys(each), key=free.__contains__)
    for bases in choices:
        points = list(zip(*[each[i] for i in bases]))
        known: dict[tuple[int, ...], Formula] = {}
        quotients: dict[int, dict[tuple[int, ...], Formula]] = {divisor: {} for divisor in divisors}
        for values in different:
            known[values] = _polynomial(points, values) or Unknown(values)
            if isinstance(known[values], Unknown):
                fitting = _quotients(points, values, list(quotients))
                quotients = {divisor: {**others, values: fitting[divisor]} if divisor in fitting else others
                             for divisor, others in quotients.items() if divisor in fitting or values in free}
                if not quotients and values not in free:
                    break
        else:
            most = max(map(len, quotients.values()), default=0)
            known.update(next((found for found in quotients.values() if len(found) == most), {}))
            return bases, [known[values] for values in each]
    return None


def _polynomial(points: Sequence[Point], values: tuple[int, ...]) -> Polynomial | None:
    """Return the polynomial with the fewest terms through all points."""
    if len(set(values)) == 1:
        return constant(values[0])
    variables = len(points[0])
    most = min(MOST_TERMS, 2 + variables, len(points) + 1 - variables)
    monomials = _MONOMIALS[variables]
    if len(points) > len(monomials):                     # only one polynomial can fit, whatever its terms are
        factors = _solved(points, monomials, values)
        if factors is not None:
            terms = [(factor, monomial) for factor, monomial in zip(factors, monomials) if factor]
            return Polynomial(tuple(terms)) if 0 < len(terms) <= most else None
    for count in range(1, most + 1):
        for chosen in combinations(monomials, count):
            factors = _solved(points, chosen, values)
            if factors:
                return Polynomial(tuple(zip(factors, chosen)))
    return None


_MONOMIALS = {variables: [monomial for degree in range(3)
                          for monomial in combinations_with_replacement(range(variables), degree)
                          if variables < 3 or len(set(monomial)) == degree]
              for variables in range(1, MOST_VARIABLES + 1)}


def _solved(points: Sequence[Point], monomials: Sequence[tuple[int, ...]], values: Sequence[int]) -> list[int] | None:
    """Return the integers by which to multiply the monomials so that their sum has these values at the points: an empty
    list if there are no such integers, None if there may be several solutions. (Gauss-Jordan elimination in
    integers.)"""
    rows = [[*[math.prod([point[i] for i in monomial]) for monomial in monomials], value]
            for point, value in zip(points, values)]
    unknowns = len(monomials)
    for at in range(unknowns):
        chosen = next((i for i in range(at, len(rows)) if rows[i][at]), None)
        if chosen is None:
            return None
        rows[at], rows[chosen] = rows[chosen], rows[at]
        top = rows[at]
        rows = [row if i == at or not row[at] else [n * top[at] - m * row[at] for n, m in zip(row, top)]
                for i, row in enumerate(rows)]
    if any([row[-1] for row in rows[unknowns:]]) or any([rows[i][-1] % rows[i][i] for i in range(unknowns)]):
        return []
    return [rows[i][-1] // rows[i][i] for i in range(unknowns)]


def _quotients(points: Sequence[Point], values: tuple[int, ...], divisors: Sequence[int]) -> dict[int, Rounded]:
    """Return, by divisor, a quotient of one of the variables that goes through all points."""
    found: dict[int, Rounded] = {}
    for variable, seen in enumerate(zip(*points) if divisors else ()):
        order = sorted(range(len(seen)), key=seen.__getitem__)
        for linear in (0, -1, 1):                        # -1: the padding up to a multiple; 1: a remainder
            rest = [u - linear * x for x, u in zip(seen, values)]
            steps = [rest[j] - rest[i] for i, j in pairwise(order)]
            if min(steps) < 0 < max(steps):
                continue                                 # a quotient grows or shrinks with the variable
            for divisor in divisors:
                rounded = None if divisor in found else _quotient(seen, rest, divisor, order[0], order[-1])
                if rounded is not None:
                    found[divisor] = rounded._replace(linear=linear, variable=variable)
    return found


def _quotient(points: Sequence[int], values: Sequence[int], divisor: int, low: int, high: int) -> Rounded | None:
    """Return a quotient with this divisor through all points; `low` and `high` are the indices of the lowest and
    highest."""
    over, up = points[high] - points[low], values[high] - values[low]
    common = math.gcd(*[u - values[0] for u in values])
    factors = [n for n in range(min(common, MOST_DIVISOR), 0, -1) if not common % n]
    for times in [sign * n for n in factors for sign in (1, -1)]:
        slope = divisor * up // (times * over)
        for factor in (slope, slope + 1):
            rounded = _rounded(points, values, times, factor, divisor) if factor > 0 else None
            if rounded is not None:
                return rounded
    return None


def _rounded(points: Sequence[int], values: Sequence[int], times: int, factor: int, divisor: int) -> Rounded | None:
    """Fit constant + times * ((factor * n + offset) // divisor) to all points, with the smallest offset."""
    first = values[0]
    least = [divisor * ((u - first) // times) - factor * x for x, u in zip(points, values)]
    low, high = max(least), min(least) + divisor - 1
    if low > high:
        return None
    offset = max(low, high // divisor * divisor)         # a multiple of the divisor, if there is one
    return Rounded(first + times * (offset // divisor), 0, times, factor, offset % divisor, divisor)


def grown_from_one(rows: Sequence[Any], parts: Sequence[SizesOf], leaf: Any) -> Fitted | None:
    """Like `fit`, but from one graph: in the leaf with this row, a size that was 1 in an earlier graph is 2 now, and
    becomes the variable n. Elsewhere, too, 2 becomes n and 3 becomes n + 1, unless another leaf has that size;
    constants and sizes of 1 stay."""
    fixed = {n for row in rows if type(row) is tuple and row[0] is o.BUFFER for n in row[2] if row != leaf or n != 2}
    if 2 in fixed:
        return None
    changing, found = {2, 3} - fixed, list[Formula]()
    for row, (_, sizes, _) in zip(rows, parts):
        follows = [n in changing and row[0] is not o.CONST for n in sizes]
        for at in range(0, len(sizes), 2) if any(follows) and row[0] is o.SHRINK else ():
            follows[at] = follows[at] or follows[at + 1] and sizes[at + 1] - sizes[at] == 1
        found += [Polynomial(((1, (0,)), (n - 2, ()))) if moves else constant(n) for n, moves in zip(sizes, follows)]
    before = rows.index(leaf)
    return (sum([len(part.sizes) for part in parts[:before]]) + parts[before].sizes.index(2),), found


def value_of(length: Size, values: Values) -> int:
    """Return the value of a length for these values of the variables."""
    return int(replaced(length, lambda symbol: values[int(symbol.name[1:])]))
