"""Random choices: permutations, draws by weight, other distributions; and hashes. In: sizes or weights. Out: tensors.

All stand on the counted random numbers of random.py, so they too are fixed by the seed, not by the order of reading.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.arguments import Cell
from glassgrad.compiler.graph.dtype import DType, dtype_by_name, dtypes
from glassgrad.compiler.graph.uop import UOp, full
from glassgrad.tensor import evaluate as running
from glassgrad.tensor.formulas.counting import counting
from glassgrad.tensor.formulas.order import order_of
from glassgrad.tensor.methods.neural.image_ops import Pictures
from glassgrad.tensor.methods.random import uniform

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Drawing"]

_RATES = {"sha3_224": 144, "sha3_256": 136, "sha3_384": 104, "sha3_512": 72, "shake_128": 168, "shake_256": 136}
_LENGTHS = {"sha3_224": 28, "sha3_256": 32, "sha3_384": 48, "sha3_512": 64, "shake_128": 16, "shake_256": 32}
_TURNS = ((13, 15, 26, 6), (17, 29, 16, 24))       # Threefry-2x32's rotations, for even and odd groups of four rounds
_ROTATIONS = ((0, 36, 3, 41, 18), (1, 44, 10, 45, 2), (62, 6, 43, 15, 61), (28, 55, 25, 21, 56), (27, 20, 39, 8, 14))


class Drawing(Pictures):
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

    def multinomial(self, num_samples: int = 1, replacement: bool = False) -> Self:
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
        rows = self.detach().reshape(-1, self.shape[-1])
        rows = rows.cast(dtypes.float32) if rows.dtype is not dtypes.float64 else rows
        count, n = rows.shape
        if num_samples < 1 or not replacement and num_samples > n:
            raise InputError(
                "multinomial cannot draw this many",
                given=f"num_samples={num_samples} of {n} without replacement"
                if not replacement
                else f"num_samples={num_samples}",
                expected=f"1 to {n}" if not replacement else "1 or more",
                fix="draw fewer, or pass replacement=True",
            )
        if replacement or num_samples == 1:
            # the place where the running sum passes a random height
            heights = rows.cumsum(1)
            drawn = self._with(uniform((count, num_samples), rows.dtype)) * heights[:, -1:]
            places = (heights.unsqueeze(1) <= drawn.unsqueeze(2)).cast(dtypes.int32).sum(2)
            last = (
                (rows > 0).where(self._with(counting(n)), 0).amax(1, keepdim=True)
            )  # rounding cannot pass the last weight
            found = places.minimum(last)
        else:
            # the largest of ln(u) / w: the first of exponential clocks (Efraimidis and Spirakis, 2006)
            clocks = (1 - self._with(uniform((count, n), rows.dtype))).log() / rows
            found = (rows == 0).where(-math.inf, clocks).topk(num_samples, 1)[1]
        return found.cast(dtypes.default_int).reshape(*self.shape[:-1], num_samples)

    def bernoulli(self) -> Self:
        """1 with the probability that this is, else 0, element by element.

        >>> Tensor.bernoulli(Tensor([1.0, 0.0])).tolist()
        [1.0, 0.0]
        """
        return (self.__class__.rand(*self.shape, device=self.device) < self).cast(self.dtype)

    @classmethod
    def exponential(cls, *shape: Any, lambd: float = 1.0, **kwargs: Any) -> Self:
        """Numbers of the exponential distribution with rate lambd.

        >>> Tensor.exponential(100).min().item() >= 0
        True
        """
        return -(1 - cls.rand(*shape, **kwargs)).log() / lambd

    @classmethod
    def gumbel(cls, *shape: Any, **kwargs: Any) -> Self:
        """Numbers of the standard Gumbel distribution: -ln(-ln u).

        >>> Tensor.gumbel(2, 3).shape
        (2, 3)
        """
        return -(-(1 - cls.rand(*shape, **kwargs)).log()).log()

    @classmethod
    def xavier_uniform(cls, *shape: Any, **kwargs: Any) -> Self:
        """PyTorch's name of `glorot_uniform`.

        >>> Tensor.xavier_uniform(2, 3).shape
        (2, 3)
        """
        return cls.glorot_uniform(*shape, **kwargs)

    # -- hashes ----------------------------------------------------------------------------------------------
    def threefry(self, seed: Self) -> Self:
        """Threefry-2x32 with 20 rounds (Salmon et al., 2011): each uint64 counter as 64 scrambled bits; the seed's two
        halves are the key. (Random tensors here are Philox; this is for reproducing what others drew.)

        >>> hex(Tensor([0], dtype=dtypes.uint64).threefry(Tensor([0], dtype=dtypes.uint64)).item())
        '0x99ba4efe6b200159'
        """
        x, key = self._both(seed)
        if x.dtype is not dtypes.uint64:
            raise InputError("threefry scrambles 64 bits", given=f"{self.dtype.name} and {seed.dtype.name} values",
                             expected="uint64 tensors", fix="cast both: x.cast(dtypes.uint64)")
        low, high = (t.cast(dtypes.uint32) for t in (key, key >> 32))
        keys = (low, high, low ^ high ^ 0x1BD11BDA)
        a, b = x.cast(dtypes.uint32) + keys[0], (x >> 32).cast(dtypes.uint32) + keys[1]
        for block in range(5):
            for turn in _TURNS[block % 2]:
                a = a + b
                b = ((b << turn) | (b >> (32 - turn))) ^ a
            a, b = a + keys[(block + 1) % 3], b + keys[(block + 2) % 3] + (block + 1)
        return (b.cast(dtypes.uint64) << 32) | a.cast(dtypes.uint64)

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
        if isinstance(cfg, str):
            if cfg not in _RATES:
                raise InputError(
                    "there is no such hash", given=repr(cfg), expected=", ".join(_RATES), fix="check the spelling"
                )
            rate, domain, length = _RATES[cfg], 0x1F if cfg.startswith("shake") else 6, _LENGTHS[cfg]
        else:
            rate, domain = cfg
            length = (200 - rate) // 2
        rows, n = math.prod(self.shape[:-1]), self.shape[-1]
        blocks = n // rate + 1
        tail = [0] * (blocks * rate - n)
        tail[0] ^= domain
        tail[-1] ^= 0x80
        ending = self.__class__(bytes(tail), device=self.device).reshape(1, -1).expand(rows, len(tail))
        padded = self.reshape(rows, n).cat(ending, dim=1) if n else ending
        words = padded.reshape(rows, blocks, rate // 8, 8).cast(dtypes.uint64)
        lanes = (words << (self._with(counting(8, dtypes.uint64)) * 8)).sum(-1)          # (rows, blocks, rate / 8)
        turns, moves = _tables()
        rotations = self.__class__(turns, device=self.device, dtype=dtypes.uint64).uop
        places = self.__class__(moves, device=self.device, dtype=dtypes.int32).uop
        state = full((25, rows), 0, dtypes.uint64)
        for b in range(blocks):
            block = lanes[:, b].transpose(0, 1).uop.pad(((0, 25 - rate // 8), (0, 0)))
            state = _permutation((state ^ block).contiguous(), rotations, places)
            state, = running.realize([state], self.device)
        taken = self._with(state).transpose(0, 1).unsqueeze(2) >> (self._with(counting(8, dtypes.uint64)) * 8)
        return (taken & 255).cast(dtypes.uint8).reshape(rows, 200)[:, :length].reshape(*self.shape[:-1], length)

    def hash(self) -> Self:
        """A fingerprint of all bytes: the 16 bytes of their shake_128.

        >>> Tensor([1.0]).hash().shape
        (16,)
        """
        return self.flatten().bitcast(dtypes.uint8).keccak("shake_128")


def _round_constants() -> list[int]:
    """From the linear feedback register of FIPS 202, section 3.2.5."""
    found, register = [], 1
    for _ in range(24):
        value = 0
        for j in range(7):
            if register & 1:
                value |= 1 << ((1 << j) - 1)
            register = (register << 1) ^ (0x171 if register & 0x80 else 0)
        found.append(value)
    return found


def _permutation(state: UOp, rotations: UOp, places: UOp) -> UOp:
    """Keccak-f[1600] on (25, rows), lane x + 5 y in row x + 5 y: theta, rho, pi, chi and iota, 24 times.

    `rotations` (25,) and `places` (5, 25) are tables: where pi takes each lane from, and the lanes of column x - 1,
    x + 1 (for theta, of the parities), x + 1 and x + 2 (for chi).
    """
    rows = state.shape[1]
    shape = (25, rows)
    left = rotations.reshape((25, 1)).expand(shape)
    first = counting(25).reshape((25, 1)).expand(shape).eq(0)

    def taken(x: UOp, table: int) -> UOp:
        return UOp(o.GATHER, x.dtype, (x, places.shrink(((table, table + 1), (0, 25))).reshape((25,))))

    for constant in _round_constants():
        planes = [state.shrink(((5 * y, 5 * y + 5), (0, rows))) for y in range(5)]
        parity = (planes[0] ^ planes[1] ^ planes[2] ^ planes[3] ^ planes[4]).contiguous()      # (5, rows)
        after = taken(parity, 2)
        mixed = state ^ taken(parity, 1) ^ ((after << 1) | (after >> 63))
        turned = ((mixed << left) | (mixed >> (64 - left))).contiguous()                       # a shift by 64 leaves 0
        moved = taken(turned, 0)
        value = moved ^ (~taken(moved, 3) & taken(moved, 4))
        salt = UOp(o.SCALAR, dtypes.uint64, (), Cell(constant))      # a scalar: the same kernels every round
        state = (value ^ first.where(salt.broadcast(shape), 0)).contiguous()
    return state


def _tables() -> tuple[list[int], list[list[int]]]:
    """The tables that `_permutation` reads."""
    lanes = [(i % 5, i // 5) for i in range(25)]
    source = [0] * 25
    for x, y in lanes:
        source[y + 5 * ((2 * x + 3 * y) % 5)] = x + 5 * y
    around = [[(x + by) % 5 for x, _ in lanes] for by in (-1, 1)]
    beside = [[(x + by) % 5 + 5 * y for x, y in lanes] for by in (1, 2)]
    return [_ROTATIONS[x][y] for x, y in lanes], [source, *around, *beside]
