"""Provide torch.utils.checkpoint. In: a function of tensors. Out: its value; backward recomputes intermediate values.
"""

from __future__ import annotations

from typing import Any

from glassgrad.tensor.autograd.transforms import checkpoint as _checkpoint

__all__ = ["checkpoint"]


def checkpoint(function: Any, *args: Any, use_reentrant: bool | None = None, **options: Any) -> Any:
    """function(*args), whose intermediate values are recomputed in backward, not kept."""
    return _checkpoint(function, *args)
