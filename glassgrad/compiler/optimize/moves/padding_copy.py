"""Copy a padded image with its zeros. In: a product of a padded factor. Out: a phase that copies it; the product after.

A tiling that reads an image in vectors cannot stop at the image's edges (as padding_bounds.py does for scalar reads),
and a test at every tap costs more than the copy:

    TASK i: for k: r += x[i + k - 1 if 0 <= i + k - 1 < n] * w[k]
    ->  phase 1   TASK u in n + 2: padded[u] = x[u - 1 if 0 <= u - 1 < n]
        phase 2   TASK i: for k: r += padded[i + k] * w[k]

If the number of images is known only at run time, each task copies its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from glassgrad.compiler.graph import DType, UOp, const, ops as o
from glassgrad.compiler.graph.index_algebra import (Terms, add, all_of, below_limit, both, bounds, build, index, less,
                                                    multiply, substitute_index)
from glassgrad.compiler.lower.loops import LOOP, For, Statement, Store, counter, current, load, local, nested, ranges_of
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.product.recognize import REREAD, Product, stride_along

TASK_ELEMENTS = 8192    # elements that a task copies: claiming a task costs as much as copying some hundreds


@dataclass
class _Axis:
    """An axis of the padded image: a linear combination of loops, and its stride in memory."""
    terms: Terms
    step: int

    def __post_init__(self) -> None:
        self.low, high = bounds(build(0, self.terms))
        self.size = high - self.low + 1


def with_zeros(product: Product, lanes: int) -> tuple[list[list[Statement]], Product] | None:
    """The phases that copy, and the product that reads the copies; None if no factor is a padded window. A factor that
    is cast from a narrower type is copied after the cast, so that it is cast once, not at every tap. With run-time
    bounds, the copy has what one iteration of the batch reads."""
    phases: list[list[Statement]] = []
    factors: list[UOp] = []
    for name, factor in (("padded_left", product.left), ("padded_right", product.right)):
        copy = _copy(name, factor, lanes, frozenset(product.batch if product.stops else ()))
        phases += [copy[0]] if copy is not None else []
        factors.append(copy[1] if copy is not None else factor)
    return (phases, replace(product, left=factors[0], right=factors[1])) if phases else None


def _copy(name: str, factor: UOp, lanes: int, around: frozenset[UOp]) -> tuple[list[Statement], UOp] | None:
    image, dtypes_above = _image(factor)
    if image.op is not o.LOAD or len(image.src) == 2 and not dtypes_above:
        return None
    source, at, *gates = image.src
    conditions = [condition for gate in gates for condition in map(below_limit, all_of(gate))]
    loops = ranges_of(image) - around
    axes = _axes(at, conditions, loops)
    if axes is None or REREAD * math.prod(a.size for a in axes) > math.prod(r.arg.size for r in loops):
        return None
    own = around & ranges_of(image)
    memory = local(name, factor.dtype, math.prod(a.size for a in axes), "worker" if own else "shared")
    counters = [counter(f"x{number}", axis.size) for number, axis in enumerate(axes)]
    place, there, inside = index(0), index(0), substitute_index(at, {r: index(0) for r in loops}, {})
    for axis, u in zip(axes, counters):
        place = add(multiply(place, axis.size), current(u))
        there = add(multiply(there, axis.size), build(-axis.low, axis.terms))
        inside = add(inside, multiply(add(current(u), index(axis.low)), axis.step))
    wanted: UOp | None = None
    for terms, limit in filter(None, conditions):
        axis, u = next((a, u) for a, u in zip(axes, counters) if _multiple(terms, a.terms))
        along = multiply(add(current(u), index(axis.low)), _multiple(terms, axis.terms) or 0)
        wanted = both(wanted, less(along, index(limit)))
    *outer, last = [u for u in counters if u.arg.size > 1]
    value = load(source, inside, wanted)
    for dtype in dtypes_above:
        value = value.cast(dtype)
    body: list[Statement] = moves.wide(For(last, LOOP, [Store(memory, place, value)]), 1, lanes, copies=False)
    copied = nested(outer, body) if own else moves.loops_as_tasks(outer, body, -(-memory.arg.size // TASK_ELEMENTS))
    return copied, load(memory, there)


def _image(factor: UOp) -> tuple[UOp, list[DType]]:
    """The load of a factor, and the types it is cast to, first to last. (A load is 0 where its gate is false, so a
    WHERE between it and 0 is dropped if the gate includes its condition.)"""
    chosen: UOp | None = None
    if factor.op is o.WHERE and factor.src[2].op is o.CONST and factor.src[2].arg == 0:
        chosen, factor, _ = factor.src
    casts: list[DType] = []
    while factor.op is o.CAST:
        casts.insert(0, factor.dtype)
        factor = factor.src[0]
    if chosen is not None and (len(factor.src) != 3 or not set(all_of(chosen)) <= set(all_of(factor.src[2]))):
        return const(0, factor.dtype), []
    return factor, casts


def _multiple(terms: Terms, of: Terms) -> int | None:
    """The integer n with `terms` == n times `of`; None if there is none."""
    first = next(iter(of))
    times = terms.get(first, 0) // of[first]
    return times if times and terms == {r: times * k for r, k in of.items()} else None


def _axes(at: UOp, conditions: list[tuple[Terms, int] | None], loops: frozenset[UOp]) -> list[_Axis] | None:
    """The axes of the image, outermost first: those that the gate's conditions test, and the others by their strides in
    the address. Refuses (None) a gate that tests anything but positions, for example a remainder."""
    steps = {r: stride_along(at, r) for r in loops}
    tested = [condition[0] for condition in conditions if condition is not None]
    if len(tested) < len(conditions) or None in steps.values():
        return None
    if any(not terms or not loops.issuperset(terms) for terms in tested):
        return None
    axes = _tested_axes(tested, steps)
    if axes is None:
        return None
    taken = {r for axis in axes for r in axis.terms}
    return sorted([*axes, *_other_axes({r: step for r in loops - taken if (step := steps[r])})], key=lambda a: -a.step)


def _tested_axes(tested: list[Terms], steps: dict[UOp, int | None]) -> list[_Axis] | None:
    """The axes whose positions conditions test, each a sum of counters; None if one of them is not an axis of an image
    in which each counter has one of these steps."""
    axes: list[_Axis] = []
    taken: set[UOp] = set()
    for terms in tested:
        if any(_multiple(terms, a.terms) for a in axes):
            continue
        common = math.gcd(*terms.values())
        step = next((steps[r] or 0) // (k // common) for r, k in terms.items())
        if not step or taken & set(terms) or any(steps[r] != step * (k // common) for r, k in terms.items()):
            return None
        sign = 1 if step > 0 else -1
        axes.append(_Axis({r: sign * k // common for r, k in terms.items()}, abs(step)))
        taken |= set(terms)
    return axes


def _other_axes(steps: dict[UOp, int]) -> list[_Axis]:
    """The axes of counters without conditions, by their steps: overlapping ones are a window without padding."""
    axes: list[_Axis] = []
    for r, step in sorted(steps.items(), key=lambda item: (abs(item[1]), item[0].arg)):
        near = axes[-1] if axes else None
        if near is not None and abs(step) < near.step * near.size and step % near.step == 0:
            axes[-1] = _Axis({**near.terms, r: step // near.step}, near.step)
        else:
            axes.append(_Axis({r: 1 if step > 0 else -1}, abs(step)))
    return axes
