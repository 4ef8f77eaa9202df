"""The suite on another device: `DEVICE=PYTHON python -m pytest` runs there, and says what it leaves out, and why.

What runs here is a part of it, on each device that is not the default, in a process of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from glassgrad.base.settings import SETTINGS
from glassgrad.runtime.devices import Device

ROOT = Path(__file__).resolve().parents[2]
PART = [          # small tests of values, gradients, memory and captures that no other test runs on every device
    "docs/quickstart.md",
    "tests/tensor/test_tensor_device.py",
    "tests/engine/test_memory_use.py::test_garbage_of_several_layers_is_not_counted",
    "tests/jit/test_jit_in_place.py::test_weights_and_gradients_stay_where_they_are",
    "tests/schedule/test_schedule.py::test_a_copy_stands_alone_between_devices",
    "glassgrad/tensor/methods/reductions.py", "glassgrad/tensor/methods/linalg/products.py",
    "glassgrad/tensor/methods/shape/joining_and_splitting.py",
]
NAMED = "only on CPU, and this run is on {}: it shows the default device's name"
HALF_WAY = "only on CPU and CLANG, and this run is on PYTHON: " \
           "interpreted kernels can stop half-way, so they leave the old values whole"


def suite(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in SETTINGS and k not in Device.flags
            and not k.startswith("PYTEST_")}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
    return subprocess.run(words, cwd=ROOT, env={**kept, **environment}, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("device, reasons", [("CLANG", [NAMED.format("CLANG")]),
                                             ("PYTHON", [NAMED.format("PYTHON"), HALF_WAY])])
def test_a_part_of_the_suite_on_another_device(device: str, reasons: list[str]) -> None:
    done = suite(*PART, DEVICE=device)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^SKIPPED \[1\] \S+?: (.*)$", done.stdout, re.MULTILINE) == reasons
    passed, skipped = re.search(r"^(\d+) passed, (\d+) skipped", done.stdout, re.MULTILINE).groups()
    assert int(passed) > 20 and int(skipped) == len(reasons)


@pytest.mark.slow_on("SNAIL", "SLOTH")
def test_slow_tests_run_where_they_are_quick_and_where_they_are_asked_for(request: pytest.FixtureRequest) -> None:
    [conftest] = [found for found in request.config.pluginmanager.get_plugins() if hasattr(found, "reason_to_skip")]
    assert conftest.reason_to_skip(request.node, "SLOTH", everything=False) == "over 20 s on SLOTH (--slow runs it)"
    assert conftest.reason_to_skip(request.node, "SLOTH", everything=True) is None
    assert conftest.reason_to_skip(request.node, "CPU", everything=False) is None


def test_a_device_that_is_not_here_is_said_at_once() -> None:
    done = suite("tests/tensor/test_tensor_device.py", DEVICE="QUANTUM")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "there is no such device\n  given:    DEVICE=QUANTUM" in done.stderr
