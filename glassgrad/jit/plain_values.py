"""Compare and rebuild plain values and nests of tensors. In: Python values. Out: whether they are equal, their form.

Plain values are equal only if their types and bits are: 1, 1.0 and True are three values, and so are 0.0 and -0.0.
A nest is a tensor, a plain value, or a list, tuple or dict of nests. Does not know functions, traces or replays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import Any

from glassgrad.compiler.graph.symbolic import Length, Symbol, replaced
from glassgrad.tensor.tensor import Tensor

SymbolNames = dict[Symbol, Symbol]       # variables of a trace, and what they are in a call
PLAIN = (bool, int, float, complex, str, bytes, type(None), range, slice)
_BY_TEXT = (float, complex, range, slice)      # by repr: 0.0 equals -0.0, nan not itself; slices have no hash
_DEEPEST = 8                                   # levels; deeper values are no nests


# -- equality ----------------------------------------------------------------------------------------------------------
def is_array(value: Any) -> bool:
    """Whether a value is a NumPy array or scalar; does not import NumPy."""
    return type(value).__module__ == "numpy" and hasattr(value, "tobytes")


def is_plain(value: Any) -> bool:
    """Whether a value is a number, a string, None, or a tuple of these: immutable, so an equal one may replace it.

    >>> is_plain((1, ("a", None))), is_plain((1, [2]))
    (True, False)
    """
    return isinstance(value, PLAIN) or type(value) is tuple and all(map(is_plain, value))


class ArrayContent:
    """The content of an array, compared bit by bit in the array's own memory; `kept` copies it.

    >>> import numpy
    >>> a = numpy.array([1.0, 2.0])
    >>> kept = ArrayContent(a).kept()
    >>> a[0] = 5.0; ArrayContent(a) == kept, ArrayContent(numpy.array([1.0, 2.0])) == kept
    (False, True)
    """
    __slots__ = ("array",)

    def __init__(self, array: Any):
        self.array = array

    def kept(self) -> ArrayContent:
        """A copy, which later writes to the array do not change."""
        return ArrayContent(self.array.copy())

    def _form(self) -> tuple[Any, ...]:
        return (type(self.array), self.array.shape, str(self.array.dtype))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArrayContent) and self._form() == other._form() \
            and bool((_words(self.array) == _words(other.array)).all())

    def __hash__(self) -> int:
        words = _words(self.array)
        return hash((self._form(), words[::len(words) // 64 + 1].tobytes()))


def _words(array: Any) -> Any:
    """An array's bytes as integers of the widest type that divides their number."""
    flat = array.reshape(-1)
    width = next(w for w in (8, 4, 2, 1) if flat.nbytes % w == 0)
    try:
        return (flat if flat.flags.c_contiguous else flat.copy()).view(f"u{width}")
    except TypeError:                    # Python objects in it: compared as such
        return flat


def same(now: Any, then: Any) -> bool:
    """Whether a value is unchanged: equal for plain values, arrays and containers of these, else the identical object.

    >>> same((1, 2.5), (1, 2.5)), same([1], [True]), same({"a": 0.0}, {"a": -0.0})
    (True, False, False)
    """
    if now is then:
        return True
    kind = then.__class__
    if now.__class__ is not kind:
        return False
    if issubclass(kind, (list, tuple)):
        return len(now) == len(then) and (all(map(is_, now, then)) or all(map(same, now, then)))
    if issubclass(kind, dict):
        return same(list(now), list(then)) and same(list(now.values()), list(then.values()))
    if issubclass(kind, (set, frozenset)):
        return bool(now == then) and (not then or set(zip(map(type, now), now)) == set(zip(map(type, then), then)))
    if kind in _BY_TEXT:
        return repr(now) == repr(then)
    return (kind in PLAIN or kind is ArrayContent) and bool(now == then)


# -- nests -------------------------------------------------------------------------------------------------------------
def mapped(value: Any, change: Callable[[Any], Any], kind: type = Tensor,
           others: Callable[[Any], Any] | None = None) -> Any:
    """A copy of a nest in which `change` replaces every tensor (or value of another `kind`), and `others`, if given,
    every other leaf."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, (list, tuple)):
        parts = [mapped(v, change, kind, others) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        return {k: mapped(v, change, kind, others) for k, v in value.items()}
    return value if others is None else others(value)


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in a nest."""
    found: list[Tensor] = []
    mapped(value, found.append)
    return found


def is_nest(value: Any, deep: int = 0) -> bool:
    """Whether a value is a tensor, a plain value, or lists, tuples and dicts of these: a replay can rebuild it.

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
    """The number that replaces a tensor in a `NestForm`."""


class NestForm:
    """A nest with every tensor replaced by a number.

    >>> x, y = Tensor([1.0]), Tensor([2.0])
    >>> form = NestForm({"pair": (y, x), "steps": 3}, {id(x): 0, id(y): 1})
    >>> form.numbers, form.filled(["first", "second"])
    ([1, 0], {'pair': ('second', 'first'), 'steps': 3})
    """

    def __init__(self, value: Any, numbers: Mapping[int, int]):
        self.numbers = [numbers[id(t)] for t in tensors_of(value)]
        self.single = isinstance(value, Tensor)
        self._nest = mapped(value, lambda t: _Number(numbers[id(t)]))

    def filled(self, tensors: Sequence[Any]) -> Any:
        """The nest with the given tensors in place of the numbers."""
        return mapped(self._nest, tensors.__getitem__, _Number)


def describe(value: Any, form: list[Any], tensors: list[Tensor], objects: list[Any], symbols: SymbolNames) -> None:
    """Append to `form` what an argument is recognized by: tensors by shape, type and device, plain values and arrays by
    value, objects by identity (their contents are guarded). Of variables only the order and the bounds count."""
    if isinstance(value, Tensor):
        tensors.append(value)
        node = value.uop
        shape = _numbered(node.shape, symbols) if node.symbolic else node.shape
        form += (value.__class__, shape, node.dtype, node.device or value.device, value.requires_grad)
    elif isinstance(value, PLAIN):
        form += (type(value), repr(value) if isinstance(value, _BY_TEXT) else value)
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
        form.append(ArrayContent(value))
    else:
        objects.append(value)
        form += (type(value), id(value))


def _numbered(value: Any, symbols: SymbolNames) -> Any:
    """A shape or a length with its variables numbered in the order they occur."""
    return replaced(value, lambda s: symbols.setdefault(s, Symbol(f"v{len(symbols)}", s.low, s.high)))
