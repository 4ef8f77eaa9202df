"""The worker pool where a process ends, forks or is interrupted: each case is a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from pool_kernels import KERNELS

ROOT = Path(__file__).resolve().parents[2]

PRELUDE = """
import ctypes, os, signal, sys, threading, time
import numpy as np
from glassgrad.runtime.cpu import llvm_compiler as llvm
from glassgrad.runtime.cpu.elf_loader import Image
from glassgrad.runtime.cpu.worker_pool import WorkerPool
sys.path.insert(0, "tests/reference")
from pool_kernels import CommandList
image = Image(llvm.compile_ir(KERNELS))
pool, counts = WorkerPool(4), np.zeros(50, np.int64)
commands = CommandList([(image.address("count"), [counts.ctypes.data], 50, False)] * 20)
def launch(times=1):
    for _ in range(times): pool.run(commands.address, 20)
cell = np.array([1], np.int64)
busy = CommandList([(image.address("busy"), [cell.ctypes.data], 4, False)])
"""


def run_script(body: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    script = f"KERNELS = {KERNELS!r}\n{PRELUDE}\n{textwrap.dedent(body)}"
    return subprocess.run([sys.executable, "-X", "faulthandler", "-c", script], cwd=ROOT, capture_output=True,
                          text=True, timeout=timeout)


@pytest.mark.skipif(not hasattr(sys, "getswitchinterval") or sys.platform == "win32", reason="no fork here")
def test_fork() -> None:
    """Children rebuild the pool, also when the parent forked while another of its threads was launching."""
    done = run_script("""
        launch()
        stop = []
        other = threading.Thread(target=lambda: [launch() for _ in iter(lambda: bool(stop), True)])
        other.start()
        for number in range(12):
            child = os.fork()
            if child == 0:
                counts[:] = 0
                launch(5)
                workers = sum(t.name.startswith("glassgrad-worker") for t in threading.enumerate())
                os._exit(0 if (counts == 100).all() and workers == 3 else 1)
            assert os.waitpid(child, 0)[1] == 0, "the child failed"
        stop.append(1)
        other.join()
        counts[:] = 0
        launch(5)
        assert (counts == 100).all()
        child = os.fork()
        if child == 0:
            launch()
            sys.exit(0)                         # the ordinary way out, with its own workers to join
        assert os.waitpid(child, 0)[1] == 0
        print("fine")
    """)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


@pytest.mark.parametrize("ending", [
    "launch()",                                                                         # workers spin
    "launch(); time.sleep(0.05)",                                                       # workers sleep
    "threading.Thread(target=lambda: launch(10**9), daemon=True).start(); time.sleep(0.05)",   # launching for ever
    "pool = None",                                                                      # dropped before the end
    "import atexit; atexit.register(launch); launch()",                                 # launching while it ends
    "import weakref; f = weakref.finalize(counts.base if counts.base is not None else pool, launch)",
], ids=["spinning", "asleep", "launching", "dropped", "atexit", "finalizer"])
def test_interpreter_exit(ending: str) -> None:
    start = time.monotonic()
    done = run_script(f"launch(3)\nprint('end', flush=True)\n{ending}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
    assert time.monotonic() - start < 60


@pytest.mark.parametrize("python", ["this one", "as 3.12"])
def test_the_first_kernel_may_run_while_the_process_ends(python: str) -> None:
    """From Python 3.12 on no thread starts then: the calling thread runs all tasks, to the same bits."""
    done = run_script("""
        import atexit
        from glassgrad import Context, Tensor
        x = Tensor(np.random.default_rng(0).standard_normal((600, 700)).astype(np.float32)).realize()
        def value():
            return ((x @ x.T).exp() / 3).sum(0).realize().numpy().tobytes()
        def late(start=threading.Thread.start):
            def refused(thread):
                raise RuntimeError("can't create new thread at interpreter shutdown")
            if AS_312:
                threading.Thread.start = refused
            launch(3)
            os.write(1, b"same" if value() == before and (counts == 60).all() else b"different")
            threading.Thread.start = start
        with Context(THREADS=3):
            before = value()
        atexit.register(late)
    """.replace("AS_312", str(python == "as 3.12")))
    assert (done.returncode, done.stdout, done.stderr) == (0, "same", "")


@pytest.mark.skipif(sys.platform == "win32", reason="no POSIX signals here")
def test_control_c_arrives_after_the_call_and_the_pool_survives() -> None:
    done = run_script("""
        cell[0] = 500_000_000
        threading.Timer(0.15, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            pool.run(busy.address, 1)
            time.sleep(5)
            print("not interrupted")
        except KeyboardInterrupt:
            print("interrupted")
        counts[:] = 0
        launch(5)
        print((counts == 100).all(), sum(t.name.startswith("glassgrad-worker") for t in threading.enumerate()))
    """)
    assert (done.returncode, done.stdout) == (0, "interrupted\nTrue 3\n"), done.stderr


def test_a_share_that_was_empty_for_millions_of_commands_is_claimed_again() -> None:
    """Commands of two tasks leave the other workers' shares as they are; the numbers of commands wrap meanwhile."""
    done = run_script("""
        from glassgrad.runtime.cpu.worker_pool_source import CONSTANTS, OFFSETS
        launch()                                            # 50 tasks: every worker has a share
        small = CommandList([(image.address("count"), [counts.ctypes.data], 2, False)] * 4)
        word = ctypes.c_int64.from_address(pool._crew.address + OFFSETS["WORD"])
        renewed = CONSTANTS["COMMANDS"] >> 2
        for number in (renewed, 2 * renewed, 3 * renewed):
            word.value = (number - 2) * CONSTANTS["ONE_COMMAND"]         # as after so many commands
            pool.run(small.address, 4)
        counts[:] = 0
        launch(5)
        assert (counts == 100).all()
        print("fine")
    """, timeout=30)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
