"""Provide torch.utils. In: what scripts import from it. Out: data loading, and gradient checkpointing."""

from __future__ import annotations

from glassgrad.compat.torch.utils import checkpoint as checkpoint, data as data

__all__ = ["checkpoint", "data"]
