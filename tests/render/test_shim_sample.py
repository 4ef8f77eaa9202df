"""A sample of all methods on HIP and Metal, run on the CPU: another one with each commit, as much as fits in the time.

The calls are method_cases.py's, in float32, at sizes that take several groups of threads; the reference is the device
CPU, which the whole suite checks. All of them: `python tests/render/test_shim_sample.py HIP_SHIM`, or of any device,
some of them: `python tests/render/test_shim_sample.py WEBGPU 0:200`; the whole suite: `DEVICE=HIP_SHIM ./dev test
tests/tensor`.
"""

from __future__ import annotations

import random
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import rotation
from method_cases import CASES
from shim_device import KernelFault, needs_cxx, register, registered

from glassgrad import Device, DTypeError, Tensor
from glassgrad.base.errors import Bug

pytestmark = needs_cxx
SECONDS, LEAST = 7, 3
NAMES = ("HIP_SHIM", "METAL_SHIM")
ROWS = 70                                   # of the letters whose sizes vary: (70, 4)
SHAPES = {"v": (4,), "w": (4,), "a": (3, 4, 5), "e": (5, 4), "d": (2, 4, 5), "z": (2, 4, 6, 6), "f": (6, 2, 3, 3),
          "g": (2, 4, 9), "o": (ROWS,), "m": (4, 4), "s": (4, 4), "j": (2,), "t": (ROWS, 4)}
CALLS = sorted({ours for kind, pairs in CASES.items() if kind != "in place" for ours, _ in pairs})


def array(letter: str) -> np.ndarray:
    """The numbers behind a letter of method_cases.py."""
    rng = np.random.default_rng(zlib.crc32(letter.encode()))
    shape = SHAPES.get(letter, (ROWS, 4))
    if letter in "bc":
        return rng.random(shape) < 0.5
    if letter in "klnio":
        low, high = {"n": (1, 7), "i": (0, 3), "o": (0, 4)}.get(letter, (-6, 7))
        numbers = rng.integers(low, high, shape).astype("int32")
        return np.where(numbers == 0, 2, numbers).astype("int32") if letter in "kl" else numbers
    if letter == "j":
        return np.array([2, 0], "int32")
    if letter in "ms":
        full = rng.standard_normal((4, 4))
        return (full @ full.T + 2 * np.eye(4) if letter == "s" else full + 4 * np.eye(4)).astype("float32")
    low, high = {"r": (1.2, 3.0), "p": (0.15, 0.85), "q": (0.15, 0.85)}.get(letter, (-2.0, 2.0))
    values = rng.uniform(low, high, shape).astype("float32")
    return values / values.sum(1, keepdims=True) if letter == "t" else values


def arrays_of(result: Any) -> Iterator[np.ndarray]:
    """The arrays of a result."""
    if isinstance(result, Tensor):
        yield result.numpy()
    elif isinstance(result, (tuple, list)):
        for part in result:
            yield from arrays_of(part)


def outcome(call: str, device: str) -> list[np.ndarray] | str:
    """What a call gives on a device: arrays, or the name of the error that it raises on every device."""
    letters = {letter: Tensor(array(letter), device=device) for letter in "xypqrbcklnivwaedzfgomsjt"}
    try:
        with default_device(device):
            return list(arrays_of(eval(call, {"Tensor": Tensor, **letters})))
    except (KernelFault, Bug, DTypeError):
        raise
    except Exception as error:
        return type(error).__name__


@contextmanager
def default_device(name: str) -> Iterator[None]:
    """Inside, tensors that a call makes are on this device too."""
    before, Device.DEFAULT = Device._default, name
    try:
        yield
    finally:
        Device.DEFAULT = before  # type: ignore[assignment]


def check(call: str, device: str) -> str:
    """Compares a call with the device CPU; says why it is not compared, or nothing."""
    expected = outcome(call, "CPU")
    try:
        found = outcome(call, device)
    except DTypeError as error:
        if "has no float64" in str(error) and not Device[device].has_float64:
            return "float64"
        raise
    if isinstance(expected, str) or isinstance(found, str):
        assert found == expected, f"{call}: {found} on {device}, {expected} on CPU"
        return "it fails on every device"
    if "rand" in call or "dropout" in call:
        return "random numbers"
    assert len(found) == len(expected), call
    for ours, reference in zip(found, expected):
        assert ours.dtype == reference.dtype and ours.shape == reference.shape, call
        np.testing.assert_allclose(ours, reference, rtol=2e-4, atol=2e-5, err_msg=f"{call} on {device}")
    return "" if found else "no tensor"


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_of_all_methods(name: str) -> None:
    reason = rotation.current_part().reason
    print(f"the sample of {reason}")
    calls = random.Random(reason + name).sample(CALLS, len(CALLS))
    with registered():
        stop = time.monotonic() + SECONDS
        compared = 0
        for call in calls:
            compared += not check(call, name)
            if compared >= LEAST and time.monotonic() > stop:
                break
    assert compared >= LEAST


@pytest.mark.parametrize("name", NAMES)
def test_every_op_of_one_float_compiles(name: str) -> None:
    """The sample above meets some of them once in a hundred runs."""
    values = np.array([0.5, 1.5, -2.5, 2.4], np.float32)
    with registered():
        for method in ("round", "trunc", "floor", "ceil", "sqrt", "exp2", "log2", "sin", "abs", "neg", "reciprocal"):
            found, expected = (getattr(Tensor(values, device=device), method)() for device in (name, "CPU"))
            np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-5, err_msg=method)


if __name__ == "__main__":                   # all of them, or those FIRST:LAST, on one device
    register()
    first, _, last = (sys.argv[2] if len(sys.argv) > 2 else ":").partition(":")
    chosen = CALLS[int(first or 0):int(last or len(CALLS))]
    skipped: dict[str, list[str]] = {}
    wrong = 0
    for one in chosen:
        try:
            why = check(one, sys.argv[1])
            if why:
                skipped.setdefault(why, []).append(one)
        except Exception as error:
            wrong += 1
            print(f"{one}: {type(error).__name__}: {str(error)[:2000]}", flush=True)
    print(f"{len(chosen)} calls, {wrong} wrong; not compared:", {why: len(some) for why, some in skipped.items()})
    print({why: some for why, some in skipped.items() if why != "it fails on every device"})
    sys.exit(wrong > 0)
