"""Matrix products, convolutions and pools against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch, the reference of gradients, is not installed")
from torch_reference import Tensor, check, torch  # noqa: E402

F = torch.nn.functional


@pytest.mark.parametrize("shapes", [((3, 4), (4, 5)), ((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)), ((2, 3, 4), (4, 5)),
                                    ((3, 4), (2, 4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((2, 3, 4), (4,)),
                                    ((4,), (2, 4, 5)),
                                    ((1, 1), (1, 1)), ((3, 1), (1, 4)), ((0, 4), (4, 5)), ((3, 0), (0, 5)),
                                    ((17, 31), (31, 13))])
def test_matmul_takes_vectors_matrices_and_batches(shapes):
    check(lambda x, y: x @ y, *shapes)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32", "int64"])
def test_matmul_of_other_types(dtype):
    check(lambda x, y: x @ y, (5, 40), (40, 3), dtype=dtype, low=-3, high=3, factor=4)


@pytest.mark.parametrize("left,right", [("T", ""), ("", "T"), ("T", "T")])
def test_matmul_of_transposes(left, right):
    check(lambda x, y: (x.T if left else x) @ (y.T if right else y), (7, 7), (7, 7))


def test_larger_matmul_with_bias_and_relu():
    check(lambda x, w, b: (x @ w + b).relu(), (64, 100), (100, 70), (70,), factor=4)


def test_linear_and_friends():
    check(lambda x, w, b: x.linear(w, b) if isinstance(x, Tensor) else x @ w + b, (3, 4), (4, 5), (5,))
    check(lambda x, w: x.linear(w) if isinstance(x, Tensor) else x * w, (3, 4), (4,))
    check(lambda x, y: x.dot(y), (4,), (4,))
    check(lambda x, y: x.outer(y), (4,), (3,))
    assert (np.array([[1.0, 2.0]], "float32") @ Tensor([[1.0], [1.0]])).tolist() == [[3.0]]


@pytest.mark.parametrize("options", [{}, {"padding": 1}, {"stride": 2}, {"dilation": 2}, {"stride": 2, "padding": 1},
                                     {"padding": (2, 1)}, {"stride": (2, 1), "dilation": (1, 2), "padding": 2}],
                                     ids=str)
def test_conv2d_with_options_is_pytorchs(options):
    check(lambda x, w, b: x.conv2d(w, b, **options), lambda x, w, b: F.conv2d(x, w, b, **options),
          (2, 3, 7, 8), (4, 3, 3, 2), (4,), factor=4)


@pytest.mark.parametrize("groups", [2, 4])
def test_conv2d_in_groups_is_pytorchs(groups):
    check(lambda x, w: x.conv2d(w, groups=groups, padding=1), lambda x, w: F.conv2d(x, w, groups=groups, padding=1),
          (2, 4, 6, 5), (8, 4 // groups, 3, 3), factor=4)


def test_conv_of_other_ranks():
    check(lambda x, w: x.conv2d(w, padding=1, stride=2), lambda x, w: F.conv1d(x, w, padding=1, stride=2), (2, 3, 9),
          (4, 3, 3))
    check(lambda x, w: x.conv2d(w), lambda x, w: F.conv3d(x, w), (1, 2, 4, 5, 3), (3, 2, 2, 2, 2), factor=4)
    check(lambda x, w: x.conv2d(w), lambda x, w: F.conv2d(x, w), (2, 3, 4, 4), (5, 3, 1, 1))


@pytest.mark.parametrize("options", [{}, {"kernel_size": 3}, {"kernel_size": (3, 2), "stride": 1},
                                     {"kernel_size": 3, "padding": 1},
                                     {"kernel_size": 3, "stride": 2, "dilation": 2},
                                     {"kernel_size": 3, "ceil_mode": True},
                                     {"kernel_size": 2, "stride": 3, "ceil_mode": True},
                                     {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}], ids=str)
def test_max_pool2d_with_options_is_pytorchs(options):
    checked = {"kernel_size": 2, **options}
    check(lambda x: x.max_pool2d(**options), lambda x: F.max_pool2d(x, **checked), (2, 3, 7, 8))


@pytest.mark.parametrize("options", [{}, {"kernel_size": 3}, {"kernel_size": (3, 2), "stride": 1},
                                     {"kernel_size": 3, "padding": 1},
                                     {"kernel_size": 3, "padding": 1, "count_include_pad": False},
                                     {"kernel_size": 3, "ceil_mode": True},
                                     {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
                                     {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True,
                                      "count_include_pad": False},
                                     {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True,
                                      "count_include_pad": False, "divisor_override": 5}], ids=str)
def test_avg_pool2d_with_options_is_pytorchs(options):
    checked = {"kernel_size": 2, **options}
    check(lambda x: x.avg_pool2d(**options), lambda x: F.avg_pool2d(x, **checked), (2, 3, 7, 8))


def test_pools_of_integers():
    x = np.arange(16, dtype="int32").reshape(1, 1, 4, 4) - 20
    expected = F.max_pool2d(torch.tensor(x).float(), 3, 1, 1).int().tolist()
    assert Tensor(x).max_pool2d(3, 1, padding=1).tolist() == expected
