"""Activation functions, softmax, norms, dropout and attention. In, out: tensors.

Statistics of float16 and bfloat16 are taken in float32 and rounded at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.base.settings import settings
from glassgrad.base.source_lines import one_place
from glassgrad.compiler.graph import DType, UOp
from glassgrad.tensor.formulas import (absolute, add, as_float, divide, elementary, halves, in_accumulator, less, mean,
                                       mul, pad_axis, power, square, sub, where)
from glassgrad.tensor.formulas.neural import activations
from glassgrad.tensor.formulas.neural.activations import attention, dropout, grouped_attention
from glassgrad.tensor.methods import (Axis, Self, TensorBase, arguments, choice, computed, resolve_axes, share, spelled,
                                      working_axis)


class ActivationsMixin(TensorBase):
    """Activation functions and what layers are made of."""
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
        return self._formula(lambda x: (x > 0.0).where(x, elementary.expm1((x / alpha).minimum(0.0)) * alpha))

    def selu(self, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Self:
        """gamma elu(x, alpha): keeps mean 0 and variance 1 (Klambauer et al., 2017).

        >>> Tensor([0.0]).selu().tolist()
        [0.0]
        """
        alpha, gamma = arguments("selu", alpha=alpha, gamma=gamma)
        return self._with(mul(self._formula(activations.elu, alpha).uop, gamma))

    def silu(self) -> Self:
        """x sigmoid(x).

        >>> Tensor([0.0]).silu().tolist()
        [0.0]
        """
        return self._with(activations.silu(self.uop))

    swish = silu

    def gelu(self, approximate: str = "none") -> Self:
        """x (1 + erf(x / sqrt 2)) / 2 for approximate="none", as PyTorch has it; for approximate="tanh"
        x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.

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
        return self._with(mul(a, in_accumulator(elementary.sigmoid, as_float(b))))

    def _halves(self, dim: int, what: str) -> tuple[UOp, UOp]:
        axis = working_axis(dim, self.ndim, what)
        if self.shape[axis] % 2:
            raise ShapeError(f"{what} needs an even axis", given=f"axis {axis} of shape {self.shape}",
                             expected="two equal halves", fix="check the layer before")
        return halves(self.uop, axis)

    def softplus(self, beta: float = 1.0, threshold: float = 20.0) -> Self:
        """ln(1 + e^(beta x)) / beta, without overflow, and x itself where beta x is above a threshold.

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
        """x limited to min_val and max_val.

        >>> Tensor([-3.0, 0.5]).hardtanh().tolist()
        [-1.0, 0.5]
        """
        return computed(self, activations.between, "hardtanh", spelling, min_val=min_val, max_val=max_val)

    def hardsigmoid(self, alpha: float = 1 / 6, beta: float = 0.5) -> Self:
        """alpha x + beta limited to 0 and 1.

        >>> Tensor([-9.0, 0.0, 9.0]).hardsigmoid().tolist()
        [0.0, 0.5, 1.0]
        """
        alpha, beta = arguments("hardsigmoid", alpha=alpha, beta=beta)
        return self._with(activations.between(add(mul(self.uop, alpha), beta), 0, 1))

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
        return computed(self, lambda x, limit: absolute(x).le(limit).where(0, x), "hardshrink", lambd=lambd)

    def softshrink(self, lambd: float = 0.5) -> Self:
        """x moved toward 0 by lambd, stopping there.

        >>> Tensor([0.25, -2.0]).softshrink().tolist()
        [0.0, -1.5]
        """
        return computed(self, activations.softshrink, "softshrink", lambd=lambd)

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

    # -- norms -----------------------------------------------------------------------------------------------
    def layernorm(self, axis: Axis = -1, eps: float = 1e-5, **spelling: Any) -> Self:
        """(x - mean) / sqrt(variance + eps) along an axis; the variance is over n.

        >>> Tensor([1.0, 3.0]).layernorm(eps=0).tolist()
        [-1.0, 1.0]
        """
        return computed(self, activations.layer_norm, "layernorm", spelling, axis=axis, eps=eps)

    def rms_norm(self, axis: Axis = -1, eps: float = 1e-6, **spelling: Any) -> Self:
        """x / sqrt(mean(x^2) + eps) along an axis.

        >>> Tensor([2.0, -2.0]).rms_norm(eps=0).tolist()
        [1.0, -1.0]
        """
        return computed(self, lambda x, axis, eps: activations.layer_norm(x, axis, eps, False), "rms_norm", spelling,
                        axis=axis, eps=eps)

    def batchnorm(self, weight: Self | None, bias: Self | None, mean: Self, invstd: Self,
                  axis: int | Sequence[int] = 1, **spelling: Any) -> Self:
        """(x - mean) invstd weight + bias, where all of these have one value per index of `axis`.

        >>> Tensor([[1.0, 2.0]]).batchnorm(None, None, Tensor([1.0, 1.0]), Tensor([1.0, 2.0])).tolist()
        [[0.0, 2.0]]
        """
        weight, bias, mean, invstd, axis = arguments("batchnorm", spelling, weight=weight, bias=bias, mean=mean,
                                                     invstd=invstd, axis=axis)
        axes = resolve_axes(axis, self.ndim, "batchnorm")
        shape = tuple(n if i in axes else 1 for i, n in enumerate(self.shape))
        scale = invstd.uop if invstd.ndim == self.ndim else invstd.uop.reshape(shape)
        x = mul(sub(self.uop, mean.uop.reshape(shape)), scale)
        x = x if weight is None else mul(x, weight.uop.reshape(shape))
        return self._with(x if bias is None else add(x, bias.uop.reshape(shape)), mean, invstd, weight, bias)

    def normalize(self, p: float = 2.0, dim: int = 1, eps: float = 1e-12, **spelling: Any) -> Self:
        """x over its length along an axis (but at least eps).

        >>> Tensor([3.0, 4.0]).normalize(dim=0).numpy()
        array([0.6, 0.8], dtype=float32)
        """
        return computed(self, activations.normalize, "normalize", spelling, p=p, dim=dim, eps=eps)

    def local_response_norm(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Self:
        """x / (k + alpha times the mean square of `size` neighbouring channels)^beta (Krizhevsky et al., 2012).

        >>> Tensor([[[0.0], [2.0]]]).local_response_norm(1, alpha=1, beta=1, k=0).flatten().tolist()[1]
        0.5
        """
        size, alpha, beta, k = arguments("local_response_norm", size=size, alpha=alpha, beta=beta, k=k)
        if self.ndim < 3 or size < 1:
            raise ShapeError("local_response_norm is over channels", given=f"shape {self.shape}, size={size}",
                             expected="(batch, channels, ...space) and a size of 1 or more",
                             fix="add the missing axes with unsqueeze")
        padded = pad_axis(square(self.uop), 1, size // 2, (size - 1) // 2)
        near = mean(padded.window(1, size, 1), -1)
        return self._with(divide(self.uop, power(add(mul(near, alpha), k), beta)))

    # -- dropout and attention -------------------------------------------------------------------------------
    def dropout(self, p: float = 0.5) -> Self:
        """In training: each value 0 with probability p, the others over 1 - p. Else unchanged. See `Tensor.train`.

        >>> Tensor([1.0, 2.0]).dropout(0.9).tolist()
        [1.0, 2.0]
        """
        p = share("dropout", "dropout needs a probability", "write x.dropout(0.5), for example", p=p)
        return self._with(dropout(self.uop, p)) if settings.TRAINING and p else self

    def scaled_dot_product_attention(self, key: Self, value: Self, attn_mask: Self | None = None,
                                     dropout_p: float = 0.0, is_causal: bool = False, enable_gqa: bool = False,
                                     *, scale: float | None = None) -> Self:
        """softmax(query key^T scale + mask) value, over (.., time, size); scale is 1 / sqrt(size) unless given. A query
        whose keys are all masked gives zeros, as in PyTorch.

        >>> q = Tensor([[1.0, 0.0]])
        >>> q.scaled_dot_product_attention(q, Tensor([[5.0, 6.0]])).tolist()
        [[5.0, 6.0]]
        """
        dropped = share("dropout", "dropout needs a probability", "write x.dropout(0.5), for example", p=dropout_p)
        key, value, attn_mask, is_causal, enable_gqa, scale = arguments(
            "scaled_dot_product_attention", key=key, value=value, attn_mask=attn_mask, is_causal=is_causal,
            enable_gqa=enable_gqa, scale=scale)
        if is_causal and attn_mask is not None:
            raise InputError("attention takes one mask", given="attn_mask and is_causal=True", expected="one of them",
                             fix="put the causal mask into attn_mask: Tensor.ones(t, t).tril().bool()")
        if min(self.ndim, key.ndim, value.ndim) < (3 if enable_gqa else 2):
            raise ShapeError("attention needs time and size" + " and heads" * enable_gqa,
                             given=f"query {self.shape}, key {key.shape}, value {value.shape}",
                             expected="(.., heads, time, size)" if enable_gqa else "(.., time, size)",
                             fix="add the missing axes with unsqueeze")
        if enable_gqa and any(self.shape[-3] % max(1, t.shape[-3]) for t in (key, value)):
            raise ShapeError("the heads of keys and values do not share the query's heads evenly",
                             given=f"heads: query {self.shape[-3]}, key {key.shape[-3]}, value {value.shape[-3]}",
                             expected="a number of heads of the query that those of keys and of values divide",
                             fix="check the model's numbers of heads, and that the axis before time is that of heads")
        factor = 1.0 / math.sqrt(self.shape[-1]) if scale is None else scale
        mask, dropped = None if attn_mask is None else attn_mask.uop, dropped if settings.TRAINING else 0.0
        with one_place():
            formula = grouped_attention if enable_gqa else attention
            mixed = formula(self.uop, key.uop, value.uop, mask, is_causal, factor, dropped)
        return self._with(mixed, key, value, attn_mask)
