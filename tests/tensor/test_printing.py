"""The text of a tensor: the values at the ends of its axes, computed alone, and never an exception."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

import numpy as np
import pytest

from glassgrad import GlobalCounters, Tensor, dtypes
from glassgrad.tensor.array_text import array_text
from glassgrad.tensor.memory.python_values import true_indices_by_axis


def whole(x: Tensor) -> str:
    """The text, from all of the values; an empty tensor has its shape, as in NumPy's repr."""
    if 0 in x.shape:
        return f"Tensor([], shape={x.shape}, dtype={x.dtype.name}, device={x.device})"
    body = np.array2string(x.numpy(), separator=", ", prefix="Tensor(", threshold=1000, edgeitems=3)
    return f"Tensor({body}, dtype={x.dtype.name}, device={x.device})"


@pytest.mark.parametrize("shape", [(), (1,), (0, 3000), (1000,), (1001,), (6, 6, 6, 6), (7, 200), (2, 3000), (3000, 2),
                                   (40, 1, 50), (5, 9, 6, 8), (7, 7, 7, 7), (300, 300), (2, 40000)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_the_ends_are_shown_as_numpy_shows_them(shape: tuple[int, ...], dtype: str) -> None:
    x = (Tensor.rand(*shape) * 1000).cast(dtype)
    assert repr(x) == whole(x) == repr(x.realize())
    assert repr(x.T) == whole(x.T)


def test_the_ends_of_sums() -> None:
    x = (Tensor.arange(900 * 80).reshape(900, 80) % 17).float().realize()     # their sums are exact, in any order
    y = Tensor.eye(80).realize()
    assert repr(x @ y) == whole(x) and repr((x @ y).cumsum(0)) == whole(x.cumsum(0))


@pytest.mark.parametrize("make,shown", [
    (lambda: Tensor.zeros(10**13), "[0., 0., 0., ..., 0., 0., 0.]"),
    (lambda: Tensor.arange(10**12, dtype=dtypes.int64) % 7, "[0, 1, 2, ..., 5, 6, 0]"),
    (lambda: Tensor.full((10**13, 2), 5), "[[5, 5], [5, 5], [5, 5], ..., [5, 5], [5, 5], [5, 5]]"),
    (lambda: Tensor.rand(10**6, 10**6) < 2, "[[True, True, True, ..., True, True, True],")])
def test_what_no_memory_holds_is_shown(make: Callable[[], Tensor], shown: str) -> None:
    assert shown in re.sub(r"\s+", " ", repr(make())).replace("[ True", "[True").replace(",  True", ", True")


def test_only_the_ends_of_a_product_are_computed() -> None:
    x = Tensor.ones(10**6, 3).contiguous().realize()
    assert repr(x @ x.T).count("3., 3., 3., ..., 3., 3., 3.") == 6


def numbers_in(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+\.\d*(?:e[-+]\d+)?", text.partition("dtype")[0])]


@pytest.mark.parametrize("make,work", [
    (lambda x: x.softmax(0), 12), (lambda x: x.softmax(1), 12), (lambda x: x.layernorm(), 12), (lambda x: x.exp().T, 1),
    (lambda x: (x @ x.T).relu() @ x, 200), (lambda x: x.cat(x.exp()), 1), (lambda x: (x - x.mean(0)).flip(1), 12),
    (lambda x: x.sin().pad(((2, 1), (0, 7))), 1), (lambda x: x.softmax(0)[7:, 1:-1].T[5:], 12)])
def test_of_an_expression_only_parts_are_computed(make: Callable[[Tensor], Tensor], work: int) -> None:
    """Of softmax(0), the numbers of all columns were computed, and all exponentials were stored."""
    x = Tensor.rand(700, 300).realize()
    GlobalCounters.reset()
    shown = repr(make(x))
    assert GlobalCounters.global_ops < work * 20 * 700
    assert numbers_in(shown) == pytest.approx(numbers_in(whole(make(x))), rel=1e-4, abs=1e-6)
    assert len(numbers_in(shown)) == 36


@pytest.mark.parametrize("make", [lambda x: ((x @ x).relu() @ x).relu() @ x, lambda x: x.softmax(0) + x.sum(),
                                  lambda x: x.cumsum(0).sort(1)[0]], ids=["products", "softmax", "sort"])
def test_what_the_ends_have_in_common_is_computed_once(make: Callable[[Tensor], Tensor]) -> None:
    x = Tensor.rand(1000, 300).realize() if "softmax" in make.__code__.co_names else Tensor.rand(300, 300).realize()
    GlobalCounters.reset()
    make(x).realize()
    all_of_it = GlobalCounters.global_ops
    GlobalCounters.reset()
    shown = repr(make(x))
    assert 0 < GlobalCounters.global_ops < 1.2 * all_of_it
    assert numbers_in(shown) == pytest.approx(numbers_in(whole(make(x))), rel=1e-4)


@pytest.mark.parametrize("shape", [(2,) * 20, (6,) * 6, (9,) * 13], ids=str)
def test_of_many_axes_the_number_of_values_is_shown(shape: tuple[int, ...]) -> None:
    """Even their ends would fill many pages, and take minutes."""
    x = Tensor.zeros(*shape)
    assert repr(x) == f"Tensor(<{x.numel():,} values>, shape={shape}, dtype=float32, device={x.device})"


def test_showing_never_raises() -> None:
    x = Tensor.ones(10**7, 10**7).contiguous().sort(0)[0]
    on_gpu, block = "the GPU has no memory left", f"{x.device} has no block as large as this tensor"
    why = {"CUDA": on_gpu, "AMD": on_gpu, "HIP_SHIM": on_gpu, "METAL_SHIM": on_gpu, "WEBGPU": block,
           "OPENCL": block}.get(x.device, "there is not enough memory for this tensor")
    assert repr(x) == f"Tensor(<cannot be computed: {why}>, " \
        f"shape=(10000000, 10000000), dtype=float32, device={x.device})"


def test_an_error_without_a_text_is_shown_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(x: object) -> str:
        raise MemoryError
    monkeypatch.setattr("glassgrad.tensor.printing._values", fail)
    x = Tensor.ones(2)
    assert repr(x) == f"Tensor(<cannot be computed: MemoryError>, shape=(2,), dtype=float32, device={x.device})"


# -- the layout of numbers ------------------------------------------------------------------------------------------
NEW = tuple(int(n) for n in np.__version__.split(".")[:2]) >= (2, 3)       # since when a type's digits count


def random_array(rng: np.random.Generator, dtype: str) -> np.ndarray:
    """Numbers of few or many digits, near each other or far apart, some of them not finite."""
    shape = [(), (1,), (7,), (2, 3), (4, 1), (2, 2, 2), (30,), (3, 40), (1, 1, 1, 2)][rng.integers(9)]
    if dtype == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    if "int" in dtype:
        return np.asarray(rng.integers(0, [2, 10, 200][rng.integers(3)], shape)).astype(dtype)
    values = np.asarray(rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 9))
    if rng.random() < 0.3:
        values = np.round(values, rng.integers(4))
    if rng.random() < 0.3:
        values = values * 10.0 ** rng.integers(-3, 3, shape)
    if rng.random() < 0.2:
        special = rng.choice([np.inf, -np.inf, np.nan, 0.0, -0.0], shape)
        values = np.where(rng.random(shape) < 0.3, special, values)
    with np.errstate(all="ignore"):
        return np.asarray(values).astype(dtype)


@pytest.mark.skipif(not NEW, reason="NumPy before 2.3 lays large numbers out in another way")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64", "uint8", "bool"])
def test_numbers_are_laid_out_as_numpy_does(dtype: str, rng: np.random.Generator) -> None:
    for _ in range(150):
        values = random_array(rng, dtype)
        expected = np.array2string(values, separator=", ", prefix="Tensor(")
        assert array_text(values.ravel().tolist(), values.shape, getattr(dtypes, dtype), indent=7) == expected


def test_a_number_that_is_shown_alone_is_the_number() -> None:
    for power in (*range(-149, -13), *range(20, 128)):          # with an exponent, which leaves no digits out
        assert np.float32(array_text([2.0 ** power], (1,), dtypes.float32)[1:-1]) == np.float32(2.0 ** power)


def test_a_mask_has_the_same_indices_with_and_without_numpy(monkeypatch: pytest.MonkeyPatch,
                                                            rng: np.random.Generator) -> None:
    for shape in ((0,), (9,), (3, 5), (4, 1, 6), (2, 0, 3)):
        mask = rng.random(shape) < 0.4
        with monkeypatch.context() as without:
            without.setitem(sys.modules, "numpy", None)
            found = [axis.tolist() for axis in true_indices_by_axis(memoryview(mask.tobytes()), shape)]
        assert found == [axis.tolist() for axis in mask.nonzero()]


@pytest.mark.parametrize("shape", [(0, 5), (3, 0, 2), (10**9, 0)])
def test_an_empty_tensor_of_several_axes_shows_its_shape(shape: tuple[int, ...]) -> None:
    assert repr(Tensor.zeros(*shape, device="CPU")) == f"Tensor([], shape={shape}, dtype=float32, device=CPU)"
