"""Every optimizer, step for step: PyTorch's where it has one, else the paper's formula in float64."""

from __future__ import annotations

import linecache
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch, the reference of optimizers, is not installed")

from glassgrad import GlobalCounters, Tensor, dtypes, nn  # noqa: E402
from glassgrad.compiler.graph import ops as o  # noqa: E402
from glassgrad.nn import optim  # noqa: E402

SHAPES = [(4, 3), (3,), (), (2, 3, 2)]
STEPS = 12


def numbers(rng, shape):
    return np.asarray(rng.standard_normal(shape), dtype=np.float32)


def run(ours, theirs, params, their_params, gradients, rtol=1e-6, atol=5e-7):
    """The same gradients to both; equal parameters after every step."""
    for n, step in enumerate(gradients):
        for p, q, g in zip(params, their_params, step):
            p.grad = None if g is None else Tensor(g)
            q.grad = None if g is None else torch.tensor(g)
        ours.step()
        theirs.step()
        for p, q in zip(params, their_params):
            np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=rtol, atol=atol,
                                       err_msg=f"step {n}, {p.shape}")


def both(rng, shapes=SHAPES, dtype=np.float32):
    arrays = [numbers(rng, s).astype(dtype) for s in shapes]
    return [Tensor(a) for a in arrays], [torch.tensor(a, requires_grad=True) for a in arrays]


def random_gradients(rng, shapes=SHAPES, steps=STEPS, dtype=np.float32):
    return [[numbers(rng, s).astype(dtype) for s in shapes] for _ in range(steps)]


SETTINGS = [
    ("SGD", dict(lr=0.1)),
    ("SGD", dict(lr=0.1, momentum=0.9)),
    ("SGD", dict(lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.01)),
    ("SGD", dict(lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.1)),
    ("SGD", dict(lr=0.1, maximize=True)),
    ("Adam", dict(lr=0.01)),
    ("Adam", dict(lr=0.1, betas=(0.8, 0.99), eps=1e-3, weight_decay=0.1)),
    ("Adam", dict(lr=0.1, amsgrad=True)),
    ("Adam", dict(lr=0.1, betas=(0.0, 0.9), maximize=True)),
    ("AdamW", dict(lr=0.01)),
    ("AdamW", dict(lr=0.1, betas=(0.5, 0.9), weight_decay=0.3, amsgrad=True)),
    ("RMSprop", dict(lr=0.01)),
    ("RMSprop", dict(lr=0.01, alpha=0.9, eps=1e-2, momentum=0.9, weight_decay=0.1)),
    ("RMSprop", dict(lr=0.01, centered=True, momentum=0.5)),
    ("Adadelta", dict()),
    ("Adadelta", dict(lr=0.5, rho=0.8, eps=1e-3, weight_decay=0.1, maximize=True)),
    ("Adamax", dict(lr=0.1)),
    ("Adamax", dict(betas=(0.5, 0.9), eps=1e-2, weight_decay=0.1, maximize=True)),
    ("NAdam", dict(lr=0.1)),
    ("NAdam", dict(betas=(0.5, 0.9), eps=1e-2, weight_decay=0.1, momentum_decay=0.1)),
    ("NAdam", dict(lr=0.05, weight_decay=0.3, decoupled_weight_decay=True, maximize=True)),
    ("RAdam", dict(lr=0.1)),
    ("RAdam", dict(betas=(0.5, 0.9), eps=1e-2, weight_decay=0.1)),
    ("RAdam", dict(lr=0.05, betas=(0.9, 0.3), weight_decay=0.3, decoupled_weight_decay=True, maximize=True)),
    ("ASGD", dict()),
    ("ASGD", dict(lr=0.1, lambd=0.1, alpha=0.5, t0=4.0, weight_decay=0.1, maximize=True)),
    ("Rprop", dict()),
    ("Rprop", dict(lr=0.1, etas=(0.3, 1.7), step_sizes=(0.05, 0.3), maximize=True)),
    ("Adafactor", dict()),
    ("Adafactor", dict(lr=0.5, beta2_decay=-0.3, eps=(1e-2, 0.5), d=2.0, weight_decay=0.1, maximize=True)),
    ("SGD", dict(lr=0.1, foreach=True)), ("Adam", dict(lr=0.1, fused=True)),
    ("Adagrad", dict(lr=0.1)),
    ("Adagrad", dict(lr=0.1, lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.5, eps=1e-3)),
]


@pytest.mark.parametrize("name,settings", SETTINGS)
def test_each_step_is_pytorchs(rng, name, settings):
    params, theirs = both(rng)
    run(getattr(optim, name)(params, **settings), getattr(torch.optim, name)(theirs, **settings), params, theirs,
        random_gradients(rng), atol=1e-6 if settings.get("centered") else 5e-7)


@pytest.mark.parametrize("name,settings", [("SGD", dict(lr=0.1, momentum=0.9, dampening=0.5)), ("Adam", dict(lr=0.1)),
                                           ("AdamW", dict(lr=0.1)), ("RMSprop", dict()),
                                           ("Adagrad", dict(lr_decay=0.1)), ("NAdam", {}), ("RAdam", {}),
                                           ("Adamax", {}), ("ASGD", dict(t0=2.0)), ("Rprop", {}), ("Adafactor", {})])
def test_parameters_without_a_gradient_wait_as_in_pytorch(rng, name, settings):
    params, theirs = both(rng)
    gradients = random_gradients(rng, steps=8)
    for n, step in enumerate(gradients):
        for i in range(len(step)):
            if (n + i) % 3 == 0 and n != 2:
                step[i] = None
    run(getattr(optim, name)(params, **settings), getattr(torch.optim, name)(theirs, **settings), params, theirs,
        gradients)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "RAdam", "ASGD",
                                  "Rprop", "Adafactor"])
def test_float64_parameters_are_exact(rng, name):
    params, theirs = both(rng, dtype=np.float64)
    near = 1e-7 if name == "ASGD" else 1e-11                 # PyTorch keeps ASGD's rate in float32
    run(getattr(optim, name)(params, lr=0.1), getattr(torch.optim, name)(theirs, lr=0.1), params, theirs,
        random_gradients(rng, dtype=np.float64), rtol=near, atol=near / 10)


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad", "ASGD", "Rprop"])
def test_the_first_step_is_as_long_as_the_schedule_says(rng, name):
    params, theirs = both(rng)
    ours, other = getattr(optim, name)(params, lr=0.1), getattr(torch.optim, name)(theirs, lr=0.1)
    for library, optimizer in ((optim, ours), (torch.optim, other)):
        library.lr_scheduler.ConstantLR(optimizer, factor=0.25, total_iters=9)       # changes lr now
    run(ours, other, params, theirs, random_gradients(rng, steps=3))


def test_parameters_may_come_with_their_names():
    x = Tensor([1.0, 2.0])
    optimizer = optim.SGD({"x": x}.items(), lr=0.5)
    x.sum().backward()
    optimizer.step()
    assert optimizer.params[0] is x and x.tolist() == [0.5, 1.5]


def test_groups_have_settings_of_their_own(rng):
    params, theirs = both(rng)
    groups = lambda p: [{"params": p[:1], "lr": 0.5, "betas": (0.5, 0.9)}, {"params": p[1:3]},
                        {"params": p[3:], "weight_decay": 1.0}]
    run(optim.AdamW(groups(params), lr=0.01), torch.optim.AdamW(groups(theirs), lr=0.01), params, theirs,
        random_gradients(rng))
    params, theirs = both(rng)
    ours, other = optim.SGD(params[:2], lr=0.1), torch.optim.SGD(theirs[:2], lr=0.1)
    ours.add_param_group({"params": params[2:], "lr": 0.01, "momentum": 0.9})
    other.add_param_group({"params": theirs[2:], "lr": 0.01, "momentum": 0.9})
    run(ours, other, params, theirs, random_gradients(rng))


@pytest.mark.parametrize("name,settings",
                         [("SGD", dict(momentum=0.9)), ("Adam", {}), ("RMSprop", dict(momentum=0.9))])
def test_settings_may_change_on_the_way(rng, name, settings):
    params, theirs = both(rng)
    ours, other = getattr(optim, name)(params, lr=0.1, **settings), getattr(torch.optim, name)(theirs, lr=0.1,
                                                                                               **settings)
    gradients = random_gradients(rng)
    run(ours, other, params, theirs, gradients[:3])
    for each in (ours, other):
        each.param_groups[0]["lr"] = 0.03
        if name == "SGD":
            each.param_groups[0]["momentum"] = 0.5
        if name == "Adam":
            each.param_groups[0]["betas"] = (0.7, 0.95)
        each.param_groups[0]["weight_decay"] = 0.1
    run(ours, other, params, theirs, gradients[3:])


# -- papers --------------------------------------------------------------------------------------------------------
def lamb(p, g, state, t, lr=0.01, b1=0.9, b2=0.999, eps=1e-6, decay=0.1):
    state["m"] = b1 * state.get("m", 0) + (1 - b1) * g
    state["v"] = b2 * state.get("v", 0) + (1 - b2) * g * g
    r = state["m"] / (1 - b1 ** t) / (np.sqrt(state["v"] / (1 - b2 ** t)) + eps) + decay * p
    size, length = np.sqrt((p * p).sum()), np.sqrt((r * r).sum())
    return p - lr * (size / length if size > 0 and length > 0 else 1.0) * r


def lars(p, g, state, t, lr=0.5, momentum=0.9, decay=0.01, trust=0.1):
    size, slope = np.sqrt((p * p).sum()), np.sqrt((g * g).sum())
    local = trust * size / (slope + decay * size) if size > 0 and slope > 0 else 1.0
    state["b"] = momentum * state.get("b", 0) + lr * local * (g + decay * p)
    return p - state["b"]


def muon(p, g, state, t, lr=0.1, momentum=0.95, decay=0.1):
    state["b"] = momentum * state.get("b", 0) + (1 - momentum) * g
    x = ((1 - momentum) * g + momentum * state["b"]).reshape(p.shape[0], -1)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / max(np.linalg.norm(x), 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
    x = x.T if tall else x
    return p * (1 - lr * decay) - lr * math.sqrt(max(1, x.shape[0] / x.shape[1])) * x.reshape(p.shape)


PAPERS = [
    (lambda p: optim.LAMB(p, lr=0.01, weight_decay=0.1), lamb, SHAPES),
    (lambda p: optim.LARS(p, lr=0.5, momentum=0.9, weight_decay=0.01, tcoef=0.1), lars, SHAPES),
    (lambda p: optim.Muon(p, lr=0.1, ns_dtype=dtypes.float32), muon, [(4, 3), (3, 5), (2, 3, 2)]),
]


@pytest.mark.parametrize("make,formula,shapes", PAPERS)
def test_each_step_is_the_papers(rng, make, formula, shapes):
    arrays = [numbers(rng, s) for s in shapes]
    if formula is not muon:
        arrays[1][:] = 0                                     # a parameter that starts at 0 has no length to trust
    params, exact = [Tensor(a) for a in arrays], [a.astype(np.float64) for a in arrays]
    states = [{} for _ in arrays]
    optimizer = make(params)
    for t, step in enumerate(random_gradients(rng, shapes), 1):
        for i, g in enumerate(step):
            params[i].grad = Tensor(g)
            exact[i] = formula(exact[i], g.astype(np.float64), states[i], t)
        optimizer.step()
        for p, e in zip(params, exact):
            np.testing.assert_allclose(p.numpy(), e, rtol=5e-5 if formula is muon else 5e-6,
                                       atol=1e-5 if formula is muon else 1e-6)


def test_lamb_without_lengths_is_adamw_without_the_rate_in_the_decay(rng):
    params, theirs = both(rng)
    run(optim.LAMB(params, lr=0.1, eps=1e-8, adam=True), torch.optim.Adam(theirs, lr=0.1), params, theirs,
        random_gradients(rng))


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this PyTorch has no Muon")
@pytest.mark.parametrize("settings",
                         [{}, dict(nesterov=False, adjust_lr_fn="match_rms_adamw"),
                          dict(momentum=0.5, weight_decay=0.0)])
def test_muon_is_pytorchs_with_its_bfloat16(rng, settings):
    shapes = [(4, 3), (3, 5), (12, 12)]
    params, theirs = both(rng, shapes)
    # the order of PyTorch's float32 sums depends on the processor, and an entry that is then rounded to the next
    # bfloat16 moves the step by up to 2e-4; an iteration without that rounding would differ by more (the test below)
    run(optim.Muon(params, lr=0.02, **settings), torch.optim.Muon(theirs, lr=0.02, **settings), params, theirs,
        random_gradients(rng, shapes, 10), atol=3e-4)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this PyTorch has no Muon")
def test_muon_in_float32_is_told_from_pytorchs_bfloat16(rng):
    shapes = [(4, 3), (3, 5), (12, 12)]
    params, theirs = both(rng, shapes)
    with pytest.raises(AssertionError):
        run(optim.Muon(params, lr=0.02, ns_dtype=dtypes.float32), torch.optim.Muon(theirs, lr=0.02), params, theirs,
            random_gradients(rng, shapes, 10), atol=3e-4)


# -- L-BFGS --------------------------------------------------------------------------------------------------------
def closures(optimizer, params, other, their_params, data):
    """The same small network's loss, here and there, as closures."""
    x, y = data

    def ours():
        optimizer.zero_grad()
        loss = ((Tensor(x) @ params[0] + params[1]).tanh() @ params[2] - Tensor(y)).square().mean()
        return loss.backward()

    def theirs():
        other.zero_grad()
        loss = ((torch.tensor(x) @ their_params[0] + their_params[1]).tanh() @ their_params[2]
                - torch.tensor(y)).square().mean()
        loss.backward()
        return loss
    return ours, theirs


@pytest.mark.parametrize("settings", [          # many steps without a search would make much of the last bits
    dict(max_iter=6), dict(lr=0.3, max_iter=5), dict(line_search_fn="strong_wolfe"), dict(history_size=2, max_iter=8),
    dict(lr=0.1, history_size=3, line_search_fn="strong_wolfe", max_iter=7, max_eval=9),
    dict(line_search_fn="strong_wolfe", lr=30.0, max_iter=4), dict(tolerance_grad=1e-2), dict(tolerance_change=1e-3)])
def test_lbfgs_is_pytorchs_step_for_step(rng, settings):
    params, theirs = both(rng, [(3, 4), (4,), (4, 2)], np.float64)
    ours, other = optim.LBFGS(params, **settings), torch.optim.LBFGS(theirs, **settings)
    data = rng.standard_normal((8, 3)), rng.standard_normal((8, 2))
    here, there = closures(ours, params, other, theirs, data)
    for n in range(4):
        loss, expected = ours.step(here), other.step(there)
        np.testing.assert_allclose(loss.item(), expected.item(), rtol=1e-6, err_msg=f"step {n}")
        for p, q in zip(params, theirs):
            np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=1e-5, atol=1e-6, err_msg=f"step {n}")
        state = other.state_dict()["state"][0]
        assert (ours.n_iter, ours.func_evals) == (state["n_iter"], state["func_evals"])


def test_lbfgs_goes_on_from_pytorchs_state_and_its_own(rng):
    params, theirs = both(rng, [(3, 4), (4,), (4, 2)], np.float64)
    settings = dict(max_iter=3, history_size=4, line_search_fn="strong_wolfe")
    data = rng.standard_normal((8, 3)), rng.standard_normal((8, 2))
    other = torch.optim.LBFGS(theirs, **settings)
    ours = optim.LBFGS(params, **settings)
    here, there = closures(ours, params, other, theirs, data)
    for _ in range(2):
        other.step(there)
    for p, q in zip(params, theirs):
        p.assign(Tensor(q.detach().numpy()))
    ours.load_state_dict(other.state_dict())
    fresh = optim.LBFGS(params, **settings)
    fresh.load_state_dict(ours.state_dict())
    assert fresh.stored == len(other.state_dict()["state"][0]["ro"]) > 0
    for _ in range(2):
        other.step(there)
        fresh.step(closures(fresh, params, other, theirs, data)[0])
    for p, q in zip(params, theirs):
        np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=1e-6, atol=1e-8)


def test_lbfgs_in_a_checkpoint(rng, tmp_path):
    """Its history has no place before the first step; the file's finds one."""
    data = rng.standard_normal((8, 3)), rng.standard_normal((8, 2))
    params, _ = both(rng, [(3, 4), (4,), (4, 2)], np.float64)
    make = lambda: optim.LBFGS(params, max_iter=4, history_size=3)
    first = make()
    first.step(closures(first, params, None, None, data)[0])
    nn.state.save_checkpoint(tmp_path / "run", params, first)
    first.step(closures(first, params, None, None, data)[0])
    expected = [p.numpy() for p in params]
    second = make()
    nn.state.load_checkpoint(tmp_path / "run", params, second)
    second.step(closures(second, params, None, None, data)[0])
    assert all((p.numpy() == e).all() for p, e in zip(params, expected))


# -- training ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name,settings", [("SGD", dict(lr=0.1, momentum=0.9)), ("Adam", dict(lr=0.02))])
def test_a_whole_training_is_pytorchs(rng, name, settings):
    """Layers, gradients and optimizer together; and nothing is scheduled after the first step."""
    torch.manual_seed(1)
    theirs = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.BatchNorm1d(8),
                                 torch.nn.Linear(8, 3))
    ours = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 3))
    from nn_reference import copy_weights
    copy_weights(theirs, ours)
    optimizer = getattr(optim, name)(nn.state.get_parameters(ours), **settings)
    other = getattr(torch.optim, name)(theirs.parameters(), **settings)
    with Tensor.train():
        for n in range(15):
            x, y = numbers(rng, (16, 5)), rng.integers(0, 3, 16)
            optimizer.zero_grad()
            loss = ours(Tensor(x)).cross_entropy(Tensor(y))
            loss.backward()
            before = GlobalCounters.schedules
            optimizer.step()
            assert n < 1 or GlobalCounters.schedules == before, f"step {n} was scheduled anew"
            other.zero_grad()
            expected = torch.nn.functional.cross_entropy(theirs(torch.tensor(x)), torch.tensor(y))
            expected.backward()
            other.step()
            np.testing.assert_allclose(loss.item(), expected.item(), rtol=3e-4)
    for tensor, value in zip(nn.state.get_state_dict(ours).values(), theirs.state_dict().values()):
        np.testing.assert_allclose(tensor.numpy(), value.numpy(), rtol=2e-3, atol=2e-4)


def test_gradients_are_computed_with_the_step_and_keep_no_graph(rng):
    x = Tensor(numbers(rng, (3, 3)))
    optimizer = optim.Adam([x])
    (x @ x).tanh().sum().backward()
    before = GlobalCounters.kernel_count
    optimizer.step()
    assert GlobalCounters.kernel_count > before
    assert x.uop.op is o.BUFFER and x.grad.uop.base.op is o.BUFFER
    assert all(t.uop.base.op is o.BUFFER for t in (*optimizer.m, *optimizer.v, *optimizer.t, *optimizer.rates))


class Halving(optim.Optimizer):
    """A user's own optimizer."""

    def __init__(self, params):
        super().__init__(params, {"lr": 1.0})

    def update(self, i, value, gradient, group):
        return value * 0.5                                # the line of its nodes


@pytest.mark.parametrize("make, line", [(lambda x: optim.SGD([x], lr=0.1), "optimizer.schedule_step()"),
                                        (lambda x: optim.Adam([x], lr=0.1), "optimizer.schedule_step()"),
                                        (lambda x: Halving([x]), "return value * 0.5")])
def test_a_step_is_of_the_line_that_calls_it_and_a_users_formula_of_its_own(make, line):
    x = Tensor([1.0, 2.0], requires_grad=True)
    optimizer = make(x)
    (x * x).sum().backward()
    optimizer.schedule_step()
    node = x.uop.src[0]                                   # below the DETACH
    assert linecache.getline(node.line.file, node.line.number).strip().startswith(line)


def test_changing_the_learning_rate_schedules_nothing(rng):
    x = Tensor(numbers(rng, (3,)))
    optimizer = optim.Adam([x], lr=0.1)
    for n in range(6):
        optimizer.param_groups[0]["lr"] = 0.1 / (n + 1)
        optimizer.zero_grad()
        (x * x).sum().backward()
        before = GlobalCounters.schedules
        optimizer.step()
        assert n < 1 or GlobalCounters.schedules == before


def test_the_learning_rate_is_a_tensor_too(rng):
    x = Tensor([1.0])
    optimizer = optim.SGD([x], lr=0.5)
    assert optimizer.lr.shape == (1,) and optimizer.lr.item() == 0.5
    optimizer.lr.assign(Tensor([0.25]))
    x.grad = Tensor([1.0])
    optimizer.step()
    assert x.item() == 0.75 and optimizer.param_groups[0]["lr"] == 0.25
    optimizer.lr = 0.125
    optimizer.step()
    assert x.item() == 0.625 and optimizer.lr.item() == 0.125
    other = optim.SGD([Tensor([1.0])], lr=Tensor([0.5]))
    assert other.param_groups[0]["lr"] == 0.5


def test_a_closure_gives_its_loss(rng):
    x = Tensor([2.0])
    optimizer = optim.SGD([x], lr=0.25)

    def closure():
        optimizer.zero_grad()
        loss = (x * x).sum()
        loss.backward()
        return loss
    assert optimizer.step(closure).item() == 4.0 and x.item() == 1.0


# -- parameters ----------------------------------------------------------------------------------------------------
def test_a_computed_tensor_becomes_a_parameter():
    w = Tensor.randn(4, 3) * 0.01
    assert w.requires_grad is None
    optimizer = optim.SGD([w], lr=1.0)
    assert w.requires_grad is True and w.uop.op is o.BUFFER
    before = w.numpy().copy()
    (w * 2).sum().backward()
    optimizer.step()
    np.testing.assert_allclose(w.numpy(), before - 2)


def test_equal_parameters_have_gradients_of_their_own():
    a, b = Tensor.zeros(3), Tensor.zeros(3)
    optimizer = optim.SGD([a, b], lr=1.0)
    (a * 2 + b * 3).sum().backward()
    optimizer.step()
    assert a.tolist() == [-2] * 3 and b.tolist() == [-3] * 3


def test_tensors_that_want_no_gradient_are_computed_but_not_changed():
    w, fixed, count = Tensor([1.0]), Tensor([1.0]) + 1, Tensor([1, 2]) + 1
    fixed.requires_grad = False
    optimizer = optim.SGD([w, fixed, w, count], lr=1.0)
    assert len(optimizer.params) == 1 and len(optimizer.buffers) == 2
    (w * fixed).sum().backward()
    optimizer.step()
    assert (w.item(), fixed.item(), count.tolist()) == (-1.0, 2.0, [2, 3]) and fixed.uop.base.op is o.BUFFER


def test_values_computed_before_a_step_stay(rng):
    x = Tensor([1.0, 2.0])
    optimizer = optim.SGD([x], lr=1.0)
    y = x * 10
    x.sum().backward()
    optimizer.step()
    assert y.tolist() == [10, 20] and x.tolist() == [0, 1]


def test_state_goes_to_pytorch_and_back(rng):
    params, theirs = both(rng)
    ours, other = optim.Adam(params, lr=0.1), torch.optim.Adam(theirs, lr=0.2)
    run(ours, torch.optim.Adam(theirs, lr=0.1), params, theirs, random_gradients(rng, steps=3))
    saved = ours.state_dict()
    other.load_state_dict({"state": {i: {k: torch.tensor(v.numpy()) for k, v in s.items()} for i,
                                     s in saved["state"].items()},
                           "param_groups": [{**other.state_dict()["param_groups"][0],
                                             "lr": saved["param_groups"][0]["lr"]}]})
    fresh = optim.Adam(params, lr=0.3)
    fresh.load_state_dict(other.state_dict())
    assert fresh.param_groups[0]["lr"] == 0.1
    run(fresh, other, params, theirs, random_gradients(rng, steps=3))


def test_several_optimizers_as_one(rng):
    params, theirs = both(rng)
    group = optim.OptimizerGroup(optim.Adam(params[:2], lr=0.1), optim.SGD(params[2:], lr=0.2, momentum=0.9))
    one, two = torch.optim.Adam(theirs[:2], lr=0.1), torch.optim.SGD(theirs[2:], lr=0.2, momentum=0.9)

    class Both:
        def step(self):
            one.step()
            two.step()
    run(group, Both(), params, theirs, random_gradients(rng))
    group.zero_grad()
    assert all(p.grad is None for p in params) and group[1].param_groups[0]["lr"] == 0.2


def test_the_middle_of_adam_is_in_float32_from_the_first_step():
    """1 - 0.999 in float32 is wrong in the fifth digit."""
    x = Tensor([0.0])
    optimizer = optim.Adam([x], lr=1.0, eps=0.0)
    x.grad = Tensor([1e-3])
    optimizer.step()
    assert abs(x.item() + 1) < 2e-7 and optimizer.t[0].dtype is dtypes.float32
