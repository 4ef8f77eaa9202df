"""PyTorch's format before 1.6: pickles one after another. In: a file. Out: what was saved.

    magic number, protocol 1001, facts about the machine      three pickles
    the objects                                               a pickle that refers to storages by key
    the keys of all storages                                  a pickle: a list
    for each key: the number of elements (8 bytes), the elements
"""

from __future__ import annotations

from typing import Any

from glassgrad.base.errors import FormatError
from glassgrad.nn.state.formats.pickle_reader import PickleReader
from glassgrad.nn.state.formats.source import Source
from glassgrad.nn.state.formats.torch_objects import TABLE, Storage, StorageReference, reference

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001


def is_torch_legacy(source: Source) -> bool:
    """Whether the file begins with the magic number, pickled."""
    try:
        return bool(PickleReader(source, 0, min(source.size, 64), {}).read() == MAGIC)
    except FormatError:
        return False


def read_torch_legacy(source: Source, device: str | None) -> Any:
    """The object that an old `torch.save` wrote."""
    position = 0
    facts = []
    for _ in range(3):
        reader = PickleReader(source, position, source.size, {})
        facts.append(reader.read())
        position = reader.position
    if facts[:2] != [MAGIC, PROTOCOL]:
        raise source.wrong("an unknown version of PyTorch's old format", given="another magic number or protocol",
                           expected=f"protocol {PROTOCOL}", fix="load and save it with PyTorch")
    if not isinstance(facts[2], dict) or facts[2].get("little_endian") is not True:
        raise source.wrong("its numbers are in the other byte order", given="a big-endian file",
                           expected="little-endian", fix="load and save it with PyTorch on a little-endian machine")
    # the storages come after the pickle that refers to them: read it once for the references and its end, then again
    wanted: dict[str, StorageReference] = {}
    first = PickleReader(source, position, source.size, TABLE, reference(lambda r: _note(source, wanted, r)))
    first.read()
    storages = _storages(source, first.position, wanted, device)
    second = PickleReader(source, position, source.size, TABLE, reference(lambda r: storages[r.key]), device)
    return second.read()


def _note(source: Source, wanted: dict[str, StorageReference], found: StorageReference) -> None:
    before = wanted.setdefault(found.key, found)
    if before.nbytes != found.nbytes:
        raise source.wrong(f"storage {found.key[:40]!r} has two sizes", expected="one size",
                           given=f"{before.nbytes:,} and {found.nbytes:,} bytes")


def _storages(source: Source, position: int, wanted: dict[str, StorageReference],
              device: str | None) -> dict[str, Storage]:
    """Where each storage's elements lie."""
    reader = PickleReader(source, position, source.size, {})
    keys = reader.read()
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
        source.part(position + 8, expected.nbytes)              # all of it is in the file
        storages[key] = Storage(source, position + 8, expected.nbytes, device)
        position += 8 + expected.nbytes
    return storages
