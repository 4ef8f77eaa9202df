"""List the groups of checks, in the order in which to make a new device pass them. In: nothing. Out: `GROUPS`.

A device's grade is the number of groups that it completes, counted from the first: a device of grade 3 copies, computes
elements and reduces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from glassgrad.base.errors import InputError
from glassgrad.conformance.case import Case
from glassgrad.conformance.copy_checks import copies
from glassgrad.conformance.element_type_checks import element_types
from glassgrad.conformance.op_checks import contractions, elementwise, reductions, views
from glassgrad.conformance.program_checks import jit, random_numbers, training


@dataclass(frozen=True)
class Grade:
    """A group of checks, and where to look when one fails."""
    name: str
    cases: Callable[[], Iterator[Case]]
    look: str


GROUPS = (
    Grade("copies", copies, "the device's memory: allocate, copy_in and copy_out, and that copies wait for kernels"),
    Grade("elementwise", elementwise, "how an op is written in the device's language; fast-math must be off"),
    Grade("reductions", reductions, "registers that keep a value over a loop, and memory that a launch brings along"),
    Grade("contractions", contractions, "index arithmetic of nested loops, and barriers where threads share memory"),
    Grade("views", views, "gates of loads, negative steps, and addresses inside a block"),
    Grade("dtypes", element_types, "sizes and casts of the element type; refuse a type that is missing by its name"),
    Grade("random", random_numbers, "32-bit unsigned arithmetic that wraps, and shifts"),
    Grade("jit", jit, "a replay launches with other addresses: nothing may be kept from the launch before"),
    Grade("training", training, "many kernels in order, and values that are written in place"),
)


def chosen(only: Sequence[str]) -> list[Grade]:
    """Return the groups of these names or numbers; all groups if none is given.

    >>> [group.name for group in chosen(["1", "views"])]
    ['copies', 'views']
    """
    for word in only:
        if not any(word in (group.name, str(number)) for number, group in enumerate(GROUPS, 1)):
            raise InputError("there is no such grade", given=repr(word),
                             expected=f"1 to {len(GROUPS)}, or one of {', '.join(group.name for group in GROUPS)}",
                             fix=f"--only {GROUPS[0].name}")
    return [group for number, group in enumerate(GROUPS, 1) if not only or group.name in only or str(number) in only]
