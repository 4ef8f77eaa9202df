"""Render a kernel as WGSL, the language of WebGPU. In: a `Kernel` whose vectors are very wide. Out: source, one entry
point per phase.

Threads and groups are as in gpu_source.py. Arithmetic is that of c_ops.py, with the words of `SPELLING` and the methods
below. WGSL has bool, i32, u32 and f32; adapters may have i64, u64 and f64 too, which naga spells so. A value's `dtype`
says how it is held:

    int8, int16              i32, and uint8, uint16 as u32: each result is truncated to its bits
    small floats             unsigned integers with their bits
    int64 that fits 32 bits  i32: counters, and casts from smaller integers. Its dtype is int32

There are no pointers: every argument is an array, bound by its number. `args` says where in its array an argument
begins (x, in bytes), or holds the eight bytes of a number. Memory of a group is an array too; if groups have too little
of it, it is a bound array: a piece of the last argument for each group. Elements of 1 and 2 bytes are parts of 32-bit
words, of which other threads may own the other elements. So a store clears and sets its bits by atomic operations: any
number of threads may write, and loops need no changes. Reads beyond an array are harmless, as WGSL guarantees.

Some drivers' mistakes are avoided: `x != y` of floats is written `!(x == y)`, since it may be compiled as "both are
numbers and differ"; maximum and minimum are comparisons; a conversion changes the width first, then the sign.
"""

from __future__ import annotations

from typing import NamedTuple

from glassgrad.compiler.graph import DType, UOp, dtypes, index_algebra as ix, ops as o
from glassgrad.compiler.lower.loops import Kernel, Store, locals_written, walk
from glassgrad.compiler.lower.missing_instructions import carrier, held
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.render.c.c_ops import CValue, Definitions, Spelling
from glassgrad.compiler.render.gpu.gpu_launch import gpu_launch, scratch_is_global
from glassgrad.compiler.render.gpu.group_threads import GroupThreads
from glassgrad.compiler.render.launch_info import LocalLayout, launch_info, shared_slots
from glassgrad.compiler.render.unroll_and_jam import Jammed

# The last word of an argument is 0, but no compiler knows that: WGSL forbids constants that are infinite or NaN.
SPELLING = Spelling(
    function="{name}",
    nan=("bitcast<f32>(0x7fc00000u | args[0].w)", "bitcast<f64>(0x7ff8000000000000lu | u64(args[0].w))"),
    inf=("bitcast<f32>(0x7f800000u | args[0].w)", "bitcast<f64>(0x7ff0000000000000lu | u64(args[0].w))"),
    ends={dtypes.float32: "f", dtypes.float64: "lf", dtypes.uint8: "u", dtypes.uint16: "u", dtypes.uint32: "u",
          dtypes.int64: "li", dtypes.uint64: "lu"},
    bools=("false", "true"),
    head="fn {name}({parameters}) -> {result}",
    parameter="{name}: {kind}",
    value="let {name} = {value};",
    cut="extractBits({text}, 0u, {bits}u)",
    distance="u32({y})",
    differ="!({x} == {y})",
    absolute="abs",
    nearest="round",
)
BUILTINS = "@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) group: vec3<u32>, " \
           "@builtin(num_workgroups) groups: vec3<u32>"
RESERVED = "array atomic bool case const default discard enable fn i32 let local loop override pass ptr select true " \
           "target var vec2 thread group groups min max abs fma sqrt trunc round bitcast get set with of from".split()
# If the operands fit 32 bits, so do these results.
STAYS_SHORT = (o.CMPLT, o.CMPNE, o.CMPEQ, o.MAX, o.MIN, o.WHERE, o.AND, o.OR, o.XOR, o.NOT)


def render_wgsl(kernel: Kernel, target: Target, phases: list[Jammed]) -> str:
    """Render all phases of a kernel."""
    definitions, info, launch = Definitions(), launch_info(kernel), gpu_launch(kernel, target.group_bytes).phases
    arrays = declared_arrays(kernel, info.scratch_bytes, target, definitions)
    functions = [WgslFunction(arrays, LocalLayout(kernel, p), target, jammed, definitions, info.phases[p][1],
                              *launch[p][:3]).text() for p, jammed in enumerate(phases)]
    return "\n".join([*definitions.lines, "", "\n\n".join(functions), ""])


class Array(NamedTuple):
    """Where a memory is: an array, its element type, and the byte where it begins, as text (for scratch memory, with a
    gap for the offset that the phase fills in)."""
    name: str
    kind: str
    begin: str = ""


def declared_arrays(kernel: Kernel, scratch_bytes: int, target: Target, definitions: Definitions) -> dict[UOp, Array]:
    """The array of each memory of a kernel; all are declared."""
    in_global = scratch_is_global(kernel, scratch_bytes, target.group_bytes)
    written = {s.memory for phase in kernel.phases for s in walk(phase.body) if isinstance(s, Store)}
    shared, found, types = shared_slots(kernel), {}, definitions.types
    scratch = dict.fromkeys(m for phase in kernel.phases for m in locals_written(phase) if m not in shared)
    count = len(kernel.params) + len(shared)
    slots = {p: p.arg.slot for p in kernel.params if not p.arg.scalar} | shared
    slots |= {memory: slot for slot, memory in enumerate(scratch, count)}
    types["args"] = f"@group(0) @binding(0) var<uniform> args: array<vec4<u32>, {count + in_global}>;"
    for memory, slot in slots.items():
        dtype, name, begin = memory.dtype, f"data{slot}", f"i32(args[{min(slot, count)}].x)"
        kind = wgsl_type(dtype) if dtype.itemsize >= 4 else "atomic<u32>" if memory in written else "u32"
        where = f"@group(0) @binding({slot + 1}) var<storage, read_write> {name}: array<{kind}>;"
        if memory in scratch:
            begin = f"({begin} + i32(group.x) * {scratch_bytes} + {{offset}})"
        if memory in scratch and not in_global:
            size = -(-memory.arg.size * dtype.itemsize // max(4, dtype.itemsize))
            where, begin = f"var<workgroup> {name}: array<{kind}, {size}>;", ""
        types[name], found[memory] = where, Array(name, kind, begin)
    return found


def wgsl_type(dtype: DType) -> str:
    """The type that holds a value."""
    dtype = held(dtype)
    return "bool" if dtype.kind == "b" else f"{dtype.kind}{max(32, dtype.bits)}"


class WgslFunction(GroupThreads):
    """One phase as one entry point, which every thread of every group runs."""
    language, spelling = "WGSL", SPELLING
    counts_in, wait = "var", "workgroupBarrier(); storageBarrier();"       # the type of a counter is the value's

    def __init__(self, arrays: dict[UOp, Array], places: LocalLayout, target: Target, jammed: Jammed,
                 definitions: Definitions, tasks: int, name: str, groups: int, threads: int):
        self.arrays, self.task_count, self.groups = arrays, tasks, groups
        super().__init__(places, target, jammed, name, definitions, threads)
        self.taken |= {*RESERVED, *definitions.types}

    def text(self) -> str:
        self.take_apart_task()
        self.run(self.body)
        lines = [*self.scopes[0].lines, *([self.wait] if self.offsets else [])]
        declared = [f"var {name}: {self.type(register.dtype)};" for register, name in self.registers.items()]
        loop = f"for (var task = i32(group.y * groups.x + group.x); task < {self.task_count}; task += {self.groups}) {{"
        body = ["let thread = i32(local);", *self.pointers, *declared, loop, *["  " + line for line in lines], "}"]
        return "\n".join([f"@compute @workgroup_size({self.threads})", f"fn {self.name}({BUILTINS}) {{",
                          *["  " + line for line in body], "}"])

    # -- arithmetic --------------------------------------------------------------------------------------------------
    def type(self, dtype: DType, lanes: int = 0) -> str:
        return wgsl_type(dtype)

    def constant(self, value: float | int | bool, dtype: DType) -> CValue:
        short = dtype is dtypes.int64 and ix.fits(int(value), int(value))
        return super().constant(value, dtypes.int32 if short else dtype)

    def carried(self, x: CValue, dtype: DType) -> CValue:
        if x.dtype is dtype or dtype not in (dtypes.int32, dtypes.int64):
            return x
        return CValue(f"{self.type(dtype)}({x.text})", dtype, constant=x.constant)

    def apply(self, op: o.Op, dtype: DType, *values: CValue) -> CValue:
        if dtype is dtypes.int64:
            first, numbers = values[:op is o.WHERE], values[op is o.WHERE:]
            stays = op in STAYS_SHORT or op in (o.IDIV, o.MOD) and (numbers[1].constant or 0) > 0
            if stays and all(v.dtype is dtypes.int32 for v in numbers):
                dtype = dtypes.int32
            values = (*first, *[self.carried(v, dtype) for v in numbers])
        return super().apply(op, dtype, *values)

    def opaque(self, x: CValue) -> CValue:
        """A number that compilers cannot fold as a constant."""
        kind, bits = self.type(x.dtype), self.type(carrier(x.dtype))
        body = f"return bitcast<{kind}>(bitcast<{bits}>(x) ^ {bits}(args[0].w));"
        return self.call(self.define(f"opaque_{kind}", kind, self.parameters(kind, "x"), body), x.dtype, 0, x)

    def choice(self, dtype: DType, test: str, yes: str, no: str) -> CValue:
        return CValue(f"select({no}, {yes}, {test})", dtype)

    def converted(self, x: CValue, dtype: DType) -> str:
        source, to = x.dtype, self.type(dtype)
        if source.kind in "bf" or dtype.kind == "f":
            return f"{to}({x.text})"
        wide, text = f"{source.kind}{to[1:]}", x.text
        text = text if wide == self.type(source) else f"{wide}({text})"
        text = text if wide == to else f"bitcast<{to}>({text})"
        return text if wide == to and source.bits <= dtype.bits else self.cut(dtype, text)

    def cast(self, x: CValue, dtype: DType) -> CValue:
        short = dtype is dtypes.int64 and x.dtype.kind != "f" and x.dtype.bits < 64 and x.dtype is not dtypes.uint32
        return super().cast(x, dtypes.int32 if short else dtype)

    def bitcast(self, x: CValue, dtype: DType) -> CValue:
        to, source = held(dtype), held(x.dtype)
        if "f" in (to.kind, source.kind) and to is not source:
            return CValue(f"bitcast<{self.type(dtype)}>({x.text})", dtype)
        return self.cast(x._replace(dtype=source), to)._replace(dtype=dtype)

    # -- values --------------------------------------------------------------------------------------------------
    def set_register(self, node: UOp, value: CValue) -> None:
        super().set_register(node, self.carried(value, node.dtype))

    def _counter(self, node: UOp) -> CValue:
        return super()._counter(node)._replace(dtype=dtypes.int32, low=0)

    def _expression(self, node: UOp) -> CValue:
        if node.dtype.kind == "f" and node.op in (o.ADD, o.SUB, o.MUL, o.DIV, o.MULACC):
            return self.apply(node.op, node.dtype, *[self._unmerged(node, at) for at in range(len(node.src))])
        if node.op is o.BITCAST:
            return self.bitcast(self.carried(self.operand(node.src[0]), node.src[0].dtype), node.dtype)
        if node.op is o.FOLD:
            return self._folded(node)
        value = self._number(node) if node.op is o.PARAM else super()._expression(node)
        return self.carried(value, dtypes.int32) if value.dtype is dtypes.int64 and ix.fits(*ix.span(node)) else value

    def _number(self, node: UOp) -> CValue:
        """A scalar argument of the launch, from one or two words of `args`."""
        word, dtype = f"args[{node.arg.slot}]", node.dtype
        if dtype is dtypes.int64 and ix.fits(*ix.span(node)):
            return CValue(f"i32({word}.x)", dtypes.int32)
        wide = CValue(f"(u64({word}.x) | (u64({word}.y) << 32u))", dtypes.uint64)
        bits = wide if dtype.itemsize == 8 else CValue(f"{word}.x", dtypes.uint32)
        return self.bitcast(self.cast(bits, carrier(dtype)), dtype)

    def _unmerged(self, node: UOp, at: int) -> CValue:
        """Hide an operand from the driver, so that it does not simplify the operation: drivers take (x + c) - c for x,
        NaN * 0 for 0, x / 0 for anything, and x - x for 0, even if both operands are hidden in the same way."""
        source, value = node.src[at], self.operand(node.src[at])
        if node.op is o.SUB and node.src[0] is node.src[1]:
            return self.opaque(value) if at else value
        inner = source.src[0] if source.op is o.NEG else source
        merged = (o.ADD, o.SUB, o.MULACC) if at == 2 or node.op in (o.ADD, o.SUB) else (o.MUL,)
        return self.opaque(value) if inner.op in merged or source.op is o.CONST and source.arg == 0 else value

    def sum(self, constant: int, terms: ix.Terms, lanes: int, dtype: DType = dtypes.index) -> CValue:
        short = ix.fits(*ix.span(ix.build(constant, terms))) and \
            all(self.operand(atom).dtype is dtypes.int32 for atom in terms)
        return super().sum(constant, terms, lanes, dtypes.int32 if short else dtype)

    def _folded(self, node: UOp) -> CValue:
        """Combine the values of all threads, half of them with the other half, repeatedly; every thread gets the
        result. (Unrolled, since the driver limits iterations.)"""
        dtype, combine, count, kind = node.dtype, node.arg.combine, self.threads, self.type(node.dtype)
        area, wait = f"area_{kind}_{count}", "workgroupBarrier();"
        self.definitions.types[area] = f"var<workgroup> {area}: array<{kind}, {count}>;"
        lines = [wait, f"{area}[thread] = x;", wait]
        for gap in reversed([1 << i for i in range((count - 1).bit_length())]):
            both = self.apply(combine, dtype, *[CValue(f"{area}[thread{far}]", dtype) for far in ("", f" + {gap}")])
            lines += [f"if (thread < {min(gap, count - gap)}) {{ {area}[thread] = {both.text}; }}", wait]
        name = self.define(f"fold_{combine.name.lower()}_{kind}_{count}", kind, f"x: {kind}, thread: i32", *lines,
                           f"return {area}[0];")
        return self.call(name, dtype, 0, self.carried(self.folded_value(node), dtype), CValue("thread", dtypes.int32))

    # -- memory --------------------------------------------------------------------------------------------------
    def _place(self, memory: UOp, index: UOp) -> str:
        """The index in its array of an element of a memory."""
        place, array = self.sum(*ix.linear(index), 0, dtypes.int32), self.arrays[memory]
        if not array.begin:
            return place.text
        if array not in self.names:
            name = self.named(array, f"{array.name}_at")
            begin = array.begin.format(offset=self.offsets.get(memory))
            self.pointers.append(f"let {name} = {begin} / {memory.dtype.itemsize};")
        return self.names[array] if place.constant == 0 else f"{self.names[array]} + {place.text}"

    def load(self, memory: UOp, index: UOp, gate: UOp | None, lanes: int) -> CValue:
        array, dtype, place = self.arrays[memory], memory.dtype, self._place(memory, index)
        text = f"{array.name}[{place}]"
        if dtype.itemsize < 4:
            word, bit = word_and_bit(array, dtype)
            word = f"atomicLoad(&{word})" if array.kind != "u32" else word
            part = f"extractBits({f'i32({word})' if dtype.kind == 'i' else word}, {bit}, {dtype.bits}u)"
            get = self.define(f"get_{array.name}", self.type(dtype), "at: i32",
                              f"return {part}{' != 0u' if dtype.kind == 'b' else ''};")
            text = f"{get}({place})"
        if gate is None:
            return CValue(text, dtype)
        return self.choice(dtype, self.operand(gate).text, text, f"{self.type(dtype)}()")

    def written(self, memory: UOp, index: UOp, value: CValue) -> str:
        array, dtype, place = self.arrays[memory], memory.dtype, self._place(memory, index)
        if dtype.itemsize >= 4:
            return f"{array.name}[{place}] = {self.carried(value, dtype).text};"
        (word, bit), ones = word_and_bit(array, dtype), f"{(1 << dtype.bits) - 1}u"
        put = self.define(f"set_{array.name}", "u32", "at: i32, x: u32", f"atomicAnd(&{word}, ~({ones} << ({bit})));",
                          f"return atomicOr(&{word}, (x & {ones}) << ({bit}));")
        return f"{put}({place}, u32({value.text}));"


def word_and_bit(array: Array, dtype: DType) -> tuple[str, str]:
    """The word that has the element `at` of a small type, and the element's first bit in it."""
    count = 4 // dtype.itemsize
    return f"{array.name}[at / {count}]", f"u32(at % {count}) * {dtype.bits}u"
