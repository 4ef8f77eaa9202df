"""Spatial operations, special functions, losses, other libraries' names: checked against PyTorch."""

from __future__ import annotations

import math

import numpy as np
import pytest
from torch_reference import SPECIAL, Tensor, check, dtypes, seeded, torch

from glassgrad import DeviceError, InputError, ShapeError, nn

F = torch.nn.functional


# -- space ----------------------------------------------------------------------
@pytest.mark.parametrize("x,w,options", [
    ((2, 3, 5), (3, 4, 3), {}), ((2, 3, 5), (3, 2, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    ((1, 2, 4, 5), (2, 3, 3, 2), {"stride": (2, 1), "dilation": (1, 2), "padding": 1}),
    ((2, 4, 3, 3), (4, 2, 3, 3), {"groups": 2, "stride": 2}), ((1, 1, 2, 3, 2), (1, 2, 2, 2, 2), {"stride": 2}),
])
def test_conv_transpose(x, w, options):
    reference = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}[len(x) - 2]
    bias = (w[1] * options.get("groups", 1),)
    check(
        lambda x, w, b: x.conv_transpose2d(w, b, **options),
        lambda x, w, b: reference(x, w, b, **options),
        x,
        w,
        bias,
        factor=4,
    )


def test_conv_transpose_says_what_is_wrong():
    with pytest.raises(ShapeError, match="weight does not fit"):
        Tensor.zeros(1, 2, 4).conv_transpose2d(Tensor.zeros(3, 2, 2))


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 1},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 2, "stride": 2, "ceil_mode": True},
        {"kernel_size": 2, "dilation": 2, "stride": 1},
    ],
)
def test_max_pool_with_places(options):
    array = seeded(str(options)).normal(size=(2, 3, 7, 8)).astype("float32")
    theirs, places = F.max_pool2d(torch.from_numpy(array), return_indices=True, **options)
    ours, found = Tensor(array).max_pool2d(return_indices=True, **options)
    np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    np.testing.assert_array_equal(found.numpy(), places.numpy())


@pytest.mark.parametrize("options", [
    dict(kernel_size=2), dict(kernel_size=3, stride=2, padding=1), dict(kernel_size=3, stride=1, padding=1),
    dict(kernel_size=3, stride=2, dilation=2, ceil_mode=True), dict(kernel_size=2, stride=3, ceil_mode=True),
    dict(kernel_size=(2, 3), stride=(2, 1), padding=(1, 0)), dict(kernel_size=3, padding=1)], ids=str)
def test_of_equal_maxima_the_first_takes_the_gradient(options):
    array = seeded("ties").integers(0, 3, (2, 3, 11, 13)).astype("float32")
    theirs = torch.tensor(array, requires_grad=True)
    reference = F.max_pool2d(theirs, **options)
    g = seeded("gradient").normal(size=reference.shape).astype("float32")
    reference.backward(torch.from_numpy(g))
    x = Tensor(array)
    found, = (x.max_pool2d(**options) * Tensor(g)).sum().gradient(x)
    np.testing.assert_allclose(found.numpy(), theirs.grad.numpy(), rtol=1e-6, atol=1e-6)


def test_max_unpool():
    array = seeded("unpool").normal(size=(2, 3, 6, 8)).astype("float32")
    theirs, places = F.max_pool2d(torch.from_numpy(array), 2, return_indices=True)
    check(
        lambda x: x.max_unpool2d(Tensor(places.numpy())),
        lambda x: F.max_unpool2d(x, places, 2),
        values=[theirs.numpy()],
    )
    ours = Tensor(theirs.numpy()).max_unpool2d(Tensor(places.numpy()), output_size=(2, 3, 6, 8))
    np.testing.assert_array_equal(ours.numpy(), F.max_unpool2d(theirs, places, 2).numpy())


@pytest.mark.parametrize("size", [1, 2, 3, (2, 5), (None, 3)])
def test_adaptive_pools(size):
    check(lambda x: x.adaptive_avg_pool2d(size), lambda x: F.adaptive_avg_pool2d(x, size), (2, 3, 6, 7))
    check(lambda x: x.adaptive_max_pool2d(size), lambda x: F.adaptive_max_pool2d(x, size), (2, 3, 6, 7))


def test_adaptive_pools_of_other_ranks():
    check(lambda x: x.adaptive_avg_pool1d(3), lambda x: F.adaptive_avg_pool1d(x, 3), (2, 3, 7))
    check(lambda x: x.adaptive_max_pool1d(3), lambda x: F.adaptive_max_pool1d(x, 3), (2, 3, 7))
    check(lambda x: x.adaptive_avg_pool3d(2), lambda x: F.adaptive_avg_pool3d(x, 2), (1, 2, 3, 4, 5))
    check(lambda x: x.adaptive_max_pool3d(2), lambda x: F.adaptive_max_pool3d(x, 2), (1, 2, 3, 4, 5))


@pytest.mark.parametrize("size", [1, 3, (2, 5)])
def test_adaptive_pools_tell_where_and_the_first_of_equal_ones_takes_the_gradient(size):
    values = np.random.default_rng(1).integers(0, 3, (2, 3, 6, 7)).astype("float32")
    x, y = Tensor(values, requires_grad=True), torch.tensor(values, requires_grad=True)
    (mine, at), (other, there) = x.adaptive_max_pool2d(size, return_indices=True), \
        F.adaptive_max_pool2d(y, size, return_indices=True)
    assert mine.tolist() == other.tolist() and at.tolist() == there.tolist()
    (mine * mine).sum().backward(), (other * other).sum().backward()
    assert x.grad.tolist() == y.grad.tolist()


@pytest.mark.parametrize(
    "mode,align", [("linear", False), ("linear", True), ("nearest", False), ("nearest-exact", False), ("area", False)]
)
@pytest.mark.parametrize("size", [(3,), (11,), (1,), (4, 9), (7, 2)])
def test_interpolate(mode, align, size):
    shape = (2, 3, 5) if len(size) == 1 else (2, 3, 5, 6)
    theirs = {"linear": "linear" if len(size) == 1 else "bilinear"}.get(mode, mode)
    options = {"align_corners": align} if mode == "linear" else {}
    check(lambda x: x.interpolate(size, mode, align), lambda x: F.interpolate(x, size, mode=theirs, **options), shape)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("size", [(4, 9), (7, 2), (1, 1)])
def test_interpolate_by_cubic_convolution(align, size):
    check(lambda x: x.interpolate(size, "bicubic", align),
          lambda x: F.interpolate(x, size, mode="bicubic", align_corners=align), (2, 3, 5, 6), factor=4)


def test_interpolate_by_factor():
    check(
        lambda x: x.interpolate(scale_factor=2, mode="nearest"),
        lambda x: F.interpolate(x, scale_factor=2),
        (1, 2, 3, 4),
    )
    check(lambda x: x.interpolate(scale_factor=(1.7, 0.6), mode="bicubic"),
          lambda x: F.interpolate(x, scale_factor=(1.7, 0.6), mode="bicubic"), (1, 2, 5, 4), factor=4)
    with pytest.raises(InputError, match="no such way to interpolate"):
        Tensor.zeros(1, 1, 3).interpolate((2,), mode="cubist")


# -- numbers ----------------------------------------------------------------------
@pytest.mark.parametrize(
    "name,low,high,factor",
    [
        ("erfc", -3, 3, 2),
        ("erfinv", -0.999, 0.999, 4),
        ("lgamma", 0.1, 9, 8),
        ("digamma", 0.1, 9, 8),
        ("sinc", -3, 3, 4),
        ("logit", 0.01, 0.99, 4),
        ("deg2rad", -9, 9, 1),
        ("rad2deg", -9, 9, 1),
    ],
)
@pytest.mark.parametrize("shape", [(), (0,), (3, 5)])
def test_functions(name, low, high, factor, shape):
    check(getattr(Tensor, name), getattr(torch, name), shape, low=low, high=high, factor=factor)


def test_functions_below_zero_and_in_float64():
    check(Tensor.lgamma, torch.lgamma, (50,), low=-4.9, high=0, factor=20, grad=False)
    check(Tensor.erfinv, torch.erfinv, (50,), low=-0.9999, high=0.9999, dtype="float64", factor=100)
    edge = [0.0, 1.0, -1.0, 2.0, float("nan")]
    check(Tensor.erfinv, torch.erfinv, values=[edge], grad=False)
    check(Tensor.lgamma, torch.lgamma, values=[[0.0, -1.0, -2.0, 1.0, 2.0, float("inf")]], grad=False)


def test_functions_of_two():
    for name in ("xlogy", "hypot", "logaddexp2"):
        check(getattr(Tensor, name), getattr(torch, name), (3, 1), (4,), low=0.1, high=3)
    check(Tensor.heaviside, torch.heaviside, values=[[-1.0, 0.0, 2.0], [5.0, 6.0, 7.0]], grad=False)
    assert Tensor([0.0, 0.0]).xlogy(Tensor([0.0, float("nan")])).tolist()[0] == 0.0
    check(lambda x: x.signbit(), values=[SPECIAL[:-1]], grad=False)
    check(lambda x: x.nan_to_num(), values=[SPECIAL], grad=False)
    check(lambda x: x.nan_to_num(1.0, 2.0, 3.0), values=[SPECIAL])
    check(lambda x: x.nansum(0), lambda x: x.nansum(0), values=[[[1.0, float("nan")], [3.0, 4.0]]])
    check(lambda x: x.nanmean(), lambda x: x.nanmean(), values=[[[1.0, float("nan")], [3.0, 4.0]]])
    check(lambda a, b, c: a.addcmul(b, c, value=2), (3,), (3,), (3,))
    check(lambda a, b, c: a.addcdiv(b, c, value=2), (3,), (3,), (3,), low=0.5)


@pytest.mark.parametrize("shape,axis", [((7,), 0), ((3, 5), 1), ((3, 5), 0), ((0,), 0), ((), 0)])
def test_logcumsumexp(shape, axis):
    check(lambda x: x.logcumsumexp(axis), lambda x: x.logcumsumexp(axis), shape, low=-50, high=50, factor=4)


def test_diff_equal_allclose():
    check(lambda x: x.diff(), lambda x: x.diff(), (6,))
    check(lambda x: x.diff(2, 0), lambda x: x.diff(2, 0), (4, 3))
    check(lambda x: x.diff(), lambda x: x.diff(), (5,), dtype="bool")
    assert (
        Tensor([1, 2]).equal(Tensor([1, 2]))
        and not Tensor([1, 2]).equal(Tensor([1, 3]))
        and not Tensor([1]).equal(Tensor([1, 1]))
    )
    assert bool(Tensor([1.0]).allclose(Tensor([1.0 + 1e-7]))) and not bool(Tensor([1.0]).allclose(Tensor([1.1])))


# -- losses ----------------------------------------------------------------------
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses(reduction):
    r = {"reduction": reduction}
    check(lambda x, y: x.huber_loss(y, delta=0.7, **r), lambda x, y: F.huber_loss(x, y, delta=0.7, **r), (4, 3), (4, 3))
    check(
        lambda x, y: x.smooth_l1_loss(y, beta=0.5, **r),
        lambda x, y: F.smooth_l1_loss(x, y, beta=0.5, **r),
        (4, 3),
        (4, 3),
    )
    check(lambda x, y: x.kl_div(y, **r), lambda x, y: F.kl_div(x, y, **r), (4, 3), (4, 3), low=0.1, high=1)
    check(
        lambda x, y: x.kl_div(y, log_target=True, **r),
        lambda x, y: F.kl_div(x, y, log_target=True, **r),
        (4, 3),
        (4, 3),
    )
    check(lambda x, y: x.poisson_nll_loss(y, **r), lambda x, y: F.poisson_nll_loss(x, y, **r), (4, 3), (4, 3), low=0.1)
    check(
        lambda x, y, v: x.gaussian_nll_loss(y, v, full=True, **r),
        lambda x, y, v: F.gaussian_nll_loss(x, y, v, full=True, **r),
        (4, 3),
        (4, 3),
        (4, 3),
        low=0.1,
    )
    sign = np.where(seeded("sign").random((4, 3)) < 0.5, 1.0, -1.0).astype("float32")
    for name in ("soft_margin_loss", "hinge_embedding_loss"):
        check(
            lambda x, n=name: getattr(x, n)(Tensor(sign), **r),
            lambda x, n=name: getattr(F, n)(x, torch.from_numpy(sign), **r),
            (4, 3),
        )


def test_batchmean_and_aliases():
    check(
        lambda x, y: x.kl_div(y, "batchmean"),
        lambda x, y: F.kl_div(x, y, reduction="batchmean"),
        (4, 3),
        (4, 3),
        low=0.1,
        high=1,
    )
    check(lambda x, y: x.binary_cross_entropy(y), F.binary_cross_entropy, (4,), (4,), low=0.1, high=0.9)
    check(
        lambda x, y: x.binary_cross_entropy_with_logits(y),
        F.binary_cross_entropy_with_logits,
        (4,),
        (4,),
        low=0.1,
        high=0.9,
    )


def test_distances():
    check(lambda x, y: x.cosine_similarity(y), F.cosine_similarity, (4, 3), (4, 3))
    check(lambda x, y: x.pairwise_distance(y), F.pairwise_distance, (4, 3), (4, 3), factor=4)
    check(
        lambda x, y: x.cdist(y),
        lambda x, y: torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist"),
        (2, 4, 3),
        (2, 5, 3),
        factor=4,
    )


def test_activations():
    for name in ("softmin", "tanhshrink", "hardshrink", "softshrink"):
        check(getattr(Tensor, name), getattr(F, name) if name != "softmin" else lambda x: F.softmin(x, -1), (3, 5))
    check(Tensor.glu, F.glu, (3, 6))
    check(lambda x: x.glu(0), lambda x: F.glu(x, 0), (4, 3))
    check(Tensor.prelu, F.prelu, (2, 3, 4), (3,))
    check(lambda x: x.threshold(0.5, 9.0), lambda x: F.threshold(x, 0.5, 9.0), (7,))


# -- other names ----------------------------------------------------------------------
@pytest.mark.parametrize(
    "op",
    [
        lambda x: x.rot90(),
        lambda x: x.rot90(2),
        lambda x: x.rot90(3, (1, 2)),
        lambda x: x.rot90(-1),
        lambda x: x.swapaxes(0, 2),
        lambda x: x.ravel(),
        lambda x: x.tile(2),
        lambda x: x.tile((2, 1, 1, 3)),
        lambda x: x.narrow(1, 1, 2),
        lambda x: x.select(1, -1),
        lambda x: x.fliplr(),
        lambda x: x.flipud(),
        lambda x: x.amax((0, 2)),
        lambda x: x.amin(1, keepdim=True),
        lambda x: x.negative(),
        lambda x: x[0].t(),
        lambda x: x.remainder(0.7),
        lambda x: x.detach().floor_divide(0.7),
        lambda x: x.bmm(x.transpose(1, 2)),
        lambda x: x[0].mm(x[1].t()),
        lambda x: x[0].mv(x[0, 0]),
        lambda x: x[0].addmm(x[0] @ x[0].t(), x[1], beta=2, alpha=3),
    ],
)
def test_names_of_pytorch(op):
    check(op, (2, 3, 4))


def test_names_of_truth_and_comparison():
    for name in ("lt", "gt", "le", "ge", "logical_and", "logical_or", "logical_xor"):
        check(lambda x, y, n=name: getattr(x, n)(y), (4, 3), (3,), dtype="int32", grad=False)
    check(lambda x, y: x.cross(y), lambda x, y: torch.cross(x, y, dim=-1), (2, 3), (2, 3))
    check(lambda x, y: x.hstack(y), lambda x, y: torch.hstack((x, y)), (2, 3), (2, 1))
    check(lambda x, y: x.vstack(y), lambda x, y: torch.vstack((x, y)), (3,), (2, 3))


def test_names_of_tinygrad():
    x = Tensor([[1, 2], [3, 4]])
    assert x.pad_to(3, None).tolist() == [[1, 2], [3, 4], [0, 0]] and x.shrink_to((1, None)).tolist() == [[1, 2]]
    assert (
        x.idiv(2).tolist() == [[0, 1], [1, 2]]
        and Tensor([-3]).ceildiv(2).tolist() == [-1]
        and x.xor(1).tolist() == [[0, 3], [2, 5]]
    )
    assert x.usum(x, 1).tolist() == [[3, 5], [7, 9]] and x.uprod(x, 2).tolist() == [[2, 8], [18, 32]]
    assert x.short().dtype is dtypes.int16 and x.const_like(3).tolist() == [[3, 3], [3, 3]] and x.max_shape == (2, 2)
    assert x.shard(("CPU", "CPU")).tolist() == x.tolist() and x.contiguous_backward() is x
    with pytest.raises(DeviceError, match="lives on one device"):
        x.shard(("CPU", "PYTHON"), 0)
    assert (2 << Tensor([1, 2])).tolist() == [4, 8] and (8 >> Tensor([1, 2])).tolist() == [4, 2]
    y = Tensor([6, 7])
    y //= 2
    y <<= 1
    y |= 1
    y ^= 2
    y &= 15
    assert y.tolist() == [(6 // 2 << 1 | 1) ^ 2, (7 // 2 << 1 | 1) ^ 2]


def test_making():
    np.testing.assert_allclose(Tensor.logspace(-1, 2, 7).numpy(), torch.logspace(-1, 2, 7).numpy(), rtol=1e-5)
    for row, col, offset in ((3, 4, 0), (4, 3, 1), (3, 3, -1), (2, 2, 5), (2, 3, -4)):
        assert Tensor.tril_indices(row, col, offset).tolist() == torch.tril_indices(row, col, offset).tolist()
        assert Tensor.triu_indices(row, col, offset).tolist() == torch.triu_indices(row, col, offset).tolist()
    assert Tensor.tri(2, 3, 1).tolist() == np.tri(2, 3, 1).tolist()


# -- drawing ----------------------------------------------------------------------
def test_randperm():
    Tensor.manual_seed(1)
    for n in (0, 1, 5, 100):
        assert sorted(Tensor.randperm(n).tolist()) == list(range(n))
    first, second = Tensor.randperm(50), Tensor.randperm(50)
    assert (
        first.tolist() != second.tolist()
        and first.dtype is dtypes.int32
        and Tensor.randperm(3, dtype="int64").dtype is dtypes.int64
    )


def test_multinomial():
    Tensor.manual_seed(2)
    drawn = Tensor([1.0, 0.0, 3.0]).multinomial(4000, replacement=True).numpy()
    share = (drawn == 2).mean()
    assert set(drawn) == {0, 2} and abs(share - 0.75) < 0.05
    rows = Tensor(np.tile([1.0, 1.0, 0.0, 2.0], (200, 1)).astype("float32")).multinomial(3).numpy()
    assert rows.shape == (200, 3) and all(sorted(r) == [0, 1, 3] for r in rows.tolist())
    assert abs((rows[:, 0] == 3).mean() - 0.5) < 0.12
    with pytest.raises(InputError, match="cannot draw this many"):
        Tensor([1.0, 2.0]).multinomial(3)


def test_other_distributions():
    Tensor.manual_seed(3)
    assert abs(Tensor.exponential(4000, lambd=2.0).mean().item() - 0.5) < 0.05
    assert abs(Tensor.gumbel(4000).mean().item() - 0.5772) < 0.1
    assert abs(Tensor.bernoulli(Tensor.full((4000,), 0.25)).mean().item() - 0.25) < 0.04
    assert Tensor.xavier_uniform(3, 4).shape == (3, 4)


def test_hashes():
    import hashlib
    for name in ("sha3_256", "sha3_512"):
        for data in (b"a", b"b" * 200):
            assert bytes(Tensor(data).keccak(name).tolist()) == hashlib.new(name, data).digest()
    assert bytes(Tensor(b"abc").keccak("shake_128").tolist()) == hashlib.shake_128(b"abc").digest(16)
    both = Tensor(np.frombuffer(b"abcdef", "uint8").reshape(2, 3).copy()).keccak().numpy()
    assert both.tobytes() == hashlib.sha3_256(b"abc").digest() + hashlib.sha3_256(b"def").digest()
    x = np.array([1.5, -2.0], "float32")
    assert bytes(Tensor(x).hash().tolist()) == hashlib.shake_128(x.tobytes()).digest(16)
    with pytest.raises(InputError, match="keccak hashes bytes"):
        Tensor([1.0]).keccak()
    assert math.prod(Tensor([1]).hash().shape) == 16


@pytest.mark.parametrize("size", [0, (0, 2), (3, 0)])
def test_adaptive_pools_of_no_parts_are_empty(size):
    x, y = Tensor.ones(2, 3, 6, 7, requires_grad=True), torch.ones(2, 3, 6, 7)
    average, (largest, places) = x.adaptive_avg_pool2d(size), x.adaptive_max_pool2d(size, return_indices=True)
    assert average.shape == tuple(F.adaptive_avg_pool2d(y, size).shape)
    assert largest.shape == places.shape == tuple(F.adaptive_max_pool2d(y, size).shape)
    (average.sum() + largest.sum()).backward()
    assert x.grad.sum().item() == 0


@pytest.mark.parametrize("pool", ["adaptive_avg_pool2d", "adaptive_max_pool2d"])
def test_adaptive_pools_of_nothing_are_refused(pool):
    with pytest.raises(ShapeError, match="parts without elements have no mean and no maximum"):
        getattr(Tensor.zeros(1, 2, 0, 4), pool)((1, 2))


@pytest.mark.parametrize(
    "name,values", [("erfinv", [1 - 2.2e-16, -1 + 1e-15, 1 - 1e-12, 1 - 1e-9, 0.999, 0.99, -0.5, 1e-9, 1.0, -1.0]),
                    ("lgamma", [5e-324, 1e-310, -1e-310, 1e-300, -1e-5, 0.3, -0.3, -1.5])])
def test_special_functions_of_float64_are_right_at_their_ends(name, values):
    x, y = Tensor(values, dtype="float64"), torch.tensor(values, dtype=torch.float64)
    np.testing.assert_allclose(getattr(x, name)().numpy(), getattr(y, name)().numpy(), rtol=1e-14)


def test_losses_of_integers_do_not_wrap_around():
    assert Tensor([100_000]).mse_loss(Tensor([0])).item() == 1e10
    assert Tensor([0], dtype="uint8").l1_loss(Tensor([255], dtype="uint8")).item() == 255


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border"])
def test_points_of_a_grid_that_are_nan_or_infinite_are_sampled_as_in_pytorch(mode, padding):
    points = [[[[math.nan, 0.0], [0.3, math.nan], [math.inf, 0.0], [-math.inf, 0.2], [1e10, 0.1]]]]
    x, y = Tensor.arange(9).reshape(1, 1, 3, 3).float(), torch.arange(9.0).reshape(1, 1, 3, 3)
    theirs = F.grid_sample(y, torch.tensor(points), mode, padding, align_corners=False)
    np.testing.assert_allclose(x.grid_sample(Tensor(points), mode, padding).numpy(), theirs.numpy(), rtol=1e-6)


def test_attention_of_no_steps_is_empty():
    layer, theirs = nn.MultiheadAttention(8, 2, batch_first=True), torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x, y = Tensor.ones(2, 0, 8), torch.ones(2, 0, 8)
    assert [t.shape for t in layer(x, x, x)] == [tuple(t.shape) for t in theirs(y, y, y)] == [(2, 0, 8), (2, 0, 0)]
