"""Python as WebAssembly, as a browser runs it (Pyodide, in node): the device WASM by JavaScript's own engine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from browser_programs import training

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.only_on("CPU", reason="it has a device of its own")


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    """What browser_programs.py prints there."""
    library = Path(os.environ.get("PYODIDE", ROOT / "node_modules" / "pyodide"))
    if shutil.which("node") is None:
        pytest.skip("node is not installed (apt install nodejs)")
    if not (library / "pyodide.mjs").exists():
        pytest.skip("Pyodide is not here (npm install pyodide; PYODIDE=folder of the package)")
    found = subprocess.run(["node", str(ROOT / "tests/reference/pyodide_run.mjs"), str(library), str(ROOT),
                            "tests/reference/browser_programs.py"], capture_output=True, text=True, timeout=600)
    assert found.returncode == 0, found.stdout + found.stderr
    answers: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return answers


def test_a_network_is_trained_by_generated_webassembly(answers: dict[str, Any]) -> None:
    assert answers["device"] == "WASM"
    assert answers["losses"] == pytest.approx(training(), rel=1e-3)


def test_a_tensor_is_shown_without_numpy(answers: dict[str, Any]) -> None:
    assert answers["shown"] == "Tensor([2.5, 3.5], dtype=float32, device=WASM)"


def test_the_examples_of_the_compiler_run(answers: dict[str, Any]) -> None:
    assert answers["examples"] > 100 and answers["failed"] == []
