"""The import hook. In: the name of a tinygrad module. Out: a module whose names are looked up in `names.MODULES`."""

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

__all__ = ["install", "uninstall", "TinygradFinder"]


class Alias(ModuleType):
    """A module of tinygrad's, by name; its contents are glassgrad's."""

    def __getattr__(self, name: str) -> Any:
        sources, names = MODULES[self.__name__]
        if name.startswith("__"):
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


class TinygradFinder(MetaPathFinder, Loader):
    """Finds tinygrad and every module below it that has a counterpart here."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in ("tinygrad",):
            return None
        if name not in MODULES:
            raise ModuleNotFoundError(
                f"glassgrad.compat has no module {name!r}; docs/api.md lists what there is", name=name
            )
        return ModuleSpec(name, self, origin="glassgrad.compat", is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        follow("tinygrad")       # now, not at `install`: importing parts of this folder changes no numbers
        return Alias(spec.name, f"{spec.name}, answered by glassgrad.")

    def exec_module(self, module: ModuleType) -> None:
        """Nothing runs: names are looked up when they are asked for."""


_finder = TinygradFinder()


def _forget() -> None:
    for name in [n for n in sys.modules if n == "tinygrad" or n.startswith("tinygrad.")]:
        del sys.modules[name]


def install() -> None:
    """From now on `import tinygrad` gives glassgrad, and calls mean what tinygrad means (`base/meanings.py`)."""
    if _finder not in sys.meta_path:
        _forget()
        add_methods()
        sys.meta_path.insert(0, _finder)


def uninstall() -> None:
    """`import tinygrad` means tinygrad again, and calls mean what they mean here."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
        remove_methods()
        follow("glassgrad")
        _forget()
