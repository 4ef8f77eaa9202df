"""Define ResNet and GPT-2 as PyTorch modules. In: sizes. Out: a module whose parameters have the names of examples/.

The names are torchvision's and those of GPT-2's published files, so that a state dict can be passed from one library to
the other as it is. Attention is PyTorch's own fused function.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

__all__ = ["GPT", "ResNet"]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, added to their input."""
    widening = 1

    def __init__(self, inside: int, planes: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, planes, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(planes), nn.BatchNorm2d(planes)
        self.downsample = shortcut(inside, planes, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn1(self.conv1(x)).relu()
        return (self.bn2(self.conv2(y)) + self.downsample(x)).relu()


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, added to their input."""
    widening = 4

    def __init__(self, inside: int, planes: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, planes, 1, bias=False)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.conv3 = nn.Conv2d(planes, 4 * planes, 1, bias=False)
        self.bn1, self.bn2, self.bn3 = nn.BatchNorm2d(planes), nn.BatchNorm2d(planes), nn.BatchNorm2d(4 * planes)
        self.downsample = shortcut(inside, 4 * planes, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn1(self.conv1(x)).relu()
        y = self.bn2(self.conv2(y)).relu()
        return (self.bn3(self.conv3(y)) + self.downsample(x)).relu()


def shortcut(inside: int, outside: int, stride: int) -> nn.Module:
    """A block's input in the shape of its result."""
    if stride == 1 and inside == outside:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))


class ResNet(nn.Module):
    """He et al. 2015; `bottleneck` as in ResNet-50."""

    def __init__(self, bottleneck: bool, depths: Sequence[int], planes: int = 64, classes: int = 1000):
        super().__init__()
        block = Bottleneck if bottleneck else BasicBlock
        self.conv1, self.bn1 = nn.Conv2d(3, planes, 7, 2, 3, bias=False), nn.BatchNorm2d(planes)
        inside = planes
        self.stages = len(depths)
        for stage, depth in enumerate(depths):
            blocks = []
            for i in range(depth):
                blocks.append(block(inside, planes << stage, 2 if stage and not i else 1))
                inside = (planes << stage) * block.widening
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inside, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(self.bn1(self.conv1(x)).relu(), 3, 2, 1)
        for stage in range(self.stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(x.mean((2, 3)))


class Conv1D(nn.Module):
    """A linear layer whose weight is (in, out), as in GPT-2's files."""

    def __init__(self, inside: int, outside: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inside, outside) * 0.02)
        self.bias = nn.Parameter(torch.zeros(outside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight.t(), self.bias)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.c_attn, self.c_proj = heads, Conv1D(width, 3 * width), Conv1D(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.c_attn(x).chunk(3, -1))
        return self.c_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.c_fc, self.c_proj = Conv1D(width, 4 * width), Conv1D(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c_proj(F.gelu(self.c_fc(x)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.mlp = Attention(width, heads), MLP(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """GPT-2; the last layer's weights are those of the first."""

    def __init__(self, words: int, length: int, layers: int, heads: int, width: int):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(length, width)
        for table in (self.wte, self.wpe):
            nn.init.normal_(table.weight, 0, 0.02)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)
