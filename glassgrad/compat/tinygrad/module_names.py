"""Map the names of tinygrad's modules to those here. In: nothing. Out: `MODULES`, a table, and `INSTEAD`, what replaces
the rest.

For each module of tinygrad's, the table has the modules here that are searched for its names, and single names as
"module:name". Releases from 2023 on named things differently, so several modules may have the same contents.
"""

from __future__ import annotations

from glassgrad.runtime.devices import RECORDS

HERE = "glassgrad.compat.tinygrad"

# which module here has each of tinygrad's names; "theirs=ours" if the names differ
_HOMES = {
    "glassgrad.base.errors": "JitError",
    "glassgrad.compiler.graph.dtype": "dtypes DType to_dtype=dtype_by_name",
    "glassgrad.compiler.graph.ops": "Ops",
    "glassgrad.compiler.graph.symbolic": "Variable",
    "glassgrad.compiler.graph.uop": "LazyOp=UOp",
    "glassgrad.compiler.graph.view": "ShapeTracker View",
    "glassgrad.compiler.schedule.kernels": "ScheduleItem=Item",
    "glassgrad.device": "Compiled Allocator LRUAllocator MallocAllocator Compiler Runner CompileError Buffer "
                        "CompiledRunner=Runner",
    "glassgrad.engine.buffer": "RawBuffer=Buffer RawMallocBuffer=Buffer",
    "glassgrad.engine.counters": "GlobalCounters",
    "glassgrad.jit": "TinyJit",
    "glassgrad.onnx": "OnnxRunner=OnnxModel",
    "glassgrad.renderer.cstyle": "CStyleLanguage ClangRenderer Renderer=CStyleLanguage",
    "glassgrad.runtime.devices": "Device",
    "glassgrad.tensor.autograd.function": "Function",
    "glassgrad.tensor.formulas.reductions": "sum_acc_dtype=sum_dtype",
    f"{HERE}.absent_classes": "_METADATA PTXRenderer NIRRenderer CUDARenderer WGSLRenderer LLVMRenderer ImageDType "
                              "PtrDType GraphRunner MultiGraphRunner graph_class BufferCopy BufferXfer MultiLazyBuffer",
    f"{HERE}.dtype_functions": "_to_torch_dtype _from_torch_dtype from_storage_scalar to_storage_scalar",
    f"{HERE}.helpers": "Context TRAINING JIT getenv fetch",
    f"{HERE}.more_helpers": "is_numpy_ndarray",
    f"{HERE}.compiler_functions": """UnaryOps BinaryOps TernaryOps ReduceOps MovementOps LoadOps MetaOps BufferOps
        GroupOp create_schedule run_schedule run_linear lower_schedule lower_schedule_item ExecItem sym_infer resolve
        smax smin sint least_upper_dtype least_upper_float DTypeLike ConstType ReductionStr is_dtype_supported
        canonicalize_device function _broadcast_shape _to_np_dtype _from_np_dtype""",
    f"{HERE}.tinygrad_tensor": "Tensor=TinygradTensor",
    f"{HERE}.tinygrad_uop": "UOp KernelInfo AxisType AddrSpace LazyBuffer",
    f"{HERE}.web_server": "HTTPRequestHandler TCPServerWithReuse",
}
_OPS = """UnaryOps BinaryOps TernaryOps ReduceOps MovementOps LoadOps MetaOps BufferOps GroupOp Ops UOp LazyOp
    KernelInfo AxisType Compiled Device Variable sint sym_infer resolve smax smin _broadcast_shape"""
_DEVICE = """Compiled Allocator LRUAllocator MallocAllocator Compiler Runner CompileError Buffer Device
    is_dtype_supported canonicalize_device"""
_SCHEDULE = "ScheduleItem ExecItem create_schedule run_schedule run_linear lower_schedule lower_schedule_item"
# the names of each module of tinygrad's, or of several that have the same
_NAMES = {
    "tinygrad": "Tensor dtypes TinyJit Device GlobalCounters Variable Context getenv fetch UOp function",
    "tensor": """Tensor Function dtypes DType Device TRAINING Context _to_np_dtype _from_np_dtype _METADATA
        is_numpy_ndarray ReductionStr _broadcast_shape""",
    "dtype": """dtypes DType to_dtype least_upper_dtype least_upper_float DTypeLike ConstType AddrSpace ImageDType
        PtrDType sum_acc_dtype _to_np_dtype _from_np_dtype _to_torch_dtype _from_torch_dtype""",
    "helpers": "dtypes DType GlobalCounters _METADATA HTTPRequestHandler TCPServerWithReuse",
    "device": _DEVICE, "ops": f"{_OPS} {_DEVICE} LazyBuffer create_schedule GlobalCounters", "uop uop.ops": _OPS,
    "lazy engine.lazy": f"{_OPS} LazyBuffer create_schedule", "engine.schedule": _SCHEDULE,
    "engine.realize": f"{_SCHEDULE} Runner CompiledRunner BufferCopy BufferXfer",
    "jit features.jit": "TinyJit JIT JitError",
    "engine.jit": "TinyJit JIT JitError GraphRunner MultiGraphRunner graph_class",
    "mlops function": "Function", "mixin mixin.op": "ReductionStr", "multi": "MultiLazyBuffer",
    "shape.symbolic": "Variable sint sym_infer", "shape.shapetracker shape.view": "ShapeTracker View",
    "runtime.ops_python": "from_storage_scalar to_storage_scalar",
    "runtime.lib": f"{_DEVICE} RawBuffer RawMallocBuffer",
    "renderer renderer.cstyle": "CStyleLanguage ClangRenderer Renderer CUDARenderer",
    "renderer.ptx": "PTXRenderer", "renderer.nir": "NIRRenderer", "renderer.wgsl": "WGSLRenderer",
    "renderer.llvmir": "LLVMRenderer", "viz.serve": "HTTPRequestHandler TCPServerWithReuse",
    "nn nn.optim nn.state nn.datasets features engine viz shape runtime": "", "nn.onnx": "OnnxRunner",
}
# the modules here that are searched for any name, for some of tinygrad's
_SEARCHED = {
    "tinygrad.dtype": (f"{HERE}.dtype_functions", f"{HERE}.settings_without_effect"),
    "tinygrad.helpers": (f"{HERE}.helpers", f"{HERE}.more_helpers", f"{HERE}.settings_without_effect"),
    **{f"tinygrad.{name}": (f"{HERE}.{name}",) for name in ("nn", "nn.optim", "nn.state", "nn.datasets")},
}
_FOUND = {theirs: f"{module}:{ours or theirs}" for module, names in _HOMES.items()
          for theirs, _, ours in [name.partition("=") for name in names.split()]}
MODULES: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    full: (_SEARCHED.get(full, ()), {name: _FOUND[name] for name in names.split()})
    for modules, names in _NAMES.items() for module in modules.split()
    for full in [module if module == "tinygrad" else f"tinygrad.{module}"]}
# prefixes of module names without a counterpart: what to use instead
INSTEAD: dict[str, str] = {
    "tinygrad.codegen": "kernels are loop trees here: x.schedule()[0] shows one, glassgrad.compiler.optimize has the "
                        "moves, glassgrad.compiler.render the renderers",
    "tinygrad.schedule": "the scheduler is glassgrad.compiler.schedule; x.schedule() lists the kernels, each with its "
                         "reason",
    "tinygrad.engine.memory": "x.memory_plan() says what a computation needs; the planner is "
                              "glassgrad.engine.memory_plan",
    "tinygrad.engine.search": "BEAM=2 searches; docs/guide/beam.md",
    "tinygrad.opt": "glassgrad.compiler.optimize has the moves; BEAM=2 searches (docs/guide/beam.md)",
    "tinygrad.engine": "glassgrad.engine realizes and counts; x.schedule() and x.realize() are the way in",
    "tinygrad.features": "BEAM=2 searches kernels (docs/guide/beam.md); images and graphs of tinygrad's are not here",
    **{f"tinygrad.{name}": "the gradient of each op is in glassgrad.compiler.graph.gradient; Function is for one of "
       "your own (docs/guide/06_custom_ops.md)" for name in ("gradient", "mlops", "llops", "function")},
    **{f"tinygrad.{name}": "the node and its ops are glassgrad.compiler.graph.uop and ops; rules are "
       "glassgrad.compiler.graph.rules" for name in ("uop", "ops", "lazy")},
    "tinygrad.realize": "x.schedule() lists the kernels and x.realize() runs them; glassgrad.engine.realize",
    "tinygrad.graph": "VIZ=1 shows graphs and kernels in a browser (docs/guide/visualizer.md)",
    "tinygrad.shape": "from glassgrad.compiler.graph.view import ShapeTracker, View",
    "tinygrad.shape.symbolic": "from glassgrad import Variable; lengths are expressions of variables, in "
                               "glassgrad.compiler.graph.symbolic",
    "tinygrad.state": "from tinygrad.nn.state import get_parameters, safe_save, ...",
    "tinygrad.optim": "from tinygrad.nn.optim import SGD, Adam, ...",
    "tinygrad.datasets": "from tinygrad.nn.datasets import mnist",
    "tinygrad.extra": "that folder of tinygrad's repository is not here; fetch and trange are in tinygrad.helpers, "
                      "data sets in tinygrad.nn.datasets, models in the examples folder",
    "tinygrad.utils": "from tinygrad.helpers import fetch, getenv, ...",
    "tinygrad.frontend": "from tinygrad.nn.onnx import OnnxRunner (docs/guide/onnx.md); PyTorch's files: "
                         "tinygrad.nn.state.torch_load",
    "tinygrad.nn.torch": "python -m glassgrad.compat --torch script.py runs scripts of PyTorch's "
                         "(docs/from_pytorch.md)",
    "tinygrad.helpers.GRAPH": "VIZ=1 shows graphs and kernels in a browser (docs/guide/visualizer.md)",
    "tinygrad.nn.optim": "from tinygrad.nn.state import get_parameters; glassgrad.nn.optim has the optimizers",
    **{f"tinygrad.runtime.ops_{name.lower()}": f'the device {record.name}: Tensor(values, device="{record.name}"), or '
       f"{name}=1 in the environment" for record in reversed(RECORDS) for name in record.names
       if f"tinygrad.runtime.ops_{name.lower()}" not in MODULES},
    "tinygrad.runtime.ops_llvm": 'the device CPU, whose kernels are LLVM IR: Tensor(values, device="CPU")',
    "tinygrad.runtime.ops_disk": 'a file as a device: Tensor.empty(4, device="disk:/tmp/numbers")',
    "tinygrad.runtime": "glassgrad.device has the parts of a backend (docs/guide/07_custom_backend.md); "
                        "Device.DEFAULT says which device is used",
    "tinygrad.renderer": "from glassgrad.renderer.cstyle import CStyleLanguage",
    "tinygrad.viz": "VIZ=1 shows graphs and kernels in a browser (docs/guide/visualizer.md); DEBUG=4 prints them",
    "tinygrad.image": "tensors lie in plain memory, never in textures: conv2d and @ are the same on every device",
    "tinygrad.apps": "the examples folder has a language model",
    "tinygrad.llm": "the examples folder has a language model",
    "tinygrad": "docs/from_tinygrad.md says where things are, docs/api.md lists every name",
}
