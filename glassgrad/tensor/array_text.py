"""Write numbers as the text of an array, laid out as NumPy (2.3 and later) does. In: numbers, a shape. Out: lines of
text.

    [[ 1. , 20.5],         all numbers have the same width, and as few digits as distinguish them from others of their
     [-3. ,  4. ]]         type, at most 8 after the point; "[1.0e-05, 2.5e+00]" where their sizes differ too much

(For a power of two NumPy leaves out the last digit if a shorter number rounds to it from above; here it is written.)
Does not need NumPy, which may be missing in a browser. Does not know tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from glassgrad.compiler.graph.dtype import DType, dtypes, round_float

LINE = 75                # characters of a line
DIGITS = 8               # most digits after the point
DECIMALS = {dtypes.float16: 3, dtypes.float32: 6, dtypes.float64: 15}       # decimal digits that a type always holds


def array_text(values: Sequence[Any], shape: Sequence[int], dtype: DType, cut: Sequence[int] = (),
               indent: int = 0) -> str:
    """Return the text of numbers in row-major order. `cut` has for each axis after how many elements "..." is written
    (0: nothing is left out). Lines after the first begin with `indent` spaces.

    >>> print(array_text([1.0, 20.5, -3.0, 4.0], (2, 2), dtypes.float32))
    [[ 1. , 20.5],
     [-3. ,  4. ]]
    >>> print(array_text([0, 1, 2, 97, 98, 99], (6,), dtypes.int32, cut=(3,)))
    [ 0,  1,  2, ..., 97, 98, 99]
    """
    if 0 in shape:
        return "[]"
    words = _words(values, shape, dtype)
    return _lines(words, shape, cut or (0,) * len(shape), 1 + indent, LINE) if len(shape) else words[0]


# -- lines ---------------------------------------------------------------------------------------------------
def _lines(words: Sequence[str], shape: Sequence[int], cut: Sequence[int], indent: int, width: int) -> str:
    """Write words in brackets, with rows below each other."""
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
    """Write the words of the innermost axis, on as many lines as they need."""
    lines: list[str] = []
    line = space
    for at, word in enumerate(words):
        if len(line) + len(word) > width and len(line) > len(space):
            lines.append(line.rstrip())
            line = space
        line += word + (", " if at + 1 < len(words) else "")
    return "\n".join([*lines, line])[len(space):]


# -- numbers -------------------------------------------------------------------------------------------------
def _words(values: Sequence[Any], shape: Sequence[int], dtype: DType) -> list[str]:
    """Write the numbers so that all have the same width."""
    if dtype.kind == "b":
        return ["False" if not value else " True" if len(shape) else "True" for value in values]
    if dtype.kind != "f":
        width = max(len(str(max(values))), len(str(min(values))))
        return [f"{value:{width}d}" for value in values]
    finite = [value for value in values if math.isfinite(value)]
    pairs = _scientific(finite, dtype) if _needs_exponent(finite, dtype) else [_positional(v, dtype) for v in finite]
    before, after = (max((len(pair[side]) for pair in pairs), default=0) for side in (0, 1))
    if len(finite) < len(values):
        before = max(before, (4 if -math.inf in values else 3) - after - 1)
    words = {value: f"{whole:>{before}}.{rest:<{after}}" for value, (whole, rest) in zip(map(str, finite), pairs)}
    return [words.get(str(value)) or f"{value:>{before + after + 1}}" for value in values]


def _needs_exponent(finite: Sequence[float], dtype: DType) -> bool:
    sizes = [abs(value) for value in finite if value]
    if not sizes:
        return False
    most, least = max(sizes), min(sizes)
    return most >= 10.0 ** min(DIGITS, DECIMALS[dtype]) or least < round_float(0.0001, dtype) or \
        round_float(most / least, dtype) > 1000


def _positional(value: float, dtype: DType) -> tuple[str, str]:
    """Return the digits before the point, with the sign, and those after it."""
    digits, exponent = _shortest(value, dtype)
    places = max(len(digits) - 1 - exponent, 0)
    whole, _, fraction = f"{value:.{min(places, DIGITS)}f}".partition(".")
    return whole, fraction.rstrip("0")


def _scientific(finite: Sequence[float], dtype: DType) -> list[tuple[str, str]]:
    """Write the numbers in scientific notation, all with as many digits and as long an exponent as the longest."""
    shortest = [f"{value:.{min(len(_shortest(value, dtype)[0]) - 1, DIGITS)}e}".partition("e") for value in finite]
    digits = max(len(mantissa.partition(".")[2].rstrip("0")) for mantissa, _, _ in shortest)
    width = max(len(exponent) for _, _, exponent in shortest) - 1
    pairs = []
    for value in finite:
        mantissa, _, exponent = f"{value:.{digits}e}".partition("e")
        whole, _, fraction = mantissa.partition(".")
        pairs.append((whole, f"{fraction}e{exponent[0]}{exponent[1:]:0>{width}}"))
    return pairs


def _shortest(value: float, dtype: DType) -> tuple[str, int]:
    """Return the fewest digits that distinguish a number from all others of its type, and the exponent of the first
    digit."""
    for places in range(17):
        text = f"{abs(value):.{places}e}"
        if round_float(float(text), dtype) == abs(value):
            break
    mantissa, _, exponent = text.partition("e")
    return mantissa.replace(".", ""), int(exponent)
