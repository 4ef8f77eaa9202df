"""Provide tinygrad's UOp and LazyBuffer, as scripts use the classes: isinstance, constants, variables, custom kernels.

In: calls of class methods. Out: nodes of glassgrad's graph, or an error that says what to write instead.
"""

from __future__ import annotations

import enum
from types import SimpleNamespace
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.compiler.graph.symbolic import Length, Variable
from glassgrad.compiler.graph.uop import UOp as Node, const
from glassgrad.tensor.kernels.placeholder_kernel import Program, group as _group, loop, register

KernelInfo = SimpleNamespace       # names and hints for tinygrad's optimizer, which are stored and not read


class AxisType(enum.Enum):
    """The kind of a loop in tinygrad; here the compiler chooses it."""
    GLOBAL, WARP, LOCAL, LOOP, GROUP_REDUCE, REDUCE, UPCAST, UNROLL, THREAD, OUTER, PLACEHOLDER = range(11)


class AddrSpace(enum.Enum):
    """The memory space of a kernel's local values; here it is always registers or the stack."""
    GLOBAL, LOCAL, REG = range(3)


class NodeClass(type):
    """A metaclass: glassgrad's nodes are instances of its classes."""

    def __instancecheck__(cls, thing: object) -> bool:
        return isinstance(thing, (Node, Length))         # in tinygrad variables and lengths are nodes, too

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return Node(*args, **kwargs)


class TinygradUOp(metaclass=NodeClass):
    """A node of the graph; its class methods make constants, variables and parts of kernels.

    >>> isinstance(Tensor([1]).uop, UOp), UOp.const(dtypes.float32, 2).arg
    (True, 2.0)
    >>> isinstance(UOp.variable("n", 1, 8).bind(3), UOp), isinstance(3, UOp)
    (True, False)
    """
    range = staticmethod(loop)
    placeholder = staticmethod(register)
    group = staticmethod(_group)

    @staticmethod
    def sink(*programs: Any, arg: Any = None) -> Program:
        return _group(*programs)

    @staticmethod
    def const(dtype: Any, b: Any) -> Node:
        return const(b, dtype)

    @staticmethod
    def variable(name: str, min_val: int, max_val: int, dtype: Any = None) -> Variable:
        return Variable(name, min_val, max_val)


UOp = TinygradUOp


class LazyBufferClass(NodeClass):
    """The metaclass of a class without a constructor."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Raise an error that says what to write instead."""
        raise _instead("(device, st, dtype, ...)", "Tensor(values).lazydata, Tensor.empty(shape).lazydata")


class LazyBuffer(metaclass=LazyBufferClass):
    """The node's name before 2025: `isinstance(x.lazydata, LazyBuffer)` holds. Nodes are made by tensors.

    >>> isinstance((Tensor([1]) + 1).lazydata, LazyBuffer)
    True
    """

    @staticmethod
    def fromCPU(x: Any) -> Any:
        """Raise an error that says what to write instead: a tensor makes its node from values."""
        raise _instead(".fromCPU(array)", "Tensor(array).lazydata")

    @staticmethod
    def loadop(*given: Any, **options: Any) -> Any:
        """Raise an error that says what to write instead."""
        raise _instead(".loadop(op, shape, ...)", "Tensor.empty(shape).lazydata, Tensor.rand(shape).lazydata")

    metaop = new = loadop


def _instead(call: str, write: str) -> InputError:
    return InputError("a LazyBuffer is made by a tensor", given=f"LazyBuffer{call}", expected="a tensor's node",
                      fix=f"write {write}")
