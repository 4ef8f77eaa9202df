"""NVIDIA's run-time compiler. In: CUDA source and an architecture. Out: machine code for it (cubin).

The library comes with CUDA, with PyTorch, or by `pip install nvidia-cuda-nvrtc`; no compiler of the system is needed.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from glassgrad.base.errors import Bug, DeviceError
from glassgrad.runtime.gpu.gpu_device import Rejected

__all__ = ["compile_cuda", "nvrtc_version"]


def _folders() -> Iterator[Path]:
    """Where the library may lie besides the system's own places."""
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
        for helper in sorted(file.parent.glob("*nvrtc-builtins*")):     # it looks for this one by name alone
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


def _call(name: str, *arguments: object) -> None:
    library = _library()
    result = getattr(library, name)(*arguments)
    if result:
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise Bug(f"{name}: {library.nvrtcGetErrorString(result).decode()}")


@lru_cache(maxsize=1)
def nvrtc_version() -> str:
    """The compiler's version, which compiled kernels depend on."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
    return f"nvrtc {major.value}.{minor.value}"


def compile_cuda(source: str, architecture: str) -> bytes:
    """Machine code for an architecture such as sm_90; other source is `Rejected`."""
    library, program = _library(), ctypes.c_void_p()
    _call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    try:
        options = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17", b"--fmad=false"]
        result = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        if result:
            raise Rejected(_text(program, "nvrtcGetProgramLog"))
        return _bytes(program, "nvrtcGetCUBIN")
    finally:
        _call("nvrtcDestroyProgram", ctypes.byref(program))


def _bytes(program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _call(what + "Size", program, ctypes.byref(size))
    out = ctypes.create_string_buffer(size.value)
    _call(what, program, out)
    return out.raw


def _text(program: ctypes.c_void_p, what: str) -> str:
    return _bytes(program, what).rstrip(b"\0").decode(errors="replace")
