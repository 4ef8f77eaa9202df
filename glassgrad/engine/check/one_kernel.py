"""Run and check one kernel, or one rewrite, by itself. In: a graph and data, from a script. Out: a `Bug`, if it is
wrong.

The scripts that reproduce.py writes call it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

from glassgrad.base.errors import Bug
from glassgrad.base.settings import Context
from glassgrad.compiler.check.graph_interpreter import from_storage, interpret
from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.graph.rules.rewrite import Rule, RuleSet, rewrite
from glassgrad.compiler.pipeline import PASSES, GraphWork
from glassgrad.compiler.schedule.kernels import Item, Schedule, Slot, describe_graph
from glassgrad.engine.check.compare import check_kernel, differs
from glassgrad.engine.compiled_schedule import Segment
from glassgrad.runtime.devices import Device

__all__ = ["check_alone", "check_rewrite"]


def check_alone(ast: UOp, data: Mapping[int, bytes], device: str) -> None:
    """Compile and run a kernel on a device with this data, given by slot, and compare it with the interpreter."""
    opened = Device[device]
    params = {n.arg.slot: n for n in ast.toposort() if n.op is o.PARAM}
    slots = [Slot(params[i].shape, params[i].dtype, device) if i in params else Slot((), ast.dtype, device)
             for i in range(max(params) + 1)]
    results = sum(s.op is o.STORE for s in ast.src)
    item = Item(ast, tuple(range(len(slots))), results, device)
    with Context(CACHE=0):
        segment = Segment([item], len(slots), Schedule([item], slots))
    sizes = [slot.nbytes for slot in slots] + [nbytes for _, nbytes in segment.shared]
    blocks = [opened.memory.allocate(max(nbytes, 8)) for nbytes in sizes]
    numbers = {slot: ctypes.create_string_buffer(data[slot], 8) for slot, n in params.items() if n.arg.scalar}
    addresses = [ctypes.addressof(numbers[i]) if i in numbers else block.address for i, block in enumerate(blocks)]
    try:
        for slot, content in data.items():
            if slot not in numbers:
                opened.copy_in(addresses[slot], content)
        segment.plan.bind(addresses)
        before = segment.contents(item, addresses, {})
        segment.plan.run_one(0)
        check_kernel(item, before, segment.contents(item, addresses, {})[:results])
    finally:
        for block in blocks:
            opened.memory.release(block)


def check_rewrite(sinks: Sequence[UOp], data: Mapping[UOp, bytes], name: str) -> None:
    """Rewrite a graph by the rule or the pass of this name, and compare the values before and after."""
    values = {n: from_storage(raw, n.dtype).reshape(n.shape) for n, raw in data.items()}
    if name in Rule.known:
        after = rewrite(sinks, RuleSet([Rule.known[name]]))
    else:
        work = GraphWork(list(sinks), list(values), "")
        next(each for each in PASSES if each.name == name).run(work)
        after = work.sinks
    for sink, value, reference in zip(sinks, interpret(after, values), interpret(sinks, values)):
        if differs(sink, value, reference, values):
            raise Bug(f"CHECK: {name} changes what a graph means\nbefore:\n{describe_graph(sinks)}\n"
                      f"after:\n{describe_graph(after)}")
