"""A learning rate that falls when training stands still. In: a measure per epoch. Out: see `schedule`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.nn.optim.optimizer import Optimizer
from glassgrad.nn.optim.schedules.schedule import LRScheduler


class ReduceLROnPlateau(LRScheduler):
    """Times `factor` when a measure has not improved for more than `patience` epochs: `step(loss)`.

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
        groups = len(optimizer.param_groups)
        self.min_lrs = [float(min_lr)] * groups if isinstance(min_lr, (int, float)) else list(min_lr)
        self.best, self.bad_epochs, self.cooling = (math.inf if mode == "min" else -math.inf), 0, 0
        super().__init__(optimizer)

    def rate(self, now: float, base: float, epoch: float) -> float:
        return now

    def step(self, metrics: Any = None) -> None:  # type: ignore[override]
        """An epoch has ended with this measure, a number or a tensor of one element."""
        if metrics is None:
            raise InputError("ReduceLROnPlateau watches a measure", given="step()", expected="step(loss)",
                             fix="hand in the loss")
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
        if self.threshold_mode == "abs":
            return value < self.best - self.threshold if self.mode == "min" else value > self.best + self.threshold
        if self.mode == "min":
            return value < self.best * (1 - self.threshold)
        return value > self.best * (1 + self.threshold)
