"""Declare moves, log them, and apply only the first ones. In: functions with `@move`. Out: the moves that were applied.

A function with `@move` also declares the result of omitting it: the loops unchanged. If a recipe applies only its first
n moves, it still gives a complete tree that computes the same. So the tree after each move can be shown (in the
visualizer), and the first move after which it is wrong can be found (CHECK=1). A move called by another move is part
of that one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

from glassgrad.compiler.lower.loops import For, If

F = TypeVar("F", bound=Callable[..., Any])


class AppliedMove(NamedTuple):
    """A move that was applied: its name, and its before -> after."""
    name: str
    does: str
    file: str          # below glassgrad/compiler

    def __str__(self) -> str:
        return self.name


class MoveLog:
    """The moves that one recipe applied, in order; moves beyond the limit are omitted."""

    def __init__(self, limit: int | None = None):
        self.limit, self.applied, self.inside = limit, list[AppliedMove](), False


_log: ContextVar[MoveLog | None] = ContextVar("log", default=None)


@contextmanager
def logged_moves(limit: int | None = None) -> Iterator[MoveLog]:
    """Within this context, log moves, and apply only the first `limit` of them."""
    log = MoveLog(limit)
    token = _log.set(log)
    try:
        yield log
    finally:
        _log.reset(token)


def move(leave_out: Callable[..., Any]) -> Callable[[F], F]:
    """Decorator that declares a move. `leave_out` takes the same arguments and returns the loops without the move (or
    None, if that is how the move itself refuses)."""
    def declare(function: F) -> F:
        does = " ".join((function.__doc__ or "").split("\n\n")[0].split())
        file = function.__module__.split(".compiler.")[-1].replace(".", "/") + ".py"
        applied = AppliedMove(function.__name__, does, file)

        @wraps(function)
        def apply(*args: Any, **kwargs: Any) -> Any:
            log = _log.get()
            if log is None or log.inside:
                return function(*args, **kwargs)
            if log.limit is not None and len(log.applied) >= log.limit:
                return leave_out(*args, **kwargs)
            log.inside = True
            try:
                result = function(*args, **kwargs)
            finally:
                log.inside = False
            if result is not None and not _same(result, leave_out(*args, **kwargs)):
                log.applied.append(applied)
            return result
        return cast(F, apply)
    return declare


def _same(result: Any, left_out: Any) -> bool:
    """Whether a move changed nothing."""
    return _flat(result) == _flat(left_out)


def _flat(statements: Any) -> list[Any]:
    """Flatten statements, or lists of them, to a list to compare: loops by their heads, others by identity."""
    if isinstance(statements, (list, tuple)):
        return [row for inner in statements for row in ("[", *_flat(inner))]
    if isinstance(statements, For):
        return [statements.range, statements.kind, statements.stop, *_flat(statements.body)]
    if isinstance(statements, If):
        return [statements.condition, *_flat(statements.body)]
    return [statements]
