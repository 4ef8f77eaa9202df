"""Whole messages of names that came from tinygrad and PyTorch: graphs as functions, functional, modules, kernels."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

import glassgrad.nn.functional as F
from glassgrad import Tensor, dtypes, nn
from glassgrad.base.errors import GlassgradError
from glassgrad.compat.tinygrad import absent_classes, dtype_functions
from glassgrad.runtime.devices import Device
from glassgrad.tensor.kernels.placeholder_kernel import loop

X = Tensor([1.0, 2.0])
I = loop(2)  # noqa: E741


class Empty(nn.Module):
    pass


MESSAGES: dict[str, tuple[Callable[[], object], str]] = {
    'glassgrad has no PTXRenderer': (lambda: absent_classes.PTXRenderer(), """\
glassgrad has no PTXRenderer
  given:    an attempt to make one
  expected: to do without: no device here is programmed in PTX
  fix:      docs/from_tinygrad.md says where things are"""),
    'this PyTorch type has no counterpart': (lambda: dtype_functions._from_torch_dtype("torch.complex64"), """\
this PyTorch type has no counterpart
  given:    torch.complex64
  expected: numbers or truth values
  fix:      convert it first: t.float()"""),
    "this type's bits have no name in Python": (
        lambda: dtype_functions.bitcast(1.0, dtypes.bfloat16, dtypes.int16), """\
this type's bits have no name in Python
  given:    dtypes.bfloat16
  expected: a type of struct's: float16, float32, float64 or integers
  fix:      use Tensor.bitcast, which has all types"""),
    'a probability of success lies between 0 and 1': (lambda: Tensor.zeros(2).geometric_(1.5), """\
a probability of success lies between 0 and 1
  given:    p=1.5
  expected: 0 < p < 1
  fix:      pass a number such as 0.5"""),
    'only floats have an exponent': (lambda: dtypes.finfo(dtypes.int32), """\
only floats have an exponent
  given:    dtypes.int32
  expected: a float type
  fix:      ask dtypes.is_float(dtype) first"""),
    'this node has no memory yet': (lambda: (X + 1).uop.buffer, """\
this node has no memory yet
  given:    ADD of shape (2,)
  expected: a computed tensor
  fix:      call realize() on the tensor first"""),
    'the windows do not fit the input': (lambda: F.unfold(Tensor.ones(1, 2, 3, 3), 4), """\
the windows do not fit the input
  given:    an input of shape (1, 2, 3, 3)
  expected: (batch, channels, height, width), or without the batch, with room for a window
  fix:      check kernel_size, dilation and padding"""),
    'the last axes have other sizes': (lambda: F.layer_norm(Tensor.ones(2, 3), (4,)), """\
the last axes have other sizes
  given:    an input of shape (2, 3)
  expected: last axes of (4,) (normalized_shape)
  fix:      check where the input comes from, or write normalized_shape=(3,)"""),
    'a mean cannot be divided by nothing': (lambda: F.avg_pool2d(Tensor.ones(1, 1, 2, 2), 2, divisor_override=0), """\
a mean cannot be divided by nothing
  given:    divisor_override=0
  expected: a number that is not 0
  fix:      leave it out to divide by the window's size"""),
    'the weight has another rank': (lambda: F.conv1d(Tensor.ones(1, 1, 4, 4), Tensor.ones(1, 1, 2, 2)), """\
the weight of conv1d has another number of space axes
  given:    input (1, 1, 4, 4), weight (1, 1, 2, 2)
  expected: a weight of 3 axes: channels, channels, and 1 of space
  fix:      use the function whose name has your number of space axes"""),
    'the transposed weight has another rank': (
        lambda: F.conv_transpose2d(Tensor.ones(1, 1, 4), Tensor.ones(1, 1, 2)), """\
the weight of conv_transpose2d has another number of space axes
  given:    input (1, 1, 4), weight (1, 1, 2)
  expected: a weight of 4 axes: channels, channels, and 2 of space
  fix:      use the function whose name has your number of space axes"""),
    'these bags cannot be made': (lambda: F.embedding_bag(Tensor([0]), Tensor.ones(2, 2)), """\
these bags cannot be made
  given:    an input of shape (1,), offsets left out, mode='mean'
  expected: a bag in each row, or one row and offsets; "sum", "mean" or "max", weights in sums
  fix:      write embedding_bag(rows, table, mode="sum")"""),
    'the targets of multilabel_margin_loss do not fit': (
        lambda: F.multilabel_margin_loss(Tensor.ones(2, 3), Tensor([[0, -1]])), """\
the targets of multilabel_margin_loss do not fit
  given:    (2, 3) and (1, 2)
  expected: (batch, classes) both, or (classes,)
  fix:      fill the rows up with -1"""),
    'cutoffs part the classes': (lambda: nn.AdaptiveLogSoftmaxWithLoss(4, 10, [5, 3]), """\
cutoffs part the classes
  given:    cutoffs=[5, 3] of 10 classes
  expected: integers from 1 to 9, each larger than the one before
  fix:      write cutoffs=[100, 1000], for example"""),
    'interpolate cannot smooth here': (lambda: F.interpolate(Tensor.ones(1, 1, 4), 2, antialias=True), """\
interpolate cannot smooth here
  given:    antialias=True, mode='nearest', 1 axes of float32
  expected: "bilinear" or "bicubic" on two axes of floats
  fix:      leave antialias out"""),
    'there is no such padding': (lambda: F.conv1d(Tensor.ones(1, 1, 5), Tensor.ones(1, 1, 3), padding="half"), """\
there is no such padding
  given:    padding='half'
  expected: a number, "same" or "valid"
  fix:      check the spelling"""),
    'Empty has nothing to call': (lambda: Empty()(X), """\
Empty has nothing to call
  given:    a Module without a forward
  expected: a method that computes the result
  fix:      write def forward(self, x): ..."""),
    'there is no TINYFS here': (lambda: X.fs_store(), """\
there is no TINYFS here
  given:    (2,) to store
  expected: a file
  fix:      use nn.state.safe_save and safe_load"""),
    'there is no TINYFS to load from': (lambda: X.fs_load(3), """\
there is no TINYFS here
  given:    3 bytes to load
  expected: a file
  fix:      use nn.state.safe_save and safe_load"""),
    'no device here decodes video': (lambda: X.decode_hevc_frame(None, (2, 3), X), """\
no device here decodes video
  given:    an HEVC frame of shape (2, 3)
  expected: a device with a video decoder
  fix:      decode the file with PyAV or ffmpeg, and make tensors of its frames"""),
    'this address gave no data': (lambda: Tensor.from_url("nowhere"), """\
this address gave no data
  given:    'nowhere': it has no scheme, such as https://
  expected: an address that answers
  fix:      check the address and the network, or read a file: Tensor(open(name, 'rb').read())"""),
    'the function needs more tensors than it is given': (lambda: X.call(fxn=X.as_param(1)), """\
the function needs more tensors than it is given
  given:    1 tensors
  expected: one for as_param(1)
  fix:      pass a tensor for each placeholder"""),
    'an argument does not fit its placeholder': (lambda: X.call(fxn=Tensor([[1.0]]).as_param(0)), """\
an argument does not fit its placeholder
  given:    float32 (2,) for as_param(0)
  expected: float32 (1, 1)
  fix:      reshape or cast it"""),
    'the function describes no kernel': (lambda: X.custom_kernel(fxn=lambda m: 3), """\
the function describes no kernel
  given:    3
  expected: what sink() gives
  fix:      return out[i].store(value).end(i).sink()"""),
    'the elements do not fit this shape': (lambda: X.custom_kernel(fxn=lambda m: m.reshape(3)), """\
the elements do not fit this shape
  given:    (2,) as (3,)
  expected: 2 elements
  fix:      check the sizes"""),
    'too many indices': (lambda: X.custom_kernel(fxn=lambda m: m[0, 0].store(1.0)), """\
too many indices
  given:    2 for shape (2,)
  expected: at most 1
  fix:      check the placeholder's shape"""),
    'a loop is never ended': (lambda: X.custom_kernel(fxn=lambda m: m[I].store(1.0).sink()), """\
a loop is never ended
  given:    a0[i#] = 1.0
  expected: an end for every loop whose variable is used
  fix:      write .end(i) after the store"""),
}


def text(problem: BaseException) -> str:
    """The message without the user's line, and with loops of any number."""
    return re.sub(r"\bi\d+\b", "i#", re.sub(r"\n  at: .*", "", str(problem)))


ON_HOST = pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="a kernel of your own runs on the processor")
OWN_KERNELS = ("the function describes no kernel", "the elements do not fit this shape",
               "too many indices", "a loop is never ended")


@pytest.mark.parametrize("call, message", [pytest.param(*case, id=name, marks=ON_HOST if name in OWN_KERNELS else ())
                                           for name, case in MESSAGES.items()])
def test_messages(call: Callable[[], object], message: str) -> None:
    with pytest.raises(GlassgradError) as error:
        call()
    assert text(error.value) == message


def test_a_kernel_of_your_own_on_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(Device["CPU"].memory), "on_host", False)
    with pytest.raises(GlassgradError) as error:
        X.custom_kernel(fxn=lambda m: m)
    assert text(error.value) == f"""\
a kernel of your own runs on the processor
  given:    a tensor on {Device.DEFAULT}
  expected: a device that shares the host's memory
  fix:      move it: x.to("CPU")"""
