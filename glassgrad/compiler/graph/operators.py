"""Operators that write expressions, of nodes and of patterns. In: operands. Out: what the subclass's `alu` makes.

`x * 2 + y` on nodes is a graph of nodes (uop.py); on patterns it is a larger pattern (rules/rewrite.py).
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.ops import Op

E = TypeVar("E")       # the type of an expression


class Operators(Generic[E]):
    """An operand: `alu` applies an op to it and others, `_wrap` makes an operand of a plain number."""
    __slots__ = ()

    def alu(self, op: Op, *others: Any) -> E: raise NotImplementedError
    def _wrap(self, value: Any) -> Operators[E]: raise NotImplementedError

    def __add__(self, y: Any) -> E: return self.alu(o.ADD, self._wrap(y))
    def __radd__(self, y: Any) -> E: return self._wrap(y).alu(o.ADD, self)
    def __sub__(self, y: Any) -> E: return self.alu(o.SUB, self._wrap(y))
    def __rsub__(self, y: Any) -> E: return self._wrap(y).alu(o.SUB, self)
    def __mul__(self, y: Any) -> E: return self.alu(o.MUL, self._wrap(y))
    def __rmul__(self, y: Any) -> E: return self._wrap(y).alu(o.MUL, self)
    def __truediv__(self, y: Any) -> E: return self.alu(o.DIV, self._wrap(y))
    def __rtruediv__(self, y: Any) -> E: return self._wrap(y).alu(o.DIV, self)
    def __floordiv__(self, y: Any) -> E: return self.alu(o.IDIV, self._wrap(y))
    def __mod__(self, y: Any) -> E: return self.alu(o.MOD, self._wrap(y))
    def __and__(self, y: Any) -> E: return self.alu(o.AND, self._wrap(y))
    def __or__(self, y: Any) -> E: return self.alu(o.OR, self._wrap(y))
    def __xor__(self, y: Any) -> E: return self.alu(o.XOR, self._wrap(y))
    def __lshift__(self, y: Any) -> E: return self.alu(o.SHL, self._wrap(y))
    def __rshift__(self, y: Any) -> E: return self.alu(o.SHR, self._wrap(y))
    def __lt__(self, y: Any) -> E: return self.alu(o.CMPLT, self._wrap(y))
    def __gt__(self, y: Any) -> E: return self._wrap(y).alu(o.CMPLT, self)
    def __neg__(self) -> E: return self.alu(o.NEG)
    def __invert__(self) -> E: return self.alu(o.NOT)
    def eq(self, y: Any) -> E: return self.alu(o.CMPEQ, self._wrap(y))
    def ne(self, y: Any) -> E: return self.alu(o.CMPNE, self._wrap(y))
    def maximum(self, y: Any) -> E: return self.alu(o.MAX, self._wrap(y))
    def minimum(self, y: Any) -> E: return self.alu(o.MIN, self._wrap(y))
    def mulacc(self, y: Any, z: Any) -> E: return self.alu(o.MULACC, self._wrap(y), self._wrap(z))
    def logical_not(self) -> E: return self.alu(o.NOT)
    def abs(self) -> E: return self.alu(o.ABS)
    def recip(self) -> E: return self.alu(o.RECIP)
    def sqrt(self) -> E: return self.alu(o.SQRT)
    def exp2(self) -> E: return self.alu(o.EXP2)
    def log2(self) -> E: return self.alu(o.LOG2)
    def sin(self) -> E: return self.alu(o.SIN)
    def trunc(self) -> E: return self.alu(o.TRUNC)
