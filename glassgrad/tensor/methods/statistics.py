"""What a set of numbers is like: its ends, the most frequent, counts in bins, covariances. In, out: tensors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.tensor import evaluate as running
from glassgrad.tensor.aliases import Synonyms
from glassgrad.tensor.broadcast import resolve_axis, working_axis
from glassgrad.tensor.formulas.counting import counting
from glassgrad.tensor.methods.reduce import Found

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Statistics"]


class Statistics(Synonyms):
    """What a set of numbers is like."""
    __slots__ = ()

    def aminmax(self, dim: int | None = None, keepdim: bool = False) -> tuple[Self, Self]:
        """The smallest and the largest.

        >>> [t.item() for t in Tensor([3, 1, 2]).aminmax()]
        [1, 3]
        """
        return self.amin(dim, keepdim), self.amax(dim, keepdim)

    def mode(self, dim: int = -1, keepdim: bool = False) -> Found:
        """The most frequent value along an axis (of equally frequent ones the smallest), and its last place.

        >>> [t.tolist() for t in Tensor([1, 3, 3, 2]).mode()]
        [3, 2]
        """
        if not self.ndim:
            return Found(self, self.zeros_like(dtype=dtypes.int32))
        axis = working_axis(dim, self.ndim, "mode")
        n = self.shape[axis]
        if not n:
            raise ShapeError("there is no most frequent of nothing", given=f"shape {self.shape}",
                             expected="at least one element along the axis", fix="check where the elements went")
        x = self.movedim(axis, -1)
        values, places = x.sort(-1)
        at = self._with(counting(n))
        differs = values[..., 1:] != values[..., :-1]
        starts = differs._pad_constant([*[(0, 0)] * (x.ndim - 1), (1, 0)], True)
        first = starts.where(at, 0).cummax(-1)[0]              # where the run of equal values began
        length = at - first
        best = length.argmax(-1, keepdim=True)                 # the end of the longest run, the earliest of them
        found = [t.gather(-1, best) for t in (values, places)]
        kept = found if keepdim else [t.squeeze(-1) for t in found]
        return Found(*(t.movedim(-1, axis) if keepdim else t for t in kept))

    def nanmedian(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """The lower of the middle values that are not NaN; along an axis also its place.

        >>> Tensor([1.0, float("nan"), 3.0]).nanmedian().item()
        1.0
        """
        if dim is None:
            return self.flatten().nanmedian(0)[0]
        axis = resolve_axis(dim, self.ndim, "nanmedian")
        if not self.ndim:
            return Found(self, self.zeros_like(dtype=dtypes.int32))
        values, places = self.sort(axis)                       # NaN stand last
        count = (~self.isnan()).cast(dtypes.int32).sum(axis, keepdim=True)
        at = ((count - 1) // 2).maximum(0)
        found = values.gather(axis, at), places.gather(axis, at)
        return found if keepdim else tuple(t.squeeze(axis) for t in found)

    def histc(self, bins: int = 100, min: float = 0, max: float = 0) -> Self:
        """How many values fall into each of so many equal parts from min to max (both 0: the least to the greatest).

        >>> Tensor([1.0, 2.0, 1.0]).histc(4, 0, 3).tolist()
        [0.0, 2.0, 1.0, 0.0]
        """
        if bins < 1 or not (math.isfinite(min) and math.isfinite(max) and min <= max):
            raise InputError("histc cannot make these bins", given=f"bins={bins}, min={min}, max={max}",
                             expected="at least 1 bin, and finite limits in order",
                             fix="write x.histc(10), for example")
        x = self.flatten()
        if min == max and x.numel():
            min, max = (float(running.number_in(t.cast(dtypes.float64).uop, x.device)) for t in x.aminmax())
        if min == max:
            min, max = min - 1, max + 1
        place = ((x - min) * (bins / (max - min))).floor()
        inside = (x >= min) & (x <= max)
        place = inside.where(place.clamp(0, bins - 1), bins).cast(dtypes.int32)
        counted = self._with(counting(bins)).reshape(bins, 1) == place.reshape(1, -1)
        return counted.cast(x._float_node().dtype).sum(1)

    def isin(self, test_elements: Any, *, invert: bool = False) -> Self:
        """Whether each value is among others (or is not, with `invert`).

        >>> Tensor([1, 2, 3]).isin(Tensor([3, 1])).tolist()
        [True, False, True]
        """
        others = test_elements if isinstance(test_elements, Statistics) else \
            self.__class__(test_elements, device=self.device)
        found = (self.unsqueeze(-1) == others.flatten()).any(-1)
        return ~found if invert else found

    def bucketize(self, boundaries: Self, *, right: bool = False) -> Self:
        """Between which boundaries, which are in order, each value lies: the number of those below it (with `right`
        also those equal to it).

        >>> Tensor([0, 3, 5]).bucketize(Tensor([1, 3])).tolist()
        [0, 1, 2]
        """
        return boundaries.searchsorted(self, right=right)

    # -- areas -----------------------------------------------------------------------------------------------
    def _trapezoids(self, x: Any, dx: float, dim: int) -> Self:
        """The area between each two neighbours and 0, along an axis."""
        axis = working_axis(dim, self.ndim, "trapezoid")
        n = self.shape[axis]
        middle = (self.narrow(axis, 1, n - 1) + self.narrow(axis, 0, n - 1)) / 2 if n > 1 else self.narrow(axis, 0, 0)
        if x is None:
            return middle * dx
        apart = x.diff(dim=axis if x.ndim == self.ndim else -1)
        if apart.ndim == 1 and self.ndim > 1:
            apart = apart.reshape([-1 if a == axis else 1 for a in range(self.ndim)])
        return middle * apart

    def trapezoid(self, x: Self | None = None, *, dx: float = 1.0, dim: int = -1) -> Self:
        """The integral along an axis by straight lines between values, which are dx apart, or at places x.

        >>> Tensor([1.0, 2.0, 4.0]).trapezoid().item()
        4.5
        """
        return self._trapezoids(x, dx, dim).sum(dim)

    trapz = trapezoid

    def cumulative_trapezoid(self, x: Self | None = None, *, dx: float = 1.0, dim: int = -1) -> Self:
        """The same up to each value but the first.

        >>> Tensor([1.0, 2.0, 4.0]).cumulative_trapezoid().tolist()
        [1.5, 4.5]
        """
        return self._trapezoids(x, dx, dim).cumsum(dim)

    def renorm(self, p: float, dim: int, maxnorm: float) -> Self:
        """Every slice along an axis with a p-norm above maxnorm made that long.

        >>> Tensor([[3.0, 4.0], [0.0, 1.0]]).renorm(2, 0, 1.0).numpy().round(4)
        array([[0.6, 0.8],
               [0. , 1. ]], dtype=float32)
        """
        axis = working_axis(dim, self.ndim, "renorm")
        sizes = self.norm(p, tuple(a for a in range(self.ndim) if a != axis), keepdim=True)
        return (sizes > maxnorm).where(self * (maxnorm / (sizes + 1e-7)), self)

    def cov(self, correction: int = 1) -> Self:
        """The covariance of variables (rows) over their observations (columns).

        >>> Tensor([[1.0, 2.0, 3.0]]).cov().item()
        1.0
        """
        if self.ndim > 2:
            raise ShapeError("cov is of a matrix of variables", given=f"shape {self.shape}",
                             expected="(variables, observations), or one row", fix="reshape it first")
        x = self.reshape(1, -1) if self.ndim < 2 else self
        x = x - x.mean(1, keepdim=True)
        found = x @ x.T / float(max(x.shape[1] - correction, 0)) if x.shape[1] > correction else x @ x.T * math.nan
        return found if self.ndim == 2 else found.reshape(())

    def corrcoef(self) -> Self:
        """The correlation of variables (rows): their covariance over both deviations.

        >>> Tensor([[1.0, 2.0], [2.0, 4.0]]).corrcoef().numpy().round(3).tolist()
        [[1.0, 1.0], [1.0, 1.0]]
        """
        found = self.cov()
        if not found.ndim:
            return found / found
        size = found.diagonal().sqrt()
        return (found / size.unsqueeze(1) / size.unsqueeze(0)).clamp(-1, 1)

    def unique_consecutive(self, return_inverse: bool = False, return_counts: bool = False) -> Any:
        """The values without those equal to the one before; with `return_inverse` also where each element went, with
        `return_counts` also how many became one.

        >>> Tensor([1, 1, 2, 1]).unique_consecutive().tolist()
        [1, 2, 1]
        """
        x = self.flatten()
        count = x.numel()
        if not count:
            nothing = x.cast(dtypes.int32)
            found = [x, nothing.reshape(self.shape), nothing]
        else:
            changes = (x[1:] != x[:-1])._pad_constant([(1, 0)], True)
            heads = changes.nonzero().flatten()
            ends = heads[1:].cat(heads.full_like(count)[:1])
            group = (changes.cast(dtypes.int32).cumsum(0) - 1).reshape(self.shape)
            found = [x[heads], group, ends - heads]
        chosen = [t for t, wish in zip(found, (True, return_inverse, return_counts)) if wish]
        return chosen[0] if len(chosen) == 1 else tuple(chosen)
