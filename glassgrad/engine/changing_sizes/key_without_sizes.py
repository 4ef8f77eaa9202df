"""A graph's key without its sizes. In: the key of a `NormalizedGraph`. Out: its skeleton, and the sizes as integers.

Sizes are what stands in shapes, bounds and paddings, and integer constants, which often follow from them. Sizes 0 and 1
are part of the skeleton, because they change what is computed: an axis of size 1 is broadcast, an empty one has no
kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.symbolic import Size

SHAPES = frozenset((o.RESHAPE, o.EXPAND, o.IOTA, o.RANDOM))        # ops whose argument is a shape


class SizesOf(NamedTuple):
    """The sizes in one row of a key: the row without them, the sizes, and the least value that each may take."""
    rest: Any
    sizes: tuple[int, ...]
    least: tuple[int | None, ...]


_EVERY = 16             # one row of this many is enough to look up graphs of one skeleton


def _shape_part(shape: tuple[int, ...]) -> SizesOf:
    return SizesOf(tuple([n if n < 2 else 2 for n in shape]), tuple([n for n in shape if n >= 2]),
                   tuple([2 for n in shape if n >= 2]))


@lru_cache(maxsize=8192, typed=True)        # True and 1 are equal, and only one of them is a size
def sizes_in(op: o.Op, arg: Any) -> SizesOf:
    """The sizes in the argument of a row; `with_sizes` puts others there."""
    if op is o.BUFFER:
        return _shape_part(arg)
    if op is o.CONST:
        return SizesOf(int, (arg,), (None,)) if type(arg) is int else SizesOf(arg, (), ())
    if op in SHAPES:
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


def argument_at(op: o.Op) -> int:
    """The index of the argument in a row of a key: a constant's is its value, a buffer's its shape."""
    return 3 if op is o.CONST else 2


def with_sizes(op: o.Op, arg: Any, sizes: Iterator[Size]) -> Any:
    """The argument of a row or a node with its sizes replaced by the next ones of an iterator."""
    if op is o.BUFFER:
        return _new_shape(arg, sizes)
    if op in SHAPES:
        return arg._replace(shape=_new_shape(arg.shape, sizes))
    if op is o.SHRINK:
        return arg._replace(bounds=tuple([(next(sizes), next(sizes)) for _ in arg.bounds]))
    if op is o.PAD:
        return arg._replace(padding=tuple([(a and next(sizes), b and next(sizes)) for a, b in arg.padding]))
    if op is o.UNWINDOW:
        return arg._replace(length=next(sizes))
    return next(sizes) if op is o.CONST and type(arg) is int else arg


def _new_shape(shape: Iterable[int], sizes: Iterator[Size]) -> tuple[Size, ...]:
    return tuple([n if n < 2 else next(sizes) for n in shape])


def with_sources(without: tuple[Any, ...], place: dict[int, int]) -> tuple[Any, ...]:
    """A row without its argument, with its sources renumbered."""
    first = {o.BUFFER: 3, o.CONST: 3}.get(without[0], 2)
    return without[:first] + tuple([place[i] for i in without[first:]])


def split(row: Any) -> SizesOf:
    """Split a row of a key (or the number of a sink's row) into its sizes and the rest."""
    if type(row) is not tuple:
        return SizesOf(row, (), ())
    op = row[0]
    at = argument_at(op)
    if len(row) <= at:
        return SizesOf((row, None), (), ())
    rest, sizes, least = sizes_in(op, row[at])
    return SizesOf((row[:at] + row[at + 1:], rest), sizes, least)


def some_ops(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """The number of rows of a key, and the ops of some: a cheap hash, equal for graphs of one skeleton."""
    return len(key), *[row[0] if type(row) is tuple else row for row in key[::_EVERY]]
