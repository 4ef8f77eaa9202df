"""Cost constants of CPUs: limits of each family of tilings, and what its steps cost. In: nothing. Out: numbers.

Those of a register tile differ by architecture (`TileCosts`). The others were measured on x86-64 servers and are used
for every CPU. The cost of a whole tile is computed where products are tiled (compiler/optimize/product).
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

SHORT_LOOP = 9           # taps of a window, or other steps of nested sums, that are unrolled
SPREAD_ROWS = 16         # up to which each row is split into several tasks
CACHE_LINE = 64          # bytes
PAGE = 4096
MOST_RESTING = 1 << 22   # elements of sums that a task keeps in memory between blocks of K
PACK_WORK = 32 * 1024    # elements to pack that are worth a task
MOST_PACKED = 1 << 28    # elements of a packed factor that is much larger than the memory it reads

# -- contract: a register tile of vectors ----------------------------------------------------------------------------
PHASE = 6_000            # cycles of one more barrier between workers
TASK_BYTES = 192 * 1024  # of the right factor that are worth a task: reading them takes as long as `task_work`
SHORT_K = 8              # size of K below which writing a result that leaves the caches takes longer than its products
FEW_STEPS = 32           # of K, up to which writing a result takes about as long as its products
ROWS_AHEAD = 16          # prefetch distance in rows of a right factor (steps of K): read in place, or packed from afar
NEAR_K = 2048            # size of K above which panels do not stay in a cache: all tiles do a part of K, then the next
FEW_PANELS = 16          # of N, up to which the left factor may be read in place, again for each panel
EVEN_ROWS = 64           # of M with a run-time bound, up to which they are split into panels of balanced height
FEW_TERMS = 64, 128, LIMITS["contract"].long_k     # of a sum of products, up to which a run-time number has a version
TILE_ROWS = 5, EVEN_ROWS  # up to which a run-time number of them has a version of the code each,
USUAL_ROWS = {5: (2, 3, 4, 5), EVEN_ROWS: (8, 16, 33)}   # and typical numbers of them
ROW_CYCLES = 4           # to find a tile's row in a result with a run-time number of columns
PACKED_ROWS = 256        # that share what a task packs of the right factor of such a result,
UNPACKED_ROWS = 24       # and up to which it is read in place, if a load of some lanes is one instruction
MOST_HEIGHTS = 144       # vectors of sums in the tiles of 1, 2, .. rows, which all have separate code then
WORKER_TASKS = 6         # per worker, where more tasks would pack more: cores differ in speed
TASK_SPREAD = 0.5        # of a task, by which the last worker is done later than the average: cores differ in speed
TASK_CYCLES = 1_500      # to claim a task and begin it
FINISH_CYCLES = 0.25     # to clear an element of sums in memory, and to read it when it is finished
PACK_CYCLES = 0.25       # to pack one element
REMOTE_CYCLES = 0.6      # to read a packed element from another core's cache
AGAIN_CYCLES = 0.8       # to read a packed vector from the second-level cache, once for each panel of rows
SHARED_CYCLES = 50       # to write a cache line that another core writes too
PIECE_CYCLES = 200       # to write a piece of a row, of a result that does not stay in a cache
APART_CYCLES = 2.5       # to store one element of a vector with strided stores
SCATTER_CYCLES = 1.0     # to store one element of a vector that is in two rows of an image
NARROW_VECTORS = 4       # of N, below which lanes may go along M instead, though stores are strided then
LONG_EPILOGUE = 16       # operations per result from which a tile's rows are a loop: unrolling them is no faster
NEAR_BYTES = 256 * 1024  # from a factor's first line to its last: 64 pages; twice as many cost more than packing


@dataclass(frozen=True)
class TileCosts:
    """What register tiles cost on an architecture, in cycles; of pairs, the second is for a factor or a result that is
    larger than the second-level cache."""
    load: float                          # of a load, where loads take longer than the multiply-adds
    least_step: float                    # of a step of K, however small the tile
    left_step: tuple[float, float]       # of every step, where the left factor is read in place, and where it is packed
    read_left: tuple[float, float]       # to read a row of the left factor in place,
    read_left_across: float              # a row of it in place where it is contiguous along M,
    read_panel: tuple[float, float]      # and a row of its panel
    pack_left: tuple[float, float]       # an element
    pack_right: tuple[float, float]      # an element, for all tasks
    pack_near: float                     # an element, in the task that reads it
    read_right: tuple[float, float]      # an element of a right factor read in place, beyond the first-level cache
    write_row: tuple[float, float]       # a row of a finished tile, besides its vectors
    add_sums: float                      # to add a vector of sums to memory
    prefetches_rows: bool                # whether to prefetch the next rows of a left factor that is read in place
    reach: int                           # bytes of one that are read in place as fast as packed: the pages of a TLB


TILE_COSTS = {
    "x86_64": TileCosts(0.6, 5.0, (0.3, 0.0), (0.1, 0.1), 0.05, (0.05, 0.12), (0.7, 1.2), (0.5, 1.8), 0.5,
                        (0.08, 0.12), (0.0, 0.0), 0.5, True, 1 << 62),
    # fitted to 144 tiles of each of 21 products on a Neoverse N1, whose first TLB has 48 pages, for both factors
    "aarch64": TileCosts(0.5, 4.0, (0.5, 0.5), (0.05, 0.1), 0.2, (0.02, 0.05), (1.3, 1.5), (0.7, 1.8), 1.0,
                         (0.1, 0.15), (4.0, 13.0), 1.0, False, 96 << 10),
}


def tile_costs(arch: str) -> TileCosts:
    """The costs of an architecture; x86-64's, where none were measured."""
    return TILE_COSTS.get(arch, TILE_COSTS["x86_64"])


def fit_sets(lines: int, step: int, ways: int) -> bool:
    """Whether cache lines `step` bytes apart fit a first-level cache together without conflicts, if each set has `ways`
    ways to spare: lines 4096 bytes apart share a set."""
    return lines * math.gcd(step, 4096) <= ways * 4096


# -- direct: an image read in place ----------------------------------------------------------------------------------
LEAST_USE = 0.37         # share of the multiply-adds that must be useful: else the lanes belong along another axis
LEAST_LANES = 4          # of vectors along few channels
POSITIONS = 3, 7, 13, 63    # up to which a run-time number of them has a version of the code each,
USUAL_POSITIONS = 8, 10, 12, 17, 24, 33, 50, 64, 100, 250     # and typical numbers of them
FEW_WINDOW_PANELS = 8    # of N, up to which a factor that is no window is read in place too
MOST_VECTORS = 4         # of a tile
MOST_SPLIT = 1 << 17     # results up to which each part of K has separate partial sums
FLOW_PITCH = 1024        # the most bytes from row to row of a right factor that is read in place as fast as packed,
FLOW_ROWS = 448          # and the most such rows: more pages exceed the TLB
MANY_PANELS = 16         # of M, from which such a factor is reread so often that it need not be prefetched
FLOW_CACHES = 1 << 35    # the product of both caches' sizes (32 KB x 1 MB) that FLOW_PITCH is for: it scales with that
MOST_NEAR = 12           # tiles that a search tries
MOST_WRITTEN = 2048      # unrolled multiply-adds, for all the edges that a tile may be at
PACK = 1.0               # cycles to pack one element of the other factor,
LINE_CYCLES = 0.4        # and to read a cache line of an image that is no window, which no tap before has read
TURN = 1.0               # cycles to transpose one element of a finished tile,
APART = 8.0              # plus this for each contiguous piece of the result that a column of the tile is in

# -- rows and columns of reductions ----------------------------------------------------------------------------------
READ_ROWS = 8            # read together (unroll and jam),
ROWS_OF_A_SET = {"aarch64": 2}    # the same of rows a page apart, whose lines share a set of the first-level cache
FEW_ROWS = 8             # of the other factor that are multiplied with each of them
LEAST_ROW = 64           # elements of a row that are worth a stream
LEAST_COLUMN = READ_ROWS          # elements of a column that are worth a value in memory;
LEAST_PART = 8 * READ_ROWS        # the same of a part of a column
WHOLE_LINES = 128        # bytes of a row that vectors read at a time, from which several passes keep values in
                         # registers: in memory they cost 10 to 25% with AVX-512; with NEON that is 2 to 5 times as fast
LONGEST_COLUMN = 1024    # sums of READ_ROWS products each that one element of memory adds up: more would be inaccurate
SLICE = 1024             # elements of a row that one task reads: a page of float32
LEAST_SLICE = 256
NARROWEST_SLICE = 64     # where wider ones would leave workers without one

# -- windows and lanes along the sum ---------------------------------------------------------------------------------
LEAST_OUTER = 8          # images and channels that are tasks; fewer are left to families that split rows or sums
