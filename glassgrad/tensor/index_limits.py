"""What values an index can have. In: a node of integers. Out: its least and greatest value, where they can be known.

A formula bounds its result by the bounds of its sources; numbers in the host's memory are read, once for each version
of its contents. Does not know what an index is used for.
"""

from __future__ import annotations

from collections.abc import Sequence

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import DType
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.node_table import NodeTable
from glassgrad.compiler.graph.uop import UOp
from glassgrad.runtime.devices import Device

Limits = tuple[int, int]
# ops whose elements are elements of their source, and those that add zeros to them
_SAME = frozenset((o.RESHAPE, o.PERMUTE, o.EXPAND, o.SHRINK, o.FLIP, o.WINDOW, o.CONTIGUOUS, o.DETACH, o.COPY, o.AMAX,
                   o.AMIN))
_WITH_ZERO = frozenset((o.PAD, o.UNWINDOW))
# of BUFFERs, with the version of their contents
_stored_limits: NodeTable[tuple[int, Limits | None]] = NodeTable()


def limits(node: UOp, stored: bool = True) -> Limits | None:
    """The least and greatest a node of integers can be, as far as its formula tells. Without `stored`, whatever is in
    the buffers.

    >>> from glassgrad.tensor.formulas.movement import counting
    >>> limits(counting(5) % 3)
    (0, 2)
    """
    found: dict[UOp, Limits] = {}
    for n in toposort([node]):
        known = None
        if n.op is o.GATHER:
            known = found.get(n.src[0]) if stored else None
        elif n.op is o.BUFFER:
            known = _stored(n) if stored else None
        elif n.dtype.kind in "iub" and n.op is not o.SCATTER:
            known = _limits(n, found)
        if known is not None:
            found[n] = known
    return found.get(node)


def version_of(node: UOp) -> int:
    """How often the contents of a BUFFER were written in place; other nodes are values and stay what they are."""
    return node.arg.version if node.op is o.BUFFER else 0


def _stored(node: UOp) -> Limits | None:
    """Of integers in the host's memory that only this program writes."""
    if node.dtype.kind not in "iub":
        return None
    version, known = version_of(node), _stored_limits.get(node)
    if known is None or known[0] != version:
        known = version, _read_limits(node)
        _stored_limits.set(node, known)
    return known[1]


def _read_limits(node: UOp) -> Limits | None:
    buffer = node.arg
    if not node.size or buffer.owner is not None or not Device[buffer.device].memory.on_host:
        return None
    numbers = buffer.view().cast("B").cast(node.dtype.format)
    if node.size > 1024:
        import numpy  # its import takes less time than so many numbers in Python
        numbers = numpy.frombuffer(numbers, node.dtype.format)
        return int(numbers.min()), int(numbers.max())
    return min(numbers), max(numbers)


def _limits(n: UOp, known: dict[UOp, Limits]) -> Limits | None:
    op, dtype = n.op, n.dtype
    if op is o.CONST:
        return int(n.arg), int(n.arg)
    if op is o.IOTA:
        return _fitting((0, max(0, n.size - 1)), dtype)
    if dtype.kind == "b":
        return 0, 1
    rows = [known.get(s) for s in n.src]
    if op is o.AND and dtype.kind == "u" and any(r is not None and r[0] == r[1] for r in rows):
        return 0, next(r[1] for r in rows if r is not None and r[0] == r[1])
    if op is o.MOD and rows[1] is not None and rows[1][0] == rows[1][1] > 0:
        return 0, rows[1][1] - 1
    if op in (o.MAX, o.MIN):
        return _clamped(op, rows, dtype)
    sure = [r for r in (rows[1:] if op is o.WHERE else rows) if r is not None]
    if not sure or len(sure) < len(rows) - (op is o.WHERE):
        return None
    first, last = sure[0], sure[-1]
    if op in _SAME:
        return first
    if op in _WITH_ZERO:
        return min(0, first[0]), max(0, first[1])
    if op is o.CAST:
        return _fitting(first, dtype) if n.src[0].dtype.kind in "iub" else None
    if op is o.WHERE:
        return min(first[0], last[0]), max(first[1], last[1])
    return _arithmetic(op, first, last, dtype)


def _clamped(op: o.Op, rows: Sequence[Limits | None], dtype: DType) -> Limits | None:
    """One side is enough to bound one end; a type's own limit bounds the other."""
    if rows[0] is None and rows[1] is None:
        return None
    a, b = (r if r is not None else (int(dtype.min), int(dtype.max)) for r in rows)
    choose = max if op is o.MAX else min
    return choose(a[0], b[0]), choose(a[1], b[1])


def _arithmetic(op: o.Op, a: Limits, b: Limits, dtype: DType) -> Limits | None:
    if op is o.ADD:
        return _fitting((a[0] + b[0], a[1] + b[1]), dtype)
    if op is o.SUB:
        return _fitting((a[0] - b[1], a[1] - b[0]), dtype)
    if op is o.MUL:
        products = [x * y for x in a for y in b]
        return _fitting((min(products), max(products)), dtype)
    if op not in (o.IDIV, o.SHR) or b[0] != b[1] or b[0] < (1 if op is o.IDIV else 0):
        return None
    by = b[0] if op is o.IDIV else 1 << b[0]
    return a[0] // by, a[1] // by


def _fitting(found: Limits, dtype: DType) -> Limits | None:
    """Limits that a type holds without wrapping round."""
    return found if int(dtype.min) <= found[0] and found[1] <= int(dtype.max) else None
