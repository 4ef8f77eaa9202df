"""Draw ops of ordinary programs with random shapes, as expressions of PyTorch. In: a seed. Out: cases as in
op_cases.py.

Each case of op_cases.py has one shape, so what is slow in other shapes is not seen. Here a kind of op is drawn, then
its sizes: powers of two, ten times something, primes and other integers alike. The amount of work is bounded, but not
the ratio of the sizes: a matrix may have three rows and 300,000 columns.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from benchmarks.op_cases import OpCase, index_of, w

__all__ = ["random_cases"]

MOST_NUMBERS, MOST_FLOPS = 2_000_000, 1_000_000_000        # of a tensor; of a product or convolution


class Draw:
    """Sizes and choices from one generator of random numbers."""

    def __init__(self, seed: int, times: int) -> None:
        self.random, self.times = random.Random(seed), times

    def size(self, least: int, most: int) -> int:
        """A size, small ones as likely as large ones; often one that people write."""
        n = round(math.exp(self.random.uniform(math.log(least), math.log(most))))
        step = self.random.choice([1, 1, 2, 8, 10, 16, 32, 64])
        return max(least, min(most, round(n / step) * step)) if n >= step else n

    def shape(self, axes: int) -> tuple[int, ...]:
        """A shape of at most MOST_NUMBERS numbers."""
        while True:
            found = tuple(self.size(2, 4000) for _ in range(axes))
            if 500 <= math.prod(found) <= MOST_NUMBERS * self.times:
                return found

    def within(self, flops: Callable[[tuple[int, ...]], int], *bounds: tuple[int, int]) -> tuple[int, ...]:
        """Sizes between bounds, for which a formula of operations stays below MOST_FLOPS."""
        while True:
            found = tuple(self.size(*each) for each in bounds)
            if 10_000 <= flops(found) <= MOST_FLOPS * self.times:
                return found

    def of(self, *choices: object) -> object:
        return self.random.choice(choices)


def product(draw: Draw) -> OpCase:
    m, n, k = draw.within(lambda s: 2 * s[0] * s[1] * s[2], (1, 4096), (1, 4096), (1, 4096))
    kind = draw.of("nn", "nt", "tn", "linear", "gradients")
    name = f"{m} x {k} times {k} x {n}, {kind}"
    if kind == "nt":
        return OpCase(name, [w(m, k), w(n, k)], lambda t, a, b: a @ b.T)
    if kind == "tn":
        return OpCase(name, [w(k, m), w(k, n)], lambda t, a, b: a.T @ b)
    if kind == "linear":
        return OpCase(name, [w(m, k), w(n, k), w(n)], lambda t, a, b, c: t.nn.functional.linear(a, b, c).relu())
    return OpCase(name, [w(m, k), w(k, n)], lambda t, a, b: (a @ b).square() if kind == "gradients" else a @ b,
                  kind == "gradients")


def batched_product(draw: Draw) -> OpCase:
    b, m, n, k = draw.within(lambda s: 2 * math.prod(s), (2, 200), (1, 600), (1, 600), (1, 600))
    if draw.of(True, False):
        return OpCase(f"{b} times {m} x {k} x {n}, nt", [w(b, m, k), w(b, n, k)],
                      lambda t, x, y: x @ y.transpose(-1, -2))
    return OpCase(f"{b} times {m} x {k} x {n}", [w(b, m, k), w(b, k, n)], lambda t, x, y: x @ y)


def convolution(draw: Draw) -> OpCase:
    taps, stride = draw.of(1, 1, 3, 3, 3, 5, 7), draw.of(1, 1, 1, 2)
    images, channels, height, width, filters = draw.within(
        lambda s: 2 * math.prod(s) * taps * taps // stride ** 2, (1, 32), (1, 512), (7, 128), (7, 128), (1, 512))
    groups = draw.of(1, 1, 1, math.gcd(channels, filters))
    options = {"stride": stride, "padding": taps // 2, "groups": groups}
    return OpCase(f"{images}x{channels}x{height}x{width} to {filters}, {taps}x{taps}, stride {stride}, groups {groups}",
                  [w(images, channels, height, width), w(filters, channels // groups, taps, taps)],
                  lambda t, x, k: t.nn.functional.conv2d(x, k, **options).square(), draw.of(False, False, True))


def signal(draw: Draw) -> OpCase:
    taps, stride = draw.of(1, 3, 5, 9, 16), draw.of(1, 1, 2, 4)
    signals, channels, length, filters = draw.within(lambda s: 2 * math.prod(s) * taps // stride,
                                                     (1, 32), (1, 256), (20, 8000), (1, 256))
    return OpCase(f"signals {signals}x{channels}x{length} to {filters}, {taps} taps, stride {stride}",
                  [w(signals, channels, length), w(filters, channels, taps)],
                  lambda t, x, k: t.nn.functional.conv1d(x, k, stride=stride, padding=taps // 2).square(),
                  draw.of(False, True))


def pool(draw: Draw) -> OpCase:
    window, stride, largest = draw.of(2, 3, 5), draw.of(1, 2, 3), draw.of(True, False)
    name = "max_pool2d" if largest else "avg_pool2d"
    while True:
        shape = draw.shape(4)
        if min(shape[2:]) >= window:
            break
    return OpCase(f"{name} {shape}, {window}, stride {stride}", [w(*shape)],
                  lambda t, x: getattr(t.nn.functional, name)(x, window, stride).square(), draw.of(False, True))


def reduction(draw: Draw) -> OpCase:
    shape = draw.shape(draw.random.randint(1, 4))
    axes = tuple(sorted(draw.random.sample(range(len(shape)), draw.random.randint(1, len(shape)))))
    op = draw.of("sum", "mean", "amax", "var", "logsumexp")
    return OpCase(f"{op} of {shape} over {axes}", [w(*shape)], lambda t, x: getattr(x, op)(axes),
                  draw.of(False, False, True))


def along_an_axis(draw: Draw) -> OpCase:
    shape = draw.shape(draw.random.randint(1, 4))
    axis = draw.random.randrange(len(shape))
    op = draw.of("softmax", "log_softmax", "cumsum", "argmax", "sort", "flip", "cumprod", "softmax", "norm")
    if op == "norm":
        return OpCase(f"norm of {shape} over {axis}", [w(*shape)],
                      lambda t, x: ((x - x.mean(axis, True)) / (x.var(axis, keepdim=True) + 1e-5).sqrt()).exp(),
                      draw.of(False, True))
    if op == "flip":
        return OpCase(f"flip of {shape} over {axis}", [w(*shape)], lambda t, x: x.flip(axis) * 2)
    if op == "sort":
        return OpCase(f"sort of {shape} over {axis}", [w(*shape)], lambda t, x: x.sort(axis)[0])
    if op.endswith("softmax"):
        return OpCase(f"{op} of {shape} over {axis}", [w(*shape)], lambda t, x: getattr(x, op)(axis).square(),
                      draw.of(False, True))
    return OpCase(f"{op} of {shape} over {axis}", [w(*shape)], lambda t, x: getattr(x, op)(axis))


def elementwise(draw: Draw) -> OpCase:
    shape = draw.shape(draw.random.randint(1, 4))
    other = tuple(n if draw.of(True, False) else 1 for n in shape)
    op = draw.of("gelu", "silu", "add", "tanh", "sigmoid")
    if op == "add":
        return OpCase(f"{shape} * {other} + {other}", [w(*shape), w(*other), w(*other)], lambda t, x, a, b: x * a + b,
                      draw.of(False, True))
    name = f"{op} of {shape} + {other}"
    return OpCase(name, [w(*shape), w(*other)], lambda t, x, a: getattr(
        t if op in ("tanh", "sigmoid") else t.nn.functional, op)(x + a), draw.of(False, True))


def movement(draw: Draw) -> OpCase:
    shape = draw.shape(draw.random.randint(2, 5))
    order = list(range(len(shape)))
    draw.random.shuffle(order)
    if draw.of(True, False):
        return OpCase(f"{shape} permuted by {order}", [w(*shape)], lambda t, x: x.permute(order).contiguous() + 0)
    axis = draw.random.randrange(len(shape))
    return OpCase(f"cat of 3 {shape} over {axis}", [w(*shape)] * 3, lambda t, *a: t.cat(a, axis))


def by_index(draw: Draw) -> OpCase:
    rows, width, picked = draw.size(10, 50_000), draw.size(1, 512), draw.size(10, 4000)
    op = draw.of("rows", "index_add", "gather", "embedding")
    name = f"{op}: {picked} of {rows} x {width}"
    if op == "rows":
        return OpCase(name, [w(rows, width), index_of(rows, picked)], lambda t, x, i: x[i])
    if op == "index_add":
        return OpCase(name, [w(rows, width), index_of(rows, picked), w(picked, width)],
                      lambda t, x, i, v: x.index_add(0, i, v))
    if op == "embedding":
        return OpCase(name, [w(rows, width), index_of(rows, picked)], lambda t, x, i: x[i].square(), True)
    return OpCase(name, [w(picked, rows), index_of(rows, picked, draw.size(1, 64))], lambda t, x, i: x.gather(1, i))


def attention(draw: Draw) -> OpCase:
    batch, heads, rows, keys, width = draw.within(lambda s: 4 * math.prod(s), (1, 8), (1, 16), (1, 700), (1, 700),
                                                  (8, 128))
    causal = draw.of(True, False)
    if causal:
        keys = rows
    return OpCase(f"attention {batch}x{heads}, {rows} by {keys}, width {width}, causal {causal}",
                  [w(batch, heads, rows, width), w(batch, heads, keys, width), w(batch, heads, keys, width)],
                  lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal).square(),
                  draw.of(False, True))


def layer(draw: Draw) -> OpCase:
    rows, width = draw.size(1, 4000), draw.size(2, 4000)
    op = draw.of("layer_norm", "cross_entropy", "rms", "mlp")
    if op == "cross_entropy":
        return OpCase(f"cross entropy {rows} x {width}", [w(rows, width), index_of(width, rows)],
                      lambda t, x, y: t.nn.functional.cross_entropy(x, y), draw.of(False, True))
    if op == "mlp":
        hidden = draw.size(2, max(2, MOST_FLOPS * draw.times // (4 * rows * width)) if rows * width > 62_500 else 4000)
        return OpCase(f"mlp {rows} x {width} x {hidden}", [w(rows, width), w(width, hidden), w(hidden, width)],
                      lambda t, x, a, b: (t.nn.functional.gelu(x @ a * 0.02) @ b).square(), draw.of(False, True))
    if op == "rms":
        return OpCase(f"rms norm {rows} x {width}", [w(rows, width)],
                      lambda t, x: x * (x.square().mean(-1, True) + 1e-6).rsqrt(), draw.of(False, True))
    return OpCase(f"layer norm {rows} x {width}", [w(rows, width), w(width), w(width)],
                  lambda t, x, a, b: t.nn.functional.layer_norm(x, (width,), a, b), draw.of(False, True))


KINDS: list[Callable[[Draw], OpCase]] = [
    product, product, batched_product, convolution, convolution, signal, pool, reduction, reduction, along_an_axis,
    along_an_axis, elementwise, movement, by_index, attention, layer]


def random_cases(seed: int, count: int, times: int = 1) -> list[OpCase]:
    """As many cases as asked for; `times`: how many times as much work they may be."""
    draw = Draw(seed, times)
    return [draw.random.choice(KINDS)(draw) for _ in range(count)]
