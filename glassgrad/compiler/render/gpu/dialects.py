"""The spellings of GPU languages. In: nothing. Out: a `Dialect` for each.

These languages are C with a few words of their own: where memory is, which thread this is, how threads wait for each
other. gpu_source.py and c_source.py write the rest of a kernel, the same for every language.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from glassgrad.compiler.graph.dtype import DType, dtypes
from glassgrad.compiler.render.c.c_ops import Spelling, literal_ends


@dataclass(frozen=True)
class Language:
    """A kernel language, as a device describes it."""
    name: str
    by_handle: bool              # memory is a handle and an offset, not an address
    missing_types: tuple[str, ...] = ()


WGSL = Language("wgsl", by_handle=True)         # not a dialect of C: rendered by render/wgsl/


@dataclass(frozen=True)
class Conversion:
    """How a small float, held as the integer x with its bits, converts to float32 and back: bodies of functions."""
    widen: tuple[str, ...]       # from x, the bits
    round: tuple[str, ...]       # from x, a float32; to nearest, ties to even
    round_pair: tuple[str, ...] = ()         # from x and y, to one word with y in its upper half


@dataclass(frozen=True)
class Dialect:
    """The spellings of one language."""
    name: str
    spelling: Spelling           # built-in functions of C compilers
    kernel: str                  # before a kernel with {threads} threads, and {at_once} groups on a processor
    helper: str                  # before any other function
    pointer: str                 # before the type of a pointer to device memory
    group_space: str             # before the type of a pointer to group memory
    thread: str                  # the number of this thread in its group
    group: str                   # the number of this group
    groups: str                  # the number of groups
    wait: str  # barrier: all threads of a group arrive before any continues, and can then read what others stored
    types: tuple[tuple[str, str], ...]       # types that are not spelled as in C
    thread_name: str = "thread"  # the variable with the number of this thread
    warp: int = 0                # threads that can read each other's registers; 0: not possible
    shuffle: str = ""            # x of the thread `step` further on in the warp
    exchange: str = ""           # x of the thread whose number differs in the bit `step`
    wide_access: bool = False    # whether a pointer to words loads and stores up to 16 bytes at once
    wide_store: str = "*({words} *)p = all;"     # such a store; some compilers split an assignment into smaller ones
    read_once: str = ""          # loads 16 bytes at p into v.all without caching them; empty: not possible
    by_handle: bool = False      # memory is a handle and an offset
    group_argument: str = ""     # the parameter for group memory; empty: it is declared inside. A driver aligns
                                 # that memory by the parameter's type: eight bytes, the most that is accessed
    scalar: str = "u64 {name}"   # the parameter for a number's cell of eight bytes,
    scalar_pointer: str = "const "           # and the words before the type of a pointer to it
    binding: str = ""            # after the parameter with this {number}
    counters: tuple[str, ...] = ()           # parameters after all others, which `thread`, `group` and `groups` name
    prelude: tuple[str, ...] = ()            # lines before everything else
    shuffle_prelude: str = ""                # definitions that `shuffle` calls
    small_floats: Mapping[DType, Conversion] = field(default_factory=dict)     # conversions by a dedicated instruction
    power_of_two: tuple[str, ...] = ()       # of x, a float32, by an instruction: the body of a function
    reciprocal: tuple[str, ...] = ()         # likewise the reciprocal of x, within one unit of the last place,
    ordinary_reciprocal: tuple[str, ...] = ()    # the same if neither x nor the result is denormal,
    quotient: tuple[str, ...] = ()           # and the quotient of x and y, within two units
    extreme: tuple[str, ...] = ()            # likewise {name}, max or min, of x and y, where NaN wins
    missing_types: tuple[str, ...] = ()


def _ptx(instruction: str, *operands: str, reads: str = "f", gives: str = "f") -> tuple[str, ...]:
    """The body of a function that is one instruction; "f" is a float, "h" 16 bits, "r" 32 bits."""
    places = ", ".join([f"%{number}" for number in range(len(operands) + 1)])
    given = ", ".join([f'"{reads}"({operand})' for operand in operands])
    kind = {"f": "f32", "h": "u16", "r": "unsigned"}[gives]
    return f"{kind} r;", f'asm("{instruction} {places};" : "={gives}"(r) : {given});', "return r;"


# AMD's waves have 64 threads (gfx9) or 32 (gfx10 and later). A shuffle of width 32 is the same in both.
HIP = Dialect(
    name="hip",
    spelling=Spelling("{name}{end}", ("__int_as_float(0x7fc00000)", "__longlong_as_double(0x7ff8000000000000ll)"),
                      ("__int_as_float(0x7f800000)", "__longlong_as_double(0x7ff0000000000000ll)")),
    kernel='extern "C" __global__ void __launch_bounds__({threads})',
    helper="static __device__ __forceinline__",
    pointer="",
    group_space="",
    thread="threadIdx.x",
    group="blockIdx.x",
    groups="gridDim.x",
    wait="__syncthreads();",
    types=(("bool", "bool"),),
    warp=32,
    shuffle="__shfl_down(x, step, 32)",
    exchange="__shfl_xor(x, step, 32)",
    wide_access=True,
    small_floats={dtypes.float16: Conversion(
        ("union { u16 bits; _Float16 value; } both = {x};", "return (f32)both.value;"),
        ("union { _Float16 value; u16 bits; } both;", "both.value = (_Float16)x;", "return both.bits;"))},
)

CUDA = replace(
    HIP,
    name="cuda",
    kernel='extern "C" __global__ void __launch_bounds__({threads}, {at_once})',
    shuffle="__shfl_down_sync(0xffffffffu, x, step)",
    exchange="__shfl_xor_sync(0xffffffffu, x, step)",
    wide_store="__stwb(({words} *)p, all);",
    read_once='asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : '
              '"=r"(v.all.x), "=r"(v.all.y), "=r"(v.all.z), "=r"(v.all.w) : "l"(p));',
    power_of_two=_ptx("ex2.approx.ftz.f32", "x"),
    reciprocal=_ptx("rcp.approx.f32", "x"),
    ordinary_reciprocal=_ptx("rcp.approx.ftz.f32", "x"),
    quotient=_ptx("div.full.f32", "x", "y"),
    extreme=_ptx("{name}.NaN.f32", "x", "y"),
    small_floats={
        dtypes.float16: Conversion(_ptx("cvt.f32.f16", "x", reads="h"), _ptx("cvt.rn.f16.f32", "x", gives="h"),
                                   _ptx("cvt.rn.f16x2.f32", "y", "x", gives="r")),
        dtypes.bfloat16: Conversion(("return __uint_as_float((unsigned)x << 16);",),     # the upper half of a float32
                                    _ptx("cvt.rn.bf16.f32", "x", gives="h"),
                                    _ptx("cvt.rn.bf16x2.f32", "y", "x", gives="r")),
    },
)

OPENCL = Dialect(
    name="opencl",
    spelling=Spelling("{name}", ("as_float(0x7fc00000)", "as_double(0x7ff8000000000000l)"),
                      ("INFINITY", "((double)INFINITY)")),
    kernel="__kernel __attribute__((reqd_work_group_size({threads}, 1, 1))) void",
    helper="static inline",
    pointer="__global ",
    group_space="__local ",
    thread="get_local_id(0)",
    group="get_group_id(0)",
    groups="get_num_groups(0)",
    wait="barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);",
    types=(("bool", "bool"), ("i64", "long"), ("u64", "unsigned long")),
    by_handle=True,
    group_argument="__local i64 *group_memory",
    prelude=("#pragma OPENCL FP_CONTRACT OFF",),
)

# The driver turns fast math off (runtime/gpu/metal.py). There is no float64, and no shuffle of 64 bits or of bool.
METAL = Dialect(
    name="metal",
    spelling=Spelling("{name}", ("as_type<float>(0x7fc00000)", ""), ("INFINITY", ""), literal_ends("l")),
    kernel="[[kernel, max_total_threads_per_threadgroup({threads})]] void",
    helper="static inline",
    pointer="device ",
    group_space="threadgroup ",
    thread="thread_number",
    group="group_number",
    groups="group_count",
    wait="threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);",
    types=(("bool", "bool"), ("i64", "long"), ("u64", "ulong")),
    thread_name="t",             # `thread` is a keyword of the language: the address space of a thread's variables
    warp=32,
    shuffle="shuffle_down(x, step)",
    group_argument="threadgroup i64 *group_memory [[threadgroup(0)]]",
    scalar="constant u64 &{name}",
    scalar_pointer="constant ",
    binding=" [[buffer({number})]]",
    counters=("uint thread_number [[thread_position_in_threadgroup]]",
              "uint group_number [[threadgroup_position_in_grid]]", "uint group_count [[threadgroups_per_grid]]"),
    prelude=("#include <metal_stdlib>", "using namespace metal;", "#pragma METAL fp contract(off)"),
    shuffle_prelude="""
template <typename T> static inline T shuffle_down(T x, ushort step) { return simd_shuffle_down(x, step); }
static inline bool shuffle_down(bool x, ushort step) { return simd_shuffle_down((ushort)x, step) != 0; }
static inline long shuffle_down(long x, ushort step) {
  return as_type<long>(simd_shuffle_down(as_type<uint2>(x), step));
}
static inline ulong shuffle_down(ulong x, ushort step) {
  return as_type<ulong>(simd_shuffle_down(as_type<uint2>(x), step));
}""".strip(),
    small_floats={dtypes.float16: Conversion(("return (f32)as_type<half>(x);",),
                                             ("return as_type<ushort>((half)x);",))},
    missing_types=("float64",),
)

DIALECTS = {dialect.name: dialect for dialect in (CUDA, HIP, OPENCL, METAL)}
