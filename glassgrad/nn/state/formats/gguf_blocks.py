"""Dequantise GGUF blocks by tensor arithmetic. In: blocks of bytes, a row each. Out: lazy float32 values.

Weights are stored in blocks of 32 or 256: a few bits per weight, and scales that whole blocks or their parts share.
Each function below is lazy tensor arithmetic on the bytes, so it runs on any device and fuses with what uses the
weights. The layouts are those of ggml; `n` is the number of blocks, and comments give the bytes of a block in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from glassgrad.compiler.graph import dtypes
from glassgrad.tensor.tensor import Tensor

SUPER = 256                      # weights in a block of the K kinds


class Blocks(NamedTuple):
    """One kind of block."""
    name: str
    weights: int                 # in a block
    nbytes: int                  # of a block
    unpack: Callable[[Tensor], Tensor]      # (n, nbytes) uint8 -> (n, weights) float32


# -- pieces ----------------------------------------------------------------------------------------------------------
def half(pair: Tensor) -> Tensor:
    """(n, 2) bytes, a little-endian float16 -> (n, 1) float32"""
    return pair.bitcast(dtypes.float16).cast(dtypes.float32)


def planes(data: Tensor, bits: int) -> Tensor:
    """(..., k) bytes -> (..., 8 / bits, k): the lowest `bits` bits of all bytes, then the next, ..."""
    count = 8 // bits
    shifts = (Tensor.arange(count, dtype=dtypes.uint8, device=data.device) * bits).reshape(count, 1)
    return (data.unsqueeze(-2) >> shifts) & ((1 << bits) - 1)


def fields(data: Tensor, bits: int, count: int) -> Tensor:
    """(n, k) numbers -> (n, k * count): the lowest `bits` bits of each, then the next, ..."""
    shifts = Tensor([i * bits for i in range(count)], dtype=data.dtype, device=data.device)
    return ((data.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)).reshape(len(data), -1)


def _signed(data: Tensor, zero: int) -> Tensor:
    """Subtract the zero point from small unsigned numbers, as float32."""
    return (data.cast(dtypes.int32) - zero).cast(dtypes.float32)


def _looked_up(data: Tensor, table: list[int]) -> Tensor:
    """Look up 4-bit indices in a table, as float32."""
    return Tensor(table, dtype=dtypes.float32, device=data.device)[data.cast(dtypes.int32)]


def spread(scales: Tensor, weights: Tensor) -> Tensor:
    """Multiply each scale by its part of the block: (n, parts), (n, weights) -> (n, parts, weights / parts)."""
    return scales.unsqueeze(-1) * weights.cast(dtypes.float32).reshape(len(weights), scales.shape[1], -1)


# -- blocks of 32 ----------------------------------------------------------------------------------------------------
def _q4_0(b: Tensor) -> Tensor:          # scale (2), 32 x 4 bits (16): d * (q - 8)
    return half(b[:, :2]) * _signed(planes(b[:, 2:], 4).reshape(-1, 32), 8)


def _q4_1(b: Tensor) -> Tensor:          # scale (2), minimum (2), 32 x 4 bits (16): d * q + m
    return half(b[:, :2]) * planes(b[:, 4:], 4).reshape(-1, 32).cast(dtypes.float32) + half(b[:, 2:4])


def _q5(low: Tensor, high: Tensor) -> Tensor:       # 32 x 4 bits (16), 4 bytes of fifth bits
    return planes(low, 4).reshape(-1, 32) | (fields(high, 1, 8) << 4)


def _q5_0(b: Tensor) -> Tensor:          # scale (2), fifth bits (4), 32 x 4 bits (16): d * (q - 16)
    return half(b[:, :2]) * _signed(_q5(b[:, 6:], b[:, 2:6]), 16)


def _q5_1(b: Tensor) -> Tensor:          # scale (2), minimum (2), fifth bits (4), 32 x 4 bits (16): d * q + m
    return half(b[:, :2]) * _q5(b[:, 8:], b[:, 4:8]).cast(dtypes.float32) + half(b[:, 2:4])


def _q8_0(b: Tensor) -> Tensor:          # scale (2), 32 signed bytes: d * q
    return half(b[:, :2]) * b[:, 2:].bitcast(dtypes.int8).cast(dtypes.float32)


_CURVE = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]


def _iq4_nl(b: Tensor) -> Tensor:        # scale (2), 32 x 4 bits (16): d * curve[q]
    return half(b[:, :2]) * _looked_up(planes(b[:, 2:], 4).reshape(-1, 32), _CURVE)


_TWICE_E2M1 = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]


def _mxfp4(b: Tensor) -> Tensor:         # exponent (1), 32 x 4 bits (16): 2^(e - 128) * twice the value
    e = b[:, :1].cast(dtypes.uint32)
    scale = (e < 2).where((e * 0 + 0x200000) << e, (e - 1) << 23).bitcast(dtypes.float32)      # below 2: subnormal
    return scale * _looked_up(planes(b[:, 1:], 4).reshape(-1, 32), _TWICE_E2M1)


def _nvfp4(b: Tensor) -> Tensor:         # 4 scales of 4 + 3 bits (4), 64 x 4 bits (32): s / 2 * twice the value
    s = b[:, :4].cast(dtypes.uint32)
    exponent, fraction = (s >> 3) & 15, s & 7
    normal = (((exponent + 119) << 23) | (fraction << 20)).bitcast(dtypes.float32)
    scales = (exponent == 0).where(fraction.cast(dtypes.float32) * 2.0 ** -10, normal)
    weights = _looked_up(planes(b[:, 4:].reshape(-1, 4, 8), 4).reshape(-1, 64), _TWICE_E2M1)
    return spread((s == 127).where(0, scales), weights).reshape(-1, 64)     # 127 is NaN, and counts as 0


# -- blocks of 256 ---------------------------------------------------------------------------------------------------
def _unpack_2_bits(data: Tensor) -> Tensor:
    """(n, 64) bytes of 4 x 2 bits -> (n, 256): each half of 32 bytes gives four runs of 32"""
    return planes(data.reshape(-1, 2, 32), 2).reshape(-1, SUPER)


def _q2_k(b: Tensor) -> Tensor:          # 16 scales with minima (16), 256 x 2 bits (64), d (2), dmin (2)
    scales, minima = b[:, :16] & 15, b[:, :16] >> 4
    d, minimum = half(b[:, 80:82]) * scales.cast(dtypes.float32), half(b[:, 82:84]) * minima.cast(dtypes.float32)
    return (spread(d, _unpack_2_bits(b[:, 16:80])) - minimum.unsqueeze(-1)).reshape(-1, SUPER)


def _q3_k(b: Tensor) -> Tensor:          # third bits (32), 256 x 2 bits (64), 16 scales of 6 bits (12), d (2)
    third = planes(b[:, :32], 1).reshape(-1, SUPER)                                    # set: subtract nothing
    weights = _signed(_unpack_2_bits(b[:, 32:96]) | (third << 2), 4)
    low, high = planes(b[:, 96:104], 4).reshape(-1, 16), planes(b[:, 104:108], 2).reshape(-1, 16)
    d = half(b[:, 108:110]) * _signed(low | (high << 4), 32)
    return spread(d, weights).reshape(-1, SUPER)


def _scales_and_minima(s: Tensor) -> tuple[Tensor, Tensor]:
    """12 bytes -> 8 scales and 8 minima of 6 bits, as float32: the bytes of four also hold the others' upper bits"""
    first, second, rest = s[:, :4], s[:, 4:8], s[:, 8:12]
    scales = (first & 63).cat((rest & 15) | (first >> 6 << 4), dim=1)
    minima = (second & 63).cat((rest >> 4) | (second >> 6 << 4), dim=1)
    return scales.cast(dtypes.float32), minima.cast(dtypes.float32)


def _unpack_4_bits(data: Tensor) -> Tensor:
    """(n, 128) bytes of 2 x 4 bits -> (n, 256): each 32 bytes give two runs of 32"""
    return planes(data.reshape(-1, 4, 32), 4).reshape(-1, SUPER)


def _scaled(b: Tensor, weights: Tensor) -> Tensor:
    """d (2), dmin (2), scales and minima (12): d * scale * q - dmin * minimum"""
    scales, minima = _scales_and_minima(b[:, 4:16])
    d, minimum = half(b[:, :2]) * scales, half(b[:, 2:4]) * minima
    return (spread(d, weights) - minimum.unsqueeze(-1)).reshape(-1, SUPER)


def _q4_k(b: Tensor) -> Tensor:          # ..., 256 x 4 bits (128)
    return _scaled(b, _unpack_4_bits(b[:, 16:]))


def _q5_k(b: Tensor) -> Tensor:          # ..., fifth bits (32), 256 x 4 bits (128)
    return _scaled(b, _unpack_4_bits(b[:, 48:]) | (planes(b[:, 16:48], 1).reshape(-1, SUPER) << 4))


def _q6_k(b: Tensor) -> Tensor:          # lower four bits (128), upper two (64), 16 signed scales, d (2)
    low = planes(b[:, :128].reshape(-1, 2, 64), 4).reshape(-1, SUPER)
    weights = _signed(low | (_unpack_2_bits(b[:, 128:192]) << 4), 32)
    d = half(b[:, 208:210]) * b[:, 192:208].bitcast(dtypes.int8).cast(dtypes.float32)
    return spread(d, weights).reshape(-1, SUPER)


def _iq4_xs(b: Tensor) -> Tensor:        # d (2), upper bits of 8 scales (2), lower bits (4), 256 x 4 bits (128)
    # here a byte holds consecutive values: (n, k, 8 / bits), not planes
    high = planes(b[:, 2:4], 2).transpose(1, 2).reshape(-1, 8)
    low = planes(b[:, 4:8], 4).transpose(1, 2).reshape(-1, 8)
    d = half(b[:, :2]) * _signed(low | (high << 4), 32)
    weights = _looked_up(planes(b[:, 8:].reshape(-1, 8, 16), 4).reshape(-1, SUPER), _CURVE)
    return spread(d, weights).reshape(-1, SUPER)


def _tq1_0(b: Tensor) -> Tensor:         # 48 bytes of five digits of base 3, 4 bytes of four, d (2): d * (digit - 1)
    # a byte is a fraction over 256: the integer part of 3 times it is the next digit
    def digits(part: Tensor, count: int) -> Tensor:
        powers = Tensor([3 ** i for i in range(count)], dtype=dtypes.uint8, device=b.device).reshape(count, 1)
        return ((part.unsqueeze(-2) * powers).cast(dtypes.int32) * 3 >> 8).reshape(len(b), -1)
    weights = digits(b[:, :32], 5).cat(digits(b[:, 32:48], 5), digits(b[:, 48:52], 4), dim=1)
    return half(b[:, 52:]) * _signed(weights, 1)


def _tq2_0(b: Tensor) -> Tensor:         # 256 x 2 bits (64), d (2): d * (q - 1)
    return half(b[:, 64:]) * _signed(_unpack_2_bits(b[:, :64]), 1)


BLOCKS: dict[int, Blocks] = {            # by ggml's number
    2: Blocks("Q4_0", 32, 18, _q4_0), 3: Blocks("Q4_1", 32, 20, _q4_1),
    6: Blocks("Q5_0", 32, 22, _q5_0), 7: Blocks("Q5_1", 32, 24, _q5_1), 8: Blocks("Q8_0", 32, 34, _q8_0),
    10: Blocks("Q2_K", SUPER, 84, _q2_k), 11: Blocks("Q3_K", SUPER, 110, _q3_k), 12: Blocks("Q4_K", SUPER, 144, _q4_k),
    13: Blocks("Q5_K", SUPER, 176, _q5_k), 14: Blocks("Q6_K", SUPER, 210, _q6_k),
    20: Blocks("IQ4_NL", 32, 18, _iq4_nl), 23: Blocks("IQ4_XS", SUPER, 136, _iq4_xs),
    34: Blocks("TQ1_0", SUPER, 54, _tq1_0), 35: Blocks("TQ2_0", SUPER, 66, _tq2_0),
    39: Blocks("MXFP4", 32, 17, _mxfp4), 40: Blocks("NVFP4", 64, 36, _nvfp4),
}
