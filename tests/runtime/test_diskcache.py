"""The disk cache. References: a dict, and every way in which disks and other processes misbehave."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from scripts import run_script

from glassgrad.base.settings import Context
from glassgrad.runtime import disk_cache as diskcache
from glassgrad.runtime.disk_cache import DiskCache, default_cache, default_folder

ROOT = Path(__file__).resolve().parents[2]


def key(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(str(tmp_path / "cache"))


def files(cache: DiskCache) -> list[Path]:
    return sorted(path for path in Path(cache.folder).rglob("*") if path.is_file())


def test_values_come_back(cache: DiskCache) -> None:
    values = {key(i): value for i, value in enumerate([b"", b"\0", b"x" * 100_000, os.urandom(3_000_000), b"\n" * 7])}
    assert [cache.get(name) for name in values] == [None] * 5
    for name, value in values.items():
        cache.put(name, value)
    assert {name: cache.get(name) for name in values} == values
    cache.put(key(0), b"new")
    assert cache.get(key(0)) == b"new" and DiskCache(cache.folder).get(key(0)) == b"new"
    assert len(files(cache)) == 5
    cache.clear()
    assert files(cache) == [] and cache.get(key(0)) is None


def test_damaged_entries_are_ignored_and_removed(cache: DiskCache) -> None:
    cache.put(key(1), b"some machine code")
    (path,) = files(cache)
    whole = path.read_bytes()
    damages = [whole[:length] for length in range(len(whole))] + [whole + b"!"] + [
        whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:] for at in range(len(whole))]
    for damaged in damages:
        path.write_bytes(damaged)
        assert cache.get(key(1)) is None
        assert not path.exists()
    cache.put(key(1), b"some machine code")
    assert cache.get(key(1)) == b"some machine code"


@pytest.mark.parametrize("wrong", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("where", ["makedirs", "open", "write", "replace"])
def test_failing_disks_only_cost_the_entry(wrong: int, where: str, cache: DiskCache, monkeypatch: pytest.MonkeyPatch,
                                           capsys: pytest.CaptureFixture[str]) -> None:
    cache.put(key(0), b"before")
    diskcache._notice.cache_clear()

    def fail(*_: object, **__: object) -> None:
        raise OSError(wrong, os.strerror(wrong))

    class Full:
        """A file that takes its first bytes, then no more: a full disk."""

        def __init__(self, path: str, mode: str, opener: object):
            self.file = open(path, mode)

        def write(self, data: bytes) -> None:
            self.file.write(data[:5])
            self.file.flush()
            fail()

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

    with monkeypatch.context() as patch, Context(DEBUG=1):
        if where == "open":
            patch.setattr(diskcache, "open", fail, raising=False)
        elif where == "write":
            patch.setattr(diskcache, "open", Full, raising=False)
        else:
            patch.setattr(os, where, fail)
        cache.put(key(1), b"lost")
        cache.put(key(2), b"lost")
    assert capsys.readouterr().err == \
        f"glassgrad: the disk cache in {cache.folder} cannot be written: {os.strerror(wrong)}\n"
    assert cache.get(key(1)) is None and cache.get(key(0)) == b"before"
    assert len(files(cache)) == 1, "an unfinished file was left behind"
    cache.put(key(1), b"fixed")
    assert cache.get(key(1)) == b"fixed"


def test_silent_without_debug(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    diskcache._notice.cache_clear()
    (tmp_path / "file").write_text("in the way")
    blocked = DiskCache(str(tmp_path / "file" / "cache"))
    nowhere = DiskCache("")
    for cache in (blocked, nowhere):
        cache.put(key(0), b"lost")
        assert cache.get(key(0)) is None
        cache.evict()
    assert capsys.readouterr().err == ""
    with Context(DEBUG=1):
        nowhere.put(key(0), b"lost")
    assert capsys.readouterr().err == "glassgrad: no folder for the disk cache; set CACHE_DIR to have one\n"


# -- only the user's own files are read: what is read is run as machine code -----------------------------------------
needs_owners = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no owners and modes of files here")


def noticed(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err


@needs_owners
@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_folders_and_entries_are_made_private(cache: DiskCache, umask: int) -> None:
    before = os.umask(umask)
    try:
        cache.put(key(0), b"value")
    finally:
        os.umask(before)
    path = Path(cache.path(key(0)))
    modes = [oct(p.stat().st_mode & 0o777) for p in (Path(cache.folder), path.parent, path)]
    assert modes == ["0o700", "0o700", "0o600"]
    assert cache.get(key(0)) == b"value"


@needs_owners
@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_folder_that_others_may_write_to_is_not_used(cache: DiskCache, mode: int,
                                                       capsys: pytest.CaptureFixture[str]) -> None:
    cache.put(key(0), b"value")
    os.chmod(cache.folder, mode)
    diskcache._notice.cache_clear()
    other = DiskCache(cache.folder)
    for _ in range(2):
        assert other.get(key(0)) is None
        other.put(key(1), b"new")
    assert noticed(capsys) == (f"glassgrad: the disk cache in {cache.folder} is not used: others may write to it; "
                               "chmod go-w makes it private\n"), "one notice"
    assert len(files(cache)) == 1
    os.chmod(cache.folder, 0o700)
    assert DiskCache(cache.folder).get(key(0)) == b"value"


@needs_owners
def test_a_folder_or_entry_of_another_user_is_not_read(cache: DiskCache, capsys: pytest.CaptureFixture[str],
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put(key(0), b"value")
    about, whose = os.stat, os.fstat

    def owned(by: int, real: Callable[..., os.stat_result], *where: object) -> os.stat_result:
        found = list(real(*where))
        found[4] = by
        return os.stat_result(found)

    diskcache._notice.cache_clear()
    monkeypatch.setattr(os, "stat", lambda path, **_: owned(4321, about, path))
    assert DiskCache(cache.folder).get(key(0)) is None
    monkeypatch.undo()
    monkeypatch.setattr(os, "fstat", lambda file: owned(4321, whose, file))
    assert DiskCache(cache.folder).get(key(0)) is None
    monkeypatch.undo()
    assert noticed(capsys).splitlines() == [
        f"glassgrad: the disk cache in {cache.folder} is not used: it belongs to another user (number 4321); "
        "CACHE_DIR=path names another folder",
        f"glassgrad: an entry of the disk cache in {cache.folder} is not read: it belongs to another user "
        "(number 4321); CACHE_DIR=path names another folder"]
    assert cache.get(key(0)) == b"value"


@needs_owners
@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() != 0, reason="only root gives files away")
def test_what_really_belongs_to_another_user_is_not_read(cache: DiskCache) -> None:
    cache.put(key(0), b"value")
    os.chown(cache.path(key(0)), 4321, 4321)
    assert DiskCache(cache.folder).get(key(0)) is None
    os.chown(cache.path(key(0)), 0, 0)
    assert DiskCache(cache.folder).get(key(0)) == b"value"
    os.chown(cache.folder, 4321, 4321)
    assert DiskCache(cache.folder).get(key(0)) is None


@needs_owners
def test_entries_that_others_may_write_to_links_and_moved_entries_are_not_read(cache: DiskCache) -> None:
    cache.put(key(0), b"value")
    cache.put(key(1), b"another")
    first, second = Path(cache.path(key(0))), Path(cache.path(key(1)))
    first.chmod(0o620)
    assert cache.get(key(0)) is None
    cache.put(key(0), b"value")
    assert cache.get(key(0)) == b"value", "it is written anew, private"
    whole = second.read_bytes()
    second.unlink()
    second.symlink_to(first)
    assert cache.get(key(1)) is None
    second.unlink()
    first.write_bytes(whole)                   # the entry of one key under the name of another
    assert cache.get(key(0)) is None


@needs_owners
def test_the_name_of_an_entry_covers_who_wrote_it(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = cache.path(key(0))
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    assert cache.path(key(0)) != mine


def test_the_size_of_the_cache_is_counted_in_blocks(cache: DiskCache) -> None:
    """A file of one byte takes a whole block of the disk."""
    for number in range(40):
        cache.put(key(number), b"x")
    each = os.stat(cache.path(key(0))).st_blocks * 512 if hasattr(os.stat_result, "st_blocks") else 0
    if each < 4096:
        pytest.skip("this file system keeps small files elsewhere")
    cache.evict(20 * each)
    assert 0 < len(files(cache)) <= 20


def test_least_recently_used_go_first(cache: DiskCache) -> None:
    for number in range(10):
        cache.put(key(number), bytes(100_000))
        os.utime(cache.path(key(number)), (1e9 + number, 1e9 + number))
    assert cache.get(key(0)) is not None  # now the latest used
    cache.evict(500_000)
    kept = {number for number in range(10) if cache.get(key(number)) is not None}
    assert kept == {0, 7, 8, 9}, "four of 100 kB fit in seven eighths of 500 kB"


def test_eviction_happens_by_itself(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diskcache, "_EVICT_EVERY", 10)
    with Context(CACHE_MB=1):
        for number in range(200):
            cache.put(key(number), bytes(50_000))
        assert sum(path.stat().st_size for path in files(cache)) <= (1 << 20) + 10 * 51_000
        assert cache.get(key(199)) is not None and cache.get(key(0)) is None


def test_a_large_cache_is_looked_at_in_part(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process that writes looks at a sixteenth of the entries; at all of them only if these are too many."""
    for number in range(3000):
        cache.put(key(number), bytes(1000))
    looked_at: list[int] = []
    all_files = DiskCache._files

    def counted(self: DiskCache, folders: list[str]) -> list[tuple[str, os.stat_result]]:
        found = all_files(self, folders)
        looked_at.append(len(found))
        return found
    monkeypatch.setattr(DiskCache, "_files", counted)
    DiskCache(cache.folder).put(key(3000), b"value")
    assert len(looked_at) == 1 and 90 < looked_at.pop() < 375
    with Context(CACHE_MB=1):
        DiskCache(cache.folder).put(key(3001), b"value")
    assert len(looked_at) == 2 and looked_at[1] > 3000
    assert sum(diskcache.disk_bytes(path.stat()) for path in files(cache)) <= 1 << 20


def test_litter_of_dead_processes_is_removed(cache: DiskCache) -> None:
    cache.put(key(0), b"value")
    folder = Path(cache.path(key(0))).parent
    old, young = folder / ".new-1-1-1", folder / ".new-2-2-2"
    for path in (old, young):
        path.write_bytes(b"unfinished")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    cache.evict()
    assert not old.exists() and young.exists() and cache.get(key(0)) == b"value"


def test_several_processes_share_a_folder(tmp_path: Path) -> None:
    """Every process writes, reads, damages and evicts at once; nobody ever sees a wrong value."""
    script = f"""
import hashlib, os, random, sys
from glassgrad.runtime.disk_cache import DiskCache
cache, chance = DiskCache({str(tmp_path)!r}), random.Random(int(sys.argv[1]))
hits = 0
for step in range(1500):
    number = chance.randrange(40)
    key = hashlib.sha256(str(number).encode()).hexdigest()
    value = bytes([number]) * (number * 500 + 1)
    if chance.random() < 0.3:
        cache.put(key, value)
    elif chance.random() < 0.05:
        try:
            os.truncate(cache.path(key), chance.randrange(60))
        except OSError:
            pass
    elif chance.random() < 0.02:
        cache.evict(100_000)
    else:
        found = cache.get(key)
        assert found is None or found == value, number
        hits += found is not None
assert hits > 100, hits
print("fine")
"""
    started = [subprocess.Popen([sys.executable, "-c", script, str(number)], cwd=ROOT, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True) for number in range(4)]
    for process in started:
        out, wrong = process.communicate(timeout=60)
        assert (out, process.returncode) == ("fine\n", 0), wrong
    assert not [path for path in tmp_path.rglob(".new-*")]


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="Linux's folders")
def test_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_folder() == "/somewhere/glassgrad"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == str(tmp_path / ".cache" / "glassgrad")
    with Context(CACHE_DIR=str(tmp_path / "mine")):
        assert default_folder() == str(tmp_path / "mine")
        default_cache().put(key(0), b"value")
        assert default_cache().get(key(0)) == b"value"
        with Context(CACHE=0):
            assert default_cache().get(key(0)) is None
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert default_folder() == ""


def test_get_is_quick(cache: DiskCache) -> None:
    cache.put(key(0), os.urandom(8000))
    taken = []
    for _ in range(500):
        start = time.perf_counter()
        cache.get(key(0))
        taken.append(time.perf_counter() - start)
    assert min(taken) < 2e-3, "one open and one read should take some 30 us"


def test_a_process_whose_source_is_changed_meanwhile_shares_no_entries(tmp_path: Path) -> None:
    """It has the old source loaded, and found the new one when it first named an entry: kernels and worker pools of two
    versions were taken for each other, and called with memory laid out for the other one."""
    package = tmp_path / "glassgrad"
    shutil.copytree(ROOT / "glassgrad", package, ignore=shutil.ignore_patterns("__pycache__"))
    changed = str(package / "runtime" / "cpu" / "worker_pool_source.py")
    named = "import glassgrad.runtime.kernel_key as keys\n{}print(keys.source_digest(), keys.source_digest())"
    change = f"with open({changed!r}, 'a') as file: file.write('# another version')\n"
    old, first, second = (run_script(named.format(line), PYTHONPATH=str(tmp_path))[0] for line in (change, "", ""))
    assert first == second != old and len({*old.split()}) == len({*first.split()}) == 1
