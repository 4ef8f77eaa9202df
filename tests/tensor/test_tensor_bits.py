"""bitcast and view(dtype) between all types, against PyTorch reading the same memory."""

import itertools

import numpy as np
import pytest

from glassgrad import Tensor, TinyJit, Variable, dtypes
from glassgrad.tensor.memory.python_values import TORCH_TYPES

torch = pytest.importorskip("torch")

TYPES = {d: getattr(torch, name) for name, d in TORCH_TYPES.items()}
PAIRS = list(itertools.product(TYPES, repeat=2))
ONE_EACH_WAY = [(dtypes.float32, dtypes.int16), (dtypes.uint8, dtypes.float64)]
VIEWS = {
    "whole": lambda x: x,
    "transposed": lambda x: x.permute(1, 0) if isinstance(x, Tensor) else x.permute(1, 0).contiguous(),
    "stepped": lambda x: x[1:7:2] if isinstance(x, Tensor) else x[1:7:2].contiguous(),
    "repeated": lambda x: x[:1].expand(3, 8) if isinstance(x, Tensor) else x[:1].expand(3, 8).contiguous(),
    "no rows": lambda x: x[:0],
    "empty": lambda x: x[:, :0] if isinstance(x, Tensor) else x[:, :0].contiguous(),
}


def names(dtype):
    return getattr(dtype, "name", None)


def memory(rng, dtype, shape=(8, 8)):
    """Any bits (NaN of every kind among them); of a truth value, 0 and 1."""
    most = 2 if dtype is dtypes.bool else 256
    bits = rng.integers(0, most, (*shape[:-1], shape[-1] * dtype.itemsize), dtype=np.uint8)
    return torch.from_numpy(bits).view(TYPES[dtype])


def bits_of(x):
    """The memory of a PyTorch tensor; of truth values, whether a byte differs from 0."""
    bits = x.contiguous().view(torch.uint8)
    return bits.ne(0).to(torch.uint8).numpy() if x.dtype is torch.bool else bits.numpy()


def ours(given, dtype, device):
    """A tensor with that memory, without bitcast between sizes. torch hands over bool as it is."""
    word = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}[dtype.itemsize]
    if dtype is dtypes.bool:
        return Tensor(given.numpy(), device=device)
    return Tensor(given.view(word).numpy(), device=device).bitcast(dtype)


def found_bits(x):
    if x.dtype is dtypes.bool:
        return x.numpy().astype(np.uint8)
    return x.bitcast({1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}[x.dtype.itemsize]) \
        .contiguous().numpy().view(np.uint8)


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=names)
def test_all_pairs_of_types_read_memory_as_torch_does(source, target, rng):
    given = memory(rng, source)
    expected = given.view(TYPES[target])
    found = ours(given, source, "CPU").view(target)
    assert found.dtype is target and found.shape == tuple(expected.shape)
    assert np.array_equal(found_bits(found), bits_of(expected))


@pytest.mark.parametrize("device", ["CPU", "CLANG", "PYTHON"])
@pytest.mark.parametrize("dtype", dtypes.fp8s, ids=names)
def test_casts_and_arithmetic_of_eight_bit_floats_are_torchs_bit_by_bit(dtype, device, rng):
    """All codes to wider floats; floats at, between and next to all numbers of the type, and beyond them, back."""
    codes = torch.arange(256, dtype=torch.uint8)
    x, there = Tensor(codes.numpy(), device=device).bitcast(dtype), codes.view(TYPES[dtype])
    numbers = there.double()
    numbers = numbers[numbers.isfinite()].unique()
    ties = (numbers[1:] + numbers[:-1]) / 2
    rest = torch.from_numpy(rng.integers(0, 2**32, 4096, dtype=np.uint32).view(np.float32)).double()
    special = torch.tensor([-0.0, 247.9, 248.0, 464.0, 61439.0, 61440.0, 1e30, -1e30, np.inf, -np.inf, np.nan])
    for name in ("float16", "bfloat16", "float32", "float64"):
        wide, kind = getattr(dtypes, name), getattr(torch, name)
        np.testing.assert_array_equal(x.cast(wide).double().numpy(), there.to(kind).double().numpy())
        exact = torch.cat([numbers, ties, ties * (1 + 2**-7), ties * (1 - 2**-7), rest, -special, special]).to(kind)
        expected = exact.to(TYPES[dtype])
        found = ours(exact, wide, device).cast(dtype).bitcast("uint8").numpy()
        keep = ~np.isnan(expected.float().numpy()) if dtype.has_negative_zero else slice(None)   # one NaN, or several
        np.testing.assert_array_equal(found[keep], expected.view(torch.uint8).numpy()[keep])
    pairs, other = there.float().reshape(-1, 1), there.float().reshape(1, -1)
    for formula in (lambda a, b: a + b, lambda a, b: a * b, lambda a, b: -a - b):
        expected = formula(pairs, other)
        if formula(1.0, 1.0) == -2.0:           # two ops: each rounds
            expected = (-pairs).to(TYPES[dtype]).float() - other
        found = formula(x.reshape(-1, 1), x.reshape(1, -1))
        assert found.dtype is dtype
        wanted = expected.to(TYPES[dtype]).float()
        if dtype is dtypes.fp8e4m3:             # older versions of PyTorch give NaN for what is too large
            wanted = torch.where(expected.abs() > 448, expected.clamp(-448, 448), wanted)
        np.testing.assert_array_equal(found.float().numpy(), wanted.numpy())


@pytest.mark.parametrize("device", ["CPU", "CLANG", "PYTHON"])
@pytest.mark.parametrize("dtype", dtypes.fp8s, ids=names)
def test_limits_of_eight_bit_floats(dtype, device):
    x = Tensor([-3.0, -1.0, -0.0, -2.0], device=device).cast(dtype)
    assert x.max().item() == 0.0 and x.min().item() == -3.0 and x.isfinite().all().item()
    assert x.reshape(1, 1, 2, 2).max_pool2d(2, padding=1).tolist() == [[[[-3.0, -1.0], [0.0, -2.0]]]]
    assert Tensor(torch.arange(256, dtype=torch.uint8).numpy(), device=device).bitcast(dtype).isinf().sum().item() \
        == (2 if dtype.has_infinities else 0)


@pytest.mark.parametrize("device", ["CPU", "CLANG", "PYTHON"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(("source", "target"), ONE_EACH_WAY, ids=names)
def test_views_and_empty_tensors_on_all_devices(source, target, view, device, rng):
    given = memory(rng, source)
    expected = VIEWS[view](given).view(TYPES[target])
    found = VIEWS[view](ours(given, source, device)).bitcast(target)
    assert found.shape == tuple(expected.shape)
    assert np.array_equal(found_bits(found), bits_of(expected).reshape(found_bits(found).shape))


@pytest.mark.parametrize(("source", "target"), [pair for pair in PAIRS if pair[0] is not pair[1]], ids=names)
def test_a_single_number_as_torch_has_it(source, target, rng):
    given = memory(rng, source, (1,)).reshape(())
    x = ours(given, source, "CPU")
    if source.itemsize == target.itemsize:
        assert np.array_equal(found_bits(x.view(target).reshape(1)), bits_of(given.view(TYPES[target]).reshape(1)))
        return
    with pytest.raises(RuntimeError):
        given.view(TYPES[target])
    with pytest.raises(RuntimeError, match="a single number keeps its size"):
        x.view(target)


def test_what_torch_refuses_is_refused():
    with pytest.raises(RuntimeError):
        torch.zeros(2, 3).view(torch.float64)
    with pytest.raises(RuntimeError, match="does not divide"):
        Tensor.zeros(2, 3).view(dtypes.float64)
    n = Variable("n", 1, 4).bind(2)
    with pytest.raises(RuntimeError, match="does not divide"):       # as long as nobody knows that n is even
        Tensor.zeros(2, 4)[:, :n].bitcast(dtypes.float64)


def test_bitcast_takes_symbolic_sizes():
    x = np.arange(24, dtype=np.int32).reshape(4, 6)
    n = Variable("n", 1, 3).bind(2)
    assert Tensor(x)[:n].bitcast("int64")[:2].tolist() == x[:2].view(np.int64).tolist()
    assert Tensor(x)[:, :n * 2].bitcast("int64")[:, :2].tolist() == x[:, :4].copy().view(np.int64).tolist()
    assert Tensor(x)[:, :n].bitcast("int8")[:, :8].tolist() == x[:, :2].copy().view(np.int8).tolist()


def test_it_is_lazy_and_shares_a_kernel_with_what_is_around_it():
    x = Tensor([[1.5, -2.0], [3.0, 4.0]]).realize()
    assert len(((x + 1).bitcast(dtypes.uint16) + 1).schedule()) == 1
    assert len(((x + 1).bitcast(dtypes.uint64) >> 3).schedule()) == 1


def test_views_of_bits_run_under_the_jit():
    halves = TinyJit(lambda x: x.view(dtypes.uint16).realize())
    for i in range(4):
        x = np.full((3, 2), i + 0.5, np.float32)
        assert halves(Tensor(x)).tolist() == x.view(np.uint16).tolist()


def test_gradients_pass_beside_bits_but_not_through_them():
    x = Tensor([1.0, 2.0], requires_grad=True)
    weight = x.detach().bitcast(dtypes.float64).bitcast(dtypes.float32)
    assert (x * weight).sum().gradient(x)[0].tolist() == [1.0, 2.0]
    assert (x * x.bitcast(dtypes.uint8)[3::4].cast(dtypes.float32)).sum().gradient(x)[0].tolist() == [63.0, 64.0]
    with pytest.raises(RuntimeError, match="bits have no gradient"):
        x.view(dtypes.float16).sum().gradient(x)
    with pytest.raises(RuntimeError, match="bits have no gradient"):
        (x.view(dtypes.float16).sum() + x.sum()).backward()


def test_data_that_wants_no_gradient_may_be_read_as_bits():
    packed = Tensor([1.0, 2.0, 3.0])
    weight = Tensor([2.0], requires_grad=True)
    halves = packed.bitcast(dtypes.float16)
    (halves.cast(dtypes.float32) * weight).sum().backward()
    assert weight.grad.tolist() == [float(halves.numpy().astype("float32").sum())]
    assert packed.grad is None
