"""Define Module, for models written as in PyTorch. In: a class with `forward`. Out: a model with PyTorch's methods.

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(2, 16), nn.Linear(16, 1)
        def forward(self, x):
            return self.last(F.relu(self.first(x)))

No other part of glassgrad needs it: any object is a model, and `nn.state` finds its tensors. A Module adds PyTorch's
names. Its parameters are the float tensors that require gradients, or did when they were set; its other tensors, such
as running statistics, are buffers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.base.settings import Context, settings
from glassgrad.compiler.graph import DType, dtypes
from glassgrad.nn.modules.object_tree import ObjectPart, walk
from glassgrad.nn.state.state_dict import Loaded, get_state_dict, load_state_dict
from glassgrad.tensor.checks import cannot_take, checked
from glassgrad.tensor.jit_access import wants_gradient
from glassgrad.tensor.tensor import Tensor


def Parameter(data: Any, requires_grad: bool = True) -> Tensor:
    """A tensor that an optimizer trains.

    >>> Parameter(Tensor([1.0])).requires_grad
    True
    """
    tensor = data if isinstance(data, Tensor) else Tensor(data)
    return tensor.requires_grad_(requires_grad)


class _Calls(threading.local):
    """The modules that are being called, outermost first."""

    def __init__(self) -> None:
        self.open: list[Module] = []


_calls = _Calls()


class Module:
    """The base of models with a `forward`.

    >>> class Scale(Module):
    ...     def __init__(self): self.weight = Parameter(Tensor([2.0]))
    ...     def forward(self, x): return x * self.weight
    >>> Scale()(Tensor([3.0])).tolist(), list(Scale().state_dict())
    ([6.0], ['weight'])
    """
    training: bool | None = True     # as in PyTorch; None: use `Tensor.training`
    buffer_names: tuple[str, ...] = ()      # attributes that are never trained
    parameter_names: tuple[str, ...] = ()   # attributes that required gradients when they were set, frozen or not
    temporary_names: tuple[str, ...] = ()   # buffers that state_dict leaves out
    passing_names: tuple[str, ...] = ()     # attributes set during a call, such as attention weights to inspect
    all_are_parameters = False              # whether tensors that never required gradients are parameters
    forward: Any

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor):
            self._note(name, value, vars(self).get(name))
        object.__setattr__(self, name, value)

    def _note(self, name: str, value: Tensor, before: Any) -> None:
        """Record whether the tensor attribute is a parameter, a buffer or temporary."""
        if value.requires_grad:
            kind = "parameter_names"
        elif isinstance(before, Tensor):                # what replaces a buffer is a buffer
            kind = "buffer_names" if wants_gradient(before) is False and name not in self.parameter_names else ""
        else:
            kind = "passing_names" if any(module is self for module in _calls.open) else ""
        if kind and name not in getattr(self, kind):
            self.__dict__[kind] = (*getattr(self, kind), name)

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        if not hasattr(type(self), "forward"):
            raise InputError(f"{type(self).__name__} has nothing to call", given="a Module without a forward",
                             expected="a method that computes the result", fix="write def forward(self, x): ...")
        return self._call_in_mode(inputs, options)

    def _call_in_mode(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Call `forward` in the mode set by `train()` or `eval()`, if one was set."""
        _calls.open.append(self)
        try:
            mode = self.training
            if mode is None or mode == bool(settings.TRAINING):
                return self.forward(*inputs, **options)
            with Context(TRAINING=int(mode)):
                return self.forward(*inputs, **options)
        finally:
            _calls.open.pop()

    # -- parameters, buffers and submodules ------------------------------------------------------------------
    def state_dict(self, prefix: str = "") -> dict[str, Any]:
        """Return every tensor under its dotted name."""
        return get_state_dict(self, prefix)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Loaded:
        """Load the values of a state dictionary; return the missing and unexpected names."""
        return load_state_dict(self, dict(state_dict), strict)

    def named_parameters(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        """The tensors that are trained, each once, with their names.

        >>> class Net(Module):
        ...     def __init__(self): self.a, self.seen = Parameter(Tensor([1.0])), Tensor([0], requires_grad=False)
        >>> [name for name, _ in Net().named_parameters()], [name for name, _ in Net().named_buffers()]
        (['a'], ['seen'])
        """
        yield from self._named(prefix, recurse, trained=True)

    def named_buffers(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        """The tensors that are not trained, each once, with their names."""
        yield from self._named(prefix, recurse, trained=False)

    def parameters(self, recurse: bool = True) -> Iterator[Tensor]:
        """The tensors that are trained, each once."""
        return (tensor for _, tensor in self.named_parameters(recurse=recurse))

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """The tensors that are not trained, each once."""
        return (tensor for _, tensor in self.named_buffers(recurse=recurse))

    def _named(self, prefix: str, recurse: bool, trained: bool) -> Iterator[tuple[str, Tensor]]:
        seen: set[int] = set()
        for place in walk(self, prefix, lambda value: isinstance(value, Tensor)):
            if id(place.value) not in seen and (recurse or place.holder is self) and _is_parameter(place) is trained:
                seen.add(id(place.value))
                yield place.name, place.value

    def named_children(self) -> Iterator[tuple[str, Any]]:
        """The models and layers that are attributes of this one, each once."""
        first: dict[int, tuple[str, Any]] = {}
        for name, value in vars(self).items():
            if isinstance(value, Module):
                first.setdefault(id(value), (name, value))
        return iter(first.values())

    def children(self) -> Iterator[Any]:
        """The models and layers that are attributes of this one, without names."""
        return (child for _, child in self.named_children())

    def named_modules(self, prefix: str = "", memo: set[int] | None = None) -> Iterator[tuple[str, Any]]:
        """This model, and all models and layers inside, with names; each once. `memo` has the ids of those already
        returned."""
        seen = set() if memo is None else memo
        if id(self) not in seen:
            seen.add(id(self))
            yield prefix, self
            for name, child in self.named_children():
                yield from child.named_modules(f"{prefix}.{name}" if prefix else name, seen)

    def modules(self) -> Iterator[Any]:
        """This model, and all models and layers inside, without names."""
        return (module for _, module in self.named_modules())

    def apply(self, function: Callable[[Any], Any]) -> Any:
        """Call a function with every model and layer inside, then with this one."""
        for _, module in reversed(list(self.named_modules())):
            function(module)
        return self

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add an attribute that is never trained; if it is not persistent, it is not in the state dictionary either."""
        self.buffer_names = (*self.buffer_names, name)
        if not persistent:
            self.temporary_names = (*self.temporary_names, name)
        setattr(self, name, None if tensor is None else tensor.requires_grad_(False))

    def register_parameter(self, name: str, param: Tensor | None) -> None:
        """Add an attribute that is trained."""
        setattr(self, name, None if param is None else Parameter(param))

    def add_module(self, name: str, module: Any) -> None:
        """Add an attribute that is a model or layer."""
        setattr(self, name, module)

    # -- modes and conversions -------------------------------------------------------------------------------
    def train(self, mode: bool = True) -> Any:
        """Make calls of this model train (or not) from now on, whatever `Tensor.training` says."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Any:
        """Make calls of this model not train from now on."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Set whether its float tensors are trained; buffers never are."""
        for place in walk(self, "", lambda value: isinstance(value, Tensor)):
            if place.value.dtype in dtypes.floats and not _is_buffer(place):
                place.value.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset all gradients."""
        for tensor in self.parameters():
            tensor.grad = None if set_to_none or tensor.grad is None else tensor.grad.zeros_like()

    def to(self, device: Any = None, dtype: DType | str | None = None) -> Any:
        """Move its tensors to another device, or convert its float tensors to another type."""
        if isinstance(device, DType):
            device, dtype = None, device
        for tensor in [*self.parameters(), *self.buffers()]:
            if dtype is not None and tensor.dtype in dtypes.floats:
                tensor.replace(tensor.cast(dtype))
            if device is not None:
                tensor.to_(device)
        return self

    def half(self) -> Any: return self.to(dtypes.float16)
    def bfloat16(self) -> Any: return self.to(dtypes.bfloat16)
    def float(self) -> Any: return self.to(dtypes.float32)
    def double(self) -> Any: return self.to(dtypes.float64)
    def cpu(self) -> Any: return self.to("CPU")

    def __repr__(self) -> str:
        rows = [f"  ({name}): {child!r}".replace("\n", "\n  ") for name, child in self.named_children()]
        return f"{type(self).__name__}(" + ("\n" + "\n".join(rows) + "\n" if rows else "") + ")"


def _is_buffer(place: ObjectPart) -> bool:
    return isinstance(place.holder, Module) and place.key in place.holder.buffer_names


def _is_parameter(place: ObjectPart) -> bool:
    if place.value.dtype not in dtypes.floats or _is_buffer(place):
        return False
    known = isinstance(place.holder, Module) and \
        (place.holder.all_are_parameters or place.key in place.holder.parameter_names)
    return known or wants_gradient(place.value) is not False


# -- containers ----------------------------------------------------------------------------------------------
class NumberedModules:
    """The base of containers whose modules may be replaced, inserted and deleted by number."""

    def _modules_by_name(self) -> dict[str, Any]:
        """Return the modules, in order."""
        raise NotImplementedError

    def _put(self, name: str, module: Any) -> None:
        """Set the module with this name."""
        raise NotImplementedError

    def _renumber(self, modules: Iterable[Any]) -> None:
        for name in self._modules_by_name():
            del vars(self)[name]
        for number, module in enumerate(modules):
            self._put(str(number), module)

    def __setitem__(self, at: int, module: Any) -> None:
        self._put(list(self._modules_by_name())[at], module)

    def __delitem__(self, at: int | slice) -> None:
        left = list(self._modules_by_name().values())
        del left[at]
        self._renumber(left)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules_by_name().values())

    def __len__(self) -> int:
        return len(self._modules_by_name())

    def append(self, module: Any) -> Any:
        """Add a module at the end."""
        self._put(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Any]) -> Any:
        """Add several modules at the end."""
        for module in checked(type(self).__name__, "list", "modules", modules, "nn"):
            self.append(module)
        return self

    def insert(self, index: int, module: Any) -> Any:
        """Add a module before another one.

        >>> [type(each).__name__ for each in ModuleList([Module()]).insert(0, ModuleList())]
        ['ModuleList', 'Module']
        """
        modules = list(self)
        modules.insert(index, module)
        self._renumber(modules)
        return self

    def pop(self, at: int = -1) -> Any:
        """Remove a module, and return it."""
        found = list(self)[at]
        del self[at]
        return found


class ModuleList(NumberedModules, Module):
    """A list of models, named 0, 1, ...

    >>> from glassgrad.nn.layers.linear import Linear
    >>> list(ModuleList([Linear(1, 2), Linear(2, 1)]).state_dict())
    ['0.weight', '0.bias', '1.weight', '1.bias']
    """

    def __init__(self, modules: Iterable[Any] | None = None):
        self.extend(modules or ())

    def _modules_by_name(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name.isdigit()}

    def _put(self, name: str, module: Any) -> None:
        vars(self)[name] = module

    def __getitem__(self, at: int | slice) -> Any:
        return type(self)(list(self)[at]) if isinstance(at, slice) else list(self)[at]


class ParameterList(ModuleList):
    """A list of tensors, named 0, 1, ..., all trained."""
    all_are_parameters = True

    def _put(self, name: str, module: Any) -> None:
        super()._put(name, Parameter(module))


class ModuleDict(Module):
    """A dictionary of models.

    >>> from glassgrad.nn.layers.linear import Linear
    >>> list(ModuleDict({"up": Linear(1, 2)}).state_dict())
    ['up.weight', 'up.bias']
    """

    def __init__(self, modules: Mapping[str, Any] | None = None):
        if not hasattr(modules, "items") and modules is not None:
            raise cannot_take(type(self).__name__, "modules", modules, "a dict", f"see help(nn.{type(self).__name__})")
        for name, module in (modules or {}).items():
            self[name] = module

    def __setitem__(self, name: str, module: Any) -> None: vars(self)[name] = module
    def __getitem__(self, name: str) -> Any: return vars(self)[name]
    def __contains__(self, name: object) -> bool: return name in vars(self) and name != "training"
    def __iter__(self) -> Iterator[str]: return (name for name in vars(self) if name != "training")
    def __len__(self) -> int: return len(list(iter(self)))
    def keys(self) -> Iterable[str]: return list(self)
    def values(self) -> Iterable[Any]: return [self[name] for name in self]
    def items(self) -> Iterable[tuple[str, Any]]: return [(name, self[name]) for name in self]


class ParameterDict(ModuleDict):
    """A dictionary of tensors, all trained."""
    all_are_parameters = True

    def __setitem__(self, name: str, module: Any) -> None:
        super().__setitem__(name, Parameter(module))
