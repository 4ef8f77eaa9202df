"""Define the base of all layers: calling, repr with settings, and errors that name the layer.

In: a class with `forward` and a list of settings to show. Out: the same class as a layer. A layer of your own needs
none of this: any object whose attributes are tensors, layers, lists or dictionaries of them is a model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from glassgrad.base.errors import ShapeError
from glassgrad.nn.modules.argument_checks import FAILURES, check_call, explain, plain, signature_of
from glassgrad.nn.modules.layer_path_in_errors import path_of
from glassgrad.nn.modules.module import Module
from glassgrad.tensor.formulas.neural.convolution import each
from glassgrad.tensor.tensor import Tensor

_WINDOW_MINIMA = {"kernel_size": 1, "stride": 1, "dilation": 1, "padding": 0}      # settings and their minima


class LayerType(type):
    """The metaclass of layers: it checks the arguments of the constructor, calls it, and moves the tensors to the
    `device` and `dtype` of PyTorch's keywords."""

    @property
    def __signature__(cls) -> inspect.Signature:
        """The constructor's parameters, for `help()` and the check; for a FunctionLayer, its settings."""
        made_by: Any = cls.__init__  # type: ignore[misc]
        takes_settings = inspect.unwrap(made_by) is FunctionLayer.__init__
        return cls.settings if takes_settings else signature_of(made_by)  # type: ignore[attr-defined,no-any-return]

    def __call__(cls, *args: Any, device: Any = None, dtype: Any = None, **kwargs: Any) -> Any:
        named = {cls.synonyms.get(name, name): value for name, value in kwargs.items()}  # type: ignore[attr-defined]
        check_call(cls, cls.__signature__, "nn", args, named)
        layer = super().__call__(*map(plain, args), **{name: plain(value) for name, value in named.items()})
        if device is not None or dtype is not None:
            layer.to(device, dtype)
        return layer


class Layer(Module, metaclass=LayerType):
    """The base of the layers in `glassgrad.nn`: modules that follow `Tensor.training` until `train()` or `eval()` is
    called on them.

    >>> class Double(Layer):
    ...     shows = ("times",)
    ...     def __init__(self, times=2): self.times = times
    ...     def forward(self, x): return x * self.times
    >>> Double(), Double(3)(2)
    (Double(times=2), 6)
    """
    shows: tuple[str, ...] = ()                     # attributes to show, in the order of the constructor
    training = None
    all_are_parameters = True                       # except buffer_names
    rank = 0                                        # number of space axes of an input; 0: any
    synonyms: Mapping[str, str] = {}                # keywords of another library -> ours; set by an adapter

    def __init_subclass__(cls, **constants: Any) -> None:
        """`class Conv1d(_Convolution, rank=1)`: make the keywords class attributes."""
        for name, value in constants.items():
            setattr(cls, name, value)

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        try:
            return self._call_in_mode(inputs, options)
        except ShapeError as problem:
            if getattr(problem, "layer", None) is not None:      # the error names an inner layer already
                raise
            raise _named(self, problem.what, problem.given, problem.expected, problem.fix, problem.where) from None
        except FAILURES as problem:
            if type(self).forward.__module__.startswith("glassgrad."):      # errors of a user's layer stay as they are
                explain(problem, getattr(self, "function", self.forward), type(self).__name__, "nn", inputs, options)
            raise

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.shows)})"

    def _check_space(self, x: Any) -> None:
        """Raise unless an input is (batch, channels, ...space), or without the batch, for this layer's rank."""
        if x.ndim not in (self.rank + 1, self.rank + 2):
            self._refuse(x, f"(batch, channels, ...space) with {self.rank} space axes", "reshape the input")

    def _refuse(self, given: Any, expected: str, fix: str) -> NoReturn:
        """Raise an error that says that an input does not fit this layer."""
        words = given if isinstance(given, str) else f"an input of shape {given.shape}"
        raise _named(self, "", words, expected, fix, "")


def _named(layer: Layer, what: str, given: str, expected: str, fix: str, where: str) -> ShapeError:
    """Return an error that names the layer, its settings, its path in the user's model and its parameters."""
    path = path_of(layer)
    held = ", ".join(f"{path + '.' if path else ''}{name} {tensor.shape}" for name, tensor in vars(layer).items()
                     if isinstance(tensor, Tensor))
    if held:
        given += f"\nits parameters: {held}"
    elif path:
        given += f"\nthe layer: {path}"
    error = ShapeError(f"{layer!r} cannot take this input{': ' + what if what else ''}", given, expected, fix, where)
    error.layer = layer  # type: ignore[attr-defined]
    return error


class FunctionLayer(Layer):
    """A layer that calls a function of `nn.functional`: `class ELU(FunctionLayer, function=F.elu)`. The function's
    tensors are the layer's inputs, its other parameters (or those that `settings` names) the layer's settings.
    PyTorch's older parameters for `reduction` are not settings. If inputs have
    space axes, settings of windows get one number for each of these.

    >>> def scale(input: Tensor, by: float = 2.0) -> Tensor: return input * by
    >>> class Scale(FunctionLayer, function=scale):
    ...     pass
    >>> Scale(by=3.0), Scale(3.0)(Tensor([1.0])).tolist()
    (Scale(by=3.0), [3.0])
    """
    function: Callable[..., Any]
    settings = inspect.Signature()
    passed: tuple[str, ...] = ()                    # names of the settings passed to the function
    kernel_size: Any                                # also the default of `stride`
    windows = 0                                     # rank of the windows, if `rank` is not it

    def __init_subclass__(cls, function: Callable[..., Any] | None = None, settings: Sequence[str] | None = None,
                          **constants: Any) -> None:
        if function is not None:
            cls.function = staticmethod(inspect.unwrap(function))          # an error names the layer
            known = inspect.signature(function).parameters
            taken = [known[name] for name in settings or known if settings or _is_setting(known[name])]
            cls.settings = inspect.Signature(taken)
            cls.passed = tuple(p.name for p in taken)
            cls.shows = tuple(p.name for p in taken if p.name != "inplace" and _is_shown(p))
        super().__init_subclass__(**constants)

    def __init__(self, *settings: Any, **named: Any):
        bound = self.settings.bind(*settings, **named)
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            if (axes := self.windows or self.rank) and name in _WINDOW_MINIMA and value is not None:
                value = each(value, axes, name, _WINDOW_MINIMA[name])
            setattr(self, name, self.kernel_size if name == "stride" and value is None else value)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        if self.rank:
            self._check_space([*inputs, *named.values()][0])
        return self.function(*inputs, **named, **{name: getattr(self, name) for name in self.passed})


def _is_setting(p: inspect.Parameter) -> bool:
    """Return whether a function's parameter is a setting of its layer: neither an input nor an older form of
    `reduction`."""
    return str(p.annotation) != "Tensor" and p.name not in ("size_average", "reduce")


def _is_shown(p: inspect.Parameter) -> bool:
    """Return whether repr shows a setting: tensors and functions are not shown."""
    return not any(kind in str(p.annotation) for kind in ("Tensor", "Callable"))
