"""Pages of the guide keep their form: every Python block is run, every project has a page with its three parts.

The Python blocks themselves are run by pytest's own `--doctest-glob=*.md`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide"
PAGES = sorted(GUIDE.glob("0*.md"))


def test_every_project_has_a_page() -> None:
    projects = sorted(p.name.removesuffix(".py") for p in (GUIDE.parent.parent / "projects").glob("0*"))
    assert [p.stem for p in PAGES] == projects


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_the_page_of_a_project_has_theory_things_to_try_and_questions(page: Path) -> None:
    text = page.read_text()
    for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
        assert block.lstrip().startswith(">>>"), f"this block is not run:\n{block}"
        assert block.endswith("\n\n"), f"doctest takes the fence for output: leave a blank line before it\n{block}"
    for heading in ("## Theory", "## What to try", "## Questions"):
        assert heading in text
    assert text.count("<details><summary>") == text.count("</summary>") == text.count("</details>") >= 3
