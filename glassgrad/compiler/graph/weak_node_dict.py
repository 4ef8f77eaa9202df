"""Facts about nodes that are not part of them. In: nodes, facts. Out: `WeakNodeDict`, a dict of live nodes by identity.

A fact is dropped when its node is freed. It must not refer to its node, or neither would ever be freed. Does not
know what facts are kept: engine/registry.py says that.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection
from functools import partial
from itertools import compress
from typing import Any, Generic, TypeVar

from glassgrad.compiler.graph.node import N

V = TypeVar("V")


class WeakNodeDict(Generic[V]):
    """A dict whose keys are nodes, held weakly and compared by identity.

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
        self.rows: dict[int, tuple[weakref.ref[Any], V]] = {}

    def get(self, node: Any) -> V | None:
        """The fact about a node, or None."""
        row = self.rows.get(id(node))
        return None if row is None else row[1]

    def set(self, node: Any, fact: V) -> None:
        """Keep a fact for as long as the node lives."""
        rows, key = self.rows, id(node)
        row = rows.get(key)
        # the callback is written in C: Python drops what a callback raises, a Ctrl-C too. It runs before the node's
        # memory is freed, so no other node has its id by then
        rows[key] = (weakref.ref(node, partial(rows.pop, key)) if row is None else row[0], fact)

    def pop(self, node: Any) -> None:
        """Drop the fact about a node, if there is one."""
        self.rows.pop(id(node), None)

    def among(self, nodes: Collection[N]) -> list[tuple[N, V]]:
        """(node, fact) for those of some nodes that have a fact, in their order."""
        rows = self.rows
        if not rows:
            return []
        found = compress(nodes, map(rows.__contains__, map(id, nodes)))
        return [(node, rows[id(node)][1]) for node in found]

    def __contains__(self, node: Any) -> bool:
        return id(node) in self.rows

    def __len__(self) -> int:
        return len(self.rows)
