"""What every layer here shares: it can be called, shows its settings, and names itself when an input does not fit.

In: a class with `forward` and a list of settings to show. Out: the same class as a layer. A layer of your own needs
none of this: any object whose attributes are tensors, layers, lists or dictionaries of them is a model.
"""

from __future__ import annotations

import functools
from typing import Any, NoReturn

from glassgrad.base.errors import GlassgradError, ShapeError
from glassgrad.nn.modules.argument_checks import check_call, wrong_argument
from glassgrad.nn.modules.module import Module
from glassgrad.nn.modules.module_paths import parameters_of, path_of

__all__ = ["Layer"]


class Layer(Module):
    """The base of the layers in `glassgrad.nn`: modules that train when `Tensor.training` says so, until `train()` or
    `eval()` says it for them.

    >>> class Double(Layer):
    ...     shows = ("times",)
    ...     def __init__(self, times=2): self.times = times
    ...     def forward(self, x): return x * self.times
    >>> Double(), Double(3)(2)
    (Double(times=2), 6)
    """
    shows: tuple[str, ...] = ()                     # attributes to show, in the order of the constructor
    training = None
    all_are_parameters = True                       # but for buffer_names

    def __init_subclass__(cls) -> None:
        if "__init__" in vars(cls) and cls.__module__.startswith("glassgrad."):
            cls.__init__ = _placed(cls.__init__)  # type: ignore[method-assign]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        settings = {name: value for name, value in kwargs.items() if name not in ("device", "dtype")}
        check_call(cls, "nn", args, settings)
        return super().__new__(cls)

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        try:
            return self._as_told(inputs, options)
        except ShapeError as problem:
            if getattr(problem, "layer", None) is not None:      # a layer inside this one has said what is wrong
                raise
            raise _named(self, problem.what, problem.given, problem.expected, problem.fix, problem.where) from None
        except (TypeError, AttributeError, ValueError, LookupError, ArithmeticError) as problem:
            mistake = None if isinstance(problem, GlassgradError) or not _is_ours(self) else \
                wrong_argument(self.forward, type(self).__name__, "nn", inputs, options)
            if mistake is None:
                raise
            raise mistake from problem

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.shows)})"

    def _refuse(self, given: str, expected: str, fix: str) -> NoReturn:
        """Say that an input does not fit this layer."""
        raise _named(self, "", given, expected, fix, "")


def _is_ours(layer: Layer) -> bool:
    """Whether a layer's `forward` is one of glassgrad's: the failures of users' own stay what they are."""
    return type(layer).forward.__module__.startswith("glassgrad.")


def _placed(make: Any) -> Any:
    """A constructor that also takes PyTorch's `device` and `dtype`: those of the tensors it makes."""
    @functools.wraps(make)
    def __init__(self: Layer, *settings: Any, device: Any = None, dtype: Any = None, **named: Any) -> None:
        make(self, *settings, **named)
        if device is not None or dtype is not None:
            self.to(device, dtype)
    return __init__


def _named(layer: Layer, what: str, given: str, expected: str, fix: str, where: str) -> ShapeError:
    """A complaint with the layer, its settings, the user's name for it and its parameters."""
    path = path_of(layer)
    held = ", ".join(f"{path + '.' if path else ''}{name} {tensor.shape}" for name, tensor in parameters_of(layer))
    if held:
        given += f"\nits parameters: {held}"
    elif path:
        given += f"\nthe layer: {path}"
    error = ShapeError(f"{layer!r} cannot take this input{': ' + what if what else ''}", given, expected, fix, where)
    error.layer = layer  # type: ignore[attr-defined]
    return error
