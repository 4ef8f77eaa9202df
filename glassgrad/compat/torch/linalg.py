"""torch.linalg: matrices. In, out: tensors. What is a method of the tensor is that method with the tensor first."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

from glassgrad.compat.torch.functions import as_tensor
from glassgrad.tensor.tensor import Tensor

__all__ = ["cholesky", "cross", "det", "inv", "lstsq", "matmul", "matrix_norm", "matrix_power", "matrix_rank",
           "multi_dot", "norm", "pinv", "qr", "slogdet", "solve", "solve_triangular", "svd", "svdvals", "vecdot",
           "vector_norm"]

cholesky, cross, det, eigh, eigvalsh = Tensor.cholesky, Tensor.cross, Tensor.det, Tensor.eigh, Tensor.eigvalsh
inv, matmul, matrix_norm, matrix_power = Tensor.inv, Tensor.matmul, Tensor.matrix_norm, Tensor.matrix_power
multi_dot, pinv, solve, solve_triangular = Tensor.multi_dot, Tensor.pinv, Tensor.solve, Tensor.solve_triangular
svdvals, vecdot, vector_norm = Tensor.svdvals, Tensor.vecdot, Tensor.vector_norm
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
    if isinstance(dim, (list, tuple)) and len(dim) == 2 and ord not in (None, "fro", 2.0) \
            or dim is None and ord is not None and x.ndim == 2:
        return matrix_norm(x, ord, (-2, -1) if dim is None else dim, keepdim)
    return x.norm(2 if ord in (None, "fro") else ord, dim, keepdim)


def matrix_rank(A: Tensor, tol: float | None = None) -> Tensor:
    """How many singular values are not (nearly) zero."""
    return A.matrix_rank(atol=tol, rtol=None if tol is None else 0.0)


def __getattr__(name: str) -> Any:
    raise AttributeError(f"torch.linalg.{name} has no counterpart in glassgrad; docs/api.md lists what there is")
