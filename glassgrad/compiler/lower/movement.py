"""Where an element comes from. In: a movement node and an index into it. Out: the index into its source, and a gate.

Lowering pushes loop counters down through the movement nodes with these functions; nothing is ever copied. The gate is
a condition outside which the element is 0 (padding).
"""

from __future__ import annotations

from collections.abc import Callable

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import Shape, UOp, ops as o
from glassgrad.compiler.graph.axis_dependence import runs
from glassgrad.compiler.graph.index_algebra import (add, all_of, below_limit, both, build, divide, index, less, linear,
                                                    modulo, multiply, operation, times)
from glassgrad.compiler.graph.symbolic import Size, memory_size, most

Index = tuple[UOp, ...]


def source_index(node: UOp, at: Index, size: Callable[[Size], UOp] = index) -> tuple[Index, UOp | None]:
    """The index into `node.src[0]` that element `at` of a movement node reads, and the gate where it is real. `size`
    gives the index expression of a symbolic size."""
    op, arg, shape = node.op, node.arg, node.src[0].shape
    if op is o.RESHAPE:
        return reshape_index(at, node.shape, shape, size), None
    if op is o.PERMUTE:
        return tuple(at[arg.order.index(i)] for i in range(len(shape))), None
    if op is o.EXPAND:
        return tuple(index(0) if n == 1 else i for i, n in zip(at, shape)), None
    if op is o.SHRINK:
        return tuple(add(i, size(start)) for i, (start, _) in zip(at, arg.bounds)), None
    if op is o.FLIP:
        return tuple(add(size(n - 1), multiply(i, -1)) if axis in arg.axes else i
                     for axis, (i, n) in enumerate(zip(at, shape))), None
    if op is o.WINDOW:
        inner = add(multiply(at[arg.axis], arg.stride), multiply(at[-1], arg.dilation))
        return at[:arg.axis] + (inner,) + at[arg.axis + 1:-1], None
    if op is o.PAD:
        gate: UOp | None = None
        out = []
        for i, n, (before, _) in zip(at, shape, arg.padding):
            inner = add(i, size(-before))
            gate = both(gate, both(less(index(-1), inner), less(inner, size(n))))
            out.append(inner)
        return tuple(out), gate
    if op is o.UNWINDOW:
        n = shape[arg.axis]
        offset = add(at[arg.axis], multiply(at[-1], -arg.dilation))
        gate = both(less(index(-1), offset), less(offset, size((n - 1) * arg.stride + 1)))
        if arg.stride > 1:
            gate = both(gate, less(modulo(offset, arg.stride), index(1)))
        return at[:arg.axis] + (divide(offset, arg.stride),) + at[arg.axis + 1:], gate
    raise Bug(f"{op.name} is not a movement op")


def reshape_index(at: Index, shape: Shape, source: Shape, size: Callable[[Size], UOp] = index) -> Index:
    """The index in `source` at the row-major position of `at` in `shape`; matching runs of axes map separately."""
    out: list[UOp] = []
    for i, left, j, right in runs(shape, source):
        out += _regroup(at[i:left], shape[i:left], source[j:right], size)
    return tuple(out)


def _regroup(at: Index, shape: Shape, source: Shape, size: Callable[[Size], UOp]) -> list[UOp]:
    """Map an index from one shape to another: its row-major position, split into digits. A symbolic size that is not
    the first makes strides that are known only at run time."""
    if shape == source:
        return list(at)
    number, step = index(0), 1
    for i, n in zip(reversed(at), reversed(shape)):
        number = add(number, times(i, size(step)))
        step = step * n
    out: list[UOp] = []
    left = sum(n != 1 for n in source)
    for n in reversed(source):
        left -= n != 1
        last = left == 0                             # the rest is already below the first size
        out.append(index(0) if n in (0, 1) else number if last else operation(o.MOD, number, size(n)))
        number = number if last or n == 0 else operation(o.IDIV, number, size(n))
    return out[::-1]


def under_gate(at: UOp, gate: UOp) -> UOp:
    """Simplify an index that is used only where the gate holds: (i + 23*k) % 24 is i - k where 0 <= i - k < 24."""
    least: dict[frozenset[tuple[UOp, int]], int] = {}
    below: dict[frozenset[tuple[UOp, int]], int] = {}
    for terms, limit in filter(None, map(below_limit, reversed(all_of(gate)))):
        below[frozenset(terms.items())] = limit
        least[frozenset((a, -k) for a, k in terms.items())] = 1 - limit
    constant, terms = linear(at)
    for atom, k in terms.items():
        if atom.op is not o.MOD or atom.src[1].op is not o.CONST:
            continue
        n, (c, parts) = atom.src[1].arg, linear(atom.src[0])
        for sum_ in least.keys() & below.keys():
            known = dict(sum_)
            periods = (least[sum_] + c) // n, (below[sum_] - 1 + c) // n
            if periods[0] == periods[1] and all((parts.get(a, 0) - known.get(a, 0)) % n == 0
                                                for a in (*parts, *known)):
                rest = build(constant, {a: m for a, m in terms.items() if a is not atom})
                return under_gate(add(rest, multiply(build(c - periods[0] * n, known), k)), gate)
    return at


def flatten(at: Index, shape: Shape, size: Callable[[Size], UOp] = index) -> UOp:
    """The row-major position of an index; memory is sized for the upper bounds of symbolic sizes, or (given `size`) for
    the values of exact ones."""
    total: UOp = index(0)
    step: Size = 1
    for i, n in zip(reversed(at), reversed(shape)):
        total = add(total, times(i, size(step)))
        step = step * (most(n) if size is index else memory_size(n))
    return total
