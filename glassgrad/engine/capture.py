"""Record what a function launches. In: a block of code. Out: `Trace`: the schedules that ran, inputs and results."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from glassgrad.base.errors import JitError
from glassgrad.compiler.graph.symbolic import LengthComparison, Symbol, on_binding, on_comparing, on_reading
from glassgrad.compiler.graph.uop import UOp
from glassgrad.engine.changing_sizes.size_families import ServedGraph
from glassgrad.engine.compiled_schedule import CompiledSchedule
from glassgrad.engine.schedule_key import NormalizedGraph


class RunCheck(Protocol):
    """32-bit integers in memory (`buffer`) that say whether a run failed: it did if one is below its bound."""
    buffer: Any
    bounds: list[int]
    nodes: list[UOp]             # the nodes that are checked
    reads_each_run: bool         # whether Python must read them after every run, failed or not
    numbers: Any                 # receives the one integer later, where a run does not wait for it; else None

    def over(self, change: Callable[[UOp], UOp]) -> RunCheck:
        """The same check of nodes over other buffers."""

    def verify(self, read: Callable[[Sequence[UOp]], list[Any]]) -> None:
        """Raise if the run failed; `read` gives nodes' values as arrays."""

    def settle(self, position: int, read: Callable[[Sequence[UOp]], list[Any]], late: bool = False) -> None:
        """The same, for an integer that arrived later."""


@dataclass(eq=False)
class Record:
    """One schedule that ran: its compiled form, the graph it ran for, and the buffers it made; `served` says which
    kernels for all sizes it consists of, if of such."""
    compiled: CompiledSchedule
    normal: NormalizedGraph
    results: list[UOp]
    served: ServedGraph | None = None


@dataclass(eq=False)
class TouchedTensor:
    """A tensor that the thread of a trace gave a value or a gradient, and what it had before."""
    tensor: weakref.ref[Any]
    grad: Any
    is_replaced: bool = False                    # whether it left its storage: views of it did not get that value
    views_written: bool = False                  # whether they got another one, before that
    is_reset: bool = False                       # whether its gradient was set to None
    has_gradient: bool = False                   # whether it was given one, if only for a time
    node: UOp | None = None                      # what it stood for before that, where it is known


@dataclass(eq=False)
class Trace:
    """Schedules in the order they ran, and the checks of each run."""
    records: list[Record] = field(default_factory=list)
    flags: list[RunCheck] = field(default_factory=list)
    variables: frozenset[str] = frozenset()      # names of those whose values each call brings
    any_size: bool = False                       # whether kernels for all sizes may run
    answers: dict[LengthComparison, None] = field(default_factory=dict)      # how comparisons of those values came out
    made: list[weakref.ref[Any]] = field(default_factory=list)      # tensors that were made by this thread
    touched: dict[int, TouchedTensor] = field(default_factory=dict)      # by id
    data: set[UOp] = field(default_factory=set)           # buffers that hold plain data copied in it
    values: dict[UOp, UOp] = field(default_factory=dict)      # of nodes computed in it; a replay has others


class _Current(threading.local):
    """The trace being taken: another thread's work is no part of it."""
    trace: Trace | None = None


_current = _Current()


def recording() -> Trace | None:
    """The trace being taken now by this thread, if any."""
    return _current.trace


@contextmanager
def record(variables: Iterable[str] = (), any_size: bool = False) -> Iterator[Trace]:
    """Everything realized inside is also noted in the trace."""
    before, trace = _current.trace, Trace(variables=frozenset(variables), any_size=any_size)
    _current.trace = trace
    try:
        yield trace
    finally:
        _current.trace = before


def note_made(tensor: Any) -> None:
    """A tensor was made; called while a trace of any thread is taken."""
    if _current.trace is not None:
        _current.trace.made.append(weakref.ref(tensor))


def _touched(tensor: Any) -> TouchedTensor | None:
    """The row of a tensor that is given a value or a gradient."""
    trace = _current.trace
    return None if trace is None else trace.touched.setdefault(
        id(tensor), TouchedTensor(weakref.ref(tensor), tensor.grad))


def note_gradient(tensor: Any, is_reset: bool = False) -> None:
    """A tensor is to get another gradient, or none; called before it does."""
    if (row := _touched(tensor)) is not None:
        row.is_reset = row.is_reset or is_reset
        row.has_gradient = row.has_gradient or not is_reset


def note_written(tensor: Any, earlier: UOp | None = None) -> None:
    """A tensor was given a value; `earlier` is the node that it stood for before."""
    if (row := _touched(tensor)) is not None:
        row.node = row.node or earlier


def note_replaced(tensor: Any) -> None:
    """A tensor is to leave its storage and to get another value: views of it keep theirs."""
    if (row := _touched(tensor)) is not None:
        row.views_written = row.views_written or row.node is not None and not row.is_replaced
        row.is_replaced = True


def note_data(node: UOp) -> UOp:
    """A buffer that plain data was copied into."""
    if _current.trace is not None:
        _current.trace.data.add(node)
    return node


def refuse_reading(what: str) -> None:
    """A value read by the program cannot be replayed: the program would go on with the old one."""
    if _current.trace is not None:
        raise JitError("a value is read inside a jitted function", given=what,
                       expected="a function that only computes tensors: later calls replay its kernels, not its Python",
                       fix="return the tensor and read it outside, or leave the jit off this function")


def note_answer(comparison: LengthComparison) -> None:
    """Record the outcome of a comparison of variables, on which the program's next steps may depend: a replay is for
    calls with the same outcome. Variables that no call brings are not compared again, so theirs is refused."""
    trace = _current.trace
    if trace is not None:
        if not all(symbol.name in trace.variables for symbol in comparison.length.symbols):
            refuse_reading(f"{comparison}, which is true for some values only")
        trace.answers[comparison] = None


def refuse_binding(symbol: Symbol) -> None:
    """A variable that a call brings has one value in it; another one could not be told apart in a replay."""
    if _current.trace is not None and symbol.name in _current.trace.variables:
        raise JitError("a variable is bound again inside a jitted function", given=f"{symbol.name} = {symbol.value}",
                       expected=f"the value of {symbol.name} that the call was given",
                       fix="use the bound variable that was handed in, or a Variable of another name")


on_comparing.append(note_answer)
on_reading.append(refuse_reading)
on_binding.append(refuse_binding)
