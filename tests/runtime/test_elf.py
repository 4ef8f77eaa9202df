"""The object loader. References: the processor, which runs what was linked, and a decoder of AArch64 addresses."""

from __future__ import annotations

import ctypes
import gc
import random
import struct
import sys

import pytest

from glassgrad.base.errors import Bug
from glassgrad.runtime.cpu.elf_loader import AARCH64, ElfObject, Image
from glassgrad.runtime.cpu.llvm_compiler import compile_ir

binding = pytest.importorskip("llvmlite.binding", reason="llvmlite is not installed")

# Constants, a table of them, a table of addresses, a jump table, calls and address-taken functions:
# together every relocation kind that kernels produce.
PROGRAM = """
@table = private constant [4 x float] [float 1.5, float 2.5, float 3.5, float 4.5], align 64
@bytes = private constant [4 x i8] [i8 9, i8 8, i8 7, i8 6]
@functions = hidden constant [2 x ptr] [ptr @scaled, ptr @chosen]
@wide = private constant <4 x i32> <i32 11, i32 22, i32 33, i32 44>

define float @scaled(i64 %i) nounwind {
  %p = getelementptr float, ptr @table, i64 %i
  %v = load float, ptr %p
  %w = fmul float %v, 0x400921FB60000000
  ret float %w
}
define i64 @chosen(i64 %i) nounwind {
  switch i64 %i, label %other [ i64 0, label %a i64 1, label %b i64 2, label %c i64 3, label %d i64 4, label %e ]
a: ret i64 17
b: ret i64 23
c: ret i64 99
d: ret i64 -5
e: ret i64 1234
other:
  ret i64 0
}
define i64 @through_table(i64 %i) nounwind {
  %p = getelementptr ptr, ptr @functions, i64 1
  %f = load ptr, ptr %p
  %r = call i64 %f(i64 %i)
  ret i64 %r
}
define i64 @through_call(i64 %i) nounwind noinline {
  %r = call i64 @chosen(i64 %i)
  %q = add i64 %r, 1
  ret i64 %q
}
define i64 @byte(i64 %i) nounwind {
  %v = load i8, ptr getelementptr (i8, ptr @bytes, i64 2)
  %w = zext i8 %v to i64
  ret i64 %w
}
define i32 @lane() nounwind {
  %v = load <4 x i32>, ptr @wide
  %r = extractelement <4 x i32> %v, i32 2
  ret i32 %r
}
define ptr @where() nounwind { ret ptr @functions }
"""


def compiled(text: str, triple: str, reloc: str = "pic", level: int = 1) -> bytes:
    """An object for any processor that llvmlite knows."""
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = binding.Target.from_triple(triple).create_target_machine(opt=level, reloc=reloc, codemodel="small")
    module = binding.parse_assembly(text)
    module.triple = triple
    return machine.emit_object(module)


def test_linked_code_runs() -> None:
    for level in (0, 1, 2):
        image = Image(compile_ir(PROGRAM, level=level))
        long = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
        scaled = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_int64)(image.address("scaled"))
        assert [scaled(i) for i in range(4)] == pytest.approx([3.14159265 * v for v in (1.5, 2.5, 3.5, 4.5)])
        expected = [17, 23, 99, -5, 1234, 0]
        for name, plus in (("chosen", 0), ("through_table", 0), ("through_call", 1)):
            assert [long(image.address(name))(i) for i in range(6)] == [value + plus for value in expected]
        assert long(image.address("byte"))(0) == 7
        assert ctypes.CFUNCTYPE(ctypes.c_int32)(image.address("lane"))() == 33
        assert ctypes.CFUNCTYPE(ctypes.c_size_t)(image.address("where"))() == image.address("functions")


def decoded_addresses(image: bytearray, base: int) -> set[int]:
    """Every address that AArch64 code forms with ADRP and the ADD, LDR or BL that follow: the reference of the
    linker."""
    found, pages = set(), {}
    for offset in range(0, len(image) - 3, 4):
        (word,) = struct.unpack_from("<I", image, offset)
        if word & 0x9F000000 == 0x90000000:                                         # adrp
            value = ((word >> 5) & 0x7FFFF) << 2 | ((word >> 29) & 3)
            value -= (value >> 20) << 21
            pages[word & 31] = ((base + offset) >> 12 << 12) + (value << 12)
        elif word & 0xFFC00000 == 0x91000000 and (word >> 5) & 31 in pages:         # add x, x, #imm12
            found.add(pages[(word >> 5) & 31] + ((word >> 10) & 0xFFF))
        elif word & 0x3B000000 == 0x39000000 and (word >> 5) & 31 in pages:         # ldr/str with unsigned offset
            scale = (word >> 30) | ((word >> 21) & 4 if word & 0x04000000 else 0)
            found.add(pages[(word >> 5) & 31] + (((word >> 10) & 0xFFF) << scale))
        elif word & 0xFC000000 == 0x94000000:                                       # bl
            distance = word & 0x3FFFFFF
            found.add(base + offset + 4 * (distance - (distance >> 25 << 26)))
    return found


@pytest.mark.parametrize("base", [0x10000, 0x7FFF_1234_5000, 0xFFFF_FFFF_0000 - 0x3000])
@pytest.mark.parametrize("reloc", ["pic", "static"])
def test_aarch64_addresses_are_right(base: int, reloc: str) -> None:
    obj = ElfObject(compiled(PROGRAM, "aarch64-unknown-linux-gnu", reloc))
    assert obj.machine == AARCH64
    image = obj.link(base)
    places = {symbol.name: base + symbol.place for symbol in obj.symbols if symbol.place >= 0}
    formed = decoded_addresses(image, base)
    assert places["functions"] in formed and places["chosen"] in formed
    assert formed <= {base + offset for offset in range(obj.size)}, "an address outside the image"
    # the table of functions holds absolute addresses
    at = places["functions"] - base
    assert struct.unpack_from("<QQ", image, at) == (places["scaled"], places["chosen"])
    # the constant tables are reached: their values lie at addresses that the code forms
    values = {struct.pack("<f", 1.5), bytes([7, 6]), struct.pack("<i", 11)}
    for value in values:
        assert any(image[a - base:a - base + len(value)] == value for a in formed), value


def test_relocation_out_of_reach_is_refused() -> None:
    obj = ElfObject(compiled(PROGRAM, "x86_64-unknown-linux-gnu", "static"))
    assert any(kind in (10, 11) for _, kind, _, _ in obj.relocations), "the test wants 32-bit absolute addresses"
    obj.link(0x10000)
    with pytest.raises(Bug, match="does not reach"):
        obj.link(0x7FFF_0000_0000)


@pytest.mark.parametrize("triple", ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"])
def test_addresses_through_a_table_of_other_objects_symbols_are_refused(triple: str) -> None:
    obj = ElfObject(compiled("@x = constant i32 7\ndefine ptr @f() { ret ptr @x }", triple))
    with pytest.raises(Bug, match="relocation kind [0-9]+ is not known"):
        obj.link(0x10000)


def test_undefined_symbol_is_named() -> None:
    text = "declare float @sinf(float)\ndeclare void @other()\n" \
           "define float @f(float %x) { call void @other()\n %y = call float @sinf(float %x)\n ret float %y }"
    obj = ElfObject(compiled(text, "x86_64-unknown-linux-gnu"))
    assert obj.undefined() == ["other", "sinf"]
    with pytest.raises(Bug) as caught:
        obj.link(0x10000)
    assert str(caught.value).splitlines()[0] == \
        "compiled code needs other, sinf, which it must not take from elsewhere"


def test_writable_data_is_refused() -> None:
    for text in ("@x = global i32 7", "@x = common global i32 0", "@x = global i32 0"):
        with pytest.raises(Bug, match="a kernel keeps no state of its own"):
            ElfObject(compiled(text, "x86_64-unknown-linux-gnu"))


def test_missing_symbol_and_wrong_machine() -> None:
    image = Image(compile_ir("define i32 @two() nounwind { ret i32 2 }"))
    with pytest.raises(Bug, match="the object has no symbol three; it has .*two"):
        image.address("three")
    other = "riscv64-unknown-linux-gnu"
    with pytest.raises(Bug, match="its machine number is 243"):
        ElfObject(compiled("define i32 @two() nounwind { ret i32 2 }", other))
    with pytest.raises(Bug, match="it holds no code"):
        Image(compile_ir(""))


@pytest.mark.parametrize("data, why", [
    (b"", "0 bytes are too few for an ELF header"),
    (b"MZ" + bytes(100), "not with the ELF mark"),
    (b"\x7fELF\x01\x01" + bytes(100), "not a 64-bit little-endian relocatable object"),
])
def test_other_files_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(Bug, match=why):
        ElfObject(data)


@pytest.mark.parametrize("triple", ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"])
def test_truncated_and_damaged_objects_raise_bug_only(triple: str, seed: int) -> None:
    whole = compiled(PROGRAM, triple)
    for length in range(0, len(whole), 7):
        with pytest.raises(Bug):
            ElfObject(whole[:length]).link(0x10000)
    chance = random.Random(seed)
    refused = 0
    for _ in range(1500):
        damaged = bytearray(whole)
        for _ in range(chance.choice((1, 2, 8))):
            damaged[chance.randrange(len(damaged))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        try:
            ElfObject(bytes(damaged)).link(0x10000)
        except Bug:
            refused += 1
    assert refused > 50, "damage went unnoticed nearly every time"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_memory_is_never_writable_and_executable_and_is_given_back() -> None:
    def rights(address: int) -> str:
        with open("/proc/self/maps") as file:
            for line in file:
                span, mode, *_ = line.split()
                start, end = (int(part, 16) for part in span.split("-"))
                if start <= address < end:
                    return mode
        return ""

    image = Image(compile_ir(PROGRAM))
    base = image.base
    assert rights(base) == "r-xp"
    del image
    gc.collect()
    assert rights(base) != "r-xp"
