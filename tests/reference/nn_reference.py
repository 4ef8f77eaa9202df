"""Compare a layer with PyTorch's: weights copied over, then outputs, gradients of inputs and of parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from glassgrad import Tensor
from glassgrad.nn.state import get_state_dict, load_state_dict


def to_torch(array: Any, requires_grad: bool = False) -> torch.Tensor:
    made = torch.tensor(np.array(array))
    return made.requires_grad_(requires_grad) if made.is_floating_point() else made


def copy_weights(module: torch.nn.Module, layer: Any) -> None:
    """PyTorch's weights into ours; every name and shape must fit."""
    theirs = {name: Tensor(value.detach().numpy().copy()) for name, value in module.state_dict().items()}
    ours = get_state_dict(layer)
    assert sorted(ours) == sorted(theirs), f"names differ: {sorted(ours)} and {sorted(theirs)}"
    assert {n: t.shape for n, t in ours.items()} == {n: t.shape for n, t in theirs.items()}
    load_state_dict(layer, theirs)


def close(ours: Any, theirs: Any, what: str, rtol: float = 2e-5, atol: float = 2e-6) -> None:
    a = ours.numpy() if isinstance(ours, Tensor) else np.asarray(ours)
    b = theirs.detach().numpy() if isinstance(theirs, torch.Tensor) else np.asarray(theirs)
    assert a.shape == b.shape, f"{what}: shape {a.shape} and {b.shape}"
    np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg=what)


def flat(value: Any) -> list[Any]:
    """The tensors in what a layer returned."""
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in flat(v)]
    return [] if value is None else [value]


def compare(layer: Any, module: torch.nn.Module, *arrays: Any, view: Any = None, copied: bool = False,
            rtol: float = 2e-5,
            atol: float = 2e-6, **options: Any) -> None:
    """Equal outputs, equal gradients. `view` makes a non-contiguous input of the first array, on either side."""
    if not copied:
        copy_weights(module, layer)
    ours = [Tensor(np.array(a)) for a in arrays]
    theirs = [to_torch(a, requires_grad=True) for a in arrays]
    first, their_first = (view(ours[0]), view(theirs[0])) if view else (ours[0], theirs[0])
    out = flat(layer(first, *ours[1:],
                     **{k: Tensor(np.array(v)) if isinstance(v, np.ndarray) else v for k, v in options.items()}))
    expected = flat(module(their_first, *theirs[1:], **{k: to_torch(v) if isinstance(v, np.ndarray) else v
                                                        for k, v in options.items()}))
    assert len(out) == len(expected)
    for i, (a, b) in enumerate(zip(out, expected)):
        close(a, b, f"output {i}", rtol, atol)
    # a gradient that differs everywhere: the sum of squares weighed by place
    weights = [np.linspace(-1, 1, b.numel(), dtype=np.float32).reshape(b.shape) for b in expected]
    sum(((a * Tensor(w)).sum() + (a * a).sum() for a, w in zip(out, weights)), Tensor(0.0)).backward()
    sum((b * torch.tensor(w)).sum() + (b * b).sum() for b, w in zip(expected, weights)).backward()
    for i, (a, b) in enumerate(zip(ours, theirs)):
        if b.grad is not None:
            close(a.grad, b.grad, f"gradient of input {i}", 10 * rtol, 10 * atol)
    parameters = dict(module.named_parameters())
    for name, tensor in get_state_dict(layer).items():
        if name in parameters and parameters[name].grad is not None:
            close(tensor.grad, parameters[name].grad, f"gradient of {name}", 10 * rtol, 10 * atol)
