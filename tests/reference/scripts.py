"""Run a user's script in a process of its own, with only the settings a test gives it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from functools import lru_cache
from pathlib import Path

from glassgrad.base.settings import SETTINGS
from glassgrad.runtime.devices import Device

ROOT = Path(__file__).resolve().parents[2]


@lru_cache(maxsize=1)
def scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder for scripts and for a disk cache that all of them share."""
    return tempfile.TemporaryDirectory(prefix="glassgrad-tests-")


def run_script(source: str, fails: bool = False, name: str = "script.py", **environment: str) -> tuple[str, str]:
    """What a script prints, as (standard output, standard error); it must succeed, or fail where `fails`."""
    folder = Path(scratch().name)
    path = folder / name
    path.write_text(textwrap.dedent(source))
    kept = {k: v for k, v in os.environ.items() if k not in SETTINGS and k not in Device.flags and k != "DEVICE"}
    kept.update(PYTHONPATH=str(ROOT), CACHE_DIR=str(folder / "cache"), PYTHONWARNINGS="error")
    done = subprocess.run([sys.executable, str(path)], env={**kept, **environment}, capture_output=True, text=True,
                          timeout=300, cwd=folder)
    assert (done.returncode != 0) == fails, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr
