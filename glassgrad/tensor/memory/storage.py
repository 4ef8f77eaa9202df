"""What a tensor and its views share. In: tensors, nodes. Out: `TensorStorage`, the tensors that show one value.

A view shows elements of another tensor, and a write through any of them is seen by all of them; docs/design/
views_and_memory.md says which tensors see a write. Nodes never change, so a write makes a new value of the whole, and
every live tensor of the storage gets the node that shows its part of that. Each holds the movement ops ("steps") that
lead there; bits read as another type are a step too.
Does not know how a part is replaced: methods/assignment.py does that.
"""

from __future__ import annotations

import math
from collections.abc import Set
from typing import Any
from weakref import ref

from glassgrad.base.errors import Bug, InputError
from glassgrad.compiler.graph import DType, UOp, ops as o
from glassgrad.compiler.graph.view import ShapeTracker, View
from glassgrad.tensor.formulas.bitcast import reread

Step = tuple[o.Op, Any]        # a movement op (or DETACH) and its argument; BITCAST and the types before and after
_FEW = 8                                     # members that are listed before dead ones are dropped
_ONE_TO_ONE = frozenset((o.RESHAPE, o.PERMUTE, o.SHRINK, o.FLIP, o.DETACH))


class TensorStorage:
    """The live tensors that show one value: it itself, and views of it."""
    __slots__ = ("members", "written", "_kept")

    def __init__(self) -> None:
        self.members: list[ref[Any]] = []
        self.written = False                 # a write made the present value: its tensor is computed before its views
        self._kept: UOp | None = None        # the whole, where no member leads to it any more

    def live(self) -> list[Any]:
        """The tensors that show it now."""
        return [t for t in (m() for m in self.members) if t is not None and t._storage is self]

    def add(self, tensor: Any) -> None:
        """One more tensor shows it."""
        members = self.members
        if len(members) >= _FEW:
            members[:] = [m for m in members if m() is not None]
        members.append(ref(tensor))

    def owners(self) -> list[Any]:
        """The live tensors that show the whole."""
        return [t for t in self.live() if not t._steps]

    def whole(self) -> UOp:
        """The present value of all of it."""
        members = sorted(self.live(), key=lambda member: bool(member._steps))          # first those that show all of it
        roots = [_undone(member.uop, member._steps) for member in members]
        found = next((root for root in (*roots, self._kept) if root is not None), None)
        if found is None:
            raise Bug("a storage whose value no tensor leads to")
        return found

    def keep(self) -> None:
        """A view is about to get memory of its own: hold the whole, unless a tensor that shows it all lives."""
        if not self.owners():
            self._kept = self.whole()

    def forget(self) -> None:
        """The members lead to the whole again."""
        self._kept = None


def storage_of(tensor: Any) -> TensorStorage | None:
    """The storage that a tensor shares; None for one that was never viewed."""
    return tensor._storage  # type: ignore[no-any-return]


def is_shared(tensor: Any) -> bool:
    """Whether another live tensor shows the same storage."""
    storage = tensor._storage
    if storage is None or len(storage.members) == 1:
        return False
    live = storage.live()
    storage.members = [ref(member) for member in live]          # without views that are gone: the next look is short
    return any(other is not tensor for other in live)


def is_view(tensor: Any) -> bool:
    """Whether a tensor shows a part of another live one, or all of it, so that assigning to it changes that one."""
    return is_shared(tensor) and bool(tensor._steps)


def follows(tensor: Any) -> bool:
    """Whether a tensor is a view of a live one: giving that a value gives this one its own."""
    storage = tensor._storage
    return storage is not None and bool(tensor._steps) and bool(storage.owners())


def shares_with(tensor: Any, others: Set[int]) -> bool:
    """Whether a tensor shows the storage of another that is among these, given by id."""
    storage = tensor._storage
    return storage is not None and any(id(other) in others for other in storage.live() if other is not tensor)


def share(view: Any, source: Any, bits: UOp | None = None) -> None:
    """`view`, whose node is movement ops over that of `source`, shows the storage of `source` from now on. Where they
    are over `bits`, that is the node of `source` read as another type."""
    storage = source._storage
    if storage is None:
        storage = source._storage = TensorStorage()
        source._steps = ()
        storage.members.append(ref(source))
    view._storage = storage
    if bits is None:
        view._steps = source._steps + _steps(view.uop, source.uop)
    else:
        types = (source.uop.dtype, bits.dtype)
        view._steps = (*source._steps, (o.BITCAST, types), *_steps(view.uop, bits))
    storage.add(view)


def leave(tensor: Any) -> None:
    """The tensor has a value of its own from now on."""
    tensor._storage = None


def _steps(node: UOp, below: UOp) -> tuple[Step, ...]:
    if node.src and node.src[0] is below:        # nearly always
        return ((node.op, node.arg),)
    found: list[Step] = []
    while node is not below:
        if not node.src:
            raise Bug(f"{node} does not lead to the tensor that it is a view of")
        found.append((node.op, node.arg))
        node = node.src[0]
    found.reverse()
    return tuple(found)


def _undone(node: UOp, steps: tuple[Step, ...]) -> UOp | None:
    """The node below some steps; None where the node is not that."""
    for op, arg in reversed(steps):
        if op is o.BITCAST:
            below = _read_as_bits(node, *arg)
            if below is None:
                return None
            node = below
        elif node.op is not op or node.arg != arg:
            return None
        else:
            node = node.src[0]
    return node


def _read_as_bits(node: UOp, before: DType, after: DType) -> UOp | None:
    """The node whose bits `node` shows as another type; None where it shows none. Equal nodes are one object, so it is
    the one that gives `node` when it is read as that type."""
    nbytes = math.prod(node.shape) * after.itemsize
    below = node
    while below.src:
        below = below.src[0]
        fits = below.dtype is before and math.prod(below.shape) * before.itemsize == nbytes
        if fits and len(below.shape) == len(node.shape) and reread(below, after) is node:
            return below
    return None


def applied(steps: tuple[Step, ...], node: UOp, cuts: bool = True) -> UOp:
    """The steps over a node; without those that only end gradients, where `cuts` is False."""
    for op, arg in steps:
        if op is o.BITCAST:
            node = reread(node, arg[1])
        elif cuts or op is not o.DETACH:
            node = UOp(op, node.dtype, (node,), arg)
    return node


def refuse_repeated(steps: tuple[Step, ...], numbers: UOp) -> None:
    """Raise where a view shows an element of its tensor more than once, or none. `numbers` are the steps over the
    number of each element."""
    if all(op in _ONE_TO_ONE for op, _ in steps):
        return
    if all(op.kind == o.Kind.MOVEMENT or op is o.DETACH for op, _ in steps) and not numbers.symbolic and all(
            map(_one_to_one, ShapeTracker.of(numbers).simplify().views)):
        return
    raise InputError("this view cannot be written: several of its elements are one element of its tensor",
                     given=f"a view of shape {numbers.shape}, made by {', '.join(op.name for op, _ in steps)}",
                     expected="a view that shows each element once",
                     fix="write to the tensor itself, or to a copy: view = view.clone()")


def _one_to_one(view: View) -> bool:
    """Whether no two elements of a view have one address."""
    reach = 0
    for stride, n in sorted((abs(s), n) for s, n in zip(view.strides, view.shape) if n > 1):
        if stride <= reach:
            return False
        reach += stride * (n - 1)
    return view.mask is None
