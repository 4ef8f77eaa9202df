"""Defer formulas: they are one node until they are compiled. In: a function of nodes. Out: the same, which makes one
FORMULA.

A model computes the same formulas again and again. Their nodes, a dozen or more for each, are made by the compiler's
first pass, once for all graphs of one structure (compiler/graph/gradient.py). A formula may be deferred if its nodes
follow from the types and shapes of the nodes that it is given and from plain values that can be compared; and, if it
computes floats, if a gradient passes to each float among its inputs. Does not know tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from glassgrad.base.source_lines import calls_are_noted
from glassgrad.compiler.graph import DType, Shape, UOp, ops as o
from glassgrad.compiler.graph.gradient import is_writing_out
from glassgrad.compiler.graph.op_arguments import Formula
from glassgrad.tensor.autograd import autocast

Shaper = Callable[..., "Shape | None"]
_dtypes: dict[tuple[Any, ...], DType] = {}       # type of the result, by formula and the types of its inputs


def same_shape(x: UOp, *_: Any) -> Shape:
    """Return the shape of a formula that is computed element by element, or row by row."""
    return x.shape


def one_node(shape: Shaper) -> Callable[[Callable[..., UOp]], Callable[..., UOp]]:
    """A decorator: the formula becomes one node if it computes floats. Its nodes are made at once if sizes are
    variables, if messages must name the call that made each node, and under `autocast`, which changes types inside.
    `shape` returns the result's shape if the arguments are certainly right, else None; then the nodes are written out
    to see.

    >>> from glassgrad.tensor.formulas.neural.activations import softmax
    >>> softmax(Tensor([1.0, 2.0]).uop).op
    Ops.FORMULA
    """
    return partial(_deferred, shape)


def _deferred(shape: Shaper, formula: Callable[..., UOp]) -> Callable[..., UOp]:
    def written_out(*arguments: Any) -> UOp:
        before = autocast.change(None)
        try:
            return formula(*arguments)
        finally:
            autocast.change(before)

    @wraps(formula)
    def call(*arguments: Any) -> UOp:
        nodes = tuple([a for a in arguments if isinstance(a, UOp)])
        types = tuple([n.dtype for n in nodes])
        if is_writing_out() or autocast.current() is not None or types[0].kind != "f" or calls_are_noted() or \
                any([n.symbolic for n in nodes]):
            return formula(*arguments)
        what = Formula(call, tuple([UOp if isinstance(a, UOp) else a for a in arguments]))
        dtype = _dtypes.get((what, types))
        if dtype is None:
            dtype = _dtypes[what, types] = written_out(*arguments).dtype
        return UOp(o.FORMULA, dtype, nodes, what)
    call.__wrapped__, call.shape = written_out, shape               # type: ignore[attr-defined]
    return call
