"""A graph's key without its sizes. In: the key of a `NormalizedGraph`. Out: its skeleton, and the sizes as integers.

Sizes are what stands in shapes, bounds and paddings, and integer constants, which often follow from them. Sizes 0 and 1
are part of the skeleton, because they change what is computed: an axis of size 1 is repeated, an empty one has no
kernel.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from glassgrad.compiler.graph import ops as o

SHAPES = frozenset((o.RESHAPE, o.EXPAND, o.IOTA, o.RANDOM))        # ops whose argument is a shape


class SizesOf(NamedTuple):
    """The sizes in one row of a key: what is left without them, the integers, and the least that each may become."""
    rest: Any
    sizes: tuple[int, ...]
    least: tuple[int | None, ...]


_EVERY = 16             # a row in so many says enough of a graph to look for others of its skeleton


def _shape_part(shape: tuple[int, ...]) -> SizesOf:
    return SizesOf(tuple([n if n < 2 else 2 for n in shape]), tuple([n for n in shape if n >= 2]),
                   tuple([2 for n in shape if n >= 2]))


@lru_cache(maxsize=8192, typed=True)        # True and 1 are equal, and only one of them is a size
def sizes_in(op: o.Op, arg: Any) -> SizesOf:
    """The sizes in the argument of a row, which `apart` gives."""
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


def apart(row: Any) -> tuple[tuple[Any, ...], Any]:
    """A row of a key without its argument, and the argument: a constant's is its value, a buffer's its shape."""
    if type(row) is not tuple:           # the number of a sink's row
        return (row,), None
    if row[0] is o.CONST:
        return row[:3], row[3] if len(row) > 3 else None
    return (row[:2] + row[3:], row[2]) if len(row) > 2 else (row, None)


def with_sources(without: tuple[Any, ...], place: dict[int, int]) -> tuple[Any, ...]:
    """A row without its argument, with other numbers of its sources' rows."""
    first = {o.BUFFER: 3, o.CONST: 3}.get(without[0], 2)
    return without[:first] + tuple([place[i] for i in without[first:]])


def split(row: Any) -> SizesOf:
    """A row of a key, or the number of a sink's row: what is left of it without its sizes, and these."""
    if type(row) is not tuple:
        return SizesOf(row, (), ())
    without, arg = apart(row)
    part = sizes_in(row[0], arg)
    return part._replace(rest=(without, part.rest))


def split_sizes(key: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """A graph's key without its sizes, and the sizes in order."""
    parts = [split(row) for row in key]
    return tuple([part.rest for part in parts]), tuple([n for part in parts for n in part.sizes])


def some_ops(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """How many rows a key has, and the ops of some: equal in graphs of one skeleton, and found at once."""
    return len(key), *[row[0] if type(row) is tuple else row for row in key[::_EVERY]]
