"""Keep bytes between processes. In: hex SHA-256 keys and bytes. Out: the same bytes, or None.

Knows nothing of kernels. A cache may fail at any time, and then nothing is lost but time: a folder that is
missing, read-only or full, an entry that is cut short or damaged, another process at work on the same folder,
each only means that `get` finds nothing. An entry is one file: a mark, the SHA-256 of the value, the value.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from functools import lru_cache

from glassgrad.base.settings import settings

_MARK = b"glassgrad cache 1\n"
_NEW = ".new-"              # begins the names of files that are being written
_HEAD = len(_MARK) + 32
_TOUCH_SECONDS = 3600.0     # an entry's time of use is written at most this often
_LITTER_SECONDS = 3600.0    # temporary files older than this were left by a process that died
_EVICT_EVERY = 256          # entries written between two looks at the folder's size


def default_folder() -> str:
    """The folder of the cache: CACHE_DIR, or where this system keeps caches; "" when there is none."""
    if settings.CACHE_DIR:
        return str(settings.CACHE_DIR)
    home = os.path.expanduser("~")
    known = home != "~" and os.path.isabs(home)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or (os.path.join(home, "AppData", "Local") if known else "")
    elif sys.platform == "darwin":
        base = os.path.join(home, "Library", "Caches") if known else ""
    else:
        base = os.environ.get("XDG_CACHE_HOME") or (os.path.join(home, ".cache") if known else "")
    return os.path.join(base, "glassgrad") if base else ""


@lru_cache(maxsize=64)
def _notice(text: str) -> None:
    print(f"glassgrad: {text}", file=sys.stderr)  # the cache of arguments makes it once per text


class DiskCache:
    """A folder of entries, least recently used removed first above CACHE_MB.

    >>> import tempfile
    >>> cache = DiskCache(tempfile.mkdtemp())
    >>> cache.put("00" * 32, b"value")
    >>> cache.get("00" * 32), cache.get("11" * 32)
    (b'value', None)
    """

    def __init__(self, folder: str):
        self.folder = folder
        self._lock = threading.Lock()
        self._written = 0

    def path(self, key: str) -> str:
        """The file of an entry; 256 folders keep each of them small."""
        return os.path.join(self.folder, key[:2], key[2:])

    def get(self, key: str) -> bytes | None:
        """The value last put under `key`, if it is there and whole."""
        if not self.folder:
            return None
        path = self.path(key)
        try:
            with open(path, "rb", buffering=0) as file:
                about = os.fstat(file.fileno())
                data = file.read(about.st_size + 1)
        except OSError:
            return None
        value = data[_HEAD:]
        if data[:len(_MARK)] != _MARK or data[len(_MARK):_HEAD] != hashlib.sha256(value).digest():
            self._remove(path)
            return None
        if time.time() - about.st_mtime > _TOUCH_SECONDS:
            try:
                os.utime(path)
            except OSError:
                pass  # eviction will be a little less well informed
        return value

    def put(self, key: str, value: bytes) -> None:
        """Keeps `value` under `key`; other processes see all of it or nothing."""
        if not self.folder:
            if settings.CACHE:
                self._say("no folder for the disk cache; set CACHE_DIR to have one")
            return
        with self._lock:
            self._written += 1
            number = self._written
        path = self.path(key)
        home = os.path.dirname(path)
        temporary = os.path.join(home, f"{_NEW}{os.getpid()}-{id(self):x}-{number}")  # no two writers share it
        try:
            os.makedirs(home, exist_ok=True)
            with open(temporary, "xb") as file:
                file.write(_MARK + hashlib.sha256(value).digest())
                file.write(value)
            os.replace(temporary, path)
        except OSError as wrong:
            self._remove(temporary)
            self._say(f"the disk cache in {self.folder} cannot be written: {wrong.strerror or wrong}")
            return
        if number % _EVICT_EVERY == 1:  # the first, too: most processes write only a few
            self.evict()

    def evict(self, limit: int | None = None) -> None:
        """Removes the least recently used entries until the rest fits in `limit` bytes, or in CACHE_MB."""
        limit = settings.CACHE_MB << 20 if limit is None else limit
        entries, total, now = [], 0, time.time()
        for path, about in self._files():
            if os.path.basename(path).startswith(_NEW):
                if now - about.st_mtime > _LITTER_SECONDS:
                    self._remove(path)
                continue
            entries.append((about.st_mtime, about.st_size, path))
            total += about.st_size
        if total <= limit:
            return
        entries.sort()
        for _, size, path in entries:  # down to seven eighths, so that the next write need not evict again
            if total <= limit - limit // 8:
                return
            self._remove(path)
            total -= size

    def clear(self) -> None:
        """Removes every entry."""
        self.evict(-1)

    def _files(self) -> list[tuple[str, os.stat_result]]:
        found = []
        for folder in self._names(self.folder):
            if len(os.path.basename(folder)) == 2:
                for path in self._names(folder):
                    try:
                        found.append((path, os.stat(path)))
                    except OSError:
                        continue  # another process removed it
        return found

    @staticmethod
    def _names(folder: str) -> list[str]:
        try:
            return [os.path.join(folder, name) for name in os.listdir(folder)]
        except OSError:
            return []

    @staticmethod
    def _remove(path: str) -> None:
        try:
            os.unlink(path)
        except OSError:
            pass  # gone already, or not ours to remove

    @staticmethod
    def _say(text: str) -> None:
        if settings.DEBUG >= 1:
            _notice(text)


@lru_cache(maxsize=8)
def _at(folder: str) -> DiskCache:
    return DiskCache(folder)


def default_cache() -> DiskCache:
    """The cache in `default_folder()`; with CACHE=0 one that keeps nothing."""
    return _at(default_folder() if settings.CACHE else "")
