"""What is run by a Python that is WebAssembly itself: doctests of the compiler, and training with the jit. Prints JSON.

Neither NumPy nor llvmlite nor a compiler is there; the device is WASM, run by JavaScript's engine.
"""

from __future__ import annotations

import doctest
import importlib
import json
import pkgutil
import sys

from glassgrad import Device, Tensor, TinyJit, nn

PACKAGES = ("glassgrad.base", "glassgrad.compiler.graph", "glassgrad.compiler.schedule", "glassgrad.compiler.lower",
            "glassgrad.engine", "glassgrad.tensor.autograd")

ELSEWHERE = ("numpy", "np.", '"CPU', "'CPU")       # in examples that need NumPy, or another device


def training() -> list[float]:
    """The losses of a small network, trained for ten jitted steps on data without random numbers."""
    x = Tensor.arange(64).reshape(16, 4).float() / 64
    target = (x * Tensor([1.0, -2.0, 0.5, 3.0])).sum(1, keepdim=True)
    weights = [(Tensor.arange(32).reshape(4, 8).float() / 16 - 1).realize(),
               (Tensor.arange(8).reshape(8, 1).float() / 8 - 0.5).realize()]
    for w in weights:
        w.requires_grad = True
    optimizer = nn.optim.Adam(weights, lr=0.05)

    @TinyJit
    def step() -> Tensor:
        loss = ((x @ weights[0]).relu() @ weights[1] - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.realize()

    with Tensor.train():
        return [step().item() for _ in range(10)]


def doctests() -> tuple[int, list[str]]:
    """How many examples ran, and the modules in which one failed; what needs NumPy or another device is left out."""
    ran, failed = 0, []
    for package in PACKAGES:
        folder = importlib.import_module(package)
        for found in pkgutil.iter_modules(folder.__path__, package + "."):
            try:
                module = importlib.import_module(found.name)
            except ModuleNotFoundError as missing:
                if missing.name not in ("numpy", "llvmlite", "mmap", "multiprocessing"):
                    raise
                continue
            finder = doctest.DocTestFinder()
            runner = doctest.DocTestRunner(verbose=False)
            for test in finder.find(module, found.name, extraglobs={"Tensor": Tensor}):
                if not any(word in example.source for example in test.examples for word in ELSEWHERE):
                    runner.run(test, out=lambda text: None)
            ran += runner.tries
            if runner.failures:
                failed.append(found.name)
    return ran, failed


if __name__ == "__main__":
    count, wrong = doctests()
    print(json.dumps({"python": sys.version.split()[0], "device": Device.DEFAULT, "losses": training(),
                      "shown": repr(Tensor([1.5, 2.5]) + 1), "examples": count, "failed": wrong}))
