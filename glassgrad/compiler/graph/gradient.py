"""The gradient table. In: a graph, a seed, targets. Out: the targets' gradients as graphs, or one GRADIENT node for
each, which the compiler expands. Does not know Tensors.

One entry per op, under its formula: g is the gradient of the op's result `out`, and the entry returns one gradient per
source, or None where no gradient passes. Entries build ordinary nodes, so gradients of gradients work without further
code. Where the derivative is a convention (ties, zeros, NaN), PyTorch's is followed.

A training loop takes the same gradients of a graph with the same structure at every step. So `backward` makes one
GRADIENT node for each, and the compiler's first pass expands it, once for all graphs with that structure. A formula of
many nodes, such as a norm or a linear layer, is one FORMULA node in the same way: tensor/formulas/ has those.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter

from glassgrad.base.errors import Bug
from glassgrad.base.source_lines import one_place, user_place
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.node import rebuilt, toposort
from glassgrad.compiler.graph.op_arguments import Scan, Scatter
from glassgrad.compiler.graph.uop import UOp, full

Gradient = Callable[..., tuple["UOp | None", ...]]
GRADIENTS: dict[o.Op, Gradient] = {}


def gradient(*ops: o.Op) -> Callable[[Gradient], Gradient]:
    """Decorator that declares the gradient of ops: a function of (g, out, *sources)."""
    def declare(entry: Gradient) -> Gradient:
        GRADIENTS.update(dict.fromkeys(ops, entry))
        return entry
    return declare


# Ops that are piecewise constant or of integers: no gradient passes. A test checks that each op is here or in the
# table.
FLAT = frozenset((o.CMPLT, o.CMPNE, o.CMPEQ, o.AND, o.OR, o.XOR, o.NOT, o.SHL, o.SHR, o.IDIV, o.MOD, o.TRUNC,
                  o.ROUND, o.BITCAST, o.RANDOM, o.IOTA))


def gradients(root: UOp, seed: UOp, targets: Sequence[UOp], below: Sequence[UOp] = ()) -> list[UOp | None]:
    """Return d(root)/d(target), weighted by `seed`, for each target; None where the root does not depend on it.
    `below`: the nodes under the root in topological order, if the caller has them.

    >>> from glassgrad.compiler.graph.op_arguments import Param
    >>> from glassgrad.compiler.graph.uop import const
    >>> x = UOp(o.PARAM, dtypes.float32, (), Param(0, (3,)))
    >>> gradients(-x, const(1.0), [x])[0] is -const(1.0).broadcast((3,))
    True
    """
    below = below or toposort([root])
    wanted = set(targets)
    between: set[UOp] = set()                   # nodes through which a gradient reaches some target
    for node in below:
        passes = node.op in GRADIENTS and any(s in between for s in passes_to(node))
        if node.dtype.kind == "f" and (passes or node in wanted):
            between.add(node)
    received: dict[UOp, UOp] = {root: _fit(seed, root)} if root in between else {}
    for node in reversed(below):                # users before sources: when a node is reached, its gradient is complete
        g = received.get(node)
        if g is None or node.op not in GRADIENTS or not any(s in between for s in passes_to(node)):
            continue
        for source, part in zip(node.src, GRADIENTS[node.op](g, node, *node.src)):
            if part is not None and source in between:
                part = _fit(part, source)
                received[source] = received[source] + part if source in received else part
        if node not in wanted:
            del received[node]
    return [received.get(target) for target in targets]


def passes_to(node: UOp) -> tuple[UOp, ...]:
    """The sources to which a gradient can pass; for a DETACH, the inputs of its user-defined gradient."""
    return node.src[1:] if node.op is o.DETACH else node.src


def reached_from(roots: Sequence[UOp]) -> list[UOp]:
    """The nodes that a gradient starting at the roots can reach, also under a GRADIENT, which will be expanded."""
    return toposort(roots, lambda n: [s for s in passes_to(n) if s.dtype.kind == "f"]
                    if n.op in GRADIENTS or n.op is o.GRADIENT else [])


def _fit(g: UOp, node: UOp) -> UOp:
    """A gradient in its node's shape; a node of shape () was broadcast to its readers, so its gradient is summed."""
    if g.dtype is not node.dtype:
        raise Bug(f"the gradient of {node} came out as {g.dtype}")
    if g.shape == node.shape:
        return g
    if node.shape == ():
        return g.sum(range(len(g.shape))).reshape(())
    if g.shape == ():
        return g.broadcast(node.shape)
    raise Bug(f"the gradient of {node} came out with shape {g.shape}")


# -- elementwise ---------------------------------------------------------------------------------------------
@gradient(o.ADD)                                # d(x + y) = dx + dy
def _(g, out, x, y): return g, g


@gradient(o.SUB)                                # d(x - y) = dx - dy
def _(g, out, x, y): return g, -g


@gradient(o.MUL)                                # d(x*y) = y dx + x dy
def _(g, out, x, y): return g * y, g * x


@gradient(o.MULACC)                             # d(x*y + z) = y dx + x dy + dz
def _(g, out, x, y, z): return g * y, g * x, g


@gradient(o.DIV)                                # d(x/y) = dx/y - (x/y)/y dy
def _(g, out, x, y): return g / y, -g * (out / y)


@gradient(o.NEG)                                # d(-x) = -dx
def _(g, out, x): return (-g,)


@gradient(o.ABS)                                # d|x| = sign(x) dx, and 0 at 0
def _(g, out, x): return ((x < 0).where(-g, (x > 0).where(g, 0)),)


@gradient(o.RECIP)                              # d(1/x) = -(1/x)^2 dx
def _(g, out, x): return (-g * (out * out),)


@gradient(o.SQRT)                               # d sqrt(x) = dx / (2 sqrt(x))
def _(g, out, x): return (g / (out * 2),)


@gradient(o.EXP2)                               # d 2^x = 2^x ln 2 dx
def _(g, out, x): return (g * out * math.log(2),)


@gradient(o.LOG2)                               # d log2(x) = dx / (x ln 2)
def _(g, out, x): return (g / (x * math.log(2)),)


@gradient(o.SIN)                                # d sin(x) = cos(x) dx, and cos(x) = 1 - 2 sin(x/2)^2 without rounding x
def _(g, out, x):
    half = (x * 0.5).sin()
    return (g * (1 - half * half * 2),)


@gradient(o.MAX, o.MIN)                         # the gradient goes to the chosen side; equal sides take half each
def _(g, out, x, y):
    if _constant(y):                            # relu and clamp: no gradient at the constant itself
        return out.ne(y).where(g, 0), None
    if _constant(x):
        return None, out.ne(x).where(g, 0)
    lost_x, lost_y = (x < y, y < x) if out.op is o.MAX else (y < x, x < y)
    share = x.eq(y).where(g * 0.5, g)
    return lost_x.where(0, share), lost_y.where(0, share)


def _constant(node: UOp) -> bool:
    """Whether a node is a constant, perhaps broadcast. (A leaf of zeros is not: its gradient may be needed.)"""
    node = node.below((o.RESHAPE, o.EXPAND))
    return node.op is o.CONST or node.op is o.PARAM and node.arg.scalar


@gradient(o.WHERE)                              # d where(c, x, y) = where(c, dx, dy)
def _(g, out, condition, x, y): return None, condition.where(g, 0), condition.where(0, g)


@gradient(o.CAST)                               # between floats: the same number, so the same gradient
def _(g, out, x): return (g.cast(x.dtype) if x.dtype.kind == "f" else None,)


@gradient(o.DETACH)                             # stops here, unless the node carries its own gradient
def _(g, out, x, *inputs): return (None, *(out.arg.backward(g, out, *inputs) if inputs else ()))


@gradient(o.FORMULA)                            # to the sources of its expansion, which comes first
def _(g, out, *inputs): raise Bug(f"{out} was not written out")


@gradient(o.CONTIGUOUS)
def _(g, out, x): return (g,)


@gradient(o.COPY)                               # back to where it came from
def _(g, out, x): return (g if x.device is None else g.copy_to(x.device),)


# -- reductions ----------------------------------------------------------------------------------------------
@gradient(o.SUM)                                # every term counts once
def _(g, out, x): return (g.expand(x.shape),)


@gradient(o.AMAX, o.AMIN)                       # g / n to each of the n elements that reach it
def _(g, out, x):
    # recomputed from x instead of reading `out`: another kernel may round x differently
    top = x.detach().reduce(out.op, out.arg.axes)
    reach = x.eq(top.expand(x.shape)).cast(x.dtype)
    return (reach * (g / reach.sum(out.arg.axes)).expand(x.shape),)


@gradient(o.PROD)                               # each element's gradient: the product of the others, zeros or not
def _(g, out, x):
    axes = out.arg.axes
    order = tuple(a for a in range(len(x.shape)) if a not in axes) + axes
    moved = x.permute(order)
    count = math.prod(x.shape[a] for a in axes)
    rows = moved.reshape((math.prod(n for a, n in enumerate(x.shape) if a not in axes), count))
    others = _product_before(rows) * _product_before(rows.flip((1,))).flip((1,))
    return (g.expand(x.shape) * others.reshape(moved.shape).permute(_inverse(order)),)


def _product_before(rows: UOp) -> UOp:
    """The product of the elements to the left of each element in its row (1 for the first)."""
    height, count = rows.shape
    if count == 0:
        return rows
    first = full((height, 1), 1, rows.dtype).pad(((0, 0), (0, count - 1)))
    return _scan(rows.shrink(((0, height), (0, count - 1))).pad(((0, 0), (1, 0))) + first, 1, o.MUL)


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(order.index(a) for a in range(len(order)))


# -- movement: each by its inverse ---------------------------------------------------------------------------
@gradient(o.RESHAPE)
def _(g, out, x): return (g.reshape(x.shape),)


@gradient(o.PERMUTE)
def _(g, out, x): return (g.permute(_inverse(out.arg.order)),)


@gradient(o.EXPAND)                             # the repeated element receives all its copies' gradients
def _(g, out, x): return (g.sum(a for a, n in enumerate(x.shape) if n != g.shape[a]),)


@gradient(o.PAD)
def _(g, out, x): return (g.shrink([(before, before + n) for n, (before, _) in zip(x.shape, out.arg.padding)]),)


@gradient(o.SHRINK)
def _(g, out, x): return (g.pad([(start, n - stop) for n, (start, stop) in zip(x.shape, out.arg.bounds)]),)


@gradient(o.FLIP)
def _(g, out, x): return (g.flip(out.arg.axes),)


@gradient(o.WINDOW)                             # dx[i] = sum over k of g[(i - k*dilation) / stride, k]
def _(g, out, x):
    axis, _, stride, dilation = out.arg
    return (g.unwindow(axis, stride, dilation, x.shape[axis]).sum((len(x.shape),)).reshape(x.shape),)


@gradient(o.UNWINDOW)                           # dx[o, k] = g[o*stride + k*dilation, k], or 0 where that is outside
def _(g, out, x):
    axis, stride, dilation, length = out.arg
    size, count = x.shape[-1], x.shape[axis]
    reached = (count - 1) * stride + (size - 1) * dilation + 1
    if count == 0 or size == 0:
        return (full(x.shape, 0, x.dtype),)
    rank = len(x.shape)
    g = g.pad([(0, max(reached - length, 0) if a == axis else 0) for a in range(rank)])
    g = g.shrink([(0, reached if a == axis else n) for a, n in enumerate(g.shape)])
    windows = g.window(axis, size, stride, dilation)            # [.., o, .., k, k']: its diagonal k == k' is wanted
    rest = x.shape[:-1]
    flat = windows.reshape((*rest, size * size)).pad([(0, 0)] * (rank - 1) + [(0, size)])
    return (flat.reshape((*rest, size, size + 1)).shrink([*((0, n) for n in x.shape), (0, 1)]).reshape(x.shape),)


# -- gather, scatter, scan -----------------------------------------------------------------------------------
def _gather(rows: UOp, index: UOp) -> UOp:
    return UOp(o.GATHER, rows.dtype, (rows, index))


def _scatter(base: UOp, index: UOp, value: UOp, mode: str) -> UOp:
    return UOp(o.SCATTER, base.dtype, (base, index, value), Scatter(mode))


def _scan(x: UOp, axis: int, combine: o.Op) -> UOp:
    return UOp(o.SCAN, x.dtype, (x,), Scan(axis, combine))


def _scan_back(x: UOp, axis: int) -> UOp:
    """The sum of each element and all that follow it."""
    return _scan(x.flip((axis,)), axis, o.ADD).flip((axis,))


@gradient(o.GATHER)                             # each row receives the gradients of all its readers
def _(g, out, rows, index): return _scatter(full(rows.shape, 0, rows.dtype), index, g, "add"), None


@gradient(o.SCATTER)
def _(g, out, base, index, value):
    if out.arg.mode == "add":
        return g, None, _gather(g, index)
    spread = index.shape + base.shape[1:]
    if out.arg.mode in ("set", "permute"):      # overwritten elements get no gradient
        return _scatter(g, index, full(spread, 0, g.dtype), "set"), None, _gather(g, index)
    value = value.broadcast(spread)
    kept, taken = base.eq(out), value.eq(_gather(out, index))   # max: g / n to each of the n that reach it
    reach = _scatter(kept.cast(g.dtype), index, taken.cast(g.dtype), "add")
    return kept.where(g / reach, 0), None, taken.where(_gather(g / reach, index), 0)


@gradient(o.SCAN)
def _(g, out, x):
    axis, combine = out.arg
    if combine is o.ADD:                        # out[j] = sum of x[i] for i <= j:  dx[i] = sum of g[j] for j >= i
        return (_scan_back(g, axis),)
    return (_running_product(g, out, x, axis) if combine is o.MUL else _running_extreme(g, out, x, axis),)


def _running_product(g: UOp, out: UOp, x: UOp, axis: int) -> UOp:
    """dx[i] = sum over j >= i of g[j] out[j] / x[i]. The first zero uses products without it; later zeros get 0."""
    zero = x.eq(0)
    zeros = _scan(zero.cast(dtypes.int32), axis, o.ADD)
    first = zero & zeros.eq(1)
    without_first = _scan(first.where(1, x), axis, o.MUL)
    usual = _scan_back(g * out, axis) / zero.where(1, x)
    return zeros.eq(0).where(usual, first.where(_scan_back(g * without_first, axis), 0))


def _running_extreme(g: UOp, out: UOp, x: UOp, axis: int) -> UOp:
    """Route g[j] to x[i] for the last i <= j at which x[i] was the running extreme."""
    rank, count = len(x.shape), x.shape[axis]
    order = (*(a for a in range(rank) if a != axis), axis)
    moved = x.permute(order)
    size = x.elements
    height = size // (count or 1)
    place = _scan(full((height, count), 1, dtypes.int64), 1, o.ADD) - 1
    row = _scan(full((height, count), 1, dtypes.int64), 0, o.ADD) - 1
    falls_behind = (x < out) if out.arg.combine is o.MAX else (out < x)
    falls_behind = falls_behind.permute(order).reshape((height, count))
    # clamped to its row, so that the compiler can prove that rows write disjoint elements
    winner = _scan(falls_behind.where(0, place), 1, o.MAX).maximum(0).minimum(count - 1) + row * count
    spread = _scatter(full((size,), 0, x.dtype), winner, g.permute(order).reshape((height, count)), "add")
    return spread.reshape(moved.shape).permute(_inverse(order))


# -- gradients and formulas kept as one node until they are compiled ------------------------------------------
def deferred(root: UOp, seed: UOp, targets: Sequence[UOp], order: Sequence[UOp]) -> list[UOp | None]:
    """Make one GRADIENT node for each target that the root depends on (None for the others); the compiler expands them.
    Expand at once where a GRADIENT or a user-defined gradient lies under the root, for symbolic shapes, and for several
    devices. `order`: the nodes under the root."""
    if root.symbolic or any([target.device != root.device for target in targets]):
        return at_once(root, seed, targets, order)
    reached = {root}
    for node in reversed(order):
        if node in reached:
            op = node.op
            if op is o.GRADIENT or op is o.DETACH and len(node.src) > 1 and not node.arg.name:
                return at_once(root, seed, targets, order)
            if op in GRADIENTS and node.dtype.kind == "f":
                reached.update(node.src if op is not o.DETACH else node.src[1:])
    place = user_place()
    return [UOp(o.GRADIENT, t.dtype, (t, root, seed), None, place) if t in reached and t.dtype.kind == "f" else None
            for t in targets]


_DEFERRED = frozenset((o.GRADIENT, o.FORMULA))


class _Writing(threading.local):
    active = False


_writing = _Writing()


def is_writing_out() -> bool:
    """Whether this thread is inside `written_out`: formulas and gradients made there are not deferred again."""
    return _writing.active


def written_out(roots: Sequence[UOp], replaced: dict[UOp, UOp] | None = None, stored: Collection[UOp] = (),
                kept: Collection[UOp] = ()) -> list[UOp]:
    """Expand every GRADIENT and FORMULA under the roots, except those in `kept`. `replaced` is filled with new node ->
    the node that it replaces. A FORMULA among `stored` whose result is a view is made contiguous. So is a gradient that
    is a view of a sum: then the kernel that computes it can also compute the parameter's new value."""
    order = toposort(roots, lambda n: () if n in kept else n.src) if kept else toposort(roots)
    found = [node for node in order if node.op in _DEFERRED and node not in kept]
    if not found:
        return list(roots)
    before, _writing.active = _writing.active, True
    try:
        new = _written(order, found, set(stored), {node: node for node in kept})
    finally:
        _writing.active = before
    if replaced is not None:
        replaced.update((made, node) for node, made in new.items() if made is not node)
    return [new[root] for root in roots]


def _written(order: Sequence[UOp], found: Sequence[UOp], stored: Collection[UOp],
             new: dict[UOp, UOp]) -> dict[UOp, UOp]:
    """Add to `new` what each node in `order` becomes; `found` are the GRADIENTs and FORMULAs to expand."""
    for node in order:
        if node in new:
            continue
        if node.op is o.FORMULA:
            with one_place(node.place):
                made = node.arg.written_out(tuple([new[s] for s in node.src]))
                new[node] = made.contiguous() if made.op in o.MOVEMENT and node in stored else made
        elif node.op is not o.GRADIENT:
            new[node] = node.over(tuple([new[s] for s in node.src]))
        else:                                   # all gradients of one value at once: their targets are under it
            group = [n for n in found if n.op is o.GRADIENT and n.src[1:] == node.src[1:]]
            with one_place(node.place):
                parts = gradients(new[node.src[1]], new[node.src[2]], [new[n.src[0]] for n in group])
                for n, part in zip(group, parts):
                    if part is None:
                        raise Bug(f"no gradient comes to {n.src[0]}")
                    new[n] = part.contiguous() if part.op in o.MOVEMENT else part
    return new


def at_once(root: UOp, seed: UOp, targets: Sequence[UOp], order: Sequence[UOp] = ()) -> list[UOp | None]:
    """Return the targets' gradients as graphs; GRADIENT and FORMULA nodes under the root are expanded first."""
    order = order or toposort([root])
    if not _DEFERRED.isdisjoint(map(attrgetter("op"), order)):
        root, seed, *targets = written_out([root, seed, *targets])
        order = toposort([root])
    return gradients(root, seed, targets, order)


def without_detach(roots: Sequence[UOp]) -> list[UOp]:
    """Remove DETACH nodes, once no more gradients are taken; also inside the steps of recurrences."""
    def without(node: UOp, over: UOp) -> UOp | None:
        if node.op is o.RECURRENCE:
            steps = node.arg._replace(results=tuple(without_detach(node.arg.results)))
            return UOp(node.op, node.dtype, over.src, steps, node.place)
        return over.src[0] if node.op is o.DETACH else None
    return rebuilt(roots, without)
