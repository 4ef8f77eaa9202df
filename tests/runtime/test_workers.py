"""The worker pool, compiled by LLVM and by the C compiler. References: arithmetic that only comes out right if every
task ran exactly once, after the command before it, with an arena of its own; and rendezvous that need every worker
awake."""

from __future__ import annotations

import ctypes
import platform
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pool_kernels import KERNELS, CommandList, with_delays

from glassgrad.base.errors import Bug, DeviceError
from glassgrad.base.settings import Context
from glassgrad.runtime.cpu import llvm_compiler as llvm, worker_pool as workers
from glassgrad.runtime.cpu.c_compiler import compile_c
from glassgrad.runtime.cpu.elf_loader import ElfObject, Image
from glassgrad.runtime.cpu.processor import host_description
from glassgrad.runtime.cpu.worker_pool import Command, Native, WorkerPool, worker_pool
from glassgrad.runtime.cpu.worker_pool_renderer import c_text, ir_text
from glassgrad.runtime.cpu.worker_pool_source import MOST_TASKS, OFFSETS, SHARE

pytest.importorskip("llvmlite", reason="the kernels of these tests are LLVM IR")

ROOT = Path(__file__).resolve().parents[2]
image = Image(llvm.compile_ir(KERNELS))
FOLLOW, COUNT, ARENA, MEET, BUSY = (image.address(name) for name in ("follow", "count", "arena", "meet", "busy"))
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)


@pytest.fixture(scope="module", params=["llvm", "c"])
def native(request: pytest.FixtureRequest) -> Native:
    try:
        ir = ir_text(host_description().arch)
        return Native(compile_c(c_text()) if request.param == "c" else llvm.compile_ir(ir))
    except DeviceError as missing:
        pytest.skip(str(missing))


@pytest.fixture(params=[1, 2, 4])
def pool(request: pytest.FixtureRequest, native: Native) -> Iterator[WorkerPool]:
    made = WorkerPool(request.param, native=native)
    yield made
    made.close()


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def test_every_task_runs_once_and_commands_follow_each_other(pool: WorkerPool, seed: int) -> None:
    _follow(pool, random.Random(seed))


def test_each_worker_claims_its_tasks_in_a_cache_line_of_its_own(native: Native) -> None:
    pool = WorkerPool(3, native=native)
    _follow(pool, random.Random(0))
    assert pool._crew is not None
    words = (ctypes.c_int64 * (3 * SHARE // 8)).from_address(pool._crew.address + OFFSETS["SHARES"])
    used = {8 * at // 64 for at, word in enumerate(words) if word}
    pool.close()
    assert len(used) == 3


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="it reads the clock of x86-64")
@pytest.mark.parametrize("threads", [2, 3, 7])
def test_delays_between_atomic_operations_change_nothing(threads: int, seed: int) -> None:
    """As when other processes take a worker's core away between any two steps."""
    text = with_delays(c_text())
    assert text.count("delay();") == 6
    try:
        pool = WorkerPool(threads, native=Native(compile_c(text)))
    except DeviceError as missing:
        pytest.skip(str(missing))
    _follow(pool, random.Random(seed))
    pool.close()


def _follow(pool: WorkerPool, chance: random.Random) -> None:
    n = 97
    cell = np.array([n], np.int64)
    for _ in range(20):
        steps = chance.randrange(1, 60)
        buffers = np.zeros((steps + 1, n), np.int64)
        buffers[0] = np.arange(n) * 1000
        launches = [(FOLLOW, [address(buffers[k]), address(buffers[k + 1]), address(cell)], n, chance.random() < 0.2)
                    for k in range(steps)]
        commands = CommandList(launches)
        pool.run(commands.address, len(commands))
        expected = buffers[0]
        for k in range(steps):
            expected = expected[(7 * np.arange(n) + 3) % n] + 1
            assert (buffers[k + 1] == expected).all(), f"command {k} of {steps}"


def test_stress_with_random_counts_and_gaps(native: Native, seed: int) -> None:
    """100,000 launches in lists of random length, between which workers spin, are falling asleep, or sleep."""
    chance = random.Random(seed)
    for threads, launches, limit in ((2, 60_000, 120.0), (4, 40_000, 120.0)):
        pool, counts, expected = WorkerPool(threads, native=native), np.zeros(64, np.int64), np.zeros(64, np.int64)
        start, done = time.monotonic(), 0
        while done < launches:
            tasks = [chance.choice((0, 1, 2, 3, 5, 17, 64)) for _ in range(chance.choice((1, 1, 2, 10, 400)))]
            commands = CommandList([(COUNT, [address(counts)], number, chance.random() < 0.1) for number in tasks])
            pool.run(commands.address, len(commands))
            for number in tasks:
                expected[:number] += 1
            done += len(tasks)
            if chance.random() < 0.05:
                time.sleep(chance.choice((0, 1e-5, 2e-5, 1e-4)))
        pool.close()
        assert (counts == expected).all()
        assert time.monotonic() - start < limit, f"{threads} workers: absurdly slow"


@pytest.mark.parametrize("threads, rounds, spin", [(2, 300, 30_000), (2, 2_500, 100), (4, 30, 1_000)])
def test_no_wake_up_is_lost(native: Native, threads: int, rounds: int, spin: int, seed: int,
                            monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that wait for each other need all workers at once. The gaps straddle the moment of falling asleep."""
    monkeypatch.setattr(workers, "SPIN_NANOSECONDS", spin)
    chance, pool = random.Random(seed), WorkerPool(threads, native=native)
    met = np.zeros((rounds, 3 + threads), np.int64)
    met[:, 2] = threads
    gaps = np.array([chance.randrange(1, 2 * spin) for _ in range(rounds)], np.int64)
    launches = []
    for number in range(rounds):
        launches.append((MEET, [address(met[number])], threads, False))
        launches.append((BUSY, [address(gaps[number:])], 1, True))
    commands = CommandList(launches)
    pool.run(commands.address, len(commands))
    pool.close()
    assert (met[:, :3] == threads).all(), f"round {(met[:, 1] != threads).argmax()}: somebody slept through it"
    assert all(len(set(row)) == threads for row in met[:, 3:].tolist()), "two workers at once had the same arena"


@pytest.mark.parametrize("late,mine,theirs", [(False, [0, 1, 2], [3, 4, 5]), (True, [0, 1, 2, 5, 4], [3])])
def test_each_worker_takes_its_own_share_then_the_end_of_another(native: Native, late: bool, mine: list[int],
                                                                 theirs: list[int]) -> None:
    """So that the next command finds in each core's cache what this one left there."""
    pool, me = WorkerPool(2, native=native), threading.get_ident()
    taken: list[tuple[bool, int]] = []
    meeting = threading.Barrier(2)

    def task(_args: int, number: int, _scratch: int) -> None:
        taken.append((threading.get_ident() == me, number))
        if not late or number in (0, 3):
            meeting.wait(20)                  # each of the two is in a task before either takes another
        while late and number == 3 and len(taken) < 6:
            time.sleep(0.0001)
    callback = CALLBACK(task)
    commands = CommandList([(ctypes.cast(callback, ctypes.c_void_p).value or 0, [], 6, False)])
    for _ in range(3):
        pool.run(commands.address, 1)
        assert [[number for caller, number in taken if caller is who] for who in (True, False)] == [mine, theirs]
        taken.clear()
    pool.close()


def test_more_tasks_than_the_pool_counts_run_on_the_caller(native: Native) -> None:
    counts = np.zeros(MOST_TASKS + 1, np.int64)
    for tasks in (MOST_TASKS, MOST_TASKS + 1):
        for threads in (1, 2):
            pool = WorkerPool(threads, native=native)
            commands = CommandList([(COUNT, [address(counts)], tasks, False)] * 2)
            pool.run(commands.address, 2)
            pool.close()
    assert (counts[:MOST_TASKS] == 8).all() and counts[MOST_TASKS] == 4


def test_arenas_are_private_aligned_and_grow(pool: WorkerPool) -> None:
    for size in (100, 1 << 16, 5 << 20):
        pool.ensure_scratch(size)
        seen = np.zeros(500, np.int64)
        commands = CommandList([(ARENA, [address(seen)], 500, False)])
        pool.run(commands.address, 1)
        places = sorted(set(seen.tolist()))
        assert 0 not in places, "another worker wrote into the arena"
        assert 1 <= len(places) <= pool.threads and all(place % 64 == 0 for place in places)
        assert all(after - before >= size for before, after in zip(places, places[1:]))
        for place in places:
            ctypes.memset(place, 1, size)  # mapped to the end


def test_arguments_can_be_redirected(pool: WorkerPool) -> None:
    first, second = np.zeros(8, np.int64), np.zeros(8, np.int64)
    commands = CommandList([(COUNT, [address(first)], 8, False)])
    pool.run(commands.address, 1)
    commands.arguments[0][0] = address(second)
    pool.run(commands.address, 1)
    assert first.tolist() == second.tolist() == [1] * 8


def test_two_python_threads_take_turns(pool: WorkerPool) -> None:
    counts = np.zeros((3, 33), np.int64)

    def launch(row: int) -> None:
        commands = CommandList([(COUNT, [address(counts[row])], 33, False)] * 20)
        for _ in range(50):
            pool.run(commands.address, len(commands))

    threads = [threading.Thread(target=launch, args=(row,)) for row in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (counts == 1000).all()


def test_nested_launches_run_inline(pool: WorkerPool) -> None:
    counts = np.zeros((8, 5), np.int64)
    inner = [CommandList([(COUNT, [address(counts[task])], 5, False)] * 3) for task in range(8)]
    idents = set()

    def nested(_args: int, task: int, _scratch: int) -> None:
        idents.add(threading.get_ident())
        pool.run(inner[task].address, 3)

    callback = CALLBACK(nested)
    outer = CommandList([(ctypes.cast(callback, ctypes.c_void_p).value or 0, [], 8, False)])
    pool.run(outer.address, 1)
    assert (counts == 3).all() and len(idents) <= pool.threads


def test_a_nested_launch_gives_back_the_memory_that_it_took(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, given = [], []
    map_block, unmap_pages = workers.map_block, workers.unmap_pages

    def mapped(nbytes: int) -> int:
        taken.append((map_block(nbytes), nbytes))
        return taken[-1][0]

    def unmapped(at: int, nbytes: int) -> None:
        given.append((at, nbytes))
        unmap_pages(*next(pair for pair in taken if pair[0] == at))

    def needs_more(_args: int, _task: int, _scratch: int) -> None:
        pool.ensure_scratch(1 << 20)                      # as a larger kernel does, in this thread or another

    def nested(_args: int, _task: int, _scratch: int) -> None:
        pool.run(inner.address, 1)

    pool.run(CommandList([]).address, 0)                  # the workers have their arenas
    monkeypatch.setattr(workers, "map_block", mapped)
    monkeypatch.setattr(workers, "unmap_pages", unmapped)
    callbacks = [CALLBACK(function) for function in (needs_more, nested)]
    inner, outer = (CommandList([(ctypes.cast(callback, ctypes.c_void_p).value or 0, [], 1, False)])
                    for callback in callbacks)
    pool.run(outer.address, 1)
    assert len(taken) == 1 and given == taken


@pytest.mark.parametrize("number, bound, left", [(7, 7, 0), (6, 7, 2), (-1, 0, 2), (-2**31, 0, 2), (2**31 - 1, 9, 0),
                                                 (5, 2**31, 2)])
def test_a_check_ends_the_walk_where_a_number_is_below_its_bound(pool: WorkerPool, number: int, bound: int,
                                                                 left: int) -> None:
    counts, passed, checked = np.zeros((2, 5), np.int64), np.array([9], np.int32), np.array([number, -1], np.int32)
    walked = CommandList([(COUNT, [address(row)], 5, False) for row in counts])
    first, last = walked.commands
    rows = (Command * 4)(first, Command.check(address(passed), 9), Command.check(address(checked), bound), last)
    inside: list[int] = []

    def nested(_args: int, _task: int, _scratch: int) -> None:
        inside.append(pool.run(ctypes.addressof(rows), 4))

    assert pool.run(ctypes.addressof(rows), 4) == left
    assert (counts[0] == 1).all() and (counts[1] == (left == 0)).all()
    callback = CALLBACK(nested)
    outer = CommandList([(ctypes.cast(callback, ctypes.c_void_p).value or 0, [], 1, False)])
    assert pool.run(outer.address, 1) == 0 and inside == [left]
    assert (counts[0] == 2).all() and (counts[1] == 2 * (left == 0)).all()


def test_caller_sleeps_while_a_worker_is_long(native: Native) -> None:
    """Waiting for one long task must not burn the caller's core: it spins, yields, then sleeps."""
    pool = WorkerPool(2, native=native)
    me, slept = threading.get_ident(), []

    def task(_args: int, number: int, _scratch: int) -> None:
        if threading.get_ident() != me:
            time.sleep(0.3)
            slept.append(number)
        elif number == 0:
            time.sleep(0.02)  # let the worker take the other task

    callback = CALLBACK(task)
    commands = CommandList([(ctypes.cast(callback, ctypes.c_void_p).value or 0, [], 2, False)])
    before = time.thread_time()
    pool.run(commands.address, 1)
    used = time.thread_time() - before
    pool.close()
    assert not slept or used < 0.15, f"the caller used {used:.3f} s of processor time while waiting"


def worker_threads() -> set[threading.Thread]:
    """The workers of all pools: other tests of this process may have left the default one running."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("glassgrad-worker")}


def test_closed_pool_still_runs(native: Native) -> None:
    before = worker_threads()
    pool, counts = WorkerPool(3, native=native), np.zeros(9, np.int64)
    commands = CommandList([(COUNT, [address(counts)], 9, False)])
    pool.run(commands.address, 1)
    assert len(worker_threads() - before) == 2
    pool.close()
    assert worker_threads() <= before
    pool.run(commands.address, 1)
    assert (counts == 2).all()


def test_a_pool_that_is_closed_while_a_launch_waits_starts_no_threads_again(native: Native) -> None:
    before = worker_threads()
    pool, counts = WorkerPool(3, native=native), np.zeros(9, np.int64)
    commands = CommandList([(COUNT, [address(counts)], 9, False)])
    lock = pool._lock

    class Late:
        """The pool's lock, which a thread gets only after another has closed the pool."""

        def __enter__(self) -> None:
            pool._lock = lock
            pool.close()

        def __exit__(self, *_: object) -> None:
            pass

    pool._lock = Late()
    pool.run(commands.address, 1)
    assert (counts == 1).all() and worker_threads() <= before


def test_dropped_pool_ends_its_threads(native: Native) -> None:
    before = worker_threads()
    pool, counts = WorkerPool(3, native=native), np.zeros(9, np.int64)
    commands = CommandList([(COUNT, [address(counts)], 9, False)])
    pool.run(commands.address, 1)
    assert len(worker_threads() - before) == 2
    del pool
    assert worker_threads() <= before


def test_a_thread_that_does_not_start_ends_those_that_did(native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    before, start, started = worker_threads(), threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    pool, counts = WorkerPool(4, native=native), np.zeros(9, np.int64)
    commands = CommandList([(COUNT, [address(counts)], 9, False)])
    with pytest.raises(DeviceError) as error:
        pool.run(commands.address, 1)
    assert str(error.value).partition("\n  at: ")[0] == """\
the system starts no more threads
  given:    worker 3 of 4: can't start new thread
  expected: 4 threads of this process
  fix:      set THREADS=1, or raise the limit of processes (ulimit -u)"""
    assert len(started) == 2 and worker_threads() <= before
    monkeypatch.undo()
    pool.run(commands.address, 1)
    pool.close()
    assert (counts == 1).all()


def test_setting_chooses_the_pool() -> None:
    with Context(THREADS=3):
        assert worker_pool().threads == 3 and worker_pool() is worker_pool()
    assert worker_pool().threads == workers.available_cores()


@pytest.mark.only_on("CPU", reason="other devices have no worker pool")
def test_small_kernels_are_not_given_to_an_open_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    from glassgrad import Tensor
    given: list[int] = []

    def sums(x: Tensor) -> Tensor:
        first = x.sin().contiguous()
        return (first * first.sum(0)).realize()

    with Context(THREADS=2):
        run = worker_pool().run
        monkeypatch.setattr(worker_pool(), "run",
                            lambda commands, count: given.append(count.value) or run(commands, count))
        x = Tensor(np.arange(12.0)).realize()
        assert (x * 0.4375).tolist() == [0.4375 * i for i in range(12)] and given == []
        sums(x.reshape(3, 4))
        assert given == [], "several small ones are one call of native code too"
        x = Tensor.ones(512, 512).contiguous().realize()
        given.clear()
        sums(x)
        assert len(given) == 1 and given[0] > 1, "several large ones are one call of it"
    with pytest.raises(Bug, match="at least one worker"):
        WorkerPool(0)


@pytest.mark.parametrize("triple", ["x86_64-unknown-linux-gnu", "x86_64-pc-windows-msvc-elf",
                                    "aarch64-unknown-linux-gnu", "aarch64-pc-windows-msvc-elf"])
def test_pool_compiles_for_other_systems(triple: str) -> None:
    """The same text becomes an ELF object that needs nothing from outside, for every system we name."""
    from llvmlite import binding
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = binding.Target.from_triple(triple).create_target_machine(opt=1, reloc="pic", codemodel="small")
    module = binding.parse_assembly(ir_text(triple.partition("-")[0]))
    module.triple = triple
    module.verify()
    linked = ElfObject(machine.emit_object(module))
    assert linked.undefined() == [] and len(linked.link(0x7F00_0000_0000)) > 500
    names = {symbol.name for symbol in linked.symbols}
    assert {"glassgrad_run", "glassgrad_worker", "glassgrad_stop", "glassgrad_spin"} <= names


def test_warm_process_loads_no_compiler(tmp_path: Path) -> None:
    script = "import sys; from glassgrad.runtime.cpu.worker_pool import WorkerPool\n" \
             "WorkerPool(2).run(0, 0); print('llvmlite' in sys.modules, 'subprocess' in sys.modules)"
    for expected in ("True", "False"):
        done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True,
                              env={"PATH": "/usr/bin:/bin", "CACHE_DIR": str(tmp_path)})
        assert done.stdout.split()[:1] == [expected], done.stderr
    if sys.version_info >= (3, 11):                          # before, `platform` imports it
        assert done.stdout.split()[1] == "False"
