"""What pays on a GPU: the shape of a group's tile, limits, and how long tiles take. In: counts. Out: rounds of groups.

A group of threads shares a tile of each factor. Does not know loops, nor a GPU's make.
"""

from __future__ import annotations

from typing import NamedTuple

from glassgrad.compiler.optimize.targets.tiling_thresholds import TilingThresholds

LIMITS = TilingThresholds(least_k=8)
THREADS = 256            # of a group
WARP_WIDE = 8            # threads of a warp along N, elsewhere; fewer where a tile has fewer
PIECE = 4                # neighbouring positions of a thread: one access of 16 bytes
PAD = 4                  # positions between rows of a tile: what is copied along k falls into different banks
LEAST_SIDE = 4           # positions of M or N, where the other one has more than a group's threads
STEP = 16                # of K that are copied at once; or half of it, where a thread would copy more than
MOST_COPIED = 24         # elements, or have more than
MOST_HELD = 80           # of them and of results: of 128 registers, too few would be left, and it would wait for copies
WARP = 32                # threads that read and store at once
MEMORY_PIECE = 32        # bytes that are read at least
WARP_PIECES = 4          # of them, where each thread has four bytes and all are in order
SMALL_FACTOR = 8         # times the elements of a factor that the other one has: then it is stored first in any order
PLAIN_PRODUCTS = 12      # of a sum that a processor adds in a cycle, where both factors are read for each of them
LONG_ROW = 4096          # steps of a sum that keep a group's loads under way: it takes no other row beside it
HELD_WORDS = 32          # of a row that a thread keeps in registers: twice as many would leave half of the groups
LIGHT_ROW = 16           # operations on each number of a row: up to these, threads hold half as many of 4 bytes
                         # (rmsnorm of 8192 x 8192: 128.8 us, not 132.5; softmax has more, and would take 139, not 131)
MOST_LIGHT_THREADS = 512     # of such a group
ROW_OF_TWO = 128 << 10   # bytes of a row that is not held: two of them on each processor stay in the cache together
MOST_ROW_STEPS = 128     # of one that is not held: a sum adds so many numbers, and float32 wants few
LEAST_ROW_THREADS, LEAST_ROW = 32, 64    # of a group that holds a row; numbers of a row
NEAR_STRIDES = (1, 2, 3, 4)   # of neighbours that share pieces of memory
OUT_OF_ORDER = 1.05      # times as long, where columns of a tile are not neighbours in the result
LEAST_STEPS = 8          # from which two of them are in memory at a time: threads wait once for each, not twice
PART, FEW_PARTS = 96, (1, 2, 3, 4, 6)    # of K: what is worth a part of its own; how many, where groups are not few
# Results of a thread along M and N, with the share of the chip's rate: it reads 4 * (rows + columns) bytes of shared
# memory for rows * columns products, which limits all but the largest.
EFFICIENCY = {(8, 8): 1.0, (8, 4): 0.85, (4, 8): 0.85, (4, 4): 0.75, (8, 2): 0.6, (2, 8): 0.5, (4, 2): 0.45,
              (2, 4): 0.45, (2, 2): 0.26}
GROUP_SIZES = {256: 1.05, 128: 1.0, 64: 1.0}     # threads of a group, and how much longer a product takes: all of them
                                                 # wait for each other
SMALL_TILE, MOST_FLAT = 32, 4    # results of a thread up to which tiles are no longer than so many times their width
COPIED, COPIED_ACROSS = 9, 16    # cycles in which a thread copies an element of a step: of a matrix as it lies; of one
                                 # that is transposed on its way, or of windows
TILE_ENDS = 250          # cycles before the first and after the last step for each result of a thread, which groups on
                         # one processor share
RESIDENT = 512           # threads of a processor, with 128 registers each,
FEWER_THREADS = 0.38     # and how much of the rate is left of fewer: their part to the power of this
JOIN_PARTS = 1 / 300     # cycles to store a sum of a part, and to add it
JOIN_BEGINS = 8000       # likewise: for a phase that adds up parts


def warp_width(threads_m: int, threads_n: int) -> int:
    """How many threads of a warp lie along N, in a group with so many along M and N; 0: warps do not fill it."""
    return next((n for n in (WARP_WIDE, WARP_WIDE // 2) if threads_n % n == 0 and threads_m % (WARP // n) == 0), 0)


class Tile(NamedTuple):
    """Results of a thread along M and N; threads of a group, how many of them lie along M; results of the group."""
    rows: int
    columns: int
    side: int
    threads: int
    height: int
    width: int

    @staticmethod
    def of(rows: int, columns: int, side: int, threads: int) -> Tile:
        return Tile(rows, columns, side, threads, rows * side, columns * (threads // side))

    @property
    def copied(self) -> float:
        """Elements of both factors that a thread copies for one step of K."""
        return (self.height + self.width) / self.threads

    @property
    def step(self) -> int:
        """Of K that are copied at once."""
        copied = STEP * self.copied
        return STEP if copied <= MOST_COPIED and copied + self.rows * self.columns <= MOST_HELD else STEP // 2

    @property
    def is_whole(self) -> bool:
        """Whether warps fill it, and each thread copies as many elements of a step; small ones are about square."""
        filled = warp_width(self.side, self.threads // self.side) > 0
        square = self.rows * self.columns > SMALL_TILE or \
            max(self.height, self.width) <= MOST_FLAT * min(self.height, self.width)
        return filled and square and all(of * self.step % self.threads == 0 for of in (self.height, self.width))


GROUP_TILES = [tile for results in EFFICIENCY for side in (16, 8, 4, 32, 64) for threads in GROUP_SIZES
               if (tile := Tile.of(*results, side, threads)).is_whole]


def tile_time(m: int, n: int, k: int, around: int, tile: Tile, parts: int, processors: int,
              copied: tuple[int, int] = (COPIED_ACROSS, COPIED)) -> float:
    """About how many cycles tiles of a size take, with K in so many parts: all groups of the processor that has most,
    as many of them at once as fit; and what adds up the parts. `copied` is what elements of both factors take."""
    groups = parts * around * -(-m // tile.height) * -(-n // tile.width)
    rounds, left = divmod(-(-groups // processors), RESIDENT // tile.threads)
    results = tile.rows * tile.columns
    copies = (copied[0] * tile.height + copied[1] * tile.width) / tile.threads
    step = results / EFFICIENCY[tile[:2]] * GROUP_SIZES[tile.threads] + copies

    def cycles(at_once: int) -> float:
        share = at_once * tile.threads / RESIDENT
        return share ** (1 - FEWER_THREADS) * RESIDENT / LANES * -(-k // parts) * step + TILE_ENDS * results / at_once
    join = JOIN_BEGINS + parts * around * m * n * JOIN_PARTS if parts > 1 else 0.0
    return rounds * cycles(RESIDENT // tile.threads) + (cycles(left) if left else 0.0) + join


def part_counts(m: int, n: int, k: int, around: int, tile: Tile, processors: int) -> list[int]:
    """Into how many parts K may be cut: few, or as many as give each processor the groups that fit it, or fewer."""
    groups = around * -(-m // tile.height) * -(-n // tile.width)
    at_once = RESIDENT // tile.threads * processors
    return sorted({max(1, min(parts, k // PART)) for parts in (*FEW_PARTS, at_once // groups, 2 * at_once // groups)})


# -- a matrix unit of a group ------------------------------------------------------------------------------------------
UNIT_LIMITS = TilingThresholds(least_k=8, least_work=1 << 17)
UNIT_SIDE, THIN_SIDE = 2, 16             # positions of M and N at least; and to store a factor first that is not small
SHARED_BYTES = 224 << 10  # of a group, of which some are for waits
REGISTERS = 64 << 10      # of a processor, 32 bits each
OTHER_REGISTERS = 60     # that a thread needs besides its parts of matrices;
LEAST_REGISTERS = 26     # and with which one matrix of sums can be compiled at all
MOST_REGISTERS = 255     # of a thread
STEP_REGISTERS = 40      # that it needs besides, where copies bring all factors of its steps
NARROW_STEP = 64         # columns up to which steps keep memory of the group as busy as the unit, for their left factor
HELD_WORK = 2048         # steps of a task's sums from which it pays to read a left factor into registers first
MOST_STAGES = 8          # of copies that are on their way
STAGE_BYTES = 1024       # that stages begin at multiples of: so many lines, which are permuted together
PERMUTED = 8
UNIT_PAD = 8             # sums between rows of a tile: what neighbouring threads store falls into different banks
SHARES_OF_LENGTHS = 1, 2, 4, 8    # of the longest one: tiles for all lengths are chosen by how long these take
TILES_TOGETHER = 8       # rows of tiles that are taken together: what runs at once reads the same lines
MEMORY_RATE = 2400       # bytes a cycle that the device's memory reads and stores
COPY_BYTES = 16          # that addresses and strides of copied matrices are multiples of
CACHE_LINE = 128         # bytes
CACHE_BYTES = 32 << 20   # of the cache that all processors share: what is read there may be read in any order
SECTOR = 64              # bytes of it that are brought at once
COPY_AXES = 5            # of a copied box
PACK_ROWS, PACK_LANES = 8, 256           # of a factor that one group stores: fewer rows, where these are
PACK_GROUPS = 132                        # fewer groups than this
# Tiles (rows, columns, groups on a processor at once), with the share of the unit's rate that was measured.
UNIT_RATES = {(192, 256, 1): 1.0, (128, 256, 1): 1.0, (128, 192, 1): 0.98, (128, 128, 1): 0.91, (128, 128, 2): 0.9,
              (128, 64, 1): 0.72, (128, 64, 2): 0.62, (64, 128, 1): 0.71, (64, 128, 2): 0.68, (64, 128, 4): 0.65,
              (64, 64, 1): 0.48, (64, 64, 2): 0.47}
# steps of K that are worth a part; parts at least, and at most; the share of all possible ones that will do, if they
# come out even
UNIT_PART, UNIT_PARTS, MOST_PARTS, EVEN_PARTS = 12, 4, 128, 0.7
# Tiles of a unit that multiplies out of registers, with the part of its rate that is supposed.
WARP_TILES = {(128, 128): 1.0, (128, 64): 0.8, (64, 128): 0.7, (64, 64): 0.6}
WARP_STEP = 32           # of K that are copied at once
UNIT_STEP = 1 / 32       # cycles for one sum and step of K
CLUSTER_STEP = 550       # cycles at least for a step of groups that share copies: each waits for the other
UNIT_LINES = (1.0, 3.9)  # cycles at least for each line of a step: that is one line of the cache, or lies in two
UNIT_ENDS = (1500, 0.14) # cycles before a tile's first step, in which other groups have theirs; and for each sum after
UNEVEN_LINES = 1.03      # its last, when all of them store: times these, where its lines are no power of two
LEAST_STAY_STAGES = 3    # of groups that stay: one holds sums while copies fill the others
STAY_MARGIN = 1.01       # that they have to be faster by
LANES = 128              # operations that a processor does in a cycle,
EPILOGUE_SHARES = ((512, 1.0), (384, 0.87), (256, 0.75), (0, 0.4))     # and their part by the threads that it has


def warp_tile_time(tiles: int, tile: tuple[int, int], at_once: int) -> float:
    """How long tiles of a size take: rounds of groups that run at once."""
    return -(-tiles // at_once) * tile[0] * tile[1] / WARP_TILES[tile]


def unit_tile_time(tiles: int, steps: int, tile: tuple[int, int, int], processors: int,
                   in_two: tuple[bool, bool] = (False, False), cluster: int = 1) -> float:
    """About how many cycles a product takes: its rounds of tiles, each with its steps and its ends. `in_two` says whose
    lines lie in two lines of the cache: the left factor's, the right one's, of which each group of a cluster brings a
    part."""
    rows, columns, at_once = tile
    if tiles <= processors:
        at_once, tile = 1, (rows, columns, 1)
    copies = rows * UNIT_LINES[in_two[0]] + columns * UNIT_LINES[in_two[1]] / cluster
    steps_take = steps * max(rows * columns * UNIT_STEP / UNIT_RATES[tile], copies, CLUSTER_STEP if cluster > 1 else 0)
    stores = UNIT_ENDS[1] * rows * columns * (UNEVEN_LINES if columns & columns - 1 else 1.0)
    last = stores * (1 - 1 / at_once)                             # the last groups of a processor store together
    return -(-tiles // processors) * (steps_take + UNIT_ENDS[0] / at_once + stores) - last


def unit_stay_time(tiles: int, steps: int, tile: tuple[int, int], processors: int, in_two: tuple[bool, bool]) -> float:
    """The same where a processor has one group that takes tile after tile: its copies are waited for once."""
    each = unit_tile_time(1, steps, (*tile, 1), processors, in_two) - UNIT_ENDS[0]
    return STAY_MARGIN * (UNIT_ENDS[0] + -(-tiles // processors) * each)


def unit_epilogue_time(tiles: int, tile: tuple[int, int, int], threads: int, processors: int, operations: int) -> float:
    """About how many cycles so many operations on each sum take: they run beside no steps, and few threads wait for
    each of their results."""
    rows, columns, at_once = tile
    busy = next(share for least, share in EPILOGUE_SHARES if (at_once if tiles > processors else 1) * threads >= least)
    return -(-tiles // processors) * rows * columns * operations / LANES / busy


def unit_join_time(sums: int) -> float:
    """About how many cycles it takes to start one more phase, and to store and add up so many sums of parts of K."""
    return 6000 + sums * 8 / MEMORY_RATE
