"""A whole training step captured: layers with state, optimizers, schedules, clipping, loss scaling replay exactly."""

from __future__ import annotations

import numpy as np
import pytest

from glassgrad import Tensor, dtypes, nn
from glassgrad.jit import TinyJit
from glassgrad.nn.optim import SGD, Adam, GradScaler, autocast, clip_grad_norm_, lr_scheduler

STEPS = 9


def train(captured: bool, name: str, scaled: bool) -> tuple[list[float], list[np.ndarray], float]:
    Tensor.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.BatchNorm(8), nn.Linear(8, 3))
    parameters = nn.state.get_parameters(model)
    optimizer = Adam(parameters, lr=0.05) if name == "Adam" else SGD(parameters, lr=0.05, momentum=0.9)
    schedule = lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=STEPS)       # changes momentum and betas too
    scaler = GradScaler(enabled=scaled, init_scale=256.0, growth_interval=3)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        with autocast(dtype=dtypes.float16, enabled=scaled):
            loss = model(x).cross_entropy(y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(optimizer.params, 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss
    run = TinyJit(step) if captured else step
    rng = np.random.default_rng(0)
    losses = []
    with Tensor.train():
        for n in range(STEPS):
            x, y = rng.standard_normal((16, 5)).astype(np.float32), rng.integers(0, 3, 16)
            losses.append(run(Tensor(x), Tensor(y)).item())
            if n < STEPS - 1:
                schedule.step()
    assert not captured or run.captured
    return losses, [t.numpy() for t in nn.state.get_state_dict(model).values()], scaler.get_scale()


@pytest.mark.parametrize("name,scaled", [("SGD", False), ("Adam", False), ("Adam", True)])
def test_a_captured_training_is_the_same(name, scaled):
    losses, weights, scale = train(False, name, scaled)
    for _ in range(3):                                        # a new tensor may have the identity of a dead one, or not
        again, same, at = train(True, name, scaled)
        assert again == losses and at == scale
        for a, b in zip(weights, same):
            np.testing.assert_array_equal(a, b)


def test_a_step_that_returns_its_parameter():
    w = Tensor([8.0])
    optimizer = SGD([w], lr=0.25)

    @TinyJit
    def step(x):
        optimizer.zero_grad()
        (w * w * x).sum().backward()
        optimizer.step()
        return w
    assert [step(Tensor([1.0])).item() for _ in range(6)] == [8 * 0.5 ** n for n in range(1, 7)]


def test_a_capture_knows_in_which_type_products_are_computed():
    @TinyJit
    def product(x): return x @ x
    x = Tensor.ones(2, 2)
    for _ in range(3):
        assert product(x).dtype is dtypes.float32
        with autocast(dtype=dtypes.bfloat16):
            assert product(x).dtype is dtypes.bfloat16


@pytest.mark.parametrize("switch", ["maximize", "nesterov"])
def test_a_switch_of_a_group_that_is_turned_between_calls(switch):
    def train(wrap):
        w = Tensor([8.0, -3.0])
        optimizer = SGD([w], lr=0.125, momentum=0.5)

        def step(x):
            optimizer.zero_grad()
            (w * w * x).sum().backward()
            optimizer.step()
        step = wrap(step)
        for call in range(9):
            optimizer.param_groups[0][switch] = call >= 5
            step(Tensor([1.0, 0.5]))
        return w.tolist()
    assert train(TinyJit) == train(lambda function: function)


def test_the_last_batch_of_an_epoch_may_be_smaller():
    """Replays leave gradients that nothing read; a trace for another shape then finds them: they are not new."""
    def train(wrap) -> list[float]:
        Tensor.manual_seed(1)
        model = nn.Linear(6, 3)
        optimizer = SGD(nn.state.get_parameters(model), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean().backward()
            optimizer.step()
            return loss.realize()
        run = wrap(step)
        with Tensor.train():
            return [run(Tensor.randn(5 if i % 4 == 3 else 8, 6)).item() for i in range(12)]
    assert train(TinyJit) == train(lambda step: step)


class BatchNormed:
    def __init__(self) -> None:
        Tensor.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm(6), nn.Sigmoid(), nn.Linear(6, 3))
        self.trained = [p for p in nn.state.get_parameters(self.model) if p.requires_grad is not False]
        for p in self.trained:
            p.requires_grad = True

    def step(self, x: Tensor) -> Tensor:
        loss = self.model(x).square().sum()
        loss.backward()
        return loss

    def outcome(self, captured: bool) -> list[np.ndarray]:
        """Gradients of two batches are added up, and then set to zero; now and then a bias is halved between them."""
        step, found = TinyJit(self.step) if captured else self.step, []
        with Tensor.train():
            for n in range(14):
                found.append(step(Tensor(np.full((4, 5), n, np.float32) + np.arange(4)[:, None])).item())
                if n % 2:
                    found += [p.grad.numpy() for p in self.trained]
                    for p in self.trained:
                        p.assign(p.detach() - 0.01 * p.grad.detach())
                        p.grad = p.grad.zeros_like()
                if n % 5 == 4:
                    self.trained[-1].assign(self.trained[-1].detach() * 0.5)
        assert not captured or step.captured
        return [*found, *[t.numpy() for t in nn.state.get_state_dict(self.model).values()]]


def test_gradients_that_are_added_up_and_set_to_zero_are_replayed():
    """The function's work depends on which gradients and weights are computed, zero, or not there: several captures."""
    for mine, theirs in zip(BatchNormed().outcome(True), BatchNormed().outcome(False), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)
