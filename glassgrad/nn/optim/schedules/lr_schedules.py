"""Change learning rates with time. In: an optimizer and `step()`. Out: new learning rates in its groups.

A schedule computes the next rate from the present one, so several can work on one optimizer, as in PyTorch, and one can
continue another (`last_epoch` says after which epoch). Rates are tensors that are inputs of a step, not constants, so
changing them compiles nothing. Call `step()` outside of jitted functions.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.nn.modules.argument_checks import check_call, signature_of
from glassgrad.nn.optim.optimizer import Optimizer


def rates_of_groups(optimizer: Optimizer, rate: float | Sequence[float]) -> list[float]:
    """Return a rate for each parameter group, from one number for all or a list of one each."""
    count = len(optimizer.param_groups)
    rates = list(map(float, rate)) if isinstance(rate, Sequence) else [float(rate)] * count
    if len(rates) != count:
        raise InputError("each group of parameters has a rate", given=f"{len(rates)} rates",
                         expected=f"{count}, or one number for all",
                         fix="write as many as the optimizer has param_groups")
    return rates


class LRScheduler:
    """The base of schedules. A subclass defines `rate(now, base, epoch)`: the rate after `now`, when `epoch` begins.

    >>> from glassgrad.nn.optim import SGD
    >>> class Halving(LRScheduler):
    ...     def rate(self, now, base, epoch): return base if epoch == 0 else now / 2
    >>> schedule = Halving(SGD([Tensor([1.0])], lr=1.0))
    >>> schedule.step(); schedule.get_last_lr(), schedule.preview(3)
    ([0.5], [0.5, 0.25, 0.125])
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        given = (*args[:1], *([kwargs["optimizer"]] if "optimizer" in kwargs else []))
        first = next(iter(cls.__init__.__annotations__), "")
        if given and first == "optimizer" and not isinstance(given[0], Optimizer):
            raise InputError("a schedule needs an optimizer", given=f"{given[0]!r} of type {type(given[0]).__name__}",
                             expected="an optimizer of nn.optim", fix=f"write {cls.__name__}(optimizer, ...)")
        if args or kwargs:                          # copy and pickle call this without arguments first
            check_call(cls, signature_of(cls.__init__), "nn.optim.lr_scheduler", args, kwargs)
        return super().__new__(cls)

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1, start: Sequence[float] | None = None):
        self.optimizer, self.last_epoch = optimizer, last_epoch + 1
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1 and start is not None:
                group["initial_lr"] = start[i]
            elif last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise InputError("a schedule that goes on needs the rate it once began with",
                                 given=f"last_epoch={last_epoch} and a group without initial_lr",
                                 expected='"initial_lr" in every group of parameters',
                                 fix="load the optimizer's state first: optimizer.load_state_dict(saved)")
        self.base_lrs: list[float] = [group["initial_lr"] for group in optimizer.param_groups]
        if last_epoch == -1:                         # otherwise the optimizer already has the rate of that epoch
            self._begin(self.get_last_lr(), 0)

    def rate(self, now: float, base: float, epoch: float) -> float:
        """Return the learning rate at the start of an epoch, from the rate before and the optimizer's initial rate."""
        raise NotImplementedError(f"{type(self).__name__} has no rate")

    def step(self) -> None:
        """Advance by one epoch (or batch, as you count)."""
        self.last_epoch += 1
        self._begin(self.get_last_lr(), self.last_epoch)

    def restart(self) -> None:
        """Begin again with epoch 0 and the first learning rates."""
        self.last_epoch = 0
        self._begin(self.base_lrs, 0)

    def get_last_lr(self) -> list[float]:
        """Return the learning rate of each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def preview(self, epochs: int) -> list[float]:
        """Return the first group's rates of this and the following epochs; change nothing."""
        groups = self.optimizer.param_groups
        saved, settings = copy.deepcopy(self.state_dict()), [dict(group) for group in groups]
        rates = self.get_last_lr()[:1]
        for _ in range(epochs - 1):
            self.step()
            rates.append(self.get_last_lr()[0])
        self.load_state_dict(saved)
        for group, values in zip(groups, settings):
            group.take(values)
        return rates

    def _begin(self, now: Sequence[float], epoch: float) -> None:
        """Set the rates of an epoch."""
        self._set([self.rate(rate, base, epoch) for rate, base in zip(now, self.base_lrs)])

    def _set(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates):
            if rate != group["lr"]:
                group["lr"] = rate

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the schedule, as plain numbers."""
        return {k: v for k, v in vars(self).items() if k not in ("optimizer", "functions")}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; the rates themselves are the optimizer's."""
        vars(self).update(saved)


class LambdaLR(LRScheduler):
    """The first rate times a function of the epoch (or one function per group).

    >>> from glassgrad.nn.optim import SGD
    >>> LambdaLR(SGD([Tensor([1.0])], lr=1.0), lambda epoch: 1 / (1 + epoch)).preview(4)
    [1.0, 0.5, 0.3333333333333333, 0.25]
    """
    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
                 last_epoch: int = -1):
        groups = len(optimizer.param_groups)
        self.functions: list[Any] = [lr_lambda] * groups if callable(lr_lambda) else list(lr_lambda)
        if len(self.functions) != groups:
            raise InputError(f"{type(self).__name__} needs one function per group",
                             given=f"{len(self.functions)} functions for {groups} groups",
                             expected="one function, or one per group", fix="check the list")
        super().__init__(optimizer, last_epoch)

    def _begin(self, now: Sequence[float], epoch: float) -> None:
        self._set([base * function(epoch) for base, function in zip(self.base_lrs, self.functions)])


class MultiplicativeLR(LambdaLR):
    """The previous rate times a function of the epoch.

    >>> from glassgrad.nn.optim import SGD
    >>> MultiplicativeLR(SGD([Tensor([1.0])], lr=1.0), lambda epoch: 1 / epoch).preview(4)
    [1.0, 1.0, 0.5, 0.16666666666666666]
    """
    def _begin(self, now: Sequence[float], epoch: float) -> None:
        self._set([rate * function(epoch) if epoch else rate for rate, function in zip(now, self.functions)])


class StepLR(LRScheduler):
    """Multiply the rate by `gamma` every `step_size` epochs.

    >>> from glassgrad.nn.optim import SGD
    >>> StepLR(SGD([Tensor([1.0])], lr=1.0), step_size=2, gamma=0.5).preview(5)
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """
    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1):
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, now: float, base: float, epoch: float) -> float:
        return now * self.gamma if epoch and epoch % self.step_size == 0 else now


class MultiStepLR(LRScheduler):
    """Multiply the rate by `gamma` at each milestone.

    >>> from glassgrad.nn.optim import SGD
    >>> MultiStepLR(SGD([Tensor([1.0])], lr=1.0), milestones=[1, 3], gamma=0.5).preview(5)
    [1.0, 0.5, 0.5, 0.25, 0.25]
    """
    def __init__(self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1, last_epoch: int = -1):
        self.milestones: list[float] = sorted(milestones)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, now: float, base: float, epoch: float) -> float:
        return now * self.gamma ** self.milestones.count(epoch) if epoch else now


class ExponentialLR(LRScheduler):
    """Multiply the rate by `gamma` every epoch.

    >>> from glassgrad.nn.optim import SGD
    >>> ExponentialLR(SGD([Tensor([1.0])], lr=1.0), gamma=0.5).preview(4)
    [1.0, 0.5, 0.25, 0.125]
    """
    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1):
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, now: float, base: float, epoch: float) -> float:
        return now * self.gamma if epoch else now


class ConstantLR(LRScheduler):
    """Multiply the rate by `factor` for the first `total_iters` epochs.

    >>> from glassgrad.nn.optim import SGD
    >>> ConstantLR(SGD([Tensor([1.0])], lr=1.0), factor=0.5, total_iters=2).preview(4)
    [0.5, 0.5, 1.0, 1.0]
    """
    def __init__(self, optimizer: Optimizer, factor: float = 1 / 3, total_iters: int = 5, last_epoch: int = -1):
        if not 0 < factor <= 1:
            raise InputError("ConstantLR needs a factor above 0 and up to 1", given=f"factor={factor}",
                             expected="such as 0.5",
                             fix="for a larger rate give the optimizer a larger one")
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def rate(self, now: float, base: float, epoch: float) -> float:
        return now * self.factor if epoch == 0 else now / self.factor if epoch == self.total_iters else now


class LinearLR(LRScheduler):
    """Warm-up: from start_factor to end_factor times the rate, in equal steps over `total_iters` epochs.

    >>> from glassgrad.nn.optim import SGD
    >>> LinearLR(SGD([Tensor([1.0])], lr=1.0), start_factor=0.25, total_iters=3).preview(5)
    [0.25, 0.5, 0.75, 1.0, 1.0]
    """
    def __init__(self, optimizer: Optimizer, start_factor: float = 1 / 3, end_factor: float = 1.0,
                 total_iters: int = 5, last_epoch: int = -1):
        if not 0 < start_factor <= 1 or not 0 <= end_factor <= 1:
            raise InputError("LinearLR needs factors from 0 to 1, and does not start at 0",
                             given=f"start_factor={start_factor}, end_factor={end_factor}",
                             expected="such as 0.1 and 1.0",
                             fix="start with a small number instead of 0: start_factor=1e-3")
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def _factor(self, epoch: float) -> float:
        return self.start_factor + (self.end_factor - self.start_factor) * epoch / self.total_iters

    def rate(self, now: float, base: float, epoch: float) -> float:
        if epoch == 0:
            return now * self.start_factor
        return now if epoch > self.total_iters else now * (self._factor(epoch) / self._factor(epoch - 1))


class PolynomialLR(LRScheduler):
    """Lower the rate to 0 along (1 - epoch / total_iters)^power.

    >>> from glassgrad.nn.optim import SGD
    >>> PolynomialLR(SGD([Tensor([1.0])], lr=1.0), total_iters=4).preview(6)
    [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """
    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1):
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def rate(self, now: float, base: float, epoch: float) -> float:
        if epoch == 0 or epoch > self.total_iters:
            return now
        share: float = ((self.total_iters - epoch) / (self.total_iters - epoch + 1)) ** self.power
        return now * share


class _Schedules(LRScheduler):
    """The base of schedules made of others, whose states are part of its state."""
    schedulers: list[LRScheduler]

    def state_dict(self) -> dict[str, Any]:
        return {"last_epoch": self.last_epoch, "schedulers": [s.state_dict() for s in self.schedulers]}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.last_epoch = saved["last_epoch"]
        for schedule, state in zip(self.schedulers, saved["schedulers"]):
            schedule.load_state_dict(state)


class ChainedScheduler(_Schedules):
    """Several schedules of one optimizer at once: each changes the rate that the one before set.

    >>> from glassgrad.nn.optim import SGD
    >>> optimizer = SGD([Tensor([1.0])], lr=1.0)
    >>> both = [ConstantLR(optimizer, factor=0.5, total_iters=2), ExponentialLR(optimizer, gamma=0.5)]
    >>> ChainedScheduler(both).preview(4)
    [0.5, 0.25, 0.25, 0.125]
    """
    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None):
        self.schedulers = list(schedulers)
        optimizer = self.schedulers[0].optimizer if optimizer is None and self.schedulers else optimizer
        if not self.schedulers or any(s.optimizer is not optimizer for s in self.schedulers):
            raise InputError("these schedules cannot work together", given=f"{len(self.schedulers)} schedules",
                             expected="one or more, all of one optimizer", fix="check what each was made with")
        super().__init__(self.schedulers[0].optimizer)

    def rate(self, now: float, base: float, epoch: float) -> float:
        return now

    def step(self) -> None:
        self.last_epoch += 1
        for schedule in self.schedulers:
            schedule.step()

    def restart(self) -> None:
        self.last_epoch = 0
        for schedule in self.schedulers:
            schedule.restart()


class SequentialLR(_Schedules):
    """One schedule after another; each begins at its milestone.

    >>> from glassgrad.nn.optim import SGD
    >>> optimizer = SGD([Tensor([1.0])], lr=1.0)
    >>> warm, down = LinearLR(optimizer, start_factor=0.5, total_iters=2), ExponentialLR(optimizer, gamma=0.5)
    >>> SequentialLR(optimizer, [warm, down], milestones=[2]).preview(5)
    [0.5, 0.75, 1.0, 0.5, 0.25]
    """
    def __init__(self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int]):
        if len(milestones) != len(schedulers) - 1 or any(s.optimizer is not optimizer for s in schedulers):
            raise InputError("these schedules cannot follow one another",
                             given=f"{len(schedulers)} schedules, milestones={list(milestones)}",
                             expected="schedules of this optimizer, and one milestone between each two",
                             fix="write milestones=[warm_up_steps] for two schedules")
        self.schedulers, self.milestones = list(schedulers), list(milestones)
        super().__init__(optimizer)
        self.schedulers[0].restart()

    def rate(self, now: float, base: float, epoch: float) -> float:
        return base

    def restart(self) -> None:
        self.last_epoch = 0
        self.schedulers[0].restart()

    def step(self) -> None:
        self.last_epoch += 1
        at = bisect_right(self.milestones, self.last_epoch)
        if at and self.milestones[at - 1] == self.last_epoch:
            self.schedulers[at].restart()
        else:
            self.schedulers[at].step()
