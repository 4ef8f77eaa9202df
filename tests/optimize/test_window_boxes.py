"""Convolutions on a matrix unit of a group of threads: windows are copied as boxes of the image, and never stored."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_compiler import needs_nvrtc
from loop_kernels import HOPPER

from glassgrad import Tensor
from glassgrad.base.errors import Bug
from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.index_algebra import index
from glassgrad.compiler.lower.loops import AwaitCopies, Axis, Box, CopyBoxes, Kernel, Phase, Store, local, walk, zero
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.pipeline import make_source
from glassgrad.runtime.gpu import nvrtc


def tree(result: Tensor) -> Kernel:
    [item] = result.schedule()
    return optimize(lower(item.ast, keep_bytes=HOPPER.row_bytes), HOPPER, products=False)


def copies_windows(kernel: Kernel) -> bool:
    """Whether boxes of an image are copied, whose channels are innermost."""
    boxes = [b for p in kernel.phases for s in walk(p.body) if isinstance(s, CopyBoxes) for b in s.boxes]
    return any(box.source.op is o.LOCAL and box.source.arg.name.endswith("_image") for box in boxes)


def numbers(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    """Numbers whose products and sums float32 holds exactly."""
    rng = np.random.default_rng(sum(map(sum, shapes)))
    return [(rng.integers(-8, 9, shape) / 8).astype(np.float16) for shape in shapes]


def convolved(x: np.ndarray, w: np.ndarray, padding: int) -> np.ndarray:
    """The convolution in float64, tap by tap."""
    x, w = (a.astype(np.float64) for a in (x, w))
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    rows, columns = (x.shape[2 + a] - w.shape[2 + a] + 1 for a in range(2))
    taps = [(i, j) for i in range(w.shape[2]) for j in range(w.shape[3])]
    return np.asarray(sum(np.einsum("nchw,oc->nohw", x[:, :, i:i + rows, j:j + columns], w[:, :, i, j])
                          for i, j in taps))


# image, weights, padding
SHAPES = {"padded": ((2, 64, 5, 56), (32, 64, 3, 3), 1), "more channels": ((1, 128, 4, 40), (72, 128, 3, 3), 1),
          "not padded": ((1, 64, 6, 64), (64, 64, 3, 3), 0), "five taps": ((1, 64, 6, 112), (16, 64, 5, 5), 2),
          "short rows": ((2, 64, 14, 14), (72, 64, 3, 3), 1), "very short rows": ((3, 64, 7, 7), (64, 64, 1, 3), 0),
          "rows that are no power of two": ((1, 64, 3, 90), (64, 64, 3, 3), 1)}


@pytest.mark.parametrize("name", SHAPES)
def test_windows_are_boxes_of_the_image(name: str) -> None:
    image, weights, padding = SHAPES[name]
    x, w = numbers(image, weights)
    kernel = tree(Tensor(x).realize().conv2d(Tensor(w).realize(), padding=padding))
    assert copies_windows(kernel) and "right=shared" in kernel.moves[0] and len(kernel.phases) == 3
    wanted = convolved(x, w, padding)
    out = np.full(wanted.size, np.nan, np.float16)
    run_kernel(kernel, [out, x.ravel(), w.ravel()])
    np.testing.assert_array_equal(out.reshape(wanted.shape), wanted.astype(np.float16))


def test_the_gradient_by_the_image_is_read_so_too() -> None:
    x, w, g = numbers((1, 32, 4, 56), (64, 32, 3, 3), (1, 64, 4, 56))
    leaf = Tensor(x).realize()
    product = leaf.conv2d(Tensor(w).realize(), padding=1).cast("float32") * Tensor(g).realize().cast("float32")
    kernel = tree(product.sum().gradient(leaf)[0])
    assert copies_windows(kernel)
    wanted = convolved(g, w.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1], 1)
    given = {p.arg.slot: {x.size: x, w.size: w, g.size: g}[int(np.prod(p.arg.shape))] for p in kernel.params[1:]}
    out = np.full(x.size, np.nan, np.float16)
    run_kernel(kernel, [out, *[given[slot].ravel() for slot in sorted(given)]])
    np.testing.assert_array_equal(out.reshape(x.shape), wanted.astype(np.float16))


# image, weights, padding
BY_WEIGHTS = {"a row is a step": ((2, 64, 5, 56), (128, 64, 3, 3), 1),
              "two rows are a step": ((3, 64, 6, 28), (128, 64, 3, 3), 1),
              "two steps are a row": ((1, 64, 2, 120), (128, 64, 1, 3), 0),
              "many images": ((64, 64, 4, 16), (128, 64, 1, 2), 0)}


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
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    wanted = np.stack([np.stack([np.einsum("nchw,nohw->oc", padded[:, :, i:i + result[2], j:j + result[3]],
                                           g.astype(np.float64)) for j in range(weights[3])], -1)
                       for i in range(weights[2])], -2)
    given = {p.arg.slot: {x.size: x, g.size: g}[int(np.prod(p.arg.shape))] for p in kernel.params[1:]}
    out = np.full(w.size, np.nan, np.float16)
    run_kernel(kernel, [out, *[given[slot].ravel() for slot in sorted(given)]])
    np.testing.assert_array_equal(out.reshape(w.shape), wanted.astype(np.float16))


def test_a_box_that_hardware_refuses_is_reported() -> None:
    """Along its innermost axis a box begins at a multiple of 16 bytes."""
    [item] = (Tensor.zeros(4, 64, dtype="float16").contiguous().realize() + 1).schedule()
    params = lower(item.ast).params
    memory = local("stages", dtypes.float16, 64)
    box = Box(params[1], 0, (Axis(64, 1), Axis(4, 64)), (8, 4), (index(3), index(0)), index(0))
    kernel = Kernel("copies", params, [Phase([CopyBoxes(memory, index(0), (box,)), AwaitCopies(memory, index(0), 1),
                                              Store(params[0], index(0), zero(dtypes.float16))])], (0,))
    with pytest.raises(Bug, match="copies a box that does not begin at a multiple of 16 bytes"):
        run_kernel(kernel, [np.zeros(256, np.float16), np.zeros(256, np.float16)])


@pytest.mark.parametrize("image, weights, options", [
    ((1, 64, 8, 64), (32, 64, 3, 3), {"padding": 1, "stride": 2}),           # every second column
    ((1, 24, 6, 64), (32, 24, 3, 3), {"padding": 1}),                        # channels that are not whole lines
    ((1, 64, 6, 34), (32, 64, 3, 3), {"padding": 1}),                        # rows that would be mostly edge
], ids=["strided", "few channels", "narrow"])
def test_other_windows_are_stored_first(image: tuple[int, ...], weights: tuple[int, ...],
                                        options: dict[str, int]) -> None:
    x, w = (Tensor.zeros(*shape, dtype="float16").contiguous().realize() for shape in (image, weights))
    assert not copies_windows(tree(x.conv2d(w, **options)))


@needs_nvrtc
def test_the_source_compiles() -> None:
    shapes = (32, 128, 56, 56), (128, 128, 3, 3)
    x, w = (Tensor.zeros(*shape, dtype="float16").contiguous().realize() for shape in shapes)
    kernel = tree(x.conv2d(w, padding=1))
    assert copies_windows(kernel)
    source = make_source(kernel, HOPPER, "cuda")
    assert "copy_box_4" in source and nvrtc.compile_cuda(source, "sm_90a")
