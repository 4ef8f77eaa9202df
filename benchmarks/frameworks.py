"""List the frameworks that take part. In: nothing. Out: a name, a title and a module for each. Imports none of them."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

__all__ = ["OURS", "FRAMEWORKS", "Framework", "installed"]

OURS = "glassgrad"


@dataclass(frozen=True)
class Framework:
    """A framework and the module that says how it does each workload (see worker.py for what that module holds)."""
    name: str
    title: str
    module: str
    package: str


FRAMEWORKS: dict[str, Framework] = {f.name: f for f in [
    Framework(OURS, "glassgrad", "benchmarks.workloads_glassgrad", "glassgrad"),
    Framework("torch", "PyTorch", "benchmarks.workloads_torch", "torch"),
    Framework("jax", "JAX jit", "benchmarks.workloads_jax", "jax"),
    Framework("tinygrad", "tinygrad TinyJit", "benchmarks.workloads_tinygrad", "tinygrad"),
]}


def installed(framework: Framework) -> bool:
    """Whether Python can find the framework, without importing it."""
    return importlib.util.find_spec(framework.package) is not None
