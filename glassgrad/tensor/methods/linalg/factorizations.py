"""Linear algebra: solve, inv, det, qr, svd, cholesky and what follows from them. In, out: stacks of matrices.

The factors are computed at once (see formulas/matrices.py); gradients are lazy and can be taken again. A singular
matrix gives NaN where PyTorch raises, because whether it is one is known only by looking.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import DTypeError, InputError, ShapeError
from glassgrad.compiler.graph.uop import UOp, full
from glassgrad.tensor import evaluate as running
from glassgrad.tensor.autograd.custom_gradient import JointResults, own_gradient, while_in_use
from glassgrad.tensor.formulas import matrices
from glassgrad.tensor.formulas.order import key_of, order_of
from glassgrad.tensor.memory.sharding import Sharding

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["LinearAlgebra"]


def _tensor(node: UOp) -> LinearAlgebra:
    plain = object.__new__(LinearAlgebra)
    plain._device = None
    return plain._with(node)


def _tensors(*nodes: UOp | None) -> list[Any]:
    return [None if node is None else _tensor(node) for node in nodes]


def _place(*nodes: UOp) -> str:
    return next((n.device for n in nodes if n.device), running.default_device())


def _computed(x: Any) -> UOp:
    """The value in memory: what follows does not do the steps again."""
    found, = running.realize([x.uop.contiguous()], _place(x.uop))
    return found


class LinearAlgebra(Sharding):
    """Solve, invert, take apart."""
    __slots__ = ()

    def _matrix(self, what: str, square: bool = True) -> tuple[Self, tuple[int, ...]]:
        """This as (batch, m, n) of float32 or float64, and the axes before the last two."""
        if self.ndim < 2 or square and self.shape[-1] != self.shape[-2]:
            raise ShapeError(
                f"{what} needs a {'square ' if square else ''}matrix",
                given=f"shape {self.shape}",
                expected="(.., n, n)" if square else "(.., m, n)",
                fix="check the tensor's shape: print(x.shape)",
            )
        if self.dtype.kind != "f":
            raise DTypeError(f"{what} needs floats", given=f"{self.dtype.name} values", expected="a float tensor",
                             fix="cast first: x.float()")
        lead = self.shape[:-2]
        return self.cast(self.dtype.accumulator).reshape(math.prod(lead), *self.shape[-2:]), lead

    # -- equations -------------------------------------------------------------------------------------------
    def solve(self, other: Self) -> Self:
        """The x for which this @ x = other (a matrix of columns, or one vector).

        >>> Tensor([[2.0, 0.0], [0.0, 4.0]]).solve(Tensor([2.0, 2.0])).tolist()
        [1.0, 0.5]
        """
        vector = other.ndim == 1 or other.ndim == self.ndim - 1 and other.shape == self.shape[:-1]
        right = other.unsqueeze(-1) if vector else other
        if self.ndim < 2 or right.ndim < 2 or right.shape[-2] != self.shape[-2]:
            raise ShapeError("the right side does not fit the matrix", given=f"{self.shape} and {other.shape}",
                             expected="as many rows on both sides", fix="transpose the right side")
        lead = _common(self.shape[:-2], right.shape[:-2])
        a, _ = self.expand(*lead, *self.shape[-2:])._matrix("solve")
        b, _ = right.cast(self.dtype).expand(*lead, *right.shape[-2:])._matrix("solve", False)
        found = self._kin(other)._with(_solve(a.uop, b.uop)).cast(self.dtype).reshape(*lead, *right.shape[-2:])
        return found.squeeze(-1) if vector else found

    def inv(self) -> Self:
        """The inverse matrix: this @ inverse is the identity.

        >>> Tensor([[2.0, 0.0], [0.0, 4.0]]).inv().tolist()
        [[0.5, 0.0], [0.0, 0.25]]
        """
        a, lead = self._matrix("inv")
        return self._with(_inverse(a.uop)).cast(self.dtype).reshape(self.shape)

    def inverse(self) -> Self:
        """The inverse matrix; `inv`.

        >>> Tensor([[2.0]]).inverse().tolist()
        [[0.5]]
        """
        return self.inv()

    def det(self) -> Self:
        """The determinant.

        >>> Tensor([[1.0, 2.0], [3.0, 4.0]]).det().numpy().round(4)
        np.float32(-2.0)
        """
        a, lead = self._matrix("det")
        return self._with(_determinant(a.uop)).cast(self.dtype).reshape(lead)

    def slogdet(self) -> tuple[Self, Self]:
        """The determinant's sign, and the logarithm of its size.

        >>> [t.item() for t in Tensor([[0.0, 1.0], [1.0, 0.0]]).slogdet()]
        [-1.0, 0.0]
        """
        a, lead = self._matrix("slogdet")
        sign, size = _signed_log(a.uop)
        return self._with(sign).cast(self.dtype).reshape(lead), self._with(size).cast(self.dtype).reshape(lead)

    def logdet(self) -> Self:
        """The logarithm of the determinant; NaN where it is negative.

        >>> Tensor([[1.0, 0.0], [0.0, 1.0]]).logdet().item()
        0.0
        """
        sign, size = self.slogdet()
        return (sign < 0).where(math.nan, size)

    def matrix_power(self, n: int) -> Self:
        """The matrix times itself n times; negative n for the inverse.

        >>> Tensor([[1, 1], [0, 1]]).matrix_power(5).tolist()
        [[1, 5], [0, 1]]
        """
        if self.ndim < 2 or self.shape[-1] != self.shape[-2]:
            raise ShapeError("matrix_power needs a square matrix", given=f"shape {self.shape}", expected="(.., n, n)",
                             fix="check the tensor's shape: print(x.shape)")
        if n < 0:
            return self.inv().matrix_power(-n)
        result, power = None, self
        while n:
            if n & 1:
                result = power if result is None else result @ power
            power, n = power @ power if n > 1 else power, n >> 1
        eye = self.eye(self.shape[-1], dtype=self.dtype).expand(self.shape)
        return eye if result is None else result

    # -- factors ---------------------------------------------------------------------------------------------
    def cholesky(self, upper: bool = False) -> Self:
        """The lower triangle L with L @ L.T equal to this, which must be symmetric and positive definite (else NaN).

        >>> Tensor([[4.0, 0.0], [0.0, 9.0]]).cholesky().tolist()
        [[2.0, 0.0], [0.0, 3.0]]
        """
        a, lead = self._matrix("cholesky")
        lower = self._with(_lower(a.uop)).cast(self.dtype).reshape(self.shape)
        return lower.transpose(-2, -1) if upper else lower

    def qr(self, mode: str = "complete") -> tuple[Self, Self]:
        """Q with columns of length 1 at right angles and R with zeros below its diagonal, so that Q @ R is this:
        "complete" (m, m) and (m, n) as in tinygrad, or "reduced" (m, k) and (k, n) as in PyTorch. Gradients of the
        columns that "complete" adds do not exist and are not taken.

        >>> q, r = Tensor([[3.0], [4.0]]).qr("reduced")
        >>> (q @ r).numpy().round(4).tolist()
        [[3.0], [4.0]]
        """
        if mode not in ("complete", "reduced"):
            raise InputError("there is no such qr", given=f"mode={mode!r}", expected='"complete" or "reduced"',
                             fix='write x.qr("reduced")')
        a, lead = self._matrix("qr", False)
        found = _orthogonal(a.uop)
        q, r = found.nodes(a.uop)
        m, n = self.shape[-2:]
        first, below = self._with(q), self._with(r)
        if mode == "complete" and m > n:
            first = first.cat(self._with(found.rest[0]), dim=2)
            below = below.pad((None, (0, m - n), None))
        return tuple(t.cast(self.dtype).reshape(*lead, *t.shape[1:]) for t in (first, below))  # type: ignore[return-value]

    def svd(self, full_matrices: bool = True) -> tuple[Self, Self, Self]:
        """U, S and V with U @ diag(S) @ V equal to this; S descends, U's columns and V's rows have length 1 and stand
        at right angles. `full_matrices` makes U and V square; the vectors it adds have no gradient.

        >>> Tensor([[3.0, 0.0], [0.0, 4.0]]).svd()[1].tolist()
        [4.0, 3.0]
        """
        m, n = self.shape[-2:] if self.ndim >= 2 else (0, 0)
        if m < n:
            u, s, v = self.transpose(-2, -1).svd(full_matrices)
            return v.transpose(-2, -1), s, u.transpose(-2, -1)
        a, lead = self._matrix("svd", False)
        found = _singular(a.uop)
        left, values, right = map(self._with, found.nodes(a.uop))
        if full_matrices and m > n:
            left = left.cat(self._with(found.rest[0]), dim=2)
        parts = left, values, right.transpose(1, 2)
        return tuple(t.cast(self.dtype).reshape(*lead, *t.shape[1:]) for t in parts)  # type: ignore[return-value]

    def pinv(self, rtol: float | None = None) -> Self:
        """The pseudo-inverse (Moore and Penrose); singular values below rtol times the largest count as 0.

        >>> Tensor([[2.0], [0.0]]).pinv().tolist()
        [[0.5, 0.0]]
        """
        u, s, v = self.svd(False)
        limit = s.amax(-1, keepdim=True) * (
            max(self.shape[-2:]) * 2.0**-(self.dtype.mantissa) if rtol is None else rtol
        )
        kept = s > limit
        inverse = kept.where(kept.where(s, 1).reciprocal(), 0)
        return (v.transpose(-2, -1) * inverse.unsqueeze(-2)) @ u.transpose(-2, -1)

    def lstsq(self, other: Self) -> Self:
        """The x that brings this @ x closest to other (least squares), for at least as many rows as columns.

        >>> Tensor([[1.0], [1.0]]).lstsq(Tensor([[1.0], [3.0]])).numpy().round(4).tolist()
        [[2.0]]
        """
        if self.ndim < 2 or self.shape[-2] < self.shape[-1]:
            raise ShapeError("lstsq needs at least as many rows as columns", given=f"shape {self.shape}",
                             expected="(.., m, n) with m >= n", fix="use pinv() @ other")
        q, r = self.qr("reduced")
        return r.solve(q.transpose(-2, -1) @ other)

    # -- sums ------------------------------------------------------------------------------------------------
    def trace(self) -> Self:
        """The sum of a matrix' diagonal.

        >>> Tensor([[1, 2], [3, 4]]).trace().item()
        5
        """
        return self.diagonal().sum(-1)

    def newton_schulz(self, steps: int, params: tuple[float, ...], eps: float = 1e-7) -> Self:
        """A matrix brought close to one with singular values of 1: x over its length, then `steps` times
        p0 x + p1 (x x^T) x + p2 (x x^T)^2 x + ...

        >>> Tensor([[2.0, 0.0], [0.0, 1.0]]).newton_schulz(20, (1.5, -0.5)).numpy().round(3).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
        """
        x = self / (self.square().sum((-2, -1), keepdim=True).sqrt() + eps)
        wide = x.shape[-2] > x.shape[-1]
        x = x.transpose(-2, -1) if wide else x
        for _ in range(steps):
            product = x @ x.transpose(-2, -1)
            power, total = x, x * params[0]
            for p in params[1:]:
                power = product @ power
                total = total + power * p
            x = total._with(total.uop.contiguous())
        return x.transpose(-2, -1) if wide else x


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    from_left = (1,) * (len(b) - len(a)) + a
    from_right = (1,) * (len(a) - len(b)) + b
    return tuple(m if n == 1 else n for n, m in zip(from_left, from_right))


# -- values with their gradients, on nodes (batch, m, n) -----------------------------------------------------
def _solve(a: UOp, b: UOp) -> UOp:
    x, pivots, _ = matrices.eliminate(a, b, _place(a, b))
    singular = _tensor(pivots.eq(0.0)).any(1).reshape(-1, 1, 1)
    return own_gradient(_computed(singular.where(math.nan, _tensor(x))), (a, b), _solve_backward)


def _solve_backward(g: UOp, x: UOp, a: UOp, b: UOp) -> tuple[UOp, UOp]:
    to_b = _tensor(_solve(a.permute((0, 2, 1)), g))               # db = A^-T g,  dA = -db x^T
    return (-(to_b @ _tensor(x).transpose(1, 2))).uop, to_b.uop


def _inverse(a: UOp) -> UOp:
    n = a.shape[-1]
    eye = LinearAlgebra.eye(n, dtype=a.dtype).uop.reshape((1, n, n)).expand(a.shape)
    return _solve(a, eye)


def _determinant(a: UOp) -> UOp:
    _, pivots, order = matrices.eliminate(a, full((*a.shape[:2], 1), 0, a.dtype), _place(a))
    value = _tensor(pivots).prod(1) * _tensor(matrices.parity(order)).cast(a.dtype)
    return own_gradient(_computed(value), (a,), _determinant_backward)


def _determinant_backward(g: UOp, y: UOp, a: UOp) -> tuple[UOp]:
    scaled = (_tensor(g) * _tensor(y)).reshape(-1, 1, 1)          # d det = det tr(A^-1 dA)
    return ((scaled * _tensor(_inverse(a)).transpose(1, 2)).uop,)


def _signed_log(a: UOp) -> tuple[UOp, UOp]:
    _, pivots, order = matrices.eliminate(a, full((*a.shape[:2], 1), 0, a.dtype), _place(a))
    sign = _tensor(pivots).sign().prod(1) * _tensor(matrices.parity(order)).cast(a.dtype)
    size = _tensor(pivots).abs().log().sum(1)
    return _computed(sign), own_gradient(_computed(size), (a,), _signed_log_backward)


def _signed_log_backward(g: UOp, y: UOp, a: UOp) -> tuple[UOp]:
    return ((_tensor(g).reshape(-1, 1, 1) * _tensor(_inverse(a)).transpose(1, 2)).uop,)


def _lower(a: UOp) -> UOp:
    return own_gradient(matrices.cholesky(a, _place(a)), (a,), _lower_backward)


def _lower_backward(g: UOp, y: UOp, a: UOp) -> tuple[UOp]:
    lower = _tensor(y)  # Murray (2016): S = L^-T phi(L^T g) L^-1, made symmetric
    inner = (lower.transpose(1, 2) @ _tensor(g)).tril()
    inner = inner - inner * LinearAlgebra.eye(inner.shape[-1], dtype=inner.dtype) * 0.5
    turned = lower.transpose(1, 2)
    left = _tensor(_solve(turned.uop, inner.uop))
    whole = _tensor(_solve(turned.uop, left.transpose(1, 2).uop)).transpose(1, 2)
    return (((whole + whole.transpose(1, 2)) * 0.5).uop,)


@while_in_use
def _orthogonal(a: UOp) -> JointResults:
    """Q (m, k), R (k, n) and the m - k columns that complete Q."""
    batch, m, n = a.shape
    k = min(m, n)
    q, r = matrices.householder(a, _place(a))
    whole = (0, batch)
    first, upper = q.shrink((whole, (0, m), (0, k))), r.shrink((whole, (0, k), (0, n)))
    return JointResults((first, upper), _qr_backward, q.shrink((whole, (0, m), (k, m))).detach())


def _qr_backward(a: UOp, parts: tuple[UOp, ...], to_q: UOp | None, to_r: UOp | None) -> UOp:
    return _qr_gradient(a, parts, *_tensors(to_q, to_r)).uop  # type: ignore[no-any-return]


def _qr_gradient(a: UOp, parts: tuple[UOp, ...], to_q: Any, to_r: Any) -> Any:
    """For m >= n (Walter et al., 2010): (gQ + Q copyltu(M)) R^-T with M = R gR^T - gQ^T Q. A wider matrix is a square
    one with more columns, whose gradient passes through Q."""
    q, r = _tensors(*parts)
    m, n = a.shape[1:]
    if m < n:
        rest = _tensor(a.shrink(((0, a.shape[0]), (0, m), (m, n))))
        to_rest = q @ to_r[:, :, m:] if to_r is not None else rest * 0.0
        into_q = to_q
        if to_r is not None:
            through = rest @ to_r[:, :, m:].transpose(1, 2)
            into_q = through if to_q is None else to_q + through
        first = _qr_gradient_square(q, r[:, :, :m], into_q, None if to_r is None else to_r[:, :, :m])
        return first.cat(to_rest, dim=2)
    return _qr_gradient_square(q, r, to_q, to_r)


def _qr_gradient_square(q: Any, r: Any, to_q: Any, to_r: Any) -> Any:
    inner: Any = None if to_r is None else r @ to_r.transpose(1, 2)
    if to_q is not None:
        part = to_q.transpose(1, 2) @ q
        inner = -part if inner is None else inner - part
    inner = inner.tril() + inner.tril(-1).transpose(1, 2)
    total = q @ inner if to_q is None else to_q + q @ inner
    return _tensor(_solve(r.uop, total.transpose(1, 2).uop)).transpose(1, 2)


@while_in_use
def _singular(a: UOp) -> JointResults:
    """U (m, n), S (n), V (n, n) with U diag(S) V^T = a, and the m - n columns that complete U."""
    batch, m, n = a.shape
    work, v, sizes = (_tensor(x) for x in matrices.jacobi(a, _place(a)))
    order = _tensor(_computed(_tensor(order_of(key_of(sizes.uop, True)))[:, :n]))
    s = sizes._known_places(1, order)
    across = order.unsqueeze(1)
    v = v._known_places(2, across.expand(batch, n, n))
    limit = s[:, :1] * (m * 2.0 ** -(a.dtype.mantissa))
    sound = (s > limit).unsqueeze(1)
    u = work._known_places(2, across.expand(batch, m, n)) / sound.where(s.unsqueeze(1), 1)
    u = _tensor(_computed(sound.where(u, 0)))
    whole = _tensor(matrices.householder(u.uop, _place(a))[0])      # columns without a length get one at right angles
    u = sound.where(u, whole[:, :, :n])
    return JointResults((_computed(u), _computed(s), _computed(v)), _svd_gradient, whole[:, :, n:].uop.detach())


def _svd_gradient(a: UOp, parts: tuple[UOp, ...], *gradients: UOp | None) -> UOp:
    """U ((F o (U^T gU - gU^T U)) S + diag(gS) + S (F o (V^T gV - gV^T V))) V^T + (I - U U^T) gU S^-1 V^T, where
    F_ij = 1 / (s_j^2 - s_i^2) off the diagonal (Townsend, 2016)."""
    u, s, v = _tensors(*parts)
    to_u, to_s, to_v = _tensors(*gradients)
    n = s.shape[-1]
    if to_s is not None:
        return ((u * to_s.unsqueeze(1)) @ v.transpose(1, 2)).uop
    eye = LinearAlgebra.eye(n, dtype=s.dtype)
    squares = s.square()
    gaps = squares.unsqueeze(1) - squares.unsqueeze(2)
    f = (1 - eye) / (gaps + eye)
    x, g = (u, to_u) if to_u is not None else (v, to_v)
    product = x.transpose(1, 2) @ g
    skew = f * (product - product.transpose(1, 2))
    if to_v is not None:
        return (u @ (s.unsqueeze(2) * skew) @ v.transpose(1, 2)).uop
    inner = u @ (skew * s.unsqueeze(1))
    outside = (g - u @ product) / s.unsqueeze(1)
    return ((inner + outside) @ v.transpose(1, 2)).uop
