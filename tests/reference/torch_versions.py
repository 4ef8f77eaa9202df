"""Where versions of PyTorch differ."""

from __future__ import annotations

from typing import Any

import pytest

from glassgrad import dtypes
from glassgrad.compiler.graph.dtype import DType


def skip_if_large_numbers_become_nan(torch: Any, dtype: DType) -> None:
    """Skip a test of conversion to fp8e4m3 with a PyTorch (such as 2.11) that makes NaN of numbers beyond 448. Newer
    ones, and glassgrad, make 448."""
    if dtype is dtypes.fp8e4m3 and torch.tensor(1000.0).to(torch.float8_e4m3fn).float().isnan():
        pytest.skip("this version of PyTorch makes NaN of numbers that fp8e4m3 cannot hold")
