"""What pays on a CPU: limits of each family of tilings, and what a tile costs. In: counts. Out: cycles.

All numbers were measured on x86-64 servers; they are used for every CPU. Does not know loops: the functions that cut a
product (compiler/optimize/product) count its tiles, lines and packed elements, and ask here what these cost.
"""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class TileCounts:
    """What one register tile of a contraction does, and the whole product with such tiles."""
    rows: int
    vectors: int
    panels_m: int
    panels_n: int
    m: int
    n: int
    depth: int
    left_packed: bool
    left_far: bool           # the left factor does not fit half the second-level cache
    left_apart: bool         # it is read in place, in rows along k
    right: str               # "packed", "near" or "in_place"
    right_far: bool          # the right factor does not fit the second-level cache
    right_stays: bool        # read in place, a panel of it stays in the first-level cache
    right_flows: bool        # read in place, it costs no more than packed
    right_streams: bool      # read in place, in short blocks of K
    right_crosses: bool      # read in place, its vectors cross the ends of lines
    overlaps: bool           # its last panel, read in place, begins early
    panel_in_l1: bool
    vector_bytes: int
    accesses: int            # of the epilogue to memory, for each element
    apart: bool              # neighbours along N lie apart there
    repeats: int = 1         # how many blocks of M share the right factor


def contract_cycles(c: TileCounts) -> float:
    """About how many cycles a product takes, divided by its depth: two multiply-adds a cycle, or not quite two loads;
    the lines of both panels that come from the second-level cache (rows that are read in place cost more), and vectors
    that cross the end of one; packing an element of a factor, more where another core reads it from far away, and the
    phase that takes; the right factor's lines where it is read in place, once if they stay near, unless it flows; and
    what the epilogue reads and writes, twice as much where rows past the edge are left out, and for each number where
    they lie apart."""
    loads = c.rows + c.vectors + 1
    if c.right == "in_place" and not c.right_flows:                 # each of its lines is asked for early, too
        loads += c.vectors
    step = max(c.rows * c.vectors / 2, loads * 0.6, 5.0)            # a sum waits for the last one: 4 cycles
    step += 0.1 * c.rows + 0.3 if c.left_apart else (0.12 if c.left_far else 0.05) * c.rows
    if not (c.right == "near" or c.right_stays) or not c.panel_in_l1:
        step += 0.2 * c.vectors * c.vector_bytes / CACHE_LINE
    if c.right_streams:                        # a tile's rows begin anew in each block: more than eight cost more
        step = (step + 0.1 * max(0, c.rows - 8)) * (1.06 if c.overlaps else 1)
    elif c.right_crosses:
        step += 0.6 * c.vectors * c.vector_bytes / CACHE_LINE
    packing = 0.0
    if c.left_packed:
        packing += PHASE / c.depth + (1.2 if c.left_far else 0.7) * c.m
    if c.right == "near":
        packing += 0.5 * c.n
    elif c.right == "packed":
        packing += (PHASE / c.depth + (1.8 if c.right_far else 0.5) * c.n) / c.repeats
    line = 0 if c.right != "in_place" or c.right_flows else 0.12 if c.right_far else 0.08
    lines = line * (1 if c.right_stays else c.panels_m) * c.n
    each = APART_CYCLES * c.vector_bytes / 4 if c.apart else 2 if c.m % c.rows else 1
    ends = c.accesses * c.rows * c.vectors * each / c.depth
    return c.panels_m * c.panels_n * (step + ends) + packing + lines


def direct_cycles(steps: dict[int, float], tiles: int, rows: int, pieces: int, depth: int, panels: int, vectors: int,
                  lanes: int) -> float:
    """About how many cycles a product over windows takes: `steps` says how often a step of K is taken with so many
    rows of a tile, two multiply-adds or loads in a cycle; each tile's rows are then moved to their place in the
    result, where they lie in so many pieces; and the other factor is packed."""
    halves = sum([times * (max(n * vectors, n + vectors, 8) + 1) for n, times in steps.items()])
    turn = tiles * (rows + APART * pieces) * TURN * vectors * lanes
    return panels * (halves / 2 + turn + PACK * depth * vectors * lanes)
