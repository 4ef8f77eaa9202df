"""A convolutional network reads handwritten digits: the model, the step and the loop on one page.

In: MNIST. Out: accuracy on its 10,000 test images.

    python examples/beautiful_mnist.py                        200 steps: 98.0%
    python examples/beautiful_mnist.py --steps 100 --checkpoint mnist.safetensors
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from common import at_least_one, train, training_arguments

from glassgrad import GlassgradError, Tensor, nn
from glassgrad.jit import TinyJit
from glassgrad.nn.state import get_parameters


class Model:
    def __init__(self) -> None:
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 5), nn.ReLU(),
            nn.Conv2d(32, 32, 5), nn.ReLU(),
            nn.BatchNorm2d(32), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3), nn.ReLU(),
            nn.Conv2d(64, 64, 3), nn.ReLU(),
            nn.BatchNorm2d(64), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(576, 10))

    def __call__(self, x: Tensor) -> Tensor:
        return self.layers(x.float() / 255)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and test; the exit status."""
    parser = training_arguments("A convolutional network on MNIST.", 200,
                                "python examples/beautiful_mnist.py --steps 70")
    parser.add_argument("--batch", type=at_least_one, default=128, help="images per step (default: 128)")
    parser.add_argument("--test-images", type=int, default=10_000, help="how many to test on (default: all 10,000)")
    options = parser.parse_args(arguments)
    if not 1 <= options.test_images <= 10_000:
        parser.error("--test-images must be from 1 to 10000")
    try:
        x_train, y_train, x_test, y_test = nn.datasets.mnist()
    except GlassgradError as problem:
        print(problem, file=sys.stderr)
        return 1
    x_test, y_test = x_test[:options.test_images], y_test[:options.test_images]
    Tensor.manual_seed(options.seed)
    model = Model()
    optimizer = nn.optim.Adam(get_parameters(model))

    @TinyJit
    @Tensor.train()
    def step() -> Tensor:
        rows = Tensor.randint(options.batch, high=len(x_train))
        optimizer.zero_grad()
        loss = model(x_train[rows]).cross_entropy(y_train[rows])
        loss.backward()
        optimizer.step()
        return loss

    @TinyJit
    def right(x: Tensor, y: Tensor) -> Tensor:
        return (model(x).argmax(1) == y).sum()

    def accuracy(batch: int = 500) -> float:
        found = sum(right(x_test[i:i + batch], y_test[i:i + batch]).item() for i in range(0, len(x_test), batch))
        return found / len(x_test)

    seconds = train(options, model, optimizer, lambda _: step(), lambda: f"test accuracy {accuracy():.2%}", 100)
    print(f"test accuracy: {accuracy():.2%} after {seconds:.0f} s of training")
    return 0


if __name__ == "__main__":
    sys.exit(main())
