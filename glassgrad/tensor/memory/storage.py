"""Keep track of what a tensor and its views share. In: tensors, nodes. Out: `TensorStorage`, the tensors that show one
value.

A view shows elements of another tensor, and all of them see a write through any one; docs/design/views_and_memory.md
says which tensors see a write. Nodes never change, so a write makes a new node for the whole value, and every live
tensor of the storage gets the node of its part of that. Each tensor holds the movement ops ("steps") that lead from the
whole value to its part; a bitcast is a step too. Does not know how a part is replaced: methods/assignment.py does that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Any
from weakref import ref

from glassgrad.base.errors import Bug, InputError
from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.graph.view import ShapeTracker, View
from glassgrad.tensor.formulas.bitcast import reread

Step = tuple[o.Op, Any]        # (movement op or DETACH, its argument), or (BITCAST, the types before and after)
_FIRST_SWEEP = 8                             # number of listed members at which dead ones are first dropped
_ONE_TO_ONE = frozenset((o.RESHAPE, o.PERMUTE, o.SHRINK, o.FLIP, o.DETACH))


class TensorStorage:
    """The live tensors that show one value: all of it, or views of it."""
    __slots__ = ("shape", "dtype", "members", "written", "_whole", "_kept", "_next_sweep")

    def __init__(self, node: UOp) -> None:
        self.shape, self.dtype = node.shape, node.dtype
        self.members: list[ref[Any]] = []
        self.written = False                 # whether a write made the present value, to be computed before its views
        self._whole = ref(node)              # the node of the whole present value, which the nodes of its views keep
        self._kept: UOp | None = None        # the same node, if no member's node leads to it any more
        self._next_sweep = _FIRST_SWEEP

    def live(self) -> list[Any]:
        """Return the members that are alive."""
        return [t for t in (m() for m in self.members) if t is not None and t._storage is self]

    def add(self, tensor: Any) -> None:
        """Add a member; drop dead ones whenever the list is twice as long as it was after the last time."""
        members = self.members
        if len(members) >= self._next_sweep:
            members[:] = [m for m in members if m() is not None]
            self._next_sweep = max(_FIRST_SWEEP, 2 * len(members))
        members.append(ref(tensor))

    def owners(self) -> list[Any]:
        """Return the live members that show the whole value."""
        return [t for t in self.live() if not t._steps]

    def note(self, whole: UOp) -> None:
        """Record the node of the whole present value."""
        self._whole, self._kept = ref(whole), None

    def whole(self) -> UOp | None:
        """Return the node of the whole present value; None if the tensor that showed it is gone, and each view had been
        computed into separate memory before."""
        owners = self.owners()
        return owners[0].uop if owners else self._whole()

    def keep(self) -> None:
        """Hold the whole value before a view gets separate memory, unless a live tensor shows all of it."""
        if not self.owners():
            self._kept = self._whole()


class CopiedMembers:
    """The copies that one call of `copy.deepcopy` made of members of a storage. The first is a tensor of its own. As
    soon as there is another one, both become views of a copy of the whole value."""

    def __init__(self, storage: TensorStorage) -> None:
        self.storage = storage               # kept alive, as its id names this object in the memo of `deepcopy`
        self.pairs: list[tuple[Any, Any]] = []
        self.owner: Any = None               # the tensor that shows the whole copy

    def add(self, member: Any, twin: Any, copy_whole: Callable[[], Any]) -> None:
        """Add the copy of a member. `copy_whole` copies the whole value, if no member that was copied shows it."""
        self.pairs.append((member, twin))
        if len(self.pairs) == 1:
            return
        if self.owner is None:
            shown = [twin for member, twin in self.pairs if not member._steps]
            self.owner = shown[0] if shown else copy_whole()
            joining = self.pairs
        else:
            joining = self.pairs[-1:]
        for member, twin in joining:
            if twin is not self.owner:
                show_part(twin, self.owner, member._steps)


def storage_of(tensor: Any) -> TensorStorage | None:
    """Return the storage that a tensor shares; None if it was never viewed."""
    return tensor._storage  # type: ignore[no-any-return]


def is_shared(tensor: Any) -> bool:
    """Return whether another live tensor shows the same storage."""
    storage = tensor._storage
    if storage is None or len(storage.members) == 1:
        return False
    live = storage.live()
    storage.members = [ref(member) for member in live]          # drop dead views, for the next call
    return any(other is not tensor for other in live)


def is_view(tensor: Any) -> bool:
    """Return whether a tensor is a view (of a part or all) of another live tensor, so that assigning to it changes
    both."""
    return is_shared(tensor) and (bool(tensor._steps) or tensor._storage.live()[0] is not tensor)


def follows(tensor: Any) -> bool:
    """Return whether a tensor is a view whose owner is alive, so that it gets a new node whenever the owner does."""
    storage = tensor._storage
    return storage is not None and bool(tensor._steps) and bool(storage.owners())


def shares_with(tensor: Any, others: Set[int]) -> bool:
    """Return whether a tensor shares its storage with one of `others`, given by id."""
    storage = tensor._storage
    return storage is not None and any(id(other) in others for other in storage.live() if other is not tensor)


def sharing(tensors: Iterable[Any]) -> list[list[int]]:
    """Return the groups of tensors that share a storage, each as a list of their numbers."""
    groups: dict[int, list[int]] = {}
    for number, tensor in enumerate(tensors):
        if tensor._storage is not None:
            groups.setdefault(id(tensor._storage), []).append(number)
    return [numbers for numbers in groups.values() if len(numbers) > 1]


def _begin(owner: Any) -> TensorStorage:
    """Give a tensor that was never viewed a storage."""
    storage = owner._storage = TensorStorage(owner.uop)
    owner._steps = ()
    storage.members.append(ref(owner))
    return storage


def share(view: Any, source: Any, bits: UOp | None = None) -> None:
    """Add `view`, whose node is movement ops over that of `source`, to the storage of `source`. If `bits` is given, it
    is the node of `source` read as another type, and the movement ops are over that."""
    storage = source._storage
    if storage is None:
        storage = _begin(source)
    elif not source._steps and storage._whole() is not source.uop:
        storage.note(source.uop)
    view._storage = storage
    if bits is None:
        view._steps = source._steps + steps_between(source.uop, view.uop)
    else:
        types = (source.uop.dtype, bits.dtype)
        view._steps = (*source._steps, (o.BITCAST, types), *steps_between(bits, view.uop))
    storage.add(view)


def show_part(tensor: Any, owner: Any, steps: tuple[Step, ...]) -> None:
    """Make a tensor a view of another one: what these steps show of it."""
    storage = owner._storage or _begin(owner)
    tensor.uop = applied(steps, owner.uop)
    tensor._storage, tensor._steps = storage, steps
    storage.add(tensor)
    tensor.requires_grad = tensor._requires_grad     # a leaf has a node of its own


def renew(view: Any, owner: Any) -> None:
    """Give a view its part of the present node of the tensor that it is a view of."""
    owner._storage.note(owner.uop)
    view.uop = applied(view._steps, owner.uop)


def leave(tensor: Any) -> None:
    """Take a tensor out of its storage: from now on it has a separate value."""
    tensor._storage = None


def steps_between(below: UOp, node: UOp) -> tuple[Step, ...]:
    """Return the movement ops that lead from one node to another."""
    if node.src and node.src[0] is below:        # the common case
        return ((node.op, node.arg),)
    found: list[Step] = []
    while node is not below:
        if not node.src:
            raise Bug(f"{node} does not lead to the tensor that it is a view of")
        found.append((node.op, node.arg))
        node = node.src[0]
    found.reverse()
    return tuple(found)


def applied(steps: tuple[Step, ...], node: UOp, cuts: bool = True) -> UOp:
    """Return the node after these steps; with `cuts` False, without the DETACH steps."""
    for op, arg in steps:
        if op is o.BITCAST:
            node = reread(node, arg[1])
        elif cuts or op is not o.DETACH:
            node = UOp(op, node.dtype, (node,), arg)
    return node


def refuse_repeated(steps: tuple[Step, ...], numbers: UOp) -> None:
    """Raise if a view shows an element of its tensor more than once, or padding. `numbers` is the linear index of each
    element, after the steps."""
    if 0 in numbers.shape or all(op in _ONE_TO_ONE for op, _ in steps):
        return
    if all(op.kind == o.Kind.MOVEMENT or op is o.DETACH for op, _ in steps) and not numbers.symbolic and all(
            map(_one_to_one, ShapeTracker.of(numbers).simplify().views)):
        return
    raise InputError("this view cannot be written: several of its elements are one element of its tensor",
                     given=f"a view of shape {numbers.shape}, made by {', '.join(op.name for op, _ in steps)}",
                     expected="a view that shows each element once",
                     fix="write to the tensor itself, or to a copy: view = view.clone()")


def _one_to_one(view: View) -> bool:
    """Return whether all elements of a view have different addresses."""
    reach = 0
    for stride, n in sorted((abs(s), n) for s, n in zip(view.strides, view.shape) if n > 1):
        if stride <= reach:
            return False
        reach += stride * (n - 1)
    return view.mask is None
