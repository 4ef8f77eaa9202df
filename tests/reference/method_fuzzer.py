"""Calls of single methods in corners, checked against PyTorch. In: a seed. Out: nothing, or the call that differs.

One line of text, such as `x.sum(dim=1, keepdim=True)`, is run by PyTorch and by glassgrad's adapter for it
(`glassgrad.torch`), which promises PyTorch's meaning and types. The tensors are what programs rarely hold: empty axes,
sizes of 1, NaN, infinities, -0.0, the limits of each dtype, and views (transposed, sliced, expanded).
"""

from __future__ import annotations

import math
import random
import re
import warnings
from typing import Any

import numpy as np
import torch

import glassgrad.torch as ours_torch
from glassgrad import GlassgradError

DTYPES = {name: getattr(torch, name) for name in
          ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")}
FLOATS = ("float16", "bfloat16", "float32", "float64")
SIZES = (0, 1, 1, 2, 3, 5, 7, 8, 17)
TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}

# What may be called, by the dtypes of x: {axis}, {flag}, ... are drawn, y is a second tensor of the same dtype
ANY = """x.abs() | x.sign() | x.neg() | x.square() | x.sum() | x.sum(dim={axis}, keepdim={flag}) | x.prod(dim={axis})
x.cumsum({axis}) | x.cumprod({axis}) | x.max(dim={axis}).values | x.min(dim={axis}, keepdim={flag}).indices
x.amax({axis}) | x.amin(dim={axis}, keepdim={flag}) | x.argmax(dim={axis}) | x.argmin({axis})
x.sort(dim={axis}, stable=True).values | x.sort(dim={axis}, descending={flag}, stable=True).indices | x.any({axis})
x.all({axis}) | x.count_nonzero({axis}) | x.flip({axis}) | x.roll({small}, {axis}) | x.unsqueeze({axis})
x.flatten() | x.reshape(-1) | x.diff(dim={axis}) | x.T | x.cummax({axis}).values | x.cummin({axis}).values
x.isnan() | x.isinf() | x.clamp({number}, {number}) | x.clone() | x + y | x - y | x * y | x / y | x == y | x != y
x < y | x >= y | x.maximum(y) | x.minimum(y) | x // {number} | x % {number} | x + {number} | {number} - x
x * {number} | x / {number} | x ** {power} | x == {number} | x > {number} | x.float() | x.int() | x.long()
x.double() | x.bool() | x.half() | x.to(torch.uint8) | x.masked_fill(x > 0, {number}) | x.tril({small})
x.triu({small}) | torch.where(x > y, x, y) | torch.cat([x, y], {axis}) | torch.stack([x, y], {axis})
x.index_select({axis}, i) | x.gather({axis}, j) | x.nonzero() | x.unique() | x.bincount() | x[i] | x[..., i] | x[::2]
x[..., -1] | x[x > 0] | x.take(i) | x.expand(3, *x.shape) | x.median() | x.median(dim={axis}).values
x.kthvalue({index}, {axis}).values | x.topk({index}, {axis}).values | x.chunk(2, {axis})[0] | x.split(2, {axis})[-1]
x.unbind({axis})[0] | x.movedim({axis}, 0) | x.repeat_interleave(2, {axis}) | x.tile((2,)) | x.isin(y)
x.scatter({axis}, j, x) | x.scatter_add({axis}, j, x) | x.index_add({axis}, i, x.index_select({axis}, i))
x.diagonal() | x.trace() | x.fmod({number}) | x.remainder(y) | x.floor_divide({number}) | x.unfold({axis}, 1, 1)
x.numel() | x.dim() | x.logical_not()"""
FLOATING = """x.exp() | x.log() | x.sqrt() | x.rsqrt() | x.sin() | x.cos() | x.tan() | x.tanh() | x.sigmoid()
x.erf() | x.erfc() | x.exp2() | x.log2() | x.log10() | x.log1p() | x.expm1() | x.reciprocal() | x.floor() | x.ceil()
x.round() | x.trunc() | x.frac() | x.asin() | x.acos() | x.atan() | x.sinh() | x.cosh() | x.asinh() | x.acosh()
x.atanh() | x.atan2(y) | x.hypot(y) | x.pow(y) | x.mean() | x.mean(dim={axis}, keepdim={flag}) | x.var()
x.var(dim={axis}) | x.std(dim={axis}, unbiased={flag}) | x.norm() | x.norm(dim={axis}) | x.logsumexp({axis})
x.softmax({axis}) | x.log_softmax({axis}) | x.lgamma() | x.digamma() | x.logit() | x.sinc() | x.relu() | F.gelu(x)
F.silu(x) | F.elu(x) | F.softplus(x) | F.hardswish(x) | F.leaky_relu(x) | F.mish(x) | F.relu6(x) | F.selu(x)
F.normalize(x, dim={axis}) | F.layer_norm(x, x.shape[-1:]) | F.mse_loss(x, y) | F.l1_loss(x, y)
F.smooth_l1_loss(x, y) | x.nansum() | x.nanmean() | x.nan_to_num() | x.copysign(y) | x.isfinite() | x.signbit()
x.lerp(y, 0.25) | x.quantile({fraction}, dim={axis}) | x @ y.mT | x.matmul(y.mT) | x.dist(y)
x.cumsum({axis}).relu() | x.logcumsumexp({axis}) | x.renorm(2, {axis}, 1.0) | x.ldexp(i) | x.nextafter(y)
x.heaviside(y) | x.float_power(2) | x.deg2rad() | x.xlogy(y) | x.addcmul(x, y) | x.aminmax() | x.fmax(y) | x.fmin(y)"""
INTEGER = """x & y | x | y | x ^ y | ~x | x << {bits} | x >> {bits} | x.bitwise_and(y) | x.gcd(y) | x.lcm(y)
x.float().mean() | F.one_hot(x.long() % 5, 5) | x.bitwise_left_shift({bits})"""
# Differences that were decided, with the reason; docs/from_pytorch.md lists them for users
DECIDED = {
    r"\.(median|kthvalue|mode)\(.*indices": "PyTorch may take any of several equal elements",
    r"\.unique\(": "NaN is one value here",
    r"median\(\)": "of nothing: an error here, NaN there",
    r"median\(dim": "PyTorch reads expanded tensors wrongly",
    r"unfold": "a number has no axis to unfold",
    r"%|remainder|fmod": "a quotient with more digits than the dtype holds gives another remainder",
    r"\.(any|all)\(": "of uint8 PyTorch gives uint8",
    r"x\.square": "of bools PyTorch gives int64",
    r"// 0|divide\(0\)": "integers divided by the number 0 are refused, also where there are none; PyTorch needs one",
}
DECIDED_OF_SPECIAL_VALUES = {
    r"layer_norm|@|matmul|gelu|lerp|norm\(|dist\(|mean": "infinities and NaN depend on the order of a sum",
    r"x\.(std|var)": "the square of the largest numbers is infinite in float32; PyTorch's sums are of float64",
    r"cumsum|cumprod": "so is the sum of two of the largest, here and in NumPy; PyTorch's running sums are of float64",
    r"signbit|copysign": "the sign of NaN is not defined: PyTorch's casts to bfloat16 change it",
}


def _calls(text: str) -> list[str]:
    return [call.strip() for line in text.splitlines() for call in line.split(" | ")]


CALLS = {"any": _calls(ANY), "float": _calls(FLOATING),
         "integer": [*_calls(INTEGER.replace("x | y", "x.bitwise_or(y)"))]}


class Corner:
    """One call and its tensors, drawn from a seed."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.dtype = self.random.choice(list(DTYPES))
        self.rank = self.random.choice((0, 1, 1, 2, 2, 3))
        shape = tuple(self.random.choice(SIZES if self.random.random() < 0.3 else SIZES[1:]) for _ in range(self.rank))
        self.special = self.random.random() < 0.5
        self.view = self.random.choice(("", "", ".mT", "[::2]", "[..., 1:]", ".expand(2, *{shape})"))
        kinds = ["any", "any", "float" if self.dtype in FLOATS else "any" if self.dtype == "bool" else "integer"]
        template = self.random.choice(CALLS[self.random.choice(kinds)])
        self.text = re.sub(r"\{(\w+)\}", lambda found: repr(self.draw(found.group(1))), template)
        if self.dtype not in FLOATS and re.search(r"//|%|fmod|remainder|divide|gcd|lcm", self.text):
            self.special = False               # the least integer divided by -1 ends the process in PyTorch
        self.values = {"x": self.tensor(shape), "y": self.tensor(shape)}
        if self.view == ".mT" and self.rank < 2 or self.view and not self.rank:
            self.view = ""
        self.view = self.view.replace("{shape}", repr(list(shape)))
        self.shape = tuple(eval("x" + self.view, {"x": self.values["x"]}).shape)
        self.values["i"] = torch.tensor(self.numbers.integers(0, max(min(self.shape, default=1), 1), 4))
        self.values["j"] = torch.tensor(self.numbers.integers(0, max(min(self.shape, default=1), 1), self.shape or ()))

    def draw(self, kind: str) -> Any:
        pick = self.random.choice
        integer = pick((0, 1, 2, 3, 7)) if self.dtype in ("bool", "uint8") else pick((-3, -1, 0, 1, 2, 5))
        number = pick((integer, 0.5, -1.5)) if self.dtype in FLOATS else integer
        return {"axis": pick(range(-self.rank, self.rank)) if self.rank else 0, "flag": pick((True, False)),
                "small": pick((-2, -1, 0, 1, 2)), "number": number,
                "power": pick((0, 1, 2, 3)), "index": 1, "bits": pick((0, 1, 3)),
                "fraction": pick((0.0, 0.5, 1.0))}[kind]

    def tensor(self, shape: tuple[int, ...]) -> torch.Tensor:
        kind = DTYPES[self.dtype]
        if kind is torch.bool:
            return torch.tensor(self.numbers.integers(0, 2, shape).astype(bool))
        if not kind.is_floating_point:
            low, high = (0, 9) if self.dtype == "uint8" else (-9, 10)
            values = self.numbers.integers(low, high, shape)
            if self.special:
                info = torch.iinfo(kind)
                limits = self.numbers.choice([info.min, info.max], shape)
                values = np.where(self.numbers.random(shape) < 0.3, limits, values)
            return torch.tensor(values).to(kind)
        values = self.numbers.standard_normal(shape) * self.random.choice((1.0, 30.0))
        if self.special:
            odd = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, torch.finfo(kind).max, torch.finfo(kind).tiny]
            values = np.where(self.numbers.random(shape) < 0.4, self.numbers.choice(odd, shape), values)
        return torch.tensor(values).to(kind)

    def __str__(self) -> str:
        rows = [f"{name} = torch.tensor({value.tolist()!r}, dtype=torch.{str(value.dtype)[6:]})"
                + (f".reshape({tuple(value.shape)})" if not value.numel() else "") + (self.view if name in "xy" else "")
                for name, value in self.values.items() if re.search(rf"\b{name}\b", self.text)]
        return "\n".join([*rows, self.text])


def _ours(value: torch.Tensor) -> Any:
    name = str(value.dtype)[6:]
    array = value.float().numpy() if name == "bfloat16" else value.numpy()
    return ours_torch.tensor(array, dtype=getattr(ours_torch, name))


def check(seed: int) -> str:
    """Nothing when both libraries agree on this seed's call; else what differs, and the call."""
    corner = Corner(seed)
    decided = {**DECIDED, **(DECIDED_OF_SPECIAL_VALUES if corner.special else {})}
    if any(re.search(pattern, corner.text) for pattern in decided):
        return ""
    theirs = {name: eval(f"v{corner.view if name in 'xy' else ''}", {"v": v}) for name, v in corner.values.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = eval(corner.text, {"torch": torch, "F": torch.nn.functional, **theirs})
        except (RuntimeError, NotImplementedError, IndexError, TypeError, ValueError, AttributeError):
            return ""                          # what PyTorch refuses is tested with the argument checks
        mine = {name: eval(f"v{corner.view if name in 'xy' else ''}", {"v": _ours(v)})
                for name, v in corner.values.items()}
        try:
            found = eval(corner.text, {"torch": ours_torch, "F": ours_torch.nn.functional, **mine})
            wrong = differs(found, expected, corner.special)
        except GlassgradError as error:
            wrong = f"refused: {str(error).splitlines()[0]}"
        except Exception as error:             # anything else is a fault of ours, whatever it is
            wrong = f"{type(error).__name__}: {error}"
    return f"seed {seed}: {wrong}\n{corner}" if wrong else ""


def differs(found: Any, expected: Any, special: bool) -> str:
    """What differs between two results, or nothing."""
    if isinstance(expected, tuple):
        return next(filter(None, (differs(a, b, special) for a, b in zip(found, expected))), "")
    if not isinstance(expected, torch.Tensor):
        return "" if found == expected else f"{found!r}, PyTorch {expected!r}"
    kind = str(expected.dtype)[6:]
    same_kind = found.dtype.name == kind or {found.dtype.name, kind} == {"int32", "int64"}
    if not same_kind or tuple(found.shape) != tuple(expected.shape):
        return f"{found.dtype.name} of shape {tuple(found.shape)}, PyTorch {kind} of shape {tuple(expected.shape)}"
    got = np.asarray(found.numpy())
    want = (expected.double() if expected.dtype.is_floating_point else expected).numpy()
    if kind not in FLOATS:
        same = got == want
    else:
        with np.errstate(all="ignore"):
            got = got.astype(np.float64)
            near = np.abs(got - want) <= TOLERANCE[kind] * np.maximum(np.abs(want), 1.0)
            same = (got == want) | (np.isnan(got) & np.isnan(want)) | near
    if np.all(same):
        return ""
    at = tuple(int(n) for n in np.argwhere(~np.atleast_1d(same))[0])
    return f"at {at} {np.atleast_1d(got)[at]!r}, PyTorch {np.atleast_1d(want)[at]!r} ({kind})"
