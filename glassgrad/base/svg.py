"""Draw graphs, loop nests and bars as SVG. In: nodes and edges, nested loops, numbers. Out: text. Imports no glassgrad.

The same input gives the same text, byte for byte, so that a test can compare the committed drawing with a fresh one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH_OF_LETTER, LINE, PAD, GAP_X, GAP_Y = 7.0, 16, 8, 22, 26
INK, PAPER, WIRE = "#222222", "#ffffff", "#888888"


@dataclass
class DrawnBox:
    """A node of a drawing: lines of text on a colour."""
    lines: Sequence[str]
    color: str
    border: str = INK

    @property
    def width(self) -> float:
        return max(len(line) for line in self.lines) * WIDTH_OF_LETTER + 2 * PAD

    @property
    def height(self) -> float:
        return len(self.lines) * LINE + PAD


@dataclass
class Nest:
    """A loop of a drawing: a heading, and the loops and statements in it."""
    title: str
    color: str
    inside: list[Nest | str] = field(default_factory=list)


# -- graphs --------------------------------------------------------------------------------------------------
def graph(boxes: Mapping[Hashable, DrawnBox], sources: Mapping[Hashable, Sequence[Hashable]],
          legend: Mapping[str, str]) -> str:
    """Draw a graph from top to bottom: each node below all its sources, long edges routed around the nodes between."""
    layer = _layers(boxes, sources)
    rows: list[list[Hashable]] = [[] for _ in range(max(layer.values()) + 1)]
    for node in boxes:
        rows[layer[node]].append(node)
    pieces: list[tuple[Hashable, Hashable]] = []
    paths: list[list[Hashable]] = []
    for node in boxes:
        for number, source in enumerate(sources[node]):
            path: list[Hashable] = [source]
            for between in range(layer[source] + 1, layer[node]):
                bend = ("bend", node, number, between)
                rows[between].append(bend)
                path.append(bend)
            path.append(node)
            pieces += zip(path, path[1:])
            paths.append(path)
    _order(rows, pieces)
    width = {n: boxes[n].width if n in boxes else 6.0 for row in rows for n in row}
    across = _x_coordinates(rows, pieces, width)
    top: float = GAP_Y + LINE
    down = {}
    for row in rows:
        height = max((boxes[n].height for n in row if n in boxes), default=LINE)
        down.update({n: (top, top + height) for n in row})
        top += height + GAP_Y
    left = min(across[n] - width[n] / 2 for n in across) - PAD
    right = max(across[n] + width[n] / 2 for n in across) + PAD
    parts = []
    for path in paths:
        points = []
        for place, n in enumerate(path):
            first, last = down[n]
            if n in boxes:
                points.append((across[n], first + boxes[n].height if place == 0 else first))
            else:
                points += [(across[n], first), (across[n], last)]
        parts.append(svg_curve(points))
    for n, box in boxes.items():
        parts += _box(box, across[n] - box.width / 2, down[n][0])
    x = _legend(legend, left + PAD, parts)
    return svg_document(left, 0, max(right, x) - left, top, parts)


def _legend(legend: Mapping[str, str], x: float, parts: list[str]) -> float:
    """Append a row of colors and their meanings, starting at x, to `parts`; return where the row ends."""
    for name, color in legend.items():
        parts.append(f'<rect x="{x:.1f}" y="6" width="12" height="12" fill="{color}" stroke="{INK}"/>')
        parts.append(svg_text(name, x + 17, 16))
        x += 17 + len(name) * WIDTH_OF_LETTER + 18
    return x


def _layers(boxes: Mapping[Hashable, DrawnBox],
            sources: Mapping[Hashable, Sequence[Hashable]]) -> dict[Hashable, int]:
    """Return the row of each node: one below its lowest source; for a leaf, just above its first reader."""
    layer: dict[Hashable, int] = {}
    for node in boxes:                                   # in topological order
        layer[node] = max((layer[s] + 1 for s in sources[node]), default=0)
    for node in reversed(list(boxes)):
        readers = [layer[n] for n in boxes if node in sources[n]]
        if readers and not sources[node]:
            layer[node] = min(readers) - 1
    return layer


def _order(rows: list[list[Hashable]], pieces: Sequence[tuple[Hashable, Hashable]]) -> None:
    """Sort each row by the mean position of a node's neighbours, so that few edges cross."""
    above: dict[Hashable, list[Hashable]] = {}
    below: dict[Hashable, list[Hashable]] = {}
    for source, reader in pieces:
        below.setdefault(source, []).append(reader)
        above.setdefault(reader, []).append(source)
    for sweep in range(8):
        down = sweep % 2 == 0
        for row in rows if down else rows[::-1]:
            place = {n: i for r in rows for i, n in enumerate(r)}
            near = above if down else below
            middle = {n: sum(place[m] for m in near[n]) / len(near[n]) if n in near else place[n] for n in row}
            row.sort(key=lambda n: middle[n])


def _x_coordinates(rows: list[list[Hashable]], pieces: Sequence[tuple[Hashable, Hashable]],
                   width: Mapping[Hashable, float]) -> dict[Hashable, float]:
    """Return the x coordinate of each node: near its neighbours, never overlapping another."""
    across: dict[Hashable, float] = {}
    for row in rows:
        x = 0.0
        for n in row:
            across[n] = x + width[n] / 2
            x += width[n] + GAP_X
        for n in row:
            across[n] -= (x - GAP_X) / 2
    near: dict[Hashable, list[Hashable]] = {}
    for source, reader in pieces:
        near.setdefault(source, []).append(reader)
        near.setdefault(reader, []).append(source)
    for sweep in range(24):
        for row in rows if sweep % 2 == 0 else rows[::-1]:
            for n in row:
                if n in near:
                    across[n] = sum(across[m] for m in near[n]) / len(near[n])
            for left, right in zip(row, row[1:]):
                across[right] = max(across[right], across[left] + (width[left] + width[right]) / 2 + GAP_X)
            for right, left in zip(row[::-1], row[-2::-1]):
                across[left] = min(across[left], across[right] - (width[left] + width[right]) / 2 - GAP_X)
    return across


def svg_curve(points: Sequence[tuple[float, float]]) -> str:
    (x, y), *rest = points
    path = f"M{x:.1f} {y:.1f}"
    for to_x, to_y in rest:
        half = (to_y - y) / 2
        path += f" C{x:.1f} {y + half:.1f} {to_x:.1f} {to_y - half:.1f} {to_x:.1f} {to_y:.1f}"
        x, y = to_x, to_y
    return f'<path d="{path}" fill="none" stroke="{WIRE}" marker-end="url(#tip)"/>'


def _box(box: DrawnBox, x: float, y: float) -> list[str]:
    out = [f'<rect x="{x:.1f}" y="{y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="4" '
           f'fill="{box.color}" stroke="{box.border}" stroke-width="{1 if box.border == INK else 2.5}"/>']
    for number, line in enumerate(box.lines):
        out.append(svg_text(line, x + box.width / 2, y + PAD / 2 + LINE * (number + 0.75), "middle"))
    return out


# -- loop nests ----------------------------------------------------------------------------------------------
def nests(columns: Mapping[str, Sequence[Nest | str]], legend: Mapping[str, str]) -> str:
    """Draw loop nests side by side: a box for each loop, around what it repeats."""
    parts: list[str] = []
    x, bottom = float(PAD), 0.0
    for title, body in columns.items():
        width = max([_nest_width(b) for b in body] + [len(title) * WIDTH_OF_LETTER])
        y = 52.0
        parts.append(svg_text(title, x, 42, weight="bold"))
        for b in body:
            y = _nest(b, x, y, width, parts) + 6
        bottom = max(bottom, y)
        x += width + GAP_X
    x = max(x, _legend(legend, PAD, parts))
    return svg_document(0, 0, x, bottom + PAD, parts)


def _nest_width(nest: Nest | str) -> float:
    if isinstance(nest, str):
        return len(nest) * WIDTH_OF_LETTER
    return max([len(nest.title) * WIDTH_OF_LETTER] + [_nest_width(i) for i in nest.inside]) + 2 * PAD


def _nest(nest: Nest | str, x: float, y: float, width: float, parts: list[str]) -> float:
    """Draw one statement or loop; return the y coordinate below it."""
    if isinstance(nest, str):
        parts.append(svg_text(nest, x, y + 13))
        return y + LINE
    at = len(parts)
    parts.append(svg_text(nest.title, x + PAD, y + 15))
    bottom = y + LINE + 4
    for inner in nest.inside:
        bottom = _nest(inner, x + PAD, bottom, width - 2 * PAD, parts) + 2
    bottom += 4
    parts.insert(at, f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{bottom - y:.1f}" rx="3" '
                     f'fill="{nest.color}" stroke="{INK}"/>')
    return bottom


# -- bars ----------------------------------------------------------------------------------------------------
def bars(rows: Sequence[tuple[str, float, str]], text: Callable[[float], str], width: float = 320.0) -> str:
    """Draw horizontal bars; each row is a name, an amount and a colour."""
    most = max([amount for _, amount, _ in rows], default=0.0) or 1.0
    left = max([len(name) for name, _, _ in rows], default=0) * WIDTH_OF_LETTER + 2 * PAD
    parts: list[str] = []
    for number, (name, amount, color) in enumerate(rows):
        y = PAD + number * (LINE + 4)
        parts.append(svg_text(name, left - PAD, y + 12, "end"))
        parts.append(f'<rect x="{left:.1f}" y="{y:.1f}" width="{max(1.0, width * amount / most):.1f}" height="{LINE}" '
                     f'rx="3" fill="{color}"/>')
        parts.append(svg_text(text(amount), left + width * amount / most + 6, y + 12))
    return svg_document(0, 0, left + width + 110, 2 * PAD + len(rows) * (LINE + 4), parts)


# -- SVG -----------------------------------------------------------------------------------------------------
def svg_text(words: str, x: float, y: float, anchor: str = "start", weight: str = "normal") -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text {where} fill="{INK}">{escape(words)}</text>'


def svg_document(x: float, y: float, width: float, height: float, parts: Sequence[str]) -> str:
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{x:.1f} {y:.1f} {width:.1f} {height:.1f}" '
            f'width="{width:.0f}" font-family="ui-monospace, monospace" font-size="11.5" xml:space="preserve">')
    tip = (f'<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
           f'<path d="M0 0 L8 4 L0 8 z" fill="{WIRE}"/></marker></defs>')
    paper = f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{PAPER}"/>'
    return "\n".join([head, tip, paper, *parts, "</svg>"]) + "\n"
