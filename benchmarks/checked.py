"""Run a workload with every kernel checked: `python -m benchmarks.checked NAME`. In: a name. Out: JSON. Measures no
times.

Under CHECK=1 each kernel's results are compared with the graph interpreter's, so that what is timed elsewhere is known
to be right kernel by kernel, not only where the losses of a few steps would show an error. Nothing is replayed
meanwhile: a jitted function is traced at each call.
"""

from __future__ import annotations

import json
import sys
import time

from benchmarks.frameworks import FRAMEWORKS, OURS
from benchmarks.startup import Failed, alone

__all__ = ["check"]

CALLS = 2       # the second step of a training starts from other weights and a filled state


def check(name: str, variables: dict[str, str], limit: float) -> tuple[bool, str]:
    """Run a workload in a fresh process under CHECK=1: whether it passed, and a line about it."""
    began = time.monotonic()
    try:
        kernels = alone(["benchmarks.checked", name], {**variables, "CHECK": "1"}, limit)["kernels"]
    except Failed as problem:
        return False, f"failed: {problem}"
    if not kernels:
        return False, "failed: no kernel ran"
    return True, f"{kernels:.0f} kernels agree with the interpreter ({time.monotonic() - began:.0f} s)"


def main(name: str) -> None:
    import importlib

    from benchmarks.workloads import TABLE
    from glassgrad.base.settings import settings
    from glassgrad.engine.counters import GlobalCounters
    assert settings.CHECK, "nothing is checked without CHECK=1"
    module = importlib.import_module(FRAMEWORKS[OURS].module)
    step = module.build(TABLE[name], TABLE[name].data())
    GlobalCounters.reset()
    for _ in range(CALLS):
        step()
    print(json.dumps({"kernels": GlobalCounters.kernel_count}))


if __name__ == "__main__":
    main(sys.argv[1])
