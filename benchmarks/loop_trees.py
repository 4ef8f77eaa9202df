"""Compute digests of optimized loop trees, to show that a change of the optimizer leaves kernels as they were.

In: shapes of contractions and other kernels. Out: for each kernel and target, its decisions and a digest of its tree.

    python -m benchmarks.loop_trees write before.json        before the change
    python -m benchmarks.loop_trees compare before.json      after it: lists the kernels that differ

Nothing is compiled or run: a tree that stays the same stays as fast, whatever else the machine is doing.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from glassgrad import Tensor, Variable
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Accumulate, Assign, For, If, Kernel, Prefetch, Statement
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets.matrix_units import units_of
from glassgrad.compiler.optimize.targets.target import GPU, Target

AVX512 = Target("x86_64", 64, 32, frozenset({"avx512f", "avx512bw", "avx512vl", "avx2", "fma", "f16c", "sse4.1"}),
                l1_bytes=48 << 10, l2_bytes=2 << 20)
TARGETS = {
    "avx512": AVX512,
    "avx2": Target("x86_64", 32, 16, frozenset({"avx2", "fma", "f16c", "sse4.1"})),
    "neon": Target("aarch64", 16, 32, frozenset({"neon"}), l1_bytes=64 << 10),
    "amx": replace(AVX512, units=units_of({"amx-tile", "amx-bf16", "amx-int8"})),
    "gpu": GPU,
}
REDUCED = ("bfloat16", "int8", "uint8")        # types that matrix units multiply

Tensors = list[Tensor]


# -- the kernels ---------------------------------------------------------------------------------------------------
def leaf(*shape: int, dtype: str = "float32") -> Tensor:
    """A tensor whose values are read from memory, not known to the compiler."""
    return Tensor.zeros(*shape, dtype=dtype).contiguous().realize()


def product(m: int, k: int, n: int, kind: str = "nn", batch: tuple[int, ...] = (), dtype: str = "float32") -> Tensors:
    a = leaf(*batch, *((m, k) if kind[0] == "n" else (k, m)), dtype=dtype)
    b = leaf(*batch, *((k, n) if kind[1] == "n" else (n, k)), dtype=dtype)
    return [(a if kind[0] == "n" else a.transpose(-1, -2)) @ (b if kind[1] == "n" else b.transpose(-1, -2))]


def layer(rows: int, inside: int, outside: int) -> Tensors:
    """A linear layer with its activation, and both gradients."""
    x, w, b = leaf(rows, inside), leaf(outside, inside), leaf(outside)
    out = x.linear(w.T, b).relu()
    return [out, *out.square().sum().gradient(x, w, b)]


def conv(batch: int, inside: int, outside: int, size: int, kernel: int, stride: int = 1, padding: int = 0,
         groups: int = 1, dilation: int = 1, dtype: str = "float32", high: int = 0) -> Tensors:
    """A convolution and both its gradients, each by a schedule of its own."""
    x = leaf(batch, inside, high or size, size, dtype=dtype)
    w = leaf(outside, inside // groups, kernel, kernel, dtype=dtype)
    out = x.conv2d(w, stride=stride, padding=padding, groups=groups, dilation=dilation)
    given = leaf(*out.shape, dtype=dtype)
    return [out, out.relu(), *(out * given).sum().gradient(x, w)]


def conv1d(batch: int, inside: int, outside: int, size: int, kernel: int, padding: int = 0) -> Tensors:
    x, w = leaf(batch, inside, size), leaf(outside, inside, kernel)
    out = x.conv2d(w, padding=padding)
    return [out, *(out * leaf(*out.shape)).sum().gradient(x, w)]


def transposed(batch: int, inside: int, outside: int, size: int, kernel: int, stride: int) -> Tensors:
    x, w = leaf(batch, inside, size, size), leaf(inside, outside, kernel, kernel)
    out = x.conv_transpose2d(w, stride=stride)
    return [out, *(out * leaf(*out.shape)).sum().gradient(x, w)]


def attention(batch: int, heads: int, time: int, width: int, past: int = 0) -> Tensors:
    q, k, v = leaf(batch, heads, time, width), *(leaf(batch, heads, past or time, width) for _ in "kv")
    out = q.scaled_dot_product_attention(k, v)
    return [out, *(out * leaf(*out.shape)).sum().gradient(q, k, v)]


def symbolic(most: int, inside: int, outside: int, summed: bool = False) -> Tensors:
    """A product along a length that is known only when the kernel runs."""
    n = Variable("n", 1, most).bind(most // 2)
    if summed:
        return [leaf(outside, most).shrink(((0, outside), (0, n))) @ leaf(most, inside).shrink(((0, n), (0, inside)))]
    return [leaf(most, inside).shrink(((0, n), (0, inside))) @ leaf(inside, outside)]


def cases() -> Iterator[tuple[str, Callable[[], Tensors]]]:
    """Every case as (name, what makes its tensors)."""
    def case(make: Callable[..., Tensors], *sizes: Any, **more: Any) -> tuple[str, Callable[[], Tensors]]:
        shown = ",".join([*map(str, sizes), *[f"{k}={v}" for k, v in more.items()]])
        return f"{make.__name__}({shown})", lambda: make(*sizes, **more)

    for n in (16, 32, 64, 100, 127, 256, 384, 512, 1000, 1024, 2048, 4096):
        yield case(product, n, n, n)
    for kind in ("nt", "tn", "tt"):
        for n in (64, 200, 384, 1024):
            yield case(product, n, n, n, kind)
    for m, k, n in ((64, 784, 128), (1, 4096, 4096), (2, 33, 67), (4, 768, 2304), (8, 768, 768), (13, 31, 37),
                    (3, 2100, 5), (70, 60, 601), (1, 64, 10), (512, 8, 512), (512, 9, 33), (2048, 64, 16),
                    (16, 64, 2048), (128, 1, 128), (5, 300, 70), (128, 3000, 128), (64, 5000, 640), (1024, 768, 3072),
                    (1024, 3072, 768), (256, 50, 10), (17, 4097, 19), (100, 100, 3), (3, 100, 100), (8192, 32, 32)):
        for kind in ("nn", "nt", "tn", "tt"):
            yield case(product, m, k, n, kind)
    for batch, m, k, n in (((32,), 128, 64, 128), ((8, 12), 256, 64, 256), ((3,), 11, 16, 17), ((4,), 1, 64, 256),
                           ((2, 3), 33, 65, 29), ((64,), 16, 16, 16), ((2,), 512, 512, 512)):
        for kind in ("nn", "nt", "tn"):
            yield case(product, m, k, n, kind, batch=batch)
    for dtype in ("float64", "float16", "int32", *REDUCED):
        for m, k, n in ((37, 70, 41), (256, 256, 256), (1024, 1024, 1024), (64, 784, 128), (128, 2000, 96),
                        (3, 64, 64)):
            for kind in ("nn", "nt", "tn"):
                yield case(product, m, k, n, kind, dtype=dtype)
    yield case(product, 128, 64, 128, "nn", batch=(8,), dtype="bfloat16")
    for rows, inside, outside in ((64, 784, 128), (64, 128, 10), (128, 576, 10), (1024, 768, 3072), (7, 13, 17)):
        yield case(layer, rows, inside, outside)
    for sizes in ((128, 1, 32, 28, 5), (128, 32, 32, 24, 5), (128, 32, 64, 10, 3), (8, 256, 64, 56, 1),
                  (1, 3, 5, 11, 3), (2, 16, 16, 7, 3), (5, 1, 3, 13, 3), (128, 8, 16, 13, 3), (4, 3, 8, 33, 7),
                  (16, 1, 8, 30, 5), (64, 3, 16, 20, 3), (8, 2, 6, 17, 3), (2, 1, 4, 64, 7), (1, 3, 16, 48, 3)):
        yield case(conv, *sizes)
    for sizes in ((8, 64, 64, 56, 3), (8, 128, 128, 28, 3), (8, 256, 256, 14, 3), (8, 512, 512, 7, 3),
                  (1, 64, 64, 56, 3), (1, 512, 512, 7, 3), (2, 3, 16, 32, 3)):
        yield case(conv, *sizes, padding=1)
    for sizes, kernel, padding in (((8, 64, 128, 56), 3, 1), ((8, 3, 64, 224), 7, 3), ((8, 64, 128, 56), 1, 0),
                                   ((1, 256, 512, 14), 3, 1), ((2, 16, 8, 17), 4, 1)):
        yield case(conv, *sizes, kernel, stride=2, padding=padding)
    for channels, size, kernel in ((128, 56, 3), (32, 14, 5), (16, 112, 3), (8, 7, 3)):
        yield case(conv, 8, channels, channels, size, kernel, padding=kernel // 2, groups=channels)
    yield case(conv, 8, 32, 64, 14, 3, padding=1, groups=4)
    yield case(conv, 4, 16, 16, 20, 3, dilation=2)
    yield case(conv, 4, 16, 16, 20, 3, padding=2, dilation=2)
    yield case(conv, 2, 8, 24, 19, 3, padding=1, high=31)
    for dtype in ("bfloat16", "float64", "float16"):
        yield case(conv, 4, 32, 32, 14, 3, padding=1, dtype=dtype)
        yield case(conv, 4, 64, 32, 14, 1, dtype=dtype)
    for sizes, padding in (((2, 64, 64, 28, 3), 1), ((1, 16, 40, 15, 5), 0), ((8, 128, 64, 7, 3), 1)):
        yield case(conv, *sizes, padding=padding, dtype="bfloat16")
    yield case(conv1d, 8, 16, 32, 128, 3)
    yield case(conv1d, 2, 1, 1, 4096, 5, padding=2)
    yield case(transposed, 4, 32, 16, 14, 3, 2)
    yield case(transposed, 2, 8, 8, 9, 2, 2)
    for batch, heads, time, width in ((8, 12, 256, 64), (4, 12, 256, 64), (2, 3, 33, 16)):
        yield case(attention, batch, heads, time, width)
    yield case(attention, 1, 12, 1, 64, past=256)
    for most, inside, outside in ((256, 64, 64), (1024, 768, 768), (40, 16, 16)):
        yield case(symbolic, most, inside, outside)
        yield case(symbolic, most, inside, outside, summed=True)
    yield from PLAIN.items()


PLAIN: dict[str, Callable[[], Tensors]] = {
    "map": lambda: [(leaf(16 << 20) + leaf(16 << 20)).relu()],
    "small map": lambda: [(leaf(97) * leaf(97) + 1).exp()],
    "sine": lambda: [leaf(4096).sin()],
    "softmax": lambda: [leaf(4096, 4096).softmax(1), leaf(5, 131).softmax(1)],
    "layernorm": lambda: [leaf(4096, 4096).layernorm()],
    "sums": lambda: [leaf(4096, 4096).sum(), leaf(4096, 4096).sum(0), leaf(4096, 4096).sum(1), leaf(31, 67).sum(1),
                     leaf(67, 34)[:, ::2].sum(0), leaf(2, 1 << 20).sum(1)],
    "rows at once": lambda: [(leaf(37, 300) * leaf(300)).sum(1), leaf(1, 67) @ leaf(67, 1024)],
    "transposed": lambda: [leaf(13, 29).T + leaf(29, 13), leaf(37, 3, 50).permute(2, 1, 0) * 2,
                           leaf(1024, 1024).T.contiguous()],
    "maxpool": lambda: [leaf(32, 64, 56, 56).max_pool2d()],
    "maxpool gradient": lambda: (lambda x: [x.max_pool2d().square().sum().gradient(x)[0]])(leaf(32, 64, 56, 56)),
    "cumsum": lambda: [leaf(67, 17).cumsum(0), leaf(100_000).cumsum(0)],
    "outer": lambda: [leaf(512, 1) * leaf(1, 512), leaf(300).dot(leaf(300))],
    "gather": lambda: [leaf(1000, 64)[Tensor([1, 5, 7, 900] * 16)]],
}


# -- digests -------------------------------------------------------------------------------------------------------
def digest(kernel: Kernel) -> str:
    """A number for the whole tree: every statement and every node of every expression."""
    known: dict[UOp, str] = {}

    def node(top: UOp | None) -> str:
        if top is None:
            return "-"
        stack = [top]
        while stack:
            n = stack[-1]
            waiting = [s for s in n.src if s not in known]
            if waiting:
                stack += waiting
                continue
            stack.pop()
            known[n] = _short(n.op.name, n.dtype.name, _argument(n.arg), *[known[s] for s in n.src])
        return known[top]

    def body(statements: list[Statement]) -> str:
        return _short(*[one(s) for s in statements])

    def one(s: Statement) -> str:
        if isinstance(s, For):
            return _short("for", s.kind, node(s.range), node(s.stop), body(s.body))
        if isinstance(s, If):
            return _short("if", node(s.condition), body(s.body))
        if isinstance(s, Assign):
            return _short("assign", node(s.register), node(s.value))
        if isinstance(s, Accumulate):
            return _short("accumulate", s.combine.name, node(s.register), node(s.value))
        if isinstance(s, Prefetch):
            return _short("prefetch", node(s.memory), node(s.index))
        return _short("store", s.combine.name if s.combine else "-", node(s.memory), node(s.index), node(s.value),
                      node(s.gate))

    return _short(kernel.name, *[body(p.body) for p in kernel.phases], repr(kernel.written), repr(kernel.streamed))


def _argument(arg: Any) -> str:
    text = repr(arg)
    if " at 0x" in text:
        raise ValueError(f"this argument has no text of its own: {text}")
    return text


def _short(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=12).hexdigest()


def digests(only: str = "") -> dict[str, list[str]]:
    """Of every kernel on every target: its digest, then its decisions."""
    found: dict[str, list[str]] = {}
    for name, make in cases():
        if only not in name:
            continue
        for number, tensor in enumerate(make()):
            for place, item in enumerate(tensor.schedule()):
                for label, target in TARGETS.items():
                    kernel = optimize(lower(item.ast, keep_bytes=target.row_bytes), target)
                    found[f"{name} {number}.{place} {label}"] = [digest(kernel), *kernel.moves]
    return found


def main(arguments: list[str]) -> int:
    command, path = arguments[0], Path(arguments[1])
    found = digests(arguments[2] if len(arguments) > 2 else "")
    kinds = Counter(move.split("(")[0] for moves in found.values() for move in moves[1:])
    print(f"{len(found)} kernels:", ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())))
    if command == "write":
        path.write_text(json.dumps(found, indent=0))
        return 0
    before = json.loads(path.read_text())
    differ = [name for name in found if before.get(name, [""])[0] != found[name][0]]
    for name in differ:
        print(f"{name}\n  {before.get(name, ['new'])[1:]}\n  {found[name][1:]}")
    print(f"{len(differ)} of {len(found)} differ")
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
