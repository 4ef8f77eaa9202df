"""Decide which threads of a group execute a statement. In: indices and stores. Out: conditions, as text.

A vector of a loop tree is a thread group (gpu_source.py). If it has fewer lanes than the group has threads, the other
threads have no work, and a value without lanes is stored by the first thread only. This holds for all GPU languages.
"""

from __future__ import annotations

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import DType, UOp, dtypes, identity, ops as o
from glassgrad.compiler.lower.loops import Prefetch, Statement, Store, ranges_of
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.render.c.c_ops import CValue, Definitions
from glassgrad.compiler.render.c.c_source import CFunction
from glassgrad.compiler.render.gpu.barriers import fences
from glassgrad.compiler.render.launch_info import LocalLayout
from glassgrad.compiler.render.unroll_and_jam import Jammed
from glassgrad.compiler.render.value_placement import Walker


class GroupThreads(CFunction):
    """A function that every thread of a group runs."""
    thread: str = "thread"                 # the variable with the number of this thread
    wait: str                              # barrier: all threads arrive before any continues

    def __init__(self, places: LocalLayout, target: Target, jammed: Jammed, name: str, definitions: Definitions,
                 threads: int):
        self.threads, self.thread_ranges = threads, frozenset(jammed.lanes)       # the ranges that count threads
        self.fences = fences(jammed.body)              # ids of the statements that threads wait before
        super().__init__(places, target, Jammed(jammed.tasks, jammed.body, [], jammed.units), name, definitions)
        self.open.update(dict.fromkeys(jammed.lanes, 0))

    def _counter(self, node: UOp) -> CValue:
        return CValue(self.thread, node.dtype) if node in self.thread_ranges else super()._counter(node)

    def takes_part(self, index: UOp) -> str:
        """The condition that this thread has a lane which an index depends on; empty: it always has."""
        sizes = {r.arg.size for r in ranges_of(index) if r in self.thread_ranges}
        least = min(sizes, default=self.threads)
        return f"{self.thread} < {least}" if least < self.threads else ""

    def store_test(self, statement: Store, gate: str) -> str:
        """The condition under which this thread executes a store whose own condition is `gate`; empty: always."""
        index = statement.index
        alone = self.thread_ranges.isdisjoint(ranges_of(index))
        if alone and not self.thread_ranges.isdisjoint(ranges_of(statement.value)):
            raise Bug("threads would overwrite each other in one place")
        tests = [f"{self.thread} == 0" if alone else self.takes_part(index), gate]
        return " && ".join(t for t in tests if t)

    def before(self, statement: Statement) -> None:
        if id(statement) in self.fences:
            self.line(self.wait)

    accumulate = Walker.accumulate                   # not C's `+=`, which may overflow

    def multiply_add(self, dtype: DType, x: CValue, y: CValue, z: CValue) -> CValue:
        """x * y + z for floats, rounded once: which products a compiler fuses would depend on the whole kernel."""
        if dtype.kind == "f":
            return self.function("fma", dtype, x, y, z)
        return super().multiply_add(dtype, x, y, z)

    def folded_value(self, node: UOp) -> CValue:
        """This thread's operand of a fold: its value; or the identity, if it has no lane."""
        dtype, lanes = node.dtype, next(r.arg.size for r in node.src[1:] if r in self.thread_ranges)
        value, start = self.operand(node.src[0]), self.constant(identity(node.arg.combine, dtype).arg, dtype)
        if lanes == self.threads:
            return value
        return self.apply(o.WHERE, dtype, CValue(f"{self.thread} < {lanes}", dtypes.bool), value, start)

    def store(self, statement: Store) -> None:
        memory, index, combine = statement.memory, statement.index, statement.combine
        test, value = self.store_test(statement, self.gate(statement)), self.operand(statement.value)
        if combine is not None:
            value = self.apply(combine, memory.dtype, self.load(memory, index, statement.gate, 0), value)
        text = self.written(memory, index, value)
        self.line(f"if ({test}) {{ {text} }}" if test else text)

    def written(self, memory: UOp, index: UOp, value: CValue) -> str:
        """The statement that writes an element."""
        return f"{self.base(memory)}[{self.split(index)[0].text}] = {value.text};"

    def prefetch(self, statement: Prefetch) -> None:
        """Writes nothing: other threads run while one waits for memory."""
