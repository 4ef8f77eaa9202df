"""tinygrad_lite.py: views, ops, gradients and training, checked against NumPy, finite differences and PyTorch."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tinygrad_lite as lite
from tinygrad_lite import Add, Buffer, CrossEntropy, MatMul, Mul, ReLU, Softmax, Tensor, backward

SOURCE = Path(lite.__file__)


def parameter(values) -> Tensor:
    return Tensor(values, requires_grad=True)


# ---- the file itself


def test_fits_in_250_lines_of_110_columns():
    lines = SOURCE.read_text().splitlines()
    assert len(lines) < 250
    assert max(map(len, lines)) <= 110


def test_imports_numpy_and_the_standard_library_only():
    names = set()
    for node in ast.parse(SOURCE.read_text()).body:         # the top of the file; scikit-learn is asked for late
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
    assert names - set(sys.stdlib_module_names) == {"numpy"}


def test_training_loop_is_under_40_lines():
    assert len(inspect.getsource(lite.main).splitlines()) < 40


def test_each_op_keeps_forward_and_backward_adjacent():
    for op in (Add, Mul, MatMul, ReLU, Softmax, CrossEntropy, lite.Slice, lite.Transpose, lite.Reshape):
        methods = [name for name in vars(op) if name in ("forward", "backward")]
        assert methods == ["forward", "backward"], op


# ---- buffers and views


def test_buffer_is_flat_float32():
    buffer = Buffer([[1, 2], [3, 4]])
    assert len(buffer) == 4 and buffer[2] == 3 and buffer.data.dtype == np.float32
    buffer[2] = 7.5
    assert buffer[2] == 7.5 and list(buffer[1:3]) == [2, 7.5]


def test_default_strides_are_row_major():
    t = Tensor(np.arange(24), (2, 3, 4))
    assert t.strides == (12, 4, 1) and t.offset == 0 and t.numel() == 24 and t.is_contiguous()
    assert t[1, 2, 3] == 23 and t[-1, 0, 1] == 13


def test_a_tensor_copies_the_users_array():
    array = np.zeros(3, np.float32)
    t = Tensor(array)
    array[0] = 1
    assert t[0] == 0


def test_a_slice_moves_the_offset_and_shares_the_buffer():
    t = Tensor(np.arange(24), (6, 4))
    view = t[2:5]
    assert view.buf is t.buf and view.offset == 8 and view.shape == (3, 4) and view.strides == (4, 1)
    view[0, 0] = 100
    assert t[2, 0] == 100
    t.buf[9] = -1
    assert view[0, 1] == -1


def test_transpose_is_a_view_and_twice_is_the_identity():
    t = Tensor(np.arange(6), (2, 3))
    once, twice = t.transpose(), t.transpose().transpose()
    assert once.buf is t.buf and once.shape == (3, 2) and once.strides == (1, 3) and not once.is_contiguous()
    assert (twice.shape, twice.strides, twice.offset) == (t.shape, t.strides, t.offset) and twice.is_contiguous()
    assert np.array_equal(once.numpy(), t.numpy().T)
    once[2, 0] = 50
    assert t[0, 2] == 50


def test_transpose_of_two_axes_among_three():
    t = Tensor(np.arange(24), (2, 3, 4))
    assert np.array_equal(t.transpose(0, 2).numpy(), np.arange(24).reshape(2, 3, 4).swapaxes(0, 2))


def test_slice_of_a_transpose_and_transpose_of_a_slice():
    t, array = Tensor(np.arange(24), (4, 6)), np.arange(24).reshape(4, 6)
    assert np.array_equal(t.T[1:4, ::2].numpy(), array.T[1:4, ::2])
    assert np.array_equal(t[1:4, ::2].T.numpy(), array[1:4, ::2].T)
    assert t.T[1:4, ::2].buf is t.buf


def test_reshape_is_a_view_when_it_can_be():
    t = Tensor(np.arange(24), (4, 6))
    for view, want in [(t.reshape(2, 12), (2, 12)), (t.reshape((3, -1)), (3, 8)), (t[1:3].reshape(12), (12,)),
                       (t.T.reshape(6, 2, 2), (6, 2, 2))]:              # splitting an axis never needs a copy
        assert view.buf is t.buf and view.shape == want
    assert np.array_equal(t.T.reshape(6, 2, 2).numpy(), np.arange(24).reshape(4, 6).T.reshape(6, 2, 2))


def test_reshape_is_a_copy_when_it_must_be():
    t = Tensor(np.arange(6), (2, 3))
    copy = t.T.reshape(6)
    assert copy.buf is not t.buf and copy.is_contiguous() and list(copy.numpy()) == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize("shape", [(), (1,), (7,), (0,), (5, 1, 3), (2, 0, 3)])
def test_empty_scalar_and_single_element_shapes_work(shape):
    t = Tensor(np.ones(shape))
    assert t.shape == shape and t.numel() == np.ones(shape).size and t.is_contiguous()
    assert t.numpy().shape == shape and (t + t).shape == shape


@pytest.mark.parametrize("index", [
    np.s_[3], np.s_[-1], np.s_[1:3], np.s_[::-1], np.s_[::-2, 1], np.s_[:, 1:, ::2], np.s_[2:2], np.s_[5:, 4:],
    np.s_[:, -1], np.s_[3:0:-2, :, 2], np.s_[100:], np.s_[0, 0]])
def test_indexing_agrees_with_numpy(index):
    array = np.arange(60, dtype=np.float32).reshape(5, 4, 3)
    view, expected = Tensor(array)[index], array[index]
    assert view.shape == expected.shape and np.array_equal(view.numpy(), expected)


def test_wrong_indices_say_so():
    t = Tensor(np.zeros((2, 3)))
    with pytest.raises(IndexError, match="index 2 is outside an axis of size 2"):
        t[2]
    with pytest.raises(IndexError, match=r"3 indices for a tensor of shape \(2, 3\)"):
        t[0, 0, 0]


# ---- ops: values and gradients

A, B = (3, 4), (4, 5)
CASES = {   # name: (shapes of the inputs, with our ops, with PyTorch)
    "add": ([A, A], lambda a, b: Add(a, b).apply(), lambda t, a, b: a + b),
    "add a row": ([A, (4,)], lambda a, b: Add(a, b).apply(), lambda t, a, b: a + b),
    "add a column": ([(3, 1), A], lambda a, b: Add(a, b).apply(), lambda t, a, b: a + b),
    "add crosswise": ([(3, 1), (1, 4)], lambda a, b: Add(a, b).apply(), lambda t, a, b: a + b),
    "mul": ([A, A], lambda a, b: Mul(a, b).apply(), lambda t, a, b: a * b),
    "mul one number": ([A, ()], lambda a, b: Mul(a, b).apply(), lambda t, a, b: a * b),
    "mul three axes": ([(2, 3, 4), (3, 1)], lambda a, b: Mul(a, b).apply(), lambda t, a, b: a * b),
    "matmul": ([A, B], lambda a, b: MatMul(a, b).apply(), lambda t, a, b: a @ b),
    "matmul batched": ([(2, 3, 4), (4, 5)], lambda a, b: MatMul(a, b).apply(), lambda t, a, b: a @ b),
    "relu": ([A], lambda a: ReLU(a).apply(), lambda t, a: a.relu()),
    "softmax": ([A], lambda a: Softmax(a).apply(), lambda t, a: a.softmax(-1)),
    "cross entropy": ([(3, 5)], lambda a: CrossEntropy(a, [4, 0, 2]).apply(),
                      lambda t, a: t.nn.functional.cross_entropy(a, t.tensor([4, 0, 2]))),
    "sub and neg": ([A, A], lambda a, b: -(a - b), lambda t, a, b: -(a - b)),
    "transpose": ([A], lambda a: a.T * np.arange(12).reshape(4, 3),
                  lambda t, a: a.T * t.arange(12.).reshape(4, 3)),
    "slice": ([A], lambda a: a[1:, ::2] * a[:2, 1::2], lambda t, a: a[1:, ::2] * a[:2, 1::2]),
    "row": ([A], lambda a: a[1] * a[-1], lambda t, a: a[1] * a[-1]),
    "reshape, a view": ([A], lambda a: a.reshape(2, 6) @ a.reshape(6, 2),
                        lambda t, a: a.reshape(2, 6) @ a.reshape(6, 2)),
    "reshape, a copy": ([A], lambda a: a.T.reshape(2, 6) * a.T.reshape(2, 6),
                        lambda t, a: a.T.reshape(2, 6) * a.T.reshape(2, 6)),
    "views of views": ([A, B], lambda a, b: MatMul(b.T[1:, :], a.T[:, ::2]).apply(),
                       lambda t, a, b: b.T[1:, :] @ a.T[:, ::2]),
}


def inputs_for(name, rng):
    values = [rng.normal(size=shape) for shape in CASES[name][0]]
    return [np.asarray(np.sign(v) * (np.abs(v) + 0.1), np.float32) for v in values]     # away from relu's corner


@pytest.mark.parametrize("name", CASES)
def test_gradients_agree_with_finite_differences(name, rng):
    _, ours, _ = CASES[name]
    arrays = inputs_for(name, rng)
    weights = rng.normal(size=ours(*map(Tensor, arrays)).shape).astype(np.float32)

    def loss(*values):                                      # any weighted sum of the outputs, summed in float64
        return float((ours(*map(Tensor, values)).numpy().astype(float) * weights).sum())

    tensors = [parameter(a) for a in arrays]
    backward(ours(*tensors) * weights)                      # backward seeds ones, so this is d (sum of all)
    step = 1e-2
    for position, (array, tensor) in enumerate(zip(arrays, tensors, strict=True)):
        slope = np.zeros(array.shape)
        for index in np.ndindex(array.shape):
            up, down = [a.copy() for a in arrays], [a.copy() for a in arrays]
            up[position][index] += step
            down[position][index] -= step
            slope[index] = (loss(*up) - loss(*down)) / (2 * step)
        np.testing.assert_allclose(tensor.grad, slope, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_agree_with_pytorch(name, rng, torch):
    _, ours, theirs = CASES[name]
    arrays = inputs_for(name, rng)
    mine, reference = [parameter(a) for a in arrays], [torch.tensor(a, requires_grad=True) for a in arrays]
    out, expected = ours(*mine), theirs(torch, *reference)
    np.testing.assert_allclose(out.numpy(), expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    weights = rng.normal(size=out.shape).astype(np.float32)
    backward(out * weights)
    (expected * torch.tensor(weights)).sum().backward()
    for a, b in zip(mine, reference, strict=True):
        assert a.grad.shape == a.shape
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_relu_and_softmax_keep_their_heads():
    assert np.isnan(ReLU(Tensor([np.nan])).apply()[0])
    assert list(ReLU(Tensor([-np.inf, -0.0, np.inf])).apply().numpy()) == [0, 0, np.inf]
    huge = Softmax(Tensor([[1e4, 1e4, -1e4]])).apply()
    assert list(huge.numpy()[0]) == [0.5, 0.5, 0]
    loss = CrossEntropy(parameter([[1e4, 0.0]]), [1]).apply()
    assert loss.item() == 1e4


def test_wrong_shapes_say_so():
    with pytest.raises(ValueError, match=r"cannot multiply \(2, 3\) by \(2, 3\); write a vector as"):
        Tensor(np.zeros((2, 3))) @ Tensor(np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"need \(rows, classes\) and \(rows,\), not \(2, 3\) and \(3,\)"):
        CrossEntropy(Tensor(np.zeros((2, 3))), [0, 1, 2]).apply()
    with pytest.raises(ValueError, match="make them with requires_grad=True"):
        backward(Tensor([1.0]) * 2)


# ---- the engine


def test_gradient_of_a_squared_affine_map_is_the_formula(rng):
    W, x, b = rng.normal(size=(5, 7)), rng.normal(size=(7, 3)), rng.normal(size=(5, 1))
    tW, tx, tb = parameter(W), parameter(x), parameter(b)
    y = Add(MatMul(tW, tx).apply(), tb).apply()
    backward(Mul(y, y).apply())
    error = 2 * (W @ x + b)                                 # d (Wx + b)^2 = 2 (Wx + b) (dW x + W dx + db)
    for tensor, formula in [(tW, error @ x.T), (tx, W.T @ error), (tb, error.sum(axis=1, keepdims=True))]:
        assert np.sqrt(np.mean((tensor.grad.numpy() - formula) ** 2)) < 1e-5


def test_gradients_add_when_a_tensor_is_used_more_than_once():
    x = parameter([3.0])
    y = x * x                                               # y used twice, x four times
    backward(y * y + y)
    assert x.grad[0] == 4 * 27 + 2 * 3


def test_a_diamond_is_walked_once_per_node():
    x = parameter([1.0])
    y = x
    for _ in range(60):                                     # 2**60 paths
        y = y + y
    backward(y)
    assert x.grad[0] == 2.0 ** 60


def test_backward_twice_accumulates_and_none_resets():
    x = parameter([2.0, 3.0])
    loss = x * x
    backward(loss)
    backward(loss)
    assert list(x.grad.numpy()) == [8, 12]
    x.grad = None
    backward(loss)
    assert list(x.grad.numpy()) == [4, 6]


def test_only_what_asks_for_a_gradient_gets_one():
    x, w = Tensor([1.0]), parameter([2.0])
    out = x * w
    backward(out)
    assert x.grad is None and w.grad[0] == 1 and out._ctx is not None and (x * x)._ctx is None


def test_gradient_reaches_a_parameter_through_its_views():
    w = parameter(np.arange(12).reshape(3, 4))
    backward(w.T[1:3].reshape(6) * np.arange(6))
    expected = np.zeros((3, 4))
    expected[:, 1:3] = np.arange(6).reshape(2, 3).T
    assert np.array_equal(w.grad.numpy(), expected)


def test_a_chain_of_10_000_ops_does_not_overflow_the_stack():
    x = parameter([1.0])
    y = x
    for i in range(10_000):
        y = y + 1.0 if i % 2 else ReLU(y).apply()
    backward(y)
    assert x.grad[0] == 1 and y[0] == 5001
    del y                                                   # nor does letting go of the graph


# ---- learning


def test_linear_regression_converges_in_100_steps(rng):
    slope, intercept = np.float32([[2.0], [-3.0]]), 0.5
    x = rng.normal(size=(64, 2)).astype(np.float32)
    target = x @ slope + intercept
    W, b = parameter(np.zeros((2, 1))), parameter(np.zeros(1))
    for _ in range(100):
        error = MatMul(x, W).apply() + b - target
        backward(error * error * (1 / 64))
        for p in (W, b):
            p.numpy()[...] -= 0.1 * p.grad.numpy()
            p.grad = None
    np.testing.assert_allclose(W.numpy(), slope, atol=1e-2)
    np.testing.assert_allclose(b.numpy(), [intercept], atol=1e-2)


def test_main_reads_real_mnist_over_97_percent(mnist_folder):
    environment = {**os.environ, "GLASSGRAD_DATA": str(mnist_folder.parent)}
    done = subprocess.run([sys.executable, str(SOURCE)], env=environment, capture_output=True, text=True, check=True)
    last = done.stdout.splitlines()[-1]
    assert last.startswith("epoch 5")
    assert float(last.split("accuracy ")[1].rstrip("%")) > 97


def test_main_falls_back_to_the_digits_of_scikit_learn(monkeypatch, capsys, tmp_path):
    """With stand-ins for scikit-learn's two loaders, and the same digits: scikit-learn itself is large."""
    def no_network(name, *, return_X_y, as_frame, parser):
        raise ConnectionRefusedError("no network")

    def load_digits(*, return_X_y):
        with np.load(SOURCE.parent / "glassgrad" / "nn" / "datasets" / "digits.npz") as file:
            return file["images"].reshape(-1, 64).astype(float), file["labels"].astype(int)

    datasets = SimpleNamespace(fetch_openml=no_network, load_digits=load_digits)
    monkeypatch.setitem(sys.modules, "sklearn", SimpleNamespace(datasets=datasets))
    monkeypatch.setattr(lite, "__file__", str(tmp_path / "clone" / "tinygrad_lite.py"))
    monkeypatch.delenv("GLASSGRAD_DATA", raising=False)
    assert lite.main() > 0.95
    assert "8x8 digits" in capsys.readouterr().out


def test_the_page_names_files_that_exist():
    page = (SOURCE.parent / "docs" / "lite.md").read_text()
    paths = re.findall(r"`(glassgrad/[\w/.]*)`", page)
    assert paths and [path for path in paths if not (SOURCE.parent / path).exists()] == []
