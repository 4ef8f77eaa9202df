"""Where each name of tinygrad's is found. In: nothing. Out: `MODULES`, a table, and `INSTEAD`, what replaces the rest.

For each module of tinygrad's: the modules here that are searched for its names, and single names as "module:name".
Releases from 2023 on named things differently, so several modules may hold the same thing.
"""

from __future__ import annotations

Names = dict[str, str]
HERE = "glassgrad.compat.tinygrad"


def _of(module: str, *names: str) -> Names:
    """Map each of these names to that module."""
    return {name: f"{module}:{name}" for name in names}


_DEVICE_NAME = _of("glassgrad.runtime.devices", "Device")
_COUNTERS = _of("glassgrad.engine.counters", "GlobalCounters")
_VARIABLE = _of("glassgrad.compiler.graph.symbolic", "Variable")
_TYPES = _of("glassgrad.compiler.graph.dtype", "dtypes", "DType")
_FUNCTION = _of("glassgrad.tensor.autograd.function", "Function")
_BROADCAST = _of(f"{HERE}.older_names", "_broadcast_shape")
_NUMPY_TYPES = _of(f"{HERE}.older_names", "_to_np_dtype", "_from_np_dtype")
_TENSOR: Names = {"Tensor": f"{HERE}.tinygrad_tensor:TinygradTensor"}
_METADATA = _of(f"{HERE}.absent_classes", "_METADATA")
_SINT = _of(f"{HERE}.older_names", "sint")
_MIXIN = _of(f"{HERE}.older_names", "ReductionStr")
_WEB = _of(f"{HERE}.web_server", "HTTPRequestHandler", "TCPServerWithReuse")
_SHAPE = _of("glassgrad.compiler.graph.view", "ShapeTracker", "View")
_JIT: Names = {**_of("glassgrad.jit", "TinyJit"), **_of(f"{HERE}.helpers", "JIT"),
               **_of("glassgrad.base.errors", "JitError")}
_GRAPHS = _of(f"{HERE}.absent_classes", "GraphRunner", "MultiGraphRunner", "graph_class")
_OPS: Names = {
    **_of(f"{HERE}.older_names", "UnaryOps", "BinaryOps", "TernaryOps", "ReduceOps", "MovementOps", "LoadOps",
          "MetaOps", "BufferOps", "GroupOp", "sym_infer", "resolve", "smax", "smin"),
    **_of("glassgrad.compiler.graph.ops", "Ops"), **_of(f"{HERE}.tinygrad_uop", "UOp", "KernelInfo", "AxisType"),
    "LazyOp": "glassgrad.compiler.graph.uop:UOp", **_of("glassgrad.device", "Compiled"),
    **_DEVICE_NAME, **_VARIABLE, **_SINT, **_BROADCAST}
_DEVICE: Names = {
    **_of("glassgrad.device", "Compiled", "Allocator", "LRUAllocator", "MallocAllocator", "Compiler", "Runner",
          "CompileError", "Buffer"),
    **_of(f"{HERE}.older_names", "is_dtype_supported", "canonicalize_device"), **_DEVICE_NAME}
_LAZY: Names = {**_of(f"{HERE}.tinygrad_uop", "LazyBuffer"), **_of(f"{HERE}.older_names", "create_schedule")}
_DTYPE: Names = {
    **_TYPES, **_NUMPY_TYPES, "to_dtype": "glassgrad.compiler.graph.dtype:dtype_by_name",
    **_of(f"{HERE}.older_names", "least_upper_dtype", "least_upper_float", "DTypeLike", "ConstType"),
    **_of(f"{HERE}.tinygrad_uop", "AddrSpace"), "sum_acc_dtype": "glassgrad.tensor.formulas.reductions:sum_dtype",
    **_of(f"{HERE}.absent_classes", "ImageDType", "PtrDType"),
    **_of(f"{HERE}.dtype_functions", "_to_torch_dtype", "_from_torch_dtype")}
_SCHEDULE: Names = {
    **_of(f"{HERE}.older_names", "create_schedule", "run_schedule", "run_linear", "lower_schedule",
          "lower_schedule_item", "ExecItem"),
    "ScheduleItem": "glassgrad.compiler.schedule.kernels:Item"}
_RENDER: Names = {**_of("glassgrad.renderer.cstyle", "CStyleLanguage", "ClangRenderer"),
                  "Renderer": "glassgrad.renderer.cstyle:CStyleLanguage",
                  **_of(f"{HERE}.absent_classes", "CUDARenderer")}

MODULES: dict[str, tuple[tuple[str, ...], Names]] = {
    "tinygrad": ((), {
        **_TENSOR, **_of("glassgrad.compiler.graph.dtype", "dtypes"), **_of("glassgrad.jit", "TinyJit"),
        **_DEVICE_NAME, **_COUNTERS, **_VARIABLE, **_of(f"{HERE}.helpers", "Context", "getenv", "fetch"),
        **_of(f"{HERE}.tinygrad_uop", "UOp"), **_of(f"{HERE}.older_names", "function")}),
    "tinygrad.tensor": ((), {
        **_TENSOR, **_FUNCTION, **_TYPES, **_DEVICE_NAME, **_of(f"{HERE}.helpers", "TRAINING", "Context"),
        **_NUMPY_TYPES, **_METADATA, **_of(f"{HERE}.more_helpers", "is_numpy_ndarray"), **_MIXIN, **_BROADCAST}),
    "tinygrad.dtype": ((f"{HERE}.dtype_functions", f"{HERE}.settings_without_effect"), _DTYPE),
    "tinygrad.helpers": ((f"{HERE}.helpers", f"{HERE}.more_helpers", f"{HERE}.settings_without_effect"),
                         {**_TYPES, **_COUNTERS, **_METADATA, **_WEB}),
    "tinygrad.device": ((), _DEVICE),
    "tinygrad.ops": ((), {**_OPS, **_LAZY, **_DEVICE, **_COUNTERS}),
    "tinygrad.engine.jit": ((), {**_JIT, **_GRAPHS}),
    "tinygrad.engine.realize": ((), {
        **_of("glassgrad.device", "Runner"), "CompiledRunner": "glassgrad.device:Runner", **_SCHEDULE,
        **_of(f"{HERE}.absent_classes", "BufferCopy", "BufferXfer")}),
    "tinygrad.multi": ((), _of(f"{HERE}.absent_classes", "MultiLazyBuffer")),
    "tinygrad.shape.symbolic": ((), {**_VARIABLE, **_SINT}),
    "tinygrad.runtime.ops_python": ((), _of(f"{HERE}.dtype_functions", "from_storage_scalar", "to_storage_scalar")),
    "tinygrad.runtime.lib": ((), {**_DEVICE, "RawBuffer": "glassgrad.engine.buffer:Buffer",
                                  "RawMallocBuffer": "glassgrad.engine.buffer:Buffer"}),
    **{f"tinygrad.{module}": ((), names) for modules, names in (
        ("features engine viz shape runtime", {}), ("uop uop.ops", _OPS), ("lazy engine.lazy", {**_LAZY, **_OPS}),
        ("mlops function", _FUNCTION), ("jit features.jit", _JIT), ("engine.schedule", _SCHEDULE),
        ("mixin mixin.op", _MIXIN), ("viz.serve", _WEB), ("shape.shapetracker shape.view", _SHAPE),
        ("renderer renderer.cstyle", _RENDER)) for module in modules.split()},
    **{f"tinygrad.renderer.{module}": ((), _of(f"{HERE}.absent_classes", name)) for module, name in (
        ("ptx", "PTXRenderer"), ("nir", "NIRRenderer"), ("wgsl", "WGSLRenderer"), ("llvmir", "LLVMRenderer"))},
    "tinygrad.nn": ((f"{HERE}.nn",), {}),
    "tinygrad.nn.onnx": ((), {"OnnxRunner": "glassgrad.onnx:OnnxModel"}),
    **{f"tinygrad.nn.{name}": ((f"{HERE}.nn.{name}",), {}) for name in ("optim", "state", "datasets")},
}

# prefixes of module names without a counterpart: what to use instead
INSTEAD: dict[str, str] = {
    "tinygrad.codegen": "kernels are loop trees here: x.schedule()[0] shows one, glassgrad.compiler.optimize has the "
                        "moves, glassgrad.compiler.render the renderers",
    "tinygrad.schedule": "the scheduler is glassgrad.compiler.schedule; x.schedule() lists the kernels, each with its "
                         "reason",
    "tinygrad.engine.memory": "x.memory_plan() says what a computation needs; the planner is "
                              "glassgrad.engine.memory_plan",
    "tinygrad.engine.search": "BEAM=2 searches; docs/guide/beam.md",
    "tinygrad.engine": "glassgrad.engine realizes and counts; x.schedule() and x.realize() are the way in",
    "tinygrad.features": "BEAM=2 searches kernels (docs/guide/beam.md); images and graphs of tinygrad's are not here",
    **{f"tinygrad.{name}": "the gradient of each op is in glassgrad.compiler.graph.gradient; Function is for one of "
       "your own (docs/guide/06_custom_ops.md)" for name in ("gradient", "mlops", "function")},
    **{f"tinygrad.{name}": "the node and its ops are glassgrad.compiler.graph.uop and ops; rules are "
       "glassgrad.compiler.graph.rules" for name in ("uop", "ops", "lazy")},
    "tinygrad.realize": "x.schedule() lists the kernels and x.realize() runs them; glassgrad.engine.realize",
    "tinygrad.graph": "VIZ=1 shows graphs and kernels in a browser (docs/guide/visualizer.md)",
    "tinygrad.shape": "from glassgrad.compiler.graph.view import ShapeTracker, View",
    **{f"tinygrad.runtime.ops_{name}": f'the device {device}: Tensor(values, device="{device}"), or {variable}=1 in '
       "the environment" for name, device, variable in (
           ("clang", "CLANG", "CLANG"), ("cpu", "CPU", "CPU"), ("gpu", "OPENCL", "GPU"), ("cl", "OPENCL", "GPU"),
           ("cuda", "CUDA", "CUDA"), ("nv", "CUDA", "CUDA"), ("hip", "AMD", "AMD"), ("amd", "AMD", "AMD"),
           ("metal", "METAL", "METAL"))},
    "tinygrad.runtime.ops_llvm": 'the device CPU, whose kernels are LLVM IR: Tensor(values, device="CPU")',
    "tinygrad.runtime.ops_disk": 'a file as a device: Tensor.empty(4, device="disk:/tmp/numbers")',
    "tinygrad.runtime": "glassgrad.device has the parts of a backend (docs/guide/07_custom_backend.md); "
                        "Device.DEFAULT says which device is used",
    "tinygrad.renderer": "from glassgrad.renderer.cstyle import CStyleLanguage",
    "tinygrad.viz": "VIZ=1 shows graphs and kernels in a browser (docs/guide/visualizer.md); DEBUG=4 prints them",
    "tinygrad.apps": "the examples folder has a language model",
    "tinygrad.llm": "the examples folder has a language model",
    "tinygrad": "docs/from_tinygrad.md says where things are, docs/api.md lists every name",
}
