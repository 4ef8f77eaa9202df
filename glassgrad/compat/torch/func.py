"""Provide torch.func: function transforms. In: a function of tensors, or a model. Out: its derivatives, the function
over a batch, or the result of the model with other weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.nn.modules.object_tree import ObjectPart, walk
from glassgrad.tensor.autograd.function import custom_gradient
from glassgrad.tensor.autograd.transforms import grad, jvp, value_and_grad, vmap as _vmap
from glassgrad.tensor.tensor import Tensor

__all__ = ["functional_call", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "vjp", "vmap"]

Function = Callable[..., Any]


def grad_and_value(func: Function, argnums: Any = 0) -> Function:
    """Return a function that returns the gradient, then the value."""
    both = value_and_grad(func, argnums)
    return lambda *args: tuple(reversed(both(*args)))


def vmap(func: Function, in_dims: Any = 0, out_dims: int = 0, **options: Any) -> Function:
    """Map a function written for one example over a batch."""
    return _vmap(func, in_dims, out_dims)


@custom_gradient(lambda g, y, x: g)
def _alias(x: Tensor) -> Tensor:
    """Return the same value at a separate node: a derivative by it is not one by what the function reads elsewhere."""
    return x


def vjp(func: Function, *primals: Tensor) -> tuple[Tensor, Function]:
    """Return the value, and a function from a gradient of the value to the gradients of the arguments.

    >>> value, back = vjp(lambda x: x ** 2, Tensor([1.0, 3.0]))
    >>> value.tolist(), [g.tolist() for g in back(Tensor([1.0, 10.0]))]
    ([1.0, 9.0], [[2.0, 60.0]])
    """
    own = [_alias(x) for x in primals]
    value = func(*own)
    return value, lambda gradient: tuple(value.gradient(*own, gradient=gradient, materialize_grads=True))


def jacrev(func: Function, argnums: int | Sequence[int] = 0, **options: Any) -> Function:
    """Return a function for the derivatives of each result by each argument: shape of the result, then of the argument.

    >>> jacrev(lambda x: x ** 2)(Tensor([1.0, 3.0])).tolist()
    [[2.0, 0.0], [0.0, 6.0]]
    """
    wanted = [argnums] if isinstance(argnums, int) else list(argnums)

    def call(*args: Any) -> Any:
        given = [_alias(a) if at in wanted else a for at, a in enumerate(args)]
        value = func(*given)
        flat, own = value.reshape(-1), [given[at] for at in wanted]
        rows = [flat[i].gradient(*own, materialize_grads=True) for i in range(flat.shape[0])]
        found = tuple([Tensor.stack(*parts).reshape(*value.shape, *x.shape) for parts, x in zip(zip(*rows), own)])
        return found[0] if isinstance(argnums, int) else found
    return call


jacfwd = jacrev          # the same derivatives; which direction costs less is nothing that a graph has to know


def hessian(func: Function, argnums: int = 0) -> Function:
    """Return a function for the second derivatives of a value.

    >>> hessian(lambda x: (x ** 3).sum())(Tensor([1.0, 2.0])).tolist()
    [[6.0, 0.0], [0.0, 12.0]]
    """
    return jacrev(jacrev(func, argnums), argnums)


# -- models --------------------------------------------------------------------------------------------------
def functional_call(module: Any, parameter_and_buffer_dicts: Any, args: Any = (),
                    kwargs: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """Call a model with these tensors, by name, in place of its own.

    >>> from glassgrad.nn import Linear
    >>> functional_call(Linear(1, 1), {"weight": Tensor([[2.0]]), "bias": Tensor([1.0])}, Tensor([[3.0]])).tolist()
    [[7.0]]
    """
    several = isinstance(parameter_and_buffer_dicts, (list, tuple))
    dicts = parameter_and_buffer_dicts if several else [parameter_and_buffer_dicts]
    given = {name: tensor for each in dicts for name, tensor in each.items()}
    with _in_place_of_its_own(module, given):
        return module(*(args if isinstance(args, tuple) else (args,)), **(kwargs or {}))


@contextmanager
def _in_place_of_its_own(module: Any, given: Mapping[str, Tensor]) -> Iterator[None]:
    parts = list(walk(module, "", lambda value: isinstance(value, Tensor)))
    named = {part.name: part for part in parts}
    unknown = [name for name in given if name not in named]
    if unknown:
        raise InputError("the model has no tensors of these names", given=", ".join(unknown),
                         expected=f"names among {', '.join(named)}", fix="take them from model.named_parameters()")
    new = {id(named[name].value): tensor for name, tensor in given.items()}      # one tensor may have several names
    changed = [part for part in parts if id(part.value) in new]
    try:
        for part in changed:
            _put(part, new[id(part.value)])
        yield
    finally:
        for part in changed:
            _put(part, part.value)


def _put(part: ObjectPart, value: Tensor) -> None:
    holder = part.holder if isinstance(part.holder, (list, dict)) else vars(part.holder)
    holder[part.key] = value
