"""Find contractions with a factor computed from scores, for one pass. In: a graph. Out: which to compute in blocks.

The gradient of softmax(scores) times values is computed from the same scores s, two values per row, and another
contraction, dp:

    p[q, k] = exp(s[q, k] - m[q]) / l[q]            ds[q, k] = p[q, k] * (dp[q, k] - delta[q])
    dv[k, d] = sum over q of p[q, k] * g[q, d]      dq[q, d] = sum over k of ds[q, k] * key[k, d], and so on

Each result is a contraction with one factor (p or ds) that is itself computed from contractions (s and dp). Blocks of
that factor can be computed where they are used, so that it is never stored: each pass recomputes the scores. This needs
the forward pass to store m and l. Either all passes of a softmax do so, or none: scores stored for one reader serve all
of them. Does not know loops.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, field

from glassgrad.base.settings import settings
from glassgrad.compiler.graph import UOp, const, ops as o, toposort
from glassgrad.compiler.graph.axis_dependence import AxisSet, varies as varies_of
from glassgrad.compiler.schedule.inlined_values import CPU_LIMITS, FusionLimits
from glassgrad.compiler.schedule.online_softmax import (SoftmaxProduct, StoresScores, WeightedSum, down_to_reductions,
                                                        is_contraction, lifted, result_of, softmax_product, stored_type,
                                                        why_apart)

SCORES_AGAIN = "a softmax's gradient, in one pass: the scores are computed again, block by block"
READING_IS_FASTER = "reading the scores is faster than computing them again"
READ_BY_OTHERS = "its weights are read by others too"


@dataclass(eq=False)
class FactorProduct(WeightedSum):
    """A weighted sum whose weights are computed from several contractions and from stored values."""
    reads: list[UOp]           # other reductions inside the weights
    between: set[UOp]          # the nodes computed from those and from the products


@dataclass
class Passes:
    """The weighted sums of a graph that are computed block by block."""
    softmaxes: list[SoftmaxProduct] = field(default_factory=list)
    factors: list[FactorProduct] = field(default_factory=list)
    stored_by: dict[UOp, UOp] = field(default_factory=dict) # stored values per row -> the node whose kernel stores them
    why_not_one_pass: dict[UOp, str] = field(default_factory=dict)       # total not computed in one pass -> why not
    together: dict[UOp, UOp] = field(default_factory=dict)  # result -> the result whose kernel computes it too


def factor_product(total: UOp, varies: dict[UOp, AxisSet], result: UOp) -> FactorProduct | None:
    """Recognize a sum with a factor that is computed from contractions and an exponential; None for other sums."""
    if total.op is not o.SUM or total.symbolic or not is_contraction(total, varies):
        return None
    product = total.src[0].below((o.CAST,))
    for factor, values in (product.src, product.src[::-1]):
        found = _computed(total, factor, values, varies, result)
        if found is not None:
            return found
    return None


def _computed(total: UOp, factor: UOp, values: UOp, varies: dict[UOp, AxisSet], result: UOp) -> FactorProduct | None:
    [axis] = total.arg.axes
    body = toposort([factor], lambda n: () if n.op in o.REDUCE else n.src)
    if not any(n.op is o.EXP2 for n in body):
        return None
    own, others = varies[factor] - varies[values], varies[values] - varies[factor]
    row_axis = max(own, key=lambda a: (factor.shape[a], a))
    sides = {n: found for n in body if (found := _sides(n, factor, row_axis, axis, varies)) is not None}
    inside = set(sides)
    for n in body:
        if n.op not in o.REDUCE and not inside.isdisjoint(n.src):
            inside.add(n)
    if not any(n.op is o.EXP2 for n in inside) or values in inside or factor in sides:
        return None
    node = total.src[0]
    while node is not factor:                # the product that is summed, and casts of it
        inside.add(node)
        node = factor if node.op is o.MUL else node.src[0]
    above = {total}
    for n in toposort([result], lambda n: () if n is total else n.src):
        if any(s in above for s in n.src):
            above.add(n)
    reads = [n for n in down_to_reductions(factor) if n not in sides]
    return FactorProduct(total, factor, values, axis, row_axis, sorted(others), list(sides),
                         [rows for rows, _ in sides.values()], [keys for _, keys in sides.values()], inside, above,
                         result, reads, set(body).difference(reads))


def _sides(node: UOp, factor: UOp, row_axis: int, axis: int, varies: dict[UOp, AxisSet]) -> tuple[UOp, UOp] | None:
    """The factors of a contraction inside a factor: that with its rows, and that with k; None if it has other axes."""
    if node.op is not o.SUM or not is_contraction(node, varies):
        return None
    factors = node.src[0].below((o.CAST,)).src
    for rows, keys in (factors, factors[::-1]):
        if lifted(node, varies[rows] - varies[keys], factor) == {row_axis} and \
                lifted(node, varies[keys] - varies[rows], factor) == {axis}:
            return rows, keys
    return None


# -- one value per row -----------------------------------------------------------------------------------------------
def with_log_sums(sinks: list[UOp], device: str, stores_scores: StoresScores | None,
                  limits: FusionLimits) -> list[UOp]:
    """Rewrite passes over 16-bit factors to read one value per row instead of two:

        exp2((s - m) * rate) / l  ->  exp2(s * rate - (m * rate + log2(l)))
    """
    order = toposort(sinks)
    passes = find_in(sinks, order, device, stores_scores, limits)
    factors = {chain.total: chain for chain in passes.factors if stored_type(chain.keys[0]).itemsize == 2}
    new: dict[UOp, UOp] = {}
    for node in order:
        new[node] = _with_shift(factors[node], passes.softmaxes, new) if node in factors else \
            node.over(tuple([new[s] for s in node.src]))
    return [new[s] for s in sinks]


def _with_shift(chain: FactorProduct, softmaxes: list[SoftmaxProduct], new: dict[UOp, UOp]) -> UOp:
    """Rebuild the total of a gradient's contraction with such weights; the forward pass keeps its own."""
    own: dict[UOp, UOp] = {}
    rebuilt = ChainMap(own, new)
    mine = {*chain.inside, chain.total}
    for n in toposort([chain.total], lambda n: n.src if n in mine else ()):
        if n in mine:
            own[n] = _shifted(n, softmaxes, rebuilt) or n.over(tuple([rebuilt[s] for s in n.src]))
    return own[chain.total]


def _shifted(node: UOp, softmaxes: list[SoftmaxProduct], new: Mapping[UOp, UOp]) -> UOp | None:
    """Rewrite exps / row sums to one exponential; None for other nodes."""
    if node.op not in (o.MUL, o.DIV):
        return None
    (exps, divisor), inverse = node.src, node.op is o.DIV
    while divisor.op in (o.EXPAND, o.DETACH, o.RECIP):
        divisor, inverse = divisor.src[0], inverse != (divisor.op is o.RECIP)
    for chain in softmaxes:
        if exps is chain.exps and divisor in chain.row_sums and inverse:
            rate = const(1.0, exps.dtype) if chain.rate is None else chain.rate
            shift = new[chain.maximum] * rate + UOp(o.LOG2, exps.dtype, (new[divisor],))
            return UOp(o.EXP2, exps.dtype, (new[chain.scores] * rate - shift.expand(exps.shape),))
    return None


# -- in a whole graph, and in a kernel -------------------------------------------------------------------------------
def find_in(sinks: list[UOp], order: list[UOp], device: str, stores_scores: StoresScores | None,
            limits: FusionLimits) -> Passes:
    """As `find`, for a graph whose axes and readers have not been computed."""
    readers: dict[UOp, list[UOp]] = {}
    for node in order:
        for s in node.src:
            readers.setdefault(s, []).append(node)
    return find(order, varies_of(order), readers, set(sinks), device, stores_scores, limits)


def find(order: list[UOp], varies: dict[UOp, AxisSet], readers: dict[UOp, list[UOp]], sinks: set[UOp], device: str,
         stores_scores: StoresScores | None, limits: FusionLimits) -> Passes:
    """The softmaxes and gradients of a graph that are worth one pass, and why others are not. If `masked_keys` is not
    0, the gradient of a softmax with a mask of positions recomputes scores only from that many keys on."""
    least_masked = limits.masked_keys
    results = {n: result_of(n, readers, sinks) for n in order if n.op is o.SUM}
    candidates = _candidates(results, varies)
    refused: dict[UOp, str] = {}
    for each in candidates:
        shared = isinstance(each, SoftmaxProduct) and any(
            other is not each and isinstance(other, SoftmaxProduct) and other.products == each.products
            for other in candidates)
        least_rows = (limits if isinstance(each, SoftmaxProduct) else CPU_LIMITS).softmax_rows
        why = READ_BY_OTHERS if shared else why_apart(each, device, stores_scores, least_rows)
        if why is None and least_masked and settings.ONLINE_SOFTMAX == 1 and isinstance(each, FactorProduct):
            why = None if each.weights.shape[each.axis] >= least_masked and _masked(each) else READING_IS_FASTER
        if why is not None:
            refused[each.total] = why
    return _passes([each for each in candidates if each.total not in refused], refused, readers, sinks)


def _candidates(results: dict[UOp, UOp], varies: dict[UOp, AxisSet]) -> list[WeightedSum]:
    """The weighted sums with a softmax as a factor, and those with a factor computed from the same scores."""
    softmaxes = [chain for n in results if (chain := softmax_product(n, varies, results[n])) is not None]
    scores, totals = {p for chain in softmaxes for p in chain.products}, {chain.total for chain in softmaxes}
    if not softmaxes:
        return []
    factors = [factor for n in results if n not in totals
               and (factor := factor_product(n, varies, results[n])) is not None
               and not scores.isdisjoint(factor.products)]
    return [*softmaxes, *factors]


def _passes(found: list[WeightedSum], refused: dict[UOp, str], readers: dict[UOp, list[UOp]],
            sinks: set[UOp]) -> Passes:
    """The candidates whose scores nothing else reads, and the values that their kernels store too; `refused` says why
    others are not among them."""
    passes = Passes(why_not_one_pass=refused)
    while True:                        # dropping a candidate may leave another reader of a shared score
        taken = {n for chain in found for n in (*chain.inside, *chain.above)}
        between = {n for chain in found if isinstance(chain, FactorProduct) for n in chain.between}
        taken |= _closed_under_readers(between, taken, readers)
        stored = {n for chain in found if isinstance(chain, SoftmaxProduct)
                  for n in (chain.maximum, *chain.row_sums)}
        others = [chain for chain in found if any(n in sinks or not taken.issuperset(readers[n]) for n in chain.inside)
                  or isinstance(chain, FactorProduct) and any(_made_of(n, chain) and n not in stored
                                                              for n in chain.reads)]
        if not others:
            break
        passes.why_not_one_pass.update((chain.total, READ_BY_OTHERS) for chain in others)
        found = [chain for chain in found if chain not in others]
    passes.softmaxes = [chain for chain in found if isinstance(chain, SoftmaxProduct)]
    passes.factors = [chain for chain in found if isinstance(chain, FactorProduct)]
    for chain in passes.softmaxes:
        numbers = {chain.maximum, *chain.row_sums}
        for factor in passes.factors:
            passes.stored_by.update((n, chain.result) for n in _row_values(factor, numbers))
    passes.together = _shared_kernels(passes.factors)
    return passes


def _shared_kernels(factors: list[FactorProduct]) -> dict[UOp, UOp]:
    """Results that share a kernel: the products of one are among those of the other, with the same rows, so that one
    block serves both. A block needs at least one product per result, in whose tile it keeps the weights."""
    found: dict[UOp, UOp] = {}
    for main in factors:
        for other in factors:
            if other is not main and main.result not in found and not {main.result, other.result} & {*found.values()} \
                    and other.result not in found and len(main.products) >= 2 and _same_blocks(main, other) \
                    and main.result not in toposort([other.result]) and other.result not in toposort([main.result]):
                found[other.result] = main.result
    return found


def _same_blocks(main: FactorProduct, other: FactorProduct) -> bool:
    """Whether the products of `other` are among those of `main`, in blocks of the same rows and keys."""
    for product, rows in zip(other.products, other.rows):
        if product not in main.products or main.rows[main.products.index(product)] is not rows:
            return False
        for axis in (a for a, n in enumerate(product.shape) if n != 1):
            mine, others = (lifted(product, frozenset((axis,)), chain.weights) for chain in (main, other))
            if mine is None or others is None or len(mine) != 1 or len(others) != 1 or \
                    _role(main, *mine) != _role(other, *others):
                return False
    return True


def _role(chain: FactorProduct, axis: int) -> str | int:
    return "row" if axis == chain.row_axis else "key" if axis == chain.axis else axis


def _closed_under_readers(some: set[UOp], others: set[UOp], readers: dict[UOp, list[UOp]]) -> set[UOp]:
    """The largest subset of `some` whose nodes are read only by nodes of that subset and of `others`."""
    while True:
        kept = {n for n in some if all(r in some or r in others for r in readers[n])}
        if kept == some:
            return kept
        some = kept


def _row_values(factor: FactorProduct, numbers: set[UOp]) -> list[UOp]:
    """The values per row that a factor reads and that are computed only from `numbers`: the topmost such values."""
    found: dict[UOp, None] = {}
    for node in toposort([factor.weights]):
        for s in node.src if node in factor.inside else ():
            while s.op in (o.EXPAND, o.RESHAPE, o.DETACH) and s not in numbers:
                s = s.src[0]
            leaves = [n for n in toposort([s], lambda n: () if n.op in o.REDUCE else n.src)
                      if not n.src or n.op in o.REDUCE]
            if s not in factor.inside and not numbers.isdisjoint(leaves):
                alone = all(n in numbers or n.op is o.CONST for n in leaves)
                found.update(dict.fromkeys([s] if alone else [n for n in leaves if n in numbers]))
    return list(found)


def _masked(chain: FactorProduct) -> bool:
    """Whether scores are set to -inf by a mask that depends on positions alone: then whole blocks are skipped."""
    masks = [n.src[0] for n in chain.inside if n.op is o.WHERE and any(
        s.op is o.CONST and s.arg == -math.inf for s in n.src[1:])]
    return any(all(n.op not in (o.PARAM, o.BUFFER) for n in toposort([mask])) for mask in masks)


def _made_of(node: UOp, chain: FactorProduct) -> bool:
    """Whether a reduction that a pass reads is over values that the pass itself computes."""
    return any(n in chain.inside for n in node.src)


def in_kernel(sink: UOp) -> list[WeightedSum]:
    """The weighted sums that a kernel computes in one pass, that with the most products first; maybe none."""
    known = varies_of(toposort([sink]))
    found: dict[UOp, WeightedSum] = {}            # by total, because a value may be stored twice
    for store in reversed([s for s in sink.src if s.op is o.STORE]):
        chain = _chain_of(store.src[1], known)
        if isinstance(chain, SoftmaxProduct):
            return [chain]
        if chain is not None:
            found[chain.total] = chain
    return sorted(found.values(), key=lambda chain: -len(chain.products))


def _chain_of(value: UOp, known: dict[UOp, AxisSet]) -> WeightedSum | None:
    """The weighted sum of a stored value that is computed block by block; None where there is none."""
    for node in reversed(toposort([value])):
        if node.op is o.SUM:
            chain: WeightedSum | None = softmax_product(node, known, value) or factor_product(node, known, value)
            if chain is not None:
                return chain
    return None
