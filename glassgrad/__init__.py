"""glassgrad: a deep-learning framework you can see through.

    from glassgrad import Tensor
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    (x @ x).relu().sum().backward()
    print(x.grad)
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from glassgrad.base.errors import (AxisError, Bug, DeviceError, DivisionError, DTypeError, DTypeNameError, FormatError,
                                   GlassgradError, GradientError, IndexKindError, IndexRangeError, IndexShapeError,
                                   InputError, JitError, MemoryLimitError, ModeError, NoAxesError, NotFiniteError,
                                   ShapeError)
from glassgrad.base.settings import Context, on_entering, settings
from glassgrad.compiler.graph.dtype import DType, dtypes
from glassgrad.compiler.graph.symbolic import Variable
from glassgrad.engine.counters import GlobalCounters
from glassgrad.engine.observer import when_viz_is_set
from glassgrad.runtime.devices import Device
from glassgrad.tensor.autograd.no_grad import no_grad
from glassgrad.tensor.tensor import Tensor

__version__ = "0.1.0"

__all__ = ["Tensor", "dtypes", "DType", "Device", "Context", "GlobalCounters", "Variable", "TinyJit", "jit", "nn",
           "optim", "profile", "explain", "Function", "custom_gradient", "c_kernel", "checkpoint", "grad",
           "no_grad", "value_and_grad", "jvp", "vmap", "GlassgradError", "ShapeError", "NoAxesError", "DTypeError",
           "AxisError", "DeviceError", "GradientError", "InputError", "ModeError", "DivisionError", "IndexKindError",
           "IndexShapeError", "IndexRangeError", "DTypeNameError", "NotFiniteError", "MemoryLimitError", "FormatError",
           "JitError", "Bug"]

# Imported on first use, so that `import glassgrad` stays quick.
_TRANSFORMS = ("checkpoint", "grad", "jvp", "value_and_grad", "vmap")
_LATER = {"nn": ("glassgrad.nn", None), "optim": ("glassgrad.nn.optim", None),
          "jit": ("glassgrad.jit", None), "TinyJit": ("glassgrad.jit", "TinyJit"),
          **{name: ("glassgrad.tensor.autograd.function", name) for name in ("Function", "custom_gradient")},
          "profile": ("glassgrad.engine.profile", "profile"), "explain": ("glassgrad.viz.bottlenecks", "explain"),
          "c_kernel": ("glassgrad.tensor.kernels.c_kernel", "c_kernel"),
          **{name: ("glassgrad.tensor.autograd.transforms", name) for name in _TRANSFORMS}}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'glassgrad' has no attribute {name!r}")
    module, attribute = _LATER[name]
    found = import_module(module)
    return found if attribute is None else getattr(found, attribute)


def _record() -> None:
    """Record for the visualizer if VIZ is set: from the import on, or from when the program sets it."""
    if settings.VIZ:
        import_module("glassgrad.viz.program_recording").begin(settings.VIZ)


def _note_layers(sanitize: int) -> Callable[[], Any]:
    """Make nodes record the layer they are made in, for the sanitizer's messages; return a function that stops it."""
    end: Callable[[], Any] = import_module("glassgrad.tensor.sanitizer").note_layers() if sanitize else lambda: None
    return end


when_viz_is_set(_record)
_record()
on_entering["SANITIZE"] = _note_layers
_note_layers(settings.SANITIZE)
