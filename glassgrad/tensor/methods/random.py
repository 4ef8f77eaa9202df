"""Random tensors. In: shapes and limits. Out: tensors whose numbers are fixed now, though they are computed later."""

from __future__ import annotations

import math
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.compiler.graph.dtype import DType, dtype_by_name, dtypes
from glassgrad.tensor import checks
from glassgrad.tensor.base import Self, TensorBase
from glassgrad.tensor.checks import options, sizes
from glassgrad.tensor.formulas.random_numbers import integers, standard_normal, streams, uniform

__all__ = ["RandomMixin"]


class RandomMixin(TensorBase):
    """Random tensors."""
    __slots__ = ()

    @staticmethod
    def manual_seed(seed: int = 0) -> None:
        """Start the random numbers anew: the same seed gives the same numbers.

        >>> Tensor.manual_seed(7); a = Tensor.rand(2).tolist()
        >>> Tensor.manual_seed(7); a == Tensor.rand(2).tolist()
        True
        """
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise InputError("a seed is an integer", given=repr(seed), expected="an int",
                             fix="write Tensor.manual_seed(42)")
        streams.start(seed)

    @classmethod
    def rand(cls, *shape: Any, device: str | None = None, dtype: DType | str | None = None,
             requires_grad: bool | None = None, contiguous: bool = True) -> Self:
        """Numbers spread evenly over [0, 1). (`contiguous` is tinygrad's; numbers are drawn inside kernels here.)

        >>> 0 <= Tensor.rand(3).min().item() < 1
        True
        """
        return cls._leaf(uniform(sizes(shape, "rand"), _float(dtype)), device, requires_grad)

    @classmethod
    def randn(cls, *shape: Any, device: str | None = None, dtype: DType | str | None = None,
              requires_grad: bool | None = None) -> Self:
        """Numbers of the normal distribution with mean 0 and deviation 1.

        >>> abs(Tensor.randn(1000).mean().item()) < 0.3
        True
        """
        return cls._leaf(standard_normal(sizes(shape, "randn"), _float(dtype)), device, requires_grad)

    @classmethod
    def randint(cls, *shape: Any, low: int = 0, high: int = 10, device: str | None = None,
                dtype: DType | str | None = None, requires_grad: bool | None = None) -> Self:
        """Integers from low up to, not including, high; also in PyTorch's order: low, high and a tuple of sizes.

        >>> set(Tensor.randint(100, low=3, high=5).tolist()) <= {3, 4}
        True
        """
        if len(shape) in (2, 3) and isinstance(shape[-1], (tuple, list)):
            low, high, shape = shape[0] if len(shape) == 3 else 0, shape[-2], tuple(shape[-1])
        kind = dtype_by_name(dtype) if dtype is not None else dtypes.default_int
        if kind.kind not in "iu":
            raise InputError("randint makes integers", given=f"dtype={kind.name}", expected="an integer dtype",
                             fix="use Tensor.uniform for fractions")
        if not (isinstance(low, int) and isinstance(high, int) and low < high):
            raise InputError("randint needs a range with something in it", given=f"low={low!r}, high={high!r}",
                             expected="ints with low < high", fix="high is not included: write high=low + 1")
        return cls._leaf(integers(sizes(shape, "randint"), low, high).cast(kind), device, requires_grad)

    @classmethod
    def uniform(cls, *shape: Any, low: float = 0.0, high: float = 1.0, device: str | None = None,
                dtype: DType | str | None = None, requires_grad: bool | None = None) -> Self:
        """Numbers spread evenly over [low, high); in a whole-number dtype their whole parts.

        >>> 5 <= Tensor.uniform(3, low=5, high=6).min().item() < 6
        True
        """
        low, high = checks.number("uniform", low=low), checks.number("uniform", high=high)
        kind = dtype_by_name(dtype) if dtype is not None else dtypes.default_float
        if kind.kind in "iu":
            wide = uniform(sizes(shape, "uniform"), dtypes.float32) * float(high - low)
            return cls._leaf((wide.cast(dtypes.int64) + int(low)).cast(kind), device, requires_grad)
        node = uniform(sizes(shape, "uniform"), _float(dtype)) * float(high - low) + float(low)
        return cls._leaf(node, device, requires_grad)

    @classmethod
    def normal(cls, *shape: Any, mean: float = 0.0, std: float = 1.0, device: str | None = None,
               dtype: DType | str | None = None, requires_grad: bool | None = None) -> Self:
        """Numbers of the normal distribution with a mean and a standard deviation.

        >>> Tensor.normal(3, mean=5, std=0).tolist()
        [5.0, 5.0, 5.0]
        """
        mean, std = checks.number("normal", mean=mean), checks.number("normal", std=std)
        node = standard_normal(sizes(shape, "normal"), _float(dtype)) * float(std) + float(mean)
        return cls._leaf(node, device, requires_grad)

    def rand_like(self, **kwargs: Any) -> Self:
        """Numbers spread evenly over [0, 1), in the shape and dtype of this tensor.

        >>> Tensor.zeros(2, 3).rand_like().shape
        (2, 3)
        """
        kind, device, grad = options(kwargs, self.dtype, self.uop.device or self._device)
        return self._leaf(uniform(self.shape, _float(kind)), device, grad)

    def randn_like(self, dtype: DType | str | None = None, requires_grad: bool | None = None, **kwargs: Any) -> Self:
        """Numbers of the normal distribution, in the shape and dtype of this tensor.

        >>> Tensor.zeros(2, 3).randn_like().shape
        (2, 3)
        """
        kind, device, _ = options({"dtype": dtype, **kwargs}, self.dtype, self.uop.device or self._device)
        return self._leaf(standard_normal(self.shape, _float(kind)), device, requires_grad)

    # -- weights to start from -------------------------------------------------------------------------------
    @classmethod
    def scaled_uniform(cls, *shape: Any, **kwargs: Any) -> Self:
        """Even numbers over (-1, 1) divided by the square root of their count.

        >>> Tensor.scaled_uniform(2, 3).shape
        (2, 3)
        """
        bound = max(1, math.prod(sizes(shape, "scaled_uniform"))) ** -0.5
        return cls.uniform(*shape, low=-bound, high=bound, **kwargs)

    @classmethod
    def glorot_uniform(cls, *shape: Any, **kwargs: Any) -> Self:
        """Even numbers within sqrt(6 / (inputs + outputs)) (Glorot and Bengio, 2010).

        >>> Tensor.glorot_uniform(2, 3).shape
        (2, 3)
        """
        made = sizes(shape, "glorot_uniform")
        bound = math.sqrt(6 / (_first(made) + _fan_in(made)))
        return cls.uniform(*made, low=-bound, high=bound, **kwargs)

    xavier_uniform = glorot_uniform

    @classmethod
    def kaiming_uniform(cls, *shape: Any, a: float = 0.01, **kwargs: Any) -> Self:
        """Even numbers within sqrt(6 / ((1 + a^2) inputs)), for layers with relu (He et al., 2015).

        >>> Tensor.kaiming_uniform(2, 3).shape
        (2, 3)
        """
        made, a = sizes(shape, "kaiming_uniform"), checks.number("kaiming_uniform", a=a)
        bound = math.sqrt(6 / ((1 + a * a) * _fan_in(made)))
        return cls.uniform(*made, low=-bound, high=bound, **kwargs)

    @classmethod
    def kaiming_normal(cls, *shape: Any, a: float = 0.01, **kwargs: Any) -> Self:
        """Normal numbers of deviation sqrt(2 / ((1 + a^2) inputs)), for layers with relu (He et al., 2015).

        >>> Tensor.kaiming_normal(2, 3).shape
        (2, 3)
        """
        made, a = sizes(shape, "kaiming_normal"), checks.number("kaiming_normal", a=a)
        return cls.normal(*made, mean=0.0, std=math.sqrt(2 / ((1 + a * a) * _fan_in(made))), **kwargs)


def _first(sizes: tuple[int, ...]) -> int:
    return sizes[0] if sizes else 1


def _fan_in(sizes: tuple[int, ...]) -> int:
    """How many values feed one output of a weight of shape (outputs, ...)."""
    return max(1, math.prod(sizes[1:]))


def _float(dtype: Any) -> DType:
    kind = dtype_by_name(dtype) if dtype is not None else dtypes.default_float
    if kind.kind != "f":
        raise InputError("these random numbers are fractions", given=f"dtype={kind.name}", expected="a float dtype",
                         fix="use Tensor.randint for integers")
    return kind
