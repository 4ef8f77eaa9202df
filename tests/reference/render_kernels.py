"""Kernels built by hand, and how to run them: what the tests of the renderers share."""

from __future__ import annotations

import ctypes
import struct
from functools import lru_cache
from importlib.util import find_spec

import numpy as np
import pytest

from glassgrad.compiler.graph import index_algebra as ix, ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.op_arguments import Param
from glassgrad.compiler.graph.uop import UOp, const
from glassgrad.compiler.lower.loops import (LANE, LOOP, TILE, Accumulate, Assign, For, Kernel, Phase, Store, counter,
                                            load, register)
from glassgrad.compiler.optimize.targets.target import WASM, Target
from glassgrad.compiler.pipeline import TEXT, KernelWork, make_source, run_passes
from glassgrad.compiler.render.launch_info import launch_info
from glassgrad.compiler.render.wasm.module_encoding import ARGS_AT, SCRATCH_AT
from glassgrad.runtime.cpu.c_compiler import compile_c
from glassgrad.runtime.cpu.elf_loader import Image
from glassgrad.runtime.cpu.llvm_compiler import compile_ir
from glassgrad.runtime.cpu.processor import host_description

HOST = Target.of(host_description())
COMPILERS = {"llvm": compile_ir, "c": compile_c}
needs_wasmtime = pytest.mark.skipif(find_spec("wasmtime") is None, reason="WebAssembly: pip install wasmtime")
LANGUAGES = ["llvm", "c", pytest.param("wasm", marks=needs_wasmtime)]
F32, I32, I64, BOOL = dtypes.float32, dtypes.int32, dtypes.int64, dtypes.bool
NUMPY = {dtypes.bool: np.bool_, dtypes.int8: np.int8, dtypes.uint8: np.uint8, dtypes.int16: np.int16,
         dtypes.uint16: np.uint16, dtypes.int32: np.int32, dtypes.uint32: np.uint32, dtypes.int64: np.int64,
         dtypes.uint64: np.uint64, dtypes.float16: np.float16, dtypes.float32: np.float32, dtypes.float64: np.float64}

DTYPE = {v: k for k, v in NUMPY.items()}


def param(slot: int, dtype, *shape: int) -> UOp:
    return UOp(o.PARAM, dtype, (), Param(slot, shape))


def at(*terms) -> UOp:
    """An index: at((i, 4), j, 3) is i*4 + j + 3."""
    total = ix.index(0)
    for term in terms:
        node, k = term if isinstance(term, tuple) else (term, 1)
        total = ix.add(total, ix.multiply(node if isinstance(node, UOp) else ix.index(node), k))
    return total


@lru_cache(maxsize=512)
def _image(how: str, source: str) -> Image:
    return Image(COMPILERS[how](source))


def prepare(kernel: Kernel, arrays, how: str, target: Target = HOST):
    """Everything for launching: a function that runs all tasks of all phases once."""
    if how == "wasm":
        return _prepare_wasm(kernel, arrays)
    source = make_source(kernel, target, how)
    image, info = _image(how, source), launch_info(kernel)
    shared = [np.zeros(n, np.uint8) for n in info.shared]
    pointers = (ctypes.c_void_p * (len(arrays) + len(shared)))(*[a.ctypes.data for a in (*arrays, *shared)])
    scratch = np.zeros(info.scratch_bytes + 64, np.uint8)
    aligned = (scratch.ctypes.data + 63) // 64 * 64
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    calls = [(kind(image.address(name)), tasks) for name, tasks in info.phases]

    def launch() -> None:
        for function, tasks in calls:
            for task in range(tasks):
                function(pointers, task, aligned)
    launch.keep = (image, shared, scratch)
    return launch


@lru_cache(maxsize=1)
def _wasm_memory():
    from glassgrad.runtime.wasm.linear_memory import LinearMemory
    from glassgrad.runtime.wasm.wasmtime_engine import WasmtimeEngine
    return LinearMemory(WasmtimeEngine())


def wasm_module(kernel: Kernel) -> bytes:
    """A kernel as WebAssembly."""
    work = KernelWork(None, WASM, "wasm", loops=kernel)
    run_passes(work, TEXT)
    return work.binary


def _prepare_wasm(kernel: Kernel, arrays):
    memory, info = _wasm_memory(), launch_info(kernel)
    function = memory.content.load(wasm_module(kernel))
    sizes = [*[a.nbytes for a in arrays], *info.shared]

    def launch() -> None:
        """Every array is copied into the engine's memory, and what the kernel writes is copied out of it."""
        blocks = [memory.allocate(size) for size in (*sizes, info.scratch_bytes)]
        *places, scratch = [block.address for block in blocks]
        for array, place in zip(arrays, places):
            memory.copy_in(place, array.tobytes())
        memory.copy_in(SCRATCH_AT, struct.pack(f"<II{len(places)}I", scratch, 0, *places))
        assert SCRATCH_AT + 8 == ARGS_AT
        function()
        for array, place in zip(arrays, places):
            array[...] = np.frombuffer(memory.copy_out(place, array.nbytes), array.dtype).reshape(array.shape)
        for block in blocks:
            memory.release(block)
    return launch


def run(kernel: Kernel, arrays, how: str, target: Target = HOST) -> None:
    prepare(kernel, arrays, how, target)()


def matmul(rows: int, columns: int, depth: int, height: int, vectors: int, lanes: int) -> Kernel:
    """C = A @ B from packed panels, in register tiles of height x (vectors * lanes)."""
    width = vectors * lanes
    a, b = param(0, F32, rows // height, depth, height), param(1, F32, columns // width, depth, width)
    c = param(2, F32, rows, columns)
    i, j, k = counter("i", rows // height), counter("j", columns // width), counter("k", depth)
    m, v, lane = counter("m", height), counter("v", vectors), counter("l", lanes)
    acc = register("acc", F32, (m, v, lane))
    product = load(a, at((i, depth * height), (k, height), m)) \
        * load(b, at((j, depth * width), (k, width), (v, lanes), lane))
    tile = [Assign(acc, const(0.0)), For(k, LOOP, [Accumulate(acc, o.ADD, product)]),
            Store(c, at((i, height * columns), (m, columns), (j, width), (v, lanes), lane), acc)]
    return Kernel("matmul", [a, b, c], [Phase([For(j, LOOP, [For(i, LOOP, [
        For(m, TILE, [For(v, TILE, [For(lane, LANE, tile)])])])])])], (2,))


def apply(how: str, expressions, inputs: list[np.ndarray], results: list, lanes: int, target: Target = HOST):
    """Each of expressions(loads...) over whole arrays: full vectors first, then the rest one by one."""
    n = len(inputs[0])
    params = [param(s, DTYPE[a.dtype.type], n) for s, a in enumerate(inputs)]
    outputs = [param(len(params) + s, dtype, n) for s, dtype in enumerate(results)]
    i, lane, j = counter("i", n // lanes), counter("l", lanes), counter("j", n % lanes)

    def every(index):
        return [Store(y, index, e) for y, e in zip(outputs, expressions(*[load(p, index) for p in params]))]
    kernel = Kernel("apply", [*params, *outputs], [Phase([
        For(i, LOOP, [For(lane, LANE, every(at((i, lanes), lane)))]), For(j, LOOP, every(at(j, n // lanes * lanes)))])],
        tuple(p.arg.slot for p in outputs))
    found = [np.zeros(n, NUMPY[dtype]) for dtype in results]
    run(kernel, [*inputs, *found], how, target)
    return found
