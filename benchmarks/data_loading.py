"""Time `DataLoader`: python -m benchmarks.data_loading. In: nothing. Out: two tables, PyTorch beside it.

The first table is one epoch: 94 batches of 64 images of 28 x 28, shuffled, from a `TensorDataset`, from data sets whose
`__getitem__` gives rows of a tensor, and of an array, and from one whose `__getitem__` also works in Python, the last
with 0 and 2 worker processes. The second is what a batch costs with worker processes, for batches of 3 MB and of
100 KB: in a loop that does nothing else, and the processor time of the thread that receives it, when it is ready and
each of its pages is read. Libraries take turns; medians count.

Measured on 2 busy cores (ARM64), beside PyTorch 2.13: with 2 workers a batch of 3 MB takes the loop 1.7 ms (PyTorch
5.9; 5.9 when batches were pickled) and the receiving thread 0.89 ms (2.1; 1.8), a batch of 100 KB 0.53 ms (2.1; 0.54)
and 0.60 ms (1.3; 0.61). An epoch takes 0.068 s with tensors (PyTorch 0.096) and 0.087 s with rows of arrays (0.085).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from glassgrad.compat.torch.torch_tensor import TorchTensor
from glassgrad.compat.torch.utils import data as own_data

__all__ = ["Library", "epochs", "libraries", "main", "transport"]

EXAMPLES, BATCH, ROUNDS = 6000, 64, 5
SIZES = {"3 MB": ((3, 64, 64), 64), "100 KB": ((28, 28), 32)}      # shape of an example, examples of a batch
WORKERS = (0, 1, 2, 4)
BATCHES, FIRST = 60, 8                          # of a loop; those that come before all workers have memory
PAUSE = 0.01                                    # seconds after which the next batch is ready
PAGE = 4096


class Library(NamedTuple):
    """A module like torch.utils.data, and what makes its tensors."""
    data: ModuleType
    tensor: Callable[[Any], Any]


def libraries() -> dict[str, Library]:
    """glassgrad, and PyTorch if it is here."""
    found = {"glassgrad": Library(own_data, TorchTensor)}
    try:
        import torch
        import torch.utils.data
        found["PyTorch"] = Library(torch.utils.data, torch.from_numpy)
    except ImportError:
        pass
    return found


def _rows(library: Library, count: int, images: Any, work: int = 0) -> Any:
    """A data set of (image, label), with some work in Python before each."""
    class Rows(library.data.Dataset):  # type: ignore[misc,name-defined]
        def __getitem__(self, index: int) -> Any:
            sum(i * i for i in range(work))
            return images[index % len(images)], index % 10

        def __len__(self) -> int:
            return count
    return Rows()


# -- an epoch ----------------------------------------------------------------------------------------------------------
def epochs(library: Library) -> dict[str, float]:
    """Seconds of an epoch of each case."""
    images = np.random.default_rng(0).standard_normal((EXAMPLES, 1, 28, 28)).astype(np.float32)
    tensors = library.data.TensorDataset(library.tensor(images), library.tensor(np.arange(EXAMPLES) % 10))
    cases = {"tensors": (tensors, 0), "rows of tensors": (_rows(library, EXAMPLES, tensors.tensors[0]), 0),
             "rows of arrays": (_rows(library, EXAMPLES, images), 0),
             "work in Python": (_rows(library, EXAMPLES, images, 400), 0),
             "work in Python, 2 workers": (_rows(library, EXAMPLES, images, 400), 2)}
    return {name: _seconds(library.data.DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=workers))
            for name, (dataset, workers) in cases.items()}


def _seconds(batches: Any) -> float:
    start = time.perf_counter()
    for x, y in batches:
        if isinstance(x, TorchTensor):
            x.realize(y)
    return time.perf_counter() - start


# -- a batch -----------------------------------------------------------------------------------------------------------
def transport(library: Library) -> dict[str, float]:
    """Milliseconds per batch of each size and number of workers."""
    found = {}
    for size, (shape, batch) in SIZES.items():
        images = np.random.default_rng(0).standard_normal((256, *shape)).astype(np.float32)
        for workers in WORKERS:
            loader = library.data.DataLoader(_rows(library, BATCHES * batch, images), batch, num_workers=workers)
            name = f"{size}, {workers} workers, "
            found[name + "loop"] = _time_per_batch(loader, 0.0, time.perf_counter)
            found[name + "receiving"] = _time_per_batch(loader, PAUSE if workers else 0.0, time.thread_time)
    return found


def _time_per_batch(loader: Any, pause: float, clock: Callable[[], float]) -> float:
    """The mean time of a batch after the first, in milliseconds, without pauses before each."""
    batches, total = iter(loader), 0.0
    for number in range(len(loader)):
        time.sleep(pause)
        start = clock()
        x, _ = next(batches)
        np.asarray(x).reshape(-1).view(np.uint8)[::PAGE].max()
        total += clock() - start if number >= FIRST else 0.0
    return total / (len(loader) - FIRST) * 1e3


def _print_medians(title: str, measure: Callable[[Library], dict[str, float]]) -> None:
    """A table of the medians of some rounds, in which the libraries take turns."""
    taking_part = libraries()
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in taking_part}
    for _ in range(ROUNDS):
        for name, library in taking_part.items():
            rounds[name].append(measure(library))
    print(title.ljust(32) + "".join(name.rjust(12) for name in rounds))
    for case in rounds["glassgrad"][0]:
        print(case.ljust(32) + "".join(f"{median(times[case] for times in rounds[name]):12.3f}" for name in rounds))


def main() -> None:
    """Print the tables."""
    _print_medians("seconds per epoch", epochs)
    print()
    _print_medians("milliseconds per batch", transport)


if __name__ == "__main__":
    main()
