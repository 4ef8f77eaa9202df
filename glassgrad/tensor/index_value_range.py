"""Find the least and greatest value that an index can have. In: a node of integers. Out: its limits, as far as they are
known.

The bounds of a formula follow from those of its sources, by the rules of the compiler's index algebra. Numbers in the
host's memory are read, once for each version of its contents. Does not know what an index is used for.
"""

from __future__ import annotations

from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.graph.node import WeakNodeDict
from glassgrad.runtime.devices import Device

Limits = tuple[int, int]
# ops whose elements are elements of their source, and ops that add zeros to these
_SAME = frozenset((o.RESHAPE, o.PERMUTE, o.EXPAND, o.SHRINK, o.FLIP, o.WINDOW, o.CONTIGUOUS, o.DETACH, o.COPY, o.AMAX,
                   o.AMIN))
_WITH_ZERO = frozenset((o.PAD, o.UNWINDOW))
_INTEGERS = "iub"              # kinds of types
_ANYTHING: Limits = (-(1 << 62), 1 << 62)
# {BUFFER: its limits, with the version of its contents}
_stored_limits: WeakNodeDict[tuple[int, Limits | None]] = WeakNodeDict()


def limits(node: UOp, stored: bool = True) -> Limits:
    """Return the least and greatest value of a node of integers, as far as they follow from its formula, else those of
    its type. Without `stored`, buffers are not read, and have the limits of their type. A node that is not of integers
    has no limits: `_ANYTHING`.

    >>> from glassgrad.tensor.formulas.movement import counting
    >>> limits(counting(5) % 3)
    (0, 2)
    """
    from glassgrad.compiler.graph.index_algebra import bounds_by  # only where a tensor is an index
    found: dict[UOp, Limits] = {}
    for n in toposort([node], lambda n: n.src if n.dtype.kind in _INTEGERS else ()):     # floats bound no integer
        dtype = n.dtype
        if dtype.kind in _INTEGERS:
            low, high = _of_elements(n, found, stored) or bounds_by(n, found.__getitem__)
            wraps = low < dtype.min or high > dtype.max
            found[n] = (int(dtype.min), int(dtype.max)) if wraps else (low, high)
    return found.get(node, _ANYTHING)


def version_of(node: UOp) -> int:
    """Return how often the contents of a BUFFER were written in place; other nodes never change."""
    return node.arg.version if node.op is o.BUFFER else 0


def _stored(node: UOp) -> Limits | None:
    """Return the limits of integers in the host's memory; None for memory that another library may write to."""
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
        import numpy  # its import takes less time than a Python loop over these
        numbers = numpy.frombuffer(numbers, node.dtype.format)
        return int(numbers.min()), int(numbers.max())
    return min(numbers), max(numbers)


def _of_elements(n: UOp, found: dict[UOp, Limits], stored: bool) -> Limits | None:
    """Return the limits of ops that the arithmetic of `bounds_by` does not cover: memory, views, masks and shifts."""
    op = n.op
    if op is o.BUFFER:
        return _stored(n) if stored else None
    if op is o.IOTA:
        return 0, max(0, n.size - 1)
    if op in _SAME or op is o.GATHER and stored:
        return found[n.src[0]]
    if op in _WITH_ZERO:
        low, high = found[n.src[0]]
        return min(0, low), max(0, high)
    if op is o.AND and n.dtype.kind == "u":
        masks = [high for low, high in map(found.__getitem__, n.src) if low == high]
        return (0, masks[0]) if masks else None
    if op is o.SHR:
        (low, high), (by, most) = map(found.__getitem__, n.src)
        return (low >> by, high >> by) if by == most else None
    return None
