"""Infer shape and device of an op's result. In: an op, its sources, its argument. Out: a shape; a device's name.

A source of shape () combines with any shape, and a source without a device with any device. A node is made only if its
shape is valid, so shape errors are raised here, at the user's line.
"""

from __future__ import annotations

import math
from typing import Any

from glassgrad.base.errors import Bug, DeviceError, ShapeError
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.op_arguments import Shape
from glassgrad.compiler.graph.ops import Kind, Op
from glassgrad.compiler.graph.symbolic import Length, upper_bound

MOST_ELEMENTS = 1 << 60        # byte addresses of 8-byte elements must fit 64-bit integers


def shape_of(op: Op, src: tuple[Any, ...], arg: Any) -> Shape:
    """The shape of `op` applied to the nodes `src`."""
    shape = _shape_of(op, src, arg)
    sizes = tuple(map(upper_bound, shape))
    if math.prod(sizes) > MOST_ELEMENTS or min(sizes, default=0) < 0:
        raise ShapeError("no tensor has this shape", given=str(shape), fix="check how the sizes are computed",
                         expected="sizes of 0 or more, and in all at most 2^60 elements")
    return shape


def _shape_of(op: Op, src: tuple[Any, ...], arg: Any) -> Shape:
    kind = op.kind
    if kind in (Kind.BINARY, Kind.TERNARY):
        shape: Shape = ()
        for s in src:
            if s.shape != shape and s.shape != ():
                if shape != ():
                    raise Bug(f"{op.name} was built from different shapes: {[s.shape for s in src]}")
                shape = s.shape
        return shape
    if kind == Kind.UNARY or kind == Kind.MEMORY:
        return tuple(src[0].shape)
    if kind == Kind.REDUCE:
        axes = arg.axes
        return tuple(1 if i in axes else n for i, n in enumerate(src[0].shape))
    if kind == Kind.MOVEMENT:
        return movement_shape(op, src[0].shape, arg)
    if op in (o.BUFFER, o.PARAM, o.RANDOM, o.IOTA):
        return tuple(arg.shape)
    if op is o.GATHER:
        return tuple(src[1].shape + src[0].shape[1:])
    if op in (o.SCATTER, o.SCAN, o.GRADIENT):
        return tuple(src[0].shape)
    if op is o.RECURRENCE:
        shape = arg.results[arg.result].shape
        return tuple(shape) if arg.last else (src[arg.states].shape[0], *shape)
    return arg.shape(src) if op is o.FORMULA else ()


def movement_shape(op: Op, shape: Shape, arg: Any) -> Shape:
    """The shape of a movement op's result, from its source's shape."""
    if op is o.RESHAPE:
        if math.prod(shape) != math.prod(arg.shape):
            raise ShapeError("cannot reshape: the number of elements changes",
                             given=f"{shape} ({math.prod(shape)} elements) to {arg.shape} "
                                   f"({math.prod(arg.shape)} elements)",
                             expected=f"a shape with {math.prod(shape)} elements",
                             fix="use -1 for the size that should follow from the others")
        return tuple(arg.shape)
    if op is o.PERMUTE:
        return tuple(shape[i] for i in arg.order)
    if op is o.EXPAND:
        if len(arg.shape) != len(shape) or any(n != m and n != 1 for n, m in zip(shape, arg.shape)):
            raise ShapeError("cannot expand to this shape", given=f"{shape} to {arg.shape}",
                             expected="the same number of axes, where only axes of size 1 grow",
                             fix="reshape first, so that the axis to repeat has size 1")
        return tuple(arg.shape)
    if op is o.PAD:
        return tuple(n + before + after for n, (before, after) in zip(shape, arg.padding))
    if op is o.SHRINK:
        return tuple(stop - start for start, stop in arg.bounds)
    if op is o.WINDOW:
        n = (shape[arg.axis] - arg.dilation * (arg.size - 1) - 1) // arg.stride + 1
        if isinstance(n, Length) and n.min < 0:
            raise ShapeError("the window is longer than the axis may be", given=f"a window of {arg.size} over {shape}",
                             expected=f"an axis of at least {arg.dilation * (arg.size - 1) + 1} for every value of its "
                                      "variables", fix="raise the variable's lower bound")
        return shape[:arg.axis] + (n if isinstance(n, Length) else max(n, 0),) + shape[arg.axis + 1:] + (arg.size,)
    if op is o.UNWINDOW:
        return shape[:arg.axis] + (arg.length,) + shape[arg.axis + 1:]
    return shape  # FLIP


def device_of(op: Op, src: tuple[Any, ...], arg: Any) -> str | None:
    """The device of `op` applied to the nodes `src`, which share one; None where no source has a device."""
    if op is o.BUFFER or op is o.PARAM:
        device: str | None = arg.device
        return device
    if op is o.COPY:
        return str(arg.device)
    found: str | None = None
    for s in src:
        if s.device is not None and s.device != found:
            if found is not None:
                raise DeviceError("operands live on different devices", given=f"{found} and {s.device}",
                                  expected="one device", fix=f'move one: x.to("{found}")')
            found = s.device
    return found
