"""Fixtures of the runtime's tests: devices on fake drivers."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from fake_drivers import FakeDriver, Opener, compiled
from shim_device import ShimDevice, compiler

from glassgrad import Device
from glassgrad.compiler.render.gpu.dialects import CUDA, HIP
from glassgrad.runtime.gpu import cuda, hip
from glassgrad.runtime.gpu.cuda_hip_device import DriverDevice


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opener]:
    """Opens CUDA or AMD on a fake driver, as the device of that name."""
    shims = {dialect.name: ShimDevice(f"{dialect.name}_shim", dialect) for dialect in (HIP, CUDA)} if compiler() else {}
    monkeypatch.setattr(hip, "compile_hip", lambda source, _: compiled(shims[HIP.name], source))
    monkeypatch.setattr(cuda, "compile_cuda", lambda source, _: compiled(shims[CUDA.name], source))
    monkeypatch.setattr(cuda, "nvrtc_version", lambda: "nvrtc 0.0")
    monkeypatch.setattr(hip, "hiprtc", lambda: SimpleNamespace(version=lambda: "hiprtc 0.0"))

    def open_device(name: str = "CUDA", eager: str = "", **failures: int) -> DriverDevice:
        kind, dialect = (cuda.CudaDevice, CUDA) if name == "CUDA" else (hip.HipDevice, HIP)
        device = kind(name, FakeDriver(kind.names, dialect, eager, **failures))  # type: ignore[arg-type]
        monkeypatch.setitem(Device._devices, name, lambda _name: device)
        return device
    yield open_device
