"""Corners where results were wrong or calls were refused: comparisons with None, the order of `where`, float16 norms,
empty results of transposed convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glassgrad import InputError, ShapeError, Tensor, dtypes, nn
from glassgrad.nn import functional

torch = pytest.importorskip("torch", reason="PyTorch, the reference, is not installed")


def test_a_tensor_is_not_none() -> None:
    x = Tensor([1.0, 2.0])
    assert (x == None) is False and (x != None) is True and None not in [x]          # noqa: E711


def test_none_is_not_looked_for_in_a_tensor() -> None:
    with pytest.raises(InputError, match="a tensor holds numbers"):
        assert None in Tensor([1.0])
    assert 1.0 in Tensor([1.0]) and 2 not in Tensor([1.0])


def test_where_on_a_float_condition_with_bool_values_shows_the_right_order() -> None:
    x = Tensor([-1.0, 0.0, 2.0])
    with pytest.raises(InputError, match="condition.where"):
        x.where(x > 0, x ** 3)
    assert (x > 0).where(x ** 3, x).tolist() == [-1.0, 0.0, 8.0]
    assert x.where(x, x ** 3).tolist() == [-1.0, 0.0, 2.0]          # a float condition with float values is allowed


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_norms_of_16_bits_are_taken_in_float32(kind: str) -> None:
    values = np.array([[300.0, 400.0], [3e-5, 4e-5], [1000.0, 1000.5]], np.float32)
    ours, theirs = Tensor(values).cast(kind), torch.tensor(values).to(getattr(torch, kind))
    pairs = [(ours.norm(dim=1), theirs.norm(dim=1)), (ours.std(axis=1), theirs.std(dim=1)),
             (ours.var(axis=1), theirs.var(dim=1)), (ours.norm(3, 1), theirs.norm(3, dim=1)),
             (ours.normalize(dim=1), torch.nn.functional.normalize(theirs, dim=1)),
             (ours.rms_norm(eps=1e-6), torch.nn.functional.rms_norm(theirs, (2,), eps=1e-6)),
             (functional.rms_norm(ours, (2,)), torch.nn.functional.rms_norm(theirs, (2,))),
             (ours.cosine_similarity(ours.flip(1)), torch.nn.functional.cosine_similarity(theirs, theirs.flip(1)))]
    for found, wanted in pairs:
        assert found.dtype is getattr(dtypes, kind)
        np.testing.assert_allclose(found.float().numpy(), wanted.float().numpy(), rtol=1e-2, atol=1e-7)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_pools_of_16_bits_sum_in_float32(kind: str) -> None:
    """The sum of a window of 56 x 56 pixels of 200 is no float16: its mean was infinite."""
    values = np.full((1, 2, 56, 56), 200.0, np.float32)
    ours, theirs = Tensor(values).cast(kind), torch.tensor(values).to(getattr(torch, kind))
    f = torch.nn.functional
    pairs = [(ours.avg_pool2d(56), f.avg_pool2d(theirs, 56)),
             (functional.adaptive_avg_pool2d(ours, 1), f.adaptive_avg_pool2d(theirs, 1)),
             (functional.adaptive_avg_pool2d(ours, (1, 3)), f.adaptive_avg_pool2d(theirs, (1, 3))),
             (ours.avg_pool2d(56, 1, padding=3, ceil_mode=True, count_include_pad=False),
              f.avg_pool2d(theirs, 56, 1, padding=3, ceil_mode=True, count_include_pad=False)),
             (ours.avg_pool2d(56, divisor_override=1000), f.avg_pool2d(theirs, 56, divisor_override=1000))]
    for found, wanted in pairs:
        assert found.dtype is getattr(dtypes, kind)
        np.testing.assert_allclose(found.float().numpy(), wanted.float().numpy(), rtol=1e-2)


def test_targets_of_two_classes_may_be_truth_values() -> None:
    """With logits, bools as targets ended in an internal error."""
    x, target = Tensor([0.5, -1.0, 2.0]), Tensor([True, False, True])
    for name in ("binary_cross_entropy_with_logits", "binary_cross_entropy", "mse_loss", "l1_loss", "huber_loss"):
        loss = getattr(functional, name)
        given = x.sigmoid() if name == "binary_cross_entropy" else x
        assert loss(given, target).item() == loss(given, target.float()).item(), name


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "fp8e4m3", "float32", "int8", "bool"])
def test_a_number_of_any_type_says_whether_it_is_zero(kind: str) -> None:
    """float16 ended in a ValueError of memoryview, and -0.0 of bfloat16 was not zero."""
    assert [Tensor([n]).cast(kind).is_nonzero() for n in (0.0, -0.0, 1.0)] == [False, False, True]


def test_a_transposed_convolution_may_be_empty() -> None:
    ours = Tensor.ones(1, 1, 2).conv_transpose2d(Tensor.ones(1, 1, 1), padding=1)
    assert ours.shape == (1, 1, 0) and ours.tolist() == [[[]]]


@pytest.mark.parametrize("diagonal", [2 ** 31 - 1, -2 ** 31, 2 ** 32, -2 ** 40, 2 ** 63, -2 ** 63, 3, -2])
def test_triangles_of_any_diagonal(diagonal: int) -> None:
    """A row's index plus the diagonal had as few bits as an index: tril(2 ** 31 - 1) was all zeros."""
    values = np.arange(1.0, 7.0, dtype=np.float32).reshape(2, 3)
    x, far = Tensor(values), max(-9, min(diagonal, 9))
    np.testing.assert_array_equal(x.triu(diagonal).numpy(), np.triu(values, far))
    np.testing.assert_array_equal(x.tril(diagonal).numpy(), np.tril(values, far))
    assert Tensor.tri(2, 3, diagonal).tolist() == np.tri(2, 3, far).tolist()


@pytest.mark.parametrize("make", [
    lambda: Tensor.rand(2 ** 70), lambda: Tensor.arange(2 ** 63 - 1), lambda: Tensor([1.0]).expand(2 ** 63),
    lambda: Tensor([1.0, 2.0]).pad((0, 2 ** 70)), lambda: Tensor([1.0]).repeat(2 ** 62),
    lambda: nn.Linear(2 ** 70, 3), lambda: Tensor([0, 1]).one_hot(-9),
    lambda: Tensor.zeros(1, 2).adaptive_max_pool2d((1, 2 ** 70))])
def test_more_elements_than_addresses_and_less_than_none_are_refused(make: Any) -> None:
    """Counts and addresses of 64 bits wrapped around: a layer of 2 ** 70 inputs ended the process. Less than none was a
    Bug where memory was wanted."""
    with pytest.raises(ShapeError, match="no tensor has this shape"):
        make()


def test_no_quantiles_are_an_empty_result() -> None:
    x, values = Tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert x.quantile([]).shape == tuple(values.quantile(torch.zeros(0)).shape)
    assert x.nanquantile(np.zeros(0), 1, keepdim=True).shape == tuple(values.nanquantile(
        torch.zeros(0), 1, keepdim=True).shape)


def test_addr_is_of_vectors() -> None:
    """A matrix as the first one gave a result of three axes."""
    with pytest.raises(ShapeError, match="cannot add tensors of these shapes"):
        Tensor.ones(2, 2).addr(Tensor.ones(2, 2), Tensor([1.0, 2.0]))


def test_more_decimals_than_floats_have() -> None:
    """10.0 ** 400 is an OverflowError of Python's."""
    x = Tensor([1.2345, -0.5], dtype=dtypes.float64)
    assert x.round(decimals=400).tolist() == x.tolist() and x.round(decimals=-400).tolist() == [0.0, 0.0]


def test_the_loss_of_truth_values_is_a_float() -> None:
    """There is no negative of a bool: the compiler stopped at it."""
    assert Tensor([[True, False]]).nll_loss(Tensor([0])).item() == -1.0


def test_norms_of_integers_are_taken_in_floats() -> None:
    x = Tensor([50000, 50000, 50000])
    assert x.norm().item() == pytest.approx(86602.54) and x.vector_norm(3).item() == pytest.approx(72112.48)
    assert Tensor([2 ** 31 - 1, 1]).norm(1).item() == 2.0 ** 31
    assert Tensor([200, 200], dtype=dtypes.uint8).norm().item() == pytest.approx(282.8427)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64"])
def test_erfc_and_logaddexp_have_all_digits_where_they_are_small(kind: str) -> None:
    theirs = torch.linspace(-4, 3.2, 50).to(getattr(torch, kind))
    ours = Tensor(theirs.double().numpy()).cast(kind)
    near: dict[str, Any] = {"rtol": {"float16": 1e-3, "bfloat16": 8e-3, "float32": 4e-6, "float64": 1e-13}[kind],
                            "atol": 6e-8 if kind == "float16" else 0}           # its least denormal number
    exact = theirs.double()
    np.testing.assert_allclose(ours.erfc().cast("float64").numpy(), exact.erfc().numpy(), **near)
    for name in ("logaddexp", "logaddexp2"):
        found = getattr(ours * 3, name)(Tensor.zeros(50, dtype=kind))
        wanted = getattr(torch, name)((theirs * 3).double(), torch.zeros(50, dtype=torch.float64))
        np.testing.assert_allclose(found.cast("float64").numpy(), wanted.numpy(), **near)


def test_logaddexp_of_infinities_and_its_gradients_are_those_of_pytorch() -> None:
    inf = float("inf")
    x, y = [0.3, inf, -inf, inf, -inf, 2.0], [-0.2, 1.0, 3.0, -inf, -inf, -inf]
    a, b = Tensor(x), Tensor(y)
    assert np.array_equal(a.logaddexp(b).numpy()[1:], torch.logaddexp(torch.tensor(x), torch.tensor(y)).numpy()[1:])
    assert a.logaddexp(b).sum().gradient(a)[0].tolist()[1:] == [1.0, 0.0, 1.0, 0.5, 1.0]
    a, t = Tensor([0.3, -1.0]), torch.tensor([0.3, -1.0], requires_grad=True)
    first, = a.logaddexp(0.5).square().sum().gradient(a)
    theirs, = torch.autograd.grad(torch.logaddexp(t, torch.tensor(0.5)).square().sum(), t, create_graph=True)
    np.testing.assert_allclose(first.numpy(), theirs.detach().numpy(), rtol=1e-5)
    second, = torch.autograd.grad(theirs.square().sum(), t)
    np.testing.assert_allclose(first.square().sum().gradient(a)[0].numpy(), second.numpy(), rtol=1e-5)


def test_a_nan_is_not_hidden_by_threshold_or_by_a_limit() -> None:
    nan = float("nan")
    x, limits = Tensor([nan, 1.0, 5.0]), Tensor([2.0, nan, 3.0])
    np.testing.assert_array_equal(x.threshold(2, 9).numpy(), [nan, 9, 5])
    np.testing.assert_array_equal(x.clamp(limits).numpy(), [nan, nan, 5])
    np.testing.assert_array_equal(x.clamp(max=limits).numpy(), [nan, nan, 3])
    x = Tensor([1.0, 2.0])
    assert x.clamp(Tensor([1.0, 3.0])).sum().gradient(x)[0].tolist() == [1.0, 0.0]


def test_float16_is_averaged_rounded_and_interpolated_in_float32() -> None:
    half = dtypes.float16
    assert Tensor.full((100_000,), 0.25, dtype=half).nanmean().item() == 0.25
    assert Tensor([1e4, 65504.0], dtype=half).round(decimals=1).tolist() == [10000.0, 65504.0]
    assert Tensor([65504.0], dtype=half).lerp(Tensor([-65504.0], dtype=half), 0.25).tolist() == [32752.0]
    assert Tensor([[6e4, 0.0]], dtype=half).renorm(2, 0, 1.0).tolist() == [[1.0, 0.0]]
    assert Tensor([-2.5], dtype=half).hardsigmoid().item() == pytest.approx(1 / 12, rel=4e-4)


def test_a_batch_without_channels_is_normalized_to_nothing() -> None:
    assert functional.batch_norm(Tensor.zeros(3, 0), None, None, training=True).shape == (3, 0)


def test_padding_of_negative_zeros_is_zero() -> None:
    padded = Tensor.full((2,), -0.0).pad((1, 1)).numpy()
    assert np.signbit(padded).tolist() == [False, True, True, False]
