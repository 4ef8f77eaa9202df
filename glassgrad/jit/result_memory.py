"""Memory for the results of one call, and who gets them. In: a `Captured`. Out: `Frame`, written by a run, handed out.

Results are the caller's to keep. Two frames take turns: a call writes into the one whose results nobody holds any more,
which is known by counting references, and makes another where both are held.
"""

from __future__ import annotations

from sys import getrefcount
from typing import TYPE_CHECKING, Any

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.uop import UOp
from glassgrad.engine.buffer import Buffer
from glassgrad.engine.registry import registry
from glassgrad.engine.replay import Write
from glassgrad.jit.buffer_substitution import moved, same_view
from glassgrad.jit.in_place_results import Weight
from glassgrad.jit.replaced_state import State
from glassgrad.jit.tracing import add_gradient
from glassgrad.tensor.autograd.leaves import cut_off, hold, hold_alone
from glassgrad.tensor.tensor import Tensor

if TYPE_CHECKING:
    from glassgrad.jit.captured import Captured

__all__ = ["Frame"]


class Frame:
    """Memory for the results of one call. Two take turns: a call writes into the one whose results nobody holds."""

    def __init__(self, captured: Captured):
        self.made: dict[UOp, UOp] = {b: UOp(o.BUFFER, b.dtype, (), Buffer(b.shape, b.dtype, b.arg.device))
                                     for b in captured.fresh}
        self.inputs = {*captured.inputs, *[w.symbol for w in captured.shown]}
        self.after = [(reference, self._here(node), node) for reference, node in captured.after]
        self.grads = [(reference, None if node is None else self._here(node), node)
                      for reference, node in captured.grads]
        self.given = [None if node is None else self._here(node) for node in captured.given_nodes]
        self.brought = any(node is None and then is not None for node, then in [
            *[row[1:] for rows in (self.after, self.grads) for row in rows],
            *zip(self.given, captured.given_nodes)]) or bool(captured.argument_updates or captured.argument_grads)
        for node, ends in zip(self.given, captured.given_cut):
            if node is not None and ends:
                cut_off(node)
        single = captured.returned.single and captured.given_as == captured.given_wants == [None] and not captured.bound
        self.one_result = self.given[0] if single and self.given[0] not in [row[1] for row in self.after] else None
        self.binds = bool(self.grads or captured.argument_updates or captured.argument_grads)
        self.held = False
        nodes = [*self.made.values(), *[n for rows in (self.after, self.grads) for _, n, _ in rows if n is not None],
                 *[n for n in self.given if n is not None]]
        self.views = {view for node in nodes for view in node.toposort() if view.op is not o.BUFFER}
        self.results: list[Write] = [write for symbol, node in self.made.items()
                                     for write in captured.replay.writes(symbol, node.arg.address)]
        self._expect(captured)
        self.things: list[Any] = list(dict.fromkeys(nodes)) + [n.arg for n in self.made.values()]
        self.counted: list[int] = []

    def _expect(self, captured: Captured) -> None:
        """What the next call will find where this frame's values are handed out to weights."""
        self.next_nodes: list[tuple[Weight, UOp]] = []
        self.next_writes: list[Write] = []
        rebound = {id(reference()): node for reference, node, _ in self.after}
        put = {(place.key, i): self.given[number] for place, form in captured.bound
               for i, number in enumerate(form.numbers)}
        for weight in captured.single:
            if isinstance(weight.only, State):
                node = put.get(weight.only.key)
            else:
                tensor = weight.only() if weight.only is not None else None
                node = rebound.get(id(tensor)) if tensor is not None else None
            if node is not None and not weight.pinned and same_view(node, weight.node):
                self.next_nodes.append((weight, node))
                self.next_writes += captured.replay.writes(weight.symbol, node.base.arg.address)

    def _here(self, node: UOp) -> UOp | None:
        """A node of the trace over this frame's memory; None for a view of an argument or of a weight, or one with a
        symbolic size, which each call brings."""
        return None if node.base in self.inputs or node.symbolic else moved(node, self.made)

    def count(self) -> list[int]:
        """How often each node and buffer of this frame is referred to."""
        return list(map(getrefcount, self.things))

    def is_free(self) -> bool:
        """Whether nobody but this frame knows its nodes and buffers: counted when it was made, counted again now."""
        return list(map(getrefcount, self.things)) == self.counted

    def forget(self) -> None:
        """Views remember the value that was read through them: here, that of an earlier call."""
        for node in self.views:
            registry.values.pop(node)

    def hand_out(self, captured: Captured, tensors: list[Tensor], arguments: list[UOp], shown: dict[UOp, UOp]) -> Any:
        """Rebind what the function rebinds, and its results in the form it returned them. `shown` are the buffers that
        weights had before the run."""
        given = {**self.made, **shown, **dict(zip(captured.inputs, arguments))} if self.brought else {}
        for reference, node, then in self.after:
            tensor = reference()
            if tensor is not None:
                tensor.uop = node if node is not None else moved(then, given, captured.names)
                if not self.held or node is None:
                    hold(tensor)
        self.held = True
        seen = captured.seen
        for weight, node in self.next_nodes:
            weight.node = seen[weight.number] = node
        for array, position, address in self.next_writes:
            array[position] = address
        if self.binds:
            self._bind(captured, tensors, given)
        if self.one_result is not None:
            made = captured.given_class[0]._of_node(self.one_result)
            hold_alone(made)
            return made
        # all of them first: a place that is bound may have held one that is given as it is
        results = [self._itself(itself, tensors) if then is None else
                   kind(node if node is not None else moved(then, given, captured.names), requires_grad=wants)
                   for node, then, itself, wants, kind in zip(self.given, captured.given_nodes, captured.given_as,
                                                              captured.given_wants, captured.given_class)]
        for place, form in captured.bound:
            place.put(form.filled(results))
        return captured.returned.filled(results)

    def _itself(self, reference: Any, arguments: list[Tensor]) -> Any:
        """What the function did not make: an argument, a state, a weight."""
        if isinstance(reference, int):
            return arguments[reference]
        return reference.itself() if isinstance(reference, State) else reference()

    def _bind(self, captured: Captured, tensors: list[Tensor], given: dict[UOp, UOp]) -> None:
        """Leave the gradients that the function leaves, and change the arguments that it changes."""
        names = captured.names
        for reference, node, then_ in self.grads:
            tensor = reference()
            if tensor is not None:
                if then_ is None:
                    tensor.grad = None
                else:
                    tensor._grad = tensor._with(node if node is not None else moved(then_, given, names))
        for i, node_ in captured.argument_updates:
            tensors[i].uop = moved(node_, given, names)
            hold(tensors[i])
        for i, node_ in captured.argument_grads:
            add_gradient(tensors[i], tensors[i]._with(moved(node_, given, names)))
