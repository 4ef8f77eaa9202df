"""Read the file formats of image data sets. In: bytes and a name for messages. Out: NumPy arrays, or FormatError.

Does not depend on where files come from.
"""

from __future__ import annotations

import gzip
import math
import zlib

import numpy as np

from glassgrad.base.errors import FormatError

# idx, the format of MNIST: 0, 0, element type, number of axes; each axis as a big-endian int32; the elements
IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

CIFAR_IMAGE = (3, 32, 32)
CIFAR_RECORD = 1 + math.prod(CIFAR_IMAGE)           # a label, then the red, green and blue planes
CIFAR_CLASSES = 10


def unpack(data: bytes, name: str) -> bytes:
    """The content of a gzip file; anything else is returned as it is.

    >>> unpack(gzip.compress(b"abc"), "a.gz"), unpack(b"abc", "a")
    (b'abc', b'abc')
    """
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, OSError, zlib.error) as problem:
        raise FormatError(f"{name} cannot be decompressed", given=f"{len(data):,} bytes of gzip: {problem}",
                          expected="a whole gzip file", fix="remove it, so that it is fetched again") from None


def parse_idx(data: bytes, name: str) -> np.ndarray:
    """The array in an idx file.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), "two numbers")
    array([7, 9], dtype=uint8)
    """
    def wrong(given: str, expected: str) -> FormatError:
        return FormatError(f"{name} is not a well-formed idx file", given=given, expected=expected,
                           fix="remove it, so that it is fetched again, or check what wrote it")

    if len(data) < 4:
        raise wrong(f"a truncated header: {len(data)} bytes", "at least 4 bytes of magic number")
    kind, rank = data[2], data[3]
    if data[:2] != b"\0\0" or kind not in IDX_TYPES:
        raise wrong(f"the magic number 0x{data[:4].hex()}", "0x0000TTRR, with element type TT one of "
                    + ", ".join(f"{k:02x}" for k in IDX_TYPES) + " and RR axes")
    header = 4 + 4 * rank
    if len(data) < header:
        raise wrong(f"a truncated header: {len(data)} bytes", f"{header} bytes for {rank} axes")
    shape = tuple(int(size) for size in np.frombuffer(data, ">u4", rank, offset=4))
    dtype = np.dtype(IDX_TYPES[kind])
    wanted = math.prod(shape) * dtype.itemsize
    if len(data) - header != wanted:
        raise wrong(f"{len(data) - header:,} bytes after the header", f"{wanted:,} bytes for shape {shape}")
    return np.frombuffer(data, dtype, offset=header).reshape(shape).astype(dtype.newbyteorder("="))


def parse_labelled_images(images: bytes, labels: bytes, names: tuple[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """MNIST's pair of idx files as uint8 images (n, 1, height, width) and uint8 labels (n,)."""
    x, y = parse_idx(images, names[0]), parse_idx(labels, names[1])
    for array, name, rank in [(x, names[0], 3), (y, names[1], 1)]:
        if array.ndim != rank or array.dtype != np.uint8:
            raise FormatError(f"{name} holds another kind of data", given=f"{array.dtype} of shape {array.shape}",
                              expected=f"uint8 with {rank} {'axis' if rank == 1 else 'axes'}",
                              fix="check that images and labels are not swapped")
    if len(x) != len(y):
        raise FormatError("images and labels are not equally many", given=f"{len(x):,} images in {names[0]}, "
                          f"{len(y):,} labels in {names[1]}", expected="one label for each image",
                          fix="take both files from the same data set, training or test")
    return x[:, np.newaxis], y


def parse_cifar(data: bytes, name: str) -> tuple[np.ndarray, np.ndarray]:
    """A batch of CIFAR-10's binary version as uint8 images (n, 3, 32, 32) and uint8 labels (n,)."""
    if not data or len(data) % CIFAR_RECORD:
        raise FormatError(f"{name} is not a CIFAR-10 batch", given=f"{len(data):,} bytes",
                          expected=f"a multiple of {CIFAR_RECORD:,} bytes: a label and 3 x 32 x 32 pixels each",
                          fix="remove it, so that it is fetched again")
    records = np.frombuffer(data, np.uint8).reshape(-1, CIFAR_RECORD)
    labels = records[:, 0].copy()
    if labels.max() >= CIFAR_CLASSES:
        raise FormatError(f"{name} is not a CIFAR-10 batch", given=f"a label of {labels.max()}",
                          expected=f"labels from 0 to {CIFAR_CLASSES - 1}",
                          fix="take the binary version of CIFAR-10, not of CIFAR-100")
    return records[:, 1:].reshape(-1, *CIFAR_IMAGE), labels
