"""PyTorch's names: the same numbers, types and gradients, one line each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch_reference import check, seeded, torch

from glassgrad import DTypeError, GlobalCounters, InputError, ShapeError, Tensor, Variable, dtypes, nn, vmap
from glassgrad.compiler.graph.ops import Ops

F = torch.nn.functional

SAME = {   # name: the call for both, and the shapes of its inputs
    "absolute": (lambda x: x.absolute(), (3, 2)), "arccos": (lambda x: (x * 0.4).arccos(), (3, 2)),
    "arcsin": (lambda x: (x * 0.4).arcsin(), (3, 2)), "arctan": (lambda x: x.arctan(), (3, 2)),
    "arctan2": (lambda x, y: x.arctan2(y), (3, 2), (3, 2)), "arctanh": (lambda x: (x * 0.4).arctanh(), (3, 2)),
    "arcsinh": (lambda x: x.arcsinh(), (3, 2)), "arccosh": (lambda x: (x * x + 1.5).arccosh(), (3, 2)),
    "multiply": (lambda x, y: x.multiply(y), (3, 2), (2,)), "subtract": (lambda x, y: x.subtract(y), (3, 2), (2,)),
    "divide": (lambda x, y: x.divide(y), (3, 2), (2,)), "true_divide": (lambda x, y: x.true_divide(y), (2,), (2,)),
    "greater": (lambda x, y: x.greater(y), (3, 2), (2,)), "less": (lambda x, y: x.less(y), (3, 2), (2,)),
    "greater_equal": (lambda x, y: x.greater_equal(y), (3, 2), (2,)), "sgn": (lambda x: x.sgn(), (5,)),
    "less_equal": (lambda x, y: x.less_equal(y), (3, 2), (2,)), "fix": (lambda x: x.fix(), (5,)),
    "not_equal": (lambda x, y: x.not_equal(y), (3, 2), (2,)), "positive": (lambda x: x.positive(), (5,)),
    "moveaxis": (lambda x: x.moveaxis(0, 2), (2, 3, 4)), "swapdims": (lambda x: x.swapdims(0, 2), (2, 3, 4)),
    "ger": (lambda x, y: x.ger(y), (3,), (2,)), "split_with_sizes": (lambda x: x.split_with_sizes([1, 3])[1], (4, 2)),
    "clamp_min": (lambda x: x.clamp_min(0.3), (5,)), "clamp_max": (lambda x: x.clamp_max(0.3), (5,)),
    "fmax": (lambda x, y: x.fmax(y), (3, 2), (2,)), "fmin": (lambda x, y: x.fmin(y), (3, 2), (2,)),
    "ldexp": (lambda x, y: x.ldexp(y), (3, 2), (2,)), "inner": (lambda x, y: x.inner(y), (3, 4), (2, 4)),
    "inner of numbers": (lambda x, y: x.inner(y), (3, 4), ()), "vdot": (lambda x, y: x.vdot(y), (4,), (4,)),
    "kron": (lambda x, y: x.kron(y), (2, 3), (4,)),
    "addmv": (lambda x, m, v: x.addmv(m, v, beta=2), (3,), (3, 4), (4,)),
    "addr": (lambda x, v, w: x.addr(v, w, alpha=3), (3, 2), (3,), (2,)),
    "baddbmm": (lambda x, y, z: x.baddbmm(y, z), (2, 3, 5), (2, 3, 4), (2, 4, 5)),
    "addbmm": (lambda x, y, z: x.addbmm(y, z, beta=0.5, alpha=2), (3, 5), (2, 3, 4), (2, 4, 5)),
    "dist": (lambda x, y: x.dist(y, 3), (4,), (4,)), "tensor_split": (lambda x: x.tensor_split(3)[1], (7, 2)),
    "tensor_split at": (lambda x: x.tensor_split((2, -1), dim=1)[1], (2, 7)),
    "hsplit": (lambda x: x.hsplit(2)[1], (3, 4)), "vsplit": (lambda x: x.vsplit(2)[1], (4, 3)),
    "diag_embed": (lambda x: x.diag_embed(), (2, 3)), "diag_embed above": (lambda x: x.diag_embed(2), (2, 3)),
    "diag_embed below": (lambda x: x.diag_embed(-1), (2, 3)), "diagflat": (lambda x: x.diagflat(1), (2, 2)),
    "sum_to_size": (lambda x: x.sum_to_size(1, 3), (4, 2, 3)),
    "select_scatter": (lambda x, y: x.select_scatter(y, 1, 2), (3, 4), (3,)),
    "slice_scatter": (lambda x, y: x.slice_scatter(y, 1, 1, 4, 2), (3, 4), (3, 2)),
    "cov": (lambda x: x.cov(), (3, 7)), "cov of a row": (lambda x: x.cov(correction=0), (7,)),
    "corrcoef": (lambda x: x.corrcoef(), (3, 7)),
    "nanmedian": (lambda x: x.nanmedian(), (3, 7)), "nanmedian along": (lambda x: x.nanmedian(1)[0], (3, 6)),
    "cummax": (lambda x: x.cummax(1)[0], (3, 7)), "cummin": (lambda x: x.cummin(0)[0], (3, 7)),
    "empty": (lambda x: x.diag_embed(), (2, 0)), "empty cov": (lambda x: x.tensor_split(2)[0], (0, 3)),
}
FUNCTIONS: dict[str, tuple[Any, ...]] = {   # PyTorch has these as functions
    "pixel_shuffle": (lambda x: x.pixel_shuffle(2), lambda x: F.pixel_shuffle(x, 2), (2, 8, 3, 2)),
    "pixel_unshuffle": (lambda x: x.pixel_unshuffle(3), lambda x: F.pixel_unshuffle(x, 3), (2, 2, 6, 3)),
    "channel_shuffle": (lambda x: x.channel_shuffle(3), lambda x: F.channel_shuffle(x, 3), (2, 6, 2, 2)),
    "fold": (lambda x: x.fold((5, 4), (3, 2), padding=1, stride=2), lambda x: F.fold(x, (5, 4), (3, 2), 1, 1, 2),
             (2, 12, 9)),
    "fold, dilated": (lambda x: x.fold(6, 2, dilation=2), lambda x: F.fold(x, (6, 6), 2, 2), (1, 8, 16)),
    "local_response_norm": (lambda x: x.local_response_norm(3, 0.5), lambda x: F.local_response_norm(x, 3, 0.5),
                            (2, 5, 3)),
    "margin_ranking_loss": (lambda x, y, t: x.margin_ranking_loss(y, t.sign(), 0.3),
                            lambda x, y, t: F.margin_ranking_loss(x, y, t.sign(), 0.3), (5,), (5,), (5,)),
    "triplet_margin_loss": (lambda x, y, z: x.triplet_margin_loss(y, z, swap=True),
                            lambda x, y, z: F.triplet_margin_loss(x, y, z, swap=True), (4, 3), (4, 3), (4, 3)),
    "cosine_embedding_loss": (lambda x, y, t: x.cosine_embedding_loss(y, t.sign(), 0.1),
                              lambda x, y, t: F.cosine_embedding_loss(x, y, t.sign(), 0.1), (4, 3), (4, 3), (4,)),
    "multilabel_soft_margin_loss": (lambda x, t: x.multilabel_soft_margin_loss((t > 0).float()),
                                    lambda x, t: F.multilabel_soft_margin_loss(x, (t > 0).float()), (4, 3), (4, 3)),
    "affine_grid": (lambda x: Tensor.affine_grid(x, (2, 1, 3, 4)), lambda x: F.affine_grid(x, (2, 1, 3, 4), False),
                    (2, 2, 3)),
    "affine_grid, corners": (lambda x: Tensor.affine_grid(x, (2, 1, 3, 4), True),
                             lambda x: F.affine_grid(x, (2, 1, 3, 4), True), (2, 2, 3)),
    "aminmax": (lambda x: x.aminmax(dim=1)[1], lambda x: x.amax(dim=1), (3, 7)),      # torch 2.11's has no gradient
}
for _mode in ("bilinear", "nearest"):
    for _padding in ("zeros", "border"):
        for _corners in (False, True):
            FUNCTIONS[f"grid_sample {_mode} {_padding} {_corners}"] = (
                lambda x, g, m=_mode, p=_padding, c=_corners: x.grid_sample(g * 0.7, m, p, c),
                lambda x, g, m=_mode, p=_padding, c=_corners: F.grid_sample(x, g * 0.7, m, p, c),
                (2, 3, 4, 5), (2, 3, 4, 2))


@pytest.mark.parametrize("name", SAME)
def test_methods(name: str) -> None:
    check(*SAME[name])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    check(*FUNCTIONS[name], factor=8)


def whole(*arrays: Any) -> list[tuple[Tensor, Any]]:
    return [(Tensor(np.asarray(a)), torch.tensor(np.asarray(a))) for a in arrays]


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_divisors_of_the_least_number_of_a_type_are_those_of_numpy(dtype: str) -> None:
    """PyTorch's gcd of -128 and 6 in int8 is -2."""
    least = np.iinfo(dtype).min
    left = np.array([least, least, least, least, 0, least, 6, least + 1, least // 2], dtype)
    right = np.array([0, least, 6, 1, least, -1, least, least, least], dtype)
    assert Tensor(left).gcd(Tensor(right)).tolist() == np.gcd(left, right).tolist()
    assert Tensor(left).lcm(Tensor(right)).tolist() == torch.tensor(left).lcm(torch.tensor(right)).tolist()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint64"])
def test_divisors_of_any_count_of_numbers_take_few_kernels(dtype: str, rng: np.random.Generator) -> None:
    limits = np.iinfo(dtype)
    for count in (0, 1, 255, 256, 257, 1000):
        x, y = (rng.integers(limits.min, limits.max, count, dtype, endpoint=True) for _ in range(2))
        x[count // 2:count // 2 + 20] = y[:20][:len(x[count // 2:count // 2 + 20])] // 3 * 2
        a, b = Tensor(x, dtype=dtype).realize(), Tensor(y, dtype=dtype).realize()
        GlobalCounters.reset()
        np.testing.assert_array_equal(a.gcd(b).realize().numpy(), np.gcd(x, y))
        assert GlobalCounters.kernel_count <= 6


def test_divisors_of_examples_and_of_a_length_known_later() -> None:
    numbers, x = np.arange(1, 300), Tensor(list(range(1, 300))).realize()
    length = Variable("n", 1, 299).bind(270)
    for item in x[:length].gcd(36).schedule():           # a GPU's launch has no other arguments than the kernel's
        assert len(item.slots) == sum(n.op is Ops.PARAM for n in item.ast.toposort())
    assert x[:length].gcd(36).tolist() == np.gcd(numbers[:270], 36).tolist()
    assert vmap(lambda row: row.gcd(36))(x.reshape(13, 23)).flatten().tolist() == np.gcd(numbers, 36).tolist()
    assert vmap(lambda row: row.gcd(x[:13]), in_axes=1)(x.reshape(13, 23)).tolist() == np.gcd(
        numbers.reshape(13, 23).T, numbers[:13]).tolist()


def test_integers() -> None:
    (x, a), (y, b) = whole(np.array([12, 0, -18, 35, 2147483647], "int32"), np.array([18, 0, 12, -49, 2], "int32"))
    assert x.gcd(y).tolist() == a.gcd(b).tolist() and x.lcm(6).tolist()[:4] == a.lcm(torch.tensor(6)).tolist()[:4]
    assert x.bitwise_left_shift(1).tolist()[0] == 24 and x.bitwise_right_shift(1).tolist()[0] == 6
    assert x.float_power(2).dtype is dtypes.float64 and x.float_power(2).tolist() == a.float_power(2).tolist()
    assert (x.nelement(), x.ndimension()) == (a.nelement(), a.ndimension())
    with pytest.raises(DTypeError, match="gcd is of integers"):
        Tensor([1.5]).gcd(2)


def test_infinite() -> None:
    [(x, a)] = whole(np.array([np.inf, -np.inf, 1.0, np.nan], "float32"))
    assert x.isposinf().tolist() == a.isposinf().tolist() and x.isneginf().tolist() == a.isneginf().tolist()
    assert x.fmax(2).tolist() == a.fmax(torch.tensor(2.0)).tolist()
    assert x.fmin(2).tolist() == a.fmin(torch.tensor(2.0)).tolist()


@pytest.mark.parametrize("shape, dim", [((7,), 0), ((3, 6), 1), ((3, 6), 0), ((2, 3, 4), 1), ((1,), -1), ((), 0)])
def test_places_of_running_extremes(shape: tuple[int, ...], dim: int) -> None:
    for array in (seeded(shape).integers(0, 4, shape), seeded(shape).choice([1.0, np.nan, -1.0, 2.0], shape)):
        x, a = Tensor(array), torch.tensor(array)
        for ours, theirs in ((x.cummax(dim), a.cummax(dim)), (x.cummin(dim), a.cummin(dim))):
            np.testing.assert_array_equal(ours[0].numpy(), theirs[0].numpy())
            np.testing.assert_array_equal(ours[1].numpy(), theirs[1].numpy())
            assert ours[1].dtype is dtypes.int32


@pytest.mark.parametrize("shape, dim", [((9,), 0), ((3, 8), 1), ((8, 3), 0), ((2, 5, 4), 1), ((1, 1), -1)])
def test_most_frequent(shape: tuple[int, ...], dim: int) -> None:
    array = seeded("mode", shape).integers(0, 3, shape)
    for keepdim in (False, True):
        value, place = Tensor(array).mode(dim, keepdim)
        reference = torch.tensor(array).mode(dim, keepdim)
        assert value.tolist() == reference.values.tolist()
        assert np.take_along_axis(array, np.expand_dims(place.numpy(), dim) if not keepdim else place.numpy(),
                                  dim).reshape(-1).tolist() == reference.values.reshape(-1).tolist()
    assert Tensor(3).mode()[0].item() == 3


def test_counts_in_bins() -> None:
    array = seeded("histc").normal(size=50).astype("float32")
    x, a = Tensor(array), torch.tensor(array)
    assert x.histc(7, -1, 1).tolist() == a.histc(7, -1, 1).tolist()
    assert x.histc(5).tolist() == a.histc(5).tolist() and sum(x.histc().tolist()) == 50
    assert Tensor([2.0, 2.0]).histc(3).tolist() == torch.tensor([2.0, 2.0]).histc(3).tolist()
    for wrong in (lambda: x.histc(0), lambda: Tensor([1.0, math.nan]).histc(3), lambda: Tensor([math.inf]).histc(3)):
        with pytest.raises(InputError, match="histc cannot make these bins"):
            wrong()


def test_runs() -> None:
    for values in ([1, 1, 2, 2, 2, 1], [5], [], [[1, 1], [1, 2]]):
        x, a = Tensor(np.array(values, "int32")), torch.tensor(values, dtype=torch.int32)
        ours = x.unique_consecutive(return_inverse=True, return_counts=True)
        theirs = a.unique_consecutive(return_inverse=True, return_counts=True)
        assert [t.tolist() for t in ours] == [t.tolist() for t in theirs]


def test_taking_and_putting() -> None:
    array, places = seeded("take").normal(size=(3, 4)).astype("float32"), np.array([[2], [0], [1]])
    (x, a), (i, j) = whole(array, places)
    np.testing.assert_array_equal(x.take_along_dim(i, 1).numpy(), a.take_along_dim(j, 1).numpy())
    np.testing.assert_array_equal(x.take_along_dim(i[:1], 0).numpy(), a.take_along_dim(j[:1], 0).numpy())
    np.testing.assert_array_equal(x.take_along_dim(i).numpy(), a.take_along_dim(j).flatten().numpy())
    mask, source = array > 0, np.arange(12, dtype="float32")
    np.testing.assert_array_equal(x.masked_scatter(Tensor(mask), Tensor(source)).numpy(),
                                  a.masked_scatter(torch.tensor(mask), torch.tensor(source)).numpy())
    with pytest.raises(ShapeError, match="the index of take_along_dim does not fit"):
        x.take_along_dim(i.flatten(), 0)


def test_multi_margin_loss() -> None:
    array, named, weight = seeded("mm").normal(size=(4, 3)).astype("float32"), np.array([0, 2, 1, 1]), [0.5, 1.0, 2.0]
    for p, w, reduction in ((1, None, "mean"), (2, weight, "none"), (1, weight, "sum")):
        x, a = Tensor(array), torch.tensor(array, requires_grad=True)
        ours = x.multi_margin_loss(Tensor(named), p, 0.7, None if w is None else Tensor(w), reduction)
        theirs = F.multi_margin_loss(a, torch.tensor(named), p, 0.7, None if w is None else torch.tensor(w),
                                     reduction=reduction)
        np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=1e-5)
        theirs.sum().backward()
        np.testing.assert_allclose(ours.sum().gradient(x)[0].numpy(), a.grad.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smooth", [0.0, 0.2])
def test_class_weights(reduction: str, smooth: float) -> None:
    array, named = seeded("cw").normal(size=(6, 4)).astype("float32"), np.array([0, 3, 1, -100, 2, 1])
    weight = np.array([0.5, 1.0, 2.0, 0.25], "float32")
    x, a = Tensor(array), torch.tensor(array, requires_grad=True)
    ours = x.cross_entropy(Tensor(named), reduction, smooth, weight=Tensor(weight))
    theirs = F.cross_entropy(a, torch.tensor(named), torch.tensor(weight), reduction=reduction, label_smoothing=smooth)
    np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=1e-5)
    theirs.sum().backward()
    np.testing.assert_allclose(ours.sum().gradient(x)[0].numpy(), a.grad.numpy(), rtol=1e-5, atol=1e-6)
    shares = np.abs(array)
    ours = x.cross_entropy(Tensor(shares), reduction, smooth, weight=Tensor(weight))
    theirs = F.cross_entropy(a, torch.tensor(shares), torch.tensor(weight), reduction=reduction, label_smoothing=smooth)
    np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=1e-5)
    logs = F.log_softmax(a, 1)
    theirs = F.nll_loss(logs, torch.tensor(named), torch.tensor(weight), reduction=reduction)
    ours = x.log_softmax(1).nll_loss(Tensor(named), Tensor(weight), reduction=reduction)
    np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=1e-5)


CTC: dict[str, tuple[Any, ...]] = {   # steps, batch, classes, labels; lengths; options
    "plain": (6, 3, 5, 2, [6, 5, 6], [2, 1, 2], {}),
    "repeated labels, other blank": (9, 2, 3, 3, [9, 8], [3, 2], {"blank": 2}),
    "no labels": (5, 2, 4, 3, [5, 3], [0, 3], {"reduction": "none"}),
    "one step": (1, 2, 4, 1, [1, 1], [1, 0], {"reduction": "sum"}),
    "no path": (3, 2, 4, 4, [3, 3], [4, 2], {"reduction": "none", "zero_infinity": True}),
    "no time": (3, 3, 4, 2, [0, 0, 3], [0, 2, 1], {"reduction": "none", "zero_infinity": True}),
    "many steps": (40, 2, 6, 7, [40, 33], [7, 5], {}),
    "in one vector": (8, 3, 4, 3, [8, 7, 8], [3, 1, 2], {"flat": True}),
}


@pytest.mark.parametrize("name", CTC)
def test_ctc_loss(name: str) -> None:
    steps, batch, classes, labels, lengths, counts, options = CTC[name]
    flat, options = options.get("flat", False), {k: v for k, v in options.items() if k != "flat"}
    blank = options.get("blank", 0)
    rng = seeded("ctc", name)
    array = rng.normal(size=(steps, batch, classes)).astype("float32")
    named = (rng.integers(1, classes, (batch, labels)) + blank) % classes
    targets = np.concatenate([row[:n] for row, n in zip(named, counts)]) if flat else named
    x, a = Tensor(array), torch.tensor(array, requires_grad=True)
    theirs = F.ctc_loss(a.log_softmax(-1), torch.tensor(targets), torch.tensor(lengths), torch.tensor(counts),
                        **options)
    theirs.sum().backward()
    ours = x.log_softmax(-1).ctc_loss(Tensor(targets), lengths, Tensor(counts), **options)
    np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(ours.sum().gradient(x)[0].numpy(), a.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_ctc_loss_without_a_batch() -> None:
    array = seeded("ctc1").normal(size=(7, 4)).astype("float32")
    theirs = F.ctc_loss(torch.tensor(array).log_softmax(-1), torch.tensor([1, 2, 2]), torch.tensor(7), torch.tensor(3))
    ours = Tensor(array).log_softmax(-1).ctc_loss(Tensor([1, 2, 2]), 7, 3)
    np.testing.assert_allclose(ours.item(), theirs.item(), rtol=1e-5)


def test_losses_as_layers() -> None:
    array, named = seeded("layer").normal(size=(7, 2, 4)).astype("float32"), np.array([[1, 2], [3, 3]])
    logs, reference = Tensor(array).log_softmax(-1), torch.tensor(array).log_softmax(-1)
    theirs = torch.nn.CTCLoss(reduction="sum")(
        reference, torch.tensor(named), torch.tensor([7, 6]), torch.tensor([2, 2]))
    ours = nn.CTCLoss(reduction="sum")(logs, Tensor(named), [7, 6], [2, 2])
    np.testing.assert_allclose(ours.item(), theirs.item(), rtol=1e-5)
    weight, classes = [0.5, 1.0, 2.0, 0.1], np.array([0, 3, 1, 2, 2, 1, 0])
    for name in ("NLLLoss", "CrossEntropyLoss"):
        theirs = getattr(torch.nn, name)(torch.tensor(weight))(reference[:, 0], torch.tensor(classes))
        ours = getattr(nn, name)(Tensor(weight))(logs[:, 0], Tensor(classes))
        np.testing.assert_allclose(ours.item(), theirs.item(), rtol=1e-5)


def test_the_gradient_of_log_probabilities_alone() -> None:
    """By differences, in float64: PyTorch's own gradient is only right together with log_softmax."""
    array = seeded("ctc2").normal(size=(4, 1, 3))
    x = Tensor(array, dtype=dtypes.float64)
    [found] = x.ctc_loss(Tensor([[1, 2]]), [4], [2]).gradient(x)
    for place in np.ndindex(array.shape):
        step = np.zeros_like(array)
        step[place] = 1e-6
        up, down = (Tensor(array + s, dtype=dtypes.float64).ctc_loss(Tensor([[1, 2]]), [4], [2]).item()
                    for s in (step, -step))
        assert abs((up - down) / 2e-6 - found.numpy()[place]) < 1e-6


# -- one operator under several names ------------------------------------------------------------------------
def test_bits_by_name() -> None:
    (x, a), (y, b) = whole(np.array([12, -7, 255], "int32"), np.array([10, 3, 2], "int32"))
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        assert getattr(x, name)(y).tolist() == getattr(a, name)(b).tolist()
        assert getattr(x, name)(5, reverse=True).tolist() == getattr(a, name)(5).tolist()
    assert x.bitwise_not().tolist() == a.bitwise_not().tolist()
    assert x.lshift(2).tolist() == (a << 2).tolist() and x.rshift(1).tolist() == (a >> 1).tolist()
    assert y.lshift(1, reverse=True).tolist() == (1 << b).tolist() == y.rshift(0).ones_like().lshift(y).tolist()


def test_shapes_and_values_after_another() -> None:
    x, y = Tensor([[1.0, 0.0], [2.0, 0.0]]), Tensor.zeros(4)
    assert y.reshape_as(x).shape == (2, 2) and Tensor([[1.0], [2.0]]).expand_as(x).tolist() == [[1, 1], [2, 2]]
    assert x.argwhere().tolist() == torch.tensor(x.tolist()).argwhere().tolist()
    assert x.count_nonzero().item() == 2 and x.count_nonzero(0).tolist() == [2, 0]
    for made in (x.rand_like(), x.randn_like(), x.empty_like()):
        assert made.shape == x.shape and made.dtype is x.dtype
    assert x.rand_like(dtype=dtypes.float64).dtype is dtypes.float64 and x.max_numel() == 4
    assert x.shard_like(y).device == y.device
    check(lambda m: m.pinverse(), (4, 2), factor=50)


# -- other keywords, types and places ------------------------------------------------------------------------
@pytest.mark.parametrize("call", [
    lambda x: x.sum(dim=1), lambda x: x.mean(dim=(0, 1), keepdim=True), lambda x: x.softmax(dim=0),
    lambda x: x.flip(dims=(0, 1)), lambda x: x.permute(dims=(1, 0)), lambda x: x.unsqueeze(dim=1),
    lambda x: x.clamp(min=0.1, max=0.5), lambda x: x.cumsum(dim=1), lambda x: x.std(dim=1), lambda x: x.add(other=2),
    lambda x: x.logsumexp(dim=1), lambda x: x.view(-1).view(size=(2, 3)), lambda x: x.argmax(dim=1).float()])
def test_keywords_of_pytorch(call: Callable[[Any], Any]) -> None:
    check(call, (2, 3))


def test_keywords_of_numpy_and_tinygrad() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    assert x.sum(axis=1, keepdims=True).shape == (2, 1) and x.cat(x, axis=1).shape == (2, 4)
    assert x.cross_entropy(Y=Tensor([0, 1])).shape == () and x.add(x=1).tolist() == (x + 1).tolist()
    assert x.reshape(shape=(4,)).shape == (4,) and x.permute(order=(1, 0)).tolist() == x.T.tolist()
    assert (x > 2).where(x=1, y=0).tolist() == [[0, 0], [1, 1]]
    with pytest.raises(InputError) as error:
        x.sum(dimension=1)
    assert str(error.value).partition("\n  at: ")[0] == """\
sum cannot be called like this
  given:    got an unexpected keyword argument 'dimension'
  expected: sum(axis, keepdim, dtype)
  fix:      see help(Tensor.sum)"""
    assert error.value.where.startswith(__file__)


def test_types_and_places() -> None:
    x = Tensor([1.7, -1.0])
    assert x.to(dtypes.int32).dtype is dtypes.int32 and x.to("CPU", dtypes.float16).dtype is dtypes.float16
    assert x.to(Tensor([1])).dtype is dtypes.int32 and x.to("cpu").device == "CPU"
    assert x.byte().dtype is dtypes.uint8 and x.char().tolist() == [1, -1] and x.type("int64").dtype is dtypes.int64
    assert x.new_zeros(2, 3).shape == (2, 3) and x.new_ones((2,)).tolist() == [1, 1] and x.new_empty(1).shape == (1,)
    assert x.new_full((2,), 3).dtype is x.dtype and x.new_tensor([1]).dtype is x.dtype
    assert x.clone("PYTHON").device == "PYTHON"


IN_PLACE = {
    "add": (2,), "sub": (2,), "mul": (2,), "div": (2,), "pow": (2,), "fmod": (0.7,), "remainder": (0.7,), "abs": (),
    "exp": (), "log": (), "neg": (), "sqrt": (), "rsqrt": (), "sin": (), "cos": (), "tanh": (), "sigmoid": (),
    "relu": (), "floor": (), "ceil": (), "round": (), "trunc": (), "sign": (), "square": (), "reciprocal": (),
    "clamp": (0.3, 1.2), "clip": (0.3, 1.2), "clamp_min": (1,), "clamp_max": (1,), "copysign": (-1.0,),
    "nan_to_num": (), "zero": (),
    "fill": (7,), "unsqueeze": (0,), "squeeze": (), "t": (), "transpose": (0, 1), "detach": (),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_underscored(name: str) -> None:
    array = seeded(name).uniform(0.5, 2.0, (2, 3)).astype("float32")
    x, a = Tensor(array), torch.tensor(array)
    before = x * 1
    assert getattr(x, f"{name}_")(*IN_PLACE[name]) is x
    getattr(a, f"{name}_")(*IN_PLACE[name])
    assert x.shape == tuple(a.shape)
    np.testing.assert_allclose(x.numpy(), a.numpy(), rtol=1e-5)
    np.testing.assert_array_equal(before.numpy(), array)


def test_underscored_with_tensors() -> None:
    array = seeded("underscored").uniform(0.5, 2.0, (3, 2)).astype("float32")
    other = np.ones((1, 2), "float32") * 5

    def pair() -> tuple[Any, Any]:
        return Tensor(array), torch.tensor(array)

    for call in (lambda x, y, i: x.lerp_(y.expand(3, 2), 0.25), lambda x, y, i: x.copy_(y),
                 lambda x, y, i: x.addcmul_(y, y), lambda x, y, i: x.addcdiv_(y, y),
                 lambda x, y, i: x.masked_fill_(x > 1, 0.0), lambda x, y, i: x.index_add_(0, i, y),
                 lambda x, y, i: x.index_copy_(0, i, y), lambda x, y, i: x.index_fill_(0, i, 3),
                 lambda x, y, i: x.index_put_((i,), y), lambda x, y, i: x.scatter_(0, i.reshape(1, 1), y),
                 lambda x, y, i: x.scatter_add_(0, i.reshape(1, 1), y)):
        x, a = pair()
        assert call(x, Tensor(other), Tensor([2])) is x
        call(a, torch.tensor(other), torch.tensor([2]))
        np.testing.assert_allclose(x.numpy(), a.numpy(), rtol=1e-6)
    assert Tensor.zeros(1000).normal_(3, 0.1).mean().item() == pytest.approx(3, abs=0.05)
    drawn = Tensor.zeros(100).uniform_(2, 4)
    assert 2 <= drawn.min().item() and drawn.max().item() < 4
    with pytest.raises(DTypeError, match="cannot assign a value of another type"):
        Tensor([1]).add_(1.5)
    with pytest.raises(ShapeError, match="cannot assign a value of another shape"):
        Tensor([1.0]).add_(Tensor([1.0, 2.0]))


def test_numbers_beside_a_type_they_do_not_fit() -> None:
    for call in (lambda: Tensor([1]) + 2**40, lambda: Tensor([1], dtype="uint8") // -1,
                 lambda: Tensor([True]) + 2**40, lambda: Tensor.full((2,), 300, dtype="uint8"),
                 lambda: Tensor([1], dtype="int8").full_like(128), lambda: Tensor([1]) // 2**31):
        with pytest.raises(InputError, match="does not fit into"):
            call()
    assert (Tensor([1], dtype="int64") + 2**40).tolist() == [1 + 2**40]
    assert (Tensor([1]) < 2**40).tolist() == [True] and (Tensor([1]) < 2**70).tolist() == [True]
    assert (Tensor([1.0]) + 2**200).tolist() == [float("inf")] and (Tensor([1.0]) * -10**400).tolist() == [-np.inf]
    assert Tensor([5]).maximum(-2**40).tolist() == [5]


def test_numbers_where_tensors_are_usual() -> None:
    x = Tensor([0.0, 2.0])
    assert x.logical_and(1).tolist() == [False, True] and x.logical_or(0).tolist() == [False, True]
    assert x.logical_xor(True).tolist() == [True, False] and x.isclose(2).tolist() == [False, True]
    assert not bool(x.allclose(2)) and bool(x.allclose([0, 2])) and x.ufix(3).dtype is dtypes.float32
    assert x.gaussian_nll_loss(Tensor([0.0, 2.0]), 1.0).item() == 0


def test_threefry() -> None:
    """Random123's known answers."""
    for counter, key, answer in ((0, 0, 0x99BA4EFE6B200159), (2**64 - 1, 2**64 - 1, 0xBB002BE7_1CB996FC),
                                 (0x85A308D3_243F6A88, 0x03707344_13198A2E, 0x483DF7A0_C4923A9C)):
        assert Tensor([counter], dtype="uint64").threefry(Tensor([key], dtype="uint64")).item() == answer


def test_graph_ops_by_name() -> None:
    x, y = Tensor([1.0, 4.0]), Tensor([3.0, 2.0])
    assert x.alu(Ops.MAX, y).tolist() == [3.0, 4.0] and x.alu(Ops.SQRT).tolist() == [1.0, 2.0]
    assert (x > 2).alu(Ops.WHERE, x, y).tolist() == [3.0, 4.0] and Tensor.const(3).shape == ()
    x.is_param = True
    assert x.requires_grad and x.is_param
    with pytest.raises(InputError, match="alu takes an operation on elements"):
        x.alu(Ops.RESHAPE)



# -- keywords ------------------------------------------------------------------------------------------------
def test_pytorchs_keywords_mean_the_same_here():
    ties = np.random.default_rng(0).integers(0, 5, (3, 50)).astype(np.float32)
    ours, theirs = Tensor(ties), torch.tensor(ties)
    for descending in (False, True):
        wanted = theirs.sort(dim=1, descending=descending, stable=True).indices.tolist()
        assert ours.sort(dim=1, descending=descending, stable=True)[1].tolist() == wanted
        assert ours.argsort(dim=1, descending=descending, stable=True).tolist() == wanted
    assert ours.topk(3, sorted=True)[0].tolist() == theirs.topk(3, sorted=True).values.tolist()
    assert ours.to("CPU", non_blocking=True).tolist() == Tensor.zeros(3, 50).copy_(ours, non_blocking=True).tolist()
    assert ours.unfold(dimension=1, size=8, step=4).tolist() == theirs.unfold(dimension=1, size=8, step=4).tolist()
    assert ours.tile(dims=(2, 1)).tolist() == theirs.tile(dims=(2, 1)).tolist()
    assert ours.swapaxes(dim0=0, dim1=1).shape == (50, 3)
    places = ([[0], [1], [2]], torch.tensor([[0], [1], [2]]))
    assert ours.scatter(1, Tensor(places[0]), value=9.0).tolist() == theirs.scatter(1, places[1], value=9.0).tolist()
    with pytest.raises(InputError, match="topk cannot be called like this"):
        ours.topk(3, sorting=True)
