"""PyTorch's format since 1.6: an uncompressed zip archive. In: a file. Out: what was saved.

    name/data.pkl           the objects, as a pickle that refers to storages by number
    name/data/0, 1, ...     the storages' bytes, aligned to 64, so that they can be used where they lie
    name/byteorder          "little" (or absent)
"""

from __future__ import annotations

import io
import struct
import zipfile
from typing import Any, NamedTuple

from glassgrad.nn.state.formats.memory_file import MemoryIO
from glassgrad.nn.state.formats.pickle_reader import PickleReader
from glassgrad.nn.state.formats.source import Source
from glassgrad.nn.state.formats.torch_objects import TABLE, Storage, StorageReference, reference

_LOCAL = struct.Struct("<4s5H3I2H")         # the header in front of each record
# what Python's zipfile lets out for archives that are not well formed
_UNREADABLE = (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError, IndexError, KeyError,
               OverflowError, struct.error)


class _Record(NamedTuple):
    offset: int
    size: int


def is_torch_zip(source: Source) -> bool:
    """Whether the file begins as zip archives do."""
    return source.size >= 4 and bytes(source.part(0, 4)) == b"PK\x03\x04"


def read_torch_zip(source: Source, device: str | None) -> Any:
    """The object that `torch.save` wrote."""
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
    return PickleReader(source, pickled.offset, pickled.offset + pickled.size, TABLE, reference(find), device).read()


def _records(source: Source) -> dict[str, _Record]:
    """Every record of the archive, and where its bytes lie."""
    try:
        with zipfile.ZipFile(io.BufferedReader(MemoryIO(source.data))) as archive:
            listed = archive.infolist()
    except _UNREADABLE as problem:
        raise source.wrong("its table of contents is damaged", given=f"{type(problem).__name__}: {problem}",
                           expected="a zip archive") from None
    records: dict[str, _Record] = {}
    end = 0
    for info in sorted(listed, key=lambda info: info.header_offset):
        if info.header_offset < end:        # many records over the same bytes would be a bomb
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
    source.part(*record)                    # all of it is in the file
    return record
