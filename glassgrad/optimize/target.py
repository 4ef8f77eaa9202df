"""What the machine offers, as far as the optimizer and the renderers care. In: nothing. Out: `Target`."""

from __future__ import annotations

from typing import NamedTuple


class Target(NamedTuple):
    """A CPU in numbers. Recipes choose tile shapes from these, never from a machine's name.

    >>> Target().lanes(4)
    16
    """
    arch: str = "x86_64"
    vector_bytes: int = 64           # of one vector register
    vector_registers: int = 32
    features: frozenset[str] = frozenset({"avx512f", "fma", "f16c"})
    l1_bytes: int = 48 * 1024
    l2_bytes: int = 2 * 1024 * 1024

    def lanes(self, itemsize: int) -> int:
        """How many elements of a size fit one vector register."""
        return max(1, self.vector_bytes // itemsize)
