"""Provide torch.special: functions of one number. In, out: tensors; the tensor's methods under PyTorch's names."""

from __future__ import annotations

from typing import Any

from glassgrad.tensor.tensor import Tensor

_NAMES = {"expit": "sigmoid", "gammaln": "lgamma", "psi": "digamma"}


def __getattr__(name: str) -> Any:
    found = getattr(Tensor, _NAMES.get(name, name), None)
    if name.startswith("_") or not callable(found):
        raise AttributeError(f"torch.special.{name} has no counterpart in glassgrad; docs/api.md lists what there is")
    return found
