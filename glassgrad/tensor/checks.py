"""Check arguments where the user passes them in. In: what the user wrote. Out: plain values, or an InputError.

A wrong argument is reported in the user's words before anything is computed with it: given / expected / fix. Methods
are not wrapped: tracebacks, `help()` and profilers show the method itself.

A method's signature already says what it takes: `eps: float`, `keepdim: bool`, `weight: Self | None`. `arguments` reads
these annotations once per method and checks by them, and `computed` applies a formula to the tensor and the checked
arguments, which is all that most methods do:

    def normalize(self, p: float = 2.0, dim: int = 1, eps: float = 1e-12, **spelling: Any) -> Self:
        return computed(self, normalization.normalize, "normalize", spelling, p=p, dim=dim, eps=eps)

Functions that are not methods call `of_kind("int", "clip", k=k)` on their first lines, with the kind, their name, and
then arguments by their names. Annotations that are not in the table `KINDS` (`Any`, sizes, ...) are not checked; nor
are axes, shapes and numbers beside a tensor, which `broadcast.py` has to read anyway.

Keywords of other libraries: PyTorch says `dim` where tinygrad and NumPy say `axis`; NumPy says `keepdims` where the
other two say `keepdim`. A method has one name for each parameter, and takes the other names as `**spelling`, which
`spelled` resolves by the table below. So only methods with synonyms need a call, no signature repeats a parameter, and
an unknown keyword is refused with a list of the method's own parameters. A parameter that may come under another name
has the default `REQUIRED`, which `spelled` refuses.
"""

from __future__ import annotations

import numbers
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from glassgrad.base.errors import DTypeError, InputError, ShapeError
from glassgrad.base.source_lines import one_place
from glassgrad.compiler.graph import DType, UOp, dtype_by_name
from glassgrad.tensor.broadcast import broadcasts_to, one_row, shape_from, whole
from glassgrad.tensor.tensor_base import TensorBase


class _Required:
    """The default of a parameter that must be given, by its own name or by a synonym."""

    def __repr__(self) -> str:
        return "required"


REQUIRED: Any = _Required()


# -- errors --------------------------------------------------------------------------------------------------
def cannot_take(what: str, name: str, value: Any, expected: str, fix: str = "") -> InputError:
    """Return the error for an argument of the wrong kind."""
    return InputError(f"{what} cannot take this {name}", given=f"{name}={_shown(value)} ({type(value).__name__})",
                      expected=expected, fix=fix or f"see help(Tensor.{what})")


def _shown(value: Any) -> str:
    text = f"a Tensor of shape {value.shape}" if isinstance(value, TensorBase) else repr(value)
    return text if len(text) < 60 else text[:57] + "..."


# -- kinds of arguments --------------------------------------------------------------------------------------
def _number(value: Any) -> Any:
    if type(value) in (int, float, bool):
        return value
    if isinstance(value, TensorBase) and value.uop.size == 1:
        return value.item()                              # type: ignore[attr-defined]
    return float(value) if isinstance(value, numbers.Real) else None


def _flag(value: Any) -> bool | None:
    if value is True or value is False:
        return value
    return None if whole(value) is None and type(value).__name__ != "bool" else bool(value)


def _instance(*kinds: type) -> Callable[[Any], Any]:
    return lambda value: value if isinstance(value, kinds) else None


def _items(value: Any) -> list[Any] | None:
    try:
        return None if isinstance(value, (str, bytes, type, dict, TensorBase)) else list(value)
    except TypeError:                                    # a number, or an array of one
        return None


def _list_of(read: Callable[[Any], Any], least: int = 0) -> Callable[[Any], Any]:
    """Return a reader of lists: it gives the plain values of at least `least` items of one kind, or None."""
    def found(value: Any) -> tuple[Any, ...] | None:
        plain = [read(item) for item in _items(value) or ()]
        fits = _items(value) is not None and len(plain) >= least and all(item is not None for item in plain)
        return tuple(plain) if fits else None
    return found


# kind, as annotations name it: its words, and a reader that returns an argument's plain value, or None
KINDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "int": ("an integer", whole),
    "float": ("a number", _number),
    "bool": ("True or False", _flag),
    "str": ("a string", _instance(str)),
    "Self": ("a Tensor", _instance(TensorBase)),
    "Callable": ("a function", lambda value: value if callable(value) else None),
    "PathLike": ("a path", _instance(str, os.PathLike)),
    "Mapping": ("a dict", _instance(Mapping)),
    "list": ("a list", _items),
    "list[Tensor]": ("a list of Tensors", _list_of(_instance(TensorBase))),
    "list[int]": ("a list of integers", _list_of(whole)),
    "list[float]": ("a list of numbers", _list_of(_number, least=1)),
    "DType | str": ("a dtype", dtype_by_name),
}
_OF_FILES = ("PathLike", "Mapping")        # kinds that functions of nn.state take


def checked(what: str, kind: str, name: str, value: Any, help_of: str = "Tensor") -> Any:
    """Return one argument as a plain value of a kind, which may end in " | None"; raise if it is of another kind."""
    plain = kind.removesuffix(" | None")
    if value is None and plain is not kind:
        return None
    words, read = KINDS[plain]
    found = read(value)
    if found is None:
        raise cannot_take(what, name, value, words if plain is kind else f"{words} or None",
                          f"see help({help_of}.{what})")
    return found


def of_kind(kind: str, what: str, /, **given: Any) -> Any:
    """Check that arguments are of one kind; return the last one's plain value.

    >>> of_kind("int", "roll", shifts=2)
    2
    """
    for name, value in given.items():
        found = checked(what, kind, name, value, "nn.state" if kind in _OF_FILES else "Tensor")
    return found


def choice(problem: str, fix: str, *, among: Sequence[Any], error: type[InputError] = InputError, **given: Any) -> None:
    """Raise if an argument is not one of a few values."""
    (name, value), = given.items()
    if not isinstance(value, (str, type(None))) or value not in among:
        words = [f'"{option}"' if isinstance(option, str) else str(option) for option in among]
        raise error(problem, given=f"{name}={_shown(value)}", expected=", ".join(words[:-1]) + " or " + words[-1],
                    fix=fix)


def fraction(what: str, problem: str, fix: str, **given: Any) -> float:
    """Return an argument as a float; raise if it is not from 0 to 1.

    >>> fraction("dropout", "dropout needs a probability", "write x.dropout(0.5)", p=0.25)
    0.25
    """
    (name, _), = given.items()
    found = of_kind("float", what, **given)
    if not 0 <= found <= 1:
        raise InputError(problem, given=f"{name}={found}", expected="a number from 0 to 1", fix=fix)
    return float(found)


def two_axes(what: str, *shapes: tuple[Any, ...]) -> None:
    """Raise if one of the shapes is not the shape of a matrix or of a stack of matrices."""
    for shape in shapes:
        if len(shape) < 2:
            raise ShapeError(f"{what} needs a matrix", given=f"shape {shape}", expected="at least 2 axes",
                             fix="reshape it first")


def integer_index(what: str, index: TensorBase) -> None:
    """Raise if an index tensor does not have an integer type."""
    if index.dtype.kind not in "iu":
        raise DTypeError(f"{what} needs an index of integers", given=f"an index of {index.dtype.name}",
                         expected="an integer tensor", fix="cast it first: index.int()")


def index_fits(x: TensorBase, index: TensorBase, axis: int, dim: int) -> None:
    """Raise if an index has another number of axes than a tensor, or is longer than it along any axis except one."""
    if index.ndim != x.ndim or any(i > n for a, (i, n) in enumerate(zip(index.shape, x.shape)) if a != axis):
        raise ShapeError("the index does not fit the tensor", given=f"index {index.shape} for {x.shape}, dim={dim}",
                         expected="as many axes, and sizes that are not larger except along dim",
                         fix="check the shapes")


def fit_together(nodes: Sequence[UOp], axis: int) -> None:
    """Raise if nodes cannot be concatenated along an axis."""
    first = nodes[0].shape
    for i, node in enumerate(nodes):
        if len(node.shape) != len(first) or any(a != b for k, (a, b) in enumerate(zip(node.shape, first)) if k != axis):
            raise ShapeError("cannot put these tensors one after another",
                             given=f"shape {first} first, shape {node.shape} at index {i}, along axis {axis}",
                             expected="the same number of axes and the same sizes, except along that axis",
                             fix="check the shapes, or use Tensor.stack for a new axis")


# -- keywords of other libraries -----------------------------------------------------------------------------
# {our name of a parameter: its names in other libraries}
SPELLINGS: dict[str, frozenset[str]] = {name: frozenset(others.split()) for names, others in {
    "axis dims": "axis dim dims axes", "dim": "axis dims dimension", "order": "dims axes axis",
    "start_dim": "start_axis", "axis0 dim0": "axis0 dim0", "axis1 dim1": "axis1 dim1",
    "in_axes": "in_dims", "out_axes": "out_dims", "keepdim": "keepdims",
    "other exponent value": "other exponent value x y w b input", "yes": "x input", "no": "y other",
    "fill_value src": "value", "weight": "w", "target": "targets Y", "op bounds": "arg", "layers": "ll",
    "shape": "size sizes args", "repeats": "reps args dims", "sizes": "split_size_or_sections split_size",
    "min_": "min a_min", "max_": "max a_max", "min_val": "min_value", "max_val": "max_value", "stop": "end",
    "p ord": "p ord", "dtype": "acc_dtype", "num_samples": "n", "sorted_": "sorted",
}.items() for name in names.split()}
# PyTorch's options that change no values here: copies never block, every sort is stable
_WITHOUT_EFFECT = frozenset(("non_blocking", "stable", "sparse_grad", "memory_format", "force"))


def spelled(what: str, spelling: dict[str, Any], **own: Any) -> list[Any]:
    """Return the arguments `own` of a method, in their order; some may have come under another library's name, in
    `spelling`.

    >>> spelled("sum", {"dim": 0}, axis=None, keepdim=False)
    [0, False]
    """
    for keyword, value in spelling.items():
        if keyword in _WITHOUT_EFFECT:
            continue
        ours = next((name for name in own if keyword in SPELLINGS.get(name, ()) or keyword == name), None)
        if ours is None:
            raise InputError(f"{what} cannot be called like this", given=f"got an unexpected keyword argument "
                             f"{keyword!r}", expected=f"{what}({', '.join(own)})", fix=f"see help(Tensor.{what})")
        own[ours] = value
    for name, value in own.items():
        if value is REQUIRED:
            raise InputError(f"{what} cannot be called like this", given=f"missing a required argument: {name!r}",
                             expected=f"{what}({', '.join(own)})", fix=f"see help(Tensor.{what})")
    return list(own.values())


def several(what: str, spelling: dict[str, Any], **own: Any) -> tuple[Any, ...]:
    """Return the arguments of f(2, 3), f((2, 3)) or f(shape=(2, 3)), where the last name may be a synonym."""
    given, = own.values()
    value, = spelled(what, spelling, **own)
    return one_row(given if value is given else (value,))


def broadcast_to(what: str, node: UOp, shape: tuple[Any, ...]) -> UOp:
    """Broadcast a node to a shape; raise if that is not possible."""
    if not broadcasts_to(node.shape, shape):
        raise ShapeError(f"an argument of {what} does not fit", given=f"shape {node.shape} for {shape}",
                         expected=f"shape {shape}, or one that broadcasts to it", fix="reshape it first")
    return node.broadcast(shape)


# -- a method's arguments, by its annotations ----------------------------------------------------------------
TensorKind = TypeVar("TensorKind", bound=TensorBase)
_AXES = frozenset(("axis", "axis0", "axis1", "dim", "dim0", "dim1", "dims", "start_dim", "end_dim"))


@cache
def _annotations(method: str) -> dict[str, str]:
    """Return the annotations of a method's parameters, by name."""
    found = next(vars(mixin)[method] for mixin in TensorBase.__subclasses__() if method in vars(mixin))
    return getattr(found, "__func__", found).__annotations__  # type: ignore[no-any-return]


@cache
def _checks(method: str) -> dict[str, tuple[Callable[[Any], Any], str, bool]]:
    """Return, for each of a method's parameters whose annotation is in `KINDS`: the function that reads its plain
    value, its kind, and whether it may be None."""
    return {name: (KINDS[plain][1], kind, plain is not kind) for name, kind in _annotations(method).items()
            if (plain := kind.removesuffix(" | None")) in KINDS and name not in _AXES}


def arguments(method: str, spelling: dict[str, Any] | None = None, /, **own: Any) -> list[Any]:
    """Return the arguments `own` of a method, in their order, checked by its annotations; some may have come under
    another library's name, in `spelling`.

    >>> arguments("topk", {"axis": 0}, k=2, dim=-1, largest=True)
    [2, 0, True]
    """
    if spelling:
        own = dict(zip(own, spelled(method, spelling, **own)))
    known = _checks(method)
    for name, value in own.items():
        if value is REQUIRED:
            spelled(method, {}, **own)                                # raises the error
        if name in known:
            read, kind, may_be_none = known[name]
            if value is not None or not may_be_none:
                plain = None if value is None else read(value)
                own[name] = checked(method, kind, name, value) if plain is None else plain
    return list(own.values())


def computed(x: TensorKind, formula: Callable[..., Any], method: str, spelling: dict[str, Any] | None = None, /,
             **own: Any) -> TensorKind:
    """Apply a formula to a tensor's node and a method's arguments, which are checked. Tensors among the arguments
    become nodes, and so do lists that are annotated as an `Operand`.

    >>> from glassgrad.tensor.formulas.neural.normalization import normalize
    >>> computed(Tensor([[3.0, 4.0]]), normalize, "normalize", p=1.0, dim=1, eps=1e-12).tolist()
    [[0.4285714328289032, 0.5714285969734192]]
    """
    values = arguments(method, spelling, **own)
    kinds = _annotations(method)
    nodes = [x._operand(value) if isinstance(value, TensorBase) or kinds.get(name) == "Operand" else value
             for name, value in zip(own, values)]
    with one_place():                  # all nodes of a formula get the same line of the user's
        node = formula(x.uop, *nodes)
    return x._with(node, *(value for value in values if isinstance(value, TensorBase)))


# -- new tensors ---------------------------------------------------------------------------------------------
def sizes(shape: Any, what: str) -> tuple[int, ...]:
    """Return a shape written as f(2, 3), f((2, 3)) or f([2, 3]); raise for negative sizes."""
    found = shape_from(shape, what)
    if any(n < 0 for n in found):
        raise ShapeError(f"{what} cannot have a negative size", given=str(found), expected="sizes of 0 or more",
                         fix="check how the sizes are computed")
    return found


def options(given: dict[str, Any], dtype: DType, device: str | None) -> tuple[DType, Any, bool | None]:
    """Return the dtype, device and requires_grad of a new tensor: those of another tensor, unless they are given."""
    unknown = set(given) - {"dtype", "device", "requires_grad"}
    if unknown:
        raise InputError("there is no such option", given=", ".join(sorted(unknown)),
                         expected="dtype, device or requires_grad", fix="check the spelling")
    kind = dtype_by_name(given["dtype"]) if given.get("dtype") is not None else dtype
    return kind, given.get("device") or device, given.get("requires_grad")
