"""Other libraries: NumPy, DLPack, PyTorch, foreign memory, pickles, notebooks."""

from __future__ import annotations

import copy
import ctypes
import gc
import pickle

import numpy as np
import pytest
from judge import TORCH, Tensor, dtypes, torch

from glassgrad import DeviceError, DTypeError, InputError
from glassgrad.tensor import interop


# -- NumPy ---------------------------------------------------------------------------------------------------
def test_numpy_protocols():
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    assert np.asarray(x).tolist() == x.tolist() and np.array(x, dtype="int64").dtype == np.int64
    assert (np.ones((2, 2), "float32") + x).tolist() == [[2.0, 3.0], [4.0, 5.0]]
    assert isinstance(np.float32(2) * x, Tensor) and (np.float32(2) * x).tolist() == [[2.0, 4.0], [6.0, 8.0]]
    assert Tensor(np.arange(6).reshape(2, 3)[:, ::-2].T).tolist() == np.arange(6).reshape(2, 3)[:, ::-2].T.tolist()


# -- DLPack --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64", "bfloat16", "bool"]
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_dlpack_to_and_from_pytorch(dtype, shape):
    x = Tensor.ones(*shape, dtype=dtype) if dtype != "bool" else Tensor.ones(*shape).bool()
    there = torch.from_dlpack(x)
    assert tuple(there.shape) == shape and there.dtype is TORCH[dtype] and bool((there == 1).all())
    back = Tensor.from_dlpack(there)
    assert back.shape == shape and back.dtype is x.dtype and back.tolist() == x.tolist()


def test_dlpack_shares_memory():
    array = np.arange(4, dtype="float32")
    x = Tensor.from_dlpack(array)
    array[0] = 100
    assert x.tolist() == [100.0, 1.0, 2.0, 3.0]
    y = Tensor([1.0, 2.0]).realize()
    torch.from_dlpack(y)[0] = 7
    assert y.tolist() == [7.0, 2.0]
    assert np.from_dlpack(y).tolist() == [7.0, 2.0]


def test_dlpack_of_views():
    x = Tensor.arange(6).reshape(2, 3)
    assert torch.from_dlpack(x.T).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert Tensor.from_dlpack(torch.arange(6).reshape(2, 3).T).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert Tensor.from_dlpack(np.arange(10, dtype="float64")[::-2]).tolist() == [9.0, 7.0, 5.0, 3.0, 1.0]


def test_dlpack_keeps_what_it_needs_and_no_more():
    gc.collect()
    before = len(interop._given)
    there = torch.from_dlpack(Tensor([1.0, 2.0, 3.0]) * 2)
    gc.collect()
    assert there.tolist() == [2.0, 4.0, 6.0] and len(interop._given) == before + 1
    del there
    gc.collect()
    assert len(interop._given) == before
    capsule = Tensor([1.0]).__dlpack__()
    assert len(interop._given) == before + 1
    del capsule
    assert len(interop._given) == before
    here = Tensor.from_dlpack(np.arange(1000, dtype="float32"))
    gc.collect()
    assert here.sum().item() == 499500.0


def test_dlpack_refuses():
    capsule = Tensor([1.0]).__dlpack__()
    Tensor.from_dlpack(capsule)
    with pytest.raises(InputError, match="used already"):
        Tensor.from_dlpack(capsule)
    with pytest.raises(InputError, match="no DLPack capsule"):
        Tensor.from_dlpack([1, 2])
    with pytest.raises(DTypeError, match="no such type"):
        Tensor([1.0]).cast(dtypes.fp8e4m3).__dlpack__()
    with pytest.raises(DeviceError, match="host's memory"):
        Tensor([1.0]).__dlpack__(dl_device=(2, 0))
    with pytest.raises(DTypeError, match="no counterpart"):
        Tensor.from_dlpack(torch.zeros(2, dtype=torch.complex64))


# -- PyTorch -------------------------------------------------------------------------------------------------
def test_torch_in_and_out():
    there = torch.tensor([[1.5, 2.5]], requires_grad=True)
    assert Tensor.from_torch(there).tolist() == [[1.5, 2.5]] and Tensor(there.detach()).tolist() == [[1.5, 2.5]]
    assert Tensor.from_torch(torch.tensor([1.5], dtype=torch.bfloat16)).dtype is dtypes.bfloat16
    mine = Tensor([1, 2])
    out = mine.torch()
    out[0] = 9
    assert out.tolist() == [9, 2] and mine.tolist() == [1, 2]


# -- memory of others ----------------------------------------------------------------------------------------
def test_from_blob():
    numbers = (ctypes.c_int32 * 6)(*range(6))
    x = Tensor.from_blob(ctypes.addressof(numbers), (2, 3), dtype=dtypes.int32, owner=numbers)
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]] and (x + 1).sum().item() == 21
    numbers[0] = 50
    assert x.tolist()[0][0] == 50
    array = np.arange(3, dtype="float32")
    assert Tensor.from_blob(array.ctypes.data, (3,)).tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(InputError, match="needs an address"):
        Tensor.from_blob(0, (3,))


# -- pickles and notebooks -----------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "bool", "fp8e4m3"])
def test_pickle_and_copies(dtype):
    x = Tensor([[1.0, 0.0]]).cast(dtype)
    for twin in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert twin.tolist() == x.tolist() and twin.dtype is x.dtype and twin is not x
    weight = pickle.loads(pickle.dumps(Tensor([1.0], requires_grad=True)))
    assert weight.requires_grad is True


def test_notebook_shows_a_table():
    assert (
        Tensor([[1.5, 2.0]])._repr_html_()
        == "<table><tr><td>1.5</td><td>2</td></tr></table><small>shape (1, 2), float32, "
        + Tensor([1]).device
        + "</small>"
    )
    assert Tensor([1, 2])._repr_html_().startswith("<table><tr><td>1</td>")
    assert Tensor.zeros(50, 50)._repr_html_().startswith("<pre>Tensor(")
    assert Tensor.zeros(0, 2)._repr_html_().startswith("<pre>")
