"""What layers and optimizers say when something does not fit: the layer, the parameter's path, and the fix."""

from __future__ import annotations

import copy
import importlib
import inspect
import os

import numpy as np
import pytest

from glassgrad import DTypeError, GradientError, InputError, ShapeError, Tensor, Variable, dtypes, nn
from glassgrad.base.source_lines import library_folders
from glassgrad.nn.modules.argument_checks import signature_of, wrong_argument
from glassgrad.nn.modules.layer_path_in_errors import path_of


def text(error) -> str:
    return str(error.value).rsplit("\n  at:", 1)[0]


def test_linear_names_itself_and_its_parameters():
    layer = nn.Linear(3, 4)
    with pytest.raises(ShapeError) as error:
        layer(Tensor.ones(2, 5))
    assert text(error) == """Linear(in_features=3, out_features=4) cannot take this input
  given:    an input of shape (2, 5)
            its parameters: layer.weight (4, 3), layer.bias (4,)
  expected: a last axis of 3 (in_features)
  fix:      flatten or transpose the input, or make the layer with in_features=5"""
    assert __file__ in str(error.value)                        # the user's line, not ours


class Block:
    def __init__(self, size):
        self.fc = nn.Linear(size, size)

    def __call__(self, x):
        return self.fc(x).relu()


class Model:
    def __init__(self):
        self.stem = nn.Linear(3, 8)
        self.blocks = [Block(8), Block(9)]

    def __call__(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return x


def test_the_path_leads_from_the_users_variable_to_the_parameter():
    model = Model()
    with pytest.raises(ShapeError) as error:
        model(Tensor.ones(2, 3))
    assert "Linear(in_features=9, out_features=9) cannot take this input" in text(error)
    assert "model.blocks.1.fc.weight (9, 9), model.blocks.1.fc.bias (9,)" in text(error)


def test_paths_through_lists_dictionaries_and_sequential():
    layers = {"first": [nn.Linear(3, 4), nn.Linear(5, 2)]}
    with pytest.raises(ShapeError, match=r"layers.first.1.weight \(2, 5\)"):
        Tensor.ones(1, 3).sequential(layers["first"])
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(5, 2))
    with pytest.raises(ShapeError, match=r"model.2.weight \(2, 5\)"):
        model(Tensor.ones(1, 3))
    assert path_of(model[2]) == "model.2"


def test_a_layer_nobody_has_a_name_for():
    with pytest.raises(ShapeError, match=r"its parameters: weight \(4, 3\), bias \(4,\)"):
        nn.Linear(3, 4)(Tensor.ones(5))


def test_a_path_does_not_begin_in_a_library(tmp_path, monkeypatch):
    """One that `pip install --target` put somewhere on the search path."""
    (tmp_path / "caller-1.0.dist-info").mkdir()
    (tmp_path / "caller.py").write_text("class Caller:\n  def __call__(self, x):\n    return self.held(x)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    library_folders.cache_clear()
    try:
        held = importlib.import_module("caller").Caller()
        held.held = nn.Linear(3, 4)
        with pytest.raises(ShapeError) as error:
            held(Tensor.ones(5))
        assert "held.held" not in str(error.value)
        assert str(tmp_path) + os.sep in library_folders()
    finally:
        library_folders.cache_clear()


def test_paths_do_not_follow_cycles():
    a = Model()
    a.myself = a
    a.more = {"again": a}
    with pytest.raises(ShapeError, match="a.blocks.1.fc.weight"):
        a(Tensor.ones(1, 3))


WRONG = [
    (lambda: nn.Conv2d(3, 4, 3), (2, 4, 5, 5), "Conv2d(in_channels=3, out_channels=4, kernel_size=(3, 3)",
     "(batch, 3, height, width), or without the batch"),
    (lambda: nn.Conv1d(3, 4, 3), (2, 3, 5, 5), "Conv1d(", "(batch, 3, length)"),
    (lambda: nn.Conv2d(3, 4, 7), (1, 3, 5, 5),
     "cannot take this input: the window of conv2d is larger than the padded input",
     "a window that fits"),
    (lambda: nn.ConvTranspose2d(3, 4, 3), (1, 2, 5, 5), "ConvTranspose2d(", "(batch, 3, height, width)"),
    (lambda: nn.BatchNorm2d(3), (2, 4, 5, 5), "BatchNorm2d(num_features=3", "the second of size 3 (num_features)"),
    (lambda: nn.LayerNorm(4), (2, 5), "LayerNorm(normalized_shape=(4,)", "last axes of (4,)"),
    (lambda: nn.LayerNorm2d(4), (2, 4, 5), "LayerNorm2d(", "(batch, 4, height, width)"),
    (lambda: nn.RMSNorm(4), (2, 5), "RMSNorm(", "last axes of (4,)"),
    (lambda: nn.GroupNorm(2, 4), (2, 6, 5), "GroupNorm(num_groups=2, num_channels=4", "(batch, 4, ...)"),
    (lambda: nn.InstanceNorm(4), (2, 4), "InstanceNorm(", "(batch, 4, ...space)"),
    (lambda: nn.LSTMCell(3, 4), (2, 5), "LSTMCell(input_size=3, hidden_size=4)", "(batch, 3) or (3,)"),
    (lambda: nn.LSTM(3, 4), (2, 5, 4), "LSTM(input_size=3", "(time, batch, 3)"),
    (lambda: nn.MultiheadAttention(8, 2), (2, 5, 4), "MultiheadAttention(embed_dim=8, num_heads=2",
     "sizes 8, 8 and 8"),
    (lambda: nn.MaxPool2d(2), (5,), "MaxPool2d(", "2 space axes"),
    (lambda: nn.Dropout2d(), (2, 3), "Dropout2d(p=0.5)", "(batch, channels, ...space)"),
    (lambda: nn.PReLU(3), (2, 4), "PReLU(num_parameters=3)", "(batch, 3, ...)"),
    (lambda: nn.Unflatten(1, (2, 3)), (2, 5), "Unflatten(dim=1", ""),
    (lambda: nn.ReflectionPad2d(1), (4, 4), "ReflectionPad2d(padding=(1, 1, 1, 1))", "2 space axes"),
    (lambda: nn.Softmax2d(), (4, 4), "Softmax2d()", "(batch, channels, height, width)"),
    (lambda: nn.Unfold(4), (1, 2, 3, 3), "Unfold(kernel_size=(4, 4)", "with room for a window"),
    (lambda: nn.TransformerEncoderLayer(8, 2, 16), (5, 2, 6), "MultiheadAttention(embed_dim=8, num_heads=2",
     "sizes 8, 8 and 8"),
]


@pytest.mark.parametrize("make,shape,named,expected", WRONG)
def test_every_layer_names_itself(make, shape, named, expected):
    layer = make()
    with pytest.raises(ShapeError) as error:
        layer(Tensor.ones(*shape))
    said = text(error)
    assert named in said and expected in said and "given:" in said and "cannot take this input" in said
    assert "fix:" in said and (str(shape) in said or str(shape[2:]) in said)


def test_states_and_masks_that_do_not_fit():
    for call in (lambda: nn.LSTMCell(3, 4)(Tensor.ones(2, 3), (Tensor.ones(2, 5), Tensor.ones(2, 4))),
                 lambda: nn.GRU(3, 4)(Tensor.ones(5, 2, 3), Tensor.ones(2, 2, 4)),
                 lambda: nn.MultiheadAttention(8, 2)(*[Tensor.ones(5, 2, 8)] * 3, attn_mask=Tensor.ones(4, 5)),
                 lambda: nn.MultiheadAttention(8, 2)(*[Tensor.ones(5, 2, 8)] * 3, key_padding_mask=Tensor.ones(3, 5)),
                 lambda: nn.ConvTranspose2d(2, 3, 3, stride=2)(Tensor.ones(1, 2, 4, 4), output_size=(20, 20)),
                 lambda: nn.Bilinear(2, 3, 4)(Tensor.ones(1, 3), Tensor.ones(1, 2))):
        with pytest.raises(ShapeError, match="cannot take this input"):
            call()


def test_a_mask_is_a_tensor_or_none():
    signature = signature_of(nn.TransformerEncoderLayer.forward)
    x, mask = Tensor.ones(5, 2, 8), Tensor.ones(5, 5)
    assert wrong_argument(signature, "layer", "nn", (x, mask, None), {}) is None
    assert wrong_argument(signature, "layer", "nn", (x, "causal"), {}).expected == "a Tensor or None"


def test_training_needs_more_than_one_value():
    with Tensor.train(), pytest.raises(ShapeError, match="more than 1 value per channel"):
        nn.BatchNorm(3)(Tensor.ones(1, 3))


def test_settings_that_make_no_sense():
    for make in (lambda: nn.Conv2d(3, 4, 3, groups=2), lambda: nn.Conv2d(3, 4, (3, 3), stride=(1, 2, 3)),
                 lambda: nn.Conv2d(3, 4, 3, padding="some"), lambda: nn.Conv2d(3, 4, 3, padding="same", stride=2),
                 lambda: nn.Conv2d(3, 4, 3, padding_mode="mirror"),
                 lambda: nn.ConvTranspose2d(3, 4, 3, output_padding=1),
                 lambda: nn.GroupNorm(3, 4), lambda: nn.MultiheadAttention(8, 3), lambda: nn.Dropout(1.5),
                 lambda: nn.Embedding(3, 4, padding_idx=3), lambda: nn.RNN(3, 4, nonlinearity="sin"),
                 lambda: nn.ConvTranspose2d(3, 4, 3, padding_mode="reflect"), lambda: nn.ZeroPad2d((1, 2)),
                 lambda: nn.ConstantPad1d(1.5, 0.0), lambda: nn.TransformerEncoderLayer(8, 2, activation="sin"),
                 lambda: nn.LSTM(3, 4, proj_size=4), lambda: nn.Sequential(nn.Linear(2, 2), 3)):
        with pytest.raises(InputError, match="given:"):
            make()
    with pytest.raises(DTypeError, match="looks up integers"):
        nn.Embedding(3, 4)(Tensor([1.0]))


# -- optimizers ----------------------------------------------------------------------------------------------------
def test_a_step_without_gradients():
    optimizer = nn.optim.SGD([Tensor([1.0])])
    with pytest.raises(GradientError) as error:
        optimizer.step()
    assert text(error) == """there are no gradients to step along
  given:    parameters whose grad is None
  expected: at least one parameter with a gradient
  fix:      call loss.backward() first"""


def test_optimizers_refuse_what_makes_no_sense():
    x, y = Tensor([1.0]), Tensor([1.0])
    for make in (lambda: nn.optim.SGD([]), lambda: nn.optim.SGD([1.0]), lambda: nn.optim.SGD([x], lr=-1.0),
                 lambda: nn.optim.SGD([x], nesterov=True), lambda: nn.optim.SGD([{"params": [x], "speed": 1}]),
                 lambda: nn.optim.SGD([{"params": [x]}, {"params": [x]}]), lambda: nn.optim.SGD([{"lr": 1.0}]),
                 lambda: nn.optim.Adam([x], betas=(0.9, 1.0)),
                 lambda: nn.optim.Adam([{"params": [x], "betas": [2.0, 0.9]}]),
                 lambda: nn.optim.Adam([x], weight_decay=-1.0),
                 lambda: nn.optim.Muon([x]), lambda: nn.optim.Muon([Tensor.ones(2, 2)], adjust_lr_fn="much"),
                 lambda: nn.optim.SGD([x], lr=Tensor([1.0, 2.0])), lambda: nn.optim.OptimizerGroup(),
                 lambda: nn.optim.SGD([Tensor([1, 2])]), lambda: nn.optim.GradScaler(growth_factor=0.5),
                 lambda: nn.optim.autocast(dtype=dtypes.float64),
                 lambda: nn.optim.SGD([x]).load_state_dict(nn.optim.SGD([x, y]).state_dict())):
        with pytest.raises(InputError, match="expected:"):
            make()


@pytest.mark.parametrize("make, said", [
    (lambda: nn.BatchNorm(sz=3), """BatchNorm cannot be called like this
  given:    missing a required argument: 'num_features'
  expected: BatchNorm(num_features, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True, bias=True)
  fix:      write num_features= for sz="""),
    (lambda: nn.Embedding(vocab_size=5, embed_size=2), """Embedding cannot be called like this
  given:    missing a required argument: 'num_embeddings'
  expected: Embedding(num_embeddings, embedding_dim, padding_idx=None, max_norm=None, norm_type=2.0, \
scale_grad_by_freq=False, sparse=False)
  fix:      write num_embeddings= for vocab_size= and embedding_dim= for embed_size="""),
    (lambda: nn.Linear(), """Linear cannot be called like this
  given:    missing a required argument: 'in_features'
  expected: Linear(in_features, out_features, bias=True)
  fix:      see help(nn.Linear)"""),
])
def test_a_keyword_of_tinygrad_or_none_at_all_is_told_the_right_one(make, said):
    with pytest.raises(InputError) as error:
        make()
    assert text(error).startswith(said)


def test_the_adapter_of_tinygrad_takes_its_keywords():
    from glassgrad.compat.tinygrad import nn as tinygrad_nn
    assert tinygrad_nn.BatchNorm(sz=3).weight.shape == (3,)
    assert tinygrad_nn.BatchNorm2d(sz=3, eps=1e-3).eps == 1e-3
    assert tinygrad_nn.Embedding(vocab_size=5, embed_size=2).weight.shape == (5, 2)
    assert tinygrad_nn.Embedding(num_embeddings=5, embedding_dim=2).weight.shape == (5, 2)


def test_constructors_are_what_they_show():
    assert "__wrapped__" not in vars(nn.Linear.__init__)
    assert str(inspect.signature(nn.Linear)) == "(in_features: 'int', out_features: 'int', bias: 'bool' = True)"
    assert list(inspect.signature(nn.ELU).parameters) == ["alpha", "inplace"]
    assert list(inspect.signature(nn.CrossEntropyLoss).parameters) == ["weight", "ignore_index", "reduction",
                                                                       "label_smoothing"]
    layer = nn.Linear(2, 3, device="CPU", dtype=dtypes.float16)
    assert layer.weight.dtype is dtypes.float16 and copy.deepcopy(layer).bias.dtype is dtypes.float16


def test_sizes_may_be_integers_of_numpy():
    x, two = Tensor([[1.0, 3.0], [5.0, 2.0]]), np.int64(2)
    assert nn.LayerNorm(two).normalized_shape == nn.RMSNorm(two).normalized_shape == (2,)
    assert nn.LayerNorm(two)(x).tolist() == nn.LayerNorm(2)(x).tolist()
    assert nn.Conv1d(two, 3, np.int32(1), padding=np.int64(1))(x).shape == (3, 4)
    assert type(nn.Linear(two, 3).in_features) is int and nn.Bilinear(0, 2, 3).weight.shape == (3, 0, 2)
    assert nn.Conv1d(2, 3, 1, padding=Variable("n", 1, 4).bind(2))(x).shape == (3, 6)


def test_normalization_of_integers_gives_floats():
    """They were rounded to integers again."""
    x = Tensor([[1, 2], [3, 7]])
    with Tensor.train():
        assert nn.BatchNorm1d(2)(x).tolist() == nn.BatchNorm1d(2)(x.float()).tolist()
    assert nn.BatchNorm1d(2)(x).dtype is dtypes.float32


def test_a_truncated_normal_distribution_without_deviation_is_its_mean():
    assert nn.init.trunc_normal_(Tensor.zeros(2), 3.0, 0.0, -2.0, 2.0).tolist() == [2.0, 2.0]


def test_layers_take_a_variable_as_the_size_of_their_parameters() -> None:
    """LayerNorm, RMSNorm and the kernel of a convolution ended in Python's own TypeError."""
    n = Variable("n", 1, 8).bind(4)
    x = Tensor.arange(16).reshape(2, 8).float()[:, :n]
    for norm in (nn.LayerNorm(n), nn.LayerNorm((n,)), nn.RMSNorm(n)):
        assert norm(x).shape == (2, n) and norm.weight.shape == (n,)
    assert nn.Conv2d(1, 2, n)(Tensor.ones(1, 1, 5, 5)).shape == (1, 2, 2, 2)
