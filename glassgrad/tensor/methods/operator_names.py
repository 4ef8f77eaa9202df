"""Operators under their names: x.lt(y) is x < y; and those that arithmetic.py leaves out. In, out: tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glassgrad.tensor.methods.arithmetic import Arithmetic

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Operators"]


class Operators(Arithmetic):
    """Operators under their names."""
    __slots__ = ()

    def __rlshift__(self, other: Any) -> Self: return self._both(other)[1] << self
    def __rrshift__(self, other: Any) -> Self: return self._both(other)[1] >> self
    def __iand__(self, other: Any) -> Self: return self._rebind(self & other)
    def __ior__(self, other: Any) -> Self: return self._rebind(self | other)
    def __ixor__(self, other: Any) -> Self: return self._rebind(self ^ other)
    def __ilshift__(self, other: Any) -> Self: return self._rebind(self << other)
    def __irshift__(self, other: Any) -> Self: return self._rebind(self >> other)
    def __ifloordiv__(self, other: Any) -> Self: return self._rebind(self // other)
    def __imod__(self, other: Any) -> Self: return self._rebind(self % other)

    # -- comparisons and truth -------------------------------------------------------------------------------
    def lt(self, other: Any) -> Self:
        """x < other.

        >>> Tensor([1, 2]).lt(2).tolist()
        [True, False]
        """
        return self < other

    def gt(self, other: Any) -> Self:
        """x > other.

        >>> Tensor([1, 2]).gt(1).tolist()
        [False, True]
        """
        return self > other

    def le(self, other: Any) -> Self:
        """x <= other.

        >>> Tensor([1, 2]).le(1).tolist()
        [True, False]
        """
        return self <= other

    def ge(self, other: Any) -> Self:
        """x >= other.

        >>> Tensor([1, 2]).ge(2).tolist()
        [False, True]
        """
        return self >= other

    def logical_and(self, other: Any) -> Self:
        """Whether both are true (not zero).

        >>> Tensor([1, 0]).logical_and(Tensor([2, 2])).tolist()
        [True, False]
        """
        return self.bool() & self.ufix(other).bool()

    def logical_or(self, other: Any) -> Self:
        """Whether at least one is true (not zero).

        >>> Tensor([1, 0]).logical_or(Tensor([0, 0])).tolist()
        [True, False]
        """
        return self.bool() | self.ufix(other).bool()

    def logical_xor(self, other: Any) -> Self:
        """Whether exactly one is true (not zero).

        >>> Tensor([1, 0]).logical_xor(Tensor([1, 1])).tolist()
        [False, True]
        """
        return self.bool() ^ self.ufix(other).bool()

    # -- arithmetic ------------------------------------------------------------------------------------------
    def floor_divide(self, other: Any) -> Self:
        """x // other.

        >>> Tensor([7, -7]).floor_divide(2).tolist()
        [3, -4]
        """
        return self // other

    def remainder(self, other: Any) -> Self:
        """x % other.

        >>> Tensor([7, -7]).remainder(3).tolist()
        [1, 2]
        """
        return self % other

    def idiv(self, other: Any, reverse: bool = False) -> Self:
        """The quotient of integers, rounded toward zero.

        >>> Tensor([7, -7]).idiv(2).tolist()
        [3, -3]
        """
        return self.div(other, reverse, rounding_mode="trunc")

    def ceildiv(self, other: Any) -> Self:
        """The quotient of integers, rounded up.

        >>> Tensor([7, -7]).ceildiv(2).tolist()
        [4, -3]
        """
        return -(-self // other)

    def xor(self, other: Any, reverse: bool = False) -> Self:
        """x ^ other.

        >>> Tensor([6]).xor(3).tolist()
        [5]
        """
        return self ^ other

    def negative(self) -> Self:
        """-x.

        >>> Tensor([1]).negative().tolist()
        [-1]
        """
        return -self

    def positive(self) -> Self:
        """The values as they are; `+x`.

        >>> Tensor([-1]).positive().tolist()
        [-1]
        """
        return self

    def usum(self, *others: Any) -> Self:
        """x plus all the others.

        >>> Tensor([1]).usum(Tensor([2]), Tensor([3])).tolist()
        [6]
        """
        total = self
        for other in others:
            total = total + other
        return total

    def uprod(self, *others: Any) -> Self:
        """x times all the others.

        >>> Tensor([1]).uprod(Tensor([2]), Tensor([3])).tolist()
        [6]
        """
        total = self
        for other in others:
            total = total * other
        return total
