"""A kernel's cache key, and its cost. In: a kernel's graph. Out: a key, and counts.

Loads nothing of the compiler: a warm process finds its kernels by these keys and never compiles.
"""

from __future__ import annotations

import os
from functools import lru_cache

from glassgrad.base.settings import STARTED, settings
from glassgrad.base.source_lines import PACKAGE
from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.runtime.disk_cache import sha256


@lru_cache(maxsize=4)
def source_digest(*stages: str) -> str:
    """A digest of the source of compiler and runtime, or of the given stages: a change invalidates cache entries. If a
    file has changed since this process started, what is loaded has no name: the digest is one that no other process
    gets. (Under the new files' digest, processes would run each other's kernels, made for other layouts of memory.)"""
    digest, changed = sha256(), 0.0
    for stage in stages or ("compiler", "runtime"):
        for folder, inner, files in os.walk(PACKAGE + stage):
            inner.sort()
            for file in sorted(files):
                if file.endswith(".py"):
                    with open(os.path.join(folder, file), "rb") as f:
                        digest.update(file.encode() + f.read())
                        about = os.fstat(f.fileno())
                        changed = max(changed, about.st_mtime if os.name == "nt" else about.st_ctime)
    if changed > STARTED - 0.02:                 # seconds by which the clock of file systems may lag
        digest.update(os.urandom(32))
    return digest.hexdigest()


def structure(ast: UOp) -> str:
    """A kernel's graph as text: equal for equal kernels, in every process."""
    order = toposort([ast])
    place = {n: i for i, n in enumerate(order)}
    return "\n".join(f"{n.op.name} {n.dtype.name} {[place[s] for s in n.src]} {_arg(n)}" for n in order)


def _arg(node: UOp) -> str:
    if node.op is o.CONST and isinstance(node.arg, float):
        return node.arg.hex()
    return repr(node.arg)


def cache_key(ast: UOp, machine: str, compiler: str, moves: tuple[str, ...] = ()) -> str:
    """The cache key of a compiled kernel: a digest of all it depends on. Without `moves`, the recipe's kernel."""
    proven = ("proven",) if settings.SANITIZE else ()          # compiled after `access_bounds` proved its accesses
    parts = ("kernel", source_digest(), machine, compiler, str(settings.NOOPT), *proven, *moves, structure(ast))
    return sha256("\n\n".join(parts).encode()).hexdigest()


def cost(ast: UOp) -> tuple[int, int]:
    """A kernel's (arithmetic operations, bytes of memory that it must read or write)."""
    operations = total = 0
    order = toposort([ast])
    touched = _elements_read(order)
    for n in order:
        if n.op in o.ELEMENTWISE and n.op not in (o.CAST, o.BITCAST):
            operations += n.size
        elif n.op in o.REDUCE:
            operations += n.src[0].size
        elif n.op is o.PARAM:
            total += touched[n] * n.dtype.itemsize
    return operations, total


def _elements_read(order: list[UOp]) -> dict[UOp, int]:
    """An upper bound of the elements of each node that are read: a SHRINK and a GATHER read only a part."""
    found = {order[-1]: order[-1].size}
    for n in reversed(order):
        for i, source in enumerate(n.src):
            part = n.op is o.SHRINK or n.op is o.GATHER and i == 0 or n.size == source.size and n.op is not o.SINK
            found[source] = min(source.size, found.get(source, 0) + (found[n] if part else source.size))
    return found
