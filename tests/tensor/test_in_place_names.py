"""The example in the docstring of each method with an underscore, which is generated from the one without it."""

from __future__ import annotations

import doctest
from typing import Any

import pytest

import glassgrad
from glassgrad import Tensor
from glassgrad.tensor.methods.assignment import in_place_methods

METHODS: dict[str, Any] = dict(in_place_methods(Tensor))


@pytest.mark.parametrize("name", METHODS)
def test_the_example_runs(name: str) -> None:
    example = doctest.DocTestParser().get_doctest(METHODS[name].__doc__, dict(vars(glassgrad)), name, None, None)
    assert example.examples and doctest.DocTestRunner(verbose=False).run(example).failed == 0
