"""Every public method, layer, optimizer and reader handed junk: one clear error at the user's line, or a value.

What may come out is a result or one of our own errors, with given, expected and fix; or Python's own TypeError for a
call that does not fit the signature. An AttributeError from inside is a fault: either the arguments were not checked,
or we are wrong ourselves.
"""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from glassgrad import GlassgradError, Tensor, dtypes, nn
from glassgrad.nn import optim, state

MAKERS: list[Callable[[], Any]] = [
    lambda: Tensor(2.0), lambda: Tensor([1.0, 2.0]), lambda: Tensor([[1.0, 2.0], [3.0, 4.0]]), lambda: Tensor([0, 1]),
    lambda: Tensor.zeros(0, 3), lambda: Tensor([True]), lambda: np.ones(3), lambda: [1], lambda: [], lambda: (0,),
    lambda: (1, 2), lambda: [[1.0]], lambda: {}, lambda: {"a": 1}, lambda: {1}, object]
PLAIN = [None, "x", "float32", 1.5, math.nan, math.inf, 0, -1, 7, 10**10, 2**70, True, b"x", Tensor, int, np.float32(1),
         np.int64(1), slice(1), len, 1j, range(2), ..., dtypes.int8]
AS_MANY = {"tensor_split", "hsplit", "vsplit"}                     # these make as many tensors as they are told
SIDE_EFFECTS = {"train", "test", "manual_seed", "from_blob"}      # modes, seeds, and memory at a made-up address


def junk(choose: random.Random) -> Any:
    return choose.choice(MAKERS)() if choose.random() < 0.5 else choose.choice(PLAIN)


def has(value: Any, huge: int) -> bool:
    return isinstance(value, int) and value >= huge


def calls(function: Any, choose: random.Random, count: int) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Junk by position, then junk by name with plausible values beside it."""
    yield [], {}
    for _ in range(count):
        yield [junk(choose) for _ in range(choose.randint(1, 3))], {}
    parameters = [p for p in inspect.signature(function).parameters.values()
                  if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in ("self", "cls")]
    for p in parameters:
        for _ in range(3):
            beside = {q.name: choose.choice([Tensor([1.0, 2.0]), 1, 0]) for q in parameters
                      if q.default is q.empty and q is not p}
            yield [], {**beside, p.name: junk(choose)}


def complaint(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> str | None:
    """What is wrong with how a call ends; None when nothing is."""
    try:
        function(*args, **kwargs)
    except GlassgradError as error:
        if __file__ not in error.where or not (error.given and error.expected and error.fix):
            return f"does not say where or what: {error}"
    except Exception as error:           # the very thing this looks for
        if not refused_by_python(error):
            return f"{type(error).__name__}: {error}"
    return None


def refused_by_python(error: Exception) -> bool:
    """Whether Python itself refused a call that does not fit the signature: nothing of the method ran. (A method with
    an underscore calls the one without it, a layer's constructor the one that takes no device.)"""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    where = last.tb_frame.f_code.co_name if last is not None else ""
    return type(error) is TypeError and where in ("complaint", "call", "in_place", "__init__")


def complaints(name: str, function: Any, receivers: list[Callable[[], Any]], seed: str, count: int) -> list[str]:
    found = []
    choose = random.Random(seed)
    for args, kwargs in calls(function, choose, count):
        if name in AS_MANY and any(has(v, 10**10) for v in (*args, *kwargs.values())):
            continue
        given = [choose.choice(receivers)(), *args] if receivers else args
        wrong = complaint(function, given, kwargs)
        if wrong is not None:
            found.append(f"{name}(*{args!r}, **{kwargs!r}): {wrong}")
    return found


METHODS = sorted(n for n in dir(Tensor)
                 if not n.startswith("_") and callable(getattr(Tensor, n)) and n not in SIDE_EFFECTS)


@pytest.mark.parametrize("name", METHODS)
def test_methods_explain_wrong_arguments(name: str) -> None:
    static = inspect.getattr_static(Tensor, name)
    own = isinstance(static, (classmethod, staticmethod))
    wrong = complaints(name, getattr(Tensor, name), [] if own else MAKERS[:6], name, 12)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", ["__getitem__", "__setitem__", "__add__", "__rsub__", "__truediv__", "__pow__",
                                  "__rpow__", "__matmul__", "__eq__", "__lt__", "__and__", "__lshift__", "__mod__",
                                  "__floordiv__"])
def test_operators_explain_wrong_arguments(name: str) -> None:
    count = 2 if name == "__setitem__" else 1
    choose = random.Random(name)
    wrong = [w for _ in range(60) if (w := complaint(getattr(Tensor, name), [choose.choice(MAKERS[:6])()] + [
        junk(choose) for _ in range(count)], {})) is not None]
    assert not wrong, "\n".join(wrong)


LAYERS = sorted(n for n, v in vars(nn).items() if inspect.isclass(v) and issubclass(v, nn.Layer) and v is not nn.Layer)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow_on("PYTHON")] * (n == "Transformer"))
                                  for n in LAYERS])
def test_layers(name: str) -> None:
    made = getattr(nn, name)
    wrong = complaints(name, made, [], name, 10)
    assert not wrong, "\n".join(wrong)


INPUTS = {
    "Linear": (2, 3), "Conv2d": (1, 2, 3), "BatchNorm2d": (2,), "LayerNorm": (2,), "Embedding": (4, 2),
    "GroupNorm": (1, 2), "LSTMCell": (2, 3), "GRU": (2, 3), "Dropout": (0.5,), "MaxPool2d": (2,),
    "ConvTranspose2d": (1, 2, 3), "RMSNorm": (2,), "MultiHeadAttention": (2, 1)}


@pytest.mark.parametrize("name", INPUTS)
def test_what_layers_are_called_with(name: str) -> None:
    layer, choose = getattr(nn, name)(*INPUTS[name]), random.Random(name)
    wrong = []
    for _ in range(20):
        message = complaint(layer, [junk(choose) for _ in range(choose.choice([0, 1, 1, 1, 2]))], {})
        wrong += [message] if message else []
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "LAMB", "LARS", "Muon", "RMSprop", "Adagrad",
                                  "ASGD", "Rprop", "Adafactor", "LBFGS", "OptimizerGroup"])
def test_optimizers(name: str) -> None:
    wrong = complaints(name, getattr(optim, name), [], name, 12)
    choose = random.Random(name)
    if name != "OptimizerGroup":
        wrong += [w for _ in range(12) if (w := complaint(getattr(optim, name), [
            [Tensor([[1.0, 2.0], [3.0, 4.0]])], junk(choose)], {})) is not None]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", sorted(n for n, v in vars(optim.lr_scheduler).items()
                                        if inspect.isclass(v) and not n.startswith("_") and n != "LRScheduler"))
def test_learning_rate_schedules_explain_wrong_arguments(name: str) -> None:
    made, choose = getattr(optim.lr_scheduler, name), random.Random(name)
    wrong = complaints(name, made, [], name, 6)
    for _ in range(12):
        optimizer = optim.SGD([Tensor([1.0])], lr=0.1, momentum=0.9)
        message = complaint(made, [optimizer, junk(choose)], {})
        wrong += [message] if message else []
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", ["safe_load", "safe_load_metadata", "torch_load", "gguf_load", "load_state_dict",
                                  "load_checkpoint", "get_state_dict", "get_parameters"])
def test_files_explain_wrong_arguments(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(state, name)(*args, **kwargs)
        except OSError as error:         # no such file: Python's own words, with the path
            if error.filename is None or isinstance(error, GlassgradError):
                raise
            return None

    call.__signature__ = inspect.signature(getattr(state, name))  # type: ignore[attr-defined]
    wrong = complaints(name, call, [], name, 15)
    assert not wrong, "\n".join(wrong)
