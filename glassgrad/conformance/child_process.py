"""Run the checks of one group in a process of its own. In: device, group, first check, script of the device. Out:
lines.

Standard output gets a line that says "ready", then a line of JSON for each check. What the device itself prints goes to
standard error.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module

from glassgrad.base.errors import InputError
from glassgrad.conformance.case import check
from glassgrad.conformance.check_groups import chosen


def check_script(script: str) -> None:
    """Raise if there is no such file."""
    if not os.path.isfile(script):
        raise InputError("there is no such script", given=script, expected="the path of a Python file",
                         fix="check the path")


def load_devices(script: str) -> None:
    """Run what registers devices: a file (not as the main program), or a module by its name."""
    if not script.endswith(".py"):
        try:
            import_module(script)
        except ModuleNotFoundError as error:
            raise InputError("there is no such module", given=script, expected="a module that registers a device",
                             fix=f"--from path/to/file.py, or install what is missing: {error}") from None
        return
    check_script(script)
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    runpy.run_path(script, run_name="glassgrad_device")


def main(words: Sequence[str]) -> None:
    """Run the checks of a group, starting at a given one."""
    device, group_name, first, script = words
    with os.fdopen(os.dup(1), "w") as results:
        os.dup2(2, 1)                      # so that what the device prints, in Python or in C, is not among the results
        if script:
            load_devices(script)
        [group] = chosen([group_name])
        cases = list(group.cases())
        start = [case.name for case in cases].index(first)
        results.write("ready\n")          # the time limit of a check begins after the imports
        results.flush()
        for case in cases[start:]:
            results.write(json.dumps(asdict(check(group.name, case, device))) + "\n")
            results.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
