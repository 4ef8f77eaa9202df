"""Provide tinygrad.nn: glassgrad's layers, which make tensors of tinygrad's class. Below it: optim, state, datasets."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import glassgrad.nn
from glassgrad.compat.tensor_subclass import Adapter
from glassgrad.compat.tinygrad.tinygrad_tensor import TinygradTensor as Tensor
from glassgrad.nn.modules.argument_checks import SYNONYMS

__all__ = ["ADAPTER", "Tensor"]

ADAPTER = Adapter(Tensor, __name__, synonyms=SYNONYMS)


def __getattr__(name: str) -> Any:
    """Return a layer of glassgrad's, as a subclass that makes tensors of tinygrad's class."""
    if name in ("optim", "state", "datasets"):
        return import_module(f"glassgrad.compat.tinygrad.nn.{name}")
    return ADAPTER.named(name)


def __dir__() -> list[str]:
    return [name for name in dir(glassgrad.nn) if not name.startswith("_")]
