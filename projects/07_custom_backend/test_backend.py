"""Each part of the backend by itself, then all together. Run it: python -m pytest projects/07_custom_backend"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from backend import MyAllocator, MyCompiler, MyRunner, OpenMPCompiler, parallel  # noqa: E402

from glassgrad import Device, Tensor  # noqa: E402


def test_allocator_gives_back_what_it_was_given() -> None:
    allocator, data = MyAllocator(), bytes(range(256))
    handle = allocator._alloc(256)
    allocator.copyin(handle, memoryview(data))
    out = bytearray(256)
    allocator.copyout(memoryview(out), handle)
    assert bytes(out) == data


def test_compiler_and_runner() -> None:
    a = (ctypes.c_int * 4)()
    seconds = MyRunner("answer", MyCompiler().compile("void answer(int *a) { a[0] = 42; }"))(a, wait=True)
    assert list(a) == [42, 0, 0, 0] and seconds is not None and seconds >= 0


def test_compiler_shows_what_is_wrong() -> None:
    with pytest.raises(RuntimeError, match="nonsense"):
        MyCompiler().compile("nonsense")


def test_openmp_takes_loops_over_results_only() -> None:
    source = ("void rows(float *data0, float *data1) {\n  float acc1;\n"
              "  for (int i0 = 0; i0 < 64; i0++) {\n    acc1 = 0;\n"
              "    for (int k0 = 0; k0 < 64; k0++) {\n      acc1 += data1[i0 * 64 + k0];\n    }\n    data0[i0] "
              "= acc1;\n  }\n}\n")
    assert "#pragma omp parallel for private(acc1)\n  for (int i0" in parallel(source)
    assert "#pragma" not in parallel(source.replace("i0", "k1"))
    assert "#pragma" not in parallel(source.replace("float acc1;", "float *kept = (char *)scratch + 0;"))
    two = source.replace("float acc1;", "float acc1, acc3;").replace("rows", "other")
    assert "private(acc1, acc3)" in parallel(source + two) and "private(acc1)\n" in parallel(source + two)
    x, out = np.random.default_rng(7).random((64, 64), np.float32), np.zeros(64, np.float32)
    MyRunner("rows", OpenMPCompiler().compile(source))(*[v.ctypes.data_as(ctypes.c_void_p) for v in (out, x)])
    assert np.allclose(out, x.sum(1), rtol=1e-5)


def test_openmp_on_generated_source() -> None:
    x = Tensor.rand(33, 33, device="MYOMP").realize()
    kernels = {"product": x @ x, "softmax": x.softmax(1), "two sums": x.sum(1) + x.max(1), "total": x.sum()}
    sources = {name: parallel(Device["MYOMP"].source(t.schedule()[0].ast)) for name, t in kernels.items()}
    assert sources["product"].count("#pragma") == 1 and "private(acc1)" in sources["product"]
    assert "private(acc1, acc3)" in sources["two sums"]
    assert "#pragma" not in sources["softmax"]              # it keeps its exponentials in scratch memory
    assert "#pragma" not in sources["total"]                # one sum over everything


@pytest.mark.parametrize("device", ["MY", "MYOMP"])
def test_tensors(device: str) -> None:
    assert (Tensor([1, 2, 3], device=device) + Tensor([4, 5, 6], device=device)).tolist() == [5, 7, 9]
    a, b = np.random.default_rng(7).random((2, 33, 33), np.float32)
    x, y = Tensor(a, device=device), Tensor(b, device=device)
    assert np.allclose((x @ y).numpy(), a @ b, rtol=1e-4)
    assert np.allclose(x.softmax(1).numpy(), np.exp(a) / np.exp(a).sum(1, keepdims=True), rtol=1e-4)
    assert np.allclose((x - x.mean(0)).sum(1).numpy(), (a - a.mean(0)).sum(1), atol=1e-3)
