"""GUARD_PAGES=1: a stray access to a tensor's memory ends the process at that access."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from glassgrad.base.errors import Bug
from glassgrad.runtime.guarded_memory import GuardedMemory
from glassgrad.runtime.memory_pool import Stats

ROOT = Path(__file__).resolve().parents[2]
ALLOCATE = """
import ctypes
from glassgrad.runtime.guarded_memory import GuardedMemory
memory = GuardedMemory()
block = memory.allocate(1000)
"""


def run(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], cwd=ROOT, env={**os.environ, **variables},
                          capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(sys.platform == "win32", reason="the exit status of a forbidden access is another one there")
@pytest.mark.parametrize("access", [
    "ctypes.string_at(block.address + 1024, 1)",                                             # beyond the rounding
    "ctypes.memset(block.address + 1024, 0, 1)",
    "ctypes.string_at((block.address & -4096) - 1, 1)",                                      # before the first page
    "at = block.address; memory.release(block); ctypes.string_at(at, 1)",                    # after the release
])
def test_an_access_outside_a_block_ends_the_process(access: str) -> None:
    assert run(ALLOCATE + access).returncode == -signal.SIGSEGV


@pytest.mark.skipif(sys.platform == "win32", reason="the exit status of a forbidden access is another one there")
@pytest.mark.parametrize(("at", "ends"), [(999, 0), (1000, -signal.SIGSEGV)])
def test_a_block_ends_at_the_very_byte(at: int, ends: int) -> None:
    assert run(f"{ALLOCATE}ctypes.string_at(block.address + {at}, 1)", GUARD_PAGES="2").returncode == ends


def test_every_byte_of_a_block_can_be_used() -> None:
    done = run(ALLOCATE + "ctypes.memset(block.address, 7, 1000); print(memory.copy_out(block.address, 1000)[-1])")
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr


def test_programs_run_as_usual_with_guard_pages() -> None:
    done = run("""
from glassgrad import Device, Tensor
x = Tensor.arange(35).reshape(5, 7).float().contiguous()
print(type(Device["CPU"].memory).__name__, (x @ x.T).sum().item(), x.flip(0)[1:, ::2].cumsum(0).sum().item())
""", GUARD_PAGES="1", DEV="CPU")
    assert done.stdout == "GuardedMemory 51275.0 680.0\n", done.stderr


def test_strided_windows_read_nothing_outside_their_image() -> None:
    done = run("""
from glassgrad import Tensor
for size in range(24, 44):
    for stride in (2, 3, 4):
        x, w = Tensor.ones(4, 8, size, size).contiguous().realize(), Tensor.ones(8, 1, 3, 3).contiguous().realize()
        x.conv2d(w, groups=8, padding=1, stride=stride).realize()
print("done")
""", GUARD_PAGES="2", DEV="CPU", DYNAMIC="0")
    assert done.stdout == "done\n", done.stderr


def test_odd_sizes_read_nothing_beyond_their_last_byte() -> None:
    """Memory of other libraries is not rounded up to whole vectors, and may begin at any element."""
    done = run("""
from glassgrad import Tensor, dtypes
for size in (1, 7, 17, 33):
    for dtype in (dtypes.float32, dtypes.uint8):
        x = (Tensor.arange(size * 5) % 7).cast(dtype).reshape(5, size).contiguous().realize()
        for y in (x + 1, x.sum(0), x.sum(1), x.max(), x.T.contiguous(), x.flip(1).contiguous(), x[:, ::2].contiguous(),
                  x[:, 1::3].contiguous(), x.pad((1, 2)).contiguous(), x @ x.T, x.T @ x, x.cumsum(1), x.sort(1)[0]):
            y.realize()
print("done")
""", GUARD_PAGES="2", DEV="CPU", DYNAMIC="0")
    assert done.stdout == "done\n", done.stderr


def test_released_blocks_are_given_back_when_the_cache_is_emptied() -> None:
    memory = GuardedMemory()
    block = memory.allocate(100)
    assert memory.stats() == Stats(live=128, pooled=0, peak=128)
    memory.release(block)
    assert memory.stats().live == 0 < memory.stats().pooled
    with pytest.raises(Bug):
        memory.release(block)
    memory.empty_cache()
    assert memory.stats().pooled == 0
