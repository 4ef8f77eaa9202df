"""The process of a search (runtime/search/beam_worker.py) with a fake CUDA driver, which a kernel's fault breaks."""

from __future__ import annotations

from fake_drivers import FakeDriver, compiled
from shim_device import ShimDevice

from glassgrad import Device
from glassgrad.compiler.render.gpu.dialects import CUDA
from glassgrad.runtime.gpu import cuda
from glassgrad.runtime.search.beam_worker import main


def open_cuda(name: str) -> cuda.CudaDevice:
    driver = FakeDriver(cuda.CudaDevice.names, CUDA)
    driver.breaks = True
    return cuda.CudaDevice(name, driver)  # type: ignore[arg-type]


if __name__ == "__main__":
    shim = ShimDevice("CUDA_shim", CUDA)
    cuda.compile_cuda = lambda source, _: compiled(shim, source)
    cuda.nvrtc_version = lambda: "nvrtc 0.0"  # type: ignore[assignment]
    Device.register("CUDA", open_cuda)
    main()
