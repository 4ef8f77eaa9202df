"""List ops of many kinds as expressions of PyTorch, which both libraries run. In: nothing. Out: `CASES`.

Sizes are those of ordinary programs; none was tuned for. On a GPU the first axis is four times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

__all__ = ["CASES", "OpCase"]

Shape = tuple[int, ...]


class OpCase(NamedTuple):
    """An expression of a library (PyTorch's names) and tensors; `trained`: its gradients by all float inputs."""
    name: str
    inputs: list[Input]
    compute: Callable[..., Any]
    trained: bool = False


class Input(NamedTuple):
    """A random input: normal floats, floats above 0 ("positive"), integers below a bound, or bytes."""
    shape: Shape
    kind: str = "normal"
    below: int = 0
    grows: bool = True        # whether it is longer on a GPU

    def array(self, rng: np.random.Generator, times: int) -> np.ndarray:
        shape = (self.shape[0] * times, *self.shape[1:]) if self.grows else self.shape
        if self.kind == "index":
            return rng.integers(0, self.below, shape)
        if self.kind == "bytes":
            return rng.integers(0, 255, shape).astype(np.uint8)
        found = rng.standard_normal(shape, dtype=np.float32)
        return np.abs(found) + np.float32(0.1) if self.kind == "positive" else found


def x(*shape: int) -> Input: return Input(shape)
def w(*shape: int) -> Input: return Input(shape, grows=False)
def above_zero(*shape: int) -> Input: return Input(shape, "positive")
def index(below: int, *shape: int) -> Input: return Input(shape, "index", below)
def index_of(below: int, *shape: int) -> Input: return Input(shape, "index", below, grows=False)
def image(*shape: int) -> Input: return Input(shape, "bytes")


def rows(names: Iterable[tuple[str, Callable[..., Any]]], *inputs: Input, trained: bool = False) -> list[OpCase]:
    """Cases with the same inputs."""
    return [OpCase(name, list(inputs), compute, trained) for name, compute in names]


MATRIX = x(512, 1024)

CASES: list[OpCase] = [
    *rows([
        ("cumsum", lambda t, x: x.cumsum(1)),
        ("cumsum of columns", lambda t, x: x.cumsum(0)),
        ("cumprod", lambda t, x: (x * 0.01 + 1).cumprod(1)),
        ("cummax", lambda t, x: x.cummax(1)[0]),
        ("logcumsumexp", lambda t, x: x.logcumsumexp(1)),
        ("sort", lambda t, x: x.sort(1)[0]),
        ("sort of columns", lambda t, x: x.sort(0)[0]),
        ("argsort", lambda t, x: x.argsort(dim=1, stable=True)),
        ("topk 10", lambda t, x: x.topk(10, 1)[0]),
        ("median", lambda t, x: x.median(1)[0]),
        ("kthvalue", lambda t, x: x.kthvalue(100, 1)[0]),
        ("quantile", lambda t, x: x.quantile(0.3, dim=1)),
        ("flip", lambda t, x: x.flip(1) + 0),
        ("roll", lambda t, x: x.roll(100, 1) + 1),
        ("strided slice", lambda t, x: x[::2, 1::3] * 2),
        ("argmax", lambda t, x: x.argmax(1)),
        ("argmax of columns", lambda t, x: x.argmax(0)),
        ("max of columns", lambda t, x: x.amax(0)),
        ("variance of columns", lambda t, x: x.var(0)),
        ("product", lambda t, x: x.prod(1)),
        ("any", lambda t, x: (x > 3).any(1)),
        ("logsumexp", lambda t, x: x.logsumexp(1)),
        ("log_softmax of columns", lambda t, x: x.log_softmax(0)),
        ("difference", lambda t, x: x.diff(dim=1)),
        ("where", lambda t, x: t.where(x > 0, x, 0.1 * x)),
        ("erf", lambda t, x: x.clamp(-1, 1).erf()),
        ("sin and cos", lambda t, x: x.sin() + x.cos()),
        ("tan of large", lambda t, x: (x * 1000).tan()),
        ("silu", lambda t, x: t.nn.functional.silu(x)),
        ("mish", lambda t, x: t.nn.functional.mish(x)),
        ("softplus", lambda t, x: t.nn.functional.softplus(x)),
        ("elu", lambda t, x: t.nn.functional.elu(x)),
        ("glu", lambda t, x: t.nn.functional.glu(x)),
        ("count", lambda t, x: (x > 0).sum()),
        ("bool cumsum", lambda t, x: (x > 0).cumsum(1)),
        ("bfloat16 softmax", lambda t, x: x.bfloat16().softmax(1)),
        ("bfloat16 layer norm", lambda t, x: t.nn.functional.layer_norm(x.bfloat16(), (1024,))),
        ("float16 sum", lambda t, x: x.half().sum(1)),
        ("float64 softmax", lambda t, x: x.double().softmax(1)),
    ], MATRIX),
    *rows([
        ("power 2.5", lambda t, x: x ** 2.5),
        ("log1p, atan", lambda t, x: x.log1p().atan()),
        ("lgamma", lambda t, x: x.lgamma()),
        ("norm 3", lambda t, x: (x ** 3).sum(1) ** (1 / 3)),
    ], above_zero(512, 1024)),
    OpCase("power of tensors", [above_zero(512, 1024), MATRIX], lambda t, x, y: x ** y),
    OpCase("int64 sum", [index(100, 512, 1024)], lambda t, i: i.sum(1)),
    OpCase("integer // and %", [index(100_000, 512, 1024)], lambda t, i: (i % 77) + (i // 13)),
    # -- shapes ------------------------------------------------------------------------------------------------------
    OpCase("cat of 5", [x(512, 200)] * 5, lambda t, *a: t.cat(a, 1)),
    OpCase("stack of 8", [x(512, 200)] * 8, lambda t, *a: t.stack(a, 1)),
    OpCase("transposed heads", [x(16, 12, 128, 64)], lambda t, x: x.permute(0, 2, 1, 3).contiguous()),
    OpCase("odd permutation", [x(7, 13, 57, 33)], lambda t, x: x.permute(3, 1, 0, 2).contiguous()),
    OpCase("patches", [x(8, 3, 224, 224)],
           lambda t, x: x.reshape(-1, 3, 14, 16, 14, 16).permute(0, 2, 4, 1, 3, 5).contiguous()),
    OpCase("windows of a transformer", [x(8, 56, 56, 96)],
           lambda t, x: x.reshape(-1, 8, 7, 8, 7, 96).permute(0, 1, 3, 2, 4, 5).contiguous()),
    OpCase("pixel shuffle", [x(4, 64, 64, 64)], lambda t, x: t.nn.functional.pixel_shuffle(x, 4) + 0),
    OpCase("unfold", [x(4, 16, 64, 64)],
           lambda t, x: t.nn.functional.pad(x, (1, 1, 1, 1)).unfold(2, 3, 1).unfold(3, 3, 1) * 2),
    *rows([(f"pad by {mode}", lambda t, x, mode=mode: t.nn.functional.pad(x, (3, 3, 3, 3), mode=mode) + 1)
           for mode in ("constant", "reflect", "replicate", "circular")], x(4, 32, 100, 100)),
    OpCase("tril", [x(16, 512, 512)], lambda t, x: x.tril()),
    OpCase("outer product", [w(4096), w(4096)], lambda t, a, b: a.unsqueeze(1) * b),
    OpCase("kron", [w(64, 64), w(32, 32)], lambda t, a, b: t.kron(a, b)),
    OpCase("broadcast in the middle", [x(16, 1, 100, 64), w(1, 12, 1, 64)], lambda t, a, b: a + b),
    OpCase("bytes to normalized images", [image(16, 224, 224, 3), w(3), w(3)],
           lambda t, x, m, s: ((x.float() / 255 - m) * s).permute(0, 3, 1, 2).contiguous()),
    # -- by index ----------------------------------------------------------------------------------------------------
    OpCase("gather", [MATRIX, index(1024, 512, 300)], lambda t, x, i: x.gather(1, i)),
    OpCase("rows by index", [w(50_000, 64), index(50_000, 20_000)], lambda t, x, i: x[i]),
    OpCase("columns by index", [MATRIX, index_of(1024, 333)], lambda t, x, i: x[:, i]),
    OpCase("scatter_add", [w(1000, 64), index(1000, 20_000, 64), x(20_000, 64)],
           lambda t, x, i, v: x.scatter_add(0, i, v)),
    OpCase("index_add", [w(1000, 64), index(1000, 50_000), x(50_000, 64)], lambda t, x, i, v: x.index_add(0, i, v)),
    OpCase("numbers added by index", [w(100_000), index(100_000, 500_000), x(500_000)],
           lambda t, x, i, v: x.scatter_add(0, i, v)),
    OpCase("bag of embeddings", [w(30_000, 128), index(30_000, 2048, 32)], lambda t, x, i: x[i].sum(1)),
    OpCase("one_hot", [index(1000, 4096)], lambda t, i: t.nn.functional.one_hot(i, 1000)),
    # -- sums --------------------------------------------------------------------------------------------------------
    OpCase("sum of channels", [x(16, 64, 28, 28)], lambda t, x: x.sum((0, 2, 3))),
    OpCase("sum of two axes", [x(16, 64, 28, 30)], lambda t, x: x.sum((1, 3))),
    OpCase("softmax of a middle axis", [x(16, 200, 300)], lambda t, x: x.softmax(1)),
    OpCase("softmax with a mask", [x(16, 300, 300)],
           lambda t, x: x.masked_fill(t.ones(300, 300).tril() == 0, -float("inf")).softmax(-1)),
    OpCase("softmax of channels", [x(4, 21, 150, 200)], lambda t, x: x.softmax(1)),
    OpCase("argmax of channels", [x(4, 21, 150, 200)], lambda t, x: x.argmax(1)),
    OpCase("norm of channels", [x(8, 96, 56, 56)],
           lambda t, x: (x - x.mean(1, True)) / (x.var(1, keepdim=True) + 1).sqrt()),
    OpCase("sums of 1000 columns", [x(4000, 1000)], lambda t, x: x.sum(0)),
    OpCase("standardized columns", [x(20_000, 300)], lambda t, x: (x - x.mean(0)) / x.std(0)),
    OpCase("vector times 1009 columns", [w(4099), w(4099, 1009)], lambda t, v, a: v @ a),
    OpCase("standard deviation of all", [x(1000, 1000)], lambda t, x: x.std()),
    OpCase("few long sums", [w(4, 1_000_000)], lambda t, x: x.sum(1)),
    OpCase("few long running sums", [w(8, 100_000)], lambda t, x: x.cumsum(1)),
    OpCase("few long sorts", [w(4, 100_000)], lambda t, x: x.sort(1)[0]),
    # -- products ----------------------------------------------------------------------------------------------------
    OpCase("vector times matrix", [w(2000), w(2000, 1500)], lambda t, v, a: v @ a),
    OpCase("x.T @ x", [w(1000, 300)], lambda t, x: x.T @ x),
    OpCase("float64 product", [w(512, 512), w(512, 512)], lambda t, a, b: a.double() @ b.double()),
    OpCase("bfloat16 product", [w(512, 512), w(512, 512)], lambda t, a, b: a.bfloat16() @ b.bfloat16()),
    OpCase("many 4 x 4", [x(10_000, 4, 4), x(10_000, 4, 4)], lambda t, a, b: a @ b),
    OpCase("einsum bij,bkj->bik", [x(32, 100, 64), x(32, 90, 64)], lambda t, a, b: t.einsum("bij,bkj->bik", a, b)),
    OpCase("einsum ijk,kl->lji", [w(100, 60, 70), w(70, 55)], lambda t, a, b: t.einsum("ijk,kl->lji", a, b)),
    OpCase("einsum ijk,kjl->il", [w(20, 30, 40), w(40, 30, 50)], lambda t, a, b: t.einsum("ijk,kjl->il", a, b)),
    OpCase("distances", [w(2000, 64), w(1500, 64)], lambda t, a, b: t.cdist(a, b)),
    OpCase("distances in sums", [w(700, 64), w(600, 64)], lambda t, a, b: t.cdist(a, b, p=1.0)),
    *rows([("cholesky", lambda t, a: t.linalg.cholesky(a @ a.transpose(-1, -2) + 64 * t.eye(64, device=a.device))),
           ("inverse", lambda t, a: t.linalg.inv(a + 64 * t.eye(64, device=a.device))),
           ("logarithm of the determinant", lambda t, a: t.linalg.slogdet(a)[1]),
           ("qr", lambda t, a: t.linalg.qr(a)[1].abs()),
           ("singular values", lambda t, a: t.linalg.svdvals(a)),
           ("eigenvalues", lambda t, a: t.linalg.eigvalsh(a + a.transpose(-1, -2)))], w(16, 64, 64)),
    # -- convolutions and pools --------------------------------------------------------------------------------------
    OpCase("1 axis, 9 taps", [x(32, 64, 1000), w(64, 64, 9)], lambda t, x, k: t.nn.functional.conv1d(x, k, padding=4)),
    OpCase("3 axes", [x(2, 16, 20, 40, 40), w(32, 16, 3, 3, 3)],
           lambda t, x, k: t.nn.functional.conv3d(x, k, padding=1)),
    OpCase("4x4 of stride 2", [x(8, 32, 64, 64), w(64, 32, 4, 4)],
           lambda t, x, k: t.nn.functional.conv2d(x, k, stride=2, padding=1)),
    OpCase("1x7", [x(8, 64, 35, 35), w(64, 64, 1, 7)], lambda t, x, k: t.nn.functional.conv2d(x, k, padding=(0, 3))),
    OpCase("8 groups", [x(8, 64, 56, 56), w(64, 8, 3, 3)],
           lambda t, x, k: t.nn.functional.conv2d(x, k, padding=1, groups=8)),
    OpCase("32 groups", [x(8, 128, 28, 28), w(128, 4, 3, 3)],
           lambda t, x, k: t.nn.functional.conv2d(x, k, padding=1, groups=32)),
    OpCase("depthwise 5x5 of stride 2", [x(8, 96, 56, 56), w(96, 1, 5, 5)],
           lambda t, x, k: t.nn.functional.conv2d(x, k, padding=2, stride=2, groups=96)),
    OpCase("transposed 4x4", [x(4, 32, 28, 28), w(32, 32, 4, 4)],
           lambda t, x, k: t.nn.functional.conv_transpose2d(x, k, stride=2, padding=1)),
    OpCase("one image of 512 channels", [w(1, 512, 14, 14), w(512, 512, 3, 3)],
           lambda t, x, k: t.nn.functional.conv2d(x, k, padding=1)),
    OpCase("larger image, then 3x3", [x(4, 32, 32, 32), w(16, 32, 3, 3)],
           lambda t, x, k: t.nn.functional.conv2d(t.nn.functional.interpolate(x, (64, 64)), k, padding=1)),
    OpCase("average pool", [x(4, 64, 57, 57)], lambda t, x: t.nn.functional.avg_pool2d(x, 5, 2)),
    OpCase("max pool", [x(8, 64, 57, 57)], lambda t, x: t.nn.functional.max_pool2d(x, 3, 2, 1)),
    *rows([(f"resized, {mode}", lambda t, x, mode=mode: t.nn.functional.interpolate(x, (150, 150), mode=mode))
           for mode in ("nearest", "bilinear", "bicubic")], x(4, 32, 64, 64)),
    # -- layers ------------------------------------------------------------------------------------------------------
    OpCase("group norm", [x(8, 64, 56, 56)], lambda t, x: t.nn.functional.group_norm(x, 8)),
    OpCase("batch norm", [x(16, 64, 28, 28), w(64), w(64)],
           lambda t, x, a, b: t.nn.functional.batch_norm(x, None, None, a, b, True)),
    OpCase("cross entropy", [x(2048, 1000), index(1000, 2048)], lambda t, x, y: t.nn.functional.cross_entropy(x, y)),
    OpCase("attention with a mask", [x(2, 8, 200, 64)] * 3 + [w(200, 200)],
           lambda t, q, k, v, m: t.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=m)),
    OpCase("attention of 40 numbers", [x(2, 8, 300, 40)] * 3,
           lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(q, k, v)),
    OpCase("attention of one query", [w(4, 12, 1, 64), w(4, 12, 777, 64), w(4, 12, 777, 64)],
           lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(q, k, v)),
    # -- gradients ---------------------------------------------------------------------------------------------------
    *rows([("sort", lambda t, x: x.sort(1)[0].square()), ("softmax", lambda t, x: x.softmax(1).square()),
           ("logsumexp", lambda t, x: x.logsumexp(1)), ("maximum", lambda t, x: x.amax(1)),
           ("cumsum", lambda t, x: x.cumsum(1).square()), ("standard deviation", lambda t, x: x.std(1)),
           ("product", lambda t, x: (x * 0.01 + 1).prod(1)),
           ("layer norm", lambda t, x: t.nn.functional.layer_norm(x, (1024,)).exp())], MATRIX, trained=True),
    OpCase("gather", [MATRIX, index(1024, 512, 64)], lambda t, x, i: x.gather(1, i).square(), True),
    OpCase("embedding", [w(5000, 128), index(5000, 64, 50)], lambda t, x, i: x[i].mean(1).square(), True),
    OpCase("distances", [w(300, 64), w(200, 64)],
           lambda t, a, b: ((a.unsqueeze(1) - b) ** 2).sum(-1).add(1).sqrt(), True),
    OpCase("8 groups", [x(8, 64, 28, 28), w(64, 8, 3, 3)],
           lambda t, x, k: t.nn.functional.conv2d(x, k, padding=1, groups=8).square(), True),
    OpCase("3x3 of stride 2", [x(8, 16, 56, 56), w(32, 16, 3, 3)],
           lambda t, x, k: t.nn.functional.conv2d(x, k, padding=1, stride=2).square(), True),
    OpCase("sound of stride 160", [x(2, 1, 16_000), w(64, 1, 400)],
           lambda t, x, k: t.nn.functional.conv1d(x, k, stride=160).square(), True),
    OpCase("resized", [x(4, 32, 32, 32)], lambda t, x: t.nn.functional.interpolate(x, (64, 64), mode="bilinear"), True),
    OpCase("attention", [x(2, 8, 200, 64)] * 3,
           lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).square(), True),
    OpCase("attention step by step", [x(2, 8, 200, 64)] * 3,
           lambda t, q, k, v: ((q @ k.transpose(-2, -1) * 0.125)
                               .masked_fill(t.ones(200, 200).tril() == 0, -float("inf")).softmax(-1) @ v).square(),
           True),
    OpCase("two layers", [w(256, 512), w(512, 1024), w(1024, 512)],
           lambda t, x, a, b: (t.nn.functional.gelu(x @ a) @ b).square(), True),
]
