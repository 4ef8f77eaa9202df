"""Let glassgrad's layers and functions give the tensors of an adapter. In: a Tensor subclass. Out: classes, functions.

Scripts of tinygrad and PyTorch expect tensors that behave as theirs do: a subclass of Tensor each
(`tinygrad/tinygrad_tensor.py`, `torch/torch_tensor.py`). What glassgrad makes itself, such as the weights of a layer or
the contents of a file, becomes one of that class here, after it was made and before the script sees it. Does not know
which library it serves.
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
    """Makes classes and functions of glassgrad give tensors of one class. `module` is where its classes are found by
    name; `attributes` are those that all its layers get.

    >>> class Mine(Tensor):
    ...     __slots__ = ()
    >>> Linear = Adapter(Mine, "here").layer_class(nn.Linear)
    >>> layer = Linear(2, 3)
    >>> type(layer.weight) is Mine, type(layer(Tensor.ones(1, 2))) is Mine, layer, isinstance(layer, nn.Linear)
    (True, True, Linear(in_features=2, out_features=3), True)
    """

    def __init__(self, tensor: type[Tensor], module: str, **attributes: Any):
        self.tensor, self.module, self.attributes = tensor, module, attributes
        self.classes: dict[type, type] = {}              # glassgrad's class: the adapter's

    def adopt(self, value: T, leave: Any = ()) -> T:
        """The value, whose tensors are of the adapter's class from now on; those inside `leave` stay what they are."""
        left = {id(tensor) for tensor in _inside(leave, Tensor)}
        for tensor in _inside(value, Tensor):
            if type(tensor) is Tensor and id(tensor) not in left:
                tensor.__class__ = self.tensor
        return value

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose results have tensors of the adapter's class.

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
        """What glassgrad.nn has by this name: a layer as a subclass that makes the adapter's tensors."""
        found = getattr(nn, name)
        if isinstance(found, type) and issubclass(found, nn.Layer):
            return self.layer_class(found)
        return self.function(found) if name == "Parameter" else found

    def layer_class(self, base: type) -> type:
        """A subclass of a layer, which makes tensors, and layers inside, of the adapter's classes; the same each
        time."""
        if base not in self.classes:
            body = dict(self.attributes)
            if hasattr(base, "becomes"):                 # a lazy layer is of another class after its first call
                body["becomes"] = self.layer_class(base.becomes)
            self.made_class(base, body)
        return self.classes[base]

    def made_class(self, base: type, body: dict[str, Any], *mixins: type) -> type:
        """A subclass with these attributes, whose instances have tensors of the adapter's class once they are made."""
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
        """Layers that a layer made inside itself are of the adapter's classes too."""
        for part in vars(layer).values():
            if isinstance(part, nn.Module) and id(part) not in leave:
                if getattr(nn, type(part).__name__, None) is type(part):
                    part.__class__ = self.layer_class(type(part))
                self._adopt_layers(part, leave)


def _inside(value: Any, kind: type) -> Iterator[Any]:
    return (place.value for place in walk(value, "", lambda part: isinstance(part, kind)))
