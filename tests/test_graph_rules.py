"""Every rewrite rule, by filling its holes at random and comparing both sides; and the engine that applies them."""

from __future__ import annotations

import math
import random
import time

import numpy as np
import pytest
from graph_leaves import Values, awkward, buffer, same
from test_graph_interpret import has

from glassgrad.base.errors import Bug, InputError
from glassgrad.base.settings import Context
from glassgrad.graph import ops as o
from glassgrad.graph.dtype import ALL, DType, dtypes, largest
from glassgrad.graph.fold import EXACT, fold
from glassgrad.graph.interpret import interpret
from glassgrad.graph.ops import ELEMENTWISE, MOVEMENT, REDUCE, Kind
from glassgrad.graph.rewrite import Hole, Literal, Node, Pattern, Rule, RuleSet, holes, node, rewrite
from glassgrad.graph.rules import ALGEBRA, STRIP, holds_all
from glassgrad.graph.uop import (
    Axes, Expand, Flip, Pad, Permute, Reshape, Shrink, UOp, Unwindow, Window, const, full, toposort,
)

SHAPES = [(), (1,), (3,), (2, 3), (1, 3), (2, 1), (1, 1), (2, 1, 3), (1, 2, 1), (0, 2), (4,)]
TRIALS, ENOUGH = 3000, 40


class Unsuitable(Exception):
    """The random choices so far cannot be completed: try again."""


class Filler:
    """Makes a node that has a pattern's form, from the top down: a pattern is asked for a shape and a type."""

    def __init__(self, rule: Rule, seed: int):
        self.rule, self.random, self.rng = rule, random.Random(seed), np.random.default_rng(seed)
        self.values, self.caught = Values(), {}

    def root(self) -> UOp:
        kinds = self.random.choice(ALL)
        return self.fill(self.rule.pattern, self.random.choice(SHAPES), kinds)

    def fill(self, pattern: Pattern, shape: tuple[int, ...], dtype: DType) -> UOp:
        if isinstance(pattern, Literal):
            value = pattern.value
            if value == 0 and dtype.kind == "f" and self.random.random() < 0.3:
                value = -0.0
            made = const(value, dtype)
            return made if made.arg == pattern.value else self.fail()
        if isinstance(pattern, Hole):
            return self.hole(pattern, shape, dtype)
        assert isinstance(pattern, Node)
        op = self.random.choice(pattern.ops)
        if op in ELEMENTWISE:
            return self.elementwise(pattern, op, shape, dtype)
        if op in MOVEMENT:
            return self.movement(pattern, op, shape, dtype)
        if op in REDUCE:
            axes = tuple(a for a, n in enumerate(shape) if n == 1 and self.random.random() < 0.8) or self.fail()
            inner = tuple(self.random.choice([1, 2, 3, 5, 0]) if a in axes else n for a, n in enumerate(shape))
            return UOp(op, dtype, (self.whole(pattern.sources[0], inner, dtype),), Axes(axes))
        assert op.kind == Kind.MEMORY
        return UOp(op, dtype, (self.whole(pattern.sources[0], shape, dtype),))

    def whole(self, pattern: Pattern, shape, dtype: DType) -> UOp:
        """As `fill`, where a source of shape () does not mix."""
        made = self.fill(pattern, shape, dtype)
        if made.shape == () != shape and isinstance(pattern, Hole) and not pattern.constant:
            made = self.caught[pattern.name] = made.broadcast(shape)
        return made if made.shape == shape else self.fail()

    def fail(self):
        raise Unsuitable

    def hole(self, hole: Hole, shape, dtype: DType) -> UOp:
        if hole.name in self.caught:
            caught = self.caught[hole.name]
            return caught if caught.dtype is dtype and caught.shape in (shape, ()) else self.fail()
        if dtype.kind not in hole.kinds:
            raise Unsuitable
        if hole.constant or self.random.random() < 0.05:
            pool = numbers(dtype)
            if self.rule.inexact is not None and dtype.kind == "f" and not hole.constant:
                pool = [v for v in pool if self.rule.inexact.inside(v)]
            made = const(self.random.choice(pool), dtype)
        else:
            array = awkward(self.rng, () if self.random.random() < 0.1 else shape, dtype)
            if self.rule.inexact is not None and dtype.kind == "f":
                array = self.into_domain(array)
            made = self.values.leaf(array, dtype)
        self.caught[hole.name] = made
        return made

    def into_domain(self, array):
        candidates = np.array([0.3, 0.5, 0.75, 1.0, 1.25, 2.5, 3.0, 5.5, -0.5, -0.75, -1.5, -3.0], array.dtype)
        candidates = candidates[self.rule.inexact.inside(candidates)]
        with np.errstate(all="ignore"):
            return np.where(self.rule.inexact.inside(array), array, self.rng.choice(candidates, array.shape)).astype(array.dtype)

    def elementwise(self, pattern: Node, op, shape, dtype: DType) -> UOp:
        count = {Kind.UNARY: 1, Kind.BINARY: 2, Kind.TERNARY: 3}[op.kind]
        if op.compares:
            if dtype is not dtypes.bool:
                raise Unsuitable
            inner = [self.random.choice(ALL)] * count
        elif op is o.CAST:
            inner = [self.random.choice([d for d in ALL if d is not dtype] if self.random.random() < 0.9 else [dtype])]
        elif op is o.BITCAST:
            inner = [self.random.choice([d for d in ALL if d.bits == dtype.bits and d.kind != "b"] or [self.fail])]
            if dtype.kind == "b":
                raise Unsuitable
        else:
            if not has(op, dtype):
                raise Unsuitable
            inner = [dtypes.bool if op is o.WHERE and a == 0 else dtype for a in range(count)]
        if pattern.quantity == "list":
            patterns = list(pattern.sources)
        elif pattern.quantity == "each":
            patterns = [pattern.sources[0] if a == 0 else Hole(f"each{a}", "biuf", True) for a in range(count)]
            patterns = [Hole("each0", "biuf", True), *patterns[1:]]
        else:
            chosen = self.random.randrange(count)
            patterns = [pattern.sources[0] if a == chosen or self.random.random() < 0.3 else Hole(f"some{a}")
                        for a in range(count)]
        sources = tuple(self.fill(p, shape, d) for p, d in zip(patterns, inner))
        if not op.compares and op not in (o.CAST, o.BITCAST) and not all(s.dtype is d for s, d in zip(sources, inner)):
            raise Unsuitable
        return UOp(op, dtype, sources)

    def movement(self, pattern: Node, op, shape, dtype: DType) -> UOp:
        source, choose, rank = pattern.sources[0], self.random, len(shape)
        of_constant = isinstance(source, Hole) and source.constant
        constant_below = isinstance(source, Node) and isinstance(source.sources[0], Hole) and source.sources[0].constant
        if op is o.RESHAPE:
            if of_constant:
                inner = () if math.prod(shape) == 1 else self.fail()
            else:
                inner = choose.choice([s for s in [*SHAPES, (6,), (3, 2), shape] if math.prod(s) == math.prod(shape)])
            arg = Reshape(shape)
        elif rank == 0:
            raise Unsuitable
        elif op is o.PERMUTE:
            order = tuple(choose.sample(range(rank), rank))
            inner, arg = tuple(shape[order.index(a)] for a in range(rank)), Permute(order)
        elif op is o.EXPAND:
            inner = tuple(1 if constant_below or choose.random() < 0.6 else n for n in shape)
            arg = Expand(shape)
        elif op is o.PAD:
            padding = tuple((b, choose.randint(0, n - b)) for n in shape for b in [choose.randint(0, n)])
            if choose.random() < 0.1:
                padding = ((0, 0),) * rank
            inner, arg = tuple(n - b - a for n, (b, a) in zip(shape, padding)), Pad(padding)
        elif op is o.SHRINK:
            starts = [choose.choice([0, 0, 1, 2]) for _ in shape]
            inner = tuple(s + n + choose.choice([0, 0, 1]) for s, n in zip(starts, shape))
            arg = Shrink(tuple((s, s + n) for s, n in zip(starts, shape)))
        elif op is o.FLIP:
            inner, arg = shape, Flip(tuple(a for a in range(rank) if choose.random() < 0.6) or (0,))
        else:
            if rank < 2:
                raise Unsuitable
            axis, size = choose.randrange(rank - 1), shape[-1]
            stride, dilation = choose.choice([1, 2]), choose.choice([1, 2])
            if op is o.WINDOW:
                length = max((shape[axis] - 1) * stride + dilation * (size - 1) + 1, 0) if shape[axis] and size else self.fail()
                inner, arg = (*shape[:axis], length, *shape[axis + 1:-1]), Window(axis, size, stride, dilation)
            else:
                count = choose.randint(0, 3)
                inner = (*shape[:axis], count, *shape[axis + 1:])
                arg = Unwindow(axis, stride, dilation, shape[axis])
        out = UOp(op, dtype, (self.whole(source, inner, dtype),), arg)
        return out if out.shape == shape else self.fail()


def numbers(dtype: DType) -> list:
    if dtype.kind == "b":
        return [False, True]
    if dtype.kind == "f":
        tiny = 2.0 ** (2 - 2 ** (dtype.exponent - 1))
        return [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 0.25, 3.0, -4.0, 0.3, 100.0, math.inf, -math.inf, math.nan,
                largest(dtype), -largest(dtype), tiny, -tiny / 2]
    common = [0, 1, 2, 3, 4, 5, 6, 7, 8, 16, dtype.bits - 1, dtype.bits, int(dtype.max), int(dtype.max) // 2 + 1]
    return common + ([-1, -2, -3, -8, int(dtype.min)] if dtype.kind == "i" else [])


def reductions_in(pattern: Pattern) -> bool:
    return isinstance(pattern, Node) and (pattern.ops[0] in REDUCE or any(map(reductions_in, pattern.sources)))


def compare(rule: Rule, before: np.ndarray, after: np.ndarray, dtype: DType, values: Values) -> bool:
    if rule.inexact is None or dtype.kind != "f":
        return same(before, after)
    a, b = before.astype(np.float64), after.astype(np.float64)
    floor = rule.inexact.floor
    if reductions_in(rule.pattern):
        floor = sum(float(np.abs(v.astype(np.float64)).sum()) for v in values.values()) * 30
    with np.errstate(all="ignore"):
        scale = np.maximum(np.maximum(np.abs(a), np.abs(b)), floor)
        near = np.abs(a - b) <= rule.inexact.ulps * 2.0 ** -dtype.mantissa * scale
    return bool((near | (a == b) | (np.isnan(a) & np.isnan(b))).all())


@pytest.mark.parametrize("rule", [*ALGEBRA, *STRIP], ids=lambda r: r.name)
def test_both_sides_of_every_rule_mean_the_same(rule, seed):
    fired, types = 0, set()
    for trial in range(TRIALS):
        filler = Filler(rule, seed + trial)
        try:
            root = filler.root()
        except Unsuitable:
            continue
        result = next((r for v in rule.variants if (r := rule.apply(root, v)) is not None), None)
        if result is None:
            continue
        fired += 1
        types.add(root.dtype.kind)
        assert result.shape == root.shape and result.dtype is root.dtype
        before, after = interpret([root, result], filler.values)
        assert compare(rule, before, after, root.dtype, filler.values), \
            f"{rule} at seed {seed + trial}:\n{show(root)}\n{show(result)}\n{dict(filler.values)}\n{before!r}\n{after!r}"
        if fired >= ENOUGH and trial > 400:
            break
    assert fired >= 10, f"the rule fired {fired} times in {TRIALS} trials: it is dead, or this test cannot reach it"


def show(node: UOp) -> str:
    return f"{node.op.name}{'' if node.arg is None else f'<{node.arg}>'}:{node.dtype.name}({', '.join(map(show, node.src))})"


@pytest.mark.parametrize("rule", [*ALGEBRA, *STRIP], ids=lambda r: r.name)
def test_rules_say_their_reason(rule):
    assert rule.why and rule.name == rule.name.lower() and " " not in rule.name
    assert rule.inexact is None or len(rule.inexact.domain) > 5
