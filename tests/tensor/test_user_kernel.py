"""Kernels described on placeholders (`custom_kernel`), against NumPy and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

from glassgrad import GradientError, InputError, Tensor, TinyJit, dtypes
from glassgrad.base.errors import GlassgradError
from glassgrad.compat.tinygrad.tinygrad_uop import AddrSpace, AxisType, KernelInfo, UOp
from glassgrad.runtime.cpu.c_compiler import find_compiler
from glassgrad.tensor.kernels.placeholder_kernel import loop

try:
    find_compiler()
except GlassgradError as problem:
    pytest.skip(f"no C compiler: {problem.what}", allow_module_level=True)
pytestmark = pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="a described kernel runs on the processor")


def gemm(out, a, b):
    i, j, k = UOp.range(out.shape[0], 0), UOp.range(out.shape[1], 1), UOp.range(a.shape[1], 2, AxisType.REDUCE)
    out = out[i, j].set(0.0)
    out = out[i, j].set(out.after(k)[i, j] + a[i, k] * b[k, j], end=k)
    return out.end(i, j).sink(arg=KernelInfo(name="gemm"))


def test_elements_in_a_loop():
    def describe(total, product, a, b):
        total, product, a, b = (m.flatten() for m in (total, product, a, b))
        i = UOp.range(a.numel(), 0)
        return UOp.group(total[i].store(a[i] + b[i]), product[i].store(2 * a[i] * b[i] - 1)).end(i).sink().simplify()
    a, b = Tensor.rand(3, 4), Tensor.rand(3, 4)
    total, product, same, _ = Tensor.empty(3, 4).custom_kernel(Tensor.empty(3, 4), a, b, fxn=describe)
    np.testing.assert_allclose(total.numpy(), (a + b).numpy(), rtol=1e-6)
    np.testing.assert_allclose(product.numpy(), (2 * a * b - 1).numpy(), rtol=1e-5, atol=1e-6)
    assert same is a


def test_a_product_and_its_gradient():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 7)).astype("float32"), rng.normal(size=(7, 3)).astype("float32")
    a, b = Tensor(x, requires_grad=True), Tensor(y, requires_grad=True)

    def backward(gradient, call):
        _, left, right = (Tensor(node) for node in call.src[1:])
        return None, (Tensor(gradient) @ right.T).uop, (left.T @ Tensor(gradient)).uop
    out = Tensor.empty(5, 3).custom_kernel(a, b, fxn=gemm, grad_fxn=backward)[0]
    t, u = torch.tensor(x, requires_grad=True), torch.tensor(y, requires_grad=True)
    np.testing.assert_allclose(out.numpy(), (t @ u).detach().numpy(), rtol=1e-5, atol=1e-6)
    (out * out).sum().backward(), ((t @ u) ** 2).sum().backward()
    np.testing.assert_allclose(a.grad.numpy(), t.grad.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(b.grad.numpy(), u.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_registers_and_rows():
    def rows(out, x):
        g, r = UOp.range(x.shape[0], 0), UOp.range(x.shape[1], 1, AxisType.REDUCE)
        row = x[g, :]
        own = UOp.placeholder((1,), x.dtype, 0, addrspace=AddrSpace.REG)
        own = own.after(g)[0].set(0)
        own = own[0].set(own.after(r)[0] + row[r], end=r)
        return out[g].set(own[0], end=g).sink()
    x = Tensor(np.arange(12.0, dtype=np.float32).reshape(3, 4))
    assert Tensor.empty(3).custom_kernel(x, fxn=rows)[0].tolist() == [6.0, 22.0, 38.0]


def test_what_was_there_is_kept_and_the_old_tensor_too():
    def every_second(x):
        i = loop(3)
        return x[i * 2].store(x[i * 2] * 10).end(i).sink()
    x = Tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).realize()
    assert x.custom_kernel(fxn=every_second)[0].tolist() == [10.0, 2.0, 30.0, 4.0, 50.0, 6.0]
    assert x.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert x.custom_kernel(fxn=lambda _: UOp.sink())[0].tolist() == x.tolist()


def test_functions_of_values():
    def describe(out, x):
        i = loop(x.size)
        v = x[i]
        many = [v.exp2(), (v + 4).log2(), v.sin(), v.exp(), (v + 4).log(), (v * v).sqrt(), -v, v / 3, 3 / (v + 9),
                (v > 0).where(v, 0), v.maximum(0.5), v.minimum(0.5), v.eq(1.0).cast(dtypes.float32), (1 - v),
                (v + 9).reciprocal(), v.ne(1.0).where(2.0, v), (v <= 1).cast(dtypes.float32), (i // 2).cast(v.dtype),
                ((i - 3) % 2).cast(v.dtype), ((i - 3) // 2).load().cast(v.dtype),
                (v >= 1).cast(dtypes.float32), (v < 1).cast(dtypes.float32)]
        return UOp.group(*[out[k, i].store(value) for k, value in enumerate(many)]).end(i).sink()
    x = np.array([-2.0, -0.5, 0.0, 1.0, 2.5], np.float32)
    i = np.arange(5)
    wanted = [np.exp2(x), np.log2(x + 4), np.sin(x), np.exp(x), np.log(x + 4), np.abs(x), -x, x / 3, 3 / (x + 9),
              np.maximum(x, 0), np.maximum(x, 0.5), np.minimum(x, 0.5), x == 1, 1 - x, 1 / (x + 9),
              np.where(x != 1, 2, x), x <= 1, i // 2, (i - 3) % 2, (i - 3) // 2, x >= 1, x < 1]
    found = Tensor.empty(len(wanted), 5).custom_kernel(Tensor(x), fxn=describe)[0]
    np.testing.assert_allclose(found.numpy(), np.stack(wanted), rtol=1e-6, atol=1e-6)


def test_mistakes_are_named():
    x = Tensor([1.0, 2.0])
    i = loop(2)
    for describe, words in ((lambda m: m[i].store(1.0).sink(), "never ended"), (lambda m: 3, "describes no kernel"),
                            (lambda m: m[i, i].store(1.0).end(i).sink(), "too many indices"),
                            (lambda m: m.reshape(3), "do not fit")):
        with pytest.raises(InputError, match=words):
            x.custom_kernel(fxn=describe)


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.float64, dtypes.int8, dtypes.bool],
                         ids=lambda dtype: dtype.name)
def test_a_described_kernel_of_any_type(dtype):
    i, x = loop(3), Tensor([0.0, 1.0, 2.5]).cast(dtype)
    found, _ = Tensor.empty(3).custom_kernel(x, fxn=lambda out, m: out[i].store(m[i] * 3).end(i).sink())
    assert found.tolist() == (x.float() * 3 if dtype is not dtypes.bool else x.float()).tolist()
    changed, = x.custom_kernel(fxn=lambda m: m[i].store(m[2 - i]).end(i).sink())
    assert changed.dtype is dtype and changed.tolist() == [x.tolist()[k] for k in (2, 1, 2)]


def test_a_described_kernel_under_the_jit():
    i = loop(1)

    @TinyJit
    def step(x): return (x.custom_kernel(fxn=lambda m: m[i].store(m[i] * 3).end(i).sink())[0] + 1).realize()
    for k in range(5):
        assert step(Tensor([float(k), 2.0]).realize()).tolist() == [3.0 * k + 1, 3.0]


def test_a_described_kernel_without_a_gradient_says_so():
    i, x = loop(2), Tensor([1.0, 2.0])
    found = x.custom_kernel(fxn=lambda m: m[i].store(m[i] * 3).end(i).sink())[0]
    with pytest.raises(GradientError, match="the kernel kernel has no gradient"):
        (found + x).sum().backward()
