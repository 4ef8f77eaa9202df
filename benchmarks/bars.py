"""Draw rates as bars. In: name -> rate. Out: an SVG as text. Needs no plotting library."""

from __future__ import annotations

from html import escape

__all__ = ["bars"]

LEFT, WIDTH, ROW, TOP = 110, 560, 30, 56


def bars(rates: dict[str, float], title: str, limits: dict[str, float]) -> str:
    """One bar for each rate, and an upright line for each limit.

    >>> bars({"naive": 0.5, "packed": 100.0}, "GFLOPS", {"peak": 150.0}).count("<rect")
    3
    """
    most = max([*rates.values(), *limits.values()])
    across = lambda rate: WIDTH * rate / most
    bottom = TOP + ROW * len(rates)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 90} {bottom + 12}" '
             'font-family="sans-serif" font-size="13">', '<rect width="100%" height="100%" fill="#ffffff"/>',
             f'<text x="{LEFT}" y="16" fill="#222222">{escape(title)}</text>']
    for place, (name, rate) in enumerate(rates.items()):
        y = TOP + ROW * place
        parts.append(f'<text x="{LEFT - 10}" y="{y + 19}" text-anchor="end" fill="#222222">{escape(name)}</text>')
        parts.append(f'<rect x="{LEFT}" y="{y + 5}" width="{across(rate):.1f}" height="{ROW - 10}" fill="#2e8b84"/>')
        parts.append(f'<text x="{LEFT + across(rate) + 6:.1f}" y="{y + 19}" fill="#222222">{rate:.3g}</text>')
    for place, (name, rate) in enumerate(limits.items()):       # one above another: they may be close
        x, y = LEFT + across(rate), 32 + 15 * place
        parts.append(f'<line x1="{x:.1f}" y1="{y + 4}" x2="{x:.1f}" y2="{bottom}" stroke="#d1495b"/>')
        parts.append(f'<text x="{x:.1f}" y="{y}" text-anchor="end" fill="#d1495b">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
