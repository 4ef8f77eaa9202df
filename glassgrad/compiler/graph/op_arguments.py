"""Arguments of ops, besides their sources. In: nothing. Out: one small named tuple per op that has an argument.

Named tuples, because they hash in C, which interning depends on, and `node.arg.axis` says what `arg[0]` does not.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from glassgrad.compiler.graph.ops import Op
from glassgrad.compiler.graph.symbolic import Symbol

Dimension = Any    # int | Length: see symbolic.py
Shape = tuple      # of Dimension


class Reshape(NamedTuple):
    shape: Shape


class Permute(NamedTuple):
    order: tuple[int, ...]


class Expand(NamedTuple):
    shape: Shape


class Pad(NamedTuple):
    padding: tuple[tuple[int, int], ...]     # (before, after) per axis


class Shrink(NamedTuple):
    bounds: tuple[tuple[int, int], ...]      # (start, stop) per axis


class Flip(NamedTuple):
    axes: tuple[int, ...]


class Window(NamedTuple):
    axis: int
    size: int
    stride: int
    dilation: int


class Unwindow(NamedTuple):
    axis: int
    stride: int
    dilation: int
    length: int                              # of the axis in the result


class Axes(NamedTuple):
    axes: tuple[int, ...]


class Scatter(NamedTuple):
    mode: str                                # set, add, max; or permute: set, and each element is written just once


class Scan(NamedTuple):
    axis: int
    combine: Op


class Recurrence(NamedTuple):
    """One step of a recurrence, and which of its results the node is, for all steps: see recurrence.py."""
    results: tuple[Any, ...]                 # UOps over PARAMs, which are the sources: new states, then other values
    states: int                              # how many sources are starts; they come first
    sequences: int                           # and how many after them are sequences
    backwards: bool                          # whether the last step of the sequences is the first
    result: int = 0                          # its number among the results
    last: bool = False                       # whether the node is that result after the last step only
    item: tuple[Any, ...] = ()               # the results for one item of axis 0, if items are independent
    until: int | None = None                 # a step that begins where this state is not 0 changes no state

    def __repr__(self) -> str:               # the same in every process: schedules are found by it
        numbers: dict[Any, int] = {}
        rows: list[str] = []
        for node in [n for result in (*self.results, *self.item) for n in result.toposort()]:
            if node not in numbers:
                numbers[node] = len(numbers)
                shown = getattr(node.arg, "name", node.arg)      # of a formula with its own gradient, the name
                rows.append(f"{node.op.name} {node.dtype.name} {[numbers[s] for s in node.src]} {shown!r}")
        results = [numbers[result] for result in (*self.results, *self.item)]
        return f"Recurrence({rows}, {results}, {tuple(self[1:6])}, {self.until})"


class RandomBits(NamedTuple):
    shape: Shape


class Iota(NamedTuple):
    shape: Shape                             # (n,)


class OnDevice(NamedTuple):
    device: str


class OwnGradient(NamedTuple):
    """Argument of a DETACH with sources (value, *inputs): `backward` computes the gradients of the inputs."""
    backward: Any                            # (gradient, output, *inputs) -> one UOp or None per input
    name: str = ""                           # of a built-in formula: `backward` depends on its nodes alone


class Formula(NamedTuple):
    """What a FORMULA computes: `function` of its sources and of plain values."""
    function: Any                            # of a module: `function.__wrapped__` makes the nodes
    arguments: tuple[Any, ...]               # in their order; in the place of each source stands its class

    def written_out(self, src: tuple[Any, ...]) -> Any:
        """The nodes of the formula over these sources."""
        return self.function.__wrapped__(*self.given(src))

    def shape(self, src: tuple[Any, ...]) -> Shape:
        """The shape of what it computes; its nodes are written out where the formula does not say it."""
        known: Shape | None = self.function.shape(*self.given(src))
        return tuple(self.written_out(src).shape) if known is None else known

    def given(self, src: tuple[Any, ...]) -> list[Any]:
        """What the function is called with, for these sources."""
        sources = iter(src)
        return [next(sources) if isinstance(a, type) else a for a in self.arguments]

    def __repr__(self) -> str:               # the same in every process: schedules are found by it
        shown = ", ".join(["_" if isinstance(a, type) else repr(a) for a in self.arguments])
        return f"{self.function.__module__}.{self.function.__qualname__}({shown})"


class Param(NamedTuple):
    slot: int
    shape: Shape
    scalar: bool = False                     # a Cell's value, not memory
    device: str | None = None                # set while scheduling, not inside kernels


class Measure(NamedTuple):
    """Argument of a PARAM that holds the value of a variable."""
    slot: int
    symbol: Symbol
    shape: Shape = ()
    scalar: bool = True
    device: str | None = None


class Count(NamedTuple):
    length: Dimension


class Range(NamedTuple):
    name: str
    size: int


class Local(NamedTuple):
    name: str
    size: int
    scope: str                               # worker: private to a task; shared: seen by all tasks of the launch
    over: str = ""                           # the name of another LOCAL whose memory it reuses


class FoldOver(NamedTuple):
    combine: Op
    within: int = 0                          # neighbouring threads of a group that share a result; 0: all of them


class Cell:
    """A scalar whose value is read when a kernel runs: random streams, learning rates. Compared by identity."""
    __slots__ = ("value", "__weakref__")

    def __init__(self, value: Any):
        self.value = value

    def __repr__(self) -> str:
        return f"Cell({self.value!r})"
