"""The first thing to run: train a small network on handwritten digits and show what ran. `./dev demo`

In: MNIST, found or downloaded; else the 8x8 digits that ship with the package. Out: a test accuracy and a table.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from tqdm import tqdm

from glassgrad.base.errors import GlassgradError
from glassgrad.nn.datafiles import Arrays, DataMissingError, digits_arrays, mnist_arrays

HIDDEN, CLASSES, BATCH, LEARNING_RATE, SEED = 128, 10, 64, 0.3, 0


@dataclass
class Ran:
    """One row of the table: something that ran, how often and for how long."""
    name: str
    times: int = 0
    seconds: float = 0.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; the exit status."""
    parser = argparse.ArgumentParser(prog="glassgrad demo", description="Train a small network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=5, help="rounds over MNIST's 60,000 images (default: 5)")
    epochs = parser.parse_args(arguments).epochs
    if epochs < 1:
        parser.error("--epochs must be at least 1")
    name, data = load_digits()
    if len(data[0]) < 10_000:
        epochs *= 12                            # few images, so more rounds for the same number of steps
    print(f"{name}: {len(data[0]):,} images to learn from, {len(data[2]):,} to be tested on; {epochs} epochs")
    try:
        accuracy, table = train_with_lite(data, epochs)
    except GlassgradError as problem:
        print(problem, file=sys.stderr)
        return 1
    print(f"test accuracy: {accuracy:.2%}\n\n{format_table(table)}")
    return 0


def load_digits() -> tuple[str, Arrays]:
    """The data set's name, and (x_train, y_train, x_test, y_test) with pixels from 0 to 1 in rows of float32."""
    try:
        name, most, (x_train, y_train, x_test, y_test) = "MNIST", 255, mnist_arrays()
    except DataMissingError as problem:
        print(f"{problem.what}; to have it, {problem.mend}.\n"
              "Going on with the 8x8 digits that ship with glassgrad.\n", file=sys.stderr)
        name, most, (x_train, y_train, x_test, y_test) = "8x8 digits", 16, digits_arrays()

    def rows(images: np.ndarray) -> np.ndarray:
        return images.reshape(len(images), -1).astype(np.float32) / most

    return name, (rows(x_train), y_train, rows(x_test), y_test)


def format_table(table: Sequence[Ran]) -> str:
    """What ran, the slowest first.

    >>> print(format_table([Ran("relu", 4, 0.001), Ran("matmul", 8, 0.003)]))
    what ran    times   total ms   share
    matmul          8        3.0     75%
    relu            4        1.0     25%
    """
    width = max([len("what ran"), *(len(row.name) for row in table)])
    everything = sum(row.seconds for row in table) or 1.0
    lines = [f"{'what ran':<{width}}  {'times':>7}  {'total ms':>9}  {'share':>6}"]
    lines += [f"{row.name:<{width}}  {row.times:>7,}  {row.seconds * 1e3:>9,.1f}  {row.seconds / everything:>6.0%}"
              for row in sorted(table, key=lambda row: -row.seconds)]
    return "\n".join(lines)


def train_with_lite(data: Arrays, epochs: int) -> tuple[float, list[Ran]]:
    """Train with tinygrad_lite.py, the 250-line library beside the package: (test accuracy, what ran)."""
    lite = _load_lite()
    table = _count_ops(lite)
    x_train, y_train, x_test, y_test = data
    random = np.random.default_rng(SEED)
    W1 = lite.Tensor(random.normal(0, 0.02, (x_train.shape[1], HIDDEN)), requires_grad=True)
    W2 = lite.Tensor(random.normal(0, 0.02, (HIDDEN, CLASSES)), requires_grad=True)
    b1 = lite.Tensor(np.zeros(HIDDEN), requires_grad=True)
    b2 = lite.Tensor(np.zeros(CLASSES), requires_grad=True)

    def model(x: np.ndarray) -> Any:
        return lite.ReLU(lite.Tensor(x) @ W1 + b1).apply() @ W2 + b2

    starts = range(0, len(x_train), BATCH)
    with tqdm(total=epochs * len(starts), desc="training", unit="step", disable=None) as bar:
        for epoch in range(epochs):
            order, total = random.permutation(len(x_train)), 0.0
            for start in starts:
                rows = order[start:start + BATCH]
                loss = lite.CrossEntropy(model(x_train[rows]), y_train[rows]).apply()
                lite.backward(loss)
                for p in (W1, b1, W2, b2):
                    p.numpy()[...] -= LEARNING_RATE * p.grad.numpy()
                    p.grad = None
                total += loss.item() * len(rows)
                bar.update()
            report = f"epoch {epoch + 1}: loss {total / len(order):.4f}"
            bar.set_postfix_str(report)
            if bar.disable and len(x_train) >= 10_000:      # no terminal, so no bar: a line per epoch instead
                print(report, flush=True)
    accuracy = float((model(x_test).numpy().argmax(axis=1) == y_test).mean())
    return accuracy, list(table.values())


def _load_lite() -> ModuleType:
    path = Path(__file__).resolve().parents[1] / "tinygrad_lite.py"
    spec = importlib.util.spec_from_file_location("tinygrad_lite", path) if path.exists() else None
    if spec is None or spec.loader is None:
        raise GlassgradError("the demo needs tinygrad_lite.py", given=f"there is no {path}",
                             expected="a checkout of glassgrad", mend="run ./dev demo in a clone of the repository")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _count_ops(lite: ModuleType) -> dict[str, Ran]:
    """Make every op of this copy of the library count its forward and backward runs."""
    table: dict[str, Ran] = {}

    def counted(function: Any, row: Ran) -> Any:
        def run(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = function(*arguments)
            row.times, row.seconds = row.times + 1, row.seconds + time.perf_counter() - start
            return result
        return run

    for op in (lite.Add, lite.MatMul, lite.ReLU, lite.CrossEntropy):
        for direction in ("forward", "backward"):
            row = table.setdefault(f"{op.__name__} {direction}", Ran(f"{op.__name__} {direction}"))
            setattr(op, direction, counted(getattr(op, direction), row))
    return table


if __name__ == "__main__":
    sys.exit(main())
