"""Define reductions, scans, products of matrices and transforms. In: tensors. Out: tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from glassgrad import Tensor, dtypes
from glassgrad.onnx.operators import element_type, operator

Ints = Sequence[int]
Reduction = Callable[[Tensor, list[int]], Tensor]


def _log_sum_exp(x: Tensor, axes: list[int]) -> Tensor:
    return x.logsumexp(axes, keepdim=True) if math.prod(x.shape) else x.exp().sum(axes, keepdim=True).log()


def _extreme(x: Tensor, axes: list[int], largest: bool) -> Tensor:
    if x.dtype is dtypes.bool:
        return _extreme(x.cast(dtypes.uint8), axes, largest).cast(dtypes.bool)
    if 0 in [x.shape[axis] for axis in axes]:                       # for no elements: the least or the greatest number
        is_float = x.is_floating_point()
        limits = (-math.inf, math.inf) if is_float else (np.iinfo(x.dtype.name).min, np.iinfo(x.dtype.name).max)
        shape = [1 if i in axes else size for i, size in enumerate(x.shape)]
        return Tensor.full(shape, limits[0] if largest else limits[1], dtype=x.dtype, device=x.device)
    return x.max(tuple(axes), keepdim=True) if largest else x.min(tuple(axes), keepdim=True)


REDUCTIONS: dict[str, Reduction] = {
    "ReduceL1": lambda x, axes: x.abs().sum(axes, keepdim=True),
    "ReduceL2": lambda x, axes: x.square().sum(axes, keepdim=True).sqrt(),
    "ReduceLogSum": lambda x, axes: x.sum(axes, keepdim=True).log(),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": lambda x, axes: _extreme(x, axes, True),
    "ReduceMean": lambda x, axes: x.mean(axes, keepdim=True),
    "ReduceMin": lambda x, axes: _extreme(x, axes, False),
    "ReduceProd": lambda x, axes: x.prod(axes, keepdim=True),
    "ReduceSum": lambda x, axes: x.sum(axes, keepdim=True),
    "ReduceSumSquare": lambda x, axes: x.square().sum(axes, keepdim=True)}


def _enter_reduction(name: str, function: Reduction) -> None:
    def reduced(x: Tensor, axes: Ints | None, keepdims: int) -> Tensor:
        chosen = [int(axis) % x.ndim for axis in axes] if axes is not None and len(axes) else list(range(x.ndim))
        result = function(x, chosen).cast(x.dtype) if x.ndim else function(x.reshape(1), [0]).reshape(()).cast(x.dtype)
        kept = [size for i, size in enumerate(x.shape) if i not in chosen]
        return result if keepdims else result.reshape(kept)

    @operator(name)
    def by_attribute(x: Tensor, *, axes: Ints | None = None, keepdims: int = 1) -> Tensor:
        return reduced(x, axes, keepdims)

    @operator(name, since=13 if name == "ReduceSum" else 18, host=(1,))
    def by_input(x: Tensor, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
        if noop_with_empty_axes and (axes is None or not len(axes)):          # each element by itself
            return function(x.unsqueeze(-1), [x.ndim]).squeeze(-1).cast(x.dtype)
        return reduced(x, axes, keepdims)


for _name, _reduction in REDUCTIONS.items():
    _enter_reduction(_name, _reduction)


def _arg(x: Tensor, axis: int, keepdims: int, last: int, largest: bool) -> Tensor:
    source = x.flip(axis) if last else x
    found = (source.argmax(axis, keepdim=True) if largest else source.argmin(axis, keepdim=True)).cast(dtypes.int64)
    found = x.shape[axis] - 1 - found if last else found
    return found if keepdims else found.squeeze(axis)


@operator("ArgMax")
def arg_max(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    return _arg(x, axis, keepdims, select_last_index, True)


@operator("ArgMin")
def arg_min(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    return _arg(x, axis, keepdims, select_last_index, False)


@operator("TopK", since=10, host=(1,))
def top_k(x: Tensor, k: Any, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> Any:         # noqa: A002
    values, indices = x.topk(int(np.asarray(k).item()), axis, bool(largest))
    return values, indices.cast(dtypes.int64)


@operator("TopK")
def top_k_by_attribute(x: Tensor, *, k: int, axis: int = -1) -> Any:
    return top_k(x, k, axis=axis)


def _scan(x: Tensor, axis: int, exclusive: int, reverse: int, function: Callable[..., Tensor], neutral: int) -> Tensor:
    axis = axis % x.ndim
    x = x.flip(axis) if reverse else x
    if exclusive:
        around = [(0, 0)] * x.ndim
        around[axis] = 1, 0
        x = x.pad(around, value=neutral)[(slice(None),) * axis + (slice(0, -1),)]
    result = function(x, axis).cast(x.dtype)
    return result.flip(axis) if reverse else result


@operator("CumSum", host=(1,))
def cum_sum(x: Tensor, axis: Any, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    return _scan(x, int(np.asarray(axis).item()), exclusive, reverse, Tensor.cumsum, 0)


@operator("CumProd", host=(1,))
def cum_prod(x: Tensor, axis: Any, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    return _scan(x, int(np.asarray(axis).item()), exclusive, reverse, Tensor.cumprod, 1)


# -- softmax -----------------------------------------------------------------------------------------------------------
def _rows(x: Tensor, axis: int) -> Tensor:
    """Flatten all axes from `axis` on into one, as before opset 13."""
    axis += x.ndim * (axis < 0)
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def hardmax(x: Tensor, axis: int) -> Tensor:
    """1 at the first maximum along an axis, 0 elsewhere."""
    shape = [x.shape[axis] if i == axis % x.ndim else 1 for i in range(x.ndim)]
    places = Tensor.arange(x.shape[axis], device=x.device).reshape(shape)
    return (places == x.argmax(axis, keepdim=True)).cast(x.dtype)


def _enter_softmax(name: str, function: Callable[[Tensor, int], Tensor]) -> None:
    @operator(name, since=13)
    def along_axis(x: Tensor, *, axis: int = -1) -> Tensor:
        return function(x, axis) if x.ndim else function(x.reshape(1), 0).reshape(())

    @operator(name)
    def of_rows(x: Tensor, *, axis: int = 1) -> Tensor:
        return function(_rows(x, axis), -1).reshape(x.shape)


_enter_softmax("Softmax", Tensor.softmax)
_enter_softmax("LogSoftmax", Tensor.log_softmax)
_enter_softmax("Hardmax", hardmax)


@operator("LpNormalization")
def lp_normalization(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    norm = x.abs().sum(axis, keepdim=True) if p == 1 else x.square().sum(axis, keepdim=True).sqrt()
    return (norm == 0).where(0, x / norm).cast(x.dtype)


# -- linear algebra ----------------------------------------------------------------------------------------------------
@operator("MatMul")
def mat_mul(a: Tensor, b: Tensor) -> Tensor:
    return a.matmul(b).cast(a.dtype)


@operator("Gemm")
def gemm(a: Tensor, b: Tensor, c: Tensor | None = None, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0,
         transB: int = 0, broadcast: int = 0) -> Tensor:
    product = (a.T if transA else a).matmul(b.T if transB else b)
    product = product if alpha == 1 else product * alpha
    return (product if c is None else product + (c if beta == 1 else c * beta)).cast(a.dtype)


@operator("Einsum")
def einsum(*inputs: Tensor, equation: str) -> Tensor:
    return Tensor.einsum(equation.replace(" ", ""), *inputs)


@operator("Det")
def det(x: Tensor) -> Tensor:
    return x.det()


# -- transforms --------------------------------------------------------------------------------------------------------
def _fourier(x: Tensor, length: int, inverse: bool, onesided: bool) -> Tensor:
    """Compute the discrete Fourier transform along the axis before the last of (..., n, 1 or 2), as products with
    cosines and sines; numbers are pairs."""
    n = x.shape[-2]
    x = x[..., :length, :] if length < n else x
    count = x.shape[-2]
    rows = length // 2 + 1 if onesided and not inverse else length
    angles = 2 * np.pi / length * np.outer(np.arange(rows), np.arange(count)) * (1 if inverse else -1)
    if inverse and onesided:                   # the other half is the conjugate of this one
        full = np.arange(length)
        angles = 2 * np.pi / length * np.outer(full, np.arange(count))
        weight = np.where((np.arange(count) == 0) | (2 * np.arange(count) == length), 1.0, 2.0)
        scaled = [np.cos(angles) * weight / length, np.sin(angles) * weight / length]
        cos, sin = [Tensor(m.astype(np.float32), device=x.device).cast(x.dtype) for m in scaled]
        return (x[..., 0].matmul(cos.T) - x[..., 1].matmul(sin.T)).unsqueeze(-1)
    scale = 1 / length if inverse else 1.0
    cos, sin = [Tensor((m * scale).astype(x.dtype.name), device=x.device) for m in (np.cos(angles), np.sin(angles))]
    re = x[..., 0]
    if x.shape[-1] == 1:
        return Tensor.stack(re.matmul(cos.T), re.matmul(sin.T), dim=-1)
    im = x[..., 1]
    return Tensor.stack(re.matmul(cos.T) - im.matmul(sin.T), re.matmul(sin.T) + im.matmul(cos.T), dim=-1)


@operator("DFT", since=20, host=(1, 2))
def dft(x: Tensor, length: Any = None, axis: Any = None, *, inverse: int = 0, onesided: int = 0) -> Tensor:
    along = (-2 if axis is None else int(np.asarray(axis).item())) % x.ndim
    moved = x.movedim(along, -2)
    size = moved.shape[-2] if length is None else int(np.asarray(length).item())
    if length is None and inverse and onesided:
        size = 2 * (moved.shape[-2] - 1)
    return _fourier(moved, size, bool(inverse), bool(onesided)).movedim(-2, along)


@operator("DFT", since=17, host=(1,))
def dft_by_attribute(x: Tensor, length: Any = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0) -> Tensor:
    return dft(x, length, axis, inverse=inverse, onesided=onesided)


@operator("STFT", host=(1, 3))
def stft(signal: Tensor, step: Any, window: Tensor | None = None, length: Any = None, *, onesided: int = 1) -> Tensor:
    size = int(np.asarray(length).item()) if length is not None else window.shape[0] if window is not None else 0
    hop = int(np.asarray(step).item())
    signal = signal.unsqueeze(-1) if signal.ndim == 2 else signal
    starts = range(0, signal.shape[1] - size + 1, hop)
    frames = Tensor.stack(*[signal[:, start:start + size] for start in starts], dim=1)   # (batch, frames, size, 1 or 2)
    frames = frames if window is None else frames * window.reshape(-1, 1)
    return _fourier(frames, size, False, bool(onesided))


@operator("MelWeightMatrix", host=(0, 1, 2, 3, 4))
def mel_weight_matrix(bins: Any, length: Any, rate: Any, lower: Any, upper: Any, *, output_datatype: int = 1) -> Tensor:
    """Triangles over the bins of a Fourier transform, evenly spaced on the mel scale."""
    count, spectrum = int(np.asarray(bins).item()), int(np.asarray(length).item()) // 2 + 1
    low, high = (2595 * np.log10(1 + float(np.asarray(edge).item()) / 700) for edge in (lower, upper))
    step = (high - low) / (count + 2)
    hertz = 700 * (10 ** ((np.arange(count + 2) * step + low) / 2595) - 1)
    edges = ((int(np.asarray(length).item()) + 1) * hertz // float(np.asarray(rate).item())).astype(int)
    matrix = np.zeros((spectrum, count))
    for i, (left, middle, right) in enumerate(zip(edges, edges[1:], edges[2:])):
        rising = np.arange(left, middle + 1)
        matrix[rising, i] = 1 if middle == left else (rising - left) / (middle - left)
        if right != middle:
            falling = np.arange(middle, right)
            matrix[falling, i] = (right - falling) / (right - middle)
    dtype = element_type(output_datatype)
    return Tensor(matrix.astype(np.float32)).cast(dtype)
