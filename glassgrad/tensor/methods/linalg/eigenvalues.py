"""Eigenvalues of symmetric matrices, triangles, powers of e. In, out: stacks of matrices.

Eigenvalues that are complex numbers are not here: there is no type for them.
"""

from __future__ import annotations

import math

from glassgrad.compiler.graph.uop import UOp
from glassgrad.tensor import checks, evaluate as running
from glassgrad.tensor.base import Self, TensorBase
from glassgrad.tensor.formulas.arithmetic import add, divide, mul
from glassgrad.tensor.formulas.linalg import factors
from glassgrad.tensor.formulas.linalg.products import matmul
from glassgrad.tensor.formulas.linalg.solving import matrices, solved
from glassgrad.tensor.formulas.movement import eye, matrix_transpose, tril, triu
from glassgrad.tensor.formulas.reductions import largest, total

__all__ = ["EigenvaluesMixin"]


def _eigen(x: UOp, UPLO: str, what: str) -> tuple[UOp, UOp]:
    """Eigenvalues and eigenvectors, read from one triangle."""
    checks.choice(what, "a symmetric matrix is told by one of its triangles",
                  "leave it out: the lower triangle is read", UPLO=UPLO, among=("L", "U"))
    a, lead = matrices(x if UPLO == "L" or len(x.shape) < 2 else matrix_transpose(x), what)
    values, vectors = factors.eigen(a).nodes(a)
    return values.cast(x.dtype).reshape((*lead, x.shape[-1])), vectors.cast(x.dtype).reshape(x.shape)


def _solve_triangular(x: UOp, other: UOp, upper: bool, left: bool = True, unit: bool = False) -> UOp:
    triangle = triu(x, int(unit)) if upper else tril(x, -int(unit))
    if unit:
        triangle = add(triangle, eye(x.shape[-1], x.dtype))
    if left:
        return solved(triangle, other)
    return matrix_transpose(solved(matrix_transpose(triangle), matrix_transpose(other)))


def _cholesky_solve(x: UOp, factor: UOp, upper: bool) -> UOp:
    lower = matrix_transpose(factor) if upper else factor
    return _solve_triangular(matrix_transpose(lower), _solve_triangular(lower, x, False), True)


class EigenvaluesMixin(TensorBase):
    """Eigenvalues, triangles, the exponential."""
    __slots__ = ()

    # -- symmetric -------------------------------------------------------------------------------------------
    def eigh(self, UPLO: str = "L") -> tuple[Self, Self]:
        """The eigenvalues of a symmetric matrix, in ascending order, and its eigenvectors as columns of length 1. Only
        the lower triangle is looked at, or the upper one with UPLO="U".

        >>> Tensor([[2.0, 0.0], [0.0, 1.0]]).eigh()[0].tolist()
        [1.0, 2.0]
        """
        values, vectors = _eigen(self.uop, UPLO, "eigh")
        return self._with(values), self._with(vectors)

    def eigvalsh(self, UPLO: str = "L") -> Self:
        """The eigenvalues of a symmetric matrix, in ascending order.

        >>> Tensor([[0.0, 1.0], [1.0, 0.0]]).eigvalsh().numpy().round(4)
        array([-1.,  1.], dtype=float32)
        """
        return self._with(_eigen(self.uop, UPLO, "eigh")[0])

    # -- triangles -------------------------------------------------------------------------------------------
    def solve_triangular(self, other: Self, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Self:
        """The x for which this @ x = other (or x @ this, unless `left`), where only this' upper or lower triangle
        counts; with `unitriangular` its diagonal is taken to be ones.

        >>> Tensor([[2.0, 9.0], [0.0, 4.0]]).solve_triangular(Tensor([[2.0], [4.0]]), upper=False).tolist()
        [[1.0], [1.0]]
        """
        checks.tensors("solve_triangular", other=other)
        checks.flags("solve_triangular", upper=upper, left=left, unitriangular=unitriangular)
        checks.two_axes("solve_triangular", self.shape, *([] if left else [other.shape]))
        return self._with(_solve_triangular(self.uop, other.uop, upper, left, unitriangular), other)

    def cholesky_solve(self, factor: Self, upper: bool = False) -> Self:
        """The x for which A @ x is this, where `factor` is A's `cholesky`.

        >>> Tensor([[8.0]]).cholesky_solve(Tensor([[2.0]])).tolist()
        [[2.0]]
        """
        checks.tensors("cholesky_solve", factor=factor)
        checks.flags("cholesky_solve", upper=upper)
        checks.two_axes("cholesky_solve", self.shape, factor.shape)
        return self._with(_cholesky_solve(self.uop, factor.uop, upper), factor)

    def cholesky_inverse(self, upper: bool = False) -> Self:
        """The inverse of the matrix of which this is the `cholesky`.

        >>> Tensor([[2.0]]).cholesky_inverse().tolist()
        [[0.25]]
        """
        checks.flags("cholesky_inverse", upper=upper)
        checks.two_axes("cholesky_inverse", self.shape)
        one = eye(self.shape[-1], self.dtype).broadcast(self.shape)
        return self._with(_cholesky_solve(one, self.uop, upper))

    # -- powers ----------------------------------------------------------------------------------------------
    def matrix_exp(self) -> Self:
        """e to the power of a matrix: 1 + A + A^2 / 2 + A^3 / 6 + ..., summed for A over a power of 2 that makes it
        small, then squared as often.

        >>> Tensor([[0.0, 1.0], [0.0, 0.0]]).matrix_exp().tolist()
        [[1.0, 1.0], [0.0, 1.0]]
        """
        a, _ = matrices(self.uop, "matrix_exp")
        if 0 in a.shape:
            return self
        size = float(running.number_in(largest(total(a.detach().abs(), -1)), self.device))
        halvings = max(0, math.ceil(math.log2(size)) + 1) if 0 < size < math.inf else 0
        a = mul(a, 2.0 ** -halvings)
        one = eye(a.shape[-1], a.dtype)
        terms = 18 if a.dtype.mantissa > 23 else 10        # 2^-18 / 18! is below the type's rounding, and 2^-10 / 10!
        result = add(one, divide(a, terms))
        for n in range(terms - 1, 0, -1):
            result = add(one, divide(matmul(a, result), n))
        for _ in range(halvings):
            result = matmul(result, result)
        return self._with(result.cast(self.dtype).reshape(self.shape))
