"""Collect batches in other processes. In: a data set and lists of indices. Out: the batches, in order.

Each worker process has a pipe: lists of indices go in, collated batches come back, their arrays through shared memory
(batch_transport.py). Batches are assigned and received round-robin, so their order is that of the sampler, and each
worker has a few ahead (`prefetch_factor`). An error in a worker is raised here with its traceback; a worker that dies
is an error, not a wait; Ctrl-C and a loop that is left early end all workers. Does not depend on samplers or on how
examples are collated.
"""

from __future__ import annotations

import multiprocessing
import queue
import random
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from glassgrad.base.errors import GlassgradError
from glassgrad.compat.torch.utils.batch_transport import BatchSender, ReceivedBlocks, SentBatch, receive_descriptor
from glassgrad.runtime.devices import Device

GRACE_SECONDS = 0.5             # for workers to exit before they are killed

Collect = Callable[[Sequence[Any]], Any]        # indices -> a batch that can be pickled


class WorkerError(GlassgradError, RuntimeError):
    """A worker process that died, or took longer than `timeout`."""


class WorkerOptions(NamedTuple):
    """The number of workers, and other options of `DataLoader`."""
    workers: int
    prefetch: int
    timeout: float              # seconds to wait for a batch; 0: for ever
    start: Callable[[int], Any] | None          # called in each worker with its number
    context: Any                # of multiprocessing, or its name
    seed: int
    dataset: Any                # what the batches are collected from


class WorkerInfo(NamedTuple):
    """What a worker process knows about itself."""
    id: int                     # 0 to num_workers - 1
    num_workers: int
    seed: int                   # of Python's random numbers and NumPy's in this worker
    dataset: Any                # this worker's copy


_this_worker: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """Return the number, seed and data set of the `DataLoader` worker that this process is; None in other processes."""
    return _this_worker


class _Lines(str):
    """A text whose repr, which a KeyError shows, is itself."""

    def __repr__(self) -> str: return str(self)


class _Failure(NamedTuple):
    """An exception in a worker: its class if that can be pickled, and its traceback as text."""
    kind: type[BaseException]
    text: str

    def error(self, worker: int) -> BaseException:
        """Return the exception to raise here: of the same class, if that can be constructed from a message."""
        message = f"in DataLoader worker {worker}, whose traceback was:\n\n{self.text}"
        try:
            return self.kind(_Lines(message) if issubclass(self.kind, KeyError) else message)
        except Exception:
            return RuntimeError(message)


# -- in a worker -------------------------------------------------------------------------------------------------------
def _work(pipe: Connection, parents: Sequence[Connection], collect: Collect, number: int,
          options: WorkerOptions) -> None:
    """Collect batches until the pipe is closed."""
    global _this_worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)        # Ctrl-C reaches every process; the parent ends its workers
    for end in parents:                                 # inherited by fork: open, they hide the parent's death
        end.close()
    Device.DEFAULT = "CPU"                              # a GPU's driver does not work in a forked process
    _this_worker = WorkerInfo(number, options.workers, options.seed + number, options.dataset)
    random.seed(_this_worker.seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(_this_worker.seed % 2 ** 32)
    # a thread reads requests: a worker blocked on sending a batch must still receive, or both sides deadlock
    sender, waiting = BatchSender(pipe, options.prefetch), queue.Queue[Any]()
    threading.Thread(target=_receive_all, args=(pipe, waiting), daemon=True).start()
    try:
        if options.start is not None:
            options.start(number)
        while (indices := waiting.get()) is not None:
            sender.send(collect(indices))
    except (BrokenPipeError, ConnectionResetError):     # the parent has closed the pipe
        pass
    except Exception as problem:
        _send_failure(pipe, problem)


def _receive_all(pipe: Connection, waiting: queue.Queue[Any]) -> None:
    try:
        while True:
            waiting.put(pipe.recv())
    except (EOFError, OSError):
        waiting.put(None)


def _send_failure(pipe: Connection, problem: Exception) -> None:
    text = "".join(traceback.format_exception(problem))
    try:
        pipe.send(_Failure(type(problem), text))
    except (BrokenPipeError, ConnectionResetError):
        pass
    except Exception:                                   # a class that cannot be pickled
        pipe.send(_Failure(RuntimeError, text))


# -- in the parent -----------------------------------------------------------------------------------------------------
class _Worker:
    """A worker process and the parent's end of its pipe."""

    def __init__(self, number: int, collect: Collect, options: WorkerOptions, others: Sequence[_Worker]):
        context = options.context
        if context is None or isinstance(context, str):
            forks = sys.platform == "linux"             # elsewhere a fork is unsafe, or there is none
            context = multiprocessing.get_context(context or ("fork" if forks else "spawn"))
        self.number, self.options = number, options
        self.pipe, theirs = context.Pipe()
        self.blocks = ReceivedBlocks(options.prefetch)
        forked = context.get_start_method() == "fork"
        inherited = [worker.pipe for worker in others] + [self.pipe] if forked else []
        self.process = context.Process(target=_work, args=(theirs, inherited, collect, number, options), daemon=True)
        self.process.start()
        theirs.close()

    def take(self) -> Any:
        """Return the next batch of this worker."""
        ready = wait([self.pipe, self.process.sentinel], self.options.timeout or None)
        if not ready:
            raise WorkerError("a batch took too long", given=f"nothing from worker {self.number} after "
                              f"{self.options.timeout:g} s", expected="a batch within the timeout",
                              fix="raise timeout, or look at what __getitem__ does")
        try:
            found = self.pipe.recv() if self.pipe in ready or self.pipe.poll() else None
            descriptor = receive_descriptor(self.pipe) if isinstance(found, SentBatch) and found.new_block else None
        except (EOFError, OSError):
            found = None
        if isinstance(found, SentBatch):
            return self.blocks.batch(found, descriptor)
        raise self._died() if found is None else found.error(self.number)

    def _died(self) -> WorkerError:
        self.process.join(GRACE_SECONDS)
        return WorkerError("a worker of DataLoader died", given=f"worker {self.number} ended with exit code "
                           f"{self.process.exitcode}", expected="a process that collects batches",
                           fix="run with num_workers=0 to see where it fails; a code of -9 is often too little memory")


def batches_from_workers(collect: Collect, batches: Iterable[Sequence[Any]], options: WorkerOptions) -> Iterator[Any]:
    """Yield the results of `collect` for each list of indices, computed by worker processes, in order."""
    workers: list[_Worker] = []
    waiting: deque[_Worker] = deque()                   # in the order of their batches
    lists = iter(batches)

    def give(worker: _Worker) -> None:
        """Give a worker its next list of indices, if there is one."""
        for indices in lists:
            try:
                worker.pipe.send(indices)
            except (BrokenPipeError, ConnectionResetError):     # it has failed: `take` says why
                pass
            waiting.append(worker)
            return

    try:
        for number in range(options.workers):
            workers.append(_Worker(number, collect, options, workers))
        for _ in range(options.prefetch):
            for worker in workers:
                give(worker)
        while waiting:
            worker = waiting.popleft()
            found = worker.take()
            give(worker)
            yield found
    finally:
        _end(workers)


def _end(workers: Sequence[_Worker]) -> None:
    """Close all pipes, which ends the workers; kill those that do not end in time."""
    for worker in workers:
        worker.pipe.close()
    until = time.monotonic() + GRACE_SECONDS
    for worker in workers:
        worker.process.join(max(0.0, until - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
