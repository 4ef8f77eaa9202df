"""A tensor that takes another value: assign, replace, copy_. In, out: tensors.

A write gives a storage a new value: the tensor and all views of it show it, and nothing that was computed from the old
one changes. So `x.add_(1)` is `x.assign(x.add(1))`, and `x[2:4].assign(y)` is `x[2:4] = y`. `replace` gives the name
another storage instead. `select_scatter` and its kin leave the tensor as it is and give the changed copy.
"""

from __future__ import annotations

from typing import Any
from weakref import ref

from glassgrad.base.errors import DTypeError, ShapeError
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes, promote
from glassgrad.compiler.graph.uop import UOp, full
from glassgrad.tensor import checks, evaluate as running
from glassgrad.tensor.autograd.leaves import assigned, distinct, has_another_value, hold, holders, is_held
from glassgrad.tensor.base import Self, TensorBase
from glassgrad.tensor.broadcast import working_axis
from glassgrad.tensor.checks import REQUIRED
from glassgrad.tensor.formulas.arithmetic import as_node, where
from glassgrad.tensor.formulas.indexing import lookup, replace_part
from glassgrad.tensor.formulas.movement import flatten
from glassgrad.tensor.formulas.reductions import running as running_total
from glassgrad.tensor.memory.disk import on_disk, write
from glassgrad.tensor.memory.storage import applied, is_shared, leave, storage_of


class AssignmentMixin(TensorBase):
    """A tensor that takes another value."""
    __slots__ = ()

    def assign(self, value: Any = REQUIRED, **spelling: Any) -> Self:
        """This tensor and its views take a new value, in its own shape and type; of a view, such as `x[1:3]`, x takes
        it there. Tensors computed before keep the old one.

        >>> x = Tensor([1, 2]); y = x * 10
        >>> x.assign(Tensor([3, 4])).tolist(), y.tolist()
        ([3, 4], [10, 20])
        """
        value, = checks.spelled("assign", spelling, value=value)
        new: Self = value if isinstance(value, TensorBase) else \
            self.__class__(value, device=None if on_disk(self.uop.device) else self.device,
                           dtype=self.dtype)  # type: ignore[assignment]
        if new.shape != self.shape:
            extra = self.ndim - new.ndim
            if extra < 0 or any(n not in (1, m) for n, m in zip(new.shape, self.shape[extra:])):
                raise ShapeError("cannot assign a value of another shape", given=f"{new.shape} to {self.shape}",
                                 expected=f"shape {self.shape}, or one that broadcasts to it",
                                 fix="reshape the value first")
            new = new._with(new.uop.broadcast(self.shape))
        if new.dtype is not self.dtype:
            if promote(new.dtype, self.dtype) is not self.dtype:
                raise DTypeError("cannot assign a value of another type",
                                 given=f"{new.dtype.name} to {self.dtype.name}",
                                 expected=f"values that widen to {self.dtype.name}",
                                 fix=f"cast the value first: value.cast({self.dtype!r})")
            new = new.cast(self.dtype)
        if on_disk(self.uop.device):
            write(self.uop, running.bytes_of(new.uop, new.device))
            return self
        self._shared_device(new)
        self._write(new, leaf=True)
        return self

    def _write(self, new: Self, leaf: bool) -> None:
        """Put a value of this tensor's shape and type where it and its views see it. A tensor that shows all of its
        storage is a `leaf` afterwards, if that is wanted; others that were leaves still are."""
        storage = storage_of(self)
        if storage is None:
            self._take(new.uop, new, leaf)
            return
        whole = replace_part(storage.whole(), self._steps, new.uop) if self._steps else new.uop
        storage.written = True
        for member in storage.live():
            member._take(applied(member._steps, whole), new, leaf and member is self and not member._steps)
        storage.forget()

    def _rebound(self, node: UOp) -> None:
        """A computed value for this tensor and its views."""
        self._write(self._with(node), leaf=True)

    def _take(self, node: UOp, new: Self, leaf: bool) -> None:
        earlier, held = self.uop, is_held(self)
        self.uop, self._device = node, new._device
        if leaf or held:
            # equal values share one node; two leaves do not
            if any(other is not self for other in holders((node,))):
                self.uop = distinct(node)
            hold(self)
            assigned(self)
        elif node.op is o.BUFFER:
            node.arg.add_reader(ref(self))
        has_another_value(self, earlier)

    def _rebind(self, value: Self) -> Self:
        """x += y and x[i] = y: as `assign`; but integers may become floats, where x has no views."""
        if value.shape != self.shape:
            raise ShapeError("an operation in place keeps the shape", given=f"{self.shape} would become {value.shape}",
                             expected=f"something that broadcasts to {self.shape}",
                             fix="write x = x + y, which makes a new tensor")
        if value.dtype is not self.dtype and self.dtype.kind in ("f", value.dtype.kind):
            value = value.cast(self.dtype)
        if value.dtype is not self.dtype:
            if is_shared(self):
                raise DTypeError("an operation in place keeps the type of a tensor that has views",
                                 given=f"{self.dtype.name} would become {value.dtype.name}",
                                 expected=f"values of {self.dtype.name}",
                                 fix="write x = x + y, which makes a new tensor")
            leave(self)
        self._write(value, leaf=False)
        return self

    def replace(self, value: Self = REQUIRED, allow_shape_mismatch: bool = True, **spelling: Any) -> Self:
        """This tensor takes the place of another in the graph: its node, whatever shape and type that has. Views of it
        keep the value they show.

        >>> Tensor([1, 2]).replace(Tensor([3.0])).tolist()
        [3.0]
        """
        value, = checks.spelled("replace", spelling, value=value)
        checks.tensors("replace", value=value)
        leave(self)
        earlier, self.uop, self._device = self.uop, value.uop, value._device
        hold(self)
        has_another_value(self, earlier)
        return self

    # -- with an underscore ----------------------------------------------------------------------------------
    def _kept(self, value: Self) -> Self:
        """A result as this tensor's value: widened or narrowed to its type, as long as its kind is no richer."""
        kinds = "b", "iu", "f"
        richer = [next(place for place, kind in enumerate(kinds) if t.dtype.kind in kind) for t in (value, self)]
        return self.assign(value.cast(self.dtype) if richer[0] <= richer[1] else value)

    def copy_(self, src: Any = REQUIRED, **spelling: Any) -> Self:
        """This tensor takes the values of another, in its own type, broadcast to its shape.

        >>> Tensor([1.0, 2.0]).copy_(Tensor([3])).tolist()
        [3.0, 3.0]
        """
        src, = checks.spelled("copy_", spelling, src=src)
        value = as_node(self._operand(src), self.uop).cast(self.dtype)
        return self.assign(self._with(checks.broadcast_to("copy_", value, self.shape), src))

    def fill_(self, value: Any) -> Self:
        """One value everywhere.

        >>> Tensor([1.0, 2.0]).fill_(3).tolist()
        [3.0, 3.0]
        """
        filler = as_node(self._operand(value, "to fill with"), self.uop).cast(self.dtype)
        return self.assign(self._with(checks.broadcast_to("fill_", filler, self.shape), value))

    def zero_(self) -> Self:
        """Zeros.

        >>> Tensor([1.0, 2.0]).zero_().tolist()
        [0.0, 0.0]
        """
        return self.assign(self._with(full(self.shape, 0, self.dtype)))

    # -- parts replaced --------------------------------------------------------------------------------------
    def _replaced(self, index: tuple[Any, ...], source: Self) -> Self:
        copy = self._with(self.uop)                      # no view, which would pass the part on to its tensor
        copy[index] = source                             # type: ignore[index]
        return copy

    def select_scatter(self, src: Self, dim: int, index: int) -> Self:
        """This with one slice of an axis replaced.

        >>> Tensor([[1, 2], [3, 4]]).select_scatter(Tensor([9, 9]), 0, 1).tolist()
        [[1, 2], [9, 9]]
        """
        return self._replaced((slice(None),) * working_axis(dim, self.ndim, "select_scatter") + (index,), src)

    def slice_scatter(self, src: Self, dim: int = 0, start: int | None = None, end: int | None = None,
                      step: int = 1) -> Self:
        """This with a range of an axis replaced.

        >>> Tensor([1, 2, 3]).slice_scatter(Tensor([9, 9]), 0, 1).tolist()
        [1, 9, 9]
        """
        axis = working_axis(dim, self.ndim, "slice_scatter")
        return self._replaced((slice(None),) * axis + (slice(start, end, step),), src)

    def masked_scatter(self, mask: Self, source: Self) -> Self:
        """This with the elements where a mask is true replaced by those of `source`, in order.

        >>> Tensor([1, 2, 3]).masked_scatter(Tensor([True, False, True]), Tensor([8, 9])).tolist()
        [8, 2, 9]
        """
        checks.tensors("masked_scatter", mask=mask, source=source)
        chosen = checks.broadcast_to("masked_scatter", mask.uop.cast(dtypes.bool), self.shape)
        if not self.numel():
            return self
        count = running_total(o.ADD, flatten(chosen).cast(dtypes.int32), 0)
        values = lookup(flatten(source.uop.cast(self.dtype)), [(0, (count - 1).maximum(0))])
        return self._with(where(chosen, values.reshape(self.shape), self.uop), mask, source)
