"""Residual networks for small photographs: check a published one, or train one.

In: CIFAR-10. Out: accuracy on its 10,000 test images.

    python examples/resnet.py --evaluate                      the published ResNet-20: 91.73% of all test images
    python examples/resnet.py                                 train a ResNet-20 for 200 steps: 45.4%
    python examples/resnet.py --model resnet18 --weights resnet18.pth --classes 1000 --evaluate
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import at_least_one, find_file, train, training_arguments

from glassgrad import GlassgradError, Tensor, dtypes, nn
from glassgrad.jit import TinyJit
from glassgrad.nn.state import get_parameters, get_state_dict, load_state_dict, safe_load, torch_load

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)      # of the colours, as PyTorch's models have them
PUBLISHED = "cifar10-resnet20-12fca82f.th"
ADDRESS = "https://github.com/akamaster/pytorch_resnet_cifar10/raw/master/pretrained_models/resnet20-12fca82f.th"


class BasicBlock:
    """Two 3x3 convolutions, added to what came in."""
    widening = 1

    def __init__(self, inside: int, planes: int, stride: int, projected: bool):
        self.conv1 = nn.Conv2d(inside, planes, 3, stride=stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(planes), nn.BatchNorm2d(planes)
        self.downsample = shortcut(inside, planes, stride, projected)

    def __call__(self, x: Tensor) -> Tensor:
        y = self.bn1(self.conv1(x)).relu()
        return (self.bn2(self.conv2(y)) + self.downsample(x)).relu()


class Bottleneck:
    """1x1, 3x3 and 1x1: the middle one works on a quarter of the channels."""
    widening = 4

    def __init__(self, inside: int, planes: int, stride: int, projected: bool):
        self.conv1 = nn.Conv2d(inside, planes, 1, bias=False)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride=stride, padding=1, bias=False)
        self.conv3 = nn.Conv2d(planes, 4 * planes, 1, bias=False)
        self.bn1, self.bn2, self.bn3 = nn.BatchNorm2d(planes), nn.BatchNorm2d(planes), nn.BatchNorm2d(4 * planes)
        self.downsample = shortcut(inside, 4 * planes, stride, projected)

    def __call__(self, x: Tensor) -> Tensor:
        y = self.bn1(self.conv1(x)).relu()
        y = self.bn2(self.conv2(y)).relu()
        return (self.bn3(self.conv3(y)) + self.downsample(x)).relu()


def shortcut(inside: int, outside: int, stride: int, projected: bool) -> Any:
    """What is added to a block's result: its input, brought to the same shape."""
    if stride == 1 and inside == outside:
        return nn.Identity()
    if projected:
        return nn.Sequential(nn.Conv2d(inside, outside, 1, stride=stride, bias=False), nn.BatchNorm2d(outside))
    more = (outside - inside) // 2                      # CIFAR's way, without weights: fewer pixels, empty channels
    return lambda x: x[:, :, ::stride, ::stride].pad(((0, 0), (more, more), (0, 0), (0, 0)))


class ResNet:
    """He et al. 2015. Parameters are named as in torchvision."""

    def __init__(self, block: Any, depths: Sequence[int], planes: int, classes: int, small: bool):
        self.small = small                              # 32x32 images: no early pooling, shortcuts without weights
        self.conv1 = nn.Conv2d(3, planes, 3, padding=1, bias=False) if small else \
            nn.Conv2d(3, planes, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        inside = planes
        for stage, depth in enumerate(depths):
            blocks = []
            for i in range(depth):
                blocks.append(block(inside, planes << stage, 2 if stage and not i else 1, projected=not small))
                inside = (planes << stage) * block.widening
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.stages = len(depths)
        self.fc = nn.Linear(inside, classes)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.bn1(self.conv1(x)).relu()
        if not self.small:
            x = x.max_pool2d(3, stride=2, padding=1)
        for stage in range(self.stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(x.mean(axis=(2, 3)))


def build(name: str, classes: int = 10) -> ResNet:
    """A network by name."""
    if name == "resnet20":
        return ResNet(BasicBlock, (3, 3, 3), 16, classes, small=True)
    return ResNet(*((BasicBlock, (2, 2, 2, 2)) if name == "resnet18" else (Bottleneck, (3, 4, 6, 3))), 64, classes,
                  small=False)


def load_weights(model: ResNet, path: Path) -> None:
    """Weights from a file of PyTorch or safetensors, torchvision's or akamaster's."""
    found = safe_load(path) if path.suffix == ".safetensors" else torch_load(path)
    found = found.get("state_dict", found)
    named = {name.removeprefix("module.").replace("linear.", "fc."): tensor for name, tensor in found.items()}
    # files from before PyTorch 0.4.1 do not count batches
    counters = {name: t for name, t in get_state_dict(model).items() if name.endswith("num_batches_tracked")}
    load_state_dict(model, {**counters, **named}, verbose=False)


class Images:
    """CIFAR-10, normalised; training images are mirrored and moved at random."""

    def __init__(self) -> None:
        self.x_train, self.y_train, self.x_test, self.y_test = nn.datasets.cifar()

    @staticmethod
    def normal(x: Tensor) -> Tensor:
        mean, deviation = (Tensor(list(v)).reshape(1, 3, 1, 1) for v in (MEAN, DEVIATION))
        return (x.float() / 255 - mean) / deviation

    def batch(self, rows: Tensor, mirrored: Tensor) -> tuple[Tensor, Tensor]:
        """Some images and their labels; `mirrored` says which are flipped."""
        x = self.normal(self.x_train[rows])
        return mirrored.reshape(-1, 1, 1, 1).where(x.flip(3), x), self.y_train[rows]

    def accuracy(self, model: ResNet, images: int, batch: int = 250) -> float:
        """The part of the first test images that the model names rightly."""
        @TinyJit
        def right(x: Tensor, y: Tensor) -> Tensor:
            return (model(self.normal(x)).argmax(1) == y).sum()

        with Tensor.train(False):
            found = sum(int(right(self.x_test[i:i + batch], self.y_test[i:i + batch]).item())
                        for i in range(0, images, batch))
        return found / images


def main(arguments: Sequence[str] | None = None) -> int:
    """Train or evaluate; the exit status."""
    parser = training_arguments("A residual network on CIFAR-10.", 200, "python examples/resnet.py --steps 600 "
                                "--checkpoint resnet.safetensors")
    parser.add_argument("--model", choices=["resnet20", "resnet18", "resnet50"], default="resnet20")
    parser.add_argument("--evaluate", action="store_true", help="do not train: load weights and test them")
    parser.add_argument("--weights", type=Path,
                        help="a file of PyTorch or safetensors (default: the published ResNet-20)")
    parser.add_argument("--classes", type=int, default=10, help="results of the last layer (default: 10)")
    parser.add_argument("--batch", type=at_least_one, default=64, help="images per step (default: 64)")
    parser.add_argument("--test-images", type=int, default=10_000, help="how many to test on (default: all 10,000)")
    options = parser.parse_args(arguments)
    if not 1 <= options.test_images <= 10_000:
        parser.error("--test-images must be from 1 to 10000")
    Tensor.manual_seed(options.seed)
    model = build(options.model, options.classes)
    try:
        images = Images()
        if options.evaluate or options.weights:
            load_weights(model, options.weights or find_file(f"models/torch/{PUBLISHED}", ADDRESS,
                         "12fca82f0bebc4135bf1f32f6e3710e61d5108578464b84fd6d7f5c1b04036c8"))
    except GlassgradError as problem:
        print(problem, file=sys.stderr)
        return 1
    batch = min(250, options.test_images)
    if not options.evaluate:
        seconds = train_on(images, model, options)
        print(f"trained for {seconds:.0f} s")
    start = time.perf_counter()
    accuracy = images.accuracy(model, options.test_images // batch * batch, batch)
    print(f"test accuracy: {accuracy:.2%} of {options.test_images // batch * batch:,} images "
          f"({time.perf_counter() - start:.0f} s)")
    return 0


def train_on(images: Images, model: ResNet, options: Any) -> float:
    optimizer = nn.optim.SGD(get_parameters(model), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = nn.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=options.steps + 1)

    @TinyJit
    def learn(rows: Tensor, mirrored: Tensor) -> Tensor:
        x, y = images.batch(rows, mirrored)
        optimizer.zero_grad()
        loss = model(x).cross_entropy(y)
        loss.backward()
        optimizer.step()
        return loss

    def step(number: int) -> Tensor:
        random = np.random.default_rng((options.seed, number))
        rows = random.integers(0, len(images.x_train), options.batch).astype(np.int32)
        with Tensor.train():
            loss = learn(Tensor(rows), Tensor(random.random(options.batch) < 0.5, dtype=dtypes.bool))
        schedule.step()
        return loss

    return train(options, model, [optimizer, schedule], step, report_every=100)


if __name__ == "__main__":
    sys.exit(main())
