"""Hashes on nodes: SHA-3 (Keccak) and Threefry. In: bytes and words. Out: bytes and words. Does not know tensors."""

from __future__ import annotations

from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.compiler.graph import Cell, UOp, dtypes, full, ops as o
from glassgrad.tensor import realize_and_read as running
from glassgrad.tensor.formulas.movement import at, cat, counting, part

_RATES = {"sha3_224": 144, "sha3_256": 136, "sha3_384": 104, "sha3_512": 72, "shake_128": 168, "shake_256": 136}
_TURNS = ((13, 15, 26, 6), (17, 29, 16, 24))       # Threefry-2x32's rotations, for even and odd groups of four rounds
_ROTATIONS = ((0, 36, 3, 41, 18), (1, 44, 10, 45, 2), (62, 6, 43, 15, 61), (28, 55, 25, 21, 56), (27, 20, 39, 8, 14))


def threefry(x: UOp, key: UOp) -> UOp:
    """Threefry-2x32 with 20 rounds: 64-bit counters scrambled under 64-bit keys of the same shape."""
    low, high = key.cast(dtypes.uint32), (key >> 32).cast(dtypes.uint32)
    keys = (low, high, low ^ high ^ 0x1BD11BDA)
    a, b = x.cast(dtypes.uint32) + keys[0], (x >> 32).cast(dtypes.uint32) + keys[1]
    for block in range(5):
        for turn in _TURNS[block % 2]:
            a = a + b
            b = ((b << turn) | (b >> (32 - turn))) ^ a
        a, b = a + keys[(block + 1) % 3], b + keys[(block + 2) % 3] + (block + 1)
    return (b.cast(dtypes.uint64) << 32) | a.cast(dtypes.uint64)


def hash_parameters(cfg: Any) -> tuple[int, int, int]:
    """The rate in bytes, the domain byte and the length of a hash, by its name or as (rate, domain)."""
    if isinstance(cfg, str) and cfg in _RATES:
        cfg = _RATES[cfg], 0x1F if cfg.startswith("shake") else 6
    if isinstance(cfg, (tuple, list)) and len(cfg) == 2 and all(isinstance(n, int) for n in cfg) \
            and 0 < cfg[0] < 200 and cfg[0] % 8 == 0 and 0 <= cfg[1] < 256:
        return cfg[0], cfg[1], (200 - cfg[0]) // 2
    raise InputError("there is no such hash", given=repr(cfg), expected=", ".join(_RATES) + ", or (rate, domain byte)",
                     fix="check the spelling")


def padding_bytes(n: int, rate: int, domain: int) -> bytes:
    """The padding after n bytes that completes the last block."""
    tail = [0] * ((n // rate + 1) * rate - n)
    tail[0] ^= domain
    tail[-1] ^= 0x80
    return bytes(tail)


def absorb(x: UOp, tail: UOp, rate: int, rotations: UOp, moves: UOp, device: str) -> UOp:
    """The state after all blocks of (rows, n) bytes and their padding, as bytes (rows, 200)."""
    rows, n = x.shape
    ending = tail.reshape((1, tail.elements)).expand((rows, tail.elements))
    padded = cat([x, ending], 1) if n else ending
    blocks = padded.shape[1] // rate
    shifts = counting(8, dtypes.uint64) * 8
    words = padded.reshape((rows, blocks, rate // 8, 8)).cast(dtypes.uint64)
    lanes = (words << shifts).sum((3,)).reshape((rows, blocks, rate // 8))
    state = full((25, rows), 0, dtypes.uint64)
    for b in range(blocks):
        block = at(lanes, 1, b).permute((1, 0))
        state = _permutation((state ^ block.pad(((0, 25 - rate // 8), (0, 0)))).contiguous(), rotations, moves)
        state, = running.realize([state], device)
    taken = state.permute((1, 0)).reshape((rows, 25, 1)) >> shifts
    return (taken & 255).cast(dtypes.uint8).reshape((rows, 200))


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


def _permutation(state: UOp, rotations: UOp, lanes: UOp) -> UOp:
    """Keccak-f[1600] on (25, rows), lane x + 5 y in row x + 5 y: theta, rho, pi, chi and iota, 24 times.

    `rotations` (25,) and `lanes` (5, 25) are tables: where pi takes each lane from, and the lanes of column x - 1,
    x + 1 (for theta, of the parities), x + 1 and x + 2 (for chi).
    """
    left = rotations.reshape((25, 1))
    first = counting(25).reshape((25, 1)).eq(0)

    def taken(x: UOp, table: int) -> UOp:
        return UOp(o.GATHER, x.dtype, (x, at(lanes, 0, table)))

    for constant in _round_constants():
        planes = [part(state, 0, 5 * y, 5 * y + 5) for y in range(5)]
        parity = (planes[0] ^ planes[1] ^ planes[2] ^ planes[3] ^ planes[4]).contiguous()      # (5, rows)
        after = taken(parity, 2)
        mixed = state ^ taken(parity, 1) ^ ((after << 1) | (after >> 63))
        rotated = ((mixed << left) | (mixed >> (64 - left))).contiguous()                      # a shift by 64 leaves 0
        moved = taken(rotated, 0)
        value = moved ^ (~taken(moved, 3) & taken(moved, 4))
        salt = UOp(o.SCALAR, dtypes.uint64, (), Cell(constant))      # a scalar: the same kernels every round
        state = (value ^ first.where(salt, 0)).contiguous()
    return state


def lane_tables() -> tuple[list[int], list[list[int]]]:
    """The tables that `_permutation` reads: rotations (25,) and lanes (5, 25)."""
    lanes = [(i % 5, i // 5) for i in range(25)]
    source = [0] * 25
    for x, y in lanes:
        source[y + 5 * ((2 * x + 3 * y) % 5)] = x + 5 * y
    around = [[(x + by) % 5 for x, _ in lanes] for by in (-1, 1)]
    beside = [[(x + by) % 5 + 5 * y for x, y in lanes] for by in (1, 2)]
    return [_ROTATIONS[x][y] for x, y in lanes], [source, *around, *beside]
