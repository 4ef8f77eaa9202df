"""Render a kernel for a GPU. In: a `Kernel` whose vectors are very wide. Out: source, one function per phase.

A thread group is a vector: LANE ranges count threads, TASK ranges count groups, and a value with lanes is a variable
that every thread has. So the tree that a CPU runs with 16 lanes runs on a GPU with 256. This file writes the
differences:

    a value without lanes    every thread computes it
    a store without lanes    the first thread executes it
    fewer lanes than threads the other threads neither read nor write
    FOLD over lanes          threads exchange their values
    LOCAL memory             belongs to the group; threads wait for each other before others read it (barriers.py)
"""

from __future__ import annotations

import re

from glassgrad.compiler.graph import UOp, index_algebra as ix, ops as o, toposort
from glassgrad.compiler.graph.dtype import DType, dtypes, wrapped
from glassgrad.compiler.lower.group_statements import AwaitCopies, AwaitSteps, Barrier, CopyBoxes, Turn
from glassgrad.compiler.lower.loops import (LOOP, Accumulate, Assign, For, Kernel, Statement, Store, expressions,
                                            ranges_of, shared_locals, walk)
from glassgrad.compiler.optimize.targets import gpu_costs as gpu
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.render.c.c_ops import CValue, Definitions
from glassgrad.compiler.render.c.c_source import CFunction
from glassgrad.compiler.render.gpu.async_copies_and_mma import PRELUDE, Asynchronous
from glassgrad.compiler.render.gpu.counter_width import fit_32_bits, of_counters, sources_of
from glassgrad.compiler.render.gpu.dialects import Dialect
from glassgrad.compiler.render.gpu.fragment_layout import spread
from glassgrad.compiler.render.gpu.gpu_launch import gpu_launch, group_threads, scratch_is_global
from glassgrad.compiler.render.gpu.gpu_ops import GpuArithmetic
from glassgrad.compiler.render.gpu.group_threads import GroupThreads
from glassgrad.compiler.render.gpu.skipped_rounding import rounded_divisions
from glassgrad.compiler.render.gpu.wide_access import (MOST_BYTES, contiguous_stores, load_wide, read_once,
                                                       runs_of_reads, store_wide)
from glassgrad.compiler.render.launch_info import LaunchInfo, LocalLayout, launch_info, slot_of
from glassgrad.compiler.render.matrix_unit_steps import matrix_axes
from glassgrad.compiler.render.unroll_and_jam import Jammed
from glassgrad.compiler.render.value_placement import Flow

UNROLL, SHORT, UNIT_STEPS = 8, 16, 4     # unroll factors: of long loops, of short ones, of a unit's steps
FEW_SUMS, LONG = 2, 32      # loops with at most FEW_SUMS sums are unrolled by LONG
FEW_STORES = 24             # in a body with at most this many statements, registers are left for wide stores
AT_ONCE = 2                 # groups per processor for which registers must suffice
MOST_THREADS = 1024         # threads on a processor at once: with more, each has too few registers
LINES_ALIGNED = 1024        # bytes: the alignment of memory whose lines copies permute


def render_gpu(kernel: Kernel, target: Target, dialect: Dialect, phases: list[Jammed]) -> str:
    """Render all phases of a kernel."""
    definitions, info, launch = Definitions(), launch_info(kernel), gpu_launch(kernel, target.group_bytes).phases
    functions = [GpuFunction(kernel, p, info, target, spread(jammed, target.units), definitions, dialect,
                             launch[p][3]).text() for p, jammed in enumerate(phases)]
    return "\n".join([*dialect.prelude, *definitions.lines, "", "\n\n".join(functions), ""])


class GpuFunction(GpuArithmetic, GroupThreads):
    """One phase as one function, which every thread of every group runs."""
    def __init__(self, kernel: Kernel, phase: int, info: LaunchInfo, target: Target, jammed: Jammed,
                 definitions: Definitions, dialect: Dialect, group_bytes: int):
        places, (name, tasks) = LocalLayout(kernel, phase), info.phases[phase]
        self.dialect, self.kernel, self.task_count, self.group_bytes = dialect, kernel, tasks, group_bytes
        self.scratch_bytes = info.scratch_bytes
        self.scratch_global = scratch_is_global(kernel, info.scratch_bytes, target.group_bytes)
        self.spelled = {**CFunction.spelled, **dict(dialect.types)}
        self.inline, self.spelling, self.language = dialect.helper, dialect.spelling, dialect.name
        self.own_reads = own_reads(jammed.body, frozenset(jammed.lanes))
        self.runs = runs_of_reads(jammed.body) if dialect.wide_access else {}
        self.finished = {s.register for s in walk(jammed.body) if isinstance(s, Assign)} - \
            {s.register for s in walk(jammed.body) if isinstance(s, Accumulate)}
        self.native_floats = target.small_floats(dialect.name)  # if a chip has these types, it has their instructions
        self.rounded = rounded_divisions(jammed.body, self.native_floats) if dialect.quotient else set()
        self.handed_on = {s.range for s in walk(jammed.body) if isinstance(s, For) and s.kind == LOOP and any(
            isinstance(a, Assign) and a.value.op is o.REGISTER for a in s.body)}
        self.wide_memories: dict[UOp, None] = {}         # memories of which up to 16 bytes are moved at once
        self.folds: set[int] = set()                     # sizes in bytes of the values that threads exchange
        super().__init__(places, target, jammed, name, definitions, group_threads(jammed.lanes))
        self.once = read_once(jammed.body, tasks)
        few = tasks < 1 << 31
        self.short_values = few and fit_32_bits(jammed.body, values=True)
        short = self.short_values or few and fit_32_bits(jammed.body, values=False)
        self.counts_in = self.type(dtypes.int32 if short else dtypes.int64)
        self.thread, self.wait = dialect.thread_name, dialect.wait
        self.taken |= {self.thread, "area", "arrived", "rounds", "warps", "left", "right", "round", "aligned"}
        self.beside = Asynchronous(self, kernel, places.slots, dialect.wait, self.threads)
        if self.beside.maps:
            definitions.helpers.setdefault("asynchronous", PRELUDE)

    # -- the function ----------------------------------------------------------------------------------------
    def text(self) -> str:
        self.type(dtypes.int64), self.type(dtypes.uint64)
        d, in_global = self.dialect, self.scratch_global
        self.take_apart_task()
        self.run(self.body)
        lines = self.scopes[0].lines
        if in_global:
            counted = f"{self.counts_in} task = {d.group}; task < {self.task_count}; task += {d.groups}"
            head, foot = [f"for ({counted}) {{"], ["}"]
            lines = [*["  " + line for line in lines], f"  {d.wait}"]
        else:
            head, foot = [f"{self.counts_in} task = {d.group};"], []
        declared, parameters = self.declared(), self._parameters(in_global)
        scratch = self._scratch_lines(in_global)
        body = [f"{self.counts_in} {self.thread} = {d.thread};", *scratch, *self.beside.begin(), *self.pointers,
                *declared, *head, *lines, *foot, *self.beside.end()]
        at_once = AT_ONCE if self.sums() or self.threads > gpu.RESIDENT // AT_ONCE else gpu.RESIDENT // self.threads
        at_once = min(at_once, gpu.SHARED_BYTES // max(self.group_bytes, 1)) if self.fits_registers(at_once) else 1
        declaration = d.kernel.format(threads=self.threads, at_once=at_once)
        if self.beside.cluster > 1:
            declaration += f" __cluster_dims__({self.beside.cluster}, 1, 1)"
        twice = bool(self.wide_memories) and not self.beside.maps and not self.units
        if self.wide_memories and not twice:             # registers are short, or arguments cannot be passed on
            body.insert(0, f"const bool aligned = {self._aligned()};")
        if not twice:
            return "\n".join([f"{declaration} {self.name}({', '.join(parameters)}) {{",
                              *["  " + line for line in body], "}"])
        given = ", ".join([re.findall(r"\w+", p)[-1] for p in parameters])
        return "\n".join([f"{d.helper} void {self.name}_at({', '.join(parameters)}, const bool aligned) {{",
                          *["  " + line for line in body], "}",
                          f"{declaration} {self.name}({', '.join(parameters)}) {{",
                          f"  if ({self._aligned()}) {self.name}_at({given}, true);",
                          f"  else {self.name}_at({given}, false);", "}"])

    def _aligned(self) -> str:
        """The condition that all memory with 16-byte accesses is 16-byte aligned. It is tested once per kernel, which
        is written for both cases: inside a loop, even loads that are not executed cost time."""
        bases = [f"data{m.arg.slot}" if m.op is o.PARAM else f"shared{self.slots[m] - len(self.kernel.params)}"
                 if m in self.slots else "all_scratch" for m in self.wide_memories]
        any_bit = " | ".join(f"(unsigned long long){name}" for name in dict.fromkeys(bases))
        return f"({any_bit}) % {MOST_BYTES} == 0"

    def sums(self) -> set[UOp]:
        """The matrices in registers that a unit adds to."""
        return {s.register for s in walk(self.body) if isinstance(s, Accumulate) and self.is_matrix(s.register)}

    def fits_registers(self, groups: int) -> bool:
        """Whether `groups` groups on a processor leave each thread the registers that its matrices need."""
        sums = self.sums()
        if groups * self.threads > MOST_THREADS:
            return False
        other = gpu.LEAST_REGISTERS if self.beside.stages and len(sums) == 1 else gpu.OTHER_REGISTERS
        return not sums or self.matrix_registers(groups, other) <= gpu.REGISTERS

    def matrix_registers(self, groups: int, other: int = gpu.OTHER_REGISTERS) -> int:
        """The registers that matrices, and everything else, take in `groups` groups together."""
        axes = [matrix_axes(m, self.units) for m in self.sums()]
        return groups * (sum(rows.arg.size * columns.arg.size for rows, columns in axes) +
                         other * self.threads)

    def _parameters(self, in_global: bool) -> list[str]:
        """The parameters: numbers as the eight bytes of their cell, memory as the dialect passes it."""
        d = self.dialect
        out = [d.scalar.format(name=f"cell{p.arg.slot}") if p.arg.scalar
               else self._memory(f"data{p.arg.slot}", self.unit(p))
               for p in sorted(self.kernel.params, key=lambda p: p.arg.slot)]
        out += [self._memory(f"shared{i}", "char") for i, _ in enumerate(shared_locals(self.kernel))]
        if in_global:
            out.append(self._memory("all_scratch", "char"))
        out = [text + d.binding.format(number=number) for number, text in enumerate(out)]
        if self.group_bytes and d.group_argument:
            out.append(d.group_argument)
        return [*out, *self.beside.parameters(), *d.counters]

    def _memory(self, name: str, kind: str) -> str:
        d = self.dialect
        if not d.by_handle:
            return f"{d.pointer}{kind} *{name}"
        self.pointers.insert(0, f"{d.pointer}{kind} *{name} = ({d.pointer}{kind} *)({name}_block + {name}_at);")
        return f"{d.pointer}char *{name}_block, u64 {name}_at"

    def _scratch_lines(self, in_global: bool) -> list[str]:
        """Declarations of the memory that a group shares."""
        d, out = self.dialect, []
        if in_global:
            whole = "all_scratch_block + all_scratch_at" if d.by_handle else "all_scratch"
            out.append(f"{d.pointer}char *scratch = {whole} + {d.group} * {self.scratch_bytes};")
        elif self.group_bytes and d.group_argument:
            out.append(f"{d.group_space}char *scratch = ({d.group_space}char *)group_memory;")
        elif self.group_bytes:
            out.append(f"extern __shared__ __align__({LINES_ALIGNED if self.beside.maps else 16}) char scratch[];")
        if self.folds:
            kind = "__shared__" if not d.group_space else d.group_space.strip()
            out.append(f"{kind} i64 area[{max(self.folds)}];")
        return out

    def before(self, statement: Statement) -> None:
        super().before(statement)
        if id(statement) in self.runs:
            values = [s.value for s in self.runs[id(statement)] if isinstance(s, (Accumulate, Assign))]
            read = {n.src[0] for n in toposort(values) if n.op is o.LOAD}
            load_wide(self, values, self.is_aligned, self.dialect.read_once if read & self.once else "")

    def loop_pragmas(self, range_: UOp, flow: Flow) -> list[str]:
        """Unroll innermost loops that only accumulate, so that their loads overlap: by a larger factor, the fewer sums
        there are. Short ones are unrolled fully. For a unit's steps, which are long, a few at a time are enough; 16
        took the assembler four times as long. Not unrolled are loops with several products of a unit; those where the
        addresses of many steps take registers that the sums need; and those that pass loaded values to their next
        iteration: a compiler would load them where they are used."""
        steps = [m for m in self.sums() if m in flow.writes] if self.beside.stages else []
        if range_ in self.handed_on or len(steps) > 1 or steps and self.matrix_registers(1) > gpu.REGISTERS:
            return ["#pragma unroll 1"]
        sums = not flow.loops and all(what.op is o.REGISTER or what in self.beside.copied for what in flow.writes)
        stages = self.beside.stages                  # with five stages, five steps, so that each has a fixed stage
        unit_steps = stages if stages > UNIT_STEPS and stages % UNIT_STEPS else UNIT_STEPS
        times = unit_steps if steps else LONG if len(flow.writes) <= FEW_SUMS else \
            SHORT if range_.arg.size <= SHORT else UNROLL
        # with a larger factor, a loop with a variable bound would not be unrolled
        times = times if steps else min(times, range_.arg.size)
        return [f"#pragma unroll {times}"] if range_.arg.size > 1 and sums else []

    # -- threads -----------------------------------------------------------------------------------------------
    def value_type(self, node: UOp, lanes: int) -> str:
        return self.counts_in if of_counters(node, self.short_values) else super().value_type(node, lanes)

    def loop_end(self, statement: For) -> str:
        """Computed before the loop, since compilers do not always hoist a division."""
        end = super().loop_end(statement)
        if statement.stop is None or end.isidentifier() or of_counters(statement.stop, values=False):
            return end
        name = self.fresh_name("v")
        self.line(f"{self.counts_in} {name} = {end};")
        return name

    def make(self, node: UOp) -> CValue:
        if node.op is not o.FOLD:
            return super().make(node)
        if node.arg.within:
            value = self.operand(node.src[0])
            return self.call(self._shared_fold(node.arg.combine, node.dtype, node.arg.within), node.dtype, 0, value)
        value = self.folded_value(node)
        name, fold = self.fresh_name("v"), self._folded(node.arg.combine, node.dtype)
        self.line(f"{self.type(node.dtype)} {name} = {fold}({value.text}, area, {self.thread});")
        return CValue(name, node.dtype)

    def _shared_fold(self, combine: o.Op, dtype: DType, within: int) -> str:
        """The helper that combines the values of `within` adjacent threads; each of them gets the result."""
        kind = self.type(dtype)
        other = self.apply(combine, dtype, CValue("x", dtype), CValue("other", dtype)).text
        return self.define(f"fold_{combine.name.lower()}_{kind}_within_{within}", kind, f"{kind} x",
                           f"for (int step = 1; step < {within}; step *= 2) {{",
                           f"  {kind} other = {self.dialect.exchange};", f"  x = {other};", "}", "return x;")

    def _folded(self, combine: o.Op, dtype: DType) -> str:
        """The helper that combines the values of all threads, always in the same order; all of them get the result."""
        d, kind, thread = self.dialect, self.type(dtype), self.thread
        name = f"fold_{combine.name.lower()}_{kind}_{self.threads}"
        parameters, area = f"{kind} x, {d.group_space}i64 *area, i64 {thread}", f"(({d.group_space}{kind} *)area)"

        def both(x: str, y: str) -> str:
            return self.apply(combine, dtype, CValue(x, dtype), CValue(y, dtype)).text
        count = self.threads // max(1, d.warp)
        self.folds.add(count)
        if not d.warp:       # halve the number of values repeatedly
            one, other = f"{area}[{thread}]", f"{area}[{thread} + gap]"
            return self.define(name, kind, parameters, d.wait, f"{one} = x;", d.wait,
                               f"for (int gap = {1 << (count - 1).bit_length() - 1}; gap; gap /= 2) {{",
                               f"  if ({thread} < gap && {thread} + gap < {count}) {one} = {both(one, other)};",
                               f"  {d.wait}", "}", f"return {area}[0];")
        self.definitions.helpers.setdefault("shuffle", d.shuffle_prelude)
        return self.define(name, kind, parameters, f"for (int step = {d.warp // 2}; step; step /= 2) {{",
                           f"  {kind} other = {d.shuffle};", f"  x = {both('x', 'other')};", "}", d.wait,
                           f"if ({thread} % {d.warp} == 0) {area}[{thread} / {d.warp}] = x;", d.wait, f"x = {area}[0];",
                           f"for (int i = 1; i < {count}; i++) x = {both('x', f'{area}[i]')};", "return x;")

    # -- memory --------------------------------------------------------------------------------------------------
    def pointer(self, memory: UOp, name: str) -> str:
        if memory.op is o.PARAM:
            return ""
        value, space = f"(scratch + {self.offsets.get(memory)})", self.dialect.pointer
        if memory not in self.offsets:
            value = f"shared{slot_of(memory, self.slots) - len(self.kernel.params)}"
        elif not self.scratch_global:
            space = self.dialect.group_space
        return f"{space}{self.unit(memory)} *{name} = ({space}{self.unit(memory)} *){value};"

    def _expression(self, node: UOp) -> CValue:
        if node.op is o.PARAM:
            return CValue(f"*({self.dialect.scalar_pointer}{self.unit(node)} *)&cell{node.arg.slot}", node.dtype)
        if node in self.rounded:
            return self.rounded_division(node)
        value = super()._expression(node)
        if node in self.own_reads:
            return CValue(f"{self.thread} == 0 ? {value.inside} : 0", node.dtype, 0, False)
        return value

    def is_group_memory(self, memory: UOp) -> bool:
        return memory in self.offsets and not self.scratch_global

    def is_aligned(self, memory: UOp) -> bool:
        """Whether a memory is always 16-byte aligned, as that of a group is. Kernels test others at run time."""
        if not self.is_group_memory(memory):
            self.wide_memories[memory] = None
        return self.is_group_memory(memory)

    def asynchronous(self, statement: CopyBoxes | AwaitCopies | AwaitSteps | Barrier | Turn) -> None:
        self.beside.write(statement)

    def together(self, body: list[Statement], at: int) -> list[Store]:
        """Merge stores to contiguous elements if they store loaded values, or are to group memory, or are few. (The
        sums of a large tile are better stored one by one: merged, a float32 product was measured to be a tenth
        slower.)"""
        first = body[at]
        if not isinstance(first, Store):
            return []
        wide = len(body) <= FEW_STORES or self.is_group_memory(first.memory) or \
            any(n.op is o.LOAD or n in self.finished for n in toposort([first.value]))
        return contiguous_stores(body, at) if self.dialect.wide_access and wide else [first]

    def store_together(self, stores: list[Store]) -> None:
        test = self.store_test(stores[0], self.gate(stores[0]))
        store_wide(self, stores, test, self.is_aligned, self.dialect.wide_store, self.pair_rounding(stores))

    def pair_rounding(self, stores: list[Store]) -> str:
        """The helper that rounds two adjacent values at once; empty if they are not rounded for this store alone."""
        dtype = stores[0].memory.dtype
        body = self.dialect.small_floats[dtype].round_pair if dtype in self.native_floats else ()
        values = [s.value for s in stores]
        alone = all(v.op is o.CAST and v.src[0].dtype is dtypes.float32 and self.uses.get(v, 1) == 1 for v in values)
        if not body or not alone:
            return ""
        name = f"round_pair_{'bf16' if dtype is dtypes.bfloat16 else 'f16'}"
        return self.define(name, "unsigned", f"{self.type(dtypes.float32)} x, f32 y", *body)

    def accumulate(self, statement: Accumulate) -> None:
        self.beside.step(statement) if self.is_matrix(statement.register) else super().accumulate(statement)

    def sum(self, constant: int, terms: ix.Terms, lanes: int, dtype: DType = dtypes.index) -> CValue:
        """constant + sum of k * atom; of counters alone, which cannot overflow, as a person would write it."""
        if all(n.op not in (o.LOAD, o.REGISTER) for n in sources_of(list(terms))):
            return super().sum(constant, terms, lanes, dtype)
        total = self.constant(wrapped(constant, dtype), dtype)
        for atom, k in terms.items():
            times = self.constant(wrapped(k, dtype), dtype)
            value = self.operand(atom)
            term = value if k == 1 else self.wrapping(dtype, "*", value, times)
            total = term if total.constant == 0 else self.wrapping(dtype, "+", total, term)
        return total

    def spot(self, memory: UOp, index: UOp) -> str:
        return self.beside.spot(memory, index) if memory in self.beside.permuted else super().spot(memory, index)

    def load(self, memory: UOp, index: UOp, gate: UOp | None, lanes: int) -> CValue:
        found = super().load(memory, index, gate, 0)
        test = self.takes_part(index)
        return CValue(f"{test} ? {found.inside} : 0", found.dtype, 0, False) if test else found


def own_reads(body: list[Statement], lanes: frozenset[UOp]) -> set[UOp]:
    """Loads that only the first thread executes, because it stores there in the same statement, which no other thread
    does: the others would read while it writes."""
    users: dict[UOp, list[Statement]] = {}
    for s in walk(body):
        for node in toposort(expressions(s)):
            if node.op is o.LOAD:
                users.setdefault(node, []).append(s)
    return {node for node, [s, *others] in users.items()
            if not others and isinstance(s, Store) and s.memory is node.src[0]
            and lanes.isdisjoint([*ranges_of(s.index), *ranges_of(node.src[1])])}
