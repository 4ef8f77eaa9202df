"""Transform functions: jvp, vmap, checkpoint, grad. In: a function of tensors. Out: another function.

`vmap` traces the function for one example, and rebuilds its graph with a batch axis in front. `jvp` is the gradient of
a gradient: backward is linear in what it starts from, so its own gradient is the forward derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from glassgrad.base.errors import Bug, InputError, ShapeError
from glassgrad.compiler.graph import OwnGradient, Param, Scan, Shape, UOp, dtypes, full, ops as o, substitute, toposort
from glassgrad.compiler.graph.batched import Batched
from glassgrad.compiler.graph.gradient import written_out
from glassgrad.compiler.graph.op_arguments import Recurrence
from glassgrad.compiler.graph.recurrence import recurrence
from glassgrad.engine.registry import registry
from glassgrad.tensor import checks, index_range_check
from glassgrad.tensor.autograd.custom_gradient import own_gradient
from glassgrad.tensor.autograd.gradient_leaves import distinct
from glassgrad.tensor.broadcast import resolve_axis
from glassgrad.tensor.formulas.movement import counting
from glassgrad.tensor.tensor import Tensor

_numbers = count()            # numbers of the PARAMs that stand for one example's values


def _alias(tensor: Tensor) -> Tensor:
    """Return the same value at a separate node, through which gradients pass."""
    return tensor._with(own_gradient(tensor.uop, (tensor.uop,), lambda g, y, x: (g,)))


# -- derivatives ---------------------------------------------------------------------------------------------
def jvp(function: Callable[..., Tensor], primals: Sequence[Tensor],
        tangents: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the value at `primals`, and its derivative in the direction of `tangents`.

    >>> y, dy = jvp(lambda x: x ** 3, [Tensor([2.0])], [Tensor([1.0])])
    >>> y.tolist(), dy.tolist()
    ([8.0], [12.0])
    """
    if len(primals) != len(tangents) or any(p.shape != t.shape for p, t in zip(primals, tangents)):
        raise ShapeError("the tangents do not fit the primals",
                         given=f"{[p.shape for p in primals]} and {[t.shape for t in tangents]}",
                         expected="one tangent of the same shape per primal",
                         fix="pass tangents of the primals' shapes: [Tensor.ones(*x.shape)]")
    inputs = [_alias(p) for p in primals]
    value = function(*inputs)
    start = value._with(distinct(full(value.shape, 0.0, value.dtype)))
    back = value.gradient(*inputs, gradient=start, materialize_grads=True)
    parts = [(g * tangent).sum() for g, tangent in zip(back, tangents)]
    if not parts:
        raise InputError("jvp needs at least one primal", given="none", expected="a list of tensors",
                         fix="jvp(f, [x], [v])")
    return value, sum(parts[1:], parts[0]).gradient(start, materialize_grads=True)[0]


def grad(function: Callable[..., Tensor], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """Return a function that computes this function's gradient for one (or several) of its arguments; the value must be
    a single number.

    >>> grad(grad(lambda x: (x ** 3).sum()))(Tensor(2.0)).item()
    12.0
    """
    both = value_and_grad(function, argnums)
    return lambda *args, **kwargs: both(*args, **kwargs)[1]


def value_and_grad(function: Callable[..., Tensor], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """Return a function that computes this function's value, and its gradient for one (or several) of its arguments.

    >>> [t.item() for t in value_and_grad(lambda x: x * x)(Tensor(3.0))]
    [9.0, 6.0]
    """
    wanted = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def call(*args: Any, **kwargs: Any) -> Any:
        given = [_alias(a) if i in wanted else a for i, a in enumerate(args)]
        value = function(*given, **kwargs)
        found = value.gradient(*[given[i] for i in wanted], materialize_grads=True)
        return value, (found[0] if isinstance(argnums, int) else tuple(found))

    return call


# -- memory --------------------------------------------------------------------------------------------------
def checkpoint(function: Callable[..., Tensor], *args: Any) -> Tensor:
    """Compute function(*args) so that its inner values are not kept for backward but computed again: less memory, more
    time.

    >>> x = Tensor([2.0])
    >>> y = checkpoint(lambda x: x.exp().log() * x, x).sum().backward()
    >>> x.grad.numpy().round(4)
    array([4.], dtype=float32)
    """
    value = function(*args)
    leaves = _outside(value, [a for a in args if isinstance(a, Tensor)])

    def backward(g: UOp, out: UOp, *nodes: UOp) -> tuple[UOp | None, ...]:
        # copies of the inputs that depend on the gradient: what is computed from them is computed again, not kept
        again = {n: UOp(o.CONTIGUOUS, n.dtype, (_after(n, g),), "again") for n in nodes}
        copied = value._with(*substitute([value.uop], again))
        targets = [value._with(again[n]) for n in nodes]
        found = copied.gradient(*targets, gradient=value._with(g), materialize_grads=True)
        return tuple(f.uop for f in found)

    return value._with(own_gradient(value.uop, tuple(leaves), backward))


def _outside(value: Tensor, args: Sequence[Tensor]) -> list[UOp]:
    """Return the float leaves of a graph: its arguments and all others (weights)."""
    given = dict.fromkeys(a.uop for a in args)

    def is_leaf(node: UOp) -> bool:
        return node in given or node.op is o.BUFFER or node in registry.leaves

    below = toposort([value.uop], lambda node: () if is_leaf(node) else node.src)
    return list(dict.fromkeys(node for node in (*given, *below) if is_leaf(node) and node.dtype.kind == "f"))


def _after(node: UOp, g: UOp) -> UOp:
    """Return the same value, made to depend on g: a WHERE whose condition is a test of g that in practice never
    holds."""
    first = g.shrink([(0, min(1, n)) for n in g.shape]).reshape(()) if g.size else full((), 0.0, g.dtype)
    late = first.cast(dtypes.float32).bitcast(dtypes.int32).eq(0x7FC0BEEF)        # one NaN of four billion numbers
    return UOp(o.WHERE, node.dtype, (late.broadcast(node.shape), full(node.shape, 0.0, node.dtype), node))


# -- one more axis -------------------------------------------------------------------------------------------
def vmap(function: Callable[..., Any], in_axes: Any = 0, out_axes: int = 0, **spelling: Any) -> Callable[..., Any]:
    """Return a function for a whole batch from a function for one example. `in_axes` is the batch axis of each argument
    (None: the same value for all examples), `out_axes` that of the results.

    >>> vmap(lambda x, y: (x * y).sum())(Tensor([[1, 2], [3, 4]]), Tensor([[1, 1], [0, 1]])).tolist()
    [3, 4]
    """
    in_axes, out_axes = checks.spelled("vmap", spelling, in_axes=in_axes, out_axes=out_axes)
    checks.of_kind("Callable", "vmap", function=function)
    out_axes = checks.of_kind("int", "vmap", out_axes=out_axes)
    def call(*args: Any) -> Any:
        axes = (in_axes,) * len(args) if in_axes is None or isinstance(in_axes, int) else tuple(in_axes)
        if len(axes) != len(args):
            raise InputError("vmap needs one axis per argument",
                             given=f"in_axes={in_axes!r} for {len(args)} arguments",
                             expected="an int, or one entry per argument",
                             fix="use None for arguments without a batch")
        size, known, given = None, {}, []
        for arg, axis in zip(args, axes):
            if axis is None or not isinstance(arg, Tensor):
                given.append(arg)
                continue
            front = arg.movedim(resolve_axis(axis, arg.ndim, "vmap"), 0)
            if size is not None and front.shape[0] != size:
                raise ShapeError("the batches of vmap differ", given=f"{front.shape[0]} and {size} examples",
                                 expected="one number of examples", fix="check in_axes")
            size = front.shape[0]
            one = _stands_for(arg.uop, front.shape[1:])
            known[one] = front.uop
            given.append(arg._with(one))
        if size is None:
            raise InputError("vmap has no batch", given=f"in_axes={in_axes!r}",
                             expected="at least one tensor with an axis", fix="call the function itself")
        result = function(*given)
        parts = result if isinstance(result, (tuple, list)) else (result,)
        outputs = [_finished(part, _Batch(size, known), out_axes) for part in parts]
        return type(result)(outputs) if isinstance(result, (tuple, list)) else outputs[0]

    return call


def _stands_for(node: UOp, shape: Shape) -> UOp:
    """Return a PARAM that stands for one example's part of a node; a new one each time, because calls of vmap may be
    nested."""
    return UOp(o.PARAM, node.dtype, (), Param(-1 - next(_numbers) % (1 << 19), shape, False, node.device))


def _finished(part: Any, batch: _Batch, axis: int) -> Tensor:
    if not isinstance(part, Tensor):
        raise InputError("vmap's function gives something that is not a tensor", given=f"a {type(part).__name__}",
                         expected="a tensor, or a tuple or list of tensors",
                         fix="return tensors; Tensor(value) makes one of a number")
    made = part._with(batch.of(part.uop))
    return made.movedim(0, axis) if axis else made


@dataclass(eq=False)
class _OfExamples:
    """The gradient of a formula for a whole batch: the function that gives it for one example, batched."""
    batch: _Batch
    backward: Callable[..., tuple[Any, ...]]

    def __call__(self, *nodes: UOp) -> tuple[UOp | None, ...]:
        ones = [_stands_for(n, n.shape[1:]) for n in nodes]
        batch = self.batch.others(dict(zip(ones, nodes)))
        return tuple([None if n is None else batch.of(n) for n in self.backward(*ones)])


class _Batch(Batched):
    """A graph rebuilt for a batch; adds to `Batched` the ops by index, scans and recurrences."""

    def of(self, root: UOp) -> UOp:
        self.mapped(root := written_out([root])[0])
        return self.full(root, root.shape)

    def batched(self, node: UOp) -> UOp:
        if node.op is o.SCAN:
            x = self.full(node.src[0], node.src[0].shape)
            return UOp(node.op, node.dtype, (x,), Scan(node.arg.axis + 1, node.arg.combine))
        if node.op is o.GATHER:
            return self._gathered(node)
        if node.op is o.SCATTER:
            return self._scattered(node)
        if node.op is o.RECURRENCE:
            return self._recurrent(node)
        if node.op is o.DETACH and len(node.src) > 1 and not node.arg.name:
            gradient = OwnGradient(_OfExamples(self, node.arg.backward))
            return UOp(o.DETACH, node.dtype, tuple([self.full(s, s.shape) for s in node.src]), gradient)
        made = super().batched(node)
        found = index_range_check.watched_by(node) if node.op is o.CMPEQ else None
        if found is not None:
            self._watch(found[1], self.mapped(found[0]), found[1].limit, made)
        return made

    def others(self, known: dict[UOp, UOp]) -> _Batch:
        """Return the same batch, in which more nodes differ between examples."""
        return _Batch(self.size, {**self.made, **known})

    def _recurrent(self, node: UOp) -> UOp:
        """Rebuild a recurrence for all examples: its step is the step of one example, batched."""
        what: Recurrence = node.arg
        if what.item:
            return self._of_items(node)
        first_constant = what.states + what.sequences
        order = list(dict.fromkeys(n for result in what.results for n in result.toposort()))
        params = {n.arg.slot: n for n in order if n.op is o.PARAM}
        whole = [self.full(n, n.shape) for n in node.src]
        sequences = [n.permute((1, 0, *range(2, len(n.shape)))) for n in whole[what.states:first_constant]]

        def step(states: list[UOp], rows: list[UOp]) -> tuple[list[UOp], list[UOp]]:
            given = [*states, *rows, *whole[first_constant:]]
            batch = Batched(self.size, {params[i]: n for i, n in enumerate(given) if i in params})
            for result in what.results:
                batch.mapped(result)
            made = [batch.full(n, n.shape) for n in what.results]
            return made[:what.states], made[what.states:]

        made = recurrence(step, whole[:what.states], sequences, what.backwards)
        if made is None:
            raise Bug("a batched recurrence is no recurrence")
        return made[what.result].permute((1, 0, *range(2, len(node.shape) + 1)))

    def _of_items(self, node: UOp) -> UOp:
        """Rebuild a recurrence of independent items: those of all examples become its items."""
        what: Recurrence = node.arg
        items, axis = what.results[0].shape[0], 0 if what.last else 1
        count = self.size * items
        starts = [self.full(n, n.shape).reshape((count, *n.shape[1:])) for n in node.src[:what.states]]
        params = {n.arg.slot: n for result in what.item for n in result.toposort() if n.op is o.PARAM}
        known = {params[i]: UOp(o.PARAM, n.dtype, (), Param(i, n.shape)).reshape((count, 1, *n.shape[1:]))
                 for i, n in enumerate(starts) if i in params}
        batch = _Batch(count, known)
        results = tuple([batch.full(n, n.shape).reshape((count, *n.shape[1:]))
                         for n in what.item if batch.mapped(n) is not None])
        made = UOp(o.RECURRENCE, node.dtype, (*starts, *node.src[what.states:]), what._replace(results=results))
        return made.reshape((*node.shape[:axis], self.size, *node.shape[axis:])).permute(
            (axis, *[a for a in range(len(node.shape) + 1) if a != axis]))

    def _linear(self, index: UOp, n: int) -> UOp:
        """Return each example's indices, offset to its own rows of the flattened batch."""
        own = self.full(index, index.shape).cast(dtypes.int64)
        start = (counting(self.size, dtypes.int64) * n).reshape((self.size, *(1,) * len(index.shape)))
        return index_range_check.nearest(own, n) + start

    def _watch(self, wish: Any, index: UOp, limit: int, user: UOp | None = None) -> None:
        """Have the range of an index checked for all examples, as it was to be checked for one."""
        picks = [pick._replace(indices=self.mapped(pick.indices)) for pick in wish.picks]
        index_range_check.watch(index, picks, wish.shape, limit, wish.ignored)
        if user is not None:
            index_range_check.watch_for(user, index, limit)

    def _gathered(self, node: UOp) -> UOp:
        rows, index = node.src
        n, rest, found = rows.shape[0], rows.shape[1:], index_range_check.watched_by(node)
        if rows not in self.made:
            limit, linear = n, self.made[index]
        else:
            limit, linear = self.size * n, self._linear(index, n)
            rows = self.made[rows].reshape((limit, *rest))
        if found is not None:
            self._watch(found[1], linear, limit)
        return UOp(o.GATHER, node.dtype, (rows, linear))

    def _scattered(self, node: UOp) -> UOp:
        base, index, value = node.src
        n, rest, found = base.shape[0], base.shape[1:], index_range_check.watched_by(node)
        limit, linear = self.size * n, self._linear(index, n)
        rows = self.full(base, base.shape).reshape((limit, *rest))
        flat = UOp(o.SCATTER, node.dtype, (rows, linear, self.full(value, (*index.shape, *rest))), node.arg)
        if found is not None and found[0] is index:
            self._watch(found[1], linear, limit)
        elif found is not None:         # the checked index is not the one that the SCATTER uses
            self._watch(found[1], self.mapped(found[0]), found[1].limit, flat)
        return flat.reshape((self.size, n, *rest))
