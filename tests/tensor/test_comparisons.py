"""Tables of docs/from_pytorch.md and docs/from_tinygrad.md: both columns are run, and say the same where they should.

A table with the columns `other | glassgrad` holds pairs with equal results. One with `other | says | glassgrad | says`
holds what differs: each side must say just that.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripts import run_script

DOCS = Path(__file__).resolve().parents[2] / "docs"
NUMBERS, WHOLE = [[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]], [3, 1, 2]
WEIGHTS = [[0.5, 1.0, -1.0], [2.0, 0.0, 1.0]]


def _installed(name: str) -> bool:
    """Whether the real one is there; `glassgrad.compat`, once imported, answers to the same name."""
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def rows(page: str, *heading: str) -> list[list[str]]:
    """The code in the cells of every table with this heading."""
    found: list[list[str]] = []
    inside = False
    for line in (DOCS / page).read_text().splitlines():
        cells = [c.strip() for c in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if cells[:len(heading)] == list(heading):
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not set(line) <= set("|- "):
            found.append([c.strip("`") for c in cells])
    assert found, f"{page} has no table {heading}"
    return found


def ours() -> dict[str, Any]:
    from glassgrad import Tensor, dtypes, nn
    return {"Tensor": Tensor, "dtypes": dtypes, "nn": nn, "x": Tensor(NUMBERS), "m": Tensor(WHOLE),
            "w": Tensor(WEIGHTS), "G": import_module("glassgrad.nn.functional")}


def theirs(torch: Any) -> dict[str, Any]:
    return {"torch": torch, "F": torch.nn.functional, "t": torch.tensor(NUMBERS), "n": torch.tensor(WHOLE),
            "v": torch.tensor(WEIGHTS)}


def plain(value: Any) -> np.ndarray:
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)


@pytest.mark.parametrize("left, right", [row[:2] for row in rows("from_pytorch.md", "PyTorch", "glassgrad")])
def test_pytorch_and_glassgrad_say_the_same(left: str, right: str, torch: Any) -> None:
    here, there = plain(eval(right, ours())), plain(eval(left, theirs(torch)))
    assert here.shape == there.shape
    np.testing.assert_allclose(here, there, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("row", rows("from_pytorch.md", "PyTorch", "says", "glassgrad", "says"), ids=lambda r: r[2])
def test_pytorch_and_glassgrad_differ_as_the_page_says(row: list[str], torch: Any) -> None:
    left, said, right, says, why = row
    assert (repr(eval(left, theirs(torch))), repr(eval(right, ours()))) == (said, says) and why


def pairs() -> Iterator[tuple[str, str]]:
    return ((row[0], row[1]) for row in rows("from_tinygrad.md", "tinygrad", "glassgrad"))


SCRIPT = """
import json
from tinygrad import Tensor, dtypes, nn
x = Tensor({numbers})
print(json.dumps([eval(line).tolist() for line in {lines!r}]))
"""


def test_tinygrads_names_lead_here() -> None:
    left, right = zip(*pairs())
    program = "import glassgrad.compat\n" + SCRIPT.format(numbers=NUMBERS, lines=list(left))
    compare(run_script(program)[0], right)


@pytest.mark.skipif(not _installed("tinygrad"), reason="tinygrad, the other side, is not installed")
def test_tinygrad_itself_says_the_same(tmp_path: Path) -> None:
    left, right = zip(*pairs())
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(numbers=NUMBERS, lines=list(left))], cwd=tmp_path,
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    compare(done.stdout, right)


def compare(printed: str, right: tuple[str, ...]) -> None:
    for line, there in zip(right, json.loads(printed), strict=True):
        np.testing.assert_allclose(eval(line, ours()).tolist(), there, rtol=1e-5, atol=1e-6, err_msg=line)
