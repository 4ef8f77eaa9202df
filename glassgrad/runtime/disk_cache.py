"""Store bytes between processes. In: hex SHA-256 keys and bytes. Out: the same bytes, or None.

Does not know kernels. A failure costs only time: if a folder is missing, read-only or full, if an entry is truncated or
damaged, or if another process is changing the folder, `get` finds nothing. An entry is one file: a magic number, the
SHA-256 of its name and value, and the value.

Entries are executed as machine code, so only the user's own files are read: no folder or entry that another user owns
or may write to. Folders and entries are created private, and an entry's file name depends on the user who wrote it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any

from glassgrad.base.fork_locks import held_at_fork
from glassgrad.base.settings import settings

_MARK = b"glassgrad cache 2\n"
_NEW = ".new-"              # prefix of temporary files
_HEAD = len(_MARK) + 32
_TOUCH_SECONDS = 3600.0     # an entry's access time is updated at most this often
_LITTER_SECONDS = 3600.0    # temporary files older than this were left by a process that died
_EVICT_EVERY = 256          # entries written between two checks of the folder's size
_FOLDERS = 256              # number of folders that entries are spread over
_PART = 16                  # a check of the size looks into every 16th of them first


def sha256(data: bytes = b"") -> Any:
    """hashlib.sha256, imported on first use because it loads OpenSSL."""
    import hashlib
    return hashlib.sha256(data)


def name_of(*parts: str) -> str:
    """Return the key of an entry: a digest of all that it depends on."""
    return str(sha256("\n\n".join(parts).encode()).hexdigest())


def default_folder() -> str:
    """Return the folder of the cache: CACHE_DIR, or where this system keeps caches; "" if there is none."""
    return str(settings.CACHE_DIR) or user_cache_folder()


def user_cache_folder() -> str:
    """Return the folder for glassgrad where this system keeps a user's caches; "" if there is none."""
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
    print(f"glassgrad: {text}", file=sys.stderr)  # printed once per text, by the lru_cache


def _user() -> int:
    return os.geteuid() if hasattr(os, "geteuid") else 0       # on Windows, user folders are private already


def _own(about: os.stat_result) -> bool:
    """Return whether this user owns a file or folder and no other user may write to it."""
    return not hasattr(os, "geteuid") or about.st_uid == os.geteuid() and not about.st_mode & 0o022


def _whose(about: os.stat_result) -> str:
    return "others may write to it; chmod go-w makes it private" if about.st_uid == _user() else \
        f"it belongs to another user (number {about.st_uid}); CACHE_DIR=path names another folder"


def _open_entry(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)


def _digest(path: str, value: bytes) -> bytes:
    """Return a digest of an entry's name and value, so that a renamed file is not read."""
    return sha256(path[-65:].encode() + value).digest()


def disk_bytes(about: os.stat_result) -> int:
    """Return the bytes that a file occupies on disk, in whole blocks.

    >>> disk_bytes(os.stat(__file__)) >= os.path.getsize(__file__)
    True
    """
    return max(about.st_size, 512 * getattr(about, "st_blocks", 0))


class DiskCache:
    """A folder of entries. Above CACHE_MB the least recently used ones are removed.

    >>> import tempfile
    >>> cache = DiskCache(tempfile.mkdtemp())
    >>> cache.put("00" * 32, b"value")
    >>> cache.get("00" * 32), cache.get("11" * 32)
    (b'value', None)
    """

    def __init__(self, folder: str):
        self.folder = folder
        self._lock = held_at_fork(threading.Lock(), "cache")
        self._written = 0
        self._private: bool | None = None       # whether only this user can write to the folder; None: no folder yet

    def path(self, key: str) -> str:
        """Return the path of an entry, by its key and user; entries are spread over 256 folders."""
        name = sha256(f"{_user()} {key}".encode()).hexdigest()
        return os.path.join(self.folder, name[:2], name[2:])

    def get(self, key: str) -> bytes | None:
        """Return the value last stored under `key`, if it is there, whole, and the user's own."""
        return self._read(self.path(key)) if self.folder and self._is_private() else None

    def values(self) -> Iterator[bytes]:
        """Yield every value that is whole and the user's own."""
        entries = self._files(self._names(self.folder)) if self.folder and self._is_private() else []
        for path, _ in entries:
            value = None if os.path.basename(path).startswith(_NEW) else self._read(path)
            if value is not None:
                yield value

    def _read(self, path: str) -> bytes | None:
        try:
            with open(path, "rb", buffering=0, opener=_open_entry) as file:
                about = os.fstat(file.fileno())
                data = file.read(about.st_size + 1)
        except OSError:
            return None
        if not _own(about):
            _notice(f"an entry of the disk cache in {self.folder} is not read: {_whose(about)}")
            return None
        value = data[_HEAD:]
        if data[:len(_MARK)] != _MARK or data[len(_MARK):_HEAD] != _digest(path, value):
            self._remove(path)
            return None
        if time.time() - about.st_mtime > _TOUCH_SECONDS:
            with suppress(OSError):  # eviction only sees an older access time
                os.utime(path)
        return value

    def _is_private(self) -> bool:
        """Return whether only this user can write to the folder; checked once, with a notice if not."""
        if self._private is None:
            try:
                about = os.stat(self.folder)
            except OSError:
                return True                     # it does not exist yet
            self._private = _own(about)
        if not self._private:
            _notice(f"the disk cache in {self.folder} is not used: {_whose(os.stat(self.folder))}")
        return self._private

    def put(self, key: str, value: bytes) -> None:
        """Store `value` under `key`; other processes see all of it or nothing."""
        if not self.folder:
            if settings.CACHE:
                self._say("no folder for the disk cache; set CACHE_DIR to have one")
            return
        if not self._is_private():
            return
        with self._lock:
            self._written += 1
            number = self._written
        path = self.path(key)
        home = os.path.dirname(path)
        temporary = os.path.join(home, f"{_NEW}{os.getpid()}-{id(self):x}-{number}")  # no two writers share it
        try:
            if not os.path.isdir(home):
                os.makedirs(os.path.dirname(self.folder) or ".", exist_ok=True)
                for folder in (self.folder, home):
                    os.makedirs(folder, mode=0o700, exist_ok=True)
            with open(temporary, "xb", opener=_open_entry) as file:
                file.write(_MARK + _digest(path, value))
                file.write(value)
            os.replace(temporary, path)
        except OSError as wrong:
            self._remove(temporary)
            self._say(f"the disk cache in {self.folder} cannot be written: {wrong.strerror or wrong}")
            return
        if number % _EVICT_EVERY == 1 and self._seems_too_large():  # the first, too: most processes write only a few
            self.evict()

    def _seems_too_large(self) -> bool:
        """Estimate from every 16th folder whether all entries take more than CACHE_MB; looking at all entries of a
        large cache takes seconds. If some of the 256 folders are missing there are few entries, and all of them are
        examined."""
        folders = sorted(self._names(self.folder))
        taken = sum([disk_bytes(about) for _, about in self._files(folders[::_PART])])
        return len(folders) < _FOLDERS or _PART * taken > settings.CACHE_MB << 20

    def evict(self, limit: int | None = None) -> None:
        """Remove the least recently used entries until the rest takes at most `limit` bytes of disk, or CACHE_MB."""
        limit = settings.CACHE_MB << 20 if limit is None else limit
        entries, total, now = [], 0, time.time()
        for path, about in self._files(self._names(self.folder)):
            if os.path.basename(path).startswith(_NEW):
                if now - about.st_mtime > _LITTER_SECONDS:
                    self._remove(path)
                continue
            entries.append((about.st_mtime, disk_bytes(about), path))
            total += disk_bytes(about)
        if total <= limit:
            return
        entries.sort()
        for _, size, path in entries:  # down to seven eighths, so that the next write need not evict again
            if total <= limit - limit // 8:
                return
            self._remove(path)
            total -= size

    def clear(self) -> None:
        """Remove every entry."""
        self.evict(-1)

    def _files(self, folders: list[str]) -> list[tuple[str, os.stat_result]]:
        found = []
        for folder in folders:
            if len(os.path.basename(folder)) == 2:
                for path in self._names(folder):
                    with suppress(OSError):  # another process removed it
                        found.append((path, os.stat(path)))
        return found

    @staticmethod
    def _names(folder: str) -> list[str]:
        with suppress(OSError):
            return [os.path.join(folder, name) for name in os.listdir(folder)]
        return []

    @staticmethod
    def _remove(path: str) -> None:
        with suppress(OSError):  # gone already, or not ours to remove
            os.unlink(path)

    @staticmethod
    def _say(text: str) -> None:
        if settings.DEBUG >= 1:
            _notice(text)


@lru_cache(maxsize=8)
def cache_in(folder: str) -> DiskCache:
    """Return the cache in a folder; for "", one that stores nothing."""
    return DiskCache(folder)


def default_cache() -> DiskCache:
    """Return the cache in `default_folder()`; with CACHE=0, one that stores nothing."""
    return cache_in(default_folder() if settings.CACHE else "")
