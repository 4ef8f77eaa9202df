"""Run a function once and record all that is needed to run it again. In: a function, its arguments. Out: `TracedCall`.

A trace records the buffers of each launch and where each buffer comes from: an argument, a tensor that the function can
reach (found again by its path), the gradient of one of these, plain data, or the call itself. It also records which
tensors the call changed, and where it stored new ones. Tensors that are made or written during the call are recorded by
engine/capture.py. Does not know other traces or replays.
"""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from operator import setitem
from typing import Any, NamedTuple

from glassgrad.base.errors import JitError
from glassgrad.base.source_lines import line_of
from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.graph.gradient import passes_to
from glassgrad.compiler.graph.symbolic import lengths_in, replaced, upper_bound
from glassgrad.engine.buffer import Buffer
from glassgrad.engine.capture import TouchedTensor, record
from glassgrad.engine.realize import below_reshapes
from glassgrad.engine.registry import registry
from glassgrad.jit.guards import Walk
from glassgrad.jit.plain_values import (ATTRIBUTE, CELL, GRADIENT, MEMBER, PLAIN, SIZE, Binding, Increment, SymbolNames,
                                        is_nest, mapped, tensors_of)
from glassgrad.tensor.autograd.gradient_leaves import (RESET, cut_off, is_cut_off, is_leaf, leaves_among, live_leaves,
                                                       register_leaf)
from glassgrad.tensor.autograd.no_grad import traced as noting_tensors
from glassgrad.tensor.formulas.random_numbers import streams
from glassgrad.tensor.jit_access import assign_node, set_unread_gradient, wants_gradient
from glassgrad.tensor.memory.storage import follows, is_view, leave, shares_with, sharing
from glassgrad.tensor.realize_and_read import value_of
from glassgrad.tensor.tensor import Tensor, class_of_results


class ReachedTensor(NamedTuple):
    """A tensor and its state before the call: one that the function can reach, one that it cannot reach but uses, an
    argument's stand-in, or the gradient of one of these."""
    tensor: Tensor
    node: UOp
    grad: Tensor | None
    requires_grad: bool | None
    path: str


class Argument(NamedTuple):
    """An argument that the function does not reach by itself, with its state before the call, and the stand-in that the
    function is called with."""
    tensor: Tensor
    stand_in: Tensor
    node: UOp
    grad: Tensor | None
    is_view: bool
    passes_gradients: bool                   # whether gradients would flow on from it


class TracedCall:
    """A call that was run as it is, with everything that is needed to run it again."""

    def __init__(self, function: Callable[..., Any], objects: Sequence[Any], instance: Any, args: Any, kwargs: Any,
                 symbols: SymbolNames, any_size: bool = False):
        """Trace one call. `objects` are the arguments that are neither tensors nor plain values; `instance` is the
        `self` of a method. With `any_size`, kernels that serve all sizes may run."""
        self.named: list[weakref.ref[Tensor]] = []       # to unreachable tensors, whose names are made of these
        self.symbols = symbols                   # the variables in the arguments' shapes, numbered
        walk = self.walk = Walk(function, objects, instance)
        self.sharing = sharing(walk.tensors)
        _realize_fresh(walk.tensors)
        args, kwargs = self._with_stand_ins(args, kwargs)
        # lazy tensors that are computed before the call, and then read like arguments: (tensor, node, its value)
        self.lazy = [(t, t.uop, computed_node(t)) for t in walk.tensors if _is_data(t)]
        self.seed, first, random_state = streams.seed, streams.count, random.getstate()
        with noting_tensors(), record((s.name for s in symbols), any_size) as self.trace:
            self._reach_all()
            try:
                result = function(*args, **kwargs) if instance is None else function(instance, *args, **kwargs)
            except BaseException:
                self._apply_to_arguments()       # what it did to its arguments before it failed is kept
                raise
            faults = self._find_changes(result)
            self._realize_left()
        self.streams = (first, streams.count)
        self._sort_left()
        self._find_sources()
        self._refuse_shared()
        self.faults = [*faults, *self._faults(random_state, result)]
        own = self._apply_to_arguments()
        self.form, self.result = result, mapped(result, lambda t: own.get(id(t), t))

    # -- before the call -----------------------------------------------------------------------------------------------
    def _with_stand_ins(self, args: Any, kwargs: Any) -> Any:
        """Replace each tensor among the arguments by a stand-in over the same memory but with a BUFFER of its own, so
        that the uses of an argument can be told apart from other uses of that memory. An argument that the function
        also reaches by itself is passed as it is."""
        passed = dict.fromkeys(tensors_of((args, kwargs)))
        self.arguments: list[Argument] = []
        for tensor in [t for t in passed if t not in self.walk.tensors]:
            source, longest = as_buffer(tensor), tuple(map(upper_bound, tensor.shape))
            buffer = Buffer.from_host(source.arg, source.arg.address, longest, tensor.dtype, source.arg.device)
            node = UOp(o.BUFFER, tensor.dtype, (), buffer).shrink([(0, n) for n in tensor.shape])
            made = class_of_results(tensor)(node, requires_grad=wants_gradient(tensor))
            made.grad = None if tensor.grad is None else tensor.grad.realize()
            self.arguments.append(Argument(tensor, made, tensor.uop, tensor.grad, is_view(tensor),
                                           passes_gradients(tensor, tensor.uop)))
        stand_ins = {id(row.tensor): row.stand_in for row in self.arguments}
        self.tensor_arguments = [stand_ins.get(id(t), t) for t in passed]
        return mapped([args, kwargs], lambda t: stand_ins.get(id(t), t))

    def _reach_all(self) -> None:
        """Record the state before the call of all tensors that it can read or change."""
        for tensor, _, node in self.lazy:
            tensor.uop = node
            register_leaf(tensor)
        self.trace.touched.clear()
        self.reached: dict[int, ReachedTensor] = {}        # by id
        for tensor, path in self.walk.tensors.items():
            self._reach(tensor, tensor.uop, tensor.grad, path)
        for i, row in enumerate(self.arguments):
            self._reach(row.stand_in, row.stand_in.uop, row.stand_in.grad, f"argument {i}")
        # what the work depends on besides the function: which tensors are in memory, and which have a gradient
        self.state = [(row.path, row.grad is None, row.node.op) for row in self.reached.values()]

    def _reach(self, tensor: Tensor, node: UOp, grad: Tensor | None, path: str) -> ReachedTensor:
        """Record a tensor's state before the call, and that of its gradient."""
        row = self.reached[id(tensor)] = ReachedTensor(tensor, node, grad, wants_gradient(tensor), path)
        if grad is not None and id(grad) not in self.reached:
            self._reach(grad, grad.uop, None, f"{path}.grad")
        return row

    def path(self, tensor: Tensor) -> str:
        """Return a name for a tensor that is the same in every trace: its path, or, for a new tensor, its number among
        those that the call returns or stores."""
        row = self.reached.get(id(tensor))
        return f"tensor {[*map(id, self.new_tensors)].index(id(tensor))}" if row is None else row.path

    def name_of(self, tensor: Tensor) -> str:
        """Return the name of a tensor that the function cannot reach; it serves as its path. It is made of the id of
        the weak reference that all share, so no other tensor gets the same name while that reference lives."""
        reference = weakref.ref(tensor)
        self.named.append(reference)
        return f"a tensor that the function cannot reach, {id(reference):#x}"

    # -- what the call changed -----------------------------------------------------------------------------------------
    def _touched(self) -> list[tuple[Tensor, TouchedTensor]]:
        """Return the live tensors that the call gave a value or a gradient."""
        rows = [(row.tensor(), row) for row in self.trace.touched.values()]
        return [(t, row) for t, row in rows if t is not None]

    def _new_grads(self) -> list[Tensor]:
        """Return the gradients that the call left on tensors."""
        return [t.grad for t, row in self._touched() if t.grad is not row.grad and t.grad is not None]

    def _is_changed(self, row: ReachedTensor) -> bool:
        """Return whether the call gave a tensor a value: another node, or (then `touched.node` is set) an assignment,
        even of the same."""
        touched = self.trace.touched.get(id(row.tensor))
        return touched is not None and (touched.node is not None or row.tensor.uop is not row.node)

    def _find_changes(self, result: Any) -> list[str]:
        """Find what the call stored: the names and gradients that it bound (`bound`), the tensors that it leaves there
        or returns (`left`), and those it left alive where the jit cannot find them (`hidden`). Return, in words, the
        changes that a replay cannot repeat."""
        self._drop_unread_gradients()
        self._add_unreachable()
        self.changed_gradients = [row for row in self.reached.values()
                                  if row.tensor.grad is not row.grad and id(row.tensor) in self.trace.touched]
        self.bound, faults = self._sort_changes()
        self.bound += [(Binding(GRADIENT, row.tensor, "", row.grad, f"{row.path}.grad"), row.tensor.grad)
                       for row in self.changed_gradients]
        nests = [result, *[value for _, value in self.bound]]
        self.left = [t for nest in nests for t in tensors_of(nest)]
        self.hidden = self._find_hidden()
        return faults

    def _drop_unread_gradients(self) -> None:
        """Drop gradients that the call left lazy, except those of tensors with requires_grad=True. `backward` gives a
        lazy gradient to every leaf at no cost, but a replay would have to compute them all."""
        for i, (_, tensor, _, _, _, passes) in enumerate(self.arguments):
            touched = self.trace.touched.get(id(tensor))
            if passes and touched is not None and touched.has_gradient:
                raise JitError(
                    "a gradient ends at the edge of this function",
                    given=f"argument {i} of shape {tensor.shape}, computed from what is trained; backward() ran "
                    "inside", expected="arguments that gradients need not pass",
                    fix="compute it inside the function, or pass x.detach(); this call went without that gradient")
        for tensor, row in self._touched():
            grad = tensor.grad
            if grad is not None and grad is not row.grad and is_lazy(grad) and wants_gradient(tensor) is not True:
                set_unread_gradient(tensor, RESET if row.is_reset else row.grad)

    def _made(self) -> set[int]:
        """Return the ids of the tensors that the call made and that are alive."""
        return {id(reference()) for reference in self.trace.made}

    def _add_unreachable(self) -> None:
        """Record the tensors that the function cannot reach by a path but that the call changed or left a gradient on:
        a replay finds them again by weak references."""
        made = self._made()
        for tensor, row in self._touched():
            earlier = row.node or tensor.uop
            changed = row.node is not None and not follows(tensor) or tensor.grad is not row.grad
            if changed and id(tensor) not in made and id(tensor) not in self.reached:
                self._reach(tensor, earlier, row.grad, self.name_of(tensor))

    def needed_tensors(self) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
        """Return the tensors from before the call that a replay needs (because it reads them, changes them or returns
        them) and that the walk does not find: tensors, and pairs (tensor, its gradient). All others may be freed."""
        read = [row.tensor for rows in (*self.sources.values(), self.lazy_read) for row in rows]
        used = {id(t) for t in (*read, *self.changed, *[row.tensor for row in self.changed_gradients], *self.left)}
        rows = [row for row in self.reached.values() if not used.isdisjoint((id(row.tensor), id(row.grad)))]
        gradients = [(row.tensor, row.grad) for row in rows if row.grad is not None and id(row.grad) in used]
        apart = {*self.walk.tensors, *[grad for _, grad in gradients], *[row.stand_in for row in self.arguments]}
        return [row.tensor for row in rows if row.tensor not in apart], gradients

    @property
    def updated_buffers(self) -> set[UOp]:
        """The buffers of weights and gradients that the call gives a new value."""
        tensors = {*map(id, self.changed), *[id(row.grad) for row in self.changed_gradients]}
        return {node for node, rows in self.sources.items() if any(id(row.tensor) in tensors for row in rows)}

    def _sort_changes(self) -> tuple[list[tuple[Binding, Any]], list[str]]:
        """Sort the changes of values that the function can see. Return the names that it bound to other tensors or to
        incremented numbers, and, in words, the changes that a replay cannot repeat."""
        bound, faults = list[tuple[Binding, Any]](), []
        for binding, now in self.walk.changed():
            then = binding.value
            kind = type(then)
            if binding.way.put and is_nest(now) and is_nest(then) and (tensors_of(now) or tensors_of(then)):
                bound.append((binding, now))
            elif binding.way in (MEMBER, ATTRIBUTE, CELL) and kind in (int, float) and type(now) is kind and \
                    (binding.path if binding.way is CELL else str(binding.name)) not in self.walk.read:
                bound.append((binding, Increment(now - then)))
            else:
                plain = isinstance(then, PLAIN) and isinstance(now, PLAIN)
                faults.append(f"the function itself changes {binding.path}" + (
                    f", from {then!r} to {now!r}" if plain else ""))
        return bound, faults

    def _find_hidden(self) -> list[Tensor]:
        """Return the tensors that this call made and that stay alive where the jit cannot find them. If there are any,
        run the garbage collector first: they may only be part of a dead reference cycle."""
        near = {*self.reached, *[id(t) for t in (*self.left, *self._new_grads())]}

        def surviving() -> list[Tensor]:
            alive = [t for t in (r() for r in self.trace.made) if t is not None and id(t) not in near]
            return [t for t in alive if t.uop.op is not o.CONST]     # functions with gradients of their own hold one
        if surviving():
            gc.collect()
        return surviving()

    def existed_before(self, tensor: Tensor) -> bool:
        """Return whether a tensor existed before the call."""
        return id(tensor) in self.reached and all(tensor is not row.stand_in for row in self.arguments)

    def _realize_left(self) -> None:
        """Compute the lazy values that this call leaves in tensors. If they stayed lazy, they would read the buffers of
        this call for ever. No gradient passes through them, because a replay records no graph."""
        rows = self.reached.values()
        trained = {self.reached[id(row.stand_in)].node.base for row in self.arguments
                   if row.passes_gradients or wants_gradient(row.tensor) is True}
        for tensor in self.new_tensors:            # copy a view of a stand-in: it would lead to no leaf of the caller's
            if not is_lazy(tensor) and _leads_to(tensor.uop, trained):
                leave(tensor)
                tensor.uop = tensor.uop.contiguous()
        trained |= {node.base for row in rows if wants_gradient(row.tensor) is True
                    for node in (row.node, row.tensor.uop)}
        changed = [row.tensor for row in rows if self._is_changed(row)]
        left = dict.fromkeys([*self.left, *changed, *self._new_grads(), *self.hidden])
        waiting = [t for t in left if is_lazy(t)]
        ends = [t for t in waiting if not self.existed_before(t) and (
            _leads_to(t.uop, trained) or passes_gradients(t, t.uop))]
        if waiting:
            waiting[0].realize(*waiting[1:])
        self.cut_off = {t.uop.base for t in ends}          # no gradient passes these
        for node in self.cut_off:
            cut_off(node)

    def _sort_left(self) -> None:
        """Sort the tensors that the call leaves values in."""
        for tensor in self.left:                 # results are values: a replay cannot make a result a view of a tensor
            if not self.existed_before(tensor):
                leave(tensor)
        # a view gets its value from the tensor that it is a view of, which is in the list too
        self.changed = [row.tensor for row in self.reached.values()
                        if self._is_changed(row) and not follows(row.tensor)]
        self.replaced = [t for t in self.changed if self.trace.touched[id(t)].is_replaced]
        self.made = {node for record in self.trace.records for node in record.results}

    @property
    def new_tensors(self) -> list[Tensor]:
        """The new tensors that the call returns or stores, each once."""
        return [t for t in dict.fromkeys(self.left) if id(t) not in self.reached]

    @property
    def argument_paths(self) -> list[str]:
        """The path of each tensor argument: it says which of the arguments the function also reaches by itself."""
        return [self.path(t) for t in self.tensor_arguments]

    def outcomes(self) -> dict[Tensor, UOp]:
        """Return the node of each tensor that the call changed or made."""
        return {t: t.uop for t in (*self.changed, *self.new_tensors)}

    def _apply_to_arguments(self) -> dict[int, Tensor]:
        """Apply to the arguments what the call did to their stand-ins, and put the arguments where the function stored
        the stand-ins. Lazy tensors that were computed before the call become lazy again. Return {id of a stand-in: its
        argument}."""
        own = {id(row.stand_in): row.tensor for row in self.arguments}
        for original, stand_in, _, grad, _, _ in self.arguments:
            touched = self.trace.touched.get(id(stand_in))
            if touched is not None and touched.is_replaced:
                leave(original)
            if stand_in.uop is not self.reached[id(stand_in)].node:
                assign_node(original, stand_in.uop)
            if stand_in.grad is not grad:
                original.grad = stand_in.grad
            if wants_gradient(stand_in) is not wants_gradient(original):
                original.requires_grad = wants_gradient(stand_in)
        for binding, now in self.walk.changed():
            way, holder = binding.way, binding.holder
            put = [(binding.name, now)] if way.put else []
            if way is SIZE and isinstance(holder, (dict, list)):       # entries were added: look at all of them
                put = list(holder.items() if isinstance(holder, dict) else enumerate(holder))
            for name, value in put:
                if is_nest(value) and not own.keys().isdisjoint(map(id, tensors_of(value))):
                    (way.put or setitem)(holder, name, mapped(value, lambda t: own.get(id(t), t)))
        for tensor, node, value in self.lazy:
            if tensor.uop is value:
                tensor.uop = node
        return own

    def _refuse_shared(self) -> None:
        """Raise if an argument is also used as a tensor that the jit cannot find, or shares memory with another tensor,
        and one of the two was changed. In this trace they were two tensors, so a replay would not see the change."""
        hidden = {id(row.tensor) for rows in self.sources.values() for row in rows
                  if not any(other.tensor in self.walk.tensors for other in rows)}
        changed = {*map(id, self.changed)} - {*map(id, self.replaced)}
        originals = {id(row.tensor) for row in self.arguments}
        for tensor, stand_in, node, grad, was_view, _ in self.arguments:
            updated = id(stand_in) in changed
            problems = {
                "it also changes by another way": tensor.uop is not node or tensor.grad is not grad,
                "it changes and also reads by another way": updated and id(tensor) in hidden,
                "it assigns to, which is a view of another tensor": updated and was_view,
                "it assigns to, and a view of it": updated and shares_with(tensor, originals)}
            for words in [words for words, is_so in problems.items() if is_so]:
                raise JitError("a jitted function changes an argument that it also uses in another way",
                               given=f"an argument of shape {tensor.shape} that {words}",
                               expected="arguments that share nothing with what it changes, or tensors that it sees in "
                               "its closure, its globals or its objects",
                               fix="pass a copy (x.clone()), or leave the jit off this function")

    def _faults(self, random_state: Any, result: Any) -> Iterator[str]:
        """Yield, in words, what a replay would leave undone, because it runs no Python."""
        for tensor in self.hidden:
            yield f"the function puts a new tensor of shape {tensor.shape} where the jit does not look"
        yield from self.unseen
        for tensor in self.replaced:
            if self.trace.touched[id(tensor)].views_written:
                yield f"the function assigns to a tensor of shape {tensor.shape} and then replaces it"
            if any(wants_gradient(other) is True and other is not tensor for _, other in leaves_among([tensor.uop])):
                yield f"the function replaces a tensor of shape {tensor.shape} by one that is trained"
        for tensor, _, _, wanted, _ in self.reached.values():
            if wants_gradient(tensor) is not wanted:
                yield f"the function sets requires_grad of a tensor of shape {tensor.shape} to {wants_gradient(tensor)}"
        if random.getstate() != random_state:
            yield "the function draws numbers from Python's random"
        for length in lengths_in(result):
            yield f"the function returns the length {length}"
        names = {s.name for s in self.symbols}
        for binding in self.walk.bindings:
            for length in lengths_in(binding.value):
                if names & {s.name for s in length.symbols if s.value is not None}:
                    yield f"it sees the length {length}, and is passed a variable of that name"

    def numbered(self, value: Any) -> Any:
        """Return a shape or a length with the call's variables numbered and without their values."""
        return replaced(value, lambda s: self.symbols.get(s, s)) if self.symbols else value

    # -- origin of buffers ---------------------------------------------------------------------------------------------
    def _find_sources(self) -> None:
        """For each buffer that was read, or that a result is a view of, and that the call did not make, find where it
        comes from: the tensors that hold it (`sources`), or plain data (`data`: the line that made it, and its
        bytes)."""
        bases = [node.base for record in self.trace.records for node in record.normal.buffers]
        left = dict.fromkeys(node.base for node in self.outcomes().values())
        self.result_buffers = [base for base in left if base in self.made]
        held_by: dict[UOp, list[ReachedTensor]] = {base: [] for base in (*bases, *left) if base not in self.made}
        nodes = dict.fromkeys([*[n for record in self.trace.records for n in record.normal.order], *held_by])
        # tensors that were lazy before the call and that it computes, and the buffers that it reads for that
        self.lazy_read = [row for row in self.reached.values()
                          if row.node in nodes and row.node.base.op is not o.BUFFER]
        self.below_lazy = {n for n in toposort([row.node for row in self.lazy_read]) if n.op is o.BUFFER}
        apart = {*self._made(), *self.reached}
        for row in self.reached.values():
            if row.node.base in held_by:
                held_by[row.node.base].append(row)
        for tensor in dict.fromkeys(live_leaves(nodes)):
            if tensor.uop.base in held_by and id(tensor) not in apart:
                held_by[tensor.uop.base].append(self._reach(tensor, tensor.uop, tensor.grad, self.name_of(tensor)))
        self.sources = {base: rows for base, rows in held_by.items() if rows}
        self.data: dict[UOp, tuple[str, bytes]] = {}
        self.unseen: list[str] = []
        for base in [base for base, rows in held_by.items() if not rows]:
            self.data[base] = (str(line_of(base.arg.place)), bytes(base.arg.copy_out()))
            if base not in self.trace.data and base not in self.below_lazy:
                self.unseen.append(f"the function reads a tensor of shape {base.shape} that it does not see")


# -- tensors -----------------------------------------------------------------------------------------------------------
def is_lazy(tensor: Tensor) -> bool:
    """Return whether a tensor's value is not in memory."""
    return tensor.uop.base.op is not o.BUFFER


def computed_node(tensor: Tensor) -> UOp:
    """Compute a lazy tensor; return its value as a BUFFER, or as a reshape of one if the shapes differ."""
    value = value_of(tensor.uop, tensor.device)
    return value if value.shape == tensor.shape else value.reshape(tensor.shape)


def as_buffer(tensor: Tensor) -> UOp:
    """Return a tensor's value as one BUFFER, of whatever shape. It is computed once, however many calls the tensor is
    passed to."""
    node = tensor.uop if is_lazy(tensor) else below_reshapes(tensor.uop)
    return value_of(node, tensor.device).base


def _leads_to(node: UOp, trained: Set[UOp]) -> bool:
    """Return whether the gradient of a node flows on to one of the `trained` nodes."""
    return any(n in trained for n in toposort([node], passes_to))


def passes_gradients(tensor: Tensor, node: UOp) -> bool:
    """Return whether the gradient of a tensor with this node flows on to another leaf with requires_grad=True, or would
    flow on through a jitted call."""
    if node.op is o.BUFFER:
        leaves = node.arg.leaves
        if not leaves or len(leaves) == 1 and leaves[0]() is tensor:         # the common case, without a search
            return id(node) in registry.jitted.rows
    reached = toposort([node], passes_to)
    return any(map(is_cut_off, reached)) or any(
        wants_gradient(t) is True and t is not tensor for _, t in leaves_among(reached))


def _is_data(tensor: Tensor) -> bool:
    """Return whether a tensor is lazy, is computed from memory, and passes no gradient on: a traced function then reads
    it as data."""
    return is_lazy(tensor) and not passes_gradients(tensor, tensor.uop) and \
        any(n.op is o.BUFFER for n in tensor.uop.toposort())


def _realize_fresh(tensors: Iterable[Tensor]) -> None:
    """Compute weights that were created but never read (`nn.Linear(3, 2)`); otherwise each call would draw them
    again."""
    fresh = [t for t in tensors if is_lazy(t) and is_leaf(t) and not any(n.op is o.BUFFER for n in t.uop.toposort())]
    for device in dict.fromkeys(t.device for t in fresh):
        Tensor.realize(*[t for t in fresh if t.device == device])
