"""Look for packages without importing them. In: a name. Out: its spec, or None.

A package may be broken: half imported, or replaced by a stand-in. Such a one counts as not installed.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from typing import Any


def find_spec(package: str) -> ModuleSpec | None:
    """Return where a package is; None if it is not installed, or if the module that stands for it has no spec.

    >>> find_spec("numpy") is not None, find_spec("no_such_package")
    (True, None)
    """
    try:
        return importlib.util.find_spec(package)
    except ValueError:
        return None


def loaded_class(module: str, name: str) -> type:
    """Return a class of a module that the program has imported; if it has not, a class without instances.

    >>> isinstance(1, loaded_class("builtins", "int")), isinstance(1, loaded_class("no_such_module", "int"))
    (True, False)
    """
    found: Any = getattr(sys.modules.get(module), "__dict__", {}).get(name)
    return found if isinstance(found, type) else _NoClass


class _NoClass:
    """A class without instances."""
