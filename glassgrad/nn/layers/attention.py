"""Define attention with several heads. In: queries, keys, values (time, batch, size). Out: values averaged by
similarity.
"""

from __future__ import annotations

import math
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.compiler.graph import dtypes
from glassgrad.nn.layers.linear import Linear
from glassgrad.nn.modules.layer import Layer
from glassgrad.nn.modules.new_parameters import zeros
from glassgrad.tensor.tensor import Tensor


class MultiheadAttention(Layer):
    """softmax(q k^T / sqrt(size)) v in several heads; returns (output, weights averaged over heads), as PyTorch does.

    Masks: a bool mask is True where attention is forbidden, a float mask is added to the scores.

    >>> layer = MultiheadAttention(embed_dim=8, num_heads=2, batch_first=True)
    >>> x = Tensor.ones(3, 5, 8)
    >>> out, weights = layer(x, x, x)
    >>> out.shape, weights.shape
    ((3, 5, 8), (3, 5, 5))
    """
    shows = ("embed_dim", "num_heads", "dropout", "batch_first")

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True,
                 add_bias_kv: bool = False, add_zero_attn: bool = False, kdim: int | None = None,
                 vdim: int | None = None, batch_first: bool = False):
        if num_heads < 1 or embed_dim < 1 or embed_dim % num_heads:
            raise InputError("the size cannot be divided among the heads",
                             given=f"embed_dim={embed_dim}, num_heads={num_heads}",
                             expected="a number of heads that divides embed_dim", fix="choose a divisor")
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = embed_dim, num_heads, dropout, batch_first
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.add_zero_attn = add_zero_attn
        self.in_proj_weight = self.q_proj_weight = self.k_proj_weight = self.v_proj_weight = None
        if self.kdim == self.vdim == embed_dim:
            self.in_proj_weight = Tensor.glorot_uniform(3 * embed_dim, embed_dim, requires_grad=True)
        else:
            self.q_proj_weight = Tensor.glorot_uniform(embed_dim, embed_dim, requires_grad=True)
            self.k_proj_weight = Tensor.glorot_uniform(embed_dim, self.kdim, requires_grad=True)
            self.v_proj_weight = Tensor.glorot_uniform(embed_dim, self.vdim, requires_grad=True)
        self.in_proj_bias = zeros(3 * embed_dim) if bias else None
        deviation = 1 / math.sqrt(embed_dim)                          # Glorot's: sqrt(2 / (inputs + outputs))
        self.bias_k = Tensor.normal(1, 1, embed_dim, std=deviation, requires_grad=True) if add_bias_kv else None
        self.bias_v = Tensor.normal(1, 1, embed_dim, std=deviation, requires_grad=True) if add_bias_kv else None
        self.out_proj = Linear(embed_dim, embed_dim, bias)            # last, for PyTorch's order of parameters
        if bias:
            self.out_proj.bias = zeros(embed_dim)

    def forward(self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None,
                key_padding_mask: Tensor | None = None, need_weights: bool = True, attn_mask: Tensor | None = None,
                average_attn_weights: bool = True, is_causal: bool = False) -> tuple[Tensor, Tensor | None]:
        key = query if key is None else key
        value = key if value is None else value
        lone = query.ndim == 2
        q, k, v = (self._batch_first(x) for x in (query, key, value))            # (batch, time, size)
        self._check(q, k, v)
        q, k, v = self._projected(q, k, v)
        mask = self._mask(q, k, attn_mask, key_padding_mask, is_causal)
        if self.bias_k is not None and self.bias_v is not None:
            k = k.cat(self.bias_k.expand(k.shape[0], 1, -1), dim=1)
            v = v.cat(self.bias_v.expand(v.shape[0], 1, -1), dim=1)
        if self.add_zero_attn:
            k, v = k.pad((0, 0, 0, 1)), v.pad((0, 0, 0, 1))
        if mask is not None and mask.shape[-1] < k.shape[1]:                      # appended keys are never masked
            mask = mask.pad((0, k.shape[1] - mask.shape[-1]))
        q, k, v = (self._heads(x) for x in (q, k, v))                             # (batch, heads, time, size / heads)
        if need_weights:
            scores = q @ k.transpose(-2, -1) * (1.0 / math.sqrt(q.shape[-1]))
            weights = (scores if mask is None else scores + mask).softmax(-1).dropout(self.dropout)
            out = weights @ v
        else:
            out = q.scaled_dot_product_attention(k, v, mask, self.dropout)
        out = self.out_proj(out.transpose(1, 2).flatten(2))                       # (batch, time, size)
        out = out if self.batch_first and not lone else out.transpose(0, 1)
        if not need_weights:
            return (out.squeeze(1) if lone else out), None
        weights = weights.mean(1) if average_attn_weights else weights
        return (out.squeeze(1), weights.squeeze(0)) if lone else (out, weights)

    def _batch_first(self, x: Tensor) -> Tensor:
        return x.unsqueeze(0) if x.ndim == 2 else x if self.batch_first or x.ndim != 3 else x.transpose(0, 1)

    def _check(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        fits = q.ndim == k.ndim == v.ndim == 3 and q.shape[0] == k.shape[0] == v.shape[0] and k.shape[1] == v.shape[1]
        if not fits or (q.shape[2], k.shape[2], v.shape[2]) != (self.embed_dim, self.kdim, self.vdim):
            order = "batch, time" if self.batch_first else "time, batch"
            given = [x if self.batch_first or x.ndim != 3 else x.transpose(0, 1) for x in (q, k, v)]
            self._refuse(f"query, key and value of shapes {', '.join(str(x.shape) for x in given)}",
                         f"({order}, size) with sizes {self.embed_dim}, {self.kdim} and {self.vdim}, one batch, and as "
                         "many keys as values", "check batch_first, embed_dim, kdim and vdim")

    def _projected(self, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        weights: list[Any] = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
        if self.in_proj_weight is not None:
            weights = list(self.in_proj_weight.chunk(3, 0))
        biases: list[Any] = [None] * 3 if self.in_proj_bias is None else list(self.in_proj_bias.chunk(3, 0))
        return [x.linear(w.transpose(), b) for x, w, b in zip((q, k, v), weights, biases)]

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], x.shape[1], self.num_heads, self.embed_dim // self.num_heads).transpose(1, 2)

    def _mask(self, q: Tensor, k: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None,
              is_causal: bool) -> Tensor | None:
        """Combine all masks into one, to be added to scores of (batch, heads, queries, keys)."""
        batch, queries, keys = q.shape[0], q.shape[1], k.shape[1]
        total: Tensor | None = None
        if is_causal and attn_mask is None:
            attn_mask = Tensor.ones(queries, keys, dtype=dtypes.bool, device=q.device).triu(1)
        if attn_mask is not None:
            if attn_mask.shape not in ((queries, keys), (batch * self.num_heads, queries, keys)):
                self._refuse(f"an attn_mask of shape {attn_mask.shape}",
                             f"({queries}, {keys}) or ({batch * self.num_heads}, {queries}, {keys})",
                             "check the mask")
            lead = (1, 1) if attn_mask.ndim == 2 else (batch, self.num_heads)
            total = _additive(attn_mask, q).reshape(*lead, queries, keys)
        if key_padding_mask is not None:
            padded = key_padding_mask.unsqueeze(0) if key_padding_mask.ndim == 1 else key_padding_mask
            if padded.shape != (batch, keys):
                self._refuse(f"a key_padding_mask of shape {key_padding_mask.shape}", f"({batch}, {keys})",
                             "check the mask")
            padding = _additive(padded, q).reshape(batch, 1, 1, keys)
            total = padding if total is None else total + padding
        return total


def _additive(mask: Tensor, beside: Tensor) -> Tensor:
    """Return a bool mask as 0 and -infinity, and a float mask as it is."""
    if mask.dtype is dtypes.bool:
        return mask.where(Tensor.full((), -math.inf, device=beside.device, dtype=beside.dtype), 0.0)
    return mask.cast(beside.dtype)


MultiHeadAttention = MultiheadAttention
