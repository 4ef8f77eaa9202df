"""A fork while other threads compile and run kernels: the child finds no lock held, and computes."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from typing import Any

import pytest
from forked import in_child
from scripts import run_script

from glassgrad.base import fork_locks as fork
from glassgrad.base.errors import DeviceError
from glassgrad.runtime.cpu.processor import host_description
from glassgrad.runtime.devices import Device
from glassgrad.runtime.gpu.handle_memory import MemoryByHandle
from glassgrad.runtime.python.python_device import PythonDevice

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

# Each child has a limit of its own, after which it says where it stands and ends.
CHILDREN = """
    import faulthandler, itertools, os, threading
    from glassgrad import Tensor
    stop = []

    def compile_kernels():
        for number in itertools.count(3):                  # a shape of its own each time: never in a cache
            if stop: return
            (Tensor.ones(number, 5) * 2).exp().sum(0).realize()

    def run_kernels():
        while not stop:
            (Tensor.ones(200, 200) @ Tensor.ones(200, 200)).sum().item()

    run_kernels_once = (Tensor.ones(200, 200) @ Tensor.ones(200, 200)).sum().item()
    threads = [threading.Thread(target=work, daemon=True) for work in (WORK, WORK)]
    for thread in threads: thread.start()
    wrong = []
    for number in range(8):
        child = os.fork()
        if child == 0:
            faulthandler.dump_traceback_later(60, exit=True)
            x = (Tensor.ones(64, 64) @ Tensor.ones(64, 64)).sum().item()
            y = (Tensor.ones(3, 50 + number) * 3).sum(1).tolist()
            os._exit(0 if (x, y) == (64.0 ** 3, [3.0 * (50 + number)] * 3) else 3)
        wrong += [status] if (status := os.waitpid(child, 0)[1]) else []
    stop.append(1)
    for thread in threads: thread.join()
    print((Tensor([1, 2]) + 1).tolist(), wrong)
"""


@pytest.mark.parametrize("work", ["compile_kernels", "run_kernels"])
def test_a_fork_while_other_threads_work(work: str) -> None:
    out, errors = run_script(CHILDREN.replace("WORK", work), CACHE="0")
    assert out == "[2, 3] []\n", errors


def test_a_fork_takes_the_locks_in_their_order_and_releases_them(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []

    class Lock:
        def __init__(self, name: str):
            self.name, self.lock = name, threading.Lock()

        def acquire(self) -> None:
            self.lock.acquire()
            taken.append(self.name)

        def release(self) -> None:
            self.lock.release()

    monkeypatch.setattr(fork, "_registered", {})
    locks = [fork.held_at_fork(Lock(name), name) for name in reversed(fork.ORDER)]
    fork.held_at_fork(Lock("gone"), "memory")
    child = os.fork()
    if child == 0:
        os._exit(0 if not any(lock.lock.locked() for lock in locks) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert taken == list(fork.ORDER) and not any(lock.lock.locked() for lock in locks)


def test_memory_by_handle_is_refused_in_a_forked_process_and_goes_on_in_its_parent() -> None:
    class Memory(MemoryByHandle):
        def new_handle(self, size: int) -> bytearray:
            return bytearray(size)

    memory = Memory("MINE")
    block = memory.allocate(8)
    child = os.fork()
    if child == 0:
        words = "MINE does not work in a forked process: its driver's threads are not there"
        refused = 0
        for use in (lambda: memory.allocate(8), lambda: memory.find(block.address)):
            try:
                use()
            except DeviceError as error:
                refused += error.what == words
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert memory.find(block.address + 3)[1] == 3


# A thread compiles the process's first kernel, and is inside the import of a module of the compiler when it forks.
FIRST_KERNEL = """
    import gc, os, signal, sys, threading, time
    from glassgrad import Tensor
    importing = threading.Event()

    class Slow:
        def find_spec(self, name, path=None, target=None):
            if name == "MODULE" and not importing.is_set():
                importing.set()
                time.sleep(0.5)

    sys.meta_path.insert(0, Slow())
    thread = threading.Thread(target=lambda: (Tensor.ones(3, 5) * 2).exp().sum(0).realize())
    thread.start()
    print(importing.wait(60))
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        right = (Tensor.ones(3, 4) * 2).sum(0).tolist() == [6.0] * 4
        os._exit(0 if right and gc.isenabled() else 3)
    print(os.waitpid(child, 0)[1])
    thread.join()
"""


@pytest.mark.parametrize("module", ["glassgrad.runtime.cpu.native_device", "glassgrad.compiler.render.launch_info",
                                    "llvmlite"])
def test_a_fork_while_another_thread_imports_the_compiler(module: str) -> None:
    out, errors = run_script(FIRST_KERNEL.replace("MODULE", module), CACHE="0", DEVICE="CPU")
    assert out == "True\n0\n", errors


def test_a_fork_while_another_thread_computes_a_cached_property() -> None:
    entered, leave = threading.Event(), threading.Event()

    class Waiting(frozenset[str]):
        def __contains__(self, name: object) -> bool:
            entered.set()
            return leave.wait(60)

    slow, fast = (dataclasses.replace(host_description(), features=f) for f in (Waiting(), frozenset[str]()))
    thread = threading.Thread(target=lambda: slow.vector_bytes)
    thread.start()
    entered.wait(60)
    status = in_child(lambda: fast.vector_bytes == 16)
    leave.set()
    thread.join()
    assert status == 0


def test_a_device_that_threads_and_a_forked_child_use_at_once_is_opened_once() -> None:
    entered, opened = threading.Event(), list[Any]()

    def open_slowly(name: str) -> PythonDevice:
        entered.set()
        time.sleep(0.2)
        opened.append(PythonDevice(name))
        return opened[-1]

    Device.register("SLOWLY", open_slowly)
    try:
        threads = [threading.Thread(target=lambda: Device["SLOWLY"]) for _ in range(2)]
        for thread in threads:
            thread.start()
        entered.wait(60)
        status = in_child(lambda: Device["SLOWLY"] is opened[0])
        for thread in threads:
            thread.join()
        assert status == 0 and opened == [Device["SLOWLY"]]
    finally:
        Device.unregister("SLOWLY")


def test_a_fork_also_takes_a_lock_that_is_made_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork, "_registered", {})
    outer, taken, made = fork.held_at_fork(threading.Lock(), "schedule"), threading.Event(), list[Any]()

    def work() -> None:
        with outer:
            taken.set()
            time.sleep(0.2)
            made.append(fork.held_at_fork(threading.Lock(), "pool"))
            made[0].acquire()
        time.sleep(0.2)
        made[0].release()

    thread = threading.Thread(target=work)
    thread.start()
    taken.wait(60)
    status = in_child(lambda: not made[0].locked())
    thread.join()
    assert status == 0
