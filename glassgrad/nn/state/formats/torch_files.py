"""Read PyTorch's two file formats. In: a file. Out: the saved object.

Since 1.6 it is an uncompressed zip archive:

    name/data.pkl           the objects, as a pickle that refers to storages by number
    name/data/0, 1, ...     the storages' bytes, aligned to 64, so that they can be used in place
    name/byteorder          "little" (or absent)

Before, it was pickles one after another:

    magic number, protocol 1001, facts about the machine      three pickles
    the objects                                               a pickle that refers to storages by key
    the keys of all storages                                  a pickle: a list
    for each key: the number of elements (8 bytes), the elements
"""

from __future__ import annotations

import io
import struct
import zipfile
from typing import Any, NamedTuple

from glassgrad.base.errors import FormatError
from glassgrad.nn.state.formats.byte_source import MemoryIO, Source
from glassgrad.nn.state.formats.pickle_reader import PickleReader
from glassgrad.nn.state.formats.torch_objects import TABLE, Storage, StorageReference, reference

_LOCAL = struct.Struct("<4s5H3I2H")         # the header in front of each record
# what Python's zipfile raises for malformed archives
_UNREADABLE = (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError, IndexError, KeyError,
               OverflowError, struct.error)


class _Record(NamedTuple):
    offset: int
    size: int


def is_torch_zip(source: Source) -> bool:
    """Return whether the file begins as zip archives do."""
    return source.size >= 4 and bytes(source.part(0, 4)) == b"PK\x03\x04"


def read_torch_zip(source: Source, device: str | None) -> Any:
    """Return the object that `torch.save` wrote."""
    records = _records(source)
    roots = [name[:-len("data.pkl")] for name in records if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(roots) != 1:
        raise source.wrong("not a file of PyTorch", given=f"a zip archive with {len(roots)} records called data.pkl",
                           expected="one", fix="write it with torch.save")
    root = roots[0]
    if root + "constants.pkl" in records:
        raise source.wrong("this is a TorchScript program, not weights", given="an archive with code in it",
                           expected="what torch.save wrote", fix="in PyTorch: torch.save(model.state_dict(), path)")
    order = records.get(root + "byteorder")
    if order is not None and bytes(source.part(order.offset, min(order.size, 16))) != b"little":
        raise source.wrong("its numbers are in the other byte order", given="a big-endian file",
                           expected="little-endian", fix="load and save it with PyTorch on a little-endian machine")
    storages: dict[str, Storage] = {}

    def find(wanted: StorageReference) -> Storage:
        record = records.get(f"{root}data/{wanted.key}")
        if record is None or record.size != wanted.nbytes:
            raise source.wrong(f"storage {wanted.key[:40]!r} is not whole", expected=f"{wanted.nbytes:,} bytes",
                               given=f"{record.size:,} bytes" if record is not None else "no such record")
        if wanted.key not in storages:
            storages[wanted.key] = Storage(source, record.offset, record.size, device)
        return storages[wanted.key]

    pickled = records[root + "data.pkl"]
    return PickleReader(source, pickled.offset, pickled.offset + pickled.size, TABLE, reference(find), device).value()


def _records(source: Source) -> dict[str, _Record]:
    """Return every record of the archive, with the offset and length of its bytes."""
    try:
        with zipfile.ZipFile(io.BufferedReader(MemoryIO(source.data))) as archive:
            listed = archive.infolist()
    except _UNREADABLE as problem:
        raise source.wrong("its table of contents is damaged", given=f"{type(problem).__name__}: {problem}",
                           expected="a zip archive") from None
    records: dict[str, _Record] = {}
    end = 0
    for info in sorted(listed, key=lambda info: info.header_offset):
        if info.header_offset < end:        # overlapping records would be a zip bomb
            raise source.wrong("records overlap", given=f"{info.filename[:80]!r} at byte {info.header_offset:,}",
                               expected=f"byte {end:,} or later")
        if info.filename in records:
            raise source.wrong("a record stands twice in the archive", given=repr(info.filename[:80]),
                               expected="every name once")
        record = records[info.filename] = _record(source, info)
        end = record.offset + record.size
    return records


def _record(source: Source, info: zipfile.ZipInfo) -> _Record:
    name = repr(info.filename[:80])
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.file_size != info.compress_size:
        raise source.wrong(f"record {name} is packed", given="a compressed or encrypted record",
                           expected="plain records, as torch.save writes them", fix="load and save it with PyTorch")
    signature, *_, name_length, extra_length = _LOCAL.unpack(source.part(info.header_offset, _LOCAL.size))
    if signature != b"PK\x03\x04":
        raise source.wrong(f"record {name} is not where it should be",
                           given=f"{signature!r} at byte {info.header_offset:,}", expected="a record's header")
    record = _Record(info.header_offset + _LOCAL.size + name_length + extra_length, info.file_size)
    source.part(*record)                    # raises unless all of it is in the file
    return record


MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001


def is_torch_legacy(source: Source) -> bool:
    """Return whether the file begins with the magic number, pickled."""
    try:
        return bool(PickleReader(source, 0, min(source.size, 64), {}).value() == MAGIC)
    except FormatError:
        return False


def read_torch_legacy(source: Source, device: str | None) -> Any:
    """Return the object that an old `torch.save` wrote."""
    position = 0
    facts = []
    for _ in range(3):
        reader = PickleReader(source, position, source.size, {})
        facts.append(reader.value())
        position = reader.position
    if facts[:2] != [MAGIC, PROTOCOL]:
        raise source.wrong("an unknown version of PyTorch's old format", given="another magic number or protocol",
                           expected=f"protocol {PROTOCOL}", fix="load and save it with PyTorch")
    if not isinstance(facts[2], dict) or facts[2].get("little_endian") is not True:
        raise source.wrong("its numbers are in the other byte order", given="a big-endian file",
                           expected="little-endian", fix="load and save it with PyTorch on a little-endian machine")
    # storages follow the pickle that refers to them: read it once for the references and its end, then again
    wanted: dict[str, StorageReference] = {}
    first = PickleReader(source, position, source.size, TABLE, reference(lambda r: _note(source, wanted, r)))
    first.value()
    storages = _storages(source, first.position, wanted, device)
    second = PickleReader(source, position, source.size, TABLE, reference(lambda r: storages[r.key]), device)
    return second.value()


def _note(source: Source, wanted: dict[str, StorageReference], found: StorageReference) -> None:
    before = wanted.setdefault(found.key, found)
    if before.nbytes != found.nbytes:
        raise source.wrong(f"storage {found.key[:40]!r} has two sizes", expected="one size",
                           given=f"{before.nbytes:,} and {found.nbytes:,} bytes")


def _storages(source: Source, position: int, wanted: dict[str, StorageReference],
              device: str | None) -> dict[str, Storage]:
    """Return the storages by key, at their offsets in the file."""
    reader = PickleReader(source, position, source.size, {})
    keys = reader.value()
    position = reader.position
    plain = isinstance(keys, list) and all(isinstance(key, str) or type(key) is int and abs(key) < 1 << 64
                                           for key in keys)
    if not plain or len(keys) != len(wanted) or set(map(str, keys)) != wanted.keys():
        raise source.wrong("its list of storages is wrong", given="other storages than its tensors use",
                           expected=f"{len(wanted)} storages")
    storages = {}
    for key in map(str, keys):
        count, expected = int.from_bytes(source.part(position, 8), "little"), wanted[key]
        if count != expected.count:
            raise source.wrong(f"storage {key[:40]!r} has another size than its tensors say",
                               given=f"{count:,} elements", expected=f"{expected.count:,} elements")
        source.part(position + 8, expected.nbytes)              # raises unless all of it is in the file
        storages[key] = Storage(source, position + 8, expected.nbytes, device)
        position += 8 + expected.nbytes
    return storages
