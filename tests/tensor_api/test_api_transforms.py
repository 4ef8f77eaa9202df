"""Gradients of one's own, and functions of functions."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from torch_reference import Tensor, seeded, torch

from glassgrad import (Function, GradientError, InputError, JitError, ShapeError, TinyJit, c_kernel, checkpoint,
                       custom_gradient, grad, jvp, value_and_grad, vmap)


# -- gradients of one's own -------------------------------------------------------------------------------------------
class Cube(Function):
    def forward(self, x):
        self.x = x
        return x * x * x

    def backward(self, g):
        return g * 3 * self.x * self.x


class Product(Function):          # PyTorch's form
    @staticmethod
    def forward(ctx, x, y, factor):
        ctx.save_for_backward(x, y)
        ctx.factor = factor
        return x * y * factor

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y * ctx.factor, g * x * ctx.factor, None


class Both(Function):
    def forward(self, x):
        return x * 2, x * 3

    def backward(self, a, b):
        return a * 20 + b * 30


def test_function():
    x = Tensor([1.0, 2.0])
    assert Cube.apply(x).tolist() == [1.0, 8.0]
    first = Cube.apply(x).sum().gradient(x)[0]
    assert first.tolist() == [3.0, 12.0]
    assert first.sum().gradient(x)[0].tolist() == [6.0, 12.0]        # the second gradient goes through backward
    y = Tensor([5.0, 6.0])
    Product.apply(x, y, 10.0).sum().backward()
    assert x.grad.tolist() == [50.0, 60.0] and y.grad.tolist() == [10.0, 20.0]


def test_function_with_two_results():
    x = Tensor([1.0])
    a, b = Both.apply(x)
    assert (a.item(), b.item()) == (2.0, 3.0)
    assert (a + b).sum().gradient(x)[0].item() == 50.0 and b.gradient(x)[0].item() == 30.0


def test_decorator():
    @custom_gradient(lambda g, y, x, w: (g * 100, None))
    def f(x, w):
        """Words."""
        return x * w

    x, w = Tensor([2.0]), Tensor([3.0])
    assert f(x, w).item() == 6.0 and f(x, w).gradient(x)[0].item() == 100.0 and f.__doc__ == "Words."
    assert f(x, w).gradient(w)[0].item() == 0.0, "None: what it does not change with"


def test_own_gradients_say_what_is_wrong():
    x = Tensor([1.0, 2.0])

    class Wrong(Function):
        def forward(self, x): return x * 2
        def backward(self, g): return g.sum()

    with pytest.raises(GradientError, match="does not fit"):
        Wrong.apply(x).sum().backward()

    class Nothing(Function):
        def forward(self, x): return x * 2

    with pytest.raises(InputError, match="has no backward"):
        Nothing.apply(x).sum().backward()
    with pytest.raises(InputError, match="forward must return tensors"):
        type("Odd", (Function,), {"forward": lambda self, x: 3})().apply(x)
    with pytest.raises(InputError, match="needs the backward function"):
        custom_gradient(None)


# -- kernels in C -----------------------------------------------------------------------------------------------
POWER = """#include <math.h>
void power(float *out, const float *x, double p, long long n) {
    for (long long i = 0; i < n; i++) out[i] = powf(x[i], (float)p);
}"""
ROWS = """void row_sums(double *out, const double *x, long long columns, long long n) {
    for (long long i = 0; i < n; i++) {
        out[i] = 0;
        for (long long j = 0; j < columns; j++) out[i] += x[i * columns + j];
    }
}"""


@pytest.mark.skipif(shutil.which("gcc") is None and shutil.which("clang") is None, reason="no C compiler")
@pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="it reads the host's memory")
def test_a_kernel_in_c():
    power = c_kernel(POWER, "power", backward=lambda g, y, x: g * 3 * x * x)
    x = Tensor([1.0, 2.0]) + 1
    np.testing.assert_allclose((power(x, 3.0) * 2).numpy(), [16.0, 54.0], rtol=1e-6)
    first = power(x, 3.0).sum().gradient(x)[0]
    assert first.tolist() == [12.0, 27.0] and first.sum().gradient(x)[0].tolist() == [12.0, 18.0]
    sums = c_kernel(ROWS, "row_sums", shape=lambda x, columns: x.shape[:1])
    x = Tensor.arange(6, dtype="float64").reshape(3, 2).T
    assert sums(x, 3).tolist() == [6.0, 9.0]
    assert sums(Tensor.zeros(0, 3, dtype="float64"), 3).tolist() == []


@pytest.mark.skipif(shutil.which("gcc") is None and shutil.which("clang") is None, reason="no C compiler")
@pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="it reads the host's memory")
def test_a_kernel_in_c_says_what_is_wrong():
    with pytest.raises(InputError, match="does not compile"):
        c_kernel("void f( {", "f")(Tensor([1.0]))
    with pytest.raises(InputError, match="no such function"):
        c_kernel(ROWS, "columns")(Tensor([1.0]))
    with pytest.raises(InputError, match="takes tensors and numbers"):
        c_kernel(ROWS, "row_sums")(Tensor([1.0]), "x")
    with pytest.raises(JitError, match="other work at each call"):
        numbers = iter(range(1, 9))
        jitted = TinyJit(lambda x: c_kernel(ROWS, "row_sums")(x, next(numbers)).realize())
        for _ in range(5):
            jitted(Tensor([[1.0]], dtype="float64").realize())


# -- jvp, grad --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.sin() * x,
        lambda x: (x @ x.transpose(0, 1)).relu(),
        lambda x: x.softmax(0).sum(1),
        lambda x: x.cumsum(0),
    ],
)
def test_jvp(f):
    a, v = seeded("a").normal(size=(3, 4)).astype("float32"), seeded("v").normal(size=(3, 4)).astype("float32")
    value, change = jvp(f, [Tensor(a)], [Tensor(v)])
    theirs, expected = torch.func.jvp(f, (torch.from_numpy(a),), (torch.from_numpy(v),))
    np.testing.assert_allclose(value.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(change.numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)


def test_jvp_of_two_and_nested():
    value, change = jvp(lambda x, y: x * y, [Tensor(3.0), Tensor(4.0)], [Tensor(1.0), Tensor(10.0)])
    assert (value.item(), change.item()) == (12.0, 34.0)
    assert jvp(lambda x: jvp(lambda y: y ** 3, [x], [Tensor(1.0)])[1], [Tensor(2.0)], [Tensor(1.0)])[1].item() == 12.0
    with pytest.raises(ShapeError, match="tangents do not fit"):
        jvp(lambda x: x, [Tensor([1.0])], [Tensor(1.0)])


def test_grad():
    assert grad(lambda x: x ** 4)(Tensor(2.0)).item() == 32.0
    assert grad(grad(grad(lambda x: x ** 4)))(Tensor(2.0)).item() == 48.0
    value, (dx, dy) = value_and_grad(lambda x, y: x * x * y, (0, 1))(Tensor(3.0), Tensor(5.0))
    assert (value.item(), dx.item(), dy.item()) == (45.0, 30.0, 9.0)
    assert grad(lambda x, y: x * y, 1)(Tensor(3.0), Tensor(5.0)).item() == 3.0


# -- vmap -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "f",
    [
        lambda x: x + 1,
        lambda x: x.sum(),
        lambda x: x.softmax(-1),
        lambda x: x @ x.transpose(0, 1),
        lambda x: x.max(0),
        lambda x: x.cumsum(1),
        lambda x: x[1:, :2],
        lambda x: x.reshape(-1) * 2,
        lambda x: x.exp().tanh().mean(),
        lambda x: x[0] @ x[1],
        lambda x: x.flip((0,)),
        lambda x: (x > 0).sum() + x.argmax(1).sum(),
        lambda x: x.transpose(0, 1).unsqueeze(0),
    ],
)
def test_vmap(f):
    array = seeded("vmap").normal(size=(5, 3, 4)).astype("float32")
    ours = vmap(f)(Tensor(array))
    expected = np.stack([f(Tensor(row)).numpy() for row in array])
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_vmap_by_pytorchs_keywords():
    x, w = (seeded("dims").normal(size=shape).astype("float32") for shape in ((5, 3, 4), (4, 2)))
    ours = vmap(lambda a, b: a @ b, in_dims=(1, None), out_dims=1)(Tensor(x), Tensor(w))
    theirs = torch.vmap(lambda a, b: a @ b, in_dims=(1, None), out_dims=1)(torch.tensor(x), torch.tensor(w))
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-6)


def test_vmap_axes():
    a, b = seeded("a").normal(size=(4, 3)).astype("float32"), seeded("b").normal(size=(3, 2)).astype("float32")
    f = lambda x, m: x @ m
    np.testing.assert_allclose(vmap(f, in_axes=(0, None))(Tensor(a), Tensor(b)).numpy(), a @ b, rtol=1e-5)
    np.testing.assert_allclose(
        vmap(f, in_axes=(0, None), out_axes=1)(Tensor(a), Tensor(b)).numpy(), (a @ b).T, rtol=1e-5
    )
    np.testing.assert_allclose(vmap(lambda x: x.sum(), in_axes=1)(Tensor(a)).numpy(), a.sum(0), rtol=1e-5)
    first, second = vmap(lambda x: (x * 2, x.sum()))(Tensor(a))
    assert first.shape == (4, 3) and second.shape == (4,)
    nested = vmap(vmap(lambda x, y: x * y, in_axes=(None, 0)), in_axes=(0, None))(Tensor(a[:, 0]), Tensor(b[:, 0]))
    np.testing.assert_allclose(nested.numpy(), np.outer(a[:, 0], b[:, 0]), rtol=1e-5)


def test_vmap_of_lookups():
    rows, index = (
        seeded("r").normal(size=(4, 6, 2)).astype("float32"),
        np.array([[0, 5], [1, 1], [2, 3], [4, 0]], "int32"),
    )
    expected = np.stack([r[i] for r, i in zip(rows, index)])
    np.testing.assert_array_equal(vmap(lambda r, i: r[i])(Tensor(rows), Tensor(index)).numpy(), expected)
    np.testing.assert_array_equal(vmap(lambda i: Tensor(rows[0])[i])(Tensor(index)).numpy(), rows[0][index])
    np.testing.assert_array_equal(vmap(lambda r: r[Tensor([1, 0])])(Tensor(rows)).numpy(), rows[:, [1, 0]])
    scattered = vmap(lambda x, i: x.scatter_add(0, i, Tensor([1.0, 1.0])))(
        Tensor(np.zeros((4, 6), "float32")), Tensor(index)
    )
    np.testing.assert_array_equal(scattered.numpy(), np.stack([np.bincount(i, minlength=6) for i in index]))


def test_vmap_of_gradients():
    array = seeded("g").normal(size=(5, 3)).astype("float32")
    each = vmap(grad(lambda x: (x ** 3).sum()))(Tensor(array))
    np.testing.assert_allclose(each.numpy(), 3 * array ** 2, rtol=1e-5)
    x = Tensor(array)
    total = vmap(lambda row: row.sin().sum())(x).sum().gradient(x)[0]
    np.testing.assert_allclose(total.numpy(), np.cos(array), rtol=1e-5, atol=1e-6)


FACTORS = {
    "inverse": lambda m: m.inverse(), "det": lambda m: m.det(), "cholesky": lambda m: m.cholesky(),
    "qr": lambda m: m.qr(), "svd": lambda m: m.svd(), "eigh": lambda m: m.eigh(), "pinverse": lambda m: m.pinverse(),
    "slogdet": lambda m: m.slogdet(), "solve": lambda m: m.solve(Tensor.ones(m.shape[-1], 2)),
    "lstsq": lambda m: m.lstsq(Tensor.ones(m.shape[-1])),
}


@pytest.mark.parametrize("name, shape", [*[(name, (3, 4, 4)) for name in FACTORS], ("svd", (2, 3, 2, 2)),
                                         ("inverse", (2, 70, 70))])
def test_vmap_of_linear_algebra_is_the_function_of_each_example_and_so_is_its_gradient(name, shape):
    def total(m):
        found = FACTORS[name](m)
        return sum(part.square().sum() for part in (found if isinstance(found, tuple) else (found,)))

    array = seeded("matrices").normal(size=shape)
    array = (array @ array.swapaxes(-1, -2) / shape[-1] + np.diag(np.arange(1, shape[-1] + 1))).astype("float32")
    ours, each = vmap(FACTORS[name])(Tensor(array)), [FACTORS[name](Tensor(one)) for one in array]
    if not isinstance(ours, tuple):
        ours, each = (ours,), [(one,) for one in each]
    for number, part in enumerate(ours):
        wanted = np.stack([one[number].numpy() for one in each])
        np.testing.assert_allclose(part.numpy(), wanted, rtol=1e-5, atol=1e-5)
    wanted = np.stack([grad(total)(Tensor(one)).numpy() for one in array])
    tolerance = 1e-5 * max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_allclose(vmap(grad(total))(Tensor(array)).numpy(), wanted, atol=tolerance)
    np.testing.assert_allclose(grad(lambda x: vmap(total)(x).sum())(Tensor(array)).numpy(), wanted, atol=tolerance)


def test_a_vmap_inside_of_another_has_examples_of_its_own():
    x = Tensor([1.0, 2.0, 3.0])
    outer = vmap(lambda a: vmap(lambda b: a - b)(x))(x)
    assert outer.tolist() == [[0.0, -1.0, -2.0], [1.0, 0.0, -1.0], [2.0, 1.0, 0.0]]


def test_a_gradient_of_ones_own_is_asked_for_one_example():
    @custom_gradient(lambda g, y, x: (Tensor.stack(g, *[g * 0.0] * (x.shape[0] - 1)),))
    def first(x):
        return x[0] * 1.0

    x = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    vmap(first)(x).sum().backward()
    assert x.grad.tolist() == [[1.0, 0.0], [1.0, 0.0]]


def test_vmap_says_what_is_wrong():
    with pytest.raises(ShapeError, match="batches of vmap differ"):
        vmap(lambda x, y: x)(Tensor.zeros(2), Tensor.zeros(3))
    with pytest.raises(InputError, match="no batch"):
        vmap(lambda x: x, in_axes=None)(Tensor.zeros(2))
    with pytest.raises(InputError, match="one axis per argument"):
        vmap(lambda x: x, in_axes=(0, 0))(Tensor.zeros(2))
    with pytest.raises(InputError) as wrong:
        vmap(lambda x: (x, 3.0))(Tensor.zeros(2))
    assert str(wrong.value).split("  at:")[0].rstrip() == """\
vmap's function gives something that is not a tensor
  given:    a float
  expected: a tensor, or a tuple or list of tensors
  fix:      return tensors; Tensor(value) makes one of a number"""


# -- checkpoint -------------------------------------------------------------------------------------------------------
def test_checkpoint_gives_the_same_and_takes_less_memory():
    weights = [Tensor(seeded(i).normal(size=(16, 16)).astype("float32") / 8) for i in range(4)]
    x = Tensor(seeded("x").normal(size=(512, 16)).astype("float32"))

    def block(y, w):
        for _ in range(3):
            y = (y @ w).tanh().exp()
        return y

    def run(saving):
        y = x
        for w in weights:
            y = checkpoint(lambda y, w=w: block(y, w), y) if saving else block(y, w)
        found = y.sum().gradient(*reversed(weights), x)
        return found[0].memory_plan(*found[1:]).between, [g.numpy() for g in found]

    (plain, expected), (less, found) = run(False), run(True)
    for a, b in zip(expected, found):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)
    assert less < 0.6 * plain, "four blocks' ends, and the inside of one, instead of the inside of four"


def test_checkpoint_with_backward():
    x, w = Tensor([2.0]), Tensor([3.0], requires_grad=True)
    checkpoint(lambda v: (v * w).exp().log() * w, x).sum().backward()
    np.testing.assert_allclose([x.grad.item(), w.grad.item()], [9.0, 12.0], rtol=1e-5)
