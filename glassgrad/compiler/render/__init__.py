"""Render kernels as text. In: a `Kernel` (loop tree), a `Target`. Out: LLVM IR, C and others; how to launch them.

Renderers such as `llvm_ir.render_llvm`, `c_source.render_c` and `gpu_source.render_gpu` differ in spelling only: `jam`
unrolls TILE loops for all of them, and `Walker` decides where and in which order each value is computed. LLVM IR and
WebAssembly also share `LowLevelWalker`, which lowers addresses and indices. `launch_info` says what a launch must
provide. Does not know compilers, devices or buffers.
"""
