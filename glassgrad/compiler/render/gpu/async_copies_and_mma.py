"""Asynchronous copies and matrix-unit steps in CUDA. In: the statements of a group. Out: lines with inline PTX.

Each round of copies is counted by a barrier in shared memory, one barrier per stage: the first thread says how many
bytes it expects and starts the copies; every thread waits for the barrier's phase of that round. Boxes are described by
tensor maps, which the launch creates on the host (`box_maps`). The names of a unit's instructions are the unit's data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.graph.index_algebra import (add, bounds, build, index, linear, modulo, multiply, size_index,
                                                    substitute_index, values_in)
from glassgrad.compiler.graph.op_arguments import Measure
from glassgrad.compiler.graph.symbolic import Symbol, memory_size
from glassgrad.compiler.lower.group_statements import AwaitCopies, AwaitSteps, Barrier, Box, CopyBoxes, Turn
from glassgrad.compiler.lower.loops import LOOP, Accumulate, Assign, For, Kernel, Store, ranges_of, walk
from glassgrad.compiler.optimize.targets.matrix_units import WORD, MatrixUnit, Swizzled
from glassgrad.compiler.render.c.c_source import CFunction
from glassgrad.compiler.render.gpu.fragment_layout import layout_of, registers_of, unit_of, units_here
from glassgrad.compiler.render.gpu.register_mma import RegisterSteps
from glassgrad.compiler.render.launch_info import BoxMap, formula_of

WARP = 32
WORD_BYTES = 16      # of a line, kept together by the permutation
TURN = 128           # threads that start a step together
LEFT_WORDS = 4       # per thread, for one instruction whose left factor is in registers

PRELUDE = r"""
struct __align__(64) TensorMap { char bytes[128]; };
static __device__ __forceinline__ unsigned shared_at(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
static __device__ __forceinline__ void rounds_begin(unsigned bar) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar) : "memory");
}
static __device__ __forceinline__ void rounds_visible() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
static __device__ __forceinline__ void round_expect(unsigned bar, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void round_wait(unsigned bar, unsigned parity) {
  unsigned done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(bar), "r"(parity) : "memory");
}
// For groups of a cluster, which run at once. Not .release.cluster: that would be a memory barrier of the whole device.
static __device__ __forceinline__ void clusters_begin(unsigned bar, unsigned groups) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(groups) : "memory");
}
static __device__ __forceinline__ void cluster_arrive(unsigned bar, unsigned group) {
  asm volatile("{ .reg .b32 far; mapa.shared::cluster.u32 far, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [far]; }"
               :: "r"(bar), "r"(group) : "memory");
}
static __device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}
// Whether this is the first thread of the last warp to come; it counts for the next time then.
static __device__ __forceinline__ bool comes_last(unsigned arrived, unsigned warps, unsigned thread) {
  unsigned before = 0;
  if (thread % 32 == 0)
    asm volatile("atom.shared.acq_rel.cta.inc.u32 %0, [%1], %2;"
                 : "=r"(before) : "r"(arrived), "r"(warps - 1) : "memory");
  return thread % 32 == 0 && before == warps - 1;
}
// Turns in a ring of so many times 128 threads: those of a number have a barrier, at which the ones before them arrive.
static __device__ __forceinline__ void turn_begins(unsigned number, unsigned count) {
  if (count > 1) asm volatile("bar.sync %0, 256;" :: "r"(1 + number) : "memory");
}
static __device__ __forceinline__ void turn_ends(unsigned number, unsigned count) {
  if (count > 1) asm volatile("bar.arrive %0, 256;" :: "r"(1 + (number + 1) % count) : "memory");
}
// A matrix in shared memory as the unit is told of it: where it is, two strides in bytes, the permutation of its lines.
static __device__ __forceinline__ unsigned long long matrix_at(unsigned address, unsigned leading, unsigned stride,
                                                               unsigned long long code) {
  return (unsigned long long)((address & 0x3FFFF) >> 4) | (unsigned long long)(leading >> 4) << 16
    | (unsigned long long)(stride >> 4) << 32 | code << 62;
}
""".strip()


def has_copies(kernel: Kernel) -> bool:
    return any(isinstance(s, CopyBoxes) for phase in kernel.phases for s in walk(phase.body))


def box_maps(kernel: Kernel, slots: dict[UOp, int]) -> list[BoxMap]:
    """The tensor maps of a kernel, without repetitions."""
    boxes = [share_of(box, s.cluster) for phase in kernel.phases for s in walk(phase.body) if isinstance(s, CopyBoxes)
             for box in s.boxes]
    values = _values(kernel)
    return list(dict.fromkeys(_box_map(box, slots, values) for box in boxes))


def _values(kernel: Kernel) -> dict[Symbol, UOp]:
    return {p.arg.symbol: p for p in kernel.params if isinstance(p.arg, Measure)}


def share_of(box: Box, cluster: UOp | None) -> Box:
    """The part of a box that one group loads: all of it; some lines, if all groups of a cluster need it."""
    if cluster is None or cluster in frozenset().union(*[ranges_of(e) for e in box.first]):
        return box
    size, lines = cluster.arg.size, box.counts[1]
    if lines % (size * Swizzled().repeats):
        raise Bug(f"{lines} lines cannot be brought by {size} groups: they are permuted {Swizzled().repeats} at a time")
    part, rank = lines // size, multiply(cluster, lines // size)
    return box._replace(counts=(box.counts[0], part, *box.counts[2:]),
                        first=(box.first[0], add(box.first[1], rank), *box.first[2:]),
                        to=add(box.to, multiply(rank, box.counts[0])))


def _box_map(box: Box, slots: dict[UOp, int], values: dict[Symbol, UOp]) -> BoxMap:
    source, size = box.source, box.source.dtype.itemsize
    elements = source.arg.size if source.op is o.LOCAL else math.prod(map(memory_size, source.arg.shape))
    return BoxMap(source.arg.slot if source.op is o.PARAM else slots[source], box.offset * size, source.dtype.name,
                  tuple([_length(index(a.size) if a.stop is None else a.stop) for a in box.axes]),
                  tuple([a.stride * size for a in box.axes[1:]]), box.counts, Swizzled().copy_code,
                  _length(size_index(elements * size, values)))


def _length(expression: UOp) -> Any:
    """Convert a length to an int, or to a formula over run-time values."""
    if expression.op is o.CONST:
        return int(expression.arg)
    if not values_in(expression):
        raise Bug(f"a matrix that boxes are copied from is as long as {expression}: no formula of run-time values")
    return formula_of(expression)


@dataclass
class SharedMatrix:
    """A factor in group-shared memory: lines of equal length, along k or across it."""
    memory: UOp
    begin: UOp              # the index of its first element
    across: bool
    next_line: int          # bytes from one line of positions to the next, if lines go across k
    index: UOp              # the index of its elements at the first position
    depth: UOp

    @staticmethod
    def of(read: UOp, position: UOp, depth: UOp, lines: Swizzled) -> SharedMatrix:
        memory, at = read.src
        size, line = memory.dtype.itemsize, lines.line_bytes // memory.dtype.itemsize
        first = substitute_index(at, {position: index(0)}, {})
        begin = substitute_index(first, {depth: index(0)}, {})
        step = _distance(first, depth, 1, begin)
        further = depth.arg.size * line                # not used if there is only one line of positions
        if position.arg.size > line:
            further = _distance(at, position, line, begin, {depth: index(0)})
        if step not in (1, line):
            raise Bug(f"a matrix in {memory.arg.name} does not lie in lines, along k or across it")
        return SharedMatrix(memory, begin, step != 1, further * size, first, depth)

    def bytes_to(self, k: int) -> int:
        """The distance in bytes from the first k to another one."""
        return _distance(self.index, self.depth, k, self.begin) * self.memory.dtype.itemsize


def _distance(at: UOp, counter_: UOp, value: int, begin: UOp, others: dict[UOp, UOp] | None = None) -> int:
    """The distance of an element from the first one, in elements."""
    there = substitute_index(at, {**(others or {}), counter_: index(value)}, {})
    constant, terms = linear(add(there, multiply(begin, -1)))
    if terms:
        raise Bug("the elements of a matrix do not lie at fixed distances")
    return constant


class Asynchronous:
    """Writes the asynchronous statements of one function."""

    def __init__(self, function: CFunction, kernel: Kernel, slots: dict[UOp, int], wait: str, threads: int):
        self.f, self.slots, self.maps, self.wait = function, slots, box_maps(kernel, slots), wait
        self.values = _values(kernel)
        self.warps = threads // WARP
        self.several = len({s.register for s in walk(function.body) if isinstance(s, Accumulate)
                            and function.is_matrix(s.register)}) > 1          # matrices of sums of the unit
        self.stages = max([s.stages for s in walk(function.body) if isinstance(s, AwaitCopies)], default=0)
        self.copied = {s.memory for s in walk(function.body) if isinstance(s, CopyBoxes)}
        self.permuted = self.copied - {s.memory for s in walk(function.body) if isinstance(s, Store)}
        shared = [s.cluster for s in walk(function.body) if isinstance(s, CopyBoxes) and s.cluster is not None]
        self.cluster = int(shared[0].arg.size) if shared else 1

    # -- beginning and end of a function -----------------------------------------------------------------------
    def parameters(self) -> list[str]:
        return [f"const __grid_constant__ TensorMap map{i}" for i in range(len(self.maps))]

    def begin(self) -> list[str]:
        if not self.stages:
            return []
        by_last = any(isinstance(s, CopyBoxes) and s.by_last for s in walk(self.f.body))
        each = "rounds_begin(shared_at(rounds + s));" + " arrived[s] = 0;" * by_last
        if self.cluster > 1:
            each += f" clusters_begin(shared_at(freed + s), {self.cluster});"
        first = f"if (thread == 0) {{ for (int s = 0; s < {self.stages}; s++) {{ {each} }} rounds_visible(); }}"
        return [f"__shared__ u64 rounds[{self.stages}];",
                *([f"__shared__ unsigned arrived[{self.stages}];"] if by_last else []),
                *([f"__shared__ u64 freed[{self.stages}];"] if self.cluster > 1 else []), first, self.wait, *self.end(),
                "const unsigned warps = __shfl_sync(0xffffffffu, (unsigned)thread / 128, 0);", *self.first_turn()]

    def first_turn(self) -> list[str]:
        """The last threads of the ring end a turn, so that the first ones can begin."""
        count = self.warps * WARP // TURN
        turns = any(isinstance(s, Turn) for s in walk(self.f.body))
        return [f"if (warps == {count - 1}) turn_ends(warps, {count});"] if turns else []

    def end(self) -> list[str]:
        """The end of a function: no group of a cluster exits while others may still write to its memory."""
        return ["cluster_wait();"] if self.cluster > 1 else []

    # -- statements ----------------------------------------------------------------------------------------------
    def write(self, s: CopyBoxes | AwaitCopies | AwaitSteps | Barrier | Turn) -> None:
        line = self.f.line
        if isinstance(s, CopyBoxes):
            self.copy(s)
        elif isinstance(s, AwaitCopies):
            line(f"round_wait(shared_at(rounds + {self.stage(s.round)}), {self.parity(s.round)});")
        elif isinstance(s, Barrier):
            if s.copies:
                line('asm volatile("fence.proxy.async.shared::cta;" ::: "memory");')
            line(self.wait)
        elif isinstance(s, Turn):
            line(f"turn_{'ends' if s.ends else 'begins'}(warps, {self.warps * WARP // TURN});")
        else:
            self.await_steps(s)

    def copy(self, s: CopyBoxes) -> None:
        size, base = s.memory.dtype.itemsize, self.f.base(s.memory)
        bytes_ = sum(_count(box) for box in s.boxes) * size
        lines = [f"const unsigned round = shared_at(rounds + {self.stage(s.round)});",
                 f"round_expect(round, {bytes_});"]
        if s.cluster is not None:
            freed = f"shared_at(freed + {self.stage(s.round)})"
            lines += [f"cluster_arrive({freed}, {group});" for group in range(self.cluster)]
            lines.append(f"round_wait({freed}, {self.parity(s.round)});")
        for whole in s.boxes:
            box = share_of(whole, s.cluster)
            name = self.box_copy(len(box.axes), 1 if box is whole else self.cluster)
            at = ", ".join(f"(int)({self.value(e)})" for e in box.first)
            which = self.maps.index(_box_map(box, self.slots, self.values))
            lines.append(f"{name}(shared_at({base} + {self.value(box.to)}), &map{which}, round, {at});")
        if s.by_last:
            self.f.line(f"if (comes_last(shared_at(arrived + {self.stage(s.round)}), {self.warps}, thread)) {{")
        else:
            self.f.line("if (thread == 0) {")
        for text in lines:
            self.f.line("  " + text)
        self.f.line("}")

    def box_copy(self, rank: int, groups: int) -> str:
        """The helper that starts the copy of a box, to the same address in each of `groups` groups."""
        takes = ", ".join(f"int x{i}" for i in range(rank))
        places = ", ".join(f"%{3 + i}" for i in range(rank))
        given = ", ".join(f'"r"(x{i})' for i in range(rank))
        to_all, mask, name = "", "", f"copy_box_{rank}"
        if groups > 1:
            to_all, mask, name = ".multicast::cluster", f", %{3 + rank}", f"copy_box_{rank}_to_{groups}"
            given += f', "h"((unsigned short){(1 << groups) - 1})'
        return self.f.define(
            name, "void", f"unsigned to, const TensorMap *map, unsigned round, {takes}",
            f'asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes'
            f'{to_all} [%0], [%1, {{{places}}}], [%2]{mask};" :: "r"(to), "l"(map), "r"(round), {given} : "memory");')

    def await_steps(self, s: AwaitSteps) -> None:
        """Write the wait. Registers that are computed before it, or used only after it, become operands of inline
        assembly there, so that the compiler does not move these computations across it."""
        steps = [a for a in walk(self.f.body) if isinstance(a, Accumulate) and self.f.is_matrix(a.register)]
        unit = self.unit_of(steps[0])
        assert unit.text is not None
        ready = s.ready or (() if s.pending else tuple(dict.fromkeys(a.register for a in steps)))
        self.name(s.made, unit)
        self.f.line(f'asm volatile("{unit.text.wait.format(pending=s.pending)}" ::: "memory");')
        self.name([*ready, *s.made], unit)

    def name(self, matrices: Iterable[UOp], unit: MatrixUnit) -> None:
        for matrix in matrices:
            for register in registers_of(matrix, unit, self.f.units):
                self.f.line(f'asm volatile("" : "+{_letter(unit)}"({self.f.register(register).text}) :: "memory");')

    # -- steps ---------------------------------------------------------------------------------------------------
    def unit_of(self, s: Accumulate) -> MatrixUnit:
        return unit_of(s, self.f.units, units_here(self.f.body, self.f.matrix_units))

    def step(self, s: Accumulate) -> None:
        """Write one step: as many instructions as its part of k takes, closed by a commit."""
        unit = self.unit_of(s)
        if unit.loads is not None:
            RegisterSteps(self.f, unit).write(s)
            return
        text, lines = unit.text, unit.lines
        if text is None or lines is None or s.value.op is not o.MUL:
            raise Bug(f"the steps of {unit.name} are not written by groups of threads")
        row, column = s.register.src
        [depth] = [r for r in ranges_of(s.value) if r in self.f.units and r not in (row, column)]
        left, right = (factor.src[0] if factor.op is o.CAST else factor for factor in s.value.src)
        names = [self.f.register(r).text for r in registers_of(s.register, unit, self.f.units)]
        outs, count = ", ".join(f'"+{_letter(unit)}"({name})' for name in names), len(names)
        sums = ", ".join(f"%{i}" for i in range(count))
        right_matrix = SharedMatrix.of(right, column, depth, lines)
        described = [f"  const u64 right = {self.descriptor(right_matrix, lines)};"]
        if left.op is o.LOAD:
            left_matrix = SharedMatrix.of(left, row, depth, lines)
        by_words = left.op is not o.LOAD or left_matrix.across and unit.left_words is not None
        if not by_words:
            above = f" + warps * {unit.rows * lines.line_bytes}"
            described.append(f"  u64 left = {self.descriptor(left_matrix, lines, above)};")
            if self.several:                        # otherwise a loop keeps one for each of its steps, in registers
                described.append('  asm volatile("" : "+l"(left));')
        self.f.line("{")
        for line in described:
            self.f.line(line)
        if not by_words:
            step = text.step.format(sums=sums, left=f"%{count}", right=f"%{count + 1}",
                                    left_across=int(left_matrix.across), right_across=int(right_matrix.across))
        else:
            words = self.read_words(left, row, depth, unit) if left.op is o.LOAD else self.held_words(left, unit)
            step = text.held.format(sums=sums, left=", ".join(f"%{count + i}" for i in range(LEFT_WORDS)),
                                    right=f"%{count + LEFT_WORDS}", right_across=int(right_matrix.across))
        self.f.line(f'  asm volatile("{text.before}" ::: "memory");')
        for number, at in enumerate(range(0, depth.arg.size, unit.depth)):
            if not by_words:
                ins = [f'"l"(left + {left_matrix.bytes_to(at) // 16})']
            else:
                ins = [f'"r"({word})' for word in words[number * LEFT_WORDS:][:LEFT_WORDS]]
            ins.append(f'"l"(right + {right_matrix.bytes_to(at) // 16})')
            self.f.line(f'  asm volatile("{step}" : {outs} : {", ".join(ins)});')
        self.f.line(f'  asm volatile("{text.commit}" ::: "memory");')
        self.f.line("}")

    def read_words(self, read: UOp, row: UOp, depth: UOp, unit: MatrixUnit) -> list[str]:
        """Load the elements of a left factor whose lines go across k, one word each, from group-shared memory."""
        memory, kind, layout = read.src[0], self.f.type(WORD), layout_of(unit, row.arg.size)
        assert unit.left_words is not None
        words: list[str] = []
        for first in range(0, depth.arg.size, unit.depth):
            for number in range(LEFT_WORDS):
                at_row = add(layout.above, unit.left_words.row(layout.lane, number))
                at_k = add(index(first), unit.left_words.column(layout.lane, number))
                spot = self.spot(memory, substitute_index(read.src[1], {row: at_row, depth: at_k}, {}))
                words.append(f"left{len(words)}")
                self.f.line(f"  const {kind} {words[-1]} = *(const {kind} *)({self.f.base(memory)} + {spot});")
        return words

    def held_words(self, matrix: UOp, unit: MatrixUnit) -> list[str]:
        """Pack a left factor in registers into words of two elements. If an innermost loop assigns to it, inline
        assembly makes the compiler pack them before the steps begin."""
        loops = [s for s in walk(self.f.body) if isinstance(s, For) and s.kind == LOOP]
        inner = [s for loop in loops if not any(other in loops for other in walk(loop.body)) for s in walk(loop.body)]
        changes = any(isinstance(s, Assign) and s.register.arg == matrix.arg for s in inner)
        elements = [self.f.register(r).text for r in registers_of(matrix, unit, self.f.units)]
        words, kind = [f"left{i}" for i in range(len(elements) // 2)], self.f.type(WORD)
        for word, low, high in zip(words, elements[::2], elements[1::2]):
            self.f.line(f"  {kind} {word} = ({kind}){low} | ({kind}){high} << 16;")
            if changes:
                self.f.line(f'  asm volatile("" : "+r"({word}) :: "memory");')
        return words

    def descriptor(self, matrix: SharedMatrix, lines: Swizzled, further: str = "") -> str:
        """The unit's descriptor of a matrix: its address and strides. A block is 8 lines along k, or 8 values of k
        across lines; only in the latter case is the distance to the next line of positions used (otherwise 16)."""
        block = 8 * lines.line_bytes
        address = f"shared_at({self.f.base(matrix.memory)} + {self.value(matrix.begin)}){further}"
        return f"matrix_at({address}, {matrix.next_line if matrix.across else 16}, {block}, {lines.unit_code})"

    # -- values --------------------------------------------------------------------------------------------------
    def value(self, node: UOp) -> str:
        self.f.record_reads((node,))
        return self.f.operand(node).inside

    def spot(self, memory: UOp, at: UOp) -> str:
        """The index of an element that threads read themselves, in lines that copies have permuted."""
        lines, size = Swizzled(), memory.dtype.itemsize
        line = lines.line_bytes // size
        constant, terms = linear(at)
        inside = build(constant % line, {atom: k for atom, k in terms.items() if k % line})
        if bounds(inside)[0] < 0 or bounds(inside)[1] >= line:
            raise Bug(f"an index of {memory.arg.name} does not say which line an element lies in")
        begin = self.value(build(constant - constant % line, {atom: k for atom, k in terms.items() if not k % line}))
        piece = f"(unsigned)({begin}) / {line} % {lines.repeats} * {WORD_BYTES // size}"
        return f"{begin} + (({self.value(inside)}) ^ {piece})"

    def parity(self, round_: UOp) -> str:
        """The parity of the barrier's phase for a round, in the round's stage."""
        return f"(unsigned)({self.value(round_)} / {self.stages}) & 1"

    def stage(self, round_: UOp) -> str:
        return self.value(modulo(round_, self.stages))


def _letter(unit: MatrixUnit) -> str:
    """The inline-assembly constraint for a register of a sum."""
    return "f" if unit.total.kind == "f" else "r"


def _count(box: Box) -> int:
    total = 1
    for n in box.counts:
        total *= n
    return total
