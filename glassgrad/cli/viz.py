"""`glassgrad viz script.py`: run a script, and show what ran. In: a script. Out: a page, or an HTML file."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Sequence

from glassgrad.base.errors import InputError
from glassgrad.conformance.child_process import check_script
from glassgrad.viz.program_recording import begin


def main(arguments: Sequence[str]) -> int:
    """Run the script as `python script.py` would; the page is shown when it ends."""
    parser = argparse.ArgumentParser(prog="glassgrad viz", description="Run a script, and show its graphs, kernels, "
                                     "time and memory in a browser when it ends; as VIZ=1 python script.py does.")
    parser.add_argument("--out", metavar="FILE.html", help="write the page to a file, and serve nothing")
    parser.add_argument("script", help="the script to run")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own arguments")
    options = parser.parse_args(arguments)
    check_script(options.script)               # before anything is recorded
    if options.out and not os.path.isdir(os.path.dirname(os.path.abspath(options.out))):
        raise InputError("the visualizer's page could not be written there", given=f"--out {options.out}",
                         expected="a file in a folder that exists", fix="make the folder, or choose another path")
    os.environ["VIZ"] = options.out or "1"
    begin(options.out or 1)
    return run(options.script, options.arguments)


def run(script: str, arguments: Sequence[str]) -> int:
    """Run a script in this process; return its exit status."""
    check_script(script)
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
            return 1
        return ended.code or 0
    return 0
