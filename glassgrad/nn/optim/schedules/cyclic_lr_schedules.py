"""Change learning rates along curves: a cosine, cosines with restarts, one cycle or many; and one that falls on a
plateau. In, out: see `lr_schedules`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.nn.optim.optimizer import Optimizer
from glassgrad.nn.optim.schedules.lr_schedules import LRScheduler, rates_of_groups


class CosineAnnealingLR(LRScheduler):
    """From the rate down to eta_min and up again along a cosine, `T_max` epochs each way.

    >>> from glassgrad.nn.optim import SGD
    >>> [round(rate, 4) for rate in CosineAnnealingLR(SGD([Tensor([1.0])], lr=1.0), T_max=4).preview(5)]
    [1.0, 0.8536, 0.5, 0.1464, 0.0]
    """
    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1):
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def rate(self, now: float, base: float, epoch: float) -> float:
        if epoch == 0:
            return now
        if (epoch - 1 - self.T_max) % (2 * self.T_max) == 0:     # at the minimum the recurrence would divide by 0
            return now + (base - self.eta_min) * (1 - math.cos(math.pi / self.T_max)) / 2
        height = lambda at: 1 + math.cos(math.pi * at / self.T_max)
        return height(epoch) / height(epoch - 1) * (now - self.eta_min) + self.eta_min


class CosineAnnealingWarmRestarts(LRScheduler):
    """Down along a cosine, again and again: T_0 epochs the first time, T_mult times as many each time after.

    >>> from glassgrad.nn.optim import SGD
    >>> schedule = CosineAnnealingWarmRestarts(SGD([Tensor([1.0])], lr=1.0), T_0=2, T_mult=2)
    >>> [round(rate, 4) for rate in schedule.preview(7)]
    [1.0, 0.5, 1.0, 0.8536, 0.5, 0.1464, 1.0]
    """
    def __init__(self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1):
        if T_0 < 1 or T_mult < 1:
            raise InputError("a cosine needs a length", given=f"T_0={T_0}, T_mult={T_mult}",
                             expected="integers from 1",
                             fix="write T_0=10, for example")
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, eta_min
        super().__init__(optimizer, last_epoch)

    def step(self, epoch: float | None = None) -> None:
        """Advance by one epoch, or to `epoch`, which may be a fraction."""
        at = self.last_epoch + 1 if epoch is None else epoch
        self.last_epoch = math.floor(at)
        self._begin(self.base_lrs, at)

    def rate(self, now: float, base: float, epoch: float) -> float:
        length = self.T_0
        while epoch >= length:
            epoch -= length
            length *= self.T_mult
        return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * epoch / length)) / 2


class OneCycleLR(LRScheduler):
    """Up to max_lr and down again, once, over `total_steps`, while momentum moves the other way (Smith and Topin,
    2017).

    It starts at max_lr / div_factor and ends at that rate / final_div_factor. Call `step()` after every batch.

    >>> from glassgrad.nn.optim import SGD
    >>> schedule = OneCycleLR(SGD([Tensor([1.0])]), max_lr=1.0, total_steps=5, pct_start=0.4, div_factor=4,
    ...                       anneal_strategy="linear", cycle_momentum=False)
    >>> [round(rate, 4) for rate in schedule.preview(5)]
    [0.25, 1.0, 0.6667, 0.3334, 0.0]
    """
    def __init__(self, optimizer: Optimizer, max_lr: float | Sequence[float], total_steps: int | None = None,
                 epochs: int | None = None, steps_per_epoch: int | None = None, pct_start: float = 0.3,
                 anneal_strategy: str = "cos", cycle_momentum: bool = True, base_momentum: float = 0.85,
                 max_momentum: float = 0.95, div_factor: float = 25.0, final_div_factor: float = 1e4,
                 three_phase: bool = False, last_epoch: int = -1):
        if total_steps is None and epochs is not None and steps_per_epoch is not None:
            total_steps = epochs * steps_per_epoch
        if total_steps is None or total_steps < 1 or anneal_strategy not in ("cos", "linear"):
            raise InputError("OneCycleLR cannot be laid out",
                             given=f"total_steps={total_steps}, anneal_strategy={anneal_strategy!r}",
                             expected='total_steps (or epochs and steps_per_epoch), and "cos" or "linear"',
                             fix="write total_steps=epochs * len(batches)")
        self.max_lrs = rates_of_groups(optimizer, max_lr)
        self.total_steps, self.linear, self.cycle_momentum = total_steps, anneal_strategy == "linear", cycle_momentum
        start, low = [m / div_factor for m in self.max_lrs], [m / div_factor / final_div_factor for m in self.max_lrs]
        # (last step, rates at its start and end, momentum at its start and end)
        rise = (pct_start * total_steps - 1, start, self.max_lrs, max_momentum, base_momentum)
        self.phases = [rise, (total_steps - 1, self.max_lrs, low, base_momentum, max_momentum)]
        if three_phase:
            self.phases = [rise, (2 * pct_start * total_steps - 2, self.max_lrs, start, base_momentum, max_momentum),
                           (total_steps - 1, start, low, max_momentum, max_momentum)]
        if cycle_momentum:
            _need_momentum(optimizer)
        super().__init__(optimizer, last_epoch, start)

    def _begin(self, now: Sequence[float], epoch: float) -> None:
        if epoch > self.total_steps:
            raise InputError("the cycle is over", given=f"step {epoch}", expected=f"at most {self.total_steps} steps",
                             fix="make the schedule with a larger total_steps")
        ends = [phase[0] for phase in self.phases]
        at = next((i for i, last in enumerate(ends) if epoch <= last), len(ends) - 1)
        begin = ends[at - 1] if at else 0.0
        last, rates, next_rates, momentum, next_momentum = self.phases[at]
        part = (epoch - begin) / (last - begin) if last != begin else 1.0
        self._set([self._between(a, b, part) for a, b in zip(rates, next_rates)])
        if self.cycle_momentum:
            _set_momentum(self.optimizer, self._between(momentum, next_momentum, part))

    def _between(self, start: float, end: float, part: float) -> float:
        if self.linear:
            return start + (end - start) * part
        return end + (start - end) / 2 * (1 + math.cos(math.pi * part))


class CyclicLR(LRScheduler):
    """Between base_lr and max_lr, up and down again and again, while momentum moves the other way (Smith, 2015).

    `mode="triangular2"` halves the height in each cycle, "exp_range" scales it by gamma^step, and `scale_fn` is a
    function of the cycle or the step (`scale_mode`) that scales it. Call `step()` after every batch.

    >>> from glassgrad.nn.optim import SGD
    >>> optimizer = SGD([Tensor([1.0])], momentum=0.9)
    >>> CyclicLR(optimizer, base_lr=0.0, max_lr=1.0, step_size_up=2, mode="triangular2").preview(7)
    [0.0, 0.5, 1.0, 0.5, 0.0, 0.25, 0.5]
    """
    def __init__(self, optimizer: Optimizer, base_lr: float | Sequence[float], max_lr: float | Sequence[float],
                 step_size_up: int = 2000, step_size_down: int | None = None, mode: str = "triangular",
                 gamma: float = 1.0, scale_fn: Callable[[float], float] | None = None, scale_mode: str = "cycle",
                 cycle_momentum: bool = True, base_momentum: float = 0.8, max_momentum: float = 0.9,
                 last_epoch: int = -1):
        if mode not in ("triangular", "triangular2", "exp_range") or scale_mode not in ("cycle", "iterations") \
                or step_size_up < 1:
            raise InputError("CyclicLR cannot be laid out",
                             given=f"mode={mode!r}, scale_mode={scale_mode!r}, step_size_up={step_size_up}",
                             expected='"triangular", "triangular2" or "exp_range"; "cycle" or "iterations"; 1 or more',
                             fix="leave them at their defaults")
        self.max_lrs = rates_of_groups(optimizer, max_lr)
        self.up, self.length = step_size_up, step_size_up + (step_size_down or step_size_up)
        self.mode, self.gamma, self.functions, self.by_cycle = mode, gamma, scale_fn, scale_mode == "cycle"
        self.cycle_momentum, self.base_momentum, self.max_momentum = cycle_momentum, base_momentum, max_momentum
        if cycle_momentum:
            _need_momentum(optimizer)
        super().__init__(optimizer, last_epoch, rates_of_groups(optimizer, base_lr))

    def _scale(self, cycle: float, epoch: float) -> Any:
        if self.functions is not None:
            return self.functions(cycle if self.by_cycle else epoch)
        return {"triangular": 1.0, "triangular2": 0.5 ** (cycle - 1), "exp_range": self.gamma ** epoch}[self.mode]

    def _begin(self, now: Sequence[float], epoch: float) -> None:
        cycle, part = math.floor(1 + epoch / self.length), epoch % self.length
        height = part / self.up if part <= self.up else (self.length - part) / (self.length - self.up)
        height *= self._scale(cycle, epoch)
        self._set([base + (top - base) * height for base, top in zip(self.base_lrs, self.max_lrs)])
        if self.cycle_momentum:
            _set_momentum(self.optimizer, self.max_momentum - (self.max_momentum - self.base_momentum) * height)


def _need_momentum(optimizer: Optimizer) -> None:
    if any("betas" not in g and "momentum" not in g for g in optimizer.param_groups):
        raise InputError("the optimizer has no momentum to cycle", given=type(optimizer).__name__,
                         expected="an optimizer that has momentum or betas", fix="write cycle_momentum=False")


def _set_momentum(optimizer: Optimizer, value: float) -> None:
    for group in optimizer.param_groups:
        if "betas" in group:
            group["betas"] = (value, *group["betas"][1:])
        else:
            group["momentum"] = value


class ReduceLROnPlateau(LRScheduler):
    """Multiply the rate by `factor` when a metric has not improved for more than `patience` epochs: `step(loss)`.

    >>> from glassgrad.nn.optim import SGD
    >>> schedule = ReduceLROnPlateau(SGD([Tensor([1.0])], lr=1.0), factor=0.5, patience=1)
    >>> for loss in (3.0, 2.0, 2.0, 2.0): schedule.step(loss)
    >>> schedule.get_last_lr()
    [0.5]
    """
    def __init__(self, optimizer: Optimizer, mode: str = "min", factor: float = 0.1, patience: int = 10,
                 threshold: float = 1e-4, threshold_mode: str = "rel", cooldown: int = 0,
                 min_lr: float | Sequence[float] = 0.0, eps: float = 1e-8):
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs") or not factor < 1:
            raise InputError("ReduceLROnPlateau was given settings it does not have",
                             given=f"mode={mode!r}, threshold_mode={threshold_mode!r}, factor={factor}",
                             expected='"min" or "max", "rel" or "abs", a factor below 1', fix="check the settings")
        self.factor, self.patience, self.cooldown, self.eps = factor, patience, cooldown, eps
        self.mode, self.threshold, self.threshold_mode = mode, threshold, threshold_mode
        self.min_lrs = rates_of_groups(optimizer, min_lr)
        self.best, self.bad_epochs, self.cooling = (math.inf if mode == "min" else -math.inf), 0, 0
        super().__init__(optimizer)

    def rate(self, now: float, base: float, epoch: float) -> float:
        return now

    def step(self, metrics: Any = None) -> None:  # type: ignore[override]
        """End an epoch with this metric, a number or a tensor of one element."""
        if metrics is None:
            raise InputError("ReduceLROnPlateau watches a measure", given="step()", expected="step(loss)",
                             fix="pass the loss")
        current = float(metrics)
        self.last_epoch += 1
        better = self._is_better(current)
        self.best = current if better else self.best
        self.bad_epochs = 0 if better else self.bad_epochs + 1
        if self.cooling > 0:
            self.cooling -= 1
            self.bad_epochs = 0
        if self.bad_epochs > self.patience:
            self.cooling, self.bad_epochs = self.cooldown, 0
            for group, least in zip(self.optimizer.param_groups, self.min_lrs):
                new = max(group["lr"] * self.factor, least)
                if group["lr"] - new > self.eps:
                    group["lr"] = new

    def _is_better(self, value: float) -> bool:
        way = 1 if self.mode == "max" else -1
        least = self.best + way * self.threshold if self.threshold_mode == "abs" else \
            self.best * (1 + way * self.threshold)
        return value * way > least * way
