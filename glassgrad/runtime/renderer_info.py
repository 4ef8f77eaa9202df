"""What a device's programs can and cannot do, under the names that scripts ask for. In: a device. Out: plain facts.

Scripts written for tinygrad look at `Device[name].renderer` before they try something: whether there are work groups,
vectors, tensor cores. Knows nothing of how programs are written; render/ does that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["RendererFacts"]


@dataclass(frozen=True)
class RendererFacts:
    """Facts about the language that a device is programmed in.

    >>> RendererFacts("CPU", "llvm").has_local
    False
    """
    device: str
    language: str                      # "llvm", "c" or "python"
    supports_float4: bool = False      # kernels have vectors of their own; there is no type for four floats
    has_local: bool = False            # no work groups: a kernel's tasks are spread over threads
    has_shared: bool = False
    has_threads: bool = True
    tensor_cores: tuple[Any, ...] = ()
    global_max: tuple[int, ...] | None = None
    local_max: tuple[int, ...] | None = None
    shared_max: int = 0

    @property
    def name(self) -> str:
        return self.language
