"""Convolutions on a matrix unit of a group of threads: windows are copied as boxes of the image, and never stored."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_compiler import needs_nvrtc
from loop_kernels import HOPPER

from glassgrad import Tensor
from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.lower.loops import CopyBoxes, Kernel, walk
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.pipeline import make_source
from glassgrad.runtime.gpu import nvrtc


def tree(result: Tensor) -> Kernel:
    [item] = result.schedule()
    return optimize(lower(item.ast, keep_bytes=HOPPER.row_bytes), HOPPER, products=False)


def copies_windows(kernel: Kernel) -> bool:
    """Whether boxes of an image are copied: with axes for rows, columns and channels."""
    boxes = [b for p in kernel.phases for s in walk(p.body) if isinstance(s, CopyBoxes) for b in s.boxes]
    return any(len(box.axes) >= 3 and box.counts[1] == 1 and sum(n > 1 for n in box.counts) == 2 for box in boxes)


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
          "not padded": ((1, 64, 6, 64), (64, 64, 3, 3), 0), "five taps": ((1, 64, 6, 112), (16, 64, 5, 5), 2)}


@pytest.mark.parametrize("name", SHAPES)
def test_windows_are_boxes_of_the_image(name: str) -> None:
    image, weights, padding = SHAPES[name]
    x, w = numbers(image, weights)
    kernel = tree(Tensor(x).realize().conv2d(Tensor(w).realize(), padding=padding))
    assert copies_windows(kernel) and "right=shared" in kernel.moves[0] and len(kernel.phases) == 2
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


@pytest.mark.parametrize("image, weights, options", [
    ((1, 64, 8, 64), (32, 64, 3, 3), {"padding": 1, "stride": 2}),           # every second column
    ((1, 24, 6, 64), (32, 24, 3, 3), {"padding": 1}),                        # channels that are not whole lines
    ((1, 64, 6, 30), (32, 64, 3, 3), {"padding": 1}),                        # rows that begin anywhere, mostly edge
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
