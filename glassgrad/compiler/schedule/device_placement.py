"""Choose the device of each kernel. In: a schedule. Out: the same, every kernel and value with a device.

What is computed from buffers runs where they are. What has no inputs (random numbers, counts, constants) has no device:
it is computed where it is read, and copied to other devices that read it too.
"""

from __future__ import annotations

from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.graph.op_arguments import OnDevice, Param
from glassgrad.compiler.schedule.kernels import Item, Schedule, Slot

__all__ = ["place_on_devices"]


def place_on_devices(planned: Schedule, default: str) -> None:
    """Give everything a device: that of its readers; results, and what has no readers, get the default device."""
    slots, outputs = planned.slots, set(planned.sinks)
    readers: dict[int, str] = {}                         # slot: the device of the first kernel that reads it
    for item in reversed(planned.items):
        made = item.slots[:item.results]
        if item.device is None:
            item.device = default if outputs.intersection(made) else \
                next((readers[slot] for slot in made if slot in readers), default)
        for slot in made:
            slots[slot].device = item.device
        if item.ast.op is not o.COPY:                    # a copy reads from anywhere
            for slot in item.slots[item.results:]:
                whole = slots[slot].whole
                readers[slot if whole is None else whole] = item.device
    for s in slots:
        s.device = s.device or (default if s.whole is None else slots[s.whole].device)
    planned.items[:] = _with_copies(planned)


def _with_copies(planned: Schedule) -> list[Item]:
    """The items, each after copies of what it reads from another device."""
    slots, computed = planned.slots, {slot for item in planned.items for slot in item.slots[:item.results]}
    brought: dict[tuple[int, str | None], int] = {}
    out: list[Item] = []
    for item in planned.items:
        for slot in item.slots[item.results:] if item.ast.op is not o.COPY else ():
            source = slots[slot]
            own = slot if source.whole is None else source.whole
            if own not in computed or source.device == item.device:      # inputs need no copy
                continue
            if (slot, item.device) not in brought:
                brought[slot, item.device] = len(slots)
                slots.append(Slot(source.shape, source.dtype, item.device))
                ast = UOp(o.COPY, source.dtype, (UOp(o.PARAM, source.dtype, (), Param(1, source.shape)),),
                          OnDevice(str(item.device)))
                why = ("read on another device too",)
                out.append(Item(ast, (len(slots) - 1, slot), 1, item.device, why, item.lines))
            there = brought[slot, item.device]
            item.slots = tuple([there if s == slot else s for s in item.slots])
        out.append(item)
    return out
