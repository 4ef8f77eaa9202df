"""Run a function once and note all that is needed to run it again. In: a function, its arguments. Out: `Traced`.

A trace knows which buffers were launched on and where each came from: an argument, a tensor that lived before the call
(a weight), the gradient of one, plain data, or the call itself; which tensors the call left changed, and where it put
new ones. Two traces of one function that differ in any of this cannot be replayed. An argument that the function also
sees by itself (`step(model.weight)`) is no argument but a weight: what becomes of the one becomes of the other.
"""

from __future__ import annotations

import random
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

from glassgrad.base.errors import Bug, JitError
from glassgrad.base.source_lines import line_of
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.gradient import passes_to
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.symbolic import Symbol, lengths_in, most, replaced
from glassgrad.compiler.graph.uop import UOp
from glassgrad.engine.buffer import Buffer
from glassgrad.engine.capture import record
from glassgrad.jit.guards import Surroundings
from glassgrad.jit.live_tensors import Living
from glassgrad.jit.object_paths import PLAIN, Place
from glassgrad.jit.replaced_state import Guests, Reference, State, as_buffer, is_nest, mapped, of_trace, tensors_of
from glassgrad.tensor.autograd.leaves import cut_off, hold, holders, is_cut_off, is_held
from glassgrad.tensor.formulas.indexing import VIEWS
from glassgrad.tensor.formulas.random_numbers import streams
from glassgrad.tensor.tensor import Tensor, class_of_results

__all__ = ["Source", "Traced", "shows_another"]


class Source:
    """Where a buffer comes from at each call: tensors that hold it, or whose gradient does. `visible` are the ids of
    those that the function can see where they stay, `states` what it finds where tensors come and go."""

    def __init__(self, tensors: list[Tensor], owners: list[Tensor], visible: Set[int], states: Mapping[int, State]):
        found = [states[id(t)] for t in tensors if id(t) in states]
        stays = [weakref.ref(t) for t in tensors if id(t) in visible]
        others = [weakref.ref(t) for t in tensors if id(t) not in visible and id(t) not in states]
        self.tensors: list[Reference] = [*stays, *found, *others]
        self.owners = [weakref.ref(t) for t in owners]
        self._in_sight = len(stays) + len(found)

    def may_be(self, earlier: Source) -> bool:
        """Whether another trace found its buffer in the same place: with the same tensors, or at least with one that
        the function sees. The others then are somebody's who held the value at the time (`before = w.detach()`)."""
        mine, theirs = _names(self.tensors[:self._in_sight]), _names(earlier.tensors[:earlier._in_sight])
        return not mine.isdisjoint(theirs) or all(
            _names(now) == _names(then) and len(_names(now)) == len(now) == len(then)     # none of them died
            for now, then in ((self.tensors, earlier.tensors), (self.owners, earlier.owners)))

    def narrow(self, earlier: Source) -> None:
        """Rely only on what both traces found."""
        theirs = _names(earlier.tensors)
        self.tensors = [reference for reference in self.tensors if not theirs.isdisjoint(_names([reference]))]

    def nodes(self) -> list[UOp]:
        """The nodes of those that are alive: one value, or somebody replaced one of them."""
        found = [t.uop for t in (r() for r in self.tensors) if t is not None]
        return found + [t.grad.uop for t in (r() for r in self.owners) if t is not None and t.grad is not None]


def _names(references: Sequence[Reference]) -> set[Any]:
    """What tells these from others: a state its place, a tensor its id, while it lives."""
    named: set[Any] = {r.key for r in references if isinstance(r, State)}
    return named | {id(t) for t in (r() for r in references if not isinstance(r, State)) if t is not None}


class Traced:
    """A call that ran as it is, with everything that is needed to run it again."""

    def __init__(self, function: Callable[..., Any], objects: list[Any], args: Any, kwargs: Any,
                 symbols: Sequence[Symbol] = (), passing: Set[tuple[int, Any]] = frozenset()):
        """`passing` are the keys of places where tensors come and go."""
        self.symbols = list(symbols)             # the variables that the arguments bring
        self._alone = threading.active_count() == 1
        surroundings = Surroundings(function, objects, passing)
        visible = {id(t) for t in surroundings.tensors}
        self.guests = Guests(surroundings.guests, visible)
        states = self.guests.found
        originals: list[Tensor] = []
        handed: dict[int, Tensor] = {}           # what stands for each tensor that was handed in
        self.itself: dict[int, weakref.ref[Tensor]] = {}     # arguments, by number, that the function sees anyhow
        self.arguments: list[Tensor] = []
        self.argument_nodes: list[UOp] = []
        views: list[UOp] = []
        trained = {t.uop.base for t in (*surroundings.tensors, *states) if t.requires_grad is True}
        self.computed: list[int] = []            # arguments, by number, that lead on to what is trained

        def stand_in(tensor: Tensor) -> Tensor:
            """The argument under a buffer node of its own, so that its uses are told apart from everybody else's."""
            if id(tensor) in handed:
                return handed[id(tensor)]
            if id(tensor) in visible:
                self.itself[len(handed)] = weakref.ref(tensor)
                handed[id(tensor)] = tensor
                return tensor
            if trained and _leads_to(tensor.uop, trained) or is_cut_off(tensor.uop.base):
                self.computed.append(len(self.arguments))
            source = as_buffer(tensor)
            room = tuple(map(most, tensor.shape))
            buffer = Buffer.from_host(source.arg, source.arg.address, room, tensor.dtype, source.arg.device)
            node = UOp(o.BUFFER, tensor.dtype, (), buffer)
            view = node.shrink([(0, n) for n in tensor.shape])
            made = class_of_results(tensor)(view, requires_grad=tensor.requires_grad)
            handed[id(tensor)] = made
            originals.append(tensor)
            self.arguments.append(made)
            self.argument_nodes.append(node)
            views.append(made.uop)
            return made

        args, kwargs = mapped(args, stand_in), mapped(kwargs, stand_in)
        _realize_fresh(surroundings.tensors)
        lazy = [(t, t.uop, as_buffer(t)) for t in states if t.uop.base.op is not o.BUFFER]
        first, dice = streams.count, random.getstate()
        self.seed = streams.seed
        with Living() as living, record(s.name for s in symbols) as self.trace:
            for tensor, _, node in lazy:         # read as an argument would be
                tensor.uop = node
                hold(tensor)
            # held until the trace is taken apart: a gradient that the call replaces must be known as one
            self.before: dict[int, tuple[Tensor, UOp, Any]] = {id(t): (t, t.uop, t.grad) for t in living.before}
            wants = [(t, t.requires_grad) for t in living.before]
            try:
                result = function(*args, **kwargs)
            except BaseException:
                self._hand_back(originals, views)      # what it did to its arguments before it failed, it did
                _restore(lazy)
                raise
            self.returned: list[Tensor] = []
            mapped(result, self.returned.append)
            self._drop_unread_gradients(living)
            live = living.now()                  # not earlier: a list would keep the dropped gradients alive
            after = Surroundings(function, objects)
            waiting = self._waiting(live, after.tensors)
            asked = {node.base for t in live if t.requires_grad is True
                     for node in (t.uop, self.before[id(t)][1] if self._was_there(t) else t.uop)}
            self.cut_off = {id(t) for t in waiting if asked and not self._was_there(t) and _leads_to(t.uop, asked)}
            if waiting:
                Tensor.realize(*waiting)
                for tensor in waiting:
                    if id(tensor) in self.cut_off:
                        cut_off(tensor.uop)
        self.streams = (first, streams.count)
        own = {id(a): tensor for a, tensor in zip(self.arguments, originals)}
        self.places = {id(a): i for i, a in enumerate(self.arguments)}
        self.form = result
        self.result = mapped(result, lambda t: own.get(id(t), t))
        replaced = {p.key for p in _replaced(surroundings, after)}
        self.surroundings = Surroundings(function, objects, passing | replaced)
        self.bound = [p for p in self.surroundings.guests if p.key in replaced]
        self._find_updates(views)
        self.left_behind = self._left_behind(live)
        self.grads = [(t, t.grad) for t in live if self._has_new_gradient(t) and id(t) not in self.places]
        self.sources = self._sources(visible)
        self._refuse_shared(originals)
        self.faults = [*self._faults(surroundings, dice, result), *[
            f"the function sets requires_grad of a tensor of shape {t.shape} to {t.requires_grad}"
            for t, wanted in wants if t.requires_grad is not wanted]]
        # whom another call must not be handed, unless this one was and it did no harm
        self.own = {id(t) for t in self.surroundings.tensors} | self._changed_ids()
        if self.argument_updates:
            self.own |= {id(of_trace(r)) for source in self.sources.values() if isinstance(source, Source)
                         for r in (*source.tensors, *source.owners)}
        self.own -= {id(tensor) for tensor in originals}
        self._hand_back(originals, views)
        self.guests.leave()
        _restore(lazy)
        for place in self.bound:
            if any(id(t) in own for t in tensors_of(place.value)):
                place.put(mapped(place.value, lambda t: own.get(id(t), t)))
        # others than the function may replace a tensor that it only reads
        changed = self._changed_ids()
        self.read_only = [(p, weakref.ref(p.value)) for p in self.surroundings.places
                          if isinstance(p.value, Tensor) and id(p.value) not in changed]

    # -- what the call changed -----------------------------------------------------------------------------------------
    def _find_updates(self, views: list[UOp]) -> None:
        """What became of the arguments, which were `views`."""
        self.argument_updates = [(i, a.uop) for i, (a, node) in enumerate(zip(self.arguments, views))
                                 if a.uop is not node]
        self.argument_grads = [(i, a.grad.uop) for i, a in enumerate(self.arguments) if a.grad is not None]

    def _hand_back(self, originals: list[Tensor], views: list[UOp]) -> None:
        """Do to the arguments what was done to those that stood for them."""
        self._find_updates(views)
        for i, node in self.argument_updates:
            originals[i].uop = node
            hold(originals[i])
        for i, node in self.argument_grads:
            add_gradient(originals[i], originals[i]._with(node))
        for tensor, original in zip(self.arguments, originals):
            if tensor.requires_grad is not original.requires_grad:
                original.requires_grad = tensor.requires_grad

    def _changed(self, tensor: Tensor) -> bool:
        known = self.before.get(id(tensor))
        return known is None or known[1] is not tensor.uop and self._is_ours(tensor)

    def _has_new_gradient(self, tensor: Tensor) -> bool:
        """Whether a tensor that was there has another gradient than before."""
        known = self.before.get(id(tensor))
        return known is not None and tensor.grad is not known[2] and self._is_ours(tensor)

    def _is_ours(self, tensor: Tensor) -> bool:
        """Whether this call, and not another thread, changed a tensor that was there before."""
        return self._alone or id(tensor) in self.trace.touched

    def _was_there(self, tensor: Tensor) -> bool:
        return id(tensor) in self.before

    def _waiting(self, live: list[Tensor], reachable: list[Tensor]) -> list[Tensor]:
        """Lazy values that this call leaves: results, tensors it changed, gradients, and new ones that its surroundings
        hold or that hang on its arguments. Left unrealized they would follow the wrong call for ever."""
        made = {r for rec in self.trace.records for r in rec.results} | set(self.argument_nodes)
        near = {id(t) for t in [*self.returned, *reachable]}
        near |= {id(t.grad) for t in live if self._has_new_gradient(t)}
        changed = [t for t in live if self._changed(t) and t.uop.base.op is not o.BUFFER]
        lazy = [t for t in self.returned if t.uop.base.op is not o.BUFFER]
        return [t for t in dict.fromkeys([*lazy, *changed]) if self._was_there(t) or id(t) in near
                or any(n in made for n in t.uop.toposort())]

    def _drop_unread_gradients(self, living: Living) -> None:
        """Gradients that `backward` offers to every leaf cost nothing while they are lazy; a replay would have to
        compute them. Those this call left lazy are dropped, except where asked for (requires_grad=True)."""
        for i in self.computed:
            shape, reached = self.arguments[i].shape, self.arguments[i].grad is not None
            if reached:
                raise JitError(
                    "a gradient ends at the edge of this function",
                    given=f"argument {i} of shape {shape}, computed from what is trained; backward() ran inside",
                    expected="arguments that gradients need not pass",
                    fix="compute it inside the function, or hand in x.detach(); this call went without that gradient")
        for tensor in living.now():
            grad = tensor.grad
            old = self.before[id(tensor)][2] if self._was_there(tensor) else None
            if grad is not None and grad is not old and self._is_ours(tensor) and grad.uop.base.op is not o.BUFFER \
                    and tensor.requires_grad is not True:
                tensor.grad = old

    def _left_behind(self, live: list[Tensor]) -> list[Tensor]:
        """Live tensors that this call made or changed, other than arguments and what it returns."""
        made = {r for rec in self.trace.records for r in rec.results} | set(self.argument_nodes)
        apart = {id(t) for t in self.arguments} | {id(t) for t in self.returned if not self._was_there(t)}
        return [t for t in live if self._changed(t) and id(t) not in apart
                and (t.uop.base in made or self._was_there(t) and t.uop.base.op is o.BUFFER)]

    def _changed_ids(self) -> set[int]:
        """Tensors that lived before the call and that it changed, or whose gradient it did."""
        return {id(t) for t in self.left_behind if self._was_there(t)} | {id(t) for t, _ in self.grads}

    def _refuse_shared(self, originals: list[Tensor]) -> None:
        """An argument that the function also reaches where the jit does not look, or that is a part of another tensor,
        was told apart from that in this trace. If one of the two was changed, the call was not what it is unjitted."""
        changed, updated = self._changed_ids(), {i for i, _ in self.argument_updates}
        visible = {id(t) for t in self.surroundings.tensors}
        sources = [{id(of_trace(r)) for r in source.tensors} for source in self.sources.values()
                   if isinstance(source, Source)]
        for i, tensor in enumerate(originals):
            given = ""
            if id(tensor) in changed:
                given = f"an argument of shape {tensor.shape} that it also changes by another way"
            elif i in updated and any(id(tensor) in ids and not ids & visible for ids in sources):
                given = f"an argument of shape {tensor.shape} that it changes and also reads by another way"
            elif i in updated and shows_another(tensor):
                given = f"an argument of shape {tensor.shape} that it assigns to, which is a view of another tensor"
            if given:
                raise JitError("a jitted function changes a tensor that it is handed and that is not the argument's "
                               "alone", given=given, expected="arguments that share nothing with what it changes, or "
                               "tensors that it sees in its closure, its globals or its objects",
                               fix="hand in a copy (x.clone()), or leave the jit off this function")

    def _faults(self, before: Surroundings, dice: Any, result: Any) -> Iterator[str]:
        """What a replay, which runs no Python, would leave undone."""
        bound = {place.key for place in self.bound}
        for place, now in before.changed():
            if place.key not in bound:
                plain = isinstance(place.value, PLAIN) and isinstance(now, PLAIN)
                yield f"the function itself changes {place}" + (f", from {place.value!r} to {now!r}" if plain else "")
        changed = self._changed_ids()
        for place in before.guests:
            if any(id(t) in changed and id(t) in self.guests.states for t in tensors_of(place.value)):
                yield f"the function changes the tensor at {place} in place, and another one is put there between calls"
        placed = {id(t) for place in self.bound for t in tensors_of(place.value)} | {
            id(grad) for _, grad in self.grads} | {id(argument.grad) for argument in self.arguments}
        for tensor in self.left_behind:
            if not self._was_there(tensor) and id(tensor) not in placed:
                yield f"the function puts a new tensor of shape {tensor.shape} where the jit does not look"
        if random.getstate() != dice:
            yield "the function draws numbers from Python's random"
        for length in lengths_in(result):
            yield f"the function returns the length {length}"
        names = {s.name for s in self.symbols}
        for place in before.places:
            for length in lengths_in(place.value):
                if names & {s.name for s in length.symbols if s.value is not None}:
                    yield f"it sees the length {length}, and is handed a variable of that name"

    def numbered(self, value: Any) -> Any:
        """A shape or a length without the values that the call brought."""
        places = {s: Symbol(f"argument {i}", s.low, s.high) for i, s in enumerate(self.symbols)}
        return replaced(value, lambda s: places.get(s, s)) if places else value

    # -- where buffers come from ---------------------------------------------------------------------------------------
    def _sources(self, visible: Set[int]) -> dict[UOp, Source | tuple[str, bytes]]:
        """Of every buffer that was read or is shown by a result, and that the call neither made nor was handed: who
        brings it, or its bytes."""
        holders: dict[UOp, tuple[list[Tensor], list[Tensor]]] = {}
        grads = {id(grad): tensor for tensor, _, grad in self.before.values() if grad is not None}
        for tensor, node, _ in self.before.values():
            held = holders.setdefault(node.base, ([], []))
            if id(tensor) in grads:
                held[1].append(grads[id(tensor)])
            else:
                held[0].append(tensor)
        out: dict[UOp, Source | tuple[str, bytes]] = {}
        known = set(self.argument_nodes)
        for bases, made in [*[([n.base for n in rec.normal.buffers], rec.results) for rec in self.trace.records],
                            (list(self.shown_bases()), [])]:
            for base in bases:
                if base not in known and base not in out:
                    tensors, owners = holders.get(base, ([], []))
                    if tensors or owners:
                        out[base] = Source(tensors, owners, visible, self.guests.states)
                    else:
                        out[base] = (str(line_of(base.arg.place)), bytes(base.arg.copy_out()))
            known |= set(made)
        return out

    def shown_bases(self) -> Iterator[UOp]:
        """The buffers under whatever outlives the call."""
        for tensor in (*self.left_behind, *self.placed(), *[g for _, g in self.grads if g is not None],
                       *[t for t in self.returned if not self._was_there(t)]):
            yield tensor.uop.base
        for _, node in (*self.argument_updates, *self.argument_grads):
            yield node.base

    def below_lazy(self) -> set[UOp]:
        """The buffers that lazy tensors in sight are to be computed from."""
        lazy = [t.uop for t in self.surroundings.tensors if t.uop.base.op is not o.BUFFER]
        return {node for node in toposort(lazy) if node.op is o.BUFFER}

    def placed(self) -> list[Tensor]:
        """The tensors that the call put somewhere."""
        return [t for place in self.bound for t in tensors_of(place.value)]

    def reference(self, tensor: Tensor) -> Reference | None:
        """How to find a tensor at each call that the function did not make; None if it did."""
        state = self.guests.states.get(id(tensor))
        return state if state is not None else weakref.ref(tensor) if self._was_there(tensor) else None

    def views(self, source: Source) -> list[tuple[Reference, UOp]]:
        """What each tensor of a source stood for when the call began, where there are several."""
        if len(source.tensors) < 2:
            return []
        return [(r, self.before[id(of_trace(r))][1]) for r in source.tensors]

    def node_before(self, source: Source) -> UOp:
        """The node that a source stood for when the call began."""
        for key, position in ((source.tensors, 1), (source.owners, 2)):
            for reference in key:
                known = self.before.get(id(of_trace(reference)))
                if known is not None:
                    return known[1] if position == 1 else known[2].uop
        raise Bug("a source was not there before the call")

def _replaced(before: Surroundings, after: Surroundings) -> Iterator[Place]:
    """The places where the call put other tensors, or another nest of tensors, or took some away."""
    then = {place.key: place.value for place in (*before.places, *before.guests)}
    for place in after.places:
        pair = (place.value, then.get(place.key))
        if pair[0] is not pair[1] and is_nest(pair[0]) and any(is_nest(value) and tensors_of(value) for value in pair):
            yield place


def shows_another(tensor: Tensor) -> bool:
    """Whether it is a view of a tensor that somebody has, so that assigning to it changes that one."""
    node = tensor.uop
    while node.op in VIEWS:
        node = node.src[0]
        if any(other is not tensor for other in holders((node,))):
            return True
    return False


def add_gradient(tensor: Tensor, grad: Tensor) -> None:
    """What `backward` inside a call left on an argument."""
    tensor.grad = grad if tensor.grad is None else tensor.grad + grad


def _leads_to(node: UOp, trained: Set[UOp]) -> bool:
    """Whether a gradient that arrives at a node goes on to one of those."""
    return any(n in trained for n in toposort([node], passes_to))


def _restore(lazy: list[tuple[Tensor, UOp, UOp]]) -> None:
    """Lazy tensors were computed for a call, not by it: they are again what they were (tensor, node, its value)."""
    for tensor, node, value in lazy:
        if tensor.uop is value:
            tensor.uop = node


def _realize_fresh(tensors: list[Tensor]) -> None:
    """Compute weights that were made and not yet looked at (`nn.Linear(3, 2)`), or each call would draw them again."""
    fresh = [t for t in tensors if t.uop.base.op is not o.BUFFER and is_held(t)
             and not any(n.op is o.BUFFER for n in t.uop.toposort())]
    by_device: dict[str, list[Tensor]] = {}
    for t in fresh:
        by_device.setdefault(t.device, []).append(t)
    for group in by_device.values():
        Tensor.realize(*group)
