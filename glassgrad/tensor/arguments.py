"""A method's arguments, checked by its annotations. In: what the user wrote. Out: plain values, or an InputError.

A method's signature already says what it takes: `eps: float`, `keepdim: bool`, `weight: Self | None`. `arguments` reads
these annotations once per method and checks by them, with the helpers of `checks.py`; and `computed` applies a formula
to the tensor and the checked arguments, which is all that most methods do:

    def normalize(self, p: float = 2.0, dim: int = 1, eps: float = 1e-12, **spelling: Any) -> Self:
        return computed(self, activations.normalize, "normalize", spelling, p=p, dim=dim, eps=eps)

Annotations that are not in the table of `checks.py` (`Any`, sizes, ...) are not checked here; neither are axes, which
`broadcast.py` has to resolve anyway. Nothing is wrapped: the method itself makes the call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from glassgrad.base.source_lines import one_place
from glassgrad.tensor import checks
from glassgrad.tensor.base import TensorBase

__all__ = ["arguments", "computed"]

TensorKind = TypeVar("TensorKind", bound=TensorBase)

_AXES = frozenset(("axis", "axis0", "axis1", "dim", "dim0", "dim1", "dims", "start_dim", "end_dim"))


@cache
def _annotations(method: str) -> dict[str, str]:
    """The annotations of a method's parameters, by their names."""
    found = next(vars(mixin)[method] for mixin in TensorBase.__subclasses__() if method in vars(mixin))
    return getattr(found, "__func__", found).__annotations__  # type: ignore[no-any-return]


@cache
def _checks(method: str) -> dict[str, tuple[Callable[[Any], Any], str]]:
    """What reads a method's parameters as plain values and their kinds, where `checks.py` has them, by their names."""
    return {name: (checks.KINDS[kind.removesuffix(" | None")][1], kind) for name, kind in _annotations(method).items()
            if kind.removesuffix(" | None") in checks.KINDS and name not in _AXES}


def arguments(method: str, spelling: dict[str, Any] | None = None, /, **own: Any) -> list[Any]:
    """The arguments `own` of a method, in their order, checked by its annotations; some may have come under another
    library's name, in `spelling`.

    >>> arguments("topk", {"axis": 0}, k=2, dim=-1, largest=True)
    [2, 0, True]
    """
    if spelling:
        own = dict(zip(own, checks.spelled(method, spelling, **own)))
    known = _checks(method)
    for name, value in own.items():
        if value is checks.REQUIRED:
            checks.spelled(method, {}, **own)                                # which refuses it
        if name in known:
            read, kind = known[name]
            plain = None if value is None else read(value)
            own[name] = checks.checked(method, kind, name, value) if plain is None else plain
    return list(own.values())


def computed(x: TensorKind, formula: Callable[..., Any], method: str, spelling: dict[str, Any] | None = None, /,
             **own: Any) -> TensorKind:
    """A formula of a tensor's node and of a method's arguments, which are checked. Tensors among them become nodes, and
    so do lists that are annotated as an `Operand`.

    >>> from glassgrad.tensor.formulas.neural.activations import normalize
    >>> computed(Tensor([[3.0, 4.0]]), normalize, "normalize", p=1.0, dim=1, eps=1e-12).tolist()
    [[0.4285714328289032, 0.5714285969734192]]
    """
    values = arguments(method, spelling, **own)
    kinds = _annotations(method)
    nodes = [x._operand(value) if isinstance(value, TensorBase) or kinds.get(name) == "Operand" else value
             for name, value in zip(own, values)]
    with one_place():                  # all that a formula makes is of one line of the user's
        node = formula(x.uop, *nodes)
    return x._with(node, *(value for value in values if isinstance(value, TensorBase)))
