"""Messages of layers, optimizers, schedules and files, each read whole. What a user did, and what the answer was."""
# ruff: noqa: E501   (messages stand here as users see them)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glassgrad import GlassgradError, Tensor, nn
from glassgrad.compat.tinygrad import compiler_functions
from glassgrad.nn import functional as F, optim, state
from glassgrad.nn.optim import lr_scheduler
from glassgrad.nn.state.formats import safetensors


def weight() -> Tensor:
    return Tensor([[1.0, 2.0], [3.0, 4.0]])


def sgd(**settings: Any) -> optim.SGD:
    return optim.SGD([weight()], **{"lr": 0.1, **settings})


def sgd_of(parameters: Any) -> optim.SGD:
    return optim.SGD(parameters, lr=0.1)


def scaled() -> tuple[Any, Any]:
    """A scaler whose optimizer has gradients to divide."""
    w = weight()
    optimizer, scaler = optim.SGD([w], lr=0.1), optim.GradScaler()
    scaler.scale(w.sum()).backward()
    return scaler, optimizer


def twice_unscaled() -> None:
    scaler, optimizer = scaled()
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)


def long_header() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(safetensors, "MOST_HEADER_BYTES", 10)
        state.safe_save({"w": weight()}, "never.safetensors")


def infinite() -> None:
    w = weight()
    (w * float("inf")).sum().backward()
    optim.clip_grad_norm_([w], 1.0, error_if_nonfinite=True)


MESSAGES: dict[str, tuple[Callable[[], object], str]] = {
    "a file of numbers": (lambda: state.TensorIO(weight()), """
TensorIO reads a row of bytes
  given:    float32 of shape (2, 2)
  expected: uint8, one axis
  fix:      t.bitcast(dtypes.uint8).flatten()"""),
    "rows of no length": (lambda: nn.Embedding(10, 3, max_norm=-1.0)(Tensor([1])), """
no row is so short
  given:    max_norm=-1.0
  expected: 0 or more
  fix:      leave max_norm out: rows are of any length then"""),
    "gain": (lambda: nn.init.calculate_gain("swish"), """
this nonlinearity has no gain
  given:    'swish'
  expected: tanh, relu, selu, linear, sigmoid, conv1d, conv2d, conv3d, conv_transpose1d, conv_transpose2d, conv_transpose3d, leaky_relu
  fix:      choose the nearest of these"""),
    "start values of an array": (lambda: nn.init.zeros_(weight().numpy()), """
only a tensor can be given values
  given:    a ndarray
  expected: a tensor
  fix:      pass the weight itself: nn.init.zeros_(layer.weight)"""),
    "inputs and outputs of a vector": (lambda: nn.init.xavier_uniform_(Tensor([1.0])), """
inputs and outputs are counted by two axes
  given:    a tensor of shape (1,)
  expected: (outputs, inputs, ...)
  fix:      fill a bias with zeros_ or uniform_"""),
    "kaiming, mode": (lambda: nn.init.kaiming_uniform_(weight(), mode="fan_both"), """
a weight is scaled by its inputs or its outputs
  given:    mode='fan_both'
  expected: "fan_in" or "fan_out"
  fix:      leave mode out: it is fan_in"""),
    "NumPy type": (lambda: compiler_functions._from_np_dtype("complex64"), """
this NumPy type has no counterpart
  given:    complex64
  expected: numbers or truth values
  fix:      convert it first: array.astype("float32")"""),
    "attention heads": (lambda: nn.MultiHeadAttention(6, 4), """
the size cannot be divided among the heads
  given:    embed_dim=6, num_heads=4
  expected: a number of heads that divides embed_dim
  fix:      choose a divisor"""),
    "checkpoint, extra": (lambda: state.save_checkpoint("never.safetensors", weight(), extra={"a": object()}), """
a checkpoint's step and extra are written as JSON
  given:    Object of type object is not JSON serializable
  expected: numbers, texts, lists and dicts with texts as keys
  fix:      put tensors into the model or the optimizer, or convert them with .tolist()"""),
    "checkpoint, tuple": (lambda: state.save_checkpoint("never.safetensors", weight(), extra={"a": (1, 2)}), """
extra would come back changed
  given:    keys that are not texts, or tuples
  expected: what JSON gives back as it was: lists, and dicts with texts as keys
  fix:      write [..] for (..), and texts for keys"""),
    "convolution, stride": (lambda: nn.Conv2d(1, 1, 3, stride=0), """
stride does not fit the space axes
  given:    stride=0
  expected: an integer of 1 or more, or 2 of them
  fix:      write stride=1, for example"""),
    "convolution, groups": (lambda: nn.Conv2d(3, 4, 3, groups=2), """
the channels cannot be divided into these groups
  given:    in_channels=3, out_channels=4, groups=2
  expected: a number of groups that divides both
  fix:      write groups=1 for an ordinary convolution"""),
    "convolution, padding": (lambda: nn.Conv2d(1, 1, 3, padding="none"), """
there is no such padding
  given:    padding='none'
  expected: a number, "same" or "valid"
  fix:      check the spelling"""),
    "convolution, same": (lambda: nn.Conv2d(1, 1, 3, stride=2, padding="same"), """
padding="same" keeps the size only without strides
  given:    stride=(2, 2)
  expected: stride=1
  fix:      write the padding as a number"""),
    "transposed convolution": (lambda: nn.ConvTranspose2d(1, 1, 3, output_padding=2), """
output_padding is larger than what a stride leaves open
  given:    output_padding=2
  expected: less than the stride (1, 1) or the dilation (1, 1)
  fix:      write output_padding=stride - 1 at most"""),
    "embedding": (lambda: nn.Embedding(3, 2, padding_idx=5), """
padding_idx is outside the table
  given:    padding_idx=5
  expected: a number from -3 to 2
  fix:      choose another row"""),
    "long header": (lambda: long_header(), """
the header of a safetensors file cannot be so long
  given:    64 bytes
  expected: at most 10
  fix:      write less metadata, or several files"""),
    "group norm": (lambda: nn.GroupNorm(4, 6), """
the channels cannot be divided into these groups
  given:    num_groups=4, num_channels=6
  expected: a number of groups that divides the channels
  fix:      choose a divisor"""),
    "file of numbers": (lambda: state.safe_load(weight()), """
a file's content is a tensor of bytes
  given:    a tensor of float32
  expected: uint8
  fix:      give the path of the file"""),
    "no plain file": (lambda: state.safe_load("/dev/null"), """
/dev/null cannot be mapped into memory
  given:    not a plain file
  expected: a plain file
  fix:      copy its content into a file first"""),
    "betas": (lambda: optim.Adam([weight()], betas=(0.9, 1.0)), """
betas are two numbers from 0 up to, not including, 1
  given:    (0.9, 1.0)
  expected: such as (0.9, 0.999)
  fix:      check the order of the arguments"""),
    "a model to optimize": (lambda: optim.SGD(nn.Sequential(nn.Linear(2, 2)), lr=0.1), """
an optimizer takes tensors, not a model
  given:    a Sequential
  expected: its parameters, or dictionaries with params
  fix:      write SGD(model.parameters(), ...)"""),
    "nothing to optimize": (lambda: optim.SGD([], lr=0.1), """
an optimizer needs something to optimize
  given:    no trainable tensor
  expected: float tensors whose requires_grad is not False
  fix:      pass nn.state.get_parameters(model)"""),
    "unknown setting": (lambda: optim.SGD([{"params": [weight()], "speed": 1}], lr=0.1), """
SGD has no such setting
  given:    speed
  expected: one of maximize, lr, momentum, dampening, weight_decay, nesterov, classic
  fix:      check the spelling"""),
    "two devices": (lambda: optim.SGD([weight().to("CPU"), weight().to("PYTHON")], lr=0.1), """
the parameters of a group live on different devices
  given:    CPU and PYTHON
  expected: one device per group
  fix:      make one group per device: [{"params": ...}, ...]"""),
    "other parameters": (lambda: sgd().load_state_dict({"state": {}, "param_groups": [{"params": [0, 1]}]}), """
the saved state belongs to other parameters
  given:    groups of [2] parameters
  expected: groups of [1]
  fix:      make the optimizer with the same groups, in the same order"""),
    "no optimizers": (lambda: optim.OptimizerGroup(), """
OptimizerGroup needs optimizers
  given:    none
  expected: one or more
  fix:      write OptimizerGroup(SGD(matrices), Adam(rest))"""),
    "group without parameters": (lambda: optim.SGD([{"lr": 1.0}], lr=0.1), """
a group of parameters needs its parameters
  given:    a dictionary with lr
  expected: {"params": [...], "lr": ...}
  fix:      add "params\""""),
    "no tensor": (lambda: optim.SGD([3], lr=0.1), """
an optimizer takes tensors
  given:    3 of type int at 0
  expected: a list of tensors, or of dictionaries with params
  fix:      pass nn.state.get_parameters(model)"""),
    "negative rate": (lambda: sgd(lr=-1.0), """
lr cannot be negative
  given:    lr=-1.0
  expected: 0 or more
  fix:      to climb write maximize=True"""),
    "twice": (lambda: (lambda w: optim.SGD([{"params": [w]}, {"params": [w]}], lr=0.1))(weight()), """
a parameter is in two groups
  given:    the tensor of shape (2, 2) at 0
  expected: each parameter once
  fix:      leave it out of one of the groups"""),
    "infinite gradients": (lambda: infinite(), """
the gradients are not finite
  given:    a common length of inf
  expected: a finite length
  fix:      lower the learning rate, or look for a division by 0"""),
    "cosine": (lambda: lr_scheduler.CosineAnnealingWarmRestarts(sgd(), T_0=0), """
a cosine needs a length
  given:    T_0=0, T_mult=1
  expected: integers from 1
  fix:      write T_0=10, for example"""),
    "one cycle": (lambda: lr_scheduler.OneCycleLR(sgd(), 1.0), """
OneCycleLR cannot be laid out
  given:    total_steps=None, anneal_strategy='cos'
  expected: total_steps (or epochs and steps_per_epoch), and "cos" or "linear"
  fix:      write total_steps=epochs * len(batches)"""),
    "one cycle, rates": (lambda: lr_scheduler.OneCycleLR(sgd(momentum=0.9), [], total_steps=10), """
each group of parameters has a rate
  given:    0 rates
  expected: 1, or one number for all
  fix:      write as many as the optimizer has param_groups"""),
    "one cycle, momentum": (lambda: lr_scheduler.OneCycleLR(optim.Adagrad([weight()]), 1.0, total_steps=10), """
the optimizer has no momentum to cycle
  given:    Adagrad
  expected: an optimizer that has momentum or betas
  fix:      write cycle_momentum=False"""),
    "schedule, going on": (lambda: lr_scheduler.StepLR(sgd(), 3, last_epoch=4), """
a schedule that goes on needs the rate it once began with
  given:    last_epoch=4 and a group without initial_lr
  expected: "initial_lr" in every group of parameters
  fix:      load the optimizer's state first: optimizer.load_state_dict(saved)"""),
    "setting": (lambda: optim.Adam([weight()], eps=weight()), """
Adam cannot take this eps
  given:    eps=a Tensor of shape (2, 2) (Tensor)
  expected: a number
  fix:      see help(nn.optim.Adam)"""),
    "one array as parameters": (lambda: sgd_of(np.array(1)), """
SGD cannot take this params
  given:    params=array(1) (ndarray)
  expected: a list of Tensors or a Tensor
  fix:      see help(nn.optim.SGD)"""),
    "clip": (lambda: nn.utils.clip_grad_norm_([3], 1.0), """
clip_grad_norm_ cannot take this parameters
  given:    parameters=[3] (list)
  expected: a list of Tensors
  fix:      see help(Tensor.clip_grad_norm_)"""),
    "function": (lambda: F.conv1d(3, weight()), """
conv1d cannot take this input
  given:    input=3 (int)
  expected: a Tensor
  fix:      see help(nn.functional.conv1d)"""),
    "function, too little": (lambda: F.elu(alpha=2.0), """
elu cannot be called like this
  given:    missing a required argument: 'input'
  expected: elu(input, alpha=1.0, inplace=False)
  fix:      see help(nn.functional.elu)"""),
    "list of models": (lambda: nn.ModuleList(3), """
ModuleList cannot take this modules
  given:    modules=3 (int)
  expected: a list
  fix:      see help(nn.ModuleList)"""),
    "dictionary of models": (lambda: nn.ModuleDict([1]), """
ModuleDict cannot take this modules
  given:    modules=[1] (list)
  expected: a dict
  fix:      see help(nn.ModuleDict)"""),
    "deviation": (lambda: nn.init.normal_(weight(), std=-1.0), """
a deviation cannot be negative
  given:    std=-1.0
  expected: 0 or more
  fix:      check the setting"""),
    "windows of unfold": (lambda: F.unfold(Tensor.ones(1, 1, 4, 4), 2, padding=(2, 2, 2)), """
padding does not fit the space axes
  given:    padding=(2, 2, 2)
  expected: an integer of 0 or more, or 2 of them
  fix:      write padding=0, for example"""),
    "negative size of a layer": (lambda: nn.Bilinear(-1, 2, 3), """
uniform cannot have a negative size
  given:    (3, -1, 2)
  expected: sizes of 0 or more
  fix:      check how the sizes are computed"""),
    "rate": (lambda: sgd(lr=Tensor([1.0, 2.0])), """
a learning rate is one number
  given:    a tensor of shape (2,)
  expected: a tensor with 1 element
  fix:      use one group of parameters per learning rate"""),
    "autocast": (lambda: optim.autocast(dtype="int32"), """
autocast computes in a float type of 16 bits
  given:    dtype=int32
  expected: dtypes.float16 or dtypes.bfloat16
  fix:      write autocast(dtype=dtypes.bfloat16)"""),
    "scaler": (lambda: optim.GradScaler(growth_factor=0.5), """
GradScaler was given numbers it cannot work with
  given:    init_scale=65536.0, growth_factor=0.5, backoff_factor=0.5, growth_interval=2000
  expected: a scale above 0, growth above 1, backoff between 0 and 1, an interval from 1
  fix:      leave them at their defaults"""),
    "unscaled twice": (lambda: twice_unscaled(), """
these gradients were divided by the scale already
  given:    unscale_() twice
  expected: once between two updates
  fix:      call update() after step()"""),
    "nothing to unscale": (lambda: optim.GradScaler().unscale_(sgd()), """
there are no gradients to divide by the scale
  given:    parameters whose grad is None
  expected: at least one parameter with a gradient
  fix:      call scaler.scale(loss).backward() first"""),
    "no step": (lambda: optim.GradScaler().update(), """
there was no step to learn from
  given:    update() without step()
  expected: a step before it
  fix:      call scaler.step(optimizer) first"""),
    "Muon": (lambda: optim.Muon([Tensor([1.0])]), """
Muon optimizes matrices
  given:    a parameter of shape (1,)
  expected: 2 axes or more
  fix:      give biases to another optimizer: OptimizerGroup(Muon(matrices), AdamW(rest))"""),
    "Muon, scale": (lambda: optim.Muon([weight()], adjust_lr_fn="none"), """
there is no such scale
  given:    adjust_lr_fn='none'
  expected: None, "unscaled", "original" or "match_rms_adamw"
  fix:      check the spelling"""),
    "Rprop": (lambda: optim.Rprop([weight()], etas=(1.2, 0.5)), """
etas are what shrinks a step and what lengthens it
  given:    etas=(1.2, 0.5)
  expected: one number between 0 and 1, and one above 1
  fix:      write etas=(0.5, 1.2)"""),
    "Adafactor": (lambda: optim.Adafactor([weight()], d=0.5), """
Adafactor cannot work with these settings
  given:    eps=(None, 0.001), beta2_decay=-0.8, d=0.5
  expected: two eps from 0 (the first may be None), beta2_decay up to 0, d from 1
  fix:      leave them at their defaults"""),
    "LBFGS": (lambda: optim.LBFGS([weight()], line_search_fn="wolfe"), """
LBFGS takes one group, a history, and a line search that it knows
  given:    1 groups, history_size=100, line_search_fn='wolfe'
  expected: 1 group, history_size from 1, None or "strong_wolfe"
  fix:      pass all parameters as one list"""),
    "LBFGS, closure": (lambda: optim.LBFGS([weight()]).step(), """
LBFGS evaluates the loss several times a step
  given:    step()
  expected: a function that clears the gradients, calls backward and returns the loss
  fix:      write optimizer.step(closure)"""),
    "LBFGS, graph": (lambda: optim.LBFGS([weight()]).schedule_step(), """
LBFGS has no step that is one graph
  given:    schedule_step()
  expected: step(closure), which looks at values between its graphs
  fix:      write optimizer.step(closure), outside of a jit"""),
    "plateau": (lambda: lr_scheduler.ReduceLROnPlateau(sgd(), mode="least"), """
ReduceLROnPlateau was given settings it does not have
  given:    mode='least', threshold_mode='rel', factor=0.1
  expected: "min" or "max", "rel" or "abs", a factor below 1
  fix:      check the settings"""),
    "plateau, measure": (lambda: lr_scheduler.ReduceLROnPlateau(sgd()).step(), """
ReduceLROnPlateau watches a measure
  given:    step()
  expected: step(loss)
  fix:      pass the loss"""),
    "schedule": (lambda: lr_scheduler.StepLR(3, 10), """
a schedule needs an optimizer
  given:    3 of type int
  expected: an optimizer of nn.optim
  fix:      write StepLR(optimizer, ...)"""),
    "LambdaLR": (lambda: lr_scheduler.LambdaLR(sgd(), []), """
LambdaLR needs one function per group
  given:    0 functions for 1 groups
  expected: one function, or one per group
  fix:      check the list"""),
    "ConstantLR": (lambda: lr_scheduler.ConstantLR(sgd(), factor=2), """
ConstantLR needs a factor above 0 and up to 1
  given:    factor=2
  expected: such as 0.5
  fix:      for a larger rate give the optimizer a larger one"""),
    "LinearLR": (lambda: lr_scheduler.LinearLR(sgd(), start_factor=0), """
LinearLR needs factors from 0 to 1, and does not start at 0
  given:    start_factor=0, end_factor=1.0
  expected: such as 0.1 and 1.0
  fix:      start with a small number instead of 0: start_factor=1e-3"""),
    "SequentialLR": (lambda: lr_scheduler.SequentialLR(sgd(), [], [1]), """
these schedules cannot follow one another
  given:    0 schedules, milestones=[1]
  expected: schedules of this optimizer, and one milestone between each two
  fix:      write milestones=[warm_up_steps] for two schedules"""),
    "Nesterov": (lambda: sgd(nesterov=True), """
Nesterov's momentum needs a momentum and no dampening
  given:    momentum=0.0, dampening=0.0
  expected: momentum above 0, dampening=0
  fix:      write momentum=0.9, nesterov=True"""),
    "nonlinearity": (lambda: nn.RNN(2, 3, nonlinearity="sine"), """
a recurrent network has one of two nonlinearities
  given:    nonlinearity='sine'
  expected: "tanh" or "relu"
  fix:      write nonlinearity="tanh\""""),
    "recurrent cell": (lambda: nn.GRUCell(2, 0), """
a recurrent cell cannot have these sizes
  given:    input_size=2, hidden_size=0
  expected: at least 1 hidden value
  fix:      check the sizes"""),
    "a stack of layers": (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 10**10), """
a stack cannot have so many layers
  given:    num_layers=10000000000
  expected: from 0 to 10000
  fix:      check num_layers"""),
    "recurrent sizes": (lambda: nn.LSTM(2, 3, num_layers=0), """
a recurrent network cannot have these sizes
  given:    num_layers=0, hidden_size=3, proj_size=0
  expected: 1 to 10000 layers, and a projection smaller than hidden_size
  fix:      check the sizes"""),
    "Sequential": (lambda: nn.Sequential(3), """
Sequential needs layers to call
  given:    3 of type int
  expected: layers or functions
  fix:      check the list of layers"""),
    "ConvTranspose2d, padding": (lambda: nn.ConvTranspose2d(3, 4, 3, padding_mode="reflect"), """
a transposed convolution cannot be padded so
  given:    padding_mode='reflect'
  expected: "zeros"
  fix:      leave padding_mode out"""),
    "Embedding, table": (lambda: nn.Embedding.from_pretrained(Tensor([1.0, 2.0])), """
a table of embeddings has rows and columns
  given:    a tensor of shape (2,)
  expected: 2 axes
  fix:      reshape it first"""),
    "ZeroPad2d": (lambda: nn.ZeroPad2d((1, 2)), """
ZeroPad2d pads 2 axes
  given:    padding=(1, 2)
  expected: an integer, or 4 of them
  fix:      write one number for all sides"""),
    "Transformer, activation": (lambda: nn.TransformerEncoderLayer(8, 2, activation="sin"), """
a transformer has one of two activations by name
  given:    activation='sin'
  expected: "relu", "gelu", or a function
  fix:      pass the function: Tensor.silu"""),
    "Adam, pair": (lambda: optim.Adam([weight()], 0.1, (0.9, 0.99), 1e-3), """
betas came as a pair, and something more behind it
  given:    (0.9, 0.99), 0.001
  expected: the other settings by name
  fix:      write eps=0.001"""),
    "Adadelta": (lambda: optim.Adadelta([weight()], rho=1.5), """
rho is a share of what was there before
  given:    rho=1.5
  expected: a number from 0 to 1
  fix:      write rho=0.9, for example"""),
    "CyclicLR": (lambda: lr_scheduler.CyclicLR(sgd(), 0.1, 0.5, mode="round"), """
CyclicLR cannot be laid out
  given:    mode='round', scale_mode='cycle', step_size_up=2000
  expected: "triangular", "triangular2" or "exp_range"; "cycle" or "iterations"; 1 or more
  fix:      leave them at their defaults"""),
    "ChainedScheduler": (lambda: lr_scheduler.ChainedScheduler([]), """
these schedules cannot work together
  given:    0 schedules
  expected: one or more, all of one optimizer
  fix:      check what each was made with"""),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_the_whole_message(name: str) -> None:
    do, message = MESSAGES[name]
    with pytest.raises(GlassgradError) as error:
        do()
    text, _, where = str(error.value).partition("\n  at: ")
    assert text == message.removeprefix("\n") and "test_messages_nn.py" in where
