"""Count the work of kernels with variables. In: what each kernel costs, and where the values of variables are. Out:
`WorkOfSizes`: operations and bytes for the present values.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter

from glassgrad.compiler.graph.symbolic import Length, Size, Symbol, replaced
from glassgrad.compiler.schedule.kernels import Item, Slot

MOST_KNOWN = 4096         # values of variables for which the work is remembered: generating texts repeats lengths
_value = attrgetter("value")


class WorkOfSizes:
    """The operations and bytes of a list of kernels. Their totals are lengths of variables, which are called n and
    their slot."""

    def __init__(self, items: Sequence[Item], costs: Sequence[tuple[Size, Size]], slots: Sequence[Slot],
                 cells: Mapping[int, ctypes.c_int64]):
        """`costs` are the operations and bytes of each item; `cells` have the values of the variables, by slot."""
        self._slots, self._cells = slots, cells
        self._each = [(self._by_slot(operations, item), self._by_slot(nbytes, item))
                      for item, (operations, nbytes) in zip(items, costs)]
        self._totals = [_total(sizes) for sizes in zip(*self._each)]
        symbols = [symbol for length in self._totals if isinstance(length, Length) for symbol in length.symbols]
        self._varying = [cells[slot] for slot in {_slot(symbol) for symbol in symbols}]
        self._known: dict[tuple[int, ...], tuple[int, ...]] = {}        # totals, by the values of the variables

    def now(self) -> tuple[int, ...]:
        """Return the number of kernels, and their operations and bytes."""
        values = tuple(map(_value, self._varying))
        found = self._known.get(values)
        if found is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            found = self._known[values] = (len(self._each), *map(self._now, self._totals))
        return found

    def of_each(self) -> list[tuple[int, int]]:
        """Return the operations and bytes of each kernel."""
        return [(self._now(operations), self._now(nbytes)) for operations, nbytes in self._each]

    def _by_slot(self, size: Size, item: Item) -> Size:
        """Rename the variables of a size: a kernel calls them n and the position of their slot in the kernel, here they
        are called n and that slot."""
        def named(symbol: Symbol) -> Symbol:
            slot = item.slots[_slot(symbol)]
            whole = self._slots[slot].whole
            return symbol._replace(name=f"n{slot if whole is None else whole}")
        return replaced(size, named)

    def _now(self, size: Size) -> int:
        return int(replaced(size, lambda symbol: self._cells[_slot(symbol)].value))


def _slot(symbol: Symbol) -> int:
    return int(symbol.name[1:])


def _total(sizes: Sequence[Size]) -> Size:
    """Return the sum of sizes; equal ones are multiplied, because layers repeat."""
    return sum([size * times for size, times in Counter(sizes).items()])
