"""Numbers as the text of an array, laid out as NumPy (2.3 and later) does. In: numbers, a shape. Out: lines of text.

    [[ 1. , 20.5],         all numbers have one width, and as few digits as tell them apart from others of their type,
     [-3. ,  4. ]]         at most 8 after the point; "[1.0e-05, 2.5e+00]" where they differ too much for that

(Of a power of two NumPy leaves out the last digit where another one rounds to it from above; here it is written.)
Needs no NumPy, which a browser does not have. Does not know tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from glassgrad.compiler.graph.dtype import DType, dtypes, round_float

LINE = 75                # characters of a line
DIGITS = 8               # after the point
DECIMALS = {dtypes.float16: 3, dtypes.float32: 6, dtypes.float64: 15}       # that a type holds whatever they are


def array_text(values: Sequence[Any], shape: Sequence[int], dtype: DType, cut: Sequence[int] = (),
               indent: int = 0) -> str:
    """The text of numbers in row-major order. `cut` has, for each axis, after how many of its elements some are left
    out (0: none); lines after the first begin with `indent` spaces.

    >>> print(array_text([1.0, 20.5, -3.0, 4.0], (2, 2), dtypes.float32))
    [[ 1. , 20.5],
     [-3. ,  4. ]]
    >>> print(array_text([0, 1, 2, 97, 98, 99], (6,), dtypes.int32, cut=(3,)))
    [ 0,  1,  2, ..., 97, 98, 99]
    """
    if 0 in shape:
        return "[]"
    spell = _spelling(values, shape, dtype)
    words = [spell(value) for value in values]
    return _lines(words, shape, cut or (0,) * len(shape), 1 + indent, LINE) if len(shape) else words[0]


# -- lines ---------------------------------------------------------------------------------------------------
def _lines(words: Sequence[str], shape: Sequence[int], cut: Sequence[int], indent: int, width: int) -> str:
    """Words in brackets, rows below each other."""
    space = " " * indent
    if len(shape) == 1:
        return "[" + _row([*words[:cut[0]], "...", *words[cut[0]:]] if cut[0] else words, space, width - 1) + "]"
    count = len(words) // shape[0]
    rows = [_lines(words[i * count:(i + 1) * count], shape[1:], cut[1:], indent + 1, width - 1)
            for i in range(shape[0])]
    if cut[0]:
        rows.insert(cut[0], "...")
    return "[" + ("," + "\n" * (len(shape) - 1) + space).join(rows) + "]"


def _row(words: Sequence[str], space: str, width: int) -> str:
    """Words of the innermost axis, on as many lines as they need."""
    lines: list[str] = []
    line = space
    for at, word in enumerate(words):
        if len(line) + len(word) > width and len(line) > len(space):
            lines.append(line.rstrip())
            line = space
        line += word + (", " if at + 1 < len(words) else "")
    return "\n".join([*lines, line])[len(space):]


# -- numbers -------------------------------------------------------------------------------------------------
def _spelling(values: Sequence[Any], shape: Sequence[int], dtype: DType) -> Callable[[Any], str]:
    """How each of these numbers is written, so that all have one width."""
    if dtype.kind == "b":
        return lambda value: "False" if not value else " True" if len(shape) else "True"
    if dtype.kind != "f":
        width = max(len(str(max(values))), len(str(min(values))))
        return lambda value: f"{value:{width}d}"
    finite = [value for value in values if math.isfinite(value)]
    if _needs_exponent(finite, dtype):
        return _with_exponent(values, finite, dtype)
    return _with_point(values, finite, dtype)


def _needs_exponent(finite: Sequence[float], dtype: DType) -> bool:
    sizes = [abs(value) for value in finite if value]
    if not sizes:
        return False
    most, least = max(sizes), min(sizes)
    return most >= 10.0 ** min(DIGITS, DECIMALS[dtype]) or least < round_float(0.0001, dtype) or \
        round_float(most / least, dtype) > 1000


def _with_point(values: Sequence[float], finite: Sequence[float], dtype: DType) -> Callable[[float], str]:
    parts = [_positional(value, dtype) for value in finite]
    before, after = _widths([len(a) for a, _ in parts], [len(b) for _, b in parts], values, finite)

    def spell(value: float) -> str:
        if not math.isfinite(value):
            return _not_finite(value, before + after + 1)
        a, b = _positional(value, dtype)
        return f"{a:>{before}}.{b:<{after}}"
    return spell


def _with_exponent(values: Sequence[float], finite: Sequence[float], dtype: DType) -> Callable[[float], str]:
    parts = [_scientific(value, dtype) for value in finite]
    digits, exponent = max(len(b) for _, b, _ in parts), max(len(c) for _, _, c in parts) - 1
    before, after = _widths([len(a) for a, _, _ in parts], [exponent + 2 + digits], values, finite)

    def spell(value: float) -> str:
        if not math.isfinite(value):
            return _not_finite(value, before + after + 1)
        mantissa, _, power = f"{value:.{digits}e}".partition("e")
        mantissa = mantissa if digits else mantissa + "."
        return f"{mantissa:>{before + digits + 1}}e{power[0]}{power[1:]:0>{exponent}}"
    return spell


def _widths(before: Sequence[int], after: Sequence[int], values: Sequence[float],
            finite: Sequence[float]) -> tuple[int, int]:
    """Characters before and after the point, with enough of them for inf and nan."""
    left, right = max(before, default=0), max(after, default=0)
    if len(finite) < len(values):
        longest = 4 if -math.inf in values else 3
        left = max(left, longest - right - 1)
    return left, right


def _not_finite(value: float, width: int) -> str:
    return f"{'nan' if value != value else 'inf' if value > 0 else '-inf':>{width}}"


def _positional(value: float, dtype: DType) -> tuple[str, str]:
    """The digits before and after the point, the sign with the former."""
    digits, exponent = _shortest(value, dtype)
    places = max(len(digits) - 1 - exponent, 0)
    whole, _, fraction = f"{value:.{min(places, DIGITS)}f}".partition(".")
    return whole, fraction.rstrip("0")


def _scientific(value: float, dtype: DType) -> tuple[str, str, str]:
    """The digit before the point, those after it, the exponent with its sign."""
    digits, _ = _shortest(value, dtype)
    mantissa, _, exponent = f"{value:.{min(len(digits) - 1, DIGITS)}e}".partition("e")
    first, _, rest = mantissa.partition(".")
    return first, rest.rstrip("0"), exponent


def _shortest(value: float, dtype: DType) -> tuple[str, int]:
    """The fewest digits that tell a number from all others of its type, and the exponent of the first of them."""
    for places in range(17):
        text = f"{abs(value):.{places}e}"
        if round_float(float(text), dtype) == abs(value):
            break
    mantissa, _, exponent = text.partition("e")
    return mantissa.replace(".", ""), int(exponent)
