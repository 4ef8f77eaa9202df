"""Check single ops: elementwise ops, reductions, contractions, views. Out: cases, each against NumPy in float64.

Shapes include 0, 1 and primes; values include infinities, NaN, signed zeros and the limits of integers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from glassgrad.conformance.case import Case, same, seeded, value
from glassgrad.tensor.tensor import Tensor

SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-30, -1e30, np.inf, -np.inf, np.nan], np.float32)
LIMITS = np.array([0, 1, -1, 7, -7, 2**31 - 1, -2**31, 123_456_789, -987_654_321], np.int32)


# -- elementwise ---------------------------------------------------------------------------------------------
def elementwise() -> Iterator[Case]:
    """Elementwise ops."""
    x, y = seeded(7, 13), seeded(7, 13, seed=1)
    positive = seeded(7, 13, low=0.1, high=9.0)
    yield same("add", lambda a, b: a + b, x, y)
    yield same("subtract", lambda a, b: a - b, x, y)
    yield same("multiply", lambda a, b: a * b, x, y)
    yield same("divide", lambda a, b: a / b, x, positive)
    yield value("negate, and a number as operand", lambda a: 3.5 - (-a) * 2, lambda a: 3.5 + a * 2, x)
    yield value("maximum and minimum", lambda a, b: a.maximum(b) - a.minimum(b), lambda a, b: abs(a - b), x, y)
    yield value("compare and choose", lambda a, b: (a < b).where(a, b * 2), lambda a, b: np.where(a < b, a, b * 2),
                x, y)
    yield same("a condition", lambda a, b: (a < b) | (a == 1), x, y)
    for name in ("exp", "sin", "cos", "tanh"):
        yield value(name, lambda a, f=name: getattr(a, f)(), getattr(np, name), x)
    for name in ("log", "sqrt", "log2", "exp2"):
        yield value(name, lambda a, f=name: getattr(a, f)(), getattr(np, name), positive)
    yield value("sine of large numbers", lambda a: a.sin(), np.sin, seeded(101, low=-1e4, high=1e4), factor=5)
    yield same("power", lambda a, b: a ** b, positive, y, factor=5)
    yield value("sigmoid", lambda a: a.sigmoid(), lambda a: 1 / (1 + np.exp(-a)), x)
    yield value("relu", lambda a: a.relu(), lambda a: np.maximum(a, 0), x)
    yield value("floor and round", lambda a: a.floor() + a.round(), lambda a: np.floor(a) + np.round(a), x * 5)
    yield same("infinities and NaN", lambda a: a * 2 + 1, SPECIAL)
    yield value("NaN in a maximum", lambda a: a.maximum(0.25), lambda a: np.maximum(a, 0.25), SPECIAL)
    yield same("comparisons of NaN", lambda a: (a == a) & ~(a < 0), SPECIAL)
    yield same("the sign of zero", lambda a: 1 / a, np.array([0.0, -0.0], np.float32))
    yield value("integers wrap", lambda a: a * 3 + a, lambda a: a * np.int32(3) + a, LIMITS)
    yield same("integer quotient rounds down", lambda a: a // 5, LIMITS)
    yield same("integer remainder", lambda a: a % 5, LIMITS)
    yield same("bits", lambda a: ((a & 12) | (a ^ 5)) + (a << 2) - (a >> 3), LIMITS)
    yield value("float to integer and back", lambda a: a.int().float(), np.trunc, x * 100)
    yield same("a row and a column", lambda a, b: a + b, seeded(1, 13), seeded(7, 1))
    for size in (0, 1, 2, 31, 257, 65_537):
        yield same(f"{size:,} elements", lambda a: a * 2 + 1, seeded(size))
    yield value("one kernel of many operations", lambda a, b: ((a * b + 1).tanh() - b.exp() * a).sin().relu() + a / 3,
                lambda a, b: np.maximum(np.sin(np.tanh(a * b + 1) - np.exp(b) * a), 0) + a / 3, x, y, factor=5)


# -- reductions ----------------------------------------------------------------------------------------------
def reductions() -> Iterator[Case]:
    """Many elements to one."""
    x = seeded(5, 7, 11)
    for axis in (0, 1, 2, (0, 2), None):
        where = "all axes" if axis is None else f"axis {axis}"
        yield same(f"sum over {where}", lambda a, n=axis: a.sum(n), x, factor=5)
        yield same(f"max over {where}", lambda a, n=axis: a.max(n), x)
    yield same("min", lambda a: a.min(1), x)
    yield same("product", lambda a: a.prod(2), x, factor=5)
    yield value("mean and variance", lambda a: a.mean(1) + a.var(1), lambda a: a.mean(1) + a.var(1, ddof=1), x,
                factor=5)
    for size in (0, 1, 2, 31, 1000, 65_537):
        yield same(f"sum of {size:,}", lambda a: a.sum(), seeded(size), factor=50)
    yield same("sum of a few long rows", lambda a: a.sum(1), seeded(3, 30_000), factor=50)
    yield same("sum of many short rows", lambda a: a.sum(1), seeded(3000, 5), factor=5)
    yield same("sum of columns", lambda a: a.sum(0), seeded(300, 70), factor=20)
    yield value("sum of integers wraps", lambda a: a.sum(dtype="int32"), lambda a: a.sum(dtype=np.int32), LIMITS)
    yield same("position of the maximum", lambda a: a.argmax(1), x)
    yield same("of equal maxima the first", lambda a: a.argmax(), np.array([1, 3, 2, 3], np.float32))
    yield same("any and all", lambda a: (a > 1).any(1) == (a > -1.9).all(1), x)
    yield same("NaN in a maximum of a row", lambda a: a.max(1), np.array([[1, np.nan, 2], [1, 2, np.inf]], np.float32))
    yield same("a maximum of infinities", lambda a: a.max(1), np.full((2, 3), -np.inf, np.float32))
    yield value("softmax", lambda a: a.softmax(1), softmax, seeded(5, 700), factor=5)
    yield value("softmax of large numbers", lambda a: a.softmax(1), softmax, seeded(5, 10) * 1000, factor=5)
    yield value("layer norm", lambda a: a.layernorm(), lambda a: (a - a.mean(-1, keepdims=True)) /
                np.sqrt(a.var(-1, keepdims=True) + 1e-5), seeded(4, 333), factor=10)
    yield same("running sum", lambda a: a.cumsum(1), seeded(3, 300), factor=20)
    yield value("sort", lambda a: a.sort(1)[0], lambda a: np.sort(a, 1), seeded(3, 37))
    yield value("a sum of a sum", lambda a: (a - a.mean(0)).square().sum(1),
                lambda a: np.square(a - a.mean(0)).sum(1), seeded(33, 21), factor=10)


def softmax(a: np.ndarray) -> np.ndarray:
    scores = np.exp(a - a.max(1, keepdims=True))
    return np.asarray(scores / scores.sum(1, keepdims=True))


# -- contractions --------------------------------------------------------------------------------------------
def contractions() -> Iterator[Case]:
    """Sums of products."""
    for rows, inner, columns in ((1, 1, 1), (2, 3, 4), (1, 400, 30), (33, 1, 17), (17, 33, 9), (64, 64, 64),
                                 (130, 70, 97)):
        yield same(f"{rows} x {inner} times {inner} x {columns}", lambda a, b: a @ b, seeded(rows, inner),
                   seeded(inner, columns), factor=20)
    yield same("over an empty axis", lambda a, b: a @ b, seeded(3, 0), seeded(0, 4))
    yield same("over a long axis", lambda a, b: a @ b, seeded(20, 3000), seeded(3000, 33), factor=200)
    yield same("of vectors", lambda a, b: a.dot(b), seeded(1000), seeded(1000, seed=1), factor=100)
    yield same("transposed factors", lambda a, b: a.T @ b.T, seeded(70, 40), seeded(37, 70), factor=20)
    yield same("one of many matrices", lambda a, b: a @ b, seeded(3, 20, 40), seeded(3, 40, 31), factor=20)
    yield value("with a sum and relu behind", lambda a, b, c: (a @ b + c).relu(),
                lambda a, b, c: np.maximum(a @ b + c, 0), seeded(31, 40), seeded(40, 23), seeded(23), factor=20)
    yield value("of computed factors", lambda a, b: a.exp() @ (b * 2 + 1), lambda a, b: np.exp(a) @ (b * 2 + 1),
                seeded(19, 24), seeded(24, 18), factor=50)
    yield value("einsum", lambda a, b: Tensor.einsum("ijk,kl->jil", a, b), lambda a, b: np.einsum("ijk,kl->jil", a, b),
                seeded(3, 5, 7), seeded(7, 4), factor=10)
    yield value("outer product", lambda a, b: a.reshape(-1, 1) * b, np.outer, seeded(31), seeded(17))
    for note, options in {"": {}, ", padded": {"padding": 1}, ", stride 2": {"stride": 2, "padding": 1},
                          ", dilated": {"dilation": 2}, ", in groups": {"groups": 2}}.items():
        weights = seeded(6, 4 if "groups" in options else 8, 3, 3)
        yield value(f"convolution{note}", lambda a, b, o=options: a.conv2d(b, **o),
                    lambda a, b, o=options: _convolution(a, b, **o), seeded(2, 8, 9, 9), weights, factor=30)
    yield value("attention", lambda q, k, v: (q @ k.transpose(1, 2)).softmax(-1) @ v, _attention, seeded(2, 9, 8),
                seeded(2, 9, 8, seed=1), seeded(2, 9, 8, seed=2), factor=20)


def _convolution(x: np.ndarray, w: np.ndarray, padding: int = 0, stride: int = 1, dilation: int = 1,
                 groups: int = 1) -> np.ndarray:
    """Compute a convolution by its definition: one matrix product for each element of the filter."""
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    height, width = (n - dilation * (f - 1) for n, f in zip(x.shape[2:], w.shape[2:]))
    per_group, filters = x.shape[1] // groups, w.shape[0] // groups
    out = np.zeros((x.shape[0], w.shape[0], -(-height // stride), -(-width // stride)))
    for g in range(groups):
        inputs, outputs = slice(g * per_group, (g + 1) * per_group), slice(g * filters, (g + 1) * filters)
        for i, j in np.ndindex(*w.shape[2:]):
            seen = x[:, inputs, i * dilation:i * dilation + height:stride, j * dilation:j * dilation + width:stride]
            out[:, outputs] += np.einsum("nchw,fc->nfhw", seen, w[outputs, :, i, j])
    return out


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.stack([softmax(a @ b.T) @ c for a, b, c in zip(q, k, v)])


# -- views ---------------------------------------------------------------------------------------------------
def views() -> Iterator[Case]:
    """Views: elements under other indices, read and written at the right addresses."""
    x, y = seeded(4, 6, 5), seeded(4, 6, 5, seed=1)
    yield same("reshape", lambda a: a.reshape(8, 15) + 1, x)
    yield value("permute", lambda a: a.permute(2, 0, 1) * 2, lambda a: a.transpose(2, 0, 1) * 2, x)
    yield value("expand", lambda a: a[:, :1].expand(4, 6, 5) + 1, lambda a: np.broadcast_to(a[:, :1], (4, 6, 5)) + 1, x)
    yield same("slice", lambda a: a[1:3, ::2, 2:] + 1, x)
    yield same("a slice, read without a kernel", lambda a: a[2:], x)
    yield value("flip", lambda a: a.flip(1) + 1, lambda a: np.flip(a, 1) + 1, x)
    yield same("steps backwards", lambda a: a[:, ::-2] + 1, x)
    yield value("pad", lambda a: a.pad(((1, 2), (0, 1), (3, 0))), lambda a: np.pad(a, ((1, 2), (0, 1), (3, 0))), x)
    yield value("a chain of views", lambda a: a.permute(1, 0, 2)[2:].reshape(4, 20).T.flip(0)[3:] * 3,
                lambda a: np.flip(a.transpose(1, 0, 2)[2:].reshape(4, 20).T, 0)[3:] * 3, x)
    yield value("two views of one value", lambda a: a + a.flip(0) * 2, lambda a: a + np.flip(a, 0) * 2, x)
    yield value("join", lambda a, b: a.cat(b[:, :2], dim=1), lambda a, b: np.concatenate([a, b[:, :2]], 1), x, y)
    yield value("stack", lambda a, b: Tensor.stack(a, b, dim=1), lambda a, b: np.stack([a, b], 1), x, y)
    yield value("lower triangle", lambda a: a[0].tril(), lambda a: np.tril(a[0]), x)
    yield value("a view stored in order", lambda a: a.permute(2, 1, 0).contiguous(), lambda a: a.transpose(2, 1, 0), x)
    yield same("rows by number", lambda a, i: a[i], seeded(9, 5), np.array([8, 0, 3, 3], np.int32))
    yield value("gather", lambda a, i: a.gather(1, i), lambda a, i: np.take_along_axis(a, i, 1), seeded(3, 7),
                np.array([[6, 0], [1, 1], [5, 2]], np.int32))
    yield value("scatter", lambda a, i, b: a.scatter(1, i, b), _scatter, seeded(3, 7),
                np.array([[6, 0], [1, 2], [5, 2]], np.int32), seeded(3, 2))
    yield value("a part replaced", _replaced, _replaced, seeded(6, 5))
    yield value("a row replaced by another", _moved_row, _moved_row, seeded(6, 5))
    yield value("a sum over a view", lambda a: a[:, 1::2].permute(2, 0, 1).sum(1),
                lambda a: a[:, 1::2].transpose(2, 0, 1).sum(1), x, factor=5)


def _scatter(a: np.ndarray, i: np.ndarray, b: np.ndarray) -> np.ndarray:
    out = a.copy()
    np.put_along_axis(out, i, b, 1)
    return out


def _replaced(a: Tensor) -> Tensor:
    a[1:4, ::2] = 0.5
    return a * 2


def _moved_row(a: Tensor) -> Tensor:
    a[0] = a[5] + 1
    return a
