"""Batches of worker processes: large arrays by shared memory that is used again and never left behind."""

import glob
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from glassgrad import dtypes
from glassgrad.compat.torch.torch_tensor import TorchTensor
from glassgrad.compat.torch.utils import batch_transport, data
from glassgrad.compat.torch.utils.batch_transport import (BatchSender, HostValues, ReceivedBlocks, SentBatch,
                                                          receive_descriptor)
from glassgrad.compat.torch.utils.workers import WorkerError

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only Linux has memfd_create")

LARGE = 10_000                  # numbers of an array that does not go through the pipe
Pair = namedtuple("Pair", "first second")


class Channel:
    """A sender and a receiver in one process."""

    def __init__(self, blocks: int = 2):
        self.pipe, theirs = multiprocessing.Pipe()
        self.sender, self.blocks = BatchSender(theirs, blocks), ReceivedBlocks(blocks)

    def send(self, batch: Any) -> tuple[SentBatch, Any]:
        self.sender.send(batch)
        sent = self.pipe.recv()
        return sent, self.blocks.batch(sent, receive_descriptor(self.pipe) if sent.new_block else None)


class Rows(data.Dataset):
    """Large rows of i; `length` says how many numbers."""

    def __init__(self, n: int, length: Any = lambda index: LARGE):
        self.n, self.length = n, length

    def __getitem__(self, index: int) -> Any:
        return np.full(self.length(index), index, np.float32), index

    def __len__(self) -> int:
        return self.n


class EvenRows(Rows):
    """The same, for processes that are spawned: they cannot receive a lambda."""

    def __init__(self, n: int):
        super().__init__(n, None)

    def __getitem__(self, index: int) -> Any:
        return np.full(LARGE, index, np.float32), index


@dataclass
class Holder:
    array: np.ndarray
    tensor: Any


def first_and_last(batches: Any) -> list[Any]:
    """Of each batch its labels and the first and last number of each row."""
    return [(x[:, 0].tolist(), x[:, -1].tolist(), y.tolist()) for x, y in batches]


def open_blocks() -> int:
    """How many blocks this process has open."""
    targets = [os.readlink(path) for path in glob.glob("/proc/self/fd/*") if os.path.islink(path)]
    return sum("memfd:DataLoader" in target for target in targets)


# -- what goes where -------------------------------------------------------------------------------------------------
def test_the_pipe_carries_no_large_array() -> None:
    x = np.arange(LARGE * 3, dtype=np.float32).reshape(3, LARGE)
    sent, found = Channel().send({"x": HostValues(x), "raw": x + 1, "y": HostValues([1, 2, 3])})
    assert len(sent.pickled) < 1000 and [end - begin for begin, end in sent.parts] == [x.nbytes, x.nbytes]
    assert isinstance(found["x"], TorchTensor) and found["x"].tolist() == x.tolist()
    assert isinstance(found["raw"], np.ndarray) and found["raw"].tolist() == (x + 1).tolist()
    assert found["y"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("array", [
    np.arange(2.0 * LARGE).reshape(2, LARGE).T, np.arange(4.0 * LARGE)[::-2], np.zeros((0, 3), np.int16), np.array(5.0),
    np.zeros((LARGE, 0)), np.arange(LARGE, dtype=">f8"), np.arange(LARGE).astype("datetime64[s]"), np.array([True] * 3),
    np.array(["long" * LARGE, "short"]), np.array([{"a": 1}, None], object), np.ones(LARGE, [("a", "i4"), ("b", "f8")]),
    np.zeros(3, "V0"), np.ma.masked_array(np.arange(LARGE), np.arange(LARGE) % 2)], ids=lambda a: f"{a.dtype}{a.shape}")
def test_any_array_arrives_as_it_was(array: np.ndarray) -> None:
    _, (found, text) = Channel().send((array, "text"))
    assert type(found) is type(array) and found.dtype == array.dtype and found.shape == array.shape
    assert found.tolist() == array.tolist() and text == "text"
    assert found.flags.writeable


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16, dtypes.int64, dtypes.bool, dtypes.fp8e4m3])
def test_tensors_keep_their_type(dtype: Any) -> None:
    x = TorchTensor(np.arange(LARGE) % 3).cast(dtype)
    _, found = Channel().send([x])
    assert found[0].dtype is dtype and found[0].tolist() == x.tolist() and not found[0].requires_grad


def test_nests_and_objects_arrive_as_they_were() -> None:
    x = np.arange(LARGE)
    batch = Pair({"deep": [(x, "a", None)]}, Holder(x * 2, TorchTensor(np.ones(LARGE, np.float32))))
    sent, found = Channel().send(batch)
    assert type(found) is Pair and found.first["deep"][0][1:] == ("a", None)
    assert found.first["deep"][0][0].tolist() == x.tolist() and found.second.array.tolist() == (x * 2).tolist()
    assert found.second.tensor.sum().item() == LARGE and len(sent.parts) == 3


class OwnBuffer:
    """An object that keeps the buffer it is rebuilt from, without a copy."""

    def __init__(self, buffer: Any):
        self.buffer = buffer

    def __reduce_ex__(self, protocol: Any) -> Any:
        return OwnBuffer, (pickle.PickleBuffer(self.buffer),)


def test_nothing_that_is_kept_is_overwritten() -> None:
    channel, kept = Channel(blocks=1), []
    for number in range(4):
        row = np.full(LARGE, number, np.float32)
        kept.append(channel.send([HostValues(row), row, Holder(row, None), OwnBuffer(bytearray(row))])[1])
    for number, (x, raw, held, own) in enumerate(kept):
        assert {number} == set(x.tolist()) == set(raw.tolist()) == set(held.array.tolist()) \
            == set(np.frombuffer(own.buffer, np.float32).tolist())


def test_blocks_are_used_again_until_one_is_too_small() -> None:
    channel = Channel(blocks=2)
    sizes = [LARGE, LARGE, LARGE, LARGE, 2 * LARGE, 10, LARGE, LARGE]
    assert [channel.send(np.zeros(n))[0].new_block > 0 for n in sizes] == [True, True, False, False, True] + [False] * 3
    assert open_blocks() == 4           # two here, two there
    del channel
    assert open_blocks() == 0


# -- with worker processes -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ahead", [1, 2, 5])
@pytest.mark.parametrize("workers", [1, 3])
def test_batches_that_are_kept_stay_as_they_were(workers: int, ahead: int) -> None:
    own = first_and_last(data.DataLoader(Rows(40), batch_size=4))
    loader = data.DataLoader(Rows(40), batch_size=4, num_workers=workers, prefetch_factor=ahead)
    kept = list(loader)
    assert first_and_last(kept) == own and first_and_last(loader) == own


def test_batches_of_uneven_sizes() -> None:
    loader = data.DataLoader(Rows(30, lambda index: 7919 * index % 30_011), batch_size=1, num_workers=2)
    assert [(x.shape[1], int(x.sum().item())) for x, _ in loader] == \
        [(7919 * i % 30_011, i * (7919 * i % 30_011)) for i in range(30)]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_can_be_started_in_any_way(method: str) -> None:
    loader = data.DataLoader(EvenRows(8), batch_size=2, num_workers=2, multiprocessing_context=method,
                             persistent_workers=True, pin_memory=True)
    own = first_and_last(data.DataLoader(EvenRows(8), batch_size=2))
    assert first_and_last(loader) == own
    assert not multiprocessing.active_children()


def test_two_iterators_at_once() -> None:
    loader = data.DataLoader(Rows(24), batch_size=2, num_workers=2)
    own = first_and_last(data.DataLoader(Rows(24), batch_size=2))
    both = list(zip(loader, loader))
    assert first_and_last(a for a, _ in both) == own and first_and_last(b for _, b in both) == own
    assert open_blocks() == 0


def test_an_epoch_opens_few_blocks_and_leaves_none() -> None:
    most = 0
    for _ in data.DataLoader(Rows(60), batch_size=2, num_workers=2, prefetch_factor=3):
        most = max(most, open_blocks())
    assert most == 6 and open_blocks() == 0


def test_an_iterator_that_is_left_half_way_leaves_no_block() -> None:
    batches = iter(data.DataLoader(Rows(60), batch_size=2, num_workers=2))
    kept = [next(batches) for _ in range(5)]
    assert open_blocks() == 4
    del batches
    assert open_blocks() == 0 and not multiprocessing.active_children()
    assert first_and_last(kept)[4] == ([8.0, 9.0], [8.0, 9.0], [8, 9])


def test_a_worker_that_dies_before_it_sends_a_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_transport, "send_descriptor", lambda *args: os._exit(7))
    with pytest.raises(WorkerError) as raised:
        list(data.DataLoader(Rows(8), batch_size=2, num_workers=1))
    assert raised.value.given == "worker 0 ended with exit code 7"


def test_an_array_that_cannot_be_a_tensor_is_an_error_in_the_parent() -> None:
    class Odd(Rows):
        def __getitem__(self, index: int) -> Any:
            return np.full(LARGE, "1970", "datetime64[s]")
    with pytest.raises(Exception, match="cannot make a tensor of this array"):
        list(data.DataLoader(Odd(8), batch_size=2, num_workers=1))
    assert not multiprocessing.active_children()


# -- without shared memory -------------------------------------------------------------------------------------------
def test_all_goes_through_the_pipe_on_systems_without_memfd_create(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    sent, found = Channel().send(HostValues(np.ones(LARGE, np.float32)))
    assert len(sent.pickled) > 4 * LARGE and not sent.parts and found.sum().item() == LARGE
    own = first_and_last(data.DataLoader(Rows(20), batch_size=4))
    assert first_and_last(data.DataLoader(Rows(20), batch_size=4, num_workers=2)) == own


@pytest.mark.parametrize("call", ["memfd_create", "posix_fallocate"])
def test_a_warning_says_that_shared_memory_was_refused(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> int:
        raise OSError(12, "Cannot allocate memory")
    monkeypatch.setattr(os, call, refuse)
    channel, row = Channel(), np.arange(LARGE, dtype=np.float32)
    with pytest.warns(RuntimeWarning) as told:
        found = channel.send(HostValues(row))[1]
    assert [str(warning.message) for warning in told] == [
        "DataLoader sends batches through a pipe, which is slower: shared memory of 40000 bytes was refused "
        "([Errno 12] Cannot allocate memory)"]
    assert found.tolist() == row.tolist() == channel.send(HostValues(row))[1].tolist() and open_blocks() == 0


SCRIPT = """
import sys, time, multiprocessing
import numpy as np
from glassgrad.compat.torch.utils import data
class Rows(data.Dataset):
    def __getitem__(self, index): return np.full(100_000, index, np.float32)
    def __len__(self): return 100_000
for number, batch in enumerate(data.DataLoader(Rows(), batch_size=2, num_workers=2)):
    if number == 6:
        print(*[p.pid for p in multiprocessing.active_children()], flush=True)
        time.sleep(0 if "exit" in sys.argv else 60)
    if number == 8: break
"""


def mapped_blocks(process: int) -> int:
    """How many blocks a process has mapped; 0 if it has ended. Files with a name would be left by a kill."""
    try:
        with open(f"/proc/{process}/maps") as file:
            text = file.read()
    except OSError:
        return 0
    assert "/dev/shm/" not in text
    return text.count("memfd:DataLoader")


@pytest.mark.parametrize("end", ["exit", signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_however_the_parent_ends(end: Any) -> None:
    warnings_but_of_forks = "-W", "always", "-W", "ignore:This process:DeprecationWarning"      # of Python 3.12
    parent = subprocess.Popen([sys.executable, *warnings_but_of_forks, "-c", SCRIPT, str(end)], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    workers = [int(word) for word in parent.stdout.readline().split()]
    assert len(workers) == 2
    if end != "exit":
        assert [mapped_blocks(process) for process in (parent.pid, *workers)] == [4, 2, 2]
        parent.send_signal(end)
    _, told = parent.communicate(timeout=60)
    assert told == ""
    until = time.monotonic() + 60
    while any(map(mapped_blocks, workers)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(mapped_blocks, workers))
