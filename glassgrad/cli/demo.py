"""The first thing to run: train a small network on handwritten digits and show what ran. `./dev demo`

In: MNIST, found or downloaded; else the 8x8 digits that ship with the package. Out: a test accuracy, and a table of the
kernels that ran, with the lines of this file that they compute.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
from tqdm import tqdm

from glassgrad import nn
from glassgrad.cli import parser_of
from glassgrad.engine.profile import Profile, profile
from glassgrad.jit import TinyJit
from glassgrad.nn.datasets.files import Arrays, DataMissingError, digits_arrays, mnist_arrays
from glassgrad.nn.state import get_parameters
from glassgrad.tensor.tensor import Tensor

HIDDEN, CLASSES, BATCH, LEARNING_RATE, SEED = 256, 10, 128, 2e-3, 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit status."""
    parser = parser_of("demo", "Train a small network on handwritten digits.", "example: glassgrad demo --epochs 1")
    parser.add_argument("--epochs", type=int, default=5, help="rounds over MNIST's 60,000 images (default: 5)")
    epochs = parser.parse_args(arguments).epochs
    if epochs < 1:
        parser.error("--epochs must be at least 1")
    name, data = load_digits()
    if len(data[0]) < 10_000:
        epochs *= 12                            # few images: more epochs for the same number of steps
    print(f"{name}: {len(data[0]):,} images to learn from, {len(data[2]):,} to be tested on; {epochs} epochs")
    accuracy, ran, seconds = train(data, epochs)
    print(f"test accuracy: {accuracy:.2%}\n")
    print(f"{ran.kernels:,} kernels ran in {ran.seconds:.1f} s of the {seconds:.1f} s of training:\n{ran.table(12)}")
    return 0


def load_digits() -> tuple[str, Arrays]:
    """Return the data set's name, and (x_train, y_train, x_test, y_test) with pixels from 0 to 1 in rows of float32."""
    try:
        name, most, (x_train, y_train, x_test, y_test) = "MNIST", 255, mnist_arrays()
    except DataMissingError as problem:
        print(f"{problem.what}; to have it, {problem.fix}.\n"
              "Going on with the 8x8 digits that ship with glassgrad.\n", file=sys.stderr)
        name, most, (x_train, y_train, x_test, y_test) = "8x8 digits", 16, digits_arrays()

    def rows(images: np.ndarray) -> np.ndarray:
        return images.reshape(len(images), -1).astype(np.float32) / most

    return name, (rows(x_train), y_train, rows(x_test), y_test)


def train(data: Arrays, epochs: int) -> tuple[float, Profile, float]:
    """Train a network of two layers; return (test accuracy, the kernels that ran, seconds of training)."""
    x_train, y_train, x_test, y_test = (Tensor(array) for array in data)
    Tensor.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(x_train.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    optimizer = nn.optim.Adam(get_parameters(model), lr=LEARNING_RATE)

    @TinyJit
    def step(rows: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x_train[rows]).cross_entropy(y_train[rows])
        loss.backward()
        optimizer.step()
        return loss

    start = time.perf_counter()
    with profile() as ran:
        run_epochs(step, len(x_train), epochs)
    seconds = time.perf_counter() - start
    accuracy = (model(x_test).argmax(axis=1) == y_test).float().mean().item()
    return accuracy, ran, seconds


def run_epochs(step: Callable[[Tensor], Tensor], images: int, epochs: int) -> None:
    """Call a training step for every batch of every epoch, reshuffled each epoch, and show progress."""
    random = np.random.default_rng(SEED)
    size = min(BATCH, images)
    starts = range(0, images - size + 1, size)      # all batches have one size, so that one capture serves them
    with tqdm(total=epochs * len(starts), desc="training", unit="step", disable=None) as bar:
        for epoch in range(epochs):
            order, total = random.permutation(images).astype(np.int32), 0.0
            for begin in starts:
                total += step(Tensor(order[begin:begin + size])).item()
                bar.update()
            report = f"epoch {epoch + 1}: loss {total / len(starts):.4f}"
            bar.set_postfix_str(report)
            if bar.disable and images >= 10_000:    # no terminal, so no bar: a line per epoch instead
                print(report, flush=True)
