"""How languages of GPUs spell things. In: nothing. Out: a `Dialect` for each.

They are C with a few words of their own: where memory is, which thread this is, how threads wait for each other. All
the rest of a kernel is written by gpu_source.py and c_source.py, alike for every language.
"""

from __future__ import annotations

from dataclasses import dataclass

from glassgrad.compiler.render.c.c_ops import Spelling

__all__ = ["CUDA", "DIALECTS", "OPENCL", "WGSL", "Dialect", "Language"]


@dataclass(frozen=True)
class Language:
    """What a device tells of its language."""
    name: str
    by_handle: bool              # memory is a handle and a distance, not an address


WGSL = Language("wgsl", by_handle=True)       # not a dialect of C: render/wgsl/ writes it


@dataclass(frozen=True)
class Dialect:
    """The words of one language."""
    name: str
    spelling: Spelling           # what C compilers have built in
    kernel: str                  # before a kernel, with its number of {threads}, and groups {at_once} on a processor
    helper: str                  # before any other function
    pointer: str                 # before the type of a pointer to the device's memory
    near: str                    # before the type of a pointer to memory that a group shares
    thread: str                  # the number of this thread in its group
    group: str                   # the number of this group
    groups: str                  # the number of groups
    wait: str                    # all threads of a group arrive here before one goes on; what they stored can be read
    types: tuple[tuple[str, str], ...]       # spelled otherwise than in C
    warp: int = 0                # threads that can read each other's registers; 0: there is no way to
    by_handle: bool = False      # memory is a handle and a distance, and that of a group comes as an argument too
    prelude: tuple[str, ...] = ()            # lines before everything


CUDA = Dialect(
    name="cuda",
    spelling=Spelling("{name}{end}", ("__int_as_float(0x7fc00000)", "__longlong_as_double(0x7ff8000000000000ll)"),
                      ("__int_as_float(0x7f800000)", "__longlong_as_double(0x7ff0000000000000ll)")),
    kernel='extern "C" __global__ void __launch_bounds__({threads}, {at_once})',
    helper="static __device__ __forceinline__",
    pointer="",
    near="",
    thread="threadIdx.x",
    group="blockIdx.x",
    groups="gridDim.x",
    wait="__syncthreads();",
    types=(("bool", "bool"),),
    warp=32,
)

OPENCL = Dialect(
    name="opencl",
    spelling=Spelling("{name}", ("as_float(0x7fc00000)", "as_double(0x7ff8000000000000l)"),
                      ("INFINITY", "((double)INFINITY)")),
    kernel="__kernel __attribute__((reqd_work_group_size({threads}, 1, 1))) void",
    helper="static inline",
    pointer="__global ",
    near="__local ",
    thread="get_local_id(0)",
    group="get_group_id(0)",
    groups="get_num_groups(0)",
    wait="barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);",
    types=(("bool", "bool"), ("i64", "long"), ("u64", "unsigned long")),
    by_handle=True,
    prelude=("#pragma OPENCL FP_CONTRACT OFF",),
)

DIALECTS = {dialect.name: dialect for dialect in (CUDA, OPENCL)}
