"""Measure training steps beside PyTorch, eager and compiled: ResNet-50 and GPT-2, mixed precision. Needs numpy, torch.

    python -m benchmarks.gpu_models                                 on CUDA: a table; JSON where --json says
    python -m benchmarks.gpu_models --only gpt2-2,resnet18 --quick  smaller networks, two rounds
    python -m benchmarks.gpu_models --only gpt2-kernels             one step kernel by kernel, equal ones together
    python -m benchmarks.gpu_models --device CPU --quick            to try the script without a GPU, in small sizes

The networks are those of examples/, and the same in torch_networks.py; weights go from there to ours by their state
dict. Both compute products and convolutions in bfloat16 (autocast) and keep weights in float32. PyTorch's optimizers
are its fused ones, its images are stored with channels last. Losses of the first steps are compared; times are medians
of rounds in which both take turns, over steps that follow each other without a wait, on batches taken in turn.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_driving import main
from benchmarks.gpu_parts import Row, median_us, torch_device

__all__ = ["NETWORKS", "PARTS", "Network", "our_training", "torch_training"]

BATCHES = 4                  # that are taken in turn
COMPARED = 4                 # steps whose losses are compared
MOST_LISTED = 100            # kernels that are listed


@dataclass(frozen=True)
class Network:
    """A network and its batch. `sizes` are those of examples/: of GPT's Config, or a block's kind and the depths."""
    name: str
    sizes: tuple[Any, ...]
    batch: int
    inside: int                               # an image's side, or a text's length
    classes: int

    @property
    def is_text(self) -> bool:
        return self.name.startswith("gpt")

    def batches(self) -> list[tuple[np.ndarray, np.ndarray]]:
        random = np.random.default_rng(0)
        if self.is_text:
            texts = [random.integers(0, self.classes, (self.batch, self.inside + 1), dtype=np.int32)
                     for _ in range(BATCHES)]
            return [(text[:, :-1].copy(), text[:, 1:].reshape(-1).copy()) for text in texts]
        return [(random.standard_normal((self.batch, 3, self.inside, self.inside), dtype=np.float32),
                 random.integers(0, self.classes, self.batch, dtype=np.int32)) for _ in range(BATCHES)]


# 50,304 words are GPT-2's 50,257 and some that never occur: rows of a multiple of 128 bytes, as is usual in training
NETWORKS = {network.name: network for network in (
    Network("resnet50", (True, (3, 4, 6, 3), 64), 64, 224, 1000),
    Network("gpt2", (12, 12, 768), 8, 1024, 50_304),
    Network("resnet18", (False, (2, 2, 2, 2), 64), 64, 224, 1000),
    Network("gpt2-2", (2, 12, 768), 8, 1024, 50_304))}


def sized(name: str, device: str) -> Network:
    """A network as it is measured; in small sizes where a CPU tries the script."""
    network = NETWORKS[name]
    if device != "CPU":
        return network
    if network.is_text:
        return replace(network, sizes=(2, 2, 32), batch=2, inside=16, classes=50)
    return replace(network, sizes=(network.sizes[0], (1, 1), 8), batch=2, inside=32, classes=10)


# ---- PyTorch's

def torch_module(network: Network) -> Any:
    """The network with its first weights, the same in every process."""
    import torch

    from benchmarks import torch_networks
    torch.manual_seed(1)
    if network.is_text:
        return torch_networks.GPT(network.classes, network.inside, *network.sizes)
    return torch_networks.ResNet(*network.sizes, network.classes)


def torch_training(network: Network, where: str, compiled: bool) -> Callable[[], Any]:
    """A function that does one step, and returns the loss."""
    import torch
    images = not network.is_text
    layout = {"memory_format": torch.channels_last} if images else {}
    model = torch_module(network).to(where, **layout)
    fused = {"fused": True} if where == "cuda" else {}
    if images:
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, **fused)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, **fused)

    def compute(x: Any, y: Any) -> Any:
        with torch.autocast(where, torch.bfloat16):
            scores = model(x)
            return torch.nn.functional.cross_entropy(scores.view(-1, scores.shape[-1]), y)
    compute_loss = torch.compile(compute) if compiled else compute
    batches = [(torch.from_numpy(x).to(where, **layout), torch.from_numpy(y).long().to(where))
               for x, y in network.batches()]
    turn = iter(range(1 << 30))

    def step() -> Any:
        x, y = batches[next(turn) % BATCHES]
        optimizer.zero_grad()
        loss = compute_loss(x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()
    return step


# ---- ours

def our_model(network: Network, weights: dict[str, np.ndarray]) -> Any:
    """The network of examples/ on the default device, with PyTorch's weights."""
    from glassgrad import Tensor
    from glassgrad.nn.state import load_state_dict
    examples = str(Path(__file__).resolve().parent.parent / "examples")
    if examples not in sys.path:
        sys.path.append(examples)
    if network.is_text:
        import gpt
        model: Any = gpt.GPT(gpt.Config(network.classes, network.inside, *network.sizes))
    else:
        import resnet
        bottleneck, depths, planes = network.sizes
        block = resnet.Bottleneck if bottleneck else resnet.BasicBlock
        model = resnet.ResNet(block, depths, planes, network.classes, small=False)
    load_state_dict(model, {name: Tensor(value) for name, value in weights.items()}, verbose=False)
    return model


def our_training(network: Network, device: str, weights: dict[str, np.ndarray]) -> Callable[[], Any]:
    """A function that does one step, jitted, and returns the loss."""
    from glassgrad import Context, Tensor, TinyJit, dtypes
    from glassgrad.nn import optim
    from glassgrad.nn.state import get_parameters
    with Context(DEV=device):
        model = our_model(network, weights)
        if network.is_text:
            optimizer: Any = optim.AdamW(get_parameters(model), lr=3e-4, b1=0.9, b2=0.95, weight_decay=0.1)
        else:
            optimizer = optim.SGD(get_parameters(model), lr=0.01, momentum=0.9, weight_decay=1e-4)
        batches = [(Tensor(x).realize(), Tensor(y).realize()) for x, y in network.batches()]
    turn = iter(range(1 << 30))

    @TinyJit
    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        with optim.autocast(dtype=dtypes.bfloat16):
            scores = model(x)
            loss = scores.reshape(-1, scores.shape[-1]).cross_entropy(y)
        loss.backward()
        return loss.realize(*optimizer.schedule_step())

    def step() -> Any:
        with Context(DEV=device, TRAINING=1):
            return train(*batches[next(turn) % BATCHES])
    return step


def exported(network: Network) -> dict[str, np.ndarray]:
    """The first weights, as arrays."""
    return {name: value.numpy() for name, value in torch_module(network).state_dict().items()}


# ---- measuring

def in_turn(steps: dict[str, Callable[[], Any]], waits: dict[str, Callable[[], Any]], rounds: int,
            calls: int) -> dict[str, float]:
    """Median milliseconds of a step of each."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            step()
            taken[name].append(median_us(step, calls, waits[name], 1)[1] / 1e3)
    return {name: statistics.median(times) for name, times in taken.items()}


def apart(found: list[float], wanted: list[float]) -> float:
    """The largest relative difference."""
    return max(abs(f - w) / abs(w) for f, w in zip(found, wanted))


def training(name: str, device: str, rounds: int) -> Iterator[Row]:
    """The steps of one network: losses, then times beside PyTorch eager, then beside torch.compile."""
    from glassgrad import Device, GlobalCounters
    network = sized(name, device)
    where, torch_wait = torch_device(device)
    calls = 10 if device != "CPU" else 1
    eager = torch_training(network, where, compiled=False)
    wanted = [float(eager()) for _ in range(COMPARED)]
    began = time.perf_counter()
    ours = our_training(network, device, exported(network))
    waits: dict[str, Any] = {"ours": Device[device].synchronize, "torch": torch_wait, "compiled": torch_wait}
    waits["ours"]()
    yield Row(f"{name}: model and weights", time.perf_counter() - began, "s")
    found = []
    for number in range(COMPARED):
        began = time.perf_counter()
        found.append(float(ours().item()))
        yield Row(f"{name}: step {number}", time.perf_counter() - began, "s")
    yield Row(f"{name}: losses of {COMPARED} steps", " ".join(f"{loss:.4f}" for loss in found))
    yield Row(f"{name}: the same beside torch's", apart(found, wanted), "error", None, "< 1e-2")
    GlobalCounters.reset()
    ours()
    yield Row(f"{name}: kernels", float(GlobalCounters.kernel_count), "")
    yield Row(f"{name}: bytes", GlobalCounters.global_mem / 1e9, "GB")
    yield Row(f"{name}: operations", GlobalCounters.global_ops / 1e9, "GFLOP")
    times = in_turn({"ours": ours, "torch": eager}, waits, rounds, calls)
    yield Row(f"{name}: step, torch eager", times["ours"], "ms", times["torch"])
    if device == "CPU":
        return
    began = time.perf_counter()
    compiled = torch_training(network, where, compiled=True)
    again = [float(compiled()) for _ in range(COMPARED)]
    yield Row(f"{name}: torch.compile, first {COMPARED} steps", time.perf_counter() - began, "s")
    yield Row(f"{name}: losses beside torch.compile's", apart(found, again), "error", None, "< 1e-2")
    times = in_turn({"ours": ours, "compiled": compiled}, waits, rounds, calls)
    yield Row(f"{name}: step, torch.compile", times["ours"], "ms", times["compiled"])


def warm(name: str, device: str, rounds: int) -> Iterator[Row]:
    """Make the kernels of both libraries, which keep them on disk."""
    network = sized(name, device)
    began = time.perf_counter()
    our_training(network, device, exported(network))().item()
    compiled = torch_training(network, torch_device(device)[0], compiled=device != "CPU")
    for _ in range(2):
        compiled()
    yield Row(f"{name}: kernels made", time.perf_counter() - began, "s")


def first(name: str, device: str, rounds: int) -> Iterator[Row]:
    """The first step of a process that finds no kernel on disk."""
    from glassgrad import Device
    network = sized(name, device)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CACHE_DIR"] = folder
        ours = our_training(network, device, exported(network))
        Device[device].synchronize()
        began = time.perf_counter()
        ours().item()
        yield Row(f"{name}: first step, cold", time.perf_counter() - began, "s")


def kernels(name: str, device: str, rounds: int) -> Iterator[Row]:
    """One step kernel by kernel, equal ones together, those that take most of it first."""
    from glassgrad.engine.observer import Observer, observed_by
    ours = our_training(sized(name, device), device, exported(sized(name, device)))
    for _ in range(3):
        ours()
    ran: list[tuple[int, int, Any, Any]] = []

    class Watch(Observer):
        def ran(self, what: Any, times: tuple[int, int], kernels: Callable[[], list[int]]) -> None:
            ran.extend((taken, number, item, program) for number, (taken, item, program)
                       in enumerate(zip(kernels(), what.items, what.programs)))
    with observed_by(Watch()):
        ours()
    total = sum(taken for taken, *_ in ran)
    yield Row(f"{name}: {len(ran)} kernels", total / 1e3)
    equal: dict[int, list[tuple[int, int, Any, Any]]] = {}
    for row in ran:
        equal.setdefault(id(row[-1]), []).append(row)                   # kernels that are compiled once
    sums = sorted(((sum(taken for taken, *_ in rows), rows) for rows in equal.values()), key=lambda pair: -pair[0])
    for taken, rows in sums[:MOST_LISTED]:
        _, number, item, program = rows[0]
        line = item.lines[0].short if item.lines else ""
        each = taken / len(rows)
        rates = f"{program.operations / each / 1e3:.0f} TFLOP/s {program.bytes / each:.0f} GB/s"
        yield Row(f"{number} {program.name} {line}", taken / 1e3, "us", None,
                  f"{len(rows)} x {each / 1e3:.1f} us {taken / total:.1%} {rates} {' '.join(program.moves)[:160]}")


PARTS: dict[str, Callable[[str, int], Iterator[Row]]] = {
    **{name: partial(training, name) for name in NETWORKS},
    **{f"{name}-{kind.__name__}": partial(kind, name) for kind in (kernels, warm, first) for name in NETWORKS}}


if __name__ == "__main__":
    main(parts=PARTS, usual=("resnet50", "gpt2"), module="benchmarks.gpu_models", limit=420.0)
