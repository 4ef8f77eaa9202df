"""Run a script that says `import tinygrad` on glassgrad: python -m glassgrad.compat [--torch] script.py [args]. With
--torch, also one that says `import torch`.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from glassgrad.compat.import_hook import install


def main(arguments: list[str]) -> int:
    """Run a script, or a module with -m; return 2 on wrong usage."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: python -m glassgrad.compat [--torch] script.py [args]\n"
              "       python -m glassgrad.compat [--torch] -m module [args]\n"
              "import tinygrad means glassgrad in it; with --torch, so does import torch", file=sys.stderr)
        return 0 if arguments else 2
    install()
    if arguments[0] == "--torch":
        install("torch")
        arguments = arguments[1:]
        if not arguments:
            return main([])
    if arguments[0] == "-m" and len(arguments) > 1:
        sys.argv = arguments[1:]
        sys.path.insert(0, "")
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return 0
    if not Path(arguments[0]).is_file():
        print(f"glassgrad.compat: there is no script {arguments[0]!r}", file=sys.stderr)
        return 2
    sys.argv = arguments
    sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
    runpy.run_path(arguments[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
