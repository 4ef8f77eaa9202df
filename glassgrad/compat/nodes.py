"""tinygrad's UOp, as scripts use its class: to ask whether a thing is a node, and to describe kernels of their own."""

from __future__ import annotations

import enum
from types import SimpleNamespace
from typing import Any

from glassgrad.compiler.graph.symbolic import Length, Variable
from glassgrad.compiler.graph.uop import UOp as Node, const
from glassgrad.tensor.kernels.placeholder_kernel import Program, group as _group, loop, register

__all__ = ["AddrSpace", "AxisType", "KernelInfo", "UOp"]

KernelInfo = SimpleNamespace       # names and hints for tinygrad's optimizer; kept, and not read


class AxisType(enum.Enum):
    """What tinygrad knows of a loop; here the compiler finds out."""
    GLOBAL, WARP, LOCAL, LOOP, GROUP_REDUCE, REDUCE, UPCAST, UNROLL, THREAD, OUTER, PLACEHOLDER = range(11)


class AddrSpace(enum.Enum):
    """Where a kernel's own memory lies; here always in registers or on the stack."""
    GLOBAL, LOCAL, REG = range(3)


class _Nodes(type):
    def __instancecheck__(cls, thing: object) -> bool:
        return isinstance(thing, (Node, Length))         # there, variables and lengths are nodes, too

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return Node(*args, **kwargs)


class UOp(metaclass=_Nodes):
    """A node of the graph; its class methods make numbers, variables and parts of kernels.

    >>> isinstance(Tensor([1]).uop, UOp), UOp.const(dtypes.float32, 2).arg
    (True, 2.0)
    >>> isinstance(UOp.variable("n", 1, 8).bind(3), UOp), isinstance(3, UOp)
    (True, False)
    """
    range = staticmethod(loop)
    placeholder = staticmethod(register)

    @staticmethod
    def group(*programs: Any) -> Program:
        return _group(*programs)

    @staticmethod
    def sink(*programs: Any, arg: Any = None) -> Program:
        return _group(*programs)

    @staticmethod
    def const(dtype: Any, b: Any) -> Node:
        return const(b, dtype)

    @staticmethod
    def variable(name: str, min_val: int, max_val: int, dtype: Any = None) -> Variable:
        return Variable(name, min_val, max_val)
