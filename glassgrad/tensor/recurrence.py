"""Compute a loop over a sequence as one node of the graph. In: a step as a function of tensors, the first state,
sequences. Out: the states after every step. Does not know layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from glassgrad.compiler.graph import UOp
from glassgrad.compiler.graph.recurrence import recurrence
from glassgrad.tensor.tensor import Tensor

Step = Callable[..., tuple[Tensor, ...]]      # (state, row of each sequence) -> the next state


def states_of_steps(step: Step, start: Sequence[Tensor], sequences: Sequence[Tensor],
                    backwards: bool = False) -> tuple[Tensor, ...]:
    """Return each part of the state after every step, as (time, ..), of the loop `state = step(state, *rows)` over the
    rows of all sequences.

    The loop is one node for each part, whatever the number of steps (compiler/graph/recurrence.py). Steps are written
    out instead if there is only one, if a step has more than elementwise ops, reductions and movements, or if a state
    changes its type.

    >>> add = lambda state, row: (state[0] + row,)
    >>> states_of_steps(add, [Tensor.zeros(2)], [Tensor([[1.0, 2.0], [3.0, 4.0]])])[0].tolist()
    [[1.0, 2.0], [4.0, 6.0]]
    """
    count, first = sequences[0].shape[0], sequences[0]

    def on_nodes(states: list[UOp], rows: list[UOp]) -> tuple[list[UOp], list[UOp]]:
        made = step(tuple([s._with(n) for s, n in zip(start, states)]), *[x._with(n) for x, n in zip(sequences, rows)])
        return [s.uop for s in made], []

    if count > 1 and not any([t.uop.symbolic for t in (*start, *sequences)]):
        made = recurrence(on_nodes, [s.uop for s in start], [x.uop for x in sequences], backwards)
        if made is not None:
            return tuple([first._with(node, *start) for node in made])
    state, found = tuple(start), list[tuple[Tensor, ...]]()
    for t in reversed(range(count)) if backwards else range(count):
        state = step(state, *[x[t] for x in sequences])
        found.append(state)
    return tuple([Tensor.stack(*parts) for parts in zip(*(found[::-1] if backwards else found))])
