"""nn.Module against torch.nn.Module: the same class written twice, exchanging weights, training alike."""

from __future__ import annotations

import numpy as np
import pytest

import glassgrad.nn.functional as F
from glassgrad import InputError, Tensor, dtypes, nn

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
    ours.requires_grad_(False)
    assert not list(ours.parameters())
    ours.register_parameter("extra", Tensor([1.0]))
    ours.add_module("more", nn.Linear(1, 1))
    assert "extra" in ours.state_dict() and "more.weight" in ours.state_dict()
    assert "(last): Linear(" in repr(ours)


def test_lists_and_dictionaries():
    several = nn.ModuleDict({"up": nn.Linear(1, 2), "down": nn.Linear(2, 1)})
    assert list(several) == list(several.keys()) == ["up", "down"] and "up" in several and len(several) == 2
    assert several.train(False)["up"] is list(several.values())[0] and len(list(several.items())) == 2
    row = nn.ModuleList([nn.Linear(1, 2)]).append(nn.Linear(2, 3)).extend([nn.Linear(3, 1)])
    assert len(row) == 3 and len(row[1:]) == 2 and row[-1].out_features == 1
    assert len(list(nn.ParameterList([Tensor([1.0]), Tensor([2.0])]).parameters())) == 2
    assert list(nn.ParameterDict({"a": Tensor([1.0])}).state_dict()) == ["a"]


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
