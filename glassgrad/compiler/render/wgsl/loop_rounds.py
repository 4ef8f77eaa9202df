"""Drivers that end long loops. In: a phase, and how many rounds a thread may run. Out: how far to write loops out.

Mesa's llvmpipe, which runs WebGPU on the processor, ends all loops of a thread after 65535 rounds together and says
nothing. The device finds that out by running a loop (`Target.most_rounds`).
"""

from __future__ import annotations

from glassgrad.base.errors import DeviceError
from glassgrad.compiler.graph import index_algebra as ix, ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import LANE, UNIT, For, If, Statement, expressions

__all__ = ["divides_in_32_bits", "unrolled"]

MOST_UNROLLED = 32          # iterations of a loop that are written out
DIVISION_ROUNDS = 64        # of a division of 64-bit integers


def unrolled(body: list[Statement], most: int, what: str) -> int:
    """How many iterations of innermost loops are written out, so that no thread runs more rounds than that."""
    inner, outer = _rounds(body)
    if inner + outer <= most:
        return 1
    count = -(-inner // max(1, most - outer))
    if outer >= most or count > MOST_UNROLLED:
        raise DeviceError(f"{what} has loops that are too long for this driver", given=f"{inner + outer} rounds",
                          expected=f"at most {most} rounds of a thread, or {MOST_UNROLLED} times as many in innermost "
                          "loops: the driver ends a loop after that", fix="use another driver or device")
    return count


def _rounds(body: list[Statement]) -> tuple[int, int]:
    """The rounds of innermost loops, and those of other loops and of helpers."""
    inner = outer = 0
    for s in body:
        divisions = [n for n in toposort(expressions(s)) if n.op in (o.IDIV, o.MOD) and n.dtype.bits == 64]
        outer += DIVISION_ROUNDS * sum(not divides_in_32_bits(n) for n in divisions)
        if isinstance(s, (For, If)):
            inside, around = _rounds(s.body)
            times = s.range.arg.size if isinstance(s, For) and s.kind not in (LANE, UNIT) else 1
            if times > 1 and not inside:
                inside, times, around = times, 1, around * times
            else:
                around += times > 1
            inner, outer = inner + inside * times, outer + around * times
    return inner, outer


def divides_in_32_bits(node: UOp) -> bool:
    """Whether a division of int64 is of a number that fits 32 bits by a constant that does: it needs no loop."""
    x, y = node.src
    return node.dtype is dtypes.int64 and y.op is o.CONST and 0 < y.arg < 1 << 31 and ix.fits(*ix.span(x))
