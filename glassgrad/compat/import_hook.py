"""Hook into imports of tinygrad and PyTorch. In: the name of one of their modules. Out: a module whose names are looked
up in the table of its adapter (`tinygrad/module_names.py`, `torch/module_names.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from glassgrad.compat.tinygrad import module_names as tinygrad_names
from glassgrad.compat.tinygrad.writable_nodes import add_methods, remove_methods
from glassgrad.compat.torch import module_names as torch_names

MODULES = {**tinygrad_names.MODULES, **torch_names.MODULES}
INSTEAD = {**tinygrad_names.INSTEAD, **torch_names.INSTEAD}


def instead_of(name: str) -> str:
    """Say what to use in place of a module or name of another library.

    >>> instead_of("tinygrad.viz.cli")
    'VIZ=1 shows graphs and kernels in a browser (docs/guide/visualizer.md); DEBUG=4 prints them'
    """
    while name not in INSTEAD:
        name = name.rpartition(".")[0]
    return INSTEAD[name]


class AliasModule(ModuleType):
    """A module of another library, by name, with the adapter's contents."""

    def __getattr__(self, name: str) -> Any:
        sources, names = MODULES[self.__name__]
        if name.startswith("__") and name not in names:
            if name == "__all__":
                return sorted({*names, *[n for s in sources for n in _public(import_module(s))]})
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        if name in names:
            module, _, attribute = names[name].partition(":")
            found = import_module(module)
            value = self._below(full, getattr(found, attribute) if attribute else found)
            setattr(self, name, value)
            return value
        for source in sources:
            module_found = import_module(source)
            if hasattr(module_found, name):
                return self._below(full, getattr(module_found, name))     # not cached: the module may rebind it
        if full in MODULES:
            return import_module(full)
        raise AttributeError(f"{full} has no counterpart in glassgrad: {instead_of(full)}")

    @staticmethod
    def _below(full: str, value: Any) -> Any:
        """Return a submodule under its name in the other library, so that errors about missing names use that name."""
        return import_module(full) if isinstance(value, ModuleType) and full in MODULES else value

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
            # `from module import name` asks here too, and hides an error whose attribute `name` is that name
            raise ModuleNotFoundError(f"glassgrad.compat has no {name!r}: {instead_of(name)}")
        return ModuleSpec(name, self, origin="glassgrad.compat", is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return AliasModule(spec.name, f"{spec.name}, answered by glassgrad.")

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: a name is looked up when it is used."""


_finders = {library: LibraryFinder(library) for library in ("tinygrad", "torch")}


def _forget(library: str) -> None:
    for name in [n for n in sys.modules if n == library or n.startswith(f"{library}.")]:
        del sys.modules[name]


def install(library: str = "tinygrad") -> None:
    """Make `import tinygrad` (or `torch`) import the adapter of that library from now on."""
    if _finders[library] not in sys.meta_path:
        _forget(library)
        if library == "tinygrad":
            add_methods()
        sys.meta_path.insert(0, _finders[library])


def uninstall(library: str = "tinygrad") -> None:
    """Make `import tinygrad` (or `torch`) import the installed library again, if there is one."""
    if _finders[library] in sys.meta_path:
        sys.meta_path.remove(_finders[library])
        if library == "tinygrad":
            remove_methods()
        _forget(library)
