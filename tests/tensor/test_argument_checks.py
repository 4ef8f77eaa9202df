"""A wrong argument is named, whatever failed inside; a fault that is not the argument's stays what it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glassgrad import GlassgradError, InputError, Tensor
from glassgrad.tensor.argument_checks import explained


@pytest.mark.parametrize("call", [
    lambda x: x.conv2d([[1.0]]), lambda x: x.linear(3), lambda x: x.outer(None), lambda x: x.masked_fill([1], 2.0),
    lambda x: x.triu("one"), lambda x: x.topk((0,)), lambda x: x.chunk(Tensor), lambda x: x.nll_loss(None),
    lambda x: x.split("x"), lambda x: x.elu((1,)), lambda x: x.view_as(1),
    lambda x: x.scaled_dot_product_attention(1, 2),
    lambda x: x.prelu(np.ones(3)), lambda x: x.logical_and({}), lambda x: x.type_as(2), lambda x: x.cross("float32")])
def test_junk_is_one_clear_error(call: Any) -> None:
    with pytest.raises(GlassgradError) as raised:
        call(Tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert "test_argument_checks.py" in raised.value.where and raised.value.given and raised.value.expected


def test_the_whole_message() -> None:
    with pytest.raises(InputError) as raised:
        Tensor([[1.0, 2.0]]).linear([[3.0]])
    assert str(raised.value).splitlines()[:4] == [
        "linear cannot take this weight", "  given:    weight=[[3.0]] (list)", "  expected: a Tensor",
        "  fix:      see help(Tensor.linear)"]
    assert isinstance(raised.value.__cause__, AttributeError)


def test_a_fault_of_the_code_stays_what_it_is() -> None:
    class Room:
        def divide(self, by: int) -> float:
            return 1 / by

        def own(self, f: Any) -> Any:
            return f()

    @explained
    class House(Room):
        pass

    with pytest.raises(ZeroDivisionError):
        House().divide(0)
    with pytest.raises(InputError, match="divide cannot take this by"):
        House().divide("x")  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="mine"):
        House().own(lambda: {}["mine"])
    with pytest.raises(TypeError, match="divide cannot be called like this"):
        House().divide()     # type: ignore[call-arg]
    assert House.divide.__name__ == "divide" and Room().own(lambda: 3) == 3
