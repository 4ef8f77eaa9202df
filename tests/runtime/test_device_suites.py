"""The op suite on devices that are not the default: some tests on one device in each run, the next device in the next.

Which tests: `ON_DEVICES` and `suite_sample` of tests/reference/rotation.py. All of them, on OpenCL:

    PYOPENCL_BUILD_OPTIONS=-cl-opt-disable DEVICE=OPENCL ./dev test --all tests/tensor tests/lower tests/jit tests/nn
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import rotation
import shim_device

from glassgrad import Device

ROOT = Path(__file__).resolve().parents[2]


def what_is_missing(device: str) -> str | None:
    """What to install, where a device is not here."""
    if device in shim_device.DIALECT_OF:                  # one that the run registers for itself
        return None if shim_device.compiler() else "apt install g++"
    return None if Device.is_available(device) else Device.records[device].install


@pytest.mark.only_on("CPU", reason="a run on another device is a run of its own")
def test_a_sample_of_the_op_suite_passes_on_another_device() -> None:
    device, file, number = rotation.suite_sample(rotation.run_number()[0])
    missing = what_is_missing(device)
    if missing:
        pytest.skip(f"no {device} here: {missing}")
    most, _, environment = rotation.ON_DEVICES[device]
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--sample", f"{number}:{most}", file]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(words, cwd=ROOT, env={**kept, **environment, "DEVICE": device}, capture_output=True,
                          text=True, timeout=900)
    print(rotation.describe_sample(rotation.run_number()[0]), "\n", done.stdout, done.stderr)
    assert done.returncode == 0
    assert re.search(r"\d+ (passed|skipped)", done.stdout)


def test_the_samples_of_a_file_take_every_test_once() -> None:
    tests = list(range(103))
    taken = [rotation.sampled(tests, number, 16) for number in range(7)]
    assert sorted(sum(taken, [])) == tests and max(map(len, taken)) <= 16
    assert rotation.sampled(tests, 7, 16) == taken[0] and rotation.sampled([], 3, 16) == []


def test_successive_runs_take_successive_devices_and_each_device_successive_files() -> None:
    devices = list(rotation.ON_DEVICES)
    samples = [rotation.suite_sample(number) for number in range(200 * len(devices))]
    assert [device for device, *_ in samples[:7]] == [*devices, *devices][:7]
    for device in devices:
        files = [(file, sample) for of, file, sample in samples if of == device]
        first = [file for file, sample in files if sample == 0]
        least = 60 if device == "OPENCL" else 35
        assert len(set(first)) == len(first) > least and files[len(first)] == (first[0], 1)
        assert all((ROOT / file).is_file() for file in first)


def test_a_run_says_what_it_takes_on_which_device() -> None:
    device, file, sample = rotation.suite_sample(1443)
    assert device == "HIP_SHIM"
    assert rotation.describe_sample(1443) == \
        f"on HIP_SHIM: sample {sample} of {file}; again: DEVICE=HIP_SHIM ./dev test --sample {sample}:8 {file}"
