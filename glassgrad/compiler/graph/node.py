"""Nodes of a graph. In: an op, a dtype, sources, an argument. Out: interned, immutable nodes; their topological order;
`WeakNodeDict`, for facts about nodes that are not part of them.

Equal nodes are the same object, so graphs are compared with `is`, and common subexpressions are shared by construction.
A node has a shape, a device, the user's line that first made it, and memo slots, which are unset until computed, for
facts that follow from the node alone. What holds for a node only at some time (which tensor refers to it, where its
value is stored) is kept outside, in a `WeakNodeDict`: engine/registry.py. Does not know how expressions are written:
uop.py defines `UOp`, the only class of nodes, by adding operators to `Node`.
"""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from functools import partial
from itertools import compress
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import ref

from glassgrad.base.fork_locks import held_at_fork
from glassgrad.base.source_lines import Line, line_of, one_place, user_place
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import DType
from glassgrad.compiler.graph.op_arguments import Dimension, Shape
from glassgrad.compiler.graph.ops import Kind, Op
from glassgrad.compiler.graph.shape_inference import device_of, shape_of
from glassgrad.compiler.graph.symbolic import Symbol, lengths_in, replaced, upper_bound

if TYPE_CHECKING:
    from typing_extensions import Self

N = TypeVar("N", bound="Node")
_BUFFER, _CONST, _DETACH = o.BUFFER, o.CONST, o.DETACH
_VIEWS = frozenset((*o.MOVEMENT, o.DETACH))
_nothing = int                       # a callable that does nothing, written in C

_SIZED = frozenset((o.RESHAPE, o.EXPAND, o.PAD, o.SHRINK, o.WINDOW, o.UNWINDOW, o.PARAM, o.LENGTH, o.IOTA, o.RANDOM))
# ^ ops whose arguments hold sizes
_lock = held_at_fork(threading.RLock(), "node")    # re-entrant: the garbage collector may make nodes while it is held


class _Entry(ref):  # type: ignore[type-arg]
    __slots__ = ("remove",)
    remove: Callable[[], Any]            # removes the entry from the table; set once the entry is in it

    def __getattr__(self, name: str) -> Any:      # `remove` is not set: nothing to remove
        return int


_table: dict[Any, _Entry] = {}
_create, _remove = object.__new__, _table.pop
# Called when a node has been freed, thousands of times in a compile. Python discards exceptions in such a callback, and
# a Ctrl-C may be raised at any line of Python: so the callback is pure C, which a Ctrl-C cannot interrupt.
_forget = methodcaller("remove")


class Node:
    """`op` applied to `src`, with elements of `dtype` and a small `arg` (op_arguments.py)."""
    __slots__ = ("op", "dtype", "src", "arg", "shape", "device", "symbolic", "place", "__weakref__",
                 "bounds", "linear", "order_key", "ranges", "pure")
    op: Op
    dtype: DType
    src: tuple[Self, ...]
    arg: Any
    shape: Shape
    device: str | None
    symbolic: bool                       # whether the shape of this node, or of one under it, contains a Length
    place: Any
    # memos, each unset until the named function computes it
    bounds: tuple[int, int]              # graph/index_algebra.py: bounds
    linear: tuple[int, dict[Any, int]]   # graph/index_algebra.py: linear
    order_key: str                       # graph/index_algebra.py: order_key
    ranges: frozenset[Any]               # lower/loops.py: ranges_of
    pure: bool                           # check/loop_analysis.py: is_pure

    def __new__(cls, op: Op, dtype: DType, src: tuple[Self, ...] = (), arg: Any = None, place: Any = None) -> Self:
        """Return the one node with these fields. With a single thread, and nodes that are never freed, this would be

            if key not in _table:
                _table[key] = node, with its shape and device
            return _table[key]

        The rest handles weak references to freed nodes, and threads that make the same node at once. A BUFFER is always
        new memory, so the table is not searched for it.
        """
        if op is _BUFFER:
            node = _create(cls)
            node.op, node.dtype, node.src, node.arg = op, dtype, src, arg
            node.shape, node.device, node.symbolic = arg.shape, arg.device, False
            node.place = place or user_place()
            return node
        # constants are keyed by their bits: 1, 1.0 and True differ, and so do 0.0 and -0.0; NaN equals NaN
        key = (op, dtype, src, arg) if op is not _CONST else \
            (op, dtype, src, struct.pack("d", arg) if type(arg) is float else (type(arg), arg))
        existing = _table.get(key)
        if existing is not None:
            first: Self | None = existing()
            if first is not None:
                return first
        node = _create(cls)
        node.op, node.dtype, node.src, node.arg = op, dtype, src, arg
        node.shape, node.device, node.symbolic = _layout_of(op, src, arg)
        node.place = place or user_place()
        entry = _Entry(node, _forget)
        for source in src:
            if source.op is _BUFFER:                    # before other code can reach the node: engine/buffer.py
                source.arg.add_reader(ref(node))
        if _table.setdefault(key, entry) is not entry:
            with _lock:
                existing = _table.setdefault(key, entry)
                if existing is not entry:
                    first = existing()
                    if first is not None:               # another thread made it first
                        return first
                    existing.remove = _nothing          # a freed node's entry, whose callback is still to run
                    _table[key] = entry
        entry.remove = partial(_remove, key, None)
        return node

    def __repr__(self) -> str:
        arg = "" if self.arg is None else f" {self.arg!r}"
        return f"UOp({self.op.name} {self.dtype.name}{list(self.shape)}{arg})"

    def __reduce__(self) -> Any:
        return (_unflatten, (type(self), _flatten(self)))

    @property
    def line(self) -> Line | None:
        """The user's line that first made this node."""
        return line_of(self.place)

    @property
    def size(self) -> int:
        """The number of elements; for a symbolic shape, an upper bound."""
        return math.prod(map(upper_bound, self.shape)) if self.symbolic else math.prod(self.shape)

    @property
    def elements(self) -> Dimension:
        """The number of elements; for a symbolic shape, a length."""
        return math.prod(self.shape)

    @property
    def symbols(self) -> list[Symbol]:
        """The variables in this node's own shape and argument (not in its sources), without repetitions."""
        found: dict[Symbol, None] = {}
        for length in lengths_in((self.shape, self.arg)):
            found.update(dict.fromkeys(length.symbols))
        return list(found)

    @property
    def base(self) -> Self:
        """The node below all movement ops."""
        return self.below(_VIEWS)

    def below(self, ops: Container[Op]) -> Self:
        """Follow first sources past nodes with these ops, and return the first node with another op."""
        node = self
        while node.op in ops:
            node = node.src[0]
        return node

    def over(self, src: tuple[Self, ...]) -> Self:
        """This node over other sources; it keeps the user's line."""
        return self if src == self.src else type(self)(self.op, self.dtype, src, self.arg, self.place)

    def named(self, src: tuple[Self, ...], new: Callable[[Symbol], Symbol | int]) -> Self:
        """This node over other sources, with the variables in its argument replaced by others or by numbers."""
        arg = replaced(self.arg, new) if self.symbolic and self.op in _SIZED else self.arg
        if self.op is o.RECURRENCE:
            step = concrete(arg.results, new)
            arg = arg._replace(results=tuple([step[node] for node in arg.results]))
        return type(self)(self.op, self.dtype, src, arg, self.place)

    def toposort(self) -> list[Self]:
        return toposort([self])


_UNARY, _BINARY, _MEMORY, _KERNEL = Kind.UNARY, Kind.BINARY, Kind.MEMORY, Kind.KERNEL
_layout = attrgetter("shape", "device", "symbolic")
_layouts: dict[Any, tuple[Shape, str | None, bool]] = {}      # by op, argument and sources' layouts
_MOST_LAYOUTS = 8192


def _layout_of(op: Op, src: tuple[Any, ...], arg: Any) -> tuple[Shape, str | None, bool]:
    """The shape, the device, and whether the node is symbolic, by the rules of shape_inference.py. Most nodes are
    elementwise over sources with one shape and device, which are read off; the others are looked up."""
    kind = op.kind
    if kind is _BINARY:
        x, y = src
        shape, other, device = x.shape, y.shape, x.device
        if (not other or shape == other or not shape) and (device is y.device or y.device is None):
            return shape or other, device, x.symbolic or y.symbolic
    elif kind is _UNARY or kind is _MEMORY and len(src) == 1 and op is not o.COPY:
        x = src[0]
        return x.shape, x.device, x.symbolic
    elif kind is _KERNEL and op is not o.CALL:              # an element of a kernel, or memory for elements
        return (), None, False
    if len(src) == 1:
        x = src[0]
        key: Any = (op, arg, x.shape, x.device, x.symbolic)
    else:
        key = (op, arg if op is not _DETACH else None, *map(_layout, src))      # not on a DETACH's argument
    return _layouts.get(key) or _new_layout(op, src, arg, key)


def _new_layout(op: Op, src: tuple[Any, ...], arg: Any, key: Any) -> tuple[Shape, str | None, bool]:
    """The shape, the device, and whether the node is symbolic, by the rules of shape_inference.py. Results without
    symbolic sizes are cached, because the next step of a program makes the same nodes."""
    symbolic = any([s.symbolic for s in src]) or op in _SIZED and any(True for _ in lengths_in(arg))
    found = shape_of(op, src, arg), device_of(op, src, arg), symbolic
    if not symbolic and src and op is not o.CALL:      # arguments of leaves and calls may hold memory
        if len(_layouts) >= _MOST_LAYOUTS:
            _layouts.clear()
        _layouts[key] = found
    return found


def toposort(roots: Iterable[N], sources: Callable[[N], Sequence[N]] | None = None) -> list[N]:
    """Every node under the roots, sources before users, each once.

    `sources(node)` gives the nodes to visit from a node; without it, all its sources.
    """
    done: dict[N, None] = {}                # in the order in which they are finished
    for root in roots:
        if sources is not None:
            _visit_by(root, sources, done, _DEEP)
        elif root not in done:
            _visit(root, done, _DEEP)
    return list(done)


_DEEP = 64                  # nested calls (Python allows 1000); they are twice as fast as an explicit stack


def _visit(node: N, done: dict[N, None], depth: int) -> None:
    """Add the nodes under a node, then the node itself; `depth` is how many more calls may nest."""
    for source in node.src:
        if source not in done:
            if not source.src:
                done[source] = None
            elif depth:
                _visit(source, done, depth - 1)
            else:
                _visit_deep(source, None, done)
    done[node] = None


def _visit_by(node: N, sources: Callable[[N], Sequence[N]], done: dict[N, None], depth: int) -> None:
    """The same, over the nodes that `sources` gives; it is called once per node."""
    for source in sources(node) if node not in done else ():
        if source not in done:
            _visit_by(source, sources, done, depth - 1) if depth else _visit_deep(source, sources, done)
    done[node] = None


def _visit_deep(root: N, sources: Callable[[N], Sequence[N]] | None, done: dict[N, None]) -> None:
    """The same with an explicit stack, so that depth is no limit."""
    stack = [root]
    while stack:
        node = stack[-1]
        waiting = () if node in done else [s for s in (node.src if sources is None else sources(node)) if s not in done]
        if waiting:
            stack += waiting[::-1]
        else:
            done[stack.pop()] = None


def rebuilt(roots: Sequence[N], rule: Callable[[N, N], N | None]) -> list[N]:
    """Rebuild the roots from the leaves up. `rule(node, over)` returns what a node becomes, or None to use `over`, the
    node over its rebuilt sources. New nodes keep the user's line."""
    new: dict[N, N] = {}
    for node in toposort(roots):
        with one_place(node.place):
            over = node.over(tuple([new[s] for s in node.src]))
            new[node] = rule(node, over) or over
    return [new[r] for r in roots]


def substitute(roots: Sequence[N], replace: dict[N, N]) -> list[N]:
    """Replace some nodes under the roots, and rebuild everything above them."""
    new: dict[N, N] = dict(replace)
    for node in toposort(roots):
        if node not in new:
            new[node] = node.over(tuple([new[s] for s in node.src]))
    return [new[r] for r in roots]


def concrete(roots: Sequence[N], value: Callable[[Symbol], Symbol | int]) -> dict[N, N]:
    """Map every node under the roots to a copy with plain sizes, where `value` gives the number for each variable; or
    with other variables, where it gives these."""
    new: dict[N, N] = {}
    for node in toposort(roots):
        new[node] = node.named(tuple([new[s] for s in node.src]), value) if node.symbolic else node
    return new


def _flatten(root: Node) -> list[tuple[Op, DType, tuple[int, ...], Any]]:
    order = toposort([root])
    place = {node: i for i, node in enumerate(order)}
    return [(n.op, n.dtype, tuple(place[s] for s in n.src), n.arg) for n in order]


def _unflatten(cls: type[N], rows: list[tuple[Op, DType, tuple[int, ...], Any]]) -> N:
    nodes: list[N] = []
    for op, dtype, src, arg in rows:
        nodes.append(cls(op, dtype, tuple(nodes[i] for i in src), arg))
    return nodes[-1]


# -- facts about nodes that are not part of them -------------------------------------------------------------
V = TypeVar("V")


class WeakNodeDict(Generic[V]):
    """A dict whose keys are nodes, held weakly and compared by identity. An entry is dropped when its node is freed. A
    fact must not refer to its node, or neither would ever be freed.

    >>> from glassgrad.compiler.graph.uop import const
    >>> table: WeakNodeDict[str] = WeakNodeDict()
    >>> node = const(2.6875) * 3.4375
    >>> table.set(node, "nine")
    >>> table.get(node), node in table, len(table)
    ('nine', True, 1)
    >>> del node
    >>> len(table)
    0
    """
    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows: dict[int, tuple[ref[Any], V]] = {}

    def get(self, node: Any) -> V | None:
        """The fact about a node, or None."""
        row = self.rows.get(id(node))
        return None if row is None else row[1]

    def set(self, node: Any, fact: V) -> None:
        """Keep a fact for as long as the node lives."""
        rows, key = self.rows, id(node)
        row = rows.get(key)
        # the callback is written in C: Python discards what a callback raises, a Ctrl-C too. It runs before the node's
        # memory is freed, so no other node can have the same id by then
        rows[key] = (ref(node, partial(rows.pop, key)) if row is None else row[0], fact)

    def pop(self, node: Any) -> None:
        """Drop the fact about a node, if there is one."""
        self.rows.pop(id(node), None)

    def among(self, nodes: Collection[N]) -> list[tuple[N, V]]:
        """(node, fact) for those of the given nodes that have a fact, in their order."""
        rows = self.rows
        if not rows:
            return []
        found = compress(nodes, map(rows.__contains__, map(id, nodes)))
        return [(node, rows[id(node)][1]) for node in found]

    def __contains__(self, node: Any) -> bool:
        return id(node) in self.rows

    def __len__(self) -> int:
        return len(self.rows)
