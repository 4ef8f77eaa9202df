"""torch.nn.functional's tables: rows looked up by number. In: whole numbers and a table. Out: rows, sums of rows."""

from __future__ import annotations

from glassgrad.base.errors import InputError
from glassgrad.nn import pending
from glassgrad.tensor.function import custom_gradient
from glassgrad.tensor.leaves import still_a_leaf
from glassgrad.tensor.tensor import Tensor

__all__ = ["embedding", "embedding_bag"]


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None,
              norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False) -> Tensor:
    """Rows of a table. The row `padding_idx` gets no gradient. With `max_norm` the rows that are looked up, if they are
    longer, are first made that long in the table itself. `scale_grad_by_freq` divides the gradient of a row by how
    often it was looked up. (`sparse` is a layout of gradients; here they are dense.)

    >>> embedding(Tensor([1, 0]), Tensor([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [[3.0, 4.0], [1.0, 2.0]]
    >>> table = Tensor([[3.0, 4.0], [3.0, 4.0]])
    >>> (embedding(Tensor([1]), table, max_norm=1.0) * 10).round().tolist(), (table * 10).round().tolist()
    ([[6.0, 8.0]], [[30.0, 40.0], [6.0, 8.0]])
    """
    if max_norm is not None:
        _shorten(weight, input, max_norm, norm_type)
    found = weight[input]
    if padding_idx is not None:
        found = (input == padding_idx % weight.shape[0]).unsqueeze(-1).where(found.detach(), found)
    return _shared_out(found, _how_often(input, weight).cast(weight.dtype)) if scale_grad_by_freq else found


def embedding_bag(input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None,
                  norm_type: float = 2.0, scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
                  per_sample_weights: Tensor | None = None, include_last_offset: bool = False,
                  padding_idx: int | None = None) -> Tensor:
    """The sum, mean or maximum of rows of a table, one bag for each row of the input."""
    if offsets is not None or input.ndim != 2 or padding_idx is not None:
        raise InputError("bags are the rows of the input", given=f"an input of shape {input.shape}, {offsets=}",
                         expected="2 axes, offsets=None, padding_idx=None",
                         mend="pad the bags to one length, with per_sample_weights of 0")
    found = embedding(input, weight, None, max_norm, norm_type, scale_grad_by_freq)      # (bags, in each, size)
    if per_sample_weights is not None:
        found = found * per_sample_weights.unsqueeze(-1)
    return found.max(1) if mode == "max" else found.sum(1) if mode == "sum" else found.mean(1)


def _shorten(weight: Tensor, index: Tensor, max_norm: float, norm_type: float) -> None:
    """Rows that are looked up get a length of at most `max_norm`. The table stays the leaf it was: what was looked up
    before has its gradient too."""
    if max_norm < 0:
        raise InputError("no row is so short", given=f"max_norm={max_norm}", expected="0 or more",
                         mend="leave max_norm out: rows are of any length then")
    places, old = index.flatten(), weight.uop
    rows = weight.detach()[places]
    lengths = rows.abs().max(-1, keepdim=True) if norm_type == float("inf") else \
        (rows.abs() ** norm_type).sum(-1, keepdim=True) ** (1 / norm_type)
    table = weight.detach()
    table[places] = (lengths > max_norm).where(rows * (max_norm / (lengths + 1e-7)), rows)
    weight.assign(table)
    still_a_leaf(weight, old)
    pending.remember(weight)


def _how_often(index: Tensor, weight: Tensor) -> Tensor:
    """For each number, how many equal ones there are, as a last axis of 1."""
    flat = index.flatten()
    counts = Tensor.zeros(weight.shape[0], device=weight.device).scatter_reduce(
        0, flat, Tensor.ones(flat.shape[0], device=weight.device), "sum")
    return counts[index].unsqueeze(-1)


@custom_gradient(lambda g, y, rows, times: (g / times, None))
def _shared_out(rows: Tensor, times: Tensor) -> Tensor:
    return rows
