"""Define the state of a tensor and what its methods share. In: values or nodes. Out: `TensorBase`.

`Tensor` inherits flat mixins, one theme each (`methods/`), and each mixin inherits only the class here: it reads the
node, computes with formulas on nodes (`formulas/`), and makes a result with `_with`. A mixin imports neither `Tensor`
nor another mixin. Does not know any operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from glassgrad.base.errors import DeviceError, DTypeError, InputError
from glassgrad.base.source_lines import one_place
from glassgrad.compiler.graph import DType, Length, UOp, const, dtype_by_name, dtypes, ops as o
from glassgrad.engine import capture
from glassgrad.tensor import realize_and_read as running
from glassgrad.tensor.autograd import no_grad as no_gradient
from glassgrad.tensor.autograd.gradient_leaves import (RESET, UnreadGradient, distinct, has_initial_value, is_detached,
                                                       is_leaf, live_leaves, register_leaf, separate_node)
from glassgrad.tensor.broadcast import number, plain_number, size_from, whole
from glassgrad.tensor.formulas.arithmetic import as_float, in_accumulator
from glassgrad.tensor.formulas.bitcast import reread
from glassgrad.tensor.memory.disk import on_disk, reread_in_place, stored
from glassgrad.tensor.memory.file_mapping import of_file
from glassgrad.tensor.memory.python_values import is_torch, read_value
from glassgrad.tensor.memory.storage import Step, TensorStorage, share

if TYPE_CHECKING:
    from typing_extensions import Self
else:
    Self = "Self"        # Python 3.10 has none, and annotations are not evaluated

__all__ = ["Found", "Operand", "Self", "TensorBase"]

Operand = Any            # what may be used beside a tensor: a tensor, a number, a list or an array
_create = object.__new__


class Found(NamedTuple):
    """Values, and the indices at which they were found."""
    values: Any
    indices: Any


def _as_bool(value: Any) -> bool:
    """Return True or False if a user wrote 1 or 0."""
    if whole(value) is None:
        raise InputError("requires_grad is True, False or None", given=f"{value!r} of type {type(value).__name__}",
                         expected="True, False or None", fix="write requires_grad=True")
    return bool(value)


class TensorBase:
    """State and identity of a tensor: its graph node, its gradient, and whether it wants one."""
    __slots__ = ("uop", "_grad", "_requires_grad", "_device", "_storage", "_steps", "__weakref__")

    uop: UOp
    _grad: Any               # a tensor, None, RESET, or an UnreadGradient
    _requires_grad: bool | None
    _device: str | None      # the device of constants; a node in memory has its own
    _storage: TensorStorage | None         # what it shares with its views; None until it is viewed
    _steps: tuple[Step, ...]         # the movement ops from the storage's whole value to this tensor's

    def __init__(self, data: Any, device: str | None = None, dtype: DType | str | None = None,
                 requires_grad: bool | None = None):
        place, file = running.canonical_device(device), None
        if on_disk(place):
            place, file = None, place
        wanted = dtype_by_name(dtype) if dtype is not None else None
        self._grad = self._requires_grad = self._storage = None
        self._device = place
        if isinstance(data, UOp):
            self.uop = data
            self._device = place or (None if on_disk(data.device) else data.device)
        elif isinstance(data, TensorBase):
            self.uop = data.uop
            self._device = place or data._device
        elif isinstance(data, Length):
            self.uop = const(size_from(data))
        elif hasattr(data, "__fspath__"):
            self.uop = of_file(data, wanted or dtypes.uint8, place or running.default_device())
        else:
            value = read_value(data, wanted)
            self.uop = running.store(value, place or running.default_device())
        if place is not None and self.uop.device not in (None, place):
            self.uop = self.uop.copy_to(place)
        if wanted is not None:
            self.uop = self.uop.cast(wanted)
        if file is not None:
            self.uop = stored(self.uop, self.device, file)
        if isinstance(data, TensorBase) and requires_grad is not False and live_leaves((self.uop,)):
            self.uop = distinct(self.uop)            # its gradient is separate from that of the tensor it was made of
        register_leaf(self)
        if no_gradient.open_blocks:
            capture.note_made(self)
        if requires_grad is not None:
            self.requires_grad = requires_grad

    @classmethod
    def _made_of(cls, data: Any, **options: Any) -> Self:
        """Make a tensor of this class from data, for methods: the constructor of a subclass may have another
        meaning."""
        return cls(data, **options)

    def _with(self, uop: UOp, *others: Any) -> Self:
        """Make a tensor of a node that was computed from this tensor and others; all must be on one device. (Others
        that are not tensors have no device.) The result is of this class, or of a subclass of it that one of the others
        has."""
        if others:
            return self._kin(*others)._with_device(uop, self, others)
        made = _create(self.__class__)
        made.uop, made._device = uop, self._device
        made._grad = made._requires_grad = made._storage = None
        if no_gradient.open_blocks:
            if (ended := no_gradient.cut(uop)) is not None:
                made.uop, made._requires_grad, uop = ended, False, ended
            capture.note_made(made)
        if uop.op is o.BUFFER:
            uop.arg.add_reader(ref(made))
        return made

    def _with_device(self, uop: UOp, first: TensorBase, others: tuple[Any, ...]) -> Self:
        """Make a tensor of this one's class, on the device that the operands share."""
        made, place = self._with(uop), first._device
        for other in others:
            if isinstance(other, TensorBase) and other._device is not first._device:
                place = first._shared_device(other) or place
        made._device = place
        return made

    def _view(self, uop: UOp) -> Self:
        """Make a tensor that shows elements of this one: both see a write to either."""
        made = self._with(uop)
        if not on_disk(uop.device):
            share(made, self)
        return made

    @classmethod
    def _of_node(cls, uop: UOp) -> Self:
        """Make a tensor of a node."""
        made = _create(cls)
        made.uop = uop
        made._grad = made._requires_grad = made._device = made._storage = None
        if uop.op is o.BUFFER:
            uop.arg.add_reader(ref(made))
        if no_gradient.open_blocks:
            capture.note_made(made)
        return made

    @classmethod
    def _of_result(cls, uop: UOp) -> Self:
        """Make the only tensor over a BUFFER; the jit's replays make their results so."""
        made = _create(cls)
        made.uop, made._device = uop, uop.arg.device
        made._grad = made._requires_grad = made._storage = None
        buffer, reference = uop.arg, ref(made)
        buffer.leaves[:] = (reference,)
        buffer.add_reader(reference)
        return made

    @classmethod
    def _leaf(cls, uop: UOp, device: str | None, requires_grad: bool | None) -> Self:
        """Make a tensor that is not computed from others."""
        made = cls._of_node(uop)
        made._device = running.canonical_device(device)
        if on_disk(made._device):
            made.uop = stored(uop, running.default_device(), str(made._device))
        register_leaf(made)
        if requires_grad is not None:
            made.requires_grad = requires_grad
        return made

    # -- shape, type and device ------------------------------------------------------------------------------
    @property
    def shape(self) -> tuple[Any, ...]:
        """The size of every axis: ints, or lengths where a `Variable` is in them.

        >>> Tensor([[1, 2, 3], [4, 5, 6]]).shape
        (2, 3)
        """
        return self.uop.shape

    @property
    def dtype(self) -> DType:
        """The type of the elements.

        >>> Tensor([1, 2]).dtype, Tensor([1.0, 2.0]).dtype
        (dtypes.int32, dtypes.float32)
        """
        return self.uop.dtype

    @property
    def device(self) -> str:
        """The name of the device that holds or will compute the values.

        >>> Tensor([1, 2]).device == Device.DEFAULT
        True
        """
        return self.uop.device or self._device or running.default_device()

    @property
    def ndim(self) -> int:
        """The number of axes.

        >>> Tensor.zeros(2, 3).ndim
        2
        """
        return len(self.uop.shape)

    @property
    def lazydata(self) -> UOp:
        """The graph node of this tensor; the older name of `uop`.

        >>> (Tensor([1]) + 1).lazydata.op
        Ops.ADD
        """
        return self.uop

    def dim(self) -> int:
        """The number of axes, by PyTorch's name.

        >>> Tensor.zeros(2, 3).dim()
        2
        """
        return len(self.uop.shape)

    ndimension = dim

    def numel(self) -> Any:
        """The number of elements.

        >>> Tensor.zeros(2, 3).numel()
        6
        """
        return math.prod(self.uop.shape)

    nelement = numel

    def element_size(self) -> int:
        """Bytes per element.

        >>> Tensor([1.0]).element_size()
        4
        """
        return self.uop.dtype.itemsize

    def nbytes(self) -> Any:
        """Bytes of all elements.

        >>> Tensor.zeros(2, 3).nbytes()
        24
        """
        return self.numel() * self.element_size()

    def is_floating_point(self) -> bool:
        """Whether the elements are floats.

        >>> Tensor([1]).is_floating_point()
        False
        """
        return self.uop.dtype.kind == "f"

    # -- whether it wants a gradient -------------------------------------------------------------------------
    @property
    def requires_grad(self) -> bool | None:
        """Whether `backward` fills `grad`. True: it does. False: never. None, the default: it does for a leaf, which
        costs nothing until `grad` is read.

        >>> Tensor([1.0], requires_grad=True).requires_grad
        True
        """
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool | None) -> None:
        if value is not None and value is not True and value is not False:
            value = _as_bool(value)
        if value and self.uop.dtype.kind != "f":
            raise DTypeError("only float tensors have gradients",
                             given=f"requires_grad=True on {self.uop.dtype.name}", expected="a float dtype",
                             fix="cast it first: x.float()")
        if value:
            if not is_leaf(self) and not is_detached(self.uop):    # a computed node may be shared by equal expressions
                self.uop = separate_node(self.uop)
            register_leaf(self)
            has_initial_value(self)
        self._requires_grad = value

    @property
    def grad(self) -> Self | None:
        """The gradient that `backward` left here: of a loss, for this tensor. `x.grad = None` resets it.

        >>> x = Tensor([1.0, 2.0])
        >>> (x * 3).sum().backward().item(), x.grad.tolist()
        (9.0, [3.0, 3.0])
        """
        grad = self._grad
        if grad.__class__ is UnreadGradient:
            grad = self._grad = grad.tensor(self)
        return None if grad is RESET else grad

    @grad.setter
    def grad(self, value: Self | None) -> None:
        capture.note_gradient(self, value is None)
        self._grad = RESET if value is None and self._grad is not None else value

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set `requires_grad` and return the tensor itself.

        >>> Tensor([1.0]).requires_grad_().requires_grad
        True
        """
        self.requires_grad = requires_grad
        return self

    # -- types and devices -----------------------------------------------------------------------------------
    def cast(self, dtype: DType | str) -> Self:
        """The same values in another element type.

        >>> Tensor([1.7, -1.7]).cast(dtypes.int32).tolist()
        [1, -1]
        """
        wanted = dtype_by_name(dtype)
        return self if wanted is self.uop.dtype else self._with(self.uop.cast(wanted))

    def bitcast(self, dtype: DType | str) -> Self:
        """The same bits read as another element type. If the size of an element changes, so does the last axis. The
        result is a view: both tensors see a write to either.

        >>> Tensor([1.0]).bitcast(dtypes.int32).tolist(), Tensor([1.0]).bitcast(dtypes.uint8).tolist()
        ([1065353216], [0, 0, 128, 63])
        """
        wanted = dtype_by_name(dtype)
        if on_disk(self.uop.device):
            return self._with(reread_in_place(self.uop, wanted))
        bits = reread(self.uop, wanted)
        made = self._with(bits)
        share(made, self, bits if wanted is not self.uop.dtype else None)
        return made

    def to(self, device: str | DType | Self | None = None, dtype: DType | str | None = None, *,
           copy: bool = False, non_blocking: bool = False, memory_format: Any = None) -> Self:
        """The same values on another device (the tensor itself if it is already there, unless `copy`). As in PyTorch,
        `to` also takes another type, or another tensor whose device and type to take. A device may be a file,
        "disk:/path". Values in memory are copied at once; others are computed first, on their own device, when the
        result is needed.

        >>> Tensor([1, 2]).to(Device.DEFAULT).tolist(), Tensor([1, 2]).to(dtypes.float32).tolist()
        ([1, 2], [1.0, 2.0])
        """
        if copy:
            moved = self.to(device, dtype)
            return moved._with(running.copied(moved.uop, moved.device)) if moved is self else moved
        if isinstance(device, TensorBase):
            return self.cast(device.dtype).to(device.device, dtype)
        if isinstance(device, DType):
            return self.cast(device)
        if dtype is not None:
            return self.cast(dtype).to(device)
        place = running.canonical_device(device) or running.default_device()
        if place == self.device:
            return self
        if on_disk(place):
            node = stored(self.uop, self.device, place)
        elif on_disk(self.uop.device):
            node = running.read_from_file(self.uop, place)
        else:
            node = running.copied_to(self.uop, place, self._requires_grad is not False)
        moved = self._with(node)
        moved._device = place
        return moved

    def to_(self, device: str | None) -> Self:
        """Move this tensor itself to another device.

        >>> Tensor([1, 2]).to_(Device.DEFAULT).tolist()
        [1, 2]
        """
        moved = self.to(device)
        if moved is not self:
            self.uop, self._device = moved.uop, moved._device
            register_leaf(self)
        return self

    def _rebind(self, value: Self, leaf: bool = False) -> Self:
        """Give this tensor and its views the new value of x += y (methods/assignment.py)."""
        raise NotImplementedError

    # -- formulas --------------------------------------------------------------------------------------------
    def _formula(self, formula: Callable[..., UOp], *options: Any) -> Self:
        """Apply a formula of several ops on floats: float16 and bfloat16 are computed in float32 and rounded once."""
        with one_place():
            node = in_accumulator(lambda x: formula(x, *options), as_float(self.uop))
        return self._with(node)

    def _combined(self, formula: Callable[[Any, Any], UOp], other: Any, swapped: bool = False,
                  beside: str = "beside a tensor") -> Self:
        """Apply a formula to this and another operand: a tensor, a number or a list."""
        x, y = self.uop, self._operand(other, beside)
        return self._with(formula(y, x) if swapped else formula(x, y), other)

    # -- operands --------------------------------------------------------------------------------------------
    def _shared_device(self, other: TensorBase) -> str | None:
        """Return the device of two tensors, at least one of which was made for a certain device."""
        mine, theirs = self.uop.device or self._device, other.uop.device or other._device
        if mine is not None and theirs is not None and mine != theirs:
            raise DeviceError("operands live on different devices", given=f"{mine} and {theirs}", expected="one device",
                              fix=f'move one: x.to("{theirs if on_disk(mine) else mine}")')
        return self._device or other._device

    def _kin(self, *others: Any) -> Self:
        """Return the tensor whose class the result has: this one, or one of a subclass among the others, so that an
        adapter's tensor beside a plain one gives the adapter's."""
        found = self
        for other in others:
            if other.__class__ is not found.__class__ and isinstance(other, found.__class__):
                found = other
        return found

    _number = staticmethod(number)       # makes a node of a number; a subclass may accept numbers that do not fit

    def _operand(self, value: Any, beside: str = "beside a tensor") -> Any:
        """Return what the user wrote next to this tensor, for a formula: the node of a tensor, list or array. A Python
        number stays one, and takes the type of the node beside it."""
        if isinstance(value, TensorBase):
            if value._device is not self._device:
                self._shared_device(value)
            return value.uop
        return self._beside(value).uop if hasattr(value, "__len__") else plain_number(value, beside)

    def _sum_dtype(self, dtype: DType) -> DType:
        """Return the type of sums and products of elements of this type. A subclass may use another."""
        return dtype if dtype.kind == "f" or dtype is dtypes.uint64 else dtypes.int64

    def _table(self, values: Any, dtype: DType = dtypes.int32) -> UOp:
        """Store constant values that a formula needs on this tensor's device."""
        return self._made_of(values, device=self.device, dtype=dtype).uop

    def _beside(self, value: Any) -> Self:
        """Make a tensor of what the user wrote next to this one."""
        if isinstance(value, TensorBase):
            return value  # type: ignore[return-value]
        if isinstance(value, (list, tuple)) or hasattr(value, "__array_interface__") or is_torch(value):
            return self._made_of(value, device=self.device)
        raise InputError("cannot use this value beside a tensor", given=f"{value!r} of type {type(value).__name__}",
                         expected="a Tensor, a number, a list or an array",
                         fix="make it a Tensor first: Tensor(value)")
