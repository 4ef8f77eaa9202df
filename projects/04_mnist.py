"""Project 4: a convolutional network that reads handwritten digits. Run it: python projects/04_mnist.py

Its page is docs/guide/04_mnist.md. MNIST is looked for in $GLASSGRAD_DATA and ../shared/data, else fetched.
GLASSGRAD_SHORT=1 trains a few batches only. The results are written to the folder named by --out (default: .).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from plot import save_png
from telling import SHORT, chapter, tell

from glassgrad import Context, GlobalCounters, Tensor, nn
from glassgrad.engine.profile import profile as profiled
from glassgrad.jit import TinyJit
from glassgrad.nn.optim import Adam
from glassgrad.nn.state import get_parameters, get_state_dict, load_state_dict, safe_load, safe_save

EPOCHS, BATCH, RATE = 5, 128, 0.003


class Net:
    """Three rounds of convolution, normalization, relu and pooling, then one layer that votes."""

    def __init__(self) -> None:
        self.conv1, self.norm1 = nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm(16)
        self.conv2, self.norm2 = nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm(32)
        self.conv3, self.norm3 = nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm(64)
        self.vote = nn.Linear(64 * 3 * 3, 10)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.norm1(self.conv1(x)).relu().max_pool2d(2)       # (batch, 16, 14, 14)
        x = self.norm2(self.conv2(x)).relu().max_pool2d(2)       # (batch, 32, 7, 7)
        x = self.norm3(self.conv3(x)).relu().max_pool2d(2)       # (batch, 64, 3, 3)
        return self.vote(x.flatten(1))                           # (batch, 10)


class Digits:
    """The data in memory, and everything that is done with them."""

    def __init__(self) -> None:
        self.x_train, self.y_train, self.x_test, self.y_test = nn.datasets.mnist()
        self.tested = 1000 if SHORT else 10_000

    def trainer(self, model: Net, optimizer: Adam) -> TinyJit:
        """One step of training on the images of these numbers, captured: after three calls no Python runs in it."""
        @TinyJit
        def step(rows: Tensor) -> tuple[Tensor, Tensor]:
            with Tensor.train():
                optimizer.zero_grad()
                answers = model(self.x_train[rows].float() / 255)
                loss = answers.sparse_categorical_crossentropy(self.y_train[rows])
                loss.backward()
                right = (answers.argmax(1) == self.y_train[rows]).mean()
                # all of it at once: after step() alone, `right` would compute the whole forward pass a second time
                loss.realize(right, *optimizer.schedule_step())
                return loss, right
        return step

    def wasteful_step(self, model: Net, optimizer: Adam, rows: Tensor) -> None:
        """The same step written the obvious way: step, then ask for the accuracy."""
        with Tensor.train():
            optimizer.zero_grad()
            answers = model(self.x_train[rows].float() / 255)
            answers.sparse_categorical_crossentropy(self.y_train[rows]).backward()
            optimizer.step()
            (answers.argmax(1) == self.y_train[rows]).mean().realize()

    def accuracy(self, model: Net) -> float:
        """The share of test images that are read right."""
        @TinyJit
        def right(rows: Tensor) -> Tensor:
            return (model(self.x_test[rows].float() / 255).argmax(1) == self.y_test[rows]).sum()
        with Tensor.test():
            return sum(right(Tensor.arange(at, at + 500)).item() for at in range(0, self.tested, 500)) / self.tested


def profile(step: TinyJit, rows: Tensor) -> None:
    """Run one step with DEBUG=2, which times every kernel, and show where the time goes."""
    step.function(rows)                                     # compile, so that the step below only runs
    GlobalCounters.reset()
    with Context(DEBUG=2), contextlib.redirect_stdout(io.StringIO()) as printed:
        step.function(rows)
    line = re.compile(r"^\*\*\* +\S+ +\d+ (\S+) +([\d.]+) us +([\d.]+) GFLOPS.*?(\w+\.py:\d+)", re.M)
    found = line.findall(printed.getvalue())
    total = sum(float(us) for _, us, _, _ in found)
    print(f"  {GlobalCounters.kernel_count} kernels, {GlobalCounters.global_ops / 1e9:.2f} billion operations a step")
    assert len(found) == GlobalCounters.kernel_count
    print("  the five that cost most:")
    for name, us, speed, place in sorted(found, key=lambda row: -float(row[1]))[:5]:
        print(f"    {name:<34} {float(us) / 1000:6.2f} ms {float(us) / total:5.0%} {speed:>7} GFLOPS   {place}")
    tell("reduce_... with a product of sizes and one or more r (reduced) sizes are the convolutions and their "
         "gradients; map_... "
         "are the optimizer and everything elementwise. The line is the one in this script that asked for it.")


def kernel_times(step: Callable[[Tensor], object], rows: Tensor, **settings: float) -> dict[tuple[str, str], float]:
    """Microseconds of each kernel of a step, by its name and line, under these settings."""
    with Context(**settings), profiled() as ran:
        step(rows)
    return {(row.name, row.line): row.nanoseconds / 1000 for row in ran.rows}


def search(step: TinyJit, model: Net, rows: Tensor, digits: Digits) -> None:
    """Every kernel of the step with and without BEAM=2: the same numbers, in less time or the same."""
    settings = {"BEAM": 2, "BEAM_SECONDS": 0.1 if SHORT else 10.0}

    def forward(rows: Tensor) -> np.ndarray:
        return model(digits.x_train[rows].float() / 255).numpy()

    work: Callable[[Tensor], object] = forward if SHORT else step.function
    started, same = time.perf_counter(), forward(rows)
    with Context(**settings):
        assert (forward(rows) == same).all(), "a search changes the time, and not one bit"
        work(rows)                                          # finds a way for each kernel, or knows it from last time
    print(f"  searched for {time.perf_counter() - started:.0f} s" + " (the forward pass only)" * SHORT)
    turns = [(kernel_times(work, rows), kernel_times(work, rows, **settings)) for _ in range(7)]
    before, after = ({kernel: min(turn[way][kernel] for turn in turns) for kernel in turns[0][way]} for way in (0, 1))
    assert before.keys() == after.keys()
    print(f"  {len(before)} different kernels: {sum(before.values()) / 1000:.1f} ms by the recipes, "
          f"{sum(after.values()) / 1000:.1f} ms after BEAM=2")
    print("  what gained most:")
    for kernel in sorted(before, key=lambda k: after[k] - before[k])[:5]:
        print(f"    {kernel[0]:<34} {before[kernel] / 1000:6.2f} ms -> {after[kernel] / 1000:6.2f} ms   {kernel[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a convolutional network on MNIST and look at what ran.")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"rounds over the 60,000 images (default: {EPOCHS})")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for the model and the chart (default: .)")
    options = parser.parse_args()
    Tensor.manual_seed(4)
    random = np.random.default_rng(4)
    digits, model = Digits(), Net()
    optimizer = Adam(get_parameters(model), lr=RATE)
    step = digits.trainer(model, optimizer)
    epochs, batches = (1, 30) if SHORT else (options.epochs, len(digits.x_train) // BATCH)

    chapter("Training")
    learned = sum(p.numel() for p in optimizer.params)
    print(f"  {len(digits.x_train):,} images, {learned:,} parameters, {epochs} epochs of {batches} batches of {BATCH}")
    losses, accuracies, start = [], [], time.perf_counter()
    for epoch in range(epochs):
        order = random.permutation(len(digits.x_train)).astype(np.int32)
        seen = []
        for batch in range(batches):
            done = (epoch * batches + batch) / (epochs * batches)
            optimizer.lr = RATE * (0.02 + 0.98 * (1 + math.cos(math.pi * done)) / 2)   # large steps, then small ones
            loss, right = step(Tensor(order[batch * BATCH:(batch + 1) * BATCH]))
            seen.append(loss.item())
            accuracies.append(right.item())
        losses += seen
        print(f"  epoch {epoch + 1}: loss {np.mean(seen):.4f}, test accuracy {digits.accuracy(model):.2%}, "
              f"{time.perf_counter() - start:.0f} s so far", flush=True)
    final = digits.accuracy(model)
    if SHORT:
        print("  (GLASSGRAD_SHORT: a few batches, checked against the loss and 1,000 test images)")
        assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:5]) and final > 0.7
    else:
        assert final > 0.98 or epochs < EPOCHS, f"{final:.2%} is not over 98%"
    assert step.captured

    chapter("What runs in a step, and what costs most")
    rows = Tensor(order[:BATCH])
    profile(step, rows)
    together = GlobalCounters.kernel_count, GlobalCounters.global_ops
    GlobalCounters.reset()
    digits.wasteful_step(model, optimizer, rows)
    apart = GlobalCounters.kernel_count, GlobalCounters.global_ops
    for way, (count, operations) in (("asked for together", together), ("accuracy after optimizer.step()", apart)):
        print(f"  loss, accuracy, parameters, {way + ':':<33} {count} kernels, {operations / 1e9:.2f} billion")
    assert together[0] < apart[0] and together[1] < 0.9 * apart[1]

    chapter("BEAM=2, before and after")
    tell("The recipes decide from shapes and a description of the processor. BEAM=2 lets the machine try their "
         "neighbours and keeps what is clearly faster, kernel by kernel. It is done once: the next run finds the "
         "results on disk.")
    search(step, model, rows, digits)

    chapter("Saved, loaded, and the same")
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "mnist.safetensors"
    safe_save(get_state_dict(model), path)
    final = digits.accuracy(model)                          # the profile trained a little further
    other = Net()
    before = digits.accuracy(other)
    load_state_dict(other, safe_load(path))
    after = digits.accuracy(other)
    print(f"  saved {final:.2%}; a new network {before:.2%}; the same after loading {path.name}: {after:.2%}")
    assert after == final > before

    chapter("The curves")
    window = max(1, len(losses) // 200)
    smooth = [np.convolve(curve, np.ones(window) / window, "valid") for curve in (losses, accuracies)]
    save_png(options.out / "mnist.png", {"loss": smooth[0], "accuracy": smooth[1]})
    print(f"  mnist.png: loss and accuracy on the batches of training, each point the mean of {window}")


if __name__ == "__main__":
    main()
