"""Other libraries: NumPy, DLPack, PyTorch, foreign memory, pickles, notebooks."""

from __future__ import annotations

import copy
import ctypes
import gc
import io
import pickle
import weakref

import numpy as np
import pytest
from scripts import run_script
from torch_reference import TORCH, Tensor, dtypes, torch

from glassgrad import DeviceError, DTypeError, InputError, nn
from glassgrad.nn.state import TensorIO
from glassgrad.tensor.memory import dlpack, interop

FLOATS_OF_8_BITS = {"float8_e4m3fn": "fp8e4m3", "float8_e5m2": "fp8e5m2", "float8_e4m3fnuz": "fp8e4m3fnuz",
                    "float8_e5m2fnuz": "fp8e5m2fnuz"}


# -- NumPy ---------------------------------------------------------------------------------------------------
def test_numpy_reads_tensors_and_mixed_operations_give_tensors():
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    assert np.asarray(x).tolist() == x.tolist() and np.array(x, dtype="int64").dtype == np.int64
    assert (np.ones((2, 2), "float32") + x).tolist() == [[2.0, 3.0], [4.0, 5.0]]
    assert isinstance(np.float32(2) * x, Tensor) and (np.float32(2) * x).tolist() == [[2.0, 4.0], [6.0, 8.0]]
    assert Tensor(np.arange(6).reshape(2, 3)[:, ::-2].T).tolist() == np.arange(6).reshape(2, 3)[:, ::-2].T.tolist()


@pytest.mark.parametrize("name", ["int64", "uint64", "int32", "bool", "float16", "float64"])
def test_an_array_is_of_the_type_that_numpy_means_by_its_name(name: str) -> None:
    """int64 came as what C calls long long, which NumPy keeps apart where C's long has 64 bits too."""
    x = Tensor([1, 0]).cast(getattr(dtypes, name)).realize()
    for array in (x.numpy(), np.asarray(x), x[0].numpy()):
        assert array.dtype.type is np.dtype(name).type


@pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="it reads the host's memory")
def test_an_array_of_a_tensor_is_shared_or_copied_as_it_was_asked_for():
    x = Tensor([1.0, 2.0]).realize()
    copied, wide = np.array(x, copy=True), np.asarray(x, dtype="float64")
    copied[0], wide[0] = 7, 8
    assert x.tolist() == [1.0, 2.0] and wide.tolist() == [8.0, 2.0]
    shown = np.array(x, copy=False)
    assert np.shares_memory(shown, np.asarray(x)) and not shown.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        shown[1] = 9
    for refused in (lambda: np.array(x, dtype="float64", copy=False), lambda: np.array(x + 1, copy=False)):
        with pytest.raises(ValueError, match="without a copy"):
            refused()


@pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="it reads the host's memory")
def test_an_array_of_a_view_that_is_one_piece_of_memory_shares_it():
    """A reshape was copied, and of a row a kernel made a copy."""
    x = Tensor(np.arange(24).reshape(4, 3, 2)).realize()
    for view in (x, x.detach(), x.reshape(6, 4), x[1], x[2:4], x[3, 1:], x[1:3][1].reshape(2, 3)):
        shown = np.asarray(view)
        assert np.shares_memory(shown, np.asarray(x)) and not shown.flags.writeable
        assert shown.tolist() == view.tolist() and not np.shares_memory(view.numpy(), shown)
    for view in (x.T, x[:, 1], x.flip(0), x[::2]):
        assert not np.shares_memory(np.asarray(view), np.asarray(x))


def test_what_was_read_of_a_row_is_kept_when_the_tensor_is_written():
    x = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()
    row = x[1]
    shown, memory = np.asarray(row), row.data()
    x[1] = 9
    x.realize()
    assert shown.tolist() == memory.tolist() == [3.0, 4.0]
    assert row.tolist() == x[1].tolist() == [9.0, 9.0]


def test_numpys_functions_of_elements_stay_lazy():
    a, b = np.array([[0.25, -0.5]], "float32"), np.array([[2.0], [0.5]], "float32")
    for name in ("negative", "absolute", "reciprocal", "square", "sqrt", "exp", "log1p", "sin", "arctan", "arcsinh",
                 "floor", "rint", "sign", "signbit", "isnan", "logical_not"):
        values = a if name not in ("arccosh", "log", "log2", "log10", "sqrt") else np.abs(a) + 1
        out = getattr(np, name)(Tensor(values))
        assert isinstance(out, Tensor), name
        np.testing.assert_allclose(out.numpy(), getattr(np, name)(values), rtol=1e-5, err_msg=name)
    for name in interop._OPERATORS:
        left, right = (np.array([[6, 3]]), np.array([[2], [1]])) if "bit" in name or "shift" in name else (a, b)
        left = np.abs(left) if name == "power" else left
        expected = getattr(np, name)(left, right if name != "matmul" else right.T.reshape(2, 1))
        right = right.reshape(2, 1)
        for out in (getattr(np, name)(Tensor(left), right), getattr(np, name)(left, Tensor(right)),
                    getattr(np, name)(Tensor(left), Tensor(right))):
            assert isinstance(out, Tensor), name
            np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5, err_msg=name)


def test_numpys_other_functions_see_arrays():
    x, array = Tensor([[1.0, 2.0], [3.0, 4.0]]), np.ones((2, 2), "float32")
    array += x
    assert array.tolist() == [[2.0, 3.0], [4.0, 5.0]]
    assert np.sum(x) == 10 and np.mean(x, axis=0).tolist() == [2.0, 3.0] and np.transpose(x).tolist() == x.T.tolist()
    assert np.concatenate([x, array]).shape == (4, 2) and np.add.reduce(x, axis=0).tolist() == [4.0, 6.0]
    assert np.hypot(x, 0).tolist() == x.tolist() and np.where(x > 2, x, 0).tolist() == [[0.0, 0.0], [3.0, 4.0]]
    with pytest.raises(InputError, match="cannot write into a tensor"):
        np.add(array, array, out=x)


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


@pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="it reads the host's memory")
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


def test_dlpack_of_memory_that_is_not_to_be_written_is_copied():
    array = np.arange(3, dtype="float32")
    array.flags.writeable = False
    x = Tensor.from_dlpack(array)
    assert x.tolist() == [0.0, 1.0, 2.0]
    torch.from_dlpack(x)[0] = 5
    assert array.tolist() == [0.0, 1.0, 2.0]
    odd = np.frombuffer(bytearray(13), dtype="float32", offset=1)          # no address of a float32
    assert (Tensor.from_dlpack(odd) + 1).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="it reads the host's memory")
def test_dlpack_in_either_layout():
    x = Tensor([1.0, 2.0]).realize()
    for version, name in ((None, "dltensor"), ((0, 8), "dltensor"), ((1, 0), "dltensor_versioned")):
        capsule = x.__dlpack__(max_version=version)
        assert f'"{name}"' in repr(capsule)
        assert Tensor.from_dlpack(capsule).tolist() == [1.0, 2.0] and f'"used_{name}"' in repr(capsule)
        assert Tensor.from_dlpack(np.arange(3.0).__dlpack__(max_version=version)).tolist() == [0.0, 1.0, 2.0]
    np.from_dlpack(x)[0] = 3
    copied = np.from_dlpack(x, copy=True)
    copied[1] = 4
    assert x.tolist() == [3.0, 2.0] and copied.tolist() == [3.0, 4.0]


def test_dlpack_keeps_what_it_needs_and_no_more(monkeypatch):
    made: list[weakref.ref] = []
    give = dlpack.give

    def noted(memory, *rest):
        made.append(weakref.ref(memory))
        return give(memory, *rest)

    monkeypatch.setattr(dlpack, "give", noted)
    there = torch.from_dlpack(Tensor([1.0, 2.0, 3.0]) * 2)
    gc.collect()
    assert there.tolist() == [2.0, 4.0, 6.0] and made[0]() is not None
    del there
    gc.collect()
    assert made[0]() is None
    for version in (None, (1, 0)):
        capsule = Tensor([1.0]).__dlpack__(max_version=version)
        assert made[-1]() is not None
        del capsule
        assert made[-1]() is None
    here = Tensor.from_dlpack(np.arange(1000, dtype="float32"))
    gc.collect()
    assert here.sum().item() == 499500.0


def test_dlpack_of_a_type_that_the_other_library_refuses():
    """NumPy frees the capsule while it raises: a SystemError instead of its error, and the memory was never freed."""
    assert run_script("""
        import numpy
        from glassgrad import Tensor
        from glassgrad.tensor.memory import dlpack
        import weakref
        made, give = [], dlpack.give
        def noted(memory, *rest):
            made.append(weakref.ref(memory))
            return give(memory, *rest)
        dlpack.give = noted
        try:
            numpy.from_dlpack(Tensor([1.0, 2.0], dtype="bfloat16"))
        except (RuntimeError, BufferError) as refused:
            print("Unsupported dtype" in str(refused))
        print(made[0]() is None)
    """) == ("True\nTrue\n", "")


@pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="others copy to the host")
def test_dlpack_gives_back_what_it_was_given():
    """It did not: the finalizer that calls the other library's deleter held what it waited for."""
    array = np.arange(1000, dtype="float32")
    known, here = weakref.ref(array), Tensor.from_dlpack(array)
    del array
    gc.collect()
    assert known() is not None and here[999].item() == 999.0
    del here
    gc.collect()
    assert known() is None


@pytest.mark.parametrize("held", ["numpy.from_dlpack(x)", "x.__dlpack__()", "x.__dlpack__(max_version=(1, 0))"])
def test_dlpack_at_the_end_of_a_process(held):
    """Arrays and capsules that outlive the module that made them: a segmentation fault, before."""
    assert run_script(f"""
        import faulthandler, sys, numpy
        from glassgrad import Tensor
        faulthandler.enable()
        x = Tensor([1.0, 2.0])
        sys.kept = {held}
        print("end")
    """) == ("end\n", "")


def test_dlpack_refuses_used_capsules_and_unknown_types():
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
    for unshared in (torch.ones(1, requires_grad=True), np.ones(1, ">f4")):
        with pytest.raises(InputError, match="does not share this array"):
            Tensor.from_dlpack(unshared)


# -- PyTorch -------------------------------------------------------------------------------------------------
def test_torch_in_and_out():
    there = torch.tensor([[1.5, 2.5]], requires_grad=True)
    assert Tensor.from_torch(there).tolist() == [[1.5, 2.5]] and Tensor(there.detach()).tolist() == [[1.5, 2.5]]
    assert Tensor.from_torch(torch.tensor([1.5], dtype=torch.bfloat16)).dtype is dtypes.bfloat16
    mine = Tensor([1, 2])
    out = mine.torch()
    out[0] = 9
    assert out.tolist() == [9, 2] and mine.tolist() == [1, 2]


@pytest.mark.parametrize("dtype", [*TORCH, "uint16", "uint32", "uint64", *FLOATS_OF_8_BITS])
def test_a_tensor_of_pytorch_is_taken_as_it_is(dtype):
    there = torch.tensor([[1.0, 0.0], [1.0, 1.0]]).to(getattr(torch, dtype)).T
    x = Tensor(there)
    assert x.dtype.name == FLOATS_OF_8_BITS.get(dtype, dtype)
    assert x.float().tolist() == [[1.0, 1.0], [0.0, 1.0]]
    assert x.torch().dtype is there.dtype and x.torch().double().tolist() == there.double().tolist()


def test_tensors_of_both_libraries_meet():
    there, x = torch.tensor([1.0, 2.0], requires_grad=True), Tensor([10.0, 20.0])
    assert (x + there).tolist() == (there + x).tolist() == [11.0, 22.0] and isinstance(there - x, Tensor)
    assert (x * torch.tensor(2)).tolist() == [20.0, 40.0] and Tensor(torch.zeros(0, 2)).shape == (0, 2)
    assert torch.as_tensor(x).tolist() == [10.0, 20.0]
    for odd in (torch.ones(2, dtype=torch.complex64), torch.eye(2).to_sparse()):
        with pytest.raises(InputError, match="of this tensor of PyTorch"):
            Tensor(odd)


# -- memory of others ----------------------------------------------------------------------------------------
def test_a_path_is_the_files_own_bytes(tmp_path):
    path = tmp_path / "numbers.bin"
    path.write_bytes(np.arange(5, dtype=np.int16).tobytes() + b"x")
    assert Tensor(path).dtype == dtypes.uint8 and Tensor(path).shape == (11,)
    assert Tensor(path)[8:].tolist() == [4, 0, ord("x")]
    assert Tensor(path, dtype="int16").tolist() == [0, 1, 2, 3, 4], "a type says what the file's numbers are"
    shared = Tensor(path)
    shared[0] = 7
    assert shared[0].item() == 7 and path.read_bytes()[0] == 0, "the file itself is never written"
    (tmp_path / "empty").touch()
    assert Tensor(tmp_path / "empty").shape == (0,)
    with pytest.raises(FileNotFoundError):
        Tensor(tmp_path / "absent")


def test_a_tensor_of_bytes_reads_like_a_file():
    file = io.BufferedReader(TensorIO(Tensor(bytes(range(10)))), 4)
    assert file.read(3) == b"\0\1\2" and file.tell() == 3 and file.seek(-2, io.SEEK_END) == 8
    assert file.read() == b"\x08\x09" and file.read(1) == b"" and file.seek(-1, io.SEEK_CUR) == 9
    assert TensorIO(Tensor(b"")).read() == b"" and TensorIO(Tensor(b"ab")).seek(9) == 2
    with pytest.raises(io.UnsupportedOperation):
        TensorIO(Tensor(b"ab")).write(b"c")
    with pytest.raises(InputError, match="a row of bytes"):
        TensorIO(Tensor([1.0]))


@pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="it reads the host's memory")
def test_from_blob_shares_memory_at_an_address():
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
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "bool", "fp8e4m3", "fp8e5m2fnuz"])
def test_pickle_and_copies(dtype):
    x = Tensor([[1.0, 0.0]]).cast(dtype)
    for twin in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert twin.tolist() == x.tolist() and twin.dtype is x.dtype and twin is not x
    weight = pickle.loads(pickle.dumps(Tensor([1.0], requires_grad=True)))
    assert weight.requires_grad is True


def test_pickles_of_expressions_views_and_old_protocols():
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    drawn = Tensor.rand(3)
    for value in (x.T, x[::-1, 1:] + 1, drawn):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            assert pickle.loads(pickle.dumps(value, protocol)).tolist() == value.tolist()


def test_a_copy_has_the_gradient_too():
    x = Tensor([1.0, 2.0])
    (x * x).sum().backward()
    twin = copy.deepcopy(x)
    assert twin.grad.tolist() == [2.0, 4.0] and twin.grad is not x.grad and pickle.loads(pickle.dumps(x)).grad is None


@pytest.mark.parametrize("twins", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
@pytest.mark.parametrize("make", [lambda p: nn.optim.Adam(p, lr=0.1), lambda p: nn.optim.SGD(p, lr=0.1, momentum=0.9),
                                  lambda p: nn.optim.SGD(p, lr=Tensor([0.1]))])
def test_a_model_and_its_optimizer_are_copied_together_and_go_separate_ways(twins, make):
    model = {"a": nn.Linear(2, 3), "norm": nn.BatchNorm(3)}
    model["tied"] = model["a"]
    optimizer = make(nn.state.get_parameters(model))
    schedule = nn.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=9, cycle_momentum=False)

    def step(parts):
        model, optimizer, schedule = parts
        optimizer.zero_grad()
        with Tensor.train():
            model["norm"](model["tied"](Tensor([[1.0, 2.0], [0.5, -1.0]]))).square().mean().backward()
        optimizer.step()
        schedule.step()
        return [t.tolist() for t in nn.state.get_state_dict(model).values()]
    parts = (model, optimizer, schedule)
    step(parts)
    others = twins(parts)
    assert others[0]["tied"] is others[0]["a"] and others[1].params[0] is others[0]["a"].weight
    first = step(parts)
    assert step(others) == first                             # as if it were the same training
    assert step(others) != [t.tolist() for t in nn.state.get_state_dict(model).values()] == first


def test_notebook_shows_a_table():
    assert (
        Tensor([[1.5, 2.0]])._repr_html_()
        == "<table><tr><td>1.5</td><td>2</td></tr></table><small>shape (1, 2), float32, "
        + Tensor([1]).device
        + "</small>"
    )
    assert Tensor([1.5]).cast("bfloat16")._repr_html_().startswith("<table><tr><td>1.5</td>")
    assert Tensor([1, 2])._repr_html_().startswith("<table><tr><td>1</td>")
    assert Tensor.zeros(50, 50)._repr_html_().startswith("<pre>Tensor(")
    assert Tensor.zeros(0, 2)._repr_html_().startswith("<pre>")
