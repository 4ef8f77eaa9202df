"""Bytes that repeated work asks of the memory pool: per optimizer step, per row of a cache, per accumulated gradient.

A value that nothing else can read is written where it lies; the numbers here are what is allocated all the same, and
they must not grow. (Results that the caller holds, and the arena of a schedule, are allocated and given back.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from glassgrad import Device, Tensor, TinyJit, nn


@contextmanager
def counted() -> Iterator[list[int]]:
    """The sizes of all allocations inside."""
    memory, sizes = Device[Device.DEFAULT].memory, []
    allocate = memory.allocate

    def counting(nbytes: int):
        sizes.append(nbytes)
        return allocate(nbytes)

    memory.allocate = counting  # type: ignore[method-assign]
    try:
        yield sizes
    finally:
        del memory.allocate


def steady(step: Callable[[int], object], warm: int = 8) -> int:
    """Bytes that one call allocates once calls are alike; the same for three calls in a row."""
    for i in range(warm):
        step(i)
    found = []
    for i in range(warm, warm + 3):
        with counted() as sizes:
            step(i)
        found.append(sum(sizes))
    assert found[0] == found[1] == found[2], found
    return found[0]


def training(optimizer: str, jitted: bool) -> Callable[[int], object]:
    Tensor.manual_seed(1)
    layer = nn.Linear(64, 64)
    for p in (layer.weight, layer.bias):
        p.realize()
    update = getattr(nn.optim, optimizer)([layer.weight, layer.bias], lr=0.01)
    batches = [Tensor.rand(16, 64).realize() for _ in range(8)]

    def step(x: Tensor) -> Tensor:
        update.zero_grad()
        loss = (layer(x) ** 2).mean().backward()
        update.step()
        return loss.realize()

    run = TinyJit(step) if jitted else step
    return lambda i: run(batches[i % 8])


def cache_row(jitted: bool) -> Callable[[int], object]:
    cache = Tensor.zeros(256, 128).contiguous().realize()
    rows = [Tensor(np.full(128, i, "float32")).realize() for i in range(8)]

    def step(row: Tensor) -> None:
        cache[3] = row
        cache.realize()

    run = TinyJit(step) if jitted else step
    return lambda i: run(rows[i % 8])


def changing_row() -> Callable[[int], object]:
    cache = Tensor.zeros(256, 128).contiguous().realize()
    rows = [Tensor(np.full(128, i, "float32")).realize() for i in range(8)]

    def step(i: int) -> None:
        cache[i] = rows[i % 8]
        cache.realize()

    return step


def accumulation(jitted: bool) -> Callable[[int], object]:
    w = Tensor(np.ones((64, 64), "float32"), requires_grad=True).realize()
    w.requires_grad = True
    batches = [Tensor.rand(16, 64).realize() for _ in range(8)]

    def step(x: Tensor) -> None:
        ((x @ w) ** 2).mean().backward()
        w.grad.realize()

    run = TinyJit(step) if jitted else step
    return lambda i: run(batches[i % 8])


CASES = {
    "SGD step": (lambda: training("SGD", False), 57_860),
    "SGD step, jitted": (lambda: training("SGD", True), 0),
    "Adam step": (lambda: training("Adam", False), 91_144),
    "Adam step, jitted": (lambda: training("Adam", True), 0),
    "cache row": (lambda: cache_row(False), 0),
    "cache row, jitted": (lambda: cache_row(True), 0),
    "a row at another place each time": (changing_row, 0),
    "gradient accumulation": (lambda: accumulation(False), 20_480),
    "gradient accumulation, jitted": (lambda: accumulation(True), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_repeated_work_allocates_no_more_than_it_must(name):
    make, most = CASES[name]
    assert steady(make()) <= most
