"""Define each workload in glassgrad: the lines of workloads_lazy.py on our own classes.

What does not exist yet raises AttributeError or ImportError when it is requested; the table then says "not yet".
"""

from __future__ import annotations

import importlib
from typing import Any

import glassgrad
from benchmarks.workloads_lazy import Lazy

VERSION = getattr(glassgrad, "__version__", "unversioned") + (
    "" if hasattr(glassgrad, "TinyJit") else ", without TinyJit: every step is un-jitted")


class Glassgrad(Lazy):
    Tensor = property(lambda self: glassgrad.Tensor)
    Context = property(lambda self: glassgrad.Context)
    dtypes = property(lambda self: glassgrad.dtypes)
    nn = property(lambda self: importlib.import_module("glassgrad.nn"))

    def jit(self, function):
        return glassgrad.TinyJit(function) if hasattr(glassgrad, "TinyJit") else function

    def synchronize(self) -> None:
        glassgrad.Device[glassgrad.Device.DEFAULT].synchronize()

    def write(self, cache: Any, new: Any) -> Any:
        cache[:, :, -1:] = new
        return cache


_glassgrad = Glassgrad()
build, to_arrays = _glassgrad.build, _glassgrad.to_arrays
