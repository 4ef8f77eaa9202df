"""Checkpoints: a training that was saved and loaded goes on bit for bit as one that never stopped."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from glassgrad import FormatError, InputError, Tensor, dtypes, nn
from glassgrad.nn.state import (get_state_dict, load_checkpoint, safe_load, safe_load_metadata, safe_save,
                                save_checkpoint)
from glassgrad.nn.state.checkpoint import Checkpoint
from glassgrad.nn.state.formats.byte_source import Source
from glassgrad.nn.state.formats.safetensors import read_header


class Model:
    """Dropout draws random numbers, batch norm keeps statistics: all must come back."""

    def __init__(self) -> None:
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm(8), nn.Linear(8, 3)

    def __call__(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)).relu().dropout(0.3))


def train(model: Model, optimizer: Any, steps: range, schedule: Any = None) -> list[float]:
    losses = []
    with Tensor.train():
        for step in steps:
            rng = np.random.default_rng(step)
            x, y = Tensor(rng.random((8, 6), dtype=np.float32)), Tensor(rng.integers(0, 3, 8))
            optimizer.zero_grad()
            loss = model(x).cross_entropy(y)
            loss.backward()
            optimizer.step()
            if schedule is not None:
                schedule.step()
            losses.append(loss.item())
    return losses


def bits(*objects: Any) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for i, each in enumerate(objects):
        found |= {f"{i}.{name}": tensor.numpy().tobytes() for name, tensor in get_state_dict(each).items()}
    return found


OPTIMIZERS = {
    "SGD": lambda p: nn.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "plain SGD": lambda p: nn.optim.SGD(p, lr=0.1),
    "Adam": lambda p: nn.optim.Adam(p, lr=0.01),
    "AdamW amsgrad": lambda p: nn.optim.AdamW(p, lr=0.01, amsgrad=True),
    "LAMB": lambda p: nn.optim.LAMB(p, lr=0.01),
    "RMSprop": lambda p: nn.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "two groups": lambda p: nn.optim.Adam([{"params": p[:2], "lr": 0.1}, {"params": p[2:]}], lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_bit_for_bit(name, tmp_path):
    Tensor.manual_seed(3)
    model = Model()
    optimizer = OPTIMIZERS[name](nn.state.get_parameters(model))
    train(model, optimizer, range(5))
    save_checkpoint(tmp_path / "run.safetensors", model, optimizer, step=5, extra={"best": 0.25})
    losses = train(model, optimizer, range(5, 10))
    expected, following = bits(model, optimizer), Tensor.rand(3).tolist()

    Tensor.manual_seed(99)
    fresh = Model()
    again = OPTIMIZERS[name](nn.state.get_parameters(fresh))
    assert load_checkpoint(tmp_path / "run.safetensors", fresh, again) == Checkpoint(5, {"best": 0.25})
    assert train(fresh, again, range(5, 10)) == losses
    assert bits(fresh, again) == expected and Tensor.rand(3).tolist() == following


def test_schedules_and_scalers_come_along(tmp_path):
    def start() -> tuple[Model, Any, Any]:
        model = Model()
        optimizer = nn.optim.Adam(nn.state.get_parameters(model), lr=0.1, betas=(0.8, 0.9))
        return model, optimizer, nn.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    Tensor.manual_seed(3)
    model, optimizer, schedule = start()
    scaler = nn.optim.GradScaler(init_scale=16.0)
    train(model, optimizer, range(3), schedule)
    save_checkpoint(tmp_path / "x", model, [optimizer, schedule, scaler], step=3)
    names = read_header(Source(tmp_path / "x")).entries
    assert not any("schedule" in name or ".1.optimizer" in name for name in names)      # the optimizer is saved once
    losses = train(model, optimizer, range(3, 6), schedule)
    fresh, again, later = start()
    other = nn.optim.GradScaler(init_scale=4.0)
    load_checkpoint(tmp_path / "x", fresh, [again, later, other])
    assert later.last_epoch == 3 and again.param_groups[0]["lr"] == 0.05 and other.get_scale() == 16.0
    assert train(fresh, again, range(3, 6), later) == losses and bits(fresh) == bits(model)
    assert later.get_last_lr() == schedule.get_last_lr() == [0.0125]


def test_settings_are_those_of_the_saved_training(tmp_path):
    w, v = Tensor([1.0, 2.0]), Tensor([1.0, 2.0])
    save_checkpoint(tmp_path / "x", [w], nn.optim.Adam([w], lr=0.25, betas=(0.5, 0.75), weight_decay=0.125))
    optimizer = nn.optim.Adam([v], lr=1.0)
    load_checkpoint(tmp_path / "x", [v], optimizer)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.25, (0.5, 0.75), 0.125)
    assert optimizer.lr.item() == 0.25


def test_half_precision_keeps_its_float32_values(tmp_path):
    def start() -> tuple[Tensor, Any]:
        w = Tensor([1.0, 2.0, 3.0], dtype=dtypes.float16)
        return w, nn.optim.SGD([w], lr=1e-4)

    def steps(w: Tensor, optimizer: Any) -> None:
        for _ in range(5):
            optimizer.zero_grad()
            (w.float() * Tensor([1.0, 0.5, 0.1])).sum().backward()
            optimizer.step()
    w, optimizer = start()
    steps(w, optimizer)
    save_checkpoint(tmp_path / "x", [w], optimizer)
    steps(w, optimizer)
    again, other = start()
    load_checkpoint(tmp_path / "x", [again], other)
    steps(again, other)
    assert bits([again], other) == bits([w], optimizer)


def test_state_that_is_made_in_the_first_step_is_put_where_none_stands(tmp_path):
    class Late:
        def __init__(self) -> None:
            self.velocity: list[Tensor | None] = [None, None]
            self.mean: Tensor | None = None
            self.count, self.name, self.flag, self.pair = 0, "late", False, (1, 2.5)
    saved, fresh = Late(), Late()
    saved.velocity[1], saved.mean = Tensor([1.0]), Tensor([[2.0]])
    saved.count, saved.flag, saved.pair = 7, True, (3, 4.5)
    save_checkpoint(tmp_path / "x", {}, saved)
    load_checkpoint(tmp_path / "x", {}, fresh)
    assert fresh.velocity[0] is None and fresh.velocity[1].tolist() == [1.0] and fresh.mean.tolist() == [[2.0]]
    assert (fresh.count, fresh.flag, fresh.pair) == (7, True, (3, 4.5))


def test_the_model_alone_can_be_taken_from_a_checkpoint(tmp_path):
    w = Tensor([1.0, 2.0])
    save_checkpoint(tmp_path / "x", {"w": w}, nn.optim.Adam([w]), step=4)
    model = {"w": Tensor([0.0, 0.0])}
    assert load_checkpoint(tmp_path / "x", model).step == 4 and model["w"].tolist() == [1.0, 2.0]
    assert safe_load(tmp_path / "x")["model.w"].tolist() == [1.0, 2.0]                     # it is a safetensors file


def test_what_does_not_fit_changes_nothing(tmp_path):
    w = Tensor([1.0, 2.0])
    save_checkpoint(tmp_path / "x", {"w": w}, nn.optim.Adam([w], lr=0.5))
    Tensor.manual_seed(5)
    v = Tensor([3.0, 4.0])
    optimizer = nn.optim.SGD([v], lr=0.25, momentum=0.9)
    before, expected = bits([v], optimizer), Tensor.rand(2).tolist()
    Tensor.manual_seed(5)
    with pytest.raises(InputError) as problem:
        load_checkpoint(tmp_path / "x", {"w": v}, optimizer)
    assert "optimizer.b.0 float32 (2,)" in problem.value.given and "optimizer.m.0" in problem.value.given
    assert bits([v], optimizer) == before and optimizer.param_groups[0]["lr"] == 0.25
    assert Tensor.rand(2).tolist() == expected


def test_numbers_come_back_as_they_were(tmp_path):
    values = {"tiny": 5e-324, "third": 1 / 3, "large": 1e308, "inf": math.inf, "whole": 2 ** 62, "no": False}
    save_checkpoint(tmp_path / "x", {}, values)
    fresh: dict[str, Any] = dict.fromkeys(values, 0)
    load_checkpoint(tmp_path / "x", {}, fresh)
    assert fresh == values


@pytest.mark.parametrize("extra", [{"w": Tensor([1.0])}, {1: "a"}, (1, 2), object()])
def test_extra_that_json_would_change_is_refused(extra, tmp_path):
    with pytest.raises(InputError, match="JSON|come back changed"):
        save_checkpoint(tmp_path / "x", {}, extra=extra)
    assert list(tmp_path.iterdir()) == []


def test_other_files_are_refused(tmp_path):
    safe_save({"model.w": Tensor([1.0])}, tmp_path / "x")
    with pytest.raises(FormatError) as problem:
        load_checkpoint(tmp_path / "x", {"w": Tensor([0.0])})
    assert str(problem.value).splitlines()[:4] == [
        f"{tmp_path / 'x'}: not a checkpoint", "  given:    'no format'", "  expected: 'glassgrad checkpoint 1'",
        "  fix:      read files of tensors with safe_load; checkpoints are written by save_checkpoint"]
    save_checkpoint(tmp_path / "y", {"w": Tensor([1.0])})
    notes = safe_load_metadata(tmp_path / "y").metadata
    good = json.loads(notes["training"])
    changed = [("random", [1]), ("random", [-1, 0]), ("random", ["a", 0]), ("numbers", []), ("same", {"a": 1}),
               ("same", [])]
    for bad in ("", "[]", "{}", "null", "[" * 100_000, *[json.dumps({**good, key: value}) for key, value in changed]):
        safe_save({"model.w": Tensor([1.0])}, tmp_path / "z", {**notes, "training": bad})
        with pytest.raises(FormatError, match="notes are damaged"):
            load_checkpoint(tmp_path / "z", {"w": Tensor([0.0])})
