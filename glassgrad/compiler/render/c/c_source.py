"""Render a kernel as C. In: a `Kernel`, a `Target`. Out: C source for GCC or Clang, which people can read too.

Loops are loops, registers are variables. An expression used once is written in place; one used several times gets a
name in the scope that `Walker` chooses for it. `c_ops` spells arithmetic. `Walker` (value_placement.py) promises:

    run(body)        calls loop, branch, assign, accumulate, store or prefetch for each statement, in order
    value(node)      a node's value: the result of make(node), called once while nothing that the node reads changes
    scope.lines      where text goes now; during make(node), the lines of the outermost scope where the value is valid
"""

from __future__ import annotations

from typing import Any

from glassgrad.compiler.graph import UOp, index_algebra as ix, ops as o, toposort
from glassgrad.compiler.graph.dtype import DType, dtypes, wrapped
from glassgrad.compiler.lower.loops import Accumulate, For, Kernel, Prefetch, Statement, Store, shared_locals
from glassgrad.compiler.lower.missing_instructions import in_memory
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.render.c.c_ops import NAMES, SPELLED, CArithmetic, CValue, Definitions, width
from glassgrad.compiler.render.launch_info import LaunchInfo, LocalLayout, function_name, launch_info, slot_of
from glassgrad.compiler.render.unroll_and_jam import Jammed
from glassgrad.compiler.render.value_placement import HAS_LOAD, SUMS, Flow, Walker

LONGEST = 72       # characters of an expression above which it gets a name


def render_c(kernel: Kernel, target: Target, phases: list[Jammed], linkage: str = "") -> str:
    """Render a kernel as C, with one function per phase; `linkage` is a word before each of them ("static")."""
    definitions = Definitions()
    functions = [CFunction(LocalLayout(kernel, p), target, jammed, function_name(kernel, p), definitions).text()
                 for p, jammed in enumerate(phases)]
    return "\n".join([*definitions.lines, "", "\n\n".join(linkage + text for text in functions), ""])


class CFunction(CArithmetic, Walker):
    """One phase of a kernel as one C function."""
    counts_in = "i64"                # the type of counters

    def __init__(self, places: LocalLayout, target: Target, jammed: Jammed, name: str, definitions: Definitions):
        Walker.__init__(self, jammed)
        self.definitions, self.name, self.tasks, self.matrix_units = definitions, name, jammed.tasks, target.units
        self.offsets, self.slots = places.offsets, places.slots
        self.taken: set[str] = {"args", "task", "scratch", *_KEYWORDS}
        self.names: dict[Any, str] = {}                  # loop, register or value -> its name
        self.registers: dict[UOp, str] = {}
        self.values_named = 0
        self.pointers: list[str] = []
        self.uses: dict[UOp, int] = {}
        roots = self.roots
        for node in [*roots, *[s for n in toposort(roots) for s in self.needs(n)]]:
            self.uses[node] = self.uses.get(node, 0) + 1

    def text(self) -> str:
        """The whole function."""
        self.type(dtypes.int64)
        head = f"void {self.name}(void **args, i64 task, void *scratch) {{"
        self.take_apart_task()
        self.run(self.body)
        lines = [*self.pointers, *self.declared(), *self.scopes[0].lines]
        return "\n".join([head, *["  " + line for line in lines], "}"])

    def declared(self) -> list[str]:
        """The declarations of registers."""
        variables: dict[str, list[str]] = {}
        for register, name in self.registers.items():
            variables.setdefault(self.type(register.dtype, self.widths[register]), []).append(name)
        return [f"{kind} {', '.join(names)};" for kind, names in variables.items()]

    def take_apart_task(self) -> None:
        """Compute the counters of the TASK loops from the number of the task."""
        left = "task"
        for at, range_ in reversed(list(enumerate(self.tasks))):
            if range_.arg.size == 1:
                continue
            outer = any(r.arg.size > 1 for r in self.tasks[:at])
            value = f"{left} % {range_.arg.size}" if outer else left
            self.line(f"{self.counts_in} {self.named(range_, range_.arg.name)} = {value};")
            left = f"{left} / {range_.arg.size}"

    # -- names ---------------------------------------------------------------------------------------------------
    def named(self, key: Any, preferred: str) -> str:
        """A name for a loop, register or value: the preferred one, followed by a number if that is taken."""
        found = self.names.get(key)
        if found is None:
            preferred = "".join(c if c.isalnum() else "_" for c in preferred)
            preferred = preferred if preferred[:1].isalpha() else "v" + preferred
            found, n = preferred, 1
            while found in self.taken:
                n += 1
                found = f"{preferred}_{n}"
            self.taken.add(found)
            self.names[key] = found
        return found

    def line(self, text: str) -> None:
        self.scope.lines.append(text)

    def base(self, memory: UOp) -> str:
        """The pointer to the first element of a param or LOCAL, declared at the top."""
        if ("base", memory) not in self.names:
            name = f"data{memory.arg.slot}" if memory.op is o.PARAM else memory.arg.name
            pointer = self.pointer(memory, self.named(("base", memory), name))
            self.pointers += [pointer] if pointer else []
        return self.names["base", memory]

    def pointer(self, memory: UOp, name: str) -> str:
        """The declaration of a pointer to a memory's first element; empty if it is a parameter."""
        kind = self.unit(memory) if memory in self.stored else f"const {self.unit(memory)}"
        if memory in self.offsets:
            return f"{kind} *{name} = ({kind} *)((char *)scratch + {self.offsets[memory]});"
        return f"{kind} *{name} = args[{slot_of(memory, self.slots)}];"

    # -- control -------------------------------------------------------------------------------------------------
    def loop(self, statement: For, flow: Flow) -> None:
        range_, stop, limit = statement.range, statement.stop, self.loop_end(statement)
        name = self.named(range_, range_.arg.name)
        heads = [*self.loop_pragmas(range_, flow), f"for ({self.counts_in} {name} = 0; {name} < {limit}; {name}++) {{"]
        self._nested(heads, statement.body, flow, range_, stop is not None and ix.bounds(stop)[0] <= 0)

    def loop_end(self, statement: For) -> str:
        """The upper bound (exclusive) of a loop's counter."""
        stop, size = statement.stop, statement.range.arg.size
        if stop is None:
            return str(size)
        end = self.operand(stop)
        if ix.bounds(stop)[1] > size:
            end = self.choice(end.dtype, f"{end.inside} < {size}", end.inside, str(size))
        return self.carried(end, dtypes.int32).inside

    def loop_pragmas(self, range_: UOp, flow: Flow) -> list[str]:
        """Lines before a loop that tell the compiler how to treat it."""
        return []

    def branch(self, condition: UOp, body: list[Statement], flow: Flow) -> None:
        self._nested([f"if ({self.operand(condition).text}) {{"], body, flow, None, True)

    def _nested(self, heads: list[str], body: list[Statement], flow: Flow, range_: UOp | None, guard: bool) -> None:
        around = self.scopes[-1]
        self.enter(flow, "", range_, guard)
        self.run(body)
        lines = self.scopes[-1].lines
        self.leave()
        around.lines += [*heads, *["  " + line for line in lines], "}"]

    # -- registers and values ------------------------------------------------------------------------------------
    def register(self, node: UOp) -> CValue:
        name = self.registers.get(node)
        if name is None:
            places = [str(s.arg) for s in node.src if s.op is o.CONST]
            name = self.registers[node] = self.named(node, "_".join([node.arg, *places]))
        return CValue(name, node.dtype, self.widths[node])

    def set_register(self, node: UOp, value: CValue) -> None:
        self.line(f"{self.register(node).text} = {value.text};")

    def accumulate(self, statement: Accumulate) -> None:
        register, combine, value = statement.register, statement.combine, statement.value
        target, lanes = self.register(register), self.widths[register]
        if combine is o.ADD and value.op is o.MUL and register.dtype.kind == "f":
            x, y = self.operand(value.src[0]), self.operand(value.src[1])      # a single fused instruction
            product = self.infix("*", x, y, register.dtype)
            product = product if lanes == product.lanes else self.wide(product, lanes)
            self.line(f"{target.text} += {product.text};")
            return
        operand = self.operand(value, lanes)
        if combine is o.ADD and register.dtype.bits >= 32:
            self.line(f"{target.text} += {operand.text};")
        else:
            self.line(f"{target.text} = {self.apply(combine, register.dtype, operand, target).text};")

    def operand(self, node: UOp, lanes: int | None = None) -> CValue:
        """The value of a node: scalar, or as wide as the node is, or with the given lanes."""
        if node.op is o.CONST:
            value = self.constant(node.arg, node.dtype)
        elif node.op is o.REGISTER:
            value = self.register(node)
        else:
            value = self._counter(node) if node.op is o.RANGE else self.value(node)
        return value if lanes is None else self.wide(value, lanes)

    def _counter(self, node: UOp) -> CValue:
        if node not in self.lanes:
            return CValue(self.named(node, node.arg.name), node.dtype)
        full = self.type(node.dtype, node.arg.size)
        return CValue(f"({full}){{{', '.join(str(i) for i in range(node.arg.size))}}}", node.dtype, node.arg.size)

    def make(self, node: UOp) -> CValue:
        """Write a node's value, to a named variable if it is used more than once; return its spelling."""
        value = self._expression(node)
        name = self.name_for(node, value)
        if not name:
            return value
        kind = self.value_type(node, value.lanes)
        self.line(self.spelling.value.format(kind=kind, name=name, value=value.text))
        return CValue(name, value.dtype, value.lanes)

    def value_type(self, node: UOp, lanes: int) -> str:
        """The type of the variable that keeps a value."""
        return self.type(node.dtype, lanes)

    def name_for(self, node: UOp, value: CValue) -> str:
        """The name for a value; empty if it is written in place."""
        if node.op is o.PARAM:
            return self.named(node, f"scalar{node.arg.slot}")
        if self.uses.get(node, 1) > 1 and not _is_name(value.text) and not self._is_index(node) \
                or len(value.text) > LONGEST or self.scope is not self.scopes[-1] and HAS_LOAD in self.reads[node]:
            return self.fresh_name("v")
        return ""

    def fresh_name(self, letter: str) -> str:
        """A new name for a value."""
        self.values_named += 1
        return self.named(("value", self.values_named), f"{letter}{self.values_named}")

    def _is_index(self, node: UOp) -> bool:
        """Whether a node is a plain sum of counters, which reads best where it is used."""
        return node.dtype is dtypes.index and not self.widths[node] and node.op in SUMS \
            and all(a.op is o.RANGE for a in ix.linear(node)[1])

    def _expression(self, node: UOp) -> CValue:
        op, dtype, src, lanes = node.op, node.dtype, node.src, self.widths[node]
        if op is o.LOAD:
            return self.load(src[0], src[1], src[2] if len(src) == 3 else None, lanes)
        if op is o.PARAM:
            return CValue(f"*{self.base(node)}", dtype)
        if op is o.FOLD:
            return self.fold(node.arg.combine, dtype, self.operand(src[0], self.lanes[src[1]]))
        if op in SUMS and dtype is dtypes.index and node not in ix.linear(node)[1]:
            return self.sum(*ix.linear(node), lanes)
        values = [self.operand(s) for s in src]
        if op is o.CAST:
            return self.cast(values[0], dtype)
        if op is o.BITCAST:
            return self.bitcast(values[0], dtype)
        if src[0].dtype is dtypes.index:
            values[0] = values[0]._replace(low=ix.span(src[0])[0])
        return self.apply(op, src[-1].dtype, *values)

    def carried(self, x: CValue, dtype: DType) -> CValue:
        """Convert an int64 to `dtype`, in languages without implicit conversions."""
        return x

    def sum(self, constant: int, terms: ix.Terms, lanes: int, dtype: DType = dtypes.index) -> CValue:
        """constant + sum of k * atom, as a person would write it."""
        total: CValue | None = None
        ranked = sorted(terms, key=lambda a: (self.widths[a], self.scope_of(a).depth, ix.order_key(a)))
        for atom, k in [(a, wrapped(terms[a], dtype)) for a in ranked]:
            value = self.carried(self.operand(atom), dtype)
            times = self.constant(wrapped(abs(k), dtype), dtype)
            term = value if abs(k) == 1 else self.infix("*", value, times, dtype)
            if total is None:
                if abs(k) == 1:
                    term = CValue(term.inside, dtype, term.lanes)
                total = term if k > 0 else CValue(f"-{term.inside}", dtype, term.lanes, False)
            else:
                text = f"{total.text} {'+' if k > 0 else '-'} {term.inside if abs(k) == 1 else term.text}"
                total = CValue(text, dtype, max(total.lanes, term.lanes), False)
        constant = wrapped(constant, dtype)
        rest = self.constant(abs(constant) if constant > dtype.min else constant, dtype)
        if total is None:
            return self.wide(self.constant(constant, dtype), lanes)
        if constant:
            sign = "-" if dtype.min < constant < 0 else "+"
            total = CValue(f"{total.text} {sign} {rest.text}", dtype, total.lanes, False)
        return self.wide(total, lanes)

    # -- memory --------------------------------------------------------------------------------------------------
    def split(self, index: UOp) -> tuple[CValue, UOp, int | None]:
        """Split an index into (scalar part, terms of lanes, step from lane to lane or None)."""
        constant, same, wide, step = self.index_parts(index)
        return self.sum(constant, same, 0), ix.index(0) if wide is None else wide, step

    def address(self, memory: UOp, scalar: CValue) -> str:
        return self.base(memory) if scalar.constant == 0 else f"{self.base(memory)} + {scalar.text}"

    def spot(self, memory: UOp, index: UOp) -> str:
        """The index of an element in its memory."""
        return self.split(index)[0].text

    def takes_part(self, index: UOp) -> str:
        """The condition under which a thread takes part in an access, if threads are lanes; empty: always."""
        return ""

    def load(self, memory: UOp, index: UOp, gate: UOp | None, lanes: int) -> CValue:
        dtype = memory.dtype
        scalar, wide, step = self.split(index)
        test = None if gate is None else self.operand(gate)
        if not lanes:
            text = f"{self.base(memory)}[{self.spot(memory, index)}]"
            return CValue(text, dtype) if test is None else CValue(f"{test.inside} ? {text} : 0", dtype, 0, False)
        kind, full = self.unit(memory), self.unit(memory, lanes)
        pointer = self.address(memory, scalar)
        masked = test is not None and test.lanes > 0
        mask_parameter, lane_test, mask, suffix = self._mask(full, lanes, gate if masked else None)
        if step == 1 and not masked and lanes == width(lanes):
            name = self.define(f"load_{full}", full, f"const {kind} *p", self._unaligned(memory, full),
                               "return *(const any *)p;")
            text = f"{name}({pointer})"
        else:
            parameter, at = self._lane_index(step, lanes)
            name = self.define(f"gather_{suffix}" if step is None else f"load_{suffix}_step", full,
                               f"const {kind} *p, {parameter}{mask_parameter}", f"{full} r = {{0}};",
                               f"for (int i = 0; i < {lanes}; i++) {lane_test}r[i] = p[{at}];", "return r;")
            text = f"{name}({pointer}, {self.operand(wide).text if step is None else step}{mask})"
        if test is not None and not masked:
            text = f"({test.inside} ? {text} : ({full}){{0}})"
        if dtype is dtypes.bool:
            return self.cast(CValue(text, dtypes.uint8, lanes), dtypes.bool)
        return CValue(text, dtype, lanes)

    def gate(self, statement: Store) -> str:
        """The condition under which a statement stores; empty: always."""
        return "" if statement.gate is None else self.operand(statement.gate).inside

    def prefetch(self, statement: Prefetch) -> None:
        self.line(f"__builtin_prefetch({self.address(statement.memory, self.split(statement.index)[0])}, 0, 2);")

    def store(self, statement: Store) -> None:
        memory, dtype = statement.memory, statement.memory.dtype
        scalar, wide, step = self.split(statement.index)
        lanes, value = self.widths[statement.index], self.stored_value(statement)
        if not lanes:
            self.line(f"{self.base(memory)}[{scalar.text}] = {value.text};")
            return
        if dtype is dtypes.bool:
            value = self.cast(value, dtypes.uint8)
        kind, full, pointer = self.unit(memory), self.unit(memory, lanes), self.address(memory, scalar)
        mask_parameter, lane_test, mask, suffix = self._mask(full, lanes, statement.gate)
        if step == 1 and not mask and lanes == width(lanes):
            name = self.define(f"store_{full}", "void", f"{kind} *p, {full} v",
                               self._unaligned(memory, full), "*(any *)p = v;")
            self.line(f"{name}({pointer}, {value.text});")
        else:
            parameter, at = self._lane_index(step, lanes)
            name = self.define(f"scatter_{suffix}" if step is None else f"store_{suffix}_step", "void",
                               f"{kind} *p, {parameter}, {full} v{mask_parameter}",
                               f"for (int i = 0; i < {lanes}; i++) {lane_test}p[{at}] = v[i];")
            self.line(f"{name}({pointer}, {self.operand(wide).text if step is None else step}, {value.text}{mask});")

    def _lane_index(self, step: int | None, lanes: int) -> tuple[str, str]:
        """A helper's parameter for the lanes' positions, and the index of lane i: by a stride, or an index per lane."""
        return (f"{self.type(dtypes.index, lanes)} at", "at[i]") if step is None else ("i64 step", "i * step")

    @staticmethod
    def _unaligned(memory: UOp, full: str) -> str:
        return f"typedef {full} any __attribute__((aligned({memory.dtype.itemsize}), may_alias));"

    def _mask(self, full: str, lanes: int, gate: UOp | None) -> tuple[str, str, str, str]:
        """The parts that a mask adds to a helper: a parameter, the test of a lane, an argument, the end of the name."""
        if gate is None:
            return "", "", "", full
        return f", {self.type(dtypes.bool, lanes)} where", "if (where[i]) ", \
            f", {self.operand(gate, lanes).text}", f"{full}_where"

    def unit(self, memory: UOp, lanes: int = 0) -> str:
        """The type of an element in memory, or of a vector of `lanes` elements."""
        return self.type(in_memory(memory.dtype), lanes)


_KEYWORDS = ("auto", "break", "case", "char", "const", "default", "do", "double", "else", "float", "for", "if", "int",
             "long", "register", "return", "short", "signed", "static", "switch", "union", "unsigned", "void", "while",
             "inline", "bool", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f32", "f64")


def _is_name(text: str) -> bool:
    return text.replace("_", "a").isalnum()


# -- one plain function, for users' own devices: without vectors, tasks or a table of arguments ------------------
PLAIN = Target("plain", 8, 16)      # a processor without known features: scalar registers


def plain_launch(kernel: Kernel) -> LaunchInfo:
    """What a launch must provide: memory shared by the phases, and scratch memory, each as one more pointer."""
    info = launch_info(kernel)
    scratch = (info.scratch_bytes,) if info.scratch_bytes else ()
    return LaunchInfo(info.phases, (*info.shared, *scratch), 0)


def plain_function(kernel: Kernel, phases: str, prefix: str = "", qualifier: str = "") -> str:
    """Render a kernel as one function with ordinary pointers, which any C compiler accepts:

        void name(float *data0, const float *data1, char *scratch)

    It calls the phases ("plain c" for the target PLAIN: static functions) in order. `prefix` comes before everything,
    `qualifier` before the kernel (for example `extern "C"`)."""
    info = launch_info(kernel)
    slots = sorted(kernel.params, key=lambda p: p.arg.slot)
    parameters = [f"{'' if p.arg.slot in kernel.written else 'const '}{_type(p.dtype)} *data{p.arg.slot}"
                  for p in slots]
    pointers = [f"(void *)data{p.arg.slot}" for p in slots]
    for i, _ in enumerate(shared_locals(kernel)):
        parameters.append(f"void *shared{i}")
        pointers.append(f"shared{i}")
    scratch = "0"
    if info.scratch_bytes:
        parameters.append("void *scratch")
        scratch = "scratch"
    body = [f"  void *args[] = {{{', '.join(pointers)}}};"]
    for name, tasks in info.phases:
        call = f"{name}(args, task, {scratch});"
        body.append(f"  for (long long task = 0; task < {tasks}; task++) {call}" if tasks != 1 else
                    f"  {name}(args, 0, {scratch});")
    head = f"{qualifier + ' ' if qualifier else ''}void {kernel.name}({', '.join(parameters)}) {{"
    return "\n".join([*([prefix] if prefix else []), phases, head, *body, "}", ""])


def _type(dtype: DType) -> str:
    """The element type of pointers: reduced-precision floats are passed as bits, booleans as bytes."""
    return SPELLED[NAMES[in_memory(dtype)]]
