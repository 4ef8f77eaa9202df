"""Create tensors: zeros, ones, ranges, grids, triangles. In: shapes and numbers. Out: tensors; most need no memory.

Each of them is a separate leaf with a separate gradient, even if two hold the same constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from glassgrad.base.errors import DTypeError, InputError
from glassgrad.base.settings import settings
from glassgrad.compiler.graph import DType, Length, UOp, const, dtype_by_name, dtypes, full, ops as o, upper_bound
from glassgrad.tensor import index_range_check, realize_and_read as running
from glassgrad.tensor.autograd.gradient_leaves import distinct
from glassgrad.tensor.formulas import as_float, counting, equal, eye, largest, mul, tril, triu, unsqueeze
from glassgrad.tensor.memory.disk import on_disk, opened
from glassgrad.tensor.memory.python_values import read_array
from glassgrad.tensor.methods import (REQUIRED, Self, TensorBase, arguments, computed, number, of_kind, options,
                                      plain_number, shape_from, sizes, spelled, two_axes)


class CreationMixin(TensorBase):
    """Methods that create tensors."""
    __slots__ = ()

    @classmethod
    def _made(cls, node: UOp, device: str | None, requires_grad: bool | None) -> Self:
        return cls._leaf(distinct(node) if node.dtype.kind == "f" else node, device, requires_grad)

    # -- constants -------------------------------------------------------------------------------------------
    @classmethod
    def full(cls, shape: int | Sequence[int], fill_value: Any, dtype: DType | str | None = None,
             device: str | None = None, requires_grad: bool | None = None, buffer: bool = True) -> Self:
        """A tensor filled with one value. (`buffer` is tinygrad's; a constant has no memory here until it needs some.)

        >>> Tensor.full((2, 2), 7).tolist()
        [[7, 7], [7, 7]]
        """
        value = plain_number(fill_value, "to fill a tensor with")
        kind = dtype_by_name(dtype) if dtype is not None else const(value).dtype
        _refuse_overflow(value, kind)
        made = sizes(tuple(shape) if isinstance(shape, (tuple, list)) else (shape,), "full")
        return cls._made(full(made, value, kind), device, requires_grad)

    @classmethod
    def zeros(cls, *shape: Any, device: str | None = None, dtype: DType | str | None = None,
              requires_grad: bool | None = None) -> Self:
        """A tensor of zeros.

        >>> Tensor.zeros(2, 3).tolist()
        [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
        """
        return cls.full(sizes(shape, "zeros"), 0, dtype or dtypes.default_float, device, requires_grad)

    @classmethod
    def ones(cls, *shape: Any, device: str | None = None, dtype: DType | str | None = None,
             requires_grad: bool | None = None) -> Self:
        """A tensor of ones.

        >>> Tensor.ones(3).tolist()
        [1.0, 1.0, 1.0]
        """
        return cls.full(sizes(shape, "ones"), 1, dtype or dtypes.default_float, device, requires_grad)

    @classmethod
    def empty(cls, *shape: Any, device: str | None = None, dtype: DType | str | None = None,
              requires_grad: bool | None = None) -> Self:
        """A tensor whose values do not matter yet (they are zeros: nothing is read before it is written). On a device
        "disk:/path" they are the content of the file.

        >>> Tensor.empty(2).shape
        (2,)
        """
        made, kind = sizes(shape, "empty"), dtype_by_name(dtype or dtypes.default_float)
        if on_disk(place := running.canonical_device(device)):
            return cls._leaf(opened(str(place), made, kind), None, requires_grad)
        return cls.full(made, 0, kind, device, requires_grad)

    invalids = empty          # tinygrad's name

    @classmethod
    def const(cls, b: Any, dtype: Any = None, device: str | None = None) -> Self:
        """One number as a tensor without axes. (Older texts give the type first.)

        >>> Tensor.const(3).item(), Tensor.const(3, dtypes.float32).dtype
        (3, dtypes.float32)
        """
        if isinstance(b, DType):
            b, dtype = dtype, b
        return cls.full((), b, dtype, device)

    def full_like(self, fill_value: Any, dtype: DType | str | None = None, device: str | None = None,
                  buffer: bool = True, **kwargs: Any) -> Self:
        """A tensor filled with one value, in the shape and dtype of this tensor.

        >>> Tensor([1, 2]).full_like(7).tolist()
        [7, 7]
        """
        return self._filled(fill_value, {**kwargs, "dtype": dtype, "device": device})

    def _filled(self, fill_value: Any, given: dict[str, Any]) -> Self:
        """Make a tensor of this shape, filled with one value."""
        kind, device, grad = options(given, self.dtype, self.uop.device or self._device)
        return self.full(self.shape, fill_value, kind, device, grad)

    def zeros_like(self, **kwargs: Any) -> Self:
        """Zeros in the shape and dtype of this tensor.

        >>> Tensor([1, 2]).zeros_like().tolist()
        [0, 0]
        """
        return self._filled(0, kwargs)

    def ones_like(self, **kwargs: Any) -> Self:
        """Ones in the shape and dtype of this tensor.

        >>> Tensor([1, 2]).ones_like().tolist()
        [1, 1]
        """
        return self._filled(1, kwargs)

    def const_like(self, value: Any = REQUIRED, dtype: Any = None, **spelling: Any) -> Self:
        """A tensor filled with one value, in this tensor's shape; `full_like`.

        >>> Tensor([1, 2]).const_like(7).tolist()
        [7, 7]
        """
        value, = spelled("const_like", spelling, value=value)
        return self._filled(value, {"dtype": dtype})

    def empty_like(self, dtype: Any = None, device: str | None = None, **kwargs: Any) -> Self:
        """A tensor of this shape whose values do not matter yet (they are zeros).

        >>> Tensor([1, 2]).empty_like().shape
        (2,)
        """
        return self._filled(0, {"dtype": dtype, "device": device, **kwargs})

    def new_full(self, size: int | Sequence[int], fill_value: float, **kwargs: Any) -> Self:
        """A tensor filled with one value, in this tensor's type and on its device.

        >>> Tensor([1.5]).new_full((2,), 3).tolist()
        [3.0, 3.0]
        """
        return self.__class__.full(size, fill_value, **{"dtype": self.dtype, "device": self.device, **kwargs})

    def new_zeros(self, *size: Any, **kwargs: Any) -> Self:
        """Zeros, in this tensor's type and on its device.

        >>> Tensor([1]).new_zeros(2).tolist()
        [0, 0]
        """
        return self.new_full(shape_from(size, "new_zeros"), 0, **kwargs)

    def new_ones(self, *size: Any, **kwargs: Any) -> Self:
        """Ones, in this tensor's type and on its device.

        >>> Tensor([1]).new_ones(2).tolist()
        [1, 1]
        """
        return self.new_full(shape_from(size, "new_ones"), 1, **kwargs)

    def new_empty(self, *size: Any, **kwargs: Any) -> Self:
        """A tensor whose values do not matter yet (zeros), in this tensor's type and on its device.

        >>> Tensor([1]).new_empty(2).shape
        (2,)
        """
        return self.new_full(shape_from(size, "new_empty"), 0, **kwargs)

    def new_tensor(self, data: Any, **kwargs: Any) -> Self:
        """A tensor of new values, in this tensor's type and on its device.

        >>> Tensor([1.5]).new_tensor([1, 2]).tolist()
        [1.0, 2.0]
        """
        return self._made_of(data, **{"dtype": self.dtype, "device": self.device, **kwargs})

    # -- ranges ----------------------------------------------------------------------------------------------
    @classmethod
    def arange(cls, start: Any, stop: Any = None, step: Any = 1, dtype: DType | str | None = None,
               device: str | None = None, requires_grad: bool | None = None, **spelling: Any) -> Self:
        """Numbers from start up to, not including, stop; with one argument, from 0.

        >>> Tensor.arange(5).tolist(), Tensor.arange(1, 2, 0.25).tolist()
        ([0, 1, 2, 3, 4], [1.0, 1.25, 1.5, 1.75])
        """
        stop, = spelled("arange", spelling, stop=stop)
        if stop is None:
            start, stop = 0, start
        start, stop, step = (plain_number(n, "in arange") for n in (start, stop, step))
        if not all(isinstance(n, Length) or math.isfinite(n) for n in (start, stop, step)):
            raise InputError("arange needs an end", given=f"start={start}, stop={stop}, step={step}",
                             expected="finite numbers", fix="check how the limits are computed")
        if step == 0:
            raise InputError("arange needs steps that lead somewhere", given="step=0", expected="a step that is not 0",
                             fix="to repeat one value, use Tensor.full")
        if any(isinstance(n, Length) for n in (start, stop, step)):
            return cls._made(_symbolic_range(start, stop, step, dtype_by_name(dtype or dtypes.default_int)), device,
                             requires_grad)
        whole = not any(isinstance(n, float) for n in (start, stop, step))
        fits = all(dtypes.default_int.min <= n <= dtypes.default_int.max for n in (start, stop))
        default = dtypes.default_float if not whole else dtypes.default_int if fits else dtypes.int64
        kind = dtype_by_name(dtype or default)
        count = max(0, math.ceil((stop - start) / step))
        if whole and kind.kind != "f":
            return cls._made(counting(count, kind) * step + start, device, requires_grad)
        wide = kind.accumulator if kind.kind == "f" else dtypes.float64
        numbers = counting(count, dtypes.int64 if count >= 1 << 31 else dtypes.int32)
        return cls._made((numbers.cast(wide) * step + start).cast(kind), device, requires_grad)

    @classmethod
    def linspace(cls, start: float, stop: float = REQUIRED, steps: int = REQUIRED, dtype: DType | str | None = None,
                 device: str | None = None, requires_grad: bool | None = None, **spelling: Any) -> Self:
        """`steps` evenly spaced numbers from start to stop, both included.

        >>> Tensor.linspace(0, 1, 5).tolist()
        [0.0, 0.25, 0.5, 0.75, 1.0]
        """
        stop, steps = spelled("linspace", spelling, stop=stop, steps=steps)
        start, stop = of_kind("float", "linspace", start=start), of_kind("float", "linspace", stop=stop)
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
            raise InputError("linspace needs a number of steps", given=f"steps={steps!r}",
                             expected="an int of 0 or more", fix="write Tensor.linspace(0, 1, 5), for example")
        kind = dtype_by_name(dtype) if dtype is not None else dtypes.default_float
        if kind is dtypes.bool:
            raise DTypeError("linspace counts in numbers", given="dtype=dtypes.bool",
                             expected="floats or integers",
                             fix="compare the numbers: Tensor.linspace(0, 1, 5) > 0.5")
        wide = kind.accumulator if kind.kind == "f" else dtypes.float32
        if steps == 1:
            return cls.full((1,), start, kind, device, requires_grad)
        place = counting(steps, dtypes.int32)
        step = (stop - start) / max(steps - 1, 1)
        # each half is computed from its own end, so that both ends are exact
        up = place.cast(wide) * step + float(start)
        down = (place - (steps - 1)).cast(wide) * step + float(stop)
        return cls._made((place < steps // 2).where(up, down).cast(kind), device, requires_grad)

    @classmethod
    def logspace(cls, start: float, end: float, steps: int, base: float = 10.0, **kwargs: Any) -> Self:
        """base to the powers from start to end, both included.

        >>> Tensor.logspace(0, 2, 3, base=2).tolist()
        [1.0, 2.0, 4.0]
        """
        base, = arguments("logspace", base=base)
        if not 0 < base < math.inf:
            raise InputError("logspace takes powers of a positive number", given=f"base={base}",
                             expected="a finite number above 0", fix="write base=10.0")
        exponents = cls.linspace(start, end, steps, **kwargs)
        return exponents._with(as_float(mul(exponents.uop, math.log2(base))).exp2())

    @classmethod
    def eye(cls, n: int, m: int | None = None, dtype: DType | str | None = None, device: str | None = None,
            requires_grad: bool | None = None) -> Self:
        """Ones on the diagonal, zeros elsewhere.

        >>> Tensor.eye(2).tolist(), Tensor.eye(1, 3, dtype=dtypes.int32).tolist()
        ([[1.0, 0.0], [0.0, 1.0]], [[1, 0, 0]])
        """
        rows, columns = sizes((n, n if m is None else m), "eye")
        kind = dtype_by_name(dtype) if dtype is not None else dtypes.default_float
        return cls._made(eye(rows, kind, columns), device, requires_grad)

    def triu(self, diagonal: int = 0) -> Self:
        """The part of a matrix on and above a diagonal, zeros below.

        >>> Tensor([[1, 2], [3, 4]]).triu().tolist()
        [[1, 2], [0, 4]]
        """
        two_axes("triu", self.shape)
        return computed(self, triu, "triu", diagonal=diagonal)

    def tril(self, diagonal: int = 0) -> Self:
        """The part of a matrix on and below a diagonal, zeros above.

        >>> Tensor([[1, 2], [3, 4]]).tril().tolist()
        [[1, 0], [3, 4]]
        """
        two_axes("tril", self.shape)
        return computed(self, tril, "tril", diagonal=diagonal)

    @classmethod
    def tri(cls, n: int, m: int | None = None, diagonal: int = 0, **kwargs: Any) -> Self:
        """Ones on and below a diagonal, zeros above.

        >>> Tensor.tri(2).tolist()
        [[1.0, 0.0], [1.0, 1.0]]
        """
        return computed(cls.ones(n, n if m is None else m, **kwargs), tril, "tri", diagonal=diagonal)

    @classmethod
    def tril_indices(cls, row: int, col: int, offset: int = 0) -> Self:
        """The indices on and below a diagonal of a row x col matrix, as (2, count).

        >>> Tensor.tril_indices(2, 2).tolist()
        [[0, 1, 1], [0, 0, 1]]
        """
        indices = _triangle_indices("tril_indices", row, col, offset, lambda beyond: beyond <= 0)
        return cls._made_of(indices, dtype=dtypes.int32)

    @classmethod
    def triu_indices(cls, row: int, col: int, offset: int = 0) -> Self:
        """The indices on and above a diagonal of a row x col matrix, as (2, count).

        >>> Tensor.triu_indices(2, 2).tolist()
        [[0, 0, 1], [0, 1, 1]]
        """
        indices = _triangle_indices("triu_indices", row, col, offset, lambda beyond: beyond >= 0)
        return cls._made_of(indices, dtype=dtypes.int32)

    def one_hot(self, num_classes: int = -1) -> Self:
        """A new last axis with 1 at the index that each value names and 0 elsewhere; with -1 classes, the largest value
        decides their number. A value out of range gives zeros; SANITIZE=1 reports it.

        >>> Tensor([1, 0]).one_hot(3).tolist()
        [[0, 1, 0], [1, 0, 0]]
        """
        if self.uop.dtype.kind not in "iu":
            raise InputError("one_hot needs integers", given=f"{self.uop.dtype.name} values",
                             expected="an integer tensor", fix="cast first: x.int()")
        count, = arguments("one_hot", num_classes=num_classes)
        if count == -1:
            count = int(running.number_in(largest(self.uop), self.device)) + 1
        chosen = equal(unsqueeze(self.uop, -1), counting(count, self.uop.dtype))
        if settings.SANITIZE:
            shape = (*self.shape, count)
            index_range_check.watch(self.uop, [index_range_check.Pick(self.uop, count, self.ndim, False)], shape, count)
            index_range_check.watch_for(chosen, self.uop, count)
        return self._with(chosen.cast(dtypes.default_int))

    # -- from memory -----------------------------------------------------------------------------------------
    @classmethod
    def from_numpy(cls, array: Any, device: str | None = None, requires_grad: bool | None = None) -> Self:
        """A tensor over a NumPy array's own memory, which sees later writes to the array. Arrays that a device cannot
        share (not row-major, or on a device with separate memory) are copied.

        >>> import numpy
        >>> Tensor.from_numpy(numpy.array([1.0, 2.0], "float32")).tolist()
        [1.0, 2.0]
        """
        if not hasattr(array, "__array_interface__"):
            raise InputError("from_numpy shares the memory of an array", given=f"{type(array).__name__}",
                             expected="a NumPy array", fix="for other values write Tensor(value)")
        place = running.canonical_device(device) or running.default_device()
        shared = running.over_array(array, place)
        return cls._leaf(shared if shared is not None else running.store(read_array(array), place), None, requires_grad)


def _triangle_indices(what: str, row: Any, col: Any, offset: Any, chosen: Callable[[int], bool]) -> list[list[int]]:
    """Return the row and column indices of the elements that `chosen` accepts by their distance from a diagonal."""
    rows, columns, offset = arguments(what, row=row, col=col, offset=offset)
    if rows * columns > 1 << 28:
        raise InputError(f"{what} lists its indices one by one", given=f"{rows} x {columns}",
                         expected="at most 2^28 elements", fix="use triu or tril on a tensor of ones")
    found = [(i, j) for i in range(rows) for j in range(columns) if chosen(j - i - offset)]
    return [[place[k] for place in found] for k in range(2)]


def _refuse_overflow(value: Any, kind: DType) -> None:
    if kind.kind in "iu":
        value = upper_bound(value)
        number(int(value) if math.isfinite(value) else kind.max + 1, kind, o.WHERE)


def _symbolic_range(start: Any, stop: Any, step: Any, kind: DType) -> UOp:
    """Return arange between symbolic ends."""
    if step != 1 or isinstance(start, float) or isinstance(stop, float) or not start <= stop:
        raise InputError("a symbolic range goes up in steps of 1", given=f"arange({start}, {stop}, {step})",
                         expected="integers with start <= stop, and step 1", fix="multiply the range afterwards")
    return counting(stop - start, kind if kind.kind in "iu" else dtypes.int32).cast(kind) + const(start, kind)
