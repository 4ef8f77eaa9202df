"""Define elementwise operators, casts and random numbers. In: tensors. Out: tensors."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from glassgrad import DType, Tensor, dtypes
from glassgrad.onnx.graph import NodeCall
from glassgrad.onnx.operators import element_type, operator

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": Tensor.abs, "Acos": Tensor.acos, "Acosh": Tensor.acosh, "Asin": Tensor.asin, "Asinh": Tensor.asinh,
    "Atan": Tensor.atan, "Atanh": Tensor.atanh, "BitwiseNot": Tensor.bitwise_not, "Ceil": Tensor.ceil,
    "Cos": Tensor.cos, "Cosh": Tensor.cosh, "Erf": Tensor.erf, "Exp": Tensor.exp, "Floor": Tensor.floor,
    "HardSwish": Tensor.hardswish,
    "Identity": lambda x: x, "IsNaN": Tensor.isnan, "Log": Tensor.log, "Mish": Tensor.mish, "Neg": Tensor.neg,
    "Not": Tensor.logical_not, "Reciprocal": Tensor.reciprocal, "Relu": Tensor.relu, "Round": Tensor.round,
    "Sigmoid": Tensor.sigmoid, "Sign": Tensor.sign, "Sin": Tensor.sin, "Sinh": Tensor.sinh, "Softplus": Tensor.softplus,
    "Softsign": Tensor.softsign, "Sqrt": Tensor.sqrt, "Tan": Tensor.tan, "Tanh": Tensor.tanh}
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": Tensor.add, "And": Tensor.logical_and, "BitwiseAnd": Tensor.bitwise_and, "BitwiseOr": Tensor.bitwise_or,
    "BitwiseXor": Tensor.bitwise_xor, "Equal": Tensor.eq, "Greater": Tensor.gt, "GreaterOrEqual": Tensor.ge,
    "Less": Tensor.lt, "LessOrEqual": Tensor.le, "Mul": Tensor.mul, "Or": Tensor.logical_or, "Sub": Tensor.sub,
    "Xor": Tensor.logical_xor}


def _enter_unary(name: str, function: Callable[[Tensor], Tensor]) -> None:
    operator(name)(lambda x: function(x))


def _enter_binary(name: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    @operator(name)
    def compute(a: Tensor, b: Tensor, *, axis: int | None = None, broadcast: int = 0) -> Tensor:
        return function(a, aligned(a, b, axis))


def aligned(a: Tensor, b: Tensor, axis: int | None) -> Tensor:
    """Align the second operand as before opset 7, where its axes begin at `axis` of the first."""
    return b if axis is None else b.reshape(*b.shape, *[1] * (a.ndim - axis % a.ndim - b.ndim))


for _name, _unary in UNARY.items():
    _enter_unary(_name, _unary)
for _name, _binary in BINARY.items():
    _enter_binary(_name, _binary)


@operator("Div")
def div(a: Tensor, b: Tensor, *, axis: int | None = None, broadcast: int = 0) -> Tensor:
    b = aligned(a, b, axis)
    return a / b if a.is_floating_point() else a.div(b, rounding_mode="trunc")


@operator("Pow")
def power(a: Tensor, b: Tensor, *, axis: int | None = None, broadcast: int = 0) -> Tensor:
    return a.pow(aligned(a, b, axis)).cast(a.dtype)


@operator("Mod")
def mod(a: Tensor, b: Tensor, *, fmod: int = 0) -> Tensor:
    return a.fmod(b) if fmod else a.remainder(b)


@operator("BitShift")
def bit_shift(a: Tensor, b: Tensor, *, direction: str) -> Tensor:
    width = a.dtype.itemsize * 8
    too_far = b >= width if a.dtype.name.startswith("u") else (b >= width) | (b < 0)         # shifts out all bits
    if direction == "LEFT":
        return too_far.where(0, a.lshift(too_far.where(0, b))).cast(a.dtype)
    if a.dtype.name.startswith("u"):
        return too_far.where(0, a.rshift(too_far.where(0, b))).cast(a.dtype)
    return a.rshift(too_far.where(width - 1, b)).cast(a.dtype)


@operator("Max")
def maximum(*inputs: Tensor) -> Tensor:
    return functools.reduce(Tensor.maximum, inputs)


@operator("Min")
def minimum(*inputs: Tensor) -> Tensor:
    return functools.reduce(Tensor.minimum, inputs)


@operator("Sum")
def sum_of_inputs(*inputs: Tensor) -> Tensor:
    return functools.reduce(Tensor.add, inputs)


@operator("Mean")
def mean_of_inputs(*inputs: Tensor) -> Tensor:
    return functools.reduce(Tensor.add, inputs) / len(inputs)


@operator("Where")
def where(condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return condition.where(yes, no)


@operator("Clip", since=11)
def clip(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    x = x if low is None else x.maximum(low)
    return x if high is None else x.minimum(high)


@operator("Clip")
def clip_by_attributes(x: Tensor, *, min: float | None = None, max: float | None = None) -> Tensor:   # noqa: A002
    return x.clamp(min, max)


# -- activations -------------------------------------------------------------------------------------------------------
@operator("Celu")
def celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return x.celu(alpha)


@operator("Elu")
def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return x.elu(alpha)


@operator("Gelu")
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return x.gelu(approximate)


@operator("HardSigmoid")
def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    return (x * alpha + beta).clamp(0, 1)


@operator("LeakyRelu")
def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    return x.leaky_relu(alpha)


@operator("PRelu")
def prelu(x: Tensor, slope: Tensor) -> Tensor:
    if slope.ndim == 1 and x.ndim > 2 and slope.shape[0] == x.shape[1] != x.shape[-1]:       # opset 1: of each channel
        slope = slope.reshape(-1, *[1] * (x.ndim - 2))
    return (x < 0).where(x * slope, x)


@operator("Selu")
def selu(x: Tensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Tensor:
    return x.selu(alpha, gamma)


@operator("Shrink")
def shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    return (x < -lambd).where(x + bias, (x > lambd).where(x - bias, 0)).cast(x.dtype)


@operator("Swish")
def swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return x * (x * alpha).sigmoid()


@operator("ThresholdedRelu")
def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return (x > alpha).where(x, 0).cast(x.dtype)


@operator("IsInf")
def is_inf(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    wanted = x.isinf()
    wanted = wanted if detect_negative else wanted & (x > 0)
    return wanted if detect_positive else wanted & (x < 0)


# -- types -------------------------------------------------------------------------------------------------------------
LARGEST = {"fp8e4m3": 448.0, "fp8e5m2": 57344.0, "fp8e4m3fnuz": 240.0, "fp8e5m2fnuz": 57344.0}


def cast_to(x: Tensor, dtype: DType, saturate: int) -> Tensor:
    """Cast; if `saturate`, numbers beyond the range of an 8-bit float become its largest number, else NaN."""
    largest = LARGEST.get(dtype.name)
    if largest is None or not x.is_floating_point():
        return x.cast(dtype)
    if saturate:
        return x.isnan().where(x, x.clamp(-largest, largest)).cast(dtype)
    if dtype.name == "fp8e5m2":                          # the type that has infinities
        return x.cast(dtype)
    step = largest / (14 if "e4m3" == dtype.name[3:] else 15 if "e4m3" in dtype.name else 7)      # spacing at largest
    return (x.abs() > largest + step / 2).where(math.nan, x).cast(dtype)


@operator("Cast")
def cast(x: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up") -> Tensor:
    return cast_to(x, element_type(to, "the result of a Cast"), saturate)


@operator("CastLike")
def cast_like(x: Tensor, like: Tensor, *, saturate: int = 1, round_mode: str = "up") -> Tensor:
    return cast_to(x, like.dtype, saturate)


@operator("BitCast")
def bit_cast(x: Tensor, *, to: int) -> Tensor:
    return x.bitcast(element_type(to, "the result of a BitCast"))


# -- random numbers ----------------------------------------------------------------------------------------------------
@operator("Dropout", since=12, host=(1, 2), repeatable=False)
def dropout(x: Tensor, ratio: Any = None, training: Any = None, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    share = 0.5 if ratio is None else float(ratio)
    if training is None or not bool(training) or not share:
        return x, Tensor.ones(*x.shape, dtype="bool", device=x.device)
    kept = Tensor.rand(*x.shape, device=x.device) >= share
    return kept.where(x / (1 - share), 0).cast(x.dtype), kept


@operator("Dropout")
def dropout_at_inference(x: Tensor, *, ratio: float = 0.5, is_test: int = 0) -> tuple[Tensor, Tensor]:
    return x, Tensor.ones(*x.shape, dtype="bool", device=x.device)


@operator("RandomNormal", "RandomUniform", repeatable=False)
def random(*, shape: Sequence[int], dtype: int = 1, mean: float = 0.0, scale: float = 1.0, low: float = 0.0,
           high: float = 1.0, seed: float = 0.0, node: NodeCall) -> Tensor:
    kind = element_type(dtype)
    if node.node.kind == "RandomNormal":
        return (Tensor.randn(*shape, device=node.device) * scale + mean).cast(kind)
    return (Tensor.rand(*shape, device=node.device) * (high - low) + low).cast(kind)


@operator("RandomNormalLike", "RandomUniformLike", repeatable=False)
def random_like(x: Tensor, *, dtype: int | None = None, mean: float = 0.0, scale: float = 1.0, low: float = 0.0,
                high: float = 1.0, seed: float = 0.0, node: NodeCall) -> Tensor:
    kind = x.dtype if dtype is None else element_type(dtype)
    if node.node.kind == "RandomNormalLike":
        return (Tensor.randn(*x.shape, device=x.device) * scale + mean).cast(kind)
    return (Tensor.rand(*x.shape, device=x.device) * (high - low) + low).cast(kind)


@operator("Bernoulli", repeatable=False)
def bernoulli(x: Tensor, *, dtype: int | None = None, seed: float = 0.0) -> Tensor:
    drawn = Tensor.rand(*x.shape, device=x.device) < x.cast(dtypes.float32)
    return drawn.cast(x.dtype if dtype is None else element_type(dtype))


@operator("Multinomial", repeatable=False)
def multinomial(x: Tensor, *, dtype: int = 6, sample_size: int = 1, seed: float = 0.0) -> Tensor:
    return x.softmax(-1).multinomial(sample_size, replacement=True).cast(element_type(dtype))
