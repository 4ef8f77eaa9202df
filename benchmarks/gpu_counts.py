"""Count what a training step costs before it has run: kernels, launches, bytes, seconds to compile. Needs no GPU.

    python -m benchmarks.gpu_counts gpt2-2            a network of benchmarks.gpu_models; sm_90a
    python -m benchmarks.gpu_counts gpt2 --compile    through NVRTC too (pip install nvidia-cuda-nvrtc)
    python -m benchmarks.gpu_counts gpt2 --profile    where Python's time goes

The driver here runs nothing, so that a step of any size is scheduled, lowered and planned as on the chip. Kernels are
listed by their least cost: bytes at 4 TB/s, or operations at 700 TFLOP/s with the matrix unit and 40 TFLOP/s without.
"""

from __future__ import annotations

import argparse
import cProfile
import ctypes
import itertools
import os
import pstats
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.gpu_models import NETWORKS, our_training

__all__ = ["Nothing", "main"]

ATTRIBUTES = {75: 9, 76: 0}              # compute capability
BYTES_PER_US, UNIT_PER_US, PLAIN_PER_US = 4e6, 700e6, 40e6


class Nothing:
    """A CUDA driver whose memory is addresses alone, and whose kernels do nothing."""

    def __init__(self, names: Any):
        self.numbers, self.address, self.pinned = itertools.count(1), 1 << 40, []
        self.names = {name: what for what, name in names._asdict().items()}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu") or name == "cuEventElapsedTime_v2":
            raise AttributeError(name)
        return getattr(self, "do_" + self.names.get(name, name), self.nothing)

    @staticmethod
    def nothing(*arguments: Any) -> int:
        return 0

    def made(self, pointer: Any, *arguments: Any) -> int:
        pointer._obj.value = next(self.numbers)
        return 0
    do_load = do_function = do_make_stream = do_make_event = do_make_graph = do_add_kernel = do_instantiate = made

    def do_allocate(self, address: Any, size: Any) -> int:
        address._obj.value = self.address
        self.address += -(-size.value // 512) * 512
        return 0

    def do_allocate_host(self, address: Any, size: Any, flags: int) -> int:
        self.pinned.append(ctypes.create_string_buffer(size.value))
        address._obj.value = ctypes.addressof(self.pinned[-1])
        return 0

    def do_copy_out(self, to: Any, source: Any, size: Any, stream: Any) -> int:
        ctypes.memset(to.value, 0x7f, size.value)         # a check of indices finds nothing wrong
        return 0

    def do_cuDeviceGetAttribute(self, value: Any, number: int, device: Any) -> int:
        value._obj.value = ATTRIBUTES[number]
        return 0


def opened(compiling: bool) -> tuple[Any, dict[str, float]]:
    """The device CUDA on that driver, and what compiling costs there: seconds, bytes, sources."""
    from glassgrad import Device
    from glassgrad.runtime.gpu import cuda
    spent = {"seconds": 0.0, "longest": 0.0, "bytes": 0.0, "sources": 0.0}
    real = cuda.compile_cuda

    def compile_cuda(source: str, architecture: str) -> bytes:
        began = time.thread_time()
        made = real(source, architecture) if compiling else b"nothing"
        taken = time.thread_time() - began
        spent["seconds"] += taken
        spent["longest"] = max(spent["longest"], taken)
        spent["bytes"] += len(made)
        spent["sources"] += 1
        return made
    cuda.compile_cuda = compile_cuda                     # type: ignore[assignment]
    if not compiling:
        cuda.nvrtc_version = lambda: "nvrtc 0.0"         # type: ignore[assignment]
    device = cuda.CudaDevice("CUDA", Nothing(cuda.CudaDevice.names))     # type: ignore[arg-type]
    Device.register("CUDA", lambda name: device)
    return device, spent


def at_least(program: Any) -> float:
    """Microseconds that a kernel takes at least."""
    unit = any("unit" in move for move in program.moves)
    return max(program.bytes / BYTES_PER_US, program.operations / (UNIT_PER_US if unit else PLAIN_PER_US))


def count(name: str, most: int) -> None:
    """One network: its step's table."""
    from glassgrad.engine.observer import Observer, observed_by
    found: list[Any] = []
    times: dict[str, float] = {}

    class Watch(Observer):
        every_run = False

        def prepared(self, normal: Any, ready: Any, when: tuple[int, int, int]) -> None:
            if not found or len(ready.items) > len(found[-1].items):
                found.append(ready)
                times.update(schedule=(when[1] - when[0]) / 1e9, compile=(when[2] - when[1]) / 1e9)
    network = NETWORKS[name]
    from benchmarks.gpu_models import exported
    step = our_training(network, "CUDA", exported(network))
    began = time.process_time()
    with observed_by(Watch()):
        step()
    whole = time.process_time() - began
    ready = found[-1]
    rows = sorted(((at_least(program), number, item, program)
                   for number, (item, program) in enumerate(zip(ready.items, ready.programs))), key=lambda r: -r[0])
    print(f"{name}: {len(ready.items)} kernels, {len(set(map(id, ready.programs)))} distinct, "
          f"{sum(len(p.phases) for p in ready.programs)} launches, {ready.work()[2] / 1e9:.2f} GB, "
          f"{ready.work()[1] / 1e9:.0f} GFLOP, at least {sum(r[0] for r in rows) / 1e3:.2f} ms; {ready.memory}")
    print(f"first step {whole:.1f} s of processor time, schedule {times['schedule']:.1f} s, lower and compile "
          f"{times['compile']:.1f} s")
    for least, number, item, program in rows[:most]:
        line = item.lines[0].short if item.lines else ""
        print(f"{least:8.1f} us {number:4} {program.bytes / 1e6:8.1f} MB {program.operations / 1e9:8.1f} GFLOP "
              f"{len(program.phases)} {program.name:44} {line:24} {' '.join(program.moves)[:150]}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("networks", nargs="+", choices=list(NETWORKS))
    parser.add_argument("--compile", action="store_true", help="compile by NVRTC too")
    parser.add_argument("--profile", action="store_true", help="show which functions of Python take the time")
    parser.add_argument("--most", type=int, default=40, help="kernels to list")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CACHE_DIR"] = folder
        _, spent = opened(chosen.compile)
        profiled = cProfile.Profile()
        if chosen.profile:
            profiled.enable()
        for name in chosen.networks:
            count(name, chosen.most)
        print("compiler: " + ", ".join(f"{value:.6g} {what}" for what, value in spent.items()))
        if chosen.profile:
            profiled.disable()
            pstats.Stats(profiled).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    main()
