"""Measure attention and convolutions beside PyTorch on an NVIDIA GPU.

    python -m benchmarks.gpu_tiles --quick --json FILE      under five minutes; options are those of benchmarks.gpu

How results are checked and timed: benchmarks/gpu.py.
"""

from __future__ import annotations

from typing import Any

from benchmarks.gpu import Case, main


def attention(name: str, dtype: str, queries: tuple[int, ...], keys: tuple[int, ...], causal: bool = False,
              share: bool = False) -> Case:
    """softmax(q k^T) v; `share`: several heads have one key."""
    import torch
    theirs = torch.nn.functional.scaled_dot_product_attention
    *heads, rows, size = queries
    work = 4.0 * rows * keys[-2] * size * (0.5 if causal else 1.0)
    for n in heads:
        work *= n
    return Case(name, (queries, keys, keys), dtype,
                lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=causal, enable_gqa=share),
                lambda q, k, v: theirs(q, k, v, is_causal=causal, enable_gqa=share), work)


def trained(name: str, shape: tuple[int, ...], causal: bool, of: int) -> Case:
    """Attention and the gradients of q, k and v; the result with which it is checked is the gradient of one (`of`)."""
    import torch
    theirs = torch.nn.functional.scaled_dot_product_attention

    def ours(q: Any, k: Any, v: Any, g: Any) -> Any:
        out = q.scaled_dot_product_attention(k, v, is_causal=causal)
        gradients = (out.cast("float32") * g.cast("float32")).sum().gradient(q, k, v)
        return (gradients[of], out, *gradients)

    def torchs(q: Any, k: Any, v: Any, g: Any) -> Any:
        q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        return torch.autograd.grad(theirs(q, k, v, is_causal=causal), (q, k, v), g)[of]
    *heads, rows, size = shape
    work = 14.0 * rows * rows * size * (0.5 if causal else 1.0)
    for n in heads:
        work *= n
    return Case(name, (shape,) * 4, "bfloat16", ours, torchs, work)


def masked(name: str, queries: tuple[int, ...], keys: int) -> Case:
    """Attention with a number added to each score."""
    import torch
    theirs = torch.nn.functional.scaled_dot_product_attention
    *heads, rows, size = queries
    shapes = (queries, (*heads, keys, size), (*heads, keys, size), (rows, keys))
    return Case(name, shapes, "bfloat16", lambda q, k, v, m: q.scaled_dot_product_attention(k, v, attn_mask=m),
                lambda q, k, v, m: theirs(q, k, v, attn_mask=m), 4.0 * heads[0] * heads[1] * rows * keys * size)


def convolution(name: str, dtype: str, image: tuple[int, ...], weights: tuple[int, ...], of: str = "", stride: int = 1,
                rounded: bool = False) -> Case:
    """A convolution padded so that stride 1 keeps the size of its image, or its gradient `of` the image or the weights.
    `rounded`: both libraries may round float32 to tf32, else neither does."""
    import torch

    from glassgrad import Context
    functional, gradients, cudnn = torch.nn.functional, torch.nn.grad, torch.backends.cudnn
    pad = weights[-1] // 2
    result = (image[0], weights[0], *[(n + 2 * pad - weights[-1]) // stride + 1 for n in image[2:]])
    work = 2.0 * result[0] * result[2] * result[3] * weights[0] * weights[1] * weights[2] * weights[3]

    def ours(x: Any, w: Any, g: Any = None) -> Any:
        with Context(TF32=int(rounded)):
            out = x.conv2d(w, padding=pad, stride=stride)
            if of:
                leaf = x if of == "image" else w
                out = (out.cast("float32") * g.cast("float32")).sum().gradient(leaf)[0]
            return out.realize()

    def theirs(x: Any, w: Any, g: Any = None) -> Any:
        before, cudnn.allow_tf32 = cudnn.allow_tf32, rounded
        if of == "image":
            out = gradients.conv2d_input(x.shape, w, g, padding=pad, stride=stride)
        elif of:
            out = gradients.conv2d_weight(x, w.shape, g, padding=pad, stride=stride)
        else:
            out = functional.conv2d(x, w, padding=pad, stride=stride)
        cudnn.allow_tf32 = before
        return out
    shapes, scales = ((image, weights, result), (1, 1 / 32, 1)) if of else ((image, weights), (1, 1 / 32))
    return Case(name, shapes, dtype, ours, theirs, work, scales)


def convolutions(name: str, dtype: str, image: tuple[int, ...], weights: tuple[int, ...], stride: int = 1,
                 rounded: bool = False) -> list[Case]:
    """A convolution and both its gradients."""
    names = {"": name, "image": f"{name}, image's gradient", "weights": f"{name}, weights' gradient"}
    return [convolution(names[of], dtype, image, weights, of, stride, rounded) for of in names]


def transposed(name: str, dtype: str, image: tuple[int, ...], weights: tuple[int, ...], stride: int,
               padding: int) -> Case:
    """A transposed convolution."""
    import torch
    theirs = torch.nn.functional.conv_transpose2d
    work = 2.0 * image[0] * image[1] * image[2] * image[3] * weights[1] * weights[2] * weights[3]
    return Case(name, (image, weights), dtype, lambda x, w: x.conv_transpose2d(w, stride=stride, padding=padding),
                lambda x, w: theirs(x, w, stride=stride, padding=padding), work, (1, 1 / 32))


def tile_cases() -> list[Case]:
    long, image, weights = (4, 32, 2048, 128), (32, 128, 56, 56), (128, 128, 3, 3)
    out = [attention("attention 4x32x2048x128", "bfloat16", long, long),
           attention("attention causal", "bfloat16", long, long, causal=True),
           attention("attention float16", "float16", long, long),
           attention("attention, a query 8x32x1x4096x128", "bfloat16", (8, 32, 1, 128), (8, 32, 4096, 128)),
           attention("attention, a query 1x32x1x4096x128", "bfloat16", (1, 32, 1, 128), (1, 32, 4096, 128)),
           attention("attention, a query, 8 heads of keys", "bfloat16", (1, 32, 1, 128), (1, 8, 4096, 128), share=True),
           attention("attention, a query 1x8x1x100000x128", "bfloat16", (1, 8, 1, 128), (1, 8, 100000, 128)),
           attention("attention 4x16x4096x64", "bfloat16", (4, 16, 4096, 64), (4, 16, 4096, 64)),
           attention("attention 4x16x4096x64 causal", "bfloat16", (4, 16, 4096, 64), (4, 16, 4096, 64), causal=True),
           attention("attention 8x12x1024x64 causal", "bfloat16", (8, 12, 1024, 64), (8, 12, 1024, 64), causal=True),
           attention("attention, 8 heads of keys", "bfloat16", long, (4, 8, 2048, 128), share=True),
           attention("attention ragged 8x12x1000x1500x80", "bfloat16", (8, 12, 1000, 80), (8, 12, 1500, 80)),
           trained("attention trained 4x32x2048x128", long, causal=False, of=0),
           trained("attention trained causal", long, causal=True, of=1),
           trained("attention trained 8x12x1024x64 causal", (8, 12, 1024, 64), causal=True, of=2),
           masked("attention masked", (4, 16, 2048, 64), 2048)]
    out += [*convolutions("conv 3x3 float16", "float16", image, weights),
            *convolutions("conv 3x3 float32", "float32", image, weights),
            *convolutions("conv 3x3 tf32", "float32", image, weights, rounded=True),
            *convolutions("conv 3x3 stride 2 bfloat16", "bfloat16", (64, 128, 56, 56), (128, 128, 3, 3), 2),
            *convolutions("conv 1x1 bfloat16", "bfloat16", (64, 64, 56, 56), (256, 64, 1, 1)),
            *convolutions("conv 1x1 stride 2 bfloat16", "bfloat16", (64, 256, 56, 56), (512, 256, 1, 1), 2),
            *convolutions("conv 7x7 stride 2 bfloat16", "bfloat16", (64, 3, 224, 224), (64, 3, 7, 7), 2),
            convolution("conv 3x3 stride 3 bfloat16", "bfloat16", (64, 128, 54, 54), weights, "image", 3),
            transposed("conv transposed 4x4 bfloat16", "bfloat16", (64, 128, 28, 28), (128, 128, 4, 4), 2, 1),
            *convolutions("conv 3x3 of 14x14 bfloat16", "bfloat16", (64, 256, 14, 14), (256, 256, 3, 3)),
            *convolutions("conv 1x1 of 14x14 bfloat16", "bfloat16", (64, 256, 14, 14), (1024, 256, 1, 1)),
            *convolutions("conv 3x3 of 7x7 bfloat16", "bfloat16", (64, 512, 7, 7), (512, 512, 3, 3))[2:]]
    return [*out, convolution("conv 1x1 float16", "float16", image, (512, 128, 1, 1))]


if __name__ == "__main__":
    main(made=tile_cases)
