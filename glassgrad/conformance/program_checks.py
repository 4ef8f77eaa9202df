"""Check whole programs: random numbers, the jit, training. Out: cases, against NumPy or the device PYTHON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from glassgrad.base.settings import Context
from glassgrad.compiler.graph.symbolic import Variable
from glassgrad.conformance.case import REFERENCE, Case, Compared, on, seeded
from glassgrad.conformance.op_checks import softmax
from glassgrad.jit import TinyJit
from glassgrad.nn.optim import SGD, Adam
from glassgrad.tensor.tensor import Tensor

SEED = 1234


# -- random numbers ------------------------------------------------------------------------------------------
def random_numbers() -> Iterator[Case]:
    """Random numbers: one seed gives the same numbers on every device."""
    for name, draw in {"uniform": lambda d: Tensor.rand(5, 7, device=d),
                       "normal": lambda d: Tensor.randn(101, device=d),
                       "integers": lambda d: Tensor.randint(1000, low=-5, high=50, device=d),
                       "one number": lambda d: Tensor.rand(1, device=d),
                       "70,001 numbers": lambda d: Tensor.rand(70_001, device=d),
                       "drawn twice": lambda d: Tensor.rand(9, device=d).cat(Tensor.rand(9, device=d))}.items():
        yield Case(f"{name}: as on {REFERENCE}", partial(_drawn, draw=draw))
    yield Case("uniform numbers are spread evenly", _spread)
    yield Case("dropout", _dropout)


def _drawn(device: str, draw: Callable[[str], Tensor]) -> Compared:
    values = []
    for name in (device, REFERENCE):
        Tensor.manual_seed(SEED)
        values.append(draw(name).realize())
    return Compared(f"Tensor.manual_seed({SEED})", values[0], values[1].numpy(), 5)


def _spread(device: str) -> Compared:
    Tensor.manual_seed(SEED)
    counts = np.histogram(Tensor.rand(100_000, device=device).numpy(), 10, (0, 1))[0]
    return Compared("Tensor.rand(100_000): a tenth in each tenth, within 5%", np.abs(counts - 10_000) < 500,
                    np.full(10, True))


def _dropout(device: str) -> Compared:
    Tensor.manual_seed(SEED)
    with Context(TRAINING=1):
        kept = Tensor.ones(10_000, device=device).contiguous().dropout(0.25).numpy()
    share = float((kept == 0).mean())
    found = np.array([0.23 < share < 0.27, bool(np.isclose(kept[kept != 0], 1 / 0.75).all())])
    return Compared("ones(10_000).dropout(0.25): a quarter 0, the rest 4/3", found, np.array([True, True]))


# -- the jit -------------------------------------------------------------------------------------------------
CALLS = 5          # two traces, then replays


def jit() -> Iterator[Case]:
    """The jit: a replay launches the same kernels on other memory."""
    yield Case("other inputs at each call", lambda d: _calls(d, lambda x: (x @ x.T).relu().sum(1),
                                                             lambda x: np.maximum(x @ x.T, 0).sum(1)))
    yield Case("several kernels, each reads the one before",
               lambda d: _calls(d, lambda x: ((x - x.mean()).realize() / x.std()).realize().softmax(1),
                                lambda x: softmax((x - x.mean()) / x.std(ddof=1))))
    yield Case("two results", _two_results)
    yield Case("a value written in place by each call", _counter)
    yield Case("a view as input", lambda d: _calls(d, lambda x: x * 2 + 1, lambda x: x[1:] * 2 + 1,
                                                   give=lambda x: x[1:]))
    yield Case("random numbers differ in each replay", _random_replays)
    yield Case("a size that changes", _symbolic)


def _calls(device: str, formula: Callable[[Tensor], Tensor], reference: Callable[[np.ndarray], np.ndarray],
           give: Callable[[Tensor], Tensor] = lambda x: x) -> Compared:
    replayed = TinyJit(lambda x: formula(x).realize())
    arrays = [seeded(6, 11, seed=n) for n in range(CALLS)]
    got = np.stack([replayed(give(on(device, array))).numpy() for array in arrays])
    expected = np.stack([reference(array.astype(np.float64)) for array in arrays])
    return Compared(f"float32[6, 11], {CALLS} calls", got, expected, 20)


def _two_results(device: str) -> Compared:
    @TinyJit
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x * 3).realize()
        return y, (y + 1).sum(0).realize()

    arrays = [seeded(4, 5, dtype="int32", high=90, seed=n) for n in range(CALLS)]
    got = [np.concatenate([part.numpy().ravel() for part in both(on(device, array))]) for array in arrays]
    expected = [np.concatenate([(a * 3).ravel(), (a * 3 + 1).sum(0)]) for a in arrays]
    return Compared(f"int32[4, 5], {CALLS} calls", np.stack(got), np.stack(expected))


def _counter(device: str) -> Compared:
    count = on(device, np.zeros(3, np.int32))

    @TinyJit
    def step(x: Tensor) -> Tensor:
        count.assign(count + x).realize()
        return (count * 2).realize()

    got = [step(on(device, np.full(3, n, np.int32))).numpy() for n in range(CALLS)]
    return Compared(f"int32[3], {CALLS} calls that add 0, 1, 2, ...", np.stack(got),
                    np.stack([np.full(3, n * (n + 1)) for n in range(CALLS)]))


def _random_replays(device: str) -> Compared:
    draw = TinyJit(lambda: Tensor.rand(7, device=device).realize())
    Tensor.manual_seed(SEED)
    got = np.stack([draw().numpy() for _ in range(CALLS)])
    Tensor.manual_seed(SEED)
    expected = np.stack([Tensor.rand(7, device=REFERENCE).numpy() for _ in range(CALLS)])
    return Compared(f"Tensor.rand(7), {CALLS} calls", got, expected)


def _symbolic(device: str) -> Compared:
    total = TinyJit(lambda x: (x * 2).sum(0).realize())
    array, length = seeded(16, 3), Variable("n", 1, 16)
    lengths = (1, 5, 16, 7, 2, 11)
    x = on(device, array)
    got = np.stack([total(x[:length.bind(n)]).numpy() for n in lengths])
    expected = np.stack([(array[:n].astype(np.float64) * 2).sum(0) for n in lengths])
    return Compared(f"float32[n, 3], n = {', '.join(map(str, lengths))}", got, expected, 5)


# -- training ------------------------------------------------------------------------------------------------
def training() -> Iterator[Case]:
    """Training: gradients, optimizers, a network that learns."""
    yield Case("gradients of a layer", lambda d: _gradients(d, 6, 5, 3))
    yield Case("gradients of a larger layer", lambda d: _gradients(d, 33, 70, 17))
    yield Case("a second gradient", _second_gradient)
    yield Case("SGD, 5 steps of a net", _sgd)
    for name, make in {"Adam": lambda p: Adam(p, lr=0.01), "SGD with momentum": lambda p: SGD(p, lr=0.1, momentum=0.9),
                       }.items():
        yield Case(f"{name}: a net with convolutions, 3 steps",
                   partial(_as_reference, program=partial(_convolutional, make=make)))
    yield Case("a jitted step, 5 times", lambda d: _as_reference(d, _jitted))
    yield Case("a net learns two classes", _learns)


def _as_reference(device: str, program: Callable[[str], np.ndarray]) -> Compared:
    return Compared(f"float32, compared with {REFERENCE}", program(device), program(REFERENCE), 100)


def _gradients(device: str, batch: int, inputs: int, outputs: int) -> Compared:
    arrays = x, w, b = seeded(batch, inputs), seeded(inputs, outputs), seeded(outputs)
    tensors = [on(device, array) for array in arrays]
    (tensors[0] @ tensors[1] + tensors[2]).relu().square().sum().backward()
    x, w, b = (array.astype(np.float64) for array in arrays)
    slope = 2 * np.maximum(x @ w + b, 0)
    expected = [slope @ w.T, x.T @ slope, slope.sum(0)]
    return Compared(f"float32[{batch}, {inputs}], float32[{inputs}, {outputs}], float32[{outputs}]",
                    _flat([t.grad for t in tensors]), np.concatenate([e.ravel() for e in expected]), 100)


def _flat(tensors: list[Any]) -> np.ndarray:
    return np.concatenate([tensor.numpy().ravel() for tensor in tensors])


def _second_gradient(device: str) -> Compared:
    array = seeded(31)
    x = on(device, array)
    first = (x.sin() * x).sum().gradient(x)[0]
    double = array.astype(np.float64)
    expected = 2 * np.cos(double) - double * np.sin(double)
    return Compared("float32[31], sin(x) x", first.sum().gradient(x)[0], expected, 20)


def _sgd(device: str) -> Compared:
    """Train two layers with cross entropy, and compare with the same five steps by hand in float64."""
    x, classes = seeded(20, 6), np.arange(20) % 3
    weights = [seeded(6, 16), seeded(16, 3)]
    tensors = [on(device, array) for array in weights]
    optimizer = SGD(tensors, lr=0.1)
    given, labels = on(device, x), on(device, classes.astype(np.int32))
    first, second = (array.astype(np.float64) for array in weights)
    with Context(TRAINING=1):
        for _ in range(5):
            optimizer.zero_grad()
            ((given @ tensors[0]).relu() @ tensors[1]).sparse_categorical_crossentropy(labels).backward()
            optimizer.step()
            hidden = np.maximum(x @ first, 0)
            slope = (softmax(hidden @ second) - np.eye(3)[classes]) / 20
            first, second = first - 0.1 * (x.T @ (slope @ second.T * (hidden > 0))), second - 0.1 * (hidden.T @ slope)
    return Compared("float32[20, 6], 3 classes", _flat(tensors), np.concatenate([first.ravel(), second.ravel()]), 100)


def _convolutional(device: str, make: Callable[[list[Tensor]], Any]) -> np.ndarray:
    """Return the losses and the first weights of a small net with convolution, normalization and pooling."""
    weights = [on(device, seeded(*shape) * 0.3) for shape in ((4, 1, 3, 3), (36, 3))]
    optimizer = make(weights)
    x, labels = on(device, seeded(6, 1, 8, 8)), on(device, (np.arange(6) % 3).astype(np.int32))
    losses = []
    with Context(TRAINING=1):
        for _ in range(3):
            optimizer.zero_grad()
            hidden = x.conv2d(weights[0])
            centred = hidden - hidden.mean((0, 2, 3), keepdim=True)
            hidden = (centred / (centred.square().mean((0, 2, 3), keepdim=True) + 1e-5).sqrt()).relu().max_pool2d()
            loss = (hidden.reshape(6, -1) @ weights[1]).sparse_categorical_crossentropy(labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.reshape(1))
    return _flat([*losses, weights[0]])


def _jitted(device: str) -> np.ndarray:
    weights = [on(device, seeded(7, 12)), on(device, seeded(12, 1))]
    optimizer = Adam(weights, lr=0.05)

    @TinyJit
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (((x @ weights[0]).tanh() @ weights[1]) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss.realize()

    with Context(TRAINING=1):
        losses = [step(on(device, seeded(9, 7, seed=n)), on(device, seeded(9, 1, seed=n))).reshape(1).numpy()
                  for n in range(CALLS)]
    return np.concatenate([*losses, _flat(weights)])


def _learns(device: str) -> Compared:
    """Learn which points are inside a circle."""
    points = seeded(100, 2)
    inside = (np.square(points).sum(1) < 2).astype(np.int32)
    x, labels = on(device, points), on(device, inside)
    weights = [on(device, seeded(2, 16)), on(device, seeded(16)), on(device, seeded(16, 2) * 0.3)]
    optimizer = Adam(weights, lr=0.1)

    @TinyJit
    def step() -> Tensor:
        optimizer.zero_grad()
        scores = (x @ weights[0] + weights[1]).relu() @ weights[2]
        scores.sparse_categorical_crossentropy(labels).backward()
        optimizer.step()
        return (scores.argmax(1) == labels).mean().realize()

    with Context(TRAINING=1):
        for _ in range(30):
            accuracy = step()
    return Compared("100 points, 30 steps of Adam: an accuracy over 0.9", np.array(accuracy.item() > 0.9),
                    np.array(True))
