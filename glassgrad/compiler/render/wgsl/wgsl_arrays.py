"""The arrays that a kernel's memory is, in WGSL. In: a `Kernel`. Out: declarations, and for each memory its `Cells`.

WGSL has no pointers: every argument is an array of its own, bound by number, and `args` says where in it the argument
begins (x, in bytes), or holds a number's eight bytes.

    4 bytes         an array of that type
    8 bytes         an array of vec2<u32>
    1 and 2 bytes   parts of u32 words. Neighbours in a word are other threads' elements, so a store clears and sets
                    its bits by atomic operations: any number of threads may write, and loops stay as they are.

Where a kernel has more arguments than the device binds, the last ones are `packed` into one array of words. Memory of a
group is declared where it is first used.
"""

from __future__ import annotations

from typing import NamedTuple

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Kernel, Store, shared_locals, walk
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.render.c.c_ops import Definitions
from glassgrad.compiler.render.gpu.gpu_source import scratch_is_global
from glassgrad.compiler.render.launch import LocalLayout, packed_from

__all__ = ["PAIR", "Cells", "KernelArrays"]

PAIR = "vec2<u32>"          # a 64-bit integer, the low word first


class Cells(NamedTuple):
    """Where a memory lies: an array, its element type, whether it is of atomic words, and where it begins."""
    name: str
    kind: str
    atomic: bool
    begin: str = ""          # elements before the first


class KernelArrays:
    """The arrays of a kernel, which all its phases share."""

    def __init__(self, kernel: Kernel, places: LocalLayout, target: Target, definitions: Definitions):
        self.definitions, self.offsets = definitions, places.offsets
        self.scratch_global = scratch_is_global(kernel, places.scratch_bytes, target.group_bytes)
        stores = {s.memory for phase in kernel.phases for s in walk(phase.body) if isinstance(s, Store)}
        self.in_parts = {m for m in stores if m.dtype.itemsize < 4}          # words written by several threads
        self.cells: dict[UOp, Cells] = {}
        params = sorted(kernel.params, key=lambda p: p.arg.slot)
        memories = [(p.arg.slot, p) for p in params if not p.arg.scalar]
        memories += [(len(params) + i, m) for i, m in enumerate(shared_locals(kernel))]
        scratch = [m for m in places.offsets if self.scratch_global]
        last = packed_from(len(memories) + bool(scratch), target.buffers)
        self.arguments = len(params) + len(places.slots) + bool(scratch)
        definitions.types["args"] = f"@group(0) @binding(0) var<uniform> args: array<vec4<u32>, {self.arguments or 1}>;"
        packed = [m for _, m in memories[last:]] + (scratch if last < len(memories) + bool(scratch) else [])
        atomic = not self.in_parts.isdisjoint(packed)
        if packed:
            self._bind(last, "packed", "u32", atomic)
        for at, (position, memory) in enumerate(memories):
            begin = f"i32(args[{position}].x) / {memory.dtype.itemsize}"
            if memory in packed:
                self.cells[memory] = Cells("packed", "u32", atomic, begin)
            else:
                name = f"data{position}" if memory.op is o.PARAM else f"shared{position}"
                self.cells[memory] = self._array(memory, name, begin)
                self._bind(at, *self.cells[memory][:3])
        if scratch and scratch[0] not in packed:
            atomic = not self.in_parts.isdisjoint(scratch)
            self._bind(len(memories), "scratch", "u32", atomic)
        for memory in scratch:
            size = memory.dtype.itemsize
            begin = f"i32(args[{self.arguments - 1}].x) + i32(group.x) * {places.scratch_bytes} + " \
                    f"{places.offsets[memory]}"
            name = "packed" if memory in packed else "scratch"
            self.cells[memory] = Cells(name, "u32", atomic, f"({begin}) / {size}")

    def _bind(self, at: int, name: str, kind: str, atomic: bool) -> None:
        inner = "atomic<u32>" if atomic else kind
        self.definitions.types[name] = f"@group(0) @binding({at + 1}) var<storage, read_write> {name}: array<{inner}>;"

    def _array(self, memory: UOp, name: str, begin: str = "") -> Cells:
        kind = {8: PAIR, 4: {"i": "i32", "u": "u32", "f": "f32"}.get(memory.dtype.kind, "u32")}
        return Cells(name, kind.get(memory.dtype.itemsize, "u32"), memory in self.in_parts, begin)

    def of(self, memory: UOp) -> Cells:
        """The array of a memory; those of a group are declared here."""
        if memory not in self.cells:
            if memory not in self.offsets:
                raise Bug(f"the LOCAL {memory.arg.name} is read but never written")
            name = f"{memory.arg.name}_group"
            if name in self.definitions.types:           # another memory of this name, such as that of a loop's rest
                name = f"{name}_{len(self.cells)}"
            cells = self.cells[memory] = self._array(memory, name)
            count = -(-memory.arg.size * memory.dtype.itemsize // max(4, memory.dtype.itemsize))
            inner = "atomic<u32>" if cells.atomic else cells.kind
            self.definitions.types[name] = f"var<workgroup> {name}: array<{inner}, {count}>;"
        return self.cells[memory]
