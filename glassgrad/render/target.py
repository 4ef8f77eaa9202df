"""The processor a kernel is written for: see glassgrad/optimize/target.py."""

from glassgrad.optimize.target import Target

__all__ = ["Target"]
