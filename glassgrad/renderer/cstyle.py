"""C, where users of tinygrad look for it: the renderer of plugged-in devices."""

from __future__ import annotations

from glassgrad.runtime.user_device import CStyleLanguage

__all__ = ["CStyleLanguage", "ClangRenderer"]


class ClangRenderer(CStyleLanguage):
    """C for Clang or GCC: the same text."""
