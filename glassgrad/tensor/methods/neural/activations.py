"""Activation functions, element by element: relu and its relatives. In, out: tensors."""

from __future__ import annotations

from typing import Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.tensor import checks
from glassgrad.tensor.base import Self, TensorBase
from glassgrad.tensor.broadcast import working_axis
from glassgrad.tensor.formulas import elementary
from glassgrad.tensor.formulas.arithmetic import add, as_float, in_accumulator, less, mul, sub, where
from glassgrad.tensor.formulas.movement import halves
from glassgrad.tensor.formulas.neural import activations

__all__ = ["ActivationsMixin"]


class ActivationsMixin(TensorBase):
    """relu and its relatives."""
    __slots__ = ()

    def relu(self) -> Self:
        """max(x, 0); NaN stays NaN.

        >>> Tensor([-1.0, 2.0]).relu().tolist()
        [0.0, 2.0]
        """
        return self._with(activations.relu(self.uop))

    def relu6(self) -> Self:
        """min(max(x, 0), 6).

        >>> Tensor([-1.0, 2.0, 9.0]).relu6().tolist()
        [0.0, 2.0, 6.0]
        """
        return self._with(activations.between(self.uop, 0, 6))

    def leaky_relu(self, neg_slope: float = 0.01) -> Self:
        """x where it is positive, neg_slope * x elsewhere.

        >>> Tensor([-1.0, 2.0]).leaky_relu(0.5).tolist()
        [-0.5, 2.0]
        """
        return self._with(activations.leaky_relu(self.uop, self._operand(neg_slope, "as a slope")), neg_slope)

    def elu(self, alpha: float = 1.0) -> Self:
        """x where it is positive, alpha (e^x - 1) elsewhere.

        >>> Tensor([float("-inf"), 2.0]).elu().tolist()
        [-1.0, 2.0]
        """
        alpha = checks.number("elu", alpha=alpha)
        return self._with(in_accumulator(lambda x: activations.elu(x, alpha), as_float(self.uop)))

    def celu(self, alpha: float = 1.0) -> Self:
        """max(x, 0) + min(alpha (e^(x / alpha) - 1), 0).

        >>> Tensor([float("-inf"), 2.0]).celu(2.0).tolist()
        [-2.0, 2.0]
        """
        alpha = checks.number("celu", alpha=alpha)
        return self._with(in_accumulator(lambda x: activations.celu(x, alpha), as_float(self.uop)))

    def selu(self, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Self:
        """gamma elu(x, alpha): keeps mean 0 and variance 1 (Klambauer et al., 2017).

        >>> Tensor([0.0]).selu().tolist()
        [0.0]
        """
        alpha, gamma = checks.number("selu", alpha=alpha), checks.number("selu", gamma=gamma)
        return self._with(mul(in_accumulator(lambda x: activations.elu(x, alpha), as_float(self.uop)), gamma))

    def silu(self) -> Self:
        """x sigmoid(x).

        >>> Tensor([0.0]).silu().tolist()
        [0.0]
        """
        return self._with(activations.silu(self.uop))

    def swish(self) -> Self:
        """x sigmoid(x); another name of `silu`.

        >>> Tensor([0.0]).swish().tolist()
        [0.0]
        """
        return self._with(activations.silu(self.uop))

    def gelu(self, approximate: str = "none") -> Self:
        """x (1 + erf(x / sqrt 2)) / 2 for approximate="none", as PyTorch has it; for approximate="tanh"
        x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.

        >>> Tensor([0.0, 100.0]).gelu().tolist()
        [0.0, 100.0]
        """
        checks.choice("gelu", "there is no such gelu", 'write x.gelu() or x.gelu("tanh")', approximate=approximate,
                      among=("none", "tanh"))
        formula = elementary.gelu if approximate == "none" else elementary.gelu_by_tanh
        return self._with(in_accumulator(formula, as_float(self.uop)))

    def quick_gelu(self) -> Self:
        """x sigmoid(1.702 x).

        >>> Tensor([0.0]).quick_gelu().tolist()
        [0.0]
        """
        return self._with(in_accumulator(lambda x: x * elementary.sigmoid(x * 1.702), as_float(self.uop)))

    def swiglu(self) -> Self:
        """The last axis cut in two halves a and b: silu(a) b (Shazeer, 2020).

        >>> Tensor([0.0, 5.0]).swiglu().tolist()
        [0.0]
        """
        axis = working_axis(-1, self.ndim, "swiglu")
        if self.shape[axis] % 2:
            raise ShapeError("swiglu needs an even axis", given=f"shape {self.shape}",
                             expected="a last axis of two equal halves", fix="check the layer before")
        a, b = halves(self.uop, axis)
        return self._with(mul(activations.silu(a), b))

    def glu(self, dim: int = -1, **spelling: Any) -> Self:
        """An axis cut in two halves a and b: a sigmoid(b).

        >>> Tensor([4.0, 0.0]).glu().tolist()
        [2.0]
        """
        dim, = checks.spelled("glu", spelling, dim=dim)
        axis = working_axis(dim, self.ndim, "glu")
        if self.shape[axis] % 2:
            raise InputError("glu needs an even axis", given=f"an axis of {self.shape[axis]}",
                             expected="two equal halves", fix="check the layer before")
        a, b = halves(self.uop, axis)
        return self._with(mul(a, activations.sigmoid(b)))

    def softplus(self, beta: float = 1.0, threshold: float = 20.0) -> Self:
        """ln(1 + e^(beta x)) / beta, without overflow, and x itself where beta x is above a threshold.

        >>> Tensor([1000.0, -1000.0]).softplus().tolist()
        [1000.0, 0.0]
        """
        beta, threshold = checks.number("softplus", beta=beta), checks.number("softplus", threshold=threshold)
        if beta == 0:
            raise InputError("softplus needs a beta to divide by", given="beta=0", expected="a number that is not 0",
                             fix="write x.softplus(), or x.relu() for the limit of large beta")
        return self._with(activations.softplus(self.uop, beta, threshold))

    def logsigmoid(self) -> Self:
        """ln(sigmoid(x)), without underflow.

        >>> Tensor([-1000.0]).logsigmoid().tolist()
        [-1000.0]
        """
        return self._with(activations.log_sigmoid(self.uop))

    def mish(self) -> Self:
        """x tanh(softplus(x)) (Misra, 2019).

        >>> Tensor([0.0]).mish().tolist()
        [0.0]
        """
        return self._with(in_accumulator(activations.mish, as_float(self.uop)))

    def softsign(self) -> Self:
        """x / (1 + |x|).

        >>> Tensor([1.0, -3.0]).softsign().tolist()
        [0.5, -0.75]
        """
        return self._with(activations.softsign(self.uop))

    def hardtanh(self, min_val: float = -1, max_val: float = 1, **spelling: Any) -> Self:
        """x limited to min_val and max_val.

        >>> Tensor([-3.0, 0.5]).hardtanh().tolist()
        [-1.0, 0.5]
        """
        low, high = checks.spelled("hardtanh", spelling, min_val=min_val, max_val=max_val)
        limits = checks.number("hardtanh", min_val=low), checks.number("hardtanh", max_val=high)
        return self._with(activations.between(self.uop, *limits))

    def hardsigmoid(self, alpha: float = 1 / 6, beta: float = 0.5) -> Self:
        """alpha x + beta limited to 0 and 1.

        >>> Tensor([-9.0, 0.0, 9.0]).hardsigmoid().tolist()
        [0.0, 0.5, 1.0]
        """
        alpha, beta = checks.number("hardsigmoid", alpha=alpha), checks.number("hardsigmoid", beta=beta)
        return self._with(activations.between(add(mul(self.uop, alpha), beta), 0, 1))

    def hardswish(self) -> Self:
        """x relu6(x + 3) / 6.

        >>> Tensor([-4.0, 3.0]).hardswish().tolist()
        [-0.0, 3.0]
        """
        return self._with(activations.hardswish(self.uop))

    def prelu(self, weight: Self) -> Self:
        """x where it is positive, weight x elsewhere; one weight, or one per channel (axis 1).

        >>> Tensor([-2.0, 2.0]).prelu(Tensor([0.5])).tolist()
        [-1.0, 2.0]
        """
        checks.tensors("prelu", weight=weight)
        per_channel = (weight.numel(),) + (1,) * max(self.ndim - 2, 0)
        slope = weight.uop.reshape(() if weight.numel() == 1 else per_channel)
        return self._with(activations.leaky_relu(self.uop, slope), weight)

    def threshold(self, threshold: float, value: float) -> Self:
        """x where it is above a threshold, `value` elsewhere.

        >>> Tensor([0.5, 2.0]).threshold(1, 9).tolist()
        [9.0, 2.0]
        """
        limit, other = self._operand(threshold, "as a threshold"), self._operand(value, "in where")
        return self._with(where(less(limit, self.uop), self.uop, other), threshold, value)

    def hardshrink(self, lambd: float = 0.5) -> Self:
        """x where |x| is above lambd, 0 elsewhere; NaN stays NaN.

        >>> Tensor([0.25, -2.0]).hardshrink().tolist()
        [0.0, -2.0]
        """
        return self._with(activations.hardshrink(self.uop, checks.number("hardshrink", lambd=lambd)))

    def softshrink(self, lambd: float = 0.5) -> Self:
        """x moved toward 0 by lambd, stopping there.

        >>> Tensor([0.25, -2.0]).softshrink().tolist()
        [0.0, -1.5]
        """
        return self._with(activations.softshrink(self.uop, checks.number("softshrink", lambd=lambd)))

    def tanhshrink(self) -> Self:
        """x - tanh(x).

        >>> Tensor([0.0]).tanhshrink().tolist()
        [0.0]
        """
        return self._with(sub(self.uop, activations.tanh(self.uop)))
