"""Kernels whose moves a search may choose. In: a device with a target and a compiler. Out: `SearchedKernels`.

Loads a search, or what it found, only under BEAM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from glassgrad.base.settings import settings
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.optimize.targets.target import Target

if TYPE_CHECKING:
    from glassgrad.compiler.lower.loops import Kernel
    from glassgrad.runtime.search.tuning_results import Tuned

__all__ = ["SearchedKernels"]


class SearchedKernels:
    """A part of devices: searches, and moves that searches found."""
    searched_on: tuple[str, ...] = ()        # the device that a search opens in its process, where that is no CPU

    @property
    def searched(self) -> tuple[Target, str, str]:
        """What kernels are written for, in which language, and all that their speed depends on beside this machine's
        processor."""
        raise NotImplementedError

    def search(self, kernels: Sequence[UOp]) -> None:
        """BEAM: look for faster moves, unless as good a search is known, or there is no time for one."""
        if settings.BEAM <= 0 or settings.NOOPT:
            return
        known = {ast: self.tuned(ast) for ast in kernels}
        wanted = [ast for ast, tuned in known.items()
                  if tuned is None or not tuned.covers(settings.BEAM, settings.BEAM_SECONDS)]
        if wanted and settings.BEAM_SECONDS > 0:
            from glassgrad.runtime.search.beam import search  # the whole compiler, and processes
            search(wanted, *self.searched, *self.searched_on)

    def tuned(self, ast: UOp) -> Tuned | None:
        """What a search found for a kernel; None where none was made, or BEAM is off."""
        if settings.BEAM <= 0 or settings.NOOPT:
            return None
        from glassgrad.runtime.search.tuning_results import find
        return find(ast, self.searched[2])

    def moves(self, ast: UOp) -> tuple[str, ...]:
        """What a search found to be faster than the recipe; empty: the recipe."""
        tuned = self.tuned(ast)
        return tuned.moves if tuned is not None else ()

    def loop_tree(self, ast: UOp) -> Kernel:
        """A kernel's loop tree as it is rendered."""
        from glassgrad.runtime.kernel_source import kernel_of  # the whole compiler
        return kernel_of(ast, self.searched[0], moves=self.moves(ast) or None)
