"""Compare kernels for all sizes with kernels for one size: `python -m benchmarks.lengths [PROGRAM ...]`. Out: a table.

Each program is computed at each length by the kernels that serve every length, and by those for that length alone, in
turns. The table has the time of the first divided by that of the second, at their best (bind and launch, without
building graphs; on a GPU, of launches in a row by its own clock). THREADS says on how many threads. In brackets: a
length that the engine would compile for itself (`GeneralGraph.is_fast`). In programs of two sizes, the second one does
not follow from the length by a formula that the engine looks for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from glassgrad import Device, GlobalCounters, Tensor
from glassgrad.base.settings import current_state
from glassgrad.compiler.graph import UOp
from glassgrad.engine import realize as engine
from glassgrad.engine.changing_sizes.size_families import GeneralGraph
from glassgrad.engine.compiled_schedule import CompiledSchedule
from glassgrad.engine.schedule_key import NormalizedGraph, normalize
from glassgrad.runtime.gpu.gpu_device import GpuDevice

LENGTHS = (3, 8, 17, 33, 64, 101, 250, 1000)
RUNS = 40
OTHERS = (2, 1, 4, 7, 9, 14)      # how much longer the texts are that kernels for all lengths are made for
IN_A_ROW = 12            # launches on a GPU that are measured together

Results = Tensor | list[Tensor]
_random = np.random.default_rng(0)


def _data(*shape: int) -> Tensor:
    return Tensor(_random.standard_normal(shape).astype(np.float32)).realize()


def _product(depth: int, columns: int) -> Callable[[int], Tensor]:
    weight = _data(depth, columns)
    return lambda n: _data(n, depth) @ weight


def _linear(depth: int, columns: int) -> Callable[[int], Tensor]:
    weight = _data(columns, depth)
    return lambda n: _data(n, depth) @ weight.T


def _attention(heads: int, width: int) -> Callable[[int], Tensor]:
    def attention(n: int) -> Tensor:
        q, k, v = (_data(1, heads, n, width) for _ in range(3))
        return q.scaled_dot_product_attention(k, v, is_causal=True)
    return attention


def _second(n: int) -> int:
    """A size of about half the length, which changes independently."""
    return (7 * n * n + 3) % 61 + max(2, n // 2)


def _gradient(n: int) -> Tensor:
    """Of a weight: a sum that ends at the size."""
    x, g = _data(n, 128), _data(n, 512)
    return x.T @ g


def _convolution(*shape: int) -> Callable[[int], Tensor]:
    """Of signals, or of images with changing width, by weights of this shape."""
    weight = _data(*shape)
    return lambda n: _data(4, shape[1], *[16 for _ in shape[3:]], n).conv2d(weight, padding=1)


def _images(channels: int, *shape: int) -> Callable[[int], Tensor]:
    """A changing number of images of this shape, convolved."""
    weight = _data(channels, shape[0], 3, 3)
    return lambda n: _data(n, *shape).conv2d(weight, padding=1)


def _step(inputs: Callable[[int], list[Tensor]], program: Callable[..., Tensor]) -> Callable[[int], Results]:
    """The gradients of a program's inputs."""
    def step(n: int) -> list[Tensor]:
        leaves = inputs(n)
        result = program(*leaves)
        return (result * result).sum().gradient(*leaves)
    return step


def _cross_entropy(n: int) -> Tensor:
    labels = Tensor(_random.integers(0, 100, n).astype(np.int32)).realize()
    return _data(n, 100).sparse_categorical_crossentropy(labels)


def _embedding() -> Callable[[int], Tensor]:
    table = _data(500, 64)
    return lambda n: table[Tensor(_random.integers(0, 500, (4, n)).astype(np.int32)).realize()]


PROGRAMS: dict[str, Callable[[], Callable[[int], Results]]] = {
    "product 128 x 512": lambda: _product(128, 512),
    "product 768 x 768": lambda: _product(768, 768),
    "product 300 x 77": lambda: _product(300, 77),
    "columns 64 x 256": lambda: lambda n: _data(64, 256) @ _data(256, n),
    "columns 16 x 64": lambda: lambda n: _data(16, 64) @ _data(64, n),
    "columns 256 x 64": lambda: lambda n: _data(256, 64) @ _data(64, n),
    "linear 128 x 512": lambda: _linear(128, 512),
    "linear 768 x 768": lambda: _linear(768, 768),
    "sum of products": lambda: _gradient,
    "scores": lambda: lambda n: _data(4, n, 32) @ _data(4, 32, n),
    "attention 4 x 32": lambda: _attention(4, 32),
    "attention 12 x 64": lambda: _attention(12, 64),
    "softmax of rows": lambda: lambda n: _data(64, n).softmax(-1),
    "softmax n x n": lambda: lambda n: _data(n, n).softmax(-1),
    "layer norm": lambda: lambda n: _data(n, 768).layernorm(),
    "elementwise rows": lambda: lambda n: (_data(n, 768) * 2 + 1).gelu(),
    "elementwise columns": lambda: lambda n: (_data(64, n) * 2 + 1).gelu(),
    "sum of columns": lambda: lambda n: _data(n, 768).sum(0),
    "sum of rows": lambda: lambda n: _data(64, n).sum(1),
    "sum of all": lambda: lambda n: _data(n, 100).sum(),
    "transposed": lambda: lambda n: _data(n, 256).T.contiguous(),
    "longer by a row": lambda: lambda n: _data(4, n, 64).cat(_data(4, 1, 64), dim=1),
    "embedding": _embedding,
    "cross-entropy": lambda: _cross_entropy,
    "max pool": lambda: lambda n: _data(4, 16, n, 32).max_pool2d(2),
    "max pool of batches": lambda: lambda n: _data(n, 8, 14, 14).max_pool2d(2),
    "max pool 1d": lambda: lambda n: _data(4, 16, n).max_pool2d((2,)),
    "mean pool": lambda: lambda n: _data(4, 16, n).avg_pool2d((3,), stride=1, padding=1),
    "mean pool 2d": lambda: lambda n: _data(4, 16, 16, n).avg_pool2d(2),
    "conv1d 16 to 32": lambda: _convolution(32, 16, 3),
    "conv2d 16 to 32": lambda: _convolution(32, 16, 3, 3),
    "conv2d, square": lambda: lambda n: _data(1, 16, n, n).conv2d(_data(32, 16, 3, 3), padding=1),
    "conv2d, height": lambda: lambda n: _data(1, 16, n, 32).conv2d(_data(32, 16, 3, 3), padding=1),
    "conv2d, batch": lambda: _images(16, 8, 14, 14),
    "conv2d, colors": lambda: _images(8, 3, 28, 28),
    "conv2d, strided": lambda: lambda n: _data(1, 16, n, 32).conv2d(_data(32, 16, 3, 3), padding=1, stride=2),
    "conv2d, strided square": lambda: lambda n: _data(1, 16, n, n).conv2d(_data(32, 16, 3, 3), padding=1, stride=2),
    "conv2d, single pixels": lambda: lambda n: _data(1, 32, n, n).conv2d(_data(64, 32, 1, 1)),
    "running sum": lambda: lambda n: _data(64, n).cumsum(1),
    "two: elementwise": lambda: lambda n: (_data(n, _second(n)) * 2 + 1).gelu(),
    "two: sum of rows": lambda: lambda n: _data(n, _second(n)).sum(1),
    "two: softmax": lambda: lambda n: _data(n, _second(n)).softmax(-1),
    "two: product": lambda: lambda n: _data(n, 128) @ _data(128, _second(n)),
    "two: linear of batches": lambda: lambda n: _data(_second(n) // 8 + 1, n, 128) @ _data(128, 256),
    "two: attention": lambda: lambda n: _data(1, 4, n, 32).scaled_dot_product_attention(
        keys := _data(1, 4, _second(n), 32), keys),
    "two: conv2d": lambda: lambda n: _data(1, 16, n, _second(n)).conv2d(_data(16, 16, 3, 3), padding=1),
    "two: cat": lambda: lambda n: _data(n, 64).cat(_data(_second(n), 64)),
    "step, linear": lambda: _step(lambda n: [_data(n, 128), _data(128, 256)], lambda x, w: (x @ w).relu()),
    "step, softmax": lambda: _step(lambda n: [_data(64, n)], lambda x: x.softmax(-1)),
    "step, layer norm": lambda: _step(lambda n: [_data(n, 256)], lambda x: x.layernorm()),
    "step, attention": lambda: _step(lambda n: [_data(1, 4, n, 32) for _ in range(3)],
                                     Tensor.scaled_dot_product_attention),
    "step, max pool": lambda: _step(lambda n: [_data(4, 8, n, 32)], lambda x: x.max_pool2d(2)),
    "step, mean pool": lambda: _step(lambda n: [_data(4, 16, n)], lambda x: x.avg_pool2d((2,))),
    "step, conv1d": lambda: _step(lambda n: [_data(4, 16, n), _data(32, 16, 3)],
                                  lambda x, w: x.conv2d(w, padding=1)),
    "step, strided conv1d": lambda: _step(lambda n: [_data(4, 16, n), _data(32, 16, 3)],
                                          lambda x, w: x.conv2d(w, padding=1, stride=2)),
    "step, conv2d": lambda: _step(lambda n: [_data(1, 16, n, 16), _data(16, 16, 3, 3)],
                                  lambda x, w: x.conv2d(w, padding=1)),
    "step, conv2d, square": lambda: _step(lambda n: [_data(1, 16, n, n), _data(16, 16, 3, 3)],
                                          lambda x, w: x.conv2d(w, padding=1)),
    "step, conv2d of batches": lambda: _step(lambda n: [_data(n, 8, 14, 14), _data(16, 8, 3, 3)],
                                             lambda x, w: x.conv2d(w, padding=1)),
}


def _nodes(results: Results) -> list[UOp]:
    return [result.uop for result in (results if isinstance(results, list) else [results])]


def _graph(results: Results) -> NormalizedGraph:
    nodes = _nodes(results)
    for at, node in enumerate(nodes):
        while node.op in engine._VIEWS:
            node = node.src[0]
        nodes[at] = node
    return normalize(nodes)


class _Plans:
    """What a schedule launches, bound by its last run."""

    def __init__(self, compiled: CompiledSchedule):
        self.runners = [segment.plan.runner() for segment in compiled.segments]

    def start(self) -> None:
        for run in self.runners:
            run()


def _seconds(compiled: CompiledSchedule, run: Callable[[], Any]) -> float:
    before = GlobalCounters.time_sum_s
    run()
    device = Device[Device.DEFAULT]
    if not isinstance(device, GpuDevice):
        return GlobalCounters.time_sum_s - before
    return device.time([_Plans(compiled)] * IN_A_ROW) / IN_A_ROW / 1e9      # type: ignore[list-item]


def compare(program: Callable[[int], Results], n: int) -> tuple[float, float, bool] | None:
    """Seconds of a program at a length by kernels for all lengths and by its own; whether the first would be used.
    None where no kernels for all lengths serve this one."""
    state, device = current_state(), Device.DEFAULT
    with engine.forgotten_schedules():
        served: list[tuple[GeneralGraph, tuple[int, ...]]] = []
        for more in OTHERS:
            engine.realize(_nodes(program(n + more)))
            graph = _graph(program(n))
            generals = [found for each in engine._known.size_families._general.values() for found in each]
            served = [(each, value) for each in generals if (value := each.values_for(graph)) is not None]
            if served:
                break
        else:
            return None
        own = engine._compile(graph, (), device)
        [(general, value)] = served
        runs = [(general.compiled, lambda: general.compiled.run(graph, state, values=value)),
                (own, lambda: own.run(graph, state))]
        best = [float("inf")] * 2
        for _ in range(RUNS):
            for i, run in enumerate(runs):
                best[i] = min(best[i], _seconds(*run))
    return best[0], best[1], general.is_fast(value)


def main() -> None:
    chosen = [name for name in PROGRAMS if any(part in name for part in sys.argv[1:])] or list(PROGRAMS)
    print(f"{'general / own (us)':<23}" + "".join(f"{n:>20}" for n in LENGTHS))
    for name in chosen:
        program, row = PROGRAMS[name](), ""
        for n in LENGTHS:
            found = compare(program, n)
            if found is None:
                row += f"{'-':>20}"
                continue
            for_all, alone, used = found
            ratio = f"{for_all / alone:.2f}" if used else f"({for_all / alone:.2f})"
            row += f"{ratio:>8} {for_all * 1e6:>5.0f}/{alone * 1e6:<5.0f}"
        print(f"{name:<23}{row}", flush=True)


if __name__ == "__main__":
    main()
