"""Other indices for the same elements: reshape, permute, expand, pad, shrink, flip. In: tensors. Out: views.

Nothing here copies: each method adds at most a few movement nodes, which a kernel reads through.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import AxisError, InputError, ModeError, ShapeError
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import DType, dtypes
from glassgrad.compiler.graph.symbolic import Length
from glassgrad.compiler.graph.uop import UOp, full
from glassgrad.tensor.broadcast import broadcast_shape, resolve_axes, resolve_axis, shape_from, whole
from glassgrad.tensor.methods.operator_names import Operators

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Movement"]

Sizes = int | Sequence[int]
Padding = Sequence[Any]     # pairs (before, after) or None for every axis, or numbers from the last axis backward


class Movement(Operators):
    """Views: the same elements under other indices."""
    __slots__ = ()

    # -- shapes ----------------------------------------------------------------------------------------------
    def reshape(self, *shape: Any) -> Self:
        """The same elements in row-major order under another shape; one size may be -1, and None keeps a size.

        >>> Tensor([1, 2, 3, 4, 5, 6]).reshape(2, -1).tolist()
        [[1, 2, 3], [4, 5, 6]]
        """
        x = self.uop
        if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
            shape = tuple(shape[0])
        if any(n is None for n in shape):
            shape = tuple(x.shape[i] if n is None and i < len(x.shape) else n for i, n in enumerate(shape))
        sizes = shape_from(shape, "reshape")
        if any(n < 0 for n in sizes):
            sizes = self._fill_in(sizes)
        return self._with(x.reshape(sizes))

    def _fill_in(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        count, known = math.prod(self.uop.shape), math.prod(n for n in sizes if n != -1)
        if any(n < -1 for n in sizes) or sizes.count(-1) > 1:
            raise ShapeError("cannot tell which sizes are meant", given=f"reshape{sizes}",
                             expected="sizes of 0 or more, and at most one -1", fix="write the other sizes out")
        if known == 0 or count % known != 0:
            rest = f"{count} elements are not a multiple of {known}" if known else "0 elements leave it open"
            raise ShapeError("cannot reshape: -1 does not come out as an integer",
                             given=f"{self.uop.shape} ({count} elements) to {sizes}",
                             expected=f"known sizes whose product divides {count}; {rest}",
                             fix="check the sizes you wrote, or print(x.shape) before this line")
        return tuple(count // known if n == -1 else n for n in sizes)

    def view(self, *shape: Any, dtype: DType | None = None) -> Self:
        """The same as `reshape`, which never copies here; with a type, the same as `bitcast`.

        >>> Tensor([1, 2, 3, 4]).view(2, 2).tolist(), Tensor([1]).view(dtypes.uint8).tolist()
        ([[1, 2], [3, 4]], [1, 0, 0, 0])
        """
        if len(shape) == 1 and isinstance(shape[0], DType):
            return self.bitcast(shape[0])
        if dtype is not None and not shape:
            return self.bitcast(dtype)
        return self.reshape(*shape)

    def view_as(self, other: Self) -> Self:
        """Reshaped to another tensor's shape.

        >>> Tensor([1, 2, 3, 4]).view_as(Tensor.zeros(2, 2)).tolist()
        [[1, 2], [3, 4]]
        """
        return self.reshape(other.shape)

    def reshape_as(self, other: Self) -> Self:
        """Reshaped to another tensor's shape.

        >>> Tensor([1, 2, 3, 4]).reshape_as(Tensor.zeros(2, 2)).tolist()
        [[1, 2], [3, 4]]
        """
        return self.reshape(other.shape)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """Several neighbouring axes as one.

        >>> Tensor.zeros(2, 3, 4).flatten(1).shape
        (2, 12)
        """
        shape = self.uop.shape
        first = resolve_axis(start_dim, len(shape), "flatten")
        last = resolve_axis(end_dim, len(shape), "flatten")
        if not shape:
            return self.reshape(1)
        if last < first:
            raise AxisError("flatten needs its axes in order", given=f"start_dim={start_dim}, end_dim={end_dim}",
                            expected="start_dim at or before end_dim", fix="exchange them")
        return self._with(self.uop.reshape(shape[:first] + (math.prod(shape[first:last + 1]),) + shape[last + 1:]))

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Self:
        """One axis as several; one of the sizes may be -1.

        >>> Tensor.zeros(2, 12).unflatten(1, (3, -1)).shape
        (2, 3, 4)
        """
        shape = self.uop.shape
        axis = resolve_axis(dim, len(shape), "unflatten")
        parts = shape_from((sizes,), "unflatten")
        if -1 in parts:
            known = math.prod(n for n in parts if n != -1)
            if parts.count(-1) > 1 or not known or shape[axis] % known:
                raise ShapeError("cannot unflatten: -1 does not come out as an integer",
                                 given=f"an axis of {shape[axis]} into {parts}",
                                 expected=f"known sizes whose product divides {shape[axis]}", fix="check the sizes")
            parts = tuple(shape[axis] // known if n == -1 else n for n in parts)
        return self.reshape(shape[:axis] + parts + shape[axis + 1:])

    def squeeze(self, dim: int | Sequence[int] | None = None) -> Self:
        """Without axes of size 1: all of them, or those given; an axis of another size stays.

        >>> Tensor.zeros(1, 2, 1).squeeze().shape, Tensor.zeros(1, 2, 1).squeeze(1).shape
        ((2,), (1, 2, 1))
        """
        shape = self.uop.shape
        axes = resolve_axes(dim, len(shape), "squeeze")
        return self._with(self.uop.reshape(tuple(n for i, n in enumerate(shape) if n != 1 or i not in axes)))

    def unsqueeze(self, dim: int) -> Self:
        """With a new axis of size 1 at `dim`.

        >>> Tensor([1, 2]).unsqueeze(1).tolist()
        [[1], [2]]
        """
        shape = self.uop.shape
        axis = resolve_axis(dim, len(shape), "unsqueeze", extra=1)
        return self._with(self.uop.reshape(shape[:axis] + (1,) + shape[axis:]))

    # -- order of axes ---------------------------------------------------------------------------------------
    def permute(self, *order: Any) -> Self:
        """The axes in another order.

        >>> Tensor.zeros(2, 3, 4).permute(2, 0, 1).shape
        (4, 2, 3)
        """
        rank = len(self.uop.shape)
        axes = tuple(resolve_axis(a, rank, "permute") for a in shape_from(order, "permute"))
        if sorted(axes) != list(range(rank)):
            raise AxisError("permute needs every axis exactly once",
                            given=f"permute{shape_from(order, 'permute')} of a tensor of shape {self.uop.shape}",
                            expected=f"the axes 0 to {rank - 1} in some order",
                            fix="name the missing axes")
        return self._with(self.uop.permute(axes))

    def transpose(self, dim0: int = 1, dim1: int = 0) -> Self:
        """Two axes exchanged.

        >>> Tensor([[1, 2], [3, 4]]).transpose().tolist()
        [[1, 3], [2, 4]]
        """
        rank = len(self.uop.shape)
        a, b = resolve_axis(dim0, rank, "transpose"), resolve_axis(dim1, rank, "transpose")
        order = list(range(rank))
        if rank:
            order[a], order[b] = b, a
        return self._with(self.uop.permute(order))

    @property
    def T(self) -> Self:
        """The first two axes exchanged; a tensor with fewer axes is its own transpose.

        >>> Tensor([[1, 2], [3, 4]]).T.tolist()
        [[1, 3], [2, 4]]
        """
        return self.transpose(1, 0) if len(self.uop.shape) > 1 else self

    @property
    def mT(self) -> Self:
        """The last two axes exchanged: the transpose of each matrix in a stack.

        >>> Tensor.zeros(5, 2, 3).mT.shape
        (5, 3, 2)
        """
        return self.transpose(-1, -2)

    def movedim(self, source: int | Sequence[int], destination: int | Sequence[int]) -> Self:
        """One axis or several moved to other places, the rest in order.

        >>> Tensor.zeros(2, 3, 4).movedim(0, -1).shape, Tensor.zeros(2, 3, 4).movedim((0, 1), (2, 0)).shape
        ((3, 4, 2), (3, 4, 2))
        """
        rank = len(self.uop.shape)
        rows = ((axes if isinstance(axes, (tuple, list)) else (axes,)) for axes in (source, destination))
        of, to = ([resolve_axis(axis, rank, "movedim") for axis in row] for row in rows)
        if len(of) != len(to) or len({*of}) < len(of) or len({*to}) < len(to):
            raise InputError("movedim needs as many places as axes, each once",
                             given=f"{source=}, {destination=}, shape {self.shape}",
                             expected="two rows of different axes, of equal length",
                             fix="write x.movedim((0, 1), (1, 2)), for example")
        order = [i for i in range(rank) if i not in of]
        for place, axis in sorted(zip(to, of)):
            order.insert(place, axis)
        return self._with(self.uop.permute(order))

    # -- repeating -------------------------------------------------------------------------------------------
    def expand(self, *shape: Any) -> Self:
        """Axes of size 1 repeated without copying; -1 or None keeps a size, and new axes may be added in front.

        >>> Tensor([[1], [2]]).expand(2, 3).tolist()
        [[1, 1, 1], [2, 2, 2]]
        """
        x = self.uop
        if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
            shape = tuple(shape[0])
        lead = len(shape) - len(x.shape)
        keeps = [n is None or not isinstance(n, Length) and whole(n) == -1 for n in shape]
        kept = tuple(x.shape[i - lead] if keeps[i] and i >= lead else n for i, n in enumerate(shape))
        sizes = shape_from(kept, "expand")
        if lead < 0 or any(n < 0 for n in sizes) or any(
                n != m and n != 1 for n, m in zip(x.shape, sizes[max(lead, 0):])):
            raise ShapeError("cannot expand to this shape", given=f"{x.shape} to {tuple(shape)}",
                             expected="the same sizes, where only axes of size 1 grow and new axes come first",
                             fix="reshape first, so that the axis to repeat has size 1")
        return self._with(x.broadcast(sizes))

    def expand_as(self, other: Self) -> Self:
        """Expanded to another tensor's shape.

        >>> Tensor([[1], [2]]).expand_as(Tensor.zeros(2, 2)).tolist()
        [[1, 1], [2, 2]]
        """
        return self.expand(other.shape)

    def broadcast_to(self, shape: Sizes) -> Self:
        """Expanded to a shape, the axes aligned at the right.

        >>> Tensor([1, 2]).broadcast_to((2, 2)).tolist()
        [[1, 2], [1, 2]]
        """
        return self.expand(shape)

    def _broadcasted(self, other: Any) -> tuple[Self, Self]:
        """This and the other brought to one shape and dtype."""
        x, y = self._both(other)
        shape = broadcast_shape(x.shape, y.shape)
        return x._with(x.uop.broadcast(shape)), y._with(y.uop.broadcast(shape))

    def repeat(self, *repeats: Any) -> Self:
        """The whole tensor, one after another along each axis.

        >>> Tensor([1, 2]).repeat(2, 2).tolist()
        [[1, 2, 1, 2], [1, 2, 1, 2]]
        """
        times = shape_from(repeats, "repeat")
        if any(n < 0 for n in times) or len(times) < self.ndim:
            raise ShapeError("repeat needs a count for every axis",
                             given=f"{times} for a tensor of shape {self.shape}",
                             expected=f"at least {self.ndim} counts of 0 or more",
                             fix="write 1 for axes to leave alone")
        base = (1,) * (len(times) - self.ndim) + self.shape
        x = self.uop.reshape(tuple(m for n in base for m in (1, n)))
        x = x.expand(tuple(m for t, n in zip(times, base) for m in (t, n)))
        return self._with(x.reshape(tuple(t * n for t, n in zip(times, base))))

    # -- borders ---------------------------------------------------------------------------------------------
    def shrink(self, bounds: Sequence[tuple[int, int] | None]) -> Self:
        """The part between (start, stop) on every axis; None keeps an axis whole.

        >>> Tensor([1, 2, 3, 4]).shrink(((1, 3),)).tolist()
        [2, 3]
        """
        shape = self.uop.shape
        parts = tuple((0, n) if b is None else shape_from((b,), "shrink") for b, n in zip(bounds, shape))
        if len(bounds) != len(shape) or any(len(b) != 2 or not 0 <= b[0] <= b[1] <= n for b, n in zip(parts, shape)):
            raise ShapeError("cannot shrink to these bounds", given=f"{tuple(bounds)} of shape {shape}",
                             expected="one (start, stop) per axis with 0 <= start <= stop <= size",
                             fix="check the bounds")
        return self._with(self.uop.shrink(parts))  # type: ignore[arg-type]

    def flip(self, *dims: Any) -> Self:
        """The order along these axes reversed.

        >>> Tensor([1, 2, 3]).flip(0).tolist()
        [3, 2, 1]
        """
        if len(dims) == 1 and isinstance(dims[0], (tuple, list)):
            dims = tuple(dims[0])
        return self._with(self.uop.flip(resolve_axes(dims, len(self.uop.shape), "flip")))

    def pad(self, padding: Padding, mode: str = "constant", value: float = 0.0) -> Self:
        """More elements around: ((before, after), ...) for every axis (None: none), or a flat (left, right, top, ...)
        from the last axis backward as in PyTorch; negative amounts cut. Modes: constant, reflect, replicate, circular.

        >>> Tensor([1, 2]).pad((1, 2)).tolist(), Tensor([1, 2]).pad(((1, 0),), value=9).tolist()
        ([0, 1, 2, 0, 0], [9, 1, 2])
        """
        amounts = self._amounts(padding)
        if mode == "constant":
            return self._pad_constant(amounts, value)
        if mode not in ("reflect", "replicate", "circular"):
            raise ModeError("there is no such way to pad", given=f"mode={mode!r}",
                            expected='"constant", "reflect", "replicate" or "circular"', fix="check the spelling")
        x = self
        for axis, (before, after) in enumerate(amounts):
            x = x._pad_from_inside(axis, before, after, mode)
        return x

    def _amounts(self, padding: Padding) -> list[tuple[int, int]]:
        rank = len(self.uop.shape)
        amounts: list[tuple[int, int]]
        if all(p is None or isinstance(p, (tuple, list)) for p in padding) and len(padding):
            pairs = [(0, 0) if p is None else shape_from((p,), "pad") for p in padding]
            fits = len(pairs) == rank and all(len(p) == 2 for p in pairs)
            amounts = [(p[0], p[1]) for p in pairs] if fits else []
        else:
            flat = shape_from((padding,), "pad")
            fits = len(flat) % 2 == 0 and len(flat) <= 2 * rank
            backward = list(zip(flat[::2], flat[1::2]))[::-1]
            amounts = [(0, 0)] * (rank - len(backward)) + backward
        if not fits:
            raise ShapeError("the padding does not fit the axes", given=f"{tuple(padding)} for shape {self.uop.shape}",
                             expected=f"{rank} pairs (before, after), or at most {2 * rank} numbers from the last axis "
                                      "backward", fix="write None for axes to leave alone: (None, (1, 1))")
        if any(n + b + a < 0 for n, (b, a) in zip(self.uop.shape, amounts)):
            raise ShapeError("the padding cuts away more than there is", given=f"{amounts} for shape {self.uop.shape}",
                             expected="sizes of 0 or more", fix="cut less")
        return amounts

    def _pad_constant(self, amounts: list[tuple[int, int]], value: Any) -> Self:
        x = self.uop
        if any(b < 0 or a < 0 for b, a in amounts):
            x = x.shrink([(max(-b, 0), n - max(-a, 0)) for n, (b, a) in zip(x.shape, amounts)])
        grown = [(max(b, 0), max(a, 0)) for b, a in amounts]
        padded = x.pad(grown)
        if padded is x or value == 0:
            return self._with(padded)
        filler = self._number(value, x.dtype, o.WHERE)
        inside = full(x.shape, True, dtypes.bool).pad(grown)
        return self._with(UOp(o.WHERE, filler.dtype, (inside, padded.cast(filler.dtype), filler)))

    def _pad_from_inside(self, axis: int, before: int, after: int, mode: str) -> Self:
        n = self.uop.shape[axis]
        if before < 0 or after < 0:
            grown = max(before, 0), max(after, 0)
            cut = [(min(before, 0), min(after, 0)) if i == axis else (0, 0) for i in range(len(self.uop.shape))]
            if mode == "circular":      # only what the cut leaves goes round; else the whole axis is there to copy from
                return self._pad_constant(cut, 0)._pad_from_inside(axis, *grown, mode)
            return self._pad_from_inside(axis, *grown, mode)._pad_constant(cut, 0)
        if before == after == 0:
            return self
        reach = {"reflect": n - 1, "circular": n, "replicate": before + after if n else 0}[mode]
        if max(before, after) > reach:
            raise ShapeError(f"cannot pad with mode={mode!r} by more than there is to copy",
                             given=f"({before}, {after}) on an axis of size {n}",
                             expected=f"at most {reach} on each side",
                             fix='pad less, or use mode="replicate"')

        def part(start: int, stop: int, flip: bool = False, count: int = 0) -> UOp:
            x = self.uop.shrink([(start, stop) if i == axis else (0, m) for i, m in enumerate(self.uop.shape)])
            if count:
                x = x.expand(x.shape[:axis] + (count,) + x.shape[axis + 1:])
            return x.flip((axis,)) if flip else x

        if mode == "reflect":
            left, right = part(1, before + 1, flip=True), part(n - 1 - after, n - 1, flip=True)
        elif mode == "circular":
            left, right = part(n - before, n), part(0, after)
        else:
            left, right = part(0, min(before, 1), count=before), part(n - min(after, 1), n, count=after)
        return self._with(joined([left, self.uop, right], axis))


def joined(parts: list[UOp], axis: int) -> UOp:
    """Parts one after another along an axis: each padded to the whole, and the right one chosen by position."""
    parts = [p for p in parts if p.shape[axis]] or parts[:1]
    total = sum(p.shape[axis] for p in parts)
    out: UOp | None = None
    start = 0
    for p in parts:
        n = p.shape[axis]
        spread = p.pad([(start, total - start - n) if i == axis else (0, 0) for i in range(len(p.shape))])
        if out is None:
            out = spread
        else:
            inside = full((n,), True, dtypes.bool).pad([(start, total - start - n)])
            inside = inside.reshape((1,) * axis + (total,) + (1,) * (len(p.shape) - axis - 1)).expand(spread.shape)
            out = UOp(o.WHERE, p.dtype, (inside, spread, out))
        start += n
    assert out is not None
    return out
