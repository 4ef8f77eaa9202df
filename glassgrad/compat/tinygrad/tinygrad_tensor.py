"""Define tinygrad's Tensor: glassgrad's, except for calls that mean something else there. In, out: tensors of this
class.

docs/from_tinygrad.md has a row for each such call, and says why glassgrad differs.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.compat.tinygrad.absent_methods import instead_of
from glassgrad.compiler.graph import UOp, const, ops as o
from glassgrad.compiler.graph.dtype import DType, dtype_by_name, dtypes, wrapped
from glassgrad.compiler.graph.gradient import passes_to
from glassgrad.compiler.graph.ops import Op
from glassgrad.tensor.autograd.gradient_leaves import leaves_among
from glassgrad.tensor.formulas.reductions import sum_dtype
from glassgrad.tensor.tensor import Tensor
from glassgrad.tensor.tensor_base import Self


class TinygradTensor(Tensor):
    """A tensor as scripts of tinygrad expect it; everything that is computed from it has this class.

    >>> x = TinygradTensor([100, 3], dtype=dtypes.uint8)
    >>> (x + 300).tolist(), (-TinygradTensor([True])).tolist(), type(Tensor([1]) + x) is TinygradTensor
    ([144, 47], [False], True)
    """
    __slots__ = ()

    def __init__(self, data: Any, device: str | None = None, dtype: DType | str | None = None,
                 requires_grad: bool | None = None):
        if dtype is not None and isinstance(data, (int, list, tuple)) and dtype_by_name(dtype).kind in "iu":
            data = _wrapped(data, dtype_by_name(dtype))
        super().__init__(data, device, dtype, requires_grad)

    def _with(self, uop: UOp, *others: Any) -> Self:
        made = super()._with(uop, *others)
        if uop.dtype.kind == "f":
            key = id(made)
            _COMPUTED[key] = weakref.ref(made, lambda _: _COMPUTED.pop(key, None))
        return made

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a tensor has no {name!r}: {instead_of(name)}")

    # -- integers that do not fit their type wrap around ----------------------------------------------------------
    def _number(self, value: Any, dtype: DType, op: Op = o.ADD) -> UOp:
        try:
            return super()._number(value, dtype, op)
        except InputError:
            return const(wrapped(value, dtype), dtype)

    @classmethod
    def full(cls, shape: int | Sequence[int], fill_value: Any, dtype: DType | str | None = None,
             device: str | None = None, requires_grad: bool | None = None, buffer: bool = True) -> Self:
        """A tensor filled with one value; an integer that does not fit its type wraps around.

        >>> TinygradTensor.full((2,), 300, dtype=dtypes.uint8).tolist()
        [44, 44]
        """
        if dtype is not None and dtype_by_name(dtype).kind in "iu" and isinstance(fill_value, int):
            fill_value = wrapped(fill_value, dtype_by_name(dtype))
        return super().full(shape, fill_value, dtype, device, requires_grad, buffer)

    def neg(self) -> Self:
        """The negative of each value; for bool, the logical not.

        >>> TinygradTensor([True, False]).neg().tolist()
        [False, True]
        """
        return self.bitwise_not() if self.dtype is dtypes.bool else super().neg()

    def _product_dtype(self, factors: DType) -> DType: return factors
    def _sum_dtype(self, dtype: DType) -> DType: return sum_dtype(dtype)

    def gelu(self, approximate: str = "tanh") -> Self:
        """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, unless approximate="none".

        >>> TinygradTensor([1.0]).gelu().item() == Tensor([1.0]).gelu("tanh").item()
        True
        """
        return super().gelu(approximate)

    # -- gradients ----------------------------------------------------------------------------------------------
    def clone(self, device: str | None = None, **spelling: Any) -> Self:
        """A copy in separate memory, with a copy of the gradient.

        >>> TinygradTensor([1.0]).clone().tolist()
        [1.0]
        """
        made = super().clone(device, **spelling)
        if self.grad is not None:
            made.grad = self.grad.clone(device)
        return made

    def backward(self, gradient: Any = None, retain_graph: bool = False, create_graph: bool = False) -> Self:
        """Set `grad` of every leaf, and of every live intermediate tensor between a leaf and this value.

        >>> x = TinygradTensor([1.0, 2.0])
        >>> y = x * 3
        >>> _ = y.sum().backward()
        >>> y.grad.tolist(), x.grad.tolist()
        ([1.0, 1.0], [3.0, 3.0])
        """
        super().backward(gradient, retain_graph, create_graph)
        on_the_way = _live_intermediates(self.uop.toposort())
        found: list[Any] = self.gradient(*on_the_way, gradient=gradient) if on_the_way else []
        for tensor, part in zip(on_the_way, found):
            tensor.grad = part if tensor.grad is None else tensor.grad + part
        return self


_COMPUTED: dict[int, weakref.ref[TinygradTensor]] = {}      # live float tensors that are not leaves


def _live_intermediates(nodes: Iterable[UOp]) -> list[TinygradTensor]:
    """Return the live intermediate tensors, of these nodes, that depend on leaves with gradients, in no fixed order."""
    order = list(nodes)
    leaves = [(n, t) for n, t in leaves_among(order) if t.dtype.kind == "f" and t.requires_grad is not False]
    between, held = {node for node, _ in leaves}, {id(leaf) for _, leaf in leaves}
    for node in order:
        if any(source in between for source in passes_to(node)):
            between.add(node)
    live = (reference() for reference in list(_COMPUTED.values()))
    return [t for t in live
            if t is not None and t.uop in between and t.requires_grad is not False and id(t) not in held]


def _wrapped(data: Any, dtype: DType) -> Any:
    """Return nested lists with integers wrapped around to a type."""
    if isinstance(data, (list, tuple)):
        return [_wrapped(value, dtype) for value in data]
    return wrapped(data, dtype) if type(data) is int and not dtype.min <= data <= dtype.max else data
