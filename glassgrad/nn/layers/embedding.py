"""Define embeddings: vectors looked up by index. In: integers of any shape. Out: a vector for each, or for each bag."""

from __future__ import annotations

from typing import Any

from glassgrad.base.errors import DTypeError, InputError, ShapeError
from glassgrad.compiler.graph import dtypes
from glassgrad.nn.functional.embeddings import embedding, embedding_bag
from glassgrad.nn.modules.layer import Layer
from glassgrad.tensor.tensor import Tensor


class Embedding(Layer):
    """Row i of `weight` for each index i. The row `padding_idx` starts as zeros and gets no gradient. With `max_norm`,
    rows that are looked up and have a larger norm (`norm_type`) are rescaled in `weight` itself. `scale_grad_by_freq`
    divides a row's gradient by how often it was looked up. `sparse`, a layout of gradients, has no effect.

    >>> layer = Embedding(10, 4)
    >>> layer(Tensor([[1, 2, 3]])).shape, layer.weight.shape
    ((1, 3, 4), (10, 4))
    """
    shows: tuple[str, ...] = ("num_embeddings", "embedding_dim", "padding_idx")

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None,
                 max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False,
                 sparse: bool = False):
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise InputError("padding_idx is outside the table", given=f"padding_idx={padding_idx}",
                             expected=f"a number from {-num_embeddings} to {num_embeddings - 1}",
                             fix="choose another row")
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.max_norm, self.norm_type, self.scale_grad_by_freq = max_norm, norm_type, scale_grad_by_freq
        weight = Tensor.randn(num_embeddings, embedding_dim)
        if self.padding_idx is not None:
            row = Tensor.arange(num_embeddings, dtype=dtypes.int32).reshape(-1, 1)
            weight = (row == self.padding_idx).where(0.0, weight)
        self.weight = weight.requires_grad_()

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True, *settings: Any, **named: Any) -> Any:
        """A layer with the given table, which is trained further unless `freeze`. The other settings are those of the
        constructor.

        >>> Embedding.from_pretrained(Tensor([[1.0, 2.0], [3.0, 4.0]]))(Tensor([1])).tolist()
        [[3.0, 4.0]]
        """
        if embeddings.ndim != 2:
            raise ShapeError("a table of embeddings has rows and columns",
                             given=f"a tensor of shape {embeddings.shape}", expected="2 axes", fix="reshape it first")
        rows, columns = embeddings.shape
        layer = cls(rows, columns, *settings, **named)
        layer.weight = embeddings.detach().requires_grad_(not freeze)
        return layer

    def forward(self, index: Tensor) -> Tensor:
        self._check(index)
        return embedding(index, self.weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq)

    def _check(self, index: Tensor) -> None:
        if index.dtype.kind not in "iu":
            raise DTypeError(f"{self!r} looks up integers", given=f"indices of {index.dtype.name}",
                             expected="an integer tensor", fix="cast it first: index.int()")


class EmbeddingBag(Embedding):
    """The sum, mean or maximum (`mode`) of rows of `weight`: one for each row of a 2-d input, or for each segment of a
    1-d input that begins at one of `offsets`. `padding_idx` is in no bag.

    >>> layer = EmbeddingBag(10, 4, mode="sum")
    >>> layer(Tensor([[1, 2, 3]])).shape, layer(Tensor([1, 2, 3]), Tensor([0, 1])).shape
    ((1, 4), (2, 4))
    >>> EmbeddingBag.from_pretrained(Tensor([[1.0, 2.0], [3.0, 4.0]]), mode="sum")(Tensor([[0, 1]])).tolist()
    [[4.0, 6.0]]
    """
    shows = ("num_embeddings", "embedding_dim", "mode", "padding_idx")

    def __init__(self, num_embeddings: int, embedding_dim: int, max_norm: float | None = None, norm_type: float = 2.0,
                 scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
                 include_last_offset: bool = False, padding_idx: int | None = None):
        super().__init__(num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq)
        self.mode, self.include_last_offset = mode, include_last_offset

    def forward(self, index: Tensor, offsets: Tensor | None = None,  # type: ignore[override]
                per_sample_weights: Tensor | None = None) -> Tensor:
        self._check(index)
        return embedding_bag(index, self.weight, offsets, self.max_norm, self.norm_type, self.scale_grad_by_freq,
                             self.mode, False, per_sample_weights, self.include_last_offset, self.padding_idx)
