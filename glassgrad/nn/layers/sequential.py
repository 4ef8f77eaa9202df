"""Define layers that run one after another. In: layers or functions. Out: one layer whose parameters are named
`0.weight`, `1.bias`, ...

A plain list may be used instead: `x.sequential([layer, Tensor.relu, layer])`, and `nn.state` finds a list that is an
attribute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.nn.modules.layer import Layer
from glassgrad.nn.modules.module import NumberedModules


class Sequential(NumberedModules, Layer):
    """Calls its layers one after another; takes layers, one list, or one dictionary of named layers.

    >>> from glassgrad.nn.layers.linear import Linear
    >>> model = Sequential(Linear(3, 4), Tensor.relu, Linear(4, 2))
    >>> model(Tensor.ones(5, 3)).shape, len(model), model[0]
    ((5, 2), 3, Linear(in_features=3, out_features=4))
    """

    def __init__(self, *layers: Any):
        given = layers[0] if len(layers) == 1 and isinstance(layers[0], (list, tuple, Mapping)) else layers
        for name, layer in given.items() if isinstance(given, Mapping) else enumerate(given):
            self._put(str(name), layer)

    def _put(self, name: str, layer: Callable[..., Any]) -> None:
        if not callable(layer):
            raise InputError("Sequential needs layers to call", given=f"{layer!r} of type {type(layer).__name__}",
                             expected="layers or functions", fix="check the list of layers")
        vars(self)[name] = layer    # as attributes, so that parameters have the same names as in PyTorch

    def forward(self, x: Any) -> Any:
        for layer in self:
            x = layer(x)
        return x

    def _modules_by_name(self) -> dict[str, Any]:
        """Return the layers: all attributes that can be called. A subclass may keep numbers of its own."""
        return {name: layer for name, layer in vars(self).items() if callable(layer)}

    def __getitem__(self, at: int | slice) -> Any:
        return Sequential(dict(list(self._modules_by_name().items())[at])) if isinstance(at, slice) else list(self)[at]

    def __repr__(self) -> str:
        rows = [f"  {name}: {getattr(layer, '__name__', None) or repr(layer)}".replace("\n", "\n  ")
                for name, layer in self._modules_by_name().items()]
        return "Sequential(\n" + "\n".join(rows) + "\n)"
