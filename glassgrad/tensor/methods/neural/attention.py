"""Define attention by scaled dot products. In: queries, keys, values and a mask, as tensors. Out: a tensor."""

from __future__ import annotations

import math

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.base.settings import settings
from glassgrad.base.source_lines import one_place
from glassgrad.tensor.formulas.neural.attention import attention, grouped_attention
from glassgrad.tensor.methods import Self, TensorBase, arguments, fraction


class AttentionMixin(TensorBase):
    """Attention by scaled dot products."""
    __slots__ = ()

    def scaled_dot_product_attention(self, key: Self, value: Self, attn_mask: Self | None = None,
                                     dropout_p: float = 0.0, is_causal: bool = False, enable_gqa: bool = False,
                                     *, scale: float | None = None) -> Self:
        """softmax(query key^T scale + mask) value, over (.., time, size); scale is 1 / sqrt(size) unless given. A query
        whose keys are all masked gives zeros, as in PyTorch. Masked scores are ignored, so a NaN in a masked key or
        such a query has no effect; a NaN in `value` has, because 0 * NaN is NaN.

        >>> q = Tensor([[1.0, 0.0]])
        >>> q.scaled_dot_product_attention(q, Tensor([[5.0, 6.0]])).tolist()
        [[5.0, 6.0]]
        """
        dropped = fraction("dropout", "dropout needs a probability", "write x.dropout(0.5), for example", p=dropout_p)
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
