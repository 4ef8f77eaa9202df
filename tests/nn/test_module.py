"""nn.Module against torch.nn.Module: the same class written twice, exchanging weights, training alike."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import glassgrad.nn.functional as F
from glassgrad import GlobalCounters, InputError, ShapeError, Tensor, dtypes, nn, no_grad
from glassgrad.compiler.graph import ops as o

torch = pytest.importorskip("torch")


def classes(base, layers, functions, parameter, tensor):
    class Block(base):
        def __init__(self, size):
            super().__init__()
            self.norm, self.up = layers.BatchNorm1d(size), layers.Linear(size, size)
            self.scale = parameter(tensor([1.5]))

        def forward(self, x):
            return x + functions.relu(self.up(self.norm(x))) * self.scale

    class Net(base):
        def __init__(self):
            super().__init__()
            self.blocks = base_list(layers)([Block(4), Block(4)])
            self.last = layers.Linear(4, 2)
            self.register_buffer("steps", tensor([0.0]))

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return functions.dropout(self.last(x), 0.5, self.training)
    return Net


def base_list(layers):
    return layers.ModuleList


@pytest.fixture
def pair():
    ours = classes(nn.Module, nn, F, nn.Parameter, Tensor)()
    theirs = classes(torch.nn.Module, torch.nn, torch.nn.functional, torch.nn.Parameter, torch.tensor)()
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def test_layers_are_modules():
    ours = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.ReLU())
    theirs = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5), torch.nn.ReLU())
    assert all(isinstance(m, nn.Module) for m in ours.modules())
    assert [n for n, _ in ours.named_modules()] == [n for n, _ in theirs.named_modules()]
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    assert {n for n, _ in ours.named_buffers()} == {n for n, _ in theirs.named_buffers()}
    assert len(list(nn.Linear(2, 2, bias=False).parameters())) == 1 and len(ours) == 4
    ours.load_state_dict(theirs.state_dict())
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    wanted = theirs.eval()(torch.tensor(x)).detach().numpy()
    np.testing.assert_allclose(ours.eval()(Tensor(x)).numpy(), wanted, atol=1e-6)
    assert len(ours) == 4 and "training" not in repr(ours) and ours[2].training is False
    assert ours.half()[0].weight.dtype is dtypes.float16


def test_a_layer_trains_as_it_was_told_or_as_its_surroundings_are():
    drop, x = nn.Dropout(1.0), Tensor.ones(4)
    assert drop.training is None and drop(x).tolist() == [1.0] * 4
    with Tensor.train():
        assert drop(x).tolist() == [0.0] * 4
        assert drop.eval()(x).tolist() == [1.0] * 4, "told"
    assert drop.train()(x).tolist() == [0.0] * 4

    class Net(nn.Module):
        def __init__(self):
            self.drop = nn.Dropout(1.0)

        def forward(self, x):
            return self.drop(x)
    net = Net()
    assert net(x).tolist() == [0.0] * 4 and net.eval()(x).tolist() == [1.0] * 4 and net.drop.training is False
    net.train()
    net.drop.eval()
    assert net(x).tolist() == [1.0] * 4, "a layer that is frozen stays so"


# -- how weights start ---------------------------------------------------------------------------------------
CASES = {
    "uniform_": ((-2.0, 3.0), (4000,)), "normal_": ((1.0, 0.5), (4000,)),
    "trunc_normal_": ((0.5, 1.0, -1.0, 1.5), (4000,)),
    "xavier_uniform_": ((1.5,), (60, 80)), "xavier_normal_": ((), (60, 20, 2, 2)),
    "kaiming_uniform_": ((0.1, "fan_out"), (60, 20, 2, 2)), "kaiming_normal_": ((0, "fan_in", "relu"), (60, 80)),
}


@pytest.mark.parametrize("name", CASES)
def test_weights_start_as_pytorchs_do(name):
    options, shape = CASES[name]
    Tensor.manual_seed(0)
    ours = Tensor.zeros(*shape, requires_grad=True)
    assert getattr(nn.init, name)(ours, *options) is ours and ours.requires_grad is True
    theirs = getattr(torch.nn.init, name)(torch.zeros(shape), *options).numpy()
    got = ours.numpy()
    assert abs(got.mean() - theirs.mean()) < 0.1 * theirs.std() and abs(got.std() / theirs.std() - 1) < 0.1
    if "normal" not in name or "trunc" in name:
        np.testing.assert_allclose([got.min(), got.max()], [theirs.min(), theirs.max()], rtol=0.05, atol=0.02)


def test_weights_of_fixed_values_and_mistakes():
    assert nn.init.eye_(Tensor.zeros(2, 3)).tolist() == [[1, 0, 0], [0, 1, 0]]
    assert nn.init.ones_(Tensor.zeros(2)).tolist() == [1, 1] and nn.init.zeros_(Tensor.ones(2)).tolist() == [0, 0]
    for shape in ((3, 5), (5, 3), (2, 2, 3)):
        w = nn.init.orthogonal_(Tensor.zeros(*shape), 2.0).numpy().reshape(shape[0], -1)
        product = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
        np.testing.assert_allclose(product, 4 * np.eye(len(product)), atol=1e-5)
    for kind, param in (("tanh", None), ("relu", None), ("selu", None), ("leaky_relu", 0.2), ("conv2d", None)):
        assert nn.init.calculate_gain(kind, param) == pytest.approx(torch.nn.init.calculate_gain(kind, param))
    layer = nn.Linear(1, 1)
    nn.init.constant_(layer.weight.data, 7)
    assert layer.weight.tolist() == [[7]]
    with pytest.raises(InputError, match="the weight itself"):
        nn.init.normal_([1.0])
    with pytest.raises(InputError, match="fan_in"):
        nn.init.kaiming_normal_(Tensor.zeros(2, 2), mode="in")
    with pytest.raises(InputError, match="no gain"):
        nn.init.calculate_gain("gelu")
    with pytest.raises(ShapeError, match="two axes"):
        nn.init.xavier_uniform_(Tensor.zeros(3))


# -- no_grad -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("make", [lambda x: x * 3, lambda x: x[:1], lambda x: x.sum(), lambda x: x.reshape(2, 1),
                                  lambda x: x @ x, lambda x: Tensor.cat(x, x), lambda x: Tensor.stack([x, x]),
                                  lambda x: x.max(), lambda x: x.softmax(0), lambda x: x.flip(0).T])
def test_no_gradient_leaves_the_block(make):
    x = Tensor([2.0, 3.0])
    with no_grad():
        made = make(x)
    (made.square().sum() + x.sum()).backward()
    assert x.grad.tolist() == [1.0, 1.0] and made.requires_grad is False
    x.grad = None
    (make(x).square().sum() + x.sum()).backward()
    assert x.grad.tolist() != [1.0, 1.0], "outside it does"


def test_parameters_are_changed_in_the_block():
    w = Tensor.ones(3, 2, requires_grad=True)
    with no_grad():
        w[0].fill_(0)
        w[1, 1] = 7
        w[2].add_(5)
        w[1:].reshape(4)[0].mul_(2)
    assert w.tolist() == [[0, 0], [2, 7], [6, 6]] and w.requires_grad is True
    (w * w).sum().backward()
    assert w.grad.tolist() == [[0, 0], [4, 14], [12, 12]]
    a = Tensor([1.0], requires_grad=True)
    for _ in range(3):
        (a * a).sum().backward()
        with no_grad():
            a -= 0.1 * a.grad
            a.grad = None
    assert a.item() == pytest.approx(0.8 ** 3)


def test_blocks_nest_decorate_and_belong_to_their_thread():
    x = Tensor([2.0])

    @no_grad()
    def doubled():
        return x * 2
    assert doubled().requires_grad is False and (x * 2).requires_grad is None
    with pytest.raises(ZeroDivisionError), no_grad(), no_grad():
        raise ZeroDivisionError
    assert (x * 2).requires_grad is None
    elsewhere = []
    with no_grad():
        thread = threading.Thread(target=lambda: elsewhere.append((x * 2).requires_grad))
        thread.start()
        thread.join()
    assert elsewhere == [None]


def test_names_and_kinds_are_pytorchs(pair):
    ours, theirs = pair
    assert list(ours.state_dict()) and set(ours.state_dict()) == set(theirs.state_dict())
    assert {n for n, _ in ours.named_parameters()} == {n for n, _ in theirs.named_parameters()}
    assert {n for n, _ in ours.named_buffers()} == {n for n, _ in theirs.named_buffers()}
    assert {n for n, _ in ours.named_modules()} == {n for n, _ in theirs.named_modules()}
    assert [n for n, _ in ours.named_children()] == [n for n, _ in theirs.named_children()]
    assert len(list(ours.parameters())) == len(list(theirs.parameters()))
    assert len(list(ours.buffers())) == len(list(theirs.buffers()))
    assert [n for n, _ in ours.blocks[0].named_parameters(recurse=False)] == ["scale"]
    assert len(list(ours.modules())) == len(list(theirs.modules())) and len(list(ours.children())) == 2


def test_training_steps_are_pytorchs(pair):
    ours, theirs = pair
    ours.blocks.train(), theirs.blocks.train()
    ours.training = theirs.training = False               # no dropout, whose numbers differ
    mine, other = nn.optim.SGD(ours.parameters(), lr=0.1), torch.optim.SGD(theirs.parameters(), lr=0.1)
    rng = np.random.default_rng(0)
    for _ in range(3):
        x, y = rng.normal(size=(8, 4)).astype(np.float32), rng.integers(0, 2, 8)
        mine.zero_grad(), other.zero_grad()
        # a model that does not train still has blocks that do, as in PyTorch
        a = F.cross_entropy(ours(Tensor(x)), Tensor(y))
        b = torch.nn.functional.cross_entropy(theirs(torch.tensor(x)), torch.tensor(y))
        np.testing.assert_allclose(a.item(), b.item(), rtol=1e-4)
        a.backward(), b.backward()
        mine.step(), other.step()
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(ours.state_dict()[name].numpy(), value.numpy(), rtol=1e-3, atol=1e-4)


def test_eval_stops_training_inside(pair):
    ours, _ = pair
    x = Tensor.ones(6, 4)
    ours.eval()
    assert not ours.blocks[0].training and ours(x).tolist() == ours(x).tolist()
    with Tensor.train():                                  # a model that was told does not listen to others
        assert ours(x).tolist() == ours(x).tolist()
    ours.train()
    assert ours(x).tolist() != ours(x).tolist()


def test_what_can_be_done_to_a_model(pair):
    ours, _ = pair
    ours.half()
    assert ours.last.weight.dtype is dtypes.float16 and ours.blocks[0].norm.num_batches_tracked.dtype is dtypes.int64
    assert ours.float().last.weight.dtype is dtypes.float32 and ours.double().last.weight.dtype is dtypes.float64
    assert ours.bfloat16().to(dtypes.float32).cpu().last.weight.dtype is dtypes.float32
    ours.eval()(Tensor.ones(6, 4)).sum().backward()
    assert ours.last.weight.grad is not None
    ours.zero_grad()
    assert ours.last.weight.grad is None
    seen = []
    assert ours.apply(lambda m: seen.append(type(m).__name__)) is ours and seen[-1] == "Net" and "Linear" in seen
    ours.register_parameter("extra", Tensor([1.0]))
    ours.add_module("more", nn.Linear(1, 1))
    assert "extra" in ours.state_dict() and "more.weight" in ours.state_dict()
    assert "(last): Linear(" in repr(ours)


def test_frozen_parameters_stay_parameters_and_statistics_never_become_any(pair):
    ours, theirs = pair
    for model in pair:
        names = [name for name, _ in model.named_parameters()]
        model.requires_grad_(False)
        assert [name for name, _ in model.named_parameters()] == names
        assert not any(tensor.requires_grad for tensor in model.parameters())
        for tensor in model.last.parameters():
            tensor.requires_grad = True
        assert {name for name, tensor in model.named_parameters() if tensor.requires_grad} == \
            {"last.weight", "last.bias"}
        model.requires_grad_(True)
        assert all(tensor.requires_grad for tensor in model.parameters())
        assert not any(tensor.requires_grad for tensor in model.buffers())
        model.register_buffer("table", model.last.weight.detach())
        assert "table" in {name for name, _ in model.requires_grad_(True).named_buffers()}
    assert {name for name, _ in ours.named_buffers()} == {name for name, _ in theirs.named_buffers()}


def test_lists_and_dictionaries():
    several = nn.ModuleDict({"up": nn.Linear(1, 2), "down": nn.Linear(2, 1)})
    assert list(several) == list(several.keys()) == ["up", "down"] and "up" in several and len(several) == 2
    assert several.train(False)["up"] is list(several.values())[0] and len(list(several.items())) == 2
    row = nn.ModuleList([nn.Linear(1, 2)]).append(nn.Linear(2, 3)).extend([nn.Linear(3, 1)])
    assert len(row) == 3 and len(row[1:]) == 2 and row[-1].out_features == 1
    assert len(list(nn.ParameterList([Tensor([1.0]), Tensor([2.0])]).parameters())) == 2
    assert list(nn.ParameterDict({"a": Tensor([1.0])}).state_dict()) == ["a"]


@pytest.mark.parametrize("container", ["Sequential", "ModuleList"])
def test_modules_are_replaced_and_inserted_by_number(container):
    """`model[0] = LoRA(model[0])` was a TypeError: there was no item assignment."""
    def edited(lib):
        made = getattr(lib, container)
        model = made(*[lib.Linear(1, n) for n in (1, 2, 3)]) if container == "Sequential" else \
            made([lib.Linear(1, n) for n in (1, 2, 3)])
        model[0], model[-1] = lib.Linear(1, 7), lib.Tanh()
        model.insert(1, lib.Linear(1, 8))
        model.extend([lib.Linear(1, 9), lib.ReLU()]).append(lib.Linear(1, 10))
        del model[2]
        last = model.pop(-1)
        del model[4:]
        return last, model

    (last, ours), (their_last, theirs) = edited(nn), edited(torch.nn)
    assert [type(m).__name__ for m in ours] == [type(m).__name__ for m in theirs] and len(ours) == len(theirs) == 4
    assert {n: tuple(p.shape) for n, p in ours.named_parameters()} == {
        n: tuple(p.shape) for n, p in theirs.named_parameters()}
    assert last.weight.shape == tuple(their_last.weight.shape)
    with pytest.raises(IndexError):
        ours[9] = nn.Tanh()


def test_a_parameter_list_keeps_what_is_put_into_it_as_parameters():
    held = nn.ParameterList([Tensor([1.0]), Tensor([2.0])])
    held[1] = Tensor([3.0], requires_grad=False)
    assert [p.tolist() for p in held.parameters()] == [[1.0], [3.0]] and held[1].requires_grad


def test_a_subclass_of_sequential_has_attributes_of_its_own():
    """`class Block(nn.Sequential)` with `self.channels = 3` called 3 as a layer."""
    class Block(nn.Sequential):
        def __init__(self, channels):
            super().__init__(nn.Linear(2, channels), nn.ReLU())
            self.channels, self.name = channels, "block"
    block = Block(3)
    assert block(Tensor.ones(4, 2)).shape == (4, block.channels) and (len(block), len(block[:1])) == (2, 1)


def test_a_module_without_forward_says_so():
    class Empty(nn.Module):
        pass
    with pytest.raises(InputError, match="forward"):
        Empty()(Tensor([1.0]))


def test_missing_and_unexpected_keys(pair):
    ours, theirs = pair
    state = {k: v for k, v in theirs.state_dict().items() if k != "last.bias"}
    state["other"] = torch.zeros(1)
    report = ours.load_state_dict(state, strict=False)
    assert (report.missing_keys, report.unexpected_keys) == (["last.bias"], ["other"])
    with pytest.raises(InputError, match="last.bias"):
        ours.load_state_dict(state)


def test_a_layer_that_is_used_twice_and_a_circle_are_walked_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(2, 2)
            self.again = self.first
            self.inner = nn.Sequential(self.first, nn.ReLU())
            self.inner[1].model = self
    model = Tied()
    assert [name for name, _ in model.named_modules()] == ["", "first", "inner", "inner.1"]
    assert [name for name, _ in model.named_children()] == ["first", "inner"] and len(list(model.modules())) == 4
    seen: list[object] = []
    model.apply(seen.append)
    assert len(seen) == 4 and seen[-1] is model
    assert model.eval().first.training is False and model.train().inner[1].training is True
    assert len(list(model.parameters())) == 2


@pytest.mark.parametrize("make", [lambda: nn.Linear(4, 4, bias=False).weight, lambda: nn.Embedding(4, 4).weight,
                                  lambda: Tensor.randn(4, 4, requires_grad=True)])
def test_an_untrained_parameter_is_drawn_once(make) -> None:
    """Each forward pass without a training step drew all random numbers again."""
    weight, x = make(), Tensor.ones(4, 4).contiguous().realize()
    first = (x @ weight).numpy()
    assert weight.uop.base.op is o.BUFFER
    GlobalCounters.reset()
    assert ((x @ weight).numpy() == first).all() and GlobalCounters.kernel_count == 1
    expected = x.numpy() @ weight.numpy()
    np.testing.assert_allclose(first, expected, rtol=1e-6)


def test_a_parameter_that_nobody_reads_is_not_computed() -> None:
    unused, x = nn.Linear(4, 4), Tensor.ones(2).contiguous().realize()
    GlobalCounters.reset()
    (x + 1).realize()
    assert GlobalCounters.kernel_count == 1 and unused.weight.uop.base.op is not o.BUFFER
