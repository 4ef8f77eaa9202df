"""What stands between layers, element by element: relu and its relatives. In, out: tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.uop import const
from glassgrad.tensor.broadcast import working_axis
from glassgrad.tensor.formulas import elementary
from glassgrad.tensor.methods.neural.convolution import Convolution

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Activations"]


class Activations(Convolution):
    """relu and its relatives."""
    __slots__ = ()

    def relu(self) -> Self:
        """max(x, 0); NaN stays NaN.

        >>> Tensor([-1.0, 2.0]).relu().tolist()
        [0.0, 2.0]
        """
        return self._with(self.uop.maximum(const(0, self.uop.dtype)))

    def relu6(self) -> Self:
        """min(max(x, 0), 6).

        >>> Tensor([-1.0, 2.0, 9.0]).relu6().tolist()
        [0.0, 2.0, 6.0]
        """
        return self._between(0, 6)

    def leaky_relu(self, neg_slope: float = 0.01) -> Self:
        """x where it is positive, neg_slope * x elsewhere.

        >>> Tensor([-1.0, 2.0]).leaky_relu(0.5).tolist()
        [-0.5, 2.0]
        """
        return (self > 0).where(self, self * neg_slope)

    def elu(self, alpha: float = 1.0) -> Self:
        """x where it is positive, alpha (e^x - 1) elsewhere.

        >>> Tensor([float("-inf"), 2.0]).elu().tolist()
        [-1.0, 2.0]
        """
        return self._formula(lambda x: (x > 0.0).where(x, elementary.expm1(x.minimum(0.0)) * alpha))

    def celu(self, alpha: float = 1.0) -> Self:
        """max(x, 0) + min(alpha (e^(x / alpha) - 1), 0).

        >>> Tensor([float("-inf"), 2.0]).celu(2.0).tolist()
        [-2.0, 2.0]
        """
        return self._formula(lambda x: (x > 0.0).where(x, elementary.expm1((x / alpha).minimum(0.0)) * alpha))

    def selu(self, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Self:
        """gamma elu(x, alpha): keeps mean 0 and variance 1 (Klambauer et al., 2017).

        >>> Tensor([0.0]).selu().tolist()
        [0.0]
        """
        return self.elu(alpha) * gamma

    def silu(self) -> Self:
        """x sigmoid(x).

        >>> Tensor([0.0]).silu().tolist()
        [0.0]
        """
        return self._formula(lambda x: x * elementary.sigmoid(x))

    def swish(self) -> Self:
        """x sigmoid(x); another name of `silu`.

        >>> Tensor([0.0]).swish().tolist()
        [0.0]
        """
        return self.silu()

    def gelu(self, approximate: str = "none") -> Self:
        """x (1 + erf(x / sqrt 2)) / 2 for approximate="none", as PyTorch has it; for approximate="tanh"
        x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.

        >>> Tensor([0.0, 100.0]).gelu().tolist()
        [0.0, 100.0]
        """
        if approximate not in ("none", "tanh"):
            raise InputError("there is no such gelu", given=f"approximate={approximate!r}", expected='"none" or "tanh"',
                             fix='write x.gelu() or x.gelu("tanh")')
        return self._formula(elementary.gelu if approximate == "none" else elementary.gelu_by_tanh)

    def quick_gelu(self) -> Self:
        """x sigmoid(1.702 x).

        >>> Tensor([0.0]).quick_gelu().tolist()
        [0.0]
        """
        return self._formula(lambda x: x * elementary.sigmoid(x * 1.702))

    def swiglu(self) -> Self:
        """The last axis cut in two halves a and b: silu(a) b (Shazeer, 2020).

        >>> Tensor([0.0, 5.0]).swiglu().tolist()
        [0.0]
        """
        size = self.shape[working_axis(-1, self.ndim, "swiglu")]
        if size % 2:
            raise ShapeError("swiglu needs an even axis", given=f"shape {self.shape}",
                             expected="a last axis of two equal halves", fix="check the layer before")
        a, b = self.split([size // 2, size // 2], dim=-1)
        return a.silu() * b

    def glu(self, dim: int = -1) -> Self:
        """An axis cut in two halves a and b: a sigmoid(b).

        >>> Tensor([4.0, 0.0]).glu().tolist()
        [2.0]
        """
        axis = working_axis(dim, self.ndim, "glu")
        if self.shape[axis] % 2:
            raise InputError(
                "glu needs an even axis",
                given=f"an axis of {self.shape[axis]}",
                expected="two equal halves",
                fix="check the layer before",
            )
        a, b = self.chunk(2, dim=axis)
        return a * b.sigmoid()

    def softplus(self, beta: float = 1.0, threshold: float = 20.0) -> Self:
        """ln(1 + e^(beta x)) / beta, without overflow, and x itself where beta x is above a threshold.

        >>> Tensor([1000.0, -1000.0]).softplus().tolist()
        [1000.0, 0.0]
        """
        if beta == 0:
            raise InputError("softplus needs a beta to divide by", given="beta=0", expected="a number that is not 0",
                             fix="write x.softplus(), or x.relu() for the limit of large beta")
        found = self._formula(lambda x: elementary.softplus(x) if beta == 1
                              else elementary.softplus(x * beta) * (1 / beta))
        # from 20 on the two are the same number in float32: only a lower threshold changes anything
        return found if threshold >= 20 else (self * beta > threshold).where(self, found)

    def logsigmoid(self) -> Self:
        """ln(sigmoid(x)), without underflow.

        >>> Tensor([-1000.0]).logsigmoid().tolist()
        [-1000.0]
        """
        return self._formula(lambda x: -elementary.softplus(-x))

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
        return self / (self.abs() + 1)

    def hardtanh(self, min_val: float = -1, max_val: float = 1) -> Self:
        """x limited to min_val and max_val.

        >>> Tensor([-3.0, 0.5]).hardtanh().tolist()
        [-1.0, 0.5]
        """
        return self._between(min_val, max_val)

    def _between(self, low: float, high: float) -> Self:
        """x within limits; there is no gradient at the limits themselves."""
        return self._binary(o.MAX, low)._binary(o.MIN, high)

    def hardsigmoid(self, alpha: float = 1 / 6, beta: float = 0.5) -> Self:
        """alpha x + beta limited to 0 and 1.

        >>> Tensor([-9.0, 0.0, 9.0]).hardsigmoid().tolist()
        [0.0, 0.5, 1.0]
        """
        return (self * alpha + beta)._between(0, 1)

    def hardswish(self) -> Self:
        """x relu6(x + 3) / 6.

        >>> Tensor([-4.0, 3.0]).hardswish().tolist()
        [-0.0, 3.0]
        """
        return self * (self + 3).relu6() * (1 / 6)

    def prelu(self, weight: Self) -> Self:
        """x where it is positive, weight x elsewhere; one weight, or one per channel (axis 1).

        >>> Tensor([-2.0, 2.0]).prelu(Tensor([0.5])).tolist()
        [-1.0, 2.0]
        """
        slope = weight.reshape(()) if weight.numel() == 1 else weight.reshape((-1,) + (1,) * max(self.ndim - 2, 0))
        return (self > 0).where(self, self * slope)

    def threshold(self, threshold: float, value: float) -> Self:
        """x where it is above a threshold, `value` elsewhere.

        >>> Tensor([0.5, 2.0]).threshold(1, 9).tolist()
        [9.0, 2.0]
        """
        return (self > threshold).where(self, value)

    def hardshrink(self, lambd: float = 0.5) -> Self:
        """x where |x| is above lambd, 0 elsewhere; NaN stays NaN.

        >>> Tensor([0.25, -2.0]).hardshrink().tolist()
        [0.0, -2.0]
        """
        return (self.abs() <= lambd).where(0, self)

    def softshrink(self, lambd: float = 0.5) -> Self:
        """x moved toward 0 by lambd, stopping there.

        >>> Tensor([0.25, -2.0]).softshrink().tolist()
        [0.0, -1.5]
        """
        return (self.abs() <= lambd).where(0, (self > 0).where(self - lambd, self + lambd))

    def tanhshrink(self) -> Self:
        """x - tanh(x).

        >>> Tensor([0.0]).tanhshrink().tolist()
        [0.0]
        """
        return self - self.tanh()
