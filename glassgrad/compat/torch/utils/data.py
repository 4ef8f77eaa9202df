"""Data in batches, as PyTorch's scripts take it. In: examples by number. Out: batches of tensors.

Examples are collected by the process itself, one batch at a time: `num_workers`, `pin_memory` and their kin are taken
and change nothing. Whole tensors are quicker indexed than collected example by example, so a `TensorDataset` is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.compat.torch.creation import Generator, tensor
from glassgrad.compat.torch.torch_tensor import TorchTensor
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.tensor.tensor import Tensor

__all__ = ["BatchSampler", "ConcatDataset", "DataLoader", "Dataset", "IterableDataset", "RandomSampler", "Sampler",
           "SequentialSampler", "Subset", "TensorDataset", "WeightedRandomSampler", "default_collate", "random_split"]


# -- examples by number ------------------------------------------------------------------------------------------------
class Dataset:
    """Examples by number: subclass it, and write `__getitem__` and `__len__`."""

    def __class_getitem__(cls, kind: Any) -> type[Dataset]:
        return cls

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
    """The examples, in random order, in parts of these lengths or of these fractions.

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
    if generator is not None:
        generator.take()
    found: list[int] = TorchTensor.randperm(n).tolist()
    return found


# -- which examples ----------------------------------------------------------------------------------------------------
class Sampler:
    """Numbers of examples, in some order: subclass it, and write `__iter__`."""

    def __class_getitem__(cls, kind: Any) -> type[Sampler]:
        return cls


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
            return iter(TorchTensor.randint(self.num_samples, high=len(self.data_source)).tolist())
        return iter(_shuffled(len(self.data_source), self.generator)[:self.num_samples])

    def __len__(self) -> int:
        return self.num_samples


class WeightedRandomSampler(Sampler):
    """Examples in proportion to their weights."""

    def __init__(self, weights: Any, num_samples: int, replacement: bool = True, generator: Generator | None = None):
        self.weights, self.num_samples, self.replacement = tensor(weights).float(), num_samples, replacement

    def __iter__(self) -> Iterator[int]:
        return iter(self.weights.multinomial(self.num_samples, self.replacement).tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler):
    """Numbers of examples, so many at a time."""

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool = False):
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in self.sampler:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        return len(self.sampler) // self.batch_size if self.drop_last else -(-len(self.sampler) // self.batch_size)


# -- batches -----------------------------------------------------------------------------------------------------------
def default_collate(batch: Sequence[Any]) -> Any:
    """Examples as one: tensors stacked, numbers in a tensor, tuples and dictionaries part by part.

    >>> x, y = default_collate([(Tensor([1.0, 2.0]), 0), (Tensor([3.0, 4.0]), 1)])
    >>> x.tolist(), y.tolist()
    ([[1.0, 2.0], [3.0, 4.0]], [0, 1])
    """
    first = batch[0]
    if isinstance(first, Tensor):
        return Tensor.stack(*batch)
    if isinstance(first, (bool, int, float)):
        return tensor(list(batch), dtype=dtypes.float64 if isinstance(first, float) else None)     # as PyTorch has it
    if hasattr(first, "__array_interface__"):
        return Tensor.stack(*[TorchTensor(x, requires_grad=False) for x in batch])
    if isinstance(first, Mapping):
        return {key: default_collate([example[key] for example in batch]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(default_collate(part) for part in zip(*batch)))
    if isinstance(first, (list, tuple)):
        return [default_collate(part) for part in zip(*batch)]
    return list(batch)


class DataLoader:
    """Batches of a data set: `for x, y in DataLoader(data, batch_size=32, shuffle=True)`.

    >>> [x.tolist() for x, in DataLoader(TensorDataset(Tensor([1, 2, 3])), batch_size=2)]
    [[1, 2], [3]]
    """

    def __class_getitem__(cls, kind: Any) -> type[DataLoader]:
        return cls

    def __init__(self, dataset: Any, batch_size: int | None = 1, shuffle: bool = False, sampler: Any = None,
                 batch_sampler: Any = None, num_workers: int = 0, collate_fn: Callable[[list[Any]], Any] | None = None,
                 pin_memory: bool = False, drop_last: bool = False, timeout: float = 0, worker_init_fn: Any = None,
                 multiprocessing_context: Any = None, generator: Generator | None = None, **options: Any):
        if shuffle and sampler is not None:
            raise InputError("a sampler says the order already", given="shuffle=True and a sampler",
                             expected="one of them", fix="leave shuffle away")
        self.dataset, self.batch_size, self.drop_last, self.collate_fn = dataset, batch_size, drop_last, collate_fn
        self.streams = isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__")
        if self.streams:
            return
        self.sampler = sampler if sampler is not None else \
            RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
        self.batch_sampler = batch_sampler if batch_sampler is not None else \
            None if batch_size is None else BatchSampler(self.sampler, batch_size, drop_last)

    def __iter__(self) -> Iterator[Any]:
        collate = self.collate_fn or default_collate
        if self.streams:
            yield from self._streamed(collate)
        elif self.batch_sampler is None:
            yield from (self.dataset[index] for index in self.sampler)
        elif type(self.dataset) is TensorDataset and self.collate_fn is None:
            yield from ([t.detach() for t in self.dataset[TorchTensor(batch)]] for batch in self.batch_sampler)
        else:
            yield from (collate([self.dataset[index] for index in batch]) for batch in self.batch_sampler)

    def _streamed(self, collate: Callable[[list[Any]], Any]) -> Iterator[Any]:
        batch: list[Any] = []
        for example in self.dataset:
            if self.batch_size is None:
                yield example
                continue
            batch.append(example)
            if len(batch) == self.batch_size:
                yield collate(batch)
                batch = []
        if batch and not self.drop_last:
            yield collate(batch)

    def __len__(self) -> int:
        return len(self.sampler if self.batch_sampler is None else self.batch_sampler)
