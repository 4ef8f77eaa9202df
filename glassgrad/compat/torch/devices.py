"""What PyTorch's scripts ask about the machine. In: names of devices. Out: answers that lead them to the processor."""

from __future__ import annotations

from typing import Any

from glassgrad.base.errors import DeviceError
from glassgrad.base.settings import settings
from glassgrad.runtime.devices import Device

__all__ = ["cudnn", "device", "get_num_threads", "mkldnn", "mps", "set_float32_matmul_precision",
           "set_num_threads", "set_printoptions", "use_deterministic_algorithms"]


class device(str):
    """A device's name, with PyTorch's parts: `device("cpu").type`. Its "cpu" is the device that is used by default.

    >>> device("cpu").type, device("cpu") == "cpu"
    ('cpu', True)
    """
    type: str
    index: Any

    def __new__(cls, type: Any = "cpu", index: int | None = None) -> device:
        kind, _, number = str(type).partition(":")
        if kind in ("cuda", "mps", "xpu"):
            raise DeviceError(f"there is no {kind} here", given=f'torch.device("{type}")',
                              expected=f"one of {', '.join(sorted(Device._devices))}",
                              fix='ask first: torch.device("cuda" if torch.cuda.is_available() else "cpu")')
        made = super().__new__(cls, kind)
        made.type, made.index = kind, int(number) if number else index
        return made

    def __repr__(self) -> str:
        return f"device(type={self.type!r})"


def get_num_threads() -> int: return settings.THREADS


def set_num_threads(threads: int) -> None:
    """Nothing: `THREADS` in the environment says it, before the first kernel; answers do not depend on it."""


def set_float32_matmul_precision(precision: str) -> None:
    """Nothing: products of float32 are computed in float32."""


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Nothing: answers never depend on threads or timing here."""


def set_printoptions(**options: Any) -> None:
    """Nothing: how a tensor is shown is not a setting here."""


# -- torch.backends: libraries that PyTorch can use ----------------------------------------------------------------
class _Absent:
    """A library that is not there: it may be asked, and its settings set, without effect."""
    enabled = benchmark = deterministic = allow_tf32 = False

    def __init__(self, name: str):
        self.name = name

    def is_available(self) -> bool: return False
    def is_built(self) -> bool: return False

    def __repr__(self) -> str:
        return f"torch.backends.{self.name}, which is not here"


mps, cudnn, mkldnn, cuda = (_Absent(name) for name in ("mps", "cudnn", "mkldnn", "cuda"))
cuda.matmul = _Absent("cuda.matmul")  # type: ignore[attr-defined]
