"""Devices, and what a new one is made of. The parts live in runtime/; this is where their users look for them."""

from __future__ import annotations

from glassgrad.engine.buffer import Buffer
from glassgrad.runtime.devices import Device
from glassgrad.runtime.user_device import Allocator, Compiled, CompileError, Compiler, MallocAllocator, Runner

LRUAllocator = Allocator

__all__ = [
    "Device",
    "Compiled",
    "Allocator",
    "LRUAllocator",
    "MallocAllocator",
    "Compiler",
    "CompileError",
    "Runner",
    "Buffer",
]
