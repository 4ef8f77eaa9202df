"""What came after the first stage, each in files of its own: capability -> folders and files of the package.

Sizes to aim at were set for what the first stage could do: the compiler on CPUs, CUDA and OpenCL; the jit; tensors,
layers, optimizers and model files; adapters; searches; the interpreters. figures.py counts what is listed here apart.
A capability that is spread over files of the core (a method of `Tensor`, a keyword of a layer) counts as core.
"""

CAPABILITIES = {
    "attention in one pass": (
        "compiler/lower/attention", "compiler/schedule/online_softmax.py", "compiler/schedule/attention_backward.py",
        "compiler/optimize/tasks_of_several_nests.py"),
    "convolutions in Winograd's tiles": ("compiler/schedule/winograd.py",),
    "remainders of strided convolutions as one product": ("compiler/schedule/joined_remainders.py",),
    "factorizations whose steps are one kernel": ("compiler/lower/steps_of_items.py",),
    "sums over pairs that are no products": ("compiler/optimize/product/pairs.py",),
    "matrix units of GPUs": (
        "compiler/optimize/product/gpu_matrix_unit", "compiler/optimize/product/gpu_warp_tile.py",
        "compiler/optimize/product/conv_window_copies.py", "compiler/optimize/product/conv_line_copies.py",
        "compiler/optimize/chained_matmuls.py", "compiler/optimize/chained_matmul_pipeline.py",
        "compiler/optimize/bulk_copy_tasks.py", "compiler/optimize/bulk_copies.py",
        "compiler/render/gpu/async_copies_and_mma.py", "compiler/optimize/redundant_phases.py",
        "compiler/render/gpu/fragment_layout.py", "compiler/render/gpu/register_mma.py",
        "compiler/check/copies_in_flight.py", "compiler/lower/group_statements.py"),
    "rows, scans, scatters and copies by groups of GPU threads, scatters by threads of a CPU": (
        "compiler/schedule/long_softmax.py", "compiler/schedule/flat_scatters.py",
        "compiler/optimize/plain/gpu_loops.py", "compiler/optimize/plain/short_gpu_loops.py",
        "compiler/optimize/plain/short_rows.py",
        "compiler/optimize/plain/rows_in_registers.py", "compiler/optimize/plain/scans.py",
        "compiler/optimize/plain/gpu_scatters.py", "compiler/optimize/plain/cpu_scatters.py",
        "compiler/optimize/plain/transposed_copies.py", "compiler/optimize/moves/read_ahead.py",
        "compiler/render/gpu/wide_access.py", "compiler/render/gpu/skipped_rounding.py",
        "compiler/render/gpu/counter_width.py", "compiler/lower/one_hot_sums.py"),
    "WebAssembly": ("compiler/render/wasm", "runtime/wasm"),
    "WebGPU": ("compiler/render/wgsl", "compiler/render/gpu/loop_iteration_limit.py", "runtime/gpu/webgpu.py"),
    "AMD and Metal": ("runtime/gpu/hip.py", "runtime/gpu/metal.py"),
    "sizes that change": (
        "engine/changing_sizes", "compiler/optimize/run_time_blocks.py", "compiler/optimize/versions_by_size.py",
        "compiler/optimize/flat_positions.py"),
    "recurrences of any length": (
        "compiler/graph/recurrence.py", "compiler/schedule/recurrent_steps.py", "tensor/recurrence.py"),
    "ONNX models": ("onnx", "cli/onnx.py"),
    "schedules on disk": ("runtime/schedule_cache.py",),
    "the visualizer, explain and pictures": (
        "viz", "cli/viz.py", "cli/explain.py", "base/call_tree.py", "base/svg.py", "compiler/graph/picture.py",
        "compiler/schedule/picture.py", "compiler/lower/expression_text.py", "engine/observer.py",
        "runtime/cpu/stopwatch.py", "compiler/optimize/moves/move_decorator.py"),
    "the sanitizer and guard pages": (
        "tensor/sanitizer.py", "compiler/check/non_finite.py", "compiler/check/needed_elements.py",
        "compiler/lower/access_bounds.py", "runtime/guarded_memory.py"),
    "CHECK finds the rule or move, and writes a script": (
        "engine/check/bisect.py", "engine/check/reproduce.py", "engine/check/one_kernel.py"),
    "conformance of devices": ("conformance", "cli/conformance.py", "cli/devices.py"),
    "data loaders with processes, files for PyTorch": (
        "compat/torch/utils/workers.py", "compat/torch/utils/batch_transport.py", "compat/torch/file_writer.py"),
    "kernels in C with checked types, under the jit": ("tensor/kernels/c_signature.py",),
    "forks and Ctrl-C while kernels run": ("base/fork_locks.py", "base/interrupts.py"),
    "arrays as text without NumPy": ("tensor/array_text.py",),
}
