"""The import hook. In: the name of a module of tinygrad's or PyTorch's. Out: a module whose names are looked up in
`names.MODULES`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from glassgrad.base.meanings import follow
from glassgrad.compat.effects import add_methods, remove_methods
from glassgrad.compat.names import MODULES

__all__ = ["install", "uninstall", "LibraryFinder"]


class Alias(ModuleType):
    """A module of another library, by name; its contents are glassgrad's."""

    def __getattr__(self, name: str) -> Any:
        sources, names = MODULES[self.__name__]
        if name.startswith("__") and name not in names:
            if name == "__all__":
                return sorted({*names, *[n for s in sources for n in _public(import_module(s))]})
            raise AttributeError(name)
        if name in names:
            place, _, attribute = names[name].partition(":")
            found = import_module(place)
            value = getattr(found, attribute) if attribute else found
            setattr(self, name, value)
            return value
        for source in sources:
            module = import_module(source)
            if hasattr(module, name):
                return getattr(module, name)     # not kept: the module's own value may change
        if f"{self.__name__}.{name}" in MODULES:
            return import_module(f"{self.__name__}.{name}")
        raise AttributeError(f"{self.__name__}.{name} has no counterpart in glassgrad; docs/api.md lists what there is")

    def __dir__(self) -> list[str]:
        return list(self.__all__)


def _public(module: ModuleType) -> list[str]:
    return [n for n in getattr(module, "__all__", dir(module)) if not n.startswith("_")]


class LibraryFinder(MetaPathFinder, Loader):
    """Finds a library and every module below it that has a counterpart here."""

    def __init__(self, library: str):
        self.library = library

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] != self.library:
            return None
        if name not in MODULES:
            raise ModuleNotFoundError(
                f"glassgrad.compat has no module {name!r}; docs/api.md lists what there is", name=name
            )
        return ModuleSpec(name, self, origin="glassgrad.compat", is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        # now, not at `install`: importing parts of this folder changes no numbers
        follow("tinygrad" if self.library == "tinygrad" else "pytorch")
        return Alias(spec.name, f"{spec.name}, answered by glassgrad.")

    def exec_module(self, module: ModuleType) -> None:
        """Nothing runs: names are looked up when they are asked for."""


_finders = {library: LibraryFinder(library) for library in ("tinygrad", "torch")}


def _forget(library: str) -> None:
    for name in [n for n in sys.modules if n == library or n.startswith(f"{library}.")]:
        del sys.modules[name]


def install(library: str = "tinygrad") -> None:
    """From now on `import tinygrad` (or `torch`) gives glassgrad, and calls mean what that library means
    (`base/meanings.py`)."""
    if _finders[library] not in sys.meta_path:
        _forget(library)
        if library == "tinygrad":
            add_methods()
        sys.meta_path.insert(0, _finders[library])


def uninstall(library: str = "tinygrad") -> None:
    """`import tinygrad` (or `torch`) means what it says again, and calls mean what they mean here."""
    if _finders[library] in sys.meta_path:
        sys.meta_path.remove(_finders[library])
        if library == "tinygrad":
            remove_methods()
        follow("glassgrad")
        _forget(library)
