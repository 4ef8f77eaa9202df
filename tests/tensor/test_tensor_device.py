"""Where tensors live, and how they move."""

from __future__ import annotations

import numpy as np
import pytest

from glassgrad import Device, GlobalCounters, Tensor, TinyJit, no_grad
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.pipeline import make_schedule
from glassgrad.engine.schedule_key import normalize, with_params


@pytest.fixture
def default():
    yield Device.DEFAULT
    Device.DEFAULT = None                   # none is assigned: the setting DEV counts again


def test_a_device_is_named_in_any_spelling():
    assert Tensor([1], device="python").device == Tensor([1], device="PYTHON").device == "PYTHON"
    zeros = Tensor.zeros(2, device="PYTHON")
    assert zeros.device == (zeros + 1).device == "PYTHON"
    assert Tensor.rand(2, device="PYTHON").realize().uop.device == "PYTHON"


def test_tensors_move_and_gradients_follow():
    x = Tensor([1.0, 2.0], device="CPU")
    y = x.to("PYTHON")
    assert y.device == "PYTHON" and x.device == "CPU" and (y * 2).tolist() == [2.0, 4.0] and x.to("CPU") is x
    (y * y).sum().backward()
    assert x.grad.tolist() == [2.0, 4.0] and x.grad.device == "CPU"
    z = Tensor.ones(2).to("PYTHON")
    assert z.device == "PYTHON" and (z + y).tolist() == [2.0, 3.0]
    assert x.to_("PYTHON") is x and x.device == "PYTHON" and x.tolist() == [1.0, 2.0]


def _kernels(compute, *arguments):
    GlobalCounters.reset()
    compute(*arguments)
    return GlobalCounters.kernel_count


def test_values_in_memory_are_copied_to_a_device_once():
    x = Tensor([[1.0, 2.0], [3.0, 4.0]], device="CPU", requires_grad=True)
    for moved, expected in ((lambda: x.to("PYTHON"), 10.0), (lambda: x[1].to("PYTHON"), 7.0)):
        y = moved()
        assert _kernels(y.sum().item) == 1               # the copy is made already
        assert y.sum().item() == expected
    (x.to("PYTHON") * y).sum().backward()
    assert x.grad.tolist() == [[3.0, 4.0], [4.0 + 3.0, 6.0 + 4.0]]
    x.grad = None
    before = x.to("PYTHON")
    with no_grad():
        x += 5
    assert before.tolist() == [[1.0, 2.0], [3.0, 4.0]] and x.to("PYTHON").tolist() == [[6.0, 7.0], [8.0, 9.0]]
    lazy = (Tensor([1.0], device="CPU") * 2).to("PYTHON")     # computed when it is needed
    assert _kernels(lazy.tolist) == 2
    there = x.to("PYTHON")
    back = there.to("CPU")
    assert _kernels(back.tolist) == 0
    whole = Tensor([1, 2], device="CPU").to("PYTHON")         # no gradient can pass: it holds the copy alone
    assert whole.uop.op is o.BUFFER and whole.tolist() == [1, 2]


def test_a_jitted_call_does_not_copy_its_argument_again():
    x, jitted = Tensor([1.0, 2.0], device="CPU"), TinyJit(lambda x: x + 1)
    for lazy in (x.to("PYTHON"), (x * 3).to("PYTHON"), x * 3):
        counts = [_kernels(jitted, lazy) for _ in range(6)]
        assert counts[-3:] == [1, 1, 1] and jitted(lazy).tolist() == (lazy + 1).tolist()


def test_constants_meet_any_device():
    x = Tensor([1.0, 2.0], device="PYTHON")
    assert (x + Tensor.ones(2)).device == (Tensor.ones(2) + x).device == "PYTHON"
    assert (x > 0).where(x, Tensor.zeros(2)).device == "PYTHON"


def test_numbers_are_the_same_on_every_device():
    draws = []
    for device in ("CPU", "PYTHON"):
        Tensor.manual_seed(3)
        draws.append((Tensor.rand(5, device=device).tolist(), Tensor.randint(5, high=100, device=device).tolist()))
    assert draws[0] == draws[1]


def test_the_default_can_be_assigned(default):
    Device.DEFAULT = "PYTHON"
    assert Tensor([1]).device == Tensor.zeros(2).device == "PYTHON" and (Tensor([1]) + 1).tolist() == [2]
    Device.DEFAULT = default
    assert Tensor([1]).device == default


# -- what has no device of its own -----------------------------------------------------------------------------------
def _homes(*tensors):
    """The kernels that computing these takes: (device, devices of what it reads and writes), copies as such."""
    normal = normalize([t.uop.contiguous() for t in tensors])
    planned = make_schedule(*with_params(normal, ()), tensors[0].device)
    lying = [p.device for p in normal.buffers]
    return [("copy" if item.ast.op is o.COPY else item.device, {planned.slots[s].device for s in item.slots
                                                               if s >= planned.inputs or s < len(lying)})
            for item in planned.items]


def test_random_numbers_are_made_where_they_are_read():
    """Its own kernel reads from memory, so it must lie where that kernel runs, wherever the result goes."""
    numbers = Tensor.rand(64, device="PYTHON").cumsum(0)
    chosen = numbers[Tensor([3, 1], device="PYTHON").realize()].to("CPU") * Tensor([1.0, 2.0], device="CPU").realize()
    kernels = _homes(chosen)
    assert all(lies == {device} for device, lies in kernels if device != "copy")
    assert ("copy", {"CPU", "PYTHON"}) in kernels and chosen.device == "CPU"
    np.testing.assert_allclose(chosen.tolist()[1] / 2, numbers.to("CPU").tolist()[1], rtol=1e-6)


def test_what_two_devices_read_is_copied():
    counts = Tensor.arange(64).cumsum(0)
    parts = [counts[Tensor([3, 1], device=device).realize()] for device in ("CPU", "PYTHON")]
    kernels = _homes(*parts)
    assert all(lies == {device} for device, lies in kernels if device != "copy")
    assert [device for device, _ in kernels].count("copy") == 1
    parts[0].realize(parts[1])
    assert [(p.device, p.tolist()) for p in parts] == [("CPU", [6, 1]), ("PYTHON", [6, 1])]
