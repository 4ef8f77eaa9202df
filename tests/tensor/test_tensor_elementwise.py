"""Elementwise operations against PyTorch: value, shape, dtype, gradient, special values."""

from __future__ import annotations

import math
import operator
import sys

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch, the reference of gradients, is not installed")
from render_kernels import needs_wasmtime  # noqa: E402
from torch_reference import SPECIAL, Tensor, check, dtypes, torch  # noqa: E402

from glassgrad import Device, Variable  # noqa: E402

F = torch.nn.functional
SHAPES = [(), (1,), (7,), (3, 5), (2, 0, 3)]

# name, low, high of the inputs; the same name in both
UNARY = [("exp", -5, 5), ("exp2", -5, 5), ("expm1", -2, 2), ("log", 0.01, 5), ("log2", 0.01, 5), ("log10", 0.01, 5),
         ("log1p", -0.9, 3), ("sqrt", 0.01, 5), ("rsqrt", 0.01, 5), ("reciprocal", 0.1, 3), ("square", -3, 3),
         ("sin", -9, 9),
         ("cos", -9, 9), ("tan", -1.4, 1.4), ("asin", -0.95, 0.95), ("acos", -0.95, 0.95), ("atan", -5, 5),
         ("sinh", -3, 3),
         ("cosh", -3, 3), ("tanh", -3, 3), ("asinh", -5, 5), ("acosh", 1.1, 5), ("atanh", -0.9, 0.9), ("erf", -3, 3),
         ("sigmoid", -5, 5), ("abs", -3, 3), ("neg", -3, 3), ("floor", -3, 3), ("ceil", -3, 3), ("round", -3, 3),
         ("trunc", -3, 3), ("sign", -3, 3), ("relu", -3, 3), ("frac", -3, 3)]
ACTIVATION = [("gelu", F.gelu), ("silu", F.silu), ("mish", F.mish), ("softplus", F.softplus), ("elu", F.elu),
              ("celu", F.celu),
              ("selu", F.selu), ("relu6", F.relu6), ("leaky_relu", F.leaky_relu), ("softsign", F.softsign),
              ("hardswish", F.hardswish), ("hardsigmoid", F.hardsigmoid), ("hardtanh", F.hardtanh),
              ("logsigmoid", F.logsigmoid), ("swish", F.silu)]
BINARY = {"+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y, "/": lambda x, y: x / y,
          "maximum": lambda x, y: x.maximum(y), "minimum": lambda x, y: x.minimum(y), "lerp": lambda x,
          y: x.lerp(y, 0.3),
          "where": lambda x, y: (x > y).where(x, y) if isinstance(x, Tensor) else torch.where(x > y, x, y),
          "copysign": lambda x, y: x.copysign(y), "atan2": lambda x, y: x.atan2(y), "logaddexp": lambda x,
          y: x.logaddexp(y)}
COMPARE = {"<": lambda x, y: x < y, "<=": lambda x, y: x <= y, ">": lambda x, y: x > y, ">=": lambda x, y: x >= y,
           "==": lambda x, y: x == y, "!=": lambda x, y: x != y}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name,low,high", UNARY)
def test_unary_functions_and_their_gradients_are_pytorchs(name, low, high, shape):
    check(lambda x: getattr(x, name)(), shape, low=low, high=high)


@pytest.mark.parametrize("name,low,high", UNARY)
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_unary_of_other_floats(name, low, high, dtype):
    check(lambda x: getattr(x, name)(), (11,), low=low, high=high, dtype=dtype,
          factor=4.0 if dtype == "bfloat16" else 1.0)


EXACT = ("abs", "neg", "square", "sign", "relu", "frac", "floor", "ceil", "round", "trunc")


@pytest.mark.parametrize("name,low,high", [u for u in UNARY if u[0] not in EXACT])
def test_unary_of_special_values(name, low, high):
    values = [v for v in SPECIAL if not (name in ("sin", "cos", "tan") and abs(v) > 1e9)]
    check(lambda x: getattr(x, name)(), values=[values], grad=False)


@pytest.mark.parametrize("name", ["abs", "neg", "sign", "relu", "floor", "ceil", "round", "trunc", "isnan", "isinf",
                                  "isfinite"])
def test_exact_unary_of_special_values(name):
    check(lambda x: getattr(x, name)(), values=[[*SPECIAL, 0.5, 1.5, 2.5, -0.5, -1.5, 2.0 ** 31, 1e20]], grad=False)


@pytest.mark.parametrize("name", ["abs", "neg", "sign", "relu", "square", "exp", "sqrt", "sin", "sigmoid", "floor",
                                  "round"])
def test_unary_of_integers(name):
    check(lambda x: getattr(x, name)(), (9,), low=0, high=5, dtype="int32")


@pytest.mark.parametrize("name,reference", ACTIVATION)
def test_activations_and_their_gradients_are_pytorchs(name, reference):
    check(lambda x: getattr(x, name)(), reference, (5, 9), low=-5, high=5)


@pytest.mark.parametrize("name,reference", [a for a in ACTIVATION if a[0] not in ("softsign", "mish", "hardswish")])
def test_activation_of_large_values(name, reference):
    check(lambda x: getattr(x, name)(), reference, values=[[-300.0, -100.0, -30.0, 30.0, 100.0, 300.0]])


def test_activations_with_options_are_pytorchs():
    check(lambda x: x.gelu("tanh"), lambda x: F.gelu(x, approximate="tanh"), (50,), low=-6, high=6)
    check(lambda x: x.softplus(2.0), lambda x: F.softplus(x, 2.0), (50,), low=-6, high=6)
    check(lambda x: x.leaky_relu(0.2), lambda x: F.leaky_relu(x, 0.2), (50,))
    check(lambda x: x.celu(0.5), lambda x: F.celu(x, 0.5), (50,))
    check(Tensor.quick_gelu, lambda x: x * torch.sigmoid(1.702 * x), (50,))
    check(Tensor.swiglu, lambda x: F.silu(x[..., :4]) * x[..., 4:], (3, 8))


def test_softplus_of_float64_is_its_argument_above_the_threshold():
    assert Tensor([20.5], dtype="float64").softplus().tolist() == [20.5]
    assert Tensor([19.5], dtype="float64").softplus().tolist() != [19.5]


@pytest.mark.parametrize("shapes", [((3, 4), (3, 4)), ((3, 1), (4,)), ((), (2, 3)), ((2, 1, 3), (5, 1)),
                                    ((0, 3), (1, 3)),
                                    ((), ())])
@pytest.mark.parametrize("name", BINARY)
def test_binary_operators_broadcast_as_pytorch(name, shapes):
    check(BINARY[name], *shapes, low=0.3 if name == "/" else -2)


@pytest.mark.parametrize("name", [*BINARY, *COMPARE])
def test_binary_of_special_values(name):
    if name in ("lerp", "logaddexp"):
        pytest.skip("PyTorch's own answers here depend on its version of the formula")
    left = [a for a in SPECIAL for _ in SPECIAL]
    check({**BINARY, **COMPARE}[name], values=[left, SPECIAL * len(SPECIAL)], grad=False)


@pytest.mark.parametrize("name", COMPARE)
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "bool"])
def test_comparisons_broadcast_as_pytorch(name, dtype):
    check(COMPARE[name], (3, 1), (5,), dtype=dtype, low=0, high=3)


@pytest.mark.parametrize("name", ["+", "-", "*", "maximum", "minimum"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float64"])
def test_binary_of_other_types(name, dtype):
    check(BINARY[name], (4, 3), (4, 3), dtype=dtype, low=0, high=9)


def test_division_rounds_as_pytorch_for_every_sign():
    for dtype in ("int32", "int8", "int64"):
        values = [[7, -7, 7, -7, 0, 5], [3, 3, -3, -3, 5, 1]]
        check(lambda x, y: x // y, values=values, dtype=dtype)
        check(lambda x, y: x % y, values=values, dtype=dtype)
        check(lambda x, y: x.div(y, rounding_mode="trunc"), values=values, dtype=dtype)
        check(lambda x, y: x.fmod(y), values=values, dtype=dtype)
        check(lambda x, y: x / y, values=values, dtype=dtype)
    values = [[7.5, -7.5, 7.5, -7.5, 0.0, 5.0], [2.0, 2.0, -2.0, -2.0, 5.0, 1.5]]
    check(lambda x, y: x // y, values=values, grad=False)
    check(lambda x, y: x % y, values=values)
    check(lambda x, y: x.fmod(y), values=values)
    assert (7 // Tensor([2, -2])).tolist() == [3, -4]
    assert (7 % Tensor([4, -4])).tolist() == [3, -1]


def test_bitwise_operators_and_shifts_are_pytorchs():
    for dtype in ("int32", "uint8", "int64"):
        for op in (lambda x, y: x & y, lambda x, y: x | y, lambda x, y: x ^ y):
            check(op, (20,), (20,), dtype=dtype, low=0, high=100)
        check(lambda x: x << 2, (20,), dtype=dtype, low=0, high=30)
        check(lambda x: x >> 2, (20,), dtype=dtype, low=0, high=100)
    for op in (lambda x, y: x & y, lambda x, y: x | y, lambda x, y: x ^ y, lambda x, y: x + y, lambda x, y: x * y):
        check(op, (20,), (20,), dtype="bool")
    check(lambda x: ~x, (9,), dtype="bool")
    check(lambda x: ~x, (9,), dtype="int32")
    check(lambda x: x.logical_not(), (9,), low=0, high=1, dtype="int32")


# -- powers -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, -1, -2, 0.5, -0.5, 1.5, 2.7, -0.3])
def test_power_by_a_number(n):
    check(lambda x: x ** n, (13,), low=0.2, high=3)
    check(lambda x: x ** n, values=[SPECIAL], grad=False)


@pytest.mark.parametrize("n", [0, 1, 2, 3, -1, -2])
def test_power_of_negatives(n):
    check(lambda x: x ** n, (13,), low=-3, high=-0.3)


def test_power_by_a_tensor():
    check(lambda x, y: x ** y, (13,), (13,), low=0.2, high=3)
    check(lambda x: 2.5 ** x, (13,))
    check(lambda x: 2 ** x, (13,))
    check(lambda x, y: x ** y, values=[[-2.0, -2.0, -3.0], [2.0, 3.0, -1.0]], grad=False)
    left = [a for a in SPECIAL for _ in range(len(SPECIAL) + 2)]
    check(lambda x, y: x ** y, values=[left, [*SPECIAL, 2.0, 3.0] * len(SPECIAL)], grad=False)
    check(lambda x, y: x ** y, values=[[0.0, 0.0, 2.0, 1.0], [2.0, 1.0, 0.0, 3.0]])
    check(lambda x, y: x ** y, values=[[2, 3, -2, 5], [10, 3, 5, 0]], dtype="int32")
    check(lambda x: x ** 3, (5,), dtype="int32")


def in_ulp(found, exact):
    """How many steps of its type lie between a value and the exact one, where that is a normal number."""
    nearest = exact.astype(found.dtype)
    normal = np.isfinite(nearest) & (np.abs(nearest) >= np.finfo(found.dtype).tiny)
    error = np.abs(found[normal].astype(exact.dtype) - exact[normal])
    return (error / np.spacing(np.abs(nearest[normal]))).max()


def skip_without_float64():
    """Powers are computed in float64 where a device has it; in float32 alone they are off by up to 100 last places."""
    if not Device[Device.DEFAULT].has_float64:
        pytest.skip(f"{Device.DEFAULT} has no float64, which powers are computed in")


def test_a_power_is_the_nearest_number(rng):
    skip_without_float64()
    many = 20_000
    x, y = np.exp2(rng.uniform(-60, 60, many)).astype("float32"), rng.uniform(-9, 9, many).astype("float32")
    near_one = 1 + rng.uniform(-1e-3, 1e-3, many).astype("float32")
    steep = rng.uniform(-8e4, 8e4, many).astype("float32")
    with np.errstate(over="ignore", under="ignore"):
        for base, exponent in ((x, y), (near_one, steep), (x * np.float32(2.0 ** -90), y)):
            exact = np.power(base.astype("float64"), exponent.astype("float64"))
            assert in_ulp((Tensor(base) ** Tensor(exponent)).numpy(), exact) < 0.51
        assert in_ulp((Tensor(x) ** 2.75).numpy(), np.power(x.astype("float64"), 2.75)) < 0.51
        assert in_ulp((2.75 ** Tensor(y)).numpy(), np.power(2.75, y.astype("float64"))) < 0.51


def test_a_power_that_is_a_float32_number_is_exact():
    skip_without_float64()
    base, exponent = (g.astype("float32") for g in np.meshgrid(np.arange(1, 400) / 4, np.arange(-8, 17) / 2))
    exact = np.power(base.astype("float64"), exponent.astype("float64"))
    representable = exact == exact.astype("float32")
    assert representable.sum() > 1500
    np.testing.assert_array_equal((Tensor(base) ** Tensor(exponent)).numpy()[representable], exact[representable])
    assert (Tensor([2.5]) ** Tensor([2.0])).item() == 6.25 and (Tensor([3.0]) ** Tensor([3.0])).item() == 27.0


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="NumPy has no numbers wider than float64 here")
def test_a_power_of_float64_is_the_nearest_number(rng):
    skip_without_float64()
    many = 5_000
    x, y = np.exp2(rng.uniform(-1070, 1020, many)), rng.uniform(-1.1, 1.1, many)
    near_one, steep = 1 + rng.uniform(-1e-3, 1e-3, many), rng.uniform(-6e5, 6e5, many)
    whole = rng.integers(1, 2000, many) / 4, rng.integers(-16, 17, many) / 2
    with np.errstate(over="ignore", under="ignore"):
        for base, exponent in ((x, y), (near_one, steep), whole, (x ** (1 / 64), y * 600)):
            exact = np.power(base.astype(np.longdouble), exponent)
            found = (Tensor(base) ** Tensor(exponent)).numpy()
            representable = np.isfinite(exact) & (exact == exact.astype("float64"))
            assert in_ulp(found, exact) < 0.51 and (found == exact)[representable].all()
    assert (Tensor([3.0, -3.0], dtype="float64") ** Tensor([2.0, 3.0], dtype="float64")).tolist() == [9.0, -27.0]
    special = np.array(SPECIAL, "float64")
    left, right = (a.ravel() for a in np.meshgrid(special, [*special, 2.0, 3.0]))
    with np.errstate(all="ignore"):
        np.testing.assert_allclose((Tensor(left) ** Tensor(right)).numpy(), np.power(left, right), rtol=4e-16)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [4, 7, 64, -3, -9, 100])
def test_a_whole_power_is_the_nearest_number(n, dtype, rng):
    skip_without_float64()
    x = rng.uniform(0.8, 1.2, 2_000).astype(dtype)
    assert in_ulp((Tensor(x) ** n).numpy(), np.power(x.astype(np.longdouble), n)) < 0.52


def worst_error(found, exact, digits, lowest):
    """In last places of a type with so many binary digits, whose least number is 2^lowest; denormal results count."""
    last_place = np.ldexp(exact.dtype.type(1), np.maximum(np.frexp(np.abs(exact))[1] - digits, lowest))
    return (np.abs(found - exact) / last_place).max()


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="NumPy has no numbers wider than float64 here")
@pytest.mark.parametrize("dtype, digits, lowest", [("float16", 11, -24), ("bfloat16", 8, -133), ("float32", 24, -149),
                                                   ("float64", 53, -1074)])
@pytest.mark.parametrize("n", [*range(-6, 9), 0.5, -0.5, 1.5, -1.5])
def test_a_power_by_a_number_is_within_one_last_place(n, dtype, digits, lowest, rng):
    skip_without_float64()
    reach = min((40 - lowest) / max(abs(n), 1), -lowest - digits - 2)         # results down to denormal numbers and 0
    size = np.exp2(np.concatenate([rng.uniform(-2, 2, 5_000), rng.uniform(-reach, reach, 5_000)]))
    x = Tensor(size * rng.choice([-1, 1], size.shape) if n == int(n) else size).cast(dtype).realize()
    base = x.cast("float64").numpy().astype(np.longdouble)
    found = (x ** n).cast("float64").numpy()
    with np.errstate(all="ignore"):
        exact = np.sqrt(base) ** int(2 * n) if n != int(n) else base ** n
    largest = np.ldexp(np.longdouble(2) - np.ldexp(np.longdouble(1), -digits), 2 - lowest - digits)
    assert np.isinf(found[np.abs(exact) > largest]).all()
    finite = np.abs(exact) < largest
    assert finite.sum() > 5_000 and worst_error(found[finite], exact[finite], digits, lowest) <= 1.0
    if dtype in ("float32", "float64"):
        assert worst_error(found[:5_000], exact[:5_000], digits, lowest) < 0.55


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", range(-6, 9))
def test_powers_of_special_values_and_their_gradients_are_those_of_pytorch(n, dtype):
    values = np.array([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 2.0, -3.0, 1e-30, -1e30], dtype)
    x, y = Tensor(values, requires_grad=True), torch.tensor(values, requires_grad=True)
    (x ** n).sum().backward()
    (y ** n).sum().backward()
    for found, wanted in (((x ** n).numpy(), (y ** n).detach().numpy()), (x.grad.numpy(), y.grad.numpy())):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        zero = wanted == 0
        np.testing.assert_array_equal(np.signbit(found[zero]), np.signbit(wanted[zero]))


def test_a_large_power_of_integers_is_an_integer():
    values = [0, 1, -1, 3, -7]
    for n in (63, 65, 100):
        found = Tensor(values) ** n
        assert found.dtype is dtypes.int32 and found.tolist() == (torch.tensor(values, dtype=torch.int32) ** n).tolist()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_remainders_of_all_finite_numbers_are_exact(dtype, rng):
    """Whatever the size of the quotient, up to 2^2098: the greatest number by the smallest."""
    if dtype == "float64":
        skip_without_float64()
    limits = np.finfo(dtype)
    x, y = rng.integers(0, 256, (2, 20_000, limits.bits // 8), dtype=np.uint8).view(dtype)[..., 0]
    x[:40], y[:40] = limits.max, limits.smallest_subnormal * np.arange(1, 41)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(Tensor(x).fmod(Tensor(y)).numpy(), np.fmod(x, y))
        np.testing.assert_array_equal((Tensor(x) % Tensor(y)).numpy(), np.remainder(x, y))
        for number in np.array([100.0, -8.0, 0.3, 1e-6, 6e4], dtype):
            np.testing.assert_array_equal((Tensor(x) % float(number)).numpy(), np.remainder(x, number))
            np.testing.assert_array_equal((float(number) % Tensor(y)).numpy(), np.remainder(number, y))


def hard_pairs(dtype, rng):
    """Zeros, limits, infinities and NaN with each other, bits at random, and multiples with their neighbours."""
    info, name = np.finfo(dtype), str(dtype)
    least = info.smallest_subnormal
    odd = [0.0, 1.0, 3.0, 0.1, 1024.0, np.inf, np.nan, info.max, info.tiny, info.eps, 1 + info.eps, least, 3 * least]
    odd = np.array([*odd, *[-number for number in odd]], name)
    x, y = rng.integers(0, 256, (2, 2000, info.bits // 8), dtype=np.uint8).view(name)[..., 0]
    with np.errstate(all="ignore"):
        multiples = (y * rng.integers(1, 200, y.shape).astype(name)).astype(name)
        below = np.nextafter(multiples, np.zeros(1, name))
    left, right = [np.repeat(odd, odd.size), x, multiples, below], [np.tile(odd, odd.size), y, y, y]
    return np.concatenate(left), np.concatenate(right)


@pytest.mark.parametrize("device", ["CPU", "CLANG", pytest.param("WASM", marks=needs_wasmtime)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_remainders_of_hard_pairs_are_those_of_c_and_of_pytorch(dtype, device, rng):
    """The sign of a zero, too: it is that of x, also where y has the other one."""
    x, y = hard_pairs(np.dtype("float32" if dtype == "bfloat16" else dtype), rng)
    if dtype == "bfloat16":
        x, y = ((a.view(np.uint32) & 0xffff0000).view(np.float32) for a in (x, y))
    mine, other = (Tensor(a, device=device).cast(dtype) for a in (x, y))
    with np.errstate(all="ignore"):
        rest = np.fmod(x, y)
        floored = np.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)
    if dtype == "bfloat16":
        floored = Tensor(floored).bfloat16().float().numpy()
    for found, wanted in ((mine.fmod(other), rest), (mine % other, floored)):
        got = (found.float() if dtype == "bfloat16" else found).numpy()
        np.testing.assert_array_equal(got, wanted)
        np.testing.assert_array_equal(np.signbit(got), np.where(np.isnan(got), np.signbit(got), np.signbit(wanted)))


def test_the_remainder_of_a_large_quotient_has_pytorchs_gradient():
    check(lambda x, y: x % y, values=[[1e30, -3e20, 5.5], [100.0, 7.0, -2.0]])
    check(lambda x: x % 100.0, values=[[1e30, -3e20, 5.5]])
    bfloat = torch.tensor([1e30, 3e38], dtype=torch.bfloat16)
    assert (Tensor(bfloat.float().numpy()).bfloat16() % 100.0).tolist() == (bfloat % 100.0).tolist()


def test_the_remainder_of_float64_at_a_changing_size_is_nan_where_more_steps_would_be_needed():
    skip_without_float64()
    n = Variable("n", 1, 4)
    x = Tensor([1e300, 7.5, 1e20, 3.0], dtype=dtypes.float64)[:n.bind(3)] % Tensor([3.0], dtype=dtypes.float64)
    np.testing.assert_array_equal(x.numpy(), [np.nan, 1.5, 1e20 % 3.0])


# -- types ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("a", ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
                               "float64"])
@pytest.mark.parametrize("b", ["bool", "int32", "int64", "float16", "float32"])
def test_promotion_between_tensors(a, b):
    check(lambda x, y: x + y, (3,), (3,), dtype=(a, b), low=0, high=1, grad=False,
          gives="bool" if a == b == "bool" else None)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("number", [True, 2, 1.5])
def test_numbers_are_weak(dtype, number):
    gives = "int32" if dtype == "bool" and number == 2 else None     # PyTorch: int64
    check(lambda x: x + number, (3,), dtype=dtype, low=0, high=1, grad=False, gives=gives)
    check(lambda x: number * x, (3,), dtype=dtype, low=0, high=1, grad=False, gives=gives)


def test_numbers_beyond_the_type():
    x = Tensor([1, 255], dtype=dtypes.uint8)
    assert (x < 300).tolist() == [True, True] and (x == -1).tolist() == [False, False]
    assert x.maximum(300).tolist() == [255, 255] and x.clamp(-5, 300).tolist() == [1, 255]
    assert (x + -1).tolist() == [0, 254]


def test_arrays_and_numpy_numbers_meet_tensors():
    x = Tensor([1.0, 2.0])
    assert (x + np.float32(1)).tolist() == (np.float64(1) + x).tolist() == [2.0, 3.0]
    assert (np.array([1.0, 1.0], "float32") + x).tolist() == (x + [1.0, 1.0]).tolist() == [2.0, 3.0]
    assert (x + np.float64(1)).dtype is dtypes.float32


# -- limits -----------------------------------------------------------------------------------------------------------
def test_clamp_takes_numbers_tensors_or_one_bound():
    check(lambda x: x.clamp(-1.0, 0.5), (40,))
    check(lambda x: x.clamp(min=-1.0), (40,))
    check(lambda x: x.clamp(max=0.5), (40,))
    check(lambda x: x.clamp(-1, 1), values=[[-1.0, 1.0, 0.0, 5.0, -5.0]])
    check(lambda x: x.clamp(0, 3), (40,), dtype="int32", low=-9, high=9)
    check(lambda x, y: x.clamp(y, y + 1), (9,), (9,))
    check(lambda x: x.clip(-1, 1), (40,))


def test_isclose_holds_for_equal_infinities_and_not_for_nan():
    check(lambda x, y: x.isclose(y), values=[[1.0, 1.0, float("inf"), float("nan"), 1.0], [1.0, 1.000001, float("inf"),
                                              float("nan"), float("inf")]], grad=False)


@pytest.mark.parametrize("name,low,high,bound", [
    ("exp", -80, 80, 8e-6), ("log", 1e-30, 1e30, 1e-6), ("tanh", -10, 10, 1e-6), ("tanh", -1e-3, 1e-3, 1e-6),
    ("erf", -5, 5, 1e-6),
    ("erf", -1e-3, 1e-3, 1e-6), ("sigmoid", -80, 80, 8e-6), ("expm1", -1, 1, 1e-6), ("log1p", -0.9, 1, 1e-6),
    ("expm1", -1e-4, 1e-4, 1e-6), ("log1p", -1e-4, 1e-4, 1e-6), ("atan", -10, 10, 1e-6), ("asin", -1, 1, 1e-6),
    ("acos", -1, 0.999, 1e-6), ("sinh", -1, 1, 1e-6), ("asinh", -10, 10, 1e-6), ("atanh", -0.99, 0.99, 1e-6),
    ("acosh", 1.01, 100, 1e-6)])
def test_relative_error_stays_below_its_bound(name, low, high, bound):
    x = np.linspace(low, high, 4001, dtype="float32")
    exact = getattr(torch, name)(torch.from_numpy(x).double()).numpy()
    ours = getattr(Tensor(x), name)().numpy().astype("float64")
    error = np.abs(ours - exact) / np.maximum(np.abs(exact), 1e-37)
    assert error.max() < bound, f"{name}: {error.max():.2g} at {x[error.argmax()]}"


def test_second_gradients_are_pytorchs():
    for op in (lambda x: x.tanh(), lambda x: x.sigmoid(), lambda x: x.exp(), lambda x: x ** 3, lambda x: x.sin(),
               lambda x: x.log(), lambda x: x.softplus() if isinstance(x, Tensor) else F.softplus(x),
               lambda x: x.erf()):
        start = np.linspace(0.3, 1.7, 7, dtype="float32")
        ours, theirs = Tensor(start), torch.from_numpy(start).requires_grad_()
        first = op(ours).sum().gradient(ours)[0]
        second = first.sum().gradient(ours)[0]
        expected = torch.autograd.grad(op(theirs).sum(), theirs, create_graph=True)[0]
        expected = torch.autograd.grad(expected.sum(), theirs)[0]
        np.testing.assert_allclose(second.numpy(), expected.numpy(), rtol=2e-5, atol=2e-6)


def test_infinity_is_a_number_too():
    assert Tensor([math.inf]).relu().tolist() == [math.inf]


# -- what stands beside a limit ------------------------------------------------------------------------------------
def _limits(dtype: str) -> np.ndarray:
    special = [0.0, -0.0, 1.0, -1.0, 0.1, -0.1, 2.5, -2.5, 1e-3, 7.0, 3e4, np.inf, -np.inf, np.nan]
    numbers = np.random.default_rng(3).standard_normal(40) * 10.0 ** np.random.default_rng(4).uniform(-2, 3, 40)
    return np.array([*special, *numbers], "float64" if dtype == "float64" else "float32")


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("device", ["CPU", "CLANG", "PYTHON"])
def test_remainders_of_floats_are_exact(dtype: str, device: str) -> None:
    """To the last bit, at infinities too, as C's fmod: 1.0 // 0.1 is 9, and x % inf is x."""
    values = _limits(dtype)
    ours = Tensor(values, device=device).cast(dtype)
    theirs = torch.from_numpy(values).to(getattr(torch, dtype))
    rows, columns = ours.reshape(-1, 1), theirs.reshape(-1, 1)
    np.testing.assert_array_equal(rows.fmod(ours).numpy(), columns.fmod(theirs).double().numpy())
    np.testing.assert_array_equal((rows % ours).numpy(), columns.remainder(theirs).double().numpy())
    if dtype in ("float32", "float64"):         # PyTorch rounds the quotient of narrow floats on the way
        np.testing.assert_array_equal((rows // ours).numpy(), columns.floor_divide(theirs).double().numpy())


@pytest.mark.parametrize("name", ["sinh", "cosh"])
def test_hyperbolic_functions_reach_the_limit_of_their_type(name: str) -> None:
    for dtype, values in (("float32", [80.0, 88.0, 88.9, -89.3, 90.0]), ("float64", [700.0, 709.9, -710.4, 711.0])):
        ours = getattr(Tensor(values, dtype=dtype), name)().numpy()      # PyTorch's overflow early on some processors
        with np.errstate(over="ignore"):
            expected = getattr(np, name)(np.array(values, dtype))
        np.testing.assert_allclose(ours, expected, rtol=1e-6 if dtype == "float32" else 1e-12)


def test_hypot_does_not_overflow_on_the_way() -> None:
    inf, nan = float("inf"), float("nan")
    pairs = [(3e38, 1e38), (1e30, 1e30), (0.0, 0.0), (inf, nan), (1e-30, 1e-30), (3.0, 4.0), (nan, 1.0)]
    check(lambda x, y: x.hypot(y), values=[list(side) for side in zip(*pairs)], grad=False)
    check(lambda x, y: x.hypot(y), (4, 3), (3,))


def test_shrinking_keeps_nan() -> None:
    for name in ("softshrink", "hardshrink"):
        check(lambda x, name=name: getattr(x, name)(), lambda x, name=name: getattr(torch.nn.functional, name)(x),
              values=[[float("nan"), float("inf"), 0.5, -0.5, 0.7, -0.7, 0.0]])


@pytest.mark.parametrize("axis", [0, 1])
def test_logsumexp_of_nothing(axis: int) -> None:
    check(lambda x: x.logsumexp(axis), (0, 3), grad=False)


def test_however_an_operator_is_written_its_node_has_the_line_of_the_user():
    x, y = Tensor([1.0, 2.0]), Tensor([3.0, 4.0])
    here = sys._getframe().f_lineno
    nodes = [
        (x + y).uop,
        (2.5 - x).uop,
        x.add(y * 3.5).uop,
        x.sub(y, alpha=4.5).uop,
        operator.mul(x, 5.5).uop,
        sum([x * 6.5], y).uop]
    assert [node.line and node.line.number - here for node in nodes] == [2, 3, 4, 5, 6, 7]
    x += 7.5
    assert x.uop.line and x.uop.line.number == here + 9
