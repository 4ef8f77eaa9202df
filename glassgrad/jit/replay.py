"""Run a traced call again. In: `TracedCall`. Out: `CapturedCall`, called with tensors.

A replay writes a few addresses and makes one foreign call; around it, Python compares what may have changed since the
trace (guards.py) and binds what the function binds. What follows from the trace or from a frame alone is worked out
when it is made, and a call only compares and writes.

Results belong to the caller. A buffer lists its readers, so a call writes into memory that nothing can read any more:
weights and gradients where they are (`ResultsInPlace`), other results into one of two frames that take turns
(`ResultFrame`).
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Collection, Sequence
from functools import partial
from operator import is_
from typing import Any

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.ops import Kind
from glassgrad.compiler.graph.symbolic import Symbol, value_of
from glassgrad.compiler.graph.uop import UOp
from glassgrad.engine.buffer import Buffer
from glassgrad.engine.replay import Replacing, Replay, Write
from glassgrad.engine.schedule_key import scalar_bytes
from glassgrad.jit.guards import Guards
from glassgrad.jit.trace import BufferSource, TracedCall, add_gradient, as_buffer, is_lazy, shows_another
from glassgrad.jit.values import NestForm, SymbolNames, tensors_of
from glassgrad.runtime.devices import Device
from glassgrad.tensor.autograd.leaves import RESET, UnreadGradient, cut_off, leaf_row
from glassgrad.tensor.evaluate import computed_array
from glassgrad.tensor.formulas.random_numbers import streams
from glassgrad.tensor.memory.storage import is_shared, shares_with, storage_of
from glassgrad.tensor.tensor import Tensor, class_of_results

__all__ = ["STALE", "CapturedCall"]

_MANY_NODES = 1000
_OTHERS_HANDED = "which of its own tensors it is handed is no longer the same"
STALE = object()           # the answer of a replay that does not fit this call


# -- graphs of the trace over the memory of a call ---------------------------------------------------------------------
def _symbol_of(buffer: UOp) -> UOp:
    """A BUFFER that stands for the memory that a call brings in its place."""
    return UOp(o.BUFFER, buffer.dtype, (), Buffer.from_host(None, 0, buffer.shape, buffer.dtype, buffer.arg.device))


def _same_view(now: UOp, then: UOp) -> bool:
    """Whether two nodes are the same view of buffers that differ only in their values."""
    while now.op is then.op and (now.op is o.DETACH or now.op.kind == Kind.MOVEMENT and now.arg == then.arg):
        now, then = now.src[0], then.src[0]
    return now.op is o.BUFFER and then.op is o.BUFFER and now.shape == then.shape and now.dtype is then.dtype \
        and now.device == then.device


def _moved(node: UOp, base: UOp, names: SymbolNames | None = None) -> UOp:
    """A view over another buffer, with the variables of a call."""
    views = []
    while node.op is not o.BUFFER:
        views.append(node)
        node = node.src[0]
    for view in reversed(views):
        base = view.named((base,), lambda s: names.get(s, s)) if names and view.symbolic else view.over((base,))
    return base


def _substituted(node: UOp, made: dict[UOp, UOp], names: SymbolNames) -> UOp:
    """A graph of the trace over other buffers, with the variables of this call."""
    new = dict(made)
    for n in node.toposort():
        if n not in new:
            src = tuple([new[s] for s in n.src])
            new[n] = n.named(src, lambda s: names.get(s, s)) if n.symbolic else n.over(src)
    return new[node]


class Weight:
    """A buffer that the function reads without being handed it, and the tensors that bring it."""
    __slots__ = ("symbol", "source", "node", "pinned", "views", "in_place")

    def __init__(self, symbol: UOp, source: BufferSource, nodes: list[UOp], pinned: bool):
        """`nodes` are what its tensors in sight stood for. It is `pinned` if lazy tensors in sight read it too: they go
        on with it when its tensor has another one."""
        self.symbol, self.source, self.pinned = symbol, source, pinned
        self.node = nodes[0]                     # what they stood for at the last call
        self.views = nodes if len(nodes) > 1 else []
        self.in_place: ResultInPlace | None = None        # the result that is written over it

    @property
    def number(self) -> int | None:
        """The tensor in sight that alone brings it, if there is one."""
        alone = len(self.source.numbers) == 1 and not self.source.owners
        return self.source.numbers[0] if alone and not self.node.symbolic else None


class ResultInPlace:
    """A result that is written over a weight, or over the gradient that the call before left, seen as `view`."""

    def __init__(self, symbol: UOp, number: int, weight: Weight | None, view: UOp, replacing: Replacing | None = None):
        self.symbol, self.number, self.weight, self.view, self.replacing = symbol, number, weight, view, replacing
        self.node: UOp | None = None             # its value, by the call before
        self.gradient: UnreadGradient | None = None       # what was left as the tensor's gradient
        self.lost = True                         # that value is not where it was put, or something else can read it

    def take_back(self, tensor: Tensor) -> bool:
        """Whether nothing but its tensor can read the gradient that was left; one that was read is dropped for that."""
        left, now = self.gradient, tensor._grad
        if left is None or self.node is None:
            return False
        if now is left:
            return left.made is None
        made = left.made
        if made is None or now is not made():
            return False
        tensor._grad, now = left, None           # from here on only others keep it alive
        kept = made()
        if kept is not None:
            tensor._grad = kept
        elif self.node.arg.is_free():
            left.made = None
            return True
        return False


class ResultsInPlace:
    """All such results of a capture."""

    def __init__(self, replay: Replay, rows: Sequence[ResultInPlace]):
        self.replay, self.rows = replay, list(rows)
        self._weights = [row for row in rows if row.weight is not None]
        self._gradients = [row for row in rows if row.weight is None]
        self._buffers: list[Buffer] = []
        self.counted: list[Buffer] = []                        # integers among them: facts are kept about their values
        self.readers: list[list[Any]] = []                     # of the weights' buffers, when they were handed out,
        self.lengths: list[int] = []                           # and how many there were
        self._moved: list[ResultInPlace] = []                  # those that this call puts elsewhere
        self.disturbed = bool(rows)                            # some row is lost

    def begin(self, found: Sequence[Tensor]) -> None:
        """Find the memory of this call's values."""
        for row in self._weights:
            row.lost = row.lost or row.node is None or not row.node.arg.is_free(found[row.number])
        for row in self._gradients:
            row.lost = not row.take_back(found[row.number])
        self._moved = [row for row in self.rows if row.lost]
        for row in self._moved:
            row.node = UOp(o.BUFFER, row.symbol.dtype, (), Buffer(row.symbol.shape, row.symbol.dtype,
                                                                  row.symbol.arg.device))
            self.replay.bind(row.symbol, row.node.arg.address)
            if row.replacing is not None:
                row.replacing.copied.value = row.replacing.size
        self.disturbed = True

    def end(self, found: Sequence[Tensor], seen: list[Any], known: set[int]) -> None:
        """Hand out the values that are not where their tensors look for them."""
        for buffer in self.counted:
            buffer.version += 1
        if self.disturbed:
            for row in self._moved:
                self._hand_out(row, found[row.number], seen)
                known.add(id(row.node))
            # while a tensor has views, it gets new memory at each call, and they get nodes over that
            self._moved, self.disturbed = [], any(is_shared(found[row.number]) for row in self._weights)
            seen[len(found):] = [row.gradient for row in self._gradients]
            self._buffers = [row.node.arg for row in self._weights if row.node is not None]
            self.counted = [buffer for buffer in self._buffers if buffer.dtype.kind != "f"]
            self.readers = [buffer.readers for buffer in self._buffers]
            self.lengths = list(map(len, self.readers))

    def _hand_out(self, row: ResultInPlace, tensor: Tensor, seen: list[Any]) -> None:
        node = row.node
        assert node is not None
        if row.weight is None:
            row.gradient = tensor._grad = UnreadGradient(partial(_moved, row.view, node))
        else:
            row.weight.node = seen[row.number] = node
            tensor._rebound(node)
            self.replay.bind(row.weight.symbol, node.arg.address)
        if row.replacing is not None:
            row.replacing.copied.value = 0
        row.lost = False


class CapturedCall:
    """A trace as a replay: what to compare before it, what to bind after it."""

    def __init__(self, traced: TracedCall):
        self.why = ""
        made = {r for rec in traced.trace.records for r in rec.results}
        placed = traced.placed()
        kept = [*[t.uop for t in (*traced.changed, *placed, *traced.returned)],
                *[g.uop for _, g in traced.grads if g is not None], *[node for _, node in traced.argument_updates],
                *[node for _, node in traced.argument_grads]]
        fresh = [b for b in dict.fromkeys(node.base for node in kept) if b in made]     # what outlives the call
        sources = {node: source for node, source in traced.sources.items() if isinstance(source, BufferSource)}
        symbols = {b: _symbol_of(b) for b in (*traced.argument_nodes, *sources, *fresh)}
        below = traced.below_lazy()

        def over_symbols(node: UOp) -> UOp:
            return _moved(node, symbols.get(node.base, node.base))
        self.inputs = [symbols[node] for node in traced.argument_nodes]
        self.fresh = [symbols[b] for b in fresh]
        self.weights = [Weight(symbols[node], source, _nodes_before(traced, source), node in below)
                        for node, source in sources.items()]
        self.by_number = {w.number: w for w in self.weights if w.number is not None}
        self.shared = [w for w in self.weights if w.number is None]
        shown = {symbols.get(base) for base in traced.shown_bases()}
        self.shown = [w for w in self.weights if w.symbol in shown]      # results are views of these, as they were
        self.after = [(traced.numbers[id(t)], over_symbols(t.uop)) for t in traced.changed]
        self.changed = [number for number, _ in self.after]      # tensors in sight that get another value
        self.grads = [(traced.numbers[id(t)], None if g is None else over_symbols(g.uop)) for t, g in traced.grads]
        self.argument_updates = [(i, over_symbols(node)) for i, node in traced.argument_updates]
        self.argument_grads = [(i, over_symbols(node)) for i, node in traced.argument_grads]
        # a tensor that is returned twice, or also put somewhere, is one tensor, with one number
        given = list({id(t): t for t in (*placed, *traced.returned)}.values())
        numbers = {id(t): n for n, t in enumerate(given)}
        self.given = [_GivenTensor(t, traced, over_symbols) for t in given]
        self.bound = [(b._replace(holder=None, value=None), NestForm(value, numbers)) for b, value in traced.bound]
        self.raised = [(b._replace(holder=None, value=None), by) for b, by in traced.raised]
        # where the next call finds the tensors that this one puts somewhere: (number in sight, number among given)
        self.put = [pair for (b, _), (_, form) in zip(traced.bound, self.bound)
                    for pair in zip([traced.numbers[id(t)] for t in tensors_of(b.value)], form.numbers)]
        self.returned = NestForm(traced.form, numbers)
        self._watch(traced)
        self.drawn, self.seed = traced.streams[1] - traced.streams[0], traced.seed
        renewed = {traced.numbers[id(t)] for t in (*traced.changed, *[t for t, _ in traced.grads])}
        self.replay = Replay(traced.trace, symbols, {node for node, source in sources.items() if not renewed.isdisjoint(
            (*source.numbers, *source.owners))})
        if traced.trace.flags and self.replay.at_once:
            self.replay.check(traced.trace.flags)
        in_sight = len(traced.walk.tensors)
        rows = self._find_in_place([symbols.get(node.base) for node in kept], in_sight)
        self.in_place = ResultsInPlace(self.replay, rows)
        left = [row.number for row in rows if row.weight is None]
        self.seen += left                          # until there are gradients
        self.guards = Guards(traced.walk, [b for b, _ in traced.bound], [b for b, _ in traced.raised], left)
        self.has_other_grad = [(number, had) for number, had in self.has_grad if not had or number not in left]
        self.entries = [self.replay.pointers(symbol) for symbol in self.inputs]
        self.handed = [0] * len(self.inputs)               # the arguments' addresses at the last call
        self.random_cells = [(cell.value - traced.streams[0], address, dtype) for cell, dtype, address, stream
                             in self.replay.cells if stream and cell.value > traced.streams[0]]
        self.other_cells = [(cell, address, dtype) for cell, dtype, address, stream in self.replay.cells
                            if not (stream and cell.value > traced.streams[0])]
        self.flags = [flag.over(lambda node: _substituted(node, symbols, {})) for flag in traced.trace.flags]
        self.symbols = traced.symbols             # the variables that arguments bring, as they were in the trace
        self.sizes = [(s, address) for s, address in self.replay.sizes if s in self.symbols]
        self.answers = list(traced.trace.answers)     # what the function asked of them
        self.names: SymbolNames = {}              # what they are in this call
        self.is_steady = False                    # whether results stay where they are in this call
        self.circumstances = -1                   # under which the replay was prepared
        self.frame: ResultFrame | None = None     # holds the results of the last call
        self.other: ResultFrame | None = None     # held those of the call before

    def _watch(self, traced: TracedCall) -> None:
        """What must be as it was: the values in sight, lazy tensors, and which tensors have a gradient already."""
        self.seen: list[Any] = [node for _, node, _, _ in traced.before]      # what the tensors in sight stand for, and
        #                                           the gradients that the last call left
        self.known = set(map(id, self.seen))      # nodes that tensors in sight may stand for, by id
        self._find_twins()
        read = {n for record in traced.trace.records for n in record.normal.order}
        self.lazy = {i for i, node in enumerate(self.seen) if node.base.op is not o.BUFFER and node in read}
        self.has_grad = [(i, grad is not None) for i, (t, _, grad, _) in enumerate(traced.before)
                         if t.requires_grad or grad is not t.grad]
        self.itself = traced.itself
        self.handed_of_its_own = {i: traced.paths[number] for i, number in self.itself.items()}
        self.out_of_sight = [weakref.ref(t) for t in traced.tensors[len(traced.walk.tensors):]]

    def _find_twins(self) -> None:
        """Whether two tensors in sight stand for one node: then it does not tell them apart."""
        nodes = [node for node in self.seen if isinstance(node, UOp)]
        self.twins = len(set(nodes)) < len(nodes)

    def _find_in_place(self, kept: list[UOp | None], in_sight: int) -> list[ResultInPlace]:
        """What may stay where it is: results that take the place of a weight, and gradients that replace no other;
        whole ones only where the call can no longer fail when they are written."""
        whole = self.replay.at_once
        parts = {r.result: r for r in self.replay.updates}
        summed = {i for w in self.shared for i in w.source.owners}             # gradients that are added to
        replaced = {number for number, _ in self.put}
        rows, after, grads = [], [], []
        for number, symbol in self.after:
            weight = self.by_number.get(number)
            alone = symbol in self.fresh and kept.count(symbol) == 1
            part = parts.get(symbol)
            if weight is not None and weight.node.op is o.BUFFER and not weight.pinned and weight not in self.shown \
                    and number not in replaced and alone and _same_view(symbol, weight.node) and (
                    part.source is weight.symbol if part is not None else
                    whole and self.replay.waits(symbol) and self.replay.rewrites(weight.symbol, symbol)):
                weight.in_place = ResultInPlace(symbol, number, weight, symbol, part)
                rows.append(weight.in_place)
            else:
                after.append((number, symbol))
        for number, view in self.grads:
            if whole and view is not None and not view.symbolic and number not in summed and number < in_sight \
                    and view.base in self.fresh and kept.count(view.base) == 1 and self.replay.waits(view.base):
                rows.append(ResultInPlace(view.base, number, None, view))
            else:
                grads.append((number, view))
        stays = {row.symbol for row in rows}
        self.after, self.grads = after, grads
        self.fresh = [symbol for symbol in self.fresh if symbol not in stays]
        self.replay.stays(sum(symbol.arg.nbytes for symbol in stays))
        return rows

    # -- does it fit? ----------------------------------------------------------------------------------------
    def _is_stale(self, found: list[Tensor], state: list[Any]) -> bool:
        """Whether something that the trace relied on has changed; `why` says what."""
        if self.random_cells and streams.seed is not self.seed:
            self.why = "there is a new random seed"
            return True
        steady = self.is_steady = all(map(is_, state, self.seen))
        for number, had in self.has_other_grad if steady else self.has_grad:
            grad = found[number]._grad
            if (grad is not None and grad is not RESET) is not had:
                self.why = "a gradient was reset" if had else "a gradient was there already"
                return True
        if self.twins and len({*map(id, found)}) < len(found):
            self.why = "two of its tensors are one"
            return True
        if not steady:
            if len({*map(id, found)}) < len(found):
                self.why = "two of its tensors are one"
                return True
            for number, (tensor, then) in enumerate(zip(found, self.seen)):
                if tensor.uop is not then and not self._follow_tensor(number, tensor, then):
                    return True
            self._find_twins()
        for weight in self.shared:
            if not self._follow(weight, weight.source.nodes(found), found):
                return True
        return False

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
            if apart or not _same_view(now, then) \
                    or not all(_same_view(found[i].uop, self._renamed(view)) for i, view in views) \
                    or weight.pinned and now.base is not weight.node.base:
                self.why = f"a tensor of shape {now.shape} it uses was replaced by something else"
                return False
            weight.node = weight.node if now.symbolic else now       # its sizes are those of the trace
            self.replay.bind(weight.symbol, now.base.arg.address)
        return True

    def _renamed(self, node: UOp) -> UOp:
        """A view of the trace with the variables of this call."""
        return _moved(node, node.base, self.names) if node.symbolic else node

    def _arguments(self, tensors: list[Tensor], found: list[Tensor]) -> list[Tensor] | None:
        """The tensors handed in that the function does not see anyhow; None unless those it sees are the trace's."""
        if any(found[number] is not tensors[i] for i, number in self.itself.items()):
            return None
        others = [t for i, t in enumerate(tensors) if i not in self.itself] if self.itself else tensors
        ids = {*map(id, others)}
        if not ids.isdisjoint(map(id, found)) or any(shows_another(others[i]) or shares_with(others[i], ids)
                                                     for i, _ in self.argument_updates):
            return None
        return others

    def _verify(self, arguments: list[UOp], found: list[Tensor], made: dict[UOp, UOp]) -> None:
        """Raise if the run met an index out of range, naming it."""
        present = {**dict(zip(self.inputs, arguments)),
                   **{w.symbol: w.source.nodes(found)[0].base for w in self.weights},
                   **{row.symbol: row.node for row in self.in_place.rows if row.node is not None}, **made}
        for flag in self.flags:
            flag.verify(lambda node: computed_array(_substituted(node, present, self.names), Device.DEFAULT))

    # -- replaying -------------------------------------------------------------------------------------------
    def call(self, instance: Any, tensors: list[Tensor], symbols: Collection[Symbol], circumstances: int) -> Any:
        """Everything the function does, for these arguments; `STALE` if it may do something else by now. While
        `circumstances` stays the same number, the settings have not changed. `symbols` are the variables with their
        values, in the order of the arguments."""
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
        checked = self.itself or self.argument_updates
        if checked:
            others = self._arguments(tensors, found)
            if others is None:
                self.why = _OTHERS_HANDED
                return STALE
            tensors = others
        if circumstances != self.circumstances:
            self.circumstances = circumstances
            self.replay.prepare()
        arguments, handed, known, changed = [], self.handed, self.known, self.changed
        for i, tensor in enumerate(tensors):
            node = tensor.uop
            if id(node) in known and not checked and self._arguments(tensors, found) is None:
                self.why = _OTHERS_HANDED
                return STALE
            if changed and storage_of(tensor) is not None and shares_with(tensor, {id(found[n]) for n in changed}):
                self.why = "it is handed a view of a tensor that it changes"
                return STALE
            if node.op is not o.BUFFER:
                node = as_buffer(tensor)
            arguments.append(node)
            address = node.arg.address
            if address != handed[i]:
                handed[i] = address
                for array, position, offset in self.entries[i]:
                    array[position] = address + offset
        shown = {w.symbol: w.source.nodes(found)[0].base for w in self.shown} if self.shown else {}
        frame = self.other
        if frame is None or not frame.is_free():
            frame = ResultFrame(self)
        for array, position, address in frame.results:
            array[position] = address
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
        if self.replay.run() or self.flags and not self.replay.pause:
            self._verify(arguments, found, frame.made())
        if in_place.disturbed or in_place.counted:
            in_place.end(found, self.seen, self.known)
        self.other, self.frame = self.frame, frame
        return frame.hand_out(self, tensors, arguments, shown, found, holders)


class _GivenTensor:
    """A tensor that a call returns or puts somewhere: one that it makes (`node`, over symbols), or one that it did not
    make, given as itself: an argument or a tensor in sight, by number."""

    def __init__(self, tensor: Tensor, traced: TracedCall, over_symbols: Any):
        self.kind, self.requires_grad = class_of_results(tensor), tensor.requires_grad
        self.argument = traced.places.get(id(tensor))
        self.number = traced.numbers.get(id(tensor))
        is_made = self.argument is None and self.number is None
        self.node: UOp | None = over_symbols(tensor.uop) if is_made else None
        self.is_cut_off = id(tensor) in traced.cut_off                # no gradient passes it

    def itself(self, arguments: list[Tensor], found: list[Tensor]) -> Tensor:
        return arguments[self.argument] if self.argument is not None else found[self.number]     # type: ignore[index]


class ResultFrame:
    """Memory for the results of one call. Two take turns: a call writes into the one that nothing reads any more."""

    def __init__(self, captured: CapturedCall):
        nodes = [g.node for g in captured.given if g.node is not None] + [node for _, node in captured.after]
        # a result that is only reshaped is memory of that shape: then its tensor stands for the buffer itself
        shapes = {node.base: node.shape for node in nodes if not node.symbolic and _is_reshaped(node)}
        self._buffers = [Buffer(shapes.get(s, s.shape), s.dtype, s.arg.device) for s in captured.fresh]
        self._nodes = {s: UOp(o.BUFFER, s.dtype, (), buffer) for s, buffer in zip(captured.fresh, self._buffers)}
        self.results: list[Write] = [write for symbol, node in self._nodes.items()
                                     for write in captured.replay.writes(symbol, node.arg.address)]
        for given in captured.given:
            if given.node is not None and given.is_cut_off and given.node.base in self._nodes:
                cut_off(self._nodes[given.node.base])
        self._after = [(number, self._here(node), node) for number, node in captured.after]
        self._given = [None if g.node is None else self._here(g.node) for g in captured.given]
        # memory that tensors stand for themselves, with the lists of its leaves
        self._leaves = {node: leaf_row(node) for node in (*[row[1] for row in self._after], *self._given)
                        if node is not None}
        self._after_leaves = [[] if node is None else self._leaves[node] for _, node, _ in self._after]
        captured.known.update(map(id, self._leaves))
        brought = [n for n, then in [*[row[1:] for row in self._after], *zip(self._given, [
            g.node for g in captured.given])] if n is None and then is not None]
        # whether there are other tensors over this call's memory
        self._brings = bool(brought or captured.grads or captured.argument_updates or captured.argument_grads)
        self._counted = [b for b in self._buffers if b.dtype.kind != "f"]      # facts are kept about integers in memory
        simple = not (self._brings or captured.bound or captured.raised) and all(
            g.requires_grad is None and g.node is not None for g in captured.given)
        self._simple = [(g.kind._of_result, node, self._leaves[node]) for node, g in zip(self._given, captured.given)
                        if node is not None] if simple else None
        self._expect(captured)

    def _here(self, node: UOp) -> UOp | None:
        """The buffer that a result is; None for a view, which is made for each call."""
        mine = self._nodes.get(node.base)
        return mine if mine is not None and mine.shape == node.shape and _is_reshaped(node) else None

    def _expect(self, captured: CapturedCall) -> None:
        """What the next call will find where this frame's values are handed out to tensors in sight."""
        nodes = {number: node for number, node, _ in self._after}
        nodes |= {number: self._given[given] for number, given in captured.put}
        self._next_nodes: list[tuple[int, Weight | None, UOp]] = []
        self._next_writes: list[Write] = []
        for number, node in nodes.items():
            weight = captured.by_number.get(number)
            if node is not None and (weight is None or not weight.pinned and _same_view(node, weight.node)):
                self._next_nodes.append((number, weight, node))
                if weight is not None:
                    self._next_writes += captured.replay.writes(weight.symbol, node.base.arg.address)

    def is_free(self) -> bool:
        """Whether nothing reads this frame's memory any more."""
        if self._brings:
            return all([buffer.is_free() for buffer in self._buffers])
        for node, leaves in self._leaves.items():
            readers, tensor = node.arg.readers, leaves[0]()
            if not readers or readers[-1] is not leaves[0]:          # there are others than the tensor handed out
                if not node.arg.is_free():
                    return False
            elif tensor is not None and tensor.uop is node:
                return False
        return True

    def made(self) -> dict[UOp, UOp]:
        """This call's memory, by symbol. It is made when needed: a view that is kept alive would hide its readers."""
        return {s: node.reshape(s.shape) for s, node in self._nodes.items()}

    def hand_out(self, captured: CapturedCall, tensors: list[Tensor], arguments: list[UOp], shown: dict[UOp, UOp],
                 found: list[Tensor], holders: list[Any]) -> Any:
        """Bind what the function binds; its results in the form it returned them. `shown` are the buffers that weights
        had before the run."""
        for buffer in self._counted:
            buffer.version += 1
        given: dict[UOp, UOp] = {}
        if self._brings:
            given = {**self.made(), **shown, **dict(zip(captured.inputs, arguments))}
        for (number, node, then), leaves in zip(self._after, self._after_leaves):
            tensor = found[number]
            new = node if node is not None else _moved(then, given.get(then.base, then.base), captured.names)
            if node is None or storage_of(tensor) is not None and is_shared(tensor):
                tensor._rebound(new)
            else:                                # a leaf, and the latest reader
                tensor.uop = new
                reference, readers = weakref.ref(tensor), node.arg.readers
                leaves[:] = (reference,)
                if not readers or readers[-1] is not reference:
                    node.arg.add_reader(reference)
        for number, weight, node in self._next_nodes:
            captured.seen[number] = node
            if weight is not None:
                weight.node = node
        for array, position, address in self._next_writes:
            array[position] = address
        if self._simple is not None:
            results = [make(node, leaves) for make, node, leaves in self._simple]
        else:
            if self._brings:
                self._bind(captured, tensors, given, found)
            results = self._results(captured, tensors, given, found)
            for (binding, form), holder in zip(captured.bound, holders):
                binding.put(holder, form.filled(results))
            for (binding, by), holder in zip(captured.raised, holders[len(captured.bound):]):
                binding.put(holder, binding.get(holder, binding.name) + by)
        return results[captured.returned.numbers[0]] if captured.returned.single else captured.returned.filled(results)

    def _results(self, captured: CapturedCall, tensors: list[Tensor], given: dict[UOp, UOp],
                 found: list[Tensor]) -> list[Tensor]:
        """The tensors that this call returns or puts somewhere. All of them are there before a name is bound, which may
        have held one that is given as itself."""
        results = []
        for node, g in zip(self._given, captured.given):
            if node is not None:
                made = g.kind._of_result(node, self._leaves[node])
                if g.requires_grad is not None:
                    made.requires_grad = g.requires_grad
            elif g.node is not None:
                view = _moved(g.node, given.get(g.node.base, g.node.base), captured.names)
                made = g.kind(view, requires_grad=g.requires_grad)
            else:
                made = g.itself(tensors, found)
            results.append(made)
        return results

    def _bind(self, captured: CapturedCall, tensors: list[Tensor], given: dict[UOp, UOp], found: list[Tensor]) -> None:
        """Leave the gradients that the function leaves, and change the arguments that it changes."""
        for number, grad in captured.grads:
            tensor = found[number]
            tensor.grad = None if grad is None else tensor._with(
                _moved(grad, given.get(grad.base, grad.base), captured.names))
        for i, node in captured.argument_updates:
            tensors[i]._rebound(_moved(node, given.get(node.base, node.base), captured.names))
        for i, node in captured.argument_grads:
            add_gradient(tensors[i], tensors[i]._with(_moved(node, given.get(node.base, node.base), captured.names)))


def _is_reshaped(node: UOp) -> bool:
    """Whether a node is a buffer, reshaped or not."""
    while node.op is o.RESHAPE:
        node = node.src[0]
    return node.op is o.BUFFER


def _nodes_before(traced: TracedCall, source: BufferSource) -> list[UOp]:
    """What the tensors of a source stood for when the call began."""
    grads = [grad for grad in (traced.before[i].grad for i in source.owners) if grad is not None]
    return [traced.before[i].node for i in source.numbers] or [grad.uop for grad in grads][:1]
