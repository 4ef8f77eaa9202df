"""A kernel's loop tree as a picture: a box for each loop, around what it repeats. In: a `Kernel`. Out: SVG text.

Statements are told apart by their fields, not their classes: loops.py, which has the classes, draws by this file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from glassgrad.base.draw import Nest, nests
from glassgrad.compiler.lower.expression_text import statement_text

LOOPS = {"task": "#f9e4b7", "loop": "#e8eef5", "tile": "#d8efe0", "lane": "#bfe3cf", "unit": "#a6d5bb"}


def kernel_svg(kernel: Any) -> str:
    """The loops of every phase, without indices."""
    return nests({kernel.name: loop_boxes(kernel)}, LOOPS)


def loop_boxes(kernel: Any) -> list[Nest | str]:
    """The loops of all phases, one below the other."""
    return [box for phase in kernel.phases for box in _nested(phase.body)]


def _nested(body: Sequence[Any]) -> list[Nest | str]:
    out: list[Nest | str] = []
    for s in body:
        if hasattr(s, "range"):
            out.append(Nest(f"{s.kind} {s.range.arg.name} in {s.range.arg.size}", LOOPS[s.kind], _nested(s.body)))
        elif hasattr(s, "condition"):
            out.append(Nest("if", "#ffffff", _nested(s.body)))
        else:
            out.append(_short(statement_text(s)))
    return out


def _short(line: str) -> str:
    """A statement without its indices: `acc1 += a1[..] * a2[..]`."""
    while re.search(r"\[[^\[\].]+\]", line):
        line = re.sub(r"\[[^\[\].]+\]", "[..]", line)
    return re.sub(r"acc\w*(\[\.\.\])?", "acc", line.partition(" if ")[0]).replace("(", "").replace(")", "")
