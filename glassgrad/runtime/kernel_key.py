"""Make a kernel's key in the disk cache. In: a kernel's graph. Out: a digest of all that the kernel depends on.

Loads nothing of the compiler: a warm process finds its kernels by these keys and never compiles.
"""

from __future__ import annotations

import os
from functools import lru_cache

from glassgrad.base.settings import STARTED, settings
from glassgrad.base.source_lines import PACKAGE
from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.runtime.disk_cache import name_of, sha256


@lru_cache(maxsize=4)
def source_digest(*stages: str) -> str:
    """Return a digest of the source of compiler and runtime, or of the given stages, so that a change invalidates cache
    entries.

    If a file has changed since this process started, the loaded code is not that of the file. The digest is then a
    random one, which no other process gets: under the digest of the new files, processes would run each other's
    kernels, which may be made for other layouts of memory."""
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
    """Return a kernel's graph as text, equal for equal kernels in every process."""
    order = toposort([ast])
    place = {n: i for i, n in enumerate(order)}
    return "\n".join(f"{n.op.name} {n.dtype.name} {[place[s] for s in n.src]} {_arg(n)}" for n in order)


def _arg(node: UOp) -> str:
    if node.op is o.CONST and isinstance(node.arg, float):
        return node.arg.hex()
    return repr(node.arg)


def cache_key(ast: UOp, machine: str, compiler: str, moves: tuple[str, ...] = ()) -> str:
    """Return the cache key of a compiled kernel: a digest of all that it depends on. Without `moves`, the kernel is the
    recipe's."""
    proven = ("proven",) if settings.SANITIZE else ()          # compiled after `access_bounds` proved its accesses
    return name_of("kernel", source_digest(), machine, compiler, str(settings.NOOPT), *proven, *moves, structure(ast))
