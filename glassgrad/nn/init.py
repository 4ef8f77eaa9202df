"""Initialize weights, as torch.nn.init does. In: a tensor. Out: the same tensor with new values.

    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

The tensor takes the values and keeps its type, its device and its requires_grad. A weight of shape (out, in, ...)
has `in` inputs and `out` outputs for every position of its window.
"""

from __future__ import annotations

import math
from typing import Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.tensor import checks
from glassgrad.tensor.tensor import Tensor

__all__ = ["calculate_gain", "constant_", "dirac_", "eye_", "kaiming_normal_", "kaiming_uniform_", "normal_", "ones_",
           "orthogonal_", "sparse_", "trunc_normal_", "uniform_", "xavier_normal_", "xavier_uniform_", "zeros_"]

_GAINS = {"tanh": 5 / 3, "relu": math.sqrt(2), "selu": 3 / 4}
_GAINS |= dict.fromkeys(("linear", "sigmoid", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
                         "conv_transpose3d"), 1.0)


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return the factor for the standard deviation of weights that compensates for how much a nonlinearity shrinks its
    input.

    >>> calculate_gain("relu"), calculate_gain("linear")
    (1.4142135623730951, 1.0)
    """
    checks.of_kind("str", "calculate_gain", nonlinearity=nonlinearity)
    param = checks.of_kind("float | None", "calculate_gain", param=param)
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in _GAINS:
        raise InputError("this nonlinearity has no gain", given=repr(nonlinearity),
                         expected=", ".join([*_GAINS, "leaky_relu"]), fix="choose the nearest of these")
    return _GAINS[nonlinearity]


def _numbers(what: str, **given: Any) -> list[Any]:
    """Return the given arguments, after checking that they are numbers, and that a deviation `std` is not negative."""
    if not checks.of_kind("float", what, std=given.get("std", 0.0)) >= 0.0:
        raise InputError("a deviation cannot be negative", given=f"std={given['std']}", expected="0 or more",
                         fix="check the setting")
    return [checks.of_kind("float", what, **{name: value}) for name, value in given.items()]


def _shape(tensor: Any) -> tuple[int, ...]:
    """Return the shape of a tensor; raise for anything else."""
    if not isinstance(tensor, Tensor):
        raise InputError("only a tensor can be given values", given=f"a {type(tensor).__name__}", expected="a tensor",
                         fix="pass the weight itself: nn.init.zeros_(layer.weight)")
    return tensor.shape


def _filled(tensor: Tensor, values: Tensor) -> Tensor:
    """Give a tensor these values; return the tensor."""
    return tensor.assign(values.to(tensor.device).cast(tensor.dtype))


def _inputs_and_outputs(tensor: Any) -> tuple[int, int]:
    shape = _shape(tensor)
    if len(shape) < 2:
        raise ShapeError("inputs and outputs are counted by two axes", given=f"a tensor of shape {shape}",
                         expected="(outputs, inputs, ...)", fix="fill a bias with zeros_ or uniform_")
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window


# -- by value --------------------------------------------------------------------------------------------------------
def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill the tensor with one value.

    >>> constant_(Tensor.zeros(2), 3).tolist()
    [3.0, 3.0]
    """
    val = checks.of_kind("float", "constant_", val=val)
    return _filled(tensor, Tensor.full(_shape(tensor), float(val)))


def ones_(tensor: Tensor) -> Tensor:
    """Fill the tensor with ones."""
    return _filled(tensor, Tensor.ones(*_shape(tensor)))


def zeros_(tensor: Tensor) -> Tensor:
    """Fill the tensor with zeros."""
    return _filled(tensor, Tensor.zeros(*_shape(tensor)))


def eye_(tensor: Tensor) -> Tensor:
    """Fill a matrix with ones on the diagonal, and zeros elsewhere."""
    return _filled(tensor, Tensor.eye(*_shape(tensor)))  # type: ignore[arg-type]


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
    """Fill the tensor with uniformly distributed numbers from a to b.

    >>> uniform_(Tensor.zeros(2), 5, 5).tolist()
    [5.0, 5.0]
    """
    a, b = _numbers("uniform_", a=a, b=b)
    return _filled(tensor, Tensor.uniform(*_shape(tensor), low=a, high=b))


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Fill the tensor with normally distributed numbers."""
    mean, std = _numbers("normal_", mean=mean, std=std)
    return _filled(tensor, Tensor.normal(*_shape(tensor), mean=mean, std=std))


def trunc_normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0) -> Tensor:
    """Fill the tensor with normally distributed numbers between a and b: uniform numbers, between the values of the
    distribution function there, through the inverse distribution function.

    >>> x = trunc_normal_(Tensor.zeros(1000), std=1.0, a=-0.5, b=0.5)
    >>> x.abs().max().item() <= 0.5
    True
    """
    mean, std, a, b = _numbers("trunc_normal_", mean=mean, std=std, a=a, b=b)
    if not std:
        return constant_(tensor, min(max(mean, a), b))
    low, high = (math.erf((end - mean) / (std * math.sqrt(2))) for end in (a, b))
    shares = Tensor.uniform(*_shape(tensor), low=low, high=high)
    return _filled(tensor, (shares.erfinv() * (std * math.sqrt(2)) + mean).clamp(a, b))


# -- by inputs and outputs -------------------------------------------------------------------------------------------
def xavier_uniform_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Fill the tensor with uniform numbers whose range keeps values and gradients from growing from layer to layer
    (Glorot and Bengio, 2010).

    >>> xavier_uniform_(Tensor.zeros(3, 3)).abs().max().item() <= 1
    True
    """
    gain = checks.of_kind("float", "xavier_uniform_", gain=gain)
    bound = gain * math.sqrt(6 / sum(_inputs_and_outputs(tensor)))
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """`xavier_uniform_` with normally distributed numbers."""
    gain = checks.of_kind("float", "xavier_normal_", gain=gain)
    return normal_(tensor, 0.0, gain * math.sqrt(2 / sum(_inputs_and_outputs(tensor))))


def _kaiming_deviation(what: str, tensor: Any, a: float, mode: str, nonlinearity: str) -> float:
    a = checks.of_kind("float", what, a=a)
    checks.of_kind("str", what, mode=mode, nonlinearity=nonlinearity)
    checks.choice("a weight is scaled by its inputs or its outputs", "leave mode out: it is fan_in", mode=mode,
                  among=("fan_in", "fan_out"))
    count = _inputs_and_outputs(tensor)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(max(count, 1))


def kaiming_uniform_(tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> Tensor:
    """Fill the tensor with uniform numbers whose range preserves the variance of values through rectifiers (He et al.,
    2015).

    >>> kaiming_uniform_(Tensor.zeros(4, 6), nonlinearity="relu").abs().max().item() <= 1
    True
    """
    bound = math.sqrt(3) * _kaiming_deviation("kaiming_uniform_", tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> Tensor:
    """`kaiming_uniform_` with normally distributed numbers."""
    return normal_(tensor, 0.0, _kaiming_deviation("kaiming_normal_", tensor, a, mode, nonlinearity))


def orthogonal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Fill the tensor with orthogonal rows (or columns, if they are fewer), each of norm `gain` (Saxe et al., 2014).

    >>> w = orthogonal_(Tensor.zeros(2, 3))
    >>> (w @ w.T).round().abs().tolist()          # a rounded 0 may be -0
    [[1.0, 0.0], [0.0, 1.0]]
    """
    gain = checks.of_kind("float", "orthogonal_", gain=gain)
    _inputs_and_outputs(tensor)
    rows, columns = tensor.shape[0], math.prod(tensor.shape[1:])
    q, r = Tensor.randn(max(rows, columns), min(rows, columns)).qr("reduced")
    q = q * r.diagonal().sign()                                  # makes all rotations equally likely
    return _filled(tensor, ((q if rows >= columns else q.T) * gain).reshape(tensor.shape))


# -- mostly zeros ----------------------------------------------------------------------------------------------------
def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Fill the weight of a convolution so that it is the identity in each group: ones in the middle of the windows
    where input and output channel are the same.

    >>> dirac_(Tensor.zeros(2, 2, 3))[:, :, 1].tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    groups = checks.of_kind("int", "dirac_", groups=groups)
    shape = _shape(tensor)
    if len(shape) not in (3, 4, 5) or shape[0] % groups:
        raise ShapeError("dirac_ fills the weight of a convolution", given=f"shape {shape}, groups={groups}",
                         expected="(out, in, ...window) of 3 to 5 axes, groups that divide out",
                         fix="use eye_ for a matrix")
    passed = Tensor.eye(shape[0] // groups, shape[1])
    weight = passed.cat(*[passed] * (groups - 1)).reshape(*shape[:2], *(1,) * (len(shape) - 2))
    return _filled(tensor, weight.pad(((0, 0), (0, 0), *((n // 2, n - 1 - n // 2) for n in shape[2:]))))


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01) -> Tensor:
    """Fill the tensor with normally distributed numbers, and the fraction `sparsity` of each column with zeros
    (Martens, 2010).

    >>> (sparse_(Tensor.ones(10, 4), 0.3) == 0).sum(0).tolist()
    [3, 3, 3, 3]
    """
    sparsity, std = _numbers("sparse_", sparsity=sparsity, std=std)
    shape = _shape(tensor)
    if len(shape) != 2:
        raise ShapeError("sparse_ fills a matrix", given=f"shape {shape}", expected="2 axes",
                         fix="reshape the weight first")
    place = Tensor.rand(*shape).argsort(0).argsort(0)                  # a random permutation for each column
    return _filled(tensor, (place < math.ceil(sparsity * shape[0])).where(0.0, Tensor.randn(*shape) * std))
