"""Random layers whose lengths change, on any device, against PyTorch in float64. In: a seed, a device. Out: nothing, or
a failing program with the calls it needs.

A program is one formula (products, convolutions, attention, norms, scans) whose sizes are numbers, but for `n` and in
some `m`. It is called with lengths at the ends of the ranges that kernels have versions of their code for, and beside
them, back and forth: on new tensors, on those of the last call of that length, or on the first rows of a large one;
plain, jitted, with the length as a `Variable`, or in a replay for all lengths. What lies past the length is NaN.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from needed_calls import failure_with_needed_calls

from glassgrad import Tensor, TinyJit, Variable
from glassgrad.compiler.graph import dtypes
from glassgrad.engine.realize import forgotten_schedules

LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 80, 100, 127, 128, 129, 200, 255, 256,
           257, 300, 511, 512, 513, 700, 1023, 1024, 1025, 1100, 2050)
OTHERS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 48, 64, 65, 100, 130)       # of m, where it has many values
MOST_WORK = {"CPU": 1 << 26, "CLANG": 1 << 26, "PYTHON": 1 << 21}     # multiply-adds of a call; of other devices:
MOST_IN_SHIMS, MOST_INTERPRETED = 1 << 23, 1 << 18
CLOSE = {"float64": 1e-9, "float32": 2e-4, "float16": 1.5e-2, "bfloat16": 6e-2, "int8": 0.0}     # of the largest value
FLOATS = ("float32", "float32", "float32", "float16", "bfloat16", "float64")
LARGE_HALF = 30_000                  # beyond which sums of float16 are not compared

# weight, formula, shapes of the leaves, multiply-adds, and the shape of E(), an epilogue; X and W are
# prologues of x and w
FORMULAS: tuple[tuple[int, str, dict[str, str], str, str], ...] = (
    (8, "E(X @ W)", {"x": "n,K", "w": "K,N"}, "n*K*N", "n,N"),
    (5, "E(X @ W.T)", {"x": "n,K", "w": "N,K"}, "n*K*N", "n,N"),
    (2, "E(X.T @ W)", {"x": "K,n", "w": "K,N"}, "n*K*N", "n,N"),
    (2, "(w @ x)", {"w": "N,K", "x": "K,n"}, "n*K*N", ""),
    (2, "(w @ x.T).relu() + 1", {"w": "N,K", "x": "n,K"}, "n*K*N", ""),
    (3, "E(X @ W)", {"x": "B,n,K", "w": "K,N"}, "n*K*N*B", "B,n,N"),
    (3, "E(X @ W)", {"x": "B,n,K", "w": "B,K,N"}, "n*K*N*B", "B,n,N"),
    (2, "E(X @ W)", {"x": "n,1,B,K", "w": "B,K,N"}, "n*B*B*K*N", "n,B,B,N"),
    (2, "E(x.transpose(0, 1) @ w)", {"x": "n,B,K", "w": "B,K,N"}, "n*B*K*N", "B,n,N"),
    (2, "E(X @ W + (x * 2) @ u)", {"x": "n,K", "w": "K,N", "u": "K,N"}, "2*n*K*N", "n,N"),
    (2, "E(X @ W) + y @ u", {"x": "n,K", "w": "K,N", "y": "n,C", "u": "C,N"}, "n*K*N+n*C*N", "n,N"),
    (2, "E(X @ W) @ u", {"x": "n,K", "w": "K,N", "u": "N,C"}, "n*K*N+n*C*N", "n,N"),
    (2, "E(X @ W).sum(0)", {"x": "n,K", "w": "K,N"}, "n*K*N", "n,N"),
    (2, "E(X @ W).softmax(-1)", {"x": "n,K", "w": "K,N"}, "n*K*N", "n,N"),
    (2, "layernorm(E(X @ W))", {"x": "n,K", "w": "K,N"}, "n*K*N", "n,N"),
    (2, "x.T @ y", {"x": "n,K", "y": "n,N"}, "n*K*N", ""),
    (1, "(x.T @ y).T + 1", {"x": "n,K", "y": "n,N"}, "n*K*N", ""),
    (2, "x @ y.T", {"x": "n,K", "y": "n,K"}, "n*K*n", ""),
    (1, "x @ y.T", {"x": "n,K", "y": "m,K"}, "n*K*m", ""),
    (1, "E(x @ y)", {"x": "n,m", "y": "m,N"}, "n*N*m", "n,N"),
    (1, "E(X @ W)", {"x": "m,n,K", "w": "K,N"}, "n*K*N*m", "m,n,N"),
    (1, "x @ y", {"x": "n,n", "y": "n,N"}, "n*n*N", ""),
    (1, "w @ x", {"w": "K", "x": "n,K,N"}, "n*K*N", ""),
    (1, "(x @ w)[:, 0] * (x @ w)[:, -1]", {"x": "n,K", "w": "K,N"}, "n*K*N", ""),
    (1, "E(x[::2] @ w)", {"x": "2*n,K", "w": "K,N"}, "n*K*N", "n,N"),
    (1, "E(x.flip(0) @ w)", {"x": "n,K", "w": "K,N"}, "n*K*N", "n,N"),
    (1, "cat((x, y), 0) @ w", {"x": "n,K", "y": "3,K", "w": "K,N"}, "n*K*N", ""),
    (1, "cat((x @ w, y), 0)", {"x": "n,K", "y": "3,N", "w": "K,N"}, "n*K*N", ""),
    (1, "cat((x @ w, x @ u), 1)", {"x": "n,K", "u": "K,C", "w": "K,N"}, "n*K*N+n*K*C", ""),
    (2, "conv2d(x, w, padding=1)", {"x": "n,C,H,H", "w": "O,C,3,3"}, "n*C*O*H*H*9", ""),
    (2, "conv2d(x, w, padding=1).relu()", {"x": "2,C,n,H", "w": "O,C,3,3"}, "2*C*O*n*H*9", ""),
    (2, "E(conv2d(x, w, padding=1))", {"x": "2,C,H,n", "w": "O,C,3,3"}, "2*C*O*n*H*9", "2,O,H,n"),
    (1, "E(conv2d(x, w, padding=2))", {"x": "1,C,H,n", "w": "O,C,5,5"}, "C*O*n*H*25", "1,O,H,n"),
    (1, "conv2d(x, w, padding=3)", {"x": "1,C,n,n", "w": "O,C,7,7"}, "C*O*n*n*49", ""),
    (2, "E(conv2d(x, w, padding=1))", {"x": "2,C,n,n", "w": "O,C,3,3"}, "2*C*O*n*n*9", "2,O,n,n"),
    (1, "conv2d(x, w)", {"x": "2,C,H+2,n+2", "w": "O,C,3,3"}, "2*C*O*n*H*9", ""),
    (1, "conv2d(x, w, stride=2, padding=1)", {"x": "n,C,H,H", "w": "O,C,3,3"}, "n*C*O*H*H*3", ""),
    (1, "conv2d(x, w)", {"x": "n,K,1,1", "w": "N,K,1,1"}, "n*K*N", ""),
    (1, "conv2d(x, w)", {"x": "1,K,n,1", "w": "N,K,1,1"}, "n*K*N", ""),
    (1, "conv2d(x, w, padding=1, groups=C)", {"x": "n,C,H,H", "w": "C,1,3,3"}, "n*C*H*H*9", ""),
    (2, "conv1d(x, w, padding=1)", {"x": "2,C,n", "w": "O,C,3"}, "2*n*C*O*3", ""),
    (1, "conv1d(x, w, padding=4, dilation=4)", {"x": "2,C,n", "w": "O,C,3"}, "2*n*C*O*3", ""),
    (2, "conv1d(x, w, stride=2, padding=1)", {"x": "2,C,n", "w": "O,C,3"}, "2*n*C*O*2", ""),
    (1, "conv1d(x, w, stride=3, padding=2)", {"x": "2,C,n", "w": "O,C,5"}, "2*n*C*O*2", ""),
    (2, "E(x[:(n + 1) // 2] @ w)[:n // 2]", {"x": "n,K", "w": "K,N"}, "n*K*N", "(n + 1) // 2,N"),
    (1, "x[n // 2:].softmax(-1) @ w", {"x": "n,K", "w": "K,N"}, "n*K*N", ""),
    (1, "x[:, n // 3:] * 2 + x[:, :n - n // 3]", {"x": "K,n"}, "K*n", ""),
    (3, "attention(x, y, y)", {"x": "2,H,n,D", "y": "2,H,n,D"}, "4*H*n*n*D", ""),
    (3, "attention(x, y, y, is_causal=True)", {"x": "H,n,D", "y": "H,n,D"}, "2*H*n*n*D", ""),
    (2, "attention(x, y, y)", {"x": "H,C,D", "y": "H,n,D"}, "H*n*C*D", ""),
    (2, "attention(x, y, y)", {"x": "H,n,D", "y": "H,C,D"}, "H*n*C*D", ""),
    (2, "attention(x, y, y, attn_mask=z)", {"x": "H,n,D", "y": "H,n,D", "z": "n,n"}, "2*H*n*n*D", ""),
    (2, "attention(x, y, y, enable_gqa=True)", {"x": "1,4,n,D", "y": "1,2,n,D"}, "4*n*n*D", ""),
    (2, "((x @ y.transpose(-1, -2)) * 0.1).softmax(-1) @ y", {"x": "H,n,D", "y": "H,n,D"}, "2*H*n*n*D", ""),
    (2, "layernorm(x)", {"x": "K,n"}, "K*n", ""),
    (2, "layernorm(x)", {"x": "n,K"}, "K*n", ""),
    (2, "x.softmax(0)", {"x": "n,K"}, "K*n", ""),
    (2, "x.softmax(-1)", {"x": "K,n"}, "K*n", ""),
    (1, "x.log_softmax(-1).sum(0)", {"x": "K,n"}, "K*n", ""),
    (1, "x.std(-1)", {"x": "K,n"}, "K*n", ""),
    (2, "x.cumsum(0)", {"x": "n,C"}, "C*n*64", ""),
    (2, "x.cumsum(-1)", {"x": "C,n"}, "C*n*64", ""),
    (1, "x.sort(-1)[0]", {"x": "C,n"}, "C*n*256", ""),
    (1, "x.sort(0)[0]", {"x": "n,C"}, "C*n*256", ""),
    (1, "x[arange(n) // 2] @ w", {"x": "n,K", "w": "K,N"}, "n*K*N", ""),
    (1, "w[arange(n) % 7]", {"w": "7,K"}, "n*K", ""),
    (1, "x.T.contiguous() * 2", {"x": "n,K"}, "n*K", ""),
    (1, "amax(x, 0) * 2", {"x": "n,K"}, "n*K", ""),
    (1, "conv2d(x.permute(0, 3, 1, 2), w, padding=1).permute(0, 2, 3, 1).contiguous() + 1",
     {"x": "n,H,H,C", "w": "O,C,3,3"}, "n*C*O*H*H*9", ""),
    (1, "cat((x @ w, y @ w), 0)", {"x": "n,K", "y": "n,K", "w": "K,N"}, "2*n*K*N", ""),
    (1, "x.reshape(-1) * 2", {"x": "n,K"}, "n*K", ""),
    (1, "x.reshape(K, n) @ y", {"x": "n,K", "y": "n,N"}, "n*K*N", ""),
    (2, "x @ y", {"x": "n,K", "y": "K,m"}, "n*K*m", ""),
    (1, "E(X @ W)", {"x": "n,m", "w": "m,N"}, "n*m*N", "n,N"),
    (2, "attention(x, y, y)", {"x": "H,n,D", "y": "H,m,D"}, "2*H*n*m*D", ""),
    (1, "attention(x, x, x, is_causal=True)", {"x": "m,2,n,D"}, "4*n*n*m*D", ""),
    (1, "(x.reshape(n * m, K) @ w).reshape(m, n, N).sum(1)", {"x": "m,n,K", "w": "K,N"}, "n*K*N*m", ""),
    (1, "cat((x, y), 0) @ w", {"x": "n,K", "y": "m,K", "w": "K,N"}, "n*K*N+m*K*N", ""),
    (2, "conv2d(x, w, padding=1)", {"x": "2,C,n,m", "w": "O,C,3,3"}, "2*n*m*C*O*9", ""),
    (1, "conv2d(x, w, stride=2, padding=1)", {"x": "1,C,n,m", "w": "O,C,3,3"}, "n*m*C*O*3", ""),
    (1, "layernorm(x).sum(0)", {"x": "m,n,K"}, "n*m*K", ""),
    (1, "x.softmax(-1) * amax(x, 0)", {"x": "n,m"}, "n*m", ""),
    (1, "(x.T.contiguous() * 2).reshape(-1)", {"x": "n,m"}, "n*m", ""),
    (1, "(x.reshape(n * B, K) @ w).reshape(n, B, N).sum(1)", {"x": "n,B,K", "w": "K,N"}, "n*K*N*B", ""),
)
PROLOGUES = ("x", "x", "x", "(x * 2 + 1)", "x.relu()", "(x * 0.5).tanh()", "x.float()")
WEIGHTS = ("w", "w", "w", "(w * 0.5)", "w.float()")
EPILOGUES = ("{v}", "{v}", "{v}.relu()", "({v} + b).relu()", "{v} + b", "gelu({v} + b)", "{v} + r", "{v} * 0.5 + r * 2",
             "({v}).tanh() + {v}", "{v}.float()", "{v}.half()", "{v} * r[..., :1]", "{v} * c")
OURS: dict[str, Any] = {
    "gelu": Tensor.gelu, "layernorm": Tensor.layernorm, "conv2d": Tensor.conv2d, "conv1d": Tensor.conv2d,
    "cat": lambda xs, axis: xs[0].cat(*xs[1:], dim=axis), "amax": Tensor.max,
    "attention": Tensor.scaled_dot_product_attention}
THEIRS: dict[str, Any] = {
    "gelu": F.gelu, "layernorm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "conv2d": F.conv2d, "conv1d": F.conv1d, "cat": torch.cat, "amax": torch.amax, "arange": torch.arange,
    "attention": F.scaled_dot_product_attention}

Array = np.ndarray[Any, Any]
Call = tuple[int, int]               # the values of n and m


@dataclass
class LengthProgram:
    """A formula, the sizes of its leaves, and the lengths that it is called with."""
    seed: int
    device: str
    formula: str
    leaves: dict[str, str]           # shapes
    dtype: str
    numbers: dict[str, int]
    calls: list[Call]
    gradients: bool
    inputs: str                      # "new" at each call, "kept" for each length, or the first "rows" of a large tensor
    way: str                         # "plain", "jit", "variable", "replay"

    @staticmethod
    def random(seed: int, device: str) -> LengthProgram:
        rng = random.Random(seed)
        pick, slow = rng.choice, device not in MOST_WORK
        most = MOST_WORK.get(device, MOST_IN_SHIMS if device.endswith("_SHIM") else MOST_INTERPRETED)
        _, formula, leaves, work, result = rng.choices(FORMULAS, [row[0] for row in FORMULAS])[0]
        dtype = pick(FLOATS[:-1] if device == "METAL_SHIM" else FLOATS)
        dtype = "int8" if re.fullmatch(r"E\(X @ W\)", formula) and rng.random() < 0.05 else dtype
        formula, leaves = _filled(rng, formula, leaves, result, plain=dtype == "int8")
        lengths = [n for n in LENGTHS if rng.random() < 0.7]
        several = any("m" in shape for shape in leaves.values())
        others = rng.sample(OTHERS, 7) if several and rng.random() < 0.7 else [pick((1, 2, 3, 17, 33)) for _ in (1, 2)]
        for _ in range(100):
            numbers = {"K": _size(rng, 3000), "N": _size(rng, 1100), "B": rng.randint(1, 5), "C": _size(rng, 64),
                       "O": _size(rng, 48), "H": rng.randint(1, 17), "D": pick((8, 16, 32, 33, 64)),
                       "m": max(others) if several else 1}
            fit = [n for n in lengths if eval(work, {"n": n, **numbers}) <= most] or [1]
            if len(fit) >= 6:
                break
        few = [n for n in fit if n > 1][:12] or fit
        first = rng.sample(few, min(3, len(few)))
        if slow or rng.random() < 0.3:
            first = [few[0], few[0] + 1]                     # a length that grows: general kernels at the second call
        lengths = [*first, *[pick(fit) for _ in range(rng.randint(4, 6 if slow else 9))], *first[:2]]
        if rng.random() < 0.15 and not re.search("conv|amax", formula):      # nothing is the largest of none
            lengths.insert(rng.randrange(len(lengths) + 1), 0)
        calls = [(n, pick(others) if several else 1) for n in lengths]
        gradients = rng.random() < (0.1 if slow else 0.3) and dtype != "int8"
        way = pick(("plain", "variable", "replay") if slow else ("plain", "plain", "jit", "variable", "replay"))
        named = all(re.fullmatch(r"([^nm]+,)*n(,[^nm]+)*|[^nm]+", shape) for shape in leaves.values())
        if way in ("variable", "replay") and (gradients or not named or re.search(r"\bn\b", formula)):
            way = "plain"
        return LengthProgram(seed, device, formula, leaves, dtype, numbers, calls, gradients,
                             pick(("new", "kept", "kept", "new" if gradients else "rows")), way)

    # -- one call ----------------------------------------------------------------------------------------------------
    def arrays(self, call: Call) -> dict[str, Array]:
        """The leaves' numbers, which all types hold exactly."""
        sizes = {**self.numbers, "n": call[0], "m": call[1]}
        found = {}
        for i, (name, shape) in enumerate(self.leaves.items()):
            rng = np.random.default_rng([self.seed, i, *(call if self.changes(name) else ())])
            at = tuple(eval(size, sizes) for size in shape.split(","))
            found[name] = rng.integers(-3, 4, at) * 1.0 if self.dtype == "int8" else rng.integers(-32, 33, at) / 32
        return found

    def changes(self, name: str) -> bool:
        return bool({"n", "m"} & {*self.leaves[name]})

    def reference(self, arrays: dict[str, Array], call: Call) -> list[Array]:
        leaves = {name: torch.tensor(value, requires_grad=self.gradients) for name, value in arrays.items()}
        text = self.formula.replace(".float()", "").replace(".half()", "")
        out = eval(text, {**THEIRS, **self.numbers, "n": call[0], "m": call[1], **leaves})
        if self.gradients:
            (out * 0.3).square().sum().backward()
        return [out.detach().numpy(), *[leaf.grad.numpy() for leaf in leaves.values() if leaf.grad is not None]]

    def outputs(self, n: Any, m: int, leaves: dict[str, Tensor]) -> list[Tensor]:
        """The result, and the gradients; leaves are as long as a variable says."""
        if not isinstance(n, int):
            leaves = {name: leaf[(slice(None),) * self.axis(name) + (slice(0, n),)] if self.changes(name) else leaf
                      for name, leaf in leaves.items()}
        names = {**OURS, "arange": lambda n: Tensor.arange(n, device=self.device), **self.numbers, "n": n, "m": m}
        out = eval(self.formula, {**names, **leaves})
        if self.gradients:
            ((out if self.dtype == "float64" else out.float()) * 0.3).square().sum().backward()
        gradients = [leaf.grad for leaf in leaves.values() if leaf.grad is not None]
        for leaf in leaves.values():
            leaf.grad = None
        return [x.realize() for x in (out, *gradients)]

    def axis(self, name: str) -> int:
        return self.leaves[name].split(",").index("n")

    # -- all calls ---------------------------------------------------------------------------------------------------
    def fails(self) -> str:
        """What is wrong in the first call that is, or nothing."""
        with forgotten_schedules():
            self.kept: dict[Any, Tensor] = {}
            run: Callable[..., Any] = lambda n, m, **leaves: self.outputs(n, m, leaves)
            jitted = TinyJit(run) if self.way in ("jit", "replay") else run
            calls = self.calls * 3 if self.way == "jit" else self.calls           # the third one is a replay
            for number, (n, m) in enumerate(calls):
                try:
                    arrays = self.arrays((n, m))
                    wanted = self.reference(arrays, (n, m))
                    leaves = {name: self.leaf(name, value, (n, m)) for name, value in arrays.items()}
                    length = Variable("n", 0, self.longest).bind(n) if self.way in ("variable", "replay") else n
                    found = (jitted if n else run)(length, m, **leaves)
                    wrong = [where for x, y in zip(found, wanted) if (where := self.difference(x, y))]
                except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
                    wrong = [f"{type(error).__name__}: {str(error)[:600]}"]
                if wrong:
                    return f"call {number}, n={n}, m={m}: {wrong[0]}"
        return ""

    @property
    def longest(self) -> int:
        return max(n for n, _ in self.calls)

    def leaf(self, name: str, value: Array, call: Call) -> Tensor:
        """A leaf's tensor for a call; with a variable, all of it."""
        by_value, key = self.way in ("variable", "replay"), (name, *(call if self.changes(name) else ()))
        if not self.changes(name) or self.inputs == "kept" and not by_value:
            if key not in self.kept:
                self.kept[key] = self.tensor(value)
            return self.kept[key]
        if not by_value and not (self.inputs == "rows" and re.fullmatch(r"n(,[^nm]+)*", self.leaves[name])):
            return self.tensor(value)
        axis, [n, _] = self.axis(name), call
        around = slice(None),
        whole = np.full((*value.shape[:axis], self.longest + 1, *value.shape[axis + 1:]), 1 if value.size == 0 or
                        self.dtype == "int8" else np.nan)
        whole[around * axis + (slice(0, n),)] = value
        if by_value and self.inputs == "new":
            return self.tensor(whole)
        if name in self.kept:
            self.kept[name].assign(self.tensor(whole)).realize()
        large = self.kept.setdefault(name, self.tensor(whole))
        return large if by_value else large[:n]

    def tensor(self, value: Array) -> Tensor:
        kind = "float32" if self.dtype == "bfloat16" else self.dtype
        made = Tensor(value.astype(kind), device="CPU").cast(self.dtype).contiguous().realize()
        made = made.to(self.device).realize()
        made.requires_grad = self.gradients
        return made

    def difference(self, x: Tensor, want: Array) -> str:
        """Where a result differs from the reference, or nothing."""
        got = (x if x.dtype.in_numpy else x.float()).numpy()
        if got.shape != want.shape:
            return f"has shape {got.shape}, expected {want.shape}"
        if x.dtype.kind in "iu":
            want = want.astype(np.int64).astype(got.dtype)
        close = max(CLOSE[self.dtype], 2e-3 * ("half()" in self.formula), 2e-4 * ("float()" in self.formula))
        scale = np.max(np.abs(want[np.isfinite(want)]), initial=1.0)
        if scale > LARGE_HALF and ("half()" in self.formula or x.dtype is dtypes.float16):
            return ""
        with np.errstate(all="ignore"):
            far = np.abs(got.astype(np.float64) - want) > close * scale * (3 if self.gradients else 1)
            wrong = np.argwhere(np.atleast_1d((far | (np.isnan(got) != np.isnan(want))) & (got != want)))
        if not len(wrong):
            return ""
        at = tuple(int(i) for i in wrong[0])
        return (f"at {at} and {len(wrong) - 1} others of {want.size}: got {np.atleast_1d(got)[at]}, expected "
                f"{np.atleast_1d(want)[at]}")

    def __str__(self) -> str:
        sizes = {name: n for name, n in self.numbers.items() if any(name in shape for shape in self.leaves.values())}
        return (f"{self.device} {self.dtype}: {self.formula}\n    leaves {self.leaves}, {sizes}\n    calls {self.calls}"
                f", {self.inputs} inputs, {self.way}{', gradients' * self.gradients}")


def _filled(rng: random.Random, formula: str, leaves: dict[str, str], result: str, plain: bool) \
        -> tuple[str, dict[str, str]]:
    """A formula with a prologue of x and w and an epilogue, and with the leaves of that."""
    formula = formula.replace("X", "x" if plain else rng.choice(PROLOGUES))
    formula = formula.replace("W", "w" if plain else rng.choice(WEIGHTS))
    if not result:
        return formula, leaves
    text = "{v} * 2" if plain else rng.choice(EPILOGUES)
    begin = formula.index("E(")
    end = begin + 2
    while formula[begin:end].count("(") > formula[begin:end].count(")"):
        end += 1
    *rows, columns = result.split(",")
    more = {"b": columns, "r": result, "c": f"{rows[-1]},1"}
    used = {name: more[name] for name in re.findall(r"\b[brc]\b", text)}
    return f"{formula[:begin]}({text.format(v=formula[begin + 1:end])}){formula[end:]}", {**leaves, **used}


def _size(rng: random.Random, most: int) -> int:
    """A size, often near a multiple of 8."""
    n = math.exp(rng.uniform(0, math.log(most)))
    return max(1, min(most, round(n) if rng.random() < 0.5 else round(n / 8) * 8 + rng.choice((0, 0, 1, -1))))


def check(seed: int, device: str = "CPU") -> str:
    """Nothing when the program of this seed is right in all its calls; else the program with the calls it needs."""
    program = LengthProgram.random(seed, device)
    wrong = failure_with_needed_calls(program)
    return f"seed {seed}: {wrong}\n{program}" if wrong else ""
