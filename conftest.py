"""The names every docstring example may use."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _public_names(doctest_namespace: dict[str, Any]) -> None:
    from glassgrad import Device, Tensor, dtypes
    doctest_namespace.update(Tensor=Tensor, dtypes=dtypes, Device=Device)
