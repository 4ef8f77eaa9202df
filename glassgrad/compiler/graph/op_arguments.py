"""Arguments of ops, besides their sources. In: nothing. Out: one small named tuple per op that has an argument.

Named tuples hash in C, which interning depends on, and make `node.arg.axis` readable where `arg[0]` would not be.
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
    length: int                              # size of the axis in the result


class Axes(NamedTuple):
    axes: tuple[int, ...]


class Scatter(NamedTuple):
    mode: str  # set, add or max; "permute": set, where each element is written exactly once


class Scan(NamedTuple):
    axis: int
    combine: Op


class Recurrence(NamedTuple):
    """One step of a recurrence, and which of the step's results the node has, for all steps: see recurrence.py."""
    results: tuple[Any, ...]                 # UOps over PARAMs that stand for the sources: new states, then others
    states: int                              # how many sources are initial states; they come first
    sequences: int                           # how many of the following sources are sequences
    backwards: bool                          # whether steps run from the last row of the sequences to the first
    result: int = 0                          # index of this node's result
    last: bool = False                       # whether the node has that result after the last step only
    item: tuple[Any, ...] = ()               # the results for one item of axis 0, if items are independent
    until: int | None = None                 # index of a state: a step that begins with it not 0 changes no state

    def __repr__(self) -> str:               # the same text in every process: it is part of schedules' keys
        numbers: dict[Any, int] = {}
        rows: list[str] = []
        for node in [n for result in (*self.results, *self.item) for n in result.toposort()]:
            if node not in numbers:
                numbers[node] = len(numbers)
                shown = getattr(node.arg, "name", node.arg)      # a formula with its own gradient: its name
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
    name: str = ""                           # of a built-in formula, whose `backward` depends on its nodes alone


class Formula(NamedTuple):
    """Argument of a FORMULA: the function, and its arguments; those that are nodes are the FORMULA's sources."""
    function: Any                            # module-level; `function.__wrapped__` builds the nodes
    arguments: tuple[Any, ...]               # in order; a source's place holds its class

    def written_out(self, src: tuple[Any, ...]) -> Any:
        """Expand the formula over these sources."""
        return self.function.__wrapped__(*self.given(src))

    def shape(self, src: tuple[Any, ...]) -> Shape:
        """The result's shape; found by expanding the formula where it does not declare its shape."""
        known: Shape | None = self.function.shape(*self.given(src))
        return tuple(self.written_out(src).shape) if known is None else known

    def given(self, src: tuple[Any, ...]) -> list[Any]:
        """The arguments to call the function with, for these sources."""
        sources = iter(src)
        return [next(sources) if isinstance(a, type) else a for a in self.arguments]

    def __repr__(self) -> str:               # the same text in every process: it is part of schedules' keys
        shown = ", ".join(["_" if isinstance(a, type) else repr(a) for a in self.arguments])
        return f"{self.function.__module__}.{self.function.__qualname__}({shown})"


class Param(NamedTuple):
    slot: int
    shape: Shape
    scalar: bool = False                     # the value of a Cell, not memory
    device: str | None = None                # set while scheduling, not inside kernels


class Measure(NamedTuple):
    """Argument of a PARAM whose value is that of a variable."""
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
    scope: str                               # worker: private to a task; shared: visible to all tasks of the launch
    over: str = ""                           # name of another LOCAL whose memory it shares


class FoldOver(NamedTuple):
    combine: Op
    within: int = 0                          # number of neighbouring threads of a group that share a result; 0: all


class Cell:
    """A number that a kernel reads at launch: random streams, learning rates. Compared by identity."""
    __slots__ = ("value", "__weakref__")

    def __init__(self, value: Any):
        self.value = value

    def __repr__(self) -> str:
        return f"Cell({self.value!r})"
