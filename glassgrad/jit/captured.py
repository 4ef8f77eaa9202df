"""A traced call that can be replayed. In: `Traced`. Out: `Captured`, called with tensors.

A replay writes a few addresses and makes one foreign call; around it, Python looks up what may have changed since the
trace and rebinds what the function rebinds. That is done at every call, so this room counts microseconds: whatever
follows from the trace or from a frame alone is worked out when it is made, and a call compares and writes.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Collection, Set
from typing import Any

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.symbolic import Symbol, value_of
from glassgrad.compiler.graph.uop import UOp
from glassgrad.engine.replay import Replay
from glassgrad.engine.schedule_key import scalar_bytes
from glassgrad.jit.buffer_substitution import Names, exchanged, moved, same_view, symbol_of
from glassgrad.jit.in_place_results import Row, Standing, Weight
from glassgrad.jit.object_paths import same_attributes
from glassgrad.jit.replaced_state import Form, Reference, as_buffer, of_trace
from glassgrad.jit.result_memory import Frame
from glassgrad.jit.tracing import Source, Traced, shows_another
from glassgrad.runtime.devices import Device
from glassgrad.tensor.autograd.leaves import RESET
from glassgrad.tensor.evaluate import computed_array
from glassgrad.tensor.formulas.random_numbers import streams
from glassgrad.tensor.tensor import Tensor, class_of_results

__all__ = ["STALE", "Captured"]

STALE = object()           # the answer of a replay that does not fit this call


class Captured:
    """A trace as a replay: what to look up before it, what to rebind after it."""

    def __init__(self, traced: Traced):
        self.why = ""
        self.itself, self.own = traced.itself, traced.own
        made = {r for rec in traced.trace.records for r in rec.results}
        placed = traced.placed()
        rebound = [t for t in traced.left_behind if id(t) in traced.before]
        kept = [*[t.uop for t in rebound], *[t.uop for t in placed], *[t.uop for t in traced.returned],
                *[g.uop for _, g in traced.grads if g is not None], *[node for _, node in traced.argument_updates],
                *[node for _, node in traced.argument_grads]]
        fresh = [b for b in dict.fromkeys(node.base for node in kept) if b in made]     # what outlives the call
        sources = {node: source for node, source in traced.sources.items() if isinstance(source, Source)}
        symbols = {b: symbol_of(b) for b in (*traced.argument_nodes, *sources, *fresh)}
        self.inputs = [symbols[node] for node in traced.argument_nodes]
        self.fresh = [symbols[b] for b in fresh]
        below = traced.below_lazy()
        weights = [Weight(symbols[node], source, traced.node_before(source), [
            (r, moved(view, symbols)) for r, view in traced.views(source)], node in below)
            for node, source in sources.items()]
        self.single = [w for w in weights if w.only is not None]
        self.shared = [w for w in weights if w.only is None]
        for number, weight in enumerate(self.single):
            weight.number = number
        shown = {symbols.get(base) for base in traced.shown_bases()}
        self.shown = [w for w in weights if w.symbol in shown]      # results are views of these, as they were before
        self.holders = [w.source.tensors[0] for w in self.single]
        self.weights_are = same_attributes(self.holders, "uop")
        self.seen = [w.node for w in self.single]
        self.after = [(weakref.ref(t), moved(t.uop, symbols)) for t in rebound]
        self.grads = [(weakref.ref(t), None if g is None else moved(g.uop, symbols)) for t, g in traced.grads]
        self.argument_updates = [(i, moved(node, symbols)) for i, node in traced.argument_updates]
        self.argument_grads = [(i, moved(node, symbols)) for i, node in traced.argument_grads]
        # a tensor that is returned twice, or also put somewhere, is one tensor, with one number
        given = list({id(t): t for t in (*placed, *traced.returned)}.values())
        numbers = {id(t): n for n, t in enumerate(given)}
        # what the function did not make is given as itself: an argument by its number, a weight, a state
        self.given_as: list[int | Reference | None] = [traced.places.get(id(t), traced.reference(t)) for t in given]
        self.given_nodes = [moved(t.uop, symbols) if itself is None else None
                            for t, itself in zip(given, self.given_as)]
        self.given_wants = [t.requires_grad if itself is None else None for t, itself in zip(given, self.given_as)]
        self.given_class = [class_of_results(t) for t in given]            # a subclass stays what it is
        self.given_cut = [id(t) in traced.cut_off for t in given]          # no gradient passes them
        self.given_itself = [itself for itself in self.given_as if isinstance(itself, weakref.ref)]
        self.bound = [(p, Form(p.value, numbers)) for p in traced.bound]
        self.returned = Form(traced.form, numbers)
        self.guests = traced.guests
        self._watch(traced, {id(t) for t in rebound})
        self.drawn, self.seed = traced.streams[1] - traced.streams[0], traced.seed
        renewed = {id(t) for t in rebound} | {id(t) for t, _ in traced.grads}
        self.replay = Replay(traced.trace, symbols, {node for node, source in sources.items() if any(
            id(of_trace(r)) in renewed for r in (*source.tensors, *source.owners))})
        if traced.trace.flags and self.replay.at_once:
            self.replay.check(traced.trace.flags)
        self.standing = Standing(self.replay, self._find_standing([symbols.get(node.base) for node in kept]), self.seen)
        standing = {id(row.tensor()) for row in self.standing.rows if row.weight is None}
        self.has_other_grad = [(reference, had) for reference, had in self.has_grad
                               if not had or id(reference()) not in standing]
        self.entries = [self.replay.pointers(symbol) for symbol in self.inputs]
        self.handed = [0] * len(self.inputs)               # the arguments' addresses at the last call
        self.random_cells = [(cell.value - traced.streams[0], address, dtype) for cell, dtype, address, stream
                             in self.replay.cells if stream and cell.value > traced.streams[0]]
        self.other_cells = [(cell, address, dtype) for cell, dtype, address, stream in self.replay.cells
                            if not (stream and cell.value > traced.streams[0])]
        self.flags = [flag.over(lambda node: exchanged(node, symbols, {})) for flag in traced.trace.flags]
        self.symbols = traced.symbols             # the variables that arguments bring, as they were in the trace
        self.sizes = [(s, address) for s, address in self.replay.sizes if s in self.symbols]
        self.answers = list(traced.trace.answers)     # what the function asked of them
        self.names: Names = {}                    # what they are in this call
        self.circumstances = -1                   # under which the replay was prepared
        self.frame: Frame | None = None          # holds the results of the last call
        self.other: Frame | None = None          # held those of the call before: free once nobody else does

    def _value_now(self, symbol: Symbol) -> int:
        return value_of(self.names[symbol])

    def _find_standing(self, kept: list[UOp | None]) -> list[Row]:
        """What may stay where it is: results that take the place of a weight, and gradients that take nobody's; whole
        ones only where the call can no longer fail when they are written."""
        whole = self.replay.at_once
        parts = {r.result: r for r in self.replay.updates}
        weights = {id(w.source.tensors[0]()): w for w in self.single if w.node.op is o.BUFFER}
        summed = {id(r()) for w in self.shared for r in w.source.owners}       # gradients that are added to
        rows, after, grads = [], [], []
        for reference, symbol in self.after:
            weight = weights.get(id(reference()))
            alone = symbol in self.fresh and kept.count(symbol) == 1
            part = parts.get(symbol)
            own = weight is not None and not weight.pinned and weight not in self.shown
            if weight is not None and own and alone and same_view(symbol, weight.node) and (
                    part.source is weight.symbol if part is not None else
                    whole and self.replay.waits(symbol) and self.replay.rewrites(weight.symbol, symbol)):
                weight.row = Row(symbol, reference, weight, symbol, part)
                rows.append(weight.row)
            else:
                after.append((reference, symbol))
        for reference, view in self.grads:
            if whole and view is not None and not view.symbolic and id(reference()) not in summed \
                    and view.base in self.fresh and kept.count(view.base) == 1 and self.replay.waits(view.base):
                rows.append(Row(view.base, reference, None, view))
            else:
                grads.append((reference, view))
        stays = {row.symbol for row in rows}
        self.after, self.grads = after, grads
        self.fresh = [symbol for symbol in self.fresh if symbol not in stays]
        self.replay.stays(sum(symbol.arg.nbytes for symbol in stays))
        return rows

    def _watch(self, traced: Traced, rebound: set[int]) -> None:
        """What must be as it was: the surroundings, lazy tensors in them, and which tensors have a gradient already."""
        self.watched = traced.surroundings
        self.lazy = [(weakref.ref(t), t.uop) for t in self.watched.tensors
                     if t.uop.base.op is not o.BUFFER and id(t) not in rebound]
        self.has_grad = [(weakref.ref(t), traced.before[id(t)][2] is not None) for t in self.watched.tensors
                         if id(t) in traced.before and (t.requires_grad or traced.before[id(t)][2] is not t.grad)]

    def handed_of_its_own(self) -> dict[int, int]:
        """Which arguments, by number, are tensors that it also sees: their ids."""
        return {i: id(reference()) for i, reference in self.itself.items()}

    # -- does it fit? ----------------------------------------------------------------------------------------
    def _is_stale(self) -> bool:
        """Whether something that the trace relied on has changed; `why` says what."""
        self.why = self.watched.change()
        if self.why:
            return True
        if self.given_itself and any(reference() is None for reference in self.given_itself):
            self.why = "a tensor it returns is gone"
            return True
        if self.random_cells and streams.seed is not self.seed:
            self.why = "there is a new random seed"
            return True
        for reference, node in self.lazy:
            tensor = reference()
            if tensor is not None and tensor.uop is not node:
                self.why = f"a tensor of shape {node.shape} it uses was replaced by something else"
                return True
        for reference, had in self.has_grad if not self.standing.gradients_are_in_place() else self.has_other_grad:
            tensor = reference()
            if tensor is not None and (tensor._grad is not None and tensor._grad is not RESET) is not had:
                self.why = "a gradient was reset" if had else "a gradient was there already"
                return True
        if not self.weights_are(self.seen):
            for weight in self.single:
                if not self._follow(weight, weight.source.nodes()):
                    return True
        for weight in self.shared:
            if not self._follow(weight, weight.source.nodes()):
                return True
        return False

    def _follow(self, weight: Weight, nodes: list[UOp]) -> bool:
        """Bind a weight to what its tensors stand for now; False where that is not the same kind of value."""
        if not nodes:
            self.why = "a tensor it uses is gone"
            return False
        now = nodes[0]
        if now is not weight.node or now.symbolic or len(nodes) > 1:
            then = moved(weight.node, {}, self.names) if weight.node.symbolic else weight.node
            apart = nodes.count(now) < len(nodes) and any(n.base is not now.base for n in nodes)
            if apart or not same_view(now, then) or not weight.views_are(self.names) \
                    or weight.pinned and now.base is not weight.node.base:
                self.why = f"a tensor of shape {now.shape} it uses was replaced by something else"
                return False
            weight.node = weight.node if now.symbolic else now       # its sizes are those of the trace
            self.replay.bind(weight.symbol, now.base.arg.address)
        if weight.only is not None and self.seen[weight.number] is not now:
            self.seen[weight.number] = now
            if weight.row is not None:
                weight.row.lost = self.standing.disturbed = True
        return True

    def _arguments(self, tensors: list[Tensor]) -> list[Tensor] | None:
        """The tensors handed in that the function does not see anyhow; None unless those it sees are the trace's."""
        if any(reference() is not tensors[i] for i, reference in self.itself.items()):
            return None
        others = [t for i, t in enumerate(tensors) if i not in self.itself] if self.itself else tensors
        if not self.own.isdisjoint(map(id, others)) or any(shows_another(others[i]) for i, _ in self.argument_updates):
            return None
        return others

    def _verify(self, arguments: list[UOp], made: dict[UOp, UOp]) -> None:
        """Raise if the run met an index out of range, naming it."""
        present = {**dict(zip(self.inputs, arguments)),
                   **{w.symbol: w.source.nodes()[0].base for w in (*self.single, *self.shared)},
                   **{row.symbol: row.node for row in self.standing.rows if row.node is not None}, **made}
        for flag in self.flags:
            flag.verify(lambda node: computed_array(exchanged(node, present, self.names), Device.DEFAULT))

    # -- replaying -------------------------------------------------------------------------------------------
    def call(self, tensors: list[Tensor], ids: Set[int], symbols: Collection[Symbol], circumstances: int) -> Any:
        """Everything the function does, for these arguments; `STALE` if it may do something else by now. While
        `circumstances` stays the same number, the settings have not changed. `ids` are those of the tensors; `symbols`
        are the variables with their values, in the order of the arguments."""
        if not self.guests.places:
            return self._call(tensors, ids, symbols, circumstances)
        try:
            if not self.guests.fit(self.own) or self.argument_updates and not ids.isdisjoint(
                    map(id, self.guests.found)):
                self.why = f"{self.guests.names()} is of another kind"
                return STALE
            return self._call(tensors, ids, symbols, circumstances)
        finally:
            self.guests.leave()

    def _call(self, tensors: list[Tensor], ids: Set[int], symbols: Collection[Symbol], circumstances: int) -> Any:
        if self.itself or self.argument_updates or not self.own.isdisjoint(ids):
            others = self._arguments(tensors)
            if others is None:
                self.why = "which of its own tensors it is handed is no longer the same"
                return STALE
            tensors = others
        if symbols:
            self.names = dict(zip(self.symbols, symbols))
            for answer in self.answers:
                if not answer.holds(self._value_now):
                    self.why = f"{answer} is no longer {'true' if answer.answer else 'false'}"
                    return STALE
        if self._is_stale():
            return STALE
        if circumstances != self.circumstances:
            self.circumstances = circumstances
            self.replay.prepare()
        arguments, handed = [], self.handed
        for i, tensor in enumerate(tensors):
            node = tensor.uop
            if node.op is not o.BUFFER:
                node = as_buffer(tensor)
            arguments.append(node)
            address = node.arg.address
            if address != handed[i]:
                handed[i] = address
                for array, position, offset in self.entries[i]:
                    array[position] = address + offset
        shown = {w.symbol: w.source.nodes()[0].base for w in self.shown} if self.shown else {}
        frame = self.other
        if frame is None or not frame.is_free():
            frame = Frame(self)
            frame.counted = frame.count()          # here, where none of its making is referred to any more
        elif frame.views:
            frame.forget()
        for array, position, address in frame.results:
            array[position] = address
        self.standing.begin()
        for stream, address, dtype in self.random_cells:
            ctypes.memmove(address, scalar_bytes((streams.count + stream) & 0xFFFFFFFF, dtype), 8)
        streams.count += self.drawn
        for cell, address, dtype in self.other_cells:
            ctypes.memmove(address, scalar_bytes(cell.value, dtype), 8)
        for symbol, address in self.sizes:
            ctypes.memmove(address, scalar_bytes(self.names[symbol].value, dtypes.index), 8)
        if self.replay.run() or self.flags and not self.replay.pause:
            self._verify(arguments, frame.made)
        self.standing.end()
        self.other, self.frame = self.frame, frame
        return frame.hand_out(self, tensors, arguments, shown)
