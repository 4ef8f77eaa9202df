"""Find the tensors that can have a gradient. In: graph nodes. Out: the live tensors that hold them.

A leaf is a tensor that was made, not computed: from data, by `zeros` or `rand`, by `realize` or `assign`, or one whose
`requires_grad` was set. The registry holds, by weak references, which tensors are leaves at a node, so that `backward`
finds its targets among the nodes it visits. Nodes are shared when they are equal, but leaves must not be: two biases of
zeros are two parameters. So constants, and expressions that are assigned to a tensor, get a DETACH node with a unique
token, which computes nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

from glassgrad.base.errors import GradientError
from glassgrad.compiler.graph import OwnGradient, UOp, ops as o, toposort
from glassgrad.compiler.graph.gradient import GRADIENTS, passes_to, reached_from
from glassgrad.engine.capture import note_written, recording
from glassgrad.engine.in_place import without_history
from glassgrad.engine.realize import below_reshapes
from glassgrad.engine.registry import Tensors, registry
from glassgrad.tensor.autograd import no_grad


class Leaf:
    """A token, equal only to itself."""
    __slots__ = ()

    def __repr__(self) -> str:
        return "leaf"


class UnreadGradient:
    """A gradient that a jitted call left and that was not read yet; reading `grad` makes a tensor of it. So the jit
    knows, without counting references, that nothing else holds the gradient."""
    __slots__ = ("_node", "made")

    def __init__(self, node: Callable[[], UOp]):
        self._node = node
        self.made: weakref.ref[Any] | None = None        # the tensor, once it was read

    def tensor(self, owner: Any) -> Any:
        """Return the gradient of its owner as a tensor."""
        made = owner._with(self._node())
        if (trace := recording()) is not None:
            trace.made.pop()                             # the gradient existed before the call that is traced
        self.made = weakref.ref(made)
        return made


MOST_UNREAD_NODES = 256     # of an assigned value's expression: from then on it is computed, so that it grows no more
_BUFFER = o.BUFFER
_VIEWS = frozenset((*o.MOVEMENT, o.DETACH))
RESET = Leaf()   # stands for a gradient that was set to None


def distinct(node: UOp) -> UOp:
    """Return the same value at a unique node, which no equal expression shares."""
    return UOp(o.DETACH, node.dtype, (node,), Leaf())


def own_node(node: UOp) -> UOp:
    """Return a node of the same value for a leaf that was assigned an expression. It differs from the node of an equal
    expression, and a gradient passes on to what the value was computed from."""
    return node if node.dtype.kind != "f" or node.op.kind is o.Kind.LEAF or node.op is o.DETACH else separate_node(node)


def separate_node(node: UOp) -> UOp:
    """Return the same value at a unique node, from which gradients pass on to the given node."""
    return UOp(o.DETACH, node.dtype, (node, node), OwnGradient(lambda g, out, x: (g,)))


def distinct_copy(node: UOp) -> UOp:
    """Return the same value at a unique node, with the same sources for gradients: two tensors that were assigned equal
    expressions are two leaves, and a gradient of either reaches what both were computed from."""
    computed = node.arg.written_out(node.src) if node.op is o.FORMULA else node
    if computed.op.kind is o.Kind.LEAF or computed.op is o.GRADIENT or computed.op not in GRADIENTS:
        return distinct(node)
    rule = GRADIENTS[computed.op]                        # each copy has a lambda of its own, so no two are equal
    return UOp(o.DETACH, node.dtype, (node, *computed.src), OwnGradient(lambda g, out, *src: rule(g, computed, *src)))


def register_leaf(tensor: Any) -> None:
    """Register this tensor, by a weak reference, as a leaf at its node: in the buffer, if the node is one."""
    if no_grad.open_blocks:
        note_written(tensor)
    node = tensor.uop
    if node.op is _BUFFER:
        node.arg.add_leaf(weakref.ref(tensor))
        return
    if is_detached(node):
        tensor.uop = node = distinct(without_history(node.src[0]))
        assigned(tensor)
    registry.add(registry.leaves, node, tensor)


def is_detached(node: UOp) -> bool:
    """Return whether a node is one that `detach` makes, and that all detached copies of its source share."""
    return node.op is o.DETACH and node.arg is None


def is_leaf(tensor: Any) -> bool:
    """Return whether this tensor is a leaf."""
    node = tensor.uop
    if node.op is not _BUFFER and id(node) not in registry.leaves.rows:          # the common case: a computed node
        return False
    return id(tensor) in map(id, _alive(registry.leaves_of(node)))


def is_only_leaf(tensor: Any) -> bool:
    """Return whether `register_leaf` would change nothing: this tensor is the only leaf at its node, shares no storage,
    and no `no_grad` block or trace is open."""
    if tensor._storage is not None or no_grad.open_blocks:
        return False
    known = registry.leaves_of(tensor.uop)
    return known is not None and len(known) == 1 and known[0]() is tensor


def live_leaves(nodes: Collection[UOp]) -> list[Any]:
    """Return the live leaf tensors among these nodes: first those at BUFFERs, then the others, each in the nodes'
    order."""
    listed = [(n, n.arg.leaves) for n in nodes if n.op is _BUFFER and n.arg.leaves] + registry.leaves.among(nodes)
    return [t for node, known in listed for r in known if (t := r()) is not None and t.uop is node]


def leaf_shared(node: UOp, tensor: Any) -> bool:
    """Return whether another live tensor is a leaf at a node."""
    return any([t is not tensor and t.uop is node for t in _alive(registry.leaves_of(node))])


def move_to_value(node: UOp, tensor: Any) -> None:
    """Move a tensor to the node of its computed value. It becomes a leaf there, and stays a leaf at its earlier node if
    it was one."""
    earlier = tensor.uop
    if tensor._requires_grad is not False:
        # equal values share one buffer; their gradients must not: two parameters of zeros stay two leaves
        if (node.op is not _BUFFER or node.arg.leaves) and leaf_shared(node, tensor):
            node = distinct(node)
        if node is not earlier and is_leaf(tensor):
            note_former_node(tensor, earlier)
    tensor.uop = node
    register_leaf(tensor)


def _alive(references: Tensors | None) -> list[Any]:
    return [] if references is None else [t for r in references if (t := r()) is not None]


def note_former_node(tensor: Any, earlier: UOp) -> None:
    """Record that a tensor that moved to another node (because it was realized, or because a layer shortened its table)
    still gets the gradients that reach its earlier node."""
    registry.add(registry.former, earlier, tensor)


def note_new_value(tensor: Any, earlier: UOp) -> None:
    """Record that a tensor was given a new value, so that what was computed from its earlier value has lost
    its leaf."""
    note_written(tensor, earlier)
    if tensor._requires_grad is True and tensor.uop is not earlier and any(
            t is tensor for t in _alive(registry.leaves_of(earlier))):
        registry.add(registry.replaced, earlier, tensor)


def refuse_replaced(root: UOp, order: Sequence[UOp]) -> None:
    """Raise if a gradient reaches an earlier value of a tensor that was given a new one since: neither dropping that
    gradient nor adding it to the new value's gradient would be right. `order` are the nodes below the root."""
    lost = {node: t for node, known in registry.replaced.among(order) for t in _alive(known) if t.uop is not node
            and all(other is not t for other in _alive(registry.former.get(node)))}
    if lost:
        # stop at leaves, which no gradient passes: a new value, not computed yet, may have been made from the old one
        for node in toposort([root], lambda n: () if n is not root and live_leaves((n,)) else passes_to(n)):
            if node in lost and node.dtype.kind == "f" and not live_leaves((node,)):      # no other leaf is there
                raise GradientError("a tensor got a new value between a computation and its backward()",
                                    given=f"a tensor of shape {lost[node].shape} with requires_grad=True",
                                    expected="backward() before the tensor is assigned to",
                                    fix="move the assignment behind backward(), or compute the loss anew")


def leaves_among(nodes: Sequence[UOp]) -> list[tuple[UOp, Any]]:
    """Return (node, tensor) for every live leaf among these nodes: the gradient at the node belongs to the tensor. A
    tensor that moved to another node is returned with its former nodes too, unless its present value was computed from
    them."""
    found = [(t.uop, t) for t in live_leaves(nodes)]
    for node, known in registry.former.among(nodes):
        moved = {id(t): t for t in _alive(known)}.values()
        found.extend((node, t) for t in moved if node not in reached_from([t.uop]))
    return found


def cut_off(node: UOp) -> None:
    """Record that a jitted call made this value: the graph behind it is gone, so no gradient can pass."""
    registry.jitted.set(node.base, True)


def is_cut_off(node: UOp) -> bool:
    """Return whether a jitted call made this value, so that no gradient can pass."""
    return id(node) in registry.jitted.rows


def refuse_cut_off(root: UOp) -> None:
    """Raise if a gradient would stop at the result of a jitted call and so be incomplete."""
    if len(registry.jitted) and any(map(is_cut_off, toposort([root]))):
        for node in filter(is_cut_off, reached_from([root])):
            raise GradientError("a gradient cannot go back through a jitted call",
                                given=f"{node.dtype.name} values of shape {node.shape} that a jitted function computed "
                                "from tensors with requires_grad=True", expected="backward() in the same function",
                                fix="call backward() inside it, or let it return, or keep, value.detach()")


# -- losses --------------------------------------------------------------------------------------------------
def note_backward(tensor: Any, gradients: Sequence[Any]) -> None:
    """Record that `backward` started at this tensor, so that it is computed together with the gradients. Computed by
    itself, it would repeat the forward pass, and keep the old parameters alive until then."""
    registry.losses.set(tensor.uop, weakref.ref(tensor))
    note_gradients_of(tensor.uop, gradients)


def note_gradients_of(root: UOp, gradients: Sequence[Any]) -> None:
    """Record these tensors as gradients of one value, which are computed together while they are alive."""
    if len(gradients) > 1:
        registry.gradients.set(root, [*map(weakref.ref, gradients)])


def take_losses() -> list[Any]:
    """Return and forget the live tensors that `backward` started from; the caller computes them."""
    found = _alive([reference for _, reference in registry.losses.rows.values()])
    registry.losses.rows.clear()
    return found


def gradients_beside(node: UOp, device: str) -> list[UOp]:
    """Return the lazy gradients to compute together with a node. They are the gradients that `gradient` returned, or
    that `backward` left on tensors with requires_grad=True, and that belong to one that this node is computed from, or
    to a `backward` from the node itself. Usually all of them are wanted, and computing each by itself would repeat the
    forward and the backward pass."""
    started = {below_reshapes(t.uop): t.uop for t in _alive([loss for _, loss in registry.losses.rows.values()])}
    below = toposort([node], lambda n: () if n in registry.values else n.src)
    roots = {n.src[1] for n in below if n.op is o.GRADIENT and n not in registry.values}
    if node in started:
        roots.add(started[node])
    trained = [t for _, t in leaves_among(toposort(roots)) if t._requires_grad is True]
    grads = [t._grad for t in trained if hasattr(t._grad, "uop")]                # others are None, or computed
    grads += [t for root in roots for t in _alive(registry.gradients.get(root))]
    wanted = [below_reshapes(t.uop) for t in grads]
    wanted += [value for value, root in started.items() if root in roots]        # losses cost nothing extra here
    return [n for n in dict.fromkeys(wanted) if n is not node and n not in registry.values
            and n.op.kind not in (o.Kind.MOVEMENT, o.Kind.LEAF)
            and (n.device or device) == device]


# -- new values ----------------------------------------------------------------------------------------------
def assigned(tensor: Any, earlier: UOp | None = None) -> None:
    """Record that this tensor was given a new value, so that it is stored when something computed from it is. Otherwise
    reading a cache that a token was written into would repeat the whole pass. `earlier` is the node of the value
    before, which counts as unread if it was assigned too and is not computed yet."""
    known, unread = registry.assigned.get(id(tensor), (None, 0))
    is_unread = earlier is not None and known is not None and known() is tensor and not _is_known(earlier)
    registry.assigned[id(tensor)] = weakref.ref(tensor), unread + 1 if is_unread else 1


def _is_known(node: UOp) -> bool:
    below = below_reshapes(node)
    return below.op is o.BUFFER or node in registry.values or below in registry.values


def has_long_expression(tensor: Any) -> bool:
    """Return whether a tensor was given values again and again, none of them read, so that its expression is long. It
    is measured at the second, fourth, eighth, .. value in a row, so that this takes no more time than to make it."""
    _, unread = registry.assigned.get(id(tensor), (None, 0))
    if unread < 2 or unread & (unread - 1) or recording() is not None or tensor.uop.symbolic:
        return False
    return len(toposort([tensor.uop], lambda n: () if n in registry.values else n.src)) >= MOST_UNREAD_NODES


def has_initial_value(tensor: Any) -> None:
    """Record that this tensor is a parameter, so that the first run that needs its initial value stores it. Otherwise
    each forward pass of an untrained layer would draw the same random numbers again."""
    known, _ = registry.assigned.get(id(tensor), (None, 0))
    if (known is None or known() is not tensor) and tensor.uop.below(_VIEWS).op.kind is not o.Kind.LEAF:
        registry.assigned[id(tensor)] = weakref.ref(tensor), 0


def assigned_within(nodes: Sequence[UOp], device: str) -> list[Any]:
    """Return the tensors whose values, not computed yet, are to be computed along with these nodes: parameters and
    assigned tensors that the nodes are computed from and, outside of a trace, assigned tensors that are computed from
    values that the nodes read. So an update by hand, `w -= rate * w.grad`, is computed together with the loss that is
    read after it; otherwise the next update would compute it again."""
    wanted = set(map(below_reshapes, nodes))
    waiting: dict[UOp, tuple[Any, bool]] = {}             # node -> its tensor, and whether that was assigned it
    for key, (reference, values) in list(registry.assigned.items()):
        tensor = reference()
        node = below_reshapes(tensor.uop) if tensor is not None else None
        if node is None or node.base.op is o.BUFFER or node in registry.values:
            registry.assigned.pop(key, None)              # another thread may have been faster
        elif node not in wanted and node.op.kind not in (o.Kind.LEAF, o.Kind.MOVEMENT):
            waiting[node] = tensor, values > 0
    if not waiting:
        return []

    def computed_from(node: UOp) -> Sequence[UOp]:
        return () if node in registry.values else node.src

    below = set(toposort(wanted, computed_from))
    read = {n for n in below if n.op is o.BUFFER or n in registry.values} if recording() is None else set()
    return [tensor for node, (tensor, is_update) in waiting.items() if node in below or is_update and
            tensor.device == device and not read.isdisjoint(toposort([node], computed_from))]


def settle(tensor: Any) -> None:
    """Move an assigned tensor whose value is known to its memory, unless a gradient passes it. Otherwise the
    expressions of all its earlier values would be kept."""
    node = tensor.uop
    if recording() is None and not any(t is not tensor and t._requires_grad is not False
                                       for _, t in leaves_among(toposort([node], passes_to))):
        tensor.realize()
