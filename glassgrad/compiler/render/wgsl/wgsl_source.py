"""A kernel in WGSL, the language of WebGPU. In: a `Kernel` whose vectors are very wide. Out: source, one entry point
per phase.

Threads and groups mean what they mean in gpu_source.py; values are written by wgsl_ops.py. WGSL has no pointers: every
argument is an array of 32-bit words, bound by its number, and `args` says where in it the argument begins (x, in
bytes), or holds a number's eight bytes. Memory of a group is one array, `scratch`.

    4 bytes         a word, whose bits are the value's
    8 bytes         two words, the low one first
    1 and 2 bytes   parts of words. Neighbours in a word are other threads' elements, so a store clears and sets its
                    bits by atomic operations: any number of threads may write, and loops stay as they are.

Reads beyond an array are harmless (WGSL promises it), so a gate only selects what was read.
"""

from __future__ import annotations

from typing import NamedTuple

from glassgrad.compiler.graph import index_algebra as ix, ops as o
from glassgrad.compiler.graph.dtype import DType, dtypes, wrapped
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import For, Kernel, Store, walk
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.render.c.c_ops import NAMES, CValue, Definitions, kept
from glassgrad.compiler.render.c.c_source import CFunction
from glassgrad.compiler.render.gpu.barriers import fences
from glassgrad.compiler.render.gpu.gpu_launch import gpu_launch, scratch_is_global
from glassgrad.compiler.render.gpu.group_threads import GroupThreads
from glassgrad.compiler.render.launch import LocalLayout, launch_info
from glassgrad.compiler.render.unroll_and_jam import Jammed
from glassgrad.compiler.render.wgsl.wgsl_ops import WgslArithmetic

MOST_GROUPS = 65535         # along one axis of a launch; more are counted along two
WAIT = "workgroupBarrier(); storageBarrier();"
BUILTINS = "@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) group: vec3<u32>, " \
           "@builtin(num_workgroups) groups: vec3<u32>"
RESERVED = "array atomic bool case const default discard enable fn i32 let local loop override pass ptr select true " \
           "target var vec2 thread group groups min max abs fma sqrt trunc bitcast scratch get set with of from".split()


def render_wgsl(kernel: Kernel, target: Target, phases: list[Jammed]) -> str:
    """The source of all phases of a kernel."""
    definitions, places, launch = Definitions(), LocalLayout(kernel), gpu_launch(kernel, target.group_bytes).phases
    arrays = words_of(kernel, places, target, definitions)
    functions = [WgslFunction(arrays, places, target, jammed, definitions, tasks, *launched[:3]).text()
                 for jammed, (_, tasks), launched in zip(phases, launch_info(kernel).phases, launch)]
    return "\n".join([*definitions.lines, "", "\n\n".join(functions), ""])


class Words(NamedTuple):
    """Where a memory lies: an array, whether its words are atomic, and the byte where the memory begins: a number of
    the launch's, as text, and one that is known."""
    array: str
    atomic: bool
    begin: str
    offset: int = 0


def words_of(kernel: Kernel, places: LocalLayout, target: Target, definitions: Definitions) -> dict[UOp, Words]:
    """The words of each memory of a kernel; arguments and the memory of a group are declared."""
    in_global = scratch_is_global(kernel, places.scratch_bytes, target.group_bytes)
    slots = {p: p.arg.slot for p in kernel.params if not p.arg.scalar} | places.slots
    array_of = {m: f"data{slot}" for m, slot in slots.items()} | dict.fromkeys(places.offsets, "scratch")
    in_parts = {array_of[s.memory] for phase in kernel.phases for s in walk(phase.body)
                if isinstance(s, Store) and s.memory.dtype.itemsize < 4}       # words are written by several threads
    words = {array: f"array<{'atomic<u32>' if array in in_parts else 'u32'}" for array in array_of.values()}
    count, bound = len(kernel.params) + len(places.slots), {slot: array_of[m] for m, slot in slots.items()}
    if in_global:
        bound[count] = "scratch"
    elif places.scratch_bytes:
        definitions.types["scratch"] = f"var<workgroup> scratch: {words['scratch']}, {places.scratch_bytes // 4}>;"
    for slot, array in sorted(bound.items()):
        definitions.types[array] = f"@group(0) @binding({slot + 1}) var<storage, read_write> {array}: {words[array]}>;"
    definitions.types["args"] = f"@group(0) @binding(0) var<uniform> args: array<vec4<u32>, {count + in_global}>;"
    begin = f"(i32(args[{count}].x) + i32(group.x) * {places.scratch_bytes})" if in_global else ""
    return {m: Words(array, array in in_parts, begin if m in places.offsets else f"i32(args[{slots[m]}].x)",
                     places.offsets.get(m, 0)) for m, array in array_of.items()}


class WgslFunction(GroupThreads, WgslArithmetic, CFunction):
    """One phase as one entry point, which every thread of every group runs."""
    counts_in, wait = "var", WAIT    # the type of a counter is the value's

    def __init__(self, words: dict[UOp, Words], places: LocalLayout, target: Target, jammed: Jammed,
                 definitions: Definitions, tasks: int, name: str, groups: int, threads: int):
        self.words, self.task_count, self.groups, self.threads = words, tasks, groups, threads
        self.thread_ranges, self.fences = frozenset(jammed.lanes), fences(jammed.body)
        CFunction.__init__(self, places, target, Jammed(jammed.tasks, jammed.body, [], jammed.units), name, definitions)
        self.open.update(dict.fromkeys(jammed.lanes, 0))
        self.taken |= {*RESERVED, *definitions.types}

    def text(self) -> str:
        self.take_apart_task()
        self.run(self.body)
        lines, count = self.scopes[0].lines, self.task_count
        head = [f"let task = i32({'group.x' if count <= MOST_GROUPS else 'group.y * groups.x + group.x'});"]
        if self.groups < count:                       # each with a piece of `scratch`
            head = [f"for (var task = i32(group.x); task < {count}; task += {self.groups}) {{"]
            lines = [*["  " + line for line in lines], f"  {WAIT}", "}"]
        elif count > MOST_GROUPS:
            lines = [f"if (task < {count}) {{", *["  " + line for line in lines], "}"]
        declared = [f"var {name}: {self.type(register.dtype)};" for register, name in self.registers.items()]
        return "\n".join([f"@compute @workgroup_size({self.threads})", f"fn {self.name}({BUILTINS}) {{",
                          *["  " + line for line in ("let thread = i32(local);", *self.pointers, *declared, *head,
                                                      *lines)], "}"])

    def loop_end(self, statement: For) -> str:
        size = self.constant(statement.range.arg.size, dtypes.index)
        end = size if statement.stop is None else self.apply(o.MIN, dtypes.index, self.operand(statement.stop), size)
        return self.in_bits(end, dtypes.int32).text

    # -- values --------------------------------------------------------------------------------------------------
    def held(self, value: CValue, dtype: DType) -> CValue:
        """A value as registers and memory have it: int64 in all its bits."""
        return self.in_bits(value, dtype) if dtype is dtypes.int64 else value

    def set_register(self, node: UOp, value: CValue) -> None:
        super().set_register(node, self.held(value, node.dtype))

    def _counter(self, node: UOp) -> CValue:
        name = "thread" if node in self.thread_ranges else self.named(node, node.arg.name)
        return CValue(name, dtypes.int32, low=0)

    def value_type(self, node: UOp, lanes: int) -> str:
        return "let"

    def _expression(self, node: UOp) -> CValue:
        if node.dtype.kind == "f" and node.op in (o.ADD, o.SUB, o.MUL, o.DIV, o.MULACC):
            return self.apply(node.op, node.dtype, *[self._unmerged(node, at) for at in range(len(node.src))])
        if node.op is o.BITCAST:
            return self.bitcast(self.held(self.operand(node.src[0]), node.src[0].dtype), node.dtype)
        if node.op is o.FOLD:
            return self._folded(node)
        if node.op is o.PARAM:
            value = self._from_words(node.dtype, f"args[{node.arg.slot}].x", f"args[{node.arg.slot}].y")
        else:
            value = super()._expression(node)
        return self.in_bits(value, dtypes.int32) if value.dtype is dtypes.int64 and ix.fits(*ix.span(node)) else value

    def _unmerged(self, node: UOp, at: int) -> CValue:
        """An operand that a driver must not merge with the operation: they take (x + c) - c for x, NaN * 0 for 0,
        and x / 0 for anything."""
        source, value = node.src[at], self.operand(node.src[at])
        inner = source.src[0] if source.op is o.NEG else source
        adds, twice = at == 2 or node.op in (o.ADD, o.SUB), len(node.src) == 2 and node.src[0] is node.src[1]
        merged = inner.op in (o.ADD, o.SUB, o.MULACC) if adds else inner.op is o.MUL
        is_zero = source.op is o.CONST and source.arg == 0
        return self.opaque(value) if merged or is_zero or node.op is o.SUB and twice and at else value

    def sum(self, constant: int, terms: ix.Terms, lanes: int) -> CValue:
        """constant + sum of k * atom: in 32 bits where its numbers fit them."""
        short = ix.fits(*ix.span(ix.build(constant, terms))) and \
            all(self.operand(atom).dtype is dtypes.int32 for atom in terms)
        return self._sum(constant, terms, dtypes.int32 if short else dtypes.int64)

    def _sum(self, constant: int, terms: ix.Terms, dtype: DType) -> CValue:
        """The sum in so many bits: right where the result fits them, whatever its parts do."""
        parts = []
        for atom in sorted(terms, key=lambda a: (self.scope_of(a).depth, ix.order_key(a))):
            value, k = self.in_bits(self.operand(atom), dtype).inside, wrapped(terms[atom], dtype)
            parts.append(value if k == 1 else f"{value} * {self.literal(k, dtype).text}")
        number = wrapped(constant, dtype)
        if number or not parts:
            parts.append(self.literal(number, dtype).text)
        return CValue(" + ".join(parts), dtype, 0, len(parts) == 1 and " " not in parts[0],
                      None if terms else number)

    def _folded(self, node: UOp) -> CValue:
        """The values of all threads combined, half of them with the other half, again and again; every thread gets the
        result. (It is written out: rounds of a loop would count.)"""
        dtype, combine, count, wait = node.dtype, node.arg.combine, self.threads, "workgroupBarrier();"
        kind, area = self.type(dtype), f"area_{self.type(dtype)}_{count}"
        self.definitions.types[area] = f"var<workgroup> {area}: array<{kind}, {count}>;"
        lines = [wait, f"{area}[thread] = x;", wait]
        for gap in reversed([1 << i for i in range((count - 1).bit_length())]):
            both = self.apply(combine, dtype, *[CValue(f"{area}[thread{far}]", dtype) for far in ("", f" + {gap}")])
            lines += [f"if (thread < {min(gap, count - gap)}) {{ {area}[thread] = {both.text}; }}", wait]
        name = self.define(f"fold_{combine.name.lower()}_{NAMES[dtype]}_{count}", kind, f"x: {kind}, thread: i32",
                           *lines, f"return {area}[0];")
        return self.call(name, dtype, 0, self.held(self.folded_value(node), dtype), CValue("thread", dtypes.int32))

    # -- memory --------------------------------------------------------------------------------------------------
    def _place(self, memory: UOp, index: UOp) -> str:
        """Where an index of a memory is in its array: the first word, or in units of a value that is less than one."""
        constant, terms = ix.linear(index)
        unit, words = min(4, memory.dtype.itemsize), max(1, memory.dtype.itemsize // 4)
        array, _, begin, offset = self.words[memory]
        place = self._sum(constant * words + offset // unit, {atom: k * words for atom, k in terms.items()},
                          dtypes.int32)
        known = ("begin", array, unit)
        if not begin:
            return place.text
        if known not in self.given:
            self.pointers.append(f"let {self.named(known, f'{array}_at')} = {begin} / {unit};")
        return self.given[known] if place.constant == 0 else f"{self.given[known]} + {place.text}"

    def _once(self, text: str) -> str:
        """A text to be used several times."""
        self.values_named += 1
        name = self.named(("value", self.values_named), f"p{self.values_named}")
        self.line(f"let {name} = {text};")
        return name

    def _from_words(self, dtype: DType, low: str, high: str = "", bit: str = "0u") -> CValue:
        """A value from one word, from a bit of it on, or from two."""
        kind = kept(dtype)
        if kind.itemsize >= 4:
            bits = CValue(low, dtypes.uint32) if kind.itemsize == 4 else \
                CValue(f"(u64({low}) | (u64({high}) << 32u))", dtypes.uint64)
            return self.bitcast(bits, dtype)
        part = f"extractBits({f'i32({low})' if kind.kind == 'i' else low}, {bit}, {kind.bits}u)"
        return CValue(f"({part} != 0u)" if kind.kind == "b" else part, dtype)

    def load(self, memory: UOp, index: UOp, gate: UOp | None, lanes: int) -> CValue:
        array, dtype, at = self.words[memory], memory.dtype, self._place(memory, index)
        word = f"atomicLoad(&{array.array}[{{}}])" if array.atomic else f"{array.array}[{{}}]"
        at, count = at if dtype.itemsize == 4 else self._once(at), 4 // dtype.itemsize
        if dtype.itemsize >= 4:
            value = self._from_words(dtype, word.format(at), word.format(f"{at} + 1"))
        else:
            value = self._from_words(dtype, word.format(f"{at} / {count}"), "", f"u32({at} % {count}) * {dtype.bits}u")
        if gate is None:
            return value
        return CValue(f"select({self.type(dtype)}(), {value.text}, {self.operand(gate).text})", dtype)

    def store(self, statement: Store) -> None:
        memory, index, combine, dtype = statement.memory, statement.index, statement.combine, statement.memory.dtype
        test, value = self.store_test(statement, self.gate(statement)), self.operand(statement.value)
        if combine is not None:
            value = self.apply(combine, dtype, self.load(memory, index, statement.gate, 0), value)
        lines = self._writes(self.words[memory], dtype, self._place(memory, index), self.held(value, dtype))
        for line in [f"if ({test}) {{ {' '.join(lines)} }}"] if test else lines:
            self.line(line)

    def _writes(self, words: Words, dtype: DType, at: str, value: CValue) -> list[str]:
        if dtype.itemsize < 4:
            at, new = self._once(at), self._once(value.text)           # which may be made of what is cleared
            count, bits = 4 // dtype.itemsize, f"{(1 << dtype.bits) - 1}u"
            word, bit = f"&{words.array}[{at} / {count}]", f"(u32({at} % {count}) * {dtype.bits}u)"
            return [f"atomicAnd({word}, ~({bits} << {bit}));", f"atomicOr({word}, (u32({new}) & {bits}) << {bit});"]
        if dtype.itemsize == 4:
            pairs = [(at, self.bitcast(value, dtypes.uint32).text)]
        else:
            at, new = self._once(at), self._once(self.bitcast(value, dtypes.uint64).text)
            pairs = [(at, f"u32({new} & 0xfffffffflu)"), (f"{at} + 1", f"u32({new} >> 32u)")]
        write = "atomicStore(&{}[{}], {});" if words.atomic else "{}[{}] = {};"
        return [write.format(words.array, at, text) for at, text in pairs]
