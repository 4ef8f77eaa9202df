"""Kernels for ARM64, executed in an emulator: NEON code gives what the interpreter gives.

The op suite runs there by `DEVICE=ARM64_SHIM ./dev test tests/tensor`, everything in an emulator by `./dev arm64`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import arm64_device
import numpy as np
import pytest
from test_wasm import SAMPLE

from glassgrad import Device, Tensor, TinyJit, dtypes

needs_emulator = pytest.mark.skipif(not arm64_device.is_here(), reason=arm64_device.INSTALL)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def emulated() -> Iterator[str]:
    Device.register("EMULATED", arm64_device.Arm64Device)
    yield "EMULATED"
    Device.unregister("EMULATED")


@needs_emulator
def test_neon_code_computes_as_the_interpreter_does(emulated: str) -> None:
    data = np.random.default_rng(3).uniform(-1, 1, (37, 63)).astype("float32")
    for name, make in SAMPLE.items():
        found, expected = (make(Tensor(data, device=device)).numpy() for device in (emulated, "PYTHON"))
        assert found.dtype == expected.dtype, name
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5, err_msg=name)


@needs_emulator
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8", "int32"])
def test_products_in_register_tiles(emulated: str, dtype: str, rng: np.random.Generator) -> None:
    a, b = rng.integers(-4, 5, (67, 130)), rng.integers(-4, 5, (130, 71))
    kind = getattr(dtypes, dtype)
    found = Tensor(a, device=emulated).cast(kind) @ Tensor(b, device=emulated).cast(kind)
    exact = (a @ b).astype(np.float64)
    np.testing.assert_allclose(found.float().numpy(), exact, rtol={"float16": 1e-3, "bfloat16": 8e-3}.get(dtype, 0))


@needs_emulator
def test_a_jitted_step_is_run_again(emulated: str) -> None:
    weight = Tensor.ones(5, 3, device=emulated).contiguous().realize()
    step = TinyJit(lambda x: (x @ weight).relu().sum().realize())
    for n in range(4):
        assert step(Tensor(np.full((2, 5), n, np.float32), device=emulated)).item() == 30.0 * n


def test_the_script_that_emulates_everything_is_valid_shell() -> None:
    subprocess.run(["sh", "-n", str(ROOT / "tests" / "reference" / "arm64.sh")], check=True)


REMOTE = """
import numpy as np
import remote_torch
remote_torch.install()
import torch
import torch.nn.functional as F

x = torch.from_numpy(np.array([1.0, 3.0, 2.0], "float32")).requires_grad_()
y = x.detach().clone()
same = y
same += 1                                                   # in place, there
(2 * x * x).sum().backward()
largest = x.max(dim=0)
ordered, places = x.sort()
assert isinstance(x, torch.Tensor) and not isinstance(3, torch.Tensor) and x.dtype is torch.float32 and same is y
assert x.grad.numpy().tolist() == [4.0, 12.0, 8.0] and x.shape == (3,) and largest.indices.item() == 1
assert places.tolist() == [0, 2, 1] and F.relu(-x).detach().numpy().tolist() == [0.0, 0.0, 0.0]
assert torch.func.grad(lambda v: (v ** 3).sum())(y).tolist() == [12.0, 48.0, 27.0]          # calls back
try:
    x[7]
except IndexError as error:
    print(error)
"""


def test_pytorch_in_another_process_is_the_reference_of_an_emulated_one(torch: ModuleType) -> None:
    variables = {**os.environ, "REMOTE_TORCH": sys.executable, "PYTHONPATH": str(ROOT / "tests" / "reference")}
    ran = subprocess.run([sys.executable, "-c", REMOTE], env=variables, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "index 7 is out of bounds for dimension 0 with size 3\n"), ran.stderr
