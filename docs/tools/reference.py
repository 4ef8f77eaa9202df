"""The API reference, from the docstrings. In: the package. Out: page -> Markdown. Does not depend on MkDocs.

One page for each mixin of Tensor (a file of methods), one for each module of layers and tools. Signatures
come with their types, examples are those that the tests run, and each name links to the lines that define it.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import glassgrad
from glassgrad import DType, Tensor, dtypes, nn

ROOT = Path(glassgrad.__file__).resolve().parent.parent
MODULES = ("glassgrad.nn.optim", "glassgrad.nn.state", "glassgrad.nn.datasets")


# -- what there is -------------------------------------------------------------------------------------------
def mixins() -> list[type]:
    """The classes that Tensor stands on and that have public names, lowest first."""
    classes = [c for c in reversed(Tensor.__mro__) if c is not object]
    return [c for c in classes if any(not n.startswith("_") for n in vars(c))]


def files_of_methods() -> list[tuple[str, list[type]]]:
    """The files that Tensor's methods are in, by the title of their page, each with its mixins."""
    found: dict[str, list[type]] = {}
    for mixin in mixins():
        found.setdefault(mixin.__module__.rpartition(".")[2], []).append(mixin)
    return list(found.items())


def tensor_page_path(file: str) -> str:
    return f"reference/tensor/{file}.md"


def pages() -> dict[str, str]:
    """Every page of the reference."""
    out = {tensor_page_path(file): tensor_page(file, found) for file, found in files_of_methods()}
    names = [n for n in glassgrad.__all__ if n not in ("nn", "jit", "Tensor", "dtypes")]
    out["reference/glassgrad.md"] = module_page(glassgrad, names) + "\n" + dtypes_entry()
    out["reference/nn.md"] = module_page(nn, sorted(n for n, v in vars(nn).items() if inspect.isclass(v)))
    for name in MODULES:
        module = importlib.import_module(name)
        out[f"reference/{name.rpartition('.')[2]}.md"] = module_page(module, public(module))
    return out


def dtypes_entry() -> str:
    """Every element type, with the other names it has."""
    names: dict[str, list[str]] = {}
    for name, value in vars(dtypes).items():
        if isinstance(value, DType) and not name.startswith("_"):
            names.setdefault(value.name, []).append(name)
    rows = [f"| `dtypes.{name}` | {getattr(dtypes, given[0]).itemsize} | "
            f"{', '.join(f'`{other}`' for other in given if other != name)} |" for name, given in names.items()]
    return "\n".join(["## dtypes { #dtypes }", "", prose(inspect.getdoc(dtypes) or ""), "",
                      "| type | bytes | also called |", "|---|---|---|", *rows]) + "\n"


def public(module: ModuleType) -> list[str]:
    """The names that a module gives out and that are ours."""
    names = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
    things = {n: getattr(module, n) for n in names}
    return sorted(n for n, v in things.items() if callable(v) and v is not Tensor
                  and str(getattr(v, "__module__", "")).startswith("glassgrad"))


def navigation() -> list[Any]:
    """The reference as entries of MkDocs' navigation."""
    tensor = [{file.replace("_", " "): tensor_page_path(file)} for file, _ in files_of_methods()]
    others = {"glassgrad.nn": "reference/nn.md"} | {m: f"reference/{m.rpartition('.')[2]}.md" for m in MODULES}
    return [{"glassgrad": "reference/glassgrad.md"}, {"Tensor": tensor}, *[{k: v} for k, v in others.items()]]


# -- pages ---------------------------------------------------------------------------------------------------
def tensor_page(file: str, found: list[type]) -> str:
    """The methods and properties that one file gives to Tensor."""
    module = importlib.import_module(found[0].__module__)
    parts = [f"# Tensor: {file.replace('_', ' ')}", opening(module)]
    for name in sorted(n for mixin in found for n in vars(mixin) if not n.startswith("_")):
        parts.append(entry(name, inspect.getattr_static(Tensor, name), getattr(Tensor, name), "../../"))
    return "\n\n".join(parts) + "\n"


def module_page(module: ModuleType, names: list[str]) -> str:
    parts = [f"# {module.__name__}", opening(module)]
    parts += [entry(name, getattr(module, name), getattr(module, name), "../") for name in names]
    return "\n\n".join(parts) + "\n"


def opening(module: ModuleType) -> str:
    """What the file says it is."""
    return prose(module.__doc__ or "")          # as it stands: getdoc would take an indented listing for margin


def entry(name: str, static: Any, thing: Any, up: str) -> str:
    """One name: its signature, what it does, an example, and where it is written."""
    lines = [f"## {name} {{ #{name} }}"]
    plain = static.fget if isinstance(static, property) else thing
    if not callable(plain):                     # an object with methods: Device
        plain = type(thing)
    else:
        plain = inspect.unwrap(plain)
        if not isinstance(static, property):
            lines.append(f"```python\n{signature(name, plain)}\n```")
    lines.append(prose(inspect.getdoc(plain) or ""))
    if inspect.isclass(plain):
        lines.append(members(plain))
    lines.append(where(plain, up))
    return "\n\n".join(line for line in lines if line)


def members(kind: type) -> str:
    """What can be called on an object of a class: a line for each public method and property that says what it is."""
    out: list[str] = []
    for name, static in ((name, inspect.getattr_static(kind, name)) for name in dir(kind)):
        plain = static.fget if isinstance(static, property) else \
            static.__func__ if isinstance(static, (classmethod, staticmethod)) else static
        if name.startswith("_") or not inspect.isfunction(plain) or not plain.__module__.startswith("glassgrad"):
            continue
        said = re.split(r"(?<=[.;:])\s", " ".join((inspect.getdoc(plain) or "").split(">>>")[0].split()))[0]
        if said:
            call = name if isinstance(static, property) else " ".join(signature(name, plain).split())
            out.append(f"- `{call}`: {said.rstrip('.;:')}")
    return "\n".join(out)


def signature(name: str, thing: Any) -> str:
    """The call with its types; one argument a line where it would be long."""
    try:
        given = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    kept = [p for p in given.parameters.values() if p.name not in ("self", "cls")]
    result = "" if inspect.isclass(thing) or given.return_annotation is given.empty else \
        f" -> {_type(given.return_annotation)}"
    arguments = [_argument(p) for p in kept]
    short = f"{name}({', '.join(arguments)}){result}"
    return short if len(short) <= 100 else f"{name}(\n    " + ",\n    ".join(arguments) + f"\n){result}"


def _argument(p: inspect.Parameter) -> str:
    star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
    kind = "" if p.annotation is p.empty else f": {_type(p.annotation)}"
    default = "" if p.default is p.empty else (f" = {p.default!r}" if kind else f"={p.default!r}")
    return star + p.name + kind + re.sub(r"<function (\S+) at 0x\w+>|<class '([^']+)'>", r"\1\2", default)


def _type(annotation: Any) -> str:
    shown = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\bSelf\b", "Tensor", shown)            # a mixin's methods return the whole class


def prose(text: str) -> str:
    """A docstring as Markdown: examples and indented lines become blocks, the rest stays as it is written.

    >>> prose("Adds.\\n\\n>>> 1 + 1\\n2\\n")
    'Adds.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```'
    """
    out: list[str] = []
    for block in re.split(r"\n\s*\n", text.strip()):
        while block:
            if block.startswith(">>>"):
                out.append(f"```pycon\n{block}\n```")
                break
            if block.startswith("    "):
                out.append(f"```text\n{inspect.cleandoc(block)}\n```")
                break
            told, _, rest = block.partition("\n>>>")
            spans = re.split(r"(`[^`]*`)", told)                    # what is code stays, the rest is no markup
            out.append("".join(s if s.startswith("`") else re.sub(r"([*<\[\]])", r"\\\1", s) for s in spans))
            block = ">>>" + rest if rest else ""
    return "\n\n".join(out)


def where(thing: Any, up: str) -> str:
    """A link to the lines that define it."""
    try:
        path = Path(inspect.getsourcefile(thing) or "").resolve().relative_to(ROOT)
        line = inspect.getsourcelines(thing)[1]
    except (OSError, TypeError, ValueError):
        return ""
    return f"[{path.as_posix()}, line {line}]({up}source/{path.as_posix()}.md#line-0-{line})"


# -- the table of every name ---------------------------------------------------------------------------------
def linked(table: str) -> str:
    """docs/api.md with its names linked to the reference."""
    page, out = "", []
    of = {mixin.__module__.replace(".", "/") + ".py": tensor_page_path(file) for file, found in files_of_methods()
          for mixin in found}
    of |= {"glassgrad": "reference/glassgrad.md", "glassgrad.nn": "reference/nn.md"}
    of |= {m: f"reference/{m.rpartition('.')[2]}.md" for m in MODULES}
    anchors = {path: set(re.findall(r"\{ #(\w+) \}", text)) for path, text in pages().items()}
    for line in table.splitlines(keepends=True):
        heading = re.match(r"##+ \[?([\w./]+)", line)
        if heading:
            page = of.get(heading[1], "")
        cell = re.match(r"\| (`(\w+)[^`]*`) \|", line)
        if cell and page and cell[2] in anchors.get(page, ()):
            line = f"| [{cell[1]}]({page}#{cell[2]}) |" + line[cell.end():]
        out.append(line)
    return "".join(out)
