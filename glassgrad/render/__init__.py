"""Kernels as text. In: a `Kernel` (loop tree) and a `Target`. Out: LLVM IR or C, and how to launch it.

`render_llvm` and `render_c` share everything that is not spelling: TILE loops are unrolled by `jam`, and `walk` decides
where each value is computed and in which order. Knows nothing of compilers, devices or buffers.
"""

from glassgrad.render.c_source import render_c
from glassgrad.render.launch import LaunchInfo, launch_info
from glassgrad.render.llvm_ir import render_llvm
from glassgrad.render.target import Target

__all__ = ["LaunchInfo", "Target", "launch_info", "render_c", "render_llvm"]
