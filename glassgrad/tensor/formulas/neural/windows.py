"""Windows over the last axes, and the gradient of their maximum. In, out: graph nodes.

Nothing is copied: a window is a way to look at memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.uop import UOp
from glassgrad.tensor.formulas.counting import counting


@dataclass(frozen=True)
class Windows:
    """Windows of a size over the last axes; along each, `stride` is between windows and `dilation` between taps."""
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.size)

    @property
    def side_by_side(self) -> bool:
        return self.size == self.stride and all(d == 1 for d in self.dilation)

    def taps(self, seen: UOp) -> tuple[int, ...]:
        """The axes of the window itself."""
        return tuple(range(len(seen.shape) - self.rank, len(seen.shape)))

    def seen(self, x: UOp) -> UOp:
        """(.., s1, s2) to (.., o1, o2, k1, k2): the last axes are the window."""
        first = len(x.shape) - self.rank
        for i in range(self.rank):
            x = x.window(first + i, self.size[i], self.stride[i], self.dilation[i])
        return x

    def of(self, x: UOp) -> UOp:
        """`seen`, as a mere reshape where the windows stand side by side."""
        if not self.side_by_side:
            return self.seen(x)
        lead, counts = x.shape[:-self.rank], [n // k for n, k in zip(x.shape[-self.rank:], self.size)]
        x = x.shrink([*[(0, n) for n in lead], *[(0, c * k) for c, k in zip(counts, self.size)]])
        x = x.reshape((*lead, *[m for c, k in zip(counts, self.size) for m in (c, k)]))
        first, end = len(lead), len(lead) + 2 * self.rank
        return x.permute((*range(first), *range(first, end, 2), *range(first + 1, end, 2)))

    def spread(self, value: UOp, x: UOp) -> UOp:
        """(.., o1, o2, k1, k2), a value of windows of x, to (.., s1, s2, k1, k2): what it is to the element that is tap
        k of a window, and 0 where none begins so."""
        first = len(value.shape) - 2 * self.rank
        tap = first + self.rank
        for i in range(self.rank):           # the tap of this axis goes last, where UNWINDOW looks for it
            value = value.permute((*range(tap), *range(tap + 1, first + 2 * self.rank), tap))
            value = value.unwindow(first + i, self.stride[i], self.dilation[i], x.shape[first + i])
        return value


@dataclass(frozen=True)
class FirstTakesAll:
    """The gradient of a maximum over windows: all of it goes to the first element that reaches it, as in PyTorch.

    By the windows themselves where they stand side by side, else by what they look at.
    """
    windows: Windows

    def __call__(self, g: UOp, out: UOp, x: UOp) -> tuple[UOp]:
        windows = self.windows
        seen = (x if windows.side_by_side else windows.seen(x)).detach()
        taps, count = windows.taps(seen), math.prod(windows.size)
        lead = (1,) * (len(seen.shape) - windows.rank)
        number = (counting(count) + 1).reshape((*lead, *windows.size))                 # of the taps: 1, 2, .. count
        reached = seen.eq(seen.reduce(o.AMAX, taps)) | seen.ne(seen)
        first = reached.where(number, count).reduce(o.AMIN, taps)
        mine = g.reshape((*g.shape, *(1,) * windows.rank))
        if windows.side_by_side:
            return (first.eq(number).where(mine, 0),)
        first, mine = (windows.spread(node.expand(seen.shape), x) for node in (first, mine))   # no tap has number 0
        return (first.eq(number).where(mine, 0).sum(taps).reshape(x.shape),)
