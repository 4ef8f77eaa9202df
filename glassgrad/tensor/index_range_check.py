"""Check that tensor indices are in range. In: index tensors as they are used. Out: IndexRangeError, when a result is
computed.

Kernels clamp a bad index, so that nothing is read beyond a buffer, and a loss compares a target only with the classes
that exist; this module reports that the index was bad. An index whose values follow from how it is made (a count, a
remainder, random numbers below a limit) needs no check, and one in the host's memory is checked once. For all others,
the run that computes a result also computes the position of the first bad index: one number, which is read after the
run. `CHECK_INDEX=0` switches all of this off, except under SANITIZE, which also names the op and the layer. Inside a
jitted function an index in the host's memory is checked by each run too, because the memory holds other data at each
call; replays read the number again.

The program does not wait for a GPU that works asynchronously: its number comes later (`LateNumbers`), and the error is
raised when the host reads anything from the device, waits for it, or checks another index. With `CHECK_INDEX=2` it
waits for each number.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

from glassgrad.base.errors import Bug, IndexRangeError
from glassgrad.base.settings import settings
from glassgrad.base.source_lines import Place, calls_of, line_of, user_place
from glassgrad.compiler.graph import UOp, const, dtypes, ops as o, sizes_now, toposort
from glassgrad.compiler.graph.axis_dependence import coordinates
from glassgrad.compiler.graph.node import WeakNodeDict
from glassgrad.engine.capture import recording
from glassgrad.engine.registry import registry
from glassgrad.runtime.devices import Device
from glassgrad.tensor.formulas.movement import counting
from glassgrad.tensor.index_value_range import limits, version_of

if TYPE_CHECKING:
    from glassgrad.base.call_tree import Noted


Read = Callable[[Sequence[UOp]], list[memoryview]]      # reads values of nodes; returns [] if they are gone
_LATE = "\nfound after the run that used it; CHECK_INDEX=2 raises it in that call"


class Pick(NamedTuple):
    """One index as the user wrote it, on an axis of a tensor."""
    indices: Any                   # a node; in `watched_nodes` None for the key itself, which would never be freed
    size: int
    axis: int
    from_end: bool = True          # whether -1 means the last element
    of_classes: bool = False       # whether it is the target class of a loss

    @property
    def least(self) -> int:
        return -self.size if self.from_end else 0


class Watched(NamedTuple):
    """An index to check: the user's indices that it is made of, and their limits."""
    picks: tuple[Pick, ...]
    shape: tuple[int, ...]         # of the tensor that is indexed
    limit: Any                     # size of the flattened axes that the kernel's index selects from
    ignored: int | None = None     # a value that means "no element", such as a loss's ignore_index


class Check(NamedTuple):
    """A check to be computed along with a result."""
    node: UOp                      # the GATHER or SCATTER, or the comparison with classes
    indices: UOp                   # the index that the kernel uses: linear, maybe clamped
    watched: Watched
    first_bad: UOp                 # (1,), int32: the first position that is out of range; the size if there is none

    def flag(self, result: UOp) -> Flag:
        """Return the `Flag` that reads the number, given the computed node."""
        return Flag(self, result)

    def passed(self) -> None:
        """Remember that the index is in range: its values do not change, so one check is enough."""
        if registry.reads_foreign(self.indices):
            return                                # another library may write to that memory: check again next time
        _stop_watching(self.indices, self.watched.limit)
        first = self.watched.picks[0].indices
        known = _in_range.get(first) or set()
        known.add(_identity(self.watched))
        _in_range.set(first, known)


# by the index that the kernel uses, and its limit: one index may be used on several tensors
watched_nodes: WeakNodeDict[dict[Any, Watched]] = WeakNodeDict()
# by a node that uses an index in another form: the index and its limit
_used_by: weakref.WeakKeyDictionary[UOp, tuple[UOp, Any]] = weakref.WeakKeyDictionary()
# by the user's index: the limits it was found to be within, with the version of its contents
_in_range: WeakNodeDict[set[Any]] = WeakNodeDict()


def checking() -> bool:
    """Return whether indices are checked now."""
    return bool(settings.CHECK_INDEX or settings.SANITIZE)


# -- which indices to check ----------------------------------------------------------------------------------
def watch(linear: UOp, picks: Sequence[Pick], shape: tuple[int, ...], limit: Any, ignored: int | None = None) -> None:
    """Have this index, which selects from `limit` elements, checked when something is computed with it, unless it
    cannot be out of range. The index is found by the identity of its node, so the lookup must use this node, not an
    equal one."""
    if not checking():
        return
    watched, repeated = Watched(tuple(picks), shape, limit, ignored), recording() is not None
    known_good = _in_range.get(picks[0].indices)       # by the user's index node, which may be used again
    if not repeated and known_good is not None and _identity(watched) in known_good:
        return
    for pick in picks:
        known = limits(pick.indices, stored=not repeated)
        if known[0] < pick.least or known[1] >= pick.size:
            kept = tuple(p._replace(indices=None) if p.indices is linear else p for p in picks)
            watched_nodes.set(linear, {**(watched_nodes.get(linear) or {}), limit: watched._replace(picks=kept)})
            return


def _watched(index: UOp, limit: Any) -> Watched | None:
    """Return what is to be checked of an index; None if nothing is."""
    kept = (watched_nodes.get(index) or {}).get(limit)
    return None if kept is None else kept._replace(
        picks=tuple(p._replace(indices=index) if p.indices is None else p for p in kept.picks))


def _stop_watching(index: UOp, limit: Any) -> None:
    """Forget one check of an index, and the index with the last of them."""
    left = {other: watched for other, watched in (watched_nodes.get(index) or {}).items() if other != limit}
    if left:
        watched_nodes.set(index, left)
    else:
        watched_nodes.pop(index)


def watch_for(user: UOp, index: UOp, limit: Any) -> None:
    """Have a watched index checked when `user`, a node that uses it in another form, is computed."""
    if limit in (watched_nodes.get(index) or ()):
        _used_by[user] = index, limit


def watch_classes(compared: UOp, target: UOp, size: int, axis: int, shape: tuple[int, ...],
                  ignored: int | None) -> None:
    """Have the target classes of a loss checked when their comparison with all classes, `compared`, is computed."""
    if ignored is not None and not target.dtype.min <= ignored <= target.dtype.max:
        ignored = None                               # an unsigned target cannot be -100
    linear = target if ignored is None else target.ne(ignored).where(target, 0)
    watch(linear, [Pick(target, size, axis, False, of_classes=True)], shape, size, ignored)
    watch_for(compared, linear, size)


def watched_by(node: UOp) -> tuple[UOp, Watched] | None:
    """Return the index that is checked when a node is computed, and what is checked, for code that rewrites
    the node."""
    index, limit = _index_of(node)
    watched = None if index is None else _watched(index, limit)
    if index is None or watched is None:
        return None
    return index, watched._replace(picks=_broadcast_picks(watched.picks, index))


def _broadcast_picks(picks: Sequence[Pick], index: UOp) -> tuple[Pick, ...]:
    """Broadcast the user's indices to the kernel's index; those of the same size keep their shape, for messages."""
    return tuple(pick if pick.indices.size == index.size else pick._replace(indices=pick.indices.broadcast(index.shape))
                 for pick in picks)


def _index_of(node: UOp) -> tuple[UOp | None, Any]:
    """Return the index that a node uses, and the number of elements it selects from."""
    if node in _used_by:
        return _used_by[node]
    return (node.src[1], node.src[0].shape[0]) if node.op in (o.GATHER, o.SCATTER) else (None, 0)


def _identity(watched: Watched) -> Any:
    """Return a key for a check. It does not keep nodes alive, and has the version of the contents of an index in
    memory."""
    picks = tuple((weakref.ref(pick.indices), version_of(pick.indices), *pick[1:]) for pick in watched.picks)
    return picks, *watched[1:]


def outside(index: UOp, size: Any) -> UOp:
    """Return whether each index is outside 0 .. size - 1."""
    beyond = (index < size).logical_not()
    return beyond if index.dtype.kind == "u" else (index < 0) | beyond


def from_front(index: UOp, size: int) -> UOp:
    """Add `size` to the indices below 0."""
    negative = index.dtype.kind == "i" and limits(index, stored=False)[0] < 0
    return (index < 0).where(index + size, index) if negative else index


def nearest(index: UOp, size: int) -> UOp:
    """Clamp the indices to 0 .. size - 1, as kernels use them. Only indices that arithmetic alone keeps in range are
    left as they are: for those read from memory, the compiler must see the bounds."""
    low, high = limits(index, stored=False)
    memory = (o.BUFFER, o.CONTIGUOUS)
    counted = 0 <= low and high < size and \
        not any(n.op in memory for n in toposort([index], lambda n: () if n.op in memory else n.src))
    return index if counted else index.maximum(0).minimum(max(size - 1, 0))


# -- checking as results are computed ------------------------------------------------------------------------
def sinks(nodes: Sequence[UOp]) -> list[Check]:
    """Return the checks to compute along with these nodes."""
    if not watched_nodes.rows or not checking():
        return []
    found: dict[tuple[UOp, Any], Check] = {}
    for node in toposort(nodes):
        if node.op in (o.GATHER, o.SCATTER, o.CMPEQ):
            index, limit = _index_of(node)
            if index is None or (index, limit) in found or not index.size:
                continue
            watched = _watched(index, limit)
            if watched is not None:
                found[index, limit] = Check(node, index, watched, _first_bad(index, watched))
    return list(found.values())


def _first_bad(index: UOp, watched: Watched) -> UOp:
    """Return the position of the first index out of range. The user's indices are compared, because the kernel's may be
    clamped."""
    if any(pick.of_classes for pick in watched.picks):         # `index` is 0 where a target is ignored
        bad = outside(index, watched.limit)
    else:
        picked = _broadcast_picks(watched.picks, index)
        bad = functools.reduce(UOp.__or__, [_outside_pick(pick).reshape(index.shape) for pick in picked])
    bad = bad.reshape((index.elements,))
    position = bad.where(counting(bad.elements), const(bad.size, counting(1).dtype))
    return position.reduce(o.AMIN, (0,)) if bad.size > 1 else position.contiguous()


def _outside_pick(pick: Pick) -> UOp:
    own = pick.indices if pick.indices.dtype.bits >= 32 else pick.indices.cast(dtypes.int64)
    return outside(from_front(own, pick.size) if pick.from_end else own, pick.size)


class Flag:
    """The result of a check (the first bad position), in memory that later runs overwrite."""
    __slots__ = ("picks", "shape", "bounds", "op", "place", "buffer", "_number")
    reads_each_run = False

    def __init__(self, check: Check, result: UOp):
        self.picks = _broadcast_picks(check.watched.picks, check.indices)
        self.shape, self.bounds = check.watched.shape, [check.indices.size]
        self.op, self.place = check.node.op, check.node.place
        self.buffer = result.base.arg
        shared = Device[self.buffer.device].memory.on_host
        self._number = ctypes.c_int32.from_address(self.buffer.address) if shared else None

    def over(self, change: Callable[[UOp], UOp]) -> Flag:
        """Return the same flag with its indices in other buffers."""
        made = copy(self)
        made.picks = tuple(pick._replace(indices=change(pick.indices)) for pick in self.picks)
        return made

    @property
    def nodes(self) -> list[UOp]:
        return [pick.indices for pick in self.picks]

    @property
    def numbers(self) -> Any:
        """The device's `LateNumbers`, which delivers the number later; None if the run waits for it."""
        waits = settings.CHECK_INDEX > 1 or settings.SANITIZE
        return None if waits else getattr(Device[self.buffer.device].memory, "numbers", None)

    def verify(self, read: Read) -> None:
        """Raise if the last run found an index out of range; `read` reads values of that run."""
        self.settle(self._number.value if self._number is not None
                    else int.from_bytes(self.buffer.copy_out()[:4], "little", signed=True), read)

    def settle(self, position: int, read: Read, late: bool = False) -> None:
        """Raise if the number says that an index was out of range; `late`: the run has ended since."""
        if position < self.bounds[0]:
            raise self._error(position, read, late)

    def _error(self, position: int, read: Read, late: bool) -> IndexRangeError:
        around, where = _around(self.place, self.op) + _LATE * late, str(line_of(self.place) or "")
        for pick in self.picks:
            at = coordinates(position, sizes_now(pick.indices.shape))
            found = read([pick.indices])
            value = int(found[0].cast(pick.indices.dtype.format)[position]) if found else None  # type: ignore[call-overload]
            if value is not None and not pick.least <= value < pick.size:
                return _no_such_class(value, pick, self.shape, at, around, where) if pick.of_classes else \
                    out_of_range(value, pick.axis, self.shape, at, pick.from_end, around, where, self.op is not o.CMPEQ)
        if late:                                      # the memory of the index may hold something else now
            return out_of_range(None, pick.axis, self.shape, at, pick.from_end, around, where)
        raise Bug(f"element {position} of an index into {self.shape} was reported, but no part of it is outside")


def _around(place: Place | None, op: o.Op) -> str:
    """Return, under SANITIZE, the op and the layer around a place, as lines of a message."""
    noted: Noted | None = calls_of(place) if settings.SANITIZE else None
    return "" if noted is None else f"\nof {op.name}{noted.words}"


def out_of_range(value: int | None, axis: int, shape: tuple[int, ...], at: list[int], from_end: bool, around: str = "",
                 where: str = "", clamped: bool = True) -> IndexRangeError:
    """Return the error for an element of an index tensor (`value` None: no longer known). `around` says where it is
    used; `clamped`, whether kernels clamp it when it is not checked."""
    size, named = shape[axis], "no longer known" if value is None else value
    below = not from_end and value is not None and -size <= value < 0
    counted = "; only x[index], take and put count from the end" if below else ""
    unchecked = "; CHECK_INDEX=0 clamps it silently" if clamped else ""
    return IndexRangeError(
        "the index is out of bounds",
        given=f"index {named} on axis {axis} of {shape}, at {at} of the index tensor{around}",
        expected=f"an index from {-size if from_end else 0} to {size - 1}{counted}" if size else
        "an axis that has elements",
        fix=f"check how the index is computed{unchecked}", where=where)


def _no_such_class(value: int, pick: Pick, shape: tuple[int, ...], at: list[int], around: str,
                   where: str) -> IndexRangeError:
    return IndexRangeError(
        "a target names a class that the predictions do not have",
        given=f"class {value}, at {at} of the targets; predictions {shape} with classes on axis {pick.axis}{around}",
        expected=f"a class from 0 to {pick.size - 1}, or ignore_index",
        fix="count classes from 0, and check the size of the last layer; CHECK_INDEX=0 gives such targets a loss of 0",
        where=where)


def refuse_stored(index: UOp, values: Callable[[UOp], Sequence[int]], axis: int, shape: tuple[int, ...],
                  from_end: bool) -> None:
    """Raise if one of the values of an index, which are known already, is out of range. `values` reads them only if the
    least and the greatest value, which are cached for each version of the memory, are not in range."""
    if index.op is not o.BUFFER:
        return
    least, (low, high) = -shape[axis] if from_end else 0, limits(index)
    if least <= low and high < shape[axis]:
        return
    for position, value in enumerate(values(index)):
        if not least <= value < shape[axis]:
            at = coordinates(position, index.shape)
            raise out_of_range(value, axis, shape, at, from_end, _around(user_place(), o.GATHER))
