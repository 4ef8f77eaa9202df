"""A kernel's loop tree as a picture: a box for each loop, around what it repeats. In: a `Kernel`. Out: SVG text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from glassgrad.base.draw import Nest, nests
from glassgrad.compiler.lower.loops import For, If, Kernel, Phase, Statement
from glassgrad.compiler.lower.printing import show

LOOPS = {"task": "#f9e4b7", "loop": "#e8eef5", "tile": "#d8efe0", "lane": "#bfe3cf", "unit": "#a6d5bb"}


def kernel_svg(kernel: Kernel) -> str:
    """The loops of every phase, without indices."""
    legend = {kind: color for kind, color in LOOPS.items() if kind != "unit" or "unit " in show(kernel)}
    return nests({kernel.name: loop_boxes(kernel)}, legend)


def loop_boxes(kernel: Kernel) -> list[Nest | str]:
    """The loops of all phases, one below the other."""
    return [box for phase in kernel.phases for box in _nested(phase.body)]


def _nested(body: Sequence[Statement]) -> list[Nest | str]:
    out: list[Nest | str] = []
    for s in body:
        if isinstance(s, For):
            out.append(Nest(f"{s.kind} {s.range.arg.name} in {s.range.arg.size}", LOOPS[s.kind], _nested(s.body)))
        elif isinstance(s, If):
            out.append(Nest("if", "#ffffff", _nested(s.body)))
        else:
            out.append(_short(show(Kernel("", [], [Phase([s])])).splitlines()[-1].strip()))
    return out


def _short(line: str) -> str:
    """A statement without its indices: `acc1 += a1[..] * a2[..]`."""
    while re.search(r"\[[^\[\].]+\]", line):
        line = re.sub(r"\[[^\[\].]+\]", "[..]", line)
    return re.sub(r"acc\w*(\[\.\.\])?", "acc", line.partition(" if ")[0]).replace("(", "").replace(")", "")
