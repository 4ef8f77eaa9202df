"""Random choices: permutations, draws by weight, other distributions; and hashes. In: sizes or weights. Out: tensors.

All stand on the counted random numbers of formulas/random_numbers.py, so they too are fixed by the seed, not by the
order of reading.
"""

from __future__ import annotations

import math
from typing import Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.compiler.graph.dtype import DType, dtype_by_name, dtypes
from glassgrad.tensor import checks
from glassgrad.tensor.base import Self, TensorBase
from glassgrad.tensor.formulas import elementary
from glassgrad.tensor.formulas.arithmetic import both, broadcast, divide, in_accumulator, less, sub
from glassgrad.tensor.formulas.hashes import absorb, hash_parameters, lane_tables, padding_bytes, threefry
from glassgrad.tensor.formulas.movement import flatten
from glassgrad.tensor.formulas.order import order_of
from glassgrad.tensor.formulas.random_numbers import uniform, weighted_draws

__all__ = ["SamplingMixin"]


class SamplingMixin(TensorBase):
    """Random choices and hashes."""
    __slots__ = ()

    @classmethod
    def randperm(cls, n: int, device: str | None = None, dtype: DType | str | None = None, **kwargs: Any) -> Self:
        """0 to n - 1 in a random order.

        >>> sorted(Tensor.randperm(5).tolist())
        [0, 1, 2, 3, 4]
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise InputError(
                "randperm needs a length",
                given=repr(n),
                expected="an int of 0 or more",
                fix="write Tensor.randperm(10)",
            )
        kind = dtype_by_name(dtype) if dtype is not None else dtypes.default_int
        keys = (uniform((1, n), dtypes.float64) * 2.0 ** 53).cast(dtypes.uint64)
        return cls._leaf(order_of(keys, 53).reshape((n,)).cast(kind), device, kwargs.get("requires_grad"))

    def multinomial(self, num_samples: int = 1, replacement: bool = False, **spelling: Any) -> Self:
        """Places drawn with these weights (each row of a matrix on its own); without replacement none comes twice.

        >>> Tensor([0.0, 1.0, 0.0]).multinomial(3, replacement=True).tolist()
        [1, 1, 1]
        """
        if self.ndim not in (1, 2) or not self.numel():
            raise ShapeError(
                "multinomial needs weights",
                given=f"shape {self.shape}",
                expected="1 or 2 axes, not empty",
                fix="reshape the weights",
            )
        num_samples, = checks.spelled("multinomial", spelling, num_samples=num_samples)
        count = checks.integer("multinomial", num_samples=num_samples)
        checks.flags("multinomial", replacement=replacement)
        n = self.shape[-1]
        if count < 1 or not replacement and count > n:
            raise InputError("multinomial cannot draw this many",
                             given=f"num_samples={count}" + ("" if replacement else f" of {n} without replacement"),
                             expected="1 or more" if replacement else f"1 to {n}",
                             fix="draw fewer, or pass replacement=True")
        found = weighted_draws(self.uop.detach().reshape((self.numel() // n, n)), count, bool(replacement))
        return self._with(found.cast(dtypes.default_int).reshape((*self.shape[:-1], count)))

    def bernoulli(self) -> Self:
        """1 with the probability that this is, else 0, element by element.

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
        rate = checks.number("exponential", lambd=lambd)
        kind, device, grad = checks.options(kwargs, dtypes.default_float, None)
        drawn = uniform(checks.sizes(shape, "exponential"), kind)
        return cls._leaf(divide(-in_accumulator(elementary.log, sub(1, drawn)), rate), device, grad)

    @classmethod
    def gumbel(cls, *shape: Any, **kwargs: Any) -> Self:
        """Numbers of the standard Gumbel distribution: -ln(-ln u).

        >>> Tensor.gumbel(2, 3).shape
        (2, 3)
        """
        kind, device, grad = checks.options(kwargs, dtypes.default_float, None)
        drawn = uniform(checks.sizes(shape, "gumbel"), kind)
        waited = -in_accumulator(elementary.log, sub(1, drawn))
        return cls._leaf(-in_accumulator(elementary.log, waited), device, grad)

    # -- hashes ----------------------------------------------------------------------------------------------
    def threefry(self, seed: Self) -> Self:
        """Threefry-2x32 with 20 rounds (Salmon et al., 2011): each uint64 counter as 64 scrambled bits; the seed's two
        halves are the key. (Random tensors here are Philox; this is for reproducing what others drew.)

        >>> hex(Tensor([0], dtype=dtypes.uint64).threefry(Tensor([0], dtype=dtypes.uint64)).item())
        '0x99ba4efe6b200159'
        """
        checks.tensors("threefry", seed=seed)
        x, key = both(self.uop, seed.uop)
        if x.dtype is not dtypes.uint64:
            raise InputError("threefry scrambles 64 bits", given=f"{self.dtype.name} and {seed.dtype.name} values",
                             expected="uint64 tensors", fix="cast both: x.cast(dtypes.uint64)")
        return self._with(threefry(*broadcast(x, key)), seed)

    def keccak(self, cfg: str | tuple[int, int] = "sha3_256") -> Self:
        """The SHA-3 hash (FIPS 202) of the bytes along the last axis: sha3_224, 256, 384, 512, shake_128 or shake_256;
        or (rate in bytes, domain byte) for the first 200 bytes less half the rest.

        >>> bytes(Tensor(b"abc").keccak().tolist()).hex()[:8]
        '3a985da7'
        """
        if self.dtype is not dtypes.uint8 or not self.ndim:
            raise InputError(
                "keccak hashes bytes",
                given=f"{self.dtype.name}{list(self.shape)}",
                expected="a uint8 tensor with at least 1 axis",
                fix="Tensor(b'...') or x.bitcast(dtypes.uint8)",
            )
        rate, domain, length = hash_parameters(cfg)
        rows, n = math.prod(self.shape[:-1]), self.shape[-1]
        tail = self.__class__(padding_bytes(n, rate, domain), device=self.device).uop
        rotations, moves = lane_tables()
        state = absorb(self.uop.reshape((rows, n)), tail, rate,
                       self.__class__(rotations, device=self.device, dtype=dtypes.uint64).uop,
                       self.__class__(moves, device=self.device, dtype=dtypes.int32).uop, self.device)
        return self._with(state.shrink(((0, rows), (0, length))).reshape((*self.shape[:-1], length)))

    def hash(self) -> Self:
        """A fingerprint of all bytes: the 16 bytes of their shake_128.

        >>> Tensor([1.0]).hash().shape
        (16,)
        """
        words = self._with(flatten(self.uop)).bitcast(dtypes.uint8)
        return words.keccak("shake_128")
