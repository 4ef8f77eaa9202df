"""Find the op that made a NaN or an infinity. In: a node, the index of a bad element, values in memory. Out: `Origin`.

The search goes back from the bad element to an element of a source that is already bad, until it reaches an op with
good operands. It looks only at elements that the bad one depends on: a NaN that a WHERE discards is never reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from glassgrad.compiler.check.needed_elements import BoxValues, needed, one_element
from glassgrad.compiler.graph import UOp, ops as o

MADE, GIVEN, CONSTANT, COMPILED = "made", "given", "constant", "compiled"


class BadElement(NamedTuple):
    """One element of a node: a bad one, or an operand of one."""
    node: UOp
    at: tuple[int, ...]              # its index
    value: Any


class Origin(NamedTuple):
    """Where a bad value began, and how: an op MADE it, it was GIVEN in memory, it is a CONSTANT of the program, or only
    the COMPILED kernel has it: then the ops give a finite value, and rounding makes the difference."""
    kind: str
    found: BadElement
    operands: tuple[BadElement, ...] = ()
    cause: Origin | None = None          # for a NaN: the infinity among its operands, and where that began


def origin(node: UOp, index: tuple[int, ...], stored: Mapping[UOp, Any]) -> Origin:
    """Find where the bad value of one element began. `stored` has arrays for the leaves, and for any other nodes in
    memory; NumPy computes values in between, for one element at a time.

    >>> import numpy as np
    >>> from glassgrad.compiler.graph.uop import const, full
    >>> x = full((3,), 0.0)
    >>> made = origin(x.alu(o.LOG2) * 2.0, (1,), {})
    >>> made.kind, made.found.node.op, [e.value.item() for e in made.operands]
    ('made', Ops.LOG2, [0.0])
    """
    import numpy as np
    values = BoxValues(node, one_element(index), stored)
    value = values.arrays[node].reshape(())
    if np.isfinite(value):                               # the value in memory differs from the one that the ops give
        kept = stored.get(node)
        return Origin(COMPILED, BadElement(node, index, value if kept is None else kept[index]))
    while True:
        operands = _operands(np, node, index, values)
        is_bad = np.isnan if np.isnan(value) else np.isinf
        bad = next((one for one in operands if is_bad(one.value)), None)
        if bad is None:
            return _made(np, BadElement(node, index, value), operands, stored)
        node, index, value = bad
        if node.op in (o.BUFFER, o.PARAM, o.SCALAR):
            return Origin(GIVEN, bad)
        if node in stored:
            values = BoxValues(node, one_element(index), stored)
            if not is_bad(values.arrays[node]).any():
                return Origin(COMPILED, bad)


def _made(np: Any, found: BadElement, operands: Sequence[BadElement], stored: Mapping[UOp, Any]) -> Origin:
    if found.node.op is o.CONST:
        return Origin(CONSTANT, found)
    infinite = next((one for one in operands if np.isinf(one.value)), None) if np.isnan(found.value) else None
    cause = None
    if infinite is not None:
        leaf = infinite.node.op in (o.BUFFER, o.PARAM, o.SCALAR)
        cause = Origin(GIVEN, infinite) if leaf else origin(infinite.node, infinite.at, stored)
    return Origin(MADE, found, tuple(operands[:4]), cause)


def _operands(np: Any, node: UOp, index: tuple[int, ...], values: BoxValues) -> list[BadElement]:
    """The float elements from which one element is computed; for a reduction, the bad ones first."""
    parts = needed(node, one_element(index))
    sources = list(zip(node.src, parts))
    if node.op is o.WHERE:
        chosen = values.part(node.src[0], parts[0]).reshape(-1)[0]
        sources = [sources[1] if chosen else sources[2]]
    elif node.op is o.DETACH:
        sources = sources[:1]
    found = []
    for source, box in sources:
        if not source.dtype.is_float:
            continue
        array = values.part(source, box)
        if node.op is o.GATHER and source is node.src[0]:
            at = values.part(node.src[1], parts[1])[index[:len(node.src[1].shape)]]
            row = min(max(int(at), 0), source.shape[0] - 1)
            place = (row, *index[len(node.src[1].shape):])
            found.append(BadElement(source, place, array[place]))
        elif array.size:
            flat = array.reshape(-1)
            wrong = [np.flatnonzero(test(flat)) for test in (np.isnan, np.isinf)]
            chosen = list(dict.fromkeys([int(w[0]) for w in wrong if len(w)] + [0]))
            for at in chosen:
                offsets = np.unravel_index(at, array.shape) if array.shape else ()
                found.append(BadElement(source, tuple(int(i) + start for i, (start, _) in zip(offsets, box)), flat[at]))
    return found
