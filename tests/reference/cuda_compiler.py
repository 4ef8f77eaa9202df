"""Whether NVIDIA's run-time compiler is here. Out: `needs_nvrtc`, a mark for tests that
compile CUDA without a GPU, and what the compiler reports."""

from __future__ import annotations

import re

import pytest

from glassgrad import DeviceError
from glassgrad.runtime.gpu import nvrtc
from glassgrad.runtime.gpu.cuda_hip_device import RunTimeCompiler


def compiler_is_here() -> bool:
    try:
        return bool(nvrtc.nvrtc_version())
    except DeviceError:
        return False


needs_nvrtc = pytest.mark.skipif(not compiler_is_here(), reason="CUDA's compiler: pip install nvidia-cuda-nvrtc")


def compiler_report(source: str, architecture: str) -> str:
    """What the compiler says about a kernel's functions."""
    compiler = RunTimeCompiler(nvrtc._library(), "nvrtc", "ProgramLog")          # its log in place of machine code
    options = [f"--gpu-architecture={architecture}", "--std=c++17", "--fmad=false", "--ptxas-options=-v"]
    return compiler.compile(source, "kernel.cu", options).decode()


def spilled_bytes(source: str, architecture: str) -> list[int]:
    """Bytes of registers that the functions of a kernel keep in memory, because there are too few: stores and loads."""
    return [int(n) for n in re.findall(r"(\d+) bytes spill", compiler_report(source, architecture))]
