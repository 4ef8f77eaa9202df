"""Define all exception types. A user's mistake says given / expected / fix; a fault of glassgrad itself is a `Bug`.

In: what the user gave. Out: exceptions whose text says how to fix the mistake, and names the user's line.
"""

from __future__ import annotations

from glassgrad.base.source_lines import user_line

__all__ = ["GlassgradError", "ShapeError", "NoAxesError", "DTypeError", "AxisError", "DeviceError", "GradientError",
           "InputError", "ModeError", "DivisionError", "IndexKindError", "IndexShapeError", "IndexRangeError",
           "DTypeNameError", "NotFiniteError", "MemoryLimitError", "FormatError", "JitError", "Bug"]


class GlassgradError(RuntimeError):
    """A mistake in the user's program, with how to fix it. It is a RuntimeError too, as most of PyTorch's and
    tinygrad's errors are, so that programs that catch those keep working.

    >>> error = ShapeError("cannot add these shapes", given="(2,) + (3,)", expected="equal sizes",
    ...                    fix="reshape one", where="train.py:12")
    >>> print(error)
    cannot add these shapes
      given:    (2,) + (3,)
      expected: equal sizes
      fix:      reshape one
      at:       train.py:12
    """

    def __init__(self, what: str, given: str = "", expected: str = "", fix: str = "", where: str = ""):
        self.what, self.given, self.expected, self.fix = what, given, expected, fix
        self.where = where or str(user_line() or "")
        super().__init__(self._table(given=given, expected=expected, fix=fix, at=self.where))

    @property
    def advice(self) -> str:
        """The text without the source line, for commands, whose user typed no Python."""
        return self._table(given=self.given, expected=self.expected, fix=self.fix)

    def _table(self, **rows: str) -> str:
        width = 10
        lines = [f"  {name + ':':<{width}}" + text.replace("\n", "\n" + " " * (width + 2))
                 for name, text in rows.items() if text]
        return "\n".join([self.what, *lines])


class ShapeError(GlassgradError, ValueError):
    """Sizes that do not fit together."""


class NoAxesError(ShapeError, TypeError):
    """A single number used as a sequence, which is a TypeError for Python's numbers."""


class DTypeError(GlassgradError, TypeError):
    """An element type that the operation does not have."""


class AxisError(GlassgradError, IndexError, ValueError):
    """An axis that the tensor does not have, or names twice."""


class DeviceError(GlassgradError, RuntimeError):
    """A device that does not exist, cannot be opened, or differs between operands."""


class GradientError(GlassgradError, RuntimeError):
    """`backward` asked of something that has no gradient."""


class InputError(GlassgradError, TypeError, ValueError):
    """A Python value that cannot become a tensor or an argument."""


class ModeError(InputError, NotImplementedError):
    """An unknown `mode` of `pad`. A NotImplementedError too, as in PyTorch and tinygrad."""


class DivisionError(InputError, ZeroDivisionError):
    """Integers divided by 0. A ZeroDivisionError too, as for Python's integers."""


class IndexKindError(InputError, IndexError):
    """A value that cannot index any tensor."""


class IndexShapeError(ShapeError, IndexError):
    """An index whose shape does not fit the tensor: a mask of other sizes."""


class DTypeNameError(DTypeError, AttributeError):
    """An unknown dtype name. An AttributeError too, as for `dtypes.flaot32`."""


class IndexRangeError(GlassgradError, IndexError):
    """An index outside its axis."""


class NotFiniteError(GlassgradError, FloatingPointError):
    """A NaN or an infinity that SANITIZE=1 found."""


class MemoryLimitError(GlassgradError, MemoryError):
    """The device is out of memory, or the limit that the user set (MEMORY_MB) is reached."""


class FormatError(GlassgradError, ValueError):
    """A file that is not what it says it is."""


class JitError(GlassgradError, RuntimeError):
    """A function that the jit cannot capture correctly."""


class Bug(Exception):
    """A fault of glassgrad itself, never of the user. Please report it with the text it carries."""

    def __init__(self, what: str):
        super().__init__(f"{what}\n  this is a bug in glassgrad, not in your program; please report it")
