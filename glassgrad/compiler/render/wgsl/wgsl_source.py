"""A kernel in WGSL, the language of WebGPU. In: a `Kernel` whose vectors are very wide. Out: source, one entry point
per phase.

Threads and groups mean what they mean in gpu_source.py. Values are written by wgsl_ops.py; where memory lies is in
wgsl_arrays.py. Reads beyond an array are harmless (WGSL promises it), so a gate only selects what was read.
"""

from __future__ import annotations

from glassgrad.compiler.graph import index_algebra as ix, ops as o
from glassgrad.compiler.graph.dtype import DType, dtypes, wrapped
from glassgrad.compiler.graph.ops import Op
from glassgrad.compiler.graph.uop import UOp, identity
from glassgrad.compiler.lower.loops import Accumulate, For, Kernel, Statement, Store
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.render.c.c_ops import NAMES, CValue, Definitions, kept
from glassgrad.compiler.render.c.c_source import CFunction
from glassgrad.compiler.render.gpu.barriers import fences
from glassgrad.compiler.render.gpu.gpu_source import gpu_launch
from glassgrad.compiler.render.gpu.group_threads import GroupThreads
from glassgrad.compiler.render.launch import LocalLayout, function_name, launch_info
from glassgrad.compiler.render.unroll_and_jam import Jammed
from glassgrad.compiler.render.value_order import Flow
from glassgrad.compiler.render.wgsl.loop_rounds import divides_in_32_bits, unrolled
from glassgrad.compiler.render.wgsl.wgsl_arrays import KernelArrays, Words
from glassgrad.compiler.render.wgsl.wgsl_ops import LONG, PAIR, WgslArithmetic

__all__ = ["render_wgsl"]

MOST_GROUPS = 65535         # along one axis of a launch; more are counted along two
WAIT = "workgroupBarrier(); storageBarrier();"


def render_wgsl(kernel: Kernel, target: Target, phases: list[Jammed]) -> str:
    """The source of all phases of a kernel."""
    definitions, places, info = Definitions(), LocalLayout(kernel), launch_info(kernel)
    launch = gpu_launch(kernel, target.group_bytes)
    memories = KernelArrays(kernel, places, target, definitions)
    functions = [WgslFunction(kernel, places, target, jammed, function_name(kernel, at), definitions, memories,
                              info.phases[at][1], *launch.phases[at][1:3]).text()
                 for at, jammed in enumerate(phases)]
    return "\n".join([*definitions.lines, "", "\n\n".join(functions), ""])


class WgslFunction(GroupThreads, WgslArithmetic, CFunction):
    """One phase as one entry point, which every thread of every group runs."""
    counts_in = "let"                # the type is the value's

    def __init__(self, kernel: Kernel, places: LocalLayout, target: Target, jammed: Jammed, name: str,
                 definitions: Definitions, memories: KernelArrays, tasks: int, groups: int, threads: int):
        self.memories, self.task_count, self.threads = memories, tasks, threads
        self.thread_ranges, self.fences = frozenset(jammed.lanes), fences(jammed.body)
        self.at_once = unrolled(jammed.body, target.most_rounds // -(-tasks // groups), f"the kernel {name}")
        CFunction.__init__(self, places, target, Jammed(jammed.tasks, jammed.body, [], jammed.units), name, definitions)
        self.open.update(dict.fromkeys(jammed.lanes, 0))
        self.taken |= {*RESERVED, *definitions.types, "thread", "group", "groups"}

    # -- the function ----------------------------------------------------------------------------------------
    def text(self) -> str:
        self.take_apart_task()
        self.run(self.body)
        lines, count = self.scopes[0].lines, self.task_count
        number = "i32(group.x)" if count <= MOST_GROUPS else "i32(group.y * groups.x + group.x)"
        if self.memories.scratch_global:
            head = [f"for (var task = {number}; task < {count}; task += i32(groups.x)) {{"]
            lines = [*["  " + line for line in lines], f"  {WAIT}", "}"]
        elif count > MOST_GROUPS:
            head = [f"let task = {number};", f"if (task < {count}) {{"]
            lines = [*["  " + line for line in lines], "}"]
        else:
            head = [f"let task = {number};"] if self.tasks else []
        declared = [f"var {name}: {self.type(register.dtype)};" for register, name in self.registers.items()]
        builtins = "@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) group: vec3<u32>, " \
                   "@builtin(num_workgroups) groups: vec3<u32>"
        return "\n".join([f"@compute @workgroup_size({self.threads})", f"fn {self.name}({builtins}) {{",
                          *["  " + line for line in ("let thread = i32(local);", *self.pointers, *declared, *head,
                                                      *lines)], "}"])

    def before(self, statement: Statement) -> None:
        if id(statement) in self.fences:
            self.line(WAIT)

    def loop(self, statement: For, flow: Flow) -> None:
        range_, stop = statement.range, statement.stop
        limit = self.constant(range_.arg.size, dtypes.index)
        if stop is not None:
            limit = self.short(self.apply(o.MIN, dtypes.index, self.operand(stop), limit))
        name, guard = self.named(range_, range_.arg.name), stop is not None and ix.bounds(stop)[0] <= 0
        if self.at_once == 1 or flow.loops:
            heads = [f"for (var {name} = 0; {name} < {limit.text}; {name}++) {{"]
            self._nested(heads, statement.body, flow, range_, guard)
            return
        around = self.scopes[-1].lines
        begin = len(around)
        self._nested([], statement.body, flow, range_, guard)
        body = around[begin:-1]
        del around[begin:]
        around.append(f"for (var {name}_first = 0; {name}_first < {limit.text}; {name}_first += {self.at_once}) {{")
        for more in range(self.at_once):
            around += [f"  if ({name}_first + {more} < {limit.text}) {{", f"    let {name} = {name}_first + {more};",
                       *["  " + line for line in body], "  }"]
        around.append("}")

    # -- values --------------------------------------------------------------------------------------------------
    def held(self, value: CValue, dtype: DType) -> CValue:
        """A value as registers and memory have it: 64-bit integers always as two words."""
        return self.long(value, dtype) if dtype in LONG else value

    def set_register(self, node: UOp, value: CValue) -> None:
        super().set_register(node, self.held(value, node.dtype))

    def accumulate(self, statement: Accumulate) -> None:
        register, value, dtype = statement.register, statement.value, statement.register.dtype
        total = self.register(register)
        if statement.combine is o.ADD and value.op is o.MUL and dtype.kind == "f":
            result = self.multiply_add(dtype, self.operand(value.src[0]), self.operand(value.src[1]), total)
        else:
            result = self.apply(statement.combine, dtype, total, self.operand(value))
        self.set_register(register, result)

    def _counter(self, node: UOp) -> CValue:
        name = "thread" if node in self.thread_ranges else self.named(node, node.arg.name)
        return CValue(name, dtypes.int32, low=0)

    def make(self, node: UOp) -> CValue:
        value = self._folded(node) if node.op is o.FOLD else self._expression(node)
        name = self.name_for(node, value)
        if not name:
            return value
        self.line(f"let {name} = {value.text};")
        return CValue(name, value.dtype)

    def _expression(self, node: UOp) -> CValue:
        if node.dtype is dtypes.float32 and node.op in (o.ADD, o.SUB, o.MUL, o.DIV, o.MULACC):
            return self.apply(node.op, node.dtype, *[self._unmerged(node, at) for at in range(len(node.src))])
        if node.op in (o.IDIV, o.MOD) and divides_in_32_bits(node):
            x, y = self.short(self.operand(node.src[0])), self.operand(node.src[1])
            return self.apply(node.op, node.dtype, x._replace(low=ix.span(node.src[0])[0]), y)
        if node.op is not o.PARAM:
            return super()._expression(node)
        words = CValue(f"args[{node.arg.slot}].xy", dtypes.uint64)
        if node.dtype in LONG:
            return self.short(words) if ix.fits(*ix.bounds(node)) else words._replace(dtype=node.dtype)
        return self._element(node.dtype, f"args[{node.arg.slot}].x", "0u")

    def _unmerged(self, node: UOp, at: int) -> CValue:
        """An operand that a driver must not merge with the operation: they take (x + c) - c for x, NaN * 0 for 0,
        and x / 0 for anything."""
        source, value = node.src[at], self.operand(node.src[at])
        inner = source.src[0] if source.op is o.NEG else source
        adds, twice = at == 2 or node.op in (o.ADD, o.SUB), len(node.src) == 2 and node.src[0] is node.src[1]
        if (adds and inner.op in (o.ADD, o.SUB, o.MULACC)) or (not adds and inner.op is o.MUL) or \
                (node.op is o.SUB and twice and at) or (source.op is o.CONST and source.arg == 0):
            return self.call(self.opaque(), dtypes.float32, 0, value)
        return value

    def sum(self, constant: int, terms: ix.Terms, lanes: int) -> CValue:
        """constant + sum of k * atom: in 32 bits where its numbers fit them."""
        values = {atom: self.operand(atom) for atom in terms}
        low, high = ix.span(ix.build(constant, terms))
        if ix.fits(low, high) and all(v.dtype is dtypes.int32 for v in values.values()):
            return self._short_sum(constant, terms, values)
        total = self.long(self.constant(constant, dtypes.index))
        for atom, k in terms.items():
            term = self.apply(o.MUL, dtypes.index, values[atom], self.constant(k, dtypes.index)) if k != 1 \
                else values[atom]
            total = self.apply(o.ADD, dtypes.index, total, term) if total.constant != 0 else self.long(term)
        return total

    def _short_sum(self, constant: int, terms: ix.Terms, values: dict[UOp, CValue]) -> CValue:
        """The sum in 32 bits: right where the result fits them, whatever its parts do."""
        ranked = sorted(terms, key=lambda a: (self.scope_of(a).depth, ix.order_key(a)))
        parts = []
        for atom in ranked:
            value, k = self.short(values[atom]).inside, wrapped(terms[atom], dtypes.int32)
            parts.append(value if k == 1 else f"{value} * {self.constant(k, dtypes.int32).text}")
        number = wrapped(constant, dtypes.int32)
        if number or not parts:
            parts.append(self.constant(number, dtypes.int32).text)
        known = constant if not terms else None
        return CValue(" + ".join(parts), dtypes.int32, 0, len(parts) == 1 and " " not in parts[0], known)

    # -- threads -------------------------------------------------------------------------------------------------
    def _folded(self, node: UOp) -> CValue:
        """The values of all threads combined in a tree; every thread gets the result."""
        dtype, combine = node.dtype, node.arg.combine
        value = self.held(self.operand(node.src[0]), dtype)
        lanes = next(r.arg.size for r in node.src[1:] if r in self.thread_ranges)
        if lanes < self.threads:
            start = self.held(self.constant(identity(combine, dtype).arg, dtype), dtype)
            value = CValue(f"select({start.text}, {value.text}, thread < {lanes})", dtype)
        return self.call(self._fold_helper(combine, dtype), dtype, 0, value, CValue("thread", dtypes.int32))

    def _fold_helper(self, combine: Op, dtype: DType) -> str:
        kind, count = self.type(dtype), self.threads
        area = f"area_{NAMES[dtype]}_{count}"
        self.definitions.types.setdefault(area, f"var<workgroup> {area}: array<{kind}, {count}>;")
        steps = []
        for gap in reversed([1 << i for i in range((count - 1).bit_length())]):      # no loop, whose rounds would count
            one, other = CValue(f"{area}[thread]", dtype), CValue(f"{area}[thread + {gap}]", dtype)
            steps.append(f"if (thread < {min(gap, count - gap)}) {{ {area}[thread] = "
                         f"{self.apply(combine, dtype, one, other).text}; }}")
            steps.append("workgroupBarrier();")
        return self.define(
            f"fold_{combine.name.lower()}_{NAMES[dtype]}_{count}", kind, f"x: {kind}, thread: i32",
            "workgroupBarrier();", f"{area}[thread] = x;", "workgroupBarrier();", *steps, f"return {area}[0];")

    # -- memory --------------------------------------------------------------------------------------------------
    def position(self, memory: UOp, index: UOp) -> CValue:
        """Where an index of a memory is in its array: the first word, or in units of a value that is less than one."""
        constant, terms = ix.linear(index)
        size, words = memory.dtype.itemsize, max(1, memory.dtype.itemsize // 4)
        place = self._short_sum(constant * words, {atom: k * words for atom, k in terms.items()},
                                {atom: self.operand(atom) for atom in terms})
        array, known = self.memories.of(memory), ("begin", memory)
        if not array.begin:
            return place
        if known not in self.given:
            self.pointers.append(f"let {self.named(known, f'{array.name}_at')} = {array.begin} / {min(size, 4)};")
        name = self.given[known]
        return CValue(name if place.constant == 0 else f"{name} + {place.text}", dtypes.int32, 0, place.constant == 0)

    def _once(self, x: CValue) -> str:
        """A text to be used several times."""
        if x.simple:
            return x.text
        self.values_named += 1
        name = self.named(("value", self.values_named), f"p{self.values_named}")
        self.line(f"let {name} = {x.text};")
        return name

    def load(self, memory: UOp, index: UOp, gate: UOp | None, lanes: int) -> CValue:
        array, place, dtype = self.memories.of(memory), self.position(memory, index), memory.dtype
        if dtype.itemsize == 4:
            value = self.bitcast(CValue(array.at(place.text), dtypes.uint32), dtype)
        elif dtype.itemsize == 8:
            at = self._once(place)
            value = CValue(f"{PAIR}({array.at(at)}, {array.at(f'{at} + 1')})", dtype)
        else:
            word, first = self._part(dtype, self._once(place))
            value = self._element(dtype, array.at(word), first)
        if gate is None:
            return value
        return CValue(f"select({self.type(dtype)}(), {value.text}, {self.operand(gate).text})", dtype)

    @staticmethod
    def _part(dtype: DType, at: str) -> tuple[str, str]:
        """The word that a value of less than 32 bits is in, and its first bit there."""
        count = 4 // dtype.itemsize
        return f"{at} / {count}", f"u32({at} % {count}) * {dtype.bits}u"

    def _element(self, dtype: DType, word: str, first: str) -> CValue:
        """A value of up to 32 bits from a word, from a bit of it on."""
        kind = kept(dtype)
        if kind.itemsize == 4:
            return self.bitcast(CValue(word, dtypes.uint32), dtype)
        part = f"extractBits({f'i32({word})' if kind.kind == 'i' else word}, {first}, {kind.bits}u)"
        return CValue(f"({part} != 0u)" if kind.kind == "b" else part, dtype)

    def store(self, statement: Store) -> None:
        memory, index, combine, dtype = statement.memory, statement.index, statement.combine, statement.memory.dtype
        test, value = self.store_test(statement, self.gate(statement)), self.operand(statement.value)
        if combine is not None:
            value = self.apply(combine, dtype, self.load(memory, index, statement.gate, 0), value)
        lines = self._writes(self.memories.of(memory), dtype, self.position(memory, index), self.held(value, dtype))
        for line in [f"if ({test}) {{ {' '.join(lines)} }}"] if test else lines:
            self.line(line)

    def _writes(self, array: Words, dtype: DType, place: CValue, value: CValue) -> list[str]:
        if dtype.itemsize == 4:
            pairs = [(place.text, self.bitcast(value, dtypes.uint32).text)]
        else:
            at, new = self._once(place), self._once(value._replace(simple=False))    # it may be made of what is cleared
            if dtype.itemsize < 4:
                word, first = self._part(dtype, at)
                bits = f"0x{(1 << dtype.bits) - 1:x}u"
                return [f"atomicAnd(&{array.name}[{word}], ~({bits} << ({first})));",
                        f"atomicOr(&{array.name}[{word}], (u32({new}) & {bits}) << ({first}));"]
            pairs = [(at, f"{new}.x"), (f"{at} + 1", f"{new}.y")]
        return [f"atomicStore(&{array.name}[{at}], {text});" if array.atomic else f"{array.name}[{at}] = {text};"
                for at, text in pairs]


RESERVED = ("alias", "array", "atomic", "bool", "break", "case", "const", "continue", "default", "diagnostic",
            "discard", "else", "enable", "f16", "f32", "false", "fn", "for", "i32", "if", "let", "local", "loop",
            "mat2x2", "override", "pass", "ptr", "requires", "return", "struct", "switch", "true", "u32", "var", "vec2",
            "vec3", "vec4", "while", "select", "min", "max", "abs", "fma", "sqrt", "trunc", "bitcast", "all", "any",
            "target")
