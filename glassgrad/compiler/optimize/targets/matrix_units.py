"""Matrix units as data. In: a processor's features. Out: the small matrix products that it has as one instruction.

The tiling (product/matrix_unit/) reads shapes, dtypes and layouts of a unit, a renderer the instruction's name. The
unit of another processor is another row of the table. Cost limits of units are here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from glassgrad.compiler.graph.dtype import DType, dtypes
from glassgrad.compiler.optimize.targets.tiling_thresholds import TilingThresholds

WORD = dtypes.uint32         # consecutive k of `right` are packed into words of this type

# K is counted in steps of the unit here. A panel of 16 steps fits the first-level cache, along with others.
LIMITS = TilingThresholds(least_work=16 << 10, task_work=4 << 20, most_tasks=16, long_k=20, k_block=16)
WASTE = 8  # the most that padding may multiply the work by: a unit is faster than vectors by more than this
FEW_PANELS = 8               # panels of N up to which reading the left factor in place is faster than packing it
ROW_GAP = 16                 # elements between rows of sums: rows of a power of two would share sets of the cache


@dataclass(frozen=True)
class Fragments:
    """The layout of a matrix in the registers of the threads that issue a step together: register `register` of thread
    `lane` has the element (row, column). Both functions take integers or index expressions."""
    registers: int            # per thread
    row: Callable[[Any, int], Any]
    column: Callable[[Any, int], Any]


@dataclass(frozen=True)
class Swizzled:
    """Swizzled lines of shared memory: the 16-byte chunk `chunk` of line `line` is stored as chunk number chunk ^ line
    % 8, so that chunks of the same number in eight lines are in different banks. Indices in a loop tree ignore the
    swizzle: copy and unit are both told of it by a code."""
    line_bytes: int = 128
    unit_code: int = 1        # for the unit's descriptor of a matrix
    copy_code: int = 3        # for the copy's description of a box
    repeats: int = 8          # number of lines after which the swizzle repeats

    def address(self, line: int, byte: int) -> int:
        """The address of a byte in a line.

        >>> [Swizzled().address(line, 0) for line in (0, 1, 2)]
        [0, 144, 288]
        """
        return line * self.line_bytes + (byte // 16 ^ line % self.repeats) * 16 + byte % 16


Lines = Callable[[Any], "tuple[Any, Any]"]


@dataclass(frozen=True)
class WordLoads:
    """How the threads of a unit load factors from shared memory into registers: four blocks of 8 lines of 16 bytes per
    instruction. Thread `lane` gives the address of the line that begins at (position, k). The instruction gives each
    thread the words of one step of its left factor, or of two consecutive steps of its right one."""
    left: Lines               # lane -> (row, k), if lines go along k
    right: Lines              # lane -> (column, k), likewise
    right_across: Lines       # the same, if lines go across k
    along: str                # the instruction, with {words} and {address}
    across: str


@dataclass(frozen=True)
class StepText:
    """The instructions of a unit of a thread group, as text."""
    step: str                 # with {sums}, {left} and {right}; {left_across}, {right_across}: 1 if lines go across k
    held: str = ""            # the same, if {left} is in registers of the threads, two elements per word
    before: str = ""          # orders earlier writes of registers before the steps
    commit: str = ""          # closes the group of steps since the last commit
    wait: str = ""            # waits until at most {pending} groups are unfinished; empty: steps are synchronous


@dataclass(frozen=True)
class MatrixUnit:
    """total[rows, columns] += left[rows, depth] * right[depth, columns], as one instruction.

    By default, all three are in registers of the unit that hold a small matrix each, and are loaded from memory row by
    row with any stride. A row of `left` is contiguous along k; a row of `right` has, for each column, one word of
    `pieces` elements that are consecutive along k, the first in the lowest bits.

    >>> unit = AMX[0]
    >>> unit.name, unit.rows, unit.columns, unit.depth, unit.pieces
    ('tdpbf16ps', 16, 16, 32, 2)
    """
    name: str                 # the instruction
    needs: frozenset[str]     # features of the processor, as LLVM spells them
    left: DType
    right: DType
    total: DType
    rows: int = 16
    columns: int = 16
    words: int = 16           # words along k per instruction
    registers: int = 8        # registers, which hold a matrix each
    in_flight: int = 4        # independent products that hide the latency of one
    threads: int = 1          # threads that issue a step together
    sums: Fragments | None = None      # the layout of the total, if it is not in dedicated registers of the unit
    lines: Swizzled | None = None      # the layout of both factors in shared memory, if the unit reads them there
    across: bool = True                # whether these lines may also go across k
    left_words: Fragments | None = None    # elements of the left factor, if threads load them from lines across k:
                                                                                      # the row and k of each thread's
    loads: WordLoads | None = None  # how factors are loaded into the threads' registers, if the unit reads them there
    text: StepText | None = None       # how a step is written, if not by the renderer itself

    @property
    def pieces(self) -> int:
        """Elements along k per word."""
        return WORD.itemsize // self.right.itemsize

    @property
    def depth(self) -> int:
        """Elements along k per instruction."""
        return self.words * self.pieces


def _amx(name: str, feature: str, left: DType, right: DType, total: DType) -> MatrixUnit:
    return MatrixUnit(name, frozenset(("amx-tile", feature)), left, right, total)


# tdpbf16ps multiplies exactly and adds in float32, rounding to nearest: even and odd k separately, then both to the
# total. Subnormal inputs and outputs (below 2**-126) count as 0. The other instructions are exact modulo 2**32.
AMX = (
    _amx("tdpbf16ps", "amx-bf16", dtypes.bfloat16, dtypes.bfloat16, dtypes.float32),
    _amx("tdpbssd", "amx-int8", dtypes.int8, dtypes.int8, dtypes.int32),
    _amx("tdpbsud", "amx-int8", dtypes.int8, dtypes.uint8, dtypes.int32),
    _amx("tdpbusd", "amx-int8", dtypes.uint8, dtypes.int8, dtypes.int32),
    _amx("tdpbuud", "amx-int8", dtypes.uint8, dtypes.uint8, dtypes.int32),
)


# -- units of thread groups -----------------------------------------------------------------------------------------
class Multiplied(NamedTuple):
    """Element types that an instruction multiplies, and how its text names them."""
    left: DType
    right: DType
    total: DType
    letters: str              # for the total, the left and the right factor
    ends: str                 # operands after the factors and the predicate: signs, and for 16 bits the directions
    needs: str = ""           # a feature needed besides the chip


_BOTH_WAYS = ", 1, 1, {left_across}, {right_across}"
# float32 inputs are rounded to 10 bits of mantissa: only if the program allows that (the setting TF32)
MULTIPLIED = (
    Multiplied(dtypes.bfloat16, dtypes.bfloat16, dtypes.float32, "f32.bf16.bf16", _BOTH_WAYS),
    Multiplied(dtypes.float16, dtypes.float16, dtypes.float32, "f32.f16.f16", _BOTH_WAYS),
    Multiplied(dtypes.float32, dtypes.float32, dtypes.float32, "f32.tf32.tf32", ", 1, 1", "tf32"),
    Multiplied(dtypes.int8, dtypes.int8, dtypes.int32, "s32.s8.s8", ""),
    Multiplied(dtypes.uint8, dtypes.uint8, dtypes.int32, "s32.u8.u8", ""))


# A thread has words from two of a warp's 16 rows, and from two of the 8 words of a step along k.
FOUR_WORDS = Fragments(4, lambda lane, register: lane // 32 * 16 + lane % 32 // 4 + register % 2 * 8,
                       lambda lane, register: lane % 4 + register // 2 * 4)


def _wgmma(columns: int, types: Multiplied) -> MatrixUnit:
    """Four warps multiply 64 rows by up to 256 columns, with both factors in shared memory: lines of 128 bytes along k,
    or for 16-bit types across it. Each sum is in one register; a warp has 16 rows, with four threads per row."""
    sums = Fragments(columns // 2,
                     lambda lane, register: lane // 32 * 16 + lane % 32 // 4 + register // 2 % 2 * 8,
                     lambda lane, register: register // 4 * 8 + lane % 4 * 2 + register % 2)
    shape = f"m64n{columns}k{32 // types.left.itemsize}"
    step = "{{ .reg .pred more; setp.ne.b32 more, 1, 0; " \
           f"wgmma.mma_async.sync.aligned.{shape}.{types.letters} {{{{{{sums}}}}}}, "
    by_words = types.left.itemsize in (2, 4)
    held = step + "{{{left}}}, {right}, more, 1, 1" + ", {right_across}" * (types.ends == _BOTH_WAYS) + "; }}"
    text = StepText(
        step + "{left}, {right}, more" + types.ends + "; }}", held if by_words else "",
        "wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned {pending};")
    factors = "_".join(dict.fromkeys(types.letters.split(".")[1:]))
    needs = frozenset(("sm_90a", types.needs) if types.needs else ("sm_90a",))
    return MatrixUnit(f"wgmma_{shape}_{factors}", needs, types.left, types.right, types.total, 64, columns, words=8,
                      registers=1, in_flight=2, threads=128, sums=sums, lines=Swizzled(),
                      across=types.ends == _BOTH_WAYS, left_words=FOUR_WORDS if types.left.itemsize == 4 else None,
                      text=text)


# A thread has two consecutive sums in a row of each half of a matrix; four threads share a row. The sums of a step have
# the layout of the left factor of the next one, so chained products move no words between threads.
QUARTER_ROWS = Fragments(4, lambda lane, register: lane // 4 + register // 2 * 8,
                         lambda lane, register: lane % 4 * 2 + register % 2)
LDMATRIX = WordLoads(
    left=lambda lane: (lane % 16, lane // 16 * 8),
    right=lambda lane: (lane % 8 + lane // 16 * 8, lane // 8 % 2 * 8),
    right_across=lambda lane: (lane // 16 * 8, lane % 16),
    along="ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{words}}}, [{address}];",
    across="ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{{words}}}, [{address}];")


def _mma_sync(dtype: DType, letters: str) -> MatrixUnit:
    """A warp multiplies 16 rows by 8 columns, with both factors in registers of its threads, two elements per word."""
    text = StepText(f"mma.sync.aligned.m16n8k16.row.col.f32.{letters}.{letters}.f32 "
                    "{{{sums}}}, {{{left}}}, {{{right}}}, {{{sums}}};")
    return MatrixUnit(f"mma_m16n8k16_{letters}", frozenset(("sm_80",)), dtype, dtype, dtypes.float32, 16, 8, words=8,
                      registers=1, in_flight=1, threads=32, sums=QUARTER_ROWS, loads=LDMATRIX, text=text)


MMA_SYNC = tuple([_mma_sync(dtype, letters) for dtype, letters in ((dtypes.bfloat16, "bf16"), (dtypes.float16, "f16"))])


WGMMA = tuple([_wgmma(columns, types) for types in MULTIPLIED
               for columns in (256, 192, 128, 112, 96, 80, 64, 48, 32, 16)
               if types.ends == _BOTH_WAYS or columns in (256, 192, 128, 64)])


def units_of(features: Iterable[str]) -> tuple[MatrixUnit, ...]:
    """The units of a processor with these features.

    >>> [unit.name for unit in units_of({"avx512f", "amx-tile", "amx-bf16"})]
    ['tdpbf16ps']
    """
    known = frozenset(features)
    if any(f.startswith("sm_") and int(f[3:].rstrip("a")) >= 80 for f in known):       # later chips have it too
        known |= {"sm_80"}
    return tuple(unit for unit in (*AMX, *WGMMA, *MMA_SYNC) if unit.needs <= known)
