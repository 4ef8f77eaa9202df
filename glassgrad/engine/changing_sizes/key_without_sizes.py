"""Separate the sizes from a graph's key. In: the key of a `NormalizedGraph`. Out: its skeleton, and the sizes as
integers.

Sizes are the integers in shapes, bounds and paddings, and integer constants, which often follow from these. Sizes 0 and
1 stay part of the skeleton, because they change what is computed: an axis of size 1 is broadcast, an empty one has no
kernel.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.graph.op_arguments import Recurrence
from glassgrad.compiler.graph.symbolic import Length, Size
from glassgrad.compiler.graph.uop import number_of

SHAPES = frozenset((o.RESHAPE, o.EXPAND, o.IOTA, o.RANDOM, o.PARAM))        # ops whose argument is a shape


class SizesOf(NamedTuple):
    """One row of a key: the row without its sizes, the sizes, and the least value that each size may take."""
    rest: Any
    sizes: tuple[int, ...]
    least: tuple[int | None, ...]


_EVERY = 16             # every 16th row is enough to look up graphs of one skeleton


def _shape_part(shape: tuple[int, ...]) -> SizesOf:
    return SizesOf(tuple([n if n < 2 else 2 for n in shape]), tuple([n for n in shape if n >= 2]),
                   tuple([2 for n in shape if n >= 2]))


@lru_cache(maxsize=8192, typed=True)        # True and 1 are equal, and only one of them is a size
def sizes_in(op: o.Op, arg: Any) -> SizesOf:
    """Return the sizes in the argument of a row; `with_sizes` puts others in their place."""
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
    if op is o.RECURRENCE and not arg.item:
        return _sizes_in_step(arg)
    return SizesOf(arg, (), ())


def _sizes_in_step(arg: Recurrence) -> SizesOf:
    """Return the sizes in the graph of a recurrence's step."""
    order = toposort(arg.results)
    number = {n: i for i, n in enumerate(order)}
    rows = [(n.op, n.dtype, *[number[s] for s in n.src]) for n in order]
    parts = [sizes_in(n.op, n.arg) for n in order]
    rest = arg._replace(results=(*rows, *[part.rest for part in parts], *[number[n] for n in arg.results]))
    return SizesOf(tuple(rest), tuple([n for part in parts for n in part.sizes]),
                   tuple([n for part in parts for n in part.least]))


def argument_at(op: o.Op) -> int:
    """Return the index of the argument in a row of a key; for a constant that is its value, for a buffer its shape."""
    return 3 if op is o.CONST else 2


def with_sizes(op: o.Op, arg: Any, sizes: Iterator[Size]) -> Any:
    """Replace the sizes in the argument of a row or a node by the next ones of an iterator."""
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
    if op is o.RECURRENCE and not arg.item:
        new: dict[UOp, UOp] = {}
        for n in toposort(arg.results):
            new[n] = node_with_sizes(n, tuple([new[s] for s in n.src]), sizes)
        return arg._replace(results=tuple([new[n] for n in arg.results]))
    return next(sizes) if op is o.CONST and type(arg) is int else arg


def node_with_sizes(node: UOp, src: tuple[UOp, ...], sizes: Iterator[Size]) -> UOp:
    """Rebuild a node over other sources, with the next sizes in its argument."""
    arg = with_sizes(node.op, node.arg, sizes)
    if node.op is o.CONST and isinstance(arg, Length):
        return number_of(arg, node.dtype)
    return UOp(node.op, node.dtype, src, arg, node.place)


def _new_shape(shape: Iterable[int], sizes: Iterator[Size]) -> tuple[Size, ...]:
    return tuple([n if n < 2 else next(sizes) for n in shape])


def with_sources(without: tuple[Any, ...], place: dict[int, int]) -> tuple[Any, ...]:
    """Renumber the sources in a row that has no argument."""
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
    """Return the number of rows of a key and the ops of some of them: a cheap hash, equal for graphs of one
    skeleton."""
    return len(key), *[row[0] if type(row) is tuple else row for row in key[::_EVERY]]


def float_bits(values: Sequence[float]) -> bytes:
    """Return the bits of floats: numbers that are equal to the bit have the same."""
    return struct.pack(f"{len(values)}d", *values)
