"""Show the same elements under other indices: reshape, permute, expand, flip. In: tensors. Out: views.

Nothing here copies: each method adds at most a few movement nodes, which a kernel reads through.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from glassgrad.base.errors import AxisError, InputError, ShapeError
from glassgrad.compiler.graph import DType, Length
from glassgrad.tensor.formulas.movement import flatten, transpose, unsqueeze
from glassgrad.tensor.methods import (REQUIRED, Self, TensorBase, arguments, broadcasts_to, cannot_take, one_row,
                                      resolve_axes, resolve_axis, several, shape_from, spelled, whole)

Sizes = int | Sequence[int]


class MovementMixin(TensorBase):
    """Views: the same elements under other indices."""
    __slots__ = ()

    # -- shapes ----------------------------------------------------------------------------------------------
    def reshape(self, *shape: Any, **spelling: Any) -> Self:
        """The same elements in row-major order under another shape; one size may be -1, and None keeps a size.

        >>> Tensor([1, 2, 3, 4, 5, 6]).reshape(2, -1).tolist()
        [[1, 2, 3], [4, 5, 6]]
        """
        x = self.uop
        shape = several("reshape", spelling, shape=shape) if spelling else one_row(shape)
        if any(n is None for n in shape):
            shape = tuple(x.shape[i] if n is None and i < len(x.shape) else n for i, n in enumerate(shape))
        sizes = shape_from(shape, "reshape")
        if any(n < 0 for n in sizes):
            sizes = _filled_in(x.shape, sizes, "reshape")
        return self._view(x.reshape(sizes))

    def view(self, *shape: Any, dtype: DType | None = None, **spelling: Any) -> Self:
        """The same as `reshape`, which never copies here; with a type, the same as `bitcast`.

        >>> Tensor([1, 2, 3, 4]).view(2, 2).tolist(), Tensor([1]).view(dtypes.uint8).tolist()
        ([[1, 2], [3, 4]], [1, 0, 0, 0])
        """
        if spelling:
            shape = several("view", spelling, shape=shape)
        kind = shape[0] if len(shape) == 1 and isinstance(shape[0], DType) else None if shape else dtype
        return self.bitcast(kind) if kind is not None else self.reshape(*shape)

    def view_as(self, other: Self) -> Self:
        """The same elements in another tensor's shape.

        >>> Tensor([1, 2, 3, 4]).view_as(Tensor.zeros(2, 2)).tolist()
        [[1, 2], [3, 4]]
        """
        return self.reshape(arguments("view_as", other=other)[0].shape)

    reshape_as = view_as

    def flatten(self, start_dim: int = 0, end_dim: int = -1, **spelling: Any) -> Self:
        """Several adjacent axes as one.

        >>> Tensor.zeros(2, 3, 4).flatten(1).shape
        (2, 12)
        """
        start_dim, = spelled("flatten", spelling, start_dim=start_dim)
        shape = self.uop.shape
        first = resolve_axis(start_dim, len(shape), "flatten")
        last = resolve_axis(end_dim, len(shape), "flatten")
        if not shape:
            return self._view(self.uop.reshape((1,)))
        if last < first:
            raise AxisError("flatten needs its axes in order", given=f"start_dim={start_dim}, end_dim={end_dim}",
                            expected="start_dim at or before end_dim", fix="exchange them")
        return self._view(self.uop.reshape(shape[:first] + (math.prod(shape[first:last + 1]),) + shape[last + 1:]))

    def ravel(self) -> Self:
        """All elements as a vector; `flatten`.

        >>> Tensor([[1, 2]]).ravel().tolist()
        [1, 2]
        """
        return self._view(flatten(self.uop))

    def unflatten(self, dim: int = REQUIRED, sizes: Sequence[int] = REQUIRED, **spelling: Any) -> Self:
        """One axis as several; one of the sizes may be -1.

        >>> Tensor.zeros(2, 12).unflatten(1, (3, -1)).shape
        (2, 3, 4)
        """
        dim, sizes = spelled("unflatten", spelling, dim=dim, sizes=sizes)
        shape = self.uop.shape
        axis = resolve_axis(dim, len(shape), "unflatten")
        parts = shape_from((sizes,), "unflatten")
        if not shape:
            return self.reshape(parts)
        if any(n < 0 for n in parts):
            parts = _filled_in(shape[axis:axis + 1], parts, "unflatten")
        return self.reshape(shape[:axis] + parts + shape[axis + 1:])

    def squeeze(self, dim: int | Sequence[int] | None = None, **spelling: Any) -> Self:
        """The tensor without its axes of size 1: all of them, or those given; an axis of another size stays.

        >>> Tensor.zeros(1, 2, 1).squeeze().shape, Tensor.zeros(1, 2, 1).squeeze(1).shape
        ((2,), (1, 2, 1))
        """
        dim, = spelled("squeeze", spelling, dim=dim)
        shape = self.uop.shape
        axes = resolve_axes(dim, len(shape), "squeeze")
        return self._view(self.uop.reshape(tuple(n for i, n in enumerate(shape) if n != 1 or i not in axes)))

    def unsqueeze(self, dim: int = REQUIRED, **spelling: Any) -> Self:
        """The tensor with a new axis of size 1 at `dim`.

        >>> Tensor([1, 2]).unsqueeze(1).tolist()
        [[1], [2]]
        """
        dim, = spelled("unsqueeze", spelling, dim=dim)
        return self._view(unsqueeze(self.uop, resolve_axis(dim, self.ndim, "unsqueeze", extra=1)))

    # -- order of axes ---------------------------------------------------------------------------------------
    def permute(self, *order: Any, **spelling: Any) -> Self:
        """The axes in another order.

        >>> Tensor.zeros(2, 3, 4).permute(2, 0, 1).shape
        (4, 2, 3)
        """
        order = shape_from(several("permute", spelling, order=order), "permute")
        rank = len(self.uop.shape)
        axes = tuple(resolve_axis(a, rank, "permute") for a in order)
        if sorted(axes) != list(range(rank)):
            raise AxisError("permute needs every axis exactly once",
                            given=f"permute{order} of a tensor of shape {self.uop.shape}",
                            expected=f"the axes 0 to {rank - 1} in some order", fix="name the missing axes")
        return self._view(self.uop.permute(axes))

    def transpose(self, dim0: int = 1, dim1: int = 0, **spelling: Any) -> Self:
        """Two axes exchanged.

        >>> Tensor([[1, 2], [3, 4]]).transpose().tolist()
        [[1, 3], [2, 4]]
        """
        return self._exchanged(*spelled("transpose", spelling, dim0=dim0, dim1=dim1))

    swapdims = transpose

    def swapaxes(self, axis0: int = REQUIRED, axis1: int = REQUIRED, **spelling: Any) -> Self:
        """Two axes swapped; `transpose`.

        >>> Tensor([[1, 2]]).swapaxes(0, 1).tolist()
        [[1], [2]]
        """
        return self._exchanged(*spelled("swapaxes", spelling, axis0=axis0, axis1=axis1))

    def _exchanged(self, dim0: int, dim1: int) -> Self:
        rank = len(self.uop.shape)
        a, b = resolve_axis(dim0, rank, "transpose"), resolve_axis(dim1, rank, "transpose")
        return self._view(transpose(self.uop, a, b))

    def t(self) -> Self:
        """A matrix with rows and columns swapped; a vector as it is.

        >>> Tensor([[1, 2]]).t().tolist()
        [[1], [2]]
        """
        if self.ndim > 2:
            raise ShapeError("t() is for matrices", given=f"shape {self.shape}", expected="at most 2 axes",
                             fix="use transpose(-2, -1)")
        return self._exchanged(0, 1) if self.ndim == 2 else self

    @property
    def T(self) -> Self:
        """The first two axes exchanged; a tensor with fewer than two axes is unchanged.

        >>> Tensor([[1, 2], [3, 4]]).T.tolist()
        [[1, 3], [2, 4]]
        """
        return self._exchanged(1, 0) if len(self.uop.shape) > 1 else self

    @property
    def mT(self) -> Self:
        """The last two axes exchanged: the transpose of each matrix in a stack.

        >>> Tensor.zeros(5, 2, 3).mT.shape
        (5, 3, 2)
        """
        return self._exchanged(-1, -2)

    def movedim(self, source: int | Sequence[int], destination: int | Sequence[int]) -> Self:
        """One axis or several moved to other positions, the others in their order.

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
        for at, axis in sorted(zip(to, of)):
            order.insert(at, axis)
        return self._view(self.uop.permute(order) if rank else self.uop)

    moveaxis = movedim

    # -- repeating -------------------------------------------------------------------------------------------
    def expand(self, *shape: Any, **spelling: Any) -> Self:
        """Axes of size 1 repeated without copying; -1 or None keeps a size, and new axes may be added in front.

        >>> Tensor([[1], [2]]).expand(2, 3).tolist()
        [[1, 1, 1], [2, 2, 2]]
        """
        x = self.uop
        shape = several("expand", spelling, shape=shape) if spelling else one_row(shape)
        lead = len(shape) - len(x.shape)
        keeps = [n is None or not isinstance(n, Length) and whole(n) == -1 for n in shape]
        kept = tuple(x.shape[i - lead] if keeps[i] and i >= lead else n for i, n in enumerate(shape))
        sizes = shape_from(kept, "expand")
        if any(n < 0 for n in sizes) or not broadcasts_to(x.shape, sizes):
            raise ShapeError("cannot expand to this shape", given=f"{x.shape} to {tuple(shape)}",
                             expected="the same sizes, where only axes of size 1 grow and new axes come first",
                             fix="reshape first, so that the axis to repeat has size 1")
        return self._view(x.broadcast(sizes))

    def expand_as(self, other: Self) -> Self:
        """The tensor expanded to another tensor's shape.

        >>> Tensor([[1], [2]]).expand_as(Tensor.zeros(2, 2)).tolist()
        [[1, 1], [2, 2]]
        """
        return self.expand(arguments("expand_as", other=other)[0].shape)

    def broadcast_to(self, shape: Sizes = REQUIRED, **spelling: Any) -> Self:
        """The tensor expanded to a shape, with the axes aligned at the right.

        >>> Tensor([1, 2]).broadcast_to((2, 2)).tolist()
        [[1, 2], [1, 2]]
        """
        return self.expand(*spelled("broadcast_to", spelling, shape=shape))

    def repeat(self, *repeats: Any, **spelling: Any) -> Self:
        """The whole tensor repeated along each axis.

        >>> Tensor([1, 2]).repeat(2, 2).tolist()
        [[1, 2, 1, 2], [1, 2, 1, 2]]
        """
        return self._repeated(shape_from(several("repeat", spelling, repeats=repeats), "repeat"), "repeat")

    def _repeated(self, times: tuple[int, ...], what: str) -> Self:
        if any(n < 0 for n in times) or len(times) < self.ndim:
            raise ShapeError(f"{what} needs a count for every axis",
                             given=f"{times} for a tensor of shape {self.shape}",
                             expected=f"at least {self.ndim} counts of 0 or more",
                             fix="write 1 for axes to leave alone")
        base = (1,) * (len(times) - self.ndim) + self.shape
        x = self.uop.reshape(tuple(m for n in base for m in (1, n)))
        x = x.expand(tuple(m for t, n in zip(times, base) for m in (t, n)))
        return self._with(x.reshape(tuple(t * n for t, n in zip(times, base))))

    def tile(self, *repeats: Any, **spelling: Any) -> Self:
        """The tensor repeated along axes; missing numbers count as 1.

        >>> Tensor([1, 2]).tile(2).tolist()
        [1, 2, 1, 2]
        """
        counts = shape_from(several("tile", spelling, repeats=repeats), "tile")
        return self._repeated((1,) * (self.ndim - len(counts)) + counts, "tile")

    # -- reversed -----------------------------------------------------------------------------------------
    def flip(self, *dims: Any, **spelling: Any) -> Self:
        """The order along these axes reversed.

        >>> Tensor([1, 2, 3]).flip(0).tolist()
        [3, 2, 1]
        """
        dims = several("flip", spelling, dims=dims)
        return self._with(self.uop.flip(resolve_axes(dims, len(self.uop.shape), "flip")))

    def fliplr(self) -> Self:
        """The second axis reversed.

        >>> Tensor([[1, 2]]).fliplr().tolist()
        [[2, 1]]
        """
        return self._with(self.uop.flip(resolve_axes(1, self.ndim, "fliplr")))

    def flipud(self) -> Self:
        """The first axis reversed.

        >>> Tensor([[1], [2]]).flipud().tolist()
        [[2], [1]]
        """
        return self._with(self.uop.flip(resolve_axes(0, self.ndim, "flipud")))

    def rot90(self, k: int = 1, dims: Sequence[int] = (0, 1), **spelling: Any) -> Self:
        """The tensor rotated by k quarter turns in the plane of two axes, from the first toward the second.

        >>> Tensor([[1, 2], [3, 4]]).rot90().tolist()
        [[2, 4], [1, 3]]
        """
        k, dims = arguments("rot90", spelling, k=k, dims=dims)
        axes = resolve_axes(dims, self.ndim, "rot90")
        if len(axes) != 2:
            raise cannot_take("rot90", "dims", dims, "two axes")
        x, (first, second) = self.uop, axes
        for _ in range(k % 4):
            x = transpose(x.flip((second,)), first, second)
        return self._with(x)


def _filled_in(shape: tuple[Any, ...], sizes: tuple[int, ...], what: str) -> tuple[int, ...]:
    """Return the sizes, with -1 replaced by the size that it stands for."""
    count, known = math.prod(shape), math.prod(n for n in sizes if n != -1)
    if any(n < -1 for n in sizes) or sizes.count(-1) > 1:
        raise ShapeError("cannot tell which sizes are meant", given=f"{what}{sizes}",
                         expected="sizes of 0 or more, and at most one -1", fix="write the other sizes out")
    if known == 0 or count % known != 0:
        rest = f"{count} elements are not a multiple of {known}" if known else "0 elements leave it open"
        raise ShapeError(f"cannot {what}: -1 does not come out as an integer",
                         given=f"{shape} ({count} elements) to {sizes}",
                         expected=f"known sizes whose product divides {count}; {rest}",
                         fix="check the sizes you wrote, or print(x.shape) before this line")
    return tuple(count // known if n == -1 else n for n in sizes)
