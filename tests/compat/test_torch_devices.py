"""`torch.device` and the devices of tensors, as in PyTorch."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import glassgrad.torch as ours
from glassgrad import Device, DeviceError, Tensor

theirs = pytest.importorskip("torch")


def test_devices_that_are_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(Device), "is_available", lambda self, name: name == "CPU")
    with pytest.raises(DeviceError, match="there is no cuda here") as caught:
        ours.device("cuda:0")
    expected = str(caught.value).partition("expected: ")[2].partition("\n")[0]
    assert "CUDA" not in expected and "CPU" in expected, expected
    for name in ("meta", "frobnicator:0"):
        with pytest.raises(DeviceError, match=f'no such device\n  given:    torch.device."{name}"'):
            ours.device(name)
    for wrong in (("cpu:1",), ("cpu:one",), ("cpu", 3)):
        with pytest.raises(DeviceError, match="one device of a kind"):
            ours.device(*wrong)
    assert (ours.device("cpu:0").index, ours.device("cpu", 0).index, ours.device("cpu").index) == (0, 0, None)
    with pytest.raises(AttributeError, match="torch.frobnicate has no counterpart"):
        _ = ours.frobnicate
    assert Tensor([1]).to(ours.device("cpu")).tolist() == [1] and not ours.backends.mps.is_available()


def test_the_device_of_a_tensor_is_a_device_of_pytorch() -> None:
    """It was a plain name in capitals: `x.device == torch.device("cpu")` was False, and `x.device.type` an error."""
    x, cpu = ours.ones(2, device="cpu"), ours.device("cpu")
    assert x.device == cpu and cpu == x.device and not x.device != cpu
    assert x.device != ours.ones(1, device="clang").device
    assert (x.device.type, x.device.index, str(x.device), f"{x.device}", repr(x.device)) == \
        ("cpu", None, "cpu", "cpu", "device(type='cpu')")
    assert {cpu: 1}[x.device] == 1 and x.device == "CPU" == Tensor([1], device="CPU").device
    assert ours.device(x.device) == cpu and copy.deepcopy(x.device) == pickle.loads(pickle.dumps(x.device)) == cpu
    moved = [x.to(x.device), ours.zeros(2, device=x.device), x.new_zeros(2), (x * 2).to(cpu), ours.zeros_like(x)]
    assert all(tensor.device == cpu and (x + tensor).device == cpu for tensor in moved)
    assert next(ours.nn.Linear(2, 2).to(x.device).parameters()).device == cpu


def test_a_device_is_accepted_where_it_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    from glassgrad.compat.torch import devices
    monkeypatch.setattr(devices.Device, "is_available", lambda name: True)
    assert ours.device("cuda:0") == "cuda" and repr(ours.device("cuda", 0)) == "device(type='cuda', index=0)"
    with pytest.raises(DeviceError, match="there is one device of a kind here"):
        ours.device("cuda:1")
    with pytest.raises(DeviceError, match="there is no mps here"):
        ours.device("mps")


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_a_copy_is_on_the_same_device(copied: Any) -> None:
    """Its memory was on a device "cpu" beside "CPU", so an optimizer refused a `nn.TransformerEncoder`, which copies
    its layer, together with an `nn.Embedding`: "the parameters of a group live on different devices"."""
    x = copied(ours.ones(2).clone())
    assert x.uop.device == Device.DEFAULT and type(x.uop.device) is str and hash(x.device) == hash(ours.ones(2).device)
    layer = ours.nn.Linear(2, 2)
    ours.optim.SGD([*copied(layer).parameters(), *layer.parameters()], lr=0.1)


def test_a_device_of_a_device_has_the_same_hash() -> None:
    cpu = ours.device("cpu")
    assert {cpu: 1}[type(cpu).named(cpu)] == 1
