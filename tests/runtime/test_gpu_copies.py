"""How CUDA and AMD copy, compile and search, on the fake drivers of fake_drivers.py: copies run beside kernels and in
no other order than events keep, kernels are compiled in threads, and candidates of a search cannot harm it."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_drivers
import numpy as np
import pytest
from fake_drivers import Opener, calls_of
from shim_device import needs_cxx

from glassgrad import Context, Tensor
from glassgrad.base.errors import Bug
from glassgrad.compiler.pipeline import build
from glassgrad.engine.realize import forgotten_schedules
from glassgrad.runtime.backend import Stopwatch
from glassgrad.runtime.gpu import cuda, cuda_hip_device, cuda_hip_memory
from glassgrad.runtime.gpu.gpu_device import Rejected
from glassgrad.runtime.search import beam, tuning_results

pytestmark = [needs_cxx, fake_drivers.take_the_place]


# -- copies ---------------------------------------------------------------------------------------------------------
def batches(device: str, steps: int = 8) -> list[float]:
    """Each step copies 128 KiB in while kernels of the step before may run, and drops the last batch."""
    rng, out = np.random.default_rng(5), []
    total = Tensor(np.zeros(1, "float32"), device=device).realize()
    for _ in range(steps):
        x = Tensor(rng.integers(0, 9, 32768).astype("float32"), device=device).realize()
        total = (total + (x * 2).sum()).realize()
        out.append(total)
    return [float(t.item()) for t in out]


@pytest.mark.parametrize("eager", ["", "copies", "kernels"])
def test_copies_concurrent_with_kernels_change_no_result(opened: Opener, eager: str) -> None:
    device, wanted = opened("CUDA", eager), batches("CPU")
    assert batches("CUDA") == wanted
    made = calls_of(device)
    assert made["copy_in"] == 9 and made["stream_awaits"] == 2 * 8, "one each way"
    assert made["synchronize"] == 0


def test_the_fake_driver_finds_a_copy_that_does_not_wait(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_hip_memory.DriverMemory, "_copy_stream", lambda self, address: self._stream)
    opened("CUDA", "copies")
    assert batches("CUDA") != batches("CPU")


def test_memory_in_use_is_not_written_before_kernels_have_read_it(opened: Opener) -> None:
    opened("CUDA", "copies")
    values = np.arange(32768, dtype="float32")
    x = Tensor(values, device="CUDA").realize()
    y = (x + 1).realize()
    x.uop.base.arg.copy_in(np.zeros_like(values))
    np.testing.assert_array_equal(y.numpy(), values + 1)
    np.testing.assert_array_equal(x.numpy(), 0 * values)


def test_copies_larger_than_all_pinned_memory(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_hip_memory, "_PIECE", 4096)
    device = opened()
    values = np.random.default_rng(0).standard_normal(70_001).astype("float32")
    values.flags.writeable = False
    block = device.memory.allocate(values.nbytes)
    device.memory.copy_in(block.address, memoryview(values))
    assert bytes(device.memory.copy_out(block.address, values.nbytes)) == values.tobytes()
    assert bytes(device.memory.copy_out(block.address + 4, 8)) == values[1:3].tobytes()
    assert device.memory.copy_out(block.address, 0) == b"" and len(device.library.pinned) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["CUDA", "AMD"])
def test_a_pool_above_its_limit_gives_memory_back_after_the_kernels(opened: Opener, name: str) -> None:
    device = opened(name)
    values = np.arange(1 << 18, dtype="float32")
    with Context(POOL_MB=1):
        x = Tensor(values, device=name).realize()
        y = (x + 1).realize()
        calls_of(device)
        del x                                    # the kernel that reads it may not have run
        assert device.memory.stats().pooled == 1 << 20 and calls_of(device)["free"] == 0, "the pool is full, not above"
        z = (y * 2).realize()
        del y                                    # x's memory is z's, and y's is kept
        assert z.numpy().tolist() == ((values + 1) * 2).tolist()
        w = (z * 2).realize()
        made = calls_of(device)
        assert made["free"] == 0
        kept = [(w + i).realize() for i in range(3)]
        calls_of(device)
        del kept
        made = calls_of(device)
        assert device.memory.stats().pooled == 1 << 20 and made["free"] == 2 and made["synchronize"] == 2
        assert w.numpy().tolist() == ((values + 1) * 4).tolist()


@pytest.mark.parametrize("size", [1, 5, 40_000, 600_000])
def test_an_array_of_values_is_memory_of_its_own(opened: Opener, size: int) -> None:
    opened()
    values = np.random.default_rng(size).standard_normal(size).astype("float32")
    x = Tensor(values, device="CUDA").realize()
    first = x.numpy()
    np.testing.assert_array_equal(first, values)
    first[:] = 0
    second = x.numpy()
    np.testing.assert_array_equal(second, values)
    assert x[0].item() == values[0] and x[:3].tolist() == values[:3].tolist() and not np.shares_memory(first, second)


# -- compiling ------------------------------------------------------------------------------------------------------
def test_kernels_of_a_schedule_are_compiled_at_the_same_time(opened: Opener, monkeypatch: pytest.MonkeyPatch,
                                                             tmp_path: Path) -> None:
    device = opened()
    monkeypatch.setenv("CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cuda_hip_device, "available_cores", lambda: 2)
    real, together, count = cuda.compile_cuda, threading.Barrier(2, timeout=60), Counter[str]()

    def compile_cuda(source: str, architecture: str) -> bytes:
        count[threading.current_thread().name[:17]] += 1
        together.wait()                          # both are here at once, or it fails
        return real(source, architecture)
    monkeypatch.setattr(cuda, "compile_cuda", compile_cuda)
    x = Tensor(np.arange(12, dtype="float32").reshape(3, 4), device="CUDA").realize()

    def program() -> list[float]:
        with forgotten_schedules():
            return list(((x.sum(0).contiguous() + 3.25) * x.max()).tolist())
    wanted = ((np.arange(12).reshape(3, 4).sum(0) + 3.25) * 11).tolist()
    assert program() == wanted and count == {"glassgrad-compile": 2 * (count.total() // 2)} and count
    again = opened()
    x = Tensor(np.arange(12, dtype="float32").reshape(3, 4), device="CUDA").realize()
    known = count.total()
    assert program() == wanted and count.total() == known, "another device finds the machine code on disk"
    assert calls_of(again)["load"] == calls_of(device)["load"] == known


def test_kernels_compile_while_python_ends(opened: Opener, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened()
    monkeypatch.setenv("CACHE_DIR", str(tmp_path))
    x = Tensor(np.arange(12, dtype="float32"), device="CUDA").realize()
    monkeypatch.setattr("concurrent.futures.thread._shutdown", True)
    with forgotten_schedules():
        assert (x * 2.625).tolist() == (np.arange(12) * 2.625).tolist()


def test_source_that_the_compiler_refuses(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    opened()

    def refuse(source: str, architecture: str) -> bytes:
        raise Rejected("kernel.cu(1): error: it is Monday")
    monkeypatch.setattr(cuda, "compile_cuda", refuse)
    with Context(CACHE=0), pytest.raises(Bug, match="CUDA does not take a kernel: .*it is Monday"):
        (Tensor(np.ones(7, "float32"), device="CUDA") * 5.125).realize()


# -- searching ------------------------------------------------------------------------------------------------------
def at_the_start(source: str, line: str) -> str:
    """A kernel with one line more."""
    return re.sub(r"^  (?=i(32|64) task = blockIdx.x;)", f"  {line}\n  ", source, flags=re.M)


def loop(source: str) -> str:
    return at_the_start(source, "for (volatile int on = 1; on;);")


def stray(source: str) -> str:
    return at_the_start(source, "data0[1 << 30] = 1;")


def wrong(source: str) -> str:
    return at_the_start(source, "return;")


def test_a_search_measures_on_the_gpu_and_survives_its_candidates(opened: Opener) -> None:
    device = opened()
    x = Tensor(np.arange(8192, dtype="float32"), device="CUDA").realize()
    worker = beam.Worker([sys.executable, str(Path(fake_drivers.__file__).with_name("fake_gpu_worker.py"))])
    try:
        with Context(BEAM=1, BEAM_SECONDS=400.0):
            one = beam.Search((x * 1.75 + 3).schedule()[-1].ast, device, worker)
        one.begin()
        assert one.recipe_ns == 2_000_000, "as the driver says"
        one.deadline = time.monotonic() + 1000
        near = [tuple(moves) for moves in one._decided[one.recipe].neighbours()]
        assert len(one.pairs_of(near[0])) >= 2 and not (one.wrong or one.killed)
        real = one.built
        for number, (change, outcome) in enumerate([(wrong, (1, 0)), (stray, (1, 1)), (loop, (1, 2))], 1):
            one.built = lambda moves, change=change: _changed(real(moves), change)  # type: ignore[method-assign]
            one.seconds = 8.0 if change is loop else 400.0           # what never ends is given two seconds
            assert one.pairs_of(near[number]) == [] and (one.wrong, one.killed) == outcome, change.__name__
            one.built, one.seconds = real, 400.0  # type: ignore[method-assign]
        assert len(one.pairs_of(near[4])) >= 2, "the search goes on in a new process"
    finally:
        worker.close()


def _changed(built: tuple[Any, str, Any], change: Callable[[str], str]) -> tuple[Any, str, Any]:
    moves, source, how = built
    assert change(source) != source
    return moves, change(source), how


def test_what_a_search_found_is_what_runs(opened: Opener, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device = opened()
    monkeypatch.setenv("CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tuning_results, "_known", {})
    asked = []

    def search(kernels: Any, device: Any) -> None:
        asked.append((device.language, device.compiler, device.searched_on))
        for ast in kernels:
            decided = build(ast, device.target, device.language, say=False).decisions
            assert decided is not None
            tuning_results.keep(tuning_results.Tuned("k", tuning_results.digest_of(ast), device.compiler, 1, 1.0, True,
                                                     1, (), 2.0, tuple(decided.neighbours()[0]), 1.0))
    monkeypatch.setattr(beam, "search", search)
    x = Tensor(np.arange(8192, dtype="float32"), device="CUDA").realize()
    [ast] = [item.ast for item in (x * 2.5).schedule()]
    [recipe] = device.programs([ast])
    with Context(BEAM=1):
        [tuned] = device.programs([ast])
        np.testing.assert_array_equal((x * 2.5).numpy(), np.arange(8192, dtype="float32") * 2.5)
        assert tuned.moves == device.moves(ast) != recipe.moves and tuned.speedup == 2.0
        assert device.loop_tree(ast).moves == list(tuned.moves)
    assert asked == [("cuda", "A GPU, sm_75, compiled by nvrtc 0.0", "CUDA")]
    assert recipe.speedup == 0.0 and device.moves(ast) == ()


def test_the_first_timed_run_stands_for_itself_alone() -> None:
    times = iter([9000, 10, 20, 30])

    class Plan:
        programs, runner = [None], lambda self: lambda: 0
        run_one = staticmethod(lambda number: next(times))
    watch = Stopwatch(Plan())                    # type: ignore[arg-type]
    watch.run(every=False)
    assert (watch.totals, watch.timed_runs) == ([9000], 1)
    for _ in range(4):
        watch.run(every=False)
    assert (watch.totals, watch.timed_runs, watch.runs) == ([60], 3, 5)
