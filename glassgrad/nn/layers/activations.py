"""Activations as layers, for lists of layers. In, out: tensors.

Each calls the method of Tensor (or the function of `functional`) whose name it has; in a list of layers the method
does as well: `Tensor.relu`.
"""

from __future__ import annotations

from glassgrad.base.settings import settings
from glassgrad.nn.functional.activations import log_softmax, rrelu, softmax, softmin
from glassgrad.nn.modules.layer import Layer
from glassgrad.tensor.tensor import Tensor

__all__ = ["ReLU", "ReLU6", "LeakyReLU", "PReLU", "ELU", "CELU", "SELU", "GELU", "SiLU", "Swish", "Mish", "Sigmoid",
           "Tanh", "Softplus", "Softsign", "LogSigmoid", "Hardtanh", "Hardsigmoid", "Hardswish", "Hardshrink",
           "Softshrink", "Tanhshrink", "Threshold", "GLU", "Softmax", "LogSoftmax", "Softmin", "Softmax2d", "RReLU"]


class _Plain(Layer):
    """A layer without settings but PyTorch's `inplace`, which means nothing to values that do not change."""

    def __init__(self, inplace: bool = False):
        pass


class ReLU(_Plain):
    """max(x, 0).

    >>> ReLU()(Tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    def forward(self, x: Tensor) -> Tensor: return x.relu()


class ReLU6(_Plain):
    """min(max(x, 0), 6).

    >>> ReLU6()(Tensor([-1.0, 9.0])).tolist()
    [0.0, 6.0]
    """
    def forward(self, x: Tensor) -> Tensor: return x.relu6()


class LeakyReLU(Layer):
    """x where it is positive, else negative_slope x.

    >>> LeakyReLU(0.5)(Tensor([-1.0, 2.0])).tolist()
    [-0.5, 2.0]
    """
    shows = ("negative_slope",)

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False):
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor: return x.leaky_relu(self.negative_slope)


class RReLU(Layer):
    """x where it is positive, else a slope times x; in training each slope is drawn between two limits, otherwise it is
    their middle (Xu et al., 2015).

    >>> RReLU(0.25, 0.75)(Tensor([-1.0, 2.0])).tolist()
    [-0.5, 2.0]
    """
    shows = ("lower", "upper")

    def __init__(self, lower: float = 1 / 8, upper: float = 1 / 3, inplace: bool = False):
        self.lower, self.upper = lower, upper

    def forward(self, x: Tensor) -> Tensor: return rrelu(x, self.lower, self.upper, bool(settings.TRAINING))


class PReLU(Layer):
    """x where it is positive, else weight x; the weight is learned, one for all or one per channel (axis 1).

    >>> PReLU()(Tensor([-1.0, 2.0])).tolist()
    [-0.25, 2.0]
    """
    shows = ("num_parameters",)

    def __init__(self, num_parameters: int = 1, init: float = 0.25):
        self.num_parameters = num_parameters
        self.weight = Tensor.full((num_parameters,), init, requires_grad=True)

    def forward(self, x: Tensor) -> Tensor:
        if self.num_parameters > 1 and (x.ndim < 2 or x.shape[1] != self.num_parameters):
            self._refuse(f"an input of shape {x.shape}", f"(batch, {self.num_parameters}, ...)",
                         "check num_parameters")
        weight = self.weight.reshape((1, -1) + (1,) * (x.ndim - 2)) if x.ndim > 1 else self.weight
        return (x > 0).where(x, x * weight)


class ELU(Layer):
    """x where it is positive, else alpha (e^x - 1).

    >>> ELU()(Tensor([2.0])).tolist()
    [2.0]
    """
    shows = ("alpha",)

    def __init__(self, alpha: float = 1.0, inplace: bool = False):
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor: return x.elu(self.alpha)


class CELU(ELU):
    """max(x, 0) + min(0, alpha (e^(x / alpha) - 1)).

    >>> CELU()(Tensor([2.0])).tolist()
    [2.0]
    """
    def forward(self, x: Tensor) -> Tensor: return x.celu(self.alpha)


class SELU(_Plain):
    """The scaled ELU whose outputs keep mean 0 and variance 1.

    >>> SELU()(Tensor([0.0])).tolist()
    [0.0]
    """
    def forward(self, x: Tensor) -> Tensor: return x.selu()


class GELU(Layer):
    """x times the normal distribution's share below x; `approximate="tanh"` takes the tanh formula.

    >>> GELU()(Tensor([0.0])).tolist()
    [0.0]
    """
    shows = ("approximate",)

    def __init__(self, approximate: str = "none"):
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor: return x.gelu(self.approximate)


class SiLU(_Plain):
    """x sigmoid(x).

    >>> SiLU()(Tensor([0.0])).tolist()
    [0.0]
    """
    def forward(self, x: Tensor) -> Tensor: return x.silu()


Swish = SiLU


class Mish(_Plain):
    """x tanh(ln(1 + e^x)).

    >>> Mish()(Tensor([0.0])).tolist()
    [0.0]
    """
    def forward(self, x: Tensor) -> Tensor: return x.mish()


class Sigmoid(_Plain):
    """1 / (1 + e^-x).

    >>> Sigmoid()(Tensor([0.0])).tolist()
    [0.5]
    """
    def forward(self, x: Tensor) -> Tensor: return x.sigmoid()


class Tanh(_Plain):
    """The hyperbolic tangent.

    >>> Tanh()(Tensor([0.0])).tolist()
    [0.0]
    """
    def forward(self, x: Tensor) -> Tensor: return x.tanh()


class Softplus(Layer):
    """ln(1 + e^(beta x)) / beta; simply x where beta x is above `threshold`.

    >>> Softplus()(Tensor([100.0])).tolist()
    [100.0]
    """
    shows = ("beta", "threshold")

    def __init__(self, beta: float = 1.0, threshold: float = 20.0):
        self.beta, self.threshold = beta, threshold

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.beta > self.threshold).where(x, x.softplus(self.beta))


class Softsign(_Plain):
    """x / (1 + |x|).

    >>> Softsign()(Tensor([1.0])).tolist()
    [0.5]
    """
    def forward(self, x: Tensor) -> Tensor: return x.softsign()


class LogSigmoid(_Plain):
    """ln(sigmoid(x)).

    >>> LogSigmoid()(Tensor([-1000.0])).tolist()
    [-1000.0]
    """
    def forward(self, x: Tensor) -> Tensor: return x.logsigmoid()


class Hardtanh(Layer):
    """x, but not below min_val nor above max_val.

    >>> Hardtanh()(Tensor([-3.0, 0.5])).tolist()
    [-1.0, 0.5]
    """
    shows = ("min_val", "max_val")

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False):
        self.min_val, self.max_val = min_val, max_val

    def forward(self, x: Tensor) -> Tensor: return x.hardtanh(self.min_val, self.max_val)


class Hardsigmoid(_Plain):
    """x / 6 + 1/2, but not below 0 nor above 1.

    >>> Hardsigmoid()(Tensor([-9.0, 0.0])).tolist()
    [0.0, 0.5]
    """
    def forward(self, x: Tensor) -> Tensor: return x.hardsigmoid()


class Hardswish(_Plain):
    """x hardsigmoid(x).

    >>> Hardswish()(Tensor([-9.0, 6.0])).tolist()
    [-0.0, 6.0]
    """
    def forward(self, x: Tensor) -> Tensor: return x.hardswish()


class Hardshrink(Layer):
    """x, but 0 from -lambd to lambd.

    >>> Hardshrink()(Tensor([-0.25, 2.0])).tolist()
    [0.0, 2.0]
    """
    shows = ("lambd",)

    def __init__(self, lambd: float = 0.5):
        self.lambd = lambd

    def forward(self, x: Tensor) -> Tensor: return x.hardshrink(self.lambd)


class Softshrink(Hardshrink):
    """x nearer to 0 by lambd, and 0 from -lambd to lambd.

    >>> Softshrink()(Tensor([-0.25, 2.0])).tolist()
    [0.0, 1.5]
    """
    def forward(self, x: Tensor) -> Tensor: return x.softshrink(self.lambd)


class Tanhshrink(_Plain):
    """x - tanh(x).

    >>> Tanhshrink()(Tensor([0.0])).tolist()
    [0.0]
    """
    def forward(self, x: Tensor) -> Tensor: return x.tanhshrink()


class Threshold(Layer):
    """x where it is above the threshold, else a value.

    >>> Threshold(1.0, 5.0)(Tensor([0.0, 2.0])).tolist()
    [5.0, 2.0]
    """
    shows = ("threshold", "value")

    def __init__(self, threshold: float, value: float, inplace: bool = False):
        self.threshold, self.value = threshold, value

    def forward(self, x: Tensor) -> Tensor: return x.threshold(self.threshold, self.value)


class GLU(Layer):
    """The first half along `dim` times the sigmoid of the second.

    >>> GLU()(Tensor([[2.0, 0.0]])).tolist()
    [[1.0]]
    """
    shows = ("dim",)

    def __init__(self, dim: int = -1):
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor: return x.glu(self.dim)


class Softmax(Layer):
    """e^x over its sum along `dim`.

    >>> Softmax(-1)(Tensor([[1.0, 1.0]])).tolist()
    [[0.5, 0.5]]
    """
    shows = ("dim",)

    def __init__(self, dim: int | None = None):
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor: return softmax(x, self.dim)


class LogSoftmax(Softmax):
    """The logarithm of `Softmax`.

    >>> LogSoftmax()(Tensor([[1000.0, 0.0]])).tolist()
    [[0.0, -1000.0]]
    """
    def forward(self, x: Tensor) -> Tensor: return log_softmax(x, self.dim)


class Softmin(Softmax):
    """`Softmax` of -x.

    >>> Softmin()(Tensor([[1.0, 1.0]])).tolist()
    [[0.5, 0.5]]
    """
    def forward(self, x: Tensor) -> Tensor: return softmin(x, self.dim)


class Softmax2d(Layer):
    """`Softmax` over the channels of (batch, channels, height, width).

    >>> Softmax2d()(Tensor.ones(1, 2, 1, 1)).flatten().tolist()
    [0.5, 0.5]
    """
    def __init__(self) -> None:
        """It has no settings."""

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim not in (3, 4):
            self._refuse(f"an input of shape {x.shape}", "(batch, channels, height, width), or without the batch",
                         "use Softmax(dim) for other shapes")
        return x.softmax(-3)
