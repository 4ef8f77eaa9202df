"""Values in and out: lists, numbers, bytes, arrays; zeros, ranges, random numbers; printing."""

from __future__ import annotations

import array
import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from glassgrad import Device, Tensor, dtypes


@pytest.mark.parametrize("value,dtype,shape", [
    (3, "int32", ()), (2.5, "float32", ()), (True, "bool", ()), ([1, 2, 3], "int32", (3,)), ([1, 2.5], "float32", (2,)),
    ([True, False], "bool", (2,)), ([True, 2], "int32", (2,)), ([[1, 2], [3, 4]], "int32", (2, 2)),
    ([], "float32", (0,)),
    ([[], []], "float32", (2, 0)), (((1, 2), (3, 4)), "int32", (2, 2)), (range(3), "int32", (3,)),
    ([1 << 40, 1], "int64", (2,)),
    ([[[1.0]]], "float32", (1, 1, 1)), ([np.float32(1.5), 2], "float32", (2,)), ([np.int64(3)], "int32", (1,))])
def test_python_values_give_dtype_and_shape(value, dtype, shape):
    x = Tensor(value)
    assert (x.dtype.name, x.shape) == (dtype, shape)
    assert x.tolist() == np.array(value).tolist()


def test_bytes_and_memory():
    assert Tensor(b"\x01\xff").tolist() == [1, 255] and Tensor(b"\x01").dtype is dtypes.uint8
    assert Tensor(bytearray(b"ab")).tolist() == [97, 98]
    assert Tensor(array.array("d", [1.5])).dtype is dtypes.float64
    assert Tensor(memoryview(array.array("h", [1, -2]))).tolist() == [1, -2]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
                                   "float16",
                                   "float32", "float64"])
def test_arrays_come_back_as_they_went(dtype):
    a = np.arange(6).reshape(2, 3).astype(dtype)
    for view in (a, a.T, a[::-1], a[:, 1], np.array(a[0, 0]), a[:0]):
        x = Tensor(view)
        assert x.dtype.name == dtype and x.shape == view.shape
        np.testing.assert_array_equal(x.numpy(), view)
        assert x.numpy().dtype == dtype and x.tolist() == view.tolist()


@pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="it reads the host's memory")
def test_arrays_are_copied_or_shared():
    a = np.array([1.0, 2.0], "float32")
    copied, shared = Tensor(a), Tensor.from_numpy(a)
    a[0] = 9
    assert copied.tolist() == [1.0, 2.0] and shared.tolist() == [9.0, 2.0]
    assert (shared + 1).tolist() == [10.0, 3.0]
    assert Tensor.from_numpy(np.arange(6.0, dtype="float32")[1:]).sum().item() == 15.0     # not aligned to a vector
    assert Tensor.from_numpy(np.arange(6.0, dtype="float32").reshape(2, 3).T).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert Tensor(np.array([1, 2], ">i4")).tolist() == [1, 2]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", *(d.name for d in dtypes.fp8s)])
def test_narrow_floats_hold_small_numbers_exactly(dtype):
    x = Tensor([1.0, -0.5, 3.0], dtype=dtype)
    assert x.dtype.name == dtype and x.tolist() == [1.0, -0.5, 3.0]
    assert x[0].item() == 1.0 and x.numpy().dtype == ("float16" if dtype == "float16" else "float32")
    assert x.float().sum().item() == 3.5


def test_lists_of_arrays_and_tensors():
    assert Tensor([np.ones(2, "float32"), np.zeros(2, "float32")]).tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert Tensor([Tensor([1, 2]), Tensor([3, 4])]).tolist() == [[1, 2], [3, 4]]
    assert Tensor([Tensor(1), Tensor(2.5)]).tolist() == [1.0, 2.5]


def test_a_given_dtype_converts():
    assert Tensor([1.7, -1.7], dtype=dtypes.int32).tolist() == [1, -1]
    assert Tensor([0, 3], dtype="bool").tolist() == [False, True]
    assert Tensor([1, 2], dtype="float64").dtype is dtypes.float64
    assert Tensor(np.array([1, 2]), dtype=dtypes.float32).dtype is dtypes.float32
    assert Tensor(Tensor([1, 2]), dtype=dtypes.float32).tolist() == [1.0, 2.0]
    assert Tensor([2.0]).cast("int64").dtype is dtypes.int64


def test_constants_and_ranges():
    assert Tensor.zeros(2, 3).tolist() == [[0.0] * 3] * 2 and Tensor.zeros((2,), dtype=dtypes.int32).tolist() == [0, 0]
    assert Tensor.ones([2]).tolist() == [1.0, 1.0] and Tensor.full((2,), 7).dtype is dtypes.int32
    assert Tensor.full((), 2.5).item() == 2.5 and Tensor.full(3, True).dtype is dtypes.bool
    assert Tensor.zeros().shape == () and Tensor.zeros(0, 3).shape == (0, 3)
    for args in ((5,), (2, 7), (2, 9, 3), (9, 2, -2), (0,), (5, 2), (1.0, 2.0, 0.25), (0, 1, 0.1), (-3,)):
        expected = np.arange(*args)
        np.testing.assert_allclose(Tensor.arange(*args).numpy(), expected, rtol=1e-6)
        assert Tensor.arange(*args).dtype.name == ("int32" if expected.dtype == "int64" else "float32")
    for args in ((0, 1, 5), (5, -5, 11), (0, 1, 1), (3, 3, 4), (0, 1, 0), (0, 0.3, 4)):
        np.testing.assert_allclose(Tensor.linspace(*args).numpy(), np.linspace(*args), rtol=1e-6, atol=1e-7)
    assert Tensor.linspace(0.1, 0.7, 9).tolist()[-1] == np.float32(0.7)
    assert Tensor.eye(2, 3).tolist() == [[1.0, 0, 0], [0, 1.0, 0]] and Tensor.eye(0).shape == (0, 0)
    like = Tensor([1, 2])
    assert like.zeros_like().dtype is dtypes.int32 and like.ones_like(dtype=dtypes.float32).tolist() == [1.0, 1.0]
    assert Tensor([2, 0]).one_hot(3).tolist() == [[0, 0, 1], [1, 0, 0]] and Tensor([2, 0]).one_hot().shape == (2, 3)


# -- random -----------------------------------------------------------------------------------------------------------
def test_random_numbers_have_their_shape():
    Tensor.manual_seed(1)
    x = Tensor.rand(20000)
    assert 0 <= x.min().item() and x.max().item() < 1 and abs(x.mean().item() - 0.5) < 0.01
    y = Tensor.randn(20000)
    assert abs(y.mean().item()) < 0.03 and abs(y.std().item() - 1) < 0.03 and y.abs().max().item() < 6
    assert abs((y ** 4).mean().item() - 3) < 0.3                   # a normal distribution's fourth moment
    z = Tensor.randint(20000, low=-2, high=3).numpy()
    assert set(z) == {-2, -1, 0, 1, 2} and z.dtype == "int32"
    assert max(np.bincount(z + 2)) - min(np.bincount(z + 2)) < 500
    u = Tensor.uniform(1000, low=3, high=5)
    assert 3 <= u.min().item() and u.max().item() < 5
    assert abs(Tensor.normal(20000, mean=3, std=2).mean().item() - 3) < 0.1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_random_numbers_of_other_floats(dtype):
    x = Tensor.rand(5000, dtype=dtype)
    assert x.dtype.name == dtype and x.float().max().item() < 1 and len(np.unique(x.float().numpy())) > 100
    assert Tensor.randn(50, dtype=dtype).dtype.name == dtype


def test_random_numbers_are_fixed_when_they_are_asked_for():
    Tensor.manual_seed(5)
    a, b = Tensor.rand(8), Tensor.rand(8)
    second, first = b.tolist(), a.tolist()                          # read in reverse order
    Tensor.manual_seed(5)
    assert Tensor.rand(8).tolist() == first and Tensor.rand(8).tolist() == second
    assert first != second
    x = Tensor.rand(8)
    assert (x - x).tolist() == [0.0] * 8 and x.tolist() == (x + 0).tolist()
    Tensor.manual_seed(6)
    assert Tensor.rand(8).tolist() != first


def test_random_words_of_a_seed_never_change():
    Tensor.manual_seed(42)
    assert Tensor.rand(3).tolist() == [0.054384827613830566, 0.33723604679107666, 0.6488877534866333]


def test_weights_to_start_from():
    for make, bound in ((Tensor.glorot_uniform, (6 / 300) ** 0.5),
                        (Tensor.kaiming_uniform, (6 / (1.0001 * 200)) ** 0.5),
                        (Tensor.scaled_uniform, 20000 ** -0.5)):
        w = make(100, 200)
        assert w.shape == (100, 200) and 0.95 * bound < w.abs().max().item() <= bound
    assert abs(Tensor.kaiming_normal(100, 200).std().item() - 0.1) < 0.01


# -- out --------------------------------------------------------------------------------------------------------------
def test_one_element_is_a_number_of_python():
    assert Tensor([[3]]).item() == 3 and isinstance(Tensor([3]).item(), int) and isinstance(Tensor(2.0).item(), float)
    assert Tensor([True]).item() is True and bool(Tensor([0])) is False
    assert float(Tensor([2.5])) == 2.5 and int(Tensor(3)) == 3 and [10, 20, 30][Tensor(1)] == 20
    assert f"{Tensor([1.23456]):.2f}" == "1.23" and np.asarray(Tensor([1, 2])).tolist() == [1, 2]
    assert Tensor([[1, 2], [3, 4]]).data().tolist() == [[1, 2], [3, 4]]
    assert Tensor.zeros(0, 2).tolist() == [] and Tensor.zeros(2, 0).tolist() == [[], []]
    assert Tensor.zeros(2, 0).numpy().shape == (2, 0)


def test_a_tensor_prints_its_values_dtype_and_device():
    device = Device.DEFAULT
    assert repr(Tensor([1, 2])) == f"Tensor([1, 2], dtype=int32, device={device})"
    assert str(Tensor([[1.0, 2.0], [3.0, 4.0]])) == \
        f"Tensor([[1., 2.],\n        [3., 4.]], dtype=float32, device={device})"
    assert repr(Tensor(2.5)) == f"Tensor(2.5, dtype=float32, device={device})"
    assert "..." in repr(Tensor.zeros(5000)) and len(repr(Tensor.zeros(5000))) < 200
    assert repr(Tensor([], dtype="int32")) == f"Tensor([], dtype=int32, device={device})"


def test_a_tensor_knows_its_size_type_and_device():
    x = Tensor.zeros(2, 3, dtype=dtypes.float16)
    assert (x.ndim, x.dim(), x.size(), x.size(1)) == (2, 2, (2, 3), 3)
    assert (x.numel(), x.element_size(), x.nbytes()) == (6, 2, 12)
    assert x.is_floating_point() and not x.int().is_floating_point() and x.device == Device.DEFAULT
    assert x.lazydata is x.uop and hash(x) == hash(x) and len({x, x, Tensor.zeros(2)}) == 2


def test_pickle_and_copy():
    x = Tensor([[1.0, 2.0]], requires_grad=True)
    for y in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert y.tolist() == x.tolist() and y.dtype is x.dtype and y.requires_grad is True and y is not x
    assert pickle.loads(pickle.dumps(Tensor([1.5]).bfloat16())).dtype is dtypes.bfloat16


def test_numpy_is_not_loaded_for_lists():
    code = ("import sys; from glassgrad import Tensor; x = Tensor([1.0, 2.0]); y = (x + x).relu().sum(); "
            "print(sorted(m for m in ('numpy', 'torch') if m in sys.modules), y.shape)")
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root,
                          env={**os.environ, "PYTHONPATH": str(root), "DEVICE": "CPU"})    # PYTHON is made of NumPy
    assert done.stdout.strip() == "[] ()"
