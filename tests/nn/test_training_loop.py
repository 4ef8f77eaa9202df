"""The loop everybody writes, as everybody writes it: it runs no kernel twice, and the jit replays it."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest

from glassgrad import Context, GlobalCounters, Tensor, nn, no_grad
from glassgrad.engine.profile import profile
from glassgrad.engine.registry import registry
from glassgrad.jit import TinyJit
from glassgrad.nn.state import get_parameters


def test_the_loss_is_computed_with_the_step_not_once_more():
    model = nn.Linear(4, 3)
    opt = nn.optim.SGD(get_parameters(model), lr=0.1)
    x, y = Tensor.randn(5, 4).realize(), Tensor([0, 1, 2, 0, 1])
    loss = model(x).cross_entropy(y)
    loss.backward()
    opt.step()
    before = GlobalCounters.kernel_count
    assert np.isfinite(loss.item()) and GlobalCounters.kernel_count == before


def _operations(use, steps=3):
    """The arithmetic of one training step of a network of eight parameters, and the gradients after it."""
    Tensor.manual_seed(1)
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.ReLU())])
    parameters = get_parameters(model)
    opt, x = nn.optim.SGD(parameters, lr=0.1, momentum=0.9), Tensor.randn(8, 16).realize()
    for _ in range(steps):
        GlobalCounters.reset()
        opt.zero_grad()
        loss = (model(x) ** 2).mean().backward()
        use(loss, parameters)
        opt.step()
        loss.item()
    return GlobalCounters.global_ops, [p.numpy() for p in parameters]


def test_reading_gradients_one_by_one_or_the_loss_repeats_no_pass():
    usual, weights = _operations(lambda loss, parameters: None)
    uses = {"gradients": lambda loss, parameters: [p.grad.abs().max().item() for p in parameters],
            "realized": lambda loss, parameters: [p.grad.realize() for p in parameters],
            "loss": lambda loss, parameters: loss.item(),
            "norm": lambda loss, parameters: nn.utils.clip_grad_norm_(parameters, 1e6).item()}
    for name, use in uses.items():
        operations, same = _operations(use)
        assert operations < 1.2 * usual, (name, operations, usual)
        for ours, theirs in zip(same, weights):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("wrap", [lambda f: f, TinyJit], ids=["plain", "jitted"])
def test_gradients_of_a_loss_without_a_name_that_are_realized_one_by_one_repeat_no_pass(wrap):
    x, weights = Tensor.rand(16, 16).realize(), [Tensor.rand(16, 16, requires_grad=True).realize() for _ in range(4)]

    def step(one_by_one):
        for w in weights:
            w.grad = None
        reduce(lambda y, w: (y @ w).tanh(), weights, x).sum().backward()
        gradients = [w.grad for w in weights]
        if not one_by_one:
            Tensor.realize(*gradients)
        return [g.realize() for g in gradients]
    counts = []
    for one_by_one in (False, True):
        jitted = wrap(lambda one_by_one=one_by_one: step(one_by_one))
        for _ in range(4):
            GlobalCounters.reset()
            jitted()
        counts.append(GlobalCounters.kernel_count)
    assert counts[1] <= counts[0], counts


def test_a_gradient_that_is_read_does_not_compute_those_that_nobody_trains():
    x, w, frozen = Tensor.rand(4, 4).realize(), Tensor.rand(4, 4, requires_grad=True), Tensor.rand(4, 4)
    (x @ w @ frozen).sum().backward()
    w.grad.tolist()
    assert x.grad.uop.realized is None and frozen.grad.uop.realized is None and frozen.grad.uop not in registry.values


def test_gradients_that_are_read_between_backward_passes_add_up():
    w, v = Tensor([1.0, 2.0], requires_grad=True), Tensor([3.0, 4.0], requires_grad=True)
    for count in (1, 2, 3):
        (w * v).sum().backward()
        assert w.grad.tolist() == [3.0 * count, 4.0 * count]
    assert v.grad.tolist() == [3.0, 6.0]


def _in_no_grad(w):
    with no_grad():
        w -= w.grad * 0.1
    return w


def _by_assignment(w):
    w.assign(w.detach() - w.grad.detach() * 0.1)
    return w


def _through_data(w):
    w.data -= w.grad.data * 0.1
    return w


def _through_detach(w):
    w.detach().sub_(w.grad * 0.1)
    return w


UPDATES = {"no_grad": _in_no_grad, "assign": _by_assignment, "data": _through_data, "detach": _through_detach,
           "data.sub_": lambda w: [w.data.sub_(w.grad * 0.1), w][1],
           "a new tensor": lambda w: (w - w.grad * 0.1).detach().requires_grad_(True)}


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("read", [True, False])
def test_updates_by_hand_after_the_loss_was_read_are_right_and_keep_no_earlier_step(name, read):
    w, expected, nodes, memory = Tensor([1.0, 0.5], requires_grad=True), np.array([1.0, 0.5]), [], []
    for _ in range(8):
        w.grad = None
        loss = (w * w * w).sum().backward()
        if read:
            assert abs(loss.item() - (expected ** 3).sum()) < 1e-4
        w = UPDATES[name](w)
        expected = expected - 0.1 * 3 * expected ** 2
        if not read and name != "a new tensor":          # which nothing computes before it is read
            loss.item()
        nodes.append(len(w.uop.toposort()))
        memory.append(GlobalCounters.mem_used)
    if read or name != "a new tensor":
        assert len(set(nodes[2:])) == 1 and len(set(memory[2:])) == 1, (nodes, memory)
    np.testing.assert_allclose(w.numpy(), expected, rtol=1e-5)


def test_a_loss_nobody_keeps_is_not_computed():
    weight = Tensor([1.0, 2.0])
    opt = nn.optim.SGD([weight], lr=0.1)
    kernels = []
    for keep in (False, True):
        kept = [(weight * weight).sum().backward()][:keep]
        GlobalCounters.reset()
        opt.step()
        kernels.append(GlobalCounters.kernel_count)
        del kept
        opt.zero_grad()
    assert kernels[0] < kernels[1] or kernels[0] == 1


def test_the_loss_is_that_of_the_weights_before_the_step():
    weight = Tensor([2.0])
    opt = nn.optim.SGD([weight], lr=0.25)
    loss = (weight * weight).sum().backward()
    opt.step()
    assert (loss.item(), weight.item()) == (4.0, 1.0)


weight = Tensor([1.0])
optimizer = nn.optim.SGD([weight], lr=0.5)


@TinyJit
def step() -> Tensor:                       # named as a method that it calls: they must not be taken for one
    optimizer.zero_grad()
    loss = (weight * weight).sum().backward()
    optimizer.step()
    return loss


def test_a_jitted_function_may_share_its_name_with_a_method_it_calls(capsys):
    with Context(DEBUG=1):
        for _ in range(6):
            step()
    assert step.captured and "anew" not in capsys.readouterr().out


def test_a_new_learning_rate_at_each_step_is_no_new_capture(capsys):
    w = Tensor([1.0])
    opt = nn.optim.SGD([w], lr=0.5)

    @TinyJit
    def learn() -> Tensor:
        opt.zero_grad()
        loss = (w * w).sum().backward()
        opt.step()
        return loss

    expected = 1.0
    with Context(DEBUG=1):
        for i in range(6):
            opt.lr = 0.5 / (i + 1)
            expected -= 2 * expected * 0.5 / (i + 1)
            learn()
            assert np.isclose(w.item(), expected, rtol=1e-6)
    assert learn.captured and "anew" not in capsys.readouterr().out


def test_a_result_that_is_a_view_is_read_anew_after_each_replay():
    @TinyJit
    def turned(x: Tensor) -> Tensor:
        return (x * 2).contiguous().permute(1, 0)

    for i in range(8):
        x = np.arange(6, dtype=np.float32).reshape(2, 3) + i
        assert np.array_equal(turned(Tensor(x)).numpy(), 2 * x.T)


def test_a_captured_step_computes_no_gradient_of_its_data():
    data, labels = Tensor(np.ones((50, 4), np.float32)), Tensor(np.arange(50) % 3)
    model = nn.Linear(4, 3)
    opt = nn.optim.Adam(get_parameters(model))

    @TinyJit
    def learn(rows: Tensor) -> Tensor:
        opt.zero_grad()
        loss = model(data[rows]).cross_entropy(labels[rows])
        loss.backward()
        opt.step()
        return loss

    for _ in range(4):
        GlobalCounters.reset()
        with profile() as ran:
            learn(Tensor(np.arange(8, dtype=np.int32)))
        assert not [row.name for row in ran.rows if row.name.startswith("scatter")]
    assert learn.captured and data.grad is None
