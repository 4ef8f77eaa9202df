"""Provide torch.linalg: matrices. In, out: tensors. Methods of the tensor become functions with the tensor first."""

from __future__ import annotations

from collections import namedtuple
from functools import wraps
from typing import Any

from glassgrad.compat.torch.functions import as_tensor
from glassgrad.tensor.tensor import Tensor

_METHODS = ["cholesky", "cross", "det", "eigh", "eigvalsh", "inv", "matmul", "matrix_norm", "matrix_power", "multi_dot",
            "pinv", "solve", "solve_triangular", "svdvals", "vecdot", "vector_norm"]
_OUR_NAMES = {"A": "self", "input": "self", "x": "self", "B": "other", "y": "other"}      # {PyTorch's parameter: ours}
__all__ = [*_METHODS, "lstsq", "matrix_rank", "norm", "qr", "slogdet", "svd"]
QR = namedtuple("QR", "Q R")
SVD = namedtuple("SVD", "U S Vh")
SlogDet = namedtuple("SlogDet", "sign logabsdet")
LeastSquares = namedtuple("LeastSquares", "solution")


def qr(A: Tensor, mode: str = "reduced") -> QR: return QR(*A.qr(mode))
def svd(A: Tensor, full_matrices: bool = True) -> SVD: return SVD(*A.svd(full_matrices))
def slogdet(A: Tensor) -> SlogDet: return SlogDet(*A.slogdet())
def lstsq(A: Tensor, B: Tensor, **options: Any) -> LeastSquares: return LeastSquares(A.lstsq(B))


def norm(A: Any, ord: Any = None, dim: Any = None, keepdim: bool = False) -> Tensor:
    """The length of a vector, or of all elements; along two axes, of matrices.

    >>> norm(Tensor([[3.0, 4.0]])).item()
    5.0
    """
    x = as_tensor(A)
    of_matrix = x.ndim == 2 if dim is None else isinstance(dim, (list, tuple)) and len(dim) == 2
    if of_matrix and ord not in (None, "fro"):
        return x.matrix_norm(ord, (-2, -1) if dim is None else dim, keepdim)
    return x.norm(2 if ord in (None, "fro") else ord, dim, keepdim)


def matrix_rank(A: Tensor, tol: float | None = None) -> Tensor:
    """The number of singular values above a tolerance."""
    return A.matrix_rank(atol=tol, rtol=None if tol is None else 0.0)


def __getattr__(name: str) -> Any:
    if name not in _METHODS:
        raise AttributeError(f"torch.linalg.{name} has no counterpart in glassgrad; docs/api.md lists what there is")
    method = getattr(Tensor, name)

    @wraps(method)
    def function(*args: Any, **named: Any) -> Any:
        ours = {_OUR_NAMES.get(key, key): value for key, value in named.items()}
        if "self" in ours:
            args = (ours.pop("self"),)
        return method(*args if name == "multi_dot" else (*map(as_tensor, args[:1]), *args[1:]), **ours)
    return function
