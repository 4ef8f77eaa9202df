"""Compile the variants with NVRTC. In: configurations. Out: build/NAME.cubin and build/NAME.log (registers, spills)."""

from __future__ import annotations

import ctypes
import glob
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.join(HERE, "build")


def nvrtc() -> ctypes.CDLL:
    places = [*sys.path, "/usr/local/cuda/lib64", "/usr/local/cuda-13.0/lib64"]
    for place in places:
        for found in (place, os.path.join(place, "nvidia", "cu13", "lib"), os.path.join(place, "nvidia", "cuda_nvrtc", "lib")):
            for builtins in glob.glob(os.path.join(found, "libnvrtc-builtins.so.1*")):
                ctypes.CDLL(builtins, mode=ctypes.RTLD_GLOBAL)
            for library in glob.glob(os.path.join(found, "libnvrtc.so.1*")):
                return ctypes.CDLL(library)
    raise SystemExit("no NVRTC")


def compiled(library: ctypes.CDLL, text: str, arch: str) -> tuple[bytes, str]:
    program = ctypes.c_void_p()
    assert library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None) == 0
    flags = [f"--gpu-architecture={arch}".encode(), b"--std=c++17", b"-diag-suppress=177"]
    flags += [] if arch.startswith("compute") else [b"--ptxas-options=-v"]
    code = library.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    if code:
        raise SystemExit(log.value.decode())
    what = "PTX" if arch.startswith("compute") else "CUBIN"          # PTX: the driver compiles it for what is there
    getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{what}")(program, cubin)
    return cubin.raw, log.value.decode()


def brief(log: str) -> str:
    used = re.search(r"Used (\d+) registers", log)
    spills = re.search(r"(\d+) bytes spill stores", log)
    warned = sorted(set(re.findall(r"C7\d+|[Ww]arning[^\n]*", log)))
    return f"{used.group(1) if used else '?'} registers, {spills.group(1) if spills else '?'} B spilled {' '.join(warned)}"


def build(configurations, arch_of=lambda c: getattr(c, "arch", "sm_90a")) -> None:
    os.makedirs(BUILD, exist_ok=True)
    library = nvrtc()
    for c in configurations:
        text = c.source()
        where = os.path.join(BUILD, c.name)
        if os.path.exists(where + ".cu") and os.path.exists(where + ".cubin") and open(where + ".cu").read() == text:
            print(f"{c.name:70} as it was: {brief(open(where + '.log').read())}", flush=True)
            continue
        cubin, log = compiled(library, text, arch_of(c))
        with open(where + ".cubin", "wb") as out:
            out.write(cubin)
        with open(where + ".cu", "w") as out:
            out.write(text)
        with open(where + ".log", "w") as out:
            out.write(log)
        print(f"{c.name:70} {brief(log)}", flush=True)


if __name__ == "__main__":
    from variants import everything
    build(everything())
