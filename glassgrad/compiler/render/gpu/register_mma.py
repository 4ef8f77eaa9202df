"""Matrix-unit steps with factors in registers of threads, in CUDA. In: a step's statement. Out: lines of inline PTX.

A factor in group memory is loaded into registers just before it is multiplied. A factor that is a matrix in registers
is multiplied where it is, two elements per word: its layout is the one that the unit takes. The names of the
instructions are the unit's data.
"""

from __future__ import annotations

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.graph.index_algebra import add, linear, substitute_index
from glassgrad.compiler.lower.loops import Accumulate, ranges_of
from glassgrad.compiler.optimize.targets.matrix_units import WORD, Lines, MatrixUnit
from glassgrad.compiler.render.c.c_source import CFunction
from glassgrad.compiler.render.gpu.fragment_layout import layout_of, registers_of
from glassgrad.compiler.render.matrix_unit_steps import matrix_axes

WORDS = 4            # words loaded by one instruction


class RegisterSteps:
    """Writes the steps of one function."""

    def __init__(self, function: CFunction, unit: MatrixUnit):
        assert unit.loads is not None and unit.text is not None and unit.sums is not None
        self.f, self.unit, self.loads, self.text = function, unit, unit.loads, unit.text
        function.type(WORD)

    def write(self, s: Accumulate) -> None:
        """total += left * right, for all rows of the group: a warp has the unit's rows, and goes over k and columns."""
        unit, ranges = self.unit, self.f.units
        row, column = matrix_axes(s.register, ranges)
        left, right = (factor.src[0] for factor in s.value.src)
        layout = layout_of(unit, row.arg.size)
        sums = [self.f.register(r).text for r in registers_of(s.register, unit, ranges)]
        if right.op is not o.LOAD:
            raise Bug(f"the right factor of {unit.name} is read from memory that the group shares")
        [depth] = [r for r in ranges_of(right.src[1]) if r in ranges and r is not column]
        across = _step(right.src[1], depth) != 1
        lines = self.loads.right_across if across else self.loads.right
        begins = [("right_at", self.begin(right, column, depth, lines, layout.lane))]
        if left.op is o.LOAD:
            begins.append(("left_at", self.begin(left, row, depth, self.loads.left, layout.lane, layout.above)))
        else:
            held = [self.f.register(r).text for r in registers_of(left, unit, ranges)]
        self.f.line("{")
        for name, address in begins:
            self.f.line(f"  const u32 {name} = {address};")
        self.f.line(f"  u32 {', '.join([f'l{i}' for i in range(WORDS)] + [f'r{i}' for i in range(WORDS)])};")
        per_left = unit.rows * unit.depth // unit.threads            # elements of a left factor per thread
        per_sum = unit.rows * unit.columns // unit.threads           # and sums per thread
        for k in range(0, depth.arg.size, unit.depth):
            if left.op is o.LOAD:
                self.fetch("l", f"left_at + {k * _step(left.src[1], depth) * unit.left.itemsize}", False)
            else:
                for i in range(WORDS):
                    low, high = held[k // unit.depth * per_left + 2 * i:][:2]
                    self.f.line(f"  l{i} = (u32){low} | (u32){high} << 16;")
            for at in range(0, column.arg.size, 2 * unit.columns):
                further = at * _step(right.src[1], column) + k * _step(right.src[1], depth)
                self.fetch("r", f"right_at + {further * unit.right.itemsize}", across)
                for half in range(2):
                    first = (at // unit.columns + half) * per_sum
                    self.multiply(sums[first:first + per_sum], half)
        self.f.line("}")

    def begin(self, factor: UOp, position: UOp, depth: UOp, lines: Lines, lane: UOp, first: UOp | None = None) -> str:
        """The address of the line that this thread passes to the first load."""
        memory, at = factor.src
        own_position, own_k = lines(lane)
        own_position = own_position if first is None else add(first, own_position)
        where = substitute_index(at, {position: own_position, depth: own_k}, {})
        self.f.record_reads((where,))
        text = self.f.operand(where).inside
        address = self.f.define("shared_address", "u32", "const void *p", "return (u32)__cvta_generic_to_shared(p);")
        return f"{address}({self.f.base(memory)} + {text})"

    def fetch(self, to: str, address: str, across: bool) -> None:
        text = self.loads.across if across else self.loads.along
        words = ", ".join(f"%{i}" for i in range(WORDS))
        outs = ", ".join(f'"=r"(w{i})' for i in range(WORDS))
        helper = self.f.define(f"fetch_words{'_across' * across}", "void",
                               ", ".join([*[f"u32 &w{i}" for i in range(WORDS)], "u32 at"]),
                               f'asm volatile("{text.format(words=words, address=f"%{WORDS}")}" '
                               f': {outs} : "r"(at) : "memory");')
        self.f.line(f"  {helper}({', '.join(f'{to}{i}' for i in range(WORDS))}, {address});")

    def multiply(self, sums: list[str], half: int) -> None:
        """One instruction; the words for two columns of matrices were loaded together."""
        count, pieces = len(sums), WORDS // 2
        sums_at = ", ".join(f"%{i}" for i in range(count))
        left_at = ", ".join(f"%{count + i}" for i in range(WORDS))
        right_at = ", ".join(f"%{count + WORDS + i}" for i in range(pieces))
        outs = ", ".join(f'"+f"(s{i})' for i in range(count))
        ins = ", ".join([*[f'"r"(l{i})' for i in range(WORDS)], *[f'"r"(r{i})' for i in range(pieces)]])
        takes = [*[f"f32 &s{i}" for i in range(count)], *[f"u32 l{i}" for i in range(WORDS)],
                 *[f"u32 r{i}" for i in range(pieces)]]
        text = self.text.step.format(sums=sums_at, left=left_at, right=right_at)
        helper = self.f.define(f"multiply_{self.unit.name}", "void", ", ".join(takes),
                               f'asm volatile("{text}" : {outs} : {ins});')
        given = [*sums, *[f"l{i}" for i in range(WORDS)], *[f"r{half * pieces + i}" for i in range(pieces)]]
        self.f.line(f"  {helper}({', '.join(given)});")


def _step(at: UOp, along: UOp) -> int:
    """The stride along a counter, in elements."""
    return linear(at)[1].get(along, 0)
