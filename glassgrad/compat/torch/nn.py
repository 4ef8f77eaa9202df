"""Provide torch.nn: glassgrad's layers, which make tensors of PyTorch's class and begin in training mode. Below it:
functional, init, utils.
"""

from __future__ import annotations

from typing import Any

import glassgrad.nn
from glassgrad.compat.tensor_subclass import Adapter
from glassgrad.compat.torch.torch_tensor import TorchTensor

__all__ = ["ADAPTER"]

ADAPTER = Adapter(TorchTensor, __name__, training=True)


def __getattr__(name: str) -> Any:
    """Return a layer of glassgrad's, as a subclass that begins in training mode and makes tensors of PyTorch's
    class."""
    return ADAPTER.named(name)


def __dir__() -> list[str]:
    return [name for name in dir(glassgrad.nn) if not name.startswith("_")]
