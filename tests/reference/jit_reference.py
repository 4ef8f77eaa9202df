"""What the tests of the jit share: every call is compared with the same Python, eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from glassgrad import Tensor
from glassgrad.jit import TinyJit

CALLS = 8
numbers = np.random.default_rng(0)


def rand(*shape: int) -> Tensor:
    return Tensor(numbers.standard_normal(shape).astype(np.float32))


def same(ours: Any, eager: Any) -> None:
    got, want = (np.asarray(v.numpy() if isinstance(v, Tensor) else v) for v in (ours, eager))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def follow(function: Callable[..., Any], make: Callable[[], tuple[Any, ...]], calls: int = CALLS,
           change: Callable[[int], None] = lambda call: None) -> TinyJit:
    """Call a function jitted and eagerly, changing something before each call; all results must agree."""
    jitted = TinyJit(function)
    for call in range(calls):
        change(call)
        arguments = make()
        same(jitted(*arguments), function(*arguments))
    return jitted
