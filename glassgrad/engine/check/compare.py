"""CHECK=1: compare what is computed with the interpreter. In: a kernel that ran, a graph. Out: a `Bug` that names it.

The message says which pass is wrong, and which rule or move of it (bisect.py), and names a script that shows it again
(reproduce.py).

Values are compared up to a tolerance. Where one is further off, it is computed again from inputs that differ in their
last bits: what they change it by, rounding may change it by too (Monte Carlo arithmetic). A well-conditioned value
stays where it is, and the difference is a fault. A rounding error divided by its own size is anything between -1 and 1,
and says nothing about a kernel.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from glassgrad.base.errors import Bug
from glassgrad.compiler.check.graph_interpreter import array_type, from_storage, interpret, to_storage
from glassgrad.compiler.graph import DType, UOp, ops as o
from glassgrad.compiler.graph.node import concrete
from glassgrad.compiler.graph.symbolic import Symbol, memory_size, replaced
from glassgrad.compiler.schedule.kernels import Item, describe, describe_graph
from glassgrad.engine.schedule_key import NormalizedGraph

TOLERANCE = {"float16": 2e-2, "bfloat16": 6e-2, "fp8e4m3": 0.3, "fp8e5m2": 0.5, "fp8e4m3fnuz": 0.3, "fp8e5m2fnuz": 0.5,
             "float32": 2e-4, "float64": 1e-9}
RUNS, TIMES = 5, 4               # runs with perturbed inputs; multiple of the largest effect that is allowed


def check_kernel(item: Item, before: list[bytes], after: list[bytes]) -> None:
    """CHECK=1: compare a kernel's results with the interpreter's; a difference names the pass, the kernel, the line."""
    import numpy as np
    sizes = {n.arg.symbol: struct.unpack_from("<q", before[n.arg.slot])[0] for n in item.ast.src if n.op is o.PARAM}
    plain = concrete([item.ast], sizes.__getitem__)
    stores = [(s, plain[s]) for s in item.ast.src if s.op is o.STORE]
    given = {plain[n]: _part(array, plain[n].shape) for n, array in _inputs(item, before, sizes).items()}
    wanted = [np.broadcast_to(want, now.shape) for want, (_, now)
              in zip(interpret([now.src[1] for _, now in stores], given), stores)]
    places = [tuple(slice(start, stop) for start, stop in now.src[0].arg.bounds) if now.src[0].op is o.SHRINK
              else tuple(slice(n) for n in now.shape) for _, now in stores]
    checked = [_Checked(store, _memory_shape(store.src[0].base, sizes), place, want)
               for (store, _), place, want in zip(stores, places, wanted)]
    for number, (row, raw) in enumerate(zip(checked, after)):
        where, got, expected = _difference(row, raw)
        if where is not None:
            checked[number] = row = row._replace(slack=rounding(stores[number][1].src[1], given, row.want))
            where, got, expected = _difference(row, raw)
        if where is not None:
            from glassgrad.engine.check.reproduce import kernel_script
            what = f"{_guilty(item, before, checked)}: a kernel differs from the interpreter at {where} of result " \
                   f"{number}: got {got}, expected {expected}"
            data = {slot: raw for slot, raw in enumerate(before) if raw}
            script = kernel_script(item.ast, data, item.device or "", what) if not item.ast.symbolic else ""
            raise Bug(f"CHECK: {what}\n  at: {', '.join(map(str, item.lines)) or 'unknown'}\n{describe(item)}"
                      + (f"\n  to see it again: python {script}" if script else ""))


def check_graph(normal: NormalizedGraph, scalars: tuple[int, ...]) -> None:
    """CHECK=1: compare what the passes over a graph leave with the graph as the program made it."""
    from glassgrad.engine.check.bisect import graph_fault
    fault = graph_fault(normal, scalars, differs)
    if fault is None:
        return
    from glassgrad.engine.check.reproduce import rule_script
    broken = fault.replaced
    values = {n: to_storage(array, n.dtype).tobytes() for n, array in fault.values.items()}
    lines = list(dict.fromkeys(str(n.line) for n in (normal.sinks if broken is None else [broken.node]) if n.line))
    if broken is None:
        what = f"the pass {fault.name} is wrong: a graph means something else after it"
        script = rule_script(fault.name, fault.before, values, what)
        shown = f"before:\n{describe_graph(fault.before)}\nafter:\n{describe_graph(fault.after)}"
    else:
        rule = broken.rule
        what = f"the pass {fault.name} is wrong, by its rule {rule.name} ({rule.why})"
        script = rule_script(rule.name, [broken.node], values, what)
        shown = f"before:\n{describe_graph([broken.node])}\nafter:\n{describe_graph([broken.result])}"
    raise Bug(f"CHECK: {what}\n  at: {', '.join(lines) or 'unknown'}\n{shown}\n  to see it again: python {script}")


class _Checked(NamedTuple):
    """A result of a kernel: its STORE, the shape of its memory, where in it was written, and what should be there."""
    store: UOp
    memory: tuple[int, ...]
    place: Any
    want: Any
    slack: Any = 0.0                 # by how much more than the tolerance it may be off


def _guilty(item: Item, before: list[bytes], checked: list[_Checked]) -> str:
    """The pass that is wrong, and the move."""
    from glassgrad.engine.check.bisect import guilty_pass
    return guilty_pass(item, before, lambda arguments: any(
        _difference(row, arguments[i].tobytes())[0] is not None for i, row in enumerate(checked)))


def _inputs(item: Item, before: list[bytes], sizes: Mapping[Symbol, int]) -> dict[Any, Any]:
    """What a kernel was given, as arrays by its PARAMs."""
    import numpy as np
    values: dict[Any, Any] = {}
    for n in item.ast.toposort():
        if n.op is o.PARAM:
            raw = before[n.arg.slot]
            if n.arg.scalar:
                values[n] = np.array(struct.unpack_from("<" + n.dtype.format, raw)[0], array_type(n.dtype))
            else:
                values[n] = from_storage(raw, n.dtype).reshape(_memory_shape(n, sizes))
    return values


def _memory_shape(node: UOp, sizes: Mapping[Symbol, int]) -> tuple[int, ...]:
    """The shape of a node's memory: it is large enough for the longest of symbolic sizes, or for exact ones."""
    shape: tuple[int, ...] = replaced(tuple([memory_size(n) for n in node.shape]), sizes.__getitem__)
    return shape


def _part(array: Any, shape: tuple[int, ...]) -> Any:
    """The part of an array that a node of this shape uses."""
    return array[tuple(slice(n) for n in shape)]


def _written(row: _Checked, raw: bytes) -> Any:
    """The values that a kernel wrote to its part of a result."""
    return from_storage(raw, row.store.dtype).reshape(row.memory)[row.place]


def rounding(node: UOp, given: Mapping[UOp, Any], want: Any) -> Any:
    """By how much rounding may change each element of a value: several times what it changes by when each float it
    follows from changes in its last bits. Infinite where an integer or a truth value changes, or whether it is finite.
    """
    import numpy as np
    want = np.asarray(want)
    slack = np.zeros(want.shape)
    for seed in range(RUNS):
        random = np.random.default_rng(seed)
        near = {n: (a * (1 + TOLERANCE[n.dtype.name] / 100 * random.uniform(-1, 1, np.shape(a)))).astype(a.dtype)
                if n.dtype.is_float else a for n, a in given.items()}
        with np.errstate(all="ignore"):
            found = np.broadcast_to(interpret([node], near)[0], want.shape)
            moved = np.abs(found - want) if node.dtype.is_float else np.full(want.shape, np.inf)
            same = (found == want) | (found != found) & (want != want)
            slack = np.maximum(slack, np.where(same, 0.0, np.where(np.isfinite(moved), moved, np.inf)))
    return TIMES * slack


def _tolerance(store: UOp) -> float:
    """The tolerance of the coarsest float type that occurs in the computation."""
    return max(TOLERANCE[n.dtype.name] for n in store.toposort() if n.dtype.is_float)


def _close(dtype: DType, got: Any, want: Any, tolerance: float, slack: Any = 0.0) -> Any:
    """A mask of the elements that are equal up to rounding."""
    import numpy as np
    if not dtype.is_float:
        return (got == want) | np.isinf(slack)
    with np.errstate(all="ignore"):
        scale = np.max(np.abs(want[np.isfinite(want)]), initial=1.0)
        return (got == want) | (np.isnan(got) & np.isnan(want)) | (np.abs(got - want) <= tolerance * scale + slack) \
            | np.isinf(slack)


def differs(node: UOp, value: Any, reference: Any, given: Mapping[UOp, Any]) -> bool:
    """Whether a value is not that of a node, which is `reference`, by more than rounding explains; `given` are the
    values that it is computed from."""
    import numpy as np
    value, reference = np.asarray(value), np.asarray(reference)
    tolerance = max((TOLERANCE[n.dtype.name] for n in node.toposort() if n.dtype.is_float), default=0.0)
    if np.all(_close(node.dtype, value, reference, tolerance)):
        return False
    return not np.all(_close(node.dtype, value, reference, tolerance, rounding(node, given, reference)))


def _difference(row: _Checked, raw: bytes) -> tuple[Any, Any, Any]:
    """Where a result differs first, what it is there and what it should be; or None three times."""
    import numpy as np
    got, store, want = _written(row, raw), row.store, row.want
    same = _close(store.dtype, got, want, _tolerance(store) if store.dtype.is_float else 0.0, row.slack)
    if np.all(same):
        return None, None, None
    where = tuple(int(i) for i in np.argwhere(~np.atleast_1d(same))[0])
    return where, np.atleast_1d(got)[where], np.atleast_1d(want)[where]
