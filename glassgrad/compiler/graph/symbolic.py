"""Sizes that are known only at run time. In: variables with bounds. Out: `Length`s, which shapes hold like ints.

A length is a polynomial over variables in one canonical form, so equal lengths compare equal however they were
computed, and `1024 - v + v` is the int 1024 again. Its bounds follow from those of its variables. A bound variable also
has a value, which is not part of a graph's structure: one kernel serves every value.

Comparisons are decided by the bounds if possible, otherwise by the current value; the jit records the latter as a
guard, and replays a call only if they come out the same. Where a plain number is needed (`int(v)`, `range(v)`), the
value is read; a jitted function may not do that, because replays have other values.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple, Union

from glassgrad.base.errors import InputError, ShapeError


class Symbol(NamedTuple):
    """A variable as graphs see it: a name, its bounds, and its current value. Memory whose shape depends on it is sized
    for `high`; or for its value, if it is `exact`: then strides depend on the value."""
    name: str
    low: int
    high: int
    value: int | None = None
    exact: bool = False


class Quotient(NamedTuple):
    """length // divisor, where the division is not exact."""
    length: Length
    divisor: int


Atom = Union[Symbol, Quotient]        # noqa: UP007 - it is evaluated, on Python 3.10 too
Monomial = tuple                      # of Atoms, sorted
Terms = dict[Monomial, int]           # the constant is the term of ()

_MOST_LENGTHS = 4096                  # that are cached with their products and bounds
_UNBOUNDED = 1 << 200

SIGNS: dict[str, Callable[[int, int], bool]] = {"<": operator.lt, "<=": operator.le, ">": operator.gt,
                                                ">=": operator.ge, "!=": operator.ne}


class LengthComparison(NamedTuple):
    """A comparison of a length with 0 that its bounds do not decide, and its result for the current value."""
    length: Length
    sign: str
    answer: bool

    def holds(self, value_of: Callable[[Symbol], int]) -> bool:
        """Whether the result is the same for other values of the variables."""
        return SIGNS[self.sign](int(replaced(self.length, value_of)), 0) is self.answer

    def __str__(self) -> str:
        return f"whether {repr(self.length).split(' = ')[0]} {self.sign} 0"


on_comparing: list[Callable[[LengthComparison], None]] = []     # called with each result that depends on the value
on_reading: list[Callable[[str], None]] = []     # called before a value is read; the jit raises an error here
on_binding: list[Callable[[Symbol], None]] = []  # called when a variable is bound


class Length:
    """A size that depends on variables. `+ - * //` give lengths, or ints where the variables cancel.

    >>> v = Variable("v", 1, 10).bind(3)
    >>> 2 * v + 1, (2 * v + 1).val, v + 4 - v, (2 * v + 1).min, (2 * v + 1).max
    (2*v + 1 = 7, 7, 4, 3, 21)

    It equals only the same length, and no int: shapes with other lengths are other shapes, even if their current values
    agree. `<` and the other comparisons compare values.

    >>> v + 1 == 1 + v, v == 3, 2 < v < 4
    (True, False, True)
    """
    __slots__ = ("terms", "_hash")
    terms: tuple[tuple[Monomial, int], ...]

    def __init__(self, terms: Terms):
        kept = [(m, k) for m, k in terms.items() if k]
        if len(kept) > 1:
            kept.sort(key=_order)
        self.terms = tuple(kept)
        self._hash = hash(self.terms)

    # -- what it is ------------------------------------------------------------------------------------------
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Length) and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> tuple[tuple[Monomial, int], ...]:
        return self.terms                          # without the hash: hashes of names differ between processes

    def __setstate__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms, self._hash = terms, hash(terms)

    def __repr__(self) -> str:
        text = " + ".join("*".join([*([str(k)] if k != 1 or not m else []), *[_name(a) for a in m]])
                          for m, k in sorted(self.terms, key=lambda t: not t[0])).replace("+ -", "- ")
        return text if not self.is_bound else f"{text} = {self._evaluate()}"

    @property
    def symbols(self) -> list[Symbol]:
        """The variables it depends on, without repetitions."""
        found: dict[Symbol, None] = {}
        for monomial, _ in self.terms:
            for atom in monomial:
                found.update(dict.fromkeys([atom] if isinstance(atom, Symbol) else atom.length.symbols))
        return list(found)

    @property
    def is_bound(self) -> bool:
        """Whether every variable in it has a value."""
        return all(s.value is not None for s in self.symbols)

    @property
    def min(self) -> int:
        """The least possible value."""
        return max(sum(_bounds(m, k)[0] for m, k in self.terms), _without_quotients(self)[0])

    @property
    def max(self) -> int:
        """The greatest possible value."""
        return min(sum(_bounds(m, k)[1] for m, k in self.terms), _without_quotients(self)[1])

    vmin, vmax = min, max      # tinygrad's names

    @property
    def val(self) -> int:
        """The current value."""
        return self._read(f"the value of {self}")

    # -- arithmetic ------------------------------------------------------------------------------------------
    def __add__(self, other: Any) -> Any: return _combined(self, other, 1)
    def __radd__(self, other: Any) -> Any: return _combined(self, other, 1)
    def __sub__(self, other: Any) -> Any: return _combined(self, other, -1)
    def __rsub__(self, other: Any) -> Any: return _combined(-self, other, 1)
    def __neg__(self) -> Length: return Length({m: -k for m, k in self.terms})
    def __mul__(self, other: Any) -> Any: return _product(self, other)
    def __rmul__(self, other: Any) -> Any: return _product(self, other)

    def __floordiv__(self, other: Any) -> Any:
        exact = _exact_quotient(self, other)
        if exact is not None:
            return exact
        if not isinstance(other, int) or other <= 0:
            raise ShapeError("a length cannot be divided by this", given=f"{self} // {other}",
                             expected="a positive integer, or a length that divides it for every value",
                             fix="divide the plain number: v.val, outside of jitted functions")
        inner = [(m[0], k) for m, k in self.terms if len(m) == 1 and isinstance(m[0], Quotient)]
        if len(inner) == 1 and inner[0][1] in (1, -1):                 # (x // a + y) // b = (x + a * y) // (a * b)
            [(quotient, sign)] = inner
            length, divisor = quotient                                 # and -(x // a) = (a - 1 - x) // a
            upper = length if sign == 1 else divisor - 1 - length
            return (upper + (self - sign * Length({(quotient,): 1})) * divisor) // (divisor * other)
        whole = _plain({m: k // other for m, k in self.terms})
        rest = {m: k % other for m, k in self.terms if k % other}
        return whole + _quotient(rest, other) if any(rest) else whole

    def __mod__(self, other: Any) -> Any:
        return self - self // other * other

    def __rfloordiv__(self, other: int) -> int:
        return 0 if 0 <= other < self.min else other // self._read(f"{other} // {self}")

    def __rmod__(self, other: int) -> int:
        return other if 0 <= other < self.min else other % self._read(f"{other} % {self}")

    def __truediv__(self, other: Any) -> Any:
        return NotImplemented if hasattr(other, "uop") else self._read(f"{self} / {other}") / other

    def __rtruediv__(self, other: Any) -> Any: return other / self._read(f"{other} / {self}")
    def __pow__(self, other: Any) -> Any: return self._read(f"{self} ** {other}") ** other
    def __rpow__(self, other: Any) -> Any: return other ** self._read(f"{other} ** {self}")

    # -- reading ---------------------------------------------------------------------------------------------
    def __lt__(self, other: Any) -> bool: return self._compare(other, "<")
    def __le__(self, other: Any) -> bool: return self._compare(other, "<=")
    def __gt__(self, other: Any) -> bool: return self._compare(other, ">")
    def __ge__(self, other: Any) -> bool: return self._compare(other, ">=")

    def __bool__(self) -> bool:
        return self.min > 0 or self.max < 0 or self._compare_value("!=")

    def __index__(self) -> int: return self._read(f"{self} as a plain number")
    def __int__(self) -> int: return self._read(f"int({self})")
    def __float__(self) -> float: return float(self._read(f"float({self})"))

    def _compare(self, other: Any, sign: str) -> bool:
        if not isinstance(other, (int, float, Length)):
            return NotImplemented
        beside = math.ceil(other) if sign in ("<", ">=") and isinstance(other, float) else math.floor(other) \
            if isinstance(other, float) else other
        difference = self - beside
        if not isinstance(difference, Length):
            return SIGNS[sign](difference, 0)
        low, high = (SIGNS[sign](bound, 0) for bound in (difference.min, difference.max))
        return low if low == high else difference._compare_value(sign)

    def _compare_value(self, sign: str) -> bool:
        """Compare with 0 by the current value, and report the result to `on_comparing`."""
        answer = SIGNS[sign](self._evaluate(), 0)
        for notify in on_comparing:
            notify(LengthComparison(self, sign, answer))
        return answer

    def _announce(self, what: str) -> None:
        for notify in on_reading:
            notify(what)

    def _read(self, what: str) -> int:
        self._announce(what)
        return self._evaluate()

    def _evaluate(self) -> int:
        return int(replaced(self, value_of))


class Variable(Length):
    """A named length from `min` to `max`; `bind` gives it a value, and tensors may have it in their shapes.

    >>> start = Variable("start", 1, 8)
    >>> x = start.bind(3)
    >>> x, x.unbind()[1], x.unbind()[0] == start
    (start = 3, 3, True)
    """
    __slots__ = ()

    def __init__(self, name: str, min_val: int, max_val: int, dtype: Any = None):      # every length is an int64
        if not isinstance(min_val, int) or not isinstance(max_val, int) or not 0 <= min_val <= max_val:
            raise InputError("these are no bounds of a length", given=f"Variable({name!r}, {min_val}, {max_val})",
                             expected="integers with 0 <= min <= max", fix="exchange or correct them")
        super().__init__({(Symbol(name, min_val, max_val),): 1})

    @staticmethod
    def _of(symbol: Symbol) -> Variable:
        made = object.__new__(Variable)
        Length.__init__(made, {(symbol,): 1})
        return made

    @property
    def symbol(self) -> Symbol:
        """The `Symbol` that stands for this variable in a graph."""
        found: Symbol = self.terms[0][0][0]
        return found

    @property
    def name(self) -> str:
        """The variable's name."""
        return self.symbol.name

    expr = name                # tinygrad's name

    def bind(self, value: int) -> Variable:
        """Return this variable with a value.

        >>> Variable("n", 1, 4).bind(2).val
        2
        """
        name, low, high, before, exact = self.symbol
        if not hasattr(value, "__index__"):
            raise InputError("a length is an integer", given=f"{name} bound to {value!r}", expected="an integer",
                             fix=f"write {name}.bind(int(value)), if it is one")
        value = value.__index__()
        if before is not None and before != value:
            raise InputError("this variable has a value already", given=f"{self} bound to {value}",
                             expected="a variable without a value",
                             fix="bind the Variable itself, not what bind() gave")
        if not low <= value <= high:
            raise InputError("the value is outside the variable's bounds", given=f"{name} bound to {value}",
                             expected=f"a value from {low} to {high}",
                             fix=f'bind another value, or widen it: Variable("{name}", {min(low, value)}, '
                                  f"{max(high, value)})" if value >= 0 else "bind another value")
        bound = Symbol(name, low, high, value, exact)
        for notify in on_binding:
            notify(bound)
        return Variable._of(bound)

    def unbind(self) -> tuple[Variable, int]:
        """Return (this variable without its value, the value)."""
        return Variable._of(self.symbol._replace(value=None)), self.val

    def unbind_all(self) -> tuple[Variable, dict[Variable, int]]:
        """Return (this variable without its value, {variable: value})."""
        plain, value = self.unbind()
        return plain, {plain: value}


# -- helpers for shapes, which take ints too -----------------------------------------------------------
Size = Any                     # int | Length


def upper_bound(n: Size) -> int:
    """The upper bound of a size, which memory and costs are computed from."""
    return _greatest(n) if isinstance(n, Length) else n  # type: ignore[no-any-return]


@lru_cache(maxsize=_MOST_LENGTHS)
def _greatest(length: Length) -> int:
    return length.max


def lower_bound(n: Size) -> int:
    """The lower bound of a size."""
    return n.min if isinstance(n, Length) else n  # type: ignore[no-any-return]


def memory_size(n: Size) -> Size:
    """The length of an axis in memory: the upper bound of a size, or the size itself where its variables are exact."""
    return n if isinstance(n, Length) and all(s.exact for s in n.symbols) else upper_bound(n)


def sizes_now(shape: Iterable[Size]) -> tuple[int, ...]:
    """A shape as plain numbers, from the current values of its variables."""
    return tuple(n._evaluate() if isinstance(n, Length) else n for n in shape)


def lengths_in(arg: Any) -> Iterator[Length]:
    """Every length in a node's argument: shapes, bounds and paddings are tuples of sizes, or of pairs of them."""
    if isinstance(arg, Length):
        yield arg
    elif isinstance(arg, tuple):
        for part in arg:
            if part.__class__ is not int:
                yield from lengths_in(part)


def replaced(arg: Any, new: Callable[[Symbol], Symbol | int]) -> Any:
    """A node's argument with its variables replaced by others or by ints."""
    if isinstance(arg, Length):
        total: Any = 0
        for monomial, k in arg.terms:
            term: Any = k
            for atom in monomial:
                if isinstance(atom, Quotient):
                    term = term * (replaced(atom.length, new) // atom.divisor)
                else:
                    other = new(atom)
                    term = term * (other if isinstance(other, int) else Length({(other,): 1}))
            total = total + term
        return total
    if isinstance(arg, tuple) and not isinstance(arg, Symbol):
        parts = [replaced(part, new) for part in arg]
        return type(arg)(*parts) if hasattr(arg, "_fields") else tuple(parts)
    return arg


# -- polynomials ---------------------------------------------------------------------------------------------
def _order(term: tuple[Monomial, int]) -> str:
    return repr(term[0])


def _name(atom: Atom) -> str:
    if isinstance(atom, Symbol):
        return atom.name
    text = repr(Length(dict(atom.length.terms))).split(" = ")[0]
    return f"({text})//{atom.divisor}"


def value_of(atom: Symbol) -> int:
    """A variable's current value."""
    if atom.value is None:
        raise InputError("a variable has no value yet", given=f'Variable("{atom.name}", {atom.low}, {atom.high})',
                         expected="a value when a size is read", fix=f"bind it: {atom.name}.bind({atom.low})")
    return atom.value


def _limits(atom: Atom) -> tuple[int, int]:
    if isinstance(atom, Symbol):
        return atom.low, atom.high
    return atom.length.min // atom.divisor, atom.length.max // atom.divisor


def _bounds(monomial: Monomial, k: int) -> tuple[int, int]:
    low, high = k, k
    for atom in monomial:
        corners = [bound * limit for bound in (low, high) for limit in _limits(atom)]
        low, high = min(corners), max(corners)
    return low, high


def _without_quotients(x: Length) -> tuple[int, int]:
    """Bounds of a length that also use x - (d - 1) <= d * (x // d) <= x: n - n // 2 * 2 is 0 or 1, whatever n is."""
    quotients = [(m[0], k) for m, k in x.terms if len(m) == 1 and isinstance(m[0], Quotient)]
    if not quotients:
        return -_UNBOUNDED, _UNBOUNDED
    common = math.lcm(*[quotient.divisor for quotient, _ in quotients])
    scaled: Any = _plain({m: k * common for m, k in x.terms if len(m) != 1 or not isinstance(m[0], Quotient)})
    low = high = 0                                     # of the terms outside the quotients
    for (length, divisor), k in quotients:
        factor = k * common // divisor
        scaled = scaled + factor * length
        low, high = low - max(factor, 0) * (divisor - 1), high - min(factor, 0) * (divisor - 1)
    return -(-(lower_bound(scaled) + low) // common), (upper_bound(scaled) + high) // common


def _terms(value: Any) -> Terms | None:
    if isinstance(value, Length):
        return dict(value.terms)
    if isinstance(value, int):
        return {(): value}
    # a one-element tensor also has __index__, but does its own arithmetic with lengths
    return {(): value.__index__()} if hasattr(value, "__index__") and not hasattr(value, "uop") else None


def _plain(terms: Terms) -> Any:
    """The length with these terms; an int if no variable is left."""
    terms = {m: k for m, k in terms.items() if k}
    return Length(terms) if any(terms) else terms.get((), 0)


def _quotient(terms: Terms, divisor: int) -> Any:
    """terms // divisor in canonical form, for coefficients below the divisor: of x // d and -((d - 1 - x) // d), the
    one with the smaller coefficients, so that equal quotients are equal lengths."""
    common = math.gcd(divisor, *[k for m, k in terms.items() if m])
    divisor, terms = divisor // common, {m: k // common for m, k in terms.items()}
    upper = {m: divisor - k for m, k in terms.items() if m}
    upper[()] = divisor - 1 - terms.get((), 0)
    one, other = Length(terms), Length(upper)
    if [k for _, k in one.terms] + [terms.get((), 0)] <= [k for _, k in other.terms] + [upper[()]]:
        return Length({(Quotient(one, divisor),): 1})
    return _plain({**{m: 1 for m in terms if m}, (Quotient(other, divisor),): -1})


def _combined(x: Length, y: Any, sign: int) -> Any:
    more = _terms(y)
    if more is None:
        return NotImplemented
    out = dict(x.terms)
    for monomial, k in more.items():
        out[monomial] = out.get(monomial, 0) + sign * k
    return _plain(out)


def _product(x: Length, y: Any) -> Any:
    if not isinstance(y, (int, Length)):
        number = _terms(y)
        if number is None:
            return NotImplemented
        y = number[()]
    return _product_of_sizes(x, y)


@lru_cache(maxsize=_MOST_LENGTHS)                   # compilation multiplies the same few sizes repeatedly
def _product_of_sizes(x: Length, y: Size) -> Any:
    out: Terms = {}
    for left, k in x.terms:
        for right, n in (_terms(y) or {}).items():
            monomial = tuple(sorted(left + right, key=repr)) if left and right else left + right
            out[monomial] = out.get(monomial, 0) + k * n
    return _plain(out)


def _exact_quotient(x: Length, y: Any) -> Any:
    """x / y if it is exact for all values of the variables, else None. Only found if y or x / y has a single term."""
    more = _terms(y)
    if not more:
        return None
    if len(more) > 1:
        leading = max(more, key=len)
        for term in x.terms:                 # the quotient's one term, if it has one
            ratio = _exact_quotient(Length(dict([term])), Length({leading: more[leading]}))
            if ratio is not None and _product(Length(more), ratio) == x:
                return ratio
        return None
    (monomial, k), = more.items()
    out: Terms = {}
    for m, n in x.terms:
        rest = list(m)
        for atom in monomial:
            if atom not in rest:
                return None
            rest.remove(atom)
        if k == 0 or n % k:
            return None
        out[tuple(rest)] = n // k
    return _plain(out)
