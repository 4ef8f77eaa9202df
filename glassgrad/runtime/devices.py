"""Devices by name. In: a name. Out: an opened device, once. `Device.DEFAULT` is where tensors go when nobody says.

The default is chosen in this order: an assignment to `Device.DEFAULT`, the setting DEV, a flag such as CLANG=1, the
variable DEVICE, then CPU; where llvmlite is missing CPU uses a C compiler, and without one the interpreter, each with a
one-line notice.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import DeviceError
from glassgrad.base.settings import DEVICE_FLAGS, State, current_state, environment, settings
from glassgrad.runtime.disk_device import PREFIX, FileDevice, on_disk

if TYPE_CHECKING:
    from glassgrad.runtime.backend import OpenDevice


def _open_cpu() -> OpenDevice:
    from glassgrad.runtime.cpu.native_device import NativeDevice
    if find_spec("llvmlite") is not None:
        return NativeDevice("CPU", "llvm")
    from glassgrad.runtime.cpu.c_compiler import find_compiler
    try:
        command = find_compiler()
    except DeviceError:
        print("glassgrad: no llvmlite and no C compiler: CPU kernels are interpreted, slowly; pip install llvmlite",
              file=sys.stderr)
        return _open_python("CPU")
    print(f"glassgrad: no llvmlite: CPU kernels are compiled by {command[0]}; pip install llvmlite", file=sys.stderr)
    return NativeDevice("CPU", "c")


def _open_clang() -> OpenDevice:
    from glassgrad.runtime.cpu.c_compiler import find_compiler
    from glassgrad.runtime.cpu.native_device import NativeDevice
    find_compiler()
    return NativeDevice("CLANG", "c")


def _open_python(name: str = "PYTHON") -> OpenDevice:
    from glassgrad.runtime.python.python_device import PythonDevice
    return PythonDevice(name)


def _open_cuda() -> OpenDevice:
    from glassgrad.runtime.gpu.cuda import open_cuda
    return open_cuda()


def _open_opencl() -> OpenDevice:
    from glassgrad.runtime.gpu.opencl import open_opencl
    return open_opencl()


class _Makers(dict[str, Callable[..., Any]]):
    """Name: a class or function that opens a device. A name given anew forgets the device that was open under it."""

    def __init__(self, makers: dict[str, Callable[..., OpenDevice]], forget: Callable[[str], None]):
        super().__init__(makers)
        self._forget = forget

    def __setitem__(self, name: str, maker: Callable[..., OpenDevice]) -> None:
        self._forget(name)
        super().__setitem__(name, maker)

    def __delitem__(self, name: str) -> None:
        self._forget(name)
        super().__delitem__(name)

    def pop(self, name: str, *default: Any) -> Any:
        self._forget(name)
        return super().pop(name, *default)


class _Devices:
    """Opened devices by name; `Device["CPU"]`."""

    def __init__(self) -> None:
        self._opened: dict[str, OpenDevice] = {}
        self._devices: dict[str, Callable[..., OpenDevice]] = _Makers(     # a newcomer's device is one more entry
            {"CPU": _open_cpu, "CLANG": _open_clang, "PYTHON": _open_python, "CUDA": _open_cuda,
             "OPENCL": _open_opencl}, self._forget)
        self._default: str | None = None
        self._chosen: tuple[State | None, str] = (None, "")      # by settings, while they stay as they are
        self.registered = 0       # how often a name came to mean another device
        self.version = 0          # the same, and how often a default was assigned: who keeps what follows compares it

    def _forget(self, name: str) -> None:
        self._opened.pop(name, None)
        self._chosen = (None, "")
        self.registered += 1
        self.version += 1

    def canonicalize(self, name: str | None, said: str = "") -> str:
        """A device's proper name; None is the default device. `said` is how the user named it, where not by itself.

        >>> Device.canonicalize("clang")
        'CLANG'
        """
        if name is None:
            return self.DEFAULT
        if not isinstance(name, str):
            raise DeviceError("a device is named by a string", given=repr(name), expected='a name such as "CPU"',
                              fix='write device="CPU"')
        upper = name.upper()
        if upper.startswith(PREFIX):
            return PREFIX + name[len(PREFIX):]             # a path keeps its letters
        upper = upper.removesuffix(":0")                   # tinygrad's "CPU:0", the first of its kind
        upper = DEVICE_FLAGS.get(upper, upper) if upper not in self._devices else upper
        if upper not in self._devices and not self._plugged_in(upper):
            raise DeviceError("there is no such device", given=said or repr(name),
                              expected=f"one of {', '.join(self._devices)}",
                              fix="check the name, or register a device: Device._devices[name] = YourDevice")
        return upper

    def _plugged_in(self, name: str) -> bool:
        from importlib.metadata import entry_points  # a fifth of the time to import glassgrad
        for entry in entry_points(group="glassgrad.devices"):
            if entry.name.upper() == name:
                self._devices[name] = entry.load()
                return True
        return False

    def __getitem__(self, name: str) -> OpenDevice:
        device = self._opened.get(name)
        if device is None:
            name = self.canonicalize(name)
            device = self._opened.get(name)
            if device is None:
                make = self._devices[name] if not on_disk(name) else FileDevice
                device = self._opened[name] = make() if not isinstance(make, type) else make(name)
        return device

    @property
    def DEFAULT(self) -> str:
        if self._default is not None:
            return self._default
        known, chosen = self._chosen
        state = current_state()
        if state is not known:
            chosen = self._choose()
            self._chosen = (state, chosen)                 # at once: another thread may be here too
        return chosen

    @DEFAULT.setter
    def DEFAULT(self, name: str) -> None:
        self._default = None if name is None else self.canonicalize(name)
        self.version += 1

    def _choose(self) -> str:
        """The default device by settings and variables."""
        if settings.DEV:
            return self.canonicalize(settings.DEV, f"DEV={settings.DEV}")
        for flag, device in DEVICE_FLAGS.items():
            if environment(flag) == "1":
                return self.canonicalize(device, f"{flag}=1")
        named = environment("DEVICE")
        return self.canonicalize(named, f"DEVICE={named}") if named else "CPU"

    def get_available_devices(self) -> list[str]:
        """Names of the devices that open on this machine."""
        found = []
        for name in self._devices:
            try:
                self[name]
            except DeviceError:
                continue
            found.append(name)
        return found


Device = _Devices()
