"""Convolutions on a matrix unit of a group of threads: windows are copied as boxes of the image, and never stored."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from cuda_compiler import needs_nvrtc
from loop_kernels import HOPPER

from glassgrad import Tensor
from glassgrad.base.errors import Bug
from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.graph import const, ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.index_algebra import index
from glassgrad.compiler.lower.group_statements import AwaitCopies, Axis, Box, CopyBoxes
from glassgrad.compiler.lower.loops import Kernel, Phase, Store, local, locals_written, walk
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets.matrix_units import units_of
from glassgrad.compiler.pipeline import make_source
from glassgrad.runtime.gpu import nvrtc


def tree(result: Tensor) -> Kernel:
    [item] = result.schedule()
    return optimize(lower(item.ast, keep_bytes=HOPPER.row_bytes), HOPPER)


def copies_windows(kernel: Kernel) -> bool:
    """Whether boxes of an image are copied, whose channels are innermost."""
    boxes = [b for p in kernel.phases for s in walk(p.body) if isinstance(s, CopyBoxes) for b in s.boxes]
    return any(box.source.op is o.LOCAL and box.source.arg.name.endswith("_image") for box in boxes)


def numbers(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    """Numbers whose products and sums float32 holds exactly."""
    rng = np.random.default_rng(sum(map(sum, shapes)))
    return [(rng.integers(-8, 9, shape) / 8).astype(np.float16) for shape in shapes]


def taps(x: np.ndarray, size: tuple[int, ...], padding: int, stride: int = 1, dilation: int = 1) \
        -> dict[tuple[int, int], np.ndarray]:
    """What each tap of a window reads of an image, in float64: views of the padded image."""
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    rows, columns = ((x.shape[2 + a] - dilation * (size[a] - 1) - 1) // stride + 1 for a in range(2))
    return {(i, j): x[:, :, i * dilation:, j * dilation:][:, :, :stride * rows:stride, :stride * columns:stride]
            [:, :, :rows, :columns] for i in range(size[0]) for j in range(size[1])}


def convolved(x: np.ndarray, w: np.ndarray, padding: int, stride: int = 1, dilation: int = 1) -> np.ndarray:
    """The convolution in float64, tap by tap."""
    return np.asarray(sum(np.einsum("nchw,oc->nohw", part, w[:, :, i, j].astype(np.float64))
                          for (i, j), part in taps(x, w.shape[2:], padding, stride, dilation).items()))


def by_weights(x: np.ndarray, g: np.ndarray, weights: tuple[int, ...], padding: int, stride: int = 1,
               dilation: int = 1) -> np.ndarray:
    """The gradient of a convolution by its weights, in float64."""
    parts = taps(x, weights[2:], padding, stride, dilation).values()
    return np.stack([np.einsum("nchw,nohw->oc", part, g.astype(np.float64)) for part in parts], -1).reshape(weights)


def computes(kernel: Kernel, wanted: np.ndarray, *arrays: np.ndarray) -> None:
    """A kernel gives exactly these numbers, rounded; its arguments are told apart by their sizes."""
    given = {array.size: array.ravel() for array in arrays}
    out = np.full(wanted.size, np.nan, arrays[0].dtype)
    inputs = sorted(kernel.params, key=lambda p: p.arg.slot)[1:]
    run_kernel(kernel, [out, *[given[math.prod(p.arg.shape)] for p in inputs]])
    np.testing.assert_array_equal(out.reshape(wanted.shape), wanted.astype(out.dtype))


# image, weights, padding
SHAPES = {"padded": ((2, 64, 5, 56), (32, 64, 3, 3), 1), "more channels": ((1, 128, 4, 40), (72, 128, 3, 3), 1),
          "not padded": ((1, 64, 6, 64), (64, 64, 3, 3), 0), "five taps": ((1, 64, 6, 112), (16, 64, 5, 5), 2),
          "short rows": ((2, 64, 14, 14), (72, 64, 3, 3), 1), "very short rows": ((3, 64, 7, 7), (64, 64, 1, 3), 0),
          "rows that are no power of two": ((1, 64, 3, 90), (64, 64, 3, 3), 1),
          "images on one axis": ((3, 64, 5, 33), (32, 64, 3, 3), 1), "one image": ((1, 64, 9, 36), (16, 64, 3, 5), 2),
          "rows without padding": ((2, 64, 7, 19), (24, 64, 3, 3), 0)}


@pytest.mark.parametrize("name", SHAPES)
def test_windows_are_boxes_of_the_image(name: str) -> None:
    image, weights, padding = SHAPES[name]
    x, w = numbers(image, weights)
    kernel = tree(Tensor(x).realize().conv2d(Tensor(w).realize(), padding=padding))
    assert copies_windows(kernel) and "right=shared" in kernel.moves[0] and len(kernel.phases) == 3
    computes(kernel, convolved(x, w, padding), x, w)


CHANNELS_LAST = {"padded": ((2, 64, 5, 56), (32, 64, 3, 3), 1), "not padded": ((1, 64, 6, 44), (64, 64, 3, 3), 0),
                 "short rows": ((3, 128, 7, 7), (72, 128, 3, 3), 1)}


@pytest.mark.parametrize("name", CHANNELS_LAST)
@pytest.mark.parametrize("out_too", [False, True])
def test_an_image_with_its_channels_innermost_is_not_stored_again(name: str, out_too: bool) -> None:
    image, weights, padding = CHANNELS_LAST[name]
    x, w = numbers(image, weights)
    lies = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    result = Tensor(lies).realize().permute(0, 3, 1, 2).conv2d(Tensor(w).realize(), padding=padding)
    kernel = tree(result.permute(0, 2, 3, 1).contiguous() if out_too else result)
    assert len(kernel.phases) == 2 and ("left=shared" if out_too else "right=shared") in kernel.moves[0]   # the weights
    wanted = convolved(x, w, padding)
    wanted = wanted.transpose(0, 2, 3, 1) if out_too else wanted
    out = np.full(wanted.size, np.nan, np.float16)
    run_kernel(kernel, [out, lies.ravel(), w.ravel()])
    np.testing.assert_array_equal(out.reshape(wanted.shape), wanted.astype(np.float16))


def test_rows_of_one_dimension_are_boxes_too() -> None:
    x, w = numbers((3, 64, 120), (72, 64, 3))
    kernel = tree(Tensor(x).realize().conv2d(Tensor(w).realize(), padding=1))
    assert copies_windows(kernel) and "right=shared" in kernel.moves[0]
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1)))
    wanted = np.asarray(sum(np.einsum("ncx,oc->nox", padded[:, :, i:i + 120], w[:, :, i].astype(np.float64))
                            for i in range(3)))
    out = np.full(wanted.size, np.nan, np.float16)
    run_kernel(kernel, [out, x.ravel(), w.ravel()])
    np.testing.assert_array_equal(out.reshape(wanted.shape), wanted.astype(np.float16))


@pytest.mark.parametrize("channels", [32, 40, 96])
def test_channels_that_fill_no_line_are_followed_by_zeros(channels: int) -> None:
    x, w = numbers((2, channels, 5, 28), (24, channels, 3, 3))
    kernel = tree(Tensor(x).realize().conv2d(Tensor(w).realize(), padding=1))
    assert copies_windows(kernel) and "right=shared" in kernel.moves[0]
    wanted = convolved(x, w, 1)
    out = np.full(wanted.size, np.nan, np.float16)
    run_kernel(kernel, [out, x.ravel(), w.ravel()])
    np.testing.assert_array_equal(out.reshape(wanted.shape), wanted.astype(np.float16))


def test_groups_of_channels_are_boxes_of_one_image() -> None:
    x, w = numbers((2, 128, 5, 28), (48, 64, 3, 3))
    kernel = tree(Tensor(x).realize().conv2d(Tensor(w).realize(), padding=1, groups=2))
    assert copies_windows(kernel) and "right=shared" in kernel.moves[0]
    wanted = np.concatenate([convolved(x[:, :64], w[:24], 1), convolved(x[:, 64:], w[24:], 1)], 1)
    out = np.full(wanted.size, np.nan, np.float16)
    run_kernel(kernel, [out, x.ravel(), w.ravel()])
    np.testing.assert_array_equal(out.reshape(wanted.shape), wanted.astype(np.float16))


@pytest.mark.parametrize("groups, members", [(16, 4), (32, 4), (8, 8)])
def test_groups_of_few_channels_are_one_product_with_zeros(groups: int, members: int) -> None:
    x, w = numbers((2, groups * 4, 12, 28), (groups * members, 4, 3, 3))
    kernel = tree(Tensor(x).realize().conv2d(Tensor(w).realize(), padding=1, groups=groups))
    assert copies_windows(kernel) and "right=shared" in kernel.moves[0]
    wanted = np.concatenate([convolved(x[:, 4 * g:4 * g + 4], w[members * g:members * (g + 1)], 1)
                             for g in range(groups)], 1)
    out = np.full(wanted.size, np.nan, np.float16)
    run_kernel(kernel, [out, x.ravel(), w.ravel()])
    np.testing.assert_array_equal(out.reshape(wanted.shape), wanted.astype(np.float16))


def test_images_of_three_dimensions_are_boxes_too() -> None:
    x, w = numbers((1, 32, 4, 4, 28), (24, 32, 3, 2, 3))
    kernel = tree(Tensor(x).realize().conv2d(Tensor(w).realize()))
    assert copies_windows(kernel) and "right=shared" in kernel.moves[0]
    wanted = np.asarray(sum(
        np.einsum("ncdhw,oc->nodhw", x[:, :, i:i + 2, h:h + 3, j:j + 26].astype(np.float64), w[:, :, i, h, j])
        for i in range(3) for h in range(2) for j in range(3)))
    out = np.full(wanted.size, np.nan, np.float16)
    run_kernel(kernel, [out, x.ravel(), w.ravel()])
    np.testing.assert_array_equal(out.reshape(wanted.shape), wanted.astype(np.float16))


def test_gradients_of_images_with_their_channels_innermost_store_no_image() -> None:
    x, w, g = numbers((2, 64, 5, 56), (128, 64, 3, 3), (2, 128, 5, 56))
    image, gradient = (Tensor(np.ascontiguousarray(v.transpose(0, 2, 3, 1))).realize() for v in (x, g))
    leaf = Tensor(w).realize()
    out = image.permute(0, 3, 1, 2).conv2d(leaf, padding=1)
    padded = taps(x, (3, 3), 1)
    by_weights = np.stack([np.stack([np.einsum("nchw,nohw->oc", padded[i, j], g.astype(np.float64))
                                     for j in range(3)], -1) for i in range(3)], -2)
    by_image = convolved(g, w.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1], 1).transpose(0, 2, 3, 1)
    arrays = {x.size: image.numpy(), w.size: w, g.size: gradient.numpy()}
    for of, wanted in ((leaf, by_weights), (image, by_image)):           # results, or weights, have a phase
        kernel = tree(out.gradient(of, gradient=gradient.permute(0, 3, 1, 2))[0])
        assert len(kernel.phases) == 2 and "left=shared" in kernel.moves[0]
        given = {p.arg.slot: arrays[int(np.prod(p.arg.shape))] for p in kernel.params[1:]}
        result = np.full(wanted.size, np.nan, np.float16)
        run_kernel(kernel, [result, *[given[slot].ravel() for slot in sorted(given)]])
        np.testing.assert_array_equal(result.reshape(wanted.shape), wanted.astype(np.float16))


def test_rows_after_a_slice_do_not_count_in_the_gradient_by_the_weights() -> None:
    """Steps of two rows: after the fifth one comes a sixth, which is not one of the slice."""
    x, w, g = numbers((2, 64, 5, 28), (128, 64, 3, 3), (2, 128, 8, 28))
    lies = [np.ascontiguousarray(array.transpose(0, 2, 3, 1)) for array in (x, g)]
    image, seed = (Tensor(array).realize().permute(0, 3, 1, 2) for array in lies)
    leaf = Tensor(w).realize()
    product = image.conv2d(leaf, padding=1).cast("float32") * seed[:, :, :5].cast("float32")
    computes(tree(product.sum().gradient(leaf)[0]), by_weights(x, g[:, :, :5], w.shape, 1), *lies)


def test_the_gradient_by_the_image_is_read_so_too() -> None:
    x, w, g = numbers((1, 32, 4, 56), (64, 32, 3, 3), (1, 64, 4, 56))
    leaf = Tensor(x).realize()
    product = leaf.conv2d(Tensor(w).realize(), padding=1).cast("float32") * Tensor(g).realize().cast("float32")
    kernel = tree(product.sum().gradient(leaf)[0])
    assert copies_windows(kernel)
    wanted = convolved(g, w.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1], 1)
    computes(kernel, wanted, x, w, g)


# image, weights, padding
BY_WEIGHTS = {"a row is a step": ((2, 64, 5, 56), (128, 64, 3, 3), 1),
              "two rows are a step": ((3, 64, 6, 28), (128, 64, 3, 3), 1),
              "two steps are a row": ((1, 64, 2, 120), (128, 64, 1, 3), 0),
              "many images": ((64, 64, 4, 16), (128, 64, 1, 2), 0),
              "rows that are no whole steps": ((3, 64, 14, 14), (128, 64, 3, 3), 1),
              "very short rows": ((2, 64, 7, 7), (128, 64, 3, 3), 1),
              "images on one axis": ((3, 64, 5, 33), (128, 64, 3, 3), 1),
              "images on one axis, not padded": ((2, 64, 9, 19), (64, 64, 3, 3), 0),
              "channels that fill no line": ((2, 32, 6, 28), (40, 32, 3, 3), 1)}


@pytest.mark.parametrize("name", BY_WEIGHTS)
def test_the_gradient_by_the_weights_sums_over_rows_and_columns_of_boxes(name: str) -> None:
    image, weights, padding = BY_WEIGHTS[name]
    result = (image[0], weights[0], *[image[2 + a] - weights[2 + a] + 1 + 2 * padding for a in range(2)])
    x, w, g = numbers(image, weights, result)
    leaf = Tensor(w).realize()
    product = Tensor(x).realize().conv2d(leaf, padding=padding).cast("float32") * Tensor(g).realize().cast("float32")
    kernel = tree(product.sum().gradient(leaf)[0])
    assert copies_windows(kernel) and "left=shared, right=shared" in kernel.moves[0]
    assert ("k_parts" in kernel.moves[0]) == (name == "many images")
    computes(kernel, by_weights(x, g, weights, padding), x, g)


@pytest.mark.parametrize("groups, members, each, stride", [(16, 4, 4, 1), (32, 4, 4, 1), (8, 16, 8, 1), (2, 64, 64, 1),
                                                           (4, 8, 16, 1), (32, 4, 4, 2)])
def test_the_gradient_by_the_weights_of_groups_is_one_product(groups: int, members: int, each: int,
                                                              stride: int) -> None:
    """Groups of few channels side by side: what is between different ones is not stored."""
    x, w = numbers((2, groups * each, 9, 14), (groups * members, each, 3, 3))
    options = dict(padding=2, stride=stride)
    [g] = numbers((2, groups * members, (9 + 1) // stride + 1, (14 + 1) // stride + 1))
    leaf = Tensor(w).realize()
    out = Tensor(x).realize().conv2d(leaf, groups=groups, **options)
    kernel = tree((out.cast("float32") * Tensor(g).realize().cast("float32")).sum().gradient(leaf)[0])
    assert copies_windows(kernel) and "left=shared, right=shared" in kernel.moves[0]
    wanted = np.concatenate([by_weights(x[:, each * i:each * (i + 1)], g[:, members * i:members * (i + 1)],
                                        (members, each, 3, 3), **options) for i in range(groups)])
    computes(kernel, wanted, x, g)


# image, weights, padding, stride, dilation
STRIDED = {"every second": ((2, 64, 11, 28), (64, 64, 3, 3), 1, 2, 1),
           "as many odd rows as even ones": ((2, 64, 12, 28), (64, 64, 3, 3), 1, 2, 1),
           "one tap": ((1, 64, 9, 56), (64, 64, 1, 1), 0, 2, 1),
           "every third, taps apart": ((1, 64, 9, 46), (64, 64, 3, 2), 2, 3, 2),
           "taps apart": ((1, 64, 7, 28), (72, 64, 3, 3), 2, 1, 2),
           "taps apart, images on one axis": ((3, 64, 7, 17), (72, 64, 3, 3), 2, 1, 2),
           "five taps": ((1, 128, 8, 31), (64, 128, 5, 5), 2, 2, 1)}


@pytest.mark.parametrize("name", STRIDED)
def test_windows_with_a_stride_are_boxes_of_the_rows_and_columns_of_a_remainder(name: str) -> None:
    image, weights, padding, stride, dilation = STRIDED[name]
    x, w = numbers(image, weights)
    options = dict(padding=padding, stride=stride, dilation=dilation)
    kernel = tree(Tensor(x).realize().conv2d(Tensor(w).realize(), **options))
    assert copies_windows(kernel)
    computes(kernel, convolved(x, w, **options), x, w)


@pytest.mark.parametrize("name", ["every second", "as many odd rows as even ones", "every third, taps apart",
                                  "taps apart, images on one axis"])
def test_the_gradients_of_a_strided_convolution(name: str) -> None:
    """By the image each remainder of rows and columns is a product of its own, whose results lie apart."""
    image, weights, padding, stride, dilation = STRIDED[name]
    x, w = numbers(image, weights)
    options = dict(padding=padding, stride=stride, dilation=dilation)
    [g] = numbers(convolved(x, w, **options).shape)
    leaves = Tensor(x).realize(), Tensor(w).realize()
    product = leaves[0].conv2d(leaves[1], **options).cast("float32") * Tensor(g).realize().cast("float32")
    by_image = np.zeros([n + 2 * padding * (a > 1) for a, n in enumerate(image)])
    for i, j in np.ndindex(weights[2:]):
        at = by_image[:, :, i * dilation:, j * dilation:][:, :, ::stride, ::stride][:, :, :g.shape[2], :g.shape[3]]
        at += np.einsum("nohw,oc->nchw", g.astype(np.float64), w[:, :, i, j].astype(np.float64))
    inside = slice(padding, -padding)
    for leaf, wanted in zip(leaves, (by_image[:, :, inside, inside], by_weights(x, g, weights, **options))):
        kernel = tree(product.sum().gradient(leaf)[0])
        assert all(move.startswith("boxes") for move in kernel.moves[:1]), kernel.moves
        images = [m for p in kernel.phases for m in {*locals_written(p)} if m.arg.name.endswith("_image")]
        assert len(images) == len(set(images)), "the same image is stored twice"
        computes(kernel, wanted, x, w, g)


@pytest.mark.parametrize("pixels", [(6, 20), (12, 16), (7, 24)], ids=str)
def test_a_sum_over_images_of_pixels_reads_both_factors_in_place(pixels: tuple[int, int]) -> None:
    """The weights' gradient where a window is one pixel: lines of pixels end with an image, and zeros follow."""
    x, w, g = numbers((3, 64, *pixels), (72, 64, 1, 1), (3, 72, *pixels))
    leaf = Tensor(w).realize()
    product = Tensor(x).realize().conv2d(leaf).cast("float32") * Tensor(g).realize().cast("float32")
    kernel = tree(product.sum().gradient(leaf)[0])
    assert len(kernel.phases) == 1 and "left=shared, right=shared" in kernel.moves[0]
    computes(kernel, by_weights(x, g, w.shape, 0), x, g)


# image, weights, padding, stride
FEW_CHANNELS = {"a first layer": ((2, 3, 13, 96), (64, 3, 7, 7), 3, 2),
                "every fourth": ((1, 3, 23, 163), (64, 3, 11, 11), 2, 4),
                "every one": ((2, 4, 6, 44), (72, 4, 3, 5), 0, 1)}


@pytest.mark.parametrize("of", ["result", "weights"])
@pytest.mark.parametrize("name", FEW_CHANNELS)
def test_windows_of_few_channels_are_lines_that_overlap(name: str, of: str) -> None:
    image, weights, padding, stride = FEW_CHANNELS[name]
    x, w = numbers(image, weights)
    wanted = convolved(x, w, padding, stride)
    [g] = numbers(wanted.shape)
    leaf = Tensor(w).realize()
    out = Tensor(x).realize().conv2d(leaf, padding=padding, stride=stride)
    if of == "weights":
        out = (out.cast("float32") * Tensor(g).realize().cast("float32")).sum().gradient(leaf)[0]
        wanted = by_weights(x, g, weights, padding, stride)
    kernel = tree(out)
    assert any(m.arg.name == "right_lines" for p in kernel.phases for m in locals_written(p)), kernel.moves
    computes(kernel, wanted, x, w, g)


@pytest.mark.parametrize("pixels", [(6, 6), (7, 7), (2, 9)], ids=str)
def test_columns_of_several_images_share_tiles(pixels: tuple[int, int]) -> None:
    """Images whose lines do not begin at multiples of 16 bytes are stored first: one after another, without gaps."""
    x, w = numbers((7, 64, *pixels), (72, 64, 1, 1))
    kernel = tree(Tensor(x).realize().conv2d(Tensor(w).realize()))
    assert "left=shared" in kernel.moves[0] and "right=shared" not in kernel.moves[0]
    [right] = locals_written(kernel.phases[0])
    assert right.arg.size == 64 * -(-7 * math.prod(pixels) // 64) * 64
    computes(kernel, convolved(x, w, 0), x, w)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_factor_in_place_beside_one_that_is_stored(batch: int) -> None:
    """The weights' gradient of few channels: rows of the result's gradient are lines of K, windows are stored so."""
    x, w, g = numbers((batch, 3, 6, 48), (64, 3, 3, 3), (batch, 64, 6, 48))
    leaf = Tensor(w).realize()
    product = Tensor(x).realize().conv2d(leaf, padding=1).cast("float32") * Tensor(g).realize().cast("float32")
    kernel = tree(product.sum().gradient(leaf)[0])
    assert not copies_windows(kernel) and ("left=shared" in kernel.moves[0]) != ("right=shared" in kernel.moves[0])
    computes(kernel, by_weights(x, g, w.shape, 1), x, g)


def test_a_gate_on_what_is_done_with_a_sum_cuts_no_loop() -> None:
    """A product to which every second row and column of something else is added stays one product."""
    x, w, y = numbers((1, 64, 16, 24), (64, 64, 1, 1), (1, 64, 8, 12))
    spread = Tensor(y).realize().reshape(1, 64, 8, 1, 12, 1).pad((0, 1, 0, 0, 0, 1)).reshape(1, 64, 16, 24)
    kernel = tree(Tensor(x).realize().conv2d(Tensor(w).realize()) + spread)
    assert len(kernel.moves) == 1 and kernel.moves[0].startswith("boxes")
    wanted = convolved(x, w, 0).astype(np.float16).astype(np.float64)
    wanted[:, :, ::2, ::2] += y
    computes(kernel, wanted, x, w, y)


def test_float32_is_read_so_where_the_unit_may_round_it() -> None:
    """Channels are innermost, so lines lie along K, which is all that the unit takes of float32."""
    features = {"sm_90a", "tf32"}
    target = replace(HOPPER, features=frozenset(features), units=units_of(features))
    x, w = (a.astype(np.float32) for a in numbers((1, 64, 4, 28), (64, 64, 3, 3)))
    [item] = Tensor(x).realize().conv2d(Tensor(w).realize(), padding=1).schedule()
    kernel = optimize(lower(item.ast, keep_bytes=target.row_bytes), target)
    assert copies_windows(kernel)
    computes(kernel, convolved(x, w, 1), x, w)


@pytest.mark.parametrize("pixels", [(5, 28), (4, 56)], ids=str)
def test_the_gradient_by_the_weights_of_float32_reads_rows_that_are_moved_by_a_tap(pixels: tuple[int, int]) -> None:
    """A unit that takes lines along the sum alone: the image is stored once for each tap along a row."""
    features = {"sm_90a", "tf32"}
    target = replace(HOPPER, features=frozenset(features), units=units_of(features))
    x, w, g = (a.astype(np.float32) for a in numbers((2, 32, *pixels), (64, 32, 3, 3), (2, 64, *pixels)))
    leaf = Tensor(w).realize()
    [item] = (Tensor(x).realize().conv2d(leaf, padding=1) * Tensor(g).realize()).sum().gradient(leaf)[0].schedule()
    kernel = optimize(lower(item.ast, keep_bytes=target.row_bytes), target)
    assert any(m.arg.name == "right_shifted" for p in kernel.phases for m in locals_written(p)), kernel.moves
    computes(kernel, by_weights(x, g, w.shape, 1), x, g)


def test_a_box_that_hardware_refuses_is_reported() -> None:
    """Along its innermost axis a box begins at a multiple of 16 bytes."""
    [item] = (Tensor.zeros(4, 64, dtype="float16").contiguous().realize() + 1).schedule()
    params = lower(item.ast).params
    memory = local("stages", dtypes.float16, 64)
    box = Box(params[1], 0, (Axis(64, 1), Axis(4, 64)), (8, 4), (index(3), index(0)), index(0))
    kernel = Kernel("copies", params, [Phase([CopyBoxes(memory, index(0), (box,)), AwaitCopies(memory, index(0), 1),
                                              Store(params[0], index(0), const(0, dtypes.float16))])], (0,))
    with pytest.raises(Bug, match="copies a box that does not begin at a multiple of 16 bytes"):
        run_kernel(kernel, [np.zeros(256, np.float16), np.zeros(256, np.float16)])


@pytest.mark.parametrize("image, weights, options", [
    ((1, 24, 6, 64), (32, 24, 3, 3), {"padding": 1}),                        # channels that are not whole lines
    ((9, 64, 3, 3), (32, 64, 3, 3), {"padding": 1}),                         # rows that would be mostly edge
], ids=["few channels", "narrow"])
def test_other_windows_are_stored_first(image: tuple[int, ...], weights: tuple[int, ...],
                                        options: dict[str, int]) -> None:
    x, w = (Tensor.zeros(*shape, dtype="float16").contiguous().realize() for shape in (image, weights))
    assert not copies_windows(tree(x.conv2d(w, **options)))


@needs_nvrtc
@pytest.mark.parametrize("size, axes", [(56, 4), (33, 2)], ids=["each image", "one axis"])
def test_the_source_compiles(size: int, axes: int) -> None:
    shapes = (32, 128, size, size), (128, 128, 3, 3)
    x, w = (Tensor.zeros(*shape, dtype="float16").contiguous().realize() for shape in shapes)
    kernel = tree(x.conv2d(w, padding=1))
    assert copies_windows(kernel)
    source = make_source(kernel, HOPPER, "cuda")
    assert f"copy_box_{axes}" in source and nvrtc.compile_cuda(source, "sm_90a")
