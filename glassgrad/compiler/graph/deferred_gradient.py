"""Gradients and formulas that are one node until they are compiled. In: nodes. Out: GRADIENT and FORMULA, or a graph.

A training loop asks for the same gradients at each step, of a graph of the same structure. So `backward` makes one node
for each, and the compiler's first pass writes it out, once for all graphs of that structure. A formula of many nodes,
such as a norm or a linear layer, is one node in the same way. Does not know Tensors, nor what the formulas are: those
of gradients are in gradient.py, the others in tensor/formulas/.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from operator import attrgetter

from glassgrad.base.errors import Bug
from glassgrad.base.source_lines import one_place, user_place
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.gradient import GRADIENTS, gradients
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.uop import UOp


def deferred(root: UOp, seed: UOp, targets: Sequence[UOp], order: Sequence[UOp]) -> list[UOp | None]:
    """One GRADIENT node for each target that the root depends on, else None; the compiler expands them. Expanded now
    where a gradient is a user's function, under another GRADIENT, for symbolic shapes and for several devices. `order`:
    the nodes under the root."""
    if root.symbolic or any([target.device != root.device for target in targets]):
        return at_once(root, seed, targets, order)
    reached = {root}
    for node in reversed(order):
        if node in reached:
            op = node.op
            if op is o.GRADIENT or op is o.DETACH and len(node.src) > 1 and not node.arg.name:
                return at_once(root, seed, targets, order)
            if op in GRADIENTS and node.dtype.kind == "f":
                reached.update(node.src if op is not o.DETACH else node.src[1:])
    place = user_place()
    return [UOp(o.GRADIENT, t.dtype, (t, root, seed), None, place) if t in reached and t.dtype.kind == "f" else None
            for t in targets]


_DEFERRED = frozenset((o.GRADIENT, o.FORMULA))


class _Writing(threading.local):
    now = False


_writing = _Writing()


def is_writing_out() -> bool:
    """Whether this thread writes nodes out now: none are to be deferred in what it writes."""
    return _writing.now


def written_out(roots: Sequence[UOp], formulas: dict[UOp, UOp] | None = None, stored: Collection[UOp] = ()) \
        -> list[UOp]:
    """The roots with every GRADIENT and FORMULA in them written out. `formulas` gets the FORMULA that each of the new
    nodes stands for; those among `stored` get memory in the order of their axes. So does a gradient that is a view of a
    sum: the kernel that computes it then computes the new value of a parameter too."""
    order = toposort(roots)
    found = [node for node in order if node.op in _DEFERRED]
    if not found:
        return list(roots)
    before, _writing.now = _writing.now, True
    try:
        new = _written(order, found, set(stored))
    finally:
        _writing.now = before
    if formulas is not None:
        formulas.update((new[node], node) for node in found if node.op is o.FORMULA)
    return [new[root] for root in roots]


def _written(order: Sequence[UOp], found: Sequence[UOp], stored: Collection[UOp]) -> dict[UOp, UOp]:
    """Nodes, sources first, with those that were found to be deferred written out."""
    new: dict[UOp, UOp] = {}
    for node in order:
        if node.op is o.FORMULA:
            with one_place(node.place):
                made = node.arg.written_out(tuple([new[s] for s in node.src]))
                new[node] = made.contiguous() if made.op in o.MOVEMENT and node in stored else made
        elif node.op is not o.GRADIENT:
            new[node] = node.over(tuple([new[s] for s in node.src]))
        elif node not in new:                   # all of one value at once: their targets are under it
            group = [n for n in found if n.op is o.GRADIENT and n.src[1:] == node.src[1:]]
            with one_place(node.place):
                parts = gradients(new[node.src[1]], new[node.src[2]], [new[n.src[0]] for n in group])
                for n, part in zip(group, parts):
                    if part is None:
                        raise Bug(f"no gradient comes to {n.src[0]}")
                    new[n] = part.contiguous() if part.op in o.MOVEMENT else part
    return new


def at_once(root: UOp, seed: UOp, targets: Sequence[UOp], order: Sequence[UOp] = ()) -> list[UOp | None]:
    """The gradients of the targets as graphs; GRADIENT nodes under the root are expanded first."""
    order = order or toposort([root])
    if not _DEFERRED.isdisjoint(map(attrgetter("op"), order)):
        root, seed, *targets = written_out([root, seed, *targets])
        order = toposort([root])
    return gradients(root, seed, targets, order)


def without_detach(roots: Sequence[UOp]) -> list[UOp]:
    """The roots with DETACH nodes removed, once no more gradients are taken."""
    new: dict[UOp, UOp] = {}
    for node in toposort(roots):
        new[node] = new[node.src[0]] if node.op is o.DETACH else node.over(tuple([new[s] for s in node.src]))
    return [new[root] for root in roots]
