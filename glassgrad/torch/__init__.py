"""glassgrad.torch is glassgrad.compat.torch, by a shorter name: `import glassgrad.torch as torch`.

Each module below is the same module object under both names.
"""

import sys
from importlib import import_module
from typing import Any

_MODULES = ("", ".autograd", ".cuda", ".distributions", ".func", ".linalg", ".nn", ".special", ".utils",
            ".utils.checkpoint", ".utils.data")

for _name in _MODULES:
    sys.modules[f"glassgrad.torch{_name}"] = import_module(f"glassgrad.compat.torch{_name}")


def __getattr__(name: str) -> Any:
    """For type checkers: once it is imported, this module is glassgrad.compat.torch."""
    return getattr(sys.modules["glassgrad.torch"], name)
