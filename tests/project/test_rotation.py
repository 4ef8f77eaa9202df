"""Which tests a run takes: the parts of slow families cover everything, and a run says which part it took."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import rotation

ROOT = Path(__file__).resolve().parents[2]
PARTS = range(1, rotation.PARTS + 1)


def test_families_are_files_that_exist() -> None:
    assert rotation.FAMILIES and len(set(rotation.FAMILIES)) == len(rotation.FAMILIES)
    assert all((ROOT / family).is_file() for family in rotation.FAMILIES)


def test_the_core_suite_is_in_every_part_and_a_family_in_exactly_one() -> None:
    core = ["tests/graph/test_ops.py::test_something[case]", f"{rotation.FAMILIES[0]}::test_without_cases"]
    slow = [f"{rotation.FAMILIES[0]}::test_case[{i}]" for i in range(400)]
    assert all(rotation.taken(test, part) for test in core for part in (None, *PARTS))
    assert all([rotation.taken(test, part) for part in PARTS].count(True) == 1 for test in slow)
    assert all(rotation.taken(test, None) for test in slow)
    sizes = Counter(map(rotation.part_of, slow))
    assert min(sizes.values()) > len(slow) / rotation.PARTS / 2, "parts are of similar size"


def test_the_part_is_that_of_the_commit_and_changes_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"rev-list": "41", "rev-parse": "false"}
    monkeypatch.setattr(rotation, "_git", lambda *words: answers[words[0]])
    first = rotation.current_part()
    answers["rev-list"] = "42"
    assert first.number == 41 % rotation.PARTS + 1 != rotation.current_part().number


@pytest.mark.parametrize("shallow", ["", "true"])
def test_without_a_history_the_part_is_that_of_the_day(shallow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "_git", lambda *words: shallow and ("1" if words[0] == "rev-list" else shallow))
    days = [rotation.current_part(datetime.date(2026, 3, day)) for day in range(1, 1 + rotation.PARTS)]
    assert sorted(part.number for part in days) == list(PARTS)
    assert days[0].reason == "the day 2026-03-01"


def collected(*arguments: str) -> str:
    """What pytest collects in a small suite of its own that uses the project's conftest.py."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(words, cwd=ROOT, env=kept, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_file_that_is_named_runs_whole() -> None:
    assert "deselected" not in collected(rotation.FAMILIES[-1])


def test_a_part_that_is_named_deselects_the_others_and_says_how_to_run_it_again() -> None:
    said = collected("--part", "2", "-v", rotation.FAMILIES[-1])
    assert "part 2 of" in said and "again: ./dev test --part 2; everything: ./dev test --all" in said
    assert "deselected" in said


def test_the_page_of_results_says_when_what_and_how() -> None:
    rows = rotation.result_rows(Counter(passed=12_345, skipped=2), ["Skipped: no GPU", "Skipped: no GPU"], 630.0, "CPU")
    page = rotation.results_page(rows)
    assert page.startswith("# The last complete run of the tests\n")
    assert "| result | 12,345 passed, 2 skipped |\n" in page and "| time | 10 minutes |\n" in page
    assert "| skipped | 2: no GPU |\n" in page and set(rows) >= {"date", "commit", "Python", "device"}


def test_only_a_run_of_everything_writes_the_page_of_results() -> None:
    assert rotation.is_complete({"all": True, "maxfail": 0, "keyword": ""}.get)
    assert not rotation.is_complete({"all": False}.get)
    fewer = [("collectonly", True), ("keyword", "lite"), ("markexpr", "not slow"), ("sample", "0:12"), ("part", 2),
             ("lf", True), ("maxfail", 1)]
    assert {name for name, _ in fewer} == {*rotation.CHOOSES}
    assert not any(rotation.is_complete({"all": True, name: value}.get) for name, value in fewer)


def test_pytest_has_the_options_that_choose_tests(request: pytest.FixtureRequest) -> None:
    assert not hasattr(request.config.option, "no_such_option")
    missing = [name for name in ("all", *rotation.CHOOSES) if not hasattr(request.config.option, name)]
    assert missing in ([], ["lf"])               # without its cache, pytest has no --lf
