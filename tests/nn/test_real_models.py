"""A real model, written once in PyTorch's words: its answers and its gradients are PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest
from model_files import model_file

import glassgrad.nn.functional as F
from glassgrad import Tensor, nn

torch = pytest.importorskip("torch")


def resnet20(nn, F):
    """ResNet-20 for CIFAR-10, whose shortcuts pad the channels with zeros; `nn` and `F` are either library's."""
    class Block(nn.Module):
        def __init__(self, inside, planes, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(inside, planes, kernel_size=3, stride=stride, padding=1, bias=False)
            self.bn1 = nn.BatchNorm2d(planes)
            self.conv2 = nn.Conv2d(planes, planes, kernel_size=3, stride=1, padding=1, bias=False)
            self.bn2 = nn.BatchNorm2d(planes)
            self.more = planes - inside

        def forward(self, x):
            y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
            if self.more:
                x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.more // 2, self.more // 2), "constant", 0)
            return F.relu(y + x)

    class ResNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(3, 16, kernel_size=3, padding=1, bias=False), nn.BatchNorm2d(16)
            for i, (inside, planes) in enumerate(((16, 16), (16, 32), (32, 64)), start=1):
                first = Block(inside, planes, 1 if i == 1 else 2)
                setattr(self, f"layer{i}", nn.Sequential(first, Block(planes, planes, 1), Block(planes, planes, 1)))
            self.linear = nn.Linear(64, 10)

        def forward(self, x):
            x = F.relu(self.bn1(self.conv1(x)))
            x = self.layer3(self.layer2(self.layer1(x)))
            return self.linear(F.avg_pool2d(x, x.size(3)).view(x.size(0), -1))
    return ResNet()


@pytest.mark.slow_on("PYTHON")
def test_resnet20_answers_and_learns_as_in_pytorch():
    path = model_file("torch/cifar10-resnet20-12fca82f.th")
    ours, theirs = resnet20(nn, F), resnet20(torch.nn, torch.nn.functional)
    state = {k.removeprefix("module."): v for k, v in nn.state.torch_load(path)["state_dict"].items()}
    loaded = ours.load_state_dict(state, strict=False)
    other = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    theirs.load_state_dict({k.removeprefix("module."): v for k, v in other.items()}, strict=False)
    assert not loaded.unexpected_keys and not loaded.mismatched
    assert all(name.endswith("num_batches_tracked") for name in loaded.missing_keys)
    x = np.random.default_rng(0).normal(size=(2, 3, 32, 32)).astype(np.float32)
    given, theirs_given = Tensor(x), torch.tensor(x, requires_grad=True)
    answer, wanted = ours.eval()(given), theirs.eval()(theirs_given)
    np.testing.assert_allclose(answer.numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-4)
    F.cross_entropy(answer, Tensor([3, 5])).backward()
    torch.nn.functional.cross_entropy(wanted, torch.tensor([3, 5])).backward()
    grads = {name: p.grad for name, p in theirs.named_parameters()}
    for name in ("conv1.weight", "layer2.0.bn1.weight", "layer3.0.conv1.weight", "linear.bias"):
        mine = dict(ours.named_parameters())[name].grad.numpy()
        scale = float(grads[name].abs().max())
        np.testing.assert_allclose(mine, grads[name].numpy(), rtol=1e-3, atol=1e-4 * scale, err_msg=name)
    np.testing.assert_allclose(given.grad.numpy(), theirs_given.grad.numpy(), rtol=1e-3,
                               atol=1e-4 * float(theirs_given.grad.abs().max()))
