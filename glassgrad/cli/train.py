"""`glassgrad train mnist|fashion|cifar|shakespeare`: train a model while you watch. In: arguments. Out: exit status.

The models are small on purpose: each learns something within minutes on a laptop, and is complete in this file. Larger
ones are in the repository's examples/.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glassgrad import nn
from glassgrad.base.errors import GlassgradError
from glassgrad.cli import parser_of
from glassgrad.cli.training_loop import add_training_options, at_least_one, train
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.jit import TinyJit
from glassgrad.nn import datasets
from glassgrad.nn.datasets.download import download
from glassgrad.nn.datasets.files import cache_folder, data_folders
from glassgrad.nn.state import get_parameters
from glassgrad.tensor.tensor import Tensor

EXAMPLES = """examples:
  glassgrad train mnist
  glassgrad train cifar --steps 1000 --batch 128
  glassgrad train shakespeare --checkpoint plays.safetensors     stop it with Ctrl-C, and go on later
"""
STEPS = {"mnist": 300, "fashion": 300, "cifar": 400, "shakespeare": 400}


def main(arguments: Sequence[str] | None = None) -> int:
    """Train the chosen model; returns the exit status."""
    parser = parser_of("train", "Train a small model and watch it learn.", EXAMPLES)
    parser.add_argument("data", choices=list(STEPS), help="what to learn")
    add_training_options(parser, None, ", ".join(f"{name} {steps}" for name, steps in STEPS.items()))
    parser.add_argument("--batch", type=at_least_one, default=64, help="examples per step (default: 64)")
    options = parser.parse_args(arguments)
    options.steps = options.steps or STEPS[options.data]
    Tensor.manual_seed(options.seed)
    try:
        train_on_text(options) if options.data == "shakespeare" else train_on_images(options)
    except (GlassgradError, OSError) as problem:
        print(problem.advice if isinstance(problem, GlassgradError) else problem, file=sys.stderr)
        return 1
    return 0


# ---- images


def image_model(channels: int, pixels: int) -> nn.Sequential:
    """Make three convolutions, each half the size of the last, and a linear layer."""
    sizes = [channels, 16, 32, 64]
    layers: list[Any] = []
    for inside, outside in zip(sizes, sizes[1:]):
        layers += [nn.Conv2d(inside, outside, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU()]
        pixels = (pixels + 1) // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * pixels * pixels, 10))


def train_on_images(options: argparse.Namespace) -> None:
    """Train a classifier of small images, then test it on held-out ones."""
    load: Callable[[], datasets.Split] = {"mnist": datasets.mnist, "fashion": datasets.fashion_mnist,
                                          "cifar": datasets.cifar}[options.data]
    x_train, y_train, x_test, y_test = load()
    model = image_model(x_train.shape[1], x_train.shape[2])
    optimizer = nn.optim.AdamW(get_parameters(model), lr=2e-3)

    @TinyJit
    @Tensor.train()
    def step(rows: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x_train[rows].float() / 255).cross_entropy(y_train[rows])
        loss.backward()
        optimizer.step()
        return loss

    @TinyJit
    def right(x: Tensor, y: Tensor) -> Tensor:
        return (model(x.float() / 255).argmax(1) == y).sum()

    def accuracy() -> str:
        found = sum(right(x_test[i:i + 500], y_test[i:i + 500]).item() for i in range(0, len(x_test), 500))
        return f"test accuracy {found / len(x_test):.2%}"

    def batch(number: int) -> Tensor:
        random = np.random.default_rng((options.seed, number))
        return step(Tensor(random.integers(0, len(x_train), options.batch).astype(np.int32)))

    print(f"{options.data}: {len(x_train):,} images to learn from, {len(x_test):,} to be tested on; "
          f"{sum(p.numel() for p in optimizer.params):,} parameters")
    train(options, model, optimizer, batch, accuracy, 100)


# ---- text


class Writer:
    """A transformer of three layers that predicts the next character."""

    def __init__(self, characters: int, length: int = 64, width: int = 96, layers: int = 3):
        self.length = length
        self.characters, self.places = nn.Embedding(characters, width), nn.Embedding(length, width)
        self.blocks = [_TransformerBlock(width) for _ in range(layers)]
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters)

    def __call__(self, text: Tensor) -> Tensor:
        x = self.characters(text) + self.places(Tensor.arange(text.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class _TransformerBlock:
    def __init__(self, width: int, heads: int = 4):
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inside, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def __call__(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (part.reshape(batch, length, self.heads, -1).transpose(1, 2)      # (batch, heads, length, size)
                   for part in self.inside(self.norm1(x)).chunk(3, dim=-1))
        mixed = q.scaled_dot_product_attention(k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(self.up(self.norm2(x)).gelu("none"))


def shakespeare() -> str:
    """Return the plays as one text, from where data sets are searched, else downloaded."""
    for place in data_folders():
        path = place.path / "text" / "tinyshakespeare.txt"
        if path.is_file():
            return path.read_text(encoding="utf-8")
    return download(["https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"],
                    Path(cache_folder()) / "text" / "tinyshakespeare.txt",
                    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed").read_text(encoding="utf-8")


def train_on_text(options: argparse.Namespace) -> None:
    """Train a model to write like Shakespeare, character by character, then let it write."""
    text = shakespeare()
    alphabet = sorted(set(text))
    numbers = np.array([alphabet.index(c) for c in alphabet], np.int32)[np.searchsorted(alphabet, list(text))]
    split = len(numbers) * 9 // 10
    known, held_out = Tensor(numbers[:split]), Tensor(numbers[split:])
    model = Writer(len(alphabet))
    optimizer = nn.optim.AdamW(get_parameters(model), lr=2e-3)

    def loss_of(numbers: Tensor, starts: Tensor) -> Tensor:
        at = starts.reshape(-1, 1) + Tensor.arange(model.length)
        return model(numbers[at]).reshape(-1, len(alphabet)).cross_entropy(numbers[at + 1].reshape(-1))

    @TinyJit
    def step(starts: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(known, starts)
        loss.backward()
        optimizer.step()
        return loss

    reference = TinyJit(lambda starts: loss_of(held_out, starts))
    scores = TinyJit(lambda window: model(window).reshape(model.length, -1))

    def batch(number: int) -> Tensor:
        random = np.random.default_rng((options.seed, number))
        return step(Tensor(random.integers(0, split - model.length - 1, options.batch).astype(np.int32)))

    def validation() -> str:
        starts = np.linspace(0, len(held_out) - model.length - 1, 512).astype(np.int32).reshape(8, 64)
        return f"validation loss {np.mean([reference(Tensor(row)).item() for row in starts]):.4f}"

    print(f"shakespeare: {len(text):,} characters; {sum(p.numel() for p in optimizer.params):,} parameters")
    train(options, model, optimizer, batch, validation, 100)
    random, said = np.random.default_rng(options.seed), [alphabet.index("\n")]
    while len(said) < 300:
        seen = said[-model.length:]
        window = np.zeros((1, model.length), np.int32)
        window[0, :len(seen)] = seen
        found = scores(Tensor(window, dtype=dtypes.int32)).numpy()[len(seen) - 1].astype(np.float64) / 0.8
        chance = np.exp(found - found.max())
        said.append(int(random.choice(len(alphabet), p=chance / chance.sum())))
    print("".join(alphabet[i] for i in said) + os.linesep.replace("\r", ""))
