"""Define transformers (Vaswani et al., 2017): layers of attention and two linear maps, stacks of them, encoder and
decoder.

In, out: (time, batch, size), or batch first.

A bool mask is True where attention is forbidden, as in `MultiheadAttention`. Parameters have PyTorch's names and order.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.nn.layers.attention import MultiheadAttention
from glassgrad.nn.layers.dropout import Dropout
from glassgrad.nn.layers.linear import Linear
from glassgrad.nn.layers.normalization import LayerNorm
from glassgrad.nn.modules.layer import Layer
from glassgrad.nn.state.state_dict import get_state_dict
from glassgrad.tensor.tensor import Tensor

MOST_LAYERS = 10_000        # more are most likely a mistake, and would take hours to create

Activation = str | Callable[[Tensor], Tensor]
Mask = Tensor | None


class _Block(Layer):
    """The base of encoder and decoder layers: self-attention, and two linear maps with an activation between them."""
    shows = ("d_model", "nhead")
    norms = 2

    def __init__(self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
                 activation: Activation = "relu", layer_norm_eps: float = 1e-5, batch_first: bool = False,
                 norm_first: bool = False, bias: bool = True):
        if isinstance(activation, str) and activation not in ("relu", "gelu"):
            raise InputError("a transformer has one of two activations by name", given=f"activation={activation!r}",
                             expected='"relu", "gelu", or a function', fix="pass the function: Tensor.silu")
        self.d_model, self.nhead, self.norm_first = d_model, nhead, norm_first
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first)
        if self.norms == 3:
            self.multihead_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first)
        self.linear1 = Linear(d_model, dim_feedforward, bias)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias)
        for n in range(1, self.norms + 1):
            setattr(self, f"norm{n}", LayerNorm(d_model, layer_norm_eps, bias=bias))
        self.activation = activation if not isinstance(activation, str) else \
            Tensor.relu if activation == "relu" else Tensor.gelu

    def _to_itself(self, x: Tensor, mask: Mask, padding: Mask, is_causal: bool) -> Tensor:
        return self.dropout(self.self_attn(x, x, x, padding, False, mask, is_causal=is_causal)[0])

    def _mapped(self, x: Tensor) -> Tensor:
        return self.dropout(self.linear2(self.dropout(self.activation(self.linear1(x)))))

    def _residual(self, x: Tensor, parts: list[Callable[[Tensor], Tensor]]) -> Tensor:
        """Return x = norm(x + part(x)) for each part, or x + part(norm(x)) with `norm_first`."""
        for n, part in enumerate(parts, 1):
            norm = getattr(self, f"norm{n}")
            x = x + part(norm(x)) if self.norm_first else norm(x + part(x))
        return x


class TransformerEncoderLayer(_Block):
    """Self-attention, then two linear maps; the result of each is added to its input and normalized.

    >>> TransformerEncoderLayer(d_model=8, nhead=2, dim_feedforward=16)(Tensor.ones(5, 3, 8)).shape
    (5, 3, 8)
    """

    def forward(self, src: Tensor, src_mask: Mask = None, src_key_padding_mask: Mask = None,
                is_causal: bool = False) -> Tensor:
        return self._residual(src, [lambda x: self._to_itself(x, src_mask, src_key_padding_mask, is_causal),
                                    self._mapped])


class TransformerDecoderLayer(_Block):
    """Self-attention, attention to the encoder's output (`memory`), then two linear maps.

    >>> layer = TransformerDecoderLayer(d_model=8, nhead=2, dim_feedforward=16)
    >>> layer(Tensor.ones(4, 3, 8), Tensor.ones(5, 3, 8)).shape
    (4, 3, 8)
    """
    norms = 3

    def forward(self, tgt: Tensor, memory: Tensor, tgt_mask: Mask = None, memory_mask: Mask = None,
                tgt_key_padding_mask: Mask = None, memory_key_padding_mask: Mask = None, tgt_is_causal: bool = False,
                memory_is_causal: bool = False) -> Tensor:
        def to_memory(x: Tensor) -> Tensor:
            return self.dropout(self.multihead_attn(x, memory, memory, memory_key_padding_mask, False, memory_mask,
                                                    is_causal=memory_is_causal)[0])
        return self._residual(tgt, [lambda x: self._to_itself(x, tgt_mask, tgt_key_padding_mask, tgt_is_causal),
                                    to_memory, self._mapped])


class _Stack(Layer):
    """Copies of a layer one after another, with an optional norm after the last."""
    shows = ("num_layers",)

    def __init__(self, layer: Any, num_layers: int, norm: Any = None):
        if not 0 <= num_layers <= MOST_LAYERS:
            raise InputError("a stack cannot have so many layers", given=f"num_layers={num_layers}",
                             expected=f"from 0 to {MOST_LAYERS}", fix="check num_layers")
        self.layers = [copy.deepcopy(layer) for _ in range(num_layers)]
        self.num_layers, self.norm = num_layers, norm

    def _ended(self, x: Tensor) -> Tensor:
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Stack):
    """Copies of an encoder layer one after another.

    >>> TransformerEncoder(TransformerEncoderLayer(8, 2, 16), num_layers=2)(Tensor.ones(5, 3, 8)).shape
    (5, 3, 8)
    """
    def __init__(self, encoder_layer: Any, num_layers: int, norm: Any = None, enable_nested_tensor: bool = True,
                 mask_check: bool = True):
        super().__init__(encoder_layer, num_layers, norm)       # the last two arguments only choose a path in PyTorch

    def forward(self, src: Tensor, mask: Mask = None, src_key_padding_mask: Mask = None,
                is_causal: bool | None = None) -> Tensor:
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, bool(is_causal))
        return self._ended(src)


class TransformerDecoder(_Stack):
    """Copies of a decoder layer one after another.

    >>> TransformerDecoder(TransformerDecoderLayer(8, 2, 16), 2)(Tensor.ones(4, 3, 8), Tensor.ones(5, 3, 8)).shape
    (4, 3, 8)
    """
    def __init__(self, decoder_layer: Any, num_layers: int, norm: Any = None):
        super().__init__(decoder_layer, num_layers, norm)

    def forward(self, tgt: Tensor, memory: Tensor, tgt_mask: Mask = None, memory_mask: Mask = None,
                tgt_key_padding_mask: Mask = None, memory_key_padding_mask: Mask = None,
                tgt_is_causal: bool | None = None, memory_is_causal: bool = False) -> Tensor:
        for layer in self.layers:
            tgt = layer(tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask,
                        bool(tgt_is_causal), memory_is_causal)
        return self._ended(tgt)


class Transformer(Layer):
    """An encoder of the source, and a decoder that attends to its output.

    >>> model = Transformer(8, 2, num_encoder_layers=1, num_decoder_layers=1, dim_feedforward=16)
    >>> model(Tensor.ones(5, 3, 8), Tensor.ones(4, 3, 8)).shape
    (4, 3, 8)
    """
    shows = ("d_model", "nhead")

    def __init__(self, d_model: int = 512, nhead: int = 8, num_encoder_layers: int = 6, num_decoder_layers: int = 6,
                 dim_feedforward: int = 2048, dropout: float = 0.1, activation: Activation = "relu",
                 custom_encoder: Any = None, custom_decoder: Any = None, layer_norm_eps: float = 1e-5,
                 batch_first: bool = False, norm_first: bool = False, bias: bool = True):
        settings = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias)
        norm = lambda: LayerNorm(d_model, layer_norm_eps, bias=bias)
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first
        self.encoder = custom_encoder if custom_encoder is not None else \
            TransformerEncoder(TransformerEncoderLayer(*settings), num_encoder_layers, norm())
        self.decoder = custom_decoder if custom_decoder is not None else \
            TransformerDecoder(TransformerDecoderLayer(*settings), num_decoder_layers, norm())
        for tensor in get_state_dict(self).values():
            if tensor.ndim > 1:
                tensor.replace(Tensor.glorot_uniform(*tensor.shape, requires_grad=True))

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Mask = None, tgt_mask: Mask = None,
                memory_mask: Mask = None, src_key_padding_mask: Mask = None, tgt_key_padding_mask: Mask = None,
                memory_key_padding_mask: Mask = None, src_is_causal: bool | None = None,
                tgt_is_causal: bool | None = None, memory_is_causal: bool = False) -> Tensor:
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        out: Tensor = self.decoder(tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask,
                                   tgt_is_causal, memory_is_causal)
        return out

    @staticmethod
    def generate_square_subsequent_mask(sz: int) -> Tensor:
        """The mask that a causal decoder adds to its scores: -infinity above the diagonal.

        >>> Transformer.generate_square_subsequent_mask(2).tolist()
        [[0.0, -inf], [0.0, 0.0]]
        """
        return Tensor.full((sz, sz), -math.inf).triu(1)
