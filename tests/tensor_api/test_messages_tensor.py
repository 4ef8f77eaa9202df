"""Messages of the tensor's modules, each read whole. What a user did, and what the answer was."""
# ruff: noqa: E501   (messages stand here as users see them)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from glassgrad import Function, GlassgradError, Tensor, c_kernel, custom_gradient, dtypes, jvp, vmap


def x23() -> Tensor:
    return Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


def delete(x: Tensor) -> None:
    del x[0]


class Nothing(Function):
    pass


class Forward(Function):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class Capsule:
    """An array of another library, as DLPack shows it."""
    def __dlpack__(self, **options: Any) -> Any:
        return "used"

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def gradient_of(backward: Callable[..., Any]) -> Any:
    x = Tensor([1.0, 2.0])
    return custom_gradient(backward)(lambda t: t * 2)(x).sum().gradient(x)


MESSAGES: dict[str, tuple[Callable[[], object], str]] = {
    "cdist": (lambda: x23().cdist(x23().T), """
cdist compares rows of one length
  given:    (2, 3) and (3, 2)
  expected: the same size of the last axis
  fix:      put the coordinates along the last axis"""),
    "gelu": (lambda: x23().gelu("fast"), """
there is no such gelu
  given:    approximate='fast'
  expected: "none" or "tanh"
  fix:      write x.gelu() or x.gelu("tanh")"""),
    "swiglu": (lambda: x23().swiglu(), """
swiglu needs an even axis
  given:    axis 1 of shape (2, 3)
  expected: two equal halves
  fix:      check the layer before"""),
    "softplus": (lambda: x23().softplus(0), """
softplus needs a beta to divide by
  given:    beta=0
  expected: a number that is not 0
  fix:      write x.softplus(), or x.relu() for the limit of large beta"""),
    "C kernel of a text": (lambda: c_kernel("void f(float *o, const float *x, void *p) {}", "f")(x23(), "a"), """
a C kernel takes tensors and numbers
  given:    'a' of type str for f
  expected: a Tensor, an int or a float
  fix:      make it a tensor, or a number with float() or int()"""),
    "C kernel of no tensor": (lambda: c_kernel("", "f")(1), """
a C kernel needs a tensor
  given:    f(1,)
  expected: at least one Tensor
  fix:      pass its values as a tensor: Tensor([1.0])"""),
    "C kernel of another name": (lambda: c_kernel("void f(float *o) {}", "g")(x23()), """
the C source has no such function
  given:    name='g'
  expected: a function void g(...) that is not static
  fix:      check the name"""),
    "stride": (lambda: Tensor.ones(1, 1, 3, 3).conv2d(Tensor.ones(1, 1, 2, 2), stride=0), """
stride does not fit the space axes
  given:    stride=0
  expected: an integer of 1 or more, or 2 of them
  fix:      write stride=1, for example"""),
    "padding of a convolution": (lambda: Tensor.ones(1, 1, 3, 3).conv2d(Tensor.ones(1, 1, 2, 2), padding=(1, 2, 3)), """
the padding does not fit the space axes
  given:    padding=(1, 2, 3)
  expected: an int, 2 ints, or 4 ints from the last axis backward
  fix:      write padding=1, for example"""),
    "option": (lambda: x23().zeros_like(shape=(2,)), """
there is no such option
  given:    shape
  expected: dtype, device or requires_grad
  fix:      check the spelling"""),
    "arange without end": (lambda: Tensor.arange(float("inf")), """
arange needs an end
  given:    start=0, stop=inf, step=1
  expected: finite numbers
  fix:      check how the limits are computed"""),
    "arange without steps": (lambda: Tensor.arange(0, 5, 0), """
arange needs steps that lead somewhere
  given:    step=0
  expected: a step that is not 0
  fix:      to repeat one value, use Tensor.full"""),
    "linspace": (lambda: Tensor.linspace(0, 1, 2.5), """
linspace needs a number of steps
  given:    steps=2.5
  expected: an int of 0 or more
  fix:      write Tensor.linspace(0, 1, 5), for example"""),
    "triangle of a vector": (lambda: Tensor([1.0]).tril(), """
tril needs a matrix
  given:    shape (1,)
  expected: at least 2 axes
  fix:      reshape it first"""),
    "meshgrid": (lambda: Tensor([1]).meshgrid(Tensor([2]), indexing="yx"), """
meshgrid has two orders
  given:    indexing='yx'
  expected: "ij" or "xy"
  fix:      write indexing="ij\""""),
    "bincount of less than nothing": (lambda: Tensor([0, -1]).bincount(), """
bincount counts numbers from 0 on
  given:    -1 among them
  expected: 0, 1, 2, ...
  fix:      take the least away first: x - x.min()"""),
    "one_hot": (lambda: Tensor([1.5]).one_hot(3), """
one_hot needs integers
  given:    float32 values
  expected: an integer tensor
  fix:      cast first: x.int()"""),
    "from_numpy": (lambda: Tensor.from_numpy([1, 2]), """
from_numpy shares the memory of an array
  given:    list
  expected: a NumPy array
  fix:      for other values write Tensor(value)"""),
    "from_torch": (lambda: Tensor.from_torch([1, 2]), """
from_torch takes PyTorch's tensors
  given:    list
  expected: a torch.Tensor
  fix:      for other values write Tensor(value)"""),
    "randperm": (lambda: Tensor.randperm(-1), """
randperm needs a length
  given:    -1
  expected: an int of 0 or more
  fix:      write Tensor.randperm(10)"""),
    "multinomial of nothing": (lambda: Tensor(1.0).multinomial(), """
multinomial needs weights
  given:    shape ()
  expected: 1 or 2 axes, not empty
  fix:      reshape the weights"""),
    "multinomial of too many": (lambda: Tensor([0.5, 0.5]).multinomial(3), """
multinomial cannot draw this many
  given:    num_samples=3 of 2 without replacement
  expected: 1 to 2
  fix:      draw fewer, or pass replacement=True"""),
    "threefry": (lambda: Tensor([1]).threefry(Tensor([2])), """
threefry scrambles 64 bits
  given:    int32 and int32 values
  expected: uint64 tensors
  fix:      cast both: x.cast(dtypes.uint64)"""),
    "hash": (lambda: Tensor(b"abc").keccak("md5"), """
there is no such hash
  given:    'md5'
  expected: sha3_224, sha3_256, sha3_384, sha3_512, shake_128, shake_256, or (rate, domain byte)
  fix:      check the spelling"""),
    "einsum": (lambda: Tensor.einsum("ij->", x23(), x23()), """
the formula cannot be read
  given:    'ij->'
  expected: one term per operand: 2 here
  fix:      write einsum("ij,jk->ik", x, y) or rearrange("a b c -> a (b c)"), for example"""),
    "einsum, term": (lambda: Tensor.einsum("ijk->", x23()), """
a term of the formula does not fit its operand
  given:    'ijk' for 2 axes in 'ijk->'
  expected: one letter per axis
  fix:      count the operand's axes: print(x.shape)"""),
    "einsum, sizes": (lambda: Tensor.einsum("ij,jk->ik", x23(), x23()), """
an axis of the formula has two sizes
  given:    'j' is 3 and 2 in 'ij,jk->ik'
  expected: one size per letter
  fix:      check the operands' shapes"""),
    "tensordot, sizes": (lambda: x23().tensordot(x23(), 1), """
the axes to sum over differ
  given:    (2, 3) along (1,), (2, 3) along (0,)
  expected: equal sizes, pair by pair
  fix:      check dims"""),
    "tensordot, axes": (lambda: x23().tensordot(x23(), 3), """
tensordot sums over so many axes, or over those named
  given:    dims=3
  expected: 0 to 2, or two lists of axes
  fix:      write dims=1, or dims=([0], [1])"""),
    "rearrange": (lambda: x23().rearrange("a b c -> c b a"), """
the formula does not fit the tensor
  given:    3 axes in 'a b c -> c b a', shape (2, 3)
  expected: one name or (...) group per axis
  fix:      check the tensor's shape: print(x.shape)"""),
    "rearrange, sizes": (lambda: x23().rearrange("a (b c) -> a b c", b=2), """
the sizes of the formula do not fit
  given:    (b c) for an axis of 3
  expected: all but one size known, and their product a divisor
  fix:      pass sizes whose product is 3: b=.."""),
    "rearrange, unused size": (lambda: x23().rearrange("a b -> b a", c=2), """
rearrange was given the size of an axis that the formula does not name
  given:    c=2 for 'a b -> b a'
  expected: sizes of a, b
  fix:      check the spelling"""),
    "no forward": (lambda: Nothing.apply(x23()), """
this Function has no forward
  given:    Nothing
  expected: a method forward(self, x, ...)
  fix:      write it in your subclass"""),
    "no backward": (lambda: (lambda x: Forward.apply(x).sum().gradient(x))(x23()), """
this Function has no backward
  given:    Forward
  expected: a method backward(self, g)
  fix:      write it in your subclass, or use the value where no gradient is asked for"""),
    "gradients, number": (lambda: gradient_of(lambda g, y, x: (g, g)), """
the backward of <lambda> gave the wrong number of gradients
  given:    2
  expected: 1, one per tensor (None for no gradient)
  fix:      return a tuple"""),
    "gradients, shape": (lambda: gradient_of(lambda g, y, x: g.sum()), """
the backward of <lambda> gave a gradient that does not fit
  given:    shape () for tensor 0 of (2,)
  expected: the tensor's own shape
  fix:      sum over the axes that were broadcast"""),
    "custom_gradient of nothing": (lambda: custom_gradient(None), """
custom_gradient needs the backward function
  given:    None
  expected: a function of (gradient, result, *tensors)
  fix:      write @custom_gradient(lambda g, y, x: ...)"""),
    "custom_gradient of a number": (lambda: custom_gradient(lambda g, y, x: g)(lambda x: 3)(x23()), """
a function with a gradient of its own returns one tensor
  given:    int
  expected: a Tensor
  fix:      for several results write a Function subclass"""),
    "two masks": (lambda: x23().scaled_dot_product_attention(x23(), x23(), Tensor.ones(2, 2), is_causal=True), """
attention takes one mask
  given:    attn_mask and is_causal=True
  expected: one of them
  fix:      put the causal mask into attn_mask: Tensor.ones(t, t).tril().bool()"""),
    "attention of vectors": (lambda: Tensor([1.0]).scaled_dot_product_attention(Tensor([1.0]), Tensor([1.0])), """
attention needs time and size
  given:    query (1,), key (1,), value (1,)
  expected: (.., time, size)
  fix:      add the missing axes with unsqueeze"""),
    "attention without heads": (lambda: x23().scaled_dot_product_attention(x23(), x23(), enable_gqa=True), """
attention needs time and size and heads
  given:    query (2, 3), key (2, 3), value (2, 3)
  expected: (.., heads, time, size)
  fix:      add the missing axes with unsqueeze"""),
    "attention with heads that divide none": (
        lambda: Tensor.ones(4, 2, 3).scaled_dot_product_attention(Tensor.ones(3, 2, 3), Tensor.ones(3, 2, 3),
                                                                  enable_gqa=True), """
the heads of keys and values do not share the query's heads evenly
  given:    heads: query 4, key 3, value 3
  expected: a number of heads of the query that those of keys and of values divide
  fix:      check the model's numbers of heads, and that the axis before time is that of heads"""),
    "class weights": (lambda: x23().cross_entropy(Tensor([0, 1]), weight=Tensor([1.0])), """
there is one weight per class
  given:    weight (1,), predictions (2, 3)
  expected: shape (3,)
  fix:      check the number of classes"""),
    "label_smoothing": (lambda: x23().cross_entropy(Tensor([0, 1]), label_smoothing=2), """
label_smoothing is a share
  given:    label_smoothing=2
  expected: a number from 0 to 1
  fix:      write label_smoothing=0.1, for example"""),
    "sparse targets": (lambda: x23().sparse_categorical_crossentropy(Tensor([0])), """
the targets of sparse_categorical_crossentropy do not fit the predictions
  given:    predictions (2, 3), targets (1,)
  expected: targets of shape (2,), one class each
  fix:      check the batch sizes; classes are axis 1 of the predictions"""),
    "probabilities": (lambda: x23().cross_entropy(Tensor([0.5])), """
the target probabilities do not fit the predictions
  given:    predictions (2, 3), targets (1,)
  expected: one shape
  fix:      for classes, pass integers: target.int()"""),
    "memory of letters": (lambda: Tensor(memoryview(bytes(16)).cast("P")), """
cannot make a tensor of memory in this format
  given:    format 'P'
  expected: one of ?, b, B, h, H, i, I, q, Q, e, f, d, l, L, c
  fix:      convert it to a list or a NumPy array"""),
    "lookup outside": (lambda: x23()[Tensor([0, 5]) * 1].numpy(), """
the index is out of bounds
  given:    index 5 on axis 0 of (2, 3), at [1] of the index tensor
  expected: an index from -2 to 1
  fix:      check how the index is computed; CHECK_INDEX=0 clamps it silently"""),
    "gather": (lambda: x23().gather(0, Tensor([0])), """
the index does not fit the tensor
  given:    index (1,) for (2, 3), dim=0
  expected: as many axes, and sizes that are not larger except along dim
  fix:      check the shapes"""),
    "slice": (lambda: x23()["a":], """
slices are made of integers
  given:    'a' of type str
  expected: ints or nothing: x[1:3]
  fix:      convert it with int() or .item()"""),
    "no DLPack capsule": (lambda: Tensor.from_dlpack(Capsule()), """
this is no DLPack capsule, or it was used already
  given:    Capsule
  expected: an object with __dlpack__, or a fresh capsule
  fix:      pass the array itself"""),
    "DLPack to another device": (lambda: x23().__dlpack__(dl_device=(2, 0)), """
DLPack here goes through the host's memory
  given:    dl_device=(2, 0)
  expected: the CPU, (1, 0)
  fix:      move it on the other side"""),
    "DLPack of 8 bits": (lambda: x23().cast("fp8e4m3").__dlpack__(), """
DLPack has no such type
  given:    fp8e4m3
  expected: a wider float
  fix:      cast it: x.half()"""),
    "from_blob": (lambda: Tensor.from_blob(0, (2,)), """
from_blob needs an address
  given:    0
  expected: an int, such as ctypes.addressof(array)
  fix:      pass the address of the first element"""),
    "chunk": (lambda: x23().chunk(0), """
chunk needs at least one piece
  given:    0
  expected: 1 or more
  fix:      write x.chunk(2), for example"""),
    "roll": (lambda: x23().roll((1, 2), 0), """
roll needs one shift per axis
  given:    2 shifts for 1 axes
  expected: as many of one as of the other
  fix:      write roll((1, 2), (0, 1)), for example"""),
    "unfold": (lambda: x23().unfold(0, 5, 1), """
the window does not fit the axis
  given:    size=5, step=1 on an axis of 2
  expected: a size of at most the axis, and a step of at least 1
  fix:      check the numbers"""),
    "diagonal": (lambda: x23().diagonal(0, 1, 1), """
diagonal needs two axes
  given:    dim1=1, dim2=1, shape (2, 3)
  expected: two different axes of a matrix or a stack of them
  fix:      write x.diagonal(0, -2, -1)"""),
    "diag": (lambda: x23()[None].diag(), """
diag needs a vector or a matrix
  given:    shape (1, 2, 3)
  expected: 1 or 2 axes
  fix:      for stacks of matrices use x.diagonal(0, -2, -1), of vectors x.diag_embed()"""),
    "alpha": (lambda: x23().add(1, alpha="x"), """
cannot use this value as alpha
  given:    'x' of type str
  expected: a number
  fix:      multiply by it: x + alpha * other"""),
    "a truth value among indices": (lambda: x23()[True, 0], """
a single truth value stands alone in an index
  given:    it and 1 more
  expected: a mask with axes
  fix:      write x[mask][...]"""),
    "movedim": (lambda: x23().movedim((0, 1), (1, 1)), """
movedim needs as many places as axes, each once
  given:    source=(0, 1), destination=(1, 1), shape (2, 3)
  expected: two rows of different axes, of equal length
  fix:      write x.movedim((0, 1), (1, 2)), for example"""),
    "split": (lambda: x23().split(0), """
split needs pieces of at least one element
  given:    0
  expected: 1 or more
  fix:      write x.split(2), for example"""),
    "solve": (lambda: Tensor.eye(2).solve(Tensor.ones(3, 1)), """
the right side does not fit the matrix
  given:    (2, 2) and (3, 1)
  expected: as many rows on both sides
  fix:      transpose the right side"""),
    "matrix_power": (lambda: x23().matrix_power(2), """
matrix_power needs a square matrix
  given:    shape (2, 3)
  expected: (.., n, n)
  fix:      check the tensor's shape: print(x.shape)"""),
    "qr": (lambda: x23().qr("full"), """
there is no such qr
  given:    mode='full'
  expected: "complete" or "reduced"
  fix:      write x.qr("reduced")"""),
    "block_diag": (lambda: Tensor.ones(1, 1, 1).block_diag(x23()), """
blocks are matrices
  given:    shapes [(1, 1, 1), (2, 3)]
  expected: at most 2 axes each
  fix:      reshape them, or stack the results"""),
    "combinations": (lambda: x23().combinations(), """
combinations are of a vector's values
  given:    shape (2, 3), r=2
  expected: 1 axis, and r of 0 or more
  fix:      flatten it first: x.flatten()"""),
    "is_nonzero": (lambda: x23().is_nonzero(), """
several values are not one truth
  given:    a tensor of shape (2, 3)
  expected: 1 element
  fix:      ask x.any() or x.all()"""),
    "eigh": (lambda: Tensor.eye(2).eigh("lower"), """
a symmetric matrix is told by one of its triangles
  given:    UPLO='lower'
  expected: "L" or "U"
  fix:      leave it out: the lower triangle is read"""),
    "matrix_norm": (lambda: x23().matrix_norm(3), """
this is no norm of a matrix
  given:    ord=3 of shape (2, 3)
  expected: "fro", "nuc", inf, -inf, 1, -1, 2 or -2, of 2 axes or more
  fix:      write x.vector_norm(ord) for a vector"""),
    "multi_dot": (lambda: Tensor.multi_dot([x23()]), """
a chain is of two matrices or more
  given:    shapes [(2, 3)]
  expected: matrices; the first and last may be vectors
  fix:      use @ for stacks of them"""),
    "lstsq": (lambda: x23().lstsq(Tensor.ones(2, 1)), """
lstsq needs at least as many rows as columns
  given:    shape (2, 3)
  expected: (.., m, n) with m >= n
  fix:      use pinv() @ other"""),
    "sequential": (lambda: x23().sequential([3]), """
sequential needs layers to call
  given:    3 of type int
  expected: functions or layers
  fix:      check the list of layers"""),
    "ctc_loss": (lambda: Tensor.ones(2, 1, 3).ctc_loss(Tensor([[1]]), [2], [1], blank=5), """
ctc_loss needs log-probabilities over time
  given:    shape (2, 1, 3), blank=5
  expected: (time, batch, classes), at least one step, and blank one of the classes
  fix:      move time to the front: x.log_softmax(-1).permute(1, 0, 2)"""),
    "ctc_loss, targets": (lambda: Tensor.ones(2, 1, 3).ctc_loss(Tensor([[1.5]]), [2], [1]), """
the targets of ctc_loss do not fit
  given:    float32 targets (1, 1) for a batch of 1
  expected: integers, (batch, labels) or all in one vector
  fix:      pad the short ones with any label; target_lengths says what counts"""),
    "ctc_loss, a sequence too long": (lambda: Tensor.ones(2, 1, 3).ctc_loss(Tensor([[1]]), [3], [1]), """
a sequence of ctc_loss is longer than the data, or shorter than nothing
  given:    input_lengths[0] = 3
  expected: a length from 0 to 2
  fix:      count what belongs to each sequence, without padding"""),
    "ctc_loss, labels missing": (lambda: Tensor.ones(2, 2, 3).ctc_loss(Tensor([1, 2, 1]), [2, 2], [2, 2]), """
ctc_loss has too few labels for these target_lengths
  given:    3 labels, lengths that add up to 4
  expected: 4 labels, one sequence after another
  fix:      join the labels of all sequences, without padding"""),
    "ctc_loss, lengths": (lambda: Tensor.ones(2, 1, 3).ctc_loss(Tensor([[1]]), [2, 2], [1]), """
input_lengths has one length per sequence
  given:    int32 values, shape (2,)
  expected: 1 integers
  fix:      check the batch size"""),
    "glu": (lambda: x23().glu(), """
glu needs an even axis
  given:    axis 1 of shape (2, 3)
  expected: two equal halves
  fix:      check the layer before"""),
    "flatten": (lambda: x23().flatten(1, 0), """
flatten needs its axes in order
  given:    start_dim=1, end_dim=0
  expected: start_dim at or before end_dim
  fix:      exchange them"""),
    "repeat": (lambda: x23().repeat(2), """
repeat needs a count for every axis
  given:    (2,) for a tensor of shape (2, 3)
  expected: at least 2 counts of 0 or more
  fix:      write 1 for axes to leave alone"""),
    "repeats of another length": (lambda: x23().repeat_interleave(Tensor([1, 2]), 1), """
the repeats do not fit the axis
  given:    int32 of shape (2,) for 3 elements
  expected: one integer, or one for each element
  fix:      check the axis"""),
    "repeats below zero": (lambda: x23().repeat_interleave(Tensor([1, -2]), 0), """
nothing can be repeated so often
  given:    repeats=-2
  expected: 0 or more
  fix:      write x.repeat_interleave(2), for example"""),
    "repeat_interleave": (lambda: x23().repeat_interleave(-1), """
nothing can be repeated so often
  given:    repeats=-1
  expected: 0 or more
  fix:      write x.repeat_interleave(2), for example"""),
    "shrink": (lambda: x23().shrink(((0, 5), None)), """
cannot shrink to these bounds
  given:    ((0, 5), None) of shape (2, 3)
  expected: one (start, stop) per axis with 0 <= start <= stop <= size
  fix:      check the bounds"""),
    "pad": (lambda: x23().pad((-2, -2)), """
the padding cuts away more than there is
  given:    [(0, 0), (-2, -2)] for shape (2, 3)
  expected: sizes of 0 or more
  fix:      cut less"""),
    "unflatten": (lambda: x23().unflatten(1, (2, -1)), """
cannot unflatten: -1 does not come out as an integer
  given:    (3,) (3 elements) to (2, -1)
  expected: known sizes whose product divides 3; 3 elements are not a multiple of 2
  fix:      check the sizes you wrote, or print(x.shape) before this line"""),
    "diff": (lambda: x23().diff(-1), """
differences are taken so many times
  given:    n=-1
  expected: 0 or more
  fix:      write x.diff(), or cumsum for the opposite"""),
    "pixel_shuffle": (lambda: Tensor.ones(3, 2, 2).pixel_shuffle(2), """
pixel_shuffle does not come out even
  given:    shape (3, 2, 2), a factor of 2
  expected: (.., channels, height, width) that can be divided by 4
  fix:      check the number of channels and the size of the image"""),
    "fold": (lambda: Tensor.ones(1, 4, 3).fold(2, 2), """
these windows do not fold into this image
  given:    shape (1, 4, 3), output_size=(2, 2), kernel_size=(2, 2)
  expected: (batch, channels * 4, 1)
  fix:      pass the same sizes as when the windows were taken"""),
    "affine_grid": (lambda: Tensor.affine_grid(x23(), (1, 1, 2, 2)), """
affine_grid is for images
  given:    theta (2, 3), size (1, 1, 2, 2)
  expected: theta (batch, 2, 3) and a size (batch, channels, height, width)
  fix:      check the shapes"""),
    "grid_sample": (lambda: x23().grid_sample(x23()), """
grid_sample does not fit
  given:    image (2, 3), grid (2, 3)
  expected: (batch, channels, height, width) and (batch, rows, columns, 2)
  fix:      check the shapes"""),
    "grid_sample, mode": (lambda: Tensor.ones(1, 1, 2, 2).grid_sample(Tensor.ones(1, 1, 1, 2), "cubic"), """
there is no such way to sample
  given:    mode='cubic'
  expected: "bilinear", "nearest" or "bicubic"
  fix:      check the spelling"""),
    "local_response_norm": (lambda: x23().local_response_norm(3), """
local_response_norm is over channels
  given:    shape (2, 3), size=3
  expected: (batch, channels, ...space) and a size of 1 or more
  fix:      add the missing axes with unsqueeze"""),
    "multi_margin_loss": (lambda: x23().multi_margin_loss(Tensor([0])), """
the targets of multi_margin_loss do not fit
  given:    predictions (2, 3), targets (1,)
  expected: (batch, classes) and one class each
  fix:      check the batch sizes"""),
    "conv_transpose": (lambda: Tensor.ones(1, 2, 3, 3).conv_transpose2d(Tensor.ones(1, 1, 2, 2)), """
the weight does not fit the input of this transposed convolution
  given:    input (1, 2, 3, 3), weight (1, 1, 2, 2), groups=1
  expected: input (batch, in, ...space) and weight (in, out / groups, ...kernel) with as many kernel axes as space axes, and in divisible by groups
  fix:      check the layer's in_channels and groups; add a batch axis with x.unsqueeze(0)"""),
    "conv_transpose, padding": (lambda: Tensor.ones(1, 1, 1, 1).conv_transpose2d(Tensor.ones(1, 1, 1, 1), padding=1), """
the padding cuts away more than there is
  given:    padding=(1, 1) for 1 positions
  expected: a result of 0 positions or more
  fix:      pad less, or pass output_padding"""),
    "max_unpool": (lambda: x23().max_unpool2d(Tensor([1])), """
the indices do not fit the values
  given:    values (2, 3), int32 indices (1,)
  expected: one integer per value, and 2 space axes
  fix:      take both from max_pool2d(return_indices=True)"""),
    "pool of padding": (lambda: Tensor.ones(1, 1, 3, 3).max_pool2d(2, padding=2), """
a window of max_pool2d holds nothing but padding
  given:    a window of (2, 2) (dilation (1, 1)) on (3, 3) padded by [(2, 2), (2, 2)]
  expected: on each side less padding than a window is long
  fix:      pad by half a window at most, or pad the input first: x.pad(..)"""),
    "chunks that are no number": (lambda: x23().chunk(""), """
chunk needs at least one piece
  given:    ''
  expected: 1 or more
  fix:      write x.chunk(2), for example"""),
    "many pieces": (lambda: x23().hsplit(10 ** 10), """
hsplit would make too many tensors
  given:    10,000,000,000 pieces
  expected: at most 1,048,576
  fix:      choose fewer pieces; x.unfold shows equal ones in one tensor"""),
    "many combinations": (lambda: Tensor.ones(100).combinations(50), """
there are too many combinations
  given:    100,891,344,545,564,193,334,812,497,256 of 50 values
  expected: at most 268,435,456 values in all
  fix:      choose a smaller r"""),
    "many repeats": (lambda: x23().repeat_interleave([2 ** 31, 1], 0), """
the repeats are too many
  given:    2,147,483,649 elements along one axis
  expected: at most 2,147,483,647
  fix:      check the counts: print(repeats.max())"""),
    "celu": (lambda: x23().celu(0), """
celu needs an alpha to divide by
  given:    alpha=0
  expected: a number that is not 0
  fix:      write x.celu(), or x.relu() for the limit of small alpha"""),
    "softshrink": (lambda: x23().softshrink(-1), """
softshrink moves toward 0
  given:    lambd=-1
  expected: 0 or more
  fix:      write x.softshrink(0.5), for example"""),
    "adaptive pool": (lambda: Tensor.ones(1, 1, 3, 3).adaptive_avg_pool2d(-1), """
adaptive_avg_pool2d cannot give this size
  given:    output_size=-1 for shape (1, 1, 3, 3)
  expected: 2 sizes of 0 or more, and None to keep one
  fix:      write adaptive_avg_pool2d(1), for example"""),
    "interpolate": (lambda: Tensor.ones(1, 1, 3).interpolate(0), """
interpolate cannot give this size
  given:    size=0 for shape (1, 1, 3)
  expected: one size of 1 or more for each of the last axes
  fix:      write interpolate((32, 32))"""),
    "interpolate, many bytes": (lambda: Tensor.ones(1, 1, 3, dtype=dtypes.uint8).interpolate(10 ** 10), """
interpolate lists the weights of bytes one by one
  given:    a size of 10,000,000,000
  expected: at most 2^28
  fix:      resize floats: x.float().interpolate(..)"""),
    "interpolate, mode": (lambda: Tensor.ones(1, 1, 3).interpolate((2,), mode="cubic"), """
there is no such way to interpolate
  given:    mode='cubic'
  expected: "linear", "bilinear", "trilinear", "bicubic", "nearest", "nearest-exact" or "area"
  fix:      check the spelling"""),
    "seed": (lambda: Tensor.manual_seed(1.5), """
a seed is an integer
  given:    1.5
  expected: an int
  fix:      write Tensor.manual_seed(42)"""),
    "randint": (lambda: Tensor.randint(2, dtype=dtypes.float32), """
randint makes integers
  given:    dtype=float32
  expected: an integer dtype
  fix:      use Tensor.uniform for fractions"""),
    "delete": (lambda: delete(x23()), """
elements of a tensor cannot be deleted
  given:    del x[0]
  expected: tensors keep their shape
  fix:      choose what to keep: x = x[keep]"""),
    "scatter, index": (lambda: x23().scatter(0, Tensor([[0.5]]), 1), """
scatter needs an index of integers
  given:    an index of float32
  expected: an integer tensor
  fix:      cast it first: index.int()"""),
    "scatter, shape": (lambda: x23().scatter(0, Tensor([0]), 1), """
the index does not fit the tensor
  given:    index (1,) for (2, 3), dim=0
  expected: as many axes, and sizes that are not larger except along dim
  fix:      check the shapes"""),
    "scatter, type": (lambda: x23().scatter(0, Tensor([[0]]), Tensor([[1]])), """
scatter needs one type
  given:    int32 into float32
  expected: a source of float32
  fix:      cast it: src.cast(dtypes.float32)"""),
    "scatter, source": (lambda: x23().scatter(0, Tensor([[0, 1]]), Tensor([[1.0]])), """
the source is smaller than the index
  given:    source (1, 1), index (1, 2)
  expected: as many axes, and sizes that are not smaller
  fix:      check the shapes"""),
    "scatter, reduce": (lambda: x23().scatter(0, Tensor([[0]]), 1, reduce="min"), """
there is no such way to combine
  given:    reduce='min'
  expected: None, "add" or "multiply"
  fix:      for others use scatter_reduce"""),
    "scatter_reduce": (lambda: x23().scatter_reduce(0, Tensor([[0]]), Tensor([[1.0]]), "min"), """
there is no such way to combine
  given:    reduce='min'
  expected: "sum", "prod", "mean", "amax" or "amin"
  fix:      write reduce="sum", for example"""),
    "index_add": (lambda: x23().index_add(0, Tensor([0]), Tensor([1.0])), """
the slices of index_add do not fit
  given:    index (1,), source (1,)
  expected: a vector as index and a source of shape (1, 3)
  fix:      check the shapes"""),
    "t": (lambda: Tensor.ones(1, 2, 3).t(), """
t() is for matrices
  given:    shape (1, 2, 3)
  expected: at most 2 axes
  fix:      use transpose(-2, -1)"""),
    "pad_to": (lambda: x23().pad_to(3), """
pad_to needs one size per axis
  given:    (3,) for shape (2, 3)
  expected: 2 sizes
  fix:      write None for axes to leave alone"""),
    "cross": (lambda: x23().cross(Tensor([1.0, 2.0])), """
a cross product is of vectors of three
  given:    (2, 3) and (2,), dim=-1
  expected: 3 along that axis
  fix:      choose the axis with dim="""),
    "topk": (lambda: x23().topk(5), """
topk cannot choose this many
  given:    k=5 of an axis of 3
  expected: k from 0 to 3
  fix:      choose a smaller k"""),
    "kthvalue": (lambda: x23().kthvalue(9), """
there is no such value
  given:    k=9 of an axis of 3
  expected: k from 1 to 3
  fix:      count from 1: k=1 is the smallest"""),
    "median": (lambda: Tensor.zeros(0).median(), """
there is no median of nothing
  given:    shape (0,)
  expected: at least one element
  fix:      check where the elements went"""),
    "quantile, interpolation": (lambda: x23().quantile(0.5, interpolation="cubic"), """
there is no such interpolation
  given:    interpolation='cubic'
  expected: "linear", "lower", "higher", "midpoint" or "nearest"
  fix:      check the spelling"""),
    "quantile, share": (lambda: x23().quantile(1.5), """
quantile needs shares
  given:    q=1.5
  expected: a number from 0 to 1
  fix:      write 0.5 for half"""),
    "quantile of ints": (lambda: Tensor([1, 2]).quantile(0.5), """
quantile needs floats
  given:    int32 values
  expected: a float tensor
  fix:      cast first: x.float()"""),
    "bincount": (lambda: x23().bincount(), """
bincount needs a vector of integers
  given:    float32[2, 3]
  expected: an integer tensor with 1 axis
  fix:      flatten and cast it: x.flatten().int()"""),
    "searchsorted": (lambda: x23().searchsorted(1.0), """
searchsorted looks into one row, or a row each
  given:    (2, 3) for ()
  expected: one axis, or the same sizes but for the last axis
  fix:      take one row: x[0].searchsorted(values)"""),
    "mode": (lambda: Tensor.zeros(2, 0).mode(), """
there is no most frequent of nothing
  given:    shape (2, 0)
  expected: at least one element along the axis
  fix:      check where the elements went"""),
    "cov": (lambda: Tensor.ones(1, 2, 3).cov(), """
cov is of a matrix of variables
  given:    shape (1, 2, 3)
  expected: (variables, observations), or one row
  fix:      reshape it first"""),
    "vdot": (lambda: x23().vdot(x23()), """
vdot is of vectors
  given:    (2, 3) and (2, 3)
  expected: 1 axis each
  fix:      use x @ y for matrices"""),
    "sum_to_size": (lambda: x23().sum_to_size(5), """
cannot sum to this shape
  given:    (2, 3) to (5,)
  expected: a shape that can be broadcast to the tensor's
  fix:      check the sizes"""),
    "tensor_split": (lambda: x23().tensor_split(0), """
tensor_split needs at least one piece
  given:    0
  expected: 1 or more
  fix:      write x.tensor_split(2), for example"""),
    "no memory": (lambda: Tensor.zeros(0).data(), """
there is no memory to show
  given:    a tensor of shape (0,)
  expected: at least one element
  fix:      use .numpy() or .tolist(), which can be empty"""),
    "a window without axes": (lambda: Tensor.ones(1, 1, 4, 4).avg_pool2d([]), """
kernel_size does not fit the space axes
  given:    kernel_size=[]
  expected: an integer of 1 or more, or 2 of them
  fix:      write kernel_size=1, for example"""),
    "two positions": (lambda: x23().cumulative_trapezoid(Tensor([0.0, 1.0])), """
cumulative_trapezoid needs a position per value
  given:    x of shape (2,) for (2, 3)
  expected: 3 positions along the axis
  fix:      leave x out, and pass dx"""),
    "beta": (lambda: x23().smooth_l1_loss(x23(), beta=-1.0), """
smooth_l1_loss changes its form at a distance
  given:    beta=-1.0
  expected: 0 or more
  fix:      write beta=1.0, for example"""),
    "arrays": (lambda: Tensor([x23(), x23()[0], 2]), """
cannot make a tensor of arrays of different shapes
  given:    (2, 3), (3,), ()
  expected: one shape
  fix:      pad the smaller ones, or make a tensor of each"""),
    "elements": (lambda: Tensor([1.0]).expand(2 ** 40, 2 ** 40), """
no tensor has this shape
  given:    (1099511627776, 1099511627776)
  expected: sizes of 0 or more, and in all at most 2^60 elements
  fix:      check how the sizes are computed"""),
    "gcd": (lambda: Tensor([1.5]).gcd(2), """
gcd is of integers
  given:    float32 values
  expected: integer tensors
  fix:      cast first: x.int()"""),
    "histc": (lambda: x23().histc(0), """
histc cannot make these bins
  given:    bins=0, min=0, max=0
  expected: at least 1 bin, and finite limits in order
  fix:      write x.histc(10), for example"""),
    "take_along_dim": (lambda: x23().take_along_dim(Tensor([0]), 0), """
the index of take_along_dim does not fit
  given:    (1,) for (2, 3)
  expected: 2 axes of sizes that are equal, or 1, except along dim
  fix:      insert axes of size 1 with unsqueeze"""),
    "alu": (lambda: x23().alu(3), """
alu takes an operation on elements
  given:    3
  expected: an op of one, two or three operands, such as Ops.ADD
  fix:      write the operation itself: x + y"""),
    "jvp": (lambda: jvp(lambda x: x, [x23()], [Tensor([1.0])]), """
the tangents do not fit the primals
  given:    [(2, 3)] and [(1,)]
  expected: one tangent of the same shape per primal
  fix:      pass tangents of the primals' shapes: [Tensor.ones(*x.shape)]"""),
    "jvp of nothing": (lambda: jvp(lambda: x23().sum(), [], []), """
jvp needs at least one primal
  given:    none
  expected: a list of tensors
  fix:      jvp(f, [x], [v])"""),
    "vmap, axes": (lambda: vmap(lambda x: x, in_axes=(0, 1))(x23()), """
vmap needs one axis per argument
  given:    in_axes=(0, 1) for 1 arguments
  expected: an int, or one entry per argument
  fix:      use None for arguments without a batch"""),
    "vmap without a batch": (lambda: vmap(lambda x: x, in_axes=None)(x23()), """
vmap has no batch
  given:    in_axes=None
  expected: at least one tensor with an axis
  fix:      call the function itself"""),
    "vmap, batches": (lambda: vmap(lambda x, y: x)(x23(), Tensor([1.0])), """
the batches of vmap differ
  given:    1 and 2 examples
  expected: one number of examples
  fix:      check in_axes"""),
    "linspace of truth": (lambda: Tensor.linspace(0, 1, 3, dtype="bool"), """
linspace counts in numbers
  given:    dtype=dtypes.bool
  expected: floats or integers
  fix:      compare the numbers: Tensor.linspace(0, 1, 5) > 0.5"""),
    "cat of numbers": (lambda: Tensor(1.0).cat(Tensor(2.0)), """
single numbers have no axis to be put along
  given:    cat of shape ()
  expected: at least 1 axis
  fix:      use Tensor.stack, which makes one"""),
    "a list and more": (lambda: Tensor.stack([x23(), x23()], x23()), """
stack takes tensors, or one list of them
  given:    a list, and tensors beside it
  expected: one of the two
  fix:      write Tensor.stack(*tensors, x)"""),
    "argument": (lambda: x23().linear(3), """
linear cannot take this weight
  given:    weight=3 (int)
  expected: a Tensor
  fix:      see help(Tensor.linear)"""),
    "requires_grad": (lambda: Tensor([1.0], requires_grad="yes"), """
requires_grad is True, False or None
  given:    'yes' of type str
  expected: True, False or None
  fix:      write requires_grad=True"""),
    "where, values first": (lambda: Tensor([1.0]).where(Tensor([True]), Tensor([2.0])), """
where chooses by its first tensor, and these are values
  given:    float32.where(...) with bool values
  expected: a bool tensor first
  fix:      write (x > 0).where(x ** 3, x): condition.where(if true, if false)"""),
    "too many indices of a triangle": (lambda: Tensor.tril_indices(1 << 20, 1 << 20), """
tril_indices lists its indices one by one
  given:    1048576 x 1048576
  expected: at most 2^28 elements
  fix:      use triu or tril on a tensor of ones"""),
    "logspace": (lambda: Tensor.logspace(0, 1, 3, base=-2.0), """
logspace takes powers of a positive number
  given:    base=-2.0
  expected: a finite number above 0
  fix:      write base=10.0"""),
    "tensorsolve": (lambda: x23().tensorsolve(Tensor([1.0, 2.0])), """
tensorsolve needs as many unknowns as equations
  given:    (2, 3) and (2,)
  expected: first axes of the other's shape, and as many elements in the rest
  fix:      check the shapes, or pass dims"""),
    "vander": (lambda: Tensor(2.0).vander(), """
vander takes powers of a vector
  given:    shape ()
  expected: at least 1 axis
  fix:      give it one first: x.reshape(1)"""),
    "max_unpool, size": (lambda: Tensor.ones(1, 1, 1, 1).max_unpool2d(Tensor([[[[0]]]]), 1, padding=3), """
max_unpool2d cannot give this size
  given:    (-5, -5)
  expected: sizes of 0 or more
  fix:      check the padding"""),
    "tile": (lambda: x23().tile(-1), """
tile needs a count for every axis
  given:    (1, -1) for a tensor of shape (2, 3)
  expected: at least 2 counts of 0 or more
  fix:      write 1 for axes to leave alone"""),
    "index_fill": (lambda: x23().index_fill(0, Tensor([0]), Tensor([1.0, 2.0])), """
index_fill takes one value
  given:    a value of shape (2,)
  expected: 1 element
  fix:      use index_copy for slices"""),
    "bincount, weights": (lambda: Tensor([0, 1]).bincount(Tensor([1.0])), """
bincount needs one weight per element
  given:    (1,) for (2,)
  expected: shape (2,)
  fix:      check the weights"""),
    "trapezoid": (lambda: Tensor([1.0, 2.0]).trapezoid(Tensor(1.0)), """
trapezoid needs a position per value
  given:    x of shape () for (2,)
  expected: 2 positions along the axis
  fix:      leave x out, and pass dx"""),
    "call": (lambda: x23().matmul(), """
matmul cannot be called like this
  given:    missing a required argument: 'other'
  expected: matmul(other, reverse, dtype)
  fix:      see help(Tensor.matmul)"""),
}


ON_HOST = pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="it reads the host's memory")
MARKS = dict.fromkeys(("C kernel of a text", "C kernel of another name", "ctc_loss, a sequence too long"), ON_HOST)


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in MESSAGES])
def test_the_whole_message(name: str) -> None:
    do, message = MESSAGES[name]
    with pytest.raises(GlassgradError) as error:
        do()
    text, _, where = str(error.value).partition("\n  at: ")
    assert text == message.removeprefix("\n") and "test_messages_tensor.py" in where
