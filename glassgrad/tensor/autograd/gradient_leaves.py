"""Which tensors can have a gradient. In: graph nodes. Out: the live tensors that hold them.

A leaf is a tensor that was made, not computed: from data, by `zeros` or `rand`, by `realize` or `assign`, or one whose
`requires_grad` was set. The registry holds, weakly, which tensors are leaves at a node, so `backward` finds its targets
among the nodes it visits. Nodes are shared when equal; a leaf must not be (two biases of zeros are two parameters), so
constants get a DETACH node with a unique token, which computes nothing; and so does an expression that is assigned.
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
    """A gradient that a jitted call left and that was not read yet: `grad` makes a tensor of it when it is read. So the
    jit can tell without counting references that nothing else holds it."""
    __slots__ = ("_node", "made")

    def __init__(self, node: Callable[[], UOp]):
        self._node = node
        self.made: weakref.ref[Any] | None = None        # the tensor, once it was read

    def tensor(self, owner: Any) -> Any:
        """The gradient of its owner as a tensor."""
        made = owner._with(self._node())
        if (trace := recording()) is not None:
            trace.made.pop()                             # it was there before the call that is traced
        self.made = weakref.ref(made)
        return made


_BUFFER = o.BUFFER
RESET = Leaf()   # in the place of a gradient that was set to None


def distinct(node: UOp) -> UOp:
    """The same value at a unique node, which no equal expression shares."""
    return UOp(o.DETACH, node.dtype, (node,), Leaf())


def own_node(node: UOp) -> UOp:
    """A node of the same value for a leaf that was assigned an expression: an equal expression is another node, and a
    gradient passes from the leaf to what it was computed from."""
    return node if node.dtype.kind != "f" or node.op.kind is o.Kind.LEAF or node.op is o.DETACH else separate(node)


def separate(node: UOp) -> UOp:
    """The same value at a unique node, from which gradients pass to the other."""
    return UOp(o.DETACH, node.dtype, (node, node), OwnGradient(lambda g, out, x: (g,)))


def distinct_copy(node: UOp) -> UOp:
    """The same value at a unique node, which gradients pass as they pass this one: two tensors that were assigned equal
    expressions are two leaves, and a gradient reaches what both were computed from."""
    computed = node.arg.written_out(node.src) if node.op is o.FORMULA else node
    if computed.op.kind is o.Kind.LEAF or computed.op is o.GRADIENT or computed.op not in GRADIENTS:
        return distinct(node)
    rule = GRADIENTS[computed.op]                        # a function of its own for each copy: equal only to itself
    return UOp(o.DETACH, node.dtype, (node, *computed.src), OwnGradient(lambda g, out, *src: rule(g, computed, *src)))


def hold(tensor: Any) -> None:
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
    """Whether a node is what every `detach` of its source is: no leaf's own."""
    return node.op is o.DETACH and node.arg is None


def is_held(tensor: Any) -> bool:
    """Whether this tensor is a leaf."""
    node = tensor.uop
    if node.op is not _BUFFER and id(node) not in registry.leaves.rows:          # most nodes are computed
        return False
    return id(tensor) in map(id, _alive(registry.leaves_of(node)))


def is_only_leaf(tensor: Any) -> bool:
    """Whether this tensor is the only leaf at its node, shares no storage, and no `no_grad` block or trace is open:
    then `hold` would change nothing."""
    if tensor._storage is not None or no_grad.open_blocks:
        return False
    known = registry.leaves_of(tensor.uop)
    return known is not None and len(known) == 1 and known[0]() is tensor


def holders(nodes: Collection[UOp]) -> list[Any]:
    """The live leaf tensors among these nodes: first those at BUFFERs, each kind in the nodes' order."""
    listed = [(n, n.arg.leaves) for n in nodes if n.op is _BUFFER and n.arg.leaves] + registry.leaves.among(nodes)
    return [t for node, known in listed for r in known if (t := r()) is not None and t.uop is node]


def leaf_shared(node: UOp, tensor: Any) -> bool:
    """Whether another live tensor is a leaf at a node."""
    return any([t is not tensor and t.uop is node for t in _alive(registry.leaves_of(node))])


def computed_at(node: UOp, tensor: Any) -> None:
    """Move a tensor to the node of its computed value: it is a leaf there, and still one at its earlier node."""
    earlier = tensor.uop
    if tensor._requires_grad is not False:
        # equal values share one buffer; their gradients must not: two parameters of zeros stay two leaves
        if (node.op is not _BUFFER or node.arg.leaves) and leaf_shared(node, tensor):
            node = distinct(node)
        if node is not earlier and is_held(tensor):
            still_a_leaf(tensor, earlier)
    tensor.uop = node
    hold(tensor)


def _alive(references: Tensors | None) -> list[Any]:
    return [] if references is None else [t for r in references if (t := r()) is not None]


def still_a_leaf(tensor: Any, earlier: UOp) -> None:
    """Record that a tensor that moved to another node (it was realized, or a layer shortened the rows of its table)
    still gets the gradients that reach its earlier node."""
    registry.add(registry.former, earlier, tensor)


def has_another_value(tensor: Any, earlier: UOp) -> None:
    """Record that a tensor was given a new value: what was computed from the earlier one has lost its leaf."""
    note_written(tensor, earlier)
    if tensor._requires_grad is True and tensor.uop is not earlier and any(
            t is tensor for t in _alive(registry.leaves_of(earlier))):
        registry.add(registry.replaced, earlier, tensor)


def refuse_replaced(root: UOp, order: Sequence[UOp]) -> None:
    """Raise if a gradient reaches a tensor's earlier value, since replaced: neither dropping it nor adding it to that
    of the new value would be right. `order`: the nodes below the root."""
    lost = {node: t for node, known in registry.replaced.among(order) for t in _alive(known) if t.uop is not node
            and all(other is not t for other in _alive(registry.former.get(node)))}
    if lost:
        # a new value that is not computed yet may have been made from the old one: no gradient passes a leaf
        for node in toposort([root], lambda n: () if n is not root and holders((n,)) else passes_to(n)):
            if node in lost and node.dtype.kind == "f" and not holders((node,)):      # unless another leaf is there
                raise GradientError("a tensor got a new value between a computation and its backward()",
                                    given=f"a tensor of shape {lost[node].shape} with requires_grad=True",
                                    expected="backward() before the tensor is assigned to",
                                    fix="move the assignment behind backward(), or compute the loss anew")


def leaves_among(nodes: Sequence[UOp]) -> list[tuple[UOp, Any]]:
    """(node, tensor) for every live leaf among these nodes: the gradient at the node belongs to the tensor. A tensor
    that moved to another node comes with its former nodes too, unless its value was computed from them since."""
    found = [(t.uop, t) for t in holders(nodes)]
    for node, known in registry.former.among(nodes):
        moved = {id(t): t for t in _alive(known)}.values()
        found.extend((node, t) for t in moved if node not in reached_from([t.uop]))
    return found


def cut_off(node: UOp) -> None:
    """Record that a jitted call made this value: the graph behind it is gone, and no gradient can pass."""
    registry.jitted.set(node.base, True)


def is_cut_off(node: UOp) -> bool:
    """Whether a jitted call made this value, so that no gradient can pass."""
    return id(node) in registry.jitted.rows


def refuse_cut_off(root: UOp) -> None:
    """Raise if a gradient would stop at the result of a jitted call, and so be incomplete."""
    if len(registry.jitted) and any(map(is_cut_off, toposort([root]))):
        for node in filter(is_cut_off, reached_from([root])):
            raise GradientError("a gradient cannot go back through a jitted call",
                                given=f"{node.dtype.name} values of shape {node.shape} that a jitted function computed "
                                "from tensors with requires_grad=True", expected="backward() in the same function",
                                fix="call backward() inside it, or let it return, or keep, value.detach()")


# -- losses --------------------------------------------------------------------------------------------------
def started_from(tensor: Any, gradients: Sequence[Any]) -> None:
    """Record that `backward` started at this tensor, to be computed along with the gradients: computed alone, it would
    repeat the forward pass, and keep the old parameters alive until then."""
    registry.losses.set(tensor.uop, weakref.ref(tensor))
    made_together(tensor.uop, gradients)


def made_together(root: UOp, gradients: Sequence[Any]) -> None:
    """Record these tensors as gradients of one value, to be computed together while they are alive."""
    if len(gradients) > 1:
        registry.gradients.set(root, [*map(weakref.ref, gradients)])


def take_started() -> list[Any]:
    """Return and forget the live tensors that `backward` started from; the caller computes them."""
    found = _alive([reference for _, reference in registry.losses.rows.values()])
    registry.losses.rows.clear()
    return found


def gradients_beside(node: UOp, device: str) -> list[UOp]:
    """The lazy gradients that `gradient` returned, or `backward` left on trained tensors (requires_grad=True), together
    with one that this node is computed from, or that were left by a `backward` from the node itself: nearly always all
    of them are wanted, and each computed by itself would repeat the forward and the backward pass."""
    started = {below_reshapes(t.uop): t.uop for t in _alive([loss for _, loss in registry.losses.rows.values()])}
    below = toposort([node], lambda n: () if n in registry.values else n.src)
    roots = {n.src[1] for n in below if n.op is o.GRADIENT and n not in registry.values}
    if node in started:
        roots.add(started[node])
    trained = [t for _, t in leaves_among(toposort(roots)) if t._requires_grad is True]
    grads = [t._grad for t in trained if hasattr(t._grad, "uop")]                # else none, or one that is computed
    grads += [t for root in roots for t in _alive(registry.gradients.get(root))]
    wanted = [below_reshapes(t.uop) for t in grads]
    wanted += [value for value, root in started.items() if root in roots]        # the losses, which cost no more now
    return [n for n in dict.fromkeys(wanted) if n is not node and n not in registry.values
            and n.op.kind not in (o.Kind.MOVEMENT, o.Kind.LEAF)
            and (n.device or device) == device]


# -- new values ----------------------------------------------------------------------------------------------
def assigned(tensor: Any) -> None:
    """Record that this tensor was given a new value, to be stored along with what is computed from it: else reading a
    cache that a token was written into would repeat the whole pass."""
    registry.assigned[id(tensor)] = weakref.ref(tensor)


def assigned_within(nodes: Sequence[UOp], device: str) -> list[Any]:
    """The assigned tensors whose values, not computed yet, are to be computed along with these nodes: those that the
    nodes are computed from and, outside of a trace, those that are computed from anything that the nodes are. So an
    update by hand, `w -= rate * w.grad`, is computed with the loss that is read after it; left alone, every update
    would be computed again by the next one."""
    wanted = set(map(below_reshapes, nodes))
    waiting: dict[UOp, Any] = {}
    for key, reference in list(registry.assigned.items()):
        tensor = reference()
        node = below_reshapes(tensor.uop) if tensor is not None else None
        if node is None or node.base.op is o.BUFFER or node in registry.values:
            registry.assigned.pop(key, None)              # another thread may have been faster
        elif node not in wanted and node.op.kind not in (o.Kind.LEAF, o.Kind.MOVEMENT):
            waiting[node] = tensor
    if not waiting:
        return []

    def computed_from(node: UOp) -> Sequence[UOp]:
        return () if node in registry.values else node.src

    below = set(toposort(wanted, computed_from))
    read = {n for n in below if n.op is o.BUFFER or n in registry.values} if recording() is None else set()
    return [tensor for node, tensor in waiting.items() if node in below or
            tensor.device == device and not read.isdisjoint(toposort([node], computed_from))]


def settle(tensor: Any) -> None:
    """Move an assigned tensor whose value is known to its memory, unless a gradient passes it: else the expressions of
    all its earlier values would be kept."""
    node = tensor.uop
    if recording() is None and not any(t is not tensor and t._requires_grad is not False
                                       for _, t in leaves_among(toposort([node], passes_to))):
        tensor.realize()
