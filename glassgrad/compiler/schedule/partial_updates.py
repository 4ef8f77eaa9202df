"""Find partial updates: a value with a part replaced. In: a node that gets memory. Out: `Part`, or None.

Values are immutable, so writing a row into a cache makes a new value: a copy of the old one with another row. That is
two kernels. The first takes the number of elements to copy as a variable: all of them, or none where the result may
reuse the old value's memory, because nothing refers to it any more (engine/in_place.py). A whole value may overwrite
the old one where a kernel reads each element of it only for the element that it writes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from glassgrad.compiler.graph import UOp, ops as o, toposort

LEAST = 16 * 1024        # elements below which one kernel that copies and replaces is as good


class Part(NamedTuple):
    """`whole` with the part within `bounds` replaced by `value`."""
    whole: UOp
    value: UOp
    bounds: tuple[tuple[Any, Any], ...]


class Update(NamedTuple):
    """The slots of a partial update: the old value, the new one, and how many elements to copy (a variable)."""
    source: int
    result: int
    copied: int
    size: int


def part_of(node: UOp) -> Part | None:
    """The node as a partial update x[bounds] = value if that is worth two kernels; else None."""
    part = replacement(node)
    if part is None or part.whole.op is not o.PARAM or part.whole.arg.scalar:
        return None
    if part.whole.symbolic or part.whole.size < LEAST or 4 * part.value.size > part.whole.size:
        return None
    return None if part.whole in toposort([part.value]) else part


def replacement(node: UOp) -> Part | None:
    """The node as x[bounds] = value, which `Tensor.__setitem__` writes as where(inside, padded value, x); else None."""
    if node.op is not o.WHERE:
        return None
    inside, padded, whole = node.src
    if inside.op is not o.PAD or padded.op is not o.PAD or inside.arg != padded.arg or not _is_true(inside.src[0]):
        return None
    value = padded.src[0]
    return Part(whole, value, tuple((before, before + n) for (before, _), n in zip(padded.arg.padding, value.shape)))


def _is_true(node: UOp) -> bool:
    node = node.below((o.RESHAPE, o.EXPAND))
    return node.op is o.CONST and node.arg is True


def rewrites(kernel: UOp, result: int, source: int) -> bool:
    """Whether a kernel (a SINK) reads the PARAM `source` only for `result`, and only at the element that it writes.
    Then the two may share memory, whatever the order of elements."""
    for store in kernel.src:
        if kernel.op is not o.SINK or store.op is not o.STORE or len(store.src) != 2:
            return False                         # only a part is written
        target, value = store.src
        reading: set[UOp] = set()
        for node in toposort([value]):
            if node.op is o.PARAM and node.arg.slot == source:
                reading.add(node)
            elif not reading.isdisjoint(node.src):
                if node.op not in o.ELEMENTWISE:
                    return False                 # a view or a sum reads other elements than the one written
                reading.add(node)
        if reading and not (target.op is o.PARAM and target.arg.slot == result):
            return False
    return True
