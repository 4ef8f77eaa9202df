"""Define PyTorch's Tensor: glassgrad's, except for calls that mean something else there. In, out: tensors of this
class.
"""

from __future__ import annotations

from typing import Any

from glassgrad.compat.torch.devices import device as Device
from glassgrad.compiler.graph import DType, UOp, dtypes, toposort
from glassgrad.compiler.graph.gradient import passes_to
from glassgrad.tensor.autograd.gradient_leaves import leaves_among
from glassgrad.tensor.checks import REQUIRED, arguments
from glassgrad.tensor.jit_access import wants_gradient
from glassgrad.tensor.tensor import Tensor
from glassgrad.tensor.tensor_base import Self

_INSTEAD = {"cuda": 'write x.to("cuda")', "is_cuda": 'write x.device.type == "cuda"', "get_device": "write x.device",
            "register_hook": "hooks are not here; read x.grad after backward, or write an autograd.Function"}


class TorchTensor(Tensor):
    """A tensor as scripts of PyTorch expect it; everything that is computed from it has this class.

    >>> x = TorchTensor([[1, 5], [7, 2]])
    >>> x.max(1).values.tolist(), x.max(1).indices.tolist(), type(Tensor([1]) + x) is TorchTensor
    ([5.0, 7.0], [1, 0], True)
    """
    __slots__ = ()

    def __init__(self, *given: Any, dtype: DType | str | None = None, device: Any = None,
                 requires_grad: bool | None = None):
        """Construct a tensor as PyTorch does: the values as floats, whatever their type is, or a tensor of these sizes.

        >>> TorchTensor([1, 2]).dtype, TorchTensor(2, 3).shape
        (dtypes.float32, (2, 3))
        """
        data = given[0] if len(given) == 1 and not isinstance(given[0], int) else Tensor.zeros(*given or (0,))
        if dtype is None and not isinstance(data, (Tensor, UOp)):
            dtype = dtypes.default_float
        super().__init__(data, None if device is None else str(device), dtype, requires_grad)

    @classmethod
    def _made_of(cls, data: Any, **options: Any) -> Self:
        made = cls.__new__(cls)
        Tensor.__init__(made, data, **options)
        return made

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a tensor has no {name!r}: " + _INSTEAD.get(name, "docs/api.md says what to use instead"))

    def _as_grad(self, node: UOp, create_graph: bool) -> UOp: return node if create_graph else node.detach()
    def _sum_dtype(self, dtype: DType) -> DType: return dtype if dtype.kind == "f" else dtypes.int64

    def max(self, axis: Any = None, keepdim: bool = False, *, dim: int | None = None, **spelling: Any) -> Any:
        """The largest value; along an axis the values and their indices; with another tensor the larger of each pair.

        >>> TorchTensor([[1, 5], [7, 2]]).max(0).indices.tolist()
        [1, 0]
        """
        if isinstance(axis, int):
            axis, dim = None, axis
        return super().max(axis, keepdim, dim=dim, **spelling)

    def min(self, axis: Any = None, keepdim: bool = False, *, dim: int | None = None, **spelling: Any) -> Any:
        """The smallest value; along an axis the values and their indices; with another tensor the smaller of each pair.

        >>> TorchTensor([[1, 5], [7, 2]]).min(0).values.tolist()
        [1.0, 2.0]
        """
        if isinstance(axis, int):
            axis, dim = None, axis
        return super().min(axis, keepdim, dim=dim, **spelling)

    def where(self, yes: Any = REQUIRED, no: Any = REQUIRED, **spelling: Any) -> Self:
        """This tensor where a condition is true, elsewhere `no`; if this tensor is the condition, `yes` where it is
        true.

        >>> x = TorchTensor([3, 1, 2])
        >>> x.where(x > 1, -100).tolist(), (x > 1).where(x, 0.0).tolist()
        ([3.0, -100.0, 2.0], [3.0, 0.0, 2.0])
        """
        if isinstance(yes, Tensor) and yes.dtype is dtypes.bool:
            return Tensor.where(yes, self, no, **spelling)  # type: ignore[return-value]
        return super().where(yes, no, **spelling)

    @property
    def requires_grad(self) -> bool:
        """Whether `backward` fills `grad` of this tensor, or of one that it was computed from.

        >>> w = TorchTensor([1.0], requires_grad=True)
        >>> (w * 2).requires_grad, w.detach().requires_grad, TorchTensor([1.0]).requires_grad
        (True, False, False)
        """
        if wants_gradient(self) is not None or self.uop.dtype.kind != "f":
            return bool(wants_gradient(self))
        return any(wants_gradient(leaf) for _, leaf in leaves_among(toposort([self.uop], passes_to)))

    @requires_grad.setter
    def requires_grad(self, value: bool | None) -> None:
        Tensor.requires_grad.fset(self, value)  # type: ignore[attr-defined]

    @property
    def device(self) -> Device:
        """The device that holds or will compute the values, as scripts of PyTorch ask for it.

        >>> x = TorchTensor([1.0], device="CPU")
        >>> x.device.type, x.device == "CPU", str(x.device)
        ('cpu', True, 'cpu')
        """
        return Device.named(super().device)

    @property
    def nbytes(self) -> Any:  # type: ignore[override]
        """Bytes of all elements: no method, as in PyTorch.

        >>> TorchTensor(2, 3).nbytes
        24
        """
        return super().nbytes()

    @property
    def T(self) -> Self:
        """All axes in reverse order.

        >>> TorchTensor(1, 1, 3).T.shape
        (3, 1, 1)
        """
        return self.permute(*reversed(range(self.ndim)))

    def masked_fill(self, mask: Any, value: Any = REQUIRED, **spelling: Any) -> Self:
        """This tensor with `value`, in this tensor's dtype, where a mask is true.

        >>> TorchTensor([1, 2]).masked_fill(TorchTensor([0, 1]) > 0, 5).tolist()
        [1.0, 5.0]
        """
        mask, value = arguments("masked_fill", spelling, mask=mask, value=value)
        exact = isinstance(value, float) and value.is_integer() and self.dtype.kind in "iu"    # avoids a cast to float
        return super().masked_fill(mask, int(value) if exact else value).cast(self.dtype)
