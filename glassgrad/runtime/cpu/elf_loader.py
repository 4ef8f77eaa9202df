"""Load a relocatable ELF object. In: object bytes, from LLVM or a C compiler. Out: addresses to call.

Does not know kernels, compilers or files: no linker, no `dlopen`, nothing written to disk. Sections go
into one mapping that is writable while relocations are applied and executable afterwards, never both.
There is no global offset table: kernels reference no symbols of other objects, and the compilers are told so.
Source of the relocation formulas: the System V psABI for x86-64, and "ELF for the Arm 64-bit Architecture".
"""

from __future__ import annotations

import ctypes
import platform
import struct
import weakref
from typing import NamedTuple

from glassgrad.base.errors import Bug
from glassgrad.runtime.host_memory import make_executable, map_pages, round_up, unmap_pages

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # ident type machine version entry phoff shoff flags ...
_SECTION = struct.Struct("<IIQQQQIIQQ")       # as ElfSection
_SYMBOL = struct.Struct("<IBBHQQ")            # name info other section value size
_RELA = struct.Struct("<QQq")                 # offset info addend
_SYMTAB, _RELA_TYPE, _NOBITS, _REL_TYPE = 2, 4, 8, 9
_WRITE, _ALLOC = 1, 2
_UNDEFINED, _COMMON = 0, 0xFFF2
_TYPE_SECTION = 3
_HARMLESS = ("", "_GLOBAL_OFFSET_TABLE_")     # the null symbol, and one that assemblers emit unused

X86_64, AARCH64 = 62, 183
MACHINES = {"x86_64": X86_64, "amd64": X86_64, "aarch64": AARCH64, "arm64": AARCH64}


class ElfSection(NamedTuple):
    """The header of a section."""
    name: int                 # offset of its name in the string table
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


class ElfSymbol(NamedTuple):
    """A symbol's name and its offset in the image; -1 if it is not loaded."""
    name: str
    place: int


class ElfObject:
    """A parsed object, laid out but not yet bound to an address.

    >>> ElfObject(b"not an object")
    Traceback (most recent call last):
    glassgrad.base.errors.Bug: the object cannot be loaded: 13 bytes are too few for an ELF header
      this is a bug in glassgrad, not in your program; please report it
    """

    def __init__(self, data: bytes):
        self.data, self.size = data, 0
        self.places: dict[int, int] = {}           # index of a loaded section: its offset in the image
        self.symbols: list[ElfSymbol] = []
        self.relocations: list[tuple[int, int, ElfSymbol, int]] = []     # offset in the image, kind, symbol, addend
        self._undefined: set[str] = set()
        try:
            self._read_sections()
            self._lay_out()
            self._read_symbols()
            self._read_relocations()
        except (struct.error, IndexError, ValueError, MemoryError, OverflowError) as wrong:
            raise _refuse(f"it is damaged or cut short ({wrong})") from wrong

    def undefined(self) -> list[str]:
        """Return the undefined symbols of the object; there must be none, because it is linked with nothing."""
        return sorted(self._undefined)

    def _read_sections(self) -> None:
        data = self.data
        if len(data) < _HEADER.size:
            raise _refuse(f"{len(data)} bytes are too few for an ELF header")
        ident, kind, self.machine, _, _, _, start, _, _, _, _, _, count, self._naming = _HEADER.unpack_from(data)
        if ident[:4] != b"\x7fELF":
            raise _refuse(f"it starts with {ident[:4]!r}, not with the ELF mark")
        if ident[4:6] != b"\x02\x01" or kind != 1:
            raise _refuse("it is not a 64-bit little-endian relocatable object")
        if self.machine not in (X86_64, AARCH64):
            raise _refuse(f"its machine number is {self.machine}, not x86-64 (62) or AArch64 (183)")
        self.sections = [ElfSection(*_SECTION.unpack_from(data, start + _SECTION.size * i)) for i in range(count)]

    def _content(self, section: ElfSection) -> bytes:
        found = self.data[section.offset:section.offset + section.size]
        if len(found) != section.size:
            raise _refuse(f"section {self._name(section)} lies outside the file")
        return found

    def _text(self, table: ElfSection, offset: int) -> str:
        start = table.offset + offset
        return self.data[start:self.data.index(b"\0", start, table.offset + table.size)].decode()

    def _name(self, section: ElfSection) -> str:
        return self._text(self.sections[self._naming], section.name)

    def _lay_out(self) -> None:
        for number, section in enumerate(self.sections):
            name = self._name(section)
            if section.flags & _ALLOC and section.size and name != ".eh_frame":            # never unwound
                if section.flags & _WRITE and not name.startswith(".data.rel.ro"):
                    raise _refuse(f"section {name} is writable; a kernel keeps no state of its own")
                if section.size > 1 << 30 or section.alignment > 4096:
                    raise _refuse(f"section {name} asks for {section.size} bytes aligned to {section.alignment}")
                self.places[number] = round_up(self.size, max(section.alignment, 1))
                self.size = self.places[number] + section.size

    def _read_symbols(self) -> None:
        for table in [section for section in self.sections if section.kind == _SYMTAB]:
            for name, info, _, where, value, _ in _SYMBOL.iter_unpack(self._content(table)):
                text = self._text(self.sections[table.link], name)
                if where == _COMMON:
                    raise _refuse(f"the variable {text} is writable; a kernel keeps no state of its own")
                if where == _UNDEFINED and text not in _HARMLESS:
                    self._undefined.add(text)
                if info & 15 == _TYPE_SECTION:
                    text = self._name(self.sections[where])
                self.symbols.append(ElfSymbol(text, self.places[where] + value if where in self.places else -1))

    def _read_relocations(self) -> None:
        for section in self.sections:
            if section.kind == _REL_TYPE:
                raise _refuse(f"section {self._name(section)} has relocations without addends")
            if section.kind == _RELA_TYPE and section.info in self.places:
                for offset, info, addend in _RELA.iter_unpack(self._content(section)):
                    place, symbol = self.places[section.info] + offset, self.symbols[info >> 32]
                    self.relocations.append((place, info & 0xFFFFFFFF, symbol, addend))

    def link(self, base: int) -> bytearray:
        """Return the image as bytes, relocated for the address `base`."""
        if self._undefined:
            raise Bug(f"compiled code needs {', '.join(self.undefined())}, which it must not take from elsewhere")
        image = bytearray(self.size)
        for number, place in self.places.items():
            if self.sections[number].kind != _NOBITS:
                image[place:place + self.sections[number].size] = self._content(self.sections[number])
        relative, absolute = _RELATIVE[self.machine], _ABSOLUTE[self.machine]
        for place, kind, symbol, addend in self.relocations:
            if kind in _NO_RELOCATION:
                continue
            if symbol.place < 0:
                raise _refuse(f"it refers to {symbol.name}, which is not loaded")
            address, value = base + place, base + symbol.place + addend
            try:
                if kind in relative:
                    struct.pack_into(relative[kind], image, place, value - address)
                elif kind in absolute:
                    struct.pack_into(absolute[kind], image, place, value)
                elif self.machine == X86_64:
                    raise _refuse(f"x86-64 relocation kind {kind} is not known")
                else:
                    _change_arm_instruction(image, place, address, kind, value)
            except (struct.error, IndexError, OverflowError) as wrong:
                raise _refuse(f"relocation {kind} to {symbol.name} does not reach ({wrong})") from wrong
        return image


def _refuse(why: str) -> Bug:
    return Bug(f"the object cannot be loaded: {why}")


# In the formulas: S is the symbol's address, A the addend, P the address to patch. `value` is S + A, `address` is P.
_NO_RELOCATION = (0, 256)
_RELATIVE = {X86_64: {2: "<i", 4: "<i", 24: "<q"},                # PC32, PLT32, PC64: S + A - P
             AARCH64: {260: "<q", 261: "<i", 314: "<i"}}          # PREL64, PREL32, PLT32
_ABSOLUTE = {X86_64: {1: "<Q", 10: "<I", 11: "<i"},               # 64, 32, 32S: S + A
             AARCH64: {257: "<Q"}}                                # ABS64
# kind -> low bits dropped from the 12-bit immediate: ADD, then loads and stores of 8 to 128 bits (*_ABS_LO12_NC)
_ARM_LOW12 = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}
_ARM_BRANCHES = {280: (19, 5), 282: (26, 0), 283: (26, 0)}      # CONDBR19, JUMP26, CALL26: width and first bit


def _change_arm_instruction(image: bytearray, place: int, address: int, kind: int, value: int) -> None:
    def insert(bits: int, width: int, at: int) -> None:
        (word,) = struct.unpack_from("<I", image, place)
        mask = ((1 << width) - 1) << at
        struct.pack_into("<I", image, place, (word & ~mask) | ((bits << at) & mask))

    def signed(number: int, width: int) -> int:
        if not -(1 << (width - 1)) <= number < 1 << (width - 1):
            raise OverflowError(f"{number} does not fit in {width} bits")
        return number

    if kind in (274, 275, 276):                                         # ADR_PREL_LO21, ADR_PREL_PG_HI21(_NC)
        distance = signed(value - address if kind == 274 else (value >> 12) - (address >> 12), 21)
        insert(distance, 2, 29)
        insert(distance >> 2, 19, 5)
    elif kind in _ARM_LOW12:
        insert((value & 0xFFF) >> _ARM_LOW12[kind], 12, 10)
    elif kind in _ARM_BRANCHES:
        width, at = _ARM_BRANCHES[kind]
        insert(signed((value - address) >> 2, width), width, at)
    else:
        raise _refuse(f"AArch64 relocation kind {kind} is not known")


class Image:
    """An object in executable memory. Its addresses are valid as long as the Image lives."""

    def __init__(self, data: bytes):
        linked = ElfObject(data)
        machine = MACHINES.get(platform.machine().lower())
        if linked.machine != machine:
            raise _refuse(f"it is for machine {linked.machine}, and this one is {machine}")
        if not linked.size:
            raise _refuse("it holds no code")
        self.size = linked.size
        self.base = map_pages(self.size)
        # At exit the pages stay: a daemon thread may still be inside them, and the process ends anyway.
        weakref.finalize(self, unmap_pages, self.base, self.size).atexit = False
        ctypes.memmove(self.base, bytes(linked.link(self.base)), self.size)
        make_executable(self.base, self.size)
        self._addresses = {symbol.name: self.base + symbol.place for symbol in linked.symbols
                           if symbol.name and symbol.place >= 0}

    def address(self, name: str) -> int:
        """Return the address of the function or constant `name`."""
        found = self._addresses.get(name)
        if found is None:
            known = ", ".join(sorted(self._addresses)) or "none"
            raise Bug(f"the object has no symbol {name}; it has {known}")
        return found
