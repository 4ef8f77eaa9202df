"""Operators that write expressions, of nodes and of patterns. In: operands. Out: what the subclass's `alu` makes.

`x * 2 + y` on nodes is a graph of nodes (uop.py); on patterns it is a larger pattern (rules/rewrite.py).
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from glassgrad.compiler.graph import ops as o

E = TypeVar("E")       # the type of an expression


class Operators(Generic[E]):
    """An operand. Its class defines `alu`, which applies an op to it and others, and `_wrap`, which makes an operand of
    a plain number."""
    __slots__ = ()

    def alu(self, op: o.Op, *others: Any) -> E: raise NotImplementedError
    def _wrap(self, value: Any) -> Operators[E]: raise NotImplementedError
    def _binary(self, op: o.Op, x: Operators[E], y: Operators[E]) -> E: return x.alu(op, y)

    def __add__(self, y: Any) -> E: return self._binary(o.ADD, self, self._wrap(y))
    def __radd__(self, y: Any) -> E: return self._binary(o.ADD, self._wrap(y), self)
    def __sub__(self, y: Any) -> E: return self._binary(o.SUB, self, self._wrap(y))
    def __rsub__(self, y: Any) -> E: return self._binary(o.SUB, self._wrap(y), self)
    def __mul__(self, y: Any) -> E: return self._binary(o.MUL, self, self._wrap(y))
    def __rmul__(self, y: Any) -> E: return self._binary(o.MUL, self._wrap(y), self)
    def __truediv__(self, y: Any) -> E: return self._binary(o.DIV, self, self._wrap(y))
    def __rtruediv__(self, y: Any) -> E: return self._binary(o.DIV, self._wrap(y), self)
    def __floordiv__(self, y: Any) -> E: return self._binary(o.IDIV, self, self._wrap(y))
    def __mod__(self, y: Any) -> E: return self._binary(o.MOD, self, self._wrap(y))
    def __and__(self, y: Any) -> E: return self._binary(o.AND, self, self._wrap(y))
    def __or__(self, y: Any) -> E: return self._binary(o.OR, self, self._wrap(y))
    def __xor__(self, y: Any) -> E: return self._binary(o.XOR, self, self._wrap(y))
    def __lshift__(self, y: Any) -> E: return self._binary(o.SHL, self, self._wrap(y))
    def __rshift__(self, y: Any) -> E: return self._binary(o.SHR, self, self._wrap(y))
    def __lt__(self, y: Any) -> E: return self._binary(o.CMPLT, self, self._wrap(y))
    def __gt__(self, y: Any) -> E: return self._binary(o.CMPLT, self._wrap(y), self)
    def __neg__(self) -> E: return self.alu(o.NEG)
    def __invert__(self) -> E: return self.alu(o.NOT)
    def eq(self, y: Any) -> E: return self._binary(o.CMPEQ, self, self._wrap(y))
    def ne(self, y: Any) -> E: return self._binary(o.CMPNE, self, self._wrap(y))
    def maximum(self, y: Any) -> E: return self._binary(o.MAX, self, self._wrap(y))
    def minimum(self, y: Any) -> E: return self._binary(o.MIN, self, self._wrap(y))
    def mulacc(self, y: Any, z: Any) -> E: return self.alu(o.MULACC, self._wrap(y), self._wrap(z))
    def logical_not(self) -> E: return self.alu(o.NOT)
    def abs(self) -> E: return self.alu(o.ABS)
    def recip(self) -> E: return self.alu(o.RECIP)
    def sqrt(self) -> E: return self.alu(o.SQRT)
    def exp2(self) -> E: return self.alu(o.EXP2)
    def log2(self) -> E: return self.alu(o.LOG2)
    def sin(self) -> E: return self.alu(o.SIN)
    def trunc(self) -> E: return self.alu(o.TRUNC)
