"""Cost model of GPUs: shapes of a thread group's tile, limits, and how long tiles take. In: counts. Out: cycles.

The threads of a group share a tile of each factor. Does not know loops, nor any particular GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from glassgrad.compiler.optimize.targets.tiling_thresholds import TilingThresholds

LIMITS = TilingThresholds(least_k=8)
THREADS = 256            # threads of a group
WARP_WIDE = 8            # threads of a warp along N; fewer if a tile has fewer
PIECE = 4                # consecutive positions of a thread: one access of 16 bytes
PAD = 4                  # padding between rows of a tile, in positions: copies along k go to different banks
LEAST_SIDE = 4           # least positions of M or N, where the other one has more than the threads of a group
STEP = 16                # elements of K copied per step; half of that if a thread would copy more than
MOST_COPIED = 24         # this many elements, or have more than
MOST_HELD = 80           # this many, with its results: too few of 128 registers would be left to overlap copies
WARP = 32                # threads whose loads and stores are coalesced
MEMORY_PIECE = 32        # bytes per memory transaction
WARP_PIECES = 4          # transactions of a warp whose threads each access four bytes, all contiguous
SMALL_FACTOR = 8         # a factor this many times smaller than the other one may be stored first, in any order
PLAIN_PRODUCTS = 12      # products per cycle of a processor, if both factors are read for each of them
SPREAD_ROWS = 64         # up to this many rows (times `few_tasks`), each row is split into several tasks
LEAST_FOLDED = 8         # elements that each thread of a group adds up for a part of a sum, before sums are folded
LONG_ROW = 4096          # steps of a sum that keep a group's loads in flight even with a single row
HELD_WORDS = 32  # words of a row that a thread keeps in registers: with twice as many, half as many groups would fit
LIGHT_ROW = 16           # operations per element up to which threads hold half as many elements of 4 bytes
                         # (rmsnorm of 8192 x 8192: 128.8 us, not 132.5; softmax has more, and would take 139, not 131)
MOST_LIGHT_THREADS = 512     # threads of a group for such a row
ROW_OF_TWO = 128 << 10   # bytes of a row that is not held, up to which two rows per processor fit the cache together
MOST_ROW_STEPS = 128  # for a row that is not held: the terms of each partial sum; with more, float32 becomes inaccurate
LEAST_ROW_THREADS, LEAST_ROW = 32, 64    # threads of a group that holds a row; elements of a row
NEAR_STRIDES = (1, 2, 3, 4)   # strides of elements that share memory transactions
OUT_OF_ORDER = 1.05      # factor on the time if columns of a tile are not contiguous in the result
LEAST_STEPS = 8          # steps from which tiles are double-buffered: one barrier per step instead of two
# elements of K that are worth a part; numbers of parts, if there are not few groups
PART, FEW_PARTS = 96, (1, 2, 3, 4, 6)
# Results of a thread along M and N -> share of the chip's rate. A thread reads 4 * (rows + columns) bytes of shared
# memory for rows * columns products, which limits all but the largest tiles.
EFFICIENCY = {(8, 8): 1.0, (8, 4): 0.85, (4, 8): 0.85, (4, 4): 0.75, (8, 2): 0.6, (2, 8): 0.5, (4, 2): 0.45,
              (2, 4): 0.45, (2, 2): 0.26}
# Threads of a group -> factor on the time, for its barriers
GROUP_SIZES = {256: 1.05, 128: 1.0, 64: 1.0}
SMALL_TILE, MOST_FLAT = 32, 4    # tiles with at most this many results per thread have at most this aspect ratio
# Cycles in which a thread copies an element: of a matrix in its layout; of a matrix that the copy transposes, or of
# windows
COPIED, COPIED_ACROSS = 9, 16
# Cycles of prologue and epilogue per result of a thread; overlapped by the other groups of the processor
TILE_ENDS = 250
RESIDENT = 512           # threads on a processor, with 128 registers each;
FEWER_THREADS = 0.38     # with a smaller share of them, the rate is that share to this power
TYPICAL = 4              # a run-time bound is typically this many times smaller than its maximum
ROWS = 16, 32, 64, 256, 1024     # numbers of rows for which run-time many rows have a version of the code;
UNIT_ROWS = 16, 64, 128, 256, 512, 1024    # the same on a matrix unit, where a version is less code
# Eighths of the way from one of these numbers to the next: tiles are chosen for these numbers of rows
EIGHTHS_OF_ROWS = 1, 3, 5, 8
JOIN_PARTS = 1 / 300     # cycles to store a partial sum and to add it
JOIN_BEGINS = 8000       # cycles to start the phase that adds partial sums


def warp_width(threads_m: int, threads_n: int) -> int:
    """How many threads of a warp are along N, in a group of this many along M and N; 0: warps cannot tile it."""
    return next((n for n in (WARP_WIDE, WARP_WIDE // 2) if threads_n % n == 0 and threads_m % (WARP // n) == 0), 0)


class Tile(NamedTuple):
    """A group's tile: the results of a thread along M and N; threads along M, and in total; the group's results."""
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
        """Elements of K that are copied per step."""
        copied = STEP * self.copied
        return STEP if copied <= MOST_COPIED and copied + self.rows * self.columns <= MOST_HELD else STEP // 2

    @property
    def is_whole(self) -> bool:
        """Whether warps tile it, all threads copy equally many elements per step, and, if it is small, it is about
        square."""
        filled = warp_width(self.side, self.threads // self.side) > 0
        square = self.rows * self.columns > SMALL_TILE or \
            max(self.height, self.width) <= MOST_FLAT * min(self.height, self.width)
        return filled and square and all(of * self.step % self.threads == 0 for of in (self.height, self.width))


GROUP_TILES = [tile for results in EFFICIENCY for side in (16, 8, 4, 32, 64) for threads in GROUP_SIZES
               if (tile := Tile.of(*results, side, threads)).is_whole]


def tile_time(m: int, n: int, k: int, repetitions: int, tile: Tile, parts: int, processors: int,
              copied: tuple[int, int] = (COPIED_ACROSS, COPIED)) -> float:
    """Estimate the cycles of a product with this tile and number of parts of K: those of the processor with the most
    groups, of which as many run at once as fit, and those for adding up the parts. `copied`: cycles to copy an element
    of each factor."""
    groups = parts * repetitions * -(-m // tile.height) * -(-n // tile.width)
    rounds, left = divmod(-(-groups // processors), RESIDENT // tile.threads)
    results = tile.rows * tile.columns
    copies = (copied[0] * tile.height + copied[1] * tile.width) / tile.threads
    step = results / EFFICIENCY[tile[:2]] * GROUP_SIZES[tile.threads] + copies

    def cycles(at_once: int) -> float:
        share = at_once * tile.threads / RESIDENT
        return share ** (1 - FEWER_THREADS) * RESIDENT / LANES * -(-k // parts) * step + TILE_ENDS * results / at_once
    join = join_time(parts * repetitions * m * n) if parts > 1 else 0.0
    return rounds * cycles(RESIDENT // tile.threads) + (cycles(left) if left else 0.0) + join


def join_time(sums: int) -> float:
    """Estimate the cycles to start one more phase, and to store and add up this many partial sums."""
    return JOIN_BEGINS + sums * JOIN_PARTS


Choice = TypeVar("Choice")


def typical_rows(most: int, versions: Sequence[int]) -> list[int]:
    """The numbers of rows for which the version of the code for at most `most` rows is used, typically."""
    least = max([n for n in versions if n < most], default=0)
    return [least + -(-(most - least) * share // 8) for share in EIGHTHS_OF_ROWS]


def best_for(ways: Iterable[Choice], time: Callable[[Choice, int], float], numbers: Sequence[int]) -> Choice:
    """Of several ways, the one that is nearest to the fastest over all these numbers of rows."""
    found = [(way, [time(way, number) for number in numbers]) for way in ways]
    least = [min(times) for times in zip(*[times for _, times in found])]
    return min(found, key=lambda each: sum([taken / best for taken, best in zip(each[1], least)]))[0]


def parts_at(rows: int, blocks: int, k: int, tile: Tile) -> int:
    """The number of parts of K for this many rows, with `blocks` groups for each column of tiles: groups that blocks of
    rows leave idle share K."""
    return max(1, min(blocks // -(-rows // tile.height), k // PART))


def block_counts(n: int, repetitions: int, tile: Tile, processors: int) -> list[int]:
    """The numbers of groups per column of tiles for which K may be split: one (never split), and those that fill all
    processors up to three times."""
    columns, at_once = repetitions * -(-n // tile.width), RESIDENT // tile.threads * processors
    return sorted({max(1, times * at_once // columns) for times in (0, 1, 2, 3)})


def part_counts(m: int, n: int, k: int, repetitions: int, tile: Tile, processors: int) -> list[int]:
    """The numbers of parts into which K may be split: a few, and those that fill all processors once or twice."""
    groups = repetitions * -(-m // tile.height) * -(-n // tile.width)
    at_once = RESIDENT // tile.threads * processors
    return sorted({max(1, min(parts, k // PART)) for parts in (*FEW_PARTS, at_once // groups, 2 * at_once // groups)})


# -- a matrix unit of a group ------------------------------------------------------------------------------------------
UNIT_LIMITS = TilingThresholds(least_k=8, least_work=1 << 17)
UNIT_SIDE, THIN_SIDE = 2, 16             # least sizes of M and N: in general; and if a large factor is stored first
SHARED_BYTES = 224 << 10  # shared memory of a group, without what barriers take
REGISTERS = 64 << 10      # registers of a processor, 32 bits each
OTHER_REGISTERS = 60     # registers that a thread needs besides its parts of matrices,
LEAST_REGISTERS = 26     # the least with which one matrix of sums can be compiled at all,
MOST_REGISTERS = 255     # and the most of a thread
STEP_REGISTERS = 40      # registers that a thread needs besides, if all factors are copied to shared memory
NARROW_STEP = 64         # columns up to which reads of the left factor limit a step as much as the unit does
HELD_WORK = 2048         # steps of a task's sums from which it pays to load a left factor into registers first
MOST_STAGES = 8          # stages of copies in flight
STAGE_BYTES = 1024       # alignment of stages: PERMUTED lines, which are swizzled together
PERMUTED = 8
UNIT_PAD = 8             # padding between rows of a tile, in sums: stores of consecutive threads go to different banks
# Shares of the longest run-time length: tiles are chosen by their time for all these
SHARES_OF_LENGTHS = 1, 1 / 2, 1 / 4, 1 / 8
TILES_TOGETHER = 8       # rows of tiles in a band, so that groups that run at the same time read the same lines
MEMORY_RATE = 2400       # bytes per cycle from the device's memory
COPY_BYTES = 16          # alignment of addresses and strides of copied matrices, in bytes
CACHE_LINE = 128         # bytes
CACHE_BYTES = 32 << 20   # size of the cache shared by all processors: a factor that fits may be read in any order
SECTOR = 64              # bytes of that cache that are fetched together
COPY_AXES = 5            # axes of a copied box
PACK_ROWS, PACK_LANES = 8, 256           # rows and threads of a group that stores a factor: fewer rows, if there are
PACK_GROUPS = 132                        # fewer groups than this
# Tile (rows, columns, groups on a processor at once) -> measured share of the unit's rate.
UNIT_RATES = {(192, 256, 1): 1.0, (128, 256, 1): 1.0, (128, 192, 1): 0.98, (128, 128, 1): 0.91, (128, 128, 2): 0.9,
              (128, 64, 1): 0.72, (128, 64, 2): 0.62, (64, 128, 1): 0.71, (64, 128, 2): 0.68, (64, 128, 4): 0.65,
              (64, 64, 1): 0.48, (64, 64, 2): 0.47}
# Steps of K that are worth a part; the least and most parts; equal parts are preferred if there are at least this share
# of the most parts possible
UNIT_PART, UNIT_PARTS, MOST_PARTS, EVEN_PARTS = 12, 4, 128, 0.7
# Tile of a unit that reads factors from registers -> assumed share of its rate.
WARP_TILES = {(128, 128): 1.0, (128, 64): 0.8, (64, 128): 0.7, (64, 64): 0.6}
WARP_STEP = 32           # elements of K copied per step
UNIT_STEP = 1 / 32       # cycles per sum and step of K
CLUSTER_STEP = 550       # least cycles of a step of groups that share copies: each waits for the others
UNIT_LINES = (1.0, 3.9)  # least cycles per line of a step: within one cache line; straddling two
UNIT_ENDS = (1500, 0.14) # cycles before a tile's first step, which other groups overlap; cycles per sum to store it,
UNEVEN_LINES = 1.03      # times this factor if the tile's lines are not a power of two
LEAST_STAY_STAGES = 3    # stages of persistent groups: one holds sums while copies fill the others
STAY_MARGIN = 1.01       # factor on the time of persistent groups: they must be faster by this
LANES = 128              # operations per cycle of a processor,
# and (threads, share of these operations with at least so many threads)
EPILOGUE_SHARES = ((512, 1.0), (384, 0.87), (256, 0.75), (0, 0.4))


def warp_tile_time(tiles: int, tile: tuple[int, int], at_once: int) -> float:
    """The relative time of a product with this tile: rounds of groups that run at once."""
    return -(-tiles // at_once) * tile[0] * tile[1] / WARP_TILES[tile]


def unit_tile_time(tiles: int, steps: int, tile: tuple[int, int, int], processors: int,
                   in_two: tuple[bool, bool] = (False, False), cluster: int = 1) -> float:
    """Estimate the cycles of a product: its rounds of tiles, each with steps, prologue and stores. `in_two`: whether
    lines of the left and of the right factor straddle two cache lines. Groups of a cluster share the copies of the
    right factor."""
    rows, columns, at_once = tile
    if tiles <= processors:
        at_once, tile = 1, (rows, columns, 1)
    copies = rows * UNIT_LINES[in_two[0]] + columns * UNIT_LINES[in_two[1]] / cluster
    steps_take = steps * max(rows * columns * UNIT_STEP / UNIT_RATES[tile], copies, CLUSTER_STEP if cluster > 1 else 0)
    stores = UNIT_ENDS[1] * rows * columns * (UNEVEN_LINES if columns & columns - 1 else 1.0)
    last = stores * (1 - 1 / at_once)  # the last groups of a processor store at the same time
    return -(-tiles // processors) * (steps_take + UNIT_ENDS[0] / at_once + stores) - last


def unit_stay_time(tiles: int, steps: int, tile: tuple[int, int], processors: int, in_two: tuple[bool, bool]) -> float:
    """As `unit_tile_time`, for persistent groups, one per processor: only the first tile waits for its copies."""
    each = unit_tile_time(1, steps, (*tile, 1), processors, in_two) - UNIT_ENDS[0]
    return STAY_MARGIN * (UNIT_ENDS[0] + -(-tiles // processors) * each)


def unit_epilogue_time(tiles: int, tile: tuple[int, int, int], threads: int, processors: int, operations: int) -> float:
    """Estimate the cycles of an epilogue with this many operations per sum. It overlaps with no steps, and few threads
    do not hide its latency."""
    rows, columns, at_once = tile
    busy = next(share for least, share in EPILOGUE_SHARES if (at_once if tiles > processors else 1) * threads >= least)
    return -(-tiles // processors) * rows * columns * operations / LANES / busy


def unit_join_time(sums: int) -> float:
    """Estimate the cycles to start one more phase, and to store and add up this many partial sums."""
    return 6000 + sums * 8 / MEMORY_RATE
