"""Replay a traced call. In: `TracedCall`. Out: `CapturedCall`, which is called with tensors and runs the recorded
kernels.

Everything that follows from the trace alone is computed once, when the capture is made. A call then only compares what
may have changed since the trace (guards.py), chooses memory for the results (result_memory.py), writes the addresses of
its tensors into the recorded launches, runs these by one foreign call, and binds what the function binds.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Collection, Mapping, Sequence, Set
from functools import partial
from typing import Any

from glassgrad.base.interrupts import interrupts_deferred
from glassgrad.base.settings import State
from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.graph.symbolic import Symbol, value_of
from glassgrad.engine.capture import RunCheck, Trace
from glassgrad.engine.changing_sizes.general_graph import FIXED_AFTER
from glassgrad.engine.replay import Replay
from glassgrad.engine.schedule_key import scalar_bytes
from glassgrad.jit.guards import Stale, compile_guards
from glassgrad.jit.plain_values import (ATTRIBUTE, GRADIENT, HAS_GRADIENT, PART, WEAKLY, Binding, Increment,
                                        SymbolNames, TensorNumber, has_gradient, mapped, tensors_of)
from glassgrad.jit.result_memory import (Result, ResultInPlace, ResultsInPlace, Weight, is_whole, same_view,
                                         substituted, symbol_of)
from glassgrad.jit.trace import TracedCall, as_buffer, passes_gradients
from glassgrad.runtime.devices import Device
from glassgrad.tensor.formulas.random_numbers import streams
from glassgrad.tensor.jit_access import assign_node, result_maker, view_maker, wants_gradient
from glassgrad.tensor.memory.storage import is_shared, is_view, leave, shares_with, sharing, storage_of
from glassgrad.tensor.realize_and_read import computed_bytes
from glassgrad.tensor.tensor import Tensor, class_of_results

_BUFFER = o.BUFFER


class CapturedCall:
    """A trace that can be replayed: what to compare before the launches, and what to bind after them.

    Tensors are identified by number. The order is: tensors that the function can reach by itself, tensors that it
    cannot reach but uses, gradients that it uses (these three kinds are the first `own` numbers), arguments that it
    does not reach by itself, and tensors that the call makes. In a call, `found` is the list of all these tensors by
    number."""

    def __init__(self, traced: TracedCall):
        flags, late = traced.trace.flags, _late_checks(traced.trace)
        tensors = self._find_tensors(traced)
        numbers = {id(t): i for i, t in enumerate([*tensors, *traced.new_tensors])}
        symbols, self.outcomes = self._make_symbols(traced, late, numbers)
        self._find_weights(traced, symbols, numbers)
        put = self._find_assigned(traced, numbers)
        self.replay = Replay(traced.trace, symbols, traced.updated_buffers)
        if flags and not late and self.replay.is_one_call:
            self.replay.check(flags)
        self._place_results(traced, symbols)
        self._sort_outcomes(traced.new_tensors)
        self._record_state(traced, tensors)
        self._find_scalars(traced)
        self._find_checks(flags, late, symbols)
        bound = [(b, nest) for b, nest in put
                 if b.way is not GRADIENT or numbers[id(b.holder)] not in self.gradients]
        self.check = compile_guards(traced.walk, tensors, self.own, list(self.gradients), bound)
        self.bound = [(b.way, b.name, nest) for b, nest in bound]      # what each call puts where; not the holders
        self.settings: State | None = None        # those that the replay was prepared under
        # the kernels for all sizes that it runs, and how often it may run them before the size gets kernels of its own
        self.served = [record.served for record in traced.trace.records if record.served is not None]
        self.runs_left = FIXED_AFTER

    def _find_tensors(self, traced: TracedCall) -> list[Tensor]:
        """List the tensors that existed before the call, by number. The guards find the current ones at each call."""
        walk, (hidden, gradients) = traced.walk, traced.needed_tensors()
        for i, tensor in enumerate(traced.tensor_arguments):
            walk.include(PART, None, f"arguments[{i}]", tensor, "which of its own tensors it is passed")
        for tensor in hidden:
            walk.include(WEAKLY, None, weakref.ref(tensor), tensor, "a tensor that the function cannot reach")
        for tensor, grad in gradients:
            walk.include(GRADIENT, tensor, "", grad, "the gradient of a tensor")
        own = dict.fromkeys([*walk.tensors, *hidden, *[grad for _, grad in gradients]])      # each once
        tensors = [*own, *[row.stand_in for row in traced.arguments]]
        self.reachable, self.own, self.before = len(walk.tensors), len(own), len(tensors)
        owners = {id(tensor) for tensor, _ in gradients}
        self.accumulated = {i for i, t in enumerate(tensors) if id(t) in owners}        # their gradients are added to
        self.placeholders, self.argument_paths = [None] * len(traced.new_tensors), traced.argument_paths
        return tensors

    def _make_symbols(self, traced: TracedCall, late: Collection[UOp],
                      numbers: Mapping[int, int]) -> tuple[dict[UOp, UOp], dict[int, UOp]]:
        """Make a symbol (a BUFFER without memory) for each buffer that a call binds: of arguments, of tensors that it
        reads, of results and of `late` checks. Return the symbols by buffer, and by tensor number the nodes, over
        symbols, that the call leaves in its tensors."""
        outcomes = traced.outcomes()
        arguments = [traced.reached[id(row.stand_in)].node.base for row in traced.arguments]
        # where a tensor is left as a reshape of a whole result, the result's buffer gets the tensor's shape: then the
        # tensor's node is the BUFFER itself
        shapes = {node.base: node.shape for node in reversed(outcomes.values())
                  if node.base in traced.result_buffers and is_whole(node) and not node.symbolic}
        symbols = {b: symbol_of(b, shapes.get(b, b.shape))
                   for b in dict.fromkeys((*arguments, *traced.sources, *traced.result_buffers, *late))}
        as_traced = {b: symbol.reshape(b.shape) for b, symbol in symbols.items()}
        self.flags = [flag.over(lambda node: substituted(node, as_traced, {})) for flag in traced.trace.flags]
        # the symbols of the arguments, and their addresses at the last call
        self.inputs, self.addresses = [symbols[node] for node in arguments], [0] * len(arguments)
        self.arguments_pass_gradients = [row.passes_gradients for row in traced.arguments]
        return symbols, {
            numbers[id(tensor)]: symbols[node.base].reshape(node.shape) if is_whole(node) and node.base in symbols else
            substituted(node, as_traced, {}) for tensor, node in outcomes.items()}

    def _find_weights(self, traced: TracedCall, symbols: Mapping[UOp, UOp], numbers: Mapping[int, int]) -> None:
        """Make a `Weight` for each buffer that the call reads, except those of arguments, with the tensors that hold
        it."""
        self.weights = [Weight(symbols[node], rows, numbers, node in traced.below_lazy)
                        for node, rows in traced.sources.items() if symbols[node] not in self.inputs]
        # by tensor number: a weight is compared only if the node of one of its tensors has changed
        self.by_number = {number: weight for weight in self.weights for number in weight.holders}
        self.symbolic = [weight for weight in self.weights if any(view.symbolic for view in weight.views)]

    def _find_assigned(self, traced: TracedCall, numbers: Mapping[int, int]) -> list[tuple[Binding, Any]]:
        """Find which tensors the call assigns, what it returns and what it binds to names, each with tensors as
        numbers. Return the last: a binding and its new value, for each name."""
        self.replaced = [numbers[id(t)] for t in traced.replaced]
        self.written = {numbers[id(t)] for t in traced.changed}.difference(self.replaced)
        self.returned, *nests = [mapped(nest, lambda t: TensorNumber(numbers[id(t)]))
                                 for nest in (traced.form, *[value for _, value in traced.bound])]
        put = [(b, nest) for (b, _), nest in zip(traced.bound, nests)]
        graded = [(numbers[id(b.holder)], nest) for b, nest in put if b.way is GRADIENT and nest is not None]
        # (number of the tensor that a name was bound to, number of the tensor that it is bound to now): the next call
        # finds the second tensor under the first number
        pairs = [pair for b, value in traced.bound for pair in zip(tensors_of(b.value), tensors_of(value))]
        self.put = [(numbers[id(was)], numbers[id(t)]) for was, t in pairs if numbers.get(id(was), self.own) < self.own]
        left = [numbers[id(t)] for t in traced.left]
        # gradients that the call makes and that only their tensor refers to: {number of the gradient: of its tensor}
        self.only_gradients = {grad: number for number, grad in graded if left.count(grad) == 1 and number < self.own}
        return put

    def _place_results(self, traced: TracedCall, symbols: Mapping[UOp, UOp]) -> None:
        """Choose which results are written in place and which get separate memory."""
        bases = [node.base for node in self.outcomes.values()]
        of_one_tensor = {symbols[b] for b in traced.result_buffers if bases.count(symbols[b]) == 1}
        in_place = self._find_in_place(of_one_tensor, {*bases})
        self.in_place = ResultsInPlace(self.replay, in_place)
        self.gradients = {row.number: row.gradient for row in in_place if row.weight is None}
        stays = {row.symbol for row in in_place}
        self.results = [Result(symbols[b], self.replay, b in traced.cut_off)
                        for b in traced.result_buffers if symbols[b] not in stays]
        bound: list[Any] = [*self.weights, *self.results, *in_place]
        self.bound_to = {each.symbol: each for each in bound}

    def _find_in_place(self, of_one_tensor: Set[UOp], bases: Set[UOp]) -> list[ResultInPlace]:
        """Find the results that are written in place, and take them out of `outcomes`: new values of weights, and
        gradients that are not added to earlier ones. A result that overwrites a whole value must be written after all
        checks of the run, because a failed call leaves old values as they were.

        `of_one_tensor` are the symbols of new buffers that exactly one tensor is left with. `bases` are the base nodes
        of all outcomes: a weight among them keeps its memory, because the call leaves a view of its old value."""
        whole = self.replay.is_one_call
        replaced = {number for number, _ in self.put}
        found: dict[int, ResultInPlace] = {}
        for number, view in [(number, node) for number, node in self.outcomes.items() if node.base in of_one_tensor]:
            weight, part = self.by_number.get(number), self.replay.updates.get(view)
            owner = self.only_gradients.get(number)
            if weight is not None and weight.is_unread_without([number]) and weight.symbol not in bases \
                    and weight.node.op is o.BUFFER and same_view(view, weight.node) and number not in replaced \
                    and (part.source is weight.symbol if part is not None else whole
                         and self.replay.waits_for_checks(view) and self.replay.may_overwrite(weight.symbol, view)):
                found[number] = ResultInPlace(view, number, weight, view, part)
            elif owner is not None and whole and not view.symbolic and owner not in self.accumulated \
                    and self.replay.waits_for_checks(view.base):
                found[number] = ResultInPlace(view.base, owner, None, view)
        for number in found:
            del self.outcomes[number]
        self.replay.write_in_place([row.symbol for row in found.values()])
        return list(found.values())

    def _sort_outcomes(self, new_tensors: list[Tensor]) -> None:
        """Sort the tensors that the call leaves values in by how they get them, each with the `Result` whose whole
        buffer is that value, if there is one. `new_tensors` are those that a call makes."""
        whole = {result.symbol: result for result in self.results}
        values = {number: (whole.get(node), node) for number, node in self.outcomes.items()}
        made = {number: (result_maker(class_of_results(t)) if number in values and values[number][0] else view_maker(t),
                         wants_gradient(t)) for number, t in enumerate(new_tensors, self.before)}
        # a row for each tensor that gets a value: its number; the `Result` that is the value, or None; the node over
        # symbols; and, if the call makes the tensor, the function that makes it and its requires_grad
        self.left = [(number, *value, *made.get(number, (None, None))) for number, value in values.items()]
        self.viewed = {node.base for node in self.outcomes.values() if node not in whole}
        # what the next call finds under the numbers of the function's own tensors: (number, result, its weight or None)
        self.expected: list[tuple[int, Result, Weight | None]] = []
        places = [*[(number, number) for number in values if number < self.own], *self.put]
        following = {number: values[left][0] for number, left in places if left in values}
        for number, result in following.items():
            weight = self.by_number.get(number)
            others = [other for other, found in following.items() if found is result]
            if result is not None and (weight is None or weight.is_unread_without(others) and all(
                    same_view(result.symbol, view) for view in weight.views)):
                self.expected.append((number, result, weight))

    def _record_state(self, traced: TracedCall, tensors: Sequence[Tensor]) -> None:
        """Record what each call compares: the nodes of the tensors, which of them are lazy, and which already have a
        gradient."""
        found = [traced.reached[id(t)] for t in tensors]
        rows = found[:self.own]
        lazy, self.sharing = {id(row.tensor) for row in traced.lazy_read}, traced.sharing
        self.lazy = {i for i, row in enumerate(rows) if id(row.tensor) in lazy}
        # the tensors' nodes, and the gradients that the last call left in place
        self.seen: list[Any] = [*[row.node for row in rows], *self.gradients.values()]
        # for each, whether it is computed from a leaf with requires_grad=True, so that gradients would flow on
        self.own_pass_gradients = [passes_gradients(row.tensor, row.node) for row in rows]
        asked = {i: row for i, row in enumerate(found) if wants_gradient(row.tensor) or row.grad is not row.tensor.grad}
        # tensors that had a gradient, which is written in place: `_compare` raises if one of them was reset
        self.gradients_in_place = [i for i, row in asked.items() if i in self.gradients and row.grad is not None]
        for i in asked.keys() - {*self.gradients_in_place, *self.accumulated}:
            had = asked[i].grad is not None
            traced.walk.include(HAS_GRADIENT, asked[i].tensor, "", had, "whether a tensor has a gradient")

    def _find_scalars(self, traced: TracedCall) -> None:
        """Find the scalars that each call writes for the kernels: cells (some of them count random streams) and
        symbolic lengths."""
        first, last = traced.streams
        self.drawn = last - first
        drawn: dict[Any, int] = {cell: cell.value - first for cell in self.replay.streams if cell.value > first}
        self.scalars = [(*row, drawn.get(row[0], 0)) for row in self.replay.scalars]
        if drawn:
            traced.walk.include(PART, None, "", streams, "")
            traced.walk.include(ATTRIBUTE, streams, "seed", traced.seed, "the random seed")
        self.symbols = traced.symbols             # variables in the arguments' shapes, as they were in the trace
        self.comparisons = list(traced.trace.comparisons)     # of variables, by the function, with outcomes
        self.names: dict[Any, Any] = {}           # {variable of the trace: the same variable of this call}

    def _find_checks(self, flags: list[RunCheck], late: dict[UOp, RunCheck], symbols: Mapping[UOp, UOp]) -> None:
        """Find the checks of each run: those that the call waits for, and those (`late`) that raise at a later call."""
        self.late = [(symbols[node], flag.numbers, self.flags[flags.index(flag)]) for node, flag in late.items()]
        below = toposort([node for _, _, flag in self.late for node in flag.nodes])
        self.checked = [node for node in below if node.op is o.BUFFER]
        self.verifies = any(flag.reads_each_run or not self.replay.ends_early for flag in flags)

    # -- comparing with the trace --------------------------------------------------------------------------------------
    def _compare(self, found: list[Tensor]) -> None:
        """Raise `Stale` if a tensor's node, or a gradient that is written in place, is neither what the last call left
        nor a value that the tensor could have had in the trace."""
        if sharing(found[:self.reachable]) != self.sharing:
            raise Stale("which of its tensors are views of others is no longer the same")
        if not all(has_gradient(found[number]) for number in self.gradients_in_place):
            raise Stale("a gradient was reset")
        for number, tensor in enumerate(found[:self.own]):
            then = self.seen[number]
            if tensor.uop is then:
                continue
            weight = self.by_number.get(number)
            if number in self.lazy or tensor.dtype is not then.dtype or weight is None and not then.symbolic and (
                    tensor.shape != then.shape or tensor.device != (then.device or tensor.device)):
                raise Stale(f"a tensor of shape {then.shape} it uses was replaced by something else")
            if passes_gradients(tensor, tensor.uop) is not self.own_pass_gradients[number]:
                raise Stale("which of its tensors are computed from what is trained is no longer the same")
            if weight is not None:
                self._rebind_weight(weight, found)
            self.seen[number] = tensor.uop

    def _rebind_weight(self, weight: Weight, found: list[Tensor]) -> None:
        """Bind a weight to the buffer that its tensors hold now. Raise `Stale` unless they still are the same views of
        one buffer."""
        nodes = weight.nodes(found)
        now = nodes[0]
        views = [substituted(view, {}, self.names) if view.symbolic else view for view in weight.views]
        if any(node.base is not now.base for node in nodes) or not all(map(same_view, nodes, views)) \
                or weight.pinned and now.base is not weight.node.base:
            raise Stale(f"a tensor of shape {now.shape} it uses was replaced by something else")
        weight.node = now
        self.replay.bind(weight.symbol, now.base.arg.address)

    def _bind_variables(self, symbols: Collection[Symbol]) -> None:
        """Take the variables of this call. Raise `Stale` if a comparison of variables that the function made in the
        trace would have another outcome now."""
        self.names = dict(zip(self.symbols, symbols))
        for comparison in self.comparisons:
            if not comparison.holds(lambda symbol: value_of(self.names[symbol])):
                raise Stale(f"{comparison} is no longer {'true' if comparison.answer else 'false'}")

    # -- replaying -----------------------------------------------------------------------------------------------------
    def call(self, instance: Any, tensors: list[Tensor], symbols: Collection[Symbol], settings: State) -> Any:
        """Replay the call with these arguments; raise `Stale` if the function might do something else now. `symbols`
        are the bound variables in the order of the arguments."""
        found, steady, holders = self.check(instance, tensors, self.seen)
        if self.served:
            self._count_run()
        if symbols:
            self._bind_variables(symbols)
        if not steady:
            self._compare(found)
        if self.own and len({*found}) < len(found):            # equal arguments alone are part of the form, the key
            raise Stale("two of its tensors are one")
        for weight in self.symbolic:
            self._rebind_weight(weight, found)
        if settings is not self.settings:
            self.replay.prepare()
            self.settings = settings              # last, here and below: a Ctrl-C may come between two lines
        self._bind_arguments(found)
        for result in self.results:
            result.begin()
        in_place = self.in_place
        if in_place.rows and (not steady or in_place.disturbed or [*map(len, in_place.readers)] != in_place.lengths):
            in_place.begin(found)
        if self.scalars or self.drawn:
            self._write_scalars()
        if not self.replay.is_long:
            return self._run(found, holders)
        with interrupts_deferred():               # a Ctrl-C ends the run only while nothing is written in place yet
            return self._run(found, holders)

    def _count_run(self) -> None:
        """Count a replay with kernels for all sizes; raise `Stale` once this size came so often that compiling its own
        kernels pays."""
        self.runs_left -= 1
        if self.runs_left < 0:
            for served in self.served:
                served.general.give_own_kernels(served.values, f"replayed {FIXED_AFTER}")
            raise Stale(f"it was replayed {FIXED_AFTER} times with kernels for all sizes; its own ones pay by now")

    def _write_scalars(self) -> None:
        """Write the scalars of this call to where the kernels read them, and advance the count of random streams."""
        for number, dtype, address, stream in self.scalars:
            value = (streams.count + stream) & 0xFFFFFFFF if stream else self.names.get(number, number).value
            ctypes.memmove(address, scalar_bytes(value, dtype), 8)
        streams.count += self.drawn

    def _bind_arguments(self, found: list[Tensor]) -> None:
        """Write the addresses of the arguments into the launches. (Arguments that the function also reaches by itself
        are weights.)"""
        addresses, written = self.addresses, self.written
        for i, passing in enumerate(self.arguments_pass_gradients):
            tensor = found[self.own + i]
            node = tensor.uop
            if written and storage_of(tensor) is not None:
                changed = {id(found[number]) for number in written}
                if shares_with(tensor, changed) or id(tensor) in changed and is_view(tensor):
                    raise Stale("it changes a tensor that it is passed a view of")
            if passes_gradients(tensor, node) is not passing:
                raise Stale("which arguments are computed from what is trained is no longer the same")
            buffer = node.arg if node.op is _BUFFER else as_buffer(tensor).arg
            if buffer.address != addresses[i]:
                self.replay.bind(self.inputs[i], buffer.address)
                addresses[i] = buffer.address

    def _run(self, found: list[Any], holders: list[Any]) -> Any:
        """Run the kernels, assign and bind what the function assigns and binds, and return its results."""
        if self.late:
            self._run_without_waiting(found)
        elif self.replay.run() or self.verifies:
            self._verify(found)
        bases = self._buffers_by_symbol(found, self.viewed) if self.viewed else {}
        for number in self.replaced:
            leave(found[number])
        if self.in_place.disturbed or self.in_place.counted:
            self.in_place.end(found, self.seen)
        found += self.placeholders
        for number, result, view, make, requires_grad in self.left:
            node = substituted(view, bases, self.names) if result is None else result.node
            if make is not None:
                found[number] = made = make(node)
                if requires_grad is not None:
                    made.requires_grad = requires_grad
            elif result is None or is_shared(found[number]):
                assign_node(found[number], node)
            else:
                result.give_to(found[number])
        for number, result, weight in self.expected:
            node = result.node
            if weight is not None:
                self.replay.bind(weight.symbol, node.arg.address)
                weight.node = node
            self.seen[number] = node
        if holders:
            for holder, (way, name, nest) in zip(holders, self.bound):
                way.put(holder, name, way.read(holder, name) + nest.by if nest.__class__ is Increment else
                        mapped(nest, found.__getitem__, TensorNumber))
        nest = self.returned
        return found[nest] if nest.__class__ is TensorNumber else mapped(nest, found.__getitem__, TensorNumber)

    def _buffers_by_symbol(self, found: list[Tensor], symbols: Collection[UOp]) -> dict[UOp, UOp]:
        """Map symbols to the buffers that they stand for in this call."""
        inputs = zip(self.inputs, map(as_buffer, found[self.own:]))
        return {**{symbol: node.reshape(symbol.shape) for symbol, node in inputs if symbol in symbols},
                **{symbol: self.bound_to[symbol].node.base for symbol in symbols if symbol in self.bound_to}}

    def _verify(self, found: list[Tensor]) -> None:
        """Raise if the run met an index out of range or, under SANITIZE, made a NaN. The error names the operation."""
        present = self._buffers_by_symbol(found, [*self.inputs, *self.bound_to])
        for flag in self.flags:
            flag.verify(partial(_values, present, self.names))

    def _run_without_waiting(self, found: list[Tensor]) -> None:
        """Run the kernels without waiting for the checks, which raise at a later call. What the checks read is kept
        alive until then; weights may have new values by then."""
        taken = [numbers.take() for _, numbers, _ in self.late]
        for number, (symbol, _, _) in zip(taken, self.late):
            self.replay.bind(symbol, ctypes.addressof(number))
        self.replay.run()
        read = partial(_values, self._buffers_by_symbol(found, self.checked), self.names)
        for number, (_, numbers, flag) in zip(taken, self.late):
            numbers.expect(number, partial(flag.settle, read=read, late=True))


def _values(present: Mapping[UOp, UOp], names: SymbolNames, nodes: Sequence[UOp]) -> list[Any]:
    """Compute nodes of a trace over the buffers of a call; return an empty list if a buffer is missing."""
    if not all(n in present or n.arg.address for n in toposort(nodes) if n.op is o.BUFFER):
        return []
    return computed_bytes([substituted(node, present, names) for node in nodes], Device.DEFAULT)


def _late_checks(trace: Trace) -> dict[UOp, RunCheck]:
    """Return the checks whose outcome a run does not wait for, by the result they read: all checks of the trace, or
    none."""
    made = {r.arg: r for record in trace.records for r in record.results}
    late = {made[flag.buffer]: flag for flag in trace.flags if flag.numbers is not None and flag.buffer in made}
    return late if len(late) == len({id(flag.buffer) for flag in trace.flags}) else {}
