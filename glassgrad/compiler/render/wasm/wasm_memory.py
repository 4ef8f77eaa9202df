"""Memory access in WebAssembly. In: LOADs and Stores. Out: instructions that fit how an index depends on the lanes.

An address is a 32-bit integer: sums and products of indices are computed modulo 2^32, so the address is exact whatever
the intermediate results are. An index is split into constant + scalar terms + terms of lanes. The scalar terms are one
pointer per loop level; the constant is part of the instruction, unless the pointer alone could be below the memory. If
lanes read contiguous elements, that is one access per 16 bytes, otherwise one per lane. A gate that differs between
lanes is a branch: all lanes at once if it holds for all of them, otherwise lane by lane.
"""

from __future__ import annotations

from collections.abc import Sequence

from glassgrad.compiler.graph import DType, UOp, dtypes, index_algebra as ix
from glassgrad.compiler.lower.loops import Prefetch, Store
from glassgrad.compiler.lower.missing_instructions import in_memory
from glassgrad.compiler.render.launch_info import slot_of
from glassgrad.compiler.render.llvm_and_wasm import LowLevelWalker
from glassgrad.compiler.render.wasm.instruction_encoding import At, Code, CodeLocal, get
from glassgrad.compiler.render.wasm.module_encoding import CodeBlock, Line
from glassgrad.compiler.render.wasm.wasm_casts import WasmCasts
from glassgrad.compiler.render.wasm.wasm_ops import PIECE, WasmValue, integers, literal, number, pieces_of, scalar_type

# parameters of a phase's function
ARGS, TASK, SCRATCH = (CodeLocal(name, "i32") for name in ("args", "task", "scratch"))
LARGEST_OFFSET = 1 << 30         # offset that an instruction adds to an address


class WasmMemory(WasmCasts, LowLevelWalker):
    """Loads and stores of a `WasmFunction`."""

    def local(self, type_: str, name: str = "v") -> CodeLocal: raise NotImplementedError

    def line(self, line: Line) -> None:
        self.scope.lines.append(line)

    # -- addresses -----------------------------------------------------------------------------------------------
    def first_address(self, memory: UOp) -> WasmValue:
        if memory in self.offsets:
            code = Code("i32.add", (get(SCRATCH), number(self.offsets[memory])))
        else:
            code = Code("i32.load", (get(ARGS),), At(4 * slot_of(memory, self.slots)))
        return WasmValue((code,), dtypes.int32)

    def advanced(self, pointer: WasmValue, memory: UOp, terms: ix.Terms) -> WasmValue:
        offset = self.total(0, {a: k * memory.dtype.itemsize for a, k in terms.items()}, dtypes.int32)
        return self.native("add", dtypes.int32, pointer, offset)

    def address(self, memory: UOp, constant: int, terms: ix.Terms) -> tuple[Code, int]:
        """The address of memory[constant + terms], as a pointer and a number of bytes that instructions add."""
        pointer, offset = self.pointer(memory, terms).code, constant * memory.dtype.itemsize
        if 0 <= offset < LARGEST_OFFSET and _least(terms) >= 0:
            return pointer, offset
        return self.bind(Code("i32.add", (pointer, number(offset)))), 0

    def lane_addresses(self, memory: UOp, index: UOp, lanes: int) -> list[tuple[Code, int]]:
        """The address of each lane."""
        constant, same, wide, step = self.index_parts(index)
        if step is not None:
            return [self.address(memory, constant + step * lane, same) for lane in range(lanes)]
        assert wide is not None
        pointer, offset = self.address(memory, constant, same)
        if offset:
            pointer = self.bind(Code("i32.add", (pointer, number(offset))))
        shift = number(memory.dtype.itemsize.bit_length() - 1)
        indices = self.bound(self.operand(wide, lanes, dtypes.int32))
        apart = [Code("i32.shl", (self.extract(indices, lane).code, shift)) for lane in range(lanes)]
        return [(self.bind(Code("i32.add", (pointer, distance))), 0) for distance in apart]

    # -- loads ---------------------------------------------------------------------------------------------------
    def load(self, memory: UOp, index: UOp, gate: UOp | None, lanes: int) -> WasmValue:
        """An element or a vector of elements; 0 where the gate is false."""
        unit = in_memory(memory.dtype)
        if not lanes:
            value = self._load_one(memory, unit, index, gate)
        elif gate is None:
            value = self._load_lanes(memory, unit, index, lanes)
        else:
            value = self._load_some(memory, unit, index, self.operand(gate, lanes), lanes)
        return self.cast(value, dtypes.bool) if memory.dtype is dtypes.bool else value  # booleans are bytes in memory

    def _load_one(self, memory: UOp, unit: DType, index: UOp, gate: UOp | None) -> WasmValue:
        constant, same, _, _ = self.index_parts(index)
        if gate is None:
            return self.read(unit, *self.address(memory, constant, same))
        test = self.operand(gate)
        pointer, offset = self.address(memory, constant, same)
        where = Code("i32.add", (pointer, number(offset))) if offset else pointer
        safe = Code("select", (where, self.base(memory).code, test.code))
        return self.select(test, self.read(unit, safe, 0), literal(0, unit))

    def read(self, unit: DType, pointer: Code, offset: int) -> WasmValue:
        """One element."""
        return WasmValue((Code(_access("load", unit), (pointer,), At(offset)),), unit)

    def _load_lanes(self, memory: UOp, unit: DType, index: UOp, lanes: int) -> WasmValue:
        constant, same, _, step = self.index_parts(index)
        if step == 1 or step == -1:
            pointer, offset = self.address(memory, constant - (lanes - 1 if step == -1 else 0), same)
            pieces = tuple([_whole_load(pointer, offset + at, nbytes) for at, nbytes in _parts(lanes, unit.itemsize)])
            value = WasmValue(pieces, unit, lanes)
            return value if step == 1 else self.reversed(value)
        places = self.lane_addresses(memory, index, lanes)
        bits, count = 8 * unit.itemsize, PIECE // unit.itemsize
        pieces = ()
        for first in range(0, lanes, count):
            pointer, offset = places[first]
            piece = Code(f"v128.load{bits}_zero", (pointer,), At(offset)) if bits >= 32 else \
                Code(f"v128.load{bits}_splat", (pointer,), At(offset))
            for lane, (pointer, offset) in enumerate(places[first + 1:first + count], 1):
                piece = self.bind(Code(f"v128.load{bits}_lane", (pointer, piece), At(offset, lane)))
            pieces = (*pieces, piece)
        return WasmValue(pieces, unit, lanes)

    def _load_some(self, memory: UOp, unit: DType, index: UOp, gate: WasmValue, lanes: int) -> WasmValue:
        constant, same, _, step = self.index_parts(index)
        bits, count = 8 * unit.itemsize, PIECE // unit.itemsize
        tests = self.bound(self.mask(gate, unit.itemsize))
        places = self.lane_addresses(memory, index, lanes)
        pieces = []
        for first in range(0, lanes, count):
            found = self.local("v128")
            each: list[Line] = [_set(found, Code("v128.const", (), bytes(PIECE)))]
            for lane, (pointer, offset) in enumerate(places[first:first + count]):
                one = Code(f"v128.load{bits}_lane", (pointer, get(found)), At(offset, lane))
                each.append(CodeBlock("if", self.extract(tests, first + lane).code, [_set(found, one)]))
            if step == 1:
                pointer, offset = places[first]
                nbytes = min(count, lanes - first) * unit.itemsize
                self.line(CodeBlock("if", Code(f"{integers(unit.itemsize)}.all_true", (tests.pieces[first // count],)),
                                [_set(found, _whole_load(pointer, offset, nbytes))], each))
            else:
                self.scope.lines.extend(each)
            pieces.append(get(found))
        return WasmValue(tuple(pieces), unit, lanes)

    def reversed(self, x: WasmValue) -> WasmValue:
        """The lanes from last to first."""
        x, size = self.bound(x), x.size
        count = PIECE // size
        pieces = []
        for first in range(0, x.lanes, count):
            lanes = [max(x.lanes - 1 - first - i, 0) for i in range(count)]
            used = sorted({lane // count for lane in lanes})
            a, b = used[0], used[-1]
            order = [(lane - a * count if lane // count == a else lane - b * count + count) * size + byte
                     for lane in lanes for byte in range(size)]
            pieces.append(Code("i8x16.shuffle", (x.pieces[a], x.pieces[b]), bytes(order)))
        return x._replace(pieces=tuple(pieces))

    # -- stores --------------------------------------------------------------------------------------------------
    def store(self, statement: Store) -> None:
        memory, gate = statement.memory, statement.gate
        constant, same, _, step = self.index_parts(statement.index)
        lanes, value = self.widths[statement.index], self.stored_value(statement)
        unit = in_memory(memory.dtype)
        if memory.dtype is dtypes.bool:
            value = self.cast(value, dtypes.uint8)
        if not lanes:
            pointer, offset = self.address(memory, constant, same)
            self.line(Code(_access("store", unit), (pointer, value.code), At(offset)))
        elif gate is not None:
            self._store_some(memory, statement.index, self.bound(value), self.operand(gate, lanes))
        elif step == 1 or step == -1:
            pointer, offset = self.address(memory, constant - (lanes - 1 if step == -1 else 0), same)
            value = self.bound(value if step == 1 else self.reversed(value))
            for piece, (at, nbytes) in zip(value.pieces, _parts(lanes, unit.itemsize)):
                self.scope.lines.extend(_whole_store(pointer, offset + at, piece, nbytes))
        else:
            value = self.bound(value)
            self.scope.lines.extend(_lane_stores(value, self.lane_addresses(memory, statement.index, lanes)))

    def _store_some(self, memory: UOp, index: UOp, value: WasmValue, gate: WasmValue) -> None:
        tests = self.bound(self.mask(gate, value.size))
        places = self.lane_addresses(memory, index, value.lanes)
        each = [CodeBlock("if", self.extract(tests, lane).code, [line])
                for lane, line in enumerate(_lane_stores(value, places))]
        count, whole = PIECE // value.size, self.index_parts(index)[3] == 1
        for first in range(0, value.lanes, count):
            some: list[Line] = [*each[first:first + count]]
            if whole and value.lanes - first >= count:
                piece = first // count
                self.line(CodeBlock("if", Code(f"{integers(value.size)}.all_true", (tests.pieces[piece],)),
                                _whole_store(*places[first], value.pieces[piece], PIECE), some))
            else:
                self.scope.lines.extend(some)

    def prefetch(self, statement: Prefetch) -> None:
        """Writes nothing: WebAssembly has no such hint."""


def _access(word: str, unit: DType) -> str:
    """The instruction that loads or stores one element: i64.load, i32.load8_u, i32.store16."""
    part = f"{unit.bits}" if unit.itemsize < 4 else ""
    sign = "" if not part or word == "store" else "_s" if unit.kind == "i" else "_u"
    return f"{scalar_type(unit)}.{word}{part}{sign}"


def _least(terms: ix.Terms) -> int:
    """A lower bound of a sum of terms."""
    return sum([min(k * bound for bound in ix.span(atom)) for atom, k in terms.items()])


def _set(local: CodeLocal, value: Code) -> Code:
    return Code("local.set", (value,), local)


def _parts(lanes: int, size: int) -> list[tuple[int, int]]:
    """The offset of each piece of a vector in memory, and how many bytes of the piece are used."""
    return [(at * PIECE, min(PIECE, lanes * size - at * PIECE)) for at in range(pieces_of(lanes, size))]


def _whole_load(pointer: Code, offset: int, nbytes: int) -> Code:
    """Load a piece of which `nbytes` bytes are needed. It may read past them: memory is padded for that."""
    name = {4: "v128.load32_zero", 8: "v128.load64_zero"}.get(nbytes, "v128.load")
    return Code(name, (pointer,), At(offset))


def _whole_store(pointer: Code, offset: int, piece: Code, nbytes: int) -> list[Line]:
    """Store the first `nbytes` bytes of a piece, in the largest parts possible."""
    if nbytes == PIECE:
        return [Code("v128.store", (pointer, piece), At(offset))]
    lines: list[Line] = []
    done = 0
    for part in (8, 4, 2, 1):
        if nbytes - done >= part:
            lines.append(Code(f"v128.store{8 * part}_lane", (pointer, piece), At(offset + done, done // part)))
            done += part
    return lines


def _lane_stores(value: WasmValue, places: Sequence[tuple[Code, int]]) -> list[Line]:
    """A store for each lane."""
    count, name = PIECE // value.size, f"v128.store{8 * value.size}_lane"
    return [Code(name, (pointer, value.pieces[lane // count]), At(offset, lane % count))
            for lane, (pointer, offset) in enumerate(places)]
