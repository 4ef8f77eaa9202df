"""The arrays that a kernel's memory is, in WGSL. In: a `Kernel`. Out: declarations, and for each memory its `Words`.

WGSL has no pointers: every argument is an array of its own, bound by number, and `args` says where in it the argument
begins (x, in bytes), or holds a number's eight bytes. All arrays are of 32-bit words, u32:

    4 bytes         a word, whose bits are the value's
    8 bytes         two words, the low one first
    1 and 2 bytes   parts of words. Neighbours in a word are other threads' elements, so a store clears and sets its
                    bits by atomic operations: any number of threads may write, and loops stay as they are.

Where a kernel has more arguments than the device binds, the last ones are `packed` into one array. Memory of a group is
declared where it is first used.
"""

from __future__ import annotations

from typing import NamedTuple

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Kernel, Store, walk
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.render.c.c_ops import Definitions
from glassgrad.compiler.render.gpu.gpu_source import scratch_is_global
from glassgrad.compiler.render.launch import LocalLayout, packed_from

__all__ = ["KernelArrays", "Words"]


class Words(NamedTuple):
    """Where a memory lies: an array, whether its words are atomic, and the byte where the memory begins."""
    name: str
    atomic: bool
    begin: str = ""          # empty: with the array

    def at(self, place: str) -> str:
        """A word, to be read."""
        return f"atomicLoad(&{self.name}[{place}])" if self.atomic else f"{self.name}[{place}]"


class KernelArrays:
    """The arrays of a kernel, which all its phases share."""

    def __init__(self, kernel: Kernel, places: LocalLayout, target: Target, definitions: Definitions):
        self.definitions, self.offsets, self.words = definitions, places.offsets, dict[UOp, Words]()
        self.scratch_global = scratch_is_global(kernel, places.scratch_bytes, target.group_bytes)
        stores = {s.memory for phase in kernel.phases for s in walk(phase.body) if isinstance(s, Store)}
        self.in_parts = {m for m in stores if m.dtype.itemsize < 4}          # words written by several threads
        count = len(kernel.params) + len(places.slots) + self.scratch_global
        definitions.types["args"] = f"@group(0) @binding(0) var<uniform> args: array<vec4<u32>, {count or 1}>;"
        arguments = [({p: 0}, f"data{p.arg.slot}", f"i32(args[{p.arg.slot}].x)")
                     for p in sorted(kernel.params, key=lambda p: p.arg.slot) if not p.arg.scalar]
        arguments += [({m: 0}, f"shared{slot}", f"i32(args[{slot}].x)") for m, slot in places.slots.items()]
        if self.scratch_global:
            begin = f"(i32(args[{count - 1}].x) + i32(group.x) * {places.scratch_bytes})"
            arguments.append((places.offsets, "scratch", begin))
        last = packed_from(len(arguments), target.buffers)
        bindings = [[argument] for argument in arguments[:last]]
        bindings += [arguments[last:]] if last < len(arguments) else []
        for number, inside in enumerate(bindings):
            name = inside[0][1] if number < last else "packed"
            atomic = any(not self.in_parts.isdisjoint(memories) for memories, _, _ in inside)
            definitions.types[name] = f"@group(0) @binding({number + 1}) var<storage, read_write> {name}: " \
                                      f"array<{_word(atomic)}>;"
            for memories, _, begin in inside:
                self.words |= {m: Words(name, atomic, f"({begin} + {offset})" if offset else begin)
                               for m, offset in memories.items()}

    def of(self, memory: UOp) -> Words:
        """The words of a memory; those of a group are declared here."""
        if memory not in self.words:
            if memory not in self.offsets:
                raise Bug(f"the LOCAL {memory.arg.name} is read but never written")
            name = f"{memory.arg.name}_group"
            if name in self.definitions.types:           # another memory of this name, such as that of a loop's rest
                name = f"{name}_{len(self.words)}"
            atomic, count = memory in self.in_parts, -(-memory.arg.size * memory.dtype.itemsize // 4)
            self.definitions.types[name] = f"var<workgroup> {name}: array<{_word(atomic)}, {count}>;"
            self.words[memory] = Words(name, atomic)
        return self.words[memory]


def _word(atomic: bool) -> str:
    return "atomic<u32>" if atomic else "u32"
