"""Provide the embeddings of torch.nn.functional: rows of a table, by index. In: integers and a table. Out: rows, or
sums of rows.
"""

from __future__ import annotations

import math

from glassgrad.base.errors import InputError
from glassgrad.nn.functional.fixed_arguments import public_functions
from glassgrad.nn.modules import pending_statistics as pending
from glassgrad.tensor.autograd.function import custom_gradient
from glassgrad.tensor.autograd.gradient_leaves import note_former_node
from glassgrad.tensor.tensor import Tensor


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None,
              norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False) -> Tensor:
    """Rows of a table. The row `padding_idx` gets no gradient. With `max_norm`, rows that are looked up and have a
    larger norm are first rescaled, in the table itself. `scale_grad_by_freq` divides the gradient of a row by how often
    it was looked up. (`sparse` is a layout of gradients; here they are dense.)

    >>> embedding(Tensor([1, 0]), Tensor([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [[3.0, 4.0], [1.0, 2.0]]
    >>> table = Tensor([[3.0, 4.0], [3.0, 4.0]])
    >>> (embedding(Tensor([1]), table, max_norm=1.0) * 10).round().tolist(), (table * 10).round().tolist()
    ([[6.0, 8.0]], [[30.0, 40.0], [6.0, 8.0]])
    """
    if max_norm is not None:
        _limit_norms(weight, input, max_norm, norm_type)
    found = weight.index_select(0, input)
    if padding_idx is not None:
        found = (input == padding_idx % weight.shape[0]).unsqueeze(-1).where(found.detach(), found)
    return _divide_gradient(found, _occurrences(input, weight).cast(weight.dtype)) if scale_grad_by_freq else found


def embedding_bag(input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None,
                  norm_type: float = 2.0, scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
                  per_sample_weights: Tensor | None = None, include_last_offset: bool = False,
                  padding_idx: int | None = None) -> Tensor:
    """The sum, mean or maximum of rows of a table, one for each bag. A bag is a row of a 2-d input, or a segment of a
    1-d input that begins at one of `offsets`; with `include_last_offset` the last offset is the end of the last bag.
    `padding_idx` is in no bag; an empty bag gives zeros.

    >>> table = Tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> embedding_bag(Tensor([0, 1, 2]), table, Tensor([0, 2]), mode="sum").tolist()
    [[4.0, 6.0], [5.0, 6.0]]
    """
    if mode not in ("sum", "mean", "max") or per_sample_weights is not None and mode != "sum" or \
            (offsets is None) != (input.ndim == 2) or input.ndim not in (1, 2):
        raise InputError("these bags cannot be made", given=f"an input of shape {input.shape}, offsets "
                         f"{'given' if offsets is not None else 'left out'}, mode={mode!r}"
                         f"{', with per_sample_weights' if per_sample_weights is not None else ''}",
                         expected='a bag in each row, or one row and offsets; "sum", "mean" or "max", weights in sums',
                         fix='write embedding_bag(rows, table, mode="sum")')
    rows = embedding(input, weight, None, max_norm, norm_type, scale_grad_by_freq)
    counts = (input == input) if padding_idx is None else input != padding_idx % weight.shape[0]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    kept = counts.unsqueeze(-1).where(rows, -math.inf if mode == "max" else 0.0)
    if offsets is None:
        found, members = kept.amax(1) if mode == "max" else kept.sum(1), counts.sum(1, keepdim=True)
    else:
        starts = offsets[:-1] if include_last_offset else offsets
        bag = starts.searchsorted(Tensor.arange(input.shape[0], device=input.device), right=True) - 1
        nothing = Tensor.zeros(starts.shape[0], rows.shape[1], dtype=rows.dtype, device=rows.device)
        place = bag.unsqueeze(-1).expand(rows.shape)
        found = (nothing - math.inf).scatter_reduce(0, place, kept, "amax") if mode == "max" else \
            nothing.scatter_add(0, place, kept)
        members = Tensor.zeros(starts.shape[0], device=input.device).scatter_add(0, bag, counts.float()).unsqueeze(-1)
    if mode == "mean":
        return found / members.maximum(1)
    return (members > 0).where(found, 0.0) if mode == "max" else found


def _limit_norms(weight: Tensor, index: Tensor, max_norm: float, norm_type: float) -> None:
    """Rescale rows that are looked up to a norm of at most `max_norm`. The table stays the same leaf, so that the
    gradients of earlier lookups reach it."""
    if max_norm < 0:
        raise InputError("no row is so short", given=f"max_norm={max_norm}", expected="0 or more",
                         fix="leave max_norm out: rows are of any length then")
    pending.remember(weight)
    picked, old = index.flatten(), weight.uop
    table = weight.detach().clone()
    table[picked] = table.index_select(0, picked).renorm(norm_type, 0, max_norm)
    weight.assign(table)
    note_former_node(weight, old)


def _occurrences(index: Tensor, weight: Tensor) -> Tensor:
    """Return how often each index occurs, with a last axis of size 1."""
    flat = index.flatten()
    counts = Tensor.zeros(weight.shape[0], device=weight.device).scatter_add(0, flat, 1)
    return counts[index].unsqueeze(-1)


@custom_gradient(lambda g, y, rows, times: (g / times, None))
def _divide_gradient(rows: Tensor, times: Tensor) -> Tensor:
    return rows

__all__ = public_functions(globals())
