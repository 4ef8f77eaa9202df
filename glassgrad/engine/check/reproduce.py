"""Write a script that reproduces a fault of the compiler. In: a kernel or a rewritten node, and data. Out: a file.

The script contains the graph, node by node, and the data; it needs nothing else of the program that met the fault.
"""

from __future__ import annotations

import base64
import os
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from glassgrad.base.settings import KERNEL_SETTINGS, SETTINGS, settings
from glassgrad.compiler.graph import UOp, toposort
from glassgrad.compiler.graph.ops import Op

_WIDTH = 110
_HEAD = '''"""{title}

Run it with the glassgrad that it was written by: it says whether the fault is still there.
"""
import base64
import zlib

from glassgrad import Context, dtypes
from glassgrad.compiler.graph import ops
from glassgrad.compiler.graph.op_arguments import *
from glassgrad.compiler.graph.uop import UOp

nodes = []


def node(op, dtype, sources=(), arg=None):
    nodes.append(UOp(op, dtype, tuple(nodes[i] for i in sources), arg))


def data(text):
    return zlib.decompress(base64.b85decode(text))


'''


def kernel_script(ast: UOp, data: Mapping[int, bytes], device: str, title: str) -> str:
    """Write a script that runs one kernel and compares it with the interpreter; return the file's name. `data` is the
    content of the memory of its PARAMs, by slot."""
    rows = [f"    {slot}: {_packed(content)}," for slot, content in data.items()]
    return _write(title, [*_nodes([ast]), "", "inputs = {", *rows, "}", "",
                          "from glassgrad.engine.check.one_kernel import check_alone", "",
                          f"with Context({_context()}):",
                          f"    check_alone(nodes[-1], inputs, {device!r})",
                          "print('the kernel and the interpreter agree')"])


def rule_script(name: str, before: Sequence[UOp], values: Mapping[UOp, bytes], title: str) -> str:
    """Write a script that rewrites a graph by one rule (or by a pass, if that has no rules) and interprets it before
    and after; return the file's name. `values` are the bytes of its PARAMs."""
    order = toposort(before)
    number = {n: i for i, n in enumerate(order)}
    rows = [f"    {number[n]}: {_packed(content)}," for n, content in values.items() if n in number]
    return _write(title, [*_nodes(before), "", "inputs = {", *rows, "}", "",
                          "from glassgrad.engine.check.one_kernel import check_rewrite", "",
                          f"with Context({_context()}):",
                          f"    check_rewrite([nodes[i] for i in {[number[n] for n in before]}], "
                          f"{{nodes[i]: raw for i, raw in inputs.items()}}, {name!r})",
                          "print('the graph means the same before and after')"])


def _write(title: str, lines: list[str]) -> str:
    handle, path = tempfile.mkstemp(".py", "glassgrad_check_")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(_HEAD.replace("{title}", title.replace("\\", "/").replace('"""', "'''")) + "\n".join(lines) + "\n")
    return path


def _nodes(roots: Sequence[UOp]) -> list[str]:
    """Return a line of Python for each node, sources first."""
    order = toposort(roots)
    number = {n: i for i, n in enumerate(order)}
    lines = []
    for n in order:
        parts = [f"ops.{n.op.name}", f"dtypes.{n.dtype.name}"]
        if n.src or n.arg is not None:
            parts.append(str([number[s] for s in n.src]))
        if n.arg is not None:
            parts.append(_text(n.arg))
        lines.append(f"node({', '.join(parts)})    # {number[n]}: {list(n.shape)}")
    return lines


def _text(value: Any) -> str:
    """Return a node's argument as Python."""
    if isinstance(value, Op):
        return f"ops.{value.name}"
    if isinstance(value, float):
        return f"float({str(value)!r})" if value != value or value in (float("inf"), float("-inf")) else repr(value)
    if isinstance(value, tuple):
        inner = [_text(part) for part in value]
        if hasattr(value, "_fields"):
            return f"{type(value).__name__}({', '.join(inner)})"
        return f"({', '.join(inner)}{',' if len(inner) == 1 else ''})"
    return repr(value)


def _packed(content: bytes) -> str:
    text = base64.b85encode(zlib.compress(content, 9)).decode()
    if len(text) <= _WIDTH:
        return f"data({text!r})"
    pieces = [text[i:i + _WIDTH] for i in range(0, len(text), _WIDTH)]
    return "data(\n" + "\n".join(f"        {piece!r}" for piece in pieces) + ")"


def _context() -> str:
    """Return the settings that decide which kernels a graph becomes, where they are not the default."""
    changed = [name for name in KERNEL_SETTINGS if getattr(settings, name) != SETTINGS[name].default]
    return ", ".join(f"{name}={getattr(settings, name)!r}" for name in changed)
