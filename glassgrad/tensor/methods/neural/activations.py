"""Define activation functions, softmax and dropout. In, out: tensors."""

from __future__ import annotations

from typing import Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.base.settings import settings
from glassgrad.compiler.graph import DType, UOp
from glassgrad.tensor.formulas import (absolute, add, as_float, at_most, elementary, halves, in_accumulator, mul, sub,
                                       where)
from glassgrad.tensor.formulas.neural import activations
from glassgrad.tensor.methods import (Axis, Self, TensorBase, arguments, choice, computed, fraction, spelled,
                                      working_axis)


class ActivationsMixin(TensorBase):
    """Activation functions."""
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
        return self._combined(activations.leaky_relu, neg_slope, beside="as a slope")

    leakyrelu = leaky_relu          # its older name

    def elu(self, alpha: float = 1.0) -> Self:
        """x where it is positive, alpha (e^x - 1) elsewhere.

        >>> Tensor([float("-inf"), 2.0]).elu().tolist()
        [-1.0, 2.0]
        """
        return self._formula(activations.elu, *arguments("elu", alpha=alpha))

    def celu(self, alpha: float = 1.0) -> Self:
        """max(x, 0) + min(alpha (e^(x / alpha) - 1), 0).

        >>> Tensor([float("-inf"), 2.0]).celu(2.0).tolist()
        [-2.0, 2.0]
        """
        alpha, = arguments("celu", alpha=alpha)
        if alpha == 0:
            raise InputError("celu needs an alpha to divide by", given="alpha=0", expected="a number that is not 0",
                             fix="write x.celu(), or x.relu() for the limit of small alpha")
        return self._formula(activations.elu, alpha, 1 / alpha)

    def selu(self, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Self:
        """gamma elu(x, alpha): keeps mean 0 and variance 1 (Klambauer et al., 2017).

        >>> Tensor([0.0]).selu().tolist()
        [0.0]
        """
        alpha, gamma = arguments("selu", alpha=alpha, gamma=gamma)
        return self._formula(lambda x: activations.elu(x, alpha) * gamma)

    def silu(self) -> Self:
        """x sigmoid(x).

        >>> Tensor([0.0]).silu().tolist()
        [0.0]
        """
        return self._with(activations.silu(self.uop))

    swish = silu

    def gelu(self, approximate: str = "none") -> Self:
        """x (1 + erf(x / sqrt 2)) / 2 with approximate="none", as in PyTorch; with approximate="tanh" x (1 +
        tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.

        >>> Tensor([0.0, 100.0]).gelu().tolist()
        [0.0, 100.0]
        """
        choice("there is no such gelu", 'write x.gelu() or x.gelu("tanh")', approximate=approximate,
               among=("none", "tanh"))
        return self._formula(elementary.gelu if approximate == "none" else elementary.gelu_by_tanh)

    def quick_gelu(self) -> Self:
        """x sigmoid(1.702 x).

        >>> Tensor([0.0]).quick_gelu().tolist()
        [0.0]
        """
        return self._formula(lambda x: x * elementary.sigmoid(x * 1.702))

    def swiglu(self) -> Self:
        """silu(a) b, for the halves a and b of the last axis (Shazeer, 2020).

        >>> Tensor([0.0, 5.0]).swiglu().tolist()
        [0.0]
        """
        a, b = self._halves(-1, "swiglu")
        return self._with(mul(activations.silu(a), b))

    def glu(self, dim: int = -1, **spelling: Any) -> Self:
        """a sigmoid(b), for the halves a and b of an axis.

        >>> Tensor([4.0, 0.0]).glu().tolist()
        [2.0]
        """
        dim, = spelled("glu", spelling, dim=dim)
        a, b = self._halves(dim, "glu")
        return self._with(in_accumulator(lambda a, b: a * elementary.sigmoid(b), as_float(a), as_float(b)))

    def _halves(self, dim: int, what: str) -> tuple[UOp, UOp]:
        axis = working_axis(dim, self.ndim, what)
        if self.shape[axis] % 2:
            raise ShapeError(f"{what} needs an even axis", given=f"axis {axis} of shape {self.shape}",
                             expected="two equal halves", fix="check the layer before")
        return halves(self.uop, axis)

    def softplus(self, beta: float = 1.0, threshold: float = 20.0) -> Self:
        """ln(1 + e^(beta x)) / beta without overflow, or x itself where beta x is above a threshold.

        >>> Tensor([1000.0, -1000.0]).softplus().tolist()
        [1000.0, 0.0]
        """
        beta, threshold = arguments("softplus", beta=beta, threshold=threshold)
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
        return self._formula(lambda x: x * elementary.tanh(elementary.softplus(x)))

    def softsign(self) -> Self:
        """x / (1 + |x|).

        >>> Tensor([1.0, -3.0]).softsign().tolist()
        [0.5, -0.75]
        """
        x = as_float(self.uop)
        return self._with(x / (x.abs() + 1))

    def hardtanh(self, min_val: float = -1, max_val: float = 1, **spelling: Any) -> Self:
        """x limited to the range from min_val to max_val.

        >>> Tensor([-3.0, 0.5]).hardtanh().tolist()
        [-1.0, 0.5]
        """
        return computed(self, activations.between, "hardtanh", spelling, min_val=min_val, max_val=max_val)

    def hardsigmoid(self, alpha: float = 1 / 6, beta: float = 0.5) -> Self:
        """alpha x + beta limited to the range from 0 to 1.

        >>> Tensor([-9.0, 0.0, 9.0]).hardsigmoid().tolist()
        [0.0, 0.5, 1.0]
        """
        alpha, beta = arguments("hardsigmoid", alpha=alpha, beta=beta)
        return self._with(in_accumulator(lambda x: activations.between(add(mul(x, alpha), beta), 0, 1),
                                         as_float(self.uop)))

    def hardswish(self) -> Self:
        """x relu6(x + 3) / 6.

        >>> Tensor([-4.0, 3.0]).hardswish().tolist()
        [-0.0, 3.0]
        """
        return self._formula(lambda x: x * activations.between(x + 3, 0, 6) * (1 / 6))

    def prelu(self, weight: Self) -> Self:
        """x where it is positive, weight x elsewhere; one weight, or one per channel (axis 1).

        >>> Tensor([-2.0, 2.0]).prelu(Tensor([0.5])).tolist()
        [-1.0, 2.0]
        """
        weight, = arguments("prelu", weight=weight)
        per_channel = (weight.numel(),) + (1,) * max(self.ndim - 2, 0)
        slope = weight.uop.reshape(() if weight.numel() == 1 else per_channel)
        return self._with(activations.leaky_relu(self.uop, slope), weight)

    def threshold(self, threshold: float, value: float) -> Self:
        """`value` where x is at most a threshold, x elsewhere; NaN stays NaN.

        >>> Tensor([0.5, 2.0]).threshold(1, 9).tolist()
        [9.0, 2.0]
        """
        limit, other = self._operand(threshold, "as a threshold"), self._operand(value, "in where")
        return self._with(where(at_most(self.uop, limit), other, self.uop), threshold, value)

    def hardshrink(self, lambd: float = 0.5) -> Self:
        """x where |x| is above lambd, 0 elsewhere; NaN stays NaN.

        >>> Tensor([0.25, -2.0]).hardshrink().tolist()
        [0.0, -2.0]
        """
        return computed(self, lambda x, limit: absolute(x).le(limit).where(0, x), "hardshrink", lambd=lambd)

    def softshrink(self, lambd: float = 0.5) -> Self:
        """x moved toward 0 by lambd, stopping there.

        >>> Tensor([0.25, -2.0]).softshrink().tolist()
        [0.0, -1.5]
        """
        lambd, = arguments("softshrink", lambd=lambd)
        if not lambd >= 0:
            raise InputError("softshrink moves toward 0", given=f"lambd={lambd}", expected="0 or more",
                             fix="write x.softshrink(0.5), for example")
        return self._formula(activations.softshrink, lambd)

    def tanhshrink(self) -> Self:
        """x - tanh(x).

        >>> Tensor([0.0]).tanhshrink().tolist()
        [0.0]
        """
        return self._with(sub(self.uop, in_accumulator(elementary.tanh, as_float(self.uop))))

    # -- softmax ---------------------------------------------------------------------------------------------
    def softmax(self, axis: Axis = -1, dtype: DType | str | None = None, **spelling: Any) -> Self:
        """e^x over its sum along an axis: positive numbers that add up to 1.

        >>> Tensor([1.0, 1.0]).softmax().tolist()
        [0.5, 0.5]
        """
        return computed(self, activations.softmax, "softmax", spelling, axis=axis, dtype=dtype)

    def log_softmax(self, axis: Axis = -1, dtype: DType | str | None = None, **spelling: Any) -> Self:
        """The logarithm of `softmax`.

        >>> Tensor([1000.0, 0.0]).log_softmax().tolist()
        [0.0, -1000.0]
        """
        return computed(self, activations.log_softmax, "log_softmax", spelling, axis=axis, dtype=dtype)

    def softmin(self, axis: Axis = -1, dtype: DType | str | None = None, **spelling: Any) -> Self:
        """softmax(-x).

        >>> Tensor([1.0, 1.0]).softmin().tolist()
        [0.5, 0.5]
        """
        return computed(self, lambda x, *given: activations.softmax(-as_float(x), *given), "softmin", spelling,
                        axis=axis, dtype=dtype)

    # -- dropout ---------------------------------------------------------------------------------------------
    def dropout(self, p: float = 0.5) -> Self:
        """In training, each value is 0 with probability p, and the others are divided by 1 - p. Else unchanged. See
        `Tensor.train`.

        >>> Tensor([1.0, 2.0]).dropout(0.9).tolist()
        [1.0, 2.0]
        """
        p = fraction("dropout", "dropout needs a probability", "write x.dropout(0.5), for example", p=p)
        return self._with(activations.dropout(self.uop, p)) if settings.TRAINING and p else self
