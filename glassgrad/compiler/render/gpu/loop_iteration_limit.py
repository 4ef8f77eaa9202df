"""Unroll loops for drivers that end long ones. In: phases, and how many iterations a thread may run. Out: phases.

Mesa's llvmpipe, which runs WebGPU on the CPU, silently ends all loops of a thread after 65535 iterations in total
(`Target.iteration_limit`). For a thread with more iterations, several iterations of its innermost loops become one:

    loop k in 100:            loop k_first in 50:
        x += a[k]       ->        x += a[k_first * 2]
                                  x += a[k_first * 2 + 1]
"""

from __future__ import annotations

from dataclasses import replace

from glassgrad.base.errors import DeviceError
from glassgrad.compiler.graph import index_algebra as ix
from glassgrad.compiler.lower.loops import LANE, LOOP, UNIT, For, If, Kernel, Statement, counter, with_body
from glassgrad.compiler.optimize.moves.loop_moves import rebuild
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.render.gpu.gpu_launch import gpu_launch
from glassgrad.compiler.render.launch_info import launch_info
from glassgrad.compiler.render.unroll_and_jam import Jammed

MOST_UNROLLED = 32          # the largest unroll factor


def limit_iterations(phases: list[Jammed], kernel: Kernel, target: Target) -> list[Jammed]:
    """Unroll the phases of a kernel, so that no thread runs more iterations than its driver allows."""
    out, launch = [], gpu_launch(kernel, target.group_bytes).phases
    for jammed, (name, tasks), (_, groups, _, _) in zip(phases, launch_info(kernel).phases, launch):
        count = unroll_factor(jammed.body, target.iteration_limit // -(-tasks // max(groups, 1)), f"the kernel {name}")
        out.append(replace(jammed, body=_unrolled(jammed.body, count)) if count > 1 else jammed)
    return out


def unroll_factor(body: list[Statement], most: int, what: str) -> int:
    """The unroll factor of innermost loops with which no thread runs more than `most` iterations."""
    inner, outer = _iterations(body)
    if inner + outer <= most:
        return 1
    count = -(-inner // max(1, most - outer))
    if outer >= most or count > MOST_UNROLLED:
        raise DeviceError(f"{what} has loops that are too long for this driver", given=f"{inner + outer} iterations",
                          expected=f"at most {most} iterations of a thread, or {MOST_UNROLLED} times as many in "
                          "innermost loops: the driver ends longer ones", fix="use another driver or device")
    return count


def _is_loop(s: Statement) -> bool:
    return isinstance(s, For) and s.kind not in (LANE, UNIT) and s.range.arg.size > 1


def _iterations(body: list[Statement]) -> tuple[int, int]:
    """The total iterations of innermost loops, and those of other loops."""
    inner = outer = 0
    for s in body:
        if isinstance(s, (For, If)):
            inside, around = _iterations(s.body)
            times = s.range.arg.size if isinstance(s, For) and _is_loop(s) else 1
            if times > 1 and not inside:
                inside, times = times, 1
            else:
                around += times > 1
            inner, outer = inner + inside * times, outer + around * times
    return inner, outer


def _unrolled(body: list[Statement], count: int) -> list[Statement]:
    """Unroll each innermost loop in the statements by `count`."""
    out: list[Statement] = []
    for s in body:
        if isinstance(s, For) and _is_loop(s) and not any(_iterations(s.body)):
            size, end = s.range.arg.size, s.stop if s.stop is not None else ix.index(s.range.arg.size)
            first = counter(f"{s.range.arg.name}_first", -(-size // count))
            inside: list[Statement] = []
            for more in range(count):
                at = ix.add(ix.multiply(first, count), ix.index(more))
                inside.append(If(ix.less(at, end), rebuild(s.body, {s.range: at})))
            out.append(For(first, LOOP, inside))
        else:
            out.append(with_body(s, _unrolled(s.body, count)) if isinstance(s, (For, If)) else s)
    return out

