"""Watch what a function launches. In: a block of code. Out: `Trace`, every schedule it ran, with inputs and results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from glassgrad.base.errors import JitError
from glassgrad.compiler.graph.symbolic import LengthComparison, Symbol, on_binding, on_comparing, on_reading
from glassgrad.compiler.graph.uop import UOp
from glassgrad.engine.executable import Ready
from glassgrad.engine.schedule_key import Normal


class Flag(Protocol):
    """A 32-bit number in memory (`buffer`) that says whether a run went well: below `size`, it did not."""
    buffer: Any
    size: int

    def over(self, change: Callable[[UOp], UOp]) -> Flag:
        """The same of values over other buffers."""

    def verify(self, read: Callable[[UOp], Any]) -> None:
        """Raise if it did not; `read` gives a node's values as an array."""


@dataclass(eq=False)
class Record:
    """One schedule that ran: its compiled form, the graph it ran for, and the buffers it made."""
    ready: Ready
    normal: Normal
    results: list[UOp]


@dataclass(eq=False)
class Trace:
    """Schedules in the order they ran, and what to look at after each run of them."""
    records: list[Record] = field(default_factory=list)
    flags: list[Flag] = field(default_factory=list)
    variables: frozenset[str] = frozenset()      # names of those whose values each call brings
    answers: dict[LengthComparison, None] = field(default_factory=dict)      # what was asked of those values
    touched: set[int] = field(default_factory=set)     # the ids of tensors that this thread gave a value or a gradient
    values: dict[UOp, UOp] = field(default_factory=dict)      # what nodes were found to be in it; a replay finds others


class _Current(threading.local):
    """The trace being taken: another thread's work is no part of it."""
    trace: Trace | None = None


_current = _Current()


def recording() -> Trace | None:
    """The trace being taken now by this thread, if any."""
    return _current.trace


@contextmanager
def record(variables: Iterable[str] = ()) -> Iterator[Trace]:
    """Everything realized inside is also noted in the trace."""
    before, trace = _current.trace, Trace(variables=frozenset(variables))
    _current.trace = trace
    try:
        yield trace
    finally:
        _current.trace = before


def touch(tensor: Any) -> None:
    """This thread gives a tensor a value or a gradient: a trace that another thread takes has no part in it."""
    if _current.trace is not None:
        _current.trace.touched.add(id(tensor))


def refuse_reading(what: str) -> None:
    """A value read by the program cannot be replayed: the program would go on with the old one."""
    if _current.trace is not None:
        raise JitError("a value is read inside a jitted function", given=what,
                       expected="a function that only computes tensors: later calls replay its kernels, not its Python",
                       fix="return the tensor and read it outside, or leave the jit off this function")


def note_answer(comparison: LengthComparison) -> None:
    """What the program does next may hang on this answer: a replay is for calls whose variables give the same one.
    Variables that no call brings are not looked at again, so an answer of theirs cannot be kept."""
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
