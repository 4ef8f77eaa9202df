"""Run kernels on AMD's GPUs with ROCm's HIP runtime, called directly: the device AMD. In: an installed runtime. Out: an
opened device.

What it shares with NVIDIA's driver is in cuda_hip_device.py. Kernels are compiled by ROCm's run-time compiler (hiprtc).
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from glassgrad.base.errors import DeviceError
from glassgrad.compiler.optimize.targets.target import GPU
from glassgrad.compiler.render.gpu.dialects import HIP
from glassgrad.runtime.gpu.cuda_hip_calls import DriverNames
from glassgrad.runtime.gpu.cuda_hip_device import DriverDevice, RunTimeCompiler

_ROCM = "/opt/rocm/lib/"
_RUNTIMES = ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", _ROCM + "libamdhip64.so",
             "amdhip64_7.dll", "amdhip64_6.dll", "amdhip64.dll")
_COMPILERS = ("libhiprtc.so", "libhiprtc.so.7", "libhiprtc.so.6", _ROCM + "libhiprtc.so", "hiprtc0700.dll",
              "hiprtc0600.dll", *_RUNTIMES)            # before ROCm 5.3 the compiler is in the runtime
_PROPERTIES_BYTES = 8 << 10                            # more than hipDeviceProp_t has in any version
OPTIONS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fno-strict-aliasing")


def _loaded(names: Iterable[str], function: str) -> ctypes.CDLL | None:
    """Load the first of these libraries that exists and has the given function."""
    for name in names:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        if hasattr(library, function):
            return library
    return None


@lru_cache(maxsize=1)
def hiprtc() -> RunTimeCompiler:
    """Load ROCm's run-time compiler."""
    library = _loaded(_COMPILERS, "hiprtcCompileProgram")
    if library is None:
        raise DeviceError("HIP's compiler is not here", given="no library libhiprtc", expected="the one of ROCm",
                          fix="install ROCm's hiprtc (Debian: apt install libamdhip64-dev)")
    return RunTimeCompiler(library, "hiprtc", "Code")


def compile_hip(source: str, architecture: str) -> bytes:
    """Compile HIP source for an architecture such as gfx90a; raises `Rejected`."""
    return hiprtc().compile(source, "kernel.hip", [f"--offload-arch={architecture}", *OPTIONS])


def open_hip(name: str = "AMD") -> HipDevice:
    """Open the first GPU that the runtime lists."""
    library = _loaded(_RUNTIMES, "hipInit")
    if library is None:
        raise DeviceError("there is no HIP runtime here", given="no library libamdhip64",
                          expected="an AMD GPU with ROCm",
                          fix="install ROCm (Debian: apt install libamdhip64-dev), or use another device: DEV=CPU")
    return HipDevice(name, library)


class HipKernel(ctypes.Structure):
    """The runtime's record of a kernel node in a graph (hipKernelNodeParams)."""
    _fields_ = (("threads", ctypes.c_uint * 3), ("extra", ctypes.c_void_p), ("function", ctypes.c_void_p),
                ("groups", ctypes.c_uint * 3), ("arguments", ctypes.c_void_p), ("group_bytes", ctypes.c_uint))


class HipDevice(DriverDevice):
    """One GPU."""
    dialect, kernel_record = HIP, HipKernel
    names = DriverNames(
        allocate="hipMalloc", free="hipFree", allocate_host="hipHostMalloc", copy_in="hipMemcpyHtoDAsync",
        copy_out="hipMemcpyDtoHAsync", read="hipMemcpyDtoH", load="hipModuleLoadData", function="hipModuleGetFunction",
        launch="hipModuleLaunchKernel", make_stream="hipStreamCreateWithFlags", make_event="hipEventCreateWithFlags",
        record="hipEventRecord", await_event="hipEventSynchronize", stream_awaits="hipStreamWaitEvent",
        elapsed="hipEventElapsedTime", synchronize="hipDeviceSynchronize", make_graph="hipGraphCreate",
        add_kernel="hipGraphAddKernelNode", instantiate="hipGraphInstantiateWithFlags",
        set_kernel="hipGraphExecKernelNodeSetParams", launch_graph="hipGraphLaunch", destroy_graph="hipGraphDestroy",
        destroy_instance="hipGraphExecDestroy")

    def find(self) -> None:
        library, count = self.library, ctypes.c_int()
        library.hipGetErrorString.restype = ctypes.c_char_p
        result = library.hipInit(0) or library.hipGetDeviceCount(ctypes.byref(count))
        if result or not count.value:
            raise DeviceError("HIP finds no AMD GPU", given=self.reason(result) if result else "none",
                              expected="a GPU that ROCm supports",
                              fix="look at what rocminfo says, and at HIP_VISIBLE_DEVICES; or use DEV=CPU")
        model = ctypes.create_string_buffer(100)
        self.call("hipDeviceGetName", model, len(model), 0)
        self.architecture = self._architecture()
        compiler = hiprtc().version()
        self.target = replace(GPU, features=frozenset((self.architecture,)))
        self.machine = f"{self.architecture} {compiler}"
        self.about = f"{model.value.decode()}, {self.architecture}, compiled by {compiler}"

    def _architecture(self) -> str:
        """Return the chip's architecture name, such as gfx90a:sramecc+:xnack-. The device record that contains it has
        another layout in each version of ROCm, so it is found by its form, which no other field has."""
        record = ctypes.create_string_buffer(_PROPERTIES_BYTES)
        newest = "hipGetDevicePropertiesR0600"
        self.call(newest if hasattr(self.library, newest) else "hipGetDeviceProperties", record, 0)
        found = re.search(rb"gfx[0-9a-f]+(:[a-z]+[+-])*", record.raw)
        if found is None:
            raise DeviceError("HIP does not say what its GPU is", given="no architecture such as gfx90a",
                              expected="one in the properties of the device", fix="update ROCm")
        return found.group().decode()

    def make_current(self) -> None:
        self.check("hipSetDevice", self.library.hipSetDevice(0))

    def reason(self, result: int) -> str:
        text: bytes | None = self.library.hipGetErrorString(result)
        return text.decode() if text else f"error {result}"

    def compile_source(self, source: str) -> bytes:
        return compile_hip(source, self.architecture)
