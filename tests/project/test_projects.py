"""The seven projects run, and docs/guide quotes what they really print.

A project fails by itself when something it says is not true. Quotes in a page are blocks of `text` that begin with
`$ python projects/...`; a line of dots skips lines, dots inside a line skip characters, and times may differ.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest
from model_files import data_folder
from quotes import missing

ROOT = Path(__file__).resolve().parents[2]
SLOW = pytest.mark.slow_on("PYTHON")
TILES = pytest.mark.only_on("CPU", "CLANG", reason="its page quotes the tiles of compiled kernels")
PROJECTS = [
    pytest.param("01_tensor_basics.py", marks=SLOW),
    "02_op_types.py",
    "03_autograd.py",
    pytest.param("04_mnist.py", marks=SLOW),
    pytest.param("05_compiler_pipeline.py", marks=TILES),
    pytest.param("06_custom_ops.py", marks=SLOW),
    "07_custom_backend/backend.py",
]


def run(project: str, folder: Path, *arguments: str) -> str:
    """What a project prints, shortened; its exit status is checked."""
    environment = {**os.environ, "GLASSGRAD_SHORT": "1", "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    done = subprocess.run([sys.executable, str(ROOT / "projects" / project), *arguments], cwd=folder, env=environment,
                          capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{project} failed\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def quotes(page: str) -> list[list[str]]:
    """The lines of each block that quotes a project."""
    blocks = re.findall(r"^```text\n\$ [^\n]*python projects/[^\n]*\n(.*?)^```", page, re.M | re.S)
    return [block.splitlines() for block in blocks]


def test_quotes_are_compared() -> None:
    printed = ["one   1.5 ms", "two 2", "three 3"]
    assert missing(["...", "two 2", "three 3"], printed) is None
    assert missing(["one 99 ms", "...", "three ..."], printed) is None
    assert missing(["one 99 ms", "three 3"], printed) == "three 3"
    assert missing(["...", "three 3", "...", "two 2"], printed) == "two 2"


@pytest.mark.parametrize("project", PROJECTS)
def test_a_project_prints_what_its_page_quotes(project: str, tmp_path: Path) -> None:
    if project.startswith("04"):
        data_folder("mnist")
    if project.startswith("07"):
        needs_a_compiler()
    printed = run(project, tmp_path, *(["benchmark"] if project.startswith("07") else [])).splitlines()
    if project.startswith("04"):
        assert (tmp_path / "mnist.png").stat().st_size > 500
        assert (tmp_path / "mnist.safetensors").stat().st_size > 80_000
    page = (ROOT / "docs" / "guide" / (project.partition("/")[0].removesuffix(".py") + ".md")).read_text()
    found = quotes(page)
    assert found, "the page does not quote its project"
    for quote in found:
        line = missing(quote, printed)
        assert line is None, f"the page quotes {line!r}, which was not printed there; printed:\n" + "\n".join(printed)


def needs_a_compiler() -> None:
    if which(os.environ.get("CC", "cc")) is None:
        pytest.skip("there is no C compiler")


def test_the_backend_passes_its_own_tests() -> None:
    needs_a_compiler()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "projects/07_custom_backend"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:]


def test_the_backend_is_short() -> None:
    assert len((ROOT / "projects/07_custom_backend/backend.py").read_text().splitlines()) < 150


def test_chart_is_a_png(tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "projects"))
    try:
        from plot import save_png
    finally:
        sys.path.remove(str(ROOT / "projects"))
    save_png(tmp_path / "curve.png", {"loss": [3.0, 2.0, 1.0], "flat": [1.0, 1.0]})
    data = (tmp_path / "curve.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n") and data.endswith(b"IEND\xaeB`\x82")
