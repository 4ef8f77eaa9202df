"""Kernels in C (`c_kernel`): declared types, gradients, the jit."""

from __future__ import annotations

import numpy as np
import pytest

from glassgrad import DTypeError, GradientError, InputError, ShapeError, Tensor, TinyJit, c_kernel, dtypes
from glassgrad.base.errors import GlassgradError
from glassgrad.engine.counters import GlobalCounters
from glassgrad.runtime.cpu.c_compiler import find_compiler
from glassgrad.tensor.kernels.c_signature import parameters_of

try:
    find_compiler()
except GlassgradError as problem:
    pytest.skip(f"no C compiler: {problem.what}", allow_module_level=True)

pytestmark = pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="it reads the host's memory")

SQUARE = "void sq(float *out, const float *x, long long n) { for (long long i = 0; i < n; i++) out[i] = x[i] * x[i]; }"
C_TYPES = {"float": dtypes.float32, "double": dtypes.float64, "int": dtypes.int32, "int8_t": dtypes.int8,
           "unsigned char": dtypes.uint8, "short int": dtypes.int16, "unsigned long long int": dtypes.uint64,
           "long long": dtypes.int64, "unsigned": dtypes.uint32, "uint16_t": dtypes.uint16, "_Bool": dtypes.bool}


def said(action) -> str:
    with pytest.raises(GlassgradError) as error:
        action()
    return str(error.value).rpartition("\n  at:")[0]


# -- types ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name, dtype", C_TYPES.items())
def test_a_kernel_reads_and_writes_the_types_that_it_declares(name, dtype):
    copy = c_kernel(f"#include <stdint.h>\nvoid f({name} *out, const {name} *restrict x, int n) "
                    "{ for (int i = 0; i < n; i++) out[i] = x[i]; }", "f")
    x = Tensor([0, 1, 1, 0], dtype=dtype)
    assert copy(x).dtype is dtype and copy(x).tolist() == x.tolist()


def test_a_tensor_of_another_type_is_refused():
    square = c_kernel(SQUARE, "sq")
    assert said(lambda: square(Tensor([1, 2]))) == """the C kernel sq reads another type
  given:    int32 values for `const float *x`
  expected: a tensor of float32
  fix:      cast it: x.cast(dtypes.float32), or declare the parameter as int *"""
    with pytest.raises(DTypeError, match="float64 values for `const float"):
        square(Tensor([1.0], dtype=dtypes.float64))
    with pytest.raises(DTypeError, match="or declare the parameter as _Float16 \\*"):
        square(Tensor([1.0], dtype=dtypes.float16))
    with pytest.raises(DTypeError, match=r"x.cast\(dtypes.float32\)\n"):
        square(Tensor([1.0], dtype=dtypes.bfloat16))
    assert square(Tensor([1, 2]).float()).tolist() == [1.0, 4.0]


def test_the_result_has_the_declared_type():
    halves = c_kernel("void f(double *out, const int *x, long n) { for (long i = 0; i < n; i++) out[i] = x[i] / 2.0; }",
                      "f")
    assert halves(Tensor([1, 2])).dtype is dtypes.float64 and halves(Tensor([1, 2])).tolist() == [0.5, 1.0]
    assert said(lambda: c_kernel(SQUARE, "sq", dtype="int32")(Tensor([1.0]))) == """\
the C kernel sq writes another type than its result has
  given:    dtype=int32 for `float *out`
  expected: dtype=float32, or no dtype at all
  fix:      leave dtype out, or declare the result as int *"""


def test_numbers_are_passed_in_their_declared_types():
    source = """void f(float *out, const float *x, float a, int b, unsigned char c, double d, long long n) {
        for (long long i = 0; i < n; i++) out[i] = x[i] + a + b + c + d; }"""
    assert c_kernel(source, "f")(Tensor([1.0]), 0.5, 2, True, 4).item() == 8.5
    assert said(lambda: c_kernel(source, "f")(Tensor([1.0]), 0.5, 2.5, 3, 4)) == """the C kernel f declares an integer
  given:    2.5 for `int b`
  expected: an int
  fix:      pass int(value), or declare the parameter as double"""
    assert said(lambda: c_kernel(source, "f")(Tensor([1.0]), 0.5, 2**31, 3, 4)) == """\
the C kernel f declares a smaller integer
  given:    2147483648 for `int b`
  expected: an int from -2147483648 to 2147483647
  fix:      declare the parameter as long long"""
    with pytest.raises(InputError, match="-1 for `unsigned char c`"):
        c_kernel(source, "f")(Tensor([1.0]), 0.5, 2, -1, 4)


def test_other_arguments_than_declared_are_refused():
    square = c_kernel(SQUARE, "sq")
    assert said(lambda: square(Tensor([1.0]), 2)) == """the C kernel sq declares other arguments than it is given
  given:    2 for (float *out, const float *x, long long n)
  expected: a pointer to the result, one parameter per argument, then the number of elements
  fix:      change the call, or the parameters of the function"""
    scaled = c_kernel("void f(float *out, const float *x, double k, long long n) {}", "f")
    assert said(lambda: scaled(Tensor([1.0]), Tensor([1.0]))) == """the C kernel f declares an argument otherwise
  given:    a tensor for `double k`
  expected: a number
  fix:      declare a tensor as a pointer and a number as a plain parameter"""
    with pytest.raises(InputError, match="given:    2 for \\(float \\*out"):
        square(Tensor([1.0]), 2.5)
    with pytest.raises(InputError, match="2.0 for `const float"):
        c_kernel("void f(float *out, const float *x, const float *y, long long n) {}", "f")(Tensor([1.0]), 2.0)


def test_a_shape_that_is_none_is_refused():
    wrong = c_kernel(SQUARE, "sq", shape="rows")
    assert said(lambda: wrong(Tensor([1.0]))) == """the C kernel sq needs integers as sizes
  given:    'rows' of type str
  expected: ints, such as (2, 3)
  fix:      write each size as an int"""
    with pytest.raises(ShapeError, match="the C kernel sq cannot have a negative size"):
        c_kernel(SQUARE, "sq", shape=(-1,))(Tensor([1.0]))
    assert c_kernel(SQUARE, "sq", shape=lambda x: x.shape[0])(Tensor([3.0])).tolist() == [9.0]


def test_what_cannot_be_read_is_not_checked():
    assert parameters_of("typedef float real; void f(real *out, real *x, long long n) {}", "f")[0].dtype is None
    assert parameters_of("/* void f(int) { */ void f(float out[], // x\n const float x[3], long long) {}", "f") == [
        ("float out[]", dtypes.float32, True), ("const float x[3]", dtypes.float32, True),
        ("long long", dtypes.int64, False)]
    assert parameters_of("void g(int x) {}", "f") is None
    real = c_kernel("typedef float real;" + SQUARE.replace("float", "real"), "sq")
    assert real(Tensor([3.0])).tolist() == [9.0]


# -- gradients --------------------------------------------------------------------------------------------------------
def test_a_missing_gradient_is_an_error():
    square, x = c_kernel(SQUARE, "sq"), Tensor([3.0, 4.0])
    assert said(lambda: (square(x) + x).sum().backward()) == """the kernel sq has no gradient
  given:    a gradient that has to pass through sq
  expected: a kernel with a backward
  fix:      give it one: c_kernel(source, "sq", backward=lambda g, y, x: ...); or cut the gradient off: """ \
        "sq(x.detach())"
    with pytest.raises(GradientError):
        square(x).sum().gradient(x)
    (square(x.detach()) * x).sum().backward()
    assert x.grad.tolist() == [9.0, 16.0]


def test_a_gradient_and_its_gradient():
    square, x = c_kernel(SQUARE, "sq", backward=lambda g, y, x: g * 2 * x), Tensor([3.0, 4.0])
    (square(x) + x).sum().backward()
    assert x.grad.tolist() == [7.0, 9.0]
    assert square(x).sum().gradient(x)[0].sum().gradient(x)[0].tolist() == [2.0, 2.0]


# -- the jit ----------------------------------------------------------------------------------------------------------
def test_a_kernel_is_launched_by_each_replay():
    square = c_kernel(SQUARE, "sq", backward=lambda g, y, x: g * 2 * x)
    w = Tensor([1.0, 2.0], requires_grad=True)

    @TinyJit
    def step(x):
        w.grad = None
        loss = (square(x * w) + x).sum()
        loss.backward()
        return loss.realize(), w.grad.realize()

    for k in range(6):
        x = np.array([k + 1, 2.0], np.float32)
        loss, gradient = step(Tensor(x))
        assert loss.item() == ((x * [1, 2]) ** 2 + x).sum() and gradient.tolist() == (2 * x * x * [1, 2]).tolist()


def test_a_kernel_made_in_the_jitted_function_is_the_same_each_time():
    step = TinyJit(lambda x: (c_kernel(SQUARE, "sq")(x) + 1).realize())
    assert [step(Tensor([float(k)]).realize()).item() for k in range(5)] == [k * k + 1 for k in range(5)]


def test_a_kernel_counts_and_its_memory_is_its_own():
    square, x = c_kernel(SQUARE, "sq"), Tensor([2.0, 3.0]).realize()
    before = GlobalCounters.kernel_count
    first = square(x)
    assert GlobalCounters.kernel_count == before + 1
    second = square(first)
    assert (x.tolist(), first.tolist(), second.tolist()) == ([2.0, 3.0], [4.0, 9.0], [16.0, 81.0])
    assert square(Tensor.zeros(0, 3)).shape == (0, 3)


def test_a_source_and_a_name_are_text() -> None:
    assert said(lambda: c_kernel(3, "scale")) == (
        "c_kernel cannot take this source\n"
        "  given:    source=3 (int)\n"
        "  expected: a string\n"
        "  fix:      see help(glassgrad.c_kernel)")
    assert "name=None" in said(lambda: c_kernel(SQUARE, None))
