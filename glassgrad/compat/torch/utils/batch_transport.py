"""Send batches from a worker process to its parent. In: a batch and a pipe. Out: the batch in the parent, with tensors.

    worker    pickles the batch, and copies the bytes of its large arrays into a block of memory that both processes map
    pipe      carries the pickle without those bytes, where they are in the block and, of a new block, the descriptor
    parent    unpickles: each array is copied out of the block, into the memory of the tensor that is made of it

Each worker has a ring of blocks, as many as the number of batches it may be ahead, and uses them in turn. A batch is
requested from it only when the last batch in the same block was copied out. So no message has to say that a block is
free, and nothing that the user keeps is overwritten. A block that is too small is replaced by a larger one.

Blocks come from `memfd_create`. They have no name, so nothing is left behind however the processes end, and they do not
need /dev/shm, which is small in containers. (`multiprocessing.shared_memory` has names, and one more process that
removes them.) On systems other than Linux, which lack `memfd_create`, all bytes go through the pipe; so they do where
it fails, with a warning.

Copies of each byte of an example: into the batch (`np.stack`) and from there into the block, both in the worker; in the
parent from the block into the tensor or, for a GPU, into the pinned memory from which the GPU copies.
"""

from __future__ import annotations

import io
import math
import mmap
import os
import pickle
import socket
import warnings
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np

from glassgrad.compat.torch.creation import tensor
from glassgrad.compat.torch.torch_tensor import TorchTensor
from glassgrad.compiler.graph.dtype import DType
from glassgrad.tensor.tensor import Tensor

SMALLEST_SHARED = 16 << 10      # bytes; smaller arrays are pickled
ALIGNMENT = 64                  # bytes


class HostValues(NamedTuple):
    """A tensor's values in host memory: an array, or a list of numbers. The parent process receives a tensor
    instead."""
    values: Any
    dtype: DType | None = None

    def tensor(self) -> Tensor:
        """Return a tensor of these values, in memory of its own."""
        if isinstance(self.values, list):
            return tensor(self.values, dtype=self.dtype)
        return TorchTensor._made_of(self.values, dtype=self.dtype, requires_grad=False)


class SentBatch(NamedTuple):
    """What goes through the pipe."""
    pickled: bytes
    parts: list[tuple[int, int]]        # where in the block the bytes of each large array begin and end
    new_block: int                      # the size of a new block, whose descriptor follows; 0: there is none


# -- descriptors (`send_handle` of Python 3.14 waits for an answer in the pipe, where a worker's next lists arrive) ----
def send_descriptor(pipe: Connection, descriptor: int) -> None:
    """Send a copy of a file's descriptor to the process at the other end."""
    with socket.fromfd(pipe.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as end:
        socket.send_fds(end, [b"D"], [descriptor])


def receive_descriptor(pipe: Connection) -> int:
    """The descriptor that `send_descriptor` sends."""
    with socket.fromfd(pipe.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as end:
        _, found, _, _ = socket.recv_fds(end, 1, 1)
    if not found:
        raise EOFError
    return found[0]


# -- in a worker -------------------------------------------------------------------------------------------------------
class BatchSender:
    """Sends batches, with large arrays in a ring of blocks."""

    def __init__(self, pipe: Connection, blocks: int):
        self.pipe, self.turn = pipe, 0
        self.blocks: list[mmap.mmap | bytes] = [b""] * blocks
        self.shares_memory = hasattr(os, "memfd_create")

    def send(self, batch: Any) -> None:
        """Send a batch. The parent must have received all earlier batches except as many as there are blocks,
        less one."""
        text, large = _pickled(batch, self.shares_memory)
        parts = list(_laid_out(buffer.nbytes for buffer in large))
        needed, descriptor = parts[-1][1] if parts else 0, None
        if needed > len(self.blocks[self.turn]):
            try:
                descriptor = self._replace_block(needed + needed // 8)
            except OSError as problem:
                warnings.warn(f"DataLoader sends batches through a pipe, which is slower: shared memory of {needed} "
                              f"bytes was refused ({problem})", RuntimeWarning, stacklevel=2)
                self.shares_memory = False
                return self.send(batch)
        block: Any = self.blocks[self.turn]
        for (begin, end), buffer in zip(parts, large):
            block[begin:end] = buffer
        self.pipe.send(SentBatch(text, parts, 0 if descriptor is None else len(block)))
        if descriptor is not None:
            send_descriptor(self.pipe, descriptor)
            os.close(descriptor)
        self.turn = (self.turn + 1) % len(self.blocks)

    def _replace_block(self, size: int) -> int:
        """Make a new block for the next batch; return its descriptor."""
        descriptor = os.memfd_create("DataLoader")
        try:
            os.posix_fallocate(descriptor, 0, size)     # if memory is short, raises here instead of a signal later
            self.blocks[self.turn] = mmap.mmap(descriptor, size)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor


def _laid_out(sizes: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Return where each of some arrays begins and ends, one after another, aligned."""
    begin = 0
    for size in sizes:
        yield begin, begin + size
        begin += -(-size // ALIGNMENT) * ALIGNMENT


class _LargeBuffers:
    """Decides which bytes are left out of a pickle: those of large arrays that `_BatchPickler` describes."""

    def __init__(self, smallest: float):
        self.smallest, self.found = smallest, list[memoryview]()
        self.described: pickle.PickleBuffer | None = None

    def stays_in_pickle(self, buffer: pickle.PickleBuffer) -> bool:
        """Decide for each buffer whether it stays in the pickle. Buffers of objects that are not arrays do, because
        what is rebuilt from them might not copy them."""
        if buffer is not self.described or buffer.raw().nbytes < self.smallest:
            return True
        self.found.append(buffer.raw())
        return False


class _BatchPickler(ForkingPickler):
    """Pickles arrays and tensors as their bytes and a function that copies these."""

    def __init__(self, file: io.BytesIO, large: _LargeBuffers):
        super().__init__(file, pickle.HIGHEST_PROTOCOL, False, large.stays_in_pickle)
        self.large = large

    def reducer_override(self, value: Any) -> Any:
        """Return the function and arguments that rebuild a value."""
        if isinstance(value, Tensor):
            value = HostValues(value.detach().numpy(), value.dtype)
        if isinstance(value, HostValues):
            if _is_plain(value.values):
                return _tensor_of_bytes, (*self._described(value.values), value.dtype)
            return _tensor_of_values, tuple(value)
        return (_array_of_bytes, self._described(value)) if _is_plain(value) else NotImplemented

    def _described(self, array: np.ndarray) -> tuple[Any, ...]:
        buffer = pickle.PickleBuffer(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        self.large.described = buffer
        return buffer, array.dtype, array.shape


def _is_plain(value: Any) -> bool:
    """Return whether a value is an array of bytes that can be copied."""
    return type(value) is np.ndarray and not value.dtype.hasobject and value.dtype.itemsize > 0


def _pickled(batch: Any, shares_memory: bool) -> tuple[bytes, list[memoryview]]:
    """Return a batch as a pickle, and the bytes that are not in it."""
    file, large = io.BytesIO(), _LargeBuffers(SMALLEST_SHARED if shares_memory else math.inf)
    _BatchPickler(file, large).dump(batch)
    return file.getvalue(), large.found


# -- in the parent -----------------------------------------------------------------------------------------------------
class ReceivedBlocks:
    """The blocks of a `BatchSender` in the parent process, which makes batches of what it sends."""

    def __init__(self, blocks: int):
        self.turn = 0
        self.blocks: list[mmap.mmap | bytes] = [b""] * blocks

    def batch(self, sent: SentBatch, descriptor: int | None) -> Any:
        """Return the batch; its block may be overwritten afterwards."""
        if descriptor is not None:
            self.blocks[self.turn] = mmap.mmap(descriptor, sent.new_block, access=mmap.ACCESS_READ)
            os.close(descriptor)
        block = memoryview(self.blocks[self.turn])
        self.turn = (self.turn + 1) % len(self.blocks)
        return pickle.loads(sent.pickled, buffers=[block[begin:end] for begin, end in sent.parts])


def _array_of_bytes(data: Any, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    return np.ndarray(shape, dtype, data).copy()


def _tensor_of_bytes(data: Any, dtype: np.dtype, shape: tuple[int, ...], wanted: DType | None) -> Tensor:
    return HostValues(np.ndarray(shape, dtype, data), wanted).tensor()


def _tensor_of_values(values: Any, dtype: DType | None) -> Tensor:
    return HostValues(values, dtype).tensor()
