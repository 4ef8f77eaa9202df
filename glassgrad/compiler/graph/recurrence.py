"""Recurrences: one step repeated, each time from the state that the previous one left. In: a step as a function of
nodes. Out: a RECURRENCE node for each of its results, over all steps; and its gradient, which is a recurrence too.

A Python loop over the steps of a sequence builds a graph that grows with the sequence. A RECURRENCE is one node for any
number of steps: its argument is the graph of one step, over PARAMs that stand for the sources:

    starts        s0, ..     the state before the first step
    sequences     x0, ..     (time, ..): each step reads its own row
    constants     ..         what every step reads whole, such as weights

The value of a node is (time, ..): one of the step's results (`arg.result` says which), after each step. The results are
the new states, then other values: those that the caller wants, and those inside reductions and inside formulas with
their own gradient (tanh, sigmoid), so that the gradient need not compute them again. Results that nothing reads get no
memory. One step is scheduled, for any number of steps (schedule/recurrent_steps.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.batched import KNOWN, Batched
from glassgrad.compiler.graph.dtype import DType, dtypes
from glassgrad.compiler.graph.gradient import gradient, gradients, written_out
from glassgrad.compiler.graph.node import substitute, toposort
from glassgrad.compiler.graph.op_arguments import Iota, Param, Recurrence, Shape
from glassgrad.compiler.graph.uop import UOp, const, full

# (states, a row of each sequence) -> (new states, other values of the step)
Step = Callable[[list[UOp], list[UOp]], tuple[list[UOp], list[UOp]]]
_STANDS_IN = -(1 << 20)        # slot of the first PARAM that stands for a state or a row while a step is built


def recurrence(step: Step, starts: Sequence[UOp], sequences: Sequence[UOp], backwards: bool = False) -> \
        list[UOp] | None:
    """Build the results of a step over all steps: its new states, then its other values. None where one node cannot
    express it: a state changes its shape or type, or an op is not elementwise, a reduction or a movement.

    >>> x = full((3, 2), 1.0)
    >>> [total] = recurrence(lambda states, rows: ([states[0] + rows[0]], []), [full((2,), 0.0)], [x])
    >>> total.op, total.shape                    # a running sum
    (Ops.RECURRENCE, (3, 2))
    """
    shapes = [*[n.shape for n in starts], *[n.shape[1:] for n in sequences]]
    stands_in = [UOp(o.PARAM, n.dtype, (), Param(_STANDS_IN - i, shape, False, n.device))
                 for i, (n, shape) in enumerate(zip((*starts, *sequences), shapes))]
    states, others = step(stands_in[:len(starts)], stands_in[len(starts):])
    constants = _Constants(stands_in)
    results = constants.taken_out([*states, *others])
    sources = (*starts, *sequences, *constants.found)
    shapes += [n.shape for n in constants.found]
    if any(n.op in (o.SCALAR, o.LENGTH) for n in sources) or any(
            (n.shape, n.dtype) != (start.shape, start.dtype) or n.dtype.kind != "f"
            for n, start in zip(results, starts)):
        return None
    params = [_param(i, n, shape) for i, (n, shape) in enumerate(zip(sources, shapes))]
    results = substitute(written_out(results), dict(zip([*stands_in, *constants.found.values()], params)))
    order = toposort(results)
    if any(n.op not in KNOWN and n.op not in (o.PARAM, o.CONST) or n.op is o.DETACH and n.arg and not n.arg.name
           for n in order):
        return None
    kept = [n for n in order if n.dtype.kind == "f" and n not in results and
            (n.op in o.REDUCE or n.op is o.DETACH and len(n.src) > 1)]
    what = Recurrence((*results, *kept), len(starts), len(sequences), backwards)
    return [UOp(o.RECURRENCE, n.dtype, sources, what._replace(result=i)) for i, n in enumerate(results)]


# -- independent items ---------------------------------------------------------------------------------------
ItemStep = Callable[..., tuple[list[UOp], list[UOp]]]      # (number of the step, states, options) -> as a Step


def steps_of_items(step: ItemStep, starts: Sequence[UOp], count: int, *options: Any, until: int | None = None) -> \
        tuple[list[UOp], list[UOp]]:
    """The states after the last of `count` steps, and the step's other values for all steps, where the items along axis
    0 are independent, such as the matrices of a batch. If an item is small, one task of one kernel does all its steps.
    A step receives its number, of shape (1, 1, 1); a step before which state `until` is not 0 may be skipped. There is
    no gradient.

    >>> double = lambda number, states: ([states[0] * 2.0], [])
    >>> [power], _ = steps_of_items(double, [full((4, 3, 3), 1.0)], 5)
    >>> power.op, power.shape                    # 2 ** 5
    (Ops.RECURRENCE, (4, 3, 3))
    """
    what = _item_step(step, tuple([(n.shape, n.dtype) for n in starts]), options, until)
    if not count:
        return list(starts), [full((0, *n.shape), 0, n.dtype) for n in what.results[what.states:]]
    sources = (*starts, UOp(o.IOTA, dtypes.int32, (), Iota((count,))))
    made = [UOp(o.RECURRENCE, n.dtype, sources, what._replace(result=i, last=i < what.states))
            for i, n in enumerate(what.results)]
    return made[:what.states], made[what.states:]


@lru_cache(256)
def _item_step(step: ItemStep, starts: tuple[tuple[Shape, DType], ...], options: tuple[Any, ...],
               until: int | None) -> Recurrence:
    """Build the graph of a step for the whole batch, and for one item of it."""
    def results(batch: int | None) -> tuple[UOp, ...]:
        params = [UOp(o.PARAM, dtype, (), Param(i, shape if batch is None else (batch, *shape[1:])))
                  for i, (shape, dtype) in enumerate(starts)]
        number = UOp(o.PARAM, dtypes.int32, (), Param(len(starts), ())).reshape((1, 1, 1))
        states, others = step(number, params, *options)
        return (*states, *others)

    return Recurrence(results(None), len(starts), 1, False, item=results(1), until=until)


def _param(slot: int, source: UOp, shape: Shape) -> UOp:
    return UOp(o.PARAM, source.dtype, (), Param(slot, shape, False, source.device))


class _Constants:
    """Replaces the parts of a step's graph that do not depend on its states and rows by PARAMs."""

    def __init__(self, stands_in: list[UOp]):
        self.stands_in = set(stands_in)
        self.found: dict[UOp, UOp] = {}              # constant value -> the PARAM that stands for it

    def taken_out(self, results: list[UOp]) -> list[UOp]:
        """The results, over PARAMs in place of constants."""
        new: dict[UOp, UOp] = {}
        for node in toposort(results):
            if node in self.stands_in:
                new[node] = node
            elif node.op is o.DETACH and node.src[0] in new and len(node.src) == 1:
                new[node] = new[node.src[0]].detach()          # the argument of a DETACH does not matter here
            elif any(s in new for s in node.src):
                new[node] = node.over(tuple([new.get(s) or self._constant(s) for s in node.src]))
        return [new.get(n) or self._constant(n) for n in results]

    def _constant(self, node: UOp) -> UOp:
        """The PARAM for a constant. Views stay in the step, so that a transposed weight is not copied."""
        if node.op is o.CONST:
            return node
        if node.op in o.MOVEMENT:
            return node.over((self._constant(node.src[0]),))
        slot = _STANDS_IN - len(self.stands_in) - len(self.found)
        return self.found.setdefault(node, UOp(o.PARAM, node.dtype, (), Param(slot, node.shape, False, node.device)))


# -- the gradient --------------------------------------------------------------------------------------------
@gradient(o.RECURRENCE)
def _(g: UOp, out: UOp, *src: UOp) -> tuple[UOp | None, ...]:
    """The gradient of a recurrence: a recurrence in the other direction. Its state is the gradient of the state, and
    its step the gradient table applied to the step's graph. The gradients of constants are sums over all steps,
    computed from these steps' results outside of the recurrence, so that a weight's gradient is one matrix product."""
    return _Backward(g, out, src).gradients()


class _Backward:
    """The gradient of one result of a recurrence."""

    def __init__(self, g: UOp, out: UOp, src: tuple[UOp, ...]):
        self.what: Recurrence = out.arg
        self.g, self.src, self.length = g, src, out.shape[0]
        what, first_constant = self.what, self.what.states + self.what.sequences
        self.params = [_param(i, n, n.shape if i < what.states or i >= first_constant else n.shape[1:])
                       for i, n in enumerate(src)]
        results = what.results
        self.carried = [_param(len(src) + i, n, n.shape) for i, n in enumerate(results[:what.states])]
        self.given = _param(len(src) + what.states, g, g.shape[1:])
        # gradients that a step's results receive: new states from the next step, and one result from outside
        received = dict(enumerate(self.carried))
        received[what.result] = received[what.result] + self.given if what.result in received else self.given
        self.received = received
        parts = [(results[i] * part).cast(dtypes.float32) for i, part in received.items()]
        total = sum([part.sum(range(len(part.shape))).reshape(()) for part in parts[1:]],
                    parts[0].sum(range(len(parts[0].shape))).reshape(()))
        # every float source gets a gradient, of zeros where none passes: `deferred` in gradient.py relies on it
        self.derived = [full(p.shape, 0, p.dtype) if n is None and p.dtype.kind == "f" else n for p, n in
                        zip(self.params, gradients(total, const(1.0, dtypes.float32), self.params))]

    def gradients(self) -> tuple[UOp | None, ...]:
        """The gradients of the sources."""
        what, derived, src = self.what, self.derived, self.src
        first_constant = what.states + what.sequences
        rows = self._rows_read()
        constants = {p: n for p, n in zip(self.params[first_constant:], src[first_constant:])}
        values = {i: n for i, n in enumerate(derived[:first_constant]) if n is not None and i >= what.states}
        next_states = [n for n in derived[:what.states] if n is not None]         # states are floats
        # the sums over all steps read values that a step computes anyway, and compute the rest again
        sums = [n for n in derived[first_constant:] if n is not None]
        in_step = set(toposort([*next_states, *values.values()], lambda n: () if n in rows else n.src)) - rows.keys()
        stored = list(dict.fromkeys([*values.values(), *[n for n in _summed(sums) if n in in_step and n.src]]))
        read = toposort(sums, lambda n: () if n in stored or n in rows else n.src)
        stored += [n for n in self.received.values() if n in read and n not in stored]

        def step(states: list[UOp], given: list[UOp]) -> tuple[list[UOp], list[UOp]]:
            new = {**constants, **dict(zip(self.carried, states)), **dict(zip(rows, given))}
            made = substitute([*next_states, *stored], new)
            return made[:what.states], made[what.states:]

        zeros = [full(p.shape, 0, p.dtype) for p in self.carried]
        made = recurrence(step, zeros, list(rows.values()), not what.backwards)
        if made is None:
            raise Bug("the gradient of a recurrence is no recurrence")
        every_step = dict(zip(stored, made[what.states:]))
        last = self.length - 1 if what.backwards else 0
        starts = [n.shrink([(last, last + 1), *[(0, size) for size in n.shape[1:]]]).reshape(n.shape[1:])
                  for n in made[:what.states]]
        spread = {p: n.reshape((1, *n.shape)).expand((self.length, *n.shape)) for p, n in constants.items()}
        batch = Batched(self.length, {**rows, **every_step, **spread})
        weights = [None if n is None else _sum_of_steps(n, batch) for n in derived[first_constant:]]
        return (*starts, *[every_step[values[i]] if i in values else None
                           for i in range(what.states, first_constant)], *weights)

    def _rows_read(self) -> dict[UOp, UOp]:
        """The values that the gradient of a step reads and that differ between steps; each with those of all steps."""
        what, src = self.what, self.src
        results = {n: i for i, n in enumerate(what.results) if n.op is not o.PARAM}
        read = toposort([n for n in self.derived if n is not None], lambda n: () if n in results else n.src)

        def all_steps(index: int) -> UOp:
            return UOp(o.RECURRENCE, what.results[index].dtype, src, what._replace(result=index))

        rows = {self.given: self.g}
        for i, param in enumerate(self.params[:what.states + what.sequences]):
            if param in read:
                rows[param] = src[i] if i >= what.states else states_before(src[i], all_steps(i), what.backwards)
        rows.update((n, all_steps(results[n])) for n in read if n in results)
        return rows


def states_before(start: UOp, states: UOp, backwards: bool) -> UOp:
    """Shift the states after each step to the states before each step."""
    count, rest = states.shape[0], states.shape[1:]
    no_change = [(0, 0)] * len(rest)
    whole = [(0, n) for n in rest]
    first = start.reshape((1, *rest))
    if backwards:
        return states.shrink([(1, count), *whole]).pad([(0, 1), *no_change]) + first.pad([(count - 1, 0), *no_change])
    return states.shrink([(0, count - 1), *whole]).pad([(1, 0), *no_change]) + first.pad([(0, count - 1), *no_change])


def _summed(nodes: Sequence[UOp]) -> list[UOp]:
    """The values below views that `_sum_of_steps` of these nodes reads: for a sum of products, its factors."""
    found: list[UOp] = []
    for node in nodes:
        node = node.base
        if node.op is o.ADD:
            found += _summed(node.src)
        elif node.op is o.SUM:
            found += [n.base for n in (node.src[0].src if node.src[0].op is o.MUL else node.src)]
        else:
            found.append(node)
    return found


def _sum_of_steps(node: UOp, batch: Batched) -> UOp:
    """Sum a node of one step over all steps. A sum over a step's own axes is merged with that over the steps."""
    if node not in batch.made:
        if node.op in o.MOVEMENT:
            return node.over((_sum_of_steps(node.src[0], batch),))
        if node.op is o.ADD and node.src[0].shape == node.src[1].shape:
            return _sum_of_steps(node.src[0], batch) + _sum_of_steps(node.src[1], batch)
        if node.op is o.SUM:
            source = node.src[0]
            batch.mapped(source)
            return batch.full(source, source.shape).sum((0, *[a + 1 for a in node.arg.axes])).reshape(node.shape)
    batch.mapped(node)
    return batch.full(node, node.shape).sum((0,)).reshape(node.shape)
