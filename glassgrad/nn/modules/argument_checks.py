"""Constructor arguments compared with their annotations, before the constructor runs. In: a class and a call of it.
Out: nothing, or an InputError that names the argument: given / expected / fix.

Layers, optimizers and schedules call `check_call` when they are made, and a layer looks for the wrong argument with
`wrong_argument` when its `forward` fails: constructors and `forward` need no checks that repeat their annotations.
Does not depend on any layer.
"""

from __future__ import annotations

import ast
import functools
import inspect
import numbers
from collections.abc import Callable
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.compiler.graph import DType
from glassgrad.tensor.checks import KINDS, cannot_take
from glassgrad.tensor.tensor_base import TensorBase


def _reads_as(kind: str) -> tuple[Callable[[Any], bool], str]:
    """A test for a kind of argument of `tensor.checks`, and its description."""
    words, read = KINDS[kind]
    return lambda value: read(value) is not None, words


# annotation: (test of a value, description for messages)
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **{kind: _reads_as(kind) for kind in ("int", "bool", "str", "Callable")},
    "Tensor": _reads_as("Self"),
    "float": (lambda v: isinstance(v, (numbers.Real, TensorBase)), "a number"),
    "None": (lambda v: v is None, "None"),
    "DType": (lambda v: isinstance(v, DType), "a dtype"),
    "dict": (lambda v: isinstance(v, dict), "a dict"),
    "Sequence": (lambda v: isinstance(v, (list, tuple, range)), "a list"),
    "Iterable": (lambda v: hasattr(v, "__iter__") and not isinstance(v, type), "a list"),
    "tuple": (lambda v: isinstance(v, (list, tuple)), "a tuple"),
}
_ALIASES = {"Sizes": "int | Sequence[int]", "Parameters": "Iterable[Tensor] | Tensor", "Betas": "Sequence[float]",
            "Coefficients": "Sequence[float]", "Activation": "str | Callable", "Mask": "Tensor | None",
            "Maybe": "Tensor | None", "Old": "bool | None"}


# tinygrad's keywords: its adapter accepts them; here the error names ours
SYNONYMS = {"sz": "num_features", "vocab_size": "num_embeddings", "embed_size": "embedding_dim"}


@functools.cache
def signature_of(function: Any) -> inspect.Signature:
    """The parameters of a function, without `self`.

    >>> signature_of(Tensor.sign)
    <Signature () -> 'Self'>
    """
    signature = inspect.signature(function)
    return signature.replace(parameters=[p for p in signature.parameters.values() if p.name != "self"])


def check_call(cls: Any, signature: inspect.Signature, module: str, args: tuple[Any, ...],
               kwargs: dict[str, Any]) -> None:
    """Refuse arguments of a constructor that do not fit its signature or its annotations; constructors outside
    glassgrad are not checked."""
    if not cls.__init__.__module__.startswith("glassgrad."):
        return
    mistake = wrong_argument(signature, cls.__name__, module, args, kwargs)
    if mistake is not None:
        raise mistake


def wrong_argument(signature: inspect.Signature, name: str, module: str, args: tuple[Any, ...],
                   kwargs: dict[str, Any]) -> InputError | None:
    """The first argument of a call that does not fit the parameters, as an error; None where all fit."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as refusal:
        parameters = [str(p.replace(annotation=p.empty)) for p in signature.parameters.values()]
        others = [f"{SYNONYMS[word]}= for {word}=" for word in kwargs if SYNONYMS.get(word) in signature.parameters]
        return InputError(f"{name} cannot be called like this", given=str(refusal),
                          expected=f"{name}({', '.join(parameters)})",
                          fix=f"write {' and '.join(others)}" if others else f"see help({module}.{name})")
    for argument, given in bound.arguments.items():
        parameter = signature.parameters[argument]
        values = given if parameter.kind is parameter.VAR_POSITIONAL else \
            given.values() if parameter.kind is parameter.VAR_KEYWORD else (given,)
        admitted = "Any" if parameter.annotation is parameter.empty else str(parameter.annotation)
        for value in values:
            if admitted != "Any" and value is not parameter.default and not _matches(value, admitted):
                return cannot_take(name, argument, value, _words(admitted), f"see help({module}.{name})")
    return None


# -- annotations, read as they are written -------------------------------------------------------------------
@functools.cache
def _admitted(annotation: str) -> list[tuple[Callable[[Any], bool], str]]:
    """The alternatives of an annotation, each as a test of a value and its words: two of "int | Sequence[int]"."""
    tree: Any = ast.parse(_ALIASES.get(annotation, annotation), mode="eval").body
    if isinstance(tree, ast.BinOp):
        return [*_admitted(ast.unparse(tree.left)), *_admitted(ast.unparse(tree.right))]
    outer, inside = (tree.value, tree.slice) if isinstance(tree, ast.Subscript) else (tree, None)
    name = ast.unparse(outer).removeprefix("os.")
    if name not in _KINDS:
        return [(lambda value: any(kind.__name__ == name for kind in type(value).__mro__), f"of type {name}")]
    test, words = _KINDS[name]
    if inside is None or name not in ("Sequence", "tuple", "Iterable"):
        return [(test, words)]
    part = ast.unparse(inside.elts[0] if isinstance(inside, ast.Tuple) else inside)      # only the first of several
    words += {"int": " of integers", "float": " of numbers", "Tensor": " of Tensors"}.get(part.partition(" ")[0], "")
    if name == "Iterable":                          # not looked into, which would use up an iterator
        return [(test, words)]
    return [(lambda value: test(value) and all(_matches(item, part) for item in value), words)]


def _matches(value: Any, annotation: str) -> bool:
    return any(test(value) for test, _ in _admitted(annotation))


def _words(annotation: str) -> str:
    """What an annotation admits, as text for messages.

    >>> _words("int | Sequence[int] | None")
    'an integer or a list of integers or None'
    """
    return " or ".join(dict.fromkeys(words for _, words in _admitted(annotation)))
