"""Layers that learn their input's size, that are made on a device or in a type, and a softmax in clusters."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch, the reference of layers, is not installed")

from nn_reference import close, compare, copy_weights  # noqa: E402

from glassgrad import Tensor, dtypes, nn  # noqa: E402
from glassgrad.base.errors import InputError, ShapeError  # noqa: E402
from glassgrad.nn.state import get_state_dict  # noqa: E402

T = torch.nn
LAZY = [
    ("LazyLinear", (4,), {}, (2, 5, 3)), ("LazyLinear", (4, False), {}, (3,)),
    ("LazyConv1d", (4, 3), {}, (2, 3, 7)), ("LazyConv2d", (4, 3), dict(groups=2, bias=False), (2, 6, 5, 4)),
    ("LazyConv2d", (4, 3), {}, (3, 5, 4)), ("LazyConv3d", (2, 2), {}, (1, 3, 3, 4, 2)),
    ("LazyConvTranspose1d", (4, 3), {}, (2, 3, 7)), ("LazyConvTranspose2d", (4, 3, 2), {}, (2, 3, 3, 2)),
    ("LazyConvTranspose3d", (2, 2), {}, (1, 3, 2, 2, 2)),
    ("LazyBatchNorm1d", (), {}, (4, 3)), ("LazyBatchNorm2d", (), dict(momentum=0.3), (4, 3, 2, 2)),
    ("LazyBatchNorm3d", (), {}, (4, 3, 2, 2, 1)),
    ("LazyInstanceNorm1d", (), dict(affine=True), (2, 3, 4)), ("LazyInstanceNorm2d", (), {}, (3, 4, 2)),
    ("LazyInstanceNorm3d", (), {}, (1, 3, 4, 2, 2)),
]


@pytest.mark.parametrize("name,settings,named,shape", LAZY)
def test_lazy_layers_become_plain_ones_at_the_first_input(rng, name, settings, named, shape):
    ours, theirs = (getattr(n, name)(*settings, **named) for n in (nn, T))
    x = rng.standard_normal(shape).astype(np.float32)
    assert not get_state_dict(ours) and name in repr(ours)
    if "InstanceNorm" in name:                # PyTorch's have weights whether they want them or not
        theirs = getattr(T, name.removeprefix("Lazy"))(3, **named)
    ours(Tensor(x)), theirs.eval()(torch.tensor(x))
    assert type(ours).__name__ == type(theirs).__name__ == name.removeprefix("Lazy")
    compare(ours, theirs, x, atol=2e-5)


def test_a_lazy_layer_keeps_what_it_was_told():
    model = nn.Sequential(nn.LazyLinear(4, dtype=dtypes.float64), nn.LazyBatchNorm1d()).eval()
    model(Tensor.ones(2, 3, dtype=dtypes.float64))
    assert model[0].weight.dtype is dtypes.float64 and model[1].training is False
    with pytest.raises(ShapeError, match="space axes"):
        nn.LazyConv2d(4, 3)(Tensor.ones(2, 3))


@pytest.mark.parametrize("name,settings", [("Linear", (3, 4)), ("Conv2d", (3, 4, 2)), ("Embedding", (5, 3)),
                                           ("GRU", (3, 4)), ("LSTMCell", (3, 4)), ("BatchNorm2d", (3,)),
                                           ("LayerNorm", (3,)), ("MultiheadAttention", (4, 2)),
                                           ("TransformerEncoderLayer", (4, 2, 8)), ("PReLU", ())])
def test_layers_are_made_in_a_type_and_on_a_device(name, settings):
    layer = getattr(nn, name)(*settings, device="CPU", dtype=dtypes.float64)
    kinds = {t.dtype for t in get_state_dict(layer).values() if t.dtype in dtypes.floats}
    assert kinds == {dtypes.float64} and next(iter(layer.parameters())).requires_grad is not False
    theirs = getattr(T, name)(*settings, device="cpu", dtype=torch.float64)
    copy_weights(theirs, layer)
    with pytest.raises(InputError, match="cannot be called like this"):
        getattr(nn, name)(*settings, devices="CPU")


def test_adaptive_softmax_is_pytorchs(rng):
    for options in (dict(cutoffs=[4, 9]), dict(cutoffs=[3, 8, 15], div_value=2.0, head_bias=True)):
        ours, theirs = (n.AdaptiveLogSoftmaxWithLoss(16, 20, **options) for n in (nn, T))
        x, target = rng.standard_normal((6, 16)).astype(np.float32), rng.integers(0, 20, 6)
        compare(ours, theirs, x, target)
        close(ours.log_prob(Tensor(x)), theirs.log_prob(torch.tensor(x)), "log_prob")
        assert ours.predict(Tensor(x)).tolist() == theirs.predict(torch.tensor(x)).tolist()
        close(ours(Tensor(x[0]), Tensor(7)).output, theirs(torch.tensor(x[0]), torch.tensor(7)).output, "one row")
    with pytest.raises(ShapeError, match="without the batch"):
        ours(Tensor.ones(2, 16), Tensor([1, 2, 3]))
