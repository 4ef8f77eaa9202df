"""Load a relocatable ELF object. In: object bytes, from LLVM or a C compiler. Out: addresses to call.

Does not know kernels, compilers or files: no linker, no `dlopen`, nothing written to disk. Sections go
into one mapping that is writable while relocations are applied and executable afterwards, never both.
Source of the relocation formulas: the System V psABI for x86-64, and "ELF for the Arm 64-bit Architecture".
"""

from __future__ import annotations

import ctypes
import platform
import struct
import weakref
from dataclasses import dataclass, field

from glassgrad.base.errors import Bug
from glassgrad.runtime.os_pages import make_executable, map_pages, round_up, unmap_pages

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # ident type machine version entry phoff shoff flags ...
_SECTION = struct.Struct("<IIQQQQIIQQ")       # name type flags addr offset size link info addralign entsize
_SYMBOL = struct.Struct("<IBBHQQ")            # name info other section value size
_RELA = struct.Struct("<QQq")                 # offset info addend
_SYMTAB, _RELA_TYPE, _NOBITS, _REL_TYPE = 2, 4, 8, 9
_WRITE, _ALLOC = 1, 2
_UNDEFINED, _ABSOLUTE, _COMMON = 0, 0xFFF1, 0xFFF2
_TYPE_SECTION, _TYPE_FILE = 3, 4

X86_64, AARCH64 = 62, 183
MACHINES = {"x86_64": X86_64, "amd64": X86_64, "aarch64": AARCH64, "arm64": AARCH64}


@dataclass
class ElfSection:
    """One section of the object; `place` is its offset in the image, or -1 when it is not loaded."""
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    place: int = -1


@dataclass
class ElfSymbol:
    """One symbol: `place` is its offset in the image, or its value when `absolute`."""
    name: str
    defined: bool
    place: int
    absolute: bool = False


@dataclass
class ElfObject:
    """A parsed object, laid out but not yet bound to an address.

    >>> ElfObject(b"not an object")
    Traceback (most recent call last):
    glassgrad.base.errors.Bug: the object cannot be loaded: 13 bytes are too few for an ELF header
      this is a bug in glassgrad, not in your program; please report it
    """
    data: bytes
    machine: int = 0
    size: int = 0
    sections: list[ElfSection] = field(default_factory=list)
    symbols: list[ElfSymbol] = field(default_factory=list)
    table: dict[int, int] = field(default_factory=dict)  # symbol number -> place of the slot with its address

    def __post_init__(self) -> None:
        try:
            self._read_sections()
            self._read_symbols()
            self._lay_out()
        except (struct.error, IndexError, UnicodeDecodeError, MemoryError, OverflowError) as wrong:
            raise _refuse(f"it is damaged or cut short ({wrong})") from wrong

    def undefined(self) -> list[str]:
        """Names that the object needs from elsewhere; we link against nothing, so there must be none."""
        return sorted({symbol.name for symbol in self.symbols if not symbol.defined})

    def _read_sections(self) -> None:
        data = self.data
        if len(data) < _HEADER.size:
            raise _refuse(f"{len(data)} bytes are too few for an ELF header")
        ident, kind, self.machine, _, _, _, start, _, _, _, _, each, count, naming = _HEADER.unpack_from(data)
        if ident[:4] != b"\x7fELF":
            raise _refuse(f"it starts with {ident[:4]!r}, not with the ELF mark")
        if ident[4:6] != b"\x02\x01" or kind != 1:
            raise _refuse("it is not a 64-bit little-endian relocatable object")
        if self.machine not in (X86_64, AARCH64):
            raise _refuse(f"its machine number is {self.machine}, not x86-64 (62) or AArch64 (183)")
        if each != _SECTION.size:
            raise _refuse(f"its section headers have {each} bytes, not {_SECTION.size}")
        if start + each * count > len(data):
            raise _refuse("its section headers lie outside the file")
        heads = [_SECTION.unpack_from(data, start + each * number) for number in range(count)]
        _, _, _, _, names_start, names_size, *_ = heads[naming]
        for name, kind, flags, _, offset, size, link, info, alignment, _ in heads:
            if kind != _NOBITS and offset + size > len(data):
                raise _refuse(f"section {len(self.sections)} lies outside the file")
            if alignment & (alignment - 1):
                raise _refuse(f"section {len(self.sections)} has alignment {alignment}, not a power of two")
            text = self._text(names_start, names_size, name)
            self.sections.append(ElfSection(text, kind, flags, offset, size, link, info, max(alignment, 1)))

    def _text(self, start: int, size: int, offset: int) -> str:
        end = self.data.find(b"\0", start + offset, start + size)
        if end < 0:
            raise _refuse("a name runs outside its string table")
        return self.data[start + offset:end].decode()

    def _read_symbols(self) -> None:
        for section in self.sections:
            loaded = section.flags & _ALLOC and section.size and section.name != ".eh_frame"  # never unwound
            if loaded:
                if section.flags & _WRITE and not section.name.startswith(".data.rel.ro"):
                    raise _refuse(f"section {section.name} is writable; a kernel keeps no state of its own")
                if section.size > 1 << 30 or section.alignment > 4096:
                    raise _refuse(f"section {section.name} asks for {section.size} bytes "
                                  f"aligned to {section.alignment}")
                self.size = round_up(self.size, section.alignment)
                section.place = self.size
                self.size += section.size
        tables = [section for section in self.sections if section.kind == _SYMTAB]
        if not tables:
            return
        names = self.sections[tables[0].link]
        start = tables[0].offset
        for name, info, _, where, value, _ in _SYMBOL.iter_unpack(self.data[start:start + tables[0].size]):
            text, kind = self._text(names.offset, names.size, name), info & 15
            if where == _COMMON:
                raise _refuse(f"the variable {text} is writable; a kernel keeps no state of its own")
            if where == _ABSOLUTE or kind == _TYPE_FILE:
                self.symbols.append(ElfSymbol(text, True, value, absolute=True))
            elif where == _UNDEFINED:
                # The first symbol is always empty. Assemblers also name the table of addresses, which we make.
                harmless = not self.symbols or text == "_GLOBAL_OFFSET_TABLE_"
                self.symbols.append(ElfSymbol(text, harmless, 0, absolute=True))
            else:
                section = self.sections[where]
                if value > section.size:
                    raise _refuse(f"the symbol {text} lies outside section {section.name}")
                self.symbols.append(ElfSymbol(section.name if kind == _TYPE_SECTION else text, True,
                                           section.place + value if section.place >= 0 else -1))

    def relocations(self) -> list[tuple[ElfSection, int, int, int, int]]:
        """(section, offset in it, kind, symbol number, addend) of every loaded section."""
        found = []
        for section in self.sections:
            if section.kind not in (_RELA_TYPE, _REL_TYPE) or self.sections[section.info].place < 0:
                continue
            if section.kind == _REL_TYPE:
                raise _refuse(f"section {section.name} has relocations without addends")
            target = self.sections[section.info]
            content = self.data[section.offset:section.offset + section.size]
            for offset, info, addend in _RELA.iter_unpack(content):
                found.append((target, offset, info & 0xFFFFFFFF, info >> 32, addend))
        return found

    def _lay_out(self) -> None:
        needed = _X86_TABLE_KINDS if self.machine == X86_64 else _ARM_TABLE_KINDS
        self.size = round_up(self.size, 8)
        for section, offset, kind, number, _ in self.relocations():
            if number >= len(self.symbols) or offset >= section.size:
                raise _refuse(f"a relocation of {section.name} names what does not exist")
            if kind in needed and number not in self.table:
                self.table[number] = self.size
                self.size += 8

    def link(self, base: int) -> bytearray:
        """The bytes to place at address `base`, every reference resolved."""
        missing = self.undefined()
        if missing:
            raise Bug(f"compiled code needs {', '.join(missing)}, which it must not take from elsewhere")
        image = bytearray(self.size)
        for section in self.sections:
            if section.place >= 0 and section.kind != _NOBITS:
                content = self.data[section.offset:section.offset + section.size]
                image[section.place:section.place + section.size] = content
        targets = [symbol.place if symbol.absolute else base + symbol.place for symbol in self.symbols]
        for number, slot in self.table.items():
            struct.pack_into("<Q", image, slot, targets[number])
        apply = _relocate_x86 if self.machine == X86_64 else _relocate_arm
        for section, offset, kind, number, addend in self.relocations():
            symbol = self.symbols[number]
            if symbol.place < 0:
                raise _refuse(f"{section.name} refers to {symbol.name}, which is not loaded")
            place = section.place + offset
            slot = base + self.table[number] if number in self.table else 0
            try:
                apply(image, place, base + place, kind, targets[number], addend, slot)
            except (struct.error, OverflowError) as wrong:
                raise _refuse(f"relocation {kind} to {symbol.name} does not reach ({wrong})") from wrong
        return image


def _refuse(why: str) -> Bug:
    return Bug(f"the object cannot be loaded: {why}")


# In the formulas: S the symbol's address, A the addend, P the place's address, G that of the symbol's slot.
_X86_TABLE_KINDS = frozenset({9, 41, 42})  # GOTPCREL and its relaxable forms
_X86_RELATIVE = frozenset({2, 4})  # PC32, PLT32


def _relocate_x86(image: bytearray, place: int, address: int, kind: int,
                  symbol: int, addend: int, slot: int) -> None:
    if kind in _X86_RELATIVE:                                           # S + A - P
        struct.pack_into("<i", image, place, symbol + addend - address)
    elif kind in _X86_TABLE_KINDS:                                      # G + A - P
        struct.pack_into("<i", image, place, slot + addend - address)
    elif kind == 1:                                                     # 64: S + A
        struct.pack_into("<Q", image, place, (symbol + addend) % 2**64)
    elif kind == 24:                                                    # PC64: S + A - P
        struct.pack_into("<q", image, place, symbol + addend - address)
    elif kind == 10:                                                    # 32: S + A, zero-extended
        struct.pack_into("<I", image, place, symbol + addend)
    elif kind == 11:                                                    # 32S: S + A, sign-extended
        struct.pack_into("<i", image, place, symbol + addend)
    elif kind != 0:
        raise _refuse(f"x86-64 relocation kind {kind} is not known")


_ARM_TABLE_KINDS = frozenset({311, 312})
# kind -> low bits dropped from the 12-bit immediate: ADD, then loads and stores of 8 to 128 bits
_ARM_LOW12 = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}


def _relocate_arm(image: bytearray, place: int, address: int, kind: int,
                  symbol: int, addend: int, slot: int) -> None:
    value = symbol + addend

    def insert(bits: int, width: int, at: int) -> None:
        (word,) = struct.unpack_from("<I", image, place)
        mask = ((1 << width) - 1) << at
        struct.pack_into("<I", image, place, (word & ~mask) | ((bits << at) & mask))

    def signed(number: int, width: int) -> int:
        if not -(1 << (width - 1)) <= number < 1 << (width - 1):
            raise OverflowError(f"{number} does not fit in {width} bits")
        return number & ((1 << width) - 1)

    if kind in (275, 276, 311):                                         # ADR_PREL_PG_HI21(_NC), ADR_GOT_PAGE
        pages = signed(((slot if kind == 311 else value) >> 12) - (address >> 12), 21)
        insert(pages & 3, 2, 29)
        insert(pages >> 2, 19, 5)
    elif kind == 274:                                                   # ADR_PREL_LO21: S + A - P
        distance = signed(value - address, 21)
        insert(distance & 3, 2, 29)
        insert(distance >> 2, 19, 5)
    elif kind in _ARM_LOW12:                                            # ADD_ABS_LO12_NC, LDST*_ABS_LO12_NC
        insert((value & 0xFFF) >> _ARM_LOW12[kind], 12, 10)
    elif kind == 312:                                                   # LD64_GOT_LO12_NC
        insert((slot & 0xFFF) >> 3, 12, 10)
    elif kind in (282, 283):                                            # JUMP26, CALL26
        insert(signed((value - address) >> 2, 26), 26, 0)
    elif kind == 280:                                                   # CONDBR19
        insert(signed((value - address) >> 2, 19), 19, 5)
    elif kind == 257:                                                   # ABS64
        struct.pack_into("<Q", image, place, value % 2**64)
    elif kind == 260:                                                   # PREL64
        struct.pack_into("<q", image, place, value - address)
    elif kind in (261, 314):                                            # PREL32, PLT32
        struct.pack_into("<i", image, place, value - address)
    elif kind not in (0, 256):
        raise _refuse(f"AArch64 relocation kind {kind} is not known")


class Image:
    """An object in executable memory. The addresses are good for as long as the Image lives."""

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
                           if symbol.name and not symbol.absolute and symbol.place >= 0}

    def address(self, name: str) -> int:
        """Where the function or constant `name` lies."""
        found = self._addresses.get(name)
        if found is None:
            known = ", ".join(sorted(self._addresses)) or "none"
            raise Bug(f"the object has no symbol {name}; it has {known}")
        return found
