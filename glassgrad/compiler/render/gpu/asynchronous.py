"""Copies and steps that run beside the threads, as CUDA. In: the statements of a group. Out: lines with inline PTX.

A round of copies is counted by a barrier in shared memory, one for each stage: the first thread says how many bytes it
expects and starts the copies; every thread waits for the phase that the round is. Boxes are described by tensor maps,
which the launch makes on the host (`box_maps`). What a matrix unit is called is its own data.
"""

from __future__ import annotations

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.index_algebra import add, index, linear, modulo, multiply, substitute_index
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Accumulate, AwaitCopies, AwaitSteps, Barrier, Box, CopyBoxes, Kernel, walk
from glassgrad.compiler.optimize.targets.matrix_units import MatrixUnit, Swizzled
from glassgrad.compiler.render.c.c_source import CFunction
from glassgrad.compiler.render.gpu.fragments import registers_of, unit_of, units_here
from glassgrad.compiler.render.gpu.register_steps import RegisterSteps
from glassgrad.compiler.render.launch import BoxMap

__all__ = ["PRELUDE", "Asynchronous", "box_maps", "has_copies"]

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
    """The tensor maps of a kernel, each once."""
    boxes = [box for phase in kernel.phases for s in walk(phase.body) if isinstance(s, CopyBoxes) for box in s.boxes]
    return list(dict.fromkeys(_box_map(box, slots) for box in boxes))


def _box_map(box: Box, slots: dict[UOp, int]) -> BoxMap:
    source, size = box.source, box.source.dtype.itemsize
    elements = source.arg.size if source.op is o.LOCAL else source.size
    return BoxMap(source.arg.slot if source.op is o.PARAM else slots[source], box.offset * size, source.dtype.name,
                  tuple([a.size for a in box.axes]), tuple([a.stride * size for a in box.axes[1:]]), box.counts,
                  Swizzled().copy_code, elements * size)


class Asynchronous:
    """Writes the statements of one function."""

    def __init__(self, function: CFunction, kernel: Kernel, slots: dict[UOp, int], wait: str):
        self.f, self.slots, self.maps, self.wait = function, slots, box_maps(kernel, slots), wait
        self.stages = max([s.stages for s in walk(function.body) if isinstance(s, AwaitCopies)], default=0)

    # -- what a function begins with ---------------------------------------------------------------------------
    def parameters(self) -> list[str]:
        return [f"const __grid_constant__ TensorMap map{i}" for i in range(len(self.maps))]

    def begin(self) -> list[str]:
        if not self.stages:
            return []
        first = f"if (thread == 0) {{ for (int s = 0; s < {self.stages}; s++) rounds_begin(shared_at(rounds + s)); " \
                "rounds_visible(); }"
        return [f"__shared__ u64 rounds[{self.stages}];", first, self.wait,
                "const unsigned warps = __shfl_sync(0xffffffffu, (unsigned)thread / 128, 0);"]

    # -- statements ----------------------------------------------------------------------------------------------
    def write(self, s: CopyBoxes | AwaitCopies | AwaitSteps | Barrier) -> None:
        line = self.f.line
        if isinstance(s, CopyBoxes):
            self.copy(s)
        elif isinstance(s, AwaitCopies):
            parity = f"(unsigned)({self.value(s.round)} / {s.stages}) & 1"
            line(f"round_wait(shared_at(rounds + {self.stage(s.round)}), {parity});")
        elif isinstance(s, Barrier):
            line(self.wait)
        else:
            self.await_steps(s.pending)

    def copy(self, s: CopyBoxes) -> None:
        size, base = s.memory.dtype.itemsize, self.f.base(s.memory)
        bytes_ = sum(_count(box) for box in s.boxes) * size
        lines = [f"const unsigned round = shared_at(rounds + {self.stage(s.round)});",
                 f"round_expect(round, {bytes_});"]
        for box in s.boxes:
            rank = len(box.axes)
            name = self.box_copy(rank)
            at = ", ".join(f"(int)({self.value(e)})" for e in box.first)
            which = self.maps.index(_box_map(box, self.slots))
            lines.append(f"{name}(shared_at({base} + {self.value(box.to)}), &map{which}, round, {at});")
        self.f.line("if (thread == 0) {")
        for text in lines:
            self.f.line("  " + text)
        self.f.line("}")

    def box_copy(self, rank: int) -> str:
        takes = ", ".join(f"int x{i}" for i in range(rank))
        places = ", ".join(f"%{3 + i}" for i in range(rank))
        given = ", ".join(f'"r"(x{i})' for i in range(rank))
        return self.f.define(
            f"copy_box_{rank}", "void", f"unsigned to, const TensorMap *map, unsigned round, {takes}",
            f'asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes '
            f'[%0], [%1, {{{places}}}], [%2];" :: "r"(to), "l"(map), "r"(round), {given} : "memory");')

    def await_steps(self, pending: int) -> None:
        """The wait; where all steps are over, their sums are named, so that no use of them moves up before it."""
        found = [s for s in walk(self.f.body) if isinstance(s, Accumulate) and self.f.is_matrix(s.register)]
        unit = self.unit_of(found[0])
        assert unit.text is not None
        self.f.line(f'asm volatile("{unit.text.wait.format(pending=pending)}" ::: "memory");')
        if not pending:
            names = [self.f.register(r).text for r in registers_of(found[0].register, unit, self.f.units)]
            for name in names:
                self.f.line(f'asm volatile("" : "+{_letter(unit)}"({name}) :: "memory");')

    # -- steps ---------------------------------------------------------------------------------------------------
    def unit_of(self, s: Accumulate) -> MatrixUnit:
        return unit_of(s, self.f.units, units_here(self.f.body, self.f.matrix_units))

    def step(self, s: Accumulate) -> None:
        """One step: as many instructions as its part of k takes, closed by a commit."""
        unit = self.unit_of(s)
        if unit.loads is not None:
            RegisterSteps(self.f, unit).write(s)
            return
        text, lines = unit.text, unit.lines
        if text is None or lines is None or s.value.op is not o.MUL:
            raise Bug(f"the steps of {unit.name} are not written by groups of threads")
        depth = [r for r in self.f.units if r not in s.register.src][0]
        row, column = s.register.src
        left, left_across = self.matrix(s.value.src[0], row, depth, lines)
        right, right_across = self.matrix(s.value.src[1], column, depth, lines)
        names = [self.f.register(r).text for r in registers_of(s.register, unit, self.f.units)]
        outs = ", ".join(f'"+{_letter(unit)}"({name})' for name in names)
        sums, count = ", ".join(f"%{i}" for i in range(len(names))), len(names)
        step = text.step.format(sums=sums, left=f"%{count}", right=f"%{count + 1}", left_across=int(left_across),
                                right_across=int(right_across))
        above = unit.rows * lines.line_bytes
        self.f.line("{")
        described = self.descriptor(f"shared_at({left}) + warps * {above}", left_across, lines)
        self.f.line(f"  const u64 left = {described};")
        self.f.line(f"  const u64 right = {self.descriptor(f'shared_at({right})', right_across, lines)};")
        self.f.line(f'  asm volatile("{text.before}" ::: "memory");')
        for at in range(0, depth.arg.size, unit.depth):
            ins = ", ".join(f'"l"({name} + {self.further(at, across, lines, unit.left.itemsize) // 16})'
                            for name, across in (("left", left_across), ("right", right_across)))
            self.f.line(f'  asm volatile("{step}" : {outs} : {ins});')
        self.f.line(f'  asm volatile("{text.commit}" ::: "memory");')
        self.f.line("}")

    def matrix(self, factor: UOp, position: UOp, depth: UOp, lines: Swizzled) -> tuple[str, bool]:
        """Where a factor's matrix begins, and whether its lines lie across k."""
        [read] = [n for n in toposort([factor]) if n.op is o.LOAD]
        memory, at = read.src[0], read.src[1]
        begin = substitute_index(at, {position: index(0), depth: index(0)}, {})
        there = substitute_index(at, {position: index(0), depth: index(1)}, {})
        distance, terms = linear(add(there, multiply(begin, -1)))
        line = lines.line_bytes // memory.dtype.itemsize
        if terms or distance not in (1, line):
            raise Bug(f"a matrix in {memory.arg.name} does not lie in lines, along k or across it")
        return f"({self.f.base(memory)} + {self.value(begin)})", distance != 1

    @staticmethod
    def descriptor(address: str, across: bool, lines: Swizzled) -> str:
        """Along k, 8 lines are a block, and 16 bytes mean nothing; across k, so are 8 k, and the next line of positions
        begins after a whole step of k."""
        block = 8 * lines.line_bytes
        return f"matrix_at({address}, {8 * block if across else 16}, {block}, {lines.unit_code})"

    @staticmethod
    def further(k: int, across: bool, lines: Swizzled, itemsize: int) -> int:
        """Bytes from the first k of a line to another one."""
        return k * (lines.line_bytes if across else itemsize)

    # -- values --------------------------------------------------------------------------------------------------
    def value(self, node: UOp) -> str:
        self.f.note((node,))
        return self.f.operand(node).inside

    def stage(self, round_: UOp) -> str:
        return self.value(modulo(round_, self.stages))


def _letter(unit: MatrixUnit) -> str:
    """How inline assembly calls a register of a sum."""
    return "f" if unit.total.kind == "f" else "r"


def _count(box: Box) -> int:
    total = 1
    for n in box.counts:
        total *= n
    return total
