"""A convolution as graph nodes, for tests: what the Tensor builds, without the Tensor."""

from __future__ import annotations

from collections.abc import Sequence

from glassgrad.compiler.graph.uop import UOp

Pairs = int | Sequence[tuple[int, int]]


def convolve(x: UOp, w: UOp, groups: int = 1, stride: int = 1, dilation: int = 1, padding: Pairs = 0) -> UOp:
    """A convolution over two axes: windows, expand, multiply, sum. `padding` may be given before and after each."""
    batch, channels, *_ = x.shape
    out_channels, per_group, *kernel = w.shape
    pairs = [(padding, padding)] * 2 if isinstance(padding, int) else padding
    x = x.pad(((0, 0), (0, 0), *pairs))
    for axis, size in zip((2, 3), kernel):
        x = x.window(axis, size, stride, dilation)
    height, width = x.shape[2:4]
    each = out_channels // groups
    x = x.reshape((batch, groups, 1, per_group, height, width, *kernel))
    x = x.permute((0, 1, 2, 4, 5, 3, 6, 7))                      # (batch, group, 1, height, width, per group, kernel)
    shape = (batch, groups, each, height, width, per_group, *kernel)
    w = w.reshape((1, groups, each, 1, 1, per_group, *kernel))
    return (x.expand(shape) * w.expand(shape)).sum((5, 6, 7)).reshape((batch, out_channels, height, width))
