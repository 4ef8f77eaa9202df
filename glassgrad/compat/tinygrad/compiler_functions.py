"""Provide tinygrad's functions and groups about ops, schedules, lengths and types, in terms of glassgrad's. Out: those
names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from glassgrad.base.errors import InputError
from glassgrad.compiler.graph import DType, UOp, dtypes, ops as o, promote
from glassgrad.compiler.graph.ops import Op, Ops
from glassgrad.compiler.graph.symbolic import Length, replaced
from glassgrad.runtime.devices import Device
from glassgrad.tensor.broadcast import broadcast_shape
from glassgrad.tensor.memory.python_values import numpy_dtype
from glassgrad.tensor.realize_and_read import Planned, Step, schedule

sint = int | Length
DTypeLike = Any
ConstType = float | int | bool
ReductionStr = Literal["mean", "sum", "none"]


class _Group(type):
    """A group of ops under tinygrad's names; iterating gives the ops."""
    members: dict[str, Op]

    def __getattr__(cls, name: str) -> Op:
        members: dict[str, Op] = type.__getattribute__(cls, "members")
        if name not in members:
            raise AttributeError(f"{cls.__name__} has no {name}; it has {', '.join(members)}")
        return members[name]

    def __iter__(cls) -> Any:
        return iter(cls.members.values())

    def __contains__(cls, op: object) -> bool:
        return op in cls.members.values()


def _group(name: str, ops: Sequence[Op], **renamed: Op) -> Any:
    return _Group(name, (), {"members": {**{op.name: op for op in ops}, **renamed}, "__doc__": f"tinygrad's {name}."})


def _kind(kind: str) -> list[Op]:
    return [op for op in Ops if op.kind == kind]


UnaryOps = _group("UnaryOps", _kind(o.Kind.UNARY), NOOP=o.CONTIGUOUS)
BinaryOps = _group("BinaryOps", _kind(o.Kind.BINARY))
TernaryOps = _group("TernaryOps", _kind(o.Kind.TERNARY))
ReduceOps = _group("ReduceOps", _kind(o.Kind.REDUCE), MAX=o.AMAX)
MovementOps = _group("MovementOps", _kind(o.Kind.MOVEMENT), STRIDE=o.FLIP)
LoadOps = _group("LoadOps", [o.COPY, o.CONTIGUOUS, o.CONST], EMPTY=o.BUFFER, RAND=o.RANDOM)
MetaOps = _group("MetaOps", [o.COPY, o.CONTIGUOUS, o.CONST], EMPTY=o.BUFFER, KERNEL=o.SINK)
BufferOps = _group("BufferOps", [o.STORE, o.CONST], LOAD=o.LOAD)


class GroupOp:
    """tinygrad's sets of ops."""
    Unary = frozenset(UnaryOps)
    Binary = frozenset(BinaryOps)
    Ternary = frozenset(TernaryOps)
    ALU = o.ELEMENTWISE
    Reduce = o.REDUCE
    Movement = o.MOVEMENT


def create_schedule(nodes: Sequence[UOp]) -> Planned:
    """Return the kernels that would compute these nodes; run nothing.

    >>> len(create_schedule([(Tensor([1]) + 1).lazydata]))
    1
    """
    return schedule(list(nodes), Device.DEFAULT)


def run_schedule(schedule: Planned, var_vals: Any = None, do_update_stats: bool = True) -> None:
    """Run a schedule: compute the nodes that it was made for. (Other arguments have no effect: `GlobalCounters` count
    every run, and variables hold their values.)

    >>> x = Tensor([1, 2]) + 1
    >>> run_schedule(x.schedule()); len(x.schedule())
    0
    """
    schedule.run()


def lower_schedule_item(item: Step) -> ExecItem:
    """A kernel of a schedule, ready to `run`."""
    return ExecItem(item)


def lower_schedule(schedule: Sequence[Step]) -> Iterator[tuple[Step, ExecItem]]:
    """Pairs of a schedule's kernel and the same, ready to `run`."""
    for item in schedule:
        yield item, lower_schedule_item(item)


class ExecItem:
    """A kernel to run, and what it was made of.

    >>> x = Tensor([1, 2]) + 1
    >>> for item in x.schedule(): lower_schedule_item(item).run()
    >>> x.uop.is_realized
    True
    """

    def __init__(self, prg: Any, bufs: Sequence[Any] = (), metadata: Any = None):
        self.prg, self.bufs, self.metadata = prg, list(bufs), metadata

    def run(self, *options: Any, **more: Any) -> None:
        self.prg.run(*options, **more)


def run_linear(linear: Planned, var_vals: Any = None, update_stats: bool = True) -> None:
    """The newer name of `run_schedule`."""
    linear.run()


# -- symbolic lengths ----------------------------------------------------------------------------------------
def sym_infer(size: Any, var_vals: dict[Any, int]) -> int:
    """The value of a symbolic length for given values of its variables (keys: variables, or their names).

    >>> from glassgrad import Variable
    >>> n = Variable("n", 1, 10)
    >>> sym_infer(n * 2 + 1, {"n": 3})
    7
    """
    names = {getattr(variable, "name", variable): number for variable, number in var_vals.items()}
    return int(replaced(size, lambda symbol: names.get(symbol.name, symbol))) if isinstance(size, Length) else int(size)


def resolve(condition: Any, default: bool = True) -> bool:
    """Return whether a comparison of lengths holds for all their values; `default` if it depends on them."""
    return bool(condition) if isinstance(condition, (bool, int)) else default


def _broadcast_shape(*shapes: tuple[Any, ...]) -> tuple[Any, ...]:
    """The shape that several shapes broadcast to.

    >>> _broadcast_shape((3, 1), (4,), (1, 1))
    (3, 4)
    """
    return functools.reduce(broadcast_shape, shapes, ())


def smax(*sizes: Any) -> Any:
    """The greatest of some sizes."""
    return max(sizes[0] if len(sizes) == 1 else sizes)


def smin(*sizes: Any) -> Any:
    """The least of some sizes."""
    return min(sizes[0] if len(sizes) == 1 else sizes)


# -- element types -------------------------------------------------------------------------------------------
def least_upper_dtype(*kinds: DType) -> DType:
    """The type that these types promote to.

    >>> least_upper_dtype(dtypes.int32, dtypes.float16)
    dtypes.float16
    """
    return functools.reduce(promote, kinds)


def least_upper_float(kind: DType) -> DType:
    """The type itself if it is a float, else float32."""
    return kind if kind.kind == "f" else dtypes.default_float


def _to_np_dtype(kind: DType) -> Any:
    """The NumPy type that numpy() returns: float32 for the floats that NumPy does not have.

    >>> _to_np_dtype(dtypes.bfloat16).__name__, _to_np_dtype(dtypes.float16).__name__
    ('float32', 'float16')
    """
    import numpy

    return numpy.dtype(kind.format).type if kind.in_numpy else numpy.float32


def _from_np_dtype(kind: Any) -> DType:
    import numpy
    found = numpy_dtype(numpy.dtype(kind))
    if found is None:
        raise InputError("this NumPy type has no counterpart", given=str(kind), expected="numbers or truth values",
                         fix='convert it first: array.astype("float32")')
    return found


def is_dtype_supported(kind: DType, device: str | None = None) -> bool:
    """Return True: every device here computes with every type."""
    return isinstance(kind, DType)


def canonicalize_device(device: Any) -> Any:
    """Return a device's canonical name."""
    several = isinstance(device, (tuple, list))
    return tuple(canonicalize_device(d) for d in device) if several else Device.canonicalize(device)


def function(call: Callable[..., Any] | None = None, **_options: Any) -> Any:
    """Call the function: tinygrad's @function marks a part of a graph to be compiled on its own, which has no effect
    here."""
    return call if call is not None else lambda plain: plain
