"""torch.linalg: matrices. In, out: tensors. What is a method of the tensor is that method with the tensor first."""

from __future__ import annotations

from typing import Any, NamedTuple

from glassgrad.compat.torch.functions import as_tensor
from glassgrad.compat.torch.torch_tensor import TorchTensor
from glassgrad.tensor.tensor import Tensor

__all__ = ["cholesky", "cross", "det", "inv", "lstsq", "matmul", "matrix_norm", "matrix_power", "matrix_rank",
           "multi_dot", "norm", "pinv", "qr", "slogdet", "solve", "solve_triangular", "svd", "svdvals", "vecdot",
           "vector_norm"]

cholesky, det, inv, matmul, matrix_power = Tensor.cholesky, Tensor.det, Tensor.inv, Tensor.matmul, Tensor.matrix_power
pinv, solve = Tensor.pinv, Tensor.solve


class QR(NamedTuple):
    Q: Tensor
    R: Tensor


class SVD(NamedTuple):
    U: Tensor
    S: Tensor
    Vh: Tensor


class SlogDet(NamedTuple):
    sign: Tensor
    logabsdet: Tensor


class LeastSquares(NamedTuple):
    solution: Tensor


def qr(A: Tensor, mode: str = "reduced") -> QR: return QR(*A.qr(mode))
def svd(A: Tensor, full_matrices: bool = True) -> SVD: return SVD(*A.svd(full_matrices))
def svdvals(A: Tensor) -> Tensor: return A.svd(False)[1]
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


def vector_norm(x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False) -> Tensor:
    """The length of vectors."""
    return x.norm(ord, dim, keepdim)


def matrix_norm(A: Tensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False) -> Tensor:
    """A norm of matrices: "fro" (of all elements), "nuc" (the sum of singular values), 2 or -2 (the largest or the
    smallest of them), 1 or inf (the largest sum of a column or a row)."""
    x = A.movedim(dim, (-2, -1))
    if ord == "fro":
        found = x.norm(2, (-2, -1))
    elif ord in ("nuc", 2, -2):
        values = svdvals(x)
        found = values.sum(-1) if ord == "nuc" else values.amax(-1) if ord == 2 else values.amin(-1)
    else:
        sums = x.abs().sum(-2 if abs(ord) == 1 else -1)
        found = sums.amax(-1) if ord > 0 else sums.amin(-1)
    return found.unsqueeze(dim[0] % A.ndim).unsqueeze(dim[1] % A.ndim) if keepdim else found


def matrix_rank(A: Tensor, tol: float | None = None) -> Tensor:
    """How many singular values are not (nearly) zero."""
    values = svdvals(A)
    least = values.amax(-1, keepdim=True) * max(A.shape[-2:]) * 2.0 ** -A.dtype.mantissa if tol is None else tol
    return (values > least).sum(-1)


def multi_dot(tensors: list[Tensor]) -> Tensor:
    """The product of several matrices, from the left."""
    product = tensors[0]
    for factor in tensors[1:]:
        product = product @ factor
    return product


def vecdot(x: Tensor, y: Tensor, dim: int = -1) -> Tensor: return (x * y).sum(dim)
def cross(input: Tensor, other: Tensor, dim: int = -1) -> Tensor: return input.cross(other, dim)


def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """Solve A X = B (or X A = B) with a triangle of A."""
    half = A.triu() if upper else A.tril()
    if unitriangular:
        half = half - half.diagonal(dim1=-2, dim2=-1).diag_embed() + TorchTensor.eye(A.shape[-1])
    return half.solve(B) if left else half.transpose(-2, -1).solve(B.transpose(-2, -1)).transpose(-2, -1)


def __getattr__(name: str) -> Any:
    if name in ("eigh", "eigvalsh") and hasattr(Tensor, name):
        return getattr(Tensor, name)
    raise AttributeError(f"torch.linalg.{name} has no counterpart in glassgrad; docs/api.md lists what there is")
