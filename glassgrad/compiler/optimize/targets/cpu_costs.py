"""What pays on a CPU: limits of each family of tilings, and what its steps cost. In: nothing. Out: numbers.

All numbers were measured on x86-64 servers; they are used for every CPU. What a whole tile costs is counted where
products are cut (compiler/optimize/product).
"""

from __future__ import annotations

from glassgrad.compiler.optimize.targets.tiling_thresholds import TilingThresholds

LIMITS = {
    "contract": TilingThresholds(least_k=4, least_work=4096, task_work=1 << 17, most_tasks=48, long_k=1024),
    "direct": TilingThresholds(least_k=16, least_work=64 << 10, task_work=512 << 10, most_tasks=16, long_k=1024,
                               k_block=512),
    "taps": TilingThresholds(least_k=256, least_work=64 << 10, task_work=64 << 10, most_tasks=64, long_k=1024),
    "window": TilingThresholds(least_work=64 << 10, task_work=64 << 10, most_tasks=64, long_k=1024, k_block=256),
}

CACHE_LINE = 64          # bytes that are fetched together
PAGE = 4096
MOST_RESTING = 1 << 22   # elements of sums that a task keeps in memory between blocks of K
PACK_WORK = 32 * 1024    # elements that are worth a task to pack
MOST_PACKED = 1 << 28    # elements of a packed factor, where it is much larger than what it is made of

# -- contract: a register tile of vectors ----------------------------------------------------------------------------
PHASE = 20_000           # cycles: workers wait for each other once more
TASK_BYTES = 192 * 1024  # of the right factor that are worth a task: reading them takes as long as TASK_WORK
SHORT_K = 8              # of K: so few products of a result take less time than to write it, where it leaves the caches
NEAR_K = 2048            # of K: longer panels do not stay in a cache, so all tiles use a part of them in turn
FEW_PANELS = 16          # of N: up to so many, the left factor may be read in place, again for each of them
LEAST_TASKS = 16         # that pack the right factor themselves: fewer leave workers idle, unless the work is small
NEAR_WORK = 2 << 20      # multiply-adds for each task that packs its part of the right factor
NEAR_ROWS = 128          # of M: a task with fewer does not repay packing the right factor itself
EVEN_ROWS = 64           # of M: up to so many, where only the running kernel can tell how many, are cut evenly
USUAL_ROWS = 8, 16, 33   # of them
MOST_HEIGHTS = 144       # vectors of sums in the tiles of 1, 2, .. rows, which are all written out then
WORKER_TASKS = 6         # for each worker, where more tasks would pack more: cores differ in speed
SUM_CYCLES = 1.0         # to add a vector of sums to memory
PACK_CYCLES = 0.25       # to pack one element
APART_CYCLES = 2.5       # to store one result of a vector whose results lie apart
NARROW_VECTORS = 4       # of N, below which lanes may go along M instead, though results lie apart then
LONG_EPILOGUE = 16       # operations on each result, from which a tile's rows are a loop: code for each is no faster
NEAR_BYTES = 256 * 1024  # from a factor's first line to its last: 64 pages; twice as many cost more than packing

# -- direct: an image read in place ----------------------------------------------------------------------------------
LEAST_USE = 0.4          # share of the multiply-adds that must be useful: else the lanes belong along another axis
REREAD = 2               # times that each number is read, for a factor to be a window
FEW_WINDOW_PANELS = 8    # up to so many, a factor that is no window is read in place too
MOST_VECTORS = 4         # of a tile
MOST_SPLIT = 1 << 17     # results up to which each part of K has sums of its own
FLOW_PITCH = 1024        # bytes from row to row of a right factor that is read in place as fast as packed, at most
FLOW_ROWS = 448          # that are so long: more pages are not at hand
MANY_PANELS = 16         # of M, that read more than so many rows again and again: it need not be fetched early
FLOW_CACHES = 1 << 35    # where both caches, multiplied, have 32 KB x 1 MB; larger ones bear more in proportion
MOST_NEAR = 12           # tiles that a search tries
MOST_WRITTEN = 2048      # multiply-adds that are written out, for all the edges that a tile may lie at
PACK = 1.0               # cycles to pack one number of the other factor
TURN = 1.0               # cycles to move one number of a finished tile to its place
APART = 8.0              # and so many more for each piece of memory in which the tile's numbers of one column lie

# -- rows and columns of reductions ----------------------------------------------------------------------------------
READ_ROWS = 8            # read at once
FEW_ROWS = 8             # of the other factor that are multiplied with each of them
LEAST_ROW = 64           # elements of a row that are worth a stream
LONGEST_COLUMN = 1024    # sums of READ_ROWS products each that one place in memory adds up: more would be inaccurate
SLICE = 1024             # elements of a row that one task goes along: a page of float32
LEAST_SLICE = 256

# -- windows and lanes along the sum ---------------------------------------------------------------------------------
LEAST_OUTER = 8          # images and channels that are tasks; fewer are left to families that cut rows or sums
