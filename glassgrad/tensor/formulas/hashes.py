"""Compute hashes on nodes: SHA-3 (Keccak) and Threefry. In: bytes and words. Out: bytes and words. Does not know
tensors.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.compiler.graph import UOp, const, dtypes, full
from glassgrad.compiler.graph.recurrence import steps_of_items
from glassgrad.tensor import realize_and_read as running
from glassgrad.tensor.formulas import at, cat, counting, pad_axis, part, take

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
    """Return the rate in bytes, the domain byte and the length of a hash, by its name or as (rate, domain)."""
    if isinstance(cfg, str) and cfg in _RATES:
        cfg = _RATES[cfg], 0x1F if cfg.startswith("shake") else 6
    if isinstance(cfg, (tuple, list)) and len(cfg) == 2 and all(isinstance(n, int) for n in cfg) \
            and 0 < cfg[0] < 200 and cfg[0] % 8 == 0 and 0 <= cfg[1] < 256:
        return cfg[0], cfg[1], (200 - cfg[0]) // 2
    raise InputError("there is no such hash", given=repr(cfg), expected=", ".join(_RATES) + ", or (rate, domain byte)",
                     fix="check the spelling")


def absorb(x: UOp, rate: int, domain: int, device: str) -> UOp:
    """Return the state (rows, 200), as bytes, after all blocks of (rows, n) bytes and the padding that completes the
    last block."""
    rows, n = x.shape
    missing = rate - n % rate
    place, none = counting(missing), const(0, dtypes.uint8)
    ending = place.eq(0).where(domain, none) ^ place.eq(missing - 1).where(0x80, none)
    padded = cat([x, ending.broadcast((rows, missing))], 1) if n else ending.broadcast((rows, missing))
    blocks = padded.shape[1] // rate
    shifts = counting(8, dtypes.uint64) * 8
    words = padded.reshape((rows, blocks, rate // 8, 8)).cast(dtypes.uint64)
    lanes = pad_axis((words << shifts).sum((3,)), 2, 0, 25 - rate // 8).contiguous()      # (rows, blocks, 25, 1)
    state, register = full((rows, 25, 1), 0, dtypes.uint64), full((rows, 1, 1), 1, dtypes.uint64)
    for b in range(blocks):
        [mixed, _], _ = steps_of_items(_keccak_round, [state ^ at(lanes, 1, b), register], 24)
        state, = running.realize([mixed], device)
    return ((state >> shifts) & 255).cast(dtypes.uint8).reshape((rows, 200))


def _keccak_round(number: UOp, states: list[UOp]) -> tuple[list[UOp], list[UOp]]:
    """Compute a round of Keccak-f[1600] on (rows, 25, 1), with lane (x, y) at x + 5 y, and of the register that
    generates the round constants (FIPS 202, sections 3.2 and 3.2.5)."""
    state, register = states
    lane = counting(25)
    x, y = lane % 5, lane // 5
    planes = [part(state, 1, 5 * k, 5 * k + 5) for k in range(5)]
    parity = functools.reduce(operator.xor, planes).contiguous()                           # theta: (rows, 5, 1)
    after = take(parity, 1, (x + 1) % 5)
    mixed = state ^ take(parity, 1, (x + 4) % 5) ^ ((after << 1) | (after >> 63))
    left = functools.reduce(lambda left, i: lane.eq(i).where(_ROTATIONS[i % 5][i // 5], left), range(1, 25),
                            full((25,), 0, dtypes.uint64)).reshape((25, 1))
    rotated = ((mixed << left) | (mixed >> (64 - left))).contiguous()                      # rho: a shift by 64 leaves 0
    moved = take(rotated, 1, (x + 3 * y) % 5 + 5 * x).contiguous()                         # pi
    value = moved ^ (~take(moved, 1, (x + 1) % 5 + 5 * y) & take(moved, 1, (x + 2) % 5 + 5 * y))       # chi
    constant: UOp = const(0, dtypes.uint64)
    for j in range(7):
        constant = constant | ((register & 1) << ((1 << j) - 1))
        register = (register << 1) ^ (((register >> 7) & 1) * 0x171)
    return [value ^ lane.eq(0).reshape((25, 1)).where(constant, 0), register], []          # iota
