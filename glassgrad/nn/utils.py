"""Provide torch.nn.utils: clip gradients, flatten parameters to one vector, pad and pack sequences.

In: parameters, or sequences. Out: the same in another form. Clipping is in `optim.clip` and sequences are in
`nn.sequences`; both have their names here too.
"""

from __future__ import annotations

from collections.abc import Iterable

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.nn.optim.clip import clip_grad_norm_, clip_grad_value_, total_norm
from glassgrad.nn.sequences import (PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence,
                                    pad_sequence, unpack_sequence, unpad_sequence)
from glassgrad.tensor.tensor import Tensor

__all__ = ["PackedSequence", "clip_grad_norm_", "clip_grad_value_", "pack_padded_sequence", "pack_sequence",
           "pad_packed_sequence", "pad_sequence", "parameters_to_vector", "total_norm", "unpack_sequence",
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
