"""What layers are made of: softmax, norms, dropout, attention. In, out: tensors.

Statistics of float16 and bfloat16 are taken in float32 and rounded at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.base.settings import settings
from glassgrad.compiler.graph.dtype import DType
from glassgrad.tensor import checks
from glassgrad.tensor.base import Self, TensorBase
from glassgrad.tensor.broadcast import Axis, resolve_axes
from glassgrad.tensor.formulas.arithmetic import add, as_float, mul, sub
from glassgrad.tensor.formulas.movement import repeat_interleave
from glassgrad.tensor.formulas.neural import activations
from glassgrad.tensor.formulas.neural.attention import attention, dropout

__all__ = ["LayerOpsMixin"]


class LayerOpsMixin(TensorBase):
    """Softmax, norms, dropout, attention."""
    __slots__ = ()

    # -- softmax ---------------------------------------------------------------------------------------------
    def softmax(self, axis: Axis = -1, dtype: DType | str | None = None, **spelling: Any) -> Self:
        """e^x over its sum along an axis: positive numbers that add up to 1.

        >>> Tensor([1.0, 1.0]).softmax().tolist()
        [0.5, 0.5]
        """
        axis, dtype = checks.spelled("softmax", spelling, axis=axis, dtype=dtype)
        return self._with(activations.softmax(self.uop, axis, checks.dtype_or_none(dtype)))

    def log_softmax(self, axis: Axis = -1, dtype: DType | str | None = None, **spelling: Any) -> Self:
        """The logarithm of `softmax`.

        >>> Tensor([1000.0, 0.0]).log_softmax().tolist()
        [0.0, -1000.0]
        """
        axis, dtype = checks.spelled("log_softmax", spelling, axis=axis, dtype=dtype)
        return self._with(activations.log_softmax(self.uop, axis, checks.dtype_or_none(dtype)))

    def softmin(self, axis: Axis = -1, dtype: DType | str | None = None, **spelling: Any) -> Self:
        """softmax(-x).

        >>> Tensor([1.0, 1.0]).softmin().tolist()
        [0.5, 0.5]
        """
        axis, dtype = checks.spelled("softmin", spelling, axis=axis, dtype=dtype)
        return self._with(activations.softmax(-as_float(self.uop), axis, checks.dtype_or_none(dtype)))

    # -- norms -----------------------------------------------------------------------------------------------
    def layernorm(self, axis: Axis = -1, eps: float = 1e-5, **spelling: Any) -> Self:
        """(x - mean) / sqrt(variance + eps) along an axis; the variance is over n.

        >>> Tensor([1.0, 3.0]).layernorm(eps=0).tolist()
        [-1.0, 1.0]
        """
        axis, = checks.spelled("layernorm", spelling, axis=axis)
        return self._with(activations.layer_norm(self.uop, axis, checks.number("layernorm", eps=eps)))

    def rms_norm(self, axis: Axis = -1, eps: float = 1e-6, **spelling: Any) -> Self:
        """x / sqrt(mean(x^2) + eps) along an axis.

        >>> Tensor([2.0, -2.0]).rms_norm(eps=0).tolist()
        [1.0, -1.0]
        """
        axis, = checks.spelled("rms_norm", spelling, axis=axis)
        return self._with(activations.rms_norm(self.uop, axis, checks.number("rms_norm", eps=eps)))

    def batchnorm(self, weight: Self | None, bias: Self | None, mean: Self, invstd: Self,
                  axis: int | Sequence[int] = 1, **spelling: Any) -> Self:
        """(x - mean) invstd weight + bias, where all of these have one value per place along `axis`.

        >>> Tensor([[1.0, 2.0]]).batchnorm(None, None, Tensor([1.0, 1.0]), Tensor([1.0, 2.0])).tolist()
        [[0.0, 2.0]]
        """
        axis, = checks.spelled("batchnorm", spelling, axis=axis)
        checks.tensors_or_none("batchnorm", weight=weight, bias=bias)
        checks.tensors("batchnorm", mean=mean, invstd=invstd)
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
        p, dim = checks.spelled("normalize", spelling, p=p, dim=dim)
        p, eps = checks.number("normalize", p=p), checks.number("normalize", eps=eps)
        return self._with(activations.normalize(self.uop, p, dim, eps))

    def local_response_norm(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Self:
        """x / (k + alpha times the mean square of `size` neighbouring channels)^beta (Krizhevsky et al., 2012).

        >>> Tensor([[[0.0], [2.0]]]).local_response_norm(1, alpha=1, beta=1, k=0).flatten().tolist()[1]
        0.5
        """
        size = checks.integer("local_response_norm", size=size)
        numbers = (checks.number("local_response_norm", **{name: value})
                   for name, value in (("alpha", alpha), ("beta", beta), ("k", k)))
        if self.ndim < 3 or size < 1:
            raise ShapeError("local_response_norm is over channels", given=f"shape {self.shape}, size={size}",
                             expected="(batch, channels, ...space) and a size of 1 or more",
                             fix="add the missing axes with unsqueeze")
        return self._with(activations.local_response_norm(self.uop, size, *numbers))

    # -- dropout and attention -------------------------------------------------------------------------------
    def dropout(self, p: float = 0.5) -> Self:
        """In training: each value 0 with probability p, the others over 1 - p. Else unchanged. See `Tensor.train`.

        >>> Tensor([1.0, 2.0]).dropout(0.9).tolist()
        [1.0, 2.0]
        """
        p = self._probability("dropout", p=p)
        return self._with(dropout(self.uop, p)) if settings.TRAINING and p else self

    @staticmethod
    def _probability(what: str, **given: Any) -> float:
        (name, _), = given.items()
        p = checks.number(what, **given)
        if not 0 <= p <= 1:
            raise InputError(f"{what} needs a probability", given=f"{name}={p}", expected="a number from 0 to 1",
                             fix="write x.dropout(0.5), for example")
        return float(p)

    def scaled_dot_product_attention(self, key: Self, value: Self, attn_mask: Self | None = None,
                                     dropout_p: float = 0.0, is_causal: bool = False, enable_gqa: bool = False,
                                     *, scale: float | None = None) -> Self:
        """softmax(query key^T scale + mask) value, over (.., time, size); scale is 1 / sqrt(size) unless given. A query
        that may look at nothing finds zeros, as in PyTorch.

        >>> q = Tensor([[1.0, 0.0]])
        >>> q.scaled_dot_product_attention(q, Tensor([[5.0, 6.0]])).tolist()
        [[5.0, 6.0]]
        """
        what = "scaled_dot_product_attention"
        checks.tensors(what, key=key, value=value)
        checks.tensors_or_none(what, attn_mask=attn_mask)
        checks.flags(what, is_causal=is_causal, enable_gqa=enable_gqa)
        dropped = self._probability("dropout", p=dropout_p)
        dropped = dropped if settings.TRAINING else 0.0
        if is_causal and attn_mask is not None:
            raise InputError("attention takes one mask", given="attn_mask and is_causal=True", expected="one of them",
                             fix="put the causal mask into attn_mask: Tensor.ones(t, t).tril().bool()")
        if min(self.ndim, key.ndim, value.ndim) < (3 if enable_gqa else 2):
            raise ShapeError("attention needs time and size" + " and heads" * bool(enable_gqa),
                             given=f"query {self.shape}, key {key.shape}, value {value.shape}",
                             expected="(.., heads, time, size)" if enable_gqa else "(.., time, size)",
                             fix="add the missing axes with unsqueeze")
        k, v = key.uop, value.uop
        if enable_gqa:
            k, v = (repeat_interleave(x, self.shape[-3] // x.shape[-3], -3) for x in (k, v))
        factor = checks.number_or_none(what, scale=scale)
        factor = 1.0 / math.sqrt(self.shape[-1]) if factor is None else factor
        mask = None if attn_mask is None else attn_mask.uop
        return self._with(attention(self.uop, k, v, mask, bool(is_causal), factor, dropped), key, value, attn_mask)
