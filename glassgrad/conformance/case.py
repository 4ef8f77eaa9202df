"""Run one check of a device. In: a `Case` and a device's name. Out: a `CheckResult`: passed, refused or failed, and
how.

A case computes something on the device and returns the expected value, from NumPy in float64 or the device PYTHON. A
device may refuse an element type that it lacks, by an error that names the type; this is reported, but is no failure.
"""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from glassgrad.base.errors import DeviceError, DTypeError
from glassgrad.compiler.graph.dtype import DType, dtypes
from glassgrad.tensor.tensor import Tensor

PASSED, REFUSED, FAILED, CRASHED, HUNG, NOT_RUN = "passed", "refused", "failed", "crashed", "hung", "not run"
REFERENCE = "PYTHON"                              # the reference device, where NumPy has no formula
REQUIRED = ("float32", "int32", "bool")           # element types that no device may refuse
TOLERANCE = {"float64": (1e-12, 1e-12), "float32": (2e-5, 2e-6), "float16": (4e-3, 1e-3), "bfloat16": (2e-2, 1e-2),
             "fp8e4m3": (0.13, 0.02), "fp8e5m2": (0.26, 0.02), "fp8e4m3fnuz": (0.13, 0.02),
             "fp8e5m2fnuz": (0.26, 0.02)}         # relative and absolute; others: exact


class Compared(NamedTuple):
    """What a device computed, and the expected value."""
    given: str
    got: Any                    # a Tensor on the device, or an array
    expected: Any               # an array
    factor: float = 1.0         # multiplies the tolerance: long sums round more often


@dataclass(frozen=True)
class Case:
    """A check by name: a function that computes on the named device."""
    name: str
    run: Callable[[str], Compared]


@dataclass
class CheckResult:
    """The outcome of a case; if it did not pass: the input, the expected value and what was computed."""
    group: str
    case: str
    outcome: str
    given: str = ""
    expected: str = ""
    got: str = ""
    seconds: float = 0.0


def check(group: str, case: Case, device: str) -> CheckResult:
    """Run one case."""
    start = time.perf_counter()
    try:
        compared = case.run(device)
        got = compared.got.numpy() if isinstance(compared.got, Tensor) else np.asarray(compared.got)
        dtype = compared.got.dtype.name if isinstance(compared.got, Tensor) else got.dtype.name
        expected, seen = difference(np.asarray(compared.expected), got, dtype, compared.factor)
        result = CheckResult(group, case.name, FAILED if seen else PASSED, compared.given, expected, seen)
    except Exception as error:          # any exception in a device's code is a result, and the next case runs
        outcome = REFUSED if refused_type(error) else FAILED
        result = CheckResult(group, case.name, outcome, refused_type(error), "a result", described(error))
    result.seconds = time.perf_counter() - start
    return result


def refused_type(error: Exception) -> str:
    """Return the element types that an error names as unsupported; "" if it names none.

    >>> refused_type(DeviceError("no such type here", given="float64"))
    'float64'
    >>> refused_type(DeviceError("no such type here", given="float32")), refused_type(ValueError("float64"))
    ('', '')
    """
    if not isinstance(error, (DeviceError, DTypeError)):
        return ""
    words = re.findall(r"\w+", f"{error.what} {error.given}")
    return ", ".join(dict.fromkeys(d.name for d in dtypes.all if d.name in words and d.name not in REQUIRED))


def described(error: Exception) -> str:
    """Describe an exception for a report: its type, its message, and the line of the device's code that raised it."""
    lines = [line for line in str(error).splitlines() if not line.startswith("  at: ")]
    text = "\n".join(lines[:6]) + ("\n..." if len(lines) > 6 else "")
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {text}\nraised at {frame.filename}:{frame.lineno}, in {frame.name}"


def difference(expected: np.ndarray, got: np.ndarray, dtype: str, factor: float) -> tuple[str, str]:
    """Return the expected and the computed value as text; two empty strings if they agree.

    >>> difference(np.array([1.0, 2.0]), np.array([1.0, 3.0]), "float32", 1)
    ('2.0 at [1]', '3.0; 1 of 2 elements differ')
    >>> difference(np.array([1.0, 2.0]), np.array([1.0, 2.0]), "float32", 1)
    ('', '')
    """
    if expected.shape != got.shape:
        return f"shape {list(expected.shape)}", f"shape {list(got.shape)}"
    relative, absolute = (factor * bound for bound in TOLERANCE.get(dtype, (0.0, 0.0)))
    if not relative:
        wrong = expected != got
    else:
        wrong = ~np.isclose(got.astype(np.float64), expected.astype(np.float64), rtol=relative, atol=absolute,
                            equal_nan=True)
    if not wrong.any():
        return "", ""
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    place = f" at [{', '.join(map(str, first))}]" if first else ""
    return (f"{expected[first]}{place}",
            f"{got[first]}; {int(wrong.sum()):,} of {wrong.size:,} element{'s' * (wrong.size > 1)} differ")


# -- building cases ------------------------------------------------------------------------------------------
def seeded(*shape: int, low: float = -2.0, high: float = 2.0, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """Return random numbers that are the same in every run."""
    rng = np.random.default_rng([seed, *shape])
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if np.dtype(dtype).kind in "iu":
        return rng.integers(int(low), int(high) + 1, shape).astype(dtype)
    return rng.uniform(low, high, shape).astype(dtype)


def on(device: str, array: np.ndarray, dtype: DType | None = None) -> Tensor:
    """Return an array as a realized tensor on a device."""
    return Tensor(array, device=device, dtype=dtype).realize()


def value(name: str, formula: Callable[..., Tensor], reference: Callable[..., Any] | None, *arrays: np.ndarray,
          factor: float = 1.0) -> Case:
    """Make a case that computes one tensor. `reference` gets the arrays, with floats as float64; if it is None, PYTHON
    computes the expected value."""
    def run(device: str) -> Compared:
        got = formula(*[on(device, array) for array in arrays])
        if reference is None:
            expected = formula(*[on(REFERENCE, array) for array in arrays]).numpy()
        else:
            with np.errstate(all="ignore"):
                expected = reference(*[a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays])
        return Compared(describe(arrays), got, expected, factor)
    return Case(name, run)


def same(name: str, formula: Callable[..., Any], *arrays: np.ndarray, factor: float = 1.0) -> Case:
    """Make a case whose formula also works on NumPy arrays, which give the expected value."""
    return value(name, formula, formula, *arrays, factor=factor)


def describe(arrays: tuple[np.ndarray, ...]) -> str:
    """Return the dtype and shape of each input, in a line.

    >>> describe((np.zeros((2, 3), "float32"), np.zeros(4, "int32")))
    'float32[2, 3], int32[4]'
    """
    return ", ".join(f"{array.dtype.name}[{', '.join(map(str, array.shape))}]" for array in arrays)
