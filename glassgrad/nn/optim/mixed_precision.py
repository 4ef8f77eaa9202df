"""Train in mixed precision: products in 16 bits, sums and weights in float32. In: a loss. Out: the same, faster.

    scaler = GradScaler()
    with autocast(dtype=dtypes.float16):
        loss = model(x).cross_entropy(y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

Weights stay float32: `autocast` casts only the inputs of matrix products and convolutions. (Weights that are float16
themselves get a float32 copy in the optimizer, see `Optimizer`.) bfloat16 has float32's range and needs no scaler.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ContextDecorator
from typing import Any

from glassgrad.base.errors import GradientError, InputError
from glassgrad.compiler.graph import DType, dtype_by_name, dtypes
from glassgrad.nn.optim.optimizer import Optimizer
from glassgrad.tensor.autograd import autocast as precision
from glassgrad.tensor.tensor import Tensor

__all__ = ["autocast", "GradScaler"]


class autocast(ContextDecorator):
    """Compute products in 16 bits within the block, or the decorated function: matrix products and convolutions of
    float32 cast their inputs to `dtype` and return it; softmax, norms and losses return float32. A device's name may
    come first, as in PyTorch.

    >>> x = Tensor([[1.0, 2.0]])
    >>> with autocast(dtype=dtypes.bfloat16):
    ...     y = x @ x.T
    >>> y.dtype, (x @ x.T).dtype
    (dtypes.bfloat16, dtypes.float32)
    """

    def __init__(self, device_type: str | DType | None = None, dtype: DType | str | None = None,
                 enabled: bool = True):
        if isinstance(device_type, DType) and dtype is None:
            dtype = device_type
        chosen = dtypes.bfloat16 if dtype is None else dtype_by_name(dtype)
        if chosen not in (dtypes.float16, dtypes.bfloat16, dtypes.float32):
            raise InputError("autocast computes in a float type of 16 bits", given=f"dtype={chosen.name}",
                             expected="dtypes.float16 or dtypes.bfloat16",
                             fix="write autocast(dtype=dtypes.bfloat16)")
        self.dtype = chosen if enabled and chosen is not dtypes.float32 else None
        self._before: list[DType | None] = []

    def __enter__(self) -> autocast:
        self._before.append(precision.change(self.dtype))
        return self

    def __exit__(self, *problem: object) -> None:
        precision.change(self._before.pop())


class GradScaler:
    """Keeps float16 gradients from underflowing: the loss is multiplied by a scale and the gradients are divided by it.
    A step whose gradients overflow changes nothing and halves the scale; many good steps in a row double it.

    Nothing is read back: whether a step counts is decided in the step's own kernels, so a jit can capture it.

    >>> from glassgrad.nn.optim import SGD
    >>> x = Tensor([1.0, 2.0])
    >>> optimizer, scaler = SGD([x], lr=0.5), GradScaler(init_scale=8.0)
    >>> _ = scaler.scale(x.sum()).backward()
    >>> x.grad.tolist()
    [8.0, 8.0]
    >>> scaler.step(optimizer); scaler.update(); x.tolist(), scaler.get_scale()
    ([0.5, 1.5], 8.0)
    """

    def __init__(self, device: str | None = None, init_scale: float = 65536.0, growth_factor: float = 2.0,
                 backoff_factor: float = 0.5, growth_interval: int = 2000, enabled: bool = True):
        if isinstance(device, (int, float)):        # PyTorch's older order, without a device
            device, init_scale = None, float(device)
        if not (init_scale > 0 and growth_factor > 1 and 0 < backoff_factor < 1 and growth_interval >= 1):
            raise InputError("GradScaler was given numbers it cannot work with",
                             given=f"init_scale={init_scale}, growth_factor={growth_factor}, "
                                   f"backoff_factor={backoff_factor}, "
                                   f"growth_interval={growth_interval}",
                             expected="a scale above 0, growth above 1, backoff between 0 and 1, an interval from 1",
                             fix="leave them at their defaults")
        self.growth_factor, self.backoff_factor, self.growth_interval = growth_factor, backoff_factor, growth_interval
        self.enabled = enabled
        # PyTorch's "cuda" is whatever accelerator there is: the default device
        place = device if device is not None and device.upper() != "CUDA" else None
        self._scale = Tensor([init_scale], device=place, requires_grad=False)
        self._good_steps = Tensor([0], dtype=dtypes.int32, device=place, requires_grad=False)
        self._finite: dict[int, Tensor] = {}         # {id of an optimizer: whether its unscaled gradients are finite}
        self._stepped: list[Tensor] = []             # whether each step since the last update was finite

    def is_enabled(self) -> bool:
        """Whether scaling is on."""
        return self.enabled

    def get_scale(self) -> float:
        """The present scale."""
        return float(self._scale.item()) if self.enabled else 1.0

    def scale(self, loss: Any) -> Any:
        """Return the loss (or several) times the scale, for `backward`."""
        if not self.enabled:
            return loss
        if isinstance(loss, (list, tuple)):
            return type(loss)(self.scale(each) for each in loss)
        return loss * self._scale.reshape(()).to(loss.device)

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of an optimizer by the scale now, to clip them before the step."""
        if not self.enabled:
            return
        if id(optimizer) in self._finite:
            raise GradientError("these gradients were divided by the scale already", given="unscale_() twice",
                                expected="once between two updates", fix="call update() after step()")
        finite: Tensor | None = None
        for p in optimizer.params:
            if p.grad is None:
                continue
            inverse = self._scale.reshape(()).to(p.device).reciprocal()
            wide = p.grad.cast(p.grad.dtype.accumulator)
            sound = wide.isfinite().all()
            finite = sound if finite is None else finite & sound.to(finite.device)
            p.grad = (wide * inverse).cast(p.grad.dtype)
        if finite is None:
            raise GradientError("there are no gradients to divide by the scale",
                                given="parameters whose grad is None",
                                expected="at least one parameter with a gradient",
                                fix="call scaler.scale(loss).backward() first")
        self._finite[id(optimizer)] = finite

    def step(self, optimizer: Optimizer) -> None:
        """Do a step of the optimizer with the gradients divided by the scale; nothing changes unless all are finite."""
        if not self.enabled:
            optimizer.step()
            return
        if id(optimizer) not in self._finite:
            self.unscale_(optimizer)
        finite = self._finite[id(optimizer)]
        changed = optimizer.schedule_step(only_if=finite)
        finite.realize(*changed)
        self._stepped.append(finite)

    def update(self, new_scale: float | None = None) -> None:
        """Lower the scale if a step since the last update overflowed; raise it after `growth_interval` good updates."""
        if not self.enabled:
            return
        if new_scale is not None:
            self._scale.assign(Tensor([new_scale], device=self._scale.device))
        elif not self._stepped:
            raise GradientError("there was no step to learn from", given="update() without step()",
                                expected="a step before it",
                                fix="call scaler.step(optimizer) first")
        else:
            finite = self._stepped[0]
            for other in self._stepped[1:]:
                finite = finite & other.to(finite.device)
            finite = finite.reshape(1).to(self._scale.device)
            good = finite.where(self._good_steps + 1, 0)
            grown = good == self.growth_interval
            factor = grown.where(self.growth_factor, finite.where(1.0, self.backoff_factor))
            self._scale.assign((self._scale * factor).cast(self._scale.dtype))
            self._good_steps.assign(grown.where(0, good).cast(dtypes.int32))
            self._scale.realize(self._good_steps)
        self._finite.clear()
        self._stepped.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the scale, its factors and the count of good steps, in PyTorch's layout; empty if scaling is off."""
        return {} if not self.enabled else {
            "scale": self.get_scale(), "growth_factor": self.growth_factor, "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval, "_growth_tracker": int(self._good_steps.item())}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned, or PyTorch's."""
        if not self.enabled:
            return
        if not saved:
            raise InputError("the saved GradScaler was off", given="an empty state",
                             expected="the state of one that was on",
                             fix="save it with enabled=True, or make this one with enabled=False")
        self.growth_factor, self.backoff_factor = saved["growth_factor"], saved["backoff_factor"]
        self.growth_interval = saved["growth_interval"]
        self._scale.assign(Tensor([saved["scale"]], device=self._scale.device))
        self._good_steps.assign(Tensor([saved["_growth_tracker"]], dtype=dtypes.int32, device=self._scale.device))
