"""GPUs: loop trees for groups of threads, their source, and devices that run it.

The trees are checked in the interpreter. Their source is compiled for CUDA where NVIDIA's compiler is installed
(`nvidia-cuda-nvrtc`), run through OpenCL where there is a platform (`pyopencl`, `pocl-binary-distribution`), and run on
CUDA where there is a driver: the whole suite does that with `DEVICE=CUDA ./dev test`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda_compiler import needs_nvrtc
from loop_kernels import Inputs, check

from glassgrad import Device, DeviceError, InputError, MemoryLimitError, Tensor, Variable, c_kernel
from glassgrad.base.errors import Bug
from glassgrad.cli import doctor
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.gradient import written_out
from glassgrad.compiler.graph.index_algebra import add, index, multiply
from glassgrad.compiler.graph.rules.algebra import ALGEBRA
from glassgrad.compiler.graph.rules.reductions import join_sums
from glassgrad.compiler.graph.rules.rewrite import rewrite
from glassgrad.compiler.graph.uop import UOp, const
from glassgrad.compiler.lower.loops import (LANE, LOOP, Assign, For, If, Kernel, Phase, Statement, Store, counter, load,
                                            local, register)
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets.target import GPU
from glassgrad.compiler.pipeline import make_source
from glassgrad.compiler.render.gpu.barriers import fences
from glassgrad.compiler.render.gpu.dialects import CUDA, METAL, OPENCL, Dialect
from glassgrad.compiler.render.gpu.gpu_launch import gpu_launch
from glassgrad.runtime.gpu import cuda, nvrtc, opencl
from glassgrad.runtime.gpu.gpu_device import Rejected

FLOAT = dtypes.float32
Make = Callable[..., Tensor]


def opened(name: str) -> bool:
    """Whether a device can be used here."""
    try:
        return Device[name] is not None
    except DeviceError:
        return False


needs_opencl = pytest.mark.skipif(not opened("OPENCL"), reason="OpenCL: pip install pyopencl pocl-binary-distribution")
needs_cuda = pytest.mark.skipif(not opened("CUDA"), reason="a processor of NVIDIA's with its driver")

KERNELS: dict[str, tuple[Make, tuple[tuple[int, ...], ...]]] = {
    "elements": (lambda x, y: ((x + y) * 2 + 1).relu(), ((3, 1000), (1000,))),
    "a few elements": (lambda x: x.exp(), ((7,),)),
    "rows": (lambda x: x.softmax(-1), ((5, 700),)),
    "short rows": (lambda x: x.softmax(-1), ((100, 10),)),
    "columns": (lambda x: x.sum(0), ((300, 70),)),
    "everything": (lambda x: x.sum(), ((300, 700),)),
    "a maximum and its place": (lambda x: x.argmax(1), ((4, 999),)),
    "a long row": (lambda x: x.layernorm(), ((2, 30_000),)),
    "a product": (lambda a, b: a @ b, ((130, 70), (70, 97))),
    "a product of turned factors": (lambda a, b: (a.T @ b.T + 1).relu(), ((70, 130), (97, 70))),
    "products": (lambda a, b: a @ b, ((3, 20, 40), (3, 40, 31))),
    "a deep product": (lambda a, b: (a @ b).gelu(), ((20, 3000), (3000, 33))),
    "a thin product": (lambda a, b: a @ b, ((1, 400), (400, 300))),
    "a convolution": (lambda x, w: x.conv2d(w, padding=1), ((2, 8, 9, 9), (20, 8, 3, 3))),
    "its gradient": (lambda x, w: x.conv2d(w, padding=1, stride=2).square().sum().gradient(w)[0],
                     ((2, 8, 9, 9), (20, 8, 3, 3))),
    "a running sum": (lambda x: x.cumsum(1), ((3, 300),)),
    "narrow floats": (lambda x: (x.half() * 3).bfloat16().exp(), ((3, 300),)),
    "a cut": (lambda x: x[:, ::3].pad(((1, 1), (0, 2))), ((6, 100),)),
    "bits": (lambda x: (x * 1000).int() % 7 // 2, ((3, 300),)),
    "numbers that wrap": (lambda x: _wraps((x * 2e9).int()) + _wraps((x * 9e18).long()), ((3, 300),)),
}


def _wraps(x: Tensor) -> Tensor:
    return (x + x).maximum(x * 3 - 5).sum(1) + (-x).sum(1) * (x << 3).max(1) + x.abs().sum(1)


def graph(name: str) -> tuple[UOp, Inputs]:
    make, shapes = KERNELS[name]
    rng, values = np.random.default_rng(len(name)), Inputs()
    operands = [Tensor(values.leaf(rng.uniform(-1, 1, shape).astype("float32"))) for shape in shapes]
    [sink] = join_sums(rewrite(written_out([make(*operands).uop]), ALGEBRA))
    return sink, values


def gpu_tree(ast: UOp) -> Kernel:
    return optimize(lower(ast, keep_bytes=GPU.row_bytes), GPU)


# -- trees and source -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", KERNELS)
def test_trees_for_groups_of_threads_compute_the_same(name: str) -> None:
    sink, values = graph(name)
    check([sink], values, gpu_tree, name)


def test_products_are_staged_and_deep_ones_cut_into_parts() -> None:
    moves: dict[str, list[str]] = {}
    for name in ("a product", "a deep product", "a convolution", "its gradient", "a thin product"):
        sink, values = graph(name)

        seen = moves.setdefault(name, [])

        def tree(ast: UOp, seen: list[str] = seen) -> Kernel:
            kernel = gpu_tree(ast)
            seen.extend(kernel.moves)
            return kernel
        check([sink], values, tree, name)
    assert all(any(m.startswith("staged") for m in made) for name, made in moves.items() if name != "a thin product")
    assert any("parts=" in m for m in moves["a deep product"])
    assert not any(m.startswith("staged") for m in moves["a thin product"])


@needs_nvrtc
@pytest.mark.parametrize("name", KERNELS)
def test_cuda_takes_the_source(name: str) -> None:
    sink, values = graph(name)

    def compiled(ast: UOp) -> Kernel:
        kernel = gpu_tree(ast)
        assert nvrtc.compile_cuda(make_source(kernel, GPU, CUDA.name), "sm_90")[:4] == b"\x7fELF"
        return kernel
    check([sink], values, compiled, name)


@needs_nvrtc
def test_what_is_not_cuda_is_rejected_in_the_compilers_words() -> None:
    with pytest.raises(Rejected, match="expected"):
        nvrtc.compile_cuda("extern void f( {", "sm_90")


@pytest.mark.parametrize("dialect", [CUDA, OPENCL], ids=lambda d: d.name)
def test_who_stores_and_who_reads(dialect: Dialect) -> None:
    """One thread stores what has no lanes; threads without a lane do neither; all of them fold."""
    out, x = (UOp(o.PARAM, FLOAT, (), arg) for arg in _params(1, 40))
    lane, total, row = counter("l", 40), register("acc", FLOAT, (counter("l", 40),)), register("r", FLOAT)
    body: list[Statement] = [For(lane, LANE, [Assign(total, load(x, lane))]),
                             Assign(row, UOp(o.FOLD, FLOAT, (total, lane), _fold())), Store(out, index(0), row)]
    kernel = Kernel("k", [out, x], [Phase(body)], (0,))
    source = make_source(kernel, GPU, dialect.name)
    assert gpu_launch(kernel).phases == (("k_0", 1, 64, 0),)
    assert "thread < 40 ? data1[thread] : 0" in source and "if (thread == 0) { data0[0] = r; }" in source
    assert source.count(dialect.wait) == (2 if dialect.warp else 3), "the fold's own"


@pytest.mark.parametrize("dialect", [METAL, OPENCL], ids=lambda d: d.name)
def test_group_memory_that_is_an_argument_is_aligned_by_its_type(dialect: Dialect) -> None:
    """NVIDIA's OpenCL gives an argument of type `char *` memory that begins anywhere: a load of four bytes fails."""
    sink, values = graph("a product")
    sources = []

    def tree(ast: UOp) -> Kernel:
        sources.append(make_source(kernel := gpu_tree(ast), GPU, dialect.name))
        return kernel
    check([sink], values, tree)
    space = dialect.group_space
    assert f"{space}i64 *group_memory" in sources[0]
    assert f"{space}char *scratch = ({space}char *)group_memory;" in sources[0]


def test_threads_may_not_overwrite_each_other() -> None:
    out, x = (UOp(o.PARAM, FLOAT, (), arg) for arg in _params(1, 40))
    lane = counter("l", 40)
    body: list[Statement] = [For(lane, LANE, [Store(out, index(0), load(x, lane))])]
    with pytest.raises(Bug, match="overwrite each other"):
        make_source(Kernel("k", [out, x], [Phase(body)], (0,)), GPU, CUDA.name)


def test_long_rows_lie_in_the_devices_memory() -> None:
    """What a group cannot share it is given a piece of, and as many groups run as there are pieces."""
    row = local("row", FLOAT, GPU.group_bytes // 4 + 1)
    out, x = (UOp(o.PARAM, FLOAT, (), arg) for arg in _params(5000, 5000))
    task, lane = counter("t", 5000), counter("l", 256)
    body: list[Statement] = [For(lane, LANE, [Store(row, lane, load(x, task))]), Store(out, task, load(row, index(3)))]
    kernel = Kernel("k", [out, x], [Phase([For(task, "task", body)])], (0,))
    launch = gpu_launch(kernel)
    groups = launch.phases[0][1]
    assert launch.phases[0][3] == 0 and groups < 5000 and launch.info.shared == (groups * (GPU.group_bytes + 64),)
    assert "task += gridDim.x" in make_source(kernel, GPU, CUDA.name)


@needs_opencl
def test_a_softmax_whose_rows_a_group_cannot_share_is_right(rng: np.random.Generator) -> None:
    """A row of 36,004 bytes, more than registers hold, where a group shares 1,024: it lies in the device's memory, one
    piece for each group."""
    device = opencl.open_opencl("SMALL_GROUPS")
    device.target = replace(device.target, group_bytes=1024)
    device.machine += ", groups that share 1024 bytes"          # kernels are kept by the machine that they are for
    Device.register("SMALL_GROUPS", lambda name: device)
    try:
        values = rng.standard_normal((264, 9001), np.float32) * 4
        rows = Tensor(values, device="SMALL_GROUPS").softmax(-1)
        ast = rows.schedule()[0].ast
        [found], [usual] = device.programs([ast]), Device["OPENCL"].programs([ast])
        assert found.info.shared and not usual.info.shared
        group_bytes = [[launch[3] for launch in program.launches] for program in (found, usual)]
        assert group_bytes[0] == [0] and group_bytes[1][0] >= 36004
        exact = np.exp(values.astype(np.float64) - values.max(1, keepdims=True))
        np.testing.assert_allclose(rows.numpy(), exact / exact.sum(1, keepdims=True), rtol=4e-6)
    finally:
        Device.unregister("SMALL_GROUPS")


def _params(*sizes: int) -> list[Any]:
    from glassgrad.compiler.graph.op_arguments import Param
    return [Param(slot, (size,)) for slot, size in enumerate(sizes)]


def _fold() -> Any:
    from glassgrad.compiler.graph.op_arguments import FoldOver
    return FoldOver(o.ADD)


# -- waiting --------------------------------------------------------------------------------------------------------
def waits(body: list[Statement]) -> list[int]:
    """Which of the statements, counted in order, all threads wait before."""
    from glassgrad.compiler.lower.loops import walk
    found = fences(body)
    return [number for number, s in enumerate(walk(body)) if id(s) in found]


def lanes(*body: Statement) -> For:
    return For(LANES, LANE, list(body))


LANES = counter("l", 64)
ROW, OTHER = local("row", FLOAT, 64), local("other", FLOAT, 64)
OUT = UOp(o.PARAM, FLOAT, (), _params(64)[0])


def test_a_reader_waits_for_the_writer_and_a_writer_for_readers() -> None:
    store, read = Store(ROW, LANES, const(1.0)), Store(OUT, LANES, load(ROW, index(3)))
    again = Store(ROW, LANES, const(2.0))
    assert waits([lanes(store), lanes(read)]) == [3]
    assert waits([lanes(store), lanes(read), lanes(again)]) == [3, 5]
    assert waits([lanes(store, Store(OTHER, LANES, const(1.0))), lanes(read)]) == [4], "of several writers, once"
    assert waits([lanes(store), lanes(again)]) == [], "each place has its own thread"


def test_what_the_last_round_touched_comes_before_this_one() -> None:
    k = counter("k", 9)
    body: list[Statement] = [lanes(Store(ROW, LANES, const(1.0))), lanes(Store(OUT, LANES, load(ROW, index(3))))]
    assert waits([For(k, LOOP, body)]) == [2, 4]
    alone: list[Statement] = [lanes(Store(OUT, LANES, load(OTHER, k)))]
    assert waits([For(k, LOOP, alone)]) == []


def test_a_loop_is_waited_before_as_a_whole() -> None:
    """A value that does not change in a loop is read before the loop: so is the wait."""
    k = counter("k", 9)
    reads = For(k, LOOP, [lanes(Store(OUT, LANES, load(ROW, index(3))))])
    assert waits([lanes(Store(ROW, LANES, const(1.0))), reads]) == [2]
    branch = If(const(True), [lanes(Store(OUT, LANES, load(ROW, index(3))))])
    assert waits([lanes(Store(ROW, LANES, const(1.0))), branch]) == [2]


def test_places_that_are_loaded_may_be_anybodys() -> None:
    k = counter("k", 9)
    spot = add(multiply(load(UOp(o.PARAM, dtypes.int64, (), _params(9, 9)[1]), k), 3), LANES)
    assert waits([For(k, LOOP, [lanes(Store(OUT, spot, const(1.0)))])]) == [2]


# -- devices --------------------------------------------------------------------------------------------------------
ON = [pytest.param("OPENCL", marks=needs_opencl), pytest.param("CUDA", marks=needs_cuda)]


@pytest.mark.parametrize("device", ON)
@pytest.mark.parametrize("name", ["rows", "everything", "a deep product", "a convolution", "a long row", "bits",
                                  "numbers that wrap"])
def test_devices_give_what_the_interpreter_gives(device: str, name: str) -> None:
    make, shapes = KERNELS[name]
    rng = np.random.default_rng(len(name))
    arrays = [rng.uniform(-1, 1, shape).astype("float32") for shape in shapes]
    there, here = (make(*[Tensor(a, device=d) for a in arrays]).numpy() for d in (device, "CPU"))
    np.testing.assert_allclose(there, here, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("device", ON)
def test_slices_numbers_lengths_and_parts(device: str) -> None:
    x = Tensor(np.arange(12, dtype="float32").reshape(4, 3), device=device).realize()
    assert (x[1:3] + 1).tolist() == [[4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]
    assert [(x.sum() * (0.5 + step)).item() for step in range(3)] == [33.0, 99.0, 165.0], "numbers are arguments"
    n = Variable("n", 1, 4)
    assert [x[:n.bind(k)].sum().item() for k in (1, 3)] == [3.0, 36.0]
    x[1] = 0
    assert x.sum(1).tolist() == [3.0, 0.0, 21.0, 30.0] and x.to("CPU").device == "CPU"


@needs_opencl
def test_a_kernel_of_your_own_needs_addresses() -> None:
    with pytest.raises(DeviceError, match="a kernel of your own runs on the processor or with CUDA"):
        c_kernel("", "f")(Tensor([1.0], device="OPENCL"))


@needs_cuda
def test_a_kernel_of_your_own_in_cuda() -> None:
    power = c_kernel('''extern "C" __global__ void power(float *out, const float *x, double exponent, long long n) {
        long long i = blockIdx.x * 256ll + threadIdx.x;
        if (i < n) out[i] = powf(x[i], exponent);
    }''', "power", backward=lambda g, y, x: g * 3 * x * x)
    x = Tensor([1.0, 2.0], device="CUDA") + 1
    np.testing.assert_allclose((power(x, 3.0) * 2).numpy(), [16.0, 54.0], rtol=1e-6)
    assert power(x, 3.0).sum().gradient(x)[0].tolist() == [12.0, 27.0]
    assert power(Tensor.ones(1000, device="CUDA"), 2.0).sum().item() == 1000.0
    with pytest.raises(InputError, match="the source of f does not compile"):
        c_kernel("void f( {", "f")(x)


@pytest.mark.skipif(opened("CUDA") or shutil.which("nvidia-smi") is not None, reason="there is a driver")
def test_without_a_driver_cuda_says_so() -> None:
    with pytest.raises(DeviceError) as error:
        Device["CUDA"]
    assert "there is no NVIDIA driver here" in str(error.value) and "DEV=CPU" in str(error.value)


# -- what may be missing ---------------------------------------------------------------------------------------------
class Library:
    """A driver's library whose functions answer with these numbers, or 0."""

    def __init__(self, **answers: int):
        self.answers, self.asked = answers, []  # type: ignore[var-annotated]

    def __getattr__(self, name: str) -> Callable[..., int]:
        def function(*arguments: Any) -> int:
            self.asked.append(name)
            return self.answers.get(name, 0)
        return function


def message(error: pytest.ExceptionInfo[BaseException]) -> str:
    return str(error.value).partition("\n  at: ")[0]


def test_a_driver_that_does_not_start() -> None:
    with pytest.raises(DeviceError) as error:
        cuda.CudaDevice("CUDA", Library(cuInit=100))  # type: ignore[arg-type]
    assert message(error) == """\
NVIDIA's driver does not start
  given:    error 100
  expected: a working driver and a GPU
  fix:      look at what nvidia-smi says"""
    with pytest.raises(DeviceError) as error:
        cuda.CudaDevice("CUDA", Library(cuDeviceGet=101))  # type: ignore[arg-type]
    assert message(error) == """\
NVIDIA's driver reports no GPU
  given:    none
  expected: one
  fix:      look at what nvidia-smi says, and at CUDA_VISIBLE_DEVICES"""


@needs_nvrtc
def test_a_driver_whose_memory_is_full() -> None:
    library = Library(cuMemAlloc_v2=2)
    device = cuda.CudaDevice("CUDA", library)  # type: ignore[arg-type]
    with pytest.raises(MemoryLimitError) as error:
        device.memory.allocate(3 << 30)
    assert message(error) == """\
the GPU has no memory left
  given:    a request of 3.0 GiB
  expected: memory that is free
  fix:      use smaller batches, or let go of tensors"""
    assert library.asked.count("cuMemAlloc_v2") == 2, "once more when what is kept was given back"
    library.answers["cuCtxSynchronize"] = 700
    with pytest.raises(Bug, match="cuCtxSynchronize: error 700"):
        device.synchronize()


def test_without_cudas_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: Any, **__: Any) -> Any:
        raise OSError("no such library")
    monkeypatch.setattr(nvrtc, "_folders", lambda: iter(()))
    monkeypatch.setattr(nvrtc.ctypes, "CDLL", nothing)
    nvrtc._library.cache_clear()
    with pytest.raises(DeviceError) as error:
        nvrtc.compile_cuda("", "sm_90")
    assert message(error) == """\
CUDA's compiler is not here
  given:    no library nvrtc
  expected: the one of CUDA, or of a package
  fix:      pip install nvidia-cuda-nvrtc"""


def test_without_opencl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    with pytest.raises(DeviceError) as error:
        opencl.open_opencl()
    assert message(error) == """\
OpenCL needs the package pyopencl
  given:    no pyopencl
  expected: pyopencl and a platform
  fix:      pip install pyopencl, and pocl-binary-distribution to run on the processor"""

    class LogicError(Exception):
        pass

    def get_platforms() -> Any:
        raise LogicError("PLATFORM_NOT_FOUND_KHR")
    monkeypatch.setitem(sys.modules, "pyopencl", SimpleNamespace(LogicError=LogicError, get_platforms=get_platforms))
    with pytest.raises(DeviceError) as error:
        opencl.open_opencl()
    assert message(error) == """\
OpenCL has no platform
  given:    PLATFORM_NOT_FOUND_KHR
  expected: a driver for OpenCL
  fix:      install your graphics driver's OpenCL part, or pip install pocl-binary-distribution"""


def test_an_opencl_platform_without_a_device(monkeypatch: pytest.MonkeyPatch,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    platform = SimpleNamespace(name="An Empty Platform", get_devices=list)
    monkeypatch.setitem(sys.modules, "pyopencl",
                        SimpleNamespace(LogicError=ValueError, get_platforms=lambda: [platform]))
    monkeypatch.setattr(Device, "_opened", {name: d for name, d in Device.opened.items() if name != "OPENCL"})
    with pytest.raises(DeviceError) as error:
        opencl.open_opencl()
    assert message(error) == """\
OpenCL has no device
  given:    no device of An Empty Platform
  expected: a platform with a GPU or a processor
  fix:      install your graphics driver's OpenCL part, or pip install pocl-binary-distribution"""
    assert doctor.show_devices() == 0
    assert "OPENCL   not here: no device of An Empty Platform; install your graphics" in capsys.readouterr().out
    assert not Device.is_available("OPENCL")
