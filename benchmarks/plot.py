"""Draw ratios. In: workload -> peer -> ratio. Out: an SVG as text. Needs no plotting library."""

from __future__ import annotations

import math
from html import escape

__all__ = ["plot"]

LEFT, WIDTH, ROW, TOP = 190, 620, 18, 64
COLORS = ("#d1495b", "#2e6f95", "#6a994e", "#8a5fbf")


def _mark(kind: int, x: float, y: float, title: str) -> str:
    """A mark that differs in shape and in colour."""
    color = COLORS[kind % len(COLORS)]
    shapes = (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5"',
              f'<rect x="{x - 4.5:.1f}" y="{y - 4.5:.1f}" width="9" height="9"',
              f'<path d="M{x:.1f} {y - 5.5:.1f} l5.5 10 h-11 z"',
              f'<path d="M{x:.1f} {y - 6:.1f} l6 6 l-6 6 l-6 -6 z"')
    return f'{shapes[kind % len(shapes)]} fill="{color}" fill-opacity="0.85"><title>{escape(title)}</title>' + \
        {0: "</circle>", 1: "</rect>", 2: "</path>", 3: "</path>"}[kind % len(shapes)]


def plot(ratios: dict[str, dict[str, float]], titles: dict[str, str]) -> str:
    """One line per workload, one mark per peer, on a logarithmic axis; right of 1 glassgrad is faster.

    >>> plot({"matmul-256": {"torch": 2.0}}, {"torch": "PyTorch"}).count("<circle")
    2
    """
    values = [ratio for by in ratios.values() for ratio in by.values()] or [1.0]
    low = math.floor(math.log10(min(*values, 0.5)))
    high = math.ceil(math.log10(max(*values, 2.0)))
    across = lambda ratio: LEFT + WIDTH * (math.log10(ratio) - low) / (high - low)
    bottom = TOP + ROW * len(ratios)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 30} {bottom + 30}" '
             'font-family="sans-serif" font-size="12">', '<rect width="100%" height="100%" fill="#ffffff"/>',
             f'<text x="{LEFT}" y="20" fill="#222222">time of the peer / time of glassgrad (log scale)</text>']
    for kind, title in enumerate(titles.values()):
        parts.append(_mark(kind, LEFT + 8 + 150 * kind, 38, title))
        parts.append(f'<text x="{LEFT + 20 + 150 * kind}" y="42" fill="#222222">{escape(title)}</text>')
    for power in range(low, high + 1):
        for step in (1, 2, 5):
            ratio = step * 10.0 ** power
            if ratio > 10.0 ** high:
                continue
            x, strong = across(ratio), ratio == 1
            parts.append(f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{bottom}" '
                         f'stroke="{"#222222" if strong else "#dddddd"}"/>')
            parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle" fill="#222222">{ratio:g}</text>')
    for place, (name, by) in enumerate(ratios.items()):
        y = TOP + ROW * (place + 0.5)
        parts.append(f'<text x="{LEFT - 10}" y="{y + 4:.1f}" text-anchor="end" fill="#222222">{escape(name)}</text>')
        for kind, peer in enumerate(titles):
            if peer in by:
                parts.append(_mark(kind, across(by[peer]), y, f"{name}, {titles[peer]}: {by[peer]:.2f}x"))
    return "\n".join([*parts, "</svg>"]) + "\n"
