"""Provide torch.cuda: whether the device CUDA opens, waiting for it, its memory. In, out: plain values."""

from __future__ import annotations

from typing import Any

from glassgrad.nn.optim import mixed_precision as amp
from glassgrad.runtime.devices import Device

__all__ = ["amp", "current_device", "device_count", "empty_cache", "is_available", "manual_seed", "manual_seed_all",
           "max_memory_allocated", "memory_allocated", "reset_peak_memory_stats", "synchronize"]


def is_available() -> bool:
    """Return whether there is an NVIDIA GPU, with its driver and compiler."""
    return Device.is_available("CUDA")


def empty_cache() -> None:
    """Return pooled memory to the driver."""
    if is_available():
        Device["CUDA"].empty_cache()


def synchronize(device: Any = None) -> None:
    """Wait until all kernels have run. (Reading a value waits for it in any case.)"""
    if is_available():
        Device["CUDA"].synchronize()


def device_count() -> int: return int(is_available())
def current_device() -> int: return 0
def manual_seed(seed: int) -> None: """`torch.manual_seed` starts the one stream there is."""
def manual_seed_all(seed: int) -> None: """`torch.manual_seed` starts the one stream there is."""
def memory_allocated(device: Any = None) -> int: return 0
def max_memory_allocated(device: Any = None) -> int: return 0
def reset_peak_memory_stats(device: Any = None) -> None: """Nothing is counted here; see GlobalCounters."""
