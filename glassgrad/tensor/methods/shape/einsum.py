"""Name axes by letters: einsum, rearrange, tensordot. In: a formula and tensors. Out: tensors.

The operands of an einsum are broadcast to all axes of the formula, multiplied, and summed over those that the result
does not name. Three and more operands are multiplied from left to right, so the writer chooses which product is first.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from typing import Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.compiler.graph import DType, UOp, dtype_by_name, promote
from glassgrad.tensor.autograd.autocast import in_autocast_dtype
from glassgrad.tensor.formulas import diagonal, mul, sum_dtype
from glassgrad.tensor.methods import Self, TensorBase, arguments, of_kind, resolve_axes, spelled, whole

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def _wrong(formula: str, expected: str) -> InputError:
    return InputError("the formula cannot be read", given=repr(formula), expected=expected,
                      fix='write einsum("ij,jk->ik", x, y) or rearrange("a b c -> a (b c)"), for example')


def _terms(formula: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return one letter per axis for each operand and for the result; ... becomes capital letters that are not used."""
    plain = formula.replace(" ", "")
    left, arrow, right = plain.partition("->")
    inputs = left.split(",")
    if len(inputs) != len(ranks):
        raise _wrong(formula, f"one term per operand: {len(ranks)} here")
    if not re.fullmatch(r"[A-Za-z.,]*(->[A-Za-z.]*)?", plain):
        raise _wrong(formula, "letters, commas, ... and ->")
    widths = [rank - len(term.replace("...", "")) for term, rank in zip(inputs, ranks)]
    dots = "".join([c for c in _LETTERS if c not in plain][:max(0, *widths)])
    written = []
    for term, rank, width in zip(inputs, ranks, widths):
        term = term.replace("...", dots[len(dots) - width:] if width > 0 else "")
        if len(term) != rank or "." in term:
            raise ShapeError("a term of the formula does not fit its operand",
                             given=f"{term!r} for {rank} axes in {formula!r}", expected="one letter per axis",
                             fix="count the operand's axes: print(x.shape)")
        written.append(term)
    if arrow:
        out = right.replace("...", dots)
    else:
        letters = sorted(set("".join(written)) - set(dots))
        out = dots + "".join(c for c in letters if "".join(written).count(c) == 1)
    if len(set(out)) != len(out) or not set(out) <= set("".join(written)):
        raise _wrong(formula, "a result that names each axis once, all of them from the operands")
    return written, out


class EinsumMixin(TensorBase):
    """Axes by name."""
    __slots__ = ()

    @classmethod
    def einsum(cls, formula: str, *operands: Any, dtype: DType | str | None = None, **spelling: Any) -> Self:
        """Products summed over the axes that the result does not name. Of one tensor, an order of its axes ("ij->ji")
        and a diagonal ("ii->i") are views, and a sum of integers has 64 bits, as that of `x.sum()`.

        >>> x = Tensor([[1, 2], [3, 4]])
        >>> Tensor.einsum("ij,jk->ik", x, x).tolist(), Tensor.einsum("ii", x).item()
        ([[7, 10], [15, 22]], 5)
        """
        dtype, = spelled("einsum", spelling, dtype=dtype)
        tensors = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else list(operands)
        if not isinstance(formula, str) or not tensors:
            raise _wrong(formula, "a formula in a string, and at least one operand")
        of_kind("list[Tensor]", "einsum", operands=tensors)
        nodes = [in_autocast_dtype(t.uop) for t in tensors]
        terms, out = _terms(formula, [len(node.shape) for node in nodes])
        sizes: dict[str, int] = {}
        for term, node in zip(terms, nodes):
            for letter, n in zip(term, node.shape):
                if sizes.setdefault(letter, n) != n and 1 not in (n, sizes[letter]):
                    raise ShapeError("an axis of the formula has two sizes",
                                     given=f"{letter!r} is {sizes[letter]} and {n} in {formula!r}",
                                     expected="one size per letter", fix="check the operands' shapes")
                sizes[letter] = max(sizes[letter], n) if 0 not in (n, sizes[letter]) else 0
        if len(nodes) == 1 and set(out) == set(terms[0]) and nodes[0] is tensors[0].uop and \
                dtype_by_name(dtype or nodes[0].dtype) is nodes[0].dtype:      # nothing is computed
            shown, letters = _diagonals(nodes[0], terms[0])
            return tensors[0]._view(shown.permute([letters.index(c) for c in out]))  # type: ignore[no-any-return]
        kind = functools.reduce(promote, [node.dtype for node in nodes])
        is_sum = len(nodes) == 1 and set(out) != set(terms[0])
        result = dtype_by_name(dtype) if dtype is not None else \
            tensors[0]._sum_dtype(kind) if is_sum else sum_dtype(kind)
        pairs = [_diagonals(node.cast(result.accumulator), term) for node, term in zip(nodes, terms)]
        value, term = pairs[0]
        for i, (other, its) in enumerate(pairs[1:], 1):
            later = set(out).union(*[t for _, t in pairs[i + 1:]])
            value, term = _product(value, term, other, its, later)
        gone = [i for i, c in enumerate(term) if c not in out]
        if gone:
            value, term = _summed(value, gone), "".join(c for c in term if c in out)
        value = value.permute([term.index(c) for c in out]).cast(result)
        return tensors[0]._with(value, *tensors[1:])  # type: ignore[no-any-return]

    def tensordot(self, other: Self, dims: int | Sequence[Any] = 2) -> Self:
        """Products summed over the last `dims` axes of this tensor and the first of the other, or over the axes named.

        >>> Tensor([[1, 2], [3, 4]]).tensordot(Tensor([[1, 0], [0, 1]])).item()
        5
        """
        other, = arguments("tensordot", other=other)
        count = whole(dims)
        if count is not None and 0 <= count <= min(self.ndim, other.ndim):
            mine, theirs = tuple(range(self.ndim - count, self.ndim)), tuple(range(count))
        elif not isinstance(dims, (tuple, list)) or len(dims) != 2:
            raise InputError("tensordot sums over so many axes, or over those named", given=f"dims={dims!r}",
                             expected=f"0 to {min(self.ndim, other.ndim)}, or two lists of axes",
                             fix="write dims=1, or dims=([0], [1])")
        else:
            mine, theirs = resolve_axes(dims[0], self.ndim, "tensordot"), resolve_axes(dims[1], other.ndim, "tensordot")
        if [self.shape[a] for a in mine] != [other.shape[a] for a in theirs]:
            raise ShapeError("the axes to sum over differ",
                             given=f"{self.shape} along {mine}, {other.shape} along {theirs}",
                             expected="equal sizes, pair by pair", fix="check dims")
        own = _LETTERS[:self.ndim]
        its = "".join(own[mine[theirs.index(a)]] if a in theirs else _LETTERS[26 + a] for a in range(other.ndim))
        return self.einsum(f"{own},{its}", self, other)

    def inner(self, other: Self) -> Self:
        """Products summed over the last axis of both.

        >>> Tensor([1, 2]).inner(Tensor([3, 4])).item()
        11
        """
        other, = arguments("inner", other=other)
        if not (self.ndim and other.ndim):
            return self._with(mul(self.uop, other.uop), other)
        return self.tensordot(other, ([-1], [-1]))

    def rearrange(self, formula: str, **sizes: int) -> Self:
        """Axes rearranged by name: swapped, split with (a b), joined with (a b), dropped or made with 1. `...` stands
        for the other axes, and (...) joins them.

        >>> Tensor([[1, 2, 3, 4]]).rearrange("1 (a b) -> b a", a=2).tolist()
        [[1, 3], [2, 4]]
        """
        sides = formula.replace("\N{HORIZONTAL ELLIPSIS}", "...").split("->") if isinstance(formula, str) else ()
        if len(sides) != 2:
            raise _wrong(formula, "one -> between the axes as they are and as they shall be")
        left, right = (_axes(side.replace("...", " "), formula) for side in sides)
        named = [name for axis in left for name in axis]
        dotted = [side.count("...") for side in sides]
        if dotted not in ([0, 0], [1, 1]) or re.search(r"\([^)]*\.\.\.", sides[0]):
            raise _wrong(formula, "... once on each side, on the left without ( ), or not at all")
        extra = self.ndim - len(left)
        if extra < 0 or extra and not dotted[0]:
            raise ShapeError("the formula does not fit the tensor",
                             given=f"{len(left) + dotted[0]} axes in {formula!r}, shape {self.shape}",
                             expected="one name or (...) group per axis",
                             fix="check the tensor's shape: print(x.shape)")
        others = "".join(f" _axis{i} " for i in range(extra))
        left, right = (_axes(side.replace("...", others), formula) for side in sides)
        if len(set(named)) != len(named) or sorted(n for a in left for n in a) != sorted(n for a in right for n in a):
            raise _wrong(formula, "the same names on both sides, each once on a side")
        known = {name: of_kind("int", "rearrange", **{name: size}) for name, size in sizes.items()}
        unused = [name for name in sizes if name not in named]
        if unused:
            raise InputError("rearrange was given the size of an axis that the formula does not name",
                             given=f"{unused[0]}={sizes[unused[0]]} for {formula!r}",
                             expected=f"sizes of {', '.join(named) or 'no axes'}", fix="check the spelling")
        for axis, n in zip(left, self.shape):
            open_ = [name for name in axis if name not in known]
            product = math.prod(known[name] for name in axis if name in known)
            if len(open_) > 1 or (n % product if product else n) or not open_ and product != n:
                raise ShapeError("the sizes of the formula do not fit", given=f"({' '.join(axis)}) for an axis of {n}",
                                 expected="all but one size known, and their product a divisor",
                                 fix=f"pass sizes whose product is {n}: {axis[0]}=.." if axis else "write a name there")
            if open_:
                known[open_[0]] = n // product if product else 0
        flat = [name for axis in left for name in axis]
        x = self.uop.reshape([known[name] for name in flat]).permute([flat.index(n) for axis in right for n in axis])
        return self._view(x.reshape([math.prod(known[n] for n in axis) for axis in right]))


def _diagonals(x: UOp, term: str) -> tuple[UOp, str]:
    """Replace axes that share a letter by their diagonal."""
    for letter in dict.fromkeys(term):
        while term.count(letter) > 1:
            first = term.index(letter)
            second = term.index(letter, first + 1)
            x = diagonal(x, 0, first, second)
            rest = "".join(c for i, c in enumerate(term) if i not in (first, second))
            term = rest + letter
    return x, term


def _summed(x: UOp, axes: Sequence[int]) -> UOp:
    return x.sum(axes).reshape(tuple(n for i, n in enumerate(x.shape) if i not in axes))


def _product(x: UOp, a: str, y: UOp, b: str, later: set[str]) -> tuple[UOp, str]:
    """Return the product of two terms, summed over the axes that no later term and not the result names."""
    term = a + "".join(c for c in b if c not in a)
    gone = tuple(i for i, c in enumerate(term) if c not in later)

    def spread(node: UOp, own: str) -> UOp:
        ordered = node.permute([own.index(c) for c in term if c in own])
        return ordered.reshape([node.shape[own.index(c)] if c in own else 1 for c in term])

    value = mul(spread(x, a), spread(y, b))
    kept = "".join(c for i, c in enumerate(term) if i not in gone)
    return (_summed(value, gone) if gone else value), kept


def _axes(side: str, formula: str) -> list[list[str]]:
    """Parse 'a (b c) 1' to [[a], [b, c], []]."""
    axes: list[list[str]] = []
    for token in re.findall(r"\([^()]*\)|\w+|\S", side):
        if token == "(":
            raise _wrong(formula, "a ) for every (, and no groups in groups")
        names = [name for name in re.findall(r"\w+|[^\s()]", token) if name != "1"]
        if token == ")" or not all(name.isidentifier() for name in names):
            raise _wrong(formula, "names, 1, ... and groups in ( )")
        axes.append(names)
    return axes
