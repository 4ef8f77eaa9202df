"""Assign to tensors: assign, replace, copy_, and PyTorch's in-place methods with an underscore. In, out: tensors.

A write gives a storage a new value: the tensor and all its views show it, and nothing that was computed from the old
value changes. So `x.add_(1)` is `x.assign(x.add(1))` in x's own type, and `x[2:4].assign(y)` is `x[2:4] = y`. `replace`
gives the tensor another storage instead. `select_scatter` and similar methods leave the tensor as it is and return a
changed copy. In-place random values are here too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any
from weakref import ref

from glassgrad.base.errors import DTypeError, InputError, ShapeError
from glassgrad.compiler.graph import UOp, dtypes, full, ops as o, promote
from glassgrad.engine.capture import note_replaced
from glassgrad.engine.in_place import without_history
from glassgrad.tensor import realize_and_read as running
from glassgrad.tensor.autograd.gradient_leaves import (assigned, distinct_copy, has_long_expression, is_leaf,
                                                       leaf_shared, note_new_value, own_node, register_leaf, settle)
from glassgrad.tensor.autograd.no_grad import ended
from glassgrad.tensor.formulas import (add, as_node, ceil, counting, divide, elementary, flatten, in_accumulator, less,
                                       lookup, maximum, mul, replace_part, running as running_total, sub, where)
from glassgrad.tensor.formulas.random_numbers import integers, standard_normal, uniform, waiting_times
from glassgrad.tensor.memory.disk import on_disk, write
from glassgrad.tensor.memory.storage import TensorStorage, applied, is_shared, leave, storage_of
from glassgrad.tensor.methods import (REQUIRED, Self, TensorBase, arguments, broadcast_to, broadcasts_to, of_kind,
                                      spelled, working_axis)

# names of methods that have an in-place form, by the tensor and the arguments of their examples
_IN_PLACE = (
    ("Tensor([1.0])", "", """abs absolute acos acosh arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh
     ceil cos cosh deg2rad detach digamma erf erfc erfinv exp exp2 expm1 fix floor frac lgamma log log10 log1p log2
     logical_not logit nan_to_num neg negative rad2deg reciprocal relu round rsqrt sgn sigmoid sign sin sinc sinh sqrt
     square squeeze t tan tanh trunc"""),
    ("Tensor([1.0])", "Tensor([2.0])", """add arctan2 atan2 copysign div divide eq floor_divide fmod ge greater
     greater_equal gt heaviside hypot ldexp le less less_equal logical_and logical_or logical_xor lt mul multiply ne
     not_equal pow remainder sub subtract true_divide xlogy"""),
    ("Tensor([1.0])", "0", "clamp clamp_max clamp_min clip cumprod cumsum unsqueeze"),
    ("Tensor([1.0])", "0, 0", "swapaxes swapdims transpose"),
    ("Tensor([1.0])", "2, 0, 1.0", "renorm"),
    ("Tensor([1.0])", "Tensor([2.0]), 0.5", "addcdiv addcmul lerp"),
    ("Tensor([1.0])", "Tensor([True]), Tensor([5.0])", "masked_fill masked_scatter"),
    ("Tensor([1.0])", "0, Tensor([0]), Tensor([5.0])", "index_add index_copy index_fill scatter scatter_add"),
    ("Tensor([1.0])", "0, Tensor([0]), Tensor([5.0]), 'sum'", "scatter_reduce"),
    ("Tensor([1.0])", "(Tensor([0]),), Tensor([5.0])", "index_put"),
    ("Tensor([1.0])", "Tensor([0]), Tensor([5.0])", "put"),
    ("Tensor([1.0])", "Tensor([[2.0]]), Tensor([2.0])", "addmv"),
    ("Tensor([[1.0]])", "", "tril triu"),
    ("Tensor([[1.0]])", "Tensor([2.0]), Tensor([2.0])", "addr"),
    ("Tensor([[1.0]])", "Tensor([[2.0]]), Tensor([[2.0]])", "addmm"),
    ("Tensor([[1.0]])", "Tensor([[[2.0]]]), Tensor([[[2.0]]])", "addbmm"),
    ("Tensor([[[1.0]]])", "Tensor([[[2.0]]]), Tensor([[[2.0]]])", "baddbmm"),
    ("Tensor([1])", "", "bitwise_not"),
    ("Tensor([1])", "Tensor([2])", """bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor gcd
     lcm"""),
)
_VIEWS = frozenset(("unsqueeze", "squeeze", "t", "transpose", "swapaxes", "swapdims", "detach"))


def whole_value(storage: TensorStorage) -> UOp:
    """Return the whole value of which the tensors of a storage show parts."""
    whole = storage.whole()
    if whole is None:                            # only what the views show can still be read of it
        whole = full(storage.shape, 0, storage.dtype)
        for member in storage.live():
            whole = replace_part(whole, member._steps, member.uop, repeated=True)
    return whole


class AssignmentMixin(TensorBase):
    """In-place methods."""
    __slots__ = ()

    def assign(self, value: Any = REQUIRED, **spelling: Any) -> Self:
        """Give this tensor and its views a new value, in its own shape and type; assigning to a view, such as `x[1:3]`,
        writes that part of x. Tensors computed before keep the old value.

        >>> x = Tensor([1, 2]); y = x * 10
        >>> x.assign(Tensor([3, 4])).tolist(), y.tolist()
        ([3, 4], [10, 20])
        """
        if spelling or value is REQUIRED:
            value, = spelled("assign", spelling, value=value)
        new: Self = value if isinstance(value, TensorBase) else \
            self._made_of(value, device=None if on_disk(self.uop.device) else self.device,
                           dtype=self.dtype)  # type: ignore[assignment]
        node = self.uop
        if new.uop.shape != node.shape:
            if not broadcasts_to(new.shape, self.shape):
                raise ShapeError("cannot assign a value of another shape", given=f"{new.shape} to {self.shape}",
                                 expected=f"shape {self.shape}, or one that broadcasts to it",
                                 fix="reshape the value first")
            new = new._with(new.uop.broadcast(self.shape))
        if new.uop.dtype is not node.dtype:
            if promote(new.dtype, self.dtype) is not self.dtype:
                raise DTypeError("cannot assign a value of another type",
                                 given=f"{new.dtype.name} to {self.dtype.name}",
                                 expected=f"values that widen to {self.dtype.name}",
                                 fix=f"cast the value first: value.cast({self.dtype!r})")
            new = new.cast(self.dtype)
        if on_disk(node.device):
            write(node, running.bytes_of(new.uop, new.device))
            return self
        self._shared_device(new)
        self._write(new, leaf=True)
        return self

    def _write(self, new: Self, leaf: bool) -> None:
        """Give this tensor and its views a new value of its shape and type. With `leaf`, a tensor that shows all of its
        storage becomes a leaf; other tensors that were leaves stay leaves."""
        storage = storage_of(self)
        self._show(new, storage, leaf)
        for tensor in (self,) if storage is None else storage.live():
            if has_long_expression(tensor):
                running.value_of(tensor.uop, tensor.device)
                settle(tensor)

    def _show(self, new: Self, storage: TensorStorage | None, leaf: bool) -> None:
        """Point this tensor, and the others that show its storage, to a new value."""
        if self._requires_grad is False and self.uop.op is o.DETACH and self.uop.arg in (None, "no_grad"):
            new = new._with(ended(new.uop))      # written through x.data or x.detach(): no gradient passes the change
        if storage is None:
            self._take(new.uop, new, leaf)
            return
        whole = new.uop
        if self._steps:
            whole = replace_part(whole_value(storage), self._steps, new.uop)
        storage.written = True
        for member in storage.live():
            member._take(applied(member._steps, whole), new, leaf and member is self and not member._steps)
        storage.note(whole)

    def _rebound(self, node: UOp) -> None:
        """Give this tensor and its views a computed value."""
        self._write(self._with(node), leaf=True)

    def _take(self, node: UOp, new: Self, leaf: bool) -> None:
        earlier, held = self.uop, is_leaf(self)
        if node.op is o.DETACH and node.arg == "no_grad":
            node = without_history(node)
        self.uop, self._device = node, new._device
        if leaf or held:
            # equal values share one node, but a leaf must not share its node
            if leaf_shared(node, self):
                self.uop = distinct_copy(node)
            elif self._requires_grad is not False:
                self.uop = own_node(node)
            register_leaf(self)
            assigned(self, earlier)
        elif node.op is o.BUFFER:
            node.arg.add_reader(ref(self))
        note_new_value(self, earlier)

    def _rebind(self, value: Self, leaf: bool = False) -> Self:
        """Give this tensor and its views the new value of x += y or x[i] = y. Unlike in `assign`, integers may become
        floats, if x has no views, and a tensor that was computed becomes a leaf only with `leaf`."""
        if value.shape != self.shape:
            raise ShapeError("an operation in place keeps the shape", given=f"{self.shape} would become {value.shape}",
                             expected=f"something that broadcasts to {self.shape}",
                             fix="write x = x + y, which makes a new tensor")
        value = self._in_own_type(value)
        if value.dtype is not self.dtype:
            if is_shared(self):
                raise DTypeError("an operation in place keeps the type of a tensor that has views",
                                 given=f"{self.dtype.name} would become {value.dtype.name}",
                                 expected=f"values of {self.dtype.name}",
                                 fix="write x = x + y, which makes a new tensor")
            note_replaced(self)
            leave(self)
        self._write(value, leaf)
        return self

    def _in_own_type(self, value: Self) -> Self:
        """Cast a result to this tensor's type, unless that would lose its kind (a float to an integer)."""
        kinds = "b", "iu", "f"
        richer = [next(place for place, kind in enumerate(kinds) if t.dtype.kind in kind) for t in (value, self)]
        return value.cast(self.dtype) if richer[0] <= richer[1] else value

    def replace(self, value: Self = REQUIRED, allow_shape_mismatch: bool = True, **spelling: Any) -> Self:
        """Give this tensor the node of another, whatever its shape and type. Views of this tensor keep their value.

        >>> Tensor([1, 2]).replace(Tensor([3.0])).tolist()
        [3.0]
        """
        value, = spelled("replace", spelling, value=value)
        of_kind("Self", "replace", value=value)
        note_replaced(self)
        leave(self)
        earlier, self.uop, self._device = self.uop, value.uop, value._device
        register_leaf(self)
        note_new_value(self, earlier)
        return self

    def _become(self, view: Self) -> Self:
        """Make this tensor show what a view of it shows; the storage stays the same."""
        earlier, self.uop = self.uop, view.uop
        if self._storage is not None:
            self._steps = view._steps
        register_leaf(self)
        note_new_value(self, earlier)
        return self

    # -- with an underscore ----------------------------------------------------------------------------------
    def copy_(self, src: Any = REQUIRED, **spelling: Any) -> Self:
        """Copy the values of another tensor into this one, in its own type, broadcast to its shape.

        >>> Tensor([1.0, 2.0]).copy_(Tensor([3])).tolist()
        [3.0, 3.0]
        """
        src, = spelled("copy_", spelling, src=src)
        value = as_node(self._operand(src), self.uop).cast(self.dtype)
        return self.assign(self._with(broadcast_to("copy_", value, self.shape), src))

    def fill_(self, value: Any) -> Self:
        """Fill this tensor with one value.

        >>> Tensor([1.0, 2.0]).fill_(3).tolist()
        [3.0, 3.0]
        """
        filler = as_node(self._operand(value, "to fill with"), self.uop).cast(self.dtype)
        return self.assign(self._with(broadcast_to("fill_", filler, self.shape), value))

    def zero_(self) -> Self:
        """Fill this tensor with zeros.

        >>> Tensor([1.0, 2.0]).zero_().tolist()
        [0.0, 0.0]
        """
        return self.assign(self._with(full(self.shape, 0, self.dtype)))

    # -- parts replaced --------------------------------------------------------------------------------------
    def _replaced(self, index: tuple[Any, ...], source: Self) -> Self:
        copy = self._with(self.uop)                      # not a view: writing to a view would change this tensor
        copy[index] = source                             # type: ignore[index]
        return copy

    def select_scatter(self, src: Self, dim: int, index: int) -> Self:
        """This tensor with one slice of an axis replaced.

        >>> Tensor([[1, 2], [3, 4]]).select_scatter(Tensor([9, 9]), 0, 1).tolist()
        [[1, 2], [9, 9]]
        """
        return self._replaced((slice(None),) * working_axis(dim, self.ndim, "select_scatter") + (index,), src)

    def slice_scatter(self, src: Self, dim: int = 0, start: int | None = None, end: int | None = None,
                      step: int = 1) -> Self:
        """This tensor with a range of an axis replaced.

        >>> Tensor([1, 2, 3]).slice_scatter(Tensor([9, 9]), 0, 1).tolist()
        [1, 9, 9]
        """
        axis = working_axis(dim, self.ndim, "slice_scatter")
        return self._replaced((slice(None),) * axis + (slice(start, end, step),), src)

    def masked_scatter(self, mask: Self, source: Self) -> Self:
        """This tensor with the elements where a mask is true replaced by those of `source`, in order.

        >>> Tensor([1, 2, 3]).masked_scatter(Tensor([True, False, True]), Tensor([8, 9])).tolist()
        [8, 2, 9]
        """
        of_kind("Self", "masked_scatter", mask=mask, source=source)
        chosen = broadcast_to("masked_scatter", mask.uop.cast(dtypes.bool), self.shape)
        if not self.numel():
            return self
        count = running_total(o.ADD, flatten(chosen).cast(dtypes.int32), 0)
        values = lookup(flatten(source.uop.cast(self.dtype)), [(0, (count - 1).maximum(0))])
        return self._with(where(chosen, values.reshape(self.shape), self.uop), mask, source)

    def _assigned(self, value: UOp) -> Self:
        """Give this tensor a new value, and return it."""
        return self.assign(self._with(value))

    def _drawn(self, what: str, draw: Callable[..., UOp], formula: Callable[[UOp], UOp], **numbers: Any) -> Self:
        """Give this tensor new random values: a formula of numbers drawn in its type."""
        arguments(what, **numbers)
        if self.dtype.kind != "f":
            raise InputError("these random numbers are fractions", given=f"{what} of {self.dtype.name}",
                             expected="a float tensor", fix="use random_ for integers")
        return self._assigned(formula(draw(self.shape, self.dtype)))

    # -- random values ---------------------------------------------------------------------------------------
    def normal_(self, mean: float = 0.0, std: float = 1.0) -> Self:
        """Fill this tensor with numbers of a normal distribution.

        >>> Tensor.zeros(2).normal_(5, 0).tolist()
        [5.0, 5.0]
        """
        return self._drawn("normal_", standard_normal, lambda x: add(mul(x, std), mean), std=std, mean=mean)

    def log_normal_(self, mean: float = 1.0, std: float = 2.0) -> Self:
        """Fill this tensor with numbers whose logarithms have a normal distribution.

        >>> Tensor.zeros(2).log_normal_(0, 0).tolist()
        [1.0, 1.0]
        """
        return self._drawn("log_normal_", standard_normal,
                           lambda x: in_accumulator(elementary.exp, add(mul(x, std), mean)), std=std, mean=mean)

    def uniform_(self, low: float = 0.0, high: float = 1.0) -> Self:
        """Fill this tensor with uniform random numbers from low to high.

        >>> Tensor.zeros(2).uniform_(5, 5).tolist()
        [5.0, 5.0]
        """
        return self._drawn("uniform_", uniform, lambda x: add(mul(x, high - low), low), low=low, high=high)

    def random_(self, low: int = 0, high: int | None = None) -> Self:
        """Fill this tensor with integers from low up to, not including, high; with one number, from 0 up to it; without
        any, with all integers that the type represents exactly.

        >>> Tensor.zeros(3).random_(5, 6).tolist()
        [5.0, 5.0, 5.0]
        """
        low, high = arguments("random_", low=low, high=high)
        if high is None and low:
            low, high = 0, low
        if high is None:
            high = 2 if self.dtype.kind == "b" else 1 << (
                self.dtype.mantissa + 1 if self.dtype.kind == "f" else self.dtype.bits - (self.dtype.kind == "i"))
            high = min(high, 1 << 31)
        if low >= high:
            raise InputError("there is no number to draw", given=f"random_({low}, {high})",
                             expected="a low end below the high one", fix="write random_(0, 10)")
        return self._assigned(integers(self.shape, low, high).cast(self.dtype))

    def bernoulli_(self, p: Any = 0.5) -> Self:
        """Fill this tensor with 1 with probability p, else 0; p is a number, or a tensor of numbers.

        >>> Tensor.zeros(2).bernoulli_(1.0).tolist()
        [1.0, 1.0]
        """
        drawn = uniform(self.shape, dtypes.default_float)
        return self._assigned(less(drawn, self._operand(p, "as a probability")).cast(self.dtype))

    def exponential_(self, lambd: float = 1.0) -> Self:
        """Fill this tensor with numbers of an exponential distribution of rate lambd: waiting times.

        >>> (Tensor.zeros(100).exponential_() >= 0).all().item()
        True
        """
        return self._drawn("exponential_", waiting_times, lambda x: divide(x, lambd), lambd=lambd)

    def geometric_(self, p: float) -> Self:
        """Fill this tensor with numbers of tries until one succeeds, each with probability p.

        >>> Tensor.zeros(2).geometric_(1 - 1e-12).tolist()
        [1.0, 1.0]
        """
        p, = arguments("geometric_", p=p)
        if not 0 < p < 1:
            raise InputError("a probability of success lies between 0 and 1", given=f"p={p}", expected="0 < p < 1",
                             fix="pass a number such as 0.5")
        drawn = elementary.log1p(-uniform(self.shape, dtypes.default_float))
        return self._assigned(maximum(ceil(divide(drawn, math.log1p(-p))), 1).cast(self.dtype))

    def cauchy_(self, median: float = 0.0, sigma: float = 1.0) -> Self:
        """Fill this tensor with numbers of a Cauchy distribution.

        >>> Tensor.zeros(2).cauchy_(3.0, 0.0).tolist()
        [3.0, 3.0]
        """
        def cauchy(x: UOp) -> UOp:
            return add(mul(in_accumulator(elementary.tan, mul(sub(x, 0.5), math.pi)), sigma), median)

        return self._drawn("cauchy_", uniform, cauchy, median=median, sigma=sigma)

    # -- parts -----------------------------------------------------------------------------------------------
    def fill_diagonal_(self, fill_value: float, wrap: bool = False) -> Self:
        """Fill the diagonal of a matrix, or all elements whose indices are equal, with one value. With `wrap`, the
        diagonal of a tall matrix begins again, a row below its end.

        >>> Tensor.zeros(2, 3).fill_diagonal_(5).tolist()
        [[5.0, 0.0, 0.0], [0.0, 5.0, 0.0]]
        """
        wrap, = arguments("fill_diagonal_", wrap=wrap)
        if self.ndim < 2 or self.ndim > 2 and len(set(self.shape)) > 1:
            raise ShapeError("this has no diagonal to fill", given=f"shape {self.shape}",
                             expected="a matrix, or more axes of one size",
                             fix="fill parts of it: x[0].fill_diagonal_(1)")
        columns = self.shape[-1]
        apart = sum(columns ** axis for axis in range(self.ndim))     # distance between elements of the diagonal
        end = columns * columns if self.ndim == 2 and not wrap else self.numel()
        number = counting(self.numel())
        chosen = ((number % apart).eq(0) & (number < end)).reshape(self.shape)
        filler = self._operand(fill_value, "to fill with")
        return self._assigned(where(chosen, filler, self.uop).cast(self.dtype))


def in_place_methods(cls: Any) -> Iterator[tuple[str, Any]]:
    """Return the methods with an underscore of a class, by name. Each is made from the method without it: it has the
    same signature, and its result becomes the tensor's own value."""
    for before, example, names in _IN_PLACE:
        for name in names.split():
            yield f"{name}_", _with_underscore(getattr(cls, name), cls, name, before, example)


def _with_underscore(original: Any, cls: Any, name: str, before: str, example: str) -> Any:
    is_view = name in _VIEWS

    def in_place(self: Any, *args: Any, **kwargs: Any) -> Any:
        value = getattr(self, name)(*args, **kwargs)         # looked up here: a subclass may override the method
        return self._become(value) if is_view else self.assign(self._in_own_type(value))

    in_place.__name__, in_place.__qualname__ = f"{name}_", f"{cls.__name__}.{name}_"
    in_place.__wrapped__ = original         # type: ignore[attr-defined]    # `inspect` takes the signature from there
    in_place.__annotations__ = original.__annotations__
    in_place.__doc__ = f"""`{name}`, and the result is this tensor's new value.

        >>> x = {before}; x.{name}_({example}) is x
        True
        """
    return in_place
