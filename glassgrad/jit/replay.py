"""Run a traced call again. In: `TracedCall`. Out: `CapturedCall`, called with tensors.

A replay writes a few addresses and makes one foreign call; around it, Python compares what may have changed since the
trace (guards.py), chooses the memory of the results (results.py) and binds what the function binds. What follows from
the trace alone is worked out when the capture is made, and a call only compares and writes.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Collection
from operator import is_
from typing import Any

from glassgrad.base.interrupts import interrupts_deferred
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.symbolic import Symbol, value_of
from glassgrad.compiler.graph.uop import UOp
from glassgrad.engine.replay import Replay
from glassgrad.engine.schedule_key import scalar_bytes
from glassgrad.jit.guards import Guards
from glassgrad.jit.results import (Result, ResultInPlace, ResultsInPlace, Weight, moved, same_view, substituted,
                                   symbol_of)
from glassgrad.jit.trace import BufferSource, Outcome, TracedCall, add_gradient, as_buffer, is_lazy
from glassgrad.jit.values import NestForm, SymbolNames, tensors_of
from glassgrad.runtime.devices import Device
from glassgrad.tensor.autograd.leaves import RESET
from glassgrad.tensor.evaluate import computed_bytes
from glassgrad.tensor.formulas.random_numbers import streams
from glassgrad.tensor.jit_access import assign_node, computed_from, result_maker, unread_gradient
from glassgrad.tensor.memory.storage import is_shared, is_view, shares_with, storage_of
from glassgrad.tensor.tensor import Tensor

__all__ = ["STALE", "CapturedCall"]

_MANY_NODES = 1000
_OTHERS_GIVEN = "which of its own tensors it is handed is no longer the same"
STALE = object()           # the answer of a replay that does not fit this call


class CapturedCall:
    """A trace as a replay: what to compare before it, what to bind after it."""

    def __init__(self, traced: TracedCall):
        self.why = ""
        outcomes = traced.outcomes()
        made = {r for rec in traced.trace.records for r in rec.results}
        fresh = [b for b in dict.fromkeys(out.node.base for out in outcomes if out.node is not None) if b in made]
        sources = {node: source for node, source in traced.sources.items() if isinstance(source, BufferSource)}
        symbols = {b: symbol_of(b) for b in (*traced.argument_nodes, *sources, *fresh)}
        below = traced.below_lazy()
        self.inputs = [symbols[node] for node in traced.argument_nodes]
        self.weights = [Weight(symbols[node], source, _nodes_before(traced, source), node in below)
                        for node, source in sources.items()]
        self.by_number = {w.number: w for w in self.weights if w.number is not None}
        self.shared = [w for w in self.weights if w.number is None]
        self.outcomes = [out if out.node is None else out._replace(node=moved(out.node, symbols[out.node.base])
                                                                   if out.node.base in symbols else out.node)
                         for out in outcomes]
        bases = [out.node.base for out in self.outcomes if out.node is not None]
        self.shown = [w for w in self.weights if w.symbol in bases]      # results are views of these, as they were
        self.changed = [out.number for out in outcomes if out.kind == "value"]    # these tensors get another value
        self.returned = NestForm(traced.form, traced.given_numbers)
        self.bound = [(b._replace(holder=None, value=None), NestForm(value, traced.given_numbers))
                      for b, value in traced.bound]
        self.raised = [(b._replace(holder=None, value=None), by) for b, by in traced.raised]
        # where the next call finds the tensors that this one puts somewhere: (number in sight, number among given)
        self.put = [pair for (b, _), (_, form) in zip(traced.bound, self.bound)
                    for pair in zip([traced.numbers[id(t)] for t in tensors_of(b.value)], form.numbers)]
        renewed = {out.number for out in outcomes if out.kind in ("value", "gradient")}
        self.replay = Replay(traced.trace, symbols, {node for node, source in sources.items() if not renewed.isdisjoint(
            (*source.numbers, *source.owners))})
        if traced.trace.flags and self.replay.at_once:
            self.replay.check(traced.trace.flags)
        rows = self._find_in_place(bases, [symbols[b] for b in fresh], len(traced.walk.tensors))
        self.in_place = ResultsInPlace(self.replay, rows)
        stays = {row.symbol for row in rows}
        ends = {g.node.base for g in traced.given if g.node is not None and g.is_cut_off}
        self.results = [Result(symbols[b], [out for out in self.outcomes if out.node is not None
                                            and out.node.base is symbols[b]], self.replay, b in ends)
                        for b in fresh if symbols[b] not in stays]
        self._sort_outcomes(traced)
        self._watch(traced, rows)
        self.drawn, self.seed = traced.streams[1] - traced.streams[0], traced.seed
        self.entries = [self.replay.pointers(symbol) for symbol in self.inputs]
        self.addresses = [0] * len(self.inputs)            # of the arguments at the last call
        self.random_cells = [(cell.value - traced.streams[0], address, dtype) for cell, dtype, address, stream
                             in self.replay.cells if stream and cell.value > traced.streams[0]]
        self.other_cells = [(cell, address, dtype) for cell, dtype, address, stream in self.replay.cells
                            if not (stream and cell.value > traced.streams[0])]
        self.flags = [flag.over(lambda node: substituted(node, symbols, {})) for flag in traced.trace.flags]
        self.verifies = any(flag.reads_each_run or not self.replay.pause for flag in self.flags)     # after every run
        self.symbols = traced.symbols             # the variables that arguments bring, as they were in the trace
        self.sizes = [(s, address) for s, address in self.replay.sizes if s in self.symbols]
        self.answers = list(traced.trace.answers)     # how comparisons of them came out
        self.names: SymbolNames = {}              # what they are in this call
        self.settings = -1                        # the number of the settings that the replay was prepared under

    def _find_in_place(self, bases: list[UOp], fresh: list[UOp], in_sight: int) -> list[ResultInPlace]:
        """What may stay where it is: results that take the place of a weight, and gradients that replace no other;
        whole ones only where the call can no longer fail when they are written. They are no outcomes from then on."""
        whole = self.replay.at_once
        parts = {r.result: r for r in self.replay.updates}
        summed = {i for w in self.shared for i in w.source.owners}             # gradients that are added to
        replaced = {number for number, _ in self.put}
        rows, others = [], []
        for out in self.outcomes:
            view, weight = out.node, self.by_number.get(out.number)
            row = None
            if view is not None and view.base in fresh and bases.count(view.base) == 1:
                part = parts.get(view)
                if out.kind == "value" and weight is not None and not weight.pinned and weight not in self.shown \
                        and weight.node.op is o.BUFFER and same_view(view, weight.node) and out.number not in replaced \
                        and (part.source is weight.symbol if part is not None else whole and self.replay.waits(view)
                             and self.replay.rewrites(weight.symbol, view)):
                    row = weight.in_place = ResultInPlace(view, out.number, weight, view, part)
                elif out.kind == "gradient" and whole and not view.symbolic and out.number not in summed \
                        and out.number < in_sight and self.replay.waits(view.base):
                    row = ResultInPlace(view.base, out.number, None, view)
            if row is None:
                others.append(out)
            else:
                rows.append(row)
        self.outcomes = others
        self.replay.stays(sum(row.symbol.arg.nbytes for row in rows))
        self.replay.keep_together(row.symbol for row in rows)
        return rows

    def _sort_outcomes(self, traced: TracedCall) -> None:
        """What each call leaves, by kind, with the result that it is where it is all of one."""
        whole = {out: result for out in self.outcomes for result in self.results if result.is_whole(out)}
        self.values = [(out.number, whole.get(out), out.node) for out in self.outcomes
                       if out.kind == "value" and out.node is not None]
        self.others = [out for out in self.outcomes if out.kind not in ("value", "given")]
        nodes = {out.number: out for out in self.outcomes if out.kind == "given"}
        self.given = [(g, result_maker(g.kind), whole.get(nodes[i]) if i in nodes else None,
                       nodes[i].node if i in nodes else None) for i, g in enumerate(traced.given)]
        self.argument_values = [out.number for out in self.others if out.kind == "argument"]
        self.has_views = len(whole) < len(self.outcomes)
        # what the next call will find in the tensors in sight
        self.expected: list[tuple[int, Result, Weight | None]] = []
        for number, found in [*[(number, result) for number, result, _ in self.values],
                              *[(number, self.given[i][2]) for number, i in self.put]]:
            weight = self.by_number.get(number)
            if found is not None and (weight is None or not weight.pinned and found.is_like(weight.node)):
                self.expected.append((number, found, weight))

    def _watch(self, traced: TracedCall, rows: list[ResultInPlace]) -> None:
        """What must be as it was: the values in sight, lazy tensors, and which tensors have a gradient already."""
        self.seen: list[Any] = [node for _, node, _, _ in traced.before]      # what the tensors in sight stand for, and
        #                                           the gradients that the last call left
        self.known = set(map(id, self.seen))      # nodes that tensors in sight may stand for, by id
        read = {n for record in traced.trace.records for n in record.normal.order}
        self.lazy = {i for i, node in enumerate(self.seen) if node.base.op is not o.BUFFER and node in read}
        self.itself = traced.itself
        self.given_of_its_own = {i: traced.paths[number] for i, number in self.itself.items()}
        self.out_of_sight = [weakref.ref(t) for t in traced.tensors[len(traced.walk.tensors):]]
        left = [row.number for row in rows if row.weight is None]
        self.seen += left                         # until there are gradients
        self.has_grad = [(i, grad is not None) for i, (t, _, grad, _) in enumerate(traced.before)
                         if t.requires_grad or grad is not t.grad]
        self.has_other_grad = [(number, had) for number, had in self.has_grad if not had or number not in left]
        self.guards = Guards(traced.walk, [b for b, _ in traced.bound], [b for b, _ in traced.raised], left)
        self.is_steady = False                    # whether results stay where they are in this call

    # -- does it fit? --------------------------------------------------------------------------------------------------
    def _is_stale(self, found: list[Tensor], state: list[Any]) -> bool:
        """Whether something that the trace relied on has changed; `why` says what."""
        if self.random_cells and streams.seed is not self.seed:
            self.why = "there is a new random seed"
            return True
        steady = self.is_steady = all(map(is_, state, self.seen))
        for number, had in self.has_other_grad if steady else self.has_grad:
            grad = unread_gradient(found[number])
            if (grad is not None and grad is not RESET) is not had:
                self.why = "a gradient was reset" if had else "a gradient was there already"
                return True
        if len({*map(id, found)}) < len(found):
            self.why = "two of its tensors are one"
            return True
        if not steady:
            for number, (tensor, then) in enumerate(zip(found, self.seen)):
                if tensor.uop is not then and not self._follow_tensor(number, tensor, then):
                    return True
        return not all(self._follow(weight, weight.source.nodes(found), found) for weight in self.shared)

    def _follow_tensor(self, number: int, tensor: Tensor, then: UOp) -> bool:
        """Whether another value of a tensor in sight may be read in place of the last one; it is bound."""
        weight, now = self.by_number.get(number), tensor.uop
        if number in self.lazy or tensor.dtype is not then.dtype or weight is None and not then.symbolic and (
                tensor.shape != then.shape or tensor.device != (then.device or tensor.device)):
            self.why = f"a tensor of shape {then.shape} it uses was replaced by something else"
            return False
        if weight is not None:
            if is_lazy(tensor):
                now = as_buffer(tensor)
            if not self._follow(weight, [now], [tensor]):
                return False
            if weight.in_place is not None:
                weight.in_place.lost = self.in_place.disturbed = True
        self.seen[number] = tensor.uop
        if len(self.known) > _MANY_NODES:
            self.known = set(map(id, self.seen))
        self.known.add(id(tensor.uop))
        return True

    def _follow(self, weight: Weight, nodes: list[UOp], found: list[Tensor]) -> bool:
        """Bind a weight to what its tensors stand for now; False where that is not the same kind of value."""
        if not nodes:
            self.why = "a tensor it uses is gone"
            return False
        now = nodes[0]
        if now is not weight.node or now.symbolic or len(nodes) > 1:
            then = self._renamed(weight.node)
            apart = nodes.count(now) < len(nodes) and any(n.base is not now.base for n in nodes)
            views = zip(weight.source.numbers, weight.views)
            if apart or not same_view(now, then) \
                    or not all(same_view(found[i].uop, self._renamed(view)) for i, view in views) \
                    or weight.pinned and now.base is not weight.node.base:
                self.why = f"a tensor of shape {now.shape} it uses was replaced by something else"
                return False
            weight.node = weight.node if now.symbolic else now       # its sizes are those of the trace
            self.replay.bind(weight.symbol, now.base.arg.address)
        return True

    def _renamed(self, node: UOp) -> UOp:
        """A view of the trace with the variables of this call."""
        return moved(node, node.base, self.names) if node.symbolic else node

    def _arguments(self, tensors: list[Tensor], found: list[Tensor]) -> list[Tensor] | None:
        """The arguments that the function does not see by itself; None unless those it sees are the trace's."""
        if any(found[number] is not tensors[i] for i, number in self.itself.items()):
            return None
        others = [t for i, t in enumerate(tensors) if i not in self.itself] if self.itself else tensors
        ids = {*map(id, others)}
        if not ids.isdisjoint(map(id, found)) or any(is_view(others[i]) or shares_with(others[i], ids)
                                                     for i in self.argument_values):
            return None
        return others

    # -- replaying -----------------------------------------------------------------------------------------------------
    def call(self, instance: Any, tensors: list[Tensor], symbols: Collection[Symbol], settings: int) -> Any:
        """Everything the function does, for these arguments; `STALE` if it may do something else by now. While
        `settings` is the same number, the settings have not changed. `symbols` are the variables with their values, in
        the order of the arguments."""
        seen = self.guards.check(instance)
        if seen.__class__ is int:
            self.why = self.guards.why(seen)
            return STALE
        found, state, holders = seen
        if self.out_of_sight:
            found += [reference() for reference in self.out_of_sight]
            if any(tensor is None for tensor in found):
                self.why = "a tensor it uses is gone"
                return STALE
            state = [tensor.uop for tensor in found] + state[len(found) - len(self.out_of_sight):]
        if symbols:
            self.names = dict(zip(self.symbols, symbols))
            for answer in self.answers:
                if not answer.holds(lambda symbol: value_of(self.names[symbol])):
                    self.why = f"{answer} is no longer {'true' if answer.answer else 'false'}"
                    return STALE
        if self._is_stale(found, state):
            return STALE
        checked = self.itself or self.argument_values
        if checked:
            others = self._arguments(tensors, found)
            if others is None:
                self.why = _OTHERS_GIVEN
                return STALE
            tensors = others
        if settings != self.settings:
            self.settings = settings
            self.replay.prepare()
        arguments, addresses, known, changed = [], self.addresses, self.known, self.changed
        for i, tensor in enumerate(tensors):
            node = tensor.uop
            if id(node) in known and not checked and self._arguments(tensors, found) is None:
                self.why = _OTHERS_GIVEN
                return STALE
            if changed and storage_of(tensor) is not None and shares_with(tensor, {id(found[n]) for n in changed}):
                self.why = "it is handed a view of a tensor that it changes"
                return STALE
            if node.op is not o.BUFFER:
                node = as_buffer(tensor)
            arguments.append(node)
            address = node.arg.address
            if address != addresses[i]:
                addresses[i] = address
                for array, position, offset in self.entries[i]:
                    array[position] = address + offset
        shown = {w.symbol: w.source.nodes(found)[0].base for w in self.shown} if self.shown else {}
        for result in self.results:
            result.begin()
        in_place = self.in_place
        if not self.is_steady or in_place.disturbed or list(map(len, in_place.readers)) != in_place.lengths:
            seen = state = None                   # else they would hold a gradient that nothing else does
            in_place.begin(found)
        for stream, address, dtype in self.random_cells:
            ctypes.memmove(address, scalar_bytes((streams.count + stream) & 0xFFFFFFFF, dtype), 8)
        streams.count += self.drawn
        for cell, address, dtype in self.other_cells:
            ctypes.memmove(address, scalar_bytes(cell.value, dtype), 8)
        for symbol, address in self.sizes:
            ctypes.memmove(address, scalar_bytes(self.names[symbol].value, dtypes.index), 8)
        if not self.replay.is_long:
            return self._run(tensors, arguments, found, holders, shown)
        with interrupts_deferred():               # but between kernels, before anything is written in place
            return self._run(tensors, arguments, found, holders, shown)

    def _run(self, tensors: list[Tensor], arguments: list[UOp], found: list[Tensor], holders: list[Any],
             shown: dict[UOp, UOp]) -> Any:
        """Run the kernels, and leave what the function leaves. `shown` are the buffers that weights had before."""
        if self.replay.run() or self.verifies:
            self._verify(arguments, found)
        if self.in_place.disturbed or self.in_place.counted:
            self.in_place.end(found, self.seen, self.known)
        bases: dict[UOp, UOp] = {}
        if self.has_views:
            bases = {**{r.symbol: r.seen_as_in_trace() for r in self.results}, **shown,
                     **dict(zip(self.inputs, arguments))}
        return self._leave(tensors, found, holders, bases)

    def _verify(self, arguments: list[UOp], found: list[Tensor]) -> None:
        """Raise if the run met an index out of range, or (under SANITIZE) made a NaN, naming it."""
        present = {**dict(zip(self.inputs, arguments)),
                   **{w.symbol: w.source.nodes(found)[0].base for w in self.weights},
                   **{row.symbol: row.node for row in self.in_place.rows if row.node is not None},
                   **{r.symbol: r.seen_as_in_trace() for r in self.results}}
        for flag in self.flags:
            flag.verify(lambda nodes: computed_bytes([substituted(node, present, self.names) for node in nodes],
                                                      Device.DEFAULT))

    def _leave(self, tensors: list[Tensor], found: list[Tensor], holders: list[Any], bases: dict[UOp, UOp]) -> Any:
        """Bind what the function binds; its results in the form it returned them. `bases` are the buffers of this call,
        where views of them are left."""
        for number, result, left in self.values:
            tensor = found[number]
            if result is not None and not is_shared(tensor):
                result.give_to(tensor)
            else:
                assign_node(tensor, self._now(left, bases) if result is None else result.memory.node)
        for number, result, weight in self.expected:
            self.seen[number] = node = result.memory.node
            self.known.add(id(node))
            if weight is not None:
                weight.node = node
                self.replay.bind(weight.symbol, node.arg.address)
        for out in self.others:
            self._leave_one(out, tensors, found, bases)
        results = []        # all of them are there before a name is bound, which may have held one given as itself
        for given, make, result, view in self.given:
            if result is not None:
                made = make(result.memory.node, result.memory.leaves)
                if given.requires_grad is not None:
                    made.requires_grad = given.requires_grad
            elif view is not None:
                made = given.kind(self._now(view, bases), requires_grad=given.requires_grad)
            else:
                made = given.itself(tensors, found)
            results.append(made)
        for (binding, form), holder in zip(self.bound, holders):
            binding.put(holder, form.filled(results))
        for (binding, by), holder in zip(self.raised, holders[len(self.bound):]):
            binding.put(holder, binding.get(holder, binding.name) + by)
        return results[self.returned.numbers[0]] if self.returned.single else self.returned.filled(results)

    def _leave_one(self, out: Outcome, tensors: list[Tensor], found: list[Tensor], bases: dict[UOp, UOp]) -> None:
        """Leave a gradient on a tensor in sight, or change an argument."""
        node = None if out.node is None else self._now(out.node, bases)
        tensor = found[out.number] if out.kind == "gradient" else tensors[out.number]
        if node is None:
            tensor.grad = None
        elif out.kind == "argument":
            assign_node(tensor, node)
        elif out.kind == "gradient":
            tensor.grad = computed_from(tensor, node)
        else:
            add_gradient(tensor, computed_from(tensor, node))

    def _now(self, view: UOp, bases: dict[UOp, UOp]) -> UOp:
        """A view of the trace over the memory of this call."""
        return moved(view, bases.get(view.base, view.base), self.names)


def _nodes_before(traced: TracedCall, source: BufferSource) -> list[UOp]:
    """What the tensors of a source stood for when the call began."""
    grads = [grad for grad in (traced.before[i].grad for i in source.owners) if grad is not None]
    return [traced.before[i].node for i in source.numbers] or [grad.uop for grad in grads][:1]
