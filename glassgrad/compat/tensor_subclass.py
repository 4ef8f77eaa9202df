"""Make glassgrad's layers and functions return an adapter's tensors. In: a Tensor subclass. Out: classes, functions.

Scripts of tinygrad and PyTorch expect tensors that behave as theirs do: a subclass of Tensor each
(`tinygrad/tinygrad_tensor.py`, `torch/torch_tensor.py`). Tensors that glassgrad makes itself, such as the weights of a
layer or the contents of a file, get that class here, before the script sees them. Does not depend on either library.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from glassgrad import nn
from glassgrad.nn.modules.object_tree import walk
from glassgrad.tensor.tensor import Tensor

T = TypeVar("T")


class Adapter:
    """Makes classes and functions of glassgrad return tensors of one class. `module` becomes the `__module__` of its
    classes; `attributes` are added to all its layers.

    >>> class Mine(Tensor):
    ...     __slots__ = ()
    >>> Linear = Adapter(Mine, "here").layer_class(nn.Linear)
    >>> layer = Linear(2, 3)
    >>> type(layer.weight) is Mine, type(layer(Tensor.ones(1, 2))) is Mine, layer, isinstance(layer, nn.Linear)
    (True, True, Linear(in_features=2, out_features=3), True)
    """

    def __init__(self, tensor: type[Tensor], module: str, **attributes: Any):
        self.tensor, self.module, self.attributes = tensor, module, attributes
        self.classes: dict[type, type] = {}              # glassgrad's class -> the adapter's

    def adopt(self, value: T, leave: Any = ()) -> T:
        """Change the class of all tensors in a value to the adapter's, except of those in `leave`; return the value."""
        left = {id(tensor) for tensor in _inside(leave, Tensor)}
        for tensor in _inside(value, Tensor):
            if type(tensor) is Tensor and id(tensor) not in left:
                tensor.__class__ = self.tensor
        return value

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, with the tensors of its results in the adapter's class.

        >>> class Mine(Tensor):
        ...     __slots__ = ()
        >>> type(Adapter(Mine, "here").function(lambda: {"a": Tensor([1.0])})()["a"]) is Mine
        True
        """
        @functools.wraps(function)
        def adapted(*args: Any, **kwargs: Any) -> Any:
            return self.adopt(function(*args, **kwargs), (args, kwargs))
        return adapted

    def named(self, name: str) -> Any:
        """Return the object of this name in glassgrad.nn; for a layer, its subclass with the adapter's tensors."""
        found = getattr(nn, name)
        if isinstance(found, type) and issubclass(found, nn.Layer):
            return self.layer_class(found)
        return self.function(found) if name == "Parameter" else found

    def layer_class(self, base: type) -> type:
        """Return the subclass of a layer whose tensors and inner layers have the adapter's classes (cached)."""
        if base not in self.classes:
            body = dict(self.attributes)
            if hasattr(base, "becomes"):                 # a lazy layer changes its class at its first call
                body["becomes"] = self.layer_class(base.becomes)
            self.made_class(base, body)
        return self.classes[base]

    def made_class(self, base: type, body: dict[str, Any], *mixins: type) -> type:
        """Return a subclass with these attributes, whose constructor changes its tensors to the adapter's class."""
        adapter = self

        @functools.wraps(base.__init__)                  # type: ignore[misc]
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            base.__init__(self, *args, **kwargs)         # type: ignore[misc]
            adapter.adopt(self, (args, kwargs))
            adapter._adopt_layers(self, {id(layer) for layer in _inside((args, kwargs), nn.Module)})
        made = type(base)(base.__name__, (*mixins, base), {
            "__init__": body.pop("__init__", __init__), "__doc__": base.__doc__, "__module__": self.module, **body})
        return self.classes.setdefault(base, made)

    def _adopt_layers(self, layer: Any, leave: set[int]) -> None:
        """Change the class of inner layers that the constructor made, too; `leave` are the ids of layers that were
        passed in."""
        for part in vars(layer).values():
            if isinstance(part, nn.Module) and id(part) not in leave:
                if getattr(nn, type(part).__name__, None) is type(part):
                    part.__class__ = self.layer_class(type(part))
                self._adopt_layers(part, leave)


def _inside(value: Any, kind: type) -> Iterator[Any]:
    return (place.value for place in walk(value, "", lambda part: isinstance(part, kind)))
