"""Render a kernel as LLVM IR. In: a `Kernel`, a `Target`. Out: the text of a module, vectorized and in SSA form.

The text is compiled without optimization passes, so it must be good as it is: registers are SSA values joined by phis,
`Walker` places values, and an address is one pointer per loop level plus a constant (`llvm_and_wasm`). `llvm_memory`
spells memory access, `llvm_ops` arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from glassgrad.base.cached_property import cached_property
from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.graph.dtype import DType, dtypes, wrapped
from glassgrad.compiler.lower.loops import Accumulate, Assign, For, Kernel, Statement, Store, walk
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.render.launch_info import LocalLayout, function_name
from glassgrad.compiler.render.llvm.amx import Matrices
from glassgrad.compiler.render.llvm.llvm_memory import NONTEMPORAL, LlvmMemory
from glassgrad.compiler.render.llvm.llvm_ops import TYPES, LlvmValue, list_of, literal
from glassgrad.compiler.render.unroll_and_jam import Jammed
from glassgrad.compiler.render.value_placement import Flow

ROW = " ; row "           # precedes the row number of the loop tree at the end of each line


def render_llvm(kernel: Kernel, target: Target, phases: list[Jammed], rows: Mapping[Statement, int]) -> str:
    """Render a kernel as the text of an LLVM module, with one function per phase. If `rows` numbers the statements,
    each line ends with a comment that has the number of the statement it was written for."""
    declarations: dict[str, str] = {}
    functions = [LlvmFunction(LocalLayout(kernel, p), target, jammed, function_name(kernel, p), declarations,
                              kernel.streamed, rows) for p, jammed in enumerate(phases)]
    texts = [function.text() for function in functions]
    notes = [NONTEMPORAL] if any(function.has_streamed for function in functions) else []
    return "\n".join([*texts, *[f"declare {d}" for d in declarations.values()], *notes, ""])


class LlvmFunction(LlvmMemory):
    """One phase of a kernel as one LLVM function."""
    counter_type = dtypes.int64

    def __init__(self, places: LocalLayout, target: Target, jammed: Jammed, name: str, declarations: dict[str, str],
                 streamed: tuple[int, ...], rows: Mapping[Statement, int]):
        super().__init__(places, jammed, name)
        self.target, self.declarations = target, declarations
        self.streamed, self.has_streamed, self.lane_of = streamed, False, {}
        self.labels = 0
        self.rows = rows
        self.mark = ""                                          # the end of each line

    def text(self) -> str:
        head = f"define void @{self.name}(ptr %args, i64 %task, ptr %scratch) nounwind {{"
        self.count_tasks(LlvmValue("%task", "i64"))
        self.run(self.body)
        if self.has_streamed and self.target.arch == "x86_64":     # visible to other workers before the task ends
            self.declare("void", "@llvm.x86.sse.sfence", "")
            self.line("call void @llvm.x86.sse.sfence()")
        return "\n".join([head, "entry:", *self.scopes[0].lines, "  ret void", "}"])

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
    def branch(self, condition: UOp, body: list[Statement], flow: Flow) -> None:
        test = self.operand(condition)
        around = self.scopes[-1]
        inside, after = self.label("then"), self.label("after")
        before = {r: self.registers.get(r) for r in flow.writes if r.op is o.REGISTER and not self.is_matrix(r)}
        self.enter(flow, inside, guard=True)
        self.run_inside(body, flow)
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

    def counted_loop(self, statement: For, flow: Flow) -> None:
        range_, mark = statement.range, self.mark
        limit = self.trips(statement)
        around = self.scopes[-1]
        start, head, after = around.block, self.label("loop"), self.label("after")
        name = f"%{_plain(range_.arg.name)}_{self.labels}"     # keep names distinct: k1 of label 4 is not k of label 14
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
        trips = None if limit.constant is None else int(limit.constant)
        last = self.ending(counts, trips)
        counts.setdefault(last, self.counters[range_])
        lines += [f"  br label %{head}", f"{head}:"]
        lines += [f"  {c.text} = phi i64 [ 0, %{start} ], [ {c.text}.next, %{end} ]" for c in counts.values()]
        lines += [f"  {new.text} = phi {new.full} [ {old.text}, %{start} ], [ {self.registers[r].text}, %{end} ]"
                  for r, new, old in joins]
        lines += scope.lines
        for k, c in counts.items():
            # freeze, so that LLVM does not split these counters again, which takes a third of its time
            lines += [f"  {c.text}.sum = add i64 {c.text}, {wrapped(k, dtypes.index)}{mark}",
                      f"  {c.text}.next = freeze i64 {c.text}.sum{mark}"]
        end_at = limit.text if trips is None else trips * last
        lines += [f"  {name}.more = icmp ult i64 {counts[last].text}.next, {end_at}{mark}",
                  f"  br i1 {name}.more, label %{head}, label %{after}{mark}", f"{after}:"]
        around.block = after
        del self.counters[range_]
        self.counts.pop(range_, None)

    def _before(self, register: UOp, statement: For) -> LlvmValue:
        """A register's value before a loop that changes it: 0 if only a branch inside assigns it."""
        if register in self.registers or not any(isinstance(s, Assign) and s.register is register
                                                 for s in walk(statement.body)):
            return self.register(register)
        return self.wide(literal(0, register.dtype), self.widths[register])

    # -- registers and values ------------------------------------------------------------------------------------
    def register(self, node: UOp) -> LlvmValue:
        found = self.registers.get(node)
        if found is None:
            raise Bug(f"the register {node.arg}{[s.arg for s in node.src]} is read before it is assigned")
        return found

    def set_register(self, node: UOp, value: LlvmValue) -> None:
        self.registers[node] = value

    @cached_property
    def matrices(self) -> Matrices:
        """The writer of statements on a unit's matrices."""
        return Matrices(self)

    def run(self, body: list[Statement]) -> None:
        if self.units:
            self.matrices.load_before(body)
        around, self.lane_of = self.lane_of, self.lanes_of_vectors(body) if self.target.multiplies_by_lane else {}
        super().run(body)
        self.lane_of = around

    def assign(self, statement: Assign) -> None:
        self.matrices.assign(statement) if self.is_matrix(statement.register) else super().assign(statement)

    def accumulate(self, statement: Accumulate) -> None:
        if self.is_matrix(statement.register):
            return self.matrices.accumulate(statement)
        for factor in statement.value.src if self.lane_of else ():
            if factor in self.lane_of:
                self.load_lane(factor, self.widths[statement.register])
        if self.is_masked_product(statement):
            [condition, product, _], lanes = statement.value.src, self.widths[statement.register]
            total, (x, y) = self.register(statement.register), [self.operand(s, lanes) for s in product.src]
            added = self.apply(o.MULACC, product.dtype, x, y, total)
            return self.set_register(statement.register, self.select(self.operand(condition, lanes), added, total))
        super().accumulate(statement)

    def is_masked_product(self, statement: Accumulate) -> bool:
        """Whether a product is added in some lanes only, which is one multiply-add with a mask."""
        value, adds = statement.value, statement.combine is o.ADD and statement.value.op is o.WHERE
        if not adds or not self.target.has_masks or value.dtype.kind != "f":
            return False
        condition, product, nothing = value.src
        return self.widths[condition] > 0 and product.op is o.MUL and nothing.op is o.CONST and nothing.arg == 0

    def store(self, statement: Store) -> None:
        matrix = statement.value.op is o.REGISTER and self.is_matrix(statement.value)
        self.matrices.store(statement) if matrix else super().store(statement)

    # -- indices -------------------------------------------------------------------------------------------------
    def literal(self, value: float | int | bool, dtype: DType) -> LlvmValue:
        return literal(value, dtype)

    def vector_of(self, values: Sequence[int], dtype: DType) -> LlvmValue:
        return list_of(values, TYPES[dtype])

    def is_of(self, x: LlvmValue, dtype: DType) -> bool:
        return x.type == TYPES[dtype]

    def counted(self, atom: UOp, k: int) -> LlvmValue:
        return LlvmValue(f"{self.counters[atom].text}.{str(k).replace('-', 'm')}", "i64")


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() or c == "_" else "_" for c in name)
