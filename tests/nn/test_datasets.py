"""Data sets: parsers against malformed files, the order of search, and downloads from a server on this machine."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from glassgrad.base.errors import FormatError
from glassgrad.nn import datasets
from glassgrad.nn.datasets import download as download_room, files as datafiles
from glassgrad.nn.datasets.download import DownloadError, download
from glassgrad.nn.datasets.files import DataFile, DataMissingError, DataSet
from glassgrad.nn.datasets.image_formats import parse_cifar, parse_idx, parse_labelled_images, unpack


def idx(array: np.ndarray, kind: int = 8) -> bytes:
    return bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) \
        + array.astype(array.dtype.newbyteorder(">")).tobytes()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def lines(error: pytest.ExceptionInfo) -> str:
    """The message without the line that says where it was raised."""
    return "\n".join(line for line in str(error.value).splitlines() if not line.startswith("  at:"))


IMAGES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
LABELS = np.array([7, 1], dtype=np.uint8)


# ---- parsers


@pytest.mark.parametrize("dtype, kind", [("u1", 8), ("i1", 9), ("i2", 11), ("i4", 12), ("f4", 13), ("f8", 14)])
@pytest.mark.parametrize("shape", [(3,), (2, 3, 4), (0,), (1, 1), (2, 0, 5)])
def test_idx_round_trip(dtype, kind, shape, rng):
    array = (rng.normal(size=shape) * 50).astype(dtype)
    parsed = parse_idx(idx(array, kind), "a file")
    assert parsed.dtype == array.dtype and np.array_equal(parsed, array)


@pytest.mark.parametrize("data, given, expected", [
    (b"", "a truncated header: 0 bytes", "at least 4 bytes of magic number"),
    (b"\0\0\x08", "a truncated header: 3 bytes", "at least 4 bytes of magic number"),
    (b"\0\0\x08\x03\0\0\0\x02", "a truncated header: 8 bytes", "16 bytes for 3 axes"),
    (b"\x89PNG", "the magic number 0x89504e47",
     "0x0000TTRR, with element type TT one of 08, 09, 0b, 0c, 0d, 0e and RR axes"),
    (b"\0\0\x07\x01\0\0\0\0", "the magic number 0x00000701",
     "0x0000TTRR, with element type TT one of 08, 09, 0b, 0c, 0d, 0e and RR axes"),
    (idx(IMAGES)[:-1], "23 bytes after the header", "24 bytes for shape (2, 3, 4)"),
    (idx(IMAGES) + b"x", "25 bytes after the header", "24 bytes for shape (2, 3, 4)"),
    (b"\0\0\x08\x02" + b"\xff" * 8, "0 bytes after the header",
     "18,446,744,065,119,617,025 bytes for shape (4294967295, 4294967295)"),
])
def test_malformed_idx_is_refused(data, given, expected):
    with pytest.raises(FormatError) as error:
        parse_idx(data, "digits.idx")
    assert lines(error) == ("digits.idx is not a well-formed idx file\n"
                            f"  given:    {given}\n  expected: {expected}\n"
                            "  fix:      remove it, so that it is fetched again, or check what wrote it")


def test_images_and_labels_become_n_1_h_w():
    x, y = parse_labelled_images(idx(IMAGES), idx(LABELS), ("x", "y"))
    assert x.shape == (2, 1, 3, 4) and np.array_equal(x[:, 0], IMAGES) and np.array_equal(y, LABELS)


def test_count_mismatch_is_refused():
    with pytest.raises(FormatError) as error:
        parse_labelled_images(idx(IMAGES), idx(LABELS[:1]), ("x.idx", "y.idx"))
    assert lines(error) == ("images and labels are not equally many\n"
                            "  given:    2 images in x.idx, 1 labels in y.idx\n"
                            "  expected: one label for each image\n"
                            "  fix:      take both files from the same data set, training or test")


def test_swapped_files_are_refused():
    with pytest.raises(FormatError) as error:
        parse_labelled_images(idx(LABELS), idx(IMAGES), ("y.idx", "x.idx"))
    assert lines(error) == ("y.idx holds another kind of data\n  given:    uint8 of shape (2,)\n"
                            "  expected: uint8 with 3 axes\n"
                            "  fix:      check that images and labels are not swapped")


@pytest.mark.parametrize("damage", [lambda d: d[:-5], lambda d: d[:30] + bytes([d[30] ^ 0xFF]) + d[31:],
                                    lambda d: d[:2]])
def test_damaged_gzip_is_refused(damage):
    with pytest.raises(FormatError, match=r"a\.gz cannot be decompressed"):
        unpack(damage(gzip.compress(bytes(range(256)) * 4)), "a.gz")


def cifar_batch(labels: list[int]) -> bytes:
    return b"".join(bytes([label]) + bytes([label * 3] * 1024 + [label * 5] * 1024 + [label * 7] * 1024)
                    for label in labels)


def test_a_batch_of_cifar_is_labels_and_three_planes():
    x, y = parse_cifar(cifar_batch([3, 9]), "batch")
    assert x.shape == (2, 3, 32, 32) and list(y) == [3, 9]
    assert (x[1, 0] == 27).all() and (x[1, 1] == 45).all() and (x[1, 2] == 63).all()


@pytest.mark.parametrize("data, given", [(b"", "0 bytes"), (cifar_batch([1])[:-1], "3,072 bytes"),
                                         (cifar_batch([1, 10]), "a label of 10")])
def test_malformed_cifar_is_refused(data, given):
    with pytest.raises(FormatError) as error:
        parse_cifar(data, "data_batch_1.bin")
    assert error.value.what == "data_batch_1.bin is not a CIFAR-10 batch" and error.value.given == given


# ---- a server on this machine


class Server:
    """Files by path, and how to misbehave."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cut: dict[str, list[int]] = {}         # path -> after how many bytes to hang up, once each
        self.resumes = True
        self.requests: list[tuple[str, str | None]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                wanted = self.headers.get("Range")
                server.requests.append((self.path, wanted))
                data = server.files.get(self.path)
                if data is None:
                    return self.send_error(404)
                start = int(wanted[6:-1]) if wanted and server.resumes else 0
                if start and start >= len(data):
                    return self.send_error(416)
                self.send_response(206 if start else 200)
                if start:
                    self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
                self.send_header("Content-Length", str(len(data) - start))
                self.end_headers()
                cuts = server.cut.get(self.path)
                self.wfile.write(data[start:start + cuts.pop(0)] if cuts else data[start:])

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    one = Server()
    yield one
    one.http.shutdown()
    one.http.server_close()


@pytest.fixture
def refused() -> str:
    """An address where nobody listens."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as gone:
        return f"http://127.0.0.1:{gone.server_port}"


DATA = bytes(range(256)) * 300


def test_a_download_leaves_one_whole_file(server, tmp_path, capsys):
    server.files["/a"] = DATA
    target = download([server.address + "/a"], tmp_path / "deep" / "a", digest(DATA))
    assert target.read_bytes() == DATA and not list(target.parent.glob("*.part"))
    err = capsys.readouterr().err
    assert err == f"glassgrad: downloading {server.address}/a (0.1 MB)\n"      # no bar where there is no terminal


def test_a_broken_connection_is_resumed_where_it_stopped(server, tmp_path, capsys):
    server.files["/a"], server.cut["/a"] = DATA, [1000, 2000]
    assert download([server.address + "/a"], tmp_path / "a", digest(DATA)).read_bytes() == DATA
    assert server.requests == [("/a", None), ("/a", "bytes=1000-"), ("/a", "bytes=3000-")]
    assert "resuming" in capsys.readouterr().err


def test_a_part_left_by_an_earlier_run_is_resumed(server, tmp_path):
    server.files["/a"] = DATA
    (tmp_path / "a.part").write_bytes(DATA[:5000])
    assert download([server.address + "/a"], tmp_path / "a", digest(DATA)).read_bytes() == DATA
    assert server.requests == [("/a", "bytes=5000-")]


def test_a_whole_part_is_taken_as_it_is(server, tmp_path):
    server.files["/a"] = DATA
    (tmp_path / "a.part").write_bytes(DATA)
    assert download([server.address + "/a"], tmp_path / "a", digest(DATA)).read_bytes() == DATA


@pytest.mark.parametrize("wrong", [b"other" * 10, DATA + b"too long"])
def test_a_wrong_part_is_removed_and_fetched_from_the_beginning(server, tmp_path, capsys, wrong):
    server.files["/a"] = DATA
    (tmp_path / "a.part").write_bytes(wrong)
    assert download([server.address + "/a"], tmp_path / "a", digest(DATA)).read_bytes() == DATA
    assert server.requests[-1] == ("/a", None)
    assert f"a from {server.address}/a has the wrong checksum; removed" in capsys.readouterr().err


def test_a_server_that_cannot_resume_starts_over(server, tmp_path):
    server.files["/a"], server.resumes = DATA, False
    (tmp_path / "a.part").write_bytes(DATA[:5000])
    assert download([server.address + "/a"], tmp_path / "a", digest(DATA)).read_bytes() == DATA


def test_the_next_mirror_is_asked(server, refused, tmp_path):
    server.files["/wrong/a"], server.files["/right/a"] = b"hello", DATA
    mirrors = [refused + "/a", server.address + "/absent/a", server.address + "/wrong/a", server.address + "/right/a"]
    assert download(mirrors, tmp_path / "a", digest(DATA)).read_bytes() == DATA
    assert [path for path, _ in server.requests] == ["/absent/a", "/wrong/a", "/right/a"]


def test_when_no_mirror_helps_the_error_says_what_each_did(server, refused, tmp_path):
    server.files["/wrong/a"] = b"hello"
    with pytest.raises(DownloadError) as error:
        download([refused + "/a", server.address + "/absent/a", server.address + "/wrong/a"], tmp_path / "a",
                 digest(DATA))
    one, two, three = error.value.given.splitlines()
    assert one.startswith(refused) and "refused" in one
    assert two == f"{server.address}/absent/a: the server answered 404 Not Found"
    assert three == (f"{server.address}/wrong/a: 5 bytes with SHA-256 {digest(b'hello')[:12]}..., "
                     f"not {digest(DATA)[:12]}...")
    assert error.value.what == "a could not be downloaded"
    assert error.value.expected == f"a file with SHA-256 {digest(DATA)}"
    assert error.value.fix == f"check the network connection, or put the file there yourself: {tmp_path / 'a'}"
    assert isinstance(error.value, OSError) and not (tmp_path / "a").exists() and not (tmp_path / "a.part").exists()


def test_a_connection_that_keeps_breaking_ends_and_keeps_what_arrived(server, tmp_path):
    server.files["/a"], server.cut["/a"] = DATA, [100] * 10
    with pytest.raises(DownloadError, match="the connection closed after 300 of 76,800 bytes"):
        download([server.address + "/a"], tmp_path / "a", digest(DATA))
    assert (tmp_path / "a.part").read_bytes() == DATA[:300]


def test_a_silent_server_is_given_up(tmp_path, monkeypatch):
    import socket
    monkeypatch.setattr(download_room, "TIMEOUT", 0.2)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(DownloadError, match="timed out"):
            download([f"http://127.0.0.1:{silent.getsockname()[1]}/a"], tmp_path / "a", digest(DATA))


def test_two_at_once_fetch_once(server, tmp_path):
    server.files["/a"] = DATA
    threads = [threading.Thread(target=download, args=([server.address + "/a"], tmp_path / "a", digest(DATA)))
               for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "a").read_bytes() == DATA and len(server.requests) == 1


# ---- the order of search


@pytest.fixture
def small(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataSet:
    """A data set of two packed files on the server, an empty cache, and no folder beside the checkout."""
    contents = {"x.gz": b"images" * 50, "y.gz": b"labels" * 50}
    packed = {name: gzip.compress(data, mtime=1) for name, data in contents.items()}
    server.files.update({f"/{name}": data for name, data in packed.items()})
    monkeypatch.delenv("GLASSGRAD_DATA", raising=False)
    monkeypatch.setattr(datafiles, "cache_folder", lambda: tmp_path / "cache")
    folders = datafiles.data_folders
    monkeypatch.setattr(datafiles, "data_folders", lambda: (
        datafiles.DataFolder(tmp_path / "shared") if place.path.name == "data" and not place.ours else place
        for place in folders()))
    files = tuple(DataFile(name, len(packed[name]), digest(packed[name]), digest(contents[name]))
                  for name in contents)
    return DataSet("Small", "small", files, (server.address + "/",))


def put(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


WANTED = {"x.gz": b"images" * 50, "y.gz": b"labels" * 50}


def originals(server: Server) -> dict[str, bytes]:
    return {name: server.files["/" + name] for name in WANTED}


def test_nothing_there_downloads_into_the_cache_and_the_second_time_reads_it(small, server, tmp_path):
    assert datafiles.load(small) == WANTED
    assert len(server.requests) == 2 and (tmp_path / "cache" / "small" / "x.gz").exists()
    assert datafiles.load(small) == WANTED and len(server.requests) == 2


def test_the_users_folder_comes_first_then_the_cache_then_the_folder_beside(small, server, tmp_path, monkeypatch):
    own, beside = tmp_path / "own", tmp_path / "shared"
    put(beside / "small", originals(server))
    assert datafiles.load(small) == WANTED
    put(tmp_path / "cache" / "small", {name: b"damaged" for name in WANTED})
    put(own / "small", originals(server))
    monkeypatch.setenv("GLASSGRAD_DATA", str(own))
    assert datafiles.load(small) == WANTED
    assert (tmp_path / "cache" / "small" / "x.gz").exists()        # never looked at
    assert server.requests == []


def test_other_packings_of_the_same_data_are_as_good(small, tmp_path, server):
    put(tmp_path / "shared" / "small", {"x.gz": gzip.compress(WANTED["x.gz"], 1, mtime=99), "y": WANTED["y.gz"]})
    assert datafiles.load(small) == WANTED and server.requests == []


@pytest.mark.parametrize("damage, fault", [
    (lambda data: data[:10], "truncated: 10 of {size} bytes"),
    (lambda data: data[:-1] + b"?", "{size} bytes with SHA-256 {sha}"),
])
def test_a_damaged_file_of_our_cache_is_named_removed_and_fetched_again(small, server, tmp_path, capsys, damage, fault):
    good = originals(server)
    bad = damage(good["x.gz"])
    folder = put(tmp_path / "cache" / "small", {**good, "x.gz": bad})
    assert datafiles.load(small) == WANTED
    assert [path for path, _ in server.requests] == ["/x.gz"]      # the good file is not fetched again
    assert (folder / "x.gz").read_bytes() == good["x.gz"]
    fault = fault.format(size=len(good["x.gz"]), sha=digest(bad))
    assert f"glassgrad: {folder / 'x.gz'} is damaged and was removed: {fault}\n" in capsys.readouterr().err


def test_a_damaged_file_of_the_users_is_named_and_left_alone(small, server, tmp_path, monkeypatch, capsys):
    folder = put(tmp_path / "own" / "small", {**originals(server), "y.gz": b"mine"})
    monkeypatch.setenv("GLASSGRAD_DATA", str(tmp_path / "own"))
    assert datafiles.load(small) == WANTED
    assert (folder / "y.gz").read_bytes() == b"mine"
    assert f"{folder / 'y.gz'} is left alone and not used: truncated: 4 of" in capsys.readouterr().err


def test_a_users_folder_that_does_not_exist_is_mentioned(small, monkeypatch, capsys):
    monkeypatch.setenv("GLASSGRAD_DATA", "/no/such/folder")
    datafiles.load(small)
    assert "GLASSGRAD_DATA=/no/such/folder is not a folder; looking elsewhere" in capsys.readouterr().err


def test_without_network_and_data_the_error_says_where_it_looked(small, server, refused, tmp_path, monkeypatch):
    put(tmp_path / "shared" / "small", {"x.gz": originals(server)["x.gz"]})
    alone = DataSet(small.title, small.folder, small.files, (refused + "/",))
    with pytest.raises(DataMissingError) as error:
        datafiles.load(alone)
    assert error.value.what == "Small is not on this machine and could not be downloaded"
    cache, beside, mirror = error.value.given.splitlines()
    assert cache == f"{tmp_path / 'cache' / 'small'}: nothing there"
    assert beside == f"{tmp_path / 'shared' / 'small'}: no usable y.gz"
    assert mirror.startswith(f"{refused}/x.gz: ") and "refused" in mirror
    assert error.value.expected == "x.gz, y.gz"
    assert error.value.fix == ("connect to the network, or put these files into a folder small/ and set "
                                "GLASSGRAD_DATA to the folder that holds it")
    assert isinstance(error.value, FileNotFoundError)


def test_download_can_be_forbidden(small, server):
    with pytest.raises(DataMissingError, match="^Small is not on this machine\n"):
        datafiles.load(small, allow_download=False)
    assert server.requests == []


def test_an_archive_is_fetched_unpacked_and_removed(small, server, tmp_path):
    contents = {"data_batch_1.bin": cifar_batch([1]), "test_batch.bin": cifar_batch([2])}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, data in {**contents, "../escape.txt": b"no"}.items():
            member = tarfile.TarInfo("batches/" + name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    server.files["/all.tar.gz"] = packed.getvalue()
    dataset = DataSet("Batches", "batches", tuple(DataFile(n, len(d), digest(d)) for n, d in contents.items()),
                      small.mirrors, archive=DataFile("all.tar.gz", len(packed.getvalue()), digest(packed.getvalue())))
    assert datafiles.load(dataset) == contents
    left = sorted(str(p.relative_to(tmp_path / "cache")) for p in (tmp_path / "cache").rglob("*.*") if p.is_file())
    assert left == [".lock", "batches/data_batch_1.bin", "batches/test_batch.bin"]


def test_a_part_of_a_data_set_is_enough_in_a_folder_of_the_users(small, server, tmp_path, capsys):
    put(tmp_path / "shared" / "small", {"x.gz": originals(server)["x.gz"]})
    assert datafiles.load(small._replace(may_lack=("y.gz",))) == {"x.gz": WANTED["x.gz"]}
    assert "holds only a part of Small: going on without y.gz" in capsys.readouterr().err


@pytest.mark.parametrize("platform, variables, expected", [
    ("linux", {}, "/home/a/.cache/glassgrad/data"),
    ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/glassgrad/data"),
    ("darwin", {}, "/home/a/Library/Caches/glassgrad/data"),
])
def test_cache_folder_by_system(monkeypatch, platform, variables, expected):
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setenv("HOME", "/home/a")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert datafiles.cache_folder() == Path(expected)


# ---- the real files


def test_the_real_mnist_has_the_known_labels(mnist_folder, monkeypatch):
    monkeypatch.setenv("GLASSGRAD_DATA", str(mnist_folder.parent))
    x_train, y_train, x_test, y_test = datafiles.mnist_arrays(allow_download=False)
    assert x_train.shape == (60000, 1, 28, 28) and x_test.shape == (10000, 1, 28, 28)
    assert x_train.dtype == y_train.dtype == np.uint8
    assert list(y_train[:5]) == [5, 0, 4, 1, 9] and list(y_test[:5]) == [7, 2, 1, 0, 4]
    assert np.bincount(y_test).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_the_real_cifar_has_the_known_labels(cifar_folder, monkeypatch):
    monkeypatch.setenv("GLASSGRAD_DATA", str(cifar_folder.parent))
    x_train, y_train, x_test, y_test = datafiles.cifar_arrays(allow_download=False)
    assert x_train.shape[1:] == x_test.shape[1:] == (3, 32, 32) and len(x_train) == len(y_train) >= 10000
    assert list(y_train[:5]) == [6, 9, 9, 4, 1] and list(y_test[:5]) == [3, 8, 8, 0, 6]
    assert np.bincount(y_test).tolist() == [1000] * 10


def test_the_digits_that_ship_with_the_package():
    x_train, y_train, x_test, y_test = datafiles.digits_arrays()
    assert x_train.shape == (1497, 1, 8, 8) and x_test.shape == (300, 1, 8, 8)
    assert np.bincount(np.concatenate([y_train, y_test])).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert x_test[0, 0, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0] and y_test[0] == 0


def test_every_catalogued_checksum_is_a_checksum():
    for dataset in (datafiles.MNIST, datafiles.FASHION_MNIST, datafiles.CIFAR_10):
        for file in dataset.files + ((dataset.archive,) if dataset.archive else ()):
            assert file.size > 0 and all(len(s) in (0, 64) for s in (file.sha256, file.content))
        assert all(mirror.endswith("/") for mirror in dataset.mirrors)


def test_data_sets_are_tensors():
    for tensor, array in zip(datasets.digits(), datafiles.digits_arrays(), strict=True):
        assert tensor.shape == array.shape and tensor.numpy().dtype == np.uint8
        assert np.array_equal(tensor.numpy(), array)
