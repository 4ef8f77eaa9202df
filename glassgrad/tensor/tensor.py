"""Define `Tensor`. In: values. Out: more of them, once they are read.

Arithmetic builds graph nodes and runs nothing. Reading (`numpy`, `item`, `tolist`, `print`) or `realize` runs them. The
methods are in the mixins that this class inherits from, one theme each; running, reading and gradients are here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

from glassgrad.base.errors import DTypeError, GradientError, InputError, NoAxesError, ShapeError
from glassgrad.base.source_lines import calls_are_noted
from glassgrad.compiler.graph import UOp, dtype_by_name, full, ops as o, sizes_now, toposort
from glassgrad.compiler.graph.gradient import at_once, deferred, passes_to
from glassgrad.engine.memory_plan import MemoryUse
from glassgrad.tensor import realize_and_read as running
from glassgrad.tensor.autograd.gradient_leaves import (RESET, assigned, is_only_leaf, leaves_among, move_to_value,
                                                       note_backward, note_gradients_of, refuse_cut_off,
                                                       refuse_replaced, register_leaf)
from glassgrad.tensor.autograd.no_grad import ended
from glassgrad.tensor.autograd.training_mode import Training, TrainingSwitch
from glassgrad.tensor.formulas import bitcast
from glassgrad.tensor.memory.interop import InteropMixin
from glassgrad.tensor.memory.python_values import HostValue, nest
from glassgrad.tensor.memory.storage import CopiedMembers, is_shared, leave, renew, share, storage_of
from glassgrad.tensor.methods import REQUIRED, Self, of_kind, resolve_axis, spelled
from glassgrad.tensor.methods.arithmetic import ArithmeticMixin
from glassgrad.tensor.methods.assignment import AssignmentMixin, in_place_methods, whole_value
from glassgrad.tensor.methods.casts import CastMixin, PredicatesMixin
from glassgrad.tensor.methods.creation import CreationMixin
from glassgrad.tensor.methods.elementwise import ElementwiseMixin
from glassgrad.tensor.methods.linalg.factorizations import FactorizationsMixin
from glassgrad.tensor.methods.linalg.products import ProductsMixin
from glassgrad.tensor.methods.neural.activations import ActivationsMixin
from glassgrad.tensor.methods.neural.attention import AttentionMixin
from glassgrad.tensor.methods.neural.convolution import ConvolutionMixin
from glassgrad.tensor.methods.neural.images import ImagesMixin
from glassgrad.tensor.methods.neural.losses import LossesMixin
from glassgrad.tensor.methods.neural.normalization import NormalizationMixin
from glassgrad.tensor.methods.random import RandomMixin
from glassgrad.tensor.methods.reductions import ReductionsMixin
from glassgrad.tensor.methods.shape.einsum import EinsumMixin
from glassgrad.tensor.methods.shape.indexing import IndexingMixin
from glassgrad.tensor.methods.shape.joining_and_splitting import JoiningMixin
from glassgrad.tensor.methods.shape.movement import MovementMixin
from glassgrad.tensor.methods.shape.padding import PaddingMixin
from glassgrad.tensor.methods.shape.scatter import ScatterMixin
from glassgrad.tensor.methods.sorting import SortingMixin
from glassgrad.tensor.methods.special_functions import SpecialFunctionsMixin
from glassgrad.tensor.printing import as_text
from glassgrad.tensor.tinygrad_methods import TinygradNamesMixin

_BUFFER = o.BUFFER


class Tensor(ArithmeticMixin, AssignmentMixin, CastMixin, CreationMixin, ElementwiseMixin, FactorizationsMixin,
             ProductsMixin, ActivationsMixin, AttentionMixin, ConvolutionMixin, ImagesMixin, LossesMixin,
             NormalizationMixin, PredicatesMixin, RandomMixin, ReductionsMixin, EinsumMixin, IndexingMixin,
             JoiningMixin, MovementMixin, PaddingMixin, ScatterMixin, SortingMixin, SpecialFunctionsMixin,
             InteropMixin, TinygradNamesMixin, metaclass=TrainingSwitch):
    """An array of numbers of one type, computed when it is needed.

    >>> x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> (x @ x + 1).relu().sum().item()
    58.0
    >>> x
    Tensor([[1., 2.],
            [3., 4.]], dtype=float32, device=CPU)
    """
    __slots__ = ()

    # -- running ---------------------------------------------------------------------------------------------
    def realize(self, *others: Tensor, do_update_stats: bool = True) -> Self:
        """Compute this tensor (and others with it) now and keep the values; gradients no longer pass through it.
        (`do_update_stats` is tinygrad's; `GlobalCounters` count everything here.)

        >>> x = (Tensor([1, 2]) + 1).realize()
        >>> x.uop.op
        Ops.BUFFER
        """
        if others:
            of_kind("list[Tensor]", "realize", others=others)
        elif self._storage is None:
            node = self.uop
            if node.op is not _BUFFER or not is_only_leaf(self):
                move_to_value(running.realize_alone(node, node.device or self.device), self)
            return self
        tensors, views = _owners_first((self, *others))
        for t, node in zip(tensors, running.realize([t.uop for t in tensors], self.device)):
            if (storage := t._storage) is not None and t._steps and t.uop is not node:
                if is_shared(t):
                    storage.keep()
                else:
                    leave(t)                     # a view whose owner is gone becomes a value of its own
            move_to_value(node, t)
        for view, owner in views:
            renew(view, owner)
            register_leaf(view)
        return self

    def schedule(self, *others: Tensor) -> running.Planned:
        """Return the kernels that `realize` would run now, each with its `.ast`; run nothing.

        >>> len((Tensor([1, 2]) + 1).schedule())
        1
        """
        of_kind("list[Tensor]", "schedule", others=others)
        return running.schedule([t.uop for t in (self, *others)], self.device)

    def memory_plan(self, *others: Tensor) -> MemoryUse:
        """Return the memory that `realize` would need now, in bytes: `.peak`, and its parts; run nothing.

        >>> print((Tensor.ones(1024, 1024).contiguous().realize() + 1).memory_plan())
        8.0 MiB: 4.0 MiB read, 4.0 MiB made
        """
        of_kind("list[Tensor]", "memory_plan", others=others)
        return running.memory([t.uop for t in (self, *others)], self.device)

    def contiguous(self, *args: Any, **kwargs: Any) -> Self:
        """The same values in memory of their own, row by row, once they are computed. (Options of other libraries, such
        as a memory format, have no effect: there is no other order here.)

        >>> Tensor([[1, 2], [3, 4]]).T.contiguous().tolist()
        [[1, 3], [2, 4]]
        """
        return self._with(self.uop.contiguous())

    def clone(self, device: str | None = None, **spelling: Any) -> Self:
        """A copy with memory of its own, here or on another device.

        >>> Tensor([1, 2]).clone().tolist()
        [1, 2]
        """
        spelled("clone", spelling, device=device)
        made = self._with(running.copied(self.uop, self.device))
        return made if device is None else made.to(device)

    # -- reading ---------------------------------------------------------------------------------------------
    @property
    def data(self) -> TensorValues:
        """The values, in the meaning of two libraries: `x.data` (PyTorch) is a tensor that writes into this one and
        that no gradient passes; `x.data()` (tinygrad) is the memory of the values, with type and shape.

        >>> x = Tensor([[1, 2], [3, 4]])
        >>> _ = x.data.add_(1)
        >>> x.data()[1, 0], x.tolist()
        (4, [[2, 3], [4, 5]])
        """
        return TensorValues.of(self)

    @data.setter
    def data(self, value: Tensor) -> None:
        if (storage := storage_of(self)) is not None and storage_of(value) is storage:    # x.data += 1 has written
            return
        self.replace(value.detach())
        assigned(self)

    def _memory(self) -> memoryview:
        x = self if self.dtype.kind != "f" or self.dtype.bits >= 32 else self.float()
        if 0 in sizes_now(self.shape):
            raise ShapeError("there is no memory to show", given=f"a tensor of shape {self.shape}",
                             expected="at least one element", fix="use .numpy() or .tolist(), which can be empty")
        data = running.bytes_of(x.uop, x.device)
        return data.cast("B").cast(x.dtype.format, sizes_now(self.shape))  # type: ignore[call-overload,no-any-return]

    def tolist(self) -> Any:
        """The values as nested lists (or one number).

        >>> Tensor([[1, 2], [3, 4]]).tolist()
        [[1, 2], [3, 4]]
        """
        if 0 in sizes_now(self.shape):
            return nest([], sizes_now(self.shape))
        return self._memory().tolist()

    def item(self) -> Any:
        """The one value of a tensor with one element, as a Python number.

        >>> Tensor([3.5]).item()
        3.5
        """
        if math.prod(sizes_now(self.shape)) != 1:
            raise ShapeError("item() is for a tensor with one element",
                             given=f"shape {self.shape}, {self.numel()} elements", expected="1 element",
                             fix="use .tolist() or .numpy(), or reduce it first: x.sum().item()")
        x = self if self.dtype.kind != "f" or self.dtype.bits >= 32 else self.float()
        return running.number_in(x.uop, x.device)

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of one axis.

        >>> Tensor.zeros(2, 3).size(), Tensor.zeros(2, 3).size(-1)
        ((2, 3), 3)
        """
        return self.shape if dim is None else self.shape[resolve_axis(dim, self.ndim, "size")]

    def __repr__(self) -> str: return as_text(self)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec and self.numel() == 1 else format(repr(self), spec)

    def __len__(self) -> int:
        if not self.shape:
            raise NoAxesError("a tensor without axes has no length", given="shape ()", expected="at least 1 axis",
                             fix="use .item() for its value")
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    def __contains__(self, value: Any) -> bool:
        found = self == value
        if isinstance(found, bool):                 # beside None
            raise InputError("a tensor holds numbers", given=f"{value!r} in a tensor", expected="a number or a tensor",
                             fix="to look for it among tensors, write: any(t is x for t in tensors)")
        return bool(found.any().item())

    def __bool__(self) -> bool:
        if self.numel() != 1:
            raise ShapeError("a tensor with several elements is neither true nor false", given=f"shape {self.shape}",
                             expected="1 element", fix="use .any() or .all(): if (x > 0).all(): ...")
        return bool(self.item())

    def __float__(self) -> float: return float(self.item())
    def __int__(self) -> int: return int(self.item())

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise DTypeError("only integers can be an index", given=f"a tensor of {self.dtype.name}",
                             expected="an integer tensor with 1 element", fix="cast it first: x.int()")
        return int(self.item())

    def __reduce__(self) -> Any:
        return (_restored, (self.__class__, self.dtype.name, sizes_now(self.shape),
                            bytes(running.bytes_of(self.uop, self.device)), running.canonical_device(self.device),
                            self._requires_grad))

    def __copy__(self) -> Self:
        """A view, as in PyTorch: `copy.copy(x)` shares the values of x, `copy.deepcopy(x)` copies them."""
        return self._view(self.uop)

    def __deepcopy__(self, known: dict[int, Any]) -> Self:
        """A copy with memory of its own. Copies that are made together share memory where their originals do."""
        make, parts = self.__reduce__()
        twin = known[id(self)] = make(*parts)
        storage = storage_of(self)
        if storage is not None and is_shared(self):
            copies = known.setdefault(id(storage), CopiedMembers(storage))
            copies.add(self, twin, lambda: copy.deepcopy(self._with(whole_value(storage))))
        if self.grad is not None:               # copied here, but not pickled: as in PyTorch
            twin.grad = copy.deepcopy(self.grad, known)
        return twin  # type: ignore[no-any-return]

    # -- gradients -------------------------------------------------------------------------------------------
    def backward(self, gradient: Tensor | None = None, retain_graph: bool = False,
                 create_graph: bool = False) -> Self:
        """Compute the gradient of this value for every leaf it depends on, as `grad` of the leaf. Leaves are tensors
        that were made, not computed, and those whose `requires_grad` is True. A second call adds to `grad`; reset it
        with `x.grad = None`. This also resets the leaves whose `requires_grad` is None: otherwise the gradient of data,
        which is never read, would collect every step's graph. There is no graph to retain or to free, because it is the
        lazy expression itself, so this may be called as often as you like, whatever `retain_graph` says. Gradients are
        expressions too, whatever `create_graph` says.

        >>> x = Tensor([1.0, 2.0])
        >>> loss = (x * x).sum().backward()
        >>> x.grad.tolist()
        [2.0, 4.0]
        """
        seed = self._seed("backward", gradient)
        order = toposort([self.uop])
        refuse_replaced(self.uop, order)
        leaves = [(n, t) for n, t in leaves_among(order) if t.dtype.kind == "f" and t._requires_grad is not False]
        was_reset = any(t._grad is RESET for _, t in leaves)
        derive = at_once if calls_are_noted() else deferred          # at once: messages then name each node's call
        gradients = derive(self.uop, seed, [n for n, _ in leaves], order)
        none_found = all(node is None for node in gradients)
        if none_found and {n for n, _ in leaves}.isdisjoint(toposort([self.uop], passes_to)):
            raise GradientError("nothing here has a gradient",
                                given="a value computed from no float tensor that wants one, or from detached ones",
                                expected="at least one float tensor whose requires_grad is not False, still alive",
                                fix="compute the value from float tensors, or set x.requires_grad = True")
        if bitcast.floats_were_reread:
            bitcast.refuse_bits(self.uop, [n for n, t in leaves if t._requires_grad or none_found])
        for (_, leaf), node in zip(leaves, gradients):
            if node is not None:
                made = leaf._with(self._as_grad(node, create_graph))
                add = leaf.grad is not None and not (was_reset and leaf._requires_grad is None)
                leaf.grad = leaf.grad + made if add else made
        note_backward(self, [leaf.grad for _, leaf in leaves if leaf._requires_grad is True and leaf.grad is not None])
        return self

    def _as_grad(self, node: UOp, create_graph: bool) -> UOp:
        """Return what `backward` leaves in `grad` for a gradient: the gradient itself, which can be differentiated too.
        A subclass may cut it off."""
        return node

    def gradient(self, *targets: Tensor, gradient: Tensor | None = None,
                 materialize_grads: bool = False) -> list[Tensor]:
        """Return the gradient of this value for each target, without changing `grad`. Targets may be any tensors that
        the value is computed from.

        >>> x = Tensor([1.0, 2.0])
        >>> [g.tolist() for g in (x ** 3).sum().gradient(x)]
        [[3.0, 12.0]]
        """
        of_kind("list[Tensor]", "gradient", targets=targets)
        seed = self._seed("gradient", gradient)
        below = toposort([self.uop])
        derive = at_once if calls_are_noted() else deferred
        found = derive(self.uop, seed, [t.uop for t in targets], below)
        if bitcast.floats_were_reread:
            bitcast.refuse_bits(self.uop, [t.uop for t in targets])
        result = []
        for i, (target, node) in enumerate(zip(targets, found)):
            if node is None:
                # sign(x) is computed from x, and does not change with it: that is a gradient of zeros; and where there
                # are no elements, as in one of the parts that `cat` joins, nothing is left to depend on
                wanted = target.dtype.kind == "f" and (target.uop in below or 0 in target.shape)
                if not materialize_grads and not wanted:
                    raise GradientError("the value does not depend on this tensor",
                                        given=f"target {i} of shape {target.shape}, {target.dtype.name}",
                                        expected="a float tensor that the value was computed from",
                                        fix="check the order of targets; or pass materialize_grads=True for zeros")
                node = full(target.shape, 0, target.dtype)
            result.append(target._with(node))
        note_gradients_of(self.uop, result)
        return result

    def _seed(self, what: str, gradient: Tensor | None) -> UOp:
        """Return what backward starts from: ones for a single value, else what the caller gave."""
        of_kind("Self | None", what, gradient=gradient)
        refuse_cut_off(self.uop)
        if self.dtype.kind != "f":
            raise GradientError("only float values have gradients", given=f"backward() of {self.dtype.name}",
                                expected="a float value, such as a loss", fix="cast the inputs: x.float()")
        if gradient is None:
            if self.numel() != 1:
                raise GradientError("backward() needs a single value to start from", given=f"shape {self.shape}",
                                    expected="1 element", fix="reduce it: x.sum().backward(), or pass the gradient "
                                    "of this value: x.backward(gradient)")
            return full(self.shape, 1.0, self.dtype)
        if gradient.shape != self.shape:
            raise GradientError("the gradient given does not fit", given=f"a gradient of shape {gradient.shape}",
                                expected=f"the value's shape, {self.shape}", fix="reshape or expand it")
        return gradient.uop.cast(self.dtype)

    # -- modes -----------------------------------------------------------------------------------------------
    @staticmethod
    def train(mode: bool = True) -> Training:
        """Switch dropout and batchnorm to training: as a statement, as `with Tensor.train():`, or as a decorator.

        >>> with Tensor.train():
        ...     Tensor.training
        True
        """
        return Training(mode)

    @staticmethod
    def test(mode: bool = True) -> Training:
        """The opposite of `train`.

        >>> with Tensor.test():
        ...     Tensor.training
        False
        """
        return Training(not mode)


for _name, _method in in_place_methods(Tensor):       # x.add_(1), from the signature of x.add(1)
    setattr(Tensor, _name, _method)


class TensorValues(Tensor):
    """The class of `x.data`: a view of x without its gradient; called, it shows x's memory."""
    __slots__ = ("_owner",)
    _owner: Tensor

    @classmethod
    def of(cls, owner: Tensor) -> TensorValues:
        """Make the view of a tensor's values."""
        made = cls._of_node(ended(owner.uop))
        made._owner, made._requires_grad, made._device = owner, False, owner._device
        share(made, owner)
        return made

    def __call__(self) -> memoryview:
        return self._owner._memory()

    def _with(self, uop: UOp, *others: Any) -> Any:
        owner = getattr(self, "_owner", None)           # results computed from `x.data` have x's class
        return super()._with(uop, *others) if owner is None else owner._with(uop, *others)

    def replace(self, value: Any = REQUIRED, allow_shape_mismatch: bool = True, **spelling: Any) -> Any:
        value, = spelled("replace", spelling, value=value)
        self._owner.replace(value)
        self.uop = ended(self._owner.uop)
        share(self, self._owner)
        return self


def class_of_results(tensor: Tensor) -> type[Tensor]:
    """Return the class of what is computed from a tensor: its own class; for `x.data`, that of x.

    >>> class_of_results(Tensor([1])) is class_of_results(Tensor([1]).data) is Tensor
    True
    """
    return tensor._owner.__class__ if isinstance(tensor, TensorValues) else tensor.__class__


def _owners_first(tensors: tuple[Tensor, ...]) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
    """Return what to compute for some tensors, and the tensors that are then views of it. After `cache[3].assign(row)`,
    realizing the row means realizing the cache: the row is a view of its memory, and costs nothing more."""
    found: dict[int, Tensor] = {}
    views = []
    for tensor in tensors:
        storage = tensor._storage
        if storage is not None and storage.written and tensor._steps and (owners := storage.owners()):
            views.append((tensor, owners[0]))
            found.update((id(t), t) for t in owners)
        else:
            found[id(tensor)] = tensor
    return list(found.values()), views


def _restored(kind: type[Tensor], dtype: str, shape: tuple[int, ...], data: bytes, device: str,
              requires_grad: bool | None) -> Tensor:
    """Rebuild a pickled tensor."""
    value = HostValue(data, shape, dtype_by_name(dtype))
    return kind._made_of(running.store(value, device), requires_grad=requires_grad)
