"""Switch dropout and batchnorm between training and inference. In: a mode. Out: the setting TRAINING, changed for a
block or for good.

`Tensor.train()` as a statement, `with Tensor.train():`, `@Tensor.train()`, `Tensor.training = True` and
`Context(TRAINING=1)` all set the same setting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from glassgrad.base.settings import Context, settings


class Training:
    """Set training (or not) from now on, until the block ends, or while a function runs."""

    def __init__(self, mode: bool = True):
        self.context = Context(TRAINING=int(mode))
        self.context.__enter__()     # at once, for use as a plain statement

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *problem: object) -> None:
        self.context.__exit__(*problem)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self.context.__exit__()      # a decorator switches when the function runs, not when it is defined
        return self.context(function)


class TrainingSwitch(type):
    """A metaclass that gives the tensor class itself an attribute `training`."""

    @property
    def training(cls) -> bool:
        return bool(settings.TRAINING)

    @training.setter
    def training(cls, mode: bool) -> None:
        Context(TRAINING=int(mode)).__enter__()
