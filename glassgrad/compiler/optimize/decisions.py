"""What recipes decide, as data. In: a recipe's own answer. Out: the answer to use, as text that can be replayed.

A recipe asks wherever it could do one thing or another, and says what it would do itself:

    lanes = decisions.ask(Lanes("i1", tile=4, lanes=16), refuses)      own answer, and why another would not do

The answers in order are the kernel's description, printed as `kernel.moves`: ["lanes(loop=i1, tile=4, lanes=16)", ..].
Given back, they are taken instead of the recipe's own: all of them fit, or the description is refused with a reason.
A neighbour is a description with one number changed. No neighbour changes a result by a bit: what decides the order
of a sum is `settled`, part of the description but not to be changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any, ClassVar, TypeVar


class Refused(Exception):
    """A description that does not fit its kernel; the text says why."""


def settled(default: Any = MISSING) -> Any:
    """A field that decides the order of a sum, or says what cannot be otherwise: no neighbour changes it."""
    return field(metadata={"settled": True}) if default is MISSING else \
        field(default=default, metadata={"settled": True})


@dataclass(frozen=True)
class Choice:
    """One decision: integers, truth values and names, by field. A subclass is a kind of decision.

    >>> from glassgrad.compiler.optimize.recipes import Lanes
    >>> text = str(Lanes("i1", tile=4, lanes=16)); text
    'lanes(loop=i1, tile=4, lanes=16)'
    >>> read(text) == Lanes("i1", tile=4, lanes=16)
    True
    >>> [str(c) for c in Lanes("i1", tile=2, lanes=1).neighbours()]
    ['lanes(loop=i1, tile=4, lanes=1)', 'lanes(loop=i1, tile=1, lanes=1)', 'lanes(loop=i1, tile=3, lanes=1)',
     'lanes(loop=i1, tile=2, lanes=2)']
    """
    kinds: ClassVar[dict[str, type[Choice]]] = {}

    def __init_subclass__(cls) -> None:
        Choice.kinds[cls.__name__.lower()] = cls

    def __str__(self) -> str:
        shown = [f"{f.name}={_text(getattr(self, f.name))}" for f in fields(self)
                 if f.default is MISSING or getattr(self, f.name) != f.default]
        return f"{type(self).__name__.lower()}({', '.join(shown)})"

    def neighbours(self) -> list[Choice]:
        """One free field changed: a number doubled, halved, one more, one less; a truth value turned over."""
        found: list[Choice] = []
        for f in fields(self):
            value = getattr(self, f.name)
            if f.metadata.get("settled") or isinstance(value, str):
                continue
            near = [not value] if isinstance(value, bool) else [2 * value, value // 2, value + 1, value - 1]
            found += [replace(self, **{f.name: v}) for v in dict.fromkeys(near)
                      if isinstance(v, bool) or (v >= 1 and v != value)]
        return found


C = TypeVar("C", bound=Choice)
Refuses = Callable[[C], "str | None"]


def _text(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def read(text: str) -> Choice:
    """A decision from its text; raises Refused for anything else."""
    match = re.fullmatch(r"([a-z]+)\(([^()]*)\)", text)
    kind = Choice.kinds.get(match[1]) if match else None
    if match is None or kind is None:
        raise Refused(f"{text!r} is none of the known moves ({', '.join(sorted(Choice.kinds))})")
    known = {f.name: f for f in fields(kind)}
    values: dict[str, Any] = {}
    for part in filter(None, match[2].split(", ")):
        name, _, value = part.partition("=")
        if name not in known or name in values:
            raise Refused(f"{name!r} in {text!r} is not a field of {match[1]} ({', '.join(known)})")
        values[name] = _value(known[name], value, text)
    missing = [n for n, f in known.items() if n not in values and f.default is MISSING]
    if missing:
        raise Refused(f"{text!r} lacks {', '.join(missing)}")
    return kind(**values)


def _value(known: Field[Any], value: str, text: str) -> Any:
    if known.type == "bool" and value in ("yes", "no"):
        return value == "yes"
    if known.type == "int" and re.fullmatch(r"\d{1,9}", value):
        return int(value)
    if known.type == "str" and re.fullmatch(r"\w+", value):
        return value
    raise Refused(f"{known.name}={value} in {text!r} is no {known.type}")


class Decisions:
    """The decisions of one kernel: those given, or the recipe's own; noted in order, with what else would do."""

    def __init__(self, given: Sequence[str] | None = None):
        self.given = None if given is None else [read(text) for text in given]
        self.made: list[Choice] = []
        self._asked: list[tuple[Refuses[Any], Callable[[], Iterable[Choice]]]] = []

    @property
    def moves(self) -> list[str]:
        """The description: every decision as text."""
        return [str(choice) for choice in self.made]

    def ask(self, own: C, refuses: Refuses[C], also: Callable[[], Iterable[C]] = tuple) -> C:
        """The decision to follow. `also` are answers worth trying that are no neighbours of the recipe's own."""
        chosen: Any = own
        if self.given is not None:
            at = len(self.made)
            chosen = self.given[at] if at < len(self.given) else None
            why = _differs(own, chosen) or refuses(chosen)
            if why:
                raise Refused(f"{chosen}: {why}" if chosen is not None else why)
        self.made.append(chosen)
        self._asked.append((refuses, also))
        return chosen  # type: ignore[no-any-return]

    def finish(self) -> None:
        """Everything that was given was asked for."""
        if self.given is not None and len(self.given) > len(self.made):
            raise Refused(f"{self.given[len(self.made)]}: nobody asks for it")

    def neighbours(self) -> list[list[str]]:
        """Descriptions with one decision changed, by turns from each of the decisions."""
        rows = []
        for at, (choice, (refuses, also)) in enumerate(zip(self.made, self._asked)):
            near = dict.fromkeys([*choice.neighbours(), *also()])
            rows.append([[*self.moves[:at], str(c), *self.moves[at + 1:]] for c in near
                         if c != choice and refuses(c) is None])
        return [row[turn] for turn in range(max(map(len, rows), default=0)) for row in rows if turn < len(row)]


def _differs(own: Choice, given: Choice | None) -> str | None:
    """Why a given decision does not answer a question; None where it does."""
    if given is None:
        return f"the description ends before {own}"
    if type(given) is not type(own):
        return f"the question is one of {type(own).__name__.lower()}"
    for f in fields(own):
        if f.metadata.get("settled") and getattr(given, f.name) != getattr(own, f.name):
            return f"{f.name} is settled: {getattr(own, f.name)}"
    return None
