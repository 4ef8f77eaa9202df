"""Devices, where the engine's users look for them."""

from glassgrad.runtime.device import Device

__all__ = ["Device"]
