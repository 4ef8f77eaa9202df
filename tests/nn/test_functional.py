"""glassgrad.nn.functional against torch.nn.functional: the same call, the same values, the same gradients."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import glassgrad.nn.functional as G
from glassgrad import Tensor, dtypes, nn
from glassgrad.base.errors import InputError, ShapeError

torch = pytest.importorskip("torch")
F = torch.nn.functional

A, B, C = (4, 6), (2, 3, 8), (2, 4, 8, 8)
# function, shapes of float inputs, what else it is called with
CALLS = [
    *[(name, [A], {}) for name in (
        "relu", "relu6", "silu", "mish", "selu", "hardswish", "hardsigmoid", "sigmoid", "logsigmoid", "tanh",
        "tanhshrink", "softsign", "gelu", "glu", "elu", "celu", "leaky_relu", "hardtanh", "softplus", "hardshrink",
        "softshrink", "rrelu", "normalize", "pdist")],
    ("gelu", [A], {"approximate": "tanh"}), ("elu", [A], {"alpha": 0.5}), ("celu", [A], {"alpha": 0.7}),
    ("leaky_relu", [A], {"negative_slope": 0.2}), ("hardtanh", [A], {"min_val": -0.5, "max_val": 0.25}),
    ("threshold", [A], {"threshold": 0.1, "value": 20.0}), ("softplus", [A], {"beta": 2.0, "threshold": 1.0}),
    ("glu", [A], {"dim": 0}), ("prelu", [(2, 3, 4), (3,)], {}),
    *[(name, [shape], {"dim": dim}) for name in ("softmax", "log_softmax", "softmin")
      for shape, dim in ((A, 0), (A, -1), (B, 1))],
    ("dropout", [A], {"training": False}), ("alpha_dropout", [A], {"training": False}),
    ("linear", [A, (5, 6)], {}), ("linear", [A, (5, 6), (5,)], {}), ("linear", [(2, 3, 6), (5, 6), (5,)], {}),
    ("bilinear", [(4, 3), (4, 2), (5, 3, 2), (5,)], {}),
    ("conv1d", [B, (6, 3, 3), (6,)], {"stride": 2, "padding": 1}), ("conv1d", [B, (6, 3, 4)], {"padding": "same"}),
    ("conv2d", [C, (6, 2, 3, 3), (6,)], {"stride": (2, 1), "padding": (1, 2), "groups": 2}),
    ("conv2d", [C[1:], (6, 4, 3, 3)], {"dilation": 2}), ("conv2d", [C, (6, 4, 3, 2)], {"padding": "same"}),
    ("conv3d", [(1, 2, 4, 5, 6), (3, 2, 2, 2, 2), (3,)], {"padding": 1}),
    ("conv_transpose1d", [B, (3, 5, 3)], {"stride": 2, "output_padding": 1}),
    ("conv_transpose2d", [C, (4, 3, 3, 3), (6,)], {"groups": 2, "padding": 1}),
    ("conv_transpose3d", [(1, 2, 3, 3, 3), (2, 2, 2, 2, 2)], {}),
    ("layer_norm", [B, (8,), (8,)], {"normalized_shape": (8,)}), ("layer_norm", [B], {"normalized_shape": (3, 8)}),
    ("rms_norm", [B, (8,)], {"normalized_shape": (8,)}), ("group_norm", [C, (4,), (4,)], {"num_groups": 2}),
    ("instance_norm", [C], {}), ("local_response_norm", [C], {"size": 3}),
    ("scaled_dot_product_attention", [(2, 2, 5, 4), (2, 2, 7, 4), (2, 2, 7, 4)], {"scale": 0.3}),
    ("scaled_dot_product_attention", [(2, 2, 5, 4)] * 3, {"is_causal": True}),
    ("pad", [C], {"pad": (1, 2, 0, 3)}), ("pad", [C], {"pad": (1, 2), "value": 3.5}),
    ("pad", [C], {"pad": (1, 2, 3, 0), "mode": "reflect"}), ("pad", [C], {"pad": (1, 1, 2, 0), "mode": "circular"}),
    ("interpolate", [C], {"scale_factor": 2}), ("interpolate", [C], {"size": (5, 7), "mode": "bilinear"}),
    ("upsample", [C], {"size": 16}), ("upsample_nearest", [C], {"scale_factor": 2}),
    ("upsample_bilinear", [C], {"size": (5, 7)}), ("feature_alpha_dropout", [C], {"training": False}),
    ("unfold", [C], {"kernel_size": 3}),
    ("unfold", [C], {"kernel_size": (2, 3), "dilation": (1, 2), "padding": (0, 1), "stride": (2, 1)}),
    ("fold", [(2, 12, 49)], {"output_size": (8, 8), "kernel_size": 2}),
    ("pixel_shuffle", [C], {"upscale_factor": 2}), ("pixel_unshuffle", [C], {"downscale_factor": 2}),
    ("channel_shuffle", [C], {"groups": 2}),
    ("affine_grid", [(2, 2, 3)], {"size": (2, 3, 4, 5), "align_corners": False}),
    ("avg_pool1d", [B], {"kernel_size": 3, "stride": 2, "padding": 1}),
    ("avg_pool2d", [C], {"kernel_size": 3, "padding": 1, "count_include_pad": False, "ceil_mode": True}),
    ("avg_pool2d", [C], {"kernel_size": (2, 3), "divisor_override": 4}),
    ("avg_pool2d", [C], {"kernel_size": 3, "padding": 1, "ceil_mode": True, "divisor_override": -7}),
    ("avg_pool3d", [(1, 2, 4, 4, 4)], {"kernel_size": 2}),
    ("max_pool1d", [B], {"kernel_size": 3, "stride": 1, "dilation": 2}), ("max_pool2d", [C], {"kernel_size": 2}),
    ("max_pool3d", [(1, 2, 4, 4, 4)], {"kernel_size": 2}), ("lp_pool1d", [B], {"norm_type": 2, "kernel_size": 2}),
    ("lp_pool2d", [C], {"norm_type": 2, "kernel_size": 2}),
    ("lp_pool3d", [(1, 2, 4, 4, 4)], {"norm_type": 2, "kernel_size": 2}),
    ("adaptive_avg_pool1d", [B], {"output_size": 3}), ("adaptive_avg_pool2d", [C], {"output_size": (3, 5)}),
    ("adaptive_avg_pool3d", [(1, 2, 4, 4, 4)], {"output_size": 3}), ("adaptive_max_pool1d", [B], {"output_size": 3}),
    ("adaptive_max_pool2d", [C], {"output_size": 3}), ("adaptive_max_pool3d", [(1, 2, 4, 4, 4)], {"output_size": 3}),
    ("interpolate", [C], {"scale_factor": 1.7, "mode": "bilinear", "recompute_scale_factor": True}),
    ("interpolate", [C], {"scale_factor": (0.6, 1.3), "mode": "nearest", "recompute_scale_factor": True}),
    *[(name, [A, A], {"reduction": how}) for how in ("mean", "sum", "none")
      for name in ("mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss")],
    ("mse_loss", [A, A], {"size_average": False}), ("l1_loss", [A, A], {"reduce": False}),
    ("kl_div", [A, A], {"log_target": True, "reduction": "batchmean"}),
    ("cosine_similarity", [A, A], {}), ("pairwise_distance", [A, A], {"p": 1.0}),
    ("triplet_margin_loss", [A, A, A], {"swap": True}),
    ("triplet_margin_with_distance_loss", [A, A, A], {"swap": True}),
]


# parameters that stand between tensors have to be given by name; these tensors' names, then
NAMES = {"layer_norm": ("input", "weight", "bias"), "rms_norm": ("input", "weight"),
         "group_norm": ("input", "weight", "bias")}


@pytest.mark.parametrize("name, shapes, options", CALLS, ids=lambda v: v if isinstance(v, str) else None)
def test_values_and_gradients(name, shapes, options):
    rng = np.random.default_rng(len(name) + sum(map(len, shapes)))
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    ours, theirs = ([make(a, requires_grad=True) for a in arrays] for make in (Tensor, torch.tensor))
    if name in NAMES:
        got = getattr(G, name)(**dict(zip(NAMES[name], ours)), **options)
        wanted = getattr(F, name)(**dict(zip(NAMES[name], theirs)), **options)
    else:
        got, wanted = getattr(G, name)(*ours, **options), getattr(F, name)(*theirs, **options)
    np.testing.assert_allclose(got.numpy(), wanted.detach().numpy(), rtol=3e-4, atol=3e-5)
    got.sum().backward()
    wanted.sum().backward()
    for mine, other in zip(ours, theirs):
        np.testing.assert_allclose(mine.grad.numpy(), other.grad.numpy(), rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("space, kernel, options", [
    ((5,), (3,), {"stride": 2, "output_padding": 1}), ((4, 5), (3, 2), {"stride": (1, 3), "padding": (1, 0)}),
    ((4, 4), (3, 3), {"groups": 2, "dilation": 2, "padding": 3}), ((3,), (2,), {"stride": 4, "output_padding": 3}),
    ((2, 3, 3), (2, 1, 2), {"stride": 2}), ((3, 3), (2, 2), {"padding": 1})])
def test_second_gradients_of_transposed_convolutions(space, kernel, options):
    rng = np.random.default_rng(7)
    x, w = rng.normal(size=(2, 4, *space)), rng.normal(size=(4, 3, *kernel))
    name, found = f"conv_transpose{len(space)}d", []
    for make, library in ((lambda a: Tensor(a, requires_grad=True, dtype=dtypes.float64), G),
                          (lambda a: torch.tensor(a, requires_grad=True), F)):
        one, two = make(x), make(w)
        out = getattr(library, name)(one, two, **options)
        if library is F:
            first = torch.autograd.grad((out ** 3).sum(), [one, two], create_graph=True)
        else:
            first = (out ** 3).sum().gradient(one, two)
        sum((g ** 2).sum() for g in first).backward()
        found.append([a.detach().numpy() for a in (out, *first, one.grad, two.grad)])
    for ours, theirs in zip(*found):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


# -- calls with integers, truth values or state -----------------------------------------------------------
def both(*arrays):
    return [Tensor(a) for a in arrays], [torch.tensor(a) for a in arrays]


def same(ours, theirs):
    np.testing.assert_allclose(np.asarray(ours.numpy()), theirs.detach().numpy(), rtol=3e-4, atol=3e-5)


SCORES = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
CLASSES = np.array([0, 3, 1, -100, 2])
ZERO_ONE = (SCORES > 0).astype(np.float32)
SIGNS = np.sign(SCORES[:, 0]).astype(np.float32)
WEIGHTS = np.array([0.5, 1.0, 2.0, 0.1], np.float32)


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.2}, {"reduction": "none"}, {"weight": WEIGHTS}])
def test_cross_entropy_with_options_is_pytorchs(options):
    (x, y), (t, u) = both(SCORES, CLASSES)
    mine = {k: Tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    other = {k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    same(G.cross_entropy(x, y, **mine), F.cross_entropy(t, u, **other))


def test_losses_with_targets():
    (x, c, z, s, w), (t, d, y, r, v) = both(SCORES, CLASSES, ZERO_ONE, SIGNS, WEIGHTS)
    same(G.nll_loss(x.log_softmax(1), c, w), F.nll_loss(t.log_softmax(1), d, v))
    same(G.binary_cross_entropy(x.sigmoid(), z, w), F.binary_cross_entropy(t.sigmoid(), y, v))
    same(G.binary_cross_entropy_with_logits(x, z, pos_weight=w), F.binary_cross_entropy_with_logits(t, y, pos_weight=v))
    same(G.multilabel_soft_margin_loss(x, z), F.multilabel_soft_margin_loss(t, y))
    same(G.multi_margin_loss(x, c.maximum(0)), F.multi_margin_loss(t, d.clamp(min=0)))
    same(G.poisson_nll_loss(x, z * 3, full=True), F.poisson_nll_loss(t, y * 3, full=True))
    same(G.gaussian_nll_loss(x, z, x.exp(), full=True), F.gaussian_nll_loss(t, y, t.exp(), full=True))
    for rows, theirs in ((x.exp()[:, 0], t.exp()[:, 0]), (x.exp()[:, :1], t.exp()[:, :1])):       # one for each row
        same(G.gaussian_nll_loss(x, z, rows), F.gaussian_nll_loss(t, y, theirs))
        same(G.gaussian_nll_loss(x[:1], z[:1], rows[:1]), F.gaussian_nll_loss(t[:1], y[:1], theirs[:1]))
    same(G.soft_margin_loss(x[:, 0], s), F.soft_margin_loss(t[:, 0], r))
    same(G.hinge_embedding_loss(x[:, 0], s), F.hinge_embedding_loss(t[:, 0], r))
    same(G.margin_ranking_loss(x[:, 0], x[:, 1], s, 0.5), F.margin_ranking_loss(t[:, 0], t[:, 1], r, 0.5))
    same(G.cosine_embedding_loss(x, x.flip(0), s), F.cosine_embedding_loss(t, t.flip(0), r))
    same(G.mse_loss(x, z, weight=z + 0.5), F.mse_loss(t, y, weight=y + 0.5))
    same(G.huber_loss(x, z, "sum", 0.3, z + 0.5), F.huber_loss(t, y, "sum", 0.3, y + 0.5))
    lengths = [4, 5]
    probabilities = np.random.default_rng(2).normal(size=(6, 2, 4)).astype(np.float32)
    labels = np.array([[1, 2, 3], [2, 1, 1]])
    (p, l), (q, m) = both(probabilities, labels)
    same(G.ctc_loss(p.log_softmax(2), l, lengths, [2, 3]),
         F.ctc_loss(q.log_softmax(2), m, torch.tensor(lengths), torch.tensor([2, 3])))


def test_embeddings_and_their_gradients_are_pytorchs():
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    (w, i), (v, j) = both(table, np.array([[1, 3, 1], [0, 2, 2]]))
    w.requires_grad, v.requires_grad = True, True
    mine, other = G.embedding(i, w, padding_idx=1), F.embedding(j, v, padding_idx=1)
    same(mine, other)
    mine.sum().backward(), other.sum().backward()
    same(w.grad, v.grad)
    for mode in ("sum", "mean", "max"):
        same(G.embedding_bag(i, w, mode=mode), F.embedding_bag(j, v, mode=mode))
    assert G.one_hot(i, 4).tolist() == F.one_hot(j, 4).tolist()
    same(G.embedding(i, w, max_norm=1.0), F.embedding(j, v.detach(), max_norm=1.0))
    with pytest.raises(InputError, match="these bags cannot be made"):
        G.embedding_bag(i, w, offsets=Tensor([0, 3]))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("options", [{}, {"padding_idx": 2}, {"offsets": [0, 3, 3, 5]},
                                     {"offsets": [0, 1, 9], "include_last_offset": True, "padding_idx": -1},
                                     {"max_norm": 1.0}])
def test_embedding_bags_are_pytorchs(rng, mode, options):
    """Values and gradients; empty bags, and bags of nothing but padding."""
    table, index = rng.normal(size=(5, 3)).astype(np.float32), np.array([[1, 3, 1], [2, 2, 2], [4, 0, 3]])
    index = index.reshape(-1) if "offsets" in options else index
    (w, i), (v, j) = both(table, index)
    w.requires_grad, v.requires_grad = True, "max_norm" not in options
    mine = G.embedding_bag(i, w, mode=mode, **{k: Tensor(o) if k == "offsets" else o for k, o in options.items()})
    other = F.embedding_bag(j, v, mode=mode,
                            **{k: torch.tensor(o) if k == "offsets" else o for k, o in options.items()})
    same(mine, other)
    same(w, v)
    if v.requires_grad:
        (mine * mine).sum().backward(), (other * other).sum().backward()
        same(w.grad, v.grad)


def test_embedding_bags_pass_gradients_to_their_weights(rng):
    (w, i, s), (v, j, r) = both(rng.normal(size=(5, 3)).astype(np.float32), np.array([1, 3, 1, 0]),
                                rng.normal(size=4).astype(np.float32))
    s.requires_grad, r.requires_grad = True, True
    mine = G.embedding_bag(i, w, Tensor([0, 1]), mode="sum", per_sample_weights=s)
    other = F.embedding_bag(j, v, torch.tensor([0, 1]), mode="sum", per_sample_weights=r)
    same(mine, other)
    mine.square().sum().backward(), other.square().sum().backward()
    same(s.grad, r.grad)


def test_multilabel_margin_loss(rng):
    for shape in ((5, 4), (4,)):
        scores = rng.normal(size=shape).astype(np.float32)
        labels = rng.permuted(np.broadcast_to(np.arange(-1, 3), shape), axis=-1).copy()
        for how in ("mean", "sum", "none"):
            (x, y), (t, u) = both(scores, labels)
            x.requires_grad, t.requires_grad = True, True
            mine, other = (f.multilabel_margin_loss(a, b, reduction=how) for f, a, b in ((G, x, y), (F, t, u)))
            same(mine, other)
            mine.sum().backward(), other.sum().backward()
            same(x.grad, t.grad)


def test_activations_with_an_underscore_give_the_input_its_value(rng):
    data = rng.normal(size=(3, 4)).astype(np.float32)
    for name, args in (("selu_", ()), ("elu_", (0.5,)), ("celu_", (0.5,)), ("leaky_relu_", (0.2,)), ("rrelu_", ()),
                       ("hardtanh_", (-0.5, 0.25)), ("threshold_", (0.1, 7.0)), ("relu_", ())):
        (x,), (t,) = both(data)
        assert getattr(G, name)(x, *args) is x
        same(x, getattr(F, name)(t, *args))


def test_pools_that_give_places(rng):
    data = rng.normal(size=(2, 3, 8)).astype(np.float32)
    for name, args in (("max_pool1d_with_indices", (2,)), ("adaptive_max_pool1d_with_indices", (3,))):
        (x,), (t,) = both(data)
        for mine, other in zip(getattr(G, name)(x, *args), getattr(F, name)(t, *args)):
            same(mine, other)


def test_batch_norm_keeps_its_statistics():
    data = np.random.default_rng(3).normal(2, 3, size=(4, 3, 5)).astype(np.float32)
    (x, mean, var), (t, a, b) = both(data, np.zeros(3, np.float32), np.ones(3, np.float32))
    for training in (True, True, False):
        same(G.batch_norm(x, mean, var, training=training), F.batch_norm(t, a, b, training=training))
    same(mean, a), same(var, b)
    same(G.instance_norm(x, mean, var), F.instance_norm(t, a, b))
    same(mean, a), same(var, b)
    same(G.instance_norm(x, mean, var, use_input_stats=False), F.instance_norm(t, a, b, use_input_stats=False))


def test_pools_with_indices():
    (x,), (t,) = both(np.random.default_rng(4).normal(size=(2, 3, 8, 8)).astype(np.float32))
    (y, i), (u, j) = G.max_pool2d(x, 2, return_indices=True), F.max_pool2d(t, 2, return_indices=True)
    same(y, u)
    assert i.tolist() == j.tolist()
    same(G.max_unpool2d(y, i, 2), F.max_unpool2d(u, j, 2))
    (y, i), (u, j) = (g(v[:, :, 0], 2, return_indices=True) for g, v in ((G.max_pool1d, x), (F.max_pool1d, t)))
    same(G.max_unpool1d(y, i, 2), F.max_unpool1d(u, j, 2))
    x, t = x[:, :2, None].expand(2, 2, 4, 8, 8), t[:, :2, None].expand(2, 2, 4, 8, 8)
    (y, i), (u, j) = (g(v, 2, return_indices=True) for g, v in ((G.max_pool3d, x), (F.max_pool3d, t)))
    same(G.max_unpool3d(y, i, 2), F.max_unpool3d(u, j, 2))


def test_the_function_grid_sample_has_pytorchs_defaults():
    places = np.random.default_rng(5).uniform(-1, 1, (1, 3, 3, 2)).astype(np.float32)
    (x, g), (t, h) = both(SCORES.reshape(1, 1, 5, 4), places)
    same(G.grid_sample(x, g), F.grid_sample(t, h, align_corners=False))


def test_random_ones_keep_their_promises():
    Tensor.manual_seed(5)
    x = Tensor.ones(100, 40)
    dropped = G.dropout(x, 0.25).numpy()
    assert set(np.unique(dropped)) == {np.float32(0), np.float32(1 / 0.75)} and 0.2 < (dropped == 0).mean() < 0.3
    for function, shape in ((G.dropout1d, (9, 50, 4)), (G.dropout2d, (9, 50, 4, 2)), (G.dropout3d, (9, 50, 4, 2, 2))):
        found = function(Tensor.ones(*shape), 0.5).numpy().reshape(450, -1)
        assert (found == found[:, :1]).all() and 0.4 < (found[:, 0] == 0).mean() < 0.6
    alpha = G.alpha_dropout(Tensor.randn(200, 200), 0.3, training=True)
    assert abs(alpha.mean().item()) < 0.03 and abs(alpha.std().item() - 1) < 0.03
    assert G.dropout(x, 0.5, training=False).tolist() == x.tolist()
    soft, hard = G.gumbel_softmax(x, tau=0.5), G.gumbel_softmax(x, hard=True)
    np.testing.assert_allclose(soft.sum(-1).numpy(), 1, rtol=1e-5)
    np.testing.assert_allclose(hard.max(-1).numpy(), 1, rtol=1e-5)
    np.testing.assert_allclose(hard.sum(-1).numpy(), 1, rtol=1e-5)
    slopes = -G.rrelu(-x, training=True).numpy()
    assert slopes.min() >= 1 / 8 and slopes.max() <= 1 / 3 and slopes.std() > 0.01
    Tensor.train(False)
    weights = G.scaled_dot_product_attention(x[:4], x[:4], x[:4], dropout_p=0.9).numpy()
    assert (weights != 1).any(), "PyTorch drops whether in training or not"


def test_inplace_changes_the_input():
    x, (t,) = Tensor([-1.0, 2.0]), both(np.array([-1.0, 2.0], np.float32))[1]
    assert G.relu(x, inplace=True).tolist() == x.tolist() == F.relu(t, inplace=True).tolist() == t.tolist()
    assert G.relu_(Tensor([-1.0])).tolist() == [0.0]


@pytest.mark.parametrize("name", ["ReLU", "ReLU6", "LeakyReLU", "ELU", "CELU", "SELU", "SiLU", "Mish", "Hardswish",
                                  "Hardsigmoid", "Hardtanh", "RReLU", "Dropout", "AlphaDropout"])
def test_a_layer_that_works_in_place_changes_its_input_and_views_of_it(name: str) -> None:
    w, values = Tensor([-1.0, 2.0, 0.5]), [-1.0, 2.0, 0.5]
    x = w * 1
    view, layer = x[1:], getattr(nn, name)
    result = layer(inplace=True)(x)
    assert result is x and x.tolist() == layer()(Tensor(values)).tolist() and view.tolist() == x.tolist()[1:]
    assert x.sum().gradient(w)[0].tolist() == layer()(w).sum().gradient(w)[0].tolist()


def test_mistakes_are_named():
    for call, words in ((lambda: G.layer_norm(Tensor.ones(2, 3), (4,)), "normalized_shape"),
                        (lambda: G.conv1d(Tensor.ones(1, 1, 5), Tensor.ones(1, 1, 3), None, 2, "same"), "same"),
                        (lambda: G.interpolate(Tensor.ones(1, 1, 4), 2, antialias=True), "antialias")):
        with pytest.raises((InputError, ShapeError), match=words):
            call()


def test_every_function_has_pytorchs_parameters():
    """By name and in order; PyTorch tells most of them, and the others in the first line of their help."""
    for name in G.__all__:
        theirs = getattr(F, name)
        mine = [p.name for p in inspect.signature(getattr(G, name)).parameters.values()]
        try:
            expected = [p.name for p in inspect.signature(theirs).parameters.values()]
        except ValueError:
            line = theirs.__doc__.strip().partition("->")[0]
            expected = [part.split("=")[0].strip() for part in line[line.index("(") + 1:].rstrip(") \n").split(",")]
        if expected == ["args", "kwargs"]:
            continue
        expected = [e for e in expected if e not in ("out", "*")]
        assert mine == expected[:len(mine)] or name == "scaled_dot_product_attention", (name, mine, expected)
        assert set(expected) <= {*mine, "", "out"} or name in ("scaled_dot_product_attention",), (name, mine, expected)


def test_dtype_of_a_softmax():
    assert G.softmax(Tensor([1.0]), 0, dtype=dtypes.float16).dtype is dtypes.float16


@pytest.mark.parametrize("name", ["conv", "conv_transpose"])
@pytest.mark.parametrize("rank, wrong", [(1, 2), (2, 1), (2, 3), (3, 2)])
def test_convolutions_refuse_weights_of_another_rank(name, rank, wrong):
    """conv1d computed a convolution of images."""
    shape = (1, 1, *[3] * wrong)
    with pytest.raises(RuntimeError, match="[Ee]xpected"):
        getattr(F, f"{name}{rank}d")(torch.ones(shape), torch.ones(shape))
    with pytest.raises(ShapeError, match="another number of space axes"):
        getattr(G, f"{name}{rank}d")(Tensor.ones(shape), Tensor.ones(shape))
