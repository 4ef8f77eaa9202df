"""The comparison that every replay runs first: it must notice each kind of change, in each kind of place."""

from __future__ import annotations

from collections import OrderedDict, UserList, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from jit_reference import rand, same as agree

from glassgrad.jit import TinyJit
from glassgrad.jit.guards import Stale, Walk, compile_guards
from glassgrad.jit.plain_values import same


class Slotted:
    __slots__ = ("number", "thing")

    def __init__(self) -> None:
        self.number, self.thing = 1, [1]


class Own(list):
    pass


def _box() -> SimpleNamespace:
    """One of everything that a function can see."""
    return SimpleNamespace(
        number=1, real=0.0, text="a", nothing=None, none=[], few=[1, "two", None], many=[[i] for i in range(40)],
        plain=list(range(100)), by_name={"a": 1, "b": None}, by_number={1: 2, (3, 4): 5},
        wide={f"n{i}": [i] for i in range(40)}, ordered=OrderedDict(a=1), own=Own([1]), user=UserList([1]),
        group=(1, [2]), kinds={1, "x"}, empty=set(), names={"a", "b"}, frozen=frozenset({2}), array=np.zeros(3),
        slotted=Slotted(), nested={"a": [{"b": [1]}]}, turns=deque(range(40)),
        crowd=deque([Own() for _ in range(4100)]))


def _replace(name: str, value: Any) -> Callable[[SimpleNamespace], None]:
    return lambda box: setattr(box, name, value)


CHANGES: dict[str, Callable[[SimpleNamespace], Any]] = {
    "a number": _replace("number", 2), "its type": _replace("number", True),
    "an int as a float": _replace("number", 1.0),
    "a sign of zero": _replace("real", -0.0), "a text": _replace("text", "b"),
    "something for None": _replace("nothing", 0),
    "an attribute that goes": lambda box: delattr(box, "number"),
    "a None that goes": lambda box: delattr(box, "nothing"),
    "the first of none": lambda box: box.none.append(1),
    "an item": lambda box: box.few.__setitem__(2, 5), "an item's type": lambda box: box.few.__setitem__(0, True),
    "one more item": lambda box: box.few.append(None), "an item that goes": lambda box: box.few.pop(),
    "two items in another order": lambda box: box.few.reverse(),
    "one of many": lambda box: box.many.__setitem__(17, [17.0]), "one more of many": lambda box: box.many.append(0),
    "inside one of many": lambda box: box.many[17].append(0),
    "a plain list": lambda box: box.plain.__setitem__(99, 0),
    "a plain type": lambda box: box.plain.__setitem__(1, True),
    "an entry": lambda box: box.by_name.__setitem__("a", 2), "an entry that goes": lambda box: box.by_name.pop("b"),
    "one more entry": lambda box: box.by_name.__setitem__("c", None),
    "an entry under another name": lambda box: box.by_name.__setitem__("c", box.by_name.pop("b")),
    "an entry by number": lambda box: box.by_number.__setitem__(1, 3),
    "an entry by a pair": lambda box: box.by_number.__setitem__((3, 4), 3),
    "one of many entries": lambda box: box.wide.__setitem__("n7", [7.0]),
    "one of many entries renamed": lambda box: box.wide.__setitem__("m7", box.wide.pop("n7")),
    "an ordered entry": lambda box: box.ordered.__setitem__("a", 2),
    "a list of one's own": lambda box: box.own.append(2),
    "an item of one's own list": lambda box: box.own.__setitem__(0, 2), "a user's list": lambda box: box.user.append(2),
    "inside a tuple": lambda box: box.group[1].append(3), "a set": lambda box: box.kinds.add(2),
    "a set's type": lambda box: (box.kinds.discard(1), box.kinds.add(True)),
    "an empty set": lambda box: box.empty.add(1),
    "a set of texts": lambda box: box.names.add("c"), "a text that is none": lambda box: box.names.add(1),
    "another text in a set": lambda box: (box.names.discard("a"), box.names.add("A")),
    "a frozen set": _replace("frozen", frozenset({3})), "an array": lambda box: box.array.__setitem__(0, 1.0),
    "a slot": lambda box: setattr(box.slotted, "number", 2), "inside a slot": lambda box: box.slotted.thing.append(2),
    "a slot that goes": lambda box: delattr(box.slotted, "number"),
    "a long deque": lambda box: box.turns.rotate(), "a deque of many": lambda box: box.crowd.__setitem__(7, [1]),
    "deep inside": lambda box: box.nested["a"][0]["b"].append(2),
    "a list by an equal one of other types": _replace("few", [True, "two", None]),
}


def _change(check: Callable[[Any, list[Any], list[Any]], Any], instance: Any = None) -> str:
    """What is not as it was, in words; empty when all is."""
    try:
        check(instance, [], [])
    except Stale as stale:
        return str(stale)
    return ""


@pytest.mark.parametrize("through_self", [False, True])
@pytest.mark.parametrize("what", CHANGES)
def test_every_change_is_noticed_and_nothing_else(what: str, through_self: bool) -> None:
    box = _box()
    instance = SimpleNamespace(box=box) if through_self else None
    walk = Walk(lambda: None, [], instance) if through_self else Walk(lambda: box)
    seen = compile_guards(walk)
    assert [_change(seen, instance) for _ in range(3)] == [""] * 3
    CHANGES[what](box)
    said = _change(seen, instance)
    assert " is no longer " in said and _change(seen, instance) == said


def test_equal_values_that_are_other_objects_are_no_change() -> None:
    box = _box()
    box.nan, box.big = float("nan"), 10 ** 30
    seen = compile_guards(Walk(lambda: box))
    for _ in range(10):
        assert _change(seen) == ""
        box.number, box.real, box.text, box.nan = int("1"), float("0"), "".join(["a"]), float("nan")
        box.few, box.group = list(box.few), tuple(box.group)
        box.big = 10 ** 30
    box.few[0] = 7                        # of the list that took the other's place
    assert "few" in _change(seen)


@pytest.mark.parametrize("now, then, equal", [
    (1, 1, True), (1, True, False), (1, 1.0, False), (0.0, -0.0, False), (float("nan"), float("nan"), True),
    (1e300, 1e300, True), (0j, complex(0.0, -0.0), False), ("a", "a", True), (b"a", "a", False), (None, 0, False),
    ([1, [2]], [1, [2]], True), ([1, [2]], [1, [2.0]], False), ([1], (1,), False), ([1], [1, 2], False),
    ({"a": 1}, {"a": 1}, True), ({"a": 1}, {"b": 1}, False), ({1: 1}, {True: 1}, False), ({1, 2}, {2, 1}, True),
    ({1}, {True}, False), (range(3), range(0, 3), True), (range(0, 3, 2), range(0, 4, 2), False),
    (slice(1, 2), slice(1, 2), True), (slice(1, 2), slice(1, 2.0), False)])
def test_same_value(now: Any, then: Any, equal: bool) -> None:
    assert same(now, then) is equal and same(then, now) is equal


def test_a_setting_under_another_name_is_another_setting() -> None:
    flags: dict[str, bool] = {"double": True}

    def maybe_double(x):
        return x * 2 if flags.get("double") else x * 3
    jitted = TinyJit(maybe_double)
    for _ in range(6):
        x = rand(3)
        agree(jitted(x), maybe_double(x))
    flags["triple"] = flags.pop("double")          # the same object, in a dict of the same length
    x = rand(3)
    agree(jitted(x), maybe_double(x))


def test_a_zero_that_changes_its_sign() -> None:
    box = SimpleNamespace(zero=0.0)

    def signed(x):
        return x * 0 + (1.0 if str(box.zero) == "0.0" else -1.0)
    jitted = TinyJit(signed)
    for call in range(8):
        box.zero = 0.0 if call < 5 else -0.0
        agree(jitted(rand(3)), signed(rand(3)))
