"""Which tensors a gradient can be asked for. In: graph nodes. Out: the live tensors that hold them.

A leaf is a tensor that was made, not computed: from data, by `zeros` or `rand`, by `realize` or `assign`, or one whose
`requires_grad` was set. Its node remembers, weakly, who holds it, so `backward` finds its targets while it walks the
graph and no list of all tensors exists. Nodes are shared when equal; a leaf must not be (two biases of zeros are two
parameters), so constants get a DETACH node with a token of their own, which computes nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from glassgrad.base.errors import GradientError
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.gradient import passes_to, reached_from
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.ops import Kind
from glassgrad.compiler.graph.uop import UOp
from glassgrad.engine.capture import touch

__all__ = ["RESET", "Leaf", "assigned", "assigned_within", "cut_off", "distinct",
           "has_another_value", "hold", "hold_alone", "holders", "is_cut_off", "is_held", "leaves_among",
           "refuse_cut_off", "refuse_replaced", "started_from", "still_a_leaf", "take_started",
           "written_with"]


class Leaf:
    """A token, equal only to itself."""
    __slots__ = ()

    def __repr__(self) -> str:
        return "leaf"


RESET = Leaf()   # in the place of a gradient that was there and was set to None


def distinct(node: UOp) -> UOp:
    """The same value as a node of its own, which no equal expression shares."""
    return UOp(o.DETACH, node.dtype, (node,), Leaf())


def hold(tensor: Any) -> None:
    """Remember, without keeping it alive, that this tensor is a leaf."""
    touch(tensor)
    held: list[weakref.ref[Any]] = tensor.uop.cached("holders", lambda _: [])
    if held:
        held[:] = [h for h in held if h() is not None and h() is not tensor]
    held.append(weakref.ref(tensor))


def hold_alone(tensor: Any) -> None:
    """The same, of a tensor whose node nobody else holds by now."""
    node = tensor.uop
    if node._cache is None:
        node._cache = {}
    node._cache["holders"] = [weakref.ref(tensor)]


def is_held(tensor: Any) -> bool:
    """Whether this tensor is a leaf."""
    cache = tensor.uop._cache
    return cache is not None and any(h() is tensor for h in cache.get("holders", ()))


def holders(nodes: Iterable[UOp]) -> list[Any]:
    """The live leaf tensors among these nodes, in the nodes' order."""
    found: list[Any] = []
    for node in nodes:
        cache = node._cache
        if cache is not None and "holders" in cache:
            found.extend(t for t in (h() for h in cache["holders"]) if t is not None and t.uop is node)
    return found


def still_a_leaf(tensor: Any, earlier: UOp) -> None:
    """The tensor was given a new value as a layer's own business (a table whose rows were shortened): gradients of what
    was computed from the earlier one are still its own."""
    earlier.cached("was", lambda _: []).append(weakref.ref(tensor))


def has_another_value(tensor: Any, earlier: UOp) -> None:
    """The tensor was given a new value: what was computed from the earlier one knows the tensor no more."""
    touch(tensor)
    if tensor.requires_grad is True and tensor.uop is not earlier and any(
            h() is tensor for h in (earlier._cache or {}).get("holders", ())):
        earlier.cached("replaced", lambda _: []).append(weakref.ref(tensor))


def refuse_replaced(root: UOp, order: Sequence[UOp]) -> None:
    """A gradient for the value that a tensor had before has nowhere to go: neither dropping it nor adding it to that of
    the new value is what is meant. `order` are the nodes below the root."""
    lost = {node: t for node in order if node._cache is not None
            for t in (h() for h in node._cache.get("replaced", ())) if t is not None and t.uop is not node
            and all(still() is not t for still in node._cache.get("was", ()))}
    if lost:
        # a new value that is not computed yet may have been made from the old one: no gradient passes a leaf
        for node in toposort([root], lambda n: () if n is not root and holders((n,)) else passes_to(n)):
            if node in lost and node.dtype.kind == "f" and not holders((node,)):      # of equal values, one may go on
                raise GradientError("a tensor got a new value between a computation and its backward()",
                                    given=f"a tensor of shape {lost[node].shape} with requires_grad=True",
                                    expected="backward() before the tensor is assigned to",
                                    fix="move the assignment behind backward(), or compute the loss anew")


def leaves_among(nodes: Sequence[UOp]) -> list[tuple[UOp, Any]]:
    """The live leaf tensors of these nodes, each with the node to ask for its gradient: more than one, where the tensor
    was given a new value and is still the leaf it was."""
    found = [(t.uop, t) for t in holders(nodes)]
    for node in nodes:
        if node._cache is not None and "was" in node._cache:
            found.extend((node, t) for t in {id(t): t for t in (h() for h in node._cache["was"])}.values()
                         if t is not None and t.uop is not node)
    return found


def cut_off(node: UOp) -> None:
    """What this value was computed from is not known any more: a jitted call made it. A gradient cannot pass it."""
    node.base.cached("cut off", lambda _: True)


def is_cut_off(node: UOp) -> bool:
    """Whether a gradient would have to pass through a call that is not there any more."""
    return node._cache is not None and "cut off" in node._cache


def refuse_cut_off(root: UOp) -> None:
    """A gradient that ends at what a jitted call made would be too small, and nobody would know."""
    if any(map(is_cut_off, toposort([root]))):
        for node in filter(is_cut_off, reached_from([root])):
            raise GradientError("a gradient cannot go back through a jitted call",
                                given=f"{node.dtype.name} values of shape {node.shape} that a jitted function computed "
                                "from tensors with requires_grad=True", expected="backward() in the same function",
                                fix="call backward() inside it, or let it return, or keep, value.detach()")


# -- tensors written through views ----------------------------------------------------------------------------
def written_with(tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    """These tensors, and those that were written through one of them: `cache[3].assign(row).realize()` means the cache.
    The view then is a view of memory, and costs nothing."""
    more: dict[int, Any] = {}
    for tensor in tensors:
        node = tensor.uop
        while node.op.kind == o.Kind.MOVEMENT:
            node = node.src[0]
            if node._cache is not None and "written through" in node._cache:
                more.update((id(owner), owner) for owner in holders((node,)))
    return (*tensors, *[t for t in more.values() if all(t is not other for other in tensors)]) if more else tensors


# -- losses --------------------------------------------------------------------------------------------------
_started: list[weakref.ref[Any]] = []


def started_from(tensor: Any) -> None:
    """`backward` started here. Whoever computes the gradients computes this value too, or it would need the whole
    forward pass a second time, with the old parameters kept alive for it."""
    _started[:] = [s for s in _started if s() is not None and s() is not tensor]
    _started.append(weakref.ref(tensor))


def take_started() -> list[Any]:
    """The live values that `backward` started from since the last time, which the caller now computes."""
    found = [t for t in (s() for s in _started) if t is not None]
    _started.clear()
    return found


# -- new values ----------------------------------------------------------------------------------------------
_assigned: dict[int, weakref.ref[Any]] = {}


def assigned(tensor: Any) -> None:
    """This tensor was given a new value. Whoever computes something from it computes it too: a cache that a token was
    written into would else need the whole pass a second time."""
    _assigned[id(tensor)] = weakref.ref(tensor)


def assigned_within(nodes: Sequence[UOp]) -> list[UOp]:
    """The values of assigned tensors that computing these nodes computes on the way, and that nobody knows yet."""
    if not _assigned:
        return []
    asked = set(map(_computed, nodes))
    waiting: dict[UOp, None] = {}
    for key, reference in list(_assigned.items()):
        tensor = reference()
        node = _computed(tensor.uop) if tensor is not None else None
        if node is None or node.base.op is o.BUFFER or "value" in (node._cache or ()):
            del _assigned[key]
        elif node not in asked and node.op.kind not in (Kind.LEAF, Kind.MOVEMENT):
            waiting[node] = None
    below = set(toposort(asked)) if waiting else ()
    return [node for node in waiting if node in below]


def _computed(node: UOp) -> UOp:
    while node.op in (o.RESHAPE, o.DETACH):
        node = node.src[0]
    return node
