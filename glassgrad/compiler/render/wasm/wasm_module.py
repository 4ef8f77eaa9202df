"""Render a kernel as a WebAssembly module. In: a `Kernel`, its jammed phases. Out: a `CodeModule`.

Every phase is a function (args, task, scratch). The exported function, `run()`, calls them in order, each for all of
its tasks: there is one thread. `args` is the address of a table with the addresses of the kernel's arguments. Registers
are locals, and `Walker` places values. Indices are computed in 32 bits if they fit (`llvm_and_wasm`). `wasm_memory`
spells memory access, `wasm_ops` and `wasm_casts` arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence

from glassgrad.compiler.graph import DType, UOp, dtypes, ops as o
from glassgrad.compiler.lower.loops import For, Kernel, Statement
from glassgrad.compiler.lower.missing_instructions import held
from glassgrad.compiler.render.launch_info import LocalLayout, launch_info
from glassgrad.compiler.render.unroll_and_jam import Jammed
from glassgrad.compiler.render.value_placement import Flow
from glassgrad.compiler.render.wasm.instruction_encoding import At, Code, CodeLocal, get, is_cheap_to_repeat, type_of
from glassgrad.compiler.render.wasm.module_encoding import (ARGS_AT, RUN, SCRATCH_AT, CodeBlock, CodeFunction,
                                                            CodeModule, Line, nest)
from glassgrad.compiler.render.wasm.wasm_memory import ARGS, SCRATCH, TASK, WasmMemory
from glassgrad.compiler.render.wasm.wasm_ops import WasmValue, literal, number, pieces_of, scalar_type, vector_of

REGISTER_MASK = 4          # bytes per lane of a register that holds booleans


def render_wasm(kernel: Kernel, phases: list[Jammed]) -> CodeModule:
    """Render a kernel as a module: a function for each phase, and one that runs them."""
    info = launch_info(kernel)
    functions = [WasmFunction(LocalLayout(kernel, p), jammed, info.phases[p][0]).function()
                 for p, jammed in enumerate(phases)]
    return CodeModule([*functions, _run(info.phases)])


def _run(phases: tuple[tuple[str, int], ...]) -> CodeFunction:
    """The function that runs every phase for all of its tasks."""
    lines: list[Line] = []
    scratch = Code("i32.load", (number(0),), At(SCRATCH_AT))
    for name, tasks in phases:
        call = Code("call", (number(ARGS_AT), get(TASK), scratch), name)
        lines += [_set(TASK, number(0)), *([call] if tasks == 1 else [_counted(TASK, 1, number(tasks), [call])])]
    return CodeFunction(RUN, (), (TASK,), lines)


def _set(local: CodeLocal, value: Code) -> Code:
    return Code("local.set", (value,), local)


def _counted(counter: CodeLocal, by: int, end: Code, body: list[Line]) -> CodeBlock:
    """A loop that increases the counter by `by` until it reaches `end`; it runs at least once."""
    more = Code(f"{counter.type}.add", (get(counter), number(by, counter.type)))
    again = Code("br_if", (Code(f"{counter.type}.lt_u", (get(counter), end)),), 0)
    return CodeBlock("loop", None, [*body, _set(counter, more), again])


class WasmFunction(WasmMemory):
    """One phase of a kernel as one function."""
    counter_type = dtypes.int32

    def __init__(self, places: LocalLayout, jammed: Jammed, name: str):
        super().__init__(places, jammed, name)
        self.names: dict[str, int] = {}

    def function(self) -> CodeFunction:
        self.count_tasks(WasmValue((get(TASK),), dtypes.int32))
        self.run(self.body)
        lines, used = nest(self.scopes[0].lines)
        params = (ARGS, TASK, SCRATCH)
        return CodeFunction(self.name, params, sorted(used.difference(params), key=_by_number), lines)

    # -- locals --------------------------------------------------------------------------------------------------
    def local(self, type_: str, name: str = "v") -> CodeLocal:
        """A new local."""
        name = "".join(c if c.isalnum() else "_" for c in name)
        self.names[name] = self.names.get(name, 0) + 1
        return CodeLocal(f"{name}_{self.names[name]}" if name != "v" else f"v{self.names[name]}", type_)

    def bind(self, code: Code) -> Code:
        if is_cheap_to_repeat(code):
            return code
        local = self.local(type_of(code))
        self.line(_set(local, code))
        return get(local)

    # -- control -------------------------------------------------------------------------------------------------
    def branch(self, condition: UOp, body: list[Statement], flow: Flow) -> None:
        test = self.operand(condition)
        around = self.scopes[-1]
        self.enter(flow, "", guard=True)
        self.run_inside(body, flow)
        inner: list[Line] = self.scopes[-1].lines
        self.leave()
        around.lines.append(CodeBlock("if", test.code, inner))

    def counted_loop(self, statement: For, flow: Flow) -> None:
        range_ = statement.range
        limit = self.trips(statement)
        counter = get(self.local(scalar_type(limit.dtype), range_.arg.name))
        around = self.scopes[-1]
        self.counters[range_] = WasmValue((counter,), limit.dtype)
        counts: dict[int, WasmValue] = {}
        if not flow.loops and limit.dtype is dtypes.int32:
            self.counts[range_] = counts
        else:
            counts[1] = self.counters[range_]
        self.enter(flow, "", range_)
        self.run(statement.body)
        inner: list[Line] = self.scopes[-1].lines
        self.leave()
        self.counts.pop(range_, None)
        trips = None if limit.constant is None else int(limit.constant)
        last = self.ending(counts, trips)
        counts.setdefault(last, self.counters.pop(range_))
        locals_ = {k: value.code.immediate for k, value in counts.items()}
        around.lines += [_set(local, number(0, local.type)) for local in locals_.values()]
        for k, local in locals_.items():
            if k != last:
                inner.append(_set(local, Code("i32.add", (get(local), number(k)))))
        end = limit.code if trips is None else number(trips * last, locals_[last].type)
        around.lines.append(_counted(locals_[last], last, end, inner))

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

    def set_register(self, node: UOp, value: WasmValue) -> None:
        register = self.register(node)
        if register.mask:
            value = self.mask(value, register.mask)
        for piece, new in zip(register.pieces, value.pieces):
            self.line(_set(piece.immediate, new))

    # -- indices -------------------------------------------------------------------------------------------------
    def literal(self, value: float | int | bool, dtype: DType) -> WasmValue:
        return literal(value, dtype)

    def vector_of(self, values: Sequence[int], dtype: DType) -> WasmValue:
        return vector_of(values, dtype)

    def is_of(self, x: WasmValue, dtype: DType) -> bool:
        return x.dtype is held(dtype)

    def converted(self, x: WasmValue, source: DType, dtype: DType) -> WasmValue:
        return self.cast(x, dtype)

    def counted(self, atom: UOp, k: int) -> WasmValue:
        return WasmValue((get(self.local("i32", f"{atom.arg.name}x{k}")),), dtypes.int32)


def _by_number(local: CodeLocal) -> tuple[str, int]:
    letters = local.name.rstrip("0123456789")
    return letters, int(local.name[len(letters):] or 0)
