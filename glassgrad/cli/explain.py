"""`glassgrad explain script.py`: run a script, then say which kernels took the time, for which lines, and why."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from glassgrad.cli.viz import run
from glassgrad.viz.bottlenecks import explained


def main(arguments: Sequence[str]) -> int:
    """Run the script as `python script.py` would, and print the explanation after it."""
    parser = argparse.ArgumentParser(prog="glassgrad explain", description="Run a script, then list its kernels by "
                                     "cost: the line each came from, what bounds it, why, and what to try.")
    parser.add_argument("script", help="the script to run")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own arguments")
    options = parser.parse_args(arguments)
    with explained() as found:
        status = run(options.script, options.arguments)
    print(found)
    return status
