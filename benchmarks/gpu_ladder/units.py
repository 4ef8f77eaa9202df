"""Matrix units as data: AMX, mma.sync and wgmma as rows of one table, with their layouts as index expressions.

Run as a program it checks every layout to be one-to-one, permuted memory to be free of bank conflicts, and sums to be
usable as the next product's left factor where they are. The kernels beside this file store their sums by these layouts.

An expression is a string in C's and Python's common arithmetic on non-negative integers (`/` divides down).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass


def evaluate(expression: str, **names: int) -> int:
    return eval(expression.replace("/", "//"), {}, names)


# -- homes: where an operand of one step lives ---------------------------------------------------------------------
@dataclass(frozen=True)
class Fragments:
    """Spread over the registers of the threads that issue a step together. Element `piece` of word `register` of
    thread `lane` is the matrix's element (row, column)."""
    threads: int
    registers: int              # words of 32 bits in each thread
    pieces: int                 # elements in a word, the first in the lowest bits
    row: str
    column: str

    def places(self):
        for lane, register, piece in itertools.product(range(self.threads), range(self.registers), range(self.pieces)):
            at = dict(lane=lane, register=register, piece=piece)
            yield (lane, register, piece), (evaluate(self.row, **at), evaluate(self.column, **at))


@dataclass(frozen=True)
class Rows:
    """In memory or in a register that holds a small matrix: `row`s of `row_bytes`; a row holds, for each column of the
    fast axis, `pieces` neighbours along the slow one."""
    row_bytes: int
    pieces: int = 1


@dataclass(frozen=True)
class Swizzled:
    """In memory that a group shares: lines of `line_bytes`, 8 lines to a block; the 16-byte piece number `chunk` of line
    `line` lies at piece (chunk ^ line / every % most) of the line. Both the copy engine and the matrix unit
    know this permutation by a number (`code`), everybody else computes it."""
    line_bytes: int
    code: int                   # of the matrix unit's descriptor; the copy engine's number is another
    every: int                  # lines that share one permutation
    most: int                   # permutations

    def address(self, line: int, byte: int) -> int:
        chunk = byte // 16
        return line * self.line_bytes + ((chunk ^ line // self.every % self.most) * 16) + byte % 16


SWIZZLE = {128: Swizzled(128, 1, 1, 8), 64: Swizzled(64, 2, 2, 4), 32: Swizzled(32, 3, 4, 2)}


# -- how steps and copies are ordered --------------------------------------------------------------------------------
@dataclass(frozen=True)
class Issue:
    """How a step is started and how one knows that it is over."""
    by: int                     # threads that issue it together; 1: a thread alone
    before: str = ""            # orders earlier writes of registers before the step
    commit: str = ""            # closes a group of steps; empty: a step is over when the next statement runs
    wait: str = ""              # waits until at most {pending} groups are unfinished


@dataclass(frozen=True)
class Copy:
    """A way to bring an operand to its home."""
    name: str
    to: str                     # "registers", "shared"
    by: str                     # "each thread", "one thread"
    bytes: tuple[int, ...]      # it moves at once; () : a whole box
    aligned: int                # bytes: of both addresses
    strides: int                # bytes: what all strides but the innermost must be a multiple of
    edges: str                  # "gate": each access asks; "count": bytes of an access that are real; "fill": zeros
    done: str                   # "next statement", "commit group", "transaction barrier"
    swizzles: tuple[int, ...] = ()      # line_bytes it can permute by itself; () with to="shared": the writer computes


PLAIN = Copy("plain", "registers", "each thread", (1, 2, 4, 8, 16), 1, 1, "gate", "next statement")
CP_ASYNC = Copy("cp.async", "shared", "each thread", (4, 8, 16), 16, 16, "count", "commit group")
TMA = Copy("cp.async.bulk.tensor", "shared", "one thread", (), 16, 16, "fill", "transaction barrier", (128, 64, 32))
LDMATRIX = Copy("ldmatrix", "registers", "warp", (16,), 16, 16, "none", "next statement")
TILELOAD = Copy("tileloadd", "registers", "one thread", (), 1, 1, "none", "next statement")


# -- the unit --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Operand:
    dtype: str
    homes: tuple[Fragments | Rows | Swizzled, ...]       # it may come from any of these
    along: tuple[str, ...] = ("k",)                      # the axes that may be contiguous in its home
    copies: tuple[Copy, ...] = ()                        # what can bring it there, fastest first


@dataclass(frozen=True)
class MatrixUnit:
    """total[rows, columns] += left[rows, depth] * right[depth, columns], as one step."""
    name: str
    needs: frozenset[str]
    rows: int
    columns: tuple[int, ...]    # that one step may have
    depth: int
    left: Operand
    right: Operand
    total: Operand
    issue: Issue
    per_cycle: int              # multiply-adds of one core and cycle, all its threads together
    in_flight: int = 1          # steps that must not wait for each other


# -- AMX ---------------------------------------------------------------------------------------------------------------
def amx(name: str, feature: str, left: str, right: str, total: str, pieces: int) -> MatrixUnit:
    return MatrixUnit(name, frozenset(("amx-tile", feature)), 16, (16,), 16 * pieces,
                      Operand(left, (Rows(64),), ("k",), (TILELOAD,)),
                      Operand(right, (Rows(64, pieces),), ("columns",), (TILELOAD,)),
                      Operand(total, (Rows(64),), ("columns",), (TILELOAD,)), Issue(1), 256 * pieces, 4)


# -- mma.sync: one shape in words (8 of k), whatever the elements --------------------------------------------------------
def mma_sync(dtype: str, word: str, total: str, pieces: int, since: str) -> MatrixUnit:
    k = f"(lane % 4 + 4 * {{}}) * {pieces} + piece"
    left = Fragments(32, 4, pieces, "lane / 4 + 8 * (register % 2)", k.format("(register / 2)"))
    right = Fragments(32, 2, pieces, k.format("register"), "lane / 4")
    sums = Fragments(32, 4, 1, "lane / 4 + 8 * (register / 2)", "2 * (lane % 4) + register % 2")
    name = f"mma.sync.aligned.m16n8k{8 * pieces}.row.col.{total}.{word}.{word}.{total}"
    turned = ("k", "columns") if pieces == 2 else ("k",)           # ldmatrix.trans turns 16-bit elements alone
    return MatrixUnit(name, frozenset((since,)), 16, (8,), 8 * pieces,
                      Operand(dtype, (left,), ("k", "rows") if pieces == 2 else ("k",), (LDMATRIX, PLAIN)),
                      Operand(dtype, (right,), turned, (LDMATRIX, PLAIN)),
                      Operand({"f32": "float32", "s32": "int32"}[total], (sums,)), Issue(32), 680 * pieces, 8)


# -- wgmma: 4 warps, left from shared memory or registers, right from shared memory, sums in registers --------------------
def wgmma(dtype: str, word: str, total: str, pieces: int) -> MatrixUnit:
    warp = "16 * (lane / 32)"
    left = Fragments(128, 4, pieces, f"{warp} + lane % 32 / 4 + 8 * (register % 2)",
                     f"(lane % 4 + 4 * (register / 2)) * {pieces} + piece")
    sums = Fragments(128, 128, 1, f"{warp} + lane % 32 / 4 + 8 * (register / 2 % 2)",
                     "8 * (register / 4) + 2 * (lane % 4) + register % 2")       # a step of N columns uses N / 2
    either = ("k", "rows") if pieces == 2 else ("k",)
    shared = tuple(SWIZZLE.values())
    issue = Issue(128, "wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned;",
                  "wgmma.wait_group.sync.aligned {pending};")
    return MatrixUnit(f"wgmma.mma_async.sync.aligned.m64n{{columns}}k{8 * pieces}.{total}.{word}.{word}",
                      frozenset(("sm_90a",)), 64, tuple(range(8, 257, 8)), 8 * pieces,
                      Operand(dtype, (*shared, left), either, (TMA, CP_ASYNC)),
                      Operand(dtype, shared, ("k", "columns") if pieces == 2 else ("k",), (TMA, CP_ASYNC)),
                      Operand({"f32": "float32", "s32": "int32"}[total], (sums,)), issue, 1024 * pieces, 2)


UNITS = (
    amx("tdpbf16ps", "amx-bf16", "bfloat16", "bfloat16", "float32", 2),
    amx("tdpbssd", "amx-int8", "int8", "int8", "int32", 4),
    mma_sync("bfloat16", "bf16", "f32", 2, "sm_80"),
    mma_sync("float16", "f16", "f32", 2, "sm_80"),
    mma_sync("tfloat32", "tf32", "f32", 1, "sm_80"),
    mma_sync("int8", "s8", "s32", 4, "sm_80"),
    wgmma("bfloat16", "bf16", "f32", 2),
    wgmma("float16", "f16", "f32", 2),
    wgmma("tfloat32", "tf32", "f32", 1),
    wgmma("int8", "s8", "s32", 4),
)


# -- checks ------------------------------------------------------------------------------------------------------------
def one_to_one(fragments: Fragments, rows: int, columns: int) -> None:
    """Every element of the matrix lies in exactly one place."""
    seen = [at for _, at in fragments.places()]
    assert sorted(seen) == [(r, c) for r in range(rows) for c in range(columns)], (fragments, rows, columns)


def check() -> None:
    for unit in UNITS:
        n = max(unit.columns)
        for operand, shape in ((unit.left, (unit.rows, unit.depth)), (unit.right, (unit.depth, n)),
                               (unit.total, (unit.rows, n))):
            for home in operand.homes:
                if isinstance(home, Fragments):
                    one_to_one(home, *shape)
                elif isinstance(home, Swizzled):
                    lines = 16
                    at = {home.address(line, byte) for line in range(lines) for byte in range(home.line_bytes)}
                    assert at == set(range(lines * home.line_bytes))
                    # eight lines at one chunk fall into eight different groups of four banks
                    for chunk in range(home.line_bytes // 16):
                        banks = {home.address(line, chunk * 16) // 16 % 8 for line in range(8)}
                        assert len(banks) == 8, (home, chunk, banks)
    # A sum's fragment is the next product's left factor without moving a word (attention): two columns of sums pack
    # into one word.
    unit = UNITS[6]
    left, sums = unit.left.homes[-1], unit.total.homes[0]
    place = {at: (lane, register) for (lane, register, _), at in sums.places()}
    for (lane, register, piece), (row, k) in left.places():
        for step in range(8):
            owner, which = place[row, 16 * step + k]
            assert owner == lane and which == 8 * step + 2 * register + piece
    print(f"{len(UNITS)} units: all layouts are one-to-one")


if __name__ == "__main__":
    check()
