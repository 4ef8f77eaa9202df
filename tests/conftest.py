"""What every test may ask for: a seeded `rng`, `torch` as a reference, and the real `mnist_folder`.

Tests checked against PyTorch take the fixture `torch`, or begin with

    torch = pytest.importorskip("torch", reason="PyTorch, the reference of gradients, is not installed")

so that without it they skip with that reason, and the tests checked against NumPy still run.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from model_files import data_folder

collect_ignore = ["compat/programs", "reference/shim_devices.py"]        # scripts, which tests run

if "PYTEST_XDIST_WORKER" in os.environ:             # one worker per core: each must not start a thread per core
    for library in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(library, "1")

if os.environ.get("DEVICE") in ("CUDA", "AMD"):     # a bad index fails in the call itself there too: tests of that are
    os.environ.setdefault("CHECK_INDEX", "2")       # about the CPU's contract (test_gpu_launch.py has the other one)

NO_TORCH = "PyTorch, the reference of gradients and layers, is not installed (./dev test installs torch==2.13.0)"


def pytest_report_header(config: pytest.Config) -> str:
    """One line on top of the report: which references are present."""
    try:
        import torch
        return f"references: numpy {np.__version__}, torch {torch.__version__}"
    except ImportError:
        return f"references: numpy {np.__version__}; {NO_TORCH}, so its tests skip"


@pytest.fixture
def torch() -> ModuleType:
    """PyTorch, or a skip with the reason."""
    module: ModuleType = pytest.importorskip("torch", reason=NO_TORCH)
    return module


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed of the test's own, the same every time; TEST_SEED=n overrides it. Printed, so failures show it."""
    chosen = int(os.environ.get("TEST_SEED", zlib.crc32(request.node.nodeid.encode())))
    print(f"seed {chosen} (again: TEST_SEED={chosen} ./dev test '{request.node.nodeid}')")
    return chosen


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """NumPy's random generator, seeded and printed by `seed`."""
    return np.random.default_rng(seed)


@pytest.fixture
def fresh_schedules() -> Iterator[None]:
    """The test begins without schedules."""
    from glassgrad.engine.realize import forgotten_schedules
    with forgotten_schedules():
        yield


@pytest.fixture
def shims() -> Iterator[None]:
    """Devices that run the sources of GPU kernels on the processor."""
    from shim_device import registered  # few tests need it
    with registered():
        yield


@pytest.fixture
def mnist_folder() -> Path:
    """The folder of the four original MNIST files."""
    return data_folder("mnist")


@pytest.fixture
def cifar_folder() -> Path:
    """The folder of CIFAR-10's binary batches (perhaps not all of them)."""
    return data_folder("cifar-10-batches-bin")
