"""LLVM IR of a kernel. In: a `Kernel`, a `Target`. Out: the text of a module, already vectorized and in SSA form.

The text is compiled without optimization passes, so it must be good as it is: registers are SSA values joined by
phis, values are where `Walker` puts them, an address is one pointer per loop level plus a constant. Spelling of memory
access is in `llvm_memory`, of arithmetic in `llvm_ops`.
"""

from __future__ import annotations

from collections.abc import Mapping

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import index_algebra as ix, ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Accumulate, Assign, For, Kernel, Statement, Store, walk
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.render.launch import Places, function_name
from glassgrad.compiler.render.llvm.amx import Matrices
from glassgrad.compiler.render.llvm.llvm_memory import NONTEMPORAL
from glassgrad.compiler.render.llvm.llvm_ops import TYPES, LlvmValue, list_of, literal
from glassgrad.compiler.render.unroll_and_jam import Jammed
from glassgrad.compiler.render.value_order import NOTHING, SUMS, Flow, Walker

NO_ROWS: Mapping[Statement, int] = {}


ROW = " ; row "           # before the number of a row of the loop tree, at the end of a line that was written for it


def render_llvm(kernel: Kernel, target: Target, phases: list[Jammed], rows: Mapping[Statement, int] = NO_ROWS) -> str:
    """A kernel as the text of an LLVM module with one function per phase. Where `rows` gives the numbers of statements,
    each line ends with a comment that has the number of the one it was written for."""
    declarations: dict[str, str] = {}
    places = Places(kernel)
    functions = [LlvmFunction(places, target, jammed, function_name(kernel, p), declarations, kernel.streamed)
                 for p, jammed in enumerate(phases)]
    for function in functions:
        function.rows = rows
    texts = [function.text() for function in functions]
    notes = [NONTEMPORAL] if any(function.has_streamed for function in functions) else []
    return "\n".join([*texts, *[f"declare {d}" for d in declarations.values()], *notes, ""])


class LlvmFunction(Matrices):
    """One phase of a kernel as one LLVM function."""

    def __init__(self, places: Places, target: Target, jammed: Jammed, name: str, declarations: dict[str, str],
                 streamed: tuple[int, ...]):
        Walker.__init__(self, jammed)
        self.target, self.name, self.tasks, self.declarations = target, name, jammed.tasks, declarations
        self.registers: dict[UOp, LlvmValue] = {}
        self.counters: dict[UOp, LlvmValue] = {}
        self.counts: dict[UOp, dict[int, LlvmValue]] = {}       # of innermost loops: multiples of the counter
        self.offsets, self.slots = places.offsets, places.slots
        self.matrix_terms = {}
        self.streamed, self.has_streamed = streamed, False
        self.labels = 0
        self.rows = NO_ROWS
        self.mark = ""                                          # what a line ends with

    def text(self) -> str:
        head = f"define void @{self.name}(ptr %args, i64 %task, ptr %scratch) nounwind {{"
        self._count_tasks()
        self.run(self.body)
        if self.has_streamed and self.target.arch == "x86_64":     # other workers see them before the task ends
            self.declare("void", "@llvm.x86.sse.sfence", "")
            self.line("call void @llvm.x86.sse.sfence()")
        return "\n".join([head, "entry:", *self.scopes[0].lines, "  ret void", "}"])

    def _count_tasks(self) -> None:
        left = LlvmValue("%task", "i64")
        for number, range_ in reversed(list(enumerate(self.tasks))):
            size = range_.arg.size
            if size == 1:
                continue
            if any(r.arg.size > 1 for r in self.tasks[:number]):
                self.counters[range_] = self.put(f"urem i64 {left.text}, {size}", "i64", 0)
                left = self.put(f"udiv i64 {left.text}, {size}", "i64", 0)
            else:
                self.counters[range_] = left

    # -- writing -------------------------------------------------------------------------------------------------
    def line(self, text: str) -> None:
        self.scope.lines.append("  " + text + self.mark)

    def before(self, statement: Statement) -> None:
        if self.rows:
            self.mark = f"{ROW}{self.rows[statement]}" if statement in self.rows else ""

    def declare(self, result: str, name: str, arguments: str) -> None:
        if name not in self.declarations:
            self.declarations[name] = f"{result} {name}({arguments})"

    def label(self, what: str) -> str:
        self.labels += 1
        return f"{what}{self.labels}"

    # -- control -------------------------------------------------------------------------------------------------
    def loop(self, statement: For, flow: Flow) -> None:
        stop = statement.stop
        if stop is None or ix.bounds(stop)[0] > 0:
            self._loop(statement, flow)
        else:
            self.branch(ix.less(ix.index(0), stop), [statement], flow)

    def branch(self, condition: UOp, body: list[Statement], flow: Flow) -> None:
        test = self.operand(condition)
        around = self.scopes[-1]
        inside, after = self.label("then"), self.label("after")
        before = {r: self.registers.get(r) for r in flow.writes if r.op is o.REGISTER and not self.is_matrix(r)}
        self.enter(flow, inside, guard=True)
        if len(body) == 1 and isinstance(body[0], For) and self.flows[body[0]] is flow:
            self._loop(body[0], flow)
        else:
            self.run(body)
        scope = self.scopes[-1]
        self.leave()
        around.lines += [f"  br i1 {test.text}, label %{inside}, label %{after}", f"{inside}:", *scope.lines,
                         f"  br label %{after}", f"{after}:"]
        start, around.block = around.block, after
        for register, old in before.items():
            new = self.registers[register]
            if old is None:
                old = self.wide(literal(0, register.dtype), new.lanes)
            self.registers[register] = self.put(
                f"phi {new.full} [ {new.text}, %{scope.block} ], [ {old.text}, %{start} ]", new.type, new.lanes)

    def _loop(self, statement: For, flow: Flow) -> None:
        range_, mark = statement.range, self.mark
        limit = self._trips(statement)
        around = self.scopes[-1]
        start, head, after = around.block, self.label("loop"), self.label("after")
        name = f"%{_plain(range_.arg.name)}_{self.labels}"     # apart: k1 of label 4 is not k of label 14
        self.counters[range_] = LlvmValue(name, "i64")
        counts: dict[int, LlvmValue] = {}
        if not flow.loops:
            self.counts[range_] = counts
        joins = []
        for register in flow.writes:
            if register.op is not o.REGISTER:
                continue
            if register in flow.exposed or register not in flow.assigned:
                before = self._before(register, statement)
                self.names += 1
                inside = LlvmValue(f"%v{self.names}", before.type, before.lanes)
                joins.append((register, inside, before))
                self.registers[register] = inside
            else:
                self.registers.pop(register, None)
        self.enter(flow, head, range_)
        self.run(statement.body)
        scope = self.scopes[-1]
        self.leave()
        end, lines = scope.block, around.lines
        # the multiple that ends the loop, one that does not wrap around before
        trips = None if limit.constant is None else int(limit.constant)
        last = 1 if trips is None else next((k for k in counts if 0 < k * trips < 1 << 63), 1)
        counts.setdefault(last, self.counters[range_])
        lines += [f"  br label %{head}", f"{head}:"]
        lines += [f"  {c.text} = phi i64 [ 0, %{start} ], [ {c.text}.next, %{end} ]" for c in counts.values()]
        lines += [f"  {new.text} = phi {new.full} [ {old.text}, %{start} ], [ {self.registers[r].text}, %{end} ]"
                  for r, new, old in joins]
        lines += scope.lines
        for k, c in counts.items():
            # frozen, so that LLVM does not take these counters apart again, which costs a third of its time
            lines += [f"  {c.text}.sum = add i64 {c.text}, {_wrapped(k)}{mark}",
                      f"  {c.text}.next = freeze i64 {c.text}.sum{mark}"]
        end_at = limit.text if trips is None else trips * last
        lines += [f"  {name}.more = icmp ult i64 {counts[last].text}.next, {end_at}{mark}",
                  f"  br i1 {name}.more, label %{head}, label %{after}{mark}", f"{after}:"]
        around.block = after
        del self.counters[range_]
        self.counts.pop(range_, None)

    def _before(self, register: UOp, statement: For) -> LlvmValue:
        """A register's value before a loop that changes it: 0 where only a branch inside gives it one."""
        if register in self.registers or not any(isinstance(s, Assign) and s.register is register
                                                 for s in walk(statement.body)):
            return self.register(register)
        return self.wide(literal(0, register.dtype), self.widths[register])

    def _trips(self, statement: For) -> LlvmValue:
        size, stop = statement.range.arg.size, statement.stop
        whole = literal(size, dtypes.index)
        if stop is None:
            return whole
        limit = self.operand(stop)
        return limit if ix.bounds(stop)[1] <= size else self.call("llvm.smin", "i64", 0, limit, whole)

    # -- registers and values ------------------------------------------------------------------------------------
    def register(self, node: UOp) -> LlvmValue:
        found = self.registers.get(node)
        if found is None:
            raise Bug(f"the register {node.arg}{[s.arg for s in node.src]} is read before it is assigned")
        return found

    def assign(self, statement: Assign) -> None:
        if self.is_matrix(statement.register):
            self.assign_matrix(statement)
            return
        lanes = self.widths[statement.register]
        if self.widths[statement.value] and not lanes:
            raise Bug(f"the register {statement.register.arg} is narrower than the value assigned to it")
        self.registers[statement.register] = self.operand(statement.value, lanes)

    def accumulate(self, statement: Accumulate) -> None:
        if self.is_matrix(statement.register):
            self.accumulate_matrix(statement)
            return
        register, combine, value = statement.register, statement.combine, statement.value
        lanes, dtype = self.widths[register], register.dtype
        if combine is o.ADD and value.op is o.MUL and dtype.kind == "f":
            x, y = self.operand(value.src[0], lanes), self.operand(value.src[1], lanes)
            result = self.multiply_add(dtype, x, y, self.register(register))
        else:
            more = self.operand(value, lanes)
            # the fresh value first: its NaN test is then not part of the chain from one iteration to the next
            result = self.apply(combine, dtype, more, self.register(register)) if combine.commutative else \
                self.apply(combine, dtype, self.register(register), more)
        self.registers[register] = result

    def store(self, statement: Store) -> None:
        if statement.value.op is o.REGISTER and self.is_matrix(statement.value):
            self.store_matrix(statement)
        else:
            super().store(statement)

    def get(self, node: UOp) -> LlvmValue:
        """The value of a node, computed now if it is not there."""
        op = node.op
        if op is o.CONST:
            return literal(node.arg, node.dtype)
        if op is o.REGISTER:
            return self.register(node)
        if op is o.RANGE:
            if node in self.lanes:
                return list_of(range(node.arg.size), "i32")
            if node in self.counts:
                self.counts[node][1] = self.counters[node]
            return self.counters[node]
        return self.value(node)  # type: ignore[no-any-return]

    def operand(self, node: UOp, lanes: int = 0, type_: str | None = None) -> LlvmValue:
        """A node's value with so many lanes. Lane indices may be i32 inside; they leave as their own type."""
        value = self.get(node)
        type_ = type_ or TYPES[node.dtype]
        if value.lanes == lanes and value.type == type_:
            return value
        if node.op is o.CONST:
            return self.wide(literal(node.arg, node.dtype, type_), lanes)
        home, key = self.home(node), (node, lanes, type_)
        found = home.values.get(key)
        if found is None:
            resume, self.scope = self.scope, home
            found = self.wide(value if value.type == type_ else self.resize(value, type_), lanes)
            self.keep(home, key, self.reads[node], found)
            self.scope = resume
        return found  # type: ignore[no-any-return]

    def make(self, node: UOp) -> LlvmValue:
        op, dtype, src, lanes = node.op, node.dtype, node.src, self.widths[node]
        if op is o.LOAD:
            return self.load(node)
        if op is o.PARAM:
            return self.cell(node)
        if op is o.FOLD:
            return self.fold(node.arg.combine, dtype, self.operand(src[0], self.lanes[src[1]]))
        if op is o.CAST:
            value = self.get(src[0])
            may_be_i32 = src[0].dtype is dtypes.index and lanes
            return self.cast(value if may_be_i32 else self.operand(src[0], lanes), src[0].dtype, dtype)
        if op is o.BITCAST:
            return self.bitcast(self.operand(src[0], lanes), TYPES[dtype])
        if op is o.WHERE:
            condition = self.operand(src[0], self.widths[src[0]])
            return self.apply(op, dtype, condition, *[self.operand(s, lanes) for s in src[1:]])
        if op.kind == o.Kind.BINARY and src[0].dtype is dtypes.index:
            if op in SUMS and node not in ix.linear(node)[1]:
                constant, terms = ix.linear(node)
                return self.lane_sum(node, lanes) if lanes else self.total(constant, terms)
            if lanes and op is o.CMPLT and (result := self.lane_less(node, lanes)):
                return result
            low, _ = ix.span(src[0])
            small = lanes and op in _IN_32_BITS and all(fits(*ix.span(s)) for s in src)
            type_ = "i32" if small else "i64"
            x, y = self.operand(src[0], lanes, type_), self.operand(src[1], lanes, type_)
            return self.apply(op, dtypes.index, x._replace(low=low), y)
        return self.apply(op, src[-1].dtype, *[self.operand(s, lanes) for s in src])

    # -- index arithmetic ----------------------------------------------------------------------------------------
    def resize(self, value: LlvmValue, type_: str) -> LlvmValue:
        """A lane index as another integer type; its value fits both."""
        return self.convert("trunc" if type_ == "i32" else "sext", value, type_)

    def total(self, constant: int, terms: ix.Terms) -> LlvmValue:
        """constant + sum of k * atom in scalars: outer loops' terms first, so that they are added up outside."""
        ranked = sorted([(self.home(a).depth, ix.order_key(a), a, k) for a, k in terms.items()], key=lambda t: t[:2])
        result: LlvmValue | None = None
        key: tuple[object, ...] = ("sum",)
        resume = self.scope
        reads = NOTHING
        for depth, _, atom, k in ranked:
            key = (*key, atom, k)
            reads |= self.reads[atom]
            self.scope = self.scopes[depth]
            found = self.scope.values.get(key)
            if found is None:
                term = self.multiple(atom, k)
                found = term if result is None else self.put(f"add i64 {result.text}, {term.text}", "i64", 0)
                self.keep(self.scope, key, reads, found)
            result = found
        if result is not None and constant:
            result = self.put(f"add i64 {result.text}, {_wrapped(constant)}", "i64", 0)
        self.scope = resume
        return result or literal(_wrapped(constant), dtypes.index)

    def multiple(self, atom: UOp, k: int) -> LlvmValue:
        """k * atom; of an innermost loop's counter it is counted along instead of multiplied."""
        counts = self.counts.get(atom)
        if k == 1 or counts is None:
            value = self.operand(atom)
            return value if k == 1 else self.put(f"mul i64 {value.text}, {_wrapped(k)}", "i64", 0)
        found = counts.get(k)
        if found is None:
            found = counts[k] = LlvmValue(f"{self.counters[atom].text}.{str(k).replace('-', 'm')}", "i64")
        return found

    def lane_sum(self, node: UOp, lanes: int) -> LlvmValue:
        """An index that differs between lanes: its scalar part, repeated, plus what the lanes add."""
        constant, terms = ix.linear(node)
        type_ = "i32" if fits(*ix.span(node)) else "i64"
        same = {a: k for a, k in terms.items() if not self.widths[a]}
        result: LlvmValue | None = None
        for atom, k in terms.items():
            if atom in same:
                continue
            if atom in self.lanes:
                term = list_of([_wrapped(k * i + (0 if same else constant), type_) for i in range(lanes)], type_)
                constant = constant if same else 0
            else:
                term = self.operand(atom, lanes, type_)
                if k != 1:
                    times = literal(_wrapped(k, type_), dtypes.index, type_)
                    term = self.instruction("mul", term, self.wide(times, lanes))
            result = term if result is None else self.instruction("add", result, term)
        if same or constant or result is None:
            scalar = self.total(constant, same)
            if scalar.type != type_:
                scalar = self.resize(scalar, type_) if scalar.constant is None else \
                    literal(_wrapped(int(scalar.constant), type_), dtypes.index, type_)
            repeated = self.wide(scalar, lanes)
            result = repeated if result is None else self.instruction("add", result, repeated)
        return result

    def lane_less(self, node: UOp, lanes: int) -> LlvmValue | None:
        """x < y between indices: what differs between lanes against one scalar limit."""
        sides = self.sides_of_less(node)
        if sides is None:
            return None
        wide, limit = sides
        type_ = "i32" if fits(*ix.span(wide)) and fits(*ix.span(limit)) else "i64"
        return self.compare("slt", self.operand(wide, lanes, type_), self.operand(limit, lanes, type_))


_IN_32_BITS = (o.IDIV, o.MOD, o.MAX, o.MIN, o.CMPLT, o.CMPEQ, o.CMPNE)


def fits(low: int, high: int) -> bool:
    """Whether an index can be computed in 32 bits."""
    return -(1 << 31) <= low and high < 1 << 31


def _wrapped(value: int, type_: str = "i64") -> int:
    bits = int(type_[1:])
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() or c == "_" else "_" for c in name)
