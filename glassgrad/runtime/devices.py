"""Open devices by name. In: a name. Out: an opened device, once. `Device.DEFAULT` is the device of tensors without one.

A record in `Device.records` has everything about a device before it is opened. The default device is chosen in this
order: an assignment to `Device.DEFAULT`, the setting DEV, a variable such as CLANG=1, the variable DEVICE, then CPU (in
a browser, WASM). If llvmlite is missing, CPU uses a C compiler, and without one the interpreter, each with a one-line
notice.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

from glassgrad.base.errors import Bug, DeviceError, GlassgradError
from glassgrad.base.fork_locks import held_at_fork
from glassgrad.base.packages import find_spec
from glassgrad.base.settings import State, current_state, settings
from glassgrad.runtime.backend import Backend, DeviceRecord
from glassgrad.runtime.disk_device import PREFIX, FileDevice, on_disk

_opening = held_at_fork(threading.RLock(), "device")      # a device imports its module, and opens once


def open_cpu(name: str) -> Backend:
    """Open the CPU device: with llvmlite, else with a C compiler, else as the interpreter."""
    from glassgrad.runtime.cpu.native_device import NativeDevice
    if find_spec("llvmlite") is not None:
        return NativeDevice(name, "llvm")
    from glassgrad.runtime.cpu.c_compiler import find_compiler
    try:
        command = find_compiler()
    except DeviceError:
        print("glassgrad: no llvmlite and no C compiler: CPU kernels are interpreted, slowly; pip install llvmlite",
              file=sys.stderr)
        return _open_python(name)
    print(f"glassgrad: no llvmlite: CPU kernels are compiled by {command[0]}; pip install llvmlite", file=sys.stderr)
    return NativeDevice(name, "c")


def open_clang(name: str) -> Backend:
    """Open the CLANG device: C, compiled by the system's compiler."""
    from glassgrad.runtime.cpu.c_compiler import find_compiler
    from glassgrad.runtime.cpu.native_device import NativeDevice
    find_compiler()
    return NativeDevice(name, "c")


def _opener(module: str, function: str) -> Callable[[str], Backend]:
    """Return a function that opens a device by a function or class of a module, which is imported when the device is
    first used."""
    def open_device(name: str) -> Backend:
        opened: Backend = getattr(import_module(f"glassgrad.runtime.{module}"), function)(name)
        return opened
    return open_device


def _open(open_it: Callable[[str], Any], name: str) -> Any:
    """Open a device. A broken driver or package may raise anything: that is a DeviceError too, so that the other
    devices can be listed."""
    try:
        return open_it(name)
    except (GlassgradError, ImportError, Bug):
        raise
    except Exception as error:
        raise DeviceError(f"the device {name} does not open", given=f"{type(error).__name__}: {error}",
                          expected="a driver and a package that work",
                          fix="install them anew, or use another device: DEV=CPU") from error


_open_python = _opener("python.python_device", "PythonDevice")

RECORDS = (
    DeviceRecord("CPU", open_cpu, ("LLVM",), "this machine's processor, on all cores", "LLVM IR",
                 "pip install llvmlite"),
    DeviceRecord("CLANG", open_clang, (), "this machine's processor, on all cores", "C",
                 "clang or gcc, or pip install ziglang"),
    DeviceRecord("PYTHON", _open_python, (), "an interpreter, which checks every access", "none: loop trees",
                 "pip install numpy"),
    DeviceRecord("OPENCL", _opener("gpu.opencl", "open_opencl"), ("CL", "GPU"),
                 "the first GPU of an OpenCL platform, or its first device", "OpenCL C",
                 "pip install pyopencl, and pocl-binary-distribution to run on the processor"),
    DeviceRecord("CUDA", _opener("gpu.cuda", "open_cuda"), ("NV", "GPU"), "the first NVIDIA GPU", "CUDA C++",
                 "NVIDIA's driver, and pip install nvidia-cuda-nvrtc"),
    DeviceRecord("WASM", _opener("wasm.wasm_device", "WasmDevice"), (),
                 "a WebAssembly engine in this process, on one core", "WebAssembly", "pip install wasmtime"),
    DeviceRecord("WEBGPU", _opener("gpu.webgpu", "open_webgpu"), ("WGPU",), "the GPU that WebGPU prefers", "WGSL",
                 "pip install wgpu, and a driver for Vulkan: Debian's mesa-vulkan-drivers has one for the processor"),
    DeviceRecord("AMD", _opener("gpu.hip", "open_hip"), ("HIP",), "the first AMD GPU", "HIP",
                 "ROCm: its driver, HIP and hiprtc"),
    DeviceRecord("METAL", _opener("gpu.metal", "open_metal"), (), "the GPU of a Mac", "Metal",
                 "a Mac with an Apple GPU; nothing to install"),
)

_BY_DEFAULT = "WASM" if sys.platform == "emscripten" else "CPU"      # a browser cannot load machine code


def record_of(name: str, device: Any) -> DeviceRecord:
    """Make a record from a class or function that makes a device; it is passed the name if it takes an argument."""
    if isinstance(device, DeviceRecord):
        return device
    try:
        takes_name = bool(inspect.signature(device).parameters)
    except (TypeError, ValueError):
        raise DeviceError("a device is registered by something that makes it", given=repr(device),
                          expected="a class or a function, called with the device's name",
                          fix=f"Device.register({name!r}, YourDevice)") from None
    return DeviceRecord(name, device if takes_name else lambda _name: device())


class _Records(dict[str, DeviceRecord]):
    """A dict of records by name. Assigning or deleting a name drops the device that was open under it."""

    def __init__(self, forget: Callable[[str], None]):
        super().__init__((record.name, record) for record in RECORDS)
        self._forget = forget

    def __setitem__(self, name: str, device: Any) -> None:
        record = record_of(name, device)
        self._forget(name)
        super().__setitem__(name, record)

    def __delitem__(self, name: str) -> None:
        self._forget(name)
        super().__delitem__(name)

    def pop(self, name: str, *default: Any) -> Any:
        self._forget(name)
        return super().pop(name, *default)


class _Devices:
    """Opened devices by name; `Device["CPU"]`."""

    def __init__(self) -> None:
        self._opened: dict[str, Any] = {}
        self._devices: dict[str, Any] = _Records(self._forget)     # assigning to it also registers a device
        self._default: str | None = None
        self._chosen: tuple[State | None, str] = (None, "")      # the default by settings, for these settings
        self.registered = 0       # times a name was registered or removed
        self.version = 0          # also counts assigned defaults: caches that depend on either compare it

    def _forget(self, name: str) -> None:
        self._opened.pop(name, None)
        self._chosen = (None, "")
        self.registered += 1
        self.version += 1

    # -- records -----------------------------------------------------------------------------------------------
    def register(self, name: str, open: Any, *, aliases: tuple[str, ...] = (), target: str = "", dialect: str = "",
                 install: str = "") -> None:
        """Add or replace a device. `open` is a `Backend` subclass (or `Compiled`), or a function that makes one; it is
        called with the name when the device is first used.

        >>> from glassgrad.runtime.python.python_device import PythonDevice
        >>> Device.register("SLOW", PythonDevice, aliases=("INTERPRETED",))
        >>> Device.canonicalize("interpreted")
        'SLOW'
        >>> Device.unregister("SLOW")
        """
        if not isinstance(name, str) or not name.isidentifier():
            raise DeviceError("a device's name is a word", given=repr(name), expected='letters and digits, as in "MY"',
                              fix='Device.register("MY", YourDevice)')
        name = name.upper()
        self._devices[name] = record_of(name, open)._replace(
            aliases=tuple(alias.upper() for alias in aliases), target=target, dialect=dialect, install=install)

    def unregister(self, name: str) -> None:
        """Remove a device."""
        del self._devices[self.canonicalize(name)]

    @property
    def records(self) -> dict[str, DeviceRecord]:
        """The records of all devices by name, in the order in which flags are tried for a default."""
        return dict(self._devices)

    @property
    def opened(self) -> dict[str, Any]:
        """The devices that are open."""
        return dict(self._opened)

    @property
    def flags(self) -> dict[str, str]:
        """The variables that choose a default device when they are 1: variable -> device.

        >>> Device.flags["LLVM"], Device.flags["GPU"], Device.flags["HIP"]
        ('CPU', 'OPENCL', 'AMD')
        """
        found: dict[str, str] = {}
        for record in self._devices.values():
            for alias in record.names:
                found.setdefault(alias, record.name)
        return found

    def canonicalize(self, name: str | None, said: str = "") -> str:
        """Return a device's canonical name; None means the default device. `said` quotes the user's wording in errors.

        >>> Device.canonicalize("clang")
        'CLANG'
        """
        if name is None:
            return self.DEFAULT
        if not isinstance(name, str):
            raise DeviceError("a device is named by a string", given=repr(name), expected='a name such as "CPU"',
                              fix='write device="CPU"')
        if name in self._devices:
            return str.__str__(name)                       # a plain str, if it is a subclass (torch.device)
        upper = name.upper()
        if upper.startswith(PREFIX):
            return PREFIX + name[len(PREFIX):]             # a path keeps its case
        upper = upper.removesuffix(":0")                   # tinygrad's "CPU:0" is the first CPU
        if upper not in self._devices:
            upper = self._by_alias(upper)
        if upper not in self._devices and not self._plugged_in(upper):
            raise DeviceError("there is no such device", given=said or repr(name),
                              expected=f"one of {', '.join(self._devices)}",
                              fix="check the name, or register a device: Device.register(name, YourDevice)")
        return upper

    def _by_alias(self, alias: str) -> str:
        """Return the device with this alias; of several, the first that opens (GPU: OPENCL, else CUDA)."""
        found = [record.name for record in self._devices.values() if alias in record.aliases]
        if len(found) > 1:
            return next((name for name in found if self.is_available(name)), found[0])
        return found[0] if found else alias

    def _plugged_in(self, name: str) -> bool:
        from importlib.metadata import entry_points  # late: a fifth of glassgrad's import time
        for entry in entry_points(group="glassgrad.devices"):
            if entry.name.upper() == name:
                self._devices[name] = record_of(name, entry.load())
                return True
        return False

    # -- opened devices ----------------------------------------------------------------------------------------
    def __getitem__(self, name: str) -> Any:
        device = self._opened.get(name)
        if device is None:
            name = self.canonicalize(name)
            with _opening:
                device = self._opened.get(name)
                if device is None:
                    open_it = FileDevice if on_disk(name) else self._devices[name].open
                    device = self._opened[name] = _open(open_it, name)
        return device

    def is_available(self, name: str) -> bool:
        """Return whether a device opens on this machine.

        >>> Device.is_available("PYTHON")
        True
        """
        try:
            return self[name] is not None
        except (DeviceError, ImportError):
            return False

    def get_available_devices(self) -> list[str]:
        """Return the names of the devices that open on this machine."""
        return [name for name in self._devices if self.is_available(name)]

    # -- the default -------------------------------------------------------------------------------------------
    @property
    def DEFAULT(self) -> str:
        if self._default is not None:
            return self._default
        known, chosen = self._chosen
        state = current_state()
        if state is not known:
            chosen = self._choose()
            self._chosen = (state, chosen)                 # one assignment: other threads may read it
        return chosen

    @DEFAULT.setter
    def DEFAULT(self, name: str) -> None:
        self._default = None if name is None else self.canonicalize(name)
        self.version += 1

    def _choose(self) -> str:
        """Choose the default device by settings and variables."""
        if settings.DEV:
            return self.canonicalize(settings.DEV, f"DEV={settings.DEV}")
        for flag in self.flags:
            if os.environ.get(flag) == "1":
                return self.canonicalize(flag, f"{flag}=1")
        named = os.environ.get("DEVICE")
        return self.canonicalize(named, f"DEVICE={named}") if named else _BY_DEFAULT


Device = _Devices()
