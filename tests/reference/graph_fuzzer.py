"""Random graphs on every device against the NumPy interpreter. In: a seed. Out: nothing, or a small failing graph.

As a test it is bounded; endless by command:  python tests/reference/graph_fuzzer.py [first seed] [--device
CPU,CLANG,PYTHON] A failure prints its seed and the smallest graph found that still fails.
"""

from __future__ import annotations

import random
import sys

import numpy as np

from glassgrad import Device
from glassgrad.base.settings import Context
from glassgrad.compiler.check.graph_interpreter import from_storage, interpret, to_storage
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import DType, dtypes
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.op_arguments import Scan, Scatter
from glassgrad.compiler.graph.uop import UOp
from glassgrad.engine.buffer import Buffer
from glassgrad.engine.realize import realize

SIZES = [1, 1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 33, 64]
FLOATS = [dtypes.float32] * 6 + [dtypes.float64, dtypes.float16, dtypes.bfloat16]
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}


class Maker:
    """Builds one random graph; every choice comes from the seed. Without float64, its graphs are of float32."""

    def __init__(self, seed: int, float64: bool = True):
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.leaves: dict[UOp, np.ndarray] = {}
        self.pool: list[UOp] = []
        self.dtype: DType = self.random.choice(FLOATS)
        if self.dtype is dtypes.float64 and not float64:
            self.dtype = dtypes.float32

    def shape(self) -> tuple[int, ...]:
        rank = self.random.choice([0, 1, 2, 2, 3, 3, 4])
        shape = [self.random.choice(SIZES) for _ in range(rank)]
        while int(np.prod(shape)) > 6000:
            shape[shape.index(max(shape))] //= 2
        return tuple(shape)

    def leaf(self, shape: tuple[int, ...]) -> UOp:
        array = to_storage(self.numbers.uniform(-2, 2, shape), self.dtype)
        buffer = Buffer(shape, self.dtype, "CPU")
        buffer.copy_in(np.ascontiguousarray(array))
        node = UOp(o.BUFFER, self.dtype, (), buffer)
        self.leaves[node] = from_storage(array.tobytes(), self.dtype).reshape(shape)
        return node

    def graph(self, steps: int) -> list[UOp]:
        self.pool = [self.leaf(self.shape()) for _ in range(2)]
        for _ in range(steps):
            self.pool.append(self.step())
        sinks = [self.pool[-1]]
        while self.random.random() < 0.3:
            sinks.append(self.random.choice(self.pool[2:]))
        return sinks

    def pick(self) -> UOp:
        return self.random.choice(self.pool[-6:])

    def step(self) -> UOp:
        makers = [self.unary, self.binary, self.binary, self.binary, self.reduce, self.movement, self.movement,
                  self.matmul, self.window, self.special, self.row]
        return self.random.choice(makers)()

    def unary(self) -> UOp:
        x = self.pick()
        choice = self.random.randrange(9)
        if choice == 0:
            return (x.maximum(-3.0).minimum(3.0)).exp2()
        if choice == 1:
            return (x.abs() + 0.5).log2()
        if choice == 2:
            return x.sin()
        if choice == 3:
            return (x.abs() + 0.1).sqrt()
        if choice == 4:
            return (x.abs() + 0.5).recip()
        if choice == 5:
            return -x
        if choice == 6:
            return x.maximum(0.0)
        if choice == 7:
            return (x < 0.3).where(x * 2.0, x - 1.0)
        return x.minimum(50.0).maximum(-50.0).cast(dtypes.int32).cast(self.dtype)

    def like(self, shape: tuple[int, ...]) -> UOp:
        """Another value that broadcasts to a shape."""
        for y in self.random.sample(self.pool, len(self.pool)):
            if len(y.shape) <= len(shape) and all(a in (1, b) for a, b in zip(y.shape[::-1], shape[::-1])):
                return y.broadcast(shape)
        return self.leaf(tuple(1 if self.random.random() < 0.3 else n for n in shape)).broadcast(shape)

    def binary(self) -> UOp:
        x = self.pick()
        y = self.like(x.shape)
        return self.random.choice([x + y, x - y, x * y, x.maximum(y), x / (y.abs() + 1.0), x.minimum(y)])

    def reduce(self) -> UOp:
        x = self.pick()
        if not x.shape:
            return x * 0.5
        axes = self.random.sample(range(len(x.shape)), self.random.randint(1, len(x.shape)))
        y = x.reduce(self.random.choice([o.SUM, o.SUM, o.AMAX, o.AMIN]), axes)
        if y.op is o.SUM:
            y = y * (1.0 / max(1, x.size // max(y.size, 1)))
        return self.random.choice([y, y.expand(x.shape), x - y.expand(x.shape)])

    def row(self) -> UOp:
        """A softmax or a normalization along some axes."""
        x = self.pick()
        if not x.shape:
            return x + 1.0
        axes = self.random.sample(range(len(x.shape)), self.random.randint(1, min(2, len(x.shape))))
        top = x.reduce(o.AMAX, axes).expand(x.shape)
        e = ((x - top) * 1.25).exp2()
        return e / e.reduce(o.SUM, axes).expand(x.shape)

    def movement(self) -> UOp:
        x = self.pick()
        kind = self.random.randrange(6)
        if not x.shape:
            return x.reshape((1,))
        if kind == 0:
            return x.permute(self.random.sample(range(len(x.shape)), len(x.shape)))
        if kind == 1:
            return x.flip([a for a in range(len(x.shape)) if self.random.random() < 0.5])
        if kind == 2:
            bounds = [(s := self.random.randrange(n), self.random.randint(s + 1, n)) for n in x.shape]
            return x.shrink(bounds)
        if kind == 3 and x.size < 3000:
            return x.pad([(self.random.randrange(3), self.random.randrange(3)) for _ in x.shape])
        if kind == 4:
            factors = []
            for n in x.shape:
                d = self.random.choice([d for d in range(1, n + 1) if n % d == 0])
                factors += [d, n // d] if self.random.random() < 0.5 else [n]
            if self.random.random() < 0.5:
                factors = [int(np.prod(factors[:2])), *factors[2:]]
            return x.reshape(tuple(f for f in factors if f != 1 or self.random.random() < 0.5) or (1,))
        grown = tuple(self.random.choice([1, 2, 5]) if n == 1 else n for n in x.shape)
        return x.expand(grown) if int(np.prod(grown)) < 6000 else x

    def matmul(self) -> UOp:
        x = self.pick()
        if len(x.shape) < 2:
            x = x.reshape((1, -1) if False else (1, x.size)) if x.size > 1 else x.reshape((1, 1))
        m, k = x.shape[-2:]
        n = self.random.choice(SIZES)
        batch = x.shape[:-2]
        w = self.leaf((k, n)) if self.random.random() < 0.5 else self.leaf((n, k)).permute((1, 0))
        if int(np.prod(batch)) * m * n * k > 300_000:
            return x * 0.5
        left = x.reshape((*batch, m, 1, k)).expand((*batch, m, n, k))
        right = w.permute((1, 0)).reshape((1,) * len(batch) + (1, n, k)).expand((*batch, m, n, k))
        wide = dtypes.float32 if self.dtype.bits < 32 else self.dtype
        total = (left.cast(wide) * right.cast(wide)).sum([len(batch) + 2]).cast(self.dtype)
        return total.reshape((*batch, m, n)) * (1.0 / k)

    def window(self) -> UOp:
        x = self.pick()
        axes = [a for a, n in enumerate(x.shape) if n >= 2]
        if not axes or len(x.shape) > 4:
            return x + 0.25
        axis = self.random.choice(axes)
        size = self.random.randint(1, min(3, x.shape[axis]))
        stride = self.random.choice([1, 1, 2])
        y = x.window(axis, size, stride)
        if self.random.random() < 0.4 and y.size < 4000:
            y = y.unwindow(axis, stride, 1, x.shape[axis])
        return y.reduce(self.random.choice([o.SUM, o.AMAX]), [len(y.shape) - 1]).reshape(y.shape[:-1])

    def special(self) -> UOp:
        x = self.pick()
        if not x.shape or x.shape[0] == 0:
            return x - 0.5
        n = x.shape[0]
        kind = self.random.randrange(3)
        indices = Buffer((self.random.choice(SIZES),), dtypes.int32, "CPU")
        values = self.numbers.integers(0, n, indices.shape).astype(np.int32)
        indices.copy_in(values)
        where = UOp(o.BUFFER, dtypes.int32, (), indices)
        self.leaves[where] = values
        picked = UOp(o.GATHER, x.dtype, (x, where))
        if picked.size > 6000 or kind == 0:
            return UOp(o.SCAN, x.dtype, (x,), Scan(len(x.shape) - 1, self.random.choice([o.ADD, o.MAX])))
        if kind == 1:
            return picked
        return UOp(o.SCATTER, x.dtype, (x, where, picked * 0.5), Scatter(self.random.choice(["add", "max"])))


def on_device(node: UOp, device: str, memo: dict[UOp, UOp]) -> UOp:
    """The same graph with its buffers on another device."""
    for n in toposort([node]):
        if n in memo:
            continue
        if n.op is o.BUFFER:
            buffer = Buffer(n.shape, n.dtype, device)
            buffer.copy_in(n.arg.copy_out())
            memo[n] = UOp(o.BUFFER, n.dtype, (), buffer)
        else:
            memo[n] = UOp(n.op, n.dtype, tuple(memo[s] for s in n.src), n.arg)
    return memo[node]


def differs(sinks: list[UOp], leaves: dict[UOp, np.ndarray], device: str) -> str:
    """What is wrong with a device's answers; empty when nothing is."""
    wanted = interpret(sinks, leaves)
    memo: dict[UOp, UOp] = {}
    moved = [on_device(s, device, memo) for s in sinks]
    try:
        got = realize([m.contiguous() for m in moved], device)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        return f"{type(error).__name__}: {error}"
    for s, g, want in zip(sinks, got, wanted):
        have = from_storage(bytes(g.base.arg.copy_out()), s.dtype).reshape(s.shape)
        want = np.broadcast_to(np.asarray(want), s.shape)
        with np.errstate(all="ignore"):
            scale = np.max(np.abs(want[np.isfinite(want)]), initial=1.0)
            bad = ~((have == want) | (np.isnan(have) & np.isnan(want))
                    | (np.abs(have - want) <= TOLERANCE.get(s.dtype.name, 0) * scale))
        if bad.any():
            at = tuple(int(i) for i in np.argwhere(np.atleast_1d(bad))[0])
            return f"{s}: at {at} got {np.atleast_1d(have)[at]}, expected {np.atleast_1d(want)[at]}"
    return ""


def shrink(sinks: list[UOp], leaves: dict[UOp, np.ndarray], device: str) -> list[UOp]:
    """The smallest node of the graph that fails by itself."""
    for node in toposort(sinks):
        if node.op not in (o.BUFFER, o.CONST) and node.dtype.is_float and differs([node], leaves, device):
            return [node]
    return sinks


def listing(sinks: list[UOp]) -> str:
    order = toposort(sinks)
    number = {n: i for i, n in enumerate(order)}
    return "\n".join(f"  {number[n]:3d} {n.op.name:<10} {n.dtype.name}{list(n.shape)} {[number[s] for s in n.src]} "
                     f"{'' if n.arg is None or n.op is o.BUFFER else n.arg}" for n in order)


def check_seed(seed: int, devices: tuple[str, ...], steps: int = 0) -> None:
    """Fail with the seed and a small graph where any device differs from the interpreter."""
    maker = Maker(seed, all(Device[device].has_float64 for device in devices))
    sinks = maker.graph(steps or maker.random.randint(2, 14))
    for device in devices:
        for noopt in (0, 1):
            if noopt and seed % 8:
                continue
            with Context(NOOPT=noopt):
                if wrong := differs(sinks, maker.leaves, device):
                    small = shrink(sinks, maker.leaves, device)
                    raise AssertionError(f"seed {seed} on {device} (NOOPT={noopt}): {wrong}\n{listing(small)}\n"
                                         f"  {differs(small, maker.leaves, device)}")


def main() -> None:
    arguments = [a for a in sys.argv[1:] if not a.startswith("--")]
    seed = int(arguments[0]) if arguments else random.randrange(1 << 30)
    last = int(arguments[1]) if len(arguments) > 1 else None
    chosen = next((a.split("=")[1] for a in sys.argv if a.startswith("--device=")), "CPU,CLANG,PYTHON")
    devices = tuple(chosen.split(","))
    failures = 0
    while last is None or seed < last:
        try:
            check_seed(seed, devices)
        except AssertionError as error:
            print(error, flush=True)
            failures += 1
        if seed % 100 == 0:
            print(f"seed {seed}: {failures} failures", flush=True)
        seed += 1


if __name__ == "__main__":
    main()
