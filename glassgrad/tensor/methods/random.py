"""Random tensors. In: shapes and limits. Out: tensors whose numbers are fixed now, though they are computed later.

Numbers are counted, not drawn: element i of the n-th random tensor is a function of (seed, n, i). So the order in which
results are read changes nothing, and every device gives the same numbers. Seed and n are scalars that kernels are
handed when they run, so each call runs the same compiled code.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import InputError
from glassgrad.base.settings import settings
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.arguments import Cell, RandomBits
from glassgrad.compiler.graph.dtype import DType, dtype_by_name, dtypes
from glassgrad.compiler.graph.symbolic import most
from glassgrad.compiler.graph.uop import UOp
from glassgrad.tensor.formulas import elementary
from glassgrad.tensor.methods.shape.joining import Joining

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Random"]


class _Streams:
    """The seed, and how many random tensors it has given."""

    def __init__(self) -> None:
        self.seed: UOp | None = None
        self.count = 0

    def start(self, seed: int) -> None:
        self.seed, self.count = _scalar(seed & 0xFFFFFFFF), 0

    def _begun(self) -> UOp:
        if self.seed is None:
            chosen = settings.SEED
            self.start(chosen if chosen >= 0 else int.from_bytes(os.urandom(4), "little"))
        assert self.seed is not None
        return self.seed

    def state(self) -> tuple[int, int]:
        """All that decides the numbers to come: the seed and the count; chosen now, if nothing was drawn yet."""
        return int(self._begun().arg.value), self.count

    def restore(self, seed: int, count: int) -> None:
        """Go on from a `state`."""
        self.start(seed)
        self.count = count

    def bits(self, shape: tuple[int, ...]) -> UOp:
        seed = self._begun()
        self.count += 1
        room = RandomBits(tuple(map(most, shape)))       # an element's number does not depend on a variable's value
        return UOp(o.RANDOM, dtypes.uint64, (seed, _scalar(self.count & 0xFFFFFFFF)), room).shrink(
            [(0, n) for n in shape])


def _scalar(value: int) -> UOp:
    return UOp(o.SCALAR, dtypes.uint32, (), Cell(value))


_streams = _Streams()


def _fraction(word: UOp, dtype: DType) -> UOp:
    """A 32-bit word as a number in [0, 1): as many of its upper bits as the type holds exactly."""
    keep = dtype.mantissa + 1
    return (word >> (32 - keep)).cast(dtypes.int32).cast(dtype) * 2.0 ** -keep


def uniform(shape: tuple[int, ...], dtype: DType) -> UOp:
    """Numbers in [0, 1)."""
    bits = _streams.bits(shape)
    if dtype is dtypes.float64:
        return (bits >> 11).cast(dtype) * 2.0 ** -53
    return _fraction(bits.cast(dtypes.uint32), dtype)


def standard_normal(shape: tuple[int, ...], dtype: DType) -> UOp:
    """Numbers of mean 0 and deviation 1, by Box and Muller: a length and an angle from the two words."""
    bits = _streams.bits(shape)
    wide = dtype.accumulator
    u, v = bits.cast(dtypes.uint32), (bits >> 32).cast(dtypes.uint32)
    if wide is dtypes.float64:
        length, turn = (u.cast(wide) + 0.5) * 2.0 ** -32, v.cast(wide) * 2.0 ** -32
    else:
        length, turn = 1.0 - _fraction(u, wide), _fraction(v, wide)
    return ((elementary.log(length) * -2.0).sqrt() * ((0.25 - turn) * (2 * math.pi)).sin()).cast(dtype)


class Random(Joining):
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
        _streams.start(seed)

    @classmethod
    def rand(cls, *shape: Any, device: str | None = None, dtype: DType | str | None = None,
             requires_grad: bool | None = None, contiguous: bool = True) -> Self:
        """Numbers spread evenly over [0, 1). (`contiguous` is tinygrad's; numbers are drawn inside kernels here.)

        >>> 0 <= Tensor.rand(3).min().item() < 1
        True
        """
        return cls._leaf(uniform(cls._sizes(shape, "rand"), _float(dtype)), device, requires_grad)

    @classmethod
    def randn(cls, *shape: Any, device: str | None = None, dtype: DType | str | None = None,
              requires_grad: bool | None = None) -> Self:
        """Numbers of the normal distribution with mean 0 and deviation 1.

        >>> abs(Tensor.randn(1000).mean().item()) < 0.3
        True
        """
        return cls._leaf(standard_normal(cls._sizes(shape, "randn"), _float(dtype)), device, requires_grad)

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
        bits, span = _streams.bits(cls._sizes(shape, "randint")), high - low
        if span <= 1 << 32:   # the upper half of word * span: even to one part in 2^32 / span
            chosen = ((bits & 0xFFFFFFFF) * span) >> 32
        else:
            chosen = bits % span
        return cls._leaf((chosen.cast(dtypes.int64) + low).cast(kind), device, requires_grad)

    @classmethod
    def uniform(cls, *shape: Any, low: float = 0.0, high: float = 1.0, device: str | None = None,
                dtype: DType | str | None = None, requires_grad: bool | None = None) -> Self:
        """Numbers spread evenly over [low, high); in a whole-number dtype their whole parts.

        >>> 5 <= Tensor.uniform(3, low=5, high=6).min().item() < 6
        True
        """
        kind = dtype_by_name(dtype) if dtype is not None else dtypes.default_float
        if kind.kind in "iu":
            wide = uniform(cls._sizes(shape, "uniform"), dtypes.float32) * float(high - low)
            return cls._leaf((wide.cast(dtypes.int64) + int(low)).cast(kind), device, requires_grad)
        node = uniform(cls._sizes(shape, "uniform"), _float(dtype)) * float(high - low) + float(low)
        return cls._leaf(node, device, requires_grad)

    @classmethod
    def normal(cls, *shape: Any, mean: float = 0.0, std: float = 1.0, device: str | None = None,
               dtype: DType | str | None = None, requires_grad: bool | None = None) -> Self:
        """Numbers of the normal distribution with a mean and a standard deviation.

        >>> Tensor.normal(3, mean=5, std=0).tolist()
        [5.0, 5.0, 5.0]
        """
        node = standard_normal(cls._sizes(shape, "normal"), _float(dtype)) * float(std) + float(mean)
        return cls._leaf(node, device, requires_grad)

    def rand_like(self, **kwargs: Any) -> Self:
        """Numbers spread evenly over [0, 1), in the shape and dtype of this tensor.

        >>> Tensor.zeros(2, 3).rand_like().shape
        (2, 3)
        """
        return self._leaf(uniform(self.shape, self._wanted(kwargs)),
                          kwargs.get("device", self.uop.device or self._device), kwargs.get("requires_grad"))

    def randn_like(self, dtype: DType | str | None = None, requires_grad: bool | None = None, **kwargs: Any) -> Self:
        """Numbers of the normal distribution, in the shape and dtype of this tensor.

        >>> Tensor.zeros(2, 3).randn_like().shape
        (2, 3)
        """
        return self._leaf(standard_normal(self.shape, self._wanted({"dtype": dtype, **kwargs})),
                          kwargs.get("device", self.uop.device or self._device), requires_grad)

    # -- weights to start from -------------------------------------------------------------------------------
    @classmethod
    def scaled_uniform(cls, *shape: Any, **kwargs: Any) -> Self:
        """Even numbers over (-1, 1) divided by the square root of their count.

        >>> Tensor.scaled_uniform(2, 3).shape
        (2, 3)
        """
        bound = max(1, math.prod(cls._sizes(shape, "scaled_uniform"))) ** -0.5
        return cls.uniform(*shape, low=-bound, high=bound, **kwargs)

    @classmethod
    def glorot_uniform(cls, *shape: Any, **kwargs: Any) -> Self:
        """Even numbers within sqrt(6 / (inputs + outputs)) (Glorot and Bengio, 2010).

        >>> Tensor.glorot_uniform(2, 3).shape
        (2, 3)
        """
        sizes = cls._sizes(shape, "glorot_uniform")
        bound = math.sqrt(6 / (_first(sizes) + _fan_in(sizes)))
        return cls.uniform(*sizes, low=-bound, high=bound, **kwargs)

    @classmethod
    def kaiming_uniform(cls, *shape: Any, a: float = 0.01, **kwargs: Any) -> Self:
        """Even numbers within sqrt(6 / ((1 + a^2) inputs)), for layers with relu (He et al., 2015).

        >>> Tensor.kaiming_uniform(2, 3).shape
        (2, 3)
        """
        sizes = cls._sizes(shape, "kaiming_uniform")
        bound = math.sqrt(6 / ((1 + a * a) * _fan_in(sizes)))
        return cls.uniform(*sizes, low=-bound, high=bound, **kwargs)

    @classmethod
    def kaiming_normal(cls, *shape: Any, a: float = 0.01, **kwargs: Any) -> Self:
        """Normal numbers of deviation sqrt(2 / ((1 + a^2) inputs)), for layers with relu (He et al., 2015).

        >>> Tensor.kaiming_normal(2, 3).shape
        (2, 3)
        """
        sizes = cls._sizes(shape, "kaiming_normal")
        return cls.normal(*sizes, mean=0.0, std=math.sqrt(2 / ((1 + a * a) * _fan_in(sizes))), **kwargs)


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
