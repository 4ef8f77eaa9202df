"""Every layer against PyTorch's: names, outputs, gradients; odd shapes and inputs that are views."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch, the reference of layers, is not installed")

from nn_reference import close, compare, copy_weights, to_torch  # noqa: E402

from glassgrad import Tensor, nn  # noqa: E402
from glassgrad.nn.state import get_state_dict  # noqa: E402

T = torch.nn


def numbers(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


# -- linear --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(3,), (1, 3), (5, 3), (2, 7, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_takes_any_number_of_axes(rng, shape, bias):
    compare(nn.Linear(3, 4, bias=bias), T.Linear(3, 4, bias=bias), numbers(rng, *shape))


def test_linear_takes_views(rng):
    compare(nn.Linear(5, 2), T.Linear(5, 2), numbers(rng, 5, 3), view=lambda x: x.T)


def test_bilinear_is_pytorchs(rng):
    compare(nn.Bilinear(3, 5, 4), T.Bilinear(3, 5, 4), numbers(rng, 7, 3), numbers(rng, 7, 5))


# -- convolutions --------------------------------------------------------------------------------------------------
CONVOLUTIONS = [
    ("Conv1d", (3, 4, 3), dict(), (2, 3, 11)),
    ("Conv1d", (3, 4, 3), dict(padding=2, stride=2, dilation=2), (2, 3, 13)),
    ("Conv1d", (4, 6, 3), dict(groups=2, padding="same", bias=False), (4, 11)),
    ("Conv2d", (3, 5, 3), dict(), (2, 3, 7, 6)),
    ("Conv2d", (4, 6, (3, 2)), dict(stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2), (1, 4, 9, 7)),
    ("Conv2d", (3, 3, 5), dict(groups=3, padding="same"), (2, 3, 7, 5)),
    ("Conv2d", (3, 4, 3), dict(padding=1, padding_mode="reflect"), (2, 3, 5, 6)),
    ("Conv2d", (3, 4, 3), dict(padding=(2, 1), padding_mode="circular"), (2, 3, 5, 6)),
    ("Conv2d", (3, 4, 3), dict(padding=1, padding_mode="replicate"), (2, 3, 5, 6)),
    ("Conv3d", (2, 3, (1, 2, 3)), dict(padding=1), (2, 2, 3, 4, 5)),
    ("ConvTranspose1d", (3, 4, 3), dict(stride=2, padding=1, output_padding=1), (2, 3, 5)),
    ("ConvTranspose1d", (4, 6, 1), dict(padding=0, groups=2), (4, 5)),
    ("ConvTranspose2d", (3, 4, 3), dict(stride=2, padding=1), (2, 3, 4, 5)),
    ("ConvTranspose2d", (4, 6, (2, 3)), dict(stride=(1, 3), dilation=2, groups=2, output_padding=(1, 2), bias=False),
     (1, 4, 3, 4)),
    ("ConvTranspose2d", (2, 3, 2), dict(padding=2), (1, 2, 5, 6)),
    ("ConvTranspose3d", (2, 3, 2), dict(stride=2), (1, 2, 2, 3, 2)),
]


@pytest.mark.parametrize("name,sizes,options,shape", CONVOLUTIONS)
def test_convolutions_with_options_are_pytorchs(rng, name, sizes, options, shape):
    compare(getattr(nn, name)(*sizes, **options), getattr(T, name)(*sizes, **options), numbers(rng, *shape),
            atol=2e-5)


def test_convolution_takes_views(rng):
    compare(nn.Conv2d(3, 4, 3), T.Conv2d(3, 4, 3), numbers(rng, 2, 6, 7, 3), view=lambda x: x.permute(0, 3, 1, 2),
            atol=1e-5)


def test_the_rank_of_conv2d_follows_its_kernel(rng):
    ours = nn.Conv2d(3, 4, (3,))
    compare(ours, T.Conv1d(3, 4, 3), numbers(rng, 2, 3, 7), atol=1e-5)


def test_transposed_convolution_to_a_wanted_size(rng):
    ours, theirs = nn.ConvTranspose2d(2, 3, 3, stride=2), T.ConvTranspose2d(2, 3, 3, stride=2)
    copy_weights(theirs, ours)
    x = numbers(rng, 1, 2, 4, 5)
    close(ours(Tensor(x), output_size=(10, 11)), theirs(torch.tensor(x), output_size=(10, 11)), "output", atol=1e-5)


def test_tinygrads_order_of_arguments():
    layer = nn.ConvTranspose2d(4, 6, 3, 1, 0, 0, 2, 2)             # dilation, groups
    assert (layer.dilation, layer.groups, layer.weight.shape) == ((2, 2), 2, (4, 3, 3, 3))
    norm = nn.BatchNorm(4, 1e-3, False, True, 0.2)                 # affine, track_running_stats, momentum
    assert norm.weight is None and norm.momentum == 0.2 and norm.running_mean is not None


# -- pools ---------------------------------------------------------------------------------------------------------
POOLS = [
    ("MaxPool1d", (3,), dict(stride=2, padding=1), (2, 3, 11)),
    ("MaxPool2d", (2,), dict(), (2, 3, 7, 6)),
    ("MaxPool2d", ((3, 2),), dict(stride=(2, 1), padding=(1, 0), ceil_mode=True), (2, 3, 8, 5)),
    ("MaxPool3d", (2,), dict(), (1, 2, 4, 5, 6)),
    ("AvgPool1d", (3,), dict(stride=2), (2, 3, 11)),
    ("AvgPool2d", (3,), dict(stride=2, padding=1), (2, 3, 7, 6)),
    ("AvgPool2d", (3,), dict(stride=2, padding=1, count_include_pad=False, ceil_mode=True), (2, 3, 8, 6)),
    ("AvgPool2d", (3,), dict(stride=2, padding=1, ceil_mode=True, divisor_override=2), (2, 3, 8, 6)),
    ("AvgPool3d", (2,), dict(), (1, 2, 4, 5, 6)),
    ("AvgPool3d", (2, 2, 1), dict(divisor_override=3), (1, 2, 4, 5, 6)),
    ("LPPool1d", (2, 3), dict(stride=2), (2, 3, 11)),
    ("LPPool2d", (1.0, (2, 3)), dict(ceil_mode=True), (2, 3, 7, 7)),
    ("LPPool3d", (2, 2), dict(), (1, 2, 4, 5, 6)),
    ("Upsample", (), dict(scale_factor=1.7, mode="bilinear", recompute_scale_factor=True), (1, 2, 5, 6)),
    ("AdaptiveAvgPool1d", (3,), dict(), (2, 3, 11)),
    ("AdaptiveAvgPool2d", (1,), dict(), (2, 3, 7, 6)),
    ("AdaptiveAvgPool2d", ((3, 4),), dict(), (2, 3, 7, 6)),
    ("AdaptiveAvgPool2d", ((None, 3),), dict(), (2, 3, 7, 6)),
    ("AdaptiveAvgPool3d", (2,), dict(), (1, 2, 5, 4, 3)),
    ("AdaptiveMaxPool1d", (3,), dict(), (2, 3, 11)),
    ("AdaptiveMaxPool2d", ((3, 4),), dict(), (2, 3, 7, 6)),
    ("Upsample", ((9, 4),), dict(mode="nearest"), (2, 3, 5, 6)),
    ("Upsample", (), dict(scale_factor=2, mode="bilinear"), (1, 2, 3, 4)),
    ("Upsample", (), dict(scale_factor=1.5, mode="trilinear"), (1, 2, 3, 3, 4)),
    ("Upsample", (), dict(scale_factor=(0.7, 2.3), mode="bilinear", align_corners=True), (1, 2, 5, 4)),
    ("Upsample", (), dict(scale_factor=(1.7, 0.6), mode="nearest"), (1, 2, 5, 6)),
    ("Upsample", (), dict(scale_factor=1.3, mode="nearest-exact"), (1, 2, 7)),
    ("UpsamplingNearest2d", (), dict(size=(3, 8)), (1, 2, 5, 6)),
    ("UpsamplingBilinear2d", (), dict(scale_factor=1.5), (1, 2, 5, 6)),
    ("LocalResponseNorm", (3,), dict(alpha=0.5, k=2.0), (2, 5, 3, 4)),
    ("PixelShuffle", (2,), {}, (2, 8, 3, 2)), ("PixelUnshuffle", (2,), {}, (2, 4, 6)),
    ("ChannelShuffle", (3,), {}, (2, 6, 2, 2)),
    ("Unfold", (2,), {}, (2, 3, 4, 5)), ("Unfold", ((2, 3),), dict(dilation=2, padding=(1, 2), stride=2), (3, 6, 7)),
    ("Fold", ((4, 5), (2, 3)), dict(padding=1, stride=(1, 2)), (2, 12, 15)),
    *[(f"{kind}Pad{rank}d", (sides[:2 * rank],), {}, (2, 3, 4, 5, 4)[:rank + batch])
      for kind in ("Zero", "Reflection", "Replication", "Circular") for rank, batch in ((1, 2), (2, 1), (3, 2))
      for sides in [(1, 2, 0, 1, 2, 1)]],
    ("ConstantPad1d", (2, 1.5), {}, (2, 3)), ("ConstantPad2d", ((1, -1, 0, 2), 1.5), {}, (2, 3, 4)),
    ("ConstantPad3d", (1, -2.0), {}, (2, 2, 2, 2)), ("ZeroPad2d", (1,), {}, (3, 4)),
]


@pytest.mark.parametrize("name,sizes,options,shape", POOLS)
def test_pools_with_options_are_pytorchs(rng, name, sizes, options, shape):
    compare(getattr(nn, name)(*sizes, **options), getattr(T, name)(*sizes, **options), numbers(rng, *shape))


@pytest.mark.parametrize("rank,shape", [(1, (2, 3, 7)), (2, (3, 6, 7)), (3, (1, 2, 4, 5, 4))])
def test_pools_with_places_and_back(rng, rank, shape):
    x = numbers(rng, *shape)
    ours, theirs = Tensor(x), to_torch(x, requires_grad=True)
    out, places = getattr(nn, f"MaxPool{rank}d")(2, 2, 0, 1, True)(ours)
    expected, their_places = getattr(T, f"MaxPool{rank}d")(2, 2, 0, 1, True)(theirs)
    np.testing.assert_array_equal(places.numpy(), their_places.numpy())
    a = getattr(nn, f"MaxUnpool{rank}d")(2)(out, places, output_size=shape[-rank:])
    b = getattr(T, f"MaxUnpool{rank}d")(2)(expected, their_places, output_size=shape[-rank:])
    close(a, b, "back")
    (a * a).sum().backward()
    (b * b).sum().backward()
    close(ours.grad, theirs.grad, "gradient")


# -- embedding, activations, losses --------------------------------------------------------------------------------
def test_an_embedding_takes_indices_of_any_shape(rng):
    for shape in [(), (4,), (2, 3), (0,)]:
        index = rng.integers(0, 7, shape)
        compare(nn.Embedding(7, 3), T.Embedding(7, 3), index)


def test_embedding_repeats_and_padding(rng):
    ours, theirs = nn.Embedding(5, 3, padding_idx=-4), T.Embedding(5, 3, padding_idx=-4)
    assert ours.padding_idx == 1 and not ours.weight[1].numpy().any() and ours.weight[0].numpy().all()
    compare(ours, theirs, np.array([[1, 2, 2], [0, 1, 2]]))
    assert not ours.weight.grad.numpy()[1].any()


@pytest.mark.parametrize("settings", [dict(max_norm=1.0), dict(max_norm=0.5, norm_type=1.0),
                                      dict(max_norm=0.5, norm_type=float("inf")), dict(scale_grad_by_freq=True),
                                      dict(max_norm=1.0, scale_grad_by_freq=True, padding_idx=2)], ids=str)
def test_embedding_bounds_its_rows_and_shares_out_gradients(rng, settings):
    table = numbers(rng, 7, 3)
    ours, theirs = nn.Embedding.from_pretrained(Tensor(table), freeze=False, **settings), \
        T.Embedding.from_pretrained(torch.tensor(table), freeze=False, **settings)
    optimizer, reference = nn.optim.SGD([ours.weight], lr=0.5), torch.optim.SGD([theirs.weight], lr=0.5)
    for _ in range(3):
        indices = rng.integers(0, 7, (2, 3)), rng.integers(0, 7, 4)      # the table is asked twice before its gradient
        optimizer.zero_grad(), reference.zero_grad()
        sum((ours(Tensor(i)) ** 3).sum() for i in indices).backward()
        sum((theirs(torch.tensor(i)) ** 3).sum() for i in indices).backward()
        close(ours.weight.grad, theirs.weight.grad, "gradient")
        optimizer.step(), reference.step()
        close(ours.weight, theirs.weight, "table")


def test_embedding_of_a_table_that_is_there(rng):
    table = numbers(rng, 5, 3)
    for freeze in (True, False):
        ours = nn.Embedding.from_pretrained(Tensor(table), freeze=freeze, padding_idx=1)
        theirs = T.Embedding.from_pretrained(torch.tensor(table), freeze=freeze, padding_idx=1)
        close(ours(Tensor([1, 2])), theirs(torch.tensor([1, 2])), "rows")
        assert ours.weight.requires_grad is not freeze and ours.padding_idx == 1


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings(rng, mode):
    ours, theirs = (n.EmbeddingBag(7, 3, mode=mode, padding_idx=2) for n in (nn, T))
    compare(ours, theirs, np.array([[1, 2, 2], [0, 1, 2]]))
    compare(ours, theirs, np.array([1, 2, 2, 0, 1]), np.array([0, 3]))
    table = numbers(rng, 5, 3)
    ours, theirs = nn.EmbeddingBag.from_pretrained(Tensor(table), mode=mode), \
        T.EmbeddingBag.from_pretrained(torch.tensor(table), mode=mode)
    close(ours(Tensor([[1, 2]])), theirs(torch.tensor([[1, 2]])), "rows")


def test_a_slope_that_is_drawn_in_training(rng):
    x = numbers(rng, 50, 40)
    close(nn.RReLU(0.2, 0.6).eval()(Tensor(x)), T.RReLU(0.2, 0.6).eval()(torch.tensor(x)), "not training")
    y = nn.RReLU(0.2, 0.6).train()(Tensor(x)).numpy()
    slopes = (y / x)[x < 0]
    assert (y[x >= 0] == x[x >= 0]).all() and 0.2 <= slopes.min() < 0.22 < 0.58 < slopes.max() <= 0.6
    assert abs(slopes.mean() - 0.4) < 0.02


ACTIVATIONS = [
    ("ReLU", {}), ("ReLU6", {}), ("LeakyReLU", dict(negative_slope=0.2)), ("PReLU", {}),
    ("PReLU", dict(num_parameters=3)),
    ("ELU", dict(alpha=1.3)), ("CELU", dict(alpha=0.7)), ("SELU", {}), ("GELU", {}),
    ("GELU", dict(approximate="tanh")),
    ("SiLU", {}), ("Mish", {}), ("Sigmoid", {}), ("Tanh", {}), ("Softplus", dict(beta=2.0)), ("Softsign", {}),
    ("LogSigmoid", {}),
    ("Softplus", dict(beta=3.0, threshold=2.0)), ("Hardshrink", dict(lambd=0.7)), ("Softshrink", {}),
    ("Tanhshrink", {}), ("Threshold", dict(threshold=0.5, value=-2.0)), ("GLU", dict(dim=0)), ("Softmin", dict(dim=1)),
    ("Softmax2d", {}), ("AlphaDropout", dict(p=0.0)), ("FeatureAlphaDropout", dict(p=0.0)),
    ("Hardtanh", {}), ("Hardsigmoid", {}), ("Hardswish", {}), ("Softmax", dict(dim=1)), ("LogSoftmax", dict(dim=-1)),
    ("Softmax", {}), ("LogSoftmax", {}), ("Softmin", {}),
    ("Flatten", {}), ("Unflatten", dict(dim=1, unflattened_size=(3, 1))), ("Identity", {}),
]


@pytest.mark.parametrize("name,options", ACTIVATIONS)
def test_activation_layers_are_pytorchs(rng, name, options):
    compare(getattr(nn, name)(**options), getattr(T, name)(**options), 3 * numbers(rng, 2, 3, 5))


LOSSES = [
    ("MSELoss", {}, False), ("MSELoss", dict(reduction="sum"), False), ("L1Loss", {}, False),
    ("HuberLoss", dict(delta=0.5), False), ("SmoothL1Loss", dict(beta=0.3), False), ("KLDivLoss", {}, False),
    ("BCEWithLogitsLoss", {}, False), ("CrossEntropyLoss", {}, True),
    ("CrossEntropyLoss", dict(label_smoothing=0.1), True),
    ("CrossEntropyLoss", dict(ignore_index=2, reduction="none"), True), ("NLLLoss", {}, True),
    ("MultiMarginLoss", dict(p=2, margin=0.7), True), ("MultiMarginLoss", dict(reduction="none"), True),
]


@pytest.mark.parametrize("name,options,classes", LOSSES)
def test_loss_layers_and_their_gradients_are_pytorchs(rng, name, options, classes):
    x = numbers(rng, 6, 4)
    target = rng.integers(0, 4, 6) if classes else rng.random((6, 4)).astype(np.float32)
    ours, theirs = Tensor(x), to_torch(x, requires_grad=True)
    a = getattr(nn, name)(**options)(ours, Tensor(target))
    b = getattr(T, name)(**options)(theirs, torch.tensor(target))
    close(a, b, "loss")
    a.sum().backward()
    b.sum().backward()
    close(ours.grad, theirs.grad, "gradient")


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_binary_cross_entropy(rng, reduction):
    p, y = rng.random((4, 3)).astype(np.float32), rng.integers(0, 2, (4, 3)).astype(np.float32)
    weight, positive = rng.random((4, 1)).astype(np.float32), rng.random(3).astype(np.float32)
    for name, options in (("BCELoss", {}), ("BCELoss", dict(weight=weight)), ("BCEWithLogitsLoss", dict(weight=weight)),
                          ("BCEWithLogitsLoss", dict(weight=weight, pos_weight=positive))):
        ours = getattr(nn, name)(reduction=reduction, **{k: Tensor(v) for k, v in options.items()})
        theirs = getattr(T, name)(reduction=reduction, **{k: torch.tensor(v) for k, v in options.items()})
        close(ours(Tensor(p), Tensor(y)), theirs(torch.tensor(p), torch.tensor(y)), f"{name} {sorted(options)}")


SIGNS = np.array([1, -1, -1, 1])
DISTANCES = [
    ("CosineSimilarity", dict(dim=0), 2, ()), ("PairwiseDistance", dict(p=1.0, keepdim=True), 2, ()),
    ("CosineEmbeddingLoss", dict(margin=0.1), 2, (SIGNS,)), ("TripletMarginLoss", dict(swap=True), 3, ()),
    ("MarginRankingLoss", dict(margin=0.5, reduction="sum"), 2, (SIGNS[:, None],)),
    ("HingeEmbeddingLoss", dict(margin=2.0), 1, (SIGNS[:, None],)),
    ("SoftMarginLoss", dict(reduction="none"), 1, (SIGNS[:, None],)),
    ("MultiLabelSoftMarginLoss", {}, 1, (np.eye(4, 5, dtype=np.float32),)),
    ("MultiLabelMarginLoss", {}, 1, (np.array([[0, 3, -1, 2, 1]] * 4),)),
    ("TripletMarginWithDistanceLoss", dict(margin=0.5, swap=True), 3, ()),
    ("TripletMarginWithDistanceLoss", dict(distance_function=lambda a, b: (a - b).abs().sum(-1)), 3, ()),
    ("PoissonNLLLoss", dict(full=True, log_input=False), 1, (np.eye(4, 5, dtype=np.float32) * 3,)),
    ("PoissonNLLLoss", {}, 1, (np.eye(4, 5, dtype=np.float32),)),
    ("GaussianNLLLoss", dict(full=True), 2, (np.full((4, 5), 0.3, np.float32),)),
]


@pytest.mark.parametrize("name,options,inputs,others", DISTANCES)
def test_losses_of_distances_are_pytorchs(rng, name, options, inputs, others):
    arrays = [numbers(rng, 4, 5) for _ in range(inputs)]
    if name == "HingeEmbeddingLoss":
        others = (np.broadcast_to(others[0], (4, 5)).copy(),)
    ours, theirs = [Tensor(a) for a in arrays], [to_torch(a, requires_grad=True) for a in arrays]
    a = getattr(nn, name)(**options)(*ours, *[Tensor(o) for o in others])
    b = getattr(T, name)(**options)(*theirs, *[torch.tensor(o) for o in others])
    close(a, b, "value")
    a.sum().backward()
    b.sum().backward()
    for x, y in zip(ours, theirs):
        close(x.grad, y.grad, "gradient", atol=1e-5)


# -- dropout -------------------------------------------------------------------------------------------------------
def test_dropout_only_in_training():
    x = Tensor.ones(1000)
    assert nn.Dropout(0.4)(x) is x
    with Tensor.train():
        y = nn.Dropout(0.4)(x).numpy()
        z = nn.Dropout(0.4)(x).numpy()
    assert set(np.unique(y)) == {0.0, np.float32(1 / 0.6)}
    assert 0.5 < (y > 0).mean() < 0.7 and (y != z).any()


def test_alpha_dropout_keeps_mean_and_variance():
    with Tensor.train():
        channels = nn.FeatureAlphaDropout(0.5)(Tensor.ones(50, 20, 4)).numpy()
        assert (channels == channels[..., :1]).all() and 0.4 < (channels[..., 0] > 0).mean() < 0.6
        y = nn.AlphaDropout(0.3)(Tensor.randn(20_000)).numpy()
        assert not nn.AlphaDropout(1.0)(Tensor.ones(3)).numpy().any()
    dropped = np.unique(y, return_counts=True)[1].max() / y.size                    # all of these have one value
    assert abs(y.mean()) < 0.05 and abs(y.std() - 1) < 0.05 and 0.28 < dropped < 0.32


def test_dropout_of_channels():
    with Tensor.train():
        y = nn.Dropout2d(0.5)(Tensor.ones(40, 10, 3, 2)).numpy().reshape(40, 10, 6)
        assert nn.Dropout1d(1.0)(Tensor.ones(2, 3, 4)).numpy().sum() == 0
    assert (y.min(-1) == y.max(-1)).all() and 0.3 < (y[..., 0] > 0).mean() < 0.7


# -- sequences of layers -------------------------------------------------------------------------------------------
def test_sequential_has_pytorchs_names(rng):
    ours = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    compare(ours, T.Sequential(T.Linear(3, 4), T.ReLU(), T.Linear(4, 2)), numbers(rng, 5, 3))
    assert list(get_state_dict(ours)) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    named = nn.Sequential({"a": nn.Linear(3, 4), "b": Tensor.relu})
    assert list(nn.state.get_state_dict(named[:1])) == ["a.weight", "a.bias"]      # a part keeps its names
    assert list(nn.state.get_state_dict(ours[1:])) == ["2.weight", "2.bias"]
    assert list(get_state_dict(named)) == ["a.weight", "a.bias"] and named(Tensor.ones(1, 3)).shape == (1, 4)
    assert len(ours[1:]) == 2 and ours[-1].out_features == 2


def test_pytorchs_names_for_lists_and_dictionaries(rng):
    ours = nn.ModuleDict({"a": nn.ModuleList([nn.Linear(3, 4), nn.Linear(4, 2)])})
    theirs = T.ModuleDict({"a": T.ModuleList([T.Linear(3, 4), T.Linear(4, 2)])})
    copy_weights(theirs, ours)
    ours["a"].append(nn.Linear(2, 2))
    assert len(ours["a"]) == 3 and list(get_state_dict(ours))[-1] == "a.2.bias"


def test_a_plain_list_is_a_model(rng):
    layers = [nn.Linear(3, 4), Tensor.relu, nn.Linear(4, 2)]
    assert Tensor(numbers(rng, 5, 3)).sequential(layers).shape == (5, 2)
    assert list(get_state_dict(layers)) == ["0.weight", "0.bias", "2.weight", "2.bias"]


# -- where weights start -------------------------------------------------------------------------------------------
STARTS = [
    (lambda n: n.Linear(50, 400), "weight", 1 / math.sqrt(50)),
    (lambda n: n.Linear(50, 4000), "bias", 1 / math.sqrt(50)),
    (lambda n: n.Conv2d(8, 100, 3, groups=2), "weight", 1 / math.sqrt(36)),
    (lambda n: n.ConvTranspose2d(100, 8, 3), "weight", 1 / math.sqrt(72)),
    (lambda n: n.LSTM(20, 64), "weight_hh_l0", 1 / 8),
    (lambda n: n.GRUCell(20, 64), "weight_ih", 1 / 8),
    (lambda n: n.MultiheadAttention(64, 4), "in_proj_weight", math.sqrt(6 / 256)),
    (lambda n: n.MultiheadAttention(64, 4), "out_proj.weight", 1 / 8),
]


@pytest.mark.parametrize("make,name,bound", STARTS)
def test_uniform_starts_are_pytorchs(make, name, bound):
    ours = get_state_dict(make(nn))[name].numpy()
    theirs = dict(make(T).named_parameters())[name].detach().numpy()
    for values in (ours, theirs):                      # the bound given here is PyTorch's too
        assert 0.97 * bound < np.abs(values).max() <= bound and abs(values.std() / bound - 1 / math.sqrt(3)) < 0.03


def test_other_starts_are_pytorchs():
    weight = nn.Embedding(300, 50).weight.numpy()
    assert abs(weight.mean()) < 0.05 and abs(weight.std() - 1) < 0.05
    attention = nn.MultiheadAttention(64, 4, add_bias_kv=True)
    assert not attention.in_proj_bias.numpy().any() and not attention.out_proj.bias.numpy().any()
    assert abs(attention.bias_k.numpy().std() - 1 / 8) < 0.04
    for layer in (nn.BatchNorm(3), nn.LayerNorm(3), nn.GroupNorm(1, 3), nn.InstanceNorm(3)):
        assert layer.weight.tolist() == [1, 1, 1] and layer.bias.tolist() == [0, 0, 0]
