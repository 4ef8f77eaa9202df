"""Create random tensors, draw by weight, and hash. In: shapes, limits or weights. Out: tensors.

The numbers are fixed when a tensor is made, by the seed and the number of draws before, although they are computed
later (see formulas/random_numbers.py).
"""

from __future__ import annotations

import math
from typing import Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.compiler.graph import DType, dtype_by_name, dtypes
from glassgrad.tensor.formulas import both, broadcast, divide, elementary, flatten, in_accumulator, less
from glassgrad.tensor.formulas.hashes import absorb, hash_parameters, threefry
from glassgrad.tensor.formulas.random_numbers import (integers, standard_normal, streams, uniform, waiting_times,
                                                      weighted_draws)
from glassgrad.tensor.formulas.sorting import order_of
from glassgrad.tensor.methods import Self, TensorBase, arguments, options, sizes


class RandomMixin(TensorBase):
    """Random tensors."""
    __slots__ = ()

    @staticmethod
    def manual_seed(seed: int = 0) -> None:
        """Restart the random numbers: the same seed gives the same numbers.

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
        """Uniform random numbers in [0, 1). (`contiguous` is tinygrad's; numbers are drawn inside kernels here.)

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
        """Integers from low up to, not including, high; also in PyTorch's order of arguments: low, high and a tuple of
        sizes.

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
        """Uniform random numbers in [low, high); truncated in an integer dtype.

        >>> 5 <= Tensor.uniform(3, low=5, high=6).min().item() < 6
        True
        """
        low, high = arguments("uniform", low=low, high=high)
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
        mean, std = arguments("normal", mean=mean, std=std)
        node = standard_normal(sizes(shape, "normal"), _float(dtype)) * float(std) + float(mean)
        return cls._leaf(node, device, requires_grad)

    def rand_like(self, **kwargs: Any) -> Self:
        """Uniform random numbers in [0, 1), in the shape and dtype of this tensor.

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

    # -- initial weights -------------------------------------------------------------------------------------
    @classmethod
    def scaled_uniform(cls, *shape: Any, **kwargs: Any) -> Self:
        """Uniform random numbers in (-1, 1), divided by the square root of how many there are.

        >>> Tensor.scaled_uniform(2, 3).shape
        (2, 3)
        """
        bound = max(1, math.prod(sizes(shape, "scaled_uniform"))) ** -0.5
        return cls.uniform(*shape, low=-bound, high=bound, **kwargs)

    @classmethod
    def glorot_uniform(cls, *shape: Any, **kwargs: Any) -> Self:
        """Uniform random numbers up to +-sqrt(6 / (inputs + outputs)) (Glorot and Bengio, 2010).

        >>> Tensor.glorot_uniform(2, 3).shape
        (2, 3)
        """
        made = sizes(shape, "glorot_uniform")
        bound = math.sqrt(6 / (math.prod(made[:1]) + _fan_in(made)))
        return cls.uniform(*made, low=-bound, high=bound, **kwargs)

    xavier_uniform = glorot_uniform

    @classmethod
    def kaiming_uniform(cls, *shape: Any, a: float = 0.01, **kwargs: Any) -> Self:
        """Uniform random numbers up to +-sqrt(6 / ((1 + a^2) inputs)), for layers with relu (He et al., 2015).

        >>> Tensor.kaiming_uniform(2, 3).shape
        (2, 3)
        """
        made, (a,) = sizes(shape, "kaiming_uniform"), arguments("kaiming_uniform", a=a)
        bound = math.sqrt(6 / ((1 + a * a) * _fan_in(made)))
        return cls.uniform(*made, low=-bound, high=bound, **kwargs)

    @classmethod
    def kaiming_normal(cls, *shape: Any, a: float = 0.01, **kwargs: Any) -> Self:
        """Normal numbers of deviation sqrt(2 / ((1 + a^2) inputs)), for layers with relu (He et al., 2015).

        >>> Tensor.kaiming_normal(2, 3).shape
        (2, 3)
        """
        made, (a,) = sizes(shape, "kaiming_normal"), arguments("kaiming_normal", a=a)
        return cls.normal(*made, mean=0.0, std=math.sqrt(2 / ((1 + a * a) * _fan_in(made))), **kwargs)

    # -- draws from weights and distributions ----------------------------------------------------------------
    @classmethod
    def randperm(cls, n: int, device: str | None = None, dtype: DType | str | None = None, **kwargs: Any) -> Self:
        """0 to n - 1 in a random order.

        >>> sorted(Tensor.randperm(5).tolist())
        [0, 1, 2, 3, 4]
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise InputError("randperm needs a length", given=repr(n), expected="an int of 0 or more",
                             fix="write Tensor.randperm(10)")
        kind = dtype_by_name(dtype) if dtype is not None else dtypes.default_int
        keys = (uniform((1, n), dtypes.float64) * 2.0 ** 53).cast(dtypes.uint64)
        return cls._leaf(order_of(keys, 53).reshape((n,)).cast(kind), device, kwargs.get("requires_grad"))

    def multinomial(self, num_samples: int = 1, replacement: bool = False, **spelling: Any) -> Self:
        """Indices drawn with these weights (for a matrix, row by row); without replacement, each index at most once.

        >>> Tensor([0.0, 1.0, 0.0]).multinomial(3, replacement=True).tolist()
        [1, 1, 1]
        """
        if self.ndim not in (1, 2) or not self.numel():
            raise ShapeError("multinomial needs weights", given=f"shape {self.shape}",
                             expected="1 or 2 axes, not empty", fix="reshape the weights")
        count, replacement = arguments("multinomial", spelling, num_samples=num_samples, replacement=replacement)
        n = self.shape[-1]
        if count < 1 or not replacement and count > n:
            raise InputError("multinomial cannot draw this many",
                             given=f"num_samples={count}" + ("" if replacement else f" of {n} without replacement"),
                             expected="1 or more" if replacement else f"1 to {n}",
                             fix="draw fewer, or pass replacement=True")
        found = weighted_draws(self.uop.detach().reshape((self.numel() // n, n)), count, replacement)
        return self._with(found.cast(dtypes.default_int).reshape((*self.shape[:-1], count)))

    def bernoulli(self) -> Self:
        """1 with the probability given by each element, else 0.

        >>> Tensor.bernoulli(Tensor([1.0, 0.0])).tolist()
        [1.0, 0.0]
        """
        return self._with(less(uniform(self.shape, dtypes.default_float), self.uop).cast(self.dtype))

    @classmethod
    def exponential(cls, *shape: Any, lambd: float = 1.0, **kwargs: Any) -> Self:
        """Numbers of the exponential distribution with rate lambd.

        >>> Tensor.exponential(100).min().item() >= 0
        True
        """
        rate, = arguments("exponential", lambd=lambd)
        kind, device, grad = options(kwargs, dtypes.default_float, None)
        return cls._leaf(divide(waiting_times(sizes(shape, "exponential"), kind), rate), device, grad)

    @classmethod
    def gumbel(cls, *shape: Any, **kwargs: Any) -> Self:
        """Numbers of the standard Gumbel distribution: -ln(-ln u).

        >>> Tensor.gumbel(2, 3).shape
        (2, 3)
        """
        kind, device, grad = options(kwargs, dtypes.default_float, None)
        waited = waiting_times(sizes(shape, "gumbel"), kind)
        return cls._leaf(-in_accumulator(elementary.log, waited), device, grad)

    # -- hashes ----------------------------------------------------------------------------------------------
    def threefry(self, seed: Self) -> Self:
        """Threefry-2x32 with 20 rounds (Salmon et al., 2011): each uint64 counter becomes 64 scrambled bits; the two
        halves of the seed are the key. (Random tensors here use Philox; this method reproduces what others drew.)

        >>> hex(Tensor([0], dtype=dtypes.uint64).threefry(Tensor([0], dtype=dtypes.uint64)).item())
        '0x99ba4efe6b200159'
        """
        seed, = arguments("threefry", seed=seed)
        x, key = both(self.uop, seed.uop)
        if x.dtype is not dtypes.uint64:
            raise InputError("threefry scrambles 64 bits", given=f"{self.dtype.name} and {seed.dtype.name} values",
                             expected="uint64 tensors", fix="cast both: x.cast(dtypes.uint64)")
        return self._with(threefry(*broadcast(x, key)), seed)

    def keccak(self, cfg: str | tuple[int, int] = "sha3_256") -> Self:
        """The SHA-3 hash (FIPS 202) of the bytes along the last axis: sha3_224, 256, 384, 512, shake_128 or shake_256;
        or (rate in bytes, domain byte), for a hash of (200 - rate) / 2 bytes.

        >>> bytes(Tensor(b"abc").keccak().tolist()).hex()[:8]
        '3a985da7'
        """
        if self.dtype is not dtypes.uint8 or not self.ndim:
            raise InputError("keccak hashes bytes", given=f"{self.dtype.name}{list(self.shape)}",
                             expected="a uint8 tensor with at least 1 axis",
                             fix="Tensor(b'...') or x.bitcast(dtypes.uint8)")
        rate, domain, length = hash_parameters(cfg)
        rows, n = math.prod(self.shape[:-1]), self.shape[-1]
        state = absorb(self.uop.reshape((rows, n)), rate, domain, self.device)
        return self._with(state.shrink(((0, rows), (0, length))).reshape((*self.shape[:-1], length)))

    def hash(self) -> Self:
        """A fingerprint of all bytes: the 16 bytes of their shake_128.

        >>> Tensor([1.0]).hash().shape
        (16,)
        """
        words = self._with(flatten(self.uop)).bitcast(dtypes.uint8)
        return words.keccak("shake_128")


def _fan_in(sizes: tuple[int, ...]) -> int:
    """Return how many values feed one output of a weight of shape (outputs, ...)."""
    return max(1, math.prod(sizes[1:]))


def _float(dtype: Any) -> DType:
    kind = dtype_by_name(dtype) if dtype is not None else dtypes.default_float
    if kind.kind != "f":
        raise InputError("these random numbers are fractions", given=f"dtype={kind.name}", expected="a float dtype",
                         fix="use Tensor.randint for integers")
    return kind
