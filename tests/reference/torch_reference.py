"""The reference of tensor operations: PyTorch. One line per op compares value, shape, dtype and gradient.

    check(lambda x, y: x + y, (3, 1), (4,))            # the same function for both, where the names agree
    check(Tensor.gelu, torch.nn.functional.gelu, (5, 7))
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glassgrad import Tensor, dtypes

torch = pytest.importorskip("torch", reason="PyTorch, the reference of gradients and layers, is not installed")

TOLERANCE = {  # relative and absolute, by dtype of the result
    "float64": (1e-12, 1e-12), "float32": (2e-5, 2e-6), "float16": (4e-3, 1e-3), "bfloat16": (2e-2, 1e-2),
}
TORCH = {"bool": torch.bool, "int8": torch.int8, "uint8": torch.uint8, "int16": torch.int16, "int32": torch.int32,
         "int64": torch.int64, "float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32,
         "float64": torch.float64}
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-30, -1e-30, 1e30, float("inf"), float("-inf"), float("nan")]


def seeded(*what: Any) -> np.random.Generator:
    """Numbers that depend only on what is tested."""
    return np.random.default_rng(zlib.crc32(repr(what).encode()))


def make(shape: tuple[int, ...], dtype: str, rng: np.random.Generator, low: float, high: float) -> np.ndarray:
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype.startswith(("int", "uint")):
        return rng.integers(int(max(low, 0 if dtype[0] == "u" else low)), int(high) + 1, shape).astype(dtype)
    return rng.uniform(low, high, shape).astype("float32" if dtype == "bfloat16" else dtype)


def both(array: np.ndarray, dtype: str, grad: bool) -> tuple[Tensor, Any]:
    ours = Tensor(array, dtype=dtype)
    theirs = torch.from_numpy(np.array(array)).to(TORCH[dtype])
    return ours, theirs.requires_grad_(grad and theirs.dtype.is_floating_point)


def close(ours: np.ndarray, theirs: Any, dtype: str, what: str, factor: float = 1.0) -> None:
    expected = theirs.detach().float().numpy() if theirs.dtype is torch.bfloat16 else theirs.detach().numpy()
    rtol, atol = TOLERANCE.get(dtype, (0.0, 0.0))
    np.testing.assert_allclose(ours, expected, rtol=rtol * factor, atol=atol * factor, err_msg=what)


def check(op: Callable[..., Any], *args: Any, low: float = -2.0, high: float = 2.0,
          dtype: str | tuple[str, ...] = "float32", grad: bool = True, gives: str | None = None, factor: float = 1.0,
          values: list[Any] | None = None) -> None:
    """Compare `op` with PyTorch on random inputs of the given shapes, or on `values`.

    args: first, optionally, PyTorch's function (default: `op` itself); then one shape per input.
    gives: the dtype of our result where it knowingly differs from PyTorch's.
    factor: widens the tolerance, for ops that lose digits by nature.
    """
    reference = op if not args or isinstance(args[0], tuple) else args[0]
    shapes = args if reference is op else args[1:]
    kinds = (dtype,) * max(len(shapes), len(values or ())) if isinstance(dtype, str) else dtype
    rng = seeded(shapes, dtype, low, high)
    if values is None:
        arrays = [make(s, k, rng, low, high) for s, k in zip(shapes, kinds)]
    else:
        arrays = [np.asarray(v, "float32" if k == "bfloat16" else k) for v, k in zip(values, kinds)]
    pairs = [both(a, k, grad) for a, k in zip(arrays, kinds)]
    ours, theirs = op(*[p[0] for p in pairs]), reference(*[p[1] for p in pairs])
    assert ours.shape == tuple(theirs.shape), f"shape {ours.shape}, PyTorch {tuple(theirs.shape)}"
    expected = gives or str(theirs.dtype).removeprefix("torch.")
    assert ours.dtype.name == expected, f"dtype {ours.dtype.name}, PyTorch {theirs.dtype}"
    close(ours.numpy(), theirs, ours.dtype.name, "value", factor)
    if not (grad and theirs.requires_grad):
        return
    g = make(ours.shape, "float32", rng, -1.0, 1.0)
    theirs.backward(torch.from_numpy(np.array(g)).to(theirs.dtype))
    ours.backward(Tensor(g, dtype=ours.dtype))
    for i, (x, y) in enumerate(pairs):
        if y.grad is not None:
            if x.grad is None:
                assert not y.grad.abs().sum().item(), f"input {i} has no gradient"
                continue
            assert x.grad.shape == x.shape and x.grad.dtype is x.dtype, f"gradient {i}: {x.grad.shape} {x.grad.dtype}"
            close(x.grad.numpy(), y.grad, x.dtype.name, f"gradient of input {i}", factor * 4)


__all__ = ["check", "both", "make", "seeded", "SPECIAL", "TORCH", "torch", "dtypes", "Tensor"]
