"""Memory that checks its accesses. In: flat arrays and indices. Out: values; or a `Bug` that says what is wrong.

The loop interpreter loads from and stores to this: the kernel's buffers, memory shared by its tasks, and memory private
to a task. Indices are checked, and so is the promise that tasks are independent: within a phase, no task may touch an
element that another task stores. Fresh LOCAL memory is poisoned (NaN, or a recognizable pattern), so that reading it is
noticed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from glassgrad.base.errors import Bug
from glassgrad.compiler.check.graph_interpreter import evaluate, from_storage, to_storage
from glassgrad.compiler.check.named_arrays import Array, binary
from glassgrad.compiler.graph.dtype import DType
from glassgrad.compiler.graph.ops import Op

Place = Callable[[int], str]       # n -> where in the program the n-th element of an access is: "task i=3, k=2"

NOBODY, SEVERAL = -1, -2           # used in place of a task's number


def poisoned(dtype: DType, shape: tuple[int, ...]) -> Array:
    """An array in which every element is NaN; if the type has no NaN, every byte is 0x5A."""
    if dtype.is_float:
        return np.full(shape, to_storage(np.array(np.nan, np.float32), dtype), np.dtype(dtype.format))
    if dtype.kind == "b":
        return np.ones(shape, np.bool_)
    return np.full(shape, 0x5A, np.uint8).repeat(dtype.itemsize, -1).view(np.dtype(dtype.format))


Fail = Callable[[int, int, str], Bug]       # (which access, the other task, what is wrong) -> the error


def _used_alone(users: Array, tasks: Array, what: str, fail: Fail) -> None:
    """Raise unless each element was used by no task, or only by the task that uses it now."""
    foreign = (users != NOBODY) & (users != tasks)
    if foreign.any():
        at = int(foreign.argmax())
        raise fail(at, int(users[at]), what)


class Watch:
    """Records which task stored or loaded each element of one array in the current phase."""

    def __init__(self, size: int):
        self.writers, self.readers = np.full(size, NOBODY), np.full(size, NOBODY)

    def load(self, index: Array, tasks: Array, fail: Fail) -> None:
        _used_alone(self.writers[index], tasks, "loads what another task stored in the same phase", fail)
        old = self.readers[index]
        new = np.where((old == NOBODY) | (old == tasks), tasks, SEVERAL)
        self.readers[index] = new
        self.readers[index[self.readers[index] != new]] = SEVERAL      # several tasks in this access

    def store(self, index: Array, tasks: Array, fail: Fail) -> None:
        _used_alone(self.writers[index], tasks, "stores where another task stored in the same phase", fail)
        _used_alone(self.readers[index], tasks, "stores what another task loads in the same phase", fail)
        self.writers[index] = tasks
        _used_alone(self.writers[index], tasks, "stores where another task stored in the same phase", fail)


class CheckedMemory:
    """One buffer or LOCAL memory. `array` is flat; for private memory, it has a row for each running task."""

    def __init__(self, name: str, dtype: DType, array: Array, private: bool = False):
        self.name, self.dtype, self.array, self.private = name, dtype, array, private
        self.size: int = array.shape[-1]
        self.address: int = array.__array_interface__["data"][0]
        self.watch: Watch | None = None

    def check(self, index: Array, active: Array, what: str, place: Place) -> None:
        """Raise unless every active index is in bounds; the arrays have one shape."""
        outside = ((index < 0) | (index >= self.size)) & active
        if outside.any():
            at = int(outside.argmax())
            raise Bug(f"{what} {self.name}[{index.flat[at]}], outside its {self.size} elements, at {place(at)}")

    def load(self, index: Array, rows: Array) -> Array:
        """The elements at some indices; elements out of bounds (gated off, checked before) are arbitrary."""
        if not self.size:
            return from_storage(np.zeros(np.broadcast_shapes(index.shape, rows.shape), self.array.dtype), self.dtype)
        safe = np.clip(index, 0, self.size - 1)
        return from_storage(self.array[rows, safe] if self.private else self.array[safe], self.dtype)

    def store(self, index: Array, rows: Array, values: Array, moments: Array | None, combine: Op | None, what: str,
              place: Place) -> None:
        """Store values[n] to element index[n] (of row rows[n]), in order; the arrays have one length. Values of one
        moment come from independent iterations, so they must agree; moments never decrease (None: there is only
        one)."""
        spots = rows * self.size + index if self.private else index
        codes = to_storage(values, self.dtype)
        flat = self.array.reshape(-1)
        if (spots[1:] > spots[:-1]).all():                   # all distinct, the usual case
            rounds = [np.arange(len(spots))]
        elif combine is None:
            self._agree(spots if moments is None else moments * flat.size + spots, index, codes, what, place)
            _, backwards = np.unique(spots[::-1], return_index=True)
            rounds = [len(spots) - 1 - backwards]            # the last value for each element
        else:
            rounds = _rounds(spots)
        for now in rounds:
            if combine is not None:
                old = from_storage(flat[spots[now]], self.dtype)
                codes[now] = to_storage(evaluate(np, binary(combine, self.dtype), [old, values[now]]), self.dtype)
            flat[spots[now]] = codes[now]

    def _agree(self, spots: Array, index: Array, codes: Array, what: str, place: Place) -> None:
        """Raise unless all values for one element are equal."""
        _, first, group = np.unique(spots, return_index=True, return_inverse=True)
        bits = codes.view(f"u{codes.dtype.itemsize}")
        other = bits != bits[first][group]
        if other.any():
            at = int(other.argmax())
            raise Bug(f"{what} {self.name}[{index[at]}] different values from independent iterations, "
                      f"at {place(int(first[group[at]]))} and at {place(at)}")


def _rounds(spots: Array) -> list[Array]:
    """Group positions into rounds: the first for each element, then the second for each that has one, and so on.

    >>> [now.tolist() for now in _rounds(np.array([7, 5, 7, 7, 5]))]
    [[0, 1], [2, 4], [3]]
    """
    order = np.argsort(spots, kind="stable")
    begins = np.flatnonzero(np.diff(spots[order], prepend=-1))  # begins of each element's positions, in that order
    turn = np.empty_like(order)
    turn[order] = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
    return np.split(np.argsort(turn, kind="stable"), np.cumsum(np.bincount(turn))[:-1])
