"""Measure what a call of a jitted training step costs beside its kernels: `python -m benchmarks.dispatch`. Out: JSON.

The step is that of `mlp-step-jit` (784-128-10, batch 64) with every size reduced to 2: as many kernels, weights,
arguments, guards and checks of indices, but next to nothing to compute. So its whole time is an upper bound of the
larger step's overhead.
"""

from __future__ import annotations

import json
import statistics
import time

__all__ = ["measure_dispatch"]

CALLS = 20_000


def measure_dispatch(calls: int = CALLS) -> dict[str, float]:
    """Seconds per call, the median."""
    import numpy as np

    from glassgrad import Tensor, TinyJit, nn
    random = np.random.default_rng(0)
    layers = [nn.Linear(2, 2), nn.Linear(2, 2)]
    optimizer = nn.optim.SGD(nn.state.get_parameters(layers), lr=0.01)

    @TinyJit
    def step(x: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = layers[1](layers[0](x).relu()).sparse_categorical_crossentropy(labels).backward()
        return loss.realize(*optimizer.schedule_step())

    x = Tensor(random.standard_normal((2, 2), dtype=np.float32)).realize()
    labels = Tensor(random.integers(0, 2, 2)).realize()
    times = []
    with Tensor.train():
        for _ in range(calls + calls // 10):
            began = time.perf_counter_ns()
            step(x, labels)
            times.append(time.perf_counter_ns() - began)
    return {"seconds": statistics.median(times[calls // 10:]) / 1e9}


if __name__ == "__main__":
    print(json.dumps(measure_dispatch()))
