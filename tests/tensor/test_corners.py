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


# -- windows, pieces and counts ------------------------------------------------------------------------------
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_a_window_of_nothing_but_padding_is_refused(kind: str, rank: int) -> None:
    """Its maximum was -inf. PyTorch, which allows half a window of padding, refuses it too."""
    ours, theirs = (getattr(f, f"{kind}_pool{rank}d") for f in (functional, torch.nn.functional))
    shape = (1, 2, *[5] * rank)
    with pytest.raises(RuntimeError, match="half of"):
        theirs(torch.ones(shape), 2, padding=2)
    with pytest.raises(ShapeError, match=f"a window of {kind}_pool2d holds nothing but padding"):
        ours(Tensor.ones(shape), 2, padding=2)


def test_a_pool_may_be_padded_by_less_than_a_window() -> None:
    x = Tensor([[[1.0, 5.0, 2.0]]])
    assert x.max_pool2d((3,), 1, padding=2).tolist() == [[[1.0, 5.0, 5.0, 5.0, 2.0]]]
    assert x.max_pool2d((2,), 1, dilation=3, padding=3).tolist() == [[[1.0, 5.0, 2.0, 1.0, 5.0, 2.0]]]


@pytest.mark.parametrize("make", [
    lambda x: x.hsplit(10 ** 10), lambda x: x.vsplit(2 ** 70), lambda x: x.dsplit(10 ** 10),
    lambda x: x.tensor_split(10 ** 10), lambda x: x[:0].chunk(10 ** 10),
    lambda x: x[:1].expand(10 ** 10, 4, 4).unbind(), lambda x: x[:1].expand(10 ** 10, 4, 4).split(3),
    lambda x: x.flatten().combinations(30, with_replacement=True),
    lambda x: x.repeat_interleave(Tensor([10 ** 10]), 0)])
def test_more_tensors_or_indices_than_can_be_made_are_refused_at_once(make: Any) -> None:
    """These calls never ended."""
    with pytest.raises(InputError, match="too many"):
        make(Tensor.ones(4, 4, 4))


def test_few_pieces_and_combinations_of_huge_numbers() -> None:
    x = Tensor([1, 2, 3])
    assert [part.tolist() for part in x.chunk(10 ** 10)] == [[1], [2], [3]]
    assert [part.tolist() for part in x.split(10 ** 10)] == [[1, 2, 3]]
    assert x.combinations(10 ** 10).shape == (0, 10 ** 10)
    assert x.repeat_interleave(Tensor([2, 0, 1])).tolist() == [1, 1, 3]
    assert x.repeat_interleave(Tensor([0, 0, 0])).tolist() == []


# -- formulas of 16 bits -------------------------------------------------------------------------------------
FUSED: dict[str, Any] = {
    "addcmul": lambda x, y, z: x.addcmul(y, z, value=0.3), "addcdiv": lambda x, y, z: x.addcdiv(y, z, value=0.3),
    "lerp": lambda x, y, z: x.lerp(y, 0.3), "lerp near the end": lambda x, y, z: x.lerp(y, 0.8),
    "lerp by a tensor": lambda x, y, z: x.lerp(y, z), "add": lambda x, y, z: x.add(y, alpha=0.3),
    "sub": lambda x, y, z: x.sub(y, alpha=3), "erfc": lambda x, y, z: x.erfc(),
    "logit": lambda x, y, z: (x / 4).logit(), "hypot": lambda x, y, z: x.hypot(y),
    "logaddexp": lambda x, y, z: x.logaddexp(y), "logaddexp2": lambda x, y, z: x.logaddexp2(y),
    "deg2rad": lambda x, y, z: x.deg2rad(),
    "logcumsumexp": lambda x, y, z: x.logcumsumexp(0), "renorm": lambda x, y, z: x.reshape(10, 100).renorm(2, 0, 3.0),
    "addmm": lambda x, y, z: x.reshape(25, 40)[:, :25].addmm(y.reshape(25, 40), z.reshape(40, 25), beta=0.7, alpha=0.3),
    "selu": lambda x, y, z: functional_of(x).selu(x - 1), "glu": lambda x, y, z: functional_of(x).glu(x),
    "hardsigmoid": lambda x, y, z: functional_of(x).hardsigmoid(x),
    "softshrink": lambda x, y, z: functional_of(x).softshrink(x, 0.3)}


def functional_of(x: Any) -> Any:
    return functional if isinstance(x, Tensor) else torch.nn.functional


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", FUSED)
def test_formulas_of_16_bits_are_rounded_once(name: str, kind: str, rng: np.random.Generator) -> None:
    """Each op was rounded: up to one and a half last places, where PyTorch is off by half of one."""
    ours = [Tensor(rng.uniform(0.5, 2, 1000).astype(np.float32)).cast(kind) for _ in range(3)]
    exact = FUSED[name](*(torch.tensor(x.float().numpy()).double() for x in ours)).numpy()
    found = FUSED[name](*ours)
    assert found.dtype is getattr(dtypes, kind)
    np.testing.assert_allclose(found.float().numpy(), exact, rtol=1.01 * 2.0 ** (-11 if kind == "float16" else -8),
                               atol=1e-6)


def test_sums_of_products_of_float16_do_not_overflow_on_the_way() -> None:
    def half(value: float) -> Tensor: return Tensor([value], dtype=dtypes.float16)

    assert half(-60000).addcmul(half(300), half(300)).item() == 30000
    assert half(-60000).addcdiv(half(300), half(2 ** -8)).item() == 16800
    assert half(-60000).lerp(half(60000), 0.75).item() == 30000
    assert half(-60000).add(half(30000), alpha=3).item() == 30000
    assert half(60000).sub(half(30000), alpha=3).item() == -30000


def test_interpolation_is_exact_at_both_ends() -> None:
    """At weight 1 the end was x + (end - x), which is 0 for 1e30 and 1."""
    x, end = Tensor([1e30, 0.1]), Tensor([1.0, 0.7])
    for weight in (0, 0.0, Tensor([0.0, 0.0])):
        assert x.lerp(end, weight).tolist() == x.tolist()
    for weight in (1, 1.0, Tensor([1.0, 1.0])):
        assert x.lerp(end, weight).tolist() == end.tolist()


# -- the limits of types -------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind, sizes", [("float32", (3e38, 1e30, 1e-30, 1e-44)),
                                         ("float64", (1e308, 1e200, 1e-200, 1e-320))])
def test_lengths_at_the_limits_of_a_type(kind: str, sizes: tuple[float, ...]) -> None:
    """As their docstrings say: `norm` and `normalize` do as PyTorch, `std` is limited by its squares."""
    for size in sizes:
        values = np.array([size, -size, size / 2], kind)
        x, y = Tensor(values), torch.tensor(values)
        np.testing.assert_allclose(x.norm().numpy(), y.norm().numpy(), rtol=1e-6)
        expected = torch.nn.functional.normalize(y, dim=0)
        np.testing.assert_allclose(x.normalize(dim=0).numpy(), expected.numpy(), rtol=1e-6)
        np.testing.assert_allclose(x.hypot(x.flip(0)).numpy(), y.hypot(y.flip(0)).numpy(), rtol=1e-6)
        assert x.std().item() == (np.inf if size > 1 else 0.0)
        assert np.isnan(x.cosine_similarity(x, dim=0).item()) == (size > 1)


# -- activations and losses with odd parameters --------------------------------------------------------------
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("name, options", [
    *[("elu", {"alpha": alpha}) for alpha in (NAN, INF, -INF, -2.0, 0.0, 1e-40)],
    *[("celu", {"alpha": alpha}) for alpha in (NAN, INF, -INF, -2.0, 0.5, 1e30)],
    *[("leaky_relu", {"negative_slope": slope}) for slope in (NAN, INF, -INF, -2.0)],
    *[("softplus", {"beta": beta}) for beta in (NAN, INF, -INF, -1.0, 1e30)],
    *[("softplus", {"threshold": limit}) for limit in (-INF, -1.0)],
    *[("threshold", {"threshold": limit, "value": 9.0}) for limit in (NAN, INF, -INF, 0.0)],
    *[("hardshrink", {"lambd": limit}) for limit in (NAN, INF, -1.0, 0.0)],
    *[("softshrink", {"lambd": limit}) for limit in (100.0, 0.0)],
    ("hardtanh", {"min_val": -INF, "max_val": INF}), ("selu", {})])
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_activations_with_odd_parameters_are_those_of_pytorch(name: str, options: dict[str, float], kind: str) -> None:
    """celu(nan) was NaN for positive values too, as was elu(inf) at 0; a threshold took NaN for a small number."""
    values = np.array([-INF, -200.0, -2.0, -0.0, 0.0, 0.5, 3.0, 200.0, INF, NAN], kind)
    found = getattr(functional, name)(Tensor(values), **options).numpy()
    expected = getattr(torch.nn.functional, name)(torch.tensor(values), **options).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name, alpha", [("elu", 0.5), ("elu", -2.0), ("celu", 0.5), ("celu", -2.0)])
def test_gradients_of_elu_and_celu(name: str, alpha: float) -> None:
    values = [-200.0, -2.0, -0.5, 0.0, 0.5, 200.0]
    x, y = Tensor(values), torch.tensor(values, requires_grad=True)
    [slope] = getattr(x, name)(alpha).sum().gradient(x)
    [expected] = torch.autograd.grad(getattr(torch.nn.functional, name)(y, alpha).sum(), y, create_graph=True)
    np.testing.assert_allclose(slope.numpy(), expected.detach().numpy(), rtol=1e-6)
    [bend], [wanted] = slope.sum().gradient(x), torch.autograd.grad(expected.sum(), y)
    smooth = [0, 1, 2, 4, 5]                               # at 0 the slope has no slope
    np.testing.assert_allclose(bend.numpy()[smooth], wanted.numpy()[smooth], rtol=1e-6)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("name", ["cosine_embedding_loss", "hinge_embedding_loss"])
def test_losses_of_targets_that_are_neither_1_nor_minus_1(name: str, reduction: str) -> None:
    """They were taken for -1."""
    x, y, targets = [[3.0, 4.0]] * 5, [[4.0, 3.0]] * 5, [1.0, -1.0, 0.0, 2.0, NAN]
    if name == "hinge_embedding_loss":
        given: tuple[Any, ...] = ([0.25] * 5, targets)
    else:
        given = (x, y, targets)
    found = getattr(functional, name)(*map(Tensor, given), margin=0.5, reduction=reduction)
    expected = getattr(torch.nn.functional, name)(*map(torch.tensor, given), margin=0.5, reduction=reduction)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-6)


# -- numbers beside numbers, and arrays where a word is meant ------------------------------------------------
@pytest.mark.parametrize("yes, no", [(-2 ** 63, 0.5), (2 ** 40, 1), (1, 2 ** 40), (True, False), (True, 2),
                                     (True, 0.5)])
def test_where_between_two_numbers_has_a_type_that_holds_both(yes: Any, no: Any) -> None:
    """Numbers beyond int32 wrapped around: -2 ** 63 was 0."""
    found = Tensor.where(Tensor([True, False]), yes, no)
    assert found.tolist() == [yes, no]
    kind = str(torch.where(torch.tensor([True, False]), yes, no).dtype).removeprefix("torch.")
    assert found.dtype.name == ("int32" if (yes, no) == (True, 2) else kind)


@pytest.mark.parametrize("call", [lambda x: x.pad((1, 1), mode=np.zeros((0, 3))), lambda x: x.norm(np.ones(3))])
def test_an_array_is_no_name_of_a_mode(call: Any) -> None:
    """NumPy raised an error about the truth of arrays."""
    with pytest.raises(InputError, match="there is no such way to pad|norm cannot take this p"):
        call(Tensor([1.0, 2.0]))


@pytest.mark.parametrize("name, tolerance", [("digamma", 1e-6), ("lgamma", 1e-5)])
def test_gamma_functions_near_their_poles(name: str, tolerance: float, rng: np.random.Generator) -> None:
    """The fraction of -1.9997 has fewer digits than its distance to -2: digamma was off by half a percent."""
    away = 10.0 ** rng.uniform(-5, -1, 500) * rng.choice([-1, 1], 500)
    values = (away - rng.integers(1, 8, 500)).astype(np.float32)
    values = values[values != np.round(values)]
    exact = getattr(torch, name)(torch.tensor(values).double()).numpy()
    np.testing.assert_allclose(getattr(Tensor(values), name)().numpy(), exact, rtol=tolerance, atol=tolerance)


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
