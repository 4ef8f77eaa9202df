"""`glassgrad conformance DEVICE`: test and grade a device. In: arguments. Out: a report, an exit status.

Exit status: 0 all checks passed, or were refused by the name of an element type; 1 some failed; 2 wrong usage.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from glassgrad.cli import parser_of
from glassgrad.conformance.check_groups import GROUPS
from glassgrad.conformance.runner import conformance

EXAMPLES = """examples:
  glassgrad conformance CPU
  glassgrad conformance MY --from backend.py            a device that a script registers
  glassgrad conformance MY --from package.module        or a module
  glassgrad conformance OPENCL --only contractions --only 8
  CHECK=1 glassgrad conformance OPENCL --only views     for a wrong result: the pass that is wrong
  glassgrad conformance CPU --write docs/devices/conformance.md
"""


def main(arguments: Sequence[str]) -> int:
    """Grade a device, and print the report."""
    groups = ", ".join(f"{number} {group.name}" for number, group in enumerate(GROUPS, 1))
    parser = parser_of("conformance", "Check a device against NumPy and the interpreter, in processes of its own, and "
                       f"grade it.\nGrades: {groups}.", EXAMPLES)
    parser.add_argument("device", help="its name or an alias, as in device=NAME")
    parser.add_argument("--from", dest="script", metavar="SCRIPT", default="",
                        help="a Python file or a module that registers the device")
    parser.add_argument("--only", metavar="GRADE", action="append", default=[],
                        help="a grade by name or number; may be given several times")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS",
                        help="a check that takes longer hangs (default: 60)")
    parser.add_argument("--json", action="store_true", help="print all results as JSON")
    parser.add_argument("--write", metavar="PAGE.md", help="put the result into a Markdown page as well")
    options = parser.parse_args(arguments)
    report = conformance(options.device, options.only, script=options.script, timeout=options.timeout,
                         show=(lambda line: None) if options.json else partial(print, flush=True))
    print(json.dumps(report.as_json(), indent=1) if options.json else report.conclusion())
    if options.write:
        report.write(Path(options.write))
    return 0 if report.passed else 1
