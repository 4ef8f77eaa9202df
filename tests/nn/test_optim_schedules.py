"""Learning rates over time, clipping, and mixed precision, against PyTorch."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch, the reference of schedules, is not installed")

from glassgrad import GlobalCounters, InputError, Tensor, nn  # noqa: E402
from glassgrad.nn import optim  # noqa: E402

L, TL = optim.lr_scheduler, torch.optim.lr_scheduler


def pair(name="SGD", **settings):
    settings = settings or dict(lr=0.5, momentum=0.9)
    ours, theirs = Tensor([1.0]), torch.tensor([1.0], requires_grad=True)
    second, their_second = Tensor([2.0]), torch.tensor([2.0], requires_grad=True)
    groups = lambda a, b: [{"params": [a]}, {"params": [b], "lr": 0.25}]
    return (getattr(optim, name)(groups(ours, second), **settings),
            getattr(torch.optim, name)(groups(theirs, their_second), **settings))


def rates(optimizer):
    return [float(g["lr"]) for g in optimizer.param_groups]


def agree(ours, theirs, schedule, other, steps=12, *arguments):
    for n in range(steps):
        for a, b in zip(ours.param_groups, theirs.param_groups):
            assert a["momentum"] == pytest.approx(b["momentum"]) if "momentum" in b else a["betas"] == b["betas"]
        assert rates(ours) == pytest.approx(rates(theirs), rel=1e-9, abs=1e-12), f"epoch {n}"
        assert schedule.get_last_lr() == rates(ours)
        theirs.step()                                    # PyTorch warns unless the optimizer goes first
        schedule.step(*(a[n] for a in arguments))
        other.step(*(a[n] for a in arguments))


SCHEDULES = [
    ("StepLR", dict(step_size=3, gamma=0.3)), ("MultiStepLR", dict(milestones=[2, 5, 5, 9], gamma=0.5)),
    ("ExponentialLR", dict(gamma=0.8)), ("ConstantLR", dict(factor=0.25, total_iters=4)),
    ("LinearLR", dict(start_factor=0.1, total_iters=5)),
    ("LinearLR", dict(start_factor=1.0, end_factor=0.2, total_iters=6)),
    ("CosineAnnealingLR", dict(T_max=4, eta_min=0.01)), ("CosineAnnealingLR", dict(T_max=30)),
    ("CosineAnnealingWarmRestarts", dict(T_0=3, T_mult=2, eta_min=0.01)),
    ("CosineAnnealingWarmRestarts", dict(T_0=4)),
    ("PolynomialLR", dict(total_iters=6, power=2.0)), ("MultiplicativeLR", dict(lr_lambda=lambda e: 1 - 0.05 * e)),
    ("CyclicLR", dict(base_lr=[0.1, 0.2], max_lr=0.5, step_size_up=3, step_size_down=2)),
    ("CyclicLR", dict(base_lr=0.1, max_lr=0.5, step_size_up=2, mode="triangular2")),
    ("CyclicLR", dict(base_lr=0.1, max_lr=0.5, step_size_up=2, mode="exp_range", gamma=0.9, cycle_momentum=False)),
    ("CyclicLR", dict(base_lr=0.1, max_lr=0.5, step_size_up=3, scale_fn=lambda n: 1 / n, scale_mode="cycle")),
    ("LambdaLR", dict(lr_lambda=[lambda e: 0.9 ** e, lambda e: 1 / (1 + e)])),
]


@pytest.mark.parametrize("name,options", SCHEDULES)
def test_learning_rates_are_pytorchs_at_every_step(name, options):
    ours, theirs = pair()
    agree(ours, theirs, getattr(L, name)(ours, **options), getattr(TL, name)(theirs, **options))


@pytest.mark.parametrize("epoch", [1, 7])                # PyTorch's StepLR begun at its own milestone falls once more
@pytest.mark.parametrize("name,options", SCHEDULES)
def test_schedules_go_on_where_another_ended(name, options, epoch):
    if epoch == 7 and name == "CosineAnnealingWarmRestarts":
        epoch = 2                                         # PyTorch's forgets that it had restarted
    ours, theirs = pair()
    agree(ours, theirs, getattr(L, name)(ours, **options), getattr(TL, name)(theirs, **options), epoch)
    options = {**options, "last_epoch": epoch - 1}
    agree(ours, theirs, getattr(L, name)(ours, **options), getattr(TL, name)(theirs, **options), 5)


@pytest.mark.parametrize("options",
                         [{}, dict(anneal_strategy="linear", three_phase=True), dict(pct_start=0.5, div_factor=10.0),
                                     dict(epochs=4, steps_per_epoch=3, total_steps=None)])
@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_one_cycle_sets_rate_and_momentum_as_pytorch(name, options):
    ours, theirs = pair(name, **(dict(lr=0.1, momentum=0.9) if name == "SGD" else dict(lr=0.1)))
    options = {"total_steps": 12, **options}
    schedule, other = L.OneCycleLR(ours, max_lr=[1.0, 0.5], **options), TL.OneCycleLR(theirs, max_lr=[1.0, 0.5],
                                                                                      **options)
    for n in range(12):
        assert rates(ours) == pytest.approx(rates(theirs), rel=1e-9), f"step {n}"
        key = "momentum" if name == "SGD" else "betas"
        for a, b in zip(ours.param_groups, theirs.param_groups):
            assert a[key] == pytest.approx(b[key])
        theirs.step()
        if n < 11:
            schedule.step()
            other.step()


def test_one_cycle_trains_as_pytorch_does(rng):
    """Momentum and betas change at every step: their tensors must follow."""
    for name, settings in (("SGD", dict(momentum=0.9)), ("SGD", {}), ("Adam", {})):
        values, gradients = rng.standard_normal((3,)).astype(np.float32), rng.standard_normal((10,
                                                                                               3)).astype(np.float32)
        p, q = Tensor(values), torch.tensor(values, requires_grad=True)
        ours, theirs = getattr(optim, name)([p], lr=0.1, **settings), getattr(torch.optim, name)([q], lr=0.1,
                                                                                                 **settings)
        schedule, other = L.OneCycleLR(ours, 0.5, total_steps=10), TL.OneCycleLR(theirs, 0.5, total_steps=10)
        for n, g in enumerate(gradients):
            p.grad, q.grad = Tensor(g), torch.tensor(g)
            before = GlobalCounters.schedules
            ours.step()
            assert n < 1 or GlobalCounters.schedules == before
            theirs.step()
            schedule.step()
            other.step()
            np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=1e-5, atol=1e-6,
                                       err_msg=f"{name}, step {n}")


@pytest.mark.parametrize("options",
                         [dict(patience=1, factor=0.5), dict(mode="max", patience=0, cooldown=2, min_lr=[0.05, 0.1]),
                                     dict(threshold=0.5, threshold_mode="abs", patience=2)])
def test_the_rate_falls_on_a_plateau_as_in_pytorch(options):
    ours, theirs = pair()
    measures = [3.0, 2.0, 2.0, 2.1, 1.9, 1.9, 1.9, 1.9, 1.0, 1.2, 1.2, 1.2]
    agree(ours, theirs, L.ReduceLROnPlateau(ours, **options), TL.ReduceLROnPlateau(theirs, **options), 12, measures)


def test_plateau_takes_a_tensor():
    ours, _ = pair()
    schedule = L.ReduceLROnPlateau(ours, patience=0)
    schedule.step(Tensor([1.0]).sum())
    schedule.step(Tensor(2.0))
    assert rates(ours) == pytest.approx([0.05, 0.025])


def test_two_schedules_on_one_optimizer():
    ours, theirs = pair()
    a, b = L.ExponentialLR(ours, 0.9), L.MultiStepLR(ours, [2, 4], 0.5)
    c, d = TL.ExponentialLR(theirs, 0.9), TL.MultiStepLR(theirs, [2, 4], 0.5)
    for _ in range(6):
        assert rates(ours) == pytest.approx(rates(theirs))
        theirs.step()
        for each in (a, b, c, d):
            each.step()


@pytest.mark.filterwarnings("ignore")
def test_several_schedules_at_once():
    ours, theirs = pair()
    make = lambda room, optimizer: room.ChainedScheduler([room.ConstantLR(optimizer, factor=0.1, total_iters=3),
                                                          room.ExponentialLR(optimizer, gamma=0.9)])
    agree(ours, theirs, make(L, ours), make(TL, theirs))
    again, _ = pair()
    schedule, saved = make(L, again), make(L, ours)
    for _ in range(5):
        saved.step()
    schedule.load_state_dict(saved.state_dict())
    assert schedule.schedulers[0].last_epoch == 5 and schedule.last_epoch == 5


def test_one_schedule_after_another():
    ours, theirs = pair()
    make = lambda l, o: l.SequentialLR(o,
                                       [l.LinearLR(o, 0.1, total_iters=3), l.CosineAnnealingLR(o, T_max=5),
                                        l.ExponentialLR(o, 0.5)],
                                       milestones=[3, 7])
    schedule, other = make(L, ours), make(TL, theirs)
    for n in range(11):
        assert rates(ours) == pytest.approx(rates(theirs), abs=1e-12), f"epoch {n}"
        theirs.step()
        schedule.step()
        other.step()


def test_fractions_of_an_epoch():
    ours, theirs = pair()
    schedule, other = L.CosineAnnealingWarmRestarts(ours, 2, 2), TL.CosineAnnealingWarmRestarts(theirs, 2, 2)
    for at in np.linspace(0, 15, 31):
        schedule.step(float(at))
        other.step(float(at))
        assert rates(ours) == pytest.approx(rates(theirs))


def test_a_schedule_goes_on_where_it_was_saved():
    ours, _ = pair()
    schedule = L.CosineAnnealingLR(ours, T_max=7)
    for _ in range(3):
        schedule.step()
    saved, optimizer_state = schedule.state_dict(), ours.state_dict()
    ahead = schedule.preview(4)
    assert schedule.get_last_lr()[0] == ahead[0]              # a preview changes nothing
    fresh, _ = pair()
    again = L.CosineAnnealingLR(fresh, T_max=7)
    fresh.load_state_dict(optimizer_state)
    again.load_state_dict(saved)
    assert again.preview(4) == pytest.approx(ahead)


def test_schedules_refuse_what_makes_no_sense():
    ours, _ = pair()
    plain = optim.Adagrad([Tensor([1.0])])
    for make in (lambda: L.OneCycleLR(ours, 1.0), lambda: L.OneCycleLR(plain, 1.0, total_steps=3),
                 lambda: L.LinearLR(ours, start_factor=0.0), lambda: L.LambdaLR(ours, [abs]),
                 lambda: L.StepLR("optimizer", 3),
                 lambda: L.ReduceLROnPlateau(ours, mode="up"), lambda: L.SequentialLR(ours, [], [1]),
                 lambda: L.ReduceLROnPlateau(ours).step()):
        with pytest.raises(InputError):
            make()
    cycle = L.OneCycleLR(ours, 1.0, total_steps=2)
    cycle.step()
    cycle.step()
    with pytest.raises(InputError, match="the cycle is over"):
        cycle.step()


# -- clipping ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("norm", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("most", [0.5, 100.0])
def test_clipping_by_norm(rng, norm, most):
    arrays = [rng.standard_normal(s).astype(np.float32) for s in [(4, 3), (3,), ()]]
    ours, theirs = [Tensor(a) for a in arrays], [torch.tensor(a, requires_grad=True) for a in arrays]
    unused = Tensor([1.0])
    for p, q, a in zip(ours, theirs, arrays):
        p.grad, q.grad = Tensor(a * 2), torch.tensor(a * 2)
    length = optim.clip_grad_norm_([*ours, unused], most, norm)
    expected = torch.nn.utils.clip_grad_norm_(theirs, most, norm)
    np.testing.assert_allclose(length.item(), expected.item(), rtol=1e-5)
    for p, q in zip(ours, theirs):
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=2e-5)
    assert unused.grad is None


def test_clipping_by_value(rng):
    p, q = Tensor([1.0, 2.0]), torch.tensor([1.0, 2.0], requires_grad=True)
    p.grad, q.grad = Tensor([3.0, -0.1]), torch.tensor([3.0, -0.1])
    optim.clip_grad_value_(p, 0.5)
    torch.nn.utils.clip_grad_value_(q, 0.5)
    assert p.grad.numpy() == pytest.approx(q.grad.numpy())


def test_clipping_is_part_of_the_step(rng):
    x = Tensor([3.0, 4.0])
    optimizer = optim.SGD([x], lr=1.0)
    (x * x).sum().backward()
    before = GlobalCounters.kernel_count
    optim.clip_grad_norm_([x], 1.0)
    assert GlobalCounters.kernel_count == before
    optimizer.step()
    np.testing.assert_allclose(x.numpy(), [2.4, 3.2], rtol=1e-5)


def test_gradients_that_are_not_finite():
    x = Tensor([1.0])
    x.grad = Tensor([math.inf])
    with pytest.raises(nn.optim.clip.GradientError, match="not finite"):
        optim.clip_grad_norm_([x], 1.0, error_if_nonfinite=True)


def test_a_rate_may_be_a_number_of_numpy():
    for number in (np.uint8(2), np.float32(2.0), 2.0):
        schedule = L.OneCycleLR(optim.SGD([Tensor([1.0])], lr=0.1), max_lr=number, total_steps=9)
        assert schedule.max_lrs == [2.0]
