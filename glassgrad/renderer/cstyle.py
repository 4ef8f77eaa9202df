"""Export the C renderer of devices that users write under tinygrad's module name."""

from __future__ import annotations

from glassgrad.runtime.user_device import CStyleLanguage

__all__ = ["CStyleLanguage", "ClangRenderer"]


class ClangRenderer(CStyleLanguage):
    """C for Clang or GCC: the same text."""
