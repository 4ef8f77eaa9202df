"""Angles, hyperbolas and the error function, element by element. In, out: tensors.

Each is one line here; how it is computed, and its derivative, is in formulas/elementary.py.
"""

from __future__ import annotations

from typing import Any

from glassgrad.tensor.base import Self, TensorBase
from glassgrad.tensor.formulas import elementary
from glassgrad.tensor.formulas.arithmetic import as_float, broadcast, in_accumulator


class TrigonometryMixin(TensorBase):
    """Angles, hyperbolas and the error function."""
    __slots__ = ()

    def sin(self) -> Self:
        """The sine of an angle in radians.

        >>> Tensor([0.0]).sin().tolist()
        [0.0]
        """
        return self._with(as_float(self.uop).sin())

    def cos(self) -> Self:
        """The cosine of an angle in radians.

        >>> Tensor([0.0]).cos().tolist()
        [1.0]
        """
        return self._formula(elementary.cos)

    def tan(self) -> Self:
        """The tangent of an angle in radians.

        >>> Tensor([0.0]).tan().tolist()
        [0.0]
        """
        return self._formula(elementary.tan)

    def asin(self) -> Self:
        """The angle from -pi/2 to pi/2 with this sine.

        >>> Tensor([0.0, 1.0]).asin().numpy()
        array([0.       , 1.5707964], dtype=float32)
        """
        return self._formula(elementary.asin)

    arcsin = asin

    def acos(self) -> Self:
        """The angle from 0 to pi with this cosine.

        >>> Tensor([1.0]).acos().tolist()
        [0.0]
        """
        return self._formula(elementary.acos)

    arccos = acos

    def atan(self) -> Self:
        """The angle from -pi/2 to pi/2 with this tangent.

        >>> Tensor([0.0, float("inf")]).atan().numpy()
        array([0.       , 1.5707964], dtype=float32)
        """
        return self._formula(elementary.atan)

    arctan = atan

    def sinh(self) -> Self:
        """The hyperbolic sine.

        >>> Tensor([0.0]).sinh().tolist()
        [0.0]
        """
        return self._formula(elementary.sinh)

    def cosh(self) -> Self:
        """The hyperbolic cosine.

        >>> Tensor([0.0]).cosh().tolist()
        [1.0]
        """
        return self._formula(elementary.cosh)

    def tanh(self) -> Self:
        """The hyperbolic tangent.

        >>> Tensor([0.0, 100.0, -100.0]).tanh().tolist()
        [0.0, 1.0, -1.0]
        """
        return self._formula(elementary.tanh)

    def asinh(self) -> Self:
        """The inverse of sinh.

        >>> Tensor([0.0]).asinh().tolist()
        [0.0]
        """
        return self._formula(elementary.asinh)

    arcsinh = asinh

    def acosh(self) -> Self:
        """The inverse of cosh.

        >>> Tensor([1.0]).acosh().tolist()
        [0.0]
        """
        return self._formula(elementary.acosh)

    arccosh = acosh

    def atanh(self) -> Self:
        """The inverse of tanh.

        >>> Tensor([0.0]).atanh().tolist()
        [0.0]
        """
        return self._formula(elementary.atanh)

    arctanh = atanh

    def erf(self) -> Self:
        """The error function, 2/sqrt(pi) times the integral of e^(-t^2) from 0 to x.

        >>> Tensor([0.0, 9.0, -9.0]).erf().tolist()
        [0.0, 1.0, -1.0]
        """
        return self._formula(elementary.erf)

    def sigmoid(self) -> Self:
        """1 / (1 + e^-x).

        >>> Tensor([0.0, 1000.0, -1000.0]).sigmoid().tolist()
        [0.5, 1.0, 0.0]
        """
        return self._formula(elementary.sigmoid)

    def atan2(self, other: Any) -> Self:
        """The angle from -pi to pi of the point (other, self).

        >>> Tensor([0.0, 1.0]).atan2(Tensor([-1.0, 0.0])).numpy()
        array([3.1415927, 1.5707964], dtype=float32)
        """
        y, x = broadcast(as_float(self.uop), self._operand(other))
        return self._with(in_accumulator(elementary.atan2, y, x), other)

    arctan2 = atan2
