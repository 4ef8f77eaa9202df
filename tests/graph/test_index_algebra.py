"""Index arithmetic by random evaluation: every simplification must keep the value at every point, and the bounds."""

from __future__ import annotations

import itertools
import random

import pytest

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.index_algebra import (add, both, bounds, build, divide, index, less, linear, modulo,
                                                    multiply, order_key, substitute_index, times)
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.op_arguments import Range
from glassgrad.compiler.graph.uop import UOp, const


def counter(name: str, size: int) -> UOp:
    return UOp(o.RANGE, dtypes.index, (), Range(name, size))


def value(node: UOp, at: dict[UOp, int]) -> int:
    """The value of an index expression at one point, from its definition alone."""
    done: dict[UOp, int] = dict(at)
    for n in toposort([node]):
        if n in done:
            continue
        s = [done[x] for x in n.src]
        done[n] = {o.CONST: lambda n=n: n.arg, o.ADD: lambda s=s: s[0] + s[1], o.MUL: lambda s=s: s[0] * s[1],
                   o.IDIV: lambda s=s: s[0] // s[1], o.MOD: lambda s=s: s[0] % s[1],
                   o.CMPLT: lambda s=s: s[0] < s[1], o.AND: lambda s=s: s[0] and s[1]}[n.op]()
    return done[node]


def random_expression(rng: random.Random, ranges: list[UOp], depth: int):
    """A simplified node together with its meaning as a plain function of the counters."""
    if depth == 0 or rng.random() < 0.15:
        if rng.random() < 0.2:
            c = rng.randint(-9, 9)
            return index(c), lambda at: c
        r = rng.choice(ranges)
        return r, lambda at: at[r]
    kind = rng.choice(["add", "add", "multiply", "divide", "modulo", "split"])
    x, f = random_expression(rng, ranges, depth - 1)
    if kind == "add":
        y, g = random_expression(rng, ranges, depth - 1)
        return add(x, y), lambda at: f(at) + g(at)
    if kind == "multiply":
        k = rng.choice([-3, -1, 0, 2, 3, 4, 6, 8, 12])
        return multiply(x, k), lambda at: f(at) * k
    d = rng.choice([1, 2, 3, 4, 5, 6, 8, 12, 16])
    if kind == "divide":
        return divide(x, d), lambda at: f(at) // d
    if kind == "modulo":
        return modulo(x, d), lambda at: f(at) % d
    k = rng.choice([1, 2, 5])                               # both halves of a split: these must rejoin
    return add(multiply(divide(x, d), d * k), multiply(modulo(x, d), k)), lambda at: f(at) * k


@pytest.mark.parametrize("start", range(8))
def test_every_simplification_keeps_value_and_bounds(start):
    for trial in range(60):
        rng = random.Random(start * 1000 + trial)
        ranges = [counter(f"r{i}", rng.choice([1, 2, 3, 4, 5, 8])) for i in range(3)]
        x, f = random_expression(rng, ranges, 4)
        y, g = random_expression(rng, ranges, 2)
        smaller = less(x, y)
        low, high = bounds(x)
        for point in itertools.product(*(range(r.arg.size) for r in ranges)):
            at = dict(zip(ranges, point))
            assert value(x, at) == f(at), f"seed {start * 1000 + trial} at {point}"
            assert low <= f(at) <= high, f"seed {start * 1000 + trial}: {f(at)} is outside {low}..{high}"
            assert value(smaller, at) == (f(at) < g(at)), f"seed {start * 1000 + trial}, less, at {point}"


@pytest.mark.parametrize("trial", range(60))
def test_substitution_simplifies_again_and_keeps_the_value(trial):
    rng = random.Random(trial)
    ranges = [counter(f"r{i}", rng.choice([2, 3, 4])) for i in range(2)]
    outer, inner = counter("outer", 3), counter("inner", 4)
    x, f = random_expression(rng, ranges, 4)
    split = add(multiply(outer, 4), inner)
    changed = substitute_index(x, {ranges[0]: split}, {})
    for a, b, c in itertools.product(range(3), range(4), range(ranges[1].arg.size)):
        if 4 * a + b < ranges[0].arg.size:                  # bounds of r0 were used: only its values count
            assert value(changed, {outer: a, inner: b, ranges[1]: c}) == f({ranges[0]: 4 * a + b, ranges[1]: c})


@pytest.mark.parametrize("write", [lambda i, j: (i + 1) * 0, lambda i, j: i - i + j, lambda i, j: j + (i * 2 - i * 2)])
def test_substitution_leaves_nothing_of_what_it_replaces(write):
    """What cancels out of a sum is still mentioned by it: a user's own int64 arithmetic is not in canonical form."""
    i, j = (UOp(o.RANGE, dtypes.index, (), Range(name, 5)) for name in "ij")
    changed = substitute_index(write(i, j), {i: index(3)}, {})
    assert i not in toposort([changed])
    assert changed is (j if j in toposort([write(i, j)]) else index(0))


def test_equal_expressions_are_the_same_node():
    i, j = counter("i", 7), counter("j", 5)
    assert add(add(i, j), index(3)) is add(index(1), add(j, add(i, index(2))))
    assert add(multiply(i, 3), multiply(i, -2)) is i
    assert multiply(i, 0) is index(0)
    assert linear(add(multiply(i, 2), index(5))) == (5, {i: 2})
    assert build(0, {}) is index(0)


def test_splits_come_apart_and_rejoin():
    i, j = counter("i", 7), counter("j", 5)
    flat = add(multiply(i, 5), j)
    assert divide(flat, 5) is i and modulo(flat, 5) is j
    k = counter("k", 35)
    assert add(multiply(divide(k, 5), 5), modulo(k, 5)) is k
    shifted = add(k, index(3))
    assert add(multiply(divide(shifted, 5), 5), modulo(shifted, 5)) is shifted
    three = add(add(multiply(divide(k, 12), 12), multiply(modulo(divide(k, 4), 3), 4)), modulo(k, 4))
    assert three is k
    assert divide(divide(k, 3), 4) is divide(k, 12)


def test_splits_rejoin_where_a_number_of_the_run_multiplies_them():
    """Rows of a run-time length: else a loop over all rows of all channels would stay two loops."""
    k, length, other = counter("k", 35), counter("length", 100), counter("other", 100)
    rows, columns = times(divide(k, 5), length), times(modulo(k, 5), length)
    assert add(multiply(rows, 5), columns) is times(k, length)
    assert add(multiply(rows, 10), multiply(columns, 2)) is multiply(times(k, length), 2)
    assert add(multiply(rows, 5), times(modulo(k, 5), other)) is not times(k, length)
    assert add(multiply(rows, 4), columns) is not times(k, length)


def test_digits_of_a_number_that_counts_down():
    i, j = counter("i", 12), counter("j", 5)
    number = build(23, {j: 24, i: -1})
    assert divide(number, 24) is j and divide(number, 12) is build(1, {j: 2})
    assert modulo(number, 12) is build(11, {i: -1})


def test_bounds_decide_comparisons():
    i = counter("i", 7)
    assert less(i, index(7)) is const(True, dtypes.bool) and less(i, index(0)) is const(False, dtypes.bool)
    assert less(multiply(i, 2), index(5)) is less(i, index(3))
    assert both(None, less(i, index(3))) is less(i, index(3))
    assert both(less(i, index(7)), None) is None
    assert both(less(i, index(0)), less(i, index(3))) is const(False, dtypes.bool)


def test_order_depends_on_structure_alone():
    i, j = counter("i", 7), counter("j", 5)
    atoms = [divide(add(i, j), 3), j, modulo(add(i, multiply(j, 3)), 7), i]
    names = [order_key(a) for a in atoms]
    assert len(set(names)) == len(names) and sorted(atoms, key=order_key)[0] is i
