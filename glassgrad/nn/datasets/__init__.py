"""Load the usual data sets as tensors: `X_train, Y_train, X_test, Y_test = nn.datasets.mnist()`.

In: files found or fetched by `files`. Out: uint8 tensors; divide by 255 to train. `files` says where files are
searched, and what happens to a damaged one.
"""

from __future__ import annotations

from glassgrad.nn.datasets import files
from glassgrad.tensor.tensor import Tensor

Split = tuple[Tensor, Tensor, Tensor, Tensor]       # X_train, Y_train, X_test, Y_test


def mnist(device: str | None = None, fashion: bool = False) -> Split:
    """Handwritten digits: images (60000, 1, 28, 28) and (10000, 1, 28, 28), labels (60000,) and (10000,), uint8."""
    return _tensors(files.fashion_mnist_arrays() if fashion else files.mnist_arrays(), device)


def fashion_mnist(device: str | None = None) -> Split:
    """Ten kinds of clothing, in the shapes of `mnist`."""
    return _tensors(files.fashion_mnist_arrays(), device)


def cifar(device: str | None = None) -> Split:
    """Small photographs: images (50000, 3, 32, 32) and (10000, 3, 32, 32), labels (50000,) and (10000,), uint8."""
    return _tensors(files.cifar_arrays(), device)


def digits(device: str | None = None) -> Split:
    """The 8x8 digits that ship with glassgrad, values 0 to 16: images (1497, 1, 8, 8) and (300, 1, 8, 8), uint8."""
    return _tensors(files.digits_arrays(), device)


def _tensors(arrays: files.Arrays, device: str | None) -> Split:
    x_train, y_train, x_test, y_test = (Tensor(array, device=device) for array in arrays)
    return x_train, y_train, x_test, y_test
