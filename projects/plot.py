"""A small chart as a PNG, without a plotting library. In: named curves. Out: a file.

One panel per curve, each with its smallest and largest value written at the axis. Digits are drawn from a 3 x 5 font.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

WIDTH, HEIGHT, MARGIN, SCALE = 480, 320, 56, 2
INK, GRID, COLOURS = (40, 40, 40), (225, 225, 225), ((31, 119, 180), (214, 96, 30), (44, 140, 60))
_FONT = {  # rows of three pixels, as octal digits from top to bottom
    "0": 0o75557, "1": 0o26227, "2": 0o71747, "3": 0o71717, "4": 0o55711, "5": 0o74717, "6": 0o74757, "7": 0o71111,
    "8": 0o75757, "9": 0o75717, ".": 0o00002, "-": 0o00700, "%": 0o51245, " ": 0, "a": 0o03157, "c": 0o03443,
    "e": 0o07743, "h": 0o44655, "l": 0o22223, "o": 0o02552, "p": 0o06564, "r": 0o06544,
    "s": 0o03616, "t": 0o27223, "u": 0o05553,
    "y": 0o55312, "n": 0o06555, "i": 0o20222, "d": 0o11355,
}


def save_png(path: str | os.PathLike[str], curves: Mapping[str, Sequence[float]]) -> None:
    """Write one panel per curve, side by side."""
    image = np.full((HEIGHT, WIDTH * len(curves), 3), 255, np.uint8)
    for number, (name, values) in enumerate(curves.items()):
        place = image[:, number * WIDTH:(number + 1) * WIDTH]
        _panel(place, name, np.asarray(values, float), COLOURS[number % len(COLOURS)])
    rows = b"".join(b"\0" + row.tobytes() for row in image)          # each row begins with its filter: none
    header = struct.pack(">IIBBBBB", image.shape[1], HEIGHT, 8, 2, 0, 0, 0)
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")):
            file.write(struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)))


def _panel(image: np.ndarray, name: str, values: np.ndarray, colour: tuple[int, int, int]) -> None:
    low, high = float(values.min()), float(values.max())
    top, bottom, left, right = MARGIN // 2, HEIGHT - MARGIN, MARGIN, WIDTH - MARGIN // 2
    for line in np.linspace(top, bottom, 5).astype(int):
        image[line, left:right] = GRID
    image[top:bottom, left] = image[bottom, left:right] = INK
    _write(image, name, left, HEIGHT - MARGIN // 2)
    _write(image, f"{high:.3g}", 6, top - 4)
    _write(image, f"{low:.3g}", 6, bottom - 6)
    # one point per column of pixels; neighbours are joined by filling the column between them
    at = np.linspace(0, len(values) - 1, right - left)
    height = np.interp(at, np.arange(len(values)), values)
    rows = (bottom - 2 - (height - low) / ((high - low) or 1.0) * (bottom - top - 4)).astype(int)
    for column, (a, b) in enumerate(zip(rows, [*rows[1:], rows[-1]])):
        image[min(a, b):max(a, b) + 2, left + column] = colour


def _write(image: np.ndarray, text: str, x: int, y: int) -> None:
    for letter in text.lower():
        bits = _FONT.get(letter, 0)
        for row in range(5):
            for column in range(3):
                if bits >> (14 - row * 3 - column) & 1:
                    top, left = y + row * SCALE, x + column * SCALE
                    image[top:top + SCALE, left:left + SCALE] = INK
        x += 4 * SCALE
