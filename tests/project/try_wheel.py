"""Build the package, install the wheel into a clean environment outside the checkout, and use it there. `./dev wheel`

    python tests/project/try_wheel.py [--keep FOLDER]      --keep: where the built files go (default: dist/)

In: a checkout, and a Python that has `build`. Out: dist/*.whl and dist/*.tar.gz, and an exit status. The new
environment gets the wheel with what it depends on, pytest and hypothesis; neither PyTorch nor the checkout can be
imported there. What runs: the command `glassgrad demo`, the examples in docstrings of some installed modules, and a
sample of the tests, copied beside the environment.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ["tests/graph/test_ops.py", "tests/graph/test_graph_uop.py", "tests/schedule/test_schedule.py",
         "tests/state/test_state_checkpoint.py"]
MODULES = ["glassgrad.tensor.methods.reductions", "glassgrad.nn.layers.linear", "glassgrad.nn.state", "glassgrad.jit",
           "glassgrad.nn.datasets"]
COPIED = ["tests", "conftest.py", "pyproject.toml", "README.md"]


def run(*words: str | Path, cwd: Path, **environment: str) -> None:
    """Run a command; end with its status if it fails."""
    start = time.monotonic()
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    done = subprocess.run([str(word) for word in words], cwd=cwd, env={**kept, **environment}, check=False)
    said = " ".join(Path(str(word)).name if os.sep in str(word) else str(word) for word in words[:6])
    ended, seconds = "failed" if done.returncode else "done", time.monotonic() - start
    print(f"wheel: {ended} after {seconds:.0f} s: {said}", flush=True)
    if done.returncode:
        sys.exit(done.returncode)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build a wheel and use it in a clean environment.")
    parser.add_argument("--keep", type=Path, default=ROOT / "dist", help="where the built files go (default: dist/)")
    keep = parser.parse_args().keep.resolve()
    with tempfile.TemporaryDirectory(prefix="glassgrad-wheel-") as name:
        folder = Path(name)
        run(sys.executable, "-m", "build", "--outdir", folder / "dist", ROOT, cwd=ROOT)
        [wheel] = (folder / "dist").glob("*.whl")
        venv.create(folder / "env", with_pip=True)
        programs = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
        python = programs / ("python.exe" if os.name == "nt" else "python")
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel, "pytest>=8.2",
            "hypothesis>=6.100", cwd=folder)
        place = folder / "elsewhere"
        place.mkdir()
        for path in COPIED:
            whole = (ROOT / path).is_dir()
            (shutil.copytree if whole else shutil.copy)(ROOT / path, place / path)
        check = "import glassgrad, sys; sys.exit(not glassgrad.__file__.startswith(sys.prefix))"
        run(python, "-c", check, cwd=place)                       # the wheel's own, not the checkout's
        run(programs / "glassgrad", "demo", "--epochs", "1", cwd=place)
        run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS, cwd=place)
        run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", *MODULES, cwd=place)
        keep.mkdir(exist_ok=True)
        for built in (folder / "dist").iterdir():
            shutil.copy(built, keep / built.name)
            print(f"wheel: {keep / built.name}")


if __name__ == "__main__":
    main()
