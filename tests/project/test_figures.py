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

LINES = {"compiler": 14_575, "check": 1_230, "engine and runtime": 5_410, "tensor": 9_360, "nn": 5_890, "jit": 1_990,
         "devices": 4_880, "package": 48_850}
LONGEST_CHAIN = 4
LARGEST_FOLDER = 15
IMPORT_CIRCLES = 0
NAMES_USED_TWICE = 0
PRIVATE_USES = 0
EXECUTED_LINES, EXECUTED_FILES = 6_050, 105      # depends a little on the processor


def test_lines_of_code_stay_within_their_limits() -> None:
    found = figures.sizes()
    assert {part: lines for part, lines in found.items() if lines > LINES[part]} == {}


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
