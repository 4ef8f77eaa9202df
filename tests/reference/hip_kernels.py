"""All HIP kernels that HIP_SHIM has compiled, through ROCm's own compiler. In: its folder. Out: how many it takes.

    DEVICE=HIP_SHIM ./dev test tests/tensor                   compiles kernels as C++, and keeps their source
    python tests/reference/hip_kernels.py gfx90a gfx1030      compiles that for AMD's GPUs; needs no GPU

Many kernels are one program, each in a namespace of its own: starting the compiler takes longer than most kernels.
Where it rejects a program, its halves are compiled, down to the kernel that is wrong.
"""

from __future__ import annotations

import re
import sys

from shim_device import CACHE

from glassgrad.runtime.gpu.gpu_device import Rejected
from glassgrad.runtime.gpu.hip import compile_hip

TOGETHER = 100
KERNEL = re.compile(r'extern "C" (__global__ void __launch_bounds__\(\d+\))')         # CUDA's has two numbers
PLAIN = r"\1"                                                                          # C has no namespaces
HEAD = "#define GROUP_MEMORY __shared__\n#define RUN_KERNEL(name)\n"        # what the shim put into the source


def kernels() -> list[str]:
    """The source of every kernel in the cache that is HIP."""
    found = [file.read_text() for file in sorted(CACHE.glob("*.cpp"))]
    return [text for text in found if KERNEL.search(text)]


def rejected(sources: list[str], architecture: str) -> list[str]:
    """The sources that the compiler does not take, each with what it says."""
    program = HEAD + "\n".join(f"namespace kernel{number} {{\n{KERNEL.sub(PLAIN, text)}\n}}"
                               for number, text in enumerate(sources))
    try:
        compile_hip(program, architecture)
        return []
    except Rejected as error:
        if len(sources) == 1:
            return [f"{error}\n{sources[0]}"]
    half = len(sources) // 2
    return rejected(sources[:half], architecture) + rejected(sources[half:], architecture)


if __name__ == "__main__":
    everything = kernels()
    wrong = 0
    for architecture in sys.argv[1:]:
        refused = [text for first in range(0, len(everything), TOGETHER)
                   for text in rejected(everything[first:first + TOGETHER], architecture)]
        print(f"{architecture}: {len(everything) - len(refused)} of {len(everything)} kernels compile", flush=True)
        print("\n".join(refused[:3]))
        wrong += len(refused)
    sys.exit(wrong > 0)
