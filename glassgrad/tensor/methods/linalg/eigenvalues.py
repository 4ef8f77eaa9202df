"""Eigenvalues of symmetric matrices, triangles, powers of e: what follows from the factors in `linalg`. In, out: stacks
of matrices. What has eigenvalues that are complex numbers is not here: there is no type for them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import InputError
from glassgrad.compiler.graph.uop import UOp
from glassgrad.tensor import evaluate as running
from glassgrad.tensor.autograd.custom_gradient import JointResults, while_in_use
from glassgrad.tensor.formulas import matrices
from glassgrad.tensor.formulas.order import key_of, order_of
from glassgrad.tensor.methods.linalg.factorizations import LinearAlgebra, _computed, _place, _tensor

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Eigen"]


class Eigen(LinearAlgebra):
    """Eigenvalues, triangles, the exponential."""
    __slots__ = ()

    # -- symmetric -------------------------------------------------------------------------------------------
    def eigh(self, UPLO: str = "L") -> tuple[Self, Self]:
        """The eigenvalues of a symmetric matrix, in ascending order, and its eigenvectors as columns of length 1. Only
        the lower triangle is looked at, or the upper one with UPLO="U".

        >>> Tensor([[2.0, 0.0], [0.0, 1.0]]).eigh()[0].tolist()
        [1.0, 2.0]
        """
        if UPLO not in ("L", "U"):
            raise InputError("a symmetric matrix is told by one of its triangles", given=f"UPLO={UPLO!r}",
                             expected='"L" or "U"', fix="leave it out: the lower triangle is read")
        a, lead = (self if UPLO == "L" else self.transpose(-2, -1))._matrix("eigh")
        values, vectors = (self._with(node) for node in _eigen(a.uop).nodes(a.uop))
        return values.cast(self.dtype).reshape(*lead, self.shape[-1]), vectors.cast(self.dtype).reshape(self.shape)

    def eigvalsh(self, UPLO: str = "L") -> Self:
        """The eigenvalues of a symmetric matrix, in ascending order.

        >>> Tensor([[0.0, 1.0], [1.0, 0.0]]).eigvalsh().numpy().round(4)
        array([-1.,  1.], dtype=float32)
        """
        return self.eigh(UPLO)[0]

    # -- triangles -------------------------------------------------------------------------------------------
    def solve_triangular(self, other: Self, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Self:
        """The x for which this @ x = other (or x @ this, unless `left`), where only this' upper or lower triangle
        counts; with `unitriangular` its diagonal is taken to be ones.

        >>> Tensor([[2.0, 9.0], [0.0, 4.0]]).solve_triangular(Tensor([[2.0], [4.0]]), upper=False).tolist()
        [[1.0], [1.0]]
        """
        triangle = self.triu(int(unitriangular)) if upper else self.tril(-int(unitriangular))
        if unitriangular:
            triangle = triangle + self.eye(self.shape[-1], dtype=self.dtype, device=self.device)
        if left:
            return triangle.solve(other)
        return triangle.transpose(-2, -1).solve(other.transpose(-2, -1)).transpose(-2, -1)

    def cholesky_solve(self, factor: Self, upper: bool = False) -> Self:
        """The x for which A @ x is this, where `factor` is A's `cholesky`.

        >>> Tensor([[8.0]]).cholesky_solve(Tensor([[2.0]])).tolist()
        [[2.0]]
        """
        lower = factor.transpose(-2, -1) if upper else factor
        halfway = lower.solve_triangular(self, upper=False)
        return lower.transpose(-2, -1).solve_triangular(halfway, upper=True)

    def cholesky_inverse(self, upper: bool = False) -> Self:
        """The inverse of the matrix of which this is the `cholesky`.

        >>> Tensor([[2.0]]).cholesky_inverse().tolist()
        [[0.25]]
        """
        eye = self.eye(self.shape[-1], dtype=self.dtype, device=self.device)
        return eye.expand(self.shape).cholesky_solve(self, upper)

    # -- powers ----------------------------------------------------------------------------------------------
    def matrix_exp(self) -> Self:
        """e to the power of a matrix: 1 + A + A^2 / 2 + A^3 / 6 + ..., summed for A over a power of 2 that makes it
        small, then squared as often.

        >>> Tensor([[0.0, 1.0], [0.0, 0.0]]).matrix_exp().tolist()
        [[1.0, 1.0], [0.0, 1.0]]
        """
        a, _ = self._matrix("matrix_exp")
        if not a.numel():
            return self
        size = float(running.number_in(a.detach().abs().sum(-1).max().uop, self.device))
        halvings = max(0, math.ceil(math.log2(size)) + 1) if 0 < size < math.inf else 0
        a = a * 2.0 ** -halvings
        eye = self.eye(a.shape[-1], dtype=a.dtype, device=self.device)
        terms = 18 if a.dtype.mantissa > 23 else 10        # 2^-18 / 18! is below the type's rounding, and 2^-10 / 10!
        total: Any = eye + a / terms
        for n in range(terms - 1, 0, -1):
            total = eye + (a @ total) / n
        for _ in range(halvings):
            total = total @ total
        return total.cast(self.dtype).reshape(self.shape)  # type: ignore[no-any-return]


@while_in_use
def _eigen(a: UOp) -> JointResults:
    """Values (batch, n) and vectors (batch, n, n). A multiple of the identity makes the matrix positive, so that the
    right angles that `matrices.jacobi` finds are those of its eigenvectors; their own quotients are the values."""
    x = _tensor(a)
    n = a.shape[-1]
    whole = x.tril() + x.tril(-1).transpose(1, 2)
    shift = whole.square().sum((1, 2), keepdim=True).sqrt()
    raised = whole + LinearAlgebra.eye(n, dtype=a.dtype) * (shift + (shift == 0).where(1.0, 0.0))
    _, vectors, sizes = (_tensor(node) for node in matrices.jacobi(_computed(raised), _place(a)))
    order = _tensor(_computed(_tensor(order_of(key_of(sizes.uop, True)))[:, :n])).flip(1)     # the largest come first
    vectors = vectors._known_places(2, order.unsqueeze(1).expand(a.shape))
    values = (vectors * (whole @ vectors)).sum(1)
    return JointResults((_computed(values), _computed(vectors)), _eigen_backward)


def _eigen_backward(a: UOp, parts: tuple[UOp, ...], to_values: UOp | None, to_vectors: UOp | None) -> UOp:
    """Of values V diag(g) V^T; of vectors V ((V^T g) / (l_j - l_i) off the diagonal) V^T, made symmetric (Magnus,
    1985)."""
    values, v = map(_tensor, parts)
    if to_values is not None:
        return ((v * _tensor(to_values).unsqueeze(1)) @ v.transpose(1, 2)).uop
    assert to_vectors is not None
    eye = LinearAlgebra.eye(a.shape[-1], dtype=a.dtype)
    gaps = values.unsqueeze(1) - values.unsqueeze(2) + eye
    inner = (v.transpose(1, 2) @ _tensor(to_vectors)) / gaps * (1 - eye)
    whole = v @ inner @ v.transpose(1, 2)
    return ((whole + whole.transpose(1, 2)) * 0.5).uop
