"""Store search results. In: a kernel's graph and this machine. Out: its moves; a folder; a file to export.

They have a disk cache of their own, in the folder `tuning` next to the compiled kernels, with an entry of JSON per
kernel. An exported file has all entries together, in the same format. An entry is valid for one kernel, one machine
with one number of threads, and one version of the compiler: elsewhere the recipe may be faster.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from glassgrad.base.errors import FormatError, InputError
from glassgrad.base.settings import settings
from glassgrad.compiler.graph.uop import UOp
from glassgrad.runtime.cpu.processor import host_description, worker_count
from glassgrad.runtime.disk_cache import DiskCache, cache_in, default_folder, name_of
from glassgrad.runtime.kernel_key import source_digest, structure

FORMAT = "glassgrad tuning 1"


@dataclass(frozen=True)
class Tuned:
    """What a search found for one kernel. Without moves, nothing is clearly faster than the recipe."""
    kernel: str                        # its name, for people
    structure: str                     # a digest of its graph
    compiler: str                      # name and version of the compiler of its machine code
    beam: int                          # the width of the search
    seconds: float                     # the time it was given
    complete: bool                     # whether it ended before the time was over
    tried: int                         # number of candidates run
    recipe: tuple[str, ...]            # the recipe's moves
    recipe_us: float
    moves: tuple[str, ...] = ()        # faster moves
    tuned_us: float = 0.0

    def covers(self, beam: int, seconds: float) -> bool:
        """Return whether a new search of this width and time would find nothing more."""
        return self.beam >= beam and (self.complete or self.seconds >= seconds)

    @property
    def speedup(self) -> float:
        """The recipe's time divided by that of the faster moves; 1 without moves."""
        return self.recipe_us / self.tuned_us if self.moves and self.tuned_us else 1.0


_known: dict[str, Tuned] = {}          # results in this process, also with CACHE=0


def machine() -> dict[str, Any]:
    """Return the facts about this machine that an entry depends on."""
    host = host_description()
    return {"processor": host.cpu, "system": host.triple, "features": " ".join(sorted(host.features)),
            "threads": worker_count()}


def digest_of(ast: UOp) -> str:
    """Return a digest of a kernel's graph, the same in every process."""
    return name_of(structure(ast))


def find(ast: UOp, compiler: str) -> Tuned | None:
    """Return the result stored for a kernel on this machine, or None."""
    key = _key(digest_of(ast), compiler)
    stored = None if key in _known else _kept().get(key)
    if stored is not None:
        _know(stored)
    return _known.get(key)


def keep(tuned: Tuned) -> None:
    """Store a result in this process and, unless CACHE=0, on disk."""
    key = _key(tuned.structure, tuned.compiler)
    _known[key] = tuned
    _kept().put(key, _text([tuned]).encode())


def known() -> list[Tuned]:
    """Return all results for this machine and this version."""
    for stored in _kept().values():
        _know(stored)
    return sorted((t for key, t in _known.items() if key == _key(t.structure, t.compiler)),
                  key=lambda t: (t.kernel, t.structure))


def clear_tuning() -> int:
    """Delete every entry, also those of other machines and versions; return how many there were."""
    count = sum(1 for _ in _kept().values()) or len(_known)
    _known.clear()
    _kept().clear()
    return count


def tuning_folder() -> str:
    """Return the folder of the entries; "" with CACHE=0."""
    folder = default_folder() if settings.CACHE else ""
    return os.path.join(folder, "tuning") if folder else ""


def _kept() -> DiskCache:
    return cache_in(tuning_folder())


def _know(stored: bytes) -> None:
    """Take over an entry, unless it belongs to another machine or version."""
    with suppress(FormatError):
        for tuned in _parsed(Path(tuning_folder()), stored.decode()):
            _known.setdefault(_key(tuned.structure, tuned.compiler), tuned)


def _text(kernels: Sequence[Tuned]) -> str:
    return json.dumps({"format": FORMAT, "version": source_digest(), "machine": machine(),
                       "kernels": [asdict(t) for t in kernels]}, indent=1)


def export_tuning(path: str | os.PathLike[str]) -> int:
    """Write all results for this machine and version to one file; return how many there are."""
    kernels = known()
    if not kernels:
        raise InputError("there is nothing to export: no search has been made on this machine with this version",
                         given=f"the folder {tuning_folder()}", expected="results of searches",
                         fix="run your program with BEAM=2 first")
    Path(path).write_text(_text(kernels) + "\n", encoding="utf-8")
    return len(kernels)


def import_tuning(path: str | os.PathLike[str]) -> int:
    """Store the entries of a file that `export_tuning` wrote; return how many. They are used with BEAM=1 or more."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as wrong:
        raise InputError("the tuning file cannot be read", given=f"{path}: {wrong.strerror or wrong}",
                         expected="a file written by glassgrad tune export", fix="check the path") from None
    found = _parsed(Path(path), text)
    _check_moves(Path(path), found)
    for tuned in found:
        keep(tuned)
    return len(found)


def _key(structure_digest: str, compiler: str) -> str:
    return name_of("tuning", source_digest(), json.dumps(machine(), sort_keys=True), compiler, structure_digest)


def _parsed(path: Path, text: str) -> list[Tuned]:
    """Parse and validate the entries of a text; `path` is where it was found, for messages."""
    try:
        data = json.loads(text)
    except ValueError as wrong:
        raise _malformed(path, f"it is not JSON: {wrong}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise _malformed(path, f"its format is {data.get('format')!r}" if isinstance(data, dict) else "it is no object")
    if data.get("version") != source_digest():
        raise FormatError("the tuning file was made by another version of glassgrad", given=str(path),
                          expected=f"version {source_digest()[:12]}, not {str(data.get('version'))[:12]}",
                          fix="search again with this version: its recipes may be faster than what was found then")
    here = machine()
    if data.get("machine") != here:
        there = data["machine"] if isinstance(data.get("machine"), dict) else {}
        different = [name for name in here if there.get(name) != here[name]]
        raise FormatError("the tuning file was made on another machine", given=f"{path}: " + ", ".join(
            f"{name} {there.get(name)!r}" for name in different),
            expected=", ".join(f"{name} {here[name]!r}" for name in different),
            fix="search on this machine: BEAM=2" + (f", or set THREADS={there.get('threads')}"
                                                     if different == ["threads"] else ""))
    if not isinstance(data.get("kernels"), list):
        raise _malformed(path, "it has no list of kernels")
    return [_entry(path, number, row) for number, row in enumerate(data["kernels"])]


def _entry(path: Path, number: int, row: Any) -> Tuned:
    kinds: dict[str, Any] = {"str": str, "int": int, "bool": bool, "float": (int, float), "tuple[str, ...]": list}
    known = {f.name: kinds[str(f.type)] for f in fields(Tuned)}
    if not isinstance(row, dict) or row.keys() != known.keys():
        raise _malformed(path, f"kernel {number} does not have the fields {', '.join(known)}")
    for name, kind in known.items():
        value = row[name]
        if not isinstance(value, kind) or (kind is list and not all(isinstance(v, str) for v in value)):
            raise _malformed(path, f"kernel {number} has a {name} of {value!r}")
    values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in row.items()}
    return Tuned(**values)


def _check_moves(path: Path, found: list[Tuned]) -> None:
    from glassgrad.compiler.optimize.recipes import Refused, read  # a warm process does not load the compiler
    for number, tuned in enumerate(found):
        try:
            for text in (*tuned.recipe, *tuned.moves):
                read(text)
        except Refused as wrong:
            raise _malformed(path, f"kernel {number}: {wrong}") from None


def _malformed(path: Path, why: str) -> FormatError:
    return FormatError("this is not a tuning file, or it is damaged", given=f"{path}: {why}",
                       expected=f'a file written by glassgrad tune export ("format": "{FORMAT}")',
                       fix="export it again")
