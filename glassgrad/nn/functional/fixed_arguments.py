"""Make functions with some arguments fixed, such as avg_pool1d to 3d; list a module's functions. In: a function, or a
module's names. Out: functions, names.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

from glassgrad.nn.modules.argument_checks import explain_all
from glassgrad.tensor.tensor import Tensor


def public_functions(module: dict[str, Any]) -> list[str]:
    """Return the names of the public functions that a module defines itself, for its `__all__`. From here on, errors of
    these functions name the argument that they are about."""
    names = [name for name, value in module.items()
             if not name.startswith("_") and inspect.isfunction(value) and value.__module__ == module["__name__"]]
    explain_all(module, names, "nn.functional")
    return names


def with_fixed(function: Callable[..., Any], name: str, says: str, **fixed: Any) -> Callable[..., Any]:
    """Return the function with these arguments fixed, and removed from its signature.

    >>> with_fixed(sorted, "by_length", "In order of their length.", key=len)(["abc", "d", "ef"])
    ['d', 'ef', 'abc']
    """
    def changed(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs, **fixed)
    changed.__name__ = changed.__qualname__ = name
    changed.__doc__, changed.__module__ = says, function.__module__
    signature = inspect.signature(function)
    changed.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[p for p in signature.parameters.values() if p.name not in fixed])
    return changed


def in_place(function: Any) -> Callable[..., Tensor]:
    """Return the function with inplace=True fixed."""
    name = function.__name__
    return with_fixed(function, f"{name}_", f"`{name}`, and the result is the input's new value.", inplace=True)


def for_each_rank(name: str, function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Return a function of `rank` space axes as three functions with the rank fixed: "pool" as pool1d, pool2d and
    pool3d."""
    first, rest = re.split("(?=[;:.])", str(function.__doc__).partition(">>>")[0].strip(), maxsplit=1)
    for rank, axes in ((1, "one axis"), (2, "two axes"), (3, "three axes")):
        yield with_fixed(function, f"{name}{rank}d", f"{first}, along {axes} of space{rest}", rank=rank)
