"""A wrong argument is named before anything is computed with it; nothing is wrapped: a method is what it shows."""

from __future__ import annotations

import inspect
import traceback
from typing import Any

import numpy as np
import pytest

from glassgrad import GlassgradError, InputError, Tensor
from glassgrad.tensor import checks


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
    assert raised.value.__cause__ is None


def test_a_call_that_does_not_fit_the_signature_is_refused_by_python_or_by_the_helper() -> None:
    x = Tensor([1.0])
    with pytest.raises(TypeError, match="outer.. missing 1 required positional argument: 'other'"):
        x.outer()
    with pytest.raises(InputError, match="matmul cannot be called like this"):
        x.matmul()
    with pytest.raises(InputError, match="unexpected keyword argument 'dimension'"):
        x.sum(dimension=0)


def test_nothing_is_wrapped() -> None:
    for name in dir(Tensor):
        found = inspect.getattr_static(Tensor, name)
        function = getattr(found, "__func__", found)
        assert not hasattr(function, "__wrapped__") or name.endswith("_"), name      # in-place: its signature is there
    try:
        Tensor([1.0]).reshape(7)
    except GlassgradError as problem:
        called = [frame.name for frame in traceback.extract_tb(problem.__traceback__)]
    assert called[1] == "reshape"


def test_generated_methods_have_a_name_a_docstring_and_the_signature_of_their_original() -> None:
    assert Tensor.add_.__name__ == "add_" and Tensor.add_.__qualname__ == "Tensor.add_"
    assert inspect.signature(Tensor.clamp_) == inspect.signature(Tensor.clamp)
    assert "new value" in (Tensor.relu_.__doc__ or "")


@pytest.mark.parametrize("kind,given,wrong", [
    ("int", np.int64(3), 1.5), ("float", np.float32(2.0), "x"), ("list[int]", [1, 2], [1, "a"]),
    ("list[float]", (0.5,), ()), ("list", (1, 2), "ab"), ("bool", True, "yes"), ("str", "a", 1), ("Callable", len, 3),
    ("Self", Tensor([1]), [1]), ("Self | None", None, 0), ("int | None", None, 1.5), ("float | None", None, "x")])
def test_kinds_accept_and_refuse(kind: str, given: Any, wrong: Any) -> None:
    checks.of_kind(kind, "method", argument=given)
    with pytest.raises(InputError, match="method cannot take this argument"):
        checks.of_kind(kind, "method", argument=wrong)
