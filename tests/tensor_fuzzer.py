"""Random programs over the public Tensor API, judged by PyTorch: values and gradients. In: a seed. Out: None, or a
small failing program as Python text.

As a test it is bounded; endless by command:  python tests/tensor_fuzzer.py [first seed] [how many]
A failure prints its seed and the smallest program found that still fails: a step is dropped by putting its value,
as PyTorch computed it, in its place.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from glassgrad import GradientError, Tensor, dtypes

SIZES = [0, 1, 1, 2, 3, 3, 4, 5, 7, 8, 11, 16, 17, 33]
FLOATS = ["float64"] * 5 + ["float32"] * 4 + ["float16", "bfloat16"]
INTEGERS = ["int8", "uint8", "int16", "int32", "int32", "int64"]
TORCH = {name: getattr(torch, name) for name in ("bool", *FLOATS, *INTEGERS)}
TOLERANCE = {"float64": 1e-9, "float32": 3e-4, "float16": 3e-2, "bfloat16": 2e-1}
FUNCTIONAL = torch.nn.functional
NAMES = {"torch": torch, "F": FUNCTIONAL, "Tensor": Tensor, "dtypes": dtypes}


@dataclass
class Step:
    """One line of a program: a leaf with its values, or an expression over earlier lines in both libraries."""
    inputs: tuple[int, ...] = ()
    ours: str = ""
    theirs: str = ""
    leaf: torch.Tensor | None = None
    value: torch.Tensor | None = field(default=None, repr=False)


class Program:
    """Lines, and which of them are looked at."""

    def __init__(self, steps: list[Step], sinks: list[int]):
        self.steps, self.sinks = steps, sinks

    def used(self) -> list[int]:
        reached = set(self.sinks)
        for i in reversed(range(len(self.steps))):
            if i in reached:
                reached |= set(self.steps[i].inputs)
        return sorted(reached)

    def __str__(self) -> str:
        rows = []
        for i in self.used():
            s = self.steps[i]
            if s.leaf is not None:
                values = s.leaf.float().numpy() if s.leaf.dtype is torch.bfloat16 else s.leaf.numpy()
                text = repr(values.tolist()) if values.size <= 12 else f"... of shape {values.shape}"
                rows.append(f"v{i} = Tensor({text}, dtype='{_name(s.leaf)}')  # shape {tuple(values.shape)}")
            else:
                rows.append(f"v{i} = {s.ours}" + ("" if s.ours == s.theirs else f"    # torch: {s.theirs}"))
        return "\n".join([*rows, f"look at: {', '.join(f'v{i}' for i in self.sinks)}"])

    # -- running ---------------------------------------------------------------------------------------------------
    def fails(self) -> str:
        """What is wrong, or nothing."""
        leaves: list[tuple[int, Tensor, torch.Tensor]] = []
        ours: dict[str, Any] = dict(NAMES)
        theirs: dict[str, Any] = dict(NAMES)
        for i in self.used():
            s = self.steps[i]
            if s.leaf is not None:
                is_float = s.leaf.dtype.is_floating_point
                theirs[f"v{i}"] = s.leaf.clone().requires_grad_(is_float)
                array = s.leaf.float().numpy() if s.leaf.dtype is torch.bfloat16 else s.leaf.numpy()
                ours[f"v{i}"] = Tensor(array, dtype=_name(s.leaf), requires_grad=True if is_float else None)
                leaves.append((i, ours[f"v{i}"], theirs[f"v{i}"]))
            else:
                try:
                    ours[f"v{i}"] = evaluate(s.ours, ours)
                except Exception as wrong:
                    return f"v{i}: {type(wrong).__name__}: {wrong}"
                theirs[f"v{i}"] = evaluate(s.theirs, theirs).to(TORCH[ours[f"v{i}"].dtype.name])
        try:
            for i in self.sinks:
                wrong = differs(ours[f"v{i}"], theirs[f"v{i}"], self.loosest())
                if wrong:
                    return f"value of v{i}: {wrong}"
            return self._gradients(leaves, ours, theirs)
        except Exception as wrong:
            return f"{type(wrong).__name__}: {wrong}"

    def loosest(self) -> float:
        """The widest tolerance of any type on the way."""
        return max((TOLERANCE.get(_name(self.steps[i].value), 0.0) for i in self.used()), default=0.0)

    def _gradients(self, leaves: list[tuple[int, Tensor, torch.Tensor]], ours: dict[str, Any],
                   theirs: dict[str, Any]) -> str:
        numbers = np.random.default_rng(1)
        mine: Any = 0
        judge: Any = 0
        for i in self.sinks:
            x, y = ours[f"v{i}"], theirs[f"v{i}"]
            if y.dtype.is_floating_point and y.requires_grad:
                weights = numbers.uniform(-1, 1, tuple(y.shape))
                mine = mine + (x.double() * Tensor(weights, dtype="float64", requires_grad=False)).sum()
                judge = judge + (y.double() * torch.tensor(weights)).sum()
        if not isinstance(judge, torch.Tensor):
            return ""
        judge.backward()
        try:
            mine.backward()
        except GradientError:                # every leaf was overwritten: PyTorch has zeros
            pass
        for i, x, y in leaves:
            if y.grad is None:
                continue
            if x.grad is None:
                if y.grad.abs().sum().item() != 0:
                    return f"gradient of v{i} is missing"
                continue
            if x.grad.dtype is not x.dtype:
                return f"gradient of v{i} is {x.grad.dtype.name}"
            wrong = differs(x.grad, y.grad, self.loosest() * 4)
            if wrong:
                return f"gradient of v{i}: {wrong}"
        return ""


def _name(value: torch.Tensor | None) -> str:
    return "" if value is None else str(value.dtype).removeprefix("torch.")


def evaluate(text: str, names: dict[str, Any]) -> Any:
    return eval(text, names)        # the text is ours, and it is the reproduction that a failure prints


def differs(ours: Tensor, theirs: torch.Tensor, tolerance: float) -> str:
    """Where two values differ, or nothing."""
    if ours.shape != tuple(theirs.shape):
        return f"shape {ours.shape}, PyTorch {tuple(theirs.shape)}"
    got = np.asarray(ours.numpy())
    want = (theirs.detach().double() if theirs.dtype.is_floating_point else theirs.detach()).numpy()
    if ours.dtype.kind != "f":
        same = got == want
    else:
        with np.errstate(all="ignore"):
            scale = np.max(np.abs(want[np.isfinite(want)]), initial=1.0)
            same = (got == want) | (np.isnan(got) & np.isnan(want)) | (np.abs(got - want) <= tolerance * scale)
    if np.all(same):
        return ""
    at = tuple(int(i) for i in np.argwhere(~np.atleast_1d(same))[0])
    return f"at {at} got {np.atleast_1d(got)[at]}, PyTorch {np.atleast_1d(want)[at]}, shape {ours.shape}"


# -- making programs --------------------------------------------------------------------------------------------
class Maker:
    """Builds one random program; every choice comes from the seed."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.steps: list[Step] = []
        self.floating = self.random.choice(FLOATS)
        self.smooth = self.floating in ("float16", "bfloat16")     # rounding may fall on either side of a jump
        self.generator = torch.Generator().manual_seed(seed)

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

    # -- bricks ----------------------------------------------------------------------------------------------------
    def shape(self, rank: int | None = None, most: int = 3000) -> tuple[int, ...]:
        rank = self.random.choice([0, 1, 1, 2, 2, 3, 3, 4]) if rank is None else rank
        sizes = SIZES if self.random.random() < 0.15 else SIZES[1:]
        shape = [self.random.choice(sizes) for _ in range(rank)]
        while math.prod(shape) > most:
            shape[shape.index(max(shape))] //= 2
        return tuple(shape)

    def leaf(self, shape: tuple[int, ...], dtype: str | None = None) -> int:
        dtype = dtype or self.floating
        if dtype == "bool":
            value = torch.rand(shape, generator=self.generator) < 0.5
        elif dtype in INTEGERS:
            value = torch.randint(0 if dtype[0] == "u" else -20, 21, shape, generator=self.generator).to(TORCH[dtype])
        else:
            value = (torch.rand(shape, generator=self.generator, dtype=torch.float64) * 4 - 2).to(TORCH[dtype])
        self.steps.append(Step(leaf=value, value=value))
        return len(self.steps) - 1

    def add(self, inputs: tuple[int, ...], ours: str, theirs: str | None = None) -> None:
        """A line over v{inputs}: {0}, {1}.. in the texts. One whose values grew too large is tamed."""
        names = [f"v{i}" for i in inputs]
        ours, theirs = ours.format(*names), (theirs or ours).format(*names)
        scope = {**NAMES, **{f"v{i}": self.steps[i].value for i in inputs}}
        try:
            value = evaluate(theirs, scope).detach()
        except (RuntimeError, NotImplementedError, IndexError):    # what PyTorch does not have is not judged
            return
        if value.dtype.is_floating_point:
            value = value.to(TORCH[self.floating] if value.dtype not in (torch.float64, torch.float32) else value.dtype)
        if "transpose2d" in ours and not value.numel():              # we refuse what pads everything away
            return
        if value.numel() > 20000 or value.dtype.is_floating_point and value.numel() and not value.abs().max() < 50:
            return
        self.steps.append(Step(inputs, ours, theirs, value=value))

    def pick(self, test: Callable[[torch.Tensor], bool] = lambda v: v.dtype.is_floating_point) -> int | None:
        fitting = [i for i, s in enumerate(self.steps) if s.value is not None and test(s.value)]
        return self.random.choice(fitting[-7:]) if fitting else None

    def floats(self, rank: int = 0, full: bool = True) -> int:
        """A float value with at least `rank` axes, none of them empty when `full`."""
        found = self.pick(lambda v: v.dtype.is_floating_point and v.dim() >= rank and (v.numel() > 0 or not full))
        if found is None:
            shape = self.shape(max(rank, 1))
            return self.leaf(tuple(max(n, 1) for n in shape) if full else shape)
        return found

    def like(self, i: int, dtype: str | None = None) -> int:
        """Another value that broadcasts with line i."""
        shape = tuple(self.of(i).shape)
        for j in self.random.sample(range(len(self.steps)), len(self.steps)):
            v = self.of(j)
            if _name(v) == (dtype or _name(self.of(i))) and v.dim() <= len(shape) \
                    and all(a in (1, b) for a, b in zip(tuple(v.shape)[::-1], shape[::-1])):
                return j
        cut = self.random.randint(0, len(shape))
        return self.leaf(tuple(1 if self.random.random() < 0.3 else n for n in shape[cut:]), dtype or _name(self.of(i)))

    def of(self, i: int) -> torch.Tensor:
        value = self.steps[i].value
        assert value is not None
        return value

    def axis(self, i: int) -> int:
        rank = self.of(i).dim()
        return self.random.randrange(-rank, rank)

    def axes(self, i: int) -> tuple[int, ...]:
        rank = self.of(i).dim()
        chosen = self.random.sample(range(rank), self.random.randint(1, rank))
        return tuple(a - rank if self.random.random() < 0.3 else a for a in chosen)

    # -- elementwise -----------------------------------------------------------------------------------------------
    def unary(self) -> None:
        x = self.floats(full=False)
        same = ["({0} * 0.1).exp()", "{0}.sin()", "{0}.cos()", "{0}.tanh()", "{0}.sigmoid()", "{0}.square()",
                "-{0}", "({0}*{0}+0.5).sqrt()", "({0}.abs()+0.5).log()", "({0}.abs()+0.5).reciprocal()",
                "({0}.square()+0.3).rsqrt()", "{0}.erf()", "{0}.atan()", "{0}.sinh().tanh()", "{0}.asinh()"]
        pairs = [("{0}.gelu()", "F.gelu({0})"), ("{0}.gelu('tanh')", "F.gelu({0}, approximate='tanh')"),
                 ("{0}.silu()", "F.silu({0})"), ("{0}.mish()", "F.mish({0})"), ("{0}.softplus()", "F.softplus({0})"),
                 ("{0}.elu()", "F.elu({0})"),
                 ("{0}.logsigmoid()", "F.logsigmoid({0})"), ("({0}*0.4).clamp(-0.9, 0.9).atanh()",) * 2,
                 ("{0}.celu(0.5)", "F.celu({0}, 0.5)"), ("{0}.softsign()", "F.softsign({0})"),
                 ("{0}.expm1().tanh()",) * 2,
                 ("({0}.abs()).log1p()",) * 2, ("{0}.exp2().tanh()",) * 2, ("({0}*0.4).tan().tanh()",) * 2]
        jumps = ["{0}.floor()", "{0}.ceil()", "{0}.round()", "{0}.trunc()", "{0}.sign()", "{0}.abs()", "{0}.relu()",
                 "{0}.clamp(-0.5, 1.25)", "{0}.clamp(min=0.1)", "{0}.clamp(max=0.1)", "{0}.frac()"]
        kinked = [("{0}.leaky_relu(0.1)", "F.leaky_relu({0}, 0.1)"), ("{0}.relu6()", "F.relu6({0})"),
                  ("{0}.hardswish()", "F.hardswish({0})"), ("{0}.hardsigmoid()", "F.relu6({0} + 3) / 6"),
                  ("{0}.selu()", "F.selu({0})"), ("{0}.softshrink(0.3)", "F.softshrink({0}, 0.3)"),
                  ("{0}.hardtanh()", "F.hardtanh({0})"), ("{0}.threshold(0.1, 3.0)", "F.threshold({0}, 0.1, 3.0)")]
        choices = [*[(s, s) for s in same], *pairs]
        if not self.smooth:
            choices += [*[(s, s) for s in jumps], *kinked]
        self.add((x,), *self.random.choice(choices))

    def binary(self) -> None:
        x = self.floats(full=False)
        y = self.like(x)
        texts = ["{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} / ({1}.abs() + 1)", "{1} - {0}", "{0}.hypot({1} + 3)",
                 "({0}.abs() + 0.5) ** {1}", "{0}.logaddexp({1})", "{0}.atan2({1} + 5)", "{0}.lerp({1}, 0.3)"]
        if not self.smooth:
            texts += ["{0}.maximum({1})", "{0}.minimum({1})", "{0}.copysign({1} + 0.001)", "{0}.fmod({1}.abs() + 0.7)",
                      "{0} % ({1}.abs() + 0.7)", "{0} // ({1}.abs() + 0.7)"]
        theirs = text = self.random.choice(texts)
        if "lerp" in text:
            theirs = "torch.lerp(*torch.broadcast_tensors({0}, {1}), 0.3)"
        elif "//" in text:
            theirs = "({0}.detach() // ({1}.detach().abs() + 0.7))"        # it has no derivative there; ours is zero
        self.add((x, y), text, theirs)

    def scalar(self) -> None:
        x = self.floats(full=False)
        n = self.random.choice([0, 1, 2, -3, 0.5, -1.75, 10])
        texts = [f"{{0}} + {n}", f"{n} - {{0}}", f"{{0}} * {n}", f"{n} * {{0}} / 3", f"{n} / ({{0}}.square() + 1)",
                 "{0} ** 2", "{0} ** 3", "({0}.abs() + 0.1) ** 0.5", "2 ** {0}", "({0}.abs() + 0.5) ** -1.5",
                 "{0} / 7", "({0} + 5) ** 0", "{0}.square() ** 1"]
        self.add((x,), self.random.choice(texts))

    def choose(self) -> None:
        """Comparisons, masks and where."""
        x = self.floats(full=False)
        if self.smooth:
            mask = self.like(x, "bool")
            self.add((mask, x), "{0}.where({1}, {1} * 0.5)", "torch.where({0}, {1}, {1} * 0.5)")
            return
        y = self.like(x)
        choices = [("({0} < {1}).where({0}, {1} * 2)", "torch.where({0} < {1}, {0}, {1} * 2)"),
                   ("({0} > {1}).where({0}, 0.25)", "torch.where({0} > {1}, {0}, 0.25)"),
                   ("{0}.masked_fill({0} >= 0.3, -1.5)",) * 2,
                   ("({0} <= {1}) & ({0} != 0)",) * 2, ("({0} == {1}) | ({0} > 1)",) * 2,
                   ("~({0} > {1})",) * 2, ("({0} > 0) * {0}",) * 2, ("({0} > {1}).float() * {0}",
                                                                   "({0} > {1}).to({0}.dtype) * {0}"),
                   ("({0} > 0).sum()",) * 2, ("({0} > {1}).any()",) * 2, ("({0} > {1}).all()",) * 2]
        self.add((x, y), *self.random.choice(choices))

    def cast(self) -> None:
        x = self.pick(lambda v: True)
        if x is None:
            return
        target = self.random.choice([*INTEGERS, "bool", self.floating, self.floating, "float64"])
        if self.smooth and target != "float64":
            target = self.floating
        if target[0] == "u" and self.of(x).dtype.is_floating_point:      # below zero: undefined in PyTorch
            self.add((x,), f"{{0}}.abs().cast('{target}')", f"{{0}}.abs().to(torch.{target})")
        else:
            self.add((x,), f"{{0}}.cast('{target}')", f"{{0}}.to(torch.{target})")

    def whole(self) -> None:
        """Whole numbers and bools."""
        x = self.pick(lambda v: not v.dtype.is_floating_point and v.dtype is not torch.bool)
        if x is None or self.random.random() < 0.3:
            x = self.leaf(self.shape(), self.random.choice(INTEGERS))
        y = self.like(x)
        texts = ["{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} // (({1} & 7) + 1)", "{0} % (({1} & 7) + 1)", "{0} & {1}",
                 "{0} | {1}", "{0} ^ {1}", "{0} << 2", "{0} >> 1", "~{0}", "{0}.maximum({1})", "{0}.minimum({1})",
                 "{0} == {1}", "{0} < {1}", "{0} * 3 - 1", "{0} % 5", "{0} // 3", "{0} % -5", "{0} // -3",
                 "{0} * ({0} > 2)", "{0} ** 2"]
        signed = self.of(x).dtype is not torch.uint8                 # PyTorch computes little in uint32, the sum's type
        if signed:
            texts += ["-{0}", "{0}.abs()", "{0}.sign()", "{0}.sum()"]
        if self.of(x).dim() and self.of(x).numel() and signed:
            axis = self.axis(x)
            self.add((x,), *self.random.choice([
                (f"{{0}}.max({axis})", f"{{0}}.amax({axis})"), (f"{{0}}.min({axis})", f"{{0}}.amin({axis})"),
                (f"{{0}}.sum({axis})",) * 2, (f"{{0}}.cumsum({axis})",) * 2, (f"{{0}}.prod({axis})",) * 2]))
        self.add((x, y), self.random.choice(texts))

    # -- reductions ------------------------------------------------------------------------------------------------
    def reduce(self) -> None:
        x = self.floats(1)
        axes, keep = self.axes(x), self.random.random() < 0.5
        given = axes[0] if len(axes) == 1 and self.random.random() < 0.7 else axes
        count = math.prod(self.of(x).shape[a] for a in axes)
        texts = [(f"{{0}}.sum({given}, keepdim={keep})",) * 2, (f"{{0}}.mean({given}, keepdim={keep})",) * 2,
                 (f"{{0}}.logsumexp({given}, keepdim={keep})",) * 2, ("{0}.sum()",) * 2, ("{0}.mean()",) * 2]
        if not self.smooth:
            texts += [(f"{{0}}.max({given}, keepdim={keep})", f"{{0}}.amax({given}, keepdim={keep})"),
                      (f"{{0}}.min({given}, keepdim={keep})", f"{{0}}.amin({given}, keepdim={keep})"),
                      (f"{{0}}.argmax({axes[0]}, keepdim={keep})",) * 2,
                      (f"{{0}}.argmin({axes[0]}, keepdim={keep})",) * 2, ("{0}.argmax()",) * 2,
                      (f"{{0}}.prod({axes[0]}, keepdim={keep})",) * 2, ("{0}.max()", "{0}.amax()")]
        if count > 1:
            texts += [(f"{{0}}.var({given}, keepdim={keep})",) * 2,
                      (f"({{0}}.var({given}, keepdim={keep}) + 0.1).sqrt()",) * 2,
                      (f"{{0}}.var({given}, keepdim={keep}, correction=0)",) * 2]
        self.add((x,), *self.random.choice(texts))

    def scan(self) -> None:
        x = self.floats(1)
        axis = self.axis(x)
        self.add((x,), *self.random.choice([(f"{{0}}.cumsum({axis})",) * 2,
                                            (f"({{0}} * 0.5).cumprod({axis})", f"({{0}} * 0.5).cumprod({axis})"),
                                            (f"{{0}}.logcumsumexp({axis})",) * 2]))

    def order(self) -> None:
        x = self.floats(1)
        if self.smooth or torch.unique(self.of(x)).numel() != self.of(x).numel():     # ties have no one answer
            return
        axis = self.axis(x)
        k = self.random.randint(1, self.of(x).shape[axis])
        down = self.random.random() < 0.5
        self.add((x,), *self.random.choice([
            (f"{{0}}.sort({axis}, descending={down})[0]",) * 2, (f"{{0}}.sort({axis}, descending={down})[1]",) * 2,
            (f"{{0}}.topk({k}, {axis})[0]",) * 2, (f"{{0}}.topk({k}, {axis}, largest=False)[1]",) * 2,
            (f"{{0}}.argsort({axis}, descending={down})",) * 2]))

    # -- movement --------------------------------------------------------------------------------------------------
    def move(self) -> None:
        x = self.floats(1, full=False)
        v = self.of(x)
        rank, shape = v.dim(), tuple(v.shape)
        kind = self.random.randrange(12)
        if kind == 0:
            self.add((x,), f"{{0}}.permute({tuple(self.random.sample(range(rank), rank))})")
        elif kind == 1:
            self.add((x,), f"{{0}}.flip({self.axes(x)})")
        elif kind == 2:
            cut = self.random.randint(0, rank)
            self.add((x,), f"{{0}}.reshape({(math.prod(shape[:cut]), *shape[cut:])})")
        elif kind == 3:
            self.add((x,), f"{{0}}.unsqueeze({self.random.randint(-rank - 1, rank)})")
        elif kind == 4:
            wide = [self.random.choice([2, 3]) if n == 1 else self.random.choice([n, -1]) for n in shape]
            self.add((x,), f"{{0}}.expand({tuple([self.random.choice([1, 2]), *wide])})")
        elif kind == 5:
            sides = range(2 * self.random.randint(1, rank))
            pads = [self.random.randint(-1 if shape[-1 - side // 2] > 3 else 0, 3) for side in sides]
            fill = self.random.choice([0.0, 1.5])
            self.add((x,), f"{{0}}.pad({tuple(pads)}, value={fill})", f"F.pad({{0}}, {tuple(pads)}, value={fill})")
        elif kind == 6:
            self.add((x,), f"{{0}}.roll({self.random.randint(-5, 5)}, {self.random.randrange(rank)})")
        elif kind == 7:
            self.add((x,), f"{{0}}.repeat({tuple(self.random.choice([1, 2, 3]) for _ in range(rank))})")
        elif kind == 8:
            self.add((x,), f"{{0}}.repeat_interleave(2, {self.axis(x)})")
        elif kind == 9:
            self.add((x,), f"{{0}}.transpose({self.axis(x)}, {self.axis(x)})")
        elif kind == 10 and rank >= 2:
            self.add((x,), f"{{0}}.{self.random.choice(['triu', 'tril'])}({self.random.randint(-2, 2)})")
        else:
            axis = self.axis(x)
            if shape[axis]:
                size = self.random.randint(1, shape[axis])
                self.add((x,), f"{{0}}.unfold({axis}, {size}, {self.random.randint(1, 3)})")

    def view(self) -> None:
        """Slices with all kinds of keys that are plain Python."""
        x = self.floats(1)
        v = self.of(x)
        keys: list[str] = []
        for n in v.shape[:self.random.randint(1, v.dim())]:
            kind = self.random.randrange(6)
            if kind == 0:
                keys.append(str(self.random.randrange(-n, n)))
            elif kind == 1:
                keys.append(f"::{self.random.choice([1, 2, 3])}")
            elif kind == 2:
                keys += ["None", ":"]
            elif kind == 3:
                keys.append(f"{self.random.randint(-n - 2, n)}:")
            elif kind == 4:
                keys.append(f":{self.random.randint(-n, n + 2)}")
            else:
                start = self.random.randrange(n)
                keys.append(f"{start}:{self.random.randint(start, n)}:{self.random.choice([1, 2])}")
        if self.random.random() < 0.3:
            keys = ["...", *keys[-1:]]
        self.add((x,), f"{{0}}[{', '.join(keys)}]")

    def index(self) -> None:
        """Tensors as keys."""
        x = self.floats(1)
        v = self.of(x)
        kind = self.random.randrange(6)
        n = v.shape[0]
        picks = [self.random.randrange(-n, n) for _ in range(self.random.randint(1, 5))]
        if kind == 0:
            self.add((x,), f"{{0}}[Tensor({picks})]", f"{{0}}[torch.tensor({picks})]")
        elif kind == 1:
            self.add((x,), f"{{0}}[{picks}]")
        elif kind == 2 and v.dim() >= 2:
            more = [[self.random.randrange(v.shape[1])] for _ in range(2)]
            self.add((x,), f"{{0}}[Tensor({picks}), Tensor({more})]",
                     f"{{0}}[torch.tensor({picks}), torch.tensor({more})]")
        elif kind == 3 and v.dim() >= 2:
            more = [self.random.randrange(v.shape[-1]) for _ in range(3)]
            self.add((x,), f"{{0}}[1:, ..., Tensor({more})]", f"{{0}}[1:, ..., torch.tensor({more})]")
        elif kind == 4 and v.dim() >= 3:
            last = [self.random.randrange(v.shape[2]) for _ in picks]
            self.add((x,), f"{{0}}[Tensor({picks}), :, Tensor({last})]",
                     f"{{0}}[torch.tensor({picks}), :, torch.tensor({last})]")
        else:
            axis = self.random.randrange(v.dim())
            places = torch.randint(0, v.shape[axis], tuple(v.shape), generator=self.generator)
            self.steps.append(Step(leaf=places, value=places))
            self.add((x, len(self.steps) - 1), f"{{0}}.gather({axis}, {{1}})")

    def write(self) -> None:
        """Assignment to a part of a tensor, as one expression."""
        x = self.floats(1)
        v = self.of(x)
        n = v.shape[0]
        start = self.random.randrange(n)
        stop = self.random.randint(start, n)
        key = self.random.choice([f"{start}", f"{start}:{stop}", f"{start}::2", "..., 0", f"[{start}]"])
        value = self.random.choice(["7.0", f"{{0}}[{key}] * 2"])
        if self.random.random() < 0.3 and v.dim():
            axis = self.random.randrange(v.dim())
            places = torch.randint(0, v.shape[axis], tuple(v.shape), generator=self.generator)
            self.steps.append(Step(leaf=places, value=places))
            self.add((x, len(self.steps) - 1), f"{{0}}.scatter_add({axis}, {{1}}, {{0}} * 0.5)")
            return
        new = value.replace("{0}", "t")
        self.add((x,), f"written({{0}}, lambda t: t.__setitem__(slice_of[{key!r}], {new}))")

    # -- larger things ---------------------------------------------------------------------------------------------
    def matmul(self) -> None:
        x = self.floats(1)
        v = self.of(x)
        inner = v.shape[-1]
        kind = self.random.randrange(4)
        if kind == 0:
            y = self.leaf((inner,), _name(v))
        elif kind == 1 or v.dim() == 1:
            y = self.leaf((inner, self.random.choice([1, 2, 5, 9])), _name(v))
        else:
            batch = tuple(self.random.choice([1, n]) for n in v.shape[:-2])
            y = self.leaf((*batch[self.random.randint(0, len(batch)):], inner, self.random.choice([1, 3, 8])), _name(v))
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
        y = self.leaf(tuple(v.shape), _name(v))
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
            others.append(fits if fits is not None else self.leaf(tuple(shape), _name(v)))
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


def written(value: Any, change: Callable[[Any], None]) -> Any:
    """A copy of a value after an assignment to a part of it."""
    copy = value.clone()
    change(copy)
    return copy


class _Keys:
    """The key that a text between brackets stands for."""

    def __getitem__(self, text: str) -> Any:
        class Show:
            def __getitem__(self, key: Any) -> Any:
                return key
        return eval(f"show[{text}]", {"show": Show()})


NAMES.update(written=written, slice_of=_Keys())


def shrink(program: Program) -> Program:
    """A smaller program that still fails."""
    changed = True
    while changed:
        changed = False
        for sink in list(program.sinks):
            fewer = Program(program.steps, [s for s in program.sinks if s != sink])
            if len(program.sinks) > 1 and fewer.fails():
                program, changed = fewer, True
        for i in program.used():
            step = program.steps[i]
            if step.leaf is None and i not in program.sinks and step.value is not None:
                steps = list(program.steps)
                steps[i] = Step(leaf=step.value.clone().contiguous(), value=step.value)
                smaller = Program(steps, program.sinks)
                if smaller.fails():
                    program, changed = smaller, True
        for i in program.used():                         # look at an earlier line instead
            if i not in program.sinks and program.steps[i].leaf is None:
                earlier = Program(program.steps, [i])
                if earlier.fails():
                    program, changed = earlier, True
                    break
    return program


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
