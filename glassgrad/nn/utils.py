"""Provide torch.nn.utils: clip gradients, flatten parameters to one vector, pad sequences to one length.

In: parameters, or sequences. Out: the same in another form. Clipping is in `optim.clip`, and has its names here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.nn.optim.clip import clip_grad_norm_, clip_grad_value_, total_norm
from glassgrad.tensor.tensor import Tensor

__all__ = ["clip_grad_norm_", "clip_grad_value_", "pad_sequence", "parameters_to_vector", "total_norm",
           "unpad_sequence", "vector_to_parameters"]


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All parameters one after another, as one vector; gradients pass through it.

    >>> parameters_to_vector([Tensor([[1.0, 2.0]]), Tensor([3.0])]).tolist()
    [1.0, 2.0, 3.0]
    """
    flat = [p.flatten() for p in parameters]
    if not flat:
        raise InputError("there are no parameters to make a vector of", given="none", expected="one or more tensors",
                         fix="pass model.parameters()")
    return flat[0].cat(*flat[1:])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Give parameters the values of a vector, one after another: the inverse of `parameters_to_vector`.

    >>> x, y = Tensor([[1.0, 2.0]]), Tensor([3.0])
    >>> vector_to_parameters(Tensor([4.0, 5.0, 6.0]), [x, y]); x.tolist(), y.tolist()
    ([[4.0, 5.0]], [6.0])
    """
    held = list(parameters)
    count = sum(p.numel() for p in held)
    if vec.shape != (count,):
        raise ShapeError("the vector does not fit the parameters", given=f"a vector of shape {vec.shape}",
                         expected=f"({count},), as many values as the parameters have",
                         fix="make it with parameters_to_vector")
    for p, part in zip(held, vec.detach().split([p.numel() for p in held])):
        p.assign(part.reshape(p.shape).cast(p.dtype).contiguous())


def pad_sequence(sequences: Sequence[Tensor], batch_first: bool = False, padding_value: float = 0.0,
                 padding_side: str = "right") -> Tensor:
    """Sequences (length, ...) of different lengths as one tensor (longest, batch, ...), or (batch, longest, ...).

    >>> pad_sequence([Tensor([1, 2, 3]), Tensor([4])], batch_first=True).tolist()
    [[1, 2, 3], [4, 0, 0]]
    """
    if not sequences or padding_side not in ("left", "right"):
        raise InputError("these sequences cannot be padded",
                         given=f"{len(sequences)} sequences, padding_side={padding_side!r}",
                         expected='one or more, and "left" or "right"', fix="leave padding_side out")
    longest = max(each.shape[0] for each in sequences)
    same = []
    for each in sequences:
        missing = longest - each.shape[0]
        ends = (0, missing) if padding_side == "right" else (missing, 0)
        same.append(each.pad((ends, *((0, 0),) * (each.ndim - 1)), value=padding_value))
    return same[0].stack(*same[1:], dim=0 if batch_first else 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Tensor | Sequence[int],
                   batch_first: bool = False) -> list[Tensor]:
    """The inverse of `pad_sequence`: the sequences without padding.

    >>> [each.tolist() for each in unpad_sequence(Tensor([[1, 2, 3], [4, 0, 0]]), [3, 1], batch_first=True)]
    [[1, 2, 3], [4]]
    """
    rows = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    counts = lengths.tolist() if isinstance(lengths, Tensor) else lengths
    return [row[:count] for row, count in zip(rows, counts)]
