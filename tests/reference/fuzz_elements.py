"""Random lines: elementwise, reductions, views, indexing, and the bricks they are made of. In: a seed. Out: lines."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import torch
from fuzz_programs import FLOATS, INTEGERS, NAMES, TORCH, Step, dtype_name, evaluate

SIZES = [0, 1, 1, 2, 3, 3, 4, 5, 7, 8, 11, 16, 17, 33]


class Bricks:
    """Lines by kind; every choice comes from the seed."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.steps: list[Step] = []
        self.floating = self.random.choice(FLOATS)
        self.smooth = self.floating in ("float16", "bfloat16")     # rounding may fall on either side of a jump
        self.generator = torch.Generator().manual_seed(seed)

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
        except (RuntimeError, NotImplementedError, IndexError):    # what PyTorch does not have is not checked
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
            if dtype_name(v) == (dtype or dtype_name(self.of(i))) and v.dim() <= len(shape) \
                    and all(a in (1, b) for a, b in zip(tuple(v.shape)[::-1], shape[::-1])):
                return j
        cut = self.random.randint(0, len(shape))
        beside = tuple(1 if self.random.random() < 0.3 else n for n in shape[cut:])
        return self.leaf(beside, dtype or dtype_name(self.of(i)))

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
        """Integers and bools."""
        x = self.pick(lambda v: not v.dtype.is_floating_point and v.dtype is not torch.bool)
        if x is None or self.random.random() < 0.3:
            x = self.leaf(self.shape(), self.random.choice(INTEGERS))
        y = self.like(x)
        texts = ["{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} // (({1} & 7) + 1)", "{0} % (({1} & 7) + 1)", "{0} & {1}",
                 "{0} | {1}", "{0} ^ {1}", "{0} << 2", "{0} >> 1", "~{0}", "{0}.maximum({1})", "{0}.minimum({1})",
                 "{0} == {1}", "{0} < {1}", "{0} * 3 - 1", "{0} % 5", "{0} // 3",
                 "{0} * ({0} > 2)", "{0} ** 2"]
        signed = self.of(x).dtype is not torch.uint8                 # PyTorch computes little in uint32, the sum's type
        if signed:
            texts += ["{0} % -5", "{0} // -3", "-{0}", "{0}.abs()", "{0}.sign()", "{0}.sum()"]
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
