"""Provide PyTorch's functions that differ from the tensor's methods: joining, where, max with indices, predicates,
files.

In: tensors. Out: tensors, pairs of them, or Python's bools.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from glassgrad.compat.torch.creation import as_tensor
from glassgrad.compat.torch.file_writer import torch_file
from glassgrad.compat.torch.nn import ADAPTER
from glassgrad.compat.torch.torch_tensor import TorchTensor
from glassgrad.compiler.graph.dtype import DType, dtypes, largest, promote
from glassgrad.nn import state
from glassgrad.nn.state.formats.safetensors import replacing
from glassgrad.tensor.autograd.no_grad import enable_grad, no_grad
from glassgrad.tensor.broadcast import broadcast_shape
from glassgrad.tensor.jit_access import wants_gradient
from glassgrad.tensor.tensor import Tensor

__all__ = ["allclose", "broadcast_shapes", "cat", "compile", "concat", "concatenate", "einsum", "enable_grad", "finfo",
           "iinfo", "inference_mode", "is_grad_enabled", "is_tensor", "load", "max", "min", "no_grad",
           "promote_types", "qr", "result_type", "save", "set_grad_enabled", "stack", "std", "std_mean", "svd", "var",
           "var_mean", "where"]


# -- joining -----------------------------------------------------------------------------------------------------------
def cat(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None, out: Tensor | None = None) -> Tensor:
    """Concatenate tensors along an axis.

    >>> cat([Tensor([1]), Tensor([2])]).tolist()
    [1, 2]
    """
    several = [t for t in tensors if t.shape != (0,)] or list(tensors)     # PyTorch drops tensors of shape (0,)
    joined: Any = Tensor.cat(several, dim=dim if axis is None else axis)  # type: ignore[type-var]
    return joined if out is None else out.assign(joined)  # type: ignore[no-any-return]


concat = concatenate = cat


def stack(tensors: Sequence[Tensor], dim: int = 0, *, out: Tensor | None = None) -> Tensor:
    """Stack tensors of one shape along a new axis."""
    joined: Any = Tensor.stack(list(tensors), dim=dim)  # type: ignore[type-var]
    return joined if out is None else out.assign(joined)  # type: ignore[no-any-return]


def einsum(equation: str, *operands: Any) -> Tensor:
    """Sums of products in Einstein's notation."""
    return Tensor.einsum(equation, *operands)


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The shape that these broadcast to.

    >>> broadcast_shapes((2, 1), (3,))
    (2, 3)
    """
    return functools.reduce(broadcast_shape, [(s,) if isinstance(s, int) else tuple(s) for s in shapes], ())


# -- choosing ----------------------------------------------------------------------------------------------------------
def where(condition: Tensor, input: Any = None, other: Any = None) -> Any:
    """`input` where the condition is true, else `other`; with a condition alone, the indices where it is true.

    >>> where(Tensor([True, False]), 1.0, Tensor([5.0, 6.0])).tolist(), where(Tensor([False, True]))[0].tolist()
    ([1.0, 6.0], [1])
    """
    if input is None or other is None:
        return condition.nonzero(as_tuple=True)
    return Tensor.where(condition.cast(dtypes.bool), input, other)


def max(input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
    """The largest value; along an axis also its index; with another tensor, the larger of each pair.

    >>> x = Tensor([[1, 5], [7, 2]])
    >>> max(x).item(), [t.tolist() for t in max(x, 1)], max(x, Tensor(4)).tolist()
    (7, [[5, 7], [1, 0]], [[4, 5], [7, 4]])
    """
    if isinstance(dim, Tensor) or other is not None:
        return input.maximum(dim if other is None else other)
    return input.max(keepdim=keepdim, dim=dim)


def min(input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
    """The smallest value; along an axis also its index; with another tensor, the smaller of each pair."""
    if isinstance(dim, Tensor) or other is not None:
        return input.minimum(dim if other is None else other)
    return input.min(keepdim=keepdim, dim=dim)


def _std_or_var(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return std or var with PyTorch's order of parameters: `unbiased`, not keepdim, follows the axis."""
    def function(input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *,
                 correction: float | None = None) -> Any:
        if isinstance(dim, bool):                                             # torch.var(x, False)
            dim, unbiased = None, dim
        if correction is None:
            correction = 0 if unbiased is False else 1
        return method(input, dim, keepdim, correction)
    function.__name__ = method.__name__
    return function


std, var, std_mean, var_mean = (_std_or_var(f) for f in (Tensor.std, Tensor.var, Tensor.std_mean, Tensor.var_mean))


def svd(input: Tensor, some: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """U, S and V. (`torch.linalg.svd` and the tensor's own method return V transposed.)

    >>> u, s, v = svd(Tensor([[3.0, 0.0], [0.0, 2.0], [0.0, 0.0]]))
    >>> (u @ s.diag() @ v.T).round().tolist(), u.shape
    ([[3.0, 0.0], [0.0, 2.0], [0.0, 0.0]], (3, 2))
    """
    u, s, vh = input.svd(not some)
    return u, s, vh.transpose(-2, -1)


def qr(input: Tensor, some: bool = True) -> tuple[Tensor, Tensor]:
    """Q and R, reduced unless `some` is False."""
    return input.qr("reduced" if some else "complete")


# -- predicates --------------------------------------------------------------------------------------------------------
def is_tensor(obj: Any) -> bool: return isinstance(obj, Tensor)
def promote_types(type1: DType, type2: DType) -> DType: return promote(type1, type2)


def result_type(tensor1: Any, tensor2: Any) -> DType:
    """The type of a sum of two tensors, or of a tensor and a number, which widens it only to floats."""
    x, y = (tensor1, tensor2) if isinstance(tensor1, Tensor) else (tensor2, tensor1)
    return (as_tensor(x) + y).dtype


def allclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """Whether all values are close to each other."""
    return bool(input.allclose(other, rtol, atol, equal_nan).item())


class finfo:
    """The limits of a float type.

    >>> finfo(dtypes.float32).max, finfo(dtypes.float16).eps
    (3.4028234663852886e+38, 0.0009765625)
    """

    def __init__(self, type: DType = dtypes.float32):
        _, mantissa = dtypes.finfo(type)
        self.dtype, self.bits, self.eps = type.name, type.bits, 2.0 ** -mantissa
        self.max = largest(type)
        self.min, self.tiny, self.resolution = -self.max, 2.0 ** (1 - type.bias), 10.0 ** -int(mantissa * 0.30103)
        self.smallest_normal = self.tiny


class iinfo:
    """The limits of an integer type.

    >>> iinfo(dtypes.int8).max
    127
    """

    def __init__(self, type: DType = dtypes.int64):
        self.dtype, self.bits, self.min, self.max = type.name, type.bits, type.min, type.max


# -- gradients or not --------------------------------------------------------------------------------------------------
class inference_mode(no_grad):
    """`no_grad`, by the newer name; `inference_mode(False)` changes nothing."""

    def __init__(self, mode: bool = True):
        self._mode = mode

    def _step(self, by: int) -> None:
        if self._mode:
            super()._step(by)


def set_grad_enabled(mode: bool) -> Any:
    """`enable_grad` or `no_grad`: `with set_grad_enabled(phase == "train")`. A call alone has no effect."""
    return enable_grad() if mode else no_grad()


def is_grad_enabled() -> bool:
    """Return whether no `no_grad` block is open here."""
    return wants_gradient(TorchTensor([1.0]).mul(1)) is not False


def compile(model: Any = None, **options: Any) -> Any:
    """Return the model itself: kernels are always compiled here. `TinyJit` saves the Python between them."""
    return (lambda function: function) if model is None else model


# -- files -------------------------------------------------------------------------------------------------------------
def save(obj: Any, f: Any, **options: Any) -> None:
    """Write tensors, and plain values around them, into a file that PyTorch reads too.

    >>> import io
    >>> file = io.BytesIO()
    >>> save({"weight": Tensor([1.0]), "epoch": 3}, file)
    >>> _ = file.seek(0)
    >>> load(file)["epoch"]
    3
    """
    content = torch_file(obj)
    if hasattr(f, "write"):
        f.write(content)
    else:
        with replacing(f) as file:           # written as a whole or not at all, so that an existing file is not lost
            file.write(content)


def load(f: Any, map_location: Any = None, weights_only: bool = True, **options: Any) -> Any:
    """Load what `torch.save` wrote, here or in PyTorch: tensors and plain values. Nothing in the file is run."""
    return ADAPTER.adopt(state.torch_load(f.read() if hasattr(f, "read") else f))
