"""Matrix units as data. In: a processor's features. Out: the products of small matrices it has as one instruction.

A unit is described, not programmed: the tiling (product/unit_tile.py) reads shapes, dtypes and layouts, a renderer the
instruction's name. Another processor's unit is another row. What pays on a unit stands here too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from glassgrad.compiler.graph.dtype import DType, dtypes
from glassgrad.compiler.optimize.targets.limits import Limits

WORD = dtypes.uint32         # in what `right` is laid out: neighbours along k share one

# K is counted in steps of the unit here. A panel of 16 steps stays in the first-level cache while others are used.
LIMITS = Limits(least_work=16 << 10, task_work=4 << 20, most_tasks=16, long_k=20, k_block=16)
WASTE = 8                    # times the work that may go into edges: a unit is that much faster than vectors, and more
FEW_PANELS = 8               # of N: up to so many, reading the left factor in place is faster than packing it
ROW_GAP = 16                 # elements between rows of sums: rows of a power of two would share sets of the cache


@dataclass(frozen=True)
class MatrixUnit:
    """total[rows, columns] += left[rows, depth] * right[depth, columns], as one instruction.

    All three live in registers that hold a small matrix each (`home`), and come from memory row by row, any distance
    apart. A row of `left` lies along k. A row of `right` holds, for each column, one word of `pieces` neighbours along
    k, the first in the lowest bits.

    >>> unit = AMX[0]
    >>> unit.name, unit.rows, unit.columns, unit.depth, unit.pieces
    ('tdpbf16ps', 16, 16, 32, 2)
    """
    name: str                 # the instruction
    needs: frozenset[str]     # features, as LLVM spells them
    left: DType
    right: DType
    total: DType
    rows: int = 16
    columns: int = 16
    words: int = 16           # of k, in one instruction
    registers: int = 8        # that hold a matrix each
    in_flight: int = 4        # products that must not wait for each other, or it waits for them
    home: str = "tile"

    @property
    def pieces(self) -> int:
        """Elements along k in one word."""
        return WORD.itemsize // self.right.itemsize

    @property
    def depth(self) -> int:
        """Elements along k in one instruction."""
        return self.words * self.pieces


def _amx(name: str, feature: str, left: DType, right: DType, total: DType) -> MatrixUnit:
    return MatrixUnit(name, frozenset(("amx-tile", feature)), left, right, total)


# tdpbf16ps multiplies exactly and adds in float32, rounding to nearest: even and odd k apart, then both to the total.
# Numbers below 2**-126 count as 0 on their way in and out. The others are exact, modulo 2**32.
AMX = (
    _amx("tdpbf16ps", "amx-bf16", dtypes.bfloat16, dtypes.bfloat16, dtypes.float32),
    _amx("tdpbssd", "amx-int8", dtypes.int8, dtypes.int8, dtypes.int32),
    _amx("tdpbsud", "amx-int8", dtypes.int8, dtypes.uint8, dtypes.int32),
    _amx("tdpbusd", "amx-int8", dtypes.uint8, dtypes.int8, dtypes.int32),
    _amx("tdpbuud", "amx-int8", dtypes.uint8, dtypes.uint8, dtypes.int32),
)


def unit_cost(unit: MatrixUnit, panels: int, tiles_m: int, tiles_n: int) -> int:
    """What so many panels of tiles_m x tiles_n matrices cost: products, and reads of both factors."""
    return panels * (2 * max(tiles_m * tiles_n, unit.in_flight) + tiles_m + tiles_n)


def units_of(features: Iterable[str]) -> tuple[MatrixUnit, ...]:
    """The units of a processor with these features.

    >>> [unit.name for unit in units_of({"avx512f", "amx-tile", "amx-bf16"})]
    ['tdpbf16ps']
    """
    known = frozenset(features)
    return tuple(unit for unit in AMX if unit.needs <= known)
