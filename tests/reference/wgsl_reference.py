"""Values in memory for kernels in WGSL, and messages without the line they name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glassgrad import Tensor


def held(values: Any, dtype: str = "float32", device: str | None = None) -> Tensor:
    return Tensor(np.array(values, dtype=dtype), device=device).contiguous().realize()


def message(error: pytest.ExceptionInfo[BaseException]) -> str:
    return str(error.value).partition("\n  at: ")[0]
