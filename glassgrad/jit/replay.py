"""Run a traced call again. In: `TracedCall`. Out: `CapturedCall`, called with tensors.

A replay writes a few addresses and makes one foreign call; around it, Python compares what may have changed since the
trace (guards.py), chooses the memory of the results (result_memory.py) and binds what the function binds. What follows
from the trace alone is worked out when the capture is made, and a call only compares and writes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from glassgrad.base.interrupts import interrupts_deferred
from glassgrad.base.settings import State
from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.graph.symbolic import Symbol, value_of
from glassgrad.engine.capture import RunCheck
from glassgrad.engine.replay import Replay
from glassgrad.engine.schedule_key import scalar_bytes
from glassgrad.jit.guards import Stale, compiled
from glassgrad.jit.plain_values import Increment, SymbolNames, TensorNumber, mapped, tensors_of
from glassgrad.jit.result_memory import (Result, ResultInPlace, ResultsInPlace, Weight, is_whole, moved, same_view,
                                         substituted, symbol_of)
from glassgrad.jit.trace import Outcome, ReachedTensor, TracedCall, as_buffer, leave_gradient, passes_gradients
from glassgrad.runtime.devices import Device
from glassgrad.tensor.autograd.gradient_leaves import RESET
from glassgrad.tensor.formulas.random_numbers import streams
from glassgrad.tensor.jit_access import assign_node, computed_from, result_maker, unread_gradient
from glassgrad.tensor.memory.storage import is_shared, is_view, leave, shares_with, sharing, storage_of
from glassgrad.tensor.realize_and_read import computed_bytes
from glassgrad.tensor.tensor import Tensor, class_of_results

_OTHERS_GIVEN = "which of its own tensors it is handed is no longer the same"


class CapturedCall:
    """A trace as a replay: what to compare before it, what to bind after it.

    Tensors are numbered, in this order: those in sight, those out of sight that the call uses, the arguments that the
    function does not see by itself, those that the call makes, and gradients of the others that it returns or puts
    somewhere. `found` is the list of all of them at a call."""

    def __init__(self, traced: TracedCall):
        outcomes = traced.outcomes()
        made = {r for rec in traced.trace.records for r in rec.results}
        fresh = [b for b in dict.fromkeys(out.node.base for out in outcomes) if b in made]
        sources, hidden = traced.sources, traced.out_of_sight()
        self.own = len(traced.walk.tensors) + len(hidden)         # the number of tensors that are not arguments
        rows = [traced.reached[id(t)] for t in (*traced.walk.tensors, *hidden, *traced.arguments)]
        numbers = {id(t): number for number, t in enumerate([*[row.tensor for row in rows], *traced.given])}
        self.own_gradients = [numbers[id(t)] for t in traced.own_gradients.values()]
        numbers |= {key: len(numbers) + i for i, key in enumerate(traced.own_gradients)}
        # tensors whose earlier gradient is replaced: all in sight, whose trace read it if it was added to
        self.resets = {*range(self.own), *[numbers[id(t)] for t in traced.arguments if traced.resets_gradient(t)]}
        arguments = [row.node.base for row in rows[self.own:]]
        flags = traced.trace.flags
        # checks that a run does not wait for: all of them, or none
        late = {r: flag for flag in flags for r in made if r.arg is flag.buffer and flag.numbers is not None}
        if len(late) < len({id(flag.buffer) for flag in flags}):
            late = {}
        # where an outcome is only a reshape of a result, that gets its shape: then the tensor's node is the BUFFER
        shapes = {out.node.base: out.node.shape for out in reversed(outcomes)
                  if out.node.base in fresh and is_whole(out.node) and not out.node.symbolic}
        symbols = {b: symbol_of(b, shapes.get(b, b.shape))
                   for b in dict.fromkeys((*arguments, *sources, *fresh, *late))}
        as_traced = {b: symbol.reshape(b.shape) for b, symbol in symbols.items()}
        self.inputs = [symbols[node] for node in arguments]
        self.weights = [Weight(symbols[node], source, numbers, node in traced.below_lazy)
                        for node, source in sources.items() if node not in arguments]
        self.by_number = {w.number: w for w in self.weights if w.number is not None}
        self.shared = [w for w in self.weights if w.number is None]
        self.outcomes = [Outcome(out.kind, numbers[id(out.place)], symbols[out.node.base]
                                 if is_whole(out.node) and out.node.shape == shapes.get(out.node.base) else
                                 substituted(out.node, as_traced, {})) for out in outcomes]
        self.reset = [numbers[id(t)] for t, grad in traced.grads if grad is None]       # gradients left at None
        bases = [out.node.base for out in self.outcomes]
        self.shown = [w for w in self.weights if w.symbol in bases]      # results are views of these, unchanged
        self.replaced = [numbers[id(t)] for t in traced.replaced]
        self.written = {numbers[id(t)] for t in traced.changed}.difference(self.replaced)
        self.returned, *put = [mapped(nest, lambda t: TensorNumber(numbers[id(t)]))
                               for nest in (traced.form, *[value for _, value in traced.bound])]
        self.bound = [(b._replace(holder=None, value=None), nest) for (b, _), nest in zip(traced.bound, put)]
        # where the next call finds the tensors that this one puts somewhere: (number of the one before, its number)
        self.put = [(numbers[id(was)], numbers[id(t)]) for b, value in traced.bound
                    for was, t in zip(tensors_of(b.value), tensors_of(value))]
        renewed = {*self.reset, *[out.place for out in self.outcomes]}
        self.replay = Replay(traced.trace, symbols, {node for node, source in sources.items() if any(
            numbers[id(row.tensor)] in renewed for row in (*source.holders, *source.owners)) and node not in arguments})
        if flags and not late and self.replay.at_once:
            self.replay.check(flags)
        in_place = self._find_in_place([symbols[b] for b in fresh if bases.count(symbols[b]) == 1])
        self.in_place = ResultsInPlace(self.replay, in_place)
        stays = {row.symbol for row in in_place}
        self.results = [Result(symbols[b], self.outcomes, self.replay, b in traced.cut_off)
                        for b in fresh if symbols[b] not in stays]
        self._sort_outcomes(len(rows), traced.given)
        gradients = {row.place: row.gradient for row in in_place if row.weight is None}       # those that stay in place
        self._watch(traced, rows[:self.own], gradients)
        self.check = compiled(traced.walk, traced.bound, list(gradients), hidden)
        self.itself = {i: numbers[id(tensor)] for i, tensor in traced.itself.items()}
        self.own_arguments = {i: traced.path(tensor) for i, tensor in traced.itself.items()}
        self.addresses = [0] * len(self.inputs)            # of the arguments at the last call
        self.passing = traced.passing                      # whether gradients would flow on from each argument
        self._find_numbers(traced)
        self.compares_always = bool(self.shared or self.has_other_grad or self.seed is not None)
        self.flags = [flag.over(lambda node: substituted(node, as_traced, {})) for flag in flags]
        self.late = [(symbols[node], flag.numbers, self.flags[flags.index(flag)]) for node, flag in late.items()]
        used = toposort([node for _, _, flag in self.late for node in flag.nodes])
        self.indices = [i for i, symbol in enumerate(self.inputs) if symbol in used]        # arguments kept for them
        self.verifies = not late and any(flag.reads_each_run or not self.replay.ends_early for flag in flags)
        self.settings: State | None = None        # those that the replay was prepared under

    def _find_in_place(self, fresh: list[UOp]) -> list[ResultInPlace]:
        """Find the results that are written in place, and take them out of `outcomes`: values of weights, and gradients
        that are not added to earlier ones. Where a whole value is overwritten, that is after all checks of the run.
        `fresh` are the symbols of new values that one outcome has."""
        whole = self.replay.at_once
        summed = {i for w in self.shared for i in w.owners}                    # gradients that are added to
        replaced = {number for number, _ in self.put}
        found: dict[Outcome, ResultInPlace] = {}
        for out in [out for out in self.outcomes if out.node.base in fresh]:
            view, weight, part = out.node, self.by_number.get(out.place), self.replay.updates.get(out.node)
            if out.kind == "value" and weight is not None and not weight.pinned and weight not in self.shown \
                    and weight.node.op is o.BUFFER and same_view(view, weight.node) and out.place not in replaced \
                    and (part.source is weight.symbol if part is not None else whole and self.replay.waits(view)
                         and self.replay.rewrites(weight.symbol, view)):
                found[out] = ResultInPlace(view, out.place, weight, view, part)
            elif out.kind == "gradient" and whole and not view.symbolic and out.place not in summed \
                    and out.place < self.own and self.replay.waits(view.base):
                found[out] = ResultInPlace(view.base, out.place, None, view)
        self.outcomes = [out for out in self.outcomes if out not in found]
        self.replay.stays([row.symbol for row in found.values()])
        return list(found.values())

    def _sort_outcomes(self, first: int, given: list[Tensor]) -> None:
        """Sort the outcomes by kind, each with the `Result` whose whole buffer it is, if any. `given` are the tensors
        that a call makes, of which `first` is the number."""
        whole = {result.symbol: result for result in self.results}
        values = {out.place: (whole.get(out.node), out.node) for out in self.outcomes if out.kind == "value"}
        self.values = [(number, *value) for number, value in values.items() if number < first]
        self.given = [(class_of_results(t), result_maker(class_of_results(t)), t.requires_grad, *values[first + i])
                      for i, t in enumerate(given)]
        self.gradients = [(out.place, out.node) for out in self.outcomes if out.kind == "gradient"]
        self.has_views = any(out.kind == "gradient" or out.node not in whole for out in self.outcomes)
        # what the next call will find in the tensors in sight: their values, or those of tensors put in their place
        self.expected: list[tuple[int, Result, Weight | None]] = []
        for number, left in [*[(number, number) for number in values if number < self.own], *self.put]:
            found, weight = values.get(left, (None, None))[0], self.by_number.get(number)
            if found is not None and (weight is None or not weight.pinned and found.is_like(weight.node)):
                self.expected.append((number, found, weight))

    def _watch(self, traced: TracedCall, rows: list[ReachedTensor], gradients: dict[int, Any]) -> None:
        """Record what each call compares: the tensors' nodes, which are lazy, and which have a gradient already."""
        read = {n for record in traced.trace.records for n in record.normal.order}
        self.in_sight, self.sharing = len(traced.walk.tensors), traced.sharing
        self.lazy = {i for i, row in enumerate(rows) if row.node.base.op is not o.BUFFER and row.node in read}
        # the tensors' nodes, and the gradients that the last call left in place
        self.seen: list[Any] = [*[row.node for row in rows], *gradients.values()]
        # whether gradients would flow on from each, if there are any
        self.in_sight_passing = [passes_gradients(row.tensor, row.node) for row in rows] if traced.ran_backward else []
        self.has_grad = [(i, row.grad is not None) for i, row in enumerate(rows)
                         if row.tensor.requires_grad or row.grad is not row.tensor.grad]
        self.has_other_grad = [(number, had) for number, had in self.has_grad if not had or number not in gradients]

    def _find_numbers(self, traced: TracedCall) -> None:
        """Find the scalars that each call writes for the kernels: cells (some count random streams) and lengths."""
        first, last = traced.streams
        self.drawn = last - first
        drawn: dict[Any, int] = {cell: cell.value - first for cell in self.replay.streams if cell.value > first}
        self.numbers = [(*row, drawn.get(row[0], 0)) for row in self.replay.numbers]
        self.seed = traced.seed if any(stream for _, _, _, stream in self.numbers) else None
        self.symbols = traced.symbols             # the variables that arguments bring, as they were in the trace
        self.answers = list(traced.trace.answers)     # comparisons of them, with their outcomes
        self.names: dict[Any, Any] = {}           # the variables of this call in their place

    # -- does it fit? --------------------------------------------------------------------------------------------------
    def _compare(self, found: list[Tensor], steady: bool) -> None:
        """Raise if something that the trace relied on has changed. It is `steady` if the tensors' nodes, and the
        gradients in place, are those that the last call left."""
        if self.seed is not None and streams.seed is not self.seed:
            raise Stale("there is a new random seed")
        for number, had in self.has_other_grad if steady else self.has_grad:
            grad = unread_gradient(found[number])
            if (grad is not None and grad is not RESET) is not had:
                raise Stale("a gradient was reset" if had else "a gradient was there already")
        if not steady and sharing(found[:self.in_sight]) != self.sharing:
            raise Stale("which of its tensors are views of others is no longer the same")
        for number, tensor in enumerate(() if steady else found):
            then = self.seen[number]
            if tensor.uop is then:
                continue
            weight = self.by_number.get(number)
            if number in self.lazy or tensor.dtype is not then.dtype or weight is None and not then.symbolic and (
                    tensor.shape != then.shape or tensor.device != (then.device or tensor.device)):
                raise Stale(f"a tensor of shape {then.shape} it uses was replaced by something else")
            if self.in_sight_passing and passes_gradients(tensor, tensor.uop) is not self.in_sight_passing[number]:
                raise Stale("which of its tensors are computed from what is trained is no longer the same")
            if weight is not None:
                self._follow(weight, found)
            self.seen[number] = tensor.uop
        for weight in self.shared:
            self._follow(weight, found)

    def _follow(self, weight: Weight, found: list[Tensor]) -> None:
        """Bind a weight to the buffer that its tensors hold now; raise `Stale` unless they are the same views of it."""
        nodes = weight.nodes(found)
        if not nodes:
            raise Stale("a tensor it uses is gone")
        now = nodes[0]
        if now is not weight.node or now.symbolic or len(nodes) > 1:
            then = self._renamed(weight.node)
            apart = nodes.count(now) < len(nodes) and any(n.base is not now.base for n in nodes)
            views = zip(weight.holders, weight.views)
            if apart or not same_view(now, then) \
                    or not all(same_view(found[i].uop, self._renamed(view)) for i, view in views) \
                    or weight.pinned and now.base is not weight.node.base:
                raise Stale(f"a tensor of shape {now.shape} it uses was replaced by something else")
            weight.node = moved(weight.node, now.base) if now.symbolic else now      # its sizes are those of the trace
            self.replay.bind(weight.symbol, now.base.arg.address)

    def _renamed(self, node: UOp) -> UOp:
        """A view of the trace with the variables of this call."""
        return moved(node, node.base, self.names) if node.symbolic else node

    def _take_symbols(self, symbols: Collection[Symbol]) -> None:
        """Take the variables of this call; raise `Stale` if a comparison of them has another outcome by now."""
        self.names = dict(zip(self.symbols, symbols))
        for answer in self.answers:
            if not answer.holds(lambda symbol: value_of(self.names[symbol])):
                raise Stale(f"{answer} is no longer {'true' if answer.answer else 'false'}")

    def _without_own(self, tensors: list[Tensor], found: list[Tensor]) -> list[Tensor]:
        """The arguments that the function does not see by itself; raise `Stale` if the others are not the trace's."""
        if any(found[number] is not tensors[i] for i, number in self.itself.items()):
            raise Stale(_OTHERS_GIVEN)
        return [tensor for i, tensor in enumerate(tensors) if i not in self.itself]

    # -- replaying -----------------------------------------------------------------------------------------------------
    def call(self, instance: Any, tensors: list[Tensor], symbols: Collection[Symbol], settings: State) -> Any:
        """Everything the function does, for these arguments; raises `Stale` if it may do something else by now.
        `symbols` are the variables with their values, in the order of the arguments."""
        found, steady, holders = self.check(instance, self.seen)
        if symbols:
            self._take_symbols(symbols)
        if not steady or self.compares_always:
            self._compare(found, steady)
        if self.itself:
            tensors = self._without_own(tensors, found)
        found += tensors
        if len({*found}) < len(found):
            raise Stale("two of its tensors are one" if len({*found[:self.own]}) < self.own else _OTHERS_GIVEN)
        if settings is not self.settings:
            self.settings = settings
            self.replay.prepare()
        arguments = self._bind_arguments(tensors, found)
        for result in self.results:
            result.begin()
        in_place = self.in_place
        if not steady or in_place.disturbed or [*map(len, in_place.readers)] != in_place.lengths:
            in_place.begin(found)
        for number, dtype, address, stream in self.numbers:
            value = (streams.count + stream) & 0xFFFFFFFF if stream else self.names.get(number, number).value
            ctypes.memmove(address, scalar_bytes(value, dtype), 8)
        streams.count += self.drawn
        if not self.replay.is_long:
            return self._run(arguments, found, holders)
        with interrupts_deferred():               # until a kernel ends before which nothing was written in place
            return self._run(arguments, found, holders)

    def _bind_arguments(self, tensors: list[Tensor], found: list[Tensor]) -> list[UOp]:
        """Bind the launches to the addresses of the arguments; return the arguments' buffers."""
        arguments, addresses = [], self.addresses
        for i, tensor in enumerate(tensors):
            node = tensor.uop
            if self.written and storage_of(tensor) is not None:
                written = {id(found[number]) for number in self.written}
                if shares_with(tensor, written) or id(tensor) in written and is_view(tensor):
                    raise Stale("it changes a tensor that it is handed a view of")
            if passes_gradients(tensor, node) is not self.passing[i]:
                raise Stale("which arguments are computed from what is trained is no longer the same")
            if node.op is not o.BUFFER:
                node = as_buffer(tensor)
            arguments.append(node)
            address = node.arg.address
            if address != addresses[i]:
                addresses[i] = address
                self.replay.bind(self.inputs[i], address)
        return arguments

    def _run(self, arguments: list[UOp], found: list[Tensor], holders: list[Any]) -> Any:
        """Run the kernels, assign what the function assigns, and return its results."""
        taken = self._take_numbers() if self.late else []
        if self.replay.run() or self.verifies:
            self._verify(arguments)
        if taken:
            self._expect_numbers(taken, arguments)
        bases = self._bases(arguments, self.shown) if self.has_views else {}
        for number in self.replaced:
            leave(found[number])
        if self.in_place.disturbed or self.in_place.counted:
            self.in_place.end(found, self.seen)
        return self._leave(found, holders, bases)

    def _bases(self, arguments: list[UOp], weights: list[Weight]) -> dict[UOp, UOp]:
        """The buffer of this call for each symbol."""
        return {**{symbol: node.reshape(symbol.shape) for symbol, node in zip(self.inputs, arguments)},
                **{w.symbol: w.node.base for w in weights}, **{r.symbol: r.node for r in self.results}}

    def _verify(self, arguments: list[UOp]) -> None:
        """Raise if the run met an index out of range, or (under SANITIZE) made a NaN, naming it."""
        present = {**self._bases(arguments, self.weights),
                   **{row.symbol: row.node for row in self.in_place.rows}}
        for flag in self.flags:
            flag.verify(partial(_values, present, self.names))

    def _take_numbers(self) -> list[Any]:
        """Bind the outputs of the run's checks to host memory, which is returned."""
        taken = [numbers.take() for _, numbers, _ in self.late]
        for number, (symbol, _, _) in zip(taken, self.late):
            self.replay.bind(symbol, ctypes.addressof(number))
        return taken

    def _expect_numbers(self, taken: list[Any], arguments: list[UOp]) -> None:
        kept = {self.inputs[i]: arguments[i].reshape(self.inputs[i].shape) for i in self.indices}
        for number, (_, numbers, flag) in zip(taken, self.late):
            numbers.expect(number, partial(self._settle_late, flag, kept, self.names))

    def _settle_late(self, flag: RunCheck, kept: dict[UOp, UOp], names: SymbolNames, number: int) -> None:
        """Raise if a check of an earlier run failed. Its arguments still live; other tensors may have new values."""
        present = {**{w.symbol: w.node.base for w in self.weights}, **kept}
        flag.settle(number, partial(_values, present, names), late=True)

    def _leave(self, found: list[Tensor], holders: list[Any], bases: dict[UOp, UOp]) -> Any:
        """Assign the values, gradients and names that the function assigns; return its results in the form it did.
        `bases` are the buffers of this call, needed where a result is a view."""
        for number, result, left in self.values:
            tensor = found[number]
            if result is not None and not is_shared(tensor):
                result.give_to(tensor)
            else:
                assign_node(tensor, self._now(left, bases) if result is None else result.node)
        for number, result, weight in self.expected:
            self.seen[number] = node = result.node
            if weight is not None:
                weight.node = node
                self.replay.bind(weight.symbol, node.arg.address)
        for number, view in self.gradients:
            tensor = found[number]
            leave_gradient(tensor, computed_from(tensor, self._now(view, bases)), number in self.resets)
        for number in self.reset:
            found[number].grad = None
        for kind, make, requires_grad, result, view in self.given:
            if result is None:
                made = kind(self._now(view, bases), requires_grad=requires_grad)
            else:
                made = make(result.node, result.node.arg.leaves)
                if requires_grad is not None:
                    made.requires_grad = requires_grad
            found.append(made)
        if self.own_gradients:
            found += [found[number].grad for number in self.own_gradients]  # type: ignore[misc]
        for (binding, nest), holder in zip(self.bound, holders) if holders else ():
            way, name = binding.way, binding.name
            way.put(holder, name, way.read(holder, name) + nest.by if nest.__class__ is Increment else
                    mapped(nest, found.__getitem__, TensorNumber))
        nest = self.returned
        return found[nest] if nest.__class__ is TensorNumber else mapped(nest, found.__getitem__, TensorNumber)

    def _now(self, view: UOp, bases: Mapping[UOp, UOp]) -> UOp:
        """A view of the trace over the memory of this call."""
        return moved(view, bases.get(view.base, view.base), self.names)


def _values(present: Mapping[UOp, UOp], names: SymbolNames, nodes: Sequence[UOp]) -> list[Any]:
    """The values of a trace's nodes over the buffers of a call; an empty list if a buffer is missing."""
    if not all(n in present or n.arg.address for n in toposort(nodes) if n.op is o.BUFFER):
        return []
    return computed_bytes([substituted(node, present, names) for node in nodes], Device.DEFAULT)
