"""Export the public names of runtime/backend.py, devices.py and user_device.py: devices, and the parts of a new one."""

from __future__ import annotations

from glassgrad.engine.buffer import Buffer
from glassgrad.runtime.backend import Backend, DeviceRecord
from glassgrad.runtime.devices import Device
from glassgrad.runtime.user_device import Allocator, Compiled, CompileError, Compiler, MallocAllocator, Runner

LRUAllocator = Allocator

__all__ = ["Device", "DeviceRecord", "Backend", "Compiled", "Allocator", "LRUAllocator", "MallocAllocator", "Compiler",
           "CompileError", "Runner", "Buffer"]
