"""Provide PyTorch's namespace on glassgrad. In: `torch.cat([x, y], 1)` as scripts write it. Out: our tensors.

    import glassgrad.torch as torch                       # in place of: import torch
    import glassgrad.torch.nn as nn, glassgrad.nn.functional as F
    python -m glassgrad.compat --torch script.py          # or leave the script unchanged

A function that is also a method of the tensor is that method with the tensor first. Functions whose arguments differ
are in the files of this folder, by theme: creation, joining and predicates, gradients, distributions, batches of data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from importlib import import_module
from inspect import isfunction
from typing import Any

from glassgrad.base.errors import MemoryLimitError as OutOfMemoryError  # noqa: F401
from glassgrad.compat.torch import creation, devices, functions, linalg
from glassgrad.compat.torch.torch_tensor import TorchTensor as Tensor
from glassgrad.compiler.graph.dtype import DType as dtype, dtypes  # noqa: F401
from glassgrad.nn import functional as _functional
from glassgrad.nn.modules.argument_checks import explain_all as _explain_all
from glassgrad.nn.optim.mixed_precision import autocast  # noqa: F401
from glassgrad.nn.state.formats.torch_objects import STORAGES as _STORAGES
from glassgrad.tensor.memory.python_values import TORCH_TYPES as _TORCH_TYPES
from glassgrad.tensor.tensor import Tensor as _PlainTensor

pi, e, inf, nan = math.pi, math.e, math.inf, math.nan
Size = tuple
strided = "strided"                      # the only layout
__version__ = "2.13.0+glassgrad"         # the PyTorch version that has these names; programs compare it

# {module of PyTorch: module here}
_MODULES = {"nn": "glassgrad.compat.torch.nn", "optim": "glassgrad.nn.optim",
            "amp": "glassgrad.nn.optim.mixed_precision", "backends": "glassgrad.compat.torch.devices",
            "random": "glassgrad.compat.torch.creation",
            **{name: f"glassgrad.compat.torch.{name}" for name in (
                "autograd", "cuda", "distributions", "func", "linalg", "special", "utils")}}
# element types, by the names of the module and of the older constructors
_TYPES = {"float": dtypes.float32, "double": dtypes.float64, "half": dtypes.float16, "long": dtypes.int64,
          "int": dtypes.int32, "short": dtypes.int16, **_TORCH_TYPES}
_LEGACY = {f"{name}Tensor": kind for name, kind in _STORAGES.items() if kind is not None}
for _part in (creation, functions, linalg):
    _explain_all(vars(_part), _part.__all__, "torch")


def _method(name: str) -> Callable[..., Any]:
    """Return a method of the tensor as a function. A number or list as first argument becomes a tensor, but not a list
    of tensors: `torch.hstack([x, y])`. A number beside a tensor does not widen the tensor's type: `torch.pow(2, x)`."""
    def function(*arguments: Any, **options: Any) -> Any:
        first, *rest = arguments or (options.pop("input"),)
        out = options.pop("out", None)
        several = isinstance(first, (list, tuple)) and any(isinstance(item, _PlainTensor) for item in first)
        if isinstance(first, (int, float)) and rest and isinstance(rest[0], _PlainTensor):
            first = creation.as_tensor(first, functions.result_type(first, rest[0]))
        method = partial(getattr(Tensor, name), first) if several else getattr(creation.as_tensor(first), name)
        found = method(*rest, **options)
        return found if out is None else out.assign(found)
    function.__name__ = function.__qualname__ = name
    function.__doc__ = getattr(Tensor, name).__doc__
    return function


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name in _TYPES:
        return _TYPES[name]
    if name in _LEGACY:
        return partial(Tensor, dtype=_LEGACY[name], requires_grad=False)
    for part in (creation, functions, devices):
        if name in part.__all__:
            return getattr(part, name)
    if name in _functional.__all__:
        return getattr(_functional, name)
    if not name.startswith("_") and isfunction(getattr(Tensor, name, None)):       # no class methods that make tensors
        return _method(name)
    raise AttributeError(f"torch.{name} has no counterpart in glassgrad; docs/api.md lists what there is")


def __dir__() -> list[str]:
    methods = [name for name in dir(Tensor) if not name.startswith("_") and isfunction(getattr(Tensor, name))]
    return sorted({*globals(), *_MODULES, *_TYPES, *_LEGACY, *creation.__all__, *functions.__all__, *devices.__all__,
                   *_functional.__all__, *methods})
