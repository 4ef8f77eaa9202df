"""Compile CUDA with NVIDIA's run-time compiler. In: CUDA source and an architecture. Out: machine code for it (cubin).

The library comes with CUDA, with PyTorch, or by `pip install nvidia-cuda-nvrtc`; no compiler of the system is needed.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from glassgrad.base.errors import DeviceError
from glassgrad.base.packages import find_spec
from glassgrad.runtime.gpu.cuda_hip_device import RunTimeCompiler


def _folders() -> Iterator[Path]:
    """Folders that may contain the library, besides the system's search path."""
    found = find_spec("nvidia")
    for place in (found.submodule_search_locations or []) if found is not None else []:
        yield from sorted(Path(place).glob("*/lib"), reverse=True)       # the newest version first
        yield from sorted(Path(place).glob("*/bin"), reverse=True)
    for root in (os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
        if root:
            yield from (Path(root) / "lib64", Path(root) / "lib", Path(root) / "bin")


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    files = [f for folder in _folders() for pattern in ("libnvrtc.so*", "nvrtc64_*.dll", "libnvrtc.dylib")
             for f in sorted(folder.glob(pattern), reverse=True)]
    for file in files:
        for helper in sorted(file.parent.glob("*nvrtc-builtins*")):     # loaded first: nvrtc finds it by name alone
            try:
                ctypes.CDLL(str(helper), mode=ctypes.RTLD_GLOBAL)
            except OSError:
                continue
    for name in [*map(str, files), "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "nvrtc64_130_0.dll"]:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise DeviceError("CUDA's compiler is not here", given="no library nvrtc",
                      expected="the one of CUDA, or of a package", fix="pip install nvidia-cuda-nvrtc")


def _compiler() -> RunTimeCompiler:
    return RunTimeCompiler(_library(), "nvrtc", "CUBIN")


@lru_cache(maxsize=1)
def nvrtc_version() -> str:
    """The compiler's name and version, for cache keys."""
    return _compiler().version()


def compile_cuda(source: str, architecture: str) -> bytes:
    """Compile CUDA source for an architecture such as sm_90; raises `Rejected`."""
    options = [f"--gpu-architecture={architecture}", "--std=c++17", "--fmad=false"]
    return _compiler().compile(source, "kernel.cu", options)
