"""CHECK=1: find which pass is wrong, and which rule or move of it. In: a kernel, or a graph, with data. Out: text.

A kernel is interpreted after each pass. If `optimize` is the first wrong pass, its moves are applied one more at a time
(optimize/moves/move_decorator.py) until the result differs. A graph is interpreted after each pass, too; if a pass
rewrites by rules, each replacement is compared with what it replaces.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from glassgrad.base.errors import Bug
from glassgrad.compiler.check.graph_interpreter import from_storage, interpret
from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.graph.rules.rewrite import Rule, note_rules
from glassgrad.compiler.pipeline import GRAPH, GraphWork, Pass, run_passes, watched
from glassgrad.compiler.schedule.kernels import Item
from glassgrad.engine.schedule_key import NormalizedGraph, scalar_bytes, with_params
from glassgrad.runtime.devices import Device

Differs = Callable[[Sequence[Any]], bool]         # (a kernel's arguments after a run) -> whether they are wrong
Differ = Callable[[UOp, Any, Any, Mapping[UOp, Any]], bool]     # (node, value, reference, inputs) -> is it wrong?


class Replaced(NamedTuple):
    """One application of a rule: `node` became `result`."""
    rule: Rule
    node: UOp
    result: UOp


# -- kernels -------------------------------------------------------------------------------------------------
def guilty_pass(item: Item, before: list[bytes], differs: Differs) -> str:
    """Name the first pass after which the kernel is wrong, found by interpreting its loop tree; and the move, if one is
    at fault."""
    found: list[str] = []

    def interpret_after(each: Pass, work: Any) -> None:
        if not found:
            wrong = _wrong(work.kernel, item, before, differs)
            if wrong is not None:
                found.append(each.name)
                found.append(wrong)

    with watched(interpret_after):
        Device[item.device or ""].loop_tree(item.ast)
    if not found:
        return "the loop tree is right, so render, the compiler or the launch is wrong"
    name, why = found
    move = guilty_move(item, before, differs) if name == "optimize" else ""
    return f"the pass {name} is wrong{move}{why}"


def guilty_move(item: Item, before: list[bytes], differs: Differs) -> str:
    """Name the first move after which the loop tree is wrong; empty if the recipe itself is wrong."""
    from glassgrad.compiler.optimize.moves.move_decorator import logged_moves
    device = Device[item.device or ""]

    def is_wrong(count: int) -> bool:
        """Whether the loop tree is wrong with only the first `count` moves applied."""
        with logged_moves(count):
            return _wrong(device.loop_tree(item.ast), item, before, differs) is not None

    with logged_moves() as log:
        device.loop_tree(item.ast)
    right, wrong = 0, len(log.applied)
    if not wrong or is_wrong(0) or not is_wrong(wrong):
        return ""
    while wrong - right > 1:
        middle = (right + wrong) // 2
        right, wrong = (right, middle) if is_wrong(middle) else (middle, wrong)
    move = log.applied[wrong - 1]
    return f", by its move {move.name} (move {wrong} of {len(log.applied)}, in {move.file}: {move.does})"


def _wrong(kernel: Any, item: Item, before: list[bytes], differs: Differs) -> str | None:
    """Return None if a loop tree gives the reference's results; else the reason, if the interpreter says one."""
    import numpy as np

    from glassgrad.compiler.check.loop_interpreter import run_kernel
    arguments: list[Any] = [None] * len(item.slots)
    for n in kernel.params:
        raw = before[n.arg.slot]
        arguments[n.arg.slot] = struct.unpack_from("<" + n.dtype.format, raw)[0] if n.arg.scalar else \
            np.frombuffer(bytearray(raw), np.dtype(n.dtype.format))
    try:
        run_kernel(kernel, arguments)
    except Bug as problem:
        return f" ({str(problem).splitlines()[0]})"
    return "" if differs(arguments) else None


# -- graphs --------------------------------------------------------------------------------------------------
class GraphFault(NamedTuple):
    """A pass over a graph that changed the graph's meaning; `replaced` is set if one rule did."""
    name: str
    before: list[UOp]
    after: list[UOp]
    replaced: Replaced | None
    values: dict[UOp, Any]           # of the PARAMs, as arrays


def graph_fault(normal: NormalizedGraph, scalars: tuple[int, ...], differ: Differ) -> GraphFault | None:
    """Find the first pass over a graph after which its results differ, for its present data; None if there is none."""
    sinks, params = with_params(normal, scalars)
    if any(n.op is o.CALL for n in normal.order) or any(n.symbolic for n in sinks):
        return None
    values = {param: _array(param, data) for param, data in zip(params, _contents(normal, scalars))}
    states: list[tuple[str, list[UOp], list[Replaced]]] = []
    applied: list[Replaced] = []

    def keep(each: Pass, work: Any) -> None:
        states.append((each.name, list(work.sinks), applied[:]))
        applied.clear()

    noting = note_rules(lambda rule, node, result: applied.append(Replaced(rule, node, result)))
    try:
        with watched(keep):
            run_passes(GraphWork(list(sinks), params, ""), GRAPH, say=False)
    finally:
        note_rules(noting)
    wanted, last = interpret(sinks, values), list(sinks)
    for name, now, rules in states:
        if now != last:
            found = interpret(now, values)
            for before, value, reference in zip(last, found, wanted):
                if differ(before, value, reference, values):
                    replaced = _guilty_rule(rules, values, differ)
                    if replaced is not None or not rules:
                        return GraphFault(name, last, now, replaced, values)
            wanted = found
        last = now
    return None


def _guilty_rule(rules: Sequence[Replaced], values: dict[UOp, Any], differ: Differ) -> Replaced | None:
    """Find the first replacement whose value differs from that of the node it replaces, both computed from the same
    inputs."""
    for each in rules:
        reference, value = interpret([each.node, each.result], values)
        if differ(each.node, value, reference, values):
            return each
    return None


def _contents(normal: NormalizedGraph, scalars: tuple[int, ...]) -> list[bytes]:
    """Return the input bytes of a graph without symbolic sizes, in the order of its PARAMs."""
    rows = [bytes(Device[node.device or ""].copy_out(address, node.size * node.dtype.itemsize))
            for node, address in zip(normal.buffers, normal.addresses)]
    rows += [scalar_bytes(cell.arg.value, cell.dtype) for cell in normal.cells]
    return rows + [scalar_bytes(normal.constants[i].arg, normal.constants[i].dtype) for i in scalars]


def _array(param: UOp, data: bytes) -> Any:
    import numpy as np
    if getattr(param.arg, "scalar", False):
        code = "<f4" if param.dtype.is_float and param.dtype.bits < 64 else "<" + param.dtype.format
        return np.frombuffer(data, code, 1)[0].astype(param.dtype.name).reshape(())
    return from_storage(data, param.dtype).reshape(param.shape)
