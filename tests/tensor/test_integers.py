"""Integers at the limits of their types, in random programs: they wrap as NumPy's do, on every device."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest

from glassgrad import Context, DivisionError, Tensor

TYPES = ["int64"] * 4 + ["int32", "uint32", "uint64", "int16", "int8", "uint8"]
Pair = tuple[Tensor, np.ndarray]


class Maker:
    """One random program: each step in our words and in NumPy's."""

    def __init__(self, seed: int, device: str):
        self.random, self.device = random.Random(seed), device
        self.dtype = self.random.choice(TYPES)
        self.limits = np.iinfo(self.dtype)
        rows, columns = self.random.choice([(3, 5), (4, 8), (1, 7), (16, 3), (17, 1)])
        arrays = [self.numbers((rows, 1)), self.numbers((1, columns)), self.numbers((rows, columns))]
        self.values: list[Pair] = [(Tensor(a, device=device), a) for a in arrays]
        for n, shape in ((rows, (rows, 1)), (columns, (1, columns))):
            self.values.append((Tensor.arange(n, dtype=self.dtype, device=device).reshape(shape),
                                np.arange(n, dtype=self.dtype).reshape(shape)))
        self.lines = [self.dtype]

    def number(self) -> int:
        least, most = int(self.limits.min), int(self.limits.max)
        number = self.random.choice([1, 2, 3, 4, 5, 7, 8, -1, -3, most, most - 1, most // 2 + 1, most // 4 + 1, least])
        return max(number, least)

    def numbers(self, shape: tuple[int, int]) -> np.ndarray:
        return np.array([self.number() for _ in range(shape[0] * shape[1])], self.dtype).reshape(shape)

    def step(self) -> None:
        i, j = self.random.randrange(len(self.values)), self.random.randrange(len(self.values))
        (x, a), (y, b) = self.values[i], self.values[j]
        k = self.number()
        by = max(1, min(abs(k), int(self.limits.max)))            # the number 0 is refused as a divisor
        c, d = np.array(k, self.dtype), np.array(by, self.dtype)
        steps = {"x + y": lambda: (x + y, a + b), "x - y": lambda: (x - y, a - b), "x * y": lambda: (x * y, a * b),
                 "x * k": lambda: (x * k, a * c), "x + k": lambda: (x + k, a + c),
                 "x // |k|": lambda: (x // by, a // d), "x % |k|": lambda: (x % by, a % d),
                 "x < y": lambda: ((x < y).cast(self.dtype), (a < b).astype(self.dtype)),
                 "where(x < k, x, y)": lambda: ((x < k).where(x, y), np.where(a < c, a, b)),
                 "max(x, y)": lambda: (x.maximum(y), np.maximum(a, b)),
                 "where(x == y, y, x)": lambda: ((x == y).where(y, x), np.where(a == b, b, a))}
        text = self.random.choice(list(steps))
        with np.errstate(all="ignore"):
            self.values.append(steps[text]())
        self.lines.append(f"v{len(self.values) - 1} = {text} with x = v{i}, y = v{j}, k = {k}")

    def check(self) -> None:
        for _ in range(self.random.randint(2, 9)):
            self.step()
        ours, expected = self.values[-1]
        np.testing.assert_array_equal(ours.numpy(), expected, err_msg="\n".join(self.lines), strict=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("device, count", [("CPU", 60), ("CLANG", 25), ("PYTHON", 40)])
@pytest.mark.parametrize("noopt", [0, 1])
def test_random_programs(device: str, count: int, noopt: int, seed: int) -> None:
    with Context(NOOPT=noopt):
        for program in range(count):
            Maker(seed + program, device).check()


# -- programs that failed once ------------------------------------------------------------------------------------
def test_int64_compares_where_the_difference_overflows() -> None:
    least, most = -2**63, 2**63 - 1
    x, y = np.array([[0], [5], [-5], [most]]), np.array([least, 1, most])
    np.testing.assert_array_equal((Tensor(x) < Tensor(y)).numpy(), x < y)
    assert Tensor(y).sign().tolist() == [-1, 1, 1]


def test_comparisons_whose_sides_change_places_at_the_end_of_int64() -> None:
    """`x > -1` became `-x < 1`, which is true of the least integer."""
    least, greatest = -2**63, 2**63 - 1
    values = [least, least + 1, -2, -1, 0, 1, greatest]
    x = Tensor(np.array(values))
    for c in (least, -2, -1, 0, 1, greatest):
        assert (x > c).tolist() == [v > c for v in values] and (x < c).tolist() == [v < c for v in values], c
        assert (x <= c).tolist() == [v <= c for v in values] and (x >= c).tolist() == [v >= c for v in values], c


def test_the_quotient_of_a_difference_whose_rest_overflows() -> None:
    """(x - 5) // 7 is (x + 2) // 7 - 1 only where x + 2 fits."""
    values = [0, 4, 5, 2**63 - 8, 2**63 - 1]
    x = Tensor(np.array(values)).maximum(0)
    assert ((x - 5) // 7).tolist() == [(v - 5) // 7 for v in values]


def test_the_remainder_of_a_difference_whose_rest_overflows() -> None:
    x = np.array([0, 3, 2**63 - 1, 2**62])
    np.testing.assert_array_equal(((Tensor.arange(4, dtype="int64") - Tensor(x).maximum(0)) % (2**63 - 1)).numpy(),
                                  (np.arange(4) - x) % (2**63 - 1))


def test_the_larger_of_two_sums_that_wrap() -> None:
    x = np.array([0, 5, -1, 2**62, -2**62, 2**63 - 1])
    ours = Tensor(x) + Tensor(x)
    np.testing.assert_array_equal((ours + (-2**63)).maximum(ours).numpy(), np.maximum(x + x + np.int64(-2**63), x + x))


def test_a_quotient_of_a_quotient_whose_divisors_overflow() -> None:
    x = np.array([0, 5, -5, 2**62, -2**63, 2**63 - 1])
    most = np.int64(2**63 - 1)
    ours = (Tensor(x) * (2**63 - 1)) // (2**63 - 1) // 3
    np.testing.assert_array_equal(ours.numpy(), (x * most) // most // 3)


@pytest.mark.parametrize("rows", [3, 5, 17])
def test_a_loop_ends_though_multiples_of_its_counter_wrap(rows: int) -> None:
    """A loop may count in multiples of its counter; 2^62 times it is 0 again at the fourth."""
    with Context(NOOPT=1):
        ours = (Tensor.arange(rows, dtype="int64") * 2**62).maximum(Tensor.arange(2, dtype="int64").reshape(2, 1))
        expected = np.maximum(np.arange(rows) * 2**62, np.arange(2).reshape(2, 1))
        np.testing.assert_array_equal(ours.numpy(), expected)


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_no_lane_of_a_short_vector_is_divided_by_zero(dtype: str) -> None:
    """Five lanes lie in a register of eight; C divides in all eight, and dividing by 0 undoes the others."""
    x, y = np.array([0, 1, 2, 255, 254], dtype), np.array([3, 1, 200, 255, 2], dtype)
    ours = Tensor(x, device="CLANG") - Tensor(y, device="CLANG")
    np.testing.assert_array_equal((ours % 3).numpy(), (x - y) % np.array(3, dtype))
    np.testing.assert_array_equal((ours // 3).numpy(), (x - y) // np.array(3, dtype))


def test_a_shifted_literal_of_c_has_the_type_of_its_number() -> None:
    assert ((Tensor.arange(17, dtype="int64", device="CLANG") + 1) << 40).tolist() == [i << 40 for i in range(1, 18)]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("device", ["CPU", "CLANG", "PYTHON"])
def test_an_element_divided_by_zero_is_0(dtype: str, device: str) -> None:
    x, y = Tensor([7, 0, 5], dtype=dtype, device=device), Tensor([0, 0, 2], dtype=dtype, device=device)
    assert (x // y).tolist() == [0, 0, 2] and (x % y).tolist() == [0, 0, 1] and x.idiv(y).tolist() == [0, 0, 2]
    assert x.fmod(y).tolist() == [0, 0, 1]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64"])
def test_the_remainder_with_the_sign_of_the_dividend_is_numpys(dtype: str, rng: np.random.Generator) -> None:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    x = np.append(rng.integers(low, high, 200, dtype, endpoint=True), np.array([low, high, 0, 1], dtype))
    for y in (rng.permutation(x), np.full_like(x, 3), np.full_like(x, -1 if low else 1)):
        with np.errstate(divide="ignore"):
            np.testing.assert_array_equal(Tensor(x).fmod(Tensor(y)).numpy(), np.fmod(x, y))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64", "bool"])
def test_the_sum_of_an_einsum_has_64_bits_as_any_other(dtype: str) -> None:
    x = Tensor([[1, 1], [1, 0]], dtype=dtype)
    for formula, total in (("ij->i", x.sum(1)), ("ij->", x.sum()), ("ii", x.trace())):
        found = Tensor.einsum(formula, x)
        assert found.dtype is total.dtype and found.tolist() == total.tolist()
    assert Tensor.einsum("i->", Tensor.full((10,), 2**30, dtype="int32")).item() == 10 * 2**30
    assert Tensor.einsum("ij->i", x, dtype="int32").dtype.name == "int32"


@pytest.mark.parametrize("call", [
    lambda x: x // 0, lambda x: x % 0, lambda x: x.floor_divide(0), lambda x: x.remainder(0), lambda x: x.idiv(0),
    lambda x: x.fmod(0), lambda x: x.div(0, rounding_mode="trunc"), lambda x: x.ceildiv(0), lambda x: x // False])
def test_the_number_0_is_no_divisor_of_integers(call: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(DivisionError) as raised:
        call(Tensor([1, 2]))
    assert isinstance(raised.value, ZeroDivisionError) and str(raised.value).splitlines()[:4] == [
        "integers cannot be divided by 0", "  given:    a divisor of 0 for int32",
        "  expected: a divisor that is not 0",
        "  fix:      check the divisor, or divide as floats, which gives inf and NaN: x.float() // 0"]
    assert (Tensor([1, 2]) / 0).tolist() == [math.inf, math.inf] and (0 // Tensor([1, 2])).tolist() == [0, 0]


@pytest.mark.parametrize("kind", ["int8", "uint8", "int32", "int64", "uint64"])
def test_powers_of_integers_beyond_63_and_below_0(kind):
    """0 ** 64 was 1, and 2 ** -1 of int64 the least integer."""
    bases, exponents = [0, 1, 2, 4, 0, 3, 0], [64, 100, 64, 65, 0, 4, 1]
    if kind.startswith("int"):
        bases, exponents = bases + [0, 1, -1, -1, 2, 3, -2], exponents + [-1, -5, -2, -3, -1, -3, -7]
    found = Tensor(bases, dtype=kind) ** Tensor(exponents, dtype=kind)
    wanted = [x ** n if n >= 0 else 0 if x == 0 else int(x ** n) for x, n in zip(bases, exponents)]
    limit = 2 ** found.dtype.bits
    assert found.tolist() == [w if abs(w) < limit else 0 for w in wanted]
