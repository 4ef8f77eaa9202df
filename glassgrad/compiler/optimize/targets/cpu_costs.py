"""Cost constants of CPUs: thresholds of each family of tilings, and the costs of its steps. In: nothing. Out: numbers.

The costs of a register tile differ by architecture (`TileCosts`). The others were measured on x86-64 servers and are
used for every CPU. The cost of a whole tile is computed where products are tiled (compiler/optimize/product).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from glassgrad.compiler.optimize.targets.tiling_thresholds import TilingThresholds

LIMITS = {
    "contract": TilingThresholds(least_k=4, least_work=4096, task_work=1 << 17, most_tasks=48, long_k=1024),
    "direct": TilingThresholds(least_k=16, least_work=64 << 10, task_work=512 << 10, most_tasks=16, long_k=1024,
                               k_block=512),
    "taps": TilingThresholds(least_k=256, least_work=64 << 10, task_work=64 << 10, most_tasks=64, long_k=1024),
    "window": TilingThresholds(least_work=64 << 10, task_work=64 << 10, most_tasks=64, long_k=1024, k_block=256),
}

SHORT_LOOP = 9           # steps of nested sums, such as taps of a window, up to which they are unrolled
SPREAD_ROWS = 16         # rows up to which each row is split into several tasks
CACHE_LINE = 64          # bytes
PAGE = 4096
MOST_WAITING_SUMS = 1 << 22    # elements of sums that a task may keep in memory between blocks of K
PACK_WORK = 32 * 1024    # elements whose packing is worth a task
MOST_PACKED = 1 << 28    # elements that a packed factor may have, if it is much larger than the memory that it reads

# -- contract: a register tile of vectors ----------------------------------------------------------------------------
PHASE_CYCLES = 6_000     # cycles of one more barrier between workers
TASK_BYTES = 192 * 1024  # bytes of the right factor that are worth a task: reading them takes as long as `task_work`
SHORT_K = 8  # size of K below which writing a result that does not fit the caches takes longer than its products
FEW_STEPS = 32           # steps of K up to which writing a result takes about as long as its products
# prefetch distance in rows of a right factor (steps of K): read in place, or packed and not in a near cache
ROWS_AHEAD = 16
NEAR_K = 2048            # size of K above which panels do not fit a cache: all tiles do one part of K, then the next
FEW_PANELS = 16          # panels of N up to which the left factor may be read in place, once for each panel
BALANCED_ROWS = 64       # rows of an M with a run-time bound, up to which they are split into panels of balanced height
# terms of a sum of products, up to which a run-time number of them has a version
FEW_TERMS = 64, 128, LIMITS["contract"].long_k
TILE_ROWS = 5, BALANCED_ROWS  # rows up to which a run-time number of them has a version of the code,
USUAL_ROWS = {5: (2, 3, 4, 5), BALANCED_ROWS: (8, 16, 33)}   # and typical numbers of them
ROW_CYCLES = 4           # to find the row of a tile in a result with a run-time number of columns
PACKED_ROWS = 256        # rows that share the part of the right factor that a task packs for such a result,
UNPACKED_ROWS = 24       # and rows up to which it is read in place, if a masked load is one instruction
MOST_HEIGHTS = 144  # vectors of sums in all tiles of 1, 2, .. rows together, each of which has code of its own then
WORKER_TASKS = 6         # per worker, where more tasks would pack more: cores differ in speed
TASK_SPREAD = 0.5        # how many tasks later than the average the last worker finishes: cores differ in speed
TASK_CYCLES = 1_500      # to claim a task and begin it
FINISH_CYCLES = 0.25     # to clear an element of sums in memory, and to read it when it is complete
PACK_CYCLES = 0.25       # to pack one element
REMOTE_CYCLES = 0.6      # to read a packed element from another core's cache
REREAD_CYCLES = 0.8      # to read a packed vector from the second-level cache again, for each panel of rows
SHARED_CYCLES = 50       # to write a cache line that another core writes too
RESULT_PIECE_CYCLES = 200    # to write a piece of a row, if the result does not stay in a cache
STRIDED_STORE_CYCLES = 2.5    # to store one element of a vector with strided stores
SCATTER_CYCLES = 1.0     # to store one element of a vector that spans two rows of an image
NARROW_VECTORS = 4       # vectors of N below which lanes may go along M instead, though stores are strided then
LONG_EPILOGUE = 16       # operations per result from which a tile's rows are a loop: unrolling them is not faster
# from a factor's first line to its last: 64 pages; spread over twice as many, reading costs more than packing
NEAR_BYTES = 256 * 1024


@dataclass(frozen=True)
class TileCosts:
    """What register tiles cost on an architecture, in cycles. In pairs, the second number is for a factor or a result
    larger than the second-level cache."""
    load: float                          # a load, where loads take longer than the multiply-adds
    least_step: float                    # the least for a step of K, however small the tile
    # added to every step: where the left factor is read in place, and where it is packed
    left_step: tuple[float, float]
    read_left: tuple[float, float]       # reading a row of the left factor in place,
    read_left_across: float              # in place where it is contiguous along M,
    read_panel: tuple[float, float]      # and from its panel
    pack_left: tuple[float, float]       # per element
    pack_right: tuple[float, float]      # per element, for all tasks
    pack_near: float                     # per element, in the task that reads it
    read_right: tuple[float, float]  # per element of a right factor read in place, from beyond the first-level cache
    write_row: tuple[float, float]       # a row of a finished tile, besides its vectors
    add_sums: float                      # adding a vector of sums to memory
    prefetches_rows: bool                # whether to prefetch the next rows of a left factor that is read in place
    reach: int  # bytes of a left factor that are read in place as fast as packed: the pages of a TLB


TILE_COSTS = {
    "x86_64": TileCosts(0.6, 5.0, (0.3, 0.0), (0.1, 0.1), 0.05, (0.05, 0.12), (0.7, 1.2), (0.5, 1.8), 0.5,
                        (0.08, 0.12), (0.0, 0.0), 0.5, True, 1 << 62),
    # fitted to 144 tiles of each of 21 products on a Neoverse N1, whose first TLB has 48 pages, for both factors
    "aarch64": TileCosts(0.5, 4.0, (0.5, 0.5), (0.05, 0.1), 0.2, (0.02, 0.05), (1.3, 1.5), (0.7, 1.8), 1.0,
                         (0.1, 0.15), (4.0, 13.0), 1.0, False, 96 << 10),
}


def tile_costs(arch: str) -> TileCosts:
    """The costs of an architecture; those of x86-64 where none were measured."""
    return TILE_COSTS.get(arch, TILE_COSTS["x86_64"])


def fit_sets(lines: int, step: int, ways: int) -> bool:
    """Whether cache lines `step` bytes apart fit a first-level cache together without conflicts, where each set has
    `ways` ways to spare. (Lines 4096 bytes apart share a set.)"""
    return lines * math.gcd(step, 4096) <= ways * 4096


# -- direct: an image read in place ----------------------------------------------------------------------------------
LEAST_USE = 0.37         # the share of multiply-adds that must be useful; otherwise, lanes go along another axis
LEAST_LANES = 4          # lanes of vectors along few channels
POSITIONS = 3, 7, 13, 63    # positions up to which a run-time number of them has a version of the code,
USUAL_POSITIONS = 8, 10, 12, 17, 24, 33, 50, 64, 100, 250     # and typical numbers of them
FEW_WINDOW_PANELS = 8    # panels of N up to which a factor that is not a window is read in place too
MOST_VECTORS = 4         # vectors in a tile
MOST_SPLIT = 1 << 17     # results up to which each part of K has separate partial sums
FLOW_PITCH = 1024        # the most bytes from row to row of a right factor that is read in place as fast as packed,
FLOW_ROWS = 448          # and the most such rows: more pages exceed the TLB
MANY_PANELS = 16         # panels of M from which such a factor is reread so often that it need not be prefetched
# product of the sizes of both caches (32 KB x 1 MB) for which FLOW_PITCH holds; it scales with that
FLOW_CACHES = 1 << 35
MOST_SEARCHED = 12       # tiles that a search tries
MOST_UNROLLED = 2048     # unrolled multiply-adds, for all edges that a tile may be at
PACK_IMAGE_CYCLES = 1.0    # cycles to pack one element of the other factor,
LINE_CYCLES = 0.4        # and to read a cache line of an image that is not a window, which no earlier tap has read
TRANSPOSE_CYCLES = 1.0   # cycles to transpose one element of a finished tile,
PIECE_STORE_CYCLES = 8.0    # plus this for each contiguous piece of the result in a column of the tile

# -- rows and columns of reductions ----------------------------------------------------------------------------------
READ_ROWS = 8            # rows read together (unroll and jam),
ROWS_OF_A_SET = {"aarch64": 2}    # the same for rows a page apart, whose lines share a set of the first-level cache
FEW_ROWS = 8             # rows of the other factor that are multiplied with each of them
LEAST_ROW = 64           # elements of a row that are worth a stream
LEAST_COLUMN = READ_ROWS          # elements of a column for which it is worth keeping a value in memory;
LEAST_PART = 8 * READ_ROWS        # the same for a part of a column
# If vectors read at least this many bytes of a row at a time, several passes keep values in registers: in memory they
# would cost 10 to 25% with AVX-512. With less, as with NEON, keeping them in memory is 2 to 5 times as fast.
WHOLE_LINES = 128
LONGEST_COLUMN = 1024    # sums of READ_ROWS products each that one element of memory adds up: more would be inaccurate
SLICE = 1024             # elements of a row that one task reads: a page of float32
LEAST_SLICE = 256
NARROWEST_SLICE = 64     # where wider slices would leave workers without one

# -- windows and lanes along the sum ---------------------------------------------------------------------------------
LEAST_OUTER = 8          # images and channels that are tasks; fewer are left to families that split rows or sums
