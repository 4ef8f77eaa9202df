"""Record what a function launches. In: a block of code. Out: `Trace`: the schedules that ran, their inputs and results.
"""

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
from glassgrad.engine.changing_sizes.general_graph import ServedGraph
from glassgrad.engine.compiled_schedule import CompiledSchedule
from glassgrad.engine.schedule_key import NormalizedGraph


class RunCheck(Protocol):
    """A check whether a run failed: 32-bit integers in memory (`buffer`), one of which is below its bound if it did."""
    buffer: Any
    bounds: list[int]
    nodes: list[UOp]             # the nodes that are checked
    reads_each_run: bool         # whether Python must read the integers after every run, failed or not
    numbers: Any                 # receives the one integer later, if a run does not wait for it; else None

    def over(self, change: Callable[[UOp], UOp]) -> RunCheck:
        """Return the same check for nodes over other buffers."""

    def verify(self, read: Callable[[Sequence[UOp]], list[Any]]) -> None:
        """Raise if the run failed; `read` computes nodes' values as arrays."""

    def settle(self, position: int, read: Callable[[Sequence[UOp]], list[Any]], late: bool = False) -> None:
        """Raise if the integer `position`, which arrived after the run, is below its bound. `late`: the call has ended
        since."""


@dataclass(eq=False)
class Record:
    """One schedule that ran: its compiled form, the graph it ran for, and the buffers it made. If its kernels serve all
    sizes, `served` says which they are."""
    compiled: CompiledSchedule
    normal: NormalizedGraph
    results: list[UOp]
    served: ServedGraph | None = None


@dataclass(eq=False)
class TouchedTensor:
    """A tensor that was given a value or a gradient during a trace, by the traced thread, and what it had before."""
    tensor: weakref.ref[Any]
    grad: Any
    is_replaced: bool = False                    # whether it left its storage, so that its views kept their values
    views_written: bool = False                  # whether its views got another value before that
    is_reset: bool = False                       # whether its gradient was set to None
    has_gradient: bool = False                   # whether it was given a gradient, if only for a time
    node: UOp | None = None                      # its node before it was given a value, if known


@dataclass(eq=False)
class Trace:
    """Schedules in the order they ran, the checks of each run, and what the program did to tensors."""
    records: list[Record] = field(default_factory=list)
    flags: list[RunCheck] = field(default_factory=list)
    variables: frozenset[str] = frozenset()      # names of the variables whose values each call brings
    any_size: bool = False                       # whether kernels for all sizes may run
    comparisons: dict[LengthComparison, None] = field(default_factory=dict)      # of variables, with outcomes
    made: list[weakref.ref[Any]] = field(default_factory=list)      # tensors that were made by this thread
    touched: dict[int, TouchedTensor] = field(default_factory=dict)      # by id
    data: set[UOp] = field(default_factory=set)           # buffers that plain data was copied into
    values: dict[UOp, UOp] = field(default_factory=dict)      # {node computed in this trace: its value}


class _Current(threading.local):
    """The trace that is being recorded, for each thread: work of other threads is not part of it."""
    trace: Trace | None = None


_current = _Current()


def recording() -> Trace | None:
    """Return the trace that this thread is recording; None if there is none."""
    return _current.trace


@contextmanager
def record(variables: Iterable[str] = (), any_size: bool = False) -> Iterator[Trace]:
    """Record everything that is realized inside the block."""
    before, trace = _current.trace, Trace(variables=frozenset(variables), any_size=any_size)
    _current.trace = trace
    try:
        yield trace
    finally:
        _current.trace = before


def note_made(tensor: Any) -> None:
    """Record that a tensor was made; called while any thread records a trace."""
    if _current.trace is not None:
        _current.trace.made.append(weakref.ref(tensor))


def _touched(tensor: Any) -> TouchedTensor | None:
    """Return the row of a tensor that is given a value or a gradient; None without a trace."""
    trace = _current.trace
    return None if trace is None else trace.touched.setdefault(
        id(tensor), TouchedTensor(weakref.ref(tensor), tensor.grad))


def note_gradient(tensor: Any, is_reset: bool = False) -> None:
    """Record that a tensor is about to get another gradient, or none."""
    if (row := _touched(tensor)) is not None:
        row.is_reset = row.is_reset or is_reset
        row.has_gradient = row.has_gradient or not is_reset


def note_written(tensor: Any, earlier: UOp | None = None) -> None:
    """Record that a tensor was given a value; `earlier` is its node before that."""
    if (row := _touched(tensor)) is not None:
        row.node = row.node or earlier


def note_replaced(tensor: Any) -> None:
    """Record that a tensor is about to leave its storage and get another value, so that its views keep theirs."""
    if (row := _touched(tensor)) is not None:
        row.views_written = row.views_written or row.node is not None and not row.is_replaced
        row.is_replaced = True


def note_data(node: UOp) -> UOp:
    """Record a buffer that plain data was copied into; return its node."""
    if _current.trace is not None:
        _current.trace.data.add(node)
    return node


def refuse_reading(what: str) -> None:
    """Raise if a trace is being recorded: a program that reads a value inside a jitted function would go on with the
    old value in a replay."""
    if _current.trace is not None:
        raise JitError("a value is read inside a jitted function", given=what,
                       expected="a function that only computes tensors: later calls replay its kernels, not its Python",
                       fix="return the tensor and read it outside, or leave the jit off this function")


def note_comparison(comparison: LengthComparison) -> None:
    """Record the outcome of a comparison of variables, on which the program's next steps may depend: a replay is for
    calls with the same outcome. Variables whose values no call brings cannot be compared again, so comparing them is
    refused."""
    trace = _current.trace
    if trace is not None:
        if not all(symbol.name in trace.variables for symbol in comparison.length.symbols):
            refuse_reading(f"{comparison}, which is true for some values only")
        trace.comparisons[comparison] = None


def refuse_binding(symbol: Symbol) -> None:
    """Raise if a variable whose value the call brings is bound again in a trace: a replay could not tell the two values
    apart."""
    if _current.trace is not None and symbol.name in _current.trace.variables:
        raise JitError("a variable is bound again inside a jitted function", given=f"{symbol.name} = {symbol.value}",
                       expected=f"the value of {symbol.name} that the call was given",
                       fix="use the bound variable that was passed in, or a Variable of another name")


on_comparing.append(note_comparison)
on_reading.append(refuse_reading)
on_binding.append(refuse_binding)
