"""Draw steps as SVG: a ladder of passes with their text, and memory over time. In: texts, spans of bytes. Out: text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glassgrad.base.svg import GAP_Y, INK, LINE, PAD, PAPER, WIDTH_OF_LETTER, svg_curve, svg_document, svg_text


@dataclass
class Rung:
    """A step of a drawing: a title with notes on the left, the text that the step leaves on the right."""
    title: str
    notes: Sequence[str]
    lines: Sequence[str]
    color: str

    @property
    def height(self) -> float:
        return max(len(self.notes) + 1, len(self.lines)) * LINE + 2 * PAD


def ladder(rungs: Sequence[Rung]) -> str:
    """Steps from top to bottom: what runs on the left, the text that it leaves on the right."""
    parts: list[str] = []
    left = max(len(word) for rung in rungs for word in (rung.title, *rung.notes)) * WIDTH_OF_LETTER + 3 * PAD
    right = max(len(line) for rung in rungs for line in rung.lines) * WIDTH_OF_LETTER + 2 * PAD
    y = float(PAD)
    for rung in rungs:
        if rung is not rungs[0]:
            parts.append(svg_curve([(PAD + left / 2, y), (PAD + left / 2, y + GAP_Y)]))
            y += GAP_Y
        for x, width, color in ((PAD, left, rung.color), (PAD + left, right, PAPER)):
            parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{rung.height:.1f}" rx="4" '
                         f'fill="{color}" stroke="{INK}"/>')
        parts.append(svg_text(rung.title, 2 * PAD, y + PAD + LINE * 0.75, weight="bold"))
        for number, note in enumerate(rung.notes, 1):
            parts.append(svg_text(note, 2 * PAD, y + PAD + LINE * (number + 0.75)))
        for number, line in enumerate(rung.lines):
            indented = (len(line) - len(line.lstrip())) * WIDTH_OF_LETTER
            parts.append(svg_text(line.lstrip(), 2 * PAD + left + indented, y + PAD + LINE * (number + 0.75)))
        y += rung.height
    return svg_document(0, 0, left + right + 2 * PAD, y + PAD, parts)


# -- memory over time ----------------------------------------------------------------------------------------
@dataclass
class Span:
    """A value in memory: from one step to another, at some bytes from the beginning."""
    label: str
    first: int
    last: int
    offset: int
    nbytes: int
    color: str


def arena(spans: Sequence[Span], steps: Sequence[str], total: int, unit: str, height: int = 260) -> str:
    """Memory from bottom to top, time from left to right: a box for each value, as long as it is kept."""
    wide = max(len(step) for step in steps) * WIDTH_OF_LETTER + 2 * PAD
    top, left = 30.0, 8.0 * WIDTH_OF_LETTER
    bottom = top + height
    parts = [svg_text(unit, PAD, top - 12)]
    for part in range(5):
        y = bottom - height * part / 4
        parts.append(f'<path d="M{left:.1f} {y:.1f} H{left + wide * len(steps):.1f}" stroke="#dddddd"/>')
        parts.append(svg_text(f"{total * part / 4:.0f}", left - PAD, y + 4, "end"))
    for number, step in enumerate(steps):
        parts.append(svg_text(step, left + wide * (number + 0.5), bottom + LINE, "middle"))
    for span in spans:
        x, y = left + wide * span.first, bottom - height * (span.offset + span.nbytes) / total
        width, tall = wide * (span.last - span.first + 1), height * span.nbytes / total
        parts.append(f'<rect x="{x + 2:.1f}" y="{y:.1f}" width="{width - 4:.1f}" height="{tall:.1f}" rx="3" '
                     f'fill="{span.color}" stroke="{INK}"/>')
        if tall > LINE * 0.8:
            parts.append(svg_text(span.label, x + width / 2, y + tall / 2 + 4, "middle"))
    return svg_document(0, 0, left + wide * len(steps) + PAD, bottom + LINE + PAD, parts)
