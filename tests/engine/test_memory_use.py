"""Memory: what is predicted is what is used, a jitted step asks for none, and nothing old is kept alive."""

from __future__ import annotations

import gc
import resource
import sys
import weakref

import pytest
from scripts import run_script

from glassgrad import Device, Tensor, TinyJit, nn
from glassgrad.engine.memory_plan import MemoryUse
from glassgrad.nn.state import get_parameters
from glassgrad.runtime.memory_pool import rounded


def live() -> int:
    """Bytes in use when all garbage is gone. What the entry of a weak dictionary held becomes garbage only when the
    collection that frees its key is over, so earlier tests may leave some for the collection after it."""
    for _ in range(20):         # not for ever: another thread may make garbage all the time
        if not gc.collect():
            break
    return int(Device[Device.DEFAULT].memory.stats().live)


class Net:
    def __init__(self) -> None:
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.last = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8 * 16 * 16, 10)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu()
        return self.last(self.second(x).relu().flatten(1))


def trained(net: Net, optimizer: nn.optim.Optimizer) -> TinyJit:
    @TinyJit
    @Tensor.train()
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(x).sparse_categorical_crossentropy(y)
        loss.backward()
        optimizer.step()
        return loss
    return step


def data(number: int = 0) -> tuple[Tensor, Tensor]:
    Tensor.manual_seed(number)
    return Tensor.rand(16, 3, 16, 16).realize(), Tensor.randint(16, high=10).realize()


class Knot:
    """Something that only the garbage collector frees."""

    def __init__(self, held: Tensor | None = None):
        self.itself, self.held = self, held


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_garbage_of_several_layers_is_not_counted(layers: int) -> None:
    """Each layer is held by a weak dictionary whose key lies in the layer before."""
    before = live()
    waiting: list[weakref.WeakKeyDictionary[Knot, Knot]] = []
    knot = Knot(Tensor([1.0]).realize())
    for _ in range(layers):
        key = Knot()
        waiting.append(weakref.WeakKeyDictionary({key: knot}))
        knot = key
        del key
    assert rounded(4) <= live() - before <= 256, "one block of the smallest size that the device has"
    del knot
    assert live() == before


def test_a_realize_uses_what_was_predicted() -> None:
    """Intermediate values, packed factors and results: the pool's high-water mark is the plan's."""
    x, w = Tensor.rand(256, 300).realize(), Tensor.rand(300, 256).realize()
    y = ((x @ w).softmax() @ w.T).exp()
    use = y.memory_plan()
    assert (use.inputs, use.results) == (2 * 256 * 300 * 4, 256 * 300 * 4)
    assert use.between >= 256 * 256 * 4, "at least the scores"
    memory = Device[Device.DEFAULT].memory
    before = live()
    memory.reset_peak()
    least = memory.stats().peak                  # slabs of small blocks count as a whole
    y.realize()
    assert memory.stats().peak - least == rounded(use.results) + rounded(use.between)
    assert live() - before == rounded(use.results), "what lay between is given back"


def test_the_parts_are_named_and_add_up() -> None:
    use = MemoryUse(1 << 20, 2 << 20, 3 << 20, 1 << 10)
    assert use.peak == (6 << 20) + 1024
    assert str(use) == "6.0 MiB: 1.0 MiB read, 2.0 MiB made, 3.0 MiB between, 1.0 KiB scratch"
    assert str(MemoryUse(0, 0, 0, 0)) == "0 bytes"
    assert Tensor([1.0]).realize().memory_plan().peak == 0, "it is there already"


def test_debug_prints_the_peak() -> None:
    lines = run_script("""
        from glassgrad import Tensor
        (Tensor.ones(512, 512).contiguous() + 1).realize()
        """, DEBUG="1")[0].splitlines()
    assert len(lines) == 1 and lines[0].endswith(" ms, 1.0 MiB: 1.0 MiB made")


def test_a_jitted_step_keeps_what_was_predicted_and_no_more() -> None:
    """Weights and gradients lie where they lay, two sets of other results take turns, one arena; those of the traces
    are gone."""
    start = live()
    x, y = data()
    net = Net()
    optimizer = nn.optim.Adam(get_parameters(net), lr=0.01)
    step = trained(net, optimizer)
    assert step.memory is None
    for _ in range(5):
        loss = step(x, y)
    assert step.captured
    use = step.memory
    assert use is not None
    held = live() - start
    del loss
    used = use.peak - use.scratch
    assert used <= held <= 1.125 * used + (16 << 10), "the pool rounds up by at most an eighth"
    del step, net, optimizer, x, y, use
    assert live() - start <= 64 << 10


def test_a_step_does_not_keep_old_weights() -> None:
    """Un-jitted: after each step as much memory is in use as after the one before."""
    x, y = data()
    net = Net()
    optimizer = nn.optim.SGD(get_parameters(net), lr=0.01, momentum=0.9)
    held = []
    with Tensor.train():
        for _ in range(5):
            optimizer.zero_grad()
            loss = net(x).sparse_categorical_crossentropy(y)
            loss.backward()
            optimizer.step()
            loss.realize()
            held.append(live())
    assert held[2] == held[3] == held[4]


@pytest.mark.only_on("CPU", "CLANG", reason="the arrays of an interpreter come and go")
@pytest.mark.skipif(sys.platform == "win32", reason="no getrusage")
def test_a_steady_step_takes_no_fresh_pages() -> None:
    (x, y), net = data(), Net()
    step = trained(net, nn.optim.Adam(get_parameters(net), lr=0.01))
    for _ in range(8):
        step(x, y)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        step(x, y)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert faults < 50, "fewer than one a step: its memory is touched again and again, not asked for anew"
    assert step.memory is not None and step.memory.peak > 50 * 4096
