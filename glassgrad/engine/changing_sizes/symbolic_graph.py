"""A graph with a variable in its sizes. In: sizes of two or three graphs of one skeleton. Out: formulas, and the graph.

Each size that differs is a polynomial of one of them, n. With a variable in place of n, the graph is built again:
its shapes are checked as it is built, so formulas that fit by chance and mean nothing are refused here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from glassgrad.base.source_lines import one_place
from glassgrad.compiler.graph import dtypes, ops as o
from glassgrad.compiler.graph.op_arguments import Measure, Param
from glassgrad.compiler.graph.symbolic import Length, Size, Symbol, lengths_in
from glassgrad.compiler.graph.uop import UOp
from glassgrad.engine.changing_sizes.key_without_sizes import SizesOf, node_with_sizes, with_sizes
from glassgrad.engine.schedule_key import NormalizedGraph


# -- sizes as polynomials ----------------------------------------------------------------------------------------
class Polynomial(NamedTuple):
    """constant + linear * n + square * n * n"""
    constant: int
    linear: int = 0
    square: int = 0

    def at(self, n: Any) -> Any:
        """Its value at n: an integer for an integer, a `Length` for a `Length`."""
        return self.constant + self.linear * n + self.square * (n * n)


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
def with_variable(normal: NormalizedGraph, formulas: Sequence[Polynomial], symbol: Symbol,
                  scalars: Sequence[int]) -> tuple[list[UOp], list[UOp], set[Length]]:
    """The sinks over PARAMs, with polynomials of a variable as sizes; the PARAMs by slot, as `with_params` numbers
    them; and lengths that must not be negative."""
    variable = Length({(symbol,): 1})
    known = {f: f.at(variable) if f.linear or f.square else f.constant for f in set(formulas)}
    sizes = map(known.__getitem__, formulas)
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
            continue
        scalar = slot >= len(normal.buffers)
        shape = () if scalar else with_sizes(o.BUFFER, n.shape, sizes)
        new[n] = slots[slot] = UOp(o.PARAM, n.dtype, (), Param(slot, shape, scalar, n.device))
    return [new[s] for s in normal.sinks], [slots[slot] for slot in sorted(slots)], margins


def _over(node: UOp, src: tuple[UOp, ...], sizes: Iterator[Size]) -> UOp:
    """A node over other sources, with the next of the sizes in its argument; a formula is written out."""
    if node.op is o.FORMULA:
        with one_place(node.place):
            return node.arg.written_out(src)  # type: ignore[no-any-return]
    return node_with_sizes(node, src, sizes)
