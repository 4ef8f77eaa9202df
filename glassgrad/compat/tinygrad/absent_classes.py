"""Stand in for parts of tinygrad that have no counterpart here. In: nothing. Out: classes without instances, for
`isinstance`.

Scripts test whether a device's renderer is a PTXRenderer, or a dtype an ImageDType. Nothing here is an instance of
these classes, so the answer is no; constructing one raises an error that says why.
"""

from __future__ import annotations

import contextvars
from typing import Any

from glassgrad.base.errors import InputError


class _Absent:
    """A class of tinygrad's that nothing here is an instance of."""
    reason = "it belongs to the inside of tinygrad"

    def __init__(self, *args: Any, **kwargs: Any):
        raise InputError(f"glassgrad has no {type(self).__name__}", given="an attempt to make one",
                         expected=f"to do without: {self.reason}", fix="docs/from_tinygrad.md says where things are")


def _class(name: str, reason: str) -> Any:
    return type(name, (_Absent,), {"reason": reason, "__doc__": f"tinygrad's {name}: {reason}."})


PTXRenderer = _class("PTXRenderer", "no device here is programmed in PTX")
NIRRenderer = _class("NIRRenderer", "no device here is programmed in NIR")
CUDARenderer = _class("CUDARenderer", "CUDA C++ is written by glassgrad.compiler.render.gpu")
WGSLRenderer = _class("WGSLRenderer", "WGSL is written by glassgrad.compiler.render.wgsl")
LLVMRenderer = _class("LLVMRenderer", "LLVM IR is written by glassgrad.compiler.render.llvm.llvm_ir")
ImageDType = _class("ImageDType", "tensors lie in plain memory, never in textures")
PtrDType = _class("PtrDType", "kernels are loop trees, whose memory has no type of its own")
GraphRunner = _class("GraphRunner", "a captured function is one list of commands; see glassgrad.jit.replay")
MultiGraphRunner = _class("MultiGraphRunner", "a captured function is one list of commands; see glassgrad.jit.replay")
BufferCopy = _class("BufferCopy", "copies between devices are commands of a schedule")
BufferXfer = _class("BufferXfer", "copies between devices are commands of a schedule")
MultiLazyBuffer = _class("MultiLazyBuffer", "a tensor lies on one device")
_METADATA: contextvars.ContextVar[Any] = contextvars.ContextVar("_METADATA", default=None)   # set, and never read


def graph_class(device: Any) -> None:
    """Return None: tinygrad's class that launches several kernels at once on a device is not needed."""
