"""Which name of tinygrad's and of PyTorch's leads where. In: nothing. Out: `MODULES`, a table.

For each module of theirs: the glassgrad modules that answer for it, and names that need an answer of their own as
"module:name". Releases from 2023 on named things differently, so several modules may hold the same thing.
"""

from __future__ import annotations

__all__ = ["MODULES"]

Names = dict[str, str]

_JIT: Names = {"TinyJit": "glassgrad.jit:TinyJit", "JIT": "glassgrad.compat.helpers:JIT",
               "JitError": "glassgrad.base.errors:JitError"}
_OPS: Names = {name: f"glassgrad.compat.older:{name}" for name in (
    "UnaryOps", "BinaryOps", "TernaryOps", "ReduceOps", "MovementOps", "LoadOps", "MetaOps", "BufferOps", "GroupOp")}
_OPS |= {"Ops": "glassgrad.compiler.graph.ops:Ops", "UOp": "glassgrad.compat.nodes:UOp",
         "KernelInfo": "glassgrad.compat.nodes:KernelInfo", "AxisType": "glassgrad.compat.nodes:AxisType",
         "LazyOp": "glassgrad.compiler.graph.uop:UOp",
         "Variable": "glassgrad.compiler.graph.symbolic:Variable", "Compiled": "glassgrad.device:Compiled",
         "Device": "glassgrad.runtime.devices:Device", "sint": "glassgrad.compat.older:sint",
         "sym_infer": "glassgrad.compat.older:sym_infer", "resolve": "glassgrad.compat.older:resolve",
         "_broadcast_shape": "glassgrad.compat.older:_broadcast_shape",
         "smax": "glassgrad.compat.older:smax", "smin": "glassgrad.compat.older:smin"}
_DEVICE: Names = {name: f"glassgrad.device:{name}" for name in (
    "Compiled", "Allocator", "LRUAllocator", "MallocAllocator", "Compiler", "Runner", "CompileError", "Buffer")}
_DEVICE |= {
    "Device": "glassgrad.runtime.devices:Device",
    "is_dtype_supported": "glassgrad.compat.older:is_dtype_supported",
    "canonicalize_device": "glassgrad.compat.older:canonicalize_device",
}
_LAZY: Names = {"LazyBuffer": "glassgrad.compiler.graph.uop:UOp",
                "create_schedule": "glassgrad.compat.older:create_schedule"}
_DTYPE: Names = {
    "dtypes": "glassgrad.compiler.graph.dtype:dtypes",
    "DType": "glassgrad.compiler.graph.dtype:DType",
    "least_upper_dtype": "glassgrad.compat.older:least_upper_dtype",
    "least_upper_float": "glassgrad.compat.older:least_upper_float",
    "to_dtype": "glassgrad.compiler.graph.dtype:dtype_by_name",
    "DTypeLike": "glassgrad.compat.older:DTypeLike",
    "ConstType": "glassgrad.compat.older:ConstType",
    "AddrSpace": "glassgrad.compat.nodes:AddrSpace",
    "DTYPES_DICT": "glassgrad.compat.older:DTYPES_DICT",
    "sum_acc_dtype": "glassgrad.tensor.methods.reduce:sum_dtype",
    "_to_np_dtype": "glassgrad.compat.older:_to_np_dtype",
    "_from_np_dtype": "glassgrad.compat.older:_from_np_dtype",
    **{name: f"glassgrad.compat.elsewhere:{name}" for name in ("ImageDType", "PtrDType")},
    **{name: f"glassgrad.compat.numbers:{name}" for name in ("_to_torch_dtype", "_from_torch_dtype")},
}
def _elsewhere(*names: str) -> Names:
    return {name: f"glassgrad.compat.elsewhere:{name}" for name in names}


_GRAPHS = _elsewhere("GraphRunner", "MultiGraphRunner", "graph_class")
_SCHEDULE: Names = {"create_schedule": _LAZY["create_schedule"], "run_schedule": "glassgrad.compat.older:run_schedule",
                    "run_linear": "glassgrad.compat.older:run_linear",
                    "lower_schedule": "glassgrad.compat.older:lower_schedule",
                    "lower_schedule_item": "glassgrad.compat.older:lower_schedule_item",
                    "ScheduleItem": "glassgrad.compiler.schedule.kernels:Item",
                    "ExecItem": "glassgrad.compat.older:ExecItem"}
_SHAPE: Names = {"ShapeTracker": "glassgrad.compiler.graph.view:ShapeTracker",
                 "View": "glassgrad.compiler.graph.view:View"}
_RENDER: Names = {
    "CStyleLanguage": "glassgrad.renderer.cstyle:CStyleLanguage",
    "ClangRenderer": "glassgrad.renderer.cstyle:ClangRenderer",
    **_elsewhere("CUDARenderer"),
    "Renderer": "glassgrad.renderer.cstyle:CStyleLanguage",
}
_MIXIN: Names = {"ReductionStr": "glassgrad.compat.older:ReductionStr"}
_WEB: Names = {name: f"glassgrad.compat.web:{name}" for name in ("HTTPRequestHandler", "TCPServerWithReuse")}
_TENSOR: Names = {"Tensor": "glassgrad.tensor.tensor:Tensor", "Function": "glassgrad.tensor.autograd.function:Function",
                  **{k: _DTYPE[k] for k in ("dtypes", "DType")}, "Device": "glassgrad.runtime.devices:Device",
                  "TRAINING": "glassgrad.compat.helpers:TRAINING", "Context": "glassgrad.compat.helpers:Context",
                  **{k: _DTYPE[k] for k in ("_to_np_dtype", "_from_np_dtype")}, **_elsewhere("_METADATA"),
                  "is_numpy_ndarray": "glassgrad.compat.small:is_numpy_ndarray", **_MIXIN,
                  "_broadcast_shape": _OPS["_broadcast_shape"]}
_HELPERS = "glassgrad.compat.helpers"

MODULES: dict[str, tuple[tuple[str, ...], Names]] = {
    "tinygrad": (
        (),
        {
            "Tensor": "glassgrad.tensor.tensor:Tensor",
            "dtypes": "glassgrad.compiler.graph.dtype:dtypes",
            "TinyJit": "glassgrad.jit:TinyJit",
            "Device": "glassgrad.runtime.devices:Device",
            "GlobalCounters": "glassgrad.engine.counters:GlobalCounters",
            "Context": f"{_HELPERS}:Context",
            "getenv": f"{_HELPERS}:getenv",
            "fetch": f"{_HELPERS}:fetch",
            "Variable": "glassgrad.compiler.graph.symbolic:Variable",
            "UOp": "glassgrad.compat.nodes:UOp",
            "function": "glassgrad.compat.older:function",
        },
    ),
    "tinygrad.tensor": ((), _TENSOR),
    "tinygrad.dtype": (("glassgrad.compat.numbers", "glassgrad.compat.setting_objects"), _DTYPE),
    "tinygrad.helpers": (
        (_HELPERS, "glassgrad.compat.small", "glassgrad.compat.setting_objects"),
        {
            "dtypes": "glassgrad.compiler.graph.dtype:dtypes",
            "DType": "glassgrad.compiler.graph.dtype:DType",
            "GlobalCounters": "glassgrad.engine.counters:GlobalCounters",
            **_elsewhere("_METADATA"),
            **_WEB,
        },
    ),
    "tinygrad.device": ((), _DEVICE),
    "tinygrad.ops": ((), {**_OPS, **_LAZY, **_DEVICE, "GlobalCounters": "glassgrad.engine.counters:GlobalCounters"}),
    "tinygrad.uop": ((), _OPS),
    "tinygrad.uop.ops": ((), _OPS),
    "tinygrad.lazy": ((), {**_LAZY, **_OPS}),
    "tinygrad.mlops": ((), {"Function": "glassgrad.tensor.autograd.function:Function"}),
    "tinygrad.function": ((), {"Function": "glassgrad.tensor.autograd.function:Function"}),
    "tinygrad.jit": ((), _JIT),
    "tinygrad.features": ((), {}),
    "tinygrad.features.jit": ((), _JIT),
    "tinygrad.engine": ((), {}),
    "tinygrad.engine.jit": ((), {**_JIT, **_GRAPHS}),
    "tinygrad.engine.lazy": ((), {**_LAZY, **_OPS}),
    "tinygrad.engine.schedule": ((), _SCHEDULE),
    "tinygrad.engine.realize": (
        (),
        {
            "Runner": "glassgrad.device:Runner",
            "CompiledRunner": "glassgrad.device:Runner",
            **_SCHEDULE,
            **_elsewhere("BufferCopy", "BufferXfer"),
        },
    ),
    "tinygrad.mixin": ((), _MIXIN),
    "tinygrad.mixin.op": ((), _MIXIN),
    "tinygrad.viz": ((), {}),
    "tinygrad.viz.serve": ((), _WEB),
    "tinygrad.multi": ((), _elsewhere("MultiLazyBuffer")),
    "tinygrad.shape": ((), {}),
    "tinygrad.shape.shapetracker": ((), _SHAPE),
    "tinygrad.shape.view": ((), _SHAPE),
    "tinygrad.shape.symbolic": (
        (),
        {"Variable": "glassgrad.compiler.graph.symbolic:Variable", "sint": "glassgrad.compat.older:sint"},
    ),
    "tinygrad.renderer": ((), _RENDER),
    "tinygrad.renderer.cstyle": ((), _RENDER),
    "tinygrad.renderer.ptx": ((), _elsewhere("PTXRenderer")),
    "tinygrad.renderer.nir": ((), _elsewhere("NIRRenderer")),
    "tinygrad.renderer.wgsl": ((), _elsewhere("WGSLRenderer")),
    "tinygrad.renderer.llvmir": ((), _elsewhere("LLVMRenderer")),
    "tinygrad.runtime": ((), {}),
    "tinygrad.runtime.ops_python": ((), {name: f"glassgrad.compat.numbers:{name}" for name in (
        "from_storage_scalar", "to_storage_scalar")}),
    "tinygrad.runtime.lib": (
        (),
        {
            **_DEVICE,
            "RawBuffer": "glassgrad.engine.buffer:Buffer",
            "RawMallocBuffer": "glassgrad.engine.buffer:Buffer",
        },
    ),
    "tinygrad.nn": (("glassgrad.nn",), {"Tensor": "glassgrad.tensor.tensor:Tensor"}),
    "tinygrad.nn.optim": (("glassgrad.nn.optim",), {}),
    "tinygrad.nn.state": (("glassgrad.nn.state",), {}),
    "tinygrad.nn.datasets": (("glassgrad.nn.datasets",), {}),
    # -- PyTorch's: `python -m glassgrad.compat --torch script.py`
    "torch": (("glassgrad.torch",), {"__version__": "glassgrad.torch:__version__"}),
    "torch.nn": (("glassgrad.nn",), {}),
    "torch.nn.parameter": (("glassgrad.nn",), {}),
    "torch.nn.modules": (("glassgrad.nn",), {}),
    **{f"torch.nn.{name}": ((f"glassgrad.nn.{place}",), {}) for name, place in (
        ("functional", "functional"), ("init", "init"), ("utils", "utils"))},
    "torch.optim": (("glassgrad.nn.optim",), {}),
    "torch.optim.lr_scheduler": (("glassgrad.nn.optim.lr_scheduler",), {}),
    "torch.amp": (("glassgrad.nn.optim.mixed_precision",), {}),
    "torch.cuda.amp": (("glassgrad.nn.optim.mixed_precision",), {}),
    "torch.backends": (("glassgrad.torch.machine",), {}),
    "torch.backends.cudnn": ((), {}),
    "torch.random": (("glassgrad.torch.creation",), {}),
    **{f"torch.{name}": ((f"glassgrad.torch.{name}",), {}) for name in (
        "autograd", "cuda", "distributions", "func", "linalg", "special", "utils", "utils.checkpoint", "utils.data")},
    "torch.autograd.functional": (("glassgrad.torch.autograd_functional",), {}),
}
