"""Are tensor indices in range? In: index tensors as they are used. Out: IndexRangeError, when a result is computed.

Kernels clamp a bad index, so that nothing is read beyond a buffer, and a loss compares a target with the classes there
are; this room says that it was bad. An index whose values follow from how it is made (a count, a remainder, random
numbers below a limit) needs no look; one that lies in the host's memory is looked at once. For others, whoever
computes a result also computes where the first bad place is: one number, read after the run. `CHECK_INDEX=0` switches
all of it off. Inside a jitted function what lies in memory is other data at each call: there such indices count among
the others, and replays read the number again.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any, NamedTuple

from glassgrad.base.errors import Bug, IndexRangeError
from glassgrad.base.settings import settings
from glassgrad.base.source_lines import line_of
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import DType
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.node_table import NodeTable
from glassgrad.compiler.graph.uop import UOp, full
from glassgrad.engine.capture import recording
from glassgrad.engine.registry import registry
from glassgrad.runtime.devices import Device
from glassgrad.tensor.formulas.counting import counting

__all__ = ["watch", "watch_classes", "watch_for", "watched_by", "outside", "nearest", "trusted", "sinks",
           "verify", "limits", "refuse_stored", "Flag"]

Limits = tuple[int, int]


class Pick(NamedTuple):
    """One index as the user wrote it, on an axis of a tensor."""
    places: UOp
    size: int
    axis: int
    from_end: bool = True          # whether -1 is the last place
    of_classes: bool = False       # whether what it names is a class

    @property
    def least(self) -> int:
        return -self.size if self.from_end else 0


class Watched(NamedTuple):
    picks: tuple[Pick, ...]
    shape: tuple[int, ...]         # of the tensor that is indexed
    limit: Any                     # how many places the index as kernels see it can name
    ignored: int | None = None     # a value that stands for no place


class Check(NamedTuple):
    node: UOp                      # the GATHER or SCATTER, or what compares classes
    places: UOp                    # the index as kernels see it
    watched: Watched
    first_bad: UOp                 # (1,), int32: the first place that is out of range, or the number of places


# by the index that kernels see, and its limit: one index may look into several tensors
_watched: weakref.WeakKeyDictionary[UOp, dict[Any, Watched]] = weakref.WeakKeyDictionary()
# the index and its limit, by who uses it in another form
_beside: weakref.WeakKeyDictionary[UOp, tuple[UOp, Any]] = weakref.WeakKeyDictionary()
# the greatest and least element of integer nodes; of BUFFERs with the version of their contents
_limits_known: NodeTable[tuple[int, Limits | None]] = NodeTable()
# what an index was found to be in range for, by the user's index, with the version of its contents
_in_range: NodeTable[set[Any]] = NodeTable()
_trusting = False


@contextmanager
def trusted() -> Iterator[None]:
    """Indices used inside are known to be in range: places from a sort, for example."""
    global _trusting
    before, _trusting = _trusting, True
    try:
        yield
    finally:
        _trusting = before


def watch(linear: UOp, picks: Sequence[Pick], shape: tuple[int, ...], limit: Any, ignored: int | None = None) -> None:
    """Look at this index, which names one of `limit` places, when something is computed with it, unless it cannot be
    out of range. It is known by its node: whoever indexes must use this very one, not another that is equal to it."""
    if _trusting or not settings.CHECK_INDEX:
        return
    _watch(linear, Watched(tuple(picks), shape, limit, ignored))


def outside(places: UOp, size: Any) -> UOp:
    """Which places are not among so many."""
    beyond = (places < size).logical_not()
    return beyond if places.dtype.kind == "u" else (places < 0) | beyond


def nearest(places: UOp, size: int) -> UOp:
    """The places, those outside at the end that they are nearest to: what kernels make of them where nobody looks."""
    return places.maximum(0).minimum(max(size - 1, 0))


def watch_for(user: UOp, index: UOp, limit: Any) -> None:
    """Look at an index, if it is watched, when `user` is computed, which has it in another form."""
    if limit in _watched.get(index, ()):
        _beside[user] = index, limit


def watched_by(node: UOp) -> tuple[UOp, Watched] | None:
    """The index that is looked at when a node is computed, and what is known of it, for who writes the node anew."""
    index, limit = _use(node)
    wish = _watched.get(index, {}).get(limit) if index is not None else None
    return None if index is None or wish is None else (index, wish._replace(picks=tuple(
        pick._replace(places=_beside_index(pick.places, index)) for pick in wish.picks)))


def _beside_index(places: UOp, index: UOp) -> UOp:
    """The user's index with a place for each of the index that kernels see; as many keep their shape, for messages."""
    return places if places.size == index.size else places.broadcast(index.shape)


def _use(node: UOp) -> tuple[UOp | None, Any]:
    """The index that a node uses, and how many places there are."""
    if node in _beside:
        return _beside[node]
    return (node.src[1], node.src[0].shape[0]) if node.op in (o.GATHER, o.SCATTER) else (None, 0)


def watch_classes(compared: UOp, target: UOp, size: int, axis: int, shape: tuple[int, ...],
                  ignored: int | None) -> None:
    """Look at the classes that a loss compares with all of them, when something is computed with the comparison."""
    if _trusting or not settings.CHECK_INDEX:
        return
    if ignored is not None and not target.dtype.min <= ignored <= target.dtype.max:
        ignored = None                               # of unsigned numbers none is -100
    linear = target if ignored is None else target.ne(ignored).where(target, 0)
    _watch(linear, Watched((Pick(target, size, axis, False, of_classes=True),), shape, size, ignored))
    watch_for(compared, linear, size)


def _watch(linear: UOp, wish: Watched) -> None:
    picks = wish.picks
    repeated = recording() is not None
    known_good = _in_range.get(picks[0].places)      # by the user's own index, which may come again
    if not repeated and known_good is not None and _identity(wish) in known_good:
        return
    for pick in picks:
        known = _limits_of_any(pick.places) if repeated else limits(pick.places)
        if known is None or known[0] < pick.least or known[1] >= pick.size:
            _watched.setdefault(linear, {})[wish.limit] = wish
            return


def _identity(wish: Watched) -> Any:
    """What is asked of an index, without holding its nodes; of memory, at the present version of its contents."""
    return tuple((weakref.ref(pick.places), _version(pick.places), *pick[1:]) for pick in wish.picks), *wish[1:]


def _version(node: UOp) -> int:
    """How often the contents of a BUFFER were written in place; other nodes are values and stay what they are."""
    return node.arg.version if node.op is o.BUFFER else 0


# -- what values an index can have ---------------------------------------------------------------------------
def limits(node: UOp) -> Limits | None:
    """The least and greatest a node of integers can be, as far as its formula tells.

    >>> limits(counting(5) % 3)
    (0, 2)
    """
    found: dict[UOp, Limits] = {}
    for n in toposort([node]):
        if n.dtype.kind in "iub" and n.op not in (o.GATHER, o.SCATTER):
            version, row = _version(n), _limits_known.get(n)
            if row is None or row[0] != version:
                row = (version, _limits(n, found))
                _limits_known.set(n, row)
            if row[1] is not None:
                found[n] = row[1]
        elif n.op is o.GATHER and n.src[0] in found:
            found[n] = found[n.src[0]]
    return found.get(node)


def _limits_of_any(node: UOp) -> Limits | None:
    """The same, whatever lies in the buffers."""
    found: dict[UOp, Limits] = {}
    for n in toposort([node]):
        if n.dtype.kind in "iub" and n.op not in (o.BUFFER, o.GATHER, o.SCATTER):
            known = _limits(n, found)
            if known is not None:
                found[n] = known
    return found.get(node)


def _limits(n: UOp, known: dict[UOp, Limits]) -> Limits | None:
    op = n.op
    if op is o.BUFFER:
        return _stored(n)
    if op is o.CONST:
        return int(n.arg), int(n.arg)
    if op is o.IOTA:
        return _fitting((0, max(0, n.size - 1)), n.dtype)
    if n.dtype.kind == "b" or op is o.RANDOM:
        return (0, 1) if n.dtype.kind == "b" else None
    rows = [known.get(s) for s in n.src]
    if op is o.AND and n.dtype.kind == "u" and any(r is not None and r[0] == r[1] for r in rows):
        return 0, next(r[1] for r in rows if r is not None and r[0] == r[1])
    if op is o.MOD and rows[1] is not None and rows[1][0] == rows[1][1] > 0:
        return 0, rows[1][1] - 1
    if op in (o.MAX, o.MIN):
        return _clamped(op, rows, n.dtype)
    if not rows or any(r is None for r in (rows[1:] if op is o.WHERE else rows)):
        return None
    sure: list[Limits] = [r for r in rows if r is not None]
    if op in (
        o.RESHAPE,
        o.PERMUTE,
        o.EXPAND,
        o.SHRINK,
        o.FLIP,
        o.WINDOW,
        o.CONTIGUOUS,
        o.DETACH,
        o.COPY,
        o.AMAX,
        o.AMIN,
    ):
        return sure[0]
    if op in (o.PAD, o.UNWINDOW):
        return min(0, sure[0][0]), max(0, sure[0][1])
    if op is o.CAST:
        return _fitting(sure[0], n.dtype) if n.src[0].dtype.kind in "iub" else None
    if op is o.WHERE:
        yes, no = sure[-2:]
        return min(yes[0], no[0]), max(yes[1], no[1])
    if op in (o.ADD, o.SUB, o.MUL, o.IDIV, o.SHR):
        return _arithmetic(op, sure[0], sure[1], n.dtype)
    return None


def _stored(node: UOp) -> Limits | None:
    """Of numbers that lie in the host's memory and are nobody else's to change."""
    buffer = node.arg
    if not node.size or buffer.owner is not None or not Device[buffer.device].memory.on_host:
        return None
    numbers = buffer.view().cast("B").cast(node.dtype.format)
    if node.size > 1024:
        import numpy  # whoever has so many numbers can wait for it
        numbers = numpy.frombuffer(numbers, node.dtype.format)
        return int(numbers.min()), int(numbers.max())
    return min(numbers), max(numbers)


def _clamped(op: o.Op, rows: Sequence[Limits | None], dtype: DType) -> Limits | None:
    """One side is enough to bound one end; a type's own limit bounds the other."""
    least, most = int(dtype.min), int(dtype.max)
    a, b = (r if r is not None else (least, most) for r in rows)
    if rows[0] is None and rows[1] is None:
        return None
    return (max(a[0], b[0]), max(a[1], b[1])) if op is o.MAX else (min(a[0], b[0]), min(a[1], b[1]))


def _arithmetic(op: o.Op, a: Limits, b: Limits, dtype: DType) -> Limits | None:
    if op is o.ADD:
        return _fitting((a[0] + b[0], a[1] + b[1]), dtype)
    if op is o.SUB:
        return _fitting((a[0] - b[1], a[1] - b[0]), dtype)
    if op is o.MUL:
        products = [x * y for x in a for y in b]
        return _fitting((min(products), max(products)), dtype)
    if b[0] != b[1] or b[0] < (1 if op is o.IDIV else 0):
        return None
    by = b[0] if op is o.IDIV else 1 << b[0]
    return a[0] // by, a[1] // by


def _fitting(found: Limits, dtype: DType) -> Limits | None:
    """Limits that a type holds without wrapping round."""
    return found if int(dtype.min) <= found[0] and found[1] <= int(dtype.max) else None


# -- checking as results are computed ------------------------------------------------------------------------
def sinks(nodes: Sequence[UOp]) -> list[Check]:
    """What to compute along with these nodes."""
    if not _watched or not settings.CHECK_INDEX:
        return []
    found: dict[tuple[UOp, Any], Check] = {}
    for node in toposort(nodes):
        if node.op in (o.GATHER, o.SCATTER, o.CMPEQ):
            index, limit = _use(node)
            if index is None or (index, limit) in found or not index.size:
                continue
            watched = _watched.get(index, {}).get(limit)
            if watched is not None:
                found[index, limit] = Check(node, index, watched, _first_bad(index, limit))
    return list(found.values())


def _first_bad(index: UOp, size: int) -> UOp:
    flat = index.reshape((index.elements,))
    bad = outside(flat, size)
    return bad.where(counting(flat.elements), full(flat.shape, flat.size, counting(1).dtype)).reduce(o.AMIN, (0,)) \
        if flat.size > 1 else bad.where(counting(1), 1).contiguous()


def verify(checks: Sequence[Check], results: Sequence[UOp], read: Callable[[UOp], Any]) -> None:
    """Look at what was computed; a place that is out of range is an error, at the user's line. `read` gives a node's
    values as an array."""
    trace = recording()
    for check, result in zip(checks, results):
        flag = Flag(check, result)
        flag.verify(read)
        if trace is not None:
            trace.flags.append(flag)
        if registry.reads_foreign(check.places):
            continue                            # others write to that memory: it is looked at again
        _watched.get(check.places, {}).pop(check.watched.limit, None)       # values do not change: once is enough
        first = check.watched.picks[0].places
        known = _in_range.get(first)
        if known is None:
            known = set()
            _in_range.set(first, known)
        known.add(_identity(check.watched))


class Flag:
    """The number that says whether an index was in range, in memory that later runs write again."""
    __slots__ = ("picks", "shape", "size", "line", "buffer", "_place")

    def __init__(self, check: Check, result: UOp):
        index = check.places
        self.picks = [pick._replace(places=_beside_index(pick.places, index)) for pick in check.watched.picks]
        self.shape, self.size, self.line = check.watched.shape, index.size, check.node.place
        self.buffer = result.base.arg
        shared = Device[self.buffer.device].memory.on_host
        self._place = ctypes.c_int32.from_address(self.buffer.address) if shared else None

    def over(self, change: Callable[[UOp], UOp]) -> Flag:
        """The same number, about indices over other buffers."""
        made = copy(self)
        made.picks = [pick._replace(places=change(pick.places)) for pick in self.picks]
        return made

    def verify(self, read: Callable[[UOp], Any]) -> None:
        """Raise if the last run met an index out of range; `read` gives values of that run."""
        place = self._place.value if self._place is not None \
            else int.from_bytes(self.buffer.copy_out()[:4], "little", signed=True)
        if place < self.size:
            raise self._error(place, read)

    def _error(self, place: int, read: Callable[[UOp], Any]) -> IndexRangeError:
        for pick in self.picks:
            values = read(pick.places)
            value = int(values.reshape(-1)[place])
            if not pick.least <= value < pick.size:
                at, where = _position(place, values.shape), str(line_of(self.line) or "")
                return _no_such_class(value, pick, self.shape, at, where) if pick.of_classes else \
                    out_of_range(value, pick.axis, self.shape, at, pick.from_end, where)
        raise Bug(f"place {place} of an index into {self.shape} was reported, but no part of it is outside")


def out_of_range(value: int, axis: int, shape: tuple[int, ...], at: list[int], from_end: bool,
                 where: str = "") -> IndexRangeError:
    """The error for an element of an index tensor."""
    size = shape[axis]
    counted = "" if from_end or not -size <= value < 0 else "; only x[index], take and put count from the end"
    return IndexRangeError(
        "the index is out of bounds", given=f"index {value} on axis {axis} of {shape}, at {at} of the index tensor",
        expected=f"an index from {-size if from_end else 0} to {size - 1}{counted}" if size else
        "an axis that has elements",
        fix="check how the index is computed; CHECK_INDEX=0 clamps it silently", where=where)


def _no_such_class(value: int, pick: Pick, shape: tuple[int, ...], at: list[int], where: str) -> IndexRangeError:
    return IndexRangeError(
        "a target names a class that the predictions do not have",
        given=f"class {value}, at {at} of the targets; predictions {shape} with classes on axis {pick.axis}",
        expected=f"a class from 0 to {pick.size - 1}, or ignore_index",
        fix="count classes from 0, and check the size of the last layer; CHECK_INDEX=0 gives such targets a loss of 0",
        where=where)


def refuse_stored(index: UOp, numbers: Sequence[int], axis: int, shape: tuple[int, ...], from_end: bool) -> None:
    """Raise for an index whose numbers are known already, where one of them is out of range."""
    for place, value in enumerate(numbers):
        if not (-shape[axis] if from_end else 0) <= value < shape[axis]:
            raise out_of_range(value, axis, shape, _position(place, index.shape), from_end)


def _position(place: int, shape: tuple[int, ...]) -> list[int]:
    out = []
    for n in reversed(shape):
        place, i = divmod(place, n)
        out.append(i)
    return out[::-1]
