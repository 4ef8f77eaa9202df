"""Tensors that are replaced where they are found. In: places. Out: `Guests`, looked up at each call.

`self.hidden = cell(x, self.hidden)`: the tensor of one call is not that of the next, so what the function reads is a
place, whatever is there when a call begins: a tensor, or a nest of tensors and plain values.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.symbolic import Length, Symbol, replaced
from glassgrad.compiler.graph.uop import UOp
from glassgrad.engine.realize import is_result
from glassgrad.jit.buffer_substitution import Names
from glassgrad.jit.object_paths import PLAIN, Content, Place, is_array
from glassgrad.tensor.tensor import Tensor

__all__ = ["Form", "Guests", "Reference", "State", "as_buffer", "describe", "is_nest", "mapped", "of_trace",
           "tensors_of"]

_DEEPEST = 8               # a nest of more levels is not looked through


def mapped(value: Any, change: Callable[[Any], Any], kind: type = Tensor) -> Any:
    """A nest of lists, tuples and dicts with every tensor, or whatever else is of a kind, exchanged."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[mapped(v, change, kind) for v in value])
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(v, change, kind) for v in value)
    if isinstance(value, dict):
        return {k: mapped(v, change, kind) for k, v in value.items()}
    return value


def describe(value: Any, form: list[Any], tensors: list[Tensor], objects: list[Any], symbols: Names) -> None:
    """What a value is recognised by, part by part: tensors by shape, type and device, plain values and arrays by value,
    objects by identity (what is inside them is watched). Of variables only the order and the bounds count."""
    if isinstance(value, Tensor):
        tensors.append(value)
        form += (value.__class__, _numbered(value.shape, symbols), value.dtype, value.device, value.requires_grad)
    elif isinstance(value, slice):
        form += (slice, repr(value))
    elif isinstance(value, PLAIN):
        form += (type(value), repr(value) if isinstance(value, (float, complex)) else value)
    elif isinstance(value, (list, tuple)):
        form += (type(value), len(value))
        for v in value:
            describe(v, form, tensors, objects, symbols)
    elif isinstance(value, dict):
        form += (dict, len(value), *value)
        for v in value.values():
            describe(v, form, tensors, objects, symbols)
    elif isinstance(value, Length):
        form += (Length, _numbered(value, symbols))
    elif is_array(value):
        form.append(Content(value))
    else:
        objects.append(value)
        form += (type(value), id(value))


def _numbered(value: Any, symbols: Names) -> Any:
    """A shape or a length with its variables numbered in the order they are met."""
    return replaced(value, lambda s: symbols.setdefault(s, Symbol(f"v{len(symbols)}", s.low, s.high)))


def is_nest(value: Any, deep: int = 0) -> bool:
    """Whether a value is a tensor, a plain value, or lists, tuples and dicts of these: a call can make another one.

    >>> is_nest((Tensor([1.0]), {"steps": 3})), is_nest([object()])
    (True, False)
    """
    if isinstance(value, (Tensor, *PLAIN)):
        return True
    kind = type(value)
    if kind in (list, dict) or issubclass(kind, tuple) and (kind is tuple or hasattr(kind, "_fields")):
        return deep < _DEEPEST and all(is_nest(v, deep + 1) for v in (value.values() if kind is dict else value))
    return False


class _Number(int):
    """What stands for a tensor in a form."""


class Form:
    """A nest without its tensors, each known by a number.

    >>> x, y = Tensor([1.0]), Tensor([2.0])
    >>> form = Form({"pair": (y, x), "steps": 3}, {id(x): 0, id(y): 1})
    >>> form.numbers, form.filled(["first", "second"])
    ([1, 0], {'pair': ('second', 'first'), 'steps': 3})
    """

    def __init__(self, value: Any, numbers: Mapping[int, int]):
        self.numbers = [numbers[id(t)] for t in tensors_of(value)]
        self.single = isinstance(value, Tensor)
        self._nest = mapped(value, lambda t: _Number(numbers[id(t)]))

    def filled(self, tensors: Sequence[Any]) -> Any:
        """The nest, of these."""
        return mapped(self._nest, tensors.__getitem__, _Number)


class Guests:
    """What was found, when a call began, at the places where tensors come and go."""

    def __init__(self, places: Sequence[Place], lasting: Set[int]):
        """`lasting` are the ids of tensors that the function sees elsewhere, where they stay."""
        self.places = places
        self._now: list[Tensor] = []           # the tensors there are, between `fit` and `leave`
        self._read: list[Tensor] = []          # the same, but lazy ones computed
        self._form = self._look([place.value for place in places])
        self.then = [weakref.ref(t) for t in self._now]
        self.keys = [(place.key, i) for place in places for i, _ in enumerate(tensors_of(place.value))]
        first = {id(t): i for i, t in reversed(list(enumerate(self._now)))}
        self.states = {key: State(self, i) for key, i in first.items() if key not in lasting}
        # a replay relies on which of them were one tensor, and on those that the function sees elsewhere
        self._again = [(i, first[id(t)]) for i, t in enumerate(self._now) if first[id(t)] != i]
        self._lasting = [(i, weakref.ref(t)) for i, t in enumerate(self._now) if id(t) in lasting]
        self._others = sorted(state.number for state in self.states.values())
        self.found = [self._now[i] for i in self._others]        # the states among them

    def _look(self, values: Iterable[Any]) -> list[Any]:
        """Note the tensors in these values; the form of the rest."""
        form: list[Any] = []
        symbols: Names = {}
        self._now = []
        for value in values:
            describe(value, form, self._now, [], symbols)
        return [*form, symbols] if symbols else form

    def fit(self, own: Set[int]) -> bool:
        """Whether what is there now may stand for what was there then; until `leave`, the states are these. None of
        `own`, by id, is taken: those are watched under names of their own."""
        values = [place.now() for place in self.places]
        if not all(map(is_nest, values)) or self._look(values) != self._form:
            return False
        now = self._now
        self.found = [now[i] for i in self._others]
        if any(now[i] is not now[first] for i, first in self._again) \
                or any(now[i] is not reference() for i, reference in self._lasting) \
                or not own.isdisjoint(map(id, self.found)):
            return False
        self._read = [t if t.uop.base.op is o.BUFFER else Tensor(as_buffer(t)) for t in now]
        return True

    def names(self) -> str:
        """The places, as the user would write them."""
        return ", ".join(map(str, self.places))

    def leave(self) -> None:
        """Hold none of them any longer."""
        self._now, self._read, self.found = [], [], []


def tensors_of(value: Any) -> list[Tensor]:
    """Those in a nest."""
    found: list[Tensor] = []
    mapped(value, found.append)
    return found


class State:
    """A tensor that was found at such a place. Called, it is the one of this call, as a weak reference to a weight is
    the weight."""
    __slots__ = ("guests", "key", "number")

    def __init__(self, guests: Guests, number: int):
        self.guests, self.number, self.key = guests, number, guests.keys[number]

    def __call__(self) -> Tensor | None:
        return self.guests._read[self.number] if self.guests._read else None

    def itself(self) -> Tensor:
        """The tensor that is there; called, the state is its value where it is lazy."""
        return self.guests._now[self.number]


Reference = Callable[[], "Tensor | None"]        # a State, or a weak reference


def of_trace(reference: Any) -> Tensor | None:
    """The tensor that a reference stood for in the trace that is being taken apart."""
    if isinstance(reference, State):
        reference = reference.guests.then[reference.number]
    return reference()       # type: ignore[no-any-return]


def as_buffer(tensor: Tensor) -> UOp:
    """A tensor's value as one BUFFER of its shape."""
    node = tensor.uop
    if node.op is o.BUFFER:
        return node
    if node.base.op is o.BUFFER:
        while node.op in (o.RESHAPE, o.DETACH):
            node = node.src[0]
        if node.op is o.BUFFER or is_result(node):
            return node.base
    return Tensor(tensor.uop.contiguous()).realize().uop.base
