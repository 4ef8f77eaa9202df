"""Define linear algebra: solve, inv, det, qr, svd, cholesky, eigenvalues, matrix_exp. In, out: stacks of matrices.

The factors are computed at once (formulas/linalg/factorization_algorithms.py); gradients are lazy and can be
differentiated again. A singular matrix gives NaN where PyTorch raises, because only reading the values would show that
it is singular. Complex eigenvalues are not supported, because there is no type for them.
"""

from __future__ import annotations

import math

from glassgrad.base.errors import ShapeError
from glassgrad.compiler.graph import UOp
from glassgrad.tensor import realize_and_read as running
from glassgrad.tensor.formulas import (add, divide, eye, largest, less, matrix_transpose, mul, norm, total, tril, triu,
                                       unsqueeze, where)
from glassgrad.tensor.formulas.linalg import factorizations as factors
from glassgrad.tensor.formulas.linalg.products import matmul
from glassgrad.tensor.formulas.powers import by_squaring
from glassgrad.tensor.methods import Self, TensorBase, arguments, choice, computed, of_kind, two_axes


def _eigen(x: UOp, UPLO: str) -> list[UOp]:
    """Return eigenvalues and eigenvectors, read from one triangle."""
    choice("a symmetric matrix is told by one of its triangles", "leave it out: the lower triangle is read",
           UPLO=UPLO, among=("L", "U"))
    return factors.of_matrices(factors.eigen, x if UPLO == "L" or len(x.shape) < 2 else matrix_transpose(x), "eigh")


def _solve_triangular(x: UOp, other: UOp, upper: bool, left: bool = True, unit: bool = False) -> UOp:
    triangle = triu(x, int(unit)) if upper else tril(x, -int(unit))
    if unit:
        triangle = add(triangle, eye(x.shape[-1], x.dtype))
    if left:
        return factors.solved(triangle, other)
    return matrix_transpose(factors.solved(matrix_transpose(triangle), matrix_transpose(other)))


def _cholesky_solve(x: UOp, factor: UOp, upper: bool) -> UOp:
    lower = matrix_transpose(factor) if upper else factor
    return _solve_triangular(matrix_transpose(lower), _solve_triangular(lower, x, False), True)


class FactorizationsMixin(TensorBase):
    """Solve, invert, factor."""
    __slots__ = ()

    # -- equations -------------------------------------------------------------------------------------------
    def solve(self, other: Self) -> Self:
        """The x for which this @ x = other (a matrix of columns, or one vector).

        >>> Tensor([[2.0, 0.0], [0.0, 4.0]]).solve(Tensor([2.0, 2.0])).tolist()
        [1.0, 0.5]
        """
        return computed(self, factors.solved, "solve", other=other)

    def inv(self) -> Self:
        """The inverse matrix: this @ inverse is the identity.

        >>> Tensor([[2.0, 0.0], [0.0, 4.0]]).inv().tolist()
        [[0.5, 0.0], [0.0, 0.25]]
        """
        return self._with(factors.inverted(self.uop))

    inverse = inv

    def det(self) -> Self:
        """The determinant.

        >>> Tensor([[1.0, 2.0], [3.0, 4.0]]).det().numpy().round(4)
        np.float32(-2.0)
        """
        return self._with(*factors.of_matrices(factors.determinant, self.uop, "det"))

    def slogdet(self) -> tuple[Self, Self]:
        """The determinant's sign, and the logarithm of its absolute value.

        >>> [t.item() for t in Tensor([[0.0, 1.0], [1.0, 0.0]]).slogdet()]
        [-1.0, 0.0]
        """
        return tuple(map(self._with, factors.of_matrices(factors.signed_log, self.uop, "slogdet")))  # type: ignore[return-value]

    def logdet(self) -> Self:
        """The logarithm of the determinant; NaN where it is negative.

        >>> Tensor([[1.0, 0.0], [0.0, 1.0]]).logdet().item()
        0.0
        """
        sign, size = factors.of_matrices(factors.signed_log, self.uop, "logdet")
        return self._with(where(less(sign, 0), math.nan, size))

    def matrix_power(self, n: int) -> Self:
        """The matrix multiplied by itself n times; for negative n, its inverse.

        >>> Tensor([[1, 1], [0, 1]]).matrix_power(5).tolist()
        [[1, 5], [0, 1]]
        """
        n, = arguments("matrix_power", n=n)
        power = self.uop
        factors.refuse_other_shapes(power, "matrix_power")
        if n == 0:
            return self._with(eye(self.shape[-1], self.dtype).broadcast(self.shape))
        return self._with(by_squaring(factors.inverted(power) if n < 0 else power, abs(n), matmul))

    # -- factors ---------------------------------------------------------------------------------------------
    def cholesky(self, upper: bool = False) -> Self:
        """The lower triangle L with L @ L.T equal to this matrix, which must be symmetric and positive definite (else
        NaN).

        >>> Tensor([[4.0, 0.0], [0.0, 9.0]]).cholesky().tolist()
        [[2.0, 0.0], [0.0, 3.0]]
        """
        upper, = arguments("cholesky", upper=upper)
        lower, = factors.of_matrices(factors.cholesky, self.uop, "cholesky")
        return self._with(matrix_transpose(lower) if upper else lower)

    def qr(self, mode: str = "complete") -> tuple[Self, Self]:
        """Q with orthonormal columns and an upper triangular R, so that Q @ R is this matrix: "complete" (m, m) and (m,
        n) as in tinygrad, or "reduced" (m, k) and (k, n) as in PyTorch. No gradient passes through the columns that
        "complete" adds.

        >>> q, r = Tensor([[3.0], [4.0]]).qr("reduced")
        >>> (q @ r).numpy().round(4).tolist()
        [[3.0], [4.0]]
        """
        choice("there is no such qr", 'write x.qr("reduced")', mode=mode, among=("complete", "reduced"))
        formula = factors.complete_orthogonal if mode == "complete" else factors.orthogonal
        return tuple(map(self._with, factors.of_matrices(formula, self.uop, "qr", False)))  # type: ignore[return-value]

    def svd(self, full_matrices: bool = True) -> tuple[Self, Self, Self]:
        """U, S and V with U @ diag(S) @ V equal to this matrix; S is in descending order, U's columns and V's rows are
        orthonormal. `full_matrices` makes U and V square; no gradient passes through the vectors that it adds.

        >>> Tensor([[3.0, 0.0], [0.0, 4.0]]).svd()[1].tolist()
        [4.0, 3.0]
        """
        full_matrices, = arguments("svd", full_matrices=full_matrices)
        return tuple(map(self._with, factors.singular_values(self.uop, full_matrices)))  # type: ignore[return-value]

    def svdvals(self) -> Self:
        """The singular values, in descending order.

        >>> Tensor([[3.0, 0.0], [0.0, 4.0]]).svdvals().tolist()
        [4.0, 3.0]
        """
        return self._with(factors.singular_values(self.uop, what="svdvals")[1])

    def pinv(self, rtol: float | None = None) -> Self:
        """The pseudo-inverse (Moore and Penrose); singular values below rtol times the largest count as 0.

        >>> Tensor([[2.0], [0.0]]).pinv().tolist()
        [[0.5, 0.0]]
        """
        share, = arguments("pinv", rtol=rtol)
        u, s, v = factors.singular_values(self.uop, what="pinv")
        share = max(self.shape[-2:]) * 2.0 ** -self.dtype.mantissa if share is None else share
        most = largest(s, -1, keepdim=True) if s.shape[-1] else s         # an empty matrix has no singular values
        kept = less(mul(most, share), s)
        inverse = where(kept, where(kept, s, 1).recip(), 0)
        return self._with(matmul(mul(matrix_transpose(v), unsqueeze(inverse, -2)), matrix_transpose(u)))

    pinverse = pinv

    def lstsq(self, other: Self) -> Self:
        """The x that brings this @ x closest to other (least squares), for at least as many rows as columns.

        >>> Tensor([[1.0], [1.0]]).lstsq(Tensor([[1.0], [3.0]])).numpy().round(4).tolist()
        [[2.0]]
        """
        other, = arguments("lstsq", other=other)
        if self.ndim < 2 or self.shape[-2] < self.shape[-1]:
            raise ShapeError("lstsq needs at least as many rows as columns", given=f"shape {self.shape}",
                             expected="(.., m, n) with m >= n", fix="use pinv() @ other")
        return self._with(factors.least_squares(self.uop, other.uop), other)

    # -- sums ------------------------------------------------------------------------------------------------
    def newton_schulz(self, steps: int, params: tuple[float, ...], eps: float = 1e-7) -> Self:
        """A matrix whose singular values are brought close to 1: x over its norm, then `steps` times
        p0 x + p1 (x x^T) x + p2 (x x^T)^2 x + ...

        >>> Tensor([[2.0, 0.0], [0.0, 1.0]]).newton_schulz(20, (1.5, -0.5)).numpy().round(3).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
        """
        steps, eps = arguments("newton_schulz", steps=steps, eps=eps)
        params = of_kind("list[float]", "newton_schulz", params=params)
        two_axes("newton_schulz", self.shape)
        x = divide(self.uop, add(norm(self.uop, 2, (-2, -1), keepdim=True), eps))
        return self._with(factors.newton_schulz(x, steps, params, UOp.contiguous))

    # -- symmetric -------------------------------------------------------------------------------------------
    def eigh(self, UPLO: str = "L") -> tuple[Self, Self]:
        """The eigenvalues of a symmetric matrix, in ascending order, and its eigenvectors as columns of length 1. Only
        the lower triangle is read, or the upper one with UPLO="U".

        >>> Tensor([[2.0, 0.0], [0.0, 1.0]]).eigh()[0].tolist()
        [1.0, 2.0]
        """
        return tuple(map(self._with, _eigen(self.uop, UPLO)))  # type: ignore[return-value]

    def eigvalsh(self, UPLO: str = "L") -> Self:
        """The eigenvalues of a symmetric matrix, in ascending order.

        >>> Tensor([[0.0, 1.0], [1.0, 0.0]]).eigvalsh().numpy().round(4)
        array([-1.,  1.], dtype=float32)
        """
        return self._with(_eigen(self.uop, UPLO)[0])

    # -- triangles -------------------------------------------------------------------------------------------
    def solve_triangular(self, other: Self, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Self:
        """The x for which this @ x = other (or x @ this, unless `left`). Only the upper or lower triangle of this
        matrix is used; with `unitriangular` its diagonal is taken to be ones.

        >>> Tensor([[2.0, 9.0], [0.0, 4.0]]).solve_triangular(Tensor([[2.0], [4.0]]), upper=False).tolist()
        [[1.0], [1.0]]
        """
        other, upper, left, unit = arguments("solve_triangular", other=other, upper=upper, left=left,
                                             unitriangular=unitriangular)
        two_axes("solve_triangular", self.shape, *([] if left else [other.shape]))
        return self._with(_solve_triangular(self.uop, other.uop, upper, left, unit), other)

    def cholesky_solve(self, factor: Self, upper: bool = False) -> Self:
        """The x for which A @ x is this tensor, where `factor` is the `cholesky` of A.

        >>> Tensor([[8.0]]).cholesky_solve(Tensor([[2.0]])).tolist()
        [[2.0]]
        """
        factor, upper = arguments("cholesky_solve", factor=factor, upper=upper)
        two_axes("cholesky_solve", self.shape, factor.shape)
        return self._with(_cholesky_solve(self.uop, factor.uop, upper), factor)

    def cholesky_inverse(self, upper: bool = False) -> Self:
        """The inverse of the matrix whose `cholesky` this is.

        >>> Tensor([[2.0]]).cholesky_inverse().tolist()
        [[0.25]]
        """
        upper, = arguments("cholesky_inverse", upper=upper)
        two_axes("cholesky_inverse", self.shape)
        one = eye(self.shape[-1], self.dtype).broadcast(self.shape)
        return self._with(_cholesky_solve(one, self.uop, upper))

    # -- powers ----------------------------------------------------------------------------------------------
    def matrix_exp(self) -> Self:
        """e to the power of a matrix: 1 + A + A^2 / 2 + A^3 / 6 + ..., by scaling and squaring: the series is summed
        for a small A / 2^s, and the result squared s times.

        >>> Tensor([[0.0, 1.0], [0.0, 0.0]]).matrix_exp().tolist()
        [[1.0, 1.0], [0.0, 1.0]]
        """
        a, _ = factors.matrices(self.uop, "matrix_exp")
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
