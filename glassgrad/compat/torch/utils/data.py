"""Provide torch.utils.data: data sets, samplers, DataLoader. In: examples by index. Out: batches of tensors.

A batch of a `TensorDataset`, an array or a tensor is gathered by one index, and so is a batch of a `Subset` of one.
Other data sets return one example at a time; with `num_workers`, other processes collect them (`workers.py`) before
they are needed, and send them through shared memory (`batch_transport.py`). An `IterableDataset` is read by the process
itself, whatever `num_workers` is: `get_worker_info()` is None there, and the whole stream is read once. `pin_memory`
and `persistent_workers` are accepted and have no effect: every copy to a GPU goes through pinned memory and runs beside
kernels in any case, and workers start anew for each epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.compat.torch.creation import Generator, multinomial, rand, randint, tensor
from glassgrad.compat.torch.torch_tensor import TorchTensor
from glassgrad.compat.torch.utils.batch_transport import HostValues
from glassgrad.compat.torch.utils.workers import WorkerInfo, WorkerOptions, batches_from_workers, get_worker_info
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.jit.plain_values import mapped
from glassgrad.tensor.realize_and_read import array_in_memory
from glassgrad.tensor.tensor import Tensor

__all__ = ["BatchSampler", "ConcatDataset", "DataLoader", "Dataset", "IterableDataset", "RandomSampler", "Sampler",
           "SequentialSampler", "Subset", "TensorDataset", "WeightedRandomSampler", "WorkerInfo",
           "default_collate", "default_convert", "get_worker_info", "random_split"]


# -- examples by index -------------------------------------------------------------------------------------------------
class Subscripted:
    """A class that ignores its subscript: Dataset[int] is Dataset."""

    def __class_getitem__(cls, kind: Any) -> type:
        return cls


class Dataset(Subscripted):
    """Examples by index: subclass it, and write `__getitem__` and `__len__`."""

    def __getitem__(self, index: Any) -> Any:
        raise InputError("this data set gives no examples", given=type(self).__name__,
                         expected="a method __getitem__(self, index)", fix="write it in your subclass")

    def __add__(self, other: Any) -> ConcatDataset:
        return ConcatDataset([self, other])


class IterableDataset(Dataset):
    """Examples one after another: subclass it, and write `__iter__`."""


class TensorDataset(Dataset):
    """Tensors whose first axis counts the examples.

    >>> [t.tolist() for t in TensorDataset(Tensor([1, 2]), Tensor([3, 4]))[1]]
    [2, 4]
    """

    def __init__(self, *tensors: Tensor):
        if len({t.shape[0] for t in tensors}) > 1:
            raise InputError("these tensors do not hold the same examples", given=f"{[t.shape for t in tensors]}",
                             expected="one size of the first axis", fix="check the order of the axes")
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(t[index] for t in self.tensors)

    def __len__(self) -> int:
        return int(self.tensors[0].shape[0])


class ConcatDataset(Dataset):
    """One data set after another."""

    def __init__(self, datasets: Iterable[Any]):
        self.datasets = list(datasets)

    def __getitem__(self, index: int) -> Any:
        at = index + len(self) if index < 0 else index
        if at < 0:
            raise IndexError(index)
        for dataset in self.datasets:
            if at < len(dataset):
                return dataset[at]
            at -= len(dataset)
        raise IndexError(index)

    def __len__(self) -> int:
        return sum(len(dataset) for dataset in self.datasets)


class Subset(Dataset):
    """Some of the examples."""

    def __init__(self, dataset: Any, indices: Sequence[int]):
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        return len(self.indices)


def random_split(dataset: Any, lengths: Sequence[float], generator: Generator | None = None) -> list[Subset]:
    """The examples in random order, split into parts of these lengths or fractions.

    >>> [len(part) for part in random_split(range(10), [0.75, 0.25])]
    [8, 2]
    """
    total = len(dataset)
    if math.isclose(sum(lengths), 1) and sum(lengths) <= 1:
        sizes = [math.floor(total * part) for part in lengths]
        for i in range(total - sum(sizes)):
            sizes[i % len(sizes)] += 1
    else:
        sizes = [int(n) for n in lengths]
    if sum(sizes) != total:
        raise InputError("these parts do not make up the data", given=f"{list(lengths)} of {total} examples",
                         expected=f"lengths whose sum is {total}, or fractions whose sum is 1",
                         fix="compute the last one: [n, len(data) - n]")
    order = _shuffled(total, generator)
    return [Subset(dataset, order[sum(sizes[:i]):sum(sizes[:i + 1])]) for i in range(len(sizes))]


def _shuffled(n: int, generator: Generator | None) -> list[int]:
    """Return the numbers below n in the random order of `randperm`. They are needed on the host, which sorts the same
    keys without a graph of 1300 nodes."""
    keys = rand(n, dtype=dtypes.float64, generator=generator)
    found: list[int] = np.argsort(keys.numpy(), kind="stable").tolist()
    return found


# -- which examples ----------------------------------------------------------------------------------------------------
class Sampler(Subscripted):
    """Indices of examples, in some order: subclass it, and write `__iter__`."""


class SequentialSampler(Sampler):
    """All examples in order."""

    def __init__(self, data_source: Any):
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(SequentialSampler):
    """All examples in random order; with `replacement`, any `num_samples` of them."""

    def __init__(self, data_source: Any, replacement: bool = False, num_samples: int | None = None,
                 generator: Generator | None = None):
        super().__init__(data_source)
        self.replacement, self.generator = replacement, generator
        self.num_samples = len(data_source) if num_samples is None else num_samples

    def __iter__(self) -> Iterator[int]:
        if self.replacement:
            drawn = randint(0, len(self.data_source), (self.num_samples,), generator=self.generator)
            return iter(drawn.tolist())
        return iter(_shuffled(len(self.data_source), self.generator)[:self.num_samples])

    def __len__(self) -> int:
        return self.num_samples


class WeightedRandomSampler(Sampler):
    """Examples in proportion to their weights."""

    def __init__(self, weights: Any, num_samples: int, replacement: bool = True, generator: Generator | None = None):
        self.weights, self.num_samples, self.replacement = tensor(weights).float(), num_samples, replacement
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        return iter(multinomial(self.weights, self.num_samples, self.replacement, generator=self.generator).tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler):
    """Indices of examples, in batches."""

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool = False):
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[list[int]]:
        return _in_batches(self.sampler, self.batch_size, self.drop_last)

    def __len__(self) -> int:
        return len(self.sampler) // self.batch_size if self.drop_last else -(-len(self.sampler) // self.batch_size)


# -- batches -----------------------------------------------------------------------------------------------------------
def _in_batches(items: Iterable[Any], size: int, drop_last: bool) -> Iterator[list[Any]]:
    """Yield lists of `size` items; the last one may be shorter, or is dropped."""
    left = iter(items)
    while batch := list(islice(left, size)):
        if len(batch) == size or not drop_last:
            yield batch


def default_collate(batch: Sequence[Any]) -> Any:
    """Examples as a batch: tensors stacked, numbers as a tensor, tuples and dictionaries part by part.

    >>> x, y = default_collate([(Tensor([1.0, 2.0]), 0), (Tensor([3.0, 4.0]), 1)])
    >>> x.tolist(), y.tolist()
    ([[1.0, 2.0], [3.0, 4.0]], [0, 1])
    """
    return mapped(_collated(batch), HostValues.tensor, HostValues)


def default_convert(example: Any) -> Any:
    """An example with tensors in the place of arrays: what a DataLoader gives that makes no batches.

    >>> values, name = default_convert((np.ones(2), "a"))
    >>> values.tolist(), name
    ([1.0, 1.0], 'a')
    """
    return mapped(example, TorchTensor._made_of, np.ndarray)


def _collated(batch: Sequence[Any]) -> Any:
    """Return examples as a batch, with arrays and numbers as `HostValues`, which need no device."""
    first = batch[0]
    if isinstance(first, Tensor):
        _same_for_all(batch, lambda example: getattr(example, "shape", None), "shape")
        shown = [None if example.requires_grad else array_in_memory(example.uop) for example in batch]
        arrays = [array for array in shown if array is not None]
        return HostValues(np.stack(arrays)) if len(arrays) == len(batch) else Tensor.stack(*batch)
    if isinstance(first, (bool, int, float)):
        return HostValues(list(batch), dtypes.float64 if isinstance(first, float) else None)     # as PyTorch has it
    if hasattr(first, "__array_interface__"):
        _same_for_all(batch, np.shape, "shape")
        return HostValues(np.stack(batch))
    if isinstance(first, Mapping):
        return {key: _collated([example[key] for example in batch]) for key in first}
    if isinstance(first, (list, tuple)):
        _same_for_all(batch, len, "length")
        parts = [_collated(part) for part in zip(*batch)]
        return type(first)(*parts) if hasattr(first, "_fields") else parts
    return list(batch)


def _same_for_all(batch: Sequence[Any], measure: Callable[[Any], Any], what: str) -> None:
    first = measure(batch[0])
    for number, example in enumerate(batch):
        if measure(example) != first:
            raise ShapeError(f"examples that differ in {what} make no batch",
                             given=f"{what} {first} of the first, {measure(example)} of number {number} of the batch",
                             expected=f"one {what}", fix="pad them in __getitem__, or in a collate_fn: "
                             "DataLoader(.., collate_fn=function), with nn.utils.pad_sequence")


def _collect(dataset: Any, collate: Callable[[list[Any]], Any] | None, indices: Sequence[Any]) -> Any:
    """Return a collated batch, as a worker process sends it: with `HostValues` for tensors."""
    return (collate or _collated)([dataset[index] for index in indices])


def _example(dataset: Any, change: Callable[[Any], Any] | None, index: Any) -> Any:
    """A single example, as a worker process sends it."""
    return dataset[index] if change is None else change(dataset[index])


def _gathering(dataset: Any) -> Callable[[Sequence[Any]], Any] | None:
    """Return a function that takes a whole batch from a data set by one index; None if the set only has single
    examples."""
    if type(dataset) is TensorDataset:
        parts = [_rows(t) for t in dataset.tensors]
        return lambda indices: [rows(indices) for rows in parts]
    if isinstance(dataset, Tensor) or hasattr(dataset, "__array_interface__"):
        return _rows(dataset)
    if type(dataset) is Subset and (inner := _gathering(dataset.dataset)) is not None:
        return lambda indices: inner([dataset.indices[index] for index in indices])
    return None


def _rows(values: Any) -> Callable[[Sequence[Any]], Tensor]:
    """Return a function that gathers rows of a tensor or an array: by NumPy if they are on the host and keep their
    type. It reads a tensor's memory in place, and so, after a write to the tensor, the values before the write."""
    on_device = isinstance(values, Tensor) and values.device != "CPU"
    held = values.detach() if isinstance(values, Tensor) else TorchTensor._made_of(values[:0])
    array = None if on_device else np.asarray(held) if isinstance(values, Tensor) else values
    if array is not None and TorchTensor._made_of(array[:0]).dtype is held.dtype:
        return lambda indices: TorchTensor._made_of(array[list(map(int, indices))], requires_grad=False)
    return lambda indices: held[list(map(int, indices))].detach()


class DataLoader(Subscripted):
    """Batches of a data set: `for x, y in DataLoader(data, batch_size=32, shuffle=True)`. `num_workers` processes call
    `dataset[index]`, each up to `prefetch_factor` batches ahead (2); batches keep their order. `pin_memory` changes
    nothing: a batch is made on the default device, and copies to a GPU always go through pinned memory.

    >>> [x.tolist() for x, in DataLoader(TensorDataset(Tensor([1, 2, 3])), batch_size=2)]
    [[1, 2], [3]]
    """

    def __init__(self, dataset: Any, batch_size: int | None = 1, shuffle: bool = False, sampler: Any = None,
                 batch_sampler: Any = None, num_workers: int = 0, collate_fn: Callable[[list[Any]], Any] | None = None,
                 pin_memory: bool = False, drop_last: bool = False, timeout: float = 0, worker_init_fn: Any = None,
                 multiprocessing_context: Any = None, generator: Generator | None = None, *,
                 prefetch_factor: int | None = None, persistent_workers: bool = False, pin_memory_device: str = "",
                 in_order: bool = True):
        if shuffle and sampler is not None:
            raise InputError("a sampler says the order already", given="shuffle=True and a sampler",
                             expected="one of them", fix="leave shuffle away")
        if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
            raise InputError("DataLoader cannot make such batches", given=f"batch_size={batch_size!r}",
                             expected="1 or more; None for single examples", fix="write batch_size=32, for example")
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
            raise InputError("a batch_sampler says already what a batch is", given="a batch_sampler, and one of "
                             "batch_size, shuffle, sampler and drop_last", expected="one or the other",
                             fix="leave the others away: DataLoader(dataset, batch_sampler=batch_sampler)")
        ahead = 2 if prefetch_factor is None else prefetch_factor
        sound = all(isinstance(n, int) for n in (num_workers, ahead)) and num_workers >= 0 and ahead >= 1
        if not sound or timeout < 0:
            raise InputError("DataLoader cannot have these workers", given=f"num_workers={num_workers!r}, "
                             f"timeout={timeout}, prefetch_factor={ahead!r}",
                             expected="0 workers or more, 0 seconds or more, 1 batch or more ahead",
                             fix="leave them at their defaults")
        self.dataset, self.batch_size, self.drop_last, self.collate_fn = dataset, batch_size, drop_last, collate_fn
        self.num_workers, self.timeout, self.prefetch_factor = num_workers, timeout, ahead
        self.worker_init_fn, self.multiprocessing_context = worker_init_fn, multiprocessing_context
        ordered = shuffle or sampler is not None or batch_sampler is not None
        self.streams = isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__") and \
            sampler is None and batch_sampler is None
        if self.streams:
            if ordered:
                raise InputError("a stream of examples has an order of its own",
                                 given=f"{type(dataset).__name__}, with shuffle, a sampler or a batch_sampler",
                                 expected="a data set with a length and examples by index",
                                 fix="shuffle in its __iter__, or write __getitem__ and __len__")
            return
        self.sampler = sampler if sampler is not None else \
            RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
        self.batch_sampler = batch_sampler if batch_sampler is not None else \
            None if batch_size is None else BatchSampler(self.sampler, batch_size, drop_last)

    def __iter__(self) -> Iterator[Any]:
        if self.streams:
            return map(self.collate_fn or default_convert, self.dataset) if self.batch_size is None else \
                map(self.collate_fn or default_collate, _in_batches(self.dataset, self.batch_size, self.drop_last))
        if self.batch_sampler is None:
            examples = self._from_workers(partial(_example, self.dataset, self.collate_fn), self.sampler) \
                if self.num_workers else (_example(self.dataset, self.collate_fn, index) for index in self.sampler)
            return examples if self.collate_fn is not None else map(default_convert, examples)
        gather = None if self.collate_fn is not None else _gathering(self.dataset)
        if gather is not None:
            return map(gather, self.batch_sampler)
        if self.num_workers:
            return self._from_workers(partial(_collect, self.dataset, self.collate_fn), self.batch_sampler)
        collate = self.collate_fn or default_collate
        return (collate([self.dataset[index] for index in indices]) for indices in self.batch_sampler)

    def _from_workers(self, collect: Callable[[Any], Any], indices: Iterable[Any]) -> Iterator[Any]:
        seed = int(TorchTensor.randint(1, high=1 << 31).item())
        workers = WorkerOptions(self.num_workers, self.prefetch_factor, self.timeout, self.worker_init_fn,
                                self.multiprocessing_context, seed, self.dataset)
        return batches_from_workers(collect, iter(indices), workers)

    def __len__(self) -> int:
        if self.streams and self.batch_size is not None:
            count, size = len(self.dataset), self.batch_size
            return count // size if self.drop_last else -(-count // size)
        if self.streams:
            return len(self.dataset)
        return len(self.sampler if self.batch_sampler is None else self.batch_sampler)
