"""What layers are made of: softmax, norms, dropout, attention. In, out: tensors.

Statistics of float16 and bfloat16 are taken in float32 and rounded at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.base.settings import settings
from glassgrad.compiler.graph.dtype import DType, dtype_by_name, dtypes
from glassgrad.tensor.autograd.autocast import exact
from glassgrad.tensor.broadcast import Axis, resolve_axes
from glassgrad.tensor.methods.neural.activations import Activations

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Functional"]


class Functional(Activations):
    """Softmax, norms, dropout, attention."""
    __slots__ = ()

    # -- softmax ---------------------------------------------------------------------------------------------
    def _shifted(self, axis: Axis, dtype: DType | str | None) -> tuple[Self, DType]:
        """Each value less the largest of its row, in a type wide enough to sum, and the type to come back to."""
        x = self._with(self._float_node())
        out = dtype_by_name(dtype) if dtype is not None else exact(x.dtype)
        x = x.cast(out.accumulator)
        return (x - x.amax(axis, keepdim=True).detach() if x.numel() else x), out

    def softmax(self, axis: Axis = -1, dtype: DType | str | None = None) -> Self:
        """e^x over its sum along an axis: positive numbers that add up to 1.

        >>> Tensor([1.0, 1.0]).softmax().tolist()
        [0.5, 0.5]
        """
        x, out = self._shifted(axis, dtype)
        e = x.exp()
        return (e * e.sum(axis, keepdim=True).reciprocal()).cast(out)

    def log_softmax(self, axis: Axis = -1, dtype: DType | str | None = None) -> Self:
        """The logarithm of `softmax`.

        >>> Tensor([1000.0, 0.0]).log_softmax().tolist()
        [0.0, -1000.0]
        """
        x, out = self._shifted(axis, dtype)
        return (x - x.exp().sum(axis, keepdim=True).log()).cast(out)

    def softmin(self, axis: Any = -1, dtype: Any = None) -> Self:
        """softmax(-x).

        >>> Tensor([1.0, 1.0]).softmin().tolist()
        [0.5, 0.5]
        """
        return (-self).softmax(axis, dtype)

    # -- norms -----------------------------------------------------------------------------------------------
    def layernorm(self, axis: Axis = -1, eps: float = 1e-5) -> Self:
        """(x - mean) / sqrt(variance + eps) along an axis; the variance is over n.

        >>> Tensor([1.0, 3.0]).layernorm(eps=0).tolist()
        [-1.0, 1.0]
        """
        x = self._with(self._float_node())
        wide = x.cast(x.dtype.accumulator)
        centred = wide - wide.mean(axis, keepdim=True)
        return (centred * (centred.square().mean(axis, keepdim=True) + eps).rsqrt()).cast(exact(x.dtype))

    def rms_norm(self, axis: Axis = -1, eps: float = 1e-6) -> Self:
        """x / sqrt(mean(x^2) + eps) along an axis.

        >>> Tensor([2.0, -2.0]).rms_norm(eps=0).tolist()
        [1.0, -1.0]
        """
        x = self._with(self._float_node())
        wide = x.cast(x.dtype.accumulator)
        return (wide * (wide.square().mean(axis, keepdim=True) + eps).rsqrt()).cast(exact(x.dtype))

    def batchnorm(self, weight: Self | None, bias: Self | None, mean: Self, invstd: Self,
                  axis: int | Sequence[int] = 1) -> Self:
        """(x - mean) invstd weight + bias, where all of these have one value per place along `axis`.

        >>> Tensor([[1.0, 2.0]]).batchnorm(None, None, Tensor([1.0, 1.0]), Tensor([1.0, 2.0])).tolist()
        [[0.0, 2.0]]
        """
        axes = resolve_axes(axis, self.ndim, "batchnorm")
        shape = tuple(n if i in axes else 1 for i, n in enumerate(self.shape))
        x = (self - mean.reshape(shape)) * invstd.reshape(invstd.shape if invstd.ndim == self.ndim else shape)
        x = x if weight is None else x * weight.reshape(shape)
        return x if bias is None else x + bias.reshape(shape)

    def normalize(self, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Self:
        """x over its length along an axis (but at least eps).

        >>> Tensor([3.0, 4.0]).normalize(dim=0).numpy()
        array([0.6, 0.8], dtype=float32)
        """
        return self / self.norm(p, dim, keepdim=True).maximum(eps)

    def local_response_norm(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Self:
        """x / (k + alpha times the mean square of `size` neighbouring channels)^beta (Krizhevsky et al., 2012).

        >>> Tensor([[[0.0], [2.0]]]).local_response_norm(1, alpha=1, beta=1, k=0).flatten().tolist()[1]
        0.5
        """
        if self.ndim < 3 or size < 1:
            raise ShapeError("local_response_norm is over channels", given=f"shape {self.shape}, size={size}",
                             expected="(batch, channels, ...space) and a size of 1 or more",
                             fix="add the missing axes with unsqueeze")
        pads = [(0, 0), (size // 2, (size - 1) // 2), *[(0, 0)] * (self.ndim - 2)]
        near = self.square()._pad_constant(pads, 0).unfold(1, size, 1).mean(-1)
        return self / (near * alpha + k) ** beta

    # -- dropout and attention -------------------------------------------------------------------------------
    def dropout(self, p: float = 0.5) -> Self:
        """In training: each value 0 with probability p, the others over 1 - p. Else unchanged. See `Tensor.train`.

        >>> Tensor([1.0, 2.0]).dropout(0.9).tolist()
        [1.0, 2.0]
        """
        if not 0 <= p <= 1:
            raise InputError("dropout needs a probability", given=f"p={p}", expected="a number from 0 to 1",
                             fix="write x.dropout(0.5), for example")
        if not settings.TRAINING or p == 0:
            return self
        if p == 1:
            return self * 0.0
        keep = self.rand_like(dtype=dtypes.default_float) >= p
        return keep.where(self, 0) * (1.0 / (1.0 - p))

    def scaled_dot_product_attention(self, key: Self, value: Self, attn_mask: Self | None = None,
                                     dropout_p: float = 0.0, is_causal: bool = False, enable_gqa: bool = False,
                                     *, scale: float | None = None) -> Self:
        """softmax(query key^T scale + mask) value, over (.., time, size); scale is 1 / sqrt(size) unless given. A query
        that may look at nothing finds zeros, as in PyTorch.

        >>> q = Tensor([[1.0, 0.0]])
        >>> q.scaled_dot_product_attention(q, Tensor([[5.0, 6.0]])).tolist()
        [[5.0, 6.0]]
        """
        if is_causal and attn_mask is not None:
            raise InputError("attention takes one mask", given="attn_mask and is_causal=True", expected="one of them",
                             fix="put the causal mask into attn_mask: Tensor.ones(t, t).tril().bool()")
        if min(self.ndim, key.ndim, value.ndim) < (3 if enable_gqa else 2):
            raise ShapeError("attention needs time and size" + " and heads" * enable_gqa,
                             given=f"query {self.shape}, key {key.shape}, value {value.shape}",
                             expected="(.., heads, time, size)" if enable_gqa else "(.., time, size)",
                             fix="add the missing axes with unsqueeze")
        if enable_gqa:
            heads = self.shape[-3]
            key = key.repeat_interleave(heads // key.shape[-3], dim=-3)
            value = value.repeat_interleave(heads // value.shape[-3], dim=-3)
        scores = self @ key.transpose(-2, -1) * (scale if scale is not None else 1.0 / math.sqrt(self.shape[-1]))
        if is_causal:
            attn_mask = self._with(scores._diagonal_mask(1, "attention")).logical_not()
            return attn_mask.where(scores, -math.inf).softmax(-1).dropout(dropout_p) @ value
        if attn_mask is None:
            return scores.softmax(-1).dropout(dropout_p) @ value
        allowed = attn_mask if attn_mask.dtype is dtypes.bool else attn_mask > -math.inf
        scores = attn_mask.where(scores, -math.inf) if allowed is attn_mask else scores + attn_mask
        some = allowed.any(-1, keepdim=True)
        return some.where(some.where(scores, 0).softmax(-1), 0).dropout(dropout_p) @ value
