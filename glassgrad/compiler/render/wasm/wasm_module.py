"""A kernel as a module of WebAssembly. In: a `Kernel`, its jammed phases. Out: a `CodeModule`.

Every phase is a function (args, task, scratch); the exported function, `run()`, calls them one after another, each for
all its tasks: there is one thread. `args` is the address of the addresses of the kernel's arguments.
Registers are locals, values are where `Walker` puts them. Indices are computed in 32 bits where they fit. Spelling of
memory access is in `wasm_memory`, of arithmetic in `wasm_ops` and `wasm_casts`.
"""

from __future__ import annotations

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import index_algebra as ix, ops as o
from glassgrad.compiler.graph.dtype import DType, dtypes
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Accumulate, Assign, For, Kernel, Statement
from glassgrad.compiler.render.launch import Places, launch_info
from glassgrad.compiler.render.unroll_and_jam import Jammed
from glassgrad.compiler.render.value_order import NOTHING, SUMS, Flow, Walker
from glassgrad.compiler.render.wasm.encoding import (ARGS_AT, RUN, SCRATCH_AT, CodeBlock, CodeFunction, CodeModule,
                                                     Line, nest)
from glassgrad.compiler.render.wasm.instructions import At, Code, CodeLocal, get, is_settled, type_of
from glassgrad.compiler.render.wasm.wasm_memory import ARGS, SCRATCH, TASK, WasmMemory
from glassgrad.compiler.render.wasm.wasm_ops import WasmValue, held, literal, number, pieces_of, scalar_type, vector_of

REGISTER_MASK = 4          # bytes of a lane of a register that holds booleans


def render_wasm(kernel: Kernel, phases: list[Jammed]) -> CodeModule:
    """A kernel as a module: a function for each phase, and one that runs them."""
    places, info = Places(kernel), launch_info(kernel)
    functions = [WasmFunction(places, jammed, name).function() for (name, _), jammed in zip(info.phases, phases)]
    return CodeModule([*functions, _run(info.phases)])


def _run(phases: tuple[tuple[str, int], ...]) -> CodeFunction:
    """Every phase, for all its tasks."""
    lines: list[Line] = []
    scratch = Code("i32.load", (number(0),), At(SCRATCH_AT))
    for name, tasks in phases:
        call = Code("call", (number(ARGS_AT), get(TASK), scratch), name)
        lines += [_set(TASK, number(0)), *([call] if tasks == 1 else [_counted(TASK, 1, number(tasks), [call])])]
    return CodeFunction(RUN, (), (TASK,), lines)


def _set(local: CodeLocal, value: Code) -> Code:
    return Code("local.set", (value,), local)


def _counted(counter: CodeLocal, by: int, end: Code, body: list[Line]) -> CodeBlock:
    """A loop that runs until the counter, which grows by `by`, reaches the end: at least once."""
    more = Code(f"{counter.type}.add", (get(counter), number(by, counter.type)))
    again = Code("br_if", (Code(f"{counter.type}.lt_u", (get(counter), end)),), 0)
    return CodeBlock("loop", None, [*body, _set(counter, more), again])


class WasmFunction(WasmMemory):
    """One phase of a kernel as one function."""

    def __init__(self, places: Places, jammed: Jammed, name: str):
        Walker.__init__(self, jammed)
        self.name, self.tasks = name, jammed.tasks
        self.offsets, self.slots = places.offsets, places.slots
        self.registers: dict[UOp, WasmValue] = {}
        self.counters: dict[UOp, WasmValue] = {}
        self.counts: dict[UOp, dict[int, CodeLocal]] = {}           # of innermost loops: multiples of the counter
        self.names: dict[str, int] = {}

    def function(self) -> CodeFunction:
        self._count_tasks()
        self.run(self.body)
        lines, used = nest(self.scopes[0].lines)
        params = (ARGS, TASK, SCRATCH)
        return CodeFunction(self.name, params, sorted(used.difference(params), key=_by_number), lines)

    def _count_tasks(self) -> None:
        left = get(TASK)
        for at, range_ in reversed(list(enumerate(self.tasks))):
            size = range_.arg.size
            if size == 1:
                continue
            outer = any(r.arg.size > 1 for r in self.tasks[:at])
            value = self.bind(Code("i32.rem_u", (left, number(size)))) if outer else left
            self.counters[range_] = WasmValue((value,), dtypes.int32)
            left = self.bind(Code("i32.div_u", (left, number(size)))) if outer else left

    # -- locals --------------------------------------------------------------------------------------------------
    def local(self, type_: str, name: str = "v") -> CodeLocal:
        """A new local."""
        name = "".join(c if c.isalnum() else "_" for c in name)
        self.names[name] = self.names.get(name, 0) + 1
        return CodeLocal(f"{name}_{self.names[name]}" if name != "v" else f"v{self.names[name]}", type_)

    def bind(self, code: Code) -> Code:
        if is_settled(code):
            return code
        local = self.local(type_of(code))
        self.line(_set(local, code))
        return get(local)

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
        self.enter(flow, "", guard=True)
        if len(body) == 1 and isinstance(body[0], For) and self.flows[body[0]] is flow:
            self._loop(body[0], flow)
        else:
            self.run(body)
        inner: list[Line] = self.scopes[-1].lines
        self.leave()
        around.lines.append(CodeBlock("if", test.code, inner))

    def _loop(self, statement: For, flow: Flow) -> None:
        range_ = statement.range
        limit = self._trips(statement)
        dtype = dtypes.int32 if fits(0, range_.arg.size) else dtypes.int64
        counter = self.local(scalar_type(dtype), range_.arg.name)
        around = self.scopes[-1]
        self.counters[range_] = WasmValue((get(counter),), dtype)
        counts: dict[int, CodeLocal] = {}
        if not flow.loops and dtype is dtypes.int32:
            self.counts[range_] = counts
        else:
            counts[1] = counter
        self.enter(flow, "", range_)
        self.run(statement.body)
        inner: list[Line] = self.scopes[-1].lines
        self.leave()
        del self.counters[range_]
        self.counts.pop(range_, None)
        # the multiple that ends the loop, one that does not wrap around before
        trips = None if limit.constant is None else int(limit.constant)
        last = 1 if trips is None else next((k for k in counts if 0 < k * trips < 1 << 31), 1)
        counts.setdefault(last, counter)
        around.lines += [_set(local, number(0, local.type)) for local in counts.values()]
        for k, local in counts.items():
            if k != last:
                inner.append(_set(local, Code("i32.add", (get(local), number(k)))))
        end = self.cast(limit, dtype).code if trips is None else number(trips * last, counts[last].type)
        around.lines.append(_counted(counts[last], last, end, inner))

    def _trips(self, statement: For) -> WasmValue:
        size, stop = statement.range.arg.size, statement.stop
        dtype = dtypes.int32 if fits(0, size) else dtypes.int64
        whole = literal(size, dtype)
        if stop is None:
            return whole
        high = ix.bounds(stop)[1]
        if high <= size:
            return self.bound(self.operand(stop, 0, dtype))
        wide = self.apply(o.MIN, dtypes.int64, self.operand(stop), literal(size, dtypes.int64))
        return self.bound(self.cast(wide, dtype))

    # -- registers and values ------------------------------------------------------------------------------------
    def register(self, node: UOp) -> WasmValue:
        found = self.registers.get(node)
        if found is None:
            lanes, dtype = self.widths[node], held(node.dtype)
            mask = REGISTER_MASK if lanes and dtype is dtypes.bool else 0
            type_ = "v128" if lanes else scalar_type(dtype)
            name = "_".join([node.arg, *[str(s.arg) for s in node.src if s.op is o.CONST]])
            pieces = tuple([get(self.local(type_, name))
                            for _ in range(pieces_of(lanes, mask or dtype.itemsize) if lanes else 1)])
            found = self.registers[node] = WasmValue(pieces, dtype, lanes, mask=mask)
        return found

    def _set_register(self, node: UOp, value: WasmValue) -> None:
        register = self.register(node)
        if register.mask:
            value = self.mask(value, register.mask)
        for piece, new in zip(register.pieces, value.pieces):
            self.line(_set(piece.immediate, new))

    def assign(self, statement: Assign) -> None:
        lanes = self.widths[statement.register]
        if self.widths[statement.value] and not lanes:
            raise Bug(f"the register {statement.register.arg} is narrower than the value assigned to it")
        self._set_register(statement.register, self.operand(statement.value, lanes))

    def accumulate(self, statement: Accumulate) -> None:
        register, combine, value = statement.register, statement.combine, statement.value
        more = self.operand(value, self.widths[register])
        self._set_register(register, self.apply(combine, register.dtype, self.register(register), more))

    def get(self, node: UOp) -> WasmValue:
        """The value of a node, computed now if it is not there."""
        op = node.op
        if op is o.CONST:
            return literal(node.arg, node.dtype)
        if op is o.REGISTER:
            return self.register(node)
        if op is o.RANGE:
            if node in self.lanes:
                return vector_of(range(node.arg.size), dtypes.int32)
            if node in self.counts:
                self.counts[node][1] = self.counters[node].code.immediate
            return self.counters[node]
        return self.value(node)  # type: ignore[no-any-return]

    def operand(self, node: UOp, lanes: int = 0, dtype: DType | None = None) -> WasmValue:
        """A node's value with so many lanes. Indices may be int32 inside; they leave as their own type."""
        value = self.get(node)
        dtype = dtype or held(node.dtype)
        if value.lanes == lanes and value.dtype is dtype:
            return value
        if node.op is o.CONST:
            return self.wide(literal(node.arg, dtype if node.dtype.kind in "iu" else node.dtype), lanes)
        home, key = self.home(node), (node, lanes, dtype)
        found = home.values.get(key)
        if found is None:
            resume, self.scope = self.scope, home
            found = self.bound(self.wide(self.bound(self.cast(value, dtype)), lanes))
            self.keep(home, key, self.reads[node], found)
            self.scope = resume
        return found  # type: ignore[no-any-return]

    def make(self, node: UOp) -> WasmValue:
        return self.bound(self._expression(node))

    def _expression(self, node: UOp) -> WasmValue:
        op, dtype, src, lanes = node.op, node.dtype, node.src, self.widths[node]
        if op is o.LOAD:
            return self.load(src[0], src[1], src[2] if len(src) == 3 else None, lanes)
        if op is o.PARAM:
            return self.cell(node)
        if op is o.FOLD:
            return self.fold(node.arg.combine, dtype, self.operand(src[0], self.lanes[src[1]]))
        if op is o.CAST:
            value = self.get(src[0])
            narrow = src[0].dtype is dtypes.index and value.lanes == lanes
            return self.cast(value if narrow else self.operand(src[0], lanes), dtype)
        if op is o.BITCAST:
            return self.bitcast(self.operand(src[0], lanes), dtype)
        if op is o.WHERE:
            condition = self.operand(src[0], self.widths[src[0]])
            return self.apply(op, dtype, condition, *[self.operand(s, lanes) for s in src[1:]])
        if op.kind == o.Kind.BINARY and src[0].dtype is dtypes.index:
            return self._of_indices(node, lanes)
        return self.apply(op, src[-1].dtype, *[self.operand(s, lanes) for s in src])

    # -- index arithmetic ----------------------------------------------------------------------------------------
    def _of_indices(self, node: UOp, lanes: int) -> WasmValue:
        """A binary op on indices (or int64s), in 32 bits where they fit."""
        op, src = node.op, node.src
        if op in SUMS and node not in ix.linear(node)[1]:
            constant, terms = ix.linear(node)
            dtype = index_type(node)
            return self.lane_sum(constant, terms, lanes, dtype) if lanes else self.total(constant, terms, dtype)
        if lanes and op is o.CMPLT and (result := self.lane_less(node, lanes)):
            return result
        low, _ = ix.span(src[0])
        dtype = index_type(*src, *([node] if node.dtype is dtypes.index else [])) if op in _IN_32_BITS else dtypes.int64
        x, y = self.operand(src[0], lanes, dtype), self.operand(src[1], lanes, dtype)
        return self.apply(op, dtype, x._replace(low=low), y)

    def total(self, constant: int, terms: ix.Terms, dtype: DType) -> WasmValue:
        """constant + sum of k * atom in scalars: outer loops' terms first, so that they are added up outside."""
        ranked = sorted([(self.home(a).depth, ix.order_key(a), a, k) for a, k in terms.items()], key=lambda t: t[:2])
        type_ = scalar_type(dtype)
        result: Code | None = None
        key: tuple[object, ...] = ("sum", type_)
        resume = self.scope
        reads = NOTHING
        for depth, _, atom, k in ranked:
            key = (*key, atom, k)
            reads |= self.reads[atom]
            self.scope = self.scopes[depth]
            found = self.scope.values.get(key)
            if found is None:
                term = self.multiple(atom, k, dtype)
                found = self.bind(term if result is None else Code(f"{type_}.add", (result, term)))
                self.keep(self.scope, key, reads, found)
            result = found
        self.scope = resume
        if result is None:
            return literal(number(constant, type_).immediate, dtype)
        if constant:
            result = Code(f"{type_}.add", (result, number(constant, type_)))
        return WasmValue((result,), dtype)

    def multiple(self, atom: UOp, k: int, dtype: DType) -> Code:
        """k * atom; of an innermost loop's counter it is counted along instead of multiplied."""
        counts, type_ = self.counts.get(atom), scalar_type(dtype)
        if k == 1 or counts is None or dtype is not dtypes.int32:
            value = self.operand(atom, 0, dtype).code
            return value if k == 1 else Code(f"{type_}.mul", (value, number(k, type_)))
        found = counts.get(k)
        if found is None:
            found = counts[k] = self.local("i32", f"{atom.arg.name}x{k}")
        return get(found)

    def lane_sum(self, constant: int, terms: ix.Terms, lanes: int, dtype: DType) -> WasmValue:
        """An index that differs between lanes: its scalar part, repeated, plus what the lanes add."""
        same = {a: k for a, k in terms.items() if not self.widths[a]}
        scalar = self.total(constant, same, dtype)
        result = self.wide(self.bound(scalar), lanes)
        for atom, k in terms.items():
            if atom in same:
                continue
            if atom in self.lanes:
                term = vector_of([k * i for i in range(lanes)], dtype)
            else:
                term = self.operand(atom, lanes, dtype)
                if k != 1:
                    times = literal(number(k, scalar_type(dtype)).immediate, dtype)
                    term = self.native("mul", dtype, term, self.wide(times, lanes))
            result = term if result.constant == 0 else self.native("add", dtype, result, term)
        return result

    def lane_less(self, node: UOp, lanes: int) -> WasmValue | None:
        """x < y between indices: what differs between lanes against one scalar limit."""
        sides = self.sides_of_less(node)
        if sides is None:
            return None
        wide, limit = sides
        dtype = index_type(wide, limit)
        return self.compare("lt", dtype, self.operand(wide, lanes, dtype), self.operand(limit, lanes, dtype))


_IN_32_BITS = (o.IDIV, o.MOD, o.MAX, o.MIN, o.CMPLT, o.CMPEQ, o.CMPNE)


def fits(low: int, high: int) -> bool:
    """Whether an index can be computed in 32 bits."""
    return -(1 << 31) <= low and high < 1 << 31


def index_type(*nodes: UOp) -> DType:
    """In what indices are computed: int32 where all of them fit."""
    return dtypes.int32 if all(fits(*ix.span(node)) for node in nodes) else dtypes.int64


def _by_number(local: CodeLocal) -> tuple[str, int]:
    letters = local.name.rstrip("0123456789")
    return letters, int(local.name[len(letters):] or 0)
