"""torch.utils. In: what scripts look for there. Out: batches of data, and computing again instead of keeping."""

from __future__ import annotations

from glassgrad.compat.torch.utils import checkpoint as checkpoint, data as data

__all__ = ["checkpoint", "data"]
