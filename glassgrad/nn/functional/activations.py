"""Provide the activations of torch.nn.functional. In, out: tensors of one shape.

With `inplace=True` the result is assigned to the input too. The formulas are in the tensor's methods of the same names.
"""

from __future__ import annotations

from glassgrad.base.settings import Context
from glassgrad.compiler.graph import DType
from glassgrad.nn.functional.fixed_arguments import for_each_rank, in_place, public_functions
from glassgrad.tensor.broadcast import in_kind
from glassgrad.tensor.formulas.neural import activations as formulas
from glassgrad.tensor.tensor import Tensor

LOWEST_SELU = -1.0507009873554804934193349852946 * 1.6732632423543772848170429916717      # selu at minus infinity


def _given(input: Tensor, result: Tensor, inplace: bool) -> Tensor:
    return input.assign(result) if inplace else result


# -- one parameter, or none ----------------------------------------------------------------------------------
def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(x, 0).

    >>> relu(Tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    return _given(input, input.relu(), inplace)


def relu6(input: Tensor, inplace: bool = False) -> Tensor: return _given(input, input.relu6(), inplace)
def silu(input: Tensor, inplace: bool = False) -> Tensor: return _given(input, input.silu(), inplace)
def mish(input: Tensor, inplace: bool = False) -> Tensor: return _given(input, input.mish(), inplace)
def selu(input: Tensor, inplace: bool = False) -> Tensor: return _given(input, input.selu(), inplace)
def hardswish(input: Tensor, inplace: bool = False) -> Tensor: return _given(input, input.hardswish(), inplace)
def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor: return _given(input, input.hardsigmoid(), inplace)
def sigmoid(input: Tensor) -> Tensor: return input.sigmoid()
def logsigmoid(input: Tensor) -> Tensor: return input.logsigmoid()
def tanh(input: Tensor) -> Tensor: return input.tanh()
def tanhshrink(input: Tensor) -> Tensor: return input.tanhshrink()
def softsign(input: Tensor) -> Tensor: return input.softsign()
def gelu(input: Tensor, approximate: str = "none") -> Tensor: return input.gelu(approximate)
def glu(input: Tensor, dim: int = -1) -> Tensor: return input.glu(dim)
def prelu(input: Tensor, weight: Tensor) -> Tensor: return input.prelu(weight)
def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor: return input.hardshrink(lambd)
def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor: return input.softshrink(lambd)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x, or alpha (exp(x) - 1) where x is negative."""
    return _given(input, input.elu(alpha), inplace)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x, or alpha (exp(x / alpha) - 1) where x is negative."""
    return _given(input, input.celu(alpha), inplace)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """x, or negative_slope * x where x is negative.

    >>> leaky_relu(Tensor([-1.0, 2.0]), negative_slope=0.5).tolist()
    [-0.5, 2.0]
    """
    return _given(input, input.leaky_relu(negative_slope), inplace)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """x limited to a range."""
    return _given(input, input.hardtanh(in_kind(min_val, input.dtype), in_kind(max_val, input.dtype)), inplace)


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """x where it is above a threshold, else a value."""
    return _given(input, input.threshold(in_kind(threshold, input.dtype), in_kind(value, input.dtype)), inplace)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta x)) / beta. (Above the threshold PyTorch returns x, to which this rounds.)"""
    return input.softplus(beta, threshold)


# -- along an axis -------------------------------------------------------------------------------------------
def _axis(input: Tensor, dim: int | None) -> int:
    """`dim`, or PyTorch's default: axis 0 of a tensor with 0, 1 or 3 axes, else axis 1."""
    return dim if dim is not None else 0 if input.ndim in (0, 1, 3) else 1


def softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None) -> Tensor:
    """exp(x) divided by its sum along an axis.

    >>> softmax(Tensor([[0.0, 0.0]]), dim=1).tolist()
    [[0.5, 0.5]]
    """
    return input.softmax(_axis(input, dim), dtype)


def log_softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None) -> Tensor:
    """The logarithm of softmax."""
    return input.log_softmax(_axis(input, dim), dtype)


def softmin(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None) -> Tensor:
    """softmax of -x."""
    return input.softmin(_axis(input, dim), dtype)


# -- with random numbers -------------------------------------------------------------------------------------
def gumbel_softmax(logits: Tensor, tau: float = 1.0, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """A sample from a distribution given by logits, softened by tau. With `hard` it is one-hot, with the gradient of
    the soft sample."""
    soft = ((logits + Tensor.gumbel(*logits.shape, device=logits.device)) / tau).softmax(dim)
    if not hard:
        return soft
    chosen = soft.argmax(dim).one_hot(soft.shape[dim]).movedim(-1, dim)
    return chosen.cast(soft.dtype) - soft.detach() + soft


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Set each value to 0 with probability p, divide the others by 1 - p. Depends on `training`, not `Tensor.train()`.

    >>> dropout(Tensor([1.0, 2.0]), 0.5, training=False).tolist()
    [1.0, 2.0]
    """
    with Context(TRAINING=int(training)):
        return _given(input, input.dropout(p), inplace)


def _dropped(input: Tensor, p: float, training: bool, drawn_axes: int | None = None, low: float = 0.0) -> Tensor:
    return input._with(formulas.dropout(input.uop, p, drawn_axes, low)) if training else input


def _dropout_channels(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, *,
                      rank: int) -> Tensor:
    """Drop whole channels: there is one draw for all space axes. As in PyTorch, three axes are (batch, channels,
    length) for every rank; otherwise the batch may be left out."""
    alone = input.ndim == rank + 1 and input.ndim != 3
    return _given(input, _dropped(input, p, training, 1 if alone else 2), inplace)


dropout1d, dropout2d, dropout3d = for_each_rank("dropout", _dropout_channels)


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Dropout that preserves mean 0 and variance 1 under selu: dropped values become selu's lower limit, then all are
    scaled (Klambauer et al., 2017)."""
    return _given(input, _dropped(input, p, training, None, LOWEST_SELU), inplace)


def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """`alpha_dropout` of whole channels of (batch, channels, ...space)."""
    return _given(input, _dropped(input, p, training, 2, LOWEST_SELU), inplace)


def rrelu(input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False,
          inplace: bool = False) -> Tensor:
    """A leaky relu whose slope is drawn for each value in training, and is the mean of its limits otherwise."""
    drawn = Tensor.uniform(*input.shape, low=lower, high=upper, device=input.device)
    below = input * (drawn if training else (lower + upper) / 2)
    return _given(input, (input >= 0).where(input, below), inplace)


# -- in place: relu_ and others ------------------------------------------------------------------------------
relu_, selu_, elu_, celu_, leaky_relu_, hardtanh_, threshold_, rrelu_ = map(
    in_place, (relu, selu, elu, celu, leaky_relu, hardtanh, threshold, rrelu))

__all__ = public_functions(globals())
