"""The source stays readable: its figures (docs/tools/figures.py) do not exceed these limits. Lower one when you can."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location(
    "figures", Path(__file__).resolve().parents[2] / "docs" / "tools" / "figures.py")
assert spec is not None and spec.loader is not None
figures = importlib.util.module_from_spec(spec)
spec.loader.exec_module(figures)

LINES = {"compiler": 13_320, "check": 890, "engine and runtime": 5_695, "tensor": 9_415, "nn": 5_600, "jit": 1_805,
         "package": 39_665, "new capabilities": 16_625, "package with them": 56_290}
LONGEST_CHAIN = 4
LARGEST_FOLDER = 15
IMPORT_CIRCLES = 0
NAMES_USED_TWICE = 0
PRIVATE_USES = 0
EXECUTED_LINES, EXECUTED_FILES = 6_059, 77      # the most, on processors with AMX; aim: 6,000


def test_lines_of_code_stay_within_their_limits() -> None:
    found = figures.sizes()
    assert {part: lines for part, lines in found.items() if lines > LINES[part]} == {}


def test_every_file_of_a_capability_exists() -> None:
    assert figures.missing_capability_files() == []


def test_no_file_is_listed_for_two_capabilities() -> None:
    assert sum(figures.capability_sizes().values()) == figures.sizes()["new capabilities"]


def test_the_page_of_sizes_is_written_from_the_source() -> None:
    """Names and files to the letter; numbers may be a tenth off, so that not every change has to write the page."""
    def rows(text: str) -> list[list[str]]:
        return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]

    page = (Path(figures.ROOT) / "docs" / "sizes.md").read_text()
    written, measured = rows(page), rows(figures.size_tables())
    assert [[row[0], row[2]] for row in written] == [[row[0], row[2]] for row in measured]
    numbers = [(row[0], *(int(cells[1].replace(",", "")) for cells in (row, other)))
               for row, other in zip(written, measured) if other[1][0].isdigit()]
    assert [(name, old, new) for name, old, new in numbers if abs(old - new) > max(20, new // 10)] == []


def test_the_longest_chain_of_classes_stays_short() -> None:
    assert figures.class_chains()[0] <= LONGEST_CHAIN, figures.class_chains()


def test_the_largest_folder_stays_small() -> None:
    assert figures.largest_folder()[0] <= LARGEST_FOLDER, figures.largest_folder()


def test_import_circles_do_not_become_more() -> None:
    assert len(figures.import_circles()) <= IMPORT_CIRCLES, figures.import_circles()


def test_class_names_are_used_once() -> None:
    assert len(figures.class_names_used_twice()) <= NAMES_USED_TWICE, figures.class_names_used_twice()


def test_private_names_stay_in_their_folder() -> None:
    assert len(figures.private_uses()) <= PRIVATE_USES, "\n".join(figures.private_uses())


@pytest.mark.only_on("CPU", reason="it counts what the default device executes")
def test_a_small_training_expression_executes_few_lines_in_few_files() -> None:
    lines, files = figures.lines_executed()
    assert lines <= EXECUTED_LINES and files <= EXECUTED_FILES, (lines, files)


NOTING_FIRST = [                                           # what they do later needs a note of every graph and move
    "compiler/optimize/moves/move_decorator.py",           # which move of a recipe this is
    "engine/changing_sizes/key_without_sizes.py", "engine/changing_sizes/size_families.py",     # a graph's sizes
    "engine/changing_sizes/kept_values.py"]                # a graph's nodes


@pytest.mark.only_on("CPU", reason="it counts what the default device executes")
def test_the_code_of_a_capability_runs_only_where_a_program_uses_it() -> None:
    assert [file for file in figures.capabilities_executed() if file not in NOTING_FIRST] == []
