"""Normalization against PyTorch's: values, gradients, running statistics over several batches."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch, the reference of layers, is not installed")

from nn_reference import close, compare, copy_weights, to_torch  # noqa: E402

from glassgrad import ShapeError, Tensor, dtypes, nn  # noqa: E402
from glassgrad.nn.modules import pending_statistics as pending  # noqa: E402
from glassgrad.nn.state import get_state_dict  # noqa: E402

T = torch.nn
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def numbers(rng, *shape):
    return (2 * rng.standard_normal(shape) + 1).astype(np.float32)


def shuffled(module, rng):
    """PyTorch starts weights at 1 and biases at 0: a poor test."""
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.tensor(rng.standard_normal(p.shape)))
    return module


# -- batch ---------------------------------------------------------------------------------------------------------
BATCHES = [("BatchNorm1d", (7, 3)), ("BatchNorm1d", (4, 3, 5)), ("BatchNorm2d", (2, 3, 5, 4)),
           ("BatchNorm3d", (2, 3, 2, 3, 2))]


@pytest.mark.parametrize("name,shape", BATCHES)
@pytest.mark.parametrize("options", [{}, dict(momentum=None), dict(affine=False, eps=1e-3, momentum=0.3),
                                     dict(track_running_stats=False)])
def test_batchnorm_trains_and_tests(rng, name, shape, options):
    theirs, ours = shuffled(getattr(T, name)(3, **options), rng), getattr(nn, name)(3, **options)
    copy_weights(theirs, ours)
    with Tensor.train():
        for _ in range(3):
            compare(ours, theirs, numbers(rng, *shape), copied=True, atol=2e-5)
            for tensor in get_state_dict(ours).values():
                tensor.grad = None
            theirs.zero_grad()
    for key in STATISTICS if ours.track_running_stats else ():
        close(getattr(ours, key), getattr(theirs, key), key)
    theirs.eval()
    compare(ours, theirs, numbers(rng, *shape), copied=True, atol=2e-5)


def test_running_statistics_are_not_trained_and_do_not_pile_up(rng):
    layer = nn.BatchNorm(3)
    assert layer.running_mean.requires_grad is False and layer.num_batches_tracked.dtype is dtypes.int64
    with Tensor.train():
        for _ in range(20):
            layer(Tensor(numbers(rng, 4, 3)))
    assert len(layer.running_mean.uop.toposort()) < 200      # of 20 passes, only the last few are still waiting
    assert layer.num_batches_tracked.item() == 20
    pending.take()


def test_statistics_that_were_computed_are_not_waiting(rng):
    layer = nn.BatchNorm(3)
    with Tensor.train():
        for _ in range(9):
            layer(Tensor(numbers(rng, 4, 3)))
            assert not pending.is_computed(layer.running_mean)
            layer.running_mean.realize(layer.running_var, layer.num_batches_tracked)
    pending.take()


def test_an_optimizer_computes_waiting_statistics(rng):
    layer = nn.BatchNorm(3)
    optimizer = nn.optim.SGD([layer.weight, layer.bias], lr=0.1)
    with Tensor.train():
        layer(Tensor(numbers(rng, 4, 3))).square().sum().backward()
        assert not pending.is_computed(layer.running_mean)
        optimizer.step()
    assert pending.is_computed(layer.running_mean) and pending.is_computed(layer.running_var)


# -- each example by itself ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape,last,options", [
    ((2, 5), 5, {}), ((2, 3, 4), (3, 4), {}), ((4,), 4, dict(eps=1e-2)),
    ((2, 3, 5), 5, dict(elementwise_affine=False)),
    ((2, 3, 5), 5, dict(bias=False)), ((2, 3, 1), 1, {}),
])
def test_layernorm_is_pytorchs(rng, shape, last, options):
    compare(nn.LayerNorm(last, **options), shuffled(T.LayerNorm(last, **options), rng), numbers(rng, *shape),
            atol=1e-5)


def test_layernorm_takes_views(rng):
    compare(nn.LayerNorm(5), shuffled(T.LayerNorm(5), rng), numbers(rng, 5, 3), view=lambda x: x.T, atol=1e-5)


def test_layernorm_of_channels(rng):
    ours, theirs = nn.LayerNorm2d(3), shuffled(T.LayerNorm(3), rng)
    copy_weights(theirs, ours)
    x = numbers(rng, 2, 3, 4, 5)
    a, b = Tensor(x), to_torch(x, requires_grad=True)
    out, expected = ours(a), theirs(b.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    close(out, expected, "output", atol=1e-5)
    (out * out).sum().backward()
    (expected * expected).sum().backward()
    close(a.grad, b.grad, "gradient", rtol=2e-4, atol=1e-4)


@pytest.mark.parametrize("shape,last,eps", [((2, 5), 5, 1e-6), ((2, 3, 4), (3, 4), 1e-5), ((2, 5), 5, None)])
def test_rmsnorm_is_pytorchs(rng, shape, last, eps):
    compare(nn.RMSNorm(last, eps=eps), shuffled(T.RMSNorm(last, eps=eps), rng), numbers(rng, *shape), atol=1e-5)


@pytest.mark.parametrize("groups,shape", [(1, (2, 6)), (2, (2, 6, 5)), (3, (2, 6, 3, 4)), (6, (1, 6, 3, 4))])
@pytest.mark.parametrize("affine", [True, False])
def test_groupnorm_is_pytorchs(rng, groups, shape, affine):
    if groups == 1 and not affine:
        shape = (1, 6, 7)
    compare(nn.GroupNorm(groups, 6, affine=affine), shuffled(T.GroupNorm(groups, 6, affine=affine), rng),
            numbers(rng, *shape), atol=1e-5)


@pytest.mark.parametrize("name,shape", [("InstanceNorm1d", (2, 3, 7)), ("InstanceNorm2d", (2, 3, 4, 5)),
                                        ("InstanceNorm3d", (2, 3, 2, 3, 4))])
@pytest.mark.parametrize("options", [{}, dict(affine=True), dict(affine=True, track_running_stats=True)])
def test_instancenorm_and_its_running_statistics_are_pytorchs(rng, name, shape, options):
    theirs, ours = shuffled(getattr(T, name)(3, **options), rng), getattr(nn, name)(3, **options)
    copy_weights(theirs, ours)
    with Tensor.train():
        compare(ours, theirs, numbers(rng, *shape), copied=True, atol=1e-5)
        ours(Tensor(x := numbers(rng, *shape)))
        theirs(torch.tensor(x))
    if options.get("track_running_stats"):
        close(ours.running_mean, theirs.running_mean, "running mean")
        close(ours.running_var, theirs.running_var, "running variance")
        theirs.eval()
        x = numbers(rng, *shape)
        close(ours(Tensor(x)), theirs(torch.tensor(x)), "in testing", atol=1e-5)


def test_tinygrads_instancenorm_has_weights(rng):
    assert nn.InstanceNorm(3).weight.shape == (3,)
    compare(nn.InstanceNorm(3), T.InstanceNorm2d(3, affine=True), numbers(rng, 2, 3, 4, 5), atol=1e-5)


def test_statistics_of_float16_are_taken_in_float32():
    x = Tensor.full((2, 3, 400), 300.0, dtype=dtypes.float16)          # the sum of squares overflows float16
    for layer in (nn.LayerNorm(400), nn.GroupNorm(1, 3), nn.InstanceNorm(3), nn.RMSNorm(400)):
        out = layer(x)
        assert np.isfinite(out.numpy().astype(np.float32)).all()


@pytest.mark.parametrize("affine", [True, False])
def test_the_layer_and_the_function_build_one_graph(rng, affine):
    x, layer = Tensor(numbers(rng, 4, 3, 5)), nn.BatchNorm(3, affine=affine)
    with Tensor.train():
        of_layer = layer(x)
    of_function = nn.functional.batch_norm(x, Tensor.zeros(3), Tensor.ones(3), layer.weight, layer.bias, training=True)
    assert of_function.uop is of_layer.uop
    assert nn.functional.batch_norm(x, layer.running_mean, layer.running_var, layer.weight,
                                    layer.bias).uop is layer(x).uop


@pytest.mark.parametrize("count", [1, 4])
def test_a_norm_over_channels_refuses_another_number_of_weights(count):
    x, weight, bias = Tensor.ones(2, 3, 4), Tensor.ones(count), Tensor.zeros(count)
    with pytest.raises(ShapeError, match="the number of elements changes"):
        nn.functional.batch_norm(x, None, None, weight, bias)
    with pytest.raises(ShapeError, match="the number of elements changes"):
        nn.functional.group_norm(x, 3, weight, bias)
