"""Pages stay true: every block is run, the table of files is the files, links lead somewhere.

Python blocks are run by pytest's own `--doctest-glob=*.md`, commands with their output here (those of the projects in
test_projects.py). After a change that is meant to change them, write the new output of the Python blocks, the table of
files, the line counts of the reading guide and the drawings (without a page: of all of them) with:

    PYTHONPATH=tests/reference python tests/project/test_docs.py [PAGE ...]
"""

from __future__ import annotations

import ast
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from quotes import missing

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "glassgrad"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
FILES = ROOT / "docs" / "files.md"
READING = ROOT / "docs" / "theory" / "reading_the_source.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
STAGES = [f"compiler/{stage}" for stage in ("graph", "schedule", "lower", "optimize", "render")]
FOLDERS = ["base", *STAGES, "compiler/check", "runtime", "engine", "tensor", "nn"]
BESIDE = sorted(p.name for p in PACKAGE.iterdir()
                if p.is_dir() and p.name not in [*FOLDERS, "compiler", "__pycache__"])
BEGIN, END = "<!-- files: written by tests/project/test_docs.py -->\n", "<!-- end of files -->\n"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


# -- the table of files --------------------------------------------------------------------------------------
def first_sentence(path: Path) -> str:
    """What a file says it is: its docstring up to the first full stop."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    sentence = re.split(r"(?<=[.?])\s", " ".join(text.split()))[0]
    return sentence.rstrip(".").replace("|", "\\|")


def table_of_files() -> str:
    """Every file of the package with its first sentence, folder by folder in the order of the stages."""
    lines = ["| file | what it is |", "|---|---|"]
    for folder in ("base", "compiler", *FOLDERS[1:], *BESIDE, ""):
        whole = folder not in ("", "compiler")
        files = sorted((PACKAGE / folder).rglob("*.py") if whole else (PACKAGE / folder).glob("*.py"))
        lines.append(f"| **{folder or 'beside the stages'}** | |")
        for path in files:
            said, name = first_sentence(path), path.relative_to(PACKAGE)
            if said or path.name != "__init__.py":
                lines.append(f"| [`{name}`](../glassgrad/{name}) | {said} |")
    return "\n".join(lines) + "\n"


def test_the_table_of_files_is_the_files() -> None:
    page = FILES.read_text()
    shown = page[page.index(BEGIN) + len(BEGIN):page.index(END)].splitlines()
    wanted = table_of_files().splitlines()
    changed = [f"+ {line}" for line in wanted if line not in shown]
    changed += [f"- {line}" for line in shown if line not in wanted]
    assert shown == wanted, "python tests/project/test_docs.py writes it anew:\n" + "\n".join(changed)


@pytest.mark.parametrize("folder", [*FOLDERS, *BESIDE])
def test_every_file_opens_with_its_contract(folder: str) -> None:
    silent = [p.name for p in (PACKAGE / folder).rglob("*.py") if p.read_text().strip() and len(first_sentence(p)) < 10]
    assert not silent


# -- blocks that run -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_python_block_is_run(page: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S):
        assert block.lstrip().startswith(">>>"), f"this block is not run:\n{block}"
        assert block.endswith("\n\n"), f"doctest takes the fence for output: leave a blank line before it\n{block}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_blocks_are_of_a_kind_that_is_checked(page: Path) -> None:
    kinds = re.findall(r"^```(\w*)\n.*?^```$", page.read_text(), re.M | re.S)
    assert set(kinds) <= {"python", "text", "sh"}, kinds


def quoted_commands(page: Path) -> list[tuple[str, list[str]]]:
    """Commands that a page shows with their output; those of projects/ belong to test_projects.py."""
    found = re.findall(r"^```text\n\$ ([^\n]*)\n(.*?)^```", page.read_text(), re.M | re.S)
    return [(command, shown.splitlines()) for command, shown in found if "projects/" not in command]


def typed(line: str) -> tuple[dict[str, str], list[str]]:
    """A command as a reader types it: its settings, and its words with this Python in the place of theirs."""
    words = shlex.split(line, comments=True)
    first = next(i for i, word in enumerate(words) if not re.match(r"[A-Z_]+=", word))
    own = {"python": [sys.executable], "glassgrad": [sys.executable, "-m", "glassgrad"]}
    return dict(w.split("=", 1) for w in words[:first]), [*own.get(words[first], [words[first]]), *words[first + 1:]]


NAMED = pytest.mark.only_on("CPU", reason="it shows the default device's name")


@pytest.mark.parametrize("page, command, shown", [
    pytest.param(p, command, shown, marks=[NAMED] * any(line.startswith("*** CPU") for line in shown))
    for p in PAGES for command, shown in quoted_commands(p)])
def test_a_quoted_command_prints_what_the_page_shows(page: Path, command: str, shown: list[str],
                                                     tmp_path: Path) -> None:
    settings, words = typed(command)
    done = subprocess.run(words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT), **settings},
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    line = missing(shown, done.stdout.splitlines())
    assert line is None, f"{page.name} shows {line!r} after $ {command}; printed:\n{done.stdout}"


def script_lines(page: Path) -> list[str]:
    """What a page's `sh` blocks say to type."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.M | re.S)
    return [line for block in blocks for line in block.splitlines() if line.strip() and not line.startswith("#")]


@pytest.mark.parametrize("page", [p for p in PAGES if script_lines(p)], ids=lambda p: p.relative_to(ROOT).as_posix())
def test_what_a_page_says_to_type_exists(page: Path) -> None:
    """Long commands (a training, the whole suite) have tests of their own; here their names are checked."""
    commands = (ROOT / "dev").read_text()
    for line in script_lines(page):
        _, words = typed(line)
        if words[0] == "./dev":
            assert re.search(rf"^{words[1]}\)$", commands, re.M), line
        elif words[0] == sys.executable and words[1] != "-m":
            assert (ROOT / words[1]).exists() or words[1].endswith(("train.py", "script.py")), line
        elif words[0] == sys.executable:
            assert words[2] in ("pip", "pytest", "glassgrad.compat", "glassgrad", "benchmarks.performance"), line
        else:
            assert (ROOT / words[0]).exists(), line


def test_the_book_goes_through_every_stage_in_under_500_lines() -> None:
    page = ARCHITECTURE.read_text()
    assert lines_in(ARCHITECTURE) < 500
    examples = doctest.DocTestParser().get_examples(page)
    assert len(examples) >= 25
    for stage in (*STAGES, "compiler/check", "engine"):
        assert f"glassgrad.{stage.replace('/', '.')}" in "".join(e.source for e in examples), stage
    for word in ("task i0", "lane", "tile", "void ", "PARAM", "contract("):
        assert any(word in e.want for e in examples), word


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"https?:|mailto:|#", target):
            assert (page.parent / target.partition("#")[0]).exists(), f"{page.name} links to {target}"


# -- the reading guide ---------------------------------------------------------------------------------------
READING_ROW = re.compile(r"^\| *\d* *\| \[`[^`]+`\]\(([^)]+)\) \| (\d+) \|(.*)\| (.*) \|$", re.M)
READING_ORDER = ["tinygrad_lite", "pipeline", "ops", "node", "tensor", "gradient", "realize", "fusion", "kernels",
                 "loops", "element_expressions", "loop_moves", "register_plan", "register_loops", "c_source",
                 "llvm_ir", "backend", "native_device", "llvm_compiler", "elf_loader",
                 "compiled_schedule"]
MOST_TO_READ = 6_000


class ReadingRow(NamedTuple):
    """A file of the reading guide, as the page says."""
    path: Path
    lines: int
    skip: str
    look_for: str


def reading_rows(page: str = "") -> list[ReadingRow]:
    """The files of the reading guide in order."""
    return [ReadingRow((READING.parent / path).resolve(), int(lines), skip.strip(), words)
            for path, lines, skip, words in READING_ROW.findall(page or READING.read_text())]


def lines_in(path: Path) -> int:
    return len(path.read_text().splitlines())


def definitions(path: Path) -> dict[str, range]:
    """The lines of every class, function and method of a file, by name."""
    kinds = (ast.ClassDef, ast.FunctionDef)
    return {node.name: range(min([node.lineno, *(d.lineno for d in node.decorator_list)]), (node.end_lineno or 0) + 1)
            for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)}


def lines_to_read(row: ReadingRow) -> int:
    """The lines of a file that are left when those of `skip` are taken away.

    Skipped are definitions, one by one; from one of them to the end (from `x`); or all others (all but `x`, `y`).
    """
    where, last = definitions(row.path), lines_in(row.path)
    named = {line for name in re.findall(r"(?<!from )`(\w+)`", row.skip) for line in where[name]}
    for name in re.findall(r"from `(\w+)`", row.skip):
        named.update(range(where[name].start, last + 1))
    return len(named) if row.skip.startswith("all but") else last - len(named)


def counted(page: str) -> str:
    """The reading guide with the line counts of now."""
    rows = iter(reading_rows(page))
    page = READING_ROW.sub(lambda row: row[0].replace(f" | {row[2]} |", f" | {lines_to_read(next(rows))} |", 1), page)
    total = sum(row.lines for row in reading_rows(page))
    return re.sub(r"the whole way: \d+ lines", f"the whole way: {total} lines", page)


def test_the_reading_guide_names_files_that_exist_in_reading_order() -> None:
    names = [row.path.stem for row in reading_rows()]
    assert all(row.path.exists() for row in reading_rows())
    assert [name for name in names if name in READING_ORDER] == READING_ORDER


def test_what_the_reading_guide_says_to_skip_is_in_the_file() -> None:
    missing_names = [f"{row.path.name}: {name}" for row in reading_rows()
                     for name in re.findall(r"`(\w+)`", row.skip) if name not in definitions(row.path)]
    assert not missing_names


def test_the_reading_guide_says_how_long_the_files_are() -> None:
    """Up to a tenth of a file, so that not every small change needs a new count."""
    wrong = [f"{row.path.name}: {row.lines} on the page, {lines_to_read(row)} in the file" for row in reading_rows()
             if abs(row.lines - lines_to_read(row)) > max(15, lines_in(row.path) // 10)]
    assert not wrong, f"python tests/project/test_docs.py {READING.relative_to(ROOT)} writes them anew: {wrong}"


def test_a_person_reads_about_6000_lines() -> None:
    total = sum(map(lines_to_read, reading_rows()))
    assert total <= MOST_TO_READ
    said = re.search(r"the whole way: (\d+) lines", READING.read_text())
    assert said is not None and abs(int(said[1]) - total) < total // 10


def test_what_the_reading_guide_says_to_look_for_is_in_the_file() -> None:
    missing_names = [f"{row.path.name}: {name}" for row in reading_rows()
                     for name in re.findall(r"`(\w+)`", row.look_for)
                     if not re.search(rf"\b{name}\b", row.path.read_text())]
    assert not missing_names


# -- writing the pages anew ----------------------------------------------------------------------------------
def rewritten(text: str) -> str:
    """The page with what its examples print now."""
    names: dict[str, object] = {}
    checker, out, done = doctest.OutputChecker(), [], 0
    lines = text.splitlines(keepends=True)
    for example in doctest.DocTestParser().get_examples(text):
        length = example.source.count("\n")
        out += lines[done:example.lineno + length]
        printed, raises = io.StringIO(), example.exc_msg is not None
        with redirect_stdout(printed), suppress(*[Exception] if raises else []):
            exec(compile(example.source, "<page>", "single"), names)
        want = example.want                       # an error that a page shows stays as it is: the page's test checks it
        got = want if raises else printed.getvalue()
        kept = checker.check_output(want, got, FLAGS) if want else not got
        out += [want if kept else got]
        done = example.lineno + length + want.count("\n")
    return "".join(out + lines[done:])


def main(pages: list[str]) -> None:
    if not pages:
        subprocess.run([sys.executable, str(ROOT / "docs" / "tools" / "diagrams.py")], check=True)
    for path in [Path(p).resolve() for p in pages] or \
            [p for p in PAGES if p in (FILES, READING) or ">>>" in p.read_text()]:
        before = path.read_text()
        page = rewritten(before)
        if path == FILES:
            page = page[:page.index(BEGIN) + len(BEGIN)] + table_of_files() + page[page.index(END):]
        if path == READING:
            page = counted(page)
        if page != before:
            path.write_text(page)
            print(f"written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main(sys.argv[1:])
