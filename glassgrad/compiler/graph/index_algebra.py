"""Index arithmetic in one canonical form: constant + sum of coefficient * atom. In: index UOps. Out: simpler ones.

An atom is a RANGE, or anything that these functions cannot simplify further (a load, an inexact division). Equal
expressions become the same node, because terms are sorted and nodes interned. Division and modulo are simplified by one
function, from the bounds of the remaining terms, instead of by a list of special rules.

Users' int64 values have the same type as indices, and may wrap around. Sums stay right modulo 2^64; a comparison, a
quotient or a remainder is simplified only where `exact` proves that nothing wraps.

The offset of element [i][j] of a (4, 6) array, and its index after a reshape to (2, 12):

>>> from glassgrad.compiler.lower.expression_text import text
>>> from glassgrad.compiler.lower.loops import counter
>>> i, j = counter("i", 4), counter("j", 6)
>>> flat = add(j, multiply(i, 6))
>>> text(flat), linear(flat) == (0, {i: 6, j: 1}), bounds(flat)
('((i * 6) + j)', True, (0, 23))
>>> text(divide(flat, 6)), text(modulo(flat, 6))       # its row and column are those it came from, because j < 6
('i', 'j')
>>> text(divide(flat, 12)), text(modulo(flat, 12))     # in the other shape
('(i // 2)', '(j + ((i % 2) * 6))')
>>> text(less(flat, index(24))), text(less(flat, index(12)))
('True', '(i < 2)')
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.op_arguments import Measure
from glassgrad.compiler.graph.symbolic import Length, Quotient, Size, Symbol
from glassgrad.compiler.graph.uop import UOp, const

Terms = dict[UOp, int]
BoundsOf = Callable[[UOp], tuple[int, int]]


def index(value: int) -> UOp:
    return const(value, dtypes.index)


def size_index(n: Size, values: Mapping[Symbol, UOp]) -> UOp:
    """Convert a size to an index expression over the values of its variables."""
    if not isinstance(n, Length):
        return index(n)
    total = index(0)
    for monomial, k in n.terms:
        term = index(k)
        for atom in monomial:
            factor = divide(size_index(atom.length, values), atom.divisor) if isinstance(atom, Quotient) \
                else values[atom]
            constant, terms = linear(term)
            term = multiply(factor, constant) if not terms else UOp(o.MUL, dtypes.index, (term, factor))
        total = add(total, term)
    return total


def bounds(node: UOp) -> tuple[int, int]:
    """The least and greatest value of an index expression (or bool), assuming that sums do not wrap around."""
    try:
        return node.bounds
    except AttributeError:
        node.bounds = found = bounds_by(node, bounds)
        return found


def close_bounds(node: UOp) -> tuple[int, int]:
    """Bounds of a sum that also use x - (c - 1) <= c * (x // c) <= x: n - n // 2 * 2 is 0 or 1, whatever n is."""
    (constant, terms), low, high = linear(node), 0, 0
    common = math.lcm(*[int(a.src[1].arg) for a in terms if a.op is o.IDIV and a.src[1].op is o.CONST])
    rest = index(constant * common)
    for atom, k in terms.items():
        if atom.op is not o.IDIV or atom.src[1].op is not o.CONST:
            rest = add(rest, multiply(atom, k * common))
            continue
        factor = k * common // int(atom.src[1].arg)
        rest, spare = add(rest, multiply(atom.src[0], factor)), factor * (int(atom.src[1].arg) - 1)
        low, high = low - max(spare, 0), high - min(spare, 0)
    (least, greatest), found = bounds(rest), bounds(node)
    return max(found[0], -(-(least + low) // common)), min(found[1], (greatest + high) // common)


def exact(node: UOp) -> bool:
    """Whether an integer expression provably does not wrap around."""
    low, high = bounds(node)
    return bool(node.dtype.min <= low and high <= node.dtype.max)


def span(node: UOp, bounds_of: BoundsOf = bounds) -> tuple[int, int]:
    """Bounds of the value as computed: where the exact result may wrap around, those of its type."""
    low, high = bounds_of(node)
    exact = node.dtype.kind == "f" or node.dtype.min <= low and high <= node.dtype.max
    return (low, high) if exact else (int(node.dtype.min), int(node.dtype.max))


def fits(low: int, high: int) -> bool:
    """Whether all integers from `low` to `high` fit in int32."""
    return -(1 << 31) <= low and high < 1 << 31


def bounds_by(node: UOp, bounds_of: BoundsOf) -> tuple[int, int]:
    """The bounds of an expression, given those of its sources by `bounds_of`."""
    op, dtype = node.op, node.dtype
    least, greatest = (-(1 << 62), 1 << 62) if dtype.kind == "f" else (int(dtype.min), int(dtype.max))
    found: tuple[int, int] | None = None
    if op is o.CONST:
        found = int(node.arg), int(node.arg)
    elif op is o.RANGE:
        found = 0, max(node.arg.size - 1, 0)
    elif op is o.PARAM and isinstance(node.arg, Measure):
        found = node.arg.symbol.low, node.arg.symbol.high
    elif op in _OF_EXACT:
        found = _OF_EXACT[op](*bounds_of(node.src[0]), *bounds_of(node.src[1]))
    elif op in _OF_COMPUTED:
        found = _OF_COMPUTED[op](*span(node.src[-2], bounds_of), *span(node.src[-1], bounds_of))
    elif op is o.CAST and dtype.kind in "iu" and node.src[0].dtype.kind in "iub":
        low, high = span(node.src[0], bounds_of)
        found = (low, high) if least <= low and high <= greatest else None
    return found or (least, greatest)


def _product(a: int, b: int, c: int, d: int) -> tuple[int, int]:
    corners = (a * c, a * d, b * c, b * d)
    return min(corners), max(corners)


def _quotient(a: int, b: int, c: int, d: int) -> tuple[int, int] | None:
    return ((a // d if a >= 0 else a // c), (b // c if b >= 0 else b // d)) if c > 0 else None


def _remainder(a: int, b: int, c: int, d: int) -> tuple[int, int] | None:
    if c == d > 0 and a // c == b // c:
        return a % c, b % c
    return (0, min(b, d - 1) if a >= 0 else d - 1) if c > 0 else None


# Bounds of an op on a <= x <= b and c <= y <= d; None means the bounds of the type. For sums and products, x and y are
# exact integers, which may exceed their type; for other ops, they are values after wrapping around.
BoundsRule = Callable[[int, int, int, int], "tuple[int, int] | None"]
_OF_EXACT: dict[o.Op, BoundsRule] = {
    o.ADD: lambda a, b, c, d: (a + c, b + d), o.SUB: lambda a, b, c, d: (a - d, b - c), o.MUL: _product}
_OF_COMPUTED: dict[o.Op, BoundsRule] = {
    o.MAX: lambda a, b, c, d: (max(a, c), max(b, d)), o.MIN: lambda a, b, c, d: (min(a, c), min(b, d)),
    o.WHERE: lambda a, b, c, d: (min(a, c), max(b, d)), o.IDIV: _quotient, o.MOD: _remainder}


def linear(node: UOp) -> tuple[int, Terms]:
    """The canonical form of an index expression: (constant, {atom: coefficient})."""
    try:
        return node.linear
    except AttributeError:
        node.linear = found = _linear(node)
        return found


def _linear(node: UOp) -> tuple[int, Terms]:
    if node.op is o.CONST:
        return int(node.arg), {}
    if node.op in (o.ADD, o.SUB):
        sign = 1 if node.op is o.ADD else -1
        (c, terms), (d, more) = linear(node.src[0]), linear(node.src[1])
        return c + sign * d, plus(terms, more, sign)
    if node.op is o.MUL:
        (c, terms), (d, more) = linear(node.src[0]), linear(node.src[1])
        if not more:
            return c * d, {a: k * d for a, k in terms.items()} if d else {}
        if not terms:
            return c * d, {a: k * c for a, k in more.items()} if c else {}
    return 0, {node: 1}


def plus(terms: Terms, more: Terms, factor: int = 1) -> Terms:
    """The terms of the sum terms + factor * more."""
    if not more:
        return terms
    out = dict(terms)
    for atom, k in more.items():
        out[atom] = out.get(atom, 0) + factor * k
    return {a: k for a, k in out.items() if k}


def order_key(atom: UOp) -> str:
    """A sort key that depends on structure alone, so that equal kernels are rendered as equal text."""
    try:
        return atom.order_key
    except AttributeError:
        atom.order_key = found = _order_key(atom)
        return found


def _order_key(atom: UOp) -> str:
    if atom.op is o.RANGE:
        return f"a{atom.arg.name}"
    inner = ",".join(order_key(s) for s in atom.src)
    text = f"b{atom.op.name}{atom.arg!r}({inner})"
    return text if len(text) < 300 else f"c{zlib.crc32(text.encode()):08x}{len(text)}"


def build(constant: int, terms: Terms) -> UOp:
    """The node of a canonical form."""
    constant, terms = _rejoin(constant, terms)
    total: UOp | None = None
    for atom in sorted(terms, key=order_key) if len(terms) > 1 else terms:
        k = terms[atom]
        term = atom if k == 1 else UOp(o.MUL, dtypes.index, (atom, index(k)))
        total = term if total is None else UOp(o.ADD, dtypes.index, (total, term))
    if total is None:
        return index(constant)
    return UOp(o.ADD, dtypes.index, (total, index(constant))) if constant else total


def _rejoin(constant: int, terms: Terms) -> tuple[int, Terms]:
    """k*c*(x // c) + k*(x % c)  ->  k*x, also where both terms are multiplied by a run-time value y"""
    for atom, k in terms.items():
        if atom.op is not o.MOD and atom.op is not o.MUL:
            continue
        for part, y in ((atom, index(1)),) if atom.op is o.MOD else zip(atom.src, atom.src[::-1]):
            if part.op is not o.MOD or part.src[1].op is not o.CONST:
                continue
            x, c = part.src
            divided = times(divide(x, c.arg), y)
            (added, parts) = linear(divided)
            if added == 0 and list(parts.values()) == [1]:      # x // c is a single atom
                [quotient] = parts
                if terms.get(quotient) == k * c.arg:
                    rest = {a: n for a, n in terms.items() if a is not atom and a is not quotient}
                    shift, more = linear(times(x, y))
                    return _rejoin(constant + k * shift, plus(rest, more, k))
    return constant, terms


def add(x: UOp, y: UOp) -> UOp:
    (c, terms), (d, more) = linear(x), linear(y)
    return build(c + d, plus(terms, more))


def multiply(x: UOp, factor: int) -> UOp:
    c, terms = linear(x)
    return build(c * factor, {a: k * factor for a, k in terms.items()} if factor else {})


def times(x: UOp, y: UOp) -> UOp:
    """x * y, multiplied out: a product of two atoms is one atom, so a run-time stride stays with its counter."""
    (c, terms), (d, more) = linear(x), linear(y)
    if not terms or not more:
        return multiply(y, c) if not terms else multiply(x, d)
    out = plus({a: k * d for a, k in terms.items()} if d else {}, more, c)
    for left, k in terms.items():
        for right, n in more.items():
            pair = tuple(sorted((left, right), key=order_key))
            out = plus(out, {UOp(o.MUL, dtypes.index, pair): k * n})
    return build(c * d, out)


def divide_up(x: UOp, divisor: int) -> UOp:
    """x / divisor, rounded up: the number of pieces of that size."""
    return divide(add(x, index(divisor - 1)), divisor)


def divide(x: UOp, divisor: int) -> UOp:
    """x // divisor (rounding down), for a positive divisor."""
    return _divided(x, divisor)[0]


def modulo(x: UOp, divisor: int) -> UOp:
    """x % divisor (never negative), for a positive divisor."""
    return _divided(x, divisor)[1]


@lru_cache(maxsize=1024)             # splitting a number into digits needs both results
def _divided(x: UOp, divisor: int) -> tuple[UOp, UOp]:
    """x // divisor and x % divisor. Move multiples of the divisor out of x: first none, then whole terms, then parts of
    terms (5*i is 4*i + i), until the rest provably lies between two multiples, or nothing more can be moved."""
    if divisor == 1:
        return x, index(0)
    if not exact(x):
        return _undecided(x, divisor)
    c, terms = linear(x)
    parts = {a: k // divisor for a, k in terms.items() if k // divisor}
    whole = {a: k for a, k in parts.items() if terms[a] % divisor == 0}
    constant, rest, left = c, terms, x
    for constant, quotients in (0, {}), (c // divisor, whole), (c // divisor, parts):
        rest = plus(terms, quotients, -divisor)
        left = build(c - constant * divisor, rest)
        low, high = bounds(left)
        if low // divisor == high // divisor:
            constant += low // divisor
            return build(constant, quotients), build(c - constant * divisor, rest)
    if not exact(left):                                # x - 5 fits where x + 3, its numerator over 4, may not
        return _undecided(x, divisor)
    remainder = c % divisor
    g = _common_step(divisor, remainder, rest)
    quotient, digit = _undecided(left, divisor)
    if g > 1:                                          # for 0 <= r < g: (g*y + r) // (g*d) == y // d,
        quotient, digit = _divided(build(remainder // g, {a: k // g for a, k in rest.items() if k % g == 0}),
                                   divisor // g)       # and (g*y + r) % (g*d) == g * (y % d) + r
        digit = add(multiply(digit, g), build(remainder % g, {a: k for a, k in rest.items() if k % g}))
    elif left.op is o.IDIV and left.src[1].op is o.CONST and left.src[1].arg * divisor <= dtypes.index.max:
        quotient = divide(left.src[0], left.src[1].arg * divisor)      # (y // a) // b == y // (a*b)
    return add(build(c // divisor, parts), quotient), digit


def _undecided(x: UOp, divisor: int) -> tuple[UOp, UOp]:
    """x // divisor and x % divisor as ops, computed at run time."""
    return UOp(o.IDIV, dtypes.index, (x, index(divisor))), UOp(o.MOD, dtypes.index, (x, index(divisor)))


def _common_step(divisor: int, constant: int, terms: Terms) -> int:
    """The largest g dividing `divisor` such that terms it does not divide stay within [0, g): 16*i + lane has 16."""
    steps = {math.gcd(divisor, k) for k in terms.values()} | {math.gcd(divisor, *terms.values())}
    for g in sorted(steps, reverse=True):
        low, high = bounds(build(constant % g, {a: k for a, k in terms.items() if k % g}))
        if 0 <= low and high < g:
            return g
    return 1


def less(x: UOp, y: UOp) -> UOp:
    """x < y, simplified to a constant where the bounds decide it."""
    difference = add(x, multiply(y, -1))
    if not (exact(x) and exact(y) and exact(difference)):
        return UOp(o.CMPLT, dtypes.bool, (x, y))
    low, high = bounds(difference)
    if high < 0:
        return const(True, dtypes.bool)
    if low >= 0:
        return const(False, dtypes.bool)
    c, terms = linear(difference)                      # keep constants on the right: a + 3 < 0 is a < -3
    for g in sorted({math.gcd(*terms.values()), *map(abs, terms.values())} - {1}, reverse=True):
        first, last = ((-1 - r) // g for r in bounds(build(c, {a: k for a, k in terms.items() if k % g})))
        if first == last:                              # g*y + r < 0  is  y < 1 + (-1 - r) // g, the same for any r
            c, terms = -1 - first, {a: k // g for a, k in terms.items() if k % g == 0}
            break
    left = build(0, terms)                             # -1 - x always fits; without its constant, -x may not
    return UOp(o.CMPLT, dtypes.bool, (left, index(-c)) if exact(left) and -c <= left.dtype.max else (x, y))


def both(x: UOp | None, y: UOp | None) -> UOp | None:
    """The conjunction of two conditions, where None and True mean "always"."""
    for a, b in ((x, y), (y, x)):
        if a is None or (a.op is o.CONST and a.arg is True):
            return None if b is not None and b.op is o.CONST and b.arg is True else b
        if a.op is o.CONST:
            return a
    assert x is not None and y is not None
    return x if x is y else UOp(o.AND, dtypes.bool, (x, y))


def all_of(gate: UOp) -> list[UOp]:
    """The conditions that a gate joins by AND, in order."""
    if gate.op is o.NOT and gate.src[0].op is o.NOT:
        return all_of(gate.src[0].src[0])
    return [part for side in gate.src for part in all_of(side)] if gate.op is o.AND else [gate]


def values_in(node: UOp) -> list[Measure]:
    """The run-time values (`Measure`s) in an index of those and constants only; empty for other indices."""
    leaves = [n.arg for n in node.toposort() if n.op not in (o.CONST, o.ADD, o.MUL, o.IDIV, o.MOD, o.MIN, o.MAX)]
    return leaves if all([isinstance(value, Measure) for value in leaves]) else []


def value_in(node: UOp) -> Measure | None:
    """The run-time value in an index that consists of it and constants only; None for other indices."""
    values = values_in(node)
    return values[0] if len(values) == 1 else None


def below_limit(condition: UOp) -> tuple[Terms, int] | None:
    """A comparison of indices as (terms, limit), meaning sum of terms < limit; None for any other condition."""
    if condition.op is not o.CMPLT or condition.src[0].dtype is not dtypes.index:
        return None
    constant, terms = linear(add(condition.src[0], multiply(condition.src[1], -1)))
    return terms, -constant


def operation(op: o.Op, x: UOp, y: UOp) -> UOp:
    """Apply an op to two indices and simplify: a constant or an operand, where their bounds decide it."""
    return rebuild(UOp(op, dtypes.index, (x, y)), (x, y))


def substitute_index(node: UOp, replace: dict[UOp, UOp], memo: dict[UOp, UOp],
                     known: Callable[[UOp], UOp | None] = lambda node: None) -> UOp:
    """Substitute nodes in an index expression (or any scalar expression over indices) and simplify it again. A sum is
    split into its terms once, not at each ADD. `known` may give the result for a node directly."""
    if node in memo:
        return memo[node]
    visit_each_add = any(_is_sum(old) for old in replace)      # part of a sum is replaced
    memo.update(replace)
    stack, kind = [node], dtypes.index
    while stack:
        top = stack[-1]
        if top in memo:
            stack.pop()
            continue
        found = known(top) if top.src else top
        if found is not None:
            memo[top] = found
            stack.pop()
            continue
        terms = linear(top)[1] if top.dtype is kind and not visit_each_add and _is_sum(top) else None
        waiting = [s for s in (top.src if terms is None else terms) if s not in memo]
        if waiting:
            stack += waiting
            continue
        stack.pop()
        if terms is not None:
            memo[top] = _over(linear(top)[0], terms, memo)
            continue
        src = tuple([memo[s] for s in top.src])
        memo[top] = top if src == top.src else rebuild(top, src)
    return memo[node]


def _is_sum(node: UOp) -> bool:
    return node.dtype is dtypes.index and (node.op is o.ADD or node.op is o.MUL and node.src[1].op is o.CONST)


def _over(constant: int, terms: Terms, new: Mapping[UOp, UOp]) -> UOp:
    """The sum constant + terms with each atom replaced by `new[atom]`."""
    out: Terms = {}
    for atom, k in terms.items():
        c, more = linear(new[atom])
        constant += k * c
        for a, n in more.items():
            out[a] = out.get(a, 0) + k * n
    return build(constant, {a: k for a, k in out.items() if k})


def rebuild(node: UOp, src: tuple[UOp, ...]) -> UOp:
    """The node over new sources, simplified if it is index arithmetic, or a gate or selection that is now decided."""
    if node.dtype is dtypes.index:
        if node.op is o.ADD:
            return add(*src)
        if node.op is o.MUL:
            return times(*src)
        if node.op is o.IDIV and src[1].op is o.CONST and src[1].arg > 0:
            return divide(src[0], src[1].arg)
        if node.op is o.MOD and src[1].op is o.CONST and src[1].arg > 0:
            return modulo(src[0], src[1].arg)
        if node.op is o.MAX or node.op is o.MIN:
            difference = add(src[0], multiply(src[1], -1))
            low, high = bounds(difference)
            if (low >= 0 or high <= 0) and all(map(exact, (*src, difference))):     # the bounds decide which is larger
                return src[0] if (low >= 0) == (node.op is o.MAX) else src[1]
    if node.op is o.CMPLT and src[0].dtype is dtypes.index:
        return less(*src)
    if node.op is o.AND and node.dtype is dtypes.bool:
        return both(*src) or const(True, dtypes.bool)
    if node.op is o.LOAD and len(src) == 3 and src[2].op is o.CONST:
        return UOp(o.LOAD, node.dtype, src[:2], None, node.place) if src[2].arg else const(0, node.dtype)
    if node.op is o.WHERE and src[0].op is o.CONST:
        return src[1] if src[0].arg else src[2]
    return UOp(node.op, node.dtype, src, node.arg, node.place)
