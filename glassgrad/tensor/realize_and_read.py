"""Pass nodes to the engine and read their values: the only way from tensors to the engine. In: nodes. Out: nodes whose
values are in memory, and their bytes.

Reading a tensor does not change it: the node keeps its history, so `loss.item()` may come before or after
`loss.backward()`; and its value is remembered, so reading twice computes once. `realize` cuts the history off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from glassgrad.base.errors import Bug
from glassgrad.base.settings import State, current_state
from glassgrad.compiler.graph import DType, UOp, ops as o, sizes_now, substitute, upper_bound
from glassgrad.compiler.graph.gradient import written_out
from glassgrad.compiler.schedule.kernels import Item
from glassgrad.engine.buffer import Buffer
from glassgrad.engine.capture import note_data, recording, refuse_reading
from glassgrad.engine.changing_sizes.kept_values import never_drop
from glassgrad.engine.in_place import buffer_of, with_known_values
from glassgrad.engine.memory_plan import MemoryUse
from glassgrad.engine.realize import below_reshapes, is_result, memory_of, realize as compute, schedule_of
from glassgrad.engine.registry import registry
from glassgrad.runtime.devices import Device
from glassgrad.runtime.disk_device import on_disk
from glassgrad.tensor import index_range_check
from glassgrad.tensor.autograd.gradient_leaves import assigned_within, gradients_beside, settle
from glassgrad.tensor.memory.python_values import HostValue, numpy_dtype

_COMPUTED = (o.Kind.UNARY, o.Kind.BINARY, o.Kind.REDUCE)       # kinds of op that need no CONTIGUOUS to be stored


# -- devices -------------------------------------------------------------------------------------------------
def canonical_device(name: str | None) -> str | None:
    """Return a device's canonical name; None stays None."""
    return None if name is None else Device.canonicalize(name)


def default_device() -> str:
    return Device.DEFAULT


def copied(node: UOp, device: str) -> UOp:
    """Copy the node's values to separate memory. Foreign memory, which another library may write to, is copied now.
    Other values never change, so several copies of them may share a buffer."""
    base = node.base
    if base in registry.foreign:
        return store(HostValue(bytes_of(node, device), sizes_now(node.shape), node.dtype), base.device or device)
    return node.contiguous()


def copied_to(node: UOp, device: str, passes_gradients: bool) -> UOp:
    """Copy the node's values to another device. Values in memory are copied now, and not again by each reader; in a
    trace, the copy is recorded instead, for the replays. If no gradient can pass, the copy does not refer to its
    source."""
    if node.device is None:
        return node
    copy = node.copy_to(device)
    if recording() is not None or node.base.op is not o.BUFFER and node.base not in registry.values:
        return copy
    value = value_of(copy, device)
    return copy if passes_gradients and node.dtype.kind == "f" else value.reshape(node.shape)


def store(value: HostValue, device: str) -> UOp:
    """Copy host memory into a new buffer."""
    buffer = Buffer(value.shape, value.dtype, device)
    if buffer.nbytes:
        buffer.copy_in(value.data)
    return note_data(UOp(o.BUFFER, value.dtype, (), buffer, buffer.place))


def over_memory(owner: Any, address: int, shape: Sequence[int], dtype: DType, device: str) -> UOp:
    """Return a node over host memory, without a copy; the node keeps `owner`, which owns the memory, alive."""
    buffer = Buffer.from_host(owner, address, tuple(shape), dtype, device)
    return UOp(o.BUFFER, dtype, (), buffer, buffer.place)


def over_array(array: Any, device: str) -> UOp | None:
    """Return a buffer over a NumPy array's own memory; None if the device cannot share it."""
    dtype = numpy_dtype(array.dtype)
    usable = array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative
    if dtype is None or not usable or not Device[device].memory.on_host:
        return None
    address: int = array.__array_interface__["data"][0]
    return as_foreign(over_memory(array, address, array.shape, dtype, device))


def as_foreign(memory: UOp) -> UOp:
    """Mark a buffer as foreign memory, which others may write to: what is computed from it is not remembered."""
    registry.foreign.set(memory, True)
    return note_data(memory)


# -- computing -----------------------------------------------------------------------------------------------
def realize(nodes: Sequence[UOp], device: str) -> list[UOp]:
    """Compute all of these nodes together; return each as a view of a BUFFER."""
    state = current_state()
    return _realize_watched(nodes, device, state) if _is_watched(state) else compute(nodes, device, state)


def _realize_watched(nodes: Sequence[UOp], device: str, state: State) -> list[UOp]:
    """Compute nodes as `realize` does, and more along with them: values that were assigned to tensors and are computed
    on the way are remembered, and checks compute a number each (whether an index is in range and, under SANITIZE=1,
    whether a result is finite)."""
    checks: list[Any] = index_range_check.sinks(nodes)
    tensors = assigned_within(nodes, device)
    waiting = [below_reshapes(t.uop) for t in tensors]
    if state.sanitize:
        from glassgrad.tensor.sanitizer import finite_checks
        checks += finite_checks(written_out(with_known_values([*nodes, *waiting], device)))
    flags = [check.first_bad for check in checks]
    numbers = getattr(Device[device].memory, "numbers", None) if checks else None
    if numbers is not None:
        numbers.look()                       # an error of an earlier run is raised before this one begins
    made = compute([*nodes, *flags, *waiting], device, state)
    for node, value in zip(waiting, made[len(nodes) + len(flags):]):
        _remember(node, value)
    trace = recording()
    for check, result in zip(checks, made[len(nodes):]):
        flag = check.flag(result)
        if flag.numbers is None:
            flag.verify(lambda wanted: computed_bytes(wanted, device))
            check.passed()
        else:
            kept = check._replace(node=check.indices)          # without the indexed data
            flag.numbers.expect(flag.numbers.copied(flag.buffer.address), partial(_settle_late, kept, flag, device))
        if trace is not None:
            trace.flags.append(flag)
    for tensor in tensors:
        settle(tensor)
    return made[:len(nodes)]


def _is_watched(state: State) -> Any:
    """Return whether more than the given nodes may have to be computed: checks, and values of tensors."""
    return index_range_check.watched_nodes.rows or registry.assigned or state.sanitize


def realize_alone(node: UOp, device: str) -> UOp:
    """Compute one node, and with it the gradients that belong to it, which are remembered. Takes few calls if no
    `backward` is left to compute."""
    state = current_state()
    if not registry.losses.rows and not registry.gradients.rows and not _is_watched(state):
        return compute([node], device, state)[0]
    gradients = gradients_beside(node, device)
    value, *others = realize([node, *gradients], device)
    for each, found in zip(gradients, others):
        _remember(each, found)
    return value


def _settle_late(check: Any, flag: Any, device: str, number: int) -> None:
    """Evaluate a check whose number arrived after its run."""
    flag.settle(number, lambda wanted: computed_bytes(wanted, device), late=True)
    check.passed()


class Purpose(NamedTuple):
    """What the kernels of a plan are for: nodes, computed on a device. It holds no kernels, because a reference cycle
    would keep the nodes, and the values remembered for them, alive until the next garbage collection."""
    nodes: tuple[UOp, ...]
    device: str

    def fulfil(self) -> None:
        """Compute the nodes; each remembers its value."""
        for node in self.nodes:
            value_of(node, self.device)


class Planned(list["Step"]):
    """The kernels that computing some nodes would run, in order: a list, with the nodes they are for."""

    def __init__(self, items: Sequence[Item], purpose: Purpose):
        super().__init__(Step(**vars(item), purpose=purpose) for item in items)
        self.purpose = purpose

    @property
    def src(self) -> tuple[Any, ...]:
        """The kernels, under the name that tinygrad's LINEAR node has for them."""
        return tuple(self)

    def _repr_svg_(self) -> str | None:
        """Draw for notebooks the kernels, what each reads, and why its result is stored."""
        from glassgrad.compiler.schedule.picture import schedule_svg
        return schedule_svg(self) if self else None

    def run(self) -> None:
        """Compute the nodes that the plan is for."""
        self.purpose.fulfil()


@dataclass(eq=False)
class Step(Item):
    """A kernel of a plan."""
    purpose: Purpose = field(repr=False, kw_only=True)

    @property
    def bufs(self) -> tuple[Buffer, ...]:
        """The memory that the plan reads, as far as it is known: results get memory when the plan runs."""
        return tuple(node.arg for root in self.purpose.nodes for node in root.toposort() if node.op is o.BUFFER)

    def run(self, *_options: Any, **_more: Any) -> None:
        """Run the plan. One call launches all of its kernels, so running the first step runs all, and the others find
        their values computed. (tinygrad's options, `wait` and the like, have no effect.)"""
        self.purpose.fulfil()


def schedule(nodes: Sequence[UOp], device: str) -> Planned:
    """Return the kernels that `realize` would run."""
    return Planned(schedule_of(with_known_values(nodes, device), device), Purpose(tuple(nodes), device))


def memory(nodes: Sequence[UOp], device: str) -> MemoryUse:
    """Return the memory that `realize` would need."""
    return memory_of(with_known_values(nodes, device), device)


def stored_elements(nodes: Sequence[UOp], device: str) -> int:
    """Return how many elements the kernels that `realize` would run store in memory."""
    items = schedule_of(with_known_values(nodes, device), device)
    return sum(upper_bound(stored.elements) for item in items for stored in item.ast.src)


def read_from_file(node: UOp, device: str) -> UOp:
    """Read the values of a view of files into memory of a device."""
    refuse_reading(f"the file of {node.device}")
    host = device if Device[device].memory.on_host else "CPU"
    lent = {n: as_foreign(over_memory(n.arg, n.arg.address, n.arg.shape, n.dtype, host))
            for n in node.toposort() if n.op is o.BUFFER and on_disk(n.device)}
    [found] = substitute([node], lent)
    made = store(HostValue(found.arg.view() if found.arg.nbytes else b"", found.shape, found.dtype), host) \
        if found.op is o.BUFFER else realize([found.contiguous()], host)[0]
    return made if host == device else made.copy_to(device)


def value_of(node: UOp, device: str) -> UOp:
    """Return the node's value as a BUFFER of any shape, or as a part of one if a size is symbolic. What is computed for
    this is remembered for the node below the reshapes."""
    base = node.below((o.RESHAPE,))
    there = base if is_result(base) else buffer_of(base)
    if there is not None:
        return there
    known = _known(base)
    if known is None and base.op is o.DETACH:                # a leaf's own node over a value that is known
        known = _known(below_reshapes(base))
    if known is not None and known.device == (base.device or device):
        if registry.kept.rows:
            never_drop(known)
        return known
    if on_disk(base.device):
        return read_from_file(base, "CPU")
    stored = base.op.kind in _COMPUTED or base.op in (o.FORMULA, o.COPY)
    value = realize_alone(base if stored else base.contiguous(), device).below((o.RESHAPE,))
    if value.op is not o.BUFFER and not (value.op is o.SHRINK and value.src[0].op is o.BUFFER):
        raise Bug(f"the engine answered {value} where a buffer was due")
    if base.op is not o.CONST:       # constants are shared between tensors, and cheaper to compute than to read
        _remember(base, value)
    return value


def _known(node: UOp) -> UOp | None:
    """Return the remembered value of a node. In a trace only values computed in it count: a replay would go on using an
    older one even after its inputs changed."""
    trace = recording()
    if trace is not None:
        return trace.values.get(node)
    return registry.values.get(node)


def _remember(node: UOp, value: UOp) -> None:
    trace = recording()
    if trace is not None:
        trace.values[node] = value
    else:
        registry.remember(node, value)


# -- reading -------------------------------------------------------------------------------------------------
def bytes_of(node: UOp, device: str) -> memoryview:
    """Return the node's value as bytes on this host: the memory itself if the device shares the host's memory."""
    return _bytes_of(node, device)[0]


def _bytes_of(node: UOp, device: str) -> tuple[memoryview, bool]:
    """Return the node's value as bytes, and whether they are a copy."""
    refuse_reading(f"the values of a tensor of shape {node.shape}")
    value = value_of(node, device)
    buffer: Buffer = value.base.arg
    if value.op is o.SHRINK:                  # the buffer is allocated for the upper bounds of symbolic sizes
        part = _part(buffer.copy_out(), buffer.shape, sizes_now(value.shape), node.dtype.itemsize)
        return memoryview(part), True
    if buffer.nbytes and Device[buffer.device].memory.on_host:
        return buffer.view(), False
    return buffer.copy_out(), True


def _part(data: memoryview, shape: Sequence[int], sizes: Sequence[int], itemsize: int) -> bytearray:
    """Return the first `sizes` elements along each axis of a row-major value, as contiguous rows."""
    if not shape or 0 in sizes:
        return bytearray(data[:itemsize * math.prod(sizes)])
    inner = next((i for i in range(len(shape), 0, -1) if sizes[i - 1] != shape[i - 1]), 1) - 1    # later axes are whole
    length = itemsize * math.prod(sizes[inner:])
    starts = [0]
    for n, size in zip(shape[:inner], sizes):
        starts = [start * n + i for start in starts for i in range(size)]
    stride = itemsize * math.prod(shape[inner:])
    return bytearray().join([data[start * stride:start * stride + length] for start in starts])


def array_of(node: UOp, device: str, shown: bool = False) -> Any:
    """Return the values as a NumPy array of their own; or, if `shown`, as a read-only array over the memory itself."""
    import numpy
    data, is_copy = _bytes_of(node, device)
    memory = data.toreadonly() if shown else data if is_copy else bytearray(data)
    return numpy.frombuffer(memory, node.dtype.name).reshape(sizes_now(node.shape))


def array_in_memory(node: UOp) -> Any:
    """Return the values as a read-only NumPy array over the memory itself; None if a kernel would have to run, if the
    host does not share the memory, or if NumPy does not have the type."""
    there = buffer_of(node) if node.dtype.in_numpy and not node.symbolic else None
    if there is None or not Device[there.arg.device].memory.on_host:
        return None
    return array_of(there, there.arg.device, shown=True).reshape(node.shape)


def computed_bytes(nodes: Sequence[UOp], device: str) -> list[memoryview]:
    """Compute nodes' values in row-major order, for messages, also inside a jit. Remembered values are neither used nor
    replaced."""
    return [value.base.arg.copy_out() for value in compute([n.contiguous() for n in nodes], device, recompute=True)]


def read_together(nodes: Sequence[UOp], device: str) -> list[UOp]:
    """Compute nodes in one schedule, to be read. What several of them need is computed once."""
    refuse_reading(f"the values of {len(nodes)} tensors")
    return realize([node.contiguous() for node in nodes], device)


def numbers_of(node: UOp, device: str) -> Any:
    """Return the node's numbers in row-major order, without NumPy; the type must be one that Python's formats have."""
    return _typed(bytes_of(node, device), node.dtype)


def host_values(node: UOp) -> list[int]:
    """Return the values of a BUFFER of 1 to 1024 integers in host memory; for any other node an empty list."""
    if node.op is not o.BUFFER or not 0 < node.size <= 1024:
        return []
    buffer: Buffer = node.arg
    if not Device[buffer.device].memory.on_host:
        return []
    return list(_typed(buffer.view(), node.dtype))


def number_in(node: UOp, device: str) -> Any:
    """Return the number of a node with one element. It is copied, which costs less than exporting its memory."""
    refuse_reading("the value of a tensor with one element")
    value = value_of(node, device)
    return numbers_of(node, device)[0] if value.op is o.SHRINK else _typed(value.base.arg.copy_out(), node.dtype)[0]


def _typed(data: memoryview, dtype: DType) -> Any:
    return data.cast("B").cast(dtype.format)  # type: ignore[call-overload]
