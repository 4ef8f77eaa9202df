"""Random programs over the public Tensor API, checked against PyTorch: values and gradients. In: a seed. Out: None, or
a small failing program as Python text.

As a test it is bounded; endless by command:  python tests/reference/tensor_fuzzer.py [first seed] [how many]
A failure prints its seed and the smallest program found that still fails.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable

import torch
from fuzz_elements import Bricks
from fuzz_programs import Program, Step, dtype_name, shrink


class Maker(Bricks):
    """Builds one random program; here are its larger things: products, convolutions, rows, losses."""

    def program(self, length: int) -> Program:
        for _ in range(2):
            self.leaf(self.shape())
        kinds: list[Callable[[], None]] = [
            self.unary, self.unary, self.binary, self.binary, self.binary, self.scalar, self.reduce, self.reduce,
            self.move, self.move, self.move, self.view, self.index, self.matmul, self.convolve, self.pool, self.rows,
            self.loss, self.join, self.cast, self.whole, self.order, self.choose, self.scan, self.write, self.odd]
        for _ in range(length):
            self.random.choice(kinds)()
        sinks = [len(self.steps) - 1]
        while self.random.random() < 0.4:
            sinks.append(self.random.randrange(len(self.steps)))
        return Program(self.steps, sinks)

    # -- larger things ---------------------------------------------------------------------------------------------
    def matmul(self) -> None:
        x = self.floats(1)
        v = self.of(x)
        inner = v.shape[-1]
        kind = self.random.randrange(4)
        if kind == 0:
            y = self.leaf((inner,), dtype_name(v))
        elif kind == 1 or v.dim() == 1:
            y = self.leaf((inner, self.random.choice([1, 2, 5, 9])), dtype_name(v))
        else:
            batch = tuple(self.random.choice([1, n]) for n in v.shape[:-2])
            lead = batch[self.random.randint(0, len(batch)):]
            y = self.leaf((*lead, inner, self.random.choice([1, 3, 8])), dtype_name(v))
        scale = f" * {1 / math.sqrt(inner):.3f}"
        self.add((x, y), "({0} @ {1})" + scale)
        if v.dim() == 2 and self.random.random() < 0.3:
            self.add((x, x), "Tensor.einsum('ij,kj->ik', {0}, {1})" + scale,
                     "torch.einsum('ij,kj->ik', {0}, {1})" + scale)

    def convolve(self) -> None:
        dims = self.random.choice([1, 2, 2, 2, 3])
        groups = self.random.choice([1, 1, 2, 3])
        batch, inside, outside = (n * self.random.randint(1, m) for n, m in ((1, 2), (groups, 3), (groups, 3)))
        kernel = [self.random.randint(1, 3) for _ in range(dims)]
        stride = [self.random.randint(1, 3) for _ in range(dims)]
        dilation = [self.random.randint(1, 2) for _ in range(dims)]
        padding = [self.random.randint(0, 2) for _ in range(dims)]
        size = [(k - 1) * d + 1 + self.random.randint(0, 5) for k, d in zip(kernel, dilation)]
        x = self.leaf((batch, inside, *size))
        bias = self.random.random() < 0.5
        b = (self.leaf((outside,)),) if bias else ()
        options = f"stride={stride}, padding={padding}, dilation={dilation}, groups={groups}"
        if self.random.random() < 0.3:
            w = self.leaf((inside, outside // groups, *kernel))
            extra = [self.random.randrange(max(s, d)) for s, d in zip(stride, dilation)]
            options += f", output_padding={extra}"
            self.add((x, w, *b), f"{{0}}.conv_transpose2d({{1}}, {'{2}, ' if bias else ''}{options}) * 0.3",
                     f"F.conv_transpose{dims}d({{0}}, {{1}}, {'{2}, ' if bias else ''}{options}) * 0.3")
        else:
            w = self.leaf((outside, inside // groups, *kernel))
            self.add((x, w, *b), f"{{0}}.conv2d({{1}}, {'{2}, ' if bias else ''}{options}) * 0.3",
                     f"F.conv{dims}d({{0}}, {{1}}, {'{2}, ' if bias else ''}{options}) * 0.3")

    def pool(self) -> None:
        x = self.floats(3)
        v = self.of(x)
        dims = self.random.choice([1, 2]) if v.dim() >= 4 else 1
        kernel = [self.random.randint(1, min(4, n)) for n in v.shape[-dims:]]
        stride = [self.random.randint(1, 3) for _ in range(dims)]
        padding = [self.random.randint(0, k // 2) for k in kernel]
        if v.dim() > dims + 2:
            return
        ceil = self.random.random() < 0.3
        if self.random.random() < 0.5 and not self.smooth:
            dilation = [self.random.randint(1, 2) if (k - 1) * 2 + 1 <= n else 1
                        for k, n in zip(kernel, v.shape[-dims:])]
            options = f"{kernel}, stride={stride}, padding={padding}, dilation={dilation}, ceil_mode={ceil}"
            self.add((x,), f"{{0}}.max_pool2d({options})", f"F.max_pool{dims}d({{0}}, {options})")
        else:
            include = self.random.random() < 0.5
            options = f"{kernel}, stride={stride}, padding={padding}, ceil_mode={ceil}, count_include_pad={include}"
            self.add((x,), f"{{0}}.avg_pool2d({options})", f"F.avg_pool{dims}d({{0}}, {options})")

    def rows(self) -> None:
        """Softmax, normalization, attention."""
        x = self.floats(1)
        v = self.of(x)
        axis = self.axis(x)
        kind = self.random.randrange(5)
        if kind == 0:
            self.add((x,), f"{{0}}.softmax({axis})")
        elif kind == 1:
            self.add((x,), f"{{0}}.log_softmax({axis})")
        elif kind == 2 and v.shape[-1] > 2:
            self.add((x,), "({0} * 2).layernorm(eps=0.01)", f"F.layer_norm({{0}} * 2, ({v.shape[-1]},), eps=0.01)")
        elif kind == 3:
            heads, time, size = self.random.choice([1, 2, 4]), self.random.randint(1, 9), self.random.choice([1, 4, 8])
            q, k, w = (self.leaf((2, heads, t, size)) for t in (time, time, time))
            causal = self.random.random() < 0.5
            mask = self.leaf((time, time), self.random.choice(["bool", self.floating])) if not causal else None
            if mask is not None and self.of(mask).dtype is torch.bool:
                self.of(mask).fill_diagonal_(True)
            text = "{0}.scaled_dot_product_attention({1}, {2}, "
            text += f"is_causal={causal})" if mask is None else "attn_mask={3})"
            self.add((q, k, w) if mask is None else (q, k, w, mask), text,
                     text.replace("{0}.scaled_dot_product_attention(", "F.scaled_dot_product_attention({0}, "))
        else:
            self.add((x,), "{0} / ({0}.square().mean(-1, keepdim=True) + 0.1).sqrt()")

    def loss(self) -> None:
        x = self.floats(2)
        v = self.of(x)
        reduction = self.random.choice(["mean", "sum", "none"])
        kind = self.random.randrange(6)
        if kind == 0 and v.dim() == 2:
            target = torch.randint(0, v.shape[1], (v.shape[0],), generator=self.generator)
            self.steps.append(Step(leaf=target, value=target))
            smooth = self.random.choice([0.0, 0.1])
            text = f", {{1}}, label_smoothing={smooth}, reduction='{reduction}')"
            self.add((x, len(self.steps) - 1), "{0}.cross_entropy(" + text[2:], "F.cross_entropy({0}" + text)
            return
        y = self.leaf(tuple(v.shape), dtype_name(v))
        pairs = [("{0}.mse_loss({1}", "F.mse_loss({0}, {1}"), ("{0}.huber_loss({1}", "F.huber_loss({0}, {1}"),
                 ("{0}.binary_cross_entropy_with_logits({1}.sigmoid()",
                  "F.binary_cross_entropy_with_logits({0}, {1}.sigmoid()"),
                 ("{0}.log_softmax(-1).kl_div({1}.softmax(-1)", "F.kl_div({0}.log_softmax(-1), {1}.softmax(-1)"),
                 ("{0}.sigmoid().binary_cross_entropy({1}.sigmoid()",
                  "F.binary_cross_entropy({0}.sigmoid(), {1}.sigmoid()")]
        ours, theirs = self.random.choice(pairs)
        self.add((x, y), f"{ours}, reduction='{reduction}')", f"{theirs}, reduction='{reduction}')")

    def join(self) -> None:
        x = self.floats(1, full=False)
        v = self.of(x)
        axis = self.axis(x)
        others = [x]
        for _ in range(self.random.randint(1, 3)):
            shape = list(v.shape)
            shape[axis] = self.random.choice([1, 2, 3, shape[axis]])
            fits = self.pick(lambda u, shape=shape: list(u.shape) == shape and u.dtype is v.dtype)
            others.append(fits if fits is not None else self.leaf(tuple(shape), dtype_name(v)))
        names = ", ".join(f"{{{i}}}" for i in range(len(others)))
        if all(self.of(i).shape == v.shape for i in others) and self.random.random() < 0.5:
            self.add(tuple(others), f"Tensor.stack({names}, dim={axis})", f"torch.stack([{names}], dim={axis})")
        else:
            self.add(tuple(others), f"Tensor.cat({names}, dim={axis})", f"torch.cat([{names}], dim={axis})")

    def odd(self) -> None:
        """Things that often meet a corner: splits, diagonals, interpolation, one_hot, detach, contiguous."""
        x = self.floats(2)
        v = self.of(x)
        axis = self.axis(x)
        texts = [(f"{{0}}.chunk(2, {axis})[-1]",) * 2, (f"{{0}}.split(2, {axis})[0]",) * 2, ("{0}.detach() * {0}",) * 2,
                 ("{0}.contiguous() + 1",) * 2, ("{0}.diagonal()",) * 2, (f"{{0}}.narrow({axis}, 0, 1)",) * 2,
                 (f"{{0}}.movedim({axis}, 0)",) * 2, ("{0}.flatten(0, 1)",) * 2, ("{0}.T @ {0} * 0.05",) * 2,
                 (f"{{0}}.diff(dim={axis})",) * 2, (f"{{0}}.unbind({axis})[0]",) * 2, ("{0}.rot90(1, (0, 1))",) * 2,
                 (f"({{0}}.square() + 0.1).norm(dim={axis})",) * 2, ("{0}.nan_to_num()",) * 2]
        ours, theirs = self.random.choice(texts)
        if "T @" in ours and v.dim() != 2:
            return
        self.add((x,), ours, theirs)


def check(seed: int) -> str:
    """Nothing when the program of this seed is right; else the reproduction."""
    maker = Maker(seed)
    program = maker.program(maker.random.randint(3, 14))
    wrong = program.fails()
    if not wrong:
        return ""
    small = shrink(program)
    return f"seed {seed}: {small.fails() or wrong}\n{small}"


if __name__ == "__main__":
    first = int(sys.argv[1]) if len(sys.argv) > 1 else random.randrange(1 << 30)
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 1 << 60
    torch.set_num_threads(1)
    failures = 0
    for seed in range(first, first + count):
        report = check(seed)
        if report:
            failures += 1
            print(report, flush=True)
        elif seed % 100 == 0:
            print(f"... {seed}", flush=True)
    sys.exit(bool(failures))
