"""torch.cuda on a machine that has none. In: the questions scripts ask. Out: no, none, nothing to wait for."""

from __future__ import annotations

from typing import Any

from glassgrad.nn.optim import mixed_precision as amp

__all__ = ["amp", "current_device", "device_count", "empty_cache", "is_available", "manual_seed", "manual_seed_all",
           "max_memory_allocated", "memory_allocated", "reset_peak_memory_stats", "synchronize"]


def is_available() -> bool: return False
def device_count() -> int: return 0
def current_device() -> int: return 0
def empty_cache() -> None: """Nothing is kept that could be freed."""
def synchronize(device: Any = None) -> None: """Nothing runs behind anybody's back: reading a value waits for it."""
def manual_seed(seed: int) -> None: """`torch.manual_seed` starts the one stream there is."""
def manual_seed_all(seed: int) -> None: """`torch.manual_seed` starts the one stream there is."""
def memory_allocated(device: Any = None) -> int: return 0
def max_memory_allocated(device: Any = None) -> int: return 0
def reset_peak_memory_stats(device: Any = None) -> None: """Nothing is counted here; see GlobalCounters."""
