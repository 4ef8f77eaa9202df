"""CHECK=1: compare what kernels compute with the interpreter. In: a kernel that ran, a graph. Out: a `Bug` that names
it.

The message says which pass is wrong, and which rule or move of it (bisect.py), and names a script that reproduces the
fault (reproduce.py).

Values are compared up to a tolerance. If a value is further off, the interpreter computes it several times from inputs
that differ in their last bits: rounding may change it by as much as these differences do (Monte Carlo arithmetic). A
well-conditioned value hardly changes, so the kernel is wrong. A rounding error that is divided by its own size may be
anything between -1 and 1, and says nothing about a kernel.
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
RUNS, TIMES = 5, 4               # runs with perturbed inputs; allowed multiple of the largest change in them


def check_kernel(item: Item, before: list[bytes], after: list[bytes]) -> None:
    """CHECK=1: compare a kernel's results with the interpreter's; raise a `Bug` that names the pass, the kernel and the
    line."""
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
    """CHECK=1: compare the graph that the passes leave with the graph as the program made it."""
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
    """A result of a kernel: its STORE, the shape of its memory, the part that was written, and the values that should
    be there."""
    store: UOp
    memory: tuple[int, ...]
    place: Any
    want: Any
    slack: Any = 0.0                 # an allowed difference beyond the tolerance


def _guilty(item: Item, before: list[bytes], checked: list[_Checked]) -> str:
    """Name the wrong pass, and the move if one is at fault."""
    from glassgrad.engine.check.bisect import guilty_pass
    return guilty_pass(item, before, lambda arguments: any(
        _difference(row, arguments[i].tobytes())[0] is not None for i, row in enumerate(checked)))


def _inputs(item: Item, before: list[bytes], sizes: Mapping[Symbol, int]) -> dict[Any, Any]:
    """Return a kernel's inputs as arrays, by its PARAMs."""
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
    """Return the shape of a node's memory: for the upper bounds of symbolic sizes, or for exact ones."""
    shape: tuple[int, ...] = replaced(tuple([memory_size(n) for n in node.shape]), sizes.__getitem__)
    return shape


def _part(array: Any, shape: tuple[int, ...]) -> Any:
    """Return the part of an array that a node of this shape uses."""
    return array[tuple(slice(n) for n in shape)]


def _written(row: _Checked, raw: bytes) -> Any:
    """Return the values that a kernel wrote to its part of a result."""
    return from_storage(raw, row.store.dtype).reshape(row.memory)[row.place]


def rounding(node: UOp, given: Mapping[UOp, Any], want: Any) -> Any:
    """Estimate by how much rounding may change each element of a value: several times the change when each float that
    it is computed from changes in its last bits. Infinite if an integer or a boolean changes, or a float becomes
    infinite or finite."""
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
    """Return the tolerance of the coarsest float type that occurs in the computation."""
    return max(TOLERANCE[n.dtype.name] for n in store.toposort() if n.dtype.is_float)


def _close(dtype: DType, got: Any, want: Any, tolerance: float, slack: Any = 0.0) -> Any:
    """Return a mask of the elements that are equal up to rounding."""
    import numpy as np
    if not dtype.is_float:
        return (got == want) | np.isinf(slack)
    with np.errstate(all="ignore"):
        scale = np.max(np.abs(want[np.isfinite(want)]), initial=1.0)
        return (got == want) | (np.isnan(got) & np.isnan(want)) | (np.abs(got - want) <= tolerance * scale + slack) \
            | np.isinf(slack)


def differs(node: UOp, value: Any, reference: Any, given: Mapping[UOp, Any]) -> bool:
    """Return whether a node's value differs from the `reference` by more than rounding explains; `given` are the values
    that it is computed from."""
    import numpy as np
    value, reference = np.asarray(value), np.asarray(reference)
    tolerance = max((TOLERANCE[n.dtype.name] for n in node.toposort() if n.dtype.is_float), default=0.0)
    if np.all(_close(node.dtype, value, reference, tolerance)):
        return False
    return not np.all(_close(node.dtype, value, reference, tolerance, rounding(node, given, reference)))


def _difference(row: _Checked, raw: bytes) -> tuple[Any, Any, Any]:
    """Return the first position where a result differs, its value there, and the expected one; or three times None."""
    import numpy as np
    got, store, want = _written(row, raw), row.store, row.want
    same = _close(store.dtype, got, want, _tolerance(store) if store.dtype.is_float else 0.0, row.slack)
    if np.all(same):
        return None, None, None
    where = tuple(int(i) for i in np.argwhere(~np.atleast_1d(same))[0])
    return where, np.atleast_1d(got)[where], np.atleast_1d(want)[where]
