"""Compute a property once per object. In: a method. Out: a property that keeps the method's first result.

This is `functools.cached_property` as it is from Python 3.12 on. Before 3.12 it holds a lock while it computes, one for
all objects of a class: threads wait for each other, and a child that was forked meanwhile waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class cached_property(Generic[T]):      # noqa: N801
    """A property that is computed at its first use, and is an attribute afterwards.

    >>> class Circle:
    ...     radius = 2
    ...     @cached_property
    ...     def area(self) -> float: return 3.14 * self.radius ** 2
    >>> circle = Circle()
    >>> circle.area, vars(circle)
    (12.56, {'area': 12.56})
    """

    def __init__(self, compute: Callable[[Any], T]):
        self.compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        return vars(instance).setdefault(self.name, self.compute(instance))      # two threads get the same result
