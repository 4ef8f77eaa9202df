"""Provide torch.device, torch.backends and settings of the machine. In: names of devices. Out: devices of this machine.
"""

from __future__ import annotations

from typing import Any

from glassgrad.base.errors import DeviceError
from glassgrad.base.settings import settings
from glassgrad.runtime.devices import Device

__all__ = ["cudnn", "device", "get_num_threads", "mkldnn", "mps", "set_float32_matmul_precision",
           "set_num_threads", "set_printoptions", "use_deterministic_algorithms"]


class device(str):
    """A device's name, with PyTorch's parts: `device("cpu").type`. "cuda" is accepted where `cuda.is_available()`.

    >>> device("cpu").type, device("cpu") == "cpu", device("cpu") == device("cpu:0") == Device.canonicalize("cpu")
    ('cpu', True, True)
    >>> print(device("cpu"))
    cpu
    """
    type: str
    index: Any

    def __new__(cls, type: Any = "cpu", index: int | None = None) -> device:
        kind, _, number = str(type).partition(":")
        if kind in ("mps", "xpu") or kind == "cuda" and not Device.is_available("CUDA"):
            raise DeviceError(f"there is no {kind} here", given=f'torch.device("{type}")',
                              expected=f"one of {', '.join(Device.get_available_devices())}",
                              fix='ask first: torch.device("cuda" if torch.cuda.is_available() else "cpu")')
        Device.canonicalize(kind, f'torch.device("{type}")')
        asked = number or index
        if asked not in ("0", 0, None):
            raise DeviceError("there is one device of a kind here", given=f'torch.device("{type}"), number {asked}',
                              expected="no number, or 0", fix=f'write torch.device("{kind}")')
        index = int(number) if number else index
        return cls.named(kind.upper(), index)

    @classmethod
    def named(cls, name: str, index: int | None = None) -> device:
        """Return a device by its name here, in capitals: code that does not know this class finds the device by that
        name."""
        made = super().__new__(cls, str.__str__(name))          # not str(name), which is in small letters
        made.type, made.index = name.lower(), index
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and str(other).upper() == self.type.upper()

    __hash__ = str.__hash__

    def __str__(self) -> str: return self.type
    def __format__(self, spec: str) -> str: return format(self.type, spec)

    def __repr__(self) -> str:
        return f"device(type={self.type!r}" + (")" if self.index is None else f", index={self.index})")


def get_num_threads() -> int: return settings.THREADS


def set_num_threads(threads: int) -> None:
    """Has no effect: `THREADS` in the environment sets it, before the first kernel; results do not depend on it."""


def set_float32_matmul_precision(precision: str) -> None:
    """Has no effect: products of float32 are computed in float32."""


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Has no effect: results never depend on threads or timing here."""


def set_printoptions(**options: Any) -> None:
    """Has no effect: how a tensor is shown is not a setting here."""


# -- torch.backends: libraries that PyTorch can use ----------------------------------------------------------------
class AbsentLibrary:
    """A library that is not used: `is_available()` is False, and its settings have no effect."""
    enabled = benchmark = deterministic = allow_tf32 = False

    def __init__(self, name: str):
        self.name = name

    def is_available(self) -> bool: return False
    def is_built(self) -> bool: return False

    def __repr__(self) -> str:
        return f"torch.backends.{self.name}, which is not here"


mps, cudnn, mkldnn, cuda = (AbsentLibrary(name) for name in ("mps", "cudnn", "mkldnn", "cuda"))
cuda.matmul = AbsentLibrary("cuda.matmul")  # type: ignore[attr-defined]
