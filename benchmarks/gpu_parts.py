"""The parts of benchmarks.gpu_driving: each measures one side of how a GPU is driven. In: a device, rounds. Out: rows.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

__all__ = ["PARTS", "Row", "begun_with", "median_us", "network", "our_step", "torch_device"]


class Row(NamedTuple):
    """One line of the table: ours and PyTorch's figure, and what it should be, by docs/performance-gpu.md."""
    name: str
    ours: float | str
    unit: str = "us"
    torch: float | None = None
    expected: str = ""


def median_us(function: Callable[[], object], calls: int, wait: Callable[[], object],
              rounds: int) -> tuple[float, float]:
    """(host, whole) microseconds of one call."""
    host, whole = [], []
    for _ in range(rounds):
        wait()
        began = time.perf_counter()
        for _ in range(calls):
            function()
        returned = time.perf_counter()
        wait()
        host.append((returned - began) * 1e6 / calls)
        whole.append((time.perf_counter() - began) * 1e6 / calls)
    return statistics.median(host), statistics.median(whole)


def torch_device(device: str) -> Any:
    """PyTorch's device beside ours, and how to wait for it."""
    import torch
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return ("cuda", torch.cuda.synchronize) if device != "CPU" else ("cpu", lambda: None)


# ---- is it right?

def smoke(device: str, rounds: int) -> Iterator[Row]:
    """Programs against NumPy and against the CPU."""
    from glassgrad import Context, IndexRangeError, Tensor, TinyJit, Variable, nn
    random = np.random.default_rng(1)
    a, b = (random.standard_normal(shape).astype("float32") for shape in ((300, 500), (500, 200)))
    x, y = Tensor(a, device=device), Tensor(b, device=device)
    n = Variable("n", 1, 300)
    powers = np.exp(a.astype("float64"))
    cases = {"product": ((x @ y).numpy(), a.astype("float64") @ b),
             "sum": (x.sum(0).numpy(), a.sum(0, dtype="float64")),
             "softmax": (x.softmax(1).numpy(), powers / powers.sum(1)[:, None]),
             "slice": ((x[3:40, ::3] * 2).numpy(), a[3:40, ::3] * 2.0),
             "variable": (x[:n.bind(77)].sum(0).numpy(), a[:77].sum(0, dtype="float64")),
             "large copy": (Tensor(np.tile(a, (120, 1)), device=device).numpy(), np.tile(a, (120, 1)))}
    for name, (found, wanted) in cases.items():
        yield Row(f"smoke {name}", float(np.abs(found - wanted).max() / np.abs(wanted).max()), "error", None, "< 1e-5")

    def losses(where: str, graphs: int) -> list[float]:
        Tensor.manual_seed(0)
        rng = np.random.default_rng(2)
        layers = [nn.Linear(64, 96), nn.Linear(96, 10)]
        for tensor in nn.state.get_parameters(layers):
            tensor.assign(Tensor(rng.standard_normal(tensor.shape).astype("float32") / 8, device=where)).realize()
        optimizer = nn.optim.Adam(nn.state.get_parameters(layers), lr=0.01)

        @TinyJit
        def step(x: Tensor, labels: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = layers[1](layers[0](x).relu().dropout(0.1)).sparse_categorical_crossentropy(labels).backward()
            return loss.realize(*optimizer.schedule_step())
        out = []
        with Context(TRAINING=1, GPU_GRAPH=graphs, DEV=where, CHECK_INDEX=2):
            for _ in range(20):
                out.append(step(Tensor(rng.standard_normal((512, 64)).astype("float32"), device=where),
                                Tensor(rng.integers(0, 10, 512).astype("int32"), device=where)))
            before = layers[0].weight.numpy()
            try:
                step(Tensor(np.zeros((512, 64), "float32"), device=where),
                     Tensor(np.full(512, 10, "int32"), device=where))
                raise AssertionError("a class that does not exist was taken")
            except IndexRangeError:
                assert (layers[0].weight.numpy() == before).all(), "a failed step changed a weight"
            return [float(loss.item()) for loss in out]
    with Context(DEV=device):
        graph, single = losses(device, 1), losses(device, 0)
    with Context(DEV="CPU"):
        cpu = losses("CPU", 1)
    error = float(np.abs(np.array(graph) - cpu).max())
    yield Row("smoke 20 steps with graphs, CPU's losses", error, "error", None, "< 1e-4")
    yield Row("smoke with graphs and without", str(graph == single), "same bits", None, "True")
    wrong = 0
    for _ in range(20 * rounds):
        values = random.integers(0, 14, 1 << 20).astype("float32")       # sums are exact
        batch = Tensor(values, device=device).realize()
        total = (batch * 2).sum().realize()
        batch = Tensor(values[::-1].copy(), device=device).realize()      # copied while kernels read the one before
        wrong += total.item() != 2 * values.sum(dtype="float64") or batch[0].item() != values[-1]
    yield Row("smoke copies beside kernels", float(wrong), "wrong", None, "0")


# ---- launches

def chain_of(kernels: int, device: str) -> Callable[[], Any]:
    """A jitted call of so many small kernels, each of which needs the one before."""
    from glassgrad import Tensor, TinyJit
    w = Tensor(np.ones(1024, "float32"), device=device).realize()

    @TinyJit
    def chain() -> None:
        for _ in range(kernels):
            w.assign(w * 0.5 + 1).realize()
    return chain


def launch(device: str, rounds: int) -> Iterator[Row]:
    """What one small kernel costs, alone and in a jitted call."""
    import torch

    from glassgrad import Context, Device, Tensor, TinyJit
    where, torch_wait = torch_device(device)
    wait = Device[device].synchronize
    x, theirs = Tensor(np.ones(1024, "float32"), device=device).realize(), torch.ones(1024, device=where)
    for _ in range(200):
        (x + 1).realize()
    host, whole = median_us(lambda: (x + 1).realize(), 500, wait, rounds)
    torch_host, torch_whole = median_us(lambda: theirs + 1, 500, torch_wait, rounds)
    yield Row("un-jitted x + 1, host", host, torch=torch_host, expected="< 40")
    yield Row("un-jitted x + 1, whole", whole, torch=torch_whole, expected="< 40")
    with Context(DEV=device):
        plan = Device[device].plan(Device[device].programs([(x + 1).schedule()[-1].ast]), [(0, 1)])
        block = Device[device].memory.allocate(4096)
        plan.bind([block.address, x.uop.base.arg.address])
        run = plan.runner()
        yield Row("the launch alone, host", median_us(run, 500, wait, rounds)[0], expected="4")
    for kernels in (2, 10, 50, 200):
        for graphs in (1, 0):
            with Context(GPU_GRAPH=graphs):
                chain = chain_of(kernels, device)
                for _ in range(20):
                    chain()
                host, whole = median_us(chain, 100, wait, rounds)
            kind = "graph" if graphs else "one by one"
            alone = f"{15 + 3.5 * kernels:.0f}"
            yield Row(f"jitted, {kernels} kernels, {kind}, host", host,
                      expected=f"{20 + 0.05 * kernels:.0f}" if graphs else alone)
            yield Row(f"jitted, {kernels} kernels, {kind}, whole", whole,
                      expected=f"{20 + 1.5 * kernels:.0f}" if graphs else alone)
    inputs = [Tensor(np.full(1024, i, "float32"), device=device).realize() for i in range(8)]

    @TinyJit
    def moving(x: Tensor) -> Tensor:
        for _ in range(10):
            x = (x * 0.5 + 1).realize()
        return x
    turn = iter(range(1 << 30))
    for _ in range(20):
        moving(inputs[next(turn) % 8])
    host, whole = median_us(lambda: moving(inputs[next(turn) % 8]), 100, wait, rounds)
    yield Row("jitted, 10 kernels, graph, another input each call, host", host, expected="25: 2 kernels are set again")


def copies(device: str, rounds: int) -> Iterator[Row]:
    """Bytes to the device and back."""
    import torch

    from glassgrad import Device, Tensor
    where, torch_wait = torch_device(device)
    wait = Device[device].synchronize
    sizes = (("4 B", 1), ("1.6 MB", 401_408), ("64 MB", 16 << 20))
    for name, size in sizes if device != "CPU" else sizes[:2]:
        values = np.ones(size, "float32")
        calls = max(2, min(100, (64 << 20) // values.nbytes))
        ours, theirs = Tensor(values, device=device).realize(), torch.from_numpy(values).to(where)
        to_ours = lambda values=values: Tensor(values, device=device).realize()
        to_theirs = lambda values=values: torch.from_numpy(values).to(where)
        host, whole = median_us(to_ours, calls, wait, rounds)
        torch_host, torch_whole = median_us(to_theirs, calls, torch_wait, rounds)
        yield Row(f"copy in {name}, host", host, torch=torch_host)
        yield Row(f"copy in {name}, whole", whole, torch=torch_whole)
        out, _ = median_us(ours.numpy, calls, wait, rounds)
        torch_out, _ = median_us(theirs.cpu, calls, torch_wait, rounds)
        yield Row(f"copy out {name}", out, torch=torch_out)
    side = 4096 if device != "CPU" else 256
    big = Tensor(np.ones((side, side), "float32"), device=device).realize()
    (big @ big).realize()
    wait()
    values = np.ones(4 << 20, "float32")
    alone = median_us(lambda: (big @ big).realize(), 4, wait, rounds)[1]

    def both() -> None:
        (big @ big).realize()
        Tensor(values, device=device).realize()
    beside = median_us(both, 4, wait, rounds)[1]
    yield Row(f"product {side} float32 alone", alone, expected="3100")
    yield Row("the same with 16 MB copied beside it", beside, expected="little more: the copy hides")


# ---- training steps

def network(case: str, batch: int) -> Any:
    from benchmarks.workloads import TABLE
    workload = TABLE[case]
    return replace(workload, parameters={**workload.parameters, "batch": batch})


def our_step(device: str, workload: Any) -> Callable[[], Any]:
    from benchmarks.workloads_glassgrad import Glassgrad
    from glassgrad import Context

    class Unwaited(Glassgrad):
        def synchronize(self) -> None:
            """Steps follow each other without a wait."""
    with Context(DEV=device):
        return Unwaited().build(workload, workload.data())


def torch_step(where: str, workload: Any) -> Callable[[], Any]:
    import torch

    from benchmarks.workloads_torch import BUILDERS
    tensors = {name: torch.from_numpy(array).to(where) for name, array in workload.data().items()}
    return BUILDERS[workload.family](tensors, **workload.parameters)


def steps(device: str, rounds: int) -> Iterator[Row]:
    """Training steps beside PyTorch's, eager: both without a wait between steps."""
    from glassgrad import Context, Device, GlobalCounters
    where, torch_wait = torch_device(device)
    wait = Device[device].synchronize
    cases = [("MLP 64", "mlp-step-jit", 64, 200), ("MLP 512", "mlp-step-jit", 512, 200),
             ("CNN 512", "cnn-step", 512, 30)]
    for name, case, batch, calls in cases if device != "CPU" else [("CNN 2", "cnn-step", 2, 1)]:
        workload = network(case, batch)
        theirs = torch_step(where, workload)
        wanted = [float(theirs().item()) for _ in range(5)]
        whole: dict[str, list[float]] = {"graph": [], "one by one": [], "torch": []}
        host: dict[str, list[float]] = {"graph": [], "one by one": [], "torch": []}
        with Context(DEV=device):
            ours = {}
            for kind, graphs in (("graph", 1), ("one by one", 0)):
                with Context(GPU_GRAPH=graphs):
                    ours[kind] = our_step(device, workload)
                    found = [float(ours[kind]().item()) for _ in range(5)]
                    error = max(abs(f - w) / abs(w) for f, w in zip(found, wanted))
                    yield Row(f"{name} step, {kind}, losses beside torch's", error, "error", None, "< 1e-2")
            GlobalCounters.reset()
            ours["graph"]()
            yield Row(f"{name} step, kernels", float(GlobalCounters.kernel_count), "")
            yield Row(f"{name} step, bytes", GlobalCounters.global_mem / 1e6, "MB")
            for _ in range(rounds):
                for kind, graphs in (("graph", 1), ("one by one", 0)):
                    with Context(GPU_GRAPH=graphs):
                        ours[kind]()
                        one = median_us(ours[kind], calls, wait, 1)
                    host[kind].append(one[0])
                    whole[kind].append(one[1])
                one = median_us(theirs, calls, torch_wait, 1)
                host["torch"].append(one[0])
                whole["torch"].append(one[1])
        for kind in ("graph", "one by one"):
            for what, times in (("host", host), ("whole", whole)):
                yield Row(f"{name} step, {kind}, {what}", statistics.median(times[kind]),
                          torch=statistics.median(times["torch"]))


FIRST = """
import time; began = time.perf_counter()
import numpy, glassgrad; imported = time.perf_counter()
from benchmarks.gpu_parts import network, our_step
from glassgrad import Device
device, batch = {device!r}, {batch}
Device[device]; opened = time.perf_counter()
workload = network("cnn-step", batch); workload.data(); made = time.perf_counter()
step = our_step(device, workload)
loss = float(step().item()); first = time.perf_counter()
step().item(); second = time.perf_counter()
step().item(); third = time.perf_counter()
print(imported - began, opened - imported, first - made, second - first, third - second)
"""


def first(device: str, rounds: int) -> Iterator[Row]:
    """The first CNN step of a process that finds nothing on disk, and of a second one."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cold", "second process"):
            script = FIRST.format(device=device, batch=512 if device != "CPU" else 8)
            done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "CACHE_DIR": folder},
                                  capture_output=True, text=True, check=True)
            values = [float(part) for part in done.stdout.split()[-5:]]
            for what, seconds in zip(("import", "open the device", "first CNN step", "second step (traced)",
                                      "third step (graph made)"), values):
                guess = {("cold", "first CNN step"): "2 to 3", ("second process", "first CNN step"): "0.5 to 1"}
                yield Row(f"{what}, {name}", seconds, "s", None, guess.get((name, what), ""))


# ---- a search

def beam(device: str, rounds: int) -> Iterator[Row]:
    """BEAM on three kernels."""
    from glassgrad import Context, Device, Tensor
    rng = np.random.default_rng(0)
    size = 1024 if device != "CPU" else 64
    x, y = (Tensor(rng.standard_normal((size, size)).astype("float32"), device=device).realize() for _ in range(2))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CACHE_DIR"] = folder
        for name, make in (("product float32", lambda: x @ y), ("softmax", lambda: x.softmax(1)),
                           ("sum", lambda: x.sum(0))):
            wanted, began = make().numpy(), time.perf_counter()
            with Context(BEAM=2, BEAM_SECONDS=10.0 if rounds > 2 else 1.0, DEV=device):
                [item] = [item for item in make().schedule()][-1:]
                same = bool((make().numpy() == wanted).all())
                found = Device[device].tuned(item.ast)
            yield Row(f"BEAM {name}, {'nothing' if found is None else f'{found.tried} tried'}, {same=}",
                      found.speedup if found is not None else 0.0, "x")
            yield Row(f"BEAM {name}, seconds", time.perf_counter() - began, "s")


KERNEL = re.compile(r"__global__ void[^{]*\(\w+ \*data0\b[^{]*\{\n")


def begun_with(statement: str, source: str) -> str:
    """CUDA source whose kernels begin with one more statement, which may use `data0`."""
    changed, count = KERNEL.subn(lambda found: f"{found[0]}  {statement}\n", source)
    if not count:
        raise ValueError(f"no kernel with an argument data0 in this source:\n{source}")
    return changed


def hang(device: str, rounds: int) -> Iterator[Row]:
    """A candidate that writes outside of its memory, and one that never ends: their process is killed, this goes on."""
    from glassgrad import Context, Device, Tensor
    from glassgrad.runtime.search.beam import Search, Worker
    if device == "CPU":
        return
    x = Tensor(np.arange(1 << 20, dtype="float32"), device=device).realize()
    opened, worker = Device[device], Worker()
    try:
        with Context(BEAM=1, BEAM_SECONDS=12.0):
            one = Search((x * 1.75 + 3).schedule()[-1].ast, opened, worker)
        one.begin()
        near, real = [tuple(moves) for moves in one._decided[one.recipe].neighbours()], one.built
        for name, text in (("stray write", "data0[1ll << 40] = 1;"),
                           ("endless loop", "while (*(volatile float *)data0 >= -1e30f) {}")):
            def built(moves: Any, text: str = text) -> Any:
                applied, source, how = real(moves)
                return applied, begun_with(text, source), how
            one.built, one.deadline = built, time.monotonic() + 60       # type: ignore[method-assign]
            began, killed = time.perf_counter(), one.killed
            one.pairs_of(near.pop())
            yield Row(f"BEAM {name}: killed", float(one.killed - killed), "", None, "1")
            yield Row(f"BEAM {name}: seconds", time.perf_counter() - began, "s", None, "3 to 6")
        one.built, one.deadline = real, time.monotonic() + 60            # type: ignore[method-assign]
        yield Row("BEAM after that: pairs measured", float(len(one.pairs_of(near.pop()))), "", None, "2 or more")
    finally:
        worker.close()
    error = float(np.abs((x + 1).numpy() - np.arange(1 << 20) - 1).max())
    yield Row("this process afterwards", error, "error", None, "0")


PARTS: dict[str, Callable[[str, int], Iterator[Row]]] = {
    "smoke": smoke, "launch": launch, "copies": copies, "steps": steps, "first": first, "beam": beam, "hang": hang}
