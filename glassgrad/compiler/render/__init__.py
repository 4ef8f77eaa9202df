"""Kernels as text. In: a `Kernel` (loop tree) and a `Target`. Out: LLVM IR or C, and how to launch it.

`llvm_ir.render_llvm` and `c_source.render_c` share everything that is not spelling: TILE loops are written out by
`jam`, and `walk` decides where each value is computed and in which order; `launch.launch_info` says what a launch
must provide. Knows nothing of compilers, devices or buffers.
"""
