"""Run a function once and record all that is needed to run it again. In: a function, its arguments. Out: `TracedCall`.

A trace records which buffers were launched on and where each comes from: an argument, a tensor that the function sees
(found again by its path), the gradient of one, plain data, or the call itself; which tensors the call left changed, and
where it put new ones. Tensors that are made or written during the call are recorded by engine/capture.py. Does not know
other traces or replays.
"""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

from glassgrad.base.errors import JitError
from glassgrad.base.source_lines import line_of
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.gradient import passes_to
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.symbolic import Symbol, lengths_in, most, replaced
from glassgrad.compiler.graph.uop import UOp
from glassgrad.engine.buffer import Buffer
from glassgrad.engine.capture import record
from glassgrad.engine.realize import is_result
from glassgrad.jit.bindings import Binding
from glassgrad.jit.guards import Walk
from glassgrad.jit.values import PLAIN, is_nest, mapped, tensors_of
from glassgrad.tensor.autograd.leaves import cut_off, hold, holders, is_cut_off, is_held
from glassgrad.tensor.autograd.no_grad import traced as noting_tensors
from glassgrad.tensor.formulas.random_numbers import streams
from glassgrad.tensor.jit_access import assign_node, computed_from
from glassgrad.tensor.memory.storage import follows, is_view, leave, shares_with
from glassgrad.tensor.tensor import Tensor, class_of_results

__all__ = ["BufferSource", "GivenTensor", "Outcome", "TracedCall", "add_gradient", "as_buffer", "is_lazy", "name_of"]


class Before(NamedTuple):
    """A tensor in sight as the call found it."""
    tensor: Tensor
    node: UOp
    grad: Tensor | None
    requires_grad: bool | None


class BufferSource:
    """Where a buffer comes from at each call: tensors, by number, that hold it or whose gradient does."""

    def __init__(self, numbers: list[int], owners: list[int], paths: Sequence[str]):
        self.numbers, self.owners, self._paths = numbers, owners, paths

    def _names(self) -> tuple[set[str], set[str]]:
        return {self._paths[i] for i in self.numbers}, {self._paths[i] for i in self.owners}

    def may_be(self, earlier: BufferSource, gone: Set[str]) -> bool:
        """Whether another trace found its buffer in the same place, with at least one tensor that is not `gone`; the
        others may have held the value at the time (`before = w.detach()`)."""
        mine, theirs = self._names(), earlier._names()
        return not mine[0].isdisjoint(theirs[0] - gone) or not mine[0] and mine == theirs

    def narrow(self, earlier: BufferSource, gone: Set[str]) -> None:
        """Rely only on what both traces found."""
        names = earlier._names()[0] - gone
        self.numbers = [i for i in self.numbers if self._paths[i] in names] or self.numbers

    def nodes(self, found: Sequence[Tensor]) -> list[UOp]:
        """What its tensors stand for now: one value, or one of them was replaced."""
        nodes = [found[i].uop for i in self.numbers]
        return nodes + [grad.uop for grad in (found[i].grad for i in self.owners) if grad is not None]


class Outcome(NamedTuple):
    """A value that a call leaves. `kind` and `number` say where: the "value" or the "gradient" of a tensor in sight,
    the same of an "argument" ("argument gradient"), or a tensor that the call makes and returns or puts somewhere
    ("given"). `node` is None for a gradient that is reset."""
    kind: str
    number: int
    node: UOp | None


class GivenTensor(NamedTuple):
    """A tensor that a call returns or puts somewhere: one that it makes (`node`), or one that it did not make, given as
    itself: an argument or a tensor in sight, by number."""
    kind: type[Tensor]
    requires_grad: bool | None
    argument: int | None
    number: int | None
    node: UOp | None
    is_cut_off: bool                # no gradient passes it

    def itself(self, arguments: Sequence[Tensor], found: Sequence[Tensor]) -> Tensor:
        """The tensor that is given as itself, among those of a call."""
        return arguments[self.argument] if self.argument is not None else found[self.number]   # type: ignore[index]


class TracedCall:
    """A call that ran as it is, with everything that is needed to run it again."""

    def __init__(self, function: Callable[..., Any], walked: tuple[Any, Sequence[Any], Any], args: Any, kwargs: Any,
                 symbols: Sequence[Symbol], earlier: Mapping[str, weakref.ref[Tensor]], moving: Set[str]):
        """`walked` are the function itself, objects among the arguments and the `self` of a method. `earlier` are the
        tensors that the trace before found, by path; `moving` are paths where they were replaced already."""
        self.symbols = list(symbols)             # the variables that the arguments bring
        walk = self.walk = Walk(*walked)
        self.tensors, self.paths = list(walk.tensors), list(walk.paths)      # those out of sight are added to them
        self.numbers = {id(t): i for i, t in enumerate(self.tensors)}
        replaced_since = {p for p, t in zip(walk.paths, walk.tensors) if p in earlier and earlier[p]() is not t}
        self.moving = replaced_since | {*moving}
        self.found = {p: weakref.ref(t) for p, t in zip(walk.paths, walk.tensors)}
        originals = self.originals = list[Tensor]()
        found_as: list[tuple[UOp, Tensor | None]] = []       # what they stood for, and their gradients
        stands_in: dict[int, Tensor] = {}           # what stands for each argument
        self.itself: dict[int, int] = {}         # arguments that the function sees anyhow, and their numbers there
        self.arguments: list[Tensor] = []
        self.argument_nodes: list[UOp] = []
        views: list[UOp] = []
        trained = {t.uop.base for t in walk.tensors if t.requires_grad is True}
        self.computed: list[int] = []            # arguments, by number, that lead on to what is trained

        def stand_in(tensor: Tensor) -> Tensor:
            """The argument under a buffer node of its own, so that its uses are told apart from all others."""
            if id(tensor) in stands_in:
                return stands_in[id(tensor)]
            if id(tensor) in self.numbers:
                self.itself[len(stands_in)] = self.numbers[id(tensor)]
                stands_in[id(tensor)] = tensor
                return tensor
            if trained and _leads_to(tensor.uop, trained) or is_cut_off(tensor.uop.base):
                self.computed.append(len(self.arguments))
            source = as_buffer(tensor)
            longest = tuple(map(most, tensor.shape))
            buffer = Buffer.from_host(source.arg, source.arg.address, longest, tensor.dtype, source.arg.device)
            node = UOp(o.BUFFER, tensor.dtype, (), buffer)
            view = node.shrink([(0, n) for n in tensor.shape])
            made = class_of_results(tensor)(view, requires_grad=tensor.requires_grad)
            stands_in[id(tensor)] = made
            originals.append(tensor)
            self.arguments.append(made)
            self.argument_nodes.append(node)
            views.append(made.uop)
            return made

        args, kwargs = mapped(args, stand_in), mapped(kwargs, stand_in)
        _realize_fresh(walk.tensors)
        found_as += [(t.uop, t.grad) for t in originals]
        lazy = [(t, t.uop, as_buffer(t)) for t, p in zip(walk.tensors, walk.paths) if p in self.moving and is_lazy(t)]
        first, dice = streams.count, random.getstate()
        self.seed = streams.seed
        with noting_tensors(), record(s.name for s in symbols) as self.trace:
            for tensor, _, node in lazy:         # read as an argument would be
                tensor.uop = node
                hold(tensor)
            self.trace.touched.clear()
            self.trace.written.clear()
            self.before = [Before(t, t.uop, t.grad, t.requires_grad) for t in walk.tensors]
            try:
                result = function(*args, **kwargs)
            except BaseException:
                self._hand_back(originals, views)      # what it did to its arguments before it failed, it did
                _restore(lazy)
                raise
            self.returned = tensors_of(result)
            self._drop_unread_gradients()
            self._add_out_of_sight()
            self.bound, self.raised, faults = self._sort_changes()
            self.hidden = self._find_hidden()
            self._realize_left()
        self.streams = (first, streams.count)
        for tensor in self.returned:             # results are values: a replay could not make views of them
            if not self.was_there(tensor):
                leave(tensor)
        own = {id(a): tensor for a, tensor in zip(self.arguments, originals)}
        self.form = result
        self.result = mapped(result, lambda t: own.get(id(t), t))
        self._find_updates(views)
        # views follow the tensor that they are views of, which is changed too
        self.changed = [t for t, node, _, _ in self.before if self._is_changed(t, node) and not follows(t)]
        self.grads = [(t, t.grad) for t, _, grad, _ in self.before
                      if t.grad is not grad and id(t) in self.trace.touched]
        self._find_given()
        self.sources = self._sources()
        self._refuse_shared(originals, found_as)
        self.faults = [*faults, *self._faults(dice, result)]
        self._hand_back(originals, views)
        _restore(lazy)
        for binding, value in self.bound:
            if any(id(t) in own for t in tensors_of(value)):
                binding.put(binding.holder, mapped(value, lambda t: own.get(id(t), t)))

    # -- what the call changed -----------------------------------------------------------------------------------------
    def _touched(self) -> list[tuple[Tensor, Tensor | None]]:
        """The live tensors that the call gave a value or a gradient, with the gradient that they had before."""
        rows = [(reference(), old) for reference, old in self.trace.touched.values()]
        return [(t, old) for t, old in rows if t is not None]

    def _new_grads(self) -> list[Tensor]:
        """The gradients that the call left."""
        return [t.grad for t, old in self._touched() if t.grad is not old and t.grad is not None]

    def _is_changed(self, tensor: Tensor, node: UOp) -> bool:
        return tensor.uop is not node and id(tensor) in self.trace.written

    def _drop_unread_gradients(self) -> None:
        """Drop gradients that the call left lazy, except where wanted (requires_grad=True): `backward` offers them
        to every leaf at no cost, but a replay would have to compute them."""
        for i in self.computed:
            if self.arguments[i].grad is not None:
                raise JitError(
                    "a gradient ends at the edge of this function",
                    given=f"argument {i} of shape {self.arguments[i].shape}, computed from what is trained; backward() "
                    "ran inside", expected="arguments that gradients need not pass",
                    fix="compute it inside the function, or hand in x.detach(); this call went without that gradient")
        for tensor, old in self._touched():
            grad = tensor.grad
            if grad is not None and grad is not old and is_lazy(grad) and tensor.requires_grad is not True:
                tensor.grad = old

    def _add_out_of_sight(self) -> None:
        """Add to the tensors in sight those that the call changed, or left a gradient on, where the walk does not see
        them: they are found again while they live."""
        apart = {id(t) for t in self.arguments} | {id(r()) for r in self.trace.made} | self.numbers.keys()
        for tensor, old in self._touched():
            earlier = self.trace.written.get(id(tensor)) or tensor.uop
            changed = tensor.uop is not earlier and not follows(tensor) or tensor.grad is not old
            if changed and id(tensor) not in apart:
                self._add(Before(tensor, earlier, old, tensor.requires_grad))

    def _add(self, before: Before) -> int:
        """The number of a tensor out of sight."""
        self.numbers[id(before.tensor)] = number = len(self.tensors)
        self.tensors.append(before.tensor)
        self.paths.append(name_of(before.tensor))
        self.before.append(before)
        return number

    def _sort_changes(self) -> tuple[list[tuple[Binding, Any]], list[tuple[Binding, Any]], list[str]]:
        """What became of the values that the function sees: names bound to other tensors, numbers that were raised (by
        how much), and, in words, what a replay cannot do."""
        bound, raised, faults = [], [], []
        for binding, now in self.walk.changed():
            then = binding.value
            kind = type(then)
            if is_nest(now) and is_nest(then) and (tensors_of(now) or tensors_of(then)):
                bound.append((binding, now))
            elif binding.is_variable and kind in (int, float) and type(now) is kind and \
                    not self.walk.is_read(str(binding.name) if binding.name != "cell_contents" else binding.path):
                raised.append((binding, now - then))
            else:
                plain = isinstance(then, PLAIN) and isinstance(now, PLAIN)
                faults.append(f"the function itself changes {binding.path}" + (
                    f", from {then!r} to {now!r}" if plain else ""))
        return bound, raised, faults

    def _find_hidden(self) -> list[Tensor]:
        """Tensors that this call made and that live on where the walk does not see them. One that is only garbage in a
        circle is none: then the collector is run, once."""
        near = {id(t) for t in (*self.returned, *self.arguments, *self.placed(), *self.tensors)}
        near |= {id(grad) for grad in (*self._new_grads(), *[t.grad for t in self.tensors])}

        def surviving() -> list[Tensor]:
            nodes = self._made_nodes()
            alive = [t for t in (r() for r in self.trace.made) if t is not None and id(t) not in near]
            return [t for t in alive if (any(n in nodes for n in t.uop.toposort()) if is_lazy(t) else
                                         t.uop.base in nodes)]
        if surviving():
            gc.collect()
        return surviving()

    def _made_nodes(self) -> set[UOp]:
        """The buffers that this call computed or was given."""
        return {node for rec in self.trace.records for node in rec.results} | {*self.argument_nodes}

    def placed(self) -> list[Tensor]:
        """The tensors that the call put somewhere."""
        return [t for _, value in self.bound for t in tensors_of(value)]

    def was_there(self, tensor: Tensor) -> bool:
        """Whether a tensor was there before the call."""
        return id(tensor) in self.numbers

    def _realize_left(self) -> None:
        """Compute the lazy values that this call leaves. Left lazy, they would read the buffers of this call for ever;
        and no gradient passes them, because a replay records no graph."""
        changed = [t for t, node, _, _ in self.before if self._is_changed(t, node)]
        kept = self.numbers.keys() - {id(t) for t in (*changed, *self.returned)}
        left = [*self.returned, *changed, *self.placed(), *self._new_grads(), *self.hidden, *self.arguments]
        waiting = [t for t in dict.fromkeys(left) if is_lazy(t) and id(t) not in kept]
        trained = {node.base for b in self.before if b.tensor.requires_grad is True for node in (b.node, b.tensor.uop)}
        ends = [t for t in waiting if not self.was_there(t) and (_leads_to(t.uop, trained) or _is_trained(t.uop))]
        self.cut_off = {id(t) for t in ends}
        if waiting:
            waiting[0].realize(*waiting[1:])
            for tensor in ends:
                cut_off(tensor.uop)

    def _find_updates(self, views: list[UOp]) -> None:
        """What became of the arguments, which were `views`."""
        self.argument_updates = [(i, a.uop) for i, (a, node) in enumerate(zip(self.arguments, views))
                                 if a.uop is not node]
        self.argument_grads = [(i, a.grad.uop) for i, a in enumerate(self.arguments) if a.grad is not None]

    def _hand_back(self, originals: list[Tensor], views: list[UOp]) -> None:
        """Do to the arguments what was done to those that stood for them."""
        self._find_updates(views)
        for i, node in self.argument_updates:
            assign_node(originals[i], node)
        for i, node in self.argument_grads:
            add_gradient(originals[i], computed_from(originals[i], node))
        for tensor, original in zip(self.arguments, originals):
            if tensor.requires_grad is not original.requires_grad:
                original.requires_grad = tensor.requires_grad

    def _find_given(self) -> None:
        """The tensors that the call returns or puts somewhere; one that is given twice is one, with one number."""
        given = {id(t): t for t in (*self.placed(), *self.returned)}
        arguments = {id(a): i for i, a in enumerate(self.arguments)}
        self.given_numbers = {key: number for number, key in enumerate(given)}
        self.given = [GivenTensor(class_of_results(t), t.requires_grad, arguments.get(key), self.numbers.get(key),
                                  None if key in arguments or key in self.numbers else t.uop, key in self.cut_off)
                      for key, t in given.items()]

    def outcomes(self) -> list[Outcome]:
        """All values that the call leaves."""
        return [*[Outcome("value", self.numbers[id(t)], t.uop) for t in self.changed],
                *[Outcome("gradient", self.numbers[id(t)], None if g is None else g.uop) for t, g in self.grads],
                *[Outcome("argument", i, node) for i, node in self.argument_updates],
                *[Outcome("argument gradient", i, node) for i, node in self.argument_grads],
                *[Outcome("given", i, g.node) for i, g in enumerate(self.given) if g.node is not None]]

    def _refuse_shared(self, originals: list[Tensor], found_as: list[tuple[UOp, Tensor | None]]) -> None:
        """Raise if an argument is also reached where the jit does not look, or is a part of another tensor, and one of
        the two was changed: in this trace they were two tensors."""
        updated = {i for i, _ in self.argument_updates}
        in_sight = len(self.walk.tensors)
        hidden = {id(self.tensors[i]) for s in self.sources.values() if isinstance(s, BufferSource)
                  for i in s.numbers if min(s.numbers) >= in_sight}
        for i, tensor in enumerate(originals):
            given = ""
            if tensor.uop is not found_as[i][0] or tensor.grad is not found_as[i][1]:
                given = f"an argument of shape {tensor.shape} that it also changes by another way"
            elif i in updated and id(tensor) in hidden:
                given = f"an argument of shape {tensor.shape} that it changes and also reads by another way"
            elif i in updated and is_view(tensor):
                given = f"an argument of shape {tensor.shape} that it assigns to, which is a view of another tensor"
            elif i in updated and shares_with(tensor, {id(other) for other in originals}):
                given = f"an argument of shape {tensor.shape} that it assigns to, and a view of it"
            if given:
                raise JitError("a jitted function changes a tensor that it is handed and that is not the argument's "
                               "alone", given=given, expected="arguments that share nothing with what it changes, or "
                               "tensors that it sees in its closure, its globals or its objects",
                               fix="hand in a copy (x.clone()), or leave the jit off this function")

    def _faults(self, dice: Any, result: Any) -> Iterator[str]:
        """What a replay, which runs no Python, would leave undone, in words."""
        for tensor in self.hidden:
            yield f"the function puts a new tensor of shape {tensor.shape} where the jit does not look"
        yield from self.unseen
        for tensor, _, _, wanted in self.before:
            if tensor.requires_grad is not wanted:
                yield f"the function sets requires_grad of a tensor of shape {tensor.shape} to {tensor.requires_grad}"
        if random.getstate() != dice:
            yield "the function draws numbers from Python's random"
        for length in lengths_in(result):
            yield f"the function returns the length {length}"
        names = {s.name for s in self.symbols}
        for binding in self.walk.bindings:
            for length in lengths_in(binding.value):
                if names & {s.name for s in length.symbols if s.value is not None}:
                    yield f"it sees the length {length}, and is handed a variable of that name"

    def numbered(self, value: Any) -> Any:
        """A shape or a length without the values that the call brought."""
        places = {s: Symbol(f"argument {i}", s.low, s.high) for i, s in enumerate(self.symbols)}
        return replaced(value, lambda s: places.get(s, s)) if places else value

    # -- where buffers come from ---------------------------------------------------------------------------------------
    def _sources(self) -> dict[UOp, BufferSource | tuple[str, bytes]]:
        """Of every buffer that was read or that a result shows, and that the call neither made nor was given: where it
        comes from, or its bytes, where it is plain data."""
        in_sight: dict[UOp, tuple[list[int], list[int]]] = {}
        for i, (_, node, grad, _) in enumerate(self.before):
            in_sight.setdefault(node.base, ([], []))[0].append(i)
            if grad is not None:
                in_sight.setdefault(grad.uop.base, ([], []))[1].append(i)
        grads = [grad for _, _, grad, _ in self.before if grad is not None]
        apart = {id(t) for t in (*self.arguments, *grads)} | {id(r()) for r in self.trace.made} | self.numbers.keys()
        leaves: dict[UOp, list[Tensor]] = {}
        for t in dict.fromkeys(holders([n for rec in self.trace.records for n in rec.normal.order])):
            if id(t) not in apart:
                leaves.setdefault(t.uop.base, []).append(t)
        below = self.below_lazy()
        self.unseen: list[str] = []
        out: dict[UOp, BufferSource | tuple[str, bytes]] = {}
        known = set(self.argument_nodes)
        left = [out.node.base for out in self.outcomes() if out.node is not None]
        for bases, results in [*[([n.base for n in rec.normal.buffers], rec.results) for rec in self.trace.records],
                               (left, [])]:
            for base in bases:
                if base not in known and base not in out:
                    numbers, owners = in_sight.get(base, ([], []))
                    numbers = numbers + [self._add(Before(t, t.uop, t.grad, t.requires_grad)) for t in
                                         leaves.get(base) or [t for t in holders((base,)) if id(t) not in apart]]
                    if numbers or owners:
                        out[base] = BufferSource(numbers, owners, self.paths)
                        continue
                    out[base] = (str(line_of(base.arg.place)), bytes(base.arg.copy_out()))
                    if base not in self.trace.data and base not in below:
                        self.unseen.append(f"the function reads a tensor of shape {base.shape} that it does not see")
            known |= set(results)
        return out

    def drop_unused(self) -> None:
        """Forget tensors out of sight that no source is left with: they need not live until the next call."""
        sources = [source for source in self.sources.values() if isinstance(source, BufferSource)]
        used = {*range(len(self.walk.tensors)), *[i for s in sources for i in (*s.numbers, *s.owners)],
                *[self.numbers[id(t)] for t in (*self.changed, *[t for t, _ in self.grads])]}
        new = {old: number for number, old in enumerate(sorted(used))}
        for source in sources:
            source.numbers, source.owners = [new[i] for i in source.numbers], [new[i] for i in source.owners]
        self.before = [self.before[i] for i in new]
        self.tensors, self.paths = [self.tensors[i] for i in new], [self.paths[i] for i in new]
        self.numbers = {id(t): i for i, t in enumerate(self.tensors)}
        self._find_given()

    def below_lazy(self) -> set[UOp]:
        """The buffers that lazy tensors in sight are to be computed from."""
        return {node for node in toposort([t.uop for t in self.walk.tensors if is_lazy(t)]) if node.op is o.BUFFER}


# -- tensors -----------------------------------------------------------------------------------------------------------
def name_of(tensor: Tensor) -> str:
    """What stands for the path of a tensor out of sight."""
    return f"a tensor out of sight at {id(tensor):#x}"


def is_lazy(tensor: Tensor) -> bool:
    """Whether a tensor's values are not in memory."""
    return tensor.uop.base.op is not o.BUFFER


def as_buffer(tensor: Tensor) -> UOp:
    """A tensor's value as one BUFFER of its shape."""
    node = tensor.uop
    if node.op is o.BUFFER:
        return node
    if node.base.op is o.BUFFER:
        while node.op in (o.RESHAPE, o.DETACH):
            node = node.src[0]
        if node.op is o.BUFFER or is_result(node):
            return node.base
    return Tensor(tensor.uop.contiguous()).realize().uop.base


def add_gradient(tensor: Tensor, grad: Tensor) -> None:
    """Give an argument what `backward` inside a call left on it."""
    tensor.grad = grad if tensor.grad is None else tensor.grad + grad


def _leads_to(node: UOp, trained: Set[UOp]) -> bool:
    """Whether a gradient that arrives at a node goes on to one of those."""
    return any(n in trained for n in toposort([node], passes_to))


def _is_trained(node: UOp) -> bool:
    """Whether a gradient that arrives at a node goes on to a leaf that wants it."""
    return any(t.requires_grad is True for t in holders(toposort([node], passes_to)))


def _restore(lazy: list[tuple[Tensor, UOp, UOp]]) -> None:
    """Lazy tensors were computed for a call, not by it: they are again what they were (tensor, node, its value)."""
    for tensor, node, value in lazy:
        if tensor.uop is value:
            tensor.uop = node


def _realize_fresh(tensors: list[Tensor]) -> None:
    """Compute weights that were made and not yet read (`nn.Linear(3, 2)`), or each call would draw them again."""
    fresh = [t for t in tensors if is_lazy(t) and is_held(t) and not any(n.op is o.BUFFER for n in t.uop.toposort())]
    by_device: dict[str, list[Tensor]] = {}
    for t in fresh:
        by_device.setdefault(t.device, []).append(t)
    for group in by_device.values():
        Tensor.realize(*group)
