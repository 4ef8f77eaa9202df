"""Kernels as text. In: a `Kernel` (loop tree) and a `Target`. Out: LLVM IR or C, and how to launch it.

`llvm_ir.render_llvm`, `c_source.render_c` and `gpu_source.render_gpu` share everything that is not spelling: TILE loops
are written out by `jam`, and `Walker` decides where each value is computed and in which order; LLVM IR and WebAssembly
share `LowLevelWalker`, which writes addresses and indices out. `launch_info` says what a launch must provide.
Does not know compilers, devices or buffers.
"""
