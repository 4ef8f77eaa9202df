"""Watch what a function launches. In: a block of code. Out: `Trace`, every schedule it ran, with inputs and results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from glassgrad.base.errors import JitError
from glassgrad.engine.normal import Normal
from glassgrad.graph.uop import UOp

if TYPE_CHECKING:
    from glassgrad.engine.realize import Ready


@dataclass(eq=False)
class Record:
    """One schedule that ran: its compiled form, the graph it ran for, and the buffers it made."""
    ready: Ready
    normal: Normal
    results: list[UOp]


@dataclass(eq=False)
class Trace:
    records: list[Record] = field(default_factory=list)


_current: Trace | None = None


def recording() -> Trace | None:
    """The trace being taken now, if any."""
    return _current


@contextmanager
def record() -> Iterator[Trace]:
    """Everything realized inside is also noted in the trace."""
    global _current
    before, trace = _current, Trace()
    _current = trace
    try:
        yield trace
    finally:
        _current = before


def refuse_reading(what: str) -> None:
    """A value read by the program cannot be replayed: the program would go on with the old one."""
    if _current is not None:
        raise JitError("a value is read inside a jitted function", given=what,
                       expected="a function that only computes tensors: later calls replay its kernels, not its Python",
                       mend="return the tensor and read it outside, or leave the jit off this function")
