"""Find, fetch and check the files of the data sets. In: a data set's name. Out: NumPy arrays, no tensors.

A data set is searched, in this order, in

    $GLASSGRAD_DATA                 your own folder, with mnist/, fashion-mnist/, cifar-10-batches-bin/ in it
    the user's cache folder         where downloads go: ~/.cache/glassgrad/data on Linux
    ../shared/data                  next to a checkout of glassgrad

and is otherwise downloaded. Every file is checked against a known SHA-256. A damaged file in our cache is reported,
removed and downloaded again; one in a folder of yours is reported and left as it is, and the search goes on.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from glassgrad.base.errors import FormatError, GlassgradError
from glassgrad.nn.datasets.download import DownloadError, download, notice
from glassgrad.nn.datasets.image_formats import parse_cifar, parse_labelled_images, unpack
from glassgrad.runtime.disk_cache import user_cache_folder

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]      # x_train, y_train, x_test, y_test


class DataMissingError(GlassgradError, FileNotFoundError):
    """A data set that is not on this machine and cannot be downloaded."""


class DataFile(NamedTuple):
    """One file: `sha256` is the digest of the published file, `content` that of its unpacked content (so that data
    compressed by another gzip, or not at all, is accepted). If `sha256` is empty, only size and format are checked."""
    name: str
    size: int
    sha256: str
    content: str = ""


class DataSet(NamedTuple):
    """The files of a data set, the name of its folder, and its mirrors."""
    title: str
    folder: str
    files: tuple[DataFile, ...]
    mirrors: tuple[str, ...]
    archive: DataFile | None = None     # if the mirrors have one archive instead of the files
    may_lack: tuple[str, ...] = ()      # files that a folder of the user's need not have


MNIST = DataSet("MNIST", "mnist", (
    DataFile("train-images-idx3-ubyte.gz", 9912422,
             "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
             "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
    DataFile("train-labels-idx1-ubyte.gz", 28881,
             "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
             "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    DataFile("t10k-images-idx3-ubyte.gz", 1648877,
             "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
             "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
    DataFile("t10k-labels-idx1-ubyte.gz", 4542,
             "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
             "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
), ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"))

FASHION_MNIST = DataSet("Fashion-MNIST", "fashion-mnist", (
    DataFile("train-images-idx3-ubyte.gz", 26421880,
             "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
             "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
    DataFile("train-labels-idx1-ubyte.gz", 29515,
             "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
             "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
    DataFile("t10k-images-idx3-ubyte.gz", 4422102,
             "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
             "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
    DataFile("t10k-labels-idx1-ubyte.gz", 5148,
             "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
             "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
), ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/"))

CIFAR_10 = DataSet("CIFAR-10", "cifar-10-batches-bin", (
    DataFile("data_batch_1.bin", 30730000, "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
    DataFile("data_batch_2.bin", 30730000, "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
    *(DataFile(f"data_batch_{number}.bin", 30730000, "") for number in (3, 4, 5)),
    DataFile("test_batch.bin", 30730000, "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
), ("https://www.cs.toronto.edu/~kriz/",),
    archive=DataFile("cifar-10-binary.tar.gz", 170052171,
                     "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),
    may_lack=("data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"))


def mnist_arrays(allow_download: bool = True) -> Arrays:
    """MNIST's handwritten digits: uint8 images (60000, 1, 28, 28) and (10000, 1, 28, 28), uint8 labels."""
    return _idx_arrays(MNIST, allow_download)


def fashion_mnist_arrays(allow_download: bool = True) -> Arrays:
    """Zalando's drop-in for MNIST, with ten kinds of clothing: the same shapes and types."""
    return _idx_arrays(FASHION_MNIST, allow_download)


def cifar_arrays(allow_download: bool = True) -> Arrays:
    """CIFAR-10's small photographs: uint8 images (50000, 3, 32, 32) and (10000, 3, 32, 32), uint8 labels."""
    contents = load(CIFAR_10, allow_download)
    train = [parse_cifar(data, name) for name, data in sorted(contents.items()) if name.startswith("data_batch")]
    images, labels = (np.concatenate(parts) for parts in zip(*train, strict=True))
    if len(images) < 50_000:
        notice(f"training with {len(images):,} of CIFAR-10's 50,000 images")
    return (images, labels, *parse_cifar(contents["test_batch.bin"], "test_batch.bin"))


def digits_arrays() -> Arrays:
    """The 8x8 digits that ship with glassgrad: uint8 images of 0 to 16, (1497, 1, 8, 8) and (300, 1, 8, 8).

    >>> x_train, y_train, x_test, y_test = digits_arrays()
    >>> x_train.shape, y_test.shape, int(x_train.max())
    ((1497, 1, 8, 8), (300,), 16)
    """
    with np.load(Path(__file__).parent / "digits.npz") as file:
        images, labels = file["images"][:, np.newaxis], file["labels"]
    test = np.arange(len(labels)) % 6 == 0          # every sixth, so that both parts have every writer
    return images[~test], labels[~test], images[test], labels[test]


# ---- where files may be


class DataFolder(NamedTuple):
    """A folder to search. If it is `ours`, it is our cache, from which damaged files may be removed."""
    path: Path
    ours: bool = False


def cache_folder() -> Path:
    """The folder for downloads, in the user's cache folder of the system."""
    return Path(user_cache_folder() or Path.home()) / "data"


def data_folders() -> Iterator[DataFolder]:
    """The folders that are searched, in order."""
    if own := os.environ.get("GLASSGRAD_DATA"):
        if not Path(own).expanduser().is_dir():
            notice(f"GLASSGRAD_DATA={own} is not a folder; looking elsewhere")
        yield DataFolder(Path(own).expanduser())
    yield DataFolder(cache_folder(), ours=True)
    checkout = Path(__file__).resolve().parents[3]
    if (checkout / "pyproject.toml").exists():
        yield DataFolder(checkout.parent / "shared" / "data")


def whereabouts(dataset: DataSet) -> str:
    """Say where this data set would be read from. Looks only at names; reading checks the files."""
    names = {file.name for file in dataset.files}
    for place in data_folders():
        folder = place.path / dataset.folder
        here = {name for name in names if (folder / name).is_file() or (folder / name.removesuffix(".gz")).is_file()}
        if here == names:
            return str(folder)
        if here and not place.ours and names - here <= set(dataset.may_lack):
            return f"{folder} ({len(here)} of {len(names)} files)"
    return f"not here; would be downloaded to {cache_folder() / dataset.folder}"


# ---- finding, checking, fetching


def load(dataset: DataSet, allow_download: bool = True) -> dict[str, bytes]:
    """The unpacked content of each of the data set's files, by name, from the first folder or mirror that has them."""
    looked = []
    for place in data_folders():
        folder = place.path / dataset.folder
        contents = _read_folder(dataset, folder, place.ours)
        missing = [file.name for file in dataset.files if file.name not in contents]
        if not missing:
            return contents
        if set(missing) <= set(dataset.may_lack) and not place.ours:
            notice(f"{folder} holds only a part of {dataset.title}: going on without {', '.join(missing)}")
            return contents
        looked.append(f"{folder}: " + ("nothing there" if len(missing) == len(dataset.files)
                                       else f"no usable {', '.join(missing)}"))
    if allow_download:
        folder = cache_folder() / dataset.folder
        try:
            _fetch(dataset, folder)
            contents = _read_folder(dataset, folder, ours=True)
            if len(contents) == len(dataset.files):
                return contents
            looked.append(f"{folder}: changed while it was being read")
        except DownloadError as problem:
            looked.append(problem.given)
        except OSError as problem:                          # no permission, or a full disk
            looked.append(f"{folder}: {problem}")
    raise DataMissingError(
        f"{dataset.title} is not on this machine" + (" and could not be downloaded" if allow_download else ""),
        given="\n".join(looked), expected=", ".join(file.name for file in dataset.files),
        fix=f"connect to the network, or put these files into a folder {dataset.folder}/ and set GLASSGRAD_DATA "
             "to the folder that holds it")


def _read_folder(dataset: DataSet, folder: Path, ours: bool) -> dict[str, bytes]:
    """The contents of the data set's intact files in this folder, by name; the others are reported."""
    contents = {}
    for file in dataset.files:
        packed, plain = folder / file.name, folder / file.name.removesuffix(".gz")
        path = packed if packed.is_file() or not plain.is_file() else plain
        if not path.is_file():
            continue
        try:
            contents[file.name] = read_checked(path, file)
        except FormatError as problem:
            if ours:
                path.unlink()
                notice(f"{path} is damaged and was removed: {problem.given}")
            else:
                notice(f"{path} is left alone and not used: {problem.given}")
    return contents


def read_checked(path: Path, file: DataFile) -> bytes:
    """The unpacked content of a file; FormatError unless its checksums are those of `file`."""
    data = path.read_bytes()
    if len(data) == file.size and file.sha256 in ("", hashlib.sha256(data).hexdigest()):
        return unpack(data, str(path))
    if file.content:
        try:
            content = unpack(data, str(path))
        except FormatError:
            content = b""
        if hashlib.sha256(content).hexdigest() == file.content:
            return content
    fault = f"truncated: {len(data):,} of {file.size:,} bytes" if len(data) < file.size \
        else f"{len(data):,} bytes with SHA-256 {hashlib.sha256(data).hexdigest()}"
    raise FormatError(f"{path} is not the published file", given=fault,
                      expected=f"{file.size:,} bytes" + (f" with SHA-256 {file.sha256}" if file.sha256 else ""),
                      fix="remove it, so that it is fetched again")


def _fetch(dataset: DataSet, folder: Path) -> None:
    """Download the files that our cache lacks."""
    missing = [file for file in dataset.files if not (folder / file.name).exists()]
    if dataset.archive is None:
        for file in missing:
            download([mirror + file.name for mirror in dataset.mirrors], folder / file.name, file.sha256)
        return
    name = dataset.archive.name
    archive = download([mirror + name for mirror in dataset.mirrors], folder.parent / name, dataset.archive.sha256)
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        for file in missing:                                # only files of these exact names are unpacked
            member = tar.extractfile(f"{dataset.folder}/{file.name}")
            assert member is not None                       # the archive, whose checksum was right, has it
            part = folder / (file.name + ".part")
            part.write_bytes(member.read())
            os.replace(part, folder / file.name)
    archive.unlink()


def _idx_arrays(dataset: DataSet, allow_download: bool) -> Arrays:
    contents = load(dataset, allow_download)
    names = [file.name for file in dataset.files]
    train = parse_labelled_images(contents[names[0]], contents[names[1]], (names[0], names[1]))
    test = parse_labelled_images(contents[names[2]], contents[names[3]], (names[2], names[3]))
    return (*train, *test)
