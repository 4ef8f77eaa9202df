"""Provide tinygrad.nn.datasets: glassgrad's data sets as tensors of tinygrad's class."""

from __future__ import annotations

from typing import Any

import glassgrad.nn.datasets
from glassgrad.compat.tinygrad.nn import ADAPTER


def __getattr__(name: str) -> Any:
    found = getattr(glassgrad.nn.datasets, name)
    return ADAPTER.function(found) if callable(found) and not isinstance(found, type) else found
