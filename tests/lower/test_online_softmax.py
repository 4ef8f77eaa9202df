"""softmax(q k^T) v in one kernel: found in every form, right against float64, with no scores in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from loop_kernels import AVX2, AVX512, NEON

from glassgrad import Context, Device, Tensor, dtypes
from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.graph.index_algebra import add, index, multiply
from glassgrad.compiler.graph.uop import UOp, const
from glassgrad.compiler.lower.attention.attention_blocks import ScoreBlocks
from glassgrad.compiler.lower.attention.attention_scores import blocks_to_run, kept_below
from glassgrad.compiler.lower.loops import For, counter, walk
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets.target import GPU, Target
from glassgrad.compiler.schedule import attention_backward
from glassgrad.compiler.schedule.attention_backward import FactorProduct
from glassgrad.compiler.schedule.fusion import OF_EACH_ROW
from glassgrad.compiler.schedule.online_softmax import ONE_PASS

ON_A_CPU = pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="a GPU without a matrix unit for float32 stores scores")
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
Reference = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


@pytest.fixture(autouse=True)
def any_size() -> Iterator[None]:
    with Context(ONLINE_SOFTMAX=2):
        yield


def arrays(*shapes: tuple[int, ...], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def exactly(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | float = 0.0,
            scale: float | None = None) -> np.ndarray:
    """Attention in float64; a row that may look at nothing is 0."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = q @ np.swapaxes(k, -1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale) + mask
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = weights.sum(-1, keepdims=True)
    return weights / np.where(total == 0, 1, total) @ v


def causal(rows: int, keys: int) -> np.ndarray:
    return np.where(np.tril(np.ones((rows, keys), bool)), 0.0, -np.inf)


def softmax_by_hand(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return (scores - scores.max(-1, keepdim=True)).exp(), v


def divided_after(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights, v = softmax_by_hand(q, k, v)
    return (weights @ v) / weights.sum(-1, keepdim=True)


def divided_before(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights, v = softmax_by_hand(q, k, v)
    return weights / weights.sum(-1, keepdim=True) @ v


def multiplied_after(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights, v = softmax_by_hand(q, k, v)
    return (weights @ v) * weights.sum(-1, keepdim=True).reciprocal()


def transposed_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Keys along the first axis of the scores."""
    return ((k @ q.transpose(-1, -2)) / math.sqrt(q.shape[-1])).softmax(-2).transpose(-1, -2) @ v


def heads_side_by_side(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As a layer has them: (batch, time, heads, size) in memory, and the result likewise."""
    q, k, v = (x.transpose(1, 2).contiguous().realize().transpose(1, 2) for x in (q, k, v))
    return q.scaled_dot_product_attention(k, v).transpose(1, 2).contiguous().transpose(1, 2)


FORMS: dict[str, tuple[Attention, Reference]] = {
    "plain": (lambda q, k, v: q.scaled_dot_product_attention(k, v), exactly),
    "causal": (lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True),
               lambda q, k, v: exactly(q, k, v, causal(q.shape[-2], k.shape[-2]))),
    "another scale": (lambda q, k, v: q.scaled_dot_product_attention(k, v, scale=0.3),
                      lambda q, k, v: exactly(q, k, v, scale=0.3)),
    "divided after": (divided_after, exactly),
    "divided before": (divided_before, exactly),
    "multiplied after": (multiplied_after, exactly),
    "einsum": (lambda q, k, v: Tensor.einsum("bhqk,bhkd->bhqd", (Tensor.einsum("bhqd,bhkd->bhqk", q, k)
                                                                / math.sqrt(q.shape[-1])).softmax(-1), v), exactly),
    "keys along the first axis": (transposed_scores, exactly),
    "heads side by side": (heads_side_by_side, exactly),
    "a computed key": (lambda q, k, v: q.scaled_dot_product_attention(k * 2 - k, v), exactly),
    "a bias of the distance": (
        lambda q, k, v: ((q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])) - 0.1 * (
            Tensor.arange(q.shape[-2])[:, None] - Tensor.arange(k.shape[-2])[None]).abs()).softmax() @ v,
        lambda q, k, v: exactly(q, k, v, -0.1 * abs(np.arange(q.shape[-2])[:, None] - np.arange(k.shape[-2])))),
}


@ON_A_CPU
@pytest.mark.parametrize("shape", [(2, 3, 37, 8), (1, 1, 130, 40)], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_one_kernel_and_right(form: str, shape: tuple[int, ...]) -> None:
    made, reference = FORMS[form]
    q, k, v = arrays(shape, shape, shape)
    out = made(Tensor(q), Tensor(k), Tensor(v))
    names = [lower(item.ast).name for item in out.schedule()]
    assert [name.split("_")[0] for name in names] == ["online"], names
    np.testing.assert_allclose(out.numpy(), reference(q, k, v), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("rows, keys, size, width", [(1, 1, 1, 1), (3, 200, 7, 5), (200, 3, 5, 7), (33, 129, 40, 24),
                                                     (65, 64, 16, 1), (1, 300, 16, 16), (129, 65, 1, 33)])
def test_any_sizes(rows: int, keys: int, size: int, width: int) -> None:
    q, k, v = arrays((2, rows, size), (2, keys, size), (2, keys, width))
    out = Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v))
    np.testing.assert_allclose(out.numpy(), exactly(q, k, v), rtol=2e-5, atol=2e-6)


@ON_A_CPU
def test_masks_of_many_kinds() -> None:
    q, k, v = arrays((2, 3, 70, 16), (2, 3, 90, 16), (2, 3, 90, 16))
    rng = np.random.default_rng(1)
    seen = rng.random((2, 1, 70, 90)) < 0.4
    seen[0, 0, 3] = False                       # a row that may look at nothing
    seen[1, 0, 5, :80] = False                  # and one that sees nothing in its first blocks
    for given, added in ((seen, np.where(seen, 0, -np.inf)), (seen[:, :, :1], np.where(seen[:, :, :1], 0, -np.inf)),
                         *[(m, m) for m in (np.where(seen, 0.5, -np.inf).astype(np.float32),)]):
        out = Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v), attn_mask=Tensor(given))
        assert [i.reasons[0] for i in out.schedule()][-1] == "an output"
        assert sum(lower(item.ast).name.startswith("online") for item in out.schedule()) == 1
        np.testing.assert_allclose(out.numpy(), exactly(q, k, v, added), rtol=2e-5, atol=2e-6)


@ON_A_CPU
def test_heads_that_share_keys() -> None:
    q, k, v = arrays((2, 6, 40, 8), (2, 2, 70, 8), (2, 2, 70, 8))
    out = Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v), enable_gqa=True)
    assert len(out.schedule()) == 1
    np.testing.assert_allclose(out.numpy(), exactly(q, k.repeat(3, 1), v.repeat(3, 1)), rtol=2e-5, atol=2e-6)


@ON_A_CPU
@pytest.mark.parametrize("dtype, close", [(dtypes.float16, 4e-3), (dtypes.bfloat16, 3e-2), (dtypes.float64, 1e-12)])
def test_other_types(dtype: object, close: float) -> None:
    q, k, v = arrays((2, 2, 70, 24), (2, 2, 130, 24), (2, 2, 130, 24))
    tensors = [Tensor(x).cast(dtype) for x in (q, k, v)]  # type: ignore[arg-type]
    with Context(MATRIX_UNIT=0):
        out = tensors[0].scaled_dot_product_attention(tensors[1], tensors[2], is_causal=True)
        assert [lower(item.ast).name.split("_")[0] for item in out.schedule()] == ["online"]
        got = out.cast(dtypes.float64).numpy()
    q, k, v = (t.cast(dtypes.float64).numpy() for t in tensors)
    wanted = exactly(q, k, v, causal(70, 130))
    np.testing.assert_allclose(got, wanted, rtol=close, atol=close)


# -- numbers that are none -----------------------------------------------------------------------------------
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_comes_out_as_from_several_kernels(bad: float) -> None:
    """By hand, so that nothing but the softmax decides: a row of -inf alone, one with a NaN, one with an infinity."""
    q, k, v = arrays((70, 8), (150, 8), (150, 8))
    bias = np.zeros((70, 150), np.float32)
    bias[0, :], bias[1, 140], bias[2, 3], bias[3, :100] = -math.inf, bad, bad, -math.inf
    bias[4, :100], bias[4, 120] = -math.inf, bad

    def made() -> np.ndarray:
        scores = Tensor(q) @ Tensor(k).T + Tensor(bias)
        return (scores.softmax() @ Tensor(v)).numpy()

    got = made()
    with Context(ONLINE_SOFTMAX=0):
        wanted = made()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    assert np.isnan(got[0]).all() and not np.isnan(got[3]).any()
    np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=1e-5)


def test_scores_far_apart() -> None:
    """The maximum grows by hundreds from block to block: nothing overflows, and early keys count for nothing."""
    q, k, v = arrays((40, 8), (200, 8), (200, 8))
    k *= np.linspace(1, 200, 200, dtype=np.float32)[:, None]
    np.testing.assert_allclose(Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v)).numpy(), exactly(q, k, v),
                               rtol=2e-4, atol=1e-5)


# -- what is one pass, and what is not -----------------------------------------------------------------------
def reasons(*tensors: Tensor) -> list[str]:
    return [why for item in tensors[0].schedule(*tensors[1:]) for why in item.reasons]


@ON_A_CPU
def test_the_reason_says_so() -> None:
    q, k, v = (Tensor(x) for x in arrays((2, 70, 16), (2, 70, 16), (2, 70, 16)))
    after = q.scaled_dot_product_attention(k, v) @ Tensor.ones(16, 4).contiguous()
    assert ONE_PASS in reasons(after)
    with Context(ONLINE_SOFTMAX=0):
        assert any(why.endswith("not in one pass: ONLINE_SOFTMAX=0") for why in reasons(after))


@ON_A_CPU
def test_weights_that_others_read_are_stored() -> None:
    q, k, v = (Tensor(x) for x in arrays((2, 70, 16), (2, 70, 16), (2, 70, 16)))
    weights = (q @ k.transpose(-1, -2)).softmax()
    assert ONE_PASS in reasons(weights @ v @ v.transpose(-1, -2))
    assert not any(lower(item.ast).name.startswith("online") for item in (weights @ v).schedule(weights))
    assert ONE_PASS not in reasons(weights @ v @ v.transpose(-1, -2), weights @ q)         # two that share weights
    others = reasons(weights @ v, weights.sum(0))
    assert any(why.endswith("not in one pass: its weights are read by others too") for why in others), others


@ON_A_CPU
@pytest.mark.parametrize("rows, keys, size, one", [(512, 512, 64, True), (128, 128, 64, True), (32, 128, 16, True),
                                                   (64, 64, 64, False), (16, 1024, 64, False), (256, 256, 256, False)])
def test_short_sequences_are_left_to_several_kernels(rows: int, keys: int, size: int, one: bool) -> None:
    with Context(ONLINE_SOFTMAX=1):
        q, k, v = (Tensor.zeros(2, n, size).contiguous().realize() for n in (rows, keys, keys))
        planned = q.scaled_dot_product_attention(k, v).schedule()
    assert (len(planned) == 1) == one, [item.reasons for item in planned]
    assert one or any(why.endswith("are few") for item in planned for why in item.reasons)


@pytest.mark.parametrize("target, dtype, why", [
    (AVX512, dtypes.float32, None), (GPU, dtypes.float32, "groups of threads have no tiles for it")])
def test_a_target_may_want_its_scores_stored(target: Target, dtype: object, why: str | None) -> None:
    assert target.why_scores_are_stored(dtype) == why  # type: ignore[arg-type]


def test_gradients_are_those_of_several_kernels() -> None:
    def gradients() -> list[np.ndarray]:
        leaves = q, k, v = [Tensor(x, requires_grad=True) for x in arrays((2, 40, 8), (2, 70, 8), (2, 70, 8))]
        out = q.scaled_dot_product_attention(k, v)
        (out * out).sum().backward()
        out.realize()                                # a kernel of its own; the gradients compute its weights again
        return [leaf.grad.numpy() for leaf in leaves if leaf.grad is not None]

    got = gradients()
    with Context(ONLINE_SOFTMAX=0):
        wanted = gradients()
    assert len(got) == 3
    for g, w in zip(got, wanted):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)


def test_a_gradient_that_is_stored_twice_is_right() -> None:
    def gradient() -> np.ndarray:
        leaves = q, k, v = [Tensor(x, requires_grad=True) for x in arrays((2, 40, 8), (2, 70, 8), (2, 70, 8))]
        out = q.scaled_dot_product_attention(k, v)
        (out * out).sum().backward()
        out.realize()
        [found, *_] = [leaf.grad for leaf in leaves if leaf.grad is not None]
        copy = found.contiguous()
        copy.realize(found)
        assert copy.tolist() == found.tolist()
        return found.numpy()

    got = gradient()
    with Context(ONLINE_SOFTMAX=0):
        np.testing.assert_allclose(got, gradient(), rtol=1e-4, atol=1e-5)


def gradients_of(q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray,
                 mask: np.ndarray | float) -> list[np.ndarray]:
    """The result and the gradients of q, k and v for the gradient g of the result, in float64."""
    q, k, v, g = (x.astype(np.float64) for x in (q, k, v, g))
    scale = 1 / math.sqrt(q.shape[-1])
    scores = q @ np.swapaxes(k, -1, -2) * scale + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out = weights @ v
    inner = weights * (g @ np.swapaxes(v, -1, -2) - (g * out).sum(-1, keepdims=True)) * scale
    return [out, inner @ k, np.swapaxes(inner, -1, -2) @ q, np.swapaxes(weights, -1, -2) @ g]


def trained(q: Tensor, k: Tensor, v: Tensor, g: Tensor, attention: Attention) -> list[Tensor]:
    """The result and the gradients, in one graph."""
    for leaf in (q, k, v):
        leaf.requires_grad = True
    out = attention(q, k, v)
    return [out, *(out * g).sum().gradient(q, k, v)]


@ON_A_CPU
@pytest.mark.parametrize("rows, keys, size, width, is_causal", [(130, 200, 40, 24, False), (130, 200, 24, 16, True),
                                                                (150, 60, 8, 8, True)])
def test_gradients_compute_the_scores_again(rows: int, keys: int, size: int, width: int, is_causal: bool) -> None:
    shapes = (2, rows, size), (2, keys, size), (2, keys, width), (2, rows, width)
    given = arrays(*shapes)
    results = trained(*[Tensor(x) for x in given],
                      lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=is_causal))
    planned = results[0].schedule(*results[1:])
    kinds = [lower(item.ast).name.split("_")[0] for item in planned]
    assert kinds == ["online", "reduce", "online", "online"]            # the gradients of k and v share a kernel
    assert [item.results for item in planned] == [3, 1, 1, 2]
    results[0].realize(*results[1:])
    for got, wanted in zip(results, gradients_of(*given, causal(rows, keys) if is_causal else 0.0)):
        np.testing.assert_allclose(got.numpy(), wanted, rtol=2e-4, atol=2e-5)


@ON_A_CPU
@pytest.mark.parametrize("target", [None, AVX2, GPU], ids=["here", "avx2", "gpu"])
def test_what_is_made_of_a_result_is_stored_by_its_kernel(target: Target | None) -> None:
    given = arrays((2, 40, 8), (2, 70, 8), (2, 70, 8))
    out = Tensor(given[0]).scaled_dot_product_attention(Tensor(given[1]), Tensor(given[2]))
    more = out.relu() + 1
    [item] = out.schedule(more)
    assert item.results == 2 and lower(item.ast).name.startswith("online")
    if target is None:
        out.realize(more)
        got, got_more = out.numpy(), more.numpy()
    else:
        got, got_more = np.zeros((2, 2, 40, 8), np.float32)
        run_kernel(optimize(lower(item.ast), target), [got.ravel(), got_more.ravel(), *[x.ravel() for x in given]])
    np.testing.assert_allclose(got, exactly(*given), rtol=2e-5, atol=2e-6)
    np.testing.assert_array_equal(got_more, np.maximum(got, 0) + 1)


@ON_A_CPU
def test_a_training_graph_stores_no_scores() -> None:
    used = {}
    for length in (256, 512):
        tensors = [Tensor.zeros(2, length, 16).contiguous().realize() for _ in range(4)]
        out, *rest = trained(*tensors, lambda q, k, v: q.scaled_dot_product_attention(k, v))
        used[length] = out.memory_plan(*rest).between
        with Context(ONLINE_SOFTMAX=0):
            assert out.memory_plan(*rest).between >= 2 * length * length * 4
    assert used[512] == 2 * used[256] <= 2 * 512 * 3 * 4            # three numbers of each row


def test_gradients_by_the_rules_for_sums_store_their_scores() -> None:
    """Softmax by itself: its gradient adds up a row of weights times their gradients, which is no sum over values."""
    given = arrays((2, 70, 16), (2, 90, 16), (2, 90, 16), (2, 70, 16))
    results = trained(*[Tensor(x) for x in given], FORMS["divided before"][0])
    assert not any(lower(item.ast).name.startswith("online") for item in results[0].schedule(*results[1:]))
    for got, wanted in zip(results, gradients_of(*given, 0.0)):
        np.testing.assert_allclose(got.numpy(), wanted, rtol=2e-4, atol=2e-5)


@ON_A_CPU
@pytest.mark.parametrize("keys, is_causal, again", [(256, True, True), (256, False, False), (192, True, False)])
def test_a_cpu_computes_scores_again_where_a_mask_leaves_half_of_them(keys: int, is_causal: bool, again: bool) -> None:
    with Context(ONLINE_SOFTMAX=1):
        tensors = [Tensor.zeros(2, keys, 16).contiguous().realize() for _ in range(4)]
        out, *rest = trained(*tensors, lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=is_causal))
        other = Tensor.ones(16, 4).contiguous()
        planned = (out @ other).schedule(*[gradient @ other for gradient in rest])
    why = [reason for item in planned for reason in item.reasons]
    assert (ONE_PASS in why) == again and (OF_EACH_ROW in why or not again)


@ON_A_CPU
def test_memory_does_not_grow_with_the_square_of_the_length() -> None:
    """Between its inputs and its result, nothing but the scratch of a worker: the same for any length."""
    used = []
    for length in (512, 2048):
        q, k, v = (Tensor.zeros(1, 2, length, 16).contiguous().realize() for _ in range(3))
        plan = q.scaled_dot_product_attention(k, v).memory_plan()
        used.append((plan.between, plan.scratch))
        with Context(ONLINE_SOFTMAX=0):
            assert q.scaled_dot_product_attention(k, v).memory_plan().between >= 2 * length * length * 4
    assert used[0] == used[1] and sum(used[0]) < 256 << 10


# -- trees ---------------------------------------------------------------------------------------------------
@ON_A_CPU
@pytest.mark.parametrize("target", [AVX512, AVX2, NEON, GPU], ids=["avx512", "avx2", "neon", "gpu"])
@pytest.mark.parametrize("rows, is_causal", [(20, True), (32, False)])
def test_trees_of_every_target_are_right_and_free_of_races(target: Target, rows: int, is_causal: bool) -> None:
    q, k, v = arrays((1, rows, 24), (1, 37, 24), (1, 37, 20))
    [item] = Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v), is_causal=is_causal).schedule()
    out = np.zeros(rows * 20, np.float32)
    run_kernel(optimize(lower(item.ast, blocks=ScoreBlocks(16, 16, 8)), target), [out, *[x.ravel() for x in (q, k, v)]])
    mask = causal(rows, 37) if is_causal else 0.0
    np.testing.assert_allclose(out.reshape(1, rows, 20), exactly(q, k, v, mask), rtol=2e-5, atol=2e-6)


@ON_A_CPU
def test_both_products_are_register_tiles() -> None:
    q, k, v = (Tensor.zeros(2, 512, 64).contiguous().realize() for _ in range(3))
    [item] = q.scaled_dot_product_attention(k, v).schedule()
    moves = optimize(lower(item.ast), AVX512).moves
    assert sum(move.startswith("contract(") and "left=in_place, right=in_place" in move for move in moves) == 2


@ON_A_CPU
def test_a_causal_mask_ends_the_loop_over_keys() -> None:
    q, k, v = (Tensor.zeros(2, 512, 64).contiguous().realize() for _ in range(3))
    for is_causal, ends in ((True, True), (False, False)):
        [item] = q.scaled_dot_product_attention(k, v, is_causal=is_causal).schedule()
        loops = [s for s in walk(lower(item.ast).phases[0].body) if isinstance(s, For)]
        [over_keys] = [s for s in loops if s.range.arg.name == "kb"]
        assert (over_keys.stop is not None) == ends


@pytest.mark.parametrize("shift", [-70, -1, 0, 1, 5, 64, 100])
def test_blocks_to_run_are_those_with_a_score(shift: int) -> None:
    """Against all rows and keys of all blocks, for masks k < q + shift, written in three ways."""
    row, key, rows, keys = counter("q", 16), counter("k", 8), counter("qb", 5), counter("kb", 9)
    at_q, at_k = add(multiply(rows, 16), row), add(multiply(keys, 8), key)
    q, k = at_q.cast(dtypes.int32), at_k.cast(dtypes.int32)
    score, least = const(1.0, dtypes.float32), const(-math.inf, dtypes.float32)
    masked = ((k < q + shift).where(score, least), (k < q + shift).logical_not().where(least, score),
              (q + (shift - 1) < k).where(least, score) * 0.5)
    for value in masked:
        stop = blocks_to_run(value, keys, [row, key])
        assert stop is not None
        for block in range(5):
            wanted = [any(j * 8 + y < block * 16 + x + shift for x in range(16) for y in range(8)) for j in range(9)]
            assert [j < _value(stop, {rows: block}) for j in range(9)] == wanted
    seen = kept_below(masked[0], [row, key])
    assert [seen is None or bool(_value(seen, {rows: 1, keys: j})) for j in range(9)] == \
        [any(j * 8 + y < 16 + x + shift for x in range(16) for y in range(8)) for j in range(9)]
    assert blocks_to_run(score, keys, [row, key]) is None


def _value(expression: UOp, at: dict[UOp, int]) -> int:
    from glassgrad.compiler.graph.index_algebra import substitute_index
    found = substitute_index(expression, {r: index(n) for r, n in at.items()}, {})
    return int(found.arg)


def test_blocks_are_as_large_as_they_may_be() -> None:
    for size in (*range(1, 300), 1024, 4097):
        rows, keys = ScoreBlocks().rows_of(size), ScoreBlocks().keys_of(size)
        assert 1 <= rows <= min(64, size) and 1 <= keys <= min(96, size)


@pytest.mark.parametrize("online", [0, 2])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_what_a_mask_hides_is_not_looked_at_and_values_that_are_nan_are_seen(dtype: str, online: int) -> None:
    q, k, v = arrays((4, 8), (6, 8), (6, 8))
    mask = np.ones((4, 6), bool)
    mask[:, 2] = mask[1] = False                 # a key is hidden from all, and all keys from one query
    hidden = k.copy()
    hidden[2] = np.nan
    with Context(ONLINE_SOFTMAX=online):
        def attended(*given: np.ndarray) -> np.ndarray:
            query, key, value = (Tensor(x).cast(dtype).realize() for x in given)
            return query.scaled_dot_product_attention(key, value, Tensor(mask)).float().numpy()
        plain = attended(q, k, v)
        np.testing.assert_array_equal(attended(q, hidden, v), plain)
        assert not plain[1].any()
        spoilt = q.copy()
        spoilt[1] = np.inf
        np.testing.assert_array_equal(attended(spoilt, k, v), plain)
        far = v.copy()
        far[2, 3] = np.inf                       # 0 * inf is NaN: in every row, the one that sees nothing too,
        on_unit = Device.DEFAULT == "CUDA" and "16" in dtype and online == 2      # but for kernels of matrix units
        seeing = [0, 2, 3] if on_unit else [0, 1, 2, 3]
        found = attended(q, k, far)
        assert np.isnan(found[seeing, 3]).all() and np.isfinite(found[:, :3]).all()


class _Backwards(set):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[UOp]: return iter([*super().__iter__()][::-1])
    def __and__(self, other: object) -> _Backwards: return _Backwards(super().__and__(other))  # type: ignore[operator]
    def __rand__(self, other: object) -> _Backwards: return self & other


@pytest.mark.skipif(Device.DEFAULT != "CPU", reason="about a kernel for a CPU")
def test_values_of_rows_are_stored_in_one_order_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their order is that of the kernel's arguments. Nodes in a set are in the order of their addresses."""
    seen: list[list[UOp]] = []
    real = attention_backward._row_values

    def of_rows(factor: FactorProduct, numbers: set[UOp]) -> list[UOp]:
        found = real(factor, numbers)
        assert real(replace(factor, inside=_Backwards(factor.inside)), _Backwards(numbers)) == found
        seen.append(found)
        return found
    monkeypatch.setattr(attention_backward, "_row_values", of_rows)
    q, k, v = (Tensor(x).realize() for x in arrays((2, 40, 8), (2, 50, 8), (2, 50, 8)))
    out = q.scaled_dot_product_attention(k, v)
    out.schedule(*out.square().sum().gradient(q, k, v))
    assert max(map(len, seen)) == 2, "the maximum, and the sum"
