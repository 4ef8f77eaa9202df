"""Mixed precision: what is computed in which type, loss scaling, float32 copies of narrow weights."""

from __future__ import annotations

import math

import numpy as np
import pytest

from glassgrad import GradientError, InputError, Tensor, dtypes, nn
from glassgrad.nn.optim import SGD, Adam, AdamW, GradScaler, autocast, clip_grad_norm_

HALVES = [dtypes.float16, dtypes.bfloat16]


# -- autocast ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("half", HALVES)
def test_products_are_computed_in_half_and_the_rest_is_not(half):
    x, w, image, kernel = Tensor.ones(2, 3), Tensor.ones(3, 4), Tensor.ones(1, 2, 4, 4), Tensor.ones(3, 2, 3, 3)
    with autocast(dtype=half):
        assert (x @ w).dtype is half and x.dot(w).dtype is half and Tensor.einsum("ij,jk->ik", x, w).dtype is half
        assert x.linear(w, Tensor.ones(4)).dtype is half
        assert image.conv2d(kernel, Tensor.ones(3)).dtype is half
        assert image.conv_transpose2d(kernel.transpose(0, 1)).dtype is half
        scores = x @ w
        assert scores.softmax().dtype is scores.log_softmax().dtype is scores.layernorm().dtype is dtypes.float32
        assert scores.sum().dtype is scores.mean().dtype is dtypes.float32
        assert scores.cross_entropy(Tensor([0, 1])).dtype is dtypes.float32
        assert (x + x).dtype is x.exp().dtype is dtypes.float32
        assert (x.double() @ w.double()).dtype is dtypes.float64 and (x.int() @ w.int()).dtype is dtypes.int32
    assert (x @ w).dtype is dtypes.float32


def test_autocast_nests_decorates_and_ends_with_its_block():
    x = Tensor.ones(2, 2)

    @autocast(dtype=dtypes.float16)
    def product(): return (x @ x).dtype
    with autocast("cpu", dtype=dtypes.bfloat16):
        assert (x @ x).dtype is dtypes.bfloat16 and product() is dtypes.float16
        with autocast(enabled=False):
            assert (x @ x).dtype is dtypes.float32
        assert (x @ x).dtype is dtypes.bfloat16
    with pytest.raises(ZeroDivisionError), autocast():
        assert (x @ x).dtype is dtypes.bfloat16
        raise ZeroDivisionError
    assert (x @ x).dtype is dtypes.float32 and product() is dtypes.float16


def test_autocast_is_each_threads_own():
    import threading
    found = []
    x = Tensor.ones(2, 2)
    with autocast():
        thread = threading.Thread(target=lambda: found.append((x @ x).dtype))
        thread.start()
        thread.join()
    assert found == [dtypes.float32]


@pytest.mark.parametrize("half", HALVES)
def test_gradients_of_float32_weights_are_float32_and_nearly_right(rng, half):
    torch = pytest.importorskip("torch")
    x, w = rng.standard_normal((8, 5)).astype(np.float32), rng.standard_normal((3, 5)).astype(np.float32)
    ours, theirs = nn.Linear(5, 3, bias=False), torch.nn.Linear(5, 3, bias=False)
    ours.weight.assign(Tensor(w))
    theirs.weight.data = torch.tensor(w)
    y = rng.integers(0, 3, 8)
    with autocast(dtype=half):
        ours(Tensor(x)).cross_entropy(Tensor(y)).backward()
    with torch.autocast("cpu", dtype=getattr(torch, half.name)):
        torch.nn.functional.cross_entropy(theirs(torch.tensor(x)), torch.tensor(y)).backward()
    assert ours.weight.grad.dtype is dtypes.float32
    np.testing.assert_allclose(ours.weight.grad.numpy(), theirs.weight.grad.numpy(),
                               atol=0.02 if half is dtypes.bfloat16 else 3e-3)


# -- scaling -------------------------------------------------------------------------------------------------------
def test_scaling_is_pytorchs(rng):
    """Good steps grow the scale, an overflow halves it and changes nothing; the same losses to both."""
    torch = pytest.importorskip("torch")
    values = rng.standard_normal(3).astype(np.float32)
    p, q = Tensor(values), torch.tensor(values, requires_grad=True)
    ours, theirs = Adam([p], lr=0.1), torch.optim.Adam([q], lr=0.1)
    settings = dict(init_scale=8.0, growth_interval=3)
    scaler, other = GradScaler(**settings), torch.amp.GradScaler("cpu", **settings)
    for n in range(12):
        g = rng.standard_normal(3).astype(np.float32)
        if n in (4, 5, 9):
            g[1] = [math.inf, math.nan, -math.inf][n % 3]
        ours.zero_grad()
        theirs.zero_grad()
        scaler.scale((p * Tensor(g)).sum()).backward()
        other.scale((q * torch.tensor(g)).sum()).backward()
        scaler.step(ours)
        other.step(theirs)
        scaler.update()
        other.update()
        assert scaler.get_scale() == other.get_scale(), f"step {n}"
        np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=1e-6, atol=5e-7, err_msg=f"step {n}")


def test_a_skipped_step_changes_no_state():
    x, y = Tensor([1.0]), Tensor([2.0])
    optimizer, scaler = Adam([x, y], lr=0.1), GradScaler(init_scale=4.0)
    scaler.scale((x * math.inf + y).sum()).backward()
    scaler.step(optimizer)
    assert (x.item(), y.item(), optimizer.t[0].item(), optimizer.m[1].item(), optimizer.v[1].item()) == (1, 2, 0, 0,
                                                                                                         0)
    scaler.update()
    assert scaler.get_scale() == 2.0


def test_gradients_can_be_clipped_between():
    x = Tensor([3.0, 4.0])
    optimizer, scaler = SGD([x], lr=1.0), GradScaler(init_scale=1024.0)
    scaler.scale((x * x).sum()).backward()
    scaler.unscale_(optimizer)
    assert abs(clip_grad_norm_([x], 1.0).item() - 10) < 1e-4
    scaler.step(optimizer)
    scaler.update()
    np.testing.assert_allclose(x.numpy(), [2.4, 3.2], rtol=1e-5)
    with pytest.raises(GradientError, match="no step to learn from"):
        scaler.update()
    scaler.scale((x * x).sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(GradientError, match="divided by the scale already"):
        scaler.unscale_(optimizer)


def test_a_scaler_that_is_off_and_one_that_was_saved():
    x = Tensor([1.0])
    optimizer, off = SGD([x], lr=0.5), GradScaler(enabled=False)
    off.scale(x.sum()).backward()
    off.step(optimizer)
    off.update()
    assert x.item() == 0.5 and off.get_scale() == 1.0
    scaler, again = GradScaler(init_scale=32.0), GradScaler()
    again.load_state_dict(scaler.state_dict())
    assert again.get_scale() == 32.0 and scaler.scale([x, x])[1].item() == 16.0
    assert off.state_dict() == {} and off.load_state_dict({}) is None
    with pytest.raises(InputError) as error:
        scaler.load_state_dict(off.state_dict())
    assert str(error.value).partition("\n  at: ")[0] == """\
the saved GradScaler was off
  given:    an empty state
  expected: the state of one that was on
  fix:      save it with enabled=True, or make this one with enabled=False"""


def test_scalers_state_is_pytorchs():
    torch = pytest.importorskip("torch")
    theirs = torch.amp.GradScaler("cpu", init_scale=8.0, growth_factor=3.0, backoff_factor=0.25, growth_interval=7)
    mine = GradScaler()
    mine.load_state_dict(theirs.state_dict() | {"_growth_tracker": 5})
    assert mine.state_dict() == theirs.state_dict() | {"_growth_tracker": 5}
    theirs.load_state_dict(mine.state_dict())
    assert theirs.state_dict() == mine.state_dict()


# -- narrow weights ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("half", HALVES)
def test_small_updates_of_narrow_weights_add_up(half):
    """1 + 1e-4 is 1 in either type: without a float32 copy, nothing would ever change."""
    kept, lost = (Tensor([1.0], dtype=half) for _ in range(2))
    ours, plain = SGD([kept], lr=1e-4), SGD([lost], lr=1e-4, master_weights=False)
    for _ in range(100):
        for p, optimizer in ((kept, ours), (lost, plain)):
            p.grad = Tensor([-1.0], dtype=half)
            optimizer.step()
    assert kept.dtype is half and abs(kept.float().item() - 1.01) < 0.005 and lost.float().item() == 1.0
    assert abs(ours.master[0].item() - 1.01) < 1e-5


def test_a_narrow_weight_that_somebody_else_changed_counts():
    w = Tensor([1.0, 2.0], dtype=dtypes.float16)
    optimizer = SGD([w], lr=2.0 ** -13)
    w.grad = Tensor([1.0, 1.0], dtype=dtypes.float16)
    optimizer.step()
    w.assign(Tensor([5.0, 2.0], dtype=dtypes.float16))                 # the second is what the optimizer left
    optimizer.step()
    np.testing.assert_allclose(optimizer.master[0].numpy(), [5 - 2.0 ** -13, 2 - 2.0 ** -12], rtol=0)


def test_narrow_weights_are_trained_as_float32_ones_are(rng):
    start = rng.standard_normal(4).astype(np.float16).astype(np.float32)
    narrow, wide = Tensor(start, dtype=dtypes.float16), Tensor(start)
    optimizers = AdamW([narrow], lr=0.01), AdamW([wide], lr=0.01)
    for _ in range(10):
        g = rng.standard_normal(4).astype(np.float16)
        narrow.grad, wide.grad = Tensor(g), Tensor(g.astype(np.float32))
        for optimizer in optimizers:
            optimizer.step()
    np.testing.assert_allclose(optimizers[0].master[0].numpy(), wide.numpy(), rtol=1e-6)
    np.testing.assert_allclose(narrow.float().numpy(), wide.numpy(), rtol=1e-3)


@pytest.mark.parametrize("half", HALVES)
def test_training_in_mixed_precision_learns(rng, half):
    Tensor.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 3))
    optimizer, scaler = Adam(nn.state.get_parameters(model), lr=0.02), GradScaler(enabled=half is dtypes.float16)
    x, y = Tensor(rng.standard_normal((32, 6)).astype(np.float32)), Tensor(rng.integers(0, 3, 32))
    losses = []
    with Tensor.train():
        for _ in range(20):
            optimizer.zero_grad()
            with autocast(dtype=half):
                loss = model(x).cross_entropy(y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0] and all(p.dtype is dtypes.float32 for p in optimizer.params)


def test_views_of_a_parameter_follow_steps_that_may_be_skipped() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    optimizer, view = SGD([x], lr=0.25), x[1:]
    for taken, expected in ((True, [0.5, 1.0]), (False, [0.5, 1.0]), (True, [0.25, 0.5])):
        optimizer.zero_grad()
        (x * x).sum().backward()
        changed = optimizer.schedule_step(Tensor([taken]))
        changed[0].realize(*changed[1:])
        assert x.tolist() == expected and view.tolist() == expected[1:]
