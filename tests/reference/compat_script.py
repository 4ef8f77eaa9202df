"""A script as a tinygrad user writes it, run through `glassgrad.compat`. In: its text. Out: what it prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(folder: Path, text: str, *arguments: str, through_import: bool = False) -> str:
    """The output of a script that must succeed."""
    script = folder / "script.py"
    script.write_text(("import glassgrad.compat\n" if through_import else "") + text)
    command = (
        [sys.executable, str(script)] if through_import else [sys.executable, "-m", "glassgrad.compat", str(script)]
    )
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, cwd=folder,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
