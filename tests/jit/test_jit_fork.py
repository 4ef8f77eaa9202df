"""A fork while another thread is inside a jitted call, or counts `no_grad` blocks: the child goes on."""

from __future__ import annotations

import os
import threading
import time

import pytest
from forked import in_child

from glassgrad import Tensor
from glassgrad.jit import TinyJit
from glassgrad.tensor.autograd import no_grad

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
FORKS = pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="a driver's threads are not in a forked process")


@FORKS
def test_a_jit_that_another_thread_is_in_works_in_a_forked_child() -> None:
    entered, leave = threading.Event(), threading.Event()

    @TinyJit
    def double(x: Tensor, wait: bool = False) -> Tensor:
        if wait:
            entered.set()
            leave.wait(60)
        return x * 2

    for i in range(3):
        double(Tensor([float(i)]))
    thread = threading.Thread(target=double, args=(Tensor([1.0]), True))
    thread.start()
    entered.wait(60)

    def check() -> bool:
        fresh = not double.captured              # what the other thread had half changed is forgotten
        return fresh and [double(Tensor([float(i)])).item() for i in range(4)] == [0.0, 2.0, 4.0, 6.0]
    status = in_child(check)
    leave.set()
    thread.join()
    assert status == 0
    assert double.captured and double(Tensor([5.0])).item() == 10.0


@FORKS
def test_a_jit_keeps_its_captures_in_a_forked_child() -> None:
    double = TinyJit(lambda x: x * 2)
    for i in range(3):
        double(Tensor([float(i)]))
    assert in_child(lambda: double.captured and double(Tensor([4.0])).item() == 8.0) == 0


def test_a_fork_waits_until_blocks_are_counted() -> None:
    taken = threading.Event()

    def hold() -> None:
        with no_grad._counting:
            taken.set()
            time.sleep(0.2)
    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait(60)

    def check() -> bool:
        with no_grad.no_grad():
            return no_grad.inside()
    assert in_child(check) == 0
    thread.join()
