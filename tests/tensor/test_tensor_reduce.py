"""Reductions, scans and their places against PyTorch."""
# ruff: noqa: B023   (each lambda runs before its loop goes on)

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch, the reference of gradients, is not installed")
from hypothesis import given, settings as hypothesis_settings, strategies as st  # noqa: E402
from torch_reference import Tensor, check, torch  # noqa: E402

from glassgrad import dtypes  # noqa: E402

F = torch.nn.functional
AXES = [None, 0, 1, -1, (0, 2), (0, 1, 2)]


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("name", ["sum", "mean", "var", "std", "amax", "amin", "logsumexp"])
def test_reductions_along_every_axis_are_pytorchs(name, axis, keepdim):
    ours = {"amax": "max", "amin": "min"}.get(name, name)
    dims = tuple(range(3)) if axis is None else axis
    check(lambda x: getattr(x, ours)(axis, keepdim=keepdim), lambda x: getattr(x, name)(dims, keepdim=keepdim),
          (3, 4, 5))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_the_gradient_of_a_product_passes_zeros(axis):
    check(lambda x: x.prod(axis), (3, 4, 2))
    check(lambda x: x.prod(axis), values=[[[1.0, 0.0, 3.0], [2.0, 0.0, 0.0]]][:1]) if axis != -1 else None
    check(lambda x: x.prod(), (3, 4))


@pytest.mark.parametrize("dtype", ["bool", "int8", "int16", "uint8", "int32", "int64"])
def test_sums_of_integers(dtype):
    check(lambda x: x.sum(0), (40, 3), dtype=dtype, low=0, high=100)
    check(lambda x: x.cumsum(0), (40, 3), dtype=dtype, low=0, high=100)
    check(lambda x: x.prod(0), (4, 3), dtype=dtype, low=0, high=100)
    check(lambda x: x.cumprod(0), (4, 3), dtype=dtype, low=0, high=100)


def test_sums_of_integers_do_not_overflow_32_bits():
    n = Tensor.arange(100000)
    assert n.sum().item() == 4999950000 and n.cumsum()[-1].item() == 4999950000
    assert (n[:13] + 1).prod().item() == 6227020800 and (n[:13] + 1).cumprod()[-1].item() == 6227020800


def test_the_type_of_a_sum():
    large = Tensor([2**64 - 2, 1], dtype=dtypes.uint64)
    assert large.sum().dtype is dtypes.uint64 and large.sum().item() == 2**64 - 1
    n = Tensor([100, 100], dtype=dtypes.int8)
    for kind in (dtypes.int8, dtypes.int32, dtypes.float32):
        assert {n.sum(dtype=kind).dtype, n.prod(dtype=kind).dtype, n.cumsum(dtype=kind).dtype} == {kind}
    assert n.sum(dtype=dtypes.int8).item() == 200 - 256
    assert n.nansum().dtype is dtypes.int64 and (n.reshape(1, 2) @ n).dtype is dtypes.int32


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_sums_of_other_floats(dtype):
    check(lambda x: x.sum(1), (3, 300), dtype=dtype, low=0, high=1)
    check(lambda x: x.mean(1), (3, 300), dtype=dtype, low=0, high=1)
    check(lambda x: x.var(1), (3, 30), dtype=dtype, low=0, high=1)


def test_means_of_integers_are_floats():
    assert Tensor([1, 2]).mean().dtype.name == "float32" and Tensor([1, 2]).mean().item() == 1.5


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (0, 3), (1, 7, 1)])
def test_scalars_and_empty_tensors_are_reduced_as_in_pytorch(shape):
    check(lambda x: x.sum(), shape)
    check(lambda x: x.prod(), shape)
    check(lambda x: x.mean(), shape, grad=False)
    if shape:
        check(lambda x: x.sum(0), shape)
        check(lambda x: x.sum(-1, keepdim=True), lambda x: x.sum(-1, keepdim=True), shape)
    if 0 not in shape:
        check(lambda x: x.max(), shape)


def test_nan_is_the_extreme():
    nan = float("nan")
    check(lambda x: x.max(), values=[[1.0, nan, 3.0]], grad=False)
    check(lambda x: x.min(), values=[[1.0, nan, 3.0]], grad=False)
    check(lambda x: x.argmax(), values=[[1.0, nan, nan]], gives="int32")
    check(lambda x: x.argmin(), values=[[1.0, nan, 0.0]], gives="int32")


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_argmax_and_argmin_are_the_first_of_equals(name, axis):
    check(lambda x: getattr(x, name)(axis), (3, 4, 5), gives="int32")
    check(lambda x: getattr(x, name)(axis), (3, 4, 5), dtype="int32", low=0, high=3, gives="int32")
    assert getattr(Tensor([5, 5, 5]), name)().item() == 0


def test_any_and_all_of_nothing_are_false_and_true():
    for axis in (0, 1):
        check(lambda x: x.any(axis), (3, 4), dtype="bool")
        check(lambda x: x.all(axis), (3, 4), dtype="bool")
    check(lambda x: x.any(), (0,), dtype="bool")
    check(lambda x: x.all(), (0,), dtype="bool")
    assert Tensor([0.0, 2.0]).any().item() is True


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_running_sums_products_and_extremes_are_pytorchs(axis):
    check(lambda x: x.cumsum(axis), (5, 6, 3))
    check(lambda x: x.cumprod(axis), (5, 6, 3))
    check(lambda x: x.cummax(axis)[0], (5, 6, 3))
    check(lambda x: x.cummin(axis)[0], (5, 6, 3))
    check(lambda x: x.cumsum(axis), (0, 3))


def test_norms_of_every_order_are_pytorchs():
    for p in (1, 2, 3, float("inf"), float("-inf"), 0):
        check(lambda x: x.norm(p, 1), lambda x: torch.linalg.vector_norm(x, p, 1), (3, 7), grad=p not in (0,))
    check(lambda x: x.norm(), (3, 7))


def test_extremes_share_their_gradient_among_equals():
    check(lambda x: x.max(0), lambda x: x.amax(0), values=[[1.0, 3.0, 3.0, 0.0]])
    check(lambda x: x.min(), lambda x: x.amin(), values=[[[1.0, 3.0], [1.0, 4.0]]])


@pytest.mark.parametrize("correction", [0, 1, 2])
def test_variance_and_deviation_are_pytorchs(correction):
    check(lambda x: x.var(1, correction=correction), lambda x: x.var(1, correction=correction), (4, 9))
    check(lambda x: x.std(1, correction=correction), lambda x: x.std(1, correction=correction), (4, 9))
    v, m = Tensor([1.0, 2.0, 4.0]).var_mean()
    s, _ = Tensor([1.0, 2.0, 4.0]).std_mean()
    assert abs(v.item() - 7 / 3) < 1e-6 and abs(m.item() - 7 / 3) < 1e-6 and abs(s.item() - (7 / 3) ** 0.5) < 1e-6


def test_long_sums_keep_their_digits():
    assert Tensor.ones(1 << 20).sum().item() == 1 << 20
    x = np.full(300_001, 0.1, "float32")
    assert abs(Tensor(x).sum().item() - x.astype("float64").sum()) < 0.1


@hypothesis_settings(max_examples=25, deadline=None, derandomize=True)
@given(shape=st.lists(st.sampled_from([0, 1, 2, 3, 5, 7]), min_size=1, max_size=4), data=st.data())
def test_sum_of_any_shape_over_any_axes(shape, data):
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    order = data.draw(st.permutations(range(len(shape))))
    check(lambda x: x.permute(*order).sum(tuple(axes)), tuple(shape))
