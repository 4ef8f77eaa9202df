"""Link assembly to the loop tree. In: a kernel. Out: text, and for each line the row of the loop tree it implements.

The renderer ends each line of LLVM IR with the row it was written for (render/llvm/llvm_ir.py: ROW). Here that becomes
a debug location, which LLVM carries to the instructions it selects; it does not change the code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from glassgrad.base.settings import Context
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.pipeline import build
from glassgrad.compiler.render.llvm.llvm_ir import ROW
from glassgrad.runtime.cpu.llvm_compiler import assembly
from glassgrad.runtime.devices import Device

MOST_LINES = 1_500              # of assembly kept
_FIRST = 1000                   # number of our first metadata node, above those of the renderer
_DIRECTIVE = re.compile(r"\s*\.(cfi_|p2align|size|type|section|file|ident|text$|globl|byte|short|long|quad|zero|ascii|"
                        r"set)")


def linked_assembly(ast: UOp, device: str, moves: Sequence[str]) -> tuple[str, list[list[int]]]:
    """A kernel's assembly without assembler directives, and for each line the rows of the loop tree that it implements.
    `moves` are those of the loop tree."""
    target: Any = getattr(Device[device], "target", None)
    with Context(DEBUG=0):
        text = assembly(with_locations(build(ast, target, "llvm", moves or None, rows=True).source))
    lines: list[str] = []
    links: list[list[int]] = []
    row = 0
    for line in text.split("\n"):
        location = re.match(r"\s*\.loc\s+\d+\s+(\d+)", line)
        if location:
            row = int(location[1])
        elif re.match(r"\s*\.section\s+\.debug", line):
            break                                       # debug tables
        elif re.match(r"\.L(CPI|func|tmp|debug)", line) or _DIRECTIVE.match(line) or not line.strip():
            continue
        else:
            is_code = line.startswith("\t") and not line.startswith("\t.")
            lines.append(line)
            links.append([row] if is_code and row else [])
    return "\n".join(lines[:MOST_LINES]), links[:MOST_LINES]


def with_locations(ir: str) -> str:
    """IR with the row at the end of each line turned into a debug location.

    >>> made = with_locations("define void @f() {" + chr(10) + "  %a = add i64 1, 2 ; row 3" + chr(10) + "}")
    >>> made.split(chr(10))[1]
    '  %a = add i64 1, 2, !dbg !1006'
    """
    notes = ['distinct !DICompileUnit(language: DW_LANG_C99, file: !1002, producer: "glassgrad", isOptimized: true, '
             "emissionKind: LineTablesOnly)", '!{i32 2, !"Debug Info Version", i32 3}',
             '!DIFile(filename: "the loop tree", directory: ".")', "!DISubroutineType(types: !1004)", "!{null}"]
    lines: list[str] = []
    scope = 0
    known: dict[tuple[int, int], int] = {}

    def note(text: str) -> int:
        notes.append(text)
        return _FIRST + len(notes) - 1

    for line in ir.split("\n"):
        code, found, row = line.rpartition(ROW)
        if line.startswith("define "):
            name = line.partition("@")[2].partition("(")[0]
            scope = note(f'distinct !DISubprogram(name: "{name}", file: !1002, line: 1, type: !1003, unit: !1000, '
                         "spFlags: DISPFlagDefinition | DISPFlagOptimized)")
            line = line.removesuffix("{") + f"!dbg !{scope} {{"
        elif found:
            key = scope, int(row)
            if key not in known:
                known[key] = note(f"!DILocation(line: {row}, column: 1, scope: !{scope})")
            line = f"{code}, !dbg !{known[key]}"
        lines.append(line)
    return "\n".join([*lines, "!llvm.dbg.cu = !{!1000}", "!llvm.module.flags = !{!1001}",
                      *[f"!{_FIRST + i} = {text}" for i, text in enumerate(notes)], ""])
