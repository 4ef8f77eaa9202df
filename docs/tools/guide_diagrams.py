"""The drawings of the guide: memory traffic with and without fusion, a convolution as windows, the jit's traces and
replays. All from real runs; diagrams.py writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from draw_steps import Rung, ladder

from glassgrad import GlobalCounters, Tensor, TinyJit
from glassgrad.base.svg import DrawnBox, graph, grids
from glassgrad.compiler.graph.picture import KINDS
from glassgrad.engine.realize import forgotten_schedules

MEMORY, KERNEL = KINDS["memory"], KINDS["reduce"]


def ones(*shape: int) -> Tensor:
    return Tensor.ones(*shape).contiguous().realize()


# -- fusion --------------------------------------------------------------------------------------------------
def memory_traffic() -> str:
    """`(a + b).relu().sum()` in one kernel and in three: every value that goes through memory, with its bytes."""
    a, b = ones(2048, 2048), ones(2048, 2048)
    added = (a + b).realize()
    larger = added.relu().realize()
    boxes: dict[Hashable, DrawnBox] = {}
    sources: dict[Hashable, Sequence[Hashable]] = {}
    _draw_kernels("fused", [(a + b).relu().sum()], ["(a + b).relu().sum()"], ["a", "b"], ["the sum"], boxes, sources)
    _draw_kernels("step by step", [a + b, added.relu(), larger.sum()], ["a + b", "relu", "sum"], ["a", "b"],
                  ["a + b", "its relu", "the sum"], boxes, sources)
    return graph(boxes, sources, {"memory": MEMORY, "kernel": KERNEL})


def _draw_kernels(title: str, results: Sequence[Tensor], kernels: Sequence[str], inputs: Sequence[str],
                  values: Sequence[str], boxes: dict[Hashable, DrawnBox],
                  sources: dict[Hashable, Sequence[Hashable]]) -> None:
    """Kernels one after another: the first reads the inputs, each later one what the one before has written."""
    GlobalCounters.reset()
    for result in results:
        result.realize()
    moved = GlobalCounters.global_mem
    for name in inputs:
        boxes[title, name] = DrawnBox([name, _megabytes(2048 * 2048 * 4)], MEMORY)
        sources[title, name] = ()
    before: list[Hashable] = [(title, name) for name in inputs]
    for kernel, result, value in zip(kernels, results, values):
        boxes[title, "kernel", kernel] = DrawnBox([f"kernel: {kernel}"], KERNEL)
        sources[title, "kernel", kernel] = before
        before = [(title, value)]
        boxes[title, value] = DrawnBox([value, _megabytes(result.nbytes())], MEMORY)
        sources[title, value] = [(title, "kernel", kernel)]
    boxes[title] = DrawnBox([f"{title}: {_megabytes(moved)} through memory"], "#ffffff")
    sources[title] = before


def _megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB" if nbytes >= 1e5 else f"{nbytes} bytes"


# -- convolution ---------------------------------------------------------------------------------------------
def windows() -> str:
    """A 3x3 convolution of a 4x4 image: four windows, each multiplied by the filter and summed."""
    image = Tensor.arange(16).reshape(4, 4).float()
    weight = Tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    seen = image.reshape(1, 1, 4, 4).unfold(2, 3, 1).unfold(3, 3, 1).reshape(2, 2, 3, 3)
    result = image.reshape(1, 1, 4, 4).conv2d(weight.reshape(1, 1, 3, 3)).reshape(2, 2)
    named = {"image": image, **{f"window {i},{j}": seen[i, j] for i in range(2) for j in range(2)},
             "filter": weight, "result": result}
    cells = {name: [[f"{v:g}" for v in row] for row in value.tolist()] for name, value in named.items()}
    cells["filter"] = [[f" {word} " for word in row] for row in cells["filter"]]            # no shade: not of the image
    cells["result"] = [[f" {word} " for word in row] for row in cells["result"]]
    return grids(cells, {str(i): f"hsl({180 + 11 * i},55%,{93 - 1.5 * i:g}%)" for i in range(16)})


# -- the jit -------------------------------------------------------------------------------------------------
def trace_and_replay() -> str:
    """Five calls of a jitted training step: what runs in each."""
    with forgotten_schedules():
        return ladder(_five_calls())


def _five_calls() -> list[Rung]:
    weight = Tensor([1.0, 2.0, 3.0]).realize()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        loss = (x * weight).square().sum()
        weight.assign(weight - 0.1 * 2 * x * (x * weight))
        return loss.realize()

    rungs = []
    colors = {True: MEMORY, False: KERNEL}
    for call in range(1, 6):
        x = Tensor([float(call)] * 3).realize()
        GlobalCounters.reset()
        traced = not step.captured
        loss = step(x)
        lines = [f"step(x) -> {loss.item():.4g}",
                 "Python of the function: " + ("runs, and what it launches is recorded" if traced else "does not run"),
                 f"graphs scheduled and compiled: {GlobalCounters.schedules}",
                 f"kernels launched: {GlobalCounters.kernel_count}" + ("" if traced else ", by one native call")]
        rungs.append(Rung(f"call {call}", ["trace" if traced else "replay"], lines, colors[traced]))
    return rungs


DRAWINGS: dict[str, Callable[[], str]] = {"fusion.svg": memory_traffic, "windows.svg": windows,
                                          "jit.svg": trace_and_replay}
