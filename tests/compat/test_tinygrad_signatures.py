"""Every public method of tinygrad's Tensor, 0.10 to 0.14, can be called here the way it is called there.

`tinygrad_signatures.txt` was written by introspection, one line for each form a method has had. A call may give every
parameter by name, or as many by position; what is left out must mean the same.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from glassgrad import Tensor
from glassgrad.tensor.checks import REQUIRED, SPELLINGS

LINES = (Path(__file__).parent / "tinygrad_signatures.txt").read_text().splitlines()
# (method, parameter): why what is left out means something else here
OTHER_DEFAULTS = {
    ("gelu", "approximate"): "exact, as PyTorch",
    ("selu", "alpha"): "all digits of the paper's constant, as PyTorch",
    ("selu", "gamma"): "all digits of the paper's constant, as PyTorch",
    ("nll_loss", "ignore_index"): "-100, as PyTorch; a target of -100 is no class in either",
    ("replace", "allow_shape_mismatch"): "other shapes are allowed",
    ("randint", "dtype"): "None is the default int type, which is int32",
    ("randperm", "dtype"): "None is the default int type, which is int32",
    ("hardsigmoid", "alpha"): "1/6 in full",
}


class Parameter(NamedTuple):
    name: str
    star: str
    default: str | None
    by_position: bool


def parsed(line: str) -> tuple[str, list[Parameter]]:
    """A line of the file: a method's name and its parameters."""
    method, _, rest = line.partition("(")
    found, by_position, depth, text = [], True, 0, ""
    for letter in rest.removesuffix(")") + ",":
        depth += (letter in "([") - (letter in ")]")
        if letter != "," or depth:
            text += letter
            continue
        word, text = text.strip(), ""
        if not word:
            continue
        if word == "*":
            by_position = False
            continue
        star = word[:len(word) - len(word.lstrip("*"))]
        name, equals, default = word.lstrip("*").partition("=")
        found.append(Parameter(name, star, default if equals else None, by_position and not star))
        by_position = by_position and star != "*"
    return method, found


@pytest.mark.parametrize("line", LINES)
def test_a_call_fits(line: str) -> None:
    method, theirs = parsed(line)
    bound = getattr(Tensor, method)
    if method == "data":                 # a property, for PyTorch's texts; what it gives can be called
        assert not theirs and Tensor([1]).data().tolist() == [1]
        return
    plain = inspect.getattr_static(Tensor, method)
    signature = inspect.signature(bound)
    own = () if isinstance(plain, (classmethod, staticmethod)) else (object(),)
    named = [p for p in theirs if not p.star]
    by_position = [object() for p in theirs if p.by_position]
    try:
        ours = signature.bind_partial(*own, *by_position)
    except TypeError as problem:
        pytest.fail(f"{line}: by position: {problem}; here {signature}")
    keywords = {p.name: object() for p in named}
    strange = [name for name in keywords if name not in signature.parameters]
    for name in strange:
        assert any(name in SPELLINGS.get(ours, ()) for ours in signature.parameters) or takes_any(signature), \
            f"{line}: {name} by name; here {signature}"
    several = [p.name for p in signature.parameters.values() if p.kind is p.VAR_POSITIONAL]
    if strange or set(several) & set(keywords):
        assert takes_any(signature), f"{line}: by name; here {signature}"
    else:
        signature.bind(*own, **keywords)
    places = [name for name in ours.arguments if name not in ("self", "cls")]
    for i, parameter in enumerate(named):
        if parameter.default is None or (method, parameter.name) in OTHER_DEFAULTS:
            continue
        name = parameter.name if parameter.name in signature.parameters else places[i] if i < len(places) else ""
        here: Any = signature.parameters.get(name)
        if here is None and not parameter.by_position:         # a keyword of another name, which `spelled` resolves
            continue
        if here is not None and here.default is REQUIRED:
            continue
        if here is not None and here.kind in (here.VAR_POSITIONAL, here.VAR_KEYWORD):
            continue
        assert here is not None and here.default is not here.empty, f"{line}: {parameter.name} has no default here"
        assert same(repr(here.default), parameter.default), f"{line}: {parameter.name} is {here.default!r} here"


def takes_any(signature: inspect.Signature) -> bool:
    """Whether a method takes keywords of other libraries, which `checks.spelled` resolves."""
    return any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())


def same(ours: str, theirs: str) -> bool:
    try:
        return float(ours) == float(theirs)
    except ValueError:
        return ours == theirs


def test_the_exceptions_are_needed() -> None:
    known = {(method, p.name) for method, parameters in map(parsed, LINES) for p in parameters}
    assert set(OTHER_DEFAULTS) <= known
