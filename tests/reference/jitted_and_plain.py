"""A program run jitted and plain. In: a program, which wraps its function. Out: `outcome`: its results and its state
after each call, bit for bit, and the results once more at the end: later calls must not change them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from glassgrad import Tensor

Program = Callable[[Callable[..., Any]], tuple[Any, Callable[[int], Any]]]
CALLS = 8


def numbers(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32))


def seen(value: Any) -> Any:
    """A value with its tensors as bytes."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype, value.requires_grad, value.numpy().tobytes()
    if isinstance(value, (list, tuple, deque)):
        return [seen(v) for v in value]
    if isinstance(value, dict):
        return {k: seen(v) for k, v in value.items()}
    if isinstance(value, Slotted):
        return seen(value.hidden)
    return seen(vars(value)) if isinstance(value, SimpleNamespace) else value


def outcome(program: Program, wrap: Callable[..., Any]) -> list[Any]:
    Tensor.manual_seed(7)
    state, call = program(wrap)
    results = []
    found = []
    for number in range(CALLS):
        results.append(call(number))
        found.append((seen(results[-1]), seen(state)))
    return [found, seen(results)]          # what was handed out, looked at again at the end


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


class Slotted:
    __slots__ = ("hidden", "__weakref__")


def bits(program: Program) -> Any:
    """A program whose last bits a C compiler decides: it fuses products and sums where it finds them side by side."""
    return pytest.param(program, marks=pytest.mark.only_on("CPU", "PYTHON", "CUDA", reason="it compares the last bits"))
