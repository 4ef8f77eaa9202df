"""Graphs that differ in sizes alone. In: `NormalizedGraph`s. Out: one graph for all of them, and the guard that fits.

A loop over sentences, or a model that writes one token after another, computes the same graph again and again with
other sizes. Such graphs have one skeleton: the key of a graph with its sizes lifted out, as buffers and floats are.
What is lifted out is a list of integers. Where three graphs were seen, every integer that differs is written as a
polynomial of one of them, n; with n a variable instead of a number, the graph is one that serves every n.

The guard: a new graph of the skeleton is computed by that one only if all its integers are what the polynomials give
for its n, and n is within the bounds. Sizes 0 and 1 are part of the skeleton, because they change what is computed
(an axis of size 1 is repeated, an empty one has no kernel). See docs/design/changing_lengths.md.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.arguments import Measure, Param
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.symbolic import Length, Size, Symbol, lengths_in, replaced
from glassgrad.compiler.graph.uop import UOp, number_of
from glassgrad.compiler.schedule.kernels import Item
from glassgrad.engine.schedule_key import NormalizedGraph

SEEN = 3                  # different sizes, until a variable is worth compiling for: two are often a batch and its rest
LEAST_HIGH = 1024         # the least upper bound of a variable
GROWTH = 4                # and how far beyond the greatest size seen it is
MOST_SEEN = 12            # sizes that no variable fits, until a skeleton is given up
FIXED_AFTER = 50          # runs of one size, until that size is compiled for itself

UNTILED = 1 << 24         # multiply-adds of a product that is left to plain loops, until one for its own size pays
READ_IN_PLACE = 1 << 17   # elements of a right factor that is not packed, because where a sum ends is a value

_SHAPES = frozenset((o.RESHAPE, o.EXPAND, o.IOTA, o.RANDOM))


class SizesOf(NamedTuple):
    """The sizes in one row of a key: what is left without them, the integers, and the least that each may become."""
    rest: Any
    sizes: tuple[int, ...]
    least: tuple[int | None, ...]


_parts: dict[Any, SizesOf] = {}
_MOST_PARTS = 8192
_MOST_EXPECTED = 64


def _shape_part(shape: tuple[int, ...]) -> SizesOf:
    return SizesOf(tuple([n if n < 2 else 2 for n in shape]), tuple([n for n in shape if n >= 2]),
                   tuple([2 for n in shape if n >= 2]))


def _part(op: o.Op, arg: Any) -> SizesOf:
    """The sizes in a node's argument."""
    if op in _SHAPES:
        return _shape_part(arg.shape)
    if op is o.SHRINK:
        flat = tuple([n for bound in arg.bounds for n in bound])
        return SizesOf(len(arg.bounds), flat, (0,) * len(flat))
    if op is o.PAD:
        flat = tuple([n for pair in arg.padding for n in pair])
        return SizesOf(tuple([int(n != 0) for n in flat]), tuple([n for n in flat if n]), (1,) * sum(map(bool, flat)))
    if op is o.UNWINDOW:
        return SizesOf(arg._replace(length=0), (arg.length,), (2,))
    return SizesOf(arg, (), ())


def _row(row: Any) -> tuple[Any, SizesOf]:
    """A row of a key without its sizes, and these."""
    op = row[0]
    if op is o.BUFFER:
        part = _shape_part(row[2])
        return (op, row[1], part.rest, row[3]), part
    if op is o.CONST:
        if len(row) == 4 and row[2] is int:
            return (op, row[1], int), SizesOf(int, (row[3],), (None,))
        return row, SizesOf(None, (), ())
    if len(row) < 3:                    # a scalar
        return row, SizesOf(None, (), ())
    part = _part(op, row[2])
    return (op, row[1], part.rest, *row[3:]), part


def _split(row: Any) -> SizesOf:
    """A row of a key, or the number of a sink's row: what is left of it without its sizes, and these."""
    if type(row) is not tuple:
        return SizesOf(row, (), ())
    known = _parts.get(row)
    if known is None:
        if len(_parts) >= _MOST_PARTS:
            _parts.clear()
        rest, part = _row(row)
        known = _parts[row] = part._replace(rest=rest)
    return known


def split_sizes(key: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """A graph's key without its sizes, and the sizes in order."""
    parts = [_split(row) for row in key]
    return tuple([part.rest for part in parts]), tuple([n for part in parts for n in part.sizes])


def ops_of(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """The ops of a graph: what is equal in graphs of one skeleton, and found at once."""
    return tuple([row[0] if type(row) is tuple else row for row in key])


# -- sizes as polynomials ----------------------------------------------------------------------------------------
class Polynomial(NamedTuple):
    """constant + linear * n + square * n * n"""
    constant: int
    linear: int = 0
    square: int = 0

    def at(self, n: Any) -> Any:
        """Its value: a number of a number, a length of a length."""
        return self.constant + self.linear * n + self.square * (n * n)


def fit(seen: Sequence[tuple[int, ...]]) -> tuple[int, list[Polynomial]] | None:
    """Which of the sizes is n, and each size as a polynomial of it; None where there is no such n.

    >>> fit([(7, 3, 4, 9), (7, 4, 5, 16), (7, 8, 9, 64)])
    (1, [Polynomial(constant=7, linear=0, square=0), Polynomial(constant=0, linear=1, square=0), \
Polynomial(constant=1, linear=1, square=0), Polynomial(constant=0, linear=0, square=1)])
    >>> fit([(3, 1), (4, 1), (8, 2)])
    """
    first, second, third = seen
    changing = [i for i, values in enumerate(zip(*seen)) if len(set(values)) > 1]
    apart = [i for i in changing if len({first[i], second[i], third[i]}) == 3]
    if not apart:
        return None
    base = min(apart, key=lambda i: abs(second[i] - first[i]))
    points = (first[base], second[base], third[base])
    found: list[Polynomial] = []
    known: dict[tuple[int, ...], Polynomial | None] = {}
    for values in zip(*seen):
        if values not in known:
            known[values] = Polynomial(values[0]) if len(set(values)) == 1 else _through(points, values)
        polynomial = known[values]
        if polynomial is None:
            return None
        found.append(polynomial)
    return base, found


def _through(points: tuple[int, ...], values: tuple[int, ...]) -> Polynomial | None:
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


# -- families ----------------------------------------------------------------------------------------------------
class GeneralGraph:
    """A graph with a variable in its sizes: made from a graph's key, in which one size is the variable and each size
    follows from it by a formula."""

    def __init__(self, key: tuple[Any, ...], base: int, formulas: Sequence[Polynomial], symbol: Symbol,
                 scalars: tuple[int, ...], constants: Sequence[float]):
        self.symbol = symbol
        self.scalars = scalars                           # which floats are arguments
        self.constants = _bits(constants)                # what the others are
        self.compiled: Any = None
        self.fast_to = symbol.high                       # beyond it, kernels for one size would be much faster
        self.runs: dict[int, int] = {}                   # how often each value of the variable was computed
        self._expected: dict[int, tuple[Any, ...]] = {}  # value: the rows that change, as they must be
        parts = [_split(row) for row in key]
        rest = iter(formulas)
        by_row = [[next(rest) for _ in part.sizes] for part in parts]
        changing = [i for i, row in enumerate(by_row) if any(f.linear or f.square for f in row)]
        same = sorted(set(range(len(key))) - set(changing))
        self._changing, self._same = itemgetter(*changing, changing[0]), itemgetter(*same, same[0])
        self._fixed = self._same(key)
        self._formulas = [(parts[i].rest, by_row[i]) for i in (*changing, changing[0])]
        first = [at for at, part in enumerate(parts) for _ in part.sizes]
        self._row, self._place = first[base], base - first.index(first[base])

    def value_for(self, normal: NormalizedGraph) -> int | None:
        """The guard: the variable's value in a graph of the same ops; None where it is not one of these graphs."""
        key = normal.key
        sizes = _split(key[self._row]).sizes
        if self._place >= len(sizes) or self._same(key) != self._fixed:
            return None
        n = sizes[self._place]
        changing = self._changing(key)
        expected = self._expected.get(n)
        if expected is None and self.symbol.low <= n <= self.symbol.high and self._is_as_expected(changing, n):
            if len(self._expected) >= _MOST_EXPECTED:
                self._expected.clear()
            expected = self._expected[n] = changing
        if expected is None or changing != expected:
            return None
        return n if _bits([c.arg for i, c in enumerate(normal.constants) if i not in self.scalars]) == self.constants \
            else None

    def _is_as_expected(self, rows: Sequence[Any], n: int) -> bool:
        values: dict[Polynomial, int] = {}
        for row, (rest, formulas) in zip(rows, self._formulas):
            part = _split(row)
            if part.rest != rest:
                return False
            for formula, size in zip(formulas, part.sizes):
                if formula not in values:
                    values[formula] = formula.at(n)
                if values[formula] != size:
                    return False
        return True


@dataclass(eq=False)
class SizeFamily:
    """All graphs of one skeleton: the sizes that were seen, and the graph that serves them."""
    seen: list[tuple[int, ...]] = field(default_factory=list)
    constants: dict[int, set[bytes]] = field(default_factory=dict)     # what each float was
    given_up: str = ""

    def see(self, normal: NormalizedGraph, sizes: tuple[int, ...]) -> None:
        """One more graph of the skeleton."""
        if len(self.seen) >= MOST_SEEN:
            self.given_up = f"no variable fits {MOST_SEEN} sizes"
        elif any(n.op in (o.COPY, o.CALL) for n in normal.order):
            self.given_up = "values are copied between devices, or passed to a function of the user's"
        if self.given_up:
            return
        if sizes not in self.seen:
            self.seen.append(sizes)
        for i, c in enumerate(normal.constants):
            self.constants.setdefault(i, set()).add(_bits([c.arg]))

    def generalize(self, normal: NormalizedGraph) -> tuple[GeneralGraph, list[UOp], list[UOp]] | None:
        """The graph with a variable, from the last sizes seen: its guard, its sinks, its PARAMs by slot. None where no
        variable fits."""
        if len(self.seen) < SEEN:
            return None
        found = fit(self.seen[-SEEN:])
        if found is None:
            return None
        base, formulas = found
        scalars = tuple(i for i, values in self.constants.items() if len(values) > 1)
        values = [sizes[base] for sizes in self.seen[-SEEN:]]
        if min(values) < 0:
            return None
        least = [n for row in normal.key for n in _split(row).least]
        low, high = _limits(formulas, least, min(values), max(values))
        symbol = Symbol("v0", low, high, None, True)
        sinks, params, margins = with_variable(normal, formulas, symbol, scalars)
        narrower = _last(lambda n: all(_at(margin, n) >= 0 for margin in margins), max(values), high)
        if narrower < high:
            symbol = symbol._replace(high=narrower)
            sinks, params, margins = with_variable(normal, formulas, symbol, scalars)
        constants = [c.arg for i, c in enumerate(normal.constants) if i not in scalars]
        return GeneralGraph(normal.key, base, formulas, symbol, scalars, constants), sinks, params


class SizeFamilies:
    """All families of a process: graphs with a variable by their ops, and what was seen by skeleton."""

    def __init__(self, most: int):
        self._most = most
        self._seen: dict[Any, SizeFamily] = {}
        self._general: dict[Any, list[GeneralGraph]] = {}

    def find(self, normal: NormalizedGraph, where: tuple[Any, ...]) -> tuple[GeneralGraph, int] | None:
        """The graph with a variable that this graph is one of, and the variable's value. `where` is what else a
        schedule depends on."""
        for general in reversed(self._general.get((where, ops_of(normal.key)), ())):
            value = general.value_for(normal)
            if value is not None:
                return general, value
        return None

    def family(self, normal: NormalizedGraph, where: tuple[Any, ...]) -> SizeFamily:
        """The family of a graph that no graph with a variable fits; the graph is noted in it."""
        skeleton, sizes = split_sizes(normal.key)
        if len(self._seen) >= self._most:
            self._seen.pop(next(iter(self._seen)))
        family = self._seen.setdefault((where, skeleton), SizeFamily())
        family.see(normal, sizes)
        return family

    def add(self, normal: NormalizedGraph, where: tuple[Any, ...], general: GeneralGraph) -> None:
        """Keep a graph with a variable."""
        if len(self._general) >= self._most:
            self._general.pop(next(iter(self._general)))
        self._general.setdefault((where, ops_of(normal.key)), []).append(general)


def _bits(values: Sequence[float]) -> bytes:
    return struct.pack(f"{len(values)}d", *values)


def _limits(formulas: Sequence[Polynomial], least: Sequence[int | None], low: int, high: int) -> tuple[int, int]:
    """The bounds of a variable that was seen from `low` to `high`: as wide as all sizes stay sizes."""
    conditions = {(f, n) for f, n in zip(formulas, least) if n is not None and (f.linear or f.square)}

    def holds(value: int) -> bool:
        return all(formula.at(value) >= n for formula, n in conditions)

    wanted = max(LEAST_HIGH, GROWTH * (1 << (high - 1).bit_length()))
    while low > 2 and holds(low - 1):
        low -= 1
    return low, _last(holds, high, wanted)


def _last(holds: Callable[[int], bool], good: int, wanted: int) -> int:
    """The greatest value up to `wanted` for which a condition holds that holds for `good`, and is lost once."""
    if holds(wanted):
        return wanted
    bad = wanted
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good


def _at(length: Size, value: int) -> int:
    """A length with this value of its variable."""
    return int(replaced(length, lambda _: value))


def fast_up_to(items: Sequence[Item], programs: Sequence[Any], symbol: Symbol) -> int:
    """The greatest value for which kernels with a variable are about as fast as kernels for that size alone: products
    that no tiling takes, and those with a sum that ends at the value, whose factors are not packed, while small."""
    from glassgrad.compiler.optimize.product.tiling import \
        FAMILIES  # of the compiler, which a warm process does without
    limits: list[tuple[Size, int]] = []
    for item, program in zip(items, programs):
        tiled = any(move.split("(")[0] in FAMILIES for move in getattr(program, "moves", ()))
        for n in item.ast.toposort():
            if n.op is o.SUM and n.src[0].op is o.MUL:
                depth = math.prod([n.src[0].shape[axis] for axis in n.arg.axes])
                columns = next((size for size in reversed(n.shape) if size != 1), 1)
                if not tiled:
                    limits.append((n.src[0].elements, UNTILED))
                elif isinstance(depth, Length):
                    limits.append((depth * columns, READ_IN_PLACE))
    fits = [(size, most) for size, most in limits if isinstance(size, Length)]
    return _last(lambda value: all(_at(size, value) <= most for size, most in fits), symbol.low - 1, symbol.high)


# -- the graph with a variable -----------------------------------------------------------------------------------
def with_variable(normal: NormalizedGraph, formulas: Sequence[Polynomial], symbol: Symbol,
                  scalars: Sequence[int]) -> tuple[list[UOp], list[UOp], list[Length]]:
    """The sinks over PARAMs, with polynomials of a variable as sizes; the PARAMs by slot, as `with_params` numbers
    them; and lengths that must not be negative."""
    variable = Length({(symbol,): 1})
    sizes = iter([formula.at(variable) if formula.linear or formula.square else formula.constant
                  for formula in formulas])
    buffers = {node: slot for slot, node in enumerate(normal.buffers)}
    cells = {node: slot for slot, node in enumerate(normal.cells, len(buffers))}
    measure = UOp(o.PARAM, dtypes.index, (), Measure(len(buffers) + len(cells), symbol))
    numbers = {normal.constants[i]: slot for slot, i in enumerate(scalars, len(buffers) + len(cells) + 1)}
    slots: dict[int, UOp] = {measure.arg.slot: measure}
    margins: list[Length] = []
    new: dict[UOp, UOp] = {}
    for n in normal.order:
        if n.op is o.DETACH:
            new[n] = new[n.src[0]]
            continue
        if n in buffers:
            slot, shape, scalar = buffers[n], _new_shape(n.shape, sizes), False
        elif n in cells or n in numbers:
            slot, shape, scalar = cells[n] if n in cells else numbers[n], (), True
        else:
            new[n] = _over(n, tuple([new[s] for s in n.src]), sizes)
            if n.op is o.SHRINK:
                spare = [whole - stop for (_, stop), whole in zip(new[n].arg.bounds, new[n].src[0].shape)]
                margins += lengths_in(tuple(spare))
            continue
        new[n] = slots[slot] = UOp(o.PARAM, n.dtype, (), Param(slot, shape, scalar, n.device))
    return [new[s] for s in normal.sinks], [slots[slot] for slot in sorted(slots)], margins


def _over(node: UOp, src: tuple[UOp, ...], sizes: Iterator[Size]) -> UOp:
    """A node over other sources, with the next of the sizes in its argument."""
    op, arg = node.op, node.arg
    if op in _SHAPES:
        arg = arg._replace(shape=_new_shape(arg.shape, sizes))
    elif op is o.SHRINK:
        arg = arg._replace(bounds=tuple([(next(sizes), next(sizes)) for _ in arg.bounds]))
    elif op is o.PAD:
        arg = arg._replace(padding=tuple([(_if_any(a, sizes), _if_any(b, sizes)) for a, b in arg.padding]))
    elif op is o.UNWINDOW:
        arg = arg._replace(length=next(sizes))
    elif op is o.CONST and type(arg) is int:
        number = next(sizes)
        if isinstance(number, Length):
            return number_of(number, node.dtype)
    return UOp(op, node.dtype, src, arg, node.place)


def _new_shape(shape: Iterable[int], sizes: Iterator[Size]) -> tuple[Size, ...]:
    return tuple([n if n < 2 else next(sizes) for n in shape])


def _if_any(n: int, sizes: Iterator[Size]) -> Size:
    return next(sizes) if n else 0
