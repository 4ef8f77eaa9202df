"""docs/api.md is written from the code. After a change of names or docstrings:

    PYTHONPATH=tests/reference python tests/tensor_api/test_api_page.py
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from api_names import (ABSENT, DIFFERENCES, IN_PYTORCH, IN_TINYGRAD, MODULE_DIFFERENCES, NOT_FROM_PYTORCH, PLAIN,
                       PYTORCH, TINYGRAD)

import glassgrad
from glassgrad import Tensor, nn
from glassgrad.compat.import_hook import MODULES
from glassgrad.tensor.checks import REQUIRED

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
HEAD = """# Every name

For people who look for a name, or know it from another library. Written by
`python tests/tensor_api/test_api_page.py` from the code; a test compares. A tick in the column "tinygrad"
means the same name there; the column "PyTorch" says what it is called there: a bare name is a method of
`torch.Tensor`, `F` is `torch.nn.functional`. Where behaviour differs, the last column says so. Scripts written for
tinygrad run as they are: `python -m glassgrad.compat script.py`.

"""


def sentence(thing: Any) -> str:
    """The first sentence of a docstring, fit for a table."""
    text = " ".join((inspect.getdoc(thing) or "").split(">>>")[0].split())
    short = re.split(r"(?<=[.;:])\s", text)[0]
    if short.count(" ") < 2:                        # "A decorator: .." says nothing yet
        short = re.split(r"(?<=[.])\s", text)[0]
    return short.rstrip(".;:").replace("|", "\\|")


def signature(thing: Any) -> str:
    """The parameters, without types: they are long, and the source has them."""
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return ""
    parts = []
    for p in parameters:
        if p.name in ("self", "cls"):
            continue
        if p.name == "spelling":                    # other libraries' keywords: docs/api.md says which once
            continue
        star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        default = "" if p.default is p.empty or p.default is REQUIRED else f"={p.default!r}"
        parts.append(star + p.name + (default if len(default) < 24 else "=..."))
    return f"({', '.join(parts)})".replace("|", "\\|")


def rooms() -> list[type]:
    """The classes Tensor stands on, lowest first."""
    return [c for c in reversed(Tensor.__mro__) if c is not object]


def tensor_tables() -> list[str]:
    lines = ["## Tensor", "", "Grouped by the file that holds them.", ""]
    listed: set[str] = set()
    for room in rooms():
        names = sorted(n for n in vars(room) if not n.startswith("_") and n not in listed)
        listed |= set(names)
        module = importlib.import_module(room.__module__)
        if not names:
            continue
        path = room.__module__.replace(".", "/") + ".py"
        lines += [
            f"### [{path}](../{path})",
            "",
            sentence(module),
            "",
            "| name | what it is | tinygrad | PyTorch | difference |",
            "|---|---|---|---|---|",
        ]
        for name in names:
            thing = inspect.getattr_static(Tensor, name)
            plain = thing.fget if isinstance(thing, property) else getattr(Tensor, name)
            shown = f"`{name}`" if isinstance(thing, property) or not callable(plain) else f"`{name}{signature(plain)}`"
            lines.append(
                f"| {shown} | {sentence(plain) if callable(plain) else PLAIN[name]} | "
                f"{'✓' if name in TINYGRAD else ''} | "
                f"{'`' + PYTORCH[name] + '`' if name in PYTORCH else ''} | {DIFFERENCES.get(name, '')} |"
            )
        lines.append("")
    return lines


def module_table(title: str, module: Any, names: list[str], pytorch: str = "") -> list[str]:
    """A module's names; `pytorch` is the module of PyTorch's that has all of them under the same names."""
    lines = [f"## {title}", "", "| name | what it is | tinygrad | PyTorch | difference |", "|---|---|---|---|---|"]
    for name in names:
        thing = getattr(module, name)
        call = f"{name}{signature(thing)}" if callable(thing) and not inspect.isclass(thing) else name
        speaks = callable(thing) or inspect.ismodule(thing)             # of others their type says what they are
        what = sentence(thing if speaks else type(thing)) or sentence(getattr(Tensor, name))
        theirs = f"{pytorch}.{name}" if pytorch else IN_PYTORCH.get(name, "")
        lines.append(f"| `{call}` | {what} | {'✓' if name in IN_TINYGRAD and not pytorch else ''} | "
                     f"{'`' + theirs + '`' if theirs else ''} | {MODULE_DIFFERENCES.get(name, '')} |")
    return [*lines, ""]


def page() -> str:
    lines = [HEAD.rstrip(), ""]
    lines += module_table("glassgrad", glassgrad, [n for n in glassgrad.__all__ if n not in ("nn", "jit", "Tensor")])
    lines += tensor_tables()
    layers = sorted(n for n, v in vars(nn).items() if n == "Parameter" or
                    inspect.isclass(v) and not n.startswith("_") and v.__module__.startswith("glassgrad"))
    lines += module_table("glassgrad.nn", nn, layers)
    functional = importlib.import_module("glassgrad.nn.functional")
    lines += module_table("glassgrad.nn.functional", functional, sorted(functional.__all__), "F")
    for name in ("optim", "state", "datasets"):
        module = importlib.import_module(f"glassgrad.nn.{name}")
        public = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
        lines += module_table(
            f"glassgrad.nn.{name}",
            module,
            sorted(
                n
                for n in public
                if callable(getattr(module, n)) and getattr(module, n).__module__.startswith("glassgrad")
            ),
        )
    if ABSENT:
        lines += ["## What tinygrad's Tensor has and this one does not", "", "| name | instead |", "|---|---|"]
        lines += [*[f"| `{name}` | {instead} |" for name, instead in sorted(ABSENT.items())], ""]
    lines += ["## What PyTorch has and this has not", "",
              "Of `torch.Tensor`, `torch.nn`, `torch.optim` and `torch.linalg`; a test compares with PyTorch.", "",
              "| why, or what instead | names |", "|---|---|"]
    lines += [f"| {why} | {', '.join(f'`{name}`' for name in sorted(names.split()))} |"
              for why, names in NOT_FROM_PYTORCH.items()]
    lines += ["", "## Modules of tinygrad that resolve", "", ", ".join(f"`{m}`" for m in sorted(MODULES)), ""]
    return "\n".join(lines)


def test_the_page_is_the_code():
    assert PAGE.read_text() == page(), "python tests/tensor_api/test_api_page.py writes it anew"


def test_nothing_of_tinygrad_is_missing_without_a_word():
    silent = [n for n in TINYGRAD if not hasattr(Tensor, n) and n not in ABSENT]
    assert not silent, f"neither there nor explained: {silent}"
    assert not [n for n in ABSENT if hasattr(Tensor, n)]


def test_nothing_of_pytorch_is_missing_without_a_word():
    torch = pytest.importorskip("torch", reason="PyTorch, whose names these are, is not installed")
    public = lambda room, kind: {n for n in dir(room) if not n.startswith("_") and kind(getattr(room, n))}
    theirs = [(torch.Tensor, Tensor, lambda thing: True), (torch.nn, nn, inspect.isclass),
              (torch.optim, nn.optim, inspect.isclass), (torch.linalg, Tensor, callable)]
    absent = set().union(*({n for n in public(room, kind) if not hasattr(ours, n)} for room, ours, kind in theirs))
    told = set(" ".join(NOT_FROM_PYTORCH.values()).split())
    assert not absent - told, f"neither there nor explained: {sorted(absent - told)}"
    assert not {n for n in told if hasattr(Tensor, n)}, "they are there"


def test_every_method_is_in_a_test():
    """By its name, in a file of tests other than the lists of names and messages."""
    lists = ("test_messages", "test_wrong_arguments", "test_api_page")
    tests = [p for p in Path(__file__).parents[1].rglob("*.py")
             if p.name.startswith("test_") or p.name == "method_cases.py"]
    tests = [p for p in tests if not p.name.startswith(lists)]
    words = set(re.findall(r"[A-Za-z]\w*", "\n".join(p.read_text() for p in tests)))
    missing = [n for n in dir(Tensor) if not n.startswith("_") and not {n, n.rstrip("_")} & words]
    assert not missing, f"in no test: {missing}"


def test_facts_are_about_names_that_exist():
    assert not [n for n in (*PYTORCH, *DIFFERENCES) if not hasattr(Tensor, n)]
    text = PAGE.read_text()
    assert not [n for n in (*IN_TINYGRAD, *IN_PYTORCH, *MODULE_DIFFERENCES) if f"| `{n}" not in text]


def test_every_name_says_what_it_is():
    rows = [row.split(" | ") for row in PAGE.read_text().splitlines() if row.startswith("| `")]
    assert not [row[0] for row in rows if not row[1].strip(" |")]


def test_every_method_says_what_it_is_with_an_example():
    for room in rooms():
        for name, thing in vars(room).items():
            plain = (
                thing.fget
                if isinstance(thing, property)
                else thing.__func__
                if isinstance(thing, (classmethod, staticmethod))
                else thing
            )
            if name.startswith("_") or not callable(plain):
                continue
            assert sentence(plain), f"{room.__name__}.{name} has no docstring"
            assert ">>>" in (plain.__doc__ or ""), f"{room.__name__}.{name} has no example"


if __name__ == "__main__":
    PAGE.write_text(page())
