"""Memory access in LLVM IR. In: LOADs and Stores. Out: the best instruction for how an index depends on the lanes.

An index is split into constant + scalar terms + terms of lanes. If lanes read contiguous elements, that is one vector
access; backwards, one access and a shuffle; with small strides, a few accesses and a shuffle; otherwise a gather. Gates
become masks; for a single element, a safe index and a select. Interleaved strided stores are transposed in registers
and stored contiguously.
"""

from __future__ import annotations

import functools
from collections import Counter

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import UOp, dtypes, index_algebra as ix, ops as o, toposort
from glassgrad.compiler.lower.loops import Accumulate, If, Prefetch, Statement, Store, ranges_of, walk
from glassgrad.compiler.render.launch_info import slot_of
from glassgrad.compiler.render.llvm.llvm_ops import BITS, SHORT, TYPES, LlvmArithmetic, LlvmValue, list_of, literal
from glassgrad.compiler.render.llvm_and_wasm import LowLevelWalker

GATHER = None     # the step of an index without a constant stride
MOST_VECTORS = 4  # vectors loaded for one vector of shuffled elements
MASKED_LANES = 16     # lanes from which a masked store is as fast as others, so that few columns are worth transposing
NONTEMPORAL = "!0 = !{i32 1}"     # the metadata that `!nontemporal !0` refers to


class LlvmMemory(LlvmArithmetic, LowLevelWalker):
    """Loads and stores of an `LlvmFunction`."""
    streamed: tuple[int, ...]   # slots written by non-temporal (streaming) stores
    has_streamed: bool          # whether there has been such a store
    lane_of: dict[UOp, tuple[UOp, int, int]]  # load -> (the first load of its vector, the vector's lanes, its own lane)

    # -- addresses -----------------------------------------------------------------------------------------------
    def first_address(self, memory: UOp) -> LlvmValue:
        if memory in self.offsets:
            return self.put(f"getelementptr i8, ptr %scratch, i64 {self.offsets[memory]}", "ptr", 0)
        place = self.put(f"getelementptr ptr, ptr %args, i64 {slot_of(memory, self.slots)}", "ptr", 0)
        return self.put(f"load ptr, ptr {place.text}, align 8", "ptr", 0)

    def advanced(self, pointer: LlvmValue, memory: UOp, terms: ix.Terms) -> LlvmValue:
        offset = self.total(0, terms, dtypes.index)
        return self.put(f"getelementptr {_unit(memory)}, {pointer.typed}, {offset.typed}", "ptr", 0)

    def address(self, memory: UOp, constant: int, terms: ix.Terms) -> LlvmValue:
        """The pointer to memory[constant + terms]. The constant is added last, where it costs nothing."""
        pointer = self.pointer(memory, terms)
        if not constant:
            return pointer
        return self.put(f"getelementptr {_unit(memory)}, ptr {pointer.text}, i64 {constant}", "ptr", 0)

    def pointers(self, memory: UOp, constant: int, same: ix.Terms, wide: UOp | None, step: int | None,
                 lanes: int) -> LlvmValue:
        """One pointer per lane."""
        base = self.address(memory, constant, same)
        if step is not GATHER:
            offsets = list_of([step * i for i in range(lanes)], "i64")
        else:
            assert wide is not None
            offsets = self.operand(wide, lanes)    # sign-extended from 32 bits, a form that gathers have
        return self.put(f"getelementptr {_unit(memory)}, {base.typed}, {offsets.typed}", "ptr", lanes)

    # -- loads ---------------------------------------------------------------------------------------------------
    def load(self, memory: UOp, index: UOp, gate: UOp | None, lanes: int) -> LlvmValue:
        """An element or a vector of elements; 0 where the gate is false."""
        value = self._load(memory, index, gate, lanes)
        return self.compare("ne", value, _zero(value)) if memory.dtype is dtypes.bool else value     # bytes there

    def _load(self, memory: UOp, index: UOp, gate: UOp | None, lanes: int) -> LlvmValue:
        constant, same, wide, step = self.index_parts(index)
        if not lanes:
            if gate is None:
                return self.read(self.address(memory, constant, same), memory, 0)
            test = self.operand(gate)
            safe = self.select(test, self.total(constant, same, dtypes.index), literal(0, dtypes.index))
            place = self.put(f"getelementptr {_unit(memory)}, {self.base(memory).typed}, {safe.typed}", "ptr", 0)
            value = self.read(place, memory, 0)
            return self.select(test, value, _zero(value))
        mask = None if gate is None else self.operand(gate, lanes)
        if step == 1:
            place = self.address(memory, constant, same)
            if gate is None or mask is None:
                return self.read(place, memory, lanes)
            return self._masked_load("llvm.masked.load", self._mapped(place, memory, gate), mask, memory, lanes)
        offsets = self._known_offsets(wide, step, lanes)
        if offsets and (mask is None or self.target.has_masks and len(set(offsets)) == lanes):
            return self._shuffled(memory, constant, same, offsets, gate)
        if mask is None:
            places = self.pointers(memory, constant, same, wide, step, lanes)
            return self._gather(places, memory, lanes)
        safe = self.select(mask, self.operand(index, lanes), list_of([0] * lanes, "i64"))
        places = self.put(f"getelementptr {_unit(memory)}, {self.base(memory).typed}, {safe.typed}", "ptr", lanes)
        value = self._gather(places, memory, lanes)
        return self.select(mask, value, _zero(value))

    def _mapped(self, place: LlvmValue, memory: UOp, gate: UOp) -> LlvmValue:
        """The address of a masked access; the memory's first element if the gate is false for all lanes. (A masked
        access to an unmapped page does nothing, but takes a processor hundreds of cycles.)"""
        same = [self.operand(each) for each in ix.all_of(gate) if not self.widths[each]]
        if not same:
            return place
        test = functools.reduce(lambda x, y: self.apply(o.AND, dtypes.bool, x, y), same)
        return self.put(f"select {test.typed}, {place.typed}, {self.base(memory).typed}", "ptr", 0)

    def lanes_of_vectors(self, body: list[Statement]) -> dict[UOp, tuple[UOp, int, int]]:
        """Find factors that are the same for all lanes and adjacent in memory: vectors of them are loaded, and each
        multiply-add takes one lane of such a vector (NEON).

            for l in lane 4:  s[l] += a[0] * b[l];  t[l] += a[1] * b[l]
        ->  v = a[0:2];  s += v[0] * b;  t += v[1] * b

        A vector that may cross cache lines is loaded from packed panels, or if each of its lanes is multiplied by more
        than two vectors: for windows of images, such vectors take 3 to 5% more time on a Neoverse N1.
        """
        rows: dict[tuple[UOp, tuple[tuple[UOp, int], ...]], dict[int, UOp]] = {}
        uses: Counter[UOp] = Counter()
        found: dict[UOp, tuple[UOp, int, int]] = {}
        sums = [s for s in body if isinstance(s, Accumulate) and s.value.op is o.MUL and self.widths[s.register]]
        for node in [factor for s in sums for factor in s.value.src]:
            if node.op is o.LOAD and len(node.src) == 2 and not self.widths[node]:
                constant, parts = ix.linear(node.src[1])
                rows.setdefault((node.src[0], tuple(parts.items())), {})[constant] = node
                uses[node] += 1
        for (memory, terms), row in rows.items():
            whole = self.target.lanes(memory.dtype.itemsize)
            even = all(k % whole == 0 for _, k in terms)
            for first in sorted(row):
                node = row[first]
                worth = memory.op is o.LOCAL or uses[node] > 2 or even and first % whole == 0
                if worth and node not in found:
                    lanes = next((n for n in (whole, whole // 2) if all(first + i in row for i in range(n))), 0)
                    found.update((row[first + i], (node, lanes, i)) for i in range(lanes) if lanes > 1)
        return found

    def load_lane(self, node: UOp, lanes: int) -> None:
        """Broadcast one lane of a vector found by `lanes_of_vectors`; the vector is loaded at its first use. The lane
        alone also serves scalars that read the same element."""
        first, width, lane = self.lane_of[node]
        scope, reads = self.scope_of(node), self.reads[node]
        vector = self.in_scope(scope, ("vector", first, width), reads, self._load_row, first, width)
        self.in_scope(scope, (node, lanes, node.dtype), reads, self.shuffle, vector, [lane] * lanes)
        self.in_scope(scope, node, reads, self._element, vector, lane)

    def _element(self, vector: LlvmValue, lane: int) -> LlvmValue:
        return self.put(f"extractelement {vector.typed}, i64 {lane}", vector.type, 0)

    def _load_row(self, first: UOp, lanes: int) -> LlvmValue:
        constant, terms = ix.linear(first.src[1])
        return self.read(self.address(first.src[0], constant, terms), first.src[0], lanes)

    def _gather(self, places: LlvmValue, memory: UOp, lanes: int) -> LlvmValue:
        """One load per lane; the processor's `prefers_gathers` decides which instructions do that. Under a mask, the
        caller gives safe addresses: without the instruction, a mask would become a branch for each lane."""
        return self._masked_load("llvm.masked.gather", places, list_of([True] * lanes, "i1"), memory, lanes)

    def _known_offsets(self, wide: UOp | None, step: int | None, lanes: int) -> list[int]:
        """The offset that each lane adds to the index, if these are known at compile time and a few whole vectors
        contain all the elements; otherwise empty."""
        numbers = self._per_lane(wide, lanes) if wide is not None and step is GATHER else None
        offsets = [step * i for i in range(lanes)] if step is not GATHER else numbers or []
        return offsets if offsets and max(offsets) - min(offsets) < MOST_VECTORS * lanes else []

    def read(self, place: LlvmValue, memory: UOp, lanes: int) -> LlvmValue:
        unit = _unit(memory)
        whole = self.whole(lanes)
        if whole != lanes:
            value = self._masked_load("llvm.masked.load", place, _first(lanes, whole), memory, whole)
            return self.shuffle(value, list(range(lanes)))
        full = f"<{lanes} x {unit}>" if lanes else unit
        return self.put(f"load {full}, {place.typed}, align {memory.dtype.itemsize}", unit, lanes)

    def whole(self, lanes: int) -> int:
        """The number of lanes of the vector that accesses `lanes` elements: if masks cost nothing, a partly used vector
        is better than several smaller ones."""
        odd = lanes > 2 and lanes & (lanes - 1) and self.target.has_masks
        return 1 << lanes.bit_length() if odd else lanes

    def _masked_load(self, name: str, place: LlvmValue, mask: LlvmValue, memory: UOp, lanes: int) -> LlvmValue:
        unit, align = _unit(memory), memory.dtype.itemsize
        full = f"<{lanes} x {unit}>"
        mangled = f"@{name}.v{lanes}{SHORT.get(unit, unit)}.{'v' + str(lanes) if place.lanes else ''}p0"
        self.declare(full, mangled, f"{place.full}, i32, {mask.full}, {full}")
        return self.put(f"call {full} {mangled}({place.typed}, i32 {align}, {mask.typed}, {full} zeroinitializer)",
                        unit, lanes)

    def _shuffled(self, memory: UOp, constant: int, same: ix.Terms, offsets: list[int], gate: UOp | None) -> LlvmValue:
        """Load elements at known offsets: whole vectors, placed so that the last one ends with the last element, and
        shuffles. Under a mask, elements in between are not read either; then no two lanes have the same offset."""
        lanes, first, span = len(offsets), min(offsets), max(offsets) - min(offsets) + 1
        width = min(lanes, span)
        starts = [first + min(at, span - width) for at in range(0, span, width)]
        parts: list[LlvmValue] = []
        for start in starts:
            place = self.address(memory, constant + start, same)
            if gate is None:
                parts.append(self.read(place, memory, width))
                continue
            mask, place = self.operand(gate, lanes), self._mapped(place, memory, gate)
            none = list_of([False] * lanes, "i1")
            reader = {offset: lane for lane, offset in enumerate(offsets)}
            spread = self.shuffle(mask, [reader.get(at, lanes) for at in range(start, start + width)], none)
            parts.append(self._masked_load("llvm.masked.load", place, spread, memory, width))
        owners = [min(i for i, start in enumerate(starts) if start <= at < start + width) for at in offsets]
        if len(parts) == 1:
            return self.shuffle(parts[0], [at - first for at in offsets])
        result = parts[0]
        for i in range(1, len(parts)):      # part i adds its lanes to those that are already in place
            order = [lanes + at - starts[i] if owner == i else at - first if owner == 0 and i == 1 else lane
                     for lane, (at, owner) in enumerate(zip(offsets, owners))]
            result = self.shuffle(result, order, parts[i])
        return result

    # -- stores --------------------------------------------------------------------------------------------------
    def store(self, statement: Store) -> None:
        memory = statement.memory
        constant, same, wide, step = self.index_parts(statement.index)
        lanes, value = self.widths[statement.index], self.stored_value(statement)
        if memory.dtype is dtypes.bool:
            value = self.convert("zext", value, "i8")
        align = memory.dtype.itemsize
        alone = None if statement.gate is None or step is GATHER else self._only_lane(statement.gate, lanes)
        if alone is not None:
            place = self.address(memory, constant + alone * (step or 0), same)
            element = self._element(value, alone)
            self.line(f"store {element.typed}, {place.typed}, align {align}")
            return
        mask = None if statement.gate is None else self.operand(statement.gate, lanes)
        if not lanes or step == 1 or step == -1:
            place = self.address(memory, constant - (lanes - 1 if step == -1 else 0), same)
            place = place if statement.gate is None else self._mapped(place, memory, statement.gate)
            if step == -1:
                value = self.shuffle(value, list(range(lanes))[::-1])
                mask = None if mask is None else self.shuffle(mask, list(range(lanes))[::-1])
            if mask is None and self.whole(lanes) != lanes:
                mask = _first(lanes, self.whole(lanes))
                value = self.shuffle(value, [*range(lanes), *[lanes] * (mask.lanes - lanes)])
                lanes = mask.lanes
            if mask is None:
                self.line(f"store {value.typed}, {place.typed}, {self._attributes(memory, constant, same, lanes)}")
                return
        else:
            place = self.pointers(memory, constant, same, wide, step, lanes)
            mask = mask or list_of([True] * lanes, "i1")
        self._masked_store(place, value, mask, align)

    def _masked_store(self, place: LlvmValue, value: LlvmValue, mask: LlvmValue, align: int) -> None:
        """Store the lanes in a mask: contiguously from one pointer on, or each to its own pointer."""
        how, end = ("scatter", f"v{place.lanes}p0") if place.lanes else ("store", "p0")
        name = f"@llvm.masked.{how}.v{value.lanes}{SHORT.get(value.type, value.type)}.{end}"
        self.declare("void", name, f"{value.full}, {place.full}, i32, {mask.full}")
        self.line(f"call void {name}({value.typed}, {place.typed}, i32 {align}, {mask.typed})")

    def _only_lane(self, gate: UOp, lanes: int) -> int | None:
        """The only lane that a gate lets through, if that is known at compile time; otherwise None. It is needed
        because LLVM 22 stores such a lane with its width before a conversion to a narrower integer, over its neighbour
        (llvm-project issue 179489)."""
        passes = self._per_lane(gate, lanes)
        return passes.index(1) if passes is not None and sum(passes) == 1 else None

    def _per_lane(self, node: UOp, lanes: int) -> list[int] | None:
        """The value in each lane, if it depends on the lane alone; otherwise None."""
        counters = ranges_of(node)
        if len(counters) != 1 or not counters <= self.lanes.keys() or any(n.op is o.LOAD for n in toposort([node])):
            return None
        [lane] = counters
        numbers = [ix.substitute_index(node, {lane: ix.index(i)}, {}) for i in range(lanes)]
        return [int(n.arg) for n in numbers] if all(n.op is o.CONST for n in numbers) else None

    def _attributes(self, memory: UOp, constant: int, same: ix.Terms, lanes: int) -> str:
        """The attributes of a vector store: its alignment, and `nontemporal` for slots with streaming stores, if the
        store is certainly aligned to the vector's size (all memory that kernels write is aligned to 64 bytes) and as
        wide as any other: a streaming store next to ordinary ones in a cache line writes that line to memory first."""
        nbytes = lanes * memory.dtype.itemsize
        if memory.op is not o.PARAM or memory.arg.slot not in self.streamed or nbytes not in (16, 32, 64) or \
                any(k % lanes for k in (constant, *same.values())) or lanes < self._widest_store(memory):
            return f"align {memory.dtype.itemsize}"
        self.has_streamed = True
        return f"align {nbytes}, !nontemporal !0"

    def _widest_store(self, memory: UOp) -> int:
        """The number of lanes of the widest store to a memory."""
        return max(self.widths[s.index] for s in walk(self.body) if isinstance(s, Store) and s.memory is memory)

    def prefetch(self, statement: Prefetch) -> None:
        constant, same, wide, _ = self.index_parts(statement.index)
        if wide is not None:
            raise Bug("a prefetch is for one place, not for lanes")
        self.declare("void", "@llvm.prefetch.p0", "ptr, i32, i32, i32")
        place = self.address(statement.memory, constant, same)
        nearness = 4 - self.target.prefetch_level             # LLVM's "locality": 3 is the first-level cache
        self.line(f"call void @llvm.prefetch.p0({place.typed}, i32 0, i32 {nearness}, i32 1)")     # to read; data

    def together(self, body: list[Statement], at: int) -> list[Store]:
        """Find consecutive stores with strided lanes, the columns of a block, to be stored by rows. The stride may be
        known only at run time, and so may the number of columns (gates).

            for l in lane 4:  m[l*3] = a[l];  m[l*3 + 1] = b[l];  m[l*3 + 2] = c[l]
        ->  m[0:3] = a[0], b[0], c[0];  m[3:6] = a[1], b[1], c[1];  ...
        """
        group: list[Store] = []
        memory, lanes, edge = None, 0, None
        first: tuple[int, ix.Terms, UOp | None] = 0, {}, None
        for each in body[at:]:
            s = _with_gate(each)
            if s is None or s.combine is not None or len(group) == lanes > 0:
                break
            constant, same, wide, step = self.index_parts(s.index)
            width, end = self.widths[s.index], self._end(s.gate)
            if not group:
                memory, lanes, first, edge = s.memory, width, (constant, same, wide), end
                if not _can_transpose(lanes) or s.gate is not None and end is None or \
                        (step < 2 if step is not GATHER else self._run_time_stride(s) is None):
                    return []
            if s.memory is not memory or width != lanes or (constant - len(group), same, wide) != first or \
                    end != (edge and (edge[0], edge[1] - len(group))) or (s.gate is None) != (edge is None) or \
                    len(group) == step or self.widths[s.value] != lanes or memory in self.reads[s.value]:
                break
            group.append(s)
        few = lanes // 4 if lanes >= MASKED_LANES else lanes // 2 + 1
        least = few if edge is None else lanes
        return group if len(group) >= least else []

    def _run_time_stride(self, store: Store) -> UOp | None:
        """The run-time value that the index adds from lane to lane, if there is one. Only for a result: its elements
        are stored once, so its rows do not overlap, whatever the stride is."""
        wide, lanes = self.index_parts(store.index)[2], self.widths[store.index]
        if wide is None or store.memory.op is not o.PARAM:
            return None
        [lane] = ranges_of(wide) & self.lanes.keys()
        first, stride, *more = [ix.substitute_index(wide, {lane: ix.index(i)}, {}) for i in range(lanes)]
        straight = all(at is ix.multiply(stride, i) for i, at in enumerate(more, 2))
        return stride if first is ix.index(0) and stride.op is not o.CONST and straight else None

    def _end(self, gate: UOp | None) -> tuple[ix.Terms, int] | None:
        """A gate that is the same for all lanes, as terms whose sum is below a limit where it holds."""
        return None if gate is None or self.widths[gate] else ix.below_limit(gate)

    def store_together(self, stores: list[Store]) -> None:
        memory, lanes = stores[0].memory, self.widths[stores[0].index]
        constant, same, _, step = self.index_parts(stores[0].index)
        values, end = [self.operand(s.value, lanes) for s in stores], self._end(stores[0].gate)
        if memory.dtype is dtypes.bool:
            values = [self.convert("zext", v, "i8") for v in values]
        stride = None if step is not GATHER else self._run_time_stride(stores[0])
        mask = None if len(stores) == lanes else _first(len(stores), lanes)
        if end is not None:
            inside = self.total(end[1], {atom: -k for atom, k in end[0].items()}, dtypes.index)  # the number of columns
            mask = self.compare("slt", list_of(range(lanes), "i64"), self.wide(inside, lanes))
        for lane, row in enumerate(self.transposed(values)):
            if stride is None or lane == 0:
                place = self.address(memory, constant + lane * (step or 0), same)
            else:
                self.record_reads((stride,))
                step_to = self.operand(stride)
                place = self.put(f"getelementptr {_unit(memory)}, {place.typed}, {step_to.typed}", "ptr", 0)
            if mask is None:
                attributes = f"align {memory.dtype.itemsize}" if stride is not None else \
                    self._attributes(memory, constant + lane * (step or 0), same, lanes)
                self.line(f"store {row.typed}, {place.typed}, {attributes}")
            else:
                self._masked_store(place, row, mask, memory.dtype.itemsize)

    def transposed(self, columns: list[LlvmValue]) -> list[LlvmValue]:
        """Transpose a block of vectors: row i has element i of every column. Each step turns two vectors into two
        others with the elements of both: first inside pieces of 128 bits, alternating, which is one instruction; then
        whole pieces, the even and the odd ones."""
        lanes = columns[0].lanes
        block = columns + [LlvmValue("poison", columns[0].type, lanes)] * (lanes - len(columns))
        piece = min(lanes, 128 // BITS[columns[0].type])
        in_turns = [j // 2 + j % 2 * lanes + j // piece * piece // 2 for j in range(lanes)]
        even = [j // piece * 2 * piece + j % piece for j in range(lanes)]
        apart = piece
        while apart > 1:
            apart //= 2
            self._exchange(block, apart, in_turns, piece // 2)
        apart = piece
        while apart < lanes:
            self._exchange(block, apart, even, piece)
            apart *= 2
        return block

    def _exchange(self, block: list[LlvmValue], apart: int, order: list[int], more: int) -> None:
        """Replace every two vectors of a block that are `apart` positions apart by the elements of both in this
        `order`, and in the order shifted by `more`."""
        for i in range(len(block)):
            if not i & apart:
                a, b = block[i], block[i + apart]
                block[i], block[i + apart] = self.shuffle(a, order, b), self.shuffle(a, [j + more for j in order], b)


def _with_gate(statement: Statement) -> Store | None:
    """Return a store, or a store inside a branch with the condition as its gate, which is safe without the branch if
    each of its loads has a gate. None for other statements."""
    if isinstance(statement, Store):
        return statement
    if not isinstance(statement, If) or len(statement.body) != 1:
        return None
    [s] = statement.body
    if not isinstance(s, Store) or s.gate is not None or \
            any(n.op is o.LOAD and len(n.src) == 2 for n in toposort([s.index, s.value])):
        return None
    return Store(s.memory, s.index, s.value, s.combine, statement.condition)


def _can_transpose(lanes: int) -> bool:
    """Whether a block with this many lanes can be transposed by halves."""
    return lanes >= 4 and lanes & (lanes - 1) == 0


def _first(count: int, lanes: int) -> LlvmValue:
    """A mask of the first lanes."""
    return list_of([i < count for i in range(lanes)], "i1")


def _unit(memory: UOp) -> str:
    """The element type in memory."""
    return "i8" if memory.dtype is dtypes.bool else TYPES[memory.dtype]


def _zero(value: LlvmValue) -> LlvmValue:
    text = "zeroinitializer" if value.lanes else "0x0000000000000000" if value.type in ("float", "double") else "0"
    return LlvmValue(text, value.type, value.lanes, 0)
