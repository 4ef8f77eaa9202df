"""Lower loops, addresses and indices for LLVM IR and WebAssembly. In: a jammed phase. Out: calls to a renderer.

Neither language has nested expressions, arrays or index arithmetic, so all of that is lowered here. An address is one
pointer per loop level. A sum of indices is added up level by level, outer loops first. Multiples of an innermost loop's
counter are induction variables. Indices of lanes are computed in 32 bits if they fit. `Value` is the renderer's own
type of values; it has `lanes` and `low` (a lower bound of an index).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from glassgrad.compiler.graph import UOp, index_algebra as ix, ops as o
from glassgrad.compiler.graph.dtype import DType, dtypes, wrapped
from glassgrad.compiler.lower.loops import For, Statement, ranges_of
from glassgrad.compiler.render.launch_info import LocalLayout
from glassgrad.compiler.render.unroll_and_jam import Jammed
from glassgrad.compiler.render.value_placement import NOTHING, SUMS, Flow, Scope, Walker

Value = Any
IN_32_BITS = (o.IDIV, o.MOD, o.MAX, o.MIN, o.CMPLT, o.CMPEQ, o.CMPNE)     # computed on 32-bit indices, if they fit


class LowLevelWalker(Walker):
    """Walks through a phase; subclasses provide the instructions."""
    counter_type: DType                                     # the type of counters and addresses

    def __init__(self, places: LocalLayout, jammed: Jammed, name: str):
        super().__init__(jammed)
        self.name, self.tasks = name, jammed.tasks
        self.offsets, self.slots = places.offsets, places.slots
        self.registers: dict[UOp, Value] = {}
        self.counters: dict[UOp, Value] = {}
        self.counts: dict[UOp, dict[int, Value]] = {}  # innermost loop -> its induction variables, k * counter by k

    # -- what subclasses provide ---------------------------------------------------------------------------------
    def literal(self, value: float | int | bool, dtype: DType) -> Value: raise NotImplementedError
    def vector_of(self, values: Sequence[int], dtype: DType) -> Value: raise NotImplementedError
    def wide(self, x: Value, lanes: int) -> Value: raise NotImplementedError
    def fold(self, combine: o.Op, dtype: DType, x: Value) -> Value: raise NotImplementedError
    def bitcast(self, x: Value, dtype: DType) -> Value: raise NotImplementedError

    # convert a value between types; whether a value has the type in which `dtype` is held
    def converted(self, x: Value, source: DType, dtype: DType) -> Value: raise NotImplementedError
    def is_of(self, x: Value, dtype: DType) -> bool: raise NotImplementedError

    # the address of a memory's first element; an address advanced by an index, in elements
    def first_address(self, memory: UOp) -> Value: raise NotImplementedError
    def advanced(self, pointer: Value, memory: UOp, terms: ix.Terms) -> Value: raise NotImplementedError

    # a loop that runs at least once; the induction variable k * counter
    def counted_loop(self, statement: For, flow: Flow) -> None: raise NotImplementedError
    def counted(self, atom: UOp, k: int) -> Value: raise NotImplementedError

    def bound(self, x: Value) -> Value:
        """Make a value usable more than once; any value is, if values are names."""
        return x

    # -- control -------------------------------------------------------------------------------------------------
    def count_tasks(self, task: Value) -> None:
        """Compute the counters of the TASK loops from the number of the task."""
        ranges = [r for r in self.tasks if r.arg.size > 1]
        left = task._replace(low=0)
        for range_ in reversed(ranges[1:]):
            size = self.literal(range_.arg.size, self.counter_type)
            self.counters[range_] = self.bound(self.apply(o.MOD, self.counter_type, left, size))
            left = self.bound(self.apply(o.IDIV, self.counter_type, left, size))._replace(low=0)
        for range_ in ranges[:1]:
            self.counters[range_] = left

    def loop(self, statement: For, flow: Flow) -> None:
        stop = statement.stop
        if stop is None or ix.bounds(stop)[0] > 0:
            self.counted_loop(statement, flow)
        else:
            self.branch(ix.less(ix.index(0), stop), [statement], flow)

    def run_inside(self, body: list[Statement], flow: Flow) -> None:
        """The body of a branch: statements, or the loop for which `loop` made the branch."""
        if len(body) == 1 and isinstance(body[0], For) and self.flows[body[0]] is flow:
            self.counted_loop(body[0], flow)
        else:
            self.run(body)

    def trips(self, statement: For) -> Value:
        """The trip count of a loop."""
        size, stop = statement.range.arg.size, statement.stop
        dtype = self.counter_type if ix.fits(0, size) else dtypes.int64
        if stop is None:
            return self.literal(size, dtype)
        if ix.bounds(stop)[1] <= size:
            return self.bound(self.operand(stop, 0, dtype))
        least = self.apply(o.MIN, dtypes.int64, self.operand(stop), self.literal(size, dtypes.int64))
        return self.bound(self.converted(least, dtypes.int64, dtype))

    # -- registers and values ------------------------------------------------------------------------------------
    def in_scope(self, scope: Scope, key: Any, reads: frozenset[Any], make: Callable[..., Value], *given: Any) -> Value:
        """The result of make(*given), computed once per scope."""
        found = scope.values.get(key)
        if found is None:
            resume, self.scope = self.scope, scope
            found = self.keep(scope, key, reads, self.bound(make(*given)))
            self.scope = resume
        return found

    def get(self, node: UOp) -> Value:
        """The value of a node; it is computed if no scope has it."""
        op = node.op
        if op is o.CONST:
            return self.literal(node.arg, node.dtype)
        if op is o.REGISTER:
            return self.register(node)
        if op is o.RANGE:
            if node in self.lanes:
                return self.vector_of(range(node.arg.size), dtypes.int32)
            if node in self.counts:
                self.counts[node][1] = self.counters[node]
            return self.counters[node]
        return self.value(node)

    def operand(self, node: UOp, lanes: int = 0, dtype: DType | None = None) -> Value:
        """A node's value with the given lanes. Indices may be int32 inside; here they get their own type."""
        value = self.get(node)
        dtype = dtype or node.dtype
        if value.lanes == lanes and (node.dtype is not dtypes.index or self.is_of(value, dtype)):
            return value
        if node.op is o.CONST:
            return self.wide(self.literal(node.arg, dtype), lanes)
        key = (node, lanes, dtype)
        return self.in_scope(self.scope_of(node), key, self.reads[node], self._fitted, value, lanes, dtype)

    def _fitted(self, value: Value, lanes: int, dtype: DType) -> Value:
        """A value with the given lanes; an index is converted to int32 or int64 as needed."""
        if not self.is_of(value, dtype):
            value = self.bound(self.converted(value, dtypes.int64 if dtype is dtypes.int32 else dtypes.int32, dtype))
        return self.wide(value, lanes)

    def make(self, node: UOp) -> Value:
        return self.bound(self._expression(node))

    def _expression(self, node: UOp) -> Value:
        op, dtype, src, lanes = node.op, node.dtype, node.src, self.widths[node]
        if op is o.LOAD:
            return self.load(src[0], src[1], src[2] if len(src) == 3 else None, lanes)
        if op is o.PARAM:
            return self.load(node, ix.index(0), None, 0)
        if op is o.FOLD:
            return self.fold(node.arg.combine, dtype, self.operand(src[0], self.lanes[src[1]]))
        if op is o.CAST:
            value = self.get(src[0])
            may_be_int32 = src[0].dtype is dtypes.index and value.lanes == lanes
            return self.converted(value if may_be_int32 else self.operand(src[0], lanes), src[0].dtype, dtype)
        if op is o.BITCAST:
            return self.bitcast(self.operand(src[0], lanes), dtype)
        if op is o.WHERE:
            condition = self.operand(src[0], self.widths[src[0]])
            return self.apply(op, dtype, condition, *[self.operand(s, lanes) for s in src[1:]])
        if op.kind == o.Kind.BINARY and src[0].dtype is dtypes.index:
            return self._of_indices(node, lanes)
        return self.apply(op, src[-1].dtype, *[self.operand(s, lanes) for s in src])

    # -- index arithmetic ----------------------------------------------------------------------------------------
    def index_type(self, nodes: Sequence[UOp], lanes: int) -> DType:
        """The type in which indices are computed: int32 if all of them fit; scalars only if counters are int32 too."""
        short = lanes or self.counter_type is dtypes.int32
        return dtypes.int32 if short and all(ix.fits(*ix.span(node)) for node in nodes) else dtypes.int64

    def _of_indices(self, node: UOp, lanes: int) -> Value:
        """A binary op on indices (or int64s), in 32 bits if they fit."""
        op, src = node.op, node.src
        if op in SUMS and node not in ix.linear(node)[1]:
            dtype = self.index_type([node], lanes)
            return self.lane_sum(node, lanes, dtype) if lanes else self.total(*ix.linear(node), dtype)
        if lanes and op is o.CMPLT and (sides := self.sides_of_less(node)):
            dtype = self.index_type(sides, lanes)
            return self.apply(op, dtype, *[self.operand(side, lanes, dtype) for side in sides])
        numbers = [*src, node] if node.dtype is dtypes.index else src
        dtype = self.index_type(numbers, lanes) if op in IN_32_BITS else dtypes.int64
        x, y = self.operand(src[0], lanes, dtype), self.operand(src[1], lanes, dtype)
        return self.apply(op, dtype, x._replace(low=ix.span(src[0])[0]), y)

    def sides_of_less(self, node: UOp) -> tuple[UOp, UOp] | None:
        """Rearrange x < y between indices so that the terms that differ between lanes are on the left, and one scalar
        limit on the right. None if no term differs, or a side may wrap around."""
        (c, left), (d, right) = ix.linear(node.src[0]), ix.linear(node.src[1])
        terms = ix.plus(left, right, -1)
        wide = ix.build(0, {a: k for a, k in terms.items() if self.widths[a]})
        limit = ix.build(d - c, {a: -k for a, k in terms.items() if not self.widths[a]})
        if not ranges_of(wide) or not all(ix.exact(n) for n in (*node.src, wide, limit)):
            return None
        self.record_reads((wide, limit))
        return wide, limit

    def total(self, constant: int, terms: ix.Terms, dtype: DType) -> Value:
        """constant + sum of k * atom in scalars: outer loops' terms first, so that they are added up outside."""
        ranked = sorted([(self.scope_of(a).depth, ix.order_key(a), a, k) for a, k in terms.items()],
                        key=lambda t: t[:2])
        result: Value = None
        key: tuple[object, ...] = ("sum", dtype)
        reads, scope = NOTHING, self.scope
        for depth, _, atom, k in ranked:
            key, reads, scope = (*key, atom, k), reads | self.reads[atom], self.scopes[depth]
            result = self.in_scope(scope, key, reads, self._plus, result, atom, k, dtype)
        if result is not None and not constant:
            return result
        number = self.literal(wrapped(constant, dtype), dtype)
        return number if result is None else self.in_scope(scope, (*key, constant), reads, self.apply, o.ADD, dtype,
                                                           result, number)

    def _plus(self, sum_: Value, atom: UOp, k: int, dtype: DType) -> Value:
        """sum + k * atom; the sum is None if it is empty."""
        term = self.multiple(atom, k, dtype)
        return term if sum_ is None else self.apply(o.ADD, dtype, sum_, term)

    def multiple(self, atom: UOp, k: int, dtype: DType) -> Value:
        """k * atom; for an innermost loop's counter, an induction variable instead of a product."""
        counts = self.counts.get(atom)
        if k == 1 or counts is None or dtype is not self.counter_type:
            value = self.operand(atom, 0, dtype)
            return value if k == 1 else self.apply(o.MUL, dtype, value, self.literal(wrapped(k, dtype), dtype))
        if k not in counts:
            counts[k] = self.counted(atom, k)
        return counts[k]

    def ending(self, counts: dict[int, Value], trips: int | None) -> int:
        """Choose the multiple of a counter whose comparison ends the loop: one that does not wrap around before."""
        if trips is None:
            return 1
        return next((k for k in counts if 0 < k * trips <= self.counter_type.max), 1)

    def lane_sum(self, node: UOp, lanes: int, dtype: DType) -> Value:
        """An index that differs between lanes: its scalar part, broadcast, plus the lanes' terms."""
        constant, terms = ix.linear(node)
        same = {a: k for a, k in terms.items() if not self.widths[a]}
        result: Value = None
        for atom, k in terms.items():
            if atom in same:
                continue
            if atom in self.lanes:
                first = 0 if same else constant
                term = self.vector_of([wrapped(k * i + first, dtype) for i in range(lanes)], dtype)
                constant -= first
            else:
                term = self.operand(atom, lanes, dtype)
                if k != 1:
                    term = self.apply(o.MUL, dtype, term, self.wide(self.literal(wrapped(k, dtype), dtype), lanes))
            result = term if result is None else self.apply(o.ADD, dtype, result, term)
        if same or constant or result is None:
            scalar = dtype if not same or self.counter_type is dtypes.int32 else dtypes.int64
            repeated = self._fitted(self.total(constant, same, scalar), lanes, dtype)
            result = repeated if result is None else self.apply(o.ADD, dtype, result, repeated)
        return result

    # -- addresses -----------------------------------------------------------------------------------------------
    def base(self, memory: UOp) -> Value:
        """The address of the first element of a param or LOCAL, loaded once at the function's start."""
        return self.in_scope(self.scopes[0], ("base", memory), NOTHING, self.first_address, memory)

    def pointer(self, memory: UOp, terms: ix.Terms) -> Value:
        """The address of memory[terms], computed in one step per loop level."""
        pointer = self.base(memory)
        levels: dict[int, ix.Terms] = {}
        for atom, k in terms.items():
            levels.setdefault(self.scope_of(atom).depth, {})[atom] = k
        key: tuple[Any, ...] = ("at", memory)
        reads = NOTHING
        for depth in sorted(levels):
            key = (*key, *sorted(levels[depth].items(), key=lambda item: ix.order_key(item[0])))
            reads = reads.union(*[self.reads[a] for a in levels[depth]])
            pointer = self.in_scope(self.scopes[depth], key, reads, self.advanced, pointer, memory, levels[depth])
        return pointer


# -- shared instruction sequences ---------------------------------------------------------------------------------
def is_number(value: Any) -> bool:
    """Whether a float is a literal other than NaN."""
    return value.constant is not None and bool(value.constant == value.constant)


def divide(to: Any, dtype: DType, x: Any, y: Any, remainder: bool) -> Any:
    """x // y, or x % y if `remainder`.

    Both round down, give 0 for a division by 0, and never trap. Machine instructions round towards zero, and trap for
    division by 0 and for the least integer divided by -1. A renderer's arithmetic `to` provides `constant`, `apply`,
    `select`, `bound` (makes a value usable more than once) and `truncated`, the instruction itself.
    """
    by = None if y.constant is None else int(y.constant)
    zero, one = to.constant(0, x, dtype), to.constant(1, x, dtype)
    if by is not None and by > 0 and by & (by - 1) == 0:          # both round down, for any sign
        if remainder:
            return to.apply(o.AND, dtype, x, to.constant(by - 1, x, dtype))
        return to.apply(o.SHR, dtype, x, to.constant(by.bit_length() - 1, x, dtype))
    if by is not None and by > 0 and (dtype.kind == "u" or x.low is not None and x.low >= 0):
        return to.truncated("u", dtype, x, y, remainder)
    x, y = to.bound(x), to.bound(y)
    if by is not None and by > 0:
        result = to.bound(to.truncated("s", dtype, x, y, remainder))
        if remainder:
            return to.select(to.apply(o.CMPLT, dtype, result, zero), to.apply(o.ADD, dtype, result, y), result)
        over = to.apply(o.CMPLT, dtype, x, to.apply(o.MUL, dtype, result, y))
        return to.select(over, to.apply(o.SUB, dtype, result, one), result)
    none = to.bound(to.apply(o.CMPEQ, dtype, y, zero))
    if dtype.kind == "u":
        return to.select(none, zero, to.truncated("u", dtype, x, to.select(none, one, y), remainder))
    minus = to.bound(to.apply(o.CMPEQ, dtype, y, to.constant(-1, y, dtype)))      # x / -1 is -x
    safe = to.bound(to.select(to.apply(o.OR, dtypes.bool, none, minus), one, y))
    quotient = to.bound(to.truncated("s", dtype, x, safe, False))
    rest = to.bound(to.apply(o.SUB, dtype, x, to.apply(o.MUL, dtype, quotient, safe)))
    mixed = to.apply(o.CMPLT, dtype, to.apply(o.XOR, dtype, rest, safe), zero)
    over = to.apply(o.AND, dtypes.bool, mixed, to.apply(o.CMPNE, dtype, rest, zero))
    if remainder:
        # divided by 1 instead of 0 or -1: the remainder is 0
        return to.select(over, to.apply(o.ADD, dtype, rest, safe), rest)
    floor = to.select(over, to.apply(o.SUB, dtype, quotient, one), quotient)
    return to.select(none, zero, to.select(minus, to.apply(o.SUB, dtype, zero, x), floor))
