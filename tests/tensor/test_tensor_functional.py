"""Softmax, norms, dropout, attention and losses against PyTorch."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch, the reference of gradients, is not installed")
from torch_reference import Tensor, check, torch  # noqa: E402

from glassgrad import Context, nn  # noqa: E402

F = torch.nn.functional


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_softmax_and_its_logarithm_are_pytorchs(axis, dtype):
    check(lambda x: x.softmax(axis), (3, 7), dtype=dtype)
    check(lambda x: x.log_softmax(axis), (3, 7), dtype=dtype)


def test_softmax_of_extremes():
    inf = float("inf")
    check(lambda x: x.softmax(-1), values=[[[1000.0, -1000.0, 0.0], [-inf, 0.0, 1.0], [-1e30, -1e30, -1e30]]],
          grad=False)
    check(lambda x: x.log_softmax(-1), values=[[[1000.0, -1000.0, 0.0], [-inf, 0.0, 1.0]]], grad=False)
    check(lambda x: x.logsumexp(-1), values=[[[-inf, -inf], [inf, 0.0], [1000.0, 1000.0]]], grad=False)
    check(lambda x: x.softmax(-1), (0, 3))


def test_normalizations_are_pytorchs():
    check(lambda x: x.layernorm(), lambda x: F.layer_norm(x, x.shape[-1:]), (4, 9))
    check(lambda x: x.layernorm((1, 2)), lambda x: F.layer_norm(x, x.shape[1:]), (3, 4, 5))
    check(lambda x: x.layernorm(), lambda x: F.layer_norm(x, x.shape[-1:]), (4, 9), dtype="bfloat16")
    check(lambda x: x.rms_norm(), lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-6), (4, 9))
    check(lambda x: x.normalize(), lambda x: F.normalize(x), (4, 9))
    check(lambda x, w, b: x.batchnorm(w, b, x.mean((0, 2, 3)), (x.var((0, 2, 3), correction=0) + 1e-5).rsqrt()),
          lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), (4, 3, 2, 5), (3,), (3,))


def test_dropout_drops_and_scales_in_training_alone():
    x = Tensor.ones(4000)
    assert x.dropout(0.5) is x
    with Tensor.train():
        y = x.dropout(0.25).numpy()
        assert set(np.unique(y)) <= {np.float32(0), np.float32(1 / 0.75)} and 0.2 < (y == 0).mean() < 0.3
        assert x.dropout(0) is x and x.dropout(1).sum().item() == 0
        a = x.dropout(0.5)
        assert ((a != 0) == (a + 0 != 0)).all().item()              # one node, one mask


def test_training_switches_nest_and_return():
    assert Tensor.training is False
    with Tensor.train():
        assert Tensor.training is True
        with Tensor.test():
            assert Tensor.training is False
        with Tensor.train(False):
            assert Tensor.training is False
    with Context(TRAINING=1):
        assert Tensor.training is True
    assert Tensor.training is False
    Tensor.training = True
    assert Tensor.training is True
    Tensor.training = False
    Tensor.train()
    assert Tensor.training is True
    Tensor.train(False)
    assert Tensor.training is False

    @Tensor.train()
    def step():
        return Tensor.training
    assert step() is True and Tensor.training is False


def test_attention_with_masks_is_pytorchs():
    shape = (2, 3, 5, 4)
    attend = F.scaled_dot_product_attention
    check(lambda q, k, v: q.scaled_dot_product_attention(k, v), attend, shape, shape, shape, factor=4)
    check(lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True), lambda q, k,
          v: attend(q, k, v, is_causal=True),
          shape, shape, shape, factor=4)
    mask = np.tri(5, 5, 1, dtype=bool)
    check(lambda q, k, v: q.scaled_dot_product_attention(k, v, Tensor(mask)),
          lambda q, k, v: attend(q, k, v, torch.tensor(mask)), shape, shape, shape, factor=4)
    check(lambda q, k, v: q.scaled_dot_product_attention(k, v, scale=0.3, enable_gqa=True),
          lambda q, k, v: attend(q, k, v, scale=0.3, enable_gqa=True), (2, 6, 5, 4), (2, 3, 5, 4), (2, 3, 5, 4),
          factor=4)


@pytest.mark.parametrize("shape", [None, (5, 7), (1, 7), (2, 1, 1, 7), (2, 6, 5, 7)], ids=str)
@pytest.mark.parametrize("rows", [1, 5, 17])
def test_attention_of_heads_that_share_keys(rows, shape):
    """Few rows of such heads are rows of one head."""
    whole = None if shape is None else (*shape[:-2], min(rows, shape[-2]) if shape[-2] == 1 else rows, 7)
    mask = None if whole is None else np.random.default_rng(3).random(whole) < 0.7
    check(lambda q, k, v: q.scaled_dot_product_attention(k, v, None if mask is None else Tensor(mask), enable_gqa=True),
          lambda q, k, v: F.scaled_dot_product_attention(q, k, v, None if mask is None else torch.tensor(mask),
                                                         enable_gqa=True),
          (2, 6, rows, 4), (2, 3, 7, 4), (2, 3, 7, 4), factor=4)


@pytest.mark.parametrize("kind", [bool, float])
def test_attention_of_a_query_that_may_look_at_nothing(kind):
    allowed = np.array([[True, False, True], [False, False, False], [False, True, True]])
    mask = allowed if kind is bool else np.where(allowed, 0.5, -np.inf).astype("float32")
    check(lambda q, k, v: q.scaled_dot_product_attention(k, v, Tensor(mask)),
          lambda q, k, v: F.scaled_dot_product_attention(q, k, v, torch.tensor(mask)), *[(2, 3, 4)] * 3, factor=4)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_with_every_reduction_are_pytorchs(reduction):
    classes = np.array([2, 0, 6, 1])
    ours, theirs = Tensor(classes), torch.tensor(classes)
    check(lambda x: x.cross_entropy(ours, reduction), lambda x: F.cross_entropy(x, theirs, reduction=reduction), (4, 7))
    check(lambda x: x.cross_entropy(ours, reduction, label_smoothing=0.1),
          lambda x: F.cross_entropy(x, theirs, reduction=reduction, label_smoothing=0.1), (4, 7))
    check(lambda x: x.cross_entropy(ours, reduction, ignore_index=6),
          lambda x: F.cross_entropy(x, theirs, reduction=reduction, ignore_index=6), (4, 7))
    check(lambda x: x.sparse_categorical_crossentropy(ours, reduction=reduction),
          lambda x: F.cross_entropy(x, theirs, reduction=reduction), (4, 7))
    check(lambda x: x.log_softmax().nll_loss(ours, reduction=reduction),
          lambda x: F.nll_loss(x.log_softmax(-1), theirs, reduction=reduction), (4, 7))
    check(lambda x, y: x.softmax().binary_crossentropy(y.softmax(), reduction),
          lambda x, y: F.binary_cross_entropy(x.softmax(-1), y.softmax(-1), reduction=reduction), (4, 7), (4, 7))
    check(lambda x, y: x.binary_crossentropy_logits(y.sigmoid(), reduction),
          lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction=reduction), (4, 7), (4, 7))
    check(lambda x, y: x.mse_loss(y, reduction), lambda x, y: F.mse_loss(x, y, reduction=reduction), (4, 7), (4, 7))
    check(lambda x, y: x.l1_loss(y, reduction), lambda x, y: F.l1_loss(x, y, reduction=reduction), (4, 7), (4, 7))


ELEMENTWISE = ("mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss", "kl_div", "binary_cross_entropy",
               "binary_cross_entropy_with_logits", "hinge_embedding_loss", "soft_margin_loss", "poisson_nll_loss")


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_predictions_and_targets_that_are_broadcast_are_warned_of_once_at_the_line(name):
    predictions, targets = Tensor.full((4, 1), 0.5), Tensor.ones(4)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for _ in range(3):
            getattr(nn.functional, name)(predictions, targets); line = sys._getframe().f_lineno      # noqa: E702
        getattr(predictions, name)(targets.reshape(4, 1))
        getattr(predictions, name)(Tensor(1.0))
        if name in ("mse_loss", "l1_loss"):
            getattr(predictions, name)(1.0)
    [warning] = found
    assert (warning.filename, warning.lineno, warning.category) == (__file__, line, UserWarning)
    what = name.replace("cross_entropy", "crossentropy").replace("_with_logits", "_logits")
    assert str(warning.message) == f"""{what} broadcasts predictions and targets of different shapes
  given:    predictions (4, 1), targets (4,)
  expected: one shape
  fix:      reshape one of them, or expand it if broadcasting is meant"""


def test_losses_whose_targets_have_another_shape_do_not_warn():
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x.multi_margin_loss(Tensor([0, 1]))
        x.cosine_embedding_loss(x, Tensor([1, -1]))
        x.cross_entropy(Tensor([0, 1]))
        x.triplet_margin_loss(x, x)


def test_cross_entropy_of_other_shapes():
    pixels = np.array([[2, 0], [1, 1], [0, 2]])
    check(lambda x: x.cross_entropy(Tensor(pixels)), lambda x: F.cross_entropy(x, torch.tensor(pixels)), (3, 4, 2))
    check(lambda x: x.cross_entropy(Tensor(2)), lambda x: F.cross_entropy(x, torch.tensor(2)), (5,))
    check(lambda x, y: x.cross_entropy(y.softmax(1)), lambda x, y: F.cross_entropy(x, y.softmax(1)), (3, 4), (3, 4))
    check(lambda x, y: x.cross_entropy(y.softmax(1), label_smoothing=0.2),
          lambda x, y: F.cross_entropy(x, y.softmax(1), label_smoothing=0.2), (3, 4), (3, 4))
