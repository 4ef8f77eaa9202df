"""Download a file from its mirrors. In: addresses, a target, a SHA-256. Out: the verified file, or DownloadError.

Bytes are written to `<target>.part`, so that an interrupted download can resume; the target appears only when its
checksum is right. Does not depend on data sets.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from glassgrad.base.errors import GlassgradError

TIMEOUT = 15.0          # seconds without data before a mirror is given up
ATTEMPTS = 3            # per mirror; each resumes the last one
CHUNK = 1 << 18


class DownloadError(GlassgradError, OSError):
    """No mirror had the file with the right checksum."""


def notice(text: str) -> None:
    """Print to standard error."""
    print(f"glassgrad: {text}", file=sys.stderr, flush=True)


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def download(addresses: Sequence[str], target: Path, checksum: str) -> Path:
    """Fetch `target` from the first address that has a file with this SHA-256."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    failures: list[str] = []
    with _only_one_process(target.parent / ".lock"):
        if target.exists() and sha256(target) == checksum:      # another process fetched it while we waited
            return target
        for address in addresses:
            for _ in range(ATTEMPTS):
                resumed = part.exists() and part.stat().st_size > 0
                try:
                    _transfer(address, part)
                except (OSError, http.client.HTTPException) as problem:
                    failures.append(f"{address}: {_in_words(problem)}")
                    if isinstance(problem, urllib.error.URLError):
                        break                                   # no byte arrived: try the next mirror
                    continue                                    # the transfer was interrupted: resume
                found = sha256(part)
                if found == checksum:
                    os.replace(part, target)
                    return target
                size = part.stat().st_size
                part.unlink()
                failures.append(f"{address}: {size:,} bytes with SHA-256 {found[:12]}..., not {checksum[:12]}...")
                notice(f"{target.name} from {address} has the wrong checksum; removed")
                if not resumed:                                 # a complete new copy is wrong: try the next mirror
                    break
    raise DownloadError(f"{target.name} could not be downloaded", given="\n".join(failures),
                        expected=f"a file with SHA-256 {checksum}",
                        fix="check the network connection, or put the file there yourself: " + str(target))


def _in_words(problem: Exception) -> str:
    if isinstance(problem, urllib.error.HTTPError):
        return f"the server answered {problem.code} {problem.reason}"
    if isinstance(problem, urllib.error.URLError):
        return str(problem.reason)
    return str(problem) or type(problem).__name__


def _transfer(address: str, part: Path) -> None:
    """Append to `part` what it lacks of the file at `address`."""
    from tqdm import tqdm  # imported late: only downloads need it

    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address, headers={"User-Agent": "glassgrad"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as problem:
        if problem.code == 416 and have:                        # nothing is missing: the checksum decides
            return
        raise
    with response:
        if have and response.status != 206:                     # this server cannot resume: start over
            have = 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        size = f" ({total / 1e6:.1f} MB)" if total else ""
        notice(f"{'resuming' if have else 'downloading'} {address}{size}")
        with part.open("ab" if have else "wb") as file, tqdm(
                total=total, initial=have, unit="B", unit_scale=True, desc=part.stem, disable=None) as bar:
            while block := response.read(CHUNK):
                file.write(block)
                bar.update(len(block))
    if total is not None and part.stat().st_size < total:
        raise ConnectionError(f"the connection closed after {part.stat().st_size:,} of {total:,} bytes")


@contextmanager
def _only_one_process(lock: Path) -> Iterator[None]:
    """Let one process at a time into the block, by a file lock; without a lock on Windows."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
