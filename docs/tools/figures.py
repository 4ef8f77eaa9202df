"""Measure the source: size of each part, class chains, folders, import circles, names used twice, private names.

In: the repository. Out: a dictionary of figures; `python docs/tools/figures.py` prints them, `--write` writes the sizes
into docs/sizes.md, and tests/project/test_figures.py compares them with their limits.
"""

from __future__ import annotations

import ast
import functools
import io
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from capabilities import CAPABILITIES  # noqa: E402  (beside this file)

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "glassgrad"
PARTS = {
    "compiler": ("compiler/graph", "compiler/schedule", "compiler/lower", "compiler/optimize", "compiler/render",
                 "compiler/pipeline.py"),
    "check": ("compiler/check",),
    "engine and runtime": ("engine", "runtime"),
    "tensor": ("tensor",),
    "nn": ("nn",),
    "jit": ("jit",),
}
AIMS = {"compiler": 9_000, "engine and runtime": 4_300, "tensor": 6_000, "nn": 5_000, "jit": 1_400, "package": 27_000}
SIZE_MARKS = ("<!-- sizes: written by docs/tools/figures.py --write -->", "<!-- end of sizes -->")
JIT_IN_ENGINE = ("engine/capture.py", "engine/replay.py")        # counted with the jit, which they serve alone


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def code_lines(path: Path) -> int:
    """Lines of code: neither blank nor comment nor docstring."""
    text = path.read_text()
    lines: set[int] = set()
    skip = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skip:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and body and \
                isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) and \
                isinstance(body[0].value.value, str):
            lines.difference_update(range(body[0].lineno, (body[0].end_lineno or 0) + 1))
    return len(lines)


def within(file: str, paths: tuple[str, ...]) -> bool:
    """Whether a file is one of these paths, or in a folder that is."""
    return any(file == path or file.startswith(path + "/") for path in paths)


@functools.cache
def line_counts() -> dict[str, int]:
    """Lines of code of every file of the package."""
    return {path.relative_to(PACKAGE).as_posix(): code_lines(path) for path in sources()}


def sizes() -> dict[str, int]:
    """Lines of code of each part's core, of everything new, and of the whole package."""
    count = line_counts()
    new = {file for paths in CAPABILITIES.values() for file in count if within(file, paths)}
    core = {file: n for file, n in count.items() if file not in new}
    found = {part: sum(n for file, n in core.items() if within(file, folders) and file not in JIT_IN_ENGINE)
             for part, folders in PARTS.items()}
    found["jit"] += sum(core.get(file, 0) for file in JIT_IN_ENGINE)
    found["package"] = sum(core.values())
    found["new capabilities"] = sum(count[file] for file in new)
    found["package with them"] = sum(count.values())
    return found


def capability_sizes() -> dict[str, int]:
    """Lines of code of each new capability."""
    count = line_counts()
    return {name: sum(n for file, n in count.items() if within(file, paths)) for name, paths in CAPABILITIES.items()}


def missing_capability_files() -> list[str]:
    """What the table of capabilities lists and the package does not have."""
    return [path for paths in CAPABILITIES.values() for path in paths if not (PACKAGE / path).exists()]


def size_tables() -> str:
    """The sizes as tables of Markdown: each part with its aim, then each new capability with its files."""
    parts = [f"| {part} | {n:,} | {f'{AIMS[part]:,}' if part in AIMS else ''} |" for part, n in sizes().items()]
    new = [f"| {name} | {n:,} | {', '.join(f'`{path}`' for path in CAPABILITIES[name])} |"
           for name, n in capability_sizes().items()]
    return "\n".join(["| part | lines of code | aim |", "|---|---|---|", *parts, "",
                      "| new capability | lines of code | where |", "|---|---|---|", *new])


def write_size_page() -> None:
    """Put the tables between the marks of docs/sizes.md."""
    page = ROOT / "docs" / "sizes.md"
    before, rest = page.read_text().split(SIZE_MARKS[0])
    page.write_text(f"{before}{SIZE_MARKS[0]}\n{size_tables()}\n{SIZE_MARKS[1]}{rest.split(SIZE_MARKS[1])[1]}")


def class_chains() -> tuple[int, str]:
    """The longest chain of classes of the package, each inheriting from the one before, and its last class."""
    bases: dict[str, list[str]] = {}
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = [b.id if isinstance(b, ast.Name) else b.attr for b in node.bases
                                    if isinstance(b, (ast.Name, ast.Attribute))]

    def depth(name: str, seen: tuple[str, ...] = ()) -> int:
        if name not in bases or name in seen:
            return 0
        return 1 + max((depth(base, (*seen, name)) for base in bases[name]), default=0)

    return max((depth(name), name) for name in bases)


def class_names_used_twice() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path.relative_to(PACKAGE).as_posix())
    return {name: files for name, files in sorted(found.items()) if len(files) > 1}


def largest_folder() -> tuple[int, str]:
    """The folder with the most Python files, `__init__.py` not counted."""
    count: dict[str, int] = defaultdict(int)
    for path in sources():
        if path.name != "__init__.py":
            count[path.parent.relative_to(ROOT).as_posix()] += 1
    return max((n, folder) for folder, n in count.items())


def imports(path: Path) -> Iterator[str]:
    """Modules of the package that a file imports: at the top, inside functions and for the type checker."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("glassgrad"))
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("glassgrad"):
            folder = ROOT / str(node.module).replace(".", "/")
            for a in node.names:
                inner = (folder / f"{a.name}.py").exists() or (folder / a.name / "__init__.py").exists()
                yield f"{node.module}.{a.name}" if inner else str(node.module)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def import_circles() -> list[list[str]]:
    """Sets of modules that import each other, by any kind of import (strongly connected components)."""
    needs = {module_of(path): sorted(set(imports(path)) - {module_of(path)}) for path in sources()}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    circles: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in needs.get(name, ()):
            if other not in index:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == index[name]:
            circle = stack[stack.index(name):]
            del stack[stack.index(name):]
            if len(circle) > 1:
                circles.append(sorted(circle))

    sys.setrecursionlimit(10_000)
    for name in needs:
        if name not in index:
            visit(name)
    return circles


def private_uses() -> list[str]:
    """Private names imported from another folder, and private attributes of the graph's nodes used outside graph/."""
    found = []
    for path in sources():
        here = path.parent
        file = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("glassgrad"):
                there = (ROOT / str(node.module).replace(".", "/")).parent
                found += [f"{file}:{node.lineno} imports {a.name} from {node.module}" for a in node.names
                          if a.name.startswith("_") and not a.name.startswith("__") and there != here]
            elif isinstance(node, ast.Attribute) and node.attr == "_cache" and "compiler/graph" not in file:
                found.append(f"{file}:{node.lineno} reads ._cache")
    return found


EXPRESSION = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
seen = set()
def note(frame, event, arg):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith({package!r}):
        seen.add((code.co_filename, code.co_firstlineno, code.co_name))
from glassgrad import Tensor
a, b = Tensor.rand(4, 5).realize(), Tensor.rand(5, 3).realize()
import threading
threading.setprofile(note)
sys.setprofile(note)
(a @ b).relu().sum().backward()
a.grad.realize()
sys.setprofile(None)
for row in sorted(seen):
    print(*row, sep="\\t")
"""


@functools.cache
def functions_executed() -> dict[str, list[tuple[str, int]]]:
    """The functions that `(a @ b).relu().sum().backward()` executes with an empty cache: by file of the package, each
    with its number of lines."""
    script = EXPRESSION.format(root=str(ROOT), package=str(PACKAGE) + "/")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True,
                          env={"PATH": "/usr/bin:/bin", "CACHE": "0", "HOME": str(Path.home())})
    calls = defaultdict(set)
    for row in done.stdout.splitlines():
        file, line, name = row.split("\t")
        calls[file].add((int(line), name))
    found: dict[str, list[tuple[str, int]]] = {}
    for file, functions in calls.items():
        rows = found[Path(file).relative_to(PACKAGE).as_posix()] = []
        for node in ast.walk(ast.parse(Path(file).read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                first = min([node.lineno, *[d.lineno for d in node.decorator_list]])
                if (first, node.name) in functions or (node.lineno, node.name) in functions:
                    rows.append((node.name, (node.end_lineno or node.lineno) - first + 1))
    return found


def lines_executed() -> tuple[int, int]:
    """Lines of the functions that the expression executes, and their files."""
    found = functions_executed()
    return sum(lines for functions in found.values() for _, lines in functions), len(found)


def capabilities_executed() -> list[str]:
    """Files of new capabilities that the expression executes, though it uses none of them."""
    return sorted(file for file in functions_executed() for paths in CAPABILITIES.values() if within(file, paths))


def figures() -> dict[str, object]:
    """All figures by name."""
    chain, last = class_chains()
    files, folder = largest_folder()
    lines, executed = lines_executed()
    return {
        **{f"lines of code, {part}": n for part, n in sizes().items()},
        "longest chain of classes": f"{chain} ({last})",
        "files in the largest folder": f"{files} ({folder})",
        "import circles": len(import_circles()),
        "class names used more than once": len(class_names_used_twice()),
        "private names used from another folder": len(private_uses()),
        "lines of the functions that (a @ b).relu().sum().backward() executes": f"{lines} in {executed} files",
    }


if __name__ == "__main__":
    if "--write" in sys.argv:
        write_size_page()
    for name, value in figures().items():
        print(f"{name:<75} {value}")
    if "--executed" in sys.argv:
        for file, functions in sorted(functions_executed().items()):
            print(f"{sum(lines for _, lines in functions):>5} {file}: {' '.join(name for name, _ in functions)}")
    if "-v" in sys.argv:
        print(*private_uses(), *import_circles(), *class_names_used_twice().items(), sep="\n")
