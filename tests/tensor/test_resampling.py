"""Images resampled and resized, against PyTorch: value and gradient."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch, the reference of gradients, is not installed")
from torch_reference import Tensor, check, torch  # noqa: E402

import glassgrad.nn.functional as G  # noqa: E402
from glassgrad import InputError  # noqa: E402
from glassgrad.compiler.graph.ops import Ops  # noqa: E402
from glassgrad.tensor.index_range_check import sinks  # noqa: E402

F = torch.nn.functional
ANTIALIASED = [((5, 7), (3, 3)), ((6, 9), (2, 4)), ((4, 4), (9, 7)), ((8, 5), (8, 2)), ((3, 3), (1, 1))]


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample_is_pytorchs_in_every_mode(rng, mode, padding, align_corners):
    image = rng.normal(size=(2, 3, 4, 5)).astype("float32")
    grid = rng.uniform(-2.7, 2.7, (2, 3, 6, 2)).astype("float32")           # also far outside
    options = {"mode": mode, "padding_mode": padding, "align_corners": align_corners}
    check(lambda x, g: x.grid_sample(g, **options) if isinstance(x, Tensor) else F.grid_sample(x, g, **options),
          values=[image, grid], factor=20, grad=mode != "nearest")


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_a_position_that_is_no_number_gives_nan_and_its_indices_need_no_check(rng, mode):
    image = rng.normal(size=(1, 2, 4, 5)).astype("float32")
    grid = np.array([[[[np.nan, 0.1], [0.2, np.inf], [1e30, -1e30], [0.3, 0.4]]]], "float32")
    sampled = Tensor(image).grid_sample(Tensor(grid), mode=mode)
    assert sinks([sampled.uop]) == []
    wanted = F.grid_sample(torch.from_numpy(image), torch.from_numpy(grid), mode=mode, align_corners=False)
    np.testing.assert_allclose(sampled.numpy(), wanted.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("n,count", [(2, 82), (98, 172), (5, 10), (9, 3), (3, 161), (7, 5), (50, 99)])
def test_the_nearest_element_is_the_one_pytorch_rounds_to(n, count, mode):
    """98 to 172: element 86 is 49 in integers, and 48 where the step is rounded to float32."""
    values = np.arange(n, dtype="float32").reshape(1, 1, n)
    wanted = F.interpolate(torch.from_numpy(values), count, mode=mode)
    assert G.interpolate(Tensor(values), count, mode=mode).tolist() == wanted.tolist()


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_doubling_an_image_looks_nothing_up(mode):
    values = np.arange(24, dtype="float32").reshape(1, 2, 3, 4)
    grown = Tensor(values).realize().interpolate((12, 8), mode=mode)
    assert not any(node.op is Ops.GATHER for node in grown.uop.toposort())
    assert grown.tolist() == F.interpolate(torch.from_numpy(values), (12, 8), mode=mode).tolist()


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding", ["border", "reflection"])
def test_grid_sample_of_one_element(padding, align_corners):
    grid = np.array([[[[-3.0, 0.2], [0.0, 0.0], [1.7, -0.4]]]], "float32")
    options = {"padding_mode": padding, "align_corners": align_corners}
    check(lambda x, g: x.grid_sample(g, **options) if isinstance(x, Tensor) else F.grid_sample(x, g, **options),
          values=[np.full((1, 1, 1, 1), 2.5, "float32"), grid], grad=False)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("given, size", ANTIALIASED)
def test_interpolate_with_antialias(rng, mode, align_corners, given, size):
    options = {"size": size, "mode": mode, "align_corners": align_corners, "antialias": True}
    check(lambda x: G.interpolate(x, **options) if isinstance(x, Tensor) else F.interpolate(x, **options),
          values=[rng.normal(size=(2, 3, *given)).astype("float32")], factor=20)


def test_antialias_says_where_it_is_not_there():
    with pytest.raises(InputError) as error:
        Tensor.ones(1, 1, 4, 4).interpolate((2, 2), mode="nearest", antialias=True)
    assert str(error.value).rpartition("\n  at:")[0] == """interpolate cannot smooth here
  given:    antialias=True, mode='nearest', 2 axes of float32
  expected: "bilinear" or "bicubic" on two axes of floats
  fix:      leave antialias out"""


def test_a_grid_of_integers_is_one_of_floats() -> None:
    image, grid = Tensor.arange(16).reshape(1, 1, 4, 4).float(), Tensor([[[[0, 0], [1, -1]]]])
    assert image.grid_sample(grid).tolist() == image.grid_sample(grid.float()).tolist()


def test_as_many_factors_as_axes_of_space() -> None:
    for factors in ([2.0], [2.0, 2.0, 2.0]):
        with pytest.raises(InputError, match="2 finite numbers above 0, or one for all"):
            Tensor.ones(1, 1, 4, 4).interpolate(scale_factor=factors)
