"""What every test and docstring example begins with: the names it may use, and knobs as the user has set them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _public_names(doctest_namespace: dict[str, Any]) -> Iterator[None]:
    from glassgrad import Context, Device, Tensor, dtypes
    doctest_namespace.update(Tensor=Tensor, dtypes=dtypes, Device=Device)
    sys.modules.pop("glassgrad.compat", None)      # so that a page that imports it finds it newly imported
    with Context():                                # `Tensor.training = True` ends with the test that says so
        yield
