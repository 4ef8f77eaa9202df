"""DataLoader: batches gathered by one index, or by worker processes, which keep order, report errors and end."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest

from glassgrad import Device, GlobalCounters, dtypes
from glassgrad.base.errors import InputError, ShapeError
from glassgrad.compat.torch.creation import Generator, randperm
from glassgrad.compat.torch.torch_tensor import TorchTensor
from glassgrad.compat.torch.utils import data
from glassgrad.compat.torch.utils.workers import WorkerError

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="forked only on Linux: spawn cannot send these")


class Squares(data.Dataset):
    """Examples (a row of i, i * i) made by Python."""

    def __init__(self, n: int, wrong: Any = None, slow: float = 0.0):
        self.n, self.wrong, self.slow = n, wrong, slow

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.slow)
        if index == 5 and self.wrong is not None:
            self.wrong()
        return np.full(3, index, np.float32), index * index

    def __len__(self) -> int:
        return self.n


def listed(batches: Any) -> list[Any]:
    return [(x.tolist(), y.tolist()) for x, y in batches]


# -- one index -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.bfloat16, dtypes.int64, dtypes.bool])
def test_a_batch_of_tensors_has_their_rows_and_type(dtype: Any) -> None:
    x = TorchTensor(np.arange(14).reshape(7, 2)).cast(dtype)
    whole = data.TensorDataset(x, TorchTensor(np.arange(7), dtype=dtypes.int64))
    for dataset, rows in ((whole, range(7)), (data.Subset(whole, [6, 0, 3]), [6, 0, 3])):
        found = list(data.DataLoader(dataset, batch_size=3))
        assert all(a.dtype is dtype and b.dtype is dtypes.int64 for a, b in found)
        assert [row for a, _ in found for row in a.tolist()] == [x[i].tolist() for i in rows]
        assert [i for _, b in found for i in b.tolist()] == list(rows)


def test_a_batch_of_an_array_or_a_tensor_is_one_tensor() -> None:
    rows = np.arange(10, dtype=np.float32).reshape(5, 2)
    for dataset in (rows, TorchTensor(rows)):
        found = list(data.DataLoader(dataset, batch_size=2))
        assert all(isinstance(x, TorchTensor) for x in found) and [x.shape[0] for x in found] == [2, 2, 1]
        assert np.concatenate([x.numpy() for x in found]).tolist() == rows.tolist()


def test_a_batch_is_a_copy_of_the_data() -> None:
    x = TorchTensor(np.zeros((4, 2), np.float32))
    for batch, in data.DataLoader(data.TensorDataset(x), batch_size=2):
        batch.add_(1)
    assert x.tolist() == [[0.0, 0.0]] * 4


def test_a_sampler_draws_with_its_generator() -> None:
    for sampler in (lambda g: data.RandomSampler(range(20), generator=g),
                    lambda g: data.RandomSampler(range(20), True, 9, g),
                    lambda g: data.WeightedRandomSampler([1.0] * 20, 9, True, g)):
        drawn = [list(sampler(Generator().manual_seed(3))) for _ in range(2)]
        assert drawn[0] == drawn[1]


# -- workers ---------------------------------------------------------------------------------------------------------
@on_linux
@pytest.mark.parametrize("workers, batch", [(1, 4), (2, 3), (3, 1), (4, 50)])
def test_workers_keep_the_order(workers: int, batch: int) -> None:
    own = listed(data.DataLoader(Squares(20), batch_size=batch))
    assert listed(data.DataLoader(Squares(20), batch_size=batch, num_workers=workers)) == own
    assert not multiprocessing.active_children()


@on_linux
class Ragged(data.Dataset):
    """Examples that are not of one size: arrays, or tuples."""

    def __init__(self, tuples: bool):
        self.tuples = tuples

    def __getitem__(self, index: int) -> Any:
        return (1,) * (index + 1) if self.tuples else np.zeros(index + 1)

    def __len__(self) -> int:
        return 4


@pytest.mark.parametrize("workers", [0, 1])
def test_examples_of_several_sizes_make_no_batch(workers: int) -> None:
    """NumPy's message said nothing of a batch; of longer tuples the rest was dropped."""
    with pytest.raises(Exception, match=r"examples that differ in shape make no batch\n  given:    shape \(1,\) of the "
                       r"first, \(2,\) of number 1 of the batch"):
        list(data.DataLoader(Ragged(False), batch_size=2, num_workers=workers))
    with pytest.raises(Exception, match="length 1 of the first, 2 of number 1 of the batch\n  expected: one length"):
        list(data.DataLoader(Ragged(True), batch_size=2, num_workers=workers))


def test_workers_take_what_is_collated_otherwise() -> None:
    def collate(examples: Any) -> Any:
        return {"x": TorchTensor(np.stack([x for x, _ in examples])), "names": [str(y) for _, y in examples],
                "array": np.array([y for _, y in examples])}
    first, last = data.DataLoader(Squares(4), batch_size=2, num_workers=2, collate_fn=collate)
    assert isinstance(first["x"], TorchTensor) and first["x"].tolist() == [[0.0] * 3, [1.0] * 3]
    assert last["names"] == ["4", "9"] and isinstance(last["array"], np.ndarray)


@on_linux
def test_tensors_are_on_the_cpu_in_workers_and_on_the_default_device_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's driver does not work in a forked process: with one as the default, workers could not make a tensor."""
    def collate(examples: Any) -> Any:
        x = TorchTensor(np.stack([x for x, _ in examples]))
        return x, str(x.device)
    monkeypatch.setattr(Device, "_default", "CLANG")
    batches = list(data.DataLoader(Squares(4), batch_size=2, num_workers=2, collate_fn=collate))
    assert [(str(x.device), there) for x, there in batches] == [("clang", "cpu")] * 2


@on_linux
def test_workers_call_worker_init_fn_with_their_number() -> None:
    class Marked(Squares):
        mark = -1

        def __getitem__(self, index: int) -> Any:
            return self.mark
    dataset = Marked(4)

    def begin(number: int) -> None:
        dataset.mark = number + 10
    found = data.DataLoader(dataset, batch_size=1, num_workers=2, worker_init_fn=begin)
    assert [x.item() for x in found] == [10, 11, 10, 11] and dataset.mark == -1


@on_linux
def test_random_numbers_differ_between_workers() -> None:
    class Drawn(Squares):
        def __getitem__(self, index: int) -> Any:
            return float(np.random.rand())
    found = [x.item() for x in data.DataLoader(Drawn(8), batch_size=1, num_workers=4)]
    assert len(set(found)) == 8


@on_linux
def test_an_error_in_a_worker_has_its_type_and_traceback() -> None:
    def fail() -> None:
        raise KeyError("no such file: five.png")
    with pytest.raises(KeyError) as raised:
        list(data.DataLoader(Squares(20, fail), batch_size=2, num_workers=2))
    text = str(raised.value)
    assert "in DataLoader worker 0, whose traceback was:" in text and "no such file: five.png" in text
    assert "in __getitem__" in text and "test_torch_data.py" in text
    assert not multiprocessing.active_children()


@on_linux
def test_an_error_that_cannot_be_made_of_a_text_is_a_runtime_error() -> None:
    class Odd(Exception):
        def __init__(self, a: int, b: int):
            super().__init__(f"odd {a} {b}")

    def fail() -> None:
        raise Odd(1, 2)
    with pytest.raises(RuntimeError, match="odd 1 2"):
        list(data.DataLoader(Squares(20, fail), batch_size=2, num_workers=2))


@on_linux
def test_a_worker_that_dies_is_an_error() -> None:
    with pytest.raises(WorkerError) as raised:
        list(data.DataLoader(Squares(20, lambda: os._exit(3)), batch_size=2, num_workers=2))
    assert raised.value.given == "worker 0 ended with exit code 3"
    assert not multiprocessing.active_children()


@on_linux
def test_a_worker_that_is_killed_is_an_error() -> None:
    with pytest.raises(WorkerError) as raised:
        list(data.DataLoader(Squares(20, lambda: os.kill(os.getpid(), signal.SIGKILL)), batch_size=2, num_workers=1))
    assert raised.value.given == "worker 0 ended with exit code -9"


@on_linux
def test_a_batch_that_takes_too_long_is_an_error() -> None:
    with pytest.raises(WorkerError) as raised:
        list(data.DataLoader(Squares(4, slow=30.0), batch_size=2, num_workers=1, timeout=0.2))
    assert raised.value.given == "nothing from worker 0 after 0.2 s"
    assert not multiprocessing.active_children()


@on_linux
def test_a_loop_that_is_left_early_ends_the_workers() -> None:
    batches = iter(data.DataLoader(Squares(1000, slow=0.01), batch_size=2, num_workers=3))
    next(batches)
    assert len(multiprocessing.active_children()) == 3
    batches.close()  # type: ignore[attr-defined]
    assert not multiprocessing.active_children()


@on_linux
def test_long_lists_of_indices_and_large_batches_do_not_block_one_another() -> None:
    found = data.DataLoader(Squares(60_000), batch_size=20_000, num_workers=1)
    assert [int(y[-1].item()) for _, y in found] == [19_999 ** 2, 39_999 ** 2, 59_999 ** 2]


SCRIPT = """
import sys, time
from glassgrad.compat.torch.utils import data
class Slow(data.Dataset):
    def __getitem__(self, index):
        time.sleep(0.05)
        return index
    def __len__(self): return 100000
for batch in data.DataLoader(Slow(), batch_size=2, num_workers=2):
    import multiprocessing
    print(*[p.pid for p in multiprocessing.active_children()], flush=True)
"""


def is_running(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@on_linux
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_parent(sign: signal.Signals) -> None:
    """Ctrl-C reaches all processes of a group; a kill only the parent."""
    parent = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              start_new_session=True)
    assert parent.stdout is not None
    workers = [int(word) for word in parent.stdout.readline().split()]
    assert len(workers) == 2 and all(is_running(worker) for worker in workers)
    if sign is signal.SIGINT:
        os.killpg(parent.pid, sign)
    else:
        parent.kill()
    _, told = parent.communicate(timeout=60)
    if sign is signal.SIGINT:
        assert told.count("KeyboardInterrupt") == 1 and parent.returncode != 0
    until = time.monotonic() + 60
    while any(is_running(worker) for worker in workers) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(is_running(worker) for worker in workers)


def test_sizes_of_batches_that_make_no_sense() -> None:
    for size in (0, -1, 2.0):
        with pytest.raises(InputError) as raised:
            data.DataLoader([1], size)
        assert str(raised.value).startswith(f"""DataLoader cannot make such batches
  given:    batch_size={size}
  expected: 1 or more; None for single examples
  fix:      write batch_size=32, for example""")


def test_numbers_of_workers_that_make_no_sense() -> None:
    with pytest.raises(InputError) as raised:
        data.DataLoader([1], num_workers=-1)
    assert str(raised.value).startswith("""DataLoader cannot have these workers
  given:    num_workers=-1, timeout=0, prefetch_factor=2
  expected: 0 workers or more, 0 seconds or more, 1 batch or more ahead
  fix:      leave them at their defaults""")
    with pytest.raises(InputError, match="num_workers='many'"):
        data.DataLoader([1], num_workers="many")


# -- what is asked for together ----------------------------------------------------------------------------------------
class Stream(data.IterableDataset):
    def __iter__(self) -> Any:
        return iter([np.full(2, i) for i in range(5)])


class CountedStream(Stream):
    def __len__(self) -> int:
        return 5


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=on_linux)])
def test_without_batches_each_example_goes_through_collate_fn_or_becomes_tensors(workers: int) -> None:
    doubled = data.DataLoader([1, 2, 3], batch_size=None, num_workers=workers, collate_fn=lambda number: number * 2)
    assert list(doubled) == [2, 4, 6]
    rows = list(data.DataLoader([(np.arange(2), "a"), (np.arange(3), "b")], batch_size=None, num_workers=workers))
    assert all(isinstance(row, TorchTensor) for row, _ in rows)
    assert [(row.tolist(), name) for row, name in rows] == [([0, 1], "a"), ([0, 1, 2], "b")]


def test_without_batches_each_example_of_a_stream_goes_through_collate_fn_or_becomes_a_tensor() -> None:
    assert [int(row.sum()) for row in data.DataLoader(Stream(), batch_size=None, collate_fn=lambda row: row * 3)] == \
        [0, 6, 12, 18, 24]
    assert all(isinstance(row, TorchTensor) for row in data.DataLoader(Stream(), batch_size=None))


def test_the_number_of_batches_of_a_stream_is_known_where_it_has_a_length() -> None:
    assert len(data.DataLoader(CountedStream(), 2)) == 3 and len(data.DataLoader(CountedStream(), None)) == 5
    assert len(data.DataLoader(CountedStream(), 2, drop_last=True)) == 2
    with pytest.raises(TypeError, match="has no len"):
        len(data.DataLoader(Stream(), 2))


def test_a_data_set_without_a_length_is_read_in_the_order_of_its_sampler() -> None:
    class Unknown(data.Dataset):
        def __getitem__(self, index: int) -> int: return index * 10

    assert [x.tolist() for x in data.DataLoader(Unknown(), 2, sampler=[4, 1, 3])] == [[40, 10], [30]]


@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": [0]}, {"batch_sampler": [[0]]}])
def test_a_stream_cannot_be_read_in_another_order(options: dict[str, Any]) -> None:
    with pytest.raises(InputError) as raised:
        data.DataLoader(Stream(), **options)
    assert str(raised.value).startswith("""a stream of examples has an order of its own
  given:    Stream, with shuffle, a sampler or a batch_sampler
  expected: a data set with a length and examples by index
  fix:      shuffle in its __iter__, or write __getitem__ and __len__""")


@pytest.mark.parametrize("options", [{"batch_size": 2}, {"shuffle": True}, {"sampler": [0]}, {"drop_last": True}])
def test_a_batch_sampler_alone_says_what_a_batch_is(options: dict[str, Any]) -> None:
    with pytest.raises(InputError) as raised:
        data.DataLoader([1, 2], batch_sampler=[[0], [1]], **options)
    assert str(raised.value).startswith("""a batch_sampler says already what a batch is
  given:    a batch_sampler, and one of batch_size, shuffle, sampler and drop_last
  expected: one or the other
  fix:      leave the others away: DataLoader(dataset, batch_sampler=batch_sampler)""")


def test_an_option_that_is_misspelled_is_an_error() -> None:
    with pytest.raises(TypeError, match="shufle"):
        data.DataLoader([1, 2], shufle=True)
    loader = data.DataLoader([1, 2], persistent_workers=True, pin_memory_device="cuda", in_order=False)
    assert [x.tolist() for x in loader] == [[1], [2]]


def test_an_example_before_the_first_is_an_index_error() -> None:
    both = data.ConcatDataset([[1, 2, 3], [4]])
    assert both[-4] == 1
    with pytest.raises(IndexError):
        both[-5]


@on_linux
def test_a_missing_key_in_a_worker_is_shown_in_lines() -> None:
    class Table(data.Dataset):
        def __len__(self) -> int: return 4
        def __getitem__(self, index: int) -> Any: return {"a": 1}["b"]

    with pytest.raises(KeyError) as raised:
        list(data.DataLoader(Table(), num_workers=1))
    assert str(raised.value).startswith("in DataLoader worker 0, whose traceback was:\n\nTraceback")
    assert "KeyError: 'b'\n" in str(raised.value)


class Workers(Squares):
    """Examples that say which worker made them."""

    def __getitem__(self, index: int) -> Any:
        info = data.get_worker_info()
        return -1 if info is None else info.id + 10 * info.num_workers + 100 * (info.dataset is self)


@on_linux
def test_a_worker_knows_its_number_its_seed_and_its_data_set() -> None:
    def begin(number: int) -> None:
        info = data.get_worker_info()
        assert info is not None and info.id == number
        info.dataset.n = info.seed

    class Seeds(Squares):
        def __getitem__(self, index: int) -> Any:
            return self.n

    assert [x.item() for x in data.DataLoader(Workers(4), num_workers=2)] == [120, 121, 120, 121]
    seeds = [int(x.item()) for x in data.DataLoader(Seeds(2), num_workers=2, worker_init_fn=begin)]
    assert seeds[1] == seeds[0] + 1


def test_outside_of_workers_there_is_no_worker_info_and_a_stream_is_read_once() -> None:
    class Shard(data.IterableDataset):
        def __iter__(self) -> Any:
            info = data.get_worker_info()
            return iter(range(6) if info is None else range(info.id, 6, info.num_workers))

    assert data.get_worker_info() is None and [x.item() for x in data.DataLoader(Workers(2))] == [-1, -1]
    assert [x.item() for x in data.DataLoader(Shard(), num_workers=2)] == [0, 1, 2, 3, 4, 5]


# -- what an epoch costs -----------------------------------------------------------------------------------------------
def kernels_of(make: Any) -> int:
    before = GlobalCounters.kernel_count
    make()
    return GlobalCounters.kernel_count - before


@pytest.mark.parametrize("n", [0, 1, 2, 64, 65, 5000])
def test_examples_are_shuffled_as_randperm_does(n: int) -> None:
    drawn = list(data.RandomSampler(range(n), generator=Generator().manual_seed(3)))
    assert drawn == randperm(n, generator=Generator().manual_seed(3)).tolist()


@pytest.mark.only_on("CPU", "CLANG", reason="on other devices, batches are gathered by kernels")
def test_an_epoch_of_tensors_runs_no_kernel_but_that_of_the_random_order() -> None:
    """The order was sorted by 56 kernels, and each epoch began with two copies of the tensors."""
    whole = data.TensorDataset(TorchTensor(np.zeros((5000, 3), np.float32)),
                               TorchTensor(np.arange(5000), dtype=dtypes.int64).realize())
    loader = data.DataLoader(whole, batch_size=500, shuffle=True)
    assert kernels_of(lambda: list(loader)) == 1


@pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="it reads the host's memory")
def test_the_tensors_of_a_data_set_are_read_in_place() -> None:
    """Each epoch began with a copy of them."""
    x = TorchTensor(np.zeros((1000, 1000), np.float32))
    loader = data.DataLoader(data.TensorDataset(x), batch_size=10)
    list(loader)
    tracemalloc.start()
    next(iter(loader))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < x.nbytes / 4


class Rows(data.Dataset):
    """Examples that are rows of tensors, changed by a function."""

    def __init__(self, n: int, change: Any):
        self.x, self.change = TorchTensor(np.arange(6.0 * n).reshape(n, 2, 3)).realize(), change
        self.y = TorchTensor(np.arange(n), dtype=dtypes.int64).realize()

    def __getitem__(self, index: int) -> Any:
        return self.change(self.x[index]), self.y[index]

    def __len__(self) -> int:
        return len(self.x)


@pytest.mark.parametrize("change, kernels", [(lambda x: x, 0), (lambda x: x.reshape(3, 2)[1:], 0), (lambda x: x.T, 1),
                                             (lambda x: x / 2, 1)])
def test_a_batch_of_rows_of_tensors_runs_no_kernel_and_one_of_other_tensors_one(change: Any, kernels: int) -> None:
    dataset, found = Rows(9, change), []
    ran = kernels_of(lambda: found.extend((x.realize(), y.realize()) for x, y in data.DataLoader(dataset, 3)))
    for number, (x, y) in enumerate(found):
        rows = [number * 3 + i for i in range(3)]
        assert y.tolist() == rows and y.dtype is dtypes.int64
        assert x.tolist() == [change(dataset.x[row]).tolist() for row in rows]
    assert ran == 3 * kernels or Device.DEFAULT not in ("CPU", "CLANG", "PYTHON")


def test_a_gradient_passes_from_a_batch_to_examples_that_want_one() -> None:
    rows = TorchTensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    (data.default_collate([rows[1], rows[0]]) * TorchTensor([[1.0], [5.0]])).sum().backward()
    assert rows.grad is not None and rows.grad.tolist() == [[5.0, 5.0], [1.0, 1.0]]


def test_tensors_of_several_shapes_make_no_batch() -> None:
    with pytest.raises(ShapeError, match=r"given:    shape \(2,\) of the first, \(3,\) of number 1 of the batch"):
        data.default_collate([TorchTensor([1.0, 2.0]), TorchTensor([1.0, 2.0, 3.0])])
