"""Compare constructor arguments with their annotations before the constructor runs. In: a class and a call of it. Out:
nothing, or an InputError that names the argument: given / expected / fix.

Layers, optimizers and schedules call `check_call` when they are made. If a layer's `forward` or a function of
`nn.functional` fails, `explain` looks for the wrong argument. So none of them needs checks that repeat its annotations.
Does not depend on any layer.
"""

from __future__ import annotations

import ast
import functools
import inspect
import numbers
from collections.abc import Callable, Iterable
from typing import Any

from glassgrad.base.errors import GlassgradError, InputError
from glassgrad.compiler.graph import DType, Length
from glassgrad.tensor.broadcast import whole
from glassgrad.tensor.checks import KINDS, cannot_take
from glassgrad.tensor.tensor_base import TensorBase


def _reads_as(kind: str) -> tuple[Callable[[Any], bool], str]:
    """Return a test for a kind of argument of `tensor.checks`, and the words for that kind."""
    words, read = KINDS[kind]
    return lambda value: read(value) is not None, words


def _iterates(value: Any) -> bool:
    try:
        return iter(value) is not None and not isinstance(value, type)
    except TypeError:                              # an array without axes has __iter__, but cannot be iterated over
        return False


# annotation: (test of a value, description for messages)
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **{kind: _reads_as(kind) for kind in ("int", "bool", "str", "Callable")},
    "Tensor": _reads_as("Self"),
    "float": (lambda v: isinstance(v, numbers.Real) or isinstance(v, TensorBase) and v.uop.size == 1, "a number"),
    "None": (lambda v: v is None, "None"),
    "DType": (lambda v: isinstance(v, DType), "a dtype"),
    "dict": (lambda v: isinstance(v, dict), "a dict"),
    "Sequence": (lambda v: isinstance(v, (list, tuple, range)), "a list"),
    "Iterable": (_iterates, "a list"),
    "tuple": (lambda v: isinstance(v, (list, tuple)), "a tuple"),
}
_ALIASES = {"Sizes": "int | Sequence[int]", "Parameters": "Iterable[Tensor] | Tensor", "Betas": "Sequence[float]",
            "Coefficients": "Sequence[float]", "Activation": "str | Callable", "Mask": "Tensor | None",
            "Maybe": "Tensor | None", "Old": "bool | None"}


# tinygrad's keywords: its adapter accepts them; here the error names ours
SYNONYMS = {"sz": "num_features", "vocab_size": "num_embeddings", "embed_size": "embedding_dim"}


@functools.cache
def signature_of(function: Any) -> inspect.Signature:
    """Return the parameters of a function, without `self`.

    >>> signature_of(Tensor.sign)
    <Signature () -> 'Self'>
    """
    signature = inspect.signature(function)
    return signature.replace(parameters=[p for p in signature.parameters.values() if p.name != "self"])


def check_call(cls: Any, signature: inspect.Signature, module: str, args: tuple[Any, ...],
               kwargs: dict[str, Any]) -> None:
    """Raise if arguments of a constructor do not fit its signature or its annotations. Constructors outside glassgrad
    are not checked."""
    if not cls.__init__.__module__.startswith("glassgrad."):
        return
    mistake = wrong_argument(signature, cls.__name__, module, args, kwargs)
    if mistake is not None:
        raise mistake


def wrong_argument(signature: inspect.Signature, name: str, module: str, args: tuple[Any, ...],
                   kwargs: dict[str, Any]) -> InputError | None:
    """Return an error about the first argument of a call that does not fit the parameters; None if all fit."""
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


def plain(value: Any) -> Any:
    """Return NumPy's integers as Python's, and other values as they are.

    >>> import numpy as np
    >>> plain(np.int64(3)), plain(2.5)
    (3, 2.5)
    """
    found = None if isinstance(value, (TensorBase, Length)) else whole(value)
    return value if found is None else found


# -- functions and layers that fail ----------------------------------------------------------------------------
FAILURES = (TypeError, AttributeError, ValueError, LookupError, ArithmeticError)


def explain(problem: Exception, function: Any, name: str, module: str, args: tuple[Any, ...],
            kwargs: dict[str, Any]) -> None:
    """Raise an error that says what is wrong with a call that failed, unless the present error already says it, or all
    arguments fit."""
    mistake = None if isinstance(problem, GlassgradError) else wrong_argument(
        signature_of(function), name, module, args, kwargs)
    if mistake is not None:
        raise mistake from problem


def explained(function: Callable[..., Any], module: str) -> Callable[..., Any]:
    """Wrap a function so that, if it fails because of an argument, the error names that argument.

    >>> def half(x: float): return x / 2
    >>> explained(half, "examples")(3)
    1.5
    >>> try: explained(half, "examples")("three")
    ... except InputError as error: print(error.what, error.given)
    half cannot take this x x='three' (str)
    """
    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except FAILURES as problem:
            explain(problem, function, function.__name__, module, args, kwargs)
            raise
    return called


def explain_all(module: dict[str, Any], names: Iterable[str], says: str) -> None:
    """Make errors of a module's functions name the argument that they are about, from here on."""
    module.update({name: explained(module[name], says) for name in names if inspect.isfunction(module.get(name))})


# -- reading annotations -------------------------------------------------------------------------------------
@functools.cache
def _admitted(annotation: str) -> list[tuple[Callable[[Any], bool], str]]:
    """Return the alternatives of an annotation, each as a test of a value and its words: two for "int |
    Sequence[int]"."""
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
    if name == "Iterable":                          # items are not checked: that would use up an iterator
        return [(test, words)]
    return [(lambda value: test(value) and all(_matches(item, part) for item in value), words)]


def _matches(value: Any, annotation: str) -> bool:
    return any(test(value) for test, _ in _admitted(annotation))


def _words(annotation: str) -> str:
    """Return what an annotation admits, as text for messages.

    >>> _words("int | Sequence[int] | None")
    'an integer or a list of integers or None'
    """
    return " or ".join(dict.fromkeys(words for _, words in _admitted(annotation)))
