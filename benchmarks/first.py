"""Time a fresh process until its first result: `python -m benchmarks.first FRAMEWORK CASE`. Out: JSON.

The clock starts when Python runs its first line. `import` is the import of the framework (and of NumPy, for the
networks); `first` is the time from then until the first result is there, without making the input data; `peak` and
`before` are the process's largest memory after a few steps, and its memory after the import, in bytes.
"""

import time

BEGAN = time.perf_counter()

import json  # noqa: E402 (the clock comes first)
import sys  # noqa: E402

__all__ = ["CASES"]

STEPS = 4       # after the first, before memory is read: the jit has captured and replayed

CASES = {"mlp": "mlp-step-jit", "cnn": "cnn-step", "resnet18": "resnet18-step"}

# import -> (a + b).sum().item(), with nothing else loaded
SUMS = {
    "glassgrad": ("from glassgrad import Tensor", "(Tensor([1.0, 2.0, 3.0]) + Tensor([4.0, 5.0, 6.0])).sum().item()"),
    "tinygrad": ("from tinygrad import Tensor", "(Tensor([1.0, 2.0, 3.0]) + Tensor([4.0, 5.0, 6.0])).sum().item()"),
    "torch": ("import torch", "(torch.tensor([1.0, 2.0, 3.0]) + torch.tensor([4.0, 5.0, 6.0])).sum().item()"),
    "jax": ("import jax, jax.numpy as jnp",
            "jax.jit(lambda a, b: (a + b).sum())(jnp.array([1.0, 2.0, 3.0]), jnp.array([4.0, 5.0, 6.0])).item()"),
}


def memory(field: str) -> int:
    """This process's memory in bytes, now ("VmRSS") or at its largest ("VmHWM")."""
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))
    except OSError:
        import resource  # not on Windows, and only the largest is known
        largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return largest if sys.platform == "darwin" else largest * 1024


def first_sum(framework: str) -> dict[str, float]:
    names: dict[str, object] = {}
    importing, computing = SUMS[framework]
    began = time.perf_counter()
    exec(importing, names)
    imported = time.perf_counter()
    before = memory("VmRSS")
    result = eval(computing, names)
    done = time.perf_counter()
    assert result == 21.0, result
    return {"import": imported - began, "first": done - imported, "before": before, "peak": memory("VmHWM")}


def first_step(framework: str, case: str) -> dict[str, float]:
    import importlib
    importlib.import_module(framework)
    import numpy  # noqa: F401 (its import is counted: real data comes through it)
    imported = time.perf_counter()
    before = memory("VmRSS")

    from benchmarks.frameworks import FRAMEWORKS
    from benchmarks.workloads import TABLE
    workload = TABLE[CASES[case]]
    data = workload.data()

    began = time.perf_counter()
    module = importlib.import_module(FRAMEWORKS[framework].module)
    step = module.build(workload, data)
    loss = float(module.to_arrays(step())[0])
    done = time.perf_counter()
    assert loss == loss, "the loss is not a number"
    for _ in range(STEPS):
        step()
    return {"import": imported - BEGAN, "first": done - began, "before": before, "peak": memory("VmHWM")}


if __name__ == "__main__":
    framework, case = sys.argv[1:]
    print(json.dumps(first_sum(framework) if case == "sum" else first_step(framework, case)))
