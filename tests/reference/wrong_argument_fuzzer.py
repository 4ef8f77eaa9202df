"""Calls with one wrong argument. In: a seed. Out: nothing, or the call and what is wrong with how it ends.

A call that is right (method_cases.py has one of each method; layers, functions and optimizers are listed here) gets
something else in the place of one value: None, a text, a huge number, an axis that is not there, another shape, type or
device, an array, a function. It must end in one of two ways: with a result, which is PyTorch's where PyTorch has one
too; or with one of glassgrad's errors, which says what was given, what was expected, how to fix it, and at which line.
"""

from __future__ import annotations

import ast
import inspect
import random
import re
import signal
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import method_fuzzer
import numpy as np
import torch
from method_cases import CASES, SHAPES, array
from training_fuzzer import ACTIVATIONS, OPTIMIZERS, SCHEDULES

import glassgrad.torch as ours_torch
from glassgrad import Device, GlassgradError, Tensor, Variable
from glassgrad.base.source_lines import PACKAGE

SECONDS = 60                                       # a call that takes longer hangs
FILE = "<the call>"
JUNK = """None | True | "x" | "" | b"x" | "float32" | "mean" | 0 | 1 | 2 | -1 | 3 | 7 | -9 | 1.5 | -0.5 | -0.0 | 10**10
2**70 | -2**63 | float("nan") | float("inf") | 1j | ... | () | [] | {} | [1, 2] | (1, -1) | (0, 0) | (2, 2, 2) | (0, 7)
[[1.0], [2.0, 3.0]] | [None] | ["x"] | (1.5,) | object() | int | len | slice(0, 2) | range(2) | np.float32(1.5)
np.float64("nan") | np.int64(-1) | np.uint8(200) | np.bool_(True) | np.array([0.5, 2.0]) | np.array(["a"])
np.zeros((0, 3)) | np.array(1) | np.array([[1, 0]]) | np.ones(3, "complex64") | x | x[:0] | x.int() | x > 0 | x.sum()
x[None] | x.half() | x.double() | x.mT | x.sum().long() | j | o | elsewhere | length | lambda y: y"""
OURS_ALONE = ("elsewhere", "length")               # a tensor on another device, a Variable
# of no axes nothing is reduced; roundings; NumPy's bool beside integers, which gives PyTorch floats
DECIDED = ("()", "[]", "x.half()", "x.double()", "x.sum()", "np.bool_(True)")
# Shifts by less than 0, targets but 1 and -1, signs of vectors, a write from itself; 200 ** 2 in uint8
UNDEFINED = r"shift|margin_ranking|soft_margin|svd|qr|eigh|masked_scatter_|uint8"
LAYERS = """Linear(4, 3, bias=True)(x) | Bilinear(4, 4, 3)(x, y) | Embedding(7, 3, padding_idx=0)(o)
EmbeddingBag(7, 3, mode="sum")(i) | Conv1d(4, 6, 3, stride=2, padding=1)(g)
Conv2d(4, 6, 3, stride=2, padding=1, dilation=1, groups=2, padding_mode="reflect")(z)
ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2)(z)
BatchNorm2d(4, eps=1e-5, momentum=0.1, affine=True)(z) | GroupNorm(2, 4)(z) | LayerNorm(4)(x)
InstanceNorm2d(4, affine=True)(z) | RMSNorm(4, eps=1e-6)(x) | LocalResponseNorm(3, alpha=1e-4)(z) | Dropout(0.5)(x)
Dropout2d(0.2)(z) | MaxPool2d(2)(z) | MaxPool2d(3, stride=2, padding=1, dilation=1, ceil_mode=True)(z)
AvgPool2d(3, 2, padding=1, count_include_pad=False)(z) | AdaptiveAvgPool2d((2, 3))(z) | AdaptiveMaxPool2d(2)(z)
LPPool2d(2, 3, stride=2)(z) | Upsample(scale_factor=2, mode="nearest")(z)
Upsample(size=(4, 5), mode="bilinear", align_corners=True)(z) | Flatten(1, -1)(z) | Unflatten(1, (2, 2))(x)
Fold((4, 4), 2, stride=2)(z[:, :, :2, :2].flatten(2)) | Unfold(2, dilation=1, padding=1, stride=2)(z)
PixelShuffle(2)(z) | PixelUnshuffle(3)(z) | ChannelShuffle(2)(z) | ZeroPad2d((1, 2, 0, 1))(z)
ConstantPad1d(1, 2.5)(g) | ReflectionPad2d(1)(z) | ReplicationPad1d((1, 2))(g) | CircularPad2d(2)(z)
LSTM(4, 3, num_layers=2, batch_first=True, bidirectional=True)(a.mT[:, :, :4])
RNN(5, 3, nonlinearity="relu", dropout=0.1)(a) | GRU(5, 3)(a, a[:1, :, :3])
LSTMCell(4, 3)(x, (x[:, :3], x[:, 1:]))
MultiheadAttention(4, 2, dropout=0.1, batch_first=True)(x[None], x[None], x[None])
TransformerEncoderLayer(4, 2, dim_feedforward=8, activation="gelu", batch_first=True, norm_first=True)(x[None])
CosineSimilarity(dim=1)(x, y) | PairwiseDistance(p=2.0)(x, y) | CrossEntropyLoss(label_smoothing=0.1)(x, o)
CrossEntropyLoss(weight=r[0], ignore_index=2, reduction="sum")(x, o) | NLLLoss(reduction="none")(x, o)
BCEWithLogitsLoss(pos_weight=r[0])(x, p) | BCELoss()(p, q) | SmoothL1Loss(beta=0.5)(x, y)
KLDivLoss(reduction="batchmean", log_target=True)(x, y) | TripletMarginLoss(1.0, p=2)(x, y, r)
CTCLoss(blank=0)(a.log_softmax(-1), j[:, None].expand(2, 4).T[:, :1] + 1, o[:1] * 0 + 3, o[:1] * 0 + 1)
Sequential(nn.Linear(4, 2), nn.ReLU())(x) | Softmax(dim=1)(x)
utils.clip_grad_norm_([x], 1.0, norm_type=2.0) | init.uniform_(x, -1.0, 1.0)
init.kaiming_normal_(x, a=0.1, mode="fan_in") | init.trunc_normal_(x, 0.0, 1.0, -2.0, 2.0) | init.constant_(x, 1.0)
init.xavier_uniform_(x, gain=2.0)"""
FUNCTIONS = """torch.tensor([1.0, 2.0], dtype=torch.float32) | torch.arange(0, 5, 2) | torch.zeros(2, 3)
torch.where(b, x, y) | torch.full((2, 2), 1.5) | torch.linspace(0, 1, 5) | torch.cat([x, y], 1)
torch.stack((x, y), dim=-1) | torch.clamp(x, 0, 1) | torch.einsum("ij,kj->ik", x, y) | torch.topk(x, 2, dim=1)
torch.eye(3, 4) | torch.bincount(n.flatten(), minlength=3) | F.interpolate(z, scale_factor=2, mode="nearest")
F.embedding(o, x) | F.one_hot(o, 5) | F.unfold(z, 2, padding=1) | F.pad(z, (1, 1), mode="constant", value=2.0)
F.dropout(x, 0.0, training=False) | F.normalize(x, p=2.0, dim=1, eps=1e-6) | F.layer_norm(x, (4,), v, w, 1e-3)
F.batch_norm(x, v, w.abs(), v, w, False, 0.1, 1e-3) | F.group_norm(z, 2, v, w)
F.conv2d(z, f, None, 1, "same", groups=2) | F.softmax(x, dim=-1, dtype=torch.float64)
F.gumbel_softmax(x, 1.0).shape
F.grid_sample(z, d[:, None, :, :2].tanh(), mode="nearest", padding_mode="border", align_corners=False)"""


def _split(text: str) -> list[str]:
    return [part for line in text.splitlines() for part in line.split(" | ")]


def _calls() -> list[tuple[str, str]]:
    """Texts of right calls, each with its kind: native, torch, layer or optimizer."""
    pairs = [pair for kind in CASES.values() for pair in kind]
    layers = [*_split(LAYERS), *[f"{layer}(x)" for layer in ACTIVATIONS]]
    steps = [*[f"trained(lambda p: optim.{made.replace('(p', '([p]', 1)})" for made in OPTIMIZERS],
             *[f"trained(lambda p: optim.SGD([p], 0.1), lambda o: optim.lr_scheduler.{made})" for made in SCHEDULES]]
    return [*[("native", ours) for ours, _ in pairs],
            *[("torch", theirs) for _, theirs in pairs], *[("torch", text) for text in _split(FUNCTIONS)],
            *[("layer", "nn." + text) for text in layers for _ in range(3)],
            *[("optimizer", text) for text in steps for _ in range(3)]]


def trained(optimizer: Any, schedule: Any = lambda o: None) -> Any:
    """A weight after two steps of an optimizer."""
    library = torch if trained.reference else ours_torch
    weight = library.tensor([[1.0, -2.0], [0.5, 3.0]], requires_grad=True)
    made = optimizer(weight)
    rates = schedule(made)
    for _ in range(2):
        made.zero_grad()
        (weight * weight).sum().backward()
        made.step()
        if rates is not None:
            rates.step()
    return weight.detach()


def _values(tree: ast.AST) -> Iterator[tuple[Any, str, int | None]]:
    """The places of a call's values: its arguments, what is in them, the tensor whose method it is, indices."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Call, ast.Tuple, ast.List)) and \
                getattr(getattr(node, "func", None), "id", "") != "trained":
            field = "args" if isinstance(node, ast.Call) else "elts"
            yield from ((node, field, i) for i in range(_is_unbound(node), len(getattr(node, field))))
        if isinstance(node, (ast.keyword, ast.Attribute)) and isinstance(node.value, (ast.Name, ast.Constant)) and \
                getattr(node.value, "id", "") not in ("Tensor", "torch", "F", "L", "nn", "optim", "init", "utils"):
            yield node, "value", None
        if isinstance(node, ast.Subscript):
            yield node, "slice", None


def _is_unbound(node: ast.AST) -> bool:
    """Whether a call is Tensor.method(x): its first argument is the tensor itself."""
    of = getattr(node, "func", None)
    return isinstance(of, ast.Attribute) and ast.unparse(of.value) == "Tensor" and inspect.isfunction(
        inspect.getattr_static(Tensor, of.attr))


CALLS = [call for call in _calls() if any(_values(ast.parse(call[1], mode="eval")))]        # not: True


class WrongCall:
    """A right call with one value replaced, drawn from a seed."""

    def __init__(self, seed: int):
        choose = random.Random(seed).choice
        (self.kind, right), self.junk = choose(CALLS), choose(_split(JUNK))
        tree, new = ast.parse(right, mode="eval"), ast.parse(self.junk, mode="eval").body
        holder, field, index = choose(list(_values(tree)))
        if index is None:
            setattr(holder, field, new)
        else:
            getattr(holder, field)[index] = new
        self.text = ast.unparse(tree)
        self.code = compile(self.text, FILE, "eval")

    def evaluated(self, is_reference: bool) -> list[Any]:
        """The results of the call, computed."""
        library, native = (torch, False) if is_reference else (ours_torch, self.kind == "native")
        scope: dict[str, Any] = {"np": np, "torch": library, "nn": library.nn, "F": library.nn.functional,
                                 "L": library.linalg, "optim": library.optim, "Tensor": Tensor, "trained": trained,
                                 "elsewhere": None, "length": None}
        trained.reference = is_reference
        library.manual_seed(0)
        for letter in sorted(set(re.findall(r"\b[a-z]\b", f"{self.text} x"))):
            values = array(letter, SHAPES.get(letter, (3, 4)))
            values = values.astype("float32") if values.dtype.kind == "f" else values
            scope[letter] = Tensor(values) if native else library.tensor(values)
        if not is_reference:
            scope["elsewhere"] = scope["x"].to("PYTHON" if Device.DEFAULT != "PYTHON" else "CPU")
            scope["length"] = Variable("n", 1, 4).bind(3)
        return _computed(eval(self.code, scope))


def _computed(result: Any) -> list[Any]:
    if isinstance(result, (tuple, list)):
        return [part for each in result for part in _computed(each)]
    return [result.realize()] if isinstance(result, Tensor) else [result]


def is_explained(error: Exception) -> bool:
    """Whether an error is one of ours, and whole; or Python's or NumPy's, raised where nothing of ours runs."""
    if isinstance(error, GlassgradError):
        return bool(error.given and error.expected and error.fix and error.where.startswith((FILE, __file__)))
    lines = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return not any(line.startswith(PACKAGE) for line in lines) or "has no counterpart in glassgrad" in str(error)


def check(seed: int) -> str:
    """Nothing when this seed's call ends well; else the call, and how it ends."""
    call = WrongCall(seed)
    warnings.simplefilter("ignore")

    def stop(*_: Any) -> None:
        raise TimeoutError(f"it takes more than {SECONDS} seconds")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        found = call.evaluated(False)
    except Exception as error:
        return "" if is_explained(error) else f"seed {seed}: {call.text}\n{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    if call.junk in (*OURS_ALONE, *DECIDED) or call.kind == "native" or re.search(UNDEFINED, call.text):
        return ""
    try:
        expected = call.evaluated(True)
    except Exception:                              # PyTorch may refuse more
        return ""
    is_random = call.kind == "layer" or re.search("dropout|gumbel|empty", call.text)
    wrong = "" if len(found) == len(expected) else f"{len(found)} results, PyTorch {len(expected)}"
    for ours, theirs in zip(found, expected):
        if isinstance(theirs, float):
            same = np.isclose(ours, theirs, 1e-5, 1e-5, equal_nan=True)
            wrong = wrong or ("" if same else f"{ours}, PyTorch {theirs}")
        elif isinstance(theirs, torch.Tensor) and is_random:
            same = tuple(ours.shape) == tuple(theirs.shape)
            wrong = wrong or ("" if same else f"shape {ours.shape}, PyTorch {theirs.shape}")
        elif isinstance(theirs, (torch.Tensor, int)):
            wrong = wrong or method_fuzzer.differs(ours, theirs, True)
    return f"seed {seed}: {call.text}\n{wrong}" if wrong else ""
