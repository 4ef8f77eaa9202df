"""Project 6: activations, norms and attention from primitives. Run it: python projects/06_custom_ops.py

Its page is docs/guide/06_custom_ops.md. Every op is checked twice: by PyTorch, where it is installed, and by finite
differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from telling import best_ms, chapter, kernels, kernels_of, kernels_run, tell

from glassgrad import Context, Function, Tensor

try:
    import torch
except ImportError:
    torch = None

check_gradient = import_module("03_autograd").check_gradient      # a name that begins with a digit needs asking nicely
_stepwise = False


def kept(x: Tensor) -> Tensor:
    """Marks a step inside an op: computed at once where the op is run step by step, else left to be fused."""
    return x.realize() if _stepwise else x


# -- activations -------------------------------------------------------------------------------------------------------
def gelu(x: Tensor) -> Tensor:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))"""
    inner = kept(x + kept(0.044715 * kept(x ** 3)))
    return kept(0.5 * x) * kept(1 + kept(kept(inner * math.sqrt(2 / math.pi)).tanh()))


def swish(x: Tensor) -> Tensor:
    """x sigmoid(x)"""
    return x * kept(x.sigmoid())


def mish(x: Tensor) -> Tensor:
    """x tanh(softplus(x)) = x tanh(log(1 + e^x))"""
    return x * kept(kept(x.softplus()).tanh())


def swiglu(x: Tensor) -> Tensor:
    """swish(a) b, where a and b are the two halves of the last axis"""
    a, b = x.chunk(2, -1)
    return kept(swish(a)) * b


# -- norms -------------------------------------------------------------------------------------------------------------
def rms_norm(x: Tensor, eps: float = 1e-5) -> Tensor:
    """x / sqrt(mean(x^2) + eps)"""
    return x * kept((kept(kept(x.square()).mean(-1, keepdim=True)) + eps).rsqrt())


def layer_norm(x: Tensor, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(variance + eps)"""
    centred = kept(x - kept(x.mean(-1, keepdim=True)))
    return centred * kept((kept(kept(centred.square()).mean(-1, keepdim=True)) + eps).rsqrt())


# -- attention: x holds q, k and v side by side, (batch, time, 3 * size) -----------------------------------------------
def causal_attention(x: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d), with the future at minus infinity) v"""
    q, k, v = x.chunk(3, -1)
    time, size = q.shape[-2:]
    scores = kept(kept(q @ k.transpose(-2, -1)) / math.sqrt(size))
    future = Tensor.ones(time, time).triu(1) > 0
    return kept(kept(future.where(-math.inf, scores)).softmax(-1)) @ v


def tiled_attention(x: Tensor, block: int = 4) -> Tensor:
    """The same, a block of keys at a time, without ever having all scores.

    Kept for each query: the largest score so far (top), the sum of exponentials relative to it (total), and the
    weighted sum of values (out). When a block brings a larger score, what was summed before is scaled down by
    exp(top - new top).
    """
    q, k, v = x.chunk(3, -1)
    time, size = q.shape[-2:]
    row = Tensor.arange(time).reshape(time, 1)
    top: Any = None
    for start in range(0, time, block):
        stop = min(start + block, time)
        scores = q @ k[..., start:stop, :].transpose(-2, -1) / math.sqrt(size)             # (batch, time, block)
        column = Tensor.arange(start, stop).reshape(1, stop - start)
        scores = (column > row).where(-1e30, scores)       # finite: a block that is all future must not give inf - inf
        block_top = scores.max(-1, keepdim=True).detach()    # cancels out of the result, so it needs no gradient
        new_top = block_top if top is None else top.maximum(block_top)
        weights = (scores - new_top).exp()
        part, count = weights @ v[..., start:stop, :], weights.sum(-1, keepdim=True)
        if top is None:
            out, total = part, count
        else:
            shrink = (top - new_top).exp()
            out, total = out * shrink + part, total * shrink + count
        top = new_top
    return out / total


def reference(name: str, op: Callable[[Tensor], Tensor], theirs: Any, shape: tuple[int, ...]) -> None:
    """One row: the difference to PyTorch in value and gradient, and to finite differences in gradient."""
    rng = np.random.default_rng(6)
    data, weight = rng.normal(size=shape).astype(np.float32), rng.normal(size=op(Tensor.zeros(*shape)).shape)
    error = check_gradient(lambda x: (op(x) * Tensor(weight)).sum(), data.astype(np.float64))
    assert error < 1e-6, f"{name}: backward differs from finite differences by {error}"
    said = ""
    if torch is not None and theirs is not None:
        x = Tensor(data)
        value = op(x)
        (value * Tensor(weight.astype(np.float32))).sum().backward()
        t = torch.tensor(data, requires_grad=True)
        wanted = theirs(t)
        (wanted * torch.tensor(weight.astype(np.float32))).sum().backward()
        far = np.abs(value.numpy() - wanted.detach().numpy()).max()
        far_gradient = np.abs(x.grad.numpy() - t.grad.numpy()).max()
        assert far < 1e-5 and far_gradient < 2e-5, f"{name}: differs from PyTorch by {far} and {far_gradient}"
        said = "value and gradient as PyTorch's; "
    print(f"  {name:<17} {said}gradient as by finite differences")


def their_attention(x: Any) -> Any:
    q, k, v = x.chunk(3, -1)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def ops() -> list[tuple[str, Callable[[Tensor], Tensor], Any, tuple[int, ...], tuple[int, ...]]]:
    """Name, op, PyTorch's, a small shape to reference it on, a large one to time it on."""
    F = torch.nn.functional if torch is not None else None
    return [
        ("GELU", gelu, F and (lambda x: F.gelu(x, approximate="tanh")), (3, 6), (1024, 1024)),
        ("Swish", swish, F and F.silu, (3, 6), (1024, 1024)),
        ("Mish", mish, F and F.mish, (3, 6), (1024, 1024)),
        ("SwiGLU", swiglu, F and (lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]), (3, 6), (1024, 1024)),
        ("RMSNorm", rms_norm, F and (lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-5)), (3, 6), (1024, 1024)),
        ("LayerNorm", layer_norm, F and (lambda x: F.layer_norm(x, x.shape[-1:])), (3, 6), (1024, 1024)),
        ("causal attention", causal_attention, F and their_attention, (2, 6, 12), (4, 128, 192)),
        ("tiled attention", tiled_attention, F and their_attention, (2, 6, 12), (4, 128, 192)),
    ]


def correctness() -> None:
    chapter("Each op from primitives, checked")
    if torch is None:
        print("  (PyTorch is not installed: finite differences reference alone)")
    for name, op, theirs, small, _ in ops():
        reference(name, op, theirs, small)


def fusion() -> None:
    global _stepwise
    chapter("Fused, and step by step")
    tell("The same functions, once as one expression and once with every step computed on its own (realize() "
         "after each).")
    for name, op, _, _, large in ops()[:-1]:
        x = Tensor.rand(*large).realize()
        fused, fast = kernels_of(op(x)), best_ms(lambda op=op, x=x: op(x).realize(), 3)
        _stepwise = True
        steps, slow = kernels_run(lambda op=op, x=x: op(x).realize()), best_ms(lambda op=op, x=x: op(x).realize(), 3)
        _stepwise = False
        print(f"  {name:<17} {kernels(fused):<9} {fast:8.2f} ms      step by step {kernels(steps):<10} {slow:8.2f} ms")
        assert fused < steps and (fused == 1 or "attention" in name)
    tell("Activations and norms are one kernel each, however they are written. Attention is one where its scores "
         "are many: "
         "the compiler finds softmax(scores) times values, and computes it as the next chapter does by hand.")


def largest(tensor: Tensor) -> int:
    """Elements of the largest value in memory between the inputs and the result."""
    return max(math.prod(item.ast.src[0].shape) for item in tensor.schedule())


def tiling() -> None:
    chapter("Tiled attention: what it buys, what it costs")
    x = Tensor.rand(1, 1024, 3 * 16).realize()
    with Context(ONLINE_SOFTMAX=0):          # as it is written: without the pass that finds it
        whole, tiled = causal_attention(x), tiled_attention(x, block=128)
        counts = kernels_of(whole), kernels_of(tiled)
        sizes = largest(whole), largest(tiled)
    print(f"  whole   {kernels(counts[0]):<11} largest value in memory {sizes[0]:>9,} elements")
    print(f"  tiled   {kernels(counts[1]):<11} largest value in memory {sizes[1]:>9,} elements")
    assert sizes == (1024 * 1024, 1024 * 128) and counts[1] > counts[0]
    print(f"  found   {kernels(kernels_of(whole)):<11} largest value in memory {largest(whole):>9,} elements")
    difference = float(np.abs(whole.numpy() - tiled.numpy()).max())
    assert difference < 1e-5
    print("  largest difference below 1e-5")
    tell("The scores of 1024 queries and 1024 keys are never all there: only 1024 x 128 at a time, so memory "
         "grows with the length "
         "and not with its square. The price, written in tensors, is a few kernels per block. Flash attention "
         "is this formula with "
         "all blocks inside one kernel: what the compiler makes of the plain formula, unless ONLINE_SOFTMAX=0.")


# -- a gradient of one's own -------------------------------------------------------------------------------------------
class Quantize(Function):
    """x rounded to multiples of 1/4; its gradient is that of x itself."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 4).round() / 4

    def backward(self, g: Tensor) -> Tensor:
        return g


quantize = Quantize.apply


def custom_gradient() -> None:
    chapter("A gradient of one's own")
    tell("Rounding is flat: its gradient is 0 almost everywhere, and a network behind it would never learn. The "
         "usual fix is the "
         "straight-through estimator: round on the way forward, and pretend on the way back that nothing happened.")
    x = Tensor([0.1, 0.4, 0.6])
    plain = (x * 4).round() / 4
    zeros = (plain * Tensor([1.0, 2.0, 3.0])).sum().gradient(x, materialize_grads=True)[0].tolist()
    through = (quantize(x) * Tensor([1.0, 2.0, 3.0])).sum().gradient(x)[0].tolist()
    print(f"  x                      {[round(v, 3) for v in x.tolist()]}")
    print(f"  rounded to quarters    {quantize(x).tolist()}")
    print(f"  gradient of round      {zeros}\n  straight through       {through}")
    assert zeros == [0.0, 0.0, 0.0] and through == [1.0, 2.0, 3.0]
    assert kernels_of(quantize(Tensor.rand(8).realize())) == 1
    tell("The node computes nothing, so it costs nothing: quantize is still one kernel, fused with what stands "
         "around it.")


if __name__ == "__main__":
    Tensor.manual_seed(6)
    correctness()
    fusion()
    tiling()
    custom_gradient()
