"""Softmax of long rows in parts. In: sinks. Out: sinks, where a row's sum of exponentials is combined from parts.

The maximum m of a row, and then its sum of exponentials, read the row twice, one after the other. Instead, each part of
a row, short enough for the registers of a thread group, gets its own maximum and sum, from one kernel that reads it
once:

    m = max of x[k]             ->   m[p] = max of x[p, k]                        m = max of m[p]
    s = sum of exp2(x[k] - t)   ->   s[p] = sum of exp2(x[p, k] - m[p])           s = sum of s[p] * exp2(m[p] - t)

for any t, which mostly is m. Devices of a kind use the same parts, so their sums agree to the bit. A device is
described only by how long a row its registers hold, and how many rows keep it busy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from glassgrad.base.source_lines import one_place
from glassgrad.compiler.graph import Length, UOp, dtypes, ops as o, toposort
from glassgrad.compiler.graph.op_arguments import Iota
from glassgrad.compiler.schedule.attention_backward import find_in
from glassgrad.compiler.schedule.inlined_values import FusionLimits
from glassgrad.compiler.schedule.online_softmax import StoresScores

LEAST_PART = 1024        # elements below which a part is not worth a thread group
LONGEST_PART = 8 << 10  # elements: short enough that several groups fit a processor, and one reads while others compute
BUSY = 4                 # times `few_rows` parts keep all processors busy until the end
FINITE = 3.4e38          # about the largest finite float32
EVEN = 8                 # elements that a thread may load at once


@dataclass(eq=False)
class ExponentialSum:
    """SUM over the last axis of EXP2((scores - shift) * rate), where the shift is computed from the scores' maximum."""
    total: UOp
    scores: UOp
    maximum: UOp             # AMAX of the scores
    shift: UOp               # one value per row
    rate: UOp | None         # a positive constant; None stands for 1

    @staticmethod
    def of(total: UOp) -> ExponentialSum | None:
        """Recognize a sum of this form; None for others."""
        if total.op is not o.SUM or total.src[0].op is not o.EXP2 or total.dtype is not dtypes.float32:
            return None
        difference, rate = total.src[0].src[0], None
        if difference.op is o.MUL and difference.src[1].op is o.CONST and difference.src[1].arg > 0:
            difference, rate = difference.src
        if difference.op is not o.SUB or difference.src[1].op is not o.EXPAND:
            return None
        scores, shift = difference.src[0], difference.src[1].src[0]
        if total.arg.axes != (len(scores.shape) - 1,) or shift.shape != total.shape:
            return None
        below = toposort([shift], lambda n: n.src if n.shape == shift.shape and n.op not in o.REDUCE else ())
        maximum = next((n for n in below if n.op is o.AMAX and n.src[0] is scores and n.arg == total.arg), None)
        return None if maximum is None else ExponentialSum(total, scores, maximum, shift, rate)

    def pays(self, limits: FusionLimits) -> bool:
        """Whether rows are few, and too long for registers."""
        shape = self.scores.shape
        return not any(isinstance(n, Length) for n in shape) and shape[-1] > limits.held_row and \
            0 < math.prod(shape[:-1]) < limits.few_rows

    def exponentials(self, difference: UOp) -> UOp:
        return (difference if self.rate is None else difference * self.rate).alu(o.EXP2)


@dataclass(eq=False)
class ScoreParts:
    """The scores with an added axis of parts; the maximum of each part, also clamped to finite values for subtraction:
    a part may be all -inf, and -inf - -inf is NaN."""
    scores: UOp              # (rows, parts, elements of a part)
    maxima: UOp              # (rows, parts, 1)
    finite: UOp

    @staticmethod
    def of(scores: UOp, limits: FusionLimits) -> ScoreParts:
        rows, size = scores.shape[:-1], scores.shape[-1]
        count, length = cut(size, math.prod(rows), limits)
        if count * length > size:
            inside = UOp(o.IOTA, dtypes.int32, (), Iota((count * length,))) < size
            padded = scores.pad([*[(0, 0)] * len(rows), (0, count * length - size)])
            scores = inside.broadcast(padded.shape).where(padded, -math.inf)
        scores = scores.reshape((*rows, count, length))
        maxima = scores.reduce(o.AMAX, [len(rows) + 1]).contiguous()
        return ScoreParts(scores, maxima, maxima.maximum(-FINITE).minimum(FINITE))

    @property
    def axis(self) -> int:
        return len(self.scores.shape) - 2

    def maximum(self) -> UOp:
        """The maximum of whole rows."""
        return self.maxima.reshape(self.maxima.shape[:-1]).reduce(o.AMAX, [self.axis])

    def total(self, found: ExponentialSum, shift: UOp) -> UOp:
        """The sums of whole rows with the given shift, from the sums of parts with their own shifts."""
        shape = self.scores.shape
        own = found.exponentials(self.scores - self.finite.expand(shape)).sum([self.axis + 1]).contiguous()
        moved = found.exponentials(self.finite.reshape(shape[:-1]) - shift.expand(shape[:-1]))
        return (own.reshape(shape[:-1]) * moved).sum([self.axis])


def cut(size: int, rows: int, limits: FusionLimits) -> tuple[int, int]:
    """Choose how many parts a row has, and how long they are; the last one may be shorter.

    >>> cut(50304, 100, FusionLimits(few_rows=264)), cut(50257, 64, FusionLimits(few_rows=264))
    ((12, 4192), (29, 1733))
    """
    few = -(-size // LONGEST_PART)
    count = max(few, min(-(-BUSY * limits.few_rows // rows), size // LEAST_PART))
    near = sorted(range(max(few, count // 2), 2 * count), key=lambda n: abs(n - count))
    for width in (EVEN, 1):
        whole = next((n for n in near if size % (n * width) == 0), None)
        if whole is not None:
            return whole, size // whole
    length = -(-size // (count * EVEN)) * EVEN
    return -(-size // length), length


def with_long_rows_in_parts(sinks: list[UOp], limits: FusionLimits, device: str = "",
                            stores_scores: StoresScores | None = None) -> list[UOp]:
    """Rewrite softmaxes of long rows to use parts where that pays, except those computed in one pass."""
    order = toposort(sinks)
    found = {s.total: s for s in map(ExponentialSum.of, order) if s is not None and s.pays(limits)}
    if not found:
        return sinks
    passes = find_in(sinks, order, device, stores_scores, limits)
    for chain in (*passes.softmaxes, *passes.factors):
        found = {total: s for total, s in found.items() if total not in chain.inside}
    parts: dict[UOp, ScoreParts] = {}
    maxima = {s.maximum for s in found.values()}
    new: dict[UOp, UOp] = {}
    for node in order:
        with one_place(node.place):
            if node in maxima:
                parts[node] = ScoreParts.of(new[node.src[0]], limits)
                new[node] = parts[node].maximum().contiguous()
            elif node in found:
                new[node] = parts[found[node].maximum].total(found[node], new[found[node].shift]).contiguous()
            else:
                new[node] = node.over(tuple([new[s] for s in node.src]))
    return [new[s] for s in sinks]
