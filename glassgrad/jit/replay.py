"""Run a traced call again. In: `TracedCall`. Out: `CapturedCall`, called with tensors.

A replay writes a few addresses and makes one foreign call; around it, Python compares what may have changed since the
trace (guards.py), chooses the memory of the results (result_memory.py) and binds what the function binds. What follows
from the trace alone is worked out when the capture is made, and a call only compares and writes.
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
from glassgrad.engine.changing_sizes.size_families import FIXED_AFTER
from glassgrad.engine.replay import Replay
from glassgrad.engine.schedule_key import scalar_bytes
from glassgrad.jit.guards import Stale, compiled
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
    """A trace as a replay: what to compare before it, what to bind after it.

    Tensors are numbered, in this order: those in sight, those out of sight and the gradients that the call uses (up to
    here its `own`), the arguments that it does not see by itself, and those that it makes. `found` is the list of all
    of them at a call."""

    def __init__(self, traced: TracedCall):
        flags, late = traced.trace.flags, _late_checks(traced.trace)
        tensors = self._find_tensors(traced)
        numbers = {id(t): i for i, t in enumerate([*tensors, *traced.given])}
        symbols, self.outcomes = self._make_symbols(traced, late, numbers)
        self._find_weights(traced, symbols, numbers)
        put = self._find_assigned(traced, numbers)
        self.replay = Replay(traced.trace, symbols, traced.renewed)
        if flags and not late and self.replay.at_once:
            self.replay.check(flags)
        self._place_results(traced, symbols)
        self._sort_outcomes(traced.given)
        self._watch(traced, tensors)
        self._find_numbers(traced)
        self._find_checks(flags, late, symbols)
        bound = [(b, nest) for b, nest in put
                 if b.way is not GRADIENT or numbers[id(b.holder)] not in self.gradients]
        self.check = compiled(traced.walk, tensors, self.own, list(self.gradients), bound)
        self.bound = [(b.way, b.name, nest) for b, nest in bound]      # what each call puts where; not the holders
        self.settings: State | None = None        # those that the replay was prepared under
        # the kernels for all sizes that it runs, and how often it may run them before the size gets kernels of its own
        self.served = [record.served for record in traced.trace.records if record.served is not None]
        self.runs_left = FIXED_AFTER

    def _find_tensors(self, traced: TracedCall) -> list[Tensor]:
        """The tensors that were there before the call, by number. Each call finds what stands for them by then."""
        walk, (hidden, gradients) = traced.walk, traced.used()
        for i, tensor in enumerate(traced.handed):
            walk.include(PART, None, f"arguments[{i}]", tensor, "which of its own tensors it is handed")
        for tensor in hidden:
            walk.include(WEAKLY, None, weakref.ref(tensor), tensor, "a tensor out of sight")
        for tensor, grad in gradients:
            walk.include(GRADIENT, tensor, "", grad, "the gradient of a tensor")
        own = dict.fromkeys([*walk.tensors, *hidden, *[grad for _, grad in gradients]])      # some may be in sight
        tensors = [*own, *[row.stand_in for row in traced.arguments]]
        self.in_sight, self.own, self.before = len(walk.tensors), len(own), len(tensors)
        owners = {id(tensor) for tensor, _ in gradients}
        self.summed = {i for i, t in enumerate(tensors) if id(t) in owners}        # their gradients are added to
        self.unmade, self.itself = [None] * len(traced.given), traced.itself
        return tensors

    def _make_symbols(self, traced: TracedCall, late: Collection[UOp],
                      numbers: Mapping[int, int]) -> tuple[dict[UOp, UOp], dict[int, UOp]]:
        """Make a symbol for each buffer that is bound at each call: of arguments, sources, results and `late` checks.
        Return them, and the values that the call leaves over them, by the tensors' numbers."""
        outcomes = traced.outcomes()
        arguments = [traced.reached[id(row.stand_in)].node.base for row in traced.arguments]
        # where an outcome is only a reshape of a result, that gets its shape: then the tensor's node is the BUFFER
        shapes = {node.base: node.shape for node in reversed(outcomes.values())
                  if node.base in traced.fresh and is_whole(node) and not node.symbolic}
        symbols = {b: symbol_of(b, shapes.get(b, b.shape))
                   for b in dict.fromkeys((*arguments, *traced.sources, *traced.fresh, *late))}
        as_traced = {b: symbol.reshape(b.shape) for b, symbol in symbols.items()}
        self.flags = [flag.over(lambda node: substituted(node, as_traced, {})) for flag in traced.trace.flags]
        self.inputs = [symbols[node] for node in arguments]
        self.addresses = [0] * len(arguments)              # of the arguments at the last call
        self.passing = [row.passes_gradients for row in traced.arguments]
        return symbols, {
            numbers[id(tensor)]: symbols[node.base].reshape(node.shape) if is_whole(node) and node.base in symbols else
            substituted(node, as_traced, {}) for tensor, node in outcomes.items()}

    def _find_weights(self, traced: TracedCall, symbols: Mapping[UOp, UOp], numbers: Mapping[int, int]) -> None:
        """Find the tensors that hold each buffer that is read and is no argument's."""
        self.weights = [Weight(symbols[node], rows, numbers, node in traced.below_lazy)
                        for node, rows in traced.sources.items() if symbols[node] not in self.inputs]
        # by the numbers of the tensors: a weight is compared only if one of them has another node
        self.by_number = {number: weight for weight in self.weights for number in weight.holders}
        self.symbolic = [weight for weight in self.weights if any(view.symbolic for view in weight.views)]

    def _find_assigned(self, traced: TracedCall, numbers: Mapping[int, int]) -> list[tuple[Binding, Any]]:
        """Find what each call assigns, returns and puts somewhere, with numbers for tensors. The last is returned."""
        self.replaced = [numbers[id(t)] for t in traced.replaced]
        self.written = {numbers[id(t)] for t in traced.changed}.difference(self.replaced)
        self.returned, *nests = [mapped(nest, lambda t: TensorNumber(numbers[id(t)]))
                                 for nest in (traced.form, *[value for _, value in traced.bound])]
        put = [(b, nest) for (b, _), nest in zip(traced.bound, nests)]
        graded = [(numbers[id(b.holder)], nest) for b, nest in put if b.way is GRADIENT and nest is not None]
        # where the next call finds the tensors that this one puts somewhere: (number of the one before, its number)
        pairs = [pair for b, value in traced.bound for pair in zip(tensors_of(b.value), tensors_of(value))]
        self.put = [(numbers[id(was)], numbers[id(t)]) for was, t in pairs if numbers.get(id(was), self.own) < self.own]
        left = [numbers[id(t)] for t in traced.left]
        # gradients that the call makes and leaves nowhere else, with the numbers of their tensors
        self.only_gradients = {grad: number for number, grad in graded if left.count(grad) == 1 and number < self.own}
        return put

    def _place_results(self, traced: TracedCall, symbols: Mapping[UOp, UOp]) -> None:
        """Choose which results are written in place."""
        bases = [node.base for node in self.outcomes.values()]
        in_place = self._find_in_place({symbols[b] for b in traced.fresh if bases.count(symbols[b]) == 1}, {*bases})
        self.in_place = ResultsInPlace(self.replay, in_place)
        self.gradients = {row.number: row.gradient for row in in_place if row.weight is None}
        stays = {row.symbol for row in in_place}
        self.results = [Result(symbols[b], self.replay, b in traced.cut_off)
                        for b in traced.fresh if symbols[b] not in stays]
        bound: list[Any] = [*self.weights, *self.results, *in_place]
        self.bound_to = {each.symbol: each for each in bound}

    def _find_in_place(self, fresh: Set[UOp], bases: Set[UOp]) -> list[ResultInPlace]:
        """Find the results that are written in place, and take them out of `outcomes`: values of weights, and gradients
        that are not added to earlier ones. Where a whole value is overwritten, that is after all checks of the run.
        `fresh` are the symbols of new values that one outcome has; a weight among all `bases` has a view, and keeps its
        value."""
        whole = self.replay.at_once
        replaced = {number for number, _ in self.put}
        found: dict[int, ResultInPlace] = {}
        for number, view in [(number, node) for number, node in self.outcomes.items() if node.base in fresh]:
            weight, part = self.by_number.get(number), self.replay.updates.get(view)
            owner = self.only_gradients.get(number)
            if weight is not None and weight.may_move([number]) and weight.symbol not in bases \
                    and weight.node.op is o.BUFFER and same_view(view, weight.node) and number not in replaced \
                    and (part.source is weight.symbol if part is not None else whole and self.replay.waits(view)
                         and self.replay.rewrites(weight.symbol, view)):
                found[number] = ResultInPlace(view, number, weight, view, part)
            elif owner is not None and whole and not view.symbolic and owner not in self.summed \
                    and self.replay.waits(view.base):
                found[number] = ResultInPlace(view.base, owner, None, view)
        for number in found:
            del self.outcomes[number]
        self.replay.stays([row.symbol for row in found.values()])
        return list(found.values())

    def _sort_outcomes(self, given: list[Tensor]) -> None:
        """Sort the outcomes by kind, each with the `Result` whose whole buffer it is, if any. `given` are the tensors
        that a call makes."""
        whole = {result.symbol: result for result in self.results}
        values = {number: (whole.get(node), node) for number, node in self.outcomes.items()}
        made = {number: (result_maker(class_of_results(t)) if number in values and values[number][0] else view_maker(t),
                         wants_gradient(t)) for number, t in enumerate(given, self.before)}
        # what each call leaves: the number of the tensor, its value, and how it is made, if the call makes it
        self.left = [(number, *value, *made.get(number, (None, None))) for number, value in values.items()]
        self.viewed = {node.base for node in self.outcomes.values() if node not in whole}
        # what the next call will find in the tensors in sight: their values, or those of tensors put in their place
        self.expected: list[tuple[int, Result, Weight | None]] = []
        places = [*[(number, number) for number in values if number < self.own], *self.put]
        following = {number: values[left][0] for number, left in places if left in values}
        for number, result in following.items():
            weight = self.by_number.get(number)
            others = [other for other, found in following.items() if found is result]
            if result is not None and (weight is None or weight.may_move(others) and all(
                    same_view(result.symbol, view) for view in weight.views)):
                self.expected.append((number, result, weight))

    def _watch(self, traced: TracedCall, tensors: Sequence[Tensor]) -> None:
        """Record what each call compares: the tensors' nodes, which are lazy, and which have a gradient already."""
        found = [traced.reached[id(t)] for t in tensors]
        rows = found[:self.own]
        lazy, self.sharing = {id(row.tensor) for row in traced.lazy_read}, traced.sharing
        self.lazy = {i for i, row in enumerate(rows) if id(row.tensor) in lazy}
        # the tensors' nodes, and the gradients that the last call left in place
        self.seen: list[Any] = [*[row.node for row in rows], *self.gradients.values()]
        # whether gradients would flow on from each
        self.in_sight_passing = [passes_gradients(row.tensor, row.node) for row in rows]
        asked = {i: row for i, row in enumerate(found) if wants_gradient(row.tensor) or row.grad is not row.tensor.grad}
        # those whose gradient is written in place, so that it is there as long as it is the one that the last call left
        self.graded = [i for i, row in asked.items() if i in self.gradients and row.grad is not None]
        for i in asked.keys() - {*self.graded, *self.summed}:
            had = asked[i].grad is not None
            traced.walk.include(HAS_GRADIENT, asked[i].tensor, "", had, "whether a tensor has a gradient")

    def _find_numbers(self, traced: TracedCall) -> None:
        """Find the scalars that each call writes for the kernels: cells (some count random streams) and lengths."""
        first, last = traced.streams
        self.drawn = last - first
        drawn: dict[Any, int] = {cell: cell.value - first for cell in self.replay.streams if cell.value > first}
        self.numbers = [(*row, drawn.get(row[0], 0)) for row in self.replay.numbers]
        if drawn:
            traced.walk.include(PART, None, "", streams, "")
            traced.walk.include(ATTRIBUTE, streams, "seed", traced.seed, "the random seed")
        self.symbols = traced.symbols             # the variables that arguments bring, as they were in the trace
        self.answers = list(traced.trace.answers)     # comparisons of them, with their outcomes
        self.names: dict[Any, Any] = {}           # the variables of this call in their place

    def _find_checks(self, flags: list[RunCheck], late: dict[UOp, RunCheck], symbols: Mapping[UOp, UOp]) -> None:
        """Find the checks of each run: those that it waits for, and those (`late`) that it does not."""
        self.late = [(symbols[node], flag.numbers, self.flags[flags.index(flag)]) for node, flag in late.items()]
        below = toposort([node for _, _, flag in self.late for node in flag.nodes])
        self.checked = [node for node in below if node.op is o.BUFFER]
        self.verifies = any(flag.reads_each_run or not self.replay.ends_early for flag in flags)

    # -- does it fit? --------------------------------------------------------------------------------------------------
    def _compare(self, found: list[Tensor]) -> None:
        """Raise if a tensor's node, or a gradient in place, is not what the last call left, and no value that the
        trace could have had there."""
        if sharing(found[:self.in_sight]) != self.sharing:
            raise Stale("which of its tensors are views of others is no longer the same")
        if not all(has_gradient(found[number]) for number in self.graded):
            raise Stale("a gradient was reset")
        for number, tensor in enumerate(found[:self.own]):
            then = self.seen[number]
            if tensor.uop is then:
                continue
            weight = self.by_number.get(number)
            if number in self.lazy or tensor.dtype is not then.dtype or weight is None and not then.symbolic and (
                    tensor.shape != then.shape or tensor.device != (then.device or tensor.device)):
                raise Stale(f"a tensor of shape {then.shape} it uses was replaced by something else")
            if passes_gradients(tensor, tensor.uop) is not self.in_sight_passing[number]:
                raise Stale("which of its tensors are computed from what is trained is no longer the same")
            if weight is not None:
                self._follow(weight, found)
            self.seen[number] = tensor.uop

    def _follow(self, weight: Weight, found: list[Tensor]) -> None:
        """Bind a weight to the buffer that its tensors hold now; raise `Stale` unless they are the same views of it."""
        nodes = weight.nodes(found)
        now = nodes[0]
        views = [substituted(view, {}, self.names) if view.symbolic else view for view in weight.views]
        if any(node.base is not now.base for node in nodes) or not all(map(same_view, nodes, views)) \
                or weight.pinned and now.base is not weight.node.base:
            raise Stale(f"a tensor of shape {now.shape} it uses was replaced by something else")
        weight.node = now
        self.replay.bind(weight.symbol, now.base.arg.address)

    def _take_symbols(self, symbols: Collection[Symbol]) -> None:
        """Take the variables of this call; raise `Stale` if a comparison of them has another outcome by now."""
        self.names = dict(zip(self.symbols, symbols))
        for answer in self.answers:
            if not answer.holds(lambda symbol: value_of(self.names[symbol])):
                raise Stale(f"{answer} is no longer {'true' if answer.answer else 'false'}")

    # -- replaying -----------------------------------------------------------------------------------------------------
    def call(self, instance: Any, tensors: list[Tensor], symbols: Collection[Symbol], settings: State) -> Any:
        """Everything the function does, for these arguments; raises `Stale` if it may do something else by now.
        `symbols` are the variables with their values, in the order of the arguments."""
        found, steady, holders = self.check(instance, tensors, self.seen)
        if self.served:
            self._count_run()
        if symbols:
            self._take_symbols(symbols)
        if not steady:
            self._compare(found)
        if self.own and len({*found}) < len(found):            # arguments alone are told apart by the form
            raise Stale("two of its tensors are one")
        for weight in self.symbolic:
            self._follow(weight, found)
        if settings is not self.settings:
            self.replay.prepare()
            self.settings = settings              # last, here and below: a Ctrl-C may come between two lines
        self._bind_arguments(found)
        for result in self.results:
            result.begin()
        in_place = self.in_place
        if in_place.rows and (not steady or in_place.disturbed or [*map(len, in_place.readers)] != in_place.lengths):
            in_place.begin(found)
        if self.numbers or self.drawn:
            self._write_numbers()
        if not self.replay.is_long:
            return self._run(found, holders)
        with interrupts_deferred():               # until a kernel ends before which nothing was written in place
            return self._run(found, holders)

    def _count_run(self) -> None:
        """Raise `Stale` where this size came so often that kernels of its own pay."""
        self.runs_left -= 1
        if self.runs_left < 0:
            for served in self.served:
                served.general.leave(served.values, f"replayed {FIXED_AFTER}")
            raise Stale(f"it was replayed {FIXED_AFTER} times with kernels for all sizes; its own ones pay by now")

    def _write_numbers(self) -> None:
        """Write the scalars of this call for the kernels, and count the random streams that it draws from."""
        for number, dtype, address, stream in self.numbers:
            value = (streams.count + stream) & 0xFFFFFFFF if stream else self.names.get(number, number).value
            ctypes.memmove(address, scalar_bytes(value, dtype), 8)
        streams.count += self.drawn

    def _bind_arguments(self, found: list[Tensor]) -> None:
        """Bind the launches to the addresses of the arguments that are not its own."""
        addresses, written = self.addresses, self.written
        for i, passing in enumerate(self.passing):
            tensor = found[self.own + i]
            node = tensor.uop
            if written and storage_of(tensor) is not None:
                changed = {id(found[number]) for number in written}
                if shares_with(tensor, changed) or id(tensor) in changed and is_view(tensor):
                    raise Stale("it changes a tensor that it is handed a view of")
            if passes_gradients(tensor, node) is not passing:
                raise Stale("which arguments are computed from what is trained is no longer the same")
            buffer = node.arg if node.op is _BUFFER else as_buffer(tensor).arg
            if buffer.address != addresses[i]:
                self.replay.bind(self.inputs[i], buffer.address)
                addresses[i] = buffer.address

    def _run(self, found: list[Any], holders: list[Any]) -> Any:
        """Run the kernels, assign what the function assigns, and return its results."""
        if self.late:
            self._run_unwaited(found)
        elif self.replay.run() or self.verifies:
            self._verify(found)
        bases = self._bases(found, self.viewed) if self.viewed else {}
        for number in self.replaced:
            leave(found[number])
        if self.in_place.disturbed or self.in_place.counted:
            self.in_place.end(found, self.seen)
        found += self.unmade
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

    def _bases(self, found: list[Tensor], symbols: Collection[UOp]) -> dict[UOp, UOp]:
        """The buffers of this call for some symbols."""
        inputs = zip(self.inputs, map(as_buffer, found[self.own:]))
        return {**{symbol: node.reshape(symbol.shape) for symbol, node in inputs if symbol in symbols},
                **{symbol: self.bound_to[symbol].node.base for symbol in symbols if symbol in self.bound_to}}

    def _verify(self, found: list[Tensor]) -> None:
        """Raise if the run met an index out of range, or (under SANITIZE) made a NaN, naming it."""
        present = self._bases(found, [*self.inputs, *self.bound_to])
        for flag in self.flags:
            flag.verify(partial(_values, present, self.names))

    def _run_unwaited(self, found: list[Tensor]) -> None:
        """Run the kernels, and let checks raise later. What they read lives until then; weights may have new values."""
        taken = [numbers.take() for _, numbers, _ in self.late]
        for number, (symbol, _, _) in zip(taken, self.late):
            self.replay.bind(symbol, ctypes.addressof(number))
        self.replay.run()
        read = partial(_values, self._bases(found, self.checked), self.names)
        for number, (_, numbers, flag) in zip(taken, self.late):
            numbers.expect(number, partial(flag.settle, read=read, late=True))


def _values(present: Mapping[UOp, UOp], names: SymbolNames, nodes: Sequence[UOp]) -> list[Any]:
    """The values of a trace's nodes over the buffers of a call; an empty list if a buffer is missing."""
    if not all(n in present or n.arg.address for n in toposort(nodes) if n.op is o.BUFFER):
        return []
    return computed_bytes([substituted(node, present, names) for node in nodes], Device.DEFAULT)


def _late_checks(trace: Trace) -> dict[UOp, RunCheck]:
    """The checks that a run does not wait for, by the results that they read: all of them, or none."""
    made = {r.arg: r for record in trace.records for r in record.results}
    late = {made[flag.buffer]: flag for flag in trace.flags if flag.numbers is not None and flag.buffer in made}
    return late if len(late) == len({id(flag.buffer) for flag in trace.flags}) else {}
