"""Measure layers of common networks on an NVIDIA GPU beside PyTorch, forward and trained, in shapes not tuned for.

    python -m benchmarks.gpu_layers                    all cases; options are those of benchmarks.gpu
    python -m benchmarks.gpu_layers --only attention --quick

A trained case computes the gradients of all inputs, for a gradient of the result that is given; PyTorch's side computes
the result as well, which its gradients need.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.gpu import Case, main

__all__ = ["layers"]

Shape = tuple[int, ...]
Compute = Callable[..., Any]


def trained(name: str, dtype: str, shapes: tuple[Shape, ...], result: Shape, ours: Compute, theirs: Compute,
            scales: tuple[float, ...]) -> Case:
    """The gradients of a layer by all of its inputs."""
    import torch

    def our_gradients(*inputs: Any) -> tuple[Any, ...]:
        *xs, g = inputs
        return tuple((ours(*xs) * g).sum().gradient(*xs))

    def their_gradient(*inputs: Any) -> Any:
        *xs, g = inputs
        xs = [x.detach().requires_grad_() for x in xs]
        return torch.autograd.grad(theirs(*xs), xs, g)[0]
    return Case(f"{name}, trained", (*shapes, result), dtype, our_gradients, their_gradient, 0.0, (*scales, 1.0))


def both(name: str, dtype: str, shapes: tuple[Shape, ...], result: Shape, ours: Compute, theirs: Compute | None = None,
         scales: tuple[float, ...] = ()) -> list[Case]:
    """A layer, and its gradients."""
    theirs, scales = theirs or ours, scales or (1.0,) * len(shapes)
    return [Case(name, shapes, dtype, ours, theirs, 0.0, scales),
            trained(name, dtype, shapes, result, ours, theirs, scales)]


def convolution(name: str, dtype: str, image: Shape, weights: Shape, stride: int = 1, padding: int = 0, groups: int = 1,
                dilation: int = 1) -> list[Case]:
    import torch
    options = dict(stride=stride, padding=padding, groups=groups, dilation=dilation)
    theirs = [torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d][len(image) - 3]
    size = [(n + 2 * padding - dilation * (k - 1) - 1) // stride + 1 for n, k in zip(image[2:], weights[2:])]
    return both(name, dtype, (image, weights), (image[0], weights[0], *size), lambda x, w: x.conv2d(w, **options),
                lambda x, w: theirs(x, w, **options), (1.0, 0.05))


def numbers(high: int, *shape: int, seed: int = 3) -> tuple[Any, Any]:
    """Random numbers below a limit, as a tensor of each library."""
    import torch

    from glassgrad import Tensor
    values = np.random.default_rng(seed).integers(0, high, shape)
    return Tensor(values.astype(np.int32), device="CUDA").realize(), torch.from_numpy(values).cuda()


def layers() -> list[Case]:
    import torch
    functional = torch.nn.functional
    pool = (64, 64, 112, 112)
    labels, their_labels = numbers(50257, 4096)
    tokens, their_tokens = numbers(50257, 8192)
    columns, their_columns = numbers(2000, 4096, 500)
    many = 1_000_000
    (left, their_left), (right, their_right) = numbers(4096, many), numbers(2000, many, seed=4)
    bins, their_bins = numbers(1000, many)
    query, keys, heads = (8, 32, 1, 128), (8, 32, 4096, 128), (2, 8, 1024, 64)

    def normalized(x: Any, w: Any, b: Any) -> Any:
        mean = x.mean((0, 2, 3), keepdim=True)
        variance = ((x - mean) * (x - mean)).mean((0, 2, 3), keepdim=True)
        return (x - mean) * (variance + 1e-5).rsqrt() * w.reshape(1, -1, 1, 1) + b.reshape(1, -1, 1, 1)

    return [
        *convolution("3x3, 32 groups, bfloat16", "bfloat16", (32, 256, 28, 28), (256, 8, 3, 3), padding=1, groups=32),
        *convolution("3x3, 32 groups, float32", "float32", (32, 256, 28, 28), (256, 8, 3, 3), padding=1, groups=32),
        *convolution("depthwise 5x5, stride 2", "float16", (64, 240, 28, 28), (240, 1, 5, 5), 2, 2, 240),
        *convolution("depthwise 7x7", "bfloat16", (32, 96, 56, 56), (96, 1, 7, 7), padding=3, groups=96),
        *convolution("1 axis, 3 taps", "bfloat16", (16, 512, 3000), (512, 512, 3), padding=1),
        *convolution("1 axis, 10 taps, stride 5", "float32", (8, 1, 160000), (512, 1, 10), 5),
        *convolution("3 axes, 3x3x3", "bfloat16", (4, 32, 16, 56, 56), (64, 32, 3, 3, 3), padding=1),
        *convolution("3x3, dilation 2", "bfloat16", (16, 256, 33, 33), (256, 256, 3, 3), padding=2, dilation=2),
        *convolution("patches 16x16", "bfloat16", (64, 3, 224, 224), (768, 3, 16, 16), 16),
        *both("batch norm", "float32", ((64, 256, 28, 28), (256,), (256,)), (64, 256, 28, 28), normalized,
              lambda x, w, b: functional.batch_norm(x, None, None, w, b, True)),
        *both("layernorm with weights", "bfloat16", ((8192, 1024), (1024,), (1024,)), (8192, 1024),
              lambda x, w, b: x.layernorm() * w + b, lambda x, w, b: functional.layer_norm(x, (1024,), w, b)),
        *both("softmax of 21 channels", "float32", ((64, 21, 128, 128),), (64, 21, 128, 128), lambda x: x.softmax(1)),
        *both("softmax 64x50257", "float32", ((64, 50257),), (64, 50257), lambda x: x.softmax(-1)),
        *both("cross entropy 4096x50257", "bfloat16", ((4096, 50257),), (),
              lambda x: x.float().sparse_categorical_crossentropy(labels),
              lambda x: functional.cross_entropy(x if x.dtype is torch.float64 else x.float(), their_labels)),
        *both("embedding 50257x768", "bfloat16", ((50257, 768),), (8192, 768), lambda w: w[tokens],
              lambda w: functional.embedding(their_tokens, w)),
        *both("gather of columns", "float32", ((4096, 2000),), (4096, 500), lambda x: x.gather(1, columns),
              lambda x: x.gather(1, their_columns)),
        both("x[rows, columns] of a million", "float32", ((4096, 2000),), (many,), lambda x: x[left, right],
             lambda x: x[their_left, their_right])[1],
        Case("a million added into 1000", ((1000,), (many,)), "float32", lambda y, x: y.scatter_add(0, bins, x),
             lambda y, x: y.scatter_add(0, their_bins, x)),
        Case("topk 50 of 64x50257", ((64, 50257),), "float32", lambda x: x.topk(50)[0], lambda x: x.topk(50)[0]),
        Case("sort 1000x1000", ((1000, 1000),), "float32", lambda x: x.sort(-1)[0], lambda x: x.sort(-1)[0]),
        *both("max pool 3, stride 2", "bfloat16", (pool,), (64, 64, 56, 56), lambda x: x.max_pool2d(3, 2, padding=1),
              lambda x: functional.max_pool2d(x, 3, 2, 1)),
        *both("bilinear, twice the size", "float32", ((16, 64, 64, 64),), (16, 64, 128, 128),
              lambda x: x.interpolate((128, 128), mode="linear"),
              lambda x: functional.interpolate(x, (128, 128), mode="bilinear")),
        *both("linear 256x2048x1000", "bfloat16", ((256, 2048), (1000, 2048), (1000,)), (256, 1000),
              lambda x, w, b: x @ w.T + b, functional.linear, (1.0, 0.02, 1.0)),
        Case("linear 16x4096x11008", ((16, 4096), (11008, 4096)), "bfloat16", lambda x, w: x @ w.T,
             lambda x, w: x @ w.T, 0.0, (1.0, 0.02)),
        Case("attention of one query", (query, keys, keys), "bfloat16",
             lambda q, k, v: q.scaled_dot_product_attention(k, v), functional.scaled_dot_product_attention),
        *both("attention float32", "float32", (heads,) * 3, heads, lambda q, k, v: q.scaled_dot_product_attention(k, v),
              functional.scaled_dot_product_attention),
        Case("standard deviation of all", ((4096, 4096),), "float32", lambda x: x.std(), lambda x: x.std()),
        *both("norms of rows 65536x512", "float32", ((65536, 512),), (65536,), lambda x: (x * x).sum(-1).sqrt()),
    ]


if __name__ == "__main__":
    main(sys.argv[1:], layers)
