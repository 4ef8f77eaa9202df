"""Define computations with custom gradients. In: a forward function and its backward. Out: tensors with that gradient.

    class Square(Function):                         @custom_gradient(lambda g, y, x: g * 2 * x)
        def forward(self, x):                       def square(x):
            self.x = x                                  return x * x
            return x * x
        def backward(self, g):
            return g * 2 * self.x

    Square.apply(Tensor([3.0]))                     square(Tensor([3.0]))

PyTorch's form, with static methods and `ctx`, works too. What `backward` computes with tensors can be differentiated
again. There is one call of `backward` for each result, the gradients of the others being zero.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from glassgrad.base.errors import GradientError, InputError
from glassgrad.compiler.graph import UOp, const, full
from glassgrad.tensor.autograd.custom_gradient import own_gradient
from glassgrad.tensor.tensor_base import TensorBase


class Function:
    """A computation with a custom gradient; subclass it and write `forward` and `backward`.

    >>> class Square(Function):
    ...     def forward(self, x):
    ...         self.x = x
    ...         return x * x
    ...     def backward(self, g): return g * 2 * self.x
    >>> x = Tensor([3.0])
    >>> y = Square.apply(x).sum().backward()
    >>> x.grad.tolist()
    [6.0]
    """

    def __init__(self, device: Any = None, *tensors: TensorBase):
        self.device = device
        self.saved_tensors: tuple[Any, ...] = ()
        self.needs_input_grad: tuple[bool, ...] = ()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the value."""
        raise InputError("this Function has no forward", given=type(self).__name__,
                         expected="a method forward(self, x, ...)", fix="write it in your subclass")

    def backward(self, *gradients: Any) -> Any:
        """Return the gradient of each tensor that `forward` was given (or None), from the gradients of its results."""
        raise InputError("this Function has no backward", given=type(self).__name__,
                         expected="a method backward(self, g)",
                         fix="write it in your subclass, or use the value where no gradient is asked for")

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors for `backward`, which finds them as `self.saved_tensors` (or `ctx.saved_tensors`)."""
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Do nothing: integer results need no mark."""

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Compute the value; gradients will pass through `backward`."""
        tensors = [a for a in args if isinstance(a, TensorBase)]
        self = cls(tensors[0].device if tensors else None, *tensors)
        self.needs_input_grad = tuple(isinstance(a, TensorBase) and a.dtype.kind == "f" for a in args)
        result = cls.forward(self, *args, **kwargs)      # ctx is the first argument of both forms
        results = result if isinstance(result, tuple) else (result,)
        outputs = tuple(_with_gradient(self, results, i, args) for i in range(len(results)))
        return outputs if isinstance(result, tuple) else outputs[0]


def _with_gradient(context: Function, results: tuple[Any, ...], number: int, args: tuple[Any, ...]) -> TensorBase:
    value = results[number]
    if not isinstance(value, TensorBase):
        raise InputError("forward must return tensors",
                         given=f"{type(value).__name__} from {type(context).__name__}.forward",
                         expected="a Tensor, or a tuple of them", fix="wrap it: Tensor(value)")
    if value.dtype.kind != "f":
        return value._with(value.uop.detach())
    is_tensor = [isinstance(a, TensorBase) for a in args]
    inputs = [a for a in args if isinstance(a, TensorBase)]
    like, sizes = _empty_like(inputs[0] if inputs else value), [(r.shape, r.dtype) for r in results]

    def backward(g: UOp, out: UOp, *nodes: UOp) -> tuple[UOp | None, ...]:
        given = [like._with(g if i == number else full(shape, 0, dtype)) for i, (shape, dtype) in enumerate(sizes)]
        found = _several(type(context).backward(context, *given))
        if len(found) == len(is_tensor):      # one per argument, as PyTorch has it
            found = [f for f, of_tensor in zip(found, is_tensor) if of_tensor]
        return _checked(found, nodes, f"{type(context).__name__}.backward", like)

    return value._with(own_gradient(value.uop, tuple(t.uop for t in inputs), backward))


def _empty_like(tensor: TensorBase) -> TensorBase:
    """Return a scalar of the same class and device, whose `_with` makes other tensors. A backward function outlives the
    call that made it, so it must not hold that call's tensors: a jit would find them."""
    return tensor._with(const(0.0))


def _several(found: Any) -> Any:
    return found if isinstance(found, (tuple, list)) else (found,)


def _checked(found: Any, nodes: tuple[UOp, ...], what: str, like: TensorBase) -> tuple[UOp | None, ...]:
    """Check that there is one gradient per input, of the input's shape. Gradients that are not tensors become tensors
    of the class of `like`."""
    if len(found) != len(nodes):
        raise GradientError(f"{what} gave the wrong number of gradients", given=f"{len(found)}",
                            expected=f"{len(nodes)}, one per tensor (None for no gradient)", fix="return a tuple")
    out: list[UOp | None] = []
    for i, (g, node) in enumerate(zip(found, nodes)):
        if g is not None and not isinstance(g, TensorBase):
            g = like._made_of(g)
        if g is not None and g.shape != node.shape:
            raise GradientError(f"{what} gave a gradient that does not fit",
                                given=f"shape {g.shape} for tensor {i} of {node.shape}",
                                expected="the tensor's own shape", fix="sum over the axes that were broadcast")
        out.append(None if g is None else g.uop.cast(node.dtype))
    return tuple(out)


def custom_gradient(backward: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: the function's gradient is `backward(gradient, result, *tensors)`, one value per tensor argument.

    >>> @custom_gradient(lambda g, y, x: g)
    ... def straight_through(x): return x.round()
    >>> x = Tensor([0.4, 1.6])
    >>> y = straight_through(x).sum().backward()
    >>> x.grad.tolist()
    [1.0, 1.0]
    """
    if not callable(backward):
        raise InputError("custom_gradient needs the backward function", given=f"{backward!r}",
                         expected="a function of (gradient, result, *tensors)",
                         fix="write @custom_gradient(lambda g, y, x: ...)")

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> TensorBase:
            value = function(*args, **kwargs)
            if not isinstance(value, TensorBase):
                raise InputError("a function with a gradient of its own returns one tensor", given=type(value).__name__,
                                 expected="a Tensor", fix="for several results write a Function subclass")
            like = _empty_like(value)

            def on_nodes(g: UOp, out: UOp, *nodes: UOp) -> tuple[UOp | None, ...]:
                found = _several(backward(*[like._with(n) for n in (g, out, *nodes)]))
                return _checked(found, nodes, f"the backward of {function.__name__}", like)

            inputs = tuple(a.uop for a in args if isinstance(a, TensorBase))
            return value._with(own_gradient(value.uop, inputs, on_nodes))
        return call
    return decorate
