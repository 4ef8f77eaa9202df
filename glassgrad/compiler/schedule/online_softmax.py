"""Find softmax(scores) times values, to compute it in one pass. In: a sum in a graph. Out: a `SoftmaxProduct`, or None.

A chain of reductions over one axis k, in which the later ones use the maximum only through exp(score - maximum),

    m = max over k of s[k]        l = sum over k of exp(s[k] - m)        o[d] = sum over k of exp(s[k] - m) * v[k, d]

can run in one pass over blocks of k. It keeps m, l and o of the blocks read so far, and multiplies l and o by exp(m
before - m after) when the maximum grows. So the scores, a contraction (query times key) and by far the largest value of
the chain, are never stored. The pattern is recognized by its computation, never by a name: scores may be scaled, masked
and added to; the weights may be divided by l before or after the multiplication by the values, and may be masked again.
Does not know loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from glassgrad.base.settings import settings
from glassgrad.compiler.graph import DType, Length, UOp, ops as o, toposort, upper_bound
from glassgrad.compiler.graph.axis_dependence import AxisSet, carried
from glassgrad.compiler.graph.symbolic import lower_bound
from glassgrad.compiler.schedule.inlined_values import sums_products

# (device, type of the factors, elements of a key or value) -> why scores are stored
StoresScores = Callable[[str, DType, int], "str | None"]
LEAST_KEYS = 128       # two blocks; fewer scores would stay in a cache if stored
ONE_PASS = "softmax(scores) times values, in one pass: the scores are not stored"
_VIEWS = (o.RESHAPE, o.PERMUTE, o.EXPAND, o.DETACH)
_ABOVE = (o.RESHAPE, o.PERMUTE, o.CAST)      # the stored result is above these


@dataclass(eq=False)
class WeightedSum:
    """total = sum over k of weights * values, where the weights are computed from contractions."""
    total: UOp
    weights: UOp               # the factor of the summed product that is computed
    values: UOp                # the other factor
    axis: int                  # the axis k of that product
    row_axis: int              # the longest axis that only the weights have
    columns: list[int]         # the axes that only the values have
    products: list[UOp]        # the contractions inside the weights
    rows: list[UOp]            # per contraction, its factor that does not depend on k: the queries
    keys: list[UOp]            # and its factor that does: the keys
    inside: set[UOp]           # the nodes that depend on the contractions, except for:
    above: set[UOp]            # the total, the result and the nodes between them
    result: UOp                # the stored node: the total, divided by the row sums where that comes later


@dataclass(eq=False)
class SoftmaxProduct(WeightedSum):
    """A weighted sum with weights = exps * (factors that are the same for all k) / row sums."""
    exps: UOp                  # EXP2((scores - maximum) * rate)
    scores: UOp
    maximum: UOp               # AMAX of the scores over k
    rate: UOp | None           # a positive constant; None stands for 1
    row_sums: list[UOp]        # SUMs of `exps` over k
    shared: list[tuple[UOp, o.Op]]     # factors (MUL) and divisors (DIV) of the weights that are the same for all k


def softmax_product(total: UOp, varies: dict[UOp, AxisSet], result: UOp | None = None) -> SoftmaxProduct | None:
    """Recognize softmax(a contraction) times values; `result` is the node that is stored of it. None for other sums."""
    product = (total.src[0] if total.op is o.SUM else total).below((o.CAST,))
    if total.op is not o.SUM or product.op is not o.MUL or len(total.arg.axes) != 1:
        return None
    for weights, values in (product.src, product.src[::-1]):
        found = _weighted(total, weights, values, varies, total if result is None else result)
        if found is not None:
            return found
    return None


def _weighted(total: UOp, weights: UOp, values: UOp, varies: dict[UOp, AxisSet], result: UOp) -> SoftmaxProduct | None:
    """Recognize it with this factor as the weights: exp2(scores - their maximum), perhaps divided by its sums."""
    [axis] = total.arg.axes
    if not is_contraction(total, varies, of_a_row=True):
        return None
    # the only exponential among the factors, of scores less their maximum over k
    factors = _Factors(weights)
    found = [n for n, op in factors.leaves if n.op is o.EXP2 and op is o.MUL and n.dtype.itemsize >= 4]
    shift = _Shift.of(found[0]) if len(found) == 1 and not factors.twice else None
    if shift is None or lifted(found[0], frozenset(shift.maximum.arg.axes), weights) != {axis}:
        return None
    # the scores are computed from one contraction
    exps, scores = found[0], shift.scores
    sums = [n for n in down_to_reductions(scores) if is_contraction(n, varies, of_a_row=True)]
    if len(sums) != 1:
        return None
    [products] = sums
    keys, rows = _sides(products, scores, shift.maximum, varies)
    if keys is None or rows is None:
        return None
    # what is inside has no readers but those that the loop over blocks replaces
    inside, above, readers = _dependents(products, total, result, varies)
    row_sums = [n for n in varies if n in readers[exps] and n.op is o.SUM and n.arg.axes == shift.maximum.arg.axes]
    allowed = {scores: {shift.maximum, shift.difference}, exps: {*factors.way, *row_sums},
               **{n: {*shift.between, exps} for n in (shift.maximum, *shift.between)}}
    if values in inside or any(not readers[n] <= readers_allowed for n, readers_allowed in allowed.items()):
        return None
    # the other factors are the same for all k, and no other reduction is inside
    shared = [(n, op) for n, op in factors.leaves if n in inside and n is not exps]
    if any(axes is None or axis in axes for axes in [lifted(n, varies[n], weights) for n, _ in shared]):
        return None
    if {n for n in inside if n.op in o.REDUCE} != {products, shift.maximum, *row_sums}:
        return None
    # both factors have an axis of their own: rows of weights, and columns of values
    own, others = varies[weights] - varies[values], varies[values] - varies[weights]
    single = [a for a, n in enumerate(weights.shape) if n == 1]           # one row: its axis has size 1
    if not others or not own and not single:
        return None
    row_axis = max(own or single, key=lambda a: (upper_bound(weights.shape[a]), a))
    return SoftmaxProduct(total, weights, values, axis, row_axis, sorted(others), [products], [rows], [keys], inside,
                          above, result, exps, scores, shift.maximum, shift.rate, row_sums, shared)


class _Factors:
    """The factors of a value: `leaves`, each with the op that joins it (MUL, or DIV for divisors); and `way`, the nodes
    above them: views, casts, products, and WHEREs with 0."""

    def __init__(self, top: UOp):
        self.twice = False
        self.leaves: list[tuple[UOp, o.Op]] = []
        self.way: list[UOp] = []
        stack = [(top, o.MUL)]
        while stack:
            node, joins = stack.pop()
            self.twice = self.twice or node in self.way
            if node.op in _VIEWS or node.op is o.CAST and node.src[0].dtype.is_float:
                inner = [(node.src[0], joins)]
            elif node.op is o.MUL and joins is o.MUL:
                inner = [(s, o.MUL) for s in node.src]
            elif node.op is o.DIV and joins is o.MUL:
                inner = [(node.src[0], o.MUL), (node.src[1], o.DIV)]
            elif node.op is o.WHERE and node.src[2].op is o.CONST and node.src[2].arg == 0 and joins is o.MUL:
                inner = [(node.src[1], joins)]
            else:
                self.leaves.append((node, joins))
                continue
            self.way.append(node)
            stack += inner


def lifted(node: UOp, axes: AxisSet, top: UOp) -> AxisSet | None:
    """The axes of `top` that axes of a node below it become; None where a reshape mixes them with others."""
    known: dict[UOp, AxisSet | None] = {node: axes}
    for n in toposort([top], lambda n: () if n.op in o.REDUCE else n.src):
        for s in n.src:
            found = known.get(s)
            if found is not None and n.op not in o.REDUCE:
                known[n] = carried(n, found, exact=True) if n.op in o.MOVEMENT else found
    return known.get(top)


@dataclass(eq=False)
class _Shift:
    """The parts of EXP2((scores - maximum) * rate)."""
    scores: UOp
    maximum: UOp
    rate: UOp | None
    difference: UOp
    between: list[UOp]         # the nodes from the maximum to the EXP2

    @staticmethod
    def of(exps: UOp) -> _Shift | None:
        argument = exps.src[0]
        rate: UOp | None = None
        difference = argument
        if argument.op is o.MUL and argument.src[1].op is o.CONST and argument.src[1].arg > 0:
            difference, rate = argument.src
        if difference.op is not o.SUB:
            return None
        scores, maximum = difference.src
        between = list(dict.fromkeys([argument, difference]))
        while maximum.op in (o.EXPAND, o.DETACH):
            between.append(maximum)
            maximum = maximum.src[0]
        if maximum.op is not o.AMAX or maximum.src[0] is not scores or len(maximum.arg.axes) != 1:
            return None
        return _Shift(scores, maximum, rate, difference, between)


def is_contraction(node: UOp, varies: dict[UOp, AxisSet], of_a_row: bool = False) -> bool:
    """Whether a node is a sum over one axis of products, where each factor has an axis that the other lacks; with
    `of_a_row`, one such factor is enough."""
    return node.op is o.SUM and len(node.arg.axes) == 1 and sums_products(node, varies, 2 - of_a_row)


def down_to_reductions(node: UOp) -> list[UOp]:
    """The topmost reductions below a node."""
    found = toposort([node], lambda n: [] if n.op in o.REDUCE else list(n.src))
    return [n for n in found if n.op in o.REDUCE]


def _sides(products: UOp, scores: UOp, maximum: UOp, varies: dict[UOp, AxisSet]) -> tuple[UOp | None, UOp | None]:
    """The factors of the scores' contraction: the one that has the axis of the maximum, and the other one."""
    product = products.src[0].below((o.CAST,))
    for keys, rows in (product.src, product.src[::-1]):
        if lifted(products, varies[keys] - varies[rows], scores) == frozenset(maximum.arg.axes):
            return keys, rows
    return None, None


def _dependents(products: UOp, total: UOp, result: UOp, order: Iterable[UOp]) \
        -> tuple[set[UOp], set[UOp], dict[UOp, set[UOp]]]:
    """Return the nodes that depend on the scores' products, except those between the total and the result; these,
    including both; and the readers of each node. `order` is topological: nothing before the products depends on
    them."""
    inside, above = {products}, {total}
    readers: dict[UOp, set[UOp]] = {}
    place = {n: i for i, n in enumerate(order)}
    for n in toposort([result], lambda n: [s for s in n.src if place[s] >= place[products]]):
        for s in n.src:
            readers.setdefault(s, set()).add(n)
        if any(s in above for s in n.src):
            above.add(n)
        elif n is not total and any(s in inside for s in n.src):
            inside.add(n)
    return inside, above, readers


# -- in a whole graph ------------------------------------------------------------------------------------------------
def result_of(total: UOp, readers: dict[UOp, list[UOp]], sinks: set[UOp]) -> UOp:
    """The node to store for a total: above its views and casts, and above its division by the row sums."""
    node = divided = total
    while node not in sinks and len(readers.get(node, [])) == 1:
        reader = readers[node][0]
        if reader.op is o.DIV and reader.src[0] is node or reader.op is o.MUL:
            other = reader.src[1] if reader.src[0] is node else reader.src[0]
            other = other.below((*_ABOVE, o.EXPAND, o.RECIP))
            if other.op is not o.SUM or other.src[0].op is not o.EXP2:
                return divided
            divided = reader
        elif reader.op not in _ABOVE:
            return reader if reader.op is o.CONTIGUOUS else divided
        elif reader.op is o.CAST:
            divided = reader
        node = reader
    return divided


def why_apart(chain: WeightedSum, device: str, stores_scores: StoresScores | None, least_rows: int) -> str | None:
    """Why to store the scores for later kernels, judging by this sum alone; None where one pass is better."""
    if settings.ONLINE_SOFTMAX == 0:
        return "ONLINE_SOFTMAX=0"
    widths = [p.src[0].shape[a] for p in chain.products for a in p.arg.axes]
    terms, columns = max(map(upper_bound, widths)), math.prod(chain.weights.shape[a] for a in chain.columns)
    if any(isinstance(n, Length) for n in (*widths, columns)):
        return "the numbers of a key or value are symbolic"
    keys, rows = upper_bound(chain.weights.shape[chain.axis]), upper_bound(chain.weights.shape[chain.row_axis])
    if lower_bound(chain.weights.shape[chain.axis]) == 0:
        return "there may be no keys"
    if settings.ONLINE_SOFTMAX == 1 and keys < max(LEAST_KEYS, 2 * terms, 2 * columns):
        return f"{keys} keys of {terms} and {columns} numbers are few"
    if rows < least_rows and (settings.ONLINE_SOFTMAX == 1 or rows == 1):
        return f"{rows} rows are few"
    if stores_scores is None:
        return None
    return stores_scores(chain.total.device or device, stored_type(chain.keys[0]), max(terms, columns))


def stored_type(factor: UOp) -> DType:
    """The type in which a factor is stored: the smallest of those it is converted to and from."""
    found = factor.dtype
    while factor.op in (*_VIEWS, o.CAST):
        factor = factor.src[0]
        found = factor.dtype if factor.dtype.itemsize < found.itemsize else found
    return found
