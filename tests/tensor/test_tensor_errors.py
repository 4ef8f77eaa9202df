"""Every mistake's message, read whole, and the line it names."""
# ruff: noqa: E501   (messages stand here as users see them)

from __future__ import annotations

import re
import sys

import numpy as np
import pytest

from glassgrad import (AxisError, Device, DeviceError, DTypeError, GradientError, IndexRangeError, InputError,
                       ShapeError, Tensor, Variable, dtypes)

F32 = "float32"


def x23() -> Tensor:
    return Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


# what is done, the error's type, and its whole text but the line
MISTAKES = {
    "broadcast": (lambda: x23() + Tensor([1.0, 2.0]), ShapeError, """
cannot add tensors of these shapes
  given:    (2, 3) + (2,)
  expected: sizes that are equal, or 1, counted from the last axis; here 3 meets 2
  fix:      reshape or transpose one side, or insert an axis of size 1 with unsqueeze"""),
    "broadcast, longer right": (lambda: Tensor([1.0, 2.0]) * x23(), ShapeError, """
cannot multiply tensors of these shapes
  given:    (2,) * (2, 3)
  expected: sizes that are equal, or 1, counted from the last axis; here 2 meets 3
  fix:      reshape or transpose one side, or insert an axis of size 1 with unsqueeze"""),
    "where": (lambda: (x23() > 0).where(Tensor([1.0, 2.0]), 0), ShapeError, """
cannot choose between tensors of these shapes
  given:    (2, 3) where (2,)
  expected: sizes that are equal, or 1, counted from the last axis; here 3 meets 2
  fix:      reshape or transpose one side, or insert an axis of size 1 with unsqueeze"""),
    "matmul": (lambda: x23() @ x23(), ShapeError, """
cannot multiply these matrices
  given:    (2, 3) @ (2, 3)
  expected: columns of the left (3) == rows of the right (2)
  fix:      transpose one side, or check the layer's in_features"""),
    "matmul with a number": (lambda: x23() @ Tensor(2.0), ShapeError, """
cannot multiply a matrix by a single number with @
  given:    (2, 3) @ ()
  expected: at least 1 axis on each side
  fix:      use * to scale"""),
    "reshape": (lambda: x23().reshape(4, 2), ShapeError, """
cannot reshape: the number of elements changes
  given:    (2, 3) (6 elements) to (4, 2) (8 elements)
  expected: a shape with 6 elements
  fix:      use -1 for the size that should follow from the others"""),
    "reshape -1": (lambda: x23().reshape(4, -1), ShapeError, """
cannot reshape: -1 does not come out as an integer
  given:    (2, 3) (6 elements) to (4, -1)
  expected: known sizes whose product divides 6; 6 elements are not a multiple of 4
  fix:      check the sizes you wrote, or print(x.shape) before this line"""),
    "reshape -1 -1": (lambda: x23().reshape(-1, -1), ShapeError, """
cannot tell which sizes are meant
  given:    reshape(-1, -1)
  expected: sizes of 0 or more, and at most one -1
  fix:      write the other sizes out"""),
    "reshape by a fraction": (lambda: x23().reshape(1.5), InputError, """
reshape needs integers as sizes
  given:    1.5 of type float
  expected: ints, such as (2, 3)
  fix:      write each size as an int"""),
    "expand": (lambda: x23().expand(2, 4), ShapeError, """
cannot expand to this shape
  given:    (2, 3) to (2, 4)
  expected: the same sizes, where only axes of size 1 grow and new axes come first
  fix:      reshape first, so that the axis to repeat has size 1"""),
    "permute": (lambda: x23().permute(0, 0), AxisError, """
permute needs every axis exactly once
  given:    permute(0, 0) of a tensor of shape (2, 3)
  expected: the axes 0 to 1 in some order
  fix:      name the missing axes"""),
    "axis": (lambda: x23().sum(2), AxisError, """
sum was given an axis that the tensor does not have
  given:    axis 2 of a tensor with 2 axes
  expected: an axis from -2 to 1
  fix:      check the tensor's shape: print(x.shape)"""),
    "axis twice": (lambda: x23().sum((0, -2)), AxisError, """
sum was given the same axis twice
  given:    axis=(0, -2)
  expected: each axis at most once
  fix:      remove the repeated axis"""),
    "axis is no number": (lambda: x23().softmax("rows"), InputError, """
softmax needs an integer as its axis
  given:    'rows' of type str
  expected: an int
  fix:      write axis=0, for example"""),
    "no axis to split": (lambda: Tensor(2.0).split(1), ShapeError, """
split needs an axis to work along
  given:    shape (), a single number
  expected: at least 1 axis
  fix:      give it one first: x.reshape(1)"""),
    "no such norm": (lambda: x23().norm("nuclear"), InputError, """
there is no such norm
  given:    p='nuclear'
  expected: a number or "fro"
  fix:      write x.norm(2), for example"""),
    "max of nothing": (lambda: Tensor.zeros(0, 3).max(0), ShapeError, """
max of no values has no answer
  given:    shape (0, 3), axis=0
  expected: at least one value to choose from
  fix:      check for empty tensors before this line"""),
    "max of nothing, for now": (lambda: Tensor.ones(4)[:Variable("n", 0, 4).bind(0)].max(), ShapeError, """
max of no values has no answer
  given:    shape (n = 0,), axis=None
  expected: at least one value to choose from
  fix:      check for empty tensors before this line"""),
    "index": (lambda: x23()[2], IndexRangeError, """
the index is out of bounds
  given:    index 2 on axis 0 of (2, 3)
  expected: an index from -2 to 1
  fix:      check the tensor's shape: print(x.shape)"""),
    "index on the second axis": (lambda: x23()[:, -4], IndexRangeError, """
the index is out of bounds
  given:    index -4 on axis 1 of (2, 3)
  expected: an index from -3 to 2
  fix:      check the tensor's shape: print(x.shape)"""),
    "a list with a bad index": (lambda: x23()[[0, 5]].tolist(), IndexRangeError, """
the index is out of bounds
  given:    index 5 on axis 0 of (2, 3), at [1] of the index tensor
  expected: an index from -2 to 1
  fix:      check how the index is computed; CHECK_INDEX=0 clamps it silently"""),
    "a tensor with a bad index": (lambda: x23()[:, Tensor([0, -4])].tolist(), IndexRangeError, """
the index is out of bounds
  given:    index -4 on axis 1 of (2, 3), at [1] of the index tensor
  expected: an index from -3 to 2
  fix:      check how the index is computed; CHECK_INDEX=0 clamps it silently"""),
    "too many indices": (lambda: x23()[0, 0, 0], IndexRangeError, """
too many indices for this tensor
  given:    3 indices, shape (2, 3)
  expected: at most 2
  fix:      check the tensor's shape: print(x.shape)"""),
    "index of floats": (lambda: x23()[Tensor([0.5])], InputError, """
a tensor used as an index must hold integers or truth values
  given:    an index of float32
  expected: an integer or bool tensor
  fix:      cast it first: x[index.int()]"""),
    "index of words": (lambda: x23()["a"], InputError, """
cannot index a tensor with this
  given:    'a' of type str
  expected: an int, a slice, None, ..., or an integer or bool tensor
  fix:      convert it to one of these"""),
    "two ellipses": (lambda: x23()[..., ...], InputError, """
an index can hold only a single ellipsis (...)
  given:    2 of them
  expected: at most one
  fix:      write out the other axes with :"""),
    "step 0": (lambda: x23()[::0], InputError, """
a slice needs steps that lead somewhere
  given:    step 0
  expected: a step that is not 0
  fix:      write x[::2], for example"""),
    "mask": (lambda: x23()[Tensor([True, False, True])], ShapeError, """
the mask does not fit the tensor
  given:    a mask of (3,) for (2, 3)
  expected: a mask of shape (2,)
  fix:      compare along these axes"""),
    "item of many": (lambda: x23().item(), ShapeError, """
item() is for a tensor with one element
  given:    shape (2, 3), 6 elements
  expected: 1 element
  fix:      use .tolist() or .numpy(), or reduce it first: x.sum().item()"""),
    "truth of many": (lambda: bool(x23() > 0), ShapeError, """
a tensor with several elements is neither true nor false
  given:    shape (2, 3)
  expected: 1 element
  fix:      use .any() or .all(): if (x > 0).all(): ..."""),
    "length of a number": (lambda: len(Tensor(3)), ShapeError, """
a tensor without axes has no length
  given:    shape ()
  expected: at least 1 axis
  fix:      use .item() for its value"""),
    "float as an index": (lambda: [1, 2][Tensor(1.0)], DTypeError, """
only integers can be an index
  given:    a tensor of float32
  expected: an integer tensor with 1 element
  fix:      cast it first: x.int()"""),
    "not of floats": (lambda: ~x23(), DTypeError, """
~ works on integers and truth values
  given:    ~x on float32
  expected: an integer or bool tensor
  fix:      compare first: ~(x > 0), or cast: ~x.int()"""),
    "and of floats": (lambda: x23() & x23(), DTypeError, """
& works on integers and truth values
  given:    float32 & float32
  expected: integer or bool tensors
  fix:      cast first: x.int(); or compare: (x > 0) & (y > 0)"""),
    "minus of truths": (lambda: Tensor([True]) - Tensor([False]), DTypeError, """
truth values cannot be subtracted
  given:    bool - bool
  expected: numbers
  fix:      use x ^ y for their difference, or cast: x.int() - y.int()"""),
    "shift of truths": (lambda: Tensor([True]) << Tensor([True]), DTypeError, """
bools cannot be shifted
  given:    bool << bool
  expected: integers
  fix:      cast: x.int() << y.int()"""),
    "negative of truths": (lambda: -Tensor([True]), DTypeError, """
truth values have no negative
  given:    -x on bool
  expected: numbers
  fix:      use ~x for the opposite, or cast: -x.int()"""),
    "negative power of ints": (lambda: Tensor([2]) ** -1, DTypeError, """
integers have no negative powers
  given:    int32 ** -1
  expected: an exponent of 0 or more, or floats
  fix:      cast first: x.float() ** -1"""),
    "bitcast of a number": (lambda: Tensor(1.0).bitcast(dtypes.int8), DTypeError, """
a single number keeps its size under bitcast
  given:    float32 (4 bytes) as int8 (1 byte)
  expected: a last axis whose size can change, or two types of the same size
  fix:      give it an axis first: x.reshape(1); or use cast to convert values"""),
    "bitcast that does not divide": (lambda: x23().view(dtypes.float64), ShapeError, """
the last axis does not divide into elements of this size
  given:    shape (2, 3), float32 (4 bytes) as float64 (8 bytes)
  expected: a last axis whose size is a multiple of 2
  fix:      cut the last axis to such a size, x[..., :size], or pad it"""),
    "gradient of bits": (lambda: (lambda x: x.bitcast(dtypes.float16).sum().backward())(x23()), GradientError, """
bits have no gradient
  given:    a gradient through bitcast from float32 to float16
  expected: a value that changes smoothly with its input
  fix:      use cast to convert values; or x.detach() before bitcast, where no gradient is meant"""),
    "no such dtype": (lambda: x23().cast("float33"), DTypeError, """
there is no such element type
  given:    'float33'
  expected: one of bool, int8, uint8, int16, uint16, int32, uint32, int64, uint64, fp8e4m3, fp8e5m2, fp8e4m3fnuz, fp8e5m2fnuz, float16, bfloat16, float32, float64
  fix:      write dtypes.float32, for example"""),
    "no such device": (lambda: Tensor([1], device="TOASTER"), DeviceError, """
there is no such device
  given:    'TOASTER'
  expected: one of CPU, CLANG, PYTHON, OPENCL, CUDA, WASM, WEBGPU, AMD, METAL
  fix:      check the name, or register a device: Device.register(name, YourDevice)"""),
    "two devices": (lambda: Tensor([1], device="CPU") + Tensor([1], device="PYTHON"), DeviceError, """
operands live on different devices
  given:    CPU and PYTHON
  expected: one device
  fix:      move one: x.to("CPU")"""),
    "two devices, constants": (lambda: Tensor.ones(1, device="CPU") + Tensor.ones(1, device="PYTHON"), DeviceError, """
operands live on different devices
  given:    CPU and PYTHON
  expected: one device
  fix:      move one: x.to("CPU")"""),
    "backward of many": (lambda: x23().backward(), GradientError, """
backward() needs a single value to start from
  given:    shape (2, 3)
  expected: 1 element
  fix:      reduce it: x.sum().backward(), or pass the gradient of this value: x.backward(gradient)"""),
    "backward of ints": (lambda: Tensor([1]).sum().backward(), GradientError, """
only float values have gradients
  given:    backward() of int64
  expected: a float value, such as a loss
  fix:      cast the inputs: x.float()"""),
    "backward of nothing": (lambda: Tensor([1]).float().sum().backward(), GradientError, """
nothing here has a gradient
  given:    a value computed from no float tensor that wants one, or from detached ones
  expected: at least one float tensor whose requires_grad is not False, still alive
  fix:      compute the value from float tensors, or set x.requires_grad = True"""),
    "backward of a detached tensor": (lambda: (lambda x: (x.detach() * 2).sum().backward())(Tensor([1.0])),
                                      GradientError, """
nothing here has a gradient
  given:    a value computed from no float tensor that wants one, or from detached ones
  expected: at least one float tensor whose requires_grad is not False, still alive
  fix:      compute the value from float tensors, or set x.requires_grad = True"""),
    "gradient of another shape": (lambda: x23().backward(Tensor([1.0])), GradientError, """
the gradient given does not fit
  given:    a gradient of shape (1,)
  expected: the value's shape, (2, 3)
  fix:      reshape or expand it"""),
    "gradient for a stranger": (lambda: x23().sum().gradient(Tensor([1.0])), GradientError, """
the value does not depend on this tensor
  given:    target 0 of shape (1,), float32
  expected: a float tensor that the value was computed from
  fix:      check the order of targets; or pass materialize_grads=True for zeros"""),
    "requires_grad of ints": (lambda: Tensor([1], requires_grad=True), DTypeError, """
only float tensors have gradients
  given:    requires_grad=True on int32
  expected: a float dtype
  fix:      cast it first: x.float()"""),
    "assign of another shape": (lambda: x23().assign(Tensor([1.0, 2.0])), ShapeError, """
cannot assign a value of another shape
  given:    (2,) to (2, 3)
  expected: shape (2, 3), or one that broadcasts to it
  fix:      reshape the value first"""),
    "assign of another type": (lambda: Tensor([1]).assign(Tensor([1.0])), DTypeError, """
cannot assign a value of another type
  given:    float32 to int32
  expected: values that widen to int32
  fix:      cast the value first: value.cast(dtypes.int32)"""),
    "ragged": (lambda: Tensor([[1, 2], [3]]), ShapeError, """
cannot make a tensor of lists of different lengths
  given:    value[0] has 2 values, value[1] has 1 values
  expected: the same number of values in every row
  fix:      pad the short rows"""),
    "indices of different lengths": (lambda: Tensor.zeros(3, 4)[[0, 1], [0, 1, 2]], ShapeError, """
cannot index by tensors of these shapes
  given:    (2,) and (3,)
  expected: sizes that are equal, or 1, counted from the last axis; here 2 meets 3
  fix:      reshape or transpose one side, or insert an axis of size 1 with unsqueeze"""),
    "quantile of nothing": (lambda: Tensor.zeros(3, 0).quantile(0.5, 1), ShapeError, """
there is no quantile of nothing
  given:    shape (3, 0)
  expected: at least one element
  fix:      check where the elements went"""),
    "list beside a number": (lambda: Tensor([[1, 2], 3]), ShapeError, """
cannot make a tensor of lists of different lengths
  given:    value[0] has 2 values, value[1] has the single value 3
  expected: the same number of values in every row
  fix:      pad the short rows"""),
    "deep ragged": (lambda: Tensor([[[1], [2]], [[3], [4, 5]]]), ShapeError, """
cannot make a tensor of lists of different lengths
  given:    value[0][0] has 1 values, value[1][1] has 2 values
  expected: the same number of values in every row
  fix:      pad the short rows"""),
    "words": (lambda: Tensor([[1, 2], [3, "a"]]), InputError, """
cannot make a tensor of this value
  given:    value[1][1] is 'a' of type str
  expected: a number, a truth value, nested lists of them, bytes, or a NumPy array
  fix:      convert it to numbers first"""),
    "None": (lambda: Tensor(None), InputError, """
cannot make a tensor of this value
  given:    None of type NoneType
  expected: a number, a truth value, nested lists of them, bytes, or a NumPy array
  fix:      convert it to numbers first"""),
    "dict": (lambda: Tensor({}), InputError, """
cannot make a tensor of this value
  given:    {} of type dict
  expected: a number, a truth value, nested lists of them, bytes, or a NumPy array
  fix:      convert it to numbers first"""),
    "complex": (lambda: Tensor([1j]), InputError, """
cannot make a tensor of this value
  given:    value[0] is 1j of type complex
  expected: a number, a truth value, nested lists of them, bytes, or a NumPy array
  fix:      convert it to numbers first"""),
    "complex array": (lambda: Tensor(np.zeros(2, complex)), InputError, """
cannot make a tensor of this array
  given:    an array of complex128
  expected: numbers or truth values: bool, int8, uint8, int16, uint16, int32, uint32, int64, uint64, float16, float32, float64
  fix:      convert it first, for example with array.astype("float32")"""),
    "too large": (lambda: Tensor([1, 300], dtype=dtypes.uint8), InputError, """
a value does not fit into uint8
  given:    value[1] is 300
  expected: values from 0 to 255
  fix:      choose a wider dtype, for example dtype=dtypes.int64"""),
    "far too large": (lambda: Tensor([1 << 70]), InputError, """
a value does not fit into int64
  given:    value[0] is 1180591620717411303424
  expected: values from -9223372036854775808 to 9223372036854775807
  fix:      choose a float dtype: dtype=dtypes.float64"""),
    "nan as an int": (lambda: Tensor([float("nan")], dtype=dtypes.int32), InputError, """
a value does not fit into int32
  given:    value[0] is nan
  expected: a finite number
  fix:      choose a float dtype"""),
    "operand": (lambda: x23() + None, InputError, """
cannot use this value beside a tensor in +
  given:    None of type NoneType
  expected: a Tensor or a number
  fix:      make it a Tensor first: Tensor(value)"""),
    "operand of words": (lambda: x23() * "2", InputError, """
cannot use this value beside a tensor
  given:    '2' of type str
  expected: a Tensor, a number, a list or an array
  fix:      make it a Tensor first: Tensor(value)"""),
    "cat": (lambda: x23().cat(Tensor([[1.0]])), ShapeError, """
cannot put these tensors one after another
  given:    shape (2, 3) first, shape (1, 1) at index 1, along axis 0
  expected: the same number of axes and the same sizes, except along that axis
  fix:      check the shapes, or use Tensor.stack for a new axis"""),
    "stack": (lambda: x23().stack(Tensor([[1.0]])), ShapeError, """
cannot stack tensors of different shapes
  given:    shape (2, 3) first, shape (1, 1) at index 1
  expected: one shape
  fix:      use Tensor.cat to put them one after another"""),
    "cat of numbers": (lambda: Tensor.cat(x23(), 3), InputError, """
cat needs tensors
  given:    int 3
  expected: one or more tensors
  fix:      write Tensor.cat(x, y), for example"""),
    "split": (lambda: x23().split([1, 3], 1), ShapeError, """
the pieces do not add up to the axis
  given:    (1, 3) for an axis of 3
  expected: sizes whose sum is 3
  fix:      check the sizes"""),
    "pad": (lambda: x23().pad((1, 2, 3)), ShapeError, """
the padding does not fit the axes
  given:    (1, 2, 3) for shape (2, 3)
  expected: 2 pairs (before, after), or at most 4 numbers from the last axis backward
  fix:      write None for axes to leave alone: (None, (1, 1))"""),
    "pad mode": (lambda: x23().pad((1, 1), mode="mirror"), InputError, """
there is no such way to pad
  given:    mode='mirror'
  expected: "constant", "reflect", "replicate" or "circular"
  fix:      check the spelling"""),
    "reflect": (lambda: x23().pad((3, 0), mode="reflect"), ShapeError, """
cannot pad with mode='reflect' by more than there is to copy
  given:    (3, 0) on an axis of size 3
  expected: at most 2 on each side
  fix:      pad less, or use mode="replicate\""""),
    "conv": (lambda: Tensor.zeros(1, 3, 8, 8).conv2d(Tensor.zeros(4, 2, 3, 3)), ShapeError, """
the weight does not fit the input of this convolution
  given:    input (1, 3, 8, 8), weight (4, 2, 3, 3), groups=1
  expected: input (batch, in, ...space) and weight (out, in / groups, ...kernel) with as many kernel axes as space axes, and out divisible by groups
  fix:      check the layer's in_channels and groups; add a batch axis with x.unsqueeze(0)"""),
    "large kernel": (lambda: Tensor.zeros(1, 1, 2, 2).conv2d(Tensor.zeros(1, 1, 3, 3)), ShapeError, """
the window of conv2d is larger than the padded input
  given:    a window of (3, 3) (dilation (1, 1)) on (2, 2) padded by [(0, 0), (0, 0)]
  expected: a window that fits
  fix:      pad more, or use a smaller kernel"""),
    "cross entropy": (lambda: x23().cross_entropy(Tensor([1, 2, 0])), ShapeError, """
the targets of cross_entropy do not fit the predictions
  given:    predictions (2, 3), targets (3,)
  expected: targets of shape (2,), one class each
  fix:      check the batch sizes; classes are axis 1 of the predictions"""),
    "reduction": (lambda: x23().mse_loss(x23(), reduction="avg"), InputError, """
there is no such reduction
  given:    reduction='avg'
  expected: "mean", "sum" or "none"
  fix:      write reduction="mean\""""),
    "dropout": (lambda: x23().dropout(2), InputError, """
dropout needs a probability
  given:    p=2
  expected: a number from 0 to 1
  fix:      write x.dropout(0.5), for example"""),
    "clamp": (lambda: x23().clamp(), InputError, """
clamp needs a limit
  given:    neither min_ nor max_
  expected: at least one of them
  fix:      write x.clamp(0) or x.clamp(max_=1)"""),
    "negative size": (lambda: Tensor.zeros(2, -1), ShapeError, """
zeros cannot have a negative size
  given:    (2, -1)
  expected: sizes of 0 or more
  fix:      check how the sizes are computed"""),
    "rand of ints": (lambda: Tensor.rand(3, dtype=dtypes.int32), InputError, """
these random numbers are fractions
  given:    dtype=int32
  expected: a float dtype
  fix:      use Tensor.randint for integers"""),
    "empty randint": (lambda: Tensor.randint(3, low=2, high=2), InputError, """
randint needs a range with something in it
  given:    low=2, high=2
  expected: ints with low < high
  fix:      high is not included: write high=low + 1"""),
    "set of another shape": (lambda: x23().__setitem__(0, Tensor([1.0, 2.0])), ShapeError, """
the value does not fit the part it replaces
  given:    (2,) into (3,)
  expected: the same sizes, or sizes of 1
  fix:      reshape or expand the value"""),
    "set of floats into ints": (lambda: Tensor([1, 2]).__setitem__(0, Tensor(1.5)), InputError, """
the value does not fit the tensor's type
  given:    float32 into int32
  expected: values of int32
  fix:      cast it: value.cast(dtypes.int32)"""),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_message(name):
    act, kind, text = MISTAKES[name]
    with pytest.raises(kind) as caught:
        act()
    whole = str(caught.value)
    said, _, at = whole.rpartition("\n  at:       ")
    added = list(Device.records)[9:]                     # devices that this run has registered
    assert said == text.removeprefix("\n").replace("AMD, METAL", ", ".join(["AMD", "METAL", *added]))
    file, _, number = at.rpartition(":")
    assert file == __file__ and act.__code__.co_firstlineno <= int(number) <= act.__code__.co_firstlineno + 1


def test_user_errors_are_pythons_own_kinds_too():
    for act, kind in ((lambda: x23().reshape(7), ValueError), (lambda: x23()[9], IndexError), (lambda: ~x23(), TypeError),
                      (lambda: x23().backward(), RuntimeError), (lambda: x23().sum(5), IndexError)):
        with pytest.raises(kind):
            act()


def test_messages_name_the_line_inside_a_users_function():
    def layer(x):
        return x @ x
    with pytest.raises(ShapeError) as caught:
        layer(x23())
    assert re.search(rf"test_tensor_errors\.py:{layer.__code__.co_firstlineno + 1}$", str(caught.value)), sys.version
