"""The choices of recipes, as data. In: a recipe's own choice. Out: the choice to use, as text that can be replayed.

A recipe asks wherever there is a choice, and passes its own:

    lanes = decisions.ask(Lanes("i1", tile=4, lanes=16), refuses)      its own choice; why another one is refused

The choices in order, `kernel.moves` as text, are the kernel's description: ["lanes(loop=i1, tile=4, lanes=16)", ..]. A
description that is passed in replaces the recipe's own choices: all of them must fit, or it is refused with a reason. A
neighbour is a description with one field changed. Neighbours compute the same bits: a field that decides the order of a
sum is `fixed`, part of the description but never changed. Does not know loops or processors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any, ClassVar, TypeVar


class Refused(Exception):
    """Raised for a description that does not fit its kernel; the text says why."""


def fixed() -> Any:
    """Declare a field that decides the order of a sum, or that the kernel determines: no neighbour changes it."""
    return field(metadata={"fixed": True})


def one_of(*words: str) -> Any:
    """Declare a field whose value is one of these words, by default the first."""
    return field(default=words[0], metadata={"words": words})


@dataclass(frozen=True)
class Choice:
    """One decision, with fields that are integers, booleans or words. Each subclass is a kind of decision. Its text
    begins with its `family`, if it has one, otherwise with its declared name, by default the class name in lower case.

    >>> from glassgrad.compiler.optimize.plain.lanes_and_tasks import Lanes
    >>> text = str(Lanes("i1", tile=4, lanes=16)); text
    'lanes(loop=i1, tile=4, lanes=16)'
    >>> read(text) == Lanes("i1", tile=4, lanes=16)
    True
    >>> [str(c) for c in Lanes("i1", tile=2, lanes=1).neighbours()]
    ['lanes(loop=i1, tile=4, lanes=1)', 'lanes(loop=i1, tile=1, lanes=1)', 'lanes(loop=i1, tile=3, lanes=1)',
     'lanes(loop=i1, tile=2, lanes=2)']
    """
    kinds: ClassVar[dict[str, type[Choice]]] = {}
    text_name: ClassVar[str]

    def __init_subclass__(cls, names: Iterable[str] = ()) -> None:
        names = [*names] or [cls.__name__.lower()]
        cls.text_name = names[0]
        Choice.kinds.update(dict.fromkeys(names, cls))

    @property
    def kind(self) -> str:
        """The word that its text begins with: its family, if it has one."""
        return str(getattr(self, "family", self.text_name))

    @classmethod
    def shown_fields(cls) -> list[Field[Any]]:
        """The fields that appear in its text."""
        return [f for f in fields(cls) if f.name != "family"]

    def is_fixed(self, field_: Field[Any]) -> bool:
        """Whether no neighbour may change this field."""
        return bool(field_.metadata.get("fixed"))

    def __str__(self) -> str:
        shown = [f"{f.name}={_text(getattr(self, f.name))}" for f in self.shown_fields()
                 if f.default is MISSING or getattr(self, f.name) != f.default]
        return f"{self.kind}({', '.join(shown)})"

    def neighbours(self) -> list[Choice]:
        """Choices with one free field changed: a number doubled, halved, +1 or -1; a boolean flipped; another word."""
        found: list[Choice] = []
        for f in self.shown_fields():
            if not self.is_fixed(f):
                found += [replace(self, **{f.name: v}) for v in _near(f, getattr(self, f.name))]
        return found


def _near(field_: Field[Any], value: Any) -> list[Any]:
    """The values that a search tries instead of this one."""
    if isinstance(value, str):
        return [word for word in field_.metadata.get("words", ()) if word != value]
    if isinstance(value, bool):
        return [not value]
    return [v for v in dict.fromkeys([2 * value, value // 2, value + 1, value - 1]) if v >= 1 and v != value]


C = TypeVar("C", bound=Choice)
Refuses = Callable[[C], "str | None"]


def _text(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def read(text: str) -> Choice:
    """Parse a decision from its text; raises Refused for any other text."""
    match = re.fullmatch(r"([a-z]+)\(([^()]*)\)", text)
    kind = Choice.kinds.get(match[1]) if match else None
    if match is None or kind is None:
        raise Refused(f"{text!r} is none of the known moves ({', '.join(sorted(Choice.kinds))})")
    by_name = {f.name: f for f in kind.shown_fields()}
    values: dict[str, Any] = {}
    for part in filter(None, match[2].split(", ")):
        name, _, value = part.partition("=")
        if name not in by_name or name in values:
            raise Refused(f"{name!r} in {text!r} is not a field of {match[1]} ({', '.join(by_name)})")
        values[name] = _value(by_name[name], value, text)
    missing = [n for n, f in by_name.items() if n not in values and f.default is MISSING]
    if missing:
        raise Refused(f"{text!r} lacks {', '.join(missing)}")
    if any(f.name == "family" for f in fields(kind)):
        values["family"] = match[1]
    return kind(**values)


def _value(field_: Field[Any], value: str, text: str) -> Any:
    type_name = field_.type if isinstance(field_.type, str) else field_.type.__name__
    if type_name == "bool" and value in ("yes", "no"):
        return value == "yes"
    if type_name == "int" and re.fullmatch(r"\d{1,9}", value):
        return int(value)
    if type_name == "str" and re.fullmatch(r"\w+", value):
        return value
    raise Refused(f"{field_.name}={value} in {text!r} is no {type_name}")


class Decisions:
    """The decisions of one kernel, in order: the given ones or the recipe's own; and the alternatives to each."""

    def __init__(self, given: Sequence[str] | None = None):
        self.given = None if given is None else [read(text) for text in given]
        self.made: list[Choice] = []
        self._asked: list[tuple[Refuses[Any], Callable[[], Iterable[Choice]]]] = []

    @property
    def moves(self) -> list[str]:
        """The description: every decision as text."""
        return [str(choice) for choice in self.made]

    def ask(self, own: C, refuses: Refuses[C], also: Callable[[], Iterable[C]] = tuple) -> C:
        """Return the decision to follow: the given one, if it is not refused, or the recipe's `own`. `also` gives
        choices that a search should try besides the neighbours."""
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
        """Refuse a description with more decisions than the recipe made."""
        if self.given is not None and len(self.given) > len(self.made):
            raise Refused(f"{self.given[len(self.made)]}: the recipe makes no such decision here")

    def neighbours(self) -> list[list[str]]:
        """Descriptions with one decision changed; they alternate between the decisions."""
        rows = []
        for at, (choice, (refuses, also)) in enumerate(zip(self.made, self._asked)):
            near = dict.fromkeys([*choice.neighbours(), *also()])
            rows.append([[*self.moves[:at], str(c), *self.moves[at + 1:]] for c in near
                         if c != choice and refuses(c) is None])
        return [row[turn] for turn in range(max(map(len, rows), default=0)) for row in rows if turn < len(row)]


def _differs(own: Choice, given: Choice | None) -> str | None:
    """Why a given decision cannot replace the recipe's own; None if it can."""
    if given is None:
        return f"the description ends before {own}"
    if given.kind != own.kind:
        return f"the decision here is one of {own.kind}"
    for f in own.shown_fields():
        if own.is_fixed(f) and getattr(given, f.name) != getattr(own, f.name):
            return f"{f.name} is fixed: {getattr(own, f.name)}"
    return None
