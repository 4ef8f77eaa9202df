"""Define activations as layers, for lists of layers. In, out: tensors.

Each calls the function of `nn.functional` that has its name and settings. In a list of layers the method of Tensor may
be used instead: `Tensor.relu`.
"""

from __future__ import annotations

from glassgrad.base.settings import settings
from glassgrad.nn.functional import activations as F
from glassgrad.nn.modules.layer import FunctionLayer, Layer
from glassgrad.tensor.tensor import Tensor


class ReLU(FunctionLayer, function=F.relu):
    """max(x, 0).

    >>> ReLU()(Tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """


class ReLU6(FunctionLayer, function=F.relu6):
    """min(max(x, 0), 6).

    >>> ReLU6()(Tensor([-1.0, 9.0])).tolist()
    [0.0, 6.0]
    """


class LeakyReLU(FunctionLayer, function=F.leaky_relu):
    """x where it is positive, else negative_slope * x.

    >>> LeakyReLU(0.5)(Tensor([-1.0, 2.0])).tolist()
    [-0.5, 2.0]
    """


class RReLU(FunctionLayer, function=F.rrelu, settings=("lower", "upper", "inplace")):
    """x where it is positive, else a slope times x. In training each slope is drawn between two limits, otherwise it is
    their middle (Xu et al., 2015).

    >>> RReLU(0.25, 0.75)(Tensor([-1.0, 2.0])).tolist()
    [-0.5, 2.0]
    """
    def forward(self, x: Tensor) -> Tensor: return super().forward(x, training=bool(settings.TRAINING))


class PReLU(Layer):
    """x where it is positive, else weight * x; the weight is learned, one for all channels or one per channel (axis 1).

    >>> PReLU()(Tensor([-1.0, 2.0])).tolist()
    [-0.25, 2.0]
    """
    shows = ("num_parameters",)

    def __init__(self, num_parameters: int = 1, init: float = 0.25):
        self.num_parameters = num_parameters
        self.weight = Tensor.full((num_parameters,), init, requires_grad=True)

    def forward(self, x: Tensor) -> Tensor:
        if self.num_parameters > 1 and (x.ndim < 2 or x.shape[1] != self.num_parameters):
            self._refuse(x, f"(batch, {self.num_parameters}, ...)", "check num_parameters")
        return x.prelu(self.weight)


class ELU(FunctionLayer, function=F.elu):
    """x where it is positive, else alpha (e^x - 1).

    >>> ELU()(Tensor([2.0])).tolist()
    [2.0]
    """


class CELU(FunctionLayer, function=F.celu):
    """max(x, 0) + min(0, alpha (e^(x / alpha) - 1)).

    >>> CELU()(Tensor([2.0])).tolist()
    [2.0]
    """


class SELU(FunctionLayer, function=F.selu):
    """The scaled ELU whose outputs keep mean 0 and variance 1.

    >>> SELU()(Tensor([0.0])).tolist()
    [0.0]
    """


class GELU(FunctionLayer, function=F.gelu):
    """x times the normal distribution function of x; `approximate="tanh"` takes the tanh formula.

    >>> GELU()(Tensor([0.0])).tolist()
    [0.0]
    """


class SiLU(FunctionLayer, function=F.silu):
    """x sigmoid(x).

    >>> SiLU()(Tensor([0.0])).tolist()
    [0.0]
    """


Swish = SiLU


class Mish(FunctionLayer, function=F.mish):
    """x tanh(ln(1 + e^x)).

    >>> Mish()(Tensor([0.0])).tolist()
    [0.0]
    """


class Sigmoid(FunctionLayer, function=F.sigmoid):
    """1 / (1 + e^-x).

    >>> Sigmoid()(Tensor([0.0])).tolist()
    [0.5]
    """


class Tanh(FunctionLayer, function=F.tanh):
    """The hyperbolic tangent.

    >>> Tanh()(Tensor([0.0])).tolist()
    [0.0]
    """


class Softplus(FunctionLayer, function=F.softplus):
    """ln(1 + e^(beta x)) / beta, or x itself where beta x is above `threshold`.

    >>> Softplus()(Tensor([100.0])).tolist()
    [100.0]
    """


class Softsign(FunctionLayer, function=F.softsign):
    """x / (1 + |x|).

    >>> Softsign()(Tensor([1.0])).tolist()
    [0.5]
    """


class LogSigmoid(FunctionLayer, function=F.logsigmoid):
    """ln(sigmoid(x)).

    >>> LogSigmoid()(Tensor([-1000.0])).tolist()
    [-1000.0]
    """


class Hardtanh(FunctionLayer, function=F.hardtanh):
    """x limited to the range from min_val to max_val.

    >>> Hardtanh()(Tensor([-3.0, 0.5])).tolist()
    [-1.0, 0.5]
    """


class Hardsigmoid(FunctionLayer, function=F.hardsigmoid):
    """x / 6 + 1/2, limited to the range from 0 to 1.

    >>> Hardsigmoid()(Tensor([-9.0, 0.0])).tolist()
    [0.0, 0.5]
    """


class Hardswish(FunctionLayer, function=F.hardswish):
    """x hardsigmoid(x).

    >>> Hardswish()(Tensor([-9.0, 6.0])).tolist()
    [-0.0, 6.0]
    """


class Hardshrink(FunctionLayer, function=F.hardshrink):
    """x, or 0 where x is between -lambd and lambd.

    >>> Hardshrink()(Tensor([-0.25, 2.0])).tolist()
    [0.0, 2.0]
    """


class Softshrink(FunctionLayer, function=F.softshrink):
    """x moved towards 0 by lambd, or 0 where x is between -lambd and lambd.

    >>> Softshrink()(Tensor([-0.25, 2.0])).tolist()
    [0.0, 1.5]
    """


class Tanhshrink(FunctionLayer, function=F.tanhshrink):
    """x - tanh(x).

    >>> Tanhshrink()(Tensor([0.0])).tolist()
    [0.0]
    """


class Threshold(FunctionLayer, function=F.threshold):
    """x where it is above the threshold, else a value.

    >>> Threshold(1.0, 5.0)(Tensor([0.0, 2.0])).tolist()
    [5.0, 2.0]
    """


class GLU(FunctionLayer, function=F.glu):
    """The first half along `dim` times the sigmoid of the second.

    >>> GLU()(Tensor([[2.0, 0.0]])).tolist()
    [[1.0]]
    """


class Softmax(FunctionLayer, function=F.softmax, settings=("dim",)):
    """e^x divided by its sum along `dim`.

    >>> Softmax(-1)(Tensor([[1.0, 1.0]])).tolist()
    [[0.5, 0.5]]
    """


class LogSoftmax(FunctionLayer, function=F.log_softmax, settings=("dim",)):
    """The logarithm of `Softmax`.

    >>> LogSoftmax()(Tensor([[1000.0, 0.0]])).tolist()
    [[0.0, -1000.0]]
    """


class Softmin(FunctionLayer, function=F.softmin, settings=("dim",)):
    """`Softmax` of -x.

    >>> Softmin()(Tensor([[1.0, 1.0]])).tolist()
    [[0.5, 0.5]]
    """


class Softmax2d(Layer):
    """`Softmax` over the channels of (batch, channels, height, width).

    >>> Softmax2d()(Tensor.ones(1, 2, 1, 1)).flatten().tolist()
    [0.5, 0.5]
    """
    def __init__(self) -> None:
        """It has no settings."""

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim not in (3, 4):
            self._refuse(x, "(batch, channels, height, width), or without the batch",
                         "use Softmax(dim) for other shapes")
        return x.softmax(-3)
