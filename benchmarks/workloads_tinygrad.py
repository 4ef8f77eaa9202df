"""Define each workload in tinygrad with TinyJit: the lines of workloads_lazy.py on tinygrad's classes."""

from __future__ import annotations

import importlib.metadata

from tinygrad import Context, Device, Tensor, TinyJit, dtypes, nn

from benchmarks.workloads_lazy import Lazy

VERSION = importlib.metadata.version("tinygrad")


class Tinygrad(Lazy):
    Tensor, Context, dtypes, nn = Tensor, Context, dtypes, nn

    def jit(self, function):
        return TinyJit(function)

    def synchronize(self):
        Device[Device.DEFAULT].synchronize()


_tinygrad = Tinygrad()
build, to_arrays = _tinygrad.build, _tinygrad.to_arrays
