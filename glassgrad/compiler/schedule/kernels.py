"""Cut a graph into kernels. In: sinks over PARAM leaves, and which nodes live in memory. Out: `Schedule`.

Each stored node is a kernel's result (kernel_groups.py decides which share a kernel). The kernel's body is the nodes
between it and other stored nodes, over numbered PARAMs, so that equal kernels are equal graphs.

Then each kernel gets a device. Values computed from buffers are computed where the buffers are. A value without inputs
(random numbers, counts, constants) has no device: it is computed on a device that reads it, and copied to others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from glassgrad.base.source_lines import Line
from glassgrad.compiler.graph import DType, UOp, dtypes, ops as o, toposort
from glassgrad.compiler.graph.axis_dependence import start_of_piece
from glassgrad.compiler.graph.node import concrete
from glassgrad.compiler.graph.op_arguments import Dimension, Measure, OnDevice, Param, Shape
from glassgrad.compiler.graph.symbolic import Length, Size, Symbol, lower_bound, upper_bound
from glassgrad.compiler.schedule.inlined_values import CPU_LIMITS, LEAVES, FusionLimits
from glassgrad.compiler.schedule.kernel_groups import KernelGroup, squeezed
from glassgrad.compiler.schedule.partial_updates import Part, Update, part_of


@dataclass(eq=False)
class Slot:
    """Memory of one value while a schedule runs: an input, a result, an intermediate, or a piece of another slot."""
    shape: Shape
    dtype: DType
    device: str | None
    whole: int | None = None     # the slot that this one is a piece of
    offset: int = 0              # where it begins there, in bytes

    @property
    def nbytes(self) -> int:
        return math.prod(map(upper_bound, self.shape)) * self.dtype.itemsize


@dataclass(eq=False)
class Item:
    """One kernel (or one copy between devices) with its slots: PARAM i of `ast` is slots[i]."""
    ast: UOp                     # SINK of STOREs or RECURRENCEs over PARAMs (also for sizes), or COPY of a PARAM
    slots: tuple[int, ...]
    results: int                 # how many of the first slots it writes
    device: str | None
    reasons: tuple[str, ...] = ()
    lines: tuple[Line, ...] = ()
    step: Schedule | None = None             # of a recurrence: the schedule of one step

    @property
    def is_recurrence(self) -> bool:
        return self.ast.op is o.SINK and self.ast.src[0].op is o.RECURRENCE

    def _repr_svg_(self) -> str:
        """The kernel's graph as SVG, for notebooks."""
        from glassgrad.compiler.graph.picture import graph_svg
        return graph_svg([self.ast])


@dataclass(eq=False)
class Schedule:
    """Kernels in execution order, and the memory that they work on."""
    items: list[Item] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    inputs: int = 0              # how many of the first slots are inputs
    results: dict[UOp, int] = field(default_factory=dict)   # sink -> its slot
    sinks: list[int] = field(default_factory=list)          # the slots of the results, in order
    updates: list[Update] = field(default_factory=list)     # results that are an input with a part replaced

    def _repr_svg_(self) -> str | None:
        """The kernels as SVG, for notebooks: what each reads, and why its result is stored."""
        from glassgrad.compiler.schedule.picture import schedule_svg
        return schedule_svg(self.items) if self.items else None

    @property
    def has_recurrence(self) -> bool:
        return any(item.is_recurrence for item in self.items)

    def runs(self, item: Item) -> bool:
        """Whether an item has work to do: a result without elements needs no kernel."""
        return 0 not in self.slots[item.slots[0]].shape


def cut_into_kernels(sinks: list[UOp], inputs: list[UOp], reasons: dict[UOp, str], groups: list[KernelGroup],
                     limits: FusionLimits = CPU_LIMITS) -> Schedule:
    """Make one kernel per group of stored nodes. `inputs` are the PARAM leaves by slot; `reasons` the stored nodes."""
    slots = [Slot(p.shape, p.dtype, p.device) for p in inputs]
    slot_of: dict[UOp, int] = {p: i for i, p in enumerate(inputs)}
    for node in reasons:
        slot_of[node] = len(slots)
        slots.append(Slot(node.shape, node.dtype, node.device))
    sizes = {p.arg.symbol: p for p in inputs if isinstance(p.arg, Measure)}
    wanted = {*sinks, *[r for group in groups for r in group.reads]}  # other values are read only by their own kernel
    memory = _Memory(slot_of, reasons, slots)
    planned = Schedule([], slots, len(inputs), {s: slot_of[s] for s in sinks})
    for group in groups:
        root = group.roots[0]
        part = part_of(root) if root.op is o.WHERE and root in planned.results else None
        if root.op is o.RECURRENCE:
            stored = [r for r in group.roots if r in wanted]
            planned.items.append(_recurrence(stored, memory, inputs, limits.in_one_kernel(stored[0])))
        elif part is None:
            stored = [r for r in group.roots if r in wanted]
            planned.items.append(_item(group.roots, stored, memory, sizes))
        else:
            _plan_update(planned, root, part, memory, sizes)
    planned.sinks = [planned.results[s] for s in sinks]
    return planned


def _plan_update(planned: Schedule, root: UOp, part: Part, memory: _Memory, sizes: dict[Symbol, UOp]) -> None:
    """Plan a partial update as two kernels: a copy of the old value, of a variable length, and the replaced part."""
    slot_of, why = memory.slot_of, memory.reasons[root]
    slot, size = len(planned.slots), part.whole.size
    planned.slots.append(Slot((), dtypes.index, None))
    copied = Symbol(f"copied{slot}", 0, size)
    sizes[copied] = UOp(o.PARAM, dtypes.index, (), Measure(slot, copied))
    slot_of[sizes[copied]] = slot
    length: Dimension = Length({(copied,): 1})
    copy = part.whole.reshape((size,)).shrink(((0, length),))
    value = UOp(o.DETACH, part.value.dtype, (part.value,), None, root.place)
    slot_of[copy] = slot_of[value] = slot_of[root]
    with_part = memory.with_stored({copy: "the rest of what a part is written into", value: why})
    planned.items += [_item([copy], [copy], with_part, sizes), _item([value], [value], with_part, sizes, part)]
    planned.updates.append(Update(slot_of[part.whole], slot_of[root], slot, size))


# -- one kernel's own graph ----------------------------------------------------------------------------------
class _Memory:
    """The slots of values, and of pieces at offsets: so steps 6 and 7 of a loop over x[i] are the same kernel."""

    def __init__(self, slot_of: dict[UOp, int], reasons: dict[UOp, str], slots: list[Slot]):
        self.slot_of, self.reasons, self.slots = slot_of, reasons, slots
        self.pieces: dict[tuple[int, int, Shape], int] = {}

    def with_stored(self, reasons: dict[UOp, str]) -> _Memory:
        """A copy for kernels that find these nodes in memory too."""
        extended = _Memory(self.slot_of, {**self.reasons, **reasons}, self.slots)
        extended.pieces = self.pieces
        return extended

    def holds(self, node: UOp, roots: list[UOp]) -> bool:
        """Whether a node is in memory for a kernel that computes `roots`."""
        return node.op in LEAVES or node in self.reasons and node not in roots

    def whole(self, node: UOp, roots: list[UOp]) -> UOp | None:
        """The value in memory of which a SHRINK is a contiguous piece; None for other nodes."""
        if node.op is not o.SHRINK or not node.size:
            return None
        source = node.src[0]
        while source.op is o.RESHAPE and not self.holds(source, roots):
            source = source.src[0]
        found = source in self.slot_of and self.holds(source, roots) and not (
            source.op is o.PARAM and (isinstance(source.arg, Measure) or source.arg.scalar))
        return source if found and start_of_piece(node) is not None else None

    def slot(self, node: UOp, whole: UOp | None) -> int:
        """The slot of a value, or of a piece of one."""
        if whole is None:
            return self.slot_of[node]
        offset = (start_of_piece(node) or 0) * node.dtype.itemsize
        key = self.slot_of[whole], offset, node.shape
        if key not in self.pieces:
            self.pieces[key] = len(self.slots)
            self.slots.append(Slot(node.shape, node.dtype, self.slots[key[0]].device, key[0], offset))
        return self.pieces[key]

    def item(self, ast: UOp, slots: list[int], stored: list[UOp]) -> Item:
        """The item of a kernel that stores these values."""
        lines = tuple(dict.fromkeys(line for r in stored if (line := r.line) is not None))
        return Item(ast, tuple(slots), len(stored), stored[0].device, tuple([self.reasons[r] for r in stored]), lines)


def _item(roots: list[UOp], stored: list[UOp], memory: _Memory, sizes: dict[Symbol, UOp],
          part: Part | None = None) -> Item:
    """Build the kernel that computes `roots` and writes those of them that are `stored`."""
    slot_of = memory.slot_of
    if roots[0].op is o.COPY:
        source = roots[0].src[0]
        ast = _copy_of(source, roots[0].arg)
        return memory.item(ast, [slot_of[roots[0]], slot_of[source]], stored)
    slots = [slot_of[r] for r in stored]
    last = roots[-1]                 # the last root gives the shape in which equally large results are stored
    shapes = [last.shape if squeezed(r) == squeezed(last) else r.shape for r in stored]
    targets = [UOp(o.PARAM, r.dtype, (), Param(i, shape)) for i, (r, shape) in enumerate(zip(stored, shapes))]
    if part is not None:
        targets = [UOp(o.PARAM, part.whole.dtype, (), Param(0, part.whole.shape)).shrink(part.bounds)]
    new = _over_params(roots, memory, slots)
    stores = tuple(UOp(o.STORE, r.dtype, (t, new[r].reshaped(shape))) for t, r, shape in zip(targets, stored, shapes))
    sink = UOp(o.SINK, stored[0].dtype, stores)
    if sink.symbolic:
        sink = _with_variables(sink, slots, {symbol: slot_of[size] for symbol, size in sizes.items()})
    return memory.item(sink, slots, stored)


def _over_params(roots: list[UOp], memory: _Memory, slots: list[int]) -> dict[UOp, UOp]:
    """Map each node that the kernel of `roots` computes to its copy over PARAMs, and append these PARAMs' slots."""
    new: dict[UOp, UOp] = {}

    def leaf(node: UOp, whole: UOp | None = None) -> UOp:
        if node.op is o.CONST:
            return node
        slots.append(memory.slot(node, whole))
        return UOp(o.PARAM, node.dtype, (), Param(len(slots) - 1, node.shape, node.op is o.PARAM and node.arg.scalar))

    def inside(node: UOp) -> tuple[UOp, ...]:
        """The sources of a node that this kernel computes."""
        return () if memory.holds(node, roots) or memory.whole(node, roots) is not None else node.src

    for node in toposort(roots, inside):
        if memory.holds(node, roots):
            new[node] = leaf(node)
        elif whole := memory.whole(node, roots):
            new[node] = leaf(node, whole)
        elif node.op in (o.CONTIGUOUS, o.DETACH):
            new[node] = new[node.src[0]]
        else:
            new[node] = node.over(tuple([new[s] for s in node.src]))
    return new


def _copy_of(source: UOp | Slot, to: OnDevice) -> UOp:
    """The graph of a kernel that copies a value to another device."""
    return UOp(o.COPY, source.dtype, (UOp(o.PARAM, source.dtype, (), Param(1, source.shape)),), to)


def _recurrence(stored: list[UOp], memory: _Memory, inputs: list[UOp], in_one_kernel: bool) -> Item:
    """Make the item of a recurrence, some of whose results are stored; its arguments are the sources, then all
    variables. In one kernel, the step's number is computed by the kernel, and there are no variables."""
    slots, params = [memory.slot_of[r] for r in stored], list[UOp]()
    for node in stored[0].src:
        if in_one_kernel and node.op is o.IOTA:
            params.append(node)
            continue
        params.append(UOp(o.PARAM, node.dtype, (), Param(len(slots), node.shape, False, node.device)))
        while node not in memory.slot_of:                # a reshape of a stored value
            node = node.src[0]
        slots.append(memory.slot_of[node])
    if not in_one_kernel:
        slots += [slot for slot, p in enumerate(inputs) if isinstance(p.arg, Measure)]
    results = [r.over(tuple(params)) for r in stored]
    if in_one_kernel:
        results = [UOp(o.STORE, r.dtype, (UOp(o.PARAM, r.dtype, (), Param(i, r.shape)), r))
                   for i, r in enumerate(results)]
    return memory.item(UOp(o.SINK, stored[0].dtype, tuple(results)), slots, stored)


def _with_variables(sink: UOp, slots: list[int], size_slots: dict[Symbol, int]) -> UOp:
    """Add the kernel's variables to `slots`, renamed by their order, so that equal kernels are equal graphs."""
    renamed: dict[Symbol, Symbol] = {}       # variable -> its name in the kernel
    measures: list[UOp] = []

    def measure(symbol: Symbol) -> Symbol:
        if symbol not in renamed:
            slots.append(size_slots[symbol])
            name = renamed[symbol] = symbol._replace(name=f"n{len(slots) - 1}")
            measures.append(UOp(o.PARAM, dtypes.index, (), Measure(len(slots) - 1, name)))
        return renamed[symbol]

    named = concrete(sink.src, measure)
    return UOp(o.SINK, sink.dtype, (*[named[s] for s in sink.src], *measures))


def describe(item: Item) -> str:
    """One kernel's graph as text, sources first."""
    return _listing(item.ast)


def describe_graph(sinks: Sequence[UOp]) -> str:
    """A whole graph as text, sources first."""
    return _listing(UOp(o.SINK, sinks[0].dtype, tuple(sinks)))


def _listing(root: UOp) -> str:
    order = toposort([root])
    number = {n: i for i, n in enumerate(order)}
    return "\n".join(f"{number[n]:4d} {n.op.name:<10} {n.dtype.name:<9} {str(list(n.shape)):<20} "
                     f"{[number[s] for s in n.src]} {'' if n.arg is None else n.arg}" for n in order)


# -- devices -------------------------------------------------------------------------------------------------
def place_on_devices(planned: Schedule, default: str) -> None:
    """Assign devices: that of a value's readers; the default device for results and values without readers."""
    slots, outputs = planned.slots, set(planned.sinks)
    readers: dict[int, str] = {}                         # slot -> the device of the first kernel that reads it
    for item in reversed(planned.items):
        made = item.slots[:item.results]
        if item.device is None:
            item.device = default if outputs.intersection(made) else \
                next((readers[slot] for slot in made if slot in readers), default)
        for slot in made:
            slots[slot].device = item.device
        if item.ast.op is not o.COPY:                    # a copy may read from any device
            for slot in item.slots[item.results:]:
                whole = slots[slot].whole
                readers[slot if whole is None else whole] = item.device
    for s in slots:
        s.device = s.device or (default if s.whole is None else slots[s.whole].device)
    planned.items[:] = _with_copies(planned)


def _with_copies(planned: Schedule) -> list[Item]:
    """The items, each preceded by copies of what it reads from other devices."""
    slots, computed = planned.slots, {slot for item in planned.items for slot in item.slots[:item.results]}
    copies: dict[tuple[int, str | None], int] = {}       # (slot, device) -> slot of its copy there
    out: list[Item] = []
    for item in planned.items:
        for slot in item.slots[item.results:] if item.ast.op is not o.COPY else ():
            source = slots[slot]
            whole = slot if source.whole is None else source.whole
            if whole not in computed or source.device == item.device:      # inputs need no copy
                continue
            if (slot, item.device) not in copies:
                copies[slot, item.device] = len(slots)
                slots.append(Slot(source.shape, source.dtype, item.device))
                why = ("read on another device too",)
                ast = _copy_of(source, OnDevice(str(item.device)))
                out.append(Item(ast, (len(slots) - 1, slot), 1, item.device, why, item.lines))
            copy = copies[slot, item.device]
            item.slots = tuple([copy if s == slot else s for s in item.slots])
        out.append(item)
    return out


# -- cost of a kernel --------------------------------------------------------------------------------------
def cost(ast: UOp) -> tuple[Size, Size]:
    """A kernel's (arithmetic operations, bytes of memory that it must read or write); lengths, if it has variables."""
    operations = total = 0
    order = toposort([ast])
    counted = [n.src[0] if n.op in o.REDUCE else n for n in order
               if n.op in o.REDUCE or n.op in o.ELEMENTWISE and n.op not in (o.CAST, o.BITCAST)]
    for shape, times in Counter([n.shape for n in counted]).items():
        operations += math.prod(shape) * times
    for n, touched in _elements_read(order).items():
        if n.op is o.PARAM and not n.arg.scalar:
            total += touched * n.dtype.itemsize
    return operations, total


def _elements_read(order: list[UOp]) -> dict[UOp, Size]:
    """An upper bound of the elements read of each node: a SHRINK, a GATHER and windows with gaps read only a part."""
    sizes = {n: n.elements for n in order}
    found: dict[UOp, Size] = {order[-1]: sizes[order[-1]]}
    for n in reversed(order):
        for i, source in enumerate(n.src):
            part = n.op in (o.SHRINK, o.WINDOW) or n.op is o.GATHER and i == 0 or \
                sizes[n] == sizes[source] and n.op is not o.SINK
            found[source] = _lesser(sizes[source], found.get(source, 0) + (found[n] if part else sizes[source]))
    return found


def _lesser(one: Size, other: Size) -> Size:
    """The size that is never greater than the other; if neither is, the lesser at the variables' upper bounds."""
    return other if lower_bound(one - other) >= 0 else min(one, other, key=upper_bound)
